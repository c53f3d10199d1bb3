//! What the core knows of a file beyond its inode: much while it is used, little while it only has blocks in the cache.

use super::Ticket;
use super::cache::BlockId;
use super::expectation::Expectation;
use super::policies::Told;
use crate::policy::Policy;
use crate::ranges::RangeSet;
use crate::types::{Declaration, HandleId, OpenFlags, Opener};
use avfs_streams::sequence::SequenceId;
use rtsched::{Account, Direction, Terms};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use units::Timestamp;

/// So many blocks are kept in a list. More are written at random, and one more in the middle of a long list moves half of it.
const LISTED: usize = 64;

/// A file's blocks by their first byte. A small file has one, which costs no memory of its own.
#[derive(Debug)]
pub(super) enum BlockIndex {
    List(SmallVec<[(u64, BlockId); 1]>),
    Tree(BTreeMap<u64, BlockId>),
}

impl Default for BlockIndex {
    fn default() -> Self {
        Self::List(SmallVec::new())
    }
}

impl BlockIndex {
    fn list(&self) -> &[(u64, BlockId)] {
        match self {
            Self::List(list) => list,
            Self::Tree(_) => &[],
        }
    }

    fn tree(&self) -> Option<&BTreeMap<u64, BlockId>> {
        match self {
            Self::List(_) => None,
            Self::Tree(tree) => Some(tree),
        }
    }

    fn index(&self, start: u64) -> usize {
        self.list().partition_point(|&(held, _)| held < start)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list().is_empty() && self.tree().is_none_or(BTreeMap::is_empty)
    }

    pub(super) fn get(&self, start: u64) -> Option<BlockId> {
        match self {
            Self::List(list) => {
                list.get(self.index(start)).filter(|&&(held, _)| held == start).map(|&(_, id)| id)
            }
            Self::Tree(tree) => tree.get(&start).copied(),
        }
    }

    pub(super) fn contains(&self, start: u64) -> bool {
        self.get(start).is_some()
    }

    pub(super) fn insert(&mut self, start: u64, id: BlockId) {
        let index = self.index(start);
        match self {
            Self::List(list) if list.len() < LISTED => list.insert(index, (start, id)),
            Self::List(list) => {
                let mut tree: BTreeMap<u64, BlockId> = list.iter().copied().collect();
                tree.insert(start, id);
                *self = Self::Tree(tree);
            }
            Self::Tree(tree) => _ = tree.insert(start, id),
        }
    }

    pub(super) fn remove(&mut self, start: u64) {
        let index = self.index(start);
        match self {
            Self::List(list) => {
                if list.get(index).is_some_and(|&(held, _)| held == start) {
                    list.remove(index);
                }
            }
            Self::Tree(tree) => {
                tree.remove(&start);
                if tree.is_empty() {
                    *self = Self::default();
                }
            }
        }
    }

    /// Takes out the blocks that begin at `from` or behind it.
    pub(super) fn split_off(&mut self, from: u64) -> Self {
        let index = self.index(from);
        match self {
            Self::List(list) => Self::List(list.drain(index..).collect()),
            Self::Tree(tree) => Self::Tree(tree.split_off(&from)),
        }
    }

    /// The last block that begins at `at` or before.
    pub(super) fn last_until(&self, at: u64) -> Option<(u64, BlockId)> {
        match self {
            Self::List(list) => {
                let after = list.partition_point(|&(held, _)| held <= at);
                list.get(after.checked_sub(1)?).copied()
            }
            Self::Tree(tree) => tree.range(..=at).next_back().map(|(&start, &id)| (start, id)),
        }
    }

    /// The blocks that begin in `range`, in order.
    pub(super) fn range(&self, range: Range<u64>) -> impl Iterator<Item = (u64, BlockId)> {
        let end = self.index(range.end).max(self.index(range.start));
        let listed = self.list()[self.index(range.start)..end].iter().copied();
        let range = range.start..range.end.max(range.start);
        let others = self.tree().into_iter().flat_map(move |tree| tree.range(range.clone()));
        listed.chain(others.map(|(&start, &id)| (start, id)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, BlockId)> {
        let others = self.tree().into_iter().flatten();
        self.list().iter().copied().chain(others.map(|(&start, &id)| (start, id)))
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = BlockId> {
        self.iter().map(|(_, id)| id)
    }
}

/// What is kept of a file that nobody uses: what is in memory of it. A cache full of small files has very many of these.
#[derive(Debug, Default)]
pub(super) struct RestingFile {
    /// See [`FileState::blocks`]; all are clean and idle.
    pub(super) blocks: BlockIndex,
    /// See [`FileState::pages_are_true`].
    pub(super) pages_are_true: bool,
}

impl RestingFile {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && !self.pages_are_true
    }
}

/// See the module's documentation. Made on first use; of a file that is not used any more a [`RestingFile`] stays, or
/// nothing.
#[derive(Debug, Default)]
pub(super) struct FileState {
    /// Length as clients see it; the inode's recorded size follows when the data is on the device.
    pub(super) size: u64,
    /// End of the last append that was begun: where the next one goes.
    pub(super) append_end: u64,
    /// Times of writes and reads that are in no record yet.
    pub(super) touched: Option<Touched>,
    /// Blocks in the cache, by their first byte.
    pub(super) blocks: BlockIndex,
    /// File blocks (4 KiB) without an extent for which space is promised: dirty in the cache, or on their way to the
    /// device.
    pub(super) delayed: RangeSet,
    /// How much of `delayed` is still a claim in the allocator; the rest has its place already.
    pub(super) claimed: u64,
    /// Which holes its writers are about to fill.
    pub(super) expectation: Expectation,
    /// File blocks that have a place, unwritten, only because they are expected: nobody has written them or asked for
    /// them, and they are given back if nobody does.
    pub(super) reserved: RangeSet,
    /// Who wrote it last.
    pub(super) given_by: Option<Opener>,
    pub(super) readers: u32,
    pub(super) writers: u32,
    /// Requests to the device that read into blocks, and that write from them.
    pub(super) loads: u32,
    pub(super) writes: u32,
    /// Bytes of the file that could not be read, and of which no reader was told yet.
    pub(super) unreadable: RangeSet,
    /// File blocks with an extent whose place the device refuses: they wait, dirty, for another one. Part of `delayed`.
    pub(super) displaced: RangeSet,
    /// How often something of it was lost, and that no client was told of the last time.
    pub(super) lost: u64,
    pub(super) lost_unseen: bool,
    /// Bytes on their way to the device.
    pub(super) writing: u64,
    /// Ranges of its blocks that clients copy into now.
    pub(super) filling: u32,
    /// Pages wait for a load to be complete enough to be written.
    pub(super) write_after_load: bool,
    /// Pages on the device that hold something behind this old end of the file: a longer size is recorded only after
    /// they have been written again.
    pub(super) tails: SmallVec<[(u64, u64); 1]>,
    /// File block and device block behind the space that was given out last.
    pub(super) last_placed: Option<(u64, u64)>,
    /// Grows with each fsync, so that one waits for what was dirty before it and no more.
    pub(super) epoch: u64,
    /// How many writes of each epoch are at the device.
    pub(super) writes_by_epoch: BTreeMap<u64, u32>,
    /// Operations to try again when a request to the device ends.
    pub(super) waiting: Vec<Ticket>,
    /// Operations among those that need the file to be idle: while there is one, no new request starts.
    pub(super) exclusive: u32,
    /// How many of `readers` and `writers` go through the kernel's page cache: all or none of them, so that no write passes pages
    /// by that others read from.
    pub(super) through_pages: u32,
    /// What the kernel has pages of is as it is here: since they were dropped last, nothing was open that passes them by.
    pub(super) pages_are_true: bool,
    /// Clients that read on and on, and do not copy.
    pub(super) playing: SmallVec<[Playing; 1]>,
    /// Clients that write faster than the file is ever played.
    pub(super) copying: SmallVec<[HandleId; 1]>,
    /// The sequences that it was part of when it was opened last to be read, and to be written.
    pub(super) sequences: [Option<SequenceId>; 2],
    /// It was asked itself how fast it plays.
    pub(super) probed: bool,
    /// What its readers are promised, and its writers.
    pub(super) promised: [Option<Terms>; 2],
    /// What held for it when it was opened last; absent: nobody says anything of it.
    pub(super) policy: Option<Box<Policy>>,
    pub(super) told: Option<Box<Told>>,
    /// What clients that have it open said of their reading or writing.
    pub(super) declarations: Vec<Declared>,
}

/// A client that reads on and on, and does not copy, as far as can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Playing {
    pub(super) handle: HandleId,
    /// How many streams it is: who plays two places of a file at once is two.
    pub(super) streams: u32,
    /// It was seen to rest, as nobody does who copies.
    pub(super) rests: bool,
}

/// What one client said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declared {
    pub(super) handle: HandleId,
    pub(super) direction: Direction,
    pub(super) declaration: Declaration,
    /// Of the user whose application said it.
    pub(super) account: Option<Account>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Touched {
    pub(super) atime: Option<Timestamp>,
    pub(super) mtime: Option<Timestamp>,
}

impl FileState {
    /// What holds for it.
    pub(super) fn policy(&self) -> avfs_streams::Policy {
        self.policy.as_deref().map(|policy| policy.streams).unwrap_or_default()
    }

    /// Length of its windows of free space in units; `None`: the allocator's own choice.
    pub(super) fn window_units(&self) -> Option<usize> {
        self.policy.as_deref().and_then(Policy::window_units)
    }

    /// Somebody opened it with these flags (+1), or closed it (-1).
    pub(super) fn count_client(&mut self, flags: OpenFlags, change: i32) {
        let count = if flags.contains(OpenFlags::WRITE) { &mut self.writers } else { &mut self.readers };
        *count = count.saturating_add_signed(change);
    }

    /// What its readers or its writers are promised, as the stream that they are together.
    pub(super) fn terms(&self, direction: Direction) -> Option<Terms> {
        self.promised[usize::from(direction == Direction::Write)]
    }

    /// The sequence as part of which it is read, or written.
    pub(super) fn sequence(&self, direction: Direction) -> Option<SequenceId> {
        self.sequences[usize::from(direction == Direction::Write)]
    }

    pub(super) fn set_sequence(&mut self, direction: Direction, sequence: Option<SequenceId>) {
        self.sequences[usize::from(direction == Direction::Write)] = sequence;
    }

    pub(super) fn set_terms(&mut self, direction: Direction, terms: Option<Terms>) {
        self.promised[usize::from(direction == Direction::Write)] = terms;
    }

    /// A client plays the file from now on, or does not.
    pub(super) fn set_playing(&mut self, handle: HandleId, playing: Option<Playing>) {
        self.playing.retain(|before| before.handle != handle);
        self.playing.extend(playing);
    }

    /// How a client plays the file, if it does.
    pub(super) fn playing_of(&self, handle: HandleId) -> Option<Playing> {
        self.playing.iter().find(|playing| playing.handle == handle).copied()
    }

    /// How many streams a client is.
    pub(super) fn streams_of(&self, handle: HandleId) -> u32 {
        self.playing_of(handle).map_or(0, |playing| playing.streams)
    }

    pub(super) fn who_plays(&self) -> impl Iterator<Item = HandleId> {
        self.playing.iter().map(|playing| playing.handle)
    }

    pub(super) fn is_played_only_by(&self, handle: HandleId) -> bool {
        matches!(self.playing.as_slice(), [only] if only.handle == handle)
    }

    /// A client that writes copies the file from now on, or does not.
    pub(super) fn set_copying(&mut self, handle: HandleId, copies: bool) {
        self.copying.retain(|copying| *copying != handle);
        self.copying.extend(copies.then_some(handle));
    }

    /// True when nobody says its rate but those who watch its clients.
    pub(super) fn observes_rate(&self) -> bool {
        let observed = self.told.as_deref().is_some_and(Told::is_only_observed);
        let is_unsaid = self.policy().bitrate().is_none() || observed;
        is_unsaid && !self.policy().forbids_streams() && self.declarations.is_empty()
    }

    /// What clients said who play, or who record.
    pub(super) fn declared(&self, direction: Direction) -> impl Iterator<Item = &Declared> {
        self.declarations.iter().filter(move |declared| declared.direction == direction)
    }

    /// True when its clients or an administrator say how it is read or written.
    pub(super) fn is_media(&self) -> bool {
        self.policy().is_media() || !self.declarations.is_empty()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.loads == 0 && self.writes == 0
    }

    /// True when nobody uses it, and the inode says everything but what is in memory; whether blocks are clean is
    /// not asked.
    pub(super) fn is_unused(&self) -> bool {
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
    pub(super) fn block_before(&self, at: u64) -> Option<(u64, BlockId)> {
        self.blocks.last_until(at)
    }

    /// First byte of the first block that begins after `at`.
    pub(super) fn next_block(&self, at: u64) -> Option<u64> {
        self.blocks.range(at.saturating_add(1)..u64::MAX).next().map(|(start, _)| start)
    }
}
