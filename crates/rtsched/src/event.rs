//! What happened, to explain why a frame was late.
//!
//! **For:** the last decisions in a ring, and counters of all of them; always on, because the miss one has to explain
//! is the one that was not watched for. **Excludes:** formatting and files. **State:** the ring and the counters.
//! **Invariants:** bounded, never allocates after the start; the oldest event gives way.

use crate::request::{Class, DispatchId, Reason, RequestId, StreamId};
use crate::stream::{Terms, Why};
use alloc::collections::VecDeque;
use units::{Bytes, Duration, Instant};

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A command went to the device.
    Dispatched {
        /// When.
        at: Instant,
        /// Which command.
        dispatch: DispatchId,
        /// The stream it serves, if any.
        stream: Option<StreamId>,
        /// The best class among its requests.
        class: Class,
        /// Why it, and why now.
        reason: Reason,
        /// How many requests it serves.
        requests: u32,
        /// How long it is.
        length: Bytes,
        /// The time it will hold the device, by the service model.
        estimate: Duration,
    },
    /// The device finished a command.
    Completed {
        /// When.
        at: Instant,
        /// Which command.
        dispatch: DispatchId,
        /// How long it held the device.
        service: Duration,
        /// How late the latest of its requests was; zero when all were in time.
        tardiness: Duration,
    },
    /// A real-time request completed after its deadline.
    Missed {
        /// When it completed.
        at: Instant,
        /// Which request.
        request: RequestId,
        /// Its stream, if any.
        stream: Option<StreamId>,
        /// The command it was part of.
        dispatch: DispatchId,
        /// How late it was.
        tardiness: Duration,
        /// The command that was preferred to it while it waited, or else the one that held the device when it
        /// arrived. `None`: only earlier deadlines went first, so there was more real-time work than time.
        blocker: Option<DispatchId>,
    },
    /// A stream was admitted, or changed its rate.
    Admitted {
        /// When.
        at: Instant,
        /// Which stream.
        stream: StreamId,
        /// What it was promised.
        terms: Terms,
    },
    /// A stream was not admitted.
    Rejected {
        /// When.
        at: Instant,
        /// Which stream.
        stream: StreamId,
        /// What was lacking.
        why: Why,
    },
    /// An admitted stream's requests have another length or deadline from now on.
    Resized {
        /// When.
        at: Instant,
        /// Which stream.
        stream: StreamId,
        /// What it is promised now.
        terms: Terms,
    },
    /// A stream gave its reservation back.
    Released {
        /// When.
        at: Instant,
        /// Which stream.
        stream: StreamId,
    },
    /// A stream did not use its reservation for so long that others may have its time.
    Paused {
        /// When.
        at: Instant,
        /// Which stream.
        stream: StreamId,
    },
    /// A paused stream is back and has its time again.
    Resumed {
        /// When.
        at: Instant,
        /// Which stream.
        stream: StreamId,
    },
    /// A stream is served as best effort from now on.
    Demoted {
        /// When.
        at: Instant,
        /// Which stream.
        stream: StreamId,
        /// What was lacking.
        why: Why,
    },
    /// A demoted stream has its guarantees again.
    Restored {
        /// When.
        at: Instant,
        /// Which stream.
        stream: StreamId,
    },
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests accepted.
    pub enqueued: u64,
    /// Requests taken back before they were dispatched.
    pub cancelled: u64,
    /// Requests promoted while they waited.
    pub promoted: u64,
    /// Commands sent to the device, by [`Reason`] in the order of its variants.
    pub dispatched: [u64; 5],
    /// Requests that went in another one's command.
    pub merged: u64,
    /// Requests completed, by [`Class`] in the order of its variants.
    pub completed: [u64; 4],
    /// Bytes completed, by class.
    pub completed_bytes: [Bytes; 4],
    /// Requests completed after their deadline, by class. Only those of real time are misses; the other classes'
    /// deadlines are aims.
    pub late: [u64; 4],
    /// Real-time requests that were served as best effort: beyond their stream's rate, of a stream that is demoted, or
    /// without a reservation and in the way of streams that have one.
    pub excess: u64,
    /// Streams admitted.
    pub admitted: u64,
    /// Streams not admitted.
    pub rejected: u64,
    /// Times a stream was demoted.
    pub demoted: u64,
    /// Times a stream was restored or resumed.
    pub restored: u64,
    /// Events that were dropped from the ring unread.
    pub events_lost: u64,
    /// For how long the device worked...
    pub busy: Duration,
    /// ...and should have, by what was known of it at each command.
    pub reckoned: Duration,
}

impl Counters {
    /// Commands sent to the device for `reason`.
    pub fn dispatched_for(&self, reason: Reason) -> u64 {
        self.dispatched[reason as usize]
    }

    /// Real-time requests that completed after their deadline.
    pub fn missed(&self) -> u64 {
        self.late[Class::RealTime as usize]
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    ring: VecDeque<Event>,
    capacity: usize,
    pub(crate) counters: Counters,
}

impl Journal {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { ring: VecDeque::with_capacity(capacity), capacity, counters: Counters::default() }
    }

    pub(crate) fn record(&mut self, event: Event) {
        if self.ring.len() == self.capacity {
            self.counters.events_lost += 1;
            if self.ring.pop_front().is_none() {
                return;
            }
        }
        self.ring.push_back(event);
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.ring.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64) -> Event {
        Event::Completed {
            at: Instant::from_nanos(number),
            dispatch: DispatchId(number),
            service: Duration::ZERO,
            tardiness: Duration::ZERO,
        }
    }

    #[test]
    fn the_oldest_event_gives_way_and_is_counted() {
        let mut journal = Journal::new(2);
        (0..5).for_each(|number| journal.record(event(number)));
        assert_eq!(journal.counters.events_lost, 3);
        assert_eq!([journal.pop(), journal.pop(), journal.pop()], [Some(event(3)), Some(event(4)), None]);
    }

    #[test]
    fn a_ring_of_no_events_only_counts() {
        let mut journal = Journal::new(0);
        (0..5).for_each(|number| journal.record(event(number)));
        assert_eq!((journal.pop(), journal.counters.events_lost), (None, 5));
    }
}
