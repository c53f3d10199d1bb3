//! How many streams fit?
//!
//! **For:** the answer of the admission of production about a device that is declared or was measured, empty but for streams that are alike.
//! **Excludes:** any formula of its own: how many fit is how many are admitted, one after the other. **State:** none.
//!
//! What an administrator asks besides: *beside a copy*, where something without a promise uses the device; *degraded*, while a disk is
//! rebuilt; *90 % full*, where files lie in the holes of others that were removed, all over the device and in pieces.

use avfs_core::config::{Config, DeviceConfig};
use avfs_core::device::scheduler_config;
use avfs_model::calibration::{read_ends, start_values, write_times};
use avfs_model::device::DeviceSpec;
use rtsched::{Direction, Scheduler, ServiceTime, StreamId, StreamSpec, Why};
use serde::Serialize;
use units::{Bitrate, Bytes, DeviceOffset, Duration, Instant};

/// More are not counted: no table needs them.
pub const MOST: u32 = 999;
/// What lies in one piece on a volume that has been in use for long and is 90 % full. A measurement: clips in a rehearsal were declared with
/// 20 to 29 MiB (128 GiB, aged by files of 64 KiB to 64 MiB).
pub const AGED_PIECE: Bytes = Bytes::from_mib(24);
/// Heads take milliseconds before the first byte, flash does not.
const HEADS_FROM: Duration = Duration::from_millis(1);

/// A device and what is said of it, as a volume is mounted.
#[derive(Clone, Debug)]
pub struct System {
    /// With what was measured of the device.
    pub config: Config,
    /// It has heads, and zones.
    pub turns: bool,
    /// Of the device.
    pub size: Bytes,
    /// The volume's cache; streams are promised half of it.
    pub memory: Bytes,
}

/// What a measurement of a modelled device finds.
pub fn measured(device: &DeviceSpec) -> DeviceConfig {
    let [read, write, flush] = start_values(device);
    DeviceConfig {
        read: Some(read),
        read_ends: Some(read_ends(device)),
        write: Some(write),
        write_times: Some(write_times(device)),
        flush: Some(flush.access.max(Duration::from_micros(1))),
    }
}

impl System {
    /// A modelled device.
    pub fn modelled(device: &DeviceSpec, config: Config, memory: Bytes) -> Self {
        let config = Config { device: measured(device), ..config };
        Self { config, turns: device.turns(), size: device.capacity(), memory }
    }

    /// What the `[device]` of a configuration says; `None`: it says nothing.
    pub fn calibrated(config: Config, size: Bytes, memory: Bytes) -> Option<Self> {
        let turns = config.device.read?.access >= HEADS_FROM;
        Some(Self { config, turns, size, memory })
    }

    /// The same while everything takes so many times as long.
    #[must_use]
    pub fn slowed(&self, factor: f64) -> Self {
        let rate = |rate: Bytes| Bytes((rate.0 as f64 / factor) as u64);
        let line = |line: ServiceTime| ServiceTime {
            access: line.access.mul_f64(factor),
            bytes_per_second: rate(line.bytes_per_second),
        };
        let known = self.config.device;
        let device = DeviceConfig {
            read: known.read.map(line),
            read_ends: known.read_ends.map(|ends| ends.map(rate)),
            write: known.write.map(line),
            write_times: known.write_times.map(|times| times.map(|time| time.mul_f64(factor))),
            flush: known.flush.map(|flush| flush.mul_f64(factor)),
        };
        Self { config: Config { device, ..self.config.clone() }, ..self.clone() }
    }

    fn scheduler(&self) -> Scheduler {
        Scheduler::new(scheduler_config(&self.config, self.turns, self.size, self.memory))
    }
}

/// Streams that are alike, and what is beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// They record, and do not play.
    pub records: bool,
    /// Of each.
    pub rate: Bitrate,
    /// Something without a promise uses the device.
    pub beside_copy: bool,
    /// The volume is 90 % full and has been in use for long; else it is half full.
    pub is_aged: bool,
}

/// What fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fit {
    /// So many streams.
    pub streams: u32,
    /// More than are counted.
    pub or_more: bool,
    /// What they leave of the device's time, thousandths.
    pub free_permille: u32,
    /// What one more lacks: `time`, `memory`, or `deadline`.
    pub lacks: Option<&'static str>,
}

/// Asks the admission.
pub fn fit(system: &System, load: &Load) -> Fit {
    const NOW: Instant = Instant::ZERO;
    let mut scheduler = system.scheduler();
    if load.beside_copy {
        // What a copy has written into memory, and more than goes unnoticed on any device.
        scheduler.note_accepted(NOW, 1 << 17, Bytes::from_mib(1 << 20));
    }
    // The newest files of a volume that is half full lie there, and those in the holes of a full one there on average.
    let place = Some(DeviceOffset(system.size.0 / 2));
    let piece = Some(AGED_PIECE).filter(|_| load.is_aged && !load.records);
    let direction = if load.records { Direction::Write } else { Direction::Read };
    let spec = StreamSpec { direction, place, piece, ..StreamSpec::reader(load.rate) };
    let mut streams = 0;
    let mut lacks = None;
    while streams < MOST && lacks.is_none() {
        // A reservation that is not given back holds.
        match scheduler.admit(NOW, StreamId(u64::from(streams)), &spec) {
            Ok(_held) => streams += 1,
            Err(rejected) => lacks = Some(in_a_word(rejected.why)),
        }
    }
    let free_permille = 1000_u32.saturating_sub(scheduler.utilisation_permille());
    Fit { streams, or_more: lacks.is_none(), free_permille, lacks }
}

fn in_a_word(why: Why) -> &'static str {
    match why {
        Why::NoMemory { .. } => "memory",
        Why::DeadlineTooShort { .. } => "deadline",
        Why::NoTime { .. }
        | Why::AccountFull { .. }
        | Why::Congested { .. }
        | Why::NoStream
        | Why::AlreadyAdmitted => "time",
    }
}

/// One kind of streams under all conditions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What is played or recorded.
    pub name: String,
    /// Of each stream.
    pub bits_per_second: u64,
    /// They record.
    pub records: bool,
    /// Nothing else.
    pub alone: Fit,
    /// Beside a copy.
    pub beside_copy: Fit,
    /// While a disk is rebuilt; `None`: there is none to lose.
    pub degraded: Option<Fit>,
    /// On a volume that is 90 % full.
    pub aged: Fit,
    /// All three at once.
    pub worst: Fit,
}

/// A row of the table; `degraded` is the system while a disk is rebuilt.
pub fn row(system: &System, degraded: Option<&System>, name: &str, rate: Bitrate, records: bool) -> Row {
    let load = Load { records, rate, beside_copy: false, is_aged: false };
    let (aged, beside) = (Load { is_aged: true, ..load }, Load { beside_copy: true, ..load });
    let all = Load { beside_copy: true, is_aged: true, ..load };
    Row {
        name: name.to_owned(),
        bits_per_second: rate.0,
        records,
        alone: fit(system, &load),
        beside_copy: fit(system, &beside),
        degraded: degraded.map(|degraded| fit(degraded, &load)),
        aged: fit(system, &aged),
        worst: fit(degraded.unwrap_or(system), &all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paper() -> System {
        let device = DeviceSpec::named("raid5-table5").expect("it is declared");
        System::modelled(&device, Config::default(), Bytes::from_mib(4096))
    }

    fn load(megabits: u64) -> Load {
        let rate = Bitrate::from_megabits(megabits);
        Load { records: false, rate, beside_copy: false, is_aged: false }
    }

    /// What the laboratory measured over and over: thirteen players of 100 Mbit/s, twelve beside a copy. Recorders are promised 98 % of the
    /// time, because a cache may have to be paid later; the thirteenth is in time without a promise.
    #[test]
    fn the_array_of_the_paper_carries_what_was_measured_on_it() {
        let system = paper();
        let streams = |load: &Load| fit(&system, load).streams;
        assert_eq!(streams(&load(100)), 13);
        assert_eq!(streams(&Load { beside_copy: true, ..load(100) }), 12);
        assert_eq!(streams(&Load { records: true, ..load(100) }), 12);
    }

    #[test]
    fn what_fits_says_what_one_more_lacks() {
        let full = fit(&paper(), &load(100));
        assert_eq!((full.lacks, full.or_more), (Some("time"), false));
        assert!(full.free_permille < 20, "{full:?}");
        let small = System { memory: Bytes::from_mib(512), ..paper() };
        let short = fit(&small, &load(100));
        assert!(short.streams < 13, "{short:?}");
        let proxies =
            fit(&System { memory: Bytes(1 << 40), ..paper() }, &Load { rate: Bitrate(10_000), ..load(1) });
        assert_eq!((proxies.streams, proxies.or_more, proxies.lacks), (MOST, true, None));
    }

    #[test]
    fn worse_conditions_carry_no_more() {
        let device = DeviceSpec::named("raid6-8").expect("it is declared");
        let system = System::modelled(&device, Config::default(), Bytes::from_mib(16 << 10));
        let degraded = System::modelled(
            &device.degraded().expect("it has parity"),
            Config::default(),
            Bytes::from_mib(16 << 10),
        );
        for records in [false, true] {
            let row = row(&system, Some(&degraded), "x", Bitrate::from_megabits(200), records);
            let lost = row.degraded.clone().expect("a disk was lost");
            assert!(
                row.beside_copy.streams <= row.alone.streams && row.aged.streams <= row.alone.streams,
                "{row:?}"
            );
            assert!(lost.streams < row.alone.streams && row.worst.streams <= lost.streams, "{row:?}");
        }
    }

    #[test]
    fn a_measurement_that_is_slowed_is_the_slower_device() {
        let device = DeviceSpec::named("raid5-table5").expect("it is declared");
        let slow = System::modelled(&device.slowed(1.5), Config::default(), Bytes::from_mib(4096));
        let scaled = paper().slowed(1.5);
        let streams = |system: &System| fit(system, &load(100)).streams;
        assert_eq!(streams(&slow), streams(&scaled));
        let none = System::calibrated(Config::default(), Bytes(1 << 40), Bytes(1 << 32));
        assert!(none.is_none());
    }
}
