//! How long does this device take?
//!
//! **For:** measuring a device, so that the scheduler need not begin with a guess: which command comes next, and what its
//! completions say. **Excludes:** I/O and clock, which are [`measure`](crate::measure)'s: the caller does what
//! [`Calibration::next`] says and reports when it was done, so the same measurement runs on a modelled device. **State:**
//! one [`Calibration`], which goes through its stages in turn. **Invariants:** between stages the device is empty; the
//! measurement ends, however slow the device is.
//!
//! Each stage has a part of the time. What is wanted is the average that a command holds the device for when there is always
//! another one ([`ServiceTime`]), so a stage keeps the device busy with as many commands as suit it, and divides. Where reads
//! come one by one, each is timed by itself, and the longest and the shortest tenth are left out: what a busy host is late
//! with is not the device's, and a two-hundredth more would refuse a stream that the device carries. Writes begin
//! with the longest, and of each length the first half of the time is not counted: it fills a write-back cache with writes
//! of that length, and what is counted then are the platters. A cache that takes longer to fill is not seen through; then
//! writes come out faster than reads, which [`Measured::has_unfilled_cache`] tells.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::{Direction, ServiceTime};
use units::{Bytes, DeviceOffset, Duration, Instant};

/// Lengths of the commands that the line is fitted through.
const LENGTHS: [Bytes; 4] =
    [Bytes::from_mib(64), Bytes::from_mib(16), Bytes::from_mib(4), Bytes::from_mib(1)];
/// The longest command: what the caller needs memory for.
pub const LONGEST: Bytes = LENGTHS[0];
/// Commands of sequential reading.
const SEQUENTIAL: Bytes = Bytes::from_mib(16);
/// What is written before each flush.
const FLUSHED: Bytes = Bytes::from_kib(4);
/// Zones in which is read sequentially: those of the scheduler's service model.
pub const ZONES: usize = 8;
/// Commands of these at the device at once, at least: when one ends, the next one is there.
const SEQUENTIAL_DEPTH: u32 = 2;
/// Bytes at the device at once, but for one command.
const IN_FLIGHT: Bytes = Bytes::from_mib(128);
/// A stage counts as many commands at least, however long they take.
const COUNTED_MIN: u32 = 3;
/// One of so many single reads is left out at either end.
const TRIMMED: usize = 10;
/// As many thousandths may the longest reads at random differ from what the rate of sequential ones says of them.
const AGREEING_PERMILLE: u128 = 20;
/// Parts of the time, percent: of the reads of each length, of a zone; where there are writes, of each length, in their order,
/// and of flushes.
const READ_ALONE: u32 = 20;
const ZONE_ALONE: u32 = 2;
const READ: u32 = 7;
const ZONE: u32 = 1;
const WRITES: [u32; 4] = [10, 10, 14, 20];
const FLUSH: u32 = 6;

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

/// The smallest device that is measured.
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
    /// Writes at random places, when the cache is full; `None`: not measured.
    pub write: Option<ServiceTime>,
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
        Some(Measured {
            read: read_line(&points(Direction::Read), self.sequential_rate())?,
            write: ServiceTime::through(&points(Direction::Write)),
            flush: self.flush,
            points: self.points.clone(),
            zones: self.zones,
        })
    }

    /// Bytes a second of sequential reads, of the zones in the middle: one in which the host was busy does not count.
    fn sequential_rate(&self) -> Bytes {
        let mut zones = self.zones;
        zones.sort_unstable();
        Bytes(zones[ZONES / 2 - 1].0.midpoint(zones[ZONES / 2].0))
    }
}

/// The line through reads at random. Of the longest there are few, whose turns and seeks hardly average out; how fast the device
/// reads is known better from sequential ones, if what it takes for the longest says the same.
fn read_line(points: &[(Bytes, Duration)], sequential: Bytes) -> Option<ServiceTime> {
    let agrees = |line: &ServiceTime| {
        let longest = points.iter().max_by_key(|(length, _)| *length);
        longest.is_some_and(|&(length, time)| {
            line.of(length).abs_diff(time).as_nanos() * 1000 <= time.as_nanos() * AGREEING_PERMILLE
        })
    };
    ServiceTime::with_rate(points, sequential).filter(agrees).or_else(|| ServiceTime::through(points))
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
    let reads = LENGTHS.map(|length| Stage {
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
    let lengths = LENGTHS.map(|length| Kind::Random(Direction::Write, length));
    let writes = lengths.into_iter().zip(WRITES).chain([(Kind::Flush, FLUSH)]).map(write);
    // Reads first: what writes leave in a cache is written back at the cost of reads.
    reads.into_iter().chain(zones).chain(writes.filter(|_| plan.writes)).collect()
}
