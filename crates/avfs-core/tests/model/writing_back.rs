//! What is written goes to the device as soon as somebody waits for it, and nothing is read that is written over.

use crate::players::{MIB, POLICY, mounted};
use avfs_core::core::{Operation, WriteStart};
use rtsched::{Class, Direction};
use std::collections::BTreeSet;
use units::{Bitrate, Bytes, Duration, Ino};

/// A flush hastened what it sent itself: what had been sent before, when a block was full, kept the deadline of a copy, or of a
/// recorder's buffer, and behind a busy device the client waited for that. The boundary: what somebody else has written keeps it.
#[test]
fn a_flush_hastens_what_is_on_its_way() {
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
                        let begun = core.write_begin(now, handle, at * MIB, MIB as usize, None);
                        let WriteStart::Copy(mut plan) = begun else { panic!("there is room") };
                        plan.copy(&[7; MIB as usize]);
                        core.write_end(now, ticket, &mut plan).unwrap().0.unwrap();
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
            let hastened: BTreeSet<_> = outbox.promotions.iter().map(|promotion| promotion.tag).collect();
            assert_eq!(hastened, sent, "{config:?}");
            for promotion in &outbox.promotions {
                assert_eq!((promotion.class, promotion.deadline), (Class::BestEffort, due), "{config:?}");
            }
        });
    }
}

/// A page of which only a part was written over is read before it is written: for that, too, somebody waits.
#[test]
fn a_flush_hastens_what_completes_its_pages() {
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
fn who_writes_over_a_file_in_odd_pieces_has_nothing_read() {
    for piece in [4097, 9123] {
        for (length, reads) in [(16 * MIB, 0), (piece, 1)] {
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
            let commands = volume.commands();
            let read = commands.iter().filter(|command| command.direction == Direction::Read).count();
            assert_eq!(read, reads, "{length} bytes in pieces of {piece}");
            let written = volume.read(handle, 0, 16 * MIB as usize).unwrap();
            let is_new = |(at, byte): (usize, &u8)| *byte == if (at as u64) < length { 9 } else { 1 };
            assert!(written.iter().enumerate().all(is_new));
        }
    }
}
