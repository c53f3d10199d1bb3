//! The calibration before modelled devices, in virtual time: does it find what they take?

use avfs_io::calibration::{Calibration, Measured, Plan, SMALLEST, ZONES};
use rtsched::{Direction, ServiceTime, WRITE_LENGTHS};
use rtsched_sim::calibration::{read_ends, start_values, write_times};
use rtsched_sim::device::{self, Device, DeviceSpec, ModelSpec};
use units::{Bytes, Duration, Instant};

const BUDGET: Duration = Duration::from_secs(60);

fn spec(name: &str) -> DeviceSpec {
    DeviceSpec::named(name).expect("the simulator declares it")
}

/// Measures a modelled device; with it, the virtual time that it took.
fn measure(spec: &DeviceSpec, writes: bool, duration: Duration) -> (Measured, Duration) {
    measure_with(spec, writes, duration, || Duration::ZERO)
}

/// The same from a host that notices each completion so late.
fn measure_with(
    spec: &DeviceSpec,
    writes: bool,
    duration: Duration,
    mut late: impl FnMut() -> Duration,
) -> (Measured, Duration) {
    let depth = match spec.model {
        ModelSpec::Disk(_) | ModelSpec::Line(_) => 1,
        ModelSpec::Flash(_) => 32,
    };
    let plan = Plan { device_size: spec.capacity(), depth, writes, duration };
    let (mut calibration, mut device) = (Calibration::new(plan), Device::new(spec, 3));
    let (mut now, mut tag, mut completions) = (Instant::ZERO, 0, Vec::new());
    let mut in_flight = 0;
    while !calibration.is_finished() {
        while let Some(command) = calibration.next(now) {
            assert!(command.offset.0 + command.length.0 <= spec.capacity().0, "{command:?}");
            assert!(writes || command.direction == Direction::Read, "{command:?}");
            let avfs_io::calibration::Command { direction, offset, length } = command;
            device.submit(now, device::Command { tag, owner: 0, direction, offset, length });
            (tag, in_flight) = (tag + 1, in_flight + 1);
        }
        assert!((1..=depth.max(2)).contains(&in_flight));
        now = now.max(device.next_event().expect("commands are at the device"));
        device.advance(now, &mut completions);
        now += late();
        for _ in completions.drain(..) {
            in_flight -= 1;
            calibration.completed(now);
        }
    }
    assert_eq!(in_flight, 0);
    assert_eq!(calibration.next(now), None);
    (calibration.result().expect("it is finished"), now.saturating_since(Instant::ZERO))
}

/// By how much a line is off what it should be at a length, at most, of those of frames and of a stream's requests.
fn worst(found: ServiceTime, truth: ServiceTime) -> f64 {
    let off = |mib| {
        let length = Bytes::from_mib(mib);
        (found.of(length).as_secs_f64() / truth.of(length).as_secs_f64() - 1.0).abs()
    };
    [1, 2, 4, 8, 16, 32, 64].map(off).into_iter().fold(0.0, f64::max)
}

/// Within 3 % for reads and 6 % for writes of what a measurement of hours finds: as near as the model of the device
/// itself is to the published one.
#[test]
fn a_raid_is_found_as_it_was_declared() {
    let spec = spec("raid5-table5");
    let [read, write, _] = start_values(&spec);
    let (found, took) = measure(&spec, true, BUDGET);
    assert!(worst(found.read, read) < 0.03, "{:?} is not {read:?}", found.read);
    let found_write = found.write.expect("it wrote");
    assert!(worst(found_write, write) < 0.06, "{found_write:?} is not {write:?}");
    // With a battery, a flush is a command without work.
    assert!(found.flush.expect("it flushed") < Duration::from_millis(1));
    assert!(!found.has_unfilled_cache());
    assert!(took < BUDGET + BUDGET / 10, "{took:?}");
}

#[test]
fn flash_is_found_with_all_of_its_channels_at_work() {
    for name in ["nvme", "ssd-sata"] {
        let spec = spec(name);
        let [read, write, _] = start_values(&spec);
        // Virtual time of many short commands is not that short.
        let (found, took) = measure(&spec, true, Duration::from_secs(20));
        assert!(worst(found.read, read) < 0.1, "{name}: {:?} is not {read:?}", found.read);
        let found_write = found.write.expect("it wrote");
        assert!(worst(found_write, write) < 0.1, "{name}: {found_write:?} is not {write:?}");
        assert!(took < Duration::from_secs(24), "{took:?}");
    }
}

#[test]
fn zones_show_and_a_volatile_cache_makes_flushes_cost() {
    let spec = spec("disk-ncq");
    let (found, _) = measure(&spec, true, BUDGET);
    let [first, .., last] = found.zones;
    let ratio = first.0 as f64 / last.0 as f64;
    // 180 MB/s outside, 90 inside; the last zone begins an eighth before the end: 101.
    assert!((1.7..1.85).contains(&ratio), "{:?}", found.zones);
    assert!(found.zones.is_sorted_by(|outer, inner| outer > inner), "{:?}", found.zones);
    assert!(found.flush.expect("it flushed") > Duration::from_millis(2), "{:?}", found.flush);
}

/// The first of them is told at which rate it may be promised something outside and inside, and what is as fast everywhere is
/// said to be.
#[test]
fn both_ends_of_a_device_are_found() {
    for (name, writes) in [("disk-ncq", false), ("disk-ncq", true), ("raid5-table5", false)] {
        let spec = spec(name);
        let found = measure(&spec, writes, BUDGET).0.read_ends.expect("sequential reads and long ones agree");
        for (found, truth) in found.into_iter().zip(read_ends(&spec)) {
            let off = found.0 as f64 / truth.0 as f64 - 1.0;
            assert!(off.abs() < 0.01, "{name}: {off}");
        }
        assert_eq!(found[0] == found[1], name != "disk-ncq", "{found:?}");
    }
}

/// A recorder's request of 8 MiB takes a tenth longer than the line through all writes says.
#[test]
fn writes_are_known_by_length() {
    let spec = spec("raid5-table5");
    let (found, took) = measure(&spec, true, BUDGET * 2);
    assert!(took < BUDGET * 2 + BUDGET / 10, "{took:?}");
    let found = found.write_times.expect("it wrote");
    for ((length, found), truth) in WRITE_LENGTHS.into_iter().zip(found).zip(write_times(&spec)) {
        let off = found.as_secs_f64() / truth.as_secs_f64() - 1.0;
        // 2 MiB is between two that are measured, what is shorter than 1 MiB as far from the line as that.
        let bound = if length == Bytes::from_mib(2) { 0.06 } else { 0.01 };
        assert!(length < Bytes::from_mib(1) || off.abs() < bound, "{length}: {off}");
    }
}

#[test]
fn without_writes_reads_alone_are_measured() {
    let spec = spec("raid5-table5");
    let (found, took) = measure(&spec, false, BUDGET);
    assert_eq!((found.write, found.write_times, found.flush), (None, None, None));
    assert!(worst(found.read, start_values(&spec)[0]) < 0.03, "{:?}", found.read);
    assert!(found.points.iter().all(|point| point.direction == Direction::Read && point.count >= 3));
    assert!(took < BUDGET + BUDGET / 10, "{took:?}");
}

/// A machine at other work while it measured noticed completions some milliseconds late. Each was taken for the device's time,
/// and a volume that carries thirteen players was said to carry twelve: between these lie six thousandths.
#[test]
fn a_host_that_is_busy_does_not_make_the_device_slower() {
    let spec = spec("raid5-table5");
    let [truth, ..] = start_values(&spec);
    let mut count = 0_u64;
    let (found, _) = measure_with(&spec, false, Duration::from_secs(30), || {
        count += 1;
        let late =
            [(16, 60_000), (8, 5000), (2, 200)].into_iter().find(|(every, _)| count.is_multiple_of(*every));
        Duration::from_micros(late.map_or(20, |(_, micros)| micros))
    });
    let length = Bytes::from_mib(32);
    let off = found.read.of(length).as_secs_f64() / truth.of(length).as_secs_f64() - 1.0;
    assert!(off.abs() < 0.005, "{off}: {:?} is not {truth:?}", found.read);
}

#[test]
fn a_cache_that_is_not_full_when_the_time_is_over_is_suspected() {
    let mut spec = spec("raid5-table5");
    let ModelSpec::Disk(disk) = &mut spec.model else { panic!("it has arms") };
    disk.cache.as_mut().expect("it has a cache").size_mib = 64 << 10;
    assert!(measure(&spec, true, BUDGET).0.has_unfilled_cache());
}

#[test]
fn however_slow_the_device_and_short_the_time_it_ends() {
    let mut spec = spec("raid5-table5");
    let ModelSpec::Disk(disk) = &mut spec.model else { panic!("it has arms") };
    (disk.outer_mb_per_s, disk.inner_mb_per_s) = (1.0, 1.0);
    let (found, _) = measure(&spec, true, Duration::ZERO);
    assert!(found.points.iter().all(|point| point.count == 3), "{:?}", found.points);
    assert!((900_000..1_100_000).contains(&found.read.bytes_per_second.0), "{:?}", found.read);
}

#[test]
fn the_smallest_device_can_be_measured_and_none_below() {
    let plan = |device_size| Plan { device_size, depth: 1, writes: true, duration: BUDGET };
    let below = Bytes(SMALLEST.0 - 1);
    assert!(std::panic::catch_unwind(|| Calibration::new(plan(below))).is_err());
    let mut calibration = Calibration::new(plan(SMALLEST));
    let mut now = Instant::ZERO;
    while !calibration.is_finished() {
        let command = calibration.next(now).expect("the device is empty");
        assert!(command.offset.0 + command.length.0 <= SMALLEST.0, "{command:?}");
        assert!(command.offset.0.is_multiple_of(4096) && command.length.0.is_multiple_of(4096));
        now += Duration::from_millis(10) + Duration::from_nanos(command.length.0 * 6);
        calibration.completed(now);
    }
    let found = calibration.result().expect("it is finished");
    // Exactly what the device takes: 10 ms and 6 ns a byte.
    assert!(found.read.access.abs_diff(Duration::from_millis(10)) < Duration::from_micros(100), "{found:?}");
    assert_eq!(found.zones.len(), ZONES);
}
