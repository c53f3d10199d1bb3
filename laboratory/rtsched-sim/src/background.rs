//! What goes on beside the streams.
//!
//! **For:** copies, random reads, small files. **Excludes:** guarantees. **State:** each its own. **Invariants:** a copier
//! never has more outstanding than it was declared to have.

use crate::stage::{Alarm, BEST_EFFORT, Client, METADATA, Stage, Wish};
use crate::workload::{BackgroundSpec, CopierWork};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::{Class, Direction};
use units::{Bytes, DeviceOffset};

#[derive(Clone, Debug)]
pub(crate) struct Background {
    index: usize,
    spec: BackgroundSpec,
    rng: SmallRng,
    /// Where it reads and where it writes next.
    places: [u64; 2],
    active: bool,
}

/// The log of a filesystem: a region that is written round and round.
const LOG: u64 = 256 << 20;

impl Background {
    pub(crate) fn new(index: usize, spec: &BackgroundSpec, capacity: Bytes, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0xb0b ^ (index as u64) << 40);
        let places = capacity.as_u64() >> 23;
        let places = [(); 2].map(|()| rng.random_range(0..places.max(1)) << 23);
        Self { index, spec: spec.clone(), rng, places, active: false }
    }

    /// Sets its first timers.
    pub(crate) fn prepare(&mut self, stage: &mut Stage<'_>) {
        let client = Client::Background(self.index);
        let start = match &self.spec {
            BackgroundSpec::Copier { start_s, end_s, .. } => {
                if let Some(end) = end_s {
                    stage.alarm_in(*end, client, Alarm::Leave(0));
                }
                *start_s
            }
            BackgroundSpec::RandomReader { .. } | BackgroundSpec::Office { .. } => 0.0,
        };
        stage.alarm_in(start, client, Alarm::Join);
    }

    pub(crate) fn wake(&mut self, stage: &mut Stage<'_>, alarm: Alarm) {
        match alarm {
            Alarm::Join => {
                self.active = true;
                let first = match &self.spec {
                    BackgroundSpec::Copier { outstanding, .. } => *outstanding,
                    BackgroundSpec::RandomReader { outstanding, .. } => *outstanding,
                    BackgroundSpec::Office { .. } => 1,
                };
                (0..first).for_each(|_| self.go(stage));
            }
            Alarm::Leave(_) => self.active = false,
            _ => self.go(stage),
        }
    }

    /// One operation.
    fn go(&mut self, stage: &mut Stage<'_>) {
        match self.spec.clone() {
            BackgroundSpec::Copier { request_kib, work, .. } => {
                let direction = if work == CopierWork::Write { Direction::Write } else { Direction::Read };
                self.next_piece(stage, direction, Bytes::from_kib(request_kib));
            }
            BackgroundSpec::RandomReader { request_kib, .. } => {
                let length = Bytes::from_kib(request_kib);
                let offset = self.random_place(stage, length);
                self.enqueue(stage, Class::BestEffort, Direction::Read, offset, length);
            }
            BackgroundSpec::Office { operations_per_s } => {
                self.office(stage);
                let pause = self.exponential(1.0 / operations_per_s);
                stage.alarm_in(pause, Client::Background(self.index), Alarm::Ask(0));
            }
        }
    }

    fn office(&mut self, stage: &mut Stage<'_>) {
        let length = Bytes::from_kib(4 << self.rng.random_range(0..5_u32));
        let offset = self.random_place(stage, length);
        match self.rng.random_range(0..10) {
            0..6 => self.enqueue(stage, Class::BestEffort, Direction::Read, offset, length),
            6..8 => self.enqueue(stage, Class::BestEffort, Direction::Write, offset, length),
            _ => {
                let log = Bytes::from_kib(4);
                let offset = DeviceOffset(self.places[1] % LOG);
                self.places[1] += log.as_u64();
                self.enqueue(stage, Class::Metadata, Direction::Write, offset, log);
                self.enqueue(stage, Class::Metadata, Direction::Flush, DeviceOffset(0), Bytes::ZERO);
            }
        }
    }

    fn random_place(&mut self, stage: &Stage<'_>, length: Bytes) -> DeviceOffset {
        let places = stage.capacity.as_u64() / length.as_u64();
        DeviceOffset(self.rng.random_range(0..places.max(1)) * length.as_u64())
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.rng.random::<f64>()).ln()
    }

    fn next_piece(&mut self, stage: &mut Stage<'_>, direction: Direction, length: Bytes) {
        let place = &mut self.places[usize::from(direction == Direction::Write)];
        if *place + length.as_u64() > stage.capacity.as_u64() {
            *place = 0;
        }
        let offset = DeviceOffset(*place);
        *place += length.as_u64();
        self.enqueue(stage, Class::BestEffort, direction, offset, length);
    }

    fn enqueue(
        &mut self,
        stage: &mut Stage<'_>,
        class: Class,
        direction: Direction,
        offset: DeviceOffset,
        length: Bytes,
    ) {
        let owner = if class == Class::Metadata { METADATA } else { BEST_EFFORT };
        let wish = Wish { mark: 0, class, stream: None, direction, offset, length, deadline: None, owner };
        stage.enqueue(Client::Background(self.index), wish);
    }

    /// One of its requests completed.
    pub(crate) fn completed(&mut self, stage: &mut Stage<'_>, direction: Direction, length: Bytes) {
        if !self.active {
            return;
        }
        match self.spec {
            BackgroundSpec::Copier { work: CopierWork::Copy, .. } if direction == Direction::Read => {
                self.next_piece(stage, Direction::Write, length);
            }
            BackgroundSpec::Copier { .. } => self.go(stage),
            BackgroundSpec::RandomReader { think_ms, .. } => {
                let pause = self.exponential(think_ms / 1e3);
                stage.alarm_in(pause, Client::Background(self.index), Alarm::Ask(0));
            }
            BackgroundSpec::Office { .. } => {}
        }
    }
}
