//! What must hold between the rooms of the core at every moment.
//!
//! **For:** tests, which ask after each step, so that a mistake is found where it is made and not where it hurts.
//! **Excludes:** what is on the device; that is fsck's. Everything here is compared with something else that says the
//! same in another way. Costs time in proportion to the whole state.

use super::state::Core;
use super::state::cache::CacheBlock;
use super::state::file::FileState;
use super::state::outbox::Purpose;
use crate::allocator::{BlockRun, Shares};
use crate::format::BLOCK;
use crate::limit::{LIMIT_XATTR, Limit};
use crate::ranges::RangeSet;
use std::collections::{BTreeMap, BTreeSet};
use units::{Ino, Instant};

type Findings = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}

impl Core {
    /// Compares everything that is kept in two ways.
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn audit(&self) -> Result<(), String> {
        self.audit_space()?;
        self.audit_blocks()?;
        self.audit_files()?;
        self.audit_usage()?;
        self.audit_waiting()
    }

    /// Pages on their way to a place that no record tells of yet.
    fn placed(&self) -> BTreeMap<Ino, Vec<BlockRun>> {
        let mut placed: BTreeMap<Ino, Vec<BlockRun>> = BTreeMap::new();
        for purpose in self.requests.in_flight.purposes() {
            let Purpose::Data { ino, pieces, .. } = purpose else { continue };
            for extent in pieces.iter().map(|piece| piece.extent()) {
                let extents = self.metadata.get(*ino).and_then(|inode| inode.extents());
                let held = extents.and_then(|extents| extents.at(extent.logical));
                let is_there =
                    held.is_some_and(|held| held.start + (extent.logical - held.logical) == extent.start);
                if extents.is_some() && !is_there {
                    placed.entry(*ino).or_default().push(extent.run());
                }
            }
        }
        placed
    }

    /// Every block has as many owners as are counted or is free, and every claim one page that needs it.
    fn audit_space(&self) -> Findings {
        let mut owned: Vec<(BlockRun, String)> = Vec::new();
        let mut owners = Shares::default();
        for (_, inode) in self.metadata.iter() {
            let extents = inode.extents().into_iter().flat_map(|extents| extents.iter());
            extents.for_each(|extent| owners.add(extent.run()));
        }
        owned.extend(owners.iter().map(|(run, _)| (run, "files".into())));
        let shared = owners.iter().filter(|&(_, times)| times > 1).map(|(run, times)| (run, times - 1));
        let (shared, counted): (Vec<_>, Vec<_>) =
            (shared.collect(), self.space.allocator.shares().iter().collect());
        ensure!(shared == counted, "files share {shared:?}, counted {counted:?}");
        let mut leaving = Shares::default();
        self.space.leaving.all().for_each(|run| leaving.add(run));
        ensure!(leaving == *self.space.leaving.runs(), "{leaving:?} are given up, counted otherwise");
        owned.extend(self.checkpoints.places.owned().map(|run| (run, "metadata".into())));
        let freed = self.space.freed.iter().map(|&(_, run)| run).chain(self.space.busy.values().copied());
        owned.extend(freed.clone().map(|run| (run, "freed".into())));
        for (ino, runs) in self.placed() {
            owned.extend(runs.into_iter().map(|run| (run, format!("written to inode {ino}"))));
        }
        let mut others = RangeSet::default();
        owned.iter().for_each(|(run, _)| others.insert(run.start..run.end()));
        for place in self.space.refused.places() {
            let runs = others.gaps(place).into_iter();
            owned.extend(
                runs.map(|gap| (BlockRun { start: gap.start, count: gap.end - gap.start }, "refused".into())),
            );
        }
        owned.sort();
        for pair in owned.windows(2) {
            let ((first, holder), (second, other)) = (&pair[0], &pair[1]);
            ensure!(first.end() <= second.start, "{first} of {holder} overlaps {second} of {other}");
        }
        let held: u64 = owned.iter().map(|(run, _)| run.count).sum();
        let (total, free) = (self.space.allocator.total_blocks(), self.space.allocator.free_blocks());
        ensure!(held + free == total, "{held} blocks are owned and {free} free, of {total}");
        let mut merged: Vec<BlockRun> = Vec::new();
        for (run, _) in &owned {
            match merged.last_mut() {
                Some(last) if last.end() == run.start => last.count += run.count,
                _ => merged.push(*run),
            }
        }
        let used: Vec<BlockRun> = self.space.allocator.used_runs().collect();
        ensure!(merged == used, "blocks with an owner: {merged:?}, used: {used:?}");
        let freed: u64 = freed.map(|run| run.count).sum();
        ensure!(
            freed == self.space.freed_blocks,
            "{freed} freed blocks, counted {}",
            self.space.freed_blocks
        );
        let claimed: u64 = self.data.files.values().map(|file| file.claimed).sum();
        ensure!(
            claimed == self.space.allocator.claimed(),
            "files claim {claimed} blocks, the allocator knows of {}",
            self.space.allocator.claimed()
        );
        Ok(())
    }

    /// Blocks of the cache, what is dirty and what is on its way.
    fn audit_blocks(&self) -> Findings {
        let mut writing: BTreeMap<_, (u32, RangeSet)> = BTreeMap::new();
        let mut loading: BTreeMap<_, RangeSet> = BTreeMap::new();
        let mut bytes = 0;
        for purpose in self.requests.in_flight.purposes() {
            match purpose {
                Purpose::Load { block, start, length, .. } => {
                    loading.entry(*block).or_default().insert(*start..start + length);
                }
                Purpose::Data { ino, block: id, pieces, .. } => {
                    let Some(block) = self.data.cache.get(*id) else {
                        return Err(format!("inode {ino}: a block is gone while the device reads it"));
                    };
                    let entry = writing.entry(*id).or_default();
                    entry.0 += 1;
                    for piece in pieces {
                        let extent = piece.extent();
                        let start = extent.logical * BLOCK - block.start;
                        entry.1.insert(start..start + extent.count * BLOCK);
                        bytes += extent.count * BLOCK;
                    }
                }
                _ => {}
            }
        }
        ensure!(
            bytes == self.writeback.bytes,
            "{bytes} bytes are being written, counted {}",
            self.writeback.bytes
        );
        let mut written = RangeSet::default();
        for (purpose, run) in self.requests.in_flight.placed() {
            if let Purpose::Load { ino, block, start, .. } = purpose {
                let page = self.data.cache.get(*block).map_or(0, |block| (block.start + start) / BLOCK);
                let extent = self.metadata.get(*ino).and_then(|inode| inode.extents()?.at(page));
                let is_there =
                    extent.is_some_and(|extent| extent.start + (page - extent.logical) == run.start);
                ensure!(is_there, "inode {ino}: {run} are read for page {page}, which lies elsewhere");
            } else {
                let taken = written.overlaps(run.start..run.end());
                ensure!(!taken, "{run} are written twice at one time");
                written.insert(run.start..run.end());
            }
        }
        for (purpose, run) in self.requests.in_flight.placed() {
            let reads = matches!(purpose, Purpose::Load { .. });
            let is_written = reads && written.overlaps(run.start..run.end());
            ensure!(!is_written, "{run} are read and written at one time");
        }
        let requests = self.requests.in_flight.purposes().filter(|purpose| match purpose {
            Purpose::Load { bounce, .. } => bounce.is_some(),
            Purpose::Data { .. } => true,
            _ => false,
        });
        ensure!(requests.count() == self.writeback.requests, "{} requests counted", self.writeback.requests);
        let mut wanted: BTreeMap<_, u32> = BTreeMap::new();
        for id in self.blocks_of_players().chain(self.blocks_of_sequences()) {
            *wanted.entry(id).or_default() += 1;
        }
        let mut dirty_bytes = 0;
        let mut count = 0;
        for (&ino, file) in &self.data.files {
            let mut end = 0;
            for (start, id) in file.blocks.iter() {
                count += 1;
                let Some(block) = self.data.cache.get(id) else {
                    return Err(format!("inode {ino}: the block at {start} is gone"));
                };
                let place = format!("inode {ino}, block at {start} of {} bytes", block.memory.len());
                ensure!(block.ino == ino && block.start == start, "{place} is another's");
                ensure!(start >= end, "{place} overlaps the one before it");
                ensure!(start.is_multiple_of(block.memory.len() as u64), "{place} is not aligned");
                end = block.end();
                for dirty in block.dirty.iter() {
                    ensure!(block.valid.covers(dirty.clone()), "{place}: dirty {dirty:?} is not valid");
                }
                dirty_bytes += block.dirty.total();
                let (writes, ranges) = writing.remove(&id).unwrap_or_default();
                ensure!(writes == block.writing, "{place}: {writes} writes, counted {}", block.writing);
                ensure!(
                    ranges == block.in_writing,
                    "{place}: writes {ranges:?}, noted {:?}",
                    block.in_writing
                );
                let loads = loading.remove(&id).unwrap_or_default();
                ensure!(loads == block.loading, "{place}: loads {loads:?}, noted {:?}", block.loading);
                ensure!(
                    block.dirty.is_empty() == self.data.cache.is_evictable(id),
                    "{place}: dirty {:?}, evictable {}",
                    block.dirty,
                    self.data.cache.is_evictable(id)
                );
                let behind = file.size.saturating_sub(start).min(block.memory.len() as u64);
                for valid in block.valid.within(behind..block.memory.len() as u64) {
                    let mut parts = block.memory.parts(valid.start as usize..valid.end as usize);
                    let are_zeros = parts.all(|(buffer, range)| {
                        buffer.bytes(range.start, range.len()).iter().all(|&byte| byte == 0)
                    });
                    let clean = block.is_filling(&valid) || are_zeros;
                    ensure!(clean, "{place}: something behind the end {}", file.size);
                }
                let has_dirty = !block.dirty.is_empty();
                let known = !has_dirty
                    || self.writeback.files.contains(&ino) && self.writeback.next_aging < Instant::FAR_FUTURE;
                ensure!(known, "{place} is dirty and will not be written");
            }
        }
        let kept = self.data.files.values().flat_map(|file| file.blocks.ids());
        for id in kept.chain(self.data.resting.values().flat_map(|file| file.blocks.ids())) {
            let Some(block) = self.data.cache.get(id) else { continue };
            let counted = wanted.get(&id).copied().unwrap_or_default();
            ensure!(
                counted == block.wanted,
                "inode {}, block at {}: {counted} clients come to it, counted {}",
                block.ino,
                block.start,
                block.wanted
            );
        }
        for (&ino, file) in &self.data.resting {
            ensure!(!self.data.files.contains_key(&ino), "inode {ino} rests and is used");
            ensure!(!file.is_empty(), "inode {ino} rests with nothing in memory");
            for (start, id) in file.blocks.iter() {
                count += 1;
                let at_rest = self.data.cache.get(id).is_some_and(|block| {
                    block.ino == ino && block.start == start && block.is_idle() && block.dirty.is_empty()
                });
                ensure!(at_rest, "inode {ino} rests: the block at {start} does not");
            }
        }
        for block in self.data.cache.gone() {
            count += 1;
            dirty_bytes += block.dirty.total();
        }
        for (ino, file) in &self.data.files {
            let filling = self.cache_blocks(file).map(|block| block.filling.len()).sum::<usize>();
            ensure!(
                filling == file.filling as usize,
                "inode {ino}: {filling} copies, counted {}",
                file.filling
            );
            let writing: u64 = self.cache_blocks(file).map(|block| block.in_writing.total()).sum();
            ensure!(
                writing == file.writing,
                "inode {ino}: {writing} being written, counted {}",
                file.writing
            );
            let dirty =
                self.cache_blocks(file).filter(|block| !block.dirty.is_empty()).map(|block| block.start);
            let listed = self.data.cache.dirty_of(*ino, 0..u64::MAX).map(|(start, _)| start);
            ensure!(dirty.eq(listed), "inode {ino}: the list of its dirty blocks is wrong");
        }
        ensure!(
            dirty_bytes == self.data.cache.dirty_bytes,
            "{dirty_bytes} bytes are dirty, counted {}",
            self.data.cache.dirty_bytes
        );
        ensure!(count == self.data.cache.len(), "{} blocks, files have {count}", self.data.cache.len());
        Ok(())
    }

    fn cache_blocks<'a>(&'a self, file: &'a FileState) -> impl Iterator<Item = &'a CacheBlock> {
        file.blocks.ids().filter_map(|id| self.data.cache.get(id))
    }

    /// Files: promised space, requests at the device.
    fn audit_files(&self) -> Findings {
        let placed = self.placed();
        let mut loads: BTreeMap<Ino, u32> = BTreeMap::new();
        let mut writes: BTreeMap<Ino, BTreeMap<u64, u32>> = BTreeMap::new();
        for purpose in self.requests.in_flight.purposes() {
            match purpose {
                Purpose::Load { ino, .. } => *loads.entry(*ino).or_default() += 1,
                Purpose::Data { ino, epoch, .. } => {
                    *writes.entry(*ino).or_default().entry(*epoch).or_default() += 1;
                }
                _ => {}
            }
        }
        for (&ino, file) in &self.data.files {
            let extents = self.metadata.get(ino).and_then(|inode| inode.extents());
            for range in file.delayed.iter() {
                for kept in file.displaced.gaps(range.clone()) {
                    let mapped = extents.and_then(|extents| extents.range(kept.start, kept.end).next());
                    ensure!(mapped.is_none(), "inode {ino}: {mapped:?} is promised space as well");
                }
                for page in range {
                    let used = self.is_page_in_use(ino, page);
                    ensure!(used, "inode {ino}: page {page} is promised space that nothing needs");
                }
            }
            for page in self.shared_pages(ino, 0..u64::MAX).iter().flatten() {
                let stays = self.is_page_in_use(ino, page) && !file.displaced.covers(page..page + 1);
                ensure!(!stays, "inode {ino}: page {page} is to be written where others have it, too");
            }
            for range in file.reserved.iter() {
                let unwritten = extents.into_iter().flat_map(|map| map.range(range.start, range.end));
                let held: u64 = unwritten.filter(|extent| extent.unwritten).map(|extent| extent.count).sum();
                ensure!(
                    held == range.end - range.start,
                    "inode {ino}: {held} pages of {range:?} are reserved"
                );
                for page in range {
                    let used = self.is_page_in_use(ino, page) && !self.is_filling(ino);
                    ensure!(!used, "inode {ino}: page {page} is used, and may be given back");
                }
            }
            let placed: u64 = placed.get(&ino).into_iter().flatten().map(|run| run.count).sum();
            ensure!(
                file.delayed.total() == file.claimed + placed,
                "inode {ino}: {} pages without a record, {} claimed and {placed} placed",
                file.delayed.total(),
                file.claimed
            );
            let by_epoch = writes.remove(&ino).unwrap_or_default();
            ensure!(
                by_epoch == file.writes_by_epoch && by_epoch.values().sum::<u32>() == file.writes,
                "inode {ino}: writes {by_epoch:?}, counted {:?}, {}",
                file.writes_by_epoch,
                file.writes
            );
            let loads = loads.remove(&ino).unwrap_or_default();
            ensure!(loads == file.loads, "inode {ino}: {loads} loads, counted {}", file.loads);
            let open = |write: bool| {
                let of_file = self.clients.handles.values().filter(|handle| handle.ino == ino);
                of_file
                    .filter(|handle| handle.flags.contains(crate::types::OpenFlags::WRITE) == write)
                    .count()
            };
            ensure!(
                open(false) == file.readers as usize && open(true) == file.writers as usize,
                "inode {ino}: {} readers and {} writers counted",
                file.readers,
                file.writers
            );
            let recorded = self.metadata.get(ino).map_or(file.size, |inode| inode.size);
            ensure!(recorded <= file.size, "inode {ino}: size {} recorded as {recorded}", file.size);
            let behind = file.touched.is_some() || recorded != file.size;
            let known = !behind
                || self.writeback.files.contains(&ino) && self.writeback.next_aging < Instant::FAR_FUTURE;
            ensure!(known, "inode {ino} is ahead of its record and will not be recorded");
            for &(page, end) in &file.tails {
                ensure!(
                    recorded <= end,
                    "inode {ino}: size {recorded} recorded before page {page} was zeroed"
                );
            }
        }
        ensure!(writes.is_empty() && loads.is_empty(), "requests of files that are not there");
        for orphan in self.metadata.orphans() {
            let named = self.metadata.get(*orphan).is_none_or(|inode| !inode.names.is_empty());
            ensure!(!named, "inode {orphan} is an orphan with a name");
        }
        Ok(())
    }

    /// What lies below each directory is what a walk finds there, and what is promised is what waits for a record.
    fn audit_usage(&self) -> Findings {
        let mut walked = self.metadata.walked_usage();
        let mut promised = BTreeMap::new();
        for (&ino, file) in self.data.files.iter().filter(|(_, file)| file.promised() > 0) {
            promised.insert(ino, file.promised());
            for (above, _) in self.metadata.line_to_root(ino).skip(1) {
                walked.entry(above).or_default().promised += file.promised();
            }
        }
        let kept: BTreeMap<Ino, u64> = self.metadata.promises().collect();
        ensure!(kept == promised, "promised are {promised:?}, counted {kept:?}");
        for (ino, inode) in self.metadata.iter() {
            let (kept, found) = (self.metadata.usage_below(ino), walked.remove(&ino).unwrap_or_default());
            ensure!(kept == found, "inode {ino}: {found:?} lies below, counted {kept:?}");
            let limit = inode.xattr(LIMIT_XATTR.as_bytes()).and_then(|value| Limit::read(value).ok());
            ensure!(limit == self.metadata.limit(ino), "inode {ino}: its limit is {limit:?}");
        }
        Ok(())
    }

    /// An operation that waits stands in exactly one queue, and something will come that looks into it.
    fn audit_waiting(&self) -> Findings {
        let queues = self
            .data
            .files
            .values()
            .flat_map(|file| &file.waiting)
            .chain(&self.waits.for_memory)
            .chain(&self.space.waiters)
            .chain(self.log.replacements.held_back())
            .chain(&self.turn.tickets)
            .chain(&self.checkpoints.waiters)
            .chain(self.log.commit.tickets());
        let mut seen = BTreeSet::new();
        for ticket in queues {
            ensure!(seen.insert(*ticket), "{ticket:?} stands in two queues");
            ensure!(self.waits.operations.contains_key(ticket), "{ticket:?} has ended but stands in a queue");
        }
        for (ticket, waiting) in &self.waits.operations {
            ensure!(seen.contains(ticket), "{ticket:?} stands in no queue: {waiting:?}");
        }
        for (&ino, file) in &self.data.files {
            let through_pages =
                self.clients.handles.values().filter(|open| open.ino == ino && open.through_pages).count();
            ensure!(
                through_pages == file.through_pages as usize
                    && (through_pages == 0 || file.through_pages == file.readers + file.writers),
                "inode {ino}: {through_pages} of {}+{} go through the kernel's pages, counted {}",
                file.readers,
                file.writers,
                file.through_pages
            );
            let exclusive =
                self.waits.operations.values().filter(|waiting| waiting.exclusive == Some(ino)).count();
            ensure!(
                exclusive == file.exclusive as usize,
                "inode {ino}: {exclusive} operations want it quiet, counted {}",
                file.exclusive
            );
            ensure!(
                file.waiting.is_empty() || !file.is_idle() || self.is_filling(ino),
                "inode {ino}: {:?} wait for a file that is quiet",
                file.waiting
            );
        }
        let at_device = |wanted: fn(&Purpose) -> bool| self.requests.in_flight.purposes().any(wanted);
        ensure!(
            self.waits.for_memory.is_empty() || !self.requests.in_flight.is_empty(),
            "{:?} wait for memory that nothing will free",
            self.waits.for_memory
        );
        let data = at_device(|purpose| matches!(purpose, Purpose::Data { .. } | Purpose::Load { .. }));
        ensure!(self.waits.throttled.is_empty() || data, "writes are held back and nothing is written");
        let is_held = self.log.replacements.is_commit_due();
        let coming = !self.space.busy.is_empty() || !self.inodes.unreaped.is_empty();
        let busy = !self.log.commit.is_idle() || self.checkpoints.is_running() || is_held || coming;
        ensure!(
            (self.space.waiters.is_empty() && self.log.commit.tickets().next().is_none()) || busy,
            "an operation waits for a commit and none is under way"
        );
        Ok(())
    }
}
