//! What an administrator may set, in one TOML file.
//!
//! **For:** reading the file, refusing every mistake with one line that says where and what, and answering which
//! stream policy a path falls under. **Excludes:** acting on any of it. **State:** none; a [`Config`] is a value,
//! read once at mount. **Invariants:** every value of a parsed [`Config`] is inside the range its field documents.
//!
//! The file with all settings, their meaning and their defaults is `config/avfs.toml`.

mod device;
mod pattern;
pub(crate) mod quantity;
mod settings;

pub use device::{DeviceConfig, SettingValue};
pub use pattern::{Pattern, PatternError};
pub use quantity::{Listen, parse_cache_size, parse_log_levels, parse_size};
pub use settings::{Rate, Setting, Settings, WhenFull};

use rtsched::Class;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use units::{Bitrate, Bytes, Duration};

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", file.display())]
    Read {
        /// Which file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A mistake in the text: the first one found.
    #[error("{}{message}", place(file.as_deref(), *line))]
    Invalid {
        /// The file, where it is known.
        file: Option<PathBuf>,
        /// The line, counted from 1, where it is known.
        line: Option<usize>,
        /// What is wrong and what is expected, in one line.
        message: String,
    },
}

/// `avfs.toml:12: `, or as much of it as is known.
fn place(file: Option<&Path>, line: Option<usize>) -> String {
    match (file, line) {
        (Some(file), Some(line)) => format!("{}:{line}: ", file.display()),
        (Some(file), None) => format!("{}: ", file.display()),
        (None, Some(line)) => format!("line {line}: "),
        (None, None) => String::new(),
    }
}

/// The whole configuration of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The cache of file data.
    pub cache: CacheConfig,
    /// The journal of metadata.
    pub journal: JournalConfig,
    /// The scheduler of the device.
    pub scheduler: SchedulerConfig,
    /// What clients ask.
    pub requests: RequestsConfig,
    /// What is logged.
    pub log: LogConfig,
    /// The control socket, and the group that may ask there.
    pub control: ControlConfig,
    /// What a browser and a monitor are shown.
    pub web: WebConfig,
    /// What a measurement of the device found.
    pub device: DeviceConfig,
    /// Stream policies, in the order in which they are tried.
    #[serde(rename = "stream")]
    pub streams: Vec<StreamPolicy>,
}

/// `[cache]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheConfig {
    /// Pinned memory for file data: 64 MiB to 16 TiB. `None`: what the machine can spare.
    #[serde(deserialize_with = "quantity::cache_size")]
    pub size: Option<Bytes>,
    /// For how long data stays in memory that no client uses: 1 s to 24 h.
    #[serde(deserialize_with = "quantity::cache_keep")]
    pub keep: Duration,
}

impl Default for CacheConfig {
    fn default() -> Self {
        // An operator's target: a pause is shorter, a night is longer.
        Self { size: None, keep: Duration::from_secs(600) }
    }
}

/// `[journal]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JournalConfig {
    /// The longest that a change of metadata which nobody waits for stays unlogged: 10 ms to 60 s. What a crash
    /// may cost without fsync.
    #[serde(deserialize_with = "quantity::commit_age")]
    pub commit_age: Duration,
    /// Time from one checkpoint to the next, unless the log fills before: 1 s to 60 min.
    #[serde(deserialize_with = "quantity::checkpoint_interval")]
    pub checkpoint_interval: Duration,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self { commit_age: Duration::from_secs(1), checkpoint_interval: Duration::from_secs(60) }
    }
}

/// `[scheduler]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulerConfig {
    /// Commands at the device at once: 1 to 1024. `None`: as suits the device.
    #[serde(deserialize_with = "quantity::queue_depth")]
    pub queue_depth: Option<u32>,
    /// Deadline of a metadata request that names none, from its arrival: 1 ms to 10 s.
    #[serde(deserialize_with = "quantity::metadata_latency")]
    pub metadata_latency: Duration,
    /// Deadline of a best-effort request that names none, from its arrival: 10 ms to 5 min.
    #[serde(deserialize_with = "quantity::best_effort_latency")]
    pub best_effort_latency: Duration,
    /// How long a player may have to wait for its first picture while the device is full: 100 ms to 60 s. It bounds how
    /// long streams' requests are, so a longer one makes room for one or two streams more on a device that turns.
    #[serde(deserialize_with = "quantity::longest_start")]
    pub longest_start: Duration,
    /// Share of the device's time that best effort keeps however much real time asks for: 0 to 50 percent.
    #[serde(deserialize_with = "quantity::floor_percent")]
    pub best_effort_floor_percent: u32,
    /// Share that idle work, such as checkpoints, keeps: 0 to 50 percent.
    #[serde(deserialize_with = "quantity::floor_percent")]
    pub idle_floor_percent: u32,
    /// Share of the device's time that one user's own words (`user.avfs.*`, declarations of applications) may reserve: 0 to 100
    /// percent. What goes beyond is served as best effort. The administrator's policies are not counted.
    #[serde(deserialize_with = "quantity::share_percent")]
    pub user_share_percent: u32,
    /// The same of all users together.
    #[serde(deserialize_with = "quantity::share_percent")]
    pub users_share_percent: u32,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        let scheduler = rtsched::Config::default();
        Self {
            queue_depth: None,
            metadata_latency: scheduler.metadata_latency,
            best_effort_latency: scheduler.best_effort_latency,
            longest_start: Duration::from_millis(2500),
            best_effort_floor_percent: scheduler.best_effort_floor_percent,
            idle_floor_percent: scheduler.idle_floor_percent,
            // An operator's targets: two users at their share leave half of the device to the administrator's policies.
            user_share_percent: 25,
            users_share_percent: 50,
        }
    }
}

/// `[requests]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RequestsConfig {
    /// A request of a client that is not answered in this time is logged, once: 100 ms to 60 min. What an operator wants to
    /// hear of.
    #[serde(deserialize_with = "quantity::overdue")]
    pub overdue: Duration,
}

impl Default for RequestsConfig {
    fn default() -> Self {
        Self { overdue: Duration::from_secs(20) }
    }
}

/// `[log]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// From which level on messages are logged, as a whole and by parts, see [`parse_log_levels`]. `None`: it is said elsewhere.
    #[serde(deserialize_with = "quantity::log_levels")]
    pub level: Option<String>,
}

/// `[control]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ControlConfig {
    /// A group of the host whose members may read through the control socket, by its name or number.
    pub group: Option<String>,
}

/// `[web]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebConfig {
    /// Where the page, the metrics and the JSON are. `None`: nowhere.
    #[serde(deserialize_with = "quantity::listen")]
    pub listen: Option<Listen>,
}

/// A setting that is not the same in two configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its name with that of its table.
    pub setting: &'static str,
    /// It can be changed while the volume is mounted.
    pub is_live: bool,
}

/// `[[stream]]`: what the files under a pattern are worth.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "StreamTable")]
pub struct StreamPolicy {
    /// Which paths, relative to the root of the volume.
    pub path: Pattern,
    /// Upper and lower case are the same.
    pub case_insensitive: bool,
    /// What it says of them; always a class.
    pub settings: Settings,
}

/// A `[[stream]]` table as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamTable {
    path: Pattern,
    #[serde(default)]
    case_insensitive: bool,
    #[serde(default, deserialize_with = "quantity::bitrate")]
    bitrate: Option<Bitrate>,
    #[serde(default, deserialize_with = "quantity::frame_period")]
    frames_per_second: Option<Duration>,
    #[serde(default, deserialize_with = "quantity::class")]
    class: Option<Class>,
    #[serde(default, deserialize_with = "quantity::deadline_window")]
    deadline_window: Option<Duration>,
    #[serde(default, deserialize_with = "quantity::prefetch_depth")]
    prefetch_depth: Option<Bytes>,
    #[serde(default, deserialize_with = "quantity::when_full")]
    when_full: Option<WhenFull>,
    #[serde(default, deserialize_with = "quantity::allocation_window")]
    allocation_window: Option<Bytes>,
}

impl TryFrom<StreamTable> for StreamPolicy {
    type Error = &'static str;

    fn try_from(table: StreamTable) -> Result<Self, Self::Error> {
        if table.bitrate.is_some() && table.frames_per_second.is_some() {
            return Err(
                "bitrate and frames_per_second in one [[stream]]: keep bitrate for files of many frames, \
                        frames_per_second for sequences of one file a frame",
            );
        }
        let rate = table.bitrate.map(Rate::Bitrate);
        let settings = Settings {
            class: table.class.or(Some(Class::RealTime)),
            rate: rate.or(table.frames_per_second.map(Rate::FramePeriod)),
            deadline_window: table.deadline_window,
            prefetch_depth: table.prefetch_depth,
            when_full: table.when_full,
            allocation_window: table.allocation_window,
        };
        Ok(Self { path: table.path, case_insensitive: table.case_insensitive, settings })
    }
}

impl Config {
    /// Reads the text of a configuration. What it does not mention has its default.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with the first mistake.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| {
            let line =
                error.span().map(|span| 1 + text.bytes().take(span.start).filter(|b| *b == b'\n').count());
            let message = error.message().lines().map(str::trim).collect::<Vec<_>>().join("; ");
            ConfigError::Invalid { file: None, line, message }
        })
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`ConfigError::Read`], or [`ConfigError::Invalid`] with the first mistake.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| ConfigError::Read { file: file.to_owned(), source })?;
        Self::parse(&text).map_err(|error| match error {
            ConfigError::Invalid { line, message, .. } => {
                ConfigError::Invalid { file: Some(file.to_owned()), line, message }
            }
            read @ ConfigError::Read { .. } => read,
        })
    }

    /// What is not the same in another configuration, in the order of the file.
    pub fn changes(&self, other: &Self) -> Vec<Change> {
        let live = |setting, is_same: bool| (!is_same).then_some(Change { setting, is_live: true });
        let fixed = |setting, is_same: bool| (!is_same).then_some(Change { setting, is_live: false });
        // Named whole, so that a new one is not forgotten here.
        let Self { cache, journal, scheduler, requests, log, control, web, device, streams } = self;
        let CacheConfig { size, keep } = cache;
        let JournalConfig { commit_age, checkpoint_interval } = journal;
        let SchedulerConfig {
            queue_depth,
            metadata_latency,
            best_effort_latency,
            longest_start,
            best_effort_floor_percent,
            idle_floor_percent,
            user_share_percent,
            users_share_percent,
        } = scheduler;
        let RequestsConfig { overdue } = requests;
        let (LogConfig { level }, ControlConfig { group }) = (log, control);
        let WebConfig { listen } = web;
        let now = &other.scheduler;
        [
            live("cache.size", *size == other.cache.size),
            live("cache.keep", *keep == other.cache.keep),
            live("journal.commit_age", *commit_age == other.journal.commit_age),
            live("journal.checkpoint_interval", *checkpoint_interval == other.journal.checkpoint_interval),
            fixed("scheduler.queue_depth", *queue_depth == now.queue_depth),
            live("scheduler.metadata_latency", *metadata_latency == now.metadata_latency),
            live("scheduler.best_effort_latency", *best_effort_latency == now.best_effort_latency),
            live("scheduler.longest_start", *longest_start == now.longest_start),
            live(
                "scheduler.best_effort_floor_percent",
                *best_effort_floor_percent == now.best_effort_floor_percent,
            ),
            live("scheduler.idle_floor_percent", *idle_floor_percent == now.idle_floor_percent),
            live("scheduler.user_share_percent", *user_share_percent == now.user_share_percent),
            live("scheduler.users_share_percent", *users_share_percent == now.users_share_percent),
            fixed("requests.overdue", *overdue == other.requests.overdue),
            live("log.level", *level == other.log.level),
            fixed("control.group", *group == other.control.group),
            fixed("web.listen", *listen == other.web.listen),
            fixed("device", *device == other.device),
            live("stream", *streams == other.streams),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// A mistake that only shows where the volume is mounted, on the directory `mounted_on`: a pattern that begins with it.
    ///
    /// # Errors
    /// One line that names the pattern, and what to write instead.
    pub fn check_patterns(&self, mounted_on: &Path) -> Result<(), ConfigError> {
        let Some(mounted_on) = mounted_on.to_str() else { return Ok(()) };
        let below = |policy: &StreamPolicy| {
            Some((policy.path.to_string(), policy.path.below(mounted_on)?.to_owned()))
        };
        match self.streams.iter().find_map(below) {
            None => Ok(()),
            Some((path, inside)) => Err(ConfigError::Invalid {
                file: None,
                line: None,
                message: format!(
                    "path = {path:?} matches nothing: patterns begin at the root of the volume, not of the host; write {:?}",
                    if inside.is_empty() { "**" } else { &inside }
                ),
            }),
        }
    }

    /// The policies whose patterns match a path relative to the root of the volume, with or without a leading slash,
    /// each with its number from 1; the first decides.
    pub fn policies_for(&self, path: &[u8]) -> impl Iterator<Item = (usize, &StreamPolicy)> {
        let matches = move |policy: &StreamPolicy| policy.path.matches(path, policy.case_insensitive);
        (1..).zip(&self.streams).filter(move |(_, policy)| matches(policy))
    }
}

#[cfg(test)]
mod tests;
