//! What players want earlier than their terms promise: when they begin, and when they jump.

mod lab;

use lab::{Lab, known, request};
use rtsched::{Class, Config, Reason, Request, RequestId, Reservation, StreamId, StreamSpec};
use units::{Bitrate, Bytes, Duration, Instant};

const HD: Bitrate = Bitrate::from_megabits(100);
const UNIT: Bytes = Bytes::from_mib(8);

fn lab() -> Lab {
    Lab::new(known())
}

fn wanted(stream: u64, id: u64, offset: u64, within: Duration) -> Request {
    let deadline = Some(Instant::ZERO + within);
    Request { stream: Some(StreamId(stream)), ..request(id, Class::RealTime, offset, UNIT, deadline) }
}

fn admit(lab: &mut Lab, stream: u64, spec: StreamSpec) -> Reservation {
    lab.scheduler.admit(lab.now, StreamId(stream), &spec).expect("it fits")
}

/// 8 MiB every 671 ms, due a period after they are asked for.
fn admit_fixed(lab: &mut Lab, stream: u64) -> Reservation {
    let deadline = Some(HD.time_for(UNIT));
    let spec = StreamSpec { request: Some(UNIT), deadline, ..StreamSpec::reader(HD) };
    admit(lab, stream, spec)
}

/// The same, and it has had all the lead that it can be given: what it wants early remains a wish.
fn admit_without_lead(lab: &mut Lab, stream: u64) -> Reservation {
    let reservation = admit_fixed(lab, stream);
    let first = stream * 100;
    for (id, wish) in [(first + 1, HD.time_for(UNIT)), (first + 2, Duration::from_millis(1))] {
        lab.enqueue(wanted(stream, id, id << 40, wish));
    }
    for _ in 0..2 {
        let dispatch = lab.scheduler.dispatch(lab.now).expect("both wait");
        lab.scheduler.complete(lab.now, dispatch.id);
    }
    reservation
}

/// A player that jumped beside a copy waited for its picture up to its terms' deadline: what it wanted could not be
/// promised, and the copy went first as long as that deadline held.
#[test]
fn what_is_wanted_before_it_is_due_goes_before_a_copy_where_deadlines_bear_it() {
    for (waited, first) in
        [(Duration::ZERO, (1, Reason::Slack)), (Duration::from_millis(200), (3, Reason::EarliestDeadline))]
    {
        let mut lab = lab();
        let _reservation = admit_fixed(&mut lab, 1);
        let deadline = Some(Duration::from_millis(300));
        let spec = StreamSpec { request: Some(UNIT), deadline, ..StreamSpec::reader(HD) };
        let _other = admit(&mut lab, 3, spec);
        lab.enqueue(request(2, Class::BestEffort, 0, UNIT, None));
        lab.enqueue(Request { deadline: None, ..wanted(3, 3, 1 << 41, Duration::ZERO) });
        lab.enqueue(wanted(1, 1, 1 << 40, Duration::from_millis(1)));
        // After that, it goes before nothing that is due first.
        lab.now += waited;
        let dispatch = lab.scheduler.dispatch(lab.now).expect("something waits");
        assert_eq!((dispatch.requests[0].0, dispatch.reason), first);
    }
}

/// A player that began to play before it had read ahead was given its lead whole or not at all: 4 beside a copy had late
/// frames, because all wanted a little more than there is to give.
#[test]
fn a_stream_that_wants_more_of_an_advance_than_its_terms_are_long_is_given_that_much() {
    let period = HD.time_for(UNIT);
    for (after, missed) in [(Duration::ZERO, 0), (Duration::from_nanos(1), 2)] {
        let mut lab = lab();
        let _reservation = admit_fixed(&mut lab, 1);
        lab.enqueue(wanted(1, 1, 0, period));
        // By its terms due two periods from now, and wanted at once: a lead of one is what it can have.
        lab.enqueue(wanted(1, 2, 1 << 40, Duration::from_millis(1)));
        for _ in 0..2 {
            let dispatch = lab.scheduler.dispatch(lab.now).expect("both wait");
            lab.scheduler.complete(Instant::ZERO + period + after, dispatch.id);
        }
        let status = lab.scheduler.stream(StreamId(1)).expect("it holds a reservation");
        assert_eq!(status.missed, missed);
    }
}

/// A player's first requests come before its admission. They were served apart from those behind them, so each start cost a
/// full device two short commands more.
#[test]
fn what_was_asked_for_before_the_admission_is_served_with_what_follows_it() {
    let mut lab = lab();
    let _other = admit_fixed(&mut lab, 2);
    // A copy at the device, so that nothing is served meanwhile.
    lab.enqueue(request(99, Class::BestEffort, 1 << 41, UNIT, None));
    let copy = lab.scheduler.dispatch(lab.now).expect("it waits");
    let soon = Duration::from_millis(500);
    lab.enqueue(wanted(1, 1, 0, soon));
    lab.enqueue(request(50, Class::BestEffort, 3 << 40, UNIT, None));
    let spec = StreamSpec { request: Some(Bytes::from_mib(24)), ..StreamSpec::reader(HD) };
    let _reservation = admit(&mut lab, 1, spec);
    lab.enqueue(wanted(1, 2, UNIT.0, soon));
    lab.enqueue(wanted(1, 3, UNIT.0 * 2, soon));
    lab.scheduler.complete(lab.now, copy.id);
    let dispatch = lab.scheduler.dispatch(lab.now).expect("they wait");
    assert_eq!(dispatch.requests.iter().map(|id| id.0).collect::<Vec<_>>(), [1, 2, 3]);
}

/// Requests without a stream waited while players read further ahead than they needed for seconds. A player whose rate
/// was not known yet was late beside seven others, and a copy beside eleven got an eighth of what they left.
#[test]
fn what_is_wanted_only_after_best_effort_may_have_waited_does_not_go_before_it() {
    let best_effort_latency = Duration::from_millis(300);
    for (wish, first) in [(best_effort_latency, 3), (best_effort_latency + Duration::from_nanos(1), 2)] {
        let mut lab = Lab::new(Config { learning: false, best_effort_latency, ..Config::default() });
        let _reservation = admit_without_lead(&mut lab, 1);
        lab.enqueue(request(2, Class::BestEffort, 0, UNIT, None));
        lab.enqueue(wanted(1, 3, 1 << 40, wish));
        let dispatch = lab.scheduler.dispatch(lab.now).expect("both wait");
        assert_eq!(dispatch.requests[0].0, first, "{wish:?}");
    }
}

/// Of ten players whose rates were found out one after another, the last ones lost units. Those that were known already
/// were read three seconds ahead before what the others waited for. A refused player that has a stream has no part in
/// it: of fourteen players thirteen lost units to the fourteenth.
#[test]
fn a_possible_player_goes_before_what_a_stream_wants_more_than_a_second_later() {
    let due = Duration::from_millis(100);
    let second = due + Duration::from_secs(1);
    let later = second + Duration::from_nanos(1);
    for (wish, refused, first) in [(later, None, 2), (second, None, 3), (later, Some(StreamId(9)), 3)] {
        for is_expedited in [false, true] {
            let mut lab = lab();
            let _reservation = admit_without_lead(&mut lab, 1);
            lab.enqueue(wanted(1, 3, 1 << 40, wish));
            let deadline = Some(Instant::ZERO + due).filter(|_| !is_expedited);
            lab.enqueue(Request { stream: refused, ..request(2, Class::BestEffort, 0, UNIT, deadline) });
            if is_expedited {
                lab.scheduler.promote(lab.now, RequestId(2), Class::BestEffort, Instant::ZERO + due);
            }
            let dispatch = lab.scheduler.dispatch(lab.now).expect("both wait");
            assert_eq!(dispatch.requests[0].0, first, "{wish:?} {refused:?} {is_expedited}");
        }
    }
}

/// A player's rate was found out while it played. What it had been read ahead of until then stayed best effort, behind what
/// its own stream asked for afterwards: it waited for 8 MiB while 32 behind them were read.
#[test]
fn what_had_no_stream_is_that_of_the_stream_that_comes_of_it() {
    for (is_assigned, first) in [(true, [1, 2].as_slice()), (false, [2].as_slice())] {
        let mut lab = lab();
        let spec = StreamSpec { request: Some(Bytes::from_mib(24)), ..StreamSpec::reader(HD) };
        lab.enqueue(request(1, Class::BestEffort, 0, UNIT, None));
        let _reservation = admit(&mut lab, 1, spec);
        let deadline = lab.now + Duration::from_millis(500);
        if is_assigned {
            assert!(lab.scheduler.assign(lab.now, RequestId(1), StreamId(1), deadline));
            assert!(!lab.scheduler.assign(lab.now, RequestId(1), StreamId(2), deadline), "it has a stream");
            assert!(!lab.scheduler.assign(lab.now, RequestId(7), StreamId(1), deadline), "it is not there");
        }
        lab.enqueue(wanted(1, 2, UNIT.0, Duration::from_millis(500)));
        let dispatch = lab.scheduler.dispatch(lab.now).expect("both wait");
        assert_eq!(dispatch.requests.iter().map(|id| id.0).collect::<Vec<_>>(), first);
    }
}

/// The first frames that a player of frames asked for were each a file's own stream, before they were known to be
/// frames. They stayed so, and each was read for itself, though its neighbours were asked for with it. Of 1.5 s in
/// which six such players began, 0.4 went into such accesses.
#[test]
fn what_was_of_a_stream_without_a_reservation_is_the_streams_that_comes_of_it() {
    let mut lab = lab();
    let spec = StreamSpec { request: Some(Bytes::from_mib(24)), ..StreamSpec::reader(HD) };
    lab.enqueue(wanted(7, 1, 0, Duration::from_millis(500)));
    let _reservation = admit(&mut lab, 1, spec);
    let deadline = lab.now + Duration::from_millis(500);
    assert!(lab.scheduler.assign(lab.now, RequestId(1), StreamId(1), deadline));
    assert!(!lab.scheduler.assign(lab.now, RequestId(1), StreamId(1), deadline), "it is its own");
    assert!(!lab.scheduler.assign(lab.now, RequestId(1), StreamId(2), deadline), "it has a reservation");
    lab.enqueue(wanted(1, 2, UNIT.0, Duration::from_millis(500)));
    let dispatch = lab.scheduler.dispatch(lab.now).expect("both wait");
    assert_eq!(dispatch.requests.iter().map(|id| id.0).collect::<Vec<_>>(), [1, 2]);
}

/// A stream whose wish was granted stood behind one whose wish was not, though it was wanted first: only the others were
/// looked at. Its first part came after its second.
#[test]
fn what_was_granted_keeps_its_turn_among_what_is_wanted() {
    for (wish, first) in [(Duration::from_millis(600), 10), (Duration::from_millis(400), 3)] {
        let mut lab = lab();
        let _reservation = admit_without_lead(&mut lab, 1);
        let _other = admit(&mut lab, 2, StreamSpec { request: Some(UNIT), ..StreamSpec::reader(HD) });
        lab.enqueue(wanted(2, 10, 1 << 41, Duration::from_millis(500)));
        lab.enqueue(wanted(1, 3, 3 << 40, wish));
        let dispatch = lab.scheduler.dispatch(lab.now).expect("both wait");
        assert_eq!(dispatch.requests[0].0, first);
    }
}

/// All that a player began with went with its first picture, before others whose buffers ran dry meanwhile.
#[test]
fn what_is_wanted_much_later_does_not_go_along_before_what_others_want() {
    let (soon, later) = (Duration::from_millis(1), Duration::from_millis(1200));
    for (wish, first) in [(later - soon, [1].as_slice()), (later + soon, [1, 2, 3].as_slice())] {
        let mut lab = lab();
        let spec = StreamSpec { request: Some(Bytes::from_mib(24)), ..StreamSpec::reader(HD) };
        let _reservation = admit(&mut lab, 1, spec);
        let _other = admit_without_lead(&mut lab, 2);
        lab.enqueue(wanted(2, 10, 5 << 40, wish));
        lab.enqueue(wanted(1, 1, 0, Duration::ZERO));
        lab.enqueue(wanted(1, 2, UNIT.0, later));
        lab.enqueue(wanted(1, 3, UNIT.0 * 2, later));
        let dispatch = lab.scheduler.dispatch(lab.now).expect("they wait");
        assert_eq!(dispatch.requests.iter().map(|id| id.0).collect::<Vec<_>>(), first);
    }
}

/// With its first second a player took the next one and a half along, 30 MiB, before others that began had their first.
#[test]
fn what_is_wanted_an_eighth_of_a_period_later_goes_along_and_not_a_nanosecond_more() {
    let nanosecond = Duration::from_nanos(1);
    for (more, served) in [(Duration::ZERO, [1, 2].as_slice()), (nanosecond, [1].as_slice())] {
        let mut lab = lab();
        let spec = StreamSpec { request: Some(Bytes::from_mib(24)), ..StreamSpec::reader(HD) };
        let _reservation = admit(&mut lab, 1, spec);
        let _other = admit_without_lead(&mut lab, 2);
        let (first, eighth) = (Duration::from_millis(1), HD.time_for(Bytes::from_mib(24)) / 8);
        lab.enqueue(wanted(2, 10, 5 << 40, first * 2));
        lab.enqueue(wanted(1, 1, 0, first));
        lab.enqueue(wanted(1, 2, UNIT.0, first + eighth + more));
        let dispatch = lab.scheduler.dispatch(lab.now).expect("they wait");
        assert_eq!(dispatch.requests.iter().map(|id| id.0).collect::<Vec<_>>(), served);
    }
}

/// Beside a small write at the device, 32 MiB of a player went in pieces of 8: an access for each, which was not
/// reckoned with.
#[test]
fn a_command_that_was_promised_is_not_cut_short_for_what_is_at_the_device() {
    let mut lab = lab();
    let deadline = Some(Duration::from_millis(1500));
    let spec = StreamSpec { request: Some(Bytes::from_mib(24)), deadline, ..StreamSpec::reader(HD) };
    let _reservation = admit(&mut lab, 1, spec);
    lab.enqueue(request(99, Class::BestEffort, 1 << 41, Bytes::from_kib(4), None));
    let small = lab.scheduler.dispatch(lab.now).expect("it waits");
    for unit in 0..4 {
        lab.enqueue(Request { deadline: None, ..wanted(1, unit, unit * UNIT.0, Duration::ZERO) });
    }
    // Now the command begins with what continued it.
    lab.scheduler.cancel(lab.now, rtsched::RequestId(0));
    let dispatch = lab.scheduler.dispatch(lab.now);
    let dispatch = dispatch.or_else(|| {
        lab.scheduler.complete(lab.now, small.id);
        lab.scheduler.dispatch(lab.now)
    });
    assert_eq!(dispatch.map(|dispatch| dispatch.length), Some(Bytes::from_mib(24)));
}

/// What a player read ahead beyond its rate was best effort for up to two seconds. When the player came near it, that became
/// its deadline, long before it was wanted, and went before others whose buffers ran dry.
#[test]
fn what_is_promoted_is_due_when_it_is_wanted_not_when_it_would_have_starved() {
    for (wish, first) in [(Duration::from_millis(3500), 2), (Duration::from_millis(2900), 1)] {
        let mut lab = lab();
        let _reservation = admit_fixed(&mut lab, 3);
        lab.enqueue(request(1, Class::BestEffort, 0, UNIT, None));
        let due = Some(Instant::ZERO + Duration::from_secs(3));
        lab.enqueue(request(2, Class::RealTime, 1 << 40, UNIT, due));
        assert!(lab.scheduler.promote(lab.now, rtsched::RequestId(1), Class::RealTime, Instant::ZERO + wish));
        // Nothing can be chosen any more but by deadline.
        lab.now += Duration::from_millis(2880);
        let dispatch = lab.scheduler.dispatch(lab.now).expect("both wait");
        assert_eq!((dispatch.requests[0].0, dispatch.reason), (first, Reason::EarliestDeadline));
    }
}

/// A player of 400 Mbit/s waited for 8 MiB while the 56 behind them were read: it had asked for both by their times, the first
/// could not be promised so soon, and the second, reckoned without an access, could.
#[test]
fn what_goes_on_behind_another_piece_is_not_promised_before_it() {
    let mut lab = lab();
    let deadline = Some(Duration::from_millis(1500));
    let spec = StreamSpec { request: Some(Bytes::from_mib(24)), deadline, ..StreamSpec::reader(HD) };
    let _reservation = admit(&mut lab, 1, spec);
    for unit in 0..3 {
        lab.enqueue(Request { deadline: None, ..wanted(1, unit, unit * UNIT.0, Duration::ZERO) });
    }
    for (id, wanted) in [(0, 1), (1, 400)] {
        let wanted = lab.now + Duration::from_millis(wanted);
        assert!(lab.scheduler.promote(lab.now, RequestId(id), Class::RealTime, wanted));
    }
    // There is no time left for anything before what was promised for 400 ms.
    lab.now += Duration::from_millis(380);
    let dispatch = lab.scheduler.dispatch(lab.now).expect("they wait");
    assert_eq!(dispatch.requests.iter().map(|id| id.0).collect::<Vec<_>>(), [0, 1, 2]);
}

/// A film began in 2.2 s where others took 1.5: the frames that it waited for could not be promised so soon, those behind them, which
/// lay elsewhere and were fewer, could, and were read before. Only what is wanted later than they does not wait for them.
#[test]
fn what_is_wanted_behind_another_piece_that_lies_elsewhere_is_not_promised_before_it() {
    for (wish, first) in [(400, 0), (401, 1)] {
        let mut lab = lab();
        let deadline = Some(Duration::from_millis(2200));
        let spec = StreamSpec { request: Some(Bytes::from_mib(24)), deadline, ..StreamSpec::reader(HD) };
        let _reservation = admit(&mut lab, 1, spec);
        for (id, length) in [(0, Bytes::from_mib(24)), (1, UNIT)] {
            lab.enqueue(Request { deadline: None, length, ..wanted(1, id, id << 40, Duration::ZERO) });
        }
        for (id, wanted) in [(0, wish), (1, 400)] {
            let wanted = lab.now + Duration::from_millis(wanted);
            assert!(lab.scheduler.promote(lab.now, RequestId(id), Class::RealTime, wanted));
        }
        // There is no time left for anything before what was promised for 400 ms.
        lab.now += Duration::from_millis(380);
        let dispatch = lab.scheduler.dispatch(lab.now).expect("both wait");
        assert_eq!(dispatch.requests[0].0, first, "{wish}");
    }
}

/// A picture that a client without a stream waits for: what it wants cannot be promised.
fn interactive_read(id: u64, length: Bytes, wanted: Instant) -> Request {
    request(id, Class::RealTime, id << 41, length, Some(wanted))
}

/// A client that searched beside ten players waited for five seconds for each picture. Players filled their memory
/// first, seconds before they came to it. Then it waited for up to half a second: players that began wanted 32 MiB each
/// a little earlier.
#[test]
fn an_interactive_read_goes_before_what_others_want() {
    let (longest, within) = (Bytes::from_mib(1), Duration::from_millis(500));
    for (length, within, first) in [
        (longest, within, 2),
        (longest, within + Duration::from_nanos(1), 1),
        (longest + Bytes::from_kib(4), Duration::from_millis(1), 1),
    ] {
        let mut lab = lab();
        let _reservation = admit_without_lead(&mut lab, 1);
        lab.now += Duration::from_secs(10);
        lab.enqueue(wanted(1, 1, 1 << 40, Duration::from_secs(9)));
        lab.enqueue(interactive_read(2, length, lab.now + within));
        let dispatch = lab.scheduler.dispatch(lab.now).expect("both wait");
        assert_eq!(dispatch.requests[0].0, first, "{length} within {within:?}");
    }
}

/// A client that had played for a moment while it searched was a stream. Its pictures were wanted later than what
/// others began with.
#[test]
fn a_stream_that_jumps_wants_an_interactive_read_first_too() {
    let picture = Bytes::from_kib(512);
    let goes_on = (102 << 40) + UNIT.0;
    for (offset, first) in [(goes_on + UNIT.0, 3), (goes_on, 2)] {
        let mut lab = lab();
        let _reservation = admit_without_lead(&mut lab, 1);
        let _other = admit_without_lead(&mut lab, 2);
        lab.now += Duration::from_secs(10);
        lab.enqueue(wanted(2, 2, 1 << 40, Duration::from_secs(9)));
        let wish = Duration::from_millis(10_500);
        lab.enqueue(Request { length: picture, ..wanted(1, 3, offset, wish) });
        let dispatch = lab.scheduler.dispatch(lab.now).expect("both wait");
        assert_eq!(dispatch.requests[0].0, first);
    }
}

/// Numbered frames of a mebibyte each, which lie here and there, were taken for the pictures of a client that jumps. Of
/// six films, which the device just carries, one and three units were late.
#[test]
fn a_client_that_reads_several_pictures_ahead_does_not_jump() {
    let picture = Bytes::from_kib(512);
    let goes_on = (102 << 40) + UNIT.0;
    for (waits, within, first) in [(false, 500, 4), (true, 500, 2), (false, 501, 2)] {
        let mut lab = lab();
        let _reservation = admit_without_lead(&mut lab, 1);
        let _other = admit_without_lead(&mut lab, 2);
        lab.now += Duration::from_secs(10);
        lab.enqueue(wanted(2, 2, 1 << 40, Duration::from_secs(9)));
        let wish = Duration::from_millis(10_000 + within);
        if waits {
            lab.enqueue(Request { length: picture, ..wanted(1, 3, goes_on, wish) });
        }
        lab.enqueue(Request { length: picture, ..wanted(1, 4, goes_on + UNIT.0, wish) });
        let dispatch = lab.scheduler.dispatch(lab.now).expect("all wait");
        assert_eq!(dispatch.requests[0].0, first, "another one waits: {waits}, within {within} ms");
    }
}

/// How many requests go to the device before the one that is called 1.
fn served_before_the_first(lab: &mut Lab) -> usize {
    let mut before = 0;
    loop {
        let dispatch = lab.scheduler.dispatch(lab.now).expect("they wait");
        if dispatch.requests[0].0 == 1 {
            return before;
        }
        before += dispatch.requests.len();
        lab.scheduler.complete(lab.now, dispatch.id);
    }
}

/// Random reads of a database would have had every second access.
#[test]
fn many_interactive_reads_are_no_search_and_have_their_part() {
    // What a sixth of the time is in 300 ms they have at once, and each its turn after that.
    let (burst, access) = (Duration::from_millis(300), lab::DISK.of(Bytes::from_kib(64)));
    for wish in [Duration::ZERO, Duration::from_millis(500)] {
        let mut lab = lab();
        let _reservation = admit_without_lead(&mut lab, 1);
        lab.now += Duration::from_secs(10);
        lab.enqueue(wanted(1, 1, 1 << 40, Duration::from_secs(10) + wish));
        for id in 2..100 {
            lab.enqueue(interactive_read(id, Bytes::from_kib(64), lab.now + Duration::from_millis(1)));
        }
        let before = served_before_the_first(&mut lab);
        let part = (burst + wish).as_nanos() / access.as_nanos() / 6 + 1;
        assert_eq!(before as u128, part, "wanted {wish:?} later");
    }
}

/// Random reads beside thirteen players had a fifteenth of a device of which they left a hundredth. No deadline was
/// lost. But a player that begins is served sooner than it is promised, and of thirteen that began at once each had
/// late units.
#[test]
fn interactive_reads_have_no_more_than_the_streams_leave() {
    // A sixth; a sixth still, beside 710 thousandths; an eighth, beside 863.
    for (others, most) in [(0, 9), (8, 9), (10, 7)] {
        let mut lab = lab();
        let _reservation = admit_without_lead(&mut lab, 1);
        let _others: Vec<_> =
            (2..2 + others).map(|other| admit(&mut lab, other, StreamSpec::reader(HD))).collect();
        lab.now += Duration::from_secs(10);
        lab.enqueue(wanted(1, 1, 1 << 40, Duration::from_millis(10_500)));
        for id in 2..100 {
            lab.enqueue(interactive_read(id, Bytes::from_kib(64), lab.now + Duration::from_millis(1)));
        }
        let before = served_before_the_first(&mut lab);
        let promised = lab.scheduler.utilisation_permille();
        assert_eq!(before, most, "beside {others} more, {promised} ‰");
    }
}

/// Twelve players had begun sooner than they were promised to, and lived on what they left. Then a folder was copied to where recorders
/// are. There was no room for them, but half a second of what they wrote was given its deadline as long as all others held, and of seven
/// players what they wanted was late.
#[test]
fn real_time_without_a_reservation_is_given_nothing_before_what_streams_want() {
    let within = Duration::from_millis(500);
    let just = Duration::from_nanos(1);
    for (is_wanted, due, class) in [
        (true, within, Class::RealTime),
        (true, within + just, Class::BestEffort),
        (false, within + just, Class::RealTime),
    ] {
        for is_promoted in [false, true] {
            let mut lab = lab();
            let _reservation = admit_without_lead(&mut lab, 1);
            lab.now += Duration::from_secs(10);
            let request_of_stream = wanted(1, 1, 1 << 40, Duration::from_secs(10) + within);
            let wish = request_of_stream.deadline.filter(|_| is_wanted);
            lab.enqueue(Request { deadline: wish, ..request_of_stream });
            let before = lab.scheduler.queued_of(class);
            let deadline = lab.now + due;
            if is_promoted {
                lab.enqueue(request(2, Class::BestEffort, 2 << 40, UNIT, None));
                assert!(lab.scheduler.promote(lab.now, RequestId(2), Class::RealTime, deadline));
            } else {
                lab.enqueue(request(2, Class::RealTime, 2 << 40, UNIT, Some(deadline)));
            }
            let taken = lab.scheduler.queued_of(class) - before;
            assert_eq!(taken, 1, "{is_wanted} {due:?} promoted: {is_promoted}");
        }
    }
}

/// A client that empties a file expedites all of its writes whenever one has ended. Each time they would have taken
/// their part of the time again, and a search would have waited for it.
#[test]
fn an_interactive_read_that_is_expedited_again_does_not_take_its_part_again() {
    for times in [1, 100] {
        let mut lab = lab();
        let _reservation = admit_without_lead(&mut lab, 1);
        lab.enqueue(wanted(1, 1, 1 << 40, Duration::from_millis(500)));
        lab.enqueue(request(2, Class::BestEffort, 1 << 42, Bytes::from_kib(64), None));
        for _ in 0..times {
            lab.scheduler.promote(lab.now, RequestId(2), Class::RealTime, lab.now + Duration::from_millis(1));
        }
        lab.enqueue(interactive_read(3, Bytes::from_kib(64), lab.now + Duration::from_millis(1)));
        let order = [0; 3].map(|_| {
            let dispatch = lab.scheduler.dispatch(lab.now).expect("they wait");
            lab.scheduler.complete(lab.now, dispatch.id);
            dispatch.requests[0].0
        });
        assert_eq!(order, [2, 3, 1], "expedited {times} times");
    }
}

/// Films that had begun were given what they wanted next for good, by when their clients would ask for it, a second before they
/// show it. The last of six to begin waited for 1.9 s behind that, and had a frame late in one of sixteen runs.
#[test]
fn what_is_given_within_its_streams_grace_leaves_room_for_a_stream_that_wants_something_sooner() {
    // It takes 65 ms, and so does what another one wants sooner. By the millisecond, beside floors of 16 %.
    let wish = Duration::from_millis(160);
    for (grace, first) in
        [(Duration::ZERO, 1), (Duration::from_millis(13), 1), (Duration::from_millis(20), 3)]
    {
        let mut lab = Lab::new(Config { best_effort_floor_percent: 5, ..known() });
        let spec = StreamSpec {
            request: Some(UNIT),
            deadline: Some(HD.time_for(UNIT)),
            grace,
            ..StreamSpec::reader(HD)
        };
        let _graceful = admit(&mut lab, 1, spec);
        let _other = admit_without_lead(&mut lab, 2);
        lab.enqueue(wanted(1, 1, 1 << 40, wish));
        lab.enqueue(wanted(2, 3, 2 << 40, Duration::from_millis(1)));
        let dispatch = lab.scheduler.dispatch(lab.now).expect("both wait");
        assert_eq!(dispatch.requests[0].0, first, "{grace:?}");
    }
}
