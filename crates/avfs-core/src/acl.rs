//! POSIX access control lists, as the kernel stores them in extended attributes.
//!
//! **For:** reading and writing the attributes `system.posix_acl_access` and `system.posix_acl_default`, and keeping
//! an ACL and the permission bits in step: at chmod, at creation under a default ACL, and when an ACL is set. The
//! rules are those of Linux (`fs/posix_acl.c`), which follow POSIX 1003.1e draft 17. **Excludes:** checking access;
//! the kernel does that. **State:** none; an [`Acl`] is a value. **Invariants:** an [`Acl`] is valid: it has its
//! three required entries, a mask wherever a user or a group is named, and nobody is named twice.
//!
//! Modes are permission bits with setuid, setgid and sticky, 0..=0o7777; what an ACL entry permits is 0..=7.

use crate::error::Error;
use std::collections::BTreeSet;

/// Name of the attribute with a file's own ACL.
pub const ACCESS_XATTR: &[u8] = b"system.posix_acl_access";
/// Name of the attribute with the ACL that what is made in a directory inherits.
pub const DEFAULT_XATTR: &[u8] = b"system.posix_acl_default";

/// True for the names of the extended attributes that hold ACLs.
pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_XATTR || name == DEFAULT_XATTR
}

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// In the field of the qualifier where there is none.
const UNDEFINED_ID: u32 = u32::MAX;

mod tag {
    pub(super) const OWNER: u16 = 0x01;
    pub(super) const USER: u16 = 0x02;
    pub(super) const GROUP: u16 = 0x04;
    pub(super) const NAMED_GROUP: u16 = 0x08;
    pub(super) const MASK: u16 = 0x10;
    pub(super) const OTHER: u16 = 0x20;
}

const SETGID: u16 = 0o2000;

/// Why bytes are not an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// Not a header and whole entries.
    #[error("an ACL of {0} bytes: not a header of 4 and entries of 8")]
    Length(usize),
    /// Any version but 2.
    #[error("ACL version {0}, not 2")]
    Version(u32),
    /// A tag that no entry has.
    #[error("unknown ACL tag {0:#x}")]
    Tag(u16),
    /// Bits beyond read, write and execute.
    #[error("unknown ACL permissions {0:#x}")]
    Permissions(u16),
    /// An entry of this tag stands in the wrong place, or a second time, or before an entry that must precede it.
    #[error("ACL entry with tag {0:#x} out of order")]
    Order(u16),
    /// A user or group is named twice, or its number is the invalid one.
    #[error("ACL entry with tag {tag:#x} names {id} twice, or nobody")]
    Name {
        /// User or named group.
        tag: u16,
        /// Whom it names.
        id: u32,
    },
    /// Somebody is named, but there is no mask.
    #[error("ACL without a mask")]
    NoMask,
    /// It ends before the entry for others.
    #[error("ACL without an entry for others")]
    NoOther,
}

impl From<AclError> for Error {
    /// As the kernel answers: an unknown version is not supported, anything else is invalid.
    fn from(error: AclError) -> Self {
        match error {
            AclError::Version(_) => Self::Unsupported,
            _ => Self::InvalidArgument,
        }
    }
}

/// What a user or a group is permitted by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Named {
    /// User or group number, anything but `u32::MAX`.
    pub id: u32,
    /// Read 4, write 2, execute 1.
    pub permissions: u8,
}

/// An access control list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acl {
    owner: u8,
    users: Box<[Named]>,
    group: u8,
    groups: Box<[Named]>,
    mask: Option<u8>,
    other: u8,
}

impl Acl {
    /// Reads an attribute's value. `None`: a header without entries, by which Linux removes an ACL.
    ///
    /// As in Linux, the entries must come in the order owner, users, group, groups, mask, others, and the number
    /// of an entry that names nobody is ignored. Naming somebody twice is refused, which Linux stopped checking:
    /// only the first such entry could ever matter.
    ///
    /// # Errors
    /// The first rule that the bytes break.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, AclError> {
        let (header, entries) = bytes.split_first_chunk().ok_or(AclError::Length(bytes.len()))?;
        let version = u32::from_le_bytes(*header);
        if version != VERSION {
            return Err(AclError::Version(version));
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(AclError::Length(bytes.len()));
        }
        if entries.is_empty() {
            return Ok(None);
        }

        let (mut owner, mut group, mut mask, mut other) = (None, None, None, None);
        let (mut users, mut groups) = (Vec::new(), Vec::new());
        for [tag_low, tag_high, permissions_low, permissions_high, id @ ..] in entries {
            let tag = u16::from_le_bytes([*tag_low, *tag_high]);
            let permissions = match u16::from_le_bytes([*permissions_low, *permissions_high]) {
                bits @ 0..=7 => bits as u8,
                bits => return Err(AclError::Permissions(bits)),
            };
            let named = Named { id: u32::from_le_bytes(*id), permissions };
            let in_order = match tag {
                tag::OWNER => owner.is_none(),
                tag::USER => owner.is_some() && group.is_none(),
                tag::GROUP => owner.is_some() && group.is_none(),
                tag::NAMED_GROUP => group.is_some() && mask.is_none() && other.is_none(),
                tag::MASK => group.is_some() && mask.is_none() && other.is_none(),
                tag::OTHER => group.is_some() && other.is_none(),
                _ => return Err(AclError::Tag(tag)),
            };
            if !in_order {
                return Err(AclError::Order(tag));
            }
            match tag {
                tag::OWNER => owner = Some(permissions),
                tag::USER => users.push(named),
                tag::GROUP => group = Some(permissions),
                tag::NAMED_GROUP => groups.push(named),
                tag::MASK => mask = Some(permissions),
                _ => other = Some(permissions),
            }
        }
        // Whoever has an entry for others has the two before it.
        let (Some(owner), Some(group), Some(other)) = (owner, group, other) else {
            return Err(AclError::NoOther);
        };
        if mask.is_none() && !(users.is_empty() && groups.is_empty()) {
            return Err(AclError::NoMask);
        }
        for (tag, names) in [(tag::USER, &users), (tag::NAMED_GROUP, &groups)] {
            let mut seen = BTreeSet::from([UNDEFINED_ID]);
            if let Some(name) = names.iter().find(|name| !seen.insert(name.id)) {
                return Err(AclError::Name { tag, id: name.id });
            }
        }
        Ok(Some(Self { owner, users: users.into(), group, groups: groups.into(), mask, other }))
    }

    /// The attribute's value.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + ENTRY_BYTES * self.entries());
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        let mut push = |tag: u16, permissions: u8, id: u32| {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&u16::from(permissions).to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        };
        push(tag::OWNER, self.owner, UNDEFINED_ID);
        self.users.iter().for_each(|user| push(tag::USER, user.permissions, user.id));
        push(tag::GROUP, self.group, UNDEFINED_ID);
        self.groups.iter().for_each(|group| push(tag::NAMED_GROUP, group.permissions, group.id));
        if let Some(mask) = self.mask {
            push(tag::MASK, mask, UNDEFINED_ID);
        }
        push(tag::OTHER, self.other, UNDEFINED_ID);
        bytes
    }

    /// Number of entries, at least 3.
    pub fn entries(&self) -> usize {
        3 + self.users.len() + self.groups.len() + usize::from(self.mask.is_some())
    }

    /// The permission bits a file with this ACL shows, 0..=0o777. The group's bits are those of the mask, if there
    /// is one: the most that anybody but the owner and others may get.
    pub fn permissions(&self) -> u16 {
        let group_class = self.mask.unwrap_or(self.group);
        u16::from(self.owner) << 6 | u16::from(group_class) << 3 | u16::from(self.other)
    }

    /// The permission bits that say all this ACL says, or `None` when it says more: it has a mask.
    pub fn equivalent_mode(&self) -> Option<u16> {
        // Whoever is named needs a mask, so the mask alone decides.
        self.mask.is_none().then(|| self.permissions())
    }

    /// Follows chmod(2): the bits of `mode` become those of the owner, of the mask (or of the group, without a
    /// mask), and of others.
    pub fn chmod(&mut self, mode: u16) {
        self.owner = bits(mode, 6);
        *self.mask.as_mut().unwrap_or(&mut self.group) = bits(mode, 3);
        self.other = bits(mode, 0);
    }

    /// What a new inode gets in a directory with this default ACL, when a caller asked for `mode`: its access ACL,
    /// none if the mode says it all, and its mode. The umask has no part in it. A directory inherits this ACL as
    /// its own default ACL, too; a symbolic link inherits nothing.
    ///
    /// Nobody gets more than both the ACL and the caller permit: `posix_acl_create_masq` in Linux.
    pub fn inherit(&self, mode: u16) -> (Option<Self>, u16) {
        let mut acl = self.clone();
        acl.chmod(mode & self.permissions());
        let mode = mode & !0o777 | acl.permissions();
        (acl.unless_equivalent(), mode)
    }

    /// What an inode of mode `mode` has after this access ACL was set: the ACL, none if the mode says it all, and
    /// its mode. `keep_setgid`: the caller is in the file's group or privileged; otherwise the bit goes, as in
    /// `posix_acl_update_mode` in Linux.
    pub fn set_access(self, mode: u16, keep_setgid: bool) -> (Option<Self>, u16) {
        let kept = if keep_setgid { !0o777 } else { !(0o777 | SETGID) };
        let mode = mode & kept | self.permissions();
        (self.unless_equivalent(), mode)
    }

    fn unless_equivalent(self) -> Option<Self> {
        if self.equivalent_mode().is_some() { None } else { Some(self) }
    }
}

/// Three permission bits of a mode.
fn bits(mode: u16, shift: u32) -> u8 {
    (mode >> shift & 7) as u8
}

#[cfg(test)]
mod tests;
