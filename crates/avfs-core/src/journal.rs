//! The write-ahead log: a ring of batches, each a contiguous write.
//!
//! **For:** turning transactions into batches, and reading batches back after a crash. **Excludes:** when to write and
//! when to flush (`core/commit.rs`). **State:** one [`Journal`], owned by the core. **Invariants:** a transaction lies
//! whole in one batch; sequence numbers of records have no gap; a batch names the checksum of the one before it, so
//! that what is left from an earlier round of the ring is never taken for a continuation; one damaged block of a batch
//! costs nothing ([`parity`]).

mod header;
mod parity;

use crate::codec::{Reader, Writer};
use crate::format::{BLOCK, COUNT_LIMIT, LOG_START, LogPosition, Superblock};
use crate::record::Record;
use crate::steps::{Step, has};
use avfs_io::IoError;
use avfs_io::device::Device;
pub use header::{BatchHeader, HEADER};
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use units::DeviceOffset;
use zerocopy::{FromBytes, IntoBytes};

/// Longest batch in bytes.
pub const MAX_BATCH: u64 = 4 << 20;
const MAGIC: [u8; 4] = *b"AVJB";

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

    /// What was added from record `first` through record `last` becomes durable at once: one transaction.
    pub fn bind(&mut self, first: u64, last: u64) {
        let begin = self.transactions.partition_point(|&(_, lsn)| lsn < first);
        let end = self.transactions.partition_point(|&(_, lsn)| lsn <= last);
        if end > begin + 1 {
            self.transactions.drain(begin..end - 1);
        }
    }

    /// True when records are pending, and the first of their transactions goes beyond record `last`.
    pub fn is_held(&self, last: u64) -> bool {
        self.transactions.front().is_some_and(|&(_, lsn)| lsn > last)
    }

    /// Bytes of the ring that only commits may take without which the running checkpoint cannot end: it waits until the log is
    /// durable up to its newest image, and nothing but its end makes room.
    pub fn kept_for_checkpoints(&self) -> u64 {
        self.ring / 8
    }

    /// How many transactions a batch of at most `longest` bytes takes that fits the ring, and the bytes that are wasted before
    /// it.
    fn fitting(&self, longest: u64, last: u64, room: u64) -> Option<(usize, u64)> {
        let space = |end: usize| ((HEADER + end) as u64).next_multiple_of(BLOCK) + BLOCK;
        let whole = self.transactions.iter().take_while(|&&(end, lsn)| space(end) <= longest && lsn <= last);
        // A single transaction that is larger than a batch should be: it is still written whole.
        let fitting = whole.count().max(usize::from(!self.is_empty() && !self.is_held(last)));
        let &(end, _) = self.transactions.get(fitting.checked_sub(1)?)?;
        let ahead = self.ring - self.next.position.offset;
        let wasted = if space(end) > ahead { ahead } else { 0 };
        (wasted + space(end) <= room || !has(Step::RingIsNotOverrun)).then_some((fitting, wasted))
    }

    /// The next batch: as many whole transactions as fit, none that goes beyond record `last`, with `kept` bytes of the
    /// ring left free. `None` when nothing is pending up to there, or there is no room.
    pub fn seal(&mut self, last: u64, kept: u64) -> Option<Batch> {
        let room = self.ring.saturating_sub(self.used() + kept);
        let ahead = self.ring - self.next.position.offset;
        // Up to the end of the ring, so that no more is wasted than one transaction would take: what holds changes back counts what is
        // used and pending, and not what is wasted later. Else at its start.
        let limits = [MAX_BATCH.min(ahead).min(room), room.saturating_sub(ahead)];
        let (fitting, wasted) = limits.into_iter().find_map(|longest| self.fitting(longest, last, room))?;
        let &(length, last_lsn) = self.transactions.get(fitting - 1)?;
        let content = ((HEADER + length) as u64).next_multiple_of(BLOCK);
        let space = content + BLOCK;
        let offset = if wasted > 0 { 0 } else { self.next.position.offset };
        let header = BatchHeader {
            magic: MAGIC,
            checksum: 0.into(),
            uuid: self.uuid,
            sequence: self.next.position.sequence.into(),
            first_lsn: self.first_lsn.into(),
            records: ((last_lsn + 1 - self.first_lsn) as u32).into(),
            length: (space as u32 - HEADER as u32).into(),
            previous_checksum: self.next.position.previous_checksum.into(),
            check: 0.into(),
        };
        let mut bytes = Vec::with_capacity(space as usize);
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&self.pending[..length]);
        bytes.resize(content as usize, 0);
        parity::protect(&mut bytes);
        let checksum = set_checksum(&mut bytes);

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

/// The checksum of a batch's bytes, filled in, with the magic before it.
fn set_checksum(bytes: &mut [u8]) -> u32 {
    let checksum = crc32c::crc32c(&bytes[8..]);
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
    checksum
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
    /// Blocks that were damaged or could not be read, and what stood there.
    pub rebuilt: Vec<Rebuilt>,
}

/// A block of the log that was rebuilt from the others of its batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// Where it stands.
    pub address: DeviceOffset,
    /// What should stand there: one block.
    pub bytes: Vec<u8>,
    /// Of which batch.
    pub sequence: u64,
}

/// Whole batches behind a place at which the log cannot be read: what is in them was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// First batch that is not there.
    pub from: u64,
    /// Newest batch behind it.
    pub newest: u64,
    /// How many there are.
    pub batches: u64,
    /// Changes that they tell of.
    pub changes: u64,
}

impl std::fmt::Display for Behind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { from, newest, batches, changes } = self;
        let (plural, verb) = if *batches == 1 { ("", "is") } else { ("es", "are") };
        write!(
            f,
            "log is damaged at batch {from}: {batches} batch{plural} behind it, up to {newest}, with {changes} changes, {verb} lost"
        )
    }
}

/// Reads the log from where the superblock says to the first batch that is torn, stale or absent.
///
/// # Errors
/// Only when the device cannot be read: a batch that is not whole ends the log and is no error.
pub fn read_log(device: &dyn Device, superblock: &Superblock) -> Result<Replay, IoError> {
    let mut end = superblock.log;
    let mut replay = Replay { records: Vec::new(), end, bytes: 0, rebuilt: Vec::new() };
    loop {
        let mut wasted = 0;
        let mut found = read_batch(device, superblock, &end)?;
        if found.is_none() && end.offset != 0 {
            // A batch that did not fit behind its predecessor stands at the start of the ring.
            wasted = superblock.geometry.log.0 - end.offset;
            found = read_batch(device, superblock, &LogPosition { offset: 0, ..end })?;
        }
        let Some(Found { records, space, next, rebuilt }) = found else { return Ok(replay) };
        replay.records.extend(records);
        replay.rebuilt.extend(rebuilt);
        replay.bytes += wasted + space;
        replay.end = next;
        end = next;
    }
}

/// Looks for batches that continue the log behind `end`, where reading it ended. After a loss of power there are none: a
/// batch is written only when the one before it is on stable storage, and what an earlier round of the ring left has lower
/// numbers. So whatever is found was acknowledged, and lies behind damage.
///
/// Each batch stands behind the one before it, or at the start of the ring. So the first two whole ones of an earlier round, one
/// behind the other, say that nothing newer was written from there on. One alone may be a newer one with a wrong number.
///
/// # Errors
/// When the device cannot be read. Single blocks that cannot are passed over.
pub(crate) fn batches_behind(
    device: &dyn Device,
    superblock: &Superblock,
    end: &LogPosition,
) -> Result<Option<Behind>, IoError> {
    if !has(Step::BehindIsFound) {
        return Ok(None);
    }
    let ring = superblock.geometry.log.0;
    let tail = superblock.log.offset;
    let ranges = if end.offset >= tail { [end.offset..ring, 0..tail] } else { [end.offset..tail, 0..0] };
    // More batches than blocks there cannot be in one round.
    let last = end.sequence.saturating_add(ring / BLOCK);
    let mut behind: Option<Behind> = None;
    // Where the next one of an earlier round would stand, and its number.
    let mut older = None;
    // What was no batch may have cost as much as the ring is long: each block of it could say that it is one, and a long one.
    let mut patience = ring;
    for range in ranges {
        let mut inside = range.start;
        each_header(device, superblock, range, |offset, header| {
            if offset < inside {
                // What looks like a batch in another one is somebody's data.
                return Ok(ControlFlow::Continue(()));
            }
            let claimed = u64::from(header.length.get());
            if claimed > patience {
                return Ok(ControlFlow::Continue(()));
            }
            let Attempt { found: Some(Found { space, records, .. }), .. } =
                read_there(device, superblock, &own_position(offset, header))?
            else {
                patience -= claimed;
                return Ok(ControlFlow::Continue(()));
            };
            let sequence = header.sequence.get();
            if sequence < end.sequence {
                if older == Some((offset, sequence)) {
                    return Ok(ControlFlow::Break(()));
                }
                older = Some((offset + space, sequence.saturating_add(1)));
            }
            inside = offset + space;
            if (end.sequence..=last).contains(&sequence) {
                let found =
                    behind.get_or_insert(Behind { from: end.sequence, newest: 0, batches: 0, changes: 0 });
                found.newest = found.newest.max(sequence);
                found.batches += 1;
                found.changes += records.len() as u64;
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(behind)
}

/// Where a batch would have to be expected to be found as it says itself.
fn own_position(offset: u64, header: &BatchHeader) -> LogPosition {
    let (sequence, previous_checksum) = (header.sequence.get(), header.previous_checksum.get());
    LogPosition { offset, sequence, previous_checksum }
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

/// Calls `each` for every block in a part of the ring that begins as a batch of this volume does, with its offset, until it
/// has seen enough.
fn each_header(
    device: &dyn Device,
    superblock: &Superblock,
    range: Range<u64>,
    mut each: impl FnMut(u64, &BatchHeader) -> Result<ControlFlow<()>, IoError>,
) -> Result<(), IoError> {
    let mut chunk = vec![0; 1 << 20];
    for start in range.clone().step_by(chunk.len()) {
        let length = (range.end - start).min(chunk.len() as u64) as usize;
        let blocks = &mut chunk[..length];
        let unreadable = read_blocks(device, DeviceOffset(LOG_START + start), blocks)?;
        if let Some(&(_, error)) = unreadable.first().filter(|_| unreadable.len() > 1) {
            return Err(error);
        }
        for (offset, block) in (start..).step_by(BLOCK as usize).zip(blocks.chunks(BLOCK as usize)) {
            let Ok((header, _)) = BatchHeader::read_from_prefix(block) else { continue };
            if header.magic == MAGIC && header.uuid == superblock.uuid && each(offset, &header)?.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Reads whole blocks. Those that cannot be read are zeros, and listed.
fn read_blocks(
    device: &dyn Device,
    address: DeviceOffset,
    into: &mut [u8],
) -> Result<Vec<(usize, IoError)>, IoError> {
    if device.read_at(address, into).is_ok() {
        return Ok(Vec::new());
    }
    let mut unreadable = Vec::new();
    for (index, block) in into.chunks_mut(BLOCK as usize).enumerate() {
        match device.read_at(DeviceOffset(address.0 + index as u64 * BLOCK), block) {
            Ok(()) => {}
            Err(error @ IoError::Device(_)) => {
                block.fill(0);
                unreadable.push((index, error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(unreadable)
}

type Records = Vec<(u64, Record)>;

/// A batch that was found where it was expected.
struct Found {
    records: Records,
    space: u64,
    next: LogPosition,
    rebuilt: Option<Rebuilt>,
}

/// What came of looking for a batch by the header that stands at its place.
struct Attempt {
    found: Option<Found>,
    /// What stands there, if it is readable at all.
    header: Option<BatchHeader>,
    /// It is the one that was looked for.
    is_expected: bool,
    /// Blocks that could not be read.
    unreadable: Vec<(usize, IoError)>,
}

fn expects(superblock: &Superblock, position: &LogPosition, header: &BatchHeader) -> bool {
    header.uuid == superblock.uuid
        && (header.sequence.get() == position.sequence || !has(Step::SequenceIsChecked))
        && (header.previous_checksum.get() == position.previous_checksum || !has(Step::ChainIsChecked))
        && header.sequence.get() < 2 * COUNT_LIMIT
        && header.first_lsn.get() < 2 * COUNT_LIMIT
}

/// The batch at `position` if its header is right, rebuilt if one block of it is damaged.
fn read_there(
    device: &dyn Device,
    superblock: &Superblock,
    position: &LogPosition,
) -> Result<Attempt, IoError> {
    let ring = superblock.geometry.log.0;
    let address = DeviceOffset(LOG_START + position.offset);
    let header_of = |bytes: &[u8]| BatchHeader::read_from_prefix(bytes).ok().map(|(header, _)| header);
    let mut bytes = vec![0; BLOCK as usize];
    let mut unreadable = read_blocks(device, address, &mut bytes)?;
    let header = header_of(&bytes);
    let expected = header.as_ref().filter(|header| expects(superblock, position, header));
    let mut attempt =
        Attempt { found: None, is_expected: expected.is_some(), header: None, unreadable: Vec::new() };
    if let Some(header) = expected {
        let end = HEADER + header.length.get() as usize;
        let space = end.next_multiple_of(BLOCK as usize);
        if position.offset + space as u64 <= ring {
            bytes.resize(space, 0);
            unreadable = read_blocks(device, address, &mut bytes)?;
            let stored = header.checksum.get();
            let is_whole = crc32c::crc32c(&bytes[8..end]) == stored || !has(Step::BatchIsChecked);
            if header.magic == MAGIC && is_whole {
                attempt.found = decode(position, ring, &bytes, None);
            } else if header.check.get() != 0
                && end == space
                && let Some(index) = parity::rebuild(&mut bytes)
                && (index == 0 || crc32c::crc32c(&bytes[8..]) == stored)
                && header_of(&bytes).is_some_and(|header| expects(superblock, position, &header))
            {
                set_checksum(&mut bytes);
                attempt.found = decode(position, ring, &bytes, Some(index));
            }
        }
    }
    attempt.header = header;
    attempt.unreadable = unreadable;
    Ok(attempt)
}

/// The batch at `position`, rebuilt if one block of it is damaged.
///
/// # Errors
/// When more of it cannot be read than can be rebuilt, so that nobody knows what stood there.
fn read_batch(
    device: &dyn Device,
    superblock: &Superblock,
    position: &LogPosition,
) -> Result<Option<Found>, IoError> {
    let ring = superblock.geometry.log.0;
    if position.offset + BLOCK > ring {
        return Ok(None);
    }
    let attempt = read_there(device, superblock, position)?;
    if attempt.found.is_some() {
        return Ok(attempt.found);
    }
    if let Some(header) = attempt
        .header
        .filter(|header| header.magic == MAGIC && header.uuid == superblock.uuid && !attempt.is_expected)
    {
        let other = read_there(device, superblock, &own_position(position.offset, &header))?;
        if other.found.is_some_and(|found| found.rebuilt.is_none()) {
            // A whole one of an earlier round: the one that is looked for was never begun.
            return Ok(None);
        }
    }
    // Its first block is not there, or not what it was: it is known from those behind it.
    let behind = position.offset + BLOCK;
    let mut following = vec![0; MAX_BATCH.min(ring - behind) as usize];
    let unreadable_behind = read_blocks(device, DeviceOffset(LOG_START + behind), &mut following)?;
    let is_expected = |header: &BatchHeader| expects(superblock, position, header);
    if let Some(mut bytes) = parity::rebuild_first(&following, is_expected) {
        set_checksum(&mut bytes);
        return Ok(decode(position, ring, &bytes, Some(0)));
    }
    // One block that cannot be read would have been rebuilt if a batch stood here. Where it is not the only one, or the
    // batch is known to have begun, this may be anything but the end of the log.
    match attempt.unreadable.first() {
        Some(&(_, error)) if attempt.is_expected || !unreadable_behind.is_empty() => Err(error),
        _ => Ok(None),
    }
}

/// What a whole batch says. `None` when it was written so that it cannot be understood: the log ends here rather than be
/// half understood.
fn decode(position: &LogPosition, ring: u64, bytes: &[u8], rebuilt: Option<usize>) -> Option<Found> {
    let (header, _) = BatchHeader::read_from_prefix(bytes).ok()?;
    let mut reader = Reader::new(&bytes[HEADER..HEADER + header.length.get() as usize]);
    let mut records = Vec::new();
    for index in 0..u64::from(header.records.get()) {
        records.push((header.first_lsn.get().checked_add(index)?, Record::decode(&mut reader).ok()?));
    }
    let space = bytes.len() as u64;
    let next = LogPosition {
        offset: if position.offset + space == ring { 0 } else { position.offset + space },
        sequence: position.sequence.checked_add(1)?,
        previous_checksum: header.checksum.get(),
    };
    let rebuilt = rebuilt.map(|index| {
        let start = index * BLOCK as usize;
        Rebuilt {
            address: DeviceOffset(LOG_START + position.offset + start as u64),
            bytes: bytes[start..start + BLOCK as usize].to_vec(),
            sequence: position.sequence,
        }
    });
    Some(Found { records, space, next, rebuilt })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::find_superblock;
    use crate::simulation::formatted;
    use units::{Bytes, Ino};

    const SIZES: [usize; 4] = [10, 4000, 4096, 70_000];

    fn records(size: usize) -> [Record; 2] {
        let ino = Ino(5);
        let xattr =
            Record::SetXattr { ino, name: (*b"user.x").into(), value: vec![7; size.min(65_536)].into() };
        [Record::Size { ino, size: size as u64 }, xattr]
    }

    /// Batches as they were written before there was parity.
    #[test]
    fn a_batch_without_parity_is_read() {
        let disk = formatted(Bytes::from_mib(192));
        let superblock = find_superblock(&*disk).unwrap();
        let mut position = superblock.log;
        let mut expected = Vec::new();
        for (index, size) in SIZES.into_iter().enumerate() {
            let mut writer = Writer::default();
            records(size).iter().for_each(|record| record.encode(&mut writer));
            let first_lsn = 1 + 2 * index as u64;
            let header = BatchHeader {
                magic: MAGIC,
                checksum: 0.into(),
                uuid: superblock.uuid,
                sequence: position.sequence.into(),
                first_lsn: first_lsn.into(),
                records: 2.into(),
                length: (writer.bytes.len() as u32).into(),
                previous_checksum: position.previous_checksum.into(),
                check: 0.into(),
            };
            let mut bytes = [header.as_bytes(), &writer.bytes].concat();
            let previous_checksum = set_checksum(&mut bytes);
            bytes.resize(bytes.len().next_multiple_of(BLOCK as usize), 0);
            disk.write_at(DeviceOffset(LOG_START + position.offset), &bytes).unwrap();
            let (offset, sequence) = (position.offset + bytes.len() as u64, position.sequence + 1);
            position = LogPosition { offset, sequence, previous_checksum };
            expected.extend((first_lsn..).zip(records(size)));
        }
        let replay = read_log(&*disk, &superblock).unwrap();
        assert_eq!((replay.records, replay.end, replay.rebuilt), (expected, position, Vec::new()));
    }

    /// What a reader does that has never heard of parity: it takes the length for that of the records, and decodes as many
    /// records as there are.
    #[test]
    fn a_reader_of_before_reads_batches_with_parity() {
        let disk = formatted(Bytes::from_mib(192));
        let superblock = find_superblock(&*disk).unwrap();
        let mut journal = Journal::new(&superblock, superblock.log, 0);
        for (index, size) in SIZES.into_iter().enumerate() {
            let before = journal.mark().position;
            journal.append(&records(size), 2 + 2 * index as u64);
            let Batch { address, bytes, .. } = journal.seal(u64::MAX, 0).unwrap();
            assert_eq!(address.0, LOG_START + before.offset);
            let (header, _) = BatchHeader::read_from_prefix(&bytes).unwrap();
            let length = header.length.get() as usize;
            assert_eq!((HEADER + length).next_multiple_of(BLOCK as usize), bytes.len());
            assert_eq!(crc32c::crc32c(&bytes[8..HEADER + length]), header.checksum.get());
            assert_eq!(journal.mark().position.offset, before.offset + bytes.len() as u64);
            assert_eq!(journal.mark().position.previous_checksum, header.checksum.get());
            let mut reader = Reader::new(&bytes[HEADER..HEADER + length]);
            for record in records(size) {
                assert_eq!(Record::decode(&mut reader), Ok(record));
            }
        }
    }
}
