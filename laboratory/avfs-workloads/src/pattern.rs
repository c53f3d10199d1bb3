//! What clients do, as it is declared: one grammar for simulator, rehearsal and laboratory.
//!
//! **State:** none. **Invariants:** what [`Pattern::check`] accepts can be carried out.

use crate::span::Span;
use serde::{Deserialize, Serialize};
use units::{Bytes, Duration};

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

/// What an editor does after each time of playing.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Thens {
    /// Always this.
    One(Then),
    /// One of these, drawn each time.
    Several(Vec<Then>),
}

impl Thens {
    /// Whether this is among them.
    pub fn include(&self, then: Then) -> bool {
        self.all().contains(&then)
    }

    pub(crate) fn all(&self) -> &[Then] {
        match self {
            Self::One(then) => std::slice::from_ref(then),
            Self::Several(thens) => thens,
        }
    }
}

impl std::fmt::Debug for Thens {
    fn fmt(&self, output: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::One(then) => then.fmt(output),
            Self::Several(thens) => thens.fmt(output),
        }
    }
}

/// An editor's figures; the first three are those of a [`StreamSpec`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EditorSpec {
    /// Mbit/s.
    pub megabits: f64,
    /// A unit.
    pub unit_kib: u64,
    /// What is played before it starts to be late, milliseconds.
    pub buffer_ms: u64,
    /// So long it plays at a time, milliseconds, once its buffer is full.
    pub play_ms: Span,
    /// Between the end of that and the next, where there is a pause, milliseconds.
    #[serde(default)]
    pub pause_ms: Span,
    /// What it does then: one thing, or a list from which it is drawn.
    pub then: Thens,
}

impl EditorSpec {
    pub(crate) fn stream(&self) -> StreamSpec {
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
    pub(crate) fn stream(&self) -> StreamSpec {
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
    pub(crate) fn unit(&self) -> Bytes {
        Bytes::from_kib(self.unit_kib)
    }

    /// For how long a unit plays.
    pub(crate) fn period(&self) -> Duration {
        Duration::from_secs_f64(self.unit().as_u64() as f64 * 8.0 / (self.megabits * 1e6))
    }

    /// As names of files tell it.
    pub(crate) fn rate(&self) -> String {
        format!("{:.0}", self.megabits)
    }

    /// The name of a sequence's frame.
    pub(crate) fn frame(&self, directory: &str, write: bool, number: u64) -> String {
        format!("{directory}/{}.{}.{number:06}.dpx", if write { "take" } else { "shot" }, self.rate())
    }

    /// The name of a clip, or of what is recorded.
    pub(crate) fn file(&self, directory: &str, write: bool) -> String {
        format!("{directory}/{}.{}.mov", if write { "take" } else { "clip" }, self.rate())
    }

    /// Units in the buffer, at least one.
    pub(crate) fn buffered(&self) -> u64 {
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

    /// What it asks for at once, as it is declared; of an office, a document.
    pub fn unit(&self) -> Bytes {
        match self {
            Self::CopyFrom(copy) | Self::CopyTo(copy) | Self::RandomReader(copy) => {
                Bytes::from_kib(copy.request_kib)
            }
            Self::Scrubber(scrub) => Bytes::from_kib(scrub.picture_kib),
            Self::Office { .. } => Bytes::from_kib(64),
            _ => self.stream().map_or(Bytes::ZERO, |spec| spec.unit()),
        }
    }

    /// Units that it buffers, if it has a rate.
    pub fn buffered_units(&self) -> u64 {
        self.stream().map_or(0, |spec| spec.buffered())
    }

    /// Whether it stops for a while and goes on.
    pub fn pauses(&self) -> bool {
        matches!(self, Self::Editor(editor) if editor.then.include(Then::Pause))
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

    pub(crate) fn stream(&self) -> Option<StreamSpec> {
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
        if let Self::Editor(spec) = self
            && !(spec.play_ms.is_one() && spec.pause_ms.is_one() && !spec.then.all().is_empty())
        {
            return Err(
                "play_ms and pause_ms must be a time or [from, to], and then must not be empty".to_owned()
            );
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
