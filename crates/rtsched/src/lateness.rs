//! Why was a request late that was promised?
//!
//! **For:** saying so at the moment it happens, from what the device did between the request's release and its end: for
//! which client it worked, how much of that was moving to places, and how much longer it took than was reckoned.
//! **Excludes:** what follows from it, and words. **State:** the last commands that completed, and what was late and
//! was not asked for yet. **Invariants:** bounded, never allocates after the start; looking back costs a step for each
//! command that is kept, and only when something was late.
//!
//! What is to blame is what the request would have been in time without. Where commands took longer than they were reckoned to, it is
//! the device; or, if next to only those of one other client did, that client: writes that a full cache takes slowly are not a slow
//! disk. Then comes what was promised nothing, what streams took that they were not promised, and pieces of files that were not
//! reckoned with. If nothing of it was, more was promised than there is time.

use crate::request::StreamId;
use alloc::collections::VecDeque;
use units::{Duration, Instant, nanos};

/// Commands that are kept. A device with heads does some fifty a second, so it is ten seconds of it. Of flash it is as
/// much as a deadline spans. An estimator's window.
const KEPT: usize = 512;
/// Late requests that are kept until they are asked for; the oldest gives way. It bounds memory. An operator's target.
const UNREAD: usize = 64;

/// What a late request waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blocker {
    /// The device took longer than it is known to take.
    Device,
    /// Work without a promise: copies, writeback, metadata. Whose most of it was, if it was a stream's.
    BestEffort(Option<StreamId>),
    /// Another stream: it wanted in real time what it was not promised, or what it was promised took far longer than reckoned.
    Stream(StreamId),
    /// A promised stream was read or written in more pieces than was reckoned with, each at a place of its own.
    Seeks(StreamId),
    /// The device was given nothing.
    Idle,
    /// The stream itself: it had asked for so much.
    Own,
    /// Streams used what they were promised, and that was more than the device does.
    OverAdmission,
}

/// What the device did in a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Length of the span.
    pub span: Duration,
    /// For the late request's own stream.
    pub own: Duration,
    /// For other streams that are promised their time.
    pub promised: Duration,
    /// For streams that wanted in real time what they were not promised.
    pub beyond: Duration,
    /// For what was promised nothing: best effort, metadata, idle work.
    pub unpromised: Duration,
    /// Nothing.
    pub idle: Duration,
    /// Of all it did: before the first byte of each command, by the service model.
    pub seeking: Duration,
    /// All it did should have taken this long, by the service model.
    pub reckoned: Duration,
    /// Commands.
    pub commands: u32,
}

impl Work {
    /// For how long it worked.
    pub fn busy(&self) -> Duration {
        self.own + self.promised + self.beyond + self.unpromised
    }
}

/// A promised request completed after its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lateness {
    /// When it completed.
    pub at: Instant,
    /// Whose it was.
    pub stream: StreamId,
    /// How late it was.
    pub tardiness: Duration,
    /// What it waited for.
    pub blocker: Blocker,
    /// What the device did from the moment on from which the request was promised to be served until then.
    pub work: Work,
    /// What active streams are promised of the device's time, in thousandths.
    pub promised_permille: u32,
}

/// A command that completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    /// The device worked for it until then...
    pub(crate) end: Instant,
    /// ...so long...
    pub(crate) service: Duration,
    /// ...and should have for so many nanoseconds, of which so many before its first byte.
    pub(crate) estimate: u64,
    pub(crate) access: u64,
    /// What the admission reckons for the access of so many bytes of its stream, where it was promised.
    pub(crate) fair_access: u64,
    pub(crate) stream: Option<StreamId>,
    pub(crate) kind: Kind,
}

/// By what right a command was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Promised,
    /// Asked for in real time.
    Beyond,
    Unpromised,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct History {
    served: VecDeque<Served>,
    unread: VecDeque<Lateness>,
}

/// A promised request that completed late.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late {
    pub(crate) at: Instant,
    pub(crate) stream: StreamId,
    /// From when on it was promised to be served.
    pub(crate) since: Instant,
    pub(crate) tardiness: Duration,
}

/// Clients that are told apart in one look back. Where so many have a part, none that comes later has a large one. It
/// bounds memory. An operator's target.
const MOST_PARTS: usize = 16;
/// One client is named if at least so many quarters of the excess time are its own. Otherwise the device is. An
/// estimator's window.
const CONCENTRATED: u64 = 3;

/// What the device did for one client, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Part {
    kind: Kind,
    stream: Option<StreamId>,
    took: u64,
    reckoned: u64,
    /// Of it: for pieces that were not reckoned with.
    seeks: u64,
}

impl Part {
    const NONE: Self = Self { kind: Kind::Unpromised, stream: None, took: 0, reckoned: 0, seeks: 0 };

    fn longer(&self) -> u64 {
        self.took.saturating_sub(self.reckoned)
    }
}

/// What the device did for each.
struct Parts {
    parts: [Part; MOST_PARTS],
    count: usize,
}

impl Parts {
    fn all(&self) -> &[Part] {
        &self.parts[..self.count]
    }

    fn of(&mut self, kind: Kind, stream: Option<StreamId>) -> Option<&mut Part> {
        let is_it = |part: &Part| (part.kind, part.stream) == (kind, stream);
        let index = match self.all().iter().position(is_it) {
            Some(index) => index,
            None if self.count < MOST_PARTS => {
                self.parts[self.count] = Part { kind, stream, ..Part::NONE };
                self.count += 1;
                self.count - 1
            }
            None => return None,
        };
        Some(&mut self.parts[index])
    }

    fn sum(&self, of: impl Fn(&Part) -> u64) -> u64 {
        self.all().iter().map(of).sum()
    }

    /// The stream with most of it.
    fn most(&self, of: impl Fn(&Part) -> u64) -> Option<StreamId> {
        let parts = self.all().iter().filter(|part| part.stream.is_some() && of(part) > 0);
        parts.max_by_key(|part| of(part)).and_then(|part| part.stream)
    }
}

impl History {
    pub(crate) fn new() -> Self {
        Self { served: VecDeque::with_capacity(KEPT), unread: VecDeque::with_capacity(UNREAD) }
    }

    pub(crate) fn record(&mut self, served: Served) {
        if self.served.len() == KEPT {
            self.served.pop_front();
        }
        self.served.push_back(served);
    }

    pub(crate) fn pop(&mut self) -> Option<Lateness> {
        self.unread.pop_front()
    }

    /// Finds out why a promised request was late, and keeps it. The command that it was part of is among those that were recorded.
    pub(crate) fn late(&mut self, late: Late, promised_permille: u32) {
        let (blocker, work) = self.explain(late, false);
        if self.unread.len() == UNREAD {
            self.unread.pop_front();
        }
        let Late { at, stream, tardiness, .. } = late;
        self.unread.push_back(Lateness { at, stream, tardiness, blocker, work, promised_permille });
    }

    /// What the device did, and what of it made the stream late. Where no promise was broken (`beyond`), what others were promised is
    /// to blame too.
    pub(crate) fn explain(&self, late: Late, beyond: bool) -> (Blocker, Work) {
        let mut work = Work { span: late.at.saturating_since(late.since), ..Work::default() };
        let mut parts = Parts { parts: [Part::NONE; MOST_PARTS], count: 0 };
        for served in self.served.iter().rev() {
            if served.end <= late.since {
                break;
            }
            let began = served.end.saturating_before(served.service).max(late.since);
            let within = served.end.min(late.at).saturating_since(began);
            let (took, whole) = (nanos(within), nanos(served.service).max(1));
            let share = |of: u64| (u128::from(of) * u128::from(took) / u128::from(whole)) as u64;
            let reckoned = share(served.estimate);
            work.commands += 1;
            work.reckoned += Duration::from_nanos(reckoned);
            work.seeking += Duration::from_nanos(share(served.access.min(whole)));
            let is_own = served.stream == Some(late.stream);
            *(match served.kind {
                _ if is_own => &mut work.own,
                Kind::Promised => &mut work.promised,
                Kind::Beyond => &mut work.beyond,
                Kind::Unpromised => &mut work.unpromised,
            }) += within;
            if let Some(part) = parts.of(served.kind, served.stream) {
                part.took += took;
                part.reckoned += reckoned;
                part.seeks += share(served.access.saturating_sub(served.fair_access));
            }
        }
        work.idle = work.span.saturating_sub(work.busy());
        (blame(late, &work, &parts, beyond), work)
    }
}

fn blame(late: Late, work: &Work, parts: &Parts, beyond: bool) -> Blocker {
    let own = Some(late.stream);
    let of_kind = |kind: Kind, time: fn(&Part) -> u64| {
        move |part: &Part| if part.stream != own && part.kind == kind { time(part) } else { 0 }
    };
    let best_effort = || Blocker::BestEffort(parts.most(of_kind(Kind::Unpromised, |part| part.took)));
    let longer = nanos(work.busy().saturating_sub(work.reckoned));
    let slowest = parts.all().iter().filter(|part| part.stream != own).max_by_key(|part| part.longer());
    let slow = match slowest.filter(|part| part.longer() * 4 >= longer * CONCENTRATED) {
        Some(Part { kind: Kind::Unpromised, .. }) => best_effort(),
        Some(Part { stream: Some(stream), .. }) => Blocker::Stream(*stream),
        _ => Blocker::Device,
    };
    let reckoned = |kind: Kind| of_kind(kind, |part| part.took.min(part.reckoned));
    let candidate = |kind: Kind| (parts.sum(reckoned(kind)), parts.most(reckoned(kind)).map(Blocker::Stream));
    let seeks = |part: &Part| part.seeks;
    let faults = [
        (longer, Some(slow)),
        (parts.sum(reckoned(Kind::Unpromised)), Some(best_effort())),
        candidate(Kind::Beyond),
        (parts.sum(seeks), parts.most(seeks).map(Blocker::Seeks)),
        (nanos(work.idle), Some(Blocker::Idle)),
    ];
    let right = [candidate(Kind::Promised), (nanos(work.own), Some(Blocker::Own))];
    let tardiness = nanos(late.tardiness);
    // Of several, none of which alone was enough, one that was half of it.
    let chosen = |candidates: &[(u64, Option<Blocker>)]| {
        let at_least =
            |least: u64| candidates.iter().find(|(time, _)| *time >= least).and_then(|(_, blocker)| *blocker);
        at_least(tardiness).or_else(|| at_least(tardiness.div_ceil(2).max(1)))
    };
    let others = || if beyond { chosen(&right) } else { None };
    chosen(&faults).or_else(others).unwrap_or(Blocker::OverAdmission)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: StreamId = StreamId(1);
    const OTHER: StreamId = StreamId(2);
    const MILLISECOND: u64 = 1_000_000;

    fn at(milliseconds: u64) -> Instant {
        Instant::from_nanos(milliseconds * MILLISECOND)
    }

    /// A command that takes as long as reckoned, of a stream that is promised it.
    fn served(end: u64, milliseconds: u64, stream: StreamId) -> Served {
        Served {
            end: at(end),
            service: Duration::from_millis(milliseconds),
            estimate: milliseconds * MILLISECOND,
            access: 10 * MILLISECOND,
            fair_access: 10 * MILLISECOND,
            stream: Some(stream),
            kind: Kind::Promised,
        }
    }

    /// What made the last of these commands late by 50 ms, which was to be served from 1000 ms on.
    fn blocker(commands: &[Served]) -> (Blocker, Work) {
        let mut history = History::new();
        commands.iter().for_each(|served| history.record(*served));
        let end = commands.last().unwrap().end;
        let late = Late { at: end, stream: LATE, since: at(1000), tardiness: Duration::from_millis(50) };
        history.late(late, 900);
        let lateness = history.pop().unwrap();
        assert_eq!((lateness.stream, lateness.promised_permille, history.pop()), (LATE, 900, None));
        (lateness.blocker, lateness.work)
    }

    #[test]
    fn what_it_would_have_been_in_time_without_is_to_blame() {
        let own = served(1300, 100, LATE);
        let with = |before: Served| blocker(&[served(1000, 500, OTHER), before, own]).0;
        let other = served(1200, 200, OTHER);
        assert_eq!(with(other), Blocker::OverAdmission);
        let copy = Served { kind: Kind::Unpromised, ..other };
        assert_eq!(with(copy), Blocker::BestEffort(Some(OTHER)));
        let writeback = Served { stream: None, ..copy };
        assert_eq!(with(writeback), Blocker::BestEffort(None));
        assert_eq!(with(Served { kind: Kind::Beyond, ..other }), Blocker::Stream(OTHER));
        // It was slow for all, or for one.
        let slow = Served { estimate: 100 * MILLISECOND, ..other };
        let own_slow = Served { estimate: 50 * MILLISECOND, ..own };
        assert_eq!(blocker(&[slow, own_slow]).0, Blocker::Device);
        assert_eq!(with(slow), Blocker::Stream(OTHER));
        let flush = Served { stream: None, kind: Kind::Unpromised, ..slow };
        assert_eq!(
            blocker(&[Served { end: at(1010), ..copy }, flush, own]).0,
            Blocker::BestEffort(Some(OTHER))
        );
        let pieces = Served { access: 90 * MILLISECOND, ..other };
        assert_eq!(with(pieces), Blocker::Seeks(OTHER));
        assert_eq!(blocker(&[served(1000, 500, OTHER), own]).0, Blocker::Idle);
    }

    /// The boundary pair: half of what it lacked, and a nanosecond less.
    #[test]
    fn what_explains_less_than_half_is_not_to_blame() {
        for (took, expected) in
            [(25 * MILLISECOND, Blocker::Device), (25 * MILLISECOND - 1, Blocker::OverAdmission)]
        {
            let own = Served { estimate: 300 * MILLISECOND - took, ..served(1300, 300, LATE) };
            assert_eq!(blocker(&[served(1000, 500, OTHER), own]).0, expected);
        }
    }

    /// It was answered later than its client's clock bears, and no promise was broken.
    #[test]
    fn a_stream_that_wants_more_than_it_was_promised_waits_for_what_others_were_promised() {
        let mut history = History::new();
        history.record(served(1200, 200, OTHER));
        history.record(served(1300, 100, LATE));
        let late = |milliseconds| Late {
            at: at(1300),
            stream: LATE,
            since: at(1000),
            tardiness: Duration::from_millis(milliseconds),
        };
        assert_eq!(history.explain(late(200), true).0, Blocker::Stream(OTHER));
        let mut alone = History::new();
        alone.record(served(1300, 300, LATE));
        assert_eq!(alone.explain(late(200), true).0, Blocker::Own);
    }

    #[test]
    fn what_the_device_did_adds_up_to_the_span() {
        let (_, work) = blocker(&[
            // Half of it before.
            served(1100, 200, OTHER),
            Served { kind: Kind::Beyond, ..served(1150, 50, OTHER) },
            Served { kind: Kind::Unpromised, ..served(1200, 30, OTHER) },
            served(1300, 100, LATE),
        ]);
        let milliseconds = |time: Duration| time.as_millis();
        let parts = [work.own, work.promised, work.beyond, work.unpromised, work.idle, work.span];
        assert_eq!(parts.map(milliseconds), [100, 100, 50, 30, 20, 300]);
        assert_eq!((milliseconds(work.seeking), milliseconds(work.reckoned), work.commands), (35, 280, 4));
    }

    #[test]
    fn the_oldest_gives_way() {
        let mut history = History::new();
        for number in 0..UNREAD as u64 + 3 {
            (0..KEPT).for_each(|_| history.record(served(number, 1, OTHER)));
            let late = Late { at: at(number), stream: LATE, since: at(number), tardiness: Duration::ZERO };
            history.late(late, 0);
        }
        let first = history.pop().unwrap();
        assert_eq!((first.at, history.unread.len(), history.served.len()), (at(3), UNREAD - 1, KEPT));
    }
}
