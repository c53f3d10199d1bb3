//! The commands that drawn workloads become, as one number: a change of the engine that is not to change what it does leaves it.

use avfs_io::pool::Pool;
use avfs_io::sim::{SimCommand, SimDisk, SimEngine, Timing};
use avfs_io::{Accepted, Device, IoError, IoOperation, IoRequest, IoTag, Promotion, Segment};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::{Class, Confidence, Config, StreamId, StreamSpec};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;
use units::{Bitrate, Bytes, DeviceOffset, Duration, Instant};

const PAGE: u64 = 4096;
const DISK: Bytes = Bytes::from_mib(32);
const CALLS: u32 = 400;

/// FNV-1a (Fowler, Noll and Vo), because it is the same everywhere and for ever.
struct Hash(u64);

impl Hash {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn optional(&mut self, number: Option<u64>) {
        self.number(number.map_or(u64::MAX, |number| number ^ 1));
    }
}

/// One command after the other, with a seek wherever one does not go on where the last ended.
#[derive(Debug, Default)]
struct OneArm {
    arm: u64,
    free_at: Instant,
    /// In the order of their ends.
    taken: Vec<(Instant, u64)>,
}

impl Timing for OneArm {
    fn submit(&mut self, now: Instant, number: u64, command: SimCommand) {
        let seek = if self.arm == command.offset.0 { 0 } else { 3_000_000 };
        self.arm = command.offset.0 + command.length.0;
        let took = Duration::from_nanos(seek + command.length.0 * 2);
        self.free_at = self.free_at.max(now) + took;
        self.taken.push((self.free_at, number));
    }

    fn next_event(&self) -> Option<Instant> {
        self.taken.first().map(|(at, _)| *at)
    }

    fn advance(&mut self, now: Instant, completed: &mut Vec<u64>) {
        let count = self.taken.iter().take_while(|(at, _)| *at <= now).count();
        completed.extend(self.taken.drain(..count).map(|(_, number)| number));
    }
}

/// Clients of one engine, drawn from a seed, and all that can be seen of it.
struct Workload {
    engine: SimEngine,
    pool: Pool,
    random: SmallRng,
    now: Instant,
    next_tag: u64,
    /// Where each stream goes on: what follows it becomes one command with it.
    places: [u64; 6],
    seen: Hash,
}

impl Workload {
    fn new(seed: u64, is_timed: bool, pool: &Pool) -> Self {
        let disk = Arc::new(SimDisk::new(DISK));
        let config = Config { queue_depth: 1 + (seed % 8) as u32, ..Config::default() };
        let mut engine = match is_timed {
            true => SimEngine::timed(disk, config, Box::new(OneArm::default())),
            false => SimEngine::new(disk, config),
        };
        engine.take_commands();
        let (random, now) = (SmallRng::seed_from_u64(seed), Instant::from_nanos(1_000_000_000));
        let (places, seen) = ([0, 1, 2, 3, 4, 5].map(|stream| stream * 1_200), Hash::new());
        Self { engine, pool: pool.clone(), random, now, next_tag: 1, places, seen }
    }

    fn some_tag(&mut self) -> IoTag {
        let oldest = self.next_tag.saturating_sub(60).max(1);
        IoTag(self.random.random_range(oldest..=self.next_tag))
    }

    fn some_class(&mut self) -> Class {
        [Class::RealTime, Class::Metadata, Class::BestEffort, Class::Idle][self.random.random_range(0..4)]
    }

    fn soon(&mut self) -> Instant {
        self.now + Duration::from_millis(self.random.random_range(1..800))
    }

    fn request(&mut self) -> IoRequest {
        let stream = self.random.random_range(0..self.places.len());
        let pages = self.random.random_range(1..=64);
        if self.random.random_range(0..5) == 0 {
            self.places[stream] = self.random.random_range(0..DISK.0 / PAGE - 64);
        }
        let place = self.places[stream];
        self.places[stream] = (place + pages) % (DISK.0 / PAGE - 64);
        // One stream writes, so that what it asks for one after the other can be merged.
        let operation = match (stream, self.random.random_range(0..40)) {
            (_, 0) => IoOperation::Flush,
            (0..3, _) => IoOperation::Read,
            (_, draw) => IoOperation::Write { durable: draw == 1 },
        };
        let segments: SmallVec<[Segment; 2]> = match operation {
            IoOperation::Flush => smallvec![],
            _ => {
                let length = (pages * PAGE) as usize;
                let buffer = self.pool.allocate(length).expect("the pool is large enough for all");
                buffer.copy_in(0, &vec![self.next_tag as u8; length]);
                let middle = pages as usize / 2 * PAGE as usize;
                let ends = [(0, middle), (middle, length)].into_iter().filter(|(start, end)| start < end);
                ends.map(|(start, end)| Segment { buffer: buffer.clone(), start, length: end - start })
                    .collect()
            }
        };
        let class = self.some_class();
        let deadline = (class == Class::RealTime || self.random.random_range(0..4) == 0).then(|| self.soon());
        let stream = (stream % 3 != 2).then_some(StreamId(stream as u64));
        let tag = IoTag(self.next_tag);
        self.next_tag += 1;
        IoRequest { tag, operation, offset: DeviceOffset(place * PAGE), segments, class, stream, deadline }
    }

    fn submit(&mut self) {
        for _ in 0..self.random.random_range(1..6) {
            let mut request = self.request();
            match self.random.random_range(0..200) {
                0 => request.offset = DeviceOffset(DISK.0),
                1 => request.offset = DeviceOffset(17),
                2 => request.tag = self.some_tag(),
                _ => {}
            }
            self.engine.submit(self.now, request);
        }
    }

    fn call(&mut self) {
        let stream = StreamId(self.random.random_range(0..6));
        match self.random.random_range(0..20) {
            0..8 => self.submit(),
            8 => {
                let tag = self.some_tag();
                self.engine.cancel(self.now, tag);
            }
            9 if self.random.random_range(0..4) == 0 => self.engine.cancel_stream(self.now, stream),
            10 | 11 => {
                let (tag, class, deadline) = (self.some_tag(), self.some_class(), self.soon());
                let stream = (class == Class::RealTime).then_some(stream);
                self.engine.promote(self.now, Promotion { tag, class, stream, deadline });
            }
            12 => {
                let rate = Bitrate::from_megabits(self.random.random_range(20..900));
                let evidence =
                    if self.random.random_range(0..2) == 0 { Confidence::Known } else { Confidence::Guessed };
                let wanted =
                    (self.random.random_range(0..3) > 0).then_some((StreamSpec::reader(rate), evidence));
                self.engine.declare(self.now, stream, wanted);
            }
            13 => {
                let mut accepted = Accepted::default();
                accepted.add(Bytes::from_mib(self.random.random_range(1..20)));
                self.engine.note_accepted(self.now, accepted);
            }
            _ => {}
        }
    }

    fn look(&mut self) {
        for promise in self.engine.take_promises(self.now) {
            self.seen.number(promise.stream.0);
            self.seen.optional(promise.terms.map(|_| 0));
        }
        self.seen.optional(self.engine.next_wakeup(self.now).map(Instant::as_nanos));
        self.seen.optional(self.engine.next_event(self.now).map(Instant::as_nanos));
        self.seen.number(self.engine.outstanding() as u64);
    }

    /// One request ends, if one can.
    fn step(&mut self) -> bool {
        let completion = self.engine.step(self.now, &mut self.random);
        for SimCommand { direction, class, offset, length, stream } in self.engine.take_commands() {
            for number in [direction as u64, class as u64, offset.0, length.0] {
                self.seen.number(number);
            }
            self.seen.optional(stream.map(|stream| stream.0));
        }
        let Some(completion) = completion else { return false };
        self.seen.number(completion.tag.0);
        self.seen.number(match completion.result {
            Ok(()) => 0,
            Err(IoError::Device(errno)) => 1000 + errno as u64,
            Err(IoError::PastEnd) => 1,
            Err(IoError::Stopped) => 2,
            Err(IoError::Fenced) => 3,
            Err(IoError::Cancelled) => 4,
        });
        true
    }

    /// What was seen of all of it, and what is on the disk in the end.
    fn run(mut self) -> u64 {
        for _ in 0..CALLS {
            self.call();
            self.look();
            self.now += Duration::from_micros(self.random.random_range(1..4000));
            for _ in 0..self.random.random_range(0..4) {
                self.step();
            }
        }
        while self.engine.outstanding() > 0 {
            if !self.step() {
                let next = self.engine.next_event(self.now).expect("what is outstanding goes on by itself");
                self.now = next.max(self.now + Duration::from_nanos(1));
            }
            self.look();
        }
        let mut bytes = vec![0; 1 << 20];
        for offset in (0..DISK.0).step_by(bytes.len()) {
            self.engine.disk().read_at(DeviceOffset(offset), &mut bytes).unwrap();
            for block in bytes.chunks(PAGE as usize).enumerate().filter(|(_, block)| block[0] != 0) {
                self.seen.number(offset + block.0 as u64);
                self.seen.bytes(&[block.1[0], block.1[PAGE as usize - 1]]);
            }
        }
        self.seen.0
    }
}

fn hash_of(seeds: std::ops::Range<u64>, is_timed: bool) -> u64 {
    let pool = Pool::new(Bytes::from_mib(256), false).unwrap();
    let mut all = Hash::new();
    for seed in seeds {
        all.number(Workload::new(seed, is_timed, &pool).run());
    }
    all.0
}

/// A change of the scheduler's policy changes what is dispatched when, and these numbers with it: then the new ones are written
/// down, with the change. Nothing else may.
#[test]
fn the_same_workloads_become_the_same_commands() {
    let hashes = [hash_of(0..100, false), hash_of(0..100, true)];
    assert_eq!(hashes.map(|hash| format!("{hash:016x}")), ["c2dd559b2d947822", "20c37ad038988f23"]);
}
