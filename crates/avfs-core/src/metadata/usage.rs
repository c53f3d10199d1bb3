//! What lies below directories, which of them have a limit, and what is promised to files: asked and told from outside of the metadata.
//!
//! **For:** refusing and showing; and promises, which stand in no record. **Excludes:** keeping the sums (`sums.rs`). **State:** none
//! of its own.

use super::Metadata;
use super::sums::{charge, home};
use crate::inode::Inode;
use crate::limit::Limit;
use crate::usage::Usage;
use std::collections::BTreeMap;
use units::Ino;

impl Metadata {
    /// An inode, the directory that holds it, and so on to the root, or to where a name is missing. Ends even where
    /// directories of a damaged volume stand in one another.
    pub(crate) fn line_to_root(&self, ino: Ino) -> impl Iterator<Item = (Ino, &Inode)> {
        let at = |ino| Some((ino, self.get(ino)?));
        let parent = move |&(_, inode): &(Ino, &Inode)| at(inode.names.first()?.parent);
        let longest = usize::try_from(self.inodes).unwrap_or(usize::MAX);
        std::iter::successors(at(ino), parent).take(longest)
    }

    /// What an inode takes, with all that lies below it.
    pub(crate) fn usage_with(&self, ino: Ino) -> Usage {
        self.sums.usage_with(&self.shards, ino)
    }

    /// What lies below a directory; nothing lies below anything else.
    pub fn usage_below(&self, directory: Ino) -> Usage {
        self.get(directory).and_then(Inode::directory).map_or_else(Usage::default, |index| index.below)
    }

    /// Directories with a limit, and the limit; where it cannot be read, why.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (Ino, &Result<Limit, String>)> {
        self.sums.limits.iter().map(|(&ino, limit)| (ino, limit))
    }

    /// True where a directory has a limit.
    pub(crate) fn has_limits(&self) -> bool {
        !self.sums.limits.is_empty()
    }

    /// The limit of a directory, if it has one; where it cannot be read, why.
    pub(crate) fn kept_limit(&self, directory: Ino) -> Option<&Result<Limit, String>> {
        self.sums.limits.get(&directory)
    }

    /// The limit of a directory, if it has one that can be read.
    pub(crate) fn limit(&self, directory: Ino) -> Option<Limit> {
        self.kept_limit(directory)?.as_ref().ok().copied()
    }

    /// The directories with a limit among an inode and those that hold it, the nearest first.
    pub(crate) fn limits_above(&self, ino: Ino) -> impl Iterator<Item = (Ino, Limit)> {
        let first = self.has_limits().then_some(ino);
        first
            .into_iter()
            .flat_map(|ino| self.line_to_root(ino))
            .filter_map(|(at, _)| Some((at, self.limit(at)?)))
    }

    /// What is promised to inodes.
    pub(crate) fn promises(&self) -> impl Iterator<Item = (Ino, u64)> {
        self.sums.promised.iter().map(|(&ino, &blocks)| (ino, blocks))
    }

    /// So many blocks more are promised to a file's bytes in memory.
    pub(crate) fn promise(&mut self, ino: Ino, blocks: u64) {
        if blocks > 0 {
            *self.sums.promised.entry(ino).or_default() += blocks;
            self.charge_promise(ino, blocks, Usage::with);
        }
    }

    /// So many of these are not promised any more: they are on the device, or not needed.
    pub(crate) fn unpromise(&mut self, ino: Ino, blocks: u64) {
        let Some(promised) = self.sums.promised.get_mut(&ino) else { return };
        let blocks = blocks.min(*promised);
        *promised -= blocks;
        if *promised == 0 {
            self.sums.promised.remove(&ino);
        }
        self.charge_promise(ino, blocks, Usage::without);
    }

    fn charge_promise(&mut self, ino: Ino, blocks: u64, change: fn(Usage, Usage) -> Usage) {
        let (home, promised) = (home(&self.shards, ino), Usage { promised: blocks, ..Usage::default() });
        charge(&mut self.shards, self.inodes, home, promised, change);
    }

    /// Nothing is promised to a file any more.
    pub(crate) fn unpromise_all(&mut self, ino: Ino) {
        self.unpromise(ino, u64::MAX);
    }

    /// The sums by a walk from each inode to the root, as the records have it: what [`usage_below`](Self::usage_below) has to be, without
    /// promises. Costs time in proportion to the volume; for tests.
    pub(crate) fn walked_usage(&self) -> BTreeMap<Ino, Usage> {
        let mut sums: BTreeMap<Ino, Usage> = BTreeMap::new();
        for (ino, inode) in self.iter() {
            let blocks = inode.extents().map_or(0, |extents| extents.iter().map(|extent| extent.count).sum());
            let own = Usage { blocks, promised: 0, inodes: 1 };
            for (above, _) in self.line_to_root(ino).skip(1) {
                let sum = sums.entry(above).or_default();
                *sum = sum.with(own);
            }
        }
        sums
    }
}
