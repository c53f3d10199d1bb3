//! One of the two directories: doing operations in it, and saying what came of them.

use crate::operation::{
    Allocation, DIRECT_ALIGNMENT, OpenFile, OpenOptions, Operation, Renaming, SLOTS, Step, Time, XattrSetting,
};
use crate::tree::{Attributes, Kind, Tree, abbreviated, times};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use rustix::buffer::spare_capacity;
use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    Uid, XattrFlags,
};
use rustix::io::Errno;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What an operation gave back.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Nothing,
    /// The slot of the operation is empty.
    NotOpen,
    Count(u64),
    Bytes(Vec<u8>),
    Attributes(Attributes),
    /// The times that were set to something definite: access, modification.
    Times(Option<(i64, i64)>, Option<(i64, i64)>),
    Names(Vec<String>),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("done"),
            Self::NotOpen => f.write_str("not open"),
            Self::Count(count) => write!(f, "{count}"),
            Self::Bytes(bytes) => f.write_str(&abbreviated(bytes)),
            Self::Attributes(attributes) => write!(f, "{attributes:?}"),
            Self::Times(access, modification) => write!(f, "{access:?} {modification:?}"),
            Self::Names(names) => write!(f, "{names:?}"),
        }
    }
}

/// What came of an operation.
pub(crate) type Outcome = Result<Value, Errno>;

/// A file held open.
struct Handle {
    file: File,
    info: OpenFile,
}

/// A directory and what is open in it.
pub(crate) struct Side {
    pub(crate) name: &'static str,
    pub(crate) root: PathBuf,
    remount: Option<String>,
    handles: [Option<Handle>; SLOTS],
}

impl Side {
    pub(crate) fn new(name: &'static str, root: PathBuf, remount: Option<String>) -> Self {
        Self { name, root, remount, handles: Default::default() }
    }

    /// What is open.
    pub(crate) fn open_files(&self) -> [Option<OpenFile>; SLOTS] {
        std::array::from_fn(|slot| self.handles[slot].as_ref().map(|handle| handle.info))
    }

    /// Everything below the root.
    ///
    /// # Errors
    /// When something there cannot be looked at.
    pub(crate) fn tree(&self) -> io::Result<Tree> {
        Tree::of(&self.root)
    }

    /// The attributes of what is open in a slot.
    ///
    /// # Errors
    /// Those of fstat.
    pub(crate) fn attributes(&self, slot: usize) -> io::Result<Option<Attributes>> {
        self.handles[slot].as_ref().map(|handle| Ok(Attributes::of(&handle.file.metadata()?))).transpose()
    }

    /// The file open in a slot, opened once more for reading; none if it is not a regular file. Finds files whose
    /// names are gone.
    ///
    /// # Errors
    /// Those of open.
    pub(crate) fn reopen(&self, slot: usize) -> io::Result<Option<File>> {
        let Some(handle) = &self.handles[slot] else { return Ok(None) };
        if !handle.file.metadata()?.is_file() {
            return Ok(None);
        }
        File::open(format!("/proc/self/fd/{}", handle.file.as_raw_fd())).map(Some)
    }

    /// Does one operation.
    pub(crate) fn execute(&mut self, step: &Step) -> Outcome {
        match &step.operation {
            Operation::Open { slot, path, options, mode } => {
                // The old one is closed even if the open fails, on both sides alike.
                self.handles[*slot] = None;
                let path = self.at(path);
                let fd = step
                    .user
                    .act(|| rustix::fs::open(&path, open_flags(options), Mode::from_raw_mode(*mode)))?;
                let info = OpenFile { direct: options.direct };
                self.handles[*slot] = Some(Handle { file: File::from(fd), info });
                Ok(Value::Nothing)
            }
            Operation::Close { slot } => {
                Ok(if self.handles[*slot].take().is_some() { Value::Nothing } else { Value::NotOpen })
            }
            Operation::Read { slot, .. }
            | Operation::Write { slot, .. }
            | Operation::SetLength { slot, .. }
            | Operation::Allocate { slot, .. }
            | Operation::Sync { slot, .. }
            | Operation::Stat { slot } => match &self.handles[*slot] {
                Some(handle) => step.user.act(|| on_file(&handle.file, &step.operation)),
                None => Ok(Value::NotOpen),
            },
            Operation::Copy { from, from_offset, slot, offset, length } => {
                match (&self.handles[*from], &self.handles[*slot]) {
                    (Some(from), Some(to)) => {
                        step.user.act(|| copy(&from.file, *from_offset, &to.file, *offset, *length))
                    }
                    _ => Ok(Value::NotOpen),
                }
            }
            Operation::Remount => self.remount().map(|()| Value::Nothing),
            on_names => step.user.act(|| self.on_names(on_names)),
        }
    }

    fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path)
    }

    /// The operations that name what they work on.
    fn on_names(&self, operation: &Operation) -> Outcome {
        match operation {
            Operation::Truncate { path, size } => {
                let size = libc::off_t::try_from(*size).map_err(|_| Errno::FBIG)?;
                let fd = rustix::fs::open(
                    self.at(path),
                    OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
                    Mode::empty(),
                )?;
                rustix::fs::ftruncate(&fd, size.cast_unsigned())?;
            }
            Operation::Rename { from, to, how } => {
                let flags = match how {
                    Renaming::Replace => RenameFlags::empty(),
                    Renaming::NoReplace => RenameFlags::NOREPLACE,
                    Renaming::Exchange => RenameFlags::EXCHANGE,
                };
                match rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags) {
                    // POSIX has both for a target that is not empty.
                    Err(Errno::EXIST) if flags.is_empty() => return Err(Errno::NOTEMPTY),
                    outcome => outcome?,
                }
            }
            Operation::Link { from, to } => rustix::fs::link(self.at(from), self.at(to))?,
            Operation::Symlink { target, path } => rustix::fs::symlink(target, self.at(path))?,
            Operation::Unlink { path } => rustix::fs::unlink(self.at(path))?,
            Operation::MakeDirectory { path, mode } => {
                rustix::fs::mkdir(self.at(path), Mode::from_raw_mode(*mode))?
            }
            Operation::RemoveDirectory { path } => rustix::fs::rmdir(self.at(path))?,
            Operation::MakeNode { path, kind, mode } => {
                let (file_type, device) = match kind {
                    Kind::Fifo => (FileType::Fifo, 0),
                    Kind::Socket => (FileType::Socket, 0),
                    // The null device: whoever opens it does no harm.
                    Kind::CharacterDevice => (FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
                    // A number that no driver has.
                    Kind::BlockDevice => (FileType::BlockDevice, rustix::fs::makedev(300, 70_000)),
                    Kind::File | Kind::Directory | Kind::Symlink => (FileType::RegularFile, 0),
                };
                rustix::fs::mknodat(CWD, self.at(path), file_type, Mode::from_raw_mode(*mode), device)?;
            }
            Operation::Access { path, mode } => {
                // With the effective identity, which the filesystem identity follows.
                let access = Access::from_bits_truncate(*mode);
                rustix::fs::accessat(CWD, self.at(path), access, AtFlags::EACCESS)?;
            }
            Operation::List { path } => {
                let entries = fs::read_dir(self.at(path)).map_err(errno)?;
                let names = entries.map(|entry| Ok(format!("{:?}", entry?.file_name())));
                let mut names: Vec<String> = names.collect::<io::Result<_>>().map_err(errno)?;
                names.sort_unstable();
                return Ok(Value::Names(names));
            }
            Operation::Chmod { path, mode } => rustix::fs::chmod(self.at(path), Mode::from_raw_mode(*mode))?,
            Operation::Chown { path, uid, gid, follow } => {
                let flags = if *follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
                rustix::fs::chownat(
                    CWD,
                    self.at(path),
                    uid.map(Uid::from_raw),
                    gid.map(Gid::from_raw),
                    flags,
                )?;
            }
            Operation::SetTimes { path, access, modification } => {
                let path = self.at(path);
                let wanted =
                    Timestamps { last_access: timespec(*access), last_modification: timespec(*modification) };
                rustix::fs::utimensat(CWD, &path, &wanted, AtFlags::SYMLINK_NOFOLLOW)?;
                let found = fs::symlink_metadata(&path).map_err(errno)?;
                let definite = |time, found| matches!(time, Time::At { .. }).then_some(found);
                return Ok(Value::Times(
                    definite(*access, (found.atime(), found.atime_nsec())),
                    definite(*modification, (found.mtime(), found.mtime_nsec())),
                ));
            }
            Operation::SetXattr { path, name, value, how } => {
                let flags = match how {
                    XattrSetting::Either => XattrFlags::empty(),
                    XattrSetting::Create => XattrFlags::CREATE,
                    XattrSetting::Replace => XattrFlags::REPLACE,
                };
                rustix::fs::lsetxattr(self.at(path), *name, value, flags)?;
            }
            Operation::GetXattr { path, name } => {
                let mut value = Vec::with_capacity(64 * 1024);
                rustix::fs::lgetxattr(self.at(path), *name, spare_capacity(&mut value))?;
                return Ok(Value::Bytes(value));
            }
            Operation::RemoveXattr { path, name } => rustix::fs::lremovexattr(self.at(path), *name)?,
            other => unreachable!("{other:?} is not an operation on names"),
        }
        Ok(Value::Nothing)
    }

    /// Closes everything; unmounts and mounts, if this side can; proves that no time changed meanwhile.
    fn remount(&mut self) -> Result<(), Errno> {
        self.handles = Default::default();
        let Some(command) = &self.remount else { return Ok(()) };
        let tree = self.tree().map_err(errno)?;
        let before = times(&self.root, &tree).map_err(errno)?;
        let status = Command::new("bash").arg("-c").arg(command).status().map_err(errno)?;
        if !status.success() {
            eprintln!("{}: the remount command failed: {status}", self.name);
            return Err(Errno::IO);
        }
        let after = times(&self.root, &tree).map_err(errno)?;
        if before == after {
            return Ok(());
        }
        for (path, times) in &before {
            if after.get(path) != Some(times) {
                eprintln!(
                    "{}: {path:?} had the times {times:?} before a remount, now {:?}",
                    self.name,
                    after.get(path)
                );
            }
        }
        Err(Errno::STALE)
    }
}

/// An operation on one open file.
fn on_file(file: &File, operation: &Operation) -> Outcome {
    match operation {
        Operation::Read { offset, length, .. } => {
            let mut buffer = AlignedBuffer::new(*length);
            let count = file.read_at(buffer.bytes(), *offset).map_err(errno)?;
            return Ok(Value::Bytes(buffer.bytes()[..count].to_vec()));
        }
        Operation::Write { offset, length, fill, .. } => {
            let mut buffer = AlignedBuffer::new(*length);
            SmallRng::seed_from_u64(*fill).fill_bytes(buffer.bytes());
            let count = file.write_at(buffer.bytes(), *offset).map_err(errno)?;
            return Ok(Value::Count(count as u64));
        }
        Operation::SetLength { size, .. } => rustix::fs::ftruncate(file, *size)?,
        Operation::Allocate { how, offset, length, .. } => {
            let flags = match how {
                Allocation::Extend => FallocateFlags::empty(),
                Allocation::KeepSize => FallocateFlags::KEEP_SIZE,
                Allocation::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                Allocation::ZeroRange => FallocateFlags::ZERO_RANGE,
                Allocation::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            };
            rustix::fs::fallocate(file, flags, *offset, *length)?;
        }
        Operation::Sync { data_only: true, .. } => rustix::fs::fdatasync(file)?,
        Operation::Sync { data_only: false, .. } => rustix::fs::fsync(file)?,
        Operation::Stat { .. } => {
            return Ok(Value::Attributes(Attributes::of(&file.metadata().map_err(errno)?)));
        }
        other => unreachable!("{other:?} is not an operation on an open file"),
    }
    Ok(Value::Nothing)
}

/// Copies all that can be copied; one call may do less.
fn copy(from: &File, mut from_offset: u64, to: &File, mut offset: u64, length: usize) -> Outcome {
    let mut done = 0;
    while done < length {
        let want = length - done;
        match rustix::fs::copy_file_range(from, Some(&mut from_offset), to, Some(&mut offset), want)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(Value::Count(done as u64))
}

fn open_flags(options: &OpenOptions) -> OFlags {
    // Never to wait for the other end of a fifo.
    let mut flags = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    flags |= match (options.read, options.write) {
        (true, true) => OFlags::RDWR,
        (_, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
    };
    for (wanted, flag) in [
        (options.append, OFlags::APPEND),
        (options.create, OFlags::CREATE),
        (options.exclusive && options.create, OFlags::EXCL),
        (options.truncate, OFlags::TRUNC),
        (options.direct, OFlags::DIRECT),
        (options.no_follow, OFlags::NOFOLLOW),
    ] {
        flags.set(flag, wanted);
    }
    flags
}

fn timespec(time: Time) -> Timespec {
    match time {
        Time::Now => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Time::Omit => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Time::At { seconds, nanoseconds } => Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Memory aligned for direct I/O.
struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    fn new(length: usize) -> Self {
        let memory = vec![0; length + DIRECT_ALIGNMENT];
        let start = memory.as_ptr().align_offset(DIRECT_ALIGNMENT);
        Self { memory, start, length }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}
