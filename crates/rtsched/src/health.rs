//! How are the streams in fact?
//!
//! **For:** how late streams were lately: the test of the model by what it is for. What their requests took is no such
//! test: prices follow it, and counted again it refuses streams for what is over. **Excludes:** what follows from it.
//! **State:** counts of the last seconds. **Invariants:** one window with misses, whatever they are, is no congestion;
//! what is congested stays so until few enough of the windows that are kept have misses, or few enough requests in all
//! of them.

use crate::stream::Why;
use units::{Duration, Instant};

/// Length of a window. An estimator's window.
const WINDOW: Duration = Duration::from_secs(1);
/// Windows kept. An estimator's window.
const WINDOWS: usize = 8;
/// Misses in so many of the last windows are no accident. One trace is the reason for three. An estimator's window.
const PERSISTENT: usize = 3;

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    completed: u32,
    missed: u32,
    tardiness: Duration,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    windows: [Window; WINDOWS],
    current: Window,
    began: Option<Instant>,
    /// What streams are promised of the device's time, in thousandths.
    promised: u32,
}

impl Health {
    /// A stream's request completed this late.
    pub(crate) fn completed(&mut self, tardiness: Duration) {
        self.current.completed += 1;
        self.current.missed += u32::from(tardiness > Duration::ZERO);
        self.current.tardiness = self.current.tardiness.max(tardiness);
    }

    /// When a window ends.
    pub(crate) fn next_review(&self) -> Option<Instant> {
        self.began.map(|began| began + WINDOW)
    }

    /// Ends a window when it is time; true then. Streams are `promised` so many thousandths of the device's time.
    pub(crate) fn review(&mut self, now: Instant, promised: u32) -> bool {
        let began = *self.began.get_or_insert(now);
        if now.saturating_since(began) < WINDOW {
            return false;
        }
        self.windows.rotate_right(1);
        self.windows[0] = core::mem::take(&mut self.current);
        (self.began, self.promised) = (Some(now), promised);
        true
    }

    /// How late the latest was, when more than one in a hundred was late, and in several windows: else the device held its breath,
    /// and is as fast as before.
    fn lateness(&self) -> Duration {
        let sum = |of: fn(&Window) -> u32| self.windows.iter().map(of).sum::<u32>();
        let with_misses = self.windows.iter().filter(|window| window.missed > 0).count();
        let is_rare = with_misses < PERSISTENT
            || sum(|window| window.missed).saturating_mul(100) <= sum(|window| window.completed);
        let latest = self.windows.iter().map(|window| window.tardiness).max();
        latest.filter(|_| !is_rare).unwrap_or(Duration::ZERO)
    }

    /// Why no stream should be admitted now, if so.
    pub(crate) fn congestion(&self) -> Option<Why> {
        let lateness = self.lateness();
        (lateness > Duration::ZERO).then_some(Why::Congested { promised_permille: self.promised, lateness })
    }

    /// Streams have been late for several windows: the model is wrong, and a stream has to give way. Counts anew then.
    pub(crate) fn is_late_for_long(&mut self) -> Option<Why> {
        let late = self.windows[..PERSISTENT].iter().all(|window| window.missed * 10 > window.completed);
        let why = self.congestion().filter(|_| late)?;
        self.windows = Default::default();
        Some(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Instant {
        Instant::ZERO + WINDOW * u32::try_from(second).unwrap()
    }

    /// So many requests complete in each of some seconds, of which so many are late.
    fn health(seconds: &[(u32, u32)]) -> Health {
        let mut health = Health::default();
        health.review(at(0), 1000);
        for (second, (completed, missed)) in (1..).zip(seconds) {
            (0..*completed)
                .for_each(|number| health.completed(Duration::from_millis(u64::from(number < *missed))));
            assert!(health.review(at(second), 1000));
        }
        health
    }

    /// The boundary pair.
    #[test]
    fn one_miss_in_a_hundred_is_none_and_more_are_remembered_for_all_windows() {
        for (completed, congested) in [(100, false), (99, true)] {
            let mut health = health(&[(completed, 1), (100, 1), (100, 1)]);
            for second in 3..=WINDOWS as u64 {
                assert_eq!(health.congestion().is_some(), congested, "{second}");
                health.review(at(second + 1), 1000);
            }
            assert_eq!(health.congestion(), None);
        }
    }

    /// The boundary pair. A device that took 0.3 s for 8 MiB while few played was taken for one that is slower than
    /// reckoned: one request of four had been late. Each stream that came in the next eight seconds was turned away,
    /// with six tenths of the device free.
    #[test]
    fn misses_of_two_windows_are_an_accident_and_of_three_none() {
        for (last, congested) in [(0, false), (1, true)] {
            let health = health(&[(4, 4), (4, 4), (4, 0), (4, last)]);
            assert_eq!(health.congestion().is_some(), congested);
        }
    }

    #[test]
    fn only_lasting_misses_take_a_stream_away() {
        let mut health = Health::default();
        health.review(at(0), 1000);
        for second in 1..=PERSISTENT as u64 {
            assert_eq!(health.is_late_for_long(), None);
            (0..8).for_each(|_| health.completed(Duration::from_millis(1)));
            health.review(at(second), 1000);
        }
        assert!(matches!(health.is_late_for_long(), Some(Why::Congested { .. })));
        assert_eq!(health.is_late_for_long(), None);
    }
}
