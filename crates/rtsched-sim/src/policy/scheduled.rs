//! The scheduler of production, as a [`Policy`].

use super::{Ask, Grant, Notice, Policy};
use rtsched::{
    Config, Counters, Dispatch, DispatchId, Event, Request, RequestId, Reservation, Scheduler, StreamId,
    StreamSpec,
};
use std::collections::BTreeMap;
use units::{Bytes, Instant};

/// See the module.
#[derive(Debug)]
pub struct Scheduled {
    scheduler: Scheduler,
    request: Bytes,
    reservations: BTreeMap<StreamId, Reservation>,
    events: Vec<Event>,
}

impl Scheduled {
    /// An idle scheduler.
    pub fn new(config: Config, request: Bytes) -> Self {
        Self { scheduler: Scheduler::new(config), request, reservations: BTreeMap::new(), events: Vec::new() }
    }

    /// What it counted.
    pub fn counters(&self) -> Counters {
        self.scheduler.counters()
    }
}

impl Policy for Scheduled {
    fn enqueue(&mut self, now: Instant, request: Request) {
        self.scheduler.enqueue(now, request);
    }

    fn dispatch(&mut self, now: Instant) -> Option<Dispatch> {
        self.scheduler.dispatch(now)
    }

    fn complete(&mut self, now: Instant, dispatch: DispatchId) {
        self.scheduler.complete(now, dispatch);
    }

    fn cancel(&mut self, now: Instant, id: RequestId) -> bool {
        self.scheduler.cancel(now, id)
    }

    fn next_wakeup(&self, now: Instant) -> Option<Instant> {
        self.scheduler.next_wakeup(now)
    }

    fn admit(&mut self, now: Instant, ask: &Ask) -> Result<Grant, String> {
        let grant =
            Grant { request: self.request, deadline: ask.rate.time_for(self.request) * 2, since: now };
        let spec = StreamSpec {
            direction: ask.direction,
            request: grant.request,
            rate: ask.rate,
            deadline: grant.deadline,
        };
        let reservation = self.scheduler.admit(now, &spec).map_err(|rejected| rejected.to_string())?;
        self.reservations.insert(ask.stream, reservation);
        Ok(grant)
    }

    fn release(&mut self, now: Instant, stream: StreamId) {
        if let Some(reservation) = self.reservations.remove(&stream) {
            self.scheduler.release(now, reservation);
        }
    }

    fn notices(&mut self, _now: Instant) -> Vec<Notice> {
        self.events.clear();
        Vec::new()
    }
}
