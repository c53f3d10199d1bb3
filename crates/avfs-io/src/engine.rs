//! The engine of a mounted volume: one thread between the requests of all clients and the device.
//!
//! **For:** accepting requests from any thread, moving the bytes of the commands that [`EngineCore`] has for the device, and
//! reporting the ends of requests. **Excludes:** the books, which are the core's, the order, which is `rtsched`'s, and filesystem
//! code, which runs on the completion threads. **State:** the engine thread owns core and ring; submitters share with it only a queue
//! of messages. **Invariants:** every request that is submitted before [`Engine::shutdown`] returns completes exactly once, whatever
//! ends the thread; the engine thread blocks in one place, the ring.

mod delivery;
mod ring;
mod runs;
mod start;
#[cfg(test)]
mod tests;

pub use start::{StartError, now};

use crate::device::{Device, FileDevice};
use crate::engine_core::{
    Command, DeclaredStream, DeviceFacts, Durability, EngineCore, Incident, Inquiry, Promise, Statistics,
};
use crate::gate::Gate;
use crate::request::{Accepted, Completion, CompletionSink, IoError, IoRequest, IoTag, Promotion};
use crate::trace::Part;
use delivery::Delivery;
use parking_lot::Mutex;
use ring::Ring;
use rtsched::{Confidence, Config, Scheduler, ServiceTime, StreamId, StreamSpec};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use units::{Bytes, Instant};

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
    Declare(StreamId, Option<(StreamSpec, Confidence)>),
    Accepted(Accepted),
    Grown(Bytes),
    Report(mpsc::Sender<Vec<DeclaredStream>>),
    ReportService(mpsc::Sender<[ServiceTime; 3]>),
    Copy(mpsc::Sender<Box<Scheduler>>),
    Explain(Inquiry),
    Reconfigure(Box<Config>, mpsc::Sender<Result<(), Bytes>>),
    Trace(Option<u64>, mpsc::Sender<Option<Part>>),
}

impl Engine {
    /// Starts the engine of a device that no other process writes to, see [`start_behind`](Self::start_behind).
    ///
    /// # Errors
    /// By cause, see [`StartError`].
    pub fn start(
        device: Arc<FileDevice>,
        config: Config,
        sink: Arc<dyn CompletionSink>,
    ) -> Result<Self, StartError> {
        Self::start_behind(Arc::new(Gate::open()), device, config, sink)
    }

    /// Starts the engine of `device`, to which it gives commands while `gate` is open. What is asked for meanwhile waits, until the
    /// gate is revoked: then it ends as [`IoError::Fenced`].
    ///
    /// # Errors
    /// By cause, see [`StartError`].
    pub fn start_behind(
        gate: Arc<Gate>,
        device: Arc<FileDevice>,
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
                let ring = Ring::new(Arc::clone(&device), wake, Arc::clone(&gate), config.queue_depth);
                match ring {
                    Ok(ring) => {
                        let core = EngineCore::new(config, facts(&device));
                        let worker = Worker::new(ring, gate, shared, core);
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
    /// [`IoError::Stopped`]. Once [`shutdown`](Self::shutdown) has begun to give up the sink, the ends of requests are
    /// returned instead: the caller tells what waits for them.
    ///
    /// The iterator is run with the queue locked, so it must not call the engine.
    #[must_use = "what waits for a request that was refused would wait for ever"]
    pub fn submit(&self, requests: impl IntoIterator<Item = IoRequest>) -> Vec<Completion> {
        let mut requests = requests.into_iter().peekable();
        if requests.peek().is_none() || self.shared.post(requests.by_ref().map(Message::Submit)) {
            return Vec::new();
        }
        let stopped = |request: IoRequest| Completion { tag: request.tag, result: Err(IoError::Stopped) };
        let refused: Vec<_> = requests.map(stopped).collect();
        let is_told = self.shared.delivery.push(refused.iter().copied(), &mut Vec::new(), &mut Vec::new());
        if is_told { Vec::new() } else { refused }
    }

    /// A client now waits for a request.
    pub fn promote(&self, promotion: Promotion) {
        self.shared.post(std::iter::once(Message::Promote(promotion)));
    }

    /// Takes a request back, which then completes as [`IoError::Cancelled`], unless it is at the device already.
    pub fn cancel(&self, tag: IoTag) {
        self.shared.post(std::iter::once(Message::Cancel(tag)));
    }

    /// Takes back all requests of a stream that are not at the device already: its player is elsewhere.
    pub fn cancel_stream(&self, stream: StreamId) {
        self.shared.post(std::iter::once(Message::CancelStream(stream)));
    }

    /// A stream is as is said from now on, or has ended. It gets a reservation as soon as there is room, and, should that be the last
    /// there is, as soon as it is [known](Confidence::Known) to be a stream; until then it is served as best effort. Declarations take
    /// effect in the order of the calls.
    pub fn declare(&self, stream: StreamId, wanted: Option<(StreamSpec, Confidence)>) {
        self.shared.post(std::iter::once(Message::Declare(stream, wanted)));
    }

    /// So much was accepted without a promise, and will be submitted later: a stream that is declared from now on has to share the
    /// device with it.
    pub fn note_accepted(&self, accepted: Accepted) {
        self.shared.post(std::iter::once(Message::Accepted(accepted)));
    }

    /// The device has `size` bytes: what is submitted from now on may reach so far. Zones are those that it had when it was opened; what
    /// lies behind them counts to the last.
    pub fn device_has_grown(&self, size: Bytes) {
        self.shared.post(std::iter::once(Message::Grown(size)));
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

    /// The scheduler as it is, to ask it what it would do without asking for it. Waits for the engine thread to answer; `None` when it
    /// stops.
    pub fn copy_of_scheduler(&self) -> Option<Box<Scheduler>> {
        let (sender, answer) = mpsc::channel();
        self.shared.post(std::iter::once(Message::Copy(sender)));
        answer.recv().ok()
    }

    /// Latencies, floors, limits and memory are as `config` says from now on, see [`Scheduler::reconfigure`]. Waits for the engine thread
    /// to answer; nothing is to be changed when it stops.
    ///
    /// # Errors
    /// The memory that streams are promised and would not have; nothing has changed then.
    pub fn reconfigure(&self, config: Config) -> Result<(), Bytes> {
        let (sender, answer) = mpsc::channel();
        self.shared.post(std::iter::once(Message::Reconfigure(Box::new(config), sender)));
        answer.recv().unwrap_or(Ok(()))
    }

    /// Asks why a client was kept waiting. The answer comes as [`Incident::Explained`].
    pub fn explain(&self, inquiry: Inquiry) {
        self.shared.post(std::iter::once(Message::Explain(inquiry)));
    }

    /// Begins a recording of what is asked and done, or gives what was recorded from that number on; see [`trace`](crate::trace). Waits
    /// for the engine thread to answer; `None` when the recording has ended because no recorder asked for long, or the engine stops.
    pub fn trace(&self, since: Option<u64>) -> Option<Part> {
        let (sender, answer) = mpsc::channel();
        self.shared.post(std::iter::once(Message::Trace(since, sender)));
        answer.recv().ok().flatten()
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

/// What the books have to know of it.
fn facts(device: &FileDevice) -> DeviceFacts {
    DeviceFacts {
        size: device.size(),
        logical_block: device.geometry().logical_block,
        durability: if device.forces_writes() { Durability::OfItself } else { Durability::ByFlush },
    }
}

/// What the engine thread owns.
struct Worker {
    shared: Arc<Shared>,
    core: EngineCore,
    ring: Ring,
    gate: Arc<Gate>,
    /// The gate has closed since, and what the kernel had not given to the device was taken back.
    is_recalled: bool,
    /// Kept for their memory.
    finished: Vec<Command>,
    promises: Vec<Promise>,
    incidents: Vec<Incident>,
}

impl Worker {
    fn new(ring: Ring, gate: Arc<Gate>, shared: Arc<Shared>, core: EngineCore) -> Self {
        let (finished, promises, incidents) = (Vec::new(), Vec::new(), Vec::new());
        Self { shared, core, ring, gate, is_recalled: false, finished, promises, incidents }
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
            let is_idle = self.core.outstanding() == 0;
            if !stopping || (!self.gate.is_open(now) && !is_idle) {
                self.ring.arm_wake();
            } else if is_idle {
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
            self.complete_finished();
            self.deliver();
        }
    }

    fn take(&mut self, now: Instant, message: Message) {
        match message {
            Message::Submit(request) => {
                self.core.submit(now, request);
            }
            Message::Promote(promotion) => self.core.promote(now, promotion),
            Message::Cancel(tag) => self.core.cancel(now, tag),
            Message::CancelStream(stream) => self.core.cancel_stream(now, stream),
            Message::Declare(stream, wanted) => self.core.declare(now, stream, wanted),
            Message::Accepted(accepted) => self.core.note_accepted(now, accepted),
            Message::Grown(size) => self.core.device_has_grown(size),
            // The caller may have gone.
            Message::Report(sender) => drop(sender.send(self.core.streams())),
            Message::ReportService(sender) => drop(sender.send(self.core.service_times())),
            Message::Explain(inquiry) => self.core.explain(inquiry),
            Message::Reconfigure(config, sender) => drop(sender.send(self.core.reconfigure(now, &config))),
            Message::Trace(since, sender) => drop(sender.send(self.core.trace(now, since))),
            Message::Copy(sender) => drop(sender.send(Box::new(self.core.scheduler().clone()))),
        }
    }

    /// Fills the device if the gate is open, and says when this is to be done next.
    fn pass_gate(&mut self, now: Instant) -> Option<Instant> {
        let closes = self.gate.until();
        self.core.permit(closes);
        if self.gate.is_revoked() {
            self.core.fence(now);
            self.ring.refuse_staged(IoError::Fenced, &mut self.finished);
            self.complete_finished();
        }
        if now < closes {
            self.is_recalled = false;
            self.fill_device(now);
            let is_watched = closes < Instant::FAR_FUTURE && self.ring.is_busy();
            let closes = is_watched.then_some(closes);
            return [self.core.next_wakeup(now), closes].into_iter().flatten().min();
        }
        if !std::mem::replace(&mut self.is_recalled, true) && self.ring.is_busy() {
            self.ring.recall();
        }
        // The caller that opens it wakes this thread.
        None
    }

    fn fill_device(&mut self, now: Instant) {
        while let Some(command) = self.core.next_command(now) {
            self.ring.start(command);
        }
    }

    /// Gives back the commands that are finished.
    fn complete_finished(&mut self) {
        if self.finished.is_empty() {
            return;
        }
        let now = now();
        for command in self.finished.drain(..) {
            self.core.complete(now, command);
        }
    }

    fn deliver(&mut self) {
        *self.shared.statistics.lock() = self.core.statistics();
        self.core.promises(now(), &mut self.promises);
        self.core.incidents(&mut self.incidents);
        self.shared.delivery.push(self.core.ended().drain(..), &mut self.promises, &mut self.incidents);
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
        self.core.stop();
        for message in messages {
            // All others are of no use to a core that has stopped.
            if let Message::Submit(request) = message {
                self.core.submit(now(), request);
            }
        }
        self.shared.delivery.push(self.core.ended().drain(..), &mut self.promises, &mut self.incidents);
    }
}
