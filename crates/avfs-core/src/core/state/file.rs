//! What the core knows of a file beyond its inode: much while it is used, little while it only has blocks in the cache.

use super::blocks::{BlockId, BlockIndex};
use super::expectation::Expectation;
use super::operation::Ticket;
use crate::config::Settings;
use crate::ranges::RangeSet;
use crate::types::OpenFlags;
use avfs_media::Container;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use units::{Duration, Timestamp};

/// What is kept of a file that no client uses: what is in memory of it. A cache full of small files has very many of these.
#[derive(Debug, Default)]
pub(in crate::core) struct RestingFile {
    /// See [`FileState::blocks`]; all are clean and idle.
    pub(in crate::core) blocks: BlockIndex,
    /// See [`FileState::pages_are_true`].
    pub(in crate::core) pages_are_true: bool,
}

impl RestingFile {
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && !self.pages_are_true
    }
}

/// See the module's documentation. Made on first use; of a file that is not used any more a [`RestingFile`] stays, or
/// nothing.
#[derive(Debug, Default)]
pub(in crate::core) struct FileState {
    /// Length as clients see it; the inode's recorded size follows when the data is on the device.
    pub(in crate::core) size: u64,
    /// End of the last append that was begun: where the next one goes.
    pub(in crate::core) append_end: u64,
    /// Times of writes and reads that are in no record yet.
    pub(in crate::core) touched: Option<Touched>,
    /// Blocks in the cache, by their first byte.
    pub(in crate::core) blocks: BlockIndex,
    /// File blocks (4 KiB) without an extent for which space is promised: dirty in the cache, or on their way to the
    /// device.
    pub(in crate::core) delayed: RangeSet,
    /// How much of `delayed` is still a claim in the allocator; the rest has its place already.
    pub(in crate::core) claimed: u64,
    /// Which holes its writers are about to fill.
    pub(in crate::core) expectation: Expectation,
    /// File blocks that have a place, unwritten, only because they are expected. No client has written them or asked for them, and
    /// they are given back if none does.
    pub(in crate::core) reserved: RangeSet,
    pub(in crate::core) readers: u32,
    pub(in crate::core) writers: u32,
    /// Requests to the device that read into blocks, and that write from them.
    pub(in crate::core) loads: u32,
    pub(in crate::core) writes: u32,
    /// Bytes of the file that could not be read, and of which no reader was told yet.
    pub(in crate::core) unreadable: RangeSet,
    /// File blocks with an extent whose place the device refuses, or others have, too: they wait, dirty, for another one. Part of
    /// `delayed`.
    pub(in crate::core) displaced: RangeSet,
    /// How often something of it was lost, and that no client was told of the last time.
    pub(in crate::core) lost: u64,
    pub(in crate::core) lost_unseen: bool,
    /// Bytes on their way to the device.
    pub(in crate::core) writing: u64,
    /// Ranges of its blocks that clients copy into now.
    pub(in crate::core) filling: u32,
    /// Pages wait for a load to be complete enough to be written.
    pub(in crate::core) write_after_load: bool,
    /// Pages on the device that hold something behind this old end of the file: a longer size is recorded only after
    /// they have been written again.
    pub(in crate::core) tails: SmallVec<[(u64, u64); 1]>,
    /// File block and device block behind the space that was given out last.
    pub(in crate::core) last_placed: Option<(u64, u64)>,
    /// Grows with each fsync, so that one waits for what was dirty before it and no more.
    pub(in crate::core) epoch: u64,
    /// How many writes of each epoch are at the device.
    pub(in crate::core) writes_by_epoch: BTreeMap<u64, u32>,
    /// Operations to try again when a request to the device ends.
    pub(in crate::core) waiting: Vec<Ticket>,
    /// Operations among those that need the file to be idle: while there is one, no new request starts.
    pub(in crate::core) exclusive: u32,
    /// How many of `readers` and `writers` go through the kernel's page cache: all or none of them, so that no write passes pages
    /// by that others read from.
    pub(in crate::core) through_pages: u32,
    /// What the kernel has pages of is as it is here: since they were dropped last, nothing was open that passes them by.
    pub(in crate::core) pages_are_true: bool,
    /// The free space that a recorder keeps ahead of itself, as its policy has it.
    pub(in crate::core) window_units: Option<usize>,
    pub(in crate::core) told: Option<Box<DiscoveredRate>>,
    /// What it was found to be, and how long a frame of it is shown.
    pub(in crate::core) found: Option<(Container, Option<Duration>)>,
}

/// What was told of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::core) struct DiscoveredRate {
    pub(in crate::core) container: Settings,
    pub(in crate::core) observation: Settings,
}

impl DiscoveredRate {
    /// The same, and what the container was found to say.
    pub(in crate::core) fn with_container(self, container: Settings) -> Self {
        Self { container, ..self }
    }

    /// The rate is known from observation, and from nothing else that was told.
    pub(in crate::core) fn is_only_observed(&self) -> bool {
        self.container.rate.is_none() && self.observation.rate.is_some()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) struct Touched {
    pub(in crate::core) atime: Option<Timestamp>,
    pub(in crate::core) mtime: Option<Timestamp>,
}

impl FileState {
    /// A client opened it with these flags (+1), or closed it (-1).
    pub(in crate::core) fn count_client(&mut self, flags: OpenFlags, change: i32) {
        let count = if flags.contains(OpenFlags::WRITE) { &mut self.writers } else { &mut self.readers };
        *count = count.saturating_add_signed(change);
    }

    /// How many pages are delayed that have no place: the file becomes larger by them. The others have one, and go elsewhere.
    pub(in crate::core) fn promised(&self) -> u64 {
        self.delayed.total() - self.displaced.total()
    }

    /// How many of these pages are delayed, and how many of those are [promised](Self::promised).
    pub(in crate::core) fn delayed_within(&self, pages: &Range<u64>) -> (u64, u64) {
        let delayed = self.delayed.total_within(pages.clone());
        (delayed, delayed - self.displaced.total_within(pages.clone()))
    }

    /// These pages are not delayed any more. How many of them were, and how many of those were promised.
    pub(in crate::core) fn stop_delaying(&mut self, pages: Range<u64>) -> (u64, u64) {
        let were = self.delayed_within(&pages);
        self.delayed.remove(pages.clone());
        self.displaced.remove(pages);
        were
    }

    pub(in crate::core) fn is_idle(&self) -> bool {
        self.loads == 0 && self.writes == 0
    }

    /// True when no client uses it, and the inode says everything but what is in memory; whether blocks are clean is not asked.
    pub(in crate::core) fn is_unused(&self) -> bool {
        self.readers == 0
            && self.writers == 0
            && self.delayed.is_empty()
            && self.reserved.is_empty()
            && self.tails.is_empty()
            && self.touched.is_none()
            && !self.lost_unseen
            && self.waiting.is_empty()
            && self.exclusive == 0
            && self.is_idle()
    }

    /// The block that holds byte `at`, by the caller's lookup of a block's end.
    pub(in crate::core) fn block_before(&self, at: u64) -> Option<(u64, BlockId)> {
        self.blocks.last_until(at)
    }

    /// First byte of the first block that begins after `at`.
    pub(in crate::core) fn next_block(&self, at: u64) -> Option<u64> {
        self.blocks.range(at.saturating_add(1)..u64::MAX).next().map(|(start, _)| start)
    }
}
