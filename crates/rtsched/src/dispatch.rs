//! **The policy:** which request goes to the device next.
//!
//! **For:** the one function that chooses, [`choose`], and the one test it rests on, [`View::slack_after`].
//! **Excludes:** changes: it looks and says. **State:** none.
//!
//! The rule is feasible-set scheduling (deadline-aware: any request may be picked that keeps every guarantee
//! under the worst case), between non-preemptive EDF, which it falls back to, and C-SCAN, which it is where
//! deadlines leave room. SCAN-EDF (Reddy and Wyllie 1993) gets there by rounding deadlines; testing the set
//! needs no bucket size. Best effort goes *before* queued real time where that is safe, as in Clockwise (Bosch
//! and Mullender 1999): it has people waiting, and a frame that is early helps nobody.

use crate::budget::Floors;
use crate::queue::{Queue, Slot, Waiting};
use crate::request::{Class, Direction, Reason};
use crate::slack::Expected;
use units::{DeviceOffset, Duration, Instant};

/// What a choice is made from, beside the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) floors: &'a Floors,
    pub(crate) now: Instant,
    /// When the device will be through with what it has.
    pub(crate) start: Instant,
    /// Where the last command ended.
    pub(crate) arm: DeviceOffset,
    /// What admitted streams will ask for.
    pub(crate) expected: Option<Expected>,
    /// Streams are to read further ahead than before, for which they need the slack.
    pub(crate) is_tight: bool,
    /// Nanoseconds of slack that nothing is given which is not due.
    pub(crate) cushion: u64,
}

/// The request to go next. `None`: nothing waits.
pub(crate) fn choose(queue: &Queue, view: &View<'_>) -> Option<(Slot, Reason)> {
    let waits = |class| queue.count(class) > 0;

    // 1. Inside the slack: whose floor has a claim, what somebody waits for, what has no guarantee.
    let claims = Floors::CLASSES.into_iter().filter_map(|class| view.floors.claim(class, queue));
    let claim = claims.filter(|(since, _)| *since <= view.start).min_by_key(|(since, _)| *since);
    if let Some((_, slot)) = claim
        && view.slack_after(queue, slot) >= 0
    {
        return Some((slot, Reason::Floor));
    }
    let in_slack = if waits(Class::RealTime) { Reason::Slack } else { Reason::OnlyWork };
    for class in [Class::Metadata, Class::BestEffort] {
        if view.is_tight && waits(Class::RealTime) && class == Class::BestEffort {
            continue;
        }
        if let Some(slot) = view.next_of(queue, class)
            && view.slack_after(queue, slot) >= 0
        {
            return Some((slot, in_slack));
        }
    }
    // 2. Nothing but idle work waits.
    if ![Class::RealTime, Class::Metadata, Class::BestEffort].into_iter().any(waits) {
        return view.next_of(queue, Class::Idle).map(|slot| (slot, Reason::OnlyWork));
    }
    // 3. Real time, in the order of the sweep while no deadline minds.
    let earliest = queue.first(Class::RealTime);
    if let Some(slot) = queue.next_on_sweep(Class::RealTime, view.arm)
        && earliest != Some(slot)
        && view.slack_after(queue, slot) >= 0
    {
        return Some((slot, Reason::Sweep));
    }
    // 4. No choice: the earliest deadline, where a floor whose turn comes has one like anybody.
    //    A deadline that is lost is due as soon as it can be.
    let earliest = earliest.map(|slot| {
        let Waiting { deadline, cost, .. } = queue.get(slot);
        ((*deadline).max(view.start + Duration::from_nanos(*cost)), slot, Reason::EarliestDeadline)
    });
    let turns = Floors::CLASSES.into_iter().filter_map(|class| view.floors.turn(class, queue));
    let turns = turns.map(|(due, slot)| (due, slot, Reason::Floor));
    earliest.into_iter().chain(turns).min_by_key(|(due, ..)| *due).map(|(_, slot, reason)| (slot, reason))
}

impl View<'_> {
    /// The request of a class without guarantees that would go next: the next on the sweep, unless the first by
    /// deadline is overdue or has no place. Metadata goes by deadline.
    pub(crate) fn next_of(&self, queue: &Queue, class: Class) -> Option<Slot> {
        let first = queue.first(class)?;
        let Waiting { request, deadline, .. } = queue.get(first);
        let by_deadline =
            class == Class::Metadata || *deadline <= self.now || request.direction == Direction::Flush;
        if by_deadline { Some(first) } else { queue.next_on_sweep(class, self.arm) }
    }

    /// The feasible-set test: the nanoseconds left if this request goes first, until some promise breaks;
    /// negative when one does. Promises are the real-time deadlines before its own (those after it wait for it
    /// in any order) and the other classes' turns.
    pub(crate) fn slack_after(&self, queue: &Queue, slot: Slot) -> i64 {
        let candidate = queue.get(slot);
        self.slack(queue, candidate.request.class, candidate) - signed(candidate.whole)
    }

    /// Nanoseconds for which something may go before `waiting` in a command of `class`, from `start` on.
    pub(crate) fn slack(&self, queue: &Queue, class: Class, waiting: &Waiting) -> i64 {
        let others = || Floors::CLASSES.into_iter().filter(|other| *other != class);
        let accrued: u64 = queue.last_guaranteed().map_or(0, |last| {
            others().map(|other| self.floors.accrued(other, queue, self.start, last)).sum()
        });
        let deadlines = queue.slack(waiting.guaranteed_key(), self.start, self.expected.as_ref());
        let turns = others().filter_map(|other| {
            let (due, slot) = self.floors.turn(other, queue)?;
            // A class whose turn is later than this deadline waits for it in any order.
            let later = waiting.guaranteed_key().is_some_and(|(deadline, _)| deadline <= due);
            (!later).then(|| between(self.start, due) - signed(queue.get(slot).cost))
        });
        turns.fold(deadlines.saturating_sub(signed(accrued.saturating_add(self.cushion))), i64::min)
    }
}

/// Nanoseconds from `start` to `end`, negative when it is over.
pub(crate) fn between(start: Instant, end: Instant) -> i64 {
    let nanos = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    if end >= start { nanos(end.saturating_since(start)) } else { -nanos(start.saturating_since(end)) }
}

pub(crate) fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}
