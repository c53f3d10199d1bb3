//! Bytes of a file that are not in memory: blocks for them, and requests to the device.
//!
//! **For:** making blocks, and filling them with zeros or from the device. **Excludes:** which client wants them, and what happens
//! when a request ends. **State:** none of its own. **Invariants:** neither zeros nor what the device holds come over bytes that a
//! client copies.

use super::state::Core;
use super::state::blocks::{BlockId, page_ceil, page_floor};
use super::state::file::FileState;
use super::state::outbox::Purpose;
use crate::allocator::BlockRun;
use crate::format::BLOCK;
use crate::types::*;
use avfs_io::pool::{Buffer, MAX_BUFFER};
use avfs_io::{IoOperation, Segment};
use avfs_streams::RequestQos;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use units::Ino;

impl Core {
    /// Appends what is known of `at..end` without the device: cached bytes, or zeros of a hole.
    pub(super) fn cached_slice(&mut self, ino: Ino, at: u64, end: u64, data: &mut ReadData) -> Option<u64> {
        let file = self.data.files.get(&ino)?;
        if let Some((start, id)) = file.block_before(at)
            && let Some(block) = self.data.cache.get(id)
            && at < block.end()
        {
            let valid_end = block.valid.end_of(at - start)?;
            let length = (end - at).min(start + valid_end - at);
            let bytes = (at - start) as usize..(at - start + length) as usize;
            let slices = block.memory.parts(bytes).map(|(buffer, range)| ReadSlice::Buffer {
                buffer: buffer.clone(),
                start: range.start,
                length: range.len(),
            });
            data.slices.extend(slices);
            self.data.cache.touch(id);
            self.data.cache.mark_read(id, at - start..at - start + length);
            return Some(length);
        }
        let until = file.next_block(at).unwrap_or(end).min(end);
        let hole_end = self.hole_end(ino, at, until)?;
        data.slices.push(ReadSlice::Zeros((hole_end - at) as usize));
        Some(hole_end - at)
    }

    /// End of the range from `at` on that has no written extent, at most `until`; `None` if `at` has one.
    pub(super) fn hole_end(&self, ino: Ino, at: u64, until: u64) -> Option<u64> {
        let extents = self.metadata.get(ino)?.extents()?;
        let written = extents.range(at / BLOCK, until.div_ceil(BLOCK)).find(|extent| !extent.unwritten);
        let end = written.map_or(until, |extent| (extent.logical * BLOCK).min(until));
        (end > at).then_some(end)
    }

    /// Makes blocks for what is missing of `range` and asks the device for it. False when there is no memory.
    pub(super) fn load(&mut self, ino: Ino, range: Range<u64>, sequential: bool, need: RequestQos) -> bool {
        // Blocks of the range are not evicted to make room for others of it.
        let mut held = SmallVec::new();
        let loaded = self.load_held(ino, range, sequential, need, &mut held);
        for id in held {
            self.hold(id, false);
        }
        loaded
    }

    pub(super) fn load_held(
        &mut self,
        ino: Ino,
        range: Range<u64>,
        sequential: bool,
        need: RequestQos,
        held: &mut SmallVec<[BlockId; 4]>,
    ) -> bool {
        let mut at = range.start;
        while at < range.end {
            let Some(file) = self.data.files.get(&ino) else { return true };
            let present = file
                .block_before(at)
                .filter(|&(_, id)| self.data.cache.get(id).is_some_and(|b| at < b.end()));
            if let Some((_, id)) = present {
                self.hold(id, true);
                held.push(id);
                let Some(block) = self.data.cache.get(id) else { return true };
                let block_end = block.end();
                let missing: Vec<_> = block
                    .valid
                    .gaps(block.relative(at, range.end))
                    .into_iter()
                    .map(|gap| (id, gap))
                    .collect();
                for (id, gap) in missing {
                    if !self.fill(ino, id, gap, need) {
                        return false;
                    }
                }
                at = block_end;
                continue;
            }
            let until = file.next_block(at).unwrap_or(u64::MAX);
            if let Some(hole_end) = self.hole_end(ino, at, until.min(range.end)) {
                at = hole_end;
                continue;
            }
            let size = file.size;
            let wanted = if sequential {
                // The largest block, or as much of it as the file fills.
                let first = at / MAX_BUFFER as u64 * MAX_BUFFER as u64;
                (MAX_BUFFER as u64).min(size.saturating_sub(first))
            } else {
                range.end - at
            };
            let Some(id) = self.make_block(ino, at, wanted) else { return false };
            self.hold(id, true);
            held.push(id);
            let Some(block) = self.data.cache.get(id) else { return true };
            let gap = if sequential {
                0..page_ceil(size).min(block.end()).saturating_sub(block.start)
            } else {
                let wanted = block.relative(page_floor(at), page_ceil(range.end.min(size)));
                wanted.start..wanted.end
            };
            at = block.end();
            if !self.fill(ino, id, gap, need) {
                return false;
            }
        }
        true
    }

    /// Makes a block that covers `at`: aligned, at most `wanted` bytes and what the file's end asks for, and not
    /// across other blocks of the file.
    pub(super) fn make_block(&mut self, ino: Ino, at: u64, wanted: u64) -> Option<BlockId> {
        self.make_block_of(MAX_BUFFER, ino, at, wanted)
    }

    /// As [`make_block`](Self::make_block), of buffers that are not longer than `longest`.
    pub(super) fn make_block_of(
        &mut self,
        longest: usize,
        ino: Ino,
        at: u64,
        wanted: u64,
    ) -> Option<BlockId> {
        let mut size = wanted.max(BLOCK).next_power_of_two().min(MAX_BUFFER as u64);
        let fits = |file: &FileState, size: u64| {
            let start = at / size * size;
            let before = file
                .block_before(at)
                .is_none_or(|(_, id)| self.data.cache.get(id).is_none_or(|block| block.end() <= start));
            before
                && file.next_block(start).is_none_or(|next| next >= start + size)
                && !file.blocks.contains(start)
        };
        let file = self.data.files.get(&ino)?;
        // Not larger than the file needs, unless it is growing.
        let needed = page_ceil(file.size.max(at + 1)).next_power_of_two();
        size = size.min(needed.max(wanted.next_power_of_two().max(BLOCK)));
        while size > BLOCK && !fits(file, size) {
            size /= 2;
        }
        let memory = self.data_memory(size as usize, longest)?;
        // Eviction may have given less than was asked for.
        let size = memory.len() as u64;
        let start = at / size * size;
        let id = self.data.cache.insert(ino, start, memory);
        self.file_mut(ino).blocks.insert(start, id);
        Some(id)
    }

    /// Makes the bytes `gap` (relative to the block, not valid) valid: zeros where the device has nothing, else a
    /// request. False when there is no memory.
    pub(super) fn fill(&mut self, ino: Ino, id: BlockId, gap: Range<u64>, need: RequestQos) -> bool {
        let Some(block) = self.data.cache.get(id) else { return true };
        let start = block.start;
        let pages = page_floor(gap.start)..page_ceil(gap.end).min(block.memory.len() as u64);
        if block.is_filling(&pages) {
            // Neither zeros nor what the device holds may come over bytes that a client is copying. A reader that needs the rest
            // tries again when the client is done.
            return true;
        }
        let (from, to) = ((start + pages.start) / BLOCK, (start + pages.end) / BLOCK);
        let written: Vec<_> = self
            .metadata
            .get(ino)
            .and_then(|inode| inode.extents())
            .into_iter()
            .flat_map(|extents| extents.range(from, to))
            .filter(|extent| !extent.unwritten)
            .collect();
        let mut at = pages.start;
        for extent in &written {
            let relative = extent.logical * BLOCK - start;
            self.fill_zeros(id, at..relative);
            at = relative + extent.count * BLOCK;
        }
        self.fill_zeros(id, at..pages.end);
        for extent in &written {
            let relative = extent.logical * BLOCK - start;
            let run = relative..relative + extent.count * BLOCK;
            let Some(block) = self.data.cache.get(id) else { return true };
            let missing = block.loading.gaps(run);
            for part in missing {
                // Pages of which some bytes are valid already are read aside and merged.
                let mut cuts: Vec<Range<u64>> = Vec::new();
                let Some(block) = self.data.cache.get(id) else { return true };
                let mut page = part.start;
                while page < part.end {
                    let partial = |page: u64| block.valid.overlaps(page..page + BLOCK);
                    let kind = partial(page);
                    let mut stop = page + BLOCK;
                    while !kind && stop < part.end && !partial(stop) {
                        stop += BLOCK;
                    }
                    if !block.valid.covers(page..stop) {
                        cuts.push(page..stop);
                    }
                    page = stop;
                }
                for cut in cuts {
                    let device = extent.start + (cut.start - relative) / BLOCK;
                    if !self.request_load(ino, id, cut, device, need) {
                        return false;
                    }
                }
            }
        }
        true
    }

    pub(super) fn fill_zeros(&mut self, id: BlockId, range: Range<u64>) {
        let Some(block) = self.data.cache.get_mut(id) else { return };
        for gap in block.valid.gaps(range) {
            block.memory.zero(gap.start as usize, (gap.end - gap.start) as usize);
            block.valid.insert(gap);
        }
    }

    pub(super) fn request_load(
        &mut self,
        ino: Ino,
        id: BlockId,
        cut: Range<u64>,
        device: u64,
        need: RequestQos,
    ) -> bool {
        let length = (cut.end - cut.start) as usize;
        let Some(block) = self.data.cache.get(id) else { return true };
        let partial = block.valid.overlaps(cut.clone());
        let (segments, bounce): (SmallVec<[Segment; 2]>, Option<Buffer>) = if partial {
            self.hold(id, true);
            let bounce = self.bounce_buffer(length);
            self.hold(id, false);
            match bounce {
                Some(bounce) => {
                    (smallvec![Segment { buffer: bounce.clone(), start: 0, length }], Some(bounce))
                }
                None => return false,
            }
        } else {
            (block.memory.segments(cut.start as usize..cut.end as usize), None)
        };
        let Some(block) = self.data.cache.get_mut(id) else { return true };
        block.loading.insert(cut.clone());
        let address = self.address(device);
        let run = BlockRun { start: device, count: length as u64 / BLOCK };
        self.file_mut(ino).loads += 1;
        self.writeback.requests += usize::from(partial);
        self.request(
            IoOperation::Read,
            address,
            segments,
            need.class,
            need.stream,
            need.deadline,
            Purpose::Load { ino, block: id, start: cut.start, length: length as u64, bounce },
            Some(run),
        );
        true
    }
}
