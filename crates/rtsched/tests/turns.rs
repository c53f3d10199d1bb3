//! Reads and writes on a device whose cache takes writes before they are written.

mod lab;

use lab::{DISK, request};
use rtsched::{
    Calibrated, Class, Config, Direction, Request, RequestId, Reservation, Scheduler, StreamId, StreamSpec,
};
use units::{Bitrate, Bytes, Duration, Instant};

const UNIT: Bytes = Bytes::from_mib(8);
const DEADLINE: Duration = Duration::from_millis(200);
/// In so many milliseconds the cache takes a write.
const TAKEN_MS: u64 = 20;

fn scheduler(calibrated: Calibrated) -> Scheduler {
    let config = Config { calibrated, learning: false, read: DISK, write: DISK, ..Config::default() };
    Scheduler::new(config)
}

fn player(scheduler: &mut Scheduler) -> Reservation {
    let rate = Bitrate::from_megabits(100);
    let spec = StreamSpec { request: Some(UNIT), deadline: Some(DEADLINE), ..StreamSpec::reader(rate) };
    scheduler.admit(Instant::ZERO, StreamId(1), &spec).expect("it fits")
}

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn read(id: u64) -> Request {
    Request { stream: Some(StreamId(1)), ..request(id, Class::RealTime, id << 40, UNIT, None) }
}

fn write(id: u64, length: Bytes) -> Request {
    let direction = Direction::Write;
    Request { direction, ..request(id, Class::BestEffort, id << 40, length, None) }
}

/// A write goes to the device at 0 and is taken at [`TAKEN_MS`].
fn take(scheduler: &mut Scheduler, length: Bytes) {
    scheduler.enqueue(at(0), write(1, length));
    let dispatch = scheduler.dispatch(at(0)).expect("nothing else is there");
    scheduler.complete(at(TAKEN_MS), dispatch.id);
}

fn next(scheduler: &mut Scheduler, now: Instant) -> Option<RequestId> {
    scheduler.dispatch(now).map(|dispatch| dispatch.requests[0])
}

/// Reads went to the device while its cache was writing: it wrote in pieces of 1 MiB between them, each of which took a seek
/// to and fro, so that streams that took 97 % of the time by their prices took 120 %.
#[test]
fn a_read_waits_until_what_the_cache_has_taken_is_written_if_its_deadline_bears_it() {
    // 16 MiB take 115 ms, and 65 ms for the read are left of 220; 32 MiB take 213 ms.
    for (mib, waits) in [(16, true), (32, false)] {
        let mut scheduler = scheduler(Calibrated::All);
        let _player = player(&mut scheduler);
        let length = Bytes::from_mib(mib);
        take(&mut scheduler, length);
        scheduler.enqueue(at(TAKEN_MS), read(2));
        let written = Instant::ZERO + DISK.of(length);
        if waits {
            assert_eq!(next(&mut scheduler, at(TAKEN_MS)), None);
            assert_eq!(scheduler.next_wakeup(at(TAKEN_MS)), Some(written));
            assert_eq!(next(&mut scheduler, written.saturating_before(Duration::from_nanos(1))), None);
            assert_eq!(next(&mut scheduler, written), Some(RequestId(2)));
        } else {
            assert_eq!(next(&mut scheduler, at(TAKEN_MS)), Some(RequestId(2)));
        }
    }
}

#[test]
fn nothing_waits_where_nothing_is_promised_or_known_or_lent() {
    // Without streams; where what writes take was not measured; where they take what they should.
    for (promised, calibrated, mib) in
        [(false, Calibrated::All, 16), (true, Calibrated::Reads, 16), (true, Calibrated::All, 0)]
    {
        let mut scheduler = scheduler(calibrated);
        let _player = promised.then(|| player(&mut scheduler));
        let length = if mib == 0 { Bytes::from_kib(600) } else { Bytes::from_mib(mib) };
        take(&mut scheduler, length);
        scheduler.enqueue(at(TAKEN_MS), read(2));
        assert_eq!(next(&mut scheduler, at(TAKEN_MS)), Some(RequestId(2)), "{promised} {calibrated:?} {mib}");
    }
}

#[test]
fn metadata_does_not_wait_for_it() {
    let mut scheduler = scheduler(Calibrated::All);
    let _player = player(&mut scheduler);
    take(&mut scheduler, Bytes::from_mib(16));
    let small = request(2, Class::Metadata, 0, Bytes::from_kib(4), None);
    scheduler.enqueue(at(TAKEN_MS), small);
    assert_eq!(next(&mut scheduler, at(TAKEN_MS)), Some(RequestId(2)));
}

#[test]
fn a_write_joins_no_reads_on_such_a_device_and_other_writes_at_once() {
    for (first, joins) in [(read(2), false), (write(2, UNIT), true)] {
        let mut scheduler = scheduler(Calibrated::All);
        let rate = Bitrate::from_megabits(50);
        let deadline = Some(Duration::from_secs(2));
        let spec = StreamSpec { request: Some(UNIT), deadline, ..StreamSpec::reader(rate) };
        let _player = scheduler.admit(Instant::ZERO, StreamId(1), &spec).expect("it fits");
        take(&mut scheduler, Bytes::from_mib(16));
        let now = at(500);
        scheduler.enqueue(now, first);
        let there = scheduler.dispatch(now).expect("the device is idle");
        scheduler.enqueue(now, write(3, UNIT));
        assert_eq!(next(&mut scheduler, now), joins.then_some(RequestId(3)));
        scheduler.complete(at(560), there.id);
        assert_eq!(next(&mut scheduler, at(560)), (!joins).then_some(RequestId(3)));
    }
}

/// A copy to there was lent what the players' deadlines bore, which were seconds away: 300 MiB at once. A player that came to the
/// end of its file meanwhile and began again, wanted that sooner than its terms promise it, and waited six seconds: what it
/// wants breaks no promise.
#[test]
fn what_no_client_waits_for_is_lent_a_fifth_of_a_second_at_most() {
    const MOST: Duration = Duration::from_millis(200);
    for is_promised in [false, true] {
        let mut scheduler = scheduler(Calibrated::All);
        let spec = |spec: StreamSpec| StreamSpec {
            request: Some(UNIT),
            deadline: Some(Duration::from_secs(4)),
            ..spec
        };
        let rate = Bitrate::from_megabits(100);
        let _player = scheduler.admit(at(0), StreamId(1), &spec(StreamSpec::reader(rate))).expect("it fits");
        let _recorder =
            scheduler.admit(at(0), StreamId(2), &spec(StreamSpec::writer(rate))).expect("it fits");
        // After the first of 32 MiB, which takes 213 ms, 193 are owed, and after the second twice as much.
        let length = Bytes::from_mib(32);
        take(&mut scheduler, length);
        scheduler.enqueue(at(TAKEN_MS), write(3, length));
        let second = scheduler.dispatch(at(TAKEN_MS)).expect("no more is owed than may be");
        scheduler.complete(at(2 * TAKEN_MS), second.id);
        let written = Instant::ZERO + DISK.of(length) * 2;
        let may_go = written.saturating_before(MOST);
        let third = write(4, UNIT);
        scheduler.enqueue(
            at(2 * TAKEN_MS),
            if is_promised {
                Request { class: Class::RealTime, stream: Some(StreamId(2)), ..third }
            } else {
                third
            },
        );
        if is_promised {
            assert_eq!(next(&mut scheduler, at(2 * TAKEN_MS)), Some(RequestId(4)));
        } else {
            assert_eq!(next(&mut scheduler, at(2 * TAKEN_MS)), None);
            assert_eq!(scheduler.next_wakeup(at(2 * TAKEN_MS)), Some(may_go));
            assert_eq!(next(&mut scheduler, may_go.saturating_before(Duration::from_nanos(1))), None);
            assert_eq!(next(&mut scheduler, may_go), Some(RequestId(4)));
        }
    }
}
