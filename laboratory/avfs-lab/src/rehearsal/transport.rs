//! The way to the files of a volume in virtual time.

use super::error::RehearsalError;
use super::watch::Watch;
use crate::ageing::{self, Step};
use crate::avfs::{self, AvfsReport};
use crate::lun::{Counters, account};
use avfs_core::config::Config;
use avfs_core::core::{Operation as Wait, Outcome as Ended, Ticket, WriteStart};
use avfs_core::error::Error;
use avfs_core::simulation::SimVolume;
use avfs_core::types::{Caller, HandleId, OpenFlags, Opener, SetAttributes};
use avfs_io::Geometry;
use avfs_io::pool::Pool;
use avfs_io::sim::{SimCommand, SimDisk, Timing};
use avfs_io::trace::MOST_GIVEN;
use avfs_plan::recording::{Head, Recording};
use avfs_workloads::{Answer, Ask, ClientSpec, Operation, Outcome, Transport, TransportError};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rtsched::Direction;
use rtsched_sim::device::{Command, Completion, Device, DeviceSpec};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use units::{Bytes, Duration, Ino, Instant};

/// What a client asks for at once, at most.
const LARGEST: usize = 1 << 20;

/// What is asked for at the same moment overtakes no more of the rest than this, as Samba's threads and the kernel let it.
const OVERTAKEN: usize = 12;

/// What is written.
static ZEROS: [u8; LARGEST] = [0; LARGEST];

/// A command that the device was given.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCommand {
    /// When.
    pub at: Instant,
    /// When it was complete; `None`: not by the end.
    pub completed: Option<Instant>,
    /// What.
    pub command: SimCommand,
}

impl DeviceCommand {
    /// What the device saw of it, in numbers: neither class nor stream, which it does not know, and which a refactoring may name
    /// otherwise.
    pub(crate) fn words(&self) -> [u64; 5] {
        let SimCommand { direction, offset, length, .. } = self.command;
        let direction = match direction {
            Direction::Read => 1,
            Direction::Write => 2,
            Direction::Flush => 3,
        };
        let completed = self.completed.map_or(0, Instant::as_nanos);
        [self.at.as_nanos(), completed, direction, offset.as_u64(), length.as_u64()]
    }
}

impl fmt::Display for DeviceCommand {
    fn fmt(&self, output: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |at: Instant| at.as_nanos() as f64 / 1e9;
        let SimCommand { direction, class, offset, length, stream } = self.command;
        write!(output, "{:9.4} s: {direction:?} {class:?} {offset} {length}, ", seconds(self.at))?;
        if let Some(stream) = stream {
            write!(output, "of {}, ", stream.0)?;
        }
        match self.completed {
            Some(at) => write!(output, "until {:.4} s", seconds(at)),
            None => output.write_str("not complete"),
        }
    }
}

#[derive(Debug)]
struct Model {
    device: Device,
    /// Up to when the device was brought.
    reached: Instant,
    counters: Counters,
    /// In the order of their numbers, which begin at 1.
    commands: Vec<DeviceCommand>,
}

/// The model as a simulated engine's device.
#[derive(Clone, Debug)]
pub(super) struct Modelled(Arc<Mutex<Model>>);

impl Modelled {
    fn new(spec: &DeviceSpec, seed: u64) -> Self {
        let (device, reached) = (Device::new(spec, seed), Instant::ZERO);
        let counters = Counters::default();
        Self(Arc::new(Mutex::new(Model { device, reached, counters, commands: Vec::new() })))
    }

    /// What the device has done so far.
    pub(super) fn counters(&self) -> Counters {
        let model = self.0.lock();
        model.counters.clone().with_usage(&model.device.usage(model.reached))
    }

    /// What the device was told.
    pub(super) fn commands(&self) -> Vec<DeviceCommand> {
        self.0.lock().commands.clone()
    }
}

impl Timing for Modelled {
    fn submit(&mut self, now: Instant, number: u64, command: SimCommand) {
        let SimCommand { direction, offset, length, .. } = command;
        let model = &mut *self.0.lock();
        match direction {
            Direction::Read => {
                model.counters.reads += 1;
                model.counters.read_bytes += length.0;
            }
            Direction::Write => {
                model.counters.writes += 1;
                model.counters.written_bytes += length.0;
            }
            Direction::Flush => model.counters.flushes += 1,
        }
        model.commands.push(DeviceCommand { at: now, completed: None, command });
        let owner = account(direction);
        model.device.submit(now, Command { tag: number, owner, direction, offset, length });
    }

    fn next_event(&self) -> Option<Instant> {
        self.0.lock().device.next_event()
    }

    fn advance(&mut self, now: Instant, completed: &mut Vec<u64>) {
        let model = &mut *self.0.lock();
        let mut completions: Vec<Completion> = Vec::new();
        model.device.advance(now, &mut completions);
        model.reached = now;
        for Completion { tag, at } in completions {
            if let Some(command) =
                usize::try_from(tag - 1).ok().and_then(|index| model.commands.get_mut(index))
            {
                command.completed = Some(at);
            }
            completed.push(tag);
        }
    }
}

/// Of what is drawn in a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws {
    /// In which order comes what clients ask for at the same moment.
    pub(super) order: u64,
    /// What the device draws.
    pub(super) device: u64,
}

/// What takes time, or comes otherwise than it was sent.
#[derive(Debug)]
struct Timed {
    device: Modelled,
    /// In which order comes what clients ask for at the same moment.
    disorder: SmallRng,
}

/// Clients' operations on a [`SimVolume`].
pub(super) struct VirtualTransport {
    volume: SimVolume,
    timed: Option<Timed>,
    handles: BTreeMap<u64, HandleId>,
    opened: u64,
    /// Asked for at this moment.
    asked: Vec<Ask>,
    /// Operations under way, and who asked for what.
    waiting: BTreeMap<Ticket, Ask>,
    outcomes: Vec<Outcome>,
    watch: Option<Watch>,
    tape: Option<Tape>,
}

/// What is recorded of the engine, as `avfsctl trace record` does.
#[derive(Debug)]
struct Tape {
    recording: Recording,
    next: u64,
    asked: Instant,
}

impl VirtualTransport {
    /// To a volume on a device that takes no time worth speaking of.
    pub(super) fn untimed(disk: Arc<SimDisk>, pool: &Pool) -> Result<Self, RehearsalError> {
        Ok(Self::with(SimVolume::mount(disk, pool, Config::default(), 1)?, None))
    }

    /// To a volume on a modelled disk.
    pub(super) fn on(
        disk: Arc<SimDisk>,
        pool: &Pool,
        config: Config,
        spec: &DeviceSpec,
        draws: Draws,
    ) -> Result<Self, RehearsalError> {
        let device = Modelled::new(spec, draws.device);
        let block = Bytes(4096);
        let geometry = Geometry {
            logical_block: block,
            physical_block: block,
            optimal_io: Bytes::ZERO,
            rotational: spec.turns(),
        };
        let volume = SimVolume::mount_timed(disk, pool, config, geometry, Box::new(device.clone()))?;
        Ok(Self::with(volume, Some(Timed { device, disorder: SmallRng::seed_from_u64(draws.order) })))
    }

    fn with(volume: SimVolume, timed: Option<Timed>) -> Self {
        Self {
            volume,
            timed,
            handles: BTreeMap::new(),
            opened: 0,
            asked: Vec::new(),
            waiting: BTreeMap::new(),
            outcomes: Vec::new(),
            watch: None,
            tape: None,
        }
    }

    /// Nobody looks at what is in the files, and it is neither written nor read.
    pub(super) fn without_contents(&mut self) {
        self.volume.without_contents();
    }

    /// From now on looks at what streams hold.
    pub(super) fn watch(&mut self) {
        self.watch = Some(Watch::default());
    }

    /// What was seen.
    pub(super) fn watched(self) -> Watch {
        self.watch.unwrap_or_default()
    }

    /// Takes the steps that age a volume, one after the other.
    pub(super) fn age(&mut self, steps: &[Step]) -> Result<(), Error> {
        /// What was removed is free when that is in the journal.
        const STEP: Duration = Duration::from_millis(10);
        for step in steps {
            self.volume.pass(STEP);
            let (Step::Write(number, _) | Step::Remove(number)) = *step;
            let (directory, file) = ageing::place(number);
            let parent = self.make_directory(&directory)?;
            match step {
                Step::Write(_, length) => {
                    let (ino, handle) = self.volume.create(parent, file.as_bytes())?;
                    for offset in (0..length.as_u64()).step_by(LARGEST) {
                        let piece = (length.as_u64() - offset).min(LARGEST as u64) as usize;
                        self.volume.write(handle, offset, &ZEROS[..piece])?;
                    }
                    // What somebody still knows keeps its space when it is removed.
                    self.volume.with(|core, now| {
                        core.release(now, handle);
                        core.forget(now, ino, 1);
                    });
                }
                Step::Remove(_) => self.volume.with(|core, now| core.unlink(now, parent, file.as_bytes()))?,
            }
        }
        Ok(())
    }

    pub(super) fn into_volume(self) -> SimVolume {
        self.volume
    }

    /// What the volume says of itself.
    pub(super) fn avfs_report(&self) -> Option<AvfsReport> {
        let read = self.timed.as_ref()?.device.counters().read_bytes;
        Some(AvfsReport::of(&self.volume.core().report(), read, &self.volume.streams()))
    }

    /// Of these clients who has a reservation.
    pub(super) fn have_reservations(&mut self, clients: &[ClientSpec]) -> Vec<bool> {
        let reserved = avfs::reserved_here(&self.volume.streams());
        let mut has = |client: &ClientSpec| {
            let (place, writes) = client.stream()?;
            Some(reserved.contains(&(self.find(&place).ok()?.0, writes)))
        };
        clients.iter().map(|client| has(client).unwrap_or(false)).collect()
    }

    /// The device, if it is one that takes its time.
    pub(super) fn device(&self) -> Option<Modelled> {
        self.timed.as_ref().map(|timed| timed.device.clone())
    }

    fn find(&mut self, name: &str) -> Result<Ino, Error> {
        name.split('/').filter(|part| !part.is_empty()).try_fold(Ino::ROOT, |parent, part| {
            self.volume.with(|core, _| core.lookup(parent, part.as_bytes())).map(|entry| entry.attributes.ino)
        })
    }

    /// A file that is there is to be emptied before it is opened for writing: time passes meanwhile, for everybody.
    fn file_to_empty(&mut self, name: &str) -> Option<Ino> {
        let ino = self.find(name).ok()?;
        self.volume.core().attributes(ino).is_ok_and(|attributes| attributes.size > 0).then_some(ino)
    }

    fn open(&mut self, client: usize, name: &str, write: bool) -> Result<Answer, Error> {
        let (ino, handle) = match self.find(name) {
            Ok(ino) if write => (ino, self.volume.open(ino)?),
            Ok(ino) => (ino, self.volume.with(|core, _| core.open(ino, OpenFlags::READ))?.handle),
            Err(Error::NotFound) if write => {
                let (directory, file) = name.rsplit_once('/').unwrap_or(("", name));
                let parent = self.make_directory(directory)?;
                self.volume.create(parent, file.as_bytes())?
            }
            Err(error) => return Err(error),
        };
        self.volume.with(|core, _| core.set_opener(handle, Opener::process(client as u32 + 1)));
        self.opened += 1;
        self.handles.insert(self.opened, handle);
        let length = self.volume.core().attributes(ino)?.size;
        Ok(Answer::Opened { file: self.opened, length })
    }

    fn make_directory(&mut self, name: &str) -> Result<Ino, Error> {
        match self.find(name) {
            Err(Error::NotFound) => {
                let caller = Caller::default();
                let made = self.volume.with(|core, now| {
                    core.make_directory(now, caller, Ino::ROOT, name.as_bytes(), 0o755, 0)
                })?;
                Ok(made.attributes.ino)
            }
            found => found,
        }
    }

    /// Begins what was asked for since the last time: nobody knows in which order it came on its way.
    fn begin_asked(&mut self) {
        let mut asked: Vec<(usize, Ask)> = std::mem::take(&mut self.asked).into_iter().enumerate().collect();
        if let Some(timed) = &mut self.timed {
            asked.iter_mut().for_each(|(place, _)| *place += timed.disorder.random_range(0..=OVERTAKEN));
            asked.sort_by_key(|(place, _)| *place);
        }
        for (_, ask) in asked {
            if let Some(answer) = self.begin(&ask) {
                let answer = answer.map_err(|error| format!("{:?}: {error}", ask.operation));
                self.outcomes.push(Outcome { client: ask.client, tag: ask.tag, answer });
            }
        }
    }

    /// `None`: it ends later.
    fn begin(&mut self, ask: &Ask) -> Option<Result<Answer, Error>> {
        let done = |result: Result<(), Error>| Some(result.map(|()| Answer::Done));
        match &ask.operation {
            Operation::Open { name, write } => match write.then(|| self.file_to_empty(name)).flatten() {
                Some(ino) => {
                    let changes = SetAttributes { size: Some(0), ..SetAttributes::default() };
                    self.wait_for(ask, Wait::SetAttributes { ino, changes })
                }
                None => Some(self.open(ask.client, name, *write)),
            },
            Operation::MakeDirectory { name } => done(self.make_directory(name).map(drop)),
            Operation::Close { file } => {
                let handle = self.handles.remove(file);
                if let Some(handle) = handle {
                    self.volume.with(|core, now| core.release(now, handle));
                }
                done(handle.map(drop).ok_or(Error::BadHandle))
            }
            Operation::Read { file, offset, length } => {
                let Some(&handle) = self.handles.get(file) else { return done(Err(Error::BadHandle)) };
                let (offset, length) = (*offset, *length as usize);
                if let Some(read) = self.volume.with(|core, now| core.read(now, handle, offset, length)) {
                    return Some(read.map(|data| answer_to_read(length, data.len())));
                }
                self.wait_for(ask, Wait::Read { handle, offset, length })
            }
            Operation::Write { file, offset, length } => {
                let Some(&handle) = self.handles.get(file) else { return done(Err(Error::BadHandle)) };
                let (offset, data) = (*offset, &ZEROS[..*length as usize]);
                let begun =
                    self.volume.with(|core, now| core.write_begin(now, handle, offset, data.len(), None));
                match begun {
                    WriteStart::Refused(error) => done(Err(error)),
                    WriteStart::Copy(mut plan) => {
                        self.volume.fill(&mut plan, data);
                        let ticket = self.volume.ticket();
                        let ended = self.volume.with(|core, now| core.write_end(now, ticket, &mut plan));
                        if let Some(result) = ended {
                            return done(result.map(drop));
                        }
                        self.waiting.insert(ticket, ask.clone());
                        None
                    }
                    WriteStart::Later => {
                        let data = data.to_vec();
                        self.wait_for(ask, Wait::Write { handle, offset, data, unprivileged: None })
                    }
                }
            }
        }
    }

    fn wait_for(&mut self, ask: &Ask, operation: Wait) -> Option<Result<Answer, Error>> {
        let ticket = self.volume.begin(operation);
        self.waiting.insert(ticket, ask.clone());
        None
    }

    /// From now on what the engine is asked and does is recorded.
    pub(super) fn record(&mut self, device_bytes: Bytes) {
        let Some(part) = self.volume.trace(None) else { return };
        let Some(begin) = part.begin else { return };
        let (until, asked) = (begin.at, self.volume.clock());
        let head = Head {
            avfs_trace: avfs_plan::recording::VERSION,
            program: "avfs-lab".to_owned(),
            uuid: String::new(),
            label: "rehearsed".to_owned(),
            began_milliseconds: 0,
            device_bytes: device_bytes.0,
            begin: *begin,
        };
        let (names, records) = (BTreeMap::new(), Vec::new());
        let recording = Recording { head, names, records, lost: 0, until };
        self.tape = Some(Tape { recording, next: part.next, asked });
    }

    /// What was recorded until now.
    pub(super) fn recording(&mut self) -> Option<Recording> {
        self.roll();
        self.tape.take().map(|tape| tape.recording)
    }

    fn roll(&mut self) {
        while let Some(tape) = &mut self.tape
            && let Some(part) = self.volume.trace(Some(tape.next))
        {
            let Tape { recording, next, asked } = tape;
            (recording.until, recording.lost) = (part.now, recording.lost + part.lost);
            (*next, *asked) = (part.next, self.volume.clock());
            let is_all = part.records.len() < MOST_GIVEN;
            recording.records.extend(part.records);
            if is_all {
                return;
            }
        }
    }

    fn look(&mut self) {
        if self.tape.as_ref().is_some_and(|tape| self.volume.clock() > tape.asked + Duration::from_secs(1)) {
            self.roll();
        }
        if let Some(watch) = &mut self.watch {
            watch.look(self.volume.clock(), self.volume.core());
        }
    }

    fn collect(&mut self) {
        let ended: Vec<Ticket> =
            self.waiting.keys().copied().filter(|ticket| self.volume.has_ended(*ticket)).collect();
        for ticket in ended {
            let Some(Ask { client, tag, operation }) = self.waiting.remove(&ticket) else { continue };
            let answer = match (self.volume.ended(ticket), operation) {
                (Some(Ended::Attributes(emptied)), Operation::Open { name, write }) => {
                    emptied.and_then(|_| self.open(client, &name, write))
                }
                (Some(Ended::Data(result)), Operation::Read { length, .. }) => {
                    result.map(|data| answer_to_read(length as usize, data.len()))
                }
                (Some(Ended::Data(result)), _) => result.map(|_| Answer::Done),
                (Some(Ended::Count(result)), _) => result.map(|_| Answer::Done),
                (Some(Ended::Done(result)), _) => result.map(|()| Answer::Done),
                _ => Err(Error::InvalidArgument),
            };
            let answer = answer.map_err(|error| error.to_string());
            self.outcomes.push(Outcome { client, tag, answer });
        }
    }
}

/// A file that is being written may end before what was asked for.
fn answer_to_read(asked: usize, got: usize) -> Answer {
    if got < asked { Answer::Beyond } else { Answer::Done }
}

impl Transport for VirtualTransport {
    fn now(&self) -> Instant {
        self.volume.clock()
    }

    fn largest(&self) -> u32 {
        LARGEST as u32
    }

    fn submit(&mut self, ask: Ask) -> Result<(), TransportError> {
        self.asked.push(ask);
        Ok(())
    }

    fn wait(&mut self, until: Instant, outcomes: &mut Vec<Outcome>) -> Result<(), TransportError> {
        self.begin_asked();
        self.collect();
        while self.outcomes.is_empty() && self.volume.clock() < until {
            match self.timed {
                Some(_) => self.volume.pass_until(until),
                None => {
                    self.volume.step();
                }
            }
            self.collect();
            self.look();
        }
        self.look();
        outcomes.append(&mut self.outcomes);
        Ok(())
    }
}
