//! Everything that waits, findable by name, deadline, place and stream.
//!
//! **For:** the orders the policy chooses from, and the neighbours merging asks for, each in O(log n).
//! **Excludes:** the choice. **State:** a slot per request; by class the deadline order (real time in [`Deadlines`],
//! which knows slack) and the offset order; the [`Lists`] of streams; the names. **Invariants:** a slot in use is in
//! the names and in the deadline order exactly once. It is in the offset order exactly once, unless it is a flush,
//! which has no place. It is in one list of its stream if it has one. Steady state allocates nothing.

use crate::due::Due;
use crate::index::Index;
use crate::lists::Lists;
pub(crate) use crate::lists::{Budget, Slot, StreamSlot};
use crate::request::{Class, Direction, DispatchId, Request, RequestId, StreamId};
use crate::slack::{Deadlines, Expected, Key, Usable};
use alloc::vec::Vec;
use core::hash::{BuildHasher, BuildHasherDefault, Hasher};
use core::num::NonZeroU64;
use hashbrown::{HashMap, HashTable};
use units::{DeviceOffset, Duration, Instant};

/// A player that begins shows something when it has so much in memory of its own. A player of unknown rate is taken to have
/// it, so streams that want something sooner go first. An operator's target.
pub const PLAYER_HOLDS: Duration = Duration::from_secs(1);

/// One waiting request and what the scheduler knows of it.
///
/// Two cache lines, side by side, which the processor fetches together: most requests wait for so long that nothing of
/// them is in a cache when they are served.
#[derive(Clone, Copy, Debug)]
#[repr(align(128))]
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
    pub(crate) budget: Budget,
    /// It was asked for as real time, whatever it is served as.
    pub(crate) is_wanted_in_time: bool,
    /// A client that is no stream waits for it, and it is short: it has its place among what is wanted.
    pub(crate) is_interactive: bool,
    /// A client searches and waits for it: it is wanted before all that others want.
    pub(crate) is_at_once: bool,
    /// It has taken a turn of best effort.
    pub(crate) has_turn: bool,
    /// The command that held the device when it arrived; none is named 0.
    pub(crate) found_at_device: Option<NonZeroU64>,
}

const _: () = assert!(size_of::<Option<Waiting>>() == 128);

impl Waiting {
    pub(crate) fn new(
        request: Request,
        deadline: Instant,
        sequence: u64,
        arrived: Instant,
        found_at_device: Option<DispatchId>,
    ) -> Self {
        Self {
            request,
            deadline,
            sequence,
            arrived,
            cost: 0,
            whole: 0,
            continues: false,
            owner: None,
            budget: Budget::Unreserved,
            is_wanted_in_time: request.class == Class::RealTime,
            is_interactive: false,
            is_at_once: false,
            has_turn: false,
            found_at_device: found_at_device.and_then(|DispatchId(id)| NonZeroU64::new(id)),
        }
    }

    pub(crate) fn found_at_device(&self) -> Option<DispatchId> {
        self.found_at_device.map(|id| DispatchId(id.get()))
    }

    pub(crate) fn key(&self) -> Key {
        (self.deadline, self.sequence)
    }

    /// It is metadata or best effort, and not because a stream has no place.
    pub(crate) fn is_unpromised(&self) -> bool {
        matches!(self.request.class, Class::Metadata | Class::BestEffort) && !self.is_wanted_in_time
    }

    /// Its position among the deadlines that are guaranteed; `None`: after all of them.
    pub(crate) fn guaranteed_key(&self) -> Option<Key> {
        (self.request.class == Class::RealTime).then(|| self.key())
    }

    /// By when real time is wanted, if that is before it is due; and a picture; and a request of a client that may play
    /// at a rate not known.
    pub(crate) fn wish(&self) -> Option<Instant> {
        match self.request.class {
            // Before all that is wanted. Of such reads the first that came goes first, and together they have no more than their part.
            Class::RealTime | Class::BestEffort if self.is_at_once => Some(Instant::ZERO),
            Class::RealTime => self.request.deadline.filter(|wish| *wish < self.deadline),
            Class::BestEffort if self.is_interactive => Some(self.deadline),
            Class::BestEffort if self.owner.is_some() => None,
            Class::BestEffort => self.request.deadline.map(|_| self.deadline + PLAYER_HOLDS),
            _ => None,
        }
    }

    /// By when it is wanted.
    pub(crate) fn wanted_by(&self) -> Instant {
        self.wish().map_or(self.deadline, |wish| wish.min(self.deadline))
    }

    /// Its position among what is wanted before it is due, if it is: an earlier deadline was named that could not be
    /// promised.
    fn wish_key(&self) -> Option<Key> {
        Some((self.wish()?, self.sequence))
    }

    pub(crate) fn end(&self) -> DeviceOffset {
        DeviceOffset(self.request.offset.0.saturating_add(self.request.length.0))
    }
}

/// SplitMix64's finaliser (Steele, Lea and Flood, 2014) of all but the last bits: consecutive numbers stay neighbours
/// in memory, because a caller that numbers its requests asks for the next ones next, and blocks of them become
/// unrelated. The first bits are what the map compares before it looks at a name, and differ within a block. Names are
/// the caller's own, so none is chosen to collide.
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
        /// Two to this power neighbouring numbers share a place in the table. Representation.
        const BLOCK_BITS: u32 = 6;
        let mut z = (self.0 ^ (number >> BLOCK_BITS)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let within = number & ((1 << BLOCK_BITS) - 1);
        let low = (((z ^ (z >> 31)) << BLOCK_BITS) | within) ^ (within << (u32::BITS - BLOCK_BITS));
        // The same bits twice: half of them say it all, see [`Name`].
        self.0 = (low << u32::BITS) | (low & u64::from(u32::MAX));
    }
}

/// A map that is asked, never walked, so that its order decides nothing.
pub(crate) type Names<K, V> = HashMap<K, V, BuildHasherDefault<Scatter>>;

/// Where a request of some name is. The name itself is with the request: half as large as with it, more of these stay in a
/// cache.
#[derive(Clone, Copy, Debug)]
struct Name {
    hash: u32,
    slot: Slot,
}

impl Name {
    fn scatter(id: RequestId) -> u32 {
        BuildHasherDefault::<Scatter>::default().hash_one(id) as u32
    }

    /// As the table wants it.
    fn spread(hash: u32) -> u64 {
        u64::from(hash) << u32::BITS | u64::from(hash)
    }
}

/// Whether the request of some arrival waits in some slot.
fn waits_in(slots: &[Option<Waiting>]) -> impl Fn(Slot, u64) -> bool {
    |slot, sequence| slots[slot as usize].as_ref().is_some_and(|waiting| waiting.sequence == sequence)
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    slots: Vec<Option<Waiting>>,
    free: Vec<Slot>,
    names: HashTable<Name>,
    real_time: Deadlines,
    others: Due,
    /// Of real time, those that are wanted before they are due, by when.
    wishes: Index<Key>,
    /// By class: offset, then arrival.
    places: [Index<(u64, u64)>; 4],
    lists: Lists,
    counts: [usize; 4],
    /// How many are [unpromised](Waiting::is_unpromised).
    unpromised: usize,
    /// No request was ever longer, in bytes.
    longest: u64,
}

impl Queue {
    pub(crate) fn new(near: Usable, far: Usable) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            names: HashTable::new(),
            real_time: Deadlines::new(near, far),
            others: Due::new(),
            wishes: Index::new(),
            places: [const { Index::new() }; 4],
            lists: Lists::new(),
            counts: [0; 4],
            unpromised: 0,
            longest: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn count(&self, class: Class) -> usize {
        self.counts[class as usize]
    }

    /// Whether any request waits that is of no stream and not idle work.
    pub(crate) fn has_unpromised(&self) -> bool {
        self.unpromised > 0
    }

    pub(crate) fn slot_of(&self, id: RequestId) -> Option<Slot> {
        let hash = Name::scatter(id);
        let is_it = |name: &Name| name.hash == hash && self.get(name.slot).request.id == id;
        self.names.find(Name::spread(hash), is_it).map(|name| name.slot)
    }

    pub(crate) fn get(&self, slot: Slot) -> &Waiting {
        self.slots[slot as usize].as_ref().expect("indexes name only slots in use")
    }

    /// # Panics
    /// When a request of the same name waits already.
    pub(crate) fn insert(&mut self, waiting: Waiting) -> Slot {
        let slot = self.free.pop().unwrap_or(self.slots.len() as Slot);
        let id = waiting.request.id;
        assert!(self.slot_of(id).is_none(), "{id:?} is queued already");
        let class = waiting.request.class;
        match class {
            Class::RealTime => self.real_time.insert(waiting.key(), slot, waiting.cost),
            _ => self.others.insert(class, waiting.key(), slot),
        }
        if let Some(wish) = waiting.wish_key() {
            self.wishes.insert(wish, slot, ());
        }
        if waiting.request.direction != Direction::Flush {
            self.places[class as usize].insert((waiting.request.offset.0, waiting.sequence), slot, ());
        }
        self.counts[class as usize] += 1;
        self.unpromised += usize::from(waiting.is_unpromised());
        self.longest = self.longest.max(waiting.request.length.0);
        if let Some(owner) = waiting.owner {
            let slots = &self.slots;
            let is_younger =
                |other: Slot| slots[other as usize].as_ref().is_some_and(|it| it.sequence > waiting.sequence);
            self.lists.insert(owner, waiting.budget, slot, is_younger);
        }
        if slot as usize == self.slots.len() {
            self.slots.push(Some(waiting));
            // Room to free every slot without allocating.
            self.free.reserve(self.slots.len());
        } else {
            self.slots[slot as usize] = Some(waiting);
        }
        let hash = Name::scatter(id);
        self.names.insert_unique(Name::spread(hash), Name { hash, slot }, |name| Name::spread(name.hash));
        slot
    }

    /// Takes a request out that may come back.
    pub(crate) fn remove(&mut self, slot: Slot) -> Waiting {
        let waiting = self.take(slot);
        match waiting.request.class {
            Class::RealTime => self.real_time.remove(waiting.key()),
            class => self.others.remove(class, waiting.key(), waits_in(&self.slots)),
        }
        waiting
    }

    /// Takes a request out that goes to the device.
    pub(crate) fn release(&mut self, slot: Slot) -> Waiting {
        let waiting = self.take(slot);
        match waiting.request.class {
            Class::RealTime => self.real_time.remove(waiting.key()),
            class => {
                let count = self.counts[class as usize];
                self.others.release(class, waiting.key(), count, waits_in(&self.slots));
            }
        }
        waiting
    }

    /// Takes a request out of everything but the deadline order.
    fn take(&mut self, slot: Slot) -> Waiting {
        let waiting = self.slots[slot as usize].take().expect("removed once");
        self.free.push(slot);
        let hash = Name::spread(Name::scatter(waiting.request.id));
        if let Ok(name) = self.names.find_entry(hash, |name| name.slot == slot) {
            name.remove();
        }
        let class = waiting.request.class;
        if let Some(wish) = waiting.wish_key() {
            self.wishes.remove(wish);
        }
        if waiting.request.direction != Direction::Flush {
            self.places[class as usize].remove((waiting.request.offset.0, waiting.sequence));
        }
        self.counts[class as usize] -= 1;
        self.unpromised -= usize::from(waiting.is_unpromised());
        if let Some(owner) = waiting.owner {
            self.lists.remove(owner, waiting.budget, slot);
        }
        waiting
    }

    /// How many requests of a stream wait.
    pub(crate) fn count_of(&self, owner: StreamSlot, budget: Budget) -> u32 {
        self.lists.count_of(owner, budget)
    }

    /// Whether any does.
    pub(crate) fn has_any_of(&self, owner: StreamSlot) -> bool {
        self.lists.has_any_of(owner)
    }

    /// The oldest of a stream's requests.
    pub(crate) fn oldest_of(&self, owner: StreamSlot, budget: Budget) -> Option<Slot> {
        self.lists.oldest_of(owner, budget)
    }

    /// The next older one in its stream's list.
    pub(crate) fn older(&self, slot: Slot) -> Option<Slot> {
        self.lists.older(slot)
    }

    /// The next younger one in its stream's list.
    pub(crate) fn younger(&self, slot: Slot) -> Option<Slot> {
        self.lists.younger(slot)
    }

    /// The request of a class that is due first.
    pub(crate) fn first(&self, class: Class) -> Option<Slot> {
        match class {
            Class::RealTime => self.real_time.first().map(|(_, slot)| slot),
            _ => self.others.first(class),
        }
    }

    /// The real-time request that is wanted first, of those that are wanted before they are due.
    pub(crate) fn first_wish(&self) -> Option<Slot> {
        self.wishes.first().map(|(_, slot)| slot)
    }

    /// Whether a stream wants something before `end` that it is promised later. Looks at no more than [`Self::CROWD`] wishes of
    /// others that come before, so it may overlook one.
    pub(crate) fn is_wanted_before(&self, end: Instant) -> bool {
        let mut from = (Instant::ZERO, 0);
        for _ in 0..=Self::CROWD {
            let Some((key, slot)) = self.wishes.at_or_after(from).filter(|(key, _)| key.0 < end) else {
                return false;
            };
            if self.get(slot).budget == Budget::Reserved {
                return true;
            }
            from = (key.0, key.1 + 1);
        }
        false
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
        self.real_time.slack(end, start, expected, i64::MIN)
    }

    /// The same, but of less than `enough` it says only that it is less.
    pub(crate) fn slack_if(
        &self,
        end: Option<Key>,
        start: Instant,
        expected: Option<&Expected>,
        enough: i64,
    ) -> i64 {
        self.real_time.slack(end, start, expected, enough)
    }

    /// See [`Deadlines::slack_at_least`].
    pub(crate) fn slack_at_least(&self, start: Instant, expected: Option<&Expected>) -> i64 {
        self.real_time.slack_at_least(start, expected)
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

    /// A search for a neighbour looks at no more than so many requests. It bounds the length of a turn. An operator's
    /// target.
    const CROWD: usize = 4;

    /// A request that went on where another one ended begins a command of its own, at these costs. O(log n).
    pub(crate) fn begin(&mut self, slot: Slot, (cost, whole): (u64, u64)) {
        let Some(waiting) = &mut self.slots[slot as usize] else { return };
        (waiting.continues, waiting.cost, waiting.whole) = (false, cost, whole);
        if waiting.request.class == Class::RealTime {
            let key = waiting.key();
            self.real_time.remove(key);
            self.real_time.insert(key, slot, cost);
        }
    }

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
