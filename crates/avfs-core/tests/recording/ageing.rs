//! A month of a facility, on a volume that is nearly full all the time.

use crate::studio::{Clip, GIB, MIB, Studio};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use units::Ino;

const VOLUME: u64 = 512 * GIB;
const FULL_PERMILLE: u64 = 900;
/// What was deleted last may have been a long file.
const LEAST_PERMILLE: u64 = 890;
const RECORDERS: usize = 8;
const DAYS: u64 = 30;
/// A tenth of the volume is written anew on each day.
const DAILY_PERCENT: u64 = 10;
/// As FUSE hands them over.
const PIECE: u64 = MIB;

struct Facility {
    studio: Studio,
    random: SmallRng,
    files: Vec<(String, Ino)>,
    next: u64,
}

struct Writing {
    name: String,
    clip: Clip,
    at: u64,
    length: u64,
}

impl Facility {
    fn new(seed: u64) -> Self {
        let studio = Studio::new(VOLUME, GIB);
        Self { studio, random: SmallRng::seed_from_u64(seed), files: Vec::new(), next: 0 }
    }

    fn used_permille(&self) -> u64 {
        let statistics = self.studio.core().statistics();
        (statistics.blocks - statistics.available) * 1000 / statistics.blocks
    }

    /// Footage, renders, and what applications keep beside them.
    fn length(&mut self) -> u64 {
        match self.random.random_range(0..100) {
            0..40 => self.random.random_range(4 << 10..2 * MIB),
            40..70 => self.random.random_range(64 * MIB..GIB),
            70..95 => self.random.random_range(GIB..4 * GIB),
            _ => self.random.random_range(4 * GIB..16 * GIB),
        }
    }

    fn begin(&mut self) -> Writing {
        let name = format!("clip {}", self.next);
        self.next += 1;
        let length = self.length();
        Writing { clip: self.studio.create(&name), name, at: 0, length }
    }

    fn make_room(&mut self) {
        while self.used_permille() >= FULL_PERMILLE {
            let pick = self.random.random_range(0..self.files.len());
            let (name, ino) = self.files.swap_remove(pick);
            self.studio.delete(&name, ino);
            self.studio.sync();
        }
    }

    /// Eight write at once until `bytes` are written.
    fn work(&mut self, mut bytes: u64) {
        let mut writing: Vec<Writing> = Vec::new();
        while bytes > 0 || !writing.is_empty() {
            while bytes > 0 && writing.len() < RECORDERS {
                let next = self.begin();
                bytes = bytes.saturating_sub(next.length);
                writing.push(next);
            }
            let pick = self.random.random_range(0..writing.len());
            let Writing { clip, at, length, .. } = writing[pick];
            let end = length.min(at + 8 * PIECE);
            self.make_room();
            self.studio.append(clip, at..end, PIECE);
            self.studio.drain();
            writing[pick].at = end;
            if end == length {
                let done = writing.swap_remove(pick);
                self.studio.close(done.clip);
                self.files.push((done.name, done.clip.ino));
            }
        }
        self.studio.sync();
    }

    /// More, until it is as full as it is meant to be.
    fn fill(&mut self) {
        while self.used_permille() < LEAST_PERMILLE {
            self.work(VOLUME / 1000);
        }
    }

    /// The mean run, in MiB, of files of 1 GiB that are now written side by side, and deleted again.
    fn fresh_mean_run_mib(&mut self, count: u64) -> u64 {
        let clips: Vec<(String, Clip)> = (0..count)
            .map(|number| {
                let name = format!("new {number}");
                let clip = self.studio.create(&name);
                (name, clip)
            })
            .collect();
        for at in (0..GIB).step_by(8 * MIB as usize) {
            for (_, clip) in &clips {
                self.studio.append(*clip, at..at + 8 * MIB, PIECE);
            }
            self.studio.drain();
        }
        self.studio.sync();
        let runs: usize = clips.iter().map(|(_, clip)| self.studio.runs(*clip).len()).sum();
        for (name, clip) in clips {
            self.studio.close(clip);
            self.studio.delete(&name, clip.ino);
        }
        self.studio.sync();
        count * GIB / MIB / runs as u64
    }
}

/// A month from each of three beginnings. Clips that are copied have numbers in their names, and were taken for frames of a film: eight
/// that were written at once took turns in one place, and after a month new files lay in runs of 40 MiB.
#[test]
fn after_a_month_at_ninety_percent_new_files_lie_in_long_runs() {
    for seed in 1..=3 {
        let mut facility = Facility::new(seed);
        facility.work(VOLUME / 1000 * FULL_PERMILLE);
        for _ in 0..DAYS {
            facility.work(VOLUME / 100 * DAILY_PERCENT);
        }
        facility.fill();
        let used = facility.used_permille();
        assert!(used >= LEAST_PERMILLE, "{used}");
        let alone = facility.fresh_mean_run_mib(1);
        let together = facility.fresh_mean_run_mib(RECORDERS as u64);
        let report = facility.studio.core().report();
        println!(
            "{} files, {used} of 1000 full, longest free run {} MiB; mean run of 1 GiB alone {alone} MiB, of eight at once {together} MiB",
            facility.files.len(),
            report.longest_free_run_bytes / MIB
        );
        assert!(alone >= 64 && together >= 64, "seed {seed}: mean runs of {alone} and {together} MiB");
        facility.studio.core().audit().unwrap();
    }
}
