//! Which request of a class without guarantees is due first.
//!
//! **For:** what is overdue, and which turn a floor brings. **Excludes:** real time, whose order knows slack
//! ([`Deadlines`](crate::slack::Deadlines)). **State:** an order for each class, in which a request that has gone to
//! the device may stay until it is first. **Invariants:** the first of an order waits; those in it that do not wait are
//! at most [`GONE_FOR_EACH`] times as many as the most that ever waited. Steady state allocates nothing.
//!
//! Requests go to the device in the order of their places, so from anywhere in this one, and with many of them nothing
//! there is in a cache. At its ends it is: there it is filled, and there gone requests are taken out, one for each that
//! goes.

use crate::index::Index;
use crate::lists::Slot;
use crate::request::Class;
use crate::slack::Key;
use alloc::vec::Vec;

/// While so many entries stay in the order for each request that waits, a request that goes is taken out at once.
/// Representation.
const GONE_FOR_EACH: usize = 2;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Due {
    /// By class; that of real time is empty.
    orders: [Index<Key>; 4],
    /// By class: how many in the order do not wait.
    gone: [usize; 4],
    /// By slot: the last digit of the request that waits there, or did last. So the request itself is looked at for few
    /// that do not wait, and these digits stay in a cache.
    digits: Vec<u8>,
}

impl Due {
    pub(crate) const fn new() -> Self {
        Self { orders: [const { Index::new() }; 4], gone: [0; 4], digits: Vec::new() }
    }

    /// Adds a request. A slot has one at most.
    pub(crate) fn insert(&mut self, class: Class, key: Key, slot: Slot) {
        self.orders[class as usize].insert(key, slot, ());
        if self.digits.len() <= slot as usize {
            self.digits.resize(slot as usize + 1, 0);
        }
        self.digits[slot as usize] = key.1 as u8;
    }

    /// Takes a request out that does not wait any longer. It may come back. `waits`: whether the one of this arrival waits in
    /// this slot.
    pub(crate) fn remove(&mut self, class: Class, key: Key, waits: impl Fn(Slot, u64) -> bool) {
        let removed = self.orders[class as usize].remove(key);
        debug_assert!(removed.is_some(), "removed a request that is not there");
        self.clear_front(class, waits);
    }

    /// Takes a request out that goes to the device and never comes back. Of its class, `waiting` others wait. O(log n)
    /// on average: when the first goes, so do those behind it that have gone before.
    pub(crate) fn release(
        &mut self,
        class: Class,
        key: Key,
        waiting: usize,
        waits: impl Fn(Slot, u64) -> bool,
    ) {
        let gone = &mut self.gone[class as usize];
        if *gone >= GONE_FOR_EACH * waiting {
            return self.remove(class, key, waits);
        }
        *gone += 1;
        self.clear_front(class, waits);
    }

    /// The request of a class that is due first.
    pub(crate) fn first(&self, class: Class) -> Option<Slot> {
        self.orders[class as usize].first().map(|(_, slot)| slot)
    }

    /// Takes out those that have gone, up to the first that waits.
    fn clear_front(&mut self, class: Class, waits: impl Fn(Slot, u64) -> bool) {
        let gone = &mut self.gone[class as usize];
        if *gone > 0 {
            let digits = &self.digits;
            let has_gone = |key: Key, slot: Slot| digits[slot as usize] != key.1 as u8 || !waits(slot, key.1);
            *gone -= self.orders[class as usize].remove_leading(has_gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;
    use units::Instant;

    proptest! {
        #[test]
        fn the_first_is_the_first_of_those_that_wait(
            steps in prop::collection::vec((0_u8..6, 0_u64..200, any::<prop::sample::Index>()), 1..600),
        ) {
            const CLASS: Class = Class::BestEffort;
            let mut due = Due::new();
            let mut model = BTreeMap::<Key, usize>::new();
            let (mut there, mut free, mut most) = (Vec::new(), Vec::new(), 0);
            for (number, (what, time, index)) in steps.into_iter().enumerate() {
                if what < 3 || model.is_empty() {
                    let slot = free.pop().unwrap_or_else(|| {
                        there.push(None);
                        there.len() - 1
                    });
                    // Mostly later than those before, and now and then at the same time.
                    let key = (Instant::from_nanos(number as u64 / 2 + time), number as u64);
                    there[slot] = Some(key.1);
                    due.insert(CLASS, key, slot as Slot);
                    model.insert(key, slot);
                } else {
                    let key = *model.keys().nth(index.index(model.len())).expect("there are so many");
                    let slot = model.remove(&key).expect("it was found");
                    there[slot] = None;
                    let waits = |slot: Slot, arrival| there[slot as usize] == Some(arrival);
                    if what == 3 {
                        due.remove(CLASS, key, waits);
                        // It comes back with another deadline.
                        let key = (Instant::from_nanos(time), key.1);
                        there[slot] = Some(key.1);
                        due.insert(CLASS, key, slot as Slot);
                        model.insert(key, slot);
                    } else {
                        due.release(CLASS, key, model.len(), waits);
                        free.push(slot);
                    }
                }
                most = most.max(model.len());
                prop_assert_eq!(due.first(CLASS), model.values().next().map(|slot| *slot as Slot));
                let gone = due.gone[CLASS as usize];
                prop_assert!(gone <= GONE_FOR_EACH * most, "{gone} of {most}");
            }
            while let Some((key, slot)) = model.pop_last() {
                there[slot] = None;
                due.release(CLASS, key, model.len(), |slot, arrival| there[slot as usize] == Some(arrival));
            }
            prop_assert_eq!((due.first(CLASS), due.gone[CLASS as usize]), (None, 0));
        }
    }
}
