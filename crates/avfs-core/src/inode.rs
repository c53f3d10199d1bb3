//! What an inode is, in memory and in a shard's image.
//!
//! **Invariants:** an inode is the only place where its names, its space and its attributes are kept. A directory's
//! index, held in [`Body::Directory`], is derived from the names of others and is never written.

use crate::codec::{Malformed, Reader, Writer};
use crate::directory::DirectoryIndex;
use crate::extent::{Extent, ExtentMap};
use crate::format::{MAX_FILE_SIZE, MAX_LINKS, MAX_NAME, MAX_SYMLINK, MAX_XATTR_VALUE};
use crate::names::Names;

pub use crate::names::Name;
use crate::types::{FileKind, InodeFlags};
use units::{Ino, Timestamp};

/// A [`Timestamp`] in 12 bytes: four of them stand in each inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedTime([u32; 3]);

impl From<Timestamp> for PackedTime {
    fn from(time: Timestamp) -> Self {
        Self([time.seconds as u32, (time.seconds >> 32) as u32, time.nanoseconds])
    }
}

impl From<PackedTime> for Timestamp {
    fn from(PackedTime([low, high, nanoseconds]): PackedTime) -> Self {
        Self { seconds: (u64::from(high) << 32 | u64::from(low)) as i64, nanoseconds }
    }
}

/// Behind the permission bits of the number that has both.
const FLAGS_SHIFT: u32 = 12;

/// The attributes that change together in one record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreAttributes {
    /// Permission bits, 0..=0o7777.
    pub permissions: u16,
    /// What chattr(1) sets.
    pub flags: InodeFlags,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: PackedTime,
    /// Last change of contents.
    pub mtime: PackedTime,
    /// Last change of the inode.
    pub ctime: PackedTime,
    /// Birth.
    pub btime: PackedTime,
}

/// What depends on the kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A file's space.
    Regular(ExtentMap),
    /// A directory's index: derived.
    Directory(Box<DirectoryIndex>),
    /// A link's target.
    Symlink(Box<[u8]>),
    /// A node's device number; zero for fifos and sockets.
    Node(u32),
}

/// One extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// Name with its namespace, e.g. `user.DOSATTRIB`.
    pub name: Box<[u8]>,
    /// Value, at most 64 KiB.
    pub value: Box<[u8]>,
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// What it is.
    pub kind: FileKind,
    /// Distinguishes inodes that used this number one after the other.
    pub generation: u32,
    /// Owner, mode and times.
    pub attributes: CoreAttributes,
    /// Length in bytes as far as it is recorded; an open file may be longer.
    pub size: u64,
    /// Its names. None: an orphan, removed when nobody uses it any more.
    pub names: Names,
    /// What depends on the kind.
    pub body: Body,
    /// Extended attributes, sorted by name. Boxed because most files have few.
    pub xattrs: Option<Box<Vec<Xattr>>>,
}

impl Inode {
    /// A new inode without names or space.
    pub fn new(kind: FileKind, generation: u32, attributes: CoreAttributes, body: Body) -> Self {
        let size = match &body {
            Body::Symlink(target) => target.len() as u64,
            _ => 0,
        };
        Self { kind, generation, attributes, size, names: Names::default(), body, xattrs: None }
    }

    /// The empty body of a kind; a symbolic link's target and a node's number come with their record.
    pub fn empty_body(kind: FileKind) -> Body {
        match kind {
            FileKind::Regular => Body::Regular(ExtentMap::default()),
            FileKind::Directory => Body::Directory(Box::default()),
            FileKind::Symlink => Body::Symlink(Box::default()),
            _ => Body::Node(0),
        }
    }

    /// A file's extents.
    pub fn extents(&self) -> Option<&ExtentMap> {
        match &self.body {
            Body::Regular(extents) => Some(extents),
            _ => None,
        }
    }

    /// A directory's index.
    pub fn directory(&self) -> Option<&DirectoryIndex> {
        match &self.body {
            Body::Directory(index) => Some(index),
            _ => None,
        }
    }

    /// A directory's index, to change.
    pub fn directory_mut(&mut self) -> Option<&mut DirectoryIndex> {
        match &mut self.body {
            Body::Directory(index) => Some(index),
            _ => None,
        }
    }

    /// What stat shows as link count: derived.
    pub fn links(&self) -> u32 {
        match &self.body {
            Body::Directory(_) if self.names.is_empty() => 0,
            Body::Directory(index) => 2 + index.subdirectories(),
            _ => self.names.len() as u32,
        }
    }

    /// The value of an extended attribute.
    pub fn xattr(&self, name: &[u8]) -> Option<&[u8]> {
        let all = self.xattrs.as_ref()?;
        let index = all.binary_search_by(|xattr| (*xattr.name).cmp(name)).ok()?;
        Some(&all[index].value)
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, name: &[u8], value: &[u8]) {
        let all = self.xattrs.get_or_insert_default();
        match all.binary_search_by(|xattr| (*xattr.name).cmp(name)) {
            Ok(index) => all[index].value = value.into(),
            Err(index) => {
                all.reserve_exact(1);
                all.insert(index, Xattr { name: name.into(), value: value.into() });
            }
        }
    }

    /// Removes an extended attribute; nothing happens if there is none.
    pub fn remove_xattr(&mut self, name: &[u8]) {
        if let Some(all) = &mut self.xattrs
            && let Ok(index) = all.binary_search_by(|xattr| (*xattr.name).cmp(name))
        {
            all.remove(index);
            if all.is_empty() {
                self.xattrs = None;
            }
        }
    }

    /// Bytes of all extended attributes, names and values.
    pub fn xattr_bytes(&self) -> usize {
        self.xattrs.iter().flat_map(|all| all.iter()).map(|xattr| xattr.name.len() + xattr.value.len()).sum()
    }

    /// Appends the inode to a shard's image.
    pub(crate) fn encode(&self, ino: Ino, writer: &mut Writer) {
        writer.ino(ino);
        writer.u8(self.kind as u8);
        writer.number(u64::from(self.generation));
        self.attributes.encode(writer);
        writer.number(self.size);
        writer.number(self.names.len() as u64);
        for name in &self.names {
            writer.ino(name.parent);
            writer.string(&name.name);
        }
        match &self.body {
            Body::Regular(extents) => {
                writer.number(extents.len() as u64);
                for extent in extents.iter() {
                    encode_extent(extent, writer);
                }
            }
            Body::Directory(_) => {}
            Body::Symlink(target) => writer.string(target),
            Body::Node(number) => writer.number(u64::from(*number)),
        }
        let xattrs = self.xattrs.as_deref().map_or(&[][..], Vec::as_slice);
        writer.number(xattrs.len() as u64);
        for xattr in xattrs {
            writer.string(&xattr.name);
            writer.string(&xattr.value);
        }
    }

    /// The inverse of [`encode`](Self::encode).
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<(Ino, Self), Malformed> {
        let ino = reader.ino()?;
        let kind = reader.kind()?;
        let generation = reader.small()?;
        let attributes = CoreAttributes::decode(reader)?;
        let mut inode = Self::new(kind, generation, attributes, Self::empty_body(kind));
        let size = reader.number()?;
        if size > MAX_FILE_SIZE {
            return Err(Malformed);
        }
        inode.size = size;
        let names = reader.small::<usize>()?;
        if names > MAX_LINKS {
            return Err(Malformed);
        }
        for _ in 0..names {
            inode.names.push(decode_name(reader)?);
        }
        match &mut inode.body {
            Body::Regular(extents) => {
                // In their order, so that each goes to the end: a million in another one would take hours.
                let mut end = 0;
                for _ in 0..reader.small::<usize>()? {
                    let extent = decode_extent(reader)?;
                    if extent.logical < end {
                        return Err(Malformed);
                    }
                    end = extent.logical_end();
                    extents.insert(extent, &mut Vec::new());
                }
            }
            Body::Directory(_) => {}
            Body::Symlink(target) => *target = decode_target(reader)?,
            Body::Node(number) => *number = reader.small()?,
        }
        let mut xattrs: Vec<Xattr> = Vec::new();
        for _ in 0..reader.small::<usize>()? {
            let (name, value) = (reader.string()?, reader.string()?);
            check_xattr(name, value)?;
            if xattrs.last().is_some_and(|last| *last.name >= *name) {
                return Err(Malformed);
            }
            xattrs.push(Xattr { name: name.into(), value: value.into() });
        }
        xattrs.shrink_to_fit();
        inode.xattrs = (!xattrs.is_empty()).then(|| Box::new(xattrs));
        Ok((ino, inode))
    }
}

impl CoreAttributes {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.number(u64::from(self.permissions) | u64::from(self.flags.bits()) << FLAGS_SHIFT);
        writer.number(u64::from(self.uid));
        writer.number(u64::from(self.gid));
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            writer.time(time.into());
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let word: u16 = reader.small()?;
        let permissions = word & 0o7777;
        let flags = InodeFlags::from_bits(word >> FLAGS_SHIFT).ok_or(Malformed)?;
        let (uid, gid) = (reader.small()?, reader.small()?);
        let mut time = || Ok::<PackedTime, Malformed>(reader.time()?.into());
        let (atime, mtime, ctime, btime) = (time()?, time()?, time()?, time()?);
        Ok(Self { permissions, flags, uid, gid, atime, mtime, ctime, btime })
    }
}

pub(crate) fn encode_extent(extent: &Extent, writer: &mut Writer) {
    writer.number(extent.logical);
    writer.number(extent.start);
    writer.number(extent.count << 1 | u64::from(extent.unwritten));
}

pub(crate) fn decode_extent(reader: &mut Reader<'_>) -> Result<Extent, Malformed> {
    let (logical, start, count) = (reader.number()?, reader.number()?, reader.number()?);
    let extent = Extent { logical, start, count: count >> 1, unwritten: count & 1 == 1 };
    let end = logical.checked_add(extent.count).ok_or(Malformed)?;
    start.checked_add(extent.count).ok_or(Malformed)?;
    if extent.count == 0 || end > MAX_FILE_SIZE / crate::format::BLOCK + 1 {
        return Err(Malformed);
    }
    Ok(extent)
}

pub(crate) fn decode_name(reader: &mut Reader<'_>) -> Result<Name, Malformed> {
    let (parent, name) = (reader.ino()?, reader.string()?);
    if name.is_empty() || name.len() > MAX_NAME || name.iter().any(|&byte| byte == 0 || byte == b'/') {
        return Err(Malformed);
    }
    Ok(Name { parent, name: name.into() })
}

pub(crate) fn decode_target(reader: &mut Reader<'_>) -> Result<Box<[u8]>, Malformed> {
    let target = reader.string()?;
    if target.len() > MAX_SYMLINK { Err(Malformed) } else { Ok(target.into()) }
}

pub(crate) fn check_xattr(name: &[u8], value: &[u8]) -> Result<(), Malformed> {
    let fits = !name.is_empty() && name.len() <= MAX_NAME && value.len() <= MAX_XATTR_VALUE;
    if fits { Ok(()) } else { Err(Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_million_inodes_of_footage_fit_their_budget() {
        // Inode, allocation header, slot in the shard; names, index and attributes come on top of these.
        assert!(size_of::<Inode>() <= 184, "{}", size_of::<Inode>());
    }

    #[test]
    fn times_before_1970_and_after_2038_and_2262_are_kept() {
        for seconds in [-1, i64::from(i32::MAX) + 1, 15_032_385_535, i64::MIN, i64::MAX] {
            let time = Timestamp { seconds, nanoseconds: 999_999_999 };
            assert_eq!(Timestamp::from(PackedTime::from(time)), time);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_an_inode_or_an_error(bytes: Vec<u8>) {
            let _ = Inode::decode(&mut Reader::new(&bytes));
        }
    }

    #[test]
    fn an_inode_comes_back() {
        let flags = InodeFlags::IMMUTABLE | InodeFlags::NO_ATIME;
        let attributes =
            CoreAttributes { permissions: 0o640, flags, uid: 1000, gid: 100, ..Default::default() };
        let mut inode = Inode::new(FileKind::Regular, 3, attributes, Inode::empty_body(FileKind::Regular));
        inode.size = 20 << 20;
        inode.names.push(Name { parent: Ino(1), name: b"A001C002.mxf"[..].into() });
        inode.set_xattr(b"user.DOSATTRIB", &[1; 56]);
        inode.set_xattr(b"security.NTACL", &[2; 400]);
        let Body::Regular(extents) = &mut inode.body else { unreachable!() };
        extents.insert(Extent { logical: 0, start: 4096, count: 5120, unwritten: false }, &mut Vec::new());
        let mut writer = Writer::default();
        inode.encode(Ino(77), &mut writer);
        let mut reader = Reader::new(&writer.bytes);
        assert_eq!(Inode::decode(&mut reader), Ok((Ino(77), inode)));
        assert!(reader.is_empty());
    }
}
