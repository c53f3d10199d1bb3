//! Does anything without a guarantee use the device?
//!
//! **For:** how much of the device's time metadata, best effort and searches asked for lately, because streams may be
//! promised nearly all of it only while there is none of these. What was promised holds beside others, too. But a
//! player that begins is served sooner than it is promised, out of what promises leave, and beside others a hundredth
//! of the time is not enough for that. Beside a search not a tenth is, because what a search waits for goes before it.
//! **Excludes:** what the others get; what streams ask for in order, admitted or not; idle work. **State:** what was
//! asked for, fading. **Invariants:** of metadata and best effort it does not fade while any of it waits.

use crate::request::StreamId;
use units::{Duration, Instant, nanos};

/// Of what was asked for so long ago about a third still counts. An estimator's window.
const LATELY: Duration = Duration::from_secs(4);
/// So many thousandths of the time go unnoticed: the filesystem's own books take a few. An estimator's window.
pub(crate) const UNNOTICED_PERMILLE: u64 = 20;
/// No more thousandths of that time are remembered, so that a flood fades in ten seconds. An estimator's window.
const REMEMBERED_PERMILLE: u64 = 250;

/// A player that begins looks at so many places, such as a header or an index, and does not search. An estimator's
/// window.
const GLANCES: usize = 2;
/// The last so many looks, of all clients together, are remembered. An estimator's window.
const LOOKS: usize = 32;

const fn permille(of: u64) -> u64 {
    LATELY.as_nanos() as u64 / 1000 * of
}

/// What uses the device beside streams, to speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackgroundLoad {
    /// Less than two hundredths of the time were asked for lately.
    Nothing,
    /// Something.
    Others,
    /// Among it a search.
    Searches,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unpromised {
    others: Asked,
    /// What is in memory and will be asked for later: it counts as soon as it is known, and not once more then.
    accepted: Asked,
    searches: Asked,
    /// The clients that looked at a picture, the latest first.
    looked: [Option<StreamId>; LOOKS],
}

impl Unpromised {
    /// Metadata or best effort asks for `cost` nanoseconds; whether other such requests `wait` already.
    pub(crate) fn asked(&mut self, now: Instant, cost: u64, wait: bool) {
        self.others.ask(now, cost, wait);
    }

    /// What will take `cost` nanoseconds of the device was accepted, and will be asked for later.
    pub(crate) fn accepted(&mut self, now: Instant, cost: u64) {
        self.accepted.ask(now, cost, false);
    }

    /// A stream waits for a picture. It searches when that is not its first or second one.
    pub(crate) fn looked(&mut self, now: Instant, stream: StreamId, cost: u64) {
        if self.looks_of(stream) >= GLANCES {
            self.searches.ask(now, cost, false);
        }
        self.looked.rotate_right(1);
        self.looked[0] = Some(stream);
    }

    fn looks_of(&self, stream: StreamId) -> usize {
        self.looked.iter().filter(|one| **one == Some(stream)).count()
    }

    /// What is noticed; some of metadata and best effort may still `wait`.
    pub(crate) fn background_load(&self, now: Instant, wait: bool) -> BackgroundLoad {
        let others = self.others.wanted(now, wait).max(self.accepted.wanted(now, false));
        if self.searches.wanted(now, false) > permille(UNNOTICED_PERMILLE) {
            BackgroundLoad::Searches
        } else if others > permille(UNNOTICED_PERMILLE) {
            BackgroundLoad::Others
        } else {
            BackgroundLoad::Nothing
        }
    }
}

/// What was asked for lately.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    /// Nanoseconds of the device, at...
    wanted: u64,
    at: Instant,
}

impl Asked {
    fn ask(&mut self, now: Instant, cost: u64, wait: bool) {
        let wanted = self.wanted(now, wait).saturating_add(cost);
        (self.wanted, self.at) = (wanted.min(permille(REMEMBERED_PERMILLE)), now);
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

    fn is_noticed(unpromised: &Unpromised, now: Instant, wait: bool) -> bool {
        unpromised.background_load(now, wait) == BackgroundLoad::Others
    }

    /// The boundary pair.
    #[test]
    fn more_than_two_hundredths_of_four_seconds_are_noticed() {
        for (millis, noticed) in [(80, false), (81, true)] {
            let mut unpromised = Unpromised::default();
            unpromised.asked(at(0), millis * 1_000_000, false);
            assert_eq!(is_noticed(&unpromised, at(0), false), noticed, "{millis}");
        }
    }

    #[test]
    fn what_was_asked_for_fades_unless_it_still_waits() {
        let mut unpromised = Unpromised::default();
        unpromised.asked(at(0), 160_000_000, false);
        assert!(is_noticed(&unpromised, at(1_999), false) && !is_noticed(&unpromised, at(2_001), false));
        assert!(is_noticed(&unpromised, at(60_000), true));
        // Another client asks meanwhile.
        unpromised.asked(at(60_000), 0, true);
        assert!(is_noticed(&unpromised, at(60_001), false) && !is_noticed(&unpromised, at(62_001), false));
    }

    /// A server that writes a record of 5 ms each second, or 15, and one that writes for 30.
    #[test]
    fn a_part_of_the_time_is_noticed_by_what_it_is() {
        for (millis, noticed) in [(5, false), (15, false), (30, true)] {
            let mut unpromised = Unpromised::default();
            (0..60).for_each(|second| unpromised.asked(at(second * 1000), millis * 1_000_000, false));
            assert_eq!(is_noticed(&unpromised, at(59_999), false), noticed, "{millis}");
        }
    }

    /// An office saved documents, which stayed in memory for five seconds; until they were written it was not noticed,
    /// and a thirteenth player was admitted beside it.
    #[test]
    fn what_is_in_memory_is_noticed_before_it_is_asked_for_and_once() {
        for (millis, noticed) in [(80, false), (81, true)] {
            let mut unpromised = Unpromised::default();
            unpromised.accepted(at(0), millis * 1_000_000);
            assert_eq!(is_noticed(&unpromised, at(0), false), noticed, "{millis}");
        }
        // A record of 15 ms each second goes unnoticed, though it is accepted and then asked for.
        let mut unpromised = Unpromised::default();
        for second in 0..60 {
            unpromised.accepted(at(second * 1000), 15_000_000);
            unpromised.asked(at(second * 1000 + 500), 15_000_000, false);
            assert!(!is_noticed(&unpromised, at(second * 1000 + 500), false), "{second}");
        }
    }

    /// The boundary pair: from the third place on that a client looks at, what it looks at counts; a fiftieth of four seconds goes unnoticed.
    #[test]
    fn a_client_searches_that_looks_at_more_than_a_header_and_an_index() {
        for (places, searches) in [(6, false), (7, true)] {
            let mut unpromised = Unpromised::default();
            (0..places).for_each(|_| unpromised.looked(at(0), StreamId(1), 20_000_000));
            let load = unpromised.background_load(at(0), false);
            assert_eq!(load == BackgroundLoad::Searches, searches, "{places}");
        }
    }

    /// The boundary pair. When a picture counted among those looked at before it, sixteen clients that search in turn
    /// were not seen to.
    #[test]
    fn as_many_as_have_all_looked_at_two_places_are_seen_to_search_in_turn() {
        for (searchers, searches) in [(16_u64, true), (17, false)] {
            let mut unpromised = Unpromised::default();
            let mut look = |look: u64| unpromised.looked(at(0), StreamId(look % searchers), 20_000_000);
            (0..4 * searchers).for_each(&mut look);
            assert_eq!(
                unpromised.background_load(at(0), false) == BackgroundLoad::Searches,
                searches,
                "{searchers}"
            );
        }
    }

    #[test]
    fn a_flood_is_over_in_ten_seconds() {
        let mut unpromised = Unpromised::default();
        unpromised.asked(at(0), u64::MAX, false);
        let ask = |unpromised: &mut Unpromised, millis| unpromised.asked(at(millis), 0, false);
        (0..110).for_each(|step| ask(&mut unpromised, step * 100));
        assert!(!is_noticed(&unpromised, at(11_000), false));
    }
}
