//! Names, attributes and extended attributes: everything that needs no device.
//!
//! What a caller may do was checked by the kernel before it asked (`default_permissions`). What is impossible for every caller is
//! checked here.

use super::attributes::{SETGID, check_flags, check_name};
use super::limits::Move;
use super::state::Core;
use crate::acl::{ACCESS_XATTR, Acl, DEFAULT_XATTR, is_acl};
use crate::casing::equal_without_case;
use crate::directory::DirectoryIndex;
use crate::error::{Error, Result};
use crate::format::{MAX_LINKS, MAX_NAME, MAX_SYMLINK, MAX_XATTR_VALUE};
use crate::inode::{CoreAttributes, Name, PackedTime};
use crate::metadata::LABEL_XATTR;
use crate::policy::{other_rate, stored_name};
use crate::record::Record;
use crate::types::*;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::collections::BTreeSet;
use units::{Ino, Now};

/// Samba asks for the spelling of a name with this attribute. A protocol fact.
const REAL_NAME: &[u8] = b"glusterfs.get_real_filename:";
/// Most bytes of extended attributes of one inode, names and values: a shard's image must stay writable. It bounds memory. An
/// operator's target.
pub(crate) const MAX_XATTR_BYTES: usize = 4 << 20;
/// Most bytes of their names: XATTR_LIST_MAX of Linux. A protocol fact.
const MAX_XATTR_LIST: usize = 65536;

/// What a new inode is to be.
#[derive(Clone, Copy)]
pub(super) struct NewInode<'a> {
    pub(super) kind: FileKind,
    pub(super) permissions: u16,
    pub(super) umask: u16,
    pub(super) target: &'a [u8],
    pub(super) device: u32,
}

impl Core {
    /// The entry of an inode, counted as one more lookup reference.
    pub(super) fn entry(&mut self, ino: Ino) -> Result<Entry> {
        let inode = self.inode(ino)?;
        let entry =
            Entry { attributes: self.attributes_of(ino, inode), generation: u64::from(inode.generation) };
        *self.inodes.lookups.entry(ino).or_insert(0) += 1;
        Ok(entry)
    }

    /// See [`Volume::lookup`](crate::volume::Volume::lookup). `.` and `..` are understood too.
    pub fn lookup(&mut self, parent: Ino, name: &[u8]) -> Result<Entry> {
        let ino = match name {
            // By this name the kernel asks for what a file handle names (NFS), a file or a directory. An inode without a name
            // is deleted.
            b"." => match self.inode(parent)? {
                inode if inode.names.is_empty() && parent != Ino::ROOT => return Err(Error::Stale),
                _ => parent,
            },
            b".." => self.parent(parent)?,
            _ => self.child(parent, name)?,
        };
        self.entry(ino)
    }

    /// See [`forget`](Self::forget).
    pub(super) fn give_back_lookups(&mut self, now: Now, ino: Ino, count: u64) {
        if let Some(held) = self.inodes.lookups.get_mut(&ino) {
            *held = held.saturating_sub(count);
            if *held == 0 {
                self.inodes.lookups.remove(&ino);
                self.log.replacements.forget_name(ino);
                if let Some(file) = self.data.files.get_mut(&ino) {
                    file.pages_are_true = false;
                } else if let Some(file) = self.data.resting.get_mut(&ino) {
                    file.pages_are_true = false;
                    if file.is_empty() {
                        self.data.resting.remove(&ino);
                    }
                }
                self.reap(now, ino);
            }
        }
    }

    /// Removes an inode that has no name and that no client uses.
    pub(super) fn reap(&mut self, now: Now, ino: Ino) {
        if !self.metadata.orphans().contains(&ino)
            || self.inodes.lookups.contains_key(&ino)
            || self.is_still()
        {
            return;
        }
        if let Some(file) = self.data.files.get(&ino) {
            if file.readers + file.writers > 0 {
                return;
            }
            if !file.is_idle() {
                self.inodes.unreaped.insert(ino);
                return;
            }
        }
        self.inodes.unreaped.remove(&ino);
        self.inodes.unnamed.remove(&ino);
        self.forget_file(ino);
        self.log.replacements.forget_name(ino);
        self.log.replacements.forget_bytes(ino);
        let _ = self.transact(now, &[Record::Remove { ino }]);
        if self.is_space_awaited() {
            self.log.commit.want();
        }
    }

    /// Records that one directory changed.
    fn touch_directory(&self, now: Now, ino: Ino) -> Result<Record> {
        let mut attributes = self.directory(ino)?.attributes;
        attributes.mtime = now.wall.into();
        attributes.ctime = now.wall.into();
        Ok(Record::Attributes { ino, attributes })
    }

    /// Records that an inode's link count or name changed.
    fn touch_inode(&self, now: Now, ino: Ino) -> Result<Record> {
        let mut attributes = self.inode(ino)?.attributes;
        attributes.ctime = now.wall.into();
        Ok(Record::Attributes { ino, attributes })
    }

    fn make(
        &mut self,
        now: Now,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Ino> {
        self.check_writable()?;
        check_name(name)?;
        match self.child(parent, name) {
            Ok(_) => return Err(Error::Exists),
            Err(Error::NotFound) => {}
            Err(error) => return Err(error),
        }
        self.check_metadata_space()?;
        self.check_may_enter(parent, name)?;
        self.check_new_inode(parent)?;
        let (ino, mut records) = self.new_inode(now, caller, parent, new)?;
        records.push(Record::AddName { ino, name: Name { parent, name: name.into() } });
        records.push(self.touch_directory(now, parent)?);
        self.transact(now, &records)?;
        Ok(ino)
    }

    /// Whether one more name can stand in a directory.
    fn check_may_enter(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let directory = self.directory(parent)?;
        if directory.names.is_empty() && parent != Ino::ROOT {
            return Err(Error::NotFound);
        }
        check_flags(directory, InodeFlags::IMMUTABLE)?;
        if !directory.directory().is_some_and(|index| index.has_room(name)) {
            return Err(Error::NoSpace);
        }
        Ok(())
    }

    /// The records of an inode that has no name yet, as it is made in a directory.
    pub(super) fn new_inode(
        &mut self,
        now: Now,
        caller: Caller,
        parent: Ino,
        new: &NewInode<'_>,
    ) -> Result<(Ino, Vec<Record>)> {
        let directory = self.directory(parent)?;
        let parent_attributes = directory.attributes;
        let default = directory.xattr(DEFAULT_XATTR).map(<[u8]>::to_vec);
        let mut permissions = new.permissions & 0o7777;
        let gid = if parent_attributes.permissions & SETGID != 0 {
            if new.kind == FileKind::Directory {
                permissions |= SETGID;
            }
            parent_attributes.gid
        } else {
            caller.gid
        };
        let mut acls: Vec<(&[u8], Vec<u8>)> = Vec::new();
        match default.as_deref().map(Acl::parse) {
            Some(Ok(Some(acl))) if new.kind != FileKind::Symlink => {
                let (access, mode) = acl.inherit(permissions);
                permissions = mode;
                acls.extend(access.map(|access| (ACCESS_XATTR, access.to_bytes())));
                if new.kind == FileKind::Directory {
                    acls.push((DEFAULT_XATTR, acl.to_bytes()));
                }
            }
            _ if new.kind == FileKind::Symlink => permissions = 0o777,
            _ => permissions &= !(new.umask & 0o777),
        }
        let ino = self.metadata.free_number();
        let time = PackedTime::from(now.wall);
        let attributes = CoreAttributes {
            permissions,
            flags: parent_attributes.flags & InodeFlags::INHERITED,
            uid: caller.uid,
            gid,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        };
        let mut records = vec![Record::Create {
            ino,
            kind: new.kind,
            // Differs from that of the inode that had the number before.
            generation: self.metadata.lsn() as u32,
            attributes,
            target: new.target.into(),
            device: new.device,
        }];
        for (name, value) in acls {
            records.push(Record::SetXattr { ino, name: name.into(), value: value.into() });
        }
        Ok((ino, records))
    }

    /// A file, device node, fifo or socket.
    #[expect(clippy::too_many_arguments, reason = "mknod(2) has as many")]
    pub fn make_node(
        &mut self,
        now: Now,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        permissions: u16,
        umask: u16,
        rdev: u32,
    ) -> Result<Entry> {
        if matches!(kind, FileKind::Directory | FileKind::Symlink) {
            return Err(Error::InvalidArgument);
        }
        let new = NewInode { kind, permissions, umask, target: &[], device: rdev };
        let ino = self.make(now, caller, parent, name, &new)?;
        self.entry(ino)
    }

    /// An empty directory.
    pub fn make_directory(
        &mut self,
        now: Now,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        permissions: u16,
        umask: u16,
    ) -> Result<Entry> {
        let new = NewInode { kind: FileKind::Directory, permissions, umask, target: &[], device: 0 };
        let ino = self.make(now, caller, parent, name, &new)?;
        self.entry(ino)
    }

    /// A symbolic link.
    pub fn make_symlink(
        &mut self,
        now: Now,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > MAX_SYMLINK {
            return Err(Error::NameTooLong);
        }
        let new = NewInode { kind: FileKind::Symlink, permissions: 0o777, umask: 0, target, device: 0 };
        let ino = self.make(now, caller, parent, name, &new)?;
        self.entry(ino)
    }

    /// One more name.
    pub fn link(&mut self, now: Now, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.check_writable()?;
        check_name(name)?;
        let inode = self.inode(ino)?;
        if inode.kind == FileKind::Directory {
            return Err(Error::NotPermitted);
        }
        if inode.names.is_empty() && !self.inodes.unnamed.contains(&ino) {
            return Err(Error::NotFound);
        }
        check_flags(inode, InodeFlags::IMMUTABLE | InodeFlags::APPEND_ONLY)?;
        if inode.names.len() >= MAX_LINKS {
            return Err(Error::TooManyLinks);
        }
        match self.child(parent, name) {
            Ok(_) => return Err(Error::Exists),
            Err(Error::NotFound) => {}
            Err(error) => return Err(error),
        }
        self.check_metadata_space()?;
        self.check_may_enter(parent, name)?;
        self.check_moves(&[self.move_of(ino, None, Some(parent))])?;
        let records = [
            Record::AddName { ino, name: Name { parent, name: name.into() } },
            self.touch_inode(now, ino)?,
            self.touch_directory(now, parent)?,
        ];
        self.transact(now, &records)?;
        self.inodes.unnamed.remove(&ino);
        self.entry(ino)
    }

    /// Removes a name of anything but a directory.
    pub fn unlink(&mut self, now: Now, parent: Ino, name: &[u8]) -> Result<()> {
        self.check_writable()?;
        let ino = self.child(parent, name)?;
        self.check_may_leave(parent, ino)?;
        if self.inode(ino)?.kind == FileKind::Directory {
            return Err(Error::IsDirectory);
        }
        self.remove_name(now, ino, parent, name)
    }

    /// Removes an empty directory.
    pub fn remove_directory(&mut self, now: Now, parent: Ino, name: &[u8]) -> Result<()> {
        self.check_writable()?;
        let ino = self.child(parent, name)?;
        self.check_may_leave(parent, ino)?;
        if !self.directory(ino)?.directory().is_some_and(|index| index.is_empty()) {
            return Err(Error::NotEmpty);
        }
        self.remove_name(now, ino, parent, name)
    }

    /// Whether an inode may lose its name in a directory, by the flags of both.
    fn check_may_leave(&self, parent: Ino, ino: Ino) -> Result<()> {
        let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND_ONLY;
        check_flags(self.inode(parent)?, fixed).and_then(|()| check_flags(self.inode(ino)?, fixed))
    }

    fn remove_name(&mut self, now: Now, ino: Ino, parent: Ino, name: &[u8]) -> Result<()> {
        let name = Name { parent, name: name.into() };
        let successor = self.successor(ino);
        let epoch = successor.and_then(|successor| self.begin_replacing(now, successor));
        let records = [
            Record::RemoveName { ino, name: name.clone() },
            self.touch_inode(now, ino)?,
            self.touch_directory(now, parent)?,
        ];
        let first_lsn = self.metadata.lsn() + 1;
        self.transact(now, &records)?;
        if let Some(successor) = successor {
            self.wait_for_bytes(now, first_lsn, successor, epoch);
        }
        self.lost_name(ino, name);
        self.reap(now, ino);
        Ok(())
    }

    /// See rename(2) and renameat2(2).
    #[expect(
        clippy::too_many_arguments,
        reason = "renameat2(2) has as many, and a caller, which owns a whiteout"
    )]
    pub fn rename(
        &mut self,
        now: Now,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.check_writable()?;
        check_name(new_name)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange && flags.intersects(RenameFlags::NO_REPLACE | RenameFlags::WHITEOUT) {
            return Err(Error::InvalidArgument);
        }
        let source = self.child(parent, name)?;
        let target = match self.child(new_parent, new_name) {
            Ok(target) => Some(target),
            Err(Error::NotFound) => None,
            Err(error) => return Err(error),
        };
        if flags.contains(RenameFlags::NO_REPLACE) && target.is_some() {
            return Err(Error::Exists);
        }
        let is_directory = self.inode(source)?.kind == FileKind::Directory;
        if is_directory && self.is_within(new_parent, source) {
            return Err(Error::InvalidArgument);
        }
        self.check_may_leave(parent, source)?;
        match target {
            Some(target) => self.check_may_leave(new_parent, target)?,
            None => check_flags(self.directory(new_parent)?, InodeFlags::IMMUTABLE)?,
        }
        if target.is_none() && new_name.len() > name.len() {
            self.check_metadata_space()?;
        }
        let old = Name { parent, name: name.into() };
        let new = Name { parent: new_parent, name: new_name.into() };
        // Of two that change places each takes the other's.
        let takes_a_place = target.filter(|&target| target != source).map(|_| source);
        let exchanged = target.filter(|_| flags.contains(RenameFlags::EXCHANGE));
        let replacing = [takes_a_place, exchanged].map(|ino| Some((ino?, self.begin_replacing(now, ino?))));
        let (from, target_name) = (old.clone(), new.clone());
        let mut records = Vec::with_capacity(8);
        let mut replaced = None;
        if exchange {
            let target = target.ok_or(Error::NotFound)?;
            if self.is_within(parent, target) {
                return Err(Error::InvalidArgument);
            }
            if source == target {
                return Ok(());
            }
            self.check_moves(&[
                self.move_of(source, Some(&old), Some(new_parent)),
                self.move_of(target, Some(&new), Some(parent)),
            ])?;
            records.push(Record::RemoveName { ino: source, name: old.clone() });
            records.push(Record::RemoveName { ino: target, name: new.clone() });
            records.push(Record::AddName { ino: source, name: new });
            records.push(Record::AddName { ino: target, name: old });
            records.push(self.touch_inode(now, target)?);
        } else {
            match target {
                Some(target) if target == source => return Ok(()),
                Some(target) => {
                    let (from, onto) = (self.inode(source)?, self.inode(target)?);
                    match (from.kind == FileKind::Directory, onto.directory()) {
                        (true, None) => return Err(Error::NotDirectory),
                        (false, Some(_)) => return Err(Error::IsDirectory),
                        (true, Some(index)) if !index.is_empty() => return Err(Error::NotEmpty),
                        _ => {}
                    }
                    records.push(Record::RemoveName { ino: target, name: new.clone() });
                    records.push(self.touch_inode(now, target)?);
                    replaced = Some(target);
                }
                None => {
                    let directory = self.directory(new_parent)?;
                    if directory.names.is_empty() && new_parent != Ino::ROOT {
                        return Err(Error::NotFound);
                    }
                    if !directory.directory().is_some_and(|index| index.has_room(new_name)) {
                        return Err(Error::NoSpace);
                    }
                }
            }
            let mut moves: SmallVec<[Move; 3]> = SmallVec::new();
            moves.push(self.move_of(source, Some(&old), Some(new_parent)));
            moves.extend(replaced.map(|target| self.move_of(target, Some(&new), None)));
            moves.extend(flags.contains(RenameFlags::WHITEOUT).then(|| Self::new_inode_in(parent)));
            self.check_moves(&moves)?;
            records.push(Record::RemoveName { ino: source, name: old.clone() });
            records.push(Record::AddName { ino: source, name: new });
            if flags.contains(RenameFlags::WHITEOUT) {
                self.check_metadata_space()?;
                let kind = FileKind::CharacterDevice;
                let whiteout = NewInode { kind, permissions: 0, umask: 0, target: &[], device: 0 };
                let (ino, made) = self.new_inode(now, caller, parent, &whiteout)?;
                records.extend(made);
                records.push(Record::AddName { ino, name: old });
            }
        }
        records.push(self.touch_inode(now, source)?);
        // A directory that is moved into its sibling's place touches itself last: the later record holds.
        records.push(self.touch_directory(now, parent)?);
        if new_parent != parent {
            records.push(self.touch_directory(now, new_parent)?);
        }
        let first_lsn = self.metadata.lsn() + 1;
        self.transact(now, &records)?;
        for (ino, epoch) in replacing.into_iter().flatten() {
            self.wait_for_bytes(now, first_lsn, ino, epoch);
        }
        self.lost_name(source, from);
        if let Some(exchanged) = exchanged.or(replaced) {
            self.lost_name(exchanged, target_name);
        }
        if let Some(replaced) = replaced {
            self.reap(now, replaced);
        }
        Ok(())
    }

    /// True when `directory` is `ancestor` or lies below it.
    fn is_within(&self, directory: Ino, ancestor: Ino) -> bool {
        self.metadata.line_to_root(directory).any(|(at, _)| at == ancestor)
    }

    /// A symbolic link's target.
    pub fn read_link(&self, ino: Ino) -> Result<Box<[u8]>> {
        match &self.inode(ino)?.body {
            crate::inode::Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Error::InvalidArgument),
        }
    }

    /// Calls `each` for the entries of a directory after `cookie` until it returns false.
    pub fn read_directory(
        &mut self,
        ino: Ino,
        cookie: u64,
        plus: bool,
        each: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<()> {
        let parent = self.parent(ino)?;
        let dots: [(u64, &[u8], Ino); 2] = [(1, b".", ino), (2, b"..", parent)];
        for (own, name, ino) in dots {
            let entry = DirectoryEntry {
                name: name.into(),
                ino,
                kind: FileKind::Directory,
                cookie: own,
                entry: None,
            };
            if cookie < own && !each(entry) {
                return Ok(());
            }
        }
        let from = cookie.max(crate::directory::FIRST_COOKIE - 1);
        for (cookie, name, ino, inode) in self.metadata.entries(ino, from) {
            let entry = plus.then(|| Entry {
                attributes: self.attributes_of(ino, inode),
                generation: u64::from(inode.generation),
            });
            if !each(DirectoryEntry { name: name.into(), ino, kind: inode.kind, cookie, entry }) {
                break;
            }
            if plus {
                *self.inodes.lookups.entry(ino).or_insert(0) += 1;
            }
        }
        Ok(())
    }

    // Extended attributes.

    /// See setxattr(2). `user.avfs.*` is for policies alone: other names and values than theirs are refused, and of a
    /// bitrate and frames per second each takes the other's place.
    pub fn set_xattr(
        &mut self,
        now: Now,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.check_writable()?;
        check_xattr_name(name)?;
        if value.len() > MAX_XATTR_VALUE {
            return Err(Error::AttributeTooLarge);
        }
        let name = &*stored_name(name);
        let inode = self.inode(ino)?;
        check_flags(inode, InodeFlags::IMMUTABLE | InodeFlags::APPEND_ONLY)?;
        let old = inode.xattr(name);
        if flags.contains(XattrFlags::CREATE) && old.is_some() {
            return Err(Error::Exists);
        }
        if flags.contains(XattrFlags::REPLACE) && old.is_none() {
            return Err(Error::NoAttribute);
        }
        // A list that is longer than listxattr(2) gives out could not be read.
        let listed = |name: &[u8]| name.len() + 1;
        let names: usize = inode.xattrs.iter().flat_map(|all| all.iter()).map(|own| listed(&own.name)).sum();
        if old.is_none() && names + listed(name) > MAX_XATTR_LIST {
            return Err(Error::NoSpace);
        }
        let grown = inode.xattr_bytes() + name.len() + value.len();
        if grown - old.map_or(0, |old| old.len() + name.len()) > MAX_XATTR_BYTES {
            return Err(Error::NoSpace);
        }
        self.check_policy(ino, name, value)?;
        let replaced = other_rate(name).filter(|other| inode.xattr(other.as_bytes()).is_some());
        let mut attributes = inode.attributes;
        attributes.ctime = now.wall.into();
        let mut stored = Some(value.to_vec());
        if is_acl(name) {
            let acl = Acl::parse(value).map_err(|_| Error::InvalidArgument)?;
            if inode.kind == FileKind::Symlink {
                return Err(Error::Unsupported);
            }
            stored = match acl {
                Some(acl) if name == ACCESS_XATTR => {
                    let keeps_setgid = !flags.contains(XattrFlags::KILL_SETGID);
                    let (kept, mode) = acl.set_access(attributes.permissions, keeps_setgid);
                    attributes.permissions = mode;
                    kept.map(|acl| acl.to_bytes())
                }
                Some(_) if inode.kind != FileKind::Directory => return Err(Error::NotPermitted),
                Some(acl) => Some(acl.to_bytes()),
                None => None,
            };
        }
        let stored = match stored {
            Some(value) => Record::SetXattr { ino, name: name.into(), value: value.into() },
            None => Record::RemoveXattr { ino, name: name.into() },
        };
        self.check_metadata_space()?;
        let mut records = vec![stored, Record::Attributes { ino, attributes }];
        records.extend(replaced.map(|other| Record::RemoveXattr { ino, name: other.into_bytes().into() }));
        self.transact(now, &records)
    }

    /// See getxattr(2).
    pub fn get_xattr(&self, ino: Ino, name: &[u8]) -> Result<&[u8]> {
        check_xattr_name(name)?;
        match self.inode(ino)?.xattr(&stored_name(name)) {
            Some(value) => Ok(value),
            // Said once, `ls -l` believes it of the whole device; else it asks for each file, and each is a request.
            None if name == LABEL_XATTR && !self.metadata.is_labelled() => Err(Error::Unsupported),
            None => Err(Error::NoAttribute),
        }
    }

    /// The same, asked by a user in particular. On a volume without ACLs the owner of a file hears that it has none because they
    /// are unsupported. `ls -l` believes that of the whole device, and else asks for each file. No other user may hear it. The
    /// kernel asks in the name of the user that wants access, keeps "none", and takes "unsupported" for a refusal. The owner's
    /// access does not depend on ACLs, so the kernel never asks in the owner's name.
    ///
    /// A directory also answers `glusterfs.get_real_filename:NAME` with the spelling under which a name stands there,
    /// whatever its case, and a NUL: the question that Samba's stock module `glusterfs_fuse` asks instead of scanning
    /// the directory.
    pub fn get_xattr_as(&self, caller: Caller, ino: Ino, name: &[u8]) -> Result<Cow<'_, [u8]>> {
        if let Some(wanted) = name.strip_prefix(REAL_NAME) {
            // Samba takes the value for a string of C: without its end it reads on behind it.
            return self.real_name(ino, wanted).map(|spelling| [spelling, b"\0"].concat().into());
        }
        match self.get_xattr(ino, name) {
            Err(Error::NoAttribute)
                if is_acl(name)
                    && !self.metadata.has_acls()
                    && self.inode(ino)?.attributes.uid == caller.uid =>
            {
                Err(Error::Unsupported)
            }
            found => found.map(Cow::from),
        }
    }

    fn real_name(&self, directory: Ino, wanted: &[u8]) -> Result<&[u8]> {
        let index = self.inode(directory)?.directory().ok_or(Error::NoAttribute)?;
        let hash = DirectoryIndex::hash(wanted);
        let inodes: BTreeSet<Ino> = index.of_hash(hash).map(|(_, ino)| ino).collect();
        let names = inodes.into_iter().filter_map(|ino| self.metadata.get(ino));
        let fitting = names
            .flat_map(|inode| inode.names.of_hash(directory, hash))
            .filter(|name| equal_without_case(&name.name, wanted))
            // The exact spelling wins; among others the choice must not depend on the order they came in.
            .min_by_key(|name| (*name.name != *wanted, &name.name));
        fitting.map(|name| &*name.name).ok_or(Error::NoAttribute)
    }

    /// See listxattr(2).
    pub fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        self.list_xattrs_as(Caller::default(), ino)
    }

    /// The same, asked by a user: `trusted.*` is root's business alone, and the kernel leaves hiding it to filesystems.
    ///
    /// # Errors
    /// Those of [`Core::list_xattrs`].
    pub fn list_xattrs_as(&self, caller: Caller, ino: Ino) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        let shown = |name: &[u8]| caller.uid == 0 || !name.starts_with(b"trusted.");
        let all = self.inode(ino)?.xattrs.iter().flat_map(|all| all.iter());
        for xattr in all.filter(|xattr| shown(&xattr.name)) {
            names.extend_from_slice(&xattr.name);
            names.push(0);
        }
        Ok(names)
    }

    /// See removexattr(2).
    pub fn remove_xattr(&mut self, now: Now, ino: Ino, name: &[u8]) -> Result<()> {
        self.check_writable()?;
        check_xattr_name(name)?;
        let name = &*stored_name(name);
        let inode = self.inode(ino)?;
        check_flags(inode, InodeFlags::IMMUTABLE | InodeFlags::APPEND_ONLY)?;
        if inode.xattr(name).is_none() {
            // An ACL that says no more than the mode is not kept; taking it away is no mistake. Nor is it to take away the
            // rate whose place another one has: rsync first sets what is to be there, and then removes what is not.
            let is_replaced = other_rate(name).is_some_and(|other| inode.xattr(other.as_bytes()).is_some());
            return if is_acl(name) || is_replaced { Ok(()) } else { Err(Error::NoAttribute) };
        }
        let records = [Record::RemoveXattr { ino, name: name.into() }, self.touch_inode(now, ino)?];
        self.transact(now, &records)
    }

    // What chattr(1) sets. The kernel has checked the caller's right.

    /// See [`set_flags`](Self::set_flags).
    pub(super) fn change_flags(&mut self, now: Now, ino: Ino, flags: InodeFlags) -> Result<()> {
        self.check_writable()?;
        let mut attributes = self.inode(ino)?.attributes;
        attributes.flags = flags;
        attributes.ctime = now.wall.into();
        let had_flags = self.metadata.has_flags();
        self.transact(now, &[Record::Attributes { ino, attributes }])?;
        if !had_flags && self.metadata.has_flags() {
            // A program that does not know of flags is told that this volume is not for it.
            self.start_checkpoint(now);
        }
        Ok(())
    }

    // Opening.

    /// The device is done with an inode that waited for it to be removed.
    pub(super) fn reap_if_left(&mut self, now: Now, ino: Ino) {
        if self.inodes.unreaped.contains(&ino) {
            self.reap(now, ino);
        }
    }
}

/// Namespaces of the attributes that are kept. A protocol fact.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

fn is_bare_namespace(name: &[u8]) -> bool {
    NAMESPACES.contains(&name)
}

fn check_xattr_name(name: &[u8]) -> Result<()> {
    let fits =
        is_acl(name) || NAMESPACES.iter().any(|prefix| name.len() > prefix.len() && name.starts_with(prefix));
    match name.len() {
        0 => Err(Error::InvalidArgument),
        length if length > MAX_NAME => Err(Error::BufferTooSmall),
        // A namespace without a name.
        _ if is_bare_namespace(name) => Err(Error::InvalidArgument),
        _ if fits => Ok(()),
        _ => Err(Error::Unsupported),
    }
}
