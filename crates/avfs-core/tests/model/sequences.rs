//! Directories of numbered frames: what is in memory before a frame is opened, what the device is asked for, what the
//! scheduler is told; and how frames come to lie that are recorded.

use crate::recorders::{data, give};
use avfs_core::config::Config;
use avfs_core::core::{Cancellation, Core, Operation, Outbox, Outcome, Ticket};
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::*;
use avfs_io::pool::Pool;
use avfs_io::{IoRequest, Promise, Promotion};
use proptest::prelude::*;
use rtsched::{Class, Direction, Terms};
use std::collections::{BTreeMap, BTreeSet};
use units::{Bitrate, Bytes, Duration, Ino, Instant, Now};

const MIB: u64 = 1 << 20;
/// 2 MiB and a header.
const FRAME: u64 = 2 * MIB + 2048;
pub(crate) const PERIOD: Duration = Duration::from_micros(41_667);

pub(crate) fn volume(config: &str) -> SimVolume {
    let pool = Pool::new(Bytes::from_mib(256), false).unwrap();
    SimVolume::mount(formatted(Bytes::from_mib(1024)), &pool, Config::parse(config).unwrap(), 5).unwrap()
}

fn name(number: u64) -> Vec<u8> {
    format!("shot.{number:06}.dpx").into_bytes()
}

fn contents(number: u64, length: u64) -> Vec<u8> {
    vec![(number % 251) as u8 + 1; length as usize]
}

pub(crate) fn record(volume: &mut SimVolume, name: &[u8], contents: &[u8]) -> Ino {
    let flags = OpenFlags::WRITE;
    let (entry, opened) = volume
        .with(|core, now| core.create(now, Caller::default(), Ino::ROOT, name, 0o644, 0, flags))
        .unwrap();
    for (index, piece) in contents.chunks(MIB as usize).enumerate() {
        volume.write(opened.handle, index as u64 * MIB, piece).unwrap();
    }
    volume.with(|core, now| core.release(now, opened.handle));
    entry.attributes.ino
}

/// A volume with these frames, of which nothing is in memory.
fn recorded(config: &str, numbers: impl IntoIterator<Item = u64>) -> SimVolume {
    let mut volume = volume("");
    for number in numbers {
        record(&mut volume, &name(number), &contents(number, FRAME));
    }
    volume.sync().unwrap();
    remounted(volume, config)
}

pub(crate) fn remounted(volume: SimVolume, config: &str) -> SimVolume {
    let disk = volume.unmount().unwrap();
    let pool = Pool::new(Bytes::from_mib(512), false).unwrap();
    let mut volume = SimVolume::mount(disk, &pool, Config::parse(config).unwrap(), 6).unwrap();
    volume.commands();
    volume
}

/// A client takes a frame as smbd has it done. True: everything was in memory.
fn take(volume: &mut SimVolume, number: u64) -> bool {
    let handle = open(volume, number);
    let warm = read(volume, handle, number);
    volume.with(|core, now| core.release(now, handle));
    warm
}

fn open(volume: &mut SimVolume, number: u64) -> HandleId {
    let found = volume.with(|core, _| core.lookup(Ino::ROOT, &name(number))).unwrap();
    assert_eq!(found.attributes.size, FRAME);
    volume.with(|core, _| core.open(found.attributes.ino, OpenFlags::READ)).unwrap().handle
}

fn read(volume: &mut SimVolume, handle: HandleId, number: u64) -> bool {
    let mut warm = true;
    for at in (0..FRAME).step_by(MIB as usize) {
        let length = MIB.min(FRAME - at) as usize;
        warm &= match volume.with(|core, now| core.read(now, handle, at, length)) {
            Some(data) => {
                assert!(data.unwrap().to_vec() == contents(number, length as u64), "frame {number} at {at}");
                true
            }
            None => {
                let data = volume.read(handle, at, length).unwrap();
                assert!(data == contents(number, length as u64), "frame {number} at {at}");
                false
            }
        };
    }
    warm
}

/// A client that has three frames knows no more than that it plays. Then it fills its buffer, for which the device has time.
const FILLING: Duration = Duration::from_millis(500);

/// Plays frames at their rate; those that were not in memory.
fn play(volume: &mut SimVolume, numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut cold = Vec::new();
    for (index, number) in numbers.into_iter().enumerate() {
        if !take(volume, number) {
            cold.push(number);
        }
        volume.pass(if index == 2 { FILLING } else { PERIOD });
        volume.core().audit().unwrap();
    }
    cold
}

/// Lengths of what was read since this was asked last.
pub(crate) fn reads(volume: &mut SimVolume) -> Vec<u64> {
    let commands = volume.commands();
    commands
        .iter()
        .filter(|command| command.direction == Direction::Read)
        .map(|command| command.length.0)
        .collect()
}

/// Has frames in memory, of a client that may write them and so plays nothing.
fn load(volume: &mut SimVolume, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        let found = volume.with(|core, _| core.lookup(Ino::ROOT, &name(number))).unwrap();
        let handle = volume.open(found.attributes.ino).unwrap();
        read(volume, handle, number);
        volume.with(|core, now| core.release(now, handle));
    }
}

/// What a stream of frames is promised where nobody else wants the device.
const TERMS: Terms = Terms {
    request: Bytes(64 * MIB),
    period: Duration::from_millis(1332),
    deadline: Duration::from_millis(3000),
    since: Instant::ZERO,
};

/// So long after a client has asked for something it asks for nothing more at once with it.
const AT_ONCE: Duration = Duration::from_millis(5);

/// How much is asked for.
fn bytes(requests: &[IoRequest]) -> u64 {
    requests.iter().map(|request| request.length().0).sum()
}

/// What the core wants when that is over.
fn wanted_then(core: &mut Core, now: Now) -> Outbox {
    core.tick(Now { monotonic: now.monotonic + AT_ONCE, ..now });
    core.take_outbox()
}

/// A client takes frames in memory in one moment, and is promised something: what the core wants then.
fn take_at_once(
    volume: &mut SimVolume,
    numbers: std::ops::RangeInclusive<u64>,
    terms: Option<Terms>,
) -> Outbox {
    let handles: Vec<_> = numbers.map(|number| open(volume, number)).collect();
    volume.with(|core, now| {
        for handle in handles {
            core.read(now, handle, 0, FRAME as usize).expect("it is in memory").unwrap();
        }
        if terms.is_some() {
            let (stream, _) = core.take_outbox().streams.pop().expect("it plays");
            core.promised(now, Promise { stream, terms });
        }
        wanted_then(core, now)
    })
}

const RATE: Bitrate = Bitrate(FRAME * 8 * 24);

/// From its fourth frame on nothing is read for a client that waits, and frames are read many at once.
#[test]
fn a_sequence_is_in_memory_before_it_is_opened() {
    let mut volume = recorded("", 1..=60);
    assert_eq!(play(&mut volume, 1..=60), [1, 2, 3]);
    let [stream] = &volume.streams()[..] else { panic!("{:?}", volume.streams()) };
    assert_eq!((stream.state, stream.missed, stream.writes), (StreamService::Admitted, 0, false));
    assert_eq!(stream.sequence.as_deref(), Some("/shot.######.dpx"));
    assert!(stream.bits_per_second.abs_diff(RATE.0) < RATE.0 / 100, "{stream:?}");
    let reads = reads(&mut volume);
    let read: u64 = reads.iter().sum();
    assert_eq!(read, 60 * FRAME.next_multiple_of(4096), "nothing twice, and nothing else: {reads:?}");
    assert!(read / reads.len() as u64 >= 8 * MIB, "{reads:?}");
    assert_eq!(volume.core().report().prefetched_bytes, 0, "it is at its end");
}

#[test]
fn missing_frames_do_not_stop_it() {
    let numbers = || (1..=20).chain(23..=40).chain(290..=310);
    let mut volume = recorded("", numbers());
    assert_eq!(play(&mut volume, numbers()), [1, 2, 3]);
}

#[test]
fn it_is_played_backward_and_turned() {
    let mut volume = recorded("", 1..=80);
    assert_eq!(play(&mut volume, (40..=80).rev()), [80, 79, 78]);
    // What it comes from is in memory already.
    assert_eq!(play(&mut volume, 41..=80), []);
}

#[test]
fn every_second_frame_is_a_sequence() {
    let mut volume = recorded("", 1..=80);
    assert_eq!(play(&mut volume, (1..=79).step_by(2)), [1, 3, 5]);
    let read: u64 = reads(&mut volume).iter().sum();
    assert!(read <= 42 * FRAME.next_multiple_of(4096), "{read}: what nobody plays is not read");
}

/// A client asks for half a second of frames at once, as players do that fill a buffer, and the device answers in an order of its
/// own. Where a client was, was told by the answers: it turned back and went on in tens, what it had ahead was cancelled and
/// other frames were read, and four of its kind were late on a device that was idle for a third of the time.
#[test]
fn where_a_client_is_is_told_by_what_it_asks_for_not_by_what_is_answered_first() {
    let mut volume = recorded("", 1..=60);
    let handles: Vec<_> = (1..=12).map(|number| open(&mut volume, number)).collect();
    let asked: Vec<_> = handles
        .iter()
        .map(|&handle| volume.begin(Operation::Read { handle, offset: 0, length: FRAME as usize }))
        .collect();
    let [stream] = &volume.streams()[..] else { panic!("{:?}", volume.streams()) };
    assert_eq!(stream.state, StreamService::Admitted, "before any is there");
    for (index, ticket) in asked.into_iter().enumerate().rev() {
        let number = index as u64 + 1;
        let Outcome::Data(data) = volume.finish(ticket) else { panic!("it is a read") };
        assert!(data.unwrap().to_vec() == contents(number, FRAME), "frame {number}");
    }
    for handle in handles {
        volume.with(|core, now| core.release(now, handle));
    }
    volume.pass(PERIOD * 12);
    assert_eq!(play(&mut volume, 13..=60), []);
    let read: u64 = reads(&mut volume).iter().sum();
    assert_eq!(read, 60 * FRAME.next_multiple_of(4096), "nothing twice, and nothing else");
}

/// Frames of a sequence that was refused were wanted in time for its rate, and so went before what others want sooner than they
/// were promised it.
#[test]
fn a_sequence_without_room_is_best_effort() {
    let classes_of = |rate: &str| -> Vec<Class> {
        let mut volume = recorded(&format!("[[stream]]\npath = \"shot.*\"\nbitrate = \"{rate}\""), 1..=60);
        load(&mut volume, 1..=3);
        volume.commands();
        play(&mut volume, 1..=60);
        let expected = if rate == "400 Mbit/s" { StreamService::Admitted } else { StreamService::Waiting };
        assert_eq!(volume.streams().iter().map(|stream| stream.state).collect::<Vec<_>>(), [expected]);
        let reads = volume.commands().into_iter().filter(|command| command.direction == Direction::Read);
        reads.map(|command| command.class).collect()
    };
    let all = |classes: &[Class], class| !classes.is_empty() && classes.iter().all(|one| *one == class);
    let (admitted, refused) = (classes_of("400 Mbit/s"), classes_of("400 Gbit/s"));
    assert!(all(&admitted, Class::RealTime), "{admitted:?}");
    assert!(all(&refused, Class::BestEffort), "{refused:?}");
}

/// A client asks for frames in one moment, none of which is in memory, and is promised something: what the core wants then.
fn ask_at_once(volume: &mut SimVolume, numbers: impl IntoIterator<Item = u64>) -> Outbox {
    let handles: Vec<_> = numbers.into_iter().map(|number| open(volume, number)).collect();
    volume.with(|core, now| {
        for (ticket, handle) in (1 << 40..).map(Ticket).zip(handles) {
            core.start(now, ticket, Operation::Read { handle, offset: 0, length: FRAME as usize });
        }
        let declared = core.take_outbox();
        let (stream, _) = declared.streams.into_iter().next().expect("it plays");
        core.promised(now, Promise { stream, terms: Some(TERMS) });
        let mut outbox = wanted_then(core, now);
        for mut request in declared.requests {
            let tag = request.tag;
            let of_it = outbox.promotions.iter().filter(|promotion| promotion.tag == tag);
            of_it.for_each(|promotion| request.promote(*promotion));
            outbox.requests.push(request);
        }
        outbox
    })
}

/// The first frames that a client asked for were files of their own until it was known that they are frames. What was asked for
/// of them stayed so, and each was read for itself: of 1.5 s in which six films began, 0.4 went into such accesses.
#[test]
fn the_first_frames_belong_to_the_sequence_that_they_turn_out_to_be() {
    let mut volume = recorded("", 1..=60);
    let outbox = ask_at_once(&mut volume, 1..=12);
    let streams: BTreeSet<_> =
        outbox.requests.iter().map(|request| (request.stream, request.class)).collect();
    let wanted = bytes(&outbox.requests);
    assert_eq!(streams.len(), 1, "{streams:?}");
    assert!(streams.iter().all(|(stream, class)| stream.is_some() && *class == Class::RealTime));
    assert!(wanted >= 12 * FRAME);
}

/// Of six films each began as soon as it could, when others had been read a second ahead that could have waited, and the last
/// had a late unit in every fourth rehearsal. Who begins has time. Who had his first frames from memory has begun, and wants at once
/// what comes next: half a second later others went before, and one of six films lost a unit where it began again at its end.
#[test]
fn a_film_that_begins_can_wait_for_what_others_need_before() {
    let mut volume = recorded("", 1..=200);
    let began = volume.clock();
    let outbox = ask_at_once(&mut volume, 1..=12);
    let first = outbox.requests.iter().map(|request| request.deadline.unwrap()).min().unwrap();
    let waits = first.saturating_since(began);
    assert!((Duration::from_millis(1666)..Duration::from_millis(1667)).contains(&waits), "{waits:?}");

    let mut volume = recorded("", 1..=200);
    load(&mut volume, 1..=3);
    let began = volume.clock();
    let outbox = take_at_once(&mut volume, 1..=3, Some(TERMS));
    let first = outbox.requests.iter().map(|request| request.deadline.unwrap()).min().unwrap();
    let waits = first.saturating_since(began);
    assert!(waits < AT_ONCE + Duration::from_millis(1), "{waits:?}");
}

/// Asks for frames one after the other, of which none is in memory, and for which the device has no time: how much of them, and of
/// others, has been asked for after each.
fn asks(volume: &mut SimVolume, numbers: &[u64], pause: Duration) -> Vec<u64> {
    let handles: Vec<_> = numbers.iter().map(|number| open(volume, *number)).collect();
    volume.with(|core, now| {
        let (mut asked, mut at) = (0, now.monotonic);
        let ticket = |handle: HandleId| Ticket((1 << 40) + handle.0);
        let after_each = handles.into_iter().map(|handle| {
            let now = Now { monotonic: at, ..now };
            at += pause;
            core.tick(now);
            core.start(now, ticket(handle), Operation::Read { handle, offset: 0, length: FRAME as usize });
            let mut outbox = core.take_outbox();
            if let Some((stream, _)) = outbox.streams.pop() {
                core.promised(now, Promise { stream, terms: Some(TERMS) });
                outbox.requests.extend(core.take_outbox().requests);
            }
            asked += bytes(&outbox.requests);
            asked
        });
        let mut after_each: Vec<u64> = after_each.collect();
        let then = wanted_then(core, Now { monotonic: at.saturating_before(pause), ..now });
        after_each.push(asked + bytes(&then.requests));
        after_each
    })
}

/// A film's player asks for a second of frames, and the network brings the first ones last. By then five seconds of what is behind
/// them had been asked for, and promised before them: one of six films began after 2.4 s, and in every eighth rehearsal one lost a unit.
#[test]
fn what_a_client_begins_with_is_asked_for_before_what_is_behind_it() {
    let first_last: Vec<u64> = (9..=24).chain(1..=8).collect();
    let mut volume = recorded("", 1..=200);
    let asked = asks(&mut volume, &first_last, Duration::from_millis(1));
    let whole = FRAME.next_multiple_of(4096);
    let of_its_own: Vec<u64> = (1..=24).map(|count| count * whole).collect();
    assert_eq!(asked[..24], of_its_own[..]);
    assert!(asked[24] > 30 * whole, "{asked:?}");
}

/// Who takes frame after frame as quickly as they come begins once: what is behind is asked for while he goes on.
#[test]
fn a_client_that_goes_on_as_quickly_as_it_can_is_read_ahead_of() {
    let pause = Duration::from_millis(4);
    let mut volume = recorded("", 1..=200);
    let asked = asks(&mut volume, &(1..=24).collect::<Vec<_>>(), pause);
    let whole = FRAME.next_multiple_of(4096);
    let more =
        asked.iter().zip(1..).position(|(asked, count)| *asked > count * whole).expect("all were asked for");
    // Fifty milliseconds after the first one.
    assert_eq!(more, 13, "{asked:?}");
}

/// Some frames are open at once, and closed in another order. The simulated device completes any of its commands first: what
/// was wanted first is there when all are.
#[test]
fn a_client_with_frames_open_at_once_finds_them() {
    let mut volume = recorded("", 1..=60);
    let mut cold = Vec::new();
    let mut buffers = PERIOD * 12;
    for batch in (1..=60).collect::<Vec<u64>>().chunks(4) {
        let order = [1, 0, 3, 2].map(|index| batch[index]);
        let handles = order.map(|number| (number, open(&mut volume, number)));
        for (number, handle) in handles {
            if !read(&mut volume, handle, number) {
                cold.push(number);
            }
        }
        for (_, handle) in handles {
            volume.with(|core, now| core.release(now, handle));
        }
        volume.pass(PERIOD * 4 + std::mem::take(&mut buffers));
        volume.core().audit().unwrap();
    }
    assert!(cold.iter().all(|&number| number <= 4), "{cold:?}");
}

/// A jump starts it again where the player is, and takes back what it will not come to.
#[test]
fn a_jump_starts_it_again_and_gives_up_the_rest() {
    let mut volume = recorded("[[stream]]\npath = \"**\"\ndeadline_window = \"500 ms\"", 1..=160);
    assert_eq!(play(&mut volume, 1..=20), [1, 2, 3]);
    let before = volume.core().report().prefetched_bytes;
    assert!(before > 0);
    assert_eq!(play(&mut volume, 120..=150), [120, 121]);
    assert_eq!(volume.streams().len(), 1, "it keeps its reservation");
    let stream = &volume.streams()[0];
    assert!(stream.bits_per_second.abs_diff(RATE.0) < RATE.0 / 100, "one player: {stream:?}");
    let kept = volume.core().report().prefetched_bytes;
    assert!(kept <= stream.buffer_bytes + 9 * FRAME * 2, "{kept} of {}", stream.buffer_bytes);
}

/// Requests that wait for the device when the player has gone elsewhere are cancelled, and the next frames there are asked for.
#[test]
fn what_was_on_its_way_for_the_old_place_is_cancelled() {
    let mut volume = recorded("[[stream]]\npath = \"**\"\ndeadline_window = \"500 ms\"", 1..=200);
    load(&mut volume, 150..=151);
    for number in 1..=3 {
        take(&mut volume, number);
    }
    volume.pass(AT_ONCE);
    let handles = [150, 151].map(|number| open(&mut volume, number));
    let outbox = volume.with(|core, now| {
        let later = Now { monotonic: now.monotonic + Duration::from_millis(200), ..now };
        for (handle, now) in handles.into_iter().zip([now, later]) {
            core.read(now, handle, 0, FRAME as usize).expect("it is in memory").unwrap();
        }
        core.take_outbox()
    });
    let is_request = |cancellation: &Cancellation| matches!(cancellation, Cancellation::Request(_));
    assert!(!outbox.cancellations.is_empty() && outbox.cancellations.iter().all(is_request));
    let wanted = bytes(&outbox.requests);
    let kept = volume.core().report().prefetched_bytes;
    assert!(wanted > 0 && kept <= wanted * 5 / 4, "{kept} kept, {wanted} asked for");
}

/// A player jumps, and comes backward to what was on its way for it: that was taken back a moment before it was wanted again, so
/// nobody asked for it any more, and he waited for each of its frames.
#[test]
fn what_is_wanted_again_is_not_cancelled() {
    let mut volume = recorded("", 1..=200);
    load(&mut volume, (1..=3).chain(138..=140));
    let asked = take_at_once(&mut volume, 1..=3, Some(TERMS)).requests;
    let handles = [140, 139].map(|number| open(&mut volume, number));
    let outbox = volume.with(|core, now| {
        let later = Now { monotonic: now.monotonic + Duration::from_millis(200), ..now };
        for (handle, now) in handles.into_iter().zip([now, later]) {
            core.read(now, handle, 0, FRAME as usize).expect("it is in memory").unwrap();
        }
        core.take_outbox()
    });
    let cancelled = &outbox.cancellations;
    let is_kept = |request: &&IoRequest| !cancelled.contains(&Cancellation::Request(request.tag));
    let kept: u64 = asked.iter().filter(is_kept).map(|request| request.length().0).sum();
    let new = bytes(&outbox.requests);
    assert!(!cancelled.is_empty() && kept > 0 && new > 0, "{} cancelled", cancelled.len());
    // Two of the frames before it are in memory from the beginning.
    let ahead = volume.core().report().prefetched_bytes;
    assert!(kept + new + 2 * FRAME >= ahead, "{ahead} wanted: {kept} on its way, {new} asked for");
}

/// Each frame was wanted by when it is shown, a film's next one later than another film's. Of six films that asked for 56 MiB
/// each the device got commands of 15 MiB, and had no time left for the seeks.
#[test]
fn frames_of_half_a_request_are_wanted_together() {
    let mut volume = recorded("", 1..=200);
    load(&mut volume, 1..=3);
    let outbox = take_at_once(&mut volume, 1..=3, Some(TERMS));
    let half = TERMS.request.0 / 2;
    let mut wanted = BTreeMap::new();
    for request in &outbox.requests {
        *wanted.entry(request.deadline).or_insert(0) += request.length().0;
    }
    let total: u64 = wanted.values().sum();
    assert!(half >= 4 * FRAME && total >= 2 * half, "{half}, {wanted:?}");
    // Who has little ahead asks for little at first, and a request may end in the middle of the second half.
    let whole = wanted.values().filter(|bytes| **bytes >= half - FRAME).count();
    assert!(whole > 0 && wanted.len() <= 2 + 2 * whole, "{half}, {wanted:?}");
}

/// A player asks for a second of frames at once. What it comes to behind them was wanted as if it asked for frames at its rate
/// from the third one on, so a second too late: others were served who came to theirs later, and units were late.
#[test]
fn a_client_that_fills_a_buffer_needs_sooner_what_is_behind_it() {
    let mut volume = recorded("", 1..=200);
    load(&mut volume, 1..=19);
    let asked = take_at_once(&mut volume, 1..=3, Some(TERMS)).requests;
    let asked: BTreeMap<_, _> =
        asked.iter().map(|request| (request.tag, request.deadline.unwrap())).collect();
    let of_asked = |promotions: Vec<Promotion>| -> BTreeMap<_, _> {
        let sooner = promotions.into_iter().filter(|promotion| asked.contains_key(&promotion.tag));
        sooner.map(|promotion| (promotion.tag, promotion.deadline)).collect()
    };
    assert_eq!(of_asked(take_at_once(&mut volume, 4..=5, None).promotions), BTreeMap::new(), "soon enough");
    let sooner = of_asked(take_at_once(&mut volume, 6..=19, None).promotions);
    // What is needed within half a second is wanted as soon as can be.
    let soonest = volume.clock() + Duration::from_millis(500) + PERIOD * 16;
    let later: Vec<_> = asked.iter().filter(|(_, deadline)| **deadline > soonest).collect();
    assert!(later.len() > asked.len() / 2);
    for (tag, asked) in later {
        let by = asked.saturating_since(sooner[tag]);
        assert!(
            (PERIOD * 13..=PERIOD * 16).contains(&by),
            "sixteen frames are {:?}, not {by:?}",
            PERIOD * 16
        );
    }
}

/// Whoever stops gives his memory and his reservation back.
#[test]
fn a_client_that_stops_holds_nothing() {
    let mut volume = recorded("", 1..=60);
    play(&mut volume, 1..=20);
    assert_eq!(volume.streams().len(), 1);
    volume.pass(Duration::from_secs(6));
    assert_eq!(volume.streams(), []);
    assert_eq!(volume.core().report().prefetched_bytes, 0);
    play(&mut volume, 21..=24);
    assert_eq!(volume.streams().len(), 1);
}

/// Two players of one sequence are one stream of twice the rate.
#[test]
fn two_players_are_one_stream_of_both_rates() {
    let mut volume = recorded("", 1..=200);
    let mut cold = Vec::new();
    for frame in 0..40 {
        for number in [1 + frame, 101 + frame] {
            if !take(&mut volume, number) {
                cold.push(number);
            }
        }
        volume.pass(if frame == 2 { FILLING } else { PERIOD });
    }
    assert!(cold.iter().all(|&number| number % 100 <= 4), "{cold:?}");
    let rate = volume.streams()[0].bits_per_second;
    assert_eq!((volume.streams().len(), rate / (RATE.0 / 10)), (1, 20));
}

/// A copy takes frames as fast as it can: it has no reservation, and its requests give way.
#[test]
fn a_copy_of_a_sequence_is_best_effort() {
    let config = "[[stream]]\npath = \"**\"\nframes_per_second = 4";
    let mut volume = recorded(config, 1..=150);
    // It may be a player that fills its memory, and what was asked for until then is read.
    for number in 1..=110 {
        take(&mut volume, number);
    }
    assert_eq!(volume.streams(), []);
    volume.commands();
    for number in 111..=150 {
        take(&mut volume, number);
    }
    let classes: Vec<_> = volume.commands().iter().map(|command| command.class).collect();
    assert!(!classes.is_empty() && classes.iter().all(|&class| class == Class::BestEffort), "{classes:?}");
}

/// A policy's frames per second, and its bitrate, decide before what is usual.
#[test]
fn a_policy_says_the_rate() {
    for (policy, rate) in
        [("frames_per_second = 48", FRAME * 8 * 48), ("bitrate = \"900 Mbit/s\"", 900_000_000)]
    {
        let config = format!("[[stream]]\npath = \"**\"\n{policy}");
        let mut volume = recorded(&config, 1..=20);
        play(&mut volume, 1..=10);
        let found = volume.streams()[0].bits_per_second;
        assert!(found.abs_diff(rate) < rate / 100, "{policy}: {found}");
    }
    let mut volume = recorded("[[stream]]\npath = \"**\"\nclass = \"best-effort\"", 1..=20);
    play(&mut volume, 1..=10);
    assert_eq!(volume.streams(), [], "who is to give way has no reservation");
}

/// Nobody says the rate: a client with a clock of its own shows it.
#[test]
fn a_rate_is_observed() {
    let mut volume = recorded("", 1..=100);
    for number in 1..=80 {
        take(&mut volume, number);
        volume.pass(Duration::from_millis(80));
    }
    let rate = volume.streams()[0].bits_per_second as f64 / (FRAME * 8) as f64;
    assert!((12.0..13.5).contains(&rate), "{rate} frames/s");
}

/// More than the device carries: the sequence is refused as one, played as best effort all the same, and every byte is
/// right.
#[test]
fn a_sequence_for_which_there_is_no_room_waits_as_one() {
    let config = "[[stream]]\npath = \"**\"\nbitrate = \"90 Gbit/s\"";
    let mut volume = recorded(config, 1..=40);
    play(&mut volume, 1..=30);
    let streams = volume.streams();
    assert_eq!(streams.len(), 1);
    assert_eq!((streams[0].state, streams[0].lacking.is_some()), (StreamService::Waiting, true));
}

/// Who looks at the beginning of many numbered files plays none of them.
#[test]
fn a_client_that_looks_at_headers_plays_nothing() {
    let mut volume = recorded("", 1..=60);
    for number in 1..=60 {
        let handle = open(&mut volume, number);
        volume.read(handle, 0, 4096).unwrap();
        volume.with(|core, now| core.release(now, handle));
        volume.pass(PERIOD);
    }
    assert_eq!((volume.streams(), volume.core().report().prefetched_bytes), (vec![], 0));
}

/// A frame that a policy's file system has no name for any more, or that is another one by now, is read as it is.
#[test]
fn frames_that_are_replaced_and_deleted_are_read_as_they_are() {
    let mut volume = recorded("", 1..=60);
    assert_eq!(play(&mut volume, 1..=10), [1, 2, 3]);
    for number in 11..=60 {
        if number % 3 == 0 {
            volume.with(|core, now| core.unlink(now, Ino::ROOT, &name(number))).unwrap();
        } else if number % 3 == 1 {
            volume.with(|core, now| core.unlink(now, Ino::ROOT, &name(number))).unwrap();
            record(&mut volume, &name(number), &contents(number, FRAME));
        }
    }
    play(&mut volume, (11..=60).filter(|number| number % 3 != 0));
    volume.sync().unwrap();
    volume.core().audit().unwrap();
}

/// The device's runs in which frames lie, in the order of their numbers: their lengths.
fn runs(
    volume: &mut SimVolume,
    numbers: impl IntoIterator<Item = u64>,
    name: impl Fn(u64) -> Vec<u8>,
) -> Vec<u64> {
    let (mut runs, mut end) = (Vec::new(), None);
    for number in numbers {
        let found = volume.with(|core, _| core.lookup(Ino::ROOT, &name(number))).unwrap();
        for extent in volume.core().extents(found.attributes.ino).unwrap() {
            match runs.last_mut() {
                Some(last) if end == Some(extent.device_offset) => *last += extent.length,
                _ => runs.push(extent.length),
            }
            end = Some(extent.device_offset + extent.length);
        }
    }
    runs
}

/// Frames that are recorded one after the other lie in one run, small ones and such as have several blocks.
#[test]
fn recorded_frames_lie_in_the_order_of_their_numbers() {
    for length in [100_000, FRAME, 12 * MIB + 5000] {
        let mut volume = volume("");
        for number in 1..=40 {
            record(&mut volume, &name(number), &contents(number, length));
            volume.pass(PERIOD);
            volume.core().audit().unwrap();
        }
        volume.sync().unwrap();
        let runs = runs(&mut volume, 1..=40, name);
        assert_eq!(runs.len(), 1, "{length}: {runs:?}");
    }
}

/// Three recorders at once: each has its run.
#[test]
fn recorders_of_sequences_keep_apart() {
    let mut volume = volume("");
    let name = |recorder: char| move |number: u64| format!("{recorder}.{number:04}.exr").into_bytes();
    for number in 1..=40 {
        for recorder in ['a', 'b', 'c'] {
            record(&mut volume, &name(recorder)(number), &contents(number, FRAME));
        }
        volume.pass(PERIOD);
    }
    volume.sync().unwrap();
    for recorder in ['a', 'b', 'c'] {
        let runs = runs(&mut volume, 1..=40, name(recorder));
        assert!(runs.len() <= 2, "{recorder}: {runs:?}");
    }
}

/// Clips have numbers, as frames do. Those that went on where short ones had been recorded took turns in the place of a sequence, had
/// nothing written before memory was full, and no reservation of their own.
#[test]
fn a_clip_behind_short_ones_is_no_frame() {
    let mut volume = volume("[[stream]]\npath = \"**\"\nbitrate = \"100 Mbit/s\"");
    let name = |number: u64| format!("clip {number}.mov").into_bytes();
    (1..=3).for_each(|number| _ = record(&mut volume, &name(number), &contents(number, FRAME)));
    let clips: Vec<_> = (4..=6).map(|number| volume.create(Ino::ROOT, &name(number)).unwrap()).collect();
    let piece = vec![7; MIB as usize];
    for at in 0..160 {
        for &(_, handle) in &clips {
            volume.write(handle, at * MIB, &piece).unwrap();
        }
        volume.pass(Duration::from_millis(84));
    }
    let streams = volume.streams();
    for &(ino, _) in &clips {
        let own = streams.iter().find(|stream| stream.ino == ino.0);
        assert!(own.is_some_and(|own| own.writes && own.state == StreamService::Admitted), "{streams:?}");
    }
    volume.sync().unwrap();
    let runs = runs(&mut volume, 4..=6, name);
    assert!(runs.len() <= 6, "{runs:?}");
    volume.core().audit().unwrap();
}

/// Who records a sequence is one stream, and its requests are long.
#[test]
fn a_recorded_sequence_is_one_stream() {
    let config = "[[stream]]\npath = \"**\"\nframes_per_second = 24";
    let mut volume = volume(config);
    volume.commands();
    for number in 1..=100 {
        record(&mut volume, &name(number), &contents(number, FRAME));
        volume.pass(PERIOD);
        assert!(volume.streams().len() <= 1, "{:?}", volume.streams());
    }
    let [stream] = &volume.streams()[..] else { panic!("{:?}", volume.streams()) };
    assert!(stream.writes && stream.state == StreamService::Admitted && stream.missed == 0, "{stream:?}");
    assert!(stream.bits_per_second.abs_diff(RATE.0) < RATE.0 / 100, "{stream:?}");
    volume.pass(Duration::from_secs(6));
    assert_eq!(volume.streams(), []);
    let mut writes = volume.commands();
    writes.retain(|command| command.direction == Direction::Write && command.class == Class::RealTime);
    let bytes: u64 = writes.iter().map(|command| command.length.0).sum();
    assert!(bytes / writes.len() as u64 >= 8 * MIB, "{writes:?}");
    volume.core().audit().unwrap();
}

/// Records frames of 1 MiB before a device that does nothing, until something is not answered at once. What was asked for after each.
fn record_before_a_device_that_stands(
    volume: &mut SimVolume,
    numbers: impl IntoIterator<Item = u64>,
    promised: Option<Terms>,
) -> Vec<Vec<IoRequest>> {
    let tickets: Vec<Ticket> = numbers.into_iter().map(|_| volume.ticket()).collect();
    volume.with(|core, now| {
        let mut asked = Vec::new();
        for (number, ticket) in (1..).zip(tickets) {
            let (caller, flags) = (Caller::default(), OpenFlags::WRITE);
            let (_, opened) = core.create(now, caller, Ino::ROOT, &name(number), 0o644, 0, flags).unwrap();
            if give(core, now, ticket, opened.handle, 0) != Some(true) {
                break;
            }
            core.release(now, opened.handle);
            let outbox = core.take_outbox();
            for (stream, _) in outbox.streams.into_iter().filter(|(_, declared)| declared.is_some()) {
                core.promised(now, Promise { stream, terms: promised });
            }
            asked.push(data(outbox.requests));
        }
        asked
    })
}

/// Frames in a place with a policy had memory as clips have that begin: 8 MiB for each of 1 MiB. Six recorders of films filled all of it
/// beside a copy, and hundreds of frames were late.
#[test]
fn a_recorded_frame_has_no_more_memory_than_it_needs() {
    let mut volume = volume("[[stream]]\npath = \"**\"\nframes_per_second = 24");
    let recorded = record_before_a_device_that_stands(&mut volume, 1..=200, None).len();
    // Nothing is answered that would fill more than half of 256 MiB, or for who keeps his rate seven eighths.
    assert!((120..=224).contains(&recorded), "{recorded}");
}

/// Frames of who was promised long requests were written one by one as soon as a copy had filled the memory that it may, so they took
/// all of the device's time in seeks: of six recorders of films those with a reservation had late frames, and the copy got nothing.
#[test]
fn recorded_frames_are_gathered_beside_a_copy_that_fills_memory() {
    let terms = Terms { request: Bytes(16 * MIB), ..TERMS };
    let mut volume = volume("[[stream]]\npath = \"*.dpx\"\nframes_per_second = 24");
    let (_, copy) = volume.create(Ino::ROOT, b"copy").unwrap();
    let tickets = [0; 256].map(|_| volume.ticket());
    volume.with(|core, now| {
        let filled = tickets
            .iter()
            .zip(0..)
            .take_while(|(ticket, at)| give(core, now, **ticket, copy, at * MIB) == Some(true));
        assert_eq!(filled.count(), 128);
        core.take_outbox();
    });
    let asked = record_before_a_device_that_stands(&mut volume, 1..=60, Some(terms));
    assert_eq!(asked.len(), 60);
    // Before they are known for a sequence they are files.
    let requests: Vec<u64> =
        asked.iter().skip(8).map(|requests| bytes(requests)).filter(|bytes| *bytes > 0).collect();
    assert!(requests.len() >= 2 && requests.iter().all(|bytes| *bytes >= 16 * MIB), "{requests:?}");
}

/// A reader that chases a recorder is served from memory.
#[test]
fn a_player_behind_the_recorder_needs_no_device() {
    let mut volume = volume("");
    volume.commands();
    for number in 1..=60 {
        record(&mut volume, &name(number), &contents(number, FRAME));
        if number > 10 {
            assert!(take(&mut volume, number - 10), "frame {}", number - 10);
        }
        volume.pass(PERIOD);
        volume.core().audit().unwrap();
    }
    assert_eq!(reads(&mut volume), []);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever clients do with a sequence, in whatever order, with little memory: every byte is right, and nothing is
    /// kept in the end.
    #[test]
    fn contents_are_right_whatever_is_played(
        steps in prop::collection::vec((0u64..40, 1u64..12, any::<bool>(), 1u64..4, 0u64..80), 1..12),
        small in any::<bool>(),
    ) {
        let mut volume = volume("");
        for number in 0..40 {
            record(&mut volume, &name(number), &contents(number, FRAME));
        }
        volume.sync().unwrap();
        let disk = volume.unmount().unwrap();
        let pool = Pool::new(Bytes::from_mib(if small { 64 } else { 128 }), false).unwrap();
        let mut volume = SimVolume::mount(disk, &pool, Config::default(), 7).unwrap();
        volume.audit_every(50);
        let mut kept_open = Vec::new();
        for (from, count, backward, step, milliseconds) in steps {
            for index in 0..count {
                let distance = index * step;
                let number = if backward { from.checked_sub(distance) } else { Some(from + distance) };
                let Some(number) = number.filter(|&number| number < 40) else { break };
                if milliseconds % 7 == 0 {
                    kept_open.push(open(&mut volume, number));
                }
                take(&mut volume, number);
                volume.pass(Duration::from_millis(milliseconds));
            }
        }
        for handle in kept_open {
            volume.with(|core, now| core.release(now, handle));
        }
        volume.pass(Duration::from_secs(6));
        prop_assert_eq!((volume.streams(), volume.core().report().prefetched_bytes), (vec![], 0));
        volume.core().audit().unwrap();
    }
}
