//! What the crate and its host say to each other: names, questions, and how much is asked.
//!
//! **For:** the values that cross the seam. **Excludes:** what follows from them. **State:** none.

use rtsched::StreamId;
use std::ops::Range;
use units::{Bitrate, DeviceOffset, Ino};

/// What a host reads and keeps at least: a page of 4 KiB. A protocol fact.
pub const PAGE: u64 = 4096;
/// A reader without a promise gets so much, and requests are multiples of it. It is a unit of the volume's data area. A protocol
/// fact.
pub const REQUEST: u64 = 8 << 20;

/// Whether a host asks anything of this crate. What it asks for is advice: a filesystem is as correct without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advice {
    /// Clients are told apart and read ahead of.
    #[default]
    Streams,
    /// Nothing is wished for, and everything is best effort.
    NullStreams,
}

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(pub u64);

/// The process that opened a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opener(u64);

impl Opener {
    /// A process by its number; 0: one that has none here, because it runs in a namespace of its own.
    pub fn process(number: u32) -> Self {
        Self(number.into())
    }

    /// True for a process that has a number here.
    pub fn is_known(self) -> bool {
        self.0 != 0
    }

    /// An unknown process, which has opened nothing else.
    pub fn of(handle: HandleId) -> Self {
        Self(handle.0 | 1 << 32)
    }

    /// Number of the process; `None`: it has none here.
    pub fn process_number(self) -> Option<u32> {
        u32::try_from(self.0).ok().filter(|number| *number > 0)
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    pub(crate) fn numbered(number: u64) -> Self {
        Self(number)
    }
}

/// How many clients have a file open.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenFiles {
    /// Those that only read.
    pub readers: u32,
    /// Those that may write.
    pub writers: u32,
}

/// What a host answers, from what it has in memory; asking changes nothing.
pub trait Facts {
    /// The length of a file, as clients see it.
    fn size_of(&self, ino: Ino) -> u64;
    /// True when something of a file is in use.
    fn is_used(&self, ino: Ino) -> bool;
    /// How many clients have a file open.
    fn open_files(&self, ino: Ino) -> OpenFiles;
    /// Where reading a file takes longest, as disks are: where it lies nearest to the device's end.
    fn place_of(&self, ino: Ino) -> Option<DeviceOffset>;
    /// The pieces in which a file lies, in the file's order, as ranges of the device.
    fn pieces_of(&self, ino: Ino, each: &mut dyn FnMut(Range<u64>));
    /// Where what lies on the device in one piece from `from` on ends in the file, which has `size` bytes. A request over two
    /// pieces costs two accesses, and leaves the second one shorter by its part, which is another access.
    fn piece_end(&self, ino: Ino, from: u64, size: u64) -> u64;
    /// The directory and the name of a file; of several the one that it has had for longest.
    fn name_of(&self, ino: Ino) -> Option<(Ino, &[u8])>;
    /// What stands in a directory under a name: a file, or something else (`Some(None)`).
    fn file_named(&self, directory: Ino, name: &[u8]) -> Option<Option<Ino>>;
}

/// What a host is to do, in the order in which it is told. A wish is advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// A file begins to be played: its container may tell its rate.
    Probe(Ino),
    /// A client was seen to have a rate of its own.
    Observed(Ino, Bitrate),
    /// What the device was asked for on account of this stream, and has not begun, is not needed so soon any more.
    Cancel(StreamId),
}
