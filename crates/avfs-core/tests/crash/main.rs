//! Power is cut after every event of the device, and what is left must be a volume that keeps every promise.
//!
//! A workload is drawn from a seed and run on a simulated disk that records. For every moment of the recording, disks
//! are made that a loss of power could have left then: writes that were not flushed are there, or not, or in part, in
//! any order. Each is recovered, mounted and judged against the [`model`]. Of some, power is lost again during the
//! checkpoint that follows recovery; on others a second life begins, with a workload of its own.
//!
//! `AVFS_CRASH_ROUNDS` multiplies the number of seeds: 100 run for about an hour.

mod model;
mod regressions;
mod workload;

use avfs_core::config::Config;
use avfs_core::simulation::{SimVolume, formatted};
use avfs_io::pool::Pool;
use avfs_io::sim::SimDisk;
use std::sync::Arc;
use units::{Bytes, Duration};
use workload::{LARGE, NAMES, SMALL, Shape, Workload};

const DISK: Bytes = Bytes::from_mib(192);

fn pool() -> Pool {
    Pool::new(Bytes::from_mib(64), false).unwrap()
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
        Ok(volume) => (volume, seed),
        Err(error) => panic!("{place:?}: {error}"),
    }
}

/// Judges one image. With `again`, power is lost once more while recovery's own checkpoint is written.
fn judge(workload: &Workload, pool: &Pool, place: Place, again: bool) {
    let images = workload.volume.disk().crash_images();
    let complain = |what: &str, error: String| -> ! {
        panic!("{place:?}, after {:?}, {what}: {error}", images.event_before(place.cut))
    };
    let (mut volume, seed) = mount(images.image(place.cut, place.image), pool, place);
    if again {
        volume.disk().record();
    }
    let digest = match workload.model.judge(place.cut, &mut volume) {
        Ok(digest) => digest,
        Err(error) => complain("first recovery", error),
    };
    if !again {
        return;
    }
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
        let (mut volume, _) = mount(nested.image(cut, seed), pool, place);
        match workload.model.judge(place.cut, &mut volume) {
            Ok(second) if second == digest => {}
            Ok(_) => complain("second recovery", format!("another namespace, at {cut}")),
            Err(error) => complain("second recovery", format!("at {cut}: {error}")),
        }
    }
}

/// Several lives of a disk, each ended by a loss of power. Of each life, `images` images are judged, spread over all
/// its cuts (each cut at least once where there are fewer).
fn lives(shape: Shape, steps: usize, lives: u64, images: usize, seed: u64) -> usize {
    let pool = pool();
    let mut disk = formatted(DISK);
    let mut judged = 0;
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
        let cuts: Vec<usize> = recording.cuts().collect();
        for index in 0..images {
            let cut = cuts[index * cuts.len() / images.max(cuts.len()) % cuts.len()];
            let cut = if images < cuts.len() { cuts[index * cuts.len() / images] } else { cut };
            let place = Place { seed, life, cut, image: index as u64 };
            judge(&workload, &pool, place, index % 10 == 0);
            judged += 1;
        }
        // The next life begins where this one was cut off.
        let last = cuts[(seed_of_life as usize).wrapping_mul(7919) % (cuts.len() / 2) + cuts.len() / 2];
        disk = Arc::new(recording.image(last, seed_of_life));
    }
    judged
}

#[test]
fn small_files_survive_every_cut() {
    for seed in 0..20 * rounds() {
        lives(SMALL, 120, 3, 400, seed);
    }
}

#[test]
fn large_files_survive_every_cut() {
    for seed in 0..4 * rounds() {
        lives(LARGE, 60, 2, 30, seed);
    }
}

#[test]
fn a_namespace_survives_every_cut_while_the_log_goes_round() {
    for seed in 0..2 * rounds() {
        lives(NAMES, 1500, 2, 60, seed);
    }
}
