//! What the device did not take, and what it does not give back.
//!
//! **For:** data whose write failed goes to another place, and the place is not used again while the volume is mounted. It is lost
//! where no place takes it, or where a page that it was to complete cannot be read. Each client that has the file open hears so
//! from its next fsync(2), once. A read that failed is repeated in ever smaller parts, so that only those pages fail that cannot be
//! read. **Excludes:** the log and metadata, whose errors end all changes ([`Core::fail`]). **State:** the refused places; what was
//! lost of each file, in its [`FileState`](super::file::FileState). **Invariants:** nothing that is dirty is dropped without being
//! counted as lost; of a refused place no block is free.

use super::state::Core;
use super::state::blocks::{BlockId, page_ceil};
use super::state::operation::Operation;
use super::state::outbox::WrittenPiece;
use crate::error::{Error, Result};
use crate::format::BLOCK;
use crate::ranges::RangeSet;
use crate::types::HandleId;
use avfs_io::IoError;
use avfs_streams::RequestQos;
use rtsched::Direction;
use std::ops::Range;
use units::{Bytes, Ino, Now};

/// A device that refuses a block at so many places has no good one for it. It bounds the tries. An operator's target.
const PLACES: u32 = 4;
/// What could not be read is read again in so many parts. Of the largest request a page is found in three steps. It bounds the
/// length of a request. An operator's target.
const PARTS: u64 = 16;

impl Core {
    /// These pieces of a block did not reach the device. True: the block is to be written again, elsewhere.
    pub(super) fn data_refused(
        &mut self,
        now: Now,
        ino: Ino,
        id: BlockId,
        epoch: u64,
        pieces: &[WrittenPiece],
        error: IoError,
    ) -> bool {
        // The engine's errors, not the device's: nothing is written any more.
        if !matches!(error, IoError::Device(_) | IoError::PastEnd) {
            self.fail(&format!("write of inode {ino}: {error}"));
            return false;
        }
        let Some(block) = self.data.cache.get_mut(id) else { return false };
        block.refused += 1;
        let start = block.start;
        let goes_elsewhere =
            error.is_of_the_place() && block.refused < PLACES && self.status.failure.is_none();
        let exists = self.metadata.get(ino).is_some();
        for extent in pieces.iter().map(|piece| piece.extent()) {
            let pages = extent.logical..extent.logical_end();
            let bytes = pages.start * BLOCK - start..pages.end * BLOCK - start;
            let is_recorded = self.is_recorded_at(ino, extent.logical, extent.start);
            if error.is_of_the_place() {
                self.space.refused.places.insert(extent.start..extent.run().end());
            } else if !is_recorded && self.space.allocator.free(extent.run()).is_err() {
                self.fail("space was freed twice");
                return false;
            }
            if exists && goes_elsewhere && self.space.allocator.claim(extent.count).is_ok() {
                let file = self.file_mut(ino);
                file.claimed += extent.count;
                let before = file.delayed.total_within(pages.clone());
                file.delayed.insert(pages.clone());
                if is_recorded {
                    file.displaced.insert(pages);
                } else {
                    self.metadata.promise(ino, extent.count - before);
                }
                let since = self
                    .data
                    .cache
                    .get(id)
                    .map_or(now.monotonic, |block| block.dirty_since.min(now.monotonic));
                self.data.cache.mark_dirty(id, bytes, now.monotonic, epoch);
                if let Some(block) = self.data.cache.get_mut(id) {
                    block.dirty_epoch = block.dirty_epoch.min(epoch);
                    block.dirty_since = since;
                }
                tracing::warn!(%ino, offset = extent.logical * BLOCK, "write failed, goes elsewhere: {error}");
            } else {
                self.lose(now, ino, id, bytes, !is_recorded, &format!("{error}"));
            }
        }
        if !exists {
            return false;
        }
        let file = self.file_mut(ino);
        file.last_placed = None;
        let is_free = file.exclusive == 0;
        self.release_window(ino);
        self.writeback.files.insert(ino);
        self.schedule_aging(now);
        goes_elsewhere && is_free
    }

    fn is_recorded_at(&self, ino: Ino, logical: u64, device: u64) -> bool {
        let extent = self.metadata.get(ino).and_then(|inode| inode.extents()?.at(logical));
        extent.is_some_and(|extent| extent.start + (logical - extent.logical) == device)
    }

    /// Bytes of a block that no place has taken: the file is what the device has of it. `placed`: their pages had a place that no
    /// record tells of.
    fn lose(&mut self, now: Now, ino: Ino, id: BlockId, bytes: Range<u64>, placed: bool, why: &str) {
        let kept = self.keep_tails(now, ino, id, bytes.clone());
        let Some(block) = self.data.cache.get_mut(id) else { return };
        let start = block.start;
        // What was written over since waits for its own turn.
        for gone in block.dirty.gaps(bytes.clone()) {
            if !block.is_filling(&gone) {
                block.valid.remove(gone);
            }
        }
        if self.metadata.get(ino).is_none() {
            return;
        }
        if placed {
            let pages = (start + bytes.start) / BLOCK..(start + bytes.end).div_ceil(BLOCK);
            let mut dirty = RangeSet::default();
            let block = self.data.cache.get(id);
            for range in block.into_iter().flat_map(|block| block.dirty.within(bytes.clone())) {
                dirty.insert((start + range.start) / BLOCK..(start + range.end).div_ceil(BLOCK));
            }
            let mut lost = 0;
            let file = self.file_mut(ino);
            for gone in dirty.gaps(pages.clone()) {
                lost += file.stop_delaying(gone).1;
            }
            self.metadata.unpromise(ino, lost);
            // What is dirty there again has lost its place, and its claim with that.
            let again = dirty.total_within(pages);
            if again > 0 && self.space.allocator.claim(again).is_ok() {
                self.file_mut(ino).claimed += again;
            } else if again > 0 {
                return self.fail("there is no room for what could not be written");
            }
        }
        let lost = bytes.end - bytes.start - kept;
        self.count_loss(ino, start + bytes.start, lost, why);
    }

    fn count_loss(&mut self, ino: Ino, offset: u64, length: u64, why: &str) {
        let file = self.file_mut(ino);
        file.lost += 1;
        file.lost_unseen = true;
        self.space.refused.lost += 1;
        tracing::error!(%ino, offset, length, "data could not be written: {why}");
    }

    /// Pages that hold on the device what lay behind an earlier end of the file stay dirty: until one of them is written, the file
    /// cannot be longer than that. Each fsync tries it again, and fails as long as it fails. Returns how many bytes that are.
    fn keep_tails(&mut self, now: Now, ino: Ino, id: BlockId, bytes: Range<u64>) -> u64 {
        let (Some(file), Some(block)) = (self.data.files.get(&ino), self.data.cache.get(id)) else {
            return 0;
        };
        let (epoch, start) = (file.epoch, block.start);
        let in_block = |&(page, _): &(u64, u64)| {
            let at = (page * BLOCK).checked_sub(start)?;
            let page = at..at + BLOCK;
            (bytes.start <= page.start && page.end <= bytes.end && block.valid.covers(page.clone()))
                .then_some(page)
        };
        let mut tails = RangeSet::default();
        // A file that has ended in one page twice has noted it twice.
        file.tails.iter().filter_map(in_block).for_each(|page| tails.insert(page));
        let mut kept = 0;
        for pages in tails.within(bytes) {
            kept += pages.end - pages.start;
            self.data.cache.mark_dirty(id, pages, now.monotonic, epoch);
        }
        kept
    }

    /// A page of a block cannot be read: what was to be written of it has no whole page to go with.
    pub(super) fn page_unreadable(
        &mut self,
        now: Now,
        ino: Ino,
        id: BlockId,
        page: Range<u64>,
        error: IoError,
    ) {
        let Some(block) = self.data.cache.get(id) else { return };
        let start = block.start;
        self.file_mut(ino).unreadable.insert(start + page.start..start + page.end);
        let waits = self.data.files.get(&ino).is_some_and(|file| file.write_after_load);
        let Some(block) = self.data.cache.get(id).filter(|_| waits) else { return };
        if !block.dirty.overlaps(page.clone()) || block.is_filling(&page) {
            return;
        }
        let why = format!("the rest of its page cannot be read: {error}");
        let file = self.file_mut(ino);
        let (epoch, number) = (file.epoch, (start + page.start) / BLOCK);
        if file.tails.iter().any(|&(tail, _)| tail == number) {
            // As in `keep_tails`.
            if let Some(block) = self.data.cache.get_mut(id) {
                (block.dirty_epoch, block.dirty_since) = (epoch, now.monotonic);
            }
            return self.count_loss(ino, start + page.start, BLOCK, &why);
        }
        self.data.cache.mark_clean(id, page.clone());
        self.unclaim_unused(ino, start + page.start, start + page.end);
        self.lose(now, ino, id, page, false, &why);
    }

    /// A range of a block could not be read. True when it is being read in parts now.
    pub(super) fn read_in_parts(&mut self, now: Now, ino: Ino, id: BlockId, range: Range<u64>) -> bool {
        let length = range.end - range.start;
        if length <= BLOCK {
            return false;
        }
        let part = page_ceil(length / PARTS).max(BLOCK);
        let need = RequestQos::of(self.ranking(ino, Direction::Read, None), now.monotonic, Bytes::ZERO);
        let mut at = range.start;
        while at < range.end {
            let end = (at + part).min(range.end);
            self.fill(ino, id, at..end, need);
            at = end;
        }
        true
    }

    /// Takes note that a reader of a range is told that it cannot be read. True if that is so; the next one tries again.
    pub(super) fn tell_unreadable(&mut self, ino: Ino, range: Range<u64>) -> bool {
        let unreadable = &mut self.file_mut(ino).unreadable;
        let is_unreadable = unreadable.overlaps(range.clone());
        if is_unreadable {
            unreadable.remove(range);
        }
        is_unreadable
    }

    /// Something of the file was lost since the client opened it, or was told so last.
    pub(super) fn has_lost(&self, handle: HandleId) -> bool {
        let open = self.clients.handles.get(&handle.0);
        open.is_some_and(|open| {
            self.data.files.get(&open.ino).is_some_and(|file| file.lost != open.lost_seen)
        })
    }

    /// Whether the device has refused data since the volume was mounted. As long as it has not, close(2) has nothing to tell, and is not
    /// asked: for a small file that would be a fifth of what its client waits for.
    pub(super) fn has_refused(&self) -> bool {
        self.space.refused.counts() != (0, 0)
    }

    /// For close(2): whether something of the file was lost of which its client was not told. It stays to be told.
    ///
    /// # Errors
    /// [`Error::Device`] if so, or if nothing can be written any more.
    pub fn has_written(&self, handle: HandleId) -> Result<()> {
        if self.status.failure.is_some() || self.has_lost(handle) { Err(Error::Device) } else { Ok(()) }
    }

    /// The end of an fsync: what was lost is told each client that has the file open once, and once to a sync of the volume.
    pub(super) fn tell_lost(&mut self, operation: &Operation) -> Result<()> {
        let is_lost = match *operation {
            Operation::FsyncFile { handle } => {
                let is_lost = self.has_lost(handle);
                if let Some(open) = self.clients.handles.get_mut(&handle.0)
                    && let Some(file) = self.data.files.get_mut(&open.ino)
                {
                    open.lost_seen = file.lost;
                    file.lost_unseen &= !is_lost;
                }
                is_lost
            }
            Operation::Fsync { ino } => {
                self.data.files.get_mut(&ino).is_some_and(|file| std::mem::take(&mut file.lost_unseen))
            }
            Operation::Sync => {
                std::mem::replace(&mut self.space.refused.told, self.space.refused.lost)
                    != self.space.refused.lost
            }
            _ => false,
        };
        if is_lost { Err(Error::Device) } else { Ok(()) }
    }
}
