//! The kernel's numbers and the filesystem's words for them, whatever transport carries the requests.

use avfs_core::Error;
use avfs_core::error::Result;
use avfs_core::types::{AllocateMode, CacheMode, FileKind, OpenFlags, Opened, RenameFlags, Seek, XattrFlags};
use bitflags::bitflags;
use fuse_wire::abi::InitFlags;
use std::time::Duration;

/// How long the kernel may believe an entry, its attributes, or that a name does not exist. Long, because all
/// changes go through this kernel: it sees each of them itself.
pub const CACHE_LIFETIME: Duration = Duration::from_secs(3600);

/// Requests the kernel keeps in flight on its own account (readahead, asynchronous direct I/O). Each client of a
/// file server has about ten; a hundred clients should not wait for one another here.
pub const MAX_BACKGROUND: u16 = 1024;

/// What the kernel is asked for, where it has it.
///
/// Left out on purpose: POSIX_LOCKS and FLOCK_LOCKS (locks of one host belong in its kernel), WRITEBACK_CACHE (the
/// kernel's pages would hide writes from the scheduler), ATOMIC_O_TRUNC (truncation comes as SETATTR), and what
/// the decoder does not know: SECURITY_CTX, CREATE_SUPP_GROUP.
pub const WANTED: InitFlags = InitFlags::ASYNC_READ
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::BIG_WRITES)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::DO_READDIRPLUS)
    .union(InitFlags::READDIRPLUS_AUTO)
    .union(InitFlags::EXPORT_SUPPORT)
    .union(InitFlags::POSIX_ACL)
    .union(InitFlags::DONT_MASK)
    .union(InitFlags::HANDLE_KILLPRIV_V2)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::DIRECT_IO_ALLOW_MMAP);

bitflags! {
    /// What an open file's reply tells the kernel (FOPEN_* of linux/fuse.h).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpenReply: u32 {
        /// No pages in the kernel.
        const DIRECT_IO = 1;
        /// Pages from earlier opens are still true.
        const KEEP_CACHE = 2;
        /// No request at close(2).
        const NO_FLUSH = 32;
        /// Writers of one file do not wait for one another.
        const PARALLEL_DIRECT_WRITES = 64;
    }
}

impl OpenReply {
    /// For a file.
    pub fn file(opened: &Opened) -> Self {
        let cache = match opened.cache {
            CacheMode::Direct => Self::DIRECT_IO | Self::PARALLEL_DIRECT_WRITES,
            CacheMode::PageCache { keep: true } => Self::KEEP_CACHE,
            CacheMode::PageCache { keep: false } => Self::empty(),
        };
        if opened.tells_at_close { cache } else { cache | Self::NO_FLUSH }
    }
}

/// Flags of open(2).
///
/// `O_APPEND` says no more than that it was asked for, on purpose. For an appending write the kernel takes the inode's lock, then its own size
/// of the file as the offset; as the only client it always knows the size. The flag of the open would be wrong
/// twice: fcntl(2) changes it later without telling us, and pages of a shared mapping are written back through
/// whichever writable handle the kernel finds first. `O_SYNC` is left out too: each write carries its own answer,
/// see [`is_synchronous`].
pub fn open_flags(flags: i32) -> OpenFlags {
    let mut open = match flags & libc::O_ACCMODE {
        libc::O_WRONLY => OpenFlags::WRITE,
        libc::O_RDWR => OpenFlags::READ | OpenFlags::WRITE,
        _ => OpenFlags::READ,
    };
    if flags & libc::O_DIRECT != 0 {
        open |= OpenFlags::DIRECT;
    }
    // Where nothing but appending is allowed; see above.
    if flags & libc::O_APPEND != 0 {
        open |= OpenFlags::APPENDING;
    }
    if flags & libc::O_NOATIME != 0 {
        open |= OpenFlags::NO_ATIME;
    }
    open
}

/// True when a write with these flags must be durable before it returns: the file was opened with O_SYNC or
/// O_DSYNC, or this one write has RWF_SYNC or RWF_DSYNC.
pub fn is_synchronous(write_flags: i32) -> bool {
    write_flags & (libc::O_SYNC | libc::O_DSYNC) != 0
}

/// The kind a mode of mknod(2) asks for; the kernel's zero means a regular file.
///
/// # Errors
/// `InvalidArgument` for a type that mknod cannot make.
pub fn node_kind(mode: u32) -> Result<FileKind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Ok(FileKind::Regular),
        libc::S_IFBLK => Ok(FileKind::BlockDevice),
        libc::S_IFCHR => Ok(FileKind::CharacterDevice),
        libc::S_IFIFO => Ok(FileKind::Fifo),
        libc::S_IFSOCK => Ok(FileKind::Socket),
        _ => Err(Error::InvalidArgument),
    }
}

/// Permission bits of a mode.
pub fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// Modes of fallocate(2).
///
/// # Errors
/// `Unsupported` for the modes that FUSE or this filesystem does not have.
pub fn allocate_mode(mode: i32) -> Result<AllocateMode> {
    const ZERO_RANGE_KEEP_SIZE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    match mode {
        0 => Ok(AllocateMode::Extend),
        libc::FALLOC_FL_KEEP_SIZE => Ok(AllocateMode::KeepSize),
        PUNCH_HOLE => Ok(AllocateMode::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Ok(AllocateMode::ZeroRange),
        ZERO_RANGE_KEEP_SIZE => Ok(AllocateMode::ZeroRangeKeepSize),
        _ => Err(Error::Unsupported),
    }
}

/// Where lseek(2) is to go: the kernel answers SEEK_SET, SEEK_CUR and SEEK_END itself.
///
/// # Errors
/// `InvalidArgument` for anything but SEEK_DATA and SEEK_HOLE, `NoSuchOffset` for a negative offset.
pub fn seek(offset: i64, whence: i32) -> Result<(u64, Seek)> {
    let seek = match whence {
        libc::SEEK_DATA => Seek::Data,
        libc::SEEK_HOLE => Seek::Hole,
        _ => return Err(Error::InvalidArgument),
    };
    Ok((u64::try_from(offset).map_err(|_| Error::NoSuchOffset)?, seek))
}

/// Flags of renameat2(2).
///
/// # Errors
/// `InvalidArgument` for unknown flags.
pub fn rename_flags(flags: u32) -> Result<RenameFlags> {
    RenameFlags::from_bits(flags).ok_or(Error::InvalidArgument)
}

/// Flags of setxattr(2).
///
/// # Errors
/// `InvalidArgument` for unknown ones.
pub fn xattr_flags(flags: i32) -> Result<XattrFlags> {
    let known = XattrFlags::CREATE | XattrFlags::REPLACE;
    let flags = u32::try_from(flags).ok().and_then(XattrFlags::from_bits);
    flags.filter(|flags| known.contains(*flags)).ok_or(Error::InvalidArgument)
}

#[cfg(test)]
mod tests {
    use super::*;
    use avfs_core::types::HandleId;

    #[test]
    fn every_fallocate_mode_that_the_kernel_passes_has_a_meaning_or_is_refused() {
        let known = [
            (0, AllocateMode::Extend),
            (1, AllocateMode::KeepSize),
            (3, AllocateMode::PunchHole),
            (0x10, AllocateMode::ZeroRange),
            (0x11, AllocateMode::ZeroRangeKeepSize),
        ];
        for mode in 0..=0xff {
            let expected = known.iter().find(|(known, _)| *known == mode).map(|(_, meaning)| *meaning);
            assert_eq!(allocate_mode(mode).ok(), expected, "mode {mode:#x}");
        }
    }

    #[test]
    fn where_an_append_goes_is_the_kernels_business_and_never_reaches_the_volume() {
        let flags = open_flags(libc::O_RDWR | libc::O_APPEND | libc::O_DIRECT);
        assert_eq!(flags, OpenFlags::READ | OpenFlags::WRITE | OpenFlags::DIRECT | OpenFlags::APPENDING);
    }

    #[test]
    fn close_asks_where_there_may_be_something_to_tell() {
        let opened =
            Opened { handle: HandleId(1), cache: CacheMode::Direct, tells_at_close: true, admission: None };
        let direct = OpenReply::DIRECT_IO | OpenReply::PARALLEL_DIRECT_WRITES;
        assert_eq!(OpenReply::file(&opened), direct);
        let silent = Opened { tells_at_close: false, ..opened };
        assert_eq!(OpenReply::file(&silent), direct | OpenReply::NO_FLUSH);
    }

    #[test]
    fn flags_of_renaming_are_those_that_are_known() {
        assert_eq!(rename_flags(0), Ok(RenameFlags::empty()));
        assert_eq!(rename_flags(1), Ok(RenameFlags::NO_REPLACE));
        assert_eq!(rename_flags(2), Ok(RenameFlags::EXCHANGE));
        assert_eq!(rename_flags(5), Ok(RenameFlags::NO_REPLACE | RenameFlags::WHITEOUT));
        for wrong in [8, u32::MAX] {
            assert_eq!(rename_flags(wrong), Err(Error::InvalidArgument));
        }
    }

    #[test]
    fn seeking_knows_two_directions_only() {
        assert_eq!(seek(5, libc::SEEK_DATA), Ok((5, Seek::Data)));
        assert_eq!(seek(5, libc::SEEK_HOLE), Ok((5, Seek::Hole)));
        assert_eq!(seek(-1, libc::SEEK_HOLE), Err(Error::NoSuchOffset));
        assert_eq!(seek(0, libc::SEEK_END), Err(Error::InvalidArgument));
    }
}
