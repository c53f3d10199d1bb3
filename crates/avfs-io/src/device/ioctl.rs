//! The two questions to a block device that the libraries do not ask.

use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;

/// `BLKGETSIZE64`, `BLKDISCARD` of linux/fs.h.
const SIZE_IN_BYTES: libc::Ioctl = libc::_IOR::<libc::size_t>(0x12, 114);
const DISCARD: libc::Ioctl = libc::_IO(0x12, 119);

/// Size in bytes.
pub(super) fn size(file: &File) -> Result<u64, Errno> {
    let mut size = 0u64;
    // SAFETY: the descriptor is open; the kernel writes one u64.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), SIZE_IN_BYTES, &raw mut size) };
    checked(status).map(|()| size)
}

/// Discards `length` bytes at `offset`.
pub(super) fn discard(file: &File, offset: u64, length: u64) -> Result<(), Errno> {
    let range = [offset, length];
    // SAFETY: the descriptor is open; the kernel reads two u64.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), DISCARD, range.as_ptr()) })
}

fn checked(status: libc::c_int) -> Result<(), Errno> {
    if status == 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&errno).unwrap_or(Errno::IO))
}
