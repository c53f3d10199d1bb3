//! The seam between the filesystem and the engine.

use crate::pool::Buffer;
use rtsched::{Class, StreamId};
use smallvec::SmallVec;
use units::{Bytes, DeviceOffset, Instant};

/// Names a request from submission to completion. Chosen by the submitter, unique among those outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoTag(pub u64);

/// What the device is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOperation {
    /// Device to the segments.
    Read,
    /// Segments to the device. With `durable` the write itself is on stable storage when it completes (FUA).
    Write {
        /// Complete only when on stable storage.
        durable: bool,
    },
    /// Everything whose completion was delivered before this was submitted becomes durable.
    Flush,
}

/// A part of a pool buffer. Start, length and the device offset are multiples of 4096.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The memory; kept alive by this handle until the request has completed.
    pub buffer: Buffer,
    /// First byte within the buffer.
    pub start: usize,
    /// Number of bytes, not zero.
    pub length: usize,
}

/// One request to the device.
#[derive(Clone, Debug)]
pub struct IoRequest {
    /// Given back with the completion.
    pub tag: IoTag,
    /// What to do.
    pub operation: IoOperation,
    /// First byte on the device.
    pub offset: DeviceOffset,
    /// Memory, in the order of the device's bytes. Empty for a flush.
    pub segments: SmallVec<[Segment; 2]>,
    /// How the scheduler ranks it.
    pub class: Class,
    /// The stream it serves, if any.
    pub stream: Option<StreamId>,
    /// By when it must complete; `None` leaves it to the class.
    pub deadline: Option<Instant>,
}

impl IoRequest {
    /// Total length of the segments.
    pub fn length(&self) -> Bytes {
        Bytes(self.segments.iter().map(|segment| segment.length as u64).sum())
    }
}

/// Why a request did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// The device refused or lost it; the operating system's error number.
    #[error("device error {0}")]
    Device(i32),
    /// The device moved fewer bytes than asked: the request reaches past its end.
    #[error("request reaches past the end of the device")]
    PastEnd,
    /// The engine is shutting down.
    #[error("the device engine has stopped")]
    Stopped,
    /// The request was cancelled before it was dispatched.
    #[error("cancelled")]
    Cancelled,
}

/// The end of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Whose.
    pub tag: IoTag,
    /// How it went.
    pub result: Result<(), IoError>,
}

/// Who learns of completions. Called from the engine's completion threads, never with an engine lock held; may
/// submit. Each call carries the completions that were ready together.
pub trait CompletionSink: Send + Sync + 'static {
    /// `completions` have ended by `now`.
    fn completed(&self, now: Instant, completions: &[Completion]);
}
