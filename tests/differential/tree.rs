//! What can be seen of a directory tree without changing it.

use rustix::buffer::spare_capacity;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharacterDevice,
    BlockDevice,
}

impl Kind {
    fn of(file_type: fs::FileType) -> Self {
        match file_type {
            t if t.is_file() => Self::File,
            t if t.is_dir() => Self::Directory,
            t if t.is_symlink() => Self::Symlink,
            t if t.is_fifo() => Self::Fifo,
            t if t.is_socket() => Self::Socket,
            t if t.is_char_device() => Self::CharacterDevice,
            _ => Self::BlockDevice,
        }
    }
}

/// The attributes on which two filesystems must agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// File type.
    pub(crate) kind: Kind,
    /// Permissions with setuid, setgid and sticky.
    pub(crate) mode: u32,
    /// Owner.
    pub(crate) uid: u32,
    /// Group.
    pub(crate) gid: u32,
    /// Links; of a directory two and one for each directory in it.
    pub(crate) links: u64,
    /// Bytes; 0 for a directory, whose size is the filesystem's own affair.
    pub(crate) size: u64,
    /// Device number of a device.
    pub(crate) device: u64,
}

impl Attributes {
    /// Takes what must agree out of a stat.
    pub(crate) fn of(metadata: &fs::Metadata) -> Self {
        let kind = Kind::of(metadata.file_type());
        Self {
            kind,
            mode: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            links: metadata.nlink(),
            size: if kind == Kind::Directory { 0 } else { metadata.size() },
            device: metadata.rdev(),
        }
    }
}

/// One name and what stands behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    attributes: Attributes,
    target: Option<PathBuf>,
    xattrs: BTreeMap<OsString, Vec<u8>>,
}

impl std::ops::Deref for Entry {
    type Target = Attributes;
    fn deref(&self) -> &Attributes {
        &self.attributes
    }
}

/// Everything below a root, by path; the root itself has the empty path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree(BTreeMap<PathBuf, Entry>);

impl Tree {
    /// Looks at everything below `root`.
    ///
    /// # Errors
    /// When anything cannot be looked at, which for the owner of all of it is a failure.
    pub(crate) fn of(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.add(root, PathBuf::new())?;
        Ok(tree)
    }

    fn add(&mut self, root: &Path, path: PathBuf) -> io::Result<()> {
        let place = if path.as_os_str().is_empty() { root.to_owned() } else { root.join(&path) };
        let attributes = Attributes::of(&fs::symlink_metadata(&place)?);
        if attributes.kind == Kind::Directory {
            for child in fs::read_dir(&place)? {
                let child = child?;
                let child_path = path.join(child.file_name());
                let listed = Kind::of(child.file_type()?);
                self.add(root, child_path.clone())?;
                let found = self.0[&child_path].kind;
                if listed != found {
                    let text = format!("{child_path:?} is listed as {listed:?}, and is a {found:?}");
                    return Err(io::Error::other(text));
                }
            }
        }
        let target = if attributes.kind == Kind::Symlink { Some(fs::read_link(&place)?) } else { None };
        let xattrs = xattrs(&place)?;
        if self.0.insert(path.clone(), Entry { attributes, target, xattrs }).is_some() {
            return Err(io::Error::other(format!("{path:?} is listed twice")));
        }
        Ok(())
    }

    /// All names but the root.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Path, &Entry)> {
        self.0.iter().map(|(path, entry)| (path.as_path(), entry)).filter(|(path, _)| *path != Path::new(""))
    }

    /// The first thing in which two trees differ.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        for (path, left) in &self.0 {
            match other.0.get(path) {
                None => return Some(format!("{path:?} is on the left alone")),
                Some(right) if left != right => {
                    return Some(format!("{path:?}\n    left  {left:?}\n    right {right:?}"));
                }
                Some(_) => {}
            }
        }
        let extra = other.0.keys().find(|path| !self.0.contains_key(*path))?;
        Some(format!("{extra:?} is on the right alone"))
    }
}

/// Access, modification and change time of everything below a root, in nanoseconds since 1970.
pub(crate) type Times = BTreeMap<PathBuf, [i128; 3]>;

/// Looks at the times of everything in `tree`. Reads no file, link or directory, which would change access times.
pub(crate) fn times(root: &Path, tree: &Tree) -> io::Result<Times> {
    let paths = tree.0.keys();
    paths
        .map(|path| {
            let m = fs::symlink_metadata(if path.as_os_str().is_empty() {
                root.into()
            } else {
                root.join(path)
            })?;
            let nanoseconds = |s: i64, ns: i64| i128::from(s) * 1_000_000_000 + i128::from(ns);
            let times = [
                nanoseconds(m.atime(), m.atime_nsec()),
                nanoseconds(m.mtime(), m.mtime_nsec()),
                nanoseconds(m.ctime(), m.ctime_nsec()),
            ];
            Ok((path.clone(), times))
        })
        .collect()
}

/// All extended attributes of `path` itself.
fn xattrs(path: &Path) -> io::Result<BTreeMap<OsString, Vec<u8>>> {
    let mut list = Vec::with_capacity(64 * 1024);
    rustix::fs::llistxattr(path, spare_capacity(&mut list))?;
    list.split(|&byte| byte == 0)
        // XFS shows ACLs a second time, under names of its own.
        .filter(|name| !name.is_empty() && !name.starts_with(b"trusted.SGI_ACL_"))
        .map(|name| {
            let mut value = Vec::with_capacity(64 * 1024);
            rustix::fs::lgetxattr(path, name, spare_capacity(&mut value))?;
            Ok((OsString::from_vec(name.to_vec()), value))
        })
        .collect()
}

/// Whether two open files have the same bytes, and whether their holes are holes: the first thing that is wrong.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn contents_difference(left: &File, right: &File) -> io::Result<Option<String>> {
    const CHUNK: usize = 1 << 20;
    let (mut a, mut b) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut offset = 0;
    loop {
        let (n, m) = (read_full(left, &mut a, offset)?, read_full(right, &mut b, offset)?);
        if let Some(at) = (0..n.min(m)).find(|&at| a[at] != b[at]) {
            let at_offset = offset + at as u64;
            return Ok(Some(format!("byte {at_offset}: {:#04x} left, {:#04x} right", a[at], b[at])));
        }
        if n != m {
            return Ok(Some(format!(
                "end of file at {} left, {} right",
                offset + n as u64,
                offset + m as u64
            )));
        }
        if n == 0 {
            break;
        }
        offset += n as u64;
    }
    Ok(holes_fault(left)?.or(holes_fault(right)?))
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

/// What is wrong with the holes that SEEK_DATA and SEEK_HOLE report, if anything: data and holes take turns up to the
/// end of the file, and holes read as zeros. Where they lie is the filesystem's own affair.
fn holes_fault(file: &File) -> io::Result<Option<String>> {
    let size = file.metadata()?.size();
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < size {
        let data = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
            Ok(data) if data >= offset && data < size => data,
            Ok(data) => return Ok(Some(format!("SEEK_DATA from {offset} of {size} gives {data}"))),
            Err(Errno::NXIO) => size,
            Err(error) => return Err(error.into()),
        };
        while offset < data {
            let want = buffer.len().min((data - offset) as usize);
            let n = read_full(file, &mut buffer[..want], offset)?;
            if n < want || buffer[..n].iter().any(|&byte| byte != 0) {
                return Ok(Some(format!("SEEK_DATA says there is a hole at {offset}, but it is not zero")));
            }
            offset += n as u64;
        }
        if data == size {
            break;
        }
        match rustix::fs::seek(file, SeekFrom::Hole(data))? {
            hole if hole > data && hole <= size => offset = hole,
            hole => return Ok(Some(format!("SEEK_HOLE from {data} of {size} gives {hole}"))),
        }
    }
    match rustix::fs::seek(file, SeekFrom::Hole(size)) {
        Err(Errno::NXIO) => Ok(None),
        other => Ok(Some(format!("SEEK_HOLE from the end of the file gives {other:?}"))),
    }
}

/// Bytes for a message: their number and the first of them.
pub(crate) fn abbreviated(bytes: &[u8]) -> String {
    let head: String =
        std::ffi::OsStr::from_bytes(&bytes[..bytes.len().min(24)]).to_string_lossy().escape_debug().collect();
    format!("{} bytes \"{head}\"", bytes.len())
}
