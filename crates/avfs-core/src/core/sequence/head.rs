//! Where one client is in a sequence: in which direction it goes, in which steps, and what is in memory for it.
//!
//! **State:** one [`Head`] for each client of a sequence. **Invariants:** a function of the calls; bounded memory.
//!
//! A client may have several frames open at once, so no frame is judged by its order alone: the direction is that of the
//! mean over eight frames, the step is what lies between most of them.

use crate::core::cache::BlockId;
use crate::core::pattern::{Allowance, Beat, Pace, Way};
use smallvec::SmallVec;
use std::collections::VecDeque;
use units::{Bytes, Duration, Instant};

/// Frames by which direction and step are told.
const WINDOW: usize = 8;
/// A frame this many numbers from where a client is still belongs to what it does.
const NEAR: u64 = 32;
/// Who takes longer for a frame does not play: 1 frame a second is the slowest that a policy may name.
pub(in crate::core) const SLOWEST: Duration = Duration::from_secs(1);
/// Frames that a client may have open at once: what is behind them is passed.
const AT_ONCE: usize = 8;

/// A frame in memory, or on its way there.
#[derive(Clone, Debug)]
pub(in crate::core) struct Ahead {
    pub(in crate::core) number: u64,
    pub(in crate::core) bytes: u64,
    /// Its blocks, which are kept until it has been passed.
    pub(in crate::core) blocks: SmallVec<[BlockId; 2]>,
    /// By when it was asked for.
    pub(in crate::core) needed: Option<Instant>,
}

#[derive(Clone, Debug)]
pub(in crate::core) struct Head {
    /// Numbers in the order in which they came, at most [`WINDOW`].
    numbers: VecDeque<u64>,
    /// Their lengths.
    lengths: VecDeque<u64>,
    /// Digits of the last one.
    digits: usize,
    way: Way,
    step: u64,
    /// Frames since it began, without the first, each soon after the one before.
    continued: u32,
    pub(in crate::core) last_used: Instant,
    pub(in crate::core) pace: Pace,
    pub(in crate::core) beat: Beat,
    pub(in crate::core) allowance: Allowance,
    /// What it comes to, in that order.
    pub(in crate::core) ahead: VecDeque<Ahead>,
    /// What it is at, oldest first.
    passing: VecDeque<Ahead>,
}

impl Head {
    /// A client that begins with this frame.
    pub(in crate::core) fn new(now: Instant, number: u64, digits: usize, length: u64) -> Self {
        Self {
            numbers: VecDeque::from([number]),
            lengths: VecDeque::from([length]),
            digits,
            way: Way::Forward,
            step: 1,
            continued: 0,
            last_used: now,
            pace: Pace::default(),
            beat: Beat::default(),
            allowance: Allowance::default(),
            ahead: VecDeque::new(),
            passing: VecDeque::new(),
        }
    }

    /// True when a frame may be one of this client's.
    pub(in crate::core) fn is_near(&self, number: u64) -> bool {
        self.distance(number) <= NEAR || self.ahead.iter().any(|frame| frame.number == number)
    }

    pub(in crate::core) fn distance(&self, number: u64) -> u64 {
        self.front().abs_diff(number)
    }

    /// The client has taken a frame. True when it goes elsewhere than before.
    pub(in crate::core) fn note(&mut self, now: Instant, number: u64, digits: usize, length: u64) -> bool {
        let gap = now.saturating_since(self.last_used);
        self.last_used = now;
        if self.numbers.back() == Some(&number) {
            return false;
        }
        if gap > SLOWEST {
            self.continued = 0;
        } else {
            self.continued = self.continued.saturating_add(1);
        }
        if self.numbers.len() == WINDOW {
            self.numbers.pop_front();
            self.lengths.pop_front();
        }
        self.numbers.push_back(number);
        self.lengths.push_back(length);
        self.digits = digits;
        let before = (self.way, self.step);
        self.judge();
        before != (self.way, self.step)
    }

    fn judge(&mut self) {
        let mean = |numbers: &mut dyn Iterator<Item = &u64>| {
            let (sum, count) =
                numbers.fold((0u128, 0u128), |(sum, n), &number| (sum + u128::from(number), n + 1));
            (sum << 8) / count.max(1)
        };
        let half = self.numbers.len() / 2;
        let earlier = mean(&mut self.numbers.iter().take(half));
        let later = mean(&mut self.numbers.iter().skip(self.numbers.len() - half));
        self.way = match later.cmp(&earlier) {
            std::cmp::Ordering::Less => Way::Backward,
            std::cmp::Ordering::Greater => Way::Forward,
            std::cmp::Ordering::Equal => self.way,
        };
        let mut sorted: SmallVec<[u64; WINDOW]> = self.numbers.iter().copied().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut steps: SmallVec<[u64; WINDOW]> = sorted.windows(2).map(|pair| pair[1] - pair[0]).collect();
        steps.sort_unstable();
        // Of what lies between them the median: neither a gap nor a frame left out changes it.
        self.step = steps.get(steps.len().saturating_sub(1) / 2).copied().unwrap_or(self.step).max(1);
    }

    /// The furthest frame it has taken, in its direction.
    pub(in crate::core) fn front(&self) -> u64 {
        let numbers = self.numbers.iter().copied();
        match self.way {
            Way::Forward => numbers.max(),
            Way::Backward => numbers.min(),
        }
        .unwrap_or(0)
    }

    /// Digits with which it goes on.
    pub(in crate::core) fn digits(&self) -> usize {
        self.digits
    }

    /// Frames that followed one another.
    pub(in crate::core) fn continued(&self) -> u32 {
        self.continued
    }

    /// The longest of its last frames.
    pub(in crate::core) fn frame_bytes(&self) -> Bytes {
        Bytes(self.lengths.iter().copied().max().unwrap_or(0))
    }

    /// The numbers that may come behind `from`, the nearest first; frames that are missing are left out by the caller.
    pub(in crate::core) fn behind(&self, from: u64) -> impl Iterator<Item = u64> + use<> {
        let (way, step) = (self.way, self.step);
        std::iter::successors(Some(from), move |&at| match way {
            Way::Forward => at.checked_add(step),
            Way::Backward => at.checked_sub(step),
        })
        .skip(1)
    }

    /// The last frame that is in memory for it, else where it is.
    pub(in crate::core) fn reached(&self) -> u64 {
        self.ahead.back().map_or_else(|| self.front(), |frame| frame.number)
    }

    pub(in crate::core) fn ahead_bytes(&self) -> u64 {
        self.ahead.iter().map(|frame| frame.bytes).sum()
    }

    /// The client is at `number`: what it has passed.
    #[must_use]
    pub(in crate::core) fn pass(&mut self, number: u64) -> Vec<Ahead> {
        if let Some(at) = self.ahead.iter().position(|frame| frame.number == number) {
            self.passing.extend(self.ahead.drain(..=at));
        }
        let passed = self.passing.len().saturating_sub(AT_ONCE);
        self.passing.drain(..passed).collect()
    }

    /// The client has closed a frame.
    #[must_use]
    pub(in crate::core) fn close(&mut self, number: u64) -> Option<Ahead> {
        let at = self.passing.iter().position(|frame| frame.number == number)?;
        self.passing.remove(at)
    }

    /// What it does not come to any more as it goes now.
    #[must_use]
    pub(in crate::core) fn leave_out(&mut self) -> Vec<Ahead> {
        let (front, way, step) = (self.front(), self.way, self.step);
        let is_on_its_way = |frame: &Ahead| {
            let distance = match way {
                Way::Forward => frame.number.checked_sub(front),
                Way::Backward => front.checked_sub(frame.number),
            };
            distance.is_some_and(|distance| distance > 0 && distance % step == 0)
        };
        let (kept, left_out) = self.ahead.drain(..).partition(is_on_its_way);
        self.ahead = kept;
        left_out.into()
    }

    /// All that is in memory for it.
    pub(in crate::core) fn into_frames(self) -> impl Iterator<Item = Ahead> {
        self.passing.into_iter().chain(self.ahead)
    }

    /// All that is in memory for it, to look at.
    pub(in crate::core) fn frames(&self) -> impl Iterator<Item = &Ahead> {
        self.passing.iter().chain(&self.ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom;

    fn after(numbers: &[u64]) -> Head {
        let mut now = Instant::ZERO;
        let mut head = Head::new(now, numbers[0], 6, 1);
        for &number in &numbers[1..] {
            now += Duration::from_millis(40);
            head.note(now, number, 6, 1);
        }
        head
    }

    fn next(head: &Head, count: usize) -> Vec<u64> {
        head.behind(head.front()).take(count).collect()
    }

    #[test]
    fn direction_and_step_are_followed() {
        assert_eq!(next(&after(&[1, 2, 3]), 3), [4, 5, 6]);
        assert_eq!(next(&after(&[9, 8, 7]), 3), [6, 5, 4]);
        assert_eq!(next(&after(&[10, 12, 14]), 3), [16, 18, 20]);
        assert_eq!(next(&after(&[30, 27, 24]), 2), [21, 18]);
        // Frames are missing.
        assert_eq!(next(&after(&[1, 2, 3, 6, 7]), 2), [8, 9]);
        // It turns, and leaves out every second frame from some place on.
        assert_eq!(next(&after(&[1, 2, 3, 4, 5, 6, 7, 8, 7, 6, 5, 4]), 2), [3, 2]);
        assert_eq!(next(&after(&[1, 2, 3, 4, 6, 8, 10, 12]), 2), [14, 16]);
    }

    /// The first and the last number there are.
    #[test]
    fn numbers_end_where_they_end() {
        let last = u64::MAX;
        assert_eq!(next(&after(&[last - 3, last - 2, last - 1]), 5), [last]);
        assert_eq!(next(&after(&[last - 2, last - 1, last]), 5), []);
        assert_eq!(next(&after(&[2, 1]), 5), [0]);
        assert_eq!(next(&after(&[2, 1, 0]), 5), []);
        let head = after(&[0]);
        assert!(head.is_near(NEAR) && !head.is_near(NEAR + 1) && !head.is_near(last));
    }

    /// The boundary pair.
    #[test]
    fn who_takes_more_than_a_second_for_a_frame_does_not_play() {
        let mut head = Head::new(Instant::ZERO, 1, 1, 1);
        head.note(Instant::ZERO + SLOWEST, 2, 1, 1);
        assert_eq!(head.continued(), 1);
        head.note(Instant::ZERO + SLOWEST * 2 + Duration::from_nanos(1), 3, 1, 1);
        assert_eq!(head.continued(), 0);
    }

    #[test]
    fn what_is_passed_is_given_back_when_it_is_closed_or_far_behind() {
        let mut head = after(&[1, 2]);
        let frame = |number| Ahead { number, bytes: 5, blocks: SmallVec::new(), needed: None };
        head.ahead.extend((3..33).map(frame));
        assert_eq!((head.ahead_bytes(), head.reached()), (150, 32));
        assert!(head.pass(4).is_empty(), "3 may still be read");
        assert_eq!(head.close(4).map(|frame| frame.number), Some(4));
        assert!(head.close(4).is_none() && head.close(99).is_none());
        let passed: Vec<_> = head.pass(12).iter().map(|frame| frame.number).collect();
        assert_eq!(passed, [3]);
        assert_eq!(head.ahead_bytes(), 100);
        for number in [14, 16, 18, 20, 22, 24, 26, 28] {
            head.note(Instant::ZERO, number, 6, 1);
        }
        let left_out = head.leave_out();
        assert!(left_out.iter().all(|frame| frame.number < 29 || frame.number % 2 == 1), "{left_out:?}");
        assert_eq!(
            (left_out.len(), head.frames().count(), head.into_frames().count()),
            (18, 2 + AT_ONCE, 2 + AT_ONCE)
        );
    }

    proptest! {
        /// Whatever comes: there are at most so many frames behind, and the next ones go on from the front without end or
        /// repetition.
        #[test]
        fn any_numbers_do(numbers in prop::collection::vec(any::<u64>(), 1..30)) {
            let head = after(&numbers);
            let next = next(&head, 10);
            prop_assert!(next.windows(2).all(|pair| pair[0] != pair[1]));
            prop_assert!(!next.contains(&head.front()));
        }

        /// As a client does that has some frames open at once.
        #[test]
        fn frames_out_of_order_go_on(seed in any::<u64>(), depth in 1usize..=4, step in 1u64..4) {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut numbers: Vec<u64> = (0..32).map(|index| 1000 + index * step).collect();
            numbers.chunks_mut(depth).for_each(|batch| batch.shuffle(&mut random));
            let head = after(&numbers);
            prop_assert_eq!(next(&head, 2), [1000 + 32 * step, 1000 + 33 * step]);
        }
    }
}
