//! The fixed structures of the disk and the arithmetic of its layout. The picture is in `doc/format.md`; a test
//! holds it against this module.
//!
//! **Invariants:** every structure carries a magic, the volume's UUID and a CRC-32C over all its other bytes, so that
//! neither a torn write nor a structure of a volume that was here before is taken for ours.

use crate::allocator::BlockRun;
use crate::codec::{Malformed, Reader, Writer};
use avfs_io::LockId;
use units::{Bytes, DeviceOffset, Ino};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a block: the granularity of allocation and of every device request.
pub const BLOCK: u64 = 4096;
/// Size of an allocation unit.
pub const UNIT: u64 = 8 << 20;
/// Blocks in a unit.
pub const UNIT_BLOCKS: u64 = UNIT / BLOCK;
/// Where the first superblock slot lies; the second follows at [`SUPERBLOCK_B`].
pub const SUPERBLOCK_A: u64 = 1 << 20;
/// The second superblock slot.
pub const SUPERBLOCK_B: u64 = (1 << 20) + (64 << 10);
/// The multi-mount protection block.
pub const MMP: u64 = (1 << 20) + (128 << 10);
/// Start of the log ring.
pub const LOG_START: u64 = 2 << 20;
/// Space at the end of the device that holds two copies of the superblock slots.
pub const TAIL: u64 = 1 << 20;
/// Smallest volume that can be made.
pub const SMALLEST_VOLUME: u64 = 192 << 20;
/// Version of the format.
pub const VERSION: u32 = 1;
/// Inodes whose numbers differ only in these low bits share a shard.
pub const SHARD_INODES: u64 = 256;
/// Longest file in bytes: 2^60 less one block keeps every offset computation inside 63 bits.
pub const MAX_FILE_SIZE: u64 = (1 << 60) - BLOCK;
/// Longest name in bytes.
pub const MAX_NAME: usize = 255;
/// Longest symbolic link target in bytes.
pub const MAX_SYMLINK: usize = 4095;
/// Longest value of an extended attribute in bytes.
pub const MAX_XATTR_VALUE: usize = 65536;
/// What only counts up (generations, log sequence numbers, sequences of batches) is below this: at a million a second it takes
/// 146,000 years to get there. What is higher is damage, and is not gone on with; what is twice as high is not read at all.
/// So one more never wraps, and what a mount writes the next one reads.
pub(crate) const COUNT_LIMIT: u64 = 1 << 62;
/// Most names of one inode.
pub const MAX_LINKS: usize = 65000;

const SUPERBLOCK_MAGIC: [u8; 8] = *b"AVFS\x1a\r\nS";
const MMP_MAGIC: [u8; 8] = *b"AVFS\x1a\r\nM";

/// Features of a volume, in three groups as ext4 and XFS have them: a reader that does not know a bit of
/// `compatible` may mount, of `read_only_compatible` may mount read-only, of `incompatible` may not mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// May be ignored.
    pub compatible: u64,
    /// Must be known to write.
    pub read_only_compatible: u64,
    /// Must be known to read.
    pub incompatible: u64,
}

impl Features {
    /// Whether this code knows all that it must know to write to the volume, by a mount or a repair.
    pub fn allow_writing(&self) -> bool {
        self.read_only_compatible & !KNOWN_FEATURES.read_only_compatible == 0
    }

    /// Features of the incompatible group alone.
    pub const fn incompatible(incompatible: u64) -> Self {
        Self { compatible: 0, read_only_compatible: 0, incompatible }
    }

    /// These features and the others.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self {
            compatible: self.compatible | others.compatible,
            read_only_compatible: self.read_only_compatible | others.read_only_compatible,
            incompatible: self.incompatible | others.incompatible,
        }
    }

    /// Whether all the others are among these features.
    pub fn include(self, others: Self) -> bool {
        self.with(others) == self
    }

    /// Whether extents may share blocks.
    pub fn may_share(&self) -> bool {
        self.incompatible & SHARED_EXTENTS != 0
    }

    /// Whether the [protective partition table](crate::partition_table) belongs before the volume.
    pub fn has_table(&self) -> bool {
        self.compatible & PROTECTIVE_TABLE != 0
    }
}

/// Of the compatible features: a protective partition table stands before the volume.
pub const PROTECTIVE_TABLE: u64 = 1;
/// Of the incompatible features: inodes have flags (chattr). A checkpoint adds it once one has.
pub const INODE_FLAGS: u64 = 1;
/// Incompatible: pieces of metadata may lie in units beside file data. Set when the first does; not taken away again.
pub const SHARED_UNITS: u64 = 2;

/// Incompatible: extents may share blocks. Told before the first does; not taken away again.
pub const SHARED_EXTENTS: u64 = 4;

/// The features this code knows.
pub const KNOWN_FEATURES: Features = Features {
    compatible: PROTECTIVE_TABLE,
    read_only_compatible: 0,
    incompatible: INODE_FLAGS | SHARED_UNITS | SHARED_EXTENTS,
};

/// A contiguous structure on the device, its checksum kept by whoever points at it. `copy` is a second one, in
/// another unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// First byte.
    pub address: DeviceOffset,
    /// First byte of the second copy.
    pub copy: DeviceOffset,
    /// Length in bytes, without padding.
    pub length: u32,
    /// CRC-32C of those bytes.
    pub checksum: u32,
}

impl Piece {
    /// Bytes it takes on the device: whole blocks.
    pub fn space(&self) -> u64 {
        u64::from(self.length).next_multiple_of(BLOCK)
    }

    /// The blocks of both copies; `None` for one that does not lie within one unit of the data area.
    pub fn runs(&self, geometry: &Geometry) -> [Option<BlockRun>; 2] {
        [self.address, self.copy].map(|address| {
            let run = BlockRun { start: geometry.block_at(address)?, count: self.space() / BLOCK };
            let fits = run.count > 0 && run.start % UNIT_BLOCKS + run.count <= UNIT_BLOCKS;
            fits.then_some(run)
        })
    }
}

/// Where replay begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// Byte offset in the ring at which the batch stands (or at 0, if it did not fit behind the one before).
    pub offset: u64,
    /// Its sequence number.
    pub sequence: u64,
    /// Checksum of the batch before it.
    pub previous_checksum: u32,
}

/// Longest label of a volume in bytes.
pub const MAX_LABEL: usize = 63;

/// What the superblock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity.
    pub uuid: [u8; 16],
    /// Label, at most [`MAX_LABEL`] bytes.
    pub label: String,
    /// Format features.
    pub features: Features,
    /// Grows with each write of a superblock; slot = generation mod 2.
    pub generation: u64,
    /// Layout.
    pub geometry: Geometry,
    /// Where the shard table is; length zero on a volume without inodes.
    pub table: Piece,
    /// Where replay begins.
    pub log: LogPosition,
    /// Everything with a log sequence number up to this is in the shards.
    pub lsn: u64,
}

/// Where things lie. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of the device.
    pub device: Bytes,
    /// Stripe the data area is aligned to; 0 when none was known.
    pub stripe: Bytes,
    /// Length of the log ring, which starts at [`LOG_START`].
    pub log: Bytes,
    /// Start of the data area.
    pub data_start: DeviceOffset,
    /// Units in the data area.
    pub units: u64,
}

impl Geometry {
    /// The layout of a device of `device` bytes. The ring is 1/64 of it, 16 MiB to 512 MiB; the data area starts on a
    /// multiple of the stripe and of a unit where both agree, else of the stripe.
    ///
    /// Returns `None` when the device is smaller than [`SMALLEST_VOLUME`] or the stripe is not a multiple of 4 KiB.
    pub fn new(device: Bytes, stripe: Bytes) -> Option<Self> {
        if device.0 < SMALLEST_VOLUME || !stripe.0.is_multiple_of(BLOCK) || stripe.0 > 1 << 30 {
            return None;
        }
        let log = (device.0 / 64).clamp(16 << 20, 512 << 20).next_multiple_of(1 << 20);
        let alignment = match stripe.0 {
            0 => UNIT,
            stripe if UNIT.is_multiple_of(stripe) => UNIT,
            stripe => stripe,
        };
        let data_start = (LOG_START + log).next_multiple_of(alignment);
        let units = device.0.checked_sub(TAIL + data_start)? / UNIT;
        (units >= 16).then_some(Self {
            device,
            stripe,
            log: Bytes(log),
            data_start: DeviceOffset(data_start),
            units,
        })
    }

    /// The same layout on a device that has grown to `device` bytes: the end moves, everything else stays. `None` where that adds no unit.
    pub(crate) fn grown(&self, device: Bytes) -> Option<Self> {
        let units = device.0.checked_sub(TAIL + self.data_start.0)? / UNIT;
        (units > self.units).then_some(Self { device, units, ..*self })
    }

    /// Whether both are layouts of one volume, before and after it has grown.
    pub(crate) fn is_of_one_volume(&self, other: &Self) -> bool {
        Self { device: other.device, units: other.units, ..*self } == *other
    }

    /// The four places of a superblock: slot A, slot B, and a copy of each at the end of the device.
    pub fn superblock_places(device: Bytes) -> [DeviceOffset; 4] {
        let tail = device.0.saturating_sub(TAIL) / BLOCK * BLOCK;
        [SUPERBLOCK_A, SUPERBLOCK_B, tail, tail + (64 << 10)].map(DeviceOffset)
    }

    /// Where the two copies of the superblock of a generation lie: generations take turns, so that the one before stays whole.
    pub fn superblock_copies(device: Bytes, generation: u64) -> [DeviceOffset; 2] {
        let (places, slot) = (Self::superblock_places(device), (generation % 2) as usize);
        [places[slot], places[slot + 2]]
    }

    /// Device address of a block of the data area.
    pub fn block_address(&self, block: u64) -> DeviceOffset {
        DeviceOffset(self.data_start.0 + block * BLOCK)
    }

    /// Block of the data area at a device address, if it lies there and on a block boundary.
    pub fn block_at(&self, address: DeviceOffset) -> Option<u64> {
        let offset = address.0.checked_sub(self.data_start.0)?;
        (offset.is_multiple_of(BLOCK) && offset / BLOCK < self.blocks()).then_some(offset / BLOCK)
    }

    /// True for a number that an inode of this volume may have: there are never more shards than blocks, so that a
    /// number beyond is damage and no reason to make room for it.
    pub(crate) fn may_hold(&self, ino: Ino) -> bool {
        ino.0 != 0 && ino.0 / SHARD_INODES < self.blocks()
    }

    /// Blocks in the data area.
    pub fn blocks(&self) -> u64 {
        self.units * UNIT_BLOCKS
    }
}

/// The superblock as it lies on the disk: one block.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DiskSuperblock {
    magic: [u8; 8],
    checksum: U32,
    version: U32,
    uuid: [u8; 16],
    label: [u8; 64],
    compatible: U64,
    read_only_compatible: U64,
    incompatible: U64,
    generation: U64,
    device_bytes: U64,
    stripe_bytes: U64,
    log_bytes: U64,
    data_start: U64,
    units: U64,
    unit_bytes: U64,
    table_address: U64,
    table_copy: U64,
    table_length: U32,
    table_checksum: U32,
    log_offset: U64,
    log_sequence: U64,
    log_previous_checksum: U32,
    reserved_word: U32,
    lsn: U64,
    reserved: [u8; 3864],
}

const _: () = assert!(size_of::<DiskSuperblock>() == BLOCK as usize);
const _: () = assert!(std::mem::offset_of!(DiskSuperblock, checksum) == 8);
const _: () = assert!(std::mem::offset_of!(DiskSuperblock, uuid) == 16);
const _: () = assert!(std::mem::offset_of!(DiskSuperblock, label) == 32);
const _: () = assert!(std::mem::offset_of!(DiskSuperblock, generation) == 120);
const _: () = assert!(std::mem::offset_of!(DiskSuperblock, table_address) == 176);
const _: () = assert!(std::mem::offset_of!(DiskSuperblock, log_offset) == 200);
const _: () = assert!(std::mem::offset_of!(DiskSuperblock, reserved) == 232);

/// Why a block is not a superblock this code can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// Not AVFS at all.
    #[error("no AVFS superblock")]
    Foreign,
    /// Nobody knows what stands there.
    #[error("superblock cannot be read: the device fails")]
    Unreadable,
    /// The checksum does not hold.
    #[error("superblock checksum mismatch")]
    Checksum,
    /// A version or an incompatible feature that this code does not know.
    #[error("made by a newer version of AVFS")]
    Newer,
    /// The checksum holds and the contents contradict each other or the device.
    #[error("superblock contradicts itself or the device")]
    Nonsense,
}

/// Whose a block says that it is, for one whose version is not known: that field stays where it is.
pub(crate) fn claimed_uuid(block: &[u8]) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&block[16..32]);
    uuid
}

/// CRC-32C of a block whose bytes 8..12 hold the checksum itself.
fn checksum_around(block: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&block[..8]), &block[12..])
}

impl Superblock {
    /// The block to write.
    pub fn encode(&self) -> Box<[u8; BLOCK as usize]> {
        let mut label = [0; 64];
        label[..self.label.len().min(63)].copy_from_slice(&self.label.as_bytes()[..self.label.len().min(63)]);
        let disk = DiskSuperblock {
            magic: SUPERBLOCK_MAGIC,
            checksum: 0.into(),
            version: VERSION.into(),
            uuid: self.uuid,
            label,
            compatible: self.features.compatible.into(),
            read_only_compatible: self.features.read_only_compatible.into(),
            incompatible: self.features.incompatible.into(),
            generation: self.generation.into(),
            device_bytes: self.geometry.device.0.into(),
            stripe_bytes: self.geometry.stripe.0.into(),
            log_bytes: self.geometry.log.0.into(),
            data_start: self.geometry.data_start.0.into(),
            units: self.geometry.units.into(),
            unit_bytes: UNIT.into(),
            table_address: self.table.address.0.into(),
            table_copy: self.table.copy.0.into(),
            table_length: self.table.length.into(),
            table_checksum: self.table.checksum.into(),
            log_offset: self.log.offset.into(),
            log_sequence: self.log.sequence.into(),
            log_previous_checksum: self.log.previous_checksum.into(),
            reserved_word: 0.into(),
            lsn: self.lsn.into(),
            reserved: [0; 3864],
        };
        let mut block = Box::new([0; BLOCK as usize]);
        block.copy_from_slice(disk.as_bytes());
        let checksum = checksum_around(&block[..]);
        block[8..12].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    /// What a block says, if it is a superblock of a volume this code can mount.
    ///
    /// # Errors
    /// See [`SuperblockError`].
    pub fn decode(block: &[u8]) -> Result<Self, SuperblockError> {
        let (disk, _) = DiskSuperblock::read_from_prefix(block).map_err(|_| SuperblockError::Foreign)?;
        if disk.magic != SUPERBLOCK_MAGIC {
            return Err(SuperblockError::Foreign);
        }
        if disk.checksum.get() != checksum_around(&block[..BLOCK as usize]) {
            return Err(SuperblockError::Checksum);
        }
        let features = Features {
            compatible: disk.compatible.get(),
            read_only_compatible: disk.read_only_compatible.get(),
            incompatible: disk.incompatible.get(),
        };
        if disk.version.get() != VERSION || features.incompatible & !KNOWN_FEATURES.incompatible != 0 {
            return Err(SuperblockError::Newer);
        }
        let geometry = Geometry {
            device: Bytes(disk.device_bytes.get()),
            stripe: Bytes(disk.stripe_bytes.get()),
            log: Bytes(disk.log_bytes.get()),
            data_start: DeviceOffset(disk.data_start.get()),
            units: disk.units.get(),
        };
        if Geometry::new(geometry.device, geometry.stripe) != Some(geometry) || disk.unit_bytes.get() != UNIT
        {
            return Err(SuperblockError::Nonsense);
        }
        let label_end = disk.label.iter().position(|&byte| byte == 0).unwrap_or(64);
        let log = LogPosition {
            offset: disk.log_offset.get(),
            sequence: disk.log_sequence.get(),
            previous_checksum: disk.log_previous_checksum.get(),
        };
        if log.offset >= geometry.log.0 || !log.offset.is_multiple_of(BLOCK) {
            return Err(SuperblockError::Nonsense);
        }
        let counts = [disk.generation.get(), log.sequence, disk.lsn.get()];
        if counts.into_iter().any(|count| count >= 2 * COUNT_LIMIT) {
            return Err(SuperblockError::Nonsense);
        }
        Ok(Self {
            uuid: disk.uuid,
            label: String::from_utf8_lossy(&disk.label[..label_end]).into_owned(),
            features,
            generation: disk.generation.get(),
            geometry,
            table: Piece {
                address: DeviceOffset(disk.table_address.get()),
                copy: DeviceOffset(disk.table_copy.get()),
                length: disk.table_length.get(),
                checksum: disk.table_checksum.get(),
            },
            log,
            lsn: disk.lsn.get(),
        })
    }
}

/// Who has the volume, renewed every few seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MmpBlock {
    /// The volume.
    pub uuid: [u8; 16],
    /// Changes with each renewal; zero when nobody has it.
    pub sequence: u64,
    /// The boot of the machine that has it.
    pub boot_id: [u8; 16],
    /// The machine's name, for the message to the administrator.
    pub host: String,
    /// The process that has it, by a random number; zeros in blocks that were written before there was one.
    pub holder: [u8; 16],
    /// The lock that it has on the device, in its boot.
    pub lock: LockId,
    /// Its number, for the message; zero when not known.
    pub process: u32,
}

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskMmp {
    magic: [u8; 8],
    checksum: U32,
    reserved: U32,
    uuid: [u8; 16],
    sequence: U64,
    boot_id: [u8; 16],
    host: [u8; 64],
    holder: [u8; 16],
    lock_device: U64,
    lock_inode: U64,
    process: U32,
    padding: [u8; 3940],
}

const _: () = assert!(size_of::<DiskMmp>() == BLOCK as usize);

impl MmpBlock {
    /// The block to write.
    pub fn encode(&self) -> Box<[u8; BLOCK as usize]> {
        let mut host = [0; 64];
        host[..self.host.len().min(63)].copy_from_slice(&self.host.as_bytes()[..self.host.len().min(63)]);
        let disk = DiskMmp {
            magic: MMP_MAGIC,
            checksum: 0.into(),
            reserved: 0.into(),
            uuid: self.uuid,
            sequence: self.sequence.into(),
            boot_id: self.boot_id,
            host,
            holder: self.holder,
            lock_device: self.lock.device.into(),
            lock_inode: self.lock.inode.into(),
            process: self.process.into(),
            padding: [0; 3940],
        };
        let mut block = Box::new([0; BLOCK as usize]);
        block.copy_from_slice(disk.as_bytes());
        let checksum = checksum_around(&block[..]);
        block[8..12].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    /// What a block says; `None` when it is torn or none of ours: then it protects nothing and is written anew.
    pub fn decode(block: &[u8]) -> Option<Self> {
        let (disk, _) = DiskMmp::read_from_prefix(block).ok()?;
        if disk.magic != MMP_MAGIC || disk.checksum.get() != checksum_around(&block[..BLOCK as usize]) {
            return None;
        }
        let end = disk.host.iter().position(|&byte| byte == 0).unwrap_or(64);
        Some(Self {
            uuid: disk.uuid,
            sequence: disk.sequence.get(),
            boot_id: disk.boot_id,
            host: String::from_utf8_lossy(&disk.host[..end]).into_owned(),
            holder: disk.holder,
            lock: LockId { device: disk.lock_device.get(), inode: disk.lock_inode.get() },
            process: disk.process.get(),
        })
    }
}

/// Where one shard lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardLocation {
    /// Its image, cut where it did not fit a metadata unit.
    pub pieces: Vec<Piece>,
}

/// The shard table: number and place of every shard that has inodes.
pub(crate) fn encode_table<'a>(entries: impl Iterator<Item = (u64, &'a ShardLocation)>) -> Vec<u8> {
    let mut writer = Writer::default();
    for (number, location) in entries {
        writer.number(number);
        writer.number(location.pieces.len() as u64);
        for piece in &location.pieces {
            writer.number(piece.address.0 / BLOCK);
            writer.number(piece.copy.0 / BLOCK);
            writer.number(u64::from(piece.length));
            writer.u32(piece.checksum);
        }
    }
    writer.bytes
}

/// The inverse of [`encode_table`].
pub(crate) fn decode_table(bytes: &[u8]) -> Result<Vec<(u64, ShardLocation)>, Malformed> {
    let mut reader = Reader::new(bytes);
    let mut entries: Vec<(u64, ShardLocation)> = Vec::new();
    while !reader.is_empty() {
        let number = reader.number()?;
        if number >= 1 << 48 || entries.last().is_some_and(|&(last, _)| last >= number) {
            return Err(Malformed);
        }
        let count: usize = reader.small()?;
        // A piece takes seven bytes at the least: room is made for no more than can be there.
        if count == 0 || count > reader.remaining() / 7 {
            return Err(Malformed);
        }
        let mut pieces = Vec::with_capacity(count);
        for _ in 0..count {
            let mut address = || Ok(DeviceOffset(reader.number()?.checked_mul(BLOCK).ok_or(Malformed)?));
            let (address, copy) = (address()?, address()?);
            pieces.push(Piece { address, copy, length: reader.small()?, checksum: reader.u32()? });
        }
        entries.push((number, ShardLocation { pieces }));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn superblock() -> Superblock {
        Superblock {
            uuid: [7; 16],
            label: "season-3".into(),
            features: Features::default(),
            generation: 41,
            geometry: Geometry::new(Bytes::from_mib(1024), Bytes::from_kib(256)).unwrap(),
            table: Piece {
                address: DeviceOffset(1 << 27),
                copy: DeviceOffset(1 << 28),
                length: 99,
                checksum: 5,
            },
            log: LogPosition { offset: 8192, sequence: 12, previous_checksum: 9 },
            lsn: 1234,
        }
    }

    #[test]
    fn a_superblock_comes_back() {
        assert_eq!(Superblock::decode(&superblock().encode()[..]), Ok(superblock()));
    }

    #[test]
    fn any_flipped_bit_of_a_superblock_is_noticed() {
        let good = superblock().encode();
        for bit in 0..BLOCK as usize * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bad[..]).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_data_area_is_aligned_to_the_stripe() {
        for stripe_kib in [0, 4, 256, 640, 2560, 8192, 20480] {
            let geometry = Geometry::new(Bytes::from_mib(4096), Bytes::from_kib(stripe_kib)).unwrap();
            if stripe_kib > 0 {
                assert!(geometry.data_start.0.is_multiple_of(stripe_kib << 10), "{stripe_kib} KiB");
            }
            let end = geometry.data_start.0 + geometry.units * UNIT;
            assert!(end <= geometry.device.0 - TAIL);
            assert!(geometry.data_start.0 >= LOG_START + geometry.log.0);
        }
    }

    #[test]
    fn the_smallest_volume_can_be_made_and_one_block_less_cannot() {
        assert!(Geometry::new(Bytes(SMALLEST_VOLUME), Bytes::ZERO).is_some());
        assert!(Geometry::new(Bytes(SMALLEST_VOLUME - BLOCK), Bytes::ZERO).is_none());
    }

    #[test]
    fn an_mmp_block_comes_back() {
        let block = MmpBlock {
            uuid: [1; 16],
            sequence: 9,
            boot_id: [2; 16],
            host: "nas-1".into(),
            holder: [3; 16],
            lock: LockId { device: 4, inode: 5 },
            process: 6,
        };
        assert_eq!(MmpBlock::decode(&block.encode()[..]), Some(block));
    }

    proptest! {
        #[test]
        fn a_table_of_any_bytes_decodes_or_fails(bytes: Vec<u8>) {
            let _ = decode_table(&bytes);
        }
    }
}
