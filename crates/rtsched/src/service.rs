//! How long does the device take?
//!
//! **For:** the service model C(Q) = a + Q/R: one access and a transfer at one rate, for reads, writes and
//! flushes apart, because an array's write-back cache makes writes a device of their own. Random reads of 64 KiB
//! to 16 MiB on a RAID5 of five SATA disks follow it within a tenth with a = 16 ms and R = 170 MB/s.
//! **Excludes:** queueing; the scheduler reckons with the sum of what is ahead. **State:** decayed sums of the
//! completions of each direction. **Invariants:** estimates are never zero; one completion, however late, moves
//! an estimate by a bounded part; the figures in use change in steps, so what is queued is priced anew rarely.

use crate::request::Direction;
use units::{Bytes, Duration};

/// The time one command holds the device: `access` plus its length at `bytes_per_second`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceTime {
    /// Before the first byte: seek, rotation, the command itself. At least 1 ns is reckoned with.
    pub access: Duration,
    /// The rate from then on; at least 1.
    pub bytes_per_second: Bytes,
}

impl ServiceTime {
    /// The time for a command of `length`, rounded up to nanoseconds; saturates at 584 years.
    pub fn of(&self, length: Bytes) -> Duration {
        Duration::from_nanos(Figures::from(*self).nanos(length))
    }
}

/// A [`ServiceTime`] in whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Figures {
    access_nanos: u64,
    picos_per_byte: u64,
}

impl From<ServiceTime> for Figures {
    fn from(time: ServiceTime) -> Self {
        Self {
            access_nanos: u64::try_from(time.access.as_nanos()).unwrap_or(u64::MAX).max(1),
            picos_per_byte: 1_000_000_000_000_u64.div_ceil(time.bytes_per_second.0.max(1)),
        }
    }
}

impl Figures {
    fn nanos(self, length: Bytes) -> u64 {
        self.access_nanos.saturating_add(length.0.saturating_mul(self.picos_per_byte).div_ceil(1000))
    }
}

/// Completions that an estimate remembers, by exponential decay.
const MEMORY: f64 = 128.0;
/// Completions the start values count for, at each of the two probed lengths.
const CONFIDENCE: f64 = 4.0;
/// A completion counts for at most this multiple of what was expected, and at least its inverse.
const CLIP: f64 = 4.0;
/// One completion changes either part of the line by at most this factor.
const PACE: f64 = 1.25;
/// After so many completions in a row that all took more than twice, or less than half, of what was expected, it
/// is another device: an array that rebuilds, a cache that is gone.
const ASTRAY: i32 = 8;
/// The tail is never reckoned with at more than this multiple of the line.
const TAIL_MAX: f64 = 4.0;
/// The figures in use follow when the learned ones are off by more than this part of them.
const STEP: f64 = 1.0 / 16.0;
/// Lengths at which figures are compared.
const PROBES: [Bytes; 2] = [Bytes::from_kib(4), Bytes::from_mib(8)];

/// One direction: a line by least squares of the relative error, and above it the 99th percentile.
#[derive(Clone, Debug)]
struct Line {
    in_use: Figures,
    access: f64,
    per_byte: f64,
    /// Completions in a row more than twice too slow; negative: too fast.
    astray: i32,
    /// Ratio of service time to the line that one completion in a hundred exceeds.
    tail: f64,
    /// Decayed sums, each completion weighted by the inverse square of its expected time: 1, x, y, x², xy with
    /// x in bytes and y in nanoseconds.
    sums: [f64; 5],
}

impl Line {
    fn new(start: ServiceTime) -> Self {
        let in_use = Figures::from(start);
        let (access, per_byte) = (in_use.access_nanos as f64, in_use.picos_per_byte as f64 / 1000.0);
        let mut line = Self { in_use, access, per_byte, astray: 0, tail: 1.0, sums: [0.0; 5] };
        line.restart(1.0);
        line
    }

    /// Forgets everything but the line, scaled.
    fn restart(&mut self, scale: f64) {
        (self.access, self.per_byte) = (self.access * scale, self.per_byte * scale);
        (self.astray, self.tail, self.sums) = (0, 1.0, [0.0; 5]);
        for probe in PROBES {
            self.add(probe.0 as f64, self.expected(probe), CONFIDENCE);
        }
    }

    fn expected(&self, length: Bytes) -> f64 {
        self.access + self.per_byte * length.0 as f64
    }

    fn add(&mut self, x: f64, y: f64, count: f64) {
        let expected = self.access + self.per_byte * x;
        let weight = count / (expected * expected);
        let terms = [1.0, x, y, x * x, x * y];
        for (sum, term) in self.sums.iter_mut().zip(terms) {
            *sum += weight * term;
        }
    }

    /// Learns from one completion; true when the figures in use changed.
    fn observe(&mut self, length: Bytes, nanos: u64) -> bool {
        let expected = self.expected(length);
        let ratio = nanos as f64 / expected;
        self.astray = match ratio {
            slow if slow > 2.0 => self.astray.max(0) + 1,
            fast if fast < 0.5 => self.astray.min(0) - 1,
            _ => 0,
        };
        if self.astray.abs() >= ASTRAY {
            self.restart(if ratio > 1.0 { 2.0 } else { 0.5 });
            return self.publish();
        }
        for sum in &mut self.sums {
            *sum *= 1.0 - 1.0 / MEMORY;
        }
        self.add(length.0 as f64, expected * ratio.clamp(1.0 / CLIP, CLIP), 1.0);
        self.fit();
        // While the line still moves to another device's place, what lies above it is no tail.
        let moved = self.expected(length) / expected;
        if (1.0 - STEP..1.0 + STEP).contains(&moved) && self.astray.abs() < 3 {
            self.learn_tail(ratio);
        }
        // What was learned while less was expected must not outweigh what is learned now.
        if moved > 1.0 {
            for sum in &mut self.sums {
                *sum /= moved * moved;
            }
        }
        self.publish()
    }

    /// A stochastic quantile: 99 small steps down weigh one up, and no step is larger than 1/16.
    fn learn_tail(&mut self, ratio: f64) {
        if ratio > self.tail {
            self.tail += (ratio - self.tail).min(1.0 / 16.0);
        } else {
            self.tail -= (self.tail - ratio).min(1.0 / 16.0) / 99.0;
        }
        self.tail = self.tail.clamp(1.0, TAIL_MAX);
    }

    /// The weighted least-squares line. Where all lengths are alike it is not determined: then the line keeps
    /// its shape and is scaled.
    fn fit(&mut self) {
        let [n, x, y, xx, xy] = self.sums;
        let spread = n * xx - x * x;
        let (mut access, mut per_byte) = if spread > 1e-3 * n * xx {
            let slope = (n * xy - x * y) / spread;
            ((y - slope * x) / n, slope)
        } else {
            let scale = y / (self.access * n + self.per_byte * x);
            (self.access * scale, self.per_byte * scale)
        };
        if per_byte < 0.0 {
            (access, per_byte) = (y / n, 0.0);
        } else if access < 0.0 {
            (access, per_byte) = (0.0, xy / xx);
        }
        // Neither part jumps: a line through few or clipped points may be absurd for a while, and what it expects
        // is the weight of what it learns next.
        self.access = access.clamp(self.access / PACE, self.access * PACE).max(1.0);
        self.per_byte = per_byte.clamp(self.per_byte / PACE, self.per_byte * PACE).max(1e-6);
    }

    fn publish(&mut self) -> bool {
        let off = PROBES.iter().any(|&probe| {
            let learned = self.expected(probe) * self.tail;
            let used = self.in_use.nanos(probe) as f64;
            learned > used * (1.0 + STEP) || learned < used * (1.0 - STEP)
        });
        if off {
            let ceil = |value: f64| (value as u64).saturating_add(1);
            self.in_use = Figures {
                access_nanos: ceil(self.access * self.tail),
                picos_per_byte: ceil(self.per_byte * self.tail * 1000.0),
            };
        }
        off
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct ServiceModel {
    lines: [Line; 3],
    learning: bool,
}

impl ServiceModel {
    pub(crate) fn new(read: ServiceTime, write: ServiceTime, flush: ServiceTime, learning: bool) -> Self {
        Self { lines: [Line::new(read), Line::new(write), Line::new(flush)], learning }
    }

    /// Nanoseconds a command holds the device, in 99 of 100 cases no longer.
    pub(crate) fn nanos(&self, direction: Direction, length: Bytes) -> u64 {
        self.lines[direction as usize].in_use.nanos(length)
    }

    /// Nanoseconds of it before the first byte: what a merge saves.
    pub(crate) fn access_nanos(&self, direction: Direction) -> u64 {
        self.lines[direction as usize].in_use.access_nanos
    }

    /// The figures in use.
    pub(crate) fn service_time(&self, direction: Direction) -> ServiceTime {
        let Figures { access_nanos, picos_per_byte } = self.lines[direction as usize].in_use;
        ServiceTime {
            access: Duration::from_nanos(access_nanos),
            bytes_per_second: Bytes(1_000_000_000_000 / picos_per_byte.max(1)),
        }
    }

    /// Learns that a command held the device for `took`; true when [`nanos`](Self::nanos) answers otherwise now.
    pub(crate) fn observe(&mut self, direction: Direction, length: Bytes, took: Duration) -> bool {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.learning && self.lines[direction as usize].observe(length, nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: ServiceTime =
        ServiceTime { access: Duration::from_millis(16), bytes_per_second: Bytes(170_000_000) };
    const FLASH: ServiceTime =
        ServiceTime { access: Duration::from_micros(90), bytes_per_second: Bytes(3_000_000_000) };
    const SIZES: [Bytes; 4] =
        [Bytes::from_kib(4), Bytes::from_mib(1), Bytes::from_mib(8), Bytes::from_mib(16)];

    fn model(start: ServiceTime) -> ServiceModel {
        ServiceModel::new(start, start, start, true)
    }

    fn off_by(model: &ServiceModel, truth: ServiceTime, length: Bytes) -> f64 {
        model.nanos(Direction::Read, length) as f64 / truth.of(length).as_nanos() as f64
    }

    #[test]
    fn start_values_are_random_reads_of_a_raid5_within_a_tenth() {
        // Request size in KiB, Mbit/s: random reads of 64 KiB..16 MiB measured on a five-disk RAID5.
        for (kib, megabits) in [(64, 35.0), (512, 204.5), (2048, 569.9), (8192, 1032.4), (16384, 1216.6)] {
            let measured = kib as f64 * 8192.0 / (megabits * 1e6);
            let ratio = DISK.of(Bytes::from_kib(kib)).as_secs_f64() / measured;
            assert!((0.9..1.1).contains(&ratio), "{kib} KiB: {ratio}");
        }
    }

    #[test]
    fn a_device_that_keeps_to_the_model_leaves_it_unchanged() {
        let mut model = model(DISK);
        for round in 0..1000 {
            let length = SIZES[round % SIZES.len()];
            assert!(!model.observe(Direction::Read, length, DISK.of(length)));
        }
        assert_eq!(model.nanos(Direction::Read, SIZES[2]), DISK.of(SIZES[2]).as_nanos() as u64);
    }

    #[test]
    fn another_device_is_learned_from_its_completions_reads_apart_from_writes() {
        for (start, truth) in [(DISK, FLASH), (FLASH, DISK)] {
            let mut model = model(start);
            for round in 0..2000 {
                let length = SIZES[round % SIZES.len()];
                model.observe(Direction::Read, length, truth.of(length));
            }
            for length in SIZES {
                let ratio = off_by(&model, truth, length);
                assert!((0.85..1.15).contains(&ratio), "{length}: {ratio}");
            }
            assert_eq!(
                model.service_time(Direction::Write),
                self::model(start).service_time(Direction::Write)
            );
        }
    }

    #[test]
    fn requests_of_one_size_teach_that_size() {
        let mut model = model(DISK);
        for _ in 0..2000 {
            model.observe(Direction::Read, SIZES[2], FLASH.of(SIZES[2]));
        }
        assert!((0.9..1.15).contains(&off_by(&model, FLASH, SIZES[2])));
    }

    #[test]
    fn one_completion_of_a_minute_moves_the_estimate_by_less_than_a_quarter() {
        let mut model = model(DISK);
        for round in 0..500 {
            let length = SIZES[round % SIZES.len()];
            model.observe(Direction::Read, length, DISK.of(length));
        }
        model.observe(Direction::Read, SIZES[2], Duration::from_secs(60));
        for length in SIZES {
            let ratio = off_by(&model, DISK, length);
            assert!((0.99..1.25).contains(&ratio), "{length}: {ratio}");
        }
    }

    #[test]
    fn a_tail_is_reckoned_with() {
        // One command in twenty takes twice as long: the estimate must cover it, as 1 in 20 is more than 1 in 100.
        let mut model = model(DISK);
        for round in 0..5000 {
            let length = SIZES[round % SIZES.len()];
            let factor = if round % 21 == 0 { 2 } else { 1 };
            model.observe(Direction::Read, length, DISK.of(length) * factor);
        }
        let ratio = off_by(&model, DISK, SIZES[2]);
        assert!((1.7..2.6).contains(&ratio), "{ratio}");
    }
}
