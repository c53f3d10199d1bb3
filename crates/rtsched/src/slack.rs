//! How long may something else go first?
//!
//! **For:** "if something that takes `c` went first now, would every deadline before this one still hold?" in
//! O(log n), with the requests that wait and those that admitted streams may still make. **Excludes:** what a request
//! is, and policy. **State:** the deadline order. **Invariants:** an answer is never too large: sums are rounded so
//! that no promise gains by it.

use crate::index::{Index, Summary};
use units::Instant;

/// Position in the order: deadline, then arrival.
pub(crate) type Key = (Instant, u64);

/// Deadlines beyond this (73 years) count as this, which keeps all sums within an `i64`. Representation.
const HORIZON_NANOS: u64 = 1 << 61;
/// No entry costs more (18 minutes), for the same reason. Representation.
const COST_MAX: u64 = 1 << 40;

/// What part of the time until a deadline may be planned with, in parts of 2^20: all but what is held back for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usable(u64);

impl Usable {
    /// Usable time is in parts of two to this power. Representation.
    const SHIFT: u32 = 20;

    /// Holds back this many millionths of the time, at most all of it.
    pub(crate) fn holding_back(millionths: u64) -> Self {
        let held = (millionths.min(1_000_000) << Self::SHIFT).div_ceil(1_000_000);
        Self((1 << Self::SHIFT) - held)
    }

    /// The usable nanoseconds from the origin to a deadline: rounded down, so that no promise is rounded up.
    pub(crate) fn until(self, deadline: Instant) -> i64 {
        let nanos = u128::from(deadline.as_nanos().min(HORIZON_NANOS));
        ((nanos * u128::from(self.0)) >> Self::SHIFT) as i64
    }

    /// The usable nanoseconds from the origin that are over at `now`: rounded up.
    pub(crate) fn spent(self, now: Instant) -> i64 {
        let nanos = u128::from(now.as_nanos().min(HORIZON_NANOS));
        ((nanos * u128::from(self.0) + ((1 << Self::SHIFT) - 1)) >> Self::SHIFT) as i64
    }
}

/// What is known of requests that are still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// None of them is due before this.
    pub(crate) horizon: Instant,
    /// Nanoseconds that those due then may take at most. After it, they take no more than the share of the time that
    /// is held back for them.
    pub(crate) demand: i64,
}

/// Of some neighbours in the deadline order.
#[derive(Clone, Copy, Debug)]
struct Margin {
    /// Nanoseconds they take.
    sum: i64,
    /// Least, over the entries i, of the time usable until d_i less what the entries up to and with i take: for those
    /// before the horizon, and for those behind it.
    near: i64,
    far: i64,
}

impl Summary for Margin {
    const EMPTY: Self = Self { sum: 0, near: i64::MAX, far: i64::MAX };

    fn then(self, later: Self) -> Self {
        Self {
            sum: self.sum + later.sum,
            near: self.near.min(later.near - self.sum),
            far: self.far.min(later.far - self.sum),
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Deadlines {
    index: Index<Key, Margin>,
    near: Usable,
    far: Usable,
}

impl Deadlines {
    pub(crate) fn new(near: Usable, far: Usable) -> Self {
        Self { index: Index::new(), near, far }
    }

    fn margin(near: Usable, far: Usable, deadline: Instant, cost: u64) -> Margin {
        let sum = cost.min(COST_MAX) as i64;
        Margin { sum, near: near.until(deadline) - sum, far: far.until(deadline) - sum }
    }

    /// The entry with the earliest deadline.
    pub(crate) fn first(&self) -> Option<(Key, u32)> {
        self.index.first()
    }

    /// The entry with the latest deadline.
    pub(crate) fn last(&self) -> Option<Key> {
        self.index.last().map(|(key, _)| key)
    }

    /// Adds an entry that takes `cost` nanoseconds. Keys are unique.
    pub(crate) fn insert(&mut self, key: Key, slot: u32, cost: u64) {
        self.index.insert(key, slot, Self::margin(self.near, self.far, key.0, cost));
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, key: Key) {
        let removed = self.index.remove(key);
        debug_assert!(removed.is_some(), "removed an entry that is not there");
    }

    /// S(t) = min_i [(d_i − t)·u − Σ_{d_j ≤ d_i} C_j] over the entries before `end` (over all, without one), in
    /// nanoseconds: how long something else may hold the device from t = `start` on. Negative when a deadline is
    /// lost whatever is done; `i64::MAX` when there is no entry to care for. For u see [`Usable`].
    ///
    /// Requests that are `expected` count as soon as `end` lies behind their horizon H: S is there at most
    /// (d_i − t)·u − Σ C_j − Φ(H) − U·(d_i − H), with Φ(H) their demand and U their share, and likewise at H itself.
    /// Between deadlines it only grows, because U ≤ u.
    ///
    /// Of less than `enough` it is only said that it is less: then what follows the deadline that shows it is not
    /// looked at.
    pub(crate) fn slack(
        &self,
        end: Option<Key>,
        start: Instant,
        expected: Option<&Expected>,
        enough: i64,
    ) -> i64 {
        if self.index.is_empty() {
            return i64::MAX;
        }
        let spent = self.near.spent(start);
        let after = |margin: i64| if margin == i64::MAX { margin } else { margin - spent };
        let is_too_little = |margin: &Margin| after(margin.near) < enough;
        let Some(expected) = expected.filter(|expected| end.is_none_or(|(end, _)| end >= expected.horizon))
        else {
            let margin =
                end.map_or_else(|| self.index.total(), |end| self.index.fold_until(end, is_too_little));
            return after(margin.near);
        };
        let split = (expected.horizon, 0);
        let (near, far) = match end {
            None => self.index.split(split),
            Some(end) => {
                let near = self.index.fold_until(split, is_too_little);
                if is_too_little(&near) {
                    return after(near.near);
                }
                (near, self.index.fold_between(split, end))
            }
        };
        let first = self.near.until(expected.horizon) - near.sum - expected.demand;
        let held_back = self.near.until(expected.horizon) - self.far.spent(expected.horizon);
        let far = far.far.saturating_sub(near.sum).saturating_add(held_back - expected.demand);
        after(near.near.min(first).min(far))
    }

    /// Never more than what all entries leave, see [`slack`](Self::slack), and at hand. Without anything `expected` it is
    /// that. Else each entry counts as one before the horizon and as one behind it; and what those before it take is no
    /// more than the time until the last of them, less what that one leaves.
    pub(crate) fn slack_at_least(&self, start: Instant, expected: Option<&Expected>) -> i64 {
        let Margin { near, far, .. } = self.index.total();
        if near == i64::MAX {
            return near;
        }
        let least = expected.map_or(near, |Expected { horizon, demand }| {
            let until = self.near.until(*horizon);
            let far = far + (until - self.far.spent(*horizon));
            near.min(near.min(until).min(far) - demand)
        });
        least - self.near.spent(start)
    }

    /// Gives every entry a new cost and the order new shares, in O(n): for the rare moment at which the service
    /// model or the reservations changed.
    pub(crate) fn revise(&mut self, near: Usable, far: Usable, cost: impl Fn(u32) -> u64) {
        (self.near, self.far) = (near, far);
        self.index.rewrite(|key, slot| Self::margin(near, far, key.0, cost(slot)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
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
                    Some(Expected { horizon, demand }) => {
                        let share = i128::from(near.until(horizon) - far.spent(horizon));
                        let of_others = near.until(key.0) - far.until(key.0);
                        let later = i64::try_from(i128::from(of_others) - share).unwrap();
                        near.until(key.0) - near.spent(start) - sum - demand - later
                    }
                });
            }
        }
        match expected {
            None => slack,
            Some(expected) => {
                slack.min(near.until(expected.horizon) - near.spent(start) - near_sum - expected.demand)
            }
        }
    }

    proptest! {
        #[test]
        fn slack_is_what_its_definition_says(
            entries in prop::collection::vec((0u64..1000, 1u64..50), 0..80),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
            held in (0u64..500_000, 500_000u64..1_000_000),
            start in 0u64..400,
            horizon in prop::option::of((0u64..1200, 0i64..100)),
            end in prop::option::of((0u64..1000, 0u64..80)),
        ) {
            let usable = (Usable::holding_back(held.0), Usable::holding_back(held.1));
            let mut tree = Deadlines::new(usable.0, usable.1);
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
            let start = Instant::from_nanos(start);
            let expected =
                horizon.map(|(horizon, demand)| Expected { horizon: Instant::from_nanos(horizon), demand });
            let end = end.map(|(deadline, sequence)| (Instant::from_nanos(deadline), sequence));
            let slack = slack_by_definition(&model, usable, end, start, expected);
            prop_assert_eq!(tree.slack(end, start, expected.as_ref(), i64::MIN), slack);
            for enough in [slack.saturating_sub(1), slack, slack.saturating_add(1)] {
                let known = tree.slack(end, start, expected.as_ref(), enough);
                prop_assert!(known == slack || (known < enough && slack < enough));
            }
            let of_all = slack_by_definition(&model, usable, None, start, expected);
            prop_assert!(tree.slack_at_least(start, expected.as_ref()) <= of_all);
            prop_assert_eq!(tree.slack_at_least(start, None), tree.slack(None, start, None, i64::MIN));
            // After a revision, too.
            let usable = (Usable::holding_back(held.0 / 2), Usable::holding_back(held.1));
            tree.revise(usable.0, usable.1, |slot| u64::from(slot) + 1);
            for (key, cost) in &mut model {
                *cost = key.1 + 1;
            }
            let slack = slack_by_definition(&model, usable, end, start, expected);
            prop_assert_eq!(tree.slack(end, start, expected.as_ref(), i64::MIN), slack);
            for enough in [slack.saturating_sub(1), slack, slack.saturating_add(1)] {
                let known = tree.slack(end, start, expected.as_ref(), enough);
                prop_assert!(known == slack || (known < enough && slack < enough));
            }
        }
    }
}
