//! Editors: they play for some time, and then something else.
//!
//! **State:** where the units that are asked for next lie, and what comes when. **Invariants:** a function of the calls.

use crate::pattern::{EditorSpec, Then, Thens};
use crate::span::Span;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use units::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Editing {
    then: Thens,
    play: Span,
    pause: Span,
    /// Of what is drawn; what is fixed draws nothing.
    random: SmallRng,
    clip_units: u64,
    /// The unit from which on it plays as it does now, and where that is.
    since: u64,
    from: u64,
    backward: bool,
    /// From this unit on it plays at two places in turn, half a clip apart; the first of them is here.
    both: Option<(u64, u64)>,
    /// When it has played enough; `None`: it fills its buffer, or rests.
    until: Option<Instant>,
    rests_until: Option<Instant>,
    /// To be closed, as soon as nothing of it is on its way.
    closing: Option<u64>,
}

/// How it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    /// What was asked for and not played is of no use.
    pub(crate) is_elsewhere: bool,
    pub(crate) closes: bool,
}

impl Editing {
    pub(crate) fn new(spec: &EditorSpec, from: u64, clip_units: u64, random: SmallRng) -> Self {
        Self {
            then: spec.then.clone(),
            play: spec.play_ms,
            pause: spec.pause_ms,
            random,
            clip_units,
            since: 0,
            from,
            backward: false,
            both: None,
            until: None,
            rests_until: None,
            closing: None,
        }
    }

    /// Where a unit lies, in units of the clip, which has no begin and no end.
    pub(crate) fn place(&self, unit: u64) -> u64 {
        if let Some((since, here)) = self.both.filter(|(since, _)| unit >= *since) {
            let gone = unit - since;
            return (here + gone / 2 + gone % 2 * (self.clip_units / 2)) % self.clip_units;
        }
        let gone = unit.saturating_sub(self.since) % self.clip_units;
        (self.from + if self.backward { self.clip_units - gone } else { gone }) % self.clip_units
    }

    /// Whether it has played enough, and how it goes on; `at` is the unit whose turn it is, `next` the one that is asked for
    /// next.
    pub(crate) fn next(
        &mut self,
        now: Instant,
        play_at: Option<Instant>,
        at: u64,
        next: u64,
    ) -> Option<Next> {
        let until = match self.until {
            Some(until) => until,
            None => *self.until.insert(play_at? + self.play.draw(&mut self.random)),
        };
        if now < until {
            return None;
        }
        self.until = None;
        let place = self.place(at);
        let then = match &self.then {
            Thens::One(then) => *then,
            Thens::Several(thens) => thens.choose(&mut self.random).copied().unwrap_or(Then::Pause),
        };
        match then {
            Then::Pause => {}
            Then::Both => {
                // For good: it has nothing else to do.
                (self.both, self.until) = (Some((next, self.place(next))), Some(Instant::FAR_FUTURE));
                return None;
            }
            // The golden ratio spreads places.
            Then::Stop | Then::Jump => self.from = (place + self.clip_units * 618 / 1000) % self.clip_units,
            Then::Turn => (self.from, self.backward) = (place, !self.backward),
        }
        let is_elsewhere = then != Then::Pause;
        if is_elsewhere {
            self.since = next;
        }
        let rests = matches!(then, Then::Stop | Then::Pause);
        let rest = if rests { self.pause.draw(&mut self.random) } else { Duration::ZERO };
        self.rests_until = Some(now + rest);
        Some(Next { is_elsewhere, closes: then == Then::Stop })
    }

    pub(crate) fn close(&mut self, file: Option<u64>) {
        self.closing = file;
    }

    /// The file to be closed, once.
    pub(crate) fn closing(&mut self) -> Option<u64> {
        self.closing.take()
    }

    /// It does not play now.
    pub(crate) fn rests(&self, now: Instant) -> bool {
        self.closing.is_some() || self.rests_until.is_some_and(|until| now < until)
    }

    /// It has rested, and begins again: once.
    pub(crate) fn begins_again(&mut self) -> bool {
        self.rests_until.take().is_some()
    }

    pub(crate) fn next_event(&self) -> Option<Instant> {
        if self.closing.is_some() {
            // Nothing, however long it has rested, until what is on its way is there.
            return None;
        }
        self.until.into_iter().chain(self.rests_until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn editing(then: Then) -> Editing {
        let spec = EditorSpec {
            megabits: 100.0,
            unit_kib: 1024,
            buffer_ms: 1000,
            play_ms: Span::Fixed(2000),
            pause_ms: Span::Fixed(500),
            then: Thens::One(then),
        };
        Editing::new(&spec, 10, 100, SmallRng::seed_from_u64(1))
    }

    #[test]
    fn who_turns_goes_back_from_where_it_is() {
        let mut editing = editing(Then::Turn);
        let start = Instant::from_nanos(7);
        assert_eq!(editing.next(start, None, 0, 12), None, "its buffer is not full");
        assert_eq!(editing.next(start, Some(start), 0, 12), None);
        let next = editing.next(start + Duration::from_secs(2), Some(start), 24, 36);
        assert_eq!(next, Some(Next { is_elsewhere: true, closes: false }));
        assert_eq!([36, 37, 71].map(|unit| editing.place(unit)), [34, 33, 99]);
        assert!(
            !editing.rests(start + Duration::from_secs(2))
                && editing.begins_again()
                && !editing.begins_again()
        );
    }

    #[test]
    fn who_stops_closes_rests_and_is_elsewhere_and_who_pauses_is_where_it_was() {
        let (start, end) = (Instant::ZERO, Instant::ZERO + Duration::from_secs(2));
        let mut stops = editing(Then::Stop);
        stops.next(start, Some(start), 0, 12);
        assert_eq!(stops.next(end, Some(start), 24, 36), Some(Next { is_elsewhere: true, closes: true }));
        assert_eq!(stops.place(36), 95);
        assert!(
            stops.rests(end + Duration::from_millis(499)) && !stops.rests(end + Duration::from_millis(500))
        );
        let mut pauses = editing(Then::Pause);
        pauses.next(start, Some(start), 0, 12);
        assert_eq!(pauses.next(end, Some(start), 24, 36), Some(Next { is_elsewhere: false, closes: false }));
        assert_eq!(pauses.place(36), 46);
    }

    /// What it had asked for came after more than its pause: it wanted to act in the past, and virtual time stood still.
    #[test]
    fn who_cannot_close_yet_waits_for_no_moment() {
        let (start, end) = (Instant::ZERO, Instant::ZERO + Duration::from_secs(2));
        let mut stops = editing(Then::Stop);
        stops.next(start, Some(start), 0, 12);
        stops.next(end, Some(start), 24, 36);
        stops.close(Some(7));
        assert_eq!((stops.next_event(), stops.rests(end + Duration::from_secs(9))), (None, true));
        assert_eq!(stops.closing(), Some(7));
        assert_eq!(stops.next_event(), Some(end + Duration::from_millis(500)));
    }

    #[test]
    fn who_plays_both_goes_on_here_and_half_a_clip_away_in_turn() {
        let (start, end) = (Instant::ZERO, Instant::ZERO + Duration::from_secs(2));
        let mut both = editing(Then::Both);
        both.next(start, Some(start), 0, 12);
        assert_eq!(both.next(end, Some(start), 24, 36), None, "what it has asked for it plays");
        assert_eq!([35, 36, 37, 38, 39].map(|unit| both.place(unit)), [45, 46, 96, 47, 97]);
        let later = end + Duration::from_secs(3600);
        assert_eq!(both.next(later, Some(later), 100, 112), None);
        assert_eq!(both.place(38), 47);
    }
}
