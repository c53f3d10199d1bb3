//! A set of numbers kept as disjoint ranges: valid bytes, dirty bytes, promised blocks.
//!
//! **Invariants:** ranges are sorted, not empty, and neither overlap nor touch.

use smallvec::SmallVec;
use std::ops::Range;

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    ranges: SmallVec<[(u64, u64); 1]>,
}

impl RangeSet {
    /// Index of the first range that ends after `at`.
    fn index_after(&self, at: u64) -> usize {
        self.ranges.partition_point(|&(_, end)| end <= at)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().map(|&(start, end)| start..end)
    }

    /// How many numbers are in it.
    pub(crate) fn total(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // Ranges that touch the new one join it, so the comparison includes equality.
        let first = self.ranges.partition_point(|&(_, end)| end < range.start);
        let last = self.ranges.partition_point(|&(start, _)| start <= range.end);
        if first == last {
            self.ranges.insert(first, (range.start, range.end));
        } else {
            let joined = (self.ranges[first].0.min(range.start), self.ranges[last - 1].1.max(range.end));
            self.ranges[first] = joined;
            self.ranges.drain(first + 1..last);
        }
    }

    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.index_after(range.start);
        let last = self.ranges.partition_point(|&(start, _)| start < range.end);
        if first >= last {
            return;
        }
        let head = (self.ranges[first].0, range.start);
        let tail = (range.end, self.ranges[last - 1].1);
        self.ranges.drain(first..last);
        for (start, end) in [tail, head] {
            if start < end {
                self.ranges.insert(first, (start, end));
            }
        }
    }

    /// End of the range that holds `at`.
    pub(crate) fn end_of(&self, at: u64) -> Option<u64> {
        self.range_of(at).map(|range| range.end)
    }

    /// The range that holds `at`.
    pub(crate) fn range_of(&self, at: u64) -> Option<Range<u64>> {
        let &(start, end) = self.ranges.get(self.index_after(at))?;
        (start <= at).then_some(start..end)
    }

    pub(crate) fn covers(&self, range: Range<u64>) -> bool {
        range.is_empty() || self.end_of(range.start).is_some_and(|end| end >= range.end)
    }

    pub(crate) fn overlaps(&self, range: Range<u64>) -> bool {
        self.ranges.get(self.index_after(range.start)).is_some_and(|&(start, _)| start < range.end)
    }

    /// What of `range` is in the set.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let (from, to) = (range.start, range.end);
        self.ranges[self.index_after(from)..]
            .iter()
            .take_while(move |&&(start, _)| start < to)
            .map(move |&(start, end)| start.max(from)..end.min(to))
    }

    /// How much of `range` is in the set.
    pub(crate) fn total_within(&self, range: Range<u64>) -> u64 {
        self.within(range).map(|held| held.end - held.start).sum()
    }

    /// What of `range` is not in the set.
    pub(crate) fn gaps(&self, range: Range<u64>) -> SmallVec<[Range<u64>; 2]> {
        let mut gaps = SmallVec::new();
        let mut at = range.start;
        for held in self.within(range.clone()) {
            if at < held.start {
                gaps.push(at..held.start);
            }
            at = held.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set(steps in prop::collection::vec((0u64..64, 0u64..20, any::<bool>()), 1..60)) {
            let mut ranges = RangeSet::default();
            let mut model = BTreeSet::new();
            for (start, length, insert) in steps {
                if insert {
                    ranges.insert(start..start + length);
                    model.extend(start..start + length);
                } else {
                    ranges.remove(start..start + length);
                    model.retain(|at| !(start..start + length).contains(at));
                }
                let all: Vec<_> = ranges.iter().collect();
                prop_assert!(all.windows(2).all(|pair| pair[0].end < pair[1].start), "{all:?}");
                prop_assert!(all.iter().cloned().flatten().eq(model.iter().copied()));
                prop_assert_eq!(ranges.total(), model.len() as u64);
                for from in (0..84).step_by(7) {
                    let window = from..from + 13;
                    let inside: Vec<u64> = ranges.within(window.clone()).flatten().collect();
                    let outside: Vec<u64> = ranges.gaps(window.clone()).into_iter().flatten().collect();
                    prop_assert!(window.clone().all(|at| inside.contains(&at) == model.contains(&at)));
                    prop_assert!(window.clone().all(|at| outside.contains(&at) != model.contains(&at)));
                    prop_assert_eq!(ranges.covers(window.clone()), outside.is_empty());
                    prop_assert_eq!(ranges.overlaps(window.clone()), !inside.is_empty());
                    prop_assert_eq!(ranges.end_of(from).is_some(), model.contains(&from));
                }
            }
        }
    }
}
