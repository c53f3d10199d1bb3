//! Where a file's bytes are: a sorted list of runs, few for footage.
//!
//! **Invariants:** extents are sorted by `logical`, do not overlap, are not empty, and neighbours that continue each
//! other on the device in the same state are one extent.

use crate::allocator::BlockRun;
use smallvec::SmallVec;

/// A run of blocks of a file on the device. All in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block in the file.
    pub logical: u64,
    /// First block in the data area.
    pub start: u64,
    /// Number of blocks, not zero.
    pub count: u64,
    /// Reserved and never written: reads as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// First block of the file after it.
    pub fn logical_end(&self) -> u64 {
        self.logical + self.count
    }

    /// Its place on the device.
    pub fn run(&self) -> BlockRun {
        BlockRun { start: self.start, count: self.count }
    }

    fn continued_by(&self, next: &Self) -> bool {
        self.logical_end() == next.logical
            && self.start + self.count == next.start
            && self.unwritten == next.unwritten
    }

    /// The part of it within `from..to` (file blocks), if any.
    pub fn clip(&self, from: u64, to: u64) -> Option<Self> {
        let first = self.logical.max(from);
        let end = self.logical_end().min(to);
        (first < end).then(|| Self {
            logical: first,
            start: self.start + (first - self.logical),
            count: end - first,
            unwritten: self.unwritten,
        })
    }
}

/// The runs of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtentMap {
    extents: SmallVec<[Extent; 1]>,
    /// In all extents: asked for with each stat(2).
    blocks: u64,
}

impl ExtentMap {
    /// All extents in file order.
    pub fn iter(&self) -> impl Iterator<Item = &Extent> {
        self.extents.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// True for a file without space.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Blocks in all extents.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Index of the first extent that ends after `block`.
    fn index_after(&self, block: u64) -> usize {
        self.extents.partition_point(|extent| extent.logical_end() <= block)
    }

    /// The extents within `from..to`, clipped to it.
    pub fn range(&self, from: u64, to: u64) -> impl Iterator<Item = Extent> {
        self.extents[self.index_after(from)..]
            .iter()
            .take_while(move |extent| extent.logical < to)
            .filter_map(move |extent| extent.clip(from, to))
    }

    /// The extent that covers `block`.
    pub fn at(&self, block: u64) -> Option<Extent> {
        self.extents.get(self.index_after(block)).copied().filter(|extent| extent.logical <= block)
    }

    /// Device block after the last extent that ends at or before `block`: where a file that grows would go on.
    pub fn device_block_before(&self, block: u64) -> Option<u64> {
        let index = self.extents.partition_point(|extent| extent.logical < block);
        let extent = self.extents.get(index.checked_sub(1)?)?;
        Some(extent.start + extent.count.min(block - extent.logical))
    }

    /// Removes `from..to`; what it covered on the device goes to `freed`.
    pub fn remove(&mut self, from: u64, to: u64, freed: &mut Vec<BlockRun>) {
        if from >= to {
            return;
        }
        let first = self.index_after(from);
        let mut kept: SmallVec<[Extent; 2]> = SmallVec::new();
        let mut end = first;
        while let Some(extent) = self.extents.get(end).filter(|extent| extent.logical < to) {
            kept.extend(extent.clip(0, from));
            kept.extend(extent.clip(to, u64::MAX));
            freed.extend(extent.clip(from, to).map(|gone| gone.run()));
            end += 1;
        }
        if end > first {
            self.splice(first, end, &kept);
        }
    }

    /// Maps the blocks of `extent`, replacing what was there. What was mapped elsewhere on the device goes to `freed`, also if the file has
    /// it at another place: it has it once less. A change of state in place (same device blocks) frees nothing.
    pub fn insert(&mut self, extent: Extent, freed: &mut Vec<BlockRun>) {
        let mut first = self.index_after(extent.logical);
        let mut end = first;
        let (mut head, mut tail) = (None, None);
        while let Some(old) = self.extents.get(end).filter(|old| old.logical < extent.logical_end()) {
            head = head.or(old.clip(0, extent.logical));
            tail = old.clip(extent.logical_end(), u64::MAX);
            let gone = old.clip(extent.logical, extent.logical_end());
            // A part of the file that was there before goes on to be had once, and no more.
            let stays = |gone: &Extent| {
                extent.clip(gone.logical, gone.logical_end()).is_some_and(|new| new.start == gone.start)
            };
            freed.extend(gone.filter(|gone| !stays(gone)).map(|gone| gone.run()));
            end += 1;
        }
        let mut merged = extent;
        if head.is_none()
            && let Some(previous) = first.checked_sub(1).map(|previous| self.extents[previous])
            && previous.continued_by(&merged)
        {
            (first, head) = (first - 1, Some(previous));
        }
        if let Some(previous) = head.filter(|previous| previous.continued_by(&merged)) {
            (merged, head) = (Extent { count: previous.count + merged.count, ..previous }, None);
        }
        if tail.is_none()
            && let Some(next) = self.extents.get(end).filter(|next| merged.continued_by(next))
        {
            (end, tail) = (end + 1, Some(*next));
        }
        if let Some(next) = tail.filter(|next| merged.continued_by(next)) {
            (merged.count, tail) = (merged.count + next.count, None);
        }
        // At once: of very many extents one is replaced where it stands, and none is moved.
        let with: SmallVec<[Extent; 3]> = head.into_iter().chain([merged]).chain(tail).collect();
        self.splice(first, end, &with);
    }

    /// Replaces the extents `first..end` by `with`.
    fn splice(&mut self, first: usize, end: usize, with: &[Extent]) {
        let blocks = |extents: &[Extent]| extents.iter().map(|extent| extent.count).sum::<u64>();
        self.blocks = self.blocks + blocks(with) - blocks(&self.extents[first..end]);
        if end - first == with.len() {
            self.extents[first..end].copy_from_slice(with);
        } else if first == self.extents.len() {
            self.extents.extend_from_slice(with);
        } else {
            self.extents.drain(first..end);
            self.extents.insert_from_slice(first, with);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn flatten(map: &ExtentMap) -> BTreeMap<u64, (u64, bool)> {
        map.iter()
            .flat_map(|e| (0..e.count).map(move |i| (e.logical + i, (e.start + i, e.unwritten))))
            .collect()
    }

    fn check(map: &ExtentMap) {
        let all: Vec<_> = map.iter().copied().collect();
        assert_eq!(map.blocks(), all.iter().map(|extent| extent.count).sum::<u64>());
        for pair in all.windows(2) {
            assert!(pair[0].logical_end() <= pair[1].logical, "{all:?}");
            assert!(!pair[0].continued_by(&pair[1]), "{all:?}");
        }
        assert!(all.iter().all(|extent| extent.count > 0));
    }

    proptest! {
        /// Against one entry for each block. Device blocks are unique to a step, so freeing can be checked exactly.
        #[test]
        fn behaves_like_a_map_of_blocks(
            steps in prop::collection::vec((0u64..60, 1u64..20, any::<bool>(), any::<bool>()), 1..60)
        ) {
            let mut map = ExtentMap::default();
            let mut model: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
            let mut next_device = 1000;
            for (logical, count, insert, unwritten) in steps {
                let mut freed = Vec::new();
                let gone: Vec<u64> = (logical..logical + count).filter_map(|b| model.remove(&b)).map(|e| e.0).collect();
                if insert {
                    let extent = Extent { logical, start: next_device, count, unwritten };
                    for i in 0..count {
                        model.insert(logical + i, (next_device + i, unwritten));
                    }
                    next_device += if unwritten { count } else { count + 1 };
                    map.insert(extent, &mut freed);
                } else {
                    map.remove(logical, logical + count, &mut freed);
                }
                check(&map);
                prop_assert_eq!(flatten(&map), model.clone());
                let mut freed: Vec<u64> = freed.iter().flat_map(|r| r.start..r.start + r.count).collect();
                freed.sort_unstable();
                let mut gone = gone;
                gone.sort_unstable();
                prop_assert_eq!(freed, gone);
                for block in 0..90 {
                    prop_assert_eq!(map.at(block).map(|e| e.start + (block - e.logical)), model.get(&block).map(|e| e.0));
                }
            }
        }
    }

    #[test]
    fn writing_preallocated_space_in_place_frees_nothing() {
        let mut map = ExtentMap::default();
        let mut freed = Vec::new();
        map.insert(Extent { logical: 0, start: 100, count: 10, unwritten: true }, &mut freed);
        map.insert(Extent { logical: 3, start: 103, count: 2, unwritten: false }, &mut freed);
        assert!(freed.is_empty());
        assert_eq!(map.len(), 3);
        map.insert(Extent { logical: 0, start: 100, count: 3, unwritten: false }, &mut freed);
        map.insert(Extent { logical: 5, start: 105, count: 5, unwritten: false }, &mut freed);
        assert!(freed.is_empty());
        assert_eq!(map.len(), 1);
    }
}
