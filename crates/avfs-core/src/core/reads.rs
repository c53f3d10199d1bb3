//! Reading: from the cache at once, from the device in whole blocks.

use super::cache::BlockId;
use super::file::FileState;
use super::streams::Need;
use super::{Core, Progress, Purpose, Ticket};
use crate::allocator::BlockRun;
use crate::error::{Error, Result};
use crate::format::BLOCK;
use crate::types::*;
use avfs_io::pool::{Buffer, MAX_BUFFER};
use avfs_io::{IoError, IoOperation, Segment};
use rtsched::Direction;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use units::{Bytes, Ino, Now};

/// relatime: a file's access time is renewed when it is older than this.
const ATIME_AGE_SECONDS: i64 = 24 * 3600;

pub(super) fn page_floor(at: u64) -> u64 {
    at / BLOCK * BLOCK
}

pub(super) fn page_ceil(at: u64) -> u64 {
    at.next_multiple_of(BLOCK)
}

impl Core {
    /// Reads what the cache holds; `None` when the device is needed: then [`start`](Core::start) it.
    pub fn read(
        &mut self,
        now: Now,
        handle: HandleId,
        offset: u64,
        length: usize,
    ) -> Option<Result<ReadData>> {
        self.read_cached(now, handle, offset, length, false)
    }

    fn read_cached(
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
        // Whoever reads has opened, and by then the kernel had dropped what it was not to keep.
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
        if let Some(open) = self.handles.get_mut(&handle.0) {
            open.read_deadline = None;
        }
        if at > offset {
            self.follow(now, ino, handle, offset..end, has_waited);
            self.pump(now);
        }
        Some(Ok(data))
    }

    /// Appends what is known of `at..end` without the device: cached bytes, or zeros of a hole.
    pub(super) fn cached_slice(&mut self, ino: Ino, at: u64, end: u64, data: &mut ReadData) -> Option<u64> {
        let file = self.files.get(&ino)?;
        if let Some((start, id)) = file.block_before(at)
            && let Some(block) = self.cache.get(id)
            && at < block.end()
        {
            let valid_end = block.valid.end_of(at - start)?;
            let length = (end - at).min(start + valid_end - at);
            let bytes = (at - start) as usize..(at - start + length) as usize;
            let slices = block.memory.parts(bytes).map(|(buffer, range)| ReadSlice::Buffer {
                buffer: buffer.clone(),
                start: range.start,
                length: range.len(),
            });
            data.slices.extend(slices);
            self.cache.touch(id);
            self.cache.mark_read(id, at - start..at - start + length);
            return Some(length);
        }
        let until = file.next_block(at).unwrap_or(end).min(end);
        let hole_end = self.hole_end(ino, at, until)?;
        data.slices.push(ReadSlice::Zeros((hole_end - at) as usize));
        Some(hole_end - at)
    }

    /// End of the range from `at` on that has no written extent, at most `until`; `None` if `at` has one.
    fn hole_end(&self, ino: Ino, at: u64, until: u64) -> Option<u64> {
        let extents = self.metadata.get(ino)?.extents()?;
        let written = extents.range(at / BLOCK, until.div_ceil(BLOCK)).find(|extent| !extent.unwritten);
        let end = written.map_or(until, |extent| (extent.logical * BLOCK).min(until));
        (end > at).then_some(end)
    }

    fn note_read(&mut self, now: Now, ino: Ino) {
        if self.changes_access_time(now, ino) {
            self.touch_file(ino, Some(now.wall), None);
            self.schedule_aging(now);
        }
    }

    /// Whether a read of the file at this moment changes its time of access.
    pub(super) fn changes_access_time(&self, now: Now, ino: Ino) -> bool {
        let Ok(attributes) = self.attributes(ino) else { return false };
        let is_due = match self.options.access_times {
            AccessTimes::Never => false,
            AccessTimes::Strict => true,
            AccessTimes::Relative => {
                attributes.atime <= attributes.mtime.max(attributes.ctime)
                    || attributes.atime.seconds + ATIME_AGE_SECONDS < now.wall.seconds
            }
        };
        let is_told = self.flags(ino).is_ok_and(|flags| !flags.contains(InodeFlags::NO_ATIME));
        is_due && is_told && attributes.atime != now.wall && self.check_writable().is_ok()
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
            self.interrupt_frame(ino);
            let is_frame = self.file_mut(ino).sequence(Direction::Read).is_some();
            let begins = offset == 0 && !self.only_looks_at(handle, offset);
            let goes_on = begins || is_frame || self.goes_on(handle, offset);
            let sequential = goes_on && self.file_mut(ino).policy().prefetch_depth() > Bytes::ZERO;
            let need = self.need(now, ino, handle, offset, Bytes::ZERO);
            self.hasten(ino, offset..end, need);
            if !self.load(ino, offset..end, sequential, need) {
                self.write_back_for_memory(now);
                self.buffer_waiters.push_back(ticket);
                return Progress::Wait;
            }
            // Perhaps everything missing was filled without the device.
            if let Some(result) = self.read_cached(now, handle, offset, length, true) {
                return Progress::Ready(result);
            }
        }
        self.wait_for_file(ino, ticket);
        Progress::Wait
    }

    /// Makes blocks for what is missing of `range` and asks the device for it. False when there is no memory.
    pub(super) fn load(&mut self, ino: Ino, range: Range<u64>, sequential: bool, need: Need) -> bool {
        // Blocks of the range are not evicted to make room for others of it.
        let mut held = SmallVec::new();
        let loaded = self.load_held(ino, range, sequential, need, &mut held);
        for id in held {
            self.hold(id, false);
        }
        loaded
    }

    fn load_held(
        &mut self,
        ino: Ino,
        range: Range<u64>,
        sequential: bool,
        need: Need,
        held: &mut SmallVec<[BlockId; 4]>,
    ) -> bool {
        let mut at = range.start;
        while at < range.end {
            let Some(file) = self.files.get(&ino) else { return true };
            let present =
                file.block_before(at).filter(|&(_, id)| self.cache.get(id).is_some_and(|b| at < b.end()));
            if let Some((_, id)) = present {
                self.hold(id, true);
                held.push(id);
                let Some(block) = self.cache.get(id) else { return true };
                let block_end = block.end();
                let missing: Vec<_> = block
                    .valid
                    .gaps(block.relative(at, range.end))
                    .into_iter()
                    .map(|gap| (id, gap))
                    .collect();
                for (id, gap) in missing {
                    if !self.fill(ino, id, gap, need) {
                        return false;
                    }
                }
                at = block_end;
                continue;
            }
            let until = file.next_block(at).unwrap_or(u64::MAX);
            if let Some(hole_end) = self.hole_end(ino, at, until.min(range.end)) {
                at = hole_end;
                continue;
            }
            let size = file.size;
            let wanted = if sequential {
                // The largest block, or as much of it as the file fills.
                let first = at / MAX_BUFFER as u64 * MAX_BUFFER as u64;
                (MAX_BUFFER as u64).min(size.saturating_sub(first))
            } else {
                range.end - at
            };
            let Some(id) = self.make_block(ino, at, wanted) else { return false };
            self.hold(id, true);
            held.push(id);
            let Some(block) = self.cache.get(id) else { return true };
            let gap = if sequential {
                0..page_ceil(size).min(block.end()).saturating_sub(block.start)
            } else {
                let wanted = block.relative(page_floor(at), page_ceil(range.end.min(size)));
                wanted.start..wanted.end
            };
            at = block.end();
            if !self.fill(ino, id, gap, need) {
                return false;
            }
        }
        true
    }

    /// Makes a block that covers `at`: aligned, at most `wanted` bytes and what the file's end asks for, and not
    /// across other blocks of the file.
    pub(super) fn make_block(&mut self, ino: Ino, at: u64, wanted: u64) -> Option<BlockId> {
        self.make_block_of(MAX_BUFFER, ino, at, wanted)
    }

    /// As [`make_block`](Self::make_block), of buffers that are not longer than `longest`.
    pub(super) fn make_block_of(
        &mut self,
        longest: usize,
        ino: Ino,
        at: u64,
        wanted: u64,
    ) -> Option<BlockId> {
        let mut size = wanted.max(BLOCK).next_power_of_two().min(MAX_BUFFER as u64);
        let fits = |file: &FileState, size: u64| {
            let start = at / size * size;
            let before = file
                .block_before(at)
                .is_none_or(|(_, id)| self.cache.get(id).is_none_or(|block| block.end() <= start));
            before
                && file.next_block(start).is_none_or(|next| next >= start + size)
                && !file.blocks.contains(start)
        };
        let file = self.files.get(&ino)?;
        // Not larger than the file needs, unless it is growing.
        let needed = page_ceil(file.size.max(at + 1)).next_power_of_two();
        size = size.min(needed.max(wanted.next_power_of_two().max(BLOCK)));
        while size > BLOCK && !fits(file, size) {
            size /= 2;
        }
        let memory = self.data_memory(size as usize, longest)?;
        // Eviction may have given less than was asked for.
        let size = memory.len() as u64;
        let start = at / size * size;
        let id = self.cache.insert(ino, start, memory);
        self.file_mut(ino).blocks.insert(start, id);
        Some(id)
    }

    /// Makes the bytes `gap` (relative to the block, not valid) valid: zeros where the device has nothing, else a
    /// request. False when there is no memory.
    pub(super) fn fill(&mut self, ino: Ino, id: BlockId, gap: Range<u64>, need: Need) -> bool {
        let Some(block) = self.cache.get(id) else { return true };
        let start = block.start;
        let pages = page_floor(gap.start)..page_ceil(gap.end).min(block.memory.len() as u64);
        if block.is_filling(&pages) {
            // Neither zeros nor what the device holds may come over bytes that a client is copying. Whoever needs
            // the rest tries again when the client is done.
            return true;
        }
        let (from, to) = ((start + pages.start) / BLOCK, (start + pages.end) / BLOCK);
        let written: Vec<_> = self
            .metadata
            .get(ino)
            .and_then(|inode| inode.extents())
            .into_iter()
            .flat_map(|extents| extents.range(from, to))
            .filter(|extent| !extent.unwritten)
            .collect();
        let mut at = pages.start;
        for extent in &written {
            let relative = extent.logical * BLOCK - start;
            self.fill_zeros(id, at..relative);
            at = relative + extent.count * BLOCK;
        }
        self.fill_zeros(id, at..pages.end);
        for extent in &written {
            let relative = extent.logical * BLOCK - start;
            let run = relative..relative + extent.count * BLOCK;
            let Some(block) = self.cache.get(id) else { return true };
            let missing = block.loading.gaps(run);
            for part in missing {
                // Pages of which some bytes are valid already are read aside and merged.
                let mut cuts: Vec<Range<u64>> = Vec::new();
                let Some(block) = self.cache.get(id) else { return true };
                let mut page = part.start;
                while page < part.end {
                    let partial = |page: u64| block.valid.overlaps(page..page + BLOCK);
                    let kind = partial(page);
                    let mut stop = page + BLOCK;
                    while !kind && stop < part.end && !partial(stop) {
                        stop += BLOCK;
                    }
                    if !block.valid.covers(page..stop) {
                        cuts.push(page..stop);
                    }
                    page = stop;
                }
                for cut in cuts {
                    let device = extent.start + (cut.start - relative) / BLOCK;
                    if !self.request_load(ino, id, cut, device, need) {
                        return false;
                    }
                }
            }
        }
        true
    }

    fn fill_zeros(&mut self, id: BlockId, range: Range<u64>) {
        let Some(block) = self.cache.get_mut(id) else { return };
        for gap in block.valid.gaps(range) {
            block.memory.zero(gap.start as usize, (gap.end - gap.start) as usize);
            block.valid.insert(gap);
        }
    }

    fn request_load(&mut self, ino: Ino, id: BlockId, cut: Range<u64>, device: u64, need: Need) -> bool {
        let length = (cut.end - cut.start) as usize;
        let Some(block) = self.cache.get(id) else { return true };
        let partial = block.valid.overlaps(cut.clone());
        let (segments, bounce): (SmallVec<[Segment; 2]>, Option<Buffer>) = if partial {
            self.hold(id, true);
            let bounce = self.bounce_buffer(length);
            self.hold(id, false);
            match bounce {
                Some(bounce) => {
                    (smallvec![Segment { buffer: bounce.clone(), start: 0, length }], Some(bounce))
                }
                None => return false,
            }
        } else {
            (block.memory.segments(cut.start as usize..cut.end as usize), None)
        };
        let Some(block) = self.cache.get_mut(id) else { return true };
        block.loading.insert(cut.clone());
        let address = self.superblock.geometry.block_address(device);
        let run = BlockRun { start: device, count: length as u64 / BLOCK };
        self.file_mut(ino).loads += 1;
        self.writeback_requests += usize::from(partial);
        self.request(
            IoOperation::Read,
            address,
            segments,
            need.class,
            need.stream,
            need.deadline,
            Purpose::Load { ino, block: id, start: cut.start, length: length as u64, bounce },
            Some(run),
        );
        true
    }

    /// Keeps a block from being evicted, or no longer.
    pub(super) fn hold(&mut self, id: BlockId, held: bool) {
        if let Some(block) = self.cache.get_mut(id) {
            block.held = if held { block.held + 1 } else { block.held - 1 };
        }
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
        let size = match self.files.get_mut(&ino) {
            Some(file) => {
                file.loads -= 1;
                file.size
            }
            None => return,
        };
        let Some(block) = self.cache.get_mut(id) else { return };
        let range = start..start + length;
        block.loading.remove(range.clone());
        match result {
            Ok(()) => {}
            // Whoever waits for it all the same asks again.
            Err(IoError::Cancelled) => {
                if block.is_idle() && block.valid.is_empty() && block.wanted == 0 {
                    self.cache.remove(id).into_iter().for_each(|block| self.forget_block(id, &block));
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
            // What the device holds behind the end of the file is nobody's.
            let past = size.saturating_sub(block.start).clamp(gap.start, gap.end);
            block.memory.zero(past as usize, (gap.end - past) as usize);
            block.valid.insert(gap.clone());
            loaded.push(gap.start..past);
        }
        if let Some(file) = self.files.get_mut(&ino) {
            file.unreadable.remove(file_range);
        }
        // What a page lacks that is to be written is not for readers.
        for bytes in loaded.into_iter().filter(|bytes| bounce.is_none() && !bytes.is_empty()) {
            self.cache.mark_loaded(id, bytes);
        }
    }

    /// Where data or a hole begins, at or after `offset`.
    pub fn seek(&self, handle: HandleId, offset: u64, seek: Seek) -> Result<u64> {
        let (ino, _) = self.handle(handle)?;
        let inode = self.metadata.get(ino).ok_or(Error::Stale)?;
        let extents = inode.extents().ok_or(Error::InvalidArgument)?;
        let file = self.files.get(&ino);
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
                let Some(block) = self.cache.get(id) else { continue };
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
