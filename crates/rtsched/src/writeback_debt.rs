//! What does a write-back cache still have to write?
//!
//! **For:** telling what commands took in truth from what the device took. A cache takes writes faster than the platters,
//! which have to follow, in idle time or in that of commands that come later: so a command's own time says little while
//! there is a debt. **Excludes:** which command is expected to take how long. **State:** the debt. **Invariants:** it is no
//! more than writes were expected to take lately; what it cannot explain is learned, from both sides alike.

use units::Instant;

/// The largest debt that is followed, in nanoseconds: what a gigabyte takes an array that has such a cache. An
/// estimator's window.
pub(crate) const DEBT_MAX: u32 = 4_000_000_000;

/// Time that the device needs for what it has accepted and not written. Known only where start values were measured under sustained load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WritebackDebt {
    /// Nanoseconds.
    nanos: f64,
    /// What writes were expected to take lately, nanoseconds.
    written: f64,
    /// Since when the device has been idle.
    idle_since: Instant,
}

impl WritebackDebt {
    /// A cache may keep what was written for so long, in nanoseconds. It is twice what the gigabyte of a large
    /// controller takes. An estimator's window.
    const LATELY: f64 = 20e9;

    /// There is no debt, and nothing was written lately that could be one.
    pub(crate) fn is_settled(&self) -> bool {
        self.nanos <= 0.0 && self.written < 1.0
    }

    /// A command came back at `now` for which the device worked for `nanos`. Before that it may have been idle.
    pub(crate) fn completed(&mut self, now: Instant, nanos: f64) {
        let idle = now.saturating_since(self.idle_since).as_nanos() as f64 - nanos;
        if idle > 0.0 {
            self.nanos = (self.nanos - idle).max(0.0);
            self.forget(idle);
        }
        self.idle_since = now;
    }

    fn forget(&mut self, nanos: f64) {
        self.written *= (1.0 - nanos / Self::LATELY).max(0.0);
        // Less than a command.
        if self.written < 1e6 {
            self.written = 0.0;
        }
    }

    fn wrote(&mut self, took: f64, writes: f64) {
        self.forget(took);
        self.written += writes;
    }

    /// In a span of `took` nanoseconds, of which so much was expected for `writes`, it is not known how much of them
    /// was written: the cache may hold all that caches hold.
    pub(crate) fn assume_all(&mut self, took: f64, writes: f64) {
        self.wrote(took, writes);
        self.nanos = self.nanos.max(self.written.min(f64::from(DEBT_MAX)));
    }

    /// What a span took in truth, which took the device `took` nanoseconds, and of which so much was `expected`, and so much
    /// of that for writes.
    pub(crate) fn settle(&mut self, took: f64, expected: f64, writes: f64) -> f64 {
        self.wrote(took, writes);
        let nanos = self.nanos + expected - took;
        self.nanos = nanos.clamp(0.0, self.written);
        expected + self.nanos - nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: f64 = 1e9;

    #[test]
    fn the_debt_is_no_more_than_was_written() {
        let mut debt = WritebackDebt::default();
        // Reads that are faster than expected make no debt.
        assert_eq!(debt.settle(SECOND / 2.0, SECOND, 0.0), SECOND / 2.0);
        assert!(debt.is_settled());
        // A second of writes that took nothing is a debt, and a second of reads that took two pays it.
        assert_eq!(debt.settle(0.0, SECOND, SECOND), SECOND);
        assert_eq!(debt.settle(2.0 * SECOND, SECOND, 0.0), SECOND);
        // What is slow now is slow.
        assert_eq!(debt.settle(2.0 * SECOND, SECOND, 0.0), 2.0 * SECOND);
    }

    #[test]
    fn what_was_written_long_ago_is_no_debt() {
        for (reads, is_left) in [(19.0, true), (20.0, false)] {
            let mut debt = WritebackDebt::default();
            debt.settle(0.0, 4.0 * SECOND, 4.0 * SECOND);
            debt.settle(reads * SECOND, reads * SECOND, 0.0);
            assert_eq!(debt.nanos > 0.0, is_left);
            assert_eq!(debt.is_settled(), !is_left);
        }
    }

    #[test]
    fn an_idle_device_pays_back() {
        let mut debt = WritebackDebt::default();
        debt.completed(Instant::from_nanos(1), 0.0);
        debt.settle(0.0, SECOND, SECOND);
        // Half a second idle, and half a second for a command.
        debt.completed(Instant::from_nanos(1_000_000_001), SECOND / 2.0);
        assert!((debt.nanos - SECOND / 2.0).abs() < 10.0, "{}", debt.nanos);
    }
}
