//! Everything that waits, findable by name, deadline, place and stream.
//!
//! **For:** the orders the policy chooses from, and the neighbours merging asks for, each in O(log n).
//! **Excludes:** the choice. **State:** a slot per request; by class the deadline order (real time in
//! [`Deadlines`], which knows slack) and the offset order; by stream two lists; the names. **Invariants:** a slot in
//! use is in the names and in the deadline order exactly once, in the offset order exactly once unless it is a flush,
//! which has no place, and in one list of its stream if it has one. Steady state allocates nothing.

use crate::index::Index;
use crate::request::{Class, Direction, DispatchId, Request, RequestId, StreamId};
use crate::slack::{Deadlines, Expected, Key, Usable};
use alloc::vec::Vec;
use core::hash::{BuildHasherDefault, Hasher};
use hashbrown::HashMap;
use units::{DeviceOffset, Instant};

/// Index of a [`Waiting`].
pub(crate) type Slot = u32;

/// Index of a stream's entry in the books.
pub(crate) type StreamSlot = u32;

const NIL: Slot = u32::MAX;

/// What a request is to its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It draws on the reservation.
    Charged,
    /// It would, but it is beyond the stream's rate, or the stream is demoted.
    Excess,
    /// There is no reservation, or it is not of real time.
    Other,
}

/// One waiting request and what the scheduler knows of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) request: Request,
    /// The request's deadline, or its class's.
    pub(crate) deadline: Instant,
    /// Order of arrival.
    pub(crate) sequence: u64,
    pub(crate) arrived: Instant,
    /// Nanoseconds it takes, by the service model: alone, or behind the piece before it.
    pub(crate) cost: u64,
    /// Nanoseconds that the command takes which it starts: with the pieces that may follow it.
    pub(crate) whole: u64,
    /// It goes on where its stream's request before it ended, and in the same command.
    pub(crate) continues: bool,
    /// Its stream's entry in the books.
    pub(crate) owner: Option<StreamSlot>,
    /// What it is to its stream.
    pub(crate) part: Part,
    /// It was asked for as real time, whatever it is served as.
    pub(crate) is_wanted_in_time: bool,
    /// By when somebody wants it who could not be promised that; [`Instant::FAR_FUTURE`]: nobody.
    pub(crate) wish: Instant,
    /// The command that held the device when it arrived.
    pub(crate) found_at_device: Option<DispatchId>,
    /// Neighbours in its stream's list.
    pub(crate) previous: Slot,
    pub(crate) next: Slot,
}

impl Waiting {
    pub(crate) fn new(request: Request, deadline: Instant, sequence: u64, arrived: Instant) -> Self {
        Self {
            request,
            deadline,
            sequence,
            arrived,
            cost: 0,
            whole: 0,
            continues: false,
            owner: None,
            part: Part::Other,
            is_wanted_in_time: request.class == Class::RealTime,
            wish: Instant::FAR_FUTURE,
            found_at_device: None,
            previous: NIL,
            next: NIL,
        }
    }

    pub(crate) fn key(&self) -> Key {
        (self.deadline, self.sequence)
    }

    /// Its position among the deadlines that are guaranteed; `None`: after all of them.
    pub(crate) fn guaranteed_key(&self) -> Option<Key> {
        (self.request.class == Class::RealTime).then(|| self.key())
    }

    fn wish_key(&self) -> Option<Key> {
        let is_kept = self.request.class == Class::RealTime && self.wish < self.deadline;
        is_kept.then_some((self.wish, self.sequence))
    }

    pub(crate) fn end(&self) -> DeviceOffset {
        DeviceOffset(self.request.offset.0.saturating_add(self.request.length.0))
    }
}

/// A stream's requests in order of arrival.
#[derive(Clone, Copy, Debug)]
struct List {
    head: Slot,
    tail: Slot,
    len: u32,
}

const NO_LIST: List = List { head: NIL, tail: NIL, len: 0 };

/// SplitMix64's finaliser (Steele, Lea and Flood, 2014): consecutive numbers become unrelated ones. Names are the
/// caller's own, so nobody has an interest in collisions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scatter(u64);

impl Hasher for Scatter {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let mut z = (self.0 ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = z ^ (z >> 31);
    }
}

/// A map that is asked, never walked, so that its order decides nothing.
pub(crate) type Names<K, V> = HashMap<K, V, BuildHasherDefault<Scatter>>;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    slots: Vec<Option<Waiting>>,
    free: Vec<Slot>,
    names: Names<RequestId, Slot>,
    real_time: Deadlines,
    /// By class; that of real time is empty.
    others: [Index<Key>; 4],
    /// Of real time, those that are wanted before they are due, by when.
    wishes: Index<Key>,
    /// By class: offset, then arrival.
    places: [Index<(u64, u64)>; 4],
    /// By stream and [`Part`].
    lists: Vec<[List; 3]>,
    counts: [usize; 4],
    /// No request was ever longer, in bytes.
    longest: u64,
}

impl Queue {
    pub(crate) fn new(near: Usable, far: Usable) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            names: Names::default(),
            real_time: Deadlines::new(near, far),
            others: [const { Index::new() }; 4],
            wishes: Index::new(),
            places: [const { Index::new() }; 4],
            lists: Vec::new(),
            counts: [0; 4],
            longest: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn count(&self, class: Class) -> usize {
        self.counts[class as usize]
    }

    pub(crate) fn slot_of(&self, id: RequestId) -> Option<Slot> {
        self.names.get(&id).copied()
    }

    pub(crate) fn get(&self, slot: Slot) -> &Waiting {
        self.slots[slot as usize].as_ref().expect("indexes name only slots in use")
    }

    fn links(&mut self, slot: Slot) -> &mut Waiting {
        self.slots[slot as usize].as_mut().expect("lists name only slots in use")
    }

    /// # Panics
    /// When a request of the same name waits already.
    pub(crate) fn insert(&mut self, mut waiting: Waiting) {
        let slot = self.free.pop().unwrap_or(self.slots.len() as Slot);
        let previous = self.names.insert(waiting.request.id, slot);
        assert!(previous.is_none(), "{:?} is queued already", waiting.request.id);
        let class = waiting.request.class;
        match class {
            Class::RealTime => self.real_time.insert(waiting.key(), slot, waiting.cost),
            _ => self.others[class as usize].insert(waiting.key(), slot, ()),
        }
        if let Some(wish) = waiting.wish_key() {
            self.wishes.insert(wish, slot, ());
        }
        if waiting.request.direction != Direction::Flush {
            self.places[class as usize].insert((waiting.request.offset.0, waiting.sequence), slot, ());
        }
        self.counts[class as usize] += 1;
        self.longest = self.longest.max(waiting.request.length.0);
        (waiting.previous, waiting.next) = (NIL, NIL);
        if let Some(owner) = waiting.owner {
            if self.lists.len() <= owner as usize {
                self.lists.resize(owner as usize + 1, [NO_LIST; 3]);
            }
            let list = &mut self.lists[owner as usize][waiting.part as usize];
            waiting.previous = list.tail;
            list.tail = slot;
            list.len += 1;
            if waiting.previous == NIL {
                list.head = slot;
            } else {
                self.links(waiting.previous).next = slot;
            }
        }
        if slot as usize == self.slots.len() {
            self.slots.push(Some(waiting));
            // Room to free every slot without allocating.
            self.free.reserve(self.slots.len());
        } else {
            self.slots[slot as usize] = Some(waiting);
        }
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Waiting {
        let waiting = self.slots[slot as usize].take().expect("removed once");
        self.free.push(slot);
        self.names.remove(&waiting.request.id);
        let class = waiting.request.class;
        match class {
            Class::RealTime => self.real_time.remove(waiting.key()),
            _ => {
                self.others[class as usize].remove(waiting.key());
            }
        }
        if let Some(wish) = waiting.wish_key() {
            self.wishes.remove(wish);
        }
        if waiting.request.direction != Direction::Flush {
            self.places[class as usize].remove((waiting.request.offset.0, waiting.sequence));
        }
        self.counts[class as usize] -= 1;
        if let Some(owner) = waiting.owner {
            let which = waiting.part as usize;
            match waiting.previous {
                NIL => self.lists[owner as usize][which].head = waiting.next,
                previous => self.links(previous).next = waiting.next,
            }
            match waiting.next {
                NIL => self.lists[owner as usize][which].tail = waiting.previous,
                next => self.links(next).previous = waiting.previous,
            }
            self.lists[owner as usize][which].len -= 1;
        }
        waiting
    }

    /// How many requests of a stream wait.
    pub(crate) fn count_of(&self, owner: StreamSlot, part: Part) -> u32 {
        self.lists.get(owner as usize).map_or(0, |lists| lists[part as usize].len)
    }

    /// Whether any does.
    pub(crate) fn has_any_of(&self, owner: StreamSlot) -> bool {
        self.lists.get(owner as usize).is_some_and(|lists| lists.iter().any(|list| list.len > 0))
    }

    /// The oldest of a stream's requests.
    pub(crate) fn oldest_of(&self, owner: StreamSlot, part: Part) -> Option<Slot> {
        let list = self.lists.get(owner as usize)?[part as usize];
        (list.head != NIL).then_some(list.head)
    }

    /// The next younger one in its stream's list.
    pub(crate) fn younger(&self, slot: Slot) -> Option<Slot> {
        let next = self.get(slot).next;
        (next != NIL).then_some(next)
    }

    /// The request of a class that is due first.
    pub(crate) fn first(&self, class: Class) -> Option<Slot> {
        let first = match class {
            Class::RealTime => self.real_time.first(),
            _ => self.others[class as usize].first(),
        };
        first.map(|(_, slot)| slot)
    }

    /// The real-time request that is wanted first, of those that are wanted before they are due.
    pub(crate) fn first_wish(&self) -> Option<Slot> {
        self.wishes.first().map(|(_, slot)| slot)
    }

    /// The latest real-time deadline.
    pub(crate) fn last_guaranteed(&self) -> Option<Instant> {
        self.real_time.last().map(|(deadline, _)| deadline)
    }

    /// The request of a class that is next on the sweep: the first at or above `from`, else the lowest
    /// (C-SCAN). Flushes are on no sweep.
    pub(crate) fn next_on_sweep(&self, class: Class, from: DeviceOffset) -> Option<Slot> {
        let places = &self.places[class as usize];
        places.at_or_after((from.0, 0)).or_else(|| places.first()).map(|(_, slot)| slot)
    }

    /// See [`Deadlines::slack`].
    pub(crate) fn slack(&self, end: Option<Key>, start: Instant, expected: Option<&Expected>) -> i64 {
        self.real_time.slack(end, start, expected)
    }

    /// A request that can go in one command behind or before another one of this direction and stream: starting
    /// at `at`, or (`ending`) ending there. The best class first. Looks at no more than [`Self::CROWD`] requests
    /// of a class around that place, so it may overlook one among many that overlap.
    pub(crate) fn neighbour(
        &self,
        direction: Direction,
        stream: Option<StreamId>,
        at: DeviceOffset,
        ending: bool,
    ) -> Option<Slot> {
        let fits = |slot: Slot| {
            let waiting = self.get(slot);
            let touches = if ending { waiting.end() == at } else { waiting.request.offset == at };
            touches && waiting.request.direction == direction && waiting.request.stream == stream
        };
        self.places.iter().zip(self.counts).filter(|(_, count)| *count > 0).find_map(|(places, _)| {
            let mut from = (at.0, 0);
            for _ in 0..Self::CROWD {
                let (before, behind) = places.around(from);
                let (key, slot) = if ending { before? } else { behind? };
                if (ending && !self.may_reach(key.0, at)) || (!ending && key.0 > at.0) {
                    return None;
                }
                if fits(slot) {
                    return Some(slot);
                }
                from = if ending { key } else { (key.0, key.1 + 1) };
            }
            None
        })
    }

    /// Whether a request that starts at `start` may be so long that it ends at `at`.
    fn may_reach(&self, start: u64, at: DeviceOffset) -> bool {
        start.saturating_add(self.longest) >= at.0
    }

    /// False when surely no request starts where a command ends, or ends where it starts: one look for each class,
    /// because mostly there is none.
    pub(crate) fn may_have_neighbours(&self, start: DeviceOffset, end: DeviceOffset) -> bool {
        self.places.iter().zip(self.counts).filter(|(_, count)| *count > 0).any(|(places, _)| {
            let (before, behind) = places.around((start.0, 0));
            behind.is_some_and(|(key, _)| key.0 <= end.0)
                || before.is_some_and(|(key, _)| self.may_reach(key.0, start))
        })
    }

    const CROWD: usize = 4;

    /// Gives every request its costs by a changed service model, and the deadline order changed shares: O(n).
    pub(crate) fn revise(&mut self, near: Usable, far: Usable, cost: impl Fn(&Waiting) -> (u64, u64)) {
        for waiting in self.slots.iter_mut().flatten() {
            (waiting.cost, waiting.whole) = cost(waiting);
        }
        let slots = &self.slots;
        self.real_time
            .revise(near, far, |slot| slots[slot as usize].as_ref().map_or(0, |waiting| waiting.cost));
    }
}
