//! Operations that may have to wait, and how they end.
//!
//! **For:** what is asked, how far it has come, what is answered. **Excludes:** doing it. **State:** none of its own.

use crate::error::Result;
use crate::types::*;
use avfs_media::Probe;
use std::collections::BTreeMap;
use units::Ino;

/// Names an operation that may have to wait. Chosen by the caller, unique among those outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// How an operation ended.
#[derive(Debug)]
pub enum Outcome {
    /// Of a read.
    Data(Result<ReadData>),
    /// Of a write: bytes accepted. Of a copy: bytes copied.
    Count(Result<usize>),
    /// Of what has nothing to tell.
    Done(Result<()>),
    /// Of a change of attributes.
    Attributes(Result<Attributes>),
    /// Of an explanation.
    Policy(Result<PolicyReport>),
}

/// An operation that may have to wait for the device.
#[derive(Debug)]
pub enum Operation {
    /// See [`Core::read`].
    Read {
        /// Open file.
        handle: HandleId,
        /// First byte.
        offset: u64,
        /// Bytes asked for.
        length: usize,
    },
    /// A write whose bytes were copied aside because it cannot go on yet.
    Write {
        /// Open file.
        handle: HandleId,
        /// First byte; ignored by handles that append.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
        /// The caller that writes, if it may not leave setuid and setgid standing.
        unprivileged: Option<Caller>,
    },
    /// Everything of one inode becomes durable.
    Fsync {
        /// Which.
        ino: Ino,
    },
    /// Everything of an open file becomes durable. Fails if something of it was lost since it was opened so, or since the last such
    /// failure.
    FsyncFile {
        /// Open file.
        handle: HandleId,
    },
    /// Everything of the volume becomes durable.
    Sync,
    /// See [`SetAttributes`].
    SetAttributes {
        /// Which.
        ino: Ino,
        /// What.
        changes: SetAttributes,
    },
    /// See [`AllocateMode`].
    Allocate {
        /// Open file.
        handle: HandleId,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// What to do.
        mode: AllocateMode,
    },
    /// The first part of a copy, of blocks that can be shared. See [`Core::copy_part`](super::super::Core::copy_part).
    Share(Sharing),
    /// See [`Core::rename`].
    Rename {
        /// The caller; it owns a whiteout.
        caller: Caller,
        /// Where the name stands.
        parent: Ino,
        /// Which.
        name: Box<[u8]>,
        /// Where it goes.
        new_parent: Ino,
        /// What it becomes.
        new_name: Box<[u8]>,
        /// How.
        flags: RenameFlags,
    },
    /// See [`Core::unlink`].
    Unlink {
        /// Where the name stands.
        parent: Ino,
        /// Which.
        name: Box<[u8]>,
    },
    /// Everything durable, a checkpoint written, nothing left to replay.
    Shutdown,
    /// A superblock is written that says what holds now.
    Checkpoint,
    /// The core asks a file itself how fast it plays.
    Probe(Box<Probing>),
    /// What holds for a file or directory, and which source says so. A file of unknown rate is asked itself first, as it is when a
    /// client plays it. What it says is told to this caller alone.
    Explain {
        /// Which.
        ino: Ino,
        /// The core's own; `None`.
        probing: Option<Box<Probing>>,
    },
}

/// Where a waiting operation stands.
#[derive(Debug)]
pub(in crate::core) enum Stage {
    /// To be tried (again).
    Try,
    /// The epochs of dirty files are ended, of those up to `next` already.
    Epochs { next: Ino, closed: BTreeMap<Ino, u64> },
    /// Data of these files up to these epochs must reach the device.
    Data { epochs: BTreeMap<Ino, u64> },
    /// Waits for the journal.
    Journal,
    /// Waits for a checkpoint that began after it.
    Checkpoint { begun: u64 },
}

#[derive(Debug)]
pub(in crate::core) struct Waiting {
    pub(in crate::core) operation: Operation,
    pub(in crate::core) stage: Stage,
    /// For a write that must be durable: what to answer in the end.
    pub(in crate::core) count: Option<usize>,
    /// Counted in `FileState::exclusive` of this file.
    pub(in crate::core) exclusive: Option<Ino>,
}

pub(in crate::core) enum Progress<T> {
    Ready(Result<T>),
    /// Parked; something will try it again.
    Wait,
}

/// A write that was accepted while too much was dirty: it is answered when less is.
#[derive(Debug)]
pub(in crate::core) struct Throttled {
    pub(in crate::core) ticket: Ticket,
    pub(in crate::core) handle: HandleId,
    pub(in crate::core) outcome: Outcome,
    /// See [`Core::is_overfull`].
    pub(in crate::core) keeps_its_rate: bool,
    /// See [`Core::fills_at_length`].
    pub(in crate::core) fills: Option<Ino>,
}

/// A copy that shares its place, under way.
#[derive(Debug)]
pub struct Sharing {
    pub(in crate::core) copy: CopyRange,
    /// Of the source: what was dirty in it, or before, is to be on the device. `None`: not begun.
    pub(in crate::core) epoch: Option<u64>,
    /// That is so. It only waits until nothing new is on its way.
    pub(in crate::core) is_to_be_quiet: bool,
}

impl Sharing {
    /// Nothing of it is done.
    pub fn new(copy: CopyRange) -> Self {
        Self { copy, epoch: None, is_to_be_quiet: false }
    }
}

/// The probe of one file.
#[derive(Debug)]
pub struct Probing {
    pub(in crate::core) ino: Ino,
    pub(in crate::core) probe: Probe,
}
