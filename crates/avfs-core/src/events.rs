//! What an administrator is told: who plays, and what happened to them, in figures and in words.
//!
//! **For:** one form of an event for the log, the file that survives a restart, the control socket and the tools; and the one sentence
//! that says why. **Excludes:** noticing (`audience`), keeping and showing. **State:** none. **Invariants:** a sentence says nothing that
//! the figures beside it do not.

use crate::types::StreamReport;
use serde::{Deserialize, Serialize};
use std::fmt;
use units::{Bytes, Duration};

/// Version of what is answered here: fields are only added to one.
pub const VERSION: u32 = 1;

/// A client: a process that has a file open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientReport {
    /// Its number; 0: it runs where it has none here.
    pub process: u32,
    /// The user as whom it opened the file.
    pub uid: u32,
    /// What the program is called, where that was looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl fmt::Display for ClientReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.process) {
            (Some(name), process) => write!(f, "{name}[{process}]"),
            (None, 0) => f.write_str("a process without a number here"),
            (None, process) => write!(f, "process {process}"),
        }
    }
}

/// A stream with what is known of its file and its clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamDetail {
    /// As `avfsctl info` shows it.
    #[serde(flatten)]
    pub stream: StreamReport,
    /// From the root of the volume; of a sequence with `#` for each digit. Absent when it has no name any more.
    pub path: Option<String>,
    /// Those who play it, or record it.
    pub clients: Vec<ClientReport>,
    /// What its container is, where somebody looked.
    pub container: Option<String>,
    /// Bytes that are in memory ahead of the client that has fewest.
    pub ahead_bytes: u64,
    /// For how long they play, in microseconds.
    pub ahead_microseconds: u64,
    /// How many frames they are, where it is known how long one is shown.
    pub ahead_frames: Option<u64>,
    /// For how long no client has asked for anything, in microseconds.
    pub silent_microseconds: Option<u64>,
    /// Why it is promised nothing, or not all of its rate.
    pub reason: Option<String>,
}

/// The device, since mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceWork {
    /// For how long it worked, in microseconds: two answers make a utilisation.
    pub busy_microseconds: u64,
    /// For how long it should have, by what was known of it at each command.
    pub reckoned_microseconds: u64,
    /// Commands it was given.
    pub commands: u64,
    /// Bytes read from it, and written to it, for requests that succeeded.
    pub read_bytes: u64,
    /// See above.
    pub written_bytes: u64,
    /// Requests that wait for it now.
    pub queued: u64,
    /// Commands it has now.
    pub in_flight: u32,
    /// What streams are promised of its time, in thousandths.
    pub promised_permille: u32,
}

/// How many more streams there is room for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Of players at this rate.
    pub bits_per_second: u64,
    /// So many.
    pub more: u32,
    /// There may be room for still more: that is where counting ended.
    pub or_more: bool,
}

/// Who plays what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamsReport {
    /// [`VERSION`].
    pub version: u32,
    /// When this was so, in milliseconds since 1970 UTC.
    pub at_milliseconds: i64,
    /// The same by the machine's clock that is never set, in microseconds: for differences.
    pub clock_microseconds: u64,
    /// All streams.
    pub streams: Vec<StreamDetail>,
    /// The device.
    pub device: DeviceWork,
    /// Room for more, by rate.
    pub room: Vec<Room>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// Storage answered later than it had promised, or than the client's clock bears.
    Late,
    /// The client itself asked later than its own clock says.
    ClientLate,
    /// A stream was promised nothing when it came, or not all of its rate.
    Refused,
    /// A stream lost its promise.
    Demoted,
    /// It has it again.
    Restored,
    /// The device takes longer than before.
    DeviceSlower,
    /// The device is faster again.
    DeviceFaster,
    /// The device failed, or data were lost.
    Error,
    /// More is used below a directory than its soft limit.
    Limit,
}

impl EventKind {
    /// All that there are.
    pub const ALL: [Self; 9] = [
        Self::Late,
        Self::ClientLate,
        Self::Refused,
        Self::Demoted,
        Self::Restored,
        Self::DeviceSlower,
        Self::DeviceFaster,
        Self::Error,
        Self::Limit,
    ];

    /// As in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::ClientLate => "client_late",
            Self::Refused => "refused",
            Self::Demoted => "demoted",
            Self::Restored => "restored",
            Self::DeviceSlower => "device_slower",
            Self::DeviceFaster => "device_faster",
            Self::Error => "error",
            Self::Limit => "limit",
        }
    }
}

/// What made something late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Another stream wanted in real time what it was not promised.
    AnotherStream,
    /// Copies, writeback, metadata.
    BestEffort,
    /// The file, or another one, lies in pieces.
    Seek,
    /// The device took longer than it is known to take.
    SlowDisk,
    /// More was wanted, or promised, than there is time.
    OverAdmission,
    /// The client.
    Client,
    /// The device was given nothing: the server was held up.
    Server,
    /// The stream itself had asked for so much.
    Own,
    /// Nothing that was promised was late.
    Unknown,
}

impl Cause {
    /// Something was other than was reckoned with, and no other stream had what it was promised instead.
    pub(crate) fn is_a_fault(self) -> bool {
        matches!(self, Self::BestEffort | Self::Seek | Self::SlowDisk | Self::Server)
    }
}

/// What the device did while a request waited, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkReport {
    /// Length of the span that is looked at.
    pub span: u64,
    /// For the stream itself.
    pub own: u64,
    /// For other streams, as promised.
    pub promised: u64,
    /// For streams that wanted what they were not promised.
    pub beyond: u64,
    /// For best effort, metadata and idle work.
    pub unpromised: u64,
    /// Nothing.
    pub idle: u64,
    /// Of all that: before the first byte of each command.
    pub seeking: u64,
    /// What it all should have taken.
    pub reckoned: u64,
    /// Commands.
    pub commands: u32,
}

/// One event. Times are in microseconds where they do not say otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventReport {
    /// Counts up, also over restarts.
    pub number: u64,
    /// When it happened first, in milliseconds since 1970 UTC...
    pub at_milliseconds: i64,
    /// ...and last, of what is counted here.
    pub until_milliseconds: i64,
    /// What.
    pub kind: EventKind,
    /// How often, within a few seconds.
    pub count: u32,
    /// Which file; of a sequence its directory; 0: it concerns all.
    pub ino: u64,
    /// Its path from the root of the volume at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Whether it was recorded; else it was played.
    #[serde(default)]
    pub writes: bool,
    /// Who plays it, or records it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientReport>,
    /// Its rate.
    #[serde(default)]
    pub bits_per_second: u64,
    /// By how much it was late at most.
    #[serde(default)]
    pub late_microseconds: u64,
    /// A client had to wait longer than its clock bears; else it had what it needed before.
    #[serde(default)]
    pub is_noticed: bool,
    /// How much the client must still have had in its own memory, if it played as soon as it could. Negative: perhaps nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_microseconds: Option<i64>,
    /// Of what the client was late by its clock: it waited for storage, and it did not ask.
    #[serde(default)]
    pub storage_microseconds: u64,
    /// See above.
    #[serde(default)]
    pub client_microseconds: u64,
    /// What made it late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// The file of the stream that did, if one did,...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocker_path: Option<String>,
    /// ...and whose that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocker: Option<ClientReport>,
    /// What the device did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<WorkReport>,
    /// What streams were promised of the device's time, in thousandths.
    #[serde(default)]
    pub promised_permille: u32,
    /// Why there was no room, or what failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl EventReport {
    /// The file, or what else it concerns.
    fn whose(&self) -> String {
        match (&self.path, self.ino) {
            (Some(path), _) => path.clone(),
            (None, 0) => "the device".into(),
            (None, ino) => format!("inode {ino}, which has no name any more,"),
        }
    }

    fn with_client(&self) -> String {
        let client = self.client.as_ref().map(|client| format!(" ({client})"));
        format!("{}{}", self.whose(), client.unwrap_or_default())
    }

    fn blocker(&self) -> Option<String> {
        let path = self.blocker_path.as_deref();
        let client = self.blocker.as_ref().map(ToString::to_string);
        match (path, client) {
            (Some(path), Some(client)) => Some(format!("{path} ({client})")),
            (Some(path), None) => Some(path.into()),
            (None, client) => client,
        }
    }

    /// What made it late, as the end of a sentence.
    fn because(&self) -> String {
        let work = self.work.unwrap_or_default();
        let of_span = |part: u64| format!("{} of {}", time(part), time(work.span));
        match self.cause.unwrap_or(Cause::Unknown) {
            Cause::SlowDisk => format!(
                "the disk was slow: it took {} for what it does in {}",
                time(work.span.saturating_sub(work.idle)),
                time(work.reckoned)
            ),
            Cause::BestEffort => {
                let whose = self.blocker().map(|whose| format!(", most of it {whose}")).unwrap_or_default();
                format!("best effort held the disk for {}{whose}", of_span(work.unpromised))
            }
            Cause::AnotherStream => {
                let whose = self.blocker().unwrap_or_else(|| "one that has ended".into());
                let is_own = self.blocker_path.is_some() && self.blocker_path == self.path;
                let (who, it) = if is_own {
                    ("what it asked for beyond its rate", "itself")
                } else {
                    ("another stream", whose.as_str())
                };
                format!("{who} held the disk for {}: {it}", of_span(work.beyond + work.promised))
            }
            Cause::Seek => {
                let whose = self.blocker().unwrap_or_else(|| "what is played".into());
                format!("the disk was seeking for {}: {whose} lies in pieces", of_span(work.seeking))
            }
            Cause::OverAdmission => match &self.reason {
                Some(reason) => format!("there was no room for it on the disk: {reason}"),
                None => format!(
                    "the disk had too much to do: {} % of its time are promised, and {} were wanted at once",
                    permille(self.promised_permille),
                    of_span(work.own + work.promised)
                ),
            },
            Cause::Server => {
                format!("the server gave the disk nothing to do for {}", of_span(work.idle))
            }
            Cause::Client => format!(
                "the client itself asked {} later than its clock says; storage kept it waiting for {}",
                time(self.client_microseconds),
                time(self.storage_microseconds)
            ),
            Cause::Own => {
                format!("the disk was busy with what it had itself asked for, {}", of_span(work.own))
            }
            Cause::Unknown => {
                "the client waited for what was not asked for sooner, and no promise was broken".into()
            }
        }
    }

    /// What happened, in one sentence that begins with the path.
    pub fn sentence(&self) -> String {
        let whose = self.with_client();
        let times = if self.count > 1 { format!(", {} times", self.count) } else { String::new() };
        let reason = self.reason.as_deref().unwrap_or("no reason is known");
        match self.kind {
            EventKind::Late => {
                let by = time(self.late_microseconds);
                format!("{whose} was late by {by}{times}: {}{}", self.because(), self.effect())
            }
            EventKind::ClientLate => format!("{whose} was late by itself{times}: {}", self.because()),
            EventKind::Refused => {
                format!("{whose} is served as best effort at {}: {reason}", rate(self.bits_per_second))
            }
            EventKind::Demoted => format!("{whose} has lost its promise{times}: {reason}"),
            EventKind::Restored => format!("{whose} has its promise again"),
            EventKind::DeviceSlower => format!("the disk has become slower: {reason}"),
            EventKind::DeviceFaster => format!("the disk is faster again: {reason}"),
            EventKind::Error => format!("{whose}: {reason}"),
            EventKind::Limit => format!("{whose} is over its soft limit{times}: {reason}"),
        }
    }

    /// What the client has noticed of it.
    fn effect(&self) -> String {
        match (self.is_noticed, self.left_microseconds) {
            (false, _) => "; the client had what it needed".into(),
            (true, Some(left)) if left > 0 => {
                format!("; the client still had {} of its own", time(left.unsigned_abs()))
            }
            (true, _) => "; the client may have had nothing left to show".into(),
        }
    }

    /// The figures, one to a line.
    pub fn details(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.bits_per_second > 0 {
            let what = if self.writes { "recorded" } else { "played" };
            lines.push(format!("{what} at {}", rate(self.bits_per_second)));
        }
        if let Some(client) = &self.client {
            lines.push(format!("client {client}, user {}", client.uid));
        }
        if self.storage_microseconds > 0 || self.client_microseconds > 0 {
            lines.push(format!(
                "behind its own clock: {} waiting for storage, {} not asking",
                time(self.storage_microseconds),
                time(self.client_microseconds)
            ));
        }
        if let Some(work) = &self.work {
            lines.push(format!(
                "in these {} the disk worked {} for it, {} for other streams as promised, {} for streams beyond their promise, \
                 {} for best effort, and nothing for {}",
                time(work.span),
                time(work.own),
                time(work.promised),
                time(work.beyond),
                time(work.unpromised),
                time(work.idle)
            ));
            lines.push(format!(
                "{} commands, {} of it seeking; it should have taken {}",
                work.commands,
                time(work.seeking),
                time(work.reckoned)
            ));
        }
        if self.promised_permille > 0 {
            lines.push(format!(
                "{} % of the disk's time were promised to streams",
                permille(self.promised_permille)
            ));
        }
        lines
    }
}

/// A time with its unit: three figures.
pub fn time(microseconds: u64) -> String {
    match microseconds {
        0..10_000 => format!("{:.1} ms", microseconds as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", microseconds / 1000),
        1_000_000..100_000_000 => format!("{:.1} s", microseconds as f64 / 1e6),
        _ => format!("{} s", microseconds / 1_000_000),
    }
}

/// A size with its unit: what is below a limit by less than it shows is not told from it.
pub fn size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match UNITS.into_iter().find(|&(shift, _)| bytes >= 1 << shift) {
        Some((shift, name)) => format!("{:.1} {name}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

/// A rate with its unit.
pub fn rate(bits_per_second: u64) -> String {
    match bits_per_second {
        0..10_000_000 => format!("{:.1} Mbit/s", bits_per_second as f64 / 1e6),
        _ => format!("{} Mbit/s", (bits_per_second + 500_000) / 1_000_000),
    }
}

/// Thousandths as percent.
pub fn permille(permille: u32) -> String {
    format!("{}.{}", permille / 10, permille % 10)
}

/// Microseconds, at most 584,000 years.
pub(crate) fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// How a length of a request was taken, in words.
pub(crate) fn speed(direction: &str, before: Duration, now: Duration) -> String {
    let length = Bytes::from_mib(8);
    let megabytes = |took: Duration| length.0 as f64 / 1e6 / took.as_secs_f64().max(1e-9);
    format!(
        "{direction} of 8 MiB took {} ({:.0} MB/s) and take {} ({:.0} MB/s) now",
        time(microseconds(before)),
        megabytes(before),
        time(microseconds(now)),
        megabytes(now)
    )
}
