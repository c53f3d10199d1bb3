//! What a command costs: a line of service times, and how it is learned.
//!
//! **For:** C(Q) = a + Q/R by least squares of the relative error, decayed, so that a sum over many commands is right.
//! **Excludes:** which model a command belongs to, which is [`zones`](crate::zones)'. **State:** decayed sums.
//! **Invariants:** neither part is ever zero; one observation, however far off, moves them by a bounded factor; the
//! figures in use change in steps.

use units::{Bytes, Duration, nanos};

/// The time one command holds the device: C(Q) = a + Q/R, `access` plus its length at `bytes_per_second`.
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

/// A line in whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) access_nanos: u64,
    pub(crate) picos_per_byte: u64,
}

impl From<ServiceTime> for Figures {
    fn from(time: ServiceTime) -> Self {
        Self {
            access_nanos: nanos(time.access).max(1),
            picos_per_byte: 1_000_000_000_000_u64.div_ceil(time.bytes_per_second.0.max(1)),
        }
    }
}

impl Figures {
    pub(crate) fn transfer(self, length: Bytes) -> u64 {
        length.0.saturating_mul(self.picos_per_byte).div_ceil(1000)
    }

    pub(crate) fn nanos(self, length: Bytes) -> u64 {
        self.access_nanos.saturating_add(self.transfer(length))
    }
}

/// Completions that an estimate remembers, by exponential decay. An estimator's window.
const MEMORY: f64 = 128.0;
/// A guessed value counts for so many completions, at each of the two anchors. An estimator's window.
pub(crate) const CONFIDENCE_GUESSED: f64 = 4.0;
/// A measured value counts for so many completions, at each of the two anchors. An estimator's window.
pub(crate) const CONFIDENCE_MEASURED: f64 = 64.0;
/// Where a line is held, and with how many times its confidence. An estimator's window.
const ANCHORS: &[(Bytes, f64)] = &[(Bytes::from_kib(4), 1.0), (Bytes::from_mib(8), 1.0)];
/// Where a line is held whose rate was measured, and with how many times its confidence. How far commands seek depends
/// on which clients ask for what. How long a byte takes does not, and a long command shows it. So commands of one
/// length that take less than was measured seek less. An estimator's window.
const ANCHORS_OF_RATE: &[(Bytes, f64)] =
    &[(Bytes::from_kib(4), 1.0 / 16.0), (Bytes::from_mib(8), 1.0), (Bytes::from_mib(1 << 10), 4.0)];
/// Access is so many times less certain than transfer at a measured rate. That holds of two parts of the same length.
/// An estimator's window.
const ACCESS_VARIES: f64 = 10.0;
/// A completion counts for at most this multiple of what was expected, and at least its inverse. An estimator's window.
const CLIP: f64 = 4.0;
/// One completion changes either part of the line by at most this factor. An estimator's window.
const PACE: f64 = 1.25;
/// A completion is drift if it took more than this multiple of the line, or less than its inverse. An estimator's
/// window.
const DRIFT: f64 = 1.25;
/// So many drifting completions in a row mean another device: an array that rebuilds, a cache that is gone. Outliers do
/// not come in rows. An estimator's window.
const DRIFTING: u32 = 6;
/// The figures in use follow when the learned ones are off by more than this part of them, at one of the [`PROBES`]. An
/// estimator's window.
const STEP: f64 = 1.0 / 64.0;
/// Lengths at which learned figures are compared with those in use. An estimator's window.
const PROBES: [Bytes; 3] = [Bytes::from_kib(4), Bytes::from_mib(1), Bytes::from_mib(64)];

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct CostModel {
    pub(crate) in_use: Figures,
    /// Nanoseconds.
    access: f64,
    per_byte: f64,
    /// Completions in a row that were too slow, or too fast, and the sum of their ratios to the line.
    drifting: u32,
    drift: f64,
    /// Decayed sums, each completion weighted by the inverse square of its expected time: 1, x, y, x², xy with
    /// x in bytes and y in nanoseconds.
    sums: [f64; 5],
    /// Completions it has learned from.
    pub(crate) seen: u32,
    /// Its rate was measured, and the device has not become another since.
    rate_is_known: bool,
}

/// What a completion changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Learned {
    Nothing,
    /// The figures in use.
    Figures,
    /// The device: it takes so many times as long.
    Device(f64),
}

impl CostModel {
    pub(crate) fn new(start: ServiceTime, confidence: f64, rate_is_known: bool) -> Self {
        let in_use = Figures::from(start);
        let (access, per_byte) = (in_use.access_nanos as f64, in_use.picos_per_byte as f64 / 1000.0);
        let (drifting, drift, sums, seen) = (0, 0.0, [0.0; 5], 0);
        let mut model = Self { in_use, access, per_byte, drifting, drift, sums, seen, rate_is_known };
        model.restart(1.0, confidence);
        model
    }

    /// Nanoseconds that a command of `length` takes on average.
    pub(crate) fn expected(&self, length: Bytes) -> f64 {
        self.access + self.per_byte * length.0 as f64
    }

    /// The device takes `scale` times as long.
    pub(crate) fn rescale(&mut self, scale: f64) {
        self.rate_is_known = false;
        self.restart(scale, CONFIDENCE_GUESSED);
        self.publish();
    }

    /// Forgets everything but the line, scaled.
    fn restart(&mut self, scale: f64, confidence: f64) {
        (self.access, self.per_byte) = (self.access * scale, self.per_byte * scale);
        (self.drifting, self.drift, self.sums) = (0, 0.0, [0.0; 5]);
        for &(anchor, part) in if self.rate_is_known { ANCHORS_OF_RATE } else { ANCHORS } {
            self.add(anchor.0 as f64, self.expected(anchor), confidence * part);
        }
    }

    fn add(&mut self, x: f64, y: f64, count: f64) {
        let expected = self.access + self.per_byte * x;
        let weight = count / (expected * expected);
        let terms = [1.0, x, y, x * x, x * y];
        for (sum, term) in self.sums.iter_mut().zip(terms) {
            *sum += weight * term;
        }
    }

    /// Counts completions far from the line in one direction.
    fn note_drift(&mut self, ratio: f64) {
        let is_slow = ratio > DRIFT;
        if !is_slow && ratio >= 1.0 / DRIFT {
            (self.drifting, self.drift) = (0, 0.0);
            return;
        }
        if self.drifting > 0 && is_slow != (self.drift > f64::from(self.drifting)) {
            (self.drifting, self.drift) = (0, 0.0);
        }
        (self.drifting, self.drift) = (self.drifting + 1, self.drift + ratio);
    }

    /// Learns from a completion that took `ratio` of what was expected.
    pub(crate) fn observe(&mut self, length: Bytes, ratio: f64) -> Learned {
        self.seen = self.seen.saturating_add(1);
        let expected = self.expected(length);
        self.note_drift(ratio);
        if self.drifting >= DRIFTING {
            let scale = (self.drift / f64::from(self.drifting)).clamp(1.0 / CLIP, CLIP);
            self.rescale(scale);
            return Learned::Device(scale);
        }
        for sum in &mut self.sums {
            *sum *= 1.0 - 1.0 / MEMORY;
        }
        self.add(length.0 as f64, expected * ratio.clamp(1.0 / CLIP, CLIP), 1.0);
        self.fit();
        // What was learned while less was expected must not outweigh what is learned now.
        let moved = self.expected(length) / expected;
        if moved > 1.0 {
            for sum in &mut self.sums {
                *sum /= moved * moved;
            }
        }
        if self.publish() { Learned::Figures } else { Learned::Nothing }
    }

    /// The weighted least-squares line. Where all lengths are alike it is not determined: then the line keeps
    /// its shape and is scaled, or its rate where that was measured.
    fn fit(&mut self) {
        let [n, x, y, xx, xy] = self.sums;
        let spread = n * xx - x * x;
        let (mut access, mut per_byte) = if spread > 1e-3 * n * xx {
            let slope = (n * xy - x * y) / spread;
            ((y - slope * x) / n, slope)
        } else if self.rate_is_known {
            let (length, transfer) = (x / n, self.per_byte * x / n);
            let off = y / n - self.access - transfer;
            let varies = self.access * ACCESS_VARIES;
            let part = varies * varies / (varies * varies + transfer * transfer);
            (self.access + off * part, self.per_byte + off * (1.0 - part) / length)
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
        let ceil = |value: f64| (value as u64).saturating_add(1);
        let learned =
            Figures { access_nanos: ceil(self.access), picos_per_byte: ceil(self.per_byte * 1000.0) };
        let off = PROBES.iter().any(|&probe| {
            let (learned, used) = (learned.nanos(probe) as f64, self.in_use.nanos(probe) as f64);
            learned > used * (1.0 + STEP) || learned < used * (1.0 - STEP)
        });
        if off {
            self.in_use = learned;
        }
        off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: ServiceTime =
        ServiceTime { access: Duration::from_millis(16), bytes_per_second: Bytes(170_000_000) };

    fn observe(model: &mut CostModel, truth: ServiceTime, length: Bytes) {
        let ratio = truth.of(length).as_nanos() as f64 / model.expected(length);
        model.observe(length, ratio);
    }

    /// By what a line is off at a length.
    fn ratio(model: &CostModel, truth: ServiceTime, length: Bytes) -> f64 {
        model.in_use.nanos(length) as f64 / truth.of(length).as_nanos() as f64
    }

    #[test]
    fn commands_of_one_length_that_seek_less_say_nothing_of_a_rate_that_was_measured() {
        // A file in pieces of 4 MiB that lie close together: its reads seek in 6 ms less than was measured all over the device.
        // From that alone reads of 64 MiB elsewhere were reckoned a sixth cheaper, and more streams admitted than fit.
        let nearer = ServiceTime { access: Duration::from_millis(10), ..DISK };
        let length = Bytes::from_mib(4);
        for completions in [50, 400, 4000] {
            let mut model = CostModel::new(DISK, CONFIDENCE_MEASURED, true);
            (0..completions).for_each(|_| observe(&mut model, nearer, length));
            let long = ratio(&model, nearer, Bytes::from_mib(64));
            assert!((0.98..1.03).contains(&long), "{completions}: {long}");
            let own = ratio(&model, nearer, length);
            assert!(completions < 400 || (0.98..1.03).contains(&own), "{completions}: {own}");
        }
    }

    #[test]
    fn of_long_commands_alone_the_rate_is_learned_and_of_several_lengths_both_parts() {
        let slower = ServiceTime { bytes_per_second: Bytes(145_000_000), ..DISK };
        for (lengths, others) in [([64, 64], 1.15), ([1, 64], 1.03)] {
            let mut model = CostModel::new(DISK, CONFIDENCE_MEASURED, true);
            for round in 0..1000 {
                observe(&mut model, slower, Bytes::from_mib(lengths[round % 2]));
            }
            let long = ratio(&model, slower, Bytes::from_mib(64));
            assert!((0.97..1.03).contains(&long), "{long}");
            let short = ratio(&model, slower, Bytes::from_mib(8));
            assert!((1.0 / others..others).contains(&short), "{short}");
        }
    }
}
