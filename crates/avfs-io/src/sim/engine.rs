//! The engine as a state machine: the caller says what time it is and when the device gets on.
//!
//! **For:** driving the books of production on a [`SimDisk`]. **Excludes:** the books, which are [`EngineCore`]'s. **State:** the
//! commands at the device, and where the disk stood when each flush was submitted. **Invariants:** nothing happens but in
//! [`SimEngine::step`], and what happens is a function of the calls and the generator.

use super::disk::pages_from;
use super::{PAGE, Page, SimDisk, blend};
use crate::device::Device;
use crate::engine_core::{
    Command, DeclaredStream, DeviceFacts, Durability, EngineCore, Incident, Inquiry, Promise, Statistics,
    Transfer,
};
use crate::gate::Gate;
use crate::request::{Accepted, Completion, IoError, IoOperation, IoRequest, IoTag, Promotion};
use crate::trace::Part;
use rand::Rng;
use rtsched::{Class, Confidence, Config, Direction, Scheduler, StreamId, StreamSpec};
use std::collections::BTreeMap;
use std::sync::Arc;
use units::{Bytes, DeviceOffset, Instant};

/// The surface of [`Engine`](crate::engine::Engine) over a [`SimDisk`], without its threads.
#[derive(Debug)]
pub struct SimEngine {
    disk: Arc<SimDisk>,
    core: EngineCore,
    at_device: Vec<AtDevice>,
    /// Commands whose next transfer the device has not been given.
    staged: Vec<Command>,
    /// Where the disk stood when a flush was submitted: it makes durable what had completed by then, and no more.
    flushes: BTreeMap<IoTag, usize>,
    /// What the device was given so far, to number it.
    given: u64,
    /// Those that went to the device, if they are wanted.
    commands: Option<Vec<SimCommand>>,
    timing: Option<Box<dyn Timing>>,
    gate: Arc<Gate>,
    /// See [`without_contents`](Self::without_contents).
    hollow: bool,
}

/// A command that went to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimCommand {
    /// Reads, writes or flushes.
    pub direction: Direction,
    /// The best class among its requests.
    pub class: Class,
    /// First byte on the device.
    pub offset: DeviceOffset,
    /// How much it moves.
    pub length: Bytes,
    /// The stream of its first request.
    pub stream: Option<StreamId>,
}

/// When a device completes what: a model of one, under a [`SimEngine`] that follows it instead of a generator.
pub trait Timing: std::fmt::Debug + Send {
    /// The device takes a command; `number` is its name, counted from 1.
    fn submit(&mut self, now: Instant, number: u64, command: SimCommand);
    /// When something happens in it next; `None`: it is idle.
    fn next_event(&self) -> Option<Instant>;
    /// Lets everything happen that happens by `now`; appends the names of what completed, in order.
    fn advance(&mut self, now: Instant, completed: &mut Vec<u64>);
}

#[derive(Debug)]
struct AtDevice {
    number: u64,
    command: Command,
    begun: Begun,
}

/// The transfer that the device has begun.
#[derive(Debug)]
enum Begun {
    Read,
    /// Of each request: its number on the disk and what it carried when the device began. The device may have written the one and not
    /// the other when power is lost.
    Write(Vec<Option<(u64, Arc<[Page]>)>>),
    /// What completed up to there becomes durable.
    Flush(usize),
}

impl SimEngine {
    /// An idle engine.
    pub fn new(disk: Arc<SimDisk>, config: Config) -> Self {
        let facts = DeviceFacts {
            size: disk.size(),
            logical_block: disk.geometry().logical_block,
            durability: if disk.forces_writes() { Durability::OfItself } else { Durability::ByFlush },
        };
        Self {
            disk,
            core: EngineCore::new(config, facts),
            at_device: Vec::new(),
            staged: Vec::new(),
            flushes: BTreeMap::new(),
            given: 0,
            commands: None,
            timing: None,
            gate: Arc::new(Gate::open()),
            hollow: false,
        }
    }

    /// The same, behind a gate: see [`Engine::start_behind`](crate::engine::Engine::start_behind).
    pub fn behind(self, gate: Arc<Gate>) -> Self {
        Self { gate, ..self }
    }

    /// See [`Engine::device_has_grown`](crate::engine::Engine::device_has_grown): it has the size of its disk.
    pub fn device_has_grown(&mut self) {
        self.core.device_has_grown(self.disk.size());
    }

    /// From now on what streams write does not reach the disk, and what is read does not reach memory, of which only the first
    /// page of each segment is zeroed. Order and times are the same. For experiments that do not look at contents: moving them
    /// takes most of the processor's time. What is written for no stream, such as metadata, is written.
    pub fn without_contents(&mut self) {
        self.hollow = true;
    }

    /// Whether contents reach the disk and memory.
    pub fn moves_contents(&self) -> bool {
        !self.hollow
    }

    /// An idle engine whose device takes its time: [`step`](Self::step) completes what is complete by then, and nothing
    /// is drawn but what a write fetches from memory that changes under it.
    pub fn timed(disk: Arc<SimDisk>, config: Config, timing: Box<dyn Timing>) -> Self {
        Self { timing: Some(timing), ..Self::new(disk, config) }
    }

    /// The device takes its time; else the generator says which command is complete next.
    pub fn is_timed(&self) -> bool {
        self.timing.is_some()
    }

    /// The disk.
    pub fn disk(&self) -> &Arc<SimDisk> {
        &self.disk
    }

    /// Accepts a request. A malformed one, one past the disk's end and one whose tag is in use fail in a later
    /// [`step`](Self::step).
    pub fn submit(&mut self, now: Instant, request: IoRequest) {
        let flush = (request.operation == IoOperation::Flush).then_some(request.tag);
        if self.core.submit(now, request) {
            self.flushes.extend(flush.map(|tag| (tag, self.disk.position())));
        }
    }

    /// See [`Engine::promote`](crate::engine::Engine::promote).
    pub fn promote(&mut self, now: Instant, promotion: Promotion) {
        self.core.promote(now, promotion);
    }

    /// See [`Engine::declare`](crate::engine::Engine::declare).
    pub fn declare(&mut self, now: Instant, stream: StreamId, wanted: Option<(StreamSpec, Confidence)>) {
        self.core.declare(now, stream, wanted);
    }

    /// See [`Engine::note_accepted`](crate::engine::Engine::note_accepted).
    pub fn note_accepted(&mut self, now: Instant, accepted: Accepted) {
        self.core.note_accepted(now, accepted);
    }

    /// All declared streams, in the order of their names.
    pub fn streams(&self) -> Vec<DeclaredStream> {
        self.core.streams()
    }

    /// See [`Engine::statistics`](crate::engine::Engine::statistics).
    pub fn statistics(&self) -> Statistics {
        self.core.statistics()
    }

    /// What has become of promises since the last call, see
    /// [`CompletionSink::promised`](crate::CompletionSink::promised).
    pub fn take_promises(&mut self, now: Instant) -> Vec<Promise> {
        let mut promises = Vec::new();
        self.core.promises(now, &mut promises);
        promises
    }

    /// What has happened since the last call, see [`CompletionSink::happened`](crate::CompletionSink::happened).
    pub fn take_incidents(&mut self) -> Vec<Incident> {
        let mut incidents = Vec::new();
        self.core.incidents(&mut incidents);
        incidents
    }

    /// See [`Engine::explain`](crate::engine::Engine::explain).
    pub fn explain(&mut self, inquiry: Inquiry) {
        self.core.explain(inquiry);
    }

    /// See [`Engine::trace`](crate::engine::Engine::trace).
    pub fn trace(&mut self, now: Instant, since: Option<u64>) -> Option<Part> {
        self.core.trace(now, since)
    }

    /// See [`Engine::copy_of_scheduler`](crate::engine::Engine::copy_of_scheduler).
    pub fn copy_of_scheduler(&self) -> Scheduler {
        self.core.scheduler().clone()
    }

    /// See [`Engine::cancel`](crate::engine::Engine::cancel).
    pub fn cancel(&mut self, now: Instant, tag: IoTag) {
        self.core.cancel(now, tag);
    }

    /// See [`Engine::cancel_stream`](crate::engine::Engine::cancel_stream).
    pub fn cancel_stream(&mut self, now: Instant, stream: StreamId) {
        self.core.cancel_stream(now, stream);
    }

    /// The commands that went to the device since the last call; none before the first.
    pub fn take_commands(&mut self) -> Vec<SimCommand> {
        self.commands.replace(Vec::new()).unwrap_or_default()
    }

    /// Gives the device what the scheduler has for it, lets it finish one command of those it holds, and returns one
    /// request that ended. `None` when the device holds nothing: all is done, or the scheduler waits for
    /// [`next_wakeup`](Self::next_wakeup).
    pub fn step(&mut self, now: Instant, rng: &mut impl Rng) -> Option<Completion> {
        if self.core.ended_count() == 0 {
            self.let_device_work(now, rng);
            self.pass_gate(now);
            if !self.is_timed() && !self.at_device.is_empty() {
                self.transferred(now, rng.random_range(0..self.at_device.len()), rng);
            }
        }
        let ended = self.core.ended().pop_front()?;
        if ended.result == Err(IoError::Cancelled) {
            self.flushes.remove(&ended.tag);
        }
        Some(ended)
    }

    /// Gives the device what it may have.
    fn pass_gate(&mut self, now: Instant) {
        self.core.permit(self.gate.until());
        if self.gate.is_revoked() {
            self.core.fence(now);
            for mut command in std::mem::take(&mut self.staged) {
                while !command.is_finished() {
                    command.answered(Err(IoError::Fenced));
                }
                self.core.complete(now, command);
            }
        }
        if self.gate.is_open(now) {
            for command in std::mem::take(&mut self.staged) {
                self.give(now, command);
            }
        }
        while let Some(command) = self.core.next_command(now) {
            self.give(now, command);
        }
    }

    /// The device begins the next transfer of a command.
    fn give(&mut self, now: Instant, command: Command) {
        let (class, stream) = (command.class(), command.stream());
        let (begun, told) = match command.next_transfer() {
            Transfer::Flush => {
                // One behind a durable write was submitted now.
                let flush = command.current().first().and_then(|request| self.flushes.remove(&request.tag));
                let covers = flush.unwrap_or_else(|| self.disk.position());
                let (direction, offset, length) = (Direction::Flush, DeviceOffset(0), Bytes::ZERO);
                (Begun::Flush(covers), SimCommand { direction, class, offset, length, stream })
            }
            Transfer::Move(next) => {
                let (offset, length) = (next.offset, next.length());
                let direction = if next.write { Direction::Write } else { Direction::Read };
                let begun = match next.write {
                    true => Begun::Write(command.current().iter().map(|one| self.start_write(one)).collect()),
                    false => Begun::Read,
                };
                (begun, SimCommand { direction, class, offset, length, stream })
            }
        };
        self.given += 1;
        let number = self.given;
        if let Some(commands) = &mut self.commands {
            commands.push(told);
        }
        if let Some(timing) = &mut self.timing {
            timing.submit(now, number, told);
        }
        self.at_device.push(AtDevice { number, command, begun });
    }

    /// A device that takes its time gets on, also while the process sleeps: what it has done by now, [`step`](Self::step) tells
    /// later.
    pub fn let_device_work(&mut self, now: Instant, rng: &mut impl Rng) {
        let Some(timing) = &mut self.timing else { return };
        let mut completed = Vec::new();
        timing.advance(now, &mut completed);
        for number in completed {
            let index = self.at_device.iter().position(|one| one.number == number);
            self.transferred(now, index.expect("a device completes what it was given, once"), rng);
        }
    }

    /// The device is through with a transfer: its command goes on, or has ended.
    fn transferred(&mut self, now: Instant, index: usize, rng: &mut impl Rng) {
        let AtDevice { mut command, begun, .. } = self.at_device.swap_remove(index);
        let answer = self.transfer(&command, begun, rng);
        command.answered(answer);
        if command.is_finished() {
            return self.core.complete(now, command);
        }
        if self.is_timed() {
            return self.staged.push(command);
        }
        self.give(now, command);
        self.transferred(now, self.at_device.len() - 1, rng);
    }

    /// Whether it is a write that moves nothing.
    fn is_left_out(&self, request: &IoRequest) -> bool {
        self.hollow && request.stream.is_some()
    }

    fn start_write(&self, request: &IoRequest) -> Option<(u64, Arc<[Page]>)> {
        (!self.is_left_out(request)).then(|| {
            let pages = memory_of(request);
            (self.disk.start_write(first_page(request), Arc::clone(&pages)), pages)
        })
    }

    /// The process that owns the engine dies. What is at the device is done there and not told, and what waits never gets there.
    pub fn abandon(mut self, rng: &mut impl Rng) {
        for AtDevice { command, begun, .. } in std::mem::take(&mut self.at_device) {
            let _ = self.transfer(&command, begun, rng);
        }
    }

    /// When a device that takes its time, or the scheduler, will have something for [`step`](Self::step).
    pub fn next_event(&self, now: Instant) -> Option<Instant> {
        let device = self.timing.as_ref().and_then(|timing| timing.next_event());
        let ready = (self.core.ended_count() > 0).then_some(now);
        [ready, device, self.core.next_wakeup(now)].into_iter().flatten().min()
    }

    /// See [`Scheduler::next_wakeup`](rtsched::Scheduler::next_wakeup).
    pub fn next_wakeup(&self, now: Instant) -> Option<Instant> {
        self.core.next_wakeup(now)
    }

    /// Requests whose completion [`step`](Self::step) has not returned yet.
    pub fn outstanding(&self) -> usize {
        self.core.outstanding() + self.core.ended_count()
    }

    /// Moves the bytes, and gives back how many. What the device refuses of one request keeps it from none of the others.
    fn transfer(&self, command: &Command, begun: Begun, rng: &mut impl Rng) -> Result<usize, IoError> {
        let mut answer = Ok(());
        let requests = command.current();
        match (command.next_transfer(), begun) {
            (Transfer::Flush, Begun::Flush(covers)) => return self.disk.flush_up_to(covers).map(|()| 0),
            (Transfer::Move(next), Begun::Write(writes)) => {
                for (request, write) in requests.iter().zip(writes) {
                    let Some((write, before)) = write else { continue };
                    let pages = fetched(before, memory_of(request), rng);
                    let written = self.disk.complete_write(write, first_page(request), pages, next.durable);
                    answer = answer.and(written);
                }
            }
            (Transfer::Move(_), Begun::Read) => {
                for request in requests {
                    answer = answer.and(self.read(request));
                }
            }
            _ => unreachable!("a command's transfer is the same until it is answered"),
        }
        let length: Bytes = requests.iter().fold(Bytes::ZERO, |sum, request| sum + request.length());
        answer.map(|()| length.as_u64() as usize)
    }

    fn read(&self, request: &IoRequest) -> Result<(), IoError> {
        if self.hollow {
            request.segments.iter().for_each(|segment| segment.buffer.zero(segment.start, PAGE));
            return Ok(());
        }
        let count = request.length().as_u64() as usize / PAGE;
        let mut pages = self.disk.read_pages(first_page(request), count)?.into_iter();
        for segment in &request.segments {
            for start in (segment.start..segment.start + segment.length).step_by(PAGE) {
                match pages.next().flatten() {
                    Some(page) => segment.buffer.copy_in(start, &page[..]),
                    None => segment.buffer.zero(start, PAGE),
                }
            }
        }
        Ok(())
    }
}

fn first_page(request: &IoRequest) -> u64 {
    request.offset.as_u64() / PAGE as u64
}

/// What the request's segments hold now.
fn memory_of(request: &IoRequest) -> Arc<[Page]> {
    let segments = request.segments.iter();
    segments.flat_map(|segment| pages_from(segment.buffer.bytes(segment.start, segment.length))).collect()
}

/// What a device has fetched from memory that changed between `before` and `after`, under its hands: of each sector
/// the one or the other.
fn fetched(before: Arc<[Page]>, after: Arc<[Page]>, rng: &mut impl Rng) -> Arc<[Page]> {
    if before == after {
        return before;
    }
    before
        .iter()
        .zip(after.iter())
        .map(|(old, new)| if old == new { Page::clone(old) } else { blend(Some(old), new, rng.random()) })
        .collect()
}
