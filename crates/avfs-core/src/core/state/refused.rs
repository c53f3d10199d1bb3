//! Places of the device that were refused, and how often something was lost.

use crate::allocator::BlockRun;
use crate::format::BLOCK;
use crate::ranges::RangeSet;
use std::ops::Range;

/// What the device did not take.
#[derive(Debug, Default)]
pub(in crate::core) struct Refused {
    /// Blocks of the device.
    pub(in crate::core) places: RangeSet,
    /// How often something was lost, and how often that was so when it was told last for the whole volume.
    pub(in crate::core) lost: u64,
    pub(in crate::core) told: u64,
}

impl Refused {
    /// What of a run may be used again.
    pub(in crate::core) fn usable(&self, run: BlockRun) -> impl Iterator<Item = BlockRun> + use<> {
        let parts = self.places.gaps(run.start..run.end());
        parts.into_iter().map(|part| BlockRun { start: part.start, count: part.end - part.start })
    }

    /// Refused places, for the audit.
    pub(in crate::core) fn places(&self) -> impl Iterator<Item = Range<u64>> {
        self.places.iter()
    }

    /// How many bytes were refused, and how often something was lost.
    pub(in crate::core) fn counts(&self) -> (u64, u64) {
        (self.places.total() * BLOCK, self.lost)
    }
}
