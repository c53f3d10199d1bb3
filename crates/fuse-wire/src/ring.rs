//! FUSE over io_uring: requests that are served on the processor of the client that makes them.
//!
//! **For:** the second transport beside [`crate::device`]. A request through `/dev/fuse` wakes a thread on another
//! processor and costs about 29 µs there and back; here a thread on each processor waits in a ring of its own, and the
//! kernel switches to it directly: about 8 µs. **Excludes:** decisions about files: everything is passed
//! to the [`Filesystem`]. **State:** each ring's thread owns its queue; the connection is shared.
//!
//! **Invariants:** a request is answered once, on whatever thread; a reply made elsewhere is handed to the ring's
//! thread, because a ring belongs to one. When the kernel ends the connection, the
//! threads end by themselves.
//!
//! What rings do not carry arrives at [`crate::device`].

mod courtesy;
mod queue;
pub(crate) mod slot;

use crate::connection::Connection;
use crate::options::Options;
use crate::watch::Watchdog;
use crate::{Filesystem, device};
use courtesy::Guard;
use queue::Queue;
use rustix::thread::CpuSet;
use slot::Shared;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

/// Switches FUSE over io_uring on, for connections made from then on.
const ENABLE: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE_PROCESSORS: &str = "/sys/devices/system/cpu/possible";

/// Requests that can be with us at once, of all processors together and of each: a client whose reads wait for the
/// device must leave entries for others.
const ENTRIES: usize = 256;
const ENTRIES_OF_A_PROCESSOR: std::ops::RangeInclusive<usize> = 8..=32;

/// Makes the kernel offer rings to filesystems mounted from now on.
///
/// # Errors
/// When it has none (before 6.14, or built without), or this process may not switch them on.
pub fn enable() -> io::Result<()> {
    let enabled = || fs::read_to_string(ENABLE).map(|text| matches!(text.trim(), "Y" | "1"));
    let not_there = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(error.kind(), "this kernel has no FUSE over io_uring"),
        _ => io::Error::new(error.kind(), format!("{ENABLE}: {error}")),
    };
    if !enabled().map_err(not_there)? {
        fs::write(ENABLE, "Y").map_err(not_there)?;
        if !enabled().map_err(not_there)? {
            return Err(io::Error::other(format!("{ENABLE} stays off")));
        }
        tracing::info!("switched FUSE over io_uring on");
    }
    Ok(())
}

/// A connection that is served.
pub(crate) struct Session {
    thread: JoinHandle<io::Result<()>>,
    rings: Vec<(Arc<Shared>, JoinHandle<()>)>,
    _guard: Arc<Guard>,
    _watchdog: Watchdog,
}

impl Session {
    /// See [`crate::Session::start`].
    pub(crate) fn start<F: Filesystem>(
        connection: OwnedFd,
        filesystem: &Arc<F>,
        options: &Options<F::Buffer>,
    ) -> io::Result<Self> {
        let watchdog = Watchdog::start(options.overdue)?;
        let device = Arc::new(Connection::new(connection, watchdog.requests(), &options.refusals));
        let processors = possible_processors(&fs::read_to_string(POSSIBLE_PROCESSORS)?)
            .ok_or_else(|| io::Error::other(format!("{POSSIBLE_PROCESSORS} is not understood")))?;
        let entries = (ENTRIES / processors as usize)
            .clamp(*ENTRIES_OF_A_PROCESSOR.start(), *ENTRIES_OF_A_PROCESSOR.end());

        // First everything that can fail; the handshake is the last. A ring that is dropped without its word ends.
        let guard = Arc::new(Guard::start()?);
        let mut started = Vec::new();
        for processor in 0..processors {
            started.push(Ring::start(&device, filesystem, &guard, processor, entries)?);
        }
        device::handshake(&device, options)?;
        let mut rings = Vec::new();
        for Ring { shared, thread, begin } in started {
            // The thread waits for it, or has panicked, which `join` reports.
            let _ = begin.send(());
            rings.push((shared, thread));
        }
        let (serving, connection) = (Arc::clone(filesystem), Arc::clone(&device));
        let thread = thread::Builder::new()
            .name("fuse".into())
            .spawn(move || device::serve(&connection, &*serving, None))?;
        tracing::info!(rings = processors, entries, "requests arrive through io_uring");
        Ok(Self { thread, rings, _guard: guard, _watchdog: watchdog })
    }

    /// Waits until the filesystem is unmounted and no thread serves it any more.
    ///
    /// # Errors
    /// When reading from the connection failed.
    pub(crate) fn join(self) -> io::Result<()> {
        let ended = device::join(self.thread);
        let mut joined = Ok(());
        for (shared, thread) in self.rings {
            shared.end();
            joined = joined.and(thread.join().map_err(device::panicked));
        }
        ended.and(joined)
    }
}

/// A thread with its ring, waiting for the connection to be initialized.
struct Ring {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
    begin: mpsc::Sender<()>,
}

impl Ring {
    fn start<F: Filesystem>(
        device: &Arc<Connection>,
        filesystem: &Arc<F>,
        guard: &Arc<Guard>,
        processor: u16,
        entries: usize,
    ) -> io::Result<Self> {
        let guard = Arc::clone(guard);
        let (begin, begins) = mpsc::channel();
        let (made, is_made) = mpsc::channel();
        let (device, filesystem) = (Arc::clone(device), Arc::clone(filesystem));
        let serve = move || {
            pin(processor);
            let queue = match Queue::new(&*device, device.unanswered(), processor, entries, guard.join()) {
                Ok(queue) => queue,
                Err(error) => {
                    let _ = made.send(Err(error));
                    return;
                }
            };
            let _ = made.send(Ok(queue.shared()));
            if begins.recv().is_ok() {
                queue.run(&|header, operation, payload, reply| {
                    filesystem.handle(header, operation, payload, reply);
                });
            }
        };
        let thread = thread::Builder::new().name(format!("fuse-ring-{processor}")).spawn(serve)?;
        let shared = is_made.recv().map_err(|_| io::Error::other("a ring's thread panicked"))??;
        Ok(Self { shared, thread, begin })
    }
}

/// Binds this thread to a processor. Without it, requests are served all the same: only slower.
fn pin(processor: u16) {
    let mut set = CpuSet::new();
    if usize::from(processor) < CpuSet::MAX_CPU {
        set.set(usize::from(processor));
    }
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::debug!(processor, %error, "a ring's thread is not bound to its processor");
    }
}

/// How many processors a list like `0-3,8` names: the kernel has a queue for each.
fn possible_processors(list: &str) -> Option<u16> {
    let mut count = 0u16;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        for (list, count) in [("0\n", 1), ("0-1\n", 2), ("0-3,8,10-11", 7)] {
            assert_eq!(possible_processors(list), Some(count));
        }
        for wrong in ["", "x", "3-1", "0-", "0-65535"] {
            assert_eq!(possible_processors(wrong), None, "{wrong}");
        }
    }
}
