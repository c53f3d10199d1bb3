//! Which requests wait for their answer, and which of them for too long.
//!
//! **For:** naming a request that hangs, while it hangs: it would else be known only by clients that stand still. **Excludes:**
//! doing anything about it. **State:** the unanswered requests of one connection, in shards, so that threads which answer do not
//! wait for each other. **Invariant:** a request is told of at most once as overdue, and once more when it is answered after all.

use crate::abi::{self, opcode};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

const SHARDS: usize = 16;
/// Lines of log for one look at the requests: when a device hangs, hundreds hang with it.
const LINES: usize = 8;
/// An overdue request is noticed when its time is over by a quarter at most.
const LOOKS: u32 = 4;

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    since: Instant,
    opcode: u32,
    node: u64,
    process: u32,
    told: bool,
}

/// A request that has waited for too long, as it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overdue {
    waited: Duration,
    unique: u64,
    opcode: u32,
    node: u64,
    process: u32,
}

/// All unanswered requests of a connection.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    shards: [Mutex<HashMap<u64, Waiting>>; SHARDS],
}

impl Unanswered {
    fn shard(&self, unique: u64) -> &Mutex<HashMap<u64, Waiting>> {
        // The kernel counts in steps of two.
        &self.shards[(unique >> 1) as usize % SHARDS]
    }

    pub(crate) fn begin(&self, header: &abi::InHeader, now: Instant) {
        let &abi::InHeader { opcode, nodeid: node, pid: process, .. } = header;
        let waiting = Waiting { since: now, opcode, node, process, told: false };
        self.shard(header.unique).lock().insert(header.unique, waiting);
    }

    pub(crate) fn end(&self, unique: u64) {
        let ended = self.shard(unique).lock().remove(&unique);
        if let Some(Waiting { since, opcode, node, process, told: true }) = ended {
            let seconds = since.elapsed().as_secs();
            let request = opcode::name(opcode);
            tracing::warn!(request, node, process, seconds, "an overdue request is answered after all");
        }
    }

    /// Requests that have waited for `limit` and have not been told of, the longest first.
    fn overdue(&self, now: Instant, limit: Duration) -> Vec<Overdue> {
        let mut found = Vec::new();
        for shard in &self.shards {
            for (&unique, request) in shard.lock().iter_mut().filter(|(_, request)| !request.told) {
                let waited = now.saturating_duration_since(request.since);
                if waited >= limit {
                    request.told = true;
                    let &mut Waiting { opcode, node, process, .. } = request;
                    found.push(Overdue { waited, unique, opcode, node, process });
                }
            }
        }
        found.sort_by_key(|request| std::cmp::Reverse((request.waited, request.unique)));
        found
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().is_empty())
    }

    fn tell(&self, limit: Duration) {
        let found = self.overdue(Instant::now(), limit);
        for &Overdue { waited, opcode, node, process, .. } in found.iter().take(LINES) {
            let (request, seconds) = (opcode::name(opcode), waited.as_secs());
            tracing::error!(request, node, process, seconds, "a request is not answered");
        }
        if let Some(others @ 1..) = found.len().checked_sub(LINES) {
            tracing::error!(others, "as many other requests are not answered either");
        }
    }
}

/// Looks at the unanswered requests from a thread of its own, until it is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    requests: Arc<Unanswered>,
    thread: Thread,
}

impl Watchdog {
    /// Starts the thread. What has waited for `limit` is logged once.
    ///
    /// # Errors
    /// When no thread can be had.
    pub(crate) fn start(limit: Duration) -> std::io::Result<Self> {
        let requests = Arc::new(Unanswered::default());
        let watched: Weak<Unanswered> = Arc::downgrade(&requests);
        let look = move || {
            while let Some(requests) = watched.upgrade() {
                requests.tell(limit);
                drop(requests);
                thread::park_timeout(limit / LOOKS);
            }
        };
        let thread = thread::Builder::new().name("fuse-watch".into()).spawn(look)?.thread().clone();
        Ok(Self { requests, thread })
    }

    /// What it looks at.
    pub(crate) fn requests(&self) -> &Arc<Unanswered> {
        &self.requests
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(unique: u64, opcode: u32) -> abi::InHeader {
        abi::InHeader { unique, opcode, nodeid: 5, pid: 77, ..Default::default() }
    }

    /// Of the hang of a whole volume nothing was to be seen but its clients, which could not even be listed.
    #[test]
    fn a_request_that_waits_too_long_is_told_of_once() {
        let (requests, start, second) = (Unanswered::default(), Instant::now(), Duration::from_secs(1));
        requests.begin(&header(2, opcode::READ), start);
        requests.begin(&header(34, opcode::WRITE), start + second);
        requests.begin(&header(6, opcode::FSYNC), start);
        requests.end(6);
        assert_eq!(requests.overdue(start + second, 2 * second), []);
        let read = Overdue { waited: 2 * second, unique: 2, opcode: opcode::READ, node: 5, process: 77 };
        assert_eq!(requests.overdue(start + 2 * second, 2 * second), [read]);
        let write = Overdue { unique: 34, opcode: opcode::WRITE, ..read };
        assert_eq!(requests.overdue(start + 3 * second, 2 * second), [write]);
        assert_eq!(requests.overdue(start + 9 * second, 2 * second), []);
    }

    #[test]
    fn what_is_answered_is_forgotten() {
        let requests = Unanswered::default();
        for unique in 0..1000 {
            requests.begin(&header(unique, opcode::GETATTR), Instant::now());
        }
        (0..1000).for_each(|unique| requests.end(unique));
        assert!(requests.is_empty());
    }

    #[test]
    fn the_thread_ends_with_its_last_request() {
        let watchdog = Watchdog::start(Duration::from_secs(3600)).unwrap();
        let watched = Arc::downgrade(watchdog.requests());
        drop(watchdog);
        assert!(watched.upgrade().is_none());
    }
}
