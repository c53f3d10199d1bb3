//! Does anybody without a guarantee use the device?
//!
//! **For:** how much of the device's time metadata and best effort asked for lately, because streams may be promised nearly
//! all of it only while nobody does. What was promised holds beside others, too; but a player that begins is served sooner
//! than it is promised, out of what promises leave, and beside others a hundredth of the time is not enough for that.
//! **Excludes:** what the others get; what streams ask for, admitted or not; idle work. **State:** what was asked for, fading.
//! **Invariants:** it does not fade while any of it waits.

use units::{Duration, Instant, nanos};

/// Of what was asked for so long ago about a third still counts.
const LATELY: Duration = Duration::from_secs(4);
/// So many thousandths of the time go unnoticed: the filesystem's own books take a few.
const UNNOTICED_PERMILLE: u64 = 20;
/// No more is remembered, so that it fades in ten seconds.
const REMEMBERED_PERMILLE: u64 = 250;

const fn permille(of: u64) -> u64 {
    LATELY.as_nanos() as u64 / 1000 * of
}

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unpromised {
    /// Nanoseconds of the device, at...
    wanted: u64,
    at: Instant,
}

impl Unpromised {
    /// Somebody asks for `cost` nanoseconds; whether others, or his own, `wait` already.
    pub(crate) fn asked(&mut self, now: Instant, cost: u64, wait: bool) {
        let wanted = self.wanted(now, wait).saturating_add(cost);
        (self.wanted, self.at) = (wanted.min(permille(REMEMBERED_PERMILLE)), now);
    }

    /// Whether more is asked for than goes unnoticed; some may still `wait`.
    pub(crate) fn is_noticed(&self, now: Instant, wait: bool) -> bool {
        self.wanted(now, wait) > permille(UNNOTICED_PERMILLE)
    }

    fn wanted(&self, now: Instant, wait: bool) -> u64 {
        let since = if wait { 0 } else { nanos(now.saturating_since(self.at).min(LATELY)) };
        let faded = u128::from(self.wanted) * u128::from(since) / LATELY.as_nanos();
        self.wanted.saturating_sub(u64::try_from(faded).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    /// The boundary pair.
    #[test]
    fn more_than_two_hundredths_of_four_seconds_are_noticed() {
        for (millis, noticed) in [(80, false), (81, true)] {
            let mut unpromised = Unpromised::default();
            unpromised.asked(at(0), millis * 1_000_000, false);
            assert_eq!(unpromised.is_noticed(at(0), false), noticed, "{millis}");
        }
    }

    #[test]
    fn what_was_asked_for_fades_unless_it_still_waits() {
        let mut unpromised = Unpromised::default();
        unpromised.asked(at(0), 160_000_000, false);
        assert!(unpromised.is_noticed(at(1_999), false) && !unpromised.is_noticed(at(2_001), false));
        assert!(unpromised.is_noticed(at(60_000), true));
        // Somebody else asks meanwhile.
        unpromised.asked(at(60_000), 0, true);
        assert!(unpromised.is_noticed(at(60_001), false) && !unpromised.is_noticed(at(62_001), false));
    }

    /// A server that writes a record of 5 ms each second, or 15, and one that writes for 30.
    #[test]
    fn a_part_of_the_time_is_noticed_by_what_it_is() {
        for (millis, noticed) in [(5, false), (15, false), (30, true)] {
            let mut unpromised = Unpromised::default();
            (0..60).for_each(|second| unpromised.asked(at(second * 1000), millis * 1_000_000, false));
            assert_eq!(unpromised.is_noticed(at(59_999), false), noticed, "{millis}");
        }
    }

    #[test]
    fn a_flood_is_over_in_ten_seconds() {
        let mut unpromised = Unpromised::default();
        unpromised.asked(at(0), u64::MAX, false);
        let ask = |unpromised: &mut Unpromised, millis| unpromised.asked(at(millis), 0, false);
        (0..110).for_each(|step| ask(&mut unpromised, step * 100));
        assert!(!unpromised.is_noticed(at(11_000), false));
    }
}
