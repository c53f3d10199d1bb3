//! The books of an engine: which requests there are, and which command is next.
//!
//! **For:** everything that both engines decide. [`Engine`](crate::Engine) drives it with a ring and a clock,
//! [`SimEngine`](crate::sim::SimEngine) with a simulated disk. Operations go in; commands, ends of requests, promises and the next
//! wake-up come out. **Excludes:** clocks, threads, the ring, the disk: `now` is an argument, and its driver moves the bytes of
//! a [`Command`] and gives the command back. The order is `rtsched`'s. **State:** the scheduler, the declared streams, every request
//! that was accepted and has not ended, until when the device may be used, and the statistics. **Invariants:** each request that is
//! submitted ends exactly once; its memory is here while it waits and in its command afterwards; no command leaves after the device
//! may no longer be used; the same calls give the same answers.

mod command;
mod incidents;
mod streams;
pub mod tally;
#[cfg(test)]
mod tests;

pub(crate) use command::{Command, DeviceFacts, Durability, Move, Transfer};
pub use incidents::{Incident, Inquiry};
pub(crate) use streams::Streams;
pub use streams::{DeclaredStream, Promise};

use crate::request::{Accepted, Completion, IoError, IoOperation, IoRequest, IoTag, Promotion};
use crate::trace::{Asked, Begin, Happened, Part, Ring, Wanted};
use rtsched::{
    Class, Confidence, Config, Direction, Dispatch, RequestId, Scheduler, ServiceTime, StreamId, StreamSpec,
};
use std::collections::hash_map::{Entry, HashMap};
use std::collections::{BTreeMap, VecDeque};
use tally::Tally;
use units::{Bytes, Duration, Instant};

/// What an engine has done since it started, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests accepted.
    pub submitted: u64,
    /// Requests that ended, in whatever way.
    pub completed: u64,
    /// Of these: with an error other than cancellation.
    pub failed: u64,
    /// Of these: cancelled.
    pub cancelled: u64,
    /// Of these: served, but after the deadline that their submitter gave.
    pub late: u64,
    /// Commands given to the device; less than requests where some were merged.
    pub commands: u64,
    /// The same by what they are, flushes aside.
    pub tally: Tally,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Moved from the device for requests that succeeded.
    pub read: Bytes,
    /// Moved to the device for requests that succeeded.
    pub written: Bytes,
    /// Requests that wait for the device now.
    pub queued: usize,
    /// Commands at the device now.
    pub in_flight: u32,
    /// For how long the device worked...
    pub busy: Duration,
    /// ...and should have, by what was known of it at each command.
    pub reckoned: Duration,
    /// What streams are promised of the device's time, in thousandths.
    pub promised_permille: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct EngineCore {
    scheduler: Scheduler,
    streams: Streams,
    device: DeviceFacts,
    /// Until when commands may be given to the device.
    permitted_until: Instant,
    /// Why nothing is accepted any more, once that is so.
    refusal: Option<IoError>,
    /// Every request accepted and not ended: itself while it waits, `None` while it is in a command.
    outstanding: HashMap<RequestId, Option<IoRequest>>,
    ended: VecDeque<Completion>,
    statistics: Statistics,
    /// Kept for its memory.
    dispatch: Dispatch,
    /// While there is one.
    trace: Option<Box<Ring>>,
}

impl EngineCore {
    /// Idle. No command leaves before [`permit`](Self::permit).
    pub(crate) fn new(config: Config, device: DeviceFacts) -> Self {
        Self {
            scheduler: Scheduler::new(config),
            streams: Streams::default(),
            device,
            permitted_until: Instant::ZERO,
            refusal: None,
            outstanding: HashMap::new(),
            ended: VecDeque::new(),
            statistics: Statistics::default(),
            dispatch: Dispatch::empty(),
            trace: None,
        }
    }

    /// A recording of what is called and done begins, or goes on from the record of this number. `None`: it has ended, because no
    /// recorder asked for long.
    pub(crate) fn trace(&mut self, now: Instant, since: Option<u64>) -> Option<Part> {
        self.end_deserted_trace(now);
        if let Some(since) = since {
            return self.trace.as_mut().map(|ring| ring.since(now, since));
        }
        let waiting: BTreeMap<_, _> = self.outstanding.iter().collect();
        let waiting = waiting.values().filter_map(|request| request.as_ref());
        let waiting = waiting.map(|request| Asked::of(&request.describe())).collect();
        let streams = self.streams.report_with_confidence(&self.scheduler);
        let begin = Begin::new(now, self.scheduler.config(), self.service_times(), &streams, waiting);
        let next = self.trace.get_or_insert_with(|| Box::new(Ring::new(now))).next(now);
        Some(Part { begin: Some(Box::new(begin)), records: Vec::new(), next, lost: 0, now: now.as_nanos() })
    }

    fn end_deserted_trace(&mut self, now: Instant) {
        if self.trace.as_ref().is_some_and(|ring| ring.is_deserted(now)) {
            self.trace = None;
        }
    }

    /// What is recorded, if anything is.
    fn record(&mut self, now: Instant, what: impl FnOnce() -> Happened) {
        if self.trace.is_some() {
            self.end_deserted_trace(now);
            if let Some(ring) = &mut self.trace {
                ring.add(now, what());
            }
        }
    }

    /// See [`Engine::device_has_grown`](crate::Engine::device_has_grown).
    pub(crate) fn device_has_grown(&mut self, size: Bytes) {
        self.device.size = self.device.size.max(size);
    }

    /// Accepts a request, and says whether it did. One that is malformed, reaches past the device's end or has a tag that is in use
    /// ends at once, and so does every one after [`fence`](Self::fence) or [`stop`](Self::stop).
    pub(crate) fn submit(&mut self, now: Instant, request: IoRequest) -> bool {
        self.statistics.submitted += 1;
        let tag = request.tag;
        let refused = match (self.refusal, self.outstanding.entry(tag.into())) {
            (Some(refusal), _) => Some(refusal),
            (None, Entry::Occupied(_)) => Some(IoError::Device(libc::EEXIST)),
            (None, Entry::Vacant(place)) => match request.check(self.device.size) {
                Ok(()) => {
                    let described = request.describe();
                    self.scheduler.enqueue(now, described);
                    place.insert(Some(request));
                    self.record(now, || Happened::Asked(Asked::of(&described)));
                    None
                }
                Err(error) => Some(error),
            },
        };
        if let Some(error) = refused {
            self.end(Completion { tag, result: Err(error) });
        }
        refused.is_none()
    }

    /// See [`Engine::promote`](crate::Engine::promote).
    pub(crate) fn promote(&mut self, now: Instant, promotion: Promotion) {
        let Promotion { tag, class, stream, deadline } = promotion;
        self.record(now, || Happened::Promoted {
            tag: tag.0,
            class: class.into(),
            stream: stream.map(|stream| stream.0),
            deadline: deadline.as_nanos(),
        });
        promote(&mut self.scheduler, now, tag.into(), class, stream, deadline);
    }

    /// See [`Engine::cancel`](crate::Engine::cancel).
    pub(crate) fn cancel(&mut self, now: Instant, tag: IoTag) {
        if self.scheduler.cancel(now, tag.into()) {
            self.record(now, || Happened::Cancelled { tag: tag.0 });
            self.end_waiting(tag, IoError::Cancelled);
        }
    }

    /// See [`Engine::cancel_stream`](crate::Engine::cancel_stream).
    pub(crate) fn cancel_stream(&mut self, now: Instant, stream: StreamId) {
        let mut cancelled = Vec::new();
        self.record(now, || Happened::CancelledStream { stream: stream.0 });
        self.scheduler.cancel_stream(now, stream, |id| cancelled.push(IoTag(id.0)));
        cancelled.into_iter().for_each(|tag| self.end_waiting(tag, IoError::Cancelled));
    }

    /// See [`Engine::declare`](crate::Engine::declare).
    pub(crate) fn declare(
        &mut self,
        now: Instant,
        stream: StreamId,
        wanted: Option<(StreamSpec, Confidence)>,
    ) {
        let told = wanted.as_ref().map(|(spec, confidence)| Wanted::of(spec, *confidence));
        self.record(now, || Happened::Declared { stream: stream.0, wanted: told });
        self.streams.declare(&mut self.scheduler, now, stream, wanted);
    }

    /// See [`Engine::note_accepted`](crate::Engine::note_accepted).
    pub(crate) fn note_accepted(&mut self, now: Instant, accepted: Accepted) {
        self.record(now, || Happened::Accepted { requests: accepted.requests, bytes: accepted.bytes.0 });
        self.scheduler.note_accepted(now, accepted.requests, accepted.bytes);
    }

    /// The device may be given commands until then.
    pub(crate) fn permit(&mut self, until: Instant) {
        self.permitted_until = until;
    }

    /// The device may never be given a command again: what waits ends, and what comes.
    pub(crate) fn fence(&mut self, now: Instant) {
        if self.refusal.replace(IoError::Fenced).is_some() {
            return;
        }
        self.permitted_until = Instant::ZERO;
        let waiting = self.outstanding.iter().filter(|(_, request)| request.is_some()).map(|(&id, _)| id);
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_unstable();
        for id in waiting {
            self.scheduler.cancel(now, id);
            self.end_waiting(IoTag(id.0), IoError::Fenced);
        }
    }

    /// Ends everything, also what is in commands, which are not given back. The scheduler is not asked: it may be why.
    pub(crate) fn stop(&mut self) {
        (self.refusal, self.permitted_until) = (Some(IoError::Stopped), Instant::ZERO);
        let mut all: Vec<_> = self.outstanding.drain().map(|(id, _)| id).collect();
        all.sort_unstable();
        for id in all {
            self.end(Completion { tag: IoTag(id.0), result: Err(IoError::Stopped) });
        }
    }

    /// The next command for the device; `None` until [`next_wakeup`](Self::next_wakeup) or the next call that changes something.
    /// The driver gives it back with [`complete`](Self::complete) when it [is finished](Command::is_finished).
    pub(crate) fn next_command(&mut self, now: Instant) -> Option<Command> {
        if now >= self.permitted_until || !self.scheduler.dispatch_into(now, &mut self.dispatch) {
            return None;
        }
        let outstanding = &mut self.outstanding;
        let requests = self.dispatch.requests.iter().map(|id| {
            let waiting = outstanding.get_mut(id).and_then(Option::take);
            waiting.expect("the scheduler dispatches what was enqueued, once")
        });
        let command = Command::new(self.dispatch.id, requests.collect(), self.device);
        self.statistics.commands += 1;
        tally::count(&mut self.statistics.tally, &command);
        let Dispatch { id, direction, offset, length, .. } = self.dispatch;
        self.record(now, || Happened::Began {
            command: id.0,
            tags: command.current().iter().map(|request| request.tag.0).collect(),
            class: command.class().into(),
            stream: command.stream().map(|stream| stream.0),
            does: direction.into(),
            offset: offset.0,
            length: length.0,
        });
        Some(command)
    }

    /// The device is through with a command.
    pub(crate) fn complete(&mut self, now: Instant, command: Command) {
        self.scheduler.complete(now, command.dispatch());
        self.record(now, || Happened::Ended {
            command: command.dispatch().0,
            failed: command.completions().filter(|(_, one)| one.result.is_err()).count() as u32,
        });
        for (request, completion) in command.completions() {
            self.outstanding.remove(&request.tag.into());
            if completion.result.is_ok() {
                match request.operation {
                    IoOperation::Read => self.statistics.read += request.length(),
                    IoOperation::Write { .. } => self.statistics.written += request.length(),
                    IoOperation::Flush => self.statistics.flushes += 1,
                }
                self.statistics.late += u64::from(request.deadline.is_some_and(|deadline| deadline < now));
            }
            self.end(completion);
        }
    }

    fn end_waiting(&mut self, tag: IoTag, error: IoError) {
        self.outstanding.remove(&tag.into());
        self.end(Completion { tag, result: Err(error) });
    }

    fn end(&mut self, completion: Completion) {
        self.statistics.completed += 1;
        match completion.result {
            Ok(()) => {}
            Err(IoError::Cancelled) => self.statistics.cancelled += 1,
            Err(_) => self.statistics.failed += 1,
        }
        self.ended.push_back(completion);
    }

    /// Requests that have ended and were not taken from here yet, the first that ended first.
    pub(crate) fn ended(&mut self) -> &mut VecDeque<Completion> {
        &mut self.ended
    }

    /// How many of these there are.
    pub(crate) fn ended_count(&self) -> usize {
        self.ended.len()
    }

    /// Appends what has become of promises since the last call; some may be as they were.
    pub(crate) fn promises(&mut self, now: Instant, promises: &mut Vec<Promise>) {
        let first = promises.len();
        self.streams.promises(&mut self.scheduler, now, promises);
        for promise in &promises[first..] {
            self.record(now, || Happened::promised(promise));
        }
    }

    /// See [`Engine::explain`](crate::Engine::explain).
    pub(crate) fn explain(&mut self, inquiry: Inquiry) {
        let Inquiry { number, stream, since, until, by } = inquiry;
        let lateness = self.scheduler.explain_waiting(stream, since, until, by);
        self.streams.incidents.add(Incident::Explained { number, lateness });
    }

    /// Appends what an administrator may want to be told of since the last call.
    pub(crate) fn incidents(&mut self, incidents: &mut Vec<Incident>) {
        let first = incidents.len();
        self.streams.incidents.take(&mut self.scheduler, incidents);
        for incident in &incidents[first..] {
            if let Incident::Late(lateness) = incident {
                self.record(lateness.at, || Happened::late(lateness));
            }
        }
    }

    /// The scheduler as it is, to ask what it would do.
    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// When [`next_command`](Self::next_command) may answer otherwise without any other call, possibly too early.
    pub(crate) fn next_wakeup(&self, now: Instant) -> Option<Instant> {
        self.scheduler.next_wakeup(now)
    }

    /// See [`Engine::reconfigure`](crate::Engine::reconfigure).
    pub(crate) fn reconfigure(&mut self, now: Instant, config: &Config) -> Result<(), Bytes> {
        self.scheduler.reconfigure(now, config)
    }

    /// Requests accepted that have not ended.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// All declared streams, in the order of their names.
    pub(crate) fn streams(&self) -> Vec<DeclaredStream> {
        self.streams.report(&self.scheduler)
    }

    /// How long the device is reckoned to take, for reads, writes and flushes.
    pub(crate) fn service_times(&self) -> [ServiceTime; 3] {
        [Direction::Read, Direction::Write, Direction::Flush]
            .map(|direction| self.scheduler.service_time(direction))
    }

    /// What was done up to now.
    pub(crate) fn statistics(&self) -> Statistics {
        let (queued, in_flight) = (self.scheduler.queued(), self.scheduler.in_flight());
        let counters = self.scheduler.counters();
        let (busy, reckoned) = (counters.busy, counters.reckoned);
        let promised_permille = self.scheduler.utilisation_permille();
        Statistics { queued, in_flight, busy, reckoned, promised_permille, ..self.statistics }
    }
}

/// A client now waits for a request: within its stream's rate by that time, else by its class.
pub(crate) fn promote(
    scheduler: &mut Scheduler,
    now: Instant,
    request: RequestId,
    class: Class,
    stream: Option<StreamId>,
    deadline: Instant,
) {
    let stream = stream.filter(|_| class == Class::RealTime);
    if !stream.is_some_and(|stream| scheduler.assign(now, request, stream, deadline)) {
        scheduler.promote(now, request, class, deadline);
    }
}
