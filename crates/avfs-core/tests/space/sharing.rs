//! Copies that share their space: each is a file of its own, whatever happens to the others.

use crate::{MIB, available, remove, volume};
use avfs_core::Error;
use avfs_core::config::Config;
use avfs_core::core::{CopyPart, Operation, Outcome, Sharing, UsageCount};
use avfs_core::format::{Geometry, SHARED_EXTENTS, Superblock};
use avfs_core::fsck::{Mode, check};
use avfs_core::recovery::{RecoveryError, recover};
use avfs_core::simulation::SimVolume;
use avfs_core::types::*;
use avfs_io::device::Device;
use avfs_io::pool::Pool;
use std::sync::Arc;
use units::{Bytes, Ino};

const BLOCK: u64 = 4096;

fn filled(volume: &mut SimVolume, name: &str, bytes: u64, with: u8) -> (Ino, HandleId) {
    let (ino, handle) = volume.create(Ino::ROOT, name.as_bytes()).unwrap();
    for at in (0..bytes).step_by(MIB as usize) {
        volume.write(handle, at, &vec![with; MIB.min(bytes - at) as usize]).unwrap();
    }
    volume.fsync(ino).unwrap();
    (ino, handle)
}

fn whole(from: HandleId, to: HandleId) -> CopyRange {
    CopyRange { from, from_offset: 0, to, to_offset: 0, length: 1 << 50 }
}

fn copied(volume: &mut SimVolume, from: HandleId, name: &str) -> (Ino, HandleId) {
    let (ino, to) = volume.create(Ino::ROOT, name.as_bytes()).unwrap();
    let size = volume.copy(whole(from, to)).unwrap();
    assert_eq!(volume.core().attributes(ino).unwrap().size, size);
    (ino, to)
}

/// A volume that tells of shared extents already: a copy waits for its source alone.
fn told(mebibytes: u64) -> SimVolume {
    let mut volume = volume(mebibytes);
    let (_, other) = filled(&mut volume, "other", MIB, 9);
    copied(&mut volume, other, "other's copy");
    volume
}

/// What a turn shares; `meanwhile` happens while it waits for the device.
fn shared(volume: &mut SimVolume, copy: CopyRange, meanwhile: impl FnOnce(&mut SimVolume)) -> u64 {
    let ticket = volume.begin(Operation::Share(Sharing::new(copy)));
    meanwhile(volume);
    let Outcome::Count(Ok(count)) = volume.finish(ticket) else { panic!("it is a copy") };
    count as u64
}

/// The whole of a file, copied to a new one, of which the first turn waits while `meanwhile` happens.
fn copied_while(volume: &mut SimVolume, copy: CopyRange, meanwhile: impl FnOnce(&mut SimVolume)) -> Vec<u8> {
    let first = shared(volume, copy, meanwhile);
    let rest = whole(copy.from, copy.to).behind(first);
    let count = first + volume.copy(rest).unwrap();
    volume.read(copy.to, 0, count as usize).unwrap()
}

fn places(volume: &SimVolume, ino: Ino) -> Vec<(u64, u64, u64)> {
    let extents = volume.core().extents(ino).unwrap();
    extents.into_iter().map(|extent| (extent.file_offset, extent.device_offset, extent.length)).collect()
}

fn holds(volume: &mut SimVolume, handle: HandleId, at: u64, length: u64, with: u8) {
    let found = volume.read(handle, at, length as usize).unwrap();
    assert!(found.len() as u64 == length && found.iter().all(|&byte| byte == with), "at {at}: not {with}");
}

#[test]
fn a_copy_takes_no_space_and_each_of_the_files_is_its_own() {
    let mut volume = volume(512);
    let length = 20 * MIB + 777;
    let (ino, from) = filled(&mut volume, "original", length, 1);
    let before = available(&volume);
    let (copy, to) = copied(&mut volume, from, "copy");
    assert_eq!(places(&volume, copy), places(&volume, ino));
    assert_eq!(available(&volume), before);
    let attributes = volume.core().attributes(copy).unwrap();
    assert_eq!(attributes.blocks, volume.core().attributes(ino).unwrap().blocks);

    // What is written to one is not seen in the other, and takes space.
    volume.write(to, 5 * MIB, &[2; 3 * MIB as usize]).unwrap();
    volume.write(to, length - 100, &[3; 50]).unwrap();
    volume.write(from, MIB + 1, &[4; 10]).unwrap();
    volume.sync().unwrap();
    assert_eq!(available(&volume), before - 3 * MIB - 2 * BLOCK);
    holds(&mut volume, from, 5 * MIB, 3 * MIB, 1);
    holds(&mut volume, from, length - 1000, 1000, 1);
    holds(&mut volume, to, length - 100, 50, 3);
    holds(&mut volume, to, 0, 5 * MIB, 1);
    holds(&mut volume, from, MIB + 1, 10, 4);

    // And so it is found by the next mount.
    let disk = volume.unmount().unwrap();
    assert_eq!(check(&*disk, Mode::Check).unwrap().findings, []);
    let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
    let mut volume = SimVolume::mount(disk, &pool, Config::default(), 2).unwrap();
    // The audit counts the owners of each block anew.
    volume.core().audit().unwrap();
    let (from, to) = (volume.open(ino).unwrap(), volume.open(copy).unwrap());
    holds(&mut volume, from, 5 * MIB, 3 * MIB, 1);
    holds(&mut volume, to, 5 * MIB, 3 * MIB, 2);

    // The one goes and the other stays; with the last one its space is free.
    let used = |volume: &SimVolume| volume.core().report().device_bytes - available(volume);
    let two = used(&volume);
    volume.with(|core, now| core.release(now, from));
    remove(&mut volume, "original", ino);
    volume.sync().unwrap();
    assert_eq!(used(&volume), two - 3 * MIB - 2 * BLOCK);
    holds(&mut volume, to, 0, 5 * MIB, 1);
    volume.with(|core, now| core.release(now, to));
    remove(&mut volume, "copy", copy);
    volume.sync().unwrap();
    assert_eq!(used(&volume), two - 23 * MIB - 3 * BLOCK);
    volume.core().audit().unwrap();
}

/// Where the copy's record came first, a place that the original had left in memory alone was written over, and after a loss of power
/// the original had it again.
#[test]
fn a_place_is_written_over_only_when_the_other_owner_has_durably_left_it() {
    for is_durable in [false, true] {
        let mut volume = volume(256);
        let (original, from) = filled(&mut volume, "original", 8 * MIB, 1);
        let (copy, to) = copied(&mut volume, from, "copy");
        volume.sync().unwrap();
        let before = places(&volume, copy);
        volume.with(|core, now| core.release(now, from));
        remove(&mut volume, "original", original);
        if is_durable {
            volume.sync().unwrap();
        }
        volume.write(to, 0, &[2; 4096]).unwrap();
        volume.fsync(copy).unwrap();
        assert_eq!(places(&volume, copy) == before, is_durable);
        volume.core().audit().unwrap();
    }
}

/// What is in memory alone when a copy begins is in the copy.
#[test]
fn what_is_not_on_the_device_yet_is_copied_too() {
    let mut volume = volume(256);
    let (ino, from) = filled(&mut volume, "original", 8 * MIB, 1);
    volume.write(from, 3 * MIB, &[5; 2 * MIB as usize]).unwrap();
    let (copy, to) = volume.create(Ino::ROOT, b"copy").unwrap();
    // The target's own bytes go, on the device and in memory.
    volume.write(to, 0, &[9; 9 * MIB as usize]).unwrap();
    let sharing = Sharing::new(CopyRange { length: 6 * MIB, ..whole(from, to) });
    let ticket = volume.begin(Operation::Share(sharing));
    // A byte of the original changes while the copy waits for the device.
    volume.write(from, MIB, &[6]).unwrap();
    volume.finish(ticket);
    holds(&mut volume, to, 3 * MIB, 2 * MIB, 5);
    holds(&mut volume, to, 6 * MIB, 3 * MIB, 9);
    volume.sync().unwrap();
    holds(&mut volume, from, MIB, 1, 6);
    volume.core().audit().unwrap();
    assert_ne!(places(&volume, ino), places(&volume, copy));
}

#[test]
fn a_full_volume_refuses_to_write_to_a_copy_and_never_loses_what_was_accepted() {
    let mut volume = volume(192);
    let (_, from) = filled(&mut volume, "original", 32 * MIB, 1);
    let (copy, to) = copied(&mut volume, from, "copy");
    let (_, filler) = volume.create(Ino::ROOT, b"filler").unwrap();
    let mut at = 0;
    while volume.write(filler, at, &[7; MIB as usize / 4]).is_ok() {
        at += MIB / 4;
    }
    let mut accepted = 0;
    let refused = loop {
        match volume.write(to, accepted, &[2; MIB as usize]) {
            Ok(_) => accepted += MIB,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, Error::NoSpace);
    // A hole takes none; parts of blocks beside it do.
    volume.allocate(to, 16 * MIB, MIB, AllocateMode::PunchHole).unwrap();
    volume.sync().unwrap();
    holds(&mut volume, from, 0, 32 * MIB, 1);
    holds(&mut volume, to, 16 * MIB, MIB, 0);
    // With the copy gone the original can be written to in place.
    volume.with(|core, now| core.release(now, to));
    remove(&mut volume, "copy", copy);
    volume.write(from, 0, &[3; 8 * MIB as usize]).unwrap();
    volume.sync().unwrap();
    volume.core().audit().unwrap();
}

/// Parts of blocks, and what lies elsewhere within its block, go through memory.
#[test]
fn what_can_be_shared_is_whole_blocks_and_the_end_of_a_file() {
    let mut volume = volume(256);
    let (_, from) = filled(&mut volume, "original", 5 * BLOCK + 100, 1);
    let (_, to) = volume.create(Ino::ROOT, b"copy").unwrap();
    let part = |volume: &SimVolume, from_offset, to_offset, length| {
        volume.core().copy_part(&CopyRange { from, from_offset, to, to_offset, length })
    };
    assert_eq!(part(&volume, 0, 0, 1 << 60), Ok(CopyPart::Shared(5 * BLOCK + 100)));
    assert_eq!(part(&volume, 0, 0, 5 * BLOCK + 99), Ok(CopyPart::Shared(5 * BLOCK)));
    assert_eq!(part(&volume, 100, 100, 1 << 60), Ok(CopyPart::Bytes(BLOCK - 100)));
    assert_eq!(part(&volume, 1, 0, BLOCK), Ok(CopyPart::Bytes(BLOCK)));
    assert_eq!(part(&volume, 5 * BLOCK + 100, 0, 1), Ok(CopyPart::Nothing));
    assert_eq!(part(&volume, 0, 0, 0), Ok(CopyPart::Nothing));
    assert_eq!(part(&volume, 0, (1 << 60) - BLOCK, BLOCK), Err(Error::FileTooLarge));
    let within = CopyRange { from: to, to_offset: BLOCK, length: 2 * BLOCK, ..whole(to, to) };
    assert_eq!(volume.core().copy_part(&within), Ok(CopyPart::Nothing));
    volume.write(to, 0, &[1; 5 * BLOCK as usize]).unwrap();
    assert_eq!(volume.core().copy_part(&within), Err(Error::InvalidArgument));
    // The target goes on behind it: its last block has other bytes there.
    volume.write(to, 9 * BLOCK, &[1]).unwrap();
    assert_eq!(part(&volume, 0, 0, 1 << 60), Ok(CopyPart::Shared(5 * BLOCK)));
    assert_eq!(part(&volume, 5 * BLOCK, 5 * BLOCK, 1 << 60), Ok(CopyPart::Bytes(100)));
}

#[test]
fn a_copy_of_very_many_extents_is_done_in_turns() {
    let mut volume = volume(512);
    let (ino, from) = volume.create(Ino::ROOT, b"random").unwrap();
    for index in 0..3000 {
        volume.write(from, index * 3 * BLOCK, &[1; 4096]).unwrap();
    }
    volume.fsync(ino).unwrap();
    let (copy, to) = volume.create(Ino::ROOT, b"copy").unwrap();
    let (mut rest, mut turns) = (CopyRange { length: 3000 * 3 * BLOCK, ..whole(from, to) }, 0);
    while let Ok(CopyPart::Shared(_)) = volume.core().copy_part(&rest) {
        let before = places(&volume, copy).len();
        let count = shared(&mut volume, rest, |_| {});
        assert!(places(&volume, copy).len() - before <= 256);
        rest = rest.behind(count);
        turns += 1;
    }
    assert!((3000 / 256..100).contains(&turns), "{turns} turns");
    assert_eq!(places(&volume, copy), places(&volume, ino));
}

#[test]
fn usage_is_own_and_shared_and_what_a_deletion_frees() {
    let mut volume = volume(256);
    let (ino, from) = filled(&mut volume, "original", 8 * MIB, 1);
    let (copy, to) = copied(&mut volume, from, "copy");
    volume.write(to, 0, &[2; MIB as usize]).unwrap();
    volume.sync().unwrap();
    let usage = |volume: &SimVolume, inos: &[Ino]| {
        let mut usage = UsageCount::default();
        inos.iter().for_each(|&ino| volume.core().count_usage(ino, &mut usage).unwrap());
        let UsageReport { own_bytes, shared_bytes, freed_bytes, .. } = volume.core().usage(usage);
        (own_bytes / MIB, shared_bytes / MIB, freed_bytes / MIB)
    };
    assert_eq!(usage(&volume, &[ino]), (1, 7, 1));
    assert_eq!(usage(&volume, &[ino, copy]), (2, 14, 9));
    // A second name elsewhere keeps it.
    volume.with(|core, now| core.link(now, ino, Ino::ROOT, b"name")).unwrap();
    assert_eq!(usage(&volume, &[ino]), (1, 7, 0));
    assert_eq!(usage(&volume, &[ino, ino]), (1, 7, 1));
}

/// Volumes on which nothing was copied so are what they always were. A reader that does not know shared extents takes them for damage, so
/// it must not find a superblock that is silent about them.
#[test]
fn only_a_volume_that_says_so_may_share() {
    let mut volume = volume(256);
    let (_, from) = filled(&mut volume, "original", 8 * MIB, 1);
    let tells = |disk: &dyn Device| {
        let places = Geometry::superblock_places(disk.size());
        let read = |place| {
            let mut block = vec![0; 4096];
            disk.read_at(place, &mut block).unwrap();
            Superblock::decode(&block).unwrap().features.incompatible & SHARED_EXTENTS != 0
        };
        places.map(read)
    };
    volume.sync().unwrap();
    assert_eq!(tells(&**volume.disk()), [false; 4]);
    let (copy, _) = copied(&mut volume, from, "copy");
    assert_eq!(tells(&**volume.disk()), [true; 4]);
    volume.fsync(copy).unwrap();
    let disk = Arc::new(volume.disk().crash(1));
    drop(volume);
    recover(&*disk).unwrap();
    for place in Geometry::superblock_places(disk.size()) {
        let mut block = vec![0; 4096];
        disk.read_at(place, &mut block).unwrap();
        let mut superblock = Superblock::decode(&block).unwrap();
        superblock.features.incompatible = 0;
        disk.write_at(place, &superblock.encode()[..]).unwrap();
    }
    assert!(matches!(recover(&*disk), Err(RecoveryError::Overlap { ino, .. }) if ino == copy));
    assert!(!check(&*disk, Mode::Check).unwrap().findings.is_empty());
}

/// A recording went on while it was copied: what was written while the copy waited had no place yet, and was a hole in the copy.
#[test]
fn a_recording_that_goes_on_while_it_is_copied_is_copied_as_it_is() {
    for size in [MIB, 5000] {
        let mut volume = told(512);
        let (_, from) = volume.create(Ino::ROOT, b"recording").unwrap();
        volume.write(from, 0, &vec![1; size as usize]).unwrap();
        let (_, to) = volume.create(Ino::ROOT, b"copy").unwrap();
        let found = copied_while(&mut volume, whole(from, to), |volume| {
            volume.write(from, size, &vec![1; 3000]).unwrap();
            volume.write(from, size + 3000, &vec![1; MIB as usize]).unwrap();
        });
        assert_eq!(found.iter().filter(|&&byte| byte == 0).count(), 0);
    }
}

/// The same of a recording that was given its space before: what lay in that and was not written yet was left out as a hole.
#[test]
fn a_preallocated_recording_that_goes_on_while_it_is_copied_is_copied_as_it_is() {
    let mut volume = told(512);
    let (_, from) = volume.create(Ino::ROOT, b"recording").unwrap();
    volume.allocate(from, 0, 8 * MIB, AllocateMode::KeepSize).unwrap();
    volume.write(from, 0, &vec![1; MIB as usize]).unwrap();
    let (_, to) = volume.create(Ino::ROOT, b"copy").unwrap();
    let found = copied_while(&mut volume, whole(from, to), |volume| {
        volume.write(from, MIB, &vec![1; MIB as usize]).unwrap();
    });
    assert!(found.iter().all(|&byte| byte == 1));
}

/// A file was cut short inside a page, and became longer while its copy waited: the copy got what had been cut off.
#[test]
fn what_was_cut_off_does_not_come_back_in_a_copy() {
    let mut volume = told(512);
    let (ino, from) = filled(&mut volume, "f", 8192, 7);
    volume.set_attributes(ino, SetAttributes { size: Some(5000), ..SetAttributes::default() }).unwrap();
    volume.write(from, 0, &[1; 10]).unwrap();
    let (_, to) = volume.create(Ino::ROOT, b"copy").unwrap();
    let found = copied_while(&mut volume, whole(from, to), |volume| {
        volume.write(from, 5000, &[1; 1000]).unwrap();
    });
    assert!(found.iter().skip(5000).all(|&byte| byte == 1));
}

/// Of a file that became longer than the copy that waited for it, the answer was 0 bytes: the end, to a caller.
#[test]
fn a_short_copy_of_a_file_that_grows_is_made() {
    let mut volume = told(512);
    let (_, from) = volume.create(Ino::ROOT, b"f").unwrap();
    volume.write(from, 0, &[1; 3000]).unwrap();
    let (_, to) = volume.create(Ino::ROOT, b"copy").unwrap();
    let copy = CopyRange { length: 3000, ..whole(from, to) };
    let found = copied_while(&mut volume, copy, |volume| {
        volume.write(from, 3000, &[1; 500]).unwrap();
    });
    assert!(!found.is_empty(), "0 is the end of the file for the caller");
}

#[test]
fn a_file_that_is_saved_anew_while_it_is_copied_gives_one_of_both() {
    let mut volume = told(512);
    let (ino, from) = filled(&mut volume, "f", MIB, 1);
    volume.write(from, 0, &[2; 10]).unwrap();
    let (_, to) = volume.create(Ino::ROOT, b"copy").unwrap();
    let count = shared(&mut volume, whole(from, to), |volume| {
        volume.set_attributes(ino, SetAttributes { size: Some(0), ..SetAttributes::default() }).unwrap();
        volume.write(from, 0, &vec![3; MIB as usize]).unwrap();
    });
    let found = volume.read(to, 0, count as usize).unwrap();
    assert!(found.iter().all(|&byte| byte != 0));
}
