//! The scheduler of production before any device, in virtual time, without data.
//!
//! **For:** what would have happened: the calls of a recording, or of clients that are made up, go through the same scheduler and the
//! same books of streams as in an [`Engine`](crate::Engine). **Excludes:** the clients, and how long the device takes, which is a
//! [`Timing`]. **State:** scheduler, streams, the commands at the device. **Invariants:** time goes on only in
//! [`advance`](Replay::advance); the same calls and the same device give the same ends.

use crate::engine_core::{DeclaredStream, Incident, Promise, Streams, promote};
use crate::sim::{SimCommand, Timing};
use rtsched::{
    Class, Confidence, Config, Dispatch, DispatchId, Request, RequestId, Scheduler, StreamId, StreamSpec,
};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use units::{Bytes, Duration, Instant};

/// A request that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which.
    pub request: RequestId,
    /// When.
    pub at: Instant,
}

/// See the module.
#[derive(Debug)]
pub struct Replay {
    scheduler: Scheduler,
    streams: Streams,
    device: Box<dyn Timing>,
    now: Instant,
    waiting: HashMap<RequestId, (Class, Option<StreamId>)>,
    at_device: HashMap<DispatchId, Vec<RequestId>>,
    completed: Vec<u64>,
    dispatch: Dispatch,
}

impl Replay {
    /// Idle, at this instant.
    pub fn new(config: Config, device: Box<dyn Timing>, now: Instant) -> Self {
        Self {
            scheduler: Scheduler::new(config),
            streams: Streams::default(),
            device,
            now,
            waiting: HashMap::new(),
            at_device: HashMap::new(),
            completed: Vec::new(),
            dispatch: Dispatch::empty(),
        }
    }

    /// What time it is.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Accepts a request, unless its name is in use.
    pub fn enqueue(&mut self, request: Request) -> bool {
        if self.at_device.values().any(|requests| requests.contains(&request.id)) {
            return false;
        }
        match self.waiting.entry(request.id) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert((request.class, request.stream));
                self.scheduler.enqueue(self.now, request);
                true
            }
        }
    }

    /// See [`Engine::promote`](crate::Engine::promote).
    pub fn promote(&mut self, request: RequestId, class: Class, stream: Option<StreamId>, deadline: Instant) {
        if self.waiting.contains_key(&request) {
            promote(&mut self.scheduler, self.now, request, class, stream, deadline);
        }
    }

    /// See [`Engine::cancel`](crate::Engine::cancel).
    pub fn cancel(&mut self, request: RequestId) {
        if self.scheduler.cancel(self.now, request) {
            self.waiting.remove(&request);
        }
    }

    /// See [`Engine::cancel_stream`](crate::Engine::cancel_stream).
    pub fn cancel_stream(&mut self, stream: StreamId) {
        let waiting = &mut self.waiting;
        self.scheduler.cancel_stream(self.now, stream, |request| _ = waiting.remove(&request));
    }

    /// See [`Engine::declare`](crate::Engine::declare).
    pub fn declare(&mut self, stream: StreamId, wanted: Option<(StreamSpec, Confidence)>) {
        self.streams.declare(&mut self.scheduler, self.now, stream, wanted);
    }

    /// See [`Engine::note_accepted`](crate::Engine::note_accepted).
    pub fn note_accepted(&mut self, requests: u32, bytes: Bytes) {
        self.scheduler.note_accepted(self.now, requests, bytes);
    }

    /// Time goes on to the next thing that happens, or to `until`; appends what ended.
    pub fn advance(&mut self, until: Instant, ended: &mut Vec<Ended>) {
        self.fill_device();
        let next = [self.scheduler.next_wakeup(self.now), self.device.next_event()];
        let next = next.into_iter().flatten().min().map_or(until, |next| next.min(until));
        self.now = next.max(self.now);
        self.device.advance(self.now, &mut self.completed);
        for number in self.completed.drain(..) {
            let dispatch = DispatchId(number);
            self.scheduler.complete(self.now, dispatch);
            let requests = self.at_device.remove(&dispatch).unwrap_or_default();
            ended.extend(requests.into_iter().map(|request| Ended { request, at: self.now }));
        }
        self.fill_device();
    }

    fn fill_device(&mut self) {
        while self.scheduler.dispatch_into(self.now, &mut self.dispatch) {
            let Dispatch { id, direction, offset, length, .. } = self.dispatch;
            let requests: Vec<RequestId> = self.dispatch.requests.iter().copied().collect();
            let told = requests.iter().filter_map(|request| self.waiting.remove(request)).collect::<Vec<_>>();
            let class = told.iter().map(|(class, _)| *class).min().unwrap_or(Class::Idle);
            let stream = told.first().and_then(|(_, stream)| *stream);
            self.at_device.insert(id, requests);
            self.device.submit(self.now, id.0, SimCommand { direction, class, offset, length, stream });
        }
    }

    /// What has become of promises since the last call.
    pub fn take_promises(&mut self) -> Vec<Promise> {
        let mut promises = Vec::new();
        self.streams.promises(&mut self.scheduler, self.now, &mut promises);
        promises
    }

    /// What has happened since the last call.
    pub fn take_incidents(&mut self) -> Vec<Incident> {
        let mut incidents = Vec::new();
        self.streams.incidents.take(&mut self.scheduler, &mut incidents);
        incidents
    }

    /// All declared streams, in the order of their names.
    pub fn streams(&self) -> Vec<DeclaredStream> {
        self.streams.report(&self.scheduler)
    }

    /// For how long the device worked.
    pub fn busy(&self) -> Duration {
        self.scheduler.counters().busy
    }

    /// Requests that have not ended.
    pub fn outstanding(&self) -> usize {
        self.waiting.len() + self.at_device.values().map(Vec::len).sum::<usize>()
    }
}
