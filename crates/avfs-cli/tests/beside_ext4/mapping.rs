//! Stores through a shared mapping of a file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Stores `byte` at the first place of a file, through a mapping; with `sync` it has been written when this returns.
///
/// # Errors
/// What mmap(2) and msync(2) say.
pub(crate) fn store(file: &File, byte: u8, sync: bool) -> io::Result<()> {
    const LENGTH: usize = 4096;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no other memory.
    let address = unsafe {
        libc::mmap(std::ptr::null_mut(), LENGTH, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is writable and `LENGTH` long, and nobody else knows it.
    unsafe { address.cast::<u8>().write_volatile(byte) };
    // SAFETY: the range is the mapping's own.
    let synced = if sync { unsafe { libc::msync(address, LENGTH, libc::MS_SYNC) } } else { 0 };
    let result = if synced == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: the mapping is ours and nobody uses it after this.
    unsafe { libc::munmap(address, LENGTH) };
    result
}
