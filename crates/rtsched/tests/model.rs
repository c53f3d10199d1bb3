//! What the scheduler promises, with any requests whatever, against definitions and brute force.

mod lab;

use lab::{DISK, Lab, bare, request};
use proptest::prelude::*;
use rtsched::{
    BackgroundLoad, Class, Config, Direction, Dispatch, FloorBase, Request, RequestId, Scheduler, StreamId,
    StreamSpec,
};
use std::collections::{BTreeMap, BTreeSet};
use units::{Bitrate, Bytes, DeviceOffset, Duration, Instant};

const MIB: u64 = 1 << 20;
const NANOSECOND: Duration = Duration::from_nanos(1);

// --- Sets: definitions and brute force. ---

/// Sizes in MiB, deadlines in milliseconds, places in GiB.
fn set(max: usize) -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    prop::collection::vec((0_u64..17, 1_u64..1500, 0_u64..64), 1..max)
}

fn as_request(id: usize, class: Class, (size, deadline, place): (u64, u64, u64)) -> Request {
    let length = Bytes((size << 20).max(4096));
    let deadline = (class == Class::RealTime).then(|| Instant::ZERO + Duration::from_millis(deadline));
    request(id as u64, class, place << 30, length, deadline)
}

/// Whether the deadlines hold in some order, the first starting at `start`: by trying all.
fn some_order_holds(start: Instant, requests: &[&Request]) -> bool {
    requests.is_empty()
        || (0..requests.len()).any(|first| {
            let end = start + DISK.of(requests[first].length);
            let rest: Vec<&Request> =
                requests.iter().enumerate().filter(|(index, _)| *index != first).map(|(_, r)| *r).collect();
            requests[first].deadline.is_none_or(|deadline| end <= deadline) && some_order_holds(end, &rest)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn nothing_is_missed_if_any_order_misses_nothing(set in set(7)) {
        let requests: Vec<Request> =
            set.iter().enumerate().map(|(id, it)| as_request(id, Class::RealTime, *it)).collect();
        let possible = some_order_holds(Instant::ZERO, &requests.iter().collect::<Vec<_>>());
        let mut lab = Lab::new(bare());
        requests.into_iter().for_each(|request| lab.enqueue(request));
        lab.drain();
        prop_assert_eq!(lab.missed.is_empty(), possible);
    }

    #[test]
    fn best_effort_goes_first_exactly_when_some_order_of_the_rest_still_holds(
        real_time in set(6),
        best_effort in (0_u64..17, 0_u64..1, 0_u64..64),
    ) {
        let requests: Vec<Request> =
            real_time.iter().enumerate().map(|(id, it)| as_request(id, Class::RealTime, *it)).collect();
        let extra = as_request(100, Class::BestEffort, best_effort);
        let start = Instant::ZERO + DISK.of(extra.length);
        let possible = some_order_holds(start, &requests.iter().collect::<Vec<_>>());
        let mut lab = Lab::new(bare());
        requests.into_iter().for_each(|request| lab.enqueue(request));
        lab.enqueue(extra);
        lab.fill();
        prop_assert_eq!(lab.trace[0].requests[0] == RequestId(100), possible);
    }

    /// A set that fits beside the floors is met: whatever else comes meanwhile, at any depth, merged or not, in
    /// whatever order the device serves what it has.
    #[test]
    fn feasible_sets_never_miss(
        real_time in set(40),
        others in prop::collection::vec((0_u64..2500, 0_u64..9, 0_u64..64, 1_usize..4), 0..60),
        depth in 1_u32..9,
        max_merge in 0_u64..33,
        same_stream in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let config = Config {
            queue_depth: depth, max_merge: Bytes::from_mib(max_merge), learning: false, ..Config::default()
        };
        // Stretch the deadlines as far as makes the set just feasible: 84 % of the time for it, 16 % for floors.
        let mut sorted = real_time.clone();
        sorted.sort_by_key(|(_, deadline, _)| *deadline);
        let mut sum = Duration::ZERO;
        let mut stretch = 1.0_f64;
        for (size, deadline, _) in &sorted {
            sum += DISK.of(Bytes((size << 20).max(4096)));
            stretch = stretch.max(sum.as_secs_f64() / 0.84 / (*deadline as f64 / 1e3));
        }
        let mut lab = Lab::new(config).in_any_order(seed);
        for (id, (size, deadline, place)) in real_time.iter().enumerate() {
            let deadline = Instant::ZERO + Duration::from_secs_f64(*deadline as f64 * stretch / 1e3 + 1e-6);
            let mut request = as_request(id, Class::RealTime, (*size, 0, *place));
            request.deadline = Some(deadline);
            request.stream = same_stream.then_some(StreamId(place % 3));
            request.offset = DeviceOffset(place * MIB * if same_stream { 8 } else { 1024 });
            lab.enqueue(request);
        }
        let mut others: Vec<_> = others.into_iter().enumerate().collect();
        others.sort_by_key(|(_, (at, ..))| *at);
        for (id, (at, size, place, class)) in others {
            let at = Instant::ZERO + Duration::from_millis(at);
            loop {
                lab.fill();
                match lab.next_completion() {
                    Some(completion) if completion <= at => lab.complete(),
                    _ => break,
                };
            }
            lab.now = lab.now.max(at);
            let class = [Class::RealTime, Class::Metadata, Class::BestEffort, Class::Idle][class];
            let mut request = as_request(1000 + id, class, (size, 0, place));
            request.offset = DeviceOffset(place * MIB * 8);
            request.stream = same_stream.then_some(StreamId(place % 3));
            lab.enqueue(request);
        }
        lab.drain();
        prop_assert_eq!(lab.missed, []);
    }
}

// --- Admission. ---

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// What is admitted is served in time, at any phase, beside as much of everything else as there may be, at
    /// any depth, in whatever order the device serves what it has.
    #[test]
    fn admitted_streams_never_miss(
        specs in prop::collection::vec((20_u64..400, 1_u64..17, 30_u64..300, 0_u64..1000), 1..16),
        others in prop::collection::vec((1_usize..4, 0_u64..9, 0_u64..4096), 1..40),
        depth in 1_u32..9,
        seed in any::<u64>(),
    ) {
        let config = Config { queue_depth: depth, learning: false, ..Config::default() };
        let mut lab = Lab::new(config).in_any_order(seed);
        let mut next = 0;
        // Streams: rate in Mbit/s, size in MiB, deadline in percent of the period, phase in thousandths of it.
        let mut releases = BTreeSet::new();
        let mut admitted = Vec::new();
        for (rate, size, percent, phase) in specs {
            let (rate, request) = (Bitrate::from_megabits(rate), Bytes::from_mib(size));
            let period = rate.time_for(request);
            let deadline = period * percent as u32 / 100;
            let spec =
                StreamSpec { request: Some(request), deadline: Some(deadline), ..StreamSpec::reader(rate) };
            let stream = StreamId(admitted.len() as u64);
            if lab.scheduler.admit(lab.now, stream, &spec).is_ok() {
                releases.insert((Instant::ZERO + period * phase as u32 / 1000, admitted.len()));
                admitted.push((request, period, deadline));
            }
        }
        prop_assume!(!admitted.is_empty());
        prop_assert_eq!(lab.scheduler.admitted_fit(BackgroundLoad::Nothing), Ok(()));
        // Each completion brings another request without guarantees, so that some always wait.
        let mut kinds = others.iter().cycle();
        let mut other = |next: &mut u64| {
            *next += 1;
            let (class, size, place) = *kinds.next().expect("a cycle");
            let class = [Class::RealTime, Class::Metadata, Class::BestEffort, Class::Idle][class];
            let mut request = as_request(0, class, (size, 0, 0));
            (request.id, request.offset) = (RequestId(*next), DeviceOffset(place * MIB * 8));
            request
        };
        for _ in 0..others.len() {
            lab.enqueue(other(&mut next));
        }
        let mut streams_requests = BTreeSet::new();
        let end = Instant::ZERO + Duration::from_secs(20);
        while lab.now < end {
            lab.fill();
            let (release, stream) = *releases.first().expect("streams go on");
            if lab.next_completion().is_none_or(|completion| release < completion) {
                releases.pop_first();
                let (length, period, deadline) = admitted[stream];
                next += 1;
                lab.now = lab.now.max(release);
                let offset = (next * 7_919 % 4096) << 23;
                let mut request = request(next, Class::RealTime, offset, length, Some(release + deadline));
                request.stream = Some(StreamId(stream as u64));
                lab.enqueue(request);
                streams_requests.insert(RequestId(next));
                releases.insert((release + period, stream));
            } else if let Some(dispatch) = lab.complete() {
                for id in dispatch.requests {
                    if !streams_requests.remove(&id) {
                        lab.enqueue(other(&mut next));
                    }
                }
            }
        }
        prop_assert_eq!(&lab.missed, &[]);
    }
}

#[test]
fn a_released_stream_makes_room_for_another() {
    let config = Config { floor_base: FloorBase::Device, learning: false, ..Config::default() };
    let mut scheduler = Scheduler::new(config);
    let rate = Bitrate::from_megabits(100);
    let request = Bytes::from_mib(8);
    let spec = StreamSpec { request: Some(request), ..StreamSpec::reader(rate) };
    let mut admitted = Vec::new();
    let rejected = loop {
        match scheduler.admit(Instant::ZERO, StreamId(admitted.len() as u64), &spec) {
            Ok(reservation) => admitted.push(reservation),
            Err(rejected) => break rejected,
        }
    };
    // Each takes 9.8 %, and the other classes are promised 16 %.
    assert_eq!(admitted.len(), 8);
    assert!(rejected.to_string().contains("release another"), "{rejected}");
    // What is said to fit does, and a little more does not.
    let fits = rejected.fits.expect("some room is left");
    let more = StreamSpec { rate: Bitrate(fits.0 * 102 / 100), ..spec };
    assert!(scheduler.admit(Instant::ZERO, StreamId(100), &more).is_err());
    let less = StreamSpec { rate: fits, ..spec };
    let small = scheduler.admit(Instant::ZERO, StreamId(100), &less).expect("it was said to fit");
    scheduler.release(Instant::ZERO, small);
    scheduler.release(Instant::ZERO, admitted.pop().expect("eight"));
    assert!(scheduler.admit(Instant::ZERO, StreamId(100), &spec).is_ok());
}

// --- Any calls whatever. ---

#[derive(Clone, Debug)]
enum Call {
    Enqueue { class: usize, direction: usize, stream: u64, block: u64, blocks: u64, deadline: Option<u64> },
    Dispatch,
    Complete(prop::sample::Index),
    Promote(prop::sample::Index, usize, u64),
    Cancel(prop::sample::Index),
    Wait(u64),
}

fn call() -> impl Strategy<Value = Call> {
    let millis = 0_u64..300;
    prop_oneof![
        5 => (0_usize..4, 0_usize..3, 0_u64..3, 0_u64..64, 1_u64..9, prop::option::of(millis.clone())).prop_map(
            |(class, direction, stream, block, blocks, deadline)| Call::Enqueue {
                class, direction, stream, block, blocks, deadline
            }
        ),
        3 => Just(Call::Dispatch),
        3 => any::<prop::sample::Index>().prop_map(Call::Complete),
        1 => (any::<prop::sample::Index>(), 0_usize..4, millis.clone())
            .prop_map(|(index, class, deadline)| Call::Promote(index, class, deadline)),
        1 => any::<prop::sample::Index>().prop_map(Call::Cancel),
        2 => millis.prop_map(Call::Wait),
    ]
}

const CLASSES: [Class; 4] = [Class::RealTime, Class::Metadata, Class::BestEffort, Class::Idle];

/// Makes the calls and checks every answer; returns all that was dispatched.
fn run(calls: &[Call], config: &Config) -> Vec<Dispatch> {
    let mut scheduler = Scheduler::new(config.clone());
    let mut now = Instant::ZERO;
    let mut requests: BTreeMap<RequestId, Request> = BTreeMap::new();
    let mut waiting: BTreeSet<RequestId> = BTreeSet::new();
    let mut flying: Vec<Dispatch> = Vec::new();
    let mut trace = Vec::new();
    let settle =
        |scheduler: &mut Scheduler, now, waiting: &mut BTreeSet<RequestId>, requests: &BTreeMap<_, _>| {
            let dispatch = scheduler.dispatch(now)?;
            check(&dispatch, requests, config);
            for id in &dispatch.requests {
                assert!(waiting.remove(id), "{id:?} was cancelled or dispatched before");
            }
            Some(dispatch)
        };
    for call in calls {
        match *call {
            Call::Enqueue { class, direction, stream, block, blocks, deadline } => {
                let id = RequestId(requests.len() as u64);
                let direction = [Direction::Read, Direction::Write, Direction::Flush][direction];
                let flush = direction == Direction::Flush;
                let request = Request {
                    id,
                    class: CLASSES[class],
                    stream: (stream > 0).then_some(StreamId(stream)),
                    direction,
                    offset: DeviceOffset(if flush { 0 } else { block * MIB }),
                    length: if flush { Bytes::ZERO } else { Bytes::from_mib(blocks) },
                    deadline: deadline.map(|millis| now + Duration::from_millis(millis)),
                };
                requests.insert(id, request);
                waiting.insert(id);
                scheduler.enqueue(now, request);
            }
            Call::Dispatch => {
                let dispatched = settle(&mut scheduler, now, &mut waiting, &requests);
                assert!(
                    dispatched.is_some() || waiting.is_empty() || !flying.is_empty(),
                    "idle with work queued"
                );
                if dispatched.is_none() {
                    sleeps_through_nothing(&scheduler, now);
                }
                flying.extend(dispatched.clone());
                trace.extend(dispatched);
            }
            Call::Complete(index) if !flying.is_empty() => {
                let dispatch = flying.swap_remove(index.index(flying.len()));
                scheduler.complete(now, dispatch.id);
            }
            Call::Promote(index, class, millis) if !requests.is_empty() => {
                let id = RequestId(index.index(requests.len()) as u64);
                let deadline = now + Duration::from_millis(millis);
                assert_eq!(scheduler.promote(now, id, CLASSES[class], deadline), waiting.contains(&id));
            }
            Call::Cancel(index) if !requests.is_empty() => {
                let id = RequestId(index.index(requests.len()) as u64);
                assert_eq!(scheduler.cancel(now, id), waiting.remove(&id));
            }
            Call::Wait(millis) => now += Duration::from_millis(millis),
            Call::Complete(_) | Call::Promote(..) | Call::Cancel(_) => {}
        }
        assert_eq!(scheduler.queued(), waiting.len());
        assert_eq!(scheduler.in_flight() as usize, flying.len());
        assert!(flying.len() <= config.queue_depth as usize);
    }
    while !waiting.is_empty() || !flying.is_empty() {
        let dispatched = settle(&mut scheduler, now, &mut waiting, &requests);
        assert!(dispatched.is_some() || !flying.is_empty(), "idle with work queued");
        match dispatched {
            Some(dispatch) => {
                trace.push(dispatch.clone());
                flying.push(dispatch);
            }
            None => scheduler.complete(now, flying.pop().expect("not idle").id),
        }
        now += Duration::from_millis(1);
    }
    assert_eq!((scheduler.queued(), scheduler.in_flight()), (0, 0));
    let counters = scheduler.counters();
    assert_eq!(counters.enqueued, requests.len() as u64);
    assert_eq!(counters.completed.iter().sum::<u64>() + counters.cancelled, counters.enqueued);
    assert_eq!(
        counters.dispatched.iter().sum::<u64>() + counters.merged + counters.cancelled,
        counters.enqueued
    );
    trace
}

/// Nothing is dispatched before the wakeup if nothing is dispatched now.
fn sleeps_through_nothing(scheduler: &Scheduler, now: Instant) {
    let wakeup = scheduler.next_wakeup(now).unwrap_or(now + Duration::from_secs(600));
    assert!(wakeup > now, "a wakeup that is over");
    let time = wakeup.saturating_since(now);
    for part in 0..64 {
        let at = now + (time * part / 64).min(time.saturating_sub(NANOSECOND));
        assert_eq!(scheduler.clone().dispatch(at), None, "at {at:?}, to be woken at {wakeup:?}");
    }
}

/// A command is made of neighbours of one direction and stream, in order.
fn check(dispatch: &Dispatch, requests: &BTreeMap<RequestId, Request>, config: &Config) {
    let members: Vec<&Request> = dispatch.requests.iter().map(|id| &requests[id]).collect();
    assert_eq!(dispatch.offset, members[0].offset);
    assert_eq!(dispatch.length.0, members.iter().map(|request| request.length.0).sum::<u64>());
    assert!(members.len() == 1 || dispatch.length <= config.max_merge);
    assert!(members.len() == 1 || dispatch.direction != Direction::Flush);
    assert!(members.iter().all(|request| request.direction == dispatch.direction));
    assert!(members.iter().all(|request| request.stream == members[0].stream));
    assert!(members.windows(2).all(|pair| pair[0].offset + pair[0].length == pair[1].offset));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_is_called_nothing_is_lost_or_served_twice_and_the_same_calls_get_the_same_answers(
        calls in prop::collection::vec(call(), 1..300),
        queue_depth in 1_u32..8,
        max_merge in 0_u64..40,
        learning in any::<bool>(),
    ) {
        let config =
            Config { queue_depth, max_merge: Bytes::from_mib(max_merge), learning, ..Config::default() };
        let first = run(&calls, &config);
        prop_assert_eq!(run(&calls, &config), first);
    }
}
