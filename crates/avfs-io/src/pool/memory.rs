//! The mapping itself: the one place that turns pool offsets into addresses.

use memmap2::{MmapMut, MmapOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// An anonymous private mapping with an aligned start, alive as long as this value.
#[derive(Debug)]
pub(super) struct Memory {
    _map: MmapMut,
    base: *mut u8,
    length: usize,
}

// SAFETY: `base` points into `_map`, which moves with it and is unmapped only on drop; the methods below say why
// access from several threads is sound.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn map(length: usize, alignment: usize, pin: bool) -> io::Result<Self> {
        let mut map = MmapOptions::new().len(length + alignment).map_anon()?;
        let skip = (map.as_ptr() as usize).next_multiple_of(alignment) - map.as_ptr() as usize;
        // SAFETY: skip < alignment, and the mapping is `length + alignment` long.
        let base = unsafe { map.as_mut_ptr().add(skip) };
        if pin {
            #[cfg(target_os = "linux")]
            // Without huge pages everything still works, slower.
            let _ = map.advise(memmap2::Advice::HugePage);
            map.lock()?;
        }
        Ok(Self { _map: map, base, length })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base
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
        // SAFETY: inside the mapping (`at` checks), initialised (anonymous memory is zero), and alive as long as
        // `self`. A buffer's bytes are changed only through `copy_in`, `zero` and the device; the filesystem lets
        // those overlap with a reader only when a client writes a range that another is reading at that moment.
        // The readers only copy the bytes or hand them to the kernel, so such a race decides which bytes are
        // seen, never anything else.
        unsafe { std::slice::from_raw_parts(self.at(offset, length), length) }
    }

    /// Nobody else may have these bytes.
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
        // SAFETY: the kernel writes to `head` and `tail`, which are borrowed for as long, and to bytes inside the mapping (`at` checks), for
        // which any value is valid and which nobody else has.
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
