//! What the names should be.

use crate::contents::Contents;
use avfs_core::Error;
use avfs_core::limit::Limit;
use avfs_core::types::{RenameFlags, XattrFlags};
use std::collections::{BTreeMap, BTreeSet};
use units::{Ino, Timestamp};

/// A moment between these two.
pub(crate) type Moment = (Timestamp, Timestamp);

#[derive(Clone, Debug)]
pub(crate) enum Body {
    File(Contents),
    Directory(BTreeMap<Vec<u8>, Ino>),
    Symlink(Vec<u8>),
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) body: Body,
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Moment,
    pub(crate) ctime: Moment,
    pub(crate) names: BTreeSet<(Ino, Vec<u8>)>,
    /// The directories of the names, that of the oldest name first.
    homes: Vec<(Ino, Vec<u8>)>,
    pub(crate) limit: Option<Limit>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) lookups: u64,
    pub(crate) opens: u64,
}

/// All nodes by number; those without names live while somebody uses them.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) nodes: BTreeMap<Ino, Node>,
}

type Result<T> = core::result::Result<T, Error>;

impl Tree {
    pub(crate) fn new() -> Self {
        let mut tree = Self { nodes: BTreeMap::new() };
        let long_ago = Timestamp { seconds: 0, nanoseconds: 0 };
        tree.insert(Ino::ROOT, Body::Directory(BTreeMap::new()), 0o755, (long_ago, long_ago));
        tree
    }

    fn insert(&mut self, ino: Ino, body: Body, permissions: u16, moment: Moment) {
        let node = Node {
            body,
            permissions,
            uid: 0,
            gid: 0,
            mtime: moment,
            ctime: moment,
            names: BTreeSet::new(),
            homes: Vec::new(),
            limit: None,
            xattrs: BTreeMap::new(),
            lookups: 0,
            opens: 0,
        };
        assert!(self.nodes.insert(ino, node).is_none(), "inode {ino} was given out twice");
    }

    pub(crate) fn node(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("a node that is in use")
    }

    pub(crate) fn file(&mut self, ino: Ino) -> &mut Contents {
        match &mut self.node(ino).body {
            Body::File(contents) => contents,
            _ => panic!("{ino} is no file"),
        }
    }

    pub(crate) fn is_file(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| matches!(node.body, Body::File(_)))
    }

    pub(crate) fn entries(&self, ino: Ino) -> Result<&BTreeMap<Vec<u8>, Ino>> {
        match &self.nodes.get(&ino).ok_or(Error::Stale)?.body {
            Body::Directory(entries) => Ok(entries),
            _ => Err(Error::NotDirectory),
        }
    }

    pub(crate) fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Ino> {
        self.entries(parent)?.get(name).copied().ok_or(Error::NotFound)
    }

    fn is_removed(&self, directory: Ino) -> bool {
        directory != Ino::ROOT && self.nodes[&directory].names.is_empty()
    }

    /// Whether something can be named so.
    pub(crate) fn may_add(&self, parent: Ino, name: &[u8]) -> Result<()> {
        match self.lookup(parent, name) {
            Ok(_) => Err(Error::Exists),
            Err(Error::NotFound) if self.is_removed(parent) => Err(Error::NotFound),
            Err(Error::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn touch(&mut self, ino: Ino, moment: Moment) {
        let node = self.node(ino);
        node.mtime = moment;
        node.ctime = moment;
    }

    fn enter(&mut self, parent: Ino, name: &[u8], ino: Ino) {
        if let Body::Directory(entries) = &mut self.node(parent).body {
            entries.insert(name.to_vec(), ino);
        }
        self.node(ino).names.insert((parent, name.to_vec()));
        self.node(ino).homes.push((parent, name.to_vec()));
    }

    fn leave(&mut self, parent: Ino, name: &[u8]) -> Ino {
        let Body::Directory(entries) = &mut self.node(parent).body else { panic!("no directory") };
        let ino = entries.remove(name).expect("a name that is there");
        self.node(ino).names.remove(&(parent, name.to_vec()));
        self.node(ino).homes.retain(|(home, own)| (*home, &own[..]) != (parent, name));
        ino
    }

    /// Forgets a node that has no name and no user.
    pub(crate) fn reap(&mut self, ino: Ino) {
        let unused = |node: &Node| node.names.is_empty() && node.lookups == 0 && node.opens == 0;
        if ino != Ino::ROOT && self.nodes.get(&ino).is_some_and(unused) {
            self.nodes.remove(&ino);
        }
    }

    pub(crate) fn make(
        &mut self,
        parent: Ino,
        name: &[u8],
        ino: Ino,
        body: Body,
        permissions: u16,
        moment: Moment,
    ) {
        self.insert(ino, body, permissions, moment);
        let (inherited, gid) = (self.node(parent).permissions & 0o2000, self.node(parent).gid);
        let node = self.node(ino);
        if inherited != 0 {
            node.gid = gid;
            if matches!(node.body, Body::Directory(_)) {
                node.permissions |= inherited;
            }
        }
        self.enter(parent, name, ino);
        self.touch(parent, moment);
        self.node(ino).lookups += 1;
    }

    pub(crate) fn link(&mut self, ino: Ino, parent: Ino, name: &[u8]) -> Result<()> {
        let node = self.nodes.get(&ino).ok_or(Error::Stale)?;
        if matches!(node.body, Body::Directory(_)) {
            return Err(Error::NotPermitted);
        }
        if node.names.is_empty() {
            return Err(Error::NotFound);
        }
        self.may_add(parent, name)
    }

    pub(crate) fn do_link(&mut self, ino: Ino, parent: Ino, name: &[u8], moment: Moment) {
        self.enter(parent, name, ino);
        let node = self.node(ino);
        node.lookups += 1;
        node.ctime = moment;
        self.touch(parent, moment);
    }

    /// What unlink(2) or rmdir(2) should say.
    pub(crate) fn may_remove(&self, parent: Ino, name: &[u8], directory: bool) -> Result<()> {
        let ino = self.lookup(parent, name)?;
        match (&self.nodes[&ino].body, directory) {
            (Body::Directory(_), false) => Err(Error::IsDirectory),
            (Body::Directory(entries), true) if !entries.is_empty() => Err(Error::NotEmpty),
            (Body::Directory(_), true) => Ok(()),
            (_, true) => Err(Error::NotDirectory),
            (_, false) => Ok(()),
        }
    }

    pub(crate) fn remove(&mut self, parent: Ino, name: &[u8], moment: Moment) {
        let ino = self.leave(parent, name);
        self.node(ino).ctime = moment;
        self.touch(parent, moment);
        self.reap(ino);
    }

    fn is_within(&self, directory: Ino, ancestor: Ino) -> bool {
        let mut at = directory;
        while at != ancestor {
            match self.nodes[&at].names.first() {
                Some(name) => at = name.0,
                None => return false,
            }
        }
        true
    }

    /// What renameat2(2) should say, without doing it.
    pub(crate) fn may_rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let source = self.lookup(parent, name)?;
        let target = match self.lookup(new_parent, new_name) {
            Ok(target) => Some(target),
            Err(Error::NotFound) => None,
            Err(error) => return Err(error),
        };
        if flags.contains(RenameFlags::NO_REPLACE) && target.is_some() {
            return Err(Error::Exists);
        }
        if self.is_within(new_parent, source) {
            return Err(Error::InvalidArgument);
        }
        if flags.contains(RenameFlags::EXCHANGE) {
            let target = target.ok_or(Error::NotFound)?;
            return if self.is_within(parent, target) { Err(Error::InvalidArgument) } else { Ok(()) };
        }
        match target {
            Some(target) if target == source => Ok(()),
            Some(target) => match (&self.nodes[&source].body, &self.nodes[&target].body) {
                (Body::Directory(_), Body::Directory(entries)) if !entries.is_empty() => Err(Error::NotEmpty),
                (Body::Directory(_), Body::Directory(_)) => Ok(()),
                (Body::Directory(_), _) => Err(Error::NotDirectory),
                (_, Body::Directory(_)) => Err(Error::IsDirectory),
                _ => Ok(()),
            },
            None if self.is_removed(new_parent) => Err(Error::NotFound),
            None => Ok(()),
        }
    }

    pub(crate) fn rename(
        &mut self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
        moment: Moment,
    ) {
        let source = self.lookup(parent, name).expect("checked");
        let target = self.lookup(new_parent, new_name).ok();
        if target == Some(source) {
            return;
        }
        self.leave(parent, name);
        if let Some(target) = target {
            self.leave(new_parent, new_name);
            if flags.contains(RenameFlags::EXCHANGE) {
                self.enter(parent, name, target);
            }
            self.node(target).ctime = moment;
        }
        self.enter(new_parent, new_name, source);
        self.node(source).ctime = moment;
        self.touch(parent, moment);
        self.touch(new_parent, moment);
        if let Some(target) = target {
            self.reap(target);
        }
    }

    /// The directories above a node, where it lies by its oldest name.
    pub(crate) fn above(&self, ino: Ino) -> Vec<Ino> {
        let home = |ino: &Ino| self.nodes[ino].homes.first().map(|(home, _)| *home);
        std::iter::successors(home(&ino), home).collect()
    }

    /// For each directory with a limit: the limit, and space and files below it. `space` is what a node takes itself.
    pub(crate) fn limited(&self, space: &BTreeMap<Ino, u64>) -> BTreeMap<Ino, (Limit, u64, u64)> {
        let limits = self.nodes.iter().filter_map(|(&ino, node)| Some((ino, (node.limit?, 0, 0))));
        let mut all: BTreeMap<Ino, (Limit, u64, u64)> = limits.collect();
        for &ino in self.nodes.keys() {
            for above in self.above(ino) {
                if let Some((_, bytes, files)) = all.get_mut(&above) {
                    *bytes += space.get(&ino).copied().unwrap_or(0);
                    *files += 1;
                }
            }
        }
        all
    }

    /// The same names, with nothing in the files.
    pub(crate) fn shape(&self) -> Self {
        let empty = |node: &Node| match &node.body {
            Body::File(_) => Node {
                body: Body::File(Contents::default()),
                names: node.names.clone(),
                homes: node.homes.clone(),
                xattrs: BTreeMap::new(),
                ..*node
            },
            _ => node.clone(),
        };
        Self { nodes: self.nodes.iter().map(|(&ino, node)| (ino, empty(node))).collect() }
    }

    /// Whether a change of names from this tree to another one is to be refused by a limit: something below one would grow beyond it.
    pub(crate) fn exceeds(&self, after: &Self, space: &BTreeMap<Ino, u64>) -> bool {
        let before = self.limited(space);
        after.limited(space).iter().any(|(ino, (limit, bytes, files))| {
            let grows = |now: u64, before: u64, most: Option<u64>| {
                now > before && most.is_some_and(|most| now > most)
            };
            let (_, old_bytes, old_files) = before[ino];
            let most = limit.size.map(|size| size.0 / 4096 * 4096);
            grows(*bytes, old_bytes, most) || grows(*files, old_files, limit.files)
        })
    }

    pub(crate) fn links(&self, ino: Ino) -> u32 {
        let node = &self.nodes[&ino];
        match &node.body {
            Body::Directory(_) if self.is_removed(ino) => 0,
            Body::Directory(entries) => {
                let is_directory = |ino: &&Ino| matches!(self.nodes[ino].body, Body::Directory(_));
                2 + entries.values().filter(is_directory).count() as u32
            }
            _ => node.names.len() as u32,
        }
    }

    pub(crate) fn may_set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        if value.len() > 65536 {
            return Err(Error::AttributeTooLarge);
        }
        let held = &self.nodes[&ino].xattrs;
        if flags.contains(XattrFlags::CREATE) && held.contains_key(name) {
            return Err(Error::Exists);
        }
        if flags.contains(XattrFlags::REPLACE) && !held.contains_key(name) {
            return Err(Error::NoAttribute);
        }
        let others = held.iter().filter(|(other, _)| *other != name);
        let bytes: usize = others.map(|(name, value)| name.len() + value.len()).sum();
        if bytes + name.len() + value.len() > 4 << 20 { Err(Error::NoSpace) } else { Ok(()) }
    }
}
