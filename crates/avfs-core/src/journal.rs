//! The write-ahead log: a ring of batches, each a contiguous write.
//!
//! **For:** turning transactions into batches, and reading batches back after a crash. **Excludes:** when to write and
//! when to flush (`core/commit.rs`). **State:** one [`Journal`], owned by the core. **Invariants:** a transaction lies
//! whole in one batch; sequence numbers of records have no gap; a batch names the checksum of the one before it, so
//! that what is left from an earlier round of the ring is never taken for a continuation.

use crate::codec::{Reader, Writer};
use crate::format::{BLOCK, LOG_START, LogPosition, Superblock};
use crate::record::Record;
use avfs_io::IoError;
use avfs_io::device::Device;
use std::collections::VecDeque;
use units::DeviceOffset;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Longest batch in bytes.
pub const MAX_BATCH: u64 = 4 << 20;
const MAGIC: [u8; 4] = *b"AVJB";

/// What stands before the records of a batch.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BatchHeader {
    magic: [u8; 4],
    /// CRC-32C of everything behind this field: rest of the header, and records.
    checksum: U32,
    uuid: [u8; 16],
    sequence: U64,
    first_lsn: U64,
    records: U32,
    /// Bytes of records.
    length: U32,
    previous_checksum: U32,
    reserved: U32,
}

/// Bytes of a batch before its records.
pub const HEADER: usize = size_of::<BatchHeader>();
const _: () = assert!(HEADER == 56);
const _: () = assert!(std::mem::offset_of!(BatchHeader, sequence) == 24);

/// A batch ready to be written.
#[derive(Debug)]
pub struct Batch {
    /// Where.
    pub address: DeviceOffset,
    /// What: whole blocks.
    pub bytes: Vec<u8>,
    /// Everything up to this is durable once it is.
    pub last_lsn: u64,
}

/// A place in the ring together with how many bytes were ever written before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// What the superblock stores.
    pub position: LogPosition,
    total: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Journal {
    uuid: [u8; 16],
    ring: u64,
    next: Mark,
    tail: u64,
    pending: Vec<u8>,
    /// End of each transaction in `pending`, and its last record's number.
    transactions: VecDeque<(usize, u64)>,
    first_lsn: u64,
}

impl Journal {
    /// A journal that goes on at `position`, with `replayed` bytes of the ring before it that are in no checkpoint.
    pub fn new(superblock: &Superblock, position: LogPosition, replayed: u64) -> Self {
        Self {
            uuid: superblock.uuid,
            ring: superblock.geometry.log.0,
            next: Mark { position, total: replayed },
            tail: 0,
            pending: Vec::new(),
            transactions: VecDeque::new(),
            first_lsn: 0,
        }
    }

    /// Adds a transaction whose last record got the number `last_lsn`.
    pub fn append(&mut self, records: &[Record], last_lsn: u64) {
        if self.transactions.is_empty() {
            self.first_lsn = last_lsn + 1 - records.len() as u64;
        }
        let mut writer = Writer { bytes: std::mem::take(&mut self.pending) };
        for record in records {
            record.encode(&mut writer);
        }
        self.pending = writer.bytes;
        self.transactions.push_back((self.pending.len(), last_lsn));
    }

    /// Bytes of records that are in no batch.
    pub fn pending_bytes(&self) -> u64 {
        self.pending.len() as u64
    }

    /// True when every record is in a batch.
    pub fn is_empty(&self) -> bool {
        self.transactions.is_empty()
    }

    /// Bytes of the ring that replay would read now.
    pub fn used(&self) -> u64 {
        self.next.total - self.tail
    }

    /// Length of the ring in bytes.
    pub fn capacity(&self) -> u64 {
        self.ring
    }

    /// Where the next batch will stand.
    pub fn mark(&self) -> Mark {
        self.next
    }

    /// Everything before `mark` is in a checkpoint.
    pub fn release(&mut self, mark: Mark) {
        self.tail = self.tail.max(mark.total);
    }

    /// The next batch: as many whole transactions as fit. `None` when nothing is pending or the ring has no room.
    pub fn seal(&mut self) -> Option<Batch> {
        let fitting = self
            .transactions
            .iter()
            .take_while(|&&(end, _)| (end + HEADER) as u64 <= MAX_BATCH)
            .count()
            // A single transaction that is larger than a batch should be: it is still written whole.
            .max(usize::from(!self.transactions.is_empty()));
        let &(length, last_lsn) = self.transactions.get(fitting.checked_sub(1)?)?;
        let space = ((HEADER + length) as u64).next_multiple_of(BLOCK);
        let mut offset = self.next.position.offset;
        let mut wasted = 0;
        if offset + space > self.ring {
            wasted = self.ring - offset;
            offset = 0;
        }
        if self.used() + wasted + space > self.ring {
            return None;
        }
        let header = BatchHeader {
            magic: MAGIC,
            checksum: 0.into(),
            uuid: self.uuid,
            sequence: self.next.position.sequence.into(),
            first_lsn: self.first_lsn.into(),
            records: ((last_lsn + 1 - self.first_lsn) as u32).into(),
            length: (length as u32).into(),
            previous_checksum: self.next.position.previous_checksum.into(),
            reserved: 0.into(),
        };
        let mut bytes = Vec::with_capacity(space as usize);
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&self.pending[..length]);
        let checksum = crc32c::crc32c(&bytes[8..]);
        bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
        bytes.resize(space as usize, 0);

        self.pending.drain(..length);
        self.transactions.drain(..fitting);
        for (end, _) in &mut self.transactions {
            *end -= length;
        }
        self.first_lsn = last_lsn + 1;
        self.next = Mark {
            position: LogPosition {
                offset: if offset + space == self.ring { 0 } else { offset + space },
                sequence: self.next.position.sequence + 1,
                previous_checksum: checksum,
            },
            total: self.next.total + wasted + space,
        };
        Some(Batch { address: DeviceOffset(LOG_START + offset), bytes, last_lsn })
    }
}

/// What recovery found in the log.
#[derive(Debug)]
pub struct Replay {
    /// Every record from the superblock's position on, with its number, in order.
    pub records: Vec<(u64, Record)>,
    /// Where the journal goes on.
    pub end: LogPosition,
    /// Bytes of the ring that were read.
    pub bytes: u64,
}

/// Reads the log from where the superblock says to the first batch that is torn, stale or absent.
///
/// # Errors
/// Only when the device cannot be read: a batch that is not whole ends the log and is no error.
pub fn read_log(device: &dyn Device, superblock: &Superblock) -> Result<Replay, IoError> {
    let mut end = superblock.log;
    let mut replay = Replay { records: Vec::new(), end, bytes: 0 };
    loop {
        let mut wasted = 0;
        let mut found = read_batch(device, superblock, &end)?;
        if found.is_none() && end.offset != 0 {
            // A batch that did not fit behind its predecessor stands at the start of the ring.
            wasted = superblock.geometry.log.0 - end.offset;
            found = read_batch(device, superblock, &LogPosition { offset: 0, ..end })?;
        }
        let Some((records, space, next)) = found else { return Ok(replay) };
        replay.records.extend(records);
        replay.bytes += wasted + space;
        replay.end = next;
        end = next;
    }
}

/// The highest sequence number of a whole batch of this volume anywhere in the ring, if it is `from` or higher. Behind
/// the end of an undamaged log there is none.
///
/// # Errors
/// When the device cannot be read.
pub(crate) fn newest_batch(
    device: &dyn Device,
    superblock: &Superblock,
    from: u64,
) -> Result<Option<u64>, IoError> {
    let ring = superblock.geometry.log.0;
    let mut newest = None;
    let mut chunk = vec![0; 1 << 20];
    for start in (0..ring).step_by(chunk.len()) {
        let length = (ring - start).min(chunk.len() as u64) as usize;
        device.read_at(DeviceOffset(LOG_START + start), &mut chunk[..length])?;
        for (offset, block) in (start..).step_by(BLOCK as usize).zip(chunk[..length].chunks(BLOCK as usize)) {
            let Ok((header, _)) = BatchHeader::read_from_prefix(block) else { continue };
            let (sequence, previous_checksum) = (header.sequence.get(), header.previous_checksum.get());
            let candidate = header.magic == MAGIC && header.uuid == superblock.uuid && sequence >= from;
            let position = LogPosition { offset, sequence, previous_checksum };
            if candidate && newest < Some(sequence) && read_batch(device, superblock, &position)?.is_some() {
                newest = Some(sequence);
            }
        }
    }
    Ok(newest)
}

/// Takes every batch of the volume from the ring, whole or not. For who makes a volume of a UUID that another one had before,
/// and would find that one's batches behind the end of its own.
///
/// # Errors
/// When the device fails.
pub(crate) fn forget(device: &dyn Device, superblock: &Superblock) -> Result<(), IoError> {
    let ring = superblock.geometry.log.0;
    let mut chunk = vec![0; 1 << 20];
    for start in (0..ring).step_by(chunk.len()) {
        let length = (ring - start).min(chunk.len() as u64) as usize;
        let chunk = &mut chunk[..length];
        device.read_at(DeviceOffset(LOG_START + start), chunk)?;
        let mut is_changed = false;
        for block in chunk.chunks_mut(BLOCK as usize) {
            let is_ours = BatchHeader::read_from_prefix(block)
                .is_ok_and(|(header, _)| header.magic == MAGIC && header.uuid == superblock.uuid);
            if is_ours {
                block.fill(0);
                is_changed = true;
            }
        }
        if is_changed {
            device.write_at(DeviceOffset(LOG_START + start), chunk)?;
        }
    }
    Ok(())
}

type Records = Vec<(u64, Record)>;

fn read_batch(
    device: &dyn Device,
    superblock: &Superblock,
    position: &LogPosition,
) -> Result<Option<(Records, u64, LogPosition)>, IoError> {
    let ring = superblock.geometry.log.0;
    if position.offset + BLOCK > ring {
        return Ok(None);
    }
    let address = DeviceOffset(LOG_START + position.offset);
    let mut bytes = vec![0; BLOCK as usize];
    device.read_at(address, &mut bytes)?;
    let Ok((header, _)) = BatchHeader::read_from_prefix(&bytes) else { return Ok(None) };
    let length = header.length.get() as usize;
    let space = ((HEADER + length) as u64).next_multiple_of(BLOCK);
    let expected = header.magic == MAGIC
        && header.uuid == superblock.uuid
        && header.sequence.get() == position.sequence
        && header.previous_checksum.get() == position.previous_checksum
        && position.offset + space <= ring;
    if !expected {
        return Ok(None);
    }
    bytes.resize(space as usize, 0);
    if space > BLOCK {
        device.read_at(DeviceOffset(address.0 + BLOCK), &mut bytes[BLOCK as usize..])?;
    }
    let end = HEADER + length;
    let checksum = header.checksum.get();
    if crc32c::crc32c(&bytes[8..end]) != checksum {
        return Ok(None);
    }
    let mut reader = Reader::new(&bytes[HEADER..end]);
    let mut records = Vec::new();
    for index in 0..u64::from(header.records.get()) {
        // The checksum holds, so this was written so: the log ends here rather than be half understood.
        let Ok(record) = Record::decode(&mut reader) else { return Ok(None) };
        records.push((header.first_lsn.get() + index, record));
    }
    let next = LogPosition {
        offset: if position.offset + space == ring { 0 } else { position.offset + space },
        sequence: position.sequence + 1,
        previous_checksum: checksum,
    };
    Ok(Some((records, space, next)))
}
