//! `avfsctl clone`: a copy of a file, or of a directory with all that is below it, that shares its space.

use super::asking::{CtlError, look};
use avfs_fuse::control::socket_path;
use avfs_fuse::mount::DeviceNumber;
use clap::Args;
use rustix::fs as sys;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::Metadata;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// A file, or a directory
    source: PathBuf,
    /// What the copy is called: nothing of that name is there yet, and it lies on the same volume
    target: PathBuf,
}

/// Longest answer to listxattr(2), and longest value. A protocol fact.
const MAX_XATTR: usize = 1 << 16;

/// A copy under way.
struct Copy {
    /// The volume.
    device: u64,
    /// Inodes with several names, and the first one of each here.
    links: HashMap<u64, PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CtlError> {
    let Arguments { source, target } = arguments;
    let metadata = look(source, |path| path.symlink_metadata())?;
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = look(parent, |path| path.metadata())?;
    if target.symlink_metadata().is_ok() {
        return Err(CtlError::path(target, io::Error::other("is there already: name a copy that is not")));
    }
    if metadata.dev() != directory.dev() {
        let why = "lies on another volume than the source: only files of one volume can share space";
        return Err(CtlError::path(target, io::Error::other(why)));
    }
    if !socket_path(DeviceNumber::from_raw(metadata.dev())).exists() {
        return Err(CtlError::path(source, io::Error::other("lies on no AVFS volume")));
    }
    if metadata.is_dir() && is_below(&directory, source, parent) {
        let why = "lies in the directory that is to be copied";
        return Err(CtlError::path(target, io::Error::other(why)));
    }
    let mut copy = Copy { device: metadata.dev(), links: HashMap::new() };
    copy.any(source, target, &metadata)
}

/// Whether a directory is `source` or lies below it.
fn is_below(directory: &Metadata, source: &Path, path: &Path) -> bool {
    let Ok(source) = source.metadata() else { return false };
    let is_source = |found: &Metadata| found.dev() == source.dev() && found.ino() == source.ino();
    let above = path.canonicalize().unwrap_or_default();
    is_source(directory)
        || above.ancestors().any(|above| above.metadata().is_ok_and(|found| is_source(&found)))
}

impl Copy {
    fn any(&mut self, source: &Path, target: &Path, metadata: &Metadata) -> Result<(), CtlError> {
        if metadata.dev() != self.device {
            let why = "another filesystem is mounted there: it is left out, and nothing behind it is copied";
            return Err(CtlError::path(source, io::Error::other(why)));
        }
        if !metadata.is_dir() && metadata.nlink() > 1 {
            if let Some(first) = self.links.get(&metadata.ino()) {
                return std::fs::hard_link(first, target).map_err(|error| CtlError::path(target, error));
            }
            self.links.insert(metadata.ino(), target.to_owned());
        }
        let kind = metadata.file_type();
        if kind.is_dir() {
            self.directory(source, target, metadata)
        } else if kind.is_file() {
            file(source, target, metadata)
        } else if kind.is_symlink() {
            let to = std::fs::read_link(source).map_err(|error| CtlError::path(source, error))?;
            std::os::unix::fs::symlink(to, target).map_err(|error| CtlError::path(target, error))?;
            owner_and_times(target, metadata)
        } else {
            let kind = match kind {
                kind if kind.is_fifo() => FileType::Fifo,
                kind if kind.is_socket() => FileType::Socket,
                kind if kind.is_block_device() => FileType::BlockDevice,
                _ => FileType::CharacterDevice,
            };
            let mode = Mode::from_raw_mode(metadata.mode());
            sys::mknodat(CWD, target, kind, mode, metadata.rdev())
                .map_err(|error| CtlError::path(target, error))?;
            owner_and_times(target, metadata)?;
            sys::chmod(target, mode).map_err(|error| CtlError::path(target, error))
        }
    }

    fn directory(&mut self, source: &Path, target: &Path, metadata: &Metadata) -> Result<(), CtlError> {
        sys::mkdir(target, Mode::RWXU).map_err(|error| CtlError::path(target, error))?;
        for entry in std::fs::read_dir(source).map_err(|error| CtlError::path(source, error))? {
            let entry = entry.map_err(|error| CtlError::path(source, error))?;
            let from = entry.path();
            let found = entry.metadata().map_err(|error| CtlError::path(&from, error))?;
            self.any(&from, &target.join(entry.file_name()), &found)?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path| sys::open(path, flags, Mode::empty()).map_err(|error| CtlError::path(path, error));
        attributes(&open(source)?, &open(target)?, metadata).map_err(|error| CtlError::path(target, error))
    }
}

fn file(source: &Path, target: &Path, metadata: &Metadata) -> Result<(), CtlError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let from = sys::open(source, flags, Mode::empty()).map_err(|error| CtlError::path(source, error))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let to =
        sys::open(target, flags, Mode::RUSR | Mode::WUSR).map_err(|error| CtlError::path(target, error))?;
    loop {
        // As much as the kernel takes at once, in whole blocks; less is copied with each call.
        match sys::copy_file_range(&from, None, &to, None, (isize::MAX as usize) & !4095) {
            Ok(0) => break,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(CtlError::path(target, error)),
        }
    }
    attributes(&from, &to, metadata).map_err(|error| CtlError::path(target, error))
}

fn times(metadata: &Metadata) -> Timestamps {
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
    Timestamps {
        last_access: time(metadata.atime(), metadata.atime_nsec()),
        last_modification: time(metadata.mtime(), metadata.mtime_nsec()),
    }
}

fn owner(metadata: &Metadata) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(metadata.uid())), Some(Gid::from_raw(metadata.gid())))
}

fn owner_and_times(target: &Path, metadata: &Metadata) -> Result<(), CtlError> {
    let (uid, gid) = owner(metadata);
    sys::chownat(CWD, target, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
        .and_then(|()| sys::utimensat(CWD, target, &times(metadata), AtFlags::SYMLINK_NOFOLLOW))
        .map_err(|error| CtlError::path(target, error))
}

/// Owner, extended attributes (ACLs and policies among them), permissions and times, in an order in which none takes another back.
fn attributes(from: &OwnedFd, to: &OwnedFd, metadata: &Metadata) -> rustix::io::Result<()> {
    let (uid, gid) = owner(metadata);
    sys::fchown(to, uid, gid)?;
    let mut names = vec![0; MAX_XATTR];
    let length = sys::flistxattr(from, &mut names[..])?;
    let mut value = Vec::new();
    for name in names[..length].split_inclusive(|&byte| byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        value.resize(MAX_XATTR, 0);
        let length = match sys::fgetxattr(from, name, &mut value[..]) {
            // It went meanwhile.
            Err(rustix::io::Errno::NODATA) => continue,
            found => found?,
        };
        sys::fsetxattr(to, name, &value[..length], XattrFlags::empty())?;
    }
    sys::fchmod(to, Mode::from_raw_mode(metadata.mode()))?;
    sys::futimens(to, &times(metadata))
}
