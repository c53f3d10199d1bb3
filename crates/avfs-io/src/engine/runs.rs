//! The memory of one system call.
//!
//! **For:** as much of a command's next move as the kernel takes at once. **Invariants:** runs are in the order of the device's bytes.

use crate::engine_core::Move;
use smallvec::SmallVec;

/// `IOV_MAX`: runs that one system call may name. A protocol fact.
const MAX_RUNS: usize = 1024;
/// One call moves at most this many bytes; the kernel's own bound is just below 2 GiB. A protocol fact.
const MAX_LENGTH: usize = 1 << 30;

/// Pieces of memory; neighbours are one run.
pub(super) type Runs = SmallVec<[Run; 1]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) address: *mut u8,
    pub(super) length: usize,
}

/// As much of `next` as fits one system call.
pub(super) fn of(next: &Move<'_>) -> Runs {
    let mut runs = Runs::new();
    let mut room = MAX_LENGTH;
    for piece in next.pieces() {
        let length = piece.length.min(room);
        // Neighbours in memory need no second run; `wrapping_add` because the end of a piece is only compared.
        let address = piece.buffer.address().wrapping_add(piece.start);
        let is_full = runs.len() == MAX_RUNS;
        match runs.last_mut() {
            _ if length == 0 => break,
            Some(last) if last.address.wrapping_add(last.length) == address => last.length += length,
            _ if is_full => break,
            _ => runs.push(Run { address, length }),
        }
        room -= length;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine_core::{Command, DeviceFacts, Durability, Transfer};
    use crate::pool::{Buffer, Pool};
    use crate::request::{IoOperation, IoRequest, IoTag, Segment};
    use rtsched::{Class, DispatchId};
    use units::{Bytes, DeviceOffset};

    const PAGE: usize = 4096;

    fn buffers(count: usize) -> Vec<Buffer> {
        let pool = Pool::new(Bytes::from_mib(8), false).unwrap();
        (0..count).map(|_| pool.allocate(PAGE).unwrap()).collect()
    }

    /// A write of one request for each of these.
    fn command(requests: &[&[Buffer]]) -> Command {
        let mut offset = 0;
        let requests = requests.iter().map(|buffers| {
            let segment =
                |buffer: &Buffer| Segment { buffer: buffer.clone(), start: 0, length: buffer.len() };
            let segments: SmallVec<[Segment; 2]> = buffers.iter().map(segment).collect();
            let request = IoRequest {
                tag: IoTag(offset),
                operation: IoOperation::Write { durable: false },
                offset: DeviceOffset(offset),
                segments,
                class: Class::BestEffort,
                stream: None,
                deadline: None,
            };
            offset += request.length().as_u64();
            request
        });
        let (size, logical_block, durability) = (Bytes::from_mib(8), Bytes(512), Durability::OfItself);
        Command::new(DispatchId(1), requests.collect(), DeviceFacts { size, logical_block, durability })
    }

    /// Of the next system call: offset, length and number of runs.
    fn shape(command: &Command) -> (u64, usize, usize) {
        let Transfer::Move(next) = command.next_transfer() else { panic!("it is a write") };
        let runs = of(&next);
        (next.offset.as_u64(), runs.iter().map(|run| run.length).sum(), runs.len())
    }

    #[test]
    fn neighbours_in_memory_are_one_run() {
        let memory = buffers(4);
        assert_eq!(shape(&command(&[&memory[..2], &memory[2..]])), (0, 4 * PAGE, 1));
        let scattered = [memory[2].clone(), memory[0].clone()];
        assert_eq!(shape(&command(&[&scattered])), (0, 2 * PAGE, 2));
    }

    #[test]
    fn more_runs_than_a_call_may_name_take_several() {
        let mut memory = buffers(2000);
        memory.reverse();
        let mut command = command(&[&memory]);
        assert_eq!(shape(&command), (0, 1024 * PAGE, 1024));
        command.answered(Ok(1024 * PAGE));
        assert_eq!(shape(&command), (1024 * PAGE as u64, 976 * PAGE, 976));
        command.answered(Ok(976 * PAGE));
        assert!(command.is_finished());
    }
}
