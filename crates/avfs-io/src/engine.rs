//! The engine of a mounted volume: one thread between everybody's requests and the device.
//!
//! **For:** accepting requests from any thread, giving them to the device in the scheduler's order, and reporting
//! their ends. **Excludes:** the order itself (`rtsched`), and filesystem code, which runs on the completion threads.
//! **State:** the engine thread owns scheduler, ring and the table of outstanding requests; submitters share with it
//! only a queue of messages. **Invariants:** every request that is submitted before [`Engine::shutdown`] returns
//! completes exactly once, whatever ends the thread; the engine thread blocks in one place, the ring.

mod command;
mod delivery;
mod ring;
pub mod tally;
#[cfg(test)]
mod tests;

use crate::device::{Device, FileDevice};
use crate::gate::Gate;
use crate::pool::Pool;
use crate::request::{
    Accepted, Completion, CompletionSink, IoError, IoOperation, IoRequest, IoTag, Promotion,
};
use crate::streams::{DeclaredStream, Evidence, Promise, Streams};
use command::Command;
use delivery::Delivery;
use parking_lot::Mutex;
use ring::Ring;
use rtsched::{Config, Direction, Dispatch, RequestId, Scheduler, ServiceTime, StreamId, StreamSpec};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use tally::Tally;
use units::{Bytes, Instant};

/// The clock of the machine since it started, the same for every thread. It counts the time for which the machine was suspended: a
/// lease runs out meanwhile.
pub fn now() -> Instant {
    let time = clock_gettime(ClockId::Boottime);
    // Since boot, so never negative, and in range for 584 years.
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Why an engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The kernel is older than 5.11, or forbids it; the operating system's error number.
    #[error(
        "io_uring is not available (error {0}): it needs Linux 5.11, the sysctl kernel.io_uring_disabled=0, and in \
         a container a seccomp profile that allows it"
    )]
    Unavailable(i32),
    /// Not enough memory may be locked or is there.
    #[error("the kernel has no memory for the ring; raise the limit on locked memory (ulimit -l)")]
    OutOfMemory,
    /// Anything else.
    #[error("the device engine cannot start: {0}")]
    Other(#[source] io::Error),
}

impl StartError {
    fn from_io(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno @ (libc::ENOSYS | libc::EPERM | libc::EACCES)) => Self::Unavailable(errno),
            Some(libc::ENOMEM) => Self::OutOfMemory,
            _ => Self::Other(error),
        }
    }
}

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
}

/// A running engine. Shared by reference; all methods may be called from any thread, also from
/// [`CompletionSink::completed`], and none waits for the device except [`shutdown`](Self::shutdown).
pub struct Engine {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    inbox: Mutex<Inbox>,
    wake: Arc<OwnedFd>,
    delivery: Delivery,
    statistics: Mutex<Statistics>,
}

#[derive(Default)]
struct Inbox {
    messages: Vec<Message>,
    stopping: bool,
}

enum Message {
    Submit(IoRequest),
    Promote(Promotion),
    Cancel(IoTag),
    CancelStream(StreamId),
    Declare(StreamId, Option<(StreamSpec, Evidence)>),
    Accepted(Accepted),
    Report(mpsc::Sender<Vec<DeclaredStream>>),
    ReportService(mpsc::Sender<[ServiceTime; 3]>),
}

impl Engine {
    /// Starts the engine of a device that nobody else writes to, see [`start_behind`](Self::start_behind).
    ///
    /// # Errors
    /// By cause, see [`StartError`].
    pub fn start(
        device: Arc<FileDevice>,
        pool: Pool,
        config: Config,
        sink: Arc<dyn CompletionSink>,
    ) -> Result<Self, StartError> {
        Self::start_behind(Arc::new(Gate::open()), device, pool, config, sink)
    }

    /// Starts the engine of `device`, to which it gives commands while `gate` is open. What is asked for meanwhile waits, until the
    /// gate is revoked: then it ends as [`IoError::Fenced`]. Requests whose buffers come from `pool` are moved without the kernel having
    /// to look at their memory again.
    ///
    /// # Errors
    /// By cause, see [`StartError`].
    pub fn start_behind(
        gate: Arc<Gate>,
        device: Arc<FileDevice>,
        pool: Pool,
        config: Config,
        sink: Arc<dyn CompletionSink>,
    ) -> Result<Self, StartError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| StartError::Other(errno.into()))?;
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            wake: Arc::new(wake),
            delivery: Delivery::start(sink).map_err(StartError::Other)?,
            statistics: Mutex::default(),
        });
        gate.wakes(Arc::clone(&shared.wake));
        let (report, started) = mpsc::channel();
        let spawned = thread::Builder::new().name("avfs-engine".into()).spawn({
            let shared = Arc::clone(&shared);
            // The ring is made by the thread that uses it, as it must be.
            move || {
                let wake = Arc::clone(&shared.wake);
                let ring = Ring::new(Arc::clone(&device), pool, wake, Arc::clone(&gate), config.queue_depth);
                match ring {
                    Ok(ring) => {
                        let worker = Worker::new(ring, gate, shared, config, device.size());
                        // The starter waits for this, so it is there.
                        let _ = report.send(Ok(()));
                        worker.run();
                    }
                    Err(error) => {
                        let _ = report.send(Err(error));
                    }
                }
            }
        });
        let started = spawned.map_err(StartError::Other).and_then(|thread| {
            let gone = |_| Err(StartError::Other(io::Error::other("the engine thread has panicked")));
            started.recv().unwrap_or_else(gone).map(|()| thread)
        });
        match started {
            Ok(thread) => Ok(Self { shared, thread: Mutex::new(Some(thread)) }),
            Err(error) => {
                shared.delivery.close();
                Err(error)
            }
        }
    }

    /// Accepts requests. Each completes exactly once: a malformed one with EINVAL, one whose tag is in use with EEXIST,
    /// one that reaches past the device with [`IoError::PastEnd`], one that comes while the engine shuts down with
    /// [`IoError::Stopped`]. Once [`shutdown`](Self::shutdown) has returned there is nobody to tell, and requests
    /// are dropped.
    ///
    /// The iterator is run with the queue locked, so it must not call the engine.
    pub fn submit(&self, requests: impl IntoIterator<Item = IoRequest>) {
        let mut requests = requests.into_iter().peekable();
        if requests.peek().is_none() || self.shared.post(requests.by_ref().map(Message::Submit)) {
            return;
        }
        let mut refused = requests.map(|request| ended(request.tag, IoError::Stopped)).collect();
        self.shared.delivery.push(&mut refused, &mut Vec::new());
    }

    /// Somebody now waits for a request.
    pub fn promote(&self, promotion: Promotion) {
        self.shared.post(std::iter::once(Message::Promote(promotion)));
    }

    /// Takes a request back, which then completes as [`IoError::Cancelled`], unless it is at the device already.
    pub fn cancel(&self, tag: IoTag) {
        self.shared.post(std::iter::once(Message::Cancel(tag)));
    }

    /// Takes back all requests of a stream that are not at the device already: whoever plays it is elsewhere.
    pub fn cancel_stream(&self, stream: StreamId) {
        self.shared.post(std::iter::once(Message::CancelStream(stream)));
    }

    /// A stream is as is said from now on, or has ended. It gets a reservation as soon as there is room, and, should that be the last
    /// there is, as soon as it is [known](Evidence::Known) to be a stream; until then it is served as best effort. Declarations take
    /// effect in the order of the calls.
    pub fn declare(&self, stream: StreamId, wanted: Option<(StreamSpec, Evidence)>) {
        self.shared.post(std::iter::once(Message::Declare(stream, wanted)));
    }

    /// So much was accepted without a promise, and will be submitted later: who is declared from now on has to share the device with it.
    pub fn note_accepted(&self, accepted: Accepted) {
        self.shared.post(std::iter::once(Message::Accepted(accepted)));
    }

    /// All declared streams, in the order of their names. Waits for the engine thread to answer; none when it stops.
    pub fn streams(&self) -> Vec<DeclaredStream> {
        let (sender, answer) = mpsc::channel();
        self.shared.post(std::iter::once(Message::Report(sender)));
        answer.recv().unwrap_or_default()
    }

    /// How long the device is reckoned to take by now, in its slowest zone, for reads, writes and flushes. Waits for the
    /// engine thread to answer; `None` when it stops.
    pub fn service_times(&self) -> Option<[ServiceTime; 3]> {
        let (sender, answer) = mpsc::channel();
        self.shared.post(std::iter::once(Message::ReportService(sender)));
        answer.recv().ok()
    }

    /// What was done up to now. Covers every completion that was delivered.
    pub fn statistics(&self) -> Statistics {
        *self.shared.statistics.lock()
    }

    /// The clock of every deadline, see [`now`].
    pub fn now(&self) -> Instant {
        now()
    }

    /// Refuses further requests, finishes those accepted, delivers every completion, ends the threads and gives up
    /// the sink. The first call waits for all that (called from the sink, for all but that call itself).
    pub fn shutdown(&self) {
        self.shared.inbox.lock().stopping = true;
        self.shared.wake();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the engine thread has panicked");
        }
        self.shared.delivery.close();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("statistics", &self.statistics()).finish_non_exhaustive()
    }
}

impl Shared {
    /// Queues `messages` and wakes the engine, unless it is to look at the queue anyway. False, with nothing taken,
    /// when it stops.
    fn post(&self, messages: impl Iterator<Item = Message>) -> bool {
        let mut inbox = self.inbox.lock();
        if inbox.stopping {
            return false;
        }
        let was_empty = inbox.messages.is_empty();
        inbox.messages.extend(messages);
        drop(inbox);
        if was_empty {
            self.wake();
        }
        true
    }

    fn wake(&self) {
        // It fails only when the counter is at its end, and then the engine is awake.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

fn ended(tag: IoTag, error: IoError) -> Completion {
    Completion { tag, result: Err(error) }
}

/// What the engine thread owns.
struct Worker {
    shared: Arc<Shared>,
    ring: Ring,
    gate: Arc<Gate>,
    /// The gate has closed since, and what the kernel had not given to the device was taken back.
    is_recalled: bool,
    scheduler: Scheduler,
    streams: Streams,
    size: Bytes,
    /// Every request accepted and not ended: itself while it waits, `None` while it is at the device.
    outstanding: HashMap<RequestId, Option<IoRequest>>,
    finished: Vec<Command>,
    completions: Vec<Completion>,
    promises: Vec<Promise>,
    statistics: Statistics,
}

impl Worker {
    fn new(ring: Ring, gate: Arc<Gate>, shared: Arc<Shared>, config: Config, size: Bytes) -> Self {
        Self {
            shared,
            ring,
            gate,
            is_recalled: false,
            scheduler: Scheduler::new(config),
            streams: Streams::default(),
            size,
            outstanding: HashMap::new(),
            finished: Vec::new(),
            completions: Vec::new(),
            promises: Vec::new(),
            statistics: Statistics::default(),
        }
    }

    fn run(mut self) {
        let mut messages = Vec::new();
        loop {
            let stopping = {
                let mut inbox = self.shared.inbox.lock();
                std::mem::swap(&mut messages, &mut inbox.messages);
                inbox.stopping
            };
            let now = now();
            for message in messages.drain(..) {
                self.take(now, message);
            }
            let wakeup = self.pass_gate(now);
            self.deliver();
            if !stopping || (!self.gate.is_open(now) && !self.outstanding.is_empty()) {
                self.ring.arm_wake();
            } else if self.outstanding.is_empty() {
                if !self.ring.wake_is_armed() {
                    return;
                }
                self.shared.wake();
            }
            if let Err(error) = self.ring.wait(wakeup.map(|wakeup| wakeup.saturating_since(now))) {
                tracing::error!(%error, "the ring has failed; the device engine stops");
                return;
            }
            self.ring.reap(&mut self.finished);
            self.account();
            self.deliver();
        }
    }

    fn take(&mut self, now: Instant, message: Message) {
        match message {
            Message::Submit(request) => self.accept(now, request),
            Message::Promote(promotion) => promotion.apply(&mut self.scheduler, now),
            Message::Declare(stream, wanted) => {
                self.streams.declare(&mut self.scheduler, now, stream, wanted);
            }
            Message::Accepted(accepted) => accepted.apply(&mut self.scheduler, now),
            Message::Report(sender) => {
                // Whoever asked may have gone.
                let _ = sender.send(self.streams.report(&self.scheduler));
            }
            Message::ReportService(sender) => {
                let of = |direction| self.scheduler.service_time(direction);
                let _ = sender.send([Direction::Read, Direction::Write, Direction::Flush].map(of));
            }
            Message::Cancel(tag) => {
                if self.scheduler.cancel(now, tag.into()) {
                    self.cancelled(tag);
                }
            }
            Message::CancelStream(stream) => {
                let mut cancelled = Vec::new();
                self.scheduler.cancel_stream(now, stream, |id| cancelled.push(IoTag(id.0)));
                cancelled.into_iter().for_each(|tag| self.cancelled(tag));
            }
        }
    }

    fn cancelled(&mut self, tag: IoTag) {
        self.outstanding.remove(&tag.into());
        self.end(ended(tag, IoError::Cancelled));
    }

    fn accept(&mut self, now: Instant, request: IoRequest) {
        self.statistics.submitted += 1;
        let id = request.tag.into();
        let checked = match self.outstanding.contains_key(&id) {
            true => Err(IoError::Device(libc::EEXIST)),
            false => request.check(self.size),
        };
        match checked {
            Ok(()) => {
                self.scheduler.enqueue(now, request.describe());
                self.outstanding.insert(id, Some(request));
            }
            Err(error) => self.end(ended(request.tag, error)),
        }
    }

    /// Fills the device if the gate is open, and says when this is to be done next.
    fn pass_gate(&mut self, now: Instant) -> Option<Instant> {
        if self.gate.is_revoked() {
            self.refuse_all(now);
        }
        if self.gate.is_open(now) {
            self.is_recalled = false;
            self.fill_device(now);
            let closes = self.gate.until();
            let is_watched = closes < Instant::FAR_FUTURE && self.ring.is_busy();
            let closes = is_watched.then_some(closes);
            return [self.scheduler.next_wakeup(now), closes].into_iter().flatten().min();
        }
        if !std::mem::replace(&mut self.is_recalled, true) && self.ring.is_busy() {
            self.ring.recall();
        }
        // Whoever opens it wakes this thread.
        None
    }

    /// Ends everything that is not at the device.
    fn refuse_all(&mut self, now: Instant) {
        let waiting = self.outstanding.iter().filter(|(_, request)| request.is_some()).map(|(&id, _)| id);
        for id in waiting.collect::<Vec<_>>() {
            self.scheduler.cancel(now, id);
            self.outstanding.remove(&id);
            self.end(ended(IoTag(id.0), IoError::Fenced));
        }
        self.ring.refuse_staged(IoError::Fenced, &mut self.finished);
        self.account();
    }

    fn fill_device(&mut self, now: Instant) {
        while let Some(dispatch) = self.scheduler.dispatch(now) {
            self.start(&dispatch);
            // The ring may refuse at once, and then there is room for another.
            self.account();
        }
    }

    fn start(&mut self, dispatch: &Dispatch) {
        let requests: SmallVec<[IoRequest; 2]> = dispatch
            .requests
            .iter()
            .map(|id| {
                let waiting = self.outstanding.get_mut(id).and_then(Option::take);
                waiting.expect("the scheduler dispatches what was enqueued, once")
            })
            .collect();
        self.statistics.commands += 1;
        tally::count(&mut self.statistics.tally, &requests);
        let command = Command::new(dispatch.id, requests, self.ring.durability());
        self.ring.start(command, &mut self.finished);
    }

    /// Tells scheduler and statistics of the commands that are finished.
    fn account(&mut self) {
        if self.finished.is_empty() {
            return;
        }
        let now = now();
        let mut finished = std::mem::take(&mut self.finished);
        for command in finished.drain(..) {
            self.scheduler.complete(now, command.dispatch);
            for (request, completion) in command.completions() {
                self.outstanding.remove(&request.tag.into());
                if completion.result.is_ok() {
                    match request.operation {
                        IoOperation::Read => self.statistics.read += request.length(),
                        IoOperation::Write { .. } => self.statistics.written += request.length(),
                        IoOperation::Flush => self.statistics.flushes += 1,
                    }
                    self.statistics.late +=
                        u64::from(request.deadline.is_some_and(|deadline| deadline < now));
                }
                self.end(completion);
            }
        }
        self.finished = finished;
    }

    fn end(&mut self, completion: Completion) {
        self.statistics.completed += 1;
        match completion.result {
            Ok(()) => {}
            Err(IoError::Cancelled) => self.statistics.cancelled += 1,
            Err(_) => self.statistics.failed += 1,
        }
        self.completions.push(completion);
    }

    fn deliver(&mut self) {
        self.statistics.queued = self.scheduler.queued();
        self.statistics.in_flight = self.scheduler.in_flight();
        *self.shared.statistics.lock() = self.statistics;
        self.streams.promises(&mut self.scheduler, now(), &mut self.promises);
        self.shared.delivery.push(&mut self.completions, &mut self.promises);
    }
}

impl Drop for Worker {
    /// Ends what is still outstanding: nothing after a shutdown, everything when the ring failed or a bug ended the
    /// thread. What is at the device keeps its memory, see [`Ring`].
    fn drop(&mut self) {
        let messages = {
            let mut inbox = self.shared.inbox.lock();
            inbox.stopping = true;
            std::mem::take(&mut inbox.messages)
        };
        let unheard = messages.into_iter().filter_map(|message| match message {
            Message::Submit(request) => Some(RequestId::from(request.tag)),
            Message::Promote(..)
            | Message::Cancel(_)
            | Message::CancelStream(_)
            | Message::Declare(..)
            | Message::Accepted(_)
            | Message::Report(_)
            | Message::ReportService(_) => None,
        });
        for RequestId(tag) in self.outstanding.drain().map(|(id, _)| id).chain(unheard) {
            self.completions.push(ended(IoTag(tag), IoError::Stopped));
        }
        self.shared.delivery.push(&mut self.completions, &mut self.promises);
    }
}
