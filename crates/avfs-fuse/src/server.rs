//! Decoded requests to calls of the volume, outcomes to replies. Knows neither rings nor `/dev/fuse`.

use crate::application;
use crate::errno::Errors;
use crate::ioctl;
use crate::mount::ROOT_NAME;
use crate::protocol::{self, CACHE_LIFETIME, OpenReply};
use avfs_core::Error;
use avfs_core::types::{
    Attributes, Caller, CopyRange, DirectoryEntry, Entry, FileKind, HandleId, Opened, ReadData, ReadSlice,
    SetAttributes, SetTime, XattrFlags,
};
use avfs_core::volume::{Done, Volume};
use avfs_io::pool::Buffer;
use fuse_wire::abi::{self, SetattrValid};
use fuse_wire::{Filesystem, MAX_REQUEST_BYTES, Malformed, Operation, Pieces, Reply, WriteBuffer};
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread;
use units::{Ino, Timestamp};
use zerocopy::{FromBytes, IntoBytes};

/// Holes of a file that is read.
static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// The kernel's number for the volume's root, which is found under [`ROOT_NAME`] in the root of the filesystem.
const ROOT_NODE: u64 = u64::MAX;

fn caller(header: &abi::InHeader) -> Caller {
    Caller { uid: header.uid, gid: header.gid, process: header.pid }
}

/// The inode that the kernel knows by this number.
fn ino(node: u64) -> Ino {
    if node == ROOT_NODE { Ino::ROOT } else { Ino(node) }
}

/// The kernel's number for an inode that it has looked up.
pub(crate) fn node(ino: Ino) -> u64 {
    if ino == Ino::ROOT { ROOT_NODE } else { ino.0 }
}

/// Whether a request is answered although nothing that is known of the volume is true any more: what gives something back, and what
/// unmounting needs.
fn is_due_anyway(operation: &Operation, node: Ino) -> bool {
    match operation {
        Operation::Forget { .. }
        | Operation::BatchForget(_)
        | Operation::Release { .. }
        | Operation::ReleaseDirectory
        | Operation::Destroy
        | Operation::Interrupt
        | Operation::Unknown => true,
        Operation::GetAttributes | Operation::Statx => node == Ino::ROOT,
        _ => false,
    }
}

/// Answers requests with a volume.
pub struct Server {
    volume: Arc<Volume>,
    errors: Arc<Errors>,
}

impl Server {
    /// Of one mount. Errors are counted in `errors`.
    pub fn new(volume: Arc<Volume>, errors: Arc<Errors>) -> Self {
        Self { volume, errors }
    }

    /// Answers the kernel's last request when everything is written: umount(2) waits for it, and what has the device next may
    /// write to it as soon as that returns. A thread of its own waits for the device; it needs nothing that the kernel
    /// holds meanwhile.
    fn destroy(&self, reply: Reply) {
        let volume = Arc::clone(&self.volume);
        let close = move || {
            // The daemon, which waits for the same, reports how it went.
            let _ = volume.shutdown();
            reply.ok();
        };
        if let Err(error) = thread::Builder::new().name("avfs-close".into()).spawn(close) {
            tracing::error!(%error, "umount returns before everything is written");
        }
    }
}

/// One of the volume's buffers, for a write that it can keep.
pub struct RequestBuffer(pub(crate) Buffer);

impl WriteBuffer for RequestBuffer {
    fn bytes(&self) -> &[u8] {
        self.0.bytes(0, self.0.len())
    }

    fn receive(&mut self, connection: BorrowedFd<'_>, head: &mut [u8], tail: &mut [u8]) -> io::Result<usize> {
        self.0.receive(connection, head, tail)
    }
}

impl Filesystem for Server {
    type Buffer = RequestBuffer;

    fn handle(&self, header: &abi::InHeader, operation: &[u8], payload: &[u8], reply: Reply) {
        let node = ino(header.nodeid);
        let caller = caller(header);
        let volume = &self.volume;
        let operation = match Operation::decode(header.opcode, operation, payload) {
            Ok(operation) => operation,
            Err(Malformed) => {
                return self.refuse(reply, "decode", node, Error::InvalidArgument);
            }
        };
        if volume.is_lost() && !is_due_anyway(&operation, node) {
            return self.refuse(reply, "lease", node, Error::Device);
        }
        match operation {
            Operation::Lookup { name }
                // The root of the filesystem itself, which no directory shows.
                if header.nodeid == Ino::ROOT.0 && name == ROOT_NAME.as_bytes() =>
            {
                self.entry(reply, "lookup", node, volume.lookup(node, b"."));
            }
            Operation::Lookup { name } => match volume.lookup(node, name) {
                // The kernel remembers that the name does not exist; who creates it passes through this kernel.
                Err(Error::NotFound) => reply
                    .value(&abi::EntryOut { entry_valid: CACHE_LIFETIME.as_secs(), ..Default::default() }),
                result => self.entry(reply, "lookup", node, result),
            },
            Operation::Forget { lookups } => {
                volume.forget(node, lookups);
                reply.none();
            }
            Operation::BatchForget(batch) => {
                for forgotten in batch.chunks_exact(size_of::<abi::ForgetOne>()) {
                    if let Ok(one) = abi::ForgetOne::read_from_bytes(forgotten) {
                        volume.forget(ino(one.nodeid), one.nlookup);
                    }
                }
                reply.none();
            }
            Operation::GetAttributes => match volume.attributes(node) {
                Ok(found) => reply.value(&attr_out(&found)),
                Err(error) => self.refuse(reply, "getattr", node, error),
            },
            Operation::Statx => match volume.attributes(node) {
                Ok(found) => reply.value(&statx_out(&found)),
                Err(error) => self.refuse(reply, "statx", node, error),
            },
            Operation::SetAttributes(how) => {
                let done = self.done("setattr", node, reply, |reply, changed| {
                    reply.value(&attr_out(&changed));
                });
                let unprivileged = (caller.uid != 0).then_some(caller);
                let changes = SetAttributes { unprivileged, ..changes(&how) };
                volume.set_attributes(node, changes, done);
            }
            Operation::ReadLink => match volume.read_link(node) {
                Ok(target) => reply.bytes(&target),
                Err(error) => self.refuse(reply, "readlink", node, error),
            },
            Operation::Symlink { name, target } => {
                self.entry(reply, "symlink", node, volume.make_symlink(caller, node, name, target));
            }
            Operation::MakeNode { how, name } => {
                let permissions = protocol::permissions(how.mode);
                let umask = protocol::permissions(how.umask);
                let result = protocol::node_kind(how.mode).and_then(|kind| {
                    volume.make_node(caller, node, name, kind, permissions, umask, how.rdev)
                });
                self.entry(reply, "mknod", node, result);
            }
            Operation::MakeDirectory { how, name } => {
                let permissions = protocol::permissions(how.mode);
                let umask = protocol::permissions(how.umask);
                let result = volume.make_directory(caller, node, name, permissions, umask);
                self.entry(reply, "mkdir", node, result);
            }
            Operation::Unlink { name } => {
                volume.unlink(node, name, self.done("unlink", node, reply, |reply, ()| reply.ok()));
            }
            Operation::RemoveDirectory { name } => {
                self.empty(reply, "rmdir", node, volume.remove_directory(node, name));
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                let done = self.done("rename", node, reply, |reply, ()| reply.ok());
                match protocol::rename_flags(flags) {
                    Ok(flags) => {
                        volume.rename(caller, node, name, ino(new_parent), new_name, flags, done);
                    }
                    Err(error) => done(Err(error)),
                }
            }
            Operation::Link { node: linked, name } => {
                self.entry(reply, "link", ino(linked), volume.link(ino(linked), node, name));
            }
            Operation::Open { flags } => {
                let flags = protocol::open_flags(flags);
                match volume.open_file(caller, node, flags) {
                    Ok(opened) => {
                        let out = open_out(&opened, OpenReply::file(&opened));
                        reply.value_or(&out, || volume.release(opened.handle));
                    }
                    Err(error) => self.refuse(reply, "open", node, error),
                }
            }
            Operation::Create { how, name } => {
                let flags = protocol::open_flags(how.flags);
                let permissions = protocol::permissions(how.mode);
                let umask = protocol::permissions(how.umask);
                let result = volume.create(caller, node, name, permissions, umask, flags);
                self.created(reply, "create", node, result);
            }
            Operation::CreateUnnamed(how) => {
                let flags = protocol::open_flags(how.flags);
                let permissions = protocol::permissions(how.mode);
                let umask = protocol::permissions(how.umask);
                let result = volume.create_unnamed(caller, node, permissions, umask, flags);
                self.created(reply, "tmpfile", node, result);
            }
            Operation::Read(how) => {
                let done = self.done("read", node, reply, |reply, data| send(reply, &data));
                let size = how.size.min(MAX_REQUEST_BYTES);
                volume.read(HandleId(how.fh), how.offset, size as usize, done);
            }
            Operation::Write { how, data } => {
                if let Err(error) = self.before_write(node, &how) {
                    return self.refuse(reply, "write", node, error);
                }
                let (done, unprivileged) = self.begin_write(node, caller, &how, reply);
                volume.write(HandleId(how.fh), how.offset, data, unprivileged, done);
            }
            Operation::Flush { handle } => {
                volume.flush(HandleId(handle), self.done("flush", node, reply, |reply, ()| reply.ok()));
            }
            Operation::Release { handle } => {
                volume.release(HandleId(handle));
                reply.ok();
            }
            Operation::Fsync { handle } => {
                volume.fsync_file(HandleId(handle), self.done("fsync", node, reply, |reply, ()| reply.ok()));
            }
            // A directory is read by inode and cookie, and opening it makes no handle. Told so once, the kernel opens and releases none
            // any more, and keeps the listing: two of the five requests of a listing. RELEASEDIR: of those that were opened before.
            Operation::OpenDirectory => reply.error(libc::ENOSYS),
            Operation::ReleaseDirectory => reply.ok(),
            Operation::ReadDirectory { how, plus } => self.read_directory(node, &how, plus, reply),
            Operation::FsyncDirectory => {
                volume.fsync(node, self.done("fsyncdir", node, reply, |reply, ()| reply.ok()));
            }
            Operation::Statistics => reply.value(&self.statistics(node)),
            Operation::SetXattr { flags, kill_setgid, name, value } => {
                let result = protocol::xattr_flags(flags).and_then(|flags| {
                    let flags = if kill_setgid { flags | XattrFlags::KILL_SETGID } else { flags };
                    volume.set_xattr(node, name, value, flags)
                });
                self.empty(reply, "setxattr", node, result);
            }
            Operation::GetXattr { room, name } => match volume.get_xattr(caller, node, name) {
                Ok(value) => self.attribute(reply, "getxattr", node, &value, room),
                Err(error) => self.refuse(reply, "getxattr", node, error),
            },
            Operation::ListXattrs { room } => match volume.list_xattrs(caller, node) {
                Ok(names) => self.attribute(reply, "listxattr", node, &names, room),
                Err(error) => self.refuse(reply, "listxattr", node, error),
            },
            Operation::RemoveXattr { name } => {
                self.empty(reply, "removexattr", node, volume.remove_xattr(node, name));
            }
            Operation::Allocate(how) => {
                let done = self.done("fallocate", node, reply, |reply, ()| reply.ok());
                // The kernel does not say here whether privileges go.
                if caller.uid != 0 {
                    volume.drop_privileges(node, caller);
                }
                match protocol::allocate_mode(how.mode) {
                    Ok(mode) => volume.allocate(HandleId(how.fh), how.offset, how.length, mode, done),
                    Err(error) => done(Err(error)),
                }
            }
            Operation::Seek(how) => {
                let found = protocol::seek(how.offset, how.whence)
                    .and_then(|(offset, seek)| volume.seek(HandleId(how.fh), offset, seek));
                match found {
                    Ok(offset) => reply.value(&abi::LseekOut { offset }),
                    Err(error) => self.refuse(reply, "lseek", node, error),
                }
            }
            Operation::CopyRange(how) => {
                let to_node = ino(how.nodeid_out);
                let done = self.done("copy_file_range", to_node, reply, |reply, length: usize| {
                    reply.value(&abi::WriteOut { size: length as u32, padding: 0 });
                });
                let (from, to) = (HandleId(how.fh_in), HandleId(how.fh_out));
                if let Err(error) = volume.before_write(to, to_node, false, false) {
                    return done(Err(error));
                }
                if caller.uid != 0 {
                    volume.drop_privileges(to_node, caller);
                }
                let copy = CopyRange {
                    from,
                    from_offset: how.off_in,
                    to,
                    to_offset: how.off_out,
                    // The answer has 32 bits; whole blocks go on being whole.
                    length: how.len.min(u64::from(u32::MAX - 4095)),
                };
                volume.copy_range(copy, done);
            }
            Operation::Sync => volume.sync(self.done("syncfs", node, reply, |reply, ()| reply.ok())),
            Operation::Ioctl { how, input } => {
                let handle = (how.flags & abi::IOCTL_DIR == 0).then_some(HandleId(how.fh));
                let done = self.done("ioctl", node, reply, |reply, answer: Vec<u8>| {
                    reply.bytes(&[abi::IoctlOut::default().as_bytes(), &answer].concat());
                });
                match ioctl::Command::of(how.cmd) {
                    Some(command) => ioctl::perform(volume, command, node, caller, how.arg, input, done),
                    None => {
                        let room = how.out_size as usize;
                        done(application::ioctl(volume, caller, handle, how.cmd, input, room));
                    }
                }
            }
            Operation::Destroy => self.destroy(reply),
            // Nothing here takes so long that giving it up would help.
            Operation::Interrupt => reply.none(),
            // ACCESS: default_permissions checks it. POLL: regular files are always ready. BMAP: block numbers of a file
            // mean nothing to anybody. Locks: the kernel's. Others: newer than this filesystem.
            Operation::Unknown => reply.error(libc::ENOSYS),
        }
    }

    fn handle_write(
        &self,
        header: &abi::InHeader,
        operation: &[u8],
        buffer: RequestBuffer,
        reply: Reply,
    ) -> RequestBuffer {
        let node = ino(header.nodeid);
        let caller = caller(header);
        let decoded = Operation::decode(header.opcode, operation, buffer.bytes());
        let how = match decoded {
            Ok(Operation::Write { how, data }) if data.len() == buffer.bytes().len() => how,
            _ => {
                self.refuse(reply, "decode", node, Error::InvalidArgument);
                return buffer;
            }
        };
        if self.volume.is_lost() {
            self.refuse(reply, "lease", node, Error::Device);
            return buffer;
        }
        if let Err(error) = self.before_write(node, &how) {
            self.refuse(reply, "write", node, error);
            return buffer;
        }
        let (done, unprivileged) = self.begin_write(node, caller, &how, reply);
        RequestBuffer(self.volume.write_from(HandleId(how.fh), how.offset, buffer.0, unprivileged, done))
    }
}

impl Server {
    fn refuse(&self, reply: Reply, operation: &'static str, ino: Ino, error: Error) {
        reply.error(self.errors.answer(operation, ino, error));
    }

    /// A continuation that hands a success to `succeed` and answers an error.
    fn done<T>(
        &self,
        operation: &'static str,
        ino: Ino,
        reply: Reply,
        succeed: impl FnOnce(Reply, T) + Send + 'static,
    ) -> Done<T> {
        let errors = Arc::clone(&self.errors);
        Box::new(move |result| match result {
            Ok(value) => succeed(reply, value),
            Err(error) => reply.error(errors.answer(operation, ino, error)),
        })
    }

    fn empty(&self, reply: Reply, operation: &'static str, ino: Ino, result: Result<(), Error>) {
        match result {
            Ok(()) => reply.ok(),
            Err(error) => self.refuse(reply, operation, ino, error),
        }
    }

    fn entry(&self, reply: Reply, operation: &'static str, ino: Ino, result: Result<Entry, Error>) {
        match result {
            Ok(entry) => {
                reply.value_or(&entry_out(&entry), || self.volume.forget(entry.attributes.ino, 1));
            }
            Err(error) => self.refuse(reply, operation, ino, error),
        }
    }

    /// A handle that its client does not hear of, and a lookup that the kernel does not count, are given back at once: nothing else
    /// would.
    fn created(
        &self,
        reply: Reply,
        operation: &'static str,
        directory: Ino,
        result: Result<(Entry, Opened), Error>,
    ) {
        match result {
            Ok((entry, opened)) => {
                let open = open_out(&opened, OpenReply::file(&opened));
                reply.value_or(&abi::CreateOut { entry: entry_out(&entry), open }, || {
                    self.volume.release(opened.handle);
                    self.volume.forget(entry.attributes.ino, 1);
                });
            }
            Err(error) => self.refuse(reply, operation, directory, error),
        }
    }

    /// An attribute's value or the list of names: its size if the caller has no room at all.
    fn attribute(&self, reply: Reply, operation: &'static str, ino: Ino, value: &[u8], room: u32) {
        if room == 0 {
            reply.value(&abi::GetxattrOut { size: value.len() as u32, padding: 0 });
        } else if value.len() > room as usize {
            self.refuse(reply, operation, ino, Error::BufferTooSmall);
        } else {
            reply.bytes(value);
        }
    }

    /// A mapping's stores leave rights alone, as on other filesystems, and the kernel writes them whenever it likes: a linker
    /// stores, setcap(8) comes after it, the write last.
    fn before_write(&self, node: Ino, how: &abi::WriteIn) -> Result<(), Error> {
        let is_mapped = how.write_flags & abi::WRITE_CACHE != 0;
        self.volume.before_write(HandleId(how.fh), node, is_mapped, how.flags & libc::O_APPEND != 0)
    }

    /// What is called when a write has ended, and who writes, if they may not leave setuid and setgid standing.
    fn begin_write(
        &self,
        node: Ino,
        caller: Caller,
        how: &abi::WriteIn,
        reply: Reply,
    ) -> (Done<usize>, Option<Caller>) {
        let written = |reply: Reply, length: usize| {
            reply.value(&abi::WriteOut { size: length as u32, padding: 0 });
        };
        let done = if protocol::is_synchronous(how.flags) {
            let (volume, errors) = (Arc::clone(&self.volume), Arc::clone(&self.errors));
            let handle = HandleId(how.fh);
            self.done("write", node, reply, move |reply, length| {
                let durable = move |result| match result {
                    Ok(()) => written(reply, length),
                    Err(error) => reply.error(errors.answer("write", node, error)),
                };
                volume.fsync_file(handle, Box::new(durable));
            })
        } else {
            self.done("write", node, reply, written)
        };
        let unprivileged = (how.write_flags & abi::WRITE_KILL_SUIDGID != 0).then_some(caller);
        (done, unprivileged)
    }

    fn read_directory(&self, node: Ino, how: &abi::ReadIn, plus: bool, reply: Reply) {
        let operation = if plus { "readdirplus" } else { "readdir" };
        let fill = |room: &mut [u8]| {
            let mut listing = Listing { room, used: 0 };
            self.volume
                .read_directory(node, how.offset, plus, &mut |entry| listing.add(&entry, plus))
                .map(|()| listing.used)
                .map_err(|error| self.errors.answer(operation, node, error))
        };
        reply.fill_or((how.size).min(MAX_REQUEST_BYTES) as usize, fill, |listing| {
            if plus {
                looked_up(listing).for_each(|found| self.volume.forget(found, 1));
            }
        });
    }

    /// Of the directory that was asked of: where it has a limit, that is the disk.
    fn statistics(&self, node: Ino) -> abi::StatfsOut {
        let figures = self.volume.statistics_at(node);
        abi::StatfsOut {
            blocks: figures.blocks,
            bfree: figures.free,
            bavail: figures.available,
            files: figures.files + figures.files_free,
            ffree: figures.files_free,
            bsize: figures.block_size,
            namelen: figures.name_length,
            frsize: figures.block_size,
            ..Default::default()
        }
    }
}

/// Names one after the other in a reply.
struct Listing<'a> {
    room: &'a mut [u8],
    used: usize,
}

impl Listing<'_> {
    /// False if it does not fit.
    fn add(&mut self, entry: &DirectoryEntry, plus: bool) -> bool {
        let dirent = abi::Dirent {
            ino: entry.ino.0,
            off: entry.cookie,
            namelen: entry.name.len() as u32,
            kind: file_type(entry.kind) >> 12,
        };
        if plus {
            let found = match &entry.entry {
                Some(found) => entry_out(found),
                // `.` and `..`, of which the kernel takes nothing but number and type.
                None => abi::EntryOut::default(),
            };
            self.put(abi::DirentPlus { entry: found, dirent }.as_bytes(), &entry.name)
        } else {
            self.put(dirent.as_bytes(), &entry.name)
        }
    }

    fn put(&mut self, header: &[u8], name: &[u8]) -> bool {
        let length = (header.len() + name.len()).next_multiple_of(8);
        let Some(place) = self.room.get_mut(self.used..self.used + length) else { return false };
        let (start, rest) = place.split_at_mut(header.len());
        let (middle, end) = rest.split_at_mut(name.len());
        start.copy_from_slice(header);
        middle.copy_from_slice(name);
        end.fill(0);
        self.used += length;
        true
    }
}

/// The inodes of which a listing with attributes makes the kernel count a lookup.
fn looked_up(mut listing: &[u8]) -> impl Iterator<Item = Ino> {
    let entries = std::iter::from_fn(move || {
        let (found, rest) = abi::DirentPlus::read_from_prefix(listing).ok()?;
        listing = rest.get((found.dirent.namelen as usize).next_multiple_of(8)..).unwrap_or_default();
        Some(found.entry.nodeid)
    });
    // `.` and `..` have none.
    entries.filter(|node| *node != 0).map(ino)
}

/// Answers a read from the cache's memory.
fn send(reply: Reply, data: &ReadData) {
    let mut pieces = Pieces::new();
    for slice in &data.slices {
        match slice {
            ReadSlice::Buffer { buffer, start, length } => {
                pieces.push(IoSlice::new(buffer.bytes(*start, *length)))
            }
            ReadSlice::Zeros(length) => {
                let parts = (0..*length).step_by(ZEROS.len());
                pieces.extend(parts.map(|at| IoSlice::new(&ZEROS[..ZEROS.len().min(length - at)])));
            }
        }
    }
    reply.pieces(&pieces);
}

fn file_type(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::BlockDevice => libc::S_IFBLK,
        FileKind::CharacterDevice => libc::S_IFCHR,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
    }
}

fn attr(from: &Attributes) -> abi::Attr {
    abi::Attr {
        ino: from.ino.0,
        size: from.size,
        blocks: from.blocks,
        atime: from.atime.seconds,
        mtime: from.mtime.seconds,
        ctime: from.ctime.seconds,
        atimensec: from.atime.nanoseconds,
        mtimensec: from.mtime.nanoseconds,
        ctimensec: from.ctime.nanoseconds,
        mode: file_type(from.kind) | u32::from(from.permissions),
        nlink: from.links,
        uid: from.uid,
        gid: from.gid,
        rdev: from.rdev,
        blksize: 4096,
        flags: 0,
    }
}

/// How long the kernel may believe attributes, in seconds. Not at all those of a file that is setuid or setgid: a write takes
/// that away, and the kernel, which asks for times and sizes only after a write, would go on to run the file as its owner. So it
/// asks each time; such files are few, and no notification has to overtake anything. Of a directory only the kernel itself takes
/// setgid away.
fn attr_valid(from: &Attributes) -> u64 {
    let is_privileged = from.permissions & 0o6000 != 0 && from.kind != FileKind::Directory;
    if is_privileged { 0 } else { CACHE_LIFETIME.as_secs() }
}

fn attr_out(from: &Attributes) -> abi::AttrOut {
    abi::AttrOut { attr_valid: attr_valid(from), attr: attr(from), ..Default::default() }
}

fn entry_out(from: &Entry) -> abi::EntryOut {
    abi::EntryOut {
        nodeid: node(from.attributes.ino),
        generation: from.generation,
        entry_valid: CACHE_LIFETIME.as_secs(),
        attr_valid: attr_valid(&from.attributes),
        entry_valid_nsec: 0,
        attr_valid_nsec: 0,
        attr: attr(&from.attributes),
    }
}

fn open_out(opened: &Opened, flags: OpenReply) -> abi::OpenOut {
    abi::OpenOut { fh: opened.handle.0, open_flags: flags.bits(), backing_id: 0 }
}

fn statx_out(from: &Attributes) -> abi::StatxOut {
    let time = |time: Timestamp| abi::StatxTime {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds,
        reserved: 0,
    };
    let stat = abi::Statx {
        mask: abi::STATX_BASIC_STATS_AND_BTIME,
        blksize: 4096,
        nlink: from.links,
        uid: from.uid,
        gid: from.gid,
        mode: file_type(from.kind) as u16 | from.permissions,
        ino: from.ino.0,
        size: from.size,
        blocks: from.blocks,
        atime: time(from.atime),
        btime: time(from.btime),
        ctime: time(from.ctime),
        mtime: time(from.mtime),
        // As the kernel packs a device number in 32 bits: 12 bits major between 8 and 12 bits minor.
        rdev_major: from.rdev >> 8 & 0xfff,
        rdev_minor: from.rdev & 0xff | from.rdev >> 12 & 0xf_ff00,
        ..Default::default()
    };
    abi::StatxOut { attr_valid: attr_valid(from), stat, ..Default::default() }
}

fn changes(how: &abi::SetattrIn) -> SetAttributes {
    let valid = SetattrValid::from_bits_retain(how.valid);
    let time = |now, set, seconds, nanoseconds| {
        if valid.contains(now) {
            Some(SetTime::Now)
        } else {
            valid.contains(set).then_some(SetTime::To(Timestamp { seconds, nanoseconds }))
        }
    };
    SetAttributes {
        permissions: valid.contains(SetattrValid::MODE).then(|| protocol::permissions(how.mode)),
        uid: valid.contains(SetattrValid::UID).then_some(how.uid),
        gid: valid.contains(SetattrValid::GID).then_some(how.gid),
        size: valid.contains(SetattrValid::SIZE).then_some(how.size),
        atime: time(SetattrValid::ATIME_NOW, SetattrValid::ATIME, how.atime, how.atimensec),
        mtime: time(SetattrValid::MTIME_NOW, SetattrValid::MTIME, how.mtime, how.mtimensec),
        btime: None,
        keep_privileges: !valid.contains(SetattrValid::KILL_SUIDGID),
        unprivileged: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(names: &[&str], room: usize, plus: bool) -> (usize, Vec<u8>) {
        let mut bytes = vec![0xff; room];
        let mut listing = Listing { room: &mut bytes, used: 0 };
        let fitted = names
            .iter()
            .take_while(|name| {
                let entry = DirectoryEntry {
                    name: name.as_bytes().into(),
                    ino: Ino(9),
                    kind: FileKind::Directory,
                    cookie: 5,
                    entry: None,
                };
                listing.add(&entry, plus)
            })
            .count();
        let used = listing.used;
        bytes.truncate(used);
        (fitted, bytes)
    }

    #[test]
    fn names_are_padded_and_end_where_the_room_ends() {
        let (fitted, bytes) = listed(&["a", "12345678", "b"], 64, false);
        assert_eq!((fitted, bytes.len()), (2, 32 + 32));
        let (first, rest) = abi::Dirent::read_from_prefix(&bytes).unwrap();
        assert_eq!(first, abi::Dirent { ino: 9, off: 5, namelen: 1, kind: 4 });
        assert_eq!(&rest[..8], b"a\0\0\0\0\0\0\0");
        assert_eq!(listed(&["a"], 159, true).0, 0);
        assert_eq!(listed(&["a"], 160, true).1.len(), 160);
        assert_eq!(listed(&["a"], 0, false).0, 0);
    }

    #[test]
    fn a_present_time_wins_over_the_one_that_is_sent_with_it() {
        let how = abi::SetattrIn {
            valid: (SetattrValid::ATIME | SetattrValid::ATIME_NOW | SetattrValid::MTIME | SetattrValid::SIZE)
                .bits(),
            atime: 5,
            mtime: -2,
            mtimensec: 7,
            size: 3,
            ..Default::default()
        };
        let expected = SetAttributes {
            size: Some(3),
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::To(Timestamp { seconds: -2, nanoseconds: 7 })),
            keep_privileges: true,
            ..Default::default()
        };
        assert_eq!(changes(&how), expected);
        let killed = abi::SetattrIn { valid: SetattrValid::KILL_SUIDGID.bits(), ..Default::default() };
        assert_eq!(changes(&killed), SetAttributes::default());
    }

    #[test]
    fn a_device_number_is_taken_apart_as_the_kernel_packed_it() {
        let (major, minor) = (0xabc, 0x12345);
        let rdev = minor & 0xff | major << 8 | (minor & !0xff) << 12;
        let at = Timestamp { seconds: 1, nanoseconds: 2 };
        let from = Attributes {
            ino: Ino(3),
            kind: FileKind::BlockDevice,
            permissions: 0o640,
            links: 1,
            uid: 0,
            gid: 0,
            rdev,
            size: 0,
            blocks: 0,
            atime: at,
            mtime: at,
            ctime: at,
            btime: Timestamp { seconds: -7, nanoseconds: 9 },
        };
        let stat = statx_out(&from).stat;
        assert_eq!((stat.rdev_major, stat.rdev_minor), (major, minor));
        assert_eq!((stat.btime.seconds, stat.btime.nanoseconds), (-7, 9));
        assert_eq!(u32::from(stat.mode), libc::S_IFBLK | 0o640);
    }
}
