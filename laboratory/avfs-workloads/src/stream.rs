//! Players and recorders.
//!
//! **State:** which units are on their way, which are there, when the next one's turn is. **Invariants:** a unit is counted
//! late once; playing pauses until a late unit is there, so that one delay is not counted again by every unit behind it.

use crate::chasing::Chasing;
use crate::desk::{Desk, Ended};
use crate::editing::Editing;
use crate::operation::{Answer, Operation};
use crate::pattern::{ChaseSpec, EditorSpec, StreamSpec};
use crate::report::ClientReport;
use crate::spec::ClientSpec;
use std::collections::{BTreeMap, BTreeSet};
use units::{Bytes, Duration, Instant};

#[derive(Debug)]
struct Unit {
    asked: Instant,
    file: Option<u64>,
    pieces: u64,
    /// A piece of it lay beyond the end of the file.
    beyond: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The one file of a stream that is not a sequence.
    Directory,
    OpenClip,
    Open(u64),
    Piece(u64),
    Close(u64),
    /// It leaves.
    Leave,
}

#[derive(Debug)]
enum Turn {
    /// Fills its buffer.
    Player { ready: BTreeSet<u64>, next_play: u64, play_at: Option<Instant>, stalled: bool },
    /// Hands its units over one after the other, as an application does that writes from one thread; what was taken
    /// meanwhile waits in its buffer.
    Recorder {
        next_take: Option<Instant>,
        /// One is being handed over.
        busy: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Stream {
    directory: String,
    spec: StreamSpec,
    sequence: bool,
    unit: Bytes,
    period: Duration,
    buffered: u64,
    /// Units of the clip; a player begins again after the last.
    clip_units: u64,
    first: u64,
    /// Of who does not play on and on.
    editing: Option<Editing>,
    /// Of who plays what grows.
    chasing: Option<Chasing>,
    /// When it began to ask.
    begun: Option<Instant>,
    /// The same until it has what it shows first.
    waits_for_first: Option<Instant>,
    file: Option<u64>,
    next: u64,
    units: BTreeMap<u64, Unit>,
    steps: BTreeMap<u64, Step>,
    turn: Turn,
    presence: Presence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Stays,
    /// It ends what is under way, and closes.
    Leaves,
    /// It has closed.
    Gone,
    /// Its file was not opened.
    Refused,
}

impl Stream {
    fn new(spec: &ClientSpec, stream: &StreamSpec, sequence: bool, turn: Turn) -> Self {
        let clip_units = (spec.clip.as_u64() / stream.unit().as_u64()).max(1);
        Self {
            directory: spec.directory.clone(),
            spec: *stream,
            sequence,
            unit: stream.unit(),
            period: stream.period(),
            buffered: stream.buffered(),
            clip_units,
            first: ((clip_units as f64 * spec.position) as u64).min(clip_units - 1),
            editing: None,
            chasing: None,
            begun: None,
            waits_for_first: None,
            file: None,
            next: 0,
            units: BTreeMap::new(),
            steps: BTreeMap::new(),
            turn,
            presence: Presence::Stays,
        }
    }

    pub(crate) fn player(spec: &ClientSpec, stream: &StreamSpec, sequence: bool) -> Self {
        let turn = Turn::Player { ready: BTreeSet::new(), next_play: 0, play_at: None, stalled: false };
        Self::new(spec, stream, sequence, turn)
    }

    pub(crate) fn editor(spec: &ClientSpec, editor: &EditorSpec) -> Self {
        let mut player = Self::player(spec, &editor.stream(), false);
        player.editing = Some(Editing::new(editor, player.first, player.clip_units, spec.random()));
        player
    }

    pub(crate) fn chaser(spec: &ClientSpec, chaser: &ChaseSpec) -> Self {
        let player = Self::player(spec, &chaser.stream(), false);
        // It begins where the take does, and the take has no end.
        Self { chasing: Some(Chasing::new(player.period)), first: 0, clip_units: u64::MAX, ..player }
    }

    pub(crate) fn recorder(spec: &ClientSpec, stream: &StreamSpec, sequence: bool) -> Self {
        Self::new(spec, stream, sequence, Turn::Recorder { next_take: None, busy: false })
    }

    pub(crate) fn chases(&self) -> bool {
        self.chasing.is_some()
    }

    fn writes(&self) -> bool {
        matches!(self.turn, Turn::Recorder { .. })
    }

    fn ask(&mut self, step: Step, operation: Operation, desk: &mut Desk) {
        let tag = desk.ask(operation);
        self.steps.insert(tag, step);
    }

    pub(crate) fn act(&mut self, now: Instant, desk: &mut Desk) {
        if self.begun.is_none() {
            (self.begun, self.waits_for_first) = (Some(now), Some(now));
            if self.writes() {
                let operation = Operation::MakeDirectory { name: self.directory.clone() };
                self.ask(Step::Directory, operation, desk);
            } else {
                self.open_clip(desk);
            }
        }
        if self.presence != Presence::Stays {
            self.go(desk);
            return;
        }
        if self.edit(now, desk) {
            return;
        }
        if !self.sequence && self.file.is_none() || self.steps.values().any(|step| *step == Step::Directory) {
            return;
        }
        let begun = self.begun.unwrap_or(now);
        let mut wanted = Vec::new();
        match &mut self.turn {
            Turn::Player { ready, next_play, play_at, stalled } => {
                if play_at.is_none() && ready.len() as u64 >= self.buffered {
                    *play_at = Some(now);
                    desk.report.start.record(now.saturating_since(begun));
                }
                while let Some(at) = play_at.filter(|at| *at <= now && !*stalled) {
                    if ready.remove(next_play) {
                        *next_play += 1;
                        *play_at = Some(at + self.period);
                        desk.report.units += 1;
                    } else {
                        desk.report.late += 1;
                        *stalled = true;
                    }
                }
                while self.next < *next_play + self.buffered {
                    wanted.push((self.next, now));
                    self.next += 1;
                }
            }
            Turn::Recorder { next_take, .. } => {
                let at = next_take.get_or_insert(now);
                while *at <= now {
                    // A camera that cannot get rid of its units drops them.
                    if self.units.len() as u64 + wanted.len() as u64 >= 2 * self.buffered {
                        desk.report.late += 1;
                    } else {
                        wanted.push((self.next, *at));
                        self.next += 1;
                    }
                    *at += self.period;
                }
            }
        }
        for (unit, asked) in wanted {
            self.units.insert(unit, Unit { asked, file: self.file, pieces: 0, beyond: false });
            if !self.writes() {
                self.start(unit, desk);
            }
        }
        while let Some(unit) = self.chasing.as_mut().and_then(|chasing| chasing.again(now)) {
            self.start(unit, desk);
        }
        self.hand_over(desk);
    }

    /// From now on it begins nothing new.
    pub(crate) fn leave(&mut self) {
        if self.presence == Presence::Stays {
            self.presence = Presence::Leaves;
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.presence, Presence::Gone | Presence::Refused)
    }

    /// A recorder hands over what it has recorded, and a player waits for what it has asked for; then the file is closed.
    fn go(&mut self, desk: &mut Desk) {
        self.hand_over(desk);
        if self.presence == Presence::Leaves && self.steps.is_empty() {
            let closing = self.editing.as_mut().and_then(Editing::closing);
            match self.file.take().or(closing) {
                Some(file) => self.ask(Step::Leave, Operation::Close { file }, desk),
                None => self.presence = Presence::Gone,
            }
        }
    }

    /// A recorder's oldest unit, if none is under way.
    fn hand_over(&mut self, desk: &mut Desk) {
        let Turn::Recorder { busy: busy @ false, .. } = &mut self.turn else { return };
        if let Some(oldest) = self.units.keys().next().copied() {
            *busy = true;
            self.start(oldest, desk);
        }
    }

    /// What an editor does between playing and playing. True: it does not play now.
    fn edit(&mut self, now: Instant, desk: &mut Desk) -> bool {
        let (Some(editing), Turn::Player { ready, next_play, play_at, stalled }) =
            (&mut self.editing, &mut self.turn)
        else {
            return false;
        };
        if let Some(next) = editing.next(now, *play_at, *next_play, self.next) {
            if next.is_elsewhere {
                ready.clear();
                // Answers that are still on their way are of no use any more.
                self.units.clear();
                *next_play = self.next;
            }
            (*play_at, *stalled) = (None, false);
            if next.closes {
                editing.close(self.file.take());
            }
        }
        if self.steps.is_empty()
            && let Some(file) = editing.closing()
        {
            desk.ask(Operation::Close { file });
        }
        let rests = editing.rests(now);
        if !rests && editing.begins_again() {
            (self.begun, self.waits_for_first) = (Some(now), Some(now));
            if self.file.is_none() {
                self.open_clip(desk);
                return true;
            }
        }
        rests
    }

    fn open_clip(&mut self, desk: &mut Desk) {
        if self.sequence {
            return;
        }
        let write = self.writes();
        let name = self.spec.file(&self.directory, write || self.chasing.is_some());
        self.ask(Step::OpenClip, Operation::Open { name, write }, desk);
    }

    fn start(&mut self, unit: u64, desk: &mut Desk) {
        if self.sequence {
            let write = self.writes();
            let frame = if write { unit } else { (self.first + unit) % self.clip_units };
            let name = self.spec.frame(&self.directory, write, frame);
            self.ask(Step::Open(unit), Operation::Open { name, write }, desk);
        } else {
            self.transfer(unit, desk);
        }
    }

    fn transfer(&mut self, unit: u64, desk: &mut Desk) {
        let Some(file) = self.units.get(&unit).and_then(|unit| unit.file) else { return };
        let start = match (self.sequence, self.writes()) {
            (true, _) => 0,
            (false, true) => unit * self.unit.as_u64(),
            (false, false) => self.place(unit) * self.unit.as_u64(),
        };
        let (mut done, length) = (0, self.unit.as_u64());
        while done < length {
            let piece = (length - done).min(u64::from(desk.largest)) as u32;
            let offset = start + done;
            let operation = if self.writes() {
                Operation::Write { file, offset, length: piece }
            } else {
                Operation::Read { file, offset, length: piece }
            };
            self.ask(Step::Piece(unit), operation, desk);
            if let Some(unit) = self.units.get_mut(&unit) {
                unit.pieces += 1;
            }
            done += u64::from(piece);
        }
    }

    /// Where a player's unit is in the clip, in units.
    fn place(&self, unit: u64) -> u64 {
        match &self.editing {
            Some(editing) => editing.place(unit),
            None => (self.first + unit) % self.clip_units,
        }
    }

    pub(crate) fn completed(&mut self, Ended { now, tag, answer }: Ended, desk: &mut Desk) {
        let Some(step) = self.steps.remove(&tag) else { return };
        let opened = match answer {
            Some(Answer::Opened { file, .. }) => Some(file),
            _ => None,
        };
        match step {
            Step::Directory => self.open_clip(desk),
            Step::OpenClip => {
                self.file = opened;
                if opened.is_none() {
                    self.presence = Presence::Refused;
                }
            }
            Step::Leave => self.presence = Presence::Gone,
            Step::Open(number) => match (opened, self.units.get_mut(&number)) {
                (Some(file), Some(unit)) => {
                    unit.file = Some(file);
                    self.transfer(number, desk);
                }
                _ => self.there(number, now, desk),
            },
            Step::Piece(number) => {
                let Some(unit) = self.units.get_mut(&number) else { return };
                unit.pieces -= 1;
                unit.beyond |= answer == Some(Answer::Beyond);
                if unit.pieces > 0 {
                    return;
                }
                if let Some(chasing) = self.chasing.as_mut().filter(|_| std::mem::take(&mut unit.beyond)) {
                    chasing.is_incomplete(now, number);
                    return;
                }
                let file = unit.file;
                if !self.writes() || !self.sequence {
                    self.there(number, now, desk);
                }
                if let Some(file) = file.filter(|_| self.sequence) {
                    self.ask(Step::Close(number), Operation::Close { file }, desk);
                }
            }
            Step::Close(number) => {
                if self.writes() {
                    self.there(number, now, desk);
                }
            }
        }
    }

    /// A unit is read, or acknowledged.
    fn there(&mut self, number: u64, now: Instant, desk: &mut Desk) {
        let Some(unit) = self.units.remove(&number) else { return };
        let delay = now.saturating_since(unit.asked);
        desk.report.latency.record(delay);
        desk.report.bytes += self.unit.as_u64();
        match &mut self.turn {
            Turn::Player { ready, next_play, play_at, stalled } => {
                ready.insert(number);
                if number == *next_play
                    && let Some(begun) = self.waits_for_first.take()
                {
                    desk.report.first.record(now.saturating_since(begun));
                }
                if *stalled && number == *next_play {
                    let late = play_at.map_or(Duration::ZERO, |at| now.saturating_since(at));
                    desk.report.latest_ms = desk.report.latest_ms.max(late.as_secs_f64() * 1e3);
                    (*play_at, *stalled) = (Some(now), false);
                }
            }
            Turn::Recorder { busy, .. } => {
                *busy = false;
                desk.report.units += 1;
                let late = delay.saturating_sub(self.period * self.buffered as u32);
                if late > Duration::ZERO {
                    desk.report.late += 1;
                    desk.report.latest_ms = desk.report.latest_ms.max(late.as_secs_f64() * 1e3);
                }
            }
        }
    }

    /// Counts what is late and still on its way at the end; a player's is counted. A client that has left waits for nothing.
    pub(crate) fn settle(&self, now: Instant, report: &mut ClientReport) {
        if matches!(self.presence, Presence::Leaves | Presence::Gone) {
            return;
        }
        if self.writes() {
            let buffer = self.period * self.buffered as u32;
            let waits = self.units.values().map(|unit| now.saturating_since(unit.asked));
            for late in waits.filter(|wait| *wait > buffer) {
                report.late += 1;
                report.latest_ms = report.latest_ms.max((late - buffer).as_secs_f64() * 1e3);
            }
        } else if let Some(begun) = self.begun.filter(|_| report.units == 0) {
            // It never filled its buffer.
            report.late += 1;
            report.start.record(now.saturating_since(begun));
        }
        if let Some(begun) = self.waits_for_first.filter(|_| !self.writes()) {
            report.first.record(now.saturating_since(begun));
        }
    }

    pub(crate) fn next_event(&self) -> Option<Instant> {
        if self.presence != Presence::Stays {
            return None;
        }
        match &self.turn {
            Turn::Player { play_at, stalled, .. } => {
                let plays = play_at.filter(|_| !*stalled);
                let edits = self.editing.as_ref().and_then(Editing::next_event);
                let grows = self.chasing.as_ref().and_then(Chasing::next_event);
                plays.into_iter().chain(edits).chain(grows).min()
            }
            Turn::Recorder { next_take, .. } => *next_take,
        }
    }
}
