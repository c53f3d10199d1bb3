//! What a volume does for a stream, reduced to what the scheduler sees of it.
//!
//! **For:** turning what a client reads or writes through one open file into requests with deadlines, by the terms that it was
//! granted. **Excludes:** the client, and whether it is late: [`avfs_workloads`] says that. Admission, which the simulation asks
//! for. **State:** each stream its own. **Invariants:** a stream that keeps to its rate asks for one request a period, with the
//! granted time to its deadline, after a jump no less than a period behind the one before (the rate-based execution of Jeffay
//! and Goddard 1999); a client whose requests are in time is in time.
//!
//! **A player** is given its first unit when the first request is due and a unit has been played: from then on each unit is due
//! before its turn. A request is due when the first of its bytes is, and is made the granted time before. A client that takes a
//! unit later than its clock says has paused, or was late: its clock is set back by as much. **A recorder's** request is made
//! when as much has been written, and is due after the granted time. What is recorded meanwhile is taken into memory; when that
//! is full, a unit waits until a request is done.

use crate::loose::FILE_ALIGNMENT;
use crate::policy::Grant;
use crate::stage::{Alarm, Client, STREAMS, Stage, UNADMITTED, Wish};
use avfs_workloads::{Answer, ClientReport, ClientSpec, Operation, Outcome, Pattern, Told};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::{Class, Direction, RequestId, StreamId};
use std::collections::{BTreeMap, VecDeque};
use units::{Bitrate, Bytes, DeviceOffset, Duration, Instant};

#[derive(Clone, Debug)]
pub(crate) struct Stream {
    index: usize,
    /// At the transport.
    client: usize,
    pub(crate) group: String,
    pub(crate) told: Told,
    /// It may lose its guarantee because it pauses.
    pub(crate) pauses: bool,
    direction: Direction,
    /// What it asked for.
    pub(crate) rate: Bitrate,
    /// What it plays or records.
    pub(crate) pace: Bitrate,
    unit: u64,
    /// What the client holds itself.
    buffer: u64,
    /// Where the file lies; of one in pieces: what its pieces' places are drawn from.
    base: u64,
    file: u64,
    /// A file is open.
    present: bool,
    /// The shape of its requests; they are promised if it is admitted.
    shape: Grant,
    pub(crate) admitted: bool,
    /// It was admitted when it came.
    came_admitted: bool,
    /// Units late, and whether its guarantee was interrupted, since it came.
    visit_late: u64,
    visit_interrupted: bool,
    /// Counts alarms: all but the last are void.
    alarms: u64,
    /// When it may ask for its first bytes.
    starts: Instant,
    /// When byte 0 since the last jump is due.
    anchor: Instant,
    /// Where in the file byte 0 is; `None`: nothing was read since it came.
    origin: Option<u64>,
    /// Bytes that the client asked for since the last jump, those it has been given, and those asked for at the device.
    wanted: u64,
    taken: u64,
    asked: u64,
    /// Of a recorder: bytes that are written, and what may be unwritten.
    done: u64,
    room: u64,
    /// No deadline before this: a period behind the last one.
    earliest_deadline: Instant,
    blocks: BTreeMap<u64, Block>,
    next_block: u64,
    /// When it is woken next.
    alarm: Option<Instant>,
    /// Operations of the client that are not answered: where they end, and their tags.
    waits: VecDeque<(u64, u64)>,
    /// It closes when everything is written.
    closing: Option<u64>,
    /// What the client had counted when it was looked at last.
    counted: (u64, u64),
    pub(crate) tally: Tally,
}

/// One request, or a piece of one where the file lies in pieces.
#[derive(Clone, Debug)]
struct Block {
    start: u64,
    length: u64,
    due: Instant,
    id: RequestId,
    deadline_before: Instant,
}

/// What became of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    pub(crate) admitted: u32,
    pub(crate) refused: u32,
    pub(crate) demoted: u32,
    /// Units while it was admitted.
    pub(crate) units: u64,
    pub(crate) late: u64,
    /// Of the late ones those of visits in which its guarantee was interrupted, before or after.
    pub(crate) late_interrupted: u64,
    /// Units while it was not.
    pub(crate) unpromised_units: u64,
    pub(crate) unpromised_late: u64,
    /// The most by which a request was late, or (negative) early, milliseconds, while it was admitted.
    pub(crate) tardiness_max_ms: Option<f64>,
    /// The longest wait for a first picture, milliseconds.
    pub(crate) picture_max_ms: f64,
    /// Length of the last request.
    pub(crate) request: Bytes,
    /// The last granted time to a deadline.
    pub(crate) window: Duration,
}

impl Stream {
    pub(crate) fn new(
        (index, client): (usize, usize),
        (group, told): (&str, Told),
        spec: &ClientSpec,
        capacity: Bytes,
        seed: u64,
    ) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let pattern = &spec.pattern;
        let pace = pattern.megabits().unwrap_or_default();
        let rate = told.megabits.unwrap_or(pace);
        let [rate, pace] = [rate, pace].map(|megabits| Bitrate((megabits * 1e6) as u64));
        let file = file_of(pattern, told, capacity).as_u64();
        let places = capacity.as_u64().saturating_sub(file) / FILE_ALIGNMENT;
        let shape = Grant {
            request: Bytes::from_mib(8),
            deadline: rate.time_for(Bytes::from_mib(8)),
            since: Instant::ZERO,
        };
        Self {
            index,
            client,
            group: group.to_owned(),
            told,
            pauses: pattern.pauses(),
            direction: if pattern.recorded_megabits().is_some() { Direction::Write } else { Direction::Read },
            rate,
            pace,
            unit: pattern.unit().as_u64(),
            buffer: pattern.unit().as_u64() * pattern.buffered_units(),
            base: rng.random_range(0..places.max(1)) * FILE_ALIGNMENT,
            file,
            present: false,
            shape,
            admitted: false,
            came_admitted: false,
            visit_late: 0,
            visit_interrupted: false,
            alarms: 0,
            starts: Instant::ZERO,
            anchor: Instant::ZERO,
            origin: None,
            wanted: 0,
            taken: 0,
            asked: 0,
            done: 0,
            room: 0,
            earliest_deadline: Instant::ZERO,
            blocks: BTreeMap::new(),
            next_block: 0,
            alarm: None,
            waits: VecDeque::new(),
            closing: None,
            counted: (0, 0),
            tally: Tally::default(),
        }
    }

    pub(crate) fn id(&self) -> StreamId {
        StreamId(self.index as u64)
    }

    pub(crate) fn client(&self) -> usize {
        self.client
    }

    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    pub(crate) fn is_present(&self) -> bool {
        self.present
    }

    /// It has a guarantee, or had one and waits for it.
    pub(crate) fn holds(&self) -> bool {
        self.present && self.came_admitted
    }

    /// Its file lies in pieces no longer than this.
    pub(crate) fn contiguous(&self) -> Option<Bytes> {
        self.told.extent_kib.map(Bytes::from_kib)
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

    /// Its file is open, admitted or not.
    pub(crate) fn join(&mut self, grant: Option<Grant>) {
        self.admitted = grant.is_some();
        self.came_admitted = self.admitted;
        if let Some(grant) = grant {
            self.shape = grant;
        }
        (self.present, self.origin, self.room) = (true, None, 0);
        (self.wanted, self.taken, self.asked, self.done) = (0, 0, 0, 0);
        self.forget_alarm();
    }

    fn forget_alarm(&mut self) {
        self.alarms += 1;
        self.alarm = None;
    }

    /// What its client did counts.
    pub(crate) fn leave(&mut self, stage: &mut Stage<'_>, answers: &mut Vec<Outcome>) {
        self.let_go(stage, answers);
        let late = std::mem::take(&mut self.visit_late);
        if std::mem::take(&mut self.visit_interrupted) {
            self.tally.late_interrupted += late;
        }
        self.tally.late += late;
        (self.present, self.admitted) = (false, false);
    }

    /// A read or a write of the client.
    pub(crate) fn transfer(
        &mut self,
        stage: &mut Stage<'_>,
        tag: u64,
        operation: &Operation,
        answers: &mut Vec<Outcome>,
    ) {
        match *operation {
            Operation::Read { offset, length, .. } => {
                let is_next = self
                    .origin
                    .is_some_and(|origin| (origin + self.wanted) % self.file == offset % self.file);
                if !is_next {
                    self.jump(stage, offset % self.file, answers);
                }
                self.set_back(stage.now);
                self.wanted += u64::from(length);
            }
            Operation::Write { length, .. } => {
                if self.origin.is_none() {
                    self.origin = Some(0);
                    self.starts = stage.now.max(self.shape.since);
                }
                self.wanted += u64::from(length);
            }
            _ => return,
        }
        self.waits.push_back((self.wanted, tag));
        self.go_on(stage, answers);
    }

    /// The client closes its file; true: there is nothing to write, and it has left.
    pub(crate) fn close(&mut self, stage: &mut Stage<'_>, tag: u64, answers: &mut Vec<Outcome>) -> bool {
        self.closing = Some(tag);
        self.go_on(stage, answers);
        self.has_closed()
    }

    /// It closes, and all is written.
    pub(crate) fn has_closed(&self) -> bool {
        self.closing.is_some() && (self.direction == Direction::Read || self.done >= self.taken)
    }

    /// The tag of the close that is to be answered.
    pub(crate) fn take_closing(&mut self) -> Option<u64> {
        self.closing.take()
    }

    /// A client that asks for a unit later than its clock says has paused, or was late.
    fn set_back(&mut self, now: Instant) {
        if self.wanted < self.buffer || self.asked == 0 {
            return;
        }
        let turn = self.given_from() + self.pace.time_for(Bytes(self.wanted - self.buffer));
        let lag = now.saturating_since(turn);
        self.anchor += lag;
        for block in self.blocks.values_mut() {
            block.due += lag;
        }
    }

    /// When a player has its first unit, at the earliest.
    fn given_from(&self) -> Instant {
        self.anchor + self.pace.time_for(Bytes(self.unit))
    }

    /// Whether what it is promised has begun: before that no unit can be late.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.direction == Direction::Write || self.origin.is_some() && now > self.given_from()
    }

    fn jump(&mut self, stage: &mut Stage<'_>, offset: u64, answers: &mut Vec<Outcome>) {
        self.let_go(stage, answers);
        self.forget_alarm();
        (self.wanted, self.taken, self.asked) = (0, 0, 0);
        self.origin = Some(offset);
        self.set_out(stage.now);
    }

    /// Fixes when its bytes are due, by what it is granted now.
    fn set_out(&mut self, now: Instant) {
        self.starts = now.max(self.shape.since);
        self.anchor = (self.starts + self.shape.deadline).max(self.earliest_deadline);
    }

    /// A pause lasts until `since`, because its time was given to others meanwhile.
    pub(crate) fn wait_until(&mut self, now: Instant, since: Instant) {
        let wait = since.saturating_since(now);
        self.visit_interrupted |= wait > Duration::ZERO;
        self.anchor += wait;
        self.earliest_deadline += wait;
        for block in self.blocks.values_mut() {
            block.due += wait;
        }
    }

    /// The policy changed the shape of its requests, or its mind.
    pub(crate) fn granted(
        &mut self,
        stage: &mut Stage<'_>,
        grant: Option<Grant>,
        answers: &mut Vec<Outcome>,
    ) {
        if !self.present {
            return;
        }
        let demoted = self.admitted && grant.is_none();
        self.tally.demoted += u32::from(demoted);
        self.visit_interrupted |= demoted;
        self.admitted = grant.is_some();
        if let Some(grant) = grant {
            self.shape = grant;
        }
        if self.origin.is_some() {
            self.forget_alarm();
            if self.asked == 0 && self.direction == Direction::Read && self.starts > stage.now {
                self.set_out(stage.now);
            }
            self.go_on(stage, answers);
        }
    }

    /// A timer.
    pub(crate) fn wake(&mut self, stage: &mut Stage<'_>, alarm: Alarm, answers: &mut Vec<Outcome>) {
        let Alarm::Ask(number) = alarm;
        if self.present && number == self.alarms {
            self.alarm = None;
            self.go_on(stage, answers);
        }
    }

    /// It has to look again then; what is due sooner may be due later when it looks.
    fn wake_at(&mut self, stage: &mut Stage<'_>, at: Instant) {
        if self.alarm.is_none_or(|alarm| at < alarm) {
            // The one before is void.
            self.alarms += 1;
            stage.alarm(at, Client::Stream(self.index), Alarm::Ask(self.alarms));
            self.alarm = Some(at);
        }
    }

    /// Makes every request that is to be made by now, and answers what can be answered.
    fn go_on(&mut self, stage: &mut Stage<'_>, answers: &mut Vec<Outcome>) {
        match self.direction {
            Direction::Write => {
                self.take_in(answers);
                self.write(stage);
            }
            _ => {
                self.give(stage, answers);
                self.ask(stage);
            }
        }
    }

    /// A player's reads that can be answered.
    fn give(&mut self, stage: &mut Stage<'_>, answers: &mut Vec<Outcome>) {
        let there = self.blocks.first_key_value().map_or(self.asked, |(_, block)| block.start);
        let given_from = self.given_from();
        while let Some((end, tag)) = self.waits.front().copied().filter(|(end, _)| *end <= there) {
            if stage.now < given_from {
                self.wake_at(stage, given_from);
                return;
            }
            self.waits.pop_front();
            self.taken = end;
            answers.push(self.answer(tag));
        }
    }

    fn answer(&self, tag: u64) -> Outcome {
        Outcome { client: self.client, tag, answer: Ok(Answer::Done) }
    }

    /// A recorder's units for which memory has room.
    fn take_in(&mut self, answers: &mut Vec<Outcome>) {
        let Grant { request, deadline, .. } = self.shape;
        let promised = request.as_u64() + self.pace.bytes_in(deadline).as_u64() + self.unit;
        // Where requests have become shorter, it still has the buffer of the longer ones.
        self.room = self.room.max(promised);
        while let Some((end, tag)) =
            self.waits.front().copied().filter(|(end, _)| *end <= self.done + self.room)
        {
            self.waits.pop_front();
            self.taken = end;
            answers.push(self.answer(tag));
        }
    }

    /// As many requests as may be ahead of the client.
    fn most_ahead(&self) -> u64 {
        let Grant { request, deadline: window, .. } = self.shape;
        let period = self.pace.time_for(request).max(Duration::from_nanos(1));
        request.as_u64() * ((window.as_nanos() / period.as_nanos()) as u64 + 3)
    }

    fn ask(&mut self, stage: &mut Stage<'_>) {
        if self.origin.is_none() || self.closing.is_some() {
            return;
        }
        loop {
            let Grant { request, deadline: window, .. } = self.shape;
            if self.asked - self.taken >= self.most_ahead() {
                return;
            }
            let due = self.anchor + self.pace.time_for(Bytes(self.asked));
            // The first request after a jump is made at once, even where its deadline is farther away.
            let made = if self.asked == 0 { self.starts } else { due.saturating_before(window) };
            if made > stage.now {
                self.wake_at(stage, made);
                return;
            }
            self.request(stage, self.end_of_request(request.as_u64()), due);
        }
    }

    fn write(&mut self, stage: &mut Stage<'_>) {
        if self.origin.is_some() && self.starts > stage.now {
            self.wake_at(stage, self.starts);
            return;
        }
        loop {
            let Grant { request, deadline: window, .. } = self.shape;
            let end = self.end_of_request(request.as_u64());
            let end = if self.closing.is_some() { end.min(self.taken) } else { end };
            if self.asked - self.done >= self.most_ahead() || end > self.taken || end == self.asked {
                return;
            }
            let due = (stage.now + window).max(self.earliest_deadline);
            self.request(stage, end, due);
        }
    }

    /// Where a request of `length` ends that begins with the first byte not asked for. Where the file lies in pieces, a
    /// request no longer than a piece ends with it, and one that is longer has no more pieces than it must.
    fn end_of_request(&self, length: u64) -> u64 {
        let Some(extent) = self.contiguous().map(Bytes::as_u64) else { return self.asked + length };
        let inside = (self.origin.unwrap_or_default() + self.asked) % self.file % extent;
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
        let (direction, stream) = (self.direction, Some(self.id()));
        for (offset, length) in self.pieces(self.asked, end) {
            let mark = self.next_block;
            self.next_block += 1;
            let due = due + self.pace.time_for(Bytes(self.asked - start));
            let deadline = Some(due);
            let wish = Wish { mark, class, stream, direction, offset, length, deadline, owner };
            let id = stage.enqueue(Client::Stream(self.index), wish);
            let deadline_before = self.earliest_deadline;
            let length = length.as_u64();
            self.blocks.insert(mark, Block { start: self.asked, length, due, id, deadline_before });
            self.asked += length;
            self.earliest_deadline = due + self.pace.time_for(Bytes(length));
        }
        (self.tally.request, self.tally.window) = (request, self.shape.deadline);
    }

    /// Where bytes of the file lie on the device.
    fn pieces(&self, start: u64, end: u64) -> Vec<(DeviceOffset, Bytes)> {
        let mut pieces: Vec<(DeviceOffset, Bytes)> = Vec::new();
        let origin = self.origin.unwrap_or_default();
        let (mut at, end) = (origin + start, origin + end);
        while at < end {
            let place = at % self.file;
            let (offset, whole) = match self.contiguous().map(Bytes::as_u64) {
                None => (self.base + place, self.file - place),
                Some(extent) => {
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

    /// A place for the nth extent of a file in pieces, the same every time: within twice the file's length from its base,
    /// or before it.
    fn extent(&self, nth: u64, extent: u64) -> u64 {
        let mixed = (nth + self.base).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let places = (self.base + self.file) / extent;
        mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) % places.max(1) * extent
    }

    /// A request is there.
    pub(crate) fn completed(&mut self, stage: &mut Stage<'_>, mark: u64, answers: &mut Vec<Outcome>) {
        let Some(block) = self.blocks.remove(&mark) else { return };
        self.done += block.length;
        if self.admitted {
            let (now, due) = (stage.now.as_nanos() as f64, block.due.as_nanos() as f64);
            let tardiness = (now - due) / 1e6;
            let most = self.tally.tardiness_max_ms.unwrap_or(f64::NEG_INFINITY);
            self.tally.tardiness_max_ms = Some(most.max(tardiness));
        }
        self.go_on(stage, answers);
    }

    /// What its client has counted; how many units were late since it was looked at last.
    pub(crate) fn counted(&mut self, report: &ClientReport) -> u64 {
        let (units, late) = (report.units - self.counted.0, report.late - self.counted.1);
        self.counted = (report.units, report.late);
        self.tally.picture_max_ms = report.first.longest_ms();
        if self.admitted {
            self.tally.units += units;
            self.visit_late += late;
        } else {
            self.tally.unpromised_units += units;
            self.tally.unpromised_late += late;
        }
        late
    }

    /// It ends, or jumps: what is queued is taken back, what is at the device comes for nothing, and nothing more is waited for.
    fn let_go(&mut self, stage: &mut Stage<'_>, answers: &mut Vec<Outcome>) {
        let blocks = std::mem::take(&mut self.blocks);
        for block in blocks.values().rev() {
            // What is taken back might as well not have been asked for.
            if stage.cancel(block.id) {
                self.earliest_deadline = self.earliest_deadline.min(block.deadline_before.max(stage.now));
            }
        }
        let waits = std::mem::take(&mut self.waits);
        answers.extend(waits.iter().map(|(_, tag)| self.answer(*tag)));
    }
}

/// How long a client's file is: whole units, and half of the device at the most.
pub(crate) fn file_of(pattern: &Pattern, told: Told, capacity: Bytes) -> Bytes {
    let unit = pattern.unit().as_u64().max(1);
    let file = Bytes::from_mib(told.file_mib).as_u64().min(capacity.as_u64() / 2).max(FILE_ALIGNMENT);
    Bytes((file / unit).max(1) * unit)
}
