//! What of a stream's requests draws on its reservation, and what is beyond it.
//!
//! **For:** a request's way from its stream to the queue: reserved, over its limit, or moved from the one to the other; and what
//! it is reckoned to cost. **Excludes:** the books, which are [`streams`](crate::streams)', and reservations, which are
//! [`reserve`](crate::reserve)'s. **State:** none of its own. **Invariants:** what is reserved is within the stream's rate.

use crate::queue::{Budget, StreamSlot, Waiting};
use crate::request::{Class, Request};
use crate::state::{Scheduler, price};
use crate::stream::StreamState;
use crate::streams::Run as StreamRun;
use units::{Bytes, Duration, Instant};

/// An interactive read is no longer than this. It is FUSE's longest request, 256 pages, unless the host allows more. A
/// protocol fact.
pub(crate) const INTERACTIVE_READ: Bytes = Bytes::from_mib(1);
/// An interactive read is wanted as soon as this. An operator's target.
const INTERACTIVE_WITHIN: Duration = Duration::from_millis(500);
/// Interactive reads have at most one of so many parts of the device's time before others, and while a client searches
/// streams are not promised that. An operator's target.
pub(crate) const INTERACTIVE_PART: u32 = 6;
/// Interactive reads have at least one of so many parts, also where streams leave nothing: a floor. Without it searches beside
/// players that fill the device waited for nine seconds instead of three (`doc/experiments/playout-clock.md`). An operator's
/// target.
const INTERACTIVE_LEAST: u32 = 50;
/// Interactive reads have their part of so long a time at once. A player that begins looks at a picture first, and one that
/// lies in two places is two requests. An operator's target.
const INTERACTIVE_BURST: Duration = Duration::from_millis(300);

impl Scheduler {
    /// Puts a request of an active stream where its budget says.
    pub(crate) fn police(&mut self, now: Instant, owner: StreamSlot, waiting: Waiting) {
        self.replenish(now, owner);
        let has_excess = self.queue.count_of(owner, Budget::OverLimit) > 0;
        if has_excess || !self.within_rate(now, owner) {
            self.journal.counters.excess += 1;
            self.insert_demoted(now, waiting);
            self.replenish(now, owner);
        } else {
            self.charge(now, owner, waiting);
        }
    }

    /// The request as best effort.
    pub(crate) fn demoted(&self, mut waiting: Waiting) -> Waiting {
        waiting.request.class = Class::BestEffort;
        waiting.continues = false;
        let is_held = waiting.owner.is_some_and(|owner| self.streams.held_of(owner).is_some());
        waiting.budget = if is_held { Budget::OverLimit } else { Budget::Unreserved };
        self.price(&mut waiting);
        waiting
    }

    /// Queues the request as best effort, with its turn among that.
    pub(crate) fn insert_demoted(&mut self, now: Instant, waiting: Waiting) {
        let mut demoted = self.demoted(waiting);
        self.take_turn(now, &mut demoted);
        self.insert(now, demoted);
    }

    /// A request without a promise is a picture that a client waits for, if it is so short: it has its place among what
    /// is wanted.
    pub(crate) fn interactive(&mut self, now: Instant, waiting: &mut Waiting, wanted: Instant) {
        if waiting.budget != Budget::Unreserved || waiting.request.length > INTERACTIVE_READ {
            return;
        }
        waiting.is_interactive = true;
        waiting.deadline = wanted.max(self.turn_of_interactive(now, waiting, wanted));
    }

    /// A client searches. What it waits for goes before all that is wanted by players that begin: they have more time,
    /// and their commands are long. Many pictures are no search: so that they have no more than their part, their turn
    /// is later.
    fn turn_of_interactive(&mut self, now: Instant, waiting: &mut Waiting, wanted: Instant) -> Instant {
        if let Some(stream) = waiting.request.stream {
            self.unpromised.looked(now, stream, waiting.cost);
        }
        let part = self.interactive_part();
        let turn = self.interactive_clock.saturating_before(INTERACTIVE_BURST);
        self.interactive_clock = self.interactive_clock.max(now) + Duration::from_nanos(waiting.cost) * part;
        waiting.is_at_once = turn <= now && wanted <= now + INTERACTIVE_WITHIN;
        turn
    }

    /// Pictures have one of so many parts of the device's time before others. That is no more than the streams leave,
    /// because a player that begins, or has little ahead, is served sooner than it is promised only as long as nothing
    /// goes before.
    fn interactive_part(&self) -> u32 {
        let left = 1000_u32.saturating_sub(self.utilisation_permille());
        1000_u32.div_ceil(left.max(1)).clamp(INTERACTIVE_PART, INTERACTIVE_LEAST)
    }

    /// Whether a stream is active and may ask for its next request now.
    fn within_rate(&self, now: Instant, owner: StreamSlot) -> bool {
        let held = self.streams.held_of(owner).filter(|held| held.state == StreamState::Active);
        held.is_some_and(|held| held.release(now) <= now + held.terms.deadline)
    }

    /// Queues a request of an active stream, of which it is the next by rate.
    fn charge(&mut self, now: Instant, owner: StreamSlot, mut waiting: Waiting) {
        let request = waiting.request;
        let end = waiting.end();
        let queued = self.queue.count_of(owner, Budget::Reserved);
        let stream = self.streams.get_mut(owner);
        let Some(held) = &mut stream.held else { return self.insert(now, waiting) };
        let release = held.release(now);
        held.next_release = release + held.spec.rate.time_for(request.length);
        held.goes_on_at(request.offset);
        let earliest = release + held.terms.deadline;
        let wish = request.deadline.filter(|wish| *wish < earliest);
        let before = stream.run.filter(|run| {
            queued > 0
                // What is wanted much later does not go with it before others.
                && run.wish.zip(wish).is_none_or(|(first, then)| then <= first + held.terms.period / 8)
                && run.direction == request.direction
                && run.end == request.offset
                && run.length + request.length <= held.terms.request
        });
        let is_elsewhere = stream.run.is_some_and(|run| run.end != request.offset);
        let length = before.map_or(request.length, |run| run.length + request.length);
        stream.run = Some(StreamRun {
            direction: request.direction,
            end,
            length,
            wish: before.map_or(wish, |run| run.wish),
        });
        // It has read as far ahead as it is to: what it asked for is here, but for one of the longer requests.
        let is_here = |wanted: Bytes| u64::from(queued) * held.terms.request.0 <= wanted.0;
        let catches_up = held
            .wanted
            .is_some_and(|(wanted, until)| (held.next_release >= now && is_here(wanted)) || now >= until);
        waiting.continues = before.is_some();
        waiting.budget = Budget::Reserved;
        waiting.request.class = Class::RealTime;
        if catches_up {
            self.grow(now, owner);
        }
        self.streams.place(owner, self.device.busy_since(now));
        self.price(&mut waiting);
        // A client that reads ahead, as of numbered frames, asks for several pictures at once, and looks at none of them yet.
        let is_soon = |wish: &Instant| *wish <= now + INTERACTIVE_WITHIN;
        let is_looked_at = is_elsewhere && queued == 0 && request.length <= INTERACTIVE_READ;
        if let Some(wish) = wish.filter(is_soon).filter(|_| is_looked_at && !waiting.is_at_once) {
            self.turn_of_interactive(now, &mut waiting, wish);
        }
        let by_terms = Waiting { deadline: earliest, ..waiting };
        match request.deadline {
            None => self.insert(now, by_terms),
            Some(wish) if wish >= earliest => self.insert(now, Waiting { deadline: wish, ..waiting }),
            Some(wish) => self.advance(now, owner, wish, by_terms),
        }
    }

    /// A stream needs a request, and so all that follow, earlier than its terms say, because it began to play before it
    /// had read as far ahead. It is given that for good if every deadline then holds, also those to come,
    /// with a quarter of the cushion to spare. What is given is due when its client's grace is over. In all it never
    /// gets more than it would have had at its rate by its first deadline. What it is not given remains the request's
    /// wish.
    fn advance(&mut self, now: Instant, owner: StreamSlot, wish: Instant, by_terms: Waiting) {
        let Some(held) = self.streams.held_of_mut(owner) else { return self.insert(now, by_terms) };
        let before = (held.next_release, held.advanced);
        // Its first deadline counts from when its terms begin, which others may have put off.
        let first = held.terms.deadline + held.terms.since.saturating_since(held.since);
        let left = first.saturating_sub(held.advanced);
        let earlier = by_terms.deadline.saturating_since(wish + held.spec.grace).min(left);
        if earlier == Duration::ZERO {
            return self.insert(now, by_terms);
        }
        held.advanced += earlier;
        held.next_release = before.0.saturating_before(earlier);
        self.streams.place(owner, self.device.busy_since(now));
        let deadline = by_terms.deadline.saturating_before(earlier);
        if self.fits(now, Waiting { deadline, ..by_terms }, self.cushion() / 4) {
            return;
        }
        if let Some(held) = self.streams.held_of_mut(owner) {
            (held.next_release, held.advanced) = before;
        }
        self.streams.place(owner, self.device.busy_since(now));
        self.insert(now, by_terms);
    }

    /// A stream's request was taken back: what went on where it ended begins a command of its own, and seeks.
    pub(crate) fn end_run_at(&mut self, gone: &Waiting) {
        let Request { direction, stream, .. } = gone.request;
        let next = self.queue.neighbour(direction, stream, gone.end(), false);
        if let Some(next) = next.filter(|next| self.queue.get(*next).continues) {
            let begins = Waiting { continues: false, ..*self.queue.get(next) };
            self.queue.begin(next, price(&self.service, &self.streams, &begins));
        }
    }

    /// Moves what has come within a stream's rate from its excess to its budget, the oldest first.
    pub(crate) fn replenish(&mut self, now: Instant, owner: StreamSlot) {
        let mut eligible = None;
        while let Some(slot) = self.queue.oldest_of(owner, Budget::OverLimit) {
            let held = self.streams.held_of(owner).filter(|held| held.state == StreamState::Active);
            let Some(held) = held else { break };
            if !self.within_rate(now, owner) {
                eligible = Some(held.release(now).saturating_before(held.terms.deadline));
                break;
            }
            let waiting = self.queue.remove(slot);
            self.give_turn_back(&waiting);
            self.charge(now, owner, Waiting { has_turn: false, ..waiting });
        }
        self.streams.set_eligible(owner, eligible);
    }
}
