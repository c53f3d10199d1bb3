//! Limits of directories: what has no room below one is refused.
//!
//! **For:** refusing before anything has changed. **Excludes:** the sums, which follow the records (`metadata/sums.rs`); showing what is used
//! (`core/capacity.rs`). **State:** none of its own. **Invariants:** what was accepted is never refused later: space is counted
//! from the moment it is promised. What makes nothing larger is never refused.

use super::state::Core;
use crate::error::{Error, Result};
use crate::inode::Name;
use crate::limit::Limit;
use crate::types::*;
use crate::usage::Usage;
use smallvec::SmallVec;
use units::Ino;

/// Something comes to lie below a directory, or leaves one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    usage: Usage,
    from: Option<Ino>,
    to: Option<Ino>,
}

impl Core {
    /// Refuses what would grow beyond a limit, by all moves together. What lies deeper in both places is no change.
    pub(super) fn check_moves(&self, moves: &[Move]) -> Result<()> {
        if !self.metadata.has_limits() {
            return Ok(());
        }
        struct Change {
            ino: Ino,
            limit: Limit,
            enters: Usage,
            leaves: Usage,
        }
        let mut changes: SmallVec<[Change; 4]> = SmallVec::new();
        let mut add = |directory: Option<Ino>, usage: Usage, is_entering: bool| {
            for (ino, limit) in directory.into_iter().flat_map(|ino| self.metadata.limits_above(ino)) {
                let known = changes.iter().position(|change| change.ino == ino);
                let index = known.unwrap_or_else(|| {
                    let none = Usage::default();
                    changes.push(Change { ino, limit, enters: none, leaves: none });
                    changes.len() - 1
                });
                let sum = if is_entering { &mut changes[index].enters } else { &mut changes[index].leaves };
                *sum = sum.with(usage);
            }
        };
        for one in moves {
            add(one.to, one.usage, true);
            add(one.from, one.usage, false);
        }
        let is_refused = |change: &Change| {
            let used = self.metadata.usage_below(change.ino);
            let is_over = |enters: u64, leaves: u64, used: u64, limit: Option<u64>| {
                enters > leaves && limit.is_some_and(|limit| used + (enters - leaves) > limit)
            };
            let Change { limit, enters, leaves, .. } = change;
            is_over(enters.space(), leaves.space(), used.space(), limit.blocks())
                || is_over(enters.inodes, leaves.inodes, used.inodes, limit.files)
        };
        if changes.iter().any(is_refused) { Err(Error::OverLimit) } else { Ok(()) }
    }

    /// Refuses so many blocks more for a file.
    pub(super) fn check_growth(&self, ino: Ino, blocks: u64) -> Result<()> {
        let usage = Usage { blocks, ..Usage::default() };
        self.check_moves(&[Move { usage, from: None, to: self.home_but(ino, None) }])
    }

    /// Refuses one inode more in a directory.
    pub(super) fn check_new_inode(&self, directory: Ino) -> Result<()> {
        self.check_moves(&[Self::new_inode_in(directory)])
    }

    pub(super) fn new_inode_in(directory: Ino) -> Move {
        Move { usage: Usage::INODE, from: None, to: Some(directory) }
    }

    /// An inode loses a name, gains one in a directory, or both. It lies where the name is that it has had for longest.
    pub(super) fn move_of(&self, ino: Ino, lost: Option<&Name>, gained: Option<Ino>) -> Move {
        let (from, left) = (self.home_but(ino, None), self.home_but(ino, lost));
        Move { usage: self.metadata.usage_with(ino), from, to: left.or(gained) }
    }

    /// Where an inode lies without one of its names.
    fn home_but(&self, ino: Ino, lost: Option<&Name>) -> Option<Ino> {
        let names = self.metadata.get(ino)?.names.iter();
        names.filter(|&name| Some(name) != lost).map(|name| name.parent).next()
    }

    /// True where a limit holds for both inodes: what one gives back is room for the other.
    pub(super) fn share_a_limit(&self, ino: Ino, other: Ino) -> bool {
        let mut others = self.metadata.limits_above(other).map(|(at, _)| at);
        others.any(|other| self.metadata.limits_above(ino).any(|(at, _)| at == other))
    }

    /// Whether an attribute can be a limit of this inode.
    ///
    /// # Errors
    /// One line: why not.
    pub(super) fn check_limit(&self, ino: Ino, value: &[u8]) -> core::result::Result<(), String> {
        let is_directory = self.metadata.get(ino).is_some_and(|inode| inode.kind == FileKind::Directory);
        if !is_directory {
            return Err("only a directory has a limit".to_owned());
        }
        Limit::read(value).map(|_| ())
    }
}
