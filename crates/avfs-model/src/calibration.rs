//! What a scheduler is told of a modelled device.
//!
//! **For:** measuring a model as `avfsctl calibrate` measures a device, but for as long as one likes. **Excludes:** what becomes of the
//! figures. **State:** none. **Invariants:** a device is measured before it changes, however long it is measured.

use crate::device::{Command, Device, DeviceSpec, ModelSpec};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::{Direction, ServiceTime, WRITE_LENGTHS};
use units::{Bytes, DeviceOffset, Duration, Instant};

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
pub fn depth_of_lines(spec: &DeviceSpec) -> u64 {
    match spec.model {
        ModelSpec::Disk(_) | ModelSpec::Line(_) => 1,
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
