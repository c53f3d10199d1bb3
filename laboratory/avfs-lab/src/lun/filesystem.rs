//! Three files over FUSE: the device, its switch, its counters.

use super::shared::{Answer, Mode, Shared};
use super::timekeeper::Asked;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use rtsched::Direction;
use rustix::fs::FallocateFlags;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;
use units::{Bytes, DeviceOffset, Duration};

const ROOT: INodeNo = INodeNo(1);
const LUN: INodeNo = INodeNo(2);
const CONTROL: INodeNo = INodeNo(3);
const COUNTERS: INodeNo = INodeNo(4);
const FILES: [(&str, INodeNo); 3] = [("lun", LUN), ("control", CONTROL), ("counters", COUNTERS)];

/// Names and attributes never change.
const LIFETIME: Duration = Duration::from_secs(3600);

/// Largest read or write, bytes; the kernel allows it where `fs.fuse.max_pages_limit` does.
const LARGEST: u32 = 16 << 20;

/// Requests that the kernel sends without waiting for answers: the device's queue is what limits them.
const IN_FLIGHT: u16 = 1024;

/// The first handle of an open `counters`; the others' are their node's number.
const FIRST_SNAPSHOT: u64 = 16;

pub(super) struct LunFilesystem {
    shared: Arc<Shared>,
    snapshots: Mutex<Snapshots>,
}

/// The counters' text at the moment of each open: who reads it in pieces has pieces of one text.
#[derive(Default)]
struct Snapshots {
    opened: u64,
    texts: BTreeMap<u64, Vec<u8>>,
}

impl LunFilesystem {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, snapshots: Mutex::default() }
    }

    fn attributes(&self, node: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match node {
            ROOT => (FileType::Directory, 0o700, 0),
            LUN => (FileType::RegularFile, 0o600, self.shared.size.as_u64()),
            CONTROL => (FileType::RegularFile, 0o200, 0),
            COUNTERS => (FileType::RegularFile, 0o400, 0),
            _ => return None,
        };
        let epoch = SystemTime::UNIX_EPOCH;
        Some(FileAttr {
            ino: node,
            size,
            blocks: size / 512,
            atime: epoch,
            mtime: epoch,
            ctime: epoch,
            crtime: epoch,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn control(&self, data: &[u8]) -> Result<(), Errno> {
        match Mode::named(data.trim_ascii()) {
            Some(mode) => self.shared.set_mode(mode),
            None => self.shared.faults.lock().command(data).ok_or(Errno::EINVAL)?,
        }
        Ok(())
    }

    /// The handle of the counters as they are now.
    fn snapshot(&self) -> u64 {
        let counters = self.shared.state.lock().keeper.counters();
        let mut snapshots = self.snapshots.lock();
        let handle = FIRST_SNAPSHOT + snapshots.opened;
        snapshots.opened += 1;
        snapshots.texts.insert(handle, serde_json::to_vec(&counters).unwrap_or_default());
        handle
    }

    /// What of a range lies on the device.
    fn inside(&self, offset: u64, length: u64) -> u64 {
        length.min(self.shared.size.as_u64().saturating_sub(offset))
    }
}

fn asked(direction: Direction, offset: u64, length: usize) -> Asked {
    Asked { direction, offset: DeviceOffset(offset), length: Bytes(length as u64) }
}

impl Filesystem for LunFilesystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_BIG_WRITES,
            InitFlags::FUSE_MAX_PAGES,
            // Otherwise reads of a descriptor that was opened for direct I/O are cut to the page limit of readahead.
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        for flag in wanted {
            // What an older kernel lacks costs speed, not truth.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(LARGEST);
        let _ = config.set_max_background(IN_FLIGHT);
        let _ = config.set_congestion_threshold(IN_FLIGHT);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = FILES.iter().find(|(known, _)| parent == ROOT && name == *known);
        match found.and_then(|(_, node)| self.attributes(*node)) {
            Some(attributes) => reply.entry(&LIFETIME, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, node: INodeNo, _file: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(node) {
            Some(attributes) => reply.attr(&LIFETIME, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// A shell's `> control` truncates first.
    fn setattr(
        &self,
        _request: &Request,
        node: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _file: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.attributes(node) {
            Some(attributes) if size.is_none() || node == CONTROL => reply.attr(&LIFETIME, &attributes),
            _ => reply.error(Errno::EPERM),
        }
    }

    fn open(&self, _request: &Request, node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        let handle = if node == COUNTERS { self.snapshot() } else { node.0 };
        reply.opened(FileHandle(handle), flags);
    }

    fn release(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.snapshots.lock().texts.remove(&file.0);
        reply.ok();
    }

    fn read(
        &self,
        _request: &Request,
        node: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match node {
            LUN => {
                let came = self.shared.clock.now();
                let inside = self.inside(offset, u64::from(size));
                let length = match self.shared.faults.lock().meet(Direction::Read, offset, inside) {
                    Ok(length) => length as usize,
                    Err(error) => return reply.error(error),
                };
                let mut buffer = self.shared.buffer(length);
                let read = self.shared.store.lock().read(&mut buffer, offset);
                match read {
                    Ok(()) => {
                        let asked = asked(Direction::Read, offset, length);
                        self.shared.accept(came, asked, Answer::Read(reply, buffer));
                    }
                    Err(_) => reply.error(Errno::EIO),
                }
            }
            COUNTERS => {
                let snapshots = self.snapshots.lock();
                let text = snapshots.texts.get(&file.0).map_or(&[][..], Vec::as_slice);
                let from = (offset as usize).min(text.len());
                let to = from.saturating_add(size as usize).min(text.len());
                reply.data(&text[from..to]);
            }
            _ => reply.error(Errno::EINVAL),
        }
    }

    fn write(
        &self,
        _request: &Request,
        node: INodeNo,
        _file: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if node == CONTROL {
            match self.control(data) {
                Ok(()) => reply.written(data.len() as u32),
                Err(error) => reply.error(error),
            }
            return;
        }
        let length = self.inside(offset, data.len() as u64) as usize;
        if node != LUN || length == 0 {
            reply.error(Errno::ENOSPC);
            return;
        }
        let length = match self.shared.faults.lock().meet(Direction::Write, offset, length as u64) {
            Ok(length) => length as usize,
            Err(error) => return reply.error(error),
        };
        let came = self.shared.clock.now();
        let written = match self.shared.keeps_what_is_written() {
            true => self.shared.store.lock().write(&data[..length], offset),
            false => Ok(()),
        };
        match written {
            Ok(()) => {
                let asked = asked(Direction::Write, offset, length);
                self.shared.accept(came, asked, Answer::Write(reply, length as u32));
            }
            Err(error) if error.kind() == io::ErrorKind::StorageFull => reply.error(Errno::ENOSPC),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(
        &self,
        _request: &Request,
        node: INodeNo,
        _file: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        if node == LUN && self.shared.faults.lock().meet(Direction::Flush, 0, 0).is_err() {
            reply.error(Errno::EIO);
        } else if node == LUN {
            self.shared.accept(self.shared.clock.now(), asked(Direction::Flush, 0, 0), Answer::Flush(reply));
        } else {
            reply.ok();
        }
    }

    /// Closing flushes nothing: a LUN is not a file to its host.
    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        _file: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    /// A discard of the host: gives memory back, takes no time.
    fn fallocate(
        &self,
        _request: &Request,
        node: INodeNo,
        _file: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let flags = FallocateFlags::from_bits_retain(mode as u32);
        if node != LUN || !flags.contains(FallocateFlags::KEEP_SIZE) {
            reply.error(Errno::EOPNOTSUPP);
            return;
        }
        if !flags.intersects(FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE) {
            // There is room for everything.
            reply.ok();
            return;
        }
        let cleared = self.shared.store.lock().clear(offset, self.inside(offset, length));
        match cleared {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _file: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if node != ROOT {
            reply.error(Errno::ENOTDIR);
            return;
        }
        let entries = [(".", ROOT, FileType::Directory), ("..", ROOT, FileType::Directory)]
            .into_iter()
            .chain(FILES.iter().map(|(name, node)| (*name, *node, FileType::RegularFile)));
        for (index, (name, node, kind)) in entries.enumerate().skip(offset as usize) {
            if reply.add(node, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
