//! Checking and repairing a volume that is not mounted.
//!
//! **For:** finding every contradiction in the metadata, and making the volume whole again at the least loss.
//! **Excludes:** the contents of files, which carry no checksums; what a mount does by itself (replaying the log,
//! removing orphans). **State:** none outside a call. **Invariants:** [`Mode::Check`] writes nothing; a repair is
//! [planned](plan) as a whole before it writes; it writes a copy over its damaged twin where nothing else lies, or a whole
//! new checkpoint into free space with the superblock last, so that a loss of power at any moment leaves the volume as it
//! was or as it shall be; what a repair has made is clean when it is checked again.
//!
//! Damage is repaired in memory first, in both modes, by the same records that the filesystem itself would write: so
//! what is reported is what would be done.

mod findings;
mod load;
mod patient;
mod plan;
mod space;
mod tree;

#[cfg(test)]
mod crafted;
#[cfg(test)]
mod mutated;
#[cfg(test)]
mod tests;

use crate::format::{MmpBlock, SuperblockError};
use crate::lease::Over;
use crate::partition_table;
use crate::protection::{self, Clock, Machine};
use crate::superblocks::Superblocks;
use avfs_io::IoError;
use avfs_io::device::Device;
pub use findings::{Finding, FsckError, Mode, Report};
use load::load;
use patient::Patient;

/// Checks the volume on a device, and repairs it as `mode` says. Where its last holder has not given it back, it is
/// watched for some seconds first, as before a mount. Whoever may write holds that block meanwhile, so that no other host mounts
/// what is being repaired.
///
/// # Errors
/// See [`FsckError`]. After one, the volume is as it was or as it was to become.
pub fn check(device: &dyn Device, mode: Mode) -> Result<Report, FsckError> {
    check_by(device, mode, &Machine)
}

fn check_by(device: &dyn Device, mode: Mode, clock: &dyn Clock) -> Result<Report, FsckError> {
    let uuid = Superblocks::read(device)?.best().uuid;
    let is_protected = is_protected(device, uuid)?;
    let watch = protection::watch(device, uuid);
    let in_use = |over: Over| FsckError::InUse(over.to_string());
    if mode == Mode::Check {
        protection::look(device, watch, clock)?.map_err(in_use)?;
        return inspect(device, mode, is_protected);
    }
    let lease = protection::take(device, watch, clock)?.map_err(in_use)?;
    protection::held(device, lease, |device| inspect(device, mode, is_protected))
}

/// Whether the protection block is one of this volume.
fn is_protected(device: &dyn Device, uuid: [u8; 16]) -> Result<bool, IoError> {
    Ok(protection::read(device)?.is_some_and(|block| block.uuid == uuid))
}

/// [`check`], by somebody who knows that nobody else uses the volume.
///
/// # Errors
/// See [`FsckError`].
pub fn examine(device: &dyn Device, mode: Mode) -> Result<Report, FsckError> {
    let uuid = Superblocks::read(device)?.best().uuid;
    let report = inspect(device, mode, is_protected(device, uuid)?)?;
    if report.repaired > 0 {
        protection::write(device, &MmpBlock { uuid, ..MmpBlock::default() })?;
        device.flush()?;
    }
    Ok(report)
}

/// Finds and repairs. Whether the protection block was one of this volume is said by the caller, who has to write it afterwards.
fn inspect(device: &dyn Device, mode: Mode, is_protected: bool) -> Result<Report, FsckError> {
    let superblocks = Superblocks::read(device)?;
    let best = superblocks.best();
    if mode != Mode::Check && !best.features.allow_writing() {
        return Err(SuperblockError::Newer.into());
    }
    let mut report = Report::default();
    for (index, slot) in superblocks.slots().iter().enumerate() {
        let place = slot.place;
        report.findings.extend(match slot.found {
            Err(cause) => Some(Finding::SuperblockDamaged { place, cause }),
            Ok(_) if superblocks.ours(index).is_none() => Some(Finding::SuperblockForeign { place }),
            Ok(_) => superblocks.is_contradicted(index).then_some(Finding::SuperblockContradicts { place }),
        });
    }
    if !is_protected {
        report.findings.push(Finding::MmpDamaged);
    }
    let table = best.features.has_table().then(|| partition_table::state(device, best)).transpose()?;
    if table == Some(partition_table::State::Missing) {
        report.findings.push(Finding::PartitionTableMissing);
    }

    // The one that counts first; usually nothing else is looked at.
    let mut chosen = None;
    for superblock in superblocks.candidates() {
        let Some(mut loaded) = load(device, superblock)? else {
            if superblock == best {
                report.findings.push(Finding::TableLost { generation: best.generation });
            }
            continue;
        };
        // What an older checkpoint and the log tell is only good if it reaches as far as the newest one.
        let is_whole = !loaded.is_lossy() && loaded.metadata.lsn() >= best.lsn;
        if is_whole && superblock != best {
            report.findings.retain(|finding| !matches!(finding, Finding::TableLost { .. }));
            loaded.findings.push(Finding::OlderCheckpoint { generation: superblock.generation });
        }
        if is_whole || chosen.is_none() {
            chosen = Some((superblock, loaded));
        }
        if is_whole {
            break;
        }
    }
    let Some((superblock, loaded)) = chosen else { return Ok(report) };
    report.findings.extend_from_slice(&loaded.findings);
    report.replayed = loaded.replayed;
    let (copies, log) = (loaded.copies, loaded.log);
    let may_share = best.features.may_share();
    let mut patient =
        Patient::new(loaded.metadata, best.geometry, may_share, &loaded.whole, loaded.places, loaded.lost);
    patient.treat();
    report.inodes = patient.metadata.inodes();
    report.orphans = patient.metadata.orphans().len() as u64;
    report.findings.append(&mut patient.findings);

    let harmless = report.findings.iter().filter(|finding| finding.is_harmless()).count();
    let is_damaged = harmless < report.findings.len();
    match mode {
        Mode::Repair if is_damaged => {
            plan::checkpoint(&superblocks, log, &mut patient)?.apply(device)?;
            report.repaired = report.findings.len();
        }
        // Checkpoints share what did not change between them. A copy that is made whole again for an older one would change what the
        // newest leads to.
        Mode::Preen | Mode::Repair if harmless > 0 && superblock == best => {
            plan::copies(&superblocks, &copies).apply(device)?;
            report.repaired = harmless;
        }
        _ => {}
    }
    match table {
        Some(partition_table::State::Missing) if report.repaired > 0 => {
            partition_table::write(device, best)?;
            device.flush()?;
        }
        // Which of the two is wanted is not known here.
        Some(partition_table::State::Foreign) => report.findings.push(Finding::PartitionTableForeign),
        _ => {}
    }
    Ok(report)
}

impl Patient {
    /// Finds everything and puts it right, in an order in which no repair makes new damage.
    fn treat(&mut self) {
        self.check_root();
        self.check_parents();
        self.check_names();
        self.check_duplicates();
        self.check_paths();
        self.check_bodies();
        self.check_space();
        self.adopt();
        self.check_index();
    }
}
