//! What one client's requests for one file look like: a run that goes on, in which direction, and how fast.
//!
//! **For:** telling players from readers of headers, from scrubbing and from copies, out of nothing but offsets and
//! times. **Excludes:** what is done about it. **State:** one [`Pattern`] and one [`LeakyBucket`] for each client.
//! **Invariants:** a function of the calls; constant memory.
//!
//! Requests over a network come several at once and out of order: Windows keeps up to ten of 1 MiB on their way. So no request is
//! judged by its order alone. A run goes on as long as requests fall near the one before, and its direction is that of their mean
//! over sixteen.

use rtsched::{Direction, PLAYER_HOLDS};
use units::{Bitrate, Bytes, Duration, Instant};

/// A request this far from the one before still belongs to its run. It is twice the ten or so requests of 1 MiB that Windows'
/// client was seen to keep on their way: the last of some may come before the first of the next. What a fast player leaves out fits
/// as well. Measured.
pub const NEAR: u64 = 24 << 20;
/// A request so many of its lengths from the one before may come with it. An estimator's window.
const CLOSE: u64 = 4;
/// So many requests together have a place. An estimator's window.
const GROUP: u32 = 16;

/// Which way a run goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScanDirection {
    /// To the end of the file.
    #[default]
    Forward,
    /// To its begin.
    Backward,
}

/// What a request is to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is the first.
    First,
    /// It goes on where they were.
    Sequential,
    /// It is somewhere else.
    Seek,
}

/// Where a client is in a file, and where it goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pattern {
    way: ScanDirection,
    /// End of what was asked for, or its begin if it goes backward.
    front: u64,
    /// Begin and end of the last request.
    last: (u64, u64),
    /// Requests since the run began, without the first.
    continued: u32,
    group: Group,
    /// Mean offset of the group before.
    mean_before: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Group {
    count: u32,
    /// Of offsets, in 4 KiB.
    sum: u64,
    lowest: u64,
    highest: u64,
}

impl Pattern {
    /// A client that begins with this request.
    fn starting(offset: u64, end: u64) -> Self {
        Self { front: end, last: (offset, end), ..Self::default() }
    }

    /// The client asks for `offset..end`.
    pub fn note(&mut self, offset: u64, end: u64) -> Access {
        if self.last == (offset, end) {
            // Once more the same says nothing.
            return Access::Sequential;
        }
        if self.last == (0, 0) || self.would_jump(offset, end) {
            let step = if self.last == (0, 0) { Access::First } else { Access::Seek };
            *self = Self::starting(offset, end);
            return step;
        }
        self.last = (offset, end);
        self.continued = self.continued.saturating_add(1);
        self.front = match self.way {
            ScanDirection::Forward => self.front.max(end),
            ScanDirection::Backward => self.front.min(offset),
        };
        self.judge_direction(offset, end);
        Access::Sequential
    }

    /// The client has gone elsewhere. Should it come back, its requests have to go on here again before it is a run.
    pub fn leave(&mut self) {
        self.continued = 0;
    }

    /// True when a request would be somewhere else than those before it.
    pub fn would_jump(&self, offset: u64, end: u64) -> bool {
        let (begin, behind) = self.last;
        behind > 0 && (offset > behind.saturating_add(NEAR) || end.saturating_add(NEAR) < begin)
    }

    /// True when a request may be one of those that come with the one before, and overtake it.
    pub fn is_close(&self, offset: u64, end: u64) -> bool {
        let (begin, behind) = self.last;
        let apart = CLOSE.saturating_mul(end.saturating_sub(offset));
        offset <= behind.saturating_add(apart) && end.saturating_add(apart) >= begin
    }

    fn judge_direction(&mut self, offset: u64, end: u64) {
        let group = &mut self.group;
        group.lowest = if group.count == 0 { offset } else { group.lowest.min(offset) };
        group.highest = group.highest.max(end);
        group.sum = group.sum.saturating_add(offset >> 12);
        group.count += 1;
        if group.count < GROUP {
            return;
        }
        let group = std::mem::take(group);
        let mean = group.sum / u64::from(GROUP);
        let way = match self.mean_before.replace(mean) {
            Some(before) if mean < before => ScanDirection::Backward,
            Some(before) if mean > before => ScanDirection::Forward,
            _ => self.way,
        };
        if way != self.way {
            self.way = way;
            self.front = if way == ScanDirection::Forward { group.highest } else { group.lowest };
        }
    }

    /// Which way it goes.
    pub fn way(&self) -> ScanDirection {
        self.way
    }

    /// End of what was asked for, or its begin if it goes backward.
    pub fn front(&self) -> u64 {
        self.front
    }

    /// True as soon as requests went on where others were: the client does more than to look at a header, or to
    /// search for a picture.
    pub fn is_run(&self) -> bool {
        self.continued >= 2
    }
}

/// What a client takes in so long a time of the film tells a player from a copy. A player fills its own memory first, without a
/// rest. Then it rests as long as what it takes plays. That is a quarter of this window if the memory holds three quarters of it,
/// six seconds. An estimator's window.
const JUDGED: Duration = Duration::from_secs(8);
/// A client that takes so many times the file's rate for longer than [`JUDGED`] does not play it: editors play at twice the speed,
/// and hardly at more. An operator's target.
const COPY_FACTOR: u64 = 2;
/// [`JUDGED`] in time of the rate at which a copy is told. An estimator's window.
const BURST: Duration = Duration::from_secs(JUDGED.as_secs() / COPY_FACTOR);
/// A client's first bytes are no copy yet, however slow the file is. An estimator's window.
const BURST_BYTES: Bytes = Bytes::from_mib(32);

/// How fast a client takes what a file's rate says it needs: a token bucket in the form of virtual scheduling (ITU-T
/// I.371), with hysteresis.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeakyBucket {
    /// When what was taken up to now would have been taken at the doubled rate.
    virtual_time: Instant,
    copies: bool,
}

impl LeakyBucket {
    /// The client takes `length` of a file of this rate.
    pub fn note(&mut self, now: Instant, length: Bytes, rate: Bitrate) {
        let limit = Bitrate(rate.0.saturating_mul(COPY_FACTOR).max(1));
        let burst = BURST.max(limit.time_for(BURST_BYTES));
        self.virtual_time = self.virtual_time.max(now) + limit.time_for(length);
        // One that has become slow enough to have made up for half of a burst plays.
        let bound = if self.copies { burst / 2 } else { burst };
        let ahead = self.virtual_time.saturating_since(now);
        self.copies = ahead > bound;
        // However much was copied, it is forgotten as soon as the copy has an end.
        self.virtual_time = self.virtual_time.min(now + burst + limit.time_for(BURST_BYTES));
    }

    /// It copies.
    pub fn copies(&self) -> bool {
        self.copies
    }
}

/// A client of a file without a rate may take so much before others come first. A player of most of what is edited takes less, and
/// a copy takes what it gets (`doc/experiments/unknown-rate.md`). An operator's target.
const ALLOWED: Bitrate = Bitrate::from_megabits(200);
/// An access that a client had to wait for counts as much beside its bytes. At [`ALLOWED`] it is 10 ms, about an access of the
/// modelled array: a client that reads here and there takes the device's time, not its bytes. Measured.
const ACCESS: Bytes = Bytes::from_kib(256);
/// A client that has taken so much more is a copy, and waits as best effort does. No more is remembered of it. An operator's
/// target.
const LATEST: Duration = Duration::from_secs(2);

/// By when a client of a file without a rate comes to its turn, among others without one. A client that has taken no more than
/// [`ALLOWED`] is served at once, as far as it waits. A copy is served when those have what they need. This is VirtualClock (Zhang,
/// SIGCOMM 1990) with a bound.
#[derive(Clone, Copy, Debug, Default)]
pub struct VirtualClock {
    /// When what was taken up to now would have been taken at that rate.
    virtual_time: Instant,
}

impl VirtualClock {
    /// The client has taken `length`, for which it had to wait or not.
    pub fn note(&mut self, now: Instant, length: Bytes, has_waited: bool) {
        let access = if has_waited { ACCESS } else { Bytes::ZERO };
        let taken = ALLOWED.time_for(Bytes(length.0.saturating_add(access.0)));
        self.virtual_time = (self.virtual_time.max(now) + taken).min(now + LATEST);
    }

    /// By when it should have what lies `ahead` of what it asks for. `None`: when others have what they need.
    pub fn due(&self, now: Instant, ahead: Bytes) -> Option<Instant> {
        Some((now + ALLOWED.time_for(ahead)).max(self.virtual_time)).filter(|due| *due < now + LATEST)
    }
}

/// A client with a clock rests for at least one in so many parts of the time, or of what it takes plays. A copy over 1 Gbit/s of a
/// file of 100 Mbit/s rests for a tenth, while the network carries its answers (`doc/experiments/recorders-memory.md`). An
/// estimator's window.
const RESTING_PART: u32 = 4;
/// What a writer gives in so long a time of its file tells a recorder from a copy. A writer has no memory to fill, and its answers
/// come at once. So it rests nearly all the time. Resting for less than three quarters means that it writes faster than 4/3 of its
/// rate. A folder that is copied is many files at once, none of them much faster than a recorder's. Until they are known for copies
/// they hold the place of as many recorders. An estimator's window.
const WRITER_JUDGED: Duration = Duration::from_secs(2);
/// A recorder may make up for a pause that is no longer than this. An estimator's window.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// A client has a clock if it has rested for so long in all, each time for [`IDLE`] or longer. A copy is held up by its own machine
/// now and then. An estimator's window.
const RESTED: Duration = Duration::from_millis(100);

/// Whether a client rests before what it asks for next. One with a clock does, however long it has to wait for answers. A copy asks
/// as soon as it has one. On a full device that tells it from a player, because there it is no faster than its share.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyDetector {
    /// When it last asked for something, or had it.
    busy: Option<Instant>,
    /// Since the judgement before: how long it rested, and how long plays what it took.
    rested: Duration,
    taken: Duration,
    copies: bool,
    /// For how long it idled since it came.
    idled: Duration,
}

impl CopyDetector {
    /// The client asks for something.
    pub fn asks(&mut self, now: Instant) {
        let gap = self.busy.replace(now).map_or(Duration::ZERO, |before| now.saturating_since(before));
        self.rested += gap;
        self.idled += if gap >= IDLE { gap } else { Duration::ZERO };
    }

    /// It was given something of a file of unknown rate.
    pub fn answered(&mut self, now: Instant) {
        self.busy = Some(now);
    }

    /// It was seen to have a clock, since it came; long before it can be told from a copy by how much it takes.
    pub fn has_rested(&self) -> bool {
        self.idled >= RESTED
    }

    /// It has to wait for an answer: the time until it asks again says nothing.
    pub fn interrupt(&mut self) {
        self.busy = None;
    }

    /// It has read, or written, `length` of a file of this rate.
    pub fn note(&mut self, now: Instant, length: Bytes, rate: Bitrate, direction: Direction) {
        self.busy = Some(now);
        self.taken += rate.time_for(length);
        let writes = direction == Direction::Write;
        let memory = rate.time_for(BURST_BYTES);
        let (judged, parts) = match (writes, self.copies) {
            (false, false) => (JUDGED.max(memory), 1),
            // A client that was taken for a copy because its memory is large needs its place before that is empty: it is judged
            // sooner, but has to rest more.
            (false, true) => ((JUDGED / 4).max(memory), 2),
            (true, _) => (WRITER_JUDGED, 3),
        };
        if self.taken >= judged {
            self.copies = self.rested * RESTING_PART < self.taken * parts;
            // After a pause of the network a recorder has as much to give at once as it was kept from giving.
            let kept_from = self.rested.saturating_sub(self.taken).min(LONGEST_PAUSE);
            self.rested = if writes { kept_from } else { Duration::ZERO };
            self.taken = Duration::ZERO;
        }
    }

    /// It copies.
    pub fn copies(&self) -> bool {
        self.copies
    }
}

/// A rate is measured over as long as this. An estimator's window.
const MEASURED: Duration = Duration::from_secs(2);
/// A client waits for its own clock if it asks for nothing for so long, though all it asked for is there. Frames come 40 ms apart.
/// The next megabyte of a copy comes after 9 ms, when a network of 1 Gbit/s has carried the last one. An estimator's window.
const IDLE: Duration = Duration::from_millis(25);
/// Two measurements that differ by less than this part are the same rate. An estimator's window.
const TOLERANCE: u64 = 10;

/// For how long a client idles: from when it last asked for something, or was given it, until it asks for the next. A client that
/// has to wait for answers may still ask by the clock. A copy asks as soon as it has one.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThinkTime {
    /// When it last asked for something, or was given it.
    last: Option<Instant>,
    /// For how long it has rested so far.
    total: Duration,
    /// Until when what it has rested counts, see [`RESTING_PART`]: a rest for so many times its length, and
    /// all together for no longer than [`MEASURED`].
    rested: Instant,
}

impl ThinkTime {
    /// The client asks for something. Gives back for how long it has idled; `None`: that says nothing.
    pub fn asks(&mut self, now: Instant) -> Option<Duration> {
        let gap = now.saturating_since(self.last.replace(now)?);
        if gap >= IDLE {
            self.total += gap;
            self.rested = (self.rested.max(now) + gap * RESTING_PART).min(now + MEASURED);
        }
        Some(gap)
    }

    /// The client has what it had to wait for.
    pub fn answered(&mut self, now: Instant) {
        self.last = self.last.map(|last| last.max(now));
    }

    /// When it last asked for something, or was given it.
    pub fn last(&self) -> Option<Instant> {
        self.last
    }

    /// The client may have a clock, as far as can be told before its rate can: a copy asks as soon as it has an answer.
    pub fn rests(&self, now: Instant) -> bool {
        now < self.rested
    }

    /// It rests, or came too lately for that to be seen.
    pub fn may_rest(&self, now: Instant, came: Instant) -> bool {
        // Its rests show when it has filled its memory.
        self.rests(now) || now < came + PLAYER_HOLDS
    }
}

/// Whether a client takes a file at a rate of its own, and which: seen when it idles for more than half of the time, and
/// takes the same in one span of time as in the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateEstimator {
    idling: ThinkTime,
    /// When the span began, with the first request after a rest, because what it filled its own memory with before, at once, is
    /// no part of a beat; and for how long the client had idled until then.
    since: Option<(Instant, Duration)>,
    bytes: u64,
    /// What the span before measured.
    before: Option<Bitrate>,
}

impl RateEstimator {
    /// The client asks for `length`. Gives back the rate when one was seen: the higher of two spans.
    pub fn note(&mut self, now: Instant, length: Bytes) -> Option<Bitrate> {
        let gap = self.idling.asks(now)?;
        self.measure(now, length, gap, self.idling)
    }

    /// The same of a client that asks elsewhere as well. It has idled for `gap`, and as far as `idling` says, in all that it does.
    pub fn measure(
        &mut self,
        now: Instant,
        length: Bytes,
        gap: Duration,
        idling: ThinkTime,
    ) -> Option<Bitrate> {
        let Some((since, before)) = self.since else {
            self.since = (gap >= IDLE).then_some((now, idling.total));
            self.bytes = length.0;
            return None;
        };
        let elapsed = now.saturating_since(since);
        let mut seen = None;
        if elapsed >= MEASURED {
            let rate = u128::from(self.bytes) * 8_000_000_000 / elapsed.as_nanos().max(1);
            let rate = Bitrate(u64::try_from(rate).unwrap_or(u64::MAX));
            // A pause is not the end of a beat, and no part of one.
            let idle = idling.total.saturating_sub(before);
            let is_beat = idle * 2 >= elapsed && gap < MEASURED / 2;
            let before = std::mem::replace(&mut self.before, is_beat.then_some(rate));
            seen = before.filter(|before| is_beat && rate.0.abs_diff(before.0) <= before.0 / TOLERANCE);
            seen = seen.map(|before| before.max(rate));
            (self.since, self.bytes) = (Some((now, idling.total)), 0);
        }
        self.bytes = self.bytes.saturating_add(length.0);
        seen
    }

    /// See [`ThinkTime::rests`].
    pub fn rests(&self, now: Instant) -> bool {
        self.idling.rests(now)
    }

    /// See [`ThinkTime::may_rest`].
    pub fn may_rest(&self, now: Instant, came: Instant) -> bool {
        self.idling.may_rest(now, came)
    }

    /// See [`ThinkTime::answered`].
    pub fn answered(&mut self, now: Instant) {
        self.idling.answered(now);
    }

    /// The client waits for a frame, or is at another one: the time until it asks for the next says nothing of its clock.
    pub fn interrupt(&mut self) {
        (self.idling.last, self.since) = (None, None);
    }

    /// The client goes on elsewhere. That ends the span that is measured. The time before is think time all the same: a client that
    /// searches looks at a picture before it jumps to the next one.
    pub fn seek(&mut self) {
        self.since = None;
    }

    /// The client asks for something that is not measured.
    pub fn asks(&mut self, now: Instant) {
        self.idling.asks(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom;

    const MIB: u64 = 1 << 20;

    fn reads(pattern: &mut Pattern, offsets: impl IntoIterator<Item = u64>, length: u64) -> Vec<Access> {
        offsets.into_iter().map(|offset| pattern.note(offset, offset + length)).collect()
    }

    /// Offsets of 1 MiB reads from `from` on, each batch of `depth` in any order.
    fn shuffled(from: u64, count: u64, depth: usize, seed: u64) -> Vec<u64> {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut offsets: Vec<u64> = (0..count).map(|index| from + index * MIB).collect();
        offsets.chunks_mut(depth).for_each(|batch| batch.shuffle(&mut random));
        offsets
    }

    proptest! {
        /// However the network shuffles what is on its way, it is one run forward, and its front is where it is.
        #[test]
        fn requests_out_of_order_are_one_run(seed in any::<u64>(), depth in 1usize..=10, from in 0u64..1000) {
            let mut pattern = Pattern::default();
            let offsets = shuffled(from * MIB, 100, depth, seed);
            for &offset in &offsets {
                prop_assert_ne!(pattern.note(offset, offset + MIB), Access::Seek);
                prop_assert_eq!(pattern.way(), ScanDirection::Forward);
            }
            prop_assert_eq!(pattern.front(), (from + 100) * MIB);
            prop_assert!(pattern.is_run());
        }

        /// Played backward, frame by frame, each frame in pieces forward: known after three groups at the latest.
        #[test]
        fn backward_play_is_seen(pieces in 1u64..=8, piece in 64u64..=1024) {
            let (piece, mut pattern) = (piece << 10, Pattern::default());
            let frame = pieces * piece;
            let frames = (3 * u64::from(GROUP)).div_ceil(pieces) + 2;
            for number in (100..100 + frames).rev() {
                let offsets = (0..pieces).map(|index| number * frame + index * piece);
                prop_assert!(reads(&mut pattern, offsets, piece).iter().all(|&step| step != Access::Seek));
            }
            prop_assert_eq!(pattern.way(), ScanDirection::Backward);
            prop_assert_eq!(pattern.front(), 100 * frame);
        }
    }

    #[test]
    fn a_player_that_turns_is_followed_both_ways() {
        let mut pattern = Pattern::default();
        reads(&mut pattern, (0..64).map(|index| index * MIB), MIB);
        assert_eq!((pattern.way(), pattern.front()), (ScanDirection::Forward, 64 * MIB));
        reads(&mut pattern, (0..48).rev().map(|index| (index + 10) * MIB), MIB);
        assert_eq!((pattern.way(), pattern.front()), (ScanDirection::Backward, 10 * MIB));
        reads(&mut pattern, (10..58).map(|index| index * MIB), MIB);
        assert_eq!((pattern.way(), pattern.front()), (ScanDirection::Forward, 58 * MIB));
    }

    /// The boundary pair.
    #[test]
    fn a_jump_is_further_than_what_a_client_has_on_its_way() {
        let mut pattern = Pattern::default();
        assert_eq!(pattern.note(0, MIB), Access::First);
        assert_eq!(pattern.note(MIB + NEAR, 2 * MIB + NEAR), Access::Sequential);
        assert_eq!(pattern.note(2 * MIB + 2 * NEAR + 1, 3 * MIB + 2 * NEAR), Access::Seek);
        assert!(!pattern.is_run());
        let begin = 2 * MIB + 2 * NEAR + 1;
        assert_eq!(pattern.note(begin - NEAR - MIB, begin - NEAR), Access::Sequential);
        assert_eq!(pattern.note(begin - 2 * NEAR - 2 * MIB, begin - 2 * NEAR - MIB - 1), Access::Seek);
    }

    /// The boundary pair, on both sides.
    #[test]
    fn what_comes_with_a_request_is_no_more_than_four_others_away() {
        let mut pattern = Pattern::default();
        pattern.note(100 * MIB, 101 * MIB);
        for (offset, is_close) in
            [(105 * MIB, true), (105 * MIB + 1, false), (95 * MIB, true), (95 * MIB - 1, false)]
        {
            assert_eq!(pattern.is_close(offset, offset + MIB), is_close, "{offset}");
        }
        assert!(!pattern.is_close(u64::MAX - MIB, u64::MAX), "no overflow");
    }

    #[test]
    fn a_client_that_looks_at_header_and_index_or_scrubs_is_no_run() {
        let mut pattern = Pattern::default();
        let places = [0, 1 << 30, 4096, (1 << 30) - MIB, 300 * MIB, 700 * MIB, 100 * MIB];
        for offset in places {
            reads(&mut pattern, [offset], 64 << 10);
            assert!(!pattern.is_run());
        }
    }

    /// What a client takes in `seconds`, in pieces of 1 MiB at this rate.
    fn take(pace: &mut LeakyBucket, start: Instant, seconds: u64, at: Bitrate, file: Bitrate) -> Instant {
        let count = u128::from(at.0) * u128::from(seconds) / 8 / u128::from(MIB);
        let mut now = start;
        for index in 0..count as u64 {
            now = start + at.time_for(Bytes(index * MIB));
            pace.note(now, Bytes::from_mib(1), file);
        }
        now
    }

    /// On a full device a copy is no faster than a player: it kept its reservation, and the twelfth player found no room.
    #[test]
    fn a_client_that_asks_as_soon_as_it_is_answered_copies_however_long_it_waits() {
        let (file, piece) = (Bitrate::from_megabits(100), Bytes::from_mib(1));
        let plays = file.time_for(piece);
        let least = plays / RESTING_PART;
        for (rests, copies) in [(least, false), (least - Duration::from_nanos(1), true)] {
            let (mut rest, mut now) = (CopyDetector::default(), Instant::ZERO);
            rest.asks(now);
            for _ in 0..200 {
                now += rests;
                rest.asks(now);
                now += plays - rests;
                rest.note(now, piece, file, Direction::Read);
            }
            assert_eq!(rest.copies(), copies);
        }
    }

    /// What a recorder gives by its clock, or in one piece after a pause, is recorded. A writer that is faster than 4/3 of its rate
    /// is a copy after two seconds of it.
    #[test]
    fn a_writer_copies_unless_it_rests() {
        let (file, piece) = (Bitrate::from_megabits(100), Bytes::from_mib(1));
        let plays = file.time_for(piece);
        let write = |rest: &mut CopyDetector, now: &mut Instant, rests: Duration, count: u32| {
            (0..count).for_each(|_| {
                *now += rests;
                rest.asks(*now);
                rest.note(*now, piece, file, Direction::Write);
            });
        };
        let (mut rest, mut now) = (CopyDetector::default(), Instant::ZERO);
        write(&mut rest, &mut now, Duration::ZERO, 23);
        assert!(!rest.copies(), "less than two seconds of it");
        write(&mut rest, &mut now, Duration::ZERO, 1);
        assert!(rest.copies());
        let least = plays * 3 / RESTING_PART + Duration::from_nanos(1);
        write(&mut rest, &mut now, least - Duration::from_micros(1), 48);
        assert!(rest.copies());
        write(&mut rest, &mut now, least, 24);
        assert!(!rest.copies());
        write(&mut rest, &mut now, least - Duration::from_micros(1), 24);
        assert!(rest.copies());
        write(&mut rest, &mut now, plays, 96);
        for pause in 1..=8 {
            now += Duration::from_secs(pause);
            write(&mut rest, &mut now, Duration::ZERO, 12 * pause as u32);
            assert!(!rest.copies(), "a pause of {pause} s");
            write(&mut rest, &mut now, plays, 48);
        }
        now += Duration::from_secs(60);
        write(&mut rest, &mut now, Duration::ZERO, 12 * 12);
        assert!(rest.copies(), "a pause is no reason to copy");
    }

    /// Beside a copy two players of unknown rate were late. All requests went in the order of their places, and those of the copy
    /// lay in front of the arm.
    #[test]
    fn a_client_that_has_taken_little_is_served_at_once_and_a_copy_after_all_others() {
        let (piece, ahead) = (Bytes::from_mib(1), Bytes::from_mib(16));
        let (mut player, mut copy, mut now) =
            (VirtualClock::default(), VirtualClock::default(), Instant::ZERO);
        for _ in 0..1000 {
            now += Bitrate::from_megabits(150).time_for(piece);
            assert_eq!(player.due(now, Bytes::ZERO), Some(now));
            assert_eq!(player.due(now, ahead), Some(now + ALLOWED.time_for(ahead)));
            player.note(now, piece, true);
            (0..8).for_each(|_| copy.note(now, piece, false));
        }
        assert_eq!(copy.due(now, Bytes::ZERO), None);
        now += LATEST;
        assert_eq!(copy.due(now, Bytes::ZERO), Some(now), "however much it took");
    }

    /// Players have several requests on their way: what counts is that they ask by the clock, not that nothing is on its way.
    #[test]
    fn a_client_that_asks_by_the_clock_plays_however_late_the_answers() {
        let (file, piece) = (Bitrate::from_megabits(100), Bytes::from_mib(1));
        let plays = file.time_for(piece);
        let mut rest = CopyDetector::default();
        // Sixteen are answered together just before the next is asked for, all the time.
        for batch in 1..20 {
            for index in 0..16 {
                rest.asks(Instant::ZERO + plays * (batch * 16 + index));
            }
            let answered = Instant::ZERO + (plays * (batch * 16 + 16) - Duration::from_nanos(1));
            (0..16).for_each(|_| rest.note(answered, piece, file, Direction::Read));
            assert!(!rest.copies());
        }
    }

    /// Players that kept four seconds to themselves filled them without a rest, and were taken for copies. They lost their places on
    /// full devices: nearly all late units of the golden set with named rates were theirs. The boundary pair is the largest such
    /// memory, and one megabyte more.
    #[test]
    fn a_client_that_fills_a_memory_of_six_seconds_is_no_copy() {
        let (file, piece) = (Bitrate::from_megabits(100), Bytes::from_mib(1));
        let plays = file.time_for(piece);
        let judged = (JUDGED.as_nanos() / plays.as_nanos()) as u32 + 1;
        let largest = judged - judged.div_ceil(RESTING_PART);
        assert!(plays * largest > Duration::from_millis(5_900), "{largest}");
        for (filled, copies) in [(largest, false), (largest + 1, true)] {
            let (mut rest, mut now) = (CopyDetector::default(), Instant::ZERO);
            let mut take = |now| {
                rest.asks(now);
                rest.note(now, piece, file, Direction::Read);
                rest.copies()
            };
            let mut was_copy = (0..filled).any(|_| take(now));
            for _ in filled..judged {
                now += plays;
                was_copy |= take(now);
            }
            assert_eq!(was_copy, copies, "{filled} of {judged}");
        }
    }

    /// A player that fills a memory of ten seconds at once looks like a copy; it is a stream again long before that is empty.
    #[test]
    fn a_client_that_fills_a_large_memory_plays_as_soon_as_it_asks_by_the_clock() {
        let (file, piece) = (Bitrate::from_megabits(100), Bytes::from_mib(1));
        let plays = file.time_for(piece);
        let (mut rest, mut now) = (CopyDetector::default(), Instant::ZERO);
        for _ in 0..120 {
            rest.asks(now);
            rest.note(now, piece, file, Direction::Read);
        }
        assert!(rest.copies());
        let full = now;
        while rest.copies() {
            now += plays;
            rest.asks(now);
            rest.note(now, piece, file, Direction::Read);
        }
        // What was to be judged is over, and once more as much.
        assert!(now.saturating_since(full) <= file.time_for(BURST_BYTES) * 2, "{now:?}");
    }

    #[test]
    fn twice_the_rate_is_play_and_more_is_a_copy() {
        let file = Bitrate::from_megabits(100);
        let mut pace = LeakyBucket::default();
        let end = take(&mut pace, Instant::ZERO, 600, Bitrate::from_megabits(199), file);
        assert!(!pace.copies());
        // Half a second at disk speed to fill its memory is nothing yet.
        let end = take(&mut pace, end + Duration::from_secs(5), 1, Bitrate::from_megabits(700), file);
        assert!(!pace.copies());
        let end = take(&mut pace, end, 5, Bitrate::from_megabits(700), file);
        assert!(pace.copies());
        let end = take(&mut pace, end, 60, Bitrate::from_megabits(700), file);
        assert!(pace.copies());
        // It plays again: seen within as long as a burst, and a bit.
        take(&mut pace, end, 8, file, file);
        assert!(!pace.copies());
    }

    /// What is seen of a client that asks for `length` every `period`, `count` times.
    fn beat(period: Duration, length: u64, count: u32) -> Option<Bitrate> {
        let mut beat = RateEstimator::default();
        (0..count).filter_map(|index| beat.note(Instant::ZERO + period * index, Bytes(length))).last()
    }

    #[test]
    fn a_client_with_a_clock_is_told_from_a_copy() {
        // Frames of 500 kB, 25 a second: 100 Mbit/s, after two spans.
        let frames = beat(Duration::from_millis(40), 500_000, 110).unwrap();
        assert!(frames.0.abs_diff(100_000_000) < 2_000_000, "{frames:?}");
        assert_eq!(beat(Duration::from_millis(40), 500_000, 90), None);
        // 1 MiB each 84 ms.
        let units = beat(Duration::from_micros(83_886), MIB, 60).unwrap();
        assert!(units.0.abs_diff(100_000_000) < 5_000_000, "{units:?}");
        // A copy over a network of 1 Gbit/s, and over one of 400 Mbit/s. The boundary.
        assert_eq!(beat(Duration::from_millis(9), MIB, 5_000), None);
        assert_eq!(beat(Duration::from_micros(24_999), MIB, 5_000), None);
        assert!(beat(Duration::from_millis(25), MIB, 5_000).is_some());
    }

    /// On a full device each client waits. No rate was found out then, and a client without one was left to what others leave.
    #[test]
    fn a_client_that_asks_by_the_clock_has_a_rate_however_long_it_waits_and_a_copy_has_none() {
        let unit = Bytes::from_mib(1);
        let period = Bitrate::from_megabits(100).time_for(unit);
        // Sixteen answers come together, after all sixteen were asked for.
        let mut player = RateEstimator::default();
        let mut seen = None;
        for index in 0..100 {
            seen = player.note(Instant::ZERO + period * index, unit).or(seen);
            if index % 16 == 15 {
                player.answered(Instant::ZERO + period * index + period / 3);
            }
        }
        assert!(seen.is_some_and(|rate| rate.0.abs_diff(100_000_000) < 10_000_000), "{seen:?}");
        // A copy that is answered just as often, with one or with eight on their way.
        for depth in [1, 8] {
            let mut copy = RateEstimator::default();
            (0..depth).for_each(|_| assert_eq!(copy.note(Instant::ZERO, unit), None));
            for index in 1..500 {
                copy.answered(Instant::ZERO + period * index);
                assert_eq!(copy.note(Instant::ZERO + period * index, unit), None);
            }
        }
    }

    /// A copy held the last of the device until it was known for one, because it reads on as a player does. The boundary pairs.
    #[test]
    fn a_client_that_rests_is_known_to_have_a_clock_and_a_copy_that_is_held_up_is_not() {
        let nanosecond = Duration::from_nanos(1);
        let rests = |each: Duration, count: u32| {
            let (mut rest, mut now) = (CopyDetector::default(), Instant::ZERO);
            rest.asks(now);
            for _ in 0..count {
                // It waits for its answer, and rests before it asks again.
                now += Duration::from_millis(300);
                rest.answered(now);
                now += each;
                rest.asks(now);
            }
            rest.has_rested()
        };
        assert!(rests(IDLE, 4) && !rests(IDLE, 3) && !rests(IDLE - nanosecond, 1000));
        assert!(rests(RESTED, 1) && !rests(RESTED - nanosecond, 1));
    }

    /// Until a player's rate is known nothing else tells it from a copy, which on a full device takes no more than a player.
    #[test]
    fn a_client_that_rests_may_have_a_clock_long_before_its_rate_is_known() {
        let unit = Bytes::from_mib(1);
        let period = Bitrate::from_megabits(100).time_for(unit);
        let (mut player, mut now) = (RateEstimator::default(), Instant::ZERO);
        // It fills its memory, and then plays.
        (0..12).for_each(|_| _ = player.note(now, unit));
        assert!(!player.rests(now));
        for _ in 0..24 {
            now += period;
            assert_eq!(player.note(now, unit), None);
            assert!(player.rests(now));
        }
        // It is elsewhere in its clip, and waits there.
        player.interrupt();
        (0..12).for_each(|_| _ = player.note(now, unit));
        assert!(player.rests(now));
        // From now on it asks as soon as it has an answer: it copies, and is a player for two more seconds.
        for _ in 0..24 {
            now += period;
            player.answered(now);
            _ = player.note(now, unit);
        }
        assert!(!player.rests(now));
    }

    /// A client that searches was not seen to have a clock, because each of its requests is a jump, and the time before a jump was not
    /// counted. As it comes, beside nine players, one of a hundred pictures came after four seconds.
    #[test]
    fn a_client_that_looks_at_pictures_here_and_there_rests_between_them() {
        let (mut client, mut now) = (RateEstimator::default(), Instant::ZERO);
        for picture in 0..20 {
            client.seek();
            client.asks(now);
            assert_eq!(client.rests(now), picture > 0, "{picture}");
            now += Duration::from_millis(200);
            client.answered(now);
            now += Duration::from_millis(300);
        }
        // One that jumps as soon as it has its picture does not.
        for _ in 0..20 {
            client.seek();
            client.asks(now);
            now += Duration::from_millis(200);
            client.answered(now);
        }
        assert!(!client.rests(now));
    }

    /// The boundary pairs: a rest of 100 ms, and a pause of a minute.
    #[test]
    fn a_rest_counts_for_four_times_its_length_and_for_no_more_than_two_seconds() {
        for (rest, counts) in [(100, 400), (60_000, 2000)] {
            let (mut client, moment) = (RateEstimator::default(), Duration::from_nanos(1));
            _ = client.note(Instant::ZERO, Bytes::from_mib(1));
            let now = Instant::ZERO + Duration::from_millis(rest);
            _ = client.note(now, Bytes::from_mib(1));
            let end = now + Duration::from_millis(counts);
            assert!(client.rests(end.saturating_before(moment)) && !client.rests(end), "{rest}");
        }
    }

    /// It was in the first of the two spans that are compared, so it took a third.
    #[test]
    fn what_a_player_fills_its_memory_with_is_not_its_rate() {
        let unit = Bytes::from_mib(1);
        let period = Bitrate::from_megabits(100).time_for(unit);
        let mut player = RateEstimator::default();
        (0..12).for_each(|_| assert_eq!(player.note(Instant::ZERO, unit), None));
        let played = (1..).find(|&index| player.note(Instant::ZERO + period * index, unit).is_some());
        assert!(played.is_some_and(|count| period * count < MEASURED * 2 + period * 2), "{played:?}");
    }

    #[test]
    fn a_client_whose_rate_varies_has_none_until_it_keeps_to_one() {
        let mut beat = RateEstimator::default();
        let (mut now, mut seen) = (Instant::ZERO, Vec::new());
        for (seconds, length) in [(4, 500_000), (2, 300_000), (2, 600_000), (2, 900_000), (8, 1_000_000)] {
            for _ in 0..seconds * 25 {
                now += Duration::from_millis(40);
                seen.extend(beat.note(now, Bytes(length)).map(|rate| (now, rate)));
            }
        }
        let (first, last) = (seen.first().unwrap(), seen.last().unwrap());
        assert!(first.1.0.abs_diff(100_000_000) < 5_000_000, "{seen:?}");
        assert!(last.1.0.abs_diff(200_000_000) < 5_000_000 && last.0 >= Instant::from_nanos(12_000_000_000));
        assert!(seen.iter().all(|(_, rate)| rate.0 < 110_000_000 || rate.0 > 190_000_000), "{seen:?}");
    }

    #[test]
    fn the_first_megabytes_of_a_slow_file_are_no_copy() {
        let file = Bitrate::from_megabits(1);
        let mut pace = LeakyBucket::default();
        for _ in 0..BURST_BYTES.0 / MIB {
            pace.note(Instant::ZERO, Bytes::from_mib(1), file);
            assert!(!pace.copies());
        }
        pace.note(Instant::ZERO, Bytes::from_mib(1), file);
        assert!(pace.copies());
    }
}
