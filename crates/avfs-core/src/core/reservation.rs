//! Space for what will be written, beside what is: a hole that is expected to be filled gets its place together with its
//! neighbours, as unwritten extents. If no write comes, it is given back: when the last writer closes the file, or when another
//! write needs the space.

use super::state::{Core, TRANSACTION_RECORDS};
use crate::extent::Extent;
use crate::format::BLOCK;
use crate::ranges::RangeSet;
use crate::record::Record;
use std::ops::Range;
use units::{Ino, Now};

impl Core {
    /// Gives a page that is about to be placed, what is expected around it, and what waits there to be placed as well, one
    /// place, unwritten. Does nothing when there is only what comes behind it, or no space.
    pub(super) fn reserve_around(&mut self, now: Now, ino: Ino, page: u64) {
        // After a failed write it is not known what has its place.
        if self.status.failure.is_some() {
            return;
        }
        let Some((run, expected)) = self.unplaced_around(ino, page) else { return };
        let has_room = expected.total() <= self.space.allocator.available();
        if !has_room || self.check_growth(ino, expected.total()).is_err() {
            return;
        }
        let mut records = Vec::new();
        let mut at = run.start;
        while at < run.end {
            let Some(placed) = self.place_run(ino, at, run.end - at) else {
                return self.fail("claimed space is not there");
            };
            let extent = Extent { logical: at, start: placed.start, count: placed.count, unwritten: true };
            records.push(Record::Map { ino, extent });
            at += placed.count;
        }
        if let Some(file) = self.data.files.get_mut(&ino) {
            let claimed = run.end - run.start - expected.total();
            file.claimed -= claimed;
            self.space.allocator.unclaim(claimed);
            file.delayed.remove(run);
            self.metadata.unpromise(ino, claimed);
            expected.iter().for_each(|pages| file.reserved.insert(pages));
            self.space.reserving.insert(ino);
        }
        for records in records.chunks(TRANSACTION_RECORDS) {
            let _ = self.transact(now, records);
        }
    }

    /// The pages around `page` that are expected or wait to be placed, without a gap; and which are only expected. `None`
    /// when `page` is the first of them and none is expected: then it can be placed for itself.
    fn unplaced_around(&self, ino: Ino, page: u64) -> Option<(Range<u64>, RangeSet)> {
        let file = self.data.files.get(&ino)?;
        let around = if file.expectation.pages().is_empty() {
            file.delayed.range_of(page).filter(|around| around.start < page)?
        } else {
            let mut wanted = file.expectation.pages().clone();
            file.delayed.iter().for_each(|pages| wanted.insert(pages));
            wanted.range_of(page)?
        };
        let taken = self.placed_pages(ino, &around);
        let run = taken.gaps(around).into_iter().find(|gap| gap.contains(&page))?;
        let mut expected = RangeSet::default();
        for pages in file.expectation.pages().within(run.clone()) {
            file.delayed.gaps(pages).into_iter().for_each(|pages| expected.insert(pages));
        }
        (run.start < page || !expected.is_empty()).then_some((run, expected))
    }

    /// Those of `pages` that have a place: recorded, or on their way to it.
    fn placed_pages(&self, ino: Ino, pages: &Range<u64>) -> RangeSet {
        let mut placed = RangeSet::default();
        let extents = self.metadata.get(ino).and_then(|inode| inode.extents());
        for extent in extents.into_iter().flat_map(|extents| extents.range(pages.start, pages.end)) {
            placed.insert(extent.logical..extent.logical_end());
        }
        let Some(file) = self.data.files.get(&ino) else { return placed };
        let first = file.block_before(pages.start * BLOCK).map_or(0, |(start, _)| start);
        for (start, id) in file.blocks.range(first..pages.end * BLOCK) {
            for bytes in self.data.cache.get(id).into_iter().flat_map(|block| block.in_writing.iter()) {
                placed.insert((start + bytes.start) / BLOCK..(start + bytes.end).div_ceil(BLOCK));
            }
        }
        placed
    }

    /// A caller says what becomes of these pages: they are not expected any more, and what is reserved of them is not to be given
    /// back.
    pub(super) fn stop_expecting(&mut self, ino: Ino, pages: Range<u64>) {
        let file = self.file_mut(ino);
        file.expectation.forget(pages.clone());
        file.reserved.remove(pages);
    }

    /// Gives back what was reserved for bytes that did not come.
    pub(super) fn give_back_reserved(&mut self, now: Now, ino: Ino) {
        if self.is_filling(ino) || self.status.failure.is_some() || self.status.dormant {
            return;
        }
        let Some(file) = self.data.files.get_mut(&ino) else { return };
        file.expectation.forget(0..u64::MAX);
        let unmap = |pages: Range<u64>| Record::Unmap { ino, from: pages.start, to: pages.end };
        let records: Vec<Record> = std::mem::take(&mut file.reserved).iter().map(unmap).collect();
        for records in records.chunks(TRANSACTION_RECORDS) {
            let _ = self.transact(now, records);
        }
    }

    /// Gives back what is reserved for bytes that did not come yet, of all files.
    pub(super) fn give_back_all(&mut self, now: Now) {
        for ino in std::mem::take(&mut self.space.reserving) {
            self.give_back_reserved(now, ino);
            if self.data.files.get(&ino).is_some_and(|file| !file.reserved.is_empty()) {
                self.space.reserving.insert(ino);
            }
        }
    }

    /// Gives up what is only reserved below the limits of a file, which have been reached.
    pub(super) fn give_up_below_limits(&mut self, now: Now, ino: Ino) {
        let all = self.space.reserving.iter().copied();
        let reserving: Vec<Ino> = all.filter(|&other| self.share_a_limit(ino, other)).collect();
        for other in reserving {
            self.give_back_reserved(now, other);
        }
    }

    /// True when space is about to become free; what is only reserved is given up for it.
    pub(super) fn is_space_coming(&mut self, now: Now) -> bool {
        self.give_back_all(now);
        // What one owner leaves to another one need not be written elsewhere any more.
        self.space.freed_blocks > 0 || !self.space.leaving.is_empty() || !self.inodes.unreaped.is_empty()
    }
}
