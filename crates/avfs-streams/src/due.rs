//! When a client shows what it asks for: its playout clock.
//!
//! **For:** the due time of what a client plays, be it bytes of a file or frames. **Excludes:** the window of a request that nothing
//! plays yet, which is the policy's, and when the scheduler can serve it. **State:** a [`PlayoutClock`] for each place at which a client
//! reads on. **Invariants:** due times of players are made here.
//!
//! A jitter buffer reckons so (RFC 3550, section 6.4.1): what is a time `t` behind the begin is shown `t` after it.

use rtsched::PLAYER_HOLDS;
use units::{Duration, Instant};

/// What a client comes to so much sooner than was reckoned when it was asked for is expedited. Less is no news. An
/// estimator's window.
pub const HASTE: Duration = Duration::from_millis(100);

/// A player that begins is to have its picture in two thirds of the time that the longest start may take. The rest is for what others
/// want sooner, and for what is at the device (`doc/decisions/playout-clock.md`).
pub fn start_of(longest_start: Duration) -> Duration {
    longest_start * 2 / 3
}

/// What lies ahead of a client that plays is wanted so long before it shows it, and what one begins with [`PLAYER_HOLDS`] before. With one
/// second for both, 13 players of the modelled array were late in 82 of 100 rehearsals, and in one of 100 with two
/// (`doc/experiments/playout-clock.md`). Fitted.
const PLAYING_HOLDS: Duration = Duration::from_secs(2);

/// When a client shows what. A client that is elsewhere has another one.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlayoutClock {
    /// It shows what lies at `from`...
    shows: Instant,
    /// ...a byte of a file, or the number of a frame.
    from: u64,
}

impl PlayoutClock {
    /// A client asks for what lies at `from`, and may have to wait for `start`.
    pub fn begins(now: Instant, start: Duration, from: u64) -> Self {
        Self { shows: now + start, from }
    }

    /// It has what it waited for, and shows it: it comes to everything so much sooner as it had to wait less than it might have.
    pub fn plays(&mut self, now: Instant) {
        self.shows = self.shows.min(now);
    }

    /// Where it began.
    pub fn from(&self) -> u64 {
        self.from
    }

    /// By when it needs what it shows `after` what it began with: what it holds itself it asks for sooner. Whether it still `begins`, and
    /// fills that.
    pub fn due(&self, after: Duration, begins: bool) -> Instant {
        (self.shows + after).saturating_before(if begins { PLAYER_HOLDS } else { PLAYING_HOLDS })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The boundary pair: a client that had to wait less than it might have comes to everything so much sooner, and no other does.
    #[test]
    fn what_a_client_shows_is_due_as_long_before_as_it_holds_and_never_later_than_it_was() {
        let (now, start) = (Instant::ZERO + Duration::from_secs(10), Duration::from_millis(1250));
        let (shown, moment) = (Duration::from_secs(3), Duration::from_nanos(1));
        for (begins, holds) in [(true, PLAYER_HOLDS), (false, PLAYING_HOLDS)] {
            let mut clock = PlayoutClock::begins(now, start, 7);
            assert_eq!((clock.from(), clock.due(shown, begins)), (7, now + (start + shown - holds)));
            clock.plays(now + start + moment);
            assert_eq!(
                clock.due(shown, begins),
                now + (start + shown - holds),
                "no time for having waited longer"
            );
            clock.plays(now + (start - moment));
            assert_eq!(clock.due(shown, begins), now + (start - moment + shown - holds));
        }
    }
}
