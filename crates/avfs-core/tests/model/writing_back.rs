//! What is written goes to the device as soon as somebody waits for it, and nothing is read that is written over.

use crate::players::{MIB, POLICY, mounted};
use crate::recorders::give;
use crate::sequences::reads;
use avfs_core::core::Operation;
use avfs_core::types::*;
use rtsched::Class;
use std::collections::BTreeSet;
use units::{Bitrate, Bytes, Duration, Ino};

/// A flush expedited what it sent itself: what had been sent before, when a block was full, kept the deadline of a copy, or of a
/// recorder's buffer, and behind a busy device the client waited for that. The boundary: what somebody else has written keeps it.
#[test]
fn a_flush_expedites_what_is_on_its_way() {
    let idle = "[[stream]]\npath = \"**\"\nclass = \"idle\"";
    for config in ["", POLICY, idle] {
        let (mut volume, _) = mounted(config, Bytes::from_mib(512), &[]);
        // What each file has on its way to the device; nothing of it ends here.
        let mut write = |name: &str| {
            let (ino, handle) = volume.create(Ino::ROOT, name.as_bytes()).unwrap();
            let tags: BTreeSet<_> = (0..64)
                .flat_map(|at| {
                    let ticket = volume.ticket();
                    let mut outbox = volume.with(|core, now| {
                        assert_eq!(give(core, now, ticket, handle, at * MIB), Some(true));
                        core.take_outbox()
                    });
                    std::mem::take(&mut outbox.requests).into_iter().map(|request| request.tag)
                })
                .collect();
            (ino, tags)
        };
        let ((flushed, sent), (_, sent_by_others)) = (write("take.mov"), write("other.mov"));
        assert!(sent.len() >= 2 && sent_by_others.len() >= 2, "{sent:?}, {sent_by_others:?}");
        let ticket = volume.ticket();
        volume.with(|core, now| {
            core.start(now, ticket, Operation::Fsync { ino: flushed });
            let outbox = core.take_outbox();
            let due = now.monotonic + Duration::from_millis(200);
            let expedited: BTreeSet<_> = outbox.promotions.iter().map(|promotion| promotion.tag).collect();
            assert_eq!(expedited, sent, "{config:?}");
            for promotion in &outbox.promotions {
                assert_eq!((promotion.class, promotion.deadline), (Class::BestEffort, due), "{config:?}");
            }
        });
    }
}

/// A page of which only a part was written over is read before it is written: for that, too, somebody waits.
#[test]
fn a_flush_expedites_what_completes_its_pages() {
    let (mut volume, inos) = mounted("", Bytes::from_mib(512), &[16]);
    let handle = volume.open(inos[0]).unwrap();
    volume.write(handle, MIB + 100, &[9; 100]).unwrap();
    let ticket = volume.ticket();
    volume.with(|core, now| {
        core.start(now, ticket, Operation::Fsync { ino: inos[0] });
        let outbox = core.take_outbox();
        let due = now.monotonic + Duration::from_millis(200);
        let reads: Vec<_> = outbox.requests.iter().map(|read| (read.length(), read.deadline)).collect();
        assert_eq!(reads, [(Bytes(4096), Some(due))]);
    });
}

/// An application that writes pieces of odd lengths over a file that lies on the device has none of its pages read, though each
/// but the last is written in two parts. The other side of it: of a piece that is alone both edges are.
#[test]
fn a_writer_over_a_file_in_odd_pieces_has_nothing_read() {
    for piece in [4097, 9123] {
        for (length, pages_read) in [(16 * MIB, 0), (piece, 1)] {
            let (mut volume, inos) = mounted("", Bytes::from_mib(512), &[16]);
            let handle = volume.open(inos[0]).unwrap();
            volume.commands();
            let mut at = 0;
            while at < length {
                let end = (at + piece).min(length);
                volume.write(handle, at, &vec![9; (end - at) as usize]).unwrap();
                volume.pass(Bitrate::from_megabits(100).time_for(Bytes(end - at)));
                at = end;
            }
            volume.fsync(inos[0]).unwrap();
            assert_eq!(reads(&mut volume).len(), pages_read, "{length} bytes in pieces of {piece}");
            let written = volume.read(handle, 0, 16 * MIB as usize).unwrap();
            let is_new = |(at, byte): (usize, &u8)| *byte == if (at as u64) < length { 9 } else { 1 };
            assert!(written.iter().enumerate().all(is_new));
        }
    }
}

/// A server that allocates what its clients leave out (`strict allocate`) does so before each write behind the end. What was written
/// before waited in memory for its place, and got it behind what was allocated next: a recording had a piece for every other request.
#[test]
fn what_waits_for_its_place_gets_it_with_what_is_allocated_beside_it() {
    let (mut volume, _) = mounted("", Bytes::from_mib(512), &[]);
    let (ino, handle) = volume.create(Ino::ROOT, b"take.mov").unwrap();
    let piece = 60 << 10;
    let mut end = 0;
    for number in 1..=100 {
        let at = number * 200_000;
        volume.allocate(handle, end, at - end, AllocateMode::Extend).unwrap();
        volume.write(handle, at, &vec![number as u8; piece]).unwrap();
        end = at + piece as u64;
        volume.core().audit().unwrap();
    }
    volume.fsync(ino).unwrap();
    let extents = volume.core().extents(ino).unwrap();
    let is_next = |pair: &[ExtentReport]| pair[0].device_offset + pair[0].length == pair[1].device_offset;
    assert!(extents.windows(2).all(is_next), "{extents:?}");
    for number in 1..=100 {
        let data = volume.read(handle, number * 200_000 - 5, piece + 5).unwrap();
        assert!(data[..5] == [0; 5] && data[5..].iter().all(|byte| *byte == number as u8));
    }
    volume.with(|core, now| core.release(now, handle));
    volume.sync().unwrap();
    volume.core().audit().unwrap();
}
