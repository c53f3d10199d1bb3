//! What the scheduler is told of the device, and what is said of it.
//!
//! **For:** the one place where the configuration, what the device says of itself and the defaults become the scheduler's
//! figures. **Excludes:** measuring and learning. **State:** none.

use crate::config::{Config, DeviceConfig};
use crate::types::{DeviceReport, ServiceFigures, ServiceOrigin, ServiceReport};
use avfs_io::pool::MAX_BUFFER;
use rtsched::{Calibrated, ServiceTime};
use units::{Bytes, nanos};

/// Heads have one command in work, and one that is there when they are through. What waits in the scheduler can still be put in
/// order and merged. What waits at the device cannot, and an urgent request waits behind it. Two is an argument, and no
/// measurement. Fitted.
const DEPTH_OF_HEADS: u32 = 2;
/// Commands that flash has at once for its channels: as many as a SATA device takes (NCQ, ATA8-ACS); NVMe takes more. A protocol
/// fact.
const DEPTH_OF_FLASH: u32 = 32;

/// The scheduler's configuration for a device of `size`, which has heads if it is `rotational`, with `memory` for everything that is cached.
pub fn scheduler_config(config: &Config, rotational: bool, size: Bytes, memory: Bytes) -> rtsched::Config {
    let default = rtsched::Config::default();
    let DeviceConfig { read, read_ends, write, write_times, flush } = config.device;
    let depth = if rotational { DEPTH_OF_HEADS } else { DEPTH_OF_FLASH };
    let figures = rtsched::Config {
        device_size: if rotational { size } else { Bytes::ZERO },
        // The rest is for what is dirty and what is kept.
        buffer_memory: Bytes(memory.0 / 2),
        buffer_piece: Bytes(MAX_BUFFER as u64),
        request_time_max: config.scheduler.longest_start,
        queue_depth: config.scheduler.queue_depth.unwrap_or(depth),
        metadata_latency: config.scheduler.metadata_latency,
        best_effort_latency: config.scheduler.best_effort_latency,
        best_effort_floor_percent: config.scheduler.best_effort_floor_percent,
        idle_floor_percent: config.scheduler.idle_floor_percent,
        read: read.unwrap_or(default.read),
        read_ends,
        write: write.unwrap_or(default.write),
        write_times,
        flush: flush.map_or(default.flush, |access| ServiceTime { access, ..default.flush }),
        calibrated: match (read, write) {
            (_, Some(_)) => Calibrated::All,
            (Some(_), None) => Calibrated::Reads,
            (None, None) => Calibrated::Nothing,
        },
        ..default
    };
    with_shares(config, figures)
}

/// The same figures, and what users may reserve.
pub(crate) fn with_shares(config: &Config, figures: rtsched::Config) -> rtsched::Config {
    rtsched::Config {
        account_max_permille: config.scheduler.user_share_percent * 10,
        accounts_max_permille: config.scheduler.users_share_percent * 10,
        ..figures
    }
}

/// What is reckoned with, and since when: `start` is what the scheduler began with, `now` what it has learned.
pub(crate) fn report(start: &rtsched::Config, device: DeviceConfig, now: [ServiceTime; 3]) -> DeviceReport {
    let origin = |is_measured| if is_measured { ServiceOrigin::Measured } else { ServiceOrigin::Default };
    let service =
        |(operation, is_measured, start, now): (&str, bool, ServiceTime, ServiceTime)| ServiceReport {
            operation: operation.to_owned(),
            origin: origin(is_measured),
            start: start.into(),
            now: now.into(),
        };
    let [read, write, flush] = now;
    DeviceReport {
        queue_depth: start.queue_depth,
        services: [
            ("read", device.read.is_some(), start.read, read),
            ("write", device.write.is_some(), start.write, write),
            ("flush", device.flush.is_some(), start.flush, flush),
        ]
        .map(service)
        .into(),
    }
}

impl From<ServiceTime> for ServiceFigures {
    fn from(time: ServiceTime) -> Self {
        Self { access_nanoseconds: nanos(time.access), bytes_per_second: time.bytes_per_second.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Duration;

    fn told(text: &str, rotational: bool) -> rtsched::Config {
        let config = Config::parse(text).expect("it is a configuration");
        scheduler_config(&config, rotational, Bytes::from_mib(1 << 20), Bytes::from_mib(1024))
    }

    #[test]
    fn the_depth_suits_the_device_unless_one_was_chosen() {
        assert_eq!(told("", true).queue_depth, 2);
        assert_eq!(told("", false).queue_depth, 32);
        for rotational in [false, true] {
            assert_eq!(told("[scheduler]\nqueue_depth = 5", rotational).queue_depth, 5);
        }
    }

    #[test]
    fn only_heads_have_places() {
        assert_eq!(told("", true).device_size, Bytes::from_mib(1 << 20));
        assert_eq!(told("", false).device_size, Bytes::ZERO);
    }

    #[test]
    fn what_was_measured_is_where_the_scheduler_begins() {
        let default = rtsched::Config::default();
        let nothing = told("", true);
        assert_eq!(
            (nothing.read, nothing.write, nothing.calibrated),
            (default.read, default.write, Calibrated::Nothing)
        );

        let reads = "[device]\nread_access = \"9 ms\"\nread_rate = \"200 MB/s\"\n";
        let line = |millis, megabytes: u64| ServiceTime {
            access: Duration::from_millis(millis),
            bytes_per_second: Bytes(megabytes * 1_000_000),
        };
        let known = told(reads, true);
        assert_eq!(
            (known.read, known.write, known.calibrated),
            (line(9, 200), default.write, Calibrated::Reads)
        );

        let ends = "read_ends = [\"210 MB/s\", \"130 MB/s\"]\n";
        let times = format!("write_times = [{}]\n", ["\"9 ms\""; 9].join(", "));
        let all = format!(
            "{reads}{ends}write_access = \"7 ms\"\nwrite_rate = \"150 MB/s\"\n{times}flush = \"2 ms\"\n"
        );
        let known = told(&all, true);
        assert_eq!(
            (known.read, known.write, known.calibrated),
            (line(9, 200), line(7, 150), Calibrated::All)
        );
        assert_eq!(known.flush.of(Bytes::ZERO), Duration::from_millis(2));
        assert_eq!(known.read_ends, Some([Bytes(210_000_000), Bytes(130_000_000)]));
        assert_eq!(known.write_times, Some([Duration::from_millis(9); 9]));
    }

    #[test]
    fn a_report_says_where_figures_come_from() {
        let config = Config::parse("[device]\nread_access = \"9 ms\"\nread_rate = \"200 MB/s\"\n").unwrap();
        let start = scheduler_config(&config, true, Bytes::from_mib(1 << 20), Bytes::from_mib(1024));
        let report = report(&start, config.device, [start.read, start.write, start.read]);
        let origins: Vec<_> = report.services.iter().map(|service| service.origin).collect();
        assert_eq!(origins, [ServiceOrigin::Measured, ServiceOrigin::Default, ServiceOrigin::Default]);
        assert_eq!(report.services[0].start.access_nanoseconds, 9_000_000);
        assert!(!report.services[0].is_learned() && report.services[2].is_learned());
    }
}
