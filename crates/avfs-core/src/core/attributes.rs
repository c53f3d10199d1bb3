//! An inode as clients see it: with the length and the times that are in no record yet.
//!
//! **For:** attributes, flags and children of inodes, and what may be changed of them. **Excludes:** changing names. **State:** none of
//! its own.

use super::state::Core;
use super::state::file::Touched;
use crate::acl::{ACCESS_XATTR, Acl};
use crate::error::{Error, Result};
use crate::extent::ExtentMap;
use crate::format::{BLOCK, MAX_NAME};
use crate::inode::Inode;
use crate::record::Record;
use crate::types::*;
use units::{Ino, Now, Timestamp};

/// `S_ISUID` of a mode. A protocol fact.
pub(super) const SETUID: u16 = 0o4000;
/// `S_ISGID` of a mode. A protocol fact.
pub(super) const SETGID: u16 = 0o2000;
/// `S_IXGRP` of a mode. A protocol fact.
pub(super) const GROUP_EXECUTE: u16 = 0o010;
/// relatime: a file's access time is renewed when it is older than this. A protocol fact.
pub(super) const ATIME_AGE_SECONDS: i64 = 24 * 3600;

impl Core {
    pub(super) fn inode(&self, ino: Ino) -> Result<&Inode> {
        self.metadata.get(ino).ok_or(Error::Stale)
    }

    pub(super) fn directory(&self, ino: Ino) -> Result<&Inode> {
        let inode = self.inode(ino)?;
        if inode.kind == FileKind::Directory { Ok(inode) } else { Err(Error::NotDirectory) }
    }

    pub(super) fn child(&self, parent: Ino, name: &[u8]) -> Result<Ino> {
        check_name(name)?;
        self.metadata.child(self.directory(parent)?, parent, name).ok_or(Error::NotFound)
    }

    /// Attributes as clients see them: with the length and the times that are in no record yet.
    pub fn attributes(&self, ino: Ino) -> Result<Attributes> {
        Ok(self.attributes_of(ino, self.inode(ino)?))
    }

    pub(super) fn attributes_of(&self, ino: Ino, inode: &Inode) -> Attributes {
        let core = &inode.attributes;
        let mut attributes = Attributes {
            ino,
            kind: inode.kind,
            permissions: core.permissions,
            // The root has no name, yet must not look deleted: the kernel refuses to remount a filesystem
            // read-only while it knows an inode without links.
            links: match inode.directory() {
                Some(index) if ino == Ino::ROOT => 2 + index.subdirectories(),
                _ => inode.links(),
            },
            uid: core.uid,
            gid: core.gid,
            rdev: match &inode.body {
                crate::inode::Body::Node(device) => *device,
                _ => 0,
            },
            size: inode.size,
            blocks: inode.extents().map_or(0, ExtentMap::blocks) * (BLOCK / 512),
            atime: core.atime.into(),
            mtime: core.mtime.into(),
            ctime: core.ctime.into(),
            btime: core.btime.into(),
        };
        if let Some(index) = inode.directory() {
            attributes.size = BLOCK.max((index.len() as u64 * 64).next_multiple_of(BLOCK));
        }
        if let Some(file) = self.data.files.get(&ino) {
            attributes.size = file.size;
            // What goes elsewhere has an extent as well.
            attributes.blocks += (file.delayed.total() - file.displaced.total()) * (BLOCK / 512);
            attributes.blocks -= file.reserved.total() * (BLOCK / 512);
            if let Some(touched) = file.touched {
                attributes.atime = touched.atime.unwrap_or(attributes.atime);
                attributes.mtime = touched.mtime.unwrap_or(attributes.mtime);
                attributes.ctime = attributes.ctime.max(touched.mtime.unwrap_or(attributes.ctime));
            }
        }
        attributes
    }

    pub(super) fn parent(&self, directory: Ino) -> Result<Ino> {
        Ok(self.directory(directory)?.names.first().map_or(Ino::ROOT, |name| name.parent))
    }

    /// Owner, mode and times as `changes` want them; the size is set elsewhere.
    pub(super) fn changed_attributes(
        &self,
        now: Now,
        ino: Ino,
        changes: &SetAttributes,
    ) -> Result<Vec<Record>> {
        let inode = self.inode(ino)?;
        check_flags(inode, InodeFlags::IMMUTABLE)?;
        // Any caller with the right to write may say that it was touched now. A time of choice is the owner's, and such a file has
        // none.
        let touches = changes.atime == Some(SetTime::Now) && changes.mtime == Some(SetTime::Now);
        let sets_times = !touches && (changes.atime.is_some() || changes.mtime.is_some());
        let is_owners = changes.permissions.is_some() || changes.uid.is_some() || changes.gid.is_some();
        if is_owners || sets_times || changes.size.is_some() {
            check_flags(inode, InodeFlags::APPEND_ONLY)?;
        }
        let visible = self.attributes_of(ino, inode);
        let mut core = inode.attributes;
        core.atime = visible.atime.into();
        core.mtime = visible.mtime.into();
        let mut records = Vec::new();
        if let Some(permissions) = changes.permissions {
            core.permissions = permissions & 0o7777;
            if let Some(Ok(Some(mut acl))) = inode.xattr(ACCESS_XATTR).map(Acl::parse) {
                acl.chmod(permissions);
                let value = acl.to_bytes().into();
                records.push(Record::SetXattr { ino, name: ACCESS_XATTR.into(), value });
            }
        }
        let owner_changes = changes.uid.is_some() || changes.gid.is_some();
        core.uid = changes.uid.unwrap_or(core.uid);
        core.gid = changes.gid.unwrap_or(core.gid);
        if owner_changes && changes.permissions.is_none() && inode.kind != FileKind::Directory {
            core.permissions = without_privileges(core.permissions);
        }
        if let Some(caller) = changes.unprivileged
            && (owner_changes || changes.size.is_some())
            && inode.kind != FileKind::Directory
        {
            core.permissions = privileges_left(core.permissions, inode.attributes.gid, caller);
        }
        let time = |set: SetTime| match set {
            SetTime::Now => now.wall,
            SetTime::To(time) => time,
        };
        if let Some(atime) = changes.atime {
            core.atime = time(atime).into();
        }
        if let Some(mtime) = changes.mtime {
            core.mtime = time(mtime).into();
        }
        if let Some(btime) = changes.btime {
            core.btime = btime.into();
        }
        if changes.size.is_some() {
            if changes.mtime.is_none() {
                core.mtime = now.wall.into();
            }
            if !changes.keep_privileges {
                core.permissions = without_privileges(core.permissions);
            }
        }
        core.ctime = now.wall.into();
        records.push(Record::Attributes { ino, attributes: core });
        Ok(records)
    }

    /// The flags of an inode.
    pub fn flags(&self, ino: Ino) -> Result<InodeFlags> {
        Ok(self.inode(ino)?.attributes.flags)
    }

    /// A read or write of a file happened: its times change, in memory for now.
    pub(super) fn touch_file(&mut self, ino: Ino, atime: Option<Timestamp>, mtime: Option<Timestamp>) {
        let touched = &mut self.file_mut(ino).touched;
        let old = touched.unwrap_or(Touched { atime: None, mtime: None });
        *touched = Some(Touched { atime: atime.or(old.atime), mtime: mtime.or(old.mtime) });
        self.writeback.files.insert(ino);
    }

    /// Whether a read of the file at this moment changes its time of access.
    pub(super) fn changes_access_time(&self, now: Now, ino: Ino) -> bool {
        let Ok(attributes) = self.attributes(ino) else { return false };
        let is_due = match self.options.access_times {
            AccessTimes::Never => false,
            AccessTimes::Strict => true,
            AccessTimes::Relative => {
                attributes.atime <= attributes.mtime.max(attributes.ctime)
                    || attributes.atime.seconds + ATIME_AGE_SECONDS < now.wall.seconds
            }
        };
        let is_told = self.flags(ino).is_ok_and(|flags| !flags.contains(InodeFlags::NO_ATIME));
        is_due && is_told && attributes.atime != now.wall && self.check_writable().is_ok()
    }
}

/// Permissions without setuid, and without setgid where it means privilege and not mandatory locking.
pub(super) fn without_privileges(permissions: u16) -> u16 {
    let setgid = if permissions & GROUP_EXECUTE != 0 { SETGID } else { 0 };
    permissions & !(SETUID | setgid)
}

/// Permissions when a caller without privilege changes a file. Setuid goes. Setgid goes where it is a privilege (the group may
/// execute). It also goes where the caller is not of the group: then it would only mark the file for mandatory locking on behalf of
/// others.
pub(super) fn privileges_left(permissions: u16, gid: u32, caller: Caller) -> u16 {
    let left = without_privileges(permissions);
    if caller.gid == gid { left } else { left & !SETGID }
}

/// Refuses where the inode has one of `flags`.
pub(super) fn check_flags(inode: &Inode, flags: InodeFlags) -> Result<()> {
    if inode.attributes.flags.intersects(flags) { Err(Error::NotPermitted) } else { Ok(()) }
}

pub(super) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > MAX_NAME {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name == b"." || name == b".." || name.iter().any(|&byte| byte == 0 || byte == b'/')
    {
        return Err(Error::InvalidArgument);
    }
    Ok(())
}
