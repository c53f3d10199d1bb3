//! A client's clock: when it should have asked, and when it should have had an answer.
//!
//! **For:** telling a client that storage keeps waiting from one that asks late. **Excludes:** why storage was late.
//! **State:** a [`Playout`] for each client that plays at a known rate. **Invariants:** a function of the calls; constant memory.
//!
//! A player asks ahead of what it shows by as much as its own memory holds. Once that is full it asks by the clock: each byte as
//! long after the first as it plays. So its clock is the earliest line at which it ever asked. Time that goes by beyond that
//! line is storage's while something that it asked for is not answered, and the client's own while nothing is.

use units::{Duration, Instant};

/// A player may take so long to begin: what an editor takes for at once. Its clock runs from then on. An operator's target.
const BEGINS_WITHIN: Duration = Duration::from_secs(2);
/// A client that asks for nothing for longer has stopped, and may come back at any time. An operator's figure.
const STOPPED: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Playout {
    /// Where in the file it began to read on.
    origin: u64,
    began: Instant,
    /// It has begun, as far as it may take its time for that.
    has_begun: bool,
    /// When it had its first answer there.
    answered: Option<Instant>,
    /// Nanoseconds: when it would have asked for the first byte, had it always been as far ahead as it ever was.
    clock: i64,
    /// Requests that are not answered.
    waiting: u32,
    /// Until when time is accounted for.
    until: Instant,
    storage: Duration,
    client: Duration,
    /// What its own memory holds beyond what was reckoned, because it has stood still since.
    stood: Duration,
}

/// A client is behind its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overdue {
    pub(super) by: Duration,
    /// Of that: it waited for answers.
    pub(super) storage: Duration,
    /// It did not ask.
    pub(super) client: Duration,
    /// Nanoseconds that its own memory must still have held, had it begun to play with the first answer.
    pub(super) left: i64,
}

fn nanos(instant: Instant) -> i64 {
    i64::try_from(instant.as_nanos()).unwrap_or(i64::MAX)
}

fn signed(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl Playout {
    /// It reads on from `origin`, where it asks for something now.
    pub(super) fn new(now: Instant, origin: u64) -> Self {
        Self {
            origin,
            began: now,
            has_begun: false,
            answered: None,
            clock: nanos(now),
            waiting: 0,
            until: now,
            storage: Duration::ZERO,
            client: Duration::ZERO,
            stood: Duration::ZERO,
        }
    }

    /// It still reads on from there.
    pub(super) fn is_from(&self, origin: u64) -> bool {
        self.origin == origin
    }

    /// Something that it asked for is not answered.
    pub(super) fn waits(&self) -> bool {
        self.waiting > 0
    }

    /// The time since the last call is storage's or the client's, as far as it is beyond its clock for what comes `plays` after
    /// the first byte.
    fn account(&mut self, now: Instant, plays: Duration) {
        let due = self.clock.saturating_add(signed(plays));
        let from = nanos(self.until).max(due);
        let beyond = Duration::from_nanos(u64::try_from(nanos(now).saturating_sub(from)).unwrap_or(0));
        *(if self.waiting > 0 { &mut self.storage } else { &mut self.client }) += beyond;
        self.until = self.until.max(now);
    }

    fn restart(&mut self, line: i64) {
        self.clock = line;
        (self.storage, self.client) = (Duration::ZERO, Duration::ZERO);
    }

    /// It asks for what comes `plays` after the first byte.
    pub(super) fn asks(&mut self, now: Instant, plays: Duration) {
        let silence = now.saturating_since(self.until);
        if self.waiting == 0 && silence >= STOPPED {
            let line = nanos(now).saturating_sub(signed(plays));
            let stood = u64::try_from(line.saturating_sub(self.clock)).unwrap_or(0);
            self.stood += Duration::from_nanos(stood);
            self.until = now;
            self.restart(line);
        }
        self.account(now, plays);
        self.waiting += 1;
        let line = nanos(now).saturating_sub(signed(plays));
        if line <= self.clock || !self.has_begun {
            self.restart(line);
        }
        self.has_begun = !self.begins(now);
    }

    fn begins(&self, now: Instant) -> bool {
        now < self.began + BEGINS_WITHIN
    }

    /// It has what comes `plays` after the first byte. Says whether it is behind its clock by more than it was to be kept waiting.
    pub(super) fn has(&mut self, now: Instant, plays: Duration, window: Duration) -> Option<Overdue> {
        self.account(now, plays);
        self.waiting = self.waiting.saturating_sub(1);
        let first = *self.answered.get_or_insert(now);
        let line = nanos(now).saturating_sub(signed(plays));
        let by = Duration::from_nanos(u64::try_from(line.saturating_sub(self.clock)).unwrap_or(0));
        let by = by.min(self.storage + self.client);
        if by <= window || self.begins(now) {
            return None;
        }
        let shown_by = nanos(first).saturating_add(signed(plays)).saturating_add(signed(self.stood));
        let left = shown_by.saturating_sub(nanos(now));
        let overdue = Overdue { by, storage: self.storage, client: self.client, left };
        // What it did not ask for it did not need: its memory is as full as before. Else it has that much less.
        self.stood += if self.client >= self.storage { self.client } else { Duration::ZERO };
        if left < 0 {
            self.stood += Duration::from_nanos(left.unsigned_abs());
        }
        self.restart(line);
        Some(overdue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(100);
    const WINDOW: Duration = Duration::from_millis(500);

    /// A player with so many periods in its own memory that asks for a piece each period, and what it was told.
    struct Client {
        playout: Playout,
        piece: u32,
        now: Instant,
    }

    impl Client {
        /// It has filled its memory and plays.
        fn playing(holds: u32) -> Self {
            let now = Instant::from_nanos(1_000_000_000);
            let mut client = Self { playout: Playout::new(now, 0), piece: 0, now };
            (0..holds).for_each(|_| assert_eq!(client.takes(Duration::from_millis(5)), None));
            (0..50).for_each(|_| assert_eq!(client.plays(), None));
            client
        }

        fn takes(&mut self, answered_after: Duration) -> Option<Overdue> {
            let plays = PERIOD * self.piece;
            self.playout.asks(self.now, plays);
            self.now += answered_after;
            self.piece += 1;
            self.playout.has(self.now, plays, WINDOW)
        }

        /// Asks a period after it asked last, and has it at once.
        fn plays(&mut self) -> Option<Overdue> {
            self.now += PERIOD;
            self.takes(Duration::ZERO)
        }
    }

    #[test]
    fn a_client_that_asks_by_the_clock_and_is_answered_is_never_late() {
        let mut client = Client::playing(20);
        (0..1000).for_each(|_| assert_eq!(client.plays(), None));
    }

    /// The boundary pair.
    #[test]
    fn a_client_that_waits_longer_than_its_window_is_late_by_storage() {
        for (waits, is_late) in [(WINDOW, false), (WINDOW + Duration::from_nanos(1), true)] {
            let mut client = Client::playing(20);
            client.now += PERIOD;
            let overdue = client.takes(waits);
            assert_eq!(overdue.is_some(), is_late);
            if let Some(overdue) = overdue {
                assert_eq!((overdue.storage, overdue.client), (waits, Duration::ZERO));
                // It had twenty periods.
                assert!(overdue.left > 1_000_000_000, "{overdue:?}");
            }
        }
    }

    #[test]
    fn a_client_that_asks_late_is_late_by_itself() {
        let mut client = Client::playing(20);
        client.now += Duration::from_secs(3);
        let overdue = client.plays().unwrap();
        assert_eq!((overdue.storage, overdue.client), (Duration::ZERO, Duration::from_secs(3)));
        // What it had it has still.
        assert_eq!(client.plays(), None);
    }

    /// Each answer comes a little later than the client plays: no single one is late, and in the end all are.
    #[test]
    fn a_client_that_is_kept_waiting_a_little_each_time_falls_behind() {
        let mut client = Client::playing(20);
        let late: Vec<Overdue> = (0..12).filter_map(|_| client.takes(PERIOD + PERIOD / 2)).collect();
        assert_eq!(late.len(), 1, "{late:?}");
        assert!(late[0].storage >= WINDOW && late[0].client.is_zero(), "{late:?}");
    }

    /// The boundary pair.
    #[test]
    fn a_client_that_has_stopped_is_not_late() {
        for (silence, is_late) in [(STOPPED - Duration::from_nanos(1), true), (STOPPED, false)] {
            let mut client = Client::playing(20);
            client.now += silence;
            assert_eq!(client.takes(Duration::ZERO).is_some(), is_late);
            assert_eq!(client.plays(), None);
        }
    }

    #[test]
    fn a_client_that_begins_may_take_its_time() {
        let now = Instant::from_nanos(1_000_000_000);
        let mut client = Client { playout: Playout::new(now, 0), piece: 0, now };
        assert_eq!(client.takes(BEGINS_WITHIN - Duration::from_nanos(1)), None);
        assert!(client.plays().is_none());
    }
}
