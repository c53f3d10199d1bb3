//! What a request costs: enqueue, dispatch and complete, with so many queued that it stays at that.
//!
//! `cargo bench -p avfs-rtsched`. Besides it, a device with admitted streams, where dispatch reckons with what they may
//! still ask for.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rtsched::{
    Class, Config, Direction, Dispatch, Request, RequestId, Scheduler, ServiceTime, StreamId, StreamSpec,
};
use std::hint::black_box;
use units::{Bitrate, Bytes, DeviceOffset, Duration, Instant};

const FLASH: ServiceTime =
    ServiceTime { access: Duration::from_micros(20), bytes_per_second: Bytes(3_000_000_000) };

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
}

fn request(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("enqueue_dispatch_complete");
    for (name, streams, real_time) in [("mixed", 0, 8), ("best_effort", 0, 0), ("streams", 100, 8)] {
        for queued in [1_000, 100_000] {
            // Made when it is measured, so that one load can be looked at alone.
            let mut load = None;
            group.bench_function(BenchmarkId::new(name, queued), |bencher| {
                let load = load.get_or_insert_with(|| {
                    let mut load = Load::new(queued, streams, real_time);
                    // Until pools have their size and the queue its steady shape.
                    (0..2 * queued).for_each(|_| load.step());
                    load
                });
                bencher.iter(|| black_box(&mut *load).step());
            });
        }
    }
    group.finish();
}

criterion_group!(benches, request);
criterion_main!(benches);
