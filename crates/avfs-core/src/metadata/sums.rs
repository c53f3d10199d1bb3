//! What lies below each directory, and which directories have a limit: derived, so that it is exact after any crash.
//!
//! **For:** sums of space and files of everything below a directory, kept with each record; what is promised to files and in no record
//! yet; the limits. **Excludes:** refusing what a limit has no room for (`core/limits.rs`). **State:** a sum in each directory's index,
//! promises by inode, limits by directory.
//!
//! **Invariants:** an inode lies where the name is that it has had for longest; one without a name lies nowhere. A sum is that of all
//! inodes below, with their space on the device and what is promised to them. So a move of a tree costs a walk to the root, however much
//! lies in it.

use super::shards::Shards;
use crate::inode::Body;
use crate::limit::{Limit, is_limit};
use crate::record::Record;
use crate::usage::Usage;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use units::Ino;

/// Limits, and promises; the sums stand in the directories.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// What is promised to inodes.
    pub(super) promised: HashMap<Ino, u64>,
    /// Directories with a limit; where it cannot be read, why.
    pub(super) limits: BTreeMap<Ino, Result<Limit, String>>,
}

/// Where an inode lies, and what it takes there with all that lies below it.
pub(super) type Standing = Option<(Ino, Usage)>;

/// The directory in which an inode lies.
pub(super) fn home(shards: &Shards, ino: Ino) -> Option<Ino> {
    Some(shards.inode(ino)?.names.first()?.parent)
}

/// What lies in a directory changes: of it, and of all that hold it, of which there are no more than `most`. Directories of a damaged
/// volume may stand in one another.
pub(super) fn charge(
    shards: &mut Shards,
    most: u64,
    directory: Option<Ino>,
    usage: Usage,
    change: fn(Usage, Usage) -> Usage,
) {
    if usage == Usage::default() {
        return;
    }
    let mut next = directory;
    for _ in 0..most {
        let Some(inode) = next.and_then(|ino| shards.inode_mut(ino)) else { return };
        next = inode.names.first().map(|name| name.parent);
        if let Some(index) = inode.directory_mut() {
            index.below = change(index.below, usage);
        }
    }
}

impl Sums {
    /// What an inode takes, with all that lies below it.
    pub(super) fn usage_with(&self, shards: &Shards, ino: Ino) -> Usage {
        let Some(inode) = shards.inode(ino) else { return Usage::default() };
        let own = match &inode.body {
            Body::Directory(index) => index.below,
            Body::Regular(extents) => {
                let promised = self.promised.get(&ino).copied().unwrap_or(0);
                Usage { blocks: extents.blocks(), promised, inodes: 0 }
            }
            Body::Symlink(_) | Body::Node(_) => Usage::default(),
        };
        own.with(Usage::INODE)
    }

    /// Before a record is applied: what may be other afterwards.
    pub(super) fn standing_before(&self, shards: &Shards, record: &Record) -> Standing {
        match record {
            Record::Map { ino, .. }
            | Record::Unmap { ino, .. }
            | Record::AddName { ino, .. }
            | Record::RemoveName { ino, .. }
            | Record::Remove { ino } => self.standing(shards, *ino),
            _ => None,
        }
    }

    fn standing(&self, shards: &Shards, ino: Ino) -> Standing {
        Some((home(shards, ino)?, self.usage_with(shards, ino)))
    }

    /// A record was applied to one of `most` inodes or fewer: sums and limits follow it.
    pub(super) fn follow(&mut self, shards: &mut Shards, most: u64, record: &Record, before: Standing) {
        let ino = record.ino();
        match record {
            Record::Map { .. } | Record::Unmap { .. } => {
                let (Some((home, before)), Some((_, after))) = (before, self.standing(shards, ino)) else {
                    return;
                };
                charge(shards, most, Some(home), after.without(before), Usage::with);
                charge(shards, most, Some(home), before.without(after), Usage::without);
            }
            Record::AddName { .. } | Record::RemoveName { .. } | Record::Remove { .. } => {
                let after = self.standing(shards, ino);
                if before != after {
                    let (left, entered) = (before.unzip(), after.unzip());
                    charge(shards, most, left.0, left.1.unwrap_or_default(), Usage::without);
                    charge(shards, most, entered.0, entered.1.unwrap_or_default(), Usage::with);
                }
                if matches!(record, Record::Remove { .. }) {
                    self.limits.remove(&ino);
                    self.promised.remove(&ino);
                }
            }
            Record::SetXattr { name, value, .. } if is_limit(name) => {
                self.limits.insert(ino, Limit::read(value));
            }
            Record::RemoveXattr { name, .. } if is_limit(name) => {
                self.limits.remove(&ino);
            }
            _ => {}
        }
    }

    /// Builds sums and limits, after recovery. Directories that stand in one another have none.
    pub(super) fn derive(&mut self, shards: &mut Shards) {
        self.limits = shards
            .inodes()
            .filter_map(|(ino, inode)| {
                let all = inode.xattrs.iter().flat_map(|all| all.iter());
                let limit = all.clone().find(|xattr| is_limit(&xattr.name))?;
                Some((ino, Limit::read(&limit.value)))
            })
            .collect();
        // What lies in each directory itself; and how many directories lie in each whose sum is not known yet.
        let mut inside: HashMap<Ino, (Usage, u64)> = HashMap::new();
        for (ino, inode) in shards.inodes() {
            let Some(home) = inode.names.first().map(|name| name.parent) else { continue };
            let (usage, directories) = inside.entry(home).or_default();
            match &inode.body {
                Body::Directory(_) => *directories += 1,
                _ => *usage = usage.with(self.usage_with(shards, ino)),
            }
        }
        let has_no_directory = |ino: &Ino| inside.get(ino).is_none_or(|&(_, directories)| directories == 0);
        let directories =
            shards.inodes().filter(|(_, inode)| inode.directory().is_some()).map(|(ino, _)| ino);
        let mut known: Vec<Ino> = directories.filter(has_no_directory).collect();
        while let Some(ino) = known.pop() {
            let (usage, _) = inside.remove(&ino).unwrap_or_default();
            let Some(inode) = shards.inode_mut(ino) else { continue };
            if let Some(index) = inode.directory_mut() {
                index.below = usage;
            }
            let Some(home) = inode.names.first().map(|name| name.parent) else { continue };
            let Some((sum, directories)) = inside.get_mut(&home) else { continue };
            *sum = sum.with(usage).with(Usage::INODE);
            *directories -= 1;
            if *directories == 0 && shards.inode(home).is_some_and(|inode| inode.directory().is_some()) {
                known.push(home);
            }
        }
    }
}
