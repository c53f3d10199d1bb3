//! What clients act on: the clock, the queue, the generator of names.
//!
//! **For:** the calls a client makes, each recorded in the trace and checked: a request goes to the device at most once,
//! and comes back from it exactly once. **Excludes:** what clients want. **State:** requests on their way, timers, the
//! trace. **Invariants:** two runs of one scenario with one seed leave the same trace.

use crate::policy::{Grant, Notice, Policy};
use crate::trace::Trace;
use rtsched::{Class, Direction, Dispatch, DispatchId, Request, RequestId, StreamId};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use units::{Bytes, DeviceOffset, Instant};

/// Whose request or timer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Client {
    Stream(usize),
    Loose,
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// Something of a stream is due. It carries the count of its alarms: all but the last are void.
    Ask(u64),
}

/// On whose account device time goes, see [`Usage`](avfs_model::device::Usage).
pub(crate) const STREAMS: usize = 0;
pub(crate) const METADATA: usize = 1;
pub(crate) const BEST_EFFORT: usize = 2;
/// Streams without a guarantee.
pub(crate) const UNADMITTED: usize = 3;

/// A request from its enqueueing to its completion.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) client: Client,
    /// The client's name for it.
    pub(crate) mark: u64,
    pub(crate) class: Class,
    pub(crate) direction: Direction,
    pub(crate) offset: DeviceOffset,
    pub(crate) length: Bytes,
    pub(crate) owner: usize,
    pub(crate) enqueued: Instant,
    at_device: bool,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) mark: u64,
    pub(crate) class: Class,
    pub(crate) stream: Option<StreamId>,
    pub(crate) direction: Direction,
    pub(crate) offset: DeviceOffset,
    pub(crate) length: Bytes,
    pub(crate) deadline: Option<Instant>,
    pub(crate) owner: usize,
}

/// Something that happened, for whoever watches a run.
#[derive(Clone, Debug)]
pub enum Happening<'a> {
    /// A client asked for something.
    Enqueued(&'a Request),
    /// A client took a request back.
    Cancelled(RequestId),
    /// A command went to the device.
    Dispatched(&'a Dispatch),
    /// A command came back.
    Completed(DispatchId),
    /// A stream asked to be admitted.
    Asked {
        /// Which stream.
        stream: StreamId,
        /// What it was granted, or why it was not.
        answer: &'a Result<Grant, String>,
        /// The part of the device's time that the oracle needs for it and all that were admitted.
        oracle: Option<f64>,
    },
    /// The policy decided something about a stream.
    Noticed(&'a Notice),
    /// Units of a stream were late.
    Late {
        /// Which stream.
        stream: StreamId,
        /// How many.
        units: u64,
    },
}

impl fmt::Display for Happening<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enqueued(request) => {
                let Request { id, class, stream, direction, offset, length, deadline } = request;
                let stream = stream.map_or("-".to_owned(), |stream| stream.0.to_string());
                let due = deadline.map_or(f64::INFINITY, seconds);
                write!(f, "enqueue {} {class:?} stream {stream} {direction:?} {length} at {offset}", id.0)?;
                write!(f, " due {due:.6}")
            }
            Self::Cancelled(id) => write!(f, "cancel {}", id.0),
            Self::Dispatched(dispatch) => {
                let requests: Vec<u64> = dispatch.requests.iter().map(|id| id.0).collect();
                let Dispatch { id, direction, offset, length, reason, .. } = dispatch;
                write!(f, "dispatch #{} {direction:?} {length} at {offset} {reason:?} of {requests:?}", id.0)
            }
            Self::Completed(id) => write!(f, "complete #{}", id.0),
            Self::Asked { stream, answer, oracle } => {
                write!(f, "asked {} oracle {oracle:.3?} {answer:?}", stream.0)
            }
            Self::Noticed(notice) => write!(f, "notice {notice:?}"),
            Self::Late { stream, units } => write!(f, "LATE stream {}: {units} units", stream.0),
        }
    }
}

/// Seconds since the start.
pub(crate) fn seconds(at: Instant) -> f64 {
    at.saturating_since(Instant::ZERO).as_secs_f64()
}

/// Is told everything that happens, and when.
pub type Observer<'a> = dyn FnMut(Instant, &Happening<'_>) + 'a;

/// See the module.
pub(crate) struct Stage<'a> {
    observer: &'a mut Observer<'a>,
    pub(crate) now: Instant,
    pub(crate) policy: &'a mut dyn Policy,
    pub(crate) capacity: Bytes,
    pending: BTreeMap<RequestId, Pending>,
    flights: BTreeMap<DispatchId, Dispatch>,
    alarms: BTreeMap<(Instant, u64), (Client, Alarm)>,
    sequence: u64,
    next_request: u64,
    pub(crate) trace: Trace,
    /// What must not happen and did.
    pub(crate) violations: Vec<String>,
    pub(crate) counts: Counts,
}

/// Requests by what became of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) enqueued: u64,
    pub(crate) cancelled: u64,
    pub(crate) completed: u64,
    pub(crate) commands: u64,
    pub(crate) command_bytes: Bytes,
    pub(crate) most_queued: u64,
    /// Commands by length: the nth counts those from 2^n to 2^(n+1) bytes.
    pub(crate) lengths: [u64; 64],
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            enqueued: 0,
            cancelled: 0,
            completed: 0,
            commands: 0,
            command_bytes: Bytes::ZERO,
            most_queued: 0,
            lengths: [0; 64],
        }
    }
}

impl<'a> Stage<'a> {
    pub(crate) fn new(policy: &'a mut dyn Policy, capacity: Bytes, observer: &'a mut Observer<'a>) -> Self {
        Self {
            observer,
            now: Instant::ZERO,
            policy,
            capacity,
            pending: BTreeMap::new(),
            flights: BTreeMap::new(),
            alarms: BTreeMap::new(),
            sequence: 0,
            next_request: 0,
            trace: Trace::default(),
            violations: Vec::new(),
            counts: Counts::default(),
        }
    }

    pub(crate) fn tell(&mut self, what: &Happening<'_>) {
        (self.observer)(self.now, what);
    }

    pub(crate) fn enqueue(&mut self, client: Client, wish: Wish) -> RequestId {
        self.next_request += 1;
        let id = RequestId(self.next_request);
        let Wish { mark, class, stream, direction, offset, length, deadline, owner } = wish;
        let enqueued = self.now;
        let pending =
            Pending { client, mark, class, direction, offset, length, owner, enqueued, at_device: false };
        self.pending.insert(id, pending);
        self.counts.enqueued += 1;
        self.counts.most_queued = self.counts.most_queued.max(self.pending.len() as u64);
        let due = deadline.map_or(u64::MAX, Instant::as_nanos);
        self.trace.note([1, self.now.as_nanos(), id.0, offset.as_u64(), length.as_u64(), due]);
        let request = Request { id, class, stream, direction, offset, length, deadline };
        self.tell(&Happening::Enqueued(&request));
        self.policy.enqueue(self.now, request);
        id
    }

    /// Takes a request back if it is not at the device.
    pub(crate) fn cancel(&mut self, id: RequestId) -> bool {
        let cancelled = self.policy.cancel(self.now, id);
        self.trace.note([2, self.now.as_nanos(), id.0, u64::from(cancelled), 0, 0]);
        if cancelled {
            self.tell(&Happening::Cancelled(id));
            self.counts.cancelled += 1;
            if self.pending.remove(&id).is_none_or(|pending| pending.at_device) {
                self.violations.push(format!("{id:?} was cancelled although it was not queued"));
            }
        }
        cancelled
    }

    pub(crate) fn alarm(&mut self, at: Instant, client: Client, alarm: Alarm) {
        self.sequence += 1;
        self.alarms.insert((at.max(self.now), self.sequence), (client, alarm));
    }

    pub(crate) fn next_alarm(&self) -> Option<Instant> {
        self.alarms.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn take_alarm(&mut self) -> Option<(Client, Alarm)> {
        let entry = self.alarms.first_entry()?;
        if entry.key().0 > self.now {
            return None;
        }
        Some(entry.remove())
    }

    /// The next command, checked.
    pub(crate) fn dispatch(&mut self) -> Option<(Dispatch, usize)> {
        let dispatch = self.policy.dispatch(self.now)?;
        self.tell(&Happening::Dispatched(&dispatch));
        let number = dispatch.id.0;
        self.counts.commands += 1;
        self.counts.command_bytes += dispatch.length;
        self.counts.lengths[dispatch.length.as_u64().max(1).ilog2() as usize] += 1;
        self.trace.note([
            3,
            self.now.as_nanos(),
            number,
            dispatch.offset.as_u64(),
            dispatch.length.as_u64(),
            0,
        ]);
        let mut owner = usize::MAX;
        let mut end = dispatch.offset;
        for id in &dispatch.requests {
            let Some(pending) = self.pending.get_mut(id).filter(|pending| !pending.at_device) else {
                self.violations.push(format!("{id:?} was dispatched although it was not queued"));
                continue;
            };
            if pending.direction != dispatch.direction || pending.offset != end {
                self.violations.push(format!("{id:?} does not belong into command {number}"));
            }
            pending.at_device = true;
            end = end + pending.length;
            owner = owner.min(pending.owner);
        }
        if end != dispatch.offset + dispatch.length || dispatch.requests.is_empty() {
            self.violations.push(format!("command {number} is not what its requests add up to"));
        }
        if self.flights.insert(dispatch.id, dispatch.clone()).is_some() {
            self.violations.push(format!("command {number} went twice"));
        }
        Some((dispatch, owner.min(UNADMITTED)))
    }

    /// A command is back; its requests.
    pub(crate) fn complete(&mut self, id: DispatchId) -> VecDeque<Pending> {
        self.trace.note([4, self.now.as_nanos(), id.0, 0, 0, 0]);
        self.tell(&Happening::Completed(id));
        self.policy.complete(self.now, id);
        let Some(dispatch) = self.flights.remove(&id) else {
            self.violations.push(format!("command {} came back twice", id.0));
            return VecDeque::new();
        };
        self.counts.completed += dispatch.requests.len() as u64;
        dispatch.requests.iter().filter_map(|id| self.pending.remove(id)).collect()
    }

    /// Requests that are queued.
    pub(crate) fn queued(&self) -> usize {
        let at_device: usize = self.flights.values().map(|dispatch| dispatch.requests.len()).sum();
        self.pending.len() - at_device
    }

    /// Commands at the device.
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Requests that were enqueued and neither completed nor were cancelled.
    pub(crate) fn outstanding(&self) -> u64 {
        self.pending.len() as u64
    }
}
