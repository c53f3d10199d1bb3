//! Where one client is in a sequence: in which direction it goes, in which steps, and what is in memory for it.
//!
//! **State:** one [`SequenceCursor`] for each client of a sequence. **Invariants:** a function of the calls; bounded memory.
//!
//! A client may have several frames open at once, so no frame is judged by its order alone: the direction is that of the
//! mean over eight frames, the step is what lies between most of them. What it asks for at once comes in the network's order, and counts
//! as one frame there, unless most of it goes one way; some of it may be still to come, so its step is the smallest distance.

use crate::due::PlayoutClock;
use crate::pattern::{LeakyBucket, RateEstimator, ScanDirection, VirtualClock};
use crate::player::Client;
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::collections::VecDeque;
use units::{Bytes, Duration, Instant};

/// Direction and step are told by so many frames at least. An estimator's window.
const WINDOW: usize = 8;
/// Direction and step are told by so many frames at most. Frames that are asked for at once count together, and a buffer is a
/// second of them. An estimator's window.
const LONGEST_WINDOW: usize = 32;
/// Frames that are asked for so soon after one another are asked for at once. An estimator's window.
const AT_ONCE_WITHIN: Duration = Duration::from_millis(5);
/// A client's first burst takes no longer than this; what comes later goes on. An estimator's window.
const BEGINNING: Duration = Duration::from_millis(50);
/// A frame this many numbers from where a client is still belongs to what it does. An estimator's window.
const NEAR: u64 = 32;
/// A client that takes longer for a frame does not play: 1 frame a second is the slowest that a policy may name. A protocol fact.
pub const SLOWEST: Duration = Duration::from_secs(1);
/// Frames that a client may have open at once: what is behind them is passed. An estimator's window.
const AT_ONCE: usize = 8;

/// A frame in memory, or on its way there.
#[derive(Clone, Debug)]
pub struct PrefetchedFrame<K> {
    /// Its number.
    pub number: u64,
    /// Its length, and what it takes of memory.
    pub bytes: u64,
    /// What the host keeps until it has been passed.
    pub kept: K,
    /// By when it was asked for.
    pub needed: Option<Instant>,
}

/// A frame that the client has taken.
#[derive(Clone, Copy, Debug)]
struct Frame {
    number: u64,
    length: u64,
    /// The same as of those that were asked for at once with it, one more than of those before.
    burst: u64,
}

/// Where one client is in a sequence.
#[derive(Clone, Debug)]
pub struct SequenceCursor<K> {
    /// In the order in which they came: the last [`WINDOW`] with all that were asked for at once with one of them, of two bursts at
    /// least, but no more than [`LONGEST_WINDOW`]. Never empty.
    frames: VecDeque<Frame>,
    /// Digits of the last one.
    digits: usize,
    way: ScanDirection,
    step: u64,
    /// Frames since it began, without the first, each soon after the one before.
    continued: u32,
    /// Since it began to go its way.
    origin: PlayoutClock,
    /// When it came to be.
    since: Instant,
    /// It begins to play: nothing need be there before.
    starts_by: Option<Instant>,
    /// When it asked last.
    pub last_used: Instant,
    /// When it was given a frame last.
    last_given: Instant,
    /// Whether it takes more than is played.
    pub pace: LeakyBucket,
    /// Its clock, if it has one.
    pub beat: RateEstimator,
    /// Its turn among clients without a rate.
    pub allowance: VirtualClock,
    /// What it comes to, in that order.
    pub ahead: VecDeque<PrefetchedFrame<K>>,
    /// What it is at, oldest first.
    passing: VecDeque<PrefetchedFrame<K>>,
}

impl<K> SequenceCursor<K> {
    /// A client that begins with this frame.
    pub fn new(now: Instant, start: Duration, number: u64, digits: usize, length: u64) -> Self {
        Self {
            frames: VecDeque::from([Frame { number, length, burst: 0 }]),
            digits,
            way: ScanDirection::Forward,
            step: 1,
            continued: 0,
            origin: PlayoutClock::begins(now, start, number),
            since: now,
            starts_by: None,
            last_used: now,
            last_given: now,
            pace: LeakyBucket::default(),
            beat: RateEstimator::default(),
            allowance: VirtualClock::default(),
            ahead: VecDeque::new(),
            passing: VecDeque::new(),
        }
    }

    /// True when a frame may be one of this client's.
    pub fn is_near(&self, number: u64) -> bool {
        self.distance(number) <= NEAR || self.ahead.iter().any(|frame| frame.number == number)
    }

    /// How many numbers a frame is from where the client is.
    pub fn distance(&self, number: u64) -> u64 {
        self.front().abs_diff(number)
    }

    /// What is known of it before its rate is.
    pub fn client(&self) -> Client {
        Client { allowance: self.allowance, beat: self.beat, came: self.since }
    }

    /// For how long it has been there.
    pub fn lasts(&self) -> Duration {
        self.last_used.saturating_since(self.since)
    }

    /// It is given a frame. A client that did not have to wait for it plays.
    pub fn give(&mut self, now: Instant, has_waited: bool) {
        self.last_given = now;
        if !has_waited {
            self.begin_to_play(now);
        }
    }

    /// Until when something was between it and the server: a client that waits does not rest.
    pub fn active(&self) -> Instant {
        self.last_used.max(self.last_given)
    }

    /// The client has taken a frame. True when it goes elsewhere than before.
    pub fn note(&mut self, now: Instant, start: Duration, number: u64, digits: usize, length: u64) -> bool {
        let gap = now.saturating_since(self.active());
        if self.last_given > self.last_used {
            self.begin_to_play(now);
        }
        let is_at_once = now.saturating_since(self.last_used) <= AT_ONCE_WITHIN;
        self.last_used = now;
        let last = self.last();
        if last.number == number {
            return false;
        }
        if gap > SLOWEST {
            self.continued = 0;
        } else {
            self.continued = self.continued.saturating_add(1);
        }
        self.frames.push_back(Frame { number, length, burst: last.burst + u64::from(!is_at_once) });
        self.forget();
        self.digits = digits;
        let before = (self.way, self.step);
        self.judge();
        let is_elsewhere = before != (self.way, self.step);
        if is_elsewhere || gap > SLOWEST {
            self.origin = PlayoutClock::begins(now, start, number);
        }
        is_elsewhere
    }

    /// The sequence has not been played before: what it begins with need not be there before a player may begin.
    pub fn begin(&mut self, start: Duration) {
        self.starts_by = Some(self.since + start);
    }

    /// It has not begun to play yet.
    pub fn begins(&self) -> bool {
        self.starts_by.is_some()
    }

    /// It was given what it had waited for, and goes on.
    fn begin_to_play(&mut self, now: Instant) {
        self.starts_by = None;
        self.origin.plays(now);
    }

    /// A client that shows a frame every `period` does not need this one before.
    pub fn earliest_need(&self, number: u64, period: Duration) -> Instant {
        let frames = u32::try_from(number.abs_diff(self.origin.from()) / self.step).unwrap_or(u32::MAX);
        self.origin.due(period.saturating_mul(frames), false).max(self.starts_by.unwrap_or(Instant::ZERO))
    }

    fn last(&self) -> Frame {
        *self.frames.back().expect("it begins with a frame, and keeps the last ones")
    }

    /// Forgets what does not tell direction and step any more.
    fn forget(&mut self) {
        while let Some(first) = self.frames.front() {
            let oldest = self.frames.iter().take_while(|frame| frame.burst == first.burst).count();
            let several = self.last().burst > first.burst + 1;
            if several && self.frames.len() - oldest >= WINDOW {
                self.frames.drain(..oldest);
            } else if self.frames.len() > LONGEST_WINDOW {
                self.frames.pop_front();
            } else {
                return;
            }
        }
    }

    fn judge(&mut self) {
        let (first, last) = (self.frames[0].burst, self.last().burst);
        let newest = || self.frames.iter().filter(|frame| frame.burst == last).map(|frame| frame.number);
        let told_by_order = newest().count() >= WINDOW;
        if first == last && !told_by_order {
            return;
        }
        // Bursts as single frames, of which half are earlier than the other half.
        let half = (last - first).div_ceil(2);
        let of = |is: &dyn Fn(u64) -> bool| {
            mean(self.frames.iter().filter(|frame| is(frame.burst)).map(|frame| frame.number))
        };
        let mut way = match of(&|burst| burst + half > last).cmp(&of(&|burst| burst < first + half)) {
            Ordering::Less => ScanDirection::Backward,
            Ordering::Greater => ScanDirection::Forward,
            Ordering::Equal => self.way,
        };
        if told_by_order {
            way = way_of_burst(newest()).unwrap_or(way);
        }
        self.way = way;
        let mut sorted: SmallVec<[u64; LONGEST_WINDOW]> = self.numbers().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut steps: SmallVec<[u64; LONGEST_WINDOW]> =
            sorted.windows(2).map(|pair| pair[1] - pair[0]).collect();
        steps.sort_unstable();
        // Of what lies between them the median: neither a gap nor a frame left out changes it. But of what is asked for at once some
        // may be still to come.
        let is_one_by_one = last - first + 1 == self.frames.len() as u64;
        let told = if is_one_by_one { steps.len().saturating_sub(1) / 2 } else { 0 };
        self.step = steps.get(told).copied().unwrap_or(self.step).max(1);
    }

    /// The furthest frame it has taken, in its direction.
    pub fn front(&self) -> u64 {
        match self.way {
            ScanDirection::Forward => self.numbers().max(),
            ScanDirection::Backward => self.numbers().min(),
        }
        .unwrap_or(0)
    }

    /// The frames that it took last, oldest first.
    pub fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.frames.iter().map(|frame| frame.number)
    }

    /// Digits with which it goes on.
    pub fn digits(&self) -> usize {
        self.digits
    }

    /// Frames that followed one another.
    pub fn continued(&self) -> u32 {
        self.continued
    }

    /// The longest of its last frames.
    pub fn frame_bytes(&self) -> Bytes {
        Bytes(self.frames.iter().map(|frame| frame.length).max().unwrap_or(0))
    }

    /// The numbers that may come behind `from`, the nearest first; frames that are missing are left out by the caller.
    pub fn behind(&self, from: u64) -> impl Iterator<Item = u64> + use<K> {
        let (way, step) = (self.way, self.step);
        std::iter::successors(Some(from), move |&at| match way {
            ScanDirection::Forward => at.checked_add(step),
            ScanDirection::Backward => at.checked_sub(step),
        })
        .skip(1)
    }

    /// A client of which nothing was read ahead may still be asking for what it begins with.
    pub fn asks_until(&self) -> Option<Instant> {
        let until = (self.last_used + AT_ONCE_WITHIN).min(self.since + BEGINNING);
        self.ahead.is_empty().then_some(until)
    }

    /// The last frame that is in memory for it, else where it is.
    pub fn reached(&self) -> u64 {
        self.ahead.back().map_or_else(|| self.front(), |frame| frame.number)
    }

    /// Bytes ahead of it.
    pub fn ahead_bytes(&self) -> u64 {
        self.ahead.iter().map(|frame| frame.bytes).sum()
    }

    /// The client is at `number`: what it has passed.
    #[must_use]
    pub fn pass(&mut self, number: u64) -> Vec<PrefetchedFrame<K>> {
        if let Some(at) = self.ahead.iter().position(|frame| frame.number == number) {
            self.passing.extend(self.ahead.drain(..=at));
        }
        let passed = self.passing.len().saturating_sub(AT_ONCE);
        self.passing.drain(..passed).collect()
    }

    /// The client has closed a frame.
    #[must_use]
    pub fn close(&mut self, number: u64) -> Option<PrefetchedFrame<K>> {
        let at = self.passing.iter().position(|frame| frame.number == number)?;
        self.passing.remove(at)
    }

    /// What it does not come to any more as it goes now, and what would leave a hole before it: it is read ahead from the last
    /// one on.
    #[must_use]
    pub fn leave_out(&mut self) -> Vec<PrefetchedFrame<K>> {
        let mut next = self.behind(self.front()).peekable();
        let is_on_its_way = |frame: &PrefetchedFrame<K>| next.next_if_eq(&frame.number).is_some();
        let (kept, left_out) = self.ahead.drain(..).partition(is_on_its_way);
        self.ahead = kept;
        left_out.into()
    }

    /// All that is in memory for it.
    pub fn into_frames(self) -> impl Iterator<Item = PrefetchedFrame<K>> {
        self.passing.into_iter().chain(self.ahead)
    }

    /// All that is in memory for it, to look at.
    pub fn frames(&self) -> impl Iterator<Item = &PrefetchedFrame<K>> {
        self.passing.iter().chain(&self.ahead)
    }
}

/// In 256ths.
fn mean(numbers: impl Iterator<Item = u64>) -> u128 {
    let (sum, count) = numbers.fold((0, 0), |(sum, count), number| (sum + u128::from(number), count + 1));
    (sum << 8) / count.max(1)
}

/// The way of most frames that were asked for at once, if they have one. Where they are in order, the means of their halves are
/// half of what they span apart. Where there is no order, they are hardly apart at all.
fn way_of_burst(numbers: impl Iterator<Item = u64>) -> Option<ScanDirection> {
    let numbers: SmallVec<[u64; LONGEST_WINDOW]> = numbers.collect();
    let (earlier, later) = numbers.split_at(numbers.len() / 2);
    let (earlier, later) = (mean(earlier.iter().copied()), mean(later.iter().copied()));
    let span = u128::from(numbers.iter().max()? - numbers.iter().min()?) << 8;
    let way = if later < earlier { ScanDirection::Backward } else { ScanDirection::Forward };
    (later.abs_diff(earlier) * 4 >= span).then_some(way)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1);
    use proptest::prelude::*;
    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng};

    fn after(numbers: &[u64]) -> SequenceCursor<()> {
        each_after(Duration::from_millis(40), numbers)
    }

    fn each_after(gap: Duration, numbers: &[u64]) -> SequenceCursor<()> {
        let mut head = SequenceCursor::<()>::new(Instant::ZERO, START, numbers[0], 6, 1);
        go_on(&mut head, gap, &numbers[1..]);
        head
    }

    fn go_on(head: &mut SequenceCursor<()>, gap: Duration, numbers: &[u64]) {
        for &number in numbers {
            head.note(head.last_used + gap, START, number, 6, 1);
        }
    }

    fn next(head: &SequenceCursor<()>, count: usize) -> Vec<u64> {
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

    /// Six players of DPX films filled a buffer of 24 frames each, which were opened at once, and came to the server in this order. Of
    /// the last eight of them the later half lies before the earlier one: so 107 frames before them were read, 0.65 s of the device's
    /// time, and the player waited 1.4 s for those behind them. Of nine points with six such players one lost two units.
    #[test]
    fn the_order_of_what_is_asked_for_at_once_is_none() {
        let asked = [
            702, 704, 703, 705, 706, 707, 708, 709, 710, 711, 712, 713, 701, 717, 718, 720, 719, 721, 722,
            723, 714, 715, 716, 724,
        ];
        for count in 1..=asked.len() {
            let mut head = each_after(Duration::from_micros(40), &asked[..count]);
            let front = *asked[..count].iter().max().unwrap();
            assert_eq!(next(&head, 1), [front + 1], "after {count}");
            go_on(&mut head, Duration::from_millis(160), &[front + 1]);
            assert_eq!(next(&head, 2), [front + 2, front + 3], "after {count}, and one more");
        }
        // A client that asks for a buffer backward is known by the first frame behind it, whatever the order.
        for buffer in [[699, 698, 695, 694, 697, 696], [694, 695, 696, 697, 698, 699]] {
            let mut head = after(&[700]);
            go_on(&mut head, Duration::from_millis(40), &buffer[..1]);
            go_on(&mut head, Duration::from_micros(40), &buffer[1..]);
            assert_eq!(next(&head, 2), [693, 692], "{buffer:?}");
        }
    }

    /// The first eight of a buffer that came were every second frame, and every second one was read ahead, 1 MiB and an access
    /// each. When the others had come, what was read ahead had holes, and each of them was read when it was asked for. Six players
    /// of films lost up to 51 units in four of eight rehearsals, at 4 to 6 MiB a seek. A point of the laboratory with 26 had looked
    /// so.
    #[test]
    fn what_has_not_come_yet_leaves_no_step_and_no_hole() {
        let frame = |number| PrefetchedFrame { number, bytes: 5, kept: (), needed: None };
        let mut head = each_after(Duration::from_micros(40), &[1, 3, 5, 6, 8, 10, 12, 14]);
        assert_eq!(next(&head, 2), [15, 16]);
        let mut fast = after(&[1, 3, 5, 7, 9, 11, 13, 15]);
        assert_eq!(next(&fast, 2), [17, 19]);
        for (head, kept) in [(&mut head, vec![15, 16, 17, 18]), (&mut fast, vec![17])] {
            head.ahead.extend([15, 16, 17, 18, 20, 22].map(frame));
            let left_out = head.leave_out().len();
            assert_eq!(head.ahead.iter().map(|frame| frame.number).collect::<Vec<_>>(), kept);
            assert_eq!(left_out, 6 - kept.len());
        }
    }

    /// The boundary pair.
    #[test]
    fn two_frames_are_at_once_within_five_milliseconds() {
        assert_eq!(next(&each_after(AT_ONCE_WITHIN, &[9, 8]), 1), [10]);
        assert_eq!(next(&each_after(AT_ONCE_WITHIN + Duration::from_nanos(1), &[9, 8]), 1), [7]);
    }

    /// A client that turns is followed, also out of what was asked for at once.
    #[test]
    fn a_turn_is_seen_in_half_a_window() {
        let mut head = each_after(Duration::from_micros(40), &(701..725).collect::<Vec<_>>());
        go_on(&mut head, Duration::from_millis(40), &(725..740).collect::<Vec<_>>());
        go_on(&mut head, Duration::from_millis(40), &[738, 737, 736, 735]);
        assert_eq!(next(&head, 2), [734, 733]);
        go_on(&mut head, Duration::from_millis(40), &[735]);
        go_on(&mut head, Duration::from_micros(40), &(711..735).rev().collect::<Vec<_>>());
        assert_eq!(next(&head, 2), [710, 709]);
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
    fn a_client_that_takes_more_than_a_second_for_a_frame_does_not_play() {
        let mut head = SequenceCursor::<()>::new(Instant::ZERO, START, 1, 1, 1);
        head.note(Instant::ZERO + SLOWEST, START, 2, 1, 1);
        assert_eq!(head.continued(), 1);
        head.note(Instant::ZERO + SLOWEST * 2 + Duration::from_nanos(1), START, 3, 1, 1);
        assert_eq!(head.continued(), 0);
    }

    /// Six players of DPX films filled a buffer of 24 frames each, for which the sixth waited a second and more. The time was
    /// counted as its rest, so with the first frame that it played it was no player any more, and its reservation went to a
    /// seventh that had none.
    #[test]
    fn a_client_that_waits_for_a_frame_does_not_rest() {
        let rests = |given: Option<Duration>| {
            let mut head = after(&[1, 2, 3]);
            let asked = head.last_used;
            if let Some(given) = given {
                head.give(asked + given, true);
            }
            head.note(asked + SLOWEST + Duration::from_millis(35), START, 4, 6, 1);
            head.continued() == 0
        };
        assert!(rests(None) && rests(Some(Duration::ZERO)));
        assert!(!rests(Some(SLOWEST)));
    }

    #[test]
    fn what_is_passed_is_given_back_when_it_is_closed_or_far_behind() {
        let mut head = after(&[1, 2]);
        let frame = |number| PrefetchedFrame { number, bytes: 5, kept: (), needed: None };
        head.ahead.extend((3..33).map(frame));
        assert_eq!((head.ahead_bytes(), head.reached()), (150, 32));
        assert!(head.pass(4).is_empty(), "3 may still be read");
        assert_eq!(head.close(4).map(|frame| frame.number), Some(4));
        assert!(head.close(4).is_none() && head.close(99).is_none());
        let passed: Vec<_> = head.pass(12).iter().map(|frame| frame.number).collect();
        assert_eq!(passed, [3]);
        assert_eq!(head.ahead_bytes(), 100);
        go_on(&mut head, Duration::from_millis(40), &[14, 16, 18, 20, 22, 24, 26, 28]);
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

        /// As a client does that fills a buffer: none comes more than twelve places too early or too late.
        #[test]
        fn a_buffer_out_of_order_has_a_way(seed in any::<u64>(), step in 1u64..4, is_backward in any::<bool>()) {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut places: Vec<(u64, u64)> =
                (0..24).map(|index| (index + random.random_range(0..12), index)).collect();
            places.sort_unstable();
            let number = |index| if is_backward { 1000 - index * step } else { 1000 + index * step };
            let numbers: Vec<u64> = places.into_iter().map(|(_, index)| number(index)).collect();
            let head = each_after(Duration::from_micros(40), &numbers);
            prop_assert_eq!(next(&head, 1), [number(24)]);
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
