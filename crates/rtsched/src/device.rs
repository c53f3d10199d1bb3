//! What is at the device.
//!
//! **For:** when the device will be through, how long each command held it, and whether one more may join.
//! **Excludes:** the queue. **State:** the commands in flight. **Invariants:** the device is reckoned with as
//! serving one command after another; where it serves several at once, the time between completions is what a
//! command costs, and that is what the service model learns.

use crate::request::{Class, Direction, DispatchId, RequestId};
use alloc::collections::{BTreeMap, BTreeSet};
use smallvec::SmallVec;
use units::{Bytes, Duration, Instant};

/// One request of a command in flight.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) id: RequestId,
    pub(crate) class: Class,
    pub(crate) deadline: Instant,
    pub(crate) length: Bytes,
    pub(crate) blocker: Option<DispatchId>,
}

/// One command in flight.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) members: SmallVec<[Member; 4]>,
    pub(crate) direction: Direction,
    pub(crate) length: Bytes,
    /// Nanoseconds, by the service model.
    pub(crate) cost: u64,
    pub(crate) dispatched: Instant,
}

impl Flight {
    /// The earliest deadline it promised to keep.
    fn guaranteed(&self) -> Option<Instant> {
        let promised = self.members.iter().filter(|member| member.class == Class::RealTime);
        promised.map(|member| member.deadline).min()
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Device {
    flights: BTreeMap<DispatchId, Flight>,
    guaranteed: BTreeSet<(Instant, DispatchId)>,
    /// The last completion, or the dispatch that ended idleness.
    busy_since: Instant,
    /// Nanoseconds of all commands in flight together.
    outstanding: u64,
}

impl Device {
    pub(crate) fn in_flight(&self) -> u32 {
        self.flights.len() as u32
    }

    pub(crate) fn newest(&self) -> Option<DispatchId> {
        self.flights.last_key_value().map(|(id, _)| *id)
    }

    /// When all that is in flight will have completed, at the earliest `now`.
    pub(crate) fn free_at(&self, now: Instant) -> Instant {
        if self.flights.is_empty() { now } else { now.max(self.planned()) }
    }

    /// Since when it works without a completion; `now` when it does not work.
    pub(crate) fn busy_since(&self, now: Instant) -> Instant {
        if self.flights.is_empty() { now } else { self.busy_since }
    }

    fn planned(&self) -> Instant {
        self.busy_since + Duration::from_nanos(self.outstanding)
    }

    /// May a command that takes `cost` join? A command at the device cannot be called back, so a request that
    /// comes next waits for all of them: together they stay within `blocking` nanoseconds. And since a device
    /// serves what it has in the order it likes, a deadline in flight must bear the newcomer before it, unless
    /// it is lost anyway.
    pub(crate) fn has_room(&self, cost: u64, blocking: u64) -> bool {
        if self.flights.is_empty() {
            return true;
        }
        let end = self.planned() + Duration::from_nanos(cost);
        let tightest = self.guaranteed.range((self.planned(), DispatchId(0))..).next();
        self.outstanding.saturating_add(cost) <= blocking && tightest.is_none_or(|(due, _)| end <= *due)
    }

    pub(crate) fn start(&mut self, now: Instant, id: DispatchId, flight: Flight) {
        if self.flights.is_empty() {
            (self.busy_since, self.outstanding) = (now, 0);
        }
        self.outstanding += flight.cost;
        if let Some(due) = flight.guaranteed() {
            self.guaranteed.insert((due, id));
        }
        self.flights.insert(id, flight);
    }

    /// Takes a command out; with it, the time for which it held the device: since it was dispatched or since the
    /// completion before, whichever is later.
    pub(crate) fn finish(&mut self, now: Instant, id: DispatchId) -> Option<(Flight, Duration)> {
        let flight = self.flights.remove(&id)?;
        if let Some(due) = flight.guaranteed() {
            self.guaranteed.remove(&(due, id));
        }
        let service = now.saturating_since(flight.dispatched.max(self.busy_since));
        self.outstanding -= flight.cost;
        self.busy_since = now.max(self.busy_since);
        Some((flight, service))
    }
}
