//! Runs of blocks, and whose they are.

use std::fmt;

/// Blocks in a unit (8 MiB).
pub const BLOCKS_PER_UNIT: u64 = 2048;

/// Neighbouring blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRun {
    /// First block, counted from the start of the data area.
    pub start: u64,
    /// Number of blocks.
    pub count: u64,
}

impl BlockRun {
    /// The block behind the run; saturates, so that a run read from a damaged disk cannot wrap.
    pub const fn end(self) -> u64 {
        self.start.saturating_add(self.count)
    }
}

impl fmt::Display for BlockRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks {}..{}", self.start, self.end())
    }
}

/// Whom a window belongs to: a file that is being recorded, or a directory of frames. Chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u64);
