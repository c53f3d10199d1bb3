//! Who asks for what: scenarios as declarations.
//!
//! **For:** the files of `scenarios/`: a device, what the scheduler may use, streams, what goes on beside them, and what
//! must be true at the end. **Excludes:** behaviour, which is [`stream`](crate::stream)'s and
//! [`background`](crate::background)'s. **State:** none.

use crate::device::{DeviceError, DeviceSpec};
use crate::policy::PolicyName;
use rtsched::Direction;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use units::{Bitrate, Bytes, Duration};

/// A scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it is called.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// A device's name, or the path of its declaration.
    pub device: String,
    /// Virtual time of a full run, seconds.
    pub duration_s: f64,
    /// Virtual time of a run in the tests, seconds.
    pub short_s: f64,
    /// What the scheduler may use.
    #[serde(default)]
    pub scheduler: SchedulerSpec,
    /// Policies that run beside the scheduler, for comparison.
    #[serde(default)]
    pub compare: Vec<PolicyName>,
    /// The streams.
    #[serde(default)]
    pub streams: Vec<StreamGroup>,
    /// What goes on beside them.
    #[serde(default)]
    pub background: Vec<BackgroundSpec>,
    /// What must be true of the scheduler at the end.
    #[serde(default)]
    pub expect: Expect,
}

/// What an administrator gives the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerSpec {
    /// Memory for the streams' buffers, MiB.
    pub memory_mib: u64,
    /// The longest request of a stream, KiB.
    pub largest_request_kib: u64,
    /// Commands at the device at once; 0: the scheduler's default.
    pub queue_depth: u32,
    /// Floors of metadata, best effort and idle work, percent; absent: the scheduler's defaults.
    pub floors_percent: Option<[u32; 3]>,
    /// Length of the requests that the baselines tell streams to make, KiB.
    pub baseline_request_kib: u64,
}

impl Default for SchedulerSpec {
    /// 4 GiB, requests of 64 MiB; the paper's 8 MiB for the baselines.
    fn default() -> Self {
        Self {
            memory_mib: 4096,
            largest_request_kib: 64 << 10,
            queue_depth: 0,
            floors_percent: None,
            baseline_request_kib: 8 << 10,
        }
    }
}

/// Streams of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamGroup {
    /// What they are called.
    pub name: String,
    /// How many.
    pub count: u32,
    /// Readers or writers.
    #[serde(default)]
    pub kind: StreamKind,
    /// Their rates, Mbit/s; the nth stream has the nth, from the first again when they are through.
    pub rate_mbit: Vec<f64>,
    /// What is played or recorded at once, KiB; 0: a 25th of a second.
    #[serde(default)]
    pub unit_kib: u64,
    /// How the file lies on the device.
    #[serde(default)]
    pub layout: Layout,
    /// Length of a file, MiB; it is played round and round.
    #[serde(default = "default_file_mib")]
    pub file_mib: u64,
    /// Of overloaded streams, the lowest gives way first.
    #[serde(default)]
    pub priority: u8,
    /// When the first joins, seconds.
    #[serde(default)]
    pub join_s: f64,
    /// When each of the others joins after the one before, seconds.
    #[serde(default = "default_join_every_s")]
    pub join_every_s: f64,
    /// How long one stays, seconds, from … to; absent: to the end.
    #[serde(default)]
    pub stay_s: Option<[f64; 2]>,
    /// How long it is away then, seconds; absent: for good. One that is refused comes back after that time, too.
    #[serde(default)]
    pub away_s: Option<[f64; 2]>,
    /// Time between two jumps to another place, seconds; absent: it does not jump.
    #[serde(default)]
    pub seek_every_s: Option<[f64; 2]>,
    /// Time between two pauses, seconds; absent: it does not pause.
    #[serde(default)]
    pub pause_every_s: Option<[f64; 2]>,
    /// How long a pause lasts, seconds.
    #[serde(default = "default_pause_s")]
    pub pause_s: [f64; 2],
    /// Reads or writes at so many times the rate it asked for. Above 1, it misbehaves, and nothing is promised to it.
    #[serde(default = "one")]
    pub speed: f64,
    /// What one does that is refused.
    #[serde(default)]
    pub refused: Refused,
}

fn default_file_mib() -> u64 {
    16 << 10
}

fn default_join_every_s() -> f64 {
    0.25
}

fn default_pause_s() -> [f64; 2] {
    [5.0, 30.0]
}

fn one() -> f64 {
    1.0
}

/// What a stream does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamKind {
    /// Plays.
    #[default]
    Reader,
    /// Records.
    Writer,
}

impl StreamKind {
    /// What it asks of the device.
    pub fn direction(self) -> Direction {
        match self {
            Self::Reader => Direction::Read,
            Self::Writer => Direction::Write,
        }
    }
}

/// How a file lies on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Layout {
    /// In one piece.
    #[default]
    Contiguous,
    /// In pieces at random places.
    Fragmented {
        /// Length of each piece, KiB, at least 4.
        extent_kib: u64,
    },
}

/// What a stream does that is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refused {
    /// Goes away.
    #[default]
    Leaves,
    /// Plays as best effort.
    PlaysOn,
}

/// What goes on beside the streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum BackgroundSpec {
    /// Asks for the next piece as soon as it has one: a greedy copy.
    Copier {
        /// Requests it has outstanding.
        outstanding: u32,
        /// Length of each, KiB.
        request_kib: u64,
        /// Reads alone, writes alone, or reads and writes what it read.
        work: CopierWork,
        /// When it begins, seconds.
        #[serde(default)]
        start_s: f64,
        /// When it ends, seconds; absent: never.
        #[serde(default)]
        end_s: Option<f64>,
    },
    /// Reads at random places.
    RandomReader {
        /// Requests it has outstanding.
        outstanding: u32,
        /// Length of each, KiB.
        request_kib: u64,
        /// Mean time it thinks between two, milliseconds.
        think_ms: f64,
    },
    /// Small files: reads and writes of 4 to 64 KiB as best effort; 4 KiB of log and a flush as metadata.
    Office {
        /// Operations a second on average.
        operations_per_s: f64,
    },
}

/// What a copier does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopierWork {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Both.
    Copy,
}

/// What must be true of the scheduler at the end. Always: no frame of an admitted stream is late, unless it misbehaves, or was
/// demoted after a pause or on a device that became slower; nothing is lost or served twice, the device hardly ever has nothing to do while requests
/// wait, and no stream was refused that the [`oracle`](crate::oracle) could have
/// carried with a margin of 5 %.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// Streams that were admitted and never demoted, at least.
    pub clean_min: Option<u32>,
    /// Best effort's part of the device's time that the streams leave, at least.
    pub best_effort_share_min: Option<f64>,
    /// The longest time a metadata request takes, milliseconds.
    pub metadata_max_ms: Option<f64>,
    /// The longest time a best-effort request takes, milliseconds.
    pub best_effort_max_ms: Option<f64>,
    /// Streams of this group are demoted, and of no other.
    pub demoted_only: Option<String>,
}

/// Why a declaration is no scenario.
#[derive(Debug, Error)]
pub enum ScenarioError {
    /// No such scenario.
    #[error("no scenario is called {name}: it is one of {known}, or the path of a .toml file")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The file cannot be read.
    #[error("the scenario {path} cannot be read: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Not a declaration.
    #[error("the scenario is wrong: {0}")]
    Syntax(#[from] toml::de::Error),
    /// Its device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A figure is out of range.
    #[error("scenario {name}: {figure} must be {range}")]
    Figure {
        /// The scenario.
        name: String,
        /// Which figure.
        figure: &'static str,
        /// What it must be.
        range: &'static str,
    },
}

impl Scenario {
    /// A declaration in TOML.
    ///
    /// # Errors
    /// When it is none, or a figure is out of range.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text)?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Its device's declaration.
    ///
    /// # Errors
    /// When there is none.
    pub fn device(&self) -> Result<DeviceSpec, ScenarioError> {
        Ok(DeviceSpec::named(&self.device)?)
    }

    /// Whether its figures can be simulated.
    ///
    /// # Errors
    /// Says which cannot.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let wrong = |figure, range| Err(ScenarioError::Figure { name: self.name.clone(), figure, range });
        let counts = |value: &f64| value.is_finite() && *value >= 0.0;
        let positive = |value: &f64| value.is_finite() && *value > 0.0;
        let span = |span: &Option<[f64; 2]>| {
            span.is_none_or(|[from, to]| from > 0.0 && from <= to && to.is_finite())
        };
        if !positive(&self.duration_s) || !positive(&self.short_s) {
            return wrong("duration_s and short_s", "above zero");
        }
        if self.scheduler.largest_request_kib == 0 || self.scheduler.baseline_request_kib == 0 {
            return wrong("largest_request_kib and baseline_request_kib", "above zero");
        }
        for group in &self.streams {
            let rates_fit = |rate: &f64| (0.001..=1e6).contains(rate);
            if group.rate_mbit.is_empty() || !group.rate_mbit.iter().all(rates_fit) {
                return wrong("rate_mbit", "one or more rates from 0.001 to 10^6");
            }
            if group.count > 100_000 || !counts(&group.join_s) || !counts(&group.join_every_s) {
                return wrong("count, join_s and join_every_s", "zero or more, and at most 100,000 streams");
            }
            if ![group.stay_s, group.away_s, group.seek_every_s, group.pause_every_s, Some(group.pause_s)]
                .iter()
                .all(span)
            {
                return wrong("a span of seconds", "[from, to], above zero and ascending");
            }
            if !positive(&group.speed) || group.file_mib == 0 {
                return wrong("speed and file_mib", "above zero");
            }
            if matches!(group.layout, Layout::Fragmented { extent_kib } if extent_kib < 4) {
                return wrong("extent_kib", "at least 4");
            }
        }
        for background in &self.background {
            let fits = match background {
                BackgroundSpec::Copier { outstanding, request_kib, start_s, .. } => {
                    *outstanding > 0 && *request_kib > 0 && counts(start_s)
                }
                BackgroundSpec::RandomReader { outstanding, request_kib, think_ms } => {
                    *outstanding > 0 && *request_kib > 0 && counts(think_ms)
                }
                BackgroundSpec::Office { operations_per_s } => positive(operations_per_s),
            };
            if !fits {
                return wrong("a background's figure", "above zero");
            }
        }
        Ok(())
    }

    /// Virtual time of a run.
    pub fn duration(&self, full: bool) -> Duration {
        Duration::from_secs_f64(if full { self.duration_s } else { self.short_s })
    }
}

impl StreamGroup {
    /// Rate of its nth stream.
    pub fn rate(&self, index: u32) -> Bitrate {
        let megabits = self.rate_mbit[index as usize % self.rate_mbit.len()];
        Bitrate((megabits * 1e6) as u64)
    }

    /// What a stream of `rate` plays or records at once.
    pub fn unit(&self, rate: Bitrate) -> Bytes {
        match self.unit_kib {
            0 => Bytes((rate.bytes_per_second().as_u64() / 25).max(1)),
            kib => Bytes::from_kib(kib),
        }
    }
}
