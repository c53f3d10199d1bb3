//! What is known of one client that reads a file, or writes it.
//!
//! **For:** where it reads on, what it only looks at, and when it is a player, a copy or gone. **Excludes:** what is read ahead of it
//! ([`players`](super)). **State:** a [`Player`] for each handle that has read or written. **Invariants:** a function of the calls;
//! no more than [`MOST_PLACES`] places.

use crate::due::{HASTE, PlayoutClock};
use crate::pattern::{CopyDetector, LeakyBucket, Pattern, RateEstimator, ScanDirection, VirtualClock};
use crate::window::ReadaheadWindow;
use crate::{PAGE, REQUEST};
use std::ops::Range;
use units::{Bitrate, Bytes, Duration, Instant};

/// A client reads on at no more places of a file at once: a picture and its sound that lie apart, both sides of a dissolve. It
/// bounds memory. An operator's target.
const MOST_PLACES: usize = 4;
/// A client does not read on where it has read nothing for so long, while it read elsewhere. An estimator's window.
const LEFT_AFTER: Duration = Duration::from_secs(5);
/// Between two of its requests no more than this counts, because a client that pauses has left nothing. An estimator's window.
const LONGEST_GAP: Duration = Duration::from_secs(1);
/// A client plays at a place if it takes three quarters of the file's rate there for so long, whatever else it plays. Two clips
/// that dissolve into each other are two streams. A picture and its sound are one. An estimator's window.
const OWN_PACE: Duration = Duration::from_secs(2);

/// A read no longer than this, no farther than [`EDGE`] from an end of its file, looks at a header or an index. Windows' Explorer
/// and players were seen to do so while they play on. Longer ones, and those elsewhere, are pictures. Measured.
const HEADER_PROBE: u64 = 64 << 10;
/// A look is no farther than this from the begin or the end of its file. Explorer and players were seen to look there. Measured.
const EDGE: u64 = 1 << 20;
/// A client that looks more often without reading on is no longer where it was. An estimator's window.
const MOST_HEADER_PROBES: u32 = 4;

/// Where a client reads on and on, and what was read ahead of it there.
#[derive(Debug, Default)]
pub struct ReadCursor<K> {
    /// What its requests look like here.
    pub pattern: Pattern,
    /// For how long it has read elsewhere since it did here.
    away: Duration,
    /// How much it has taken here since when, and whether it took as much as a player before that.
    taken: Option<(Instant, u64)>,
    has_own_pace: bool,
    /// Since its requests began to go on where others were.
    pub origin: PlayoutClock,
    /// When it was where, as reckoned with in what was asked for ahead of it.
    pub reckoned: Option<(Instant, u64)>,
    /// How far it was read ahead: end of what was asked for, or its begin if it goes backward. `None`: not yet.
    pub asked: Option<u64>,
    /// What the host keeps for it.
    pub kept: K,
}

impl<K: Default> ReadCursor<K> {
    /// Where a client was, and may come back to.
    pub fn left(mut pattern: Pattern, origin: PlayoutClock) -> Self {
        pattern.leave();
        Self { pattern, origin, ..Self::default() }
    }

    /// Bytes from where the client is to where it was read ahead.
    fn ahead(&self) -> u64 {
        let front = self.pattern.front();
        self.asked.map_or(0, |asked| match self.pattern.way() {
            ScanDirection::Forward => asked.saturating_sub(front),
            ScanDirection::Backward => front.saturating_sub(asked),
        })
    }

    /// The client takes `length` here, of a file of this rate.
    pub fn take(&mut self, now: Instant, length: u64, rate: Bitrate) {
        let (since, taken) = *self.taken.get_or_insert((now, 0));
        let (elapsed, taken) = (now.saturating_since(since), taken.saturating_add(length));
        self.taken = Some((since, taken));
        if elapsed >= OWN_PACE {
            self.has_own_pace = taken >= rate.bytes_in(elapsed).0 / 4 * 3;
            self.taken = None;
        }
    }

    /// How long ago it was reckoned with, and how much it has come to since, in time at its rate.
    fn since_reckoned(&self, now: Instant, rate: Bitrate) -> Option<(Duration, Duration)> {
        let (at, offset) = self.reckoned?;
        let came = rate.time_for(Bytes(self.pattern.front().saturating_sub(offset)));
        Some((now.saturating_since(at), came))
    }

    /// It has come much farther than was reckoned with.
    pub fn is_sooner(&self, now: Instant, rate: Bitrate) -> bool {
        let is_ahead = |(passed, came)| came >= passed + HASTE;
        self.pattern.way() == ScanDirection::Forward && self.since_reckoned(now, rate).is_some_and(is_ahead)
    }

    /// It comes to what is asked for now no sooner than reckoned now.
    pub fn reckon(&mut self, now: Instant, rate: Bitrate) {
        if self.since_reckoned(now, rate).is_none_or(|(passed, came)| passed >= came) {
            self.reckoned = Some((now, self.pattern.front()));
        }
    }

    /// The client is elsewhere: what was kept for it here, and is kept no more.
    pub fn leave(&mut self) -> K {
        (self.asked, self.reckoned, self.taken, self.has_own_pace) = (None, None, None, false);
        self.pattern.leave();
        std::mem::take(&mut self.kept)
    }
}

/// What is known of a client that reads a file, or writes it.
#[derive(Debug, Default)]
pub struct Player<K> {
    /// Where it asked for something last.
    pub here: ReadCursor<K>,
    /// Where it did before, and may read on, the latest first.
    pub elsewhere: Vec<ReadCursor<K>>,
    /// The header or index at which it looked since, and how often it looked at any.
    header_probe: Option<(Range<u64>, u32)>,
    /// Whether it takes more than is played.
    pub pace: LeakyBucket,
    /// Whether it rests as players do.
    pub rest: CopyDetector,
    /// Its clock, if it has one.
    pub beat: RateEstimator,
    /// Its turn among clients without a rate.
    pub allowance: VirtualClock,
    /// When it asked for something first, and last.
    pub came: Option<Instant>,
    asks: Option<Instant>,
    /// Its requests went on where others were at least once: it is a stream, should the file have a rate, until it
    /// copies or is gone. One that searches for a picture is still the player that it was.
    pub has_played: bool,
    /// It begins to play: what follows its first requests need not be there before.
    pub starts_by: Option<Instant>,
}

impl<K: Default> Player<K> {
    /// It takes the file as fast as it can.
    pub fn copies(&self) -> bool {
        self.pace.copies() || self.rest.copies()
    }

    /// When it asked for something last.
    pub fn asked_last(&self) -> Option<Instant> {
        self.asks
    }

    /// It is a stream, should the file have a rate.
    fn plays(&self) -> bool {
        self.has_played && !self.copies()
    }

    /// Its requests went on where others were, at the place at which it is.
    pub fn is_run(&self) -> bool {
        self.here.pattern.is_run()
    }

    /// Where it is and where it was.
    pub fn places(&self) -> impl Iterator<Item = &ReadCursor<K>> {
        std::iter::once(&self.here).chain(&self.elsewhere)
    }

    /// Where it is, and where else it reads on.
    pub fn runs(&self) -> impl Iterator<Item = &ReadCursor<K>> {
        std::iter::once(&self.here).chain(self.elsewhere.iter().filter(|place| place.pattern.is_run()))
    }

    /// Where it is and where it was.
    pub fn places_mut(&mut self) -> impl Iterator<Item = &mut ReadCursor<K>> {
        std::iter::once(&mut self.here).chain(&mut self.elsewhere)
    }

    /// The place to which a byte belongs: the nearest of those at which it reads on, and of where it is.
    pub fn place_of(&self, at: u64) -> &ReadCursor<K> {
        let distance = |place: &&ReadCursor<K>| place.pattern.front().abs_diff(at);
        self.runs().min_by_key(distance).unwrap_or(&self.here)
    }

    /// These bytes may go on where it was before it came here. Then it is there again, and reads on at both places. A search in a
    /// short clip comes near its old places all the time. So where it does not read on yet it has to go on with few requests
    /// between.
    pub fn return_to(&mut self, offset: u64, end: u64) {
        let goes_on = |ReadCursor { pattern, .. }: &ReadCursor<K>| {
            if pattern.is_run() { !pattern.would_jump(offset, end) } else { pattern.is_close(offset, end) }
        };
        if self.here.pattern.would_jump(offset, end)
            && let Some(index) = self.elsewhere.iter().position(goes_on)
        {
            self.elsewhere[..=index].rotate_right(1);
            std::mem::swap(&mut self.here, &mut self.elsewhere[0]);
        }
    }

    /// It only looks at a header or an index, and plays on where it is. A client that goes on behind what it looked at has jumped
    /// there.
    pub fn probes_header(&mut self, offset: u64, end: u64, size: u64) -> bool {
        let is_look = end - offset <= HEADER_PROBE && (end <= EDGE || offset.saturating_add(EDGE) >= size);
        let goes_on = |place: &ReadCursor<K>| !place.pattern.would_jump(offset, end);
        let is_elsewhere = is_look && self.is_run() && !self.places().any(goes_on);
        let before = self.header_probe.take();
        if !is_elsewhere {
            return false;
        }
        let looks = before.as_ref().map_or(1, |(_, looks)| looks + 1);
        let is_a_look = before.is_none_or(|(before, _)| {
            let (begin, behind) = (before.start.saturating_sub(EDGE), before.end.saturating_add(EDGE));
            before == (offset..end) || behind < offset || end < begin
        });
        let stays = looks <= MOST_HEADER_PROBES && is_a_look;
        if stays {
            self.header_probe = Some((offset..end, looks));
        }
        stays
    }

    /// This is a header or an index at which it only looks.
    pub fn looks_at(&self, at: u64) -> bool {
        self.header_probe.as_ref().is_some_and(|(look, _)| look.contains(&at))
    }

    /// It asks for something here; what was kept for it where it does not read any more.
    pub fn leave_old_places(&mut self, now: Instant) -> Vec<K> {
        let gap = self.asks.replace(now).map_or(Duration::ZERO, |before| now.saturating_since(before));
        self.here.away = Duration::ZERO;
        self.elsewhere.iter_mut().for_each(|place| place.away += gap.min(LONGEST_GAP));
        let mut left = Vec::new();
        let mut count = 1;
        self.elsewhere.retain_mut(|place| {
            count += 1;
            let stays = count <= MOST_PLACES && place.away < LEFT_AFTER;
            if !stays {
                left.push(place.leave());
            }
            stays
        });
        left
    }

    /// How many streams it is, should the file have a rate; 0: it copies, or does not play.
    pub fn streams(&self) -> u32 {
        let has_own_pace = |place: &&ReadCursor<K>| place.has_own_pace && place.away < LONGEST_GAP;
        if self.plays() { self.runs().filter(has_own_pace).count().max(1) as u32 } else { 0 }
    }

    /// What of `lead`, which is that of one stream, it has here, and what it may have ahead of it here: at all its places together
    /// no more than so many streams, and a block that is played for all of them.
    pub fn share(&self, lead: ReadaheadWindow) -> (ReadaheadWindow, u64) {
        let runs = self.runs().count() as u64;
        let whole = |request: u64| (request / PAGE * PAGE).max(PAGE);
        if runs == 1 {
            return (ReadaheadWindow { request: whole(lead.request), ..lead }, u64::MAX);
        }
        if !lead.is_promised {
            // What a reader gets without a promise is short: a place that takes more than its part leaves the others nothing.
            let elsewhere: u64 = self.runs().skip(1).map(ReadCursor::ahead).sum();
            let most = (lead.bytes + lead.request).saturating_sub(elsewhere);
            let request = whole(lead.request * 2 / runs);
            return (
                ReadaheadWindow { bytes: lead.bytes.saturating_sub(lead.request) / runs, request, ..lead },
                most,
            );
        }
        let streams = u64::from(self.streams().max(1));
        let elsewhere: u64 = self.runs().skip(1).map(|place| place.ahead() + REQUEST).sum();
        let request = whole(lead.request * streams / runs);
        let most = (lead.bytes * streams + lead.request).saturating_sub(elsewhere);
        (ReadaheadWindow { bytes: lead.bytes * streams / runs, request, ..lead }, most)
    }
}

/// A client of unknown rate.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Its turn among clients without a rate.
    pub allowance: VirtualClock,
    /// Its clock, if it has one.
    pub beat: RateEstimator,
    /// When it asked for something first.
    pub came: Instant,
}

impl Client {
    /// By when it should have what lies `ahead` of what it asks for. A client that rests is no copy, however much it takes.
    pub fn due(&self, now: Instant, ahead: Bytes) -> Option<Instant> {
        let allowance = if self.beat.rests(now) { VirtualClock::default() } else { self.allowance };
        allowance.due(now, ahead)
    }

    /// It may play: it rests between what it asks for, or has only just come.
    pub fn may_play(&self, now: Instant) -> bool {
        self.beat.may_rest(now, self.came)
    }
}
