//! The mapping itself: the one place that turns pool offsets into addresses.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// An anonymous private mapping with an aligned start, alive as long as this value.
#[derive(Debug)]
pub(super) struct Memory {
    map: *mut libc::c_void,
    map_length: usize,
    base: *mut u8,
    length: usize,
}

// SAFETY: `base` points into the mapping, which is unmapped only on drop; the methods below say why access from several threads
// is sound.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// All of it can be used, and is backed as it is touched; with `reserve`, addresses alone: what is used has to be
    /// [taken](Self::take) before.
    pub(super) fn map(length: usize, alignment: usize, reserve: bool) -> io::Result<Self> {
        let map_length = length + alignment;
        let (protection, flags) = match reserve {
            true => (libc::PROT_NONE, libc::MAP_NORESERVE),
            false => (libc::PROT_READ | libc::PROT_WRITE, 0),
        };
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), map_length, protection, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if reserve {
            // Without huge pages everything still works, slower.
            // SAFETY: all of the mapping, of which nothing is used yet.
            unsafe { libc::madvise(map, map_length, libc::MADV_HUGEPAGE) };
        }
        let skip = (map as usize).next_multiple_of(alignment) - map as usize;
        // SAFETY: skip < alignment, and the mapping is `length + alignment` long.
        let base = unsafe { map.cast::<u8>().add(skip) };
        Ok(Self { map, map_length, base, length })
    }

    /// From now on these bytes, of whole pages, can be used: zeros, locked into memory.
    pub(super) fn take(&self, offset: usize, length: usize) -> io::Result<()> {
        let place = self.at(offset, length).cast();
        // SAFETY: inside the mapping (`at` checks), and no buffer of it is out before this returns.
        let taken = unsafe {
            libc::mprotect(place, length, libc::PROT_READ | libc::PROT_WRITE) == 0
                && libc::mlock(place, length) == 0
        };
        if taken { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// These bytes, of whole pages, which are free, are the machine's again.
    pub(super) fn give_back(&self, offset: usize, length: usize) -> io::Result<()> {
        let place = self.at(offset, length).cast();
        // SAFETY: inside the mapping (`at` checks). Whatever holds bytes of it holds a `Piece`, and there is none of these; they read as
        // zeros when they are taken again, which is a value that they can have.
        let given = unsafe {
            libc::munlock(place, length) == 0 && libc::madvise(place, length, libc::MADV_DONTNEED) == 0
        };
        if given { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(super) fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset <= self.length && length <= self.length - offset);
        // SAFETY: the assertion keeps it inside the mapping.
        unsafe { self.base.add(offset) }
    }

    pub(super) fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        // SAFETY: inside the mapping (`at` checks), taken, initialised (anonymous memory is zero), and alive as long as
        // `self`. A buffer's bytes are changed only through `copy_in`, `zero` and the device; the filesystem lets
        // those overlap with a reader only when a client writes a range that another is reading at that moment.
        // The readers only copy the bytes or hand them to the kernel, so such a race decides which bytes are
        // seen, never anything else.
        unsafe { std::slice::from_raw_parts(self.at(offset, length), length) }
    }

    /// These bytes may be held nowhere else.
    pub(super) fn receive(
        &self,
        offset: usize,
        length: usize,
        from: BorrowedFd<'_>,
        head: &mut [u8],
        tail: &mut [u8],
    ) -> io::Result<usize> {
        let vectors = [
            libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() },
            libc::iovec { iov_base: self.at(offset, length).cast(), iov_len: length },
            libc::iovec { iov_base: tail.as_mut_ptr().cast(), iov_len: tail.len() },
        ];
        // SAFETY: the kernel writes to `head` and `tail`, which are borrowed for as long, and to bytes inside the mapping (`at`
        // checks), for which any value is valid and which are held nowhere else.
        let received = unsafe { libc::readv(from.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    pub(super) fn copy_in(&self, offset: usize, from: &[u8]) {
        // SAFETY: inside the mapping; `from` is a caller's slice, which overlaps this range only if it came from
        // `bytes` of the same buffer, and `copy` allows that.
        unsafe { std::ptr::copy(from.as_ptr(), self.at(offset, from.len()), from.len()) }
    }

    pub(super) fn zero(&self, offset: usize, length: usize) {
        // SAFETY: inside the mapping.
        unsafe { std::ptr::write_bytes(self.at(offset, length), 0, length) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this mapping, of which nothing is borrowed any more.
        unsafe { libc::munmap(self.map, self.map_length) };
    }
}
