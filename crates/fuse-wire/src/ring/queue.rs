//! One ring of one processor: memory shared with the kernel, and the commands that pass it to and fro. The only unsafe
//! code of this transport.
//!
//! **State:** the entries, each with a header and room for a payload in one mapping. **Invariant:** an entry is
//! either the kernel's (a command of it is in the ring) or ours, and ours it is from the command's answer until
//! [`Queue::push`] gives it back with a reply. While it is ours, its payload is either read by the request's handler,
//! if the request brought one, or written through the one [`Slot`] of the request, if not: never both. Headers are
//! touched by the ring's thread alone.

use super::courtesy::Stepping;
use super::slot::{Body, Commit, Memory, PAYLOAD_BYTES, Shared, Slot};
use crate::abi::{self, ring_command};
use crate::reply::{Reply, Route};
use crate::watch::Unanswered;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::mm::Advice;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Names the read of the eventfd among the answers; entries are named by their index.
const WAKE: u64 = u64::MAX;
/// A payload up to this size stays resident.
const KEPT_BYTES: usize = 256 << 10;
/// A request that moved more is answered before the next one of the same batch is looked at.
const URGENT_BYTES: usize = 64 << 10;
/// Memory of large payloads goes back to the system when no request has come for this long.
const IDLE: Duration = Duration::from_secs(10);
/// `len` in the kernel's `struct io_uring_sqe`.
const SQE_LEN_OFFSET: usize = 24;

/// What serves a request: its header, the structure of its operation, its payload.
pub(crate) type Handler<'a> = dyn Fn(&abi::InHeader, &[u8], &[u8], Reply) + 'a;

/// Where one entry is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A command of it is in the ring.
    Kernel,
    /// With a request that waits for its reply, which goes by this number.
    Ours { commit_id: u64 },
    /// The kernel does not take it back.
    Lost,
}

struct Entry {
    place: Place,
    /// Bytes of its payload that may be resident.
    touched: usize,
}

/// A ring of one processor, used on the thread that makes it.
pub(crate) struct Queue {
    uring: IoUring<squeue::Entry128, cqueue::Entry>,
    processor: u16,
    shared: Arc<Shared>,
    unanswered: Arc<Unanswered>,
    entries: Vec<Entry>,
    wake_armed: bool,
    /// Answers taken and not yet worked on.
    answers: Vec<(u64, i32)>,
    /// Some payload is larger than what stays resident.
    large: bool,
    stepping: Stepping,
}

/// A request that was just served.
#[derive(Clone, Copy)]
struct Served {
    process: u32,
    /// Its client sleeps until it is answered.
    is_awaited: bool,
    /// Bytes of it and its reply, if that was given at once.
    moved: usize,
}

impl Queue {
    /// A ring for `entries` requests at once of the clients that run on `processor`.
    ///
    /// # Errors
    /// When the kernel gives no ring, memory or eventfd.
    pub(crate) fn new(
        device: impl AsFd,
        unanswered: &Arc<Unanswered>,
        processor: u16,
        entries: usize,
        stepping: Stepping,
    ) -> io::Result<Self> {
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            // One command for each entry, and the read of the eventfd.
            .build(entries as u32 + 1)?;
        uring.submitter().register_files(&[device.as_fd().as_raw_fd()])?;
        let shared = Arc::new(Shared {
            memory: Memory::new(entries)?,
            replies: Mutex::new(Vec::with_capacity(entries)),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?,
            ended: AtomicBool::new(false),
            thread: OnceLock::from(thread::current().id()),
        });
        let entries = (0..entries).map(|_| Entry { place: Place::Lost, touched: 0 }).collect();
        let unanswered = Arc::clone(unanswered);
        let (wake_armed, answers, large) = (false, Vec::new(), false);
        Ok(Self { uring, processor, shared, unanswered, entries, wake_armed, answers, large, stepping })
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Hands all entries to the kernel, then serves requests until the connection has ended.
    ///
    /// # Panics
    /// When the kernel refuses the ring itself: clients of this processor could never be answered.
    pub(crate) fn run(mut self, handler: &Handler<'_>) {
        self.register();
        loop {
            self.send_replies();
            let ended = self.shared.ended.load(Ordering::Acquire);
            let at_kernel = self.entries.iter().any(|entry| entry.place == Place::Kernel);
            if ended && !at_kernel && !self.wake_armed {
                return;
            }
            if !ended {
                self.arm_wake();
            }
            if let Err(error) = self.wait() {
                panic!("the ring of processor {} is unusable: {error}", self.processor);
            }
            self.answers.extend(self.uring.completion().map(|answer| (answer.user_data(), answer.result())));
            let mut answers = std::mem::take(&mut self.answers);
            if answers.is_empty() {
                self.release_memory();
            }
            let mut remaining = answers.len();
            let only = remaining == 1;
            for (name, result) in answers.drain(..) {
                remaining -= 1;
                if name == WAKE {
                    self.wake_armed = false;
                } else if result < 0 {
                    self.lose(name as usize, result);
                } else {
                    let served = self.serve(name as usize, handler);
                    if only && self.goes_on_here(served) {
                        // What it cannot submit now, the next wait does.
                        let _ = self.stepping.back(|| self.uring.submit());
                    } else if served.moved > URGENT_BYTES && remaining > 0 {
                        let _ = self.uring.submit();
                    }
                }
            }
            self.answers = answers;
        }
    }

    /// Whether the client that was just answered is to go on on this processor, because nothing but the answer is with us, and it is
    /// kept here. An answer that takes long to copy is not put behind others.
    fn goes_on_here(&mut self, served: Served) -> bool {
        let is_answered = self.entries.iter().all(|entry| !matches!(entry.place, Place::Ours { .. }));
        served.is_awaited
            && self.stepping.keeps(served.process)
            && is_answered
            && served.moved <= URGENT_BYTES
    }

    fn register(&mut self) {
        let memory = &self.shared.memory;
        let vector = |start: *mut u8, length| libc::iovec { iov_base: start.cast(), iov_len: length };
        let vectors: Vec<[libc::iovec; 2]> = (0..self.entries.len())
            .map(|entry| {
                let header = memory.header(entry).cast();
                [vector(header, size_of::<abi::RingHeader>()), vector(memory.payload(entry), PAYLOAD_BYTES)]
            })
            .collect();
        for (entry, vectors) in vectors.iter().enumerate() {
            self.push(entry, ring_command::REGISTER, 0, Some(vectors));
        }
        // Commands that it did not take keep an address of `vectors`: so all, before they go.
        if let Err(error) = self.uring.submit() {
            panic!("the ring of processor {} is unusable: {error}", self.processor);
        }
        assert!(self.uring.submission().is_empty(), "the kernel left commands in the ring");
    }

    /// Gives an entry to the kernel.
    fn push(&mut self, entry: usize, command: u32, commit_id: u64, vectors: Option<&[libc::iovec; 2]>) {
        let mut bytes = [0; 80];
        let parameters = abi::RingCommand { commit_id, qid: self.processor, ..Default::default() };
        bytes[..size_of::<abi::RingCommand>()].copy_from_slice(parameters.as_bytes());
        let mut sqe = opcode::UringCmd80::new(types::Fixed(0), command)
            .cmd(bytes)
            .addr(vectors.map(|vectors| vectors.as_ptr().addr() as u64))
            .build()
            .user_data(entry as u64);
        if let Some(vectors) = vectors {
            let length = (&raw mut sqe).cast::<u8>().wrapping_add(SQE_LEN_OFFSET).cast::<u32>();
            // SAFETY: an `Entry128` is the kernel's structure of 128 bytes, aligned to 8, in which this field is a u32 at
            // this offset; the crate's type of this command has no setter for it.
            unsafe { length.write(vectors.len() as u32) };
        }
        self.entries[entry].place = Place::Kernel;
        // SAFETY: the command gives the kernel the entry's header and payload (at first by `vectors`, which the caller
        // keeps until it has submitted), in a mapping that lives until the command was answered. Nobody else touches them
        // from now on: the slot of the request before is gone, and its handler has returned, because the thread that
        // runs it is this one.
        unsafe { self.submit(&sqe) };
    }

    fn arm_wake(&mut self) {
        if self.wake_armed {
            return;
        }
        let fd = types::Fd(self.shared.wake.as_raw_fd());
        let sqe = opcode::Read::new(fd, self.shared.memory.wake_count().cast(), size_of::<u64>() as u32);
        self.wake_armed = true;
        // SAFETY: the counter has 8 bytes of its own in the mapping, which lives until the command was answered, as does
        // the descriptor; nobody else touches it.
        unsafe { self.submit(&squeue::Entry128::from(sqe.build().user_data(WAKE))) };
    }

    /// Puts a command into the ring.
    ///
    /// # Safety
    /// The memory that it names is the kernel's until it is answered.
    unsafe fn submit(&mut self, sqe: &squeue::Entry128) {
        // SAFETY: the caller's promise.
        while unsafe { self.uring.submission().push(sqe) }.is_err() {
            // There is a place for a command of each entry; so this makes room.
            if let Err(error) = self.uring.submit() {
                panic!("the ring of processor {} is unusable: {error}", self.processor);
            }
        }
    }

    /// Submits, and blocks until there is an answer or nothing has come for some time.
    fn wait(&mut self) -> io::Result<()> {
        let outcome = if self.large {
            let idle = types::Timespec::from(IDLE);
            let arguments = types::SubmitArgs::new().timespec(&idle);
            self.uring.submitter().submit_with_args(1, &arguments)
        } else {
            self.uring.submit_and_wait(1)
        };
        match outcome.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) => Ok(()),
            // Time is up; a signal; or the kernel wants answers taken before it accepts more.
            Err((Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN), _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }

    /// Serves the request that the kernel put into an entry, and hands over what can be answered.
    fn serve(&mut self, entry: usize, handler: &Handler<'_>) -> Served {
        let memory = &self.shared.memory;
        // SAFETY: within the mapping, aligned to 512, of a type that any bytes are valid for; the kernel's command of
        // this entry was answered, so it does not write there.
        let request = unsafe { memory.header(entry).read() };
        let (header, _) = abi::InHeader::read_from_prefix(&request.in_out).expect("128 bytes hold a header");
        let length = (request.entry.payload_sz as usize).min(PAYLOAD_BYTES);
        // SAFETY: within the mapping, which `self.shared` keeps; the kernel does not write there, as above. We do not
        // either while this lives: a slot without the payload gives out no room, and a reply is put there by this
        // thread, later. Any bytes are valid.
        let payload = unsafe { std::slice::from_raw_parts(memory.payload(entry), length) };
        self.entries[entry].place = Place::Ours { commit_id: request.entry.commit_id };
        self.entries[entry].touched = self.entries[entry].touched.max(length);
        self.large |= length > KEPT_BYTES;
        let slot = Slot { shared: Arc::clone(&self.shared), entry, owns_payload: length == 0 };
        handler(
            &header,
            &request.operation,
            payload,
            Reply::new(&header, Route::Ring(slot), &self.unanswered),
        );
        // Of these two the kernel waits for the answer itself.
        let is_awaited = !matches!(header.opcode, abi::opcode::RELEASE | abi::opcode::RELEASEDIR);
        Served { process: header.pid, is_awaited, moved: length + self.send_replies() }
    }

    /// Gives the entries whose replies are there back to the kernel. Gives back how many bytes they carry.
    fn send_replies(&mut self) -> usize {
        let mut moved = 0;
        let mut replies = std::mem::take(&mut *self.shared.replies.lock());
        for Commit { entry, unique, errno, body } in replies.drain(..) {
            let Place::Ours { commit_id } = self.entries[entry].place else { continue };
            let length = match &body {
                Body::InPlace(length) => *length,
                Body::Copied(bytes) => {
                    let payload = self.shared.memory.payload(entry);
                    let length = bytes.len().min(PAYLOAD_BYTES);
                    // SAFETY: within the mapping; the entry is ours, its slot was consumed by this reply, and its handler has
                    // returned: it ran on this thread. The bytes lie elsewhere.
                    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), payload, length) };
                    length
                }
            };
            let mut header = abi::RingHeader::new_zeroed();
            let out =
                abi::OutHeader { len: (size_of::<abi::OutHeader>() + length) as u32, error: -errno, unique };
            header.in_out[..size_of::<abi::OutHeader>()].copy_from_slice(out.as_bytes());
            header.entry.commit_id = commit_id;
            header.entry.payload_sz = length as u32;
            // SAFETY: within the mapping and aligned; the entry is ours, and headers are touched by this thread alone.
            unsafe { self.shared.memory.header(entry).write(header) };
            self.entries[entry].touched = self.entries[entry].touched.max(length);
            self.large |= length > KEPT_BYTES;
            moved += length;
            self.push(entry, ring_command::COMMIT_AND_FETCH, commit_id, None);
        }
        // Its memory is used again, unless somebody replied meanwhile.
        let mut queued = self.shared.replies.lock();
        if queued.is_empty() {
            *queued = replies;
        }
        moved
    }

    /// The kernel answered a command with an error: it does not have the entry any more.
    fn lose(&mut self, entry: usize, result: i32) {
        self.entries[entry].place = Place::Lost;
        let error = io::Error::from_raw_os_error(-result);
        match -result {
            libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED => {
                tracing::debug!(processor = self.processor, entry, %error, "the connection ended");
            }
            _ => {
                tracing::error!(processor = self.processor, entry, %error, "the kernel refuses a ring's entry")
            }
        }
    }

    /// Returns the memory of large payloads to the system. Only to be called when no request is known to have come: the
    /// kernel fills an entry while this thread waits, and says so before the wait is over.
    fn release_memory(&mut self) {
        if !self.large {
            return;
        }
        self.large = false;
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            if entry.touched <= KEPT_BYTES {
                continue;
            }
            if entry.place != Place::Kernel {
                self.large = true;
                continue;
            }
            let start = self.shared.memory.payload(index).wrapping_add(KEPT_BYTES).cast();
            // SAFETY: whole pages within the mapping, that hold nothing: the kernel has the entry and has not filled it.
            let advised =
                unsafe { rustix::mm::madvise(start, PAYLOAD_BYTES - KEPT_BYTES, Advice::LinuxDontNeed) };
            match advised {
                Ok(()) => entry.touched = KEPT_BYTES,
                Err(error) => tracing::debug!(%error, "memory of a payload stays resident"),
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.wake_armed || self.entries.iter().any(|entry| entry.place == Place::Kernel) {
            // The kernel may still write to the memory: it stays.
            std::mem::forget(Arc::clone(&self.shared));
        }
    }
}
