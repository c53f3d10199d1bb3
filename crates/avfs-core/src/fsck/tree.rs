//! Names and directories: every name stands in a directory, and every directory below the root.

use super::findings::Finding;
use super::patient::Patient;
use crate::core::MAX_XATTR_BYTES;
use crate::format::{MAX_NAME, SHARD_INODES};
use crate::inode::{Body, CoreAttributes, Name};
use crate::record::Record;
use crate::types::FileKind;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use units::Ino;

const LOST_AND_FOUND: &[u8] = b"lost+found";

impl Patient {
    fn make_directory(&mut self, ino: Ino, permissions: u16) {
        let attributes = CoreAttributes { permissions, ..CoreAttributes::default() };
        let generation = self.metadata.lsn() as u32;
        self.apply(Record::Create {
            ino,
            kind: FileKind::Directory,
            generation,
            attributes,
            target: Box::default(),
            device: 0,
        });
    }

    /// Takes a name away. An inode that has no other is lost.
    fn remove_name(&mut self, ino: Ino, name: Name) {
        self.apply(Record::RemoveName { ino, name });
        if self.metadata.get(ino).is_some_and(|inode| inode.names.is_empty()) {
            self.lost.insert(ino);
        }
    }

    /// Every name for which `wrong` has a finding.
    fn wrong_names(&self, wrong: impl Fn(Ino, &Name) -> Option<Finding>) -> Vec<(Finding, Ino, Name)> {
        let names = self.metadata.iter().flat_map(|(ino, inode)| inode.names.iter().map(move |n| (ino, n)));
        names.filter_map(|(ino, name)| Some((wrong(ino, name)?, ino, name.clone()))).collect()
    }

    /// Takes them away, all of an inode at once: there may be many.
    fn remove_names(&mut self, wrong: Vec<(Finding, Ino, Name)>) {
        for group in wrong.chunk_by(|one, next| one.1 == next.1) {
            let ino = group[0].1;
            let gone: HashSet<(Ino, &[u8])> =
                group.iter().map(|(_, _, name)| (name.parent, &*name.name)).collect();
            self.findings.extend(group.iter().map(|(finding, ..)| finding.clone()));
            let names = self.metadata.get(ino).into_iter().flat_map(|inode| inode.names.iter());
            let left: Vec<Name> =
                names.filter(|name| !gone.contains(&(name.parent, &*name.name))).cloned().collect();
            if left.is_empty() {
                self.lost.insert(ino);
            }
            self.metadata.replace_names(ino, left);
        }
    }

    pub(super) fn check_root(&mut self) {
        let root = self.metadata.get(Ino::ROOT).map(|root| (root.kind, root.names.to_vec()));
        match root {
            Some((FileKind::Directory, names)) => {
                for name in names {
                    self.findings.push(Finding::RootNamed);
                    self.apply(Record::RemoveName { ino: Ino::ROOT, name });
                }
            }
            Some(_) => {
                self.findings.push(Finding::RootNotDirectory);
                self.apply(Record::Remove { ino: Ino::ROOT });
                self.make_directory(Ino::ROOT, 0o755);
            }
            None => {
                self.findings.push(Finding::RootMissing);
                self.make_directory(Ino::ROOT, 0o755);
            }
        }
    }

    /// Directories that children name and that are gone are made again, so that what lay together still does.
    pub(super) fn check_parents(&mut self) {
        let impossible = self.wrong_names(|ino, name| {
            let parent = name.parent;
            (!self.could_exist(parent)).then_some(Finding::ParentImpossible { ino, parent })
        });
        self.remove_names(impossible);
        let mut missing: BTreeMap<Ino, usize> = BTreeMap::new();
        for (_, inode) in self.metadata.iter() {
            for name in &inode.names {
                if self.metadata.get(name.parent).is_none() {
                    *missing.entry(name.parent).or_default() += 1;
                }
            }
        }
        for (directory, names) in missing {
            self.findings.push(Finding::DirectoryMissing { directory, names });
            self.make_directory(directory, 0o700);
            self.lost.insert(directory);
        }
    }

    pub(super) fn check_names(&mut self) {
        let metadata = &self.metadata;
        let wrong = self.wrong_names(|ino, name| {
            let parent = name.parent;
            let is_directory = metadata.get(parent).is_some_and(|inode| inode.kind == FileKind::Directory);
            match &*name.name {
                _ if !is_directory => Some(Finding::ParentNotDirectory { ino, parent }),
                b"." | b".." => Some(Finding::NameInvalid { ino, name: name.name.clone() }),
                _ => None,
            }
        });
        self.remove_names(wrong);
        let mut directories = Vec::new();
        for (ino, inode) in self.metadata.iter() {
            if inode.kind == FileKind::Directory && inode.names.len() > 1 {
                directories.push((ino, inode.names.to_vec()));
            }
        }
        for (ino, names) in directories {
            self.findings.push(Finding::DirectoryNames { ino, names: names.len() });
            self.metadata.replace_names(ino, names.into_iter().take(1));
        }
    }

    pub(super) fn check_duplicates(&mut self) {
        let mut first: BTreeMap<(Ino, &[u8]), Ino> = BTreeMap::new();
        let mut repeated: BTreeSet<(Ino, Ino, &[u8])> = BTreeSet::new();
        let mut duplicate = Vec::new();
        for (ino, inode) in self.metadata.iter() {
            for name in &inode.names {
                match first.insert((name.parent, &name.name), ino) {
                    None => {}
                    Some(other) if other == ino => {
                        repeated.insert((ino, name.parent, &name.name));
                    }
                    Some(other) => {
                        first.insert((name.parent, &name.name), other);
                        duplicate.push((ino, other, name.clone()));
                    }
                }
            }
        }
        let owned = |(ino, parent, name): (Ino, Ino, &[u8])| (ino, Name { parent, name: name.into() });
        let repeated: Vec<(Ino, Name)> = repeated.into_iter().map(owned).collect();
        for group in repeated.chunk_by(|one, next| one.0 == next.0) {
            let ino = group[0].0;
            for (_, name) in group {
                self.findings.push(Finding::NameRepeated { ino, name: name.name.clone() });
            }
            let names = self.metadata.get(ino).map(|inode| inode.names.to_vec()).unwrap_or_default();
            let mut seen = HashSet::new();
            let once: Vec<Name> =
                names.iter().filter(|name| seen.insert((name.parent, &*name.name))).cloned().collect();
            self.metadata.replace_names(ino, once);
        }
        self.note_taken(duplicate.iter().map(|(.., name)| name.parent).collect());
        for group in duplicate.chunk_by(|one, next| one.0 == next.0) {
            let ino = group[0].0;
            // The same one twice goes at once.
            let mut renamed: HashMap<(Ino, &[u8]), Name> = HashMap::new();
            for (_, other, name) in group {
                let Entry::Vacant(entry) = renamed.entry((name.parent, &*name.name)) else { continue };
                self.findings.push(Finding::NameDuplicate { ino, other: *other, name: name.name.clone() });
                entry.insert(self.free_name(name.parent, &name.name, ino));
            }
            let names = self.metadata.get(ino).map(|inode| inode.names.to_vec()).unwrap_or_default();
            let mut seen = HashSet::new();
            let mut once = Vec::with_capacity(names.len());
            for name in names {
                if seen.insert((name.parent, name.name.clone())) {
                    once.push(renamed.get(&(name.parent, &*name.name)).cloned().unwrap_or(name));
                }
            }
            self.metadata.replace_names(ino, once);
        }
    }

    /// Every directory must lead to the root, name by name.
    pub(super) fn check_paths(&mut self) {
        let directories: Vec<Ino> = self
            .metadata
            .iter()
            .filter(|(_, inode)| inode.kind == FileKind::Directory)
            .map(|(ino, _)| ino)
            .collect();
        let parents: BTreeSet<Ino> =
            self.metadata.iter().flat_map(|(_, inode)| inode.names.iter().map(|name| name.parent)).collect();
        let mut good: BTreeSet<Ino> = BTreeSet::from([Ino::ROOT]);
        for directory in directories {
            let mut path = Vec::new();
            let mut on_path = BTreeSet::new();
            let mut at = directory;
            while !good.contains(&at) {
                if !on_path.insert(at) {
                    // The oldest of the circle is taken out: most likely the one the others were put into.
                    let start = path.iter().position(|&passed| passed == at).unwrap_or(0);
                    let ino = path[start..].iter().copied().min().unwrap_or(at);
                    self.findings.push(Finding::DirectoryCycle { ino });
                    let name = self.metadata.get(ino).and_then(|inode| inode.names.first().cloned());
                    if let Some(name) = name {
                        self.remove_name(ino, name);
                    }
                    break;
                }
                path.push(at);
                match self.metadata.get(at).and_then(|inode| inode.names.first()) {
                    Some(name) => at = name.parent,
                    None => {
                        if parents.contains(&at) && self.lost.insert(at) {
                            self.findings.push(Finding::DirectoryUnreachable { ino: at });
                        }
                        break;
                    }
                }
            }
            good.extend(path);
        }
    }

    pub(super) fn check_bodies(&mut self) {
        let mut damage: Vec<(Finding, Vec<Record>)> = Vec::new();
        for (ino, inode) in self.metadata.iter() {
            if let Body::Symlink(target) = &inode.body {
                let length = target.len() as u64;
                if target.is_empty() {
                    damage.push((Finding::SymlinkEmpty { ino }, vec![Record::Remove { ino }]));
                } else if inode.size != length {
                    let finding = Finding::SymlinkSize { ino, size: inode.size };
                    damage.push((finding, vec![Record::Size { ino, size: length }]));
                }
            }
            let bytes = inode.xattr_bytes();
            if bytes > MAX_XATTR_BYTES {
                let mut longest: Vec<_> = inode.xattrs.iter().flat_map(|all| all.iter()).collect();
                longest.sort_by_key(|xattr| std::cmp::Reverse(xattr.value.len()));
                let mut left = bytes;
                let removed = longest.into_iter().take_while(|xattr| {
                    let goes = left > MAX_XATTR_BYTES;
                    left -= xattr.name.len() + xattr.value.len();
                    goes
                });
                let records = removed.map(|xattr| Record::RemoveXattr { ino, name: xattr.name.clone() });
                damage.push((Finding::XattrsTooLarge { ino, bytes }, records.collect()));
            }
        }
        for (finding, records) in damage {
            self.findings.push(finding);
            for record in records {
                if let Record::Remove { ino } = &record {
                    self.lost.remove(ino);
                }
                self.apply(record);
            }
        }
    }

    /// Looks which names these directories have, all in one pass.
    fn note_taken(&mut self, directories: BTreeSet<Ino>) {
        let names = self.metadata.iter().flat_map(|(_, inode)| &inode.names);
        for name in names.filter(|name| directories.contains(&name.parent)) {
            self.taken.entry(name.parent).or_default().insert(name.name.clone());
        }
        for directory in directories {
            self.taken.entry(directory).or_default();
        }
    }

    /// Whether there may have been such an inode: one of a shard of which there is or was a part.
    fn could_exist(&self, ino: Ino) -> bool {
        let shard = ino.0 / SHARD_INODES;
        ino.0 != 0 && (self.metadata.shard(shard).is_some() || self.lost_shards.contains(&shard))
    }

    /// A name in a directory that nobody has there, like `wanted`.
    fn free_name(&mut self, parent: Ino, wanted: &[u8], ino: Ino) -> Name {
        if !self.taken.contains_key(&parent) {
            self.note_taken(BTreeSet::from([parent]));
        }
        let taken = self.taken.entry(parent).or_default();
        let mut name: Box<[u8]> = wanted.into();
        for attempt in 0u64.. {
            if !taken.contains(&name) {
                break;
            }
            let suffix = if attempt == 0 { format!("#{ino}") } else { format!("#{ino}.{attempt}") };
            let kept = wanted.len().min(MAX_NAME - suffix.len());
            name = [&wanted[..kept], suffix.as_bytes()].concat().into();
        }
        taken.insert(name.clone());
        Name { parent, name }
    }

    /// Gives every lost inode a name in lost+found.
    pub(super) fn adopt(&mut self) {
        if self.lost.is_empty() {
            return;
        }
        let directory = self.lost_and_found();
        for ino in std::mem::take(&mut self.lost) {
            let name = self.free_name(directory, format!("#{ino}").as_bytes(), ino);
            self.apply(Record::AddName { ino, name });
        }
    }

    fn lost_and_found(&mut self) -> Ino {
        let found = self.metadata.iter().find(|(_, inode)| {
            let named = inode.names.iter().any(|n| n.parent == Ino::ROOT && *n.name == *LOST_AND_FOUND);
            named && inode.kind == FileKind::Directory
        });
        if let Some((ino, _)) = found {
            return ino;
        }
        let ino = self.metadata.free_number();
        self.make_directory(ino, 0o700);
        let name = self.free_name(Ino::ROOT, LOST_AND_FOUND, ino);
        self.apply(Record::AddName { ino, name });
        ino
    }

    /// Derives the directories, and moves what finds no room in them.
    pub(super) fn check_index(&mut self) {
        let crowded = self.metadata.derive();
        if crowded.is_empty() {
            return;
        }
        for (ino, name) in crowded {
            self.findings.push(Finding::DirectoryCrowded { ino, parent: name.parent });
            self.remove_name(ino, name);
        }
        self.adopt();
        self.metadata.derive();
    }
}
