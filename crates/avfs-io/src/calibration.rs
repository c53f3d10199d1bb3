//! How long does this device take?
//!
//! **For:** measuring a device, so that the scheduler need not begin with a guess: which command comes next, and what its
//! completions say. **Excludes:** I/O and clock, which are [`measure`](crate::measure)'s: the caller does what
//! [`Calibration::next`] says and reports when it was done, so the same measurement runs on a modelled device. **State:**
//! one [`Calibration`], which goes through its stages in turn. **Invariants:** between stages the device is empty; the
//! measurement ends, however slow the device is.
//!
//! Each stage has a part of the time. What is wanted is the average that a command holds the device for when there is always
//! another one ([`ServiceTime`]), so a stage keeps the device busy with as many commands as suit it, and divides. Where reads come
//! one by one, each is timed by itself, and the longest and the shortest tenth are left out. What a busy host is late with is not
//! the device's, and a two-hundredth more would refuse a stream that the device carries. Writes begin with the longest, and of each
//! length the first half of the time is not counted: it fills a write-back cache with writes of that length, and what is counted
//! then are the platters. A cache that takes longer to fill is not seen through; then writes come out faster than reads, which
//! [`Measured::has_unfilled_cache`] tells.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::{Direction, ServiceTime, WRITE_LENGTHS};
use units::{Bytes, DeviceOffset, Duration, Instant};

/// Lengths of the reads that the line is fitted through. An estimator's window.
const READS: [Bytes; 4] = [Bytes::from_mib(64), Bytes::from_mib(16), Bytes::from_mib(4), Bytes::from_mib(1)];
/// Lengths of the writes, and the parts of the time that they have, percent. Short ones fill a cache more slowly. Arrays keep to no
/// line there, so the lengths that recorders make are measured each. An estimator's window.
const WRITES: [(Bytes, u32); 6] = [
    (Bytes::from_mib(64), 10),
    (Bytes::from_mib(32), 8),
    (Bytes::from_mib(16), 8),
    (Bytes::from_mib(8), 8),
    (Bytes::from_mib(4), 10),
    (Bytes::from_mib(1), 16),
];
/// The longest command: what the caller needs memory for. An estimator's window.
pub const LONGEST: Bytes = READS[0];
/// Length of the commands of sequential reading. An estimator's window.
const SEQUENTIAL: Bytes = Bytes::from_mib(16);
/// What is written before each flush. An estimator's window.
const FLUSHED: Bytes = Bytes::from_kib(4);
/// Zones in which is read sequentially: those of the scheduler's service model. An estimator's window.
pub const ZONES: usize = 8;
/// So many sequential reads are at the device at once, at least: when one ends, the next one is there. An estimator's window.
const SEQUENTIAL_DEPTH: u32 = 2;
/// Bytes at the device at once, but for one command. It bounds memory. An operator's target.
const IN_FLIGHT: Bytes = Bytes::from_mib(128);
/// A stage counts as many commands at least, however long they take. An estimator's window.
const COUNTED_MIN: u32 = 3;
/// One of so many single reads is left out at either end. An estimator's window.
const TRIMMED: usize = 10;
/// A device is as fast everywhere if its ends differ by fewer thousandths. As much lies between two measurements of one place. An
/// estimator's window.
const FLAT_PERMILLE: f64 = 20.0;
/// As many thousandths may the longest reads at random differ from what the rate of sequential ones says of them. An estimator's
/// window.
const AGREEING_PERMILLE: f64 = 20.0;
/// Part of the time for the reads of each length, where there are no writes, percent. An estimator's window.
const READ_ALONE: u32 = 20;
/// Part of the time for each zone, where there are no writes, percent. An estimator's window.
const ZONE_ALONE: u32 = 2;
/// Part of the time for the reads of each length, where there are writes, percent. An estimator's window.
const READ: u32 = 7;
/// Part of the time for each zone, where there are writes, percent. An estimator's window.
const ZONE: u32 = 1;
/// Part of the time for flushes, percent. An estimator's window.
const FLUSH: u32 = 4;

/// What is to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The device's size, at least [`SMALLEST`].
    pub device_size: Bytes,
    /// Commands at the device at once, at least 1: one for arms, which do one thing at a time, many for flash.
    pub depth: u32,
    /// Write, too. What the device holds is lost.
    pub writes: bool,
    /// How long it may take, about. A device that takes seconds for a command takes longer.
    pub duration: Duration,
}

/// The smallest device that is measured. An estimator's window.
pub const SMALLEST: Bytes = Bytes::from_mib(512);

/// A command for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub direction: Direction,
    /// First byte, a multiple of 4096.
    pub offset: DeviceOffset,
    /// Length, a multiple of 4096; zero for a flush.
    pub length: Bytes,
}

/// What commands of one kind took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// What they did.
    pub direction: Direction,
    /// Length of each.
    pub length: Bytes,
    /// How long each held the device, on average.
    pub time: Duration,
    /// How many were counted.
    pub count: u32,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Reads at random places.
    pub read: ServiceTime,
    /// Bytes a second of reads at the start of the device and at its end: between, it changes evenly. `None`: the longest reads
    /// at random say something else than sequential ones.
    pub read_ends: Option<[Bytes; 2]>,
    /// Writes at random places, when the cache is full; `None`: not measured.
    pub write: Option<ServiceTime>,
    /// What writes of the [`WRITE_LENGTHS`] take; of those that were not measured, by the neighbours that were.
    pub write_times: Option<[Duration; WRITE_LENGTHS.len()]>,
    /// A flush after a short write; `None`: not measured.
    pub flush: Option<Duration>,
    /// What the lines were fitted through.
    pub points: Vec<Point>,
    /// Bytes per second read sequentially, zone by zone from the start of the device.
    pub zones: [Bytes; ZONES],
}

impl Measured {
    /// Writes were a third faster than reads: the cache was still lending when they were counted.
    pub fn has_unfilled_cache(&self) -> bool {
        self.write.is_some_and(|write| write.of(LONGEST) * 4 < self.read.of(LONGEST) * 3)
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Commands of one length at random places.
    Random(Direction, Bytes),
    /// Reads that go on where the last one ended, from the start of a zone.
    Sequential(usize),
    /// A short write and a flush in turn.
    Flush,
}

#[derive(Clone, Copy, Debug)]
struct Stage {
    kind: Kind,
    /// From its first command.
    warm_up: Duration,
    duration: Duration,
}

/// See the module.
#[derive(Debug)]
pub struct Calibration {
    plan: Plan,
    places: SmallRng,
    stages: std::vec::IntoIter<Stage>,
    current: Option<Running>,
    points: Vec<Point>,
    zones: [Bytes; ZONES],
    flush: Option<Duration>,
}

/// A stage that is going on.
#[derive(Debug)]
struct Running {
    stage: Stage,
    since: Instant,
    issued: u32,
    completed: u32,
    /// No more commands are to come.
    is_over: bool,
    /// The last completion that is not counted.
    counted_since: Option<Instant>,
    counted: u32,
    /// What the counted commands took together.
    took: Duration,
    /// What reads took that were alone at the device.
    alone: Vec<Duration>,
    /// When the last command was given to the device.
    last_issued: Instant,
    /// Where the next sequential read begins.
    next: DeviceOffset,
}

impl Calibration {
    /// A measurement that has not begun.
    ///
    /// # Panics
    /// When the device is smaller than [`SMALLEST`], or no command may be there.
    pub fn new(plan: Plan) -> Self {
        assert!(plan.device_size >= SMALLEST && plan.depth > 0, "nothing can be measured with {plan:?}");
        let stages = stages(&plan);
        let mut calibration = Self {
            plan,
            // The same places each time: what differs then is the device.
            places: SmallRng::seed_from_u64(0x6361_6c69),
            stages: stages.into_iter(),
            current: None,
            points: Vec::new(),
            zones: [Bytes::ZERO; ZONES],
            flush: None,
        };
        calibration.begin_next(Instant::ZERO);
        calibration
    }

    fn begin_next(&mut self, now: Instant) {
        self.current = self.stages.next().map(|stage| Running {
            stage,
            since: now,
            issued: 0,
            completed: 0,
            is_over: false,
            counted_since: None,
            counted: 0,
            took: Duration::ZERO,
            alone: Vec::new(),
            last_issued: now,
            next: match stage.kind {
                Kind::Sequential(zone) => self.zone_start(zone),
                Kind::Random(..) | Kind::Flush => DeviceOffset(0),
            },
        });
    }

    fn zone_start(&self, zone: usize) -> DeviceOffset {
        let zone_length = self.plan.device_size.0 / ZONES as u64;
        DeviceOffset((zone_length * zone as u64).next_multiple_of(1 << 20))
    }

    /// Nothing is left to do.
    pub fn is_finished(&self) -> bool {
        self.current.is_none()
    }

    /// A command to be given to the device now; `None`: it has enough, until one completes.
    pub fn next(&mut self, now: Instant) -> Option<Command> {
        let running = self.current.as_mut()?;
        if running.issued == 0 {
            running.since = now;
        }
        let depth = running.stage.kind.depth(&self.plan);
        if running.is_over || running.issued - running.completed >= depth {
            return None;
        }
        running.issued += 1;
        running.last_issued = now;
        let command = match running.stage.kind {
            Kind::Random(direction, length) => {
                let places = self.plan.device_size.0 / length.0;
                let offset = DeviceOffset(self.places.random_range(0..places) * length.0);
                Command { direction, offset, length }
            }
            Kind::Sequential(_) => {
                let offset = running.next;
                running.next = offset + SEQUENTIAL;
                if running.next + SEQUENTIAL > DeviceOffset(0) + self.plan.device_size {
                    running.next = DeviceOffset(0);
                }
                Command { direction: Direction::Read, offset, length: SEQUENTIAL }
            }
            Kind::Flush if running.issued.is_multiple_of(2) => {
                Command { direction: Direction::Flush, offset: DeviceOffset(0), length: Bytes::ZERO }
            }
            Kind::Flush => {
                let places = self.plan.device_size.0 / FLUSHED.0;
                let offset = DeviceOffset(self.places.random_range(0..places) * FLUSHED.0);
                Command { direction: Direction::Write, offset, length: FLUSHED }
            }
        };
        Some(command)
    }

    /// One of the commands was completed at `now`.
    pub fn completed(&mut self, now: Instant) {
        let Some(running) = &mut self.current else { return };
        running.completed += 1;
        running.count(now, &self.plan);
        if running.is_over && running.completed == running.issued {
            self.finish_stage();
            self.begin_next(now);
        }
    }

    fn finish_stage(&mut self) {
        let Some(running) = &mut self.current else { return };
        let mean = running.took / running.counted.max(1);
        let time = trimmed_mean(&mut running.alone).unwrap_or(mean);
        match running.stage.kind {
            Kind::Random(direction, length) => {
                self.points.push(Point { direction, length, time, count: running.counted });
            }
            Kind::Sequential(zone) => {
                let seconds = time.as_secs_f64().max(1e-9);
                self.zones[zone] = Bytes((SEQUENTIAL.0 as f64 / seconds) as u64);
            }
            Kind::Flush => self.flush = Some(time),
        }
    }

    /// What was found; `None`: it is not finished, or the device took no time at all.
    pub fn result(&self) -> Option<Measured> {
        if !self.is_finished() {
            return None;
        }
        let points = |direction| {
            let points = self.points.iter().filter(|point| point.direction == direction);
            points.map(|point| (point.length, point.time)).collect::<Vec<_>>()
        };
        let (reads, writes) = (points(Direction::Read), points(Direction::Write));
        let ends = ends(&self.zones);
        let by_rate =
            ServiceTime::with_rate(&reads, rate_anywhere(ends)).filter(|line| self.agrees(line, ends));
        let write = ServiceTime::through(&writes);
        Some(Measured {
            read: by_rate.or_else(|| ServiceTime::through(&reads))?,
            read_ends: by_rate.map(|_| ends),
            write,
            write_times: write.map(|line| write_times(line, &writes)),
            flush: self.flush,
            points: self.points.clone(),
            zones: self.zones,
        })
    }

    /// Whether the longest reads at random take what the line says that has the rate of sequential ones. Of them there are few,
    /// whose turns and seeks hardly average out, so that rate is the better one; unless it is none of theirs. Where the
    /// `ends` differ, they may also have been in other places than on average: by two standard errors.
    fn agrees(&self, line: &ServiceTime, [start, end]: [Bytes; 2]) -> bool {
        let reads = self.points.iter().filter(|point| point.direction == Direction::Read);
        reads.max_by_key(|point| point.length).is_some_and(|longest| {
            let [start, end] = [start.0 as f64, end.0 as f64];
            // Of what is anywhere between them with the same probability.
            let deviation = (start - end).abs() / (start + end) / 3.0_f64.sqrt();
            let chance = 2.0 * deviation / f64::from(longest.count.max(1)).sqrt();
            let off = line.of(longest.length).as_secs_f64() / longest.time.as_secs_f64() - 1.0;
            off.abs() <= AGREEING_PERMILLE / 1000.0 + chance
        })
    }
}

/// Bytes a second at the start of the device and at its end. It is the line through zones that has the median of all their slopes
/// (Theil, 1950; Sen, 1968). So two zones of eight in which the host was busy do not bend it.
fn ends(zones: &[Bytes; ZONES]) -> [Bytes; 2] {
    // Each was read from its own start on.
    let rate = |zone: usize| zones[zone].0 as f64;
    let pairs = (0..ZONES).flat_map(|zone| (0..zone).map(move |before| (before, zone)));
    let slopes = pairs.map(|(before, zone)| (rate(zone) - rate(before)) / (zone - before) as f64);
    let slope = median(slopes.collect());
    let start = median((0..ZONES).map(|zone| rate(zone) - slope * zone as f64).collect());
    let difference = slope * ZONES as f64;
    if difference.abs() * 1000.0 < start * FLAT_PERMILLE {
        return [Bytes(median((0..ZONES).map(rate).collect()) as u64); 2];
    }
    [start, start + difference].map(|rate| Bytes(rate.max(1.0) as u64))
}

/// What reads at random places take a byte, as a rate: the average of the time that a byte takes, not of the rate.
fn rate_anywhere([start, end]: [Bytes; 2]) -> Bytes {
    let [start, end] = [start.0 as f64, end.0 as f64];
    let difference = start - end;
    Bytes(if difference == 0.0 { start } else { difference / (start / end).ln() } as u64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { values[middle - 1].midpoint(values[middle]) } else { values[middle] }
}

/// What writes take of each length that the scheduler wants to know, where these `points` were measured and `line` goes through
/// them. It is as many times what the line says as the measured ones around it do, evenly in the logarithm of the length.
fn write_times(line: ServiceTime, points: &[(Bytes, Duration)]) -> [Duration; WRITE_LENGTHS.len()] {
    let mut factors: Vec<(f64, f64)> = points
        .iter()
        .map(|&(length, time)| ((length.0 as f64).log2(), time.as_secs_f64() / line.of(length).as_secs_f64()))
        .collect();
    factors.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    WRITE_LENGTHS.map(|length| {
        let at = (length.0 as f64).log2();
        let behind = factors.partition_point(|&(measured, _)| measured < at);
        let factor = match (factors[..behind].last(), factors.get(behind)) {
            (Some(&(low, before)), Some(&(high, next))) => {
                before + (next - before) * (at - low) / (high - low)
            }
            (Some(&(_, factor)), None) | (None, Some(&(_, factor))) => factor,
            (None, None) => 1.0,
        };
        line.of(length).mul_f64(factor)
    })
}

/// The mean of all but the shortest and the longest; `None` of nothing.
fn trimmed_mean(times: &mut [Duration]) -> Option<Duration> {
    times.sort_unstable();
    let trimmed = times.len() / TRIMMED;
    let kept = &times[trimmed..times.len() - trimmed];
    let count = u32::try_from(kept.len()).ok().filter(|&count| count > 0)?;
    Some(kept.iter().sum::<Duration>() / count)
}

impl Kind {
    /// Commands at the device at once.
    fn depth(self, plan: &Plan) -> u32 {
        let (depth, length) = match self {
            Self::Random(_, length) => (plan.depth, length),
            Self::Sequential(_) => (plan.depth.max(SEQUENTIAL_DEPTH), SEQUENTIAL),
            Self::Flush => return 1,
        };
        depth.min(u32::try_from(IN_FLIGHT.0 / length.0).unwrap_or(u32::MAX)).max(1)
    }
}

impl Running {
    /// Takes a completion into account.
    fn count(&mut self, now: Instant, plan: &Plan) {
        let elapsed = now.saturating_since(self.since);
        if self.is_over || elapsed < self.stage.warm_up {
            return;
        }
        match self.stage.kind {
            // The write is what it is for; of a pair, the flush is counted.
            Kind::Flush if self.completed.is_multiple_of(2) => {
                self.took += now.saturating_since(self.last_issued);
                self.counted += 1;
            }
            Kind::Flush => return,
            Kind::Random(Direction::Read, _) if self.stage.kind.depth(plan) == 1 => {
                self.alone.push(now.saturating_since(self.last_issued));
                self.counted += 1;
            }
            Kind::Random(..) | Kind::Sequential(_) => match self.counted_since {
                None => self.counted_since = Some(now),
                Some(since) => {
                    self.took = now.saturating_since(since);
                    self.counted += 1;
                }
            },
        }
        self.is_over = elapsed >= self.stage.duration && self.counted >= COUNTED_MIN;
    }
}

/// The stages in turn.
fn stages(plan: &Plan) -> Vec<Stage> {
    let part = |percent: u32| plan.duration * percent / 100;
    let (of_length, of_zone) = if plan.writes { (READ, ZONE) } else { (READ_ALONE, ZONE_ALONE) };
    let reads = READS.map(|length| Stage {
        kind: Kind::Random(Direction::Read, length),
        warm_up: Duration::ZERO,
        duration: part(of_length),
    });
    let zones = (0..ZONES).map(|zone| Stage {
        kind: Kind::Sequential(zone),
        warm_up: Duration::ZERO,
        duration: part(of_zone),
    });
    let write = |(kind, percent)| Stage { kind, warm_up: part(percent) / 2, duration: part(percent) };
    let lengths = WRITES.map(|(length, percent)| (Kind::Random(Direction::Write, length), percent));
    let writes = lengths.into_iter().chain([(Kind::Flush, FLUSH)]).map(write);
    // Reads first: what writes leave in a cache is written back at the cost of reads.
    reads.into_iter().chain(zones).chain(writes.filter(|_| plan.writes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_zones_in_which_the_host_was_busy_bend_nothing() {
        let rate = |zone: u64| Bytes(200_000_000 - 10_000_000 * zone);
        let mut zones: [Bytes; ZONES] = std::array::from_fn(|zone| rate(zone as u64));
        (zones[0], zones[5]) = (Bytes(90_000_000), Bytes(70_000_000));
        assert_eq!(ends(&zones), [rate(0), rate(8)]);
        // The harmonic mean of the eight zones, in the middle of each, is 156.67.
        assert_eq!(rate_anywhere(ends(&zones)).0 / 100_000, 1566);
    }

    #[test]
    fn a_difference_between_measurements_is_none_of_the_device() {
        let zones =
            |permille: u64| std::array::from_fn(|zone| Bytes(200_000_000 - 25_000 * permille * zone as u64));
        assert_eq!(ends(&zones(19)), [Bytes(198_337_500); 2]);
        assert_eq!(rate_anywhere(ends(&zones(19))), Bytes(198_337_500));
        assert_eq!(ends(&zones(21)), [Bytes(200_000_000), Bytes(195_800_000)]);
    }

    #[test]
    fn a_write_that_was_not_measured_is_as_its_neighbours() {
        let line = ServiceTime { access: Duration::from_millis(10), bytes_per_second: Bytes(200_000_000) };
        let measured = [(1, 10), (4, 12), (8, 11)].map(|(mib, tenths)| {
            let length = Bytes::from_mib(mib);
            (length, line.of(length) * tenths / 10)
        });
        let times = write_times(line, &measured);
        let tenths = WRITE_LENGTHS.into_iter().zip(times).map(|(length, time)| {
            (time.as_secs_f64() / line.of(length).as_secs_f64() * 100.0).round() as u64
        });
        assert!(tenths.eq([100, 100, 100, 110, 120, 110, 110, 110, 110]), "{times:?}");
    }
}
