//! Making a volume.

use crate::format::{
    BLOCK, Features, Geometry, LOG_START, LogPosition, MMP, MmpBlock, PROTECTIVE_TABLE, Piece,
    SMALLEST_VOLUME, SUPERBLOCK_A, ShardLocation, Superblock, UNIT, encode_table,
};
use crate::journal::forget;
use crate::metadata::Metadata;
use crate::partition_table;
use crate::protection::{self, Machine};
use crate::recovery::find_superblock;
use avfs_io::IoError;
use avfs_io::device::Device;
use units::{Bytes, DeviceOffset, Timestamp};

/// What may be chosen.
#[derive(Clone, Debug, Default)]
pub struct MkfsOptions {
    /// At most 63 bytes.
    pub label: String,
    /// Identity; random when absent.
    pub uuid: Option<[u8; 16]>,
    /// Stripe to align the data area to; the device's optimal I/O size when absent.
    pub stripe: Option<Bytes>,
    /// Birth of the root directory.
    pub now: Timestamp,
}

/// Why no volume was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MkfsError {
    /// Below the smallest volume.
    #[error("the device has {has}; a volume needs at least {needs}")]
    TooSmall {
        /// What it has.
        has: Bytes,
        /// What it would need.
        needs: Bytes,
    },
    /// Not usable as a stripe.
    #[error("a stripe of {0} is not possible: give a multiple of 4 KiB up to 1 GiB")]
    Stripe(Bytes),
    /// Too long.
    #[error("the label is longer than 63 bytes")]
    Label,
    /// It carries a volume that is in use.
    #[error("{0}")]
    InUse(String),
    /// The device failed.
    #[error("cannot write the volume: {0}")]
    Device(#[from] IoError),
}

/// [`make`], where the device may carry a volume that another process has, on this host or another one: whoever makes a volume
/// holds it meanwhile. Waits for some seconds where the last holder of a volume has not given it back.
///
/// # Errors
/// See [`MkfsError`].
pub fn make_alone(device: &dyn Device, options: &MkfsOptions) -> Result<Superblock, MkfsError> {
    let uuid = options.uuid.unwrap_or_else(|| *uuid::Uuid::new_v4().as_bytes());
    let volume = find_superblock(device).ok().map(|superblock| superblock.uuid);
    let watch = protection::watch_to_replace(device, volume, uuid);
    let lease =
        protection::take(device, watch, &Machine)?.map_err(|over| MkfsError::InUse(over.to_string()))?;
    protection::held(device, lease, |device| write(device, options, uuid))
}

/// Says whether another process has the volume on a device, after watching it for some seconds where that is not known.
///
/// # Errors
/// [`MkfsError::InUse`], and those of the device.
pub fn check_unused(device: &dyn Device) -> Result<(), MkfsError> {
    let volume = find_superblock(device).ok().map(|superblock| superblock.uuid);
    let watch = protection::watch_to_replace(device, volume, [0; 16]);
    protection::look(device, watch, &Machine)?.map_err(|over| MkfsError::InUse(over.to_string()))?;
    Ok(())
}

/// Writes an empty volume to a device that nobody else uses. Whatever was on the device is lost. The superblocks are written last,
/// so a device on which this was interrupted carries no volume.
///
/// # Errors
/// See [`MkfsError`].
pub fn make(device: &dyn Device, options: &MkfsOptions) -> Result<Superblock, MkfsError> {
    let uuid = options.uuid.unwrap_or_else(|| *uuid::Uuid::new_v4().as_bytes());
    let superblock = write(device, options, uuid)?;
    protection::write(device, &MmpBlock { uuid, ..MmpBlock::default() })?;
    device.flush()?;
    Ok(superblock)
}

/// Writes everything but the multi-mount protection block.
fn write(device: &dyn Device, options: &MkfsOptions, uuid: [u8; 16]) -> Result<Superblock, MkfsError> {
    if options.label.len() > 63 {
        return Err(MkfsError::Label);
    }
    let size = Bytes(device.size().0 / BLOCK * BLOCK);
    let reported = device.geometry().optimal_io;
    // What a device reports may be nonsense; what an administrator says is taken or refused.
    let stripe = match options.stripe {
        Some(stripe) if !stripe.0.is_multiple_of(BLOCK) || stripe.0 > 1 << 30 => {
            return Err(MkfsError::Stripe(stripe));
        }
        Some(stripe) => stripe,
        None if reported.0.is_multiple_of(BLOCK) && reported.0 <= 1 << 30 => reported,
        None => Bytes::ZERO,
    };
    let geometry = Geometry::new(size, stripe)
        .ok_or(MkfsError::TooSmall { has: size, needs: Bytes(SMALLEST_VOLUME) })?;

    // Old structures must not be found: neither another filesystem's at the start nor our own superblocks and log.
    let zeros = vec![0; 1 << 20];
    for (from, to) in
        [(0, SUPERBLOCK_A), (SUPERBLOCK_A, MMP), (MMP + BLOCK, LOG_START), (LOG_START, LOG_START + (1 << 20))]
    {
        device.write_at(DeviceOffset(from), &zeros[..(to - from) as usize])?;
    }
    let tail = Geometry::superblock_places(size)[2];
    device.write_at(tail, &zeros[..(size.0 - tail.0) as usize])?;
    device.flush()?;

    let metadata = Metadata::with_root(options.now);
    let (image, lsn) = metadata.image(0).unwrap_or_default();
    let mut places = [0, UNIT].map(|unit| geometry.data_start.0 + unit);
    let mut place = |bytes: &[u8]| -> Result<Piece, IoError> {
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(BLOCK as usize), 0);
        let piece = Piece {
            address: DeviceOffset(places[0]),
            copy: DeviceOffset(places[1]),
            length: bytes.len() as u32,
            checksum: crc32c::crc32c(bytes),
        };
        for place in &mut places {
            device.write_at(DeviceOffset(*place), &padded)?;
            *place += padded.len() as u64;
        }
        Ok(piece)
    };
    let location = ShardLocation { pieces: vec![place(&image)?] };
    let table = place(&encode_table(std::iter::once((0, &location))))?;
    let mut superblock = Superblock {
        uuid,
        label: options.label.clone(),
        features: Features { compatible: PROTECTIVE_TABLE, ..Features::default() },
        generation: 0,
        geometry,
        table,
        log: LogPosition { offset: 0, sequence: 1, previous_checksum: 0 },
        lsn,
    };
    if options.uuid.is_some() {
        forget(device, &superblock)?;
    }
    device.flush()?;
    for generation in 1..=2 {
        superblock.generation = generation;
        for place in Geometry::superblock_copies(size, generation) {
            device.write_at(place, &superblock.encode()[..])?;
        }
    }
    // It protects a volume, so there is one first.
    device.flush()?;
    partition_table::write(device, &superblock)?;
    device.flush()?;
    Ok(superblock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::fsck::{Mode, examine};
    use crate::simulation::{SimVolume, formatted};
    use avfs_io::pool::Pool;
    use units::Ino;

    /// Only the first MiB of the log was wiped: of a volume that had the same UUID before, whole batches lay behind it, and a check
    /// of the new one found that its log was damaged.
    #[test]
    fn a_volume_made_again_with_its_uuid_is_clean() {
        let disk = formatted(Bytes::from_mib(192));
        let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
        let mut volume = SimVolume::mount(disk, &pool, Config::default(), 1).unwrap();
        for number in 0..30 {
            let (ino, _) = volume.create(Ino::ROOT, format!("{number}").as_bytes()).unwrap();
            let value = vec![1; 60_000];
            volume
                .with(|core, now| {
                    core.set_xattr(now, ino, b"user.x", &value, crate::types::XattrFlags::empty())
                })
                .unwrap();
            volume.fsync(ino).unwrap();
        }
        let disk = volume.unmount().unwrap();
        let superblock = crate::recovery::find_superblock(&*disk).unwrap();
        let options = MkfsOptions { uuid: Some(superblock.uuid), ..MkfsOptions::default() };
        make(&*disk, &options).unwrap();
        assert_eq!(examine(&*disk, Mode::Check).unwrap().findings, []);
    }
}
