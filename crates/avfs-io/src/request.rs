//! The seam between the filesystem and the engine.

use crate::engine_core::{Incident, Promise};
use crate::pool::Buffer;
use rtsched::{Class, Direction, RequestId, StreamId};
use smallvec::SmallVec;
use units::{Bytes, DeviceOffset, Instant};

/// What every start, length and device offset of a request is a multiple of, in bytes.
pub const ALIGNMENT: usize = 4096;

/// Names a request from submission to completion. Chosen by the submitter, unique among those outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoTag(pub u64);

/// What the device is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOperation {
    /// Device to the segments.
    Read,
    /// Segments to the device. With `durable` the write itself is on stable storage when it completes (FUA, or a flush
    /// behind it where the device does not force writes through).
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

/// A client now waits for a request, or has become a stream since it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// Which one. Nothing happens if it is at the device already.
    pub tag: IoTag,
    /// It gets at least this class...
    pub class: Class,
    /// ...and is one of this stream's, if the class is real time and no other one has a reservation for it...
    pub stream: Option<StreamId>,
    /// ...and completes by then.
    pub deadline: Instant,
}

/// What is in memory without a promise, and will be submitted later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// In about so many requests...
    pub requests: u32,
    /// ...of so many bytes together.
    pub bytes: Bytes,
}

impl Accepted {
    /// So much more in a request of its own.
    pub fn add(&mut self, bytes: Bytes) {
        self.requests = self.requests.saturating_add(1);
        self.bytes = Bytes(self.bytes.0.saturating_add(bytes.0));
    }

    /// There is none.
    pub fn is_nothing(&self) -> bool {
        self.requests == 0
    }
}

impl IoRequest {
    /// Total length of the segments.
    pub fn length(&self) -> Bytes {
        Bytes(self.segments.iter().map(|segment| segment.length as u64).sum())
    }

    /// What a promotion makes of it that comes before the engine has it.
    pub fn promote(&mut self, promotion: Promotion) {
        let becomes_promised = promotion.class == Class::RealTime && self.class != Class::RealTime;
        self.class = self.class.min(promotion.class);
        self.stream = promotion.stream.filter(|_| promotion.class == Class::RealTime).or(self.stream);
        self.deadline = match self.deadline {
            Some(deadline) if !becomes_promised => Some(deadline.min(promotion.deadline)),
            _ => Some(promotion.deadline),
        };
    }

    /// What the engine refuses before the scheduler sees it: misuse of the seam, and a place that a device of
    /// `size` does not have.
    pub(crate) fn check(&self, size: Bytes) -> Result<(), IoError> {
        let aligned = |value: usize| value.is_multiple_of(ALIGNMENT);
        let well_formed = match self.operation {
            IoOperation::Flush => self.segments.is_empty(),
            IoOperation::Read | IoOperation::Write { .. } => {
                !self.segments.is_empty()
                    && self.offset.as_u64().is_multiple_of(ALIGNMENT as u64)
                    && self.segments.iter().all(|segment| {
                        segment.length != 0
                            && aligned(segment.start)
                            && aligned(segment.length)
                            && segment.length <= segment.buffer.len()
                            && segment.start <= segment.buffer.len() - segment.length
                    })
            }
        };
        if !well_formed {
            return Err(IoError::Device(libc::EINVAL));
        }
        match self.offset.as_u64().checked_add(self.length().as_u64()) {
            Some(end) if end <= size.as_u64() => Ok(()),
            _ if self.operation == IoOperation::Flush => Ok(()),
            _ => Err(IoError::PastEnd),
        }
    }

    /// The request as the scheduler knows it: by its tag, without its memory.
    pub(crate) fn describe(&self) -> rtsched::Request {
        let (direction, offset) = match self.operation {
            IoOperation::Read => (Direction::Read, self.offset),
            IoOperation::Write { .. } => (Direction::Write, self.offset),
            IoOperation::Flush => (Direction::Flush, DeviceOffset(0)),
        };
        rtsched::Request {
            id: self.tag.into(),
            class: self.class,
            stream: self.stream,
            direction,
            offset,
            length: self.length(),
            deadline: self.deadline,
        }
    }
}

impl From<IoTag> for RequestId {
    fn from(tag: IoTag) -> Self {
        Self(tag.0)
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
    /// This host has lost the volume: nothing is given to the device any more.
    #[error("this host has lost the volume")]
    Fenced,
    /// The request was cancelled before it was dispatched.
    #[error("cancelled")]
    Cancelled,
}

impl IoError {
    /// True when it says something of the place that was asked for, and not of the device: another place may do.
    pub fn is_of_the_place(self) -> bool {
        let of_places = [libc::EIO, libc::ENODATA, libc::EILSEQ, libc::EREMOTEIO, libc::EBADMSG];
        matches!(self, Self::Device(errno) if of_places.contains(&errno))
    }
}

/// The end of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Whose.
    pub tag: IoTag,
    /// How it went.
    pub result: Result<(), IoError>,
}

/// Learns of completions. Called from the engine's completion threads, never with an engine lock held; may submit. Each call
/// carries the completions that were ready together.
pub trait CompletionSink: Send + Sync + 'static {
    /// `completions` have ended by `now`.
    fn completed(&self, now: Instant, completions: &[Completion]);

    /// What declared streams are promised has changed. Never called by two threads at once, so that the last change told is the
    /// last that happened. A sink that declares no streams need not listen.
    fn promised(&self, now: Instant, promises: &[Promise]) {
        let _ = (now, promises);
    }

    /// What an administrator may want to be told of has happened. Called as [`promised`](Self::promised) is, after it.
    fn happened(&self, now: Instant, incidents: &[Incident]) {
        let _ = (now, incidents);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(class: Class, deadline: Option<u64>) -> IoRequest {
        let (operation, offset) = (IoOperation::Flush, DeviceOffset(0));
        let deadline = deadline.map(Instant::from_nanos);
        let segments = SmallVec::new();
        IoRequest { tag: IoTag(1), operation, offset, segments, class, stream: None, deadline }
    }

    /// What the scheduler would make of it, had it come there first.
    #[test]
    fn a_promotion_before_the_engine_has_the_request_is_no_less_than_one_after() {
        let promoted = |mut request: IoRequest, class| {
            let (tag, stream) = (request.tag, Some(StreamId(7)));
            request.promote(Promotion { tag, class, stream, deadline: Instant::from_nanos(20) });
            (request.class, request.stream, request.deadline.map(Instant::as_nanos))
        };
        let (real_time, best_effort, stream) = (Class::RealTime, Class::BestEffort, Some(StreamId(7)));
        // By when it would have starved is no promise.
        assert_eq!(promoted(request(best_effort, Some(10)), real_time), (real_time, stream, Some(20)));
        assert_eq!(promoted(request(real_time, Some(10)), real_time), (real_time, stream, Some(10)));
        assert_eq!(promoted(request(real_time, Some(30)), real_time), (real_time, stream, Some(20)));
        assert_eq!(promoted(request(Class::Idle, None), best_effort), (best_effort, None, Some(20)));
        assert_eq!(promoted(request(real_time, Some(30)), best_effort), (real_time, None, Some(20)));
    }
}
