//! Recorders: by when what they give is written, and how much of it waits.

use crate::players::{MIB, POLICY};
use avfs_core::config::Config;
use avfs_core::core::{Core, Operation, Ticket, WriteStart};
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::*;
use avfs_io::pool::Pool;
use avfs_io::{IoOperation, IoRequest, Promise};
use rtsched::{Class, Terms};
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

fn data(requests: Vec<IoRequest>) -> Vec<IoRequest> {
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
fn waiting_before_a_device_that_stands(config: &str, memory: Bytes, count: usize) -> (SimVolume, Vec<u64>) {
    let mut volume = volume(config, memory);
    let handles: Vec<HandleId> = (0..count)
        .map(|number| volume.create(Ino::ROOT, format!("{number}.mov").as_bytes()).unwrap().1)
        .collect();
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

/// Of what comes without a promise no more waits than half of the memory, or seven eighths where it keeps a rate that is known; and of
/// each client one piece more, which is not answered before there is less.
#[test]
fn recorders_without_a_reservation_fill_no_more_than_a_part_of_the_memory() {
    let memory = Bytes::from_mib(512);
    for count in [1, 2, 13, 50, 200] {
        for (config, eighths) in [("", 4), (POLICY, 7)] {
            let (mut volume, given) = waiting_before_a_device_that_stands(config, memory, count);
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
