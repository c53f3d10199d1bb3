//! The blocks that are metadata's, and which of them hold nothing.
//!
//! **For:** finding room for images, their copies and the shard table, in whole units while the volume has some, and in holes
//! beside file data where it has none. **Excludes:** what is written there and when. **State:** derived from the pieces of the
//! shard table; what is spare is nowhere on the disk. **Invariants:** what is spare, open or set aside for the table is owned and
//! holds nothing that a superblock points at; a run never crosses the end of a unit.

use crate::allocator::BlockRun;
use crate::format::UNIT_BLOCKS;
use crate::ranges::RangeSet;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// First block of the unit that holds `block`.
pub(in crate::core) fn unit_of(block: u64) -> u64 {
    block / UNIT_BLOCKS * UNIT_BLOCKS
}

/// The parts of a range, each within one unit.
fn by_unit(range: Range<u64>) -> impl Iterator<Item = BlockRun> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = (unit_of(at) + UNIT_BLOCKS).min(range.end);
        let run = BlockRun { start: at, count: end.saturating_sub(at) };
        at = end;
        (run.count > 0).then_some(run)
    })
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::core) struct Places {
    /// Everything that is not the allocator's, whether something lies there or not.
    owned: RangeSet,
    /// What of it holds nothing.
    spare: RangeSet,
    spare_blocks: u64,
    /// Units of which all is spare.
    spare_units: u64,
    /// What is being filled, from its first free block on: one run for images, one for their copies.
    open: [Option<BlockRun>; 2],
    /// Room for the next table and its copy, kept in one piece while whole units are scarce.
    table: Option<[BlockRun; 2]>,
    /// What the table that the superblock points at has, and the one that is being written.
    table_now: Option<[BlockRun; 2]>,
    table_next: Option<[BlockRun; 2]>,
}

impl Places {
    /// Everything that is metadata's.
    pub(in crate::core) fn owned(&self) -> impl Iterator<Item = BlockRun> {
        self.owned.iter().map(|range| BlockRun { start: range.start, count: range.end - range.start })
    }

    /// What of a run is not metadata's.
    pub(in crate::core) fn missing(&self, run: BlockRun) -> Vec<BlockRun> {
        let gaps = self.owned.gaps(run.start..run.end());
        gaps.into_iter().map(|gap| BlockRun { start: gap.start, count: gap.end - gap.start }).collect()
    }

    /// Units in which metadata has something.
    pub(in crate::core) fn units(&self) -> BTreeSet<u64> {
        self.owned.iter().flat_map(by_unit).map(|run| unit_of(run.start)).collect()
    }

    /// True when the unit holds nothing but metadata.
    pub(in crate::core) fn is_own(&self, unit: u64) -> bool {
        self.owned.covers(unit..unit + UNIT_BLOCKS)
    }

    /// True when something of metadata lies in a unit beside something else.
    pub(in crate::core) fn is_shared(&self) -> bool {
        self.used_by_unit().into_iter().any(|(unit, used)| used > 0 && !self.is_own(unit))
    }

    /// Blocks that hold something, in each unit; also those that do until the next superblock.
    pub(in crate::core) fn used_by_unit(&self) -> BTreeMap<u64, u64> {
        let mut used = BTreeMap::new();
        for run in self.owned.iter().flat_map(by_unit) {
            *used.entry(unit_of(run.start)).or_insert(0) += run.count;
        }
        let unused = self.spare.iter().chain(self.set_aside().map(|run| run.start..run.end()));
        for run in unused.flat_map(by_unit) {
            if let Some(blocks) = used.get_mut(&unit_of(run.start)) {
                *blocks -= run.count;
            }
        }
        used
    }

    fn set_aside(&self) -> impl Iterator<Item = BlockRun> {
        self.open.iter().flatten().chain(self.table.iter().flatten()).copied()
    }

    /// Units of which nothing is used.
    pub(in crate::core) fn spare_units(&self) -> u64 {
        self.spare_units
    }

    /// Blocks that the next checkpoint can fill with images and copies.
    pub(in crate::core) fn spare_blocks(&self) -> u64 {
        self.spare_blocks + self.open.iter().flatten().map(|run| run.count).sum::<u64>()
    }

    /// A piece that is on the device already.
    pub(in crate::core) fn adopt(&mut self, run: BlockRun) {
        self.owned.insert(run.start..run.end());
    }

    /// Blocks from the allocator.
    pub(in crate::core) fn add(&mut self, run: BlockRun) {
        self.adopt(run);
        self.make_spare(run);
    }

    /// Nothing points at these blocks any more.
    pub(in crate::core) fn make_spare(&mut self, run: BlockRun) {
        for run in by_unit(run.start..run.end()) {
            self.spare.insert(run.start..run.end());
            self.spare_blocks += run.count;
            self.spare_units += u64::from(self.is_spare(unit_of(run.start)));
        }
    }

    fn is_spare(&self, unit: u64) -> bool {
        self.spare.covers(unit..unit + UNIT_BLOCKS)
    }

    fn take_spare(&mut self, run: BlockRun) {
        self.spare_units -= u64::from(self.is_spare(unit_of(run.start)));
        self.spare.remove(run.start..run.end());
        self.spare_blocks -= run.count;
    }

    fn disown(&mut self, run: BlockRun) -> BlockRun {
        self.take_spare(run);
        self.owned.remove(run.start..run.end());
        run
    }

    /// Gives up a unit of which nothing is used.
    pub(in crate::core) fn give_up_unit(&mut self) -> Option<BlockRun> {
        let unit = self.spare.iter().flat_map(by_unit).find(|run| run.count == UNIT_BLOCKS)?;
        Some(self.disown(unit))
    }

    /// Gives up what is spare beside other things than metadata.
    pub(in crate::core) fn give_up_shared(&mut self) -> Vec<BlockRun> {
        let spare: Vec<BlockRun> = self.spare.iter().flat_map(by_unit).collect();
        let shared = spare.into_iter().filter(|run| !self.is_own(unit_of(run.start)));
        shared.collect::<Vec<_>>().into_iter().map(|run| self.disown(run)).collect()
    }

    /// The longest spare run, if possible in another unit than `other`.
    fn longest(&self, other: Option<u64>) -> Option<BlockRun> {
        let runs = self.spare.iter().flat_map(by_unit);
        runs.max_by_key(|run| (Some(unit_of(run.start)) != other, run.count, std::cmp::Reverse(run.start)))
    }

    /// Blocks that can be filled on one side without a gap; opens the longest spare run if there are none. `None` when nothing is
    /// spare.
    pub(in crate::core) fn room(&mut self, side: usize) -> Option<u64> {
        if self.open[side].is_none() {
            let other = self.open[1 - side].map(|run| unit_of(run.start));
            let run = self.longest(other)?;
            self.take_spare(run);
            self.open[side] = Some(run);
        }
        self.open[side].map(|run| run.count)
    }

    /// Takes `count` blocks, at most the [room](Self::room), of what is open on one side.
    pub(in crate::core) fn fill(&mut self, side: usize, count: u64) -> Option<BlockRun> {
        let run = self.open[side]?;
        let left = BlockRun { start: run.start + count, count: run.count.checked_sub(count)? };
        self.open[side] = (left.count > 0).then_some(left);
        Some(BlockRun { start: run.start, count })
    }

    /// Fills these blocks before any others; nothing points at them any more.
    pub(in crate::core) fn fill_next(&mut self, side: usize, run: BlockRun) {
        if let Some(before) = self.open[side].replace(run) {
            self.make_spare(before);
        }
    }

    // The table.

    /// A table that is on the device already, and its copy.
    pub(in crate::core) fn adopt_table(&mut self, runs: [BlockRun; 2]) {
        runs.into_iter().for_each(|run| self.adopt(run));
        self.table_now = Some(runs);
    }

    /// True when a table of `count` blocks has room set aside for itself and for its copy.
    pub(in crate::core) fn has_table_room(&self, count: u64) -> bool {
        self.table.is_some_and(|runs| runs.iter().all(|run| run.count >= count))
    }

    /// Sets room aside, of what is spare, for a table of at least `least` blocks and its copy; `wanted` where it can be. False when
    /// there is none in one piece.
    pub(in crate::core) fn keep_table_room(&mut self, least: u64, wanted: u64) -> bool {
        if self.has_table_room(least) {
            return true;
        }
        let mut rooms = [BlockRun { start: 0, count: 0 }; 2];
        for side in 0..2 {
            let other = (side == 1).then(|| unit_of(rooms[0].start));
            // The shortest that is long enough: the longer ones are for images.
            let runs = self.spare.iter().flat_map(by_unit).filter(|run| run.count >= least);
            let is_short = |run: &BlockRun| run.count < wanted;
            let found = runs.min_by_key(|run| {
                (Some(unit_of(run.start)) == other, is_short(run), run.count.abs_diff(wanted), run.start)
            });
            let Some(found) = found else {
                if side == 1 {
                    self.make_spare(rooms[0]);
                }
                return false;
            };
            rooms[side] = BlockRun { start: found.start, count: found.count.min(wanted) };
            self.take_spare(rooms[side]);
        }
        for short in self.table.replace(rooms).into_iter().flatten() {
            self.make_spare(short);
        }
        true
    }

    /// Two runs of `count` blocks for a table and its copy: what was set aside, else behind the images if they fit there, else at a
    /// longer place. `None` when there is none.
    pub(in crate::core) fn place_table(&mut self, count: u64) -> Option<[BlockRun; 2]> {
        let rooms = match self.table.take_if(|runs| runs.iter().all(|run| run.count >= count)) {
            Some(rooms) => rooms,
            None => self.table_beside_images(count)?,
        };
        self.table_next = Some(rooms);
        Some(rooms.map(|room| BlockRun { count, ..room }))
    }

    fn table_beside_images(&mut self, count: u64) -> Option<[BlockRun; 2]> {
        for side in 0..2 {
            if self.open[side].is_none_or(|run| run.count < count) {
                let other = self.open[1 - side].map(|run| unit_of(run.start));
                let run = self.longest(other).filter(|run| run.count >= count)?;
                self.take_spare(run);
                if let Some(short) = self.open[side].replace(run) {
                    self.make_spare(short);
                }
            }
        }
        Some([self.fill(0, count)?, self.fill(1, count)?])
    }

    /// The superblock points at the table that was placed last. The room of the one before it is the next one's, if that has none.
    pub(in crate::core) fn table_written(&mut self) {
        let Some(next) = self.table_next.take() else { return };
        let Some(before) = self.table_now.replace(next) else { return };
        if self.table.is_none() && self.spare_units == 0 {
            self.table = Some(before);
        } else {
            before.into_iter().for_each(|run| self.make_spare(run));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(start: u64, count: u64) -> BlockRun {
        BlockRun { start, count }
    }

    #[test]
    fn copies_lie_in_another_unit_where_there_is_one() {
        let mut places = Places::default();
        places.add(run(0, 100));
        places.add(run(200, 90));
        places.add(run(UNIT_BLOCKS + 5, 10));
        assert_eq!((places.room(0), places.room(1)), (Some(100), Some(10)));
        assert_eq!(places.fill(1, 10), Some(run(UNIT_BLOCKS + 5, 10)));
        // Only the first unit has something left: better there than nowhere.
        assert_eq!(places.room(1), Some(90));
    }

    #[test]
    fn a_table_has_its_room_in_one_piece_when_images_have_taken_everything_else() {
        let mut places = Places::default();
        places.add(run(10, 40));
        places.add(run(UNIT_BLOCKS, 40));
        assert!(places.keep_table_room(4, 8) && places.has_table_room(8));
        while places.room(0).is_some() && places.room(1).is_some() {
            let count = places.room(0).min(places.room(1)).unwrap().min(3);
            places.fill(0, count);
            places.fill(1, count);
        }
        let table = places.place_table(8).unwrap();
        assert!(table[0].end() <= table[1].start || table[1].end() <= table[0].start);
        assert_eq!(places.place_table(1), None);
        places.table_written();
    }

    proptest! {
        /// Whatever is done, what is spare, open, set aside and used are together what is owned, each once.
        #[test]
        fn every_block_is_in_one_place(steps in prop::collection::vec((0u8..6, 0u64..6000, 1u64..900), 1..80)) {
            let mut places = Places::default();
            let mut used: Vec<BlockRun> = Vec::new();
            for (step, start, count) in steps {
                match step {
                    0 | 1 => {
                        let free = !places.owned.overlaps(start..start + count);
                        let whole = run(unit_of(start), UNIT_BLOCKS);
                        if step == 0 && free {
                            by_unit(start..start + count).for_each(|run| places.add(run));
                        } else if step == 1 && !places.owned.overlaps(whole.start..whole.end()) {
                            places.add(whole);
                        }
                    }
                    2 => {
                        let rooms = (places.room(0), places.room(1));
                        if let (Some(one), Some(other)) = rooms {
                            let count = one.min(other).min(count);
                            used.extend([places.fill(0, count).unwrap(), places.fill(1, count).unwrap()]);
                        }
                    }
                    3 => {
                        if places.place_table(count.min(60)).is_some() {
                            places.table_written();
                        }
                    }
                    4 => {
                        if !used.is_empty() {
                            let freed = used.swap_remove(start as usize % used.len());
                            places.make_spare(freed);
                        }
                    }
                    _ => {
                        if count % 3 == 0 {
                            places.keep_table_room(count.min(40), 60);
                        } else if count % 3 == 1 {
                            places.give_up_shared();
                        } else {
                            places.give_up_unit();
                        }
                    }
                }
                let mut all: Vec<Range<u64>> = places.spare.iter().collect();
                used.extend(places.table_now.iter().flatten());
                all.extend(places.set_aside().chain(used.iter().copied()).map(|run| run.start..run.end()));
                let mut joined = RangeSet::default();
                for range in &all {
                    prop_assert!(!joined.overlaps(range.clone()), "{range:?} is in two places");
                    joined.insert(range.clone());
                }
                prop_assert_eq!(&joined, &places.owned);
                prop_assert_eq!(places.spare.total(), places.spare_blocks);
                let whole = places.spare.iter().flat_map(by_unit).filter(|run| run.count == UNIT_BLOCKS);
                prop_assert_eq!(whole.count() as u64, places.spare_units);
                let counted: u64 = places.used_by_unit().values().sum();
                prop_assert_eq!(counted, used.iter().map(|run| run.count).sum::<u64>());
                used.truncate(used.len() - places.table_now.iter().flatten().count());
            }
        }
    }
}
