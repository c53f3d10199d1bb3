//! The golden set: named experiments on six devices with many seeds, in virtual time.
//!
//! **For:** saying what a change of the code changes: nothing, down to the last command that a device is told, or which figures by
//! how much; and whether a change of policy makes anything worse. **Excludes:** kernel, network and Samba, as in every
//! [`rehearsal`](crate::rehearsal). **State:** none; the table of the last run that was kept is a file. **Invariants:** a row is a
//! function of its cell, its seeds and the code: processors, threads, hash maps and clocks have no part in it.

mod set;
mod table;
mod verdict;

pub use set::{CACHE_PASSES, EXPERIMENTS, Request, TABLES, Table};
pub use table::{Row, RowError, hashes, parse, parse_hashes, text};
pub use verdict::{ALPHA, LONGER_AT_MOST, Verdict, fisher_more, judge, pooled};

use crate::rehearsal::{RehearsalError, Rehearsed, Stage};
use avfs_workloads::Contender;
use avfs_workloads::histogram::Histogram;
use avfs_workloads::{ClientReport, Pattern};
use rtsched_sim::trace::Trace;
use set::Group;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use thiserror::Error;

/// Why there is no table.
#[derive(Debug, Error)]
pub enum GoldenError {
    /// A point could not be rehearsed.
    #[error("{cell}: {source}")]
    Rehearsal {
        /// In which cell, or where all begin.
        cell: String,
        /// Why.
        source: RehearsalError,
    },
    /// An operation of a client failed, which none may.
    #[error("{cell}, seed {seed}: {error}")]
    Client {
        /// In which cell.
        cell: String,
        /// In which run of it.
        seed: u32,
        /// What.
        error: String,
    },
}

/// Cells of a group, by name.
type Sums = Result<Vec<(String, Sum)>, GoldenError>;

/// Seeds that a worker takes at once.
const TAKEN: u32 = 25;

/// Runs the set; the rows in the order of their cells. `tell` hears how many of how many parts are done.
///
/// # Errors
/// The first, in the order of the cells.
pub fn run(request: &Request, tell: &(dyn Fn(usize, usize) + Sync)) -> Result<Vec<Row>, GoldenError> {
    let groups: Vec<Group> = set::groups().into_iter().filter_map(|group| group.only(request)).collect();
    let stages: Vec<OnceLock<Result<Stage, GoldenError>>> = groups.iter().map(|_| OnceLock::new()).collect();
    let parts = || (0..request.seeds).step_by(TAKEN as usize);
    let range = |first: u32| first..request.seeds.min(first + TAKEN);
    let work: Vec<(usize, Range<u32>)> =
        (0..groups.len()).flat_map(|group| parts().map(move |first| (group, range(first)))).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Vec<OnceLock<Sums>> = work.iter().map(|_| OnceLock::new()).collect();
    std::thread::scope(|scope| {
        for _ in 0..request.workers.max(1) {
            scope.spawn(|| {
                while let Some((place, (group, seeds))) = {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    work.get(place).map(|part| (place, part))
                } {
                    let result = of_group(&groups[*group], &stages[*group], seeds.clone());
                    // Each place is taken once.
                    let _ = results[place].set(result);
                    tell(done.fetch_add(1, Ordering::Relaxed) + 1, work.len());
                }
            });
        }
    });
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for result in results.into_iter().filter_map(OnceLock::into_inner) {
        for (cell, sum) in result? {
            sums.entry(cell).or_default().add(sum);
        }
    }
    Ok(sums.into_iter().map(|(cell, sum)| sum.row(cell)).collect())
}

fn of_group<'a>(
    group: &'a Group,
    stage: &OnceLock<Result<Stage<'a>, GoldenError>>,
    seeds: Range<u32>,
) -> Sums {
    let failed = |cell: &str, source| GoldenError::Rehearsal { cell: cell.to_owned(), source };
    let prepare = || Stage::prepare(&group.declaration).map_err(|source| failed(&group.name(), source));
    let stage = match stage.get_or_init(prepare) {
        Ok(stage) => stage,
        Err(error) => return Err(failed(&group.name(), RehearsalError::Client(error.to_string()))),
    };
    let mut sums = Vec::new();
    for (cell, contender, clients) in group.cells() {
        let mut sum = Sum::default();
        for seed in seeds.clone() {
            let point =
                of_point(group, stage, contender, clients, seed).map_err(|source| failed(&cell, source))?;
            if let Some(error) = point.error {
                return Err(GoldenError::Client { cell, seed, error });
            }
            sum.add(point.sum);
        }
        sums.push((cell, sum));
    }
    Ok(sums)
}

struct OfPoint {
    sum: Sum,
    error: Option<String>,
}

fn of_point(
    group: &Group,
    stage: &Stage,
    contender: &Contender,
    clients: u32,
    seed: u32,
) -> Result<OfPoint, RehearsalError> {
    let experiment = group.experiment();
    let Rehearsed { point, commands, reports, .. } =
        stage.run(contender, experiment, clients, seed, u64::from(seed) + 1)?;
    let counted = (0..clients).map(|client| experiment.pattern(client));
    let patterns = counted.chain(&experiment.background);
    let mut sum = Sum::default();
    for (pattern, report) in std::iter::zip(patterns, &reports) {
        sum.note(pattern, report);
    }
    let mut hash = Trace::default();
    commands.iter().for_each(|command| hash.note(command.words()));
    sum.points = 1;
    sum.points_late = u32::from(sum.late > 0);
    sum.hashes = vec![(seed, hash.0)];
    sum.kib_per_seek = point.kib_per_seek;
    sum.busy = point.utilisation;
    sum.copied = point.background_megabits;
    sum.sustained = point.sustained;
    if let Some(said) = point.avfs {
        sum.unread = said.never_read_percent;
        sum.promised = said.streams_admitted;
    }
    Ok(OfPoint { sum, error: point.first_error })
}

/// What is known of some points of a cell.
#[derive(Debug, Default)]
struct Sum {
    points: u32,
    points_late: u32,
    late: u64,
    late_by_buffer: [u64; set::BUFFERS_MS.len()],
    latest_ms: f64,
    first: Histogram,
    begin: Histogram,
    jump: Histogram,
    search: Histogram,
    kib_per_seek: f64,
    unread: f64,
    busy: f64,
    copied: f64,
    sustained: Option<f64>,
    promised: u32,
    hashes: Vec<(u32, u64)>,
}

impl Sum {
    /// One client of a point.
    fn note(&mut self, pattern: &Pattern, report: &ClientReport) {
        self.late += report.late;
        if let Some(place) = set::BUFFERS_MS.iter().position(|buffer| pattern.buffer_ms() == Some(*buffer)) {
            self.late_by_buffer[place] += report.late;
        }
        self.latest_ms = self.latest_ms.max(report.latest_ms);
        self.first.merge(&report.first);
        match pattern {
            Pattern::Editor(_) => self.jump.merge(&report.first),
            _ => self.begin.merge(&report.start),
        }
        self.search.merge(&report.jumps);
    }

    fn add(&mut self, other: Self) {
        self.points += other.points;
        self.points_late += other.points_late;
        self.late += other.late;
        for (mine, theirs) in std::iter::zip(&mut self.late_by_buffer, other.late_by_buffer) {
            *mine += theirs;
        }
        self.latest_ms = self.latest_ms.max(other.latest_ms);
        self.first.merge(&other.first);
        self.begin.merge(&other.begin);
        self.jump.merge(&other.jump);
        self.search.merge(&other.search);
        self.kib_per_seek += other.kib_per_seek;
        self.unread += other.unread;
        self.busy += other.busy;
        self.copied += other.copied;
        self.sustained = match (self.sustained, other.sustained) {
            (Some(mine), Some(theirs)) => Some(mine + theirs),
            (mine, theirs) => mine.or(theirs),
        };
        self.promised += other.promised;
        self.hashes.extend(other.hashes);
    }

    fn row(mut self, cell: String) -> Row {
        // In the order of the seeds, whichever part was done first.
        self.hashes.sort_unstable();
        let mut hash = Trace::default();
        hash.note(self.hashes.iter().map(|(_, one)| *one));
        let mean = |sum: f64| sum / f64::from(self.points.max(1));
        let of =
            |times: &Histogram, figure: fn(&Histogram) -> f64| (times.count() > 0).then(|| figure(times));
        let p99 = |times: &Histogram| of(times, |times| times.percentile_ms(99.0));
        Row {
            cell,
            points: self.points,
            points_late: self.points_late,
            late: self.late,
            late_by_buffer: self.late_by_buffer,
            latest_ms: self.latest_ms,
            picture_ms: of(&self.first, Histogram::longest_ms),
            begin_p99_ms: p99(&self.begin),
            begin_ms: of(&self.begin, Histogram::longest_ms),
            jump_p99_ms: p99(&self.jump),
            search_p99_ms: p99(&self.search),
            kib_per_seek: mean(self.kib_per_seek),
            unread_percent: mean(self.unread),
            busy_percent: mean(self.busy),
            copy_megabits: mean(self.copied),
            sustained_percent: self.sustained.map(|sum| mean(sum) * 100.0),
            promised: mean(f64::from(self.promised)),
            first_hash: self.hashes.first().map_or(0, |(_, hash)| *hash),
            hash: hash.0,
        }
    }
}
