//! The books, driven by nothing but calls.

use super::*;
use crate::pool::Pool;
use crate::request::Segment;
use rtsched::Class;
use smallvec::smallvec;
use units::DeviceOffset;

const PAGE: usize = 4096;
const EIO: IoError = IoError::Device(libc::EIO);
const NOW: Instant = Instant::from_nanos(1_000_000_000);

struct Bench {
    core: EngineCore,
    pool: Pool,
}

impl Bench {
    fn new() -> Self {
        let (size, logical_block, durability) = (Bytes::from_mib(8), Bytes(512), Durability::OfItself);
        let core = EngineCore::new(Config::default(), DeviceFacts { size, logical_block, durability });
        let mut bench = Self { core, pool: Pool::new(Bytes::from_mib(8), false).unwrap() };
        bench.core.permit(Instant::FAR_FUTURE);
        bench
    }

    /// A write of one page at the page of this number.
    fn submit(&mut self, tag: u64, stream: Option<StreamId>) -> bool {
        let buffer = self.pool.allocate(PAGE).unwrap();
        let request = IoRequest {
            tag: IoTag(tag),
            operation: IoOperation::Write { durable: false },
            offset: DeviceOffset(tag * PAGE as u64),
            segments: smallvec![Segment { buffer, start: 0, length: PAGE }],
            class: Class::Metadata,
            stream,
            deadline: None,
        };
        self.core.submit(NOW, request)
    }

    fn next(&mut self) -> Command {
        self.core.next_command(NOW).expect("something waits")
    }

    fn ended(&mut self) -> Vec<(u64, Result<(), IoError>)> {
        self.core.ended().drain(..).map(|completion| (completion.tag.0, completion.result)).collect()
    }
}

#[test]
fn neighbours_leave_in_one_command_and_end_each_in_its_own_way() {
    let mut bench = Bench::new();
    assert!((1..=3).all(|tag| bench.submit(tag, None)));
    let mut command = bench.next();
    assert!(bench.core.next_command(NOW).is_none());
    for answer in [Err(EIO), Ok(PAGE), Err(EIO), Ok(PAGE)] {
        assert!(!command.is_finished());
        command.answered(answer);
    }
    assert_eq!((bench.core.outstanding(), bench.core.ended_count()), (3, 0));
    bench.core.complete(NOW, command);
    assert_eq!(bench.ended(), [(1, Ok(())), (2, Err(EIO)), (3, Ok(()))]);
    let statistics = bench.core.statistics();
    assert_eq!((statistics.submitted, statistics.completed, statistics.failed), (3, 3, 1));
    assert_eq!((statistics.commands, statistics.written), (1, Bytes(2 * PAGE as u64)));
    assert_eq!((bench.core.outstanding(), bench.pool.available()), (0, bench.pool.capacity()));
}

#[test]
fn what_is_taken_back_ends_and_what_is_in_a_command_goes_on() {
    let mut bench = Bench::new();
    bench.submit(1, None);
    let mut command = bench.next();
    let stream = StreamId(7);
    bench.submit(11, Some(stream));
    bench.submit(21, None);
    bench.submit(31, Some(stream));
    for tag in [1, 21, 99] {
        bench.core.cancel(NOW, IoTag(tag));
    }
    bench.core.cancel_stream(NOW, stream);
    let cancelled = Err(IoError::Cancelled);
    let mut ended = bench.ended();
    ended.sort_by_key(|(tag, _)| *tag);
    assert_eq!(ended, [(11, cancelled), (21, cancelled), (31, cancelled)]);
    assert!(!bench.submit(1, None), "its tag is in use");
    assert_eq!(bench.ended(), [(1, Err(IoError::Device(libc::EEXIST)))]);
    command.answered(Ok(PAGE));
    bench.core.complete(NOW, command);
    assert_eq!(bench.ended(), [(1, Ok(()))]);
    assert!(bench.submit(1, None), "its tag is free");
}

/// A host whose lease had run out gave commands to a device that was another's by then.
#[test]
fn no_command_leaves_after_the_device_may_no_longer_be_used() {
    let mut bench = Bench::new();
    bench.submit(1, None);
    bench.core.permit(NOW);
    assert!(bench.core.next_command(NOW).is_none());
    bench.core.permit(Instant::from_nanos(NOW.as_nanos() + 1));
    let mut command = bench.next();
    for tag in [41, 31, 21] {
        bench.submit(tag, None);
    }
    bench.core.fence(NOW);
    let fenced = Err(IoError::Fenced);
    assert_eq!(bench.ended(), [(21, fenced), (31, fenced), (41, fenced)], "in the order of their tags");
    assert!(!bench.submit(51, None) && bench.core.next_command(NOW).is_none());
    assert_eq!(bench.ended(), [(51, fenced)]);
    command.answered(Ok(PAGE));
    bench.core.complete(NOW, command);
    assert_eq!((bench.ended(), bench.core.outstanding()), (vec![(1, Ok(()))], 0));
}

#[test]
fn nothing_is_left_after_a_stop() {
    let mut bench = Bench::new();
    bench.submit(5, None);
    let _taken_along = bench.next();
    bench.submit(3, None);
    bench.core.stop();
    assert!(!bench.submit(9, None));
    let stopped = Err(IoError::Stopped);
    assert_eq!(bench.ended(), [(3, stopped), (5, stopped), (9, stopped)]);
    assert_eq!(bench.core.outstanding(), 0);
    assert!(bench.core.next_command(NOW).is_none());
}
