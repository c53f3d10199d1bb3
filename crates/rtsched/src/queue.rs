//! Everything that waits, findable by deadline and by place.
//!
//! **For:** the two orders the policy chooses from, and the neighbours merging asks for, each in O(log n).
//! **Excludes:** the choice. **State:** a slot per request; the deadline order (real time in a
//! [`DeadlineTree`], which knows slack; the other classes in a plain map), the offset order, the names.
//! **Invariants:** a slot in use is in the names and in the deadline order exactly once, and in the offset order
//! exactly once unless it is a flush, which has no place.

use crate::request::{Class, Direction, DispatchId, Request, RequestId, StreamId};
use crate::tree::{DeadlineTree, Expected, Key, Usable};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use units::{DeviceOffset, Instant};

/// One waiting request and what the scheduler knows of it.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) request: Request,
    /// The request's deadline, or its class's.
    pub(crate) deadline: Instant,
    /// Order of arrival.
    pub(crate) sequence: u64,
    pub(crate) arrived: Instant,
    /// Nanoseconds it takes alone, by the service model.
    pub(crate) cost: u64,
    /// The command that held the device when it arrived.
    pub(crate) found_at_device: Option<DispatchId>,
}

impl Waiting {
    pub(crate) fn key(&self) -> Key {
        (self.deadline, self.sequence)
    }

    /// Its position among the deadlines that are guaranteed; `None`: after all of them.
    pub(crate) fn guaranteed_key(&self) -> Option<Key> {
        (self.request.class == Class::RealTime).then(|| self.key())
    }

    pub(crate) fn end(&self) -> DeviceOffset {
        DeviceOffset(self.request.offset.0.saturating_add(self.request.length.0))
    }
}

/// Index of a [`Waiting`].
pub(crate) type Slot = u32;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    slots: Vec<Option<Waiting>>,
    free: Vec<Slot>,
    names: BTreeMap<RequestId, Slot>,
    real_time: DeadlineTree,
    others: BTreeMap<(Class, Instant, u64), Slot>,
    places: BTreeMap<(Class, DeviceOffset, u64), Slot>,
    counts: [usize; 4],
}

impl Queue {
    pub(crate) fn new(near: Usable, far: Usable) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            names: BTreeMap::new(),
            real_time: DeadlineTree::new(near, far),
            others: BTreeMap::new(),
            places: BTreeMap::new(),
            counts: [0; 4],
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

    /// # Panics
    /// When a request of the same name waits already.
    pub(crate) fn insert(&mut self, waiting: Waiting) {
        let slot = self.free.pop().unwrap_or(self.slots.len() as Slot);
        let previous = self.names.insert(waiting.request.id, slot);
        assert!(previous.is_none(), "{:?} is queued already", waiting.request.id);
        let class = waiting.request.class;
        match class {
            Class::RealTime => self.real_time.insert(waiting.key(), slot, waiting.cost),
            _ => {
                self.others.insert((class, waiting.deadline, waiting.sequence), slot);
            }
        }
        if waiting.request.direction != Direction::Flush {
            self.places.insert((class, waiting.request.offset, waiting.sequence), slot);
        }
        self.counts[class as usize] += 1;
        if slot as usize == self.slots.len() {
            self.slots.push(Some(waiting));
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
                self.others.remove(&(class, waiting.deadline, waiting.sequence));
            }
        }
        self.places.remove(&(class, waiting.request.offset, waiting.sequence));
        self.counts[class as usize] -= 1;
        waiting
    }

    /// The request of a class that is due first.
    pub(crate) fn first(&self, class: Class) -> Option<Slot> {
        if class == Class::RealTime {
            return self.real_time.first().map(|(_, slot)| slot);
        }
        let all = (class, Instant::ZERO, 0)..=(class, Instant::FAR_FUTURE, u64::MAX);
        self.others.range(all).next().map(|(_, slot)| *slot)
    }

    /// The latest real-time deadline.
    pub(crate) fn last_guaranteed(&self) -> Option<Instant> {
        self.real_time.last().map(|(deadline, _)| deadline)
    }

    /// The request of a class that is next on the sweep: the first at or above `from`, else the lowest
    /// (C-SCAN). Flushes are on no sweep.
    pub(crate) fn next_on_sweep(&self, class: Class, from: DeviceOffset) -> Option<Slot> {
        let end = (class, DeviceOffset(u64::MAX), u64::MAX);
        let ahead = self.places.range((class, from, 0)..=end).next();
        let next = ahead.or_else(|| self.places.range((class, DeviceOffset(0), 0)..=end).next());
        next.map(|(_, slot)| *slot)
    }

    /// See [`DeadlineTree::slack`].
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
        let fits = |slot: &Slot| {
            let waiting = self.get(*slot);
            let touches = if ending { waiting.end() == at } else { waiting.request.offset == at };
            touches && waiting.request.direction == direction && waiting.request.stream == stream
        };
        [Class::RealTime, Class::Metadata, Class::BestEffort, Class::Idle].into_iter().find_map(|class| {
            if ending {
                let before = (class, DeviceOffset(0), 0)..(class, at, 0);
                self.places.range(before).rev().map(|(_, slot)| *slot).take(Self::CROWD).find(fits)
            } else {
                let here = (class, at, 0)..=(class, at, u64::MAX);
                self.places.range(here).map(|(_, slot)| *slot).take(Self::CROWD).find(fits)
            }
        })
    }

    const CROWD: usize = 4;

    /// Gives every request its cost by a changed service model, and the deadline order changed shares: O(n).
    pub(crate) fn revise(&mut self, near: Usable, far: Usable, cost: impl Fn(&Request) -> u64) {
        for waiting in self.slots.iter_mut().flatten() {
            waiting.cost = cost(&waiting.request);
        }
        let slots = &self.slots;
        self.real_time
            .revise(near, far, |slot| slots[slot as usize].as_ref().map_or(0, |waiting| waiting.cost));
    }
}
