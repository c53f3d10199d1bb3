//! Could anybody have carried them?
//!
//! **For:** judging a refusal. **Excludes:** the scheduler's view: the oracle knows the device's true mean times, which it
//! measures on the model, and nothing comes unexpected to it. **State:** measured times. **Invariants:** it says yes only
//! where a schedule is known: all streams are served once a round, each with what it plays in a round, two of which are
//! held in memory (one plays while the other is filled), in as few requests as the longest one allows. That is the
//! schedule of rounds of Gemmell et al. (*Multimedia storage servers*, 1995), at every length of a round that helps.

use crate::calibration::{command_time, depth_of_lines};
use avfs_model::device::{DeviceSpec, Phase};
use rtsched::Direction;
use std::cell::RefCell;
use std::collections::BTreeMap;
use units::{Bitrate, Bytes, Duration, Instant};

/// The part of the device's time that must be left.
pub const MARGIN: f64 = 0.05;

/// See the module.
#[derive(Debug)]
pub struct Oracle {
    device: DeviceSpec,
    memory: Bytes,
    longest: Bytes,
    /// Seconds a command takes, by phase, direction and length.
    times: RefCell<BTreeMap<(usize, bool, u64), f64>>,
}

/// A stream as the oracle sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Reads or writes.
    pub direction: Direction,
    /// How much.
    pub rate: Bitrate,
    /// The longest contiguous piece of its file.
    pub contiguous: Bytes,
    /// What where its file lies adds to a byte that is read, see [`DeviceSpec::zone_seconds_per_byte`].
    pub zone_seconds_per_byte: f64,
}

impl Oracle {
    /// An oracle for a device, with so much memory for buffers and requests of at most `longest`.
    pub fn new(device: &DeviceSpec, memory: Bytes, longest: Bytes) -> Self {
        Self { device: device.clone(), memory, longest, times: RefCell::default() }
    }

    /// The least part of the device's time that these streams take, as the device is at `now`; `None` when no round fits
    /// into memory.
    pub fn utilisation(&self, now: Instant, streams: &[Load]) -> Option<f64> {
        let begun = |phase: &&Phase| Instant::ZERO + Duration::from_secs_f64(phase.at_s) <= now;
        let phase = self.device.phases.iter().take_while(begun).count();
        let bytes_per_second: u64 = streams.iter().map(|load| load.rate.0 / 8).sum();
        // Rounds of 2^-4 to 2^6 seconds, eight to an octave.
        let rounds = (-32..=48).map(|eighths| 2_f64.powf(f64::from(eighths) / 8.0));
        // Reading a file where it lies takes so many seconds longer for each byte.
        let zone = |load: &Load| match load.direction {
            Direction::Read => load.zone_seconds_per_byte,
            _ => 0.0,
        };
        let streams: Vec<(Load, f64)> = streams.iter().map(|load| (*load, zone(load))).collect();
        let held = |round: f64| 2.0 * round * bytes_per_second as f64;
        let fits = rounds.filter(|round| held(*round) <= self.memory.as_u64() as f64);
        fits.map(|round| self.time_of_round(phase, &streams, round) / round).min_by(f64::total_cmp)
    }

    /// Whether these streams can be carried and 5 % of the time are left.
    pub fn carries(&self, now: Instant, streams: &[Load]) -> bool {
        self.utilisation(now, streams).is_some_and(|used| used <= 1.0 - MARGIN)
    }

    fn time_of_round(&self, phase: usize, streams: &[(Load, f64)], round: f64) -> f64 {
        let time = |(load, zone): &(Load, f64)| {
            let bytes = load.rate.bytes_in(Duration::from_secs_f64(round)).as_u64();
            let longest = self.longest.min(load.contiguous).as_u64();
            let requests = bytes.div_ceil(longest).max(1);
            requests as f64 * self.time(phase, load.direction, bytes / requests) + zone * bytes as f64
        };
        streams.iter().map(time).sum()
    }

    /// Seconds, between the measured lengths on a straight line.
    fn time(&self, phase: usize, direction: Direction, length: u64) -> f64 {
        let below = (64 << 10) << (length.max(64 << 10) >> 16).ilog2();
        let (short, long) =
            (self.measured(phase, direction, below), self.measured(phase, direction, below * 2));
        let part = (length as f64 - below as f64) / below as f64;
        short + (long - short) * part.max(0.0)
    }

    fn measured(&self, phase: usize, direction: Direction, length: u64) -> f64 {
        let key = (phase, direction == Direction::Read, length);
        if let Some(time) = self.times.borrow().get(&key) {
            return *time;
        }
        // A device that has always been as it is in this phase.
        let phases = phase.checked_sub(1).map(|index| Phase { at_s: 0.0, ..self.device.phases[index] });
        let device = DeviceSpec { phases: phases.into_iter().collect(), ..self.device.clone() };
        let time = command_time(&device, direction, Bytes(length), depth_of_lines(&device), 1).as_secs_f64();
        self.times.borrow_mut().insert(key, time);
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readers(count: usize) -> Vec<Load> {
        let rate = Bitrate::from_megabits(100);
        let contiguous = Bytes(u64::MAX);
        vec![Load { direction: Direction::Read, rate, contiguous, zone_seconds_per_byte: 0.0 }; count]
    }

    #[test]
    fn more_memory_carries_more_streams_up_to_the_sequential_limit() {
        let device = DeviceSpec::named("raid5-table5").expect("declared");
        let carried = |memory, longest| {
            let oracle = Oracle::new(&device, Bytes::from_mib(memory), Bytes::from_mib(longest));
            (1..20).take_while(|count| oracle.carries(Instant::ZERO, &readers(*count))).count()
        };
        // Two buffers of 8 MiB each for nine, of 32 for twelve; the sequential rate is 14 × 100 Mbit/s and a little, less the
        // margin.
        assert_eq!(carried(9 * 16, 64), 9);
        assert_eq!(carried(12 * 64, 64), 12);
        assert_eq!(carried(1 << 20, 1024), 13);
    }

    #[test]
    fn a_degraded_device_carries_less() {
        let device = DeviceSpec::named("raid5-degrading").expect("declared");
        let oracle = Oracle::new(&device, Bytes::from_mib(4096), Bytes::from_mib(64));
        let used = |at| {
            let used = oracle.utilisation(Instant::ZERO + Duration::from_secs(at), &readers(10));
            used.expect("there is memory")
        };
        assert!((1.45..1.55).contains(&(used(600) / used(599))), "{} {}", used(599), used(600));
        assert!((used(1800) / used(0) - 1.0).abs() < 0.001);
    }
}
