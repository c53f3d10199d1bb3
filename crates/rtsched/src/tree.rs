//! The deadline order of the real-time requests, with the slack of every prefix at hand.
//!
//! **For:** "if something that takes `c` went first now, would every deadline before this one still hold?" in
//! O(log n). **Excludes:** what a request is, and policy. **State:** an arena of nodes; steady state allocates
//! nothing. **Invariants:** in order of (deadline, sequence number) for a search, in order of a pseudo-random
//! priority for balance (a treap: Seidel and Aragon, *Randomized Search Trees*, 1996); every node knows the
//! summed cost of its subtree and the least margin in it. The priorities are a hash of the sequence number, so
//! the shape is the same in every run.

use alloc::vec::Vec;
use units::Instant;

/// Position in the order: deadline, then arrival.
pub(crate) type Key = (Instant, u64);

const NIL: u32 = u32::MAX;

/// Deadlines beyond this (73 years) count as this, which keeps all sums within an `i64`.
const HORIZON_NANOS: u64 = 1 << 61;

/// What part of the time until a deadline may be planned with: 1000 less what is held back for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usable(u64);

impl Usable {
    /// Holds back `permille` of the time, at most all of it.
    pub(crate) fn holding_back(permille: u32) -> Self {
        Self(1000 - u64::from(permille.min(1000)))
    }

    /// The usable nanoseconds from the origin to a deadline: rounded down, so that no promise is rounded up.
    fn until(self, deadline: Instant) -> i64 {
        let nanos = u128::from(deadline.as_nanos().min(HORIZON_NANOS));
        (nanos * u128::from(self.0) / 1000) as i64
    }

    /// The usable nanoseconds from the origin that are over at `now`: rounded up.
    fn spent(self, now: Instant) -> i64 {
        let nanos = u128::from(now.as_nanos().min(HORIZON_NANOS));
        (nanos * u128::from(self.0)).div_ceil(1000) as i64
    }
}

/// What is known of requests that are still to come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    /// They come from this instant on...
    pub(crate) since: Instant,
    /// ...and none is due before this one.
    pub(crate) horizon: Instant,
    /// Nanoseconds that they may demand of any time beyond the share of it that is held back for them.
    pub(crate) burst: i64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    key: Key,
    slot: u32,
    cost: i64,
    priority: u64,
    left: u32,
    right: u32,
    /// Cost of the whole subtree, nanoseconds.
    sum: i64,
    /// Least, over the subtree's entries i, of the time usable until d_i less the cost of the subtree's entries
    /// up to and with i: for the entries before the horizon, and for those behind it.
    near: i64,
    far: i64,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct DeadlineTree {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
    near: Usable,
    far: Usable,
}

impl DeadlineTree {
    pub(crate) fn new(near: Usable, far: Usable) -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), root: NIL, near, far }
    }

    /// The entry with the earliest deadline.
    pub(crate) fn first(&self) -> Option<(Key, u32)> {
        let mut found = None;
        let mut at = self.root;
        while at != NIL {
            let node = &self.nodes[at as usize];
            found = Some((node.key, node.slot));
            at = node.left;
        }
        found
    }

    /// The entry with the latest deadline.
    pub(crate) fn last(&self) -> Option<Key> {
        let mut found = None;
        let mut at = self.root;
        while at != NIL {
            let node = &self.nodes[at as usize];
            found = Some(node.key);
            at = node.right;
        }
        found
    }

    /// Adds an entry that takes `cost` nanoseconds. Keys are unique.
    pub(crate) fn insert(&mut self, key: Key, slot: u32, cost: u64) {
        let cost = i64::try_from(cost).unwrap_or(i64::MAX).min(1 << 40);
        let node = Node {
            key,
            slot,
            cost,
            priority: scatter(key.1),
            left: NIL,
            right: NIL,
            sum: 0,
            near: 0,
            far: 0,
        };
        let new = match self.free.pop() {
            Some(index) => {
                self.nodes[index as usize] = node;
                index
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.summarise(new);
        let (before, after) = self.split(self.root, key);
        let before = self.join(before, new);
        self.root = self.join(before, after);
    }

    /// Removes an entry. Its absence is a defect of the caller and changes nothing.
    pub(crate) fn remove(&mut self, key: Key) {
        let (before, rest) = self.split(self.root, key);
        let (this, after) = self.split(rest, (key.0, key.1 + 1));
        debug_assert_ne!(this, NIL, "removed an entry that is not there");
        if this != NIL {
            self.free.push(this);
        }
        self.root = self.join(before, after);
    }

    /// S(t) = min_i [(d_i − t)·u − Σ_{d_j ≤ d_i} C_j] over the entries before `end` (over all, without one), in
    /// nanoseconds: how long something else may hold the device from t = `start` on. Negative when a deadline is
    /// lost whatever is done; `i64::MAX` when there is no entry to care for. For u see [`Usable`].
    ///
    /// Requests that are still `expected` count as soon as `end` lies behind the horizon: in the deadlines behind
    /// it, and in the time until the first of them may be due, which is the tightest.
    pub(crate) fn slack(&self, end: Option<Key>, start: Instant, expected: Option<&Expected>) -> i64 {
        let Some(expected) = expected.filter(|expected| end.is_none_or(|(end, _)| end >= expected.horizon))
        else {
            let near = self.least(self.root, None, end, 0, |node| node.near, self.near);
            return near.map_or(i64::MAX, |least| least - self.near.spent(start));
        };
        if self.root == NIL {
            return i64::MAX;
        }
        let split = (expected.horizon, 0);
        let near = self.least(self.root, None, Some(split), 0, |node| node.near, self.near);
        let near = near.map_or(i64::MAX, |least| least - self.near.spent(start));
        // What is expected may come from `since` on, not only from `start` on.
        let busy = self.near.spent(start) - self.near.until(expected.since);
        let spent = self.far.spent(expected.since) + busy + expected.burst;
        let far = self.least(self.root, Some(split), end, 0, |node| node.far, self.far);
        let first = self.far.until(expected.horizon) - self.sum_before(split);
        near.min(far.unwrap_or(i64::MAX).min(first) - spent)
    }

    /// Cost of all entries before `key`, nanoseconds.
    fn sum_before(&self, key: Key) -> i64 {
        let (mut at, mut sum) = (self.root, 0);
        while at != NIL {
            let node = &self.nodes[at as usize];
            if node.key < key {
                sum += self.sum(node.left) + node.cost;
                at = node.right;
            } else {
                at = node.left;
            }
        }
        sum
    }

    /// Least margin among the entries of `low <= key < high`, below `at`, where `before` nanoseconds of cost lie
    /// ahead of the subtree. `None` bounds are those the subtree is known to keep: a subtree within both is
    /// answered from its summary, so at most two paths are walked.
    fn least(
        &self,
        at: u32,
        low: Option<Key>,
        high: Option<Key>,
        before: i64,
        summary: fn(&Node) -> i64,
        usable: Usable,
    ) -> Option<i64> {
        if at == NIL {
            return None;
        }
        let node = &self.nodes[at as usize];
        if low.is_none() && high.is_none() {
            return Some(summary(node) - before);
        }
        let through = before + self.sum(node.left) + node.cost;
        if low.is_some_and(|low| node.key < low) {
            return self.least(node.right, low, high, through, summary, usable);
        }
        if high.is_some_and(|high| node.key >= high) {
            return self.least(node.left, low, high, before, summary, usable);
        }
        let own = usable.until(node.key.0) - through;
        let left = self.least(node.left, low, None, before, summary, usable);
        let right = self.least(node.right, None, high, through, summary, usable);
        Some(own.min(left.unwrap_or(i64::MAX)).min(right.unwrap_or(i64::MAX)))
    }

    /// Gives every entry a new cost and the tree new shares, in O(n): for the rare moment at which the service
    /// model or the reservations changed.
    pub(crate) fn revise(&mut self, near: Usable, far: Usable, cost: impl Fn(u32) -> u64) {
        self.near = near;
        self.far = far;
        self.revise_below(self.root, &cost);
    }

    fn revise_below(&mut self, at: u32, cost: &impl Fn(u32) -> u64) {
        if at == NIL {
            return;
        }
        let Node { left, right, slot, .. } = self.nodes[at as usize];
        self.revise_below(left, cost);
        self.revise_below(right, cost);
        self.nodes[at as usize].cost = i64::try_from(cost(slot)).unwrap_or(i64::MAX).min(1 << 40);
        self.summarise(at);
    }

    fn sum(&self, at: u32) -> i64 {
        if at == NIL { 0 } else { self.nodes[at as usize].sum }
    }

    fn summarise(&mut self, at: u32) {
        let node = self.nodes[at as usize];
        let through = self.sum(node.left) + node.cost;
        let least = |summary: fn(&Node) -> i64, usable: Usable| {
            let mut least = usable.until(node.key.0) - through;
            if node.left != NIL {
                least = least.min(summary(&self.nodes[node.left as usize]));
            }
            if node.right != NIL {
                least = least.min(summary(&self.nodes[node.right as usize]) - through);
            }
            least
        };
        let (near, far) = (least(|node| node.near, self.near), least(|node| node.far, self.far));
        let sum = through + self.sum(node.right);
        let node = &mut self.nodes[at as usize];
        (node.sum, node.near, node.far) = (sum, near, far);
    }

    /// Parts a subtree into the entries before `key` and the others.
    fn split(&mut self, at: u32, key: Key) -> (u32, u32) {
        if at == NIL {
            return (NIL, NIL);
        }
        let node = self.nodes[at as usize];
        if node.key < key {
            let (middle, after) = self.split(node.right, key);
            self.nodes[at as usize].right = middle;
            self.summarise(at);
            (at, after)
        } else {
            let (before, middle) = self.split(node.left, key);
            self.nodes[at as usize].left = middle;
            self.summarise(at);
            (before, at)
        }
    }

    /// Makes one subtree of two, all of `a` before all of `b`.
    fn join(&mut self, a: u32, b: u32) -> u32 {
        if a == NIL {
            return b;
        }
        if b == NIL {
            return a;
        }
        if self.nodes[a as usize].priority > self.nodes[b as usize].priority {
            let right = self.nodes[a as usize].right;
            self.nodes[a as usize].right = self.join(right, b);
            self.summarise(a);
            a
        } else {
            let left = self.nodes[b as usize].left;
            self.nodes[b as usize].left = self.join(a, left);
            self.summarise(b);
            b
        }
    }
}

/// SplitMix64's finaliser (Steele, Lea and Flood, 2014): consecutive numbers become unrelated ones.
fn scatter(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// S(t) by its definition.
    fn slack_by_definition(
        entries: &[(Key, u64)],
        (near, far): (Usable, Usable),
        end: Option<Key>,
        start: Instant,
        expected: Option<Expected>,
    ) -> i64 {
        let expected = expected.filter(|expected| end.is_none_or(|(end, _)| end >= expected.horizon));
        if entries.is_empty() {
            return i64::MAX;
        }
        let far_spent = |expected: Expected| {
            far.spent(expected.since) + near.spent(start) - near.until(expected.since) + expected.burst
        };
        let mut entries = entries.to_vec();
        entries.sort();
        let (mut sum, mut near_sum) = (0, 0);
        let mut slack = i64::MAX;
        for (key, cost) in entries {
            sum += cost as i64;
            let expected = expected.filter(|expected| key.0 >= expected.horizon);
            if expected.is_none() {
                near_sum = sum;
            }
            if end.is_none_or(|end| key < end) {
                slack = slack.min(match expected {
                    None => near.until(key.0) - near.spent(start) - sum,
                    Some(expected) => far.until(key.0) - far_spent(expected) - sum,
                });
            }
        }
        match expected {
            None => slack,
            Some(expected) => slack.min(far.until(expected.horizon) - near_sum - far_spent(expected)),
        }
    }

    proptest! {
        #[test]
        fn slack_is_what_its_definition_says(
            entries in prop::collection::vec((0u64..1000, 1u64..50), 0..80),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
            held in (0u32..500, 500u32..1000),
            since in 0u64..300,
            busy in 0u64..100,
            horizon in prop::option::of((0u64..1200, 0i64..100)),
            end in prop::option::of((0u64..1000, 0u64..80)),
        ) {
            let usable = (Usable::holding_back(held.0), Usable::holding_back(held.1));
            let mut tree = DeadlineTree::new(usable.0, usable.1);
            let mut model = Vec::new();
            for (sequence, (deadline, cost)) in entries.into_iter().enumerate() {
                let key = (Instant::from_nanos(deadline), sequence as u64);
                tree.insert(key, sequence as u32, cost);
                model.push((key, cost));
            }
            for index in removed {
                if !model.is_empty() {
                    let (key, _) = model.swap_remove(index.index(model.len()));
                    tree.remove(key);
                }
            }
            let first = model.iter().map(|(key, _)| *key).min();
            prop_assert_eq!(tree.first().map(|(key, _)| key), first);
            prop_assert_eq!(tree.last(), model.iter().map(|(key, _)| *key).max());
            let start = Instant::from_nanos(since + busy);
            let expected = horizon.map(|(horizon, burst)| Expected {
                since: Instant::from_nanos(since),
                horizon: Instant::from_nanos(since + horizon),
                burst,
            });
            let end = end.map(|(deadline, sequence)| (Instant::from_nanos(deadline), sequence));
            let slack = slack_by_definition(&model, usable, end, start, expected);
            prop_assert_eq!(tree.slack(end, start, expected.as_ref()), slack);
            // After a revision, too.
            tree.revise(usable.1, usable.0, |slot| u64::from(slot) + 1);
            for (key, cost) in &mut model {
                *cost = key.1 + 1;
            }
            let slack = slack_by_definition(&model, (usable.1, usable.0), end, start, expected);
            prop_assert_eq!(tree.slack(end, start, expected.as_ref()), slack);
        }
    }

    #[test]
    fn steady_state_reuses_its_nodes() {
        let all = Usable::holding_back(0);
        let mut tree = DeadlineTree::new(all, all);
        for sequence in 0..1000 {
            tree.insert((Instant::from_nanos(sequence), sequence), 0, 1);
            if sequence >= 8 {
                tree.remove((Instant::from_nanos(sequence - 8), sequence - 8));
            }
        }
        assert!(tree.nodes.len() <= 9);
    }
}
