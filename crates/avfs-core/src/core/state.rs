//! Everything that is known of a mounted volume, in groups that belong together.
//!
//! **For:** owning it, and what every room does with it: opening a transaction, taking a step, asking the device. **Excludes:**
//! operations. **State:** [`Core`] owns all of it. **Invariants:** nothing here depends on what is done with it.

pub(super) mod blocks;
pub(super) mod cache;
pub(super) mod checkpoints;
pub(super) mod commit;
pub(super) mod expectation;
pub(super) mod file;
pub(super) mod in_flight;
pub(super) mod leaving;
pub(super) mod operation;
pub(super) mod outbox;
pub(super) mod places;
pub(super) mod refused;
pub(super) mod replacements;

use super::state::blocks::BlockId;
use super::state::cache::Cache;
use super::state::checkpoints::Checkpoints;
use super::state::commit::Commit;
use super::state::file::{FileState, RestingFile};
use super::state::in_flight::InFlight;
use super::state::leaving::Leaving;
use super::state::operation::{Throttled, Ticket, Waiting};
use super::state::outbox::Outbox;
use super::state::refused::Refused;
use super::state::replacements::Replacements;
use crate::allocator::{Allocator, BlockRun};
use crate::config::Config;
use crate::format::Superblock;
use crate::journal::Journal;
use crate::metadata::Metadata;
use crate::record::Record;
use crate::types::*;
use avfs_io::Accepted;
use avfs_io::pool::Pool;
use avfs_streams::sequence::SequenceId;
use avfs_streams::{Advice, Streams};
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use units::{Bytes, Duration, Ino, Instant};

/// The blocks that are kept for a client where it reads on, in the order in which it will come to them.
pub(super) type Kept = VecDeque<BlockId>;
pub(super) type Player = avfs_streams::player::Player<Kept>;
pub(super) type ReadCursor = avfs_streams::player::ReadCursor<Kept>;
/// The blocks that are kept of a frame.
pub(super) type Frames = SmallVec<[BlockId; 2]>;
pub(super) type PrefetchedFrame = avfs_streams::cursor::PrefetchedFrame<Frames>;
pub(super) type SequenceCursor = avfs_streams::cursor::SequenceCursor<Frames>;
pub(super) type Sequence = avfs_streams::sequence::Sequence<Frames>;

/// Dirty bytes go to the device when they are this old. An operator's target.
pub(super) const DIRTY_AGE: Duration = Duration::from_secs(5);
/// The kernel asks for no more than this at once: 256 pages, unless the host allows more. What a client can take or give with one
/// request is a small file: it takes its space beside others, and has no window of its own. A protocol fact.
pub(super) const ONE_REQUEST: u64 = 1 << 20;
/// A client that waits until its data are written should not wait longer than this for the device's turn. An operator's target.
pub(super) const WRITTEN_WITHIN: Duration = Duration::from_millis(200);
/// Records of one transaction, at most: a batch of the journal must hold them. A protocol fact.
pub(super) const TRANSACTION_RECORDS: usize = 10_000;

/// A write of so many bytes, from a multiple of it on, leaves them in the buffer in which they came. It is the kernel's longest
/// write. A protocol fact.
pub const HANDED_OVER_BYTES: usize = ONE_REQUEST as usize;

/// What is done in one turn, while all other clients wait: so many files, blocks, runs of space or clients are looked at, a few
/// microseconds each. No client waits for 5 ms because of another's turn. An operator's target.
pub(super) const STEPS: u32 = 256;
/// What a client has begun is done at once up to here, so that what is small needs no turn of its own. An operator's target.
pub(super) const LEAST_STEPS: u32 = 16;

/// Where the search for what has been dirty for long goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aging {
    pub(super) ino: Ino,
    /// In the file.
    pub(super) offset: u64,
    /// When the next one begins, by what was found so far.
    pub(super) next: units::Instant,
}

#[derive(Debug)]
pub(super) struct Handle {
    pub(super) ino: Ino,
    pub(super) flags: OpenFlags,
    /// Counted in `FileState::through_pages`.
    pub(super) through_pages: bool,
    /// See [`FileState::lost`], when it was told last.
    pub(super) lost_seen: u64,
}

/// A sequence that is recorded.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// The device's block behind what was written of it last.
    pub(super) placed: Option<u64>,
    /// Files that are complete and wait to be written together: number, file and length.
    pub(super) gathered: Vec<(u64, Ino, u64)>,
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

/// The journal, and what becomes durable with it.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) journal: Journal,
    pub(super) commit: Commit,
    pub(super) replacements: Replacements,
}

/// Free space, and what will be free.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) allocator: Allocator,
    pub(super) refused: Refused,
    /// Space that is free as soon as the record that freed it is durable.
    pub(super) freed: VecDeque<(u64, BlockRun)>,
    /// Shared space that an owner gives up.
    pub(super) leaving: Leaving,
    /// Space that is free as soon as the device does not read or write there any more, by its first block.
    pub(super) busy: BTreeMap<u64, BlockRun>,
    /// Blocks in both.
    pub(super) freed_blocks: u64,
    /// How often operations that wait for space have been told to try again.
    pub(super) turn: u64,
    /// A name was refused for want of space since [`await_space`](Core::await_space) was asked last.
    pub(super) is_missed: bool,
    /// Names wait for the next turn.
    pub(super) is_awaited: bool,
    /// Operations to try again when freed space is durable.
    pub(super) waiters: Vec<Ticket>,
    /// Files that may have reserved space.
    pub(super) reserving: BTreeSet<Ino>,
}

/// Contents of files, as far as they are in memory.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) cache: Cache,
    pub(super) pool: Pool,
    /// Files that are used.
    pub(super) files: HashMap<Ino, Box<FileState>>,
    /// Files that are not, as far as they are in memory; none is in `files` too.
    pub(super) resting: HashMap<Ino, RestingFile>,
    /// The directories of the small files for which clients waited last, the latest first.
    pub(super) waited_in: VecDeque<Ino>,
}

/// What is on its way to the device, or will be.
#[derive(Debug)]
pub(super) struct Writeback {
    /// Files with dirty blocks or unrecorded times, in an order that does not depend on hashing.
    pub(super) files: BTreeSet<Ino>,
    /// How far the search for what is old has come, if it is under way.
    pub(super) aging: Option<Aging>,
    pub(super) next_aging: Instant,
    /// Bytes of file data on their way to the device.
    pub(super) bytes: u64,
    /// Requests that carry file data to the device, or complete pages for it.
    pub(super) requests: usize,
}

/// Inodes that the kernel knows, or that wait to be removed.
#[derive(Debug)]
pub(super) struct Inodes {
    pub(super) lookups: HashMap<Ino, u64>,
    /// Inodes without a name that could not be removed yet because the device was busy with them.
    pub(super) unreaped: BTreeSet<Ino>,
    /// Inodes that were made without a name, and have had none yet.
    pub(super) unnamed: BTreeSet<Ino>,
    /// What a loss of power left behind, to be cleared away.
    pub(super) interrupted: Vec<Record>,
}

/// Open files, and what is known of the clients that have opened them.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) handles: HashMap<u64, Handle>,
    pub(super) next_handle: u64,
    pub(super) streams: Streams<Kept, Frames>,
    /// Sequences that are recorded.
    pub(super) recorded: BTreeMap<SequenceId, Recorded>,
}

/// Operations that are not answered yet.
#[derive(Debug)]
pub(super) struct Waits {
    pub(super) operations: BTreeMap<Ticket, Waiting>,
    /// To be tried again before the turn ends, in this order.
    pub(super) ready: Vec<Ticket>,
    /// Operations to try again when memory becomes free, oldest first.
    pub(super) for_memory: VecDeque<Ticket>,
    /// Oldest first.
    pub(super) throttled: VecDeque<Throttled>,
}

/// What is done in one turn.
#[derive(Debug)]
pub(super) struct Turn {
    /// What is left of this turn's [`STEPS`].
    pub(super) steps: u32,
    /// Something is to go on in the next turn.
    pub(super) is_unfinished: bool,
    /// Operations that go on in the next turn.
    pub(super) tickets: Vec<Ticket>,
}

/// Requests to the device, and what else is to be done outside.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) in_flight: InFlight,
    pub(super) next_tag: u64,
    pub(super) outbox: Outbox,
    /// See [`Outbox::accepted`].
    pub(super) accepted: Accepted,
}

/// What may be done to the volume.
#[derive(Debug)]
pub(super) struct Status {
    /// Clients' changes are refused.
    pub(super) read_only: bool,
    /// Nothing is written to the device, neither for clients nor for the volume itself.
    pub(super) dormant: bool,
    pub(super) failure: Option<String>,
    /// Another has the volume: it is not only read, there is nothing to be told of it.
    pub(super) is_lost: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Core {
    pub(super) options: CoreOptions,
    pub(super) superblock: Superblock,
    pub(super) metadata: Metadata,
    pub(super) checkpoints: Checkpoints,
    pub(super) log: Log,
    pub(super) space: Space,
    pub(super) data: Data,
    pub(super) writeback: Writeback,
    pub(super) inodes: Inodes,
    pub(super) clients: Clients,
    pub(super) waits: Waits,
    pub(super) turn: Turn,
    pub(super) requests: Requests,
    pub(super) status: Status,
}

impl Core {
    /// A volume in which nothing has happened yet.
    pub(super) fn assemble(
        superblock: Superblock,
        metadata: Metadata,
        allocator: Allocator,
        journal: Journal,
        pool: Pool,
        options: CoreOptions,
        checkpoints: Checkpoints,
    ) -> Self {
        let commit = Commit::new(metadata.lsn());
        let (read_only, advice) = (options.read_only, options.advice);
        let (memory, longest_start) =
            (Bytes(pool.capacity().as_u64()), options.config.scheduler.longest_start);
        Self {
            options,
            superblock,
            metadata,
            checkpoints,
            log: Log { journal, commit, replacements: Replacements::default() },
            space: Space {
                allocator,
                refused: Refused::default(),
                freed: VecDeque::new(),
                leaving: Leaving::default(),
                busy: BTreeMap::new(),
                freed_blocks: 0,
                turn: 0,
                is_missed: false,
                is_awaited: false,
                waiters: Vec::new(),
                reserving: BTreeSet::new(),
            },
            data: Data {
                cache: Cache::new(pool.clone()),
                pool,
                files: HashMap::new(),
                resting: HashMap::new(),
                waited_in: VecDeque::new(),
            },
            writeback: Writeback {
                files: BTreeSet::new(),
                aging: None,
                next_aging: Instant::FAR_FUTURE,
                bytes: 0,
                requests: 0,
            },
            inodes: Inodes {
                lookups: HashMap::new(),
                unreaped: BTreeSet::new(),
                unnamed: BTreeSet::new(),
                interrupted: Vec::new(),
            },
            clients: Clients {
                handles: HashMap::new(),
                next_handle: 1,
                streams: Streams::new(memory, longest_start, advice),
                recorded: BTreeMap::new(),
            },
            waits: Waits {
                operations: BTreeMap::new(),
                ready: Vec::new(),
                for_memory: VecDeque::new(),
                throttled: VecDeque::new(),
            },
            turn: Turn { steps: STEPS, is_unfinished: false, tickets: Vec::new() },
            requests: Requests {
                in_flight: InFlight::default(),
                next_tag: 1,
                outbox: Outbox::default(),
                accepted: Accepted::default(),
            },
            status: Status { read_only, dormant: read_only, failure: None, is_lost: false },
        }
    }
}
