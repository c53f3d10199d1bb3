//! Copies that share their place: a range of a file becomes that of another one, and no byte moves.
//!
//! **For:** copying whole blocks, and which parts of a copy can be done so. **Excludes:** the other parts, which go through memory like a
//! read and a write. **State:** none of its own. **Invariants:** what is shared is on the device, and was the source's content when the
//! copy began, or later. The volume tells of shared extents before a record maps the first. A turn's copy is one transaction.

use super::attributes::check_flags;
use super::state::Core;
use super::state::operation::{Progress, Sharing, Ticket};
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::format::{BLOCK, Features, MAX_FILE_SIZE, SHARED_EXTENTS};
use crate::ranges::RangeSet;
use crate::record::Record;
use crate::types::*;
use std::ops::Range;
use units::{Ino, Now};

/// How the first part of a copy is done, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPart {
    /// There is nothing to be copied.
    Nothing,
    /// So many go through memory.
    Bytes(u64),
    /// So many can be shared: start an [`Operation::Share`](super::Operation::Share).
    Shared(u64),
}

impl Core {
    /// How the first part of a copy is done.
    ///
    /// # Errors
    /// Those of a read of the source and of a write to the target; `InvalidArgument` for ranges of one file that overlap.
    pub fn copy_part(&self, copy: &CopyRange) -> Result<CopyPart> {
        let ((from, reads), (to, writes)) = (self.handle(copy.from)?, self.handle(copy.to)?);
        self.check_writable()?;
        if !reads.contains(OpenFlags::READ) || !writes.contains(OpenFlags::WRITE) {
            return Err(Error::BadHandle);
        }
        let size = |ino: Ino| match self.data.files.get(&ino) {
            Some(file) => file.size,
            None => self.metadata.get(ino).map_or(0, |inode| inode.size),
        };
        let (source, target) = (size(from), size(to));
        let length = copy.length.min(source.saturating_sub(copy.from_offset));
        let end = copy.to_offset.checked_add(length).filter(|&end| end <= MAX_FILE_SIZE);
        let end = end.ok_or(Error::FileTooLarge)?;
        let overlaps = copy.from_offset < end && copy.to_offset < copy.from_offset + length;
        if from == to && overlaps && length > 0 {
            return Err(Error::InvalidArgument);
        }
        let within = copy.from_offset % BLOCK;
        Ok(if length == 0 {
            CopyPart::Nothing
        } else if within != copy.to_offset % BLOCK || writes.contains(OpenFlags::APPEND) {
            CopyPart::Bytes(length)
        } else if within > 0 {
            CopyPart::Bytes(length.min(BLOCK - within))
        } else if copy.from_offset + length == source && end >= target {
            // The source's last block, whose rest is behind the end there and here.
            CopyPart::Shared(length)
        } else if length >= BLOCK {
            CopyPart::Shared(length / BLOCK * BLOCK)
        } else {
            CopyPart::Bytes(length)
        })
    }

    /// Shares the first part of a copy, as much as one turn does, and says how much that is; 0 where the source was changed meanwhile, so that
    /// this part has to go through memory. Or parks the operation.
    pub(super) fn try_share(&mut self, now: Now, ticket: Ticket, sharing: &mut Sharing) -> Progress<usize> {
        match self.share_now(now, ticket, sharing) {
            Ok(Some(shared)) => Progress::Ready(Ok(shared)),
            Ok(None) => Progress::Wait,
            Err(Error::NoSpace) => self.wait_for_space(now, ticket),
            Err(error) => Progress::Ready(Err(error)),
        }
    }

    fn share_now(&mut self, now: Now, ticket: Ticket, sharing: &mut Sharing) -> Result<Option<usize>> {
        let copy = sharing.copy;
        let CopyPart::Shared(length) = self.copy_part(&copy)? else { return Ok(Some(0)) };
        let ((from, reads), (to, _)) = (self.handle(copy.from)?, self.handle(copy.to)?);
        check_flags(self.metadata.get(to).ok_or(Error::Stale)?, InodeFlags::IMMUTABLE)?;
        if !self.has_features(now, ticket, Features::incompatible(SHARED_EXTENTS)) {
            return Ok(None);
        }
        sharing.is_to_be_quiet = false;
        // What was written to the source before is on the device first.
        if sharing.epoch.is_none() {
            sharing.epoch = self.end_epoch(from);
            self.expedite_file(now, from);
        }
        if sharing.epoch.is_some_and(|epoch| !self.is_written(now, from, epoch)) {
            self.wait_to_be_written(from, ticket);
            return Ok(None);
        }
        sharing.is_to_be_quiet = true;
        if !self.is_at_rest(now, from, ticket) || !self.is_quiet(now, to, ticket) {
            return Ok(None);
        }
        let pages = copy.from_offset / BLOCK..(copy.from_offset + length).div_ceil(BLOCK);
        let target = copy.to_offset / BLOCK;
        let (extents, end) = self.extents_of_a_turn(from, pages.clone(), to, target);
        let end = self.first_not_there(from, pages.start..end).unwrap_or(end);
        if end == pages.start {
            // Through memory, which has it.
            return Ok(Some(0));
        }
        let extents: Vec<Extent> =
            extents.into_iter().filter_map(|extent| extent.clip(pages.start, end)).collect();
        let count = end - pages.start;
        let shared = length.min(count * BLOCK);
        // A shared block counts in each file that has it, and once in a file. What the target holds there, or waits to hold, goes.
        let brought: u64 = extents.iter().map(|extent| extent.count).sum();
        let held = self.metadata.get(to).and_then(|inode| inode.extents());
        let held: u64 =
            held.into_iter().flat_map(|held| held.range(target, target + count)).map(|one| one.count).sum();
        let held = held + self.file_mut(to).delayed_within(&(target..target + count)).1;
        self.check_growth(to, brought.saturating_sub(held))?;
        let (size, new_end) = (self.file_mut(to).size, copy.to_offset + shared);
        if copy.to_offset > size && !self.zero_tail(now, to, copy.to_offset, new_end)? {
            self.write_back_for_memory(now);
            self.wait_for_memory(ticket);
            return Ok(None);
        }
        // After that: where both are one file, its last block may be dirty by now.
        self.displace_dirty(from, pages.start..end)?;
        let held = target..target + count;
        self.drop_cached(to, held.start * BLOCK..held.end * BLOCK);
        self.stop_expecting(to, held.clone());
        let mut records = Vec::with_capacity(extents.len() + 3);
        let extents_held = self.metadata.get(to).and_then(|inode| inode.extents());
        if extents_held.and_then(|extents| extents.range(held.start, held.end).next()).is_some() {
            records.push(Record::Unmap { ino: to, from: held.start, to: held.end });
        }
        for extent in extents {
            self.space.allocator.share(extent.run());
            let extent = Extent { logical: extent.logical - pages.start + target, ..extent };
            records.push(Record::Map { ino: to, extent });
        }
        if new_end > size {
            self.set_longer(now, to, new_end, &mut records);
        }
        let mut attributes = self.metadata.get(to).ok_or(Error::Stale)?.attributes;
        (attributes.mtime, attributes.ctime) = (now.wall.into(), now.wall.into());
        records.push(Record::Attributes { ino: to, attributes });
        self.transact(now, &records)?;
        if let Some(touched) = self.data.files.get_mut(&to).and_then(|file| file.touched.as_mut()) {
            touched.mtime = None;
        }
        if !reads.contains(OpenFlags::NO_ATIME) {
            self.note_read(now, from);
        }
        Ok(Some(shared as usize))
    }

    /// True when nothing of the file is on its way to the device, or copied into it. Otherwise the operation is parked. What is read is
    /// not waited for: it does not change.
    fn is_at_rest(&mut self, now: Now, ino: Ino, ticket: Ticket) -> bool {
        let is_written = self.file_mut(ino).writes > 0 || self.is_filling(ino);
        if is_written {
            self.expedite_writes(now, ino);
            self.wait_for_file(ino, ticket);
        }
        !is_written
    }

    /// The written extents of a range, from its start on as many as one turn copies, and where they end. It ends earlier also where the
    /// target has very many, or very many blocks of the source are dirty again.
    fn extents_of_a_turn(
        &mut self,
        from: Ino,
        pages: Range<u64>,
        to: Ino,
        target: u64,
    ) -> (Vec<Extent>, u64) {
        let most = self.steps_left().max(1);
        let mut end = pages.end;
        let extents = |ino: Ino| self.metadata.get(ino).and_then(|inode| inode.extents());
        let in_target = target..target + (end - pages.start);
        let more = extents(to).and_then(|held| held.range(in_target.start, in_target.end).nth(most));
        if let Some(next) = more {
            end = pages.start + (next.logical - target);
        }
        let dirty = self.data.cache.dirty_of(from, pages.start * BLOCK..end * BLOCK).nth(most);
        if let Some((next, _)) = dirty {
            end = end.min(next / BLOCK).max(pages.start + 1);
        }
        let found = extents(from).into_iter().flat_map(|found| found.range(pages.start, end));
        let mut found: Vec<Extent> = found.take(most + 1).collect();
        if found.len() > most {
            end = found.pop().map_or(end, |next| next.logical);
        }
        self.take_steps(found.len() as u32);
        found.retain(|extent| !extent.unwritten);
        (found, end)
    }

    /// The first of these pages of which the device may not have what belongs to the file by now: it was written while the copy waited, and
    /// where it lies there are holes, or what was behind an earlier end.
    fn first_not_there(&self, ino: Ino, pages: Range<u64>) -> Option<u64> {
        let file = self.data.files.get(&ino)?;
        let mut delayed = file.delayed.within(pages.clone());
        let delayed = delayed.find_map(|range| file.displaced.gaps(range).first().map(|gap| gap.start));
        let tails = file.tails.iter().map(|&(page, _)| page).filter(|page| pages.contains(page));
        let extents = self.metadata.get(ino)?.extents()?;
        let unwritten = extents.range(pages.start, pages.end).filter(|extent| extent.unwritten);
        // Of a block that is being written all counts, not to look at each page.
        let in_use = unwritten.filter_map(|extent| {
            let (from, end) = (extent.logical * BLOCK, extent.logical_end() * BLOCK);
            let first = file.block_before(from).map_or(from, |(start, _)| start);
            let mut blocks = file.blocks.range(first..end).filter_map(|(_, id)| self.data.cache.get(id));
            let busy = blocks.find(|block| {
                let is_busy =
                    !(block.dirty.is_empty() && block.in_writing.is_empty() && block.filling.is_empty());
                is_busy && block.end() > from
            });
            busy.map(|block| block.start.max(from) / BLOCK)
        });
        tails.chain(delayed).chain(in_use).min()
    }

    /// What is dirty of a range whose place is to be shared goes elsewhere.
    fn displace_dirty(&mut self, ino: Ino, pages: Range<u64>) -> Result<()> {
        let Some(file) = self.data.files.get(&ino) else { return Ok(()) };
        let first = file.block_before(pages.start * BLOCK).map_or(pages.start * BLOCK, |(start, _)| start);
        let dirty = self.data.cache.dirty_of(ino, first..pages.end * BLOCK);
        let mut again = RangeSet::default();
        let extents = self.metadata.get(ino).and_then(|inode| inode.extents()).ok_or(Error::Stale)?;
        for block in dirty.filter_map(|(_, id)| self.data.cache.get(id)) {
            for range in block.dirty.iter() {
                let (from, end) =
                    ((block.start + range.start) / BLOCK, (block.start + range.end).div_ceil(BLOCK));
                let placed = extents.range(from.max(pages.start), end.min(pages.end));
                placed.for_each(|extent| again.insert(extent.logical..extent.logical_end()));
            }
        }
        self.displace(ino, &again)
    }
}
