//! Metadata under repair.

use super::findings::Finding;
use super::load::{file_runs, joined};
use crate::allocator::BlockRun;
use crate::format::Geometry;
use crate::metadata::Metadata;
use crate::record::Record;
use std::collections::{BTreeMap, BTreeSet};
use units::Ino;

/// Metadata under repair: each finding is put right as it is made.
pub(super) struct Patient {
    pub(super) metadata: Metadata,
    pub(super) geometry: Geometry,
    pub(super) findings: Vec<Finding>,
    /// Whether extents may share blocks.
    pub(super) may_share: bool,
    /// What metadata that was found whole keeps for itself, joined.
    pub(super) kept: Vec<BlockRun>,
    /// What must stay as it is until a new superblock is written: metadata, and files as they were found.
    pub(super) occupied: Vec<BlockRun>,
    /// Shards of which nothing could be read.
    pub(super) lost_shards: BTreeSet<u64>,
    /// Inodes that have lost their last name and are to get one in lost+found.
    pub(super) lost: BTreeSet<Ino>,
    /// Names of directories that were looked at because one more had to be found.
    pub(super) taken: BTreeMap<Ino, BTreeSet<Box<[u8]>>>,
}

impl Patient {
    pub(super) fn new(
        metadata: Metadata,
        geometry: Geometry,
        may_share: bool,
        whole: &[BlockRun],
        places: Vec<BlockRun>,
        lost_shards: BTreeSet<u64>,
    ) -> Self {
        let mut occupied = places;
        occupied.extend(file_runs(&metadata, &geometry));
        Self {
            metadata,
            geometry,
            may_share,
            kept: joined(whole.to_vec(), &geometry),
            occupied,
            lost_shards,
            findings: Vec::new(),
            lost: BTreeSet::new(),
            taken: BTreeMap::new(),
        }
    }

    /// Changes the metadata as the filesystem itself would. The record is about an inode that is there.
    pub(super) fn apply(&mut self, record: Record) {
        let applied = self.metadata.apply(&record, &mut Vec::new());
        debug_assert!(applied.is_ok(), "{record:?}: {applied:?}");
    }
}
