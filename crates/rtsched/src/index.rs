//! An ordered index whose entries carry a summary of any range of them.
//!
//! **For:** every order the scheduler keeps: deadlines with their slack, places, releases to come. **Excludes:** what
//! keys, slots and summaries mean. **State:** a [`Tree`]. **Invariants:** its.

pub(crate) use crate::tree::Summary;
use crate::tree::{Entry, Tree};
use core::marker::PhantomData;
use units::Instant;

/// What entries are ordered by: packed into one number, because such numbers are compared without a branch.
pub(crate) trait Key: Copy {
    fn pack(self) -> u128;
    fn unpack(packed: u128) -> Self;
}

const fn pair(major: u64, minor: u64) -> u128 {
    (major as u128) << 64 | minor as u128
}

impl Key for (u64, u64) {
    fn pack(self) -> u128 {
        pair(self.0, self.1)
    }

    fn unpack(packed: u128) -> Self {
        ((packed >> 64) as u64, packed as u64)
    }
}

impl Key for (Instant, u64) {
    fn pack(self) -> u128 {
        pair(self.0.as_nanos(), self.1)
    }

    fn unpack(packed: u128) -> Self {
        let (major, minor) = Key::unpack(packed);
        (Instant::from_nanos(major), minor)
    }
}

impl Key for (Instant, u32) {
    fn pack(self) -> u128 {
        pair(self.0.as_nanos(), u64::from(self.1))
    }

    fn unpack(packed: u128) -> Self {
        let (major, minor): (Instant, u64) = Key::unpack(packed);
        (major, minor as u32)
    }
}

impl Key for (i64, u32) {
    fn pack(self) -> u128 {
        // Negative numbers come before the others.
        pair(self.0.cast_unsigned() ^ (1 << 63), u64::from(self.1))
    }

    fn unpack(packed: u128) -> Self {
        (((packed >> 64) as u64 ^ (1 << 63)).cast_signed(), packed as u32)
    }
}

/// Those before and behind a place.
pub(crate) type Neighbours<K> = (Option<(K, u32)>, Option<(K, u32)>);

fn unpack<K: Key>((key, slot): Entry) -> (K, u32) {
    (K::unpack(key), slot)
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Index<K, S = ()> {
    tree: Tree<S>,
    keys: PhantomData<K>,
}

impl<K: Key, S: Summary> Index<K, S> {
    pub(crate) const fn new() -> Self {
        Self { tree: Tree::new(), keys: PhantomData }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    /// Adds an entry. Keys are unique, and none is the greatest there can be.
    pub(crate) fn insert(&mut self, key: K, slot: u32, own: S) {
        self.tree.insert(key.pack(), slot, own);
    }

    /// Removes an entry; with it, its slot. `None`: it is not there.
    pub(crate) fn remove(&mut self, key: K) -> Option<u32> {
        self.tree.remove(key.pack())
    }

    /// Removes the entries in front of the first that is not `gone`. Says how many.
    pub(crate) fn remove_leading(&mut self, gone: impl Fn(K, u32) -> bool) -> usize {
        self.tree.remove_leading(|(key, slot)| gone(K::unpack(key), slot))
    }

    /// The first entry.
    pub(crate) fn first(&self) -> Option<(K, u32)> {
        self.tree.first().map(unpack)
    }

    /// The last entry.
    pub(crate) fn last(&self) -> Option<(K, u32)> {
        self.tree.last().map(unpack)
    }

    /// The first entry at or behind `key`.
    pub(crate) fn at_or_after(&self, key: K) -> Option<(K, u32)> {
        self.tree.around(key.pack()).1.map(unpack)
    }

    /// The last entry before `key`, and the first one at or behind it.
    pub(crate) fn around(&self, key: K) -> Neighbours<K> {
        let (before, next) = self.tree.around(key.pack());
        (before.map(unpack), next.map(unpack))
    }

    /// The summary of all entries.
    pub(crate) fn total(&self) -> S {
        self.tree.total()
    }

    /// The summary of the entries before `end`.
    pub(crate) fn fold_to(&self, end: K) -> S {
        self.tree.fold_until(end.pack(), |_| false)
    }

    /// The summary of the entries before `end`, or of fewer if that is `enough`: what is far behind is not looked at then.
    pub(crate) fn fold_until(&self, end: K, enough: impl Fn(&S) -> bool) -> S {
        self.tree.fold_until(end.pack(), enough)
    }

    /// The summary of the entries of `start <= key < end`.
    pub(crate) fn fold_between(&self, start: K, end: K) -> S {
        self.tree.fold_between(start.pack(), end.pack())
    }

    /// The summaries of the entries before `key`, and of the others.
    pub(crate) fn split(&self, key: K) -> (S, S) {
        self.tree.split(key.pack())
    }

    /// The first entry that `wanted` says of it; it must say so of a range if and only if it does of an entry in it.
    pub(crate) fn find(&self, wanted: impl Fn(&S) -> bool) -> Option<(K, u32)> {
        self.tree.find(wanted).map(unpack)
    }

    /// Gives every entry a new summary. O(n).
    pub(crate) fn rewrite(&mut self, own: impl Fn(K, u32) -> S) {
        self.tree.rewrite(|key, slot| own(K::unpack(key), slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    /// Addition and the least prefix: order matters.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Prefix {
        sum: i64,
        least: i64,
    }

    impl Summary for Prefix {
        const EMPTY: Self = Self { sum: 0, least: i64::MAX };
        fn then(self, later: Self) -> Self {
            Self { sum: self.sum + later.sum, least: self.least.min(later.least.saturating_add(self.sum)) }
        }
    }

    impl Key for u32 {
        fn pack(self) -> u128 {
            u128::from(self)
        }

        fn unpack(packed: u128) -> Self {
            packed as u32
        }
    }

    fn of(value: i64) -> Prefix {
        Prefix { sum: value, least: value }
    }

    proptest! {
        #[test]
        fn it_is_a_sorted_map_with_sums(
            steps in prop::collection::vec((0_u8..6, 0_u32..400, -9_i64..9), 1..900),
            ascending in any::<bool>(),
        ) {
            let mut index = Index::<u32, Prefix>::new();
            let mut model = BTreeMap::<u32, i64>::new();
            for (number, (what, key, value)) in steps.into_iter().enumerate() {
                // A queue: filled behind, emptied in front; or anything anywhere.
                let key = if ascending { number as u32 } else { key };
                match what {
                    5 => {
                        let count = index.remove_leading(|leading, _| leading < key / 4);
                        let before = model.len();
                        model.retain(|leading, _| *leading >= key / 4);
                        prop_assert_eq!(count, before - model.len());
                    }
                    0..3 => {
                        if model.insert(key, value).is_none() {
                            index.insert(key, value as u32, of(value));
                        } else {
                            prop_assert!(index.remove(key).is_some());
                            index.insert(key, value as u32, of(value));
                        }
                    }
                    3 => {
                        let key = if ascending { model.first_key_value().map_or(0, |(key, _)| *key) } else { key };
                        prop_assert_eq!(index.remove(key), model.remove(&key).map(|value| value as u32));
                    }
                    _ => {
                        let high = key.saturating_add(value.unsigned_abs() as u32 * 40);
                        let fold = |range: &mut dyn Iterator<Item = (&u32, &i64)>| {
                            range.fold(Prefix::EMPTY, |sum, (_, value)| sum.then(of(*value)))
                        };
                        let found = index.fold_between(key, high);
                        prop_assert_eq!(found, fold(&mut model.range(key..high)));
                        let before = fold(&mut model.range(..key));
                        prop_assert_eq!(index.split(key), (before, fold(&mut model.range(key..))));
                        prop_assert_eq!(index.fold_to(key), before);
                        let is_less = |sum: &Prefix| sum.least < value;
                        let until = index.fold_until(key, is_less);
                        prop_assert!(until == before || (is_less(&until) && is_less(&before)));
                        prop_assert_eq!(index.total(), fold(&mut model.iter()));
                        let entry = |found: Option<(&u32, &i64)>| found.map(|(key, value)| (*key, *value as u32));
                        prop_assert_eq!(index.at_or_after(key), entry(model.range(key..).next()));
                        prop_assert_eq!(index.around(key).0, entry(model.range(..key).next_back()));
                    }
                }
                let entry = |found: Option<(&u32, &i64)>| found.map(|(key, value)| (*key, *value as u32));
                prop_assert_eq!(index.first(), entry(model.first_key_value()));
                prop_assert_eq!(index.last(), entry(model.last_key_value()));
                prop_assert_eq!(index.is_empty(), model.is_empty());
            }
            index.rewrite(|key, _| of(i64::from(key)));
            let all = model.keys().fold(Prefix::EMPTY, |sum, key| sum.then(of(i64::from(*key))));
            prop_assert_eq!(index.total(), all);
        }
    }
}
