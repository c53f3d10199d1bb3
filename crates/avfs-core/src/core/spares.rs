//! Room for metadata: what the next checkpoint may need is kept aside.
//!
//! **For:** places of images and tables, in whole units while there are some. **Excludes:** writing them. **State:** none of its own.
//! **Invariants:** a full volume can still be checkpointed.

use super::state::Core;
use super::state::places::unit_of;
use crate::allocator::{BlockRun, Owner, Purpose as SpaceFor, Request};
use crate::error::Error;
use crate::format::{BLOCK, Piece, UNIT, UNIT_BLOCKS};
use std::collections::BTreeSet;

/// A volume without whole free units may grow by so much metadata beyond what its log tells of. It bounds space. An operator's
/// target.
const SLACK_BLOCKS: u64 = UNIT_BLOCKS;
/// Bytes of live images that one checkpoint moves to empty sparse metadata units. It bounds the length of a checkpoint. An
/// operator's target.
const CLEANING_LIMIT: u64 = 16 << 20;

impl Core {
    /// Bytes that a checkpoint of everything may write, each twice.
    pub(super) fn checkpoint_bytes(&self) -> u64 {
        self.checkpoints.image_bytes + self.log.journal.used() + self.log.journal.pending_bytes()
    }

    /// Whole units that the next checkpoint is to have: images, copies, and two being filled.
    pub(super) fn units_wanted(&self) -> u64 {
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
    pub(super) fn keep_parts(&mut self) -> bool {
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
    pub(super) fn add_place(&mut self) -> bool {
        let space = self.metadata_space(SpaceFor::Metadata, UNIT_BLOCKS);
        let space = space.or_else(|| self.metadata_space(SpaceFor::MetadataPart, UNIT_BLOCKS));
        space.inspect(|&run| self.checkpoints.places.add(run)).is_some()
    }

    /// Space for metadata that no write was promised: a whole unit, or at most `wanted` blocks in one.
    pub(super) fn metadata_space(&mut self, purpose: SpaceFor, wanted: u64) -> Option<BlockRun> {
        let available = self.space.allocator.available();
        if purpose == SpaceFor::Metadata && available < UNIT_BLOCKS {
            return None;
        }
        let wanted = wanted.min(available).min(UNIT_BLOCKS);
        let request = Request { wanted, purpose, owner: Owner(0), after: None, window_units: None };
        self.space.allocator.allocate(&request)
    }

    pub(super) fn free_metadata(&mut self, run: BlockRun) {
        if self.space.allocator.free(run).is_err() {
            self.fail("space of metadata was freed twice");
        }
    }

    /// When metadata is spread over twice the units it needs, the emptiest are emptied; and when there are whole units again, those
    /// that it shares.
    pub(super) fn mark_sparse_units(&mut self) {
        let places = &self.checkpoints.places;
        let needed = 2 * self.checkpoints.image_bytes.div_ceil(UNIT) + 4;
        let mut used = places.used_by_unit();
        used.retain(|_, live| *live > 0);
        let mut by_live: Vec<(u64, u64)> = if used.len() as u64 > 2 * needed {
            used.iter().map(|(&unit, &live)| (live, unit)).collect()
        } else if places.is_shared() && self.space.allocator.free_units() > needed {
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

    /// Refuses what makes metadata grow on a full volume.
    pub(super) fn check_metadata_space(&mut self) -> crate::error::Result<()> {
        if self.keep_spares() && self.space.allocator.available() > 0 {
            return Ok(());
        }
        self.space.is_missed = true;
        Err(Error::NoSpace)
    }
}
