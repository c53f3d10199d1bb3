//! Writing shards home, a few at a time, and flipping the superblock.
//!
//! **Invariants:** an image is written only into space that no superblock points at. The superblock is written only when images and
//! table are on stable storage and the log is durable up to the newest image. What the old superblock pointed at is reused only
//! after the new one is on stable storage. Room for one whole checkpoint is kept aside, so that a full volume can still be
//! checkpointed: whole units where there are some, else whatever is free.

use super::state::Core;
use super::state::checkpoints::{Phase, Placing, Running};
use super::state::outbox::Purpose;
use crate::allocator::BlockRun;
use crate::format::{
    BLOCK, Features, Geometry, INODE_FLAGS, Piece, SHARED_UNITS, ShardLocation, UNIT, encode_table,
};
use crate::metadata::Image;
use crate::partition_table;
use crate::steps::{Step, has};
use avfs_io::{IoError, IoOperation, Segment};
use rtsched::Class;
use smallvec::SmallVec;
use units::{DeviceOffset, Instant, Now};

/// Bytes of images at the device at once. It bounds memory, and what a stream may find at the device. An operator's target.
const IN_FLIGHT_LIMIT: u64 = 4 << 20;
/// Bytes of an image that are written at once. It bounds the length of a request. An operator's target.
const IMAGE_PIECE: u64 = 2 << 20;
/// Bytes of an image that are made at once. It bounds the length of a turn. An operator's target.
const IMAGE_PART: usize = 1 << 20;
/// An image counts for so many steps of a turn: 256 inodes, and the copy of a piece. It bounds the length of a turn. An operator's
/// target.
const SHARD_STEPS: u32 = 64;

/// What became of one step.
enum Advance {
    /// There may be another one.
    Goes,
    /// For the device, or for memory.
    Waits,
    /// For the journal.
    ToCommit,
    /// The superblock is on stable storage.
    Ended,
}

impl Advance {
    fn when(goes: bool) -> Self {
        if goes { Self::Goes } else { Self::Waits }
    }
}

/// Why a checkpoint does not go on.
pub(super) enum Pumped {
    /// There is none, it waits for the device or for memory, or goes on in the next turn.
    Rests,
    /// It waits for what is pending to be committed.
    WaitsForCommit,
    /// It has ended: a commit that waited for room may go on, and another one may begin.
    Ended,
}

impl Core {
    pub(super) fn checkpoint_due(&self) -> Instant {
        if self.status.dormant
            || self.status.failure.is_some()
            || self.checkpoints.running.is_some()
            || !self.metadata.is_dirty()
        {
            return Instant::FAR_FUTURE;
        }
        self.checkpoints.last + self.options.config.journal.checkpoint_interval
    }

    /// Begins a checkpoint unless one is running.
    pub(super) fn start_checkpoint(&mut self, now: Now) {
        if self.checkpoints.running.is_some() || self.status.failure.is_some() || self.status.dormant {
            return;
        }
        self.mark_sparse_units();
        let replaced = self.metadata.drop_empty();
        if !has(Step::TailReleasedAfterSuperblock) {
            self.log.journal.release(self.log.journal.mark());
        }
        self.checkpoints.begun += 1;
        self.checkpoints.last = now.monotonic;
        self.checkpoints.running = Some(Running {
            mark: self.log.journal.mark(),
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
            told: Features::default(),
        });
    }

    pub(super) fn pump_checkpoint(&mut self, now: Now) -> Pumped {
        if self.status.failure.is_some() {
            let waiters = std::mem::take(&mut self.checkpoints.waiters);
            self.wake(waiters);
            return Pumped::Rests;
        }
        let large = (self.log.journal.capacity() / 2).min(128 << 20);
        let due = self.checkpoint_due() <= now.monotonic || self.log.journal.used() >= large;
        if self.checkpoints.running.is_none() && due {
            self.start_checkpoint(now);
        }
        while self.take_steps(1) {
            match self.advance_checkpoint() {
                Advance::Goes => {}
                Advance::Waits => break,
                Advance::ToCommit => return Pumped::WaitsForCommit,
                Advance::Ended => return Pumped::Ended,
            }
        }
        Pumped::Rests
    }

    /// True when a checkpoint cannot end before what is pending is committed.
    pub(super) fn checkpoint_waits_for_log(&self) -> bool {
        let running = self.checkpoints.running.as_ref();
        running.is_some_and(|running| {
            running.phase == Phase::Table && self.log.commit.durable_lsn() < running.newest
        })
    }

    /// One step.
    fn advance_checkpoint(&mut self) -> Advance {
        let Some(running) = &mut self.checkpoints.running else { return Advance::Waits };
        match running.phase {
            Phase::Shards => {
                if running.in_flight_bytes >= IN_FLIGHT_LIMIT {
                    return Advance::Waits;
                }
                let Some(&number) = running.shards.front() else {
                    self.set_phase(Phase::Table);
                    return Advance::when(self.write_table());
                };
                Advance::when(self.write_shard(number))
            }
            Phase::Table => {
                if running.table.length == 0 {
                    return Advance::when(self.write_table());
                }
                if running.in_flight > 0 && has(Step::ImagesBeforeFlush) {
                    return Advance::Waits;
                }
                if self.checkpoint_waits_for_log() && has(Step::LogUpToNewestImage) {
                    self.log.commit.want();
                    return Advance::ToCommit;
                }
                self.set_phase(Phase::Flush);
                if !has(Step::CheckpointIsFlushed) {
                    return Advance::Goes;
                }
                self.checkpoint_request(
                    IoOperation::Flush,
                    DeviceOffset(0),
                    SmallVec::new(),
                    Purpose::CheckpointFlush,
                    0,
                );
                Advance::Waits
            }
            Phase::Flush if running.in_flight == 0 => Advance::when(self.write_superblock()),
            Phase::Superblock if running.in_flight == 0 && running.is_to_be_told_twice => {
                running.is_to_be_told_twice = false;
                Advance::when(self.write_superblock())
            }
            Phase::Superblock if running.in_flight == 0 => {
                self.finish_checkpoint();
                Advance::Ended
            }
            Phase::Flush | Phase::Superblock => Advance::Waits,
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

    /// The superblock that is to be written tells of everything that the volume has, or is to have, beyond what the last one told. True if
    /// that is more: then the other slot has to tell of it, too.
    fn add_features(&mut self) -> bool {
        let mut features = self.superblock.features.with(self.checkpoints.features_wanted);
        if self.metadata.has_flags() {
            features.incompatible |= INODE_FLAGS;
        }
        if self.checkpoints.places.is_shared() {
            features.incompatible |= SHARED_UNITS;
        }
        features != std::mem::replace(&mut self.superblock.features, features)
    }

    fn write_superblock(&mut self) -> bool {
        let before = self.superblock.features;
        let is_more = self.add_features();
        let Some(running) = &mut self.checkpoints.running else { return false };
        // What the last superblock told, in the other slot, both tell now.
        running.told = before;
        running.is_to_be_told_twice |= is_more;
        let grown = self.checkpoints.grown.take();
        if let Some(grown) = grown {
            // Space is used only when both slots tell of it: for the older one it would lie behind the volume's end.
            self.superblock.geometry = grown.geometry;
            running.is_to_be_told_twice = true;
        }
        self.superblock.generation += 1;
        self.superblock.table = running.table;
        self.superblock.log = running.mark.position;
        self.superblock.lsn = running.lsn;
        if !has(Step::ReplayFromTheBegin) {
            self.superblock.log = self.log.journal.mark().position;
        }
        if !has(Step::SuperblockLsnOfTheBegin) {
            self.superblock.lsn = self.metadata.lsn();
        }
        let block = self.superblock.encode();
        let generation = if has(Step::SlotsInTurn) { self.superblock.generation } else { 0 };
        let Some(segments) = self.system_segments(&block[..]) else {
            self.fail("no memory for the superblock");
            return false;
        };
        self.set_phase(Phase::Superblock);
        if let Some(grown) = grown.filter(|_| self.superblock.features.has_table()) {
            let table = partition_table::encode(&self.superblock, grown.table_sector.0);
            let Some(segments) = self.system_segments(&table) else {
                self.fail("no memory for the partition table");
                return false;
            };
            let operation = IoOperation::Write { durable: true };
            self.checkpoint_request(operation, DeviceOffset(0), segments, Purpose::Superblock, 0);
        }
        for place in Geometry::superblock_copies(self.superblock.geometry.device, generation) {
            let operation = IoOperation::Write { durable: has(Step::SuperblockIsDurable) };
            self.checkpoint_request(operation, place, segments.clone(), Purpose::Superblock, 0);
        }
        false
    }

    fn finish_checkpoint(&mut self) {
        let Some(running) = self.checkpoints.running.take() else { return };
        self.checkpoints.features_told = running.told;
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
        self.use_added_space();
        self.log.journal.release(running.mark);
        self.log.commit.unblock();
        self.checkpoints.count += 1;
        let is_kept = self.keep_spares();
        if is_kept && self.checkpoints.places.spare_units() >= self.units_wanted() {
            for run in self.checkpoints.places.give_up_shared() {
                self.free_metadata(run);
            }
        }
        let waiters = std::mem::take(&mut self.checkpoints.waiters);
        self.wake(waiters);
        self.wake_for_space();
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

    /// How many checkpoints have ended.
    pub(super) fn checkpoints_written(&self) -> u64 {
        self.checkpoints.count
    }
}
