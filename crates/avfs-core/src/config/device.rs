//! `[device]`: what a measurement of the device found.
//!
//! **For:** the names of its settings, read and written in one place. **Excludes:** measuring, and what the scheduler makes
//! of it. **State:** none. **Invariants:** what is written is read as itself.

use super::quantity;
use rtsched::ServiceTime;
use serde::Deserialize;
use units::{Bitrate, Bytes, Duration};

/// How long the device takes, as it was measured; what is absent was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "DeviceTable")]
pub struct DeviceConfig {
    /// Reads at random places: access 1 µs to 10 s, rate 100 kB/s to 1 TB/s.
    pub read: Option<ServiceTime>,
    /// Writes at random places beyond what a write-back cache lends, in the same ranges; only beside reads.
    pub write: Option<ServiceTime>,
    /// A flush after a short write: 1 µs to 60 s; only beside writes.
    pub flush: Option<Duration>,
}

/// The table as written.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DeviceTable {
    #[serde(deserialize_with = "quantity::access_time")]
    read_access: Option<Duration>,
    #[serde(deserialize_with = "quantity::transfer_rate")]
    read_rate: Option<Bitrate>,
    #[serde(deserialize_with = "quantity::access_time")]
    write_access: Option<Duration>,
    #[serde(deserialize_with = "quantity::transfer_rate")]
    write_rate: Option<Bitrate>,
    #[serde(deserialize_with = "quantity::flush_time")]
    flush: Option<Duration>,
}

impl TryFrom<DeviceTable> for DeviceConfig {
    type Error = &'static str;

    fn try_from(table: DeviceTable) -> Result<Self, Self::Error> {
        let line = |access: Option<Duration>, rate: Option<Bitrate>, lacking| match (access, rate) {
            (Some(access), Some(rate)) => {
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
        Ok(Self { read, write, flush: table.flush })
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
        let line = |line: ServiceTime| ServiceTime {
            access: time(line.access, 10),
            bytes_per_second: Bytes(line.bytes_per_second.0.clamp(100_000, 1_000_000_000_000) / 1000 * 1000),
        };
        let write = self.write.filter(|_| self.read.is_some() && self.flush.is_some());
        Self {
            read: self.read.map(line),
            write: write.map(line),
            flush: self.flush.filter(|_| write.is_some()).map(|flush| time(flush, 60)),
        }
    }

    /// The settings with their values, without quotation marks, in the order of the documentation; of what was
    /// [rounded](Self::rounded).
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let line = |line: Option<ServiceTime>, [access, rate]: [&'static str; 2]| {
            line.into_iter().flat_map(move |line| {
                let bits_per_second = line.bytes_per_second.0.saturating_mul(8);
                [
                    (access, quantity::show_time(line.access)),
                    (rate, quantity::show_byte_rate(Bitrate(bits_per_second))),
                ]
            })
        };
        let flush = self.flush.map(|flush| ("flush", quantity::show_time(flush)));
        line(self.read, ["read_access", "read_rate"])
            .chain(line(self.write, ["write_access", "write_rate"]))
            .chain(flush)
            .collect()
    }
}
