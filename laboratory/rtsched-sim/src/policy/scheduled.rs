//! The scheduler of production, as a [`Policy`].

use super::{Ask, Grant, Notice, Policy};
use rtsched::{
    Config, Counters, Dispatch, DispatchId, Event, Request, RequestId, Reservation, Scheduler, StreamId,
    Terms,
};
use std::collections::BTreeMap;
use units::{Bytes, Instant};

/// See the module.
#[derive(Debug)]
pub struct Scheduled {
    scheduler: Scheduler,
    request_max: Bytes,
    reservations: BTreeMap<StreamId, Reservation>,
}

impl Scheduled {
    /// An idle scheduler.
    pub fn new(config: Config) -> Self {
        let request_max = config.request_max;
        Self { scheduler: Scheduler::new(config), request_max, reservations: BTreeMap::new() }
    }

    /// What it counted.
    pub fn counters(&self) -> Counters {
        self.scheduler.counters()
    }
}

impl From<Terms> for Grant {
    fn from(terms: Terms) -> Self {
        Self { request: terms.request, deadline: terms.deadline, since: terms.since }
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
        let admitted = self.scheduler.admit(now, ask.stream, &ask.spec(self.request_max));
        let reservation = admitted.map_err(|rejected| rejected.to_string())?;
        let grant = reservation.terms().into();
        self.reservations.insert(ask.stream, reservation);
        Ok(grant)
    }

    fn release(&mut self, now: Instant, stream: StreamId) {
        if let Some(reservation) = self.reservations.remove(&stream) {
            self.scheduler.release(now, reservation);
        }
    }

    fn notices(&mut self, _now: Instant) -> Vec<Notice> {
        let mut notices = Vec::new();
        while let Some(event) = self.scheduler.pop_event() {
            match event {
                Event::Resized { stream, terms, .. } => notices.push(Notice::Granted(stream, terms.into())),
                Event::Demoted { stream, why, .. } => notices.push(Notice::Demoted(stream, why.to_string())),
                Event::Restored { stream, .. } => {
                    let terms = self.scheduler.terms(stream);
                    notices.extend(terms.map(|terms| Notice::Restored(stream, terms.into())));
                }
                Event::Resumed { stream, .. } => {
                    let terms = self.scheduler.terms(stream);
                    notices.extend(terms.map(|terms| Notice::Resumed(stream, terms.into())));
                }
                _ => {}
            }
        }
        notices
    }
}
