//! The queue of one device.

use crate::request::{Class, Dispatch, DispatchId, Reason, Request, RequestId};
use alloc::collections::BTreeMap;
use smallvec::smallvec;
use units::{Duration, Instant};

/// What an administrator may set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Commands at the device at once, 1..=1024.
    pub queue_depth: u32,
    /// Deadline of a metadata request that names none, counted from its arrival.
    pub metadata_latency: Duration,
    /// Deadline of a best-effort request that names none.
    pub best_effort_latency: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            queue_depth: 32,
            metadata_latency: Duration::from_millis(50),
            best_effort_latency: Duration::from_secs(2),
        }
    }
}

/// The state machine. See the crate's documentation.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    queued: BTreeMap<(Instant, RequestId), Request>,
    deadlines: BTreeMap<RequestId, Instant>,
    in_flight: u32,
    next_dispatch: u64,
}

impl Scheduler {
    /// An idle scheduler.
    pub fn new(config: Config) -> Self {
        Self { config, queued: BTreeMap::new(), deadlines: BTreeMap::new(), in_flight: 0, next_dispatch: 0 }
    }

    /// Accepts a request.
    ///
    /// # Panics
    /// When a request of the same name is queued already.
    pub fn enqueue(&mut self, now: Instant, request: Request) {
        let deadline = request.deadline.unwrap_or(match request.class {
            Class::RealTime | Class::Metadata => now + self.config.metadata_latency,
            Class::BestEffort => now + self.config.best_effort_latency,
            Class::Idle => Instant::FAR_FUTURE,
        });
        let previous = self.deadlines.insert(request.id, deadline);
        assert!(previous.is_none(), "{:?} is queued already", request.id);
        self.queued.insert((deadline, request.id), request);
    }

    /// The next command for the device, or `None` when the device has enough or nothing waits.
    pub fn dispatch(&mut self, _now: Instant) -> Option<Dispatch> {
        if self.in_flight >= self.config.queue_depth {
            return None;
        }
        let (_, request) = self.queued.pop_first()?;
        self.deadlines.remove(&request.id);
        self.in_flight += 1;
        self.next_dispatch += 1;
        Some(Dispatch {
            id: DispatchId(self.next_dispatch),
            requests: smallvec![request.id],
            direction: request.direction,
            offset: request.offset,
            length: request.length,
            reason: Reason::EarliestDeadline,
        })
    }

    /// The device finished a command, well or not.
    pub fn complete(&mut self, _now: Instant, _dispatch: DispatchId) {
        self.in_flight -= 1;
    }

    /// Somebody now waits for a queued request: it gets `class` and completes by `deadline`, if that is earlier
    /// than what it has. Returns false when the request is not queued (any more).
    pub fn promote(&mut self, _now: Instant, id: RequestId, class: Class, deadline: Instant) -> bool {
        let Some(old) = self.deadlines.get(&id).copied() else { return false };
        let Some(mut request) = self.queued.remove(&(old, id)) else { return false };
        request.class = request.class.min(class);
        let deadline = deadline.min(old);
        self.deadlines.insert(id, deadline);
        self.queued.insert((deadline, id), request);
        true
    }

    /// Takes back a request that was not dispatched yet. Returns false when it was, or never existed.
    pub fn cancel(&mut self, _now: Instant, id: RequestId) -> bool {
        match self.deadlines.remove(&id) {
            Some(deadline) => self.queued.remove(&(deadline, id)).is_some(),
            None => false,
        }
    }

    /// The instant at which [`dispatch`](Self::dispatch) may answer otherwise without any other call:
    /// `None` while only calls can change it.
    pub fn next_wakeup(&self, _now: Instant) -> Option<Instant> {
        None
    }

    /// Requests accepted and not dispatched.
    pub fn queued(&self) -> usize {
        self.queued.len()
    }

    /// Commands at the device.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }
}
