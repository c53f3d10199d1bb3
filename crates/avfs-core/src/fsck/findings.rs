//! What may be wrong with a volume, and what became of it.

use crate::allocator::BlockRun;
use crate::format::SuperblockError;
use crate::journal::Behind;
use crate::metadata::Contradiction;
use crate::superblocks::NoVolume;
use avfs_io::IoError;
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
    /// The protective partition table is not there, or not all of it.
    PartitionTableMissing,
    /// Something else stands where the protective partition table belongs. It is left alone.
    PartitionTableForeign,
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
                | Self::PartitionTableMissing
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
            Self::PartitionTableMissing => {
                write!(f, "the partition table that protects the volume is missing: to be written again")
            }
            Self::PartitionTableForeign => {
                write!(
                    f,
                    "something else stands where the partition table that protects the volume belongs: left alone; if the volume is \
                     what is wanted, avfsctl protect --force"
                )
            }
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
    #[error(
        "the volume is {volume} long but the device only {device}: give it the whole device, or mount it with -o ro to save what is left"
    )]
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
