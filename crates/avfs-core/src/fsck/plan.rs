//! What a repair writes, all of it, before anything is written. Whatever the volume rests on stays as it is until the superblock
//! tells of something new.
//!
//! **Invariants:** a write goes to a place of the superblock, to the place of the damaged copy that it replaces and of nothing
//! else, or to blocks that nothing has. A plan that is broken off leaves the volume as it was or as it shall be.

use super::findings::FsckError;
use super::load::{Rewrite, joined, overlaps};
use super::patient::Patient;
use crate::allocator::BlockRun;
use crate::format::{
    BLOCK, COUNT_LIMIT, Geometry, INODE_FLAGS, LogPosition, Piece, SHARED_UNITS, ShardLocation, Superblock,
    UNIT_BLOCKS, encode_table,
};
use crate::journal;
use crate::superblocks::Superblocks;
use avfs_io::IoError;
use avfs_io::device::Device;
use std::collections::BTreeMap;
use std::rc::Rc;
use units::DeviceOffset;

/// Whole blocks and their place.
struct Write {
    place: DeviceOffset,
    bytes: Rc<[u8]>,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Plan {
    /// Each is on stable storage before the next begins.
    steps: Vec<Vec<Write>>,
    /// The log begins anew, as that of this superblock; what stands in the ring is taken from it in the end.
    forgotten_log: Option<Superblock>,
}

impl Plan {
    /// Carries it out.
    pub(super) fn apply(&self, device: &dyn Device) -> Result<(), IoError> {
        for step in self.steps.iter().filter(|step| !step.is_empty()) {
            for write in step {
                device.write_at(write.place, &write.bytes)?;
            }
            device.flush()?;
        }
        if let Some(superblock) = &self.forgotten_log {
            journal::forget(device, superblock)?;
            device.flush()?;
        }
        Ok(())
    }

    fn write_superblock(&mut self, place: DeviceOffset, superblock: &Superblock) {
        self.steps.push(vec![Write { place, bytes: Rc::from(&superblock.encode()[..]) }]);
    }
}

fn padded(bytes: &[u8]) -> Rc<[u8]> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(BLOCK as usize), 0);
    padded.into()
}

/// Free room that is being filled, once for images and once for their copies.
struct Room<'a> {
    geometry: Geometry,
    /// Joined.
    occupied: &'a [BlockRun],
    /// Where the search for room goes on.
    next: u64,
    open: [BlockRun; 2],
    /// What is free in units of which something is occupied, the longest last; looked for when no unit is free.
    holes: Option<Vec<BlockRun>>,
    writes: Vec<Write>,
}

impl<'a> Room<'a> {
    fn new(geometry: Geometry, occupied: &'a [BlockRun]) -> Self {
        let nothing = BlockRun { start: 0, count: 0 };
        Self { geometry, occupied, next: 0, open: [nothing; 2], holes: None, writes: Vec::new() }
    }

    /// The next free unit, or the longest hole where there is none.
    fn find(&mut self) -> Result<BlockRun, FsckError> {
        loop {
            let unit = BlockRun { start: self.next, count: UNIT_BLOCKS };
            if unit.end() > self.geometry.blocks() {
                let all = || holes(self.occupied, self.geometry.blocks());
                return self.holes.get_or_insert_with(all).pop().ok_or(FsckError::Full);
            }
            let index = self.occupied.partition_point(|run| run.end() <= unit.start);
            match self.occupied.get(index).filter(|run| run.start < unit.end()) {
                Some(run) => self.next = run.end().next_multiple_of(UNIT_BLOCKS),
                None => {
                    self.next = unit.end();
                    return Ok(unit);
                }
            }
        }
    }

    /// Makes room for `blocks` in one piece, at most a unit.
    fn open(&mut self, blocks: u64) -> Result<(), FsckError> {
        for side in 0..2 {
            if self.open[side].count < blocks {
                self.open[side] = self.find()?;
            }
            if self.open[side].count < blocks {
                return Err(FsckError::Full);
            }
        }
        Ok(())
    }

    /// Places bytes twice, cut where a run ends.
    fn put(&mut self, bytes: &[u8]) -> Result<Vec<Piece>, FsckError> {
        let mut pieces = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            self.open(1)?;
            let room = self.open[0].count.min(self.open[1].count) * BLOCK;
            let (now, later) = rest.split_at(room.min(rest.len() as u64) as usize);
            let bytes = padded(now);
            let used = bytes.len() as u64 / BLOCK;
            let [address, copy] = self.open.map(|run| self.geometry.block_address(run.start));
            for (place, run) in [address, copy].into_iter().zip(&mut self.open) {
                self.writes.push(Write { place, bytes: Rc::clone(&bytes) });
                *run = BlockRun { start: run.start + used, count: run.count - used };
            }
            pieces.push(Piece { address, copy, length: now.len() as u32, checksum: crc32c::crc32c(now) });
            rest = later;
        }
        Ok(pieces)
    }

    /// The same in one piece.
    fn put_whole(&mut self, bytes: &[u8]) -> Result<Piece, FsckError> {
        let blocks = (bytes.len() as u64).div_ceil(BLOCK);
        if blocks > UNIT_BLOCKS {
            // As large a table cannot be written by a mounted volume either.
            return Err(FsckError::Full);
        }
        self.open(blocks)?;
        self.put(bytes)?.first().copied().ok_or(FsckError::Full)
    }
}

/// What is free in units of which something is occupied, the longest last.
fn holes(occupied: &[BlockRun], blocks: u64) -> Vec<BlockRun> {
    let mut holes = Vec::new();
    let mut at = 0;
    for run in occupied.iter().copied().chain([BlockRun { start: blocks, count: 0 }]) {
        while at < run.start {
            let unit = at / UNIT_BLOCKS * UNIT_BLOCKS;
            let end = run.start.min(unit + UNIT_BLOCKS);
            if end - at < UNIT_BLOCKS {
                holes.push(BlockRun { start: at, count: end - at });
            }
            at = end;
        }
        at = at.max(run.end());
    }
    holes.sort_by_key(|run| (run.count, run.start));
    holes
}

/// All metadata into free space, and superblocks that tell of it. The log begins anew at `log`.
pub(super) fn checkpoint(
    superblocks: &Superblocks,
    mut log: LogPosition,
    patient: &mut Patient,
) -> Result<Plan, FsckError> {
    let best = superblocks.best();
    let geometry = best.geometry;
    let mut plan = Plan::default();
    // As they will be written.
    let counts = [best.generation.saturating_add(1), log.sequence, patient.metadata.lsn()];
    let is_used_up = counts.into_iter().any(|count| count >= COUNT_LIMIT);
    if is_used_up {
        patient.metadata.renumber();
    }
    let mut occupied = patient.occupied.clone();
    occupied.extend(best.table.runs(&geometry).into_iter().flatten());
    let occupied = joined(occupied, &geometry);
    let mut room = Room::new(geometry, &occupied);
    let mut locations = BTreeMap::new();
    for (number, _) in patient.metadata.shards().filter(|(_, shard)| !shard.is_empty()) {
        if let Some((image, _)) = patient.metadata.image(number) {
            locations.insert(number, ShardLocation { pieces: room.put(&image)? });
        }
    }
    let table = encode_table(locations.iter().map(|(&number, location)| (number, location)));
    let table = room.put_whole(&table)?;
    if is_used_up {
        // Until the ring is emptied, no batch of it may be taken for the first of the new ones.
        log = LogPosition { offset: 0, sequence: 1, previous_checksum: !table.checksum };
    }
    let mut features = best.features;
    if patient.metadata.has_flags() {
        features.incompatible |= INODE_FLAGS;
    }
    features.incompatible |= if room.holes.is_some() { SHARED_UNITS } else { 0 };
    let superblock = Superblock {
        features,
        generation: if is_used_up { 1 } else { best.generation + 1 },
        table,
        log,
        lsn: patient.metadata.lsn(),
        ..best.clone()
    };
    for write in &room.writes {
        let start = geometry.block_at(write.place).ok_or(FsckError::Occupied(write.place))?;
        let run = BlockRun { start, count: write.bytes.len() as u64 / BLOCK };
        if run.end() > geometry.blocks() || overlaps(&occupied, run) {
            return Err(FsckError::Occupied(write.place));
        }
    }
    plan.steps.push(room.writes);
    // Its own slot first. Where what stands there would count before it, the new one counts once none of that is left.
    let slot = (superblock.generation % 2) as usize;
    let mut order = [slot, slot + 2, 1 - slot, 3 - slot];
    order.sort_by_key(|&index| {
        superblocks.ours(index).is_some_and(|old| old.generation >= superblock.generation)
    });
    for index in order {
        plan.write_superblock(Geometry::superblock_places(geometry.device)[index], &superblock);
    }
    plan.forgotten_log = is_used_up.then_some(superblock);
    Ok(plan)
}

/// Damaged copies again: superblocks from their twin at the other end of the device or else from the one that counts, pieces from
/// their other copy.
pub(super) fn copies(superblocks: &Superblocks, copies: &[Rewrite]) -> Plan {
    let mut plan = Plan::default();
    for index in (0..superblocks.slots().len()).filter(|&index| superblocks.ours(index).is_none()) {
        let superblock = superblocks.ours(index ^ 2).unwrap_or(superblocks.best());
        plan.write_superblock(Geometry::superblock_places(superblock.geometry.device)[index], superblock);
    }
    let writes = copies.iter().map(|copy| Write { place: copy.address, bytes: padded(&copy.bytes) });
    plan.steps.push(writes.collect());
    plan
}
