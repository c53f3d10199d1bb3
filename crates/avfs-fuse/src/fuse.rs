//! `/dev/fuse`: requests in, calls of the volume, replies out. Nothing is decided here.
//!
//! Requests that need no device are answered on the thread that read them, which spares a change of thread (6 µs
//! and half the CPU of a small read). Where the volume takes a continuation, the reply moves into it.

use crate::application;
use crate::errno::Errors;
use crate::protocol::{self, CACHE_LIFETIME, MAX_BACKGROUND, MAX_REQUEST_BYTES, OpenReply};
use avfs_core::Error;
use avfs_core::types::{Attributes, Caller, FileKind, HandleId, ReadData, ReadSlice, SetAttributes, SetTime};
use avfs_core::volume::{Done, Volume};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, PollEvents, PollFlags,
    PollNotifier, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use units::{Ino, Timestamp};

/// What the kernel is asked for, where it has it.
///
/// Left out on purpose: POSIX_LOCKS and FLOCK_LOCKS (locks of one host belong in its kernel), WRITEBACK_CACHE (the
/// kernel's pages would hide writes from the scheduler), ATOMIC_O_TRUNC (truncation comes as SETATTR), and what
/// the decoder does not know: OVER_IO_URING, SETXATTR_EXT, SECURITY_CTX, CREATE_SUPP_GROUP.
const WANTED: [InitFlags; 13] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_BIG_WRITES,
    InitFlags::FUSE_MAX_PAGES,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_EXPORT_SUPPORT,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];

/// The adaptor.
pub struct Fuse {
    volume: Arc<Volume>,
    errors: Arc<Errors>,
}

impl Fuse {
    /// Serves `volume`, counting what goes wrong in `errors`.
    pub fn new(volume: Arc<Volume>, errors: Arc<Errors>) -> Self {
        Self { volume, errors }
    }

    fn errno(&self, operation: &'static str, ino: Ino, error: Error) -> Errno {
        Errno::from_i32(self.errors.answer(operation, ino, error))
    }

    /// A continuation that hands a success to `succeed` and answers an error.
    fn done<T, R: Fail>(
        &self,
        operation: &'static str,
        ino: Ino,
        reply: R,
        succeed: impl FnOnce(R, T) + Send + 'static,
    ) -> Done<T> {
        let errors = Arc::clone(&self.errors);
        Box::new(move |result| match result {
            Ok(value) => succeed(reply, value),
            Err(error) => reply.fail(Errno::from_i32(errors.answer(operation, ino, error))),
        })
    }

    fn empty(&self, operation: &'static str, ino: Ino, reply: ReplyEmpty, result: Result<(), Error>) {
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.errno(operation, ino, error)),
        }
    }

    fn entry(
        &self,
        operation: &'static str,
        ino: Ino,
        reply: ReplyEntry,
        result: Result<avfs_core::types::Entry, Error>,
    ) {
        match result {
            Ok(entry) => {
                reply.entry(&CACHE_LIFETIME, &attributes(&entry.attributes), Generation(entry.generation));
            }
            Err(error) => reply.error(self.errno(operation, ino, error)),
        }
    }
}

/// A reply that can say no.
trait Fail: Send + 'static {
    fn fail(self, errno: Errno);
}

macro_rules! fail {
    ($($reply:ty),*) => {
        $(impl Fail for $reply {
            fn fail(self, errno: Errno) {
                self.error(errno);
            }
        })*
    };
}
fail!(ReplyAttr, ReplyData, ReplyEmpty, ReplyWrite);

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid() }
}

fn ino(node: INodeNo) -> Ino {
    Ino(node.0)
}

fn handle(handle: FileHandle) -> HandleId {
    HandleId(handle.0)
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::CharacterDevice => FileType::CharDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

fn attributes(from: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(from.ino.0),
        size: from.size,
        blocks: from.blocks,
        atime: system_time(from.atime),
        mtime: system_time(from.mtime),
        ctime: system_time(from.ctime),
        crtime: system_time(from.btime),
        kind: file_type(from.kind),
        perm: from.permissions,
        nlink: from.links,
        uid: from.uid,
        gid: from.gid,
        rdev: from.rdev,
        blksize: 4096,
        flags: 0,
    }
}

/// What an entry says beside its lifetime when it says "no such name": inode number 0.
const NO_ATTRIBUTES: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: SystemTime::UNIX_EPOCH,
    mtime: SystemTime::UNIX_EPOCH,
    ctime: SystemTime::UNIX_EPOCH,
    crtime: SystemTime::UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};

fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(seconds)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(seconds)
    };
    whole
        .and_then(|whole| whole.checked_add(Duration::from_nanos(u64::from(time.nanoseconds))))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The time the kernel sent. fuser 0.18 decodes (−2 s, +800 ms), which is 1.2 s before the epoch, as 2.8 s before
/// it: seconds and nanoseconds both subtracted. Taken apart the same way, they are what the kernel sent.
fn timestamp(time: SystemTime) -> Timestamp {
    let apart =
        |distance: Duration| (i64::try_from(distance.as_secs()).unwrap_or(i64::MAX), distance.subsec_nanos());
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => {
            let (seconds, nanoseconds) = apart(since);
            Timestamp { seconds, nanoseconds }
        }
        Err(before) => {
            let (seconds, nanoseconds) = apart(before.duration());
            Timestamp { seconds: -seconds, nanoseconds }
        }
    }
}

fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(timestamp(time)),
    }
}

/// Answers a read: straight from the cache's memory if the data lies in one piece, otherwise gathered in a buffer
/// of this thread.
fn send(reply: ReplyData, data: &ReadData) {
    thread_local! {
        static GATHERED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    if let Some(bytes) = data.as_single() {
        return reply.data(bytes);
    }
    GATHERED.with_borrow_mut(|gathered| {
        gathered.clear();
        for slice in &data.slices {
            match slice {
                ReadSlice::Buffer { buffer, start, length } => {
                    gathered.extend_from_slice(buffer.bytes(*start, *length));
                }
                ReadSlice::Zeros(length) => gathered.resize(gathered.len() + length, 0),
            }
        }
        reply.data(gathered);
    });
}

/// Answers a request for an attribute's value or for the list of names: its size if the caller has no room at all.
fn send_value(reply: ReplyXattr, value: &[u8], room: u32) -> Result<(), (ReplyXattr, Error)> {
    if room == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > room as usize {
        return Err((reply, Error::BufferTooSmall));
    } else {
        reply.data(value);
    }
    Ok(())
}

impl Filesystem for Fuse {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in WANTED {
            if config.add_capabilities(wanted).is_err() {
                tracing::info!(capability = ?wanted, "this kernel does not have");
            }
        }
        // Each setter gives back the nearest value that it takes.
        if let Err(nearest) = config.set_max_write(MAX_REQUEST_BYTES) {
            let _ = config.set_max_write(nearest);
        }
        if let Err(nearest) = config.set_max_background(MAX_BACKGROUND) {
            let _ = config.set_max_background(nearest);
        }
        if let Err(nearest) = config.set_time_granularity(Duration::from_nanos(1)) {
            let _ = config.set_time_granularity(nearest);
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.volume.lookup(ino(parent), name.as_bytes()) {
            // The kernel remembers that the name does not exist; who creates it passes through this kernel.
            Err(Error::NotFound) => reply.entry(&CACHE_LIFETIME, &NO_ATTRIBUTES, Generation(0)),
            result => self.entry("lookup", ino(parent), reply, result),
        }
    }

    fn forget(&self, _request: &Request, node: INodeNo, lookups: u64) {
        self.volume.forget(ino(node), lookups);
    }

    fn getattr(&self, _request: &Request, node: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.volume.attributes(ino(node)) {
            Ok(found) => reply.attr(&CACHE_LIFETIME, &attributes(&found)),
            Err(error) => reply.error(self.errno("getattr", ino(node), error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = SetAttributes {
            permissions: mode.map(protocol::permissions),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            btime: None,
            // Nothing says whether the caller may keep them.
            keep_privileges: request.uid() == 0,
        };
        let done = self.done("setattr", ino(node), reply, |reply, changed| {
            reply.attr(&CACHE_LIFETIME, &attributes(&changed));
        });
        if changes.size.is_some() && request.uid() != 0 {
            self.volume.drop_privileges(ino(node), caller(request));
        }
        self.volume.set_attributes(ino(node), changes, done);
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        match self.volume.read_link(ino(node)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(self.errno("readlink", ino(node), error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let result = protocol::node_kind(mode).and_then(|kind| {
            self.volume.make_node(
                caller(request),
                ino(parent),
                name.as_bytes(),
                kind,
                protocol::permissions(mode),
                protocol::permissions(umask),
                rdev,
            )
        });
        self.entry("mknod", ino(parent), reply, result);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let result = self.volume.make_directory(
            caller(request),
            ino(parent),
            name.as_bytes(),
            protocol::permissions(mode),
            protocol::permissions(umask),
        );
        self.entry("mkdir", ino(parent), reply, result);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty("unlink", ino(parent), reply, self.volume.unlink(ino(parent), name.as_bytes()));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty("rmdir", ino(parent), reply, self.volume.remove_directory(ino(parent), name.as_bytes()));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let result = self.volume.make_symlink(caller(request), ino(parent), name.as_bytes(), target);
        self.entry("symlink", ino(parent), reply, result);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        let result = protocol::rename_flags(flags.bits()).and_then(|flags| {
            self.volume.rename(ino(parent), name.as_bytes(), ino(new_parent), new_name.as_bytes(), flags)
        });
        self.empty("rename", ino(parent), reply, result);
    }

    fn link(
        &self,
        _request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let result = self.volume.link(ino(node), ino(new_parent), new_name.as_bytes());
        self.entry("link", ino(node), reply, result);
    }

    fn open(&self, _request: &Request, node: INodeNo, flags: fuser::OpenFlags, reply: ReplyOpen) {
        let flags = protocol::open_flags(flags.0);
        match self.volume.open_file(ino(node), flags) {
            Ok(opened) => {
                let answer = OpenReply::file(&opened, flags).bits();
                reply.opened(FileHandle(opened.handle.0), FopenFlags::from_bits_retain(answer));
            }
            Err(error) => reply.error(self.errno("open", ino(node), error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let flags = protocol::open_flags(flags);
        let created = self.volume.create(
            caller(request),
            ino(parent),
            name.as_bytes(),
            protocol::permissions(mode),
            protocol::permissions(umask),
            flags,
        );
        match created {
            Ok((entry, opened)) => reply.created(
                &CACHE_LIFETIME,
                &attributes(&entry.attributes),
                Generation(entry.generation),
                FileHandle(opened.handle.0),
                FopenFlags::from_bits_retain(OpenReply::file(&opened, flags).bits()),
            ),
            Err(error) => reply.error(self.errno("create", ino(parent), error)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        node: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let done = self.done("read", ino(node), reply, |reply, data: ReadData| send(reply, &data));
        self.volume.read(handle(file), offset, size as usize, done);
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        file: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let unprivileged = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID).then(|| caller(request));
        let done: Done<usize> = if protocol::is_synchronous(flags.0) {
            let volume = Arc::clone(&self.volume);
            let errors = Arc::clone(&self.errors);
            Box::new(move |written| match written {
                Ok(length) => volume.fsync(
                    ino(node),
                    Box::new(move |durable| match durable {
                        Ok(()) => reply.written(length as u32),
                        Err(error) => {
                            reply.error(Errno::from_i32(errors.answer("write", ino(node), error)));
                        }
                    }),
                ),
                Err(error) => reply.error(Errno::from_i32(errors.answer("write", ino(node), error))),
            })
        } else {
            self.done("write", ino(node), reply, |reply, length: usize| reply.written(length as u32))
        };
        self.volume.write(handle(file), offset, data, unprivileged, done);
    }

    fn flush(
        &self,
        _request: &Request,
        node: INodeNo,
        file: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.volume.flush(handle(file), self.done("flush", ino(node), reply, |reply, ()| reply.ok()));
    }

    fn release(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.volume.release(handle(file));
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        node: INodeNo,
        _file: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let done = self.done("fsync", ino(node), reply, |reply, ()| reply.ok());
        self.volume.fsync(ino(node), done);
    }

    // A directory is read by inode and cookie: opening it makes no handle, but lets the kernel keep the listing.
    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: fuser::OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::from_bits_retain(OpenReply::DIRECTORY.bits()));
    }

    fn readdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _directory: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectory,
    ) {
        let result = self.volume.read_directory(ino(node), cookie, false, &mut |entry| {
            let full = reply.add(
                INodeNo(entry.ino.0),
                entry.cookie,
                file_type(entry.kind),
                OsStr::from_bytes(&entry.name),
            );
            !full
        });
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.errno("readdir", ino(node), error)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        node: INodeNo,
        _directory: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let result = self.volume.read_directory(ino(node), cookie, true, &mut |entry| {
            let (lifetime, found, generation) = match &entry.entry {
                Some(found) => (CACHE_LIFETIME, attributes(&found.attributes), found.generation),
                // `.` and `..`, of which the kernel takes nothing but number and type.
                None => {
                    let known =
                        FileAttr { ino: INodeNo(entry.ino.0), kind: file_type(entry.kind), ..NO_ATTRIBUTES };
                    (Duration::ZERO, known, 0)
                }
            };
            let full = reply.add(
                found.ino,
                entry.cookie,
                OsStr::from_bytes(&entry.name),
                &lifetime,
                &found,
                Generation(generation),
            );
            !full
        });
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.errno("readdirplus", ino(node), error)),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _node: INodeNo,
        _directory: FileHandle,
        _flags: fuser::OpenFlags,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _directory: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let done = self.done("fsyncdir", ino(node), reply, |reply, ()| reply.ok());
        self.volume.fsync(ino(node), done);
    }

    fn statfs(&self, _request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        let figures = self.volume.statistics();
        reply.statfs(
            figures.blocks,
            figures.free,
            figures.available,
            figures.files + figures.files_free,
            figures.files_free,
            figures.block_size,
            figures.name_length,
            figures.block_size,
        );
    }

    fn setxattr(
        &self,
        _request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let result = protocol::xattr_flags(flags)
            .and_then(|flags| self.volume.set_xattr(ino(node), name.as_bytes(), value, flags));
        self.empty("setxattr", ino(node), reply, result);
    }

    fn getxattr(&self, request: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let sent = match self.volume.get_xattr(caller(request), ino(node), name.as_bytes()) {
            Ok(value) => send_value(reply, &value, size),
            Err(error) => Err((reply, error)),
        };
        if let Err((reply, error)) = sent {
            reply.error(self.errno("getxattr", ino(node), error));
        }
    }

    fn listxattr(&self, _request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let sent = match self.volume.list_xattrs(ino(node)) {
            Ok(names) => send_value(reply, &names, size),
            Err(error) => Err((reply, error)),
        };
        if let Err((reply, error)) = sent {
            reply.error(self.errno("listxattr", ino(node), error));
        }
    }

    fn removexattr(&self, _request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let result = self.volume.remove_xattr(ino(node), name.as_bytes());
        self.empty("removexattr", ino(node), reply, result);
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        file: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let done = self.done("fallocate", ino(node), reply, |reply, ()| reply.ok());
        // The kernel does not say here whether privileges go.
        if request.uid() != 0 {
            self.volume.drop_privileges(ino(node), caller(request));
        }
        match protocol::allocate_mode(mode) {
            Ok(mode) => self.volume.allocate(handle(file), offset, length, mode, done),
            Err(error) => done(Err(error)),
        }
    }

    fn lseek(
        &self,
        _request: &Request,
        node: INodeNo,
        file: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = protocol::seek(offset, whence)
            .and_then(|(offset, seek)| self.volume.seek(handle(file), offset, seek))
            .and_then(|offset| i64::try_from(offset).map_err(|_| Error::FileTooLarge));
        match found {
            Ok(offset) => reply.offset(offset),
            Err(error) => reply.error(self.errno("lseek", ino(node), error)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _from: INodeNo,
        from: FileHandle,
        from_offset: u64,
        to_node: INodeNo,
        to: FileHandle,
        to_offset: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let done = self.done("copy_file_range", ino(to_node), reply, |reply, length: usize| {
            reply.written(length as u32);
        });
        if request.uid() != 0 {
            self.volume.drop_privileges(ino(to_node), caller(request));
        }
        self.volume.copy_range(handle(from), from_offset, handle(to), to_offset, length, done);
    }

    fn ioctl(
        &self,
        _request: &Request,
        node: INodeNo,
        file: FileHandle,
        flags: IoctlFlags,
        command: u32,
        data: &[u8],
        room: u32,
        reply: ReplyIoctl,
    ) {
        let is_file = !flags.contains(IoctlFlags::FUSE_IOCTL_DIR);
        match application::ioctl(&self.volume, is_file.then(|| handle(file)), command, data, room as usize) {
            Ok(answer) => reply.ioctl(0, &answer),
            Err(error) => reply.error(self.errno("ioctl", ino(node), error)),
        }
    }

    // ENOSYS tells the kernel not to ask again: default_permissions checks access, regular files are always
    // ready, and block numbers of a file mean nothing to anybody.

    fn access(&self, _request: &Request, _node: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn poll(
        &self,
        _request: &Request,
        _node: INodeNo,
        _file: FileHandle,
        _poll: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn bmap(&self, _request: &Request, _node: INodeNo, _block_size: u32, _block: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_come_out_as_the_kernel_sent_them() {
        // What fuser 0.18 makes of seconds = −2, nanoseconds = 800,000,000.
        let decoded = SystemTime::UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(timestamp(decoded), Timestamp { seconds: -2, nanoseconds: 800_000_000 });
        assert_eq!(
            system_time(Timestamp { seconds: -2, nanoseconds: 800_000_000 }),
            SystemTime::UNIX_EPOCH - Duration::from_millis(1200)
        );
    }

    #[test]
    fn times_after_the_epoch_survive_both_ways() {
        for time in [(0, 0), (1, 999_999_999), (1 << 40, 5)] {
            let time = Timestamp { seconds: time.0, nanoseconds: time.1 };
            assert_eq!(timestamp(system_time(time)), time);
        }
    }

    #[test]
    fn a_time_no_clock_can_show_is_shown_as_the_epoch() {
        let never = Timestamp { seconds: i64::MAX, nanoseconds: u32::MAX };
        assert_eq!(system_time(never), SystemTime::UNIX_EPOCH);
    }
}
