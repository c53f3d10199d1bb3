//! The kernel's FUSE protocol, version 7.42, as it lies in memory (linux/fuse.h): structures, numbers, flags.
//!
//! **For:** bytes to values and back. **Excludes:** what any of it means to a filesystem.
//! **Invariant:** each structure has the size that the kernel has, without padding that nobody names; the
//! compiler checks both. Names are the kernel's, in this language's case, without `fuse_`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the protocol this file is written from.
pub const KERNEL_VERSION: u32 = 7;
/// Its minor version: the first with io_uring.
pub const KERNEL_MINOR_VERSION: u32 = 42;
/// The oldest minor version of a kernel that is understood, that of Linux 5.14: before, SETXATTR has another structure.
pub const OLDEST_MINOR_VERSION: u32 = 33;

/// Number of the root inode.
pub const ROOT_ID: u64 = 1;

/// Defines operation codes, and their names for a log.
macro_rules! opcodes {
    ($($name:ident = $code:literal,)*) => {
        /// Operation codes.
        pub mod opcode {
            $(
                #[expect(missing_docs, reason = "named as in linux/fuse.h")]
                pub const $name: u32 = $code;
            )*

            /// The name of an operation.
            pub fn name(code: u32) -> &'static str {
                match code {
                    $($code => stringify!($name),)*
                    _ => "unknown",
                }
            }

            /// All that have a name.
            pub const ALL: &[u32] = &[$($code),*];
        }
    };
}

opcodes! {
    LOOKUP = 1,
    FORGET = 2,
    GETATTR = 3,
    SETATTR = 4,
    READLINK = 5,
    SYMLINK = 6,
    MKNOD = 8,
    MKDIR = 9,
    UNLINK = 10,
    RMDIR = 11,
    RENAME = 12,
    LINK = 13,
    OPEN = 14,
    READ = 15,
    WRITE = 16,
    STATFS = 17,
    RELEASE = 18,
    FSYNC = 20,
    SETXATTR = 21,
    GETXATTR = 22,
    LISTXATTR = 23,
    REMOVEXATTR = 24,
    FLUSH = 25,
    INIT = 26,
    OPENDIR = 27,
    READDIR = 28,
    RELEASEDIR = 29,
    FSYNCDIR = 30,
    GETLK = 31,
    SETLK = 32,
    SETLKW = 33,
    ACCESS = 34,
    CREATE = 35,
    INTERRUPT = 36,
    BMAP = 37,
    DESTROY = 38,
    IOCTL = 39,
    POLL = 40,
    BATCH_FORGET = 42,
    FALLOCATE = 43,
    READDIRPLUS = 44,
    RENAME2 = 45,
    LSEEK = 46,
    COPY_FILE_RANGE = 47,
    SYNCFS = 50,
    TMPFILE = 51,
    STATX = 52,
}

bitflags::bitflags! {
    /// What kernel and filesystem agree on in INIT: `flags`, and `flags2` in the upper half.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InitFlags: u64 {
        /// Reads of one file may overtake each other.
        const ASYNC_READ = 1;
        /// Lookups of `.` and `..` are answered: NFS may export the filesystem.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes larger than a page.
        const BIG_WRITES = 1 << 5;
        /// The filesystem applies the umask, or a default ACL in its place.
        const DONT_MASK = 1 << 6;
        /// Directories are read with attributes ...
        const DO_READDIRPLUS = 1 << 13;
        /// ... where somebody is going to look at them.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Direct I/O is submitted asynchronously.
        const ASYNC_DIO = 1 << 15;
        /// Lookups and listings of one directory in parallel.
        const PARALLEL_DIROPS = 1 << 18;
        /// The kernel checks POSIX ACLs.
        const POSIX_ACL = 1 << 20;
        /// `max_pages` counts.
        const MAX_PAGES = 1 << 22;
        /// The kernel keeps targets of symbolic links.
        const CACHE_SYMLINKS = 1 << 23;
        /// The filesystem clears setuid and setgid where it is told to.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR says whether setgid goes.
        const SETXATTR_EXT = 1 << 29;
        /// `flags2` counts.
        const INIT_EXT = 1 << 30;
        /// Shared mappings of files with direct I/O.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Requests over io_uring.
        const OVER_IO_URING = 1 << 41;
    }

    /// Which attributes SETATTR changes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SetattrValid: u32 {
        /// `mode`.
        const MODE = 1;
        /// `uid`.
        const UID = 1 << 1;
        /// `gid`.
        const GID = 1 << 2;
        /// `size`.
        const SIZE = 1 << 3;
        /// `atime`.
        const ATIME = 1 << 4;
        /// `mtime`.
        const MTIME = 1 << 5;
        /// The access time becomes the present, whatever `atime` says.
        const ATIME_NOW = 1 << 7;
        /// The modification time becomes the present, whatever `mtime` says.
        const MTIME_NOW = 1 << 8;
        /// setuid and setgid go.
        const KILL_SUIDGID = 1 << 11;
    }
}

/// In an IOCTL's flags: it is about a directory.
pub const IOCTL_DIR: u32 = 1 << 4;

/// In a WRITE's flags: it carries what was stored through a mapping before, by any process.
pub const WRITE_CACHE: u32 = 1;
/// In a WRITE's flags: setuid and setgid go.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// In a SETXATTR's flags: it sets an ACL, and setgid goes.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// In a FALLOCATE, GETATTR or STATX nothing else; in `statx.mask` all that stat(2) shows, and the time of birth.
pub const STATX_BASIC_STATS_AND_BTIME: u32 = 0xfff;

/// Commands of FUSE to a ring (`cmd_op`).
pub mod ring_command {
    /// An entry's memory, to fetch the first request into.
    pub const REGISTER: u32 = 1;
    /// An entry's reply; then fetch the next request.
    pub const COMMIT_AND_FETCH: u32 = 2;
}

/// Defines structures that have no padding, with their sizes.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident, $size:literal { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[expect(missing_docs, reason = "named as in linux/fuse.h")]
        pub struct $name {
            $(pub $field: $type,)*
        }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

structures! {
    /// Before every request.
    InHeader, 40 {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        total_extlen: u16,
        padding: u16,
    }
    /// Before every reply.
    OutHeader, 16 { len: u32, error: i32, unique: u64, }

    Attr, 88 {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }
    StatxTime, 16 { seconds: i64, nanoseconds: u32, reserved: i32, }
    Statx, 256 {
        mask: u32,
        blksize: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        spare0: u16,
        ino: u64,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: StatxTime,
        btime: StatxTime,
        ctime: StatxTime,
        mtime: StatxTime,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        spare2: [u64; 14],
    }

    InitIn, 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        flags2: u32,
        unused: [u32; 11],
    }
    InitOut, 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused0: u16,
        unused: [u32; 5],
    }

    EntryOut, 128 {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }
    AttrOut, 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    StatxOut, 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx, }
    OpenOut, 16 { fh: u64, open_flags: u32, backing_id: i32, }
    CreateOut, 144 { entry: EntryOut, open: OpenOut, }
    WriteOut, 8 { size: u32, padding: u32, }
    StatfsOut, 80 {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }
    GetxattrOut, 8 { size: u32, padding: u32, }
    LseekOut, 8 { offset: u64, }
    /// Before each name of a listing, which follows and is padded to 8 bytes.
    Dirent, 24 { ino: u64, off: u64, namelen: u32, kind: u32, }
    /// The same, with attributes.
    DirentPlus, 152 { entry: EntryOut, dirent: Dirent, }

    ForgetIn, 8 { nlookup: u64, }
    ForgetOne, 16 { nodeid: u64, nlookup: u64, }
    BatchForgetIn, 8 { count: u32, dummy: u32, }
    GetattrIn, 16 { getattr_flags: u32, dummy: u32, fh: u64, }
    StatxIn, 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    SetattrIn, 88 {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
    MknodIn, 16 { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn, 8 { mode: u32, umask: u32, }
    RenameIn, 8 { newdir: u64, }
    Rename2In, 16 { newdir: u64, flags: u32, padding: u32, }
    LinkIn, 8 { oldnodeid: u64, }
    OpenIn, 8 { flags: i32, open_flags: u32, }
    CreateIn, 16 { flags: i32, mode: u32, umask: u32, open_flags: u32, }
    ReleaseIn, 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn, 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    ReadIn, 40 {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    WriteIn, 40 {
        fh: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: i32,
        padding: u32,
    }
    FsyncIn, 16 { fh: u64, fsync_flags: u32, padding: u32, }
    /// As long as this with SETXATTR_EXT only; its first half without.
    SetxattrIn, 16 { size: u32, flags: i32, setxattr_flags: u32, padding: u32, }
    GetxattrIn, 8 { size: u32, padding: u32, }
    AccessIn, 8 { mask: u32, padding: u32, }
    BmapIn, 16 { block: u64, blocksize: u32, padding: u32, }
    IoctlOut, 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    IoctlIn, 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    PollIn, 24 { fh: u64, kh: u64, flags: u32, events: u32, }
    LockIn, 48 { fh: u64, owner: u64, lock: [u64; 3], lk_flags: u32, padding: u32, }
    InterruptIn, 8 { unique: u64, }
    FallocateIn, 32 { fh: u64, offset: u64, length: u64, mode: i32, padding: u32, }
    LseekIn, 24 { fh: u64, offset: i64, whence: i32, padding: u32, }
    CopyFileRangeIn, 56 {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
    }
    SyncfsIn, 8 { padding: u64, }

    /// What the kernel says of a request in a ring's entry, and hears of the reply.
    RingEntryInOut, 32 { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64, }
    /// In the second half of the ring's command.
    RingCommand, 24 { flags: u64, commit_id: u64, qid: u16, padding: [u16; 3], }
}

/// Room for the header, and for the structure of the operation, in a ring's entry.
pub const RING_HEADER_BYTES: usize = 128;

/// An entry's header in memory shared with the kernel.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingHeader {
    /// [`InHeader`] of the request, [`OutHeader`] of the reply.
    pub in_out: [u8; RING_HEADER_BYTES],
    /// The structure of the operation.
    pub operation: [u8; RING_HEADER_BYTES],
    /// How long the payload is.
    pub entry: RingEntryInOut,
}
const _: () = assert!(size_of::<RingHeader>() == 288);

/// Length of the structure that comes first in the body of a request, before names and data; `None` for operations
/// that this file does not know.
pub fn operation_size(opcode: u32) -> Option<usize> {
    Some(match opcode {
        opcode::LOOKUP
        | opcode::READLINK
        | opcode::SYMLINK
        | opcode::UNLINK
        | opcode::RMDIR
        | opcode::STATFS
        | opcode::REMOVEXATTR
        | opcode::DESTROY => 0,
        // As long as the kernel's version makes it: a payload.
        opcode::INIT => 0,
        opcode::FORGET => size_of::<ForgetIn>(),
        opcode::BATCH_FORGET => size_of::<BatchForgetIn>(),
        opcode::GETATTR => size_of::<GetattrIn>(),
        opcode::STATX => size_of::<StatxIn>(),
        opcode::SETATTR => size_of::<SetattrIn>(),
        opcode::MKNOD => size_of::<MknodIn>(),
        opcode::MKDIR => size_of::<MkdirIn>(),
        opcode::RENAME => size_of::<RenameIn>(),
        opcode::RENAME2 => size_of::<Rename2In>(),
        opcode::LINK => size_of::<LinkIn>(),
        opcode::OPEN | opcode::OPENDIR => size_of::<OpenIn>(),
        opcode::CREATE | opcode::TMPFILE => size_of::<CreateIn>(),
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => size_of::<ReadIn>(),
        opcode::WRITE => size_of::<WriteIn>(),
        opcode::RELEASE | opcode::RELEASEDIR => size_of::<ReleaseIn>(),
        opcode::FLUSH => size_of::<FlushIn>(),
        opcode::FSYNC | opcode::FSYNCDIR => size_of::<FsyncIn>(),
        opcode::SETXATTR => size_of::<SetxattrIn>(),
        opcode::GETXATTR | opcode::LISTXATTR => size_of::<GetxattrIn>(),
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => size_of::<LockIn>(),
        opcode::ACCESS => size_of::<AccessIn>(),
        opcode::INTERRUPT => size_of::<InterruptIn>(),
        opcode::BMAP => size_of::<BmapIn>(),
        opcode::IOCTL => size_of::<IoctlIn>(),
        opcode::POLL => size_of::<PollIn>(),
        opcode::FALLOCATE => size_of::<FallocateIn>(),
        opcode::LSEEK => size_of::<LseekIn>(),
        opcode::COPY_FILE_RANGE => size_of::<CopyFileRangeIn>(),
        opcode::SYNCFS => size_of::<SyncfsIn>(),
        _ => return None,
    })
}
