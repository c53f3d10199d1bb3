//! File data in pinned memory.
//!
//! A block covers a power of two of bytes of one file, aligned to its size, 4 KiB to 8 MiB, in one buffer, or in several where
//! writes hand theirs over. Which of its bytes are valid and which are dirty is kept to the byte, so a write never needs a read first.
//!
//! **Invariants:** blocks of a file do not overlap; dirty bytes are valid. A block that is dirty, loading, being written or being
//! filled by a client is never evicted. One that a player will come to is evicted only when there is nothing else. Valid bytes
//! beyond the end of the file are zero.

use super::blocks::{BlockId, BlockIndex};
use crate::ranges::RangeSet;
use avfs_io::Segment;
use avfs_io::pool::{Buffer, Pool};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use units::{Ino, Instant};

/// The memory of a block: one buffer, or several of one length.
#[derive(Debug)]
pub(in crate::core) struct BlockMemory(SmallVec<[Buffer; 1]>);

impl BlockMemory {
    /// `buffers`, of which there is at least one, are of one length.
    pub(in crate::core) fn new(buffers: SmallVec<[Buffer; 1]>) -> Self {
        debug_assert!(buffers.iter().all(|buffer| buffer.len() == buffers[0].len()));
        Self(buffers)
    }

    pub(in crate::core) fn len(&self) -> usize {
        self.0.len() * self.0[0].len()
    }

    /// The buffers that hold these bytes of the block, with the range in each.
    pub(in crate::core) fn parts(
        &self,
        bytes: Range<usize>,
    ) -> impl Iterator<Item = (&Buffer, Range<usize>)> {
        let each = self.0[0].len();
        (bytes.start / each..bytes.end.div_ceil(each)).map(move |index| {
            let first = index * each;
            (&self.0[index], bytes.start.max(first) - first..bytes.end.min(first + each) - first)
        })
    }

    /// Where a request to the device finds these bytes.
    pub(in crate::core) fn segments(&self, bytes: Range<usize>) -> SmallVec<[Segment; 2]> {
        let segment = |(buffer, range): (&Buffer, Range<usize>)| Segment {
            buffer: buffer.clone(),
            start: range.start,
            length: range.len(),
        };
        self.parts(bytes).map(segment).collect()
    }

    /// See [`Buffer::zero`].
    pub(in crate::core) fn zero(&self, start: usize, length: usize) {
        for (buffer, range) in self.parts(start..start + length) {
            buffer.zero(range.start, range.len());
        }
    }

    /// See [`Buffer::copy_in`].
    pub(in crate::core) fn copy_in(&self, start: usize, from: &[u8]) {
        let mut rest = from;
        for (buffer, range) in self.parts(start..start + from.len()) {
            let (now, later) = rest.split_at(range.len());
            buffer.copy_in(range.start, now);
            rest = later;
        }
    }

    /// See [`Buffer::is_shared`].
    pub(in crate::core) fn is_shared(&self) -> bool {
        self.0.iter().any(Buffer::is_shared)
    }

    /// Takes `bytes`, of their length, for the buffer that begins at `start`, and gives that back. Where that one is held
    /// elsewhere, it stays, the bytes are copied to it, and they are given back.
    pub(in crate::core) fn take_over(&mut self, start: usize, bytes: Buffer) -> Buffer {
        let each = self.0[0].len();
        debug_assert!(start.is_multiple_of(each) && bytes.len() == each);
        let held = &mut self.0[start / each];
        if held.is_shared() {
            held.copy_in(0, bytes.bytes(0, each));
            return bytes;
        }
        std::mem::replace(held, bytes)
    }
}

#[derive(Debug)]
pub(in crate::core) struct CacheBlock {
    pub(in crate::core) ino: Ino,
    /// First byte in the file.
    pub(in crate::core) start: u64,
    pub(in crate::core) memory: BlockMemory,
    /// Bytes, relative to `start`, that hold the file's contents.
    pub(in crate::core) valid: RangeSet,
    /// Bytes, relative to `start`, that the device does not have yet.
    pub(in crate::core) dirty: RangeSet,
    /// When the oldest dirty byte was written.
    pub(in crate::core) dirty_since: Instant,
    /// The file's fsync epoch at that moment.
    pub(in crate::core) dirty_epoch: u64,
    /// Bytes being read from the device.
    pub(in crate::core) loading: RangeSet,
    /// Bytes that were read from it and that no client has taken.
    unread: RangeSet,
    /// Requests to the device that write it, and the bytes they write.
    pub(in crate::core) writing: u32,
    pub(in crate::core) in_writing: RangeSet,
    /// How many requests the device has refused since one succeeded.
    pub(in crate::core) refused: u32,
    /// Bytes that clients copy into now, outside the core, one range for each client: no other client touches them.
    pub(in crate::core) filling: SmallVec<[(u32, u32); 2]>,
    /// Kept for an operation that is being tried.
    pub(in crate::core) held: u32,
    /// Players that will come to it.
    pub(in crate::core) wanted: u32,
    stamp: u64,
}

impl CacheBlock {
    pub(in crate::core) fn end(&self) -> u64 {
        self.start + self.memory.len() as u64
    }

    pub(in crate::core) fn is_idle(&self) -> bool {
        self.loading.is_empty() && self.writing == 0 && self.filling.is_empty() && self.held == 0
    }

    /// True when clients copy into some of these bytes of the block.
    pub(in crate::core) fn is_filling(&self, range: &Range<u64>) -> bool {
        self.filling.iter().any(|&(start, end)| u64::from(start) < range.end && range.start < u64::from(end))
    }

    /// Bytes of the file `from..to`, relative to the block and cut to it.
    pub(in crate::core) fn relative(&self, from: u64, to: u64) -> Range<u64> {
        let start = from.max(self.start) - self.start;
        start..(to.min(self.end()).saturating_sub(self.start)).max(start)
    }
}

/// All blocks, and the order in which they were used.
#[derive(Debug)]
pub(in crate::core) struct Cache {
    pool: Pool,
    /// Slots of blocks, each with its turn; small files make many blocks, so a slot costs little.
    slots: Vec<(u32, Option<CacheBlock>)>,
    free_slots: Vec<u32>,
    /// Least recently used first. Only what may be evicted is worth looking at, so dirty blocks are not in it.
    clean: BTreeMap<u64, BlockId>,
    next_stamp: u64,
    /// Blocks with dirty bytes, by file and first byte.
    dirty: BTreeMap<Ino, BlockIndex>,
    /// Blocks of files, or of parts of files, that are gone. There may be very many: their memory comes back little by little.
    gone: Vec<BlockIndex>,
    pub(in crate::core) dirty_bytes: u64,
    wanted_bytes: u64,
    /// What clients can read, as far as it came from the device, since the cache was made.
    loaded_bytes: u64,
    /// What had not been taken of it when its block went, and what was not taken of blocks to which no player will come.
    unread_gone: u64,
    unread_idle: u64,
}

impl Cache {
    pub(in crate::core) fn new(pool: Pool) -> Self {
        Self {
            pool,
            slots: Vec::new(),
            free_slots: Vec::new(),
            clean: BTreeMap::new(),
            next_stamp: 0,
            dirty: BTreeMap::new(),
            gone: Vec::new(),
            dirty_bytes: 0,
            wanted_bytes: 0,
            loaded_bytes: 0,
            unread_gone: 0,
            unread_idle: 0,
        }
    }

    /// Bytes of blocks that players will come to.
    pub(in crate::core) fn wanted_bytes(&self) -> u64 {
        self.wanted_bytes
    }

    /// Bytes that were read from the device for clients, and how many of them were not taken, and no player will come to.
    pub(in crate::core) fn loaded_bytes(&self) -> (u64, u64) {
        (self.loaded_bytes, self.unread_gone + self.unread_idle)
    }

    /// These bytes of the block have come from the device, for its readers.
    pub(in crate::core) fn mark_loaded(&mut self, id: BlockId, range: Range<u64>) {
        self.loaded_bytes += range.end - range.start;
        self.change_unread(id, |unread| unread.insert(range));
    }

    /// A client has taken these bytes of the block.
    pub(in crate::core) fn mark_read(&mut self, id: BlockId, range: Range<u64>) {
        self.change_unread(id, |unread| unread.remove(range));
    }

    fn change_unread(&mut self, id: BlockId, change: impl FnOnce(&mut RangeSet)) {
        let Some(block) = find(&mut self.slots, id) else { return };
        let before = block.unread.total();
        change(&mut block.unread);
        if block.wanted == 0 {
            self.unread_idle = self.unread_idle + block.unread.total() - before;
        }
    }

    /// One more player will come to the block.
    pub(in crate::core) fn want(&mut self, id: BlockId) {
        let Some(block) = find(&mut self.slots, id) else { return };
        block.wanted += 1;
        if block.wanted == 1 {
            self.wanted_bytes += block.memory.len() as u64;
            self.unread_idle -= block.unread.total();
        }
    }

    /// One player less.
    pub(in crate::core) fn unwant(&mut self, id: BlockId) {
        let Some(block) = find(&mut self.slots, id) else { return };
        block.wanted -= 1;
        if block.wanted == 0 {
            self.wanted_bytes -= block.memory.len() as u64;
            self.unread_idle += block.unread.total();
        }
    }

    pub(in crate::core) fn get(&self, id: BlockId) -> Option<&CacheBlock> {
        let (turn, block) = self.slots.get(id.slot as usize)?;
        block.as_ref().filter(|_| *turn == id.turn)
    }

    /// To change anything but `dirty`, which has methods of its own.
    pub(in crate::core) fn get_mut(&mut self, id: BlockId) -> Option<&mut CacheBlock> {
        find(&mut self.slots, id)
    }

    /// How many blocks there are.
    pub(in crate::core) fn len(&self) -> usize {
        self.slots.len() - self.free_slots.len()
    }

    /// True when the block is among those that eviction looks at.
    pub(in crate::core) fn is_evictable(&self, id: BlockId) -> bool {
        self.get(id).is_some_and(|block| self.clean.get(&block.stamp) == Some(&id))
    }

    pub(in crate::core) fn capacity(&self) -> u64 {
        self.pool.capacity().as_u64()
    }

    pub(in crate::core) fn used(&self) -> u64 {
        self.pool.used().as_u64()
    }

    /// The stamp of what is used next: what was used before is older.
    pub(in crate::core) fn next_stamp(&self) -> u64 {
        self.next_stamp
    }

    pub(in crate::core) fn touch(&mut self, id: BlockId) {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        if let Some(block) = self.get_mut(id) {
            let old = std::mem::replace(&mut block.stamp, stamp);
            if self.clean.remove(&old).is_some() {
                self.clean.insert(stamp, id);
            }
        }
    }

    pub(in crate::core) fn insert(&mut self, ino: Ino, start: u64, memory: BlockMemory) -> BlockId {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        let block = CacheBlock {
            ino,
            start,
            memory,
            valid: RangeSet::default(),
            dirty: RangeSet::default(),
            dirty_since: Instant::FAR_FUTURE,
            dirty_epoch: u64::MAX,
            loading: RangeSet::default(),
            unread: RangeSet::default(),
            writing: 0,
            in_writing: RangeSet::default(),
            refused: 0,
            filling: SmallVec::new(),
            held: 0,
            wanted: 0,
            stamp,
        };
        let id = match self.free_slots.pop() {
            Some(slot) => {
                let (turn, held) = &mut self.slots[slot as usize];
                *held = Some(block);
                BlockId { slot, turn: *turn }
            }
            None => {
                self.slots.push((0, Some(block)));
                BlockId { slot: (self.slots.len() - 1) as u32, turn: 0 }
            }
        };
        self.clean.insert(stamp, id);
        id
    }

    /// Takes a block out, whatever state it is in; dirty bytes are forgotten.
    pub(in crate::core) fn remove(&mut self, id: BlockId) -> Option<CacheBlock> {
        let (turn, held) = self.slots.get_mut(id.slot as usize).filter(|(turn, _)| *turn == id.turn)?;
        let block = held.take()?;
        *turn = turn.wrapping_add(1);
        self.free_slots.push(id.slot);
        self.clean.remove(&block.stamp);
        self.dirty_bytes -= block.dirty.total();
        if !block.dirty.is_empty() {
            self.forget_dirty(id, block.ino, block.start);
        }
        let unread = block.unread.total();
        self.unread_gone += unread;
        if block.wanted > 0 {
            self.wanted_bytes -= block.memory.len() as u64;
        } else {
            self.unread_idle -= unread;
        }
        Some(block)
    }

    /// These bytes of the block are valid and the device does not have them.
    pub(in crate::core) fn mark_dirty(&mut self, id: BlockId, range: Range<u64>, now: Instant, epoch: u64) {
        let Some(block) = find(&mut self.slots, id) else { return };
        let before = block.dirty.total();
        if before == 0 {
            block.dirty_since = now;
            block.dirty_epoch = epoch;
            self.clean.remove(&block.stamp);
            self.dirty.entry(block.ino).or_default().insert(block.start, id);
        }
        block.valid.insert(range.clone());
        block.dirty.insert(range.clone());
        self.dirty_bytes += block.dirty.total() - before;
        // What is written over cannot be read any more.
        self.mark_read(id, range);
    }

    /// These bytes are on their way to the device, or are not the file's any more.
    pub(in crate::core) fn mark_clean(&mut self, id: BlockId, range: Range<u64>) {
        let Some(block) = find(&mut self.slots, id) else { return };
        let before = block.dirty.total();
        block.dirty.remove(range);
        let after = block.dirty.total();
        self.dirty_bytes -= before - after;
        if after == 0 && before > 0 {
            block.dirty_since = Instant::FAR_FUTURE;
            block.dirty_epoch = u64::MAX;
            self.clean.insert(block.stamp, id);
            let (ino, start) = (block.ino, block.start);
            self.forget_dirty(id, ino, start);
        }
    }

    /// The block is not among the dirty ones of its file.
    fn forget_dirty(&mut self, id: BlockId, ino: Ino, start: u64) {
        let Some(blocks) = self.dirty.get_mut(&ino) else { return };
        // Of a block that is gone the place may be another's.
        if blocks.get(start) == Some(id) {
            blocks.remove(start);
        }
        if blocks.is_empty() {
            self.dirty.remove(&ino);
        }
    }

    /// True when something of the file is dirty.
    pub(in crate::core) fn is_dirty(&self, ino: Ino) -> bool {
        self.dirty.contains_key(&ino)
    }

    /// The file's blocks with dirty bytes that begin in `range`, in order.
    pub(in crate::core) fn dirty_of(
        &self,
        ino: Ino,
        range: Range<u64>,
    ) -> impl Iterator<Item = (u64, BlockId)> {
        self.dirty.get(&ino).into_iter().flat_map(move |blocks| blocks.range(range.clone()))
    }

    /// Files with dirty blocks.
    pub(in crate::core) fn dirty_files(&self) -> impl Iterator<Item = Ino> {
        self.dirty.keys().copied()
    }

    /// These blocks of a file, from `from` on, are not needed any more. They count as what they were until
    /// [`remove_gone`](Self::remove_gone).
    pub(in crate::core) fn let_go(&mut self, ino: Ino, from: u64, blocks: BlockIndex) {
        if let Some(dirty) = self.dirty.get_mut(&ino) {
            dirty.split_off(from);
            if dirty.is_empty() {
                self.dirty.remove(&ino);
            }
        }
        if !blocks.is_empty() {
            self.gone.push(blocks);
        }
    }

    /// Takes out some of the blocks that are not needed any more, at most `count`. True when there are more.
    pub(in crate::core) fn remove_gone(&mut self, count: usize) -> bool {
        for _ in 0..count {
            let Some(blocks) = self.gone.last_mut() else { return false };
            match blocks.last_until(u64::MAX) {
                Some((start, id)) => {
                    blocks.remove(start);
                    self.remove(id);
                }
                None => _ = self.gone.pop(),
            }
        }
        !self.gone.is_empty()
    }

    /// True when blocks are kept that are not needed any more.
    pub(in crate::core) fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Those of them that were not evicted, for the audit.
    pub(in crate::core) fn gone(&self) -> impl Iterator<Item = &CacheBlock> {
        self.gone.iter().flat_map(BlockIndex::ids).filter_map(|id| self.get(id))
    }

    /// Takes out the clean block that was not used for longest, if that was before this stamp and no player will come to it.
    pub(in crate::core) fn evict_older(&mut self, stamp: u64) -> Option<(BlockId, CacheBlock)> {
        let fits = |block: &CacheBlock| block.is_idle() && !block.memory.is_shared() && block.wanted == 0;
        let mut blocks = self.clean.range(..stamp).map(|(_, &id)| id);
        let id = blocks.find(|&id| self.get(id).is_some_and(fits))?;
        self.remove(id).map(|block| (id, block))
    }

    /// Takes out the clean block that was not used for longest, of those to which no player will come if there is one.
    pub(in crate::core) fn evict_one(&mut self) -> Option<(BlockId, CacheBlock)> {
        let find = |may_be_wanted: bool| {
            let mut blocks = self.clean.values().filter_map(|&id| Some((id, self.get(id)?)));
            let fits = |block: &CacheBlock| {
                block.is_idle() && !block.memory.is_shared() && (may_be_wanted || block.wanted == 0)
            };
            blocks.find_map(|(id, block)| fits(block).then_some(id))
        };
        let id = find(false).or_else(|| find(true))?;
        self.remove(id).map(|block| (id, block))
    }
}

/// The block in its slot; a function of its own so that the cache's other fields stay usable beside it.
fn find(slots: &mut [(u32, Option<CacheBlock>)], id: BlockId) -> Option<&mut CacheBlock> {
    let (turn, block) = slots.get_mut(id.slot as usize)?;
    block.as_mut().filter(|_| *turn == id.turn)
}
