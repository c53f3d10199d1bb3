//! From a device to the state in memory: superblock, shards, log, and what is derived from them.
//!
//! **Invariants:** nothing is written. Recovery of the same device gives the same state however often it is done.

use crate::allocator::{Allocator, BlockRun, Overlap};
use crate::format::{
    BLOCK, COUNT_LIMIT, Geometry, Piece, ShardLocation, Superblock, SuperblockError, UNIT, UNIT_BLOCKS,
    decode_table,
};
use crate::inode::Name;
use crate::journal::{Behind, Journal, batches_behind, read_log};
use crate::metadata::{Contradiction, Metadata};
use crate::ranges::RangeSet;
use crate::superblocks::{NoVolume, Superblocks};
use crate::tree::{self, TreeError};
use avfs_io::IoError;
use avfs_io::device::Device;
use std::collections::BTreeMap;
use units::{Bytes, DeviceOffset, Ino};

/// Why a device cannot be mounted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// No superblock can be used.
    #[error("{0}")]
    Superblock(#[from] SuperblockError),
    /// The device is smaller than the volume.
    #[error(
        "the volume is {volume} long but the device only {device}: give it the whole device, or mount it with -o ro to save what is left"
    )]
    Truncated {
        /// What the superblock says.
        volume: Bytes,
        /// What the device has.
        device: Bytes,
    },
    /// Both copies of a structure are damaged.
    #[error("{what} at {address} is damaged, and so is its copy: run fsck.avfs")]
    Damaged {
        /// Which structure.
        what: &'static str,
        /// Where.
        address: DeviceOffset,
    },
    /// The log does not fit the shards.
    #[error("the log contradicts the metadata ({0}): run fsck.avfs")]
    Contradiction(#[from] Contradiction),
    /// Two inodes have the same space, on a volume on which none may.
    #[error("inode {ino}: {overlap}: run fsck.avfs")]
    Overlap {
        /// The second one.
        ino: Ino,
        /// What overlaps.
        overlap: Overlap,
    },
    /// Names in directories that do not exist.
    #[error("inode {0} has a name in a directory that does not exist: run fsck.avfs")]
    LostName(Ino),
    /// The names are no tree.
    #[error("{0}: run fsck.avfs")]
    Tree(#[from] TreeError),
    /// A piece of metadata lies where something else does, or outside the volume.
    #[error("{what} at {address} lies where something else does, or outside the volume: run fsck.avfs")]
    Misplaced {
        /// Which structure.
        what: &'static str,
        /// Where.
        address: DeviceOffset,
    },
    /// Generations or sequence numbers are so high that they could run out.
    #[error("the volume's sequence numbers are used up: run fsck.avfs")]
    UsedUp,
    /// The device failed.
    #[error("cannot read the device: {0}")]
    Device(#[from] IoError),
}

/// A volume as it was found.
#[derive(Debug)]
pub struct Recovered {
    /// The newest superblock.
    pub superblock: Superblock,
    /// All inodes, indexed.
    pub metadata: Metadata,
    /// Free space, derived.
    pub allocator: Allocator,
    /// The log, ready to go on.
    pub journal: Journal,
    /// Records that were replayed.
    pub replayed: usize,
    /// Places that are damaged and whose contents were had from a second copy or from parity, for the administrator.
    pub repaired: Vec<DeviceOffset>,
    /// What the log has behind a damaged place. The state is that of before it, and must not be written to: what is behind
    /// it was acknowledged, and would be overwritten.
    pub behind: Option<Behind>,
}

impl From<NoVolume> for RecoveryError {
    fn from(why: NoVolume) -> Self {
        match why {
            NoVolume::Superblock(cause) => Self::Superblock(cause),
            NoVolume::Truncated { volume, device } => Self::Truncated { volume, device },
        }
    }
}

/// The superblock that counts.
///
/// # Errors
/// When none of the four can be used: the cause of the first that is one at all.
pub fn find_superblock(device: &dyn Device) -> Result<Superblock, RecoveryError> {
    Ok(Superblocks::read(device)?.best().clone())
}

/// The same also of a device that has lost its end.
///
/// # Errors
/// See [`find_superblock`].
pub fn find_superblock_of_part(device: &dyn Device) -> Result<Superblock, RecoveryError> {
    Ok(Superblocks::read_of_part(device)?.best().clone())
}

/// Units of which pieces take at least this part are read whole.
const DENSE_PART: u64 = 8;

/// Reads metadata pieces, a whole unit at a time where shards of a checkpoint lie side by side.
pub(crate) struct PieceReader<'a> {
    device: &'a dyn Device,
    geometry: Geometry,
    unit: Option<(u64, Vec<u8>)>,
    /// Bytes of pieces in each unit, as far as they are known.
    expected: BTreeMap<u64, u64>,
    /// First copies that were damaged.
    pub(crate) damaged: Vec<DeviceOffset>,
}

impl<'a> PieceReader<'a> {
    pub(crate) fn new(device: &'a dyn Device, geometry: Geometry) -> Self {
        Self { device, geometry, unit: None, expected: BTreeMap::new(), damaged: Vec::new() }
    }

    /// These pieces will be read.
    fn expect<'b>(&mut self, pieces: impl Iterator<Item = &'b Piece>) {
        for piece in pieces {
            if let Some(block) = self.geometry.block_at(piece.address) {
                *self.expected.entry(block / UNIT_BLOCKS).or_default() += piece.space();
            }
        }
    }

    /// The bytes of a piece, from its copy if need be. `None` when both are damaged.
    pub(crate) fn read(&mut self, piece: &Piece) -> Option<Vec<u8>> {
        if let Some(bytes) = self.read_at(piece.address, piece, true) {
            return Some(bytes);
        }
        self.damaged.push(piece.address);
        self.read_at(piece.copy, piece, false)
    }

    /// The bytes at one of a piece's places, if they are whole.
    pub(crate) fn read_at(
        &mut self,
        address: DeviceOffset,
        piece: &Piece,
        whole_unit: bool,
    ) -> Option<Vec<u8>> {
        let block = self.geometry.block_at(address)?;
        let unit = block / UNIT_BLOCKS;
        let within = ((block % UNIT_BLOCKS) * BLOCK) as usize;
        let end = within + piece.length as usize;
        if end as u64 > UNIT {
            return None;
        }
        let is_dense = self.expected.get(&unit).is_some_and(|&bytes| bytes >= UNIT / DENSE_PART);
        let bytes = if whole_unit && is_dense {
            if self.unit.as_ref().is_none_or(|&(held, _)| held != unit) {
                let mut bytes = self.unit.take().map_or_else(|| vec![0; UNIT as usize], |(_, bytes)| bytes);
                self.device.read_at(self.geometry.block_address(unit * UNIT_BLOCKS), &mut bytes).ok()?;
                self.unit = Some((unit, bytes));
            }
            self.unit.as_ref()?.1[within..end].to_vec()
        } else {
            let mut bytes = vec![0; piece.space() as usize];
            self.device.read_at(address, &mut bytes).ok()?;
            bytes.truncate(piece.length as usize);
            bytes
        };
        (crc32c::crc32c(&bytes) == piece.checksum).then_some(bytes)
    }
}

/// Blocks that the superblock's table and the shards' images lie in, both copies, each by itself.
pub(crate) fn metadata_runs(superblock: &Superblock, metadata: &Metadata) -> Vec<BlockRun> {
    let pieces = metadata.shards().flat_map(|(_, shard)| shard.location.pieces.iter());
    let all = pieces.chain(std::iter::once(&superblock.table));
    all.flat_map(|piece| piece.runs(&superblock.geometry)).flatten().collect()
}

/// Reads a volume.
///
/// # Errors
/// See [`RecoveryError`]. A torn or stale end of the log is none, and damage in it is told by [`Recovered::behind`].
pub fn recover(device: &dyn Device) -> Result<Recovered, RecoveryError> {
    recover_from(device, find_superblock(device)?)
}

/// Reads a volume of which the device may have lost the end. Nothing may be written to it then.
///
/// # Errors
/// See [`RecoveryError`]: metadata may have been lost, too.
pub fn recover_part(device: &dyn Device) -> Result<Recovered, RecoveryError> {
    recover_from(device, find_superblock_of_part(device)?)
}

fn recover_from(device: &dyn Device, superblock: Superblock) -> Result<Recovered, RecoveryError> {
    let mut reader = PieceReader::new(device, superblock.geometry);
    let mut metadata = Metadata::default();
    load_shards(&superblock, &mut reader, &mut metadata)?;
    metadata.set_lsn(superblock.lsn);
    let replay = read_log(device, &superblock)?;
    let behind = batches_behind(device, &superblock, &replay.end)?;
    let replayed = replay.records.len();
    for (lsn, record) in &replay.records {
        let ino = record.ino();
        if !superblock.geometry.may_hold(ino) {
            return Err(Contradiction::NoInode(ino).into());
        }
        metadata.replay(*lsn, record)?;
    }
    if let Some((ino, Name { .. })) = metadata.derive().first() {
        return Err(RecoveryError::LostName(*ino));
    }
    let counts = [superblock.generation, replay.end.sequence, metadata.lsn()];
    if counts.into_iter().any(|count| count >= COUNT_LIMIT) {
        return Err(RecoveryError::UsedUp);
    }
    tree::check(&metadata)?;
    let mut allocator = Allocator::new(superblock.geometry.units);
    let mut own = RangeSet::default();
    for run in metadata_runs(&superblock, &metadata) {
        allocator.mark_used(run).map_err(|overlap| RecoveryError::Overlap { ino: Ino(0), overlap })?;
        own.insert(run.start..run.end());
    }
    for (ino, inode) in metadata.iter() {
        for run in inode.extents().into_iter().flat_map(|extents| extents.iter()).map(|extent| extent.run()) {
            // Files may share with each other, and none with metadata.
            let may_share = superblock.features.may_share() && !own.overlaps(run.start..run.end());
            let marked = if may_share { allocator.mark_used_again(run) } else { allocator.mark_used(run) };
            marked.map_err(|overlap| RecoveryError::Overlap { ino, overlap })?;
        }
    }
    let journal = Journal::new(&superblock, replay.end, replay.bytes);
    let mut repaired = reader.damaged;
    repaired.extend(replay.rebuilt.iter().map(|rebuilt| rebuilt.address));
    Ok(Recovered { superblock, metadata, allocator, journal, replayed, repaired, behind })
}

pub(crate) fn load_shards(
    superblock: &Superblock,
    reader: &mut PieceReader<'_>,
    metadata: &mut Metadata,
) -> Result<(), RecoveryError> {
    let table_damaged = RecoveryError::Damaged { what: "shard table", address: superblock.table.address };
    let table = reader.read(&superblock.table).ok_or_else(|| table_damaged.clone())?;
    let entries = decode_table(&table).map_err(|_| table_damaged)?;
    check_places(superblock, &entries)?;
    // In the order of their places, so that each unit is read once.
    let by_place: BTreeMap<DeviceOffset, usize> = entries
        .iter()
        .enumerate()
        .map(|(index, (_, location))| (location.pieces.first().map_or(DeviceOffset(0), |p| p.address), index))
        .collect();
    let mut order: Vec<usize> = by_place.into_values().collect();
    if order.len() != entries.len() {
        order = (0..entries.len()).collect();
    }
    reader.expect(entries.iter().flat_map(|(_, location)| &location.pieces));
    for index in order {
        let (number, location) = &entries[index];
        let mut image = Vec::new();
        for piece in &location.pieces {
            let damaged = RecoveryError::Damaged { what: "shard", address: piece.address };
            image.extend(reader.read(piece).ok_or(damaged)?);
        }
        let address = location.pieces.first().map_or(DeviceOffset(0), |piece| piece.address);
        let damaged = RecoveryError::Damaged { what: "shard", address };
        if *number >= superblock.geometry.blocks() {
            return Err(damaged);
        }
        metadata.load(*number, location.clone(), &image).map_err(|_| damaged)?;
    }
    Ok(())
}

/// Every copy of every piece lies in the data area, and where nothing else of them does. So all of them together are no longer than
/// the volume, whatever numbers the table holds.
fn check_places(superblock: &Superblock, entries: &[(u64, ShardLocation)]) -> Result<(), RecoveryError> {
    let pieces = entries.iter().flat_map(|(_, location)| &location.pieces).map(|piece| ("shard", piece));
    let mut runs: Vec<(BlockRun, &'static str)> = Vec::new();
    for (what, piece) in pieces.chain([("shard table", &superblock.table)]) {
        for (run, address) in piece.runs(&superblock.geometry).into_iter().zip([piece.address, piece.copy]) {
            runs.push((run.ok_or(RecoveryError::Misplaced { what, address })?, what));
        }
    }
    runs.sort_unstable();
    match runs.windows(2).find(|pair| pair[0].0.end() > pair[1].0.start) {
        Some(&[_, (run, what)]) => {
            Err(RecoveryError::Misplaced { what, address: superblock.geometry.block_address(run.start) })
        }
        _ => Ok(()),
    }
}
