//! Clients that read at several places of a file through one handle: a picture and its sound that lie apart, two clips that
//! dissolve into each other, and whoever comes to the end of a clip and begins again while his requests overtake each other.

use crate::players::{MIB, POLICY, ask, mounted, open};
use avfs_core::core::Operation;
use avfs_core::simulation::SimVolume;
use avfs_core::types::*;
use units::{Bitrate, Bytes, Duration};

const RATE: Bitrate = Bitrate::from_megabits(100);

/// Reads 1 MiB here and there in turn; gives back how often it was not in memory.
fn read_in_turn(
    volume: &mut SimVolume,
    handle: HandleId,
    places: &mut [u64],
    count: u64,
    each: Duration,
) -> u64 {
    let mut waited = 0;
    for _ in 0..count {
        for place in &mut *places {
            if !ask(volume, handle, *place) {
                waited += 1;
                volume.read(handle, *place * MIB, MIB as usize).unwrap();
            }
            *place += 1;
            volume.pass(each);
        }
    }
    waited
}

fn rate_of(volume: &SimVolume) -> u64 {
    let streams = volume.streams();
    assert!(streams.iter().all(|stream| stream.state == StreamService::Admitted), "{streams:?}");
    streams.iter().map(|stream| stream.bits_per_second).sum()
}

/// Each request at the one place was a jump from the other: nothing was read ahead, every request was a seek and taken for a
/// search, and nobody was promised anything.
#[test]
fn a_player_at_two_places_is_read_ahead_of_at_both_and_holds_no_more() {
    let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(512), &[500]);
    let handle = open(&mut volume, inos[0]);
    let mut places = [0, 250];
    let each = RATE.time_for(Bytes(MIB));
    read_in_turn(&mut volume, handle, &mut places, 4, each);
    for step in 0..40 {
        assert_eq!(read_in_turn(&mut volume, handle, &mut places, 1, each), 0, "{step}");
        let bound = volume.streams()[0].buffer_bytes + 2 * 8 * MIB;
        let kept = volume.core().report().prefetched_bytes;
        assert!(kept <= bound, "{kept} of {bound} at {step}");
    }
    assert_eq!(rate_of(&volume), RATE.0, "together they take the file's rate");
    assert_eq!(volume.core().report().unread_bytes, 0, "nothing was given up");
    volume.core().audit().unwrap();
    // From now on it plays only here: what was kept for it there is not, and here it has all of it again.
    let [here, there] = places;
    read_in_turn(&mut volume, handle, &mut [here], 72, each);
    let stream = &volume.streams()[0];
    let (kept, buffer) = (volume.core().report().prefetched_bytes, stream.buffer_bytes);
    assert!(kept > buffer - stream.request_bytes && kept <= buffer + 8 * MIB, "{kept} of {buffer}");
    assert!(volume.core().report().unread_bytes > 0, "what it has not come to at MiB {there}");
    volume.with(|core, now| core.release(now, handle));
    assert_eq!(volume.core().report().prefetched_bytes, 0);
    volume.core().audit().unwrap();
}

/// Who is promised nothing was read ahead of at both places without a bound for both together.
#[test]
fn a_player_at_two_places_without_a_promise_is_read_ahead_of_at_both_and_holds_no_more() {
    let no_stream = "[[stream]]\npath = \"**\"\nclass = \"best-effort\"";
    let (mut volume, inos) = mounted(no_stream, Bytes::from_mib(512), &[500]);
    let handle = open(&mut volume, inos[0]);
    let mut places = [0, 250];
    let each = RATE.time_for(Bytes(MIB));
    read_in_turn(&mut volume, handle, &mut places, 12, each);
    for step in 0..40 {
        assert_eq!(read_in_turn(&mut volume, handle, &mut places, 1, each), 0, "{step}");
        let holdings = volume.core().holdings();
        let (held, allowed) =
            holdings.values().map(|one| (one.for_later(), one.allowed())).next().expect("it reads");
        assert!(Some(held) <= allowed, "{held} of {allowed:?} at {step}");
    }
    assert_eq!(volume.streams(), []);
    volume.core().audit().unwrap();
}

/// Two clips of one file that dissolve into each other were one stream, and half of what they needed was beyond its rate.
#[test]
fn a_player_of_two_places_of_a_file_is_two_streams_as_long_as_it_plays_both() {
    let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(1024), &[500]);
    let handle = open(&mut volume, inos[0]);
    let each = RATE.time_for(Bytes(MIB / 2));
    let mut places = [0, 250];
    // Five seconds of each.
    read_in_turn(&mut volume, handle, &mut places, 60, each);
    assert_eq!(rate_of(&volume), 2 * RATE.0);
    assert_eq!(read_in_turn(&mut volume, handle, &mut places, 60, each), 0);
    assert_eq!(rate_of(&volume), 2 * RATE.0, "it is no copy");
    let bound = volume.streams()[0].buffer_bytes + 2 * 8 * MIB;
    assert!(volume.core().report().prefetched_bytes <= bound);
    // One of them is over.
    assert_eq!(read_in_turn(&mut volume, handle, &mut places[..1], 24, RATE.time_for(Bytes(MIB))), 0);
    assert_eq!(rate_of(&volume), RATE.0);
    volume.core().audit().unwrap();
}

/// A player began a few frames before the end of a clip that it plays in a loop: its requests were at two places and overtook each
/// other, each was a jump, and eleven of them were taken for a search. In a trial of something else three others were refused beside
/// one for four to fifteen seconds, for whom there was room.
#[test]
fn a_player_that_begins_at_the_end_and_goes_on_at_the_begin_does_not_search() {
    let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(512), &[256]);
    let handle = open(&mut volume, inos[0]);
    // As they came once.
    let order = [251, 255, 1, 4, 252, 253, 0, 3, 254, 2, 6, 5];
    let mut known = None;
    for (number, mebibyte) in order.into_iter().enumerate() {
        volume.begin(Operation::Read { handle, offset: mebibyte * MIB, length: MIB as usize });
        known = known.or((!volume.streams().is_empty()).then_some(number));
    }
    let known = known.expect("it plays");
    assert!(known <= 5, "after {known}");
    assert_eq!(rate_of(&volume), RATE.0);
    volume.pass(Duration::from_secs(1));
    assert_eq!(read_in_turn(&mut volume, handle, &mut [7], 60, RATE.time_for(Bytes(MIB))), 0);
}

/// What a client has asked for before it jumps may come after it has: for that it is not there again, and nothing is read ahead.
#[test]
fn what_comes_late_from_where_a_client_was_does_not_take_it_back() {
    let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(512), &[256]);
    let handle = open(&mut volume, inos[0]);
    (0..4).for_each(|mebibyte| _ = volume.read(handle, mebibyte * MIB, MIB as usize).unwrap());
    assert!(volume.core().report().prefetched_bytes > 0);
    for (mebibyte, is_ahead) in [(200, false), (4, false), (201, false), (202, true)] {
        volume.begin(Operation::Read { handle, offset: mebibyte * MIB, length: MIB as usize });
        let kept = volume.core().report().prefetched_bytes;
        assert_eq!(kept > 0, is_ahead, "{kept} at MiB {mebibyte}");
    }
}

/// Who plays twice as fast is the stream that he was; who plays four times as fast cannot be told from a copy, and is not promised
/// anything, but on a free device neither waits.
#[test]
fn a_fast_player_does_not_wait_on_a_free_device() {
    for (factor, streams) in [(2, 1), (4, 0)] {
        let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(1024), &[500]);
        let handle = open(&mut volume, inos[0]);
        let (mut at, each) = ([0], RATE.time_for(Bytes(MIB)) / factor);
        read_in_turn(&mut volume, handle, &mut at, 48, each);
        assert_eq!(read_in_turn(&mut volume, handle, &mut at, 400, each), 0, "{factor} times as fast");
        assert_eq!(rate_of(&volume), streams * RATE.0);
    }
}

/// A look at the index, which lies at the end of the file, was a jump: what was on its way for the player was taken back, and he
/// waited for it when he went on.
#[test]
fn a_player_that_looks_at_the_index_or_the_header_plays_on() {
    let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(512), &[256]);
    let handle = open(&mut volume, inos[0]);
    let each = RATE.time_for(Bytes(MIB));
    let mut at = [20];
    read_in_turn(&mut volume, handle, &mut at, 6, each);
    let (header, index) = (0, 256 * MIB - 65536);
    for looks in [&[index][..], &[header], &[index, header, index], &[index, index]] {
        let kept = volume.core().report().prefetched_bytes;
        let before = volume.streams();
        for &offset in looks {
            let ticket = volume.ticket();
            let outbox = volume.with(|core, now| {
                core.start(now, ticket, Operation::Read { handle, offset, length: 65536 });
                let outbox = core.take_outbox();
                for request in &outbox.requests {
                    assert_eq!(request.length(), Bytes(65536), "what it looks at, and no more");
                    let soon = now.monotonic + Duration::from_millis(250);
                    assert!(request.deadline.is_some_and(|deadline| deadline <= soon), "{request:?}");
                }
                (outbox.cancellations.len(), outbox.requests)
            });
            assert_eq!(outbox.0, 0, "at {offset}");
        }
        assert_eq!(volume.core().report().prefetched_bytes, kept);
        assert_eq!(volume.streams().len(), before.len());
        assert_eq!(read_in_turn(&mut volume, handle, &mut at, 20, each), 0, "after {looks:?}");
    }
    assert_eq!(rate_of(&volume), RATE.0);
    assert_eq!(volume.core().report().unread_bytes, 0);
}

/// The other side of it: a player that begins again with short requests is there from the second one on.
#[test]
fn a_player_that_goes_on_behind_what_it_looked_at_is_there() {
    let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(512), &[256]);
    let handle = open(&mut volume, inos[0]);
    let each = RATE.time_for(Bytes(MIB));
    read_in_turn(&mut volume, handle, &mut [100], 6, each);
    assert!(volume.core().report().prefetched_bytes > 0);
    for part in 0..16 {
        volume.read(handle, part << 16, 1 << 16).unwrap();
        let kept = volume.core().report().prefetched_bytes;
        match part {
            0 => assert!(kept > 0, "it may have looked"),
            1 => assert_eq!(kept, 0, "it is gone"),
            4.. => assert!(kept > 0, "it plays here"),
            _ => {}
        }
    }
    assert_eq!(rate_of(&volume), RATE.0);
}
