//! What admitted streams are promised holds whatever streams do.

mod lab;

use lab::{Lab, known, of_stream, request, status};
use proptest::prelude::*;
use rtsched::{
    Class, Config, Direction, Event, Request, RequestId, Reservation, StreamId, StreamSpec, StreamState,
};
use std::collections::{BTreeMap, BTreeSet};
use units::{Bitrate, Bytes, Duration, Instant};

const UNIT: Bytes = Bytes::from_mib(8);

// --- Any streams whatever. ---

#[derive(Clone, Debug)]
enum Life {
    Admit { stream: u64, megabits: u64, size: Option<u64>, priority: u8, writes: bool },
    Release(u64),
    Change(u64, u64),
    Ask { stream: u64, count: u64, wish: Option<u64> },
    Other { class: usize, mebibytes: u64 },
    Seek(u64),
    Promote(u64),
    Serve(u64),
    Wait(u64),
    Slower(bool),
}

fn life() -> impl Strategy<Value = Life> {
    let stream = 0_u64..8;
    prop_oneof![
        2 => (stream.clone(), 5_u64..200, prop::option::of(1_u64..17), any::<u8>(), any::<bool>()).prop_map(
            |(stream, megabits, size, priority, writes)| Life::Admit { stream, megabits, size, priority, writes }
        ),
        1 => stream.clone().prop_map(Life::Release),
        1 => (stream.clone(), 5_u64..300).prop_map(|(stream, rate)| Life::Change(stream, rate)),
        6 => (stream.clone(), 1_u64..4, prop::option::of(0_u64..2000))
            .prop_map(|(stream, count, wish)| Life::Ask { stream, count, wish }),
        2 => (1_usize..4, 1_u64..9).prop_map(|(class, mebibytes)| Life::Other { class, mebibytes }),
        1 => stream.clone().prop_map(Life::Seek),
        1 => any::<u64>().prop_map(Life::Promote),
        6 => (1_u64..12).prop_map(Life::Serve),
        2 => (1_u64..3000).prop_map(Life::Wait),
        1 => any::<bool>().prop_map(Life::Slower),
    ]
}

/// Lives it and returns what was dispatched and what was told.
fn live(lives: &[Life], learning: bool, memory: Bytes) -> (Vec<rtsched::Dispatch>, Vec<Event>) {
    let config = Config { learning, queue_depth: 4, event_capacity: 1 << 14, ..Config::default() };
    let mut lab = Lab::new(Config { buffer_memory: memory, ..config });
    let mut reservations: BTreeMap<u64, Reservation> = BTreeMap::new();
    let mut waiting: BTreeSet<u64> = BTreeSet::new();
    let mut stream_of: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut next, mut served, mut seen) = (0_u64, 0, 0);
    let mut events = Vec::new();
    let mut settle = |lab: &Lab, waiting: &mut BTreeSet<u64>| {
        for dispatch in &lab.trace[seen..] {
            for id in &dispatch.requests {
                assert!(waiting.remove(&id.0), "{id:?} was cancelled or dispatched before");
                served += 1;
            }
        }
        seen = lab.trace.len();
        served
    };
    for life in lives {
        let now = lab.now;
        match *life {
            Life::Admit { stream, megabits, size, priority, writes } => {
                let spec = StreamSpec::reader(Bitrate::from_megabits(megabits));
                let direction = if writes { Direction::Write } else { Direction::Read };
                let spec = StreamSpec { direction, request: size.map(Bytes::from_mib), priority, ..spec };
                if let Ok(reservation) = lab.scheduler.admit(now, StreamId(stream), &spec) {
                    assert_eq!(lab.scheduler.terms(StreamId(stream)), Some(reservation.terms()));
                    assert!(reservations.insert(stream, reservation).is_none());
                }
            }
            Life::Release(stream) => {
                if let Some(reservation) = reservations.remove(&stream) {
                    lab.scheduler.release(now, reservation);
                    assert_eq!(lab.scheduler.terms(StreamId(stream)), None);
                }
            }
            Life::Change(stream, megabits) => {
                if let Some(reservation) = reservations.get_mut(&stream) {
                    // Rejected or not, it holds one.
                    let _ = lab.scheduler.change(now, reservation, Bitrate::from_megabits(megabits));
                    assert!(lab.scheduler.stream(StreamId(stream)).is_some());
                }
            }
            Life::Ask { stream, count, wish } => {
                for _ in 0..count {
                    next += 1;
                    let length = lab.scheduler.terms(StreamId(stream)).map_or(UNIT, |terms| terms.request);
                    let request = of_stream(stream, next, (next % 64) << 30, length);
                    let deadline = wish.map(|millis| now + Duration::from_millis(millis));
                    lab.enqueue(Request { deadline, ..request });
                    waiting.insert(next);
                    stream_of.insert(next, stream);
                }
            }
            Life::Other { class, mebibytes } => {
                next += 1;
                let class = [Class::RealTime, Class::Metadata, Class::BestEffort, Class::Idle][class];
                lab.enqueue(request(next, class, (next % 64) << 30, Bytes::from_mib(mebibytes), None));
                waiting.insert(next);
            }
            Life::Seek(stream) => {
                let count = lab.scheduler.cancel_stream(now, StreamId(stream), |id| {
                    assert!(waiting.remove(&id.0) && stream_of[&id.0] == stream);
                });
                let queued = lab.scheduler.stream(StreamId(stream)).map_or(0, |status| status.queued);
                assert_eq!(queued, 0, "{count} were taken back");
            }
            Life::Promote(id) => {
                let id = id % (next + 1);
                let deadline = now + Duration::from_millis(100);
                let is_nobodys = waiting.contains(&id) && !stream_of.contains_key(&id);
                if lab.scheduler.assign(now, RequestId(id), StreamId(1), deadline) {
                    stream_of.insert(id, 1);
                }
                assert_eq!(is_nobodys, is_nobodys && stream_of.contains_key(&id));
                let is_there = lab.scheduler.promote(now, RequestId(id), Class::RealTime, deadline);
                assert_eq!(is_there, waiting.contains(&id));
            }
            Life::Serve(count) => {
                for _ in 0..count {
                    lab.fill();
                    lab.complete();
                }
            }
            Life::Wait(millis) => {
                let until = now + Duration::from_millis(millis);
                while lab.next_completion().is_some_and(|completion| completion <= until) {
                    lab.complete();
                    lab.fill();
                }
                lab.now = lab.now.max(until);
            }
            Life::Slower(is_slower) => lab.slower = if is_slower { 1.7 } else { 1.0 },
        }
        settle(&lab, &mut waiting);
        assert_eq!(lab.scheduler.queued(), waiting.len());
        let mut promised = 0;
        for stream in 0..8 {
            let Some(status) = lab.scheduler.stream(StreamId(stream)) else { continue };
            let of_it = waiting.iter().filter(|id| stream_of.get(id) == Some(&stream)).count();
            assert_eq!(status.queued as usize, of_it);
            assert!(status.excess <= status.queued);
            if status.state == StreamState::Active {
                promised += status.terms.buffer().0;
            }
        }
        assert!(promised <= memory.0, "{promised} of {memory}");
        events.append(&mut lab.events);
    }
    lab.drain();
    let served = settle(&lab, &mut waiting);
    assert_eq!(waiting, BTreeSet::new());
    let counters = lab.scheduler.counters();
    assert_eq!(counters.enqueued, served + counters.cancelled);
    for (_, reservation) in reservations {
        lab.scheduler.release(lab.now, reservation);
    }
    assert_eq!(lab.scheduler.utilisation_permille(), 0);
    (lab.trace, events)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whatever_streams_do_nothing_is_lost_and_the_same_calls_get_the_same_answers(
        lives in prop::collection::vec(life(), 1..200),
        learning in any::<bool>(),
        memory_mib in prop::sample::select(vec![100, 200, 400, 4096]),
    ) {
        let memory = Bytes::from_mib(memory_mib);
        let first = live(&lives, learning, memory);
        prop_assert_eq!(live(&lives, learning, memory), first);
    }

    /// Streams come and go; of those that are admitted and ask for no more than their rate, on a device that keeps
    /// to its model, none is ever late, whatever else there is.
    #[test]
    fn admitted_streams_never_miss_while_others_come_and_go(
        arrivals in prop::collection::vec((20_u64..250, 0_u64..30_000, 5_000_u64..60_000, any::<bool>()), 1..16),
        copies in 0_u64..8,
        depth in 1_u32..6,
        seed in any::<u64>(),
    ) {
        let config = Config { queue_depth: depth, buffer_memory: Bytes::from_mib(3072), ..known() };
        let mut lab = Lab::new(config).in_any_order(seed);
        let at = |millis: u64| Instant::ZERO + Duration::from_millis(millis);
        let mut coming: Vec<_> = arrivals.into_iter().enumerate().collect();
        coming.sort_by_key(|(_, (_, arrival, ..))| std::cmp::Reverse(*arrival));
        let mut next = 0_u64;
        let mut copy = |lab: &mut Lab| {
            next += 1;
            lab.enqueue(request(1_000_000 + next, Class::BestEffort, (next * 7919 % 4096) << 23, UNIT, None));
        };
        (0..copies).for_each(|_| copy(&mut lab));
        // By stream: when it asks next, and when it leaves.
        let mut playing: BTreeMap<u64, (Instant, Instant, Reservation)> = BTreeMap::new();
        let mut id = 0_u64;
        let end = at(90_000);
        while lab.now < end {
            lab.fill();
            let arrival = coming.last().map(|(_, (_, arrival, ..))| at(*arrival));
            let ask = playing.iter().map(|(stream, (ask, ..))| (*ask, *stream)).min();
            let event = arrival.into_iter().chain(ask.map(|(ask, _)| ask)).min().unwrap_or(end);
            if lab.next_completion().is_some_and(|completion| completion <= event) {
                let dispatch = lab.complete().expect("it completes");
                dispatch.requests.iter().filter(|id| id.0 > 1_000_000).for_each(|_| copy(&mut lab));
                continue;
            }
            if event >= end {
                break;
            }
            lab.now = lab.now.max(event);
            if arrival == Some(event) {
                let (stream, (megabits, _, stays, writes)) = coming.pop().expect("it comes");
                let spec = StreamSpec::reader(Bitrate::from_megabits(megabits));
                let direction = if writes { Direction::Write } else { Direction::Read };
                let spec = StreamSpec { direction, ..spec };
                if let Ok(reservation) = lab.scheduler.admit(lab.now, StreamId(stream as u64), &spec) {
                    let since = reservation.terms().since;
                    let leaves = since + Duration::from_millis(stays);
                    playing.insert(stream as u64, (since, leaves, reservation));
                }
                continue;
            }
            let (_, stream) = ask.expect("a stream asks");
            let (_, leaves, _) = playing[&stream];
            if leaves <= lab.now {
                let (.., reservation) = playing.remove(&stream).expect("it plays");
                lab.scheduler.cancel_stream(lab.now, StreamId(stream), |_| {});
                lab.scheduler.release(lab.now, reservation);
                continue;
            }
            let status = status(&lab, stream);
            prop_assert_eq!(status.state, StreamState::Active);
            let terms = status.terms;
            id += 1;
            let place = (id * 7919 % 4096) << 26;
            let request = of_stream(stream, id, place, terms.request);
            lab.enqueue(Request { direction: status.spec.direction, ..request });
            playing.get_mut(&stream).expect("it plays").0 = lab.now + terms.period;
        }
        prop_assert_eq!(&lab.missed, &[]);
    }
}
