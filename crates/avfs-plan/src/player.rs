//! A client that plays again what it played.
//!
//! **For:** when it asks for what, by the terms that it has now, and whether it had to wait. It reads ahead as the filesystem does for it
//! ([`ReadaheadWindow`]), fills a second of its own memory, shows what it has at its rate from then on, and waits where bytes are missing; a
//! wait is one lateness, and everything behind it is wanted so much later. **Excludes:** scheduler and device. **State:** where it is. **Invariants:** a function of
//! the calls; never more ahead of it than its window and one request.

use avfs_streams::REQUEST;
use avfs_streams::policy::{DEADLINE_WINDOW, Policy};
use avfs_streams::window::ReadaheadWindow;
use rtsched::{Class, Direction, Request, RequestId, StreamId, Terms};
use std::collections::{BTreeMap, VecDeque};
use units::{Bitrate, Bytes, DeviceOffset, Duration, Instant};

/// What a client has of its own before it begins to show anything: players of the laboratory have as much. An assumption: a client that
/// has more is late less.
const BUFFER: Duration = Duration::from_secs(1);
/// A client that does not begin for so long is late: what does not play is never late otherwise. As in the laboratory.
const BEGINS_WITHIN: Duration = Duration::from_secs(5);

/// What is played on and on: from when on it could be asked for, and where it lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The client came here then.
    pub from: Instant,
    /// Where the bytes lie on the device, in the order in which they are shown.
    pub ranges: Vec<(u64, u64)>,
}

/// How a client was served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Requests that ended.
    pub requests: u64,
    /// How often it had to wait.
    pub late: u32,
    /// How long at most.
    pub longest: Duration,
    /// From coming somewhere to a full buffer, at most.
    pub start: Duration,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// First byte in the segment, and the first behind it.
    start: u64,
    end: u64,
    done: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub struct Player {
    stream: StreamId,
    rate: Bitrate,
    segments: VecDeque<Segment>,
    terms: Option<Terms>,
    /// It is a stream, whether it was promised anything or not.
    is_declared: bool,
    class: Class,
    current: Option<Current>,
    served: Served,
}

#[derive(Debug)]
struct Current {
    segment: Segment,
    /// The range in which the next request begins, and how far in it.
    next: (usize, u64),
    asked: u64,
    /// In the order in which they are shown.
    pieces: VecDeque<(RequestId, Piece)>,
    /// The instant at which the segment's first byte is shown, counted with all waits since.
    shown_from: Option<Instant>,
    /// Bytes from the segment's begin that are there.
    ready: u64,
}

impl Player {
    /// Of a stream that plays these at this rate.
    pub fn new(stream: StreamId, rate: Bitrate, segments: Vec<Segment>, class: Class) -> Self {
        let segments = segments.into();
        let (terms, current, served) = (None, None, Served::default());
        Self { stream, rate, segments, terms, is_declared: false, class, current, served }
    }

    /// Its name.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// How fast it shows what it has.
    pub fn rate(&self) -> Bitrate {
        self.rate
    }

    /// The scheduler has answered.
    pub fn promised(&mut self, terms: Option<Terms>) {
        self.terms = terms;
    }

    /// It is a stream from now on, or no more.
    pub fn declared(&mut self, is_declared: bool) {
        self.is_declared = is_declared;
        if !is_declared {
            self.terms = None;
        }
    }

    /// When it will ask next, without an answer: `None`: not before one.
    pub fn next_ask(&self) -> Option<Instant> {
        let coming = self.segments.front().map(|segment| segment.from);
        let playing = self.current.as_ref().and_then(|current| {
            let shown_from = current.shown_from?;
            if current.is_asked_for() {
                return None;
            }
            let behind = current.asked.saturating_sub(self.window().bytes);
            Some(shown_from + self.rate.time_for(Bytes(behind)).saturating_sub(BUFFER))
        });
        [coming, playing].into_iter().flatten().min()
    }

    fn window(&self) -> ReadaheadWindow {
        match self.terms {
            Some(terms) => ReadaheadWindow::promised(terms, self.rate),
            None => ReadaheadWindow::unpromised(&Policy::default(), u64::MAX),
        }
    }

    /// The requests that it makes now; true where it left what it had asked for before, which is to be taken back.
    pub fn ask(&mut self, now: Instant, tags: &mut u64, requests: &mut Vec<Request>) -> bool {
        let mut has_left = false;
        while let Some(segment) = self.segments.pop_front_if(|segment| segment.from <= now) {
            has_left |= self.current.is_some();
            let (next, pieces) = ((0, 0), VecDeque::new());
            self.current = Some(Current { segment, next, asked: 0, pieces, shown_from: None, ready: 0 });
        }
        let window = self.window();
        let Some(current) = &mut self.current else { return has_left };
        while current.may_ask(now, self.rate, window.bytes) {
            // What begins is asked for in short pieces: the sooner there is something to show.
            let most =
                if current.shown_from.is_some() { window.request } else { REQUEST.min(window.request) };
            let Some((offset, length)) = current.take(most) else { break };
            let (start, end) = (current.asked, current.asked + length);
            current.asked = end;
            // It is wanted when the client comes to it, which is before that is shown.
            let deadline = match current.shown_from {
                Some(shown_from) => shown_from + self.rate.time_for(Bytes(start)).saturating_sub(BUFFER),
                None => now + DEADLINE_WINDOW + self.rate.time_for(Bytes(start - current.ready)),
            };
            *tags += 1;
            let id = RequestId(*tags);
            current.pieces.push_back((id, Piece { start, end, done: None }));
            let is_refused = self.is_declared && self.terms.is_none() && start > 0;
            let class = if is_refused { self.class.max(Class::BestEffort) } else { self.class };
            requests.push(Request {
                id,
                class,
                stream: Some(self.stream),
                direction: Direction::Read,
                offset: DeviceOffset(offset),
                length: Bytes(length),
                deadline: Some(deadline.max(now)),
            });
        }
        has_left
    }

    /// One of its requests has ended.
    pub fn ended(&mut self, now: Instant, request: RequestId) {
        let Some(current) = &mut self.current else { return };
        let Some((_, piece)) = current.pieces.iter_mut().find(|(id, _)| *id == request) else { return };
        piece.done = Some(now);
        self.served.requests += 1;
        while let Some((_, piece)) = current.pieces.pop_front_if(|(_, piece)| piece.done.is_some()) {
            current.ready = piece.end;
            match current.shown_from {
                None if current.ready >= self.rate.bytes_in(BUFFER).0 || current.is_asked_for() => {
                    current.shown_from = Some(now);
                    self.served.began(now.saturating_since(current.segment.from));
                }
                None => {}
                Some(shown_from) => {
                    let due = shown_from + self.rate.time_for(Bytes(piece.start));
                    let late = now.saturating_since(due);
                    current.shown_from = Some(shown_from + late);
                    self.served.note(late);
                }
            }
        }
    }

    /// How it was served until now, with what it still waits for.
    pub fn served(&self, now: Instant) -> Served {
        let mut served = self.served;
        if let Some(current) = &self.current
            && let Some((_, piece)) = current.pieces.front()
        {
            match current.shown_from {
                Some(shown_from) => {
                    served.note(now.saturating_since(shown_from + self.rate.time_for(Bytes(piece.start))));
                }
                None => served.began(now.saturating_since(current.segment.from)),
            }
        }
        served
    }
}

impl Served {
    fn began(&mut self, start: Duration) {
        self.start = self.start.max(start);
        self.note(start.saturating_sub(BEGINS_WITHIN));
    }

    fn note(&mut self, late: Duration) {
        self.late += u32::from(late > Duration::ZERO);
        self.longest = self.longest.max(late);
    }
}

impl Current {
    /// It has no more than so many bytes ahead of it.
    fn may_ask(&self, now: Instant, rate: Bitrate, window: u64) -> bool {
        let behind = self.asked.saturating_sub(window);
        // It has taken what it shows, and what it has of its own.
        behind <= self.ready
            && match self.shown_from {
                Some(from) => now >= from + rate.time_for(Bytes(behind)).saturating_sub(BUFFER),
                None => behind <= rate.bytes_in(BUFFER).0,
            }
    }

    fn is_asked_for(&self) -> bool {
        self.next.0 >= self.segment.ranges.len()
    }

    /// The next bytes, in one piece.
    fn take(&mut self, most: u64) -> Option<(u64, u64)> {
        let (range, within) = self.next;
        let (offset, length) = *self.segment.ranges.get(range)?;
        let taken = (length - within).min(most.max(1));
        self.next = if within + taken < length { (range, within + taken) } else { (range + 1, 0) };
        Some((offset + within, taken))
    }
}

/// What a stream played, by when it asked for what and had it: `(asked, ended, offset, length)` in turn, with the rate at which it showed
/// it. Where it asked for something after it should have shown it, it had stopped, or jumped: it came there then.
pub fn segments(played: &[(Instant, Instant, u64, u64)], rate: Bitrate) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut shown_from = Instant::ZERO;
    let mut bytes = 0_u64;
    for &(asked, ended, offset, length) in played {
        let due = shown_from + rate.time_for(Bytes(bytes));
        if segments.is_empty() || asked > due + DEADLINE_WINDOW {
            segments.push(Segment { from: asked, ranges: Vec::new() });
            (shown_from, bytes) = (ended, 0);
        }
        if let Some(Segment { ranges, .. }) = segments.last_mut() {
            match ranges.last_mut() {
                Some((start, all)) if *start + *all == offset => *all += length,
                _ => ranges.push((offset, length)),
            }
        }
        bytes = bytes.saturating_add(length);
    }
    segments
}

/// Requests by whose they are.
#[derive(Debug, Default)]
pub struct Owners(BTreeMap<RequestId, usize>);

impl Owners {
    /// One is that client's.
    pub fn note(&mut self, request: RequestId, client: usize) {
        self.0.insert(request, client);
    }

    /// Whose one was that has ended.
    pub fn take(&mut self, request: RequestId) -> Option<usize> {
        self.0.remove(&request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Bitrate = Bitrate::from_megabits(80);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// A player of 10 MB/s with 40 MB in one piece, promised requests of 8 MB within a second.
    fn player() -> Player {
        let segment = Segment { from: at(1000), ranges: vec![(0, 40_000_000)] };
        let mut player = Player::new(StreamId(1), RATE, vec![segment], Class::RealTime);
        player.declared(true);
        let (request, period, deadline) =
            (Bytes(8_000_000), Duration::from_millis(800), Duration::from_millis(1000));
        player.promised(Some(Terms { request, period, deadline, since: Instant::ZERO }));
        player
    }

    fn ask(player: &mut Player, now: u64, tags: &mut u64) -> Vec<(u64, u64)> {
        let mut requests = Vec::new();
        player.ask(at(now), tags, &mut requests);
        requests.iter().map(|request| (request.offset.0, request.length.0)).collect()
    }

    #[test]
    fn it_reads_ahead_by_its_terms_and_waits_once_for_what_is_late() {
        let (mut player, mut tags) = (player(), 0);
        assert_eq!((player.next_ask(), ask(&mut player, 999, &mut tags)), (Some(at(1000)), vec![]));
        // A second ahead, and one request.
        assert_eq!(ask(&mut player, 1000, &mut tags), [(0, 8_000_000), (8_000_000, 8_000_000)]);
        player.ended(at(1100), RequestId(1));
        // It has taken 8 MB into its own 10, so 6 more are asked for.
        assert_eq!(ask(&mut player, 1100, &mut tags), [(16_000_000, 8_000_000)]);
        player.ended(at(1200), RequestId(2));
        assert_eq!(player.served(at(1200)).start, Duration::from_millis(200));
        // Of 24 MB that were asked for, 4 must have been shown before a second is left, beside what it has of its own.
        assert_eq!(player.next_ask(), Some(at(1600)));
        assert_eq!(ask(&mut player, 1600, &mut tags), [(24_000_000, 8_000_000)]);
        // The third request is to be shown at 2800, and is 300 ms late; so the fourth is to be shown later.
        player.ended(at(3100), RequestId(3));
        player.ended(at(3900), RequestId(4));
        let served = player.served(at(3900));
        assert_eq!((served.late, served.longest), (1, Duration::from_millis(300)));
    }

    #[test]
    fn what_it_waits_for_at_the_end_counts() {
        let (mut player, mut tags) = (player(), 0);
        ask(&mut player, 1000, &mut tags);
        assert_eq!(
            (player.served(at(6000)).start, player.served(at(6000)).late),
            (Duration::from_secs(5), 0)
        );
        assert_eq!(player.served(at(6001)).late, 1);
        player.ended(at(6000), RequestId(1));
        player.ended(at(6000), RequestId(2));
        ask(&mut player, 6000, &mut tags);
        assert_eq!(player.served(at(8600)).longest, Duration::from_secs(1));
    }

    #[test]
    fn who_stops_and_who_jumps_comes_there_when_it_did() {
        let played = |asked, offset| (at(asked), at(asked + 100), offset, 10_000_000);
        let goes_on = [played(0, 0), played(100, 10_000_000), played(1000, 20_000_000)];
        let whole = vec![Segment { from: at(0), ranges: vec![(0, 30_000_000)] }];
        assert_eq!(segments(&goes_on, RATE), whole);
        let stops = [played(0, 0), played(100, 10_000_000), played(9000, 20_000_000)];
        let parts = segments(&stops, RATE);
        assert_eq!((parts.len(), parts[1].from), (2, at(9000)));
    }
}
