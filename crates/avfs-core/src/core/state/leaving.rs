//! Shared space that an owner has given up, by a record that is not durable yet: after a crash that owner would have it again.

use crate::allocator::{Allocator, BlockRun, Shares};
use crate::ranges::RangeSet;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(in crate::core) struct Leaving {
    /// By the record that gives it up, in order.
    by_record: VecDeque<(u64, BlockRun)>,
    /// How many are giving up each block.
    runs: Shares,
}

impl Leaving {
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.by_record.is_empty()
    }

    /// An owner of these blocks gives them up with a record. Returns what no other one keeps.
    pub(in crate::core) fn give_up(
        &mut self,
        allocator: &mut Allocator,
        lsn: u64,
        run: BlockRun,
    ) -> Vec<BlockRun> {
        let last = allocator.give_up(run);
        let mut kept = RangeSet::default();
        kept.insert(run.start..run.end());
        last.iter().for_each(|last| kept.remove(last.start..last.end()));
        for kept in kept.iter() {
            let kept = BlockRun { start: kept.start, count: kept.end - kept.start };
            self.by_record.push_back((lsn, kept));
            self.runs.add(kept);
        }
        last
    }

    /// True when there are blocks of a record that is durable by now.
    pub(in crate::core) fn is_due(&self, durable: u64) -> bool {
        self.by_record.front().is_some_and(|&(lsn, _)| lsn <= durable)
    }

    /// Forgets the first blocks.
    pub(in crate::core) fn forget_first(&mut self) {
        if let Some((_, run)) = self.by_record.pop_front() {
            self.runs.remove(run);
        }
    }

    pub(in crate::core) fn runs(&self) -> &Shares {
        &self.runs
    }

    /// By record, for the audit.
    pub(in crate::core) fn all(&self) -> impl Iterator<Item = BlockRun> {
        self.by_record.iter().map(|&(_, run)| run)
    }
}
