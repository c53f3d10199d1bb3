//! One client of a run: its pattern, where its files are, and when it starts.

use crate::pattern::{CopySpec, Pattern};
use crate::span::Span;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;
use units::{Bytes, Duration};

/// Who copies begins again with the first of so many files of each that it writes at once: what it writes over is not to
/// lie in memory still, or it never reaches the device.
pub(crate) fn takes(copy: &CopySpec, clip: Bytes) -> u64 {
    /// Twice what may be dirty.
    const WRITTEN: Bytes = Bytes::from_mib(4 << 10);
    WRITTEN.as_u64().div_ceil(clip.as_u64() * u64::from(copy.files_at_once)).max(4)
}

/// How long a client stays and is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visits {
    /// From its start; `None`: to the end.
    pub stay: Option<Span>,
    /// Until it comes back, elsewhere in its clip; `None`: for good. A client that is refused comes back after that time, too.
    pub away: Option<Span>,
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
    /// When it comes and goes.
    pub visits: Visits,
}

impl ClientSpec {
    /// Of what this client draws.
    pub(crate) fn random(&self) -> SmallRng {
        SmallRng::seed_from_u64(self.position.to_bits() ^ crate::content::seed(&self.directory))
    }

    /// Where it goes on when it comes back: the golden ratio spreads places.
    pub(crate) fn elsewhere(&self) -> Self {
        Self { position: (self.position + 0.618_034).fract(), ..self.clone() }
    }

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
