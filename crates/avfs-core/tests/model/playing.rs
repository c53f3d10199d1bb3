//! Players for longer than their begin: backward, beside each other, after a pause, after jumps, and with a clock of their own.

use crate::holdings::{LINE, on_line};
use crate::players::{MIB, POLICY, laid, mounted, open};
use crate::sequences::reads;
use avfs_core::config::Config;
use avfs_core::core::Operation;
use avfs_core::simulation::SimVolume;
use avfs_core::types::*;
use avfs_io::pool::Pool;
use units::{Bitrate, Bytes, Duration, Ino};

const RATE: Bitrate = Bitrate::from_megabits(100);

/// The byte that is at every place of a MiB.
fn byte(mebibyte: u64) -> u8 {
    (mebibyte % 251) as u8 + 1
}

/// A volume with a clip of so many MiB, each with a byte of its own, of which nothing is in memory.
fn with_clip(mebibytes: u64) -> (SimVolume, Ino) {
    let (disk, inos) = laid(POLICY, &[mebibytes], |_, mebibyte| byte(mebibyte));
    let pool = Pool::new(Bytes::from_mib(512), false).unwrap();
    let mut volume = SimVolume::mount(disk, &pool, Config::parse(POLICY).unwrap(), 6).unwrap();
    volume.commands();
    (volume, inos[0])
}

/// Takes 1 MiB, whose bytes are right; true: it was in memory.
fn take(volume: &mut SimVolume, handle: HandleId, mebibyte: u64) -> bool {
    let (offset, length) = (mebibyte * MIB, MIB as usize);
    let at_once = volume.with(|core, now| core.read(now, handle, offset, length));
    let is_there = at_once.is_some();
    let data = match at_once {
        Some(data) => data.unwrap().to_vec(),
        None => volume.read(handle, offset, length).unwrap(),
    };
    assert!(data == vec![byte(mebibyte); length], "MiB {mebibyte}");
    is_there
}

/// Plays at the rate; those MiB that were not in memory.
fn play(volume: &mut SimVolume, handle: HandleId, mebibytes: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut next = volume.clock();
    let mut waited = Vec::new();
    for mebibyte in mebibytes {
        if !take(volume, handle, mebibyte) {
            waited.push(mebibyte);
        }
        next += RATE.time_for(Bytes(MIB));
        volume.pass(next.saturating_since(volume.clock()));
    }
    waited
}

/// So much was read since this was asked last.
fn read(volume: &mut SimVolume) -> u64 {
    reads(volume).iter().sum()
}

/// Frames of 4 MiB from the last to the first of these, each from its begin to its end.
fn backward(frames: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
    frames.rev().flat_map(|frame| frame * 4..frame * 4 + 4)
}

/// A volume with a clip of 500 MiB, and memory for a small part of it.
fn with_little_memory() -> (SimVolume, Ino) {
    let (disk, inos) = laid(POLICY, &[500], |_, mebibyte| byte(mebibyte));
    let mut volume = on_line(disk, LINE, Bytes::from_mib(160), Config::parse(POLICY).unwrap());
    volume.commands();
    (volume, inos[0])
}

/// Which way he goes is known when the means of some groups of sixteen requests are. What lies before what he began with is read in
/// the order in which he comes to it, and once.
#[test]
fn a_player_that_goes_backward_finds_it_in_memory() {
    for frames in [0..125, 20..100] {
        let (mut volume, ino) = with_little_memory();
        let handle = open(&mut volume, ino);
        let waited = play(&mut volume, handle, backward(frames.clone()));
        let began = backward(frames.clone()).take(48).min().unwrap();
        assert!(waited.iter().all(|mebibyte| *mebibyte >= began), "{waited:?}");
        let (read, played) = (read(&mut volume), frames.count() as u64 * 4 * MIB);
        assert!(read <= played / 10 * 11, "{read} for {played}");
        let [stream] = &volume.streams()[..] else { panic!("{:?}", volume.streams()) };
        assert_eq!(
            (stream.state, stream.bits_per_second, stream.missed),
            (StreamService::Admitted, RATE.0, 0)
        );
        volume.core().audit().unwrap();
    }
}

/// What he comes from is in memory as far as it goes, and by the end of that it is known which way he goes.
#[test]
fn a_player_that_turns_finds_it_in_memory_both_ways() {
    let (mut volume, ino) = with_little_memory();
    let handle = open(&mut volume, ino);
    let waited = play(&mut volume, handle, 0..300);
    assert!(waited.iter().all(|mebibyte| *mebibyte < 4), "{waited:?}");
    assert_eq!(play(&mut volume, handle, backward(0..75)), []);
    assert_eq!(play(&mut volume, handle, 0..300), []);
    let read = read(&mut volume);
    assert!(read <= 3 * 330 * MIB, "{read} for {}", 3 * 300 * MIB);
    volume.core().audit().unwrap();
}

/// Each block was read once for the one and once for the other.
#[test]
fn two_editors_on_one_file_have_it_read_once() {
    const CLIP: u64 = 400;
    let (disk, inos) = laid(POLICY, &[CLIP], |_, mebibyte| byte(mebibyte));
    let mut volume = on_line(disk, LINE, Bytes::from_mib(192), Config::parse(POLICY).unwrap());
    volume.commands();
    let handles = [open(&mut volume, inos[0]), open(&mut volume, inos[0])];
    // Three seconds apart.
    const APART: u64 = 36;
    let mut next = volume.clock();
    for mebibyte in 0..CLIP + APART {
        for (handle, at) in handles.into_iter().zip([Some(mebibyte), mebibyte.checked_sub(APART)]) {
            if let Some(at) = at.filter(|at| *at < CLIP) {
                let is_there = take(&mut volume, handle, at);
                assert!(is_there || handle == handles[0] && at < 4, "MiB {at}");
            }
        }
        next += RATE.time_for(Bytes(MIB));
        volume.pass(next.saturating_since(volume.clock()));
    }
    let [stream] = &volume.streams()[..] else { panic!("{:?}", volume.streams()) };
    assert_eq!(
        (stream.state, stream.bits_per_second, stream.missed),
        (StreamService::Admitted, 2 * RATE.0, 0)
    );
    let read = read(&mut volume);
    assert!(read <= CLIP * MIB / 100 * 105, "{read} for {}", CLIP * MIB);
}

/// Who pauses for longer than his reservation's time is kept for him finds what was ahead of him, however much others have read
/// meanwhile, and it is his again when he goes on.
#[test]
fn a_player_that_pauses_goes_on_from_memory_as_the_stream_that_it_was() {
    let policy = "[[stream]]\npath = \"0.mov\"\nbitrate = \"100 Mbit/s\"";
    let (disk, inos) = laid(policy, &[200, 300], |_, mebibyte| byte(mebibyte));
    let mut volume = on_line(disk, LINE, Bytes::from_mib(160), Config::parse(policy).unwrap());
    let [handle, other] = [0, 1].map(|number| open(&mut volume, inos[number]));
    volume.commands();
    let service = |volume: &SimVolume| -> Vec<_> {
        volume.streams().iter().map(|one| (one.state, one.bits_per_second, one.missed)).collect()
    };
    play(&mut volume, handle, 0..60);
    assert_eq!(service(&volume), [(StreamService::Admitted, RATE.0, 0)]);
    let ahead = volume.core().report().prefetched_bytes;
    (0..300).for_each(|mebibyte| _ = take(&mut volume, other, mebibyte));
    volume.with(|core, now| core.release(now, other));
    volume.pass(Duration::from_secs(15));
    assert_eq!(service(&volume), [(StreamService::Paused, RATE.0, 0)]);
    assert!(ahead > 0 && volume.core().report().prefetched_bytes >= ahead);
    assert_eq!(play(&mut volume, handle, 60..120), []);
    assert_eq!(service(&volume), [(StreamService::Admitted, RATE.0, 0)]);
    assert_eq!(play(&mut volume, handle, 120..200), []);
    assert_eq!(read(&mut volume), (200 + 300) * MIB, "nothing twice");
}

/// Who jumps is still who was promised something: nothing is given back, and nothing declared anew.
#[test]
fn a_jump_keeps_the_reservation() {
    let (mut volume, ino) = with_clip(500);
    let handle = open(&mut volume, ino);
    play(&mut volume, handle, 0..20);
    for place in [200, 40, 450, 120] {
        let ticket = volume.begin(Operation::Read { handle, offset: place * MIB, length: MIB as usize });
        let streams = volume.streams();
        let [stream] = &streams[..] else { panic!("at MiB {place}: {streams:?}") };
        assert_eq!((stream.state, stream.bits_per_second), (StreamService::Admitted, RATE.0), "MiB {place}");
        volume.finish(ticket);
        play(&mut volume, handle, place + 1..place + 20);
        assert_eq!(volume.streams()[0].state, StreamService::Admitted, "MiB {place}");
    }
    let ticket = volume.ticket();
    let told = volume.with(|core, now| {
        core.start(now, ticket, Operation::Read { handle, offset: 300 * MIB, length: MIB as usize });
        core.take_outbox().streams
    });
    assert_eq!(told, []);
}

/// Neither a policy nor the file itself says a rate: it is what a client takes by its clock, and a twentieth more, because it varies.
#[test]
fn a_rate_that_is_observed_is_declared_with_a_margin() {
    for megabits in [50, 100, 180] {
        let (mut volume, inos) = mounted("", Bytes::from_mib(512), &[200]);
        let handle = open(&mut volume, inos[0]);
        let rate = Bitrate::from_megabits(megabits);
        let mut next = volume.clock();
        for mebibyte in 0..150 {
            volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
            next += rate.time_for(Bytes(MIB));
            volume.pass(next.saturating_since(volume.clock()));
        }
        let [stream] = &volume.streams()[..] else { panic!("{:?}", volume.streams()) };
        let declared = rate.0 / 20 * 21;
        assert!(stream.bits_per_second.abs_diff(declared) <= declared / 100, "{megabits}: {stream:?}");
        assert_eq!(stream.state, StreamService::Admitted);
        let report = volume.core().explain_policy(inos[0]).unwrap();
        let said = report.settings.into_iter().find(|row| row.name == "rate").unwrap();
        assert_eq!(said.decided_by, PolicySource::Observation);
    }
}
