//! The state machine of a mounted volume.
//!
//! **For:** every decision about a mounted volume. **Excludes:** threads, clocks, waiting, and the copying of clients'
//! bytes. **State:** [`Core`] owns all of it; `Volume` and the simulation each own one. **Invariants:** a method never
//! waits: what needs the device is kept as an [`Operation`] under its ticket and finished through the outbox, exactly
//! once. Facts change only by transactions (`transact`). Nothing is replied that says "durable" before it is.

mod audit;
mod cache;
mod checkpoint;
mod commit;
mod data;
mod expectation;
mod file;
mod frames;
mod holdings;
mod in_flight;
mod names;
mod places;
mod players;
mod policies;
mod probing;
mod reads;
mod refused;
mod replacing;
mod reservation;
mod streams;
mod trim;
mod writeback;
mod writes;

use crate::allocator::{Allocator, BlockRun};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::format::{BLOCK, Geometry, MAX_LABEL, Superblock, UNIT};
use crate::journal::Journal;
use crate::metadata::Metadata;
use crate::ranges::RangeSet;
use crate::record::Record;
use crate::steps::{self, Step, has};
use crate::types::*;
use avfs_io::pool::{Buffer, MAX_BUFFER, MIN_BUFFER, Pool};
use avfs_io::{Accepted, Completion, Evidence, IoOperation, IoRequest, IoTag, Promotion, Segment};
use avfs_streams::Advice;
use avfs_streams::sequence::Sequences;
use avfs_streams::writers::Writers;
use cache::{BlockId, BlockMemory, Cache, CacheBlock};
use checkpoint::Checkpoints;
use commit::Commit;
use expectation::Expectation;
use file::{FileState, RestingFile, Touched};
use frames::{Frames, Share};
use hashbrown::HashMap;
use in_flight::InFlight;
use refused::Refused;
use replacing::Replacements;
use rtsched::{Class, StreamId, StreamSpec};
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use units::{DeviceOffset, Ino, Instant, Now};

pub use holdings::Holding;
pub(crate) use names::MAX_XATTR_BYTES;
pub use policies::Informant;
pub use probing::Probing;
use writes::Throttled;
pub use writes::{HANDED_OVER_BYTES, WritePlan, WriteStart};

/// Names an operation that may have to wait. Chosen by the caller, unique among those outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// How an operation ended.
#[derive(Debug)]
pub enum Outcome {
    /// Of a read.
    Data(Result<ReadData>),
    /// Of a write: bytes accepted.
    Count(Result<usize>),
    /// Of what has nothing to tell.
    Done(Result<()>),
    /// Of a change of attributes.
    Attributes(Result<Attributes>),
    /// Of an explanation.
    Policy(Result<PolicyReport>),
}

/// An operation that may have to wait for the device.
#[derive(Debug)]
pub enum Operation {
    /// See [`Core::read`].
    Read {
        /// Open file.
        handle: HandleId,
        /// First byte.
        offset: u64,
        /// Bytes asked for.
        length: usize,
    },
    /// A write whose bytes were copied aside because it cannot go on yet.
    Write {
        /// Open file.
        handle: HandleId,
        /// First byte; ignored by handles that append.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
        /// Who writes, if they may not leave setuid and setgid standing.
        unprivileged: Option<Caller>,
    },
    /// Everything of one inode becomes durable.
    Fsync {
        /// Which.
        ino: Ino,
    },
    /// Everything of an open file becomes durable. Fails if something of it was lost since it was opened so, or since the last such
    /// failure.
    FsyncFile {
        /// Open file.
        handle: HandleId,
    },
    /// Everything of the volume becomes durable.
    Sync,
    /// See [`SetAttributes`].
    SetAttributes {
        /// Which.
        ino: Ino,
        /// What.
        changes: SetAttributes,
    },
    /// See [`AllocateMode`].
    Allocate {
        /// Open file.
        handle: HandleId,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// What to do.
        mode: AllocateMode,
    },
    /// See [`Core::rename`].
    Rename {
        /// Who asks; a whiteout is theirs.
        caller: Caller,
        /// Where the name stands.
        parent: Ino,
        /// Which.
        name: Box<[u8]>,
        /// Where it goes.
        new_parent: Ino,
        /// What it becomes.
        new_name: Box<[u8]>,
        /// How.
        flags: RenameFlags,
    },
    /// See [`Core::unlink`].
    Unlink {
        /// Where the name stands.
        parent: Ino,
        /// Which.
        name: Box<[u8]>,
    },
    /// Everything durable, a checkpoint written, nothing left to replay.
    Shutdown,
    /// A superblock is written that says what holds now.
    Checkpoint,
    /// The core asks a file itself how fast it plays.
    Probe(Box<Probing>),
    /// What holds for a file or directory, and who says so. A file whose rate nobody says is asked itself first, as it is when
    /// somebody plays it; what it says is known to nobody else.
    Explain {
        /// Which.
        ino: Ino,
        /// The core's own; `None`.
        probing: Option<Box<Probing>>,
    },
}

/// Where a waiting operation stands.
#[derive(Debug)]
enum Stage {
    /// To be tried (again).
    Try,
    /// The epochs of dirty files are ended, of those up to `next` already.
    Epochs { next: Ino, closed: BTreeMap<Ino, u64> },
    /// Data of these files up to these epochs must reach the device.
    Data { epochs: BTreeMap<Ino, u64> },
    /// Waits for the journal.
    Journal,
    /// Waits for a checkpoint that began after it.
    Checkpoint { begun: u64 },
}

#[derive(Debug)]
struct Waiting {
    operation: Operation,
    stage: Stage,
    /// For a write that must be durable: what to answer in the end.
    count: Option<usize>,
    /// Counted in `FileState::exclusive` of this file.
    exclusive: Option<Ino>,
}

enum Progress<T> {
    Ready(Result<T>),
    /// Parked; something will try it again.
    Wait,
}

/// Requests that nobody wants any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancellation {
    /// This one.
    Request(IoTag),
    /// All of a stream: who plays it is elsewhere.
    Stream(StreamId),
}

/// What the core wants done, in order of time.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Requests for the device.
    pub requests: Vec<IoRequest>,
    /// What was accepted without a promise since the last outbox that had something to do, before [`streams`](Self::streams).
    pub accepted: Accepted,
    /// Streams that began, changed or ended, in this order, and how well it is known that they are streams.
    pub streams: Vec<(StreamId, Option<(StreamSpec, Evidence)>)>,
    /// What becomes of requests that were handed over before, before [`requests`](Self::requests) are.
    pub promotions: Vec<Promotion>,
    /// What nobody wants any more.
    pub cancellations: Vec<Cancellation>,
    /// Operations that ended.
    pub finished: Vec<(Ticket, Outcome)>,
}

impl Outbox {
    /// True when there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
            && self.streams.is_empty()
            && self.promotions.is_empty()
            && self.cancellations.is_empty()
            && self.finished.is_empty()
    }

    /// Somebody now waits for a request, handed over already or not.
    fn promote(&mut self, promotion: Promotion) {
        // Tags ascend in the order in which requests are made.
        match self.requests.binary_search_by_key(&promotion.tag, |request| request.tag) {
            Ok(index) => self.requests[index].promote(promotion),
            Err(_) => self.promotions.push(promotion),
        }
    }
}

/// What a completed request was for.
#[derive(Debug)]
enum Purpose {
    Load {
        ino: Ino,
        block: BlockId,
        start: u64,
        length: u64,
        bounce: Option<Buffer>,
    },
    Data {
        ino: Ino,
        block: BlockId,
        epoch: u64,
        pieces: SmallVec<[writeback::WrittenPiece; 1]>,
    },
    FlushData {
        data: u64,
    },
    Log,
    Shard {
        bytes: u64,
    },
    CheckpointFlush,
    Superblock,
    /// See [`Core::begin_trim`].
    Turn {
        ticket: Ticket,
    },
}

#[derive(Debug)]
struct Handle {
    ino: Ino,
    flags: OpenFlags,
    /// Counted in `FileState::through_pages`.
    through_pages: bool,
    opener: Opener,
    /// By when the next read must be complete, if its client said.
    read_deadline: Option<Instant>,
    /// What its reads and writes look like; none while there were none.
    player: Option<Box<players::Player>>,
    /// What it has taken of the file or given, until that is enough to say that it takes all.
    taken: Option<Share>,
    /// See [`FileState::lost`], when it was told last.
    lost_seen: u64,
}

/// How a volume is run.
#[derive(Clone, Debug, Default)]
pub struct CoreOptions {
    /// Refuse every change.
    pub read_only: bool,
    /// When reading changes times of access.
    pub access_times: AccessTimes,
    /// Rates, latencies, intervals.
    pub config: Config,
    /// Whether clients are told apart.
    pub advice: Advice,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Core {
    options: CoreOptions,
    superblock: Superblock,
    metadata: Metadata,
    allocator: Allocator,
    journal: Journal,
    cache: Cache,
    pool: Pool,
    /// Files that are used.
    files: HashMap<Ino, Box<FileState>>,
    /// Files that are not, as far as they are in memory; none is in `files` too.
    resting: HashMap<Ino, RestingFile>,
    /// Files with dirty blocks or unrecorded times, in an order that does not depend on hashing.
    dirty_files: BTreeSet<Ino>,
    lookups: HashMap<Ino, u64>,
    handles: HashMap<u64, Handle>,
    next_handle: u64,
    writers: Writers,
    sequences: Sequences<Frames>,
    /// Streams that were declared, and of which the scheduler has not said yet what they are promised.
    undecided: BTreeSet<StreamId>,
    /// When somebody will have stopped playing one of them.
    next_stop: Instant,
    /// When somebody who begins to play one will have asked for what he begins with.
    next_ahead: Instant,
    waiting: BTreeMap<Ticket, Waiting>,
    /// Operations to try again when memory becomes free, oldest first.
    buffer_waiters: VecDeque<Ticket>,
    /// Operations to try again when freed space is durable.
    space_waiters: Vec<Ticket>,
    /// Oldest first.
    throttled: VecDeque<Throttled>,
    in_flight: InFlight,
    /// What is left of this turn's [`STEPS`].
    steps: u32,
    /// Something is to go on in the next turn.
    is_unfinished: bool,
    /// See [`clear_interrupted`](Self::clear_interrupted).
    interrupted: Vec<Record>,
    /// Operations that go on in the next turn.
    turns: Vec<Ticket>,
    /// Files that may have reserved space.
    reserving: BTreeSet<Ino>,
    /// How far [`write_aged`](Self::write_aged) has come, if it is under way, and when it is to begin anew.
    aging: Option<writeback::Aging>,
    next_tag: u64,
    outbox: Outbox,
    /// See [`Outbox::accepted`].
    accepted: Accepted,
    commit: Commit,
    replacements: Replacements,
    refused: Refused,
    checkpoints: Checkpoints,
    /// Space that is free as soon as the record that freed it is durable.
    freed: VecDeque<(u64, BlockRun)>,
    /// Space that is free as soon as the device does not read or write there any more, by its first block.
    busy: BTreeMap<u64, BlockRun>,
    /// Blocks in both.
    freed_blocks: u64,
    /// How often operations that wait for space have been told to try again.
    space_turn: u64,
    /// A name was refused for want of space since [`await_space`](Self::await_space) was asked last.
    lacks_space: bool,
    /// Names wait for the next turn.
    has_space_awaited: bool,
    /// Bytes of file data on their way to the device.
    writing_bytes: u64,
    /// Requests that carry file data to the device, or complete pages for it.
    writeback_requests: usize,
    /// Inodes without a name that could not be removed yet because the device was busy with them.
    unreaped: BTreeSet<Ino>,
    /// Inodes that were made without a name, and have had none yet.
    unnamed: BTreeSet<Ino>,
    /// Clients' changes are refused.
    read_only: bool,
    /// Nothing is written to the device, neither for clients nor for the volume itself.
    dormant: bool,
    failure: Option<String>,
    /// Another has the volume: it is not only read, there is nothing to be told of it.
    is_lost: bool,
    next_aging: Instant,
}

/// What is done in one turn, while all other clients wait: so many files, blocks, runs of space or clients are looked at, a few
/// microseconds each. An operator's target: no client waits for 5 ms because of another's turn.
const STEPS: u32 = 256;
/// What a client has begun is done at once up to here, so that what is small needs no turn of its own.
const LEAST_STEPS: u32 = 16;

/// Memory that file data may not take: the log, checkpoints and superblocks need some when everything is dirty.
const SYSTEM_RESERVE: u64 = 16 << 20;
/// A piece of memory may cost the eviction of so many times its size.
const SCATTERED_LIMIT: usize = 4;

impl Core {
    /// A volume from what recovery read. `journal` goes on where replay ended.
    pub fn new(
        superblock: Superblock,
        metadata: Metadata,
        mut allocator: Allocator,
        journal: Journal,
        pool: Pool,
        options: CoreOptions,
        now: Now,
    ) -> Self {
        let checkpoints = Checkpoints::new(&superblock, &metadata, &mut allocator, now.monotonic);
        let commit = Commit::new(metadata.lsn());
        let mut core = Self {
            read_only: options.read_only,
            dormant: options.read_only,
            options,
            superblock,
            metadata,
            allocator,
            journal,
            cache: Cache::new(pool.clone()),
            pool,
            files: HashMap::new(),
            resting: HashMap::new(),
            dirty_files: BTreeSet::new(),
            lookups: HashMap::new(),
            handles: HashMap::new(),
            next_handle: 1,
            writers: Writers::default(),
            sequences: Sequences::default(),
            undecided: BTreeSet::new(),
            next_stop: Instant::FAR_FUTURE,
            next_ahead: Instant::FAR_FUTURE,
            waiting: BTreeMap::new(),
            buffer_waiters: VecDeque::new(),
            space_waiters: Vec::new(),
            throttled: VecDeque::new(),
            in_flight: InFlight::default(),
            steps: STEPS,
            is_unfinished: false,
            interrupted: Vec::new(),
            turns: Vec::new(),
            reserving: BTreeSet::new(),
            aging: None,
            next_tag: 1,
            outbox: Outbox::default(),
            accepted: Accepted::default(),
            commit,
            replacements: Replacements::default(),
            refused: Refused::default(),
            checkpoints,
            freed: VecDeque::new(),
            busy: BTreeMap::new(),
            freed_blocks: 0,
            space_turn: 0,
            lacks_space: false,
            has_space_awaited: false,
            writing_bytes: 0,
            writeback_requests: 0,
            unreaped: BTreeSet::new(),
            unnamed: BTreeSet::new(),
            failure: None,
            is_lost: false,
            next_aging: Instant::FAR_FUTURE,
        };
        core.report_policy_mistakes();
        core.find_interrupted();
        if !core.dormant {
            core.keep_spares();
            core.clear_interrupted(now);
            core.start_checkpoint(now);
        }
        core
    }

    /// Clears away what a loss of power left behind: inodes without a name, and bytes behind the end of a file that
    /// reached the device before the length that was to include them. If the file grew over those they would be back.
    fn clear_interrupted(&mut self, now: Now) {
        let mut records = std::mem::take(&mut self.interrupted);
        let orphans: Vec<Ino> = self.metadata.orphans().iter().copied().collect();
        for ino in orphans {
            self.reap(now, ino);
        }
        // Of inodes that are gone nothing is left.
        records.retain(|record| self.metadata.get(record.ino()).is_some());
        for records in records.chunks(data::TRANSACTION_RECORDS) {
            let _ = self.transact(now, records);
        }
    }

    /// Looked for once, before anybody is served: it looks at every inode.
    fn find_interrupted(&mut self) {
        if !has(Step::BehindTheEndIsCleared) {
            return;
        }
        for (ino, inode) in self.metadata.iter() {
            let pages = inode.size.div_ceil(BLOCK);
            let extents = inode.extents().into_iter().flat_map(|extents| extents.range(pages, u64::MAX));
            let written = extents.filter(|extent| !extent.unwritten);
            self.interrupted.extend(
                written.map(|extent| Record::Map { ino, extent: Extent { unwritten: true, ..extent } }),
            );
        }
    }

    /// Nothing is wished for from now on, and everything is best effort. To be called before anything is open.
    pub fn without_streams(&mut self) {
        self.options.advice = Advice::NullStreams;
    }

    /// Nothing is known of clients, and nothing wished for them.
    fn is_unadvised(&self) -> bool {
        self.options.advice == Advice::NullStreams
    }

    /// What is to be done now; the outbox is empty afterwards.
    pub fn take_outbox(&mut self) -> Outbox {
        self.steps = STEPS;
        let mut outbox = std::mem::take(&mut self.outbox);
        // It wakes nobody: it counts when a stream is declared, and what is written within seconds carries it before.
        if !outbox.is_empty() {
            outbox.accepted = std::mem::take(&mut self.accepted);
        }
        outbox.cancellations.retain(|cancellation| match cancellation {
            // What one client gave up another one, or the same one elsewhere, may have come to want since.
            Cancellation::Request(tag) => self.is_unwanted(*tag),
            Cancellation::Stream(_) => true,
        });
        outbox
    }

    /// Begins an operation. It ends in the outbox, perhaps at once.
    pub fn start(&mut self, now: Now, ticket: Ticket, operation: Operation) {
        let read = match operation {
            Operation::Read { handle, offset, length } => Some((handle, offset, length)),
            _ => None,
        };
        let explained = match operation {
            Operation::Explain { ino, .. } => Some(ino),
            _ => None,
        };
        let next = read.and_then(|(handle, offset, length)| self.notice_request(now, handle, offset, length));
        let waiting = Waiting { operation, stage: Stage::Try, count: None, exclusive: None };
        self.attempt(now, ticket, waiting);
        // Behind what it waits for itself, so that what is read ahead continues it on the device.
        if let Some((handle, ..)) = read
            && let Ok((ino, _)) = self.handle(handle)
        {
            self.read_ahead(now, ino, handle);
        }
        if let Some(sequence) = next {
            self.read_sequence_ahead(now, sequence);
        }
        // Perhaps nobody else uses it.
        explained.into_iter().for_each(|ino| self.rest(ino));
        self.pump(now);
    }

    /// Takes an operation as far as it goes.
    fn attempt(&mut self, now: Now, ticket: Ticket, mut waiting: Waiting) {
        let was_exclusive = waiting.exclusive.take();
        if let Some(file) = was_exclusive.and_then(|ino| self.files.get_mut(&ino)) {
            file.exclusive -= 1;
        }
        let outcome = match &mut waiting.operation {
            Operation::Read { handle, offset, length } => {
                let (handle, offset, length) = (*handle, *offset, *length);
                match self.try_read(now, ticket, handle, offset, length) {
                    Progress::Ready(result) => Some(Outcome::Data(result)),
                    Progress::Wait => None,
                }
            }
            Operation::Probe(probing) => match self.try_probe(ticket, probing) {
                Progress::Ready(result) => Some(Outcome::Done(result)),
                Progress::Wait => None,
            },
            Operation::Explain { ino, probing } => match self.try_explain(ticket, *ino, probing) {
                Progress::Ready(result) => Some(Outcome::Policy(result)),
                Progress::Wait => None,
            },
            Operation::Write { .. } => return self.attempt_write(now, ticket, waiting),
            Operation::Fsync { .. }
            | Operation::FsyncFile { .. }
            | Operation::Sync
            | Operation::Checkpoint
            | Operation::Shutdown => {
                return self.attempt_sync(now, ticket, waiting);
            }
            Operation::Rename { .. } | Operation::Unlink { .. } => {
                self.try_change_of_names(now, ticket, &mut waiting).map(Outcome::Done)
            }
            Operation::SetAttributes { ino, changes } => {
                let (ino, changes) = (*ino, *changes);
                match self.try_set_attributes(now, ticket, ino, changes) {
                    Progress::Ready(result) => Some(Outcome::Attributes(result)),
                    Progress::Wait => {
                        waiting.exclusive = self.count_exclusive(ino, ticket);
                        None
                    }
                }
            }
            Operation::Allocate { handle, offset, length, mode } => {
                let (handle, offset, length, mode) = (*handle, *offset, *length, *mode);
                match self.try_allocate(now, ticket, handle, offset, length, mode) {
                    Progress::Ready(result) => Some(Outcome::Done(result)),
                    Progress::Wait => {
                        let ino = self.handles.get(&handle.0).map(|handle| handle.ino);
                        waiting.exclusive = ino.and_then(|ino| self.count_exclusive(ino, ticket));
                        None
                    }
                }
            }
        };
        let is_exclusive = waiting.exclusive.is_some();
        match outcome {
            Some(_) if matches!(waiting.operation, Operation::Probe(_)) => {}
            Some(outcome) => self.outbox.finished.push((ticket, outcome)),
            None => {
                self.waiting.insert(ticket, waiting);
            }
        }
        if let Some(ino) = was_exclusive.filter(|_| !is_exclusive) {
            // What was held back while the file had to be quiet goes on.
            self.wake_file(now, ino);
        }
    }

    /// Holds back new requests of a file for an operation that waits for the file to be quiet.
    fn count_exclusive(&mut self, ino: Ino, ticket: Ticket) -> Option<Ino> {
        let file = self.files.get_mut(&ino).filter(|file| file.waiting.contains(&ticket))?;
        file.exclusive += 1;
        Some(ino)
    }

    /// Tries a parked operation again.
    fn retry(&mut self, now: Now, ticket: Ticket) {
        if let Some(waiting) = self.waiting.remove(&ticket) {
            self.attempt(now, ticket, waiting);
        }
    }

    /// Tries again what waits for requests of this file to end.
    fn wake_file(&mut self, now: Now, ino: Ino) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        for ticket in std::mem::take(&mut file.waiting) {
            self.retry(now, ticket);
        }
        self.begin_to_play(now, ino);
        if self.unreaped.contains(&ino) {
            self.reap(now, ino);
        }
        self.rest(ino);
    }

    fn wait_for_file(&mut self, ino: Ino, ticket: Ticket) {
        self.file_mut(ino).waiting.push(ticket);
    }

    /// The device finished a request.
    pub fn io_completed(&mut self, now: Now, completion: Completion) {
        let Some((purpose, run)) = self.in_flight.remove(completion.tag) else { return };
        let result = completion.result;
        match purpose {
            Purpose::Load { ino, block, start, length, bounce } => {
                self.writeback_requests -= usize::from(bounce.is_some());
                self.load_completed(now, ino, block, start, length, bounce, result);
                self.write_after_load(now, ino, block);
                self.wake_file(now, ino);
            }
            Purpose::Data { ino, block, epoch, pieces } => {
                self.writeback_requests -= 1;
                self.data_written(now, ino, block, epoch, pieces, result);
                self.wake_file(now, ino);
                if self.is_overfull(false) && !self.throttled.is_empty() {
                    self.write_back_for_memory(now);
                }
            }
            Purpose::FlushData { data } => self.data_flushed(now, data, result),
            Purpose::Log => self.log_written(now, result),
            Purpose::Shard { bytes } => self.checkpoint_io_completed(bytes, result),
            Purpose::Turn { ticket } => {
                let outcome = Outcome::Done(result.map_err(|_| Error::Device));
                self.outbox.finished.push((ticket, outcome));
            }
            Purpose::CheckpointFlush | Purpose::Superblock => self.checkpoint_io_completed(0, result),
        }
        run.into_iter().for_each(|run| self.release_busy(now, run));
        self.wake_for_buffers(now);
        self.pump(now);
    }

    fn wake_for_buffers(&mut self, now: Now) {
        // Each gets one chance; those that still find no memory queue up again behind.
        for _ in 0..self.buffer_waiters.len() {
            let Some(ticket) = self.buffer_waiters.pop_front() else { break };
            self.retry(now, ticket);
            if self.buffer_waiters.back() == Some(&ticket) {
                break;
            }
        }
    }

    /// Does what time has made due.
    pub fn tick(&mut self, now: Now) {
        self.steps = STEPS;
        if std::mem::take(&mut self.is_unfinished) {
            self.go_on(now);
        }
        if now.monotonic >= self.next_aging {
            self.write_aged(now);
        }
        if now.monotonic >= self.next_stop {
            self.stop_idle_sequences(now);
        }
        if now.monotonic >= self.next_ahead {
            self.read_ahead_of_who_began(now);
        }
        self.pump(now);
    }

    /// When [`tick`](Self::tick) has something to do, if nothing else happens before.
    pub fn next_wakeup(&self) -> Instant {
        if self.is_unfinished {
            return Instant::ZERO;
        }
        let sequences = self.next_stop.min(self.next_ahead);
        self.next_aging.min(sequences).min(self.commit_due()).min(self.checkpoint_due())
    }

    // Turns: what takes long is done a part at a time, and other clients come between.

    /// Takes some of the steps of this turn. False when none are left: then what is asked for goes on in the next turn.
    fn take_steps(&mut self, steps: u32) -> bool {
        let are_left = self.steps > 0;
        self.is_unfinished |= !are_left;
        self.steps = self.steps.saturating_sub(steps);
        are_left
    }

    /// An operation goes on in the next turn.
    fn go_on_later(&mut self, ticket: Ticket) {
        self.is_unfinished = true;
        self.turns.push(ticket);
    }

    /// One more part of whatever is unfinished.
    fn go_on(&mut self, now: Now) {
        self.remove_gone();
        self.finish_waiters(now);
        if self.freed.front().is_some_and(|&(lsn, _)| lsn <= self.commit.durable_lsn()) {
            self.release_freed(now);
        }
        for ticket in std::mem::take(&mut self.turns) {
            self.retry(now, ticket);
        }
        if !self.buffer_waiters.is_empty() {
            self.write_back_for_memory(now);
        }
    }

    /// Memory of files that are gone.
    fn remove_gone(&mut self) {
        while self.cache.has_gone() && self.take_steps(LEAST_STEPS) {
            self.cache.remove_gone(LEAST_STEPS as usize);
        }
    }

    fn pump(&mut self, now: Now) {
        self.settle_replacing(now);
        self.wake_throttled(now);
        self.pump_commit(now);
        self.pump_checkpoint(now);
    }

    // Transactions.

    /// Applies records and gives them to the journal: together durable or together lost.
    fn transact(&mut self, now: Now, records: &[Record]) -> Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let mut gone = Vec::new();
        let mut lsn = 0;
        for record in records {
            match self.metadata.apply(record, &mut gone) {
                Ok(applied) => lsn = applied,
                Err(contradiction) => {
                    self.fail(&format!("internal contradiction: {contradiction}"));
                    return Err(Error::Corrupt(DeviceOffset(0)));
                }
            }
        }
        self.journal.append(records, lsn);
        self.commit.record_appended(now.monotonic);
        for run in gone.into_iter().flat_map(|run| self.refused.usable(run)).collect::<Vec<_>>() {
            self.freed_blocks += run.count;
            self.freed.push_back((lsn, run));
        }
        Ok(())
    }

    /// Refuses changes on a volume that is read-only or failed.
    fn check_writable(&self) -> Result<()> {
        match (&self.failure, self.read_only) {
            _ if self.is_lost => Err(Error::Device),
            (Some(_), _) | (None, true) => Err(Error::ReadOnly),
            (None, false) => Ok(()),
        }
    }

    /// Refuses what makes metadata grow on a full volume.
    fn check_metadata_space(&mut self) -> Result<()> {
        if self.keep_spares() && self.allocator.available() > 0 {
            return Ok(());
        }
        self.lacks_space = true;
        Err(Error::NoSpace)
    }

    /// After a name was refused with [`Error::NoSpace`]: true when space is on its way, so that it should be tried again when the
    /// [turn](Self::space_turn) has changed; false when the volume is full.
    pub fn await_space(&mut self, now: Now) -> bool {
        let lacks = std::mem::take(&mut self.lacks_space);
        if !lacks || self.failure.is_some() || !self.is_space_coming(now) {
            return false;
        }
        self.has_space_awaited = true;
        self.commit.want();
        self.pump(now);
        true
    }

    /// True while an operation waits for what is on its way to become free.
    fn is_space_awaited(&self) -> bool {
        self.has_space_awaited || !self.space_waiters.is_empty()
    }

    /// Changes whenever it makes sense to try again what found no space.
    pub fn space_turn(&self) -> u64 {
        self.space_turn
    }

    /// From now on nothing is written: read-only rather than wrong.
    fn fail(&mut self, why: &str) {
        if self.failure.is_none() {
            tracing::error!("volume turned read-only: {why}");
            self.failure = Some(why.to_owned());
            self.space_turn += 1;
            for Throttled { ticket, .. } in std::mem::take(&mut self.throttled) {
                self.outbox.finished.push((ticket, Outcome::Count(Err(Error::Device))));
            }
        }
    }

    /// From now on nothing is written: somebody who may has asked for it (FS_IOC_SHUTDOWN).
    pub fn stop_writing(&mut self, now: Now) {
        self.fail("somebody asked for that (FS_IOC_SHUTDOWN)");
        self.pump(now);
    }

    /// Names the volume; in the next superblock.
    ///
    /// # Errors
    /// `InvalidArgument` for a label that does not fit.
    pub fn set_label(&mut self, label: &str) -> Result<()> {
        self.check_writable()?;
        if label.len() > MAX_LABEL {
            return Err(Error::InvalidArgument);
        }
        label.clone_into(&mut self.superblock.label);
        Ok(())
    }

    /// The volume's name.
    pub fn label(&self) -> &str {
        &self.superblock.label
    }

    /// The volume is another's from now on: nothing that waits comes to an end.
    pub fn lose_volume(&mut self, now: Now, why: &str) {
        self.is_lost = true;
        self.fail(why);
        self.pump(now);
    }

    /// Why writes fail, if they do.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Gives back to the allocator what durable records freed, as far as the device does not read or write there.
    fn release_freed(&mut self, now: Now) {
        let durable = self.commit.durable_lsn();
        while let Some(&(lsn, run)) = self.freed.front() {
            if lsn > durable && has(Step::FreedWhenDurable) || !self.take_steps(1) {
                break;
            }
            self.freed.pop_front();
            let is_busy = self.in_flight.touches(run);
            steps::matters(Step::FreedWhenIdle, is_busy);
            if is_busy && has(Step::FreedWhenIdle) {
                self.busy.insert(run.start, run);
            } else if !self.give_back(run) {
                return;
            }
        }
        self.wake_for_space(now);
    }

    /// A request to these blocks has ended.
    fn release_busy(&mut self, now: Now, ended: BlockRun) {
        let mut released = false;
        while let Some((&start, &run)) = self.busy.range(..ended.end()).next_back() {
            if run.end() <= ended.start || self.in_flight.touches(run) {
                break;
            }
            self.busy.remove(&start);
            released |= self.give_back(run);
        }
        if released {
            self.wake_for_space(now);
        }
    }

    fn give_back(&mut self, run: BlockRun) -> bool {
        if self.allocator.free(run).is_err() {
            self.fail("space was freed twice");
            return false;
        }
        self.freed_blocks -= run.count;
        true
    }

    /// Whoever waits for space tries again, and waits again where more is on its way.
    fn wake_for_space(&mut self, now: Now) {
        self.space_turn += 1;
        self.has_space_awaited = false;
        for ticket in std::mem::take(&mut self.space_waiters) {
            self.retry(now, ticket);
        }
    }

    /// Parks an operation until freed space is durable, if there is any; otherwise the volume is full.
    fn wait_for_space<T>(&mut self, now: Now, ticket: Ticket) -> Progress<T> {
        if !self.is_space_coming(now) {
            return Progress::Ready(Err(Error::NoSpace));
        }
        self.commit.want();
        self.space_waiters.push(ticket);
        Progress::Wait
    }

    // Requests.

    #[expect(
        clippy::too_many_arguments,
        reason = "one place that fills a request; its callers name every field"
    )]
    fn request(
        &mut self,
        operation: IoOperation,
        offset: DeviceOffset,
        segments: SmallVec<[Segment; 2]>,
        class: Class,
        stream: Option<StreamId>,
        deadline: Option<Instant>,
        purpose: Purpose,
        run: Option<BlockRun>,
    ) -> IoTag {
        let tag = IoTag(self.next_tag);
        self.next_tag += 1;
        self.outbox.requests.push(IoRequest { tag, operation, offset, segments, class, stream, deadline });
        self.in_flight.insert(tag, purpose, run);
        tag
    }

    /// Memory with a copy of `bytes`, padded to whole blocks, for the volume's own structures.
    fn system_segments(&self, bytes: &[u8]) -> Option<SmallVec<[Segment; 2]>> {
        let mut segments = SmallVec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut size = rest.len().next_power_of_two().clamp(MIN_BUFFER, MAX_BUFFER);
            let buffer = loop {
                match self.pool.allocate(size) {
                    Some(buffer) => break buffer,
                    None if size > MIN_BUFFER => size /= 2,
                    None => return None,
                }
            };
            let (now, later) = rest.split_at(rest.len().min(buffer.len()));
            buffer.copy_in(0, now);
            let length = now.len().next_multiple_of(BLOCK as usize);
            buffer.zero(now.len(), length - now.len());
            segments.push(Segment { buffer, start: 0, length });
            rest = later;
        }
        Some(segments)
    }

    /// At most `count` buffers in which writes of [`HANDED_OVER_BYTES`] can come: no more than a sixteenth of the memory.
    pub fn request_buffers(&self, count: usize) -> Vec<Buffer> {
        let most = self.cache.capacity() as usize / 16 / HANDED_OVER_BYTES;
        (0..count.min(most)).map_while(|_| self.pool.allocate(HANDED_OVER_BYTES)).collect()
    }

    /// Memory for file data, at the expense of what was not used for longest; less than `length` where that much is
    /// not to be had in one piece. Leaves the reserve alone. `None` when everything is in use.
    fn data_buffer(&mut self, length: usize) -> Option<Buffer> {
        let floor = SYSTEM_RESERVE.min(self.cache.capacity() / 4);
        let mut size = length.next_power_of_two().clamp(MIN_BUFFER, MAX_BUFFER);
        let mut evicted = 0;
        loop {
            let enough = self.pool.available().as_u64() >= floor + size as u64;
            if enough && let Some(buffer) = self.pool.allocate(size) {
                return Some(buffer);
            }
            // Where memory is in small pieces, a large one is not worth the whole cache.
            let scattered = enough && evicted >= SCATTERED_LIMIT * size && size > MIN_BUFFER;
            let block = if scattered { None } else { self.cache.evict_one() };
            match block {
                Some((id, block)) => {
                    evicted += block.memory.len();
                    self.forget_block(id, &block);
                }
                // What is dirty of files that are gone is not written any more.
                None if self.cache.has_gone() => _ = self.cache.remove_gone(1),
                None if size == MIN_BUFFER => return None,
                None => {
                    size /= 2;
                    evicted = 0;
                }
            }
        }
    }

    /// Memory for a block: one buffer, or as many of `longest` as it takes, if there are any.
    fn data_memory(&mut self, length: usize, longest: usize) -> Option<BlockMemory> {
        let whole = length.next_power_of_two();
        if whole > longest {
            let mut buffers = SmallVec::new();
            while buffers.len() < whole / longest {
                match self.data_buffer(longest) {
                    Some(buffer) if buffer.len() == longest => buffers.push(buffer),
                    _ => break,
                }
            }
            if buffers.len() == whole / longest {
                return Some(BlockMemory::new(buffers));
            }
        }
        self.data_buffer(length).map(|buffer| BlockMemory::new(smallvec![buffer]))
    }

    /// Memory for one page that is read aside so that a dirty one can be completed. It may come from the reserve: it
    /// is what lets dirty memory become free again.
    fn bounce_buffer(&mut self, length: usize) -> Option<Buffer> {
        let floor = SYSTEM_RESERVE.min(self.cache.capacity() / 4) / 2;
        let spare = self.pool.available().as_u64() >= floor + length as u64;
        self.data_buffer(length).or_else(|| if spare { self.pool.allocate(length) } else { None })
    }

    /// The file of an evicted block does not have it any more.
    fn forget_block(&mut self, id: BlockId, block: &CacheBlock) {
        // Of a block that is gone already the place may be another's.
        if let Some(file) =
            self.files.get_mut(&block.ino).filter(|file| file.blocks.get(block.start) == Some(id))
        {
            file.blocks.remove(block.start);
            self.rest(block.ino);
        } else if let Some(file) =
            self.resting.get_mut(&block.ino).filter(|file| file.blocks.get(block.start) == Some(id))
        {
            file.blocks.remove(block.start);
            if file.is_empty() {
                self.resting.remove(&block.ino);
            }
        }
    }

    // Files.

    /// The state of a file, made from its inode and what is in memory if there is none.
    fn file_mut(&mut self, ino: Ino) -> &mut FileState {
        let (metadata, resting) = (&self.metadata, &mut self.resting);
        self.files.entry(ino).or_insert_with(|| {
            let size = metadata.get(ino).map_or(0, |inode| inode.size);
            let RestingFile { blocks, pages_are_true } = resting.remove(&ino).unwrap_or_default();
            let expectation = Expectation::new(size);
            Box::new(FileState {
                size,
                append_end: size,
                blocks,
                pages_are_true,
                expectation,
                ..FileState::default()
            })
        })
    }

    /// Lets a file rest if nobody uses it.
    fn rest(&mut self, ino: Ino) {
        let Some(file) = self.files.get(&ino) else { return };
        let recorded = self.metadata.get(ino).is_none_or(|inode| inode.size == file.size);
        if !file.is_unused() || !recorded || self.dirty_files.contains(&ino) {
            return;
        }
        if file.blocks.ids().any(|id| self.cache.get(id).is_some_and(|block| !block.is_idle())) {
            return;
        }
        if let Some(file) = self.files.remove(&ino) {
            let rest = RestingFile { blocks: file.blocks, pages_are_true: file.pages_are_true };
            if !rest.is_empty() {
                self.resting.insert(ino, rest);
            }
        }
        self.allocator.release_window(crate::allocator::Owner(ino.0));
    }

    fn handle(&self, handle: HandleId) -> Result<(Ino, OpenFlags)> {
        self.handles.get(&handle.0).map(|handle| (handle.ino, handle.flags)).ok_or(Error::BadHandle)
    }

    /// The volume's layout.
    pub fn geometry(&self) -> Geometry {
        self.superblock.geometry
    }

    /// Figures for statfs(2).
    pub fn statistics(&self) -> VolumeStatistics {
        let files = self.metadata.inodes();
        let free = self.allocator.free_blocks() + self.freed_blocks;
        let available = self.allocator.available() + self.freed_blocks;
        VolumeStatistics {
            block_size: BLOCK as u32,
            blocks: self.superblock.geometry.blocks(),
            free,
            available: available.min(free),
            files,
            files_free: available * 4,
            name_length: crate::format::MAX_NAME as u32,
        }
    }

    /// Where a file's bytes lie.
    pub fn extents(&self, ino: Ino) -> Result<Vec<ExtentReport>> {
        let inode = self.metadata.get(ino).ok_or(Error::Stale)?;
        let geometry = self.superblock.geometry;
        let report = |extent: &crate::extent::Extent| ExtentReport {
            file_offset: extent.logical * BLOCK,
            device_offset: geometry.block_address(extent.start).0,
            length: extent.count * BLOCK,
            unwritten: extent.unwritten,
        };
        Ok(inode.extents().into_iter().flat_map(|extents| extents.iter()).map(report).collect())
    }

    /// Where a file's bytes lie, and which of them are not on the device yet.
    pub fn layout(&self, ino: Ino) -> Result<LayoutReport> {
        let extents = self.extents(ino)?;
        let mut pending = RangeSet::default();
        let waiting = self.cache.dirty_of(ino, 0..u64::MAX).map(|(_, id)| id);
        let used = self.files.get(&ino).filter(|file| file.writing > 0);
        let on_their_way = used.into_iter().flat_map(|file| file.blocks.ids());
        for block in waiting.chain(on_their_way).filter_map(|id| self.cache.get(id)) {
            for range in block.dirty.iter().chain(block.in_writing.iter()) {
                pending.insert(block.start + range.start..block.start + range.end);
            }
        }
        let report =
            |range: Range<u64>| PendingReport { file_offset: range.start, length: range.end - range.start };
        Ok(LayoutReport { extents, pending: pending.iter().map(report).collect() })
    }

    /// Figures for an administrator.
    pub fn report(&self) -> VolumeReport {
        let geometry = self.superblock.geometry;
        let (loaded_bytes, unread_bytes) = self.cache.loaded_bytes();
        let (refused_bytes, losses) = self.refused.counts();
        VolumeReport {
            uuid: uuid::Uuid::from_bytes(self.superblock.uuid).to_string(),
            label: self.superblock.label.clone(),
            device_bytes: geometry.device.0,
            unit_bytes: UNIT,
            stripe_bytes: geometry.stripe.0,
            free_units: self.allocator.free_units(),
            longest_free_run_bytes: self.allocator.longest_free_run() * UNIT,
            free_bytes: self.allocator.free_blocks() * BLOCK,
            inodes: self.metadata.inodes(),
            cache_bytes: self.cache.capacity(),
            cache_used_bytes: self.cache.used(),
            prefetched_bytes: self.cache.wanted_bytes(),
            loaded_bytes,
            unread_bytes,
            dirty_bytes: self.cache.dirty_bytes,
            writing_bytes: self.writing_bytes,
            refused_bytes,
            losses,
            commits: self.commit.count,
            checkpoints: self.checkpoints.count,
            read_only: self.read_only || self.failure.is_some(),
            failure: self.failure.clone(),
        }
    }

    /// See [`CoreOptions::access_times`].
    pub fn set_access_times(&mut self, access_times: AccessTimes) {
        self.options.access_times = access_times;
    }

    /// From now on clients' changes are refused. What they changed before is still written.
    pub fn refuse_changes(&mut self) {
        self.read_only = true;
    }

    /// The generation of the superblock that the volume rests on while nothing is written; `None` while it may be.
    pub fn resting_on(&self) -> Option<u64> {
        self.dormant.then_some(self.superblock.generation)
    }

    /// Nothing is written any more, or everything is allowed again. Before falling dormant changes must have been
    /// refused and a [`Operation::Shutdown`] have ended.
    ///
    /// # Errors
    /// [`Error::Device`] when a failed volume is to be woken.
    pub fn set_dormant(&mut self, now: Now, dormant: bool) -> Result<()> {
        if self.failure.is_some() && !dormant {
            return Err(Error::Device);
        }
        self.read_only = dormant;
        self.dormant = dormant;
        if !dormant {
            self.keep_spares();
            self.clear_interrupted(now);
            self.start_checkpoint(now);
            self.pump(now);
        }
        Ok(())
    }

    /// True while so much of the log waits for a checkpoint that callers should hold back changes of metadata.
    pub fn under_pressure(&self) -> bool {
        let is_full = self.journal.used() + self.journal.pending_bytes() > self.journal.capacity() / 4 * 3;
        self.failure.is_none() && (is_full || self.is_held_for_long())
    }
}
