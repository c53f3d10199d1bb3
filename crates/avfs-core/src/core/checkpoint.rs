//! Writing shards home, a few at a time, and flipping the superblock.
//!
//! **Invariants:** an image is written only into space that no superblock points at; the superblock is written only
//! when images and table are on stable storage and the log is durable up to the newest image; what the old superblock
//! pointed at is reused only after the new one is on stable storage. Room for one whole checkpoint is kept aside, so
//! that a full volume can still be checkpointed: whole units where there are some, else whatever is free.

use super::places::{Places, unit_of};
use super::{Core, Purpose, Ticket};
use crate::allocator::{Allocator, BlockRun, Owner, Purpose as SpaceFor, Request};
use crate::format::{
    BLOCK, Geometry, INODE_FLAGS, Piece, SHARED_UNITS, ShardLocation, Superblock, UNIT, UNIT_BLOCKS,
    encode_table,
};
use crate::journal::Mark;
use crate::metadata::{Image, Metadata};
use crate::steps::{Step, has};
use avfs_io::{IoError, IoOperation, Segment};
use rtsched::Class;
use smallvec::SmallVec;
use std::collections::{BTreeSet, VecDeque};
use units::{DeviceOffset, Instant, Now};

/// Bytes of images at the device at once.
const IN_FLIGHT_LIMIT: u64 = 4 << 20;
/// Bytes of an image that are written at once.
const IMAGE_PIECE: u64 = 2 << 20;
/// What the metadata of a volume without whole free units may grow by beyond what its log tells of.
const SLACK_BLOCKS: u64 = UNIT_BLOCKS;
/// Bytes of an image that are made at once.
const IMAGE_PART: usize = 1 << 20;
/// What an image counts for in a turn: 256 inodes, and the copy of a piece.
const SHARD_STEPS: u32 = 64;
/// Bytes of live images that one checkpoint moves to empty sparse metadata units.
const CLEANING_LIMIT: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct Checkpoints {
    running: Option<Running>,
    pub(super) places: Places,
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
    /// The table that it no longer points at.
    table_before: Piece,
    /// Image of the first of `shards`, if a part of it was written.
    placing: Option<Placing>,
    /// Both slots are to hold the new superblock.
    is_to_be_told_twice: bool,
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
    /// Takes what is free in units that hold nothing but metadata.
    pub(super) fn new(
        superblock: &Superblock,
        metadata: &Metadata,
        allocator: &mut Allocator,
        now: Instant,
    ) -> Self {
        let mut checkpoints = Self {
            running: None,
            places: Places::default(),
            image_bytes: 0,
            last: now,
            count: 0,
            begun: 0,
            waiters: Vec::new(),
        };
        let geometry = &superblock.geometry;
        for piece in metadata.shards().flat_map(|(_, shard)| &shard.location.pieces) {
            for run in piece.runs(geometry).into_iter().flatten() {
                checkpoints.places.adopt(run);
            }
            checkpoints.image_bytes += piece.space();
        }
        if let [Some(table), Some(copy)] = superblock.table.runs(geometry)
            && superblock.table.length > 0
        {
            checkpoints.places.adopt_table([table, copy]);
            checkpoints.image_bytes += superblock.table.space();
        }
        for unit in checkpoints.places.units() {
            let run = BlockRun { start: unit, count: UNIT_BLOCKS };
            let missing = checkpoints.places.missing(run);
            if missing.iter().all(|&rest| allocator.is_free(rest)) {
                for rest in missing {
                    if allocator.mark_used(rest).is_ok() {
                        checkpoints.places.add(rest);
                    }
                }
            }
        }
        checkpoints
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
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

    /// Bytes that a checkpoint of everything may write, each twice.
    fn checkpoint_bytes(&self) -> u64 {
        self.checkpoints.image_bytes + self.journal.used() + self.journal.pending_bytes()
    }

    /// Whole units that the next checkpoint is to have: images, copies, and two being filled.
    fn units_wanted(&self) -> u64 {
        2 + 2 * self.checkpoint_bytes().div_ceil(UNIT)
    }

    /// Keeps as much aside as the next checkpoint may need: images and copies, and two units being filled; where there are not as
    /// many whole units, what is free in others. False when the volume has none left to give.
    pub(super) fn keep_spares(&mut self) -> bool {
        let wanted = self.units_wanted();
        while self.checkpoints.places.spare_units() < wanted {
            let Some(unit) = self.metadata_space(SpaceFor::Metadata, UNIT_BLOCKS) else {
                return self.keep_parts();
            };
            self.checkpoints.places.add(unit);
        }
        while self.checkpoints.places.spare_units() > wanted + 2 {
            let Some(unit) = self.checkpoints.places.give_up_unit() else { break };
            self.free_metadata(unit);
        }
        true
    }

    /// The same without whole units: blocks wherever they are, and among them room for the table in one piece.
    fn keep_parts(&mut self) -> bool {
        let needed = 2 * self.checkpoint_bytes().div_ceil(BLOCK) + SLACK_BLOCKS;
        let table = self.superblock.table.space() / BLOCK;
        let (least, ample) = (table + table / 8 + 1, (4 * table).next_power_of_two());
        while !self.checkpoints.places.keep_table_room(least, ample) {
            match self.metadata_space(SpaceFor::MetadataPart, ample) {
                Some(run) if run.count >= least => self.checkpoints.places.add(run),
                Some(short) => {
                    self.free_metadata(short);
                    return false;
                }
                None => return false,
            }
        }
        while self.checkpoints.places.spare_blocks() < needed {
            let missing = needed - self.checkpoints.places.spare_blocks();
            let Some(run) = self.metadata_space(SpaceFor::MetadataPart, missing) else { return false };
            self.checkpoints.places.add(run);
        }
        true
    }

    /// One more place for metadata: a whole unit, or the longest hole where there is none. False when nothing is free.
    fn add_place(&mut self) -> bool {
        let space = self.metadata_space(SpaceFor::Metadata, UNIT_BLOCKS);
        let space = space.or_else(|| self.metadata_space(SpaceFor::MetadataPart, UNIT_BLOCKS));
        space.inspect(|&run| self.checkpoints.places.add(run)).is_some()
    }

    /// Space for metadata that no write was promised: a whole unit, or at most `wanted` blocks in one.
    fn metadata_space(&mut self, purpose: SpaceFor, wanted: u64) -> Option<BlockRun> {
        let available = self.allocator.available();
        if purpose == SpaceFor::Metadata && available < UNIT_BLOCKS {
            return None;
        }
        let wanted = wanted.min(available).min(UNIT_BLOCKS);
        let request = Request { wanted, purpose, owner: Owner(0), after: None, window_units: None };
        self.allocator.allocate(&request)
    }

    fn free_metadata(&mut self, run: BlockRun) {
        if self.allocator.free(run).is_err() {
            self.fail("space of metadata was freed twice");
        }
    }

    /// Begins a checkpoint unless one is running.
    pub(super) fn start_checkpoint(&mut self, now: Now) {
        if self.checkpoints.running.is_some() || self.failure.is_some() || self.dormant {
            return;
        }
        self.mark_sparse_units();
        let replaced = self.metadata.drop_empty();
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
            table_before: self.superblock.table,
            placing: None,
            is_to_be_told_twice: false,
        });
    }

    /// When metadata is spread over twice the units it needs, the emptiest are emptied; and when there are whole units again, those
    /// that it shares.
    fn mark_sparse_units(&mut self) {
        let places = &self.checkpoints.places;
        let needed = 2 * self.checkpoints.image_bytes.div_ceil(UNIT) + 4;
        let mut used = places.used_by_unit();
        used.retain(|_, live| *live > 0);
        let mut by_live: Vec<(u64, u64)> = if used.len() as u64 > 2 * needed {
            used.iter().map(|(&unit, &live)| (live, unit)).collect()
        } else if places.is_shared() && self.allocator.free_units() > needed {
            used.iter()
                .filter(|&(&unit, _)| !places.is_own(unit))
                .map(|(&unit, &live)| (live, unit))
                .collect()
        } else {
            return;
        };
        by_live.sort_unstable();
        let mut moved = 0;
        let sparse: BTreeSet<u64> = by_live
            .into_iter()
            .take_while(|&(live, _)| {
                moved += live * BLOCK;
                moved <= CLEANING_LIMIT
            })
            .map(|(_, unit)| unit)
            .collect();
        let geometry = self.superblock.geometry;
        let in_sparse = |piece: &Piece| {
            piece.runs(&geometry).into_iter().flatten().any(|run| sparse.contains(&unit_of(run.start)))
        };
        let shards: Vec<u64> = self
            .metadata
            .shards()
            .filter(|(_, shard)| shard.location.pieces.iter().any(in_sparse))
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
        while self.take_steps(1) && self.advance_checkpoint(now) {}
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
        let Some(running) = &mut self.checkpoints.running else { return false };
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
            Phase::Superblock if running.in_flight == 0 && running.is_to_be_told_twice => {
                running.is_to_be_told_twice = false;
                self.write_superblock()
            }
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
        self.take_steps(SHARD_STEPS);
        let placing = match begun {
            Some(placing) => Some(placing),
            None => match self.metadata.go_on_image(number, IMAGE_PART) {
                Image::Unfinished => return true,
                Image::Done(image, lsn) => Some(Placing::new(image, lsn)),
                Image::Absent => None,
            },
        };
        let mut location = ShardLocation::default();
        if let Some(mut placing) = placing {
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
                for (side, run) in piece.runs(&geometry).into_iter().enumerate() {
                    run.into_iter().for_each(|run| self.checkpoints.places.fill_next(side, run));
                }
                self.checkpoints.image_bytes = self.checkpoints.image_bytes.saturating_sub(piece.space());
            }
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
        let Some(segments) = self.system_segments(&bytes) else { return false };
        let blocks = (bytes.len() as u64).div_ceil(BLOCK);
        let mut places = self.checkpoints.places.place_table(blocks);
        if places.is_none() {
            // It is one piece: it needs room in one, twice.
            for _ in 0..2 {
                self.add_place();
            }
            places = self.checkpoints.places.place_table(blocks);
        }
        let Some(places) = places else {
            self.fail("no space left for the shard table");
            return false;
        };
        let table = self.write_piece(&bytes, segments, places);
        if let Some(running) = &mut self.checkpoints.running {
            running.table = table;
        }
        true
    }

    /// Writes the first of `bytes` into metadata's places, twice: at most `limit`, and not past the end of one. `None`
    /// for want of memory or space: nothing has happened then.
    fn place(&mut self, bytes: &[u8], limit: u64) -> Option<Piece> {
        let mut room = limit;
        for side in 0..2 {
            while self.checkpoints.places.room(side).is_none() {
                if !self.add_place() {
                    self.fail("no space left for metadata");
                    return None;
                }
            }
            room = room.min(self.checkpoints.places.room(side)? * BLOCK);
        }
        let now = &bytes[..bytes.len().min(room as usize)];
        let segments = self.system_segments(now)?;
        let blocks = (now.len() as u64).div_ceil(BLOCK);
        let places = [self.checkpoints.places.fill(0, blocks)?, self.checkpoints.places.fill(1, blocks)?];
        Some(self.write_piece(now, segments, places))
    }

    fn write_piece(
        &mut self,
        bytes: &[u8],
        segments: SmallVec<[Segment; 2]>,
        places: [BlockRun; 2],
    ) -> Piece {
        let geometry = self.superblock.geometry;
        let [address, copy] = places.map(|place| geometry.block_address(place.start));
        let piece = Piece { address, copy, length: bytes.len() as u32, checksum: crc32c::crc32c(bytes) };
        for address in [address, copy] {
            let operation = IoOperation::Write { durable: false };
            let purpose = Purpose::Shard { bytes: piece.space() };
            self.checkpoint_request(operation, address, segments.clone(), purpose, piece.space());
        }
        self.checkpoints.image_bytes += piece.space();
        piece
    }

    fn write_superblock(&mut self) -> bool {
        let Some(running) = &mut self.checkpoints.running else { return false };
        if self.checkpoints.places.is_shared() && self.superblock.features.incompatible & SHARED_UNITS == 0 {
            // A program that does not know the feature must not find an older superblock that does not tell of it.
            self.superblock.features.incompatible |= SHARED_UNITS;
            running.is_to_be_told_twice = true;
        }
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
            for run in piece.runs(&geometry).into_iter().flatten() {
                self.checkpoints.places.make_spare(run);
            }
            self.checkpoints.image_bytes = self.checkpoints.image_bytes.saturating_sub(piece.space());
        }
        self.checkpoints.image_bytes =
            self.checkpoints.image_bytes.saturating_sub(running.table_before.space());
        self.checkpoints.places.table_written();
        self.journal.release(running.mark);
        self.commit.unblock();
        self.checkpoints.count += 1;
        let is_kept = self.keep_spares();
        if is_kept && self.checkpoints.places.spare_units() >= self.units_wanted() {
            for run in self.checkpoints.places.give_up_shared() {
                self.free_metadata(run);
            }
        }
        for ticket in std::mem::take(&mut self.checkpoints.waiters) {
            self.retry(now, ticket);
        }
        self.wake_for_space(now);
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
