//! What a request costs: enqueue, dispatch and complete, together and each call by itself, with so many queued that it
//! stays at that.
//!
//! `cargo bench -p avfs-rtsched`. The loads are real time and best effort by halves, best effort alone, and a device with
//! admitted streams, where dispatch reckons with what they may still ask for.

use criterion::{Bencher, BenchmarkId, Criterion, criterion_group, criterion_main};
use rtsched::{
    Class, Config, Direction, Dispatch, Request, RequestId, Scheduler, ServiceTime, StreamId, StreamSpec,
};
use std::hint::black_box;
use std::time;
use units::{Bitrate, Bytes, DeviceOffset, Duration, Instant};

const FLASH: ServiceTime =
    ServiceTime { access: Duration::from_micros(20), bytes_per_second: Bytes(3_000_000_000) };

/// By name: how many streams are admitted, and how many of sixteen requests are real time.
const LOADS: [(&str, u64, u64); 3] = [("mixed", 0, 8), ("best_effort", 0, 0), ("streams", 100, 8)];
const QUEUED: [u64; 2] = [1_000, 100_000];
/// So many calls are timed together, because a look at the clock takes as long as some of them.
const BATCH: usize = 16;

#[derive(Clone, Copy)]
enum Call {
    Enqueue,
    Dispatch,
    Complete,
}

struct Load {
    scheduler: Scheduler,
    now: Instant,
    next: u64,
    seed: u64,
    dispatch: Dispatch,
    /// Real-time requests: of so many streams in turn, or none.
    streams: u64,
    /// So many of sixteen are real time.
    real_time: u64,
    /// From arrival to deadline.
    window: Duration,
}

impl Load {
    fn new(queued: u64, streams: u64, real_time: u64) -> Self {
        let config = Config { read: FLASH, write: FLASH, flush: FLASH, learning: false, ..Config::default() };
        let mut scheduler = Scheduler::new(config);
        for stream in 0..streams {
            let spec = StreamSpec::reader(Bitrate::from_megabits(8));
            let _ = scheduler.admit(Instant::ZERO, StreamId(stream), &spec).expect("it fits");
        }
        let window = FLASH.of(Bytes::from_kib(64)) * 2 * (queued as u32 + 1);
        let mut load = Self {
            scheduler,
            now: Instant::ZERO,
            next: 0,
            seed: 1,
            dispatch: Dispatch::empty(),
            streams,
            real_time,
            window,
        };
        (0..queued).for_each(|_| load.enqueue());
        load
    }

    fn enqueue(&mut self) {
        self.next += 1;
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = self.seed >> 34;
        let is_real_time = self.next % 16 < self.real_time;
        let request = Request {
            id: RequestId(self.next),
            class: if is_real_time { Class::RealTime } else { Class::BestEffort },
            stream: (is_real_time && self.streams > 0).then(|| StreamId(self.next / 16 % self.streams)),
            direction: Direction::Read,
            offset: DeviceOffset(place << 17),
            length: Bytes::from_kib(64),
            deadline: (self.streams == 0 || !is_real_time)
                .then(|| self.now + self.window + Duration::from_micros(place % 1024)),
        };
        self.scheduler.enqueue(self.now, request);
    }

    fn step(&mut self) {
        if self.scheduler.dispatch_into(self.now, &mut self.dispatch) {
            self.now += FLASH.of(self.dispatch.length);
            self.scheduler.complete(self.now, self.dispatch.id);
            for _ in 0..self.dispatch.requests.len() {
                self.enqueue();
            }
        }
    }

    /// What one of the calls takes for so many requests.
    fn time_of(&mut self, call: Call, requests: u64) -> Duration {
        let mut commands: [Dispatch; BATCH] = std::array::from_fn(|_| Dispatch::empty());
        let (mut took, mut served) = ([Duration::ZERO; 3], 0);
        while served < requests {
            let (mut sent, start) = (0, time::Instant::now());
            while sent < BATCH && self.scheduler.dispatch_into(self.now, &mut commands[sent]) {
                sent += 1;
            }
            took[Call::Dispatch as usize] += start.elapsed();
            let start = time::Instant::now();
            for command in &commands[..sent] {
                self.now += FLASH.of(command.length);
                self.scheduler.complete(self.now, command.id);
            }
            took[Call::Complete as usize] += start.elapsed();
            let asked: usize = commands[..sent].iter().map(|command| command.requests.len()).sum();
            let start = time::Instant::now();
            (0..asked).for_each(|_| self.enqueue());
            took[Call::Enqueue as usize] += start.elapsed();
            served += asked as u64;
        }
        // The last batch may have been longer than was asked for.
        took[call as usize].mul_f64(requests as f64 / served as f64)
    }

    /// Pools have their size and the queue its steady shape.
    fn settled(queued: u64, streams: u64, real_time: u64) -> Self {
        let mut load = Self::new(queued, streams, real_time);
        (0..2 * queued).for_each(|_| load.step());
        load
    }
}

/// Each load, made when it is measured, so that one can be looked at alone.
fn loads(criterion: &mut Criterion, group: &str, measure: impl Fn(&mut Bencher, &mut Load)) {
    let mut group = criterion.benchmark_group(group);
    for (name, streams, real_time) in LOADS {
        for queued in QUEUED {
            let mut load = None;
            group.bench_function(BenchmarkId::new(name, queued), |bencher| {
                let load = load.get_or_insert_with(|| Load::settled(queued, streams, real_time));
                measure(bencher, load);
            });
        }
    }
    group.finish();
}

fn request(criterion: &mut Criterion) {
    loads(criterion, "enqueue_dispatch_complete", |bencher, load| {
        bencher.iter(|| black_box(&mut *load).step());
    });
}

fn calls(criterion: &mut Criterion) {
    for (name, call) in
        [("enqueue", Call::Enqueue), ("dispatch", Call::Dispatch), ("complete", Call::Complete)]
    {
        loads(criterion, name, |bencher, load| {
            bencher.iter_custom(|requests| load.time_of(call, requests));
        });
    }
}

criterion_group!(benches, request, calls);
criterion_main!(benches);
