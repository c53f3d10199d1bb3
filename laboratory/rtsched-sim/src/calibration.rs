//! Does a modelled device take as long as the one that was measured?
//!
//! **For:** Table 5 of the paper on rt-Samba and AVFS (throughput of random reads and writes of one RAID5 LUN), measured
//! in the same way on a model, and what a scheduler is told of a device. **Excludes:** fitting; the figures are in the device's
//! declaration. **State:** none. **Invariants:** a device is measured before it changes, however long it is measured.

use crate::device::{Command, Device, DeviceSpec, ModelSpec};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::{Direction, ServiceTime, WRITE_LENGTHS};
use units::{Bytes, DeviceOffset, Duration, Instant};

/// Table 5: length in KiB; random reads and random writes in Mbit/s (10^6).
pub const TABLE_5: [(u64, f64, f64); 7] = [
    (64, 35.0, 224.3),
    (512, 204.5, 376.3),
    (1024, 361.2, 440.9),
    (2048, 569.9, 674.0),
    (4096, 821.7, 816.6),
    (8192, 1032.4, 925.2),
    (16384, 1216.6, 1123.2),
];

/// A cell: what was published and what the model does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// What was done.
    pub direction: Direction,
    /// Each command's length.
    pub length: Bytes,
    /// Mbit/s as published.
    pub published: f64,
    /// Mbit/s of the model.
    pub modelled: f64,
}

impl Cell {
    /// The model's error as a percentage of what was published.
    pub fn error_percent(&self) -> f64 {
        (self.modelled / self.published - 1.0) * 100.0
    }

    /// The error that is tolerated, percent: 3 for reads, 5 for writes. None for the smallest writes, which depend on how
    /// the array's cache orders them.
    pub fn tolerance_percent(&self) -> Option<f64> {
        match self.direction {
            Direction::Read => Some(3.0),
            _ => (self.length > Bytes::from_kib(64)).then_some(5.0),
        }
    }

    /// Whether the model is near enough.
    pub fn holds(&self) -> bool {
        self.tolerance_percent().is_none_or(|tolerated| self.error_percent().abs() <= tolerated)
    }
}

/// All cells of Table 5 on a device, one command at a time at random places.
pub fn table_5(spec: &DeviceSpec, seed: u64) -> Vec<Cell> {
    let cell = |(kib, read, write): (u64, f64, f64)| {
        [(Direction::Read, read), (Direction::Write, write)].map(|(direction, published)| {
            let length = Bytes::from_kib(kib);
            Cell { direction, length, published, modelled: random_megabits(spec, direction, length, seed) }
        })
    };
    TABLE_5.into_iter().flat_map(cell).collect()
}

/// Mbit/s of commands at random places, one after the other, when the cache is as full as it gets.
pub fn random_megabits(spec: &DeviceSpec, direction: Direction, length: Bytes, seed: u64) -> f64 {
    let time = command_time(spec, direction, length, 1, seed);
    length.as_u64() as f64 * 8.0 / time.as_secs_f64() / 1e6
}

/// The time that a command at a random place takes of the device's while `depth` are there, on average, when the cache is
/// as full as it gets.
///
/// # Panics
/// At depth 0.
pub fn command_time(
    spec: &DeviceSpec,
    direction: Direction,
    length: Bytes,
    depth: u64,
    seed: u64,
) -> Duration {
    /// Enough that the random parts average out to a hundredth of a command's time.
    const COMMANDS: u64 = 4000;
    /// Enough to fill a controller's cache several times.
    const WARM_UP: Bytes = Bytes::from_mib(2048);
    assert!(depth > 0, "a device is measured with commands");
    let mut device = Device::new(&spec.unchanging(), seed);
    let mut places = SmallRng::seed_from_u64(seed ^ 0x7461_626c_6535);
    let count = (spec.capacity().as_u64() / length.as_u64()).max(1);
    let warm_up = depth + if direction == Direction::Write { WARM_UP.as_u64() / length.as_u64() } else { 0 };
    let mut submitted = 0;
    let mut submit = |device: &mut Device, now| {
        let offset = DeviceOffset(places.random_range(0..count) * length.as_u64());
        device.submit(now, Command { tag: submitted, owner: 0, direction, offset, length });
        submitted += 1;
    };
    (0..depth).for_each(|_| submit(&mut device, Instant::ZERO));
    let (mut now, mut start, mut done) = (Instant::ZERO, Instant::ZERO, 0);
    let mut completions = Vec::new();
    while done < warm_up + COMMANDS {
        now = device.next_event().expect("commands are at the device");
        device.advance(now, &mut completions);
        for _ in completions.drain(..) {
            done += 1;
            if done == warm_up {
                start = now;
            }
            submit(&mut device, now);
        }
    }
    now.saturating_since(start) / (done - warm_up) as u32
}

/// Commands at once that suit the device.
pub(crate) fn depth_of_lines(spec: &DeviceSpec) -> u64 {
    match spec.model {
        ModelSpec::Disk(_) => 1,
        ModelSpec::Flash(_) => 32,
    }
}

/// What a scheduler is told of a device that was measured once: the line of the least relative errors through commands of 1
/// to 64 MiB, at the depth that suits the device; flushes by one command of no length.
pub fn start_values(spec: &DeviceSpec) -> [ServiceTime; 3] {
    let depth = depth_of_lines(spec);
    let line = |direction| {
        let points = [1, 4, 16, 64].map(|mib| {
            let length = Bytes::from_mib(mib);
            (length, command_time(spec, direction, length, depth, 1))
        });
        ServiceTime::through(&points).expect("commands of a modelled device take time")
    };
    let flush = Command {
        tag: 0,
        owner: 0,
        direction: Direction::Flush,
        offset: DeviceOffset(0),
        length: Bytes::ZERO,
    };
    let access =
        Device::new(&spec.unchanging(), 1).service(Instant::ZERO, flush).at.saturating_since(Instant::ZERO);
    let flush = ServiceTime { access, bytes_per_second: Bytes::from_mib(1) };
    [line(Direction::Read), line(Direction::Write), flush]
}

/// What writes of the lengths that a scheduler wants to know take on average, measured like the line through them.
pub fn write_times(spec: &DeviceSpec) -> [Duration; WRITE_LENGTHS.len()] {
    WRITE_LENGTHS.map(|length| command_time(spec, Direction::Write, length, depth_of_lines(spec), 1))
}

/// Bytes a second of reads at the start of a device and at its end, as they are measured once: long commands, each where the
/// one before ended.
pub fn read_ends(spec: &DeviceSpec) -> [Bytes; 2] {
    const LENGTH: Bytes = Bytes::from_mib(64);
    const COMMANDS: u64 = 16;
    let end = spec.capacity().as_u64().saturating_sub(LENGTH.as_u64() * (COMMANDS + 1));
    [0, end].map(|start| {
        let mut device = Device::new(&spec.unchanging(), 1);
        let mut at = [Instant::ZERO; 2];
        for number in 0..=COMMANDS {
            let offset = DeviceOffset(start + LENGTH.as_u64() * number);
            let read = Command { tag: number, owner: 0, direction: Direction::Read, offset, length: LENGTH };
            at[1] = device.service(at[1], read).at;
            // The first one seeks.
            at[0] = if number == 0 { at[1] } else { at[0] };
        }
        let seconds = at[1].saturating_since(at[0]).as_secs_f64();
        Bytes(((LENGTH.as_u64() * COMMANDS) as f64 / seconds) as u64)
    })
}
