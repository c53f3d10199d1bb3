//! Putting repaired metadata on the device. Whatever the volume rests on stays as it is until the superblock tells of
//! something new.

use super::load::DamagedCopy;
use super::{FsckError, Patient, Superblocks};
use crate::allocator::{Allocator, BlockRun, Owner, Purpose, Request};
use crate::format::{
    BLOCK, Geometry, LogPosition, Piece, ShardLocation, Superblock, UNIT, UNIT_BLOCKS, encode_table,
};
use avfs_io::IoError;
use avfs_io::device::Device;
use std::collections::BTreeMap;
use units::DeviceOffset;

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(BLOCK as usize), 0);
    padded
}

/// Two units that are being filled, one with images and one with their copies.
struct Place<'a> {
    device: &'a dyn Device,
    geometry: Geometry,
    allocator: Allocator,
    units: [u64; 2],
    used: u64,
}

impl Place<'_> {
    /// Writes bytes twice, cut where the units end.
    fn put(&mut self, bytes: &[u8]) -> Result<Vec<Piece>, FsckError> {
        let mut pieces = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.used == UNIT {
                for unit in &mut self.units {
                    let request = Request {
                        wanted: UNIT_BLOCKS,
                        purpose: Purpose::Metadata,
                        owner: Owner(0),
                        after: None,
                        window_units: None,
                    };
                    *unit = self.allocator.allocate(&request).ok_or(FsckError::Full)?.start;
                }
                self.used = 0;
            }
            let (now, later) = rest.split_at(rest.len().min((UNIT - self.used) as usize));
            let [address, copy] =
                self.units.map(|unit| DeviceOffset(self.geometry.block_address(unit).0 + self.used));
            let padded = padded(now);
            self.device.write_at(address, &padded)?;
            self.device.write_at(copy, &padded)?;
            self.used += padded.len() as u64;
            let (length, checksum) = (now.len() as u32, crc32c::crc32c(now));
            pieces.push(Piece { address, copy, length, checksum });
            rest = later;
        }
        Ok(pieces)
    }

    /// The same in one piece.
    fn put_whole(&mut self, bytes: &[u8]) -> Result<Piece, FsckError> {
        if self.used + (bytes.len() as u64).next_multiple_of(BLOCK) > UNIT {
            self.used = UNIT;
        }
        match self.put(bytes)?.as_slice() {
            [piece] => Ok(*piece),
            // As large a table cannot be written by a mounted volume either.
            _ => Err(FsckError::Full),
        }
    }
}

/// Writes all metadata into free units and makes the superblocks point at it. The log begins anew at `log`.
pub(super) fn checkpoint(
    device: &dyn Device,
    newest: &Superblock,
    log: LogPosition,
    patient: &Patient,
) -> Result<(), FsckError> {
    let geometry = newest.geometry;
    let mut allocator = Allocator::new(geometry.units);
    let units = patient.units.iter().map(|&start| BlockRun { start, count: UNIT_BLOCKS });
    let extents = patient.metadata.iter().filter_map(|(_, inode)| inode.extents());
    let runs = units.chain(extents.flat_map(|extents| extents.iter().map(|extent| extent.run())));
    for run in runs {
        // Every run has one owner by now.
        let marked = allocator.mark_used(run);
        debug_assert!(marked.is_ok(), "{marked:?}");
    }
    let mut place = Place { device, geometry, allocator, units: [0; 2], used: UNIT };
    let mut locations = BTreeMap::new();
    for (number, shard) in patient.metadata.shards() {
        if shard.is_empty() {
            continue;
        }
        if let Some((image, _)) = patient.metadata.image(number) {
            locations.insert(number, ShardLocation { pieces: place.put(&image)? });
        }
    }
    let table = encode_table(locations.iter().map(|(&number, location)| (number, location)));
    let superblock = Superblock {
        generation: newest.generation + 1,
        table: place.put_whole(&table)?,
        log,
        lsn: patient.metadata.lsn(),
        ..newest.clone()
    };
    device.flush()?;
    let places = Geometry::superblock_places(geometry.device);
    let slot = (superblock.generation % 2) as usize;
    for slot in [slot, 1 - slot] {
        for place in [places[slot], places[slot + 2]] {
            device.write_at(place, &superblock.encode()[..])?;
        }
        device.flush()?;
    }
    Ok(())
}

/// Writes damaged copies again: superblocks from their twin at the other end of the device or else from the newest
/// one, pieces from their other copy.
pub(super) fn copies(
    device: &dyn Device,
    superblocks: &Superblocks,
    newest: &Superblock,
    copies: &[DamagedCopy],
) -> Result<(), IoError> {
    let is_ours = |other: &&Superblock| other.uuid == newest.uuid && other.geometry == newest.geometry;
    let usable = |index: usize| superblocks[index].1.as_ref().ok().filter(is_ours);
    for (index, &(place, _)) in superblocks.iter().enumerate() {
        if usable(index).is_none() {
            let superblock = usable(index ^ 2).unwrap_or(newest);
            device.write_at(place, &superblock.encode()[..])?;
        }
    }
    for copy in copies {
        device.write_at(copy.address, &padded(&copy.bytes))?;
    }
    device.flush()
}
