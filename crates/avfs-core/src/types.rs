//! What callers and the filesystem say to each other.

use avfs_io::pool::Buffer;
use avfs_io::tally::{self, Commands, SIZE_BOUNDS, Tally};
pub use avfs_streams::{Declaration, HandleId, Opener};
use bitflags::bitflags;
use rtsched::{Class, StreamId};
use smallvec::SmallVec;
use units::{Bitrate, Ino, Timestamp};

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A block device node.
    BlockDevice = 4,
    /// A character device node.
    CharacterDevice = 5,
    /// A named pipe.
    Fifo = 6,
    /// A socket's name.
    Socket = 7,
}

/// What stat shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub ino: Ino,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky: 0..=0o7777.
    pub permissions: u16,
    /// Number of names (for a directory: 2 + subdirectories).
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as `makedev` packs it in 32 bits.
    pub rdev: u32,
    /// Length in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
}

/// A name that was looked up or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode.
    pub attributes: Attributes,
    /// Distinguishes inodes that used the same number one after the other.
    pub generation: u64,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Number of the process; 0: not known.
    pub process: u32,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The moment of the operation.
    Now,
    /// This time.
    To(Timestamp),
}

/// What to change in an inode; `None` leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// Permission bits, 0..=0o7777.
    pub permissions: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
    /// Birth (Samba's create time does not use it; restoring tools may).
    pub btime: Option<Timestamp>,
    /// Setuid and setgid stay when the length changes: the caller has CAP_FSETID.
    pub keep_privileges: bool,
    /// Who changes length or owner, if they may not leave setuid and setgid standing.
    pub unprivileged: Option<Caller>,
}

/// When reading a file changes its time of access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessTimes {
    /// When it is not newer than the time of the last change, or a day old (relatime).
    #[default]
    Relative,
    /// Never (noatime).
    Never,
    /// Each time (strictatime).
    Strict,
}

bitflags! {
    /// How renaming treats an existing target, as renameat2(2) has it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Fail if the target exists.
        const NO_REPLACE = 1;
        /// Swap source and target.
        const EXCHANGE = 2;
        /// Leave a character device 0:0 where the source was: overlayfs's mark of what is not there.
        const WHITEOUT = 4;
    }

    /// What chattr(1) sets, as it lies on the device.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct InodeFlags: u16 {
        /// Of a file: written to at its end only. Of a directory: names come, and none goes.
        const APPEND_ONLY = 1;
        /// Nothing of it changes.
        const IMMUTABLE = 2;
        /// For dump(8), to leave it out.
        const NO_DUMP = 4;
        /// Reading it leaves its time of access alone.
        const NO_ATIME = 8;
    }

    /// How a file was opened: what matters to the filesystem.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// Reads are allowed.
        const READ = 1;
        /// Writes are allowed.
        const WRITE = 2;
        /// Every write goes to the end.
        const APPEND = 4;
        /// A write is durable before it returns (O_SYNC, O_DSYNC).
        const SYNC = 8;
        /// The caller asked for O_DIRECT.
        const DIRECT = 16;
        /// Reads leave the time of access alone (O_NOATIME).
        const NO_ATIME = 32;
        /// The caller asked for O_APPEND: the kernel says where each write goes.
        const APPENDING = 64;
    }

    /// How to set an extended attribute.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct XattrFlags: u32 {
        /// It must not exist.
        const CREATE = 1;
        /// It must exist.
        const REPLACE = 2;
        /// It is an ACL, and who sets it is not in the group: setgid goes.
        const KILL_SETGID = 4;
    }
}

impl InodeFlags {
    /// What a new inode has of its directory's.
    pub const INHERITED: Self = Self::NO_DUMP.union(Self::NO_ATIME);
}

/// Whose memory holds what the client reads and writes through this open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// Only the filesystem's own cache: every request arrives, the kernel keeps no pages. Media.
    Direct,
    /// The kernel's page cache; `keep` says that what it holds from before is still true. Small files that a reader opens
    /// first.
    PageCache {
        /// Pages from an earlier open are still valid.
        keep: bool,
    },
}

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its name from now on.
    pub handle: HandleId,
    /// Who caches.
    pub cache: CacheMode,
    /// close(2) may have something to tell: the device has refused data before.
    pub tells_at_close: bool,
    /// It may stay open only if there is room for this stream; for whoever can wait for the answer to see to.
    pub admission: Option<WantedStream>,
}

/// A stream for which there must be room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedStream {
    /// Which.
    pub stream: StreamId,
    /// The rate of all its clients together.
    pub rate: Bitrate,
}

/// What fallocate(2) is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Reserve space; the file grows to cover it.
    Extend,
    /// Reserve space; the size stays.
    KeepSize,
    /// Free the space; the range reads as zeros; the size stays.
    PunchHole,
    /// The range reads as zeros, its space stays reserved; the file grows to cover it.
    ZeroRange,
    /// The range reads as zeros, its space stays reserved; the size stays.
    ZeroRangeKeepSize,
}

/// What SEEK_DATA and SEEK_HOLE look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that was written.
    Data,
    /// The next byte that was not, or the end.
    Hole,
}

/// One name of a directory, in reading order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name; `.` and `..` come first.
    pub name: Box<[u8]>,
    /// Whom it names.
    pub ino: Ino,
    /// What that is.
    pub kind: FileKind,
    /// Where to go on after this entry.
    pub cookie: u64,
    /// The inode's attributes and generation, where the caller asked for them. Absent for `.` and `..`.
    pub entry: Option<Entry>,
}

/// Figures of the volume for statfs(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeStatistics {
    /// Size of a block in bytes.
    pub block_size: u32,
    /// Blocks for data.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks that a writer can have.
    pub available: u64,
    /// Inodes in use.
    pub files: u64,
    /// Inodes that can still be made.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_length: u32,
}

/// A directory's limit, and what is used of it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LimitReport {
    /// The directory.
    pub ino: u64,
    /// From the root of the volume. Absent: it has no name any more.
    pub path: Option<String>,
    /// Space of files below it, at most. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// The space beyond which there is an event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_bytes: Option<u64>,
    /// Files and directories below it, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
    /// Space of files below it, with what was accepted and is not on the device yet.
    pub used_bytes: u64,
    /// Files and directories below it.
    pub used_files: u64,
    /// Why the limit cannot be read: it limits nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mistake: Option<String>,
}

/// What an inode takes, and which limits hold for it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BelowReport {
    /// The inode.
    pub ino: u64,
    /// From the root of the volume. Absent: it has no name any more.
    pub path: Option<String>,
    /// Space of files below it, or its own, with what was accepted and is not on the device yet.
    pub used_bytes: u64,
    /// Files and directories below it.
    pub used_files: u64,
    /// Its limit and those of the directories above it, the nearest first.
    pub limits: Vec<LimitReport>,
}

/// A piece of read data.
#[derive(Clone, Debug)]
pub enum ReadSlice {
    /// Bytes in a pool buffer.
    Buffer {
        /// The memory, alive as long as this slice.
        buffer: Buffer,
        /// First byte.
        start: usize,
        /// Number of bytes.
        length: usize,
    },
    /// This many zeros: a hole, or space that was never written.
    Zeros(usize),
}

/// What was read, in order. Shorter than asked only at the end of the file.
#[derive(Clone, Debug, Default)]
pub struct ReadData {
    /// The pieces.
    pub slices: SmallVec<[ReadSlice; 2]>,
}

impl ReadData {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.slices
            .iter()
            .map(|slice| match slice {
                ReadSlice::Buffer { length, .. } | ReadSlice::Zeros(length) => *length,
            })
            .sum()
    }

    /// True at the end of the file.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if they lie in one piece of memory: the case that needs no copy.
    pub fn as_single(&self) -> Option<&[u8]> {
        match self.slices.as_slice() {
            [] => Some(&[]),
            [ReadSlice::Buffer { buffer, start, length }] => Some(buffer.bytes(*start, *length)),
            _ => None,
        }
    }

    /// The bytes in memory of their own.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        for slice in &self.slices {
            match slice {
                ReadSlice::Buffer { buffer, start, length } => {
                    bytes.extend_from_slice(buffer.bytes(*start, *length));
                }
                ReadSlice::Zeros(length) => bytes.resize(bytes.len() + length, 0),
            }
        }
        bytes
    }
}

/// One run of a file on the device, for `avfsctl extents`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ExtentReport {
    /// First byte in the file.
    pub file_offset: u64,
    /// First byte on the device.
    pub device_offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Reserved but never written: reads as zeros, unless something is pending there.
    pub unwritten: bool,
}

/// Bytes of a file that were accepted and are not on the device yet, for `avfsctl extents`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PendingReport {
    /// First byte in the file.
    pub file_offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Where a file is, for `avfsctl extents`. Both in file order.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LayoutReport {
    /// What lies on the device, or has a place there.
    pub extents: Vec<ExtentReport>,
    /// What is in memory alone, whether it has a place already or not.
    pub pending: Vec<PendingReport>,
}

/// A copy of a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// Source, open for reading.
    pub from: HandleId,
    /// First byte there.
    pub from_offset: u64,
    /// Target, open for writing.
    pub to: HandleId,
    /// First byte there.
    pub to_offset: u64,
    /// Bytes, at most.
    pub length: u64,
}

impl CopyRange {
    /// What is left of it behind its first `bytes`.
    #[must_use]
    pub fn behind(self, bytes: u64) -> Self {
        Self {
            from_offset: self.from_offset + bytes,
            to_offset: self.to_offset + bytes,
            length: self.length - bytes,
            ..self
        }
    }
}

/// What files take of the device, for `avfsctl usage`. All in bytes but `files`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct UsageReport {
    /// How many regular files.
    pub files: u64,
    /// Their lengths together.
    pub size_bytes: u64,
    /// Space that one file has alone, at one place in it.
    pub own_bytes: u64,
    /// Space that files share, among themselves or with others, as often as these have it.
    pub shared_bytes: u64,
    /// Space that is free when all of them are deleted.
    pub freed_bytes: u64,
}

/// Figures of a mounted volume, for `avfsctl info`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VolumeReport {
    /// Identity, as mkfs gave it.
    pub uuid: String,
    /// Label, possibly empty.
    pub label: String,
    /// Size of the device in bytes.
    pub device_bytes: u64,
    /// Size of an allocation unit in bytes.
    pub unit_bytes: u64,
    /// Stripe the data area is aligned to, in bytes.
    pub stripe_bytes: u64,
    /// Units wholly free.
    pub free_units: u64,
    /// Longest run of free units, in bytes.
    pub longest_free_run_bytes: u64,
    /// Bytes free, counting parts of units.
    pub free_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// The most pinned memory that the cache may take, in bytes.
    pub cache_bytes: u64,
    /// What the machine has given of it, in bytes: what is in use, and what is ready for use.
    #[serde(default)]
    pub cache_taken_bytes: u64,
    /// Bytes of the cache in use.
    pub cache_used_bytes: u64,
    /// Bytes kept for players that have not come to them yet.
    pub prefetched_bytes: u64,
    /// Bytes of files that were read from the device for clients since mount.
    pub loaded_bytes: u64,
    /// How many of them no client has taken: they are out of memory, or no player will come to them.
    pub unread_bytes: u64,
    /// Bytes waiting to be written to the device.
    pub dirty_bytes: u64,
    /// Bytes of files on their way to the device.
    pub writing_bytes: u64,
    /// Bytes at places that the device has refused to write since mount: they are not used again.
    pub refused_bytes: u64,
    /// How often data was lost since mount, because no place took it.
    pub losses: u64,
    /// Commits of the log since mount.
    pub commits: u64,
    /// Checkpoints since mount.
    pub checkpoints: u64,
    /// True when writes are refused.
    pub read_only: bool,
    /// Why writes are refused, if because of an error.
    pub failure: Option<String>,
}

/// Commands of one kind that the device was given since mount, after neighbouring requests were merged.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CommandReport {
    /// Whether they write; else they read.
    pub writes: bool,
    /// How they are ranked: `real_time`, `metadata`, `best_effort` or `idle`. Writeback of files without a rate and
    /// checkpoints are best effort.
    pub class: String,
    /// How many.
    pub commands: u64,
    /// Their lengths together, in bytes.
    pub bytes: u64,
    /// How many by length, shortest first.
    pub by_size: Vec<CommandSizeReport>,
}

/// Commands of a size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CommandSizeReport {
    /// The longest that count here, in bytes; the last class has no such bound.
    pub at_most_bytes: Option<u64>,
    /// How many.
    pub commands: u64,
}

/// How long the device is reckoned to take, for `avfsctl info`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DeviceReport {
    /// Commands that it is given at once.
    pub queue_depth: u32,
    /// Reads, writes and flushes.
    pub services: Vec<ServiceReport>,
}

/// How long commands of one kind take, anywhere in the slowest zone.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ServiceReport {
    /// `read`, `write` or `flush`.
    pub operation: String,
    /// Where the start values come from.
    pub origin: ServiceOrigin,
    /// What the mount began with.
    pub start: ServiceFigures,
    /// What is reckoned with now.
    pub now: ServiceFigures,
}

impl ServiceReport {
    /// What is reckoned with is no longer what the mount began with, by a hundredth at least: it was learned since.
    pub fn is_learned(&self) -> bool {
        let differs = |start: u64, now: u64| start.abs_diff(now) > start / 100;
        differs(self.start.access_nanoseconds, self.now.access_nanoseconds)
            || differs(self.start.bytes_per_second, self.now.bytes_per_second)
    }
}

/// A time before the first byte, and a rate from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ServiceFigures {
    /// Before the first byte.
    pub access_nanoseconds: u64,
    /// From then on.
    pub bytes_per_second: u64,
}

/// Where start values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceOrigin {
    /// The device was measured: `[device]` of the configuration.
    Measured,
    /// A disk array's, until the device has shown its own.
    Default,
}

/// What the readers, or the writers, of a file are together.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StreamReport {
    /// Which file; of a sequence its directory.
    pub ino: u64,
    /// The sequence, if it is one: its directory and what its files have in common, `#` for each digit of their number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<String>,
    /// Whether it is recorded; else it is played.
    pub writes: bool,
    /// Its rate, of all clients together.
    pub bits_per_second: u64,
    /// How it is served.
    pub state: StreamService,
    /// Its part of the device's time, in thousandths; 0 while it waits.
    #[serde(default)]
    pub share_permille: u32,
    /// Length of a request that it is promised; 0 while it waits.
    pub request_bytes: u64,
    /// Memory that it may take at the most for that; 0 while it waits.
    pub buffer_bytes: u64,
    /// Requests completed since it began.
    pub completed: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Requests that were completed after their deadline.
    pub missed: u64,
    /// By how many microseconds the latest of them was.
    pub tardiness_microseconds: u64,
    /// How many microseconds before its deadline the last of them completed; negative: after it.
    pub slack_microseconds: Option<i64>,
    /// What is lacking for a reservation, or for one of the whole rate.
    pub lacking: Option<StreamLack>,
    /// The rate for which there was room then, where there was any.
    pub fits_bits_per_second: Option<u64>,
}

/// What a stream's reservation lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamLack {
    /// Time of the device.
    Time,
    /// Time until the deadline, when all streams want their requests at once.
    Deadline,
    /// Memory for buffers.
    Memory,
    /// Streams are late already.
    Congestion,
    /// It is no stream that could be reserved.
    Sense,
    /// What is left of what its user, or all users together, may reserve.
    Share,
}

/// How a stream is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamService {
    /// With deadlines that hold.
    Admitted,
    /// Not at the moment: it asks for nothing, and others may have its time.
    Paused,
    /// As best effort, because the device carries less than when it was admitted.
    Demoted,
    /// As best effort, because there is no room for it.
    Waiting,
}

impl std::fmt::Display for StreamService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Admitted => "admitted",
            Self::Paused => "paused",
            Self::Demoted => "demoted",
            Self::Waiting => "waiting",
        })
    }
}

/// What holds for a file, setting by setting, for `avfsctl policy explain`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PolicyReport {
    /// Which file.
    pub ino: u64,
    /// The name that counts, from the root of the volume, or one of a directory that holds it; absent when it has none.
    pub path: Option<String>,
    /// In the order in which they are to be shown.
    pub settings: Vec<SettingReport>,
}

/// One setting that holds.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SettingReport {
    /// What it is called.
    pub name: String,
    /// What holds.
    pub value: String,
    /// Who said so.
    pub decided_by: PolicySource,
    /// Everybody who was asked, the highest first.
    pub sources: Vec<SourceReport>,
}

/// What one source says of a setting.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SourceReport {
    /// Who.
    pub source: PolicySource,
    /// What, if anything.
    pub value: Option<String>,
    /// What came of it.
    pub verdict: SourceVerdict,
}

/// Who says something of a file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicySource {
    /// Its own attributes.
    Own,
    /// The attributes of a directory above it.
    Directory {
        /// From the root of the volume.
        path: String,
    },
    /// A `[[stream]]` of the configuration.
    Configuration {
        /// Counted from 1.
        entry: usize,
        /// Its pattern.
        path: String,
    },
    /// The configuration, of which no pattern matches.
    NoConfiguration,
    /// What was found inside the file.
    Container,
    /// What its clients were observed to do.
    Observation,
    /// Nobody.
    Default,
}

impl std::fmt::Display for PolicySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Own => f.write_str("its own attributes"),
            Self::Directory { path } => write!(f, "directory {path}"),
            Self::Configuration { entry, path } => write!(f, "configuration, [[stream]] {entry} \"{path}\""),
            Self::NoConfiguration => f.write_str("configuration"),
            Self::Container => f.write_str("container"),
            Self::Observation => f.write_str("observation"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// What came of what a source says.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceVerdict {
    /// It holds.
    Decides,
    /// A higher source says it too.
    Outranked,
    /// An earlier entry of the configuration matches too, and only the first is heard.
    Shadowed,
    /// It does not say anything of this setting.
    Silent,
    /// What it says cannot be understood, for this reason.
    Invalid(String),
}

impl CommandReport {
    /// The kinds of which there were any.
    pub(crate) fn of(tally: &Tally) -> Vec<Self> {
        let class = |class| match class {
            Class::RealTime => "real_time",
            Class::Metadata => "metadata",
            Class::BestEffort => "best_effort",
            Class::Idle => "idle",
        };
        let bounds = SIZE_BOUNDS.iter().map(|bound| Some(bound.0)).chain([None]);
        let sizes = |commands: &Commands| {
            let sizes = bounds.clone().zip(commands.by_size);
            sizes.map(|(at_most_bytes, commands)| CommandSizeReport { at_most_bytes, commands }).collect()
        };
        let kinds = tally::KINDS.iter().zip(tally).filter(|(_, commands)| commands.count > 0);
        kinds
            .map(|(&(writes, ranked), commands)| Self {
                writes,
                class: class(ranked).to_owned(),
                commands: commands.count,
                bytes: commands.bytes.0,
                by_size: sizes(commands),
            })
            .collect()
    }
}
