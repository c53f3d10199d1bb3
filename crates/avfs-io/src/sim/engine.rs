//! The engine as a state machine: the caller says what time it is and when the device gets on.

use super::disk::pages_from;
use super::{PAGE, Page, SimDisk, blend};
use crate::device::Device;
use crate::gate::Gate;
use crate::request::{Accepted, Completion, IoError, IoOperation, IoRequest, IoTag, Promotion};
use crate::streams::{DeclaredStream, Evidence, Promise, Streams};
use rand::Rng;
use rtsched::{Class, Config, Direction, Dispatch, DispatchId, RequestId, Scheduler, StreamId, StreamSpec};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use units::{Bytes, DeviceOffset, Instant};

/// The surface of [`Engine`](crate::engine::Engine) over a [`SimDisk`], without its threads: nothing happens but in
/// [`step`](Self::step), and what happens is a function of the calls and the generator.
#[derive(Debug)]
pub struct SimEngine {
    disk: Arc<SimDisk>,
    scheduler: Scheduler,
    streams: Streams,
    queued: BTreeMap<RequestId, Queued>,
    in_flight: Vec<Command>,
    ready: VecDeque<Completion>,
    /// Those that went to the device, if anybody wants to know.
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
    /// The device takes a command; `number` is its name.
    fn submit(&mut self, now: Instant, number: u64, command: SimCommand);
    /// When something happens in it next; `None`: it is idle.
    fn next_event(&self) -> Option<Instant>;
    /// Lets everything happen that happens by `now`; appends the names of what completed, in order.
    fn advance(&mut self, now: Instant, completed: &mut Vec<u64>);
}

#[derive(Debug)]
struct Queued {
    request: IoRequest,
    /// Where the disk stood at submission: a flush makes durable what had completed by then.
    submitted_at: usize,
}

#[derive(Debug)]
struct Command {
    dispatch: DispatchId,
    requests: SmallVec<[Started; 2]>,
}

#[derive(Debug)]
struct Started {
    queued: Queued,
    /// For a write: its number and what it carried when the device began.
    write: Option<(u64, Arc<[Page]>)>,
}

impl SimEngine {
    /// An idle engine.
    pub fn new(disk: Arc<SimDisk>, config: Config) -> Self {
        Self {
            disk,
            scheduler: Scheduler::new(config),
            streams: Streams::default(),
            queued: BTreeMap::new(),
            in_flight: Vec::new(),
            ready: VecDeque::new(),
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

    /// From now on what streams write does not reach the disk, and what is read does not reach memory, of which only the first
    /// page of each segment is zeroed. Order and times are the same. For experiments in which nobody looks at contents: moving
    /// them costs nine tenths of the processor's time. What is written for no stream, such as metadata, is written.
    pub fn without_contents(&mut self) {
        self.hollow = true;
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
        let id = RequestId::from(request.tag);
        let checked = request.check(self.disk.size()).and_then(|()| match self.is_outstanding(id) {
            true => Err(IoError::Device(libc::EEXIST)),
            false => Ok(()),
        });
        if let Err(error) = checked {
            self.ready.push_back(Completion { tag: request.tag, result: Err(error) });
            return;
        }
        self.scheduler.enqueue(now, request.describe());
        self.queued.insert(id, Queued { request, submitted_at: self.disk.position() });
    }

    /// Somebody now waits for a request.
    pub fn promote(&mut self, now: Instant, promotion: Promotion) {
        promotion.apply(&mut self.scheduler, now);
    }

    /// See [`Engine::declare`](crate::engine::Engine::declare).
    pub fn declare(&mut self, now: Instant, stream: StreamId, wanted: Option<(StreamSpec, Evidence)>) {
        self.streams.declare(&mut self.scheduler, now, stream, wanted);
    }

    /// See [`Engine::note_accepted`](crate::engine::Engine::note_accepted).
    pub fn note_accepted(&mut self, now: Instant, accepted: Accepted) {
        accepted.apply(&mut self.scheduler, now);
    }

    /// All declared streams, in the order of their names.
    pub fn streams(&self) -> Vec<DeclaredStream> {
        self.streams.report(&self.scheduler)
    }

    /// What has become of promises since the last call, see
    /// [`CompletionSink::promised`](crate::CompletionSink::promised).
    pub fn take_promises(&mut self, now: Instant) -> Vec<Promise> {
        let mut promises = Vec::new();
        self.streams.promises(&mut self.scheduler, now, &mut promises);
        promises
    }

    /// Takes a request back, which then completes as [`IoError::Cancelled`], unless it is at the device already.
    pub fn cancel(&mut self, now: Instant, tag: IoTag) {
        if self.scheduler.cancel(now, tag.into()) {
            self.cancelled(tag);
        }
    }

    /// See [`Engine::cancel_stream`](crate::engine::Engine::cancel_stream).
    pub fn cancel_stream(&mut self, now: Instant, stream: StreamId) {
        let mut cancelled = Vec::new();
        self.scheduler.cancel_stream(now, stream, |id| cancelled.push(IoTag(id.0)));
        cancelled.into_iter().for_each(|tag| self.cancelled(tag));
    }

    fn cancelled(&mut self, tag: IoTag) {
        self.queued.remove(&tag.into());
        self.ready.push_back(Completion { tag, result: Err(IoError::Cancelled) });
    }

    /// The commands that went to the device since the last call; none before the first.
    pub fn take_commands(&mut self) -> Vec<SimCommand> {
        self.commands.replace(Vec::new()).unwrap_or_default()
    }

    /// Gives the device what the scheduler has for it, lets it finish one command of those it holds, and returns one
    /// request that ended. `None` when the device holds nothing: all is done, or the scheduler waits for
    /// [`next_wakeup`](Self::next_wakeup).
    pub fn step(&mut self, now: Instant, rng: &mut impl Rng) -> Option<Completion> {
        if self.ready.is_empty() {
            self.let_complete(now, rng);
            if self.gate.is_revoked() {
                self.refuse_all(now);
            }
            if self.gate.is_open(now) {
                self.dispatch(now);
            }
            if !self.is_timed() && !self.in_flight.is_empty() {
                self.complete(now, rng.random_range(0..self.in_flight.len()), rng);
            }
        }
        self.ready.pop_front()
    }

    /// Ends everything that is not at the device.
    fn refuse_all(&mut self, now: Instant) {
        for id in std::mem::take(&mut self.queued).into_keys() {
            self.scheduler.cancel(now, id);
            self.ready.push_back(Completion { tag: IoTag(id.0), result: Err(IoError::Fenced) });
        }
    }

    /// The process sleeps, and a device that takes its time gets on: what it has done by now, [`step`](Self::step) tells later.
    pub fn let_device_work(&mut self, now: Instant, rng: &mut impl Rng) {
        self.let_complete(now, rng);
    }

    fn dispatch(&mut self, now: Instant) {
        while let Some(dispatch) = self.scheduler.dispatch(now) {
            let command = self.describe(&dispatch);
            if let Some(commands) = &mut self.commands {
                commands.push(command);
            }
            if let Some(timing) = &mut self.timing {
                timing.submit(now, dispatch.id.0, command);
            }
            let requests = dispatch.requests.iter().map(|id| self.start(*id)).collect();
            self.in_flight.push(Command { dispatch: dispatch.id, requests });
        }
    }

    /// What a device that takes its time has done by now.
    fn let_complete(&mut self, now: Instant, rng: &mut impl Rng) {
        let Some(timing) = &mut self.timing else { return };
        let mut completed = Vec::new();
        timing.advance(now, &mut completed);
        for number in completed {
            let index = self.in_flight.iter().position(|one| one.dispatch.0 == number);
            self.complete(now, index.expect("a device completes what it was given, once"), rng);
        }
    }

    fn complete(&mut self, now: Instant, index: usize, rng: &mut impl Rng) {
        let command = self.in_flight.swap_remove(index);
        self.scheduler.complete(now, command.dispatch);
        for started in command.requests {
            let tag = started.queued.request.tag;
            let result = self.finish(started, rng);
            self.ready.push_back(Completion { tag, result });
        }
    }

    /// The process that owns the engine dies: what is at the device is done there, nobody hears of it, and what waits never
    /// gets there.
    pub fn abandon(mut self, rng: &mut impl Rng) {
        for command in std::mem::take(&mut self.in_flight) {
            for started in command.requests {
                let _ = self.finish(started, rng);
            }
        }
    }

    /// When a device that takes its time, or the scheduler, will have something for [`step`](Self::step).
    pub fn next_event(&self, now: Instant) -> Option<Instant> {
        let device = self.timing.as_ref().and_then(|timing| timing.next_event());
        let ready = (!self.ready.is_empty()).then_some(now);
        [ready, device, self.scheduler.next_wakeup(now)].into_iter().flatten().min()
    }

    /// See [`Scheduler::next_wakeup`].
    pub fn next_wakeup(&self, now: Instant) -> Option<Instant> {
        self.scheduler.next_wakeup(now)
    }

    /// Requests whose completion [`step`](Self::step) has not returned yet.
    pub fn outstanding(&self) -> usize {
        let in_flight: usize = self.in_flight.iter().map(|command| command.requests.len()).sum();
        self.queued.len() + in_flight + self.ready.len()
    }

    /// A write that moves nothing.
    fn is_left_out(&self, request: &IoRequest) -> bool {
        self.hollow && request.stream.is_some()
    }

    fn describe(&self, dispatch: &Dispatch) -> SimCommand {
        let class =
            dispatch.requests.iter().filter_map(|id| self.queued.get(id)).map(|held| held.request.class);
        let class = class.min().unwrap_or(Class::Idle);
        let &Dispatch { direction, offset, length, .. } = dispatch;
        let first = dispatch.requests.first().and_then(|id| self.queued.get(id));
        let stream = first.and_then(|first| first.request.stream);
        SimCommand { direction, class, offset, length, stream }
    }

    fn is_outstanding(&self, id: RequestId) -> bool {
        let mut in_flight = self.in_flight.iter().flat_map(|command| &command.requests);
        self.queued.contains_key(&id)
            || in_flight.any(|started| RequestId::from(started.queued.request.tag) == id)
    }

    fn start(&mut self, id: RequestId) -> Started {
        let queued = self.queued.remove(&id).expect("the scheduler dispatches what was enqueued, once");
        let write = match queued.request.operation {
            IoOperation::Write { .. } if self.is_left_out(&queued.request) => None,
            IoOperation::Write { .. } => {
                let pages = memory_of(&queued.request);
                Some((self.disk.start_write(first_page(&queued.request), Arc::clone(&pages)), pages))
            }
            IoOperation::Read | IoOperation::Flush => None,
        };
        Started { queued, write }
    }

    fn finish(&self, started: Started, rng: &mut impl Rng) -> Result<(), IoError> {
        let request = &started.queued.request;
        match (request.operation, started.write) {
            (IoOperation::Write { durable }, Some((write, before))) => {
                let pages = fetched(before, memory_of(request), rng);
                self.disk.complete_write(write, first_page(request), pages, durable)
            }
            (IoOperation::Write { .. }, None) if self.is_left_out(request) => Ok(()),
            (IoOperation::Write { .. }, None) => unreachable!("a write is started before it is finished"),
            (IoOperation::Read, _) if self.hollow => {
                request.segments.iter().for_each(|segment| segment.buffer.zero(segment.start, PAGE));
                Ok(())
            }
            (IoOperation::Read, _) => {
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
            (IoOperation::Flush, _) => self.disk.flush_up_to(started.queued.submitted_at),
        }
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
