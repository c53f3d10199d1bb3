//! Players: what is read ahead of them, kept for them, and given up when they go elsewhere; and what is a copy.

use avfs_core::config::Config;
use avfs_core::core::{Cancellation, Core, Operation, WriteStart};
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::*;
use avfs_io::pool::Pool;
use avfs_io::sim::SimDisk;
use avfs_io::{Accepted, Promise};
use rtsched::{Class, Confidence, Direction, StreamId, Terms};
use std::collections::BTreeMap;
use std::sync::Arc;
use units::{Bitrate, Bytes, DeviceOffset, Duration, Ino, Instant};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const POLICY: &str = "[[stream]]\npath = \"**\"\nbitrate = \"100 Mbit/s\"";

/// A disk with clips of so many MiB, all of each of which have the byte that `byte` says for them.
pub(crate) fn laid(config: &str, clips: &[u64], byte: impl Fn(usize, u64) -> u8) -> (Arc<SimDisk>, Vec<Ino>) {
    let config = Config::parse(config).unwrap();
    let pool = Pool::new(Bytes::from_mib(256), false).unwrap();
    let mut volume = SimVolume::mount(formatted(Bytes::from_mib(2048)), &pool, config, 5).unwrap();
    let mut inos = Vec::new();
    for (number, &length) in clips.iter().enumerate() {
        let (ino, handle) = volume.create(Ino::ROOT, format!("{number}.mov").as_bytes()).unwrap();
        for mebibyte in 0..length {
            volume.write(handle, mebibyte * MIB, &[byte(number, mebibyte); MIB as usize]).unwrap();
            if (mebibyte + 1).is_multiple_of(8) || mebibyte + 1 == length {
                volume.fsync(ino).unwrap();
            }
        }
        volume.with(|core, now| core.release(now, handle));
        assert_eq!(volume.core().extents(ino).unwrap().len(), 1);
        inos.push(ino);
    }
    (volume.unmount().unwrap(), inos)
}

/// A volume with clips of so many MiB, of which nothing is in memory.
pub(crate) fn mounted(config: &str, memory: Bytes, clips: &[u64]) -> (SimVolume, Vec<Ino>) {
    let (disk, inos) = laid(config, clips, |number, _| number as u8 + 1);
    let pool = Pool::new(memory, false).unwrap();
    (SimVolume::mount(disk, &pool, Config::parse(config).unwrap(), 6).unwrap(), inos)
}

pub(crate) fn open(volume: &mut SimVolume, ino: Ino) -> HandleId {
    volume.with(|core, _| core.open(ino, OpenFlags::READ)).unwrap().handle
}

/// Asks for 1 MiB; true: it was in memory.
pub(crate) fn ask(volume: &mut SimVolume, handle: HandleId, mebibyte: u64) -> bool {
    volume.with(|core, now| core.read(now, handle, mebibyte * MIB, MIB as usize)).is_some()
}

/// A player at its rate finds everything in memory from its fourth request on, and the scheduler sees requests as long
/// as it promised them.
#[test]
fn a_player_reads_from_memory_in_requests_as_long_as_its_terms() {
    let policy = format!("{POLICY}\nprefetch_depth = \"32 MiB\"");
    let (mut volume, inos) = mounted(&policy, Bytes::from_mib(512), &[256]);
    let handle = open(&mut volume, inos[0]);
    volume.commands();
    for mebibyte in 0..4 {
        volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
        volume.pass(Duration::from_millis(84));
    }
    for mebibyte in 4..100 {
        assert!(ask(&mut volume, handle, mebibyte), "MiB {mebibyte}");
        volume.pass(Duration::from_millis(84));
    }
    let stream = &volume.streams()[0];
    assert_eq!((stream.state, stream.missed), (StreamService::Admitted, 0));
    assert_eq!(stream.request_bytes, 32 * MIB);
    let mut reads = volume.commands();
    reads.retain(|command| command.direction == Direction::Read);
    let lengths: Vec<_> = reads.iter().map(|command| command.length.0 / MIB).collect();
    // The first ones before the terms were known, and where the file's two runs meet.
    assert!(lengths.iter().all(|&length| length <= 32), "{lengths:?}");
    assert!(lengths.iter().filter(|&&length| length == 32).count() >= 5, "{lengths:?}");
}

/// A volume on which a file found room in pieces of 3 MiB, and nothing of it is in memory.
fn in_pieces(policy: &str) -> (SimVolume, Ino) {
    let pool = Pool::new(Bytes::from_mib(256), false).unwrap();
    let disk = formatted(Bytes::from_mib(512));
    let mut volume = SimVolume::mount(disk, &pool, Config::parse("").unwrap(), 5).unwrap();
    let write = |volume: &mut SimVolume, name: &str, mebibytes: u64| -> Option<Ino> {
        let (ino, handle) = volume.create(Ino::ROOT, name.as_bytes()).ok()?;
        let mut write = |at| volume.write(handle, at * MIB, &[7; MIB as usize]).is_ok();
        let fits = (0..mebibytes).all(&mut write) && volume.fsync(ino).is_ok();
        volume.with(|core, now| core.release(now, handle));
        volume.with(|core, now| core.forget(now, ino, u64::MAX));
        fits.then_some(ino)
    };
    let neighbours = (0..).take_while(|number| write(&mut volume, &format!("{number}"), 3).is_some()).count();
    for number in (0..neighbours).step_by(2) {
        let remove = |core: &mut Core, now| core.unlink(now, Ino::ROOT, number.to_string().as_bytes());
        volume.with(remove).unwrap();
    }
    volume.sync().unwrap();
    let ino = write(&mut volume, "clip.mov", 60).expect("there is room");
    let disk = volume.unmount().unwrap();
    let pool = Pool::new(Bytes::from_mib(256), false).unwrap();
    (SimVolume::mount(disk, &pool, Config::parse(policy).unwrap(), 6).unwrap(), ino)
}

/// Requests ended where blocks of 8 MiB do, wherever the file's pieces end on the device: each time the piece in between was
/// read in two commands, and on an aged volume every third seek was one of these.
#[test]
fn a_piece_is_read_in_one_command() {
    let (mut volume, ino) = in_pieces(&format!("{POLICY}\nprefetch_depth = \"8 MiB\""));
    let pieces = volume.core().extents(ino).unwrap();
    assert!(pieces.len() > 15 && pieces.iter().all(|piece| piece.length <= 4 * MIB), "{pieces:?}");
    let handle = open(&mut volume, ino);
    volume.commands();
    for mebibyte in 0..60 {
        volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
        volume.pass(Duration::from_millis(84));
    }
    let reads: Vec<_> =
        volume.commands().into_iter().filter(|command| command.direction == Direction::Read).collect();
    // The first block is what the client gets before anybody knows that it plays.
    for piece in pieces.iter().filter(|piece| piece.file_offset >= 8 * MIB) {
        let of_it: Vec<_> = reads
            .iter()
            .filter(|read| (piece.device_offset..piece.device_offset + piece.length).contains(&read.offset.0))
            .map(|read| read.length.0)
            .collect();
        assert_eq!(of_it, [piece.length], "at {}", piece.file_offset);
    }
}

/// What lies ahead of a player is never more than its terms' buffer and the piece it reads from.
#[test]
fn a_player_holds_its_window_and_one_request() {
    for count in [1, 4, 12] {
        let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(2048), &vec![80; count]);
        let handles: Vec<_> = inos.iter().map(|&ino| open(&mut volume, ino)).collect();
        for mebibyte in 0..80 {
            for &handle in &handles {
                volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
            }
            volume.pass(Duration::from_millis(84));
            let bound: u64 = volume.streams().iter().map(|stream| stream.buffer_bytes + 8 * MIB).sum();
            let kept = volume.core().report().prefetched_bytes;
            assert!(mebibyte < 3 || kept <= bound, "{kept} of {bound} at MiB {mebibyte} of {count}");
        }
        assert!(volume.streams().iter().all(|stream| stream.state == StreamService::Admitted));
        for handle in handles {
            volume.with(|core, now| core.release(now, handle));
        }
        assert_eq!(volume.core().report().prefetched_bytes, 0);
        volume.core().audit().unwrap();
    }
}

/// A player that jumped waited until the device had read what was ahead of where it had been.
#[test]
fn a_jump_takes_back_what_is_not_wanted_any_more() {
    let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(512), &[256]);
    let handle = open(&mut volume, inos[0]);
    for mebibyte in 0..3 {
        volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
    }
    let stream = StreamId(volume.streams()[0].ino << 1);
    let jump = Operation::Read { handle, offset: 200 * MIB, length: MIB as usize };
    let ticket = volume.ticket();
    let cancellations = volume.with(|core, now| {
        core.start(now, ticket, jump);
        let mut outbox = core.take_outbox();
        let wanted = outbox.requests.iter().map(|request| request.length().0).sum::<u64>();
        assert_eq!(wanted, MIB, "only what it asks for");
        std::mem::take(&mut outbox.cancellations)
    });
    assert_eq!(cancellations, [Cancellation::Stream(stream)]);
    assert_eq!(volume.core().report().prefetched_bytes, 0);
}

/// A player that jumped a few seconds ahead, to what was on its way for it, had all of that taken back, and nobody asked for it
/// again: it waited for each piece.
#[test]
fn a_jump_to_what_is_on_its_way_keeps_it() {
    let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(512), &[256]);
    let handle = open(&mut volume, inos[0]);
    for mebibyte in 0..3 {
        volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
    }
    let ahead = volume.core().report().prefetched_bytes;
    let to = ahead * 3 / 4 / MIB;
    assert!(to > 24 + 3, "{ahead}: nearer is no jump");
    let jump = Operation::Read { handle, offset: to * MIB, length: MIB as usize };
    let ticket = volume.ticket();
    let outbox = volume.with(|core, now| {
        core.start(now, ticket, jump);
        core.take_outbox()
    });
    let kept = volume.core().report().prefetched_bytes;
    assert!((ahead / 8..=ahead / 4 + 8 * MIB).contains(&kept), "{kept} of {ahead}");
    let is_request = |cancellation: &Cancellation| matches!(cancellation, Cancellation::Request(_));
    assert!(!outbox.cancellations.is_empty() && outbox.cancellations.iter().all(is_request));
    assert!(outbox.requests.is_empty() && !outbox.promotions.is_empty(), "it is on its way");
    volume.pass(Duration::from_secs(2));
    for mebibyte in to + 1..ahead / MIB {
        let data = volume.with(|core, now| core.read(now, handle, mebibyte * MIB, MIB as usize));
        assert!(data.is_some(), "MiB {mebibyte} of {ahead}");
    }
    volume.core().audit().unwrap();
}

/// A player that has little ahead needs something soon, not much of it.
#[test]
fn a_player_that_begins_asks_for_half_a_request_first() {
    let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(512), &[256]);
    let (handle, stream) = (open(&mut volume, inos[0]), StreamId(inos[0].0 << 1));
    let (request, rate) = (Bytes::from_mib(32), Bitrate::from_megabits(100));
    let deadline = rate.time_for(Bytes::from_mib(40));
    let tickets: Vec<_> = (0..12).map(|_| volume.ticket()).collect();
    let asked = volume.with(|core, now| {
        for (offset, &ticket) in (0..).step_by(MIB as usize).zip(&tickets) {
            core.start(now, ticket, Operation::Read { handle, offset, length: MIB as usize });
        }
        let since = now.monotonic;
        let terms = Some(Terms { request, period: rate.time_for(request), deadline, since });
        core.promised(now, Promise { stream, terms });
        core.take_outbox().requests
    });
    // What is wanted at the same time goes in one command. It asks for the first 12 MiB itself, and to 24, 40 and 64 is read ahead:
    // half a request, and then as much as is ahead. Then more than 40 are.
    let mut wanted = BTreeMap::new();
    asked.iter().for_each(|request| *wanted.entry(request.deadline).or_insert(0) += request.length().0 / MIB);
    assert_eq!(wanted.into_values().collect::<Vec<_>>(), [8, 8, 8, 16, 24], "{asked:?}");
}

/// As long as nothing told a copy from a player, it was promised the last of the device. A player is known for one as soon as it rests
/// between what it asks for, and a copy is not before it is known for a copy.
#[test]
fn a_reader_is_known_to_play_when_it_has_rested() {
    for (rest_ms, known) in [(100, true), (99, false)] {
        let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(512), &[500]);
        let (handle, stream) = (open(&mut volume, inos[0]), StreamId(inos[0].0 << 1));
        for mebibyte in 0..12 {
            volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
        }
        let told = |volume: &mut SimVolume, mebibyte: u64| {
            volume.with(|core, now| {
                core.read(now, handle, mebibyte * MIB, MIB as usize).expect("it is in memory").unwrap();
                core.take_outbox().streams
            })
        };
        assert_eq!(told(&mut volume, 12), [], "it is declared, and has not rested");
        volume.pass(Duration::from_millis(rest_ms));
        let streams = told(&mut volume, 13);
        if known {
            assert!(
                matches!(streams[..], [(of, Some((_, Confidence::Known)))] if of == stream),
                "{streams:?}"
            );
        } else {
            assert_eq!(streams, [], "{rest_ms} ms");
        }
        assert_eq!(told(&mut volume, 14), [], "once");
    }
}

/// Whatever a disk is promised to play was reckoned as if it lay inside, where disks are half as fast as outside.
#[test]
fn a_player_is_declared_where_its_file_lies() {
    let (mut volume, inos) = mounted("", Bytes::from_mib(512), &[64, 8]);
    for ino in inos {
        let handle = open(&mut volume, ino);
        let declaration = Declaration { rate: Some(Bitrate::from_megabits(100)), ..Declaration::default() };
        let told = volume.with(|core, _| {
            core.declare(handle, declaration).unwrap();
            core.take_outbox().streams
        });
        let [(_, Some((spec, Confidence::Known)))] = told[..] else { panic!("{told:?}") };
        let last = volume.core().extents(ino).unwrap().pop().unwrap();
        assert_eq!(spec.place, Some(DeviceOffset(last.device_offset + last.length)));
        assert_eq!(spec.piece, None, "it lies in one piece");
    }
}

/// On an aged volume twelve players were admitted where eleven had their frames: a file was reckoned to be read in requests as
/// long as its pieces are on average, and where requests of one length meet pieces of many, each piece ends one.
#[test]
fn a_player_of_a_file_in_pieces_is_declared_with_what_an_access_brings() {
    let pool = Pool::new(Bytes::from_mib(256), false).unwrap();
    let disk = formatted(Bytes::from_mib(1024));
    let mut volume = SimVolume::mount(disk, &pool, Config::default(), 5).unwrap();
    // Nearly full of clips of 24 MiB, of which every second one goes.
    let lay = |volume: &mut SimVolume, name: String, mebibytes: u64| {
        let (ino, handle) = volume.create(Ino::ROOT, name.as_bytes()).unwrap();
        let laid = (0..mebibytes).all(|mebibyte| {
            let written = volume.write(handle, mebibyte * MIB, &[1; MIB as usize]).is_ok();
            written && (!(mebibyte + 1).is_multiple_of(8) || volume.fsync(ino).is_ok())
        });
        volume.with(|core, now| {
            core.release(now, handle);
            core.forget(now, ino, 1);
        });
        (ino, laid)
    };
    for number in 0..36 {
        assert!(lay(&mut volume, number.to_string(), 24).1);
    }
    for number in (0..36).step_by(2) {
        volume.with(|core, now| core.unlink(now, Ino::ROOT, number.to_string().as_bytes())).unwrap();
    }
    volume.sync().unwrap();
    let (ino, laid) = lay(&mut volume, "film".to_owned(), 160);
    assert!(laid);
    let (mut pieces, mut end) = (Vec::new(), 0);
    for extent in volume.core().extents(ino).unwrap() {
        match pieces.last_mut() {
            Some(piece) if end == extent.device_offset => *piece += extent.length,
            _ => pieces.push(extent.length),
        }
        end = extent.device_offset + extent.length;
    }
    assert!(pieces.len() > 3, "{pieces:?}");
    let accesses: u64 = pieces.iter().map(|piece| piece.div_ceil(32 * MIB)).sum();
    let handle = open(&mut volume, ino);
    let declaration = Declaration { rate: Some(Bitrate::from_megabits(100)), ..Declaration::default() };
    let told = volume.with(|core, _| {
        core.declare(handle, declaration).unwrap();
        core.take_outbox().streams
    });
    let [(_, Some((spec, _)))] = told[..] else { panic!("{told:?}") };
    assert_eq!(spec.piece, Some(Bytes(160 * MIB / accesses / 4096 * 4096)), "{pieces:?}");
}

/// What an access brings of a file in pieces was reckoned with the rate of all its clients together. When a second editor opened it,
/// its stream was another one: the reservation of the first was given back, and on a full device both had none.
#[test]
fn a_second_player_of_a_file_in_pieces_changes_its_rate_and_nothing_else() {
    let (mut volume, ino) = in_pieces(POLICY);
    let handles = [open(&mut volume, ino), open(&mut volume, ino)];
    let mut rates = Vec::new();
    for handle in handles {
        for mebibyte in 0..4 {
            let told = volume.with(|core, now| {
                core.read(now, handle, mebibyte * MIB, MIB as usize);
                core.take_outbox().streams
            });
            rates.extend(told.into_iter().map(|(_, wanted)| wanted.map(|(spec, _)| spec.rate.0)));
            volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
        }
    }
    assert_eq!(rates, [Some(100_000_000), Some(200_000_000)], "nothing is given back");
}

/// The last piece of a clip counted as the others, short as it is, and every request of the clip as short as all are on average:
/// the eighth player of 25 to 400 Mbit/s and the thirteenth of 100 were refused, whose frames the device had time for.
#[test]
fn pieces_that_cost_no_access_more_than_one_piece_are_none() {
    let pool = Pool::new(Bytes::from_mib(256), false).unwrap();
    let mut volume = SimVolume::mount(formatted(Bytes::from_mib(2048)), &pool, Config::default(), 5).unwrap();
    // Each has its windows between the other's.
    let clips = ["film", "other"].map(|name| volume.create(Ino::ROOT, name.as_bytes()).unwrap());
    for mebibyte in 0..99 {
        for (ino, handle) in clips {
            volume.write(handle, mebibyte * MIB, &[1; MIB as usize]).unwrap();
            volume.fsync(ino).unwrap();
        }
    }
    let ino = clips[0].0;
    for (_, handle) in clips {
        volume.with(|core, now| core.release(now, handle));
    }
    let lengths: Vec<u64> =
        volume.core().extents(ino).unwrap().iter().map(|extent| extent.length / MIB).collect();
    assert_eq!(lengths, [32, 64, 3]);
    let handle = open(&mut volume, ino);
    let mut piece_at = |megabits| {
        let declaration =
            Declaration { rate: Some(Bitrate::from_megabits(megabits)), ..Declaration::default() };
        let told = volume.with(|core, _| {
            core.declare(handle, declaration).unwrap();
            core.take_outbox().streams
        });
        let [.., (_, Some((spec, _)))] = told[..] else { panic!("{told:?}") };
        assert_eq!(spec.rate, Bitrate::from_megabits(megabits));
        spec.piece
    };
    assert_eq!(piece_at(25), None, "requests of 8 MiB");
    assert_eq!(piece_at(100), None, "of 32");
    // Of 64 it takes three instead of two.
    assert_eq!(piece_at(200), Some(Bytes(99 * 64 * MIB / (99 + 64) / 4096 * 4096)));
}

/// It was left to best effort, behind what the stream itself asked for: the player waited for 8 MiB while 32 behind them were
/// read.
#[test]
fn what_a_player_was_read_ahead_of_is_its_streams_as_soon_as_it_is_one() {
    let (mut volume, inos) = mounted("", Bytes::from_mib(512), &[256]);
    let handle = open(&mut volume, inos[0]);
    volume.read(handle, 0, MIB as usize).unwrap();
    volume.commands();
    let declaration = Declaration { rate: Some(Bitrate::from_megabits(100)), ..Declaration::default() };
    volume.with(|core, now| {
        for mebibyte in 1..3 {
            assert!(core.read(now, handle, mebibyte * MIB, MIB as usize).is_some());
        }
        assert!(core.report().prefetched_bytes > 8 * MIB, "it is read ahead from its third request on");
        core.declare(handle, declaration).unwrap();
    });
    volume.pass(Duration::from_secs(1));
    let reads = volume.commands();
    let next = reads.iter().filter(|command| command.direction == Direction::Read);
    let next = next.min_by_key(|command| command.offset).unwrap();
    assert_eq!(next.class, Class::RealTime, "{reads:?}");
}

/// Of thirteen players those who had begun at once were late, because they were taken to begin after as long as a start may
/// take: others, who had begun later, had the more in their own memory for it.
#[test]
fn a_player_that_begins_at_once_comes_to_everything_so_much_sooner() {
    let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(512), &[256]);
    let handle = open(&mut volume, inos[0]);
    // A second, for its own memory.
    for mebibyte in 0..12 {
        volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
    }
    let start = volume.core().extents(inos[0]).unwrap()[0].device_offset;
    let rate = Bitrate::from_megabits(100);
    let asked = (12..100).find_map(|mebibyte| {
        volume.pass(rate.time_for(Bytes(MIB)));
        volume.with(|core, now| {
            assert!(core.read(now, handle, mebibyte * MIB, MIB as usize).is_some(), "MiB {mebibyte}");
            let request = core.take_outbox().requests.into_iter().next()?;
            let ahead = Bytes(request.offset.0 - start - (mebibyte + 1) * MIB);
            Some((request.deadline, now.monotonic + rate.time_for(ahead)))
        })
    });
    let (deadline, comes_to_it) = asked.expect("it is read ahead");
    assert_eq!(deadline, Some(comes_to_it));
}

/// Whose first request was answered from memory was taken to have begun to play when the daemon did, at the file's begin: what it
/// came to in a second, in the middle of the file, it was reckoned not to need for a quarter of a minute.
#[test]
fn a_player_that_finds_its_first_piece_in_memory_begins_there_and_then() {
    let policy = format!("{POLICY}\nprefetch_depth = \"16 MiB\"");
    let (mut volume, inos) = mounted(&policy, Bytes::from_mib(512), &[256]);
    let rate = Bitrate::from_megabits(100);
    let first = open(&mut volume, inos[0]);
    for mebibyte in 100..103 {
        volume.read(first, mebibyte * MIB, MIB as usize).unwrap();
    }
    volume.pass(Duration::from_secs(1));
    let second = open(&mut volume, inos[0]);
    let start = volume.core().extents(inos[0]).unwrap()[0].device_offset;
    let asked = (100..256).find_map(|mebibyte| {
        volume.with(|core, now| {
            assert!(core.read(now, second, mebibyte * MIB, MIB as usize).is_some(), "MiB {mebibyte}");
            let request = core.take_outbox().requests.into_iter().next()?;
            let behind = Bytes(request.offset.0 + request.length().0 - start - 100 * MIB);
            Some((request.deadline.unwrap(), now.monotonic + Duration::from_secs(2) + rate.time_for(behind)))
        })
    });
    let (deadline, comes_to_it) = asked.expect("it is read ahead");
    assert!(deadline <= comes_to_it, "{deadline:?}, it comes to it at {comes_to_it:?}");
}

/// Who filled his own buffer of a second came to what he was read ahead of a second sooner than was reckoned when it was asked for,
/// and it stood behind what others wanted later: of eleven players one was late.
#[test]
fn a_player_that_fills_its_own_buffer_comes_so_much_sooner_to_what_is_on_its_way() {
    let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(512), &[256]);
    volume.pass(Duration::from_secs(10));
    let handle = open(&mut volume, inos[0]);
    for mebibyte in 0..3 {
        volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
    }
    volume.step();
    let rate = Bitrate::from_megabits(100);
    let expedited = (3..8).filter_map(|mebibyte| {
        volume.with(|core, now| {
            assert!(core.read(now, handle, mebibyte * MIB, MIB as usize).is_some(), "MiB {mebibyte}");
            let dues: Vec<_> = core.take_outbox().promotions.iter().map(|one| one.deadline).collect();
            // When it comes to what lies in blocks of 8 MiB.
            let comes_to =
                |block: u64| now.monotonic + rate.time_for(Bytes((block * 8 - mebibyte - 1) * MIB));
            let is_when = |due: &Instant| (2..20).any(|block| comes_to(block) == *due);
            (!dues.is_empty()).then(|| (mebibyte, dues.iter().filter(|due| is_when(due)).count()))
        })
    });
    let expedited: Vec<_> = expedited.collect();
    // Each time it is a tenth of a second sooner: two MiB.
    assert_eq!(expedited.iter().map(|(mebibyte, _)| *mebibyte).collect::<Vec<_>>(), [4, 6], "{expedited:?}");
    assert!(expedited.iter().all(|(_, count)| *count > 1), "{expedited:?}");
}

/// Who began to play a second before the end of his file went on at its begin, and was taken to play already: 64 MiB, which he would
/// come to in half a second at the earliest, went before the 40 with which he began, and he began after 2.8 s.
#[test]
fn a_player_that_comes_to_the_end_before_it_has_begun_still_begins() {
    let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(512), &[256]);
    let before = open(&mut volume, inos[0]);
    volume.read(before, 0, 6 * MIB as usize).unwrap();
    for mebibyte in 100..103 {
        volume.read(before, mebibyte * MIB, MIB as usize).unwrap();
    }
    volume.pass(Duration::from_secs(10));
    let handle = open(&mut volume, inos[0]);
    let begin = volume.core().extents(inos[0]).unwrap()[0].device_offset;
    let begun = volume.clock();
    // It is given nothing yet.
    for mebibyte in 250..256 {
        volume.begin(Operation::Read { handle, offset: mebibyte * MIB, length: MIB as usize });
    }
    volume.with(|core, now| {
        let mut ahead = Vec::new();
        for mebibyte in 0..6 {
            core.read(now, handle, mebibyte * MIB, MIB as usize);
            let requests = core.take_outbox().requests;
            ahead.extend(
                requests.into_iter().filter(|one| (8..200).contains(&((one.offset.0 - begin) / MIB))),
            );
        }
        assert!(!ahead.is_empty(), "it is read ahead from the begin on");
        let (start, rate) = (begun + Duration::from_millis(2500) * 2 / 3, Bitrate::from_megabits(100));
        let mut asked = None;
        for request in ahead {
            let due = request.deadline.expect("it is wanted by some time");
            assert!(due >= start, "{request:?} before {start:?}");
            // It begins with a second of what it plays, and comes to the rest afterwards.
            if asked != Some(due) {
                let played = rate.time_for(Bytes(request.offset.0 - begin));
                assert!(
                    due + Duration::from_secs(1) >= start + played,
                    "{request:?} {played:?} behind {start:?}"
                );
            }
            asked = Some(due);
        }
    });
}

/// What is cancelled is no error, and whoever wants it after all gets it.
#[test]
fn what_was_cancelled_is_read_when_a_client_wants_it() {
    let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(512), &[256]);
    let handle = open(&mut volume, inos[0]);
    for round in 0..10 {
        for place in [0, 100, 30, 220] {
            for mebibyte in place + round..place + round + 4 {
                let data = volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
                assert!(data.iter().all(|&byte| byte == 1));
            }
        }
        volume.drift();
    }
    volume.with(|core, now| core.release(now, handle));
    volume.pass(Duration::from_secs(1));
    assert_eq!(volume.core().report().prefetched_bytes, 0);
    volume.core().audit().unwrap();
}

/// A copy takes the file as fast as it can: it has no reservation, and its requests give way. When it slows down to the
/// file's rate, it plays.
#[test]
fn a_copy_is_best_effort_until_it_plays() {
    let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(512), &[500]);
    let handle = open(&mut volume, inos[0]);
    let mut states = Vec::new();
    for mebibyte in 0..300 {
        volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
        states.push(volume.streams().len());
    }
    assert_eq!(states[3], 1, "at first it may be a player that fills its memory");
    assert_eq!(*states.last().unwrap(), 0);
    volume.commands();
    for mebibyte in 300..320 {
        volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
    }
    let classes: Vec<_> = volume.commands().iter().map(|command| command.class).collect();
    assert!(!classes.is_empty() && classes.iter().all(|&class| class == Class::BestEffort), "{classes:?}");
    for mebibyte in 320..440 {
        volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
        volume.pass(Bitrate::from_megabits(100).time_for(Bytes(MIB)));
    }
    assert_eq!(volume.streams().len(), 1);
}

/// What a copy was read ahead of before it was known for one stayed its stream's: 24 MiB went before what players wanted who began
/// beside it, and of thirteen with a reservation one or two lost a unit in five runs of twelve.
#[test]
fn what_a_copy_was_read_ahead_of_as_a_player_is_taken_back() {
    let reads_as_one = |count: u64| {
        let (mut volume, inos) = mounted(POLICY, Bytes::from_mib(512), &[500]);
        let handle = open(&mut volume, inos[0]);
        let copies = |mebibyte: &u64| {
            volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
            *mebibyte > 3 && volume.streams().is_empty()
        };
        let known = (0..count).find(copies);
        (volume, handle, StreamId(inos[0].0 << 1), known)
    };
    let known = reads_as_one(300).3.expect("it is known for one");
    let (mut volume, handle, stream, _) = reads_as_one(known);
    assert_eq!(volume.streams().len(), 1);
    let outbox = volume.with(|core, now| {
        core.read(now, handle, known * MIB, MIB as usize).expect("it is in memory").unwrap();
        core.take_outbox()
    });
    assert_eq!(outbox.streams, [(stream, None)]);
    assert_eq!(outbox.cancellations, [Cancellation::Stream(stream)]);
}

/// What a player asked for was served in time for its rate also when there was no room for it, before what those wanted sooner than
/// they were promised who had a reservation: of thirteen players two lost a unit to the fourteenth, and eleven to seven more. It is
/// best effort, but for the picture at which it looks when it jumps.
#[test]
fn a_player_without_room_is_best_effort_but_for_its_pictures() {
    let config = "[[stream]]\npath = \"0.mov\"\nbitrate = \"100 Mbit/s\"\n\
                  [[stream]]\npath = \"1.mov\"\nbitrate = \"400 Gbit/s\"";
    let (mut volume, inos) = mounted(config, Bytes::from_mib(512), &[200, 200]);
    let handles = [0, 1].map(|number| open(&mut volume, inos[number]));
    let mut classes_of = |handle: HandleId, mebibytes: std::ops::Range<u64>| -> Vec<Class> {
        volume.commands();
        for mebibyte in mebibytes {
            volume.read(handle, mebibyte * MIB, MIB as usize).unwrap();
            volume.pass(Bitrate::from_megabits(100).time_for(Bytes(MIB)));
        }
        let reads = volume.commands().into_iter().filter(|command| command.direction == Direction::Read);
        reads.map(|command| command.class).collect()
    };
    let all = |classes: &[Class], class| !classes.is_empty() && classes.iter().all(|one| *one == class);
    let admitted = classes_of(handles[0], 0..100);
    assert!(all(&admitted, Class::RealTime), "{admitted:?}");
    assert!(all(&classes_of(handles[1], 0..1), Class::RealTime), "its first picture");
    classes_of(handles[1], 1..8);
    let (goes_on, jumps, after) =
        (classes_of(handles[1], 8..60), classes_of(handles[1], 120..121), classes_of(handles[1], 124..190));
    let states: Vec<_> = volume.streams().iter().map(|stream| stream.state).collect();
    assert_eq!(states, [StreamService::Paused, StreamService::Waiting]);
    assert!(all(&goes_on, Class::BestEffort), "{goes_on:?}");
    assert!(all(&jumps, Class::RealTime), "{jumps:?}");
    assert!(all(&after[after.len().min(1)..], Class::BestEffort), "{after:?}");
}

/// A copy of footage into a directory with a policy took a recorder's reservation.
#[test]
fn a_copy_into_a_directory_with_a_rate_is_no_recorder() {
    let mut volume = {
        let pool = Pool::new(Bytes::from_mib(256), false).unwrap();
        let disk = formatted(Bytes::from_mib(2048));
        SimVolume::mount(disk, &pool, Config::parse(POLICY).unwrap(), 5).unwrap()
    };
    let (_, handle) = volume.create(Ino::ROOT, b"copied.mov").unwrap();
    for mebibyte in 0..300 {
        volume.write(handle, mebibyte * MIB, &[1; MIB as usize]).unwrap();
    }
    assert_eq!(volume.streams(), []);
    let (_, recorder) = volume.create(Ino::ROOT, b"recorded.mov").unwrap();
    for mebibyte in 0..100 {
        volume.write(recorder, mebibyte * MIB, &[1; MIB as usize]).unwrap();
        volume.pass(Duration::from_millis(84));
    }
    assert_eq!(volume.streams().len(), 1);
}

/// A reader of everything else in between pushed out what a player was about to read.
#[test]
fn what_was_prefetched_for_a_player_outlives_what_others_read() {
    let policy = "[[stream]]\npath = \"0.mov\"\nbitrate = \"100 Mbit/s\"\nprefetch_depth = \"16 MiB\"";
    let (mut volume, inos) = mounted(policy, Bytes::from_mib(96), &[64, 400]);
    let (player, other) = (open(&mut volume, inos[0]), open(&mut volume, inos[1]));
    for mebibyte in 0..4 {
        volume.read(player, mebibyte * MIB, MIB as usize).unwrap();
    }
    volume.pass(Duration::from_secs(1));
    for mebibyte in 0..400 {
        volume.read(other, mebibyte * MIB, MIB as usize).unwrap();
    }
    for mebibyte in 4..16 {
        assert!(ask(&mut volume, player, mebibyte), "MiB {mebibyte}");
    }
}

/// A WAV file of stereo sound at 48 kHz, 24 bits: 2,304,000 bits per second.
pub(crate) fn wave(length: u32) -> Vec<u8> {
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((length - 8).to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0\x02\0");
    for word in [48_000_u32, 288_000] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(b"\x06\0\x18\0data");
    bytes.extend((length - 44).to_le_bytes());
    bytes.resize(length as usize, 0);
    bytes
}

/// Nobody says how fast a file plays: it is asked itself as soon as it is played, and not before.
#[test]
fn a_file_without_a_policy_is_asked_itself() {
    let mut volume = SimVolume::mount(
        formatted(Bytes::from_mib(512)),
        &Pool::new(Bytes::from_mib(96), false).unwrap(),
        Config::default(),
        5,
    )
    .unwrap();
    let mut make = |name: &[u8], contents: &[u8]| {
        let (ino, handle) = volume.create(Ino::ROOT, name).unwrap();
        volume.write(handle, 0, contents).unwrap();
        volume.fsync(ino).unwrap();
        volume.with(|core, now| core.release(now, handle));
        ino
    };
    let sound = make(b"sound.wav", &wave(1 << 20));
    let broken = make(b"broken.wav", &wave(1 << 20)[..30]);
    let text = make(b"text", &[b'a'; 1 << 20]);
    let disk = volume.unmount().unwrap();
    let pool = Pool::new(Bytes::from_mib(96), false).unwrap();
    let mut volume = SimVolume::mount(disk, &pool, Config::default(), 6).unwrap();
    let rate = |volume: &SimVolume, ino| {
        let report = volume.core().explain_policy(ino).unwrap();
        let row = report.settings.into_iter().find(|row| row.name == "rate").unwrap();
        (row.value, row.decided_by)
    };
    for ino in [text, broken, sound] {
        let handle = open(&mut volume, ino);
        volume.read(handle, 0, 16).unwrap();
        assert_eq!(rate(&volume, ino).1, PolicySource::Default, "who looks at the beginning does not play");
        for place in 1..4 {
            volume.read(handle, place * 8, 8).unwrap();
        }
        volume.pass(Duration::from_millis(100));
        if ino == sound {
            assert_eq!(rate(&volume, ino), ("2304 kbit/s".to_owned(), PolicySource::Container));
            assert_eq!(volume.streams()[0].bits_per_second, 2_304_000);
        } else {
            assert_eq!(rate(&volume, ino).1, PolicySource::Default);
            assert_eq!(volume.streams(), []);
        }
        volume.with(|core, now| core.release(now, handle));
    }
    assert_eq!(volume.streams(), []);
    volume.core().audit().unwrap();
}

/// An office saved documents, of which nothing went to the device for five seconds, and a thirteenth player was admitted beside it.
/// What is accepted without a promise is told before a stream is declared: as often as it will be a request, and nothing of what
/// a recorder writes, unless there was no room for him. A folder that was copied to where recorders are was twelve of those, and a
/// copy from there was promised the last of the device's time, as if nobody were beside.
#[test]
fn what_is_accepted_without_a_promise_is_told() {
    let stream =
        |path: &str, bitrate: &str| format!("[[stream]]\npath = \"{path}\"\nbitrate = \"{bitrate}\"\n");
    let policy = &(stream("**/*.mov", "100 Mbit/s") + &stream("**/*.mxf", "20 Gbit/s"));
    let (mut volume, _) = mounted(policy, Bytes::from_mib(512), &[]);
    let told = Accepted { requests: 1, bytes: Bytes(100) };
    for (name, accepted) in [("letter", told), ("take.mov", Accepted::default()), ("take.mxf", told)] {
        let (ino, handle) = volume.create(Ino::ROOT, name.as_bytes()).unwrap();
        let tickets = [0; 3].map(|_| volume.ticket());
        let outbox = volume.with(|core, now| {
            for (offset, ticket) in [(0, tickets[0]), (100, tickets[1])] {
                let WriteStart::Copy(mut plan) = core.write_begin(now, handle, offset, 100, None) else {
                    panic!("there is room")
                };
                plan.copy(&[7; 100]);
                let written = core.write_end(now, ticket, &mut plan).unwrap();
                assert_eq!(written.unwrap(), 100);
            }
            core.start(now, tickets[2], Operation::Fsync { ino });
            core.take_outbox()
        });
        assert!(!outbox.requests.is_empty());
        assert_eq!(outbox.accepted, accepted, "{name}");
    }
}
