//! What AVFS says of itself.
//!
//! **For:** the figures of `avfsctl info --json` that explain a run. **Excludes:** asking, and everything that can be
//! measured from outside, which is measured so. **State:** none. **Invariants:** what a later version says beyond is ignored.

use avfs_core::types::{StreamReport, StreamService, VolumeReport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// At one moment, since the volume was mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AvfsReport {
    /// Streams with a reservation; who pauses has one.
    pub streams_admitted: u32,
    /// Streams without: there was no room for them, or there is none any more.
    pub streams_without: u32,
    /// Requests of the streams there are, completed after their deadline.
    pub requests_late: u64,
    /// By how much the latest of them, milliseconds.
    pub latest_ms: f64,
    /// Kept for players that have not come to it, MiB.
    pub read_ahead_mib: f64,
    /// The same as a part of everything that was read from the device, percent; 0 when nothing was.
    pub read_ahead_percent: f64,
    /// Read from the device and taken by no client: out of memory, or no player will come to it, MiB.
    #[serde(default)]
    pub never_read_mib: f64,
    /// The same as a part of what was read from the device of files, percent.
    #[serde(default)]
    pub never_read_percent: f64,
}

/// As [`AvfsReport`] is told.
#[derive(Deserialize)]
struct Info {
    volume: Volume,
    commands: Vec<Commands>,
    streams: Vec<Stream>,
}

#[derive(Deserialize)]
struct Volume {
    prefetched_bytes: u64,
    loaded_bytes: u64,
    unread_bytes: u64,
}

#[derive(Deserialize)]
struct Commands {
    writes: bool,
    bytes: u64,
}

#[derive(Deserialize)]
struct Stream {
    ino: u64,
    writes: bool,
    state: StreamService,
    missed: u64,
    tardiness_microseconds: u64,
}

impl Stream {
    fn has_reservation(&self) -> bool {
        matches!(self.state, StreamService::Admitted | StreamService::Paused)
    }
}

impl From<&StreamReport> for Stream {
    fn from(report: &StreamReport) -> Self {
        let StreamReport { ino, writes, state, missed, tardiness_microseconds, .. } = *report;
        Self { ino, writes, state, missed, tardiness_microseconds }
    }
}

/// The streams that have a reservation: the file, or the directory of numbered ones, and whether it is written.
pub type Reserved = BTreeSet<(u64, bool)>;

impl AvfsReport {
    /// From the output of `avfsctl info --json`.
    ///
    /// # Errors
    /// When it lacks something.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let Info { volume, commands, streams } = serde_json::from_str(text)?;
        let read: u64 = commands.iter().filter(|one| !one.writes).map(|one| one.bytes).sum();
        Ok(Self::summed(&volume, read, &streams))
    }

    /// Of a volume in this process that has read so many bytes from its device.
    pub fn of(volume: &VolumeReport, read: u64, streams: &[StreamReport]) -> Self {
        let VolumeReport { prefetched_bytes, loaded_bytes, unread_bytes, .. } = *volume;
        let streams: Vec<Stream> = streams.iter().map(Stream::from).collect();
        Self::summed(&Volume { prefetched_bytes, loaded_bytes, unread_bytes }, read, &streams)
    }

    fn summed(volume: &Volume, read: u64, streams: &[Stream]) -> Self {
        let admitted = streams.iter().filter(|stream| stream.has_reservation()).count();
        let latest = streams.iter().map(|stream| stream.tardiness_microseconds).max().unwrap_or(0);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let percent = |bytes: u64, of: u64| if of == 0 { 0.0 } else { bytes as f64 / of as f64 * 100.0 };
        Self {
            streams_admitted: admitted as u32,
            streams_without: (streams.len() - admitted) as u32,
            requests_late: streams.iter().map(|stream| stream.missed).sum(),
            latest_ms: latest as f64 / 1e3,
            read_ahead_mib: mib(volume.prefetched_bytes),
            read_ahead_percent: percent(volume.prefetched_bytes, read),
            never_read_mib: mib(volume.unread_bytes),
            never_read_percent: percent(volume.unread_bytes, volume.loaded_bytes),
        }
    }
}

/// Who has a reservation, from the same output.
///
/// # Errors
/// When it is not told.
pub fn reserved(text: &str) -> Result<Reserved, serde_json::Error> {
    serde_json::from_str(text).map(|Info { streams, .. }| reserved_of(streams))
}

/// Who has a reservation, on a volume in this process.
pub fn reserved_here(streams: &[StreamReport]) -> Reserved {
    reserved_of(streams.iter().map(Stream::from))
}

fn reserved_of(streams: impl IntoIterator<Item = Stream>) -> Reserved {
    let reserved = streams.into_iter().filter(Stream::has_reservation);
    reserved.map(|stream| (stream.ino, stream.writes)).collect()
}

/// The process that serves the volume, from the same output.
///
/// # Errors
/// When it is not told.
pub fn daemon(text: &str) -> Result<u32, serde_json::Error> {
    #[derive(Deserialize)]
    struct Daemon {
        process: u32,
    }
    serde_json::from_str::<Daemon>(text).map(|daemon| daemon.process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn stream(state: &str, missed: u64, tardiness: u64) -> Value {
        json!({
            "ino": 5 + missed, "writes": missed == 1, "state": state, "missed": missed, "tardiness_microseconds": tardiness
        })
    }

    #[test]
    fn the_figures_are_found() {
        let info = json!({
            "volume": {
                "uuid": "x", "prefetched_bytes": 64 << 20, "loaded_bytes": 200 << 20, "unread_bytes": 30 << 20
            },
            "connected": true,
            "commands": [
                { "writes": false, "class": "real_time", "bytes": 192 << 20 },
                { "writes": false, "class": "best_effort", "bytes": 64 << 20 },
                { "writes": true, "class": "best_effort", "bytes": 500 << 20 },
            ],
            "streams": [
                stream("admitted", 0, 0), stream("paused", 1, 20), stream("waiting", 0, 0), stream("demoted", 2, 2500),
            ],
        });
        let expected = AvfsReport {
            streams_admitted: 2,
            streams_without: 2,
            requests_late: 3,
            latest_ms: 2.5,
            read_ahead_mib: 64.0,
            read_ahead_percent: 25.0,
            never_read_mib: 30.0,
            never_read_percent: 15.0,
        };
        assert_eq!(AvfsReport::parse(&info.to_string()).expect("it has everything"), expected);
        assert_eq!(
            reserved(&info.to_string()).expect("it has everything"),
            Reserved::from([(5, false), (6, true)])
        );
        let idle = json!({
            "volume": { "prefetched_bytes": 0, "loaded_bytes": 0, "unread_bytes": 0 }, "commands": [], "streams": []
        });
        assert_eq!(AvfsReport::parse(&idle.to_string()).expect("nothing was read"), AvfsReport::default());
        // Who plays what is recorded is served from memory: 352 MiB ahead of nothing read were 36,909,875,200 percent.
        let chased = json!({
            "volume": { "prefetched_bytes": 352 << 20, "loaded_bytes": 0, "unread_bytes": 0 }, "commands": [], "streams": []
        });
        let expected = AvfsReport { read_ahead_mib: 352.0, ..AvfsReport::default() };
        assert_eq!(AvfsReport::parse(&chased.to_string()).expect("it has everything"), expected);
        assert!(AvfsReport::parse("{}").is_err());
        assert_eq!(daemon(r#"{ "process": 77, "streams": [] }"#).expect("it is told"), 77);
        assert!(daemon("{}").is_err());
    }
}
