//! The checkpoint that is under way, and where metadata lies.

use super::operation::Ticket;
use super::places::Places;
use crate::allocator::{Allocator, BlockRun};
use crate::format::{Features, Geometry, Piece, ShardLocation, Superblock, UNIT_BLOCKS};
use crate::journal::Mark;
use crate::metadata::Metadata;
use std::collections::VecDeque;
use units::{Bytes, Instant};

#[derive(Debug)]
pub(in crate::core) struct Checkpoints {
    pub(in crate::core) running: Option<Running>,
    pub(in crate::core) places: Places,
    /// Sum of all images.
    pub(in crate::core) image_bytes: u64,
    pub(in crate::core) last: Instant,
    pub(in crate::core) count: u64,
    /// How many checkpoints have begun.
    pub(in crate::core) begun: u64,
    pub(in crate::core) waiters: Vec<Ticket>,
    /// Features that operations wait for.
    pub(in crate::core) features_wanted: Features,
    /// Features that both slots tell of.
    pub(in crate::core) features_told: Features,
    /// The layout that the next superblock is to tell of: the device has grown.
    pub(in crate::core) grown: Option<Grown>,
}

/// A layout for a device that has grown.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Grown {
    pub(in crate::core) geometry: Geometry,
    /// The unit in which a partition table of the device counts.
    pub(in crate::core) table_sector: Bytes,
}

#[derive(Debug)]
pub(in crate::core) struct Running {
    pub(in crate::core) mark: Mark,
    pub(in crate::core) lsn: u64,
    pub(in crate::core) shards: VecDeque<u64>,
    /// The newest record in any image.
    pub(in crate::core) newest: u64,
    pub(in crate::core) phase: Phase,
    pub(in crate::core) in_flight: u32,
    pub(in crate::core) in_flight_bytes: u64,
    /// Places of images that the new superblock no longer points at.
    pub(in crate::core) replaced: Vec<ShardLocation>,
    pub(in crate::core) table: Piece,
    /// The table that it no longer points at.
    pub(in crate::core) table_before: Piece,
    /// Image of the first of `shards`, if a part of it was written.
    pub(in crate::core) placing: Option<Placing>,
    /// Both slots are to hold the new superblock.
    pub(in crate::core) is_to_be_told_twice: bool,
    /// What both slots tell of when it is written.
    pub(in crate::core) told: Features,
}

/// A shard's image on its way: it may be larger than memory for requests.
#[derive(Debug)]
pub(in crate::core) struct Placing {
    pub(in crate::core) image: Vec<u8>,
    pub(in crate::core) lsn: u64,
    /// Bytes in `pieces`.
    pub(in crate::core) done: usize,
    pub(in crate::core) pieces: Vec<Piece>,
}

impl Placing {
    pub(in crate::core) fn new(image: Vec<u8>, lsn: u64) -> Self {
        Self { image, lsn, done: 0, pieces: Vec::new() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Phase {
    Shards,
    Table,
    Flush,
    Superblock,
}

impl Checkpoints {
    /// Takes what is free in units that hold nothing but metadata.
    pub(in crate::core) fn new(
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
            features_wanted: Features::default(),
            features_told: Features::default(),
            grown: None,
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

    pub(in crate::core) fn is_running(&self) -> bool {
        self.running.is_some()
    }
}
