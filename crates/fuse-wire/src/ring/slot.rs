//! The memory of a ring that its thread shares with the kernel and with those that reply, and the way back of one reply.
//!
//! **State:** one mapping with a header and room for a payload of each entry; replies that the ring's thread is to hand over.
//! **Invariant:** that of [`queue`](super::queue): which part of the mapping is touched by what, and when.

use crate::abi;
use crate::room::{HUGE_PAGE, MAX_REQUEST_BYTES};
use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use smallvec::SmallVec;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};

/// The kernel demands room for its largest request.
pub(super) const PAYLOAD_BYTES: usize = MAX_REQUEST_BYTES as usize;
pub(super) const HEADER_STRIDE: usize = 512;

/// What a reply carries beside its errno.
pub(crate) enum Body {
    /// These bytes.
    Copied(SmallVec<[u8; size_of::<abi::CreateOut>()]>),
    /// As many bytes, which the slot's room has already.
    InPlace(usize),
}

pub(super) struct Commit {
    pub(super) entry: usize,
    pub(super) unique: u64,
    pub(super) errno: i32,
    pub(super) body: Body,
}

/// One mapping: headers, the eventfd's counter, payloads. Pages become resident when they are touched. A payload starts
/// at a huge page's boundary, with small pages for small requests; what follows the first is huge, because page faults
/// and address translation are a good part of what copying megabytes costs.
pub(super) struct Memory {
    start: NonNull<u8>,
    entries: usize,
    /// Bytes from `start` to the first payload.
    payloads_at: usize,
    length: usize,
}

// SAFETY: the mapping belongs to no thread; which thread may touch which part of it when is the module's invariant.
unsafe impl Send for Memory {}
// SAFETY: as above: its methods give out pointers, and every access through them is argued where it is made.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new(entries: usize) -> io::Result<Self> {
        let headers = entries * HEADER_STRIDE + size_of::<u64>();
        let length = (headers + HUGE_PAGE).next_multiple_of(HUGE_PAGE) + entries * PAYLOAD_BYTES;
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), length, protection, flags)? };
        let start: NonNull<u8> = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let payloads_at = (start.addr().get() + headers).next_multiple_of(HUGE_PAGE) - start.addr().get();
        let memory = Self { start, entries, payloads_at, length };
        for entry in 0..entries {
            let rest = memory.payload(entry).wrapping_add(HUGE_PAGE).cast();
            // SAFETY: within the mapping; the advice changes no bytes.
            let advised =
                unsafe { rustix::mm::madvise(rest, PAYLOAD_BYTES - HUGE_PAGE, Advice::LinuxHugepage) };
            if let Err(error) = advised {
                tracing::debug!(%error, "payloads have small pages");
            }
        }
        Ok(memory)
    }

    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.length);
        // SAFETY: within the mapping, as just checked.
        unsafe { self.start.as_ptr().add(offset) }
    }

    pub(super) fn header(&self, entry: usize) -> *mut abi::RingHeader {
        assert!(entry < self.entries);
        self.at(entry * HEADER_STRIDE).cast()
    }

    pub(super) fn wake_count(&self) -> *mut u64 {
        self.at(self.entries * HEADER_STRIDE).cast()
    }

    pub(super) fn payload(&self, entry: usize) -> *mut u8 {
        assert!(entry < self.entries);
        self.at(self.payloads_at + entry * PAYLOAD_BYTES)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the last reference to the mapping goes. The kernel has no address of it: `Queue` leaks a reference
        // if it ends while commands are in the ring.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// What the ring's thread shares with the threads that reply.
pub(crate) struct Shared {
    pub(super) memory: Memory,
    pub(super) replies: Mutex<Vec<Commit>>,
    pub(super) wake: OwnedFd,
    pub(super) ended: AtomicBool,
    pub(super) thread: OnceLock<ThreadId>,
}

impl Shared {
    pub(super) fn wake(&self) {
        // It can only fail by overflow, and then the thread has been woken 2^64 - 1 times already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// The connection is gone: the thread ends when the kernel has let go of all entries.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }
}

/// The way back of one request into its entry.
pub(crate) struct Slot {
    pub(super) shared: Arc<Shared>,
    pub(super) entry: usize,
    /// The request brought no payload: its place is this slot's.
    pub(super) owns_payload: bool,
}

impl Slot {
    /// Where the kernel takes the reply from, if that place is free.
    pub(crate) fn room(&mut self) -> Option<&mut [u8]> {
        let payload = self.shared.memory.payload(self.entry);
        // SAFETY: PAYLOAD_BYTES from there are within the mapping, which `shared` keeps. Nothing else touches them: the
        // entry is ours until this slot is committed, there is one slot for a request, and the handler was given no
        // payload to read. Any bytes are valid.
        self.owns_payload.then(|| unsafe { std::slice::from_raw_parts_mut(payload, PAYLOAD_BYTES) })
    }

    /// Sends the reply: passes it to the ring's thread. `errno` is positive, or 0 for success.
    pub(crate) fn commit(self, unique: u64, errno: i32, body: Body) {
        let first = {
            let mut replies = self.shared.replies.lock();
            replies.push(Commit { entry: self.entry, unique, errno, body });
            replies.len() == 1
        };
        // Before it sleeps, the thread looks here itself; later ones find it awake.
        if first && self.shared.thread.get() != Some(&thread::current().id()) {
            self.shared.wake();
        }
    }
}
