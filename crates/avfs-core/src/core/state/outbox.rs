//! What the core wants done, and what each request to the device is for.

use super::blocks::BlockId;
use super::operation::{Outcome, Ticket};
use crate::extent::Extent;
use crate::types::HandleId;
use avfs_io::pool::Buffer;
use avfs_io::{Accepted, IoRequest, IoTag, Promotion};
use rtsched::{Confidence, StreamId, StreamSpec};
use smallvec::SmallVec;
use units::Ino;

/// Requests that are not wanted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancellation {
    /// This one.
    Request(IoTag),
    /// All of a stream: its player is elsewhere.
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
    pub streams: Vec<(StreamId, Option<(StreamSpec, Confidence)>)>,
    /// What becomes of requests that were handed over before, before [`requests`](Self::requests) are.
    pub promotions: Vec<Promotion>,
    /// What is not wanted any more.
    pub cancellations: Vec<Cancellation>,
    /// Operations that ended.
    pub finished: Vec<(Ticket, Outcome)>,
    /// What clients have asked to read, or have read. It is nothing to do, and wakes no thread.
    pub takes: SmallVec<[Take; 1]>,
}

/// A client's read, as an observer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// Whose.
    pub handle: HandleId,
    /// First byte.
    pub offset: u64,
    /// It was asked for before.
    pub has_waited: bool,
    /// The client has it; else it waits.
    pub is_answered: bool,
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

    /// A client now waits for a request, handed over already or not.
    pub(in crate::core) fn promote(&mut self, promotion: Promotion) {
        // Tags ascend in the order in which requests are made.
        match self.requests.binary_search_by_key(&promotion.tag, |request| request.tag) {
            Ok(index) => self.requests[index].promote(promotion),
            Err(_) => self.promotions.push(promotion),
        }
    }
}

/// What a completed request was for.
#[derive(Debug)]
pub(in crate::core) enum Purpose {
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
        pieces: SmallVec<[WrittenPiece; 1]>,
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

/// One request's part of a file.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct WrittenPiece {
    pub(in crate::core) extent: Extent,
    /// The mapping has to be recorded: it is new, or was unwritten.
    pub(in crate::core) record: bool,
}

impl WrittenPiece {
    pub(in crate::core) fn extent(&self) -> Extent {
        self.extent
    }
}
