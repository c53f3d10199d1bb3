//! One command at the device and how far it has come.
//!
//! **For:** what a driver does next for the requests of one dispatch, and how each of them ended. **Excludes:** how many bytes a system
//! call takes, and when to ask again. **State:** the requests with their memory, and what the device has done of them.
//! **Invariants:** every request gets one result; of a command that fails each request is tried alone; a flush is never tried again.

use crate::pool::Buffer;
use crate::request::{Completion, IoError, IoOperation, IoRequest};
use rtsched::{Class, DispatchId, StreamId};
use smallvec::SmallVec;
use units::{Bytes, DeviceOffset};

/// What the books have to know of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceFacts {
    pub(crate) size: Bytes,
    /// It moves whole multiples of this.
    pub(crate) logical_block: Bytes,
    pub(crate) durability: Durability,
}

/// The requests of one dispatch. They are moved together; when that fails, each is tried alone, so that only those
/// fail that the device cannot serve.
#[derive(Debug)]
pub(crate) struct Command {
    dispatch: DispatchId,
    requests: SmallVec<[IoRequest; 2]>,
    /// How the first of them ended.
    results: SmallVec<[Result<(), IoError>; 2]>,
    /// How many of the others the current transfer covers.
    together: usize,
    /// Bytes of these that were moved.
    moved: usize,
    /// The current transfer has moved everything, and its flush is still to come.
    flush_due: bool,
    device: DeviceFacts,
}

/// What a durable write needs to be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// A flag: the write forces itself through.
    OfItself,
    /// A flush behind it, in the same command.
    ByFlush,
}

/// What the device is to do next for a command.
#[derive(Debug)]
pub(crate) enum Transfer<'a> {
    Move(Move<'a>),
    Flush,
}

/// Bytes between neighbouring requests and the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move<'a> {
    pub(crate) write: bool,
    /// The write is to force itself through.
    pub(crate) durable: bool,
    /// First byte on the device.
    pub(crate) offset: DeviceOffset,
    requests: &'a [IoRequest],
    /// Bytes of these that were moved before.
    moved: usize,
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) start: usize,
    pub(crate) length: usize,
}

impl<'a> Move<'a> {
    /// How much is to be moved.
    pub(crate) fn length(&self) -> Bytes {
        length_of(self.requests) - Bytes(self.moved as u64)
    }

    /// The memory, in the order of the device's bytes.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece<'a>> + use<'a> {
        let mut skip = self.moved;
        self.requests.iter().flat_map(|request| &request.segments).filter_map(move |segment| {
            let skipped = skip.min(segment.length);
            skip -= skipped;
            let (start, length) = (segment.start + skipped, segment.length - skipped);
            (length > 0).then_some(Piece { buffer: &segment.buffer, start, length })
        })
    }
}

fn length_of(requests: &[IoRequest]) -> Bytes {
    requests.iter().fold(Bytes::ZERO, |sum, request| sum + request.length())
}

impl Command {
    /// `requests` are of one direction, each starts where the one before ends, and there is at least one.
    pub(crate) fn new(dispatch: DispatchId, requests: SmallVec<[IoRequest; 2]>, device: DeviceFacts) -> Self {
        let (together, results) = (requests.len(), SmallVec::new());
        Self { dispatch, requests, results, together, moved: 0, flush_due: false, device }
    }

    /// The scheduler's name for it.
    pub(super) fn dispatch(&self) -> DispatchId {
        self.dispatch
    }

    /// True after the last request has a result.
    pub(crate) fn is_finished(&self) -> bool {
        self.results.len() == self.requests.len()
    }

    /// The requests with their ends, once all have one.
    pub(super) fn completions(&self) -> impl Iterator<Item = (&IoRequest, Completion)> {
        let ends = self.requests.iter().zip(&self.results);
        ends.map(|(request, &result)| (request, Completion { tag: request.tag, result }))
    }

    /// The requests of the next transfer. At least one until it is finished, and none afterwards.
    pub(crate) fn current(&self) -> &[IoRequest] {
        &self.requests[self.results.len()..][..self.together]
    }

    /// The most urgent class among [`current`](Self::current).
    pub(crate) fn class(&self) -> Class {
        self.current().iter().map(|request| request.class).min().unwrap_or(Class::Idle)
    }

    /// The stream of [`current`](Self::current): only requests of one are merged.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.current().first()?.stream
    }

    /// True when the next transfer moves nothing.
    fn is_flush(&self) -> bool {
        self.flush_due || self.current()[0].operation == IoOperation::Flush
    }

    /// True when what the current transfer moves must be on stable storage before its end is told.
    fn is_durable(&self) -> bool {
        self.current().iter().any(|one| one.operation == IoOperation::Write { durable: true })
    }

    /// What remains of the current transfer. A driver may do the first part of it.
    pub(crate) fn next_transfer(&self) -> Transfer<'_> {
        let (requests, moved) = (self.current(), self.moved);
        if self.is_flush() {
            return Transfer::Flush;
        }
        Transfer::Move(Move {
            write: requests[0].operation != IoOperation::Read,
            durable: self.is_durable() && self.device.durability == Durability::OfItself,
            offset: requests[0].offset + Bytes(moved as u64),
            requests,
            moved,
        })
    }

    /// Takes the device's answer to the last transfer: the bytes it moved. When the command is not finished then, its next transfer
    /// is due.
    pub(crate) fn answered(&mut self, answer: Result<usize, IoError>) {
        if self.is_flush() {
            // Never tried again: the kernel reports lost writes once (Rebello et al., "Can Applications Recover
            // from fsync Failures?", USENIX ATC 2020), so a second flush would answer for writes that are gone.
            return self.end(answer.map(|_| ()));
        }
        match answer {
            Err(error) => self.fail(error),
            Ok(0) => self.fail(IoError::PastEnd),
            Ok(moved) => {
                self.moved += moved;
                let total = length_of(self.current()).as_u64();
                let is_moved = self.moved as u64 >= total;
                if is_moved && self.is_durable() && self.device.durability == Durability::ByFlush {
                    self.flush_due = true;
                } else if is_moved {
                    self.end(Ok(()));
                } else if !(self.moved as u64).is_multiple_of(self.device.logical_block.as_u64()) {
                    // The ragged end of an image that was cut short.
                    self.fail(IoError::PastEnd);
                }
            }
        }
    }

    /// The current transfer did not work.
    fn fail(&mut self, error: IoError) {
        if self.together > 1 {
            self.together = 1;
            self.moved = 0;
        } else {
            self.end(Err(error));
        }
    }

    fn end(&mut self, result: Result<(), IoError>) {
        self.results.extend(std::iter::repeat_n(result, self.together));
        self.together = usize::from(!self.is_finished());
        self.moved = 0;
        self.flush_due = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use crate::request::{IoTag, Segment};
    use smallvec::smallvec;

    const DEVICE: DeviceFacts =
        DeviceFacts { size: Bytes::from_mib(8), logical_block: Bytes(512), durability: Durability::OfItself };
    const WRITE: IoOperation = IoOperation::Write { durable: false };
    const EIO: Result<(), IoError> = Err(IoError::Device(libc::EIO));
    const EIO_ANSWER: Result<usize, IoError> = Err(IoError::Device(libc::EIO));

    fn request(tag: u64, operation: IoOperation, offset: u64, buffers: &[Buffer]) -> IoRequest {
        let segment = |buffer: &Buffer| Segment { buffer: buffer.clone(), start: 0, length: buffer.len() };
        IoRequest {
            tag: IoTag(tag),
            operation,
            offset: DeviceOffset(offset),
            segments: buffers.iter().map(segment).collect(),
            class: Class::BestEffort,
            stream: None,
            deadline: None,
        }
    }

    fn command(requests: SmallVec<[IoRequest; 2]>) -> Command {
        Command::new(DispatchId(1), requests, DEVICE)
    }

    fn buffers(count: usize) -> Vec<Buffer> {
        let pool = Pool::new(Bytes::from_mib(8), false).unwrap();
        (0..count).map(|_| pool.allocate(4096).unwrap()).collect()
    }

    fn next_move(command: &Command) -> Move<'_> {
        match command.next_transfer() {
            Transfer::Move(next) => next,
            Transfer::Flush => panic!("a flush moves nothing"),
        }
    }

    /// Of what is left: offset, length and number of pieces.
    fn shape(command: &Command) -> (u64, u64, usize) {
        let next = next_move(command);
        let pieces = next.pieces().map(|piece| piece.length as u64);
        assert_eq!(next.length(), Bytes(pieces.sum()));
        (next.offset.as_u64(), next.length().as_u64(), next.pieces().count())
    }

    fn is_flush(command: &Command) -> bool {
        matches!(command.next_transfer(), Transfer::Flush)
    }

    fn results(command: &Command) -> Vec<Result<(), IoError>> {
        assert!(command.is_finished());
        command.completions().map(|(_, completion)| completion.result).collect()
    }

    #[test]
    fn short_transfers_go_on_where_they_stopped() {
        let memory = buffers(3);
        let scattered = [memory[2].clone(), memory[0].clone()];
        let mut command = command(smallvec![request(1, IoOperation::Read, 65536, &scattered)]);
        assert_eq!(shape(&command), (65536, 8192, 2));
        command.answered(Ok(512));
        assert_eq!(shape(&command), (66048, 7680, 2));
        command.answered(Ok(4096));
        assert_eq!(shape(&command), (70144, 3584, 1));
        command.answered(Ok(3584));
        assert_eq!(results(&command), [Ok(())]);
    }

    #[test]
    fn the_end_of_the_device_is_an_end() {
        for answer in [0, 700] {
            let mut command = command(smallvec![request(1, IoOperation::Read, 0, &buffers(1))]);
            command.answered(Ok(answer));
            assert_eq!(results(&command), [Err(IoError::PastEnd)]);
        }
    }

    #[test]
    fn a_merged_command_fails_only_the_guilty() {
        let memory = buffers(3);
        let each = |index: u64| request(index, WRITE, index * 4096, &memory[index as usize..][..1]);
        let mut command = command(smallvec![each(0), each(1), each(2)]);
        command.answered(Ok(4096));
        command.answered(EIO_ANSWER);
        assert_eq!(shape(&command), (0, 4096, 1));
        command.answered(Ok(4096));
        assert_eq!(shape(&command), (4096, 4096, 1));
        command.answered(EIO_ANSWER);
        assert_eq!(shape(&command), (8192, 4096, 1));
        assert!(!command.is_finished());
        command.answered(Ok(4096));
        assert_eq!(results(&command), [Ok(()), EIO, Ok(())]);
    }

    #[test]
    fn one_durable_request_makes_the_command_durable() {
        let memory = buffers(2);
        let is_durable = |operations: [IoOperation; 2]| {
            let requests = [(0, operations[0]), (1, operations[1])].map(|(index, operation)| {
                request(index, operation, index * 4096, &memory[index as usize..][..1])
            });
            let command = command(requests.into_iter().collect());
            let next = next_move(&command);
            assert!(next.write);
            next.durable
        };
        assert!(!is_durable([WRITE, WRITE]));
        assert!(is_durable([WRITE, IoOperation::Write { durable: true }]));
    }

    /// A commit was written to a file on FUSE, which drops the flag that was to make it durable: fsync returned and the
    /// device below had heard of no flush.
    #[test]
    fn where_a_write_does_not_force_itself_through_a_flush_follows_it() {
        let durable = IoOperation::Write { durable: true };
        let new = |operations: [IoOperation; 2]| {
            let memory = buffers(2);
            let requests = [0, 1].map(|index| {
                request(index as u64, operations[index], index as u64 * 4096, &memory[index..][..1])
            });
            let device = DeviceFacts { durability: Durability::ByFlush, ..DEVICE };
            Command::new(DispatchId(1), requests.into_iter().collect(), device)
        };
        for operations in [[durable; 2], [WRITE, durable]] {
            let mut command = new(operations);
            assert!(next_move(&command).write && !next_move(&command).durable);
            command.answered(Ok(4096));
            assert_eq!(shape(&command), (4096, 4096, 1));
            command.answered(Ok(4096));
            assert!(!command.is_finished());
            assert!(is_flush(&command));
            command.answered(Ok(0));
            assert_eq!(results(&command), [Ok(()); 2]);
        }
        let mut lost = new([durable; 2]);
        lost.answered(Ok(8192));
        lost.answered(EIO_ANSWER);
        assert_eq!(results(&lost), [EIO, EIO]);
        let mut plain = new([WRITE; 2]);
        plain.answered(Ok(8192));
        assert_eq!(results(&plain), [Ok(()); 2]);
        // One that fails together is tried alone, each with its flush.
        let mut guilty = new([WRITE, durable]);
        guilty.answered(EIO_ANSWER);
        guilty.answered(Ok(4096));
        assert_eq!(shape(&guilty), (4096, 4096, 1));
        guilty.answered(Ok(4096));
        assert!(is_flush(&guilty));
        guilty.answered(Ok(0));
        assert_eq!(results(&guilty), [Ok(()), Ok(())]);
    }

    /// A second flush after a failed one succeeds although the writes are lost.
    #[test]
    fn a_failed_flush_is_not_tried_again() {
        let flushes =
            smallvec![request(1, IoOperation::Flush, 0, &[]), request(2, IoOperation::Flush, 0, &[])];
        let mut command = command(flushes);
        assert!(is_flush(&command));
        command.answered(EIO_ANSWER);
        assert_eq!(results(&command), [EIO, EIO]);
    }
}
