//! Two whole hosts on one disk: each with its own core, engine, gate and lease, and a pause, a death or an error at any step.
//!
//! A host has two threads that halt by themselves or together: one keeps the lease, as `protection` does, and one serves clients. The
//! disk is one, and has the block of the lease on it. Commands reach it some time after their submission, whatever the host does.

use super::*;
use crate::config::Config;
use crate::core::{Operation, Outcome, Ticket};
use crate::error::Error;
use crate::fsck::{self, Finding};
use crate::protection::{self, pass_on};
use crate::simulation::{SimVolume, formatted};
use crate::types::HandleId;
use avfs_io::Gate;
use avfs_io::device::Device;
use avfs_io::pool::Pool;
use avfs_io::sim::{SimCommand, SimDisk, Timing};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::Direction;
use std::collections::BTreeMap;
use std::sync::Arc;
use units::{Bytes, Ino};

/// The format's, see [`formatted`].
const UUID: [u8; 16] = [0xA5; 16];
const MILLISECOND: u64 = 1_000_000;

type Holder = [u8; 16];

/// What a world is like. Times are in milliseconds.
#[derive(Clone, Debug)]
struct Weather {
    seed: u64,
    /// A pause is at most so long.
    pause: u64,
    /// Of 1000 steps of a lease, how many are followed by a pause...
    lease_pauses: u32,
    /// ...and of 100,000 steps of a server.
    server_pauses: u32,
    /// Of 100,000 steps of a server, how many kill the process.
    deaths: u32,
    /// Of 1000 commands of a lease, how many fail, done or not.
    errors: u32,
    /// A command reaches the disk within this: less than the margin.
    latency: u64,
    /// Of 60 commands of a filesystem so many take as long as that; of a lease's one does, which else would never be prompt.
    slow: u32,
}

impl Weather {
    fn of(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        Self {
            seed,
            pause: random.random_range(0..40_000),
            lease_pauses: random.random_range(0..60),
            server_pauses: random.random_range(0..60),
            deaths: random.random_range(0..20),
            errors: random.random_range(0..5),
            latency: random.random_range(5..1950),
            slow: random.random_range(1..40),
        }
    }
}

/// Who may write, as the disk sees it.
#[derive(Debug)]
struct Shore {
    random: SmallRng,
    latency: u64,
    holder: Option<Holder>,
    landed: u64,
    violation: Option<String>,
}

impl Shore {
    /// In nanoseconds.
    fn latency(&mut self, slow: u32) -> u64 {
        let longest = if self.random.random_ratio(slow, 60) { self.latency } else { 4 };
        self.random.random_range(100_000..=longest.max(1) * MILLISECOND)
    }
}

/// The way from an engine to the disk.
#[derive(Debug)]
struct Way {
    slow: u32,
    shore: Arc<Mutex<Shore>>,
    from: Holder,
    under_way: BTreeMap<(Instant, u64), bool>,
}

impl Timing for Way {
    fn submit(&mut self, now: Instant, number: u64, command: SimCommand) {
        let lands = now + Duration::from_nanos(self.shore.lock().latency(self.slow));
        self.under_way.insert((lands, number), command.direction == Direction::Write);
    }

    fn next_event(&self) -> Option<Instant> {
        self.under_way.keys().next().map(|&(lands, _)| lands)
    }

    fn advance(&mut self, now: Instant, completed: &mut Vec<u64>) {
        while let Some(first) = self.under_way.first_entry().filter(|first| first.key().0 <= now) {
            let ((_, number), is_write) = first.remove_entry();
            completed.push(number);
            if is_write {
                let mut shore = self.shore.lock();
                shore.landed += 1;
                if shore.holder != Some(self.from) {
                    let told =
                        format!("a write of {:?} lands, and {:?} has the volume", self.from, shore.holder);
                    shore.violation.get_or_insert(told);
                }
            }
        }
    }
}

/// A command of a lease.
enum Command {
    Read,
    Write(MmpBlock),
    /// The block that gives the volume back.
    Release(MmpBlock),
}

enum Answer {
    Read(Option<MmpBlock>),
    Written,
    Released,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Taking,
    /// The volume is ours, and nothing of it is known yet.
    Taken,
    Mounted,
    /// Everything is being written.
    Unmounting,
    /// Everything is written; the lease is to be given back.
    Written,
    /// It is lost, and clients are still to be told.
    Lost,
}

/// A file that a client writes.
struct Writing {
    name: Vec<u8>,
    content: Vec<u8>,
    ino: Ino,
    handle: HandleId,
    ticket: Ticket,
    is_syncing: bool,
}

struct Host {
    me: MmpBlock,
    /// Thousandths by which its clock is fast.
    drift: i64,
    lease: Lease,
    gate: Arc<Gate>,
    volume: Option<SimVolume>,
    stage: Stage,
    /// When the thread of the lease, and the server's, run next.
    keeper_runs: u64,
    server_runs: u64,
    asked: Option<u64>,
    answer: Option<Answer>,
    /// The answer to be read is for giving back.
    is_releasing: bool,
    holds: bool,
    has_held: bool,
    writing: Vec<Writing>,
    others: Vec<Ticket>,
    next_change: u64,
    lost_at: u64,
    made: u64,
}

impl Host {
    fn local(&self, time: u64) -> Instant {
        Instant::from_nanos((time as i64 + time as i64 / 1000 * self.drift) as u64)
    }

    fn world(&self, local: Instant) -> u64 {
        (i128::from(local.as_nanos()) * 1000 / i128::from(1000 + self.drift)) as u64
    }
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// A host took the volume that another one, or another process, had not given back.
    take_overs: u64,
    released: u64,
    /// A holder found that it had lost the volume, while it was mounted.
    lost: u64,
    /// A holder whose time had run out went on.
    resumed: u64,
    /// Files that were acknowledged as durable.
    acknowledged: u64,
    /// How often such a file was looked for on a disk that lost power.
    found: u64,
    /// Writes of filesystems that reached the disk.
    landed: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.take_overs += other.take_overs;
        self.released += other.released;
        self.lost += other.lost;
        self.resumed += other.resumed;
        self.acknowledged += other.acknowledged;
        self.found += other.found;
        self.landed += other.landed;
    }
}

struct World {
    weather: Weather,
    random: SmallRng,
    disk: Arc<SimDisk>,
    pool: Pool,
    shore: Arc<Mutex<Shore>>,
    /// In nanoseconds.
    time: u64,
    hosts: Vec<Host>,
    /// Engines of processes that have ended, with what they had given to the disk; until then.
    dead: Vec<(u64, i64, SimVolume)>,
    /// By when they reach the disk.
    arriving: BTreeMap<(u64, u64), (usize, Holder, Command)>,
    arrivals: u64,
    lives: u64,
    acknowledged: BTreeMap<Vec<u8>, Vec<u8>>,
    tally: Tally,
}

fn pool() -> Pool {
    Pool::new(Bytes::from_mib(64), false).unwrap()
}

impl World {
    fn new(weather: Weather) -> Self {
        let shore = Shore {
            random: SmallRng::seed_from_u64(weather.seed ^ 0xD15C),
            latency: weather.latency,
            holder: None,
            landed: 0,
            violation: None,
        };
        let mut world = Self {
            random: SmallRng::seed_from_u64(weather.seed),
            weather,
            disk: formatted(Bytes::from_mib(192)),
            pool: pool(),
            shore: Arc::new(Mutex::new(shore)),
            time: 1000 * MILLISECOND,
            hosts: Vec::new(),
            dead: Vec::new(),
            arriving: BTreeMap::new(),
            arrivals: 0,
            lives: 0,
            acknowledged: BTreeMap::new(),
            tally: Tally::default(),
        };
        for number in 0..2 {
            let drift = world.random.random_range(-20..=20);
            let host = world.process(number, drift, 500);
            world.hosts.push(host);
        }
        world
    }

    /// A process that wants the volume, within so many milliseconds.
    fn process(&mut self, number: usize, drift: i64, within: u64) -> Host {
        self.lives += 1;
        let mut holder = [number as u8 + 1; 16];
        holder[..8].copy_from_slice(&(self.lives * 16 + number as u64 + 1).to_le_bytes());
        let me = MmpBlock {
            uuid: UUID,
            boot_id: [number as u8 + 1; 16],
            host: format!("nas-{}", number + 1),
            holder,
            process: self.lives as u32,
            ..MmpBlock::default()
        };
        let starts = self.time + self.random.random_range(1..=within) * MILLISECOND;
        Host {
            lease: Lease::new(Watch::new(me.clone(), Some(UUID))),
            me,
            drift,
            gate: Arc::new(Gate::closed()),
            volume: None,
            stage: Stage::Taking,
            keeper_runs: starts,
            server_runs: u64::MAX,
            asked: None,
            answer: None,
            is_releasing: false,
            holds: false,
            has_held: false,
            writing: Vec::new(),
            others: Vec::new(),
            next_change: 0,
            lost_at: 0,
            made: 0,
        }
    }

    fn holder(&self) -> Option<Holder> {
        self.shore.lock().holder
    }

    fn pause(&mut self) -> u64 {
        let longest = match self.random.random_ratio(1, 2) {
            true => self.weather.pause,
            false => self.weather.pause.min(400),
        };
        self.random.random_range(0..=longest) * MILLISECOND
    }

    /// A thread of a host halts now and then, or the whole host.
    fn halt(&mut self, index: usize, is_keeper: bool) {
        let halts = match is_keeper {
            true => self.random.random_ratio(self.weather.lease_pauses, 1000),
            false => self.random.random_ratio(self.weather.server_pauses, 100_000),
        };
        if halts {
            let runs = self.time + self.pause();
            let is_all = self.random.random_ratio(1, 2);
            let host = &mut self.hosts[index];
            if is_keeper || is_all {
                host.keeper_runs = host.keeper_runs.max(runs);
            }
            if !is_keeper || is_all {
                host.server_runs = host.server_runs.max(runs);
            }
        }
    }

    /// A host that halts between its last look at the clock and the system call submits a name of its own later than it thinks. For
    /// data, and to give the volume back, the margin has to do.
    fn send(&mut self, index: usize, command: Command) {
        let halts = self.random.random_ratio(self.weather.lease_pauses, 500);
        let late = if halts && matches!(command, Command::Write(_)) { self.pause() } else { 0 };
        let lands = self.time + late + self.shore.lock().latency(1);
        self.arrivals += 1;
        let holder = self.hosts[index].me.holder;
        self.hosts[index].asked = Some(self.time);
        self.arriving.insert((lands, self.arrivals), (index, holder, command));
    }

    /// Commands of leases that have reached the disk.
    fn arrive(&mut self) {
        while let Some(first) = self.arriving.first_entry().filter(|first| first.key().0 <= self.time) {
            let (index, holder, command) = first.remove();
            let fails = self.random.random_ratio(self.weather.errors, 1000);
            let is_done = !fails || self.random.random_ratio(1, 2);
            let mut answer = match command {
                _ if !is_done => Answer::Failed,
                Command::Read => Answer::Read(protection::read(&*self.disk).unwrap()),
                Command::Write(block) => {
                    protection::write(&*self.disk, &block).unwrap();
                    Answer::Written
                }
                Command::Release(block) => {
                    protection::write(&*self.disk, &block).unwrap();
                    self.disk.flush().unwrap();
                    let mut shore = self.shore.lock();
                    if shore.holder != Some(holder) {
                        let told = format!("{holder:?} gives back what {:?} has", shore.holder);
                        shore.violation.get_or_insert(told);
                    }
                    shore.holder = None;
                    self.tally.released += 1;
                    Answer::Released
                }
            };
            if fails {
                answer = Answer::Failed;
            }
            let host = &mut self.hosts[index];
            if host.me.holder == holder {
                host.answer = Some(answer);
                host.keeper_runs = host.keeper_runs.max(self.time);
                self.halt(index, true);
            }
        }
    }

    /// The process ends; the disk has what it was given. Another one comes.
    fn end(&mut self, index: usize) {
        let drift = self.hosts[index].drift;
        let next = self.process(index, drift, 4000);
        let ended = std::mem::replace(&mut self.hosts[index], next);
        if let Some(volume) = ended.volume {
            // Longer than a command is under way.
            self.dead.push((self.time + 4000 * MILLISECOND, drift, volume));
        }
    }

    /// One step of the thread that keeps the lease: what was answered is looked at, or what is wanted is asked for.
    fn keep(&mut self, index: usize) -> Result<(), String> {
        let time = self.time;
        let now = self.hosts[index].local(time);
        let host = &mut self.hosts[index];
        host.keeper_runs = time + MILLISECOND;
        if let Some(asked) = host.asked {
            // It halts until there is an answer.
            let Some(answer) = host.answer.take() else { return Ok(()) };
            host.asked = None;
            let asked = host.local(asked);
            match answer {
                Answer::Read(found) if host.is_releasing => {
                    let free = host.lease.release(asked, now, found.as_ref());
                    let free = free.filter(|(_, until)| now < *until);
                    if let Some((block, _)) = free {
                        self.send(index, Command::Release(block));
                    } else {
                        self.end(index);
                    }
                    return Ok(());
                }
                Answer::Released => {
                    return {
                        self.end(index);
                        Ok(())
                    };
                }
                Answer::Failed if host.is_releasing || host.stage == Stage::Taking => {
                    // The volume is not given back, or not taken.
                    self.end(index);
                    return Ok(());
                }
                Answer::Read(found) => host.lease.read(asked, now, found.as_ref()),
                Answer::Written => host.lease.written(asked, now),
                Answer::Failed => host.lease.failed(asked, now, IoError::Device(5)),
            }
            self.look(index, now)?;
            self.halt(index, true);
            return Ok(());
        }
        match host.lease.step(now) {
            Step::Read => self.send(index, Command::Read),
            Step::Reserve { .. } => host.lease.reserved(false),
            Step::Exclude => unreachable!("this disk has no reservations"),
            Step::Write { block, until } if now < until => self.send(index, Command::Write(*block)),
            Step::Write { .. } => host.lease.not_written(),
            Step::Wait(_) if host.stage == Stage::Written => {
                host.is_releasing = true;
                self.send(index, Command::Read);
            }
            Step::Wait(until) => host.keeper_runs = host.world(until).max(time + MILLISECOND),
            Step::Over => host.keeper_runs = u64::MAX,
        }
        self.halt(index, true);
        Ok(())
    }

    /// What the lease is now, for the gate and for the server.
    fn look(&mut self, index: usize, now: Instant) -> Result<(), String> {
        let (time, holder) = (self.time, self.holder());
        let host = &mut self.hosts[index];
        let me = host.me.holder;
        if host.stage == Stage::Taking {
            if host.lease.over().is_some() {
                self.end(index);
                return Ok(());
            }
            if host.lease.holds_until() <= now {
                return Ok(());
            }
            host.stage = Stage::Taken;
            host.server_runs = time;
        }
        let volume = &mut host.volume;
        let passed = pass_on(&host.lease, &host.gate, |over| {
            if let Some(volume) = volume {
                // The engine, a thread of its own, gets on in between.
                volume.run_at(now);
                volume.with(|core, now| core.lose_volume(now, &over.to_string()));
            }
        });
        if passed.is_err() {
            host.stage = Stage::Lost;
            host.lost_at = time;
            host.server_runs = host.server_runs.min(time);
            return Ok(());
        }
        let holds = host.lease.holds_until() > now;
        if holds && !host.holds {
            // What it knows of the volume must be what the last one left.
            if host.has_held && holder != Some(me) {
                return Err(format!("{me:?} goes on after {holder:?}"));
            }
            self.tally.resumed += u64::from(host.has_held);
            self.tally.take_overs += u64::from(holder.is_some_and(|holder| holder != me));
            host.has_held = true;
            self.shore.lock().holder = Some(me);
        }
        host.holds = holds;
        Ok(())
    }

    /// One step of the server.
    fn serve(&mut self, index: usize) -> Result<(), String> {
        let time = self.time;
        let is_held = self.holder() == Some(self.hosts[index].me.holder);
        let now = self.hosts[index].local(time);
        let host = &mut self.hosts[index];
        host.server_runs = time + self.random.random_range(1..6) * MILLISECOND;
        match host.stage {
            Stage::Taken => {
                self.mount(index, now, is_held)?;
            }
            Stage::Lost if host.volume.is_none() => self.end(index),
            Stage::Mounted | Stage::Unmounting | Stage::Lost => {
                host.volume.as_mut().expect("it is mounted").run_at(now);
                self.collect(index)?;
                match self.hosts[index].stage {
                    Stage::Mounted => self.change(index)?,
                    Stage::Lost => self.tell(index)?,
                    _ => {}
                }
                if self.random.random_ratio(self.weather.deaths, 100_000) {
                    self.end(index);
                }
            }
            Stage::Taking | Stage::Written => {}
        }
        self.halt(index, false);
        Ok(())
    }

    fn mount(&mut self, index: usize, now: Instant, is_held: bool) -> Result<(), String> {
        let host = &mut self.hosts[index];
        let mut config = Config::default();
        config.journal.commit_age = Duration::from_millis(20);
        config.journal.checkpoint_interval = Duration::from_millis(2000);
        let slow = self.weather.slow;
        let way =
            Way { slow, shore: Arc::clone(&self.shore), from: host.me.holder, under_way: BTreeMap::new() };
        let (gate, disk) = (Arc::clone(&host.gate), Arc::clone(&self.disk));
        let mounted = SimVolume::mount_behind(gate, disk, &pool(), config, Box::new(way), now);
        let mut volume = match mounted {
            Ok(volume) => volume,
            // What is half written by another is not to be understood.
            Err(_) if !is_held => {
                self.end(index);
                return Ok(());
            }
            Err(error) => return Err(format!("{:?} cannot mount: {error}", host.me.holder)),
        };
        if is_held {
            for name in self.acknowledged.keys() {
                if volume.with(|core, _| core.lookup(Ino::ROOT, name)).is_err() {
                    return Err(format!(
                        "{:?} does not find {}",
                        host.me.holder,
                        String::from_utf8_lossy(name)
                    ));
                }
            }
        }
        host.volume = Some(volume);
        host.stage = Stage::Mounted;
        self.judge()
    }

    /// What clients were answered meanwhile.
    fn collect(&mut self, index: usize) -> Result<(), String> {
        let Host { volume, writing, others, lease, me, stage, .. } = &mut self.hosts[index];
        let volume = volume.as_mut().expect("it is mounted");
        // The only error there is: the loss, for what it is.
        let check = |error: Error| match (error, lease.over()) {
            (Error::Device, Some(_)) => Ok(()),
            (error, over) => Err(format!("{:?} answers {error}, and the lease is {over:?}", me.holder)),
        };
        let mut still = Vec::new();
        for mut file in writing.drain(..) {
            let ended = match volume.ended(file.ticket) {
                None => {
                    still.push(file);
                    continue;
                }
                Some(Outcome::Count(result)) => result.map(drop),
                Some(Outcome::Done(result)) => result,
                Some(other) => return Err(format!("a write ended as {other:?}")),
            };
            match ended {
                Ok(()) if !file.is_syncing => {
                    file.is_syncing = true;
                    file.ticket = volume.begin(Operation::Fsync { ino: file.ino });
                    still.push(file);
                    continue;
                }
                Ok(()) => {
                    self.tally.acknowledged += 1;
                    self.acknowledged.insert(file.name, file.content);
                }
                Err(error) => check(error)?,
            }
            volume.with(|core, now| core.release(now, file.handle));
        }
        *writing = still;
        let mut still = Vec::new();
        for ticket in others.drain(..) {
            match volume.ended(ticket) {
                None => still.push(ticket),
                Some(Outcome::Done(Ok(()))) => {}
                Some(Outcome::Done(Err(error))) => check(error)?,
                Some(other) => return Err(format!("a change ended as {other:?}")),
            }
        }
        *others = still;
        if *stage == Stage::Unmounting && others.is_empty() && lease.over().is_none() {
            *stage = Stage::Written;
        }
        Ok(())
    }

    /// A client wants something.
    fn change(&mut self, index: usize) -> Result<(), String> {
        let is_held = self.holder() == Some(self.hosts[index].me.holder);
        let host = &mut self.hosts[index];
        let volume = host.volume.as_mut().expect("it is mounted");
        if self.time < host.next_change || host.writing.len() > 5 || volume.core().under_pressure() {
            return Ok(());
        }
        host.next_change = self.time + self.random.random_range(20..400) * MILLISECOND;
        match self.random.random_range(0..150) {
            0 if host.writing.is_empty() && host.others.is_empty() => {
                host.stage = Stage::Unmounting;
                host.others.push(volume.begin(Operation::Shutdown));
            }
            1..30 if !self.acknowledged.is_empty() => {
                let count = self.random.random_range(0..self.acknowledged.len());
                let name = self.acknowledged.keys().nth(count).cloned().expect("there are so many");
                let found = volume.with(|core, now| {
                    let found = core.lookup(Ino::ROOT, &name).map(|entry| entry.attributes.ino);
                    found.inspect(|&ino| core.forget(now, ino, 1)).is_ok()
                });
                if !found {
                    // A host whose time has run out, and that does not know yet whose the volume is, knows nothing of what is new there.
                    let told =
                        || format!("{:?} does not find {}", host.me.holder, String::from_utf8_lossy(&name));
                    return if is_held { Err(told()) } else { Ok(()) };
                }
                self.acknowledged.remove(&name);
                host.others.push(volume.begin(Operation::Unlink { parent: Ino::ROOT, name: name.into() }));
            }
            _ => {
                host.made += 1;
                let name = format!("{}-{}-{}", host.me.host, host.me.process, host.made).into_bytes();
                let length = match self.random.random_ratio(1, 20) {
                    true => 1_500_000,
                    false => self.random.random_range(1..40_000),
                };
                let mut content = vec![0; length];
                self.random.fill(&mut content[..]);
                let (ino, handle) = volume.create(Ino::ROOT, &name).map_err(|error| {
                    format!(
                        "{:?} refuses a file with {error}, and the lease is {:?}",
                        host.me.holder,
                        host.lease.over()
                    )
                })?;
                let data = content.clone();
                let ticket = volume.begin(Operation::Write { handle, offset: 0, data, unprivileged: None });
                host.writing.push(Writing { name, content, ino, handle, ticket, is_syncing: false });
            }
        }
        Ok(())
    }

    /// Clients of a volume that was lost hear EIO, and why; nothing hangs.
    fn tell(&mut self, index: usize) -> Result<(), String> {
        let host = &mut self.hosts[index];
        let volume = host.volume.as_mut().expect("it is mounted");
        let refused = volume.create(Ino::ROOT, b"late").map(drop);
        if refused != Err(Error::Device) {
            return Err(format!("{:?} has lost the volume and answers {refused:?}", host.me.holder));
        }
        let why = host.lease.over().map(ToString::to_string);
        if volume.core().failure() != why.as_deref() {
            return Err(format!("{why:?} is told as {:?}", volume.core().failure()));
        }
        if host.writing.is_empty() && host.others.is_empty() {
            self.tally.lost += 1;
            self.end(index);
        } else if self.time > host.lost_at + 3000 * MILLISECOND {
            // Longer than a command is under way.
            return Err(format!("clients of {:?} wait for ever", host.me.holder));
        }
        Ok(())
    }

    /// Power is lost now, on a copy: what any host has acknowledged is there.
    fn judge(&mut self) -> Result<(), String> {
        let image = Arc::new(self.disk.crash(self.random.random()));
        let report = fsck::examine(&*image, fsck::Mode::Check).map_err(|error| error.to_string())?;
        let torn =
            |finding: &Finding| matches!(finding, Finding::MmpDamaged | Finding::SuperblockDamaged { .. });
        if !report.findings.iter().all(torn) {
            return Err(format!("after a loss of power: {:?}", report.findings));
        }
        let mut volume = SimVolume::mount(image, &self.pool, Config::default(), 1)
            .map_err(|error| format!("after a loss of power: {error}"))?;
        for (name, content) in &self.acknowledged {
            let shown = String::from_utf8_lossy(name);
            let found = volume
                .with(|core, _| core.lookup(Ino::ROOT, name))
                .map_err(|error| format!("{shown} was durable: {error}"))?;
            let handle = volume.open(found.attributes.ino).map_err(|error| format!("{shown}: {error}"))?;
            let read = volume.read(handle, 0, content.len() + 1);
            if read.as_ref() != Ok(content) {
                let length = read.map(|read| read.len());
                return Err(format!(
                    "{shown} was durable with {} bytes: {length:?}, or others",
                    content.len()
                ));
            }
            volume.with(|core, now| core.release(now, handle));
            self.tally.found += 1;
        }
        Ok(())
    }

    fn run(&mut self, milliseconds: u64) -> Result<Tally, String> {
        let end = self.time + milliseconds * MILLISECOND;
        while self.time < end {
            self.time += MILLISECOND;
            self.step().map_err(|why| format!("at {} ms: {why}", self.time / MILLISECOND))?;
        }
        self.judge()?;
        self.tally.landed = self.shore.lock().landed;
        Ok(self.tally)
    }

    fn step(&mut self) -> Result<(), String> {
        let time = self.time;
        self.dead.retain_mut(|(until, drift, volume)| {
            volume.sleep_at(Instant::from_nanos((time as i64 + time as i64 / 1000 * *drift) as u64));
            time < *until
        });
        for host in &mut self.hosts {
            let now = host.local(time);
            if let Some(volume) = &mut host.volume {
                volume.sleep_at(now);
            }
        }
        self.arrive();
        for index in 0..self.hosts.len() {
            if self.hosts[index].keeper_runs <= time {
                self.keep(index)?;
            }
            if self.hosts[index].server_runs <= time {
                self.serve(index)?;
            }
        }
        self.shore.lock().violation.take().map_or(Ok(()), Err)
    }
}

fn live(weather: Weather) -> Result<Tally, String> {
    let told = format!("{weather:?}");
    World::new(weather).run(240_000).map_err(|why| format!("{told}: {why}"))
}

/// The world of this seed, for four minutes.
pub(super) fn world(seed: u64) -> Result<Tally, String> {
    live(Weather::of(seed))
}

/// The same, where the lease alone halts, often and for longer than it lasts, and commands take nearly as long as the margin.
pub(super) fn hard_world(seed: u64) -> Result<Tally, String> {
    let pause = 14_000 + seed % 10 * 1000;
    live(Weather {
        seed,
        pause,
        lease_pauses: 60,
        server_pauses: 0,
        deaths: 0,
        errors: 0,
        latency: 1950,
        slow: 50,
    })
}

/// Two hosts wrote to one volume: what one had made durable the other, which had halted, wrote over when it woke, and both unmounted
/// with success. `LEASE_CORES` worlds of each kind from the seed `LEASE_SEED` on, for the
/// recipe `two-hosts`.
#[test]
fn nothing_of_a_host_reaches_the_disk_after_another_has_the_volume() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let (first, worlds) = (number("LEASE_SEED").unwrap_or(1), number("LEASE_CORES").unwrap_or(4));
    let mut tally = Tally::default();
    for seed in first..first + worlds {
        for live in [world, hard_world] {
            match live(seed) {
                Ok(one) => tally += one,
                Err(why) => panic!("seed {seed}: {why}"),
            }
        }
    }
    println!("{worlds} worlds of two cores, and as many hard ones, from seed {first}: {tally:?}");
    let Tally { take_overs, released, lost, resumed, acknowledged, found, landed } = tally;
    let all = [take_overs, released, lost, resumed, acknowledged, found, landed];
    assert!(all.iter().all(|&count| count > 0), "the simulation sees nothing of some kind: {tally:?}");
}
