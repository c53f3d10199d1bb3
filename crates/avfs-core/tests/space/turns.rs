//! What one client has very many of is done in turns, between which everybody else is served. A turn is measured by what it does:
//! requests it makes and clients it answers, not by a clock.

use crate::{MIB, make, volume};
use avfs_core::core::Operation;
use avfs_core::simulation::SimVolume;
use avfs_core::types::*;
use std::collections::BTreeMap;
use units::Ino;

/// More than one turn does: 256 steps, and what a client's own call may do beside them.
const TURN: usize = 400;

/// The root's names, read in pieces, as a kernel does: cookies go on inside a hash.
fn list(volume: &mut SimVolume, plus: bool) -> Vec<(Vec<u8>, Ino)> {
    let mut found = Vec::new();
    let mut cookie = 2;
    loop {
        let (mut last, mut taken) = (cookie, 0);
        let mut each = |entry: DirectoryEntry| {
            if taken == 333 {
                return false;
            }
            taken += 1;
            last = entry.cookie;
            found.push((entry.name.to_vec(), entry.ino));
            true
        };
        volume.with(|core, _| core.read_directory(Ino::ROOT, cookie, plus, &mut each)).unwrap();
        cookie = last;
        if taken < 333 {
            return found;
        }
    }
}

/// `sync` began to write every dirty file in one turn, and looked at everything on its way for each: with 20,000 small files nobody
/// was served for five seconds.
#[test]
fn a_sync_of_very_many_files_is_done_in_turns() {
    let mut volume = volume(512);
    let mut inos = Vec::new();
    for index in 0..3000 {
        let (ino, handle) = volume.create(Ino::ROOT, format!("{index}").as_bytes()).unwrap();
        volume.write(handle, 0, &[1; 3000]).unwrap();
        volume.with(|core, now| core.release(now, handle));
        inos.push(ino);
    }
    volume.largest_turn();
    let ticket = volume.begin(Operation::Sync);
    volume.finish(ticket);
    let turn = volume.largest_turn();
    assert!(turn < TURN, "{turn} requests and answers in one turn");
    // And it was a sync.
    let disk = std::sync::Arc::new(volume.disk().crash(1));
    drop(volume);
    let report = avfs_core::fsck::check(&*disk, avfs_core::fsck::Mode::Check).unwrap();
    assert!(report.findings.is_empty());
    let pool = avfs_io::pool::Pool::new(units::Bytes::from_mib(64), false).unwrap();
    let mut volume = SimVolume::mount(disk, &pool, Default::default(), 2).unwrap();
    for ino in inos.into_iter().step_by(97) {
        let handle = volume.open(ino).unwrap();
        assert_eq!(volume.read(handle, 0, 4096).unwrap(), [1; 3000]);
    }
}

/// The same of one file with very many dirty blocks, by fsync(2), and of its space when it is removed.
#[test]
fn a_file_of_very_many_blocks_is_written_and_removed_in_turns() {
    let mut volume = volume(512);
    let (ino, handle) = volume.create(Ino::ROOT, b"random").unwrap();
    for index in 0..3000 {
        volume.write(handle, index * 3 * 4096, &[1; 4096]).unwrap();
    }
    volume.largest_turn();
    volume.fsync(ino).unwrap();
    let turn = volume.largest_turn();
    assert!(turn < TURN, "{turn} requests and answers in one turn");
    assert!(volume.core().extents(ino).unwrap().len() >= 3000);

    let free = volume.core().report().free_bytes;
    volume.with(|core, now| {
        core.release(now, handle);
        core.unlink(now, Ino::ROOT, b"random").unwrap();
        core.forget(now, ino, 1);
    });
    volume.begin(Operation::Sync);
    let (mut before, mut most) = (free, 0);
    while volume.core().report().free_bytes < free + 3000 * 4096 {
        assert!(volume.step());
        most = most.max(volume.core().report().free_bytes - before);
        before = volume.core().report().free_bytes;
    }
    // A step of the simulation is a timer and a completion: two turns.
    assert!(most <= 2 * TURN as u64 * 4096, "{} blocks became free in one turn", most / 4096);
}

/// Each name of a directory was looked for among all names of its inode: of 16,000 hard links `ls` took 40 s. Here 65,000 are
/// made, listed, looked up and removed, which took the better part of an hour; now it is about a second, and a quiet machine or a
/// busy one makes no difference of that kind.
#[test]
fn a_directory_of_hard_links_takes_time_with_their_number() {
    let begun = std::time::Instant::now();
    let mut volume = volume(1024);
    let ino = make(&mut volume, "file", MIB).unwrap();
    let names: Vec<Vec<u8>> = (0..64_000).map(|index| format!("link {index}").into_bytes()).collect();
    for chunk in names.chunks(1000) {
        volume.with(|core, now| {
            for name in chunk {
                core.link(now, ino, Ino::ROOT, name).unwrap();
            }
        });
    }
    assert!(list(&mut volume, true).len() >= 64_001);
    for name in &names {
        volume.with(|core, now| core.unlink(now, Ino::ROOT, name)).unwrap();
    }
    assert_eq!(volume.core().attributes(ino).unwrap().links, 1);
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}

/// All spellings of a name in upper and lower case have one hash. As hard links to one file they were compared each with each.
#[test]
fn links_whose_names_have_one_hash_are_listed_once_each() {
    let mut volume = volume(256);
    let ino = make(&mut volume, "file", 4096).unwrap();
    let other = make(&mut volume, "other", 4096).unwrap();
    let spelling = |number: u32| -> Vec<u8> {
        (0..12).map(|bit| if number >> bit & 1 == 1 { b'A' + bit as u8 } else { b'a' + bit as u8 }).collect()
    };
    for number in 0..4000 {
        let ino = if number % 3 == 0 { other } else { ino };
        volume.with(|core, now| core.link(now, ino, Ino::ROOT, &spelling(number))).unwrap();
    }
    let listed = list(&mut volume, false);
    let found: BTreeMap<Vec<u8>, Ino> = listed.iter().cloned().collect();
    assert_eq!(found.len(), listed.len(), "something is listed twice");
    for number in 0..4000 {
        let expected = if number % 3 == 0 { other } else { ino };
        assert_eq!(found.get(&spelling(number)), Some(&expected));
        let looked = volume.with(|core, _| core.lookup(Ino::ROOT, &spelling(number))).unwrap();
        assert_eq!(looked.attributes.ino, expected);
    }
}
