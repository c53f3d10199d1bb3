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
