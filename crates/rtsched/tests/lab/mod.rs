//! A device that keeps exactly to the service model, in virtual time.

#![allow(dead_code)] // every test file has a copy and needs a part of it

use rtsched::{
    Class, Config, Direction, Dispatch, Event, Request, RequestId, Scheduler, ServiceTime, StreamId,
    StreamStatus,
};
use units::{Bytes, DeviceOffset, Duration, Instant};

/// 16 ms and 170 MB/s: 8 MiB take 65.3 ms.
pub(crate) const DISK: ServiceTime =
    ServiceTime { access: Duration::from_millis(16), bytes_per_second: Bytes(170_000_000) };

/// No floors, no merging, nothing learned: what is left is S(t) = min_i [d_i − t − Σ_{d_j ≤ d_i} C_j].
pub(crate) fn bare() -> Config {
    Config {
        queue_depth: 1,
        metadata_floor_percent: 0,
        best_effort_floor_percent: 0,
        idle_floor_percent: 0,
        max_merge: Bytes::ZERO,
        learning: false,
        ..Config::default()
    }
}

pub(crate) fn request(
    id: u64,
    class: Class,
    offset: u64,
    length: Bytes,
    deadline: Option<Instant>,
) -> Request {
    Request {
        id: RequestId(id),
        class,
        stream: None,
        direction: Direction::Read,
        offset: DeviceOffset(offset),
        length,
        deadline,
    }
}

/// A scheduler and its device.
pub(crate) struct Lab {
    pub(crate) scheduler: Scheduler,
    pub(crate) now: Instant,
    /// What is at the device; it works on the first.
    at_device: Vec<Dispatch>,
    /// When the first will be done.
    done: Instant,
    /// What was dispatched, in order.
    pub(crate) trace: Vec<Dispatch>,
    /// Real-time requests that were late, and by how much.
    pub(crate) missed: Vec<(RequestId, Duration)>,
    /// All events.
    pub(crate) events: Vec<Event>,
    service: ServiceTime,
    /// By how much the device is slower than that.
    pub(crate) slower: f64,
    /// Chooses which command the device takes next, of so many.
    pick: Box<dyn FnMut(usize) -> usize>,
}

impl Lab {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            service: config.read,
            scheduler: Scheduler::new(config),
            now: Instant::ZERO,
            at_device: Vec::new(),
            done: Instant::ZERO,
            trace: Vec::new(),
            missed: Vec::new(),
            events: Vec::new(),
            slower: 1.0,
            pick: Box::new(|_| 0),
        }
    }

    /// A device that serves what it has in any order.
    pub(crate) fn in_any_order(mut self, mut seed: u64) -> Self {
        self.pick = Box::new(move |count| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % count
        });
        self
    }

    pub(crate) fn enqueue(&mut self, request: Request) {
        self.scheduler.enqueue(self.now, request);
    }

    /// Gives the device all it gets.
    pub(crate) fn fill(&mut self) {
        while let Some(dispatch) = self.scheduler.dispatch(self.now) {
            self.trace.push(dispatch.clone());
            self.at_device.push(dispatch);
            if self.at_device.len() == 1 {
                self.begin();
            }
        }
    }

    fn begin(&mut self) {
        if !self.at_device.is_empty() {
            let picked = (self.pick)(self.at_device.len());
            self.at_device.swap(0, picked);
            self.done = self.now + self.service.of(self.at_device[0].length).mul_f64(self.slower);
        }
    }

    /// When the device will complete something; `None`: it is idle.
    pub(crate) fn next_completion(&self) -> Option<Instant> {
        (!self.at_device.is_empty()).then_some(self.done)
    }

    /// Goes to that instant and returns the command.
    pub(crate) fn complete(&mut self) -> Option<Dispatch> {
        self.now = self.next_completion()?;
        let dispatch = self.at_device.remove(0);
        self.scheduler.complete(self.now, dispatch.id);
        while let Some(event) = self.scheduler.pop_event() {
            if let Event::Missed { request, tardiness, .. } = event {
                self.missed.push((request, tardiness));
            }
            self.events.push(event);
        }
        self.begin();
        Some(dispatch)
    }

    /// Serves until nothing waits.
    pub(crate) fn drain(&mut self) {
        loop {
            self.fill();
            if self.complete().is_none() {
                assert_eq!(self.scheduler.queued(), 0, "an idle device and requests that wait");
                return;
            }
        }
    }
}

/// A device that is known for good.
pub(crate) fn known() -> Config {
    Config { learning: false, ..Config::default() }
}

pub(crate) fn of_stream(stream: u64, id: u64, offset: u64, length: Bytes) -> Request {
    Request { stream: Some(StreamId(stream)), ..request(id, Class::RealTime, offset, length, None) }
}

pub(crate) fn status(lab: &Lab, stream: u64) -> StreamStatus {
    lab.scheduler.stream(StreamId(stream)).expect("it holds a reservation")
}
