//! Space that is promised to bytes in memory, page by page.
//!
//! **For:** claims of pages that have no place yet, and what a file's last page holds behind its end. **Excludes:** the places
//! themselves. **State:** none of its own.

use super::state::blocks::{BlockId, page_ceil};
use super::state::operation::Ticket;
use super::state::{Core, DIRTY_AGE};
use crate::error::{Error, Result};
use crate::format::BLOCK;
use crate::ranges::RangeSet;
use avfs_io::pool::MAX_BUFFER;
use smallvec::SmallVec;
use std::ops::Range;
use units::{Ino, Now};

impl Core {
    /// Claims space for the pages of `from..end` that have none of their own.
    pub(super) fn claim(&mut self, ino: Ino, from: u64, end: u64) -> Result<()> {
        let pages = from / BLOCK..end.div_ceil(BLOCK);
        let shared = self.shared_pages(ino, pages.clone());
        let Some(file) = self.data.files.get(&ino) else { return Err(Error::Stale) };
        let mut wanted: SmallVec<[Range<u64>; 2]> = SmallVec::new();
        let extents = self.metadata.get(ino).and_then(|inode| inode.extents()).ok_or(Error::Stale)?;
        for gap in file.delayed.gaps(pages) {
            let mut at = gap.start;
            for extent in extents.range(gap.start, gap.end) {
                wanted.push(at..extent.logical);
                at = extent.logical_end();
            }
            wanted.push(at..gap.end);
            wanted.extend(shared.within(gap));
        }
        let blocks: u64 = wanted.iter().map(|range| range.end - range.start).sum();
        if blocks > 0 {
            // What goes elsewhere makes the file no larger.
            let elsewhere: u64 = wanted.iter().map(|range| shared.total_within(range.clone())).sum();
            let more = blocks - elsewhere;
            self.check_growth(ino, more)?;
            self.space.allocator.claim(blocks)?;
            self.metadata.promise(ino, more);
            let file = self.file_mut(ino);
            file.claimed += blocks;
            for range in wanted {
                shared.within(range.clone()).for_each(|shared| file.displaced.insert(shared));
                file.delayed.insert(range);
            }
        }
        Ok(())
    }

    /// Gives claims back for pages of a write that was not accepted: those that no dirty byte needs.
    pub(super) fn unclaim_unused(&mut self, ino: Ino, from: u64, end: u64) {
        let Some(file) = self.data.files.get(&ino) else { return };
        let mut unused = Vec::new();
        for range in file.delayed.within(from / BLOCK..end.div_ceil(BLOCK)) {
            for page in range {
                if !self.is_page_in_use(ino, page) {
                    unused.push(page);
                }
            }
        }
        self.unclaim(ino, unused.into_iter());
    }

    pub(super) fn unclaim(&mut self, ino: Ino, pages: impl Iterator<Item = u64>) {
        let Some(file) = self.data.files.get_mut(&ino) else { return };
        let (mut count, promised) = (0, file.promised());
        for page in pages {
            file.delayed.remove(page..page + 1);
            file.displaced.remove(page..page + 1);
            count += 1;
        }
        file.claimed -= count;
        let less = promised - file.promised();
        self.space.allocator.unclaim(count);
        self.metadata.unpromise(ino, less);
    }

    /// True when the page has dirty bytes, or bytes on their way to the device, or a client fills it.
    pub(super) fn is_page_in_use(&self, ino: Ino, page: u64) -> bool {
        let Some(file) = self.data.files.get(&ino) else { return false };
        let Some((start, id)) = file.block_before(page * BLOCK) else { return false };
        let Some(block) = self.data.cache.get(id).filter(|block| page * BLOCK < block.end()) else {
            return false;
        };
        let bytes = page * BLOCK - start..(page + 1) * BLOCK - start;
        block.is_filling(&bytes) || block.dirty.overlaps(bytes.clone()) || block.in_writing.overlaps(bytes)
    }

    /// Before a file grows to `new_end`, with bytes from `new_start` on, from inside a page that has a place on the device. What
    /// that page holds behind the old end must be replaced there, by zeros or by those bytes, before the new size is recorded.
    /// False when there is no memory.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when the page is to be written elsewhere.
    pub(super) fn zero_tail(&mut self, now: Now, ino: Ino, new_start: u64, new_end: u64) -> Result<bool> {
        let Some(file) = self.data.files.get(&ino) else { return Ok(true) };
        let size = file.size;
        if size.is_multiple_of(BLOCK) || new_end <= size {
            return Ok(true);
        }
        let page = size / BLOCK;
        let mapped = self.metadata.get(ino).and_then(|inode| inode.extents()?.at(page));
        if mapped.is_none_or(|extent| extent.unwritten) {
            // Never on the device, or reserved and never written: whatever is cached of it is zero behind the end.
            return Ok(true);
        }
        let tail_end = page_ceil(size).min(new_start);
        let epoch = file.epoch;
        if tail_end <= size {
            // The write that follows begins before the end, or right behind it.
            self.file_mut(ino).tails.push((page, size));
            return Ok(true);
        }
        let Some(id) = self.block_for(ino, size, tail_end - size, MAX_BUFFER) else { return Ok(false) };
        self.claim_elsewhere(ino, page..page + 1)?;
        self.file_mut(ino).tails.push((page, size));
        let Some(block) = self.data.cache.get(id) else { return Ok(false) };
        // What other clients copy behind the end at this moment becomes part of the file without us.
        let mut zeros = RangeSet::default();
        zeros.insert(block.relative(size, tail_end));
        for &(start, end) in &block.filling {
            zeros.remove(u64::from(start)..u64::from(end));
        }
        for range in zeros.iter() {
            block.memory.zero(range.start as usize, (range.end - range.start) as usize);
        }
        for range in zeros.iter() {
            self.data.cache.mark_dirty(id, range, now.monotonic, epoch);
        }
        self.writeback.files.insert(ino);
        self.schedule_aging(now);
        Ok(true)
    }

    /// The block that holds `at`, made if there is none.
    pub(super) fn block_for(&mut self, ino: Ino, at: u64, wanted: u64, longest: usize) -> Option<BlockId> {
        let held = self.data.files.get(&ino)?.block_before(at).map(|(_, id)| id);
        match held.filter(|&id| self.data.cache.get(id).is_some_and(|block| at < block.end())) {
            Some(id) => Some(id),
            None => self.make_block_of(longest, ino, at, wanted),
        }
    }

    /// True when clients copy into blocks of the file.
    pub(super) fn is_filling(&self, ino: Ino) -> bool {
        self.data.files.get(&ino).is_some_and(|file| file.filling > 0)
    }

    /// These pages have their place, or need none any more. Without requests at the device everything delayed is still a claim.
    pub(super) fn stop_delaying(&mut self, ino: Ino, pages: Range<u64>) {
        let Some(file) = self.data.files.get_mut(&ino) else { return };
        let (delayed, promised) = file.stop_delaying(pages);
        file.claimed -= delayed;
        self.space.allocator.unclaim(delayed);
        self.metadata.unpromise(ino, promised);
    }

    pub(super) fn schedule_aging(&mut self, now: Now) {
        self.writeback.next_aging = self.writeback.next_aging.min(now.monotonic + DIRTY_AGE);
    }

    /// Parks an operation until more of a file is on the device, or there is memory to complete its pages in.
    pub(super) fn wait_to_be_written(&mut self, ino: Ino, ticket: Ticket) {
        let no_memory = self.data.files.get(&ino).is_some_and(|file| file.is_idle() && file.exclusive == 0)
            && !self.is_filling(ino);
        if no_memory {
            self.wait_for_memory(ticket);
        } else {
            self.wait_for_file(ino, ticket);
        }
    }
}
