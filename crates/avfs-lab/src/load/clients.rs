//! What each kind of client does.

mod chasing;
mod editing;
mod files;
mod stream;
#[cfg(test)]
mod tests;
mod words;

use super::{Answer, Operation};
use crate::histogram::Histogram;
use files::{Copies, Files, Office, RandomReader};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use stream::Stream;
use units::{Bytes, Duration, Instant};

/// What a client does, as it is declared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Pattern {
    /// Reads a clip at its bitrate: fills its buffer, starts, and fetches a unit whenever one was played.
    Player(StreamSpec),
    /// Plays for some time, then stops, pauses, jumps or turns, again and again.
    Editor(EditorSpec),
    /// Plays, from its begin, the take of the recorder before it while that is being written: a growing file.
    Chaser(ChaseSpec),
    /// Writes a take at its bitrate: a unit when one was recorded and the one before was acknowledged.
    Recorder(StreamSpec),
    /// The same with a file for each unit, as DPX or EXR.
    FramePlayer(StreamSpec),
    /// The same with a file for each unit.
    FrameRecorder(StreamSpec),
    /// Reads a clip over and over, as fast as it gets it.
    CopyFrom(CopySpec),
    /// Writes files, as fast as they are taken.
    CopyTo(CopySpec),
    /// Reads anywhere in a clip, as fast as it gets it.
    RandomReader(CopySpec),
    /// Jumps to anywhere in a clip, looks at the picture there, and jumps again, as an editor who searches by dragging.
    Scrubber(ScrubSpec),
    /// Saves a small document and reads it, again and again with a pause.
    Office {
        /// Between two documents, milliseconds.
        pause_ms: u64,
    },
}

/// A stream's figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// Mbit/s (10^6), above zero.
    pub megabits: f64,
    /// A unit: what is asked for at once, or a frame; a multiple of 64 KiB, except for frames.
    pub unit_kib: u64,
    /// What is played before it starts to be late, or may be unacknowledged while recording, milliseconds.
    pub buffer_ms: u64,
}

/// What an editor does after some time of playing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Then {
    /// Closes the clip, and opens it elsewhere after the pause.
    Stop,
    /// Goes on where it was, after the pause.
    Pause,
    /// Goes on elsewhere, at once.
    Jump,
    /// Goes on in the other direction, at once.
    Turn,
    /// Goes on there and half a clip away in turn, through the same open, for good: a picture and its sound that lie apart.
    Both,
}

/// An editor's figures; the first three are those of a [`StreamSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EditorSpec {
    /// Mbit/s.
    pub megabits: f64,
    /// A unit.
    pub unit_kib: u64,
    /// What is played before it starts to be late, milliseconds.
    pub buffer_ms: u64,
    /// So long it plays at a time, milliseconds, once its buffer is full.
    pub play_ms: u64,
    /// Between the end of that and the next, where there is a pause, milliseconds.
    #[serde(default)]
    pub pause_ms: u64,
    /// What it does then.
    pub then: Then,
}

impl EditorSpec {
    fn stream(&self) -> StreamSpec {
        StreamSpec { megabits: self.megabits, unit_kib: self.unit_kib, buffer_ms: self.buffer_ms }
    }
}

/// The figures of who chases a recorder; the first three are those of a [`StreamSpec`], and the recorder's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChaseSpec {
    /// Mbit/s.
    pub megabits: f64,
    /// A unit.
    pub unit_kib: u64,
    /// What is played before it starts to be late, milliseconds.
    pub buffer_ms: u64,
    /// So long after the recorder it begins, milliseconds, at least twice the buffer: what fills the buffer must be there,
    /// and the recorder may keep as much to itself.
    pub behind_ms: u64,
}

impl ChaseSpec {
    fn stream(&self) -> StreamSpec {
        StreamSpec { megabits: self.megabits, unit_kib: self.unit_kib, buffer_ms: self.buffer_ms }
    }
}

/// A greedy client's figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopySpec {
    /// What it asks for at once, a multiple of 64 KiB.
    pub request_kib: u64,
    /// How much of that it has in flight, of each file.
    pub in_flight: u32,
    /// Files that it writes at once, from 1 to 64: robocopy /MT has eight. Who reads has one.
    #[serde(default = "one")]
    pub files_at_once: u32,
}

/// The figures of who searches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubSpec {
    /// A picture, a multiple of 64 KiB.
    pub picture_kib: u64,
    /// From a picture to the next jump, milliseconds.
    pub pause_ms: u64,
}

fn one() -> u32 {
    1
}

impl StreamSpec {
    fn unit(&self) -> Bytes {
        Bytes::from_kib(self.unit_kib)
    }

    /// For how long a unit plays.
    fn period(&self) -> Duration {
        Duration::from_secs_f64(self.unit().as_u64() as f64 * 8.0 / (self.megabits * 1e6))
    }

    /// As names of files tell it.
    fn rate(&self) -> String {
        format!("{:.0}", self.megabits)
    }

    /// The name of a sequence's frame.
    fn frame(&self, directory: &str, write: bool, number: u64) -> String {
        format!("{directory}/{}.{}.{number:06}.dpx", if write { "take" } else { "shot" }, self.rate())
    }

    /// The name of a clip, or of what is recorded.
    fn file(&self, directory: &str, write: bool) -> String {
        format!("{directory}/{}.{}.mov", if write { "take" } else { "clip" }, self.rate())
    }

    /// Units in the buffer, at least one.
    fn buffered(&self) -> u64 {
        (self.buffer_ms as f64 / 1e3 / self.period().as_secs_f64()).round().max(1.0) as u64
    }
}

impl Pattern {
    /// Whether it is at a bitrate, and so can be late.
    pub fn is_stream(&self) -> bool {
        self.stream().is_some()
    }

    /// Mbit/s that it plays or records, if it has a rate.
    pub fn megabits(&self) -> Option<f64> {
        self.stream().map(|spec| spec.megabits)
    }

    /// What it buffers, milliseconds, if it has a rate.
    pub fn buffer_ms(&self) -> Option<u64> {
        self.stream().map(|spec| spec.buffer_ms)
    }

    /// How much later than its turn it starts.
    pub fn delay(&self) -> Duration {
        match self {
            Self::Chaser(spec) => Duration::from_millis(spec.behind_ms),
            _ => Duration::ZERO,
        }
    }

    /// Whether it plays what a client of another pattern records.
    pub fn chases(&self, recorder: &Self) -> bool {
        matches!((self, recorder), (Self::Chaser(chaser), Self::Recorder(take))
            if chaser.megabits == take.megabits && chaser.unit_kib == take.unit_kib)
    }

    /// Mbit/s that it records, if it does.
    pub fn recorded_megabits(&self) -> Option<f64> {
        match self {
            Self::Recorder(spec) | Self::FrameRecorder(spec) => Some(spec.megabits),
            _ => None,
        }
    }

    /// Whether it copies as fast as it gets through.
    pub fn copies(&self) -> bool {
        matches!(self, Self::CopyFrom(_) | Self::CopyTo(_))
    }

    /// What it plays or records within a time, bytes, a multiple of its unit; nothing if it has no rate.
    pub fn passes(&self, time: Duration) -> Bytes {
        self.stream().map_or(Bytes::ZERO, |spec| {
            let units = (time.as_secs_f64() / spec.period().as_secs_f64()).ceil() as u64;
            Bytes(units * spec.unit().as_u64())
        })
    }

    fn stream(&self) -> Option<StreamSpec> {
        match self {
            Self::Player(spec)
            | Self::Recorder(spec)
            | Self::FramePlayer(spec)
            | Self::FrameRecorder(spec) => Some(*spec),
            Self::Editor(spec) => Some(spec.stream()),
            Self::Chaser(spec) => Some(spec.stream()),
            _ => None,
        }
    }

    /// What is wrong with its figures, if anything.
    ///
    /// # Errors
    /// In words.
    pub fn check(&self) -> Result<(), String> {
        if let Some(spec) = self.stream() {
            let whole = !matches!(self, Self::FramePlayer(_) | Self::FrameRecorder(_));
            if !(spec.megabits.is_finite() && spec.megabits > 0.0) {
                return Err("megabits must be above zero".to_owned());
            }
            if spec.unit_kib == 0 || spec.unit_kib > 1 << 20 || (whole && !spec.unit_kib.is_multiple_of(64)) {
                return Err("unit_kib must be a multiple of 64, or for frames 1 or more".to_owned());
            }
        }
        if let Self::Chaser(spec) = self
            && spec.behind_ms < 2 * spec.buffer_ms
        {
            return Err("behind_ms must be at least twice buffer_ms".to_owned());
        }
        if let Self::CopyFrom(spec) | Self::CopyTo(spec) | Self::RandomReader(spec) = self {
            if spec.request_kib == 0 || !spec.request_kib.is_multiple_of(64) || spec.request_kib > 8192 {
                return Err("request_kib must be a multiple of 64, at most 8192".to_owned());
            }
            if !(1..=64).contains(&spec.in_flight) {
                return Err("in_flight must be from 1 to 64".to_owned());
            }
            let most = if matches!(self, Self::CopyTo(_)) { 64 } else { 1 };
            if !(1..=most).contains(&spec.files_at_once) {
                return Err("files_at_once must be from 1 to 64, and 1 for who reads".to_owned());
            }
        }
        if let Self::Scrubber(spec) = self
            && (spec.picture_kib == 0 || !spec.picture_kib.is_multiple_of(64) || spec.picture_kib > 8192)
        {
            return Err("picture_kib must be a multiple of 64, at most 8192".to_owned());
        }
        Ok(())
    }
}

/// Who copies begins again with the first of so many files of each that it writes at once: what it writes over is not to
/// lie in memory still, or it never reaches the device.
fn takes(copy: &CopySpec, clip: Bytes) -> u64 {
    /// Twice what may be dirty.
    const WRITTEN: Bytes = Bytes::from_mib(4 << 10);
    WRITTEN.as_u64().div_ceil(clip.as_u64() * u64::from(copy.files_at_once)).max(4)
}

/// One client of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSpec {
    /// Its directory on the share; of who chases a recorder, the recorder's.
    pub directory: String,
    /// What it does.
    pub pattern: Pattern,
    /// When it starts.
    pub start_after: Duration,
    /// The clip it reads, or after which a copy begins another file, bytes; a multiple of its unit or request.
    pub clip: Bytes,
    /// Where in the clip a player starts, 0 to 1; also what a random reader draws from.
    pub position: f64,
}

impl ClientSpec {
    /// The files that must be there, with their lengths.
    pub fn needs(&self) -> Vec<(String, Bytes)> {
        match &self.pattern {
            Pattern::Player(spec) => vec![(spec.file(&self.directory, false), self.clip)],
            Pattern::Editor(spec) => vec![(spec.stream().file(&self.directory, false), self.clip)],
            Pattern::CopyFrom(_) | Pattern::RandomReader(_) | Pattern::Scrubber(_) => {
                vec![(format!("{}/clip.mov", self.directory), self.clip)]
            }
            Pattern::FramePlayer(spec) => {
                let frames = self.clip.as_u64() / spec.unit().as_u64();
                (0..frames).map(|frame| (spec.frame(&self.directory, false, frame), spec.unit())).collect()
            }
            _ => Vec::new(),
        }
    }

    /// What the filesystem knows as its stream, if it has a rate: a file, or the directory of numbered ones; and whether it
    /// is written.
    pub fn stream(&self) -> Option<(String, bool)> {
        let spec = self.pattern.stream()?;
        let writes = self.pattern.recorded_megabits().is_some();
        let place = match &self.pattern {
            Pattern::FramePlayer(_) | Pattern::FrameRecorder(_) => self.directory.clone(),
            Pattern::Chaser(_) => spec.file(&self.directory, true),
            _ => spec.file(&self.directory, writes),
        };
        Some((place, writes))
    }

    /// With a clip as long as what is laid for it: units that are whole.
    pub fn as_laid(self, laid: &BTreeMap<String, Bytes>) -> Self {
        let unit = self.pattern.stream().map_or(Bytes::from_mib(1), |spec| spec.unit());
        let units = match &self.pattern {
            Pattern::FramePlayer(spec) => {
                let frame = |number| laid.contains_key(&spec.frame(&self.directory, false, number));
                (0..).take_while(|&number| frame(number)).count() as u64
            }
            _ => self.needs().iter().filter_map(|(name, _)| laid.get(name)).map(|file| file.0 / unit.0).sum(),
        };
        Self { clip: self.clip.max(Bytes(units * unit.0)), ..self }
    }
}

/// What became of a client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientReport {
    /// Units played or recorded.
    pub units: u64,
    /// Units that were not there when their turn came, or not acknowledged within the buffer, or dropped.
    pub late: u64,
    /// How late the latest was, milliseconds.
    pub latest_ms: f64,
    /// Payload moved, bytes.
    pub bytes: u64,
    /// From asking for a unit to having it; of greedy clients, each request.
    pub latency: Histogram,
    /// Of a player: from its first request to its full buffer, once.
    #[serde(default)]
    pub start: Histogram,
    /// Of a player: from its first request, also that after a jump, to the first unit that it shows.
    #[serde(default)]
    pub first: Histogram,
    /// Of who searches: from each jump to its picture.
    #[serde(default)]
    pub jumps: Histogram,
    /// Operations that failed.
    pub errors: u64,
    /// The first failure, in words.
    pub first_error: Option<String>,
}

/// The side of a client towards the files.
#[derive(Debug, Default)]
struct Desk {
    next_tag: u64,
    asks: VecDeque<(u64, Operation)>,
    report: ClientReport,
    largest: u32,
}

impl Desk {
    fn ask(&mut self, operation: Operation) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.asks.push_back((tag, operation));
        tag
    }

    /// The answer, or nothing after a failure was noted.
    fn note(&mut self, answer: Result<Answer, String>) -> Option<Answer> {
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.report.errors += 1;
                self.report.first_error.get_or_insert(error);
                None
            }
        }
    }
}

/// The end of an operation that a client asked for.
#[derive(Clone, Copy, Debug)]
struct Ended {
    now: Instant,
    tag: u64,
    /// `None`: it failed, which is noted.
    answer: Option<Answer>,
}

#[derive(Debug)]
enum Machine {
    Stream(Box<Stream>),
    Copies(Copies),
    Random(RandomReader),
    Office(Office),
}

/// A client at work.
#[derive(Debug)]
pub struct Client {
    desk: Desk,
    machine: Machine,
    start_after: Duration,
    starts: Instant,
    now: Instant,
}

impl Client {
    /// A client that has not begun.
    pub fn new(spec: &ClientSpec) -> Self {
        let name = |file: &str| format!("{}/{file}", spec.directory);
        let machine = match &spec.pattern {
            Pattern::Player(stream) => Machine::Stream(Box::new(Stream::player(spec, stream, false))),
            Pattern::Editor(editor) => Machine::Stream(Box::new(Stream::editor(spec, editor))),
            Pattern::Chaser(chaser) => Machine::Stream(Box::new(Stream::chaser(spec, chaser))),
            Pattern::FramePlayer(stream) => Machine::Stream(Box::new(Stream::player(spec, stream, true))),
            Pattern::Recorder(stream) => Machine::Stream(Box::new(Stream::recorder(spec, stream, false))),
            Pattern::FrameRecorder(stream) => Machine::Stream(Box::new(Stream::recorder(spec, stream, true))),
            Pattern::CopyFrom(copy) => {
                let files = vec![(name("clip.mov"), spec.clip)];
                Machine::Copies(Copies::new(vec![Files::new(files, *copy, false, true)]))
            }
            Pattern::CopyTo(copy) => {
                let takes = |number| {
                    let take = |take| (name(&format!("copy.{number}.{take}.mov")), spec.clip);
                    (0..takes(copy, spec.clip)).map(take).collect()
                };
                let copies =
                    (0..copy.files_at_once).map(|number| Files::new(takes(number), *copy, true, true));
                Machine::Copies(Copies::new(copies.collect()))
            }
            Pattern::RandomReader(copy) => {
                Machine::Random(RandomReader::new(name("clip.mov"), *copy, spec.clip, spec.position))
            }
            Pattern::Scrubber(scrub) => {
                Machine::Random(RandomReader::scrubber(name("clip.mov"), *scrub, spec.clip, spec.position))
            }
            Pattern::Office { pause_ms } => {
                Machine::Office(Office::new(&spec.directory, Duration::from_millis(*pause_ms)))
            }
        };
        Self::with(machine, spec.start_after)
    }

    /// A client that writes files, one after the other, and then has finished.
    pub fn laying(files: Vec<(String, Bytes)>) -> Self {
        let copy = CopySpec { request_kib: 1024, in_flight: 8, files_at_once: 1 };
        let laying = Copies::new(vec![Files::new(files, copy, true, false)]);
        Self::with(Machine::Copies(laying), Duration::ZERO)
    }

    fn with(machine: Machine, start_after: Duration) -> Self {
        Self { desk: Desk::default(), machine, start_after, starts: Instant::FAR_FUTURE, now: Instant::ZERO }
    }

    pub(super) fn begin(&mut self, now: Instant, largest: u32) {
        self.starts = now + self.start_after;
        // Pieces of a unit begin where stamps are.
        self.desk.largest = largest - largest % super::content::STAMPED as u32;
    }

    pub(super) fn act(&mut self, now: Instant, asks: &mut Vec<(u64, Operation)>) {
        self.now = now;
        if now >= self.starts {
            match &mut self.machine {
                Machine::Stream(stream) => stream.act(now, &mut self.desk),
                Machine::Copies(copies) => copies.act(now, &mut self.desk),
                Machine::Random(random) => random.act(now, &mut self.desk),
                Machine::Office(office) => office.act(now, &mut self.desk),
            }
        }
        asks.extend(self.desk.asks.drain(..));
    }

    pub(super) fn completed(&mut self, now: Instant, tag: u64, answer: Result<Answer, String>) {
        self.now = now;
        let grows = matches!(&self.machine, Machine::Stream(stream) if stream.chases());
        let answer = match answer {
            Ok(Answer::Beyond) if !grows => Err("the file ends before what was to be read".to_owned()),
            answer => answer,
        };
        let ended = Ended { now, tag, answer: self.desk.note(answer) };
        match &mut self.machine {
            Machine::Stream(stream) => stream.completed(ended, &mut self.desk),
            Machine::Copies(copies) => copies.completed(ended, &mut self.desk),
            Machine::Random(random) => random.completed(ended, &mut self.desk),
            Machine::Office(office) => office.completed(ended, &mut self.desk),
        }
    }

    /// When it has to act without an outcome.
    pub(super) fn next_event(&self) -> Option<Instant> {
        if self.now < self.starts {
            return Some(self.starts);
        }
        match &self.machine {
            Machine::Stream(stream) => stream.next_event(),
            Machine::Office(office) => office.next_event(),
            Machine::Random(random) => random.next_event(),
            Machine::Copies(_) => None,
        }
    }

    /// Nothing is left to do.
    pub fn is_finished(&self) -> bool {
        matches!(&self.machine, Machine::Copies(copies) if copies.is_finished())
    }

    /// Payload moved so far, bytes.
    pub fn moved(&self) -> u64 {
        self.desk.report.bytes
    }

    pub(super) fn report(&self) -> ClientReport {
        let mut report = self.desk.report.clone();
        match &self.machine {
            Machine::Stream(stream) => stream.settle(self.now, &mut report),
            Machine::Random(random) => random.settle(self.now, &mut report),
            Machine::Copies(_) | Machine::Office(_) => {}
        }
        report
    }
}
