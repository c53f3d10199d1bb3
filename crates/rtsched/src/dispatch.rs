//! **The policy:** which request goes to the device next.
//!
//! **For:** the one function that chooses, [`choose`], and the one test it rests on, [`View::slack_after`].
//! **Excludes:** changes: it looks and says. **State:** none.
//!
//! The rule is feasible-set scheduling (deadline-aware: any request may be picked that keeps every guarantee under the
//! worst case). It falls back to non-preemptive EDF, and is C-SCAN where deadlines leave room. SCAN-EDF (Reddy and
//! Wyllie 1993) gets there by rounding deadlines; testing the set needs no bucket size.
//!
//! Best effort goes *before* queued real time where that is safe, as in Clockwise (Bosch and Mullender 1999): people
//! wait for it, and a frame that is early helps no player. Before best effort goes what is wanted earlier than could be
//! promised: a player that begins or jumps waits as well. What is wanted only after best effort may have waited does
//! not: its client has what it needs for now. A best-effort request of a client that may play has its place among what
//! is wanted.

use crate::floors::{Turn, Turns};
use crate::queue::{Queue, Slot, Waiting};
use crate::request::{Class, Direction, Reason};
use crate::slack::{Expected, Key};
use units::{DeviceOffset, Duration, Instant};

/// What a choice is made from, beside the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) now: Instant,
    /// What is wanted later than this has time.
    pub(crate) soon: Instant,
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
    /// What the floors give.
    pub(crate) turns: Turns,
}

/// The request to go next. `None`: nothing waits.
pub(crate) fn choose(queue: &Queue, view: &View) -> Option<(Slot, Reason)> {
    let waits = |class| queue.count(class) > 0;
    // A request that leaves all promises whole mostly shows it at once, without a look at which ones are in front of it.
    let at_least = view.slack_at_least(queue);
    let bears = |slot| signed(queue.get(slot).whole) <= at_least || view.bears(queue, slot);

    // 1. Inside the slack: a class whose floor has a claim, what a client waits for, what has no guarantee.
    let claim = view.turns.iter().filter(|turn| turn.claim <= view.start).min_by_key(|turn| turn.claim);
    if let Some(turn) = claim.filter(|turn| bears(turn.slot)) {
        return Some((turn.slot, Reason::Floor));
    }
    let in_slack = if waits(Class::RealTime) { Reason::Slack } else { Reason::OnlyWork };
    for class in [Class::Metadata, Class::BestEffort] {
        // Before a copy goes on, a client has what it waits for. Of the cushion that has to leave an eighth, so that advances, which
        // leave a quarter, do not keep it from being served.
        if let Some(slot) = first_wanted(queue, view.soon).filter(|_| class == Class::BestEffort)
            && (View { cushion: view.cushion / 8, ..*view }).bears(queue, slot)
        {
            return Some((slot, Reason::Slack));
        }
        if view.is_tight && waits(Class::RealTime) && class == Class::BestEffort {
            continue;
        }
        if let Some(slot) = view.next_of(queue, class)
            && bears(slot)
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
        && bears(slot)
    {
        return Some((slot, Reason::Sweep));
    }
    // 4. No choice: the earliest deadline, where a floor whose turn comes has one like any request.
    //    A deadline that is lost is due as soon as it can be.
    let earliest = earliest.map(|slot| {
        let Waiting { deadline, cost, .. } = queue.get(slot);
        ((*deadline).max(view.start + Duration::from_nanos(*cost)), slot, Reason::EarliestDeadline)
    });
    let turns = view.turns.iter().map(|turn| (turn.due, turn.slot, Reason::Floor));
    earliest.into_iter().chain(turns).min_by_key(|(due, ..)| *due).map(|(_, slot, reason)| (slot, reason))
}

/// The real-time request that is wanted first, if any is wanted soon and before it is due; those that are due when they are
/// wanted have their turn among them.
fn first_wanted(queue: &Queue, soon: Instant) -> Option<Slot> {
    let wanted = queue.first_wish()?;
    let wish = queue.get(wanted).wish().filter(|wish| *wish <= soon)?;
    queue.first(Class::RealTime).filter(|first| queue.get(*first).deadline <= wish).or(Some(wanted))
}

impl View {
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

    /// Whether [`slack_after`](Self::slack_after) is not negative, by looking at no more than shows it.
    fn bears(&self, queue: &Queue, slot: Slot) -> bool {
        let candidate = queue.get(slot);
        let whole = signed(candidate.whole);
        let (class, end) = (candidate.request.class, candidate.guaranteed_key());
        self.slack_before(queue, Some(class), end, whole) >= whole
    }

    /// Nanoseconds for which something of `class` may go before `waiting`, from `start` on.
    pub(crate) fn slack(&self, queue: &Queue, class: Class, waiting: &Waiting) -> i64 {
        self.slack_before(queue, Some(class), waiting.guaranteed_key(), i64::MIN)
    }

    /// Nanoseconds for which something may at least go before everything that is promised: never more than
    /// [`slack`](Self::slack), and at hand, because no part of the queue is looked for.
    pub(crate) fn slack_at_least(&self, queue: &Queue) -> i64 {
        let kept = self.kept(queue, None);
        let deadlines = queue.slack_at_least(self.start, self.expected.as_ref());
        self.within_turns(None, None, deadlines.saturating_sub(kept))
    }

    /// Until some promise before `end` breaks, but those to the class itself. Of less than `enough` it is only said that
    /// it is less.
    fn slack_before(&self, queue: &Queue, class: Option<Class>, end: Option<Key>, enough: i64) -> i64 {
        let kept = self.kept(queue, class);
        let deadlines = queue.slack_if(end, self.start, self.expected.as_ref(), enough.saturating_add(kept));
        self.within_turns(class, end, deadlines.saturating_sub(kept))
    }

    /// The turns of all classes but one.
    fn turns_but(&self, class: Option<Class>) -> impl Iterator<Item = &Turn> {
        self.turns.iter().filter(move |turn| Some(turn.class) != class)
    }

    /// Nanoseconds that are kept before any deadline: the cushion, and what classes but this one may demand.
    fn kept(&self, queue: &Queue, class: Option<Class>) -> i64 {
        let last = queue.last_guaranteed();
        let accrued = |last| self.turns_but(class).map(|turn| turn.accrued(self.start, last)).sum();
        signed(last.map_or(0, accrued).saturating_add(self.cushion))
    }

    /// What is left of so much slack before `end` by the turns of classes but this one.
    fn within_turns(&self, class: Option<Class>, end: Option<Key>, slack: i64) -> i64 {
        // A class whose turn is later than this deadline waits for it in any order.
        let earlier = |turn: &&Turn| end.is_none_or(|(deadline, _)| deadline > turn.due);
        let turns = self.turns_but(class).filter(earlier);
        turns.map(|turn| between(self.start, turn.due) - signed(turn.cost)).fold(slack, i64::min)
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
