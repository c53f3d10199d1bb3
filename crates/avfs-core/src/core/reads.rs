//! Reading: from the cache at once, from the device in whole blocks.

use super::state::blocks::{BlockId, page_ceil, page_floor};
use super::state::operation::{Progress, Ticket};
use super::state::outbox::Take;
use super::state::{Core, ONE_REQUEST};
use super::streams::Known;
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::format::BLOCK;
use crate::types::*;
use avfs_io::IoError;
use avfs_io::pool::Buffer;
use avfs_streams::RequestQos;
use rtsched::{Class, Direction};
use smallvec::SmallVec;
use std::ops::Range;
use units::{Bytes, Ino, Now};

/// Where a client waits for one small file after the other, so many of them at least come with one access, which reads no more
/// than a client may ask for at once. An operator's target.
const AT_ONE_ACCESS: u64 = 8;

/// Directories that are remembered. One client more costs each of them one file that comes alone. It bounds memory. An operator's
/// target.
const DIRECTORIES: usize = 64;

impl Core {
    pub(super) fn read_cached(
        &mut self,
        now: Now,
        handle: HandleId,
        offset: u64,
        length: usize,
        has_waited: bool,
    ) -> Option<Result<ReadData>> {
        let (ino, flags) = match self.handle(handle) {
            Ok(handle) => handle,
            Err(error) => return Some(Err(error)),
        };
        if !flags.contains(OpenFlags::READ) {
            return Some(Err(Error::BadHandle));
        }
        let file = self.file_mut(ino);
        // A reader has opened, and by then the kernel had dropped what it was not to keep.
        file.pages_are_true |= file.through_pages > 0;
        let size = file.size;
        let end = size.min(offset.saturating_add(length as u64));
        let mut data = ReadData::default();
        let mut at = offset;
        while at < end {
            at += self.cached_slice(ino, at, end, &mut data)?;
        }
        if !flags.contains(OpenFlags::NO_ATIME) {
            self.note_read(now, ino);
        }
        if let Some(open) = self.clients.streams.client_state_mut(handle) {
            open.read_deadline = None;
        }
        if at > offset {
            self.follow(now, ino, handle, offset..end, has_waited);
            self.requests.outbox.takes.push(Take { handle, offset, has_waited, is_answered: true });
        }
        Some(Ok(data))
    }

    pub(super) fn note_read(&mut self, now: Now, ino: Ino) {
        if self.changes_access_time(now, ino) {
            self.touch_file(ino, Some(now.wall), None);
            self.schedule_aging(now);
        }
    }

    /// Reads, or parks the operation until the device has delivered what is missing.
    pub(super) fn try_read(
        &mut self,
        now: Now,
        ticket: Ticket,
        handle: HandleId,
        offset: u64,
        length: usize,
    ) -> Progress<ReadData> {
        if let Some(result) = self.read_cached(now, handle, offset, length, true) {
            return Progress::Ready(result);
        }
        let (ino, _) = match self.handle(handle) {
            Ok(handle) => handle,
            Err(error) => return Progress::Ready(Err(error)),
        };
        let end = self.file_mut(ino).size.min(offset.saturating_add(length as u64));
        if self.tell_unreadable(ino, page_floor(offset)..page_ceil(end)) {
            return Progress::Ready(Err(Error::Device));
        }
        if self.file_mut(ino).exclusive == 0 {
            let facts = Known { metadata: &self.metadata, data: &self.data, superblock: &self.superblock };
            self.clients.streams.interrupt_frame(&facts, ino);
            let is_frame = self.clients.streams.sequence_of(ino, Direction::Read).is_some();
            let begins = offset == 0 && !self.clients.streams.is_header_probe(handle, offset);
            let goes_on = begins || is_frame || self.goes_on(handle, offset);
            let sequential = goes_on && self.clients.streams.policy(ino).prefetch_depth() > Bytes::ZERO;
            let need = self.need(now, ino, handle, offset, Bytes::ZERO);
            self.expedite(ino, offset..end, need);
            if !self.load(ino, offset..end, sequential, need) {
                self.write_back_for_memory(now);
                self.wait_for_memory(ticket);
                return Progress::Wait;
            }
            if begins && sequential && !is_frame {
                self.load_neighbours(ino, need);
            }
            // Perhaps everything missing was filled without the device.
            if let Some(result) = self.read_cached(now, handle, offset, length, true) {
                return Progress::Ready(result);
            }
        }
        self.wait_for_file(ino, ticket);
        Progress::Wait
    }

    /// A client waits for a file that it reads from its start. If that is small, and the second one in its directory for which a
    /// client waits, those beside it on the device are asked for as well. Only what goes on there without a gap is asked for, so
    /// that it is one command. What no client comes to is evicted like anything else.
    fn load_neighbours(&mut self, ino: Ino, need: RequestQos) {
        let Some((own, directory)) = self.small_file(ino) else { return };
        if !self.waits_again_in(directory) || need.class != Class::BestEffort {
            return;
        }
        let mut room = ONE_REQUEST.saturating_sub(own.count * BLOCK);
        let (mut start, mut end) = (own.start, own.start + own.count);
        // Numbers are given in turn, and files are written by number: what comes next lies next.
        for is_behind in [true, false] {
            let mut number = ino.0;
            loop {
                number = if is_behind { number + 1 } else { number - 1 };
                let Some((extent, _)) = self.small_file(Ino(number)) else { break };
                let goes_on =
                    if is_behind { extent.start == end } else { extent.start + extent.count == start };
                let Some(left) = room.checked_sub(extent.count * BLOCK).filter(|_| goes_on) else { break };
                room = left;
                if is_behind {
                    end += extent.count;
                } else {
                    start = extent.start;
                }
                if !self.take_steps(1) || !self.load_neighbour(Ino(number), need) {
                    return;
                }
            }
        }
    }

    /// Whether a client waited for a small file of this directory lately.
    fn waits_again_in(&mut self, directory: Ino) -> bool {
        let known = &mut self.data.waited_in;
        if known.contains(&directory) {
            return true;
        }
        known.truncate(DIRECTORIES - 1);
        known.push_front(directory);
        false
    }

    /// All of a small file on the device, in one piece, and the directory that it is in.
    fn small_file(&self, ino: Ino) -> Option<(Extent, Ino)> {
        let inode = self.metadata.get(ino)?;
        if inode.kind != FileKind::Regular || inode.size == 0 || inode.size > ONE_REQUEST / AT_ONE_ACCESS {
            return None;
        }
        let directory = inode.names.first()?.parent;
        let mut extents = inode.extents()?.range(0, u64::MAX);
        let own = extents.next().filter(|own| own.logical == 0 && !own.unwritten)?;
        let is_whole = extents.next().is_none() && own.count * BLOCK >= inode.size;
        is_whole.then_some((own, directory))
    }

    /// Asks for a file if nothing of it is in memory, and no client has it. False when there is no memory.
    fn load_neighbour(&mut self, ino: Ino, need: RequestQos) -> bool {
        if self.data.files.contains_key(&ino) || self.data.resting.contains_key(&ino) {
            return true;
        }
        let size = self.file_mut(ino).size;
        let is_loading = self.load(ino, 0..size, false, need);
        self.rest(ino);
        is_loading
    }

    #[expect(clippy::too_many_arguments, reason = "what a request was for, and how it ended")]
    pub(super) fn load_completed(
        &mut self,
        now: Now,
        ino: Ino,
        id: BlockId,
        start: u64,
        length: u64,
        bounce: Option<Buffer>,
        result: core::result::Result<(), IoError>,
    ) {
        self.writeback.requests -= usize::from(bounce.is_some());
        let size = match self.data.files.get_mut(&ino) {
            Some(file) => {
                file.loads -= 1;
                file.size
            }
            None => return,
        };
        let Some(block) = self.data.cache.get_mut(id) else { return };
        let range = start..start + length;
        block.loading.remove(range.clone());
        match result {
            Ok(()) => {}
            // A client that waits for it all the same asks again.
            Err(IoError::Cancelled) => {
                if block.is_idle() && block.valid.is_empty() && block.wanted == 0 {
                    self.data.cache.remove(id).into_iter().for_each(|block| self.forget_block(id, &block));
                }
                return;
            }
            Err(error) => {
                tracing::error!(%ino, offset = block.start + start, length, "read failed: {error}");
                if !self.read_in_parts(now, ino, id, range.clone()) {
                    self.page_unreadable(now, ino, id, range, error);
                }
                return;
            }
        }
        let file_range = block.start + range.start..block.start + range.end;
        let mut loaded: SmallVec<[Range<u64>; 1]> = SmallVec::new();
        for gap in block.valid.gaps(range) {
            let (at, length) = (gap.start as usize, (gap.end - gap.start) as usize);
            if let Some(bounce) = &bounce {
                block.memory.copy_in(at, bounce.bytes(at - start as usize, length));
            }
            // What the device holds behind the end of the file belongs to no file.
            let past = size.saturating_sub(block.start).clamp(gap.start, gap.end);
            block.memory.zero(past as usize, (gap.end - past) as usize);
            block.valid.insert(gap.clone());
            loaded.push(gap.start..past);
        }
        if let Some(file) = self.data.files.get_mut(&ino) {
            file.unreadable.remove(file_range);
        }
        // What a page lacks that is to be written is not for readers.
        for bytes in loaded.into_iter().filter(|bytes| bounce.is_none() && !bytes.is_empty()) {
            self.data.cache.mark_loaded(id, bytes);
        }
    }

    /// Where data or a hole begins, at or after `offset`.
    pub fn seek(&self, handle: HandleId, offset: u64, seek: Seek) -> Result<u64> {
        let (ino, _) = self.handle(handle)?;
        let inode = self.metadata.get(ino).ok_or(Error::Stale)?;
        let extents = inode.extents().ok_or(Error::InvalidArgument)?;
        let file = self.data.files.get(&ino);
        let size = file.map_or(inode.size, |file| file.size);
        if offset >= size {
            return Err(Error::NoSuchOffset);
        }
        // Data is what was written, on the device or not yet.
        let is_data_until = |page: u64| -> (bool, u64) {
            let last = size.div_ceil(BLOCK);
            let mut next = last;
            if let Some(extent) = extents.range(page, last).find(|extent| !extent.unwritten) {
                if extent.logical <= page {
                    return (true, extent.logical_end());
                }
                next = next.min(extent.logical);
            }
            let first = file.and_then(|file| file.block_before(page * BLOCK)).map_or(0, |(start, _)| start);
            for (start, id) in file.into_iter().flat_map(|file| file.blocks.range(first..u64::MAX)) {
                if start / BLOCK >= next {
                    break;
                }
                let Some(block) = self.data.cache.get(id) else { continue };
                for range in block.dirty.iter().chain(block.in_writing.iter()) {
                    let pages = (start + range.start) / BLOCK..(start + range.end).div_ceil(BLOCK);
                    if pages.contains(&page) {
                        return (true, pages.end);
                    }
                    if pages.start > page {
                        next = next.min(pages.start);
                    }
                }
            }
            (false, next)
        };
        let last = size.div_ceil(BLOCK);
        let mut page = offset / BLOCK;
        while page < last {
            let (is_data, until) = is_data_until(page);
            match (seek, is_data) {
                (Seek::Data, true) | (Seek::Hole, false) => return Ok(offset.max(page * BLOCK)),
                _ => page = until,
            }
        }
        match seek {
            Seek::Data => Err(Error::NoSuchOffset),
            Seek::Hole => Ok(size),
        }
    }
}
