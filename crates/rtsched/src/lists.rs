//! What waits of each stream, in order of arrival.
//!
//! **For:** how much of a stream waits, and which of it is the oldest. **Excludes:** what a slot holds. **State:** three
//! lists for each stream, one for each [`Budget`], linked through the slots. **Invariants:** a slot is in one list at most.
//! Steady state allocates nothing.

use alloc::vec::Vec;

/// Index of a waiting request.
pub(crate) type Slot = u32;

/// Index of a stream's entry in the books.
pub(crate) type StreamSlot = u32;

const NIL: Slot = u32::MAX;

/// What a request is to its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budget {
    /// It draws on the reservation.
    Reserved,
    /// It would, but it is beyond the stream's rate, or the stream is demoted.
    OverLimit,
    /// There is no reservation, or it is not of real time.
    Unreserved,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: Slot,
    tail: Slot,
    len: u32,
}

/// The neighbours of a slot in its list.
#[derive(Clone, Copy, Debug)]
struct Link {
    previous: Slot,
    next: Slot,
}

const EMPTY: List = List { head: NIL, tail: NIL, len: 0 };
const UNLINKED: Link = Link { previous: NIL, next: NIL };

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    /// By stream and budget.
    lists: Vec<[List; 3]>,
    /// By slot: those of streams and no others, whose requests are thus smaller.
    links: Vec<Link>,
}

impl Lists {
    pub(crate) const fn new() -> Self {
        Self { lists: Vec::new(), links: Vec::new() }
    }

    /// Adds a slot where it belongs: behind all but those that are `younger`, which are looked at from the youngest on, and none
    /// unless it was in the list before.
    pub(crate) fn insert(
        &mut self,
        owner: StreamSlot,
        budget: Budget,
        slot: Slot,
        younger: impl Fn(Slot) -> bool,
    ) {
        if self.lists.len() <= owner as usize {
            self.lists.resize(owner as usize + 1, [EMPTY; 3]);
        }
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, UNLINKED);
        }
        let list = &mut self.lists[owner as usize][budget as usize];
        list.len += 1;
        let (mut previous, mut next) = (list.tail, NIL);
        while previous != NIL && younger(previous) {
            (previous, next) = (self.links[previous as usize].previous, previous);
        }
        self.join(owner, budget, previous, slot);
        self.join(owner, budget, slot, next);
    }

    /// Takes a slot out, wherever it is in its list.
    pub(crate) fn remove(&mut self, owner: StreamSlot, budget: Budget, slot: Slot) {
        let Link { previous, next } = self.links[slot as usize];
        self.join(owner, budget, previous, next);
        self.lists[owner as usize][budget as usize].len -= 1;
    }

    /// Makes two slots neighbours; [`NIL`] is the end of the list on that side.
    fn join(&mut self, owner: StreamSlot, budget: Budget, previous: Slot, next: Slot) {
        let list = &mut self.lists[owner as usize][budget as usize];
        match previous {
            NIL => list.head = next,
            previous => self.links[previous as usize].next = next,
        }
        match next {
            NIL => list.tail = previous,
            next => self.links[next as usize].previous = previous,
        }
    }

    pub(crate) fn count_of(&self, owner: StreamSlot, budget: Budget) -> u32 {
        self.lists.get(owner as usize).map_or(0, |lists| lists[budget as usize].len)
    }

    pub(crate) fn has_any_of(&self, owner: StreamSlot) -> bool {
        self.lists.get(owner as usize).is_some_and(|lists| lists.iter().any(|list| list.len > 0))
    }

    pub(crate) fn oldest_of(&self, owner: StreamSlot, budget: Budget) -> Option<Slot> {
        let list = self.lists.get(owner as usize)?[budget as usize];
        (list.head != NIL).then_some(list.head)
    }

    /// The next older one in a slot's list.
    pub(crate) fn older(&self, slot: Slot) -> Option<Slot> {
        let previous = self.links.get(slot as usize)?.previous;
        (previous != NIL).then_some(previous)
    }

    /// The next younger one in a slot's list.
    pub(crate) fn younger(&self, slot: Slot) -> Option<Slot> {
        let next = self.links.get(slot as usize)?.next;
        (next != NIL).then_some(next)
    }
}
