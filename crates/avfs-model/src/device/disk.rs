//! Arms and platters.
//!
//! **For:** the one thing the arms do at a time: a read, or a step of writing back; which comes next, and how long it
//! takes. **Excludes:** what is in the cache, which is [`cache`](super::cache). **State:** the queue of reads, where
//! the arms are, what they do until when. **Invariants:** the arms rest only when there is nothing to do.
//!
//! A command that starts where the arms are costs its transfer alone: the disks read ahead. Any other waits until the
//! slowest of the disks it touches has its arm over the track and the sector under the head. Reads are made from
//! physical figures; writes, which pass through a controller's parity and cache, from measured mean times, around
//! which they vary by as much as reads.

use super::cache::Cache;
use super::command::{Command, Completion, OWNERS, Phases, Usage, millis, transfer_ms};
use super::spec::{DiskSpec, Queueing};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::Direction;
use std::collections::{BTreeMap, VecDeque};
use units::{Bytes, DeviceOffset, Duration, Instant};

/// A command that so many others overtook goes first, see [`Queueing::Nearest`].
const OVERTAKEN_MAX: u32 = 8;

#[derive(Clone, Debug)]
pub(super) struct Disk {
    spec: DiskSpec,
    capacity: Bytes,
    phases: Phases,
    rng: SmallRng,
    /// Positioning for a whole stripe at random places, milliseconds.
    mean_positioning: f64,
    /// Reads, and without a cache writes and flushes, with how many others overtook each.
    waiting: VecDeque<(Command, u32)>,
    cache: Option<Cache>,
    /// Until when the arms do what, and for whom.
    job: Option<(Instant, usize, Job)>,
    /// Where they are, and what they did there.
    arm: DeviceOffset,
    did: Direction,
    /// Bytes that were read or written there without a break.
    run: Bytes,
    /// Bytes of writing back until the next read's turn.
    turn: Bytes,
    /// Completions that are certain, by time.
    certain: BTreeMap<(Instant, u64), Completion>,
    sequence: u64,
    usage: Usage,
}

#[derive(Clone, Copy, Debug)]
enum Job {
    Serve(Command),
    WriteBack(Bytes),
}

impl Disk {
    pub(super) fn new(spec: &DiskSpec, capacity: Bytes, phases: Phases, seed: u64) -> Self {
        let mut disk = Self {
            spec: spec.clone(),
            capacity,
            phases,
            rng: SmallRng::seed_from_u64(0),
            mean_positioning: 0.0,
            waiting: VecDeque::new(),
            cache: spec.cache.as_ref().map(Cache::new),
            job: None,
            arm: DeviceOffset(0),
            did: Direction::Read,
            run: Bytes::ZERO,
            turn: Bytes::ZERO,
            certain: BTreeMap::new(),
            sequence: 0,
            usage: Usage::default(),
        };
        disk.mean_positioning = disk.sample_positioning();
        disk.rng = SmallRng::seed_from_u64(seed);
        disk
    }

    fn sample_positioning(&mut self) -> f64 {
        const SAMPLES: u32 = 20_000;
        let disks = self.spec.data_disks + self.spec.parity_disks;
        let sum: f64 = (0..SAMPLES)
            .map(|_| {
                let places: [f64; 2] = self.rng.random();
                self.positioning_ms((places[0] - places[1]).abs(), disks)
            })
            .sum();
        sum / f64::from(SAMPLES)
    }

    /// Until the slowest of `disks` disks is in place, its arm having moved over a part `distance` of the device.
    fn positioning_ms(&mut self, distance: f64, disks: u32) -> f64 {
        let spec = &self.spec;
        let seek = spec.settle_ms + (spec.full_stroke_ms - spec.settle_ms) * distance.sqrt();
        let rng = &mut self.rng;
        (0..disks.max(1))
            .map(|_| {
                seek * (1.0 + spec.arm_scatter * rng.random::<f64>()) + spec.rotation_ms * rng.random::<f64>()
            })
            .fold(0.0, f64::max)
    }

    fn distance(&self, to: DeviceOffset) -> f64 {
        let (from, to) = (self.arm.as_u64(), to.as_u64());
        (from.abs_diff(to) as f64 / self.capacity.as_u64() as f64).min(1.0)
    }

    /// Disks that hold a part of the command.
    fn disks(&self, command: &Command) -> u32 {
        let chunk = self.spec.chunk_kib << 10;
        let first = command.offset.as_u64() / chunk;
        let last = (command.offset.as_u64() + command.length.as_u64().max(1) - 1) / chunk;
        let row = |chunk: u64| chunk / u64::from(self.spec.data_disks);
        let all = self.spec.data_disks + self.spec.parity_disks;
        // Within a row, a chunk is a disk; from the second row on, the rotated parity brings the others in.
        if row(first) == row(last) { (last - first + 1) as u32 } else { all }
    }

    /// Of what follows `run` bytes that were read in front of it without a break: read in pieces, a run takes what it takes as
    /// one.
    fn transfer_ms(&self, command: &Command, run: Bytes) -> f64 {
        let spec = &self.spec;
        let place = (command.offset.as_u64() as f64 / self.capacity.as_u64() as f64).min(1.0);
        let rate = spec.outer_mb_per_s + (spec.inner_mb_per_s - spec.outer_mb_per_s) * place;
        // The fullest disk carries a share, but a whole chunk if there is one.
        let fullest = |bytes: u64| {
            let share = bytes.div_ceil(u64::from(spec.data_disks));
            share.max(bytes.min(spec.chunk_kib << 10))
        };
        let (run, all) = (run.as_u64(), run.as_u64() + command.length.as_u64());
        transfer_ms(Bytes(fullest(all) - fullest(run)), rate / f64::from(spec.data_disks))
    }

    /// The mean time of a write of `length`, by the declared points.
    fn write_ms(&self, length: Bytes) -> f64 {
        let points = &self.spec.write_ms;
        let kib = length.as_u64() as f64 / 1024.0;
        if kib <= points[0].0 as f64 {
            return points[0].1;
        }
        let above = points.iter().position(|(at, _)| *at as f64 >= kib).unwrap_or(points.len() - 1);
        let ((x0, y0), (x1, y1)) = (points[above - 1], points[above]);
        y0 + (y1 - y0) * (kib - x0 as f64) / (x1 - x0) as f64
    }

    pub(super) fn submit(&mut self, now: Instant, command: Command) {
        match (&mut self.cache, command.direction) {
            (Some(cache), Direction::Write) => cache.arrive(command),
            (Some(cache), Direction::Flush) if !cache.must_flush() => {
                self.certain_at(now + millis(self.spec.command_ms), command.tag);
            }
            (Some(cache), Direction::Flush) => cache.flush(command.tag),
            _ => self.waiting.push_back((command, 0)),
        }
        self.go_on(now, false);
    }

    fn certain_at(&mut self, at: Instant, tag: u64) {
        self.sequence += 1;
        self.certain.insert((at, self.sequence), Completion { tag, at });
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        let job = self.job.as_ref().map(|(until, ..)| *until);
        let link = self.cache.as_ref().and_then(Cache::next_arrival);
        let certain = self.certain.first_key_value().map(|((at, _), _)| *at);
        job.into_iter().chain(link).chain(certain).min()
    }

    pub(super) fn advance(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        while let Some(at) = self.next_event().filter(|at| *at <= now) {
            if self.certain.first_key_value().is_some_and(|((when, _), _)| *when == at) {
                completions.extend(self.certain.pop_first().map(|(_, completion)| completion));
            } else if self.job.as_ref().is_some_and(|(until, ..)| *until == at) {
                self.finish(at, completions);
            } else if let Some(cache) = &mut self.cache {
                let done = cache.arrived();
                completions.extend(done.map(|tag| Completion { tag, at }));
            }
            self.go_on(at, true);
        }
    }

    fn finish(&mut self, at: Instant, completions: &mut Vec<Completion>) {
        let Some((_, _, job)) = self.job.take() else { return };
        match job {
            Job::Serve(command) => {
                match command.direction {
                    Direction::Read => self.usage.read += command.length,
                    Direction::Write => self.usage.written += command.length,
                    Direction::Flush => {}
                }
                completions.push(Completion { tag: command.tag, at });
            }
            Job::WriteBack(bytes) => {
                self.usage.written += bytes;
                if let Some(cache) = &mut self.cache {
                    let durable = cache.written(bytes);
                    completions.extend(durable.into_iter().map(|tag| Completion { tag, at }));
                }
            }
        }
    }

    /// Gives link and arms something to do. `queued`: it waited while they were busy.
    fn go_on(&mut self, now: Instant, queued: bool) {
        if let Some(cache) = &mut self.cache {
            cache.receive(now, self.spec.command_ms);
        }
        if self.job.is_some() {
            return;
        }
        let dirty = self.cache.as_ref().is_some_and(Cache::is_dirty);
        let pressed = self.cache.as_ref().is_some_and(Cache::is_pressed);
        let write_back = dirty && (self.waiting.is_empty() || (pressed && self.turn > Bytes::ZERO));
        if write_back {
            self.write_back(now);
        } else if let Some(command) = self.next_waiting() {
            self.serve(now, command, queued);
            self.turn = self.spec.cache.as_ref().map_or(Bytes::ZERO, |cache| Bytes(cache.step_kib << 10));
        }
    }

    fn next_waiting(&mut self) -> Option<Command> {
        let overtaken = self.waiting.iter().position(|(_, overtaken)| *overtaken >= OVERTAKEN_MAX);
        let index = match (self.spec.queueing, overtaken) {
            (Queueing::Fifo, _) => 0,
            (Queueing::Nearest, Some(index)) => index,
            (Queueing::Nearest, None) => {
                let distance = |index: &usize| self.waiting[*index].0.offset.distance(self.arm);
                (0..self.waiting.len()).min_by_key(distance)?
            }
        };
        let (command, _) = self.waiting.remove(index)?;
        for (_, overtaken) in self.waiting.iter_mut().take(index) {
            *overtaken += 1;
        }
        Some(command)
    }

    fn serve(&mut self, now: Instant, command: Command, queued: bool) {
        let (access_factor, transfer_factor) = self.phases.factors(now);
        let continues = self.arm == command.offset && self.did == command.direction;
        let time = match command.direction {
            Direction::Flush => self.spec.command_ms,
            Direction::Read => {
                let run = if continues { self.run } else { Bytes::ZERO };
                let transfer = self.transfer_ms(&command, run) * transfer_factor;
                let access = if continues {
                    0.0
                } else {
                    let (distance, disks) = (self.distance(command.offset), self.disks(&command));
                    self.positioning_ms(distance, disks) * access_factor
                };
                // Handling of a queued command overlaps with the transfer that it continues: a host that cuts a long
                // read into several commands at once does not pay for each.
                let handling = if continues && queued { 0.0 } else { self.spec.command_ms };
                handling + access + transfer
            }
            Direction::Write => {
                self.write_time(command.offset, command.length, access_factor, transfer_factor)
            }
        };
        if command.direction != Direction::Flush {
            self.move_arm(command.direction, command.offset, command.length);
        }
        self.spend(now, command.owner, time, Job::Serve(command));
    }

    fn write_back(&mut self, now: Instant) {
        let (access_factor, transfer_factor) = self.phases.factors(now);
        let run = if self.did == Direction::Write { self.run } else { Bytes::ZERO };
        let Some(step) = self.cache.as_mut().and_then(|cache| cache.next_step(self.arm, run)) else { return };
        let time = self.write_time(step.offset, step.length, access_factor, transfer_factor);
        self.move_arm(Direction::Write, step.offset, step.length);
        self.turn = self.turn.saturating_sub(step.length);
        self.spend(now, step.owner, time, Job::WriteBack(step.length));
    }

    /// Milliseconds: the next part of the run that the arms are in, or the first of another.
    fn write_time(&mut self, offset: DeviceOffset, length: Bytes, access: f64, transfer: f64) -> f64 {
        if self.arm == offset && self.did == Direction::Write {
            return (self.write_ms(self.run + length) - self.write_ms(self.run)) * transfer;
        }
        let mean = self.write_ms(length);
        // Varies like a read's positioning, but never by more than the half of what it takes.
        let share = (mean / (2.0 * self.mean_positioning)).min(1.0);
        let disks = self.spec.data_disks + self.spec.parity_disks;
        let distance = self.distance(offset);
        let positioning = share * self.positioning_ms(distance, disks);
        let rest = (mean - share * self.mean_positioning).max(0.0);
        positioning * access + rest * transfer
    }

    fn move_arm(&mut self, direction: Direction, offset: DeviceOffset, length: Bytes) {
        let continues = self.arm == offset && self.did == direction;
        self.usage.seeks += u64::from(!continues);
        self.run = if continues { self.run + length } else { length };
        (self.arm, self.did) = (offset + length, direction);
    }

    fn spend(&mut self, now: Instant, owner: usize, time_ms: f64, job: Job) {
        let time = millis(time_ms).max(Duration::from_nanos(1));
        self.usage.busy[owner % OWNERS] += time;
        self.job = Some((now + time, owner % OWNERS, job));
    }

    pub(super) fn usage(&self, now: Instant) -> Usage {
        let mut usage = self.usage;
        if let Some((until, owner, _)) = self.job {
            usage.busy[owner] = usage.busy[owner].saturating_sub(until.saturating_since(now));
        }
        usage
    }
}
