//! One command at the device and how far it has come.

use crate::device::Geometry;
use crate::request::{Completion, IoError, IoOperation, IoRequest};
use rtsched::DispatchId;
use smallvec::SmallVec;

/// `IOV_MAX`: pieces of memory that one transfer may name.
const MAX_RUNS: usize = 1024;
/// One transfer moves at most this many bytes; the kernel's own bound is just below 2 GiB.
const MAX_TRANSFER: usize = 1 << 30;

/// The requests of one dispatch. They are moved together; when that fails, each is tried alone, so that only those
/// fail that the device cannot serve.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) dispatch: DispatchId,
    requests: SmallVec<[IoRequest; 2]>,
    /// How the first of them ended.
    results: SmallVec<[Result<(), IoError>; 2]>,
    /// How many of the others the current transfer covers.
    together: usize,
    /// Bytes of these that were moved.
    moved: usize,
    /// The kernel asked to be asked again, where it may wait.
    again: bool,
    /// What makes a durable write of this device durable.
    durability: Durability,
    /// The current transfer has moved everything, and its flush is still to come.
    flush_due: bool,
}

/// What a durable write needs to be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// A flag: the write forces itself through.
    OfItself,
    /// A flush behind it, in the same command.
    ByFlush,
}

/// What the ring is to do next for a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    Move {
        write: bool,
        durable: bool,
        /// First byte on the device.
        offset: u64,
        memory: Runs,
    },
    Flush,
}

/// Pieces of memory, in the order of the device's bytes; neighbours are one run.
pub(super) type Runs = SmallVec<[Run; 1]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) address: *mut u8,
    pub(super) length: usize,
}

impl Command {
    /// `requests` are of one direction, each starts where the one before ends, and there is at least one.
    pub(super) fn new(
        dispatch: DispatchId,
        requests: SmallVec<[IoRequest; 2]>,
        durability: Durability,
    ) -> Self {
        let together = requests.len();
        Self {
            dispatch,
            requests,
            results: SmallVec::new(),
            together,
            moved: 0,
            again: false,
            durability,
            flush_due: false,
        }
    }

    /// True after the last request has a result.
    pub(super) fn is_finished(&self) -> bool {
        self.results.len() == self.requests.len()
    }

    /// True when the ring is to do the next transfer where it may block.
    pub(super) fn must_not_be_inline(&self) -> bool {
        self.again
    }

    /// The requests with their ends, once all have one.
    pub(super) fn completions(&self) -> impl Iterator<Item = (&IoRequest, Completion)> {
        let ends = self.requests.iter().zip(&self.results);
        ends.map(|(request, &result)| (request, Completion { tag: request.tag, result }))
    }

    fn current(&self) -> &[IoRequest] {
        &self.requests[self.results.len()..][..self.together]
    }

    /// True when the next transfer moves nothing.
    fn is_flush(&self) -> bool {
        self.flush_due || self.current()[0].operation == IoOperation::Flush
    }

    /// True when what the current transfer moves must be on stable storage before anybody hears of its end.
    fn is_durable(&self) -> bool {
        self.current().iter().any(|one| one.operation == IoOperation::Write { durable: true })
    }

    /// What remains of the current transfer, as much of it as fits one.
    pub(super) fn next_transfer(&self) -> Transfer {
        let current = self.current();
        if self.is_flush() {
            return Transfer::Flush;
        }
        let write = current[0].operation != IoOperation::Read;
        let durable = self.is_durable() && self.durability == Durability::OfItself;
        let offset = current[0].offset.as_u64() + self.moved as u64;
        let mut memory = Runs::new();
        let mut skip = self.moved;
        let mut room = MAX_TRANSFER;
        for segment in current.iter().flat_map(|request| &request.segments) {
            let skipped = skip.min(segment.length);
            skip -= skipped;
            let length = (segment.length - skipped).min(room);
            if length == 0 {
                continue;
            }
            // Neighbours in memory need no second run; `wrapping_add` because the end of a piece is only compared.
            let address = segment.buffer.address().wrapping_add(segment.start + skipped);
            let is_full = memory.len() == MAX_RUNS;
            match memory.last_mut() {
                Some(last) if last.address.wrapping_add(last.length) == address => last.length += length,
                _ if is_full => break,
                _ => memory.push(Run { address, length }),
            }
            room -= length;
        }
        Transfer::Move { write, durable, offset, memory }
    }

    /// Takes the ring's answer to the last transfer: the bytes moved, or a negative error number. When the command
    /// is not finished then, its next transfer is due.
    pub(super) fn answered(&mut self, answer: i32, geometry: &Geometry) {
        // Cancelled: taken back by the ring before the device had it.
        if matches!(-answer, libc::EAGAIN | libc::EINTR | libc::ECANCELED) {
            self.again = true;
            return;
        }
        self.again = false;
        if self.is_flush() {
            // Never tried again: the kernel reports lost writes once (Rebello et al., "Can Applications Recover
            // from fsync Failures?", USENIX ATC 2020), so a second flush would answer for writes that are gone.
            let result = if answer < 0 { Err(IoError::Device(-answer)) } else { Ok(()) };
            return self.end(result);
        }
        match usize::try_from(answer) {
            Err(_) => self.fail(IoError::Device(-answer)),
            Ok(0) => self.fail(IoError::PastEnd),
            Ok(moved) => {
                self.moved += moved;
                let total: u64 = self.current().iter().map(|request| request.length().as_u64()).sum();
                if self.moved as u64 >= total && self.is_durable() && self.durability == Durability::ByFlush {
                    self.flush_due = true;
                } else if self.moved as u64 >= total {
                    self.end(Ok(()));
                } else if !(self.moved as u64).is_multiple_of(geometry.logical_block.as_u64()) {
                    // The ragged end of an image that was cut short.
                    self.fail(IoError::PastEnd);
                }
            }
        }
    }

    /// The current transfer did not work.
    pub(super) fn fail(&mut self, error: IoError) {
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
    use crate::pool::{Buffer, Pool};
    use crate::request::{IoTag, Segment};
    use rtsched::Class;
    use smallvec::smallvec;
    use units::{Bytes, DeviceOffset};

    const GEOMETRY: Geometry = Geometry {
        logical_block: Bytes(512),
        physical_block: Bytes(4096),
        optimal_io: Bytes::ZERO,
        rotational: false,
    };
    const WRITE: IoOperation = IoOperation::Write { durable: false };
    const EIO: Result<(), IoError> = Err(IoError::Device(libc::EIO));

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
        Command::new(DispatchId(1), requests, Durability::OfItself)
    }

    fn buffers(count: usize) -> Vec<Buffer> {
        let pool = Pool::new(Bytes::from_mib(8), false).unwrap();
        (0..count).map(|_| pool.allocate(4096).unwrap()).collect()
    }

    /// Of what is left: offset, length and number of runs.
    fn shape(command: &Command) -> (u64, usize, usize) {
        match command.next_transfer() {
            Transfer::Move { offset, memory, .. } => {
                (offset, memory.iter().map(|run| run.length).sum(), memory.len())
            }
            Transfer::Flush => panic!("a flush moves nothing"),
        }
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
        command.answered(512, &GEOMETRY);
        assert_eq!(shape(&command), (66048, 7680, 2));
        command.answered(-libc::EINTR, &GEOMETRY);
        assert_eq!(shape(&command), (66048, 7680, 2));
        assert!(command.must_not_be_inline());
        command.answered(4096, &GEOMETRY);
        assert_eq!(shape(&command), (70144, 3584, 1));
        assert!(!command.must_not_be_inline());
        command.answered(3584, &GEOMETRY);
        assert_eq!(results(&command), [Ok(())]);
    }

    #[test]
    fn the_end_of_the_device_is_an_end() {
        for answer in [0, 700] {
            let mut command = command(smallvec![request(1, IoOperation::Read, 0, &buffers(1))]);
            command.answered(answer, &GEOMETRY);
            assert_eq!(results(&command), [Err(IoError::PastEnd)]);
        }
    }

    #[test]
    fn neighbours_in_memory_are_one_run() {
        let memory = buffers(4);
        let command =
            command(smallvec![request(1, WRITE, 0, &memory[..2]), request(2, WRITE, 8192, &memory[2..])]);
        assert_eq!(shape(&command), (0, 4 * 4096, 1));
    }

    #[test]
    fn more_runs_than_a_transfer_may_name_take_several() {
        let mut memory = buffers(2000);
        memory.reverse();
        let mut command = command(smallvec![request(1, WRITE, 0, &memory)]);
        assert_eq!(shape(&command), (0, 1024 * 4096, 1024));
        command.answered(1024 * 4096, &GEOMETRY);
        assert_eq!(shape(&command), (1024 * 4096, 976 * 4096, 976));
        command.answered(976 * 4096, &GEOMETRY);
        assert_eq!(results(&command), [Ok(())]);
    }

    #[test]
    fn a_merged_command_fails_only_the_guilty() {
        let memory = buffers(3);
        let each = |index: u64| request(index, WRITE, index * 4096, &memory[index as usize..][..1]);
        let mut command = command(smallvec![each(0), each(1), each(2)]);
        command.answered(4096, &GEOMETRY);
        command.answered(-libc::EIO, &GEOMETRY);
        assert_eq!(shape(&command), (0, 4096, 1));
        command.answered(4096, &GEOMETRY);
        assert_eq!(shape(&command), (4096, 4096, 1));
        command.answered(-libc::EIO, &GEOMETRY);
        assert_eq!(shape(&command), (8192, 4096, 1));
        assert!(!command.is_finished());
        command.answered(4096, &GEOMETRY);
        assert_eq!(results(&command), [Ok(()), EIO, Ok(())]);
    }

    #[test]
    fn one_durable_request_makes_the_command_durable() {
        let memory = buffers(2);
        let is_durable = |operations: [IoOperation; 2]| {
            let requests = [(0, operations[0]), (1, operations[1])].map(|(index, operation)| {
                request(index, operation, index * 4096, &memory[index as usize..][..1])
            });
            let transfer = command(requests.into_iter().collect()).next_transfer();
            matches!(transfer, Transfer::Move { durable: true, write: true, .. })
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
            Command::new(DispatchId(1), requests.into_iter().collect(), Durability::ByFlush)
        };
        for operations in [[durable; 2], [WRITE, durable]] {
            let mut command = new(operations);
            assert!(matches!(command.next_transfer(), Transfer::Move { durable: false, write: true, .. }));
            command.answered(4096, &GEOMETRY);
            assert_eq!(shape(&command), (4096, 4096, 1));
            command.answered(4096, &GEOMETRY);
            assert!(!command.is_finished());
            assert_eq!(command.next_transfer(), Transfer::Flush);
            command.answered(-libc::EINTR, &GEOMETRY);
            assert_eq!(command.next_transfer(), Transfer::Flush);
            command.answered(0, &GEOMETRY);
            assert_eq!(results(&command), [Ok(()); 2]);
        }
        let mut lost = new([durable; 2]);
        lost.answered(8192, &GEOMETRY);
        lost.answered(-libc::EIO, &GEOMETRY);
        assert_eq!(results(&lost), [EIO, EIO]);
        let mut plain = new([WRITE; 2]);
        plain.answered(8192, &GEOMETRY);
        assert_eq!(results(&plain), [Ok(()); 2]);
        // One that fails together is tried alone, each with its flush.
        let mut guilty = new([WRITE, durable]);
        guilty.answered(-libc::EIO, &GEOMETRY);
        guilty.answered(4096, &GEOMETRY);
        assert_eq!(shape(&guilty), (4096, 4096, 1));
        guilty.answered(4096, &GEOMETRY);
        assert_eq!(guilty.next_transfer(), Transfer::Flush);
        guilty.answered(0, &GEOMETRY);
        assert_eq!(results(&guilty), [Ok(()), Ok(())]);
    }

    /// A second flush after a failed one succeeds although the writes are lost.
    #[test]
    fn a_failed_flush_is_not_tried_again() {
        let flushes =
            smallvec![request(1, IoOperation::Flush, 0, &[]), request(2, IoOperation::Flush, 0, &[])];
        let mut command = command(flushes);
        assert_eq!(command.next_transfer(), Transfer::Flush);
        command.answered(-libc::EIO, &GEOMETRY);
        assert_eq!(results(&command), [EIO, EIO]);
    }
}
