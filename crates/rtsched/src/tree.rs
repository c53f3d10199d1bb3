//! A B+-tree of numbers, whose entries carry a summary of any range of them.
//!
//! **For:** what an [`Index`](crate::index::Index) does, whatever its keys are: one machine code for all orders, because
//! the processor's cache for code is small. **Excludes:** what keys, slots and summaries mean. **State:** a B+-tree in an
//! arena. **Invariants:** entries in ascending order of unique keys; every inner entry holds the product of its subtree's
//! summaries; freed nodes are used again before the arena grows, so steady state allocates nothing.
//!
//! Nodes are merged only when that leaves them room, and may be as small as one entry: a queue that is filled behind
//! and emptied in front then touches each node's neighbours never.

pub(crate) use crate::node::{Entry, Summary};
use crate::node::{FANOUT, NIL, Node, VACANT};
use alloc::vec::Vec;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Tree<S> {
    nodes: Vec<Node<S>>,
    free: Vec<u32>,
    root: u32,
    /// Levels above the leaves.
    height: u32,
    /// The first entry and the last one, which are asked for most.
    ends: Option<(Entry, Entry)>,
    /// The inner nodes on the way to a leaf, from the root on, and which of their children is next; kept for its memory.
    path: Vec<(u32, u32)>,
}

impl<S: Summary> Tree<S> {
    /// Nothing is summed up, so that a change concerns no node above unless nodes come or go.
    const IS_PLAIN: bool = size_of::<S>() == 0;

    pub(crate) const fn new() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), root: NIL, height: 0, ends: None, path: Vec::new() }
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
            let index = node.child(key);
            if index == 0 && key < node.key(0) {
                node.set_key(0, key);
            }
            self.path.push((at, index as u32));
            at = node.links[index];
        }
        at
    }

    /// Adds an entry. Keys are unique, and none is the greatest there can be.
    pub(crate) fn insert(&mut self, key: u128, slot: u32, own: S) {
        let entry = (key, slot);
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
                let (key, sum) = (self.node(right).key(0), self.node(right).sum());
                self.add(at, index as usize + 1, key, right, sum)
            });
            child = at;
        }
        if let Some(right) = split {
            let left = self.root;
            let mut root = Node::of(self.node(left).key(0), left, self.node(left).sum());
            root.insert(1, self.node(right).key(0), right, self.node(right).sum());
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
            // Appending fills nodes.
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
    pub(crate) fn remove(&mut self, key: u128) -> Option<u32> {
        let (first, last) = self.ends?;
        let leaf = self.descend(key);
        let node = &mut self.nodes[leaf as usize];
        let rank = node.rank(key);
        if node.key(rank) != key {
            return None;
        }
        let slot = node.links[rank];
        node.remove(rank, 1);
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

    /// Removes the entries in front of the first that is not `gone`. Says how many.
    pub(crate) fn remove_leading(&mut self, gone: impl Fn(Entry) -> bool) -> usize {
        let mut removed = 0;
        while let Some((first, last)) = self.ends
            && gone(first)
        {
            let mut leaf = self.root;
            self.path.clear();
            for _ in 0..self.height {
                self.path.push((leaf, 0));
                leaf = self.node(leaf).links[0];
            }
            let node = &mut self.nodes[leaf as usize];
            let count = 1 + (1..node.len()).take_while(|at| gone(node.entry(*at))).count();
            node.remove(0, count);
            removed += count;
            let next = (node.len() > 0).then(|| node.first());
            self.mend(leaf);
            self.ends = (self.root != NIL)
                .then(|| (next.unwrap_or_else(|| self.first_below(self.root, self.height)), last));
        }
        removed
    }

    /// Makes everything on the path right again, and the root, after an entry of `child` was removed.
    fn mend(&mut self, mut child: u32) {
        while let Some((at, index)) = self.path.pop() {
            let len = self.node(child).len();
            if len == 0 {
                self.free.push(child);
                self.nodes[at as usize].remove(index as usize, 1);
            } else {
                let sum = self.node(child).sum();
                self.nodes[at as usize].sums[index as usize] = sum;
                // What is emptied in front is empty soon, and is not made one with others before.
                if len < FANOUT / 4 && index > 0 {
                    self.merge(at, index as usize);
                    self.merge(at, index as usize - 1);
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
        parent.remove(left_index + 1, 1);
    }

    /// The first entry.
    pub(crate) fn first(&self) -> Option<Entry> {
        self.ends.map(|(first, _)| first)
    }

    /// The last entry.
    pub(crate) fn last(&self) -> Option<Entry> {
        self.ends.map(|(_, last)| last)
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

    /// The last entry before `key`, and the first one at or behind it.
    pub(crate) fn around(&self, key: u128) -> (Option<Entry>, Option<Entry>) {
        let mut at = self.root;
        if at == NIL {
            return (None, None);
        }
        for _ in 0..self.height {
            let node = self.node(at);
            at = node.links[node.child(key)];
        }
        let node = self.node(at);
        let rank = node.rank(key);
        // Mostly both are in one leaf.
        let before = if rank > 0 { Some(node.entry(rank - 1)) } else { self.before_leaf(key) };
        let next = if rank < node.len() { Some(node.entry(rank)) } else { self.behind_leaf(key) };
        (before, next)
    }

    /// The last entry before the leaf that has `key`, or would.
    fn before_leaf(&self, key: u128) -> Option<Entry> {
        let (mut at, mut before) = (self.root, None);
        for height in (0..self.height).rev() {
            let node = self.node(at);
            let index = node.child(key);
            before = index.checked_sub(1).map(|index| (node.links[index], height)).or(before);
            at = node.links[index];
        }
        before.map(|(at, height)| self.last_below(at, height))
    }

    /// The first entry behind the leaf that has `key`, or would.
    fn behind_leaf(&self, key: u128) -> Option<Entry> {
        let (mut at, mut behind) = (self.root, None);
        for height in (0..self.height).rev() {
            let node = self.node(at);
            let index = node.child(key);
            behind = node.links[..node.len()].get(index + 1).map(|link| (*link, height)).or(behind);
            at = node.links[index];
        }
        behind.map(|(at, height)| self.first_below(at, height))
    }

    /// The summary of all entries.
    pub(crate) fn total(&self) -> S {
        if self.root == NIL { S::EMPTY } else { self.node(self.root).sum() }
    }

    /// The summary of the entries before `end`, or of fewer if that is `enough`: what is far behind is not looked at then.
    pub(crate) fn fold_until(&self, end: u128, enough: impl Fn(&S) -> bool) -> S {
        match self.ends {
            Some((first, _)) if end <= first.0 => S::EMPTY,
            Some((_, last)) if last.0 < end => self.total(),
            Some(_) => self.fold_below_to(self.root, self.height, end, enough),
            None => S::EMPTY,
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
            sum = node.sum_of(partly + 1..node.len()).then(sum);
            at = node.links[partly];
        }
        let node = self.node(at);
        node.sum_of(node.rank(start)..node.len()).then(sum)
    }

    /// The summary of the entries of `start <= key < end`.
    pub(crate) fn fold_between(&self, start: u128, end: u128) -> S {
        let mut at = self.root;
        if at == NIL || end <= start {
            return S::EMPTY;
        }
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

    /// The summaries of the entries before `key`, and of the others: on one way down.
    pub(crate) fn split(&self, key: u128) -> (S, S) {
        let Some((first, last)) = self.ends else { return (S::EMPTY, S::EMPTY) };
        if key <= first.0 {
            return (S::EMPTY, self.total());
        }
        if key > last.0 {
            return (self.total(), S::EMPTY);
        }
        let (mut at, mut before, mut after) = (self.root, S::EMPTY, S::EMPTY);
        for _ in 0..self.height {
            let node = self.node(at);
            let partly = node.child(key);
            before = before.then(node.sum_of(..partly));
            after = node.sum_of(partly + 1..node.len()).then(after);
            at = node.links[partly];
        }
        let node = self.node(at);
        let rank = node.rank(key);
        (before.then(node.sum_of(..rank)), node.sum_of(rank..node.len()).then(after))
    }

    /// The first entry that `wanted` says of it; it must say so of a range if and only if it does of an entry in it.
    pub(crate) fn find(&self, wanted: impl Fn(&S) -> bool) -> Option<Entry> {
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
        Some(node.entry(index))
    }

    /// Gives every entry a new summary. O(n).
    pub(crate) fn rewrite(&mut self, own: impl Fn(u128, u32) -> S) {
        if self.root != NIL {
            self.rewrite_below(self.root, self.height, &own);
        }
    }

    fn rewrite_below(&mut self, at: u32, height: u32, own: &impl Fn(u128, u32) -> S) {
        for index in 0..self.node(at).len() {
            let (key, link) = self.node(at).entry(index);
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

    #[test]
    fn steady_state_reuses_its_nodes() {
        let mut index = Tree::<()>::new();
        for key in 0..100_000_u128 {
            index.insert(key, 0, ());
            if key >= 100 {
                index.remove(key - 100);
            }
        }
        assert!(index.nodes.len() < 24, "{}", index.nodes.len());
    }
}
