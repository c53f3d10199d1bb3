//! What cutting power has found, each as short as it can be told.

use crate::{DISK, pool};
use avfs_core::config::Config;
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::*;
use std::sync::Arc;
use units::Ino;

fn volume() -> SimVolume {
    SimVolume::mount(formatted(DISK), &pool(), Config::default(), 1).unwrap()
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
