//! Blocks that have more than one owner.
//!
//! **For:** how often a block is had, beyond the first time. **Excludes:** which inodes those are: that stands in their extents. **State:** one
//! entry for each run of blocks that are had equally often; none for what has one owner. **Invariants:** runs are not empty, do not overlap,
//! and neighbours differ.

use super::run::BlockRun;
use std::collections::BTreeMap;

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    /// By the first block: the block behind the last, and owners beyond the first.
    runs: BTreeMap<u64, (u64, u32)>,
}

impl Shares {
    /// True when no block has more than one owner.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The parts of a run that have more than one owner, and how many more.
    pub(crate) fn within(&self, run: BlockRun) -> impl Iterator<Item = (BlockRun, u32)> {
        let before = self.runs.range(..run.start).next_back().map_or(run.start, |(&start, _)| start);
        self.runs.range(before..run.end().max(before)).filter_map(move |(&start, &(end, more))| {
            let (start, end) = (start.max(run.start), end.min(run.end()));
            (start < end).then(|| (BlockRun { start, count: end - start }, more))
        })
    }

    /// One owner more.
    pub(crate) fn add(&mut self, run: BlockRun) {
        self.cut(run);
        let mut at = run.start;
        while at < run.end() {
            let next = self.runs.range_mut(at..run.end()).next();
            match next {
                Some((&start, (end, more))) if start == at => {
                    *more += 1;
                    at = *end;
                }
                next => {
                    let until = next.map_or(run.end(), |(&start, _)| start);
                    self.runs.insert(at, (until, 1));
                    at = until;
                }
            }
        }
        self.join(run);
    }

    /// One owner less. Returns the parts that have none left.
    pub(crate) fn remove(&mut self, run: BlockRun) -> Vec<BlockRun> {
        let mut last = Vec::new();
        self.cut(run);
        let mut at = run.start;
        while at < run.end() {
            let next = self.runs.range(at..run.end()).next().map(|(&start, &(end, more))| (start, end, more));
            match next {
                Some((start, end, more)) if start == at => {
                    if more == 1 {
                        self.runs.remove(&start);
                    } else {
                        self.runs.insert(start, (end, more - 1));
                    }
                    at = end;
                }
                next => {
                    let until = next.map_or(run.end(), |(start, ..)| start);
                    last.push(BlockRun { start: at, count: until - at });
                    at = until;
                }
            }
        }
        self.join(run);
        last
    }

    /// All runs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockRun, u32)> {
        self.runs.iter().map(|(&start, &(end, more))| (BlockRun { start, count: end - start }, more))
    }

    /// Cuts what crosses an end of `run`.
    fn cut(&mut self, run: BlockRun) {
        for at in [run.start, run.end()] {
            if let Some((_, (end, more))) = self.runs.range_mut(..at).next_back()
                && *end > at
            {
                let behind = (std::mem::replace(end, at), *more);
                self.runs.insert(at, behind);
            }
        }
    }

    /// Makes one of neighbours in and beside `run` that do not differ.
    fn join(&mut self, run: BlockRun) {
        let from = self.runs.range(..run.start).next_back().map_or(run.start, |(&start, _)| start);
        let mut last: Option<(u64, u64, u32)> = None;
        let all: Vec<(u64, u64, u32)> =
            self.runs.range(from..=run.end()).map(|(&start, &(end, more))| (start, end, more)).collect();
        for (start, end, more) in all {
            match &mut last {
                Some((first, last_end, last_more)) if *last_end == start && *last_more == more => {
                    self.runs.remove(&start);
                    self.runs.insert(*first, (end, more));
                    *last_end = end;
                }
                _ => last = Some((start, end, more)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against one count for each block.
        #[test]
        fn behave_like_one_count_for_each_block(
            steps in prop::collection::vec((0u64..60, 1u64..20, any::<bool>()), 1..80)
        ) {
            let mut shares = Shares::default();
            let mut model = [0u32; 100];
            for (start, count, more) in steps {
                let run = BlockRun { start, count };
                if more {
                    shares.add(run);
                    model[start as usize..run.end() as usize].iter_mut().for_each(|more| *more += 1);
                } else {
                    let last: Vec<u64> = shares.remove(run).iter().flat_map(|run| run.start..run.end()).collect();
                    let expected: Vec<u64> = (start..run.end()).filter(|&at| model[at as usize] == 0).collect();
                    prop_assert_eq!(last, expected);
                    for more in &mut model[start as usize..run.end() as usize] {
                        *more = more.saturating_sub(1);
                    }
                }
                let runs: Vec<_> = shares.iter().collect();
                for pair in runs.windows(2) {
                    prop_assert!(pair[0].0.end() < pair[1].0.start
                        || pair[0].0.end() == pair[1].0.start && pair[0].1 != pair[1].1);
                }
                for from in 0..90 {
                    let mut found = [0u32; 10];
                    for (part, more) in shares.within(BlockRun { start: from, count: 10 }) {
                        found[(part.start - from) as usize..(part.end() - from) as usize].fill(more);
                    }
                    prop_assert_eq!(&found[..], &model[from as usize..from as usize + 10]);
                }
            }
        }
    }
}
