//! A node of a [`Tree`](crate::tree::Tree): a few entries in ascending order.
//!
//! **For:** finding a place in it, and what its entries amount to, with few guesses and few cache lines. **Excludes:** other
//! nodes. **State:** keys, links, summaries. **Invariants:** behind its entries, keys are vacant and summaries empty.

use core::ops::Range;

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

/// A key and its link.
pub(crate) type Entry = (u128, u32);

/// No node. Representation.
pub(crate) const NIL: u32 = u32::MAX;

/// Keys of a node. Representation.
const KEYS: usize = 16;
/// Entries of a node: one less, so that a [`VACANT`] key always follows the last of them. Representation.
pub(crate) const FANOUT: usize = KEYS - 1;
/// Greater than every key. Representation.
pub(crate) const VACANT: u128 = u128::MAX;

const fn halves(key: u128) -> (u64, u64) {
    ((key >> 64) as u64, key as u64)
}

/// A leaf's links are slots, an inner node's are nodes; an inner node's key is at most the least in its subtree. To
/// find a place, mostly the keys' first halves are enough: with links and length they are three cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Node<S> {
    /// The first halves of the keys. Those behind the entries are [`VACANT`], so that a search need not know how many there
    /// are.
    high: [u64; KEYS],
    pub(crate) links: [u32; FANOUT],
    len: u32,
    /// Their other halves.
    low: [u64; KEYS],
    /// Those behind the entries are empty, so that a sum need not know it either.
    pub(crate) sums: [S; FANOUT],
}

impl<S: Summary> Node<S> {
    pub(crate) const NEW: Self = Self {
        high: [halves(VACANT).0; KEYS],
        links: [NIL; FANOUT],
        len: 0,
        low: [halves(VACANT).1; KEYS],
        sums: [S::EMPTY; FANOUT],
    };

    pub(crate) fn of(key: u128, link: u32, sum: S) -> Self {
        let mut node = Self::NEW;
        node.set_key(0, key);
        (node.links[0], node.sums[0], node.len) = (link, sum, 1);
        node
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) fn key(&self, at: usize) -> u128 {
        u128::from(self.high[at]) << 64 | u128::from(self.low[at])
    }

    pub(crate) fn set_key(&mut self, at: usize, key: u128) {
        (self.high[at], self.low[at]) = halves(key);
    }

    /// The number of leading entries whose key is `low`: first of quarters, then in the next one. Both are counted and
    /// not searched, because no predictor knows which way a search turns, and no caller asks how many entries there
    /// are.
    fn count(&self, low: impl Fn(u64) -> bool) -> usize {
        /// Keys are counted in parts of so many. Representation.
        const PART: usize = 4;
        let (parts, _) = self.high.as_chunks::<PART>();
        let count = |keys: &[u64]| keys.iter().map(|key| usize::from(low(*key))).sum::<usize>();
        let whole = count(&[parts[0][PART - 1], parts[1][PART - 1], parts[2][PART - 1]]);
        whole * PART + count(&parts[whole])
    }

    /// The number of entries before `key`.
    pub(crate) fn rank(&self, key: u128) -> usize {
        let (high, low) = halves(key);
        let mut rank = self.count(|other| other < high);
        while self.high[rank] == high && self.low[rank] < low {
            rank += 1;
        }
        rank
    }

    /// The only child that may have `key`.
    pub(crate) fn child(&self, key: u128) -> usize {
        let (high, low) = halves(key);
        let mut behind = self.count(|other| other < high);
        while self.high[behind] == high && self.low[behind] <= low {
            behind += 1;
        }
        // It never is beyond the last; to ask has the length and the links fetched together with the keys.
        behind.saturating_sub(1).min(self.len() - 1)
    }

    pub(crate) fn insert(&mut self, at: usize, key: u128, link: u32, sum: S) {
        for from in (at..self.len().min(FANOUT - 1)).rev() {
            self.copy(from, from + 1);
        }
        self.set_key(at, key);
        (self.links[at], self.sums[at]) = (link, sum);
        self.len += 1;
    }

    /// All parts of an entry in one loop: moving one part after the other guesses wrong how many there are for each of them.
    fn copy(&mut self, from: usize, to: usize) {
        self.high[to] = self.high[from];
        self.low[to] = self.low[from];
        self.links[to] = self.links[from];
        self.sums[to] = self.sums[from];
    }

    pub(crate) fn remove(&mut self, at: usize, count: usize) {
        let len = self.len().min(FANOUT);
        for from in at + count..len {
            self.copy(from, from - count);
        }
        self.vacate(len - count..len);
        self.len -= count as u32;
    }

    /// Moves the entries from `at` on behind those of `other`.
    pub(crate) fn move_to(&mut self, at: usize, other: &mut Self) {
        let (end, to) = (self.len(), other.len());
        let count = end - at;
        other.high[to..to + count].copy_from_slice(&self.high[at..end]);
        other.low[to..to + count].copy_from_slice(&self.low[at..end]);
        other.links[to..to + count].copy_from_slice(&self.links[at..end]);
        other.sums[to..to + count].copy_from_slice(&self.sums[at..end]);
        self.vacate(at..end);
        other.len += count as u32;
        self.len = at as u32;
    }

    fn vacate(&mut self, range: Range<usize>) {
        self.high[range.clone()].fill(halves(VACANT).0);
        self.low[range.clone()].fill(halves(VACANT).1);
        self.sums[range].fill(S::EMPTY);
    }

    pub(crate) fn entry(&self, at: usize) -> Entry {
        (self.key(at), self.links[at])
    }

    pub(crate) fn first(&self) -> Entry {
        self.entry(0)
    }

    pub(crate) fn last(&self) -> Entry {
        self.entry(self.len() - 1)
    }

    /// Of the entries in a range.
    pub(crate) fn sum_of(&self, range: impl core::slice::SliceIndex<[S], Output = [S]>) -> S {
        self.sums[range].iter().fold(S::EMPTY, |sum, next| sum.then(*next))
    }

    pub(crate) fn sum(&self) -> S {
        self.sum_of(..)
    }
}
