//! Power is cut after every event of the device, and what is left must be a volume that keeps every promise.
//!
//! A workload is drawn from a seed and run on a simulated disk that records. For every moment of the recording, disks
//! are made that a loss of power could have left then: writes that were not flushed are there, or not, or in part, in
//! any order. Each is recovered, mounted and judged against the [`model`]. Of some, power is lost again during the
//! checkpoint that follows recovery; on others a second life begins, with a workload of its own.
//!
//! `AVFS_CRASH_ROUNDS` multiplies the number of seeds: 100 run for about an hour. `AVFS_STREAMS=null` is a run in which nothing is
//! wished for any stream.

mod faults;
mod growing;
mod log_damage;
mod model;
mod protocol;
mod regressions;
mod saves;
#[cfg(feature = "protocol-steps")]
mod steps;
mod workload;

use avfs_core::Error;
use avfs_core::config::Config;
use avfs_core::format::{LOG_START, SuperblockError};
use avfs_core::fsck::{self, Finding};
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::XattrFlags;
use avfs_io::pool::Pool;
use avfs_io::sim::{CrashImages, Fault, SimDisk, TraceEvent};
use std::sync::Arc;
use units::{Bytes, Duration, Ino};
use workload::{FULL, LARGE, NAMES, SMALL, Shape, Workload};

const DISK: Bytes = Bytes::from_mib(192);

fn pool() -> Pool {
    Pool::new(Bytes::from_mib(64), false).unwrap()
}

/// This run is one in which nothing is wished for any stream.
fn without_streams() -> bool {
    std::env::var_os("AVFS_STREAMS").is_some()
}

fn rounds() -> u64 {
    let rounds = std::env::var("AVFS_CRASH_ROUNDS").ok();
    rounds.map_or(1, |rounds| rounds.parse().expect("AVFS_CRASH_ROUNDS is a number"))
}

/// Commits and checkpoints often, so that there are many moments between them.
fn restless(seed: u64) -> Config {
    let mut config = Config::default();
    config.journal.commit_age = Duration::from_millis([1, 20, 300][seed as usize % 3]);
    config.journal.checkpoint_interval = Duration::from_millis([5, 60, 2000][(seed / 3) as usize % 3]);
    config
}

/// One image of one cut.
#[derive(Clone, Copy, Debug)]
#[expect(dead_code, reason = "told when something is wrong")]
struct Place {
    seed: u64,
    life: u64,
    cut: usize,
    image: u64,
}

fn mount(disk: SimDisk, pool: &Pool, place: Place) -> (SimVolume, u64) {
    let seed = place.seed ^ (place.cut as u64) << 20 ^ place.image;
    let disk = Arc::new(disk);
    match SimVolume::mount(disk, pool, restless(seed), seed) {
        Ok(volume) => {
            // A loss of power leaves no log that looks damaged, whatever earlier rounds of the ring have left in it.
            assert!(!volume.core().report().read_only, "{place:?}: mounted read-only");
            // What is derived is what a walk finds, above all what lies below directories with a limit.
            volume.core().audit().unwrap_or_else(|why| panic!("{place:?}: {why}"));
            (volume, seed)
        }
        Err(error) => panic!("{place:?}: {error}"),
    }
}

/// A loss of power is no damage: fsck finds at most a superblock or a protection block that was being written, or a batch of the
/// log that was: where all but one of its blocks reached the device, the parity makes it whole.
fn check(image: &SimDisk, place: Place) {
    check_but(image, place, |_| false);
}

/// The same, but for what is expected besides.
fn check_but(image: &SimDisk, place: Place, expected: impl Fn(&Finding) -> bool) {
    let report = fsck::examine(image, fsck::Mode::Check);
    let mut findings = report.unwrap_or_else(|error| panic!("{place:?}: {error}")).findings;
    findings.retain(|finding| !expected(finding));
    let torn = |finding: &Finding| {
        matches!(
            finding,
            Finding::MmpDamaged
                | Finding::SuperblockDamaged { cause: SuperblockError::Checksum, .. }
                | Finding::LogBlockDamaged { .. }
        )
    };
    let in_the_log = findings.iter().filter(|one| matches!(one, Finding::LogBlockDamaged { .. })).count();
    assert!(findings.iter().all(torn) && findings.len() <= 3 && in_the_log <= 1, "{place:?}: {findings:?}");
}

/// Judges one image. With `again`, power is lost once more while recovery's own checkpoint is written.
fn judge(workload: &Workload, pool: &Pool, place: Place, again: bool) {
    let second_pool = again.then(crate::pool);
    let images = workload.volume.disk().crash_images();
    let complain = |what: &str, error: String| -> ! {
        panic!("{place:?}, after {:?}, {what}: {error}", images.event_before(place.cut))
    };
    let image = images.image(place.cut, place.image);
    if again {
        check(&image, place);
    }
    let (mut volume, seed) = mount(image, pool, place);
    if again {
        volume.disk().record();
    }
    let digest = match workload.model.judge(place.cut, &mut volume) {
        Ok(digest) => digest,
        Err(error) => complain("first recovery", error),
    };
    let Some(second_pool) = second_pool else { return };
    let before = volume.core().report().checkpoints;
    for _ in 0..200 {
        if volume.core().report().checkpoints > before || !volume.step() {
            break;
        }
    }
    if let Some(failure) = volume.core().failure() {
        complain("after the first recovery", failure.to_owned());
    }
    let nested = volume.disk().crash_images();
    let cuts = nested.cuts().count();
    for index in 0..3 {
        let cut = nested.cuts().start() + (seed as usize).wrapping_mul(31 + index) % cuts;
        let (mut volume, _) = mount(nested.image(cut, seed), &second_pool, place);
        match workload.model.judge(place.cut, &mut volume) {
            Ok(second) if second == digest => {}
            Ok(_) => complain("second recovery", format!("another namespace, at {cut}")),
            Err(error) => complain("second recovery", format!("at {cut}: {error}")),
        }
    }
}

/// Several lives of a disk, each ended by a loss of power. Of each life, `images` images are judged, spread over all
/// its cuts (each cut at least once where there are fewer).
fn lives(
    mut disk: Arc<SimDisk>,
    shape: Shape,
    steps: usize,
    lives: u64,
    images: usize,
    seed: u64,
    mut watch: impl FnMut(&CrashImages),
) {
    let pool = pool();
    for life in 0..lives {
        let seed_of_life = seed * 1000 + life;
        let volume = SimVolume::mount(Arc::clone(&disk), &pool, restless(seed_of_life), seed_of_life)
            .unwrap_or_else(|error| panic!("seed {seed}, life {life}: {error}"));
        let mut workload = Workload::new(volume, shape, seed_of_life)
            .unwrap_or_else(|error| panic!("seed {seed}, life {life}: {error}"));
        for _ in 0..steps {
            workload.step();
        }
        workload.settle();
        assert_eq!(
            workload.device_errors,
            0,
            "seed {seed}, life {life}: {:?}",
            workload.volume.core().failure()
        );
        let recording = workload.volume.disk().crash_images();
        watch(&recording);
        let cuts: Vec<usize> = recording.cuts().collect();
        let judging = crate::pool();
        for index in 0..images {
            // Spread over the cuts if there are more than images, round and round if there are fewer.
            let cut = cuts[index * cuts.len().max(images) / images % cuts.len()];
            let place = Place { seed, life, cut, image: index as u64 };
            judge(&workload, &judging, place, index % 8 == 0);
        }
        // The next life begins where this one was cut off.
        let last = cuts[(seed_of_life as usize).wrapping_mul(7919) % (cuts.len() / 2) + cuts.len() / 2];
        disk = Arc::new(recording.image(last, seed_of_life));
    }
}

#[test]
fn small_files_survive_every_cut() {
    for seed in 0..8 * rounds() {
        lives(formatted(DISK), SMALL, 120, 3, 250, seed, |_| {});
    }
}

#[test]
fn large_files_survive_every_cut() {
    for seed in 0..4 * rounds() {
        lives(formatted(DISK), LARGE, 60, 2, 30, seed, |_| {});
    }
}

/// A disk on which the log's ring is nearly full: what comes next goes round.
fn near_the_end_of_the_log(seed: u64) -> Arc<SimDisk> {
    let mut volume = SimVolume::mount(formatted(DISK), &pool(), Config::default(), seed).unwrap();
    let value = vec![7; 60_000];
    // With its header, its record and its parity each is a batch of 64 KiB.
    for _ in 0..(15 << 20) / (64 << 10) {
        let written = volume
            .with(|core, now| core.set_xattr(now, Ino::ROOT, b"user.filler", &value, XattrFlags::empty()));
        written.and_then(|()| volume.sync()).unwrap();
    }
    volume.with(|core, now| core.remove_xattr(now, Ino::ROOT, b"user.filler")).unwrap();
    volume.unmount().unwrap()
}

#[test]
fn a_namespace_survives_every_cut_while_the_log_goes_round() {
    for seed in 0..3 * rounds() {
        let mut begun = 0;
        let disk = near_the_end_of_the_log(seed);
        lives(disk, NAMES, 500, 2, 60, seed, |recording| {
            let starts = recording.cuts().filter(|&cut| {
                matches!(recording.event_before(cut),
                    Some(TraceEvent::WriteStarted { offset, .. }) if offset.0 == LOG_START)
            });
            begun += starts.count();
        });
        assert!(begun >= 1, "seed {seed}: the log did not go round");
    }
}

/// A workload on a disk that fails after so many operations of the kind. Returns how many it got to see.
fn fail_after(operations: u64, shape: Shape, seed: u64, fault: Fault, [pool, judging]: &[Pool; 2]) -> bool {
    let place = format!("seed {seed}, failing after {operations}");
    let volume = SimVolume::mount(formatted(DISK), pool, restless(seed), seed).unwrap();
    let mut workload = Workload::new(volume, shape, seed).unwrap();
    workload.volume.disk().inject(Some(fault));
    workload.is_faulty = true;
    for _ in 0..80 {
        workload.step();
    }
    workload.settle();
    let failed = workload.volume.core().failure().is_some();
    // A disk that comes back to life does not wake the volume: what it lost in between nobody knows.
    workload.volume.disk().inject(None);
    if failed {
        let made = workload.volume.create(Ino::ROOT, b"afterwards");
        assert_eq!(made.err(), Some(Error::ReadOnly), "{place}");
        assert_eq!(workload.volume.sync(), Err(Error::Device), "{place}");
        assert!(workload.volume.core().report().read_only, "{place}");
    }
    // Time goes on and nothing happens to the disk.
    let position = workload.volume.disk().position();
    for _ in 0..50 {
        workload.volume.step();
    }
    let images = workload.volume.disk().crash_images();
    let last = *images.cuts().end();
    assert!(!failed || last <= position + 64, "{place}: a failed volume goes on writing");
    for image in 0..3 {
        let place = Place { seed, life: operations, cut: last, image };
        judge(&workload, judging, place, false);
    }
    failed
}

#[test]
fn a_write_error_at_any_moment_ends_in_a_volume_that_only_reads() {
    let pools = [pool(), pool()];
    for seed in 0..2 * rounds() {
        let mut operations = 0;
        while fail_after(operations, SMALL, seed, Fault::after(operations).writes_only(), &pools) {
            operations += 1;
        }
        assert!(operations > 100, "seed {seed} writes only {operations} times");
        for operations in (0..200).step_by(9) {
            fail_after(operations, LARGE, seed, Fault::after(operations).writes_only(), &pools);
        }
    }
}

#[test]
fn an_error_of_any_kind_at_any_moment_is_told_and_loses_nothing() {
    let pools = [pool(), pool()];
    for seed in 0..2 * rounds() {
        for operations in (0..300).step_by(3) {
            fail_after(operations, SMALL, seed, Fault::after(operations), &pools);
        }
    }
}

/// Everything that was accepted has a place: a volume that has run full is full for the next write, never for the
/// sync after it, and what is deleted makes room again.
#[test]
fn a_full_volume_refuses_writes_and_never_syncs() {
    for seed in 0..2 * rounds() {
        let pool = pool();
        let volume = SimVolume::mount(formatted(DISK), &pool, restless(seed), seed).unwrap();
        let mut workload = Workload::new(volume, FULL, seed).unwrap();
        for round in 0..3 {
            for _ in 0..2000 {
                workload.step();
                if workload.full > 10 * (round + 1) {
                    break;
                }
            }
            assert!(workload.full > 10 * round, "seed {seed}: not full in round {round}");
            assert_eq!(workload.sync(), Ok(()), "seed {seed}, round {round}");
            let report = workload.volume.core().report();
            assert_eq!((report.failure, report.dirty_bytes), (None, 0), "seed {seed}, round {round}");
            workload.remove_half();
        }
        workload.settle();
        let cuts: Vec<usize> = workload.volume.disk().crash_images().cuts().collect();
        for index in 1..=12 {
            let place =
                Place { seed, life: 0, cut: cuts[(cuts.len() - 1) * index / 12], image: index as u64 };
            judge(&workload, &crate::pool(), place, index == 12);
        }
    }
}
