//! Dirty bytes to the device: whole blocks as soon as they are full, the rest when it is old, wanted or in the way.

use super::state::blocks::{BlockId, page_ceil, page_floor};
use super::state::cache::CacheBlock;
use super::state::file::{FileState, Touched};
use super::state::outbox::{Purpose, WrittenPiece};
use super::state::{Aging, Core, DIRTY_AGE, ONE_REQUEST, STEPS, WRITTEN_WITHIN};
use crate::allocator::BlockRun;
use crate::extent::Extent;
use crate::format::BLOCK;
use crate::record::Record;
use crate::steps::{Step, has};
use avfs_io::pool::MAX_BUFFER;
use avfs_io::{IoError, IoOperation};
use avfs_streams::RequestQos;
use avfs_streams::writers::turns_of;
use rtsched::{Class, Direction, Terms};
use smallvec::SmallVec;
use std::ops::Range;
use units::{Bytes, Duration, Ino, Instant, Now};

/// With fewer requests on their way, writing for the sake of memory or of a waiting client goes on. It keeps any device busy. An
/// operator's target.
const FEW_REQUESTS: usize = 32;
/// Such writing goes on until so many requests are on their way. It bounds the length of a turn. An operator's target.
const MANY_REQUESTS: usize = 128;
/// Aged blocks are looked for at most this often. It bounds the work beside clients. An operator's target.
const AGING_STEP: Duration = Duration::from_millis(250);

impl Core {
    /// After a write of `from..end`: writes back the blocks that it has completed.
    pub(super) fn write_back_full(&mut self, now: Now, ino: Ino, from: u64, end: u64) {
        let Some(file) = self.data.files.get(&ino) else { return };
        let first = file.block_before(from).map_or(from, |(start, _)| start);
        let is_complete = |block: &&CacheBlock| {
            // Filled just now, or its end was reached after a part of it had been written already.
            let whole = 0..MAX_BUFFER as u64;
            block.memory.len() == MAX_BUFFER
                && (block.dirty.covers(whole.clone()) || block.end() <= end && block.valid.covers(whole))
        };
        let touched = file.blocks.range(first..end).filter_map(|(_, id)| self.data.cache.get(id));
        let Some(end) = touched.filter(is_complete).map(CacheBlock::end).max() else { return };
        if self.gathers(ino, end) {
            return;
        }
        // What lies before goes with it, so that the file's start is one run; but not blocks that are still being filled:
        // requests overtake each other, and one request is better than two.
        self.write_back(now, ino, 0..end, None, |block| {
            block.memory.len() < MAX_BUFFER || block.valid.covers(0..MAX_BUFFER as u64)
        });
    }

    /// What the writers of a file are promised, if that is longer requests than a block.
    fn long_terms(&self, ino: Ino) -> Option<Terms> {
        let terms = self.terms(ino, Direction::Write)?;
        (terms.request.0 >= 2 * MAX_BUFFER as u64).then_some(terms)
    }

    /// A recorder's blocks up to `end` wait until they are as many as one of the requests that it was promised.
    fn gathers(&self, ino: Ino, end: u64) -> bool {
        if self.is_recorded_frame(ino) && !self.is_overfull(true) {
            return true;
        }
        let Some(terms) = self.long_terms(ino).filter(|_| !self.is_overfull(true)) else { return false };
        let blocks = self.data.cache.dirty_of(ino, 0..end).filter_map(|(_, id)| self.data.cache.get(id));
        let waiting: u64 = blocks.filter(|block| block.writing == 0).map(|block| block.dirty.total()).sum();
        waiting < terms.request.0 / MAX_BUFFER as u64 * MAX_BUFFER as u64
    }

    /// The last writer has closed the file: what is left of a long one is written while its place behind the rest is
    /// still its own.
    pub(super) fn write_back_at_close(&mut self, now: Now, ino: Ino) {
        let has_name = self.metadata.get(ino).is_some_and(|inode| !inode.names.is_empty());
        let is_long = |file: &FileState| file.writers == 0 && file.size >= ONE_REQUEST;
        if has_name && self.data.files.get(&ino).is_some_and(|file| is_long(file)) {
            self.write_back_all(now, ino);
        }
    }

    /// Starts writing all of a file that is dirty.
    pub(super) fn write_back_all(&mut self, now: Now, ino: Ino) {
        self.write_back(now, ino, 0..u64::MAX, None, |_| true);
    }

    /// Starts writing the dirty blocks within `range` that no request writes already; of very many only as many as one turn takes:
    /// an operation that waits for the others comes again, and else they grow old.
    fn write_back(
        &mut self,
        now: Now,
        ino: Ino,
        range: Range<u64>,
        latency: Option<Duration>,
        chosen: impl Fn(&CacheBlock) -> bool,
    ) {
        let Some(file) = self.data.files.get(&ino) else { return };
        if file.exclusive > 0 {
            return;
        }
        let first = file.block_before(range.start).map_or(range.start, |(start, _)| start);
        let waits =
            |id: &BlockId| self.data.cache.get(*id).filter(|block| block.writing == 0).is_some_and(&chosen);
        let ids = self.data.cache.dirty_of(ino, first..range.end).map(|(_, id)| id).filter(waits);
        let ids: Vec<BlockId> = ids.take(self.steps_left()).collect();
        for (index, id) in ids.into_iter().enumerate() {
            if index > 0 && !self.take_steps(1) {
                break;
            }
            self.write_block(now, ino, id, latency);
        }
    }

    /// Starts writing the dirty pages of a block. Pages of which a part is missing are completed first: with zeros
    /// where the device has nothing, else by a read; the write follows when that ends.
    pub(super) fn write_block(&mut self, now: Now, ino: Ino, id: BlockId, latency: Option<Duration>) {
        let Some(block) = self.data.cache.get(id) else { return };
        if !block.filling.is_empty() || block.writing > 0 {
            return;
        }
        let start = block.start;
        let mut pages: SmallVec<[Range<u64>; 2]> = SmallVec::new();
        for dirty in block.dirty.iter() {
            let rounded = page_floor(dirty.start)..page_ceil(dirty.end);
            match pages.last_mut() {
                Some(last) if last.end >= rounded.start => last.end = last.end.max(rounded.end),
                _ => pages.push(rounded),
            }
        }
        // The rest of what is in very many pieces waits until these are written.
        pages.truncate(self.steps_left());
        self.take_steps(pages.len() as u32);
        let size = self.data.files.get(&ino).map_or(0, |file| file.size);
        let mut missing = false;
        for range in pages.clone() {
            // Behind the end of the file there are only zeros.
            let Some(block) = self.data.cache.get_mut(id) else { return };
            let past = size.saturating_sub(start).clamp(range.start, range.end);
            for gap in block.valid.gaps(past..range.end) {
                block.memory.zero(gap.start as usize, (gap.end - gap.start) as usize);
                block.valid.insert(gap);
            }
            for gap in block.valid.gaps(range) {
                let need =
                    RequestQos::of(self.ranking(ino, Direction::Read, None), now.monotonic, Bytes::ZERO);
                self.fill(ino, id, gap.clone(), need);
                missing |= self.data.cache.get(id).is_some_and(|block| !block.valid.covers(gap));
            }
        }
        if missing {
            if let Some(file) = self.data.files.get_mut(&ino) {
                file.write_after_load = true;
            }
            return;
        }
        for range in pages {
            self.write_pages(now, ino, id, range, latency);
        }
    }

    fn write_pages(&mut self, now: Now, ino: Ino, id: BlockId, range: Range<u64>, latency: Option<Duration>) {
        let Some(start) = self.data.cache.get(id).map(|block| block.start) else { return };
        let pages = (start + range.start) / BLOCK..(start + range.end) / BLOCK;
        let Some(pieces) = self.place_pages(now, ino, pages) else {
            return self.fail("claimed space is not there");
        };
        for pieces in pieces.chunk_by(|before, next| before.extent.run().end() == next.extent.start) {
            self.request_write(now, ino, id, pieces, latency);
        }
    }

    /// Where these pages, which are dirty, go: where they are, else to a new place. `None` if there is none.
    fn place_pages(&mut self, now: Now, ino: Ino, pages: Range<u64>) -> Option<SmallVec<[WrittenPiece; 1]>> {
        let next_extent = |core: &Self, at: u64| {
            let displaced = &core.data.files.get(&ino)?.displaced;
            core.metadata.get(ino)?.extents()?.range(at, pages.end).find_map(|extent| {
                let mut elsewhere = core.shared_pages_of(&extent);
                displaced
                    .within(extent.logical..extent.logical_end())
                    .for_each(|pages| elsewhere.insert(pages));
                let kept = elsewhere.gaps(extent.logical..extent.logical_end()).into_iter().next()?;
                extent.clip(kept.start, kept.end)
            })
        };
        let is_displaced = self.data.files.get(&ino).is_some_and(|file| !file.displaced.is_empty());
        let mut at = pages.start;
        while at < pages.end {
            let extent = next_extent(self, at);
            if !is_displaced && extent.is_none_or(|extent| extent.logical > at) {
                self.reserve_around(now, ino, at);
            }
            at = extent.map_or(pages.end, |extent| extent.logical_end());
        }
        let mut pieces: SmallVec<[WrittenPiece; 1]> = SmallVec::new();
        let mut at = pages.start;
        while at < pages.end {
            let extent = next_extent(self, at);
            let piece = match extent.filter(|extent| extent.logical == at) {
                Some(extent) => WrittenPiece { extent, record: extent.unwritten },
                None => {
                    let until = extent.map_or(pages.end, |extent| extent.logical);
                    let run = self.place_data(ino, at, until - at)?;
                    let extent = Extent { logical: at, start: run.start, count: run.count, unwritten: false };
                    WrittenPiece { extent, record: true }
                }
            };
            at = piece.extent.logical_end();
            pieces.push(piece);
        }
        Some(pieces)
    }

    /// One request for neighbouring pieces of a block.
    fn request_write(
        &mut self,
        now: Now,
        ino: Ino,
        id: BlockId,
        pieces: &[WrittenPiece],
        latency: Option<Duration>,
    ) {
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return };
        let Some(block) = self.data.cache.get_mut(id) else { return };
        let bytes =
            first.extent.logical * BLOCK - block.start..last.extent.logical_end() * BLOCK - block.start;
        let length = bytes.end - bytes.start;
        let segments = block.memory.segments(bytes.start as usize..bytes.end as usize);
        let epoch = block.dirty_epoch;
        block.writing += 1;
        block.in_writing.insert(bytes.clone());
        self.data.cache.mark_clean(id, bytes.clone());
        self.writeback.bytes += length;
        let ranking = self.ranking(ino, Direction::Write, None);
        // A buffer of recorded data may wait about as long as it took to fill; a client that waits may not.
        let by_rate = match self.terms(ino, Direction::Write) {
            Some(terms) if ranking.class == Class::RealTime => Some(now.monotonic + terms.deadline),
            _ => ranking.deadline(now.monotonic, Bytes(length)),
        };
        let by_wish = latency.map(|latency| now.monotonic + latency);
        let deadline = match (by_rate, by_wish) {
            (Some(rate), Some(wish)) => Some(rate.min(wish)),
            (rate, wish) => rate.or(wish),
        };
        let turns = || self.clients.streams.file(ino)?.last_writer.map(turns_of);
        let stream = ranking.stream.or_else(turns);
        let class = if latency.is_some() { ranking.class.min(Class::BestEffort) } else { ranking.class };
        self.writeback.requests += 1;
        let file = self.file_mut(ino);
        file.writes += 1;
        file.writing += length;
        *file.writes_by_epoch.entry(epoch).or_insert(0) += 1;
        let run = BlockRun { start: first.extent.start, count: length / BLOCK };
        self.request(
            IoOperation::Write { durable: false },
            self.address(run.start),
            segments,
            class,
            stream,
            deadline,
            Purpose::Data { ino, block: id, epoch, pieces: SmallVec::from_slice(pieces) },
            Some(run),
        );
        if !has(Step::MappedWhenWritten) {
            let new = pieces.iter().filter(|piece| piece.record);
            let extents = new.map(|piece| Extent { unwritten: false, ..piece.extent });
            let records: Vec<Record> = extents.map(|extent| Record::Map { ino, extent }).collect();
            let _ = self.transact(now, &records);
        }
    }

    pub(super) fn data_written(
        &mut self,
        now: Now,
        ino: Ino,
        id: BlockId,
        epoch: u64,
        pieces: SmallVec<[WrittenPiece; 1]>,
        result: Result<(), IoError>,
    ) {
        self.writeback.requests -= 1;
        let bytes: u64 = pieces.iter().map(|piece| piece.extent.count * BLOCK).sum();
        self.writeback.bytes -= bytes;
        if let Some(file) = self.data.files.get_mut(&ino) {
            file.writes -= 1;
            file.writing -= bytes;
            if let Some(count) = file.writes_by_epoch.get_mut(&epoch) {
                *count -= 1;
                if *count == 0 {
                    file.writes_by_epoch.remove(&epoch);
                }
            }
        }
        if let Some(block) = self.data.cache.get_mut(id) {
            block.writing -= 1;
            for piece in &pieces {
                let start = piece.extent.logical * BLOCK - block.start;
                block.in_writing.remove(start..start + piece.extent.count * BLOCK);
            }
        }
        if let Err(error) = result {
            if self.data_refused(now, ino, id, epoch, &pieces, error) {
                self.write_block(now, ino, id, Some(WRITTEN_WITHIN));
            }
            return;
        }
        if let Some(block) = self.data.cache.get_mut(id) {
            block.refused = 0;
        }
        self.data_completed();
        if self.metadata.get(ino).is_none() {
            return;
        }
        let mut records = Vec::new();
        for piece in &pieces {
            if piece.record && has(Step::MappedWhenWritten) {
                records.push(Record::Map { ino, extent: Extent { unwritten: false, ..piece.extent } });
            }
        }
        if let Some(file) = self.data.files.get_mut(&ino) {
            for piece in &pieces {
                let pages = piece.extent.logical..piece.extent.logical_end();
                file.tails.retain(|(page, _)| !pages.contains(page));
                let (_, promised) = file.stop_delaying(pages);
                self.metadata.unpromise(ino, promised);
            }
        }
        let end = pieces.iter().map(|piece| piece.extent.logical_end() * BLOCK).max().unwrap_or(0);
        records.extend(self.size_record(ino, end));
        let _ = self.transact(now, &records);
    }

    /// The record that lets the inode's size follow the file's, at most to `end`, and not past a page that still holds
    /// on the device what was behind an earlier end.
    pub(super) fn size_record(&self, ino: Ino, end: u64) -> Option<Record> {
        let file = self.data.files.get(&ino)?;
        let recorded = self.metadata.get(ino)?.size;
        let tails = file.tails.iter().filter(|_| has(Step::TailsHoldBackTheSize));
        let safe = tails.map(|&(_, behind)| behind).min().unwrap_or(u64::MAX);
        let size = file.size.min(end).min(safe);
        (size > recorded).then_some(Record::Size { ino, size })
    }

    /// Records a file's size and times as they are now; its data is on the device.
    pub(super) fn record_file(&mut self, now: Now, ino: Ino) {
        if self.is_still() {
            return;
        }
        let mut records: Vec<Record> = self.size_record(ino, u64::MAX).into_iter().collect();
        let touched = self.data.files.get_mut(&ino).and_then(|file| file.touched.take());
        if let (Some(Touched { atime, mtime }), Some(inode)) = (touched, self.metadata.get(ino)) {
            let mut attributes = inode.attributes;
            attributes.atime = atime.map_or(attributes.atime, Into::into);
            if let Some(mtime) = mtime {
                attributes.mtime = mtime.into();
                attributes.ctime = mtime.max(attributes.ctime.into()).into();
            }
            records.push(Record::Attributes { ino, attributes });
        }
        let _ = self.transact(now, &records);
        self.settle(now, ino);
    }

    /// Takes a file off the list of dirty ones when nothing of it is.
    fn settle(&mut self, now: Now, ino: Ino) {
        let dirty = self.data.files.get(&ino).is_some_and(|file| {
            file.touched.is_some()
                || file.writes > 0
                || self.data.cache.is_dirty(ino)
                || self.metadata.get(ino).is_some_and(|inode| inode.size != file.size)
        });
        if !dirty {
            self.writeback.files.remove(&ino);
            let done =
                self.data.files.get(&ino).is_none_or(|file| file.writers == 0 && file.delayed.is_empty());
            if done {
                self.release_window(ino);
            }
            if self.data.files.get(&ino).is_some_and(|file| file.writers == 0) {
                self.give_back_reserved(now, ino);
            }
            self.rest(ino);
        }
    }

    /// For fsync: ends the file's epoch, starts writing what is dirty, expedites what is on its way already, and says which
    /// epoch to wait for. `None` for an inode without data.
    pub(super) fn close_epoch(&mut self, now: Now, ino: Ino) -> Option<u64> {
        let epoch = self.end_epoch(ino)?;
        self.expedite_file(now, ino);
        Some(epoch)
    }

    /// What is written to the file from now on belongs to the next epoch. Returns the one that ends; `None` for an inode
    /// without data.
    pub(super) fn end_epoch(&mut self, ino: Ino) -> Option<u64> {
        let file = self.data.files.get_mut(&ino)?;
        file.epoch += 1;
        Some(file.epoch - 1)
    }

    /// Starts to write what is dirty of the file, and expedites what is on its way.
    pub(super) fn expedite_file(&mut self, now: Now, ino: Ino) {
        self.write_back(now, ino, 0..u64::MAX, Some(WRITTEN_WITHIN), |_| true);
        self.expedite_writes(now, ino);
    }

    /// True when everything of the file that was dirty in `epoch` or before is on the device. What could not be
    /// started before is started now.
    pub(super) fn is_written(&mut self, now: Now, ino: Ino, epoch: u64) -> bool {
        let Some(epoch) = epoch.checked_sub(u64::from(!has(Step::FsyncWaitsForItsEpoch))) else {
            return true;
        };
        let Some(file) = self.data.files.get(&ino) else { return true };
        let at_device = file.writes_by_epoch.keys().next().is_some_and(|&first| first <= epoch);
        if at_device && (file.writes + file.loads) as usize >= FEW_REQUESTS {
            // Asked after each of many requests, this must not look at every block each time.
            return false;
        }
        let is_free = file.exclusive == 0;
        let is_behind =
            |id: &BlockId| self.data.cache.get(*id).is_some_and(|block| block.dirty_epoch <= epoch);
        let behind = self.data.cache.dirty_of(ino, 0..u64::MAX).map(|(_, id)| id).filter(is_behind);
        let behind: Vec<BlockId> = behind.take(self.steps_left()).collect();
        if behind.is_empty() {
            return !at_device;
        }
        if is_free {
            for (index, id) in behind.into_iter().enumerate() {
                if index > 0 && !self.take_steps(1) {
                    break;
                }
                self.write_block(now, ino, id, Some(WRITTEN_WITHIN));
            }
        }
        false
    }

    /// Writes dirty blocks when memory runs short, unless enough is on its way. An operation that still finds no memory when that
    /// has ended comes again.
    pub(super) fn write_back_for_memory(&mut self, now: Now) {
        // A quarter of the memory is as much as makes room; what is not full yet would be written in pieces.
        if self.writeback.requests >= FEW_REQUESTS || self.writeback.bytes >= self.data.cache.capacity() / 4 {
            return;
        }
        // Recorders gather long requests, and have memory of their own for that.
        let is_last_resort = self.is_overfull(true);
        let mut blocks: Vec<(Ino, BlockId)> = Vec::new();
        let mut recorded: Vec<(Ino, BlockId)> = Vec::new();
        let most = MANY_REQUESTS.saturating_sub(self.writeback.requests);
        for ino in self.data.cache.dirty_files().take(STEPS as usize * 4) {
            if blocks.len() >= most {
                break;
            }
            if self.data.files.get(&ino).is_none_or(|file| file.exclusive > 0) {
                continue;
            }
            let list = if self.long_terms(ino).is_some() { &mut recorded } else { &mut blocks };
            let idle = |id: &BlockId| self.data.cache.get(*id).is_some_and(|block| block.writing == 0);
            let found = self.data.cache.dirty_of(ino, 0..u64::MAX).map(|(_, id)| id).filter(idle);
            list.extend(found.take(most - list.len().min(most)).map(|id| (ino, id)));
        }
        if is_last_resort || blocks.is_empty() {
            blocks.append(&mut recorded);
        }
        for (ino, id) in blocks {
            if self.writeback.requests >= MANY_REQUESTS {
                return;
            }
            self.write_block(now, ino, id, None);
        }
    }

    /// Writes what has been dirty for long, and records times and sizes of files that are otherwise written.
    pub(super) fn write_aged(&mut self, now: Now) {
        if now.monotonic < self.writeback.next_aging {
            return;
        }
        let begun = Aging { ino: Ino(0), offset: 0, next: now.monotonic + DIRTY_AGE };
        let mut at = self.writeback.aging.take().unwrap_or(begun);
        while let Some(&ino) = self.writeback.files.range(at.ino..).next() {
            if ino > at.ino {
                (at.ino, at.offset) = (ino, 0);
            }
            if !self.take_steps(2) || !self.write_aged_of(now, &mut at) {
                // The rest in the next turn.
                self.writeback.aging = Some(at);
                self.writeback.next_aging = now.monotonic;
                return;
            }
            (at.ino, at.offset) = (Ino(ino.0 + 1), 0);
        }
        self.writeback.next_aging = match self.writeback.files.is_empty() {
            true => units::Instant::FAR_FUTURE,
            false => at.next.max(now.monotonic + AGING_STEP),
        };
    }

    /// One file, from the block on that it has come to. False when there was more of it than one turn takes.
    fn write_aged_of(&mut self, now: Now, at: &mut Aging) -> bool {
        let ino = at.ino;
        let Some(file) = self.data.files.get(&ino) else {
            self.writeback.files.remove(&ino);
            return true;
        };
        let (is_free, is_quiet) = (file.exclusive == 0, file.writes == 0);
        let dirty = self.data.cache.dirty_of(ino, at.offset..u64::MAX);
        let dirty = dirty.filter_map(|(start, id)| Some((start, id, self.data.cache.get(id)?.dirty_since)));
        let blocks: Vec<_> = dirty.take(self.steps_left()).collect();
        if blocks.is_empty() {
            if is_quiet && !self.data.cache.is_dirty(ino) {
                self.record_file(now, ino);
            }
            return true;
        }
        // A recorder's long request takes its time to be gathered.
        let age = self.long_terms(ino).map_or(DIRTY_AGE, |terms| DIRTY_AGE.max(terms.period * 2));
        let limit = now.monotonic.saturating_before(age);
        for (index, &(start, id, since)) in blocks.iter().enumerate() {
            if index > 0 && !self.take_steps(1) {
                return false;
            }
            if since <= limit && is_free {
                self.write_block(now, ino, id, None);
            }
            let due = if since <= limit { now.monotonic } else { since };
            at.next = at.next.min(due + age);
            at.offset = start + 1;
        }
        self.data.cache.dirty_of(ino, at.offset..u64::MAX).next().is_none()
    }

    /// A load that ended may have completed a block that waits to be written.
    pub(super) fn write_after_load(&mut self, now: Now, ino: Ino, id: BlockId) {
        let Some(file) = self.data.files.get_mut(&ino).filter(|file| file.write_after_load) else { return };
        file.write_after_load = file.loads > 0;
        let complete = self.data.cache.get(id).is_some_and(|block| block.loading.is_empty());
        if complete && file.exclusive == 0 {
            self.write_block(now, ino, id, Some(WRITTEN_WITHIN));
        }
    }

    /// When something will have been dirty for long.
    pub(super) fn aging_due(&self) -> Instant {
        self.writeback.next_aging
    }
}
