//! Requests to the device, the steps of a turn, and operations that are answered or wait.
//!
//! **For:** what every room asks of the world outside. **Excludes:** what for. **State:** none of its own.

use super::state::operation::{Outcome, Ticket, Waiting};
use super::state::outbox::Purpose;
use super::state::{Core, LEAST_STEPS};
use crate::allocator::BlockRun;
use crate::format::BLOCK;
use avfs_io::pool::{MAX_BUFFER, MIN_BUFFER};
use avfs_io::{IoOperation, IoRequest, IoTag, Segment};
use rtsched::{Class, StreamId};
use smallvec::SmallVec;
use units::{Bytes, DeviceOffset, Instant};

impl Core {
    #[expect(
        clippy::too_many_arguments,
        reason = "one place that fills a request; its callers name every field"
    )]
    pub(super) fn request(
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
        let tag = IoTag(self.requests.next_tag);
        self.requests.next_tag += 1;
        self.requests.outbox.requests.push(IoRequest {
            tag,
            operation,
            offset,
            segments,
            class,
            stream,
            deadline,
        });
        self.requests.in_flight.insert(tag, purpose, run);
        tag
    }

    /// Memory with a copy of `bytes`, padded to whole blocks, for the volume's own structures.
    pub(super) fn system_segments(&self, bytes: &[u8]) -> Option<SmallVec<[Segment; 2]>> {
        let mut segments = SmallVec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut size = rest.len().next_power_of_two().clamp(MIN_BUFFER, MAX_BUFFER);
            let buffer = loop {
                match self.data.pool.allocate(size) {
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

    /// Takes some of the steps of this turn. False when none are left: then what is asked for goes on in the next turn.
    pub(super) fn take_steps(&mut self, steps: u32) -> bool {
        let are_left = self.turn.steps > 0;
        self.turn.is_unfinished |= !are_left;
        self.turn.steps = self.turn.steps.saturating_sub(steps);
        are_left
    }

    /// An operation goes on in the next turn.
    pub(super) fn go_on_later(&mut self, ticket: Ticket) {
        self.turn.is_unfinished = true;
        self.turn.tickets.push(ticket);
    }

    /// What is left of this turn, but for what is done at once in any case.
    pub(super) fn steps_left(&self) -> usize {
        self.turn.steps.max(LEAST_STEPS) as usize
    }

    /// Where a block lies on the device.
    pub(super) fn address(&self, block: u64) -> DeviceOffset {
        self.superblock.geometry.block_address(block)
    }

    /// An operation is tried again when memory becomes free.
    pub(super) fn wait_for_memory(&mut self, ticket: Ticket) {
        self.waits.for_memory.push_back(ticket);
    }

    /// Operations that go on before the turn ends.
    pub(super) fn wake(&mut self, tickets: impl IntoIterator<Item = Ticket>) {
        self.waits.ready.extend(tickets);
    }

    /// An operation has ended.
    pub(super) fn finish(&mut self, ticket: Ticket, outcome: Outcome) {
        self.requests.outbox.finished.push((ticket, outcome));
    }

    /// An operation waits.
    pub(super) fn park(&mut self, ticket: Ticket, waiting: Waiting) {
        self.waits.operations.insert(ticket, waiting);
    }

    /// Nothing more is begun in this turn.
    pub(super) fn is_turn_over(&self) -> bool {
        self.turn.steps == 0
    }

    /// So much was accepted without a promise.
    pub(super) fn note_accepted(&mut self, length: Bytes) {
        self.requests.accepted.add(length);
    }
}
