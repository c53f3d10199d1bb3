//! An ordered index whose entries carry a summary of any range of them.
//!
//! **For:** every order the scheduler keeps: deadlines with their slack, places, releases to come. **Excludes:** what
//! keys, slots and summaries mean. **State:** a B+-tree in an arena. **Invariants:** entries in ascending order of
//! unique keys; every inner entry holds the product of its subtree's summaries; freed nodes are used again before the
//! arena grows, so steady state allocates nothing.
//!
//! Nodes are merged only when that leaves them room, and may be as small as one entry: a queue that is filled behind
//! and emptied in front then touches each node's neighbours never.

use alloc::vec::Vec;
use core::marker::PhantomData;
use units::Instant;

/// What a range of entries amounts to: a monoid.
pub(crate) trait Summary: Copy {
    /// Of no entry.
    const EMPTY: Self;
    /// Of these entries and `later` ones behind them.
    fn then(self, later: Self) -> Self;
}

impl Summary for () {
    const EMPTY: Self = ();
    fn then(self, (): Self) -> Self {}
}

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

const NIL: u32 = u32::MAX;

/// Keys of a node: four cache lines of them.
const KEYS: usize = 16;
/// Entries of a node: one less, so that behind the last of them there always is a [`VACANT`] key.
const FANOUT: usize = KEYS - 1;
/// Greater than every key.
const VACANT: u128 = u128::MAX;

/// A leaf's links are slots, an inner node's are nodes; an inner node's key is at most the least in its subtree. Keys,
/// links and length are five cache lines, of which nothing else is read to find a place.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Node<S> {
    /// Those behind the entries are [`VACANT`], so that a search need not know how many there are.
    keys: [u128; KEYS],
    links: [u32; FANOUT],
    len: u32,
    /// Those behind the entries are empty, so that a sum need not know it either.
    sums: [S; FANOUT],
}

impl<S: Summary> Node<S> {
    const NEW: Self = Self { keys: [VACANT; KEYS], links: [NIL; FANOUT], len: 0, sums: [S::EMPTY; FANOUT] };

    fn of(key: u128, link: u32, sum: S) -> Self {
        let mut node = Self::NEW;
        (node.keys[0], node.links[0], node.sums[0], node.len) = (key, link, sum, 1);
        node
    }

    fn len(&self) -> usize {
        self.len as usize
    }

    /// The number of leading entries whose key is `low`: first of whole cache lines, then in the next one. Both are
    /// counted and not searched, because nobody can predict which way a search turns, and none asks how many entries
    /// there are.
    fn count(&self, low: impl Fn(u128) -> bool) -> usize {
        const LINE: usize = 4;
        let (lines, _) = self.keys.as_chunks::<LINE>();
        let count = |keys: &[u128]| keys.iter().map(|key| usize::from(low(*key))).sum::<usize>();
        let whole = count(&[lines[0][LINE - 1], lines[1][LINE - 1], lines[2][LINE - 1]]);
        whole * LINE + count(&lines[whole])
    }

    /// The number of entries before `key`.
    fn rank(&self, key: u128) -> usize {
        self.count(|other| other < key)
    }

    /// The only child that may have `key`.
    fn child(&self, key: u128) -> usize {
        self.count(|other| other <= key).saturating_sub(1)
    }

    fn insert(&mut self, at: usize, key: u128, link: u32, sum: S) {
        self.keys.copy_within(at..KEYS - 1, at + 1);
        self.links.copy_within(at..FANOUT - 1, at + 1);
        self.sums.copy_within(at..FANOUT - 1, at + 1);
        (self.keys[at], self.links[at], self.sums[at]) = (key, link, sum);
        self.len += 1;
    }

    fn remove(&mut self, at: usize) {
        self.keys.copy_within(at + 1.., at);
        self.links.copy_within(at + 1.., at);
        self.sums.copy_within(at + 1.., at);
        self.sums[FANOUT - 1] = S::EMPTY;
        self.len -= 1;
    }

    /// Moves the entries from `at` on behind those of `other`.
    fn move_to(&mut self, at: usize, other: &mut Self) {
        let (end, to) = (self.len(), other.len());
        let count = end - at;
        other.keys[to..to + count].copy_from_slice(&self.keys[at..end]);
        other.links[to..to + count].copy_from_slice(&self.links[at..end]);
        other.sums[to..to + count].copy_from_slice(&self.sums[at..end]);
        self.keys[at..end].fill(VACANT);
        self.sums[at..end].fill(S::EMPTY);
        other.len += count as u32;
        self.len = at as u32;
    }

    fn first(&self) -> Entry {
        (self.keys[0], self.links[0])
    }

    fn last(&self) -> Entry {
        let last = self.len() - 1;
        (self.keys[last], self.links[last])
    }

    /// Of the entries in a range.
    fn sum_of(&self, range: impl core::slice::SliceIndex<[S], Output = [S]>) -> S {
        self.sums[range].iter().fold(S::EMPTY, |sum, next| sum.then(*next))
    }

    fn sum(&self) -> S {
        self.sum_of(..)
    }
}

/// A key and its slot.
type Entry = (u128, u32);

/// Those before and behind a place.
pub(crate) type Neighbours<K> = (Option<(K, u32)>, Option<(K, u32)>);

fn unpack<K: Key>((key, slot): Entry) -> (K, u32) {
    (K::unpack(key), slot)
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Index<K, S = ()> {
    nodes: Vec<Node<S>>,
    free: Vec<u32>,
    root: u32,
    /// Levels above the leaves.
    height: u32,
    /// The first entry and the last one, which are asked for most.
    ends: Option<(Entry, Entry)>,
    /// The inner nodes on the way to a leaf, from the root on, and which of their children is next; kept for its memory.
    path: Vec<(u32, u32)>,
    keys: PhantomData<K>,
}

impl<K: Key, S: Summary> Index<K, S> {
    /// Nothing is summed up, so that a change concerns nobody above unless nodes come or go.
    const IS_PLAIN: bool = size_of::<S>() == 0;

    pub(crate) const fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            root: NIL,
            height: 0,
            ends: None,
            path: Vec::new(),
            keys: PhantomData,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.root == NIL
    }

    fn node(&self, at: u32) -> &Node<S> {
        &self.nodes[at as usize]
    }

    fn make(&mut self, node: Node<S>) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                // Room to free every node without allocating.
                self.free.reserve(self.nodes.len());
                (self.nodes.len() - 1) as u32
            }
        }
    }

    /// The leaf that has `key`, or would; the way there becomes the path, and its keys are at most this one.
    fn descend(&mut self, key: u128) -> u32 {
        let mut at = self.root;
        self.path.clear();
        for _ in 0..self.height {
            let node = &mut self.nodes[at as usize];
            if key < node.keys[0] {
                node.keys[0] = key;
            }
            let index = node.child(key);
            self.path.push((at, index as u32));
            at = node.links[index];
        }
        at
    }

    /// Adds an entry. Keys are unique, and none is the greatest there can be.
    pub(crate) fn insert(&mut self, key: K, slot: u32, own: S) {
        let entry = (key.pack(), slot);
        let key = entry.0;
        debug_assert!(key != VACANT, "no entry has the greatest key");
        let Some((first, last)) = self.ends else {
            self.ends = Some((entry, entry));
            self.root = self.make(Node::of(key, slot, own));
            return;
        };
        self.ends = Some((first.min(entry), last.max(entry)));
        let mut child = self.descend(key);
        let rank = self.node(child).rank(key);
        let mut split = self.add(child, rank, key, slot, own);
        while let Some((at, index)) = self.path.pop() {
            if Self::IS_PLAIN && split.is_none() {
                return;
            }
            let sum = self.node(child).sum();
            self.nodes[at as usize].sums[index as usize] = sum;
            split = split.and_then(|right| {
                let (key, sum) = (self.node(right).keys[0], self.node(right).sum());
                self.add(at, index as usize + 1, key, right, sum)
            });
            child = at;
        }
        if let Some(right) = split {
            let left = self.root;
            let mut root = Node::of(self.node(left).keys[0], left, self.node(left).sum());
            root.insert(1, self.node(right).keys[0], right, self.node(right).sum());
            self.root = self.make(root);
            self.height += 1;
        }
    }

    /// Adds an entry to a node. The node that was split off for it, if any: the right one.
    fn add(&mut self, at: u32, rank: usize, key: u128, link: u32, sum: S) -> Option<u32> {
        let left = &mut self.nodes[at as usize];
        if left.len() < FANOUT {
            left.insert(rank, key, link, sum);
            return None;
        }
        if rank == FANOUT {
            // Whoever appends gets full nodes.
            return Some(self.make(Node::of(key, link, sum)));
        }
        let mut right = Node::NEW;
        left.move_to(FANOUT / 2, &mut right);
        if rank <= FANOUT / 2 {
            left.insert(rank, key, link, sum);
        } else {
            right.insert(rank - FANOUT / 2, key, link, sum);
        }
        Some(self.make(right))
    }

    /// Removes an entry; with it, its slot. `None`: it is not there.
    pub(crate) fn remove(&mut self, key: K) -> Option<u32> {
        let (first, last) = self.ends?;
        let key = key.pack();
        let leaf = self.descend(key);
        let node = &mut self.nodes[leaf as usize];
        let rank = node.rank(key);
        if node.keys[rank] != key {
            return None;
        }
        let slot = node.links[rank];
        node.remove(rank);
        self.mend(leaf);
        if self.root == NIL {
            self.ends = None;
        } else if key == first.0 {
            self.ends = Some((self.first_below(self.root, self.height), last));
        } else if key == last.0 {
            self.ends = Some((first, self.last_below(self.root, self.height)));
        }
        Some(slot)
    }

    /// Makes everything on the path right again, and the root, after an entry of `child` was removed.
    fn mend(&mut self, mut child: u32) {
        while let Some((at, index)) = self.path.pop() {
            let len = self.node(child).len();
            if len == 0 {
                self.free.push(child);
                self.nodes[at as usize].remove(index as usize);
            } else {
                let sum = self.node(child).sum();
                self.nodes[at as usize].sums[index as usize] = sum;
                if len < FANOUT / 4 {
                    self.merge(at, index as usize);
                    if index > 0 {
                        self.merge(at, index as usize - 1);
                    }
                } else if Self::IS_PLAIN {
                    return;
                }
            }
            child = at;
        }
        while self.height > 0 && self.node(self.root).len() == 1 {
            let child = self.node(self.root).links[0];
            self.free.push(self.root);
            self.root = child;
            self.height -= 1;
        }
        if self.node(self.root).len() == 0 {
            self.free.push(self.root);
            (self.root, self.height) = (NIL, 0);
        }
    }

    /// Makes one of two neighbours if that leaves it room.
    fn merge(&mut self, at: u32, left_index: usize) {
        let Some(&[left, right]) = self.node(at).links[..self.node(at).len()].get(left_index..left_index + 2)
        else {
            return;
        };
        if self.node(left).len() + self.node(right).len() > FANOUT * 3 / 4 {
            return;
        }
        let mut from = *self.node(right);
        from.move_to(0, &mut self.nodes[left as usize]);
        self.free.push(right);
        let sum = self.node(left).sum();
        let parent = &mut self.nodes[at as usize];
        parent.sums[left_index] = sum;
        parent.remove(left_index + 1);
    }

    /// The first entry.
    pub(crate) fn first(&self) -> Option<(K, u32)> {
        self.ends.map(|(first, _)| unpack(first))
    }

    /// The last entry.
    pub(crate) fn last(&self) -> Option<(K, u32)> {
        self.ends.map(|(_, last)| unpack(last))
    }

    fn first_below(&self, mut at: u32, height: u32) -> Entry {
        for _ in 0..height {
            at = self.node(at).links[0];
        }
        self.node(at).first()
    }

    fn last_below(&self, mut at: u32, height: u32) -> Entry {
        for _ in 0..height {
            at = self.node(at).last().1;
        }
        self.node(at).last()
    }

    /// The first entry at or behind `key`.
    pub(crate) fn at_or_after(&self, key: K) -> Option<(K, u32)> {
        self.around(key).1
    }

    /// The last entry before `key`, and the first one at or behind it.
    pub(crate) fn around(&self, key: K) -> Neighbours<K> {
        let (mut at, mut before, mut next) = (self.root, None, None);
        if at == NIL {
            return (None, None);
        }
        let key = key.pack();
        for height in (0..self.height).rev() {
            let node = self.node(at);
            let index = node.child(key);
            if index > 0 {
                before = Some((node.links[index - 1], height));
            }
            if index + 1 < node.len() {
                next = Some((node.links[index + 1], height));
            }
            at = node.links[index];
        }
        let node = self.node(at);
        let rank = node.rank(key);
        let entry = |index: usize| (node.keys[index], node.links[index]);
        let before = match rank {
            0 => before.map(|(at, height)| self.last_below(at, height)),
            _ => Some(entry(rank - 1)),
        };
        let next = match rank == node.len() {
            true => next.map(|(at, height)| self.first_below(at, height)),
            false => Some(entry(rank)),
        };
        (before.map(unpack), next.map(unpack))
    }

    /// The summary of all entries.
    pub(crate) fn total(&self) -> S {
        if self.root == NIL { S::EMPTY } else { self.node(self.root).sum() }
    }

    /// The summary of the entries before `end`.
    pub(crate) fn fold_to(&self, end: K) -> S {
        self.fold_until(end, |_| false)
    }

    /// The summary of the entries before `end`, or of fewer if that is `enough`: what is far behind is not looked at then.
    pub(crate) fn fold_until(&self, end: K, enough: impl Fn(&S) -> bool) -> S {
        let end = end.pack();
        match self.ends {
            Some((first, _)) if end <= first.0 => S::EMPTY,
            Some((_, last)) if last.0 < end => self.total(),
            Some(_) => self.fold_below_to(self.root, self.height, end, enough),
            None => S::EMPTY,
        }
    }

    /// The summary of the entries of `start <= key < end`; `None` bounds nothing.
    pub(crate) fn fold_from(&self, start: K, end: Option<K>) -> S {
        let Some((first, last)) = self.ends else { return S::EMPTY };
        let start = start.pack();
        let end = end.map_or(VACANT, K::pack);
        if last.0 < start || end <= start {
            return S::EMPTY;
        }
        let (is_from_first, is_to_last) = (start <= first.0, last.0 < end);
        match (is_from_first, is_to_last) {
            (true, true) => self.total(),
            (true, false) => self.fold_below_to(self.root, self.height, end, |_| false),
            (false, true) => self.fold_below_from(self.root, self.height, start),
            (false, false) => self.fold_between(start, end),
        }
    }

    /// Of the entries in a subtree before `end`, or of fewer.
    fn fold_below_to(&self, mut at: u32, height: u32, end: u128, enough: impl Fn(&S) -> bool) -> S {
        let mut sum = S::EMPTY;
        for _ in 0..height {
            let node = self.node(at);
            // Of the last child with a key before the end, some may be behind it.
            let Some(partly) = node.rank(end).checked_sub(1) else { return sum };
            sum = sum.then(node.sum_of(..partly));
            if enough(&sum) {
                return sum;
            }
            at = node.links[partly];
        }
        let node = self.node(at);
        sum.then(node.sum_of(..node.rank(end)))
    }

    /// Of the entries in a subtree from `start` on.
    fn fold_below_from(&self, mut at: u32, height: u32, start: u128) -> S {
        let mut sum = S::EMPTY;
        for _ in 0..height {
            let node = self.node(at);
            let partly = node.child(start);
            sum = node.sum_of(partly + 1..).then(sum);
            at = node.links[partly];
        }
        let node = self.node(at);
        node.sum_of(node.rank(start)..).then(sum)
    }

    /// Of the entries of `start <= key < end`, where `start < end`.
    fn fold_between(&self, start: u128, end: u128) -> S {
        let mut at = self.root;
        for height in (0..self.height).rev() {
            let node = self.node(at);
            let (left, right) = (node.child(start), node.rank(end).saturating_sub(1));
            if left < right {
                let from_left = self.fold_below_from(node.links[left], height, start);
                let to_right = self.fold_below_to(node.links[right], height, end, |_| false);
                return from_left.then(node.sum_of(left + 1..right)).then(to_right);
            }
            at = node.links[left];
        }
        let node = self.node(at);
        node.sum_of(node.rank(start)..node.rank(end))
    }

    /// The first entry that `wanted` says of it; it must say so of a range if and only if it does of an entry in it.
    pub(crate) fn find(&self, wanted: impl Fn(&S) -> bool) -> Option<(K, u32)> {
        let mut at = self.root;
        if at == NIL {
            return None;
        }
        for _ in 0..self.height {
            let node = self.node(at);
            at = node.links[node.sums[..node.len()].iter().position(&wanted)?];
        }
        let node = self.node(at);
        let index = node.sums[..node.len()].iter().position(&wanted)?;
        Some(unpack((node.keys[index], node.links[index])))
    }

    /// Gives every entry a new summary. O(n).
    pub(crate) fn rewrite(&mut self, own: impl Fn(K, u32) -> S) {
        if self.root != NIL {
            self.rewrite_below(self.root, self.height, &own);
        }
    }

    fn rewrite_below(&mut self, at: u32, height: u32, own: &impl Fn(K, u32) -> S) {
        for index in 0..self.node(at).len() {
            let (key, link) = (self.node(at).keys[index], self.node(at).links[index]);
            let sum = if height == 0 {
                own(K::unpack(key), link)
            } else {
                self.rewrite_below(link, height - 1, own);
                self.node(link).sum()
            };
            self.nodes[at as usize].sums[index] = sum;
        }
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
            steps in prop::collection::vec((0_u8..5, 0_u32..400, -9_i64..9), 1..900),
            ascending in any::<bool>(),
        ) {
            let mut index = Index::<u32, Prefix>::new();
            let mut model = BTreeMap::<u32, i64>::new();
            for (number, (what, key, value)) in steps.into_iter().enumerate() {
                // A queue: filled behind, emptied in front; or anything anywhere.
                let key = if ascending { number as u32 } else { key };
                match what {
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
                        let found = index.fold_from(key, Some(high));
                        prop_assert_eq!(found, fold(&mut model.range(key..high)));
                        let before = fold(&mut model.range(..key));
                        prop_assert_eq!(index.fold_to(key), before);
                        let is_less = |sum: &Prefix| sum.least < value;
                        let until = index.fold_until(key, is_less);
                        prop_assert!(until == before || (is_less(&until) && is_less(&before)));
                        prop_assert_eq!(index.fold_from(key, None), fold(&mut model.range(key..)));
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

    #[test]
    fn steady_state_reuses_its_nodes() {
        let mut index = Index::<u32>::new();
        for key in 0..100_000_u32 {
            index.insert(key, 0, ());
            if key >= 100 {
                index.remove(key - 100);
            }
        }
        assert!(index.nodes.len() < 24, "{}", index.nodes.len());
    }
}
