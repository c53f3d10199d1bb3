//! Policies on the volume: who decides what for which file, against the definition; and what that does to streams.

use crate::players::wave;
use avfs_core::Error;
use avfs_core::config::{Config, Rate, Settings};
use avfs_core::core::{Core, Operation, Outcome, RateSource, WriteStart};
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::*;
use avfs_io::pool::Pool;
use proptest::prelude::*;
use proptest::sample::Index;
use rtsched::{Class, Direction};
use std::collections::{BTreeMap, BTreeSet};
use units::{Bitrate, Bytes, Duration, Ino};

fn mount(config: &str) -> SimVolume {
    mount_with(Bytes::from_mib(64), config)
}

fn mount_with(memory: Bytes, config: &str) -> SimVolume {
    let pool = Pool::new(memory, false).unwrap();
    SimVolume::mount(formatted(Bytes(memory.0 * 4)), &pool, Config::parse(config).unwrap(), 5).unwrap()
}

fn make_directory(volume: &mut SimVolume, parent: Ino, name: &str) -> Ino {
    let made = volume
        .with(|core, now| core.make_directory(now, Caller::default(), parent, name.as_bytes(), 0o755, 0))
        .unwrap();
    made.attributes.ino
}

fn make_file(volume: &mut SimVolume, parent: Ino, name: &str) -> Ino {
    let (ino, handle) = volume.create(parent, name.as_bytes()).unwrap();
    volume.with(|core, now| core.release(now, handle));
    let size = Some(PLAYED_LENGTH * PLAYED_REQUESTS);
    volume.set_attributes(ino, SetAttributes { size, ..SetAttributes::default() }).unwrap();
    ino
}

/// As many requests as it takes to be a player.
const PLAYED_REQUESTS: u64 = 3;
const PLAYED_LENGTH: u64 = 4096;

/// Opens a file; whoever only reads begins to play it.
fn open(volume: &mut SimVolume, ino: Ino, flags: OpenFlags) -> HandleId {
    let handle = volume.with(|core, _| core.open(ino, flags)).unwrap().handle;
    if !flags.contains(OpenFlags::WRITE) {
        for request in 0..PLAYED_REQUESTS {
            volume.read(handle, request * PLAYED_LENGTH, PLAYED_LENGTH as usize).unwrap();
        }
    }
    handle
}

fn set(volume: &mut SimVolume, ino: Ino, name: &str, value: &str) -> Result<(), Error> {
    let name = format!("user.avfs.{name}");
    volume.with(|core, now| core.set_xattr(now, ino, name.as_bytes(), value.as_bytes(), XattrFlags::empty()))
}

fn remove(volume: &mut SimVolume, ino: Ino, name: &str) -> Result<(), Error> {
    let name = format!("user.avfs.{name}");
    volume.with(|core, now| core.remove_xattr(now, ino, name.as_bytes()))
}

fn rename(volume: &mut SimVolume, from: (Ino, &str), to: (Ino, &str)) -> Result<(), Error> {
    let flags = RenameFlags::empty();
    volume.with(|core, now| {
        core.rename(now, Caller::default(), from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), flags)
    })
}

/// What holds for a file: setting → (value, who said so).
fn held(volume: &SimVolume, ino: Ino) -> BTreeMap<String, (String, PolicySource)> {
    let report = volume.core().explain_policy(ino).unwrap();
    report.settings.into_iter().map(|row| (row.name, (row.value, row.decided_by))).collect()
}

fn decided(volume: &SimVolume, ino: Ino, setting: &str) -> (String, PolicySource) {
    held(volume, ino).remove(setting).unwrap()
}

fn directory(path: &str) -> PolicySource {
    PolicySource::Directory { path: path.to_owned() }
}

/// Megabits per second and state of the streams of a file's readers, with one reader.
fn played(volume: &mut SimVolume, ino: Ino) -> Option<u64> {
    let handle = open(volume, ino, OpenFlags::READ);
    let streams = volume.streams();
    volume.with(|core, now| core.release(now, handle));
    streams.iter().find(|stream| stream.ino == ino.0).map(|stream| stream.bits_per_second / 1_000_000)
}

/// Writes 1 MiB at `offset`; true: it was answered at once.
fn is_answered(volume: &mut SimVolume, handle: HandleId, offset: u64) -> bool {
    match volume.with(|core, now| core.write_begin(now, handle, offset, 1 << 20, None)) {
        WriteStart::Copy(mut plan) => {
            plan.copy(&[1; 1 << 20]);
            let ticket = volume.ticket();
            volume.with(|core, now| core.write_end(now, ticket, &mut plan)).is_some()
        }
        other => panic!("{other:?}"),
    }
}

/// A copy filled the memory that may be dirty, and recorders stood in one line with it: each of their writes was answered
/// when the copy's before it were. Two recorders of 100 Mbit/s were too many beside one copy.
#[test]
fn a_recorder_does_not_wait_for_the_writes_of_a_copy_unless_it_exceeds_its_rate() {
    let policy = "[[stream]]\npath = \"recording\"\nbitrate = \"100 Mbit/s\"\ndeadline_window = \"1 s\"";
    let mut volume = mount_with(Bytes::from_mib(256), policy);
    let (_, copy) = volume.create(Ino::ROOT, b"copy").unwrap();
    let (recorded, recording) = volume.create(Ino::ROOT, b"recording").unwrap();
    // Its network pauses, and it has eight seconds to give at once.
    assert!(is_answered(&mut volume, recording, 0));
    volume.pass(Duration::from_secs(8));
    volume.sync().unwrap();
    // Half of the memory.
    let answered = (0..256).take_while(|mebibyte| is_answered(&mut volume, copy, mebibyte << 20)).count();
    assert_eq!(answered, 128);
    // 50,000,000 bytes are four seconds; its terms may need more.
    let may_wait = volume.streams()[0].buffer_bytes.max(50_000_000);
    let answered =
        (1..256).take_while(|mebibyte| is_answered(&mut volume, recording, mebibyte << 20)).count() as u64;
    assert_eq!(answered, may_wait >> 20);
    volume.sync().unwrap();
    assert!(is_answered(&mut volume, copy, 0));
    volume.core().audit().unwrap();
    assert_eq!(volume.core().attributes(recorded).unwrap().size, (answered + 2) << 20);
}

/// A folder of twelve films was copied onto the volume, each of them no faster than twice its rate. That were twelve recorders,
/// who held all the device had to give, and one player beside them was late.
#[test]
fn a_folder_that_is_copied_here_does_not_hold_the_place_of_recorders() {
    let mut volume =
        mount_with(Bytes::from_mib(1536), "[[stream]]\npath = \"**/*.mov\"\nbitrate = \"100 Mbit/s\"");
    let films: Vec<_> = (0..4)
        .map(|number| volume.create(Ino::ROOT, format!("{number}.mov").as_bytes()).unwrap().1)
        .collect();
    let (recorded_file, recording) = volume.create(Ino::ROOT, b"recording.mov").unwrap();
    let plays = Bitrate::from_megabits(100).time_for(Bytes::from_mib(1));
    let recorded = |volume: &mut SimVolume| -> Vec<u64> {
        volume.streams().iter().filter(|stream| stream.writes).map(|stream| stream.ino).collect()
    };
    assert_eq!(recorded(&mut volume).len(), 5);
    for mebibyte in 0..12 {
        assert!(films.iter().all(|film| is_answered(&mut volume, *film, mebibyte << 20)));
        assert!(is_answered(&mut volume, recording, mebibyte << 20));
        volume.pass(plays);
    }
    // Whoever gives twelve pieces a second to each file has the clock of a recorder.
    assert_eq!(recorded(&mut volume).len(), 5);
    for mebibyte in 12..60 {
        assert!(films.iter().all(|film| is_answered(&mut volume, *film, mebibyte << 20)));
    }
    assert_eq!(recorded(&mut volume), [recorded_file.0]);
    for mebibyte in 60..108 {
        for film in &films {
            is_answered(&mut volume, *film, mebibyte << 20);
            volume.pass(plays * 2 / 3 / 4);
        }
        if mebibyte % 3 > 0 {
            is_answered(&mut volume, recording, mebibyte << 20);
        }
    }
    assert_eq!(recorded(&mut volume), [recorded_file.0], "each rests while the others have their turn");
    let (_, other) = volume.create(Ino::ROOT, b"other").unwrap();
    let mut ends = (0..640).cycle();
    for mebibyte in 108..156 {
        ends.find(|mebibyte| !is_answered(&mut volume, other, mebibyte << 20));
        // They are kept from being answered, for longer than a recorder rests.
        assert!(films.iter().all(|film| !is_answered(&mut volume, *film, mebibyte << 20)));
        volume.pass(plays);
    }
    assert_eq!(recorded(&mut volume), [recorded_file.0], "who waits does not rest");
    volume.core().audit().unwrap();
}

#[test]
fn the_nearest_directory_decides_setting_by_setting() {
    let mut volume =
        mount("[[stream]]\npath = \"**/*.mxf\"\nbitrate = \"50 Mbit/s\"\nprefetch_depth = \"8 MiB\"");
    let outer = make_directory(&mut volume, Ino::ROOT, "outer");
    let inner = make_directory(&mut volume, outer, "inner");
    let file = make_file(&mut volume, inner, "a.mxf");
    assert_eq!(played(&mut volume, file), Some(50));
    set(&mut volume, outer, "class", "best-effort").unwrap();
    set(&mut volume, outer, "bitrate", "10 Mbit/s").unwrap();
    // Best effort holds no reservation, whatever its rate.
    assert_eq!(played(&mut volume, file), None);
    set(&mut volume, inner, "bitrate", "20 Mbit/s").unwrap();
    assert_eq!(decided(&volume, file, "rate"), ("20 Mbit/s".to_owned(), directory("/outer/inner")));
    assert_eq!(decided(&volume, file, "class"), ("best-effort".to_owned(), directory("/outer")));
    let pattern = PolicySource::Configuration { entry: 1, path: "**/*.mxf".to_owned() };
    assert_eq!(decided(&volume, file, "prefetch_depth"), ("8 MiB".to_owned(), pattern));
    assert_eq!(decided(&volume, file, "when_full"), ("demote".to_owned(), PolicySource::Default));
    set(&mut volume, file, "class", "real-time").unwrap();
    assert_eq!(decided(&volume, file, "class"), ("real-time".to_owned(), PolicySource::Own));
    assert_eq!(played(&mut volume, file), Some(20));
    remove(&mut volume, inner, "bitrate").unwrap();
    assert_eq!(played(&mut volume, file), Some(10));
}

#[test]
fn a_change_holds_from_the_next_open_on() {
    let mut volume = mount("");
    let shots = make_directory(&mut volume, Ino::ROOT, "shots");
    let file = make_file(&mut volume, shots, "a.mov");
    let rates = |volume: &SimVolume| -> Vec<_> {
        volume.streams().iter().map(|stream| (stream.writes, stream.bits_per_second / 1_000_000)).collect()
    };
    let open = |volume: &mut SimVolume, flags| open(volume, file, flags);
    let first = open(&mut volume, OpenFlags::READ);
    set(&mut volume, shots, "bitrate", "30 Mbit/s").unwrap();
    assert_eq!(rates(&volume), []);
    // One policy for the whole file: the client that was there before is part of the stream.
    let second = open(&mut volume, OpenFlags::READ);
    assert_eq!(rates(&volume), [(false, 60)]);
    set(&mut volume, shots, "bitrate", "40 Mbit/s").unwrap();
    let third = open(&mut volume, OpenFlags::WRITE);
    assert_eq!(rates(&volume), [(false, 80), (true, 40)]);
    // Another window is another reservation.
    set(&mut volume, shots, "deadline_window", "2 s").unwrap();
    let fourth = open(&mut volume, OpenFlags::READ);
    assert_eq!(rates(&volume), [(false, 120), (true, 40)]);
    remove(&mut volume, shots, "bitrate").unwrap();
    volume.with(|core, now| core.release(now, fourth));
    assert_eq!(rates(&volume), [(false, 80), (true, 40)]);
    let fifth = open(&mut volume, OpenFlags::READ);
    assert_eq!(rates(&volume), []);
    for handle in [first, second, third, fifth] {
        volume.with(|core, now| core.release(now, handle));
    }
    assert_eq!(rates(&volume), []);
}

/// The directory of the name that a file has had for longest counts; a rename makes a name new.
#[test]
fn of_several_names_the_oldest_counts() {
    let mut volume = mount("");
    let one = make_directory(&mut volume, Ino::ROOT, "one");
    let other = make_directory(&mut volume, Ino::ROOT, "other");
    set(&mut volume, one, "bitrate", "10 Mbit/s").unwrap();
    set(&mut volume, other, "bitrate", "20 Mbit/s").unwrap();
    let file = make_file(&mut volume, one, "a");
    volume.with(|core, now| core.link(now, file, other, b"b")).unwrap();
    assert_eq!(played(&mut volume, file), Some(10));
    rename(&mut volume, (one, "a"), (one, "c")).unwrap();
    assert_eq!(decided(&volume, file, "rate").1, directory("/other"));
    assert_eq!(played(&mut volume, file), Some(20));
    volume.with(|core, now| core.unlink(now, other, b"b")).unwrap();
    assert_eq!(played(&mut volume, file), Some(10));
    // A directory that moves takes what is below it along.
    rename(&mut volume, (Ino::ROOT, "one"), (other, "one")).unwrap();
    remove(&mut volume, one, "bitrate").unwrap();
    assert_eq!(decided(&volume, file, "rate"), ("20 Mbit/s".to_owned(), directory("/other")));
    // A file without a name has its own attributes only.
    let opened = volume.with(|core, _| core.open(file, OpenFlags::READ)).unwrap();
    volume.with(|core, now| core.unlink(now, one, b"c")).unwrap();
    assert_eq!(decided(&volume, file, "rate").1, PolicySource::Default);
    assert_eq!(volume.core().explain_policy(file).unwrap().path, None);
    volume.with(|core, now| core.release(now, opened.handle));
}

#[test]
fn mistakes_are_refused_and_change_nothing() {
    let mut volume = mount("");
    let file = make_file(&mut volume, Ino::ROOT, "a");
    for (name, value) in [
        ("bitrate", "fast"),
        ("class", ""),
        ("bitrat", "1 Mbit/s"),
        ("path", "**"),
        ("", "x"),
        ("class.", "idle"),
    ] {
        assert_eq!(set(&mut volume, file, name, value), Err(Error::InvalidArgument), "{name}");
    }
    let not_text =
        volume.with(|core, now| core.set_xattr(now, file, b"user.avfs.class", b"\xff", XattrFlags::empty()));
    assert_eq!(not_text, Err(Error::InvalidArgument));
    assert_eq!(volume.core().list_xattrs(file).unwrap(), b"");
    assert_eq!(remove(&mut volume, file, "class"), Err(Error::NoAttribute));
}

/// A backup was not restored over another policy: it sets one attribute after the other, and heard EINVAL.
#[test]
fn of_bitrate_and_frames_per_second_each_takes_the_place_of_the_other() {
    let mut volume = mount("");
    let file = make_file(&mut volume, Ino::ROOT, "a");
    set(&mut volume, file, "class", "real-time").unwrap();
    for (name, value, shown) in [
        ("frames_per_second", "24", "24 frames per second"),
        ("frames_per_second", "25", "25 frames per second"),
        ("bitrate", "1 Mbit/s", "1 Mbit/s"),
        ("frames_per_second", "30", "30 frames per second"),
    ] {
        set(&mut volume, file, name, value).unwrap();
        let names = String::from_utf8(volume.core().list_xattrs(file).unwrap()).unwrap();
        let names: BTreeSet<_> = names.split_terminator('\0').collect();
        assert_eq!(names, ["user.avfs.class", &format!("user.avfs.{name}")].into());
        assert_eq!(decided(&volume, file, "rate"), (shown.to_owned(), PolicySource::Own));
    }
    // It was removed already, which is no mistake.
    remove(&mut volume, file, "bitrate").unwrap();
    // What is refused takes nobody's place.
    assert_eq!(set(&mut volume, file, "bitrate", "fast"), Err(Error::InvalidArgument));
    let replace = |core: &mut Core, now| {
        core.set_xattr(now, file, b"user.avfs.bitrate", b"1 Mbit/s", XattrFlags::REPLACE)
    };
    assert_eq!(volume.with(replace), Err(Error::NoAttribute));
    assert_eq!(decided(&volume, file, "rate").0, "30 frames per second");
    remove(&mut volume, file, "frames_per_second").unwrap();
    for name in ["frames_per_second", "bitrate"] {
        assert_eq!(remove(&mut volume, file, name), Err(Error::NoAttribute), "{name}");
    }
}

/// Of a clip that nobody played it was said that its rate is unknown, and it was not.
#[test]
fn a_client_that_asks_what_holds_for_a_file_hears_what_it_says_itself() {
    let mut volume = mount("");
    let mut make = |name: &[u8], contents: &[u8]| {
        let (ino, handle) = volume.create(Ino::ROOT, name).unwrap();
        volume.write(handle, 0, contents).unwrap();
        volume.with(|core, now| core.release(now, handle));
        ino
    };
    let sound = make(b"sound.wav", &wave(1 << 20));
    let broken = make(b"broken.wav", &wave(1 << 20)[..30]);
    let known = make(b"known.wav", &wave(1 << 20));
    let gone = make(b"gone.wav", &wave(1 << 20));
    set(&mut volume, known, "bitrate", "5 Mbit/s").unwrap();
    // Nothing of it is in memory.
    let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
    let disk = volume.unmount().unwrap();
    let mut volume = SimVolume::mount(disk, &pool, Config::default(), 6).unwrap();
    let rate = |volume: &mut SimVolume, ino| {
        let report = volume.explain(ino).unwrap();
        report.settings.into_iter().find(|row| row.name == "rate").unwrap()
    };
    let said = ("2304 kbit/s".to_owned(), PolicySource::Container);
    let row = rate(&mut volume, sound);
    assert_eq!((row.value, row.decided_by), said);
    for ino in [broken, Ino::ROOT] {
        assert_eq!(rate(&mut volume, ino).decided_by, PolicySource::Default);
    }
    // Who plays this file is not told by it either.
    let container = |row: SettingReport| {
        row.sources.into_iter().find(|source| source.source == PolicySource::Container).unwrap()
    };
    assert_eq!(container(rate(&mut volume, known)).value, None);
    assert_eq!(volume.explain(Ino(999)), Err(Error::Stale));

    // Nobody else hears it, and who records the file is no stream because of it.
    assert_eq!(decided(&volume, sound, "rate").1, PolicySource::Default);
    let recorder = volume.with(|core, _| core.open(sound, OpenFlags::WRITE)).unwrap().handle;
    let row = rate(&mut volume, sound);
    assert_eq!((row.value, row.decided_by), said);
    assert_eq!(volume.streams(), []);
    volume.with(|core, now| core.release(now, recorder));

    // It goes while its beginning is read.
    let ticket = volume.begin(Operation::Explain { ino: gone, probing: None });
    volume.with(|core, now| core.unlink(now, Ino::ROOT, b"gone.wav")).unwrap();
    let Outcome::Policy(_) = volume.finish(ticket) else { panic!("it is an explanation") };
    assert_eq!(volume.explain(gone), Err(Error::Stale));
    volume.core().audit().unwrap();
}

/// As Windows spells the names of attributes.
#[test]
fn capitals_in_the_name_of_an_attribute_mean_nothing() {
    let mut volume = mount("");
    let file = make_file(&mut volume, Ino::ROOT, "a");
    let flags = XattrFlags::empty();
    volume.with(|core, now| core.set_xattr(now, file, b"user.AVFS.CLASS", b"idle", flags)).unwrap();
    assert_eq!(volume.core().list_xattrs(file).unwrap(), b"user.avfs.class\0");
    assert_eq!(volume.core().get_xattr(file, b"user.Avfs.Class"), Ok(&b"idle"[..]));
    volume.with(|core, now| core.set_xattr(now, file, b"user.other", b"x", flags)).unwrap();
    assert_eq!(volume.core().get_xattr(file, b"user.OTHER"), Err(Error::NoAttribute));
    volume.with(|core, now| core.remove_xattr(now, file, b"user.AVFS.class")).unwrap();
    assert_eq!(volume.core().list_xattrs(file).unwrap(), b"user.other\0");
}

#[test]
fn policies_are_there_after_a_remount() {
    let mut volume = mount("");
    let shots = make_directory(&mut volume, Ino::ROOT, "shots");
    let file = make_file(&mut volume, shots, "a.mov");
    set(&mut volume, shots, "bitrate", "30 Mbit/s").unwrap();
    let disk = volume.unmount().unwrap();
    let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
    let mut volume = SimVolume::mount(disk, &pool, Config::default(), 6).unwrap();
    assert_eq!(played(&mut volume, file), Some(30));
}

/// Below everything that somebody wrote down.
#[test]
fn what_was_found_in_a_file_is_heard_last_and_at_once() {
    let mut volume = mount("");
    let file = make_file(&mut volume, Ino::ROOT, "a.mov");
    let rate = |megabits| Settings {
        rate: Some(Rate::Bitrate(Bitrate::from_megabits(megabits))),
        ..Settings::default()
    };
    let record_rate = |volume: &mut SimVolume, source, settings| {
        volume.with(|core, _| core.record_rate(file, source, settings))
    };
    volume.sync().unwrap();
    assert_eq!(record_rate(&mut volume, RateSource::Container, rate(10)), Err(Error::Stale));
    let handle = open(&mut volume, file, OpenFlags::READ);
    record_rate(&mut volume, RateSource::Observation, rate(5)).unwrap();
    assert_eq!(decided(&volume, file, "rate"), ("5 Mbit/s".to_owned(), PolicySource::Observation));
    record_rate(&mut volume, RateSource::Container, rate(10)).unwrap();
    assert_eq!(decided(&volume, file, "rate"), ("10 Mbit/s".to_owned(), PolicySource::Container));
    assert_eq!(volume.streams()[0].bits_per_second, 10_000_000);
    set(&mut volume, Ino::ROOT, "bitrate", "20 Mbit/s").unwrap();
    assert_eq!(played(&mut volume, file), Some(40), "two readers of 20 Mbit/s");
    volume.with(|core, now| core.release(now, handle));
}

/// The megabytes in memory after somebody began to read from the start.
fn delivered_ahead(config: &str) -> u64 {
    let (mut volume, handle) = player(config);
    for request in 0..3 {
        volume.read(handle, request << 20, 1 << 20).unwrap();
    }
    volume.pass(Duration::from_millis(500));
    volume.core().report().cache_used_bytes >> 20
}

#[test]
fn a_reader_has_what_its_policy_says_read_ahead() {
    let entry = |depth: &str| format!("[[stream]]\npath = \"**\"\nprefetch_depth = \"{depth}\"");
    // What it asks for and no more: once, it was given the rest of an extent.
    assert_eq!(delivered_ahead(&entry("0 B")), 3);
    assert_eq!(delivered_ahead(&entry("8 MiB")), 16);
    // The player is at 3 MiB: so much is ahead of it.
    assert_eq!(delivered_ahead(&entry("12 MiB")), 16);
    assert_eq!(delivered_ahead(&entry("13 MiB")), 24);
    assert_eq!(delivered_ahead(&entry("32 MiB")), 40);
    // A quarter of the cache at the most.
    assert_eq!(delivered_ahead(&entry("1 GiB")), 64);
    assert_eq!(delivered_ahead(""), 24);
}

/// A recorder that stops and another one beside it: how far they are apart is the window.
#[test]
fn a_recorder_keeps_the_free_space_ahead_that_its_policy_says() {
    let apart = |window: &str| {
        let mut volume = mount("");
        set(&mut volume, Ino::ROOT, "allocation_window", window).unwrap();
        let mut starts = Vec::new();
        for name in [b"a", b"b"] {
            let (ino, handle) = volume.create(Ino::ROOT, name).unwrap();
            for mebibyte in 0..9 {
                volume.write(handle, mebibyte << 20, &[7; 1 << 20]).unwrap();
            }
            volume.fsync(ino).unwrap();
            starts.push(volume.core().extents(ino).unwrap()[0].device_offset >> 20);
        }
        starts[1] - starts[0]
    };
    let (narrow, wide) = (apart("16 MiB"), apart("64 MiB"));
    assert_eq!((narrow, wide), (16, 64));
}

#[test]
fn a_file_whose_policy_refuses_says_for_what_there_must_be_room() {
    let mut volume = mount("");
    let file = make_file(&mut volume, Ino::ROOT, "a");
    let admission = |volume: &mut SimVolume| {
        let opened = volume.with(|core, _| core.open(file, OpenFlags::READ)).unwrap();
        volume.with(|core, now| core.release(now, opened.handle));
        opened.admission.map(|wanted| wanted.rate)
    };
    set(&mut volume, file, "when_full", "refuse").unwrap();
    assert_eq!(admission(&mut volume), None, "without a rate there is nothing to have room for");
    set(&mut volume, file, "bitrate", "1 Mbit/s").unwrap();
    assert_eq!(admission(&mut volume), Some(Bitrate::from_megabits(1)));
    set(&mut volume, file, "when_full", "demote").unwrap();
    assert_eq!(admission(&mut volume), None);
}

/// Megabits per second and state of a file's streams, players first.
fn streams(volume: &SimVolume) -> Vec<(bool, u64, StreamService)> {
    let all = volume.streams();
    all.iter().map(|one| (one.writes, one.bits_per_second / 1_000_000, one.state)).collect()
}

#[test]
fn what_clients_declare_adds_up_and_ends_with_them() {
    use StreamService::{Admitted, Waiting};
    let mut volume = mount("");
    let file = make_file(&mut volume, Ino::ROOT, "a.mov");
    let open = |volume: &mut SimVolume, flags| open(volume, file, flags);
    let declare = |volume: &mut SimVolume, handle, megabits| {
        let rate = Some(Bitrate::from_megabits(megabits));
        volume.with(|core, _| core.declare(handle, Declaration { rate, period: None }))
    };
    let [one, other] = [0; 2].map(|_| open(&mut volume, OpenFlags::READ));
    let writer = open(&mut volume, OpenFlags::READ | OpenFlags::WRITE);
    declare(&mut volume, one, 30).unwrap();
    assert_eq!(streams(&volume), [(false, 30, Admitted)]);
    declare(&mut volume, other, 20).unwrap();
    declare(&mut volume, one, 10).unwrap();
    declare(&mut volume, writer, 40).unwrap();
    assert_eq!(streams(&volume), [(false, 30, Admitted), (true, 40, Admitted)]);
    // A client that declares nothing counts with the policy's rate, once there is one.
    set(&mut volume, file, "bitrate", "5 Mbit/s").unwrap();
    let third = open(&mut volume, OpenFlags::READ);
    assert_eq!(streams(&volume), [(false, 35, Admitted), (true, 40, Admitted)]);
    // Only the period: the rate remains the policy's.
    let period = Declaration { rate: None, period: Some(Duration::from_secs(1)) };
    volume.with(|core, _| core.declare(other, period)).unwrap();
    assert_eq!(streams(&volume)[0], (false, 20, Admitted));
    // Shorter than the device takes for one of its requests cannot be promised.
    let short = Declaration { rate: None, period: Some(Duration::from_millis(1)) };
    volume.with(|core, _| core.declare(other, short)).unwrap();
    let waiting = volume.streams()[0].clone();
    assert_eq!((waiting.state, waiting.lacking), (Waiting, Some(StreamLack::Deadline)));
    volume.with(|core, _| core.declare(other, period)).unwrap();
    volume.with(|core, now| core.release(now, one));
    assert_eq!(streams(&volume)[0], (false, 10, Admitted));
    // Nobody can talk a volume into more than its device carries.
    declare(&mut volume, writer, 900_000).unwrap();
    let kept = volume.streams()[1].clone();
    assert_eq!((kept.bits_per_second, kept.lacking.is_some()), (40_000_000, true));
    volume.with(|core, _| core.declare(writer, Declaration::default())).unwrap();
    assert_eq!(streams(&volume)[1], (true, 5, Admitted));
    // An administrator who wants the file to give way is not overruled.
    set(&mut volume, file, "class", "idle").unwrap();
    let fourth = open(&mut volume, OpenFlags::READ);
    assert_eq!(streams(&volume), []);
    assert_eq!(declare(&mut volume, fourth, 1), Err(Error::NotPermitted));
    assert_eq!(volume.with(|core, _| core.declare(fourth, Declaration::default())).err(), None);
    remove(&mut volume, file, "class").unwrap();
    for handle in [other, writer, third, fourth] {
        volume.with(|core, now| core.release(now, handle));
    }
    assert_eq!(streams(&volume), []);
    assert_eq!(declare(&mut volume, one, 1), Err(Error::BadHandle));
    remove(&mut volume, file, "bitrate").unwrap();
    let alone = open(&mut volume, OpenFlags::READ);
    declare(&mut volume, alone, 900_000).unwrap();
    assert_eq!(streams(&volume), [(false, 900_000, Waiting)]);
    volume.with(|core, now| core.release(now, alone));
}

/// A player of 64 MiB of which nothing is in memory.
fn player(config: &str) -> (SimVolume, HandleId) {
    let mut volume = mount(config);
    let (ino, handle) = volume.create(Ino::ROOT, b"a.mov").unwrap();
    for mebibyte in 0..64 {
        volume.write(handle, mebibyte << 20, &[7; 1 << 20]).unwrap();
    }
    volume.fsync(ino).unwrap();
    let disk = volume.unmount().unwrap();
    let pool = Pool::new(Bytes::from_mib(256), false).unwrap();
    let mut volume = SimVolume::mount(disk, &pool, Config::parse(config).unwrap(), 6).unwrap();
    let handle = volume.with(|core, _| core.open(ino, OpenFlags::READ)).unwrap().handle;
    (volume, handle)
}

/// The classes in which the device reads a file's data, or writes them.
fn classes(volume: &mut SimVolume, ino: Ino, direction: Direction) -> Vec<Class> {
    let extents = volume.core().extents(ino).unwrap();
    let is_its = |at: u64| {
        extents
            .iter()
            .any(|extent| (extent.device_offset..extent.device_offset + extent.length).contains(&at))
    };
    let commands = volume.commands().into_iter();
    let its = commands.filter(|command| command.direction == direction && is_its(command.offset.0));
    its.map(|command| command.class).collect()
}

/// Of those who wait for what they wrote to be there nobody stands behind copies.
#[test]
fn the_device_is_given_the_class_that_the_policy_says() {
    let all = |classes: &[Class], class| !classes.is_empty() && classes.iter().all(|one| *one == class);
    for (said, class) in
        [("real-time", Class::RealTime), ("best-effort", Class::BestEffort), ("idle", Class::Idle)]
    {
        let config = format!("[[stream]]\npath = \"**\"\nclass = \"{said}\"");
        let mut volume = mount_with(Bytes::from_mib(256), &config);
        volume.commands();
        let (ino, handle) = volume.create(Ino::ROOT, b"a.mov").unwrap();
        for mebibyte in 0..32 {
            volume.write(handle, mebibyte << 20, &[7; 1 << 20]).unwrap();
        }
        volume.pass(Duration::from_secs(1));
        let written = classes(&mut volume, ino, Direction::Write);
        assert!(all(&written, class), "{said}: {written:?}");
        volume.write(handle, 32 << 20, &[7; 4096]).unwrap();
        volume.fsync(ino).unwrap();
        let awaited = classes(&mut volume, ino, Direction::Write);
        assert!(all(&awaited, class.min(Class::BestEffort)), "{said}: {awaited:?}");

        let disk = volume.unmount().unwrap();
        let pool = Pool::new(Bytes::from_mib(256), false).unwrap();
        let mut volume = SimVolume::mount(disk, &pool, Config::parse(&config).unwrap(), 6).unwrap();
        volume.commands();
        let handle = volume.with(|core, _| core.open(ino, OpenFlags::READ)).unwrap().handle;
        for mebibyte in 0..32 {
            volume.read(handle, mebibyte << 20, 1 << 20).unwrap();
            volume.pass(Duration::from_millis(84));
        }
        let read = classes(&mut volume, ino, Direction::Read);
        assert!(all(&read, class), "{said}: {read:?}");
    }
}

/// What a reader asks for first, and what the streams of a reader and of a recorder are declared with.
#[test]
fn a_deadline_window_is_what_the_scheduler_is_told() {
    let windows = |window: &str| {
        let config = format!("[[stream]]\npath = \"**\"\nbitrate = \"100 Mbit/s\"\n{window}");
        let (mut volume, handle) = player(&config);
        let tickets = [0; 3].map(|_| volume.ticket());
        let (requests, mut told, begun) = volume.with(|core, now| {
            let mut requests = Vec::new();
            for (mebibyte, ticket) in (0..).zip(tickets) {
                core.start(now, ticket, Operation::Read { handle, offset: mebibyte << 20, length: 1 << 20 });
                if requests.is_empty() {
                    requests = core.take_outbox().requests;
                }
            }
            (requests, core.take_outbox().streams, now.monotonic)
        });
        told.extend(volume.with(|core, now| {
            let flags = OpenFlags::WRITE;
            core.create(now, Caller::default(), Ino::ROOT, b"b.mov", 0o644, 0, flags).unwrap();
            core.take_outbox().streams
        }));
        let [(_, Some((played, _))), (_, Some((recorded, _)))] = told[..] else { panic!("{told:?}") };
        (
            requests[0].deadline.map(|deadline| deadline.saturating_since(begun)),
            [played.deadline, recorded.deadline],
        )
    };
    let usual = Some(Duration::from_millis(500));
    assert_eq!(windows(""), (usual, [None; 2]), "the admission chooses");
    let long = Some(Duration::from_secs(5));
    assert_eq!(windows("deadline_window = \"5 s\""), (long, [long; 2]));
}

/// Within a millisecond no device brings anything.
#[test]
fn a_stream_is_admitted_only_if_its_deadline_window_can_be_kept() {
    use StreamService::{Admitted, Waiting};
    for (window, state, lacking) in [("1 ms", Waiting, Some(StreamLack::Deadline)), ("5 s", Admitted, None)] {
        let config =
            format!("[[stream]]\npath = \"**\"\nbitrate = \"100 Mbit/s\"\ndeadline_window = \"{window}\"");
        let (mut volume, handle) = player(&config);
        for mebibyte in 0..3 {
            volume.read(handle, mebibyte << 20, 1 << 20).unwrap();
        }
        volume.create(Ino::ROOT, b"b.mov").unwrap();
        let streams: Vec<_> =
            volume.streams().iter().map(|one| (one.writes, one.state, one.lacking)).collect();
        assert_eq!(streams, [(false, state, lacking), (true, state, lacking)], "{window}");
    }
}

/// Whoever may write a file could set `user.avfs.bitrate` on it and was promised nearly all of the device, so that the player
/// of a film whose rate the administrator had set found no room.
#[test]
fn a_users_word_reserves_no_more_than_the_users_share() {
    use StreamService::{Admitted, Waiting};
    const USER: u32 = 1000;
    let mut volume = mount("");
    let make = |volume: &mut SimVolume, name: &str, uid: u32| {
        let ino = make_file(volume, Ino::ROOT, name);
        volume.set_attributes(ino, SetAttributes { uid: Some(uid), ..SetAttributes::default() }).unwrap();
        ino
    };
    let states = |volume: &SimVolume, inos: &[Ino]| {
        let all = volume.streams();
        let state = |ino: &Ino| all.iter().find(|one| one.ino == ino.0).map(|one| (one.state, one.lacking));
        inos.iter().map(|ino| state(ino).unwrap()).collect::<Vec<_>>()
    };
    let beyond = (Waiting, Some(StreamLack::Share));
    let within = (Admitted, None);

    // One file that wants most of the device, and one after the other that wants a little.
    let files: Vec<_> = (0..9).map(|number| make(&mut volume, &format!("{number}.mxf"), USER)).collect();
    for (number, ino) in files.iter().enumerate() {
        set(&mut volume, *ino, "bitrate", if number == 0 { "900 Mbit/s" } else { "60 Mbit/s" }).unwrap();
        open(&mut volume, *ino, OpenFlags::READ);
    }
    let found = states(&volume, &files);
    assert_eq!(found[..2], [beyond, within]);
    let admitted = found.iter().filter(|state| **state == within).count();
    assert!((2..8).contains(&admitted) && found[8] == beyond, "{found:?}");
    // An application of the same user's gets no more by declaring it.
    let declared = make(&mut volume, "declared.mxf", 0);
    let handle = open(&mut volume, declared, OpenFlags::READ);
    let declaration = Declaration { rate: Some(Bitrate::from_megabits(60)), period: None };
    volume.with(|core, _| core.declare_for(USER, handle, declaration)).unwrap();
    assert_eq!(states(&volume, &[declared]), [beyond]);

    // The administrator's words are not counted: on a file of root's, in an attribute that only root can write, in a
    // declaration within what they grant.
    let film = make(&mut volume, "film.mxf", 0);
    set(&mut volume, film, "bitrate", "100 Mbit/s").unwrap();
    let handle = open(&mut volume, film, OpenFlags::READ);
    let declaration = Declaration { rate: Some(Bitrate::from_megabits(100)), period: None };
    volume.with(|core, _| core.declare_for(USER, handle, declaration)).unwrap();
    let trusted = make(&mut volume, "trusted.mxf", USER);
    set(&mut volume, trusted, "bitrate", "900 Mbit/s").unwrap();
    let attribute = b"trusted.avfs.bitrate";
    volume
        .with(|core, now| core.set_xattr(now, trusted, attribute, b"100 Mbit/s", XattrFlags::empty()))
        .unwrap();
    open(&mut volume, trusted, OpenFlags::READ);
    assert_eq!(states(&volume, &[film, trusted]), [within, within]);
    assert_eq!(decided(&volume, trusted, "rate").0, "100 Mbit/s");

    // What root owns and others may write may be anybody's word.
    let open_to_all = make(&mut volume, "open.mxf", 0);
    let permissions = Some(0o666);
    volume.set_attributes(open_to_all, SetAttributes { permissions, ..SetAttributes::default() }).unwrap();
    set(&mut volume, open_to_all, "bitrate", "900 Mbit/s").unwrap();
    open(&mut volume, open_to_all, OpenFlags::READ);
    assert_eq!(states(&volume, &[open_to_all]), [beyond]);
}

/// What is on its way for somebody else has the deadline of the client that waits for it now.
#[test]
fn a_deadline_expedites_what_was_asked_for_before() {
    let (mut volume, handle) = player("");
    let read = |offset| Operation::Read { handle, offset, length: 4096 };
    let first = volume.begin(read(1 << 23));
    let second = volume.ticket();
    let promoted = volume.with(|core, now| {
        core.set_read_deadline(now, handle, Duration::from_millis(3)).unwrap();
        core.start(now, second, read(1 << 23));
        let outbox = core.take_outbox();
        assert!(outbox.requests.is_empty(), "{:?}", outbox.requests);
        let deadlines = outbox.promotions.iter().map(|promotion| (promotion.class, promotion.deadline));
        (deadlines.collect::<Vec<_>>(), now.monotonic)
    });
    let (deadlines, asked_at) = promoted;
    assert_eq!(deadlines, [(Class::RealTime, asked_at + Duration::from_millis(3))]);
    for ticket in [first, second] {
        assert!(matches!(volume.finish(ticket), Outcome::Data(Ok(data)) if data.to_vec() == [7; 4096]));
    }
}

/// A deadline is that of one read: the slack of the request tells which one it had.
#[test]
fn a_deadline_is_attached_to_the_next_read() {
    let (mut volume, handle) = player("");
    let period = Some(Duration::from_millis(200));
    let rate = Some(Bitrate::from_megabits(200));
    volume.with(|core, _| core.declare(handle, Declaration { rate, period })).unwrap();
    let mut slack_of_read = |block: u64, within: Option<Duration>| {
        // Its budget is whole again.
        volume.pass(Duration::from_secs(2));
        if let Some(within) = within {
            volume.with(|core, now| core.set_read_deadline(now, handle, within)).unwrap();
        }
        volume.read(handle, block << 23, 4096).unwrap();
        volume.streams()[0].slack_microseconds.unwrap()
    };
    let within = 0..=200_000;
    assert!(within.contains(&slack_of_read(0, None)));
    assert!((4_000_000..=5_000_000).contains(&slack_of_read(2, Some(Duration::from_secs(5)))));
    assert!(within.contains(&slack_of_read(4, None)));
    // What is in memory already needs no deadline, and uses it up.
    slack_of_read(4, Some(Duration::from_secs(5)));
    assert!(within.contains(&slack_of_read(5, None)));
}

/// What the definition says, of a tree of names.
#[derive(Default)]
struct Definition {
    nodes: BTreeMap<Ino, Node>,
}

#[derive(Default)]
struct Node {
    is_directory: bool,
    /// The oldest first.
    names: Vec<(Ino, String)>,
    settings: BTreeMap<&'static str, String>,
}

impl Definition {
    fn path(&self, ino: Ino) -> String {
        match self.nodes[&ino].names.first() {
            Some((Ino::ROOT, name)) => format!("/{name}"),
            Some((parent, name)) => format!("{}/{name}", self.path(*parent)),
            None => "/".to_owned(),
        }
    }

    fn is_within(&self, ino: Ino, ancestor: Ino) -> bool {
        ino == ancestor
            || self.nodes[&ino].names.first().is_some_and(|(parent, _)| self.is_within(*parent, ancestor))
    }

    fn decided(&self, ino: Ino, setting: &str) -> Option<(String, PolicySource)> {
        if let Some(value) = self.nodes[&ino].settings.get(setting) {
            return Some((value.clone(), PolicySource::Own));
        }
        let (parent, _) = self.nodes[&ino].names.first()?;
        let (value, source) = self.decided(*parent, setting)?;
        Some((value, if source == PolicySource::Own { directory(&self.path(*parent)) } else { source }))
    }

    fn pick(&self, index: Index, fits: impl Fn(&Node) -> bool) -> Option<Ino> {
        let all: Vec<_> = self.nodes.iter().filter(|(_, node)| fits(node)).map(|(ino, _)| *ino).collect();
        (!all.is_empty()).then(|| all[index.index(all.len())])
    }
}

#[derive(Clone, Debug)]
enum Step {
    MakeDirectory(Index),
    MakeFile(Index),
    Link(Index, Index),
    Rename(Index, Index, Index),
    Unlink(Index, Index),
    Set(Index, Index, u64),
    Remove(Index, Index),
}

const SETTINGS: [&str; 3] = ["bitrate", "prefetch_depth", "class"];

fn value_of(setting: &str, number: u64) -> String {
    match setting {
        "bitrate" => format!("{} Mbit/s", number + 1),
        "prefetch_depth" => format!("{} MiB", number + 1),
        _ => ["real-time", "best-effort", "idle"][number as usize % 3].to_owned(),
    }
}

fn step() -> impl Strategy<Value = Step> {
    let i = any::<Index>;
    prop_oneof![
        2 => i().prop_map(Step::MakeDirectory),
        2 => i().prop_map(Step::MakeFile),
        2 => (i(), i()).prop_map(|(file, to)| Step::Link(file, to)),
        3 => (i(), i(), i()).prop_map(|(node, name, to)| Step::Rename(node, name, to)),
        1 => (i(), i()).prop_map(|(file, name)| Step::Unlink(file, name)),
        4 => (i(), i(), 0u64..9).prop_map(|(node, setting, number)| Step::Set(node, setting, number)),
        1 => (i(), i()).prop_map(|(node, setting)| Step::Remove(node, setting)),
    ]
}

struct Pair {
    volume: SimVolume,
    definition: Definition,
    names: u32,
}

impl Pair {
    fn new() -> Self {
        let root = Node { is_directory: true, ..Node::default() };
        let definition = Definition { nodes: [(Ino::ROOT, root)].into() };
        Self { volume: mount(""), definition, names: 0 }
    }

    fn fresh_name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    fn make(&mut self, parent: Index, is_directory: bool) {
        let Some(parent) = self.definition.pick(parent, |node| node.is_directory) else { return };
        let name = self.fresh_name();
        let make = if is_directory { make_directory } else { make_file };
        let ino = make(&mut self.volume, parent, &name);
        let node = Node { is_directory, names: vec![(parent, name)], settings: BTreeMap::new() };
        self.definition.nodes.insert(ino, node);
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::MakeDirectory(parent) => self.make(parent, true),
            Step::MakeFile(parent) => self.make(parent, false),
            Step::Link(file, to) => {
                let file = self.definition.pick(file, |node| !node.is_directory);
                let to = self.definition.pick(to, |node| node.is_directory);
                let (Some(file), Some(to)) = (file, to) else { return };
                let name = self.fresh_name();
                self.volume.with(|core, now| core.link(now, file, to, name.as_bytes())).unwrap();
                self.definition.nodes.get_mut(&file).unwrap().names.push((to, name));
            }
            Step::Rename(node, name, to) => {
                let node = self.definition.pick(node, |node| !node.names.is_empty());
                let to = self.definition.pick(to, |node| node.is_directory);
                let (Some(ino), Some(to)) = (node, to) else { return };
                let names = &self.definition.nodes[&ino].names;
                let at = name.index(names.len());
                let (old, new) = (names[at].clone(), self.fresh_name());
                let renamed = rename(&mut self.volume, (old.0, &old.1), (to, &new));
                assert_eq!(renamed.is_err(), self.definition.is_within(to, ino));
                if renamed.is_ok() {
                    let names = &mut self.definition.nodes.get_mut(&ino).unwrap().names;
                    names.remove(at);
                    names.push((to, new));
                }
            }
            Step::Unlink(file, name) => {
                let Some(ino) = self.definition.pick(file, |node| node.names.len() > 1) else { return };
                let names = &mut self.definition.nodes.get_mut(&ino).unwrap().names;
                let (parent, name) = names.remove(name.index(names.len()));
                self.volume.with(|core, now| core.unlink(now, parent, name.as_bytes())).unwrap();
            }
            Step::Set(node, setting, number) => {
                let Some(ino) = self.definition.pick(node, |_| true) else { return };
                let setting = SETTINGS[setting.index(SETTINGS.len())];
                let value = value_of(setting, number);
                set(&mut self.volume, ino, setting, &value).unwrap();
                self.definition.nodes.get_mut(&ino).unwrap().settings.insert(setting, value);
            }
            Step::Remove(node, setting) => {
                let Some(ino) = self.definition.pick(node, |_| true) else { return };
                let setting = SETTINGS[setting.index(SETTINGS.len())];
                let removed = remove(&mut self.volume, ino, setting);
                let had = self.definition.nodes.get_mut(&ino).unwrap().settings.remove(setting).is_some();
                assert_eq!(removed.is_ok(), had);
            }
        }
    }

    fn compare(&mut self) {
        for (&ino, node) in &self.definition.nodes {
            let held = held(&self.volume, ino);
            for (setting, row) in SETTINGS.into_iter().zip(["rate", "prefetch_depth", "class"]) {
                match self.definition.decided(ino, setting) {
                    Some(expected) => assert_eq!(held[row], expected, "{row} of {ino}"),
                    None => assert_eq!(held[row].1, PolicySource::Default, "{row} of {ino}"),
                }
            }
            let path = self.volume.core().explain_policy(ino).unwrap().path;
            assert_eq!(path, Some(self.definition.path(ino)));
            if !node.is_directory {
                let class = self.definition.decided(ino, "class").map(|(class, _)| class);
                let rate = self.definition.decided(ino, "bitrate");
                let rate = rate.filter(|_| class.is_none_or(|class| class == "real-time"));
                let megabits = rate.map(|(rate, _)| rate.trim_end_matches(" Mbit/s").parse().unwrap());
                assert_eq!(played(&mut self.volume, ino), megabits, "{ino}");
            }
        }
        assert_eq!(self.volume.streams(), []);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn policies_are_inherited_as_defined(steps in prop::collection::vec(step(), 1..60)) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.take(step);
        }
        pair.compare();
    }
}
