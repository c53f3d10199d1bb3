//! What the simulator is told besides: it has a scheduler and a device, but no volume that could know.

use serde::{Deserialize, Serialize};

/// Of a whole declaration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Simulated {
    /// Virtual time of a full run, seconds; absent: as of a point.
    pub seconds: Option<u64>,
    /// Orders that the scheduler is compared with.
    pub compare: Vec<String>,
    /// Memory for the streams' buffers, MiB.
    pub memory_mib: u64,
    /// The longest request of a stream, KiB.
    pub largest_request_kib: u64,
    /// Commands at the device at once; 0: the scheduler's default.
    pub queue_depth: u32,
    /// Floors of metadata, best effort and idle work, percent; absent: the scheduler's defaults.
    pub floors_percent: Option<[u32; 3]>,
    /// Length of the requests that the orders for comparison have streams make, KiB.
    pub baseline_request_kib: u64,
}

impl Default for Simulated {
    /// 4 GiB, requests of 64 MiB; the paper's 8 MiB for the other orders.
    fn default() -> Self {
        Self {
            seconds: None,
            compare: Vec::new(),
            memory_mib: 4096,
            largest_request_kib: 64 << 10,
            queue_depth: 0,
            floors_percent: None,
            baseline_request_kib: 8 << 10,
        }
    }
}

/// Of a group of streams: what a policy would say, and where the files lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Told {
    /// The rate that they ask for, Mbit/s; absent: theirs. One that plays faster misbehaves, and nothing is promised to it.
    pub megabits: Option<f64>,
    /// Of overloaded streams, the lowest gives way first.
    pub priority: u8,
    /// Their files lie in pieces of this length, KiB, at least 4; absent: in one.
    pub extent_kib: Option<u64>,
    /// Length of a file, MiB; it is played round and round.
    pub file_mib: u64,
    /// What becomes of one that is refused.
    pub refused: Refused,
}

impl Default for Told {
    fn default() -> Self {
        Self {
            megabits: None,
            priority: 0,
            extent_kib: None,
            file_mib: 16 << 10,
            refused: Refused::default(),
        }
    }
}

impl Told {
    /// What is wrong with it, if anything.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        if self.megabits.is_some_and(|megabits| !(0.001..=1e6).contains(&megabits)) {
            return Some("told.megabits must be from 0.001 to 10^6");
        }
        if self.extent_kib.is_some_and(|kib| kib < 4) {
            return Some("told.extent_kib must be at least 4");
        }
        (self.file_mib == 0).then_some("told.file_mib must be above zero")
    }
}

/// What becomes of a stream that is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refused {
    /// Its file is not opened.
    #[default]
    Leaves,
    /// It plays as best effort.
    PlaysOn,
}

/// What must be true of the scheduler at the end. Always: no unit of an admitted stream is late, unless it misbehaves, or was
/// demoted after a pause or on a device that became slower; nothing is lost or served twice, the device hardly ever has nothing
/// to do while requests wait, and no stream was refused that the simulator's oracle could have carried with a margin of 5 %.
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
