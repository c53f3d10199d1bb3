//! Memory for file data.
//!
//! **For:** finding it, at the expense of what was not used for longest. **Excludes:** what is in it. **State:** none of its own.
//! **Invariants:** the reserve is left alone, but for what makes memory free again.

use super::state::blocks::BlockId;
use super::state::cache::{BlockMemory, CacheBlock};
use super::state::{Core, HANDED_OVER_BYTES, LEAST_STEPS, STEPS};
use avfs_io::pool::{Buffer, MAX_BUFFER, MIN_BUFFER};
use smallvec::{SmallVec, smallvec};
use units::Bytes;

/// Memory that file data may not take. The log, checkpoints and superblocks need some when everything is dirty. An operator's
/// target.
const SYSTEM_RESERVE: u64 = 16 << 20;
/// A piece of memory may cost the eviction of so many times its size. It bounds what is lost of the cache. An operator's target.
const SCATTERED_LIMIT: usize = 4;

impl Core {
    /// At most `count` buffers in which writes of [`HANDED_OVER_BYTES`] can come: no more than a sixteenth of the memory.
    pub fn request_buffers(&self, count: usize) -> Vec<Buffer> {
        let most = self.data.cache.capacity() as usize / 16 / HANDED_OVER_BYTES;
        (0..count.min(most)).map_while(|_| self.data.pool.allocate(HANDED_OVER_BYTES)).collect()
    }

    /// Memory for file data, at the expense of what was not used for longest; less than `length` where that much is
    /// not to be had in one piece. Leaves the reserve alone. `None` when everything is in use.
    pub(super) fn data_buffer(&mut self, length: usize) -> Option<Buffer> {
        let floor = SYSTEM_RESERVE.min(self.data.cache.capacity() / 4);
        let mut size = length.next_power_of_two().clamp(MIN_BUFFER, MAX_BUFFER);
        let mut evicted = 0;
        loop {
            let enough = self.data.pool.available().as_u64() >= floor + size as u64;
            if enough && let Some(buffer) = self.data.pool.allocate(size) {
                return Some(buffer);
            }
            // Where memory is in small pieces, a large one is not worth the whole cache.
            let scattered = enough && evicted >= SCATTERED_LIMIT * size && size > MIN_BUFFER;
            let block = if scattered { None } else { self.data.cache.evict_one() };
            match block {
                Some((id, block)) => {
                    evicted += block.memory.len();
                    self.forget_block(id, &block);
                }
                // What is dirty of files that are gone is not written any more.
                None if self.data.cache.has_gone() => _ = self.data.cache.remove_gone(1),
                None if size == MIN_BUFFER => return None,
                None => {
                    size /= 2;
                    evicted = 0;
                }
            }
        }
    }

    /// What is used from now on is younger than this.
    pub fn cache_stamp(&self) -> u64 {
        self.data.cache.next_stamp()
    }

    /// Gives up what was not used since the cache [had this stamp](Self::cache_stamp), in memory alone, until so many bytes are free
    /// or a turn's steps are done. Gives back how many bytes it was, and whether there may be more.
    pub fn shed(&mut self, stamp: u64, bytes: u64) -> (u64, bool) {
        let mut shed = 0;
        for _ in 0..STEPS {
            if shed >= bytes {
                return (shed, false);
            }
            let Some((id, block)) = self.data.cache.evict_older(stamp) else { return (shed, false) };
            shed += block.memory.len() as u64;
            self.forget_block(id, &block);
        }
        (shed, true)
    }

    /// The memory for all data is so much from now on.
    pub fn resize_memory(&mut self, memory: Bytes) {
        self.clients.streams.set_memory(memory);
    }

    /// Memory for a block: one buffer, or as many of `longest` as it takes, if there are any.
    pub(super) fn data_memory(&mut self, length: usize, longest: usize) -> Option<BlockMemory> {
        let whole = length.next_power_of_two();
        if whole > longest {
            let mut buffers = SmallVec::new();
            while buffers.len() < whole / longest {
                match self.data_buffer(longest) {
                    Some(buffer) if buffer.len() == longest => buffers.push(buffer),
                    _ => break,
                }
            }
            if buffers.len() == whole / longest {
                return Some(BlockMemory::new(buffers));
            }
        }
        self.data_buffer(length).map(|buffer| BlockMemory::new(smallvec![buffer]))
    }

    /// Memory for one page that is read aside so that a dirty one can be completed. It may come from the reserve: it
    /// is what lets dirty memory become free again.
    pub(super) fn bounce_buffer(&mut self, length: usize) -> Option<Buffer> {
        let floor = SYSTEM_RESERVE.min(self.data.cache.capacity() / 4) / 2;
        let spare = self.data.pool.available().as_u64() >= floor + length as u64;
        self.data_buffer(length).or_else(|| if spare { self.data.pool.allocate(length) } else { None })
    }

    /// The file of an evicted block does not have it any more.
    pub(super) fn forget_block(&mut self, id: BlockId, block: &CacheBlock) {
        // Of a block that is gone already the place may be another's.
        if let Some(file) =
            self.data.files.get_mut(&block.ino).filter(|file| file.blocks.get(block.start) == Some(id))
        {
            file.blocks.remove(block.start);
            self.rest(block.ino);
        } else if let Some(file) =
            self.data.resting.get_mut(&block.ino).filter(|file| file.blocks.get(block.start) == Some(id))
        {
            file.blocks.remove(block.start);
            if file.is_empty() {
                self.data.resting.remove(&block.ino);
            }
        }
    }

    /// Memory of files that are gone.
    pub(super) fn remove_gone(&mut self) {
        while self.data.cache.has_gone() && self.take_steps(LEAST_STEPS) {
            self.data.cache.remove_gone(LEAST_STEPS as usize);
        }
    }

    /// More is dirty than the device should be left behind with. A recorder that keeps its rate may fill memory that the others
    /// have to leave it, so that it never waits for the writes of a copy.
    pub(super) fn is_overfull(&self, keeps_its_rate: bool) -> bool {
        let parts = if keeps_its_rate { 7 } else { 4 };
        self.data.cache.dirty_bytes + self.writeback.bytes > self.data.cache.capacity() / 8 * parts
    }

    /// Keeps a block from being evicted, or no longer.
    pub(super) fn hold(&mut self, id: BlockId, held: bool) {
        if let Some(block) = self.data.cache.get_mut(id) {
            block.held = if held { block.held + 1 } else { block.held - 1 };
        }
    }

    /// Bytes that are dirty, and bytes on their way to the device.
    pub(super) fn unwritten_bytes(&self) -> (u64, u64) {
        (self.data.cache.dirty_bytes, self.writeback.bytes)
    }
}
