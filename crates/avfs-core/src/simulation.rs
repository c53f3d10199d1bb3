//! A volume on a simulated device, driven from a seed.
//!
//! **For:** tests of the filesystem without kernel, threads or clock: the same [`Core`] as in production, a device that
//! completes requests in an order drawn from the seed and can lose power. **State:** [`SimVolume`] owns core, engine
//! and clock. **Invariants:** the same seed and calls give the same device contents, bit for bit.

use crate::audience::Audience;
use crate::config::Config;
use crate::core::{
    Cancellation, CopyPart, Core, CoreOptions, HANDED_OVER_BYTES, Operation, Outcome, Sharing, Ticket,
    WritePlan, WriteStart,
};
use crate::device::{scheduler_config, with_shares};
use crate::error::{Error, Result};
use crate::events::{EventReport, StreamDetail};
use crate::mkfs::{self, MkfsOptions};
use crate::recovery::{RecoveryError, recover};
use crate::types::*;
use avfs_io::pool::Pool;
use avfs_io::sim::{SimCommand, SimDisk, SimEngine, Timing};
use avfs_io::trace::Part;
use avfs_io::{Completion, Device, Gate, Geometry};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::StreamSpec;
use std::collections::BTreeMap;
use std::sync::Arc;
use units::{Bitrate, Bytes, Duration, Ino, Instant, Now, Timestamp};

/// When a volume is mounted.
const EPOCH: Instant = Instant::from_nanos(1_000_000_000);

/// A mounted volume whose time passes only when somebody waits.
pub struct SimVolume {
    core: Core,
    audience: Audience,
    engine: SimEngine,
    random: SmallRng,
    clock: Instant,
    next_ticket: u64,
    audit_every: Option<u64>,
    events: u64,
    largest_turn: usize,
    finished: BTreeMap<Ticket, Outcome>,
}

/// A disk of `size` with an empty volume on it.
///
/// # Panics
/// When `size` is below the smallest volume.
pub fn formatted(size: Bytes) -> Arc<SimDisk> {
    let disk = Arc::new(SimDisk::new(size));
    let options = MkfsOptions { uuid: Some([0xA5; 16]), ..MkfsOptions::default() };
    mkfs::make(&*disk, &options).expect("a new disk can be formatted");
    disk
}

impl SimVolume {
    /// Mounts what is on `disk`.
    ///
    /// # Errors
    /// When it cannot be recovered.
    pub fn mount(
        disk: Arc<SimDisk>,
        pool: &Pool,
        config: Config,
        seed: u64,
    ) -> core::result::Result<Self, RecoveryError> {
        // Of the configuration only what no device has a part in: this one takes no time.
        let scheduler = with_shares(&config, rtsched::Config::default());
        let engine = SimEngine::new(disk, scheduler);
        Self::mount_on(engine, pool, config, seed, EPOCH)
    }

    /// Mounts what is on `disk`, which says that it is of this geometry and takes as long as `timing` says.
    ///
    /// # Errors
    /// When it cannot be recovered.
    pub fn mount_timed(
        disk: Arc<SimDisk>,
        pool: &Pool,
        config: Config,
        geometry: Geometry,
        timing: Box<dyn Timing>,
    ) -> core::result::Result<Self, RecoveryError> {
        let scheduler = scheduler_config(&config, geometry.rotational, disk.size(), pool.capacity());
        let engine = SimEngine::timed(disk, scheduler, timing);
        Self::mount_on(engine, pool, config, 1, EPOCH)
    }

    /// Mounts what is on `disk` at this moment, behind a gate, as the holder of a lease does. Time passes by [`run_at`](Self::run_at)
    /// alone.
    ///
    /// # Errors
    /// When it cannot be recovered.
    pub fn mount_behind(
        gate: Arc<Gate>,
        disk: Arc<SimDisk>,
        pool: &Pool,
        config: Config,
        timing: Box<dyn Timing>,
        clock: Instant,
    ) -> core::result::Result<Self, RecoveryError> {
        let scheduler = scheduler_config(&config, disk.geometry().rotational, disk.size(), pool.capacity());
        let engine = SimEngine::timed(disk, scheduler, timing).behind(gate);
        Self::mount_on(engine, pool, config, 1, clock)
    }

    fn mount_on(
        engine: SimEngine,
        pool: &Pool,
        config: Config,
        seed: u64,
        clock: Instant,
    ) -> core::result::Result<Self, RecoveryError> {
        let recovered = recover(&**engine.disk())?;
        let read_only = recovered.behind.is_some();
        let options = CoreOptions { config, read_only, ..CoreOptions::default() };
        let core = Core::new(
            recovered.superblock,
            recovered.metadata,
            recovered.allocator,
            recovered.journal,
            pool.clone(),
            options,
            at(clock),
        );
        let audience = Audience::new(&core);
        let mut volume = Self {
            core,
            audience,
            engine,
            random: SmallRng::seed_from_u64(seed),
            clock,
            next_ticket: 1,
            audit_every: None,
            events: 0,
            largest_turn: 0,
            finished: BTreeMap::new(),
        };
        match std::env::var("AVFS_STREAMS") {
            Ok(which) if which == "null" => volume.without_streams(),
            Ok(which) => panic!("AVFS_STREAMS is {which:?}; there is null"),
            Err(_) => {}
        }
        volume.with(|core, now| core.tick(now));
        Ok(volume)
    }

    /// Nothing is wished for any stream, see [`Core::without_streams`]. With `AVFS_STREAMS=null` in the environment every volume is so.
    pub fn without_streams(&mut self) {
        self.core.without_streams();
    }

    /// From now on contents of files are neither written nor read, see [`SimEngine::without_contents`].
    pub fn without_contents(&mut self) {
        self.engine.without_contents();
    }

    /// Takes what the disk has grown by, and says whether that has become durable.
    ///
    /// # Errors
    /// See [`Core::take_grown_device`].
    pub fn grow(&mut self) -> Result<()> {
        self.engine.device_has_grown();
        let (size, sector) = (self.disk().size(), self.disk().table_sector());
        self.with(|core, _| core.take_grown_device(size, sector))?;
        self.done(Operation::Checkpoint)
    }

    /// The device.
    pub fn disk(&self) -> &Arc<SimDisk> {
        self.engine.disk()
    }

    /// The streams that open files are.
    pub fn streams(&self) -> Vec<StreamReport> {
        self.engine.streams().into_iter().map(|declared| self.core.stream_report(declared)).collect()
    }

    /// The same with their files and clients.
    pub fn stream_details(&self) -> Vec<StreamDetail> {
        let now = at(self.clock);
        self.engine.streams().into_iter().map(|declared| self.core.stream_detail(now, declared)).collect()
    }

    /// How many more players at this rate there is room for, of 200.
    pub fn room_for(&self, rate: Bitrate) -> u32 {
        self.engine.copy_of_scheduler().room_for(self.clock, &StreamSpec::reader(rate), 200)
    }

    /// See [`Volume::trace`](crate::volume::Volume::trace); without names.
    pub fn trace(&mut self, since: Option<u64>) -> Option<Part> {
        self.engine.trace(self.clock, since)
    }

    /// What has happened to those who play since the last call.
    pub fn happened(&mut self) -> Vec<EventReport> {
        self.audience.take(&self.core, at(self.clock), true)
    }

    /// The commands that went to the device since the last call; none before the first.
    pub fn commands(&mut self) -> Vec<SimCommand> {
        self.engine.take_commands()
    }

    /// The core, to look at.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Requests and answers of the turn that had most of them since the last call.
    pub fn largest_turn(&mut self) -> usize {
        std::mem::take(&mut self.largest_turn)
    }

    /// Runs an operation of the core at the present moment, and submits what it wants.
    pub fn with<R>(&mut self, operate: impl FnOnce(&mut Core, Now) -> R) -> R {
        self.clock += Duration::from_micros(10);
        let result = operate(&mut self.core, at(self.clock));
        self.submit();
        result
    }

    /// From now on the core is audited after every so many events.
    pub fn audit_every(&mut self, events: u64) {
        self.audit_every = Some(events);
    }

    /// The present moment.
    pub fn clock(&self) -> Instant {
        self.clock
    }

    /// Lets this much time pass, with everything that becomes due in it.
    pub fn pass(&mut self, time: Duration) {
        let end = self.clock + time;
        while self.clock < end {
            if self.engine.is_timed() {
                self.pass_until(end);
                continue;
            }
            if self.engine.outstanding() > 0 {
                self.step();
                continue;
            }
            self.clock = self.core.next_wakeup().clamp(self.clock, end);
            self.with(|core, now| core.tick(now));
        }
    }

    /// On a device that takes its time: lets time pass to what happens next, at most to `end`.
    pub fn pass_until(&mut self, end: Instant) {
        self.complete_due();
        self.clock = self.next_event().min(end).max(self.clock);
        if self.core.next_wakeup() <= self.clock {
            self.with(|core, now| core.tick(now));
        }
        self.complete_due();
    }

    /// On a device that takes its time: the process runs at this moment, and hears what the device has done meanwhile.
    pub fn run_at(&mut self, now: Instant) {
        self.clock = self.clock.max(now);
        self.complete_due();
        if self.core.next_wakeup() <= self.clock {
            self.with(|core, now| core.tick(now));
        }
        self.complete_due();
    }

    /// The process sleeps at this moment, and a device that takes its time works.
    pub fn sleep_at(&mut self, now: Instant) {
        self.engine.let_device_work(now, &mut self.random);
    }

    fn next_event(&self) -> Instant {
        let device = self.engine.next_event(self.clock).unwrap_or(Instant::FAR_FUTURE);
        device.min(self.core.next_wakeup())
    }

    fn complete_due(&mut self) {
        while let Some(completion) = self.engine.step(self.clock, &mut self.random) {
            self.hear(completion);
        }
    }

    fn hear(&mut self, completion: Completion) {
        self.audience.completed(&self.core, at(self.clock), &completion);
        self.core.io_completed(at(self.clock), completion);
        self.submit();
    }

    fn submit(&mut self) {
        self.events += 1;
        if self.audit_every.is_some_and(|every| self.events.is_multiple_of(every))
            && let Err(contradiction) = self.core.audit()
        {
            panic!("{contradiction}");
        }
        let mut wanted = true;
        while std::mem::take(&mut wanted) {
            let outbox = self.core.take_outbox();
            self.audience.follow(&self.core, at(self.clock), &outbox.takes);
            self.audience.inquiries().for_each(|inquiry| self.engine.explain(inquiry));
            self.largest_turn = self.largest_turn.max(outbox.requests.len() + outbox.finished.len());
            if !outbox.accepted.is_nothing() {
                self.engine.note_accepted(self.clock, outbox.accepted);
            }
            for (stream, wanted) in outbox.streams {
                self.engine.declare(self.clock, stream, wanted);
            }
            for cancellation in outbox.cancellations {
                match cancellation {
                    Cancellation::Request(tag) => self.engine.cancel(self.clock, tag),
                    Cancellation::Stream(stream) => self.engine.cancel_stream(self.clock, stream),
                }
            }
            for promotion in outbox.promotions {
                self.engine.promote(self.clock, promotion);
            }
            for request in outbox.requests {
                self.engine.submit(self.clock, request);
            }
            self.finished.extend(outbox.finished);
            let incidents = self.engine.take_incidents();
            self.audience.happened(&self.core, at(self.clock), &incidents);
            // What is promised makes the core want more.
            for promise in self.engine.take_promises(self.clock) {
                self.core.promised(at(self.clock), promise);
                wanted = true;
            }
        }
    }

    /// Lets the device finish one request, or, when it has none, time pass to the core's next wakeup. False when
    /// neither is left.
    pub fn step(&mut self) -> bool {
        if self.engine.is_timed() {
            self.complete_due();
            let next = self.next_event();
            if next < Instant::FAR_FUTURE {
                self.pass_until(next);
            }
            return next < Instant::FAR_FUTURE;
        }
        let took = Duration::from_micros(self.random.random_range(50..5000));
        self.clock += took;
        // A busy device does not keep the timer from going off.
        if self.core.next_wakeup() <= self.clock {
            self.with(|core, now| core.tick(now));
        }
        if let Some(completion) = self.engine.step(self.clock, &mut self.random) {
            self.hear(completion);
            return true;
        }
        let due = self.core.next_wakeup();
        if due == Instant::FAR_FUTURE {
            return false;
        }
        self.clock = self.clock.max(due);
        self.with(|core, now| core.tick(now));
        true
    }

    /// Lets some requests finish and some time pass, as the seed has it.
    pub fn drift(&mut self) {
        for _ in 0..self.random.random_range(0..4) {
            self.step();
        }
    }

    /// A ticket for an operation that is begun by hand.
    pub fn ticket(&mut self) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        ticket
    }

    /// Begins an operation.
    pub fn begin(&mut self, operation: Operation) -> Ticket {
        let ticket = self.ticket();
        self.with(|core, now| core.start(now, ticket, operation));
        ticket
    }

    /// How an operation that was begun has ended, once, if it has.
    pub fn ended(&mut self, ticket: Ticket) -> Option<Outcome> {
        self.finished.remove(&ticket)
    }

    /// True when an operation that was begun has ended and nobody asked for its outcome yet.
    pub fn has_ended(&self, ticket: Ticket) -> bool {
        self.finished.contains_key(&ticket)
    }

    /// Begins an operation and lets time pass until it has ended.
    ///
    /// # Panics
    /// When it never ends.
    pub fn complete(&mut self, operation: Operation) -> Outcome {
        let ticket = self.begin(operation);
        self.finish(ticket)
    }

    /// Lets the device work until an operation has ended.
    ///
    /// # Panics
    /// When it never ends, or when it waits although the device has nothing to do.
    pub fn finish(&mut self, ticket: Ticket) -> Outcome {
        for _ in 0..1_000_000 {
            if let Some(outcome) = self.finished.remove(&ticket) {
                return outcome;
            }
            let has_turn = self.core.next_wakeup() <= self.clock;
            let is_awaited = has_turn || self.engine.outstanding() > 0 || self.core.waits_for_a_close();
            assert!(is_awaited, "{ticket:?} waits for nothing");
            self.step();
        }
        panic!("{ticket:?} never ends");
    }

    /// Reads to the end of the request or the file.
    ///
    /// # Errors
    /// As the volume says.
    pub fn read(&mut self, handle: HandleId, offset: u64, length: usize) -> Result<Vec<u8>> {
        if let Some(result) = self.with(|core, now| core.read(now, handle, offset, length)) {
            return result.map(|data| data.to_vec());
        }
        match self.complete(Operation::Read { handle, offset, length }) {
            Outcome::Data(result) => result.map(|data| data.to_vec()),
            other => panic!("a read ended as {other:?}"),
        }
    }

    /// Writes.
    ///
    /// # Errors
    /// As the volume says.
    pub fn write(&mut self, handle: HandleId, offset: u64, data: &[u8]) -> Result<usize> {
        let begun = self.with(|core, now| core.write_begin(now, handle, offset, data.len(), None));
        let outcome = match begun {
            WriteStart::Refused(error) => return Err(error),
            WriteStart::Copy(mut plan) => {
                self.fill(&mut plan, data);
                let ticket = self.ticket();
                let ended = self.with(|core, now| core.write_end(now, ticket, &mut plan));
                Self::reuse(plan);
                match ended {
                    Some(result) => return result,
                    None => self.finish(ticket),
                }
            }
            WriteStart::Later => {
                let data = data.to_vec();
                self.complete(Operation::Write { handle, offset, data, unprivileged: None })
            }
        };
        match outcome {
            Outcome::Count(result) => result,
            other => panic!("a write ended as {other:?}"),
        }
    }

    /// Puts the bytes of a write in place as the transport does: in a buffer of their own that is handed over, where the plan takes
    /// one; else they are copied.
    pub fn fill(&self, plan: &mut WritePlan, data: &[u8]) {
        let buffer = if data.len() == HANDED_OVER_BYTES { self.core.request_buffers(1).pop() } else { None };
        let is_handed_over = buffer.is_some_and(|buffer| {
            if self.engine.moves_contents() {
                buffer.copy_in(0, data);
            }
            plan.hand_over(buffer).is_ok()
        });
        if !is_handed_over && self.engine.moves_contents() {
            plan.copy(data);
        }
    }

    /// After the end of a write, the next one comes in the buffer that is free.
    ///
    /// # Panics
    /// When somebody else has it.
    pub fn reuse(plan: WritePlan) {
        if let Some(free) = plan.take_back() {
            assert!(!free.is_shared(), "a buffer that was given back is somebody else's, too");
            free.copy_in(0, &[0xFE; HANDED_OVER_BYTES]);
        }
    }

    fn done(&mut self, operation: Operation) -> Result<()> {
        match self.complete(operation) {
            Outcome::Done(result) => result,
            other => panic!("ended as {other:?}"),
        }
    }

    /// See fsync(2).
    ///
    /// # Errors
    /// As the volume says.
    pub fn fsync(&mut self, ino: Ino) -> Result<()> {
        self.done(Operation::Fsync { ino })
    }

    /// See syncfs(2).
    ///
    /// # Errors
    /// As the volume says.
    pub fn sync(&mut self) -> Result<()> {
        self.done(Operation::Sync)
    }

    /// See [`Operation::Explain`].
    ///
    /// # Errors
    /// As the volume says.
    pub fn explain(&mut self, ino: Ino) -> Result<PolicyReport> {
        match self.complete(Operation::Explain { ino, probing: None }) {
            Outcome::Policy(result) => result,
            other => panic!("an explanation ended as {other:?}"),
        }
    }

    /// See fallocate(2).
    ///
    /// # Errors
    /// As the volume says.
    pub fn allocate(&mut self, handle: HandleId, offset: u64, length: u64, mode: AllocateMode) -> Result<()> {
        self.done(Operation::Allocate { handle, offset, length, mode })
    }

    /// Copies all of a range, as far as the source goes: what can be shared is, and the rest is read and written.
    ///
    /// # Errors
    /// As the volume says, when nothing is copied.
    pub fn copy(&mut self, copy: CopyRange) -> Result<u64> {
        let mut rest = copy;
        loop {
            let mut part = self.core.copy_part(&rest);
            let shared = match part {
                Ok(CopyPart::Shared(_)) => self.complete(Operation::Share(Sharing::new(rest))),
                _ => Outcome::Count(Ok(0)),
            };
            let Outcome::Count(shared) = shared else { panic!("a copy ended as {shared:?}") };
            if let (Ok(CopyPart::Shared(_)), Ok(0)) = (&part, &shared) {
                // The source was changed meanwhile.
                part = Ok(CopyPart::Bytes(rest.length));
            }
            let part = match part {
                Ok(CopyPart::Bytes(length)) => {
                    let read = self.read(rest.from, rest.from_offset, length.min(1 << 20) as usize);
                    read.and_then(|data| self.write(rest.to, rest.to_offset, &data))
                }
                Ok(_) => shared,
                Err(error) => Err(error),
            };
            match part {
                Ok(0) => return Ok(copy.length - rest.length),
                Ok(copied) => rest = rest.behind(copied as u64),
                Err(error) if rest.length == copy.length => return Err(error),
                Err(_) => return Ok(copy.length - rest.length),
            }
        }
    }

    /// See truncate(2), chmod(2), chown(2), utimensat(2).
    ///
    /// # Errors
    /// As the volume says.
    pub fn set_attributes(&mut self, ino: Ino, changes: SetAttributes) -> Result<Attributes> {
        match self.complete(Operation::SetAttributes { ino, changes }) {
            Outcome::Attributes(result) => result,
            other => panic!("a change of attributes ended as {other:?}"),
        }
    }

    /// See renameat2(2).
    ///
    /// # Errors
    /// As the volume says.
    pub fn rename(&mut self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        let (name, new_name) = (from.1.into(), to.1.into());
        self.done(Operation::Rename {
            caller: Caller::default(),
            parent: from.0,
            name,
            new_parent: to.0,
            new_name,
            flags,
        })
    }

    /// See unlink(2).
    ///
    /// # Errors
    /// As the volume says.
    pub fn unlink(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        self.done(Operation::Unlink { parent, name: name.into() })
    }

    /// Makes and opens a file for reading and writing.
    ///
    /// # Errors
    /// As the volume says.
    pub fn create(&mut self, parent: Ino, name: &[u8]) -> Result<(Ino, HandleId)> {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let (entry, opened) =
            self.with(|core, now| core.create(now, Caller::default(), parent, name, 0o644, 0, flags))?;
        Ok((entry.attributes.ino, opened.handle))
    }

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// As the volume says.
    pub fn open(&mut self, ino: Ino) -> Result<HandleId> {
        self.with(|core, _| core.open(ino, OpenFlags::READ | OpenFlags::WRITE)).map(|opened| opened.handle)
    }

    /// The process dies and the device does not: what has completed is there for the next one, in the device's cache as far as
    /// it was not flushed.
    pub fn die(mut self) -> Arc<SimDisk> {
        let disk = Arc::clone(self.disk());
        self.engine.abandon(&mut self.random);
        disk
    }

    /// Writes everything and checkpoints, as an unmount does.
    ///
    /// # Errors
    /// [`Error::Device`] when the volume has failed.
    pub fn unmount(mut self) -> Result<Arc<SimDisk>> {
        match self.complete(Operation::Shutdown) {
            Outcome::Done(result) => result.map(|()| Arc::clone(self.disk())),
            _ => Err(Error::Device),
        }
    }
}

fn at(monotonic: Instant) -> Now {
    let nanoseconds = monotonic.as_nanos();
    let wall = Timestamp {
        seconds: 1_800_000_000 + (nanoseconds / 1_000_000_000) as i64,
        nanoseconds: (nanoseconds % 1_000_000_000) as u32,
    };
    Now { monotonic, wall }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        Pool::new(Bytes::from_mib(96), false).unwrap()
    }

    fn pattern(length: usize, seed: u8) -> Vec<u8> {
        (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8 ^ seed)).collect()
    }

    #[test]
    fn what_was_written_is_there_after_an_unmount() {
        let pool = pool();
        let disk = formatted(Bytes::from_mib(512));
        let mut volume = SimVolume::mount(disk, &pool, Config::default(), 1).unwrap();
        let (ino, handle) = volume.create(Ino::ROOT, b"clip.mxf").unwrap();
        let data = pattern(40 << 20, 1);
        for (index, chunk) in data.chunks(1 << 20).enumerate() {
            assert_eq!(volume.write(handle, (index << 20) as u64, chunk), Ok(chunk.len()));
        }
        assert_eq!(volume.read(handle, 5_000_000, 3_000_000).unwrap(), data[5_000_000..8_000_000]);
        volume.with(|core, now| core.release(now, handle));
        let disk = volume.unmount().unwrap();

        let mut volume = SimVolume::mount(disk, &pool, Config::default(), 2).unwrap();
        let found = volume.with(|core, _| core.lookup(Ino::ROOT, b"clip.mxf")).unwrap();
        assert_eq!(found.attributes.ino, ino);
        assert_eq!(found.attributes.size, data.len() as u64);
        assert_eq!(volume.core().extents(ino).unwrap().len(), 1);
        let handle = volume.open(ino).unwrap();
        for (index, chunk) in data.chunks(1 << 20).enumerate() {
            assert!(volume.read(handle, (index << 20) as u64, 1 << 20).unwrap() == chunk, "MiB {index}");
        }
    }

    #[test]
    fn what_was_synced_is_there_after_a_power_cut_and_a_small_file_costs_one_block() {
        let pool = pool();
        let mut volume =
            SimVolume::mount(formatted(Bytes::from_mib(256)), &pool, Config::default(), 3).unwrap();
        let (ino, handle) = volume.create(Ino::ROOT, b"notes.txt").unwrap();
        volume.write(handle, 0, &pattern(2000, 9)).unwrap();
        volume.fsync(ino).unwrap();
        assert_eq!(volume.core().attributes(ino).unwrap().blocks, 8);
        let disk = Arc::new(volume.disk().crash(7));
        drop(volume);
        let mut volume = SimVolume::mount(disk, &pool, Config::default(), 4).unwrap();
        let found = volume.with(|core, _| core.lookup(Ino::ROOT, b"notes.txt")).unwrap();
        let handle = volume.open(found.attributes.ino).unwrap();
        assert_eq!(volume.read(handle, 0, 5000).unwrap(), pattern(2000, 9));
    }
}
