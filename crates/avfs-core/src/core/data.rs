//! What changes where a file's bytes are: its length, preallocation, holes.
//!
//! These wait until no request of the file is at the device, so that none of them can meet blocks that are not the
//! file's any more.

use super::attributes::check_flags;
use super::state::blocks::{page_ceil, page_floor};
use super::state::operation::{Progress, Ticket};
use super::state::{Core, ONE_REQUEST};
use crate::allocator::{Owner, Purpose as SpaceFor, Request};
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::format::{BLOCK, MAX_FILE_SIZE};
use crate::ranges::RangeSet;
use crate::record::Record;
use crate::types::*;
use std::ops::Range;
use units::{Ino, Now};

fn total(pages: &[Range<u64>]) -> u64 {
    pages.iter().map(|range| range.end - range.start).sum()
}

impl Core {
    /// True when no request of the file is on its way. Otherwise the operation is parked, and they are expedited. An office that
    /// saved a file again waited for two seconds until what it had saved before was written beside players.
    pub(super) fn is_quiet(&mut self, now: Now, ino: Ino, ticket: Ticket) -> bool {
        let idle = self.file_mut(ino).is_idle() && !self.is_filling(ino);
        if !idle {
            self.expedite_all(now, ino);
            self.wait_for_file(ino, ticket);
        }
        idle
    }

    pub(super) fn try_set_attributes(
        &mut self,
        now: Now,
        ticket: Ticket,
        ino: Ino,
        changes: SetAttributes,
    ) -> Progress<Attributes> {
        match self.set_attributes_now(now, ticket, ino, changes) {
            Ok(true) => Progress::Ready(self.attributes(ino)),
            Ok(false) => Progress::Wait,
            Err(Error::NoSpace) => match self.wait_for_space::<()>(now, ticket) {
                Progress::Wait => Progress::Wait,
                Progress::Ready(_) => Progress::Ready(Err(Error::NoSpace)),
            },
            Err(error) => Progress::Ready(Err(error)),
        }
    }

    fn set_attributes_now(
        &mut self,
        now: Now,
        ticket: Ticket,
        ino: Ino,
        changes: SetAttributes,
    ) -> Result<bool> {
        self.check_writable()?;
        let mut records = self.changed_attributes(now, ino, &changes)?;
        let mut is_emptied = false;
        if let Some(size) = changes.size {
            let inode = self.metadata.get(ino).ok_or(Error::Stale)?;
            match inode.kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(Error::IsDirectory),
                _ => return Err(Error::InvalidArgument),
            }
            if size > MAX_FILE_SIZE {
                return Err(Error::FileTooLarge);
            }
            if !self.is_quiet(now, ino, ticket) {
                return Ok(false);
            }
            is_emptied = size == 0 && self.is_worth_keeping(ino);
            if is_emptied && self.log.replacements.is_commit_due() {
                self.wait_for_due_commit(ticket);
                return Ok(false);
            }
            let old = self.file_mut(ino).size;
            if size < old {
                self.shrink(ino, size, &mut records);
            } else if size > old {
                if !self.grow(now, ino, size, &mut records)? {
                    self.write_back_for_memory(now);
                    self.wait_for_memory(ticket);
                    return Ok(false);
                }
            } else {
                // Preallocated space behind the end goes, as it does on other filesystems.
                self.shrink(ino, size, &mut records);
            }
        }
        let first_lsn = self.metadata.lsn() + 1;
        self.transact(now, &records)?;
        if is_emptied {
            self.hold_emptied(now, first_lsn, ino);
        }
        if let Some(file) = self.data.files.get_mut(&ino) {
            file.touched = None;
        }
        self.rest(ino);
        Ok(true)
    }

    fn shrink(&mut self, ino: Ino, size: u64, records: &mut Vec<Record>) {
        self.drop_cached(ino, size..u64::MAX);
        // All that was dirty of the last page may have been behind the new end.
        self.unclaim_unused(ino, size, size.next_multiple_of(BLOCK));
        let from = size.div_ceil(BLOCK);
        let file = self.file_mut(ino);
        file.size = size;
        file.append_end = size;
        file.last_placed = None;
        file.expectation.cut(size);
        file.reserved.remove(from..u64::MAX);
        file.tails.retain(|&mut (_, behind)| behind < size);
        if self.metadata.get(ino).is_some_and(|inode| inode.size > size) {
            records.push(Record::Size { ino, size });
        }
        if self.metadata.get(ino).and_then(|inode| inode.extents()?.range(from, u64::MAX).next()).is_some() {
            records.push(Record::Unmap { ino, from, to: u64::MAX });
        }
    }

    /// Lengthens a file. False when there is no memory to zero its last page in.
    fn grow(&mut self, now: Now, ino: Ino, size: u64, records: &mut Vec<Record>) -> Result<bool> {
        if !self.zero_tail(now, ino, size, size)? {
            return Ok(false);
        }
        self.set_longer(now, ino, size, records);
        Ok(true)
    }

    /// A file is longer from now on: what lay behind its end is taken care of.
    pub(super) fn set_longer(&mut self, now: Now, ino: Ino, size: u64, records: &mut Vec<Record>) {
        let file = self.file_mut(ino);
        file.size = size;
        file.append_end = size;
        // Recorded at once where nothing on the device has to change first.
        records.extend(self.size_record(ino, u64::MAX));
        if self.metadata.get(ino).is_some_and(|inode| inode.size < size) {
            self.writeback.files.insert(ino);
            self.schedule_aging(now);
        }
    }

    /// Forgets what is cached of a range, dirty or not, and the claims for it. Bytes of pages that are only partly in
    /// the range become zeros where they are cached.
    pub(super) fn drop_cached(&mut self, ino: Ino, range: Range<u64>) {
        let file = self.file_mut(ino);
        let first = file.block_before(range.start).map_or(range.start, |(start, _)| start);
        if range.end == u64::MAX {
            // All behind the first goes at once: there may be very many.
            let from = if first < range.start { first + 1 } else { first };
            let gone = file.blocks.split_off(from);
            self.data.cache.let_go(ino, from, gone);
            self.remove_gone();
        }
        let Some(file) = self.data.files.get(&ino) else { return };
        let blocks: Vec<_> = file.blocks.range(first..range.end).collect();
        for (start, id) in blocks {
            let Some(block) = self.data.cache.get(id) else { continue };
            if block.start >= range.start && block.end() <= range.end {
                self.data.cache.remove(id);
                self.file_mut(ino).blocks.remove(start);
                continue;
            }
            let gone = block.relative(range.start, range.end);
            if gone.is_empty() {
                continue;
            }
            block.memory.zero(gone.start as usize, (gone.end - gone.start) as usize);
            // Whole pages are forgotten; parts of pages stay, as zeros.
            let pages =
                page_ceil(gone.start)..if range.end == u64::MAX { u64::MAX } else { page_floor(gone.end) };
            if pages.start < pages.end {
                self.data.cache.mark_clean(id, pages.clone());
                if let Some(block) = self.data.cache.get_mut(id) {
                    block.valid.remove(pages);
                }
            }
            if range.end == u64::MAX {
                self.data.cache.mark_clean(id, gone);
            }
        }
        let pages = range.start.div_ceil(BLOCK)..range.end / BLOCK;
        if pages.start < pages.end {
            let Some(file) = self.data.files.get_mut(&ino) else { return };
            // What the device holds of these pages is the file's no more: no size has to wait for it.
            file.tails.retain(|(page, _)| !pages.contains(page));
            self.stop_delaying(ino, pages);
        }
    }

    /// The file is going: nothing of it is needed.
    pub(super) fn forget_file(&mut self, ino: Ino) {
        self.drop_cached(ino, 0..u64::MAX);
        self.clients.streams.forget_file(ino);
        if let Some(mut file) = self.data.files.remove(&ino) {
            self.space.allocator.unclaim(std::mem::take(&mut file.claimed));
            self.metadata.unpromise_all(ino);
            self.data.cache.let_go(ino, 0, file.blocks);
            self.remove_gone();
        }
        self.writeback.files.remove(&ino);
        self.release_window(ino);
    }

    pub(super) fn try_allocate(
        &mut self,
        now: Now,
        ticket: Ticket,
        handle: HandleId,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Progress<()> {
        match self.allocate_now(now, ticket, handle, offset, length, mode) {
            Ok(true) => Progress::Ready(Ok(())),
            Ok(false) => Progress::Wait,
            Err(Error::NoSpace) => self.wait_for_space(now, ticket),
            Err(error) => Progress::Ready(Err(error)),
        }
    }

    fn allocate_now(
        &mut self,
        now: Now,
        ticket: Ticket,
        handle: HandleId,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Result<bool> {
        let (ino, flags) = self.handle(handle)?;
        self.check_writable()?;
        if !flags.contains(OpenFlags::WRITE) {
            return Err(Error::BadHandle);
        }
        let inode = self.metadata.get(ino).ok_or(Error::Stale)?;
        check_flags(inode, InodeFlags::IMMUTABLE)?;
        if !matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize) {
            check_flags(inode, InodeFlags::APPEND_ONLY)?;
        }
        let end = offset.checked_add(length).ok_or(Error::FileTooLarge)?;
        if length == 0 {
            return Err(Error::InvalidArgument);
        }
        if end > MAX_FILE_SIZE {
            return Err(Error::FileTooLarge);
        }
        if !self.is_quiet(now, ino, ticket) {
            return Ok(false);
        }
        let size = self.file_mut(ino).size;
        let grows = matches!(mode, AllocateMode::Extend | AllocateMode::ZeroRange) && end > size;
        let zeroes = !matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize);
        let whole = offset.div_ceil(BLOCK)..end / BLOCK;
        let pages = offset / BLOCK..end.div_ceil(BLOCK);
        if mode != AllocateMode::PunchHole {
            // Refused before anything has changed: what is zeroed below gives its claims back before they are needed.
            let mut wanted = total(&self.unreserved(ino, pages.clone())?);
            if self.check_growth(ino, wanted).is_err() {
                self.give_up_below_limits(now, ino);
                wanted = total(&self.unreserved(ino, pages.clone())?);
            }
            self.check_growth(ino, wanted)?;
            // What others have, too, is given up, and reserved anew.
            wanted += if zeroes { self.wanted_elsewhere(ino, pages.clone()) } else { 0 };
            self.space.allocator.claim(wanted)?;
            self.space.allocator.unclaim(wanted);
        } else {
            let wanted =
                self.wanted_elsewhere(ino, pages.clone()) - self.wanted_elsewhere(ino, whole.clone());
            self.space.allocator.claim(wanted)?;
            self.space.allocator.unclaim(wanted);
        }
        if zeroes && !self.zero_edges(now, ino, offset..end)? {
            self.write_back_for_memory(now);
            self.wait_for_memory(ticket);
            return Ok(false);
        }
        if zeroes && whole.start < whole.end {
            self.drop_cached(ino, whole.start * BLOCK..whole.end * BLOCK);
            self.stop_expecting(ino, whole.clone());
            let mut records = Vec::new();
            if mode == AllocateMode::PunchHole {
                records.push(Record::Unmap { ino, from: whole.start, to: whole.end });
            } else if let Some(extents) = self.metadata.get(ino).and_then(|inode| inode.extents()) {
                let written = extents.range(whole.start, whole.end).filter(|extent| !extent.unwritten);
                for extent in written.take(self.steps_left()) {
                    let shared = self.shared_pages_of(&extent);
                    for kept in shared.gaps(extent.logical..extent.logical_end()) {
                        let kept = extent.clip(kept.start, kept.end);
                        let unwritten = kept.map(|extent| Extent { unwritten: true, ..extent });
                        records.extend(unwritten.map(|extent| Record::Map { ino, extent }));
                    }
                    records.extend(shared.iter().map(|pages| Record::Unmap {
                        ino,
                        from: pages.start,
                        to: pages.end,
                    }));
                }
                self.take_steps(records.len() as u32);
            }
            self.transact(now, &records)?;
            if mode != AllocateMode::PunchHole && self.is_turn_over() {
                // There may be more than one turn does.
                self.go_on_later(ticket);
                return Ok(false);
            }
        }
        if mode != AllocateMode::PunchHole {
            if !self.preallocate(now, ino, pages.clone())? {
                self.go_on_later(ticket);
                return Ok(false);
            }
            self.stop_expecting(ino, pages);
        }
        let mut records = Vec::new();
        if grows && !self.grow(now, ino, end, &mut records)? {
            self.write_back_for_memory(now);
            self.wait_for_memory(ticket);
            return Ok(false);
        }
        let mut attributes = self.metadata.get(ino).ok_or(Error::Stale)?.attributes;
        attributes.ctime = now.wall.into();
        if zeroes || grows {
            attributes.mtime = now.wall.into();
            if let Some(touched) = self.data.files.get_mut(&ino).and_then(|file| file.touched.as_mut()) {
                touched.mtime = None;
            }
        }
        records.push(Record::Attributes { ino, attributes });
        self.transact(now, &records)?;
        Ok(true)
    }

    /// Zeros in the parts of pages at both ends of a range, where there is anything but zeros. False when there is no
    /// memory.
    fn zero_edges(&mut self, now: Now, ino: Ino, range: Range<u64>) -> Result<bool> {
        let size = self.file_mut(ino).size;
        let end = range.end.min(size);
        let head = range.start..page_ceil(range.start).min(end);
        let tail = page_floor(end).max(head.end)..end;
        for edge in [head, tail] {
            // A page that lies whole in the range goes as a whole.
            let whole = page_floor(edge.start) >= range.start && page_ceil(edge.end) <= range.end;
            if edge.is_empty() || whole {
                continue;
            }
            let page = edge.start / BLOCK;
            let written = self
                .metadata
                .get(ino)
                .and_then(|inode| inode.extents()?.at(page))
                .is_some_and(|extent| !extent.unwritten);
            let held =
                self.data.files.get(&ino).and_then(|file| file.block_before(edge.start)).map(|(_, id)| id);
            let held =
                held.filter(|&id| self.data.cache.get(id).is_some_and(|block| edge.start < block.end()));
            let id = match held {
                Some(id) => id,
                None if !written => continue,
                None => match self.make_block(ino, edge.start, edge.end - edge.start) {
                    Some(id) => id,
                    None => return Ok(false),
                },
            };
            let epoch = self.file_mut(ino).epoch;
            let delayed = self.data.files.get(&ino).is_some_and(|file| file.delayed.overlaps(page..page + 1));
            let Some(block) = self.data.cache.get(id) else { return Ok(false) };
            let bytes = block.relative(edge.start, edge.end);
            let is_written = written || delayed || block.dirty.overlaps(bytes.clone());
            if is_written {
                self.claim_elsewhere(ino, page..page + 1)?;
            }
            let Some(block) = self.data.cache.get(id) else { return Ok(false) };
            block.memory.zero(bytes.start as usize, (bytes.end - bytes.start) as usize);
            if is_written {
                self.data.cache.mark_dirty(id, bytes, now.monotonic, epoch);
                self.writeback.files.insert(ino);
                self.schedule_aging(now);
            } else if let Some(block) = self.data.cache.get_mut(id) {
                block.valid.insert(bytes);
            }
        }
        Ok(true)
    }

    /// The pages of a range that have neither a place nor a claim.
    fn unreserved(&self, ino: Ino, pages: Range<u64>) -> Result<Vec<Range<u64>>> {
        let file = self.data.files.get(&ino).ok_or(Error::Stale)?;
        let extents = self.metadata.get(ino).and_then(|inode| inode.extents()).ok_or(Error::Stale)?;
        let mut gaps = Vec::new();
        for gap in file.delayed.gaps(pages) {
            let mut at = gap.start;
            for extent in extents.range(gap.start, gap.end) {
                gaps.push(at..extent.logical);
                at = extent.logical_end();
            }
            gaps.push(at..gap.end);
        }
        Ok(gaps)
    }

    /// Reserves space for every page of a range that has none: unwritten extents. What waits in memory to be placed beside it
    /// gets its place with it: a server that allocates what its client leaves out would take the place behind.
    /// False when there is more of it than one turn does.
    fn preallocate(&mut self, now: Now, ino: Ino, pages: Range<u64>) -> Result<bool> {
        let gaps = self.unreserved(ino, pages)?;
        let wanted = total(&gaps);
        self.check_growth(ino, wanted)?;
        self.space.allocator.claim(wanted)?;
        self.space.allocator.unclaim(wanted);
        let frame = self.space_of_frame(ino);
        let is_stream = |end: u64| end * BLOCK >= ONE_REQUEST || frame.is_some();
        let mut pages = self.with_delayed(ino, &gaps);
        let grows_long = frame.is_none() && pages.iter().last().is_some_and(|last| is_stream(last.end));
        let moved = if grows_long { self.begun_as_small(ino, wanted) } else { RangeSet::default() };
        let mut records = Vec::new();
        if !moved.is_empty() {
            records.push(Record::Unmap { ino, from: 0, to: ONE_REQUEST / BLOCK });
            moved.iter().for_each(|range| pages.insert(range));
        }
        let stated = self.data.files.get(&ino).and_then(|file| file.window_units);
        let window_units = stated.or(frame.map(|frame| frame.window_units));
        let moved_end = moved.iter().last().map_or(0, |range| range.end);
        let mut placed = None;
        for gap in pages.iter() {
            let mut at = gap.start;
            let recorded =
                || self.metadata.get(ino).and_then(|inode| inode.extents()?.device_block_before(at));
            let mut after = if moved.is_empty() { recorded() } else { placed };
            while at < gap.end {
                if !self.take_steps(1) && !records.is_empty() && at >= moved_end {
                    return self.transact(now, &records).map(|()| false);
                }
                let request = Request {
                    wanted: gap.end - at,
                    purpose: if is_stream(gap.end) { SpaceFor::Stream } else { SpaceFor::Small },
                    owner: frame.map_or(Owner(ino.0), |frame| frame.owner),
                    after: after.or(frame.and_then(|frame| frame.behind)),
                    window_units,
                };
                let Some(run) = self.space.allocator.allocate(&request) else {
                    self.fail("claimed space is not there");
                    return Err(Error::Device);
                };
                records.push(Record::Map {
                    ino,
                    extent: Extent { logical: at, start: run.start, count: run.count, unwritten: true },
                });
                self.stop_delaying(ino, at..at + run.count);
                at += run.count;
                after = Some(run.end());
                placed = after;
                self.placed_frame(ino, run.end());
            }
        }
        self.transact(now, &records).map(|()| true)
    }

    /// What was placed among small files, before it was known that this one is none. It moves if nothing of it is on the device
    /// yet, and if there is room beside the pages that are wanted. So the file lies in one piece.
    fn begun_as_small(&self, ino: Ino, wanted: u64) -> RangeSet {
        let mut pages = RangeSet::default();
        let extents = self.metadata.get(ino).and_then(|inode| inode.extents());
        for extent in extents.into_iter().flat_map(|extents| extents.iter()) {
            if !extent.unwritten || extent.logical_end() * BLOCK >= ONE_REQUEST {
                return RangeSet::default();
            }
            pages.insert(extent.logical..extent.logical_end());
        }
        if pages.total() + wanted < self.space.allocator.available() { pages } else { RangeSet::default() }
    }

    /// These pages, and those that wait to be placed and touch them.
    fn with_delayed(&self, ino: Ino, gaps: &[Range<u64>]) -> RangeSet {
        let mut pages = RangeSet::default();
        for gap in gaps.iter().filter(|gap| !gap.is_empty()) {
            let delayed = self.data.files.get(&ino).map(|file| &file.delayed);
            let touching = [gap.start.checked_sub(1), Some(gap.end)].into_iter().flatten();
            let beside = touching.filter_map(|page| delayed?.range_of(page));
            beside.chain([gap.clone()]).for_each(|range| pages.insert(range));
        }
        // What waits to be written elsewhere keeps its place until it is.
        let displaced = self.data.files.get(&ino).into_iter().flat_map(|file| file.displaced.iter());
        displaced.for_each(|range| pages.remove(range));
        pages
    }
}
