//! The books of the streams: what each was promised, how far it has drawn on it, and what all may still ask for.
//!
//! **For:** policing, so that a stream which asks for more than its rate spends its own budget only. Also the demand of
//! the requests that are still to come: without it the device would be given away before they are there.
//! **Excludes:** admission, queueing. **State:** a slot per stream that holds a reservation or has requests; three
//! orders of them. **Invariants:** of an active stream the reserved requests' virtual releases are at least what they
//! play apart, so its demand is never more than was admitted. Steady state allocates nothing.
//!
//! Policing is a constant bandwidth server's deadline assignment (Abeni and Buttazzo 1998) with the virtual scheduling
//! of a token bucket. A request's virtual release is that of the one before it and what that one plays, or its arrival
//! if that is later. Its deadline is the terms' deadline after that. What is asked for more than a deadline before its
//! virtual release is excess.

use crate::index::{Index, Summary};
use crate::queue::{Names, StreamSlot};
use crate::request::{Direction, StreamId};
use crate::slack::Expected;
use crate::stream::{StreamSpec, StreamState, Terms};
use alloc::vec::Vec;
use units::{Bytes, DeviceOffset, Duration, Instant};

/// Where a stream's last request ended, so that the next may go on in the same command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) direction: Direction,
    pub(crate) end: DeviceOffset,
    /// From the command's first byte on.
    pub(crate) length: Bytes,
    /// When it is wanted, if that is earlier than it is due.
    pub(crate) wish: Option<Instant>,
}

/// A reservation as the books know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) spec: StreamSpec,
    pub(crate) terms: Terms,
    /// What its requests become as soon as it has read as far ahead as its terms say.
    pub(crate) wanted: Option<(Bytes, Instant)>,
    pub(crate) state: StreamState,
    /// Since when it is in that state.
    pub(crate) since: Instant,
    /// Order of admission.
    pub(crate) number: u64,
    /// The next request's virtual release.
    pub(crate) next_release: Instant,
    /// By how much in all its virtual releases were set earlier.
    pub(crate) advanced: Duration,
    /// Nanoseconds of one request.
    pub(crate) cost: u64,
    /// Where it stands in the orders of releases.
    place: Option<Place>,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Ahead(i64),
    Idle(i64),
}

impl Held {
    pub(crate) fn new(spec: StreamSpec, terms: Terms, number: u64, now: Instant) -> Self {
        let state = StreamState::Active;
        let (next_release, advanced) = (terms.since, Duration::ZERO);
        Self {
            spec,
            terms,
            wanted: None,
            state,
            since: now,
            number,
            next_release,
            advanced,
            cost: 0,
            place: None,
        }
    }

    /// Its share of the device's time in parts of 2^30, rounded up.
    pub(crate) fn share(&self) -> u64 {
        let period = self.terms.period.as_nanos().max(1);
        u64::try_from((u128::from(self.cost) << SHARE_SHIFT).div_ceil(period)).unwrap_or(1 << SHARE_SHIFT)
    }

    /// Where it was lately is where it goes on: about the last eight requests. Else a file that lies in pieces all over
    /// the device would be as dear as the zone in which its last piece happens to lie.
    pub(crate) fn goes_on_at(&mut self, offset: DeviceOffset) {
        let before = self.spec.place.unwrap_or(offset);
        self.spec.place = Some(DeviceOffset(before.0 - before.0 / 8 + offset.0 / 8));
    }

    /// The virtual release of a request that comes now.
    pub(crate) fn release(&self, now: Instant) -> Instant {
        // While it reads further ahead than before, it goes on where it was, so that its deadlines do.
        if self.wanted.is_some() { self.next_release } else { self.next_release.max(now) }
    }
}

/// A stream.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) held: Option<Held>,
    pub(crate) run: Option<Run>,
    pub(crate) last_used: Instant,
    pub(crate) in_flight: u32,
    pub(crate) completed: u64,
    pub(crate) bytes: Bytes,
    pub(crate) missed: u64,
    pub(crate) tardiness: Duration,
    pub(crate) slack_nanoseconds: Option<i64>,
    /// Its next turn as best effort.
    pub(crate) turn: Instant,
    /// Where it stands in the order of excess.
    eligible: Option<Instant>,
}

/// Shares of the device's time are in parts of 2^30. Representation.
pub(crate) const SHARE_SHIFT: u32 = 30;

/// Of some streams: what is needed for Σ U_i·(t − x_i) over those with x_i < t, where x_i is a period before the next
/// deadline.
#[derive(Clone, Copy, Debug)]
struct Releases {
    /// Σ U_i, in parts of 2^30.
    share: i64,
    /// Σ U_i·x_i.
    moment: i128,
    /// The first next deadline.
    soonest: i64,
    /// The first virtual release.
    release: i64,
}

impl Summary for Releases {
    const EMPTY: Self = Self { share: 0, moment: 0, soonest: i64::MAX, release: i64::MAX };

    fn then(self, later: Self) -> Self {
        Self {
            share: self.share + later.share,
            moment: self.moment + later.moment,
            soonest: self.soonest.min(later.soonest),
            release: self.release.min(later.release),
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    slots: Vec<Option<Stream>>,
    free: Vec<StreamSlot>,
    names: Names<StreamId, StreamSlot>,
    /// Active streams whose next virtual release is to come, by x.
    ahead: Index<(i64, StreamSlot), Releases>,
    /// Active streams that may ask at any moment, by x less that moment.
    idle: Index<(i64, StreamSlot), Releases>,
    /// Of all in either order: they change seldom and are asked for with every request.
    totals: [Releases; 2],
    /// Active streams with excess, by when the oldest of it will be within the rate.
    eligible: Index<(Instant, StreamSlot)>,
    admitted: u64,
}

pub(crate) fn signed(instant: Instant) -> i64 {
    i64::try_from(instant.as_nanos()).unwrap_or(i64::MAX)
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX >> 2)
}

impl Streams {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            names: Names::default(),
            ahead: Index::new(),
            idle: Index::new(),
            totals: [Releases::EMPTY; 2],
            eligible: Index::new(),
            admitted: 0,
        }
    }

    pub(crate) fn find(&self, id: StreamId) -> Option<StreamSlot> {
        self.names.get(&id).copied()
    }

    pub(crate) fn get(&self, slot: StreamSlot) -> &Stream {
        self.slots[slot as usize].as_ref().expect("owners name only slots in use")
    }

    pub(crate) fn get_mut(&mut self, slot: StreamSlot) -> &mut Stream {
        self.slots[slot as usize].as_mut().expect("owners name only slots in use")
    }

    /// The stream's slot; a new one if it has none.
    pub(crate) fn open(&mut self, id: StreamId) -> StreamSlot {
        if let Some(slot) = self.find(id) {
            return slot;
        }
        let stream = Stream {
            id,
            held: None,
            run: None,
            last_used: Instant::ZERO,
            in_flight: 0,
            completed: 0,
            bytes: Bytes::ZERO,
            missed: 0,
            slack_nanoseconds: None,
            tardiness: Duration::ZERO,
            turn: Instant::ZERO,
            eligible: None,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(stream);
                slot
            }
            None => {
                self.slots.push(Some(stream));
                self.free.reserve(self.slots.len());
                (self.slots.len() - 1) as StreamSlot
            }
        };
        self.names.insert(id, slot);
        slot
    }

    /// Forgets a stream without a reservation of which nothing waits or is at the device.
    pub(crate) fn close(&mut self, slot: StreamSlot, queued: bool) {
        let stream = self.get(slot);
        if stream.held.is_none() && stream.in_flight == 0 && !queued {
            let id = stream.id;
            self.names.remove(&id);
            self.slots[slot as usize] = None;
            self.free.push(slot);
        }
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.admitted += 1;
        self.admitted
    }

    /// The slots of all streams with a reservation.
    pub(crate) fn held(&self) -> impl DoubleEndedIterator<Item = (StreamSlot, &Held)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(slot, stream)| Some((slot as StreamSlot, stream.as_ref()?.held.as_ref()?)))
    }

    pub(crate) fn slot_count(&self) -> StreamSlot {
        self.slots.len() as StreamSlot
    }

    pub(crate) fn held_of(&self, slot: StreamSlot) -> Option<&Held> {
        self.slots.get(slot as usize)?.as_ref()?.held.as_ref()
    }

    pub(crate) fn held_of_mut(&mut self, slot: StreamSlot) -> Option<&mut Held> {
        self.slots.get_mut(slot as usize)?.as_mut()?.held.as_mut()
    }

    fn releases(held: &Held, x: i64, soonest: i64, release: i64) -> Releases {
        let share = held.share() as i64;
        Releases { share, moment: i128::from(share) * i128::from(x), soonest, release }
    }

    /// Puts a stream where it belongs among the releases to come: after its virtual release, cost or terms changed.
    /// Those that are not active do not belong there. `since`: from when on idle streams may ask.
    pub(crate) fn place(&mut self, slot: StreamSlot, since: Instant) {
        self.displace(slot);
        let Some(held) = self.held_of(slot).copied().filter(|held| held.state == StreamState::Active) else {
            return self.sum_up();
        };
        let lead = nanos(held.terms.deadline).saturating_sub(nanos(held.terms.period));
        let place = if held.next_release > since || held.wanted.is_some() {
            let release = signed(held.next_release);
            let x = release.saturating_add(lead);
            let until = if held.wanted.is_some() { i64::MAX } else { release };
            let soonest = release.saturating_add(nanos(held.terms.deadline));
            self.ahead.insert((x, slot), slot, Self::releases(&held, x, soonest, until));
            Place::Ahead(x)
        } else {
            let soonest = nanos(held.terms.deadline);
            self.idle.insert((lead, slot), slot, Self::releases(&held, lead, soonest, i64::MAX));
            Place::Idle(lead)
        };
        if let Some(held) = self.held_of_mut(slot) {
            held.place = Some(place);
        }
        self.sum_up();
    }

    fn sum_up(&mut self) {
        self.totals = [self.ahead.total(), self.idle.total()];
    }

    /// Takes a stream out of the releases to come.
    fn displace(&mut self, slot: StreamSlot) {
        match self.held_of_mut(slot).and_then(|held| held.place.take()) {
            Some(Place::Ahead(x)) => {
                self.ahead.remove((x, slot));
            }
            Some(Place::Idle(x)) => {
                self.idle.remove((x, slot));
            }
            None => {}
        }
    }

    /// Gives a stream's reservation up.
    pub(crate) fn forget(&mut self, slot: StreamSlot) -> Option<Held> {
        self.displace(slot);
        self.sum_up();
        self.set_eligible(slot, None);
        self.get_mut(slot).held.take()
    }

    /// Streams whose virtual release is over may ask at any moment from `since` on.
    pub(crate) fn settle(&mut self, since: Instant) {
        let now = signed(since);
        while self.totals[0].release <= now
            && let Some((_, slot)) = self.ahead.find(|releases| releases.release <= now)
        {
            self.place(slot, since);
        }
    }

    /// What active streams may still ask for, when idle ones ask at `since`: the first deadline and Φ there.
    pub(crate) fn expected(&self, since: Instant) -> Option<Expected> {
        let [ahead, idle] = self.totals;
        let since = signed(since);
        let horizon = ahead.soonest.min(idle.soonest.saturating_add(since));
        if horizon == i64::MAX {
            return None;
        }
        let ahead = self.ahead.fold_to((horizon, 0));
        let idle = self.idle.fold_to((horizon - since, 0));
        let demand = i128::from(ahead.share) * i128::from(horizon) - ahead.moment
            + i128::from(idle.share) * i128::from(horizon - since)
            - idle.moment;
        let demand = (demand + (1 << SHARE_SHIFT) - 1) >> SHARE_SHIFT;
        Some(Expected {
            horizon: Instant::from_nanos(u64::try_from(horizon).unwrap_or(0)),
            demand: i64::try_from(demand).unwrap_or(i64::MAX >> 2),
        })
    }

    /// The active streams' share of the device's time in millionths, rounded up.
    pub(crate) fn millionths(&self) -> u64 {
        let share = self.totals.iter().map(|releases| releases.share).sum::<i64>();
        (u128::from(share.unsigned_abs()) * 1_000_000).div_ceil(1 << SHARE_SHIFT) as u64
    }

    /// The shortest deadline of the active streams.
    pub(crate) fn shortest_deadline(&self) -> Option<Duration> {
        let active = self.held().filter(|(_, held)| held.state == StreamState::Active);
        active.map(|(_, held)| held.terms.deadline).min()
    }

    /// Since when the oldest of a stream's excess is within its rate, if it has any.
    pub(crate) fn set_eligible(&mut self, slot: StreamSlot, at: Option<Instant>) {
        let before = core::mem::replace(&mut self.get_mut(slot).eligible, at);
        if before != at {
            if let Some(before) = before {
                self.eligible.remove((before, slot));
            }
            if let Some(at) = at {
                self.eligible.insert((at, slot), slot, ());
            }
        }
    }

    /// The first stream whose excess comes within its rate, and when.
    pub(crate) fn next_eligible(&self) -> Option<(Instant, StreamSlot)> {
        self.eligible.first().map(|((at, _), slot)| (at, slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Bitrate;

    #[test]
    fn a_stream_is_where_it_was_lately() {
        let spec = StreamSpec::reader(Bitrate::from_megabits(100));
        let terms = Terms {
            request: Bytes::from_mib(8),
            period: Duration::from_millis(671),
            deadline: Duration::from_millis(671),
            since: Instant::ZERO,
        };
        let mut held = Held::new(spec, terms, 0, Instant::ZERO);
        let place = |held: &Held| held.spec.place.expect("it has asked").0;
        held.goes_on_at(DeviceOffset(800 << 30));
        assert_eq!(place(&held), 800 << 30);
        // One piece elsewhere moves it by an eighth; where it stays, it is found.
        held.goes_on_at(DeviceOffset(0));
        assert_eq!(place(&held), 700 << 30);
        (0..64).for_each(|_| held.goes_on_at(DeviceOffset(100 << 30)));
        assert!(place(&held).abs_diff(100 << 30) < 1 << 30);
    }
}
