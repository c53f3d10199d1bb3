//! The engine on real files and devices.

mod common;

use avfs_io::device::{Device, FileDevice, OpenMode};
use avfs_io::engine::{Engine, now};
use avfs_io::pool::{Buffer, Pool};
use avfs_io::{Completion, CompletionSink, IoError, IoOperation, IoRequest, IoTag, Promotion, Segment};
use common::{Loop, no_process_starts};
use parking_lot::{Condvar, Mutex};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::{Class, Config, StreamId};
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use units::{Bytes, DeviceOffset, Instant};

const BLOCK: usize = 4096;
const WRITE: IoOperation = IoOperation::Write { durable: false };
const DURABLE: IoOperation = IoOperation::Write { durable: true };

/// Remembers every end and lets tests wait for it.
#[derive(Default)]
struct Ends {
    results: Mutex<HashMap<u64, Result<(), IoError>>>,
    changed: Condvar,
}

impl CompletionSink for Ends {
    fn completed(&self, now: Instant, completions: &[Completion]) {
        assert!(now > Instant::ZERO && !completions.is_empty());
        let mut results = self.results.lock();
        for completion in completions {
            let earlier = results.insert(completion.tag.0, completion.result);
            assert!(earlier.is_none(), "{:?} has ended twice", completion.tag);
        }
        self.changed.notify_all();
    }
}

impl Ends {
    fn wait(&self, tag: u64) -> Result<(), IoError> {
        let mut results = self.results.lock();
        loop {
            match results.remove(&tag) {
                Some(result) => return result,
                None => self.changed.wait(&mut results),
            }
        }
    }
}

struct Bench {
    engine: Engine,
    pool: Pool,
    ends: Arc<Ends>,
}

impl Bench {
    fn on(path: &Path, queue_depth: u32) -> Self {
        let device = Arc::new(FileDevice::open(path, OpenMode::Exclusive).unwrap());
        let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
        let ends = Arc::new(Ends::default());
        let config = Config { queue_depth, ..Config::default() };
        let engine = Engine::start(device, config, ends.clone()).unwrap();
        Self { engine, pool, ends }
    }

    fn run(&self, request: IoRequest) -> Result<(), IoError> {
        let tag = request.tag.0;
        let _ = self.engine.submit([request]);
        self.ends.wait(tag)
    }
}

fn image(size: u64) -> tempfile::NamedTempFile {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(size).unwrap();
    image
}

fn request(tag: u64, operation: IoOperation, offset: u64, segments: SmallVec<[Segment; 2]>) -> IoRequest {
    IoRequest {
        tag: IoTag(tag),
        operation,
        offset: DeviceOffset(offset),
        segments,
        class: Class::BestEffort,
        stream: None,
        deadline: None,
    }
}

fn whole(buffer: &Buffer) -> SmallVec<[Segment; 2]> {
    smallvec![Segment { buffer: buffer.clone(), start: 0, length: buffer.len() }]
}

fn filled(pool: &Pool, length: usize, fill: u8) -> Buffer {
    let buffer = pool.allocate(length).unwrap();
    buffer.copy_in(0, &vec![fill; buffer.len()]);
    buffer
}

/// One submitter with its own part of the device and a model of it: `rounds` batches of 16 requests that do not
/// overlap, of one to four segments each, in a random mixture of everything the engine offers.
fn exercise(bench: &Bench, base: u64, length: u64, tags: u64, rounds: u64) {
    let mut rng = SmallRng::seed_from_u64(tags);
    let mut model = vec![0u8; length as usize];
    let slot = length / 16;
    let mut tag = tags;
    for _ in 0..rounds {
        let mut batch = Vec::new();
        let mut expected = Vec::new();
        for index in 0..16 {
            tag += 1;
            if rng.random_bool(0.02) {
                batch.push(request(tag, IoOperation::Flush, 0, smallvec![]));
                expected.push((tag, None));
                continue;
            }
            let segments: SmallVec<[Segment; 2]> = (0..rng.random_range(1..=4))
                .map(|_| {
                    let buffer = bench.pool.allocate(rng.random_range(1..=8) * BLOCK).unwrap();
                    let blocks = buffer.len() / BLOCK;
                    let start = rng.random_range(0..blocks);
                    let length = rng.random_range(1..=blocks - start) * BLOCK;
                    Segment { buffer, start: start * BLOCK, length }
                })
                .collect();
            let total: usize = segments.iter().map(|segment| segment.length).sum();
            let room = (slot as usize - total) / BLOCK;
            let offset = index * slot + (rng.random_range(0..=room) * BLOCK) as u64;
            let operation = match rng.random_range(0..5) {
                0 | 1 => IoOperation::Read,
                2 => DURABLE,
                _ => WRITE,
            };
            if operation != IoOperation::Read {
                let mut place = offset as usize;
                for segment in &segments {
                    let bytes: Vec<u8> = (0..segment.length).map(|_| rng.random()).collect();
                    segment.buffer.copy_in(segment.start, &bytes);
                    model[place..place + bytes.len()].copy_from_slice(&bytes);
                    place += bytes.len();
                }
            }
            let mut request = request(tag, operation, base + offset, segments.clone());
            request.class =
                [Class::RealTime, Class::Metadata, Class::BestEffort, Class::Idle][rng.random_range(0..4)];
            request.stream = rng.random_bool(0.5).then(|| StreamId(rng.random_range(0..3)));
            request.deadline = rng.random_bool(0.5).then(|| now() + Duration::from_millis(20));
            expected.push((tag, Some((operation, offset as usize, segments))));
            batch.push(request);
        }
        let _ = bench.engine.submit(batch);
        let class = [Class::RealTime, Class::Metadata][rng.random_range(0..2)];
        bench.engine.promote(Promotion {
            tag: IoTag(tag - rng.random_range(0..16)),
            class,
            stream: rng.random_bool(0.5).then(|| StreamId(rng.random_range(0..3))),
            deadline: now(),
        });
        for (tag, moved) in expected {
            assert_eq!(bench.ends.wait(tag), Ok(()));
            let Some((IoOperation::Read, mut place, segments)) = moved else { continue };
            for segment in segments {
                let bytes = segment.buffer.bytes(segment.start, segment.length);
                assert!(bytes == &model[place..place + segment.length], "request {tag} read something else");
                place += segment.length;
            }
        }
    }
}

/// Three submitters at once; afterwards the device itself must hold what they wrote.
fn several_threads_submit_and_every_byte_arrives(path: &Path) {
    let part = 8 << 20;
    let bench = Bench::on(path, 8);
    std::thread::scope(|scope| {
        for index in 0..3u64 {
            let bench = &bench;
            scope.spawn(move || exercise(bench, index * part, part, (index + 1) << 32, 80));
        }
    });
    let statistics = bench.engine.statistics();
    assert_eq!(statistics.submitted, 3 * 80 * 16);
    assert_eq!((statistics.completed, statistics.failed, statistics.cancelled), (3 * 80 * 16, 0, 0));
    assert_eq!((statistics.queued, statistics.in_flight), (0, 0));
    assert!(statistics.commands <= statistics.submitted && statistics.flushes > 0);
    bench.engine.shutdown();
    assert_eq!(bench.pool.available(), bench.pool.capacity(), "every buffer came back");
}

#[test]
fn on_an_image_file() {
    several_threads_submit_and_every_byte_arrives(image(24 << 20).path());
}

#[test]
fn on_a_block_device() {
    let Some(attached) = Loop::attach(24 << 20, &[]) else { return };
    several_threads_submit_and_every_byte_arrives(&attached.device);
}

#[test]
fn on_memory_of_the_system() {
    let Ok(image) = tempfile::NamedTempFile::new_in("/dev/shm") else {
        eprintln!("skipped: no /dev/shm here");
        return;
    };
    image.as_file().set_len(24 << 20).unwrap();
    several_threads_submit_and_every_byte_arrives(image.path());
}

/// The device is free as soon as the engine has shut down. The ring once kept it open, and locked, until the kernel had
/// taken the ring apart some time later: a mount right after an unmount failed with "in use".
#[test]
fn what_the_engine_wrote_the_device_holds() {
    let _alone = no_process_starts();
    let image = image(1 << 20);
    let bench = Bench::on(image.path(), 8);
    let buffer = filled(&bench.pool, 65536, 0x5A);
    assert_eq!(bench.run(request(1, DURABLE, 65536, whole(&buffer))), Ok(()));
    assert_eq!(bench.run(request(2, IoOperation::Flush, 0, smallvec![])), Ok(()));
    bench.engine.shutdown();
    drop(bench);
    let device = FileDevice::open(image.path(), OpenMode::Exclusive).unwrap();
    let mut bytes = vec![0; 3 * 65536];
    device.read_at(DeviceOffset(0), &mut bytes).unwrap();
    assert!(bytes[65536..131_072].iter().all(|&byte| byte == 0x5A));
    assert!(bytes[..65536].iter().chain(&bytes[131_072..]).all(|&byte| byte == 0));
}

/// More pieces of memory than the kernel takes at once, and memory that is not registered with the ring.
#[test]
fn memory_may_lie_anywhere() {
    let image = image(16 << 20);
    let bench = Bench::on(image.path(), 8);
    let elsewhere = Pool::new(Bytes::from_mib(16), false).unwrap();
    for (round, pool) in [&bench.pool, &elsewhere].into_iter().enumerate() {
        for pieces in [1, 2, 1500] {
            let offset = (round as u64) << 23;
            let mut out: Vec<_> =
                (0..pieces).map(|index| filled(pool, BLOCK, (index % 255) as u8 + 1)).collect();
            out.reverse();
            let segments = |buffers: &[Buffer]| buffers.iter().flat_map(whole).collect();
            assert_eq!(bench.run(request(1, WRITE, offset, segments(&out))), Ok(()));
            let back: Vec<_> = (0..pieces).map(|_| filled(pool, BLOCK, 0xEE)).collect();
            assert_eq!(bench.run(request(2, IoOperation::Read, offset, segments(&back))), Ok(()));
            for (written, read) in out.iter().zip(&back) {
                assert!(written.bytes(0, BLOCK) == read.bytes(0, BLOCK), "{pieces} pieces");
            }
        }
    }
}

#[test]
fn the_largest_buffer_moves_whole() {
    let image = image(16 << 20);
    let bench = Bench::on(image.path(), 8);
    let out = filled(&bench.pool, 8 << 20, 0x77);
    assert_eq!(bench.run(request(1, WRITE, 8 << 20, whole(&out))), Ok(()));
    let back = filled(&bench.pool, 8 << 20, 0);
    assert_eq!(bench.run(request(2, IoOperation::Read, 8 << 20, whole(&back))), Ok(()));
    assert!(back.bytes(0, 8 << 20).iter().all(|&byte| byte == 0x77));
    assert_eq!(bench.engine.statistics().read, Bytes::from_mib(8));
}

#[test]
fn failures_are_reported_and_harm_no_other_request() {
    let image = image(1 << 20);
    let bench = Bench::on(image.path(), 8);
    let buffer = filled(&bench.pool, 65536, 1);
    let past_end = Err(IoError::PastEnd);
    let invalid = Err(IoError::Device(libc::EINVAL));
    assert_eq!(bench.run(request(1, WRITE, (1 << 20) - 4096, whole(&buffer))), past_end);
    assert_eq!(bench.run(request(2, WRITE, u64::MAX - 4095, whole(&buffer))), past_end);
    assert_eq!(bench.run(request(3, WRITE, 100, whole(&buffer))), invalid);
    assert_eq!(bench.run(request(4, WRITE, 0, smallvec![])), invalid);
    assert_eq!(bench.run(request(5, IoOperation::Flush, 0, whole(&buffer))), invalid);
    assert_eq!(std::fs::metadata(image.path()).unwrap().len(), 1 << 20, "nothing grows");
    // The image is cut short below the engine: the ring's own answers are judged too.
    image.as_file().set_len(3 * 4096 + 700).unwrap();
    assert_eq!(bench.run(request(6, IoOperation::Read, 65536, whole(&buffer))), past_end);
    assert_eq!(bench.run(request(7, IoOperation::Read, 0, whole(&buffer))), past_end);
    let small = filled(&bench.pool, BLOCK, 2);
    assert_eq!(bench.run(request(8, IoOperation::Read, 0, whole(&small))), Ok(()));
    assert_eq!(bench.engine.statistics().failed, 7);
}

#[test]
fn a_device_opened_for_reading_refuses_writes() {
    let image = image(1 << 20);
    let device = Arc::new(FileDevice::open(image.path(), OpenMode::ReadOnly).unwrap());
    let pool = Pool::new(Bytes::from_mib(8), false).unwrap();
    let ends = Arc::new(Ends::default());
    let engine = Engine::start(device, Config::default(), ends.clone()).unwrap();
    let buffer = filled(&pool, BLOCK, 1);
    let _ = engine
        .submit([request(1, WRITE, 0, whole(&buffer)), request(2, IoOperation::Read, 0, whole(&buffer))]);
    assert_eq!(ends.wait(1), Err(IoError::Device(libc::EBADF)));
    assert_eq!(ends.wait(2), Ok(()));
}

/// Whether a cancellation comes in time depends on the device; what must hold is that the answer is the truth.
#[test]
fn cancelled_means_not_done() {
    let image = image(32 << 20);
    let bench = Bench::on(image.path(), 1);
    let requests = (0..32u64).map(|index| {
        let buffer = filled(&bench.pool, 1 << 20, index as u8 + 1);
        request(index, WRITE, index << 20, whole(&buffer))
    });
    let requests: Vec<_> = requests.collect();
    let _ = bench.engine.submit(requests);
    for tag in 0..32 {
        bench.engine.cancel(IoTag(tag));
    }
    bench.engine.cancel(IoTag(1000));
    let results: Vec<_> = (0..32).map(|tag| bench.ends.wait(tag)).collect();
    bench.engine.shutdown();
    let cancelled = bench.engine.statistics().cancelled;
    assert_eq!(results.iter().filter(|result| **result == Err(IoError::Cancelled)).count() as u64, cancelled);
    drop(bench);
    let device = FileDevice::open(image.path(), OpenMode::ReadOnly).unwrap();
    let mut bytes = vec![0; 1 << 20];
    for (index, result) in results.into_iter().enumerate() {
        device.read_at(DeviceOffset((index as u64) << 20), &mut bytes).unwrap();
        let expected = if result.is_ok() { index as u8 + 1 } else { 0 };
        assert!(bytes.iter().all(|&byte| byte == expected), "request {index} ended as {result:?}");
    }
}

#[test]
fn shutdown_finishes_what_was_accepted_and_refuses_the_rest() {
    let image = image(32 << 20);
    let bench = Bench::on(image.path(), 2);
    let fill = |index: u64| filled(&bench.pool, 1 << 20, index as u8 + 1);
    let requests: Vec<_> =
        (0..32).map(|index| request(index, WRITE, index << 20, whole(&fill(index)))).collect();
    let _ = bench.engine.submit(requests);
    bench.engine.shutdown();
    for tag in 0..32 {
        let result = bench.ends.results.lock().remove(&tag);
        assert_eq!(result, Some(Ok(())), "request {tag} was delivered before shutdown returned");
    }
    assert_eq!(Arc::strong_count(&bench.ends), 1, "the sink is given up");
    let _ = bench.engine.submit([request(100, WRITE, 0, whole(&fill(0)))]);
    bench.engine.cancel(IoTag(100));
    bench.engine.shutdown();
    assert!(bench.ends.results.lock().is_empty());
    assert_eq!(bench.pool.available(), bench.pool.capacity());
}

/// Submitters race with the shutdown: each request either is done or is told that the engine has stopped.
#[test]
fn nothing_submitted_during_shutdown_is_forgotten() {
    for _ in 0..20 {
        let image = image(1 << 20);
        let bench = Bench::on(image.path(), 4);
        let accepted = std::thread::scope(|scope| {
            let submitter = scope.spawn(|| {
                let buffer = filled(&bench.pool, BLOCK, 1);
                for tag in 0..200 {
                    let _ = bench.engine.submit([request(tag, WRITE, tag * 4096, whole(&buffer))]);
                }
                bench.engine.statistics().submitted
            });
            bench.engine.shutdown();
            submitter.join().unwrap()
        });
        let statistics = bench.engine.statistics();
        assert!(accepted <= statistics.submitted);
        assert_eq!(statistics.completed, statistics.submitted);
        let results = std::mem::take(&mut *bench.ends.results.lock());
        let done = results.values().filter(|result| result.is_ok()).count() as u64;
        assert_eq!(done, statistics.completed);
        assert!(results.values().all(|result| [Ok(()), Err(IoError::Stopped)].contains(result)));
        // Accepted in the order of submission, so what was done has no gaps.
        assert!((0..done).all(|tag| results[&tag] == Ok(())));
    }
}

/// A sink that goes on by itself, as the filesystem does: each end submits the next request.
struct Chain {
    engine: OnceLock<Arc<Engine>>,
    buffer: Buffer,
    last: Mutex<Option<Completion>>,
    changed: Condvar,
}

const CHAIN: u64 = 500;

impl CompletionSink for Chain {
    fn completed(&self, _: Instant, completions: &[Completion]) {
        for completion in completions {
            let next = completion.tag.0 + 1;
            if next < CHAIN {
                let engine = self.engine.get().expect("it is there before the first request");
                let _ =
                    engine.submit([request(next, IoOperation::Read, next % 100 * 4096, whole(&self.buffer))]);
            } else {
                *self.last.lock() = Some(*completion);
                self.changed.notify_all();
            }
        }
    }
}

#[test]
fn the_sink_may_submit() {
    let image = image(1 << 20);
    let device = Arc::new(FileDevice::open(image.path(), OpenMode::Exclusive).unwrap());
    let pool = Pool::new(Bytes::from_mib(8), false).unwrap();
    let chain = Arc::new(Chain {
        engine: OnceLock::new(),
        buffer: filled(&pool, BLOCK, 0),
        last: Mutex::new(None),
        changed: Condvar::new(),
    });
    let engine = Arc::new(Engine::start(device, Config::default(), chain.clone()).unwrap());
    chain.engine.set(Arc::clone(&engine)).unwrap();
    let _ = engine.submit([request(0, IoOperation::Read, 0, whole(&chain.buffer))]);
    let mut last = chain.last.lock();
    while last.is_none() {
        chain.changed.wait(&mut last);
    }
    drop(last);
    assert_eq!(engine.statistics().completed, CHAIN);
    engine.shutdown();
}

#[test]
fn the_clock_goes_forward() {
    let earlier = now();
    assert!(earlier > Instant::ZERO && now() >= earlier);
}
