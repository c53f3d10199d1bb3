//! A scheduler that is given other figures while it runs.

use proptest::prelude::*;
use rtsched::{Class, Config, Direction, Request, RequestId, Scheduler, StreamId, StreamSpec};
use units::{Bitrate, Bytes, DeviceOffset, Duration, Instant};

fn request(id: u64, class: Class, stream: Option<StreamId>) -> Request {
    Request {
        id: RequestId(id),
        direction: Direction::Read,
        offset: DeviceOffset((id * 7919 % 1000) << 30),
        length: Bytes::from_mib(8),
        class,
        stream,
        deadline: None,
    }
}

/// What is served in which order, when four players, a copy and idle work want more than there is time for.
fn served(scheduler: &mut Scheduler) -> Vec<u64> {
    let mut now = Instant::ZERO;
    let spec = StreamSpec::reader(Bitrate::from_megabits(100));
    let streams: Vec<_> = (1..=4).map(|stream| StreamId(stream << 1)).collect();
    let held: Vec<_> = streams.iter().map(|&stream| scheduler.admit(now, stream, &spec)).collect();
    let mut order = Vec::new();
    for round in 0..60 {
        let id = 1 + round * 10;
        for (number, &stream) in (0..).zip(&streams) {
            scheduler.enqueue(now, request(id + number, Class::RealTime, Some(stream)));
        }
        scheduler.enqueue(now, request(id + 4, Class::BestEffort, None));
        scheduler.enqueue(now, request(id + 5, Class::Idle, None));
        scheduler.enqueue(now, request(id + 6, Class::Metadata, None));
        for _ in 0..2 {
            let Some(dispatch) = scheduler.dispatch(now) else { break };
            now += Duration::from_millis(60);
            order.extend(dispatch.requests.iter().map(|id| id.0));
            scheduler.complete(now, dispatch.id);
        }
    }
    drop(held);
    order
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// As one that was made with these figures: nothing of the old ones is left anywhere.
    #[test]
    fn what_is_changed_before_anything_happened_is_as_if_it_had_always_been_so(
        metadata in 1_u64..500, best_effort in 10_u64..20_000, floors in [0_u32..40, 0..40, 0..40], memory in 64_u64..4096, longest in 1_u64..10,
    ) {
        let wanted = Config {
            metadata_latency: Duration::from_millis(metadata),
            best_effort_latency: Duration::from_millis(best_effort),
            metadata_floor_percent: floors[0],
            best_effort_floor_percent: floors[1],
            idle_floor_percent: floors[2],
            buffer_memory: Bytes::from_mib(memory),
            request_time_max: Duration::from_secs(longest),
            ..Config::default()
        };
        let mut changed = Scheduler::new(Config::default());
        prop_assert_eq!(changed.reconfigure(Instant::ZERO, &wanted), Ok(()));
        prop_assert_eq!(served(&mut changed), served(&mut Scheduler::new(wanted)));
    }
}

/// The property above says something only if what is served depends on the figures.
#[test]
fn what_is_served_depends_on_the_figures() {
    let floors = |percent| Config { best_effort_floor_percent: percent, ..Config::default() };
    let latency = Config { best_effort_latency: Duration::from_millis(100), ..Config::default() };
    let usual = served(&mut Scheduler::new(floors(0)));
    for other in [floors(30), latency] {
        assert_ne!(served(&mut Scheduler::new(other)), usual);
    }
}

#[test]
fn memory_that_is_promised_is_not_taken_away() {
    let memory = |mebibytes| Config { buffer_memory: Bytes::from_mib(mebibytes), ..Config::default() };
    let mut scheduler = Scheduler::new(memory(2048));
    let spec = StreamSpec::reader(Bitrate::from_megabits(100));
    let held: Vec<_> =
        (1..=4).map(|stream| scheduler.admit(Instant::ZERO, StreamId(stream), &spec).unwrap()).collect();
    let promised = scheduler.promised_memory();
    assert!(promised > Bytes::ZERO && promised <= Bytes::from_mib(2048));
    // With shorter requests they do with less, down to what no request is shorter than.
    assert_eq!(scheduler.reconfigure(Instant::ZERO, &memory((promised.0 / 2) >> 20)), Ok(()));
    assert!(scheduler.promised_memory() <= promised);
    let least = scheduler.reconfigure(Instant::ZERO, &memory(1)).unwrap_err();
    assert_eq!(least, scheduler.promised_memory());
    assert!(scheduler.admitted_fit(rtsched::BackgroundLoad::Nothing).is_ok());
    held.into_iter().for_each(|reservation| scheduler.release(Instant::ZERO, reservation));
    assert_eq!(scheduler.reconfigure(Instant::ZERO, &memory(1)), Ok(()));
}
