//! Where a file's bytes go on the device.
//!
//! **For:** the next run of a file, and the place of a frame behind the one before. **Excludes:** free space itself, which is the
//! allocator's. **State:** none of its own.

use super::state::blocks::page_ceil;
use super::state::file::FileState;
use super::state::{Clients, Core, ONE_REQUEST, Recorded};
use crate::allocator::{BlockRun, LARGEST_WINDOW_UNITS, Owner, Purpose as SpaceFor, Request};
use crate::format::{BLOCK, UNIT};
use avfs_io::pool::MAX_BUFFER;
use avfs_streams::sequence::SequenceId;
use rtsched::Direction;
use smallvec::SmallVec;
use std::ops::Range;
use units::Ino;

/// Space for a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpaceOfFrame {
    pub(super) owner: Owner,
    /// The block behind the frame before it.
    pub(super) behind: Option<u64>,
    pub(super) window_units: usize,
}

/// Whose space a sequence's is: inodes have no such numbers.
pub(super) fn owner_of(id: SequenceId) -> Owner {
    Owner(id.stream().0)
}

/// A writer that sets a file's length before writing it has said how long a run it wants.
fn units_ahead(file: &FileState, logical: u64) -> Option<usize> {
    let is_ahead = file.size > file.expectation.written_end();
    is_ahead.then(|| file.size.saturating_sub(logical * BLOCK).div_ceil(UNIT).max(1) as usize)
}

impl Core {
    /// A place for `count` claimed pages from `logical` on; possibly fewer.
    pub(super) fn place_data(&mut self, ino: Ino, logical: u64, count: u64) -> Option<BlockRun> {
        let run = self.place_run(ino, logical, count)?;
        let file = self.data.files.get_mut(&ino)?;
        let released = run.count.min(file.claimed);
        file.claimed -= released;
        self.space.allocator.unclaim(released);
        Some(run)
    }

    /// Free blocks for `count` pages from `logical` on; possibly fewer. Claims are the caller's.
    pub(super) fn place_run(&mut self, ino: Ino, logical: u64, count: u64) -> Option<BlockRun> {
        let frame = self.space_of_frame(ino);
        let extents = self.metadata.get(ino)?.extents()?;
        let file = self.data.files.get_mut(&ino)?;
        let stream = file.size >= ONE_REQUEST || frame.is_some();
        // Behind the file's previous run, be it recorded or still on its way.
        let recorded = extents.device_block_before(logical);
        // What is written elsewhere is still recorded where it was.
        let goes_on = |end: u64| end > 0 && file.displaced.covers(end - 1..end);
        let after = match file.last_placed {
            Some((end, device))
                if end <= logical
                    && recorded
                        .is_none_or(|_| extents.at(end.saturating_sub(1)).is_none() || goes_on(end)) =>
            {
                Some(device)
            }
            _ => recorded,
        };
        let request = Request {
            wanted: count,
            purpose: if stream { SpaceFor::Stream } else { SpaceFor::Small },
            owner: frame.map_or(Owner(ino.0), |frame| frame.owner),
            after: after.or(frame.and_then(|frame| frame.behind)),
            window_units: file.window_units.or_else(|| match frame {
                Some(frame) => Some(frame.window_units),
                None => units_ahead(file, logical),
            }),
        };
        let run = self.space.allocator.allocate(&request)?;
        file.last_placed = Some((logical + run.count, run.start + run.count));
        self.placed_frame(ino, run.end());
        Some(run)
    }

    /// Where a file goes that is about to be placed, if it is a frame.
    pub(super) fn space_of_frame(&self, ino: Ino) -> Option<SpaceOfFrame> {
        let id = self.clients.streams.sequence_of(ino, Direction::Write)?;
        self.clients.streams.sequences.get(id)?;
        let behind = self.clients.recorded.get(&id).and_then(|recorded| recorded.placed);
        // Of a small volume others want something, too.
        let window_units = (self.space.allocator.free_units() as usize / 8).clamp(1, LARGEST_WINDOW_UNITS);
        Some(SpaceOfFrame { owner: owner_of(id), behind, window_units })
    }

    /// What is kept of a sequence that is recorded, while it is known.
    pub(super) fn recorded(&mut self, id: SequenceId) -> Option<&mut Recorded> {
        let Clients { streams, recorded, .. } = &mut self.clients;
        streams.sequences.get(id)?;
        if !recorded.contains_key(&id) {
            recorded.retain(|&id, _| streams.sequences.get(id).is_some());
        }
        Some(recorded.entry(id).or_default())
    }

    /// A part of a file was placed: the next frame goes behind it.
    pub(super) fn placed_frame(&mut self, ino: Ino, end: u64) {
        let id = self.clients.streams.sequence_of(ino, Direction::Write);
        if let Some(recorded) = id.and_then(|id| self.recorded(id)) {
            recorded.placed = Some(end);
        }
    }

    /// True when a handle's file is written as a frame.
    pub(super) fn is_recorded_frame(&self, ino: Ino) -> bool {
        self.clients.streams.sequence_of(ino, Direction::Write).is_some()
    }

    /// How much memory a frame should have that is being recorded, from `at` on, of which a write ends at `end`: as much as it takes if it is as
    /// long as the one before. `None`: the file is none.
    pub(super) fn memory_of_frame(&self, ino: Ino, at: u64, end: u64) -> Option<u64> {
        let id = self.clients.streams.sequence_of(ino, Direction::Write)?;
        let length = self.clients.streams.sequences.get(id)?.frame_bytes().0;
        let piece = pieces(length).into_iter().find(|piece| piece.contains(&at));
        Some(piece.map_or(end - at, |piece| (piece.end - at).max(end - at)))
    }

    /// No more of this file is to be written: its free space is others'.
    pub(super) fn release_window(&mut self, ino: Ino) {
        self.space.allocator.release_window(Owner(ino.0));
    }
}

/// A file in at most three parts that need no block much longer than themselves, and its longest blocks.
pub(super) fn pieces(size: u64) -> SmallVec<[Range<u64>; 4]> {
    /// The longest block. Representation.
    const LONGEST: u64 = MAX_BUFFER as u64;
    let (mut pieces, mut at, mut cuts) = (SmallVec::new(), 0, 0);
    let whole = size / LONGEST * LONGEST;
    if whole > 0 {
        pieces.push(0..whole);
        at = whole;
    }
    while at < size {
        let rest = page_ceil(size - at);
        let block = rest.next_power_of_two();
        let length = if block - rest <= rest / 8 || cuts == 2 { rest } else { block / 2 };
        cuts += 1;
        pieces.push(at..(at + length).min(size));
        at += length;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Frames are covered without overlap, each piece as a block can lie, and little more memory than they need is
        /// taken.
        #[test]
        fn a_frame_is_in_few_blocks_that_fit(size in 1u64..64 << 20) {
            let pieces = pieces(size);
            prop_assert_eq!(pieces.first().map(|piece| piece.start), Some(0));
            prop_assert_eq!(pieces.last().map(|piece| piece.end), Some(size));
            prop_assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(pieces.len() <= 4);
            let memory: u64 = pieces.iter().map(|piece| {
                let length = page_ceil(piece.end) - piece.start;
                if length > MAX_BUFFER as u64 { length } else { length.next_power_of_two() }
            }).sum();
            prop_assert!(memory <= page_ceil(size) + size / 4 + BLOCK, "{} for {}", memory, size);
            for piece in &pieces {
                let block = (page_ceil(piece.end) - piece.start).next_power_of_two().min(MAX_BUFFER as u64);
                prop_assert!(piece.start.is_multiple_of(block));
            }
        }
    }
}
