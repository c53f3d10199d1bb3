//! When is which request of the host answered?
//!
//! **For:** driving a modelled device by the times at which requests really arrive, and telling which are due.
//! **Excludes:** clock, thread, data, FUSE. **State:** the device, what is at it, counters. **Invariants:** every request
//! that arrives becomes due exactly once; the device's time never runs backwards; requests are due at the model's
//! instants, however late the caller asks.
//!
//! *The emulation's way is free.* A real host bus adapter has a request in some microseconds, and the data are in memory
//! when a completion is seen. Here a request passes a loop device's worker and FUSE, and an answer is copied through the
//! kernel after it was due. A host that sends its next request in answer to the one before would pay for both each time.
//! So a request that arrives right after an answer was delivered is taken for the host's reaction to it, and counts as
//! arrived when that answer was due.

use avfs_workloads::histogram::Histogram;
use rtsched::Direction;
use rtsched_sim::device::{Command, Completion, Device, DeviceSpec, Usage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use units::{Bytes, DeviceOffset, Duration, Instant, nanos};

/// What is taken for a host's reaction where nobody knows better: twice what the way through loop device and FUSE takes on a
/// busy machine. Who does nothing but ask, one request after the other, reacts at once, however long it takes here.
pub const REACTION: Duration = Duration::from_micros(500);

/// What the host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) direction: Direction,
    pub(super) offset: DeviceOffset,
    pub(super) length: Bytes,
}

/// A request whose time has come.
#[derive(Debug)]
pub(super) struct Due<T> {
    pub(super) asked: Asked,
    pub(super) arrived: Instant,
    pub(super) at: Instant,
    /// Requests at the device when it arrived, itself included.
    pub(super) queue_depth: usize,
    pub(super) answer: T,
}

/// What the LUN did since it was made, with the times of the model. Times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Requests to read.
    pub reads: u64,
    /// Requests to write.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub written_bytes: u64,
    /// Bytes that reached the platters, where there is a write-back cache before them.
    pub destaged_bytes: u64,
    /// Times the arm went elsewhere.
    pub seeks: u64,
    /// Time the device was at work.
    pub busy_ns: u64,
    /// Of this, with writing; where there is a write-back cache, with writing back.
    pub write_busy_ns: u64,
    /// The largest number of requests that were at the device at once.
    pub deepest_queue: u64,
    /// The device has something to do, if only to write back what it acknowledged.
    pub at_work: bool,
    /// Latencies of reads.
    pub read_latency: Histogram,
    /// Latencies of writes.
    pub write_latency: Histogram,
}

impl Counters {
    /// With what the model says that the arm did.
    pub(crate) fn with_usage(self, usage: &Usage) -> Self {
        Self {
            seeks: usage.seeks,
            destaged_bytes: usage.written.as_u64(),
            busy_ns: nanos(usage.busy.iter().sum()),
            write_busy_ns: nanos(usage.busy[account(Direction::Write)]),
            ..self
        }
    }
}

/// On whose account of [`Usage::busy`] a request's time goes.
pub(crate) const fn account(direction: Direction) -> usize {
    matches!(direction, Direction::Write) as usize
}

struct Waiting<T> {
    asked: Asked,
    arrived: Instant,
    queue_depth: usize,
    answer: T,
}

pub(super) struct Timekeeper<T> {
    device: Device,
    reaction: Duration,
    waiting: BTreeMap<u64, Waiting<T>>,
    next_tag: u64,
    /// The last event that the device was brought to.
    reached: Instant,
    /// When the last answer was due and when it was delivered.
    delivered: Option<(Instant, Instant)>,
    counters: Counters,
}

impl<T> Timekeeper<T> {
    pub(super) fn new(spec: &DeviceSpec, seed: u64, reaction: Duration) -> Self {
        Self {
            device: Device::new(spec, seed),
            reaction,
            waiting: BTreeMap::new(),
            next_tag: 0,
            reached: Instant::ZERO,
            delivered: None,
            counters: Counters::default(),
        }
    }

    /// Takes in a request that came at an instant until now. What became due by then must have been collected.
    pub(super) fn arrive(&mut self, came: Instant, asked: Asked, answer: T) {
        let arrived = self.arrival(came);
        let tag = self.next_tag;
        self.next_tag += 1;
        let Asked { direction, offset, length } = asked;
        let owner = account(direction);
        self.device.submit(arrived, Command { tag, owner, direction, offset, length });
        let queue_depth = self.waiting.len() + 1;
        self.counters.deepest_queue = self.counters.deepest_queue.max(queue_depth as u64);
        self.waiting.insert(tag, Waiting { asked, arrived, queue_depth, answer });
    }

    fn arrival(&self, came: Instant) -> Instant {
        let arrived = match self.delivered {
            Some((due, delivered)) if came.saturating_since(delivered) <= self.reaction => due.min(came),
            _ => came,
        };
        arrived.max(self.reached)
    }

    /// When the device has to be looked at next.
    pub(super) fn next_event(&self) -> Option<Instant> {
        self.device.next_event()
    }

    /// Collects what became due by `now`, in order.
    pub(super) fn collect(&mut self, now: Instant, due: &mut Vec<Due<T>>) {
        let mut completions = Vec::new();
        while let Some(at) = self.device.next_event().filter(|at| *at <= now) {
            self.reached = at;
            self.device.advance(at, &mut completions);
        }
        for Completion { tag, at } in completions {
            let Some(Waiting { asked, arrived, queue_depth, answer }) = self.waiting.remove(&tag) else {
                continue;
            };
            let latency = at.saturating_since(arrived);
            match asked.direction {
                Direction::Read => {
                    self.counters.reads += 1;
                    self.counters.read_bytes += asked.length.as_u64();
                    self.counters.read_latency.record(latency);
                }
                Direction::Write => {
                    self.counters.writes += 1;
                    self.counters.written_bytes += asked.length.as_u64();
                    self.counters.write_latency.record(latency);
                }
                Direction::Flush => self.counters.flushes += 1,
            }
            due.push(Due { asked, arrived, at, queue_depth, answer });
        }
    }

    /// The answer that was due at `due` is in the host's hands.
    pub(super) fn delivered(&mut self, due: Instant, now: Instant) {
        self.delivered = Some((due, now));
    }

    pub(super) fn counters(&self) -> Counters {
        let at_work = self.device.next_event().is_some();
        Counters { at_work, ..self.counters.clone() }.with_usage(&self.device.usage(self.reached))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use rtsched_sim::calibration::{Cell, TABLE_5, random_megabits};

    const MIB: u64 = 1 << 20;

    fn spec() -> DeviceSpec {
        DeviceSpec::named("raid5-table5").expect("the crate's own declaration")
    }

    fn read(offset: u64, length: u64) -> Asked {
        Asked { direction: Direction::Read, offset: DeviceOffset(offset), length: Bytes(length) }
    }

    /// A host that answers every completion, which it sees `delay` later than due, with its next request, `stall` of its
    /// number later.
    fn closed_loop(
        (length, requests): (u64, u64),
        reaction: Duration,
        delay: Duration,
        stall: impl Fn(u64) -> Duration,
    ) -> Duration {
        let mut keeper = Timekeeper::new(&spec(), 1, reaction);
        let (mut now, mut due) = (Instant::ZERO, Vec::new());
        let mut places = SmallRng::seed_from_u64(7);
        for number in 0..requests {
            let place = places.random_range(0..spec().capacity().as_u64() / length);
            now += stall(number);
            keeper.arrive(now, read(place * length, length), ());
            now = now.max(keeper.next_event().expect("a request at the device ends")) + delay;
            keeper.collect(now, &mut due);
            let at = due.pop().expect("it was due").at;
            keeper.delivered(at, now);
        }
        now.saturating_since(Instant::ZERO)
    }

    fn never(_: u64) -> Duration {
        Duration::ZERO
    }

    /// Sleeping too long and copying answers made every cell of Table 5 slower by the delay of each request.
    #[test]
    fn delays_of_the_emulation_do_not_add_up() {
        let exact = closed_loop((MIB, 500), REACTION, Duration::ZERO, never);
        let delayed = closed_loop((MIB, 500), REACTION, REACTION, never);
        assert_eq!(delayed - exact, REACTION, "only the last delay remains");
    }

    /// A machine that stood still now and then, for longer than a reaction takes, made small reads 3 % slower.
    #[test]
    fn who_does_nothing_but_ask_makes_up_for_a_machine_that_stands_still() {
        let stall = Duration::from_millis(40);
        let stalls = |number: u64| if number % 50 == 1 { stall } else { Duration::ZERO };
        let exact = closed_loop((MIB, 500), REACTION, Duration::ZERO, never);
        assert_eq!(closed_loop((MIB, 500), Duration::from_secs(10), Duration::ZERO, stalls), exact);
        let thinks = closed_loop((MIB, 500), REACTION, Duration::ZERO, stalls);
        assert_eq!(thinks, exact + stall * 10, "a host that thinks is not given its time back");
    }

    #[test]
    fn a_host_that_thinks_is_not_given_its_time_back() {
        let mut keeper = Timekeeper::new(&spec(), 1, REACTION);
        let mut due = Vec::new();
        keeper.arrive(Instant::ZERO, read(0, MIB), 'a');
        let at = keeper.next_event().expect("a request at the device ends");
        keeper.collect(at, &mut due);
        keeper.delivered(at, at + Duration::from_micros(300));
        let later = at + Duration::from_millis(5);
        keeper.arrive(later, read(500 * MIB, MIB), 'b');
        keeper.collect(Instant::FAR_FUTURE, &mut due);
        assert_eq!((due[1].answer, due[1].arrived), ('b', later));
    }

    #[test]
    fn requests_in_flight_end_at_the_models_instants_however_late_they_are_collected() {
        let ends = |step: Duration| {
            let mut keeper = Timekeeper::new(&spec(), 3, REACTION);
            for index in 0..32 {
                keeper.arrive(Instant::ZERO, read(index * 7919 * MIB, MIB), index);
            }
            let (mut now, mut due) = (Instant::ZERO, Vec::new());
            while keeper.next_event().is_some() {
                now += step;
                keeper.collect(now, &mut due);
            }
            assert_eq!(keeper.counters().reads, 32);
            assert_eq!(keeper.counters().deepest_queue, 32);
            due.iter().map(|due| (due.answer, due.at)).collect::<Vec<_>>()
        };
        assert_eq!(ends(Duration::from_micros(100)), ends(Duration::from_millis(700)));
    }

    #[test]
    fn a_flush_without_battery_waits_until_what_was_written_is_on_the_platters() {
        let mut spec = spec();
        let rtsched_sim::device::ModelSpec::Disk(disk) = &mut spec.model else { panic!("it has arms") };
        disk.cache.as_mut().expect("it has a cache").battery = false;
        let mut keeper = Timekeeper::new(&spec, 1, REACTION);
        let write = Asked { direction: Direction::Write, ..read(5000 * MIB, 8 * MIB) };
        let flush = Asked { direction: Direction::Flush, ..read(0, 0) };
        let mut due = Vec::new();
        keeper.arrive(Instant::ZERO, write, ());
        while due.is_empty() {
            let next = keeper.next_event().expect("the write ends");
            keeper.collect(next, &mut due);
        }
        keeper.arrive(due[0].at, flush, ());
        keeper.collect(Instant::FAR_FUTURE, &mut due);
        assert_eq!(keeper.counters().destaged_bytes, 8 * MIB);
        assert!(due[1].at > due[0].at + Duration::from_millis(20), "8 MiB take longer than that");
    }

    /// A loop device cuts a read of 16 MiB into pieces of 512 KiB where the host's memory is scattered.
    #[test]
    fn pieces_of_one_long_read_take_as_long_as_the_whole() {
        let (length, piece) = (16 * MIB, MIB / 2);
        let time = |pieces: u64| {
            let mut keeper = Timekeeper::new(&spec(), 5, REACTION);
            for index in 0..pieces {
                keeper.arrive(
                    Instant::ZERO,
                    read(70_000 * MIB + index * length / pieces, length / pieces),
                    (),
                );
            }
            let mut due = Vec::new();
            keeper.collect(Instant::FAR_FUTURE, &mut due);
            due.last().expect("all are due").at.saturating_since(Instant::ZERO).as_secs_f64()
        };
        let (whole, cut) = (time(1), time(length / piece));
        assert!((cut / whole - 1.0).abs() < 0.01, "{whole} s whole, {cut} s in pieces");
    }

    /// What reaches the host through the timekeeper is what the model was calibrated to.
    #[test]
    fn table_5_comes_through() {
        let (kib, published, _) = TABLE_5[4];
        let length = Bytes::from_kib(kib);
        let requests = 3000;
        let delay = Duration::from_micros(400);
        let seconds = closed_loop((length.as_u64(), requests), REACTION, delay, never).as_secs_f64();
        let modelled = (requests * length.as_u64() * 8) as f64 / seconds / 1e6;
        let cell = Cell { direction: Direction::Read, length, published, modelled };
        assert!(
            cell.holds(),
            "{modelled} for {published}, {} alone",
            random_megabits(&spec(), Direction::Read, length, 1)
        );
    }
}
