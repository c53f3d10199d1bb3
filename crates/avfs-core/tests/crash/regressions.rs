//! What cutting power has found, each as short as it can be told.

use crate::{DISK, pool};
use avfs_core::config::Config;
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::*;
use std::sync::Arc;
use units::{Duration, Ino};

fn volume() -> SimVolume {
    SimVolume::mount(formatted(DISK), &pool(), Config::default(), 1).unwrap()
}

/// Whatever can be committed is, at once.
fn eager() -> Config {
    let mut config = Config::default();
    config.journal.commit_age = Duration::from_nanos(1);
    config
}

/// Takes the place behind what was written last, so that what is written next is another request.
fn take_neighbouring_place(volume: &mut SimVolume) {
    let (ino, handle) = volume.create(Ino::ROOT, b"neighbour").unwrap();
    volume.write(handle, 0, &[9; 4096]).unwrap();
    volume.fsync(ino).unwrap();
}

/// Power fails now; nothing that was not flushed survives.
fn after_power_failure(volume: SimVolume) -> SimVolume {
    let disk = Arc::new(volume.disk().crash(0));
    SimVolume::mount(disk, &pool(), Config::default(), 2).unwrap()
}

/// A file grew from inside a page that is on the device, so its new size waited for that page to be written again.
/// Then the page was zeroed by fallocate: it was never written again, and the size waited for ever, through fsync.
#[test]
fn a_zeroed_page_does_not_hold_back_the_size() {
    for mode in [AllocateMode::ZeroRangeKeepSize, AllocateMode::PunchHole] {
        let mut volume = volume();
        let (ino, handle) = volume.create(Ino::ROOT, b"take.wav").unwrap();
        volume.write(handle, 0, &[1; 5000]).unwrap();
        volume.fsync(ino).unwrap();
        volume.write(handle, 5000, &[2; 20_000]).unwrap();
        volume.allocate(handle, 4096, 4096, mode).unwrap();
        volume.fsync(ino).unwrap();
        let volume = after_power_failure(volume);
        assert_eq!(volume.core().attributes(ino).unwrap().size, 25_000, "{mode:?}");
    }
}

/// fallocate waits until no request of the file is at the device. When the first of two ended, it was tried again, had
/// to wait again, woke everything that waited for the file, itself among them, and so on until the stack was full.
#[test]
fn an_operation_that_waits_for_two_requests_is_tried_again_after_each() {
    let mut volume = volume();
    let (ino, handle) = volume.create(Ino::ROOT, b"take.wav").unwrap();
    for block in 0..8 {
        volume.write(handle, block * 100_000, &[3; 4096]).unwrap();
    }
    let fsync = volume.begin(avfs_core::core::Operation::Fsync { ino });
    volume.allocate(handle, 4096, 4096, AllocateMode::ZeroRange).unwrap();
    volume.write(handle, 0, &[4; 100]).unwrap();
    while volume.ended(fsync).is_none() {
        assert!(volume.step());
    }
    assert_eq!(volume.read(handle, 99, 2).unwrap(), [4, 3]);
}

/// A file was cut short inside a page, whose rest stayed on the device, and then grew by a write that began before its
/// end. Nothing made the new size wait for that page: it was recorded with the page behind, which was written first,
/// and a loss of power then brought back what had been cut off.
#[test]
pub(crate) fn growth_that_begins_before_the_end_does_not_bring_back_what_was_cut_off() {
    let pool = pool();
    for seed in 0..40 {
        let mut volume = SimVolume::mount(formatted(DISK), &pool, eager(), seed).unwrap();
        let (ino, handle) = volume.create(Ino::ROOT, b"list.edl").unwrap();
        volume.write(handle, 0, &[1; 4096]).unwrap();
        volume.fsync(ino).unwrap();
        let size = Some(2000);
        volume.set_attributes(ino, SetAttributes { size, ..SetAttributes::default() }).unwrap();
        volume.fsync(ino).unwrap();
        take_neighbouring_place(&mut volume);
        volume.disk().record();
        // The page behind goes to the device by itself.
        volume.write(handle, 1000, &[2; 3096]).unwrap();
        volume.write(handle, 4096, &[3; 4096]).unwrap();
        volume.fsync(ino).unwrap();
        let images = volume.disk().crash_images();
        for cut in images.cuts() {
            let disk = Arc::new(images.image(cut, seed));
            let mut volume = SimVolume::mount(disk, &pool, Config::default(), 2).unwrap();
            let handle = volume.open(ino).unwrap();
            let read = volume.read(handle, 0, 8192).unwrap();
            assert!(read.iter().skip(2000).all(|&byte| byte != 1), "seed {seed}, cut {cut}");
        }
    }
}

/// Reading a file from its start asked for the largest block, 8 MiB, however short the file was: eight small files
/// filled a small cache, and what was still being read pushed out itself.
#[test]
fn a_short_file_takes_no_more_of_the_cache_than_it_is_long() {
    let pool = pool();
    let mut volume = SimVolume::mount(formatted(DISK), &pool, Config::default(), 1).unwrap();
    let mut files = Vec::new();
    for index in 0..20 {
        let (ino, handle) = volume.create(Ino::ROOT, format!("{index}").as_bytes()).unwrap();
        volume.write(handle, 0, &[index; 5000]).unwrap();
        files.push(ino);
    }
    volume.sync().unwrap();
    let mut volume = after_power_failure(volume);
    for ino in files {
        let handle = volume.open(ino).unwrap();
        assert_eq!(volume.read(handle, 0, 1 << 20).unwrap().len(), 5000);
    }
    assert_eq!(volume.core().report().cache_used_bytes, 20 * 8192);
}

/// A file grows by two blocks; the second reaches the device, its place is recorded, and power fails before the size
/// is. The second block lies behind the end of the file then. When the file grew over it, by fallocate or truncate, it
/// showed what the loss of power had taken back.
#[test]
pub(crate) fn what_lies_behind_the_end_after_a_power_failure_never_comes_back() {
    let pool = pool();
    let mut lay_behind = 0;
    for seed in 0..20 {
        let mut volume = SimVolume::mount(formatted(DISK), &pool, eager(), seed).unwrap();
        let (ino, handle) = volume.create(Ino::ROOT, b"take.wav").unwrap();
        volume.write(handle, 0, &[1; 2000]).unwrap();
        volume.fsync(ino).unwrap();
        take_neighbouring_place(&mut volume);
        volume.disk().record();
        for (offset, length) in [(2000, 2096), (4096, 4096), (8192, 3000)] {
            volume.write(handle, offset, &vec![2; length]).unwrap();
        }
        volume.fsync(ino).unwrap();
        let images = volume.disk().crash_images();
        for cut in images.cuts() {
            let disk = Arc::new(images.image(cut, seed));
            let mut volume = SimVolume::mount(disk, &pool, Config::default(), 2).unwrap();
            let size = volume.core().attributes(ino).unwrap().size as usize;
            let extents = volume.core().extents(ino).unwrap();
            lay_behind += usize::from(extents.iter().any(|e| e.file_offset >= size as u64));
            let handle = volume.open(ino).unwrap();
            volume.allocate(handle, 0, 16_384, AllocateMode::Extend).unwrap();
            let read = volume.read(handle, 0, 16_384).unwrap();
            assert!(read[size..].iter().all(|&byte| byte == 0), "seed {seed}, cut {cut}");
        }
    }
    assert!(lay_behind > 0);
}
