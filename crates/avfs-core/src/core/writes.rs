//! Writing into the cache: space is claimed, memory found, and only then is anything accepted.

use super::attributes::{check_flags, privileges_left};
use super::state::blocks::{BlockId, page_ceil, page_floor};
use super::state::operation::{Operation, Outcome, Progress, Stage, Throttled, Ticket, Waiting};
use super::state::{Core, HANDED_OVER_BYTES, ONE_REQUEST};
use super::streams::Known;
use crate::error::{Error, Result};
use crate::format::{BLOCK, MAX_FILE_SIZE};
use crate::record::Record;
use crate::types::*;
use avfs_io::pool::{Buffer, MAX_BUFFER};
use avfs_streams::writers::RECORDED;
use rtsched::Direction;
use smallvec::SmallVec;
use std::ops::Range;
use units::{Bytes, Duration, Ino, Now};

/// What a program may do that runs from the file, beyond what its user may. A protocol fact.
const CAPABILITY_XATTR: &[u8] = b"security.capability";
/// From this length on a file is written in blocks of the largest size: at least half of the memory of such a block is used. It
/// bounds memory. An operator's target.
const LARGE_FILE: u64 = MAX_BUFFER as u64 / 2;
/// A recorder of which more waits for the device records faster than it said. It bounds memory. An operator's target.
const RECORDING_AHEAD: Duration = Duration::from_secs(4);

/// Where the bytes of an accepted write go. The caller copies them or hands them over, then calls [`Core::write_end`].
#[derive(Debug)]
pub struct WritePlan {
    ino: Ino,
    handle: HandleId,
    offset: u64,
    length: usize,
    durable: bool,
    /// In order.
    pieces: SmallVec<[Piece; 2]>,
    /// Holds the bytes, and takes the place of the one piece there is; afterwards the one that was there.
    handed_over: Option<Buffer>,
}

/// A part of a write that goes to one buffer.
#[derive(Debug)]
struct Piece {
    block: BlockId,
    /// First byte in the block.
    start: usize,
    buffer: Buffer,
    /// Bytes in the buffer.
    range: Range<usize>,
}

impl Piece {
    /// Its bytes in the block.
    fn bytes(&self) -> Range<usize> {
        self.start..self.start + self.range.len()
    }
}

impl WritePlan {
    /// The file, and how many bytes go there.
    pub(super) fn target(&self) -> (Ino, usize) {
        (self.ino, self.length)
    }

    /// Copies `data`, which must be as long as the write, to its place.
    pub fn copy(&self, data: &[u8]) {
        let mut rest = data;
        for piece in &self.pieces {
            let (now, later) = rest.split_at(piece.range.len());
            piece.buffer.copy_in(piece.range.start, now);
            rest = later;
        }
    }

    /// Hands over the buffer that holds the bytes of the write, from its first on, instead of copying them. Of the same pool, and
    /// held nowhere else. Gives it back when its length is not that of the write, or the write does not replace a whole buffer of
    /// that length.
    ///
    /// # Errors
    /// The buffer: copy the bytes.
    pub fn hand_over(&mut self, buffer: Buffer) -> core::result::Result<(), Buffer> {
        match &self.pieces[..] {
            [piece] if piece.range == (0..buffer.len()) && piece.buffer.len() == buffer.len() => {
                self.handed_over = Some(buffer);
                Ok(())
            }
            _ => Err(buffer),
        }
    }

    /// After [`Core::write_end`], the buffer that is free instead of one that was handed over, of the same length; it is held
    /// nowhere else.
    pub fn take_back(self) -> Option<Buffer> {
        self.handed_over
    }
}

/// What became of a write.
#[derive(Debug)]
pub enum WriteStart {
    /// Copy the bytes, then call [`Core::write_end`].
    Copy(WritePlan),
    /// It cannot go on now: give the bytes to [`Core::start`] as [`Operation::Write`].
    Later,
    /// Refused.
    Refused(Error),
}

impl Core {
    /// Prepares a write: checks, claims space, finds memory.
    pub fn write_begin(
        &mut self,
        now: Now,
        handle: HandleId,
        offset: u64,
        length: usize,
        unprivileged: Option<Caller>,
    ) -> WriteStart {
        self.notice_writer(now, handle, length);
        match self.try_write(now, None, handle, offset, length, unprivileged) {
            Progress::Ready(Ok(plan)) => WriteStart::Copy(plan),
            Progress::Ready(Err(error)) => WriteStart::Refused(error),
            Progress::Wait => WriteStart::Later,
        }
    }

    /// With a ticket the operation is parked where it has to wait; without, `Wait` only says that it would.
    pub(super) fn try_write(
        &mut self,
        now: Now,
        ticket: Option<Ticket>,
        handle: HandleId,
        offset: u64,
        length: usize,
        unprivileged: Option<Caller>,
    ) -> Progress<WritePlan> {
        let (ino, flags) = match self.handle(handle).and_then(|open| self.check_writable().map(|()| open)) {
            Ok(open) => open,
            Err(error) => return Progress::Ready(Err(error)),
        };
        if !flags.contains(OpenFlags::WRITE) {
            return Progress::Ready(Err(Error::BadHandle));
        }
        if let Some(Err(error)) =
            self.metadata.get(ino).map(|inode| check_flags(inode, InodeFlags::IMMUTABLE))
        {
            return Progress::Ready(Err(error));
        }
        let file = self.file_mut(ino);
        let offset = if flags.contains(OpenFlags::APPEND) { file.size.max(file.append_end) } else { offset };
        let end = offset.saturating_add(length as u64);
        if end > MAX_FILE_SIZE {
            return Progress::Ready(Err(Error::FileTooLarge));
        }
        let durable = flags.contains(OpenFlags::SYNC);
        let mut plan =
            WritePlan { ino, handle, offset, length, durable, pieces: SmallVec::new(), handed_over: None };
        if length == 0 {
            return Progress::Ready(Ok(plan));
        }
        // Growing past a page that is partly behind the end: its rest becomes part of the file, as zeros.
        let size = file.size;
        let from = if offset > size { size } else { offset };
        if self.file_mut(ino).exclusive > 0 || self.is_loading(ino, from, end) {
            if let Some(ticket) = ticket {
                self.wait_for_file(ino, ticket);
            }
            return Progress::Wait;
        }
        let is_ready = self.claim_for_write(now, ino, offset, end).and_then(|()| {
            let is_zeroed = self.zero_tail(now, ino, offset, end);
            is_zeroed.inspect_err(|_| self.unclaim_unused(ino, offset, end))
        });
        let is_ready = match (is_ready, ticket) {
            (Ok(is_zeroed), _) => is_zeroed && self.find_blocks(ino, offset, end, &mut plan),
            (Err(Error::NoSpace), Some(ticket)) => return self.wait_for_space(now, ticket),
            (Err(Error::NoSpace), None) if self.is_space_coming(now) => return Progress::Wait,
            (Err(error), _) => return Progress::Ready(Err(error)),
        };
        if !is_ready {
            self.unclaim_unused(ino, offset, end);
            self.write_back_for_memory(now);
            if let Some(ticket) = ticket {
                self.wait_for_memory(ticket);
            }
            return Progress::Wait;
        }
        for piece in &plan.pieces {
            if let Some(block) = self.data.cache.get_mut(piece.block) {
                let bytes = piece.bytes();
                block.filling.push((bytes.start as u32, bytes.end as u32));
            }
        }
        let file = self.file_mut(ino);
        file.filling += plan.pieces.len() as u32;
        file.append_end = file.append_end.max(end);
        if let Some(caller) = unprivileged {
            self.drop_privileges(now, ino, caller);
        }
        let facts = Known { metadata: &self.metadata, data: &self.data, superblock: &self.superblock };
        self.clients.streams.write_accepted(&facts, now.monotonic, ino, handle, length as u64);
        Progress::Ready(Ok(plan))
    }

    /// Claims space; what is only reserved below a limit that is reached is given up for it.
    fn claim_for_write(&mut self, now: Now, ino: Ino, offset: u64, end: u64) -> Result<()> {
        match self.claim(ino, offset, end) {
            Err(Error::OverLimit) => {
                self.give_up_below_limits(now, ino);
                self.claim(ino, offset, end)
            }
            claimed => claimed,
        }
    }

    /// Takes setuid and setgid from a file that a caller without privilege changes.
    pub fn drop_privileges(&mut self, now: Now, ino: Ino, caller: Caller) {
        let Some(inode) = self.metadata.get(ino) else { return };
        if check_flags(inode, InodeFlags::IMMUTABLE).is_err() {
            // What is to be done is refused, too.
            return;
        }
        let mut attributes = inode.attributes;
        attributes.permissions = privileges_left(attributes.permissions, attributes.gid, caller);
        if attributes.permissions != inode.attributes.permissions {
            let _ = self.transact(now, &[Record::Attributes { ino, attributes }]);
        }
    }

    /// Whether a write through this handle may go anywhere: not where only appending is allowed, and the client asked for
    /// O_APPEND and has taken that back (fcntl(2)).
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn check_write_anywhere(&self, handle: HandleId) -> Result<()> {
        let (ino, flags) = self.handle(handle)?;
        match self.metadata.get(ino) {
            Some(inode) if flags.contains(OpenFlags::APPENDING) => {
                check_flags(inode, InodeFlags::APPEND_ONLY)
            }
            _ => Ok(()),
        }
    }

    /// Whether the file may do something by a capability of its own.
    pub fn has_capability(&self, ino: Ino) -> bool {
        self.metadata.get(ino).is_some_and(|inode| inode.xattr(CAPABILITY_XATTR).is_some())
    }

    /// The capability of a file goes with what it held, whatever caller changes it: it was given to those bytes.
    pub fn drop_capability(&mut self, now: Now, ino: Ino) {
        let is_fixed = self.flags(ino).is_ok_and(|flags| flags.contains(InodeFlags::IMMUTABLE));
        if self.has_capability(ino) && !is_fixed && self.check_writable().is_ok() {
            let _ = self.transact(now, &[Record::RemoveXattr { ino, name: CAPABILITY_XATTR.into() }]);
        }
    }

    fn is_loading(&self, ino: Ino, from: u64, end: u64) -> bool {
        let Some(file) = self.data.files.get(&ino) else { return false };
        if file.loads == 0 {
            return false;
        }
        let first = file.block_before(from).map_or(from, |(start, _)| start);
        file.blocks.range(first..end).any(|(_, id)| {
            self.data
                .cache
                .get(id)
                .is_some_and(|block| block.loading.overlaps(block.relative(page_floor(from), page_ceil(end))))
        })
    }

    /// Blocks for `offset..end`. False when there is no memory.
    fn find_blocks(&mut self, ino: Ino, offset: u64, end: u64, plan: &mut WritePlan) -> bool {
        let mut held = SmallVec::new();
        let found = self.make_blocks(ino, offset, end, plan, &mut held);
        for id in held {
            self.hold(id, false);
        }
        found
    }

    fn make_blocks(
        &mut self,
        ino: Ino,
        offset: u64,
        end: u64,
        plan: &mut WritePlan,
        held: &mut SmallVec<[BlockId; 2]>,
    ) -> bool {
        let mut at = offset;
        let is_handed_over =
            offset.is_multiple_of(HANDED_OVER_BYTES as u64) && end - offset == HANDED_OVER_BYTES as u64;
        let longest = if is_handed_over { HANDED_OVER_BYTES } else { MAX_BUFFER };
        while at < end {
            let is_media = self.clients.streams.file(ino).is_some_and(|file| file.is_media());
            let is_large = self.data.files.get(&ino).is_some_and(|file| {
                at >= LARGE_FILE
                    || file.size >= LARGE_FILE
                    || file.expectation.is_mark(offset, end - offset)
                    || is_media && end - offset >= ONE_REQUEST
            });
            // A file that grows gets blocks of twice the size before, then of the largest: one block, one request. Of the
            // largest at once gets them what is known to grow: its length was set, its writer goes ahead of itself, or
            // it is media and written like media.
            let wanted = match self.memory_of_frame(ino, at, end) {
                Some(wanted) => wanted,
                None if is_large => MAX_BUFFER as u64,
                None if at > 0 && at.is_power_of_two() => at.max(end - at),
                None => end - at,
            };
            let Some(id) = self.block_for(ino, at, wanted, longest) else { return false };
            let Some(block) = self.data.cache.get_mut(id) else { return false };
            let bytes = block.relative(at, end);
            let mut start = bytes.start as usize;
            for (buffer, range) in block.memory.parts(start..bytes.end as usize) {
                let length = range.len();
                plan.pieces.push(Piece { block: id, start, buffer: buffer.clone(), range });
                start += length;
            }
            // Held against eviction while more blocks are made.
            self.hold(id, true);
            held.push(id);
            at += bytes.end - bytes.start;
        }
        true
    }

    /// The bytes of a write, of which there are some, become part of the file.
    pub(super) fn accept_write(&mut self, now: Now, plan: &mut WritePlan) {
        let &mut WritePlan { ino, offset, length, .. } = plan;
        let end = offset + length as u64;
        let file = self.file_mut(ino);
        let epoch = file.epoch;
        file.filling = file.filling.saturating_sub(plan.pieces.len() as u32);
        for Piece { block: id, start, buffer, range } in plan.pieces.drain(..) {
            if let Some(block) = self.data.cache.get_mut(id) {
                let bytes = start as u64..(start + range.len()) as u64;
                let filled = (bytes.start as u32, bytes.end as u32);
                if let Some(index) = block.filling.iter().position(|&held| held == filled) {
                    block.filling.swap_remove(index);
                }
                if let Some(handed_over) = plan.handed_over.take() {
                    // The plan is no other holder.
                    drop(buffer);
                    plan.handed_over = Some(block.memory.take_over(start, handed_over));
                }
                let was_clean = block.dirty.is_empty();
                self.data.cache.mark_dirty(id, bytes, now.monotonic, epoch);
                self.data.cache.touch(id);
                // What is written of it later is one request. A recorder that has found no place has no promise either.
                if was_clean && self.terms(ino, Direction::Write).is_none() {
                    self.note_accepted(Bytes(range.len() as u64));
                }
            }
        }
        let file = self.file_mut(ino);
        file.size = file.size.max(end);
        file.append_end = file.append_end.max(file.size);
        file.expectation.written(offset, length as u64);
        file.reserved.remove(offset / BLOCK..end.div_ceil(BLOCK));
        file.unreadable.remove(offset..end);
        self.touch_file(ino, None, Some(now.wall));
        self.schedule_aging(now);
        self.write_back_full(now, ino, offset, end);
    }

    /// An accepted write is answered, now or when it is durable, or less is dirty.
    pub(super) fn answer_write(
        &mut self,
        now: Now,
        ticket: Ticket,
        plan: &WritePlan,
    ) -> Option<Result<usize>> {
        let &WritePlan { ino, handle, length, durable, .. } = plan;
        if durable {
            let waiting = Waiting {
                operation: Operation::FsyncFile { handle },
                stage: Stage::Try,
                count: Some(length),
                exclusive: None,
            };
            self.attempt_sync(now, ticket, waiting);
            return None;
        }
        let fills_at_length = self.fills_at_length(ino);
        if fills_at_length {
            self.write_back_all(now, ino);
        }
        if self.is_overfull(false) || fills_at_length {
            if !fills_at_length {
                self.write_back_for_memory(now);
            }
            let records = self.keeps_its_rate(now, ino, handle);
            let fills = (fills_at_length && !records).then_some(ino);
            // A save waits for no copy: the log, and what it holds for others, may wait until the file is closed.
            let keeps_its_rate = records || self.log.replacements.waits_for_close(ino);
            if self.is_overfull(keeps_its_rate) || fills.is_some() {
                if !keeps_its_rate {
                    self.clients.streams.write_held_back(handle);
                }
                let outcome = Outcome::Count(Ok(length));
                self.waits.throttled.push_back(Throttled { ticket, handle, outcome, keeps_its_rate, fills });
                return None;
            }
        }
        Some(Ok(length))
    }

    /// The file is recorded at a known rate, or may be at an unknown one, and no more of it waits for the device than comes in
    /// [`RECORDING_AHEAD`], or than its terms need.
    fn keeps_its_rate(&self, now: Now, ino: Ino, handle: HandleId) -> bool {
        let Some(file) = self.data.files.get(&ino) else { return false };
        let known = self.ranking(ino, Direction::Write, None).rate;
        let streams = self.clients.streams.file(ino);
        let observes_rate = streams.is_some_and(|file| file.observes_rate());
        let may_be =
            (observes_rate && self.clients.streams.may_record(now.monotonic, handle)).then_some(RECORDED);
        let Some(rate) = known.max(may_be) else { return false };
        let blocks = self.data.cache.dirty_of(ino, 0..u64::MAX).filter_map(|(_, id)| self.data.cache.get(id));
        let waiting: u64 = file.writing + blocks.map(|block| block.dirty.total()).sum::<u64>();
        let terms = streams.and_then(|file| file.terms(Direction::Write));
        let promised = terms.map_or(0, |terms| terms.buffer().0);
        waiting <= promised.max(rate.bytes_in(RECORDING_AHEAD).0)
    }

    pub(super) fn wake_throttled(&mut self, now: Now) {
        // No writer may go.
        if self.is_overfull(true) && !self.has_failed() {
            return;
        }
        let may_go = |core: &Self, held: &Throttled| {
            let fills = held.fills.is_some_and(|ino| core.fills_at_length(ino));
            core.has_failed() || !core.is_overfull(held.keeps_its_rate) && !fills
        };
        while let Some(first) = self.waits.throttled.iter().position(|held| may_go(self, held)) {
            let Some(held) = self.waits.throttled.remove(first) else { break };
            let Throttled { ticket, handle, outcome, .. } = held;
            self.clients.streams.write_resumed(now.monotonic, handle);
            self.finish(ticket, outcome);
        }
    }
}
