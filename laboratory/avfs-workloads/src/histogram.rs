//! Latencies, counted.
//!
//! **For:** percentiles of millions of durations in little memory. **State:** counts; 64 buckets to each doubling, so
//! a percentile is at most a 64th too high, and one that rose by a twentieth is told from one that did not. **Invariants:** the longest is exact.

use serde::{Deserialize, Serialize};
use units::Duration;

/// Buckets to a doubling.
const STEPS: u64 = 64;

/// Durations by size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    longest_us: u64,
}

impl Histogram {
    /// Counts one.
    pub fn record(&mut self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let index = bucket(us);
        if self.buckets.len() <= index {
            self.buckets.resize(index + 1, 0);
        }
        self.buckets[index] += 1;
        self.count += 1;
        self.longest_us = self.longest_us.max(us);
    }

    /// Takes in what another one counted.
    pub fn merge(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.longest_us = self.longest_us.max(other.longest_us);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Milliseconds that `percent` of a hundred did not exceed; zero when nothing was counted.
    pub fn percentile_ms(&self, percent: f64) -> f64 {
        let wanted = ((self.count as f64 * percent / 100.0).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return (upper(index).min(self.longest_us)) as f64 / 1e3;
            }
        }
        0.0
    }

    /// The longest, milliseconds.
    pub fn longest_ms(&self) -> f64 {
        self.longest_us as f64 / 1e3
    }
}

fn bucket(us: u64) -> usize {
    if us < STEPS {
        return us as usize;
    }
    let octave = u64::from(us.ilog2() - STEPS.ilog2());
    (STEPS + octave * STEPS + ((us >> octave) - STEPS)) as usize
}

/// The largest value of a bucket.
fn upper(index: usize) -> u64 {
    let index = index as u64;
    if index < STEPS {
        return index;
    }
    let octave = (index - STEPS) / STEPS;
    let step = (index - STEPS) % STEPS + STEPS + 1;
    step.checked_shl(octave as u32).map_or(u64::MAX, |end| end.wrapping_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_is_counted_into_it_and_nothing_else() {
        for us in (0..100_000).chain([1 << 30, (1 << 40) + 12345]) {
            let index = bucket(us);
            assert!(us <= upper(index), "{us} is above its bucket");
            assert!(index == 0 || us > upper(index - 1), "{us} belongs to the bucket below");
        }
    }

    #[test]
    fn percentiles_are_a_64th_too_high_at_most_and_the_longest_is_exact() {
        let mut histogram = Histogram::default();
        for ms in 1..=1000 {
            histogram.record(Duration::from_millis(ms));
        }
        for (percent, exact) in [(50.0, 500.0), (99.0, 990.0)] {
            let found = histogram.percentile_ms(percent);
            assert!((exact..=exact * 65.0 / 64.0).contains(&found), "{percent} %: {found}");
        }
        assert_eq!(histogram.longest_ms(), 1000.0);
        assert_eq!(histogram.percentile_ms(100.0), 1000.0);
        assert_eq!(Histogram::default().percentile_ms(99.0), 0.0);
    }
}
