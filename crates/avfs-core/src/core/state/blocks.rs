//! The blocks of the cache by their names, and those of a file by where they lie.
//!
//! **For:** finding the block of a byte. **Excludes:** what is in them. **State:** one [`BlockIndex`] for each file in memory.

use crate::format::BLOCK;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;

/// So many blocks are kept in a list. More are written at random, and one more in the middle of a long list moves half of it.
/// Representation.
const LISTED: usize = 64;

/// Names a block; not used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) struct BlockId {
    pub(in crate::core) slot: u32,
    /// How many blocks had the slot before.
    pub(in crate::core) turn: u32,
}

/// A file's blocks by their first byte. A small file has one, which costs no memory of its own.
#[derive(Debug)]
pub(in crate::core) enum BlockIndex {
    List(SmallVec<[(u64, BlockId); 1]>),
    Tree(BTreeMap<u64, BlockId>),
}

impl Default for BlockIndex {
    fn default() -> Self {
        Self::List(SmallVec::new())
    }
}

impl BlockIndex {
    fn list(&self) -> &[(u64, BlockId)] {
        match self {
            Self::List(list) => list,
            Self::Tree(_) => &[],
        }
    }

    fn tree(&self) -> Option<&BTreeMap<u64, BlockId>> {
        match self {
            Self::List(_) => None,
            Self::Tree(tree) => Some(tree),
        }
    }

    fn index(&self, start: u64) -> usize {
        self.list().partition_point(|&(held, _)| held < start)
    }

    pub(in crate::core) fn is_empty(&self) -> bool {
        self.list().is_empty() && self.tree().is_none_or(BTreeMap::is_empty)
    }

    pub(in crate::core) fn get(&self, start: u64) -> Option<BlockId> {
        match self {
            Self::List(list) => {
                list.get(self.index(start)).filter(|&&(held, _)| held == start).map(|&(_, id)| id)
            }
            Self::Tree(tree) => tree.get(&start).copied(),
        }
    }

    pub(in crate::core) fn contains(&self, start: u64) -> bool {
        self.get(start).is_some()
    }

    pub(in crate::core) fn insert(&mut self, start: u64, id: BlockId) {
        let index = self.index(start);
        match self {
            Self::List(list) if list.len() < LISTED => list.insert(index, (start, id)),
            Self::List(list) => {
                let mut tree: BTreeMap<u64, BlockId> = list.iter().copied().collect();
                tree.insert(start, id);
                *self = Self::Tree(tree);
            }
            Self::Tree(tree) => _ = tree.insert(start, id),
        }
    }

    pub(in crate::core) fn remove(&mut self, start: u64) {
        let index = self.index(start);
        match self {
            Self::List(list) => {
                if list.get(index).is_some_and(|&(held, _)| held == start) {
                    list.remove(index);
                }
            }
            Self::Tree(tree) => {
                tree.remove(&start);
                if tree.is_empty() {
                    *self = Self::default();
                }
            }
        }
    }

    /// Takes out the blocks that begin at `from` or behind it.
    pub(in crate::core) fn split_off(&mut self, from: u64) -> Self {
        let index = self.index(from);
        match self {
            Self::List(list) => Self::List(list.drain(index..).collect()),
            Self::Tree(tree) => Self::Tree(tree.split_off(&from)),
        }
    }

    /// The last block that begins at `at` or before.
    pub(in crate::core) fn last_until(&self, at: u64) -> Option<(u64, BlockId)> {
        match self {
            Self::List(list) => {
                let after = list.partition_point(|&(held, _)| held <= at);
                list.get(after.checked_sub(1)?).copied()
            }
            Self::Tree(tree) => tree.range(..=at).next_back().map(|(&start, &id)| (start, id)),
        }
    }

    /// The blocks that begin in `range`, in order.
    pub(in crate::core) fn range(&self, range: Range<u64>) -> impl Iterator<Item = (u64, BlockId)> {
        let end = self.index(range.end).max(self.index(range.start));
        let listed = self.list()[self.index(range.start)..end].iter().copied();
        let range = range.start..range.end.max(range.start);
        let others = self.tree().into_iter().flat_map(move |tree| tree.range(range.clone()));
        listed.chain(others.map(|(&start, &id)| (start, id)))
    }

    pub(in crate::core) fn iter(&self) -> impl Iterator<Item = (u64, BlockId)> {
        let others = self.tree().into_iter().flatten();
        self.list().iter().copied().chain(others.map(|(&start, &id)| (start, id)))
    }

    pub(in crate::core) fn ids(&self) -> impl Iterator<Item = BlockId> {
        self.iter().map(|(_, id)| id)
    }
}

/// The begin of the page of a byte.
pub(in crate::core) fn page_floor(at: u64) -> u64 {
    at / BLOCK * BLOCK
}

/// The end of the page before a byte, or where it is.
pub(in crate::core) fn page_ceil(at: u64) -> u64 {
    at.next_multiple_of(BLOCK)
}
