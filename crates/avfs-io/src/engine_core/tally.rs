//! What the device was asked for, in figures: how many commands of which kind, and how long they were.

use super::Command;
use super::command::Transfer;
use rtsched::Class;
use units::Bytes;

/// Commands that read or write, and of which class the most urgent of their requests is.
pub const KINDS: [(bool, Class); 8] = [
    (false, Class::RealTime),
    (false, Class::Metadata),
    (false, Class::BestEffort),
    (false, Class::Idle),
    (true, Class::RealTime),
    (true, Class::Metadata),
    (true, Class::BestEffort),
    (true, Class::Idle),
];

/// Longest command of each size class but the last, which has the rest. Representation.
pub const SIZE_BOUNDS: [Bytes; 5] =
    [Bytes::from_kib(4), Bytes::from_kib(64), Bytes::from_kib(512), Bytes::from_mib(4), Bytes::from_mib(8)];

/// Commands of one kind since the engine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commands {
    /// How many.
    pub count: u64,
    /// Their lengths together.
    pub bytes: Bytes,
    /// How many in each size class, see [`SIZE_BOUNDS`].
    pub by_size: [u64; SIZE_BOUNDS.len() + 1],
}

/// Commands by kind, in the order of [`KINDS`]. Flushes are not among them.
pub type Tally = [Commands; KINDS.len()];

/// Counts a command that has not begun.
pub(super) fn count(tally: &mut Tally, command: &Command) {
    let Transfer::Move(whole) = command.next_transfer() else { return };
    let is_it = |&kind: &(bool, Class)| kind == (whole.write, command.class());
    let Some(kind) = KINDS.iter().position(is_it) else { return };
    let (length, commands) = (whole.length(), &mut tally[kind]);
    commands.count += 1;
    commands.bytes += length;
    commands.by_size[SIZE_BOUNDS.partition_point(|bound| *bound < length)] += 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine_core::{DeviceFacts, Durability};
    use crate::pool::Pool;
    use crate::request::{IoOperation, IoRequest, IoTag, Segment};
    use rtsched::DispatchId;
    use smallvec::{SmallVec, smallvec};
    use units::DeviceOffset;

    fn count(tally: &mut Tally, requests: SmallVec<[IoRequest; 2]>) {
        let (size, logical_block, durability) = (Bytes::from_mib(8), Bytes(512), Durability::OfItself);
        let device = DeviceFacts { size, logical_block, durability };
        super::count(tally, &Command::new(DispatchId(1), requests, device));
    }

    #[test]
    fn a_command_counts_once_with_all_its_bytes_in_the_size_class_it_just_fits() {
        let pool = Pool::new(Bytes::from_mib(16), false).unwrap();
        let request = |operation, class, length| IoRequest {
            tag: IoTag(1),
            operation,
            offset: DeviceOffset(0),
            segments: smallvec![Segment { buffer: pool.allocate(length).unwrap(), start: 0, length }],
            class,
            stream: None,
            deadline: None,
        };
        let mut tally = Tally::default();
        let write = IoOperation::Write { durable: false };
        count(
            &mut tally,
            smallvec![request(write, Class::BestEffort, 4096), request(write, Class::RealTime, 61440)],
        );
        count(
            &mut tally,
            smallvec![request(write, Class::RealTime, 61440), request(write, Class::RealTime, 8192)],
        );
        count(&mut tally, smallvec![request(IoOperation::Read, Class::Idle, 4096)]);
        let flush = IoRequest { segments: smallvec![], ..request(IoOperation::Flush, Class::Metadata, 4096) };
        count(&mut tally, smallvec![flush]);
        assert_eq!(tally[4].by_size, [0, 1, 1, 0, 0, 0]);
        assert_eq!((tally[4].count, tally[4].bytes), (2, Bytes(65536 + 69632)));
        assert_eq!((tally[3].count, tally[3].by_size), (1, [1, 0, 0, 0, 0, 0]));
        assert_eq!(tally.iter().map(|commands| commands.count).sum::<u64>(), 3);
    }
}
