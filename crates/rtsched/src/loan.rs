//! What has a write-back cache lent?
//!
//! **For:** telling what commands took in truth from what the device took. A cache takes writes faster than the platters,
//! which have to follow, in idle time or in that of commands that come later: so a command's own time says little while
//! something is owed. **Excludes:** which command is expected to take how long. **State:** what is owed. **Invariants:** no
//! more is owed than writes were expected to take lately; what cannot be owed is learned, from both sides alike.

use units::Instant;

/// No cache owes more, nanoseconds: it is what writing a gigabyte takes arrays that have one.
pub(crate) const OWED_MAX: u32 = 4_000_000_000;

/// What the device owes. Known only where start values were measured under sustained load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loan {
    /// Nanoseconds.
    owed: f64,
    /// What writes were expected to take lately, nanoseconds.
    written: f64,
    /// Since when the device has been idle.
    idle_since: Instant,
}

impl Loan {
    /// For so long, in nanoseconds, a cache may keep what was written: twice the gigabyte that large controllers have.
    const LATELY: f64 = 20e9;

    /// Nothing is owed, and nothing was written lately of which it could be.
    pub(crate) fn is_settled(&self) -> bool {
        self.owed <= 0.0 && self.written < 1.0
    }

    /// A command came back at `now` for which the device worked for `nanos`. Before that it may have been idle.
    pub(crate) fn completed(&mut self, now: Instant, nanos: f64) {
        let idle = now.saturating_since(self.idle_since).as_nanos() as f64 - nanos;
        if idle > 0.0 {
            self.owed = (self.owed - idle).max(0.0);
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
    pub(crate) fn borrow_all(&mut self, took: f64, writes: f64) {
        self.wrote(took, writes);
        self.owed = self.owed.max(self.written.min(f64::from(OWED_MAX)));
    }

    /// What a span took in truth, which took the device `took` nanoseconds, and of which so much was `expected`, and so much
    /// of that for writes.
    pub(crate) fn settle(&mut self, took: f64, expected: f64, writes: f64) -> f64 {
        self.wrote(took, writes);
        let owed = self.owed + expected - took;
        self.owed = owed.clamp(0.0, self.written);
        expected + self.owed - owed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: f64 = 1e9;

    #[test]
    fn no_more_is_owed_than_was_written() {
        let mut loan = Loan::default();
        // Reads that are faster than expected have not borrowed it from anybody.
        assert_eq!(loan.settle(SECOND / 2.0, SECOND, 0.0), SECOND / 2.0);
        assert!(loan.is_settled());
        // A second of writes that took nothing is owed, and a second of reads that took two pays it back.
        assert_eq!(loan.settle(0.0, SECOND, SECOND), SECOND);
        assert_eq!(loan.settle(2.0 * SECOND, SECOND, 0.0), SECOND);
        // What is slow now is slow.
        assert_eq!(loan.settle(2.0 * SECOND, SECOND, 0.0), 2.0 * SECOND);
    }

    #[test]
    fn what_was_written_long_ago_is_owed_no_more() {
        for (reads, is_owed) in [(19.0, true), (20.0, false)] {
            let mut loan = Loan::default();
            loan.settle(0.0, 4.0 * SECOND, 4.0 * SECOND);
            loan.settle(reads * SECOND, reads * SECOND, 0.0);
            assert_eq!(loan.owed > 0.0, is_owed);
            assert_eq!(loan.is_settled(), !is_owed);
        }
    }

    #[test]
    fn an_idle_device_pays_back() {
        let mut loan = Loan::default();
        loan.completed(Instant::from_nanos(1), 0.0);
        loan.settle(0.0, SECOND, SECOND);
        // Half a second idle, and half a second for a command.
        loan.completed(Instant::from_nanos(1_000_000_001), SECOND / 2.0);
        assert!((loan.owed - SECOND / 2.0).abs() < 10.0, "{}", loan.owed);
    }
}
