//! Recorders: by when what they give is written, and how much of it waits.

use crate::holdings::on_line;
use crate::players::{MIB, POLICY};
use avfs_core::config::Config;
use avfs_core::core::{Core, Operation, Ticket, WriteStart};
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::*;
use avfs_io::pool::Pool;
use avfs_io::{IoOperation, IoRequest, Promise};
use rtsched::{Class, Terms};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use units::{Bitrate, Bytes, Duration, Ino, Instant, Now};

const RATE: Bitrate = Bitrate::from_megabits(100);
const BLOCK: u64 = 8 * MIB;

fn volume(config: &str, memory: Bytes) -> SimVolume {
    let pool = Pool::new(memory, false).unwrap();
    SimVolume::mount(formatted(Bytes::from_mib(4096)), &pool, Config::parse(config).unwrap(), 5).unwrap()
}

/// A client gives 1 MiB; true: it is answered at once. `None`: nothing was accepted, because there is no memory.
pub(crate) fn give(core: &mut Core, now: Now, ticket: Ticket, handle: HandleId, at: u64) -> Option<bool> {
    match core.write_begin(now, handle, at, MIB as usize, None) {
        WriteStart::Copy(mut plan) => {
            plan.copy(&vec![1; MIB as usize]);
            Some(core.write_end(now, ticket, &mut plan).is_some())
        }
        WriteStart::Later => None,
        WriteStart::Refused(error) => panic!("{error}"),
    }
}

/// From now on a file is one of those that this process has open.
fn opened_by(volume: &mut SimVolume, handle: HandleId, process: u32) {
    volume.with(|core, _| core.set_opener(handle, Opener::process(process)));
}

/// Files that are written, and the rates that are known of them.
fn recorded(volume: &SimVolume) -> BTreeMap<u64, u64> {
    let writes = |stream: &StreamReport| stream.writes.then_some((stream.ino, stream.bits_per_second));
    volume.streams().iter().filter_map(writes).collect()
}

pub(crate) fn data(requests: Vec<IoRequest>) -> Vec<IoRequest> {
    let is_data =
        |one: &IoRequest| matches!(one.operation, IoOperation::Write { .. }) && one.class != Class::Metadata;
    requests.into_iter().filter(is_data).collect()
}

/// What is recorded may wait as long as was promised, because it took as long to come; what somebody waits for may not.
#[test]
fn what_is_recorded_is_written_by_when_its_terms_say() {
    let terms = Terms {
        request: Bytes(BLOCK),
        period: RATE.time_for(Bytes(BLOCK)),
        deadline: Duration::from_millis(2345),
        since: Instant::ZERO,
    };
    for promised in [Some(terms), None] {
        let mut volume = volume(POLICY, Bytes::from_mib(256));
        let tickets = [0; 25].map(|_| volume.ticket());
        volume.with(|core, now| {
            let flags = OpenFlags::WRITE;
            let (entry, opened) =
                core.create(now, Caller::default(), Ino::ROOT, b"take.mov", 0o644, 0, flags).unwrap();
            let streams = core.take_outbox().streams;
            let [(stream, Some(_))] = streams[..] else { panic!("{streams:?}") };
            core.promised(now, Promise { stream, terms: promised });
            let mut written = Vec::new();
            for mebibyte in 0..24 {
                let now = Now { monotonic: now.monotonic + RATE.time_for(Bytes(mebibyte * MIB)), ..now };
                give(core, now, tickets[mebibyte as usize], opened.handle, mebibyte * MIB).unwrap();
                written.extend(data(core.take_outbox().requests).into_iter().map(|one| (now.monotonic, one)));
            }
            assert_eq!(written.len(), 3);
            let within = match promised {
                Some(terms) => terms.deadline,
                // What is usual, and what it plays for.
                None => Duration::from_millis(500) + RATE.time_for(Bytes(BLOCK)),
            };
            for (at, request) in written {
                assert_eq!((request.class, request.stream), (Class::RealTime, Some(stream)));
                assert_eq!((request.length(), request.deadline), (Bytes(BLOCK), Some(at + within)));
            }
            give(core, now, tickets[0], opened.handle, BLOCK * 3).unwrap();
            core.start(now, tickets[24], Operation::Fsync { ino: entry.attributes.ino });
            let awaited = data(core.take_outbox().requests);
            assert_eq!(awaited.len(), 1);
            assert_eq!(awaited[0].deadline, Some(now.monotonic + Duration::from_millis(200)));
        });
    }
}

/// Clients give 1 MiB in turns, each until one of his is not answered, and the device writes nothing: how much of each waits.
fn waiting_before_a_device_that_stands(
    config: &str,
    is_one_opener: bool,
    memory: Bytes,
    count: usize,
) -> (SimVolume, Vec<u64>) {
    let mut volume = volume(config, memory);
    let handles: Vec<HandleId> = (0..count)
        .map(|number| volume.create(Ino::ROOT, format!("{number}.mov").as_bytes()).unwrap().1)
        .collect();
    if is_one_opener {
        handles.iter().for_each(|handle| opened_by(&mut volume, *handle, 1));
    }
    let mut given = vec![0; count];
    let mut goes_on = vec![true; count];
    while goes_on.contains(&true) {
        for number in (0..count).filter(|number| goes_on[*number]).collect::<Vec<_>>() {
            let (ticket, at) = (volume.ticket(), given[number]);
            let answered = volume.with(|core, now| give(core, now, ticket, handles[number], at));
            given[number] += if answered.is_some() { MIB } else { 0 };
            goes_on[number] = answered == Some(true);
        }
    }
    (volume, given)
}

/// Of what comes without a promise no more waits than half of the memory where it is copied, or seven eighths where it may be recorded,
/// at a rate that is known or not; and of each client one piece more, which is not answered before there is less.
#[test]
fn recorders_without_a_reservation_fill_no_more_than_a_part_of_the_memory() {
    let memory = Bytes::from_mib(512);
    for count in [1, 2, 13, 50, 200] {
        for (config, is_one_opener, eighths) in [("", true, 4), ("", false, 7), (POLICY, false, 7)] {
            let (mut volume, given) =
                waiting_before_a_device_that_stands(config, is_one_opener, memory, count);
            let report = volume.core().report();
            let waiting = report.dirty_bytes + report.writing_bytes;
            assert_eq!(waiting, given.iter().sum());
            let bound = memory.0 / 8 * eighths + count as u64 * MIB;
            assert!(waiting > memory.0 / 2 && waiting <= bound, "{waiting} of {count}, {bound}");
            volume.sync().unwrap();
            let report = volume.core().report();
            assert_eq!(report.dirty_bytes + report.writing_bytes, 0);
            volume.core().audit().unwrap();
        }
    }
}

/// It keeps its rate, as far as is known, so it does not wait for the copy; but beside one it has no more waiting than comes in four
/// seconds.
#[test]
fn a_recorder_without_room_has_four_seconds_of_its_rate_waiting_beside_a_copy() {
    let policy = "[[stream]]\npath = \"recording\"\nbitrate = \"100 Mbit/s\"";
    let mut volume = volume(policy, Bytes::from_mib(512));
    let tickets = [0; 512].map(|_| volume.ticket());
    // The device stands.
    volume.with(|core, now| {
        let [copy, recording] = [&b"copy"[..], b"recording"].map(|name| {
            let flags = OpenFlags::WRITE;
            core.create(now, Caller::default(), Ino::ROOT, name, 0o644, 0, flags).unwrap().1.handle
        });
        let streams = core.take_outbox().streams;
        let [(stream, Some(_))] = streams[..] else { panic!("{streams:?}") };
        core.promised(now, Promise { stream, terms: None });
        let mut tickets = tickets.into_iter();
        let mut answered = |handle, each: Duration| {
            let mut at = now;
            let is_answered = |mebibyte: &u64| {
                at.monotonic += each;
                give(core, at, tickets.next().unwrap(), handle, mebibyte * MIB) == Some(true)
            };
            (0..).take_while(is_answered).count() as u64
        };
        assert_eq!(answered(copy, Duration::ZERO), 256, "half of the memory");
        let recorded = answered(recording, RATE.time_for(Bytes(MIB)));
        assert_eq!(recorded, RATE.bytes_in(Duration::from_secs(4)).0 / MIB);
    });
}

/// Each of these files is given these pieces of 1 MiB, one each `every`.
fn give_by_the_clock(volume: &mut SimVolume, files: &[HandleId], every: Duration, pieces: Range<u64>) {
    for at in pieces {
        for handle in files {
            let ticket = volume.ticket();
            assert_eq!(volume.with(|core, now| give(core, now, ticket, *handle, at * MIB)), Some(true));
            volume.pass(every / files.len() as u32);
        }
    }
}

/// Nobody says the rate of what is recorded, and a container that is being written does not either. Each such recorder was best effort, in
/// one line with whoever copied, and of three beside a copy of twelve files two lost units.
#[test]
fn the_rate_of_a_recorder_is_observed_and_declared_with_a_margin() {
    let every = RATE.time_for(Bytes(MIB));
    // One, or two cameras at one workstation.
    for cameras in [1, 2] {
        let mut volume = volume("", Bytes::from_mib(512));
        let takes: Vec<(Ino, HandleId)> = (0..cameras)
            .map(|number| volume.create(Ino::ROOT, format!("take{number}").as_bytes()).unwrap())
            .collect();
        let handles: Vec<HandleId> = takes.iter().map(|(_, handle)| *handle).collect();
        handles.iter().for_each(|handle| opened_by(&mut volume, *handle, 1));
        give_by_the_clock(&mut volume, &handles, every, 0..40);
        assert!(recorded(&volume).is_empty(), "after 3.4 s two spans of two seconds have not passed");
        give_by_the_clock(&mut volume, &handles, every, 40..60);
        for (ino, _) in takes {
            let observed = recorded(&volume)[&ino.0];
            // A twentieth more, as exactly as megabytes can be counted in two seconds.
            assert!((100_000_000..=112_000_000).contains(&observed), "{observed}");
            let report = volume.core().explain_policy(ino).unwrap();
            let said = report.settings.iter().find(|setting| setting.name == "rate").unwrap();
            assert_eq!(said.decided_by, PolicySource::Observation);
        }
        volume.core().audit().unwrap();
    }
}

/// A folder that is copied here over 1 Gbit/s, twelve files at once, as robocopy does: each gets 77 Mbit/s, and rests while the others
/// have their turn. Were the same files given by twelve workstations, each with a clock, they were recorders; and who runs in a
/// namespace of its own, as Samba in a container, has no number by which workstations could be told apart.
#[test]
fn a_folder_that_one_workstation_copies_is_no_recorders() {
    let every = Bitrate::from_megabits(77).time_for(Bytes(MIB));
    for (first, step, recorders) in [(1, 0, 0), (1, 1, 12), (0, 0, 12)] {
        let mut volume = volume("", Bytes::from_mib(2048));
        let handles: Vec<HandleId> = (0..12)
            .map(|number| {
                let handle = volume.create(Ino::ROOT, format!("{number}.mov").as_bytes()).unwrap().1;
                opened_by(&mut volume, handle, first + step * number);
                handle
            })
            .collect();
        give_by_the_clock(&mut volume, &handles, every, 0..60);
        assert_eq!(recorded(&volume).len(), recorders, "process {first}, and {step} more for each");
    }
}

/// A copy asks as soon as it is answered: the time for which it is kept from being answered is no rest, and its pace, which is that of a
/// device of 100 Mbit/s, no clock. So it has no rate, and no more memory than copies have.
#[test]
fn a_copy_that_is_held_back_is_no_recorder() {
    let memory = Bytes::from_mib(256);
    let disk = formatted(Bytes::from_mib(4096));
    let mut volume = on_line(disk, RATE, memory, Config::default());
    let (_, copy) = volume.create(Ino::ROOT, b"copy").unwrap();
    let mut held_back = 0;
    for at in 0..512 {
        let ticket = volume.ticket();
        let answered = volume.with(|core, now| give(core, now, ticket, copy, at * MIB));
        if answered != Some(true) {
            held_back += 1;
            volume.finish(ticket);
        }
        let report = volume.core().report();
        assert!(report.dirty_bytes + report.writing_bytes <= memory.0 / 2 + MIB, "{report:?}");
        assert!(recorded(&volume).is_empty(), "{:?}", recorded(&volume));
    }
    // Sixteen megabytes are written at once, and as many answered.
    assert!(held_back > 20, "{held_back}");
    volume.core().audit().unwrap();
}

/// What is written more slowly than sound, and what is written again and again in a file that is smaller than any clip, is no recording.
#[test]
fn books_that_are_kept_by_the_clock_are_no_recording() {
    let mut volume = volume("", Bytes::from_mib(256));
    let (ino, log) = volume.create(Ino::ROOT, b"log").unwrap();
    let (_, small) = volume.create(Ino::ROOT, b"small").unwrap();
    volume.write(log, 0, &vec![1; 2 << 20]).unwrap();
    for (bytes_each_second, is_recording) in [(120_000, false), (130_000, true)] {
        for number in 0..80_u64 {
            let piece = bytes_each_second / 10;
            volume.write(log, (2 << 20) + number * piece as u64, &vec![1; piece]).unwrap();
            volume.write(small, 0, &vec![1; 100_000]).unwrap();
            volume.pass(Duration::from_millis(100));
        }
        let found: Vec<u64> = recorded(&volume).into_keys().collect();
        assert_eq!(found, if is_recording { vec![ino.0] } else { vec![] }, "{bytes_each_second}");
    }
}

/// A copy has filled the half of the memory that it may, before a device that stands. Who may record at a rate that nobody knows is
/// answered all the same, up to four seconds of 400 Mbit/s; who opened the copy's next file is not.
#[test]
fn a_recorder_of_unknown_rate_does_not_wait_for_a_copy() {
    let mut volume = volume("", Bytes::from_mib(1024));
    let [copy, next, take] = [&b"copy"[..], b"next", b"take"].map(|name| {
        let handle = volume.create(Ino::ROOT, name).unwrap().1;
        opened_by(&mut volume, handle, if name == b"take" { 2 } else { 1 });
        handle
    });
    let tickets = [0; 1024].map(|_| volume.ticket());
    volume.with(|core, now| {
        let (mut at, mut tickets) = (now, tickets.into_iter());
        let mut answered = |handle, each: Duration| {
            let is_answered = |mebibyte: &u64| {
                at.monotonic += each;
                give(core, at, tickets.next().unwrap(), handle, mebibyte * MIB) == Some(true)
            };
            (0..).take_while(is_answered).count() as u64
        };
        assert_eq!(answered(copy, Duration::ZERO), 512);
        assert_eq!(answered(next, Duration::ZERO), 0);
        let given = answered(take, RATE.time_for(Bytes(MIB)));
        assert_eq!(given, Bitrate::from_megabits(400).bytes_in(Duration::from_secs(4)).0 / MIB);
    });
    volume.sync().unwrap();
    volume.core().audit().unwrap();
}

/// Of a device on which all is late each who opened files has his turn, however many files he writes: twelve files of a copy went before
/// each of a recorder's, and what belonged to nobody stood in one line.
#[test]
fn what_is_written_takes_turns_by_opener() {
    let mut volume = volume("", Bytes::from_mib(512));
    let handles = [1, 1, 2].map(|process| {
        let name = format!("{}", volume.clock().as_nanos());
        let handle = volume.create(Ino::ROOT, name.as_bytes()).unwrap().1;
        opened_by(&mut volume, handle, process);
        handle
    });
    let tickets = [0; 48].map(|_| volume.ticket());
    volume.with(|core, now| {
        let mut tickets = tickets.into_iter();
        let streams = handles.map(|handle| {
            for at in 0..16 {
                give(core, now, tickets.next().unwrap(), handle, at * MIB).unwrap();
            }
            let streams: BTreeSet<_> =
                data(core.take_outbox().requests).iter().map(|one| one.stream).collect();
            let [Some(stream)] = streams.into_iter().collect::<Vec<_>>()[..] else { panic!("no stream") };
            stream
        });
        assert_eq!(streams[0], streams[1]);
        assert_ne!(streams[0], streams[2]);
    });
}
