//! The engine thread's parts, driven by the test instead of by the thread.

use super::*;
use crate::device::OpenMode;
use crate::pool::Pool;
use crate::request::{IoOperation, Segment};
use rtsched::Class;
use smallvec::{SmallVec, smallvec};
use units::{Bytes, DeviceOffset};

fn ended(tag: IoTag, error: IoError) -> Completion {
    Completion { tag, result: Err(error) }
}

struct Fixture {
    image: tempfile::NamedTempFile,
    pool: Pool,
    worker: Worker,
    heard: Arc<Heard>,
}

#[derive(Default)]
struct Heard(Mutex<Vec<Completion>>);

impl CompletionSink for Heard {
    fn completed(&self, _: Instant, completions: &[Completion]) {
        self.0.lock().extend_from_slice(completions);
    }
}

impl Fixture {
    fn new(queue_depth: u32) -> Self {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let device = Arc::new(FileDevice::open(image.path(), OpenMode::Exclusive).unwrap());
        let facts = facts(&device);
        let pool = Pool::new(Bytes::from_mib(8), false).unwrap();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let gate = Arc::new(Gate::open());
        let ring = Ring::new(device, Arc::clone(&wake), Arc::clone(&gate), queue_depth).unwrap();
        let heard = Arc::new(Heard::default());
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            wake,
            delivery: Delivery::start(heard.clone()).unwrap(),
            statistics: Mutex::default(),
        });
        let config = Config { queue_depth, ..Config::default() };
        let core = EngineCore::new(config, facts);
        Self { image, pool, worker: Worker::new(ring, gate, shared, core), heard }
    }

    fn request(&self, tag: u64, class: Class, operation: IoOperation) -> IoRequest {
        let buffer = self.pool.allocate(4096).unwrap();
        buffer.copy_in(0, &[tag as u8; 4096]);
        IoRequest {
            tag: IoTag(tag),
            operation,
            offset: DeviceOffset(tag * 4096),
            segments: smallvec![Segment { buffer, start: 0, length: 4096 }],
            class,
            stream: None,
            deadline: None,
        }
    }

    fn write(&mut self, tag: u64, class: Class) {
        let request = self.request(tag, class, IoOperation::Write { durable: false });
        self.worker.take(now(), Message::Submit(request));
    }

    /// Lets the device end something, and returns the tags in the order of their ends.
    fn work(&mut self) -> Vec<(u64, Result<(), IoError>)> {
        self.worker.pass_gate(now());
        while self.worker.core.ended_count() == 0 {
            self.worker.ring.wait(None).unwrap();
            self.worker.ring.reap(&mut self.worker.finished);
            self.worker.complete_finished();
        }
        let ended = self.worker.core.ended().drain(..);
        ended.map(|completion| (completion.tag.0, completion.result)).collect()
    }
}

#[test]
fn what_is_cancelled_in_time_never_reaches_the_device() {
    let mut fixture = Fixture::new(1);
    fixture.write(1, Class::Metadata);
    fixture.worker.take(now(), Message::Cancel(IoTag(1)));
    fixture.worker.take(now(), Message::Cancel(IoTag(99)));
    assert_eq!(fixture.work(), [(1, Err(IoError::Cancelled))]);
    fixture.write(1, Class::Metadata);
    fixture.worker.pass_gate(now());
    fixture.worker.take(now(), Message::Cancel(IoTag(1)));
    assert_eq!(fixture.work(), [(1, Ok(()))], "it was at the device already");
    let statistics = fixture.worker.core.statistics();
    assert_eq!((statistics.submitted, statistics.completed), (2, 2));
    assert_eq!((statistics.cancelled, statistics.commands, statistics.written), (1, 1, Bytes(4096)));
    assert_eq!(fixture.worker.core.outstanding(), 0);
}

#[test]
fn what_is_promoted_overtakes() {
    let mut fixture = Fixture::new(1);
    // Not neighbours: those would be merged into one command.
    fixture.write(1, Class::Idle);
    fixture.write(3, Class::Idle);
    fixture.worker.take(
        now(),
        Message::Promote(Promotion {
            tag: IoTag(3),
            class: Class::RealTime,
            stream: None,
            deadline: Instant::ZERO,
        }),
    );
    assert_eq!(fixture.work(), [(3, Ok(()))]);
    assert_eq!(fixture.work(), [(1, Ok(()))]);
}

#[test]
fn a_tag_in_use_is_refused_and_a_free_one_is_not() {
    let mut fixture = Fixture::new(1);
    fixture.write(1, Class::Metadata);
    fixture.worker.pass_gate(now());
    fixture.write(1, Class::Metadata);
    let refused = std::mem::take(fixture.worker.core.ended());
    assert_eq!(refused, [ended(IoTag(1), IoError::Device(libc::EEXIST))]);
    assert_eq!(fixture.work(), [(1, Ok(()))]);
    fixture.write(1, Class::Metadata);
    assert_eq!(fixture.work(), [(1, Ok(()))]);
}

/// Requests that became one command end together when it works, and each in its own way when it does not.
#[test]
fn merged_requests_are_moved_as_one_and_judged_as_several() {
    let mut fixture = Fixture::new(4);
    for (cut, expected) in
        [(1 << 20, [Ok(()); 3]), (2 * 4096, [Ok(()), Err(IoError::PastEnd), Err(IoError::PastEnd)])]
    {
        fixture.image.as_file().set_len(cut).unwrap();
        let requests: SmallVec<[IoRequest; 2]> =
            (1..=3).map(|tag| fixture.request(tag, Class::Metadata, IoOperation::Read)).collect();
        let memory: Vec<_> = requests.iter().map(|request| request.segments[0].buffer.clone()).collect();
        let commands = fixture.worker.core.statistics().commands;
        for request in requests {
            fixture.worker.take(now(), Message::Submit(request));
        }
        let results = fixture.work();
        assert_eq!(fixture.worker.core.statistics().commands, commands + 1);
        assert_eq!(results.into_iter().map(|(_, result)| result).collect::<Vec<_>>(), expected);
        assert_eq!(memory[0].bytes(0, 4096), [0; 4096]);
    }
}

/// A bug or a failing ring ends the thread, not the promise that everything completes.
#[test]
fn whatever_ends_the_thread_ends_every_request() {
    let mut fixture = Fixture::new(1);
    let shared = Arc::clone(&fixture.worker.shared);
    fixture.write(1, Class::Metadata);
    fixture.worker.pass_gate(now());
    fixture.write(2, Class::Metadata);
    let unread = fixture.request(3, Class::Metadata, IoOperation::Read);
    assert!(shared.post(std::iter::once(Message::Submit(unread))));
    fixture.worker.ring.arm_wake();
    let Fixture { worker, heard, .. } = fixture;
    drop(worker);
    assert!(!shared.post(std::iter::empty()));
    shared.delivery.close();
    let mut heard = std::mem::take(&mut *heard.0.lock());
    heard.sort_by_key(|completion| completion.tag);
    assert_eq!(heard, [1, 2, 3].map(|tag| ended(IoTag(tag), IoError::Stopped)));
}

#[test]
fn refusals_of_the_kernel_have_a_cause() {
    let cause = |errno| StartError::from_io(io::Error::from_raw_os_error(errno));
    assert!(matches!(cause(libc::EPERM), StartError::Unavailable(libc::EPERM)));
    assert!(cause(libc::ENOSYS).to_string().contains("io_uring_disabled"));
    assert!(matches!(cause(libc::ENOMEM), StartError::OutOfMemory));
    assert!(matches!(cause(libc::EMFILE), StartError::Other(_)));
}

/// A host that halted between a renewal of its lease and the next command gave that command to a device which was another's by then.
#[test]
fn nothing_passes_a_closed_gate_and_nothing_is_lost_before_one() {
    let mut fixture = Fixture::new(4);
    fixture.worker.gate.permit(Instant::FAR_FUTURE);
    fixture.write(1, Class::Metadata);
    fixture.write(3, Class::Metadata);
    // They are dispatched, and the time runs out before the kernel has them.
    fixture.worker.pass_gate(now());
    fixture.worker.gate.permit(now());
    fixture.worker.ring.wait(Some(std::time::Duration::from_millis(50))).unwrap();
    fixture.worker.ring.reap(&mut fixture.worker.finished);
    assert!(fixture.worker.finished.is_empty() && !fixture.worker.ring.is_busy());
    fixture.write(5, Class::Metadata);
    assert_eq!(fixture.worker.pass_gate(now()), None);
    assert_eq!(fixture.worker.core.statistics().in_flight, 2, "it was dispatched before a closed gate");
    assert!(std::fs::read(fixture.image.path()).unwrap().iter().all(|&byte| byte == 0));
    // It opens again: everything goes on.
    fixture.worker.gate.permit(Instant::FAR_FUTURE);
    let mut ended = Vec::new();
    while ended.len() < 3 {
        ended.extend(fixture.work());
    }
    ended.sort_by_key(|(tag, _)| *tag);
    assert_eq!(ended, [(1, Ok(())), (3, Ok(())), (5, Ok(()))]);
}

#[test]
fn what_waits_before_a_gate_that_is_revoked_ends() {
    let mut fixture = Fixture::new(1);
    fixture.write(1, Class::Metadata);
    fixture.write(3, Class::Metadata);
    fixture.worker.pass_gate(now());
    fixture.worker.gate.revoke();
    fixture.write(5, Class::Metadata);
    fixture.worker.pass_gate(now());
    let mut completions = Vec::from(std::mem::take(fixture.worker.core.ended()));
    completions.sort_by_key(|completion| completion.tag);
    assert_eq!(completions, [1, 3, 5].map(|tag| ended(IoTag(tag), IoError::Fenced)));
    assert_eq!(fixture.worker.core.outstanding(), 0);
    assert_eq!(fixture.worker.core.statistics().in_flight, 0);
}
