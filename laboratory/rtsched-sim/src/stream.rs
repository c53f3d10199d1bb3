//! Players and recorders.
//!
//! **For:** what a stream asks for and when, and whether its frames are in time. **Excludes:** admission, which the
//! simulation asks for. **State:** each stream its own. **Invariants:** a frame is on time or late, never both; a stream
//! that keeps to its rate asks for one request a period, with the granted time to its deadline, after a jump no less than
//! a period behind the one before (the rate-based execution of Jeffay and Goddard 1999).
//!
//! **A player** starts when its first request is due at the latest, and from then on shows a frame each time the rate
//! has delivered one more. A request is due when the first of its bytes is, and is made the granted time before. A frame
//! is late when its bytes are not there when it is shown; the show goes on. **A recorder** makes a request when it has
//! recorded the request's length; it is late when the bytes recorded meanwhile exceed its buffer, which is when the
//! granted time is over; the frames recorded from then until the request completes are lost, which counts as late.

use crate::policy::Grant;
use crate::stage::{Alarm, Client, Happening, STREAMS, Stage, UNADMITTED, Wish};
use crate::workload::{Layout, StreamGroup, StreamKind};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::{Class, RequestId, StreamId};
use std::collections::BTreeMap;
use units::{Bitrate, Bytes, DeviceOffset, Duration, Instant};

/// Files begin at multiples of this.
const FILE_ALIGNMENT: u64 = 8 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Stream {
    index: usize,
    pub(crate) group: usize,
    kind: StreamKind,
    /// What it asked for.
    pub(crate) rate: Bitrate,
    /// What it plays or records.
    pace: Bitrate,
    unit: u64,
    layout: Layout,
    /// Where the file lies; of a fragmented one: what its pieces' places are drawn from.
    base: u64,
    file: u64,
    pub(crate) rng: SmallRng,
    state: State,
    /// The shape of its requests; they are promised if it is admitted.
    shape: Grant,
    pub(crate) admitted: bool,
    /// It was admitted when it came.
    came_admitted: bool,
    visits: u64,
    /// Frames late, and whether it was demoted, since it came.
    visit_late: u64,
    visit_demoted: bool,
    jumps: u64,
    /// When it may ask for its first bytes.
    starts: Instant,
    /// When byte 0 since the last jump is shown, or was recorded.
    anchor: Instant,
    /// Since when it waits for its first bytes.
    waits_since: Option<Instant>,
    /// Where in the file byte 0 is.
    origin: u64,
    /// Bytes asked for since the last jump.
    asked: u64,
    /// No deadline before this: a period behind the last one.
    earliest_deadline: Instant,
    blocks: BTreeMap<u64, Block>,
    next_block: u64,
    /// It has as much outstanding as it may.
    stalled: bool,
    pub(crate) tally: Tally,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Away,
    Active,
    Paused(Instant),
}

/// One request, or a piece of one where the file lies in pieces.
#[derive(Clone, Debug)]
struct Block {
    start: u64,
    end: u64,
    due: Instant,
    id: RequestId,
    deadline_before: Instant,
}

/// What became of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// It was admitted at least once.
    pub(crate) admitted: u32,
    pub(crate) refused: u32,
    pub(crate) demoted: u32,
    /// Frames while it was admitted.
    pub(crate) on_time: u64,
    pub(crate) late: u64,
    /// Of the late ones those of visits in which it was demoted, before or after.
    pub(crate) late_demoted: u64,
    /// Frames while it was not.
    pub(crate) unpromised_on_time: u64,
    pub(crate) unpromised_late: u64,
    /// The most by which a request was late, or (negative) early, milliseconds, while it was admitted.
    pub(crate) tardiness_max_ms: Option<f64>,
    /// The longest wait for the first bytes after joining or a jump, milliseconds.
    pub(crate) first_bytes_max_ms: f64,
    /// Length of the last request.
    pub(crate) request: Bytes,
    /// The last granted time to a deadline.
    pub(crate) window: Duration,
}

impl Stream {
    /// `nth` of its group.
    pub(crate) fn new(
        index: usize,
        group: usize,
        nth: u32,
        spec: &StreamGroup,
        capacity: Bytes,
        seed: u64,
    ) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let rate = spec.rate(nth);
        let file = (spec.file_mib << 20).min(capacity.as_u64() / 2).max(FILE_ALIGNMENT);
        let places = (capacity.as_u64() - file) / FILE_ALIGNMENT;
        Self {
            index,
            group,
            kind: spec.kind,
            rate,
            pace: Bitrate((rate.0 as f64 * spec.speed) as u64),
            unit: spec.unit(rate).as_u64(),
            layout: spec.layout,
            base: rng.random_range(0..places.max(1)) * FILE_ALIGNMENT,
            file,
            rng,
            state: State::Away,
            shape: Grant {
                request: Bytes::from_mib(8),
                deadline: rate.time_for(Bytes::from_mib(8)),
                since: Instant::ZERO,
            },
            admitted: false,
            came_admitted: false,
            visits: 0,
            visit_late: 0,
            visit_demoted: false,
            jumps: 0,
            starts: Instant::ZERO,
            anchor: Instant::ZERO,
            waits_since: None,
            origin: 0,
            asked: 0,
            earliest_deadline: Instant::ZERO,
            blocks: BTreeMap::new(),
            next_block: 0,
            stalled: false,
            tally: Tally::default(),
        }
    }

    pub(crate) fn id(&self) -> StreamId {
        StreamId(self.index as u64)
    }

    fn client(&self) -> Client {
        Client::Stream(self.index)
    }

    pub(crate) fn is_away(&self) -> bool {
        self.state == State::Away
    }

    /// It has a guarantee, or had one and waits for it.
    pub(crate) fn holds(&self) -> bool {
        !self.is_away() && self.came_admitted
    }

    /// Where its file lies, about: the mean place of its bytes.
    pub(crate) fn place(&self) -> DeviceOffset {
        let pieces = self.pieces_of_file();
        let middle = |(offset, length): &(DeviceOffset, Bytes)| {
            (offset.as_u64() + length.as_u64() / 2) as f64 * length.as_u64() as f64
        };
        DeviceOffset((pieces.iter().map(middle).sum::<f64>() / self.file as f64) as u64)
    }

    /// Where all of its file lies.
    pub(crate) fn pieces_of_file(&self) -> Vec<(DeviceOffset, Bytes)> {
        self.pieces(0, self.file)
    }

    /// How often it has come.
    pub(crate) fn visits(&self) -> u64 {
        self.visits
    }

    pub(crate) fn kind(&self) -> StreamKind {
        self.kind
    }

    /// A moment of `span`, in seconds from now.
    pub(crate) fn draw(&mut self, span: [f64; 2]) -> f64 {
        if span[0] < span[1] { self.rng.random_range(span[0]..span[1]) } else { span[0] }
    }

    /// Begins, admitted or not.
    pub(crate) fn join(&mut self, stage: &mut Stage<'_>, grant: Option<Grant>) {
        self.admitted = grant.is_some();
        self.came_admitted = self.admitted;
        if let Some(grant) = grant {
            self.shape = grant;
        }
        self.visits += 1;
        self.state = State::Active;
        self.begin(stage);
    }

    pub(crate) fn leave(&mut self, stage: &mut Stage<'_>) {
        self.close(stage);
        let late = std::mem::take(&mut self.visit_late);
        if std::mem::take(&mut self.visit_demoted) {
            self.tally.late_demoted += late;
        }
        self.tally.late += late;
        self.state = State::Away;
        self.admitted = false;
    }

    pub(crate) fn seek(&mut self, stage: &mut Stage<'_>) {
        if self.state == State::Active {
            self.close(stage);
            self.begin(stage);
        }
    }

    pub(crate) fn pause(&mut self, now: Instant) {
        if self.state == State::Active {
            self.state = State::Paused(now);
        }
    }

    pub(crate) fn resume(&mut self, stage: &mut Stage<'_>) {
        if let State::Paused(since) = self.state {
            self.postpone(stage.now.saturating_since(since));
            self.state = State::Active;
            self.jumps += 1;
            self.ask(stage);
        }
    }

    /// A pause lasts until `since`, because its time was given to others meanwhile.
    pub(crate) fn wait_until(&mut self, now: Instant, since: Instant) {
        let wait = since.saturating_since(now);
        self.postpone(wait);
        self.earliest_deadline += wait;
    }

    fn postpone(&mut self, time: Duration) {
        self.anchor += time;
        for block in self.blocks.values_mut() {
            block.due += time;
        }
    }

    /// The policy changed the shape of its requests, or its mind.
    pub(crate) fn granted(&mut self, stage: &mut Stage<'_>, grant: Option<Grant>) {
        if self.state == State::Away {
            return;
        }
        let demoted = self.admitted && grant.is_none();
        self.tally.demoted += u32::from(demoted);
        self.visit_demoted |= demoted;
        self.admitted = grant.is_some();
        if let Some(grant) = grant {
            self.shape = grant;
        }
        if self.state == State::Active {
            self.jumps += 1;
            if self.asked == 0 && self.starts > stage.now {
                self.set_out(stage.now);
            }
            self.ask(stage);
        }
    }

    fn begin(&mut self, stage: &mut Stage<'_>) {
        self.jumps += 1;
        self.asked = 0;
        self.origin = self.rng.random_range(0..self.file >> 20) << 20;
        self.set_out(stage.now);
        self.waits_since = Some(stage.now);
        self.ask(stage);
    }

    /// Fixes when its bytes are due, by what it is granted now.
    fn set_out(&mut self, now: Instant) {
        self.starts = now.max(self.shape.since);
        self.anchor = match self.kind {
            StreamKind::Reader => (self.starts + self.shape.deadline).max(self.earliest_deadline),
            StreamKind::Writer => self.starts,
        };
    }

    /// The timer of [`Alarm::Ask`].
    pub(crate) fn wake(&mut self, stage: &mut Stage<'_>, jumps: u64) {
        if self.state == State::Active && jumps == self.jumps {
            self.ask(stage);
        }
    }

    /// Makes every request that is to be made by now.
    fn ask(&mut self, stage: &mut Stage<'_>) {
        loop {
            let Grant { request, deadline: window, .. } = self.shape;
            let period = self.pace.time_for(request).max(Duration::from_nanos(1));
            let most = (window.as_nanos() / period.as_nanos()) as u64 + 3;
            let outstanding: u64 = self.blocks.values().map(|block| block.end - block.start).sum();
            self.stalled = outstanding >= request.as_u64() * most;
            if self.stalled {
                return;
            }
            let end = self.end_of_request(request.as_u64());
            let (made, due) = match self.kind {
                StreamKind::Reader => {
                    let due = self.anchor + self.pace.time_for(Bytes(self.asked));
                    (due.saturating_before(window), due)
                }
                StreamKind::Writer => {
                    let full = self.anchor + self.pace.time_for(Bytes(end));
                    // Where requests have become shorter, it still has the buffer of the longer ones.
                    (full, (full + window).max(self.earliest_deadline))
                }
            };
            // A player's first request after a jump is made at once, even where its deadline is farther away.
            let first = self.kind == StreamKind::Reader && self.asked == 0;
            let made = if first { self.starts } else { made };
            if made > stage.now {
                stage.alarm(made, self.client(), Alarm::Ask(self.jumps));
                return;
            }
            self.request(stage, end, due);
        }
    }

    /// Where a request of `length` ends that begins with the first byte not asked for. Where the file lies in pieces, a
    /// request no longer than a piece ends with it, and one that is longer has no more pieces than it must.
    fn end_of_request(&self, length: u64) -> u64 {
        let Layout::Fragmented { extent_kib } = self.layout else { return self.asked + length };
        let extent = extent_kib << 10;
        let inside = (self.origin + self.asked) % self.file % extent;
        if length <= extent {
            return self.asked + length.min(extent - inside);
        }
        self.asked + (inside + length) / extent * extent - inside
    }

    /// Asks for the bytes up to `end`, the first of which is due at `due`. Where the file lies in pieces there, each is due
    /// when its own first byte is.
    fn request(&mut self, stage: &mut Stage<'_>, end: u64, due: Instant) {
        let (request, start) = (Bytes(end - self.asked), self.asked);
        let owner = if self.admitted { STREAMS } else { UNADMITTED };
        let class = if self.admitted { Class::RealTime } else { Class::BestEffort };
        let (direction, stream) = (self.kind.direction(), Some(self.id()));
        for (offset, length) in self.pieces(self.asked, end) {
            let mark = self.next_block;
            self.next_block += 1;
            let due = due + self.pace.time_for(Bytes(self.asked - start));
            let deadline = Some(due);
            let wish = Wish { mark, class, stream, direction, offset, length, deadline, owner };
            let id = stage.enqueue(self.client(), wish);
            let piece_end = self.asked + length.as_u64();
            let deadline_before = self.earliest_deadline;
            self.blocks.insert(mark, Block { start: self.asked, end: piece_end, due, id, deadline_before });
            self.asked = piece_end;
            self.earliest_deadline = due + self.pace.time_for(length);
        }
        (self.tally.request, self.tally.window) = (request, self.shape.deadline);
    }

    /// Where bytes of the file lie on the device.
    fn pieces(&self, start: u64, end: u64) -> Vec<(DeviceOffset, Bytes)> {
        let mut pieces: Vec<(DeviceOffset, Bytes)> = Vec::new();
        let (mut at, end) = (self.origin + start, self.origin + end);
        while at < end {
            let place = at % self.file;
            let (offset, whole) = match self.layout {
                Layout::Contiguous => (self.base + place, self.file - place),
                Layout::Fragmented { extent_kib } => {
                    let extent = extent_kib << 10;
                    let inside = place % extent;
                    let left = (extent - inside).min(self.file - place);
                    (self.extent(place / extent, extent) + inside, left)
                }
            };
            let length = whole.min(end - at);
            pieces.push((DeviceOffset(offset), Bytes(length)));
            at += length;
        }
        pieces
    }

    /// A place for the nth extent of a fragmented file, the same every time: within twice the file's length from its base,
    /// or before it.
    fn extent(&self, nth: u64, extent: u64) -> u64 {
        let mixed = (nth + self.base).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let places = (self.base + self.file) / extent;
        mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) % places.max(1) * extent
    }

    /// Where its clock stands.
    fn clock(&self, now: Instant) -> Instant {
        match self.state {
            State::Paused(since) => since.min(now),
            State::Away | State::Active => now,
        }
    }

    /// A request is there.
    pub(crate) fn completed(&mut self, stage: &mut Stage<'_>, mark: u64) {
        let Some(block) = self.blocks.remove(&mark) else { return };
        if let Some(since) = self.waits_since.take() {
            let waited = stage.now.saturating_since(since).as_secs_f64() * 1e3;
            self.tally.first_bytes_max_ms = self.tally.first_bytes_max_ms.max(waited);
        }
        let now = self.clock(stage.now);
        let late = self.late(&block, now);
        if late > 0 {
            stage.tell(&Happening::Late { stream: self.id(), frames: late, due: block.due });
        }
        self.count(self.frames(&block) - late, late);
        if self.admitted {
            let (now, due) = (now.as_nanos() as f64, block.due.as_nanos() as f64);
            let tardiness = (now - due) / 1e6;
            let most = self.tally.tardiness_max_ms.unwrap_or(f64::NEG_INFINITY);
            self.tally.tardiness_max_ms = Some(most.max(tardiness));
        }
        if self.stalled && self.state == State::Active {
            self.ask(stage);
        }
    }

    fn count(&mut self, on_time: u64, late: u64) {
        let tally = &mut self.tally;
        if self.admitted {
            tally.on_time += on_time;
            self.visit_late += late;
        } else {
            tally.unpromised_on_time += on_time;
            tally.unpromised_late += late;
        }
    }

    /// Frames whose last byte is in the block.
    fn frames(&self, block: &Block) -> u64 {
        block.end / self.unit - block.start / self.unit
    }

    /// How many of them are late if the block is there at `now`.
    fn late(&self, block: &Block, now: Instant) -> u64 {
        let frames = self.frames(block);
        match self.kind {
            StreamKind::Reader => self.shown_before(now).saturating_sub(block.start / self.unit).min(frames),
            StreamKind::Writer => {
                let lost = self.pace.bytes_in(now.saturating_since(block.due));
                lost.as_u64().div_ceil(self.unit).min(frames)
            }
        }
    }

    /// Frames that a player had to show before `now`.
    fn shown_before(&self, now: Instant) -> u64 {
        let before = now.saturating_before(Duration::from_nanos(1));
        self.pace.bytes_in(before.saturating_since(self.anchor)).as_u64() / self.unit
    }

    /// It ends, or jumps: what was due and is not there is late, what is queued is taken back, what is at the device comes
    /// for nothing.
    pub(crate) fn close(&mut self, stage: &mut Stage<'_>) {
        let now = self.clock(stage.now);
        let blocks = std::mem::take(&mut self.blocks);
        for block in blocks.values().rev() {
            let late = self.late(block, now);
            self.count(0, late);
            // What is taken back might as well not have been asked for.
            if stage.cancel(block.id) {
                self.earliest_deadline = self.earliest_deadline.min(block.deadline_before.max(now));
            }
        }
        let unasked = match self.kind {
            StreamKind::Reader => self.shown_before(now).saturating_sub(self.asked / self.unit),
            StreamKind::Writer => {
                let recorded = self.pace.bytes_in(now.saturating_since(self.anchor)).as_u64();
                let Grant { request, deadline, .. } = self.shape;
                let buffer = request.as_u64() + self.pace.bytes_in(deadline).as_u64();
                recorded.saturating_sub(self.asked + buffer).div_ceil(self.unit)
            }
        };
        self.count(0, unasked);
    }
}
