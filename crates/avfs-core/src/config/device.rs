//! `[device]`: what a measurement of the device found.
//!
//! **For:** the names of its settings, read and written in one place. **Excludes:** measuring, and what the scheduler makes
//! of it. **State:** none. **Invariants:** what is written is read as itself.

use super::quantity::{self, AccessTime, TransferRate};
use rtsched::{ServiceTime, WRITE_LENGTHS};
use serde::Deserialize;
use units::{Bitrate, Bytes, Duration};

/// How long the device takes, as it was measured; what is absent was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "DeviceTable")]
pub struct DeviceConfig {
    /// Reads at random places: access 1 µs to 10 s, rate 100 kB/s to 1 TB/s.
    pub read: Option<ServiceTime>,
    /// Bytes a second of reads in sequence at the start of the device and at its end, in the same range; only beside reads.
    pub read_ends: Option<[Bytes; 2]>,
    /// Writes at random places beyond what a write-back cache lends, in the same ranges; only beside reads.
    pub write: Option<ServiceTime>,
    /// What writes of each of these lengths take, 1 µs to 10 s; only beside writes.
    pub write_times: Option<[Duration; WRITE_LENGTHS.len()]>,
    /// A flush after a short write: 1 µs to 60 s; only beside writes.
    pub flush: Option<Duration>,
}

/// The table as written.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DeviceTable {
    read_access: Option<AccessTime>,
    read_rate: Option<TransferRate>,
    read_ends: Option<[TransferRate; 2]>,
    write_access: Option<AccessTime>,
    write_rate: Option<TransferRate>,
    write_times: Option<[AccessTime; WRITE_LENGTHS.len()]>,
    #[serde(deserialize_with = "quantity::flush_time")]
    flush: Option<Duration>,
}

impl TryFrom<DeviceTable> for DeviceConfig {
    type Error = &'static str;

    fn try_from(table: DeviceTable) -> Result<Self, Self::Error> {
        let line = |access, rate, lacking| match (access, rate) {
            (Some(AccessTime(access)), Some(TransferRate(rate))) => {
                Ok(Some(ServiceTime { access, bytes_per_second: rate.bytes_per_second() }))
            }
            (None, None) => Ok(None),
            _ => Err(lacking),
        };
        let read = line(
            table.read_access,
            table.read_rate,
            "read_access and read_rate in [device] go together: write both, or none",
        )?;
        let write = line(
            table.write_access,
            table.write_rate,
            "write_access and write_rate in [device] go together: write both, or none",
        )?;
        if write.is_some() && read.is_none() {
            return Err("write_access and write_rate in [device] want read_access and read_rate beside them");
        }
        if write.is_some() != table.flush.is_some() {
            return Err("write_access, write_rate and flush in [device] go together: write all, or none");
        }
        if table.read_ends.is_some() && read.is_none() {
            return Err("read_ends in [device] wants read_access and read_rate beside it");
        }
        if table.write_times.is_some() && write.is_none() {
            return Err("write_times in [device] wants write_access and write_rate beside it");
        }
        let read_ends = table.read_ends.map(|ends| ends.map(|TransferRate(rate)| rate.bytes_per_second()));
        let write_times = table.write_times.map(|times| times.map(|AccessTime(time)| time));
        Ok(Self { read, read_ends, write, write_times, flush: table.flush })
    }
}

impl DeviceConfig {
    /// As it can be read again: each time and rate within its range, to the microsecond and the kilobyte per second.
    #[must_use]
    pub fn rounded(self) -> Self {
        let time = |time: Duration, most| {
            let (least, most) = (Duration::from_micros(1), Duration::from_secs(most));
            Duration::from_micros(time.clamp(least, most).as_micros() as u64)
        };
        let rate = |rate: Bytes| Bytes(rate.0.clamp(100_000, 1_000_000_000_000) / 1000 * 1000);
        let line = |line: ServiceTime| ServiceTime {
            access: time(line.access, 10),
            bytes_per_second: rate(line.bytes_per_second),
        };
        let write = self.write.filter(|_| self.read.is_some() && self.flush.is_some());
        let write_times = self.write_times.filter(|_| write.is_some());
        Self {
            read: self.read.map(line),
            read_ends: self.read_ends.filter(|_| self.read.is_some()).map(|ends| ends.map(rate)),
            write: write.map(line),
            write_times: write_times.map(|times| times.map(|one| time(one, 10))),
            flush: self.flush.filter(|_| write.is_some()).map(|flush| time(flush, 60)),
        }
    }

    /// The settings in the order of the documentation; of what was [rounded](Self::rounded).
    pub fn settings(&self) -> Vec<(&'static str, SettingValue)> {
        let show_rate = |rate: Bytes| quantity::show_byte_rate(Bitrate(rate.0.saturating_mul(8)));
        let line = |line: Option<ServiceTime>, [access, rate]: [&'static str; 2]| {
            line.into_iter().flat_map(move |line| {
                [
                    (access, SettingValue::One(quantity::show_time(line.access))),
                    (rate, SettingValue::One(show_rate(line.bytes_per_second))),
                ]
            })
        };
        let read_ends =
            self.read_ends.map(|ends| ("read_ends", SettingValue::List(ends.map(show_rate).into())));
        let write_times = self
            .write_times
            .map(|times| ("write_times", SettingValue::List(times.map(quantity::show_time).into())));
        let flush = self.flush.map(|flush| ("flush", SettingValue::One(quantity::show_time(flush))));
        line(self.read, ["read_access", "read_rate"])
            .chain(read_ends)
            .chain(line(self.write, ["write_access", "write_rate"]))
            .chain(write_times)
            .chain(flush)
            .collect()
    }
}

/// The value of a setting, without quotation marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingValue {
    /// Alone.
    One(String),
    /// As many as there must be.
    List(Vec<String>),
}
