//! Extents: on the volume, and nobody else's.

use super::findings::Finding;
use super::patient::Patient;
use crate::allocator::BlockRun;
use crate::extent::Extent;
use crate::record::Record;
use std::collections::BTreeMap;
use units::Ino;

/// Runs with an owner, by their first block. `None` owns metadata.
type Owners = BTreeMap<u64, (u64, Option<Ino>)>;

impl Patient {
    /// Whoever comes second, in the order of inode numbers and behind the metadata, gives up what it shares. Files may share with each
    /// other where the volume says so.
    pub(super) fn check_space(&mut self) {
        let mut owners: Owners = self.kept.iter().map(|run| (run.start, (run.end(), None))).collect();
        let mut damage: Vec<(Finding, Record)> = Vec::new();
        for (ino, inode) in self.metadata.iter() {
            for extent in inode.extents().into_iter().flat_map(|extents| extents.iter()) {
                for (run, owner) in claim(&mut owners, ino, extent.run(), self.geometry.blocks()) {
                    if self.may_share && matches!(owner, Claim::Taken(Some(_))) {
                        continue;
                    }
                    let finding = match owner {
                        Claim::Outside => Finding::ExtentOutside { ino, run },
                        Claim::Taken(owner) => Finding::ExtentOverlap { ino, run, owner },
                    };
                    let from = logical(extent, run.start);
                    damage.push((finding, Record::Unmap { ino, from, to: from + run.count }));
                }
            }
        }
        for (finding, record) in damage {
            self.findings.push(finding);
            self.apply(record);
        }
    }
}

enum Claim {
    Outside,
    Taken(Option<Ino>),
}

fn logical(extent: &Extent, block: u64) -> u64 {
    extent.logical + (block - extent.start)
}

/// Gives `ino` what is free of `run`; returns the rest, and why.
fn claim(owners: &mut Owners, ino: Ino, run: BlockRun, blocks: u64) -> Vec<(BlockRun, Claim)> {
    let mut refused = Vec::new();
    let end = run.end().min(blocks);
    let mut at = run.start;
    while at < end {
        let before = owners.range(..=at).next_back().filter(|(_, (owned_end, _))| *owned_end > at);
        if let Some((_, &(owned_end, owner))) = before {
            let stop = owned_end.min(end);
            refused.push((BlockRun { start: at, count: stop - at }, Claim::Taken(owner)));
            at = stop;
            continue;
        }
        let stop = owners.range(at..end).next().map_or(end, |(&next, _)| next);
        owners.insert(at, (stop, Some(ino)));
        at = stop;
    }
    if run.end() > blocks {
        let start = run.start.max(blocks);
        refused.push((BlockRun { start, count: run.end() - start }, Claim::Outside));
    }
    refused
}
