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

mod load;
mod plan;
mod space;
mod tree;

#[cfg(test)]
mod crafted;
#[cfg(test)]
mod mutated;
#[cfg(test)]
mod tests;

use crate::allocator::BlockRun;
use crate::format::{Geometry, MmpBlock, SuperblockError};
use crate::journal::Behind;
use crate::lease::Over;
use crate::metadata::{Contradiction, Metadata};
use crate::protection::{self, Clock, Machine};
use crate::superblocks::{NoVolume, Superblocks};
use avfs_io::IoError;
use avfs_io::device::Device;
use load::{file_runs, joined, load};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use units::{Bytes, DeviceOffset, Ino};

/// How far to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Look only (`-n`).
    Check,
    /// Repair what loses nothing (`-p`, `-a`).
    Preen,
    /// Repair everything (`-y`).
    Repair,
}

/// One thing that is wrong. Displayed as one line that says what is and what the repair makes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// One of the four superblocks cannot be used.
    SuperblockDamaged {
        /// Where.
        place: DeviceOffset,
        /// What is wrong with it.
        cause: SuperblockError,
    },
    /// One of the four superblocks belongs to another volume.
    SuperblockForeign {
        /// Where.
        place: DeviceOffset,
    },
    /// One of the four superblocks tells something else than another one of its generation.
    SuperblockContradicts {
        /// Where.
        place: DeviceOffset,
    },
    /// Generation or sequence numbers are too high to go on.
    CountsUsedUp,
    /// The multi-mount protection block is not one of this volume.
    MmpDamaged,
    /// A copy of a shard, or of the shard table, should lie where something else does, or outside the volume.
    Misplaced {
        /// Which shard; `None`: the table.
        shard: Option<u64>,
        /// Where.
        address: DeviceOffset,
    },
    /// One of the two copies of the shard table.
    TableCopyDamaged {
        /// Where.
        address: DeviceOffset,
    },
    /// Both copies of the newest shard table.
    TableLost {
        /// Of its superblock.
        generation: u64,
    },
    /// One of the two copies of a shard, or of a piece of it.
    ShardCopyDamaged {
        /// Which shard.
        shard: u64,
        /// Where.
        address: DeviceOffset,
    },
    /// Both copies of a shard: its inodes are gone.
    ShardLost {
        /// Which shard.
        shard: u64,
    },
    /// The newest metadata is damaged in both copies; an older checkpoint and the log tell the same.
    OlderCheckpoint {
        /// Of the older superblock.
        generation: u64,
    },
    /// The log goes on behind a place where it cannot be read.
    LogDamaged(Behind),
    /// A block of a log batch, the others of which say what it was.
    LogBlockDamaged {
        /// Where.
        address: DeviceOffset,
    },
    /// A record of the log does not fit the metadata.
    LogContradiction {
        /// Its sequence number.
        lsn: u64,
        /// How.
        contradiction: Contradiction,
    },
    /// There is no root directory.
    RootMissing,
    /// Inode 1 is something else.
    RootNotDirectory,
    /// The root directory has a name.
    RootNamed,
    /// Names stand in a directory that does not exist.
    DirectoryMissing {
        /// Its inode.
        directory: Ino,
        /// How many.
        names: usize,
    },
    /// A name stands in a directory whose number no inode can have.
    ParentImpossible {
        /// Whose name.
        ino: Ino,
        /// What it says.
        parent: Ino,
    },
    /// A name stands in something that is no directory.
    ParentNotDirectory {
        /// Whose name.
        ino: Ino,
        /// What it says.
        parent: Ino,
    },
    /// A name that no file can have.
    NameInvalid {
        /// Whose name.
        ino: Ino,
        /// Which.
        name: Box<[u8]>,
    },
    /// An inode has the same name twice.
    NameRepeated {
        /// Whose name.
        ino: Ino,
        /// Which.
        name: Box<[u8]>,
    },
    /// Two inodes have the same name in the same directory.
    NameDuplicate {
        /// The second of them.
        ino: Ino,
        /// The first one, which keeps it.
        other: Ino,
        /// Which.
        name: Box<[u8]>,
    },
    /// More names of the same hash than a directory can hold.
    DirectoryCrowded {
        /// Whose name found no room.
        ino: Ino,
        /// The directory.
        parent: Ino,
    },
    /// A directory has more than one name.
    DirectoryNames {
        /// Which.
        ino: Ino,
        /// How many.
        names: usize,
    },
    /// A directory lies in itself.
    DirectoryCycle {
        /// Which.
        ino: Ino,
    },
    /// A directory without a name has entries.
    DirectoryUnreachable {
        /// Which.
        ino: Ino,
    },
    /// A symbolic link without a target.
    SymlinkEmpty {
        /// Which.
        ino: Ino,
    },
    /// A symbolic link whose size is not its target's length.
    SymlinkSize {
        /// Which.
        ino: Ino,
        /// What it says.
        size: u64,
    },
    /// The extended attributes of an inode exceed their limit.
    XattrsTooLarge {
        /// Whose.
        ino: Ino,
        /// All of them together.
        bytes: usize,
    },
    /// A file has blocks that are not on the volume.
    ExtentOutside {
        /// Whose.
        ino: Ino,
        /// Which.
        run: BlockRun,
    },
    /// A file has blocks that are another's.
    ExtentOverlap {
        /// Whose.
        ino: Ino,
        /// Which.
        run: BlockRun,
        /// Who keeps them; `None`: the metadata.
        owner: Option<Ino>,
    },
}

impl Finding {
    /// True when the repair loses nothing: what is damaged stands whole somewhere else.
    pub fn is_harmless(&self) -> bool {
        matches!(
            self,
            Self::SuperblockDamaged { .. }
                | Self::SuperblockForeign { .. }
                | Self::MmpDamaged
                | Self::TableCopyDamaged { .. }
                | Self::ShardCopyDamaged { .. }
                | Self::LogBlockDamaged { .. }
        )
    }
}

/// A name as it is shown: what is not printable is escaped.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SuperblockDamaged { place, cause } => {
                write!(f, "superblock at {place}: {cause}: to be written again")
            }
            Self::SuperblockForeign { place } => {
                write!(f, "superblock at {place} is another volume's: to be written again")
            }
            Self::SuperblockContradicts { place } => {
                write!(f, "superblock at {place} contradicts another of its generation: to be written again")
            }
            Self::CountsUsedUp => write!(f, "sequence numbers are used up: to be counted anew"),
            Self::Misplaced { shard, address } => {
                match shard {
                    Some(shard) => write!(f, "shard {shard}")?,
                    None => write!(f, "shard table")?,
                }
                write!(
                    f,
                    " at {address} is where something else lies, or nothing can: to be written elsewhere"
                )
            }
            Self::MmpDamaged => write!(f, "multi-mount protection block is damaged: to be written again"),
            Self::TableCopyDamaged { address } => {
                write!(f, "shard table at {address} is damaged: to be written again from its other copy")
            }
            Self::TableLost { generation } => {
                write!(f, "shard table of generation {generation} is damaged, and so is its copy: it is lost")
            }
            Self::ShardCopyDamaged { shard, address } => {
                write!(f, "shard {shard} at {address} is damaged: to be written again from its other copy")
            }
            Self::ShardLost { shard } => {
                let first = shard * crate::format::SHARD_INODES;
                let last = first + crate::format::SHARD_INODES - 1;
                write!(f, "shard {shard} is damaged in both copies: inodes {first} to {last} are lost")
            }
            Self::OlderCheckpoint { generation } => {
                write!(f, "metadata is damaged: restored from generation {generation} and the log")
            }
            Self::LogDamaged(behind) => behind.fmt(f),
            Self::LogBlockDamaged { address } => {
                write!(
                    f,
                    "log block at {address} is damaged: to be written again from the others of its batch"
                )
            }
            Self::LogContradiction { lsn, contradiction } => {
                write!(f, "log record {lsn}: {contradiction}: to be left out")
            }
            Self::RootMissing => write!(f, "the root directory is missing: to be made again"),
            Self::RootNotDirectory => {
                write!(f, "inode 1 is not a directory: to be replaced by a root directory")
            }
            Self::RootNamed => write!(f, "the root directory has a name: to be removed"),
            Self::DirectoryMissing { directory, names } => {
                write!(
                    f,
                    "directory inode {directory}, with {names} names in it, is missing: to be made again"
                )
            }
            Self::ParentImpossible { ino, parent } => {
                write!(f, "inode {ino} has a name in inode {parent}, which cannot be: to be removed")
            }
            Self::ParentNotDirectory { ino, parent } => {
                write!(f, "inode {ino} has a name in inode {parent}, which is no directory: to be removed")
            }
            Self::NameInvalid { ino, name } => {
                write!(f, "inode {ino} is named {}: to be removed", Shown(name))
            }
            Self::NameRepeated { ino, name } => {
                write!(f, "inode {ino} is named {} twice: once suffices", Shown(name))
            }
            Self::NameDuplicate { ino, other, name } => {
                write!(f, "inode {ino} is named {} as inode {other} is: to be renamed", Shown(name))
            }
            Self::DirectoryCrowded { ino, parent } => {
                write!(f, "a name of inode {ino} does not fit directory {parent}: to be removed")
            }
            Self::DirectoryNames { ino, names } => {
                write!(f, "directory {ino} has {names} names: all but the first to be removed")
            }
            Self::DirectoryCycle { ino } => {
                write!(f, "directory {ino} lies in itself: to be moved to lost+found")
            }
            Self::DirectoryUnreachable { ino } => {
                write!(f, "directory {ino} has entries but no name: to be moved to lost+found")
            }
            Self::SymlinkEmpty { ino } => write!(f, "symbolic link {ino} has no target: to be removed"),
            Self::SymlinkSize { ino, size } => {
                write!(f, "symbolic link {ino} has size {size}: to become its target's length")
            }
            Self::XattrsTooLarge { ino, bytes } => {
                write!(f, "inode {ino} has {bytes} bytes of extended attributes: the longest to be removed")
            }
            Self::ExtentOutside { ino, run } => {
                write!(f, "inode {ino} has {run}, which are not on the volume: to become a hole")
            }
            Self::ExtentOverlap { ino, run, owner: Some(owner) } => {
                write!(f, "inode {ino} has {run}, which are inode {owner}'s: to become a hole")
            }
            Self::ExtentOverlap { ino, run, owner: None } => {
                write!(f, "inode {ino} has {run}, which are metadata: to become a hole")
            }
        }
    }
}

/// Why nothing could be said, or not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FsckError {
    /// No superblock can be used.
    #[error("{0}")]
    Superblock(#[from] SuperblockError),
    /// The device is smaller than the volume.
    #[error("the volume is {volume} long but the device only {device}: give it the whole device")]
    Truncated {
        /// What the superblock says.
        volume: Bytes,
        /// What the device has.
        device: Bytes,
    },
    /// Another process has it, here or on another host.
    #[error("{0}")]
    InUse(String),
    /// No place for the repaired metadata.
    #[error("no free space for the repaired metadata: nothing was changed")]
    Full,
    /// The repair would have to write there, and something else lies there. It was planned wrongly.
    #[error("the repair would write over something else at {0}: nothing was changed")]
    Occupied(DeviceOffset),
    /// The device failed.
    #[error("the device fails: {0}")]
    Device(#[from] IoError),
}

impl From<NoVolume> for FsckError {
    fn from(why: NoVolume) -> Self {
        match why {
            NoVolume::Superblock(cause) => Self::Superblock(cause),
            NoVolume::Truncated { volume, device } => Self::Truncated { volume, device },
        }
    }
}

/// What was found and done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Everything that is or was wrong.
    pub findings: Vec<Finding>,
    /// How many of them were repaired.
    pub repaired: usize,
    /// Inodes of the volume.
    pub inodes: u64,
    /// Inodes without a name, which the next mount removes. A loss of power leaves them; they are not damage.
    pub orphans: u64,
    /// Records in the log.
    pub replayed: usize,
}

impl Report {
    /// That of fsck(8): 0 nothing was wrong, 1 everything was repaired, 4 something is left. (8, an operational error,
    /// goes with [`FsckError`].)
    pub fn exit_code(&self) -> u8 {
        match self.findings.len() {
            0 => 0,
            found if found == self.repaired => 1,
            _ => 4,
        }
    }
}

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
    let mut patient = Patient::new(loaded.metadata, best.geometry, &loaded.whole, loaded.places, loaded.lost);
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
    Ok(report)
}

/// Metadata under repair: each finding is put right as it is made.
struct Patient {
    metadata: Metadata,
    geometry: Geometry,
    findings: Vec<Finding>,
    /// What metadata that was found whole keeps for itself, joined.
    kept: Vec<BlockRun>,
    /// What must stay as it is until a new superblock is written: metadata, and files as they were found.
    occupied: Vec<BlockRun>,
    /// Shards of which nothing could be read.
    lost_shards: BTreeSet<u64>,
    /// Inodes that have lost their last name and are to get one in lost+found.
    lost: BTreeSet<Ino>,
    /// Names of directories that were looked at because one more had to be found.
    taken: BTreeMap<Ino, BTreeSet<Box<[u8]>>>,
}

impl Patient {
    fn new(
        metadata: Metadata,
        geometry: Geometry,
        whole: &[BlockRun],
        places: Vec<BlockRun>,
        lost_shards: BTreeSet<u64>,
    ) -> Self {
        let mut occupied = places;
        occupied.extend(file_runs(&metadata, &geometry));
        Self {
            metadata,
            geometry,
            kept: joined(whole.to_vec(), &geometry),
            occupied,
            lost_shards,
            findings: Vec::new(),
            lost: BTreeSet::new(),
            taken: BTreeMap::new(),
        }
    }

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
