//! How free space is cut, and for how long there will be long runs of it.
//!
//! **For:** a histogram of free runs, and an estimate by what became of long ones. **Excludes:** choosing places, and keeping samples.
//! **State:** none. **Invariants:** what is reported of runs adds up to the free blocks that were seen.

use crate::allocator::BlockRun;
use crate::format::BLOCK;
use avfs_streams::streams::LONGEST_REQUEST;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the report: fields are only added to one.
pub const VERSION: u32 = 1;

/// A run is long from this length on, in bytes: longer ones win a stream nothing.
pub const LONG: u64 = LONGEST_REQUEST;

/// What an estimate looks back at most, in milliseconds: an estimator's window. A facility has a rhythm of a week.
const WINDOW: i64 = 7 * DAY;
/// An estimate needs this much time at least, in milliseconds: an estimator's window, the time between two samples.
const LEAST: i64 = HOUR;
const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;

/// Free runs whose lengths lie between a power of two and the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeRunsReport {
    /// The shortest that count here, in bytes.
    pub at_least_bytes: u64,
    /// How many.
    pub runs: u64,
    /// Their lengths together, in bytes.
    pub bytes: u64,
}

/// For how long there will be long runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongRunsReport {
    /// Runs of at least so many bytes are long: a stream's longest request fits.
    pub at_least_bytes: u64,
    /// Their lengths together, in bytes.
    pub bytes: u64,
    /// How far back the estimate looks, in hours; 0: there was nothing to look at.
    pub observed_hours: u64,
    /// By how many bytes a day they have become less; negative: more. Absent when nothing is known.
    pub lost_bytes_per_day: Option<i64>,
    /// When there will be none, in hours, if it goes on so. Absent when it does not come to that, or nothing is known.
    pub end_in_hours: Option<u64>,
}

/// How free space is cut, for `avfsctl frag`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeSpaceReport {
    /// [`VERSION`].
    pub version: u32,
    /// Size of the device in bytes.
    pub device_bytes: u64,
    /// All that is free, in bytes.
    pub free_bytes: u64,
    /// In so many runs.
    pub runs: u64,
    /// The longest, in bytes.
    pub longest_bytes: u64,
    /// By length, the shortest first; lengths of which there are none are left out.
    pub by_length: Vec<FreeRunsReport>,
    /// How long long runs will last.
    pub long: LongRunsReport,
}

/// Free space at some time, of which estimates are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When, in milliseconds since 1970 UTC.
    pub at_milliseconds: i64,
    /// Bytes that were free.
    pub free_bytes: u64,
    /// Bytes in long runs.
    pub long_bytes: u64,
}

/// Free runs, as they are found in order.
#[derive(Debug, Default)]
pub struct FreeRuns {
    /// By binary logarithm of the length in blocks: how many, and how many blocks.
    by_length: BTreeMap<u32, (u64, u64)>,
    longest: u64,
    long: u64,
    /// The last one may go on.
    last: Option<BlockRun>,
}

impl FreeRuns {
    /// The next one, or a part of one that goes on where the last ended.
    pub fn add(&mut self, run: BlockRun) {
        match &mut self.last {
            Some(last) if last.end() == run.start => last.count += run.count,
            _ => {
                self.settle();
                self.last = Some(run);
            }
        }
    }

    fn settle(&mut self) {
        let Some(run) = self.last.take().filter(|run| run.count > 0) else { return };
        let (runs, blocks) = self.by_length.entry(run.count.ilog2()).or_default();
        *runs += 1;
        *blocks += run.count;
        self.longest = self.longest.max(run.count);
        if run.count * BLOCK >= LONG {
            self.long += run.count;
        }
    }

    /// All of them, on a device of so many bytes.
    pub fn report(mut self, device_bytes: u64) -> FreeSpaceReport {
        self.settle();
        let by_length: Vec<_> = self
            .by_length
            .into_iter()
            .map(|(power, (runs, blocks))| FreeRunsReport {
                at_least_bytes: BLOCK << power,
                runs,
                bytes: blocks * BLOCK,
            })
            .collect();
        FreeSpaceReport {
            version: VERSION,
            device_bytes,
            free_bytes: by_length.iter().map(|runs| runs.bytes).sum(),
            runs: by_length.iter().map(|runs| runs.runs).sum(),
            longest_bytes: self.longest * BLOCK,
            by_length,
            long: LongRunsReport {
                at_least_bytes: LONG,
                bytes: self.long * BLOCK,
                ..LongRunsReport::default()
            },
        }
    }
}

impl FreeSpaceReport {
    /// What is worth keeping of it.
    pub fn sample(&self, at_milliseconds: i64) -> Sample {
        Sample { at_milliseconds, free_bytes: self.free_bytes, long_bytes: self.long.bytes }
    }

    /// Estimates for how long there will be long runs, by what there was at earlier times, the earliest first.
    pub fn estimate(&mut self, earlier: &[Sample], now_milliseconds: i64) {
        let age = |sample: &Sample| now_milliseconds.saturating_sub(sample.at_milliseconds);
        let Some(first) = earlier.iter().find(|sample| (LEAST..=WINDOW).contains(&age(sample))) else {
            return;
        };
        let lost = i128::from(first.long_bytes) - i128::from(self.long.bytes);
        let per_day = lost * i128::from(DAY) / i128::from(age(first));
        self.long.observed_hours = age(first).unsigned_abs() / HOUR as u64;
        self.long.lost_bytes_per_day = i64::try_from(per_day).ok();
        let hours = (per_day > 0).then(|| i128::from(self.long.bytes) * 24 / per_day);
        self.long.end_in_hours = hours.and_then(|hours| u64::try_from(hours).ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn runs(all: &[(u64, u64)]) -> FreeSpaceReport {
        let mut runs = FreeRuns::default();
        all.iter().for_each(|&(start, count)| runs.add(BlockRun { start, count }));
        runs.report(1 << 40)
    }

    #[test]
    fn runs_are_counted_by_length_and_those_that_touch_are_one() {
        let report = runs(&[(0, 1), (2, 2048), (2050, 2048), (5000, 3), (1 << 20, 16384)]);
        let shown: Vec<_> =
            report.by_length.iter().map(|one| (one.at_least_bytes, one.runs, one.bytes)).collect();
        assert_eq!(
            shown,
            [(4096, 1, 4096), (8192, 1, 12288), (16 * MIB, 1, 16 * MIB), (64 * MIB, 1, 64 * MIB)]
        );
        assert_eq!((report.runs, report.longest_bytes, report.long.bytes), (4, 64 * MIB, 64 * MIB));
        assert_eq!(report.free_bytes, 80 * MIB + 16384);
        assert_eq!(runs(&[]).by_length, []);
    }

    #[test]
    fn an_estimate_is_what_was_lost_a_day_as_far_as_it_is_looked_back() {
        let sample = |days_ago: i64, mebibytes: u64| Sample {
            at_milliseconds: -days_ago * DAY,
            free_bytes: 0,
            long_bytes: mebibytes * MIB,
        };
        let estimate = |earlier: &[Sample]| {
            let mut report = runs(&[(0, 100 * 16384)]);
            report.estimate(earlier, 0);
            (report.long.observed_hours, report.long.lost_bytes_per_day, report.long.end_in_hours)
        };
        // 1600 MiB are lost in four days, and 6400 are left.
        assert_eq!(estimate(&[sample(4, 8000)]), (96, Some(400 * MIB as i64), Some(16 * 24)));
        // What was before the last week does not count; it has become more since.
        assert_eq!(estimate(&[sample(40, 99_000), sample(2, 6000)]), (48, Some(-200 * MIB as i64), None));
        assert_eq!(estimate(&[]), (0, None, None));
        let mut now = runs(&[(0, 16384)]);
        now.estimate(&[Sample { at_milliseconds: -HOUR / 2, free_bytes: 0, long_bytes: 1 << 40 }], 0);
        assert_eq!(now.long.end_in_hours, None);
    }
}
