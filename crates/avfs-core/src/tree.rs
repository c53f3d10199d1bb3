//! The shape of the directories: every walk upwards ends at the root.
//!
//! **For:** finding, before anything is done to a volume, that its names are no tree. **Excludes:** making them one (`fsck`).

use crate::inode::Inode;
use crate::metadata::Metadata;
use crate::types::FileKind;
use std::collections::HashSet;
use units::Ino;

/// How names are no tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// Inode 1 is not there, or something else.
    #[error("there is no root directory")]
    NoRoot,
    /// It stands in another directory.
    #[error("the root directory has a name")]
    RootNamed,
    /// It stands in several places.
    #[error("directory {0} has more than one name")]
    Names(Ino),
    /// It holds a directory that holds it.
    #[error("directory {0} lies in itself")]
    Cycle(Ino),
    /// What it holds cannot be reached.
    #[error("directory {0} has entries but no name")]
    Unreachable(Ino),
}

/// Whether the directories are a tree. Their indexes are derived, so every name is in one.
pub(crate) fn check(metadata: &Metadata) -> Result<(), TreeError> {
    let root = metadata.get(Ino::ROOT).filter(|root| root.kind == FileKind::Directory);
    if !root.ok_or(TreeError::NoRoot)?.names.is_empty() {
        return Err(TreeError::RootNamed);
    }
    // Those from which every walk upwards is known to end.
    let mut good = HashSet::from([Ino::ROOT]);
    let mut path = Vec::new();
    for (ino, inode) in metadata.iter().filter(|(_, inode)| inode.kind == FileKind::Directory) {
        if inode.names.len() > 1 {
            return Err(TreeError::Names(ino));
        }
        let mut at = ino;
        while good.insert(at) {
            path.push(at);
            match metadata.get(at).and_then(|inode| inode.names.first()) {
                Some(name) => at = name.parent,
                None if metadata
                    .get(at)
                    .and_then(Inode::directory)
                    .is_some_and(|index| !index.is_empty()) =>
                {
                    return Err(TreeError::Unreachable(at));
                }
                None => break,
            }
        }
        // It ended at one that was known before, unless that is of this path.
        if path.contains(&at) && metadata.get(at).is_some_and(|inode| !inode.names.is_empty()) {
            return Err(TreeError::Cycle(at));
        }
        path.clear();
    }
    Ok(())
}
