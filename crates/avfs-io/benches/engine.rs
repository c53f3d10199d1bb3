//! What a request costs on its way through the engine: processor time of all threads, from submission to delivery, for small reads
//! of an image file. Processor time and not duration, so that the figure means something beside other work.
//!
//! `AVFS_ENGINE_REQUESTS` sets how many requests a row has (100,000), `AVFS_ENGINE_DIR` where the image is made.

use avfs_io::device::{FileDevice, OpenMode};
use avfs_io::engine::Engine;
use avfs_io::pool::Pool;
use avfs_io::{Completion, CompletionSink, IoOperation, IoRequest, IoTag, Segment};
use parking_lot::{Condvar, Mutex};
use rtsched::{Class, Config};
use smallvec::smallvec;
use std::sync::Arc;
use units::{Bytes, DeviceOffset, Instant};

const BLOCK: usize = 4096;
const IMAGE: Bytes = Bytes::from_mib(64);

/// Counts ends.
#[derive(Default)]
struct Ends {
    count: Mutex<u64>,
    changed: Condvar,
}

impl CompletionSink for Ends {
    fn completed(&self, _: Instant, completions: &[Completion]) {
        assert!(completions.iter().all(|completion| completion.result.is_ok()));
        *self.count.lock() += completions.len() as u64;
        self.changed.notify_one();
    }
}

fn processor_time_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn main() {
    let requests: u64 =
        std::env::var("AVFS_ENGINE_REQUESTS").map_or(100_000, |text| text.parse().expect("a number"));
    let directory = std::env::var("AVFS_ENGINE_DIR").unwrap_or_else(|_| "/dev/shm".into());
    let image = tempfile::NamedTempFile::new_in(directory).expect("an image");
    image.as_file().set_len(IMAGE.as_u64()).expect("room");
    let pool = Pool::new(Bytes::from_mib(16), false).expect("memory");
    let buffer = pool.allocate(BLOCK).expect("a buffer");
    println!("{:>12} {:>10} {:>22} {:>10}", "submitted by", "stride", "processor ns a request", "a command");
    for (batch, stride) in [(1, 2), (16, 2), (256, 2), (256, 1)] {
        let device = Arc::new(FileDevice::open(image.path(), OpenMode::Exclusive).expect("the image"));
        let ends = Arc::new(Ends::default());
        let engine = Engine::start(device, Config::default(), ends.clone()).expect("the engine");
        let before = processor_time_ns();
        let mut tag = 0;
        while tag < requests {
            let _ = engine.submit((tag..tag + batch).map(|tag| IoRequest {
                tag: IoTag(tag),
                operation: IoOperation::Read,
                // Neighbours become one command; every other block is none's neighbour.
                offset: DeviceOffset(tag * stride * BLOCK as u64 % IMAGE.as_u64()),
                segments: smallvec![Segment { buffer: buffer.clone(), start: 0, length: BLOCK }],
                class: Class::BestEffort,
                stream: None,
                deadline: None,
            }));
            tag += batch;
            let mut count = ends.count.lock();
            while *count < tag {
                ends.changed.wait(&mut count);
            }
        }
        let took = processor_time_ns() - before;
        let commands = engine.statistics().commands;
        engine.shutdown();
        println!("{batch:>12} {stride:>10} {:>22} {:>10.1}", took / tag, tag as f64 / commands as f64);
    }
}
