//! A mounted volume as its frontends see it: every method may be called from any thread.
//!
//! **For:** the lock around the core, the clocks, the engine, the timer, and the continuations of those who wait.
//! **State:** `Shared`. **Invariants:** methods that need no device answer inline; those that may need it take a
//! continuation, which is called exactly once, at once where it can be, otherwise from a completion thread; no caller
//! is blocked on the device, except that changes of metadata are held back while the log runs full, or while space for them
//! is on its way. The lock is not
//! held while a client's bytes are copied, a request submitted or a continuation called.

use crate::audience::{self, Audience};
use crate::config::{Config, DeviceConfig};
use crate::core::{
    Cancellation, CopyPart, Core, CoreOptions, Operation, Outbox, Outcome, Sharing, Ticket, UsageCount,
    WritePlan, WriteStart,
};
use crate::device::{report, scheduler_config};
use crate::error::{Error, Result};
use crate::events::{self, DeviceWork, EventReport, Room, StreamDetail, StreamsReport};
use crate::format::{BLOCK, MmpBlock};
use crate::free_space::{FreeRuns, FreeSpaceReport};
use crate::journal::Behind;
use crate::lease::{Over, Verdict, Watch};
use crate::partition_table;
use crate::protection::{self, Holding, Machine};
use crate::recovery::{RecoveryError, find_superblock, find_superblock_of_part, recover, recover_part};
use crate::steps::{Step, has};
use crate::types::*;
use avfs_io::device::{Device, FileDevice, OpenError as DeviceError, OpenMode};
use avfs_io::engine::{self, Engine, StartError};
use avfs_io::pool::{Buffer, Pool, total};
use avfs_io::trace::Part;
use avfs_io::{Completion, CompletionSink, DeclaredStream, Gate, Incident, Promise};
use memory::{Cached, Tender};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rtsched::{StreamId, StreamSpec};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};
use units::{Bitrate, Bytes, Duration, Ino, Instant, Now, Timestamp};

/// Called exactly once with the outcome.
pub type Done<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// What is written.
enum Data<'a> {
    Borrowed(&'a [u8]),
    /// All of it.
    InBuffer(Buffer),
    /// With the plan.
    HandedOver,
}

impl Data<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::InBuffer(buffer) => buffer.bytes(0, buffer.len()),
            Self::HandedOver => &[],
        }
    }

    /// Hands it over to the plan, or copies it to its place.
    fn put(self, plan: &mut WritePlan) -> Self {
        let kept = match self {
            Self::InBuffer(buffer) => match plan.hand_over(buffer) {
                Ok(()) => return Self::HandedOver,
                Err(buffer) => Self::InBuffer(buffer),
            },
            kept => kept,
        };
        plan.copy(kept.bytes());
        kept
    }

    /// What the plan gives back, if it has something.
    fn or_taken_back(self, plan: WritePlan) -> Self {
        plan.take_back().map_or(self, Self::InBuffer)
    }

    fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::InBuffer(buffer) => Some(buffer),
            Self::Borrowed(_) | Self::HandedOver => None,
        }
    }
}

/// What is to be durable before nothing is written any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopAfter {
    /// All that was accepted.
    Everything,
    /// What is in the log, as far as its data are on the device.
    Log,
    /// No more than is.
    Nothing,
}

/// How to open a volume. By default: to write, with the configuration's defaults.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Refuse every change, and change nothing on the device, not even to recover.
    pub read_only: bool,
    /// When reading changes times of access.
    pub access_times: AccessTimes,
    /// The kernel holds the block device for the filesystem that is to be served: see [`OpenMode::Held`].
    pub holds_device: bool,
    /// This holder of the volume is dead: a cluster has fenced its host, and confirms it. The number stands in its protection block.
    pub fenced: Option<[u8; 16]>,
    /// Pinned memory for file data; the configuration's value when absent.
    pub cache_size: Option<Bytes>,
    /// Rates, latencies, intervals.
    pub config: Config,
}

/// Why a volume could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The device could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// What is on it cannot be mounted.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// Another process has it, here or on another host.
    #[error("{0}")]
    MountedElsewhere(String),
    /// It has a feature that must be known to write.
    #[error(
        "a newer version of AVFS has left something on the volume that this one does not know: it can only be read, mount it with -o ro"
    )]
    OnlyRead,
    /// The pool could not be pinned.
    #[error("cannot pin {size} of memory for the cache ({source}): give a smaller cache_size")]
    Memory {
        /// How much.
        size: Bytes,
        /// Why not.
        source: std::io::Error,
    },
    /// The engine did not start.
    #[error(transparent)]
    Engine(#[from] StartError),
    /// The device failed.
    #[error("cannot write the device: {0}")]
    Write(#[from] avfs_io::IoError),
}

/// Room for more is counted at so many rates, and up to so many streams: more fit into no table, and each costs the admission's time.
const MOST_RATES: usize = 4;
const MOST_MORE: u32 = 200;

/// Of so many files it is found out again at once what holds for them: each costs some microseconds. An operator's target: the turn's length.
const FILES_AT_ONCE: usize = 64;
/// Of so many units free space is looked at while all others wait: each costs up to a microsecond. An operator's target, as
/// above.
const UNITS_AT_ONCE: u64 = 1024;

/// Smallest cache: the largest request several times, and what the volume itself needs.
pub const SMALLEST_CACHE: Bytes = Bytes::from_mib(64);
/// Cache of a volume that is opened without any word of its size. `mount.avfs` always names one.
pub const USUAL_CACHE: Bytes = Bytes::from_mib(1024);

enum Continuation {
    Data(Done<ReadData>),
    Count(Done<usize>),
    Unit(Done<()>),
    Attributes(Done<Attributes>),
    Policy(Done<PolicyReport>),
}

struct State {
    core: Core,
    audience: Audience,
    waiting: HashMap<Ticket, Continuation>,
    next_ticket: u64,
    stopping: bool,
    /// The last of the core's [turns](Core::space_turn) that changes that wait for space were told of.
    space_turn: u64,
}

/// The lock, held, and since when.
struct Held<'a> {
    guard: MutexGuard<'a, State>,
    since: std::time::Instant,
    longest: &'a AtomicU64,
}

impl Held<'_> {
    fn note(&self) {
        let nanoseconds = self.since.elapsed().as_nanos() as u64;
        if nanoseconds > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(nanoseconds, Ordering::Relaxed);
        }
    }

    /// Lets the lock go until it is notified.
    fn wait(&mut self, until: &Condvar) {
        self.note();
        until.wait(&mut self.guard);
        self.since = std::time::Instant::now();
    }

    /// The same, but no longer than `time`.
    fn wait_for(&mut self, until: &Condvar, time: Duration) {
        self.note();
        until.wait_for(&mut self.guard, time);
        self.since = std::time::Instant::now();
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.note();
    }
}

impl std::ops::Deref for Held<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.guard
    }
}

impl std::ops::DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.guard
    }
}

struct Shared {
    state: Mutex<State>,
    /// For how long the lock was held at most since that was asked last, in nanoseconds.
    longest_hold: AtomicU64,
    /// The timer sleeps on this until the core's next wakeup, or until that changes.
    timer: Condvar,
    /// Changes of metadata wait on this while the log is nearly full.
    pressure: Condvar,
    /// Changes of metadata wait on this while space for them is on its way.
    space: Condvar,
    engine: OnceLock<Engine>,
    /// Another has the volume.
    is_lost: AtomicBool,
}

/// What a volume is opened for.
enum Access {
    /// To be read; this said who had it.
    Read { found: Option<MmpBlock> },
    /// To be written, as long as it is held.
    Write { gate: Arc<Gate>, loser: Arc<Mutex<Loser>> },
}

/// Who hears of the loss of a volume that is only just being opened.
#[derive(Default)]
struct Loser {
    shared: Weak<Shared>,
    lost: Option<Over>,
}

impl Loser {
    fn lose(&mut self, over: &Over) {
        match self.shared.upgrade() {
            Some(shared) => shared.lose(over),
            None => self.lost = Some(over.clone()),
        }
    }

    fn become_known(&mut self, shared: &Arc<Shared>) {
        self.shared = Arc::downgrade(shared);
        if let Some(over) = self.lost.take() {
            shared.lose(&over);
        }
    }
}

/// What may be discarded.
#[derive(Debug, Default)]
struct Trims {
    /// Somebody has asked for it, and it has not ended.
    is_running: bool,
    /// The volume is not written to.
    is_forbidden: bool,
}

/// A mounted volume.
pub struct Volume {
    shared: Arc<Shared>,
    device: Arc<FileDevice>,
    timer_thread: Mutex<Option<JoinHandle<()>>>,
    /// How the shutdown went, if there was one.
    ended: OnceLock<Result<()>>,
    tender: Tender,
    /// What holds now.
    config: Mutex<Config>,
    /// Held while free space is discarded.
    trims: Arc<Mutex<Trims>>,
    /// The device cannot be written, or this code does not know all that must be known to do so.
    is_only_read: bool,
    is_protected: bool,
    /// What the log has behind a damaged place: nothing is written while it does.
    behind: Option<Behind>,
    uuid: [u8; 16],
    /// What said who has the volume when it was opened to be read.
    found: Option<MmpBlock>,
    /// While it may be written.
    holding: Mutex<Option<Holding>>,
    gate: Arc<Gate>,
    /// What the scheduler began with, and what of it was measured.
    scheduler_start: rtsched::Config,
    device_config: DeviceConfig,
    overdue: Duration,
}

struct Sink(Weak<Shared>);

impl CompletionSink for Sink {
    fn completed(&self, now: Instant, completions: &[Completion]) {
        if let Some(shared) = self.0.upgrade() {
            shared.run(|state| {
                for completion in completions {
                    state.audience.completed(&state.core, at(now), completion);
                    state.core.io_completed(at(now), *completion);
                }
            });
        }
    }

    fn promised(&self, _: Instant, promises: &[Promise]) {
        if let Some(shared) = self.0.upgrade() {
            shared.run(|state| promises.iter().for_each(|&promise| state.core.promised(now(), promise)));
        }
    }

    fn happened(&self, now: Instant, incidents: &[Incident]) {
        if let Some(shared) = self.0.upgrade() {
            let mut state = shared.lock();
            let State { core, audience, .. } = &mut *state;
            audience.happened(core, at(now), incidents);
        }
    }
}

fn at(monotonic: Instant) -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { monotonic, wall: Timestamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() } }
}

fn now() -> Now {
    at(engine::now())
}

impl State {
    fn ticket(&mut self, continuation: Continuation) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.waiting.insert(ticket, continuation);
        ticket
    }
}

/// Everything to do once the lock is released.
struct Work {
    outbox: Outbox,
    answers: Vec<(Continuation, Outcome)>,
}

impl Shared {
    fn lock(&self) -> Held<'_> {
        let guard = self.state.lock();
        Held { guard, since: std::time::Instant::now(), longest: &self.longest_hold }
    }

    /// Runs `change` under the lock, then does what the core wants done.
    fn run<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let wakeup = state.core.next_wakeup();
        let result = change(&mut state);
        self.settle(state, wakeup);
        result
    }

    fn settle(&self, mut state: Held<'_>, wakeup: Instant) {
        if state.core.space_turn() != state.space_turn {
            state.space_turn = state.core.space_turn();
            self.space.notify_all();
        }
        let mut outbox = state.core.take_outbox();
        if !outbox.takes.is_empty() {
            let State { core, audience, .. } = &mut *state;
            audience.follow(core, now(), &outbox.takes);
            if let Some(engine) = self.engine.get() {
                audience.inquiries().for_each(|inquiry| engine.explain(inquiry));
            }
        }
        let earlier = state.core.next_wakeup() < wakeup;
        if outbox.is_empty() && !earlier {
            return;
        }
        let mut answers = Vec::with_capacity(outbox.finished.len());
        for (ticket, outcome) in outbox.finished.drain(..) {
            answers.extend(state.waiting.remove(&ticket).map(|continuation| (continuation, outcome)));
        }
        let relieved = !state.core.under_pressure();
        if let Some(engine) = self.engine.get() {
            // Under the lock, because here the order counts: the end of a stream must not overtake its beginning.
            if !outbox.accepted.is_nothing() {
                engine.note_accepted(outbox.accepted);
            }
            for (stream, wanted) in outbox.streams.drain(..) {
                engine.declare(stream, wanted);
            }
        }
        drop(state);
        if earlier {
            self.timer.notify_one();
        }
        if relieved {
            self.pressure.notify_all();
        }
        self.perform(Work { outbox, answers });
    }

    fn perform(&self, work: Work) {
        if let Some(engine) = self.engine.get() {
            // First: what is asked for now is wanted.
            for cancellation in work.outbox.cancellations {
                match cancellation {
                    Cancellation::Request(tag) => engine.cancel(tag),
                    Cancellation::Stream(stream) => engine.cancel_stream(stream),
                }
            }
            for promotion in work.outbox.promotions {
                engine.promote(promotion);
            }
            let refused = engine.submit(work.outbox.requests);
            if !refused.is_empty() {
                // The volume is closed: what waits for the device ends as well.
                self.run(|state| refused.into_iter().for_each(|end| state.core.io_completed(now(), end)));
            }
        }
        for (continuation, outcome) in work.answers {
            answer(continuation, outcome);
        }
    }

    /// Another has the volume now. Nothing of ours reaches the device any more, and clients are told so.
    fn lose(&self, over: &Over) {
        self.is_lost.store(true, Ordering::Release);
        self.run(|state| state.core.lose_volume(now(), &over.to_string()));
        self.pressure.notify_all();
    }

    /// Runs a change of metadata, which waits while the log is nearly full.
    /// Where there is no space for it, it waits for what is on its way to become free, as a write does.
    fn change<R>(&self, mut change: impl FnMut(&mut Core, Now) -> Result<R>) -> Result<R> {
        loop {
            let mut state = self.lock();
            while state.core.under_pressure() {
                state.wait(&self.pressure);
            }
            let wakeup = state.core.next_wakeup();
            let turn = state.core.space_turn();
            let result = change(&mut state.core, now());
            let is_full = matches!(result, Err(Error::NoSpace));
            let waits = is_full && state.core.await_space(now());
            self.settle(state, wakeup);
            if !waits {
                return result;
            }
            let mut state = self.lock();
            while state.core.space_turn() == turn {
                state.wait(&self.space);
            }
        }
    }

    /// As [`change`](Self::change), of what may have to wait for the device.
    fn change_later(&self, continuation: Continuation, operation: Operation) {
        let mut state = self.lock();
        while state.core.under_pressure() {
            state.wait(&self.pressure);
        }
        let wakeup = state.core.next_wakeup();
        let ticket = state.ticket(continuation);
        state.core.start(now(), ticket, operation);
        self.settle(state, wakeup);
    }

    fn timer(&self) {
        let mut state = self.lock();
        while !state.stopping {
            let due = state.core.next_wakeup();
            let current = now();
            if due <= current.monotonic {
                state.core.tick(current);
                self.settle(state, Instant::FAR_FUTURE);
                state = self.lock();
            } else if due == Instant::FAR_FUTURE {
                state.wait(&self.timer);
            } else {
                state.wait_for(&self.timer, due.saturating_since(current.monotonic));
            }
        }
    }

    /// See [`Volume::trim`]; takes as long as it takes.
    fn trim(
        &self,
        device: &FileDevice,
        gate: &Gate,
        trims: &Mutex<Trims>,
        bytes: Range<u64>,
        shortest: Bytes,
    ) -> Result<u64> {
        let geometry = self.lock().core.geometry();
        let block = |byte: u64| byte.saturating_sub(geometry.data_start.0) / BLOCK;
        let mut blocks = block(bytes.start.saturating_add(BLOCK - 1))..block(bytes.end);
        let shortest = shortest.0.div_ceil(BLOCK).max(1);
        let mut trimmed = 0;
        loop {
            let (sender, turn) = std::sync::mpsc::sync_channel(1);
            let done: Done<()> = Box::new(move |result| {
                // Nobody waits where there was nothing to trim.
                let _ = sender.send(result);
            });
            let begun = self.run(|state| {
                let ticket = state.ticket(Continuation::Unit(done));
                let begun = state.core.begin_trim(now(), ticket, blocks.clone(), shortest);
                if !matches!(begun, Ok(Some(_))) {
                    state.waiting.remove(&ticket);
                }
                begun
            });
            let Some(run) = begun? else { return Ok(trimmed) };
            let turned = turn.recv().unwrap_or(Err(Error::Device));
            let discarded = turned.and_then(|()| {
                let trims = trims.lock();
                if trims.is_forbidden {
                    return Err(Error::ReadOnly);
                }
                // What goes past the engine asks for itself, last of all: what was free may be another's by now.
                if !gate.is_open(engine::now()) && has(Step::DiscardAsksTheGate) {
                    return Err(Error::Device);
                }
                device
                    .try_discard(geometry.block_address(run.start), Bytes(run.count * BLOCK))
                    .map_err(|_| Error::Device)
            });
            self.run(|state| state.core.end_trim(now(), run));
            match discarded {
                Ok(true) => trimmed += run.count * BLOCK,
                Ok(false) => return Err(Error::Unsupported),
                Err(error) => return Err(error),
            }
            blocks.start = run.end();
        }
    }

    fn start(&self, continuation: Continuation, operation: Operation) {
        self.run(|state| {
            let ticket = state.ticket(continuation);
            state.core.start(now(), ticket, operation);
        });
    }
}

impl Cached for Shared {
    fn is_over(&self) -> bool {
        self.lock().stopping
    }

    fn stamp(&self) -> u64 {
        self.lock().core.cache_stamp()
    }

    fn shed(&self, stamp: u64, bytes: u64) -> (u64, bool) {
        self.run(|state| state.core.shed(stamp, bytes))
    }
}

fn answer(continuation: Continuation, outcome: Outcome) {
    match (continuation, outcome) {
        (Continuation::Data(done), Outcome::Data(result)) => done(result),
        (Continuation::Count(done), Outcome::Count(result)) => done(result),
        (Continuation::Unit(done), Outcome::Done(result)) => done(result),
        (Continuation::Attributes(done), Outcome::Attributes(result)) => done(result),
        (Continuation::Policy(done), Outcome::Policy(result)) => done(result),
        (Continuation::Data(done), _) => done(Err(Error::Device)),
        (Continuation::Count(done), _) => done(Err(Error::Device)),
        (Continuation::Unit(done), _) => done(Err(Error::Device)),
        (Continuation::Attributes(done), _) => done(Err(Error::Device)),
        (Continuation::Policy(done), _) => done(Err(Error::Device)),
    }
}

impl Volume {
    /// Opens a device, recovers what is on it and starts the engine.
    ///
    /// # Errors
    /// See [`OpenError`]: each is one line for the administrator.
    pub fn open(path: &Path, options: OpenOptions) -> core::result::Result<Arc<Self>, OpenError> {
        // Exclusive even to read, so that a remount can write; only a device that cannot be written is opened so.
        let mode = if options.holds_device { OpenMode::Held } else { OpenMode::Exclusive };
        let (device, device_read_only) = match FileDevice::open(path, mode) {
            Err(DeviceError::ReadOnly(_)) if options.read_only => {
                (FileDevice::open(path, OpenMode::ReadOnly)?, true)
            }
            opened => (opened?, false),
        };
        let device = Arc::new(device);
        let superblock =
            if options.read_only { find_superblock_of_part(&*device) } else { find_superblock(&*device) }?;
        if !options.read_only && !superblock.features.allow_writing() {
            return Err(OpenError::OnlyRead);
        }
        let uuid = superblock.uuid;
        let watch = protection::watch(&*device, uuid).fenced(options.fenced);
        let in_use = |over: Over| OpenError::MountedElsewhere(over.to_string());
        if options.read_only {
            let found = protection::look(&*device, watch, &Machine)
                .map_err(RecoveryError::Device)?
                .map_err(in_use)?;
            return Self::start(device, device_read_only, Access::Read { found }, options);
        }
        // What recovery reads must not change any more.
        let lease = protection::take(&*device, watch, &Machine)?.map_err(in_use)?;
        let gate = Arc::new(Gate::closed());
        let loser: Arc<Mutex<Loser>> = Arc::default();
        let lost = {
            let loser = Arc::clone(&loser);
            move |over: &Over| loser.lock().lose(over)
        };
        let holding = Holding::keep(Arc::clone(&device), lease, Arc::clone(&gate), lost)
            .map_err(|source| OpenError::Memory { size: Bytes::ZERO, source })?;
        let opened =
            Self::start(Arc::clone(&device), device_read_only, Access::Write { gate, loser }, options);
        match &opened {
            Ok(volume) if volume.is_held() => *volume.holding.lock() = Some(holding),
            Ok(volume) => {
                // Only read, although it was to be written.
                let _ = holding.release();
                volume.gate.permit(Instant::FAR_FUTURE);
            }
            Err(_) => {
                // What it was not opened for is the error to be told.
                let _ = holding.release();
            }
        }
        opened
    }

    /// The rest of [`open`](Self::open), for whoever may have the volume.
    fn start(
        device: Arc<FileDevice>,
        device_read_only: bool,
        access: Access,
        options: OpenOptions,
    ) -> core::result::Result<Arc<Self>, OpenError> {
        let recovered = if options.read_only { recover_part(&*device) } else { recover(&*device) }?;
        let uuid = recovered.superblock.uuid;
        let volume = recovered.superblock.geometry.device;
        let lacks_end = volume > device.size();
        if lacks_end {
            tracing::error!(
                "the volume is {volume} long but the device only {}: what lay behind its end cannot be read; copy the rest to another volume",
                device.size()
            );
        }
        let is_only_read = device_read_only || lacks_end || !recovered.superblock.features.allow_writing();
        // What cannot be read is no table that is missing.
        let is_protected = partition_table::is_protected(&*device, &recovered.superblock).unwrap_or(true);
        for address in &recovered.repaired {
            tracing::warn!(%address, "damaged metadata was read from its second copy or rebuilt");
        }
        if let Some(behind) = recovered.behind {
            tracing::error!("{}", Self::told(behind));
        }
        tracing::info!(
            replayed = recovered.replayed,
            inodes = recovered.metadata.inodes(),
            "volume recovered"
        );

        let size =
            options.cache_size.or(options.config.cache.size).unwrap_or(USUAL_CACHE).max(SMALLEST_CACHE);
        // It may grow to all that the machine has: that costs addresses alone.
        let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|meminfo| total(&meminfo));
        let pool = Pool::growing(size, machine.unwrap_or(size))
            .map_err(|source| OpenError::Memory { size, source })?;
        let keep = options.config.cache.keep;
        let scheduler =
            scheduler_config(&options.config, device.geometry().rotational, device.size(), pool.capacity());
        let kept = options.config.clone();
        let (scheduler_start, device_config) = (scheduler.clone(), options.config.device);
        let overdue = options.config.requests.overdue;
        let core_options = CoreOptions {
            advice: avfs_streams::Advice::Streams,
            read_only: options.read_only || recovered.behind.is_some(),
            access_times: options.access_times,
            config: options.config,
        };
        let (gate, found, loser) = match access {
            Access::Read { found } => (Arc::new(Gate::open()), found, None),
            Access::Write { gate, loser } => (gate, None, Some(loser)),
        };
        let core = Core::new(
            recovered.superblock,
            recovered.metadata,
            recovered.allocator,
            recovered.journal,
            pool.clone(),
            core_options,
            now(),
        );
        let audience = Audience::new(&core);
        let state =
            State { core, audience, waiting: HashMap::new(), next_ticket: 1, stopping: false, space_turn: 0 };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            longest_hold: AtomicU64::new(0),
            timer: Condvar::new(),
            pressure: Condvar::new(),
            space: Condvar::new(),
            engine: OnceLock::new(),
            is_lost: AtomicBool::new(false),
        });
        let sink = Arc::new(Sink(Arc::downgrade(&shared)));
        let engine = Engine::start_behind(Arc::clone(&gate), Arc::clone(&device), scheduler, sink)?;
        let _ = shared.engine.set(engine);
        if let Some(loser) = loser {
            loser.lock().become_known(&shared);
        }
        shared.run(|state| state.core.tick(now()));
        let timer = Arc::clone(&shared);
        let timer_thread = std::thread::Builder::new()
            .name("avfs-timer".into())
            .spawn(move || timer.timer())
            .map_err(|source| OpenError::Memory { size: Bytes::ZERO, source })?;
        let tender = Tender::start(pool, keep, Arc::downgrade(&shared) as Weak<dyn Cached>)
            .map_err(|source| OpenError::Memory { size: Bytes::ZERO, source })?;
        Ok(Arc::new(Self {
            shared,
            tender,
            config: Mutex::new(kept),
            device,
            timer_thread: Mutex::new(Some(timer_thread)),
            ended: OnceLock::new(),
            trims: Arc::default(),
            is_only_read,
            is_protected,
            behind: recovered.behind,
            uuid,
            found,
            holding: Mutex::new(None),
            gate,
            scheduler_start,
            device_config,
            overdue,
        }))
    }

    /// Whether other tools saw, when it was opened, that the device holds something.
    pub fn is_protected(&self) -> bool {
        self.is_protected
    }

    /// Why the volume is read-only although it was not opened so; one line for the administrator.
    pub fn refusal(&self) -> Option<String> {
        self.behind.map(Self::told)
    }

    fn told(behind: Behind) -> String {
        format!(
            "{behind} unless they can be read again: mounted read-only, as it was before them; fsck.avfs -y gives them up"
        )
    }

    /// A client's request that is not answered in this time is to be logged.
    pub fn overdue(&self) -> Duration {
        self.overdue
    }

    fn with<R>(&self, look: impl FnOnce(&Core) -> R) -> R {
        look(&self.shared.lock().core)
    }

    // Names. Each method that returns an entry counts one lookup reference on the inode, given back by `forget`.

    /// The inode that `name` stands for.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.shared.lock().core.lookup(parent, name)
    }

    /// Gives back lookup references.
    pub fn forget(&self, ino: Ino, count: u64) {
        self.shared.run(|state| state.core.forget(now(), ino, count));
    }

    /// Makes a file, device node, fifo or socket. `umask` applies unless a default ACL does.
    #[expect(clippy::too_many_arguments, reason = "mknod(2) has as many")]
    pub fn make_node(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        permissions: u16,
        umask: u16,
        rdev: u32,
    ) -> Result<Entry> {
        self.shared
            .change(|core, now| core.make_node(now, caller, parent, name, kind, permissions, umask, rdev))
    }

    /// Makes a directory.
    pub fn make_directory(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        permissions: u16,
        umask: u16,
    ) -> Result<Entry> {
        self.shared.change(|core, now| core.make_directory(now, caller, parent, name, permissions, umask))
    }

    /// Makes a symbolic link.
    pub fn make_symlink(&self, caller: Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.shared.change(|core, now| core.make_symlink(now, caller, parent, name, target))
    }

    /// Makes and opens a file.
    pub fn create(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        permissions: u16,
        umask: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let made =
            self.shared.change(|core, now| core.create(now, caller, parent, name, permissions, umask, flags));
        self.admit_new(made?)
    }

    /// The same of a file that was just made.
    fn admit_new(&self, (entry, opened): (Entry, Opened)) -> Result<(Entry, Opened)> {
        match self.admit(opened) {
            Ok(opened) => Ok((entry, opened)),
            Err(error) => {
                self.forget(entry.attributes.ino, 1);
                Err(error)
            }
        }
    }

    /// Adds a name.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.shared.change(|core, now| core.link(now, ino, parent, name))
    }

    /// Removes a name of anything but a directory.
    pub fn unlink(&self, parent: Ino, name: &[u8], done: Done<()>) {
        self.shared.change_later(Continuation::Unit(done), Operation::Unlink { parent, name: name.into() });
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.shared.change(|core, now| core.remove_directory(now, parent, name))
    }

    /// Makes and opens a file that has no name (O_TMPFILE), see [`Core::create_unnamed`].
    pub fn create_unnamed(
        &self,
        caller: Caller,
        parent: Ino,
        permissions: u16,
        umask: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let make = |core: &mut Core, now| core.create_unnamed(now, caller, parent, permissions, umask, flags);
        self.admit_new(self.shared.change(make)?)
    }

    /// See rename(2) and renameat2(2).
    #[expect(
        clippy::too_many_arguments,
        reason = "renameat2(2) has as many, and a caller, who owns a whiteout"
    )]
    pub fn rename(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
        done: Done<()>,
    ) {
        let (name, new_name) = (name.into(), new_name.into());
        let operation = Operation::Rename { caller, parent, name, new_parent, new_name, flags };
        self.shared.change_later(Continuation::Unit(done), operation);
    }

    /// A symbolic link's target.
    pub fn read_link(&self, ino: Ino) -> Result<Box<[u8]>> {
        self.with(|core| core.read_link(ino))
    }

    /// What stat shows.
    pub fn attributes(&self, ino: Ino) -> Result<Attributes> {
        self.with(|core| core.attributes(ino))
    }

    /// Changes attributes; a change of size may wait for the device.
    pub fn set_attributes(&self, ino: Ino, changes: SetAttributes, done: Done<Attributes>) {
        self.shared.start(Continuation::Attributes(done), Operation::SetAttributes { ino, changes });
    }

    // Files.

    /// Opens a file.
    pub fn open_file(&self, caller: Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        let opened = self.shared.run(|state| -> Result<Opened> {
            if !flags.contains(OpenFlags::NO_ATIME) {
                state.core.want_reads(now(), ino);
            }
            let opened = state.core.open(ino, flags)?;
            state.core.set_client(opened.handle, caller);
            Ok(opened)
        })?;
        self.admit(opened)
    }

    /// Closes a file again for which there is no room and whose policy then wants no client. Waits for the engine's
    /// thread, not for the device.
    fn admit(&self, opened: Opened) -> Result<Opened> {
        let Some(wanted) = opened.admission else { return Ok(opened) };
        let declared = self.declared(wanted.stream);
        if declared.is_some_and(|found| found.admitted.is_some() && found.spec.rate >= wanted.rate) {
            return Ok(opened);
        }
        self.release(opened.handle);
        Err(Error::Busy)
    }

    fn declared(&self, stream: StreamId) -> Option<DeclaredStream> {
        let all = self.shared.engine.get().map_or_else(Vec::new, Engine::streams);
        all.into_iter().find(|declared| declared.stream == stream)
    }

    /// An application says how it reads or writes a file that it has open, see [`Core::declare`]; gives back what became
    /// of the stream that it is part of, `None` if there is none. Waits for the engine's thread, not for the device.
    pub fn declare(
        &self,
        caller: Caller,
        handle: HandleId,
        declaration: Declaration,
    ) -> Result<Option<StreamReport>> {
        let stream = self.shared.run(|state| state.core.declare_for(caller.uid, handle, declaration))?;
        Ok(self.declared(stream).map(|declared| self.with(|core| core.stream_report(declared))))
    }

    /// How the stream is doing that a client is part of; `None` if there is none. Waits for the engine's thread, not for
    /// the device.
    pub fn stream_status(&self, handle: HandleId) -> Result<Option<StreamReport>> {
        let stream = self.with(|core| core.stream_of_handle(handle))?;
        Ok(self.declared(stream).map(|declared| self.with(|core| core.stream_report(declared))))
    }

    /// The next read through this handle must be complete so long after now, see [`Core::set_read_deadline`].
    pub fn set_read_deadline(&self, handle: HandleId, within: Duration) -> Result<()> {
        self.shared.run(|state| state.core.set_read_deadline(now(), handle, within))
    }

    /// The handle is not used any more.
    pub fn release(&self, handle: HandleId) {
        self.shared.run(|state| {
            state.audience.forget(handle);
            state.core.release(now(), handle);
        });
    }

    /// Reads up to `length` bytes, fewer only at the end of the file.
    pub fn read(&self, handle: HandleId, offset: u64, length: usize, done: Done<ReadData>) {
        let mut state = self.shared.lock();
        let wakeup = state.core.next_wakeup();
        match state.core.read(now(), handle, offset, length) {
            Some(result) => {
                self.shared.settle(state, wakeup);
                done(result);
            }
            None => {
                let ticket = state.ticket(Continuation::Data(done));
                state.core.start(now(), ticket, Operation::Read { handle, offset, length });
                self.shared.settle(state, wakeup);
            }
        }
    }

    /// At most `count` buffers of [`HANDED_OVER_BYTES`](crate::core::HANDED_OVER_BYTES) bytes for [`write_from`](Self::write_from): no more
    /// than a sixteenth of the memory.
    pub fn request_buffers(&self, count: usize) -> Vec<Buffer> {
        self.shared.lock().core.request_buffers(count)
    }

    /// Writes. `data` is copied before this returns. `unprivileged`: who writes, if they may
    /// not leave setuid and setgid standing.
    pub fn write(
        &self,
        handle: HandleId,
        offset: u64,
        data: &[u8],
        unprivileged: Option<Caller>,
        done: Done<usize>,
    ) {
        self.write_data(handle, offset, Data::Borrowed(data), unprivileged, done);
    }

    /// Writes all of one of the [`request_buffers`](Self::request_buffers), of which there is no other handle. Gives back one for the
    /// next write: if the volume can, it keeps this one, and what it gives back is another one; else the bytes are copied.
    pub fn write_from(
        &self,
        handle: HandleId,
        offset: u64,
        buffer: Buffer,
        unprivileged: Option<Caller>,
        done: Done<usize>,
    ) -> Buffer {
        let free = self.write_data(handle, offset, Data::InBuffer(buffer), unprivileged, done);
        free.expect("a buffer comes back for each that comes")
    }

    fn write_data(
        &self,
        handle: HandleId,
        offset: u64,
        mut data: Data<'_>,
        unprivileged: Option<Caller>,
        done: Done<usize>,
    ) -> Option<Buffer> {
        let length = data.bytes().len();
        let begun =
            self.shared.run(|state| state.core.write_begin(now(), handle, offset, length, unprivileged));
        match begun {
            WriteStart::Refused(error) => done(Err(error)),
            WriteStart::Copy(mut plan) => {
                data = data.put(&mut plan);
                let mut state = self.shared.lock();
                let wakeup = state.core.next_wakeup();
                let ticket = state.ticket(Continuation::Count(done));
                let ended = state.core.write_end(now(), ticket, &mut plan);
                data = data.or_taken_back(plan);
                let own = ended.and_then(|result| {
                    state.waiting.remove(&ticket).map(|done| (done, Outcome::Count(result)))
                });
                self.shared.settle(state, wakeup);
                if let Some((done, outcome)) = own {
                    answer(done, outcome);
                }
            }
            WriteStart::Later => {
                let copy = data.bytes().to_vec();
                let operation = Operation::Write { handle, offset, data: copy, unprivileged };
                self.shared.start(Continuation::Count(done), operation);
            }
        }
        data.into_buffer()
    }

    /// Called at close(2). Accepted data is written in time without it; an error of writing is reported here.
    pub fn flush(&self, handle: HandleId, done: Done<()>) {
        done(self.with(|core| core.has_written(handle)));
    }

    /// Everything of one inode, file or directory, becomes durable.
    pub fn fsync(&self, ino: Ino, done: Done<()>) {
        self.shared.start(Continuation::Unit(done), Operation::Fsync { ino });
    }

    /// Everything of an open file becomes durable. Fails, once for each that has it open, if something of it was lost.
    pub fn fsync_file(&self, handle: HandleId, done: Done<()>) {
        self.shared.start(Continuation::Unit(done), Operation::FsyncFile { handle });
    }

    /// Everything accepted so far, of the whole volume, becomes durable.
    pub fn sync(&self, done: Done<()>) {
        self.shared.start(Continuation::Unit(done), Operation::Sync);
    }

    /// Somebody without privilege changes what a file holds, by other means than a write.
    pub fn drop_privileges(&self, ino: Ino, caller: Caller) {
        self.shared.run(|state| state.core.drop_privileges(now(), ino, caller));
    }

    /// Before a write, or a copy into the file: what the file may do by a capability of its own, it may no more, unless what is
    /// written was stored through a mapping before. `appends`: the client asked for O_APPEND, and still does.
    ///
    /// # Errors
    /// `NotPermitted` where only appending is allowed.
    pub fn before_write(&self, handle: HandleId, ino: Ino, is_mapped: bool, appends: bool) -> Result<()> {
        let mut state = self.shared.lock();
        if !appends {
            state.core.check_write_anywhere(handle)?;
        }
        if !is_mapped && state.core.has_capability(ino) {
            let wakeup = state.core.next_wakeup();
            state.core.drop_capability(now(), ino);
            self.shared.settle(state, wakeup);
        }
        Ok(())
    }

    /// What chattr(1) sets.
    pub fn flags(&self, ino: Ino) -> Result<InodeFlags> {
        self.with(|core| core.flags(ino))
    }

    /// Sets the flags of an inode, all of them.
    pub fn set_flags(&self, ino: Ino, flags: InodeFlags) -> Result<()> {
        self.shared.change(|core, now| core.set_flags(now, ino, flags))
    }

    /// See fallocate(2).
    pub fn allocate(&self, handle: HandleId, offset: u64, length: u64, mode: AllocateMode, done: Done<()>) {
        self.shared.start(Continuation::Unit(done), Operation::Allocate { handle, offset, length, mode });
    }

    /// SEEK_DATA and SEEK_HOLE.
    pub fn seek(&self, handle: HandleId, offset: u64, seek: Seek) -> Result<u64> {
        self.with(|core| core.seek(handle, offset, seek))
    }

    /// Copies the first part of a range from one file to another: of what can share its place as much as one turn does, of the rest up to
    /// 8 MiB. The caller goes on with the rest.
    pub fn copy_range(self: &Arc<Self>, copy: CopyRange, done: Done<usize>) {
        self.copy_on(copy, 0, done);
    }

    /// Goes on with a copy of which so many bytes are done.
    fn copy_on(self: &Arc<Self>, copy: CopyRange, copied: usize, done: Done<usize>) {
        let part = self.with(|core| core.copy_part(&copy));
        self.copy_part_of(copy, part, copied, done);
    }

    fn copy_part_of(
        self: &Arc<Self>,
        copy: CopyRange,
        part: Result<CopyPart>,
        copied: usize,
        done: Done<usize>,
    ) {
        let volume = Arc::clone(self);
        let is_shared = matches!(part, Ok(CopyPart::Shared(_)));
        let then: Done<usize> = Box::new(move |result| match result {
            // The source was changed meanwhile: through memory, which says 0 at its end.
            Ok(0) if is_shared => volume.copy_part_of(copy, Ok(CopyPart::Bytes(copy.length)), copied, done),
            Ok(0) => done(Ok(copied)),
            Ok(now) => {
                let (rest, copied) = (copy.behind(now as u64), copied + now);
                // A part of a block before the rest or behind it goes along.
                let goes_on = if is_shared { rest.length < BLOCK } else { (now as u64) < BLOCK };
                if goes_on && rest.length > 0 {
                    volume.copy_on(rest, copied, done);
                } else {
                    done(Ok(copied));
                }
            }
            Err(_) if copied > 0 => done(Ok(copied)),
            Err(error) => done(Err(error)),
        });
        match part {
            Ok(CopyPart::Nothing) => then(Ok(0)),
            Ok(CopyPart::Shared(_)) => {
                self.shared.start(Continuation::Count(then), Operation::Share(Sharing::new(copy)));
            }
            Ok(CopyPart::Bytes(length)) => {
                let length = length.min(avfs_io::pool::MAX_BUFFER as u64) as usize;
                let volume = Arc::clone(self);
                let write = move |read: Result<ReadData>| match read {
                    Ok(data) => volume.write(copy.to, copy.to_offset, &data.to_vec(), None, then),
                    Err(error) => then(Err(error)),
                };
                self.read(copy.from, copy.from_offset, length, Box::new(write));
            }
            Err(error) => then(Err(error)),
        }
    }

    /// What the files take that are reached by a name, or those below it if it is a directory's.
    pub fn usage(&self, ino: Ino) -> Result<UsageReport> {
        let mut usage = UsageCount::default();
        let mut directories = vec![ino];
        self.with(|core| core.count_usage(ino, &mut usage))?;
        while let Some(directory) = directories.pop() {
            let mut cookie = Some(0);
            while let Some(from) = cookie {
                // So many at a time: others come between.
                cookie =
                    self.with(|core| core.count_usage_below(directory, from, &mut directories, &mut usage));
            }
        }
        Ok(self.with(|core| core.usage(usage)))
    }

    // Directories.

    /// Calls `each` for the entries after `cookie` (0: from the start) until it returns false. With `plus` the entries
    /// carry attributes, and each accepted one except `.` and `..` counts a lookup reference.
    pub fn read_directory(
        &self,
        ino: Ino,
        cookie: u64,
        plus: bool,
        each: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<()> {
        self.shared.lock().core.read_directory(ino, cookie, plus, each)
    }

    // Extended attributes.

    /// See setxattr(2).
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.shared.change(|core, now| core.set_xattr(now, ino, name, value, flags))
    }

    /// See getxattr(2) and [`Core::get_xattr_as`].
    pub fn get_xattr(&self, caller: Caller, ino: Ino, name: &[u8]) -> Result<Box<[u8]>> {
        self.with(|core| core.get_xattr_as(caller, ino, name).map(Into::into))
    }

    /// NUL-terminated names, one after the other.
    pub fn list_xattrs(&self, caller: Caller, ino: Ino) -> Result<Vec<u8>> {
        self.with(|core| core.list_xattrs_as(caller, ino))
    }

    /// See removexattr(2).
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.shared.change(|core, now| core.remove_xattr(now, ino, name))
    }

    // The volume.

    /// The volume's name.
    pub fn label(&self) -> String {
        self.with(|core| core.label().to_owned())
    }

    /// Names the volume; `done` is called when that is durable.
    pub fn set_label(&self, label: &str, done: Done<()>) {
        match self.shared.run(|state| state.core.set_label(label)) {
            Ok(()) => self.shared.start(Continuation::Unit(done), Operation::Checkpoint),
            Err(error) => done(Err(error)),
        }
    }

    /// Takes what the device has grown by; `done` is called when that is durable, and the space can be used.
    ///
    /// # Errors
    /// `InvalidArgument` where the device is no larger than the volume; [`Error::Device`] when it does not say how large it is.
    pub fn grow(&self, done: Done<()>) {
        let Ok(size) = self.device.measure() else { return done(Err(Error::Device)) };
        if let Some(engine) = self.shared.engine.get() {
            engine.device_has_grown(size);
        }
        match self.shared.run(|state| state.core.take_grown_device(size, self.device.table_sector())) {
            Ok(()) => self.shared.start(Continuation::Unit(done), Operation::Checkpoint),
            Err(error) => done(Err(error)),
        }
    }

    /// Nothing is written any more, after what `first` wants durable is (FS_IOC_SHUTDOWN). Clients' changes fail from then on.
    pub fn stop_writing(&self, first: StopAfter, done: Done<()>) {
        let shared = Arc::clone(&self.shared);
        let stop: Done<()> = Box::new(move |result| {
            shared.run(|state| state.core.stop_writing(now()));
            done(result);
        });
        match first {
            StopAfter::Everything => self.sync(stop),
            // Of the root there is nothing but its records, and they are not alone in the log.
            StopAfter::Log => self.fsync(Ino::ROOT, stop),
            StopAfter::Nothing => stop(Ok(())),
        }
    }

    /// Figures for statfs(2).
    pub fn statistics(&self) -> VolumeStatistics {
        self.with(Core::statistics)
    }

    /// The same of an inode: where a directory above has a limit, that is the disk.
    pub fn statistics_at(&self, ino: Ino) -> VolumeStatistics {
        self.with(|core| core.statistics_at(ino))
    }

    /// All limits of directories, with what is used of them.
    pub fn limits(&self) -> Vec<LimitReport> {
        self.with(Core::limits)
    }

    /// What an inode takes, with all that lies below it, and which limits hold for it.
    ///
    /// # Errors
    /// [`Error::Stale`]: there is no such inode.
    pub fn below_report(&self, ino: Ino) -> Result<BelowReport> {
        self.with(|core| core.below_report(ino))
    }

    /// Where a file's bytes lie, and which of them are not on the device yet.
    pub fn layout(&self, ino: Ino) -> Result<LayoutReport> {
        self.with(|core| core.layout(ino))
    }

    /// How free space is cut. All of the volume is looked through, a little at a time, while others change it.
    pub fn free_space(&self) -> FreeSpaceReport {
        let mut runs = FreeRuns::default();
        let mut unit = 0;
        while self.with(|core| core.free_runs(unit, UNITS_AT_ONCE, &mut runs)) {
            unit += UNITS_AT_ONCE;
        }
        runs.report(self.report().device_bytes)
    }

    /// Figures for an administrator.
    pub fn report(&self) -> VolumeReport {
        self.with(Core::report)
    }

    /// For how long the lock that all clients share was held at most since the last call.
    pub fn longest_hold(&self) -> Duration {
        Duration::from_nanos(self.shared.longest_hold.swap(0, Ordering::Relaxed))
    }

    /// What the device was given to do since mount, by kind; kinds of which there was none are left out.
    pub fn commands(&self) -> Vec<CommandReport> {
        let tally = self.shared.engine.get().map(|engine| engine.statistics().tally).unwrap_or_default();
        CommandReport::of(&tally)
    }

    /// What holds for a file or directory, and who says so; see [`Operation::Explain`]. Waits for the device.
    pub fn explain_policy(&self, ino: Ino) -> Result<PolicyReport> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let done = Box::new(move |result| {
            let _ = sender.send(result);
        });
        self.shared.start(Continuation::Policy(done), Operation::Explain { ino, probing: None });
        receiver.recv().unwrap_or(Err(Error::Device))
    }

    /// The streams that open files are.
    pub fn streams(&self) -> Vec<StreamReport> {
        let declared = self.shared.engine.get().map_or_else(Vec::new, Engine::streams);
        self.with(|core| declared.into_iter().map(|declared| core.stream_report(declared)).collect())
    }

    /// Who plays what, how the device is, and how many more players at each of these rates there is room for, or else at those that are
    /// played. Waits for the engine's thread, not for the device.
    pub fn streams_report(&self, rates: &[Bitrate]) -> StreamsReport {
        let engine = self.shared.engine.get();
        let declared = engine.map_or_else(Vec::new, Engine::streams);
        let statistics = engine.map(Engine::statistics).unwrap_or_default();
        let now = now();
        let streams: Vec<StreamDetail> = self
            .with(|core| declared.into_iter().map(|declared| core.stream_detail(now, declared)).collect());
        let mut rates = rates.to_vec();
        if rates.is_empty() {
            rates.extend(streams.iter().filter(|stream| !stream.stream.writes).map(|stream| {
                let clients = stream.clients.len().max(1) as u64;
                Bitrate(stream.stream.bits_per_second / clients)
            }));
            rates.retain(|rate| rate.0 > 0);
            rates.sort_unstable();
            rates.dedup();
        }
        rates.truncate(MOST_RATES);
        let room = engine.and_then(Engine::copy_of_scheduler).map_or_else(Vec::new, |scheduler| {
            let room = |rate: &Bitrate| {
                let spec = StreamSpec::reader(*rate);
                let more = scheduler.clone().room_for(engine::now(), &spec, MOST_MORE);
                Room { bits_per_second: rate.0, more, or_more: more == MOST_MORE }
            };
            rates.iter().map(room).collect()
        });
        StreamsReport {
            version: events::VERSION,
            at_milliseconds: audience::milliseconds(now.wall),
            clock_microseconds: audience::clock(now.monotonic),
            streams,
            device: DeviceWork {
                busy_microseconds: events::microseconds(statistics.busy),
                reckoned_microseconds: events::microseconds(statistics.reckoned),
                commands: statistics.commands,
                read_bytes: statistics.read.0,
                written_bytes: statistics.written.0,
                queued: statistics.queued as u64,
                in_flight: statistics.in_flight,
                promised_permille: statistics.promised_permille,
            },
            room,
        }
    }

    /// Begins a recording of what the engine is asked and does, or gives what was recorded from that number on, with what the streams in it are
    /// called. `None`: the recording has ended, because no recorder asked for long. Waits for the engine's thread, not for the device.
    pub fn trace(&self, since: Option<u64>) -> Option<(Part, BTreeMap<u64, String>)> {
        let part = self.shared.engine.get()?.trace(since)?;
        let begun = part.begin.iter().flat_map(|begin| begin.streams.iter().map(|stream| stream.stream));
        let asked = part.begin.iter().flat_map(|begin| begin.waiting.iter().filter_map(|asked| asked.stream));
        let declared = part.records.iter().filter_map(|record| record.what.stream());
        let streams: BTreeSet<u64> = begun.chain(asked).chain(declared).collect();
        let name = |core: &Core, stream: u64| Some((stream, core.shown_stream(StreamId(stream)).0?));
        let names = self.with(|core| streams.into_iter().filter_map(|stream| name(core, stream)).collect());
        Some((part, names))
    }

    /// What has happened to those who play since the last call: what is not over yet comes with a later one, or now if `all` is wanted.
    pub fn happened(&self, all: bool) -> Vec<EventReport> {
        let mut state = self.shared.lock();
        let State { core, audience, .. } = &mut *state;
        audience.take(core, now(), all)
    }

    /// How long the device is reckoned to take; `None` when the engine stops.
    pub fn device_report(&self) -> Option<DeviceReport> {
        let now = self.shared.engine.get()?.service_times()?;
        Some(report(&self.scheduler_start, self.device_config, now))
    }

    /// Another configuration holds from now on, as far as [`Config::changes`] calls it live; for the rest `config` must say what it
    /// said before. What it says of streams holds for open files, too. Waits for the engine's thread, not for the device.
    ///
    /// # Errors
    /// One line that says what streams are promised and would not have; nothing has changed then.
    pub fn reconfigure(&self, config: &Config) -> core::result::Result<(), String> {
        let mut held = self.config.lock();
        self.reconfigure_scheduler(config, self.tender.pool().capacity())?;
        self.tender.set_keep(config.cache.keep);
        *held = config.clone();
        let files = self.shared.run(|state| state.core.reconfigure(config.clone()));
        for files in files.chunks(FILES_AT_ONCE) {
            self.shared.run(|state| files.iter().for_each(|&ino| state.core.learn_policy_again(ino)));
        }
        Ok(())
    }

    fn reconfigure_scheduler(&self, config: &Config, memory: Bytes) -> core::result::Result<(), String> {
        let Some(engine) = self.shared.engine.get() else { return Ok(()) };
        let scheduler =
            scheduler_config(config, self.device.geometry().rotational, self.device.size(), memory);
        engine.reconfigure(scheduler).map_err(|promised| {
            let needed = Bytes(promised.0 * 2);
            format!(
                "streams that play are promised {promised} of memory, for which a cache of {needed} is needed"
            )
        })
    }

    /// The cache may take so much memory from now on, in whole 8 MiB. What is used beyond is given up as soon as it is written and no player
    /// comes to it.
    ///
    /// # Errors
    /// One line: streams are promised more, or this volume's cache cannot be so large before it is mounted anew.
    pub fn set_cache_size(&self, size: Bytes) -> core::result::Result<(), String> {
        let pool = self.tender.pool();
        let most = pool.largest_capacity();
        if size < SMALLEST_CACHE || size > most {
            return Err(format!(
                "{size} is outside of {SMALLEST_CACHE} to {most}, all that this machine had when it was mounted"
            ));
        }
        let config = self.config.lock();
        self.reconfigure_scheduler(&config, size)?;
        pool.set_capacity(size);
        self.shared.run(|state| state.core.resize_memory(size));
        pool.wake();
        Ok(())
    }

    /// Turns changes off, after everything accepted has become durable, or on again.
    ///
    /// # Errors
    /// [`Error::Device`] after a device error; to turn them on also [`Error::ReadOnly`] where the device cannot be written, and
    /// [`Error::UsedElsewhere`]: meanwhile nobody held the volume, and another host may have mounted and changed it.
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        if !read_only {
            if self.is_only_read || self.behind.is_some() {
                return Err(Error::ReadOnly);
            }
            if !self.is_held() {
                self.take_again()?;
            }
            self.forbid_trims(false);
            return self.shared.run(|state| state.core.set_dormant(now(), false));
        }
        if self.is_held() {
            self.forbid_trims(true);
            self.shared.run(|state| state.core.refuse_changes());
            self.wait_for(Operation::Shutdown)?;
            self.shared.run(|state| state.core.set_dormant(now(), true))?;
            self.let_go()?;
            // Only read from now on.
            self.gate.permit(Instant::FAR_FUTURE);
        }
        Ok(())
    }

    /// Tells the device that free space is of no interest (fstrim(8)): what lies in `bytes` of the device, in runs of at least `shortest`,
    /// a unit at a time, each when the device has nothing better to do. `done` hears how many bytes it was.
    pub fn trim(&self, bytes: Range<u64>, shortest: Bytes, done: Done<u64>) {
        {
            let mut trims = self.trims.lock();
            if std::mem::replace(&mut trims.is_running, true) {
                drop(trims);
                return done(Err(Error::Busy));
            }
        }
        let (shared, device) = (Arc::clone(&self.shared), Arc::clone(&self.device));
        let (gate, trims) = (Arc::clone(&self.gate), Arc::clone(&self.trims));
        let run = move || {
            let result = shared.trim(&device, &gate, &trims, bytes, shortest);
            trims.lock().is_running = false;
            done(result);
        };
        if let Err(error) = std::thread::Builder::new().name("avfs-trim".into()).spawn(run) {
            tracing::warn!(%error, "free space is not discarded");
            self.trims.lock().is_running = false;
        }
    }

    /// Nothing is discarded from now on, or it may be again. Waits for the discard that is at the device.
    fn forbid_trims(&self, forbidden: bool) {
        self.trims.lock().is_forbidden = forbidden;
    }

    /// Whether an error of the device has ended all writing, and there is still something to read.
    pub fn has_failed(&self) -> bool {
        let has_ended = self.with(|core| core.failure().is_some()) || self.refusal().is_some();
        has_ended && !self.is_lost()
    }

    /// Whether this mount has the volume, to write to it.
    fn is_held(&self) -> bool {
        self.with(|core| core.resting_on()).is_none()
    }

    /// Gives the volume back.
    fn let_go(&self) -> Result<()> {
        match self.holding.lock().take().map_or(Ok(Ok(())), Holding::release) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Error::Device),
        }
    }

    /// Takes the volume, if what rests here is still what the device has.
    fn take_again(&self) -> Result<()> {
        let watch = protection::watch(&*self.device, self.uuid).after(self.found.clone());
        self.check_unchanged(watch.clone())?;
        let taken = protection::take(&*self.device, watch.clone(), &Machine).map_err(|_| Error::Device)?;
        let lease = taken.map_err(|_| Error::UsedElsewhere)?;
        let shared = Arc::downgrade(&self.shared);
        let lost = move |over: &Over| {
            if let Some(shared) = shared.upgrade() {
                shared.lose(over);
            }
        };
        let holding = Holding::keep(Arc::clone(&self.device), lease, Arc::clone(&self.gate), lost)
            .map_err(|_| Error::OutOfMemory)?;
        *self.holding.lock() = Some(holding);
        // Another may have had it for a moment before it was taken.
        self.check_superblock().inspect_err(|_| {
            let _ = self.let_go();
            self.gate.permit(Instant::FAR_FUTURE);
        })
    }

    /// Looks once: what has to be watched first is another's.
    fn check_unchanged(&self, mut watch: Watch) -> Result<()> {
        let began = engine::now();
        let found = protection::read(&*self.device).map_err(|_| Error::Device)?;
        match watch.saw(began, engine::now(), found.as_ref()) {
            Verdict::Free => self.check_superblock(),
            Verdict::Wait(_) | Verdict::InUse(_) => Err(Error::UsedElsewhere),
        }
    }

    fn check_superblock(&self) -> Result<()> {
        let newest = find_superblock(&*self.device).map_err(|_| Error::Device)?;
        let generation = self.with(|core| core.resting_on());
        let is_unchanged = newest.uuid == self.uuid && Some(newest.generation) == generation;
        if is_unchanged { Ok(()) } else { Err(Error::UsedElsewhere) }
    }

    /// Whether another has the volume, so that nothing that is known of it is true any more.
    pub fn is_lost(&self) -> bool {
        self.shared.is_lost.load(Ordering::Acquire)
    }

    /// When reading changes times of access, from now on.
    pub fn set_access_times(&self, access_times: AccessTimes) {
        self.shared.run(|state| state.core.set_access_times(access_times));
    }

    /// Writes everything, checkpoints, marks the volume as not in use and stops the engine. It is done once: a later call waits for
    /// that, and says how it went. From then on changes are refused, and what needs the device fails.
    ///
    /// # Errors
    /// [`Error::Device`] when not everything could be written.
    pub fn shutdown(&self) -> Result<()> {
        *self.ended.get_or_init(|| self.end())
    }

    fn end(&self) -> Result<()> {
        self.forbid_trims(true);
        self.shared.run(|state| state.core.refuse_changes());
        let result = self.wait_for(Operation::Shutdown);
        self.shared.lock().stopping = true;
        self.shared.timer.notify_all();
        if let Some(timer) = self.timer_thread.lock().take() {
            let _ = timer.join();
        }
        self.tender.end();
        if let Some(engine) = self.shared.engine.get() {
            engine.shutdown();
        }
        if result.is_ok() {
            return self.let_go();
        }
        // Not given back: what it holds is to be recovered. The lease runs out.
        drop(self.holding.lock().take());
        result
    }

    fn wait_for(&self, operation: Operation) -> Result<()> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let done = Box::new(move |result| {
            let _ = sender.send(result);
        });
        self.shared.start(Continuation::Unit(done), operation);
        receiver.recv().unwrap_or(Err(Error::Device))
    }
}

#[cfg(test)]
mod ended;
mod memory;
#[cfg(test)]
pub(crate) mod trims;
