//! Free space that the device is told of (fstrim(8)).
//!
//! **For:** which space, and when. **Excludes:** the discard itself, which has no place in the engine: the scheduler has no price
//! for it. **Invariants:** what is discarded has no owner. It is taken out of the free space first, where it arrives only when the
//! record that freed it is durable, and comes back when the discard has ended. Until then it counts as space that is on its way.

use super::state::Core;
use super::state::operation::Ticket;
use super::state::outbox::Purpose;
use crate::allocator::{BLOCKS_PER_UNIT, BlockRun};
use crate::error::{Error, Result};
use crate::format::BLOCK;
use avfs_io::IoOperation;
use rtsched::Class;
use std::ops::Range;
use units::Now;

impl Core {
    /// Takes free space between `blocks`, at least `shortest` of them, and waits for a moment in which the device has nothing better
    /// to do: a read of its first block, ranked as idle, ends the operation `ticket`. `None`: there is no more.
    ///
    /// # Errors
    /// Those of every change.
    pub fn begin_trim(
        &mut self,
        now: Now,
        ticket: Ticket,
        blocks: Range<u64>,
        shortest: u64,
    ) -> Result<Option<BlockRun>> {
        self.check_writable()?;
        // Writers are not to find the volume full meanwhile.
        let longest = BLOCKS_PER_UNIT.min(self.space.allocator.available() / 2);
        let longest = longest.min(blocks.end.saturating_sub(blocks.start));
        let Some(run) = self.space.allocator.take_free(blocks.start, shortest, longest) else {
            return Ok(None);
        };
        if run.end() > blocks.end {
            return self.put_back(run).map(|()| None);
        }
        let Some(segments) = self.system_segments(&[0; BLOCK as usize]) else {
            return self.put_back(run).and(Err(Error::OutOfMemory));
        };
        self.space.freed_blocks += run.count;
        let address = self.address(run.start);
        let purpose = Purpose::Turn { ticket };
        self.request(IoOperation::Read, address, segments, Class::Idle, None, None, purpose, Some(run));
        self.pump(now);
        Ok(Some(run))
    }

    fn put_back(&mut self, run: BlockRun) -> Result<()> {
        if self.space.allocator.free(run).is_err() {
            self.fail("space was freed twice");
            return Err(Error::Device);
        }
        Ok(())
    }

    /// The space of [`begin_trim`](Self::begin_trim) is free again.
    pub fn end_trim(&mut self, now: Now, run: BlockRun) {
        self.space.freed.push_front((0, run));
        self.release_freed();
        self.pump(now);
    }
}
