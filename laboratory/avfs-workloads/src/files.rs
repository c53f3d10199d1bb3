//! Those who are in nobody's time: copies, random readers, an office.

use crate::content::STAMPED;
use crate::desk::{Desk, Ended};
use crate::operation::{Answer, Operation};
use crate::pattern::{CopySpec, ScrubSpec};
use crate::report::ClientReport;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use units::{Bytes, Duration, Instant};

/// Reads or writes files from end to end, one after the other.
#[derive(Debug)]
pub(crate) struct Files {
    files: Vec<(String, Bytes)>,
    copy: CopySpec,
    write: bool,
    repeat: bool,
    /// Files begun.
    begun: usize,
    stage: Stage,
    position: u64,
    requests: BTreeMap<u64, (Instant, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Closed,
    Making,
    Opening,
    Open(u64),
    Closing,
    Finished,
}

impl Files {
    pub(crate) fn new(files: Vec<(String, Bytes)>, copy: CopySpec, write: bool, repeat: bool) -> Self {
        let stage = if files.is_empty() { Stage::Finished } else { Stage::Closed };
        Self { files, copy, write, repeat, begun: 0, stage, position: 0, requests: BTreeMap::new() }
    }

    fn current(&self) -> &(String, Bytes) {
        &self.files[self.begun % self.files.len()]
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.stage == Stage::Finished
    }

    pub(crate) fn act(&mut self, now: Instant, desk: &mut Desk) {
        match self.stage {
            Stage::Closed => {
                let name = self.current().0.clone();
                match name.rsplit_once('/') {
                    Some((directory, _)) if self.write => {
                        desk.ask(Operation::MakeDirectory { name: directory.to_owned() });
                        self.stage = Stage::Making;
                    }
                    _ => self.open(desk),
                }
            }
            Stage::Open(file) => self.transfer(now, file, desk),
            _ => {}
        }
    }

    fn open(&mut self, desk: &mut Desk) {
        desk.ask(Operation::Open { name: self.current().0.clone(), write: self.write });
        self.stage = Stage::Opening;
        self.position = 0;
    }

    fn transfer(&mut self, now: Instant, file: u64, desk: &mut Desk) {
        let length = self.current().1.as_u64();
        let request = (self.copy.request_kib << 10).min(u64::from(desk.largest));
        while self.requests.len() < self.copy.in_flight as usize {
            if self.position >= length && self.repeat && !self.write {
                self.position = 0;
            }
            let piece = request.min(length.saturating_sub(self.position));
            if piece == 0 {
                break;
            }
            let (offset, length) = (self.position, piece as u32);
            let operation = if self.write {
                Operation::Write { file, offset, length }
            } else {
                Operation::Read { file, offset, length }
            };
            let tag = desk.ask(operation);
            self.requests.insert(tag, (now, piece));
            self.position += piece;
        }
        if self.requests.is_empty() {
            desk.ask(Operation::Close { file });
            self.stage = Stage::Closing;
        }
    }

    pub(crate) fn completed(&mut self, Ended { now, tag, answer }: Ended, desk: &mut Desk) {
        if let Some((asked, length)) = self.requests.remove(&tag) {
            desk.report.latency.record(now.saturating_since(asked));
            desk.report.bytes += if answer.is_some() { length } else { 0 };
            return;
        }
        match (self.stage, answer) {
            (Stage::Making, _) => self.open(desk),
            (Stage::Opening, Some(Answer::Opened { file, .. })) => self.stage = Stage::Open(file),
            // What cannot be opened is not tried again: the failure is in the report.
            (Stage::Opening, _) => self.stage = Stage::Finished,
            (Stage::Closing, _) => {
                desk.report.units += 1;
                self.begun += 1;
                let more = self.repeat || self.begun < self.files.len();
                self.stage = if more { Stage::Closed } else { Stage::Finished };
            }
            _ => {}
        }
    }
}

/// Several files at once.
#[derive(Debug)]
pub(crate) struct Copies {
    copies: Vec<Files>,
    /// Which of them asked for what.
    asked: BTreeMap<u64, usize>,
}

impl Copies {
    pub(crate) fn new(copies: Vec<Files>) -> Self {
        Self { copies, asked: BTreeMap::new() }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.copies.iter().all(Files::is_finished)
    }

    pub(crate) fn act(&mut self, now: Instant, desk: &mut Desk) {
        for index in 0..self.copies.len() {
            self.note(index, desk, |files, desk| files.act(now, desk));
        }
    }

    pub(crate) fn completed(&mut self, ended: Ended, desk: &mut Desk) {
        if let Some(index) = self.asked.remove(&ended.tag) {
            self.note(index, desk, |files, desk| files.completed(ended, desk));
        }
    }

    /// Lets one of them do something, and notes what it asks for.
    fn note(&mut self, index: usize, desk: &mut Desk, mut act: impl FnMut(&mut Files, &mut Desk)) {
        let first = desk.next_tag;
        act(&mut self.copies[index], desk);
        self.asked.extend((first..desk.next_tag).map(|tag| (tag, index)));
    }
}

/// Reads anywhere in a file: as fast as it gets it, or with pauses, as who searches.
#[derive(Debug)]
pub(crate) struct RandomReader {
    name: String,
    copy: CopySpec,
    clip: Bytes,
    random: SmallRng,
    /// Of who searches: between a picture and the next jump.
    pause: Option<Duration>,
    /// The next jump.
    next: Option<Instant>,
    begun: bool,
    file: Option<u64>,
    requests: BTreeMap<u64, Instant>,
}

impl RandomReader {
    pub(crate) fn new(name: String, copy: CopySpec, clip: Bytes, seed: f64) -> Self {
        Self {
            name,
            copy,
            clip,
            random: SmallRng::seed_from_u64(seed.to_bits()),
            pause: None,
            next: None,
            begun: false,
            file: None,
            requests: BTreeMap::new(),
        }
    }

    pub(crate) fn scrubber(name: String, scrub: ScrubSpec, clip: Bytes, seed: f64) -> Self {
        let copy = CopySpec { request_kib: scrub.picture_kib, in_flight: 1, files_at_once: 1 };
        Self { pause: Some(Duration::from_millis(scrub.pause_ms)), ..Self::new(name, copy, clip, seed) }
    }

    pub(crate) fn act(&mut self, now: Instant, desk: &mut Desk) {
        if !self.begun {
            self.begun = true;
            desk.ask(Operation::Open { name: self.name.clone(), write: false });
        }
        let Some(file) = self.file.filter(|_| self.next.is_none_or(|next| next <= now)) else { return };
        let length = (self.copy.request_kib << 10).min(u64::from(desk.largest)).min(self.clip.as_u64());
        while self.requests.len() < self.copy.in_flight as usize {
            let places = (self.clip.as_u64() - length) / STAMPED + 1;
            let offset = self.random.random_range(0..places) * STAMPED;
            let tag = desk.ask(Operation::Read { file, offset, length: length as u32 });
            self.requests.insert(tag, now);
        }
    }

    pub(crate) fn completed(&mut self, Ended { now, tag, answer }: Ended, desk: &mut Desk) {
        let asked = self.requests.remove(&tag);
        self.next = self.pause.map(|pause| now + pause);
        match (asked, answer) {
            (Some(asked), Some(_)) => {
                desk.report.latency.record(now.saturating_since(asked));
                if self.pause.is_some() {
                    desk.report.jumps.record(now.saturating_since(asked));
                }
                desk.report.bytes += (self.copy.request_kib << 10).min(u64::from(desk.largest));
                desk.report.units += 1;
            }
            (None, Some(Answer::Opened { file, .. })) => self.file = Some(file),
            _ => {}
        }
    }

    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.next.filter(|_| self.file.is_some() && self.requests.is_empty())
    }

    /// A picture that is still on its way at the end counts when it has taken longer than all others.
    pub(crate) fn settle(&self, now: Instant, report: &mut ClientReport) {
        let waits = self.requests.values().map(|asked| now.saturating_since(*asked));
        let longest = Duration::from_secs_f64(report.jumps.longest_ms() / 1e3);
        if let Some(wait) = waits.max().filter(|wait| self.pause.is_some() && *wait > longest) {
            report.jumps.record(wait);
        }
    }
}

/// Saves documents and reads them again.
#[derive(Debug)]
pub(crate) struct Office {
    directory: String,
    pause: Duration,
    document: u64,
    step: u32,
    file: u64,
    busy: bool,
    next: Option<Instant>,
    begun: Instant,
}

/// A document, bytes.
const DOCUMENT: u32 = 48 << 10;

/// Documents before the first is saved again.
const DOCUMENTS: u64 = 64;

impl Office {
    pub(crate) fn new(directory: &str, pause: Duration) -> Self {
        Self {
            directory: directory.to_owned(),
            pause,
            document: 0,
            step: 0,
            file: 0,
            busy: false,
            next: None,
            begun: Instant::ZERO,
        }
    }

    pub(crate) fn act(&mut self, now: Instant, desk: &mut Desk) {
        if self.busy || self.next.is_some_and(|next| now < next) {
            return;
        }
        let name = format!("{}/document.{:02}", self.directory, self.document % DOCUMENTS);
        let file = self.file;
        if self.step <= 1 {
            self.begun = now;
        }
        let operation = match self.step {
            0 => Operation::MakeDirectory { name: self.directory.clone() },
            1 => Operation::Open { name, write: true },
            2 => Operation::Write { file, offset: 0, length: DOCUMENT },
            4 => Operation::Open { name, write: false },
            5 => Operation::Read { file, offset: 0, length: DOCUMENT },
            _ => Operation::Close { file },
        };
        desk.ask(operation);
        self.busy = true;
    }

    pub(crate) fn completed(&mut self, Ended { now, answer, .. }: Ended, desk: &mut Desk) {
        self.busy = false;
        match answer {
            Some(Answer::Opened { file, .. }) => self.file = file,
            Some(Answer::Done) => {}
            // The next document is another chance.
            Some(Answer::Beyond) | None => self.step = 6,
        }
        if self.step < 6 {
            self.step += 1;
            return;
        }
        self.step = 1;
        self.document += 1;
        desk.report.units += 1;
        desk.report.bytes += 2 * u64::from(DOCUMENT);
        desk.report.latency.record(now.saturating_since(self.begun));
        self.next = Some(now + self.pause);
    }

    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.next.filter(|_| !self.busy)
    }
}
