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

const FANOUT: usize = 16;
const NIL: u32 = u32::MAX;

/// A leaf's links are slots, an inner node's are nodes; an inner node's key is at most the least in its subtree.
#[derive(Clone, Copy, Debug)]
struct Node<K, S> {
    len: u8,
    keys: [K; FANOUT],
    links: [u32; FANOUT],
    sums: [S; FANOUT],
}

impl<K: Copy + Ord, S: Summary> Node<K, S> {
    fn of(key: K, link: u32, sum: S) -> Self {
        Self { len: 1, keys: [key; FANOUT], links: [link; FANOUT], sums: [sum; FANOUT] }
    }

    fn len(&self) -> usize {
        usize::from(self.len)
    }

    fn keys(&self) -> &[K] {
        &self.keys[..self.len()]
    }

    /// The number of entries before `key`.
    fn rank(&self, key: &K) -> usize {
        self.keys().partition_point(|other| other < key)
    }

    /// The only child that may have `key`.
    fn child(&self, key: &K) -> usize {
        self.keys().partition_point(|other| other <= key).saturating_sub(1)
    }

    fn insert(&mut self, at: usize, key: K, link: u32, sum: S) {
        let len = self.len();
        self.keys.copy_within(at..len, at + 1);
        self.links.copy_within(at..len, at + 1);
        self.sums.copy_within(at..len, at + 1);
        (self.keys[at], self.links[at], self.sums[at]) = (key, link, sum);
        self.len += 1;
    }

    fn remove(&mut self, at: usize) {
        let len = self.len();
        self.keys.copy_within(at + 1..len, at);
        self.links.copy_within(at + 1..len, at);
        self.sums.copy_within(at + 1..len, at);
        self.len -= 1;
    }

    /// Moves the entries from `at` on behind those of `other`.
    fn move_to(&mut self, at: usize, other: &mut Self) {
        let (count, to) = (self.len() - at, other.len());
        other.keys[to..to + count].copy_from_slice(&self.keys[at..at + count]);
        other.links[to..to + count].copy_from_slice(&self.links[at..at + count]);
        other.sums[to..to + count].copy_from_slice(&self.sums[at..at + count]);
        other.len += count as u8;
        self.len = at as u8;
    }

    fn sum(&self) -> S {
        self.sums[..self.len()].iter().fold(S::EMPTY, |sum, next| sum.then(*next))
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Index<K, S = ()> {
    nodes: Vec<Node<K, S>>,
    free: Vec<u32>,
    root: u32,
    /// Levels above the leaves.
    height: u32,
}

impl<K: Copy + Ord, S: Summary> Index<K, S> {
    pub(crate) const fn new() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), root: NIL, height: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.root == NIL
    }

    fn node(&self, at: u32) -> &Node<K, S> {
        &self.nodes[at as usize]
    }

    fn make(&mut self, node: Node<K, S>) -> u32 {
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

    /// Adds an entry. Keys are unique.
    pub(crate) fn insert(&mut self, key: K, slot: u32, own: S) {
        if self.root == NIL {
            self.root = self.make(Node::of(key, slot, own));
            return;
        }
        if let Some(right) = self.insert_below(self.root, self.height, key, slot, own) {
            let left = self.root;
            let mut root = Node::of(self.node(left).keys[0], left, self.node(left).sum());
            root.insert(1, self.node(right).keys[0], right, self.node(right).sum());
            self.root = self.make(root);
            self.height += 1;
        }
    }

    /// The node that was split off, if any: the right one.
    fn insert_below(&mut self, at: u32, height: u32, key: K, slot: u32, own: S) -> Option<u32> {
        if height == 0 {
            let rank = self.node(at).rank(&key);
            return self.add(at, rank, key, slot, own);
        }
        let index = self.node(at).child(&key);
        let child = self.node(at).links[index];
        let split = self.insert_below(child, height - 1, key, slot, own);
        let sum = self.node(child).sum();
        let node = &mut self.nodes[at as usize];
        node.sums[index] = sum;
        node.keys[index] = node.keys[index].min(key);
        let right = split?;
        let (key, sum) = (self.node(right).keys[0], self.node(right).sum());
        self.add(at, index + 1, key, right, sum)
    }

    fn add(&mut self, at: u32, rank: usize, key: K, link: u32, sum: S) -> Option<u32> {
        if self.node(at).len() < FANOUT {
            self.nodes[at as usize].insert(rank, key, link, sum);
            return None;
        }
        if rank == FANOUT {
            // Whoever appends gets full nodes.
            return Some(self.make(Node::of(key, link, sum)));
        }
        let mut right = Node { len: 0, ..Node::of(key, link, sum) };
        let left = &mut self.nodes[at as usize];
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
        if self.root == NIL {
            return None;
        }
        let slot = self.remove_below(self.root, self.height, &key)?;
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
        Some(slot)
    }

    fn remove_below(&mut self, at: u32, height: u32, key: &K) -> Option<u32> {
        if height == 0 {
            let node = &mut self.nodes[at as usize];
            let rank = node.rank(key);
            if node.keys().get(rank) != Some(key) {
                return None;
            }
            let slot = node.links[rank];
            node.remove(rank);
            return Some(slot);
        }
        let index = self.node(at).child(key);
        let child = self.node(at).links[index];
        let slot = self.remove_below(child, height - 1, key)?;
        if self.node(child).len() == 0 {
            self.free.push(child);
            self.nodes[at as usize].remove(index);
            return Some(slot);
        }
        self.nodes[at as usize].sums[index] = self.node(child).sum();
        if self.node(child).len() < FANOUT / 4 {
            self.merge(at, index);
            if index > 0 {
                self.merge(at, index - 1);
            }
        }
        Some(slot)
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
        (self.root != NIL).then(|| self.first_below(self.root, self.height))
    }

    fn first_below(&self, mut at: u32, height: u32) -> (K, u32) {
        for _ in 0..height {
            at = self.node(at).links[0];
        }
        (self.node(at).keys[0], self.node(at).links[0])
    }

    /// The last entry.
    pub(crate) fn last(&self) -> Option<(K, u32)> {
        if self.root == NIL {
            return None;
        }
        let mut at = self.root;
        for _ in 0..self.height {
            at = self.node(at).links[self.node(at).len() - 1];
        }
        let last = self.node(at).len() - 1;
        Some((self.node(at).keys[last], self.node(at).links[last]))
    }

    /// The first entry at or behind `key`.
    pub(crate) fn at_or_after(&self, key: K) -> Option<(K, u32)> {
        let (mut at, mut next) = (self.root, None);
        if at == NIL {
            return None;
        }
        for height in (0..self.height).rev() {
            let node = self.node(at);
            let index = node.child(&key);
            if index + 1 < node.len() {
                next = Some((node.links[index + 1], height));
            }
            at = node.links[index];
        }
        let node = self.node(at);
        let rank = node.rank(&key);
        if rank < node.len() {
            return Some((node.keys[rank], node.links[rank]));
        }
        next.map(|(at, height)| self.first_below(at, height))
    }

    /// The last entry before `key`.
    pub(crate) fn before(&self, key: K) -> Option<(K, u32)> {
        if self.root == NIL {
            return None;
        }
        self.before_below(self.root, self.height, &key)
    }

    fn before_below(&self, at: u32, height: u32, key: &K) -> Option<(K, u32)> {
        let node = self.node(at);
        let rank = node.rank(key);
        if height == 0 {
            return rank.checked_sub(1).map(|index| (node.keys[index], node.links[index]));
        }
        // An inner key may be less than all of its subtree, so that its subtree may have nothing before `key`;
        // the one before it then has.
        (0..rank).rev().take(2).find_map(|index| self.before_below(node.links[index], height - 1, key))
    }

    /// The summary of the entries of `low <= key < high`; `None` bounds nothing.
    pub(crate) fn fold(&self, low: Option<K>, high: Option<K>) -> S {
        if self.root == NIL { S::EMPTY } else { self.fold_below(self.root, self.height, low, high) }
    }

    fn fold_below(&self, at: u32, height: u32, low: Option<K>, high: Option<K>) -> S {
        let node = self.node(at);
        if low.is_none() && high.is_none() {
            return node.sum();
        }
        let end = high.map_or(node.len(), |high| node.rank(&high));
        if height == 0 {
            let start = low.map_or(0, |low| node.rank(&low));
            return (start..end).fold(S::EMPTY, |sum, index| sum.then(node.sums[index]));
        }
        let start = low.map_or(0, |low| node.child(&low));
        (start..end).fold(S::EMPTY, |sum, index| {
            let low = low.filter(|_| index == start);
            let high = high.filter(|_| index + 1 == end);
            sum.then(if low.is_none() && high.is_none() {
                node.sums[index]
            } else {
                self.fold_below(node.links[index], height - 1, low, high)
            })
        })
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
        Some((node.keys[index], node.links[index]))
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
                own(key, link)
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

    fn of(value: i64) -> Prefix {
        Prefix { sum: value, least: value }
    }

    proptest! {
        #[test]
        fn it_is_a_sorted_map_with_sums(
            steps in prop::collection::vec((0_u8..5, 0_u16..400, -9_i64..9), 1..900),
            ascending in any::<bool>(),
        ) {
            let mut index = Index::<u16, Prefix>::new();
            let mut model = BTreeMap::<u16, i64>::new();
            for (number, (what, key, value)) in steps.into_iter().enumerate() {
                // A queue: filled behind, emptied in front; or anything anywhere.
                let key = if ascending { number as u16 } else { key };
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
                        let high = key.saturating_add(value.unsigned_abs() as u16 * 40);
                        let fold = |range: &mut dyn Iterator<Item = (&u16, &i64)>| {
                            range.fold(Prefix::EMPTY, |sum, (_, value)| sum.then(of(*value)))
                        };
                        let found = index.fold(Some(key), Some(high));
                        prop_assert_eq!(found, fold(&mut model.range(key..high)));
                        prop_assert_eq!(index.fold(None, Some(key)), fold(&mut model.range(..key)));
                        prop_assert_eq!(index.fold(Some(key), None), fold(&mut model.range(key..)));
                        prop_assert_eq!(index.fold(None, None), fold(&mut model.iter()));
                        let entry = |found: Option<(&u16, &i64)>| found.map(|(key, value)| (*key, *value as u32));
                        prop_assert_eq!(index.at_or_after(key), entry(model.range(key..).next()));
                        prop_assert_eq!(index.before(key), entry(model.range(..key).next_back()));
                    }
                }
                let entry = |found: Option<(&u16, &i64)>| found.map(|(key, value)| (*key, *value as u32));
                prop_assert_eq!(index.first(), entry(model.first_key_value()));
                prop_assert_eq!(index.last(), entry(model.last_key_value()));
                prop_assert_eq!(index.is_empty(), model.is_empty());
            }
            index.rewrite(|key, _| of(i64::from(key)));
            let all = model.keys().fold(Prefix::EMPTY, |sum, key| sum.then(of(i64::from(*key))));
            prop_assert_eq!(index.fold(None, None), all);
        }
    }

    #[test]
    fn steady_state_reuses_its_nodes() {
        let mut index = Index::<u32>::new();
        for key in 0..100_000 {
            index.insert(key, 0, ());
            if key >= 100 {
                index.remove(key - 100);
            }
        }
        assert!(index.nodes.len() < 24, "{}", index.nodes.len());
    }
}
