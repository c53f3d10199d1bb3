//! What is asked of the device, and what the scheduler decides about it.

use smallvec::SmallVec;
use units::{Bytes, DeviceOffset, Instant};

/// Names one request from [`enqueue`](crate::Scheduler::enqueue) to its completion. Chosen by the caller;
/// unique among the requests that are queued or in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a stream: the requests of one reader or writer that follow one another at one rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Names one command at the device, from [`dispatch`](crate::Scheduler::dispatch) to
/// [`complete`](crate::Scheduler::complete).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DispatchId(pub u64);

/// What a request is worth when not everything can be served at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Must complete by its deadline: frames.
    RealTime,
    /// A client waits for it and it is small: the log, inodes.
    Metadata,
    /// Served in the slack, never starved: copies, renders, writeback without a rate.
    BestEffort,
    /// Served only when nothing else waits: checkpoints, scrubbing.
    Idle,
}

/// What the device is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Make durable everything whose completion was seen before this was enqueued. Has no place: its offset
    /// and length are zero. It orders nothing by itself.
    Flush,
}

/// One request, as the caller describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The caller's name for it.
    pub id: RequestId,
    /// Its class.
    pub class: Class,
    /// The stream it belongs to, if any; requests are merged only within a stream or where both have none. Real-time
    /// requests of a stream that holds a reservation draw on it.
    pub stream: Option<StreamId>,
    /// What to do.
    pub direction: Direction,
    /// First byte on the device; 0 for [`Direction::Flush`].
    pub offset: DeviceOffset,
    /// Length in bytes, which end before 2^64; zero only for [`Direction::Flush`].
    pub length: Bytes,
    /// The instant by which it must **complete**. `None`: by its class's own bound, see [`Config`](crate::Config) (`metadata_latency`, `best_effort_latency`, `idle_latency`), or
    /// for an admitted stream by its terms. Those also bound how early a stream's deadline can be. Best effort of no
    /// stream that has one may be played, at a rate not known: it goes before what streams want more than a second
    /// later, where their promises bear it.
    pub deadline: Option<Instant>,
}

/// Why this one, now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Its deadline is the earliest and there was no slack for a choice.
    EarliestDeadline,
    /// Every deadline holds whatever is taken first, and it is the next on the sweep.
    Sweep,
    /// It has no guarantee, or is wanted before it is due, and every deadline holds although it goes first.
    Slack,
    /// Its class waited as long as the configured floor lets it.
    Floor,
    /// Nothing more urgent waits.
    OnlyWork,
}

/// One command for the device: one or more neighbouring requests, in ascending order of offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// To be given back at completion.
    pub id: DispatchId,
    /// The requests served by it, each starting where the one before ends.
    pub requests: SmallVec<[RequestId; 8]>,
    /// What to do.
    pub direction: Direction,
    /// First byte.
    pub offset: DeviceOffset,
    /// Sum of the requests' lengths, in bytes.
    pub length: Bytes,
    /// Why it was chosen.
    pub reason: Reason,
}

impl Dispatch {
    /// Of no request, to be filled by [`dispatch_into`](crate::Scheduler::dispatch_into).
    pub fn empty() -> Self {
        Self {
            id: DispatchId(0),
            requests: SmallVec::new(),
            direction: Direction::Flush,
            offset: DeviceOffset(0),
            length: Bytes::ZERO,
            reason: Reason::OnlyWork,
        }
    }
}
