//! The protective partition table: what others see in front of a volume.
//!
//! **For:** tools that do not know AVFS. They find a partition table, whose one partition covers the device and is of the type for what
//! is no filesystem, and so refuse to write there, or ask. **Excludes:** the volume, which never reads it. **State:** none.
//! **Invariants:** it lies in the first 8 KiB, which hold nothing else; the volume is the same with it and without.

use crate::format::{BLOCK, COUNT_LIMIT, Geometry, PROTECTIVE_TABLE, Superblock, SuperblockError};
use crate::protection::{self, Machine};
use crate::superblocks::{NoVolume, Superblocks};
use avfs_io::IoError;
use avfs_io::device::Device;
use std::ops::Range;
use units::DeviceOffset;

/// What is kept for it: the table in the first sector, and one in the second, whatever the size of a sector.
const LENGTH: usize = 2 * BLOCK as usize;
/// Sizes that sectors have.
const SECTORS: [u64; 4] = [512, 1024, 2048, 4096];
/// Where a table says how many sectors its partition has.
const SECTORS_OF_PARTITION: Range<usize> = 458..462;
/// Type of a partition: data, and no filesystem.
const NON_FS_DATA: u8 = 0xda;

/// What stands where the table belongs, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// The table.
    Whole,
    /// Nothing, or a part of it, or one of the size that the volume had before it grew.
    Missing,
    /// Something else.
    Foreign,
}

/// Why a volume was not protected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtectError {
    /// There is no volume, or none that this version may write to.
    #[error("{0}")]
    NoVolume(String),
    /// Another process has it, here or on another host.
    #[error("{0}")]
    InUse(String),
    /// Another table, or a boot sector.
    #[error(
        "something else stands before the volume, a partition table perhaps: look at it (wipefs), and then use --force"
    )]
    Foreign,
    /// The device failed.
    #[error("the device fails: {0}")]
    Device(#[from] IoError),
}

impl From<NoVolume> for ProtectError {
    fn from(why: NoVolume) -> Self {
        Self::NoVolume(why.to_string())
    }
}

/// A sector with a table of one partition: from the sector behind it to the end of what has `sectors` sectors, or of what the table
/// can count.
fn sector(uuid: [u8; 16], sectors: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    // A machine that boots from it is told to try its next device: int 18h, hlt, jmp -3.
    bytes[..5].copy_from_slice(&[0xcd, 0x18, 0xf4, 0xeb, 0xfd]);
    // Read in a dump of the sector. It lies behind what would be the parameters of a FAT.
    let text = b"AVFS volume. This table protects it from other tools.";
    bytes[96..96 + text.len()].copy_from_slice(text);
    // Printed it is the beginning of the UUID.
    bytes[440..444].copy_from_slice(&[uuid[3], uuid[2], uuid[1], uuid[0]]);
    let count = u32::try_from(sectors - 1).unwrap_or(u32::MAX);
    // Not active; first and last sector by cylinders, which are counted no more: the last is beyond them.
    bytes[446..454].copy_from_slice(&[0, 0, 2, 0, NON_FS_DATA, 0xff, 0xff, 0xff]);
    bytes[454..458].copy_from_slice(&1_u32.to_le_bytes());
    bytes[SECTORS_OF_PARTITION].copy_from_slice(&count.to_le_bytes());
    bytes[510..].copy_from_slice(&[0x55, 0xaa]);
    bytes
}

/// The table of a volume on a device with sectors of that size. The kernel makes a device of the partition; its first sector has a table
/// of its own, so that it is not taken for empty either.
pub(crate) fn encode(superblock: &Superblock, sector_bytes: u64) -> Vec<u8> {
    let mut bytes = vec![0; LENGTH];
    let sectors = superblock.geometry.device.0 / sector_bytes;
    for number in 0..2 {
        let at = (number * sector_bytes) as usize;
        bytes[at..at + 512].copy_from_slice(&sector(superblock.uuid, sectors - number));
    }
    bytes
}

/// What stands before a volume. A table that counts other sectors than those of this device is whole: images move.
pub(crate) fn state(device: &dyn Device, superblock: &Superblock) -> Result<State, IoError> {
    let mut found = vec![0; LENGTH];
    device.read_at(DeviceOffset(0), &mut found)?;
    let state_by = |sector: u64| {
        let own = encode(superblock, sector);
        // Of any size: the volume may have grown.
        let is_size = |at: usize| {
            [0, sector as usize]
                .into_iter()
                .any(|table| at.checked_sub(table).is_some_and(|at| SECTORS_OF_PARTITION.contains(&at)))
        };
        let is_part = |at: usize| found[at] == own[at] || found[at] == 0 || is_size(at);
        match found == own {
            true => State::Whole,
            false if (0..LENGTH).all(is_part) => State::Missing,
            false => State::Foreign,
        }
    };
    Ok(SECTORS.into_iter().map(state_by).min().unwrap_or(State::Foreign))
}

/// Writes it, over whatever stands there; durable after the next flush.
pub(crate) fn write(device: &dyn Device, superblock: &Superblock) -> Result<(), IoError> {
    device.write_at(DeviceOffset(0), &encode(superblock, device.table_sector().0))
}

/// Whether the table stands before a volume that was found on a device.
///
/// # Errors
/// Those of the device.
pub fn is_protected(device: &dyn Device, superblock: &Superblock) -> Result<bool, IoError> {
    Ok(state(device, superblock)? == State::Whole)
}

/// Puts the table before a volume that no other process uses, and says in its superblock that it belongs there. With `force` also where
/// something else stands. False if that was so already. Where it is broken off, the volume is as it was.
///
/// # Errors
/// See [`ProtectError`].
pub fn protect(device: &dyn Device, force: bool) -> Result<bool, ProtectError> {
    let volume = Superblocks::read(device)?.best().uuid;
    let lease = protection::take(device, protection::watch(device, volume), &Machine)?;
    let lease = lease.map_err(|over| ProtectError::InUse(over.to_string()))?;
    protection::held(device, lease, |device| protect_held(device, force))
}

fn protect_held(device: &dyn Device, force: bool) -> Result<bool, ProtectError> {
    let superblocks = Superblocks::read(device)?;
    let mut superblock = superblocks.best().clone();
    if !superblock.features.allow_writing() || superblock.generation + 1 >= COUNT_LIMIT {
        return Err(ProtectError::NoVolume(SuperblockError::Newer.to_string()));
    }
    let (state, is_told) = (state(device, &superblock)?, superblock.features.has_table());
    match state {
        State::Whole if is_told => return Ok(false),
        State::Foreign if !force => return Err(ProtectError::Foreign),
        _ => {}
    }
    write(device, &superblock)?;
    device.flush()?;
    if !is_told {
        superblock.features.compatible |= PROTECTIVE_TABLE;
        superblock.generation += 1;
        for place in Geometry::superblock_copies(superblock.geometry.device, superblock.generation) {
            device.write_at(place, &superblock.encode()[..])?;
            device.flush()?;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fsck::{Finding, Mode, examine};
    use crate::recovery::find_superblock;
    use crate::simulation::formatted;
    use avfs_io::sim::SimDisk;
    use std::sync::Arc;
    use units::Bytes;

    const DISK: Bytes = Bytes::from_mib(192);

    /// As volumes were made before there was a table.
    fn unprotected() -> Arc<SimDisk> {
        let disk = formatted(DISK);
        let mut superblock = find_superblock(&*disk).unwrap();
        superblock.features.compatible = 0;
        for (index, place) in Geometry::superblock_places(DISK).into_iter().enumerate() {
            superblock.generation = if index % 2 == 1 { 1 } else { 2 };
            disk.write_at(place, &superblock.encode()[..]).unwrap();
        }
        disk.write_at(DeviceOffset(0), &[0; LENGTH]).unwrap();
        disk.flush().unwrap();
        disk
    }

    fn state_of(disk: &SimDisk) -> State {
        state(disk, &find_superblock(disk).unwrap()).unwrap()
    }

    #[test]
    fn the_table_is_one_that_others_read() {
        let uuid = [0xa1, 0xb2, 0xc3, 0xd4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let table = sector(uuid, 1 << 20);
        assert_eq!(table[510..], [0x55, 0xaa]);
        assert_eq!(u32::from_le_bytes(table[440..444].try_into().unwrap()), 0xa1b2_c3d4);
        assert_eq!(table[446..462], [0, 0, 2, 0, 0xda, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xff, 0xff, 0xf, 0]);
        assert_eq!(table[462..510], [0; 48]);
        // More sectors than it can count.
        assert_eq!(sector(uuid, 1 << 40)[458..462], [0xff; 4]);
    }

    #[test]
    fn a_volume_is_made_with_its_table() {
        let disk = formatted(DISK);
        assert_eq!(state_of(&disk), State::Whole);
        assert!(find_superblock(&*disk).unwrap().features.has_table());
        assert_eq!(examine(&*disk, Mode::Check).unwrap().findings, []);
    }

    /// Volumes of before are whole without one, and can be given one.
    #[test]
    fn a_volume_without_a_table_is_given_one() {
        let disk = unprotected();
        assert_eq!(examine(&*disk, Mode::Check).unwrap().findings, []);
        let before = find_superblock(&*disk).unwrap();
        assert_eq!(protect(&*disk, false), Ok(true));
        let after = find_superblock(&*disk).unwrap();
        assert_eq!((state_of(&disk), after.generation), (State::Whole, before.generation + 1));
        assert_eq!((after.table, after.log, after.lsn), (before.table, before.log, before.lsn));
        assert_eq!(examine(&*disk, Mode::Check).unwrap().findings, []);
        assert_eq!(protect(&*disk, false), Ok(false));
    }

    #[test]
    fn a_table_that_was_taken_away_is_found_and_written_again() {
        for end in [2, 512, LENGTH] {
            let disk = formatted(DISK);
            let mut bytes = vec![0; LENGTH];
            disk.read_at(DeviceOffset(0), &mut bytes).unwrap();
            // As wipefs(8) does, or a write that was cut short.
            bytes[512 - end.min(512)..].iter_mut().take(end).for_each(|byte| *byte = 0);
            disk.write_at(DeviceOffset(0), &bytes).unwrap();
            for (mode, code, then) in [
                (Mode::Check, 4, State::Missing),
                (Mode::Preen, 1, State::Whole),
                (Mode::Repair, 0, State::Whole),
            ] {
                assert_eq!(examine(&*disk, mode).unwrap().exit_code(), code, "{end} {mode:?}");
                assert_eq!(state_of(&disk), then, "{end} {mode:?}");
            }
        }
    }

    /// Whether the volume or what the other table tells of is wanted, a check does not know.
    #[test]
    fn another_table_is_told_and_left_alone() {
        let disk = formatted(DISK);
        let mut bytes = vec![0; LENGTH];
        disk.read_at(DeviceOffset(0), &mut bytes).unwrap();
        bytes[450] = 0xee;
        disk.write_at(DeviceOffset(0), &bytes).unwrap();
        // Beside damage that is repaired.
        disk.write_at(Geometry::superblock_places(DISK)[0], &[0; BLOCK as usize]).unwrap();
        for (mode, findings) in [(Mode::Check, 2), (Mode::Preen, 2), (Mode::Repair, 1)] {
            let report = examine(&*disk, mode).unwrap();
            assert_eq!(report.findings.len(), findings, "{mode:?}");
            assert_eq!(report.findings.last(), Some(&Finding::PartitionTableForeign), "{mode:?}");
            assert_eq!(report.exit_code(), 4, "{mode:?}");
            let mut now = vec![0; LENGTH];
            disk.read_at(DeviceOffset(0), &mut now).unwrap();
            assert_eq!(now, bytes, "{mode:?}");
        }
        assert_eq!(protect(&*disk, false), Err(ProtectError::Foreign));
        assert_eq!(protect(&*disk, true), Ok(true));
        assert_eq!(examine(&*disk, Mode::Check).unwrap().findings, []);
    }

    /// What a loss of power during it leaves is the volume as it was, with the table or without.
    #[test]
    fn a_volume_survives_whatever_is_lost_of_its_protection() {
        let disk = unprotected();
        let before = find_superblock(&*disk).unwrap();
        disk.record();
        protect(&*disk, false).unwrap();
        let images = disk.crash_images();
        for cut in images.cuts() {
            for seed in 0..4 {
                let left = images.image(cut, seed);
                let found = find_superblock(&left).unwrap();
                assert_eq!((found.table, found.log), (before.table, before.log), "{cut} {seed}");
                let findings = examine(&left, Mode::Check).unwrap().findings;
                assert!(findings.iter().all(Finding::is_harmless), "{cut} {seed}: {findings:?}");
                // Said to be there only when it is.
                assert!(!findings.contains(&Finding::PartitionTableMissing), "{cut} {seed}");
            }
        }
    }
}
