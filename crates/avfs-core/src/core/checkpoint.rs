//! Writing shards home, a few at a time, and flipping the superblock.
//!
//! **Invariants:** an image is written only into space that no superblock points at; the superblock is written only
//! when images and table are on stable storage and the log is durable up to the newest image; what the old superblock
//! pointed at is reused only after the new one is on stable storage. Units for one whole checkpoint are kept aside, so
//! that a full volume can still be checkpointed.

use super::{Core, Purpose, Ticket};
use crate::allocator::{BlockRun, Owner, Purpose as SpaceFor, Request};
use crate::format::{
    BLOCK, Geometry, INODE_FLAGS, Piece, ShardLocation, Superblock, UNIT, UNIT_BLOCKS, encode_table,
};
use crate::journal::Mark;
use crate::metadata::Metadata;
use crate::steps::{Step, has};
use avfs_io::{IoError, IoOperation, Segment};
use rtsched::Class;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use units::{DeviceOffset, Instant, Now};

/// Bytes of images at the device at once.
const IN_FLIGHT_LIMIT: u64 = 4 << 20;
/// Bytes of an image that are written at once.
const IMAGE_PIECE: u64 = 2 << 20;
/// Bytes of live images that one checkpoint moves to empty sparse metadata units.
const CLEANING_LIMIT: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct Checkpoints {
    running: Option<Running>,
    /// Live bytes in each metadata unit, by its first block.
    units: BTreeMap<u64, u64>,
    /// Unit that is being filled, by its first block, and how far; one for images, one for their copies.
    open: [Option<(u64, u64)>; 2],
    /// Empty units kept for the next checkpoint.
    spares: Vec<u64>,
    /// Sum of all images.
    image_bytes: u64,
    last: Instant,
    pub(super) count: u64,
    /// How many checkpoints have begun.
    pub(super) begun: u64,
    pub(super) waiters: Vec<Ticket>,
}

#[derive(Debug)]
struct Running {
    mark: Mark,
    lsn: u64,
    shards: VecDeque<u64>,
    /// The newest record in any image.
    newest: u64,
    phase: Phase,
    in_flight: u32,
    in_flight_bytes: u64,
    /// Places of images that the new superblock no longer points at.
    replaced: Vec<ShardLocation>,
    table: Piece,
    /// Image of the first of `shards`, if a part of it was written.
    placing: Option<Placing>,
}

/// A shard's image on its way: it may be larger than memory for requests.
#[derive(Debug)]
struct Placing {
    image: Vec<u8>,
    lsn: u64,
    /// Bytes in `pieces`.
    done: usize,
    pieces: Vec<Piece>,
}

impl Placing {
    fn new(image: Vec<u8>, lsn: u64) -> Self {
        Self { image, lsn, done: 0, pieces: Vec::new() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Shards,
    Table,
    Flush,
    Superblock,
}

impl Checkpoints {
    pub(super) fn new(superblock: &Superblock, metadata: &Metadata, now: Instant) -> Self {
        let mut checkpoints = Self {
            running: None,
            units: BTreeMap::new(),
            open: [None, None],
            spares: Vec::new(),
            image_bytes: 0,
            last: now,
            count: 0,
            begun: 0,
            waiters: Vec::new(),
        };
        for piece in metadata.shards().flat_map(|(_, shard)| &shard.location.pieces) {
            checkpoints.count_live(&superblock.geometry, piece, true);
        }
        if superblock.table.length > 0 {
            checkpoints.count_live(&superblock.geometry, &superblock.table, true);
        }
        checkpoints
    }

    /// Adds a piece and its copy to their units, or takes them off.
    fn count_live(&mut self, geometry: &Geometry, piece: &Piece, live: bool) {
        let space = piece.space();
        for address in [piece.address, piece.copy] {
            let Some(block) = geometry.block_at(address) else { continue };
            let unit = self.units.entry(block / UNIT_BLOCKS * UNIT_BLOCKS).or_default();
            *unit = if live { *unit + space } else { unit.saturating_sub(space) };
        }
        self.image_bytes =
            if live { self.image_bytes + space } else { self.image_bytes.saturating_sub(space) };
    }

    /// First blocks of all units that are metadata's, filled or kept for it.
    pub(super) fn units_owned(&self) -> impl Iterator<Item = u64> {
        self.units.keys().chain(&self.spares).copied()
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Units that hold nothing live and are not being filled.
    fn take_empty(&mut self) -> Vec<u64> {
        let open = self.open;
        let empty: Vec<u64> = self
            .units
            .iter()
            .filter(|&(&unit, &live)| {
                live == 0 && !open.iter().flatten().any(|&(filling, _)| filling == unit)
            })
            .map(|(&unit, _)| unit)
            .collect();
        for unit in &empty {
            self.units.remove(unit);
        }
        empty
    }
}

impl Core {
    pub(super) fn checkpoint_due(&self) -> Instant {
        if self.dormant
            || self.failure.is_some()
            || self.checkpoints.running.is_some()
            || !self.metadata.is_dirty()
        {
            return Instant::FAR_FUTURE;
        }
        self.checkpoints.last + self.options.config.journal.checkpoint_interval
    }

    /// Units a checkpoint of everything may need: images and copies, and two being filled.
    fn spares_needed(&self) -> usize {
        let bytes = self.checkpoints.image_bytes + self.journal.used() + self.journal.pending_bytes();
        (2 + 2 * bytes.div_ceil(UNIT)) as usize
    }

    /// Keeps as many units aside as the next checkpoint may need. False when the volume has none left to give.
    pub(super) fn keep_spares(&mut self) -> bool {
        let needed = self.spares_needed();
        while self.checkpoints.spares.len() < needed {
            let claimed = self.allocator.claim(UNIT_BLOCKS);
            if claimed.is_err() {
                return false;
            }
            self.allocator.unclaim(UNIT_BLOCKS);
            let Some(unit) = self.metadata_unit() else { return false };
            self.checkpoints.spares.push(unit);
        }
        while self.checkpoints.spares.len() > needed + 2 {
            let Some(unit) = self.checkpoints.spares.pop() else { break };
            self.free_unit(unit);
        }
        true
    }

    fn metadata_unit(&mut self) -> Option<u64> {
        let request = Request {
            wanted: UNIT_BLOCKS,
            purpose: SpaceFor::Metadata,
            owner: Owner(0),
            after: None,
            window_units: None,
        };
        self.allocator.allocate(&request).map(|run| run.start)
    }

    fn free_unit(&mut self, unit: u64) {
        if self.allocator.free(BlockRun { start: unit, count: UNIT_BLOCKS }).is_err() {
            self.fail("a metadata unit was freed twice");
        }
    }

    /// Begins a checkpoint unless one is running.
    pub(super) fn start_checkpoint(&mut self, now: Now) {
        if self.checkpoints.running.is_some() || self.failure.is_some() || self.dormant {
            return;
        }
        self.mark_sparse_units();
        let mut replaced = self.metadata.drop_empty();
        replaced.push(ShardLocation { pieces: vec![self.superblock.table] });
        if !has(Step::TailReleasedAfterSuperblock) {
            self.journal.release(self.journal.mark());
        }
        self.checkpoints.begun += 1;
        self.checkpoints.last = now.monotonic;
        self.checkpoints.running = Some(Running {
            mark: self.journal.mark(),
            lsn: self.metadata.lsn(),
            shards: self.metadata.take_dirty().into_iter().collect(),
            newest: 0,
            phase: Phase::Shards,
            in_flight: 0,
            in_flight_bytes: 0,
            replaced,
            table: Piece::default(),
            placing: None,
        });
    }

    /// When metadata is spread over twice the units it needs, the emptiest are emptied.
    fn mark_sparse_units(&mut self) {
        let needed = 2 * self.checkpoints.image_bytes.div_ceil(UNIT) + 4;
        let excess = (self.checkpoints.units.len() as u64).saturating_sub(2 * needed);
        if excess == 0 {
            return;
        }
        let mut by_live: Vec<(u64, u64)> =
            self.checkpoints.units.iter().map(|(&unit, &live)| (live, unit)).collect();
        by_live.sort_unstable();
        let mut moved = 0;
        let sparse: Vec<u64> = by_live
            .into_iter()
            .take_while(|&(live, _)| {
                moved += live;
                moved <= CLEANING_LIMIT
            })
            .map(|(_, unit)| unit)
            .collect();
        let geometry = self.superblock.geometry;
        let in_sparse = |address: DeviceOffset| {
            geometry
                .block_at(address)
                .is_some_and(|block| sparse.contains(&(block / UNIT_BLOCKS * UNIT_BLOCKS)))
        };
        let shards: Vec<u64> = self
            .metadata
            .shards()
            .filter(|(_, shard)| {
                shard.location.pieces.iter().any(|p| in_sparse(p.address) || in_sparse(p.copy))
            })
            .map(|(number, _)| number)
            .collect();
        for number in shards {
            self.metadata.mark_dirty(number);
        }
    }

    pub(super) fn pump_checkpoint(&mut self, now: Now) {
        if self.failure.is_some() {
            for ticket in std::mem::take(&mut self.checkpoints.waiters) {
                self.retry(now, ticket);
            }
            return;
        }
        let large = (self.journal.capacity() / 2).min(128 << 20);
        let due = self.checkpoint_due() <= now.monotonic || self.journal.used() >= large;
        if self.checkpoints.running.is_none() && due {
            self.start_checkpoint(now);
        }
        while self.advance_checkpoint(now) {}
    }

    /// True when a checkpoint cannot end before what is pending is committed.
    pub(super) fn checkpoint_waits_for_log(&self) -> bool {
        let running = self.checkpoints.running.as_ref();
        running.is_some_and(|running| {
            running.phase == Phase::Table && self.commit.durable_lsn() < running.newest
        })
    }

    /// One step; false when it waits for the device, for memory or for the journal.
    fn advance_checkpoint(&mut self, now: Now) -> bool {
        let Some(running) = &self.checkpoints.running else { return false };
        match running.phase {
            Phase::Shards => {
                if running.in_flight_bytes >= IN_FLIGHT_LIMIT {
                    return false;
                }
                let Some(&number) = running.shards.front() else {
                    self.set_phase(Phase::Table);
                    return self.write_table();
                };
                self.write_shard(number)
            }
            Phase::Table => {
                if running.table.length == 0 {
                    return self.write_table();
                }
                if running.in_flight > 0 && has(Step::ImagesBeforeFlush) {
                    return false;
                }
                if self.checkpoint_waits_for_log() && has(Step::LogUpToNewestImage) {
                    self.commit.want();
                    self.pump_commit(now);
                    return false;
                }
                self.set_phase(Phase::Flush);
                if !has(Step::CheckpointIsFlushed) {
                    return true;
                }
                self.checkpoint_request(
                    IoOperation::Flush,
                    DeviceOffset(0),
                    SmallVec::new(),
                    Purpose::CheckpointFlush,
                    0,
                );
                false
            }
            Phase::Flush if running.in_flight == 0 => self.write_superblock(),
            Phase::Superblock if running.in_flight == 0 => {
                self.finish_checkpoint(now);
                true
            }
            Phase::Flush | Phase::Superblock => false,
        }
    }

    fn set_phase(&mut self, phase: Phase) {
        if let Some(running) = &mut self.checkpoints.running {
            running.phase = phase;
        }
    }

    fn checkpoint_request(
        &mut self,
        operation: IoOperation,
        address: DeviceOffset,
        segments: SmallVec<[Segment; 2]>,
        purpose: Purpose,
        bytes: u64,
    ) {
        // A checkpoint has time, unless the log runs full behind it.
        let class = if self.under_pressure() || bytes == 0 { Class::Metadata } else { Class::BestEffort };
        self.request(operation, address, segments, class, None, None, purpose, None);
        if let Some(running) = &mut self.checkpoints.running {
            running.in_flight += 1;
            running.in_flight_bytes += bytes;
        }
    }

    /// Writes the next piece of a shard's image.
    fn write_shard(&mut self, number: u64) -> bool {
        let begun = self.checkpoints.running.as_mut().and_then(|running| running.placing.take());
        let image = || self.metadata.image(number).map(|(image, lsn)| Placing::new(image, lsn));
        let mut location = ShardLocation::default();
        if let Some(mut placing) = begun.or_else(image) {
            let piece = self.place(&placing.image[placing.done..], IMAGE_PIECE);
            placing.done += piece.map_or(0, |piece| piece.length as usize);
            placing.pieces.extend(piece);
            let Some(running) = &mut self.checkpoints.running else { return false };
            if placing.done < placing.image.len() {
                running.placing = Some(placing);
                return piece.is_some();
            }
            running.newest = running.newest.max(placing.lsn);
            location.pieces = placing.pieces;
        }
        let mut old = self.metadata.set_location(number, location);
        if !has(Step::UnitsReusedAfterSuperblock) {
            let geometry = self.superblock.geometry;
            for piece in std::mem::take(&mut old.pieces) {
                self.checkpoints.count_live(&geometry, &piece, false);
            }
            let mut empty = self.checkpoints.take_empty();
            if empty.len() > 1 {
                for (open, unit) in self.checkpoints.open.iter_mut().zip(empty.drain(..2)) {
                    self.checkpoints.units.insert(unit, 0);
                    *open = Some((unit, 0));
                }
            }
            self.checkpoints.spares.extend(empty);
        }
        if let Some(running) = &mut self.checkpoints.running {
            running.shards.pop_front();
            running.replaced.push(old);
        }
        true
    }

    fn write_table(&mut self) -> bool {
        let entries = self.metadata.shards().filter(|(_, shard)| !shard.location.pieces.is_empty());
        let bytes = encode_table(entries.map(|(number, shard)| (number, &shard.location)));
        if bytes.len() as u64 > UNIT {
            self.fail("the shard table has outgrown its unit");
            return false;
        }
        // The table is one piece: it must not be cut at the end of a unit.
        let space = (bytes.len() as u64).next_multiple_of(BLOCK);
        for open in &mut self.checkpoints.open {
            if open.is_some_and(|(_, used)| used + space > UNIT) {
                *open = None;
            }
        }
        let Some(table) = self.place(&bytes, UNIT) else { return false };
        if let Some(running) = &mut self.checkpoints.running {
            running.table = table;
        }
        true
    }

    /// Writes the first of `bytes` into metadata units, twice: at most `limit`, and not past the end of a unit. `None`
    /// for want of memory or space: nothing has happened then.
    fn place(&mut self, bytes: &[u8], limit: u64) -> Option<Piece> {
        let geometry = self.superblock.geometry;
        let mut room = limit;
        for side in 0..2 {
            if self.checkpoints.open[side].is_none_or(|(_, used)| used >= UNIT) {
                let unit = match self.checkpoints.spares.pop() {
                    Some(unit) => Some(unit),
                    None => self.metadata_unit(),
                };
                let Some(unit) = unit else {
                    self.fail("no space left for metadata");
                    return None;
                };
                self.checkpoints.units.entry(unit).or_default();
                self.checkpoints.open[side] = Some((unit, 0));
            }
            let used = self.checkpoints.open[side].map_or(0, |(_, used)| used);
            room = room.min(UNIT - used);
        }
        let now = &bytes[..bytes.len().min(room as usize)];
        let segments = self.system_segments(now)?;
        let space = (now.len() as u64).next_multiple_of(BLOCK);
        let mut addresses = [DeviceOffset(0); 2];
        for (side, address) in addresses.iter_mut().enumerate() {
            let Some((unit, used)) = &mut self.checkpoints.open[side] else { return None };
            *address = DeviceOffset(geometry.block_address(*unit).0 + *used);
            *used += space;
        }
        for address in addresses {
            let operation = IoOperation::Write { durable: false };
            let purpose = Purpose::Shard { bytes: space };
            self.checkpoint_request(operation, address, segments.clone(), purpose, space);
        }
        let piece = Piece {
            address: addresses[0],
            copy: addresses[1],
            length: now.len() as u32,
            checksum: crc32c::crc32c(now),
        };
        self.checkpoints.count_live(&geometry, &piece, true);
        Some(piece)
    }

    fn write_superblock(&mut self) -> bool {
        let Some(running) = &self.checkpoints.running else { return false };
        self.superblock.generation += 1;
        self.superblock.table = running.table;
        self.superblock.log = running.mark.position;
        self.superblock.lsn = running.lsn;
        if self.metadata.has_flags() {
            self.superblock.features.incompatible |= INODE_FLAGS;
        }
        if !has(Step::ReplayFromTheBegin) {
            self.superblock.log = self.journal.mark().position;
        }
        if !has(Step::SuperblockLsnOfTheBegin) {
            self.superblock.lsn = self.metadata.lsn();
        }
        let block = self.superblock.encode();
        let places = Geometry::superblock_places(self.superblock.geometry.device);
        let slot = if has(Step::SlotsInTurn) { (self.superblock.generation % 2) as usize } else { 0 };
        let Some(segments) = self.system_segments(&block[..]) else {
            self.fail("no memory for the superblock");
            return false;
        };
        self.set_phase(Phase::Superblock);
        for place in [places[slot], places[slot + 2]] {
            let operation = IoOperation::Write { durable: has(Step::SuperblockIsDurable) };
            self.checkpoint_request(operation, place, segments.clone(), Purpose::Superblock, 0);
        }
        false
    }

    fn finish_checkpoint(&mut self, now: Now) {
        let Some(running) = self.checkpoints.running.take() else { return };
        let geometry = self.superblock.geometry;
        for piece in running.replaced.iter().flat_map(|location| &location.pieces) {
            if piece.length > 0 {
                self.checkpoints.count_live(&geometry, piece, false);
            }
        }
        for unit in self.checkpoints.take_empty() {
            self.checkpoints.spares.push(unit);
        }
        self.journal.release(running.mark);
        self.commit.unblock();
        self.checkpoints.count += 1;
        self.keep_spares();
        for ticket in std::mem::take(&mut self.checkpoints.waiters) {
            self.retry(now, ticket);
        }
        for ticket in std::mem::take(&mut self.space_waiters) {
            self.retry(now, ticket);
        }
        self.pump_commit(now);
    }

    pub(super) fn checkpoint_io_completed(&mut self, bytes: u64, result: Result<(), IoError>) {
        if let Err(error) = result {
            return self.fail(&format!("checkpoint: {error}"));
        }
        if let Some(running) = &mut self.checkpoints.running {
            running.in_flight -= 1;
            running.in_flight_bytes -= bytes;
        }
    }
}
