//! What admitted streams are promised: policing, pausing, resizing, overload.

mod lab;

use lab::{DISK, Lab, known, of_stream, request, status};
use rtsched::{
    Class, Config, Direction, Event, FloorBase, Request, RequestId, Reservation, ServiceTime, StreamId,
    StreamSpec, StreamState, Why, flush_deadline,
};
use std::collections::{BTreeMap, BTreeSet};
use units::{Bitrate, Bytes, Duration, Instant};

const MIB: u64 = 1 << 20;
const NANOSECOND: Duration = Duration::from_nanos(1);
const HD: Bitrate = Bitrate::from_megabits(100);
const UNIT: Bytes = Bytes::from_mib(8);
/// As fast as the laboratory's LUN: thirteen players of 100 Mbit/s take 99 % of it.
const ARRAY: ServiceTime =
    ServiceTime { access: Duration::from_micros(17_400), bytes_per_second: Bytes(179_500_000) };

/// 8 MiB every 671 ms, due a period after they are asked for.
fn fixed(rate: Bitrate) -> StreamSpec {
    let deadline = Some(rate.time_for(UNIT));
    StreamSpec { request: Some(UNIT), deadline, ..StreamSpec::reader(rate) }
}

fn state(lab: &Lab, stream: u64) -> StreamState {
    status(lab, stream).state
}

fn admit(lab: &mut Lab, stream: u64, spec: StreamSpec) -> Reservation {
    let now = lab.now;
    lab.scheduler.admit(now, StreamId(stream), &spec).expect("it fits")
}

// --- Policing. ---

#[test]
fn a_request_is_within_the_rate_a_deadline_before_its_turn_and_not_a_nanosecond_earlier() {
    for (short, excess) in [(Duration::ZERO, 0), (NANOSECOND, 1)] {
        let mut lab = Lab::new(known());
        let reservation = admit(&mut lab, 1, fixed(HD));
        let terms = reservation.terms();
        // The first is released now, the second a period later, the third after two: a deadline, which is a period,
        // before that it may be asked for.
        for id in 0..2 {
            lab.enqueue(of_stream(1, id, id << 30, UNIT));
        }
        lab.now = Instant::ZERO + (terms.period * 2 - terms.deadline - short);
        lab.enqueue(of_stream(1, 2, 2 << 30, UNIT));
        assert_eq!(status(&lab, 1).excess, excess);
        assert_eq!(lab.scheduler.counters().excess, u64::from(excess));
        lab.scheduler.release(lab.now, reservation);
    }
}

#[test]
fn what_is_beyond_the_rate_becomes_real_time_when_the_budget_has_reached_it() {
    let mut lab = Lab::new(known());
    let _reservation = admit(&mut lab, 1, fixed(HD));
    // A copy at the device, so that nothing is served meanwhile.
    lab.enqueue(request(99, Class::BestEffort, 1 << 40, UNIT, None));
    assert!(lab.scheduler.dispatch(lab.now).is_some());
    for id in 0..5 {
        lab.enqueue(of_stream(1, id, id << 30, UNIT));
    }
    let count = |lab: &Lab| (lab.scheduler.queued_of(Class::RealTime), status(lab, 1).excess);
    assert_eq!(count(&lab), (2, 3));
    let period = HD.time_for(UNIT);
    for (periods, expected) in [(1, (3, 2)), (2, (4, 1)), (3, (5, 0))] {
        for (before, expected) in [(NANOSECOND, count(&lab)), (Duration::ZERO, expected)] {
            lab.now = Instant::ZERO + (period * periods - before);
            lab.scheduler.next_wakeup(lab.now);
            assert_eq!(lab.scheduler.dispatch(lab.now), None, "the device is as full as it should be");
            assert_eq!(count(&lab), expected);
        }
    }
}

/// Ids of what was served in real time, and of what was not.
fn by_class(lab: &Lab) -> (Vec<u64>, Vec<u64>) {
    let mut ids = (Vec::new(), Vec::new());
    for event in &lab.events {
        let Event::Dispatched { dispatch, class, .. } = event else { continue };
        let command = lab.trace.iter().find(|one| one.id == *dispatch);
        let requests = command.into_iter().flat_map(|one| &one.requests).map(|id| id.0);
        if *class == Class::RealTime { ids.0.extend(requests) } else { ids.1.extend(requests) }
    }
    ids.0.sort_unstable();
    (ids.0, ids.1)
}

/// A player on a device that was busy for two thirds of the time waited for more than a second for the first bytes at the place to
/// which it had jumped: what it had read ahead elsewhere had used up its rate, and it wanted them at once, by when nothing fits.
#[test]
fn what_is_wanted_at_once_beyond_the_rate_is_given_by_when_it_fits_and_served_first() {
    let mut lab = Lab::new(known());
    let length = Bytes::from_mib(32);
    let deadline = Some(Duration::from_secs(3));
    let spec = StreamSpec { request: Some(length), deadline, ..StreamSpec::reader(HD) };
    let _reservations = [1, 2].map(|stream| admit(&mut lab, stream, spec));
    (0..2).for_each(|id| lab.enqueue(of_stream(1, id, id << 30, length)));
    lab.drain();
    lab.enqueue(request(99, Class::BestEffort, 1 << 40, UNIT, None));
    lab.fill();
    let ahead = Some(lab.now + Duration::from_millis(300));
    lab.enqueue(Request { deadline: ahead, ..of_stream(2, 10, 2 << 32, UNIT) });
    let jump = of_stream(1, 20, 1 << 36, Bytes::from_mib(1));
    lab.enqueue(Request { deadline: Some(lab.now), ..jump });
    assert_eq!(status(&lab, 1).excess, 1);
    assert!(lab.scheduler.promote(lab.now, RequestId(20), Class::RealTime, lab.now));
    assert_eq!(status(&lab, 1).excess, 0);
    lab.drain();
    let served: Vec<_> = lab.trace.iter().flat_map(|one| &one.requests).map(|id| id.0).collect();
    assert_eq!(served, [0, 1, 99, 20, 10]);
    assert_eq!(lab.missed, []);
}

/// A player waited for four seconds for 8 MiB beyond its rate, while 40 behind them were read. They were wanted sooner than could be
/// promised, and those behind not: given to these the rate was used up. And each time they were asked for again they went to
/// the end of the line.
#[test]
fn what_is_beyond_the_rate_is_given_in_the_order_in_which_it_was_asked_for() {
    let period = HD.time_for(UNIT);
    let begun = || {
        let mut lab = Lab::new(known());
        let reservation = admit(&mut lab, 1, fixed(HD));
        lab.enqueue(request(99, Class::BestEffort, 1 << 40, UNIT, None));
        lab.fill();
        for id in 0..5 {
            let deadline = Some(Instant::ZERO + period * (id + 1) as u32);
            lab.enqueue(Request { deadline, ..of_stream(1, id, id * UNIT.0, UNIT) });
        }
        (lab, reservation)
    };
    let excess = |lab: &Lab| status(lab, 1).excess;
    let promote = |lab: &mut Lab, id: u64, within: Duration| {
        let deadline = lab.now + within;
        assert!(lab.scheduler.promote(lab.now, RequestId(id), Class::RealTime, deadline));
    };
    let (at_once, later) = (Duration::from_millis(1), Duration::from_secs(5));
    // The third is wanted sooner than it can be had. So the fourth waits for it,...
    let (mut lab, _reservation) = begun();
    promote(&mut lab, 2, at_once);
    promote(&mut lab, 3, later);
    assert_eq!(excess(&lab), 3);
    // ...and becomes real time after it.
    lab.now = Instant::ZERO + period;
    lab.fill();
    assert_eq!(excess(&lab), 2);
    lab.drain();
    assert_eq!(by_class(&lab).0, [0, 1, 2]);
    // By when it was wanted then is by when it is wanted.
    let (mut lab, _reservation) = begun();
    promote(&mut lab, 2, at_once);
    promote(&mut lab, 3, period * 2);
    assert_eq!(excess(&lab), 3);
    // What is wanted sooner, as by a client that is elsewhere now, does not wait.
    let (mut lab, _reservation) = begun();
    promote(&mut lab, 4, period * 3 - NANOSECOND);
    assert_eq!(excess(&lab), 2);
    let (mut lab, _reservation) = begun();
    promote(&mut lab, 4, period * 3);
    assert_eq!(excess(&lab), 3);
}

/// A player that was refused, and admitted ten seconds later, never began: what it waited for was best effort, did not fit into the slack
/// of a full device, and did not draw on its reservation.
#[test]
fn what_was_best_effort_before_its_stream_was_admitted_draws_on_the_reservation() {
    for is_admitted in [true, false] {
        let mut lab = Lab::new(known());
        let _others: Vec<_> = (2..9).map(|stream| admit(&mut lab, stream, fixed(HD))).collect();
        lab.enqueue(Request { class: Class::BestEffort, ..of_stream(1, 1, 0, UNIT) });
        let reservation = is_admitted.then(|| admit(&mut lab, 1, fixed(HD)));
        let deadline = lab.now + Duration::from_millis(1);
        assert!(lab.scheduler.promote(lab.now, RequestId(1), Class::RealTime, deadline));
        assert_eq!(lab.scheduler.queued_of(Class::RealTime), usize::from(is_admitted));
        if let Some(reservation) = reservation {
            lab.drain();
            assert_eq!((lab.missed.as_slice(), status(&lab, 1).completed), ([].as_slice(), 1));
            lab.scheduler.release(lab.now, reservation);
        }
    }
}

#[test]
fn a_greedy_stream_harms_no_other_and_still_gets_what_it_was_promised() {
    let mut lab = Lab::new(known());
    let mut reservations: Vec<Reservation> =
        (0..7).map(|stream| admit(&mut lab, stream, fixed(HD))).collect();
    let period = reservations[0].terms().period;
    let mut next = 0;
    let mut own = BTreeMap::new();
    let mut releases: BTreeSet<(Instant, u64)> =
        (0..7).map(|stream| (Instant::ZERO + period * stream as u32 / 7, stream)).collect();
    // Stream 0 keeps 40 requests queued instead of one a period.
    let mut greedy = |lab: &mut Lab, own: &mut BTreeMap<RequestId, Instant>| {
        next += 1;
        own.insert(RequestId(next), Instant::FAR_FUTURE);
        lab.enqueue(of_stream(0, next, (next * 7919 % 4096) << 23, UNIT));
    };
    (0..40).for_each(|_| greedy(&mut lab, &mut own));
    let mut late = Vec::new();
    let mut other = 1_000_000;
    while lab.now < Instant::ZERO + Duration::from_secs(120) {
        lab.fill();
        let (release, stream) = *releases.first().expect("streams go on");
        if lab.next_completion().is_none_or(|completion| release < completion) {
            releases.pop_first();
            releases.insert((release + period, stream));
            lab.now = lab.now.max(release);
            if stream > 0 {
                other += 1;
                own.insert(RequestId(other), release + period);
                lab.enqueue(of_stream(stream, other, (other * 7919 % 4096) << 23, UNIT));
            }
        } else if let Some(dispatch) = lab.complete() {
            for id in dispatch.requests {
                let due = own.remove(&id).expect("it was asked for once");
                if lab.now > due {
                    late.push(id);
                }
                if due == Instant::FAR_FUTURE {
                    greedy(&mut lab, &mut own);
                }
            }
        }
    }
    assert_eq!(late, []);
    assert_eq!(lab.missed, []);
    let promised = lab.now.saturating_since(Instant::ZERO).as_secs_f64() * 12.5e6;
    let got = status(&lab, 0).bytes.0 as f64;
    // Its own rate, and what no other stream wants.
    assert!(got > promised, "{got} of {promised}");
    reservations.drain(..).for_each(|reservation| lab.scheduler.release(lab.now, reservation));
}

#[test]
fn a_seek_takes_back_what_waits_and_gives_the_budget_back() {
    let mut lab = Lab::new(known());
    let _reservation = admit(&mut lab, 1, fixed(HD));
    let _other = admit(&mut lab, 2, fixed(HD));
    for id in 0..8 {
        lab.enqueue(of_stream(1, id, id << 30, UNIT));
    }
    lab.enqueue(of_stream(2, 100, 0, UNIT));
    let mut cancelled = BTreeSet::new();
    let count = lab.scheduler.cancel_stream(lab.now, StreamId(1), |id| {
        cancelled.insert(id.0);
    });
    assert_eq!((count, cancelled), (8, (0..8).collect()));
    assert_eq!((lab.scheduler.queued(), lab.scheduler.counters().cancelled), (1, 8));
    // As if it had asked for nothing: two are within the rate again, and a third is not.
    for id in 10..13 {
        lab.enqueue(of_stream(1, id, id << 30, UNIT));
    }
    assert_eq!(status(&lab, 1).excess, 1);
    assert_eq!(lab.scheduler.cancel_stream(lab.now, StreamId(3), |_| panic!("there is none")), 0);
}

#[test]
fn streams_without_a_reservation_are_cancelled_as_a_whole_too_and_forgotten() {
    let mut lab = Lab::new(known());
    for id in 0..3 {
        lab.enqueue(of_stream(5, id, id << 30, UNIT));
    }
    assert_eq!(lab.scheduler.cancel_stream(lab.now, StreamId(5), |_| {}), 3);
    assert_eq!(lab.scheduler.cancel_stream(lab.now, StreamId(5), |_| {}), 0);
    assert_eq!(lab.scheduler.stream(StreamId(5)), None);
}

#[test]
fn real_time_without_a_reservation_is_given_what_fits_and_no_more() {
    let period = HD.time_for(UNIT);
    // With an eighth of the deadline kept, half of the cushion.
    let kept = period * 25 / 200;
    for (short, class) in [(Duration::ZERO, Class::RealTime), (Duration::from_micros(1), Class::BestEffort)] {
        let mut lab = Lab::new(Config {
            metadata_floor_percent: 0,
            best_effort_floor_percent: 0,
            idle_floor_percent: 0,
            ..known()
        });
        let _reservation = admit(&mut lab, 1, fixed(HD));
        let due = Instant::ZERO + (kept + DISK.of(UNIT) + NANOSECOND - short);
        lab.enqueue(Request { deadline: Some(due), ..request(1, Class::RealTime, 0, UNIT, None) });
        assert_eq!(lab.scheduler.queued_of(class), 1, "{class:?}");
    }
}

#[test]
fn pieces_of_one_request_are_served_in_one_command_and_reckoned_with_as_one() {
    let mut lab = Lab::new(known());
    let spec = StreamSpec { request: Some(Bytes::from_mib(32)), ..StreamSpec::reader(HD) };
    let reservation = admit(&mut lab, 1, spec);
    let _others: Vec<Reservation> = (2..6).map(|stream| admit(&mut lab, stream, spec)).collect();
    for stream in 1..6 {
        for piece in 0..4 {
            let offset = (stream << 40) + piece * 8 * MIB;
            lab.enqueue(of_stream(stream, stream * 10 + piece, offset, UNIT));
        }
    }
    lab.drain();
    let lengths: Vec<Bytes> = lab.trace.iter().map(|dispatch| dispatch.length).collect();
    assert_eq!(lengths, [Bytes::from_mib(32); 5]);
    assert_eq!(lab.missed, []);
    lab.scheduler.release(lab.now, reservation);
}

#[test]
fn a_player_that_began_early_keeps_its_lead_while_there_is_room() {
    let mut lab = Lab::new(known());
    let reservation = admit(&mut lab, 1, StreamSpec { request: Some(UNIT), ..StreamSpec::reader(HD) });
    let terms = reservation.terms();
    // It asks for its first request half a deadline earlier than promised, and for all that follow.
    for round in 0..20 {
        let release = Instant::ZERO + terms.period * round;
        lab.now = lab.now.max(release);
        let wish = release + terms.deadline / 2;
        let mut request = of_stream(1, u64::from(round), u64::from(round) << 30, UNIT);
        request.deadline = Some(wish);
        lab.enqueue(request);
        lab.fill();
        lab.complete().expect("it is served");
        assert!(lab.now <= wish);
    }
    assert_eq!(lab.missed, []);
    lab.scheduler.release(lab.now, reservation);
}

/// Of twelve players that began on an aged volume, the last was served as best effort from then on, and never began.
/// What others had been given half a second before their terms say would have been 40 ms late.
#[test]
fn what_was_given_early_is_taken_back_before_any_stream_gives_way() {
    for (early, demoted) in [(true, 0), (false, 1)] {
        let mut lab = Lab::new(Config { learning: false, ..known() });
        let millis = |millis| Some(Duration::from_millis(millis));
        let deadline = if early { fixed(HD).deadline } else { millis(300) };
        let first = admit(&mut lab, 1, StreamSpec { deadline, ..fixed(HD) });
        let second = admit(&mut lab, 2, StreamSpec { deadline: millis(340), ..fixed(HD) });
        lab.enqueue(request(1, Class::BestEffort, 0, UNIT, None));
        let long = lab.scheduler.dispatch(lab.now).expect("the device is idle");
        let wish = lab.now + Duration::from_millis(300);
        lab.enqueue(Request { deadline: early.then_some(wish), ..of_stream(1, 2, 1 << 30, UNIT) });
        lab.enqueue(Request { deadline: None, ..of_stream(2, 3, 1 << 40, UNIT) });
        // Each takes 65 ms. They have 120 together when the device is ready at last.
        lab.now += Duration::from_millis(220);
        lab.scheduler.complete(lab.now, long.id);
        assert_eq!(lab.scheduler.counters().demoted, demoted, "early: {early}");
        assert_eq!(state(&lab, 1) == StreamState::Active, early);
        lab.scheduler.release(lab.now, first);
        lab.scheduler.release(lab.now, second);
    }
}

// --- Recorders. ---

#[test]
fn recorders_meet_the_deadlines_of_their_buffers() {
    // Seven recorders, each with room for three requests: what is full is written while two more fill.
    let mut lab = Lab::new(Config { floor_base: FloorBase::Remainder, ..known() });
    let rate = HD;
    let spec = StreamSpec { request: Some(UNIT), ..StreamSpec::writer(rate) };
    let period = rate.time_for(UNIT);
    let terms: Vec<_> = (0..7).map(|stream| admit(&mut lab, stream, spec).terms()).collect();
    let buffer = terms[0].buffer();
    let mut releases: BTreeSet<(Instant, u64)> =
        (0..7).map(|stream| (Instant::ZERO + period * stream as u32 / 7, stream)).collect();
    let mut next = 0;
    while next < 700 {
        lab.fill();
        let (full_at, stream) = *releases.first().expect("recorders go on");
        if lab.next_completion().is_none_or(|completion| full_at < completion) {
            releases.pop_first();
            releases.insert((full_at + period, stream));
            lab.now = lab.now.max(full_at);
            next += 1;
            let deadline = Some(flush_deadline(full_at, buffer, UNIT, rate));
            let direction = Direction::Write;
            let offset = (next * 7919 % 4096) << 23;
            lab.enqueue(Request { direction, deadline, ..of_stream(stream, next, offset, UNIT) });
        } else {
            lab.complete();
        }
    }
    assert_eq!(lab.missed, []);
}

/// Of thirteen recorders on flash, of which nothing had been measured, one never got a reservation, and of two hundred forty-three
/// did not: a new volume puts them side by side, and short seeks, which on a disk say little of others, were all that
/// there was to learn from. Flash has none.
#[test]
fn flash_is_known_by_recorders_that_write_side_by_side() {
    let admitted = |device_size| {
        let mut lab = Lab::new(Config { device_size, ..Config::default() });
        lab.slower = 1.0 / 20.0;
        for round in 0..100 {
            let offset = (round % 10) << 29 | (round / 10) << 23;
            let write = request(round, Class::BestEffort, offset, UNIT, None);
            lab.enqueue(Request { direction: Direction::Write, ..write });
            lab.drain();
        }
        std::iter::from_fn(|| {
            let stream = StreamId(lab.scheduler.counters().admitted);
            lab.scheduler.admit(lab.now, stream, &StreamSpec::writer(HD)).ok()
        })
        .take(100)
        .count()
    };
    assert!(admitted(Bytes::ZERO) > 2 * admitted(Bytes::from_mib(8 << 20)));
}

// --- The life of a reservation. ---

#[test]
fn a_reservation_is_given_back_when_unused_and_regained_if_there_is_room() {
    let timeout = known().reservation_timeout;
    let mut lab = Lab::new(known());
    let full: Vec<Reservation> = std::iter::from_fn(|| {
        let stream = StreamId(lab.scheduler.counters().admitted);
        lab.scheduler.admit(lab.now, stream, &fixed(HD)).ok()
    })
    .collect();
    let count = full.len() as u64;
    let newcomer = StreamId(100);
    lab.now = Instant::ZERO + (timeout - NANOSECOND);
    assert!(lab.scheduler.admit(lab.now, newcomer, &fixed(HD)).is_err());
    // All but two stay in use.
    for stream in 2..count {
        lab.enqueue(of_stream(stream, stream, stream << 30, UNIT));
    }
    lab.now = Instant::ZERO + timeout;
    let reservation = lab.scheduler.admit(lab.now, newcomer, &fixed(HD)).expect("a place is free");
    assert_eq!(
        [0, 1, 2].map(|stream| state(&lab, stream)),
        [StreamState::Paused, StreamState::Paused, StreamState::Active]
    );
    // The first that comes back finds the other's place; the other finds none, and is served all the same.
    lab.enqueue(of_stream(0, 1000, 0, UNIT));
    lab.enqueue(of_stream(1, 1001, 0, UNIT));
    assert_eq!([0, 1].map(|stream| state(&lab, stream)), [StreamState::Active, StreamState::Demoted]);
    assert_eq!(lab.scheduler.queued_of(Class::BestEffort), 1);
    // When a stream leaves, it is restored after a while.
    lab.scheduler.release(lab.now, reservation);
    lab.drain();
    assert_eq!(lab.missed, []);
}

#[test]
fn a_stream_that_asks_seldom_is_not_away_until_two_periods_are_over() {
    // 32 MiB play for 21.5 s, longer than the time after which others are taken for away.
    let request = Bytes::from_mib(32);
    let rate = Bitrate(12_500_000);
    let period = rate.time_for(request);
    assert!(period > known().reservation_timeout);
    for (short, expected) in [(NANOSECOND, StreamState::Active), (Duration::ZERO, StreamState::Paused)] {
        let mut lab = Lab::new(known());
        let _reservation =
            admit(&mut lab, 1, StreamSpec { request: Some(request), ..StreamSpec::reader(rate) });
        lab.now = Instant::ZERO + (period * 2 - short);
        // Another stream comes, at which all are looked at.
        let _other = admit(&mut lab, 2, fixed(HD));
        assert_eq!(state(&lab, 1), expected);
    }
}

/// A player that jumped twice had taken three requests in two seconds. It was taken for away while it played them. When
/// it asked again, another stream had its place.
#[test]
fn a_stream_that_has_taken_ahead_is_not_away_until_two_periods_after_its_turn() {
    let request = Bytes::from_mib(32);
    let rate = Bitrate(12_500_000);
    let period = rate.time_for(request);
    for (short, expected) in [(NANOSECOND, StreamState::Active), (Duration::ZERO, StreamState::Paused)] {
        let mut lab = Lab::new(known());
        let _reservation =
            admit(&mut lab, 1, StreamSpec { request: Some(request), ..StreamSpec::reader(rate) });
        for jump in 0..2 {
            lab.enqueue(of_stream(1, jump, jump << 34, request));
        }
        lab.drain();
        lab.now = Instant::ZERO + (period * 3 - short);
        let _other = admit(&mut lab, 2, fixed(HD));
        assert_eq!(state(&lab, 1), expected);
    }
}

#[test]
fn a_rate_is_changed_if_it_fits_and_else_kept() {
    let mut lab = Lab::new(known());
    let mut first = admit(&mut lab, 1, StreamSpec::reader(HD));
    let _second = admit(&mut lab, 2, StreamSpec::reader(Bitrate::from_megabits(500)));
    let rejected = lab.scheduler.change(lab.now, &mut first, Bitrate::from_megabits(1000)).unwrap_err();
    assert!(matches!(rejected.why, Why::NoTime { .. }), "{rejected:?}");
    assert_eq!(status(&lab, 1).spec.rate, HD);
    let fits = rejected.fits.expect("there is room for more than it has");
    assert!(fits > HD, "{fits:?}");
    lab.scheduler.change(lab.now, &mut first, fits).expect("it was said to fit");
    assert_eq!(status(&lab, 1).spec.rate, fits);
    assert_eq!(Some(first.terms()), lab.scheduler.terms(StreamId(1)));
    lab.scheduler.change(lab.now, &mut first, Bitrate::from_megabits(25)).expect("less always fits");
    assert!(lab.scheduler.admit(lab.now, StreamId(3), &StreamSpec::reader(HD)).is_ok());
}

#[test]
fn a_name_is_admitted_once() {
    let mut lab = Lab::new(known());
    let reservation = admit(&mut lab, 1, fixed(HD));
    let again = lab.scheduler.admit(lab.now, StreamId(1), &fixed(HD)).unwrap_err();
    assert_eq!(again.why, Why::AlreadyAdmitted);
    lab.scheduler.release(lab.now, reservation);
    assert_eq!(lab.scheduler.stream(StreamId(1)), None);
    let _again = admit(&mut lab, 1, fixed(HD));
}

#[test]
fn what_was_admitted_is_rejected_and_released_is_told() {
    let mut lab = Lab::new(known());
    let reservation = admit(&mut lab, 1, fixed(HD));
    let terms = reservation.terms();
    let too_much = fixed(Bitrate::from_megabits(2000));
    let rejected = lab.scheduler.admit(lab.now, StreamId(2), &too_much).unwrap_err();
    lab.scheduler.release(lab.now, reservation);
    let events: Vec<Event> = std::iter::from_fn(|| lab.scheduler.pop_event()).collect();
    let at = Instant::ZERO;
    assert_eq!(
        events,
        [
            Event::Admitted { at, stream: StreamId(1), terms },
            Event::Rejected { at, stream: StreamId(2), why: rejected.why },
            Event::Released { at, stream: StreamId(1) },
        ]
    );
    let counters = lab.scheduler.counters();
    assert_eq!((counters.admitted, counters.rejected), (1, 1));
}

/// Where one more had room because requests became shorter, a stream that had to read further ahead as well kept its long ones until
/// it asked for something: one whose file is in memory does not, and more was promised than there is.
#[test]
fn a_stream_that_reads_further_ahead_in_shorter_requests_leaves_others_their_memory_at_once() {
    let memory = Bytes::from_mib(88);
    let mut lab = Lab::new(Config { buffer_memory: memory, ..Config::default() });
    let mut reservations = Vec::new();
    for (newest, megabits) in [200, 100, 200, 100].into_iter().enumerate() {
        let spec = StreamSpec::reader(Bitrate::from_megabits(megabits));
        reservations.push(admit(&mut lab, newest as u64, spec));
        let terms: Vec<_> =
            (0..=newest).map(|stream| lab.scheduler.terms(StreamId(stream as u64)).unwrap()).collect();
        let promised: u64 = terms.iter().map(|terms| terms.buffer().0).sum();
        assert!(promised <= memory.0, "{promised} of {memory}, with {}: {terms:?}", newest + 1);
        for (stream, terms) in terms.iter().enumerate() {
            let id = (newest * 10 + stream) as u64;
            lab.enqueue(of_stream(stream as u64, id, id << 30, terms.request));
        }
        lab.drain();
        lab.now += Duration::from_millis(300);
    }
    for reservation in reservations {
        lab.scheduler.release(lab.now, reservation);
    }
}

// --- Overload. ---

/// Streams of the given priorities play on a device that becomes `slower` times as slow after 20 s and recovers after
/// 60 s. Returns the streams' misses after the first seconds of slowness, and which were demoted and restored.
fn degrade(priorities: &[u8], slower: f64) -> (BTreeMap<u64, u64>, Vec<u64>, Vec<u64>) {
    let mut lab = Lab::new(Config { event_capacity: 1 << 16, ..Config::default() });
    let streams = priorities.len() as u64;
    for (stream, priority) in priorities.iter().enumerate() {
        let spec = StreamSpec { priority: *priority, ..fixed(HD) };
        let spec = StreamSpec { deadline: Some(HD.time_for(UNIT) * 2), ..spec };
        let _ = admit(&mut lab, stream as u64, spec);
    }
    let period = HD.time_for(UNIT);
    let mut releases: BTreeSet<(Instant, u64)> = (0..streams)
        .map(|stream| (Instant::ZERO + period * stream as u32 / streams as u32, stream))
        .collect();
    let at = |second| Instant::ZERO + Duration::from_secs(second);
    let (mut next, mut misses) = (0, BTreeMap::new());
    let (mut demoted, mut restored) = (Vec::new(), Vec::new());
    while lab.now < at(100) {
        let is_slow = (at(20)..at(60)).contains(&lab.now);
        lab.slower = if is_slow { slower } else { 1.0 };
        lab.fill();
        let (release, stream) = *releases.first().expect("streams go on");
        if lab.next_completion().is_none_or(|completion| release < completion) {
            releases.pop_first();
            releases.insert((release + period, stream));
            lab.now = lab.now.max(release);
            next += 1;
            lab.enqueue(of_stream(stream, next, (next * 7919 % 4096) << 23, UNIT));
        } else {
            lab.complete();
        }
        for event in lab.events.drain(..) {
            match event {
                Event::Missed { stream: Some(stream), .. } => *misses.entry(stream.0).or_default() += 1,
                Event::Demoted { stream, .. } => demoted.push(stream.0),
                Event::Restored { stream, .. } => restored.push(stream.0),
                _ => {}
            }
        }
    }
    (misses, demoted, restored)
}

#[test]
fn when_the_device_degrades_the_lowest_go_first_and_the_rest_stay_clean() {
    // Eight take 78 %; at half again as much time, 117 %: two or three have to go, and no other is late.
    let (misses, demoted, restored) = degrade(&[9, 9, 1, 9, 9, 5, 9, 9], 1.5);
    assert_eq!(misses, BTreeMap::new());
    assert_eq!(demoted[..2], [2, 5], "{demoted:?}");
    assert!(demoted.len() <= 4, "{demoted:?}");
    let back: BTreeSet<u64> = restored.iter().copied().collect();
    assert_eq!(back, demoted.iter().copied().collect());
}

#[test]
fn among_equals_the_newest_go_first() {
    let (misses, demoted, _) = degrade(&[9; 8], 1.5);
    assert_eq!(misses, BTreeMap::new());
    assert_eq!(demoted[..2], [7, 6], "{demoted:?}");
}

/// Two play, and so many of the device's commands, one in three seconds, take twelve times as long as the others. Why a third player is
/// turned away after that, if it is.
fn refusal_after(hiccups: u64) -> Option<Why> {
    let mut lab = Lab::new(known());
    let _ = (admit(&mut lab, 1, fixed(HD)), admit(&mut lab, 2, fixed(HD)));
    let period = HD.time_for(UNIT);
    for number in 0..hiccups * 4 {
        let release = lab.now;
        (1..=2).for_each(|stream| lab.enqueue(of_stream(stream, 2 * number + stream, number << 30, UNIT)));
        let is_long = number % 4 == 0;
        lab.slower = if is_long { 12.0 } else { 1.0 };
        lab.fill();
        lab.slower = 1.0;
        lab.drain();
        lab.now = lab.now.max(release + period);
    }
    assert!(lab.missed.len() as u64 >= hiccups, "a stream waits for each of them");
    let now = lab.now;
    lab.scheduler.admit(now, StreamId(3), &fixed(HD)).err().map(|rejected| rejected.why)
}

/// The boundary pair. One command took 0.3 s in a laboratory in which four played, and a request of one of them was 76
/// ms late. All streams that came in the eight seconds after that were turned away. They played without a reservation,
/// and lost units though six tenths of the device were free.
#[test]
fn a_device_that_holds_its_breath_once_turns_no_stream_away() {
    for hiccups in 0..=2 {
        assert_eq!(refusal_after(hiccups), None, "{hiccups}");
    }
    assert!(matches!(refusal_after(3), Some(Why::Congested { .. })));
}

#[test]
fn no_stream_gives_way_for_a_deadline_that_would_be_as_late_without_it() {
    // A copy holds the device for longer than expected, and a frame of an important stream is lost. The frames of the
    // others are due later. A stream that lost its guarantee for that was late itself, and helped no other.
    for (second_due, demoted) in [(Duration::from_secs(2), false), (Duration::from_millis(280), true)] {
        let mut lab = Lab::new(known());
        let first = StreamSpec { deadline: Some(Duration::from_millis(300)), ..fixed(HD) };
        let first = StreamSpec { priority: 200, ..first };
        let second = StreamSpec { deadline: Some(second_due), ..fixed(HD) };
        let _ = (admit(&mut lab, 1, first), admit(&mut lab, 2, second));
        lab.enqueue(request(99, Class::BestEffort, 1 << 40, UNIT, None));
        lab.slower = 180.0 / DISK.of(UNIT).as_secs_f64() / 1000.0;
        lab.fill();
        lab.enqueue(of_stream(1, 1, 0, UNIT));
        lab.enqueue(of_stream(2, 2, 1 << 30, UNIT));
        lab.complete();
        // 120 ms and 100 ms are left; each takes 65 ms.
        let states = [1, 2].map(|stream| state(&lab, stream) == StreamState::Demoted);
        assert_eq!(states, [false, demoted]);
    }
}

#[test]
fn no_stream_gives_way_because_a_small_write_is_answered_while_a_long_read_goes_on() {
    // A controller answers a write of the log at once. What it had read by then was reckoned as still to be read, and by that
    // alone a deadline was in danger.
    // Three such streams fit beside floors of 16 %.
    let floors = Config { best_effort_floor_percent: 5, ..known() };
    let config = Config { queue_depth: 4, blocking_percent: 40, cushion_percent: 0, ..floors };
    let mut lab = Lab::new(config);
    let spec = StreamSpec { deadline: Some(Duration::from_millis(420)), ..fixed(HD) };
    let _ = [1, 2, 3].map(|stream| admit(&mut lab, stream, spec));
    lab.enqueue(request(99, Class::BestEffort, 1 << 40, UNIT, None));
    let copy = lab.scheduler.dispatch(lab.now).expect("there is nothing else");
    for stream in [1, 2, 3] {
        lab.enqueue(of_stream(stream, stream, stream << 30, UNIT));
    }
    let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
    lab.scheduler.complete(at(185), copy.id);
    // 65 ms each, and 39 ms to spare.
    let read = lab.scheduler.dispatch(at(185)).expect("the device is idle");
    let log = request(4, Class::Metadata, 2 << 40, Bytes::from_kib(4), None);
    lab.scheduler.enqueue(at(245), Request { direction: Direction::Write, ..log });
    let log = lab.scheduler.dispatch(at(245)).expect("it fits into the slack");
    assert_eq!((&read.requests[..], &log.requests[..]), (&[RequestId(1)][..], &[RequestId(4)][..]));
    let active = |lab: &Lab| [1, 2, 3].map(|stream| state(lab, stream) == StreamState::Active);
    lab.scheduler.complete(at(246), log.id);
    assert_eq!(active(&lab), [true; 3]);
    // When the read itself is that late, a deadline is in danger.
    lab.scheduler.complete(at(305), read.id);
    assert_eq!(active(&lab), [true, false, true]);
}

#[test]
fn a_command_to_which_the_device_prefers_others_is_not_passed_up_to_its_deadline() {
    // The controller of an array serves reads while a write waits for room in its cache. A copy that read went on while
    // a recorder's write was at the device, until it was late: each read alone would have left it time enough.
    let mut lab = Lab::new(Config { queue_depth: 4, ..known() });
    let deadline = Duration::from_secs(4);
    let spec = StreamSpec { direction: Direction::Write, deadline: Some(deadline), ..fixed(HD) };
    let _ = admit(&mut lab, 1, spec);
    lab.enqueue(Request { direction: Direction::Write, ..of_stream(1, 0, 0, UNIT) });
    let write = lab.scheduler.dispatch(lab.now).expect("there is nothing else");
    let (due, cost) = (lab.now + deadline, DISK.of(UNIT));
    let mut passed = 0;
    let left = loop {
        passed += 1;
        lab.enqueue(request(passed, Class::BestEffort, passed << 30, UNIT, None));
        let Some(read) = lab.scheduler.dispatch(lab.now) else { break due.saturating_since(lab.now) };
        lab.now += cost;
        lab.scheduler.complete(lab.now, read.id);
    };
    // A quarter of the shortest deadline is the cushion.
    let kept = deadline / 4 + cost * 2;
    assert!((kept - cost..kept).contains(&left), "{left:?} {kept:?}");
    lab.scheduler.complete(lab.now, write.id);
    assert!(lab.scheduler.dispatch(lab.now).is_some());
}

#[test]
fn thirteen_streams_of_100_megabits_play_on_a_device_that_carries_fourteen_in_sequence() {
    // 14.4 streams if nothing ever moved.
    let array = ServiceTime { access: Duration::from_millis(16), bytes_per_second: Bytes(180_000_000) };
    let mut lab = Lab::new(Config { read: array, write: array, ..known() });
    let reservations: Vec<Reservation> =
        (0..13).map(|stream| admit(&mut lab, stream, StreamSpec::reader(HD))).collect();
    let rejected = lab.scheduler.admit(lab.now, StreamId(13), &StreamSpec::reader(HD)).unwrap_err();
    assert!(matches!(rejected.why, Why::NoTime { .. }), "{rejected}");
    let terms = reservations[0].terms();
    let mut releases: BTreeSet<(Instant, u64)> = (0..13).map(|stream| (Instant::ZERO, stream)).collect();
    let (mut id, mut copied) = (0, Bytes::ZERO);
    for copy in 0..4 {
        lab.enqueue(request(1_000_000 + copy, Class::BestEffort, copy << 36, UNIT, None));
    }
    let end = Instant::ZERO + Duration::from_secs(600);
    while lab.now < end {
        lab.fill();
        let (release, stream) = *releases.first().expect("streams go on");
        if lab.next_completion().is_none_or(|completion| release < completion) {
            releases.pop_first();
            releases.insert((release + terms.period, stream));
            lab.now = lab.now.max(release);
            id += 1;
            lab.enqueue(of_stream(stream, id, (id * 7919 % 4096) << 26, terms.request));
        } else if let Some(dispatch) = lab.complete() {
            for request_id in dispatch.requests.iter().filter(|id| id.0 >= 1_000_000) {
                copied += UNIT;
                let offset = (request_id.0 * 7919 % 4096) << 26;
                lab.enqueue(request(request_id.0 + 10, Class::BestEffort, offset, UNIT, None));
            }
        }
    }
    assert_eq!(lab.missed, []);
    // The streams take 13 × 389 ms of 5.37 s; a copy has the rest, and at least 85 % of it.
    let left = 600.0 * (1.0 - 13.0 * array.of(terms.request).as_secs_f64() / terms.period.as_secs_f64());
    let got = copied.0 as f64 / UNIT.0 as f64 * array.of(UNIT).as_secs_f64();
    assert!(got >= 0.85 * left, "{got} s of {left} s");
    assert_eq!(Some(terms), lab.scheduler.terms(StreamId(0)), "no stream was resized");
}

/// Thirteen players were admitted beside a copy, which left a hundredth of the time. In two rehearsals of twelve one of
/// those that had just begun was late. Thirteen beside two copies lost 203 units in twelve. Beside an office, of which
/// all was in memory for five seconds, thirteen lost ten. A stream that was promised something before the copy came
/// keeps it, also when it has paused.
#[test]
fn beside_best_effort_readers_are_not_promised_all() {
    // Thirteen take 990 thousandths of it.
    let spec = StreamSpec { request: Some(Bytes::from_mib(32)), ..StreamSpec::reader(HD) };
    let admitted = |is_copied: bool, documents: u32| {
        let mut lab = Lab::new(Config { read: ARRAY, write: ARRAY, ..known() });
        // A document takes 17.7 ms, and 80 are noticed.
        lab.scheduler.note_accepted(lab.now, documents, Bytes(u64::from(documents) * (48 << 10)));
        if is_copied {
            (0..2).for_each(|copy| {
                lab.enqueue(request(copy, Class::BestEffort, copy << 36, UNIT, None));
            });
        }
        let try_all = |lab: &mut Lab| -> Vec<Reservation> {
            let mut admit = |stream| lab.scheduler.admit(lab.now, StreamId(stream), &spec);
            (0..20).map_while(|stream| admit(stream).ok()).collect()
        };
        let reservations = try_all(&mut lab);
        (lab, reservations)
    };
    let (mut alone, mut reservations) = admitted(false, 4);
    for (is_copied, documents) in [(true, 0), (false, 5)] {
        assert_eq!((reservations.len(), admitted(is_copied, documents).1.len()), (13, 12));
    }

    // The copy comes later. They play on, and one of them pauses.
    let terms = reservations[0].terms();
    for round in 0..4_u64 {
        alone.now = alone.now.max(Instant::ZERO + terms.period * round as u32);
        alone.enqueue(request(100 + round, Class::BestEffort, round << 36, UNIT, None));
        for stream in u64::from(round > 0)..13 {
            let id = 1000 + round * 100 + stream;
            alone.enqueue(of_stream(stream, id, id << 26, terms.request));
        }
        alone.drain();
    }
    alone.enqueue(request(100, Class::BestEffort, 1 << 36, UNIT, None));
    alone.enqueue(request(101, Class::BestEffort, 2 << 36, UNIT, None));
    let state = |lab: &Lab, stream| lab.scheduler.stream(StreamId(stream)).map(|status| status.state);
    assert_eq!(state(&alone, 0), Some(StreamState::Paused));
    alone.enqueue(of_stream(0, 5000, 0, reservations[0].terms().request));
    assert!((0..13).all(|stream| state(&alone, stream) == Some(StreamState::Active)));

    // A stream that leaves and comes back is new.
    alone.scheduler.release(alone.now, reservations.remove(12));
    assert!(alone.scheduler.admit(alone.now, StreamId(99), &spec).is_err());
}

/// Twelve players were admitted beside two copies and random reads. In four of twenty-four rehearsals one of them was
/// late in its first seconds: each random read was a seek before what they waited for. A player that begins looks at
/// two places itself, and does not search.
#[test]
fn beside_a_search_readers_are_promised_less() {
    let spec = StreamSpec { request: Some(Bytes::from_mib(32)), ..StreamSpec::reader(HD) };
    // How many streams look at how many places each, before the others are admitted.
    for (searchers, places, expected) in [(1, 2, 13), (13, 2, 13), (1, 10, 10)] {
        let mut lab = Lab::new(Config { read: ARRAY, write: ARRAY, ..known() });
        let admit =
            |lab: &mut Lab, stream| lab.scheduler.admit(lab.now, StreamId(stream), &spec).map_err(|_| ());
        let _first = admit(&mut lab, 0).expect("it fits");
        for id in 0..places * searchers {
            let wanted = Some(lab.now + Duration::from_millis(1));
            let place = request(100 + id, Class::RealTime, id << 36, Bytes::from_kib(64), wanted);
            lab.enqueue(Request { stream: Some(StreamId(50 + id % searchers)), ..place });
            lab.drain();
        }
        let others: Vec<_> = (1..20).map_while(|stream| admit(&mut lab, stream).ok()).collect();
        assert_eq!(1 + others.len(), expected, "{searchers} looked at {places} places each");
    }
}
