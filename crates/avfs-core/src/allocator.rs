//! Where new data goes, and how much may still be promised.
//!
//! **For:** choosing free blocks so that a recording lies in few long runs, small files lie together, and metadata
//! stays out of the recorders' way; counting the space that was claimed for data not yet placed. **Excludes:** what
//! the blocks hold, and durability: nothing here is persistent; at mount the extents of all inodes are
//! [marked used](Allocator::mark_used), and what several have is [counted](Allocator::mark_used_again). **State:** one [`Allocator`] for each volume, owned by its core.
//! **Invariants:** a block is handed out only while free, and taken back only when its last owner has given it up; as long as one block is free a request for file data
//! succeeds; the same calls lead to the same answers.
//!
//! Addresses are block numbers from the start of the data area. A *unit* is 2048 blocks (8 MiB), a *zone* 8192
//! units (64 GiB). A *window* is a run of units kept for one owner: the in-memory reservation of XFS filestreams
//! and of ext4's preallocation, at the scale of video. Windows are never persistent, and they are soft: when
//! nothing else is free, they are dissolved, the largest first.

mod bits;
mod run;
mod shares;
mod space;
mod windows;

use crate::error::Error;
pub use run::{BLOCKS_PER_UNIT, BlockRun, Owner};
pub(crate) use shares::Shares;
use space::Space;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
pub(crate) use windows::LARGEST_WINDOW_UNITS;
use windows::{Window, Windows};

/// Bytes in a block.
pub const BLOCK_BYTES: u64 = 4096;
/// Units in a zone (64 GiB).
const UNITS_PER_ZONE: usize = 8192;
/// The longest run one request gets: 1 GiB, which also bounds the time of one call.
const LONGEST_RUN_BLOCKS: u64 = LARGEST_WINDOW_UNITS as u64 * BLOCKS_PER_UNIT;
/// A first window is this part of what is free,...
pub(crate) const FIRST_WINDOW_PART: u64 = 64;
/// ...but not shorter (32 MiB)...
const SHORTEST_FIRST_WINDOW_UNITS: usize = 4;
/// ...and not longer (256 MiB).
const LONGEST_FIRST_WINDOW_UNITS: usize = 32;
/// Behind used blocks a stream goes on in no shorter hole (4 MiB) while whole units are free: an access for so little is dear,
/// and small files have use for it.
const SHORTEST_HOLE_BLOCKS: u64 = BLOCKS_PER_UNIT / 2;
/// How many owners of small files have their last unit remembered.
const REMEMBERED_SMALL_OWNERS: usize = 64;

/// What the space is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A recording or another large file: long runs, from the owner's window.
    Stream,
    /// A small file or the tail of one: packed into units that are shared.
    Small,
    /// One whole unit of metadata.
    Metadata,
    /// The longest free run within a unit, for metadata that finds no whole one.
    MetadataPart,
}

/// A wish for space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number of blocks, at least 1. [`Purpose::Metadata`] always gets one unit, [`BLOCKS_PER_UNIT`].
    pub wanted: u64,
    /// What for.
    pub purpose: Purpose,
    /// Who asks.
    pub owner: Owner,
    /// The block behind the file's previous run, if it has one: the best place is there.
    pub after: Option<u64>,
    /// Length of the owner's windows in units, at least 1 (what the volume's fill allows of it); `None`: growing from
    /// 4 to 128.
    pub window_units: Option<usize>,
}

/// A run that should have been free is used in part, or lies outside the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{run}: block {block} is used already or outside the volume")]
pub struct Overlap {
    /// The run that was to be marked.
    pub run: BlockRun,
    /// Its first block that is not free.
    pub block: u64,
}

/// A run that should have been used is free in part, or lies outside the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{run}: block {block} is free already or outside the volume")]
pub struct DoubleFree {
    /// The run that was to be freed.
    pub run: BlockRun,
    /// Its first block that is not used.
    pub block: u64,
}

/// Not as much space can be promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no space left on volume: {wanted} blocks wanted, {available} available")]
pub struct NoSpace {
    /// Blocks that were to be claimed.
    pub wanted: u64,
    /// Blocks that can be.
    pub available: u64,
}

impl From<NoSpace> for Error {
    fn from(_: NoSpace) -> Self {
        Self::NoSpace
    }
}

/// How careful to be, by the share of blocks that are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// More than 20 %: worst fit, the longest run, so that writers stay far apart.
    Ample,
    /// 5 to 20 %: best fit, so that long runs survive; windows of at most 32 units.
    Tight,
    /// Less than 5 %: single units.
    Scarce,
}

impl Room {
    fn largest_window_units(self) -> usize {
        match self {
            Self::Ample => LARGEST_WINDOW_UNITS,
            Self::Tight => 32,
            Self::Scarce => 1,
        }
    }
}

/// The free space of a volume and the claims on it.
pub struct Allocator {
    space: Space,
    shares: Shares,
    windows: Windows,
    /// Owners of small files and the unit each used last, newest first.
    small_owners: VecDeque<(Owner, usize)>,
    /// Zone of the last unit broken for small files.
    small_zone: Option<usize>,
    /// Zone of the last unit given to metadata.
    metadata_zone: Option<usize>,
    claimed: u64,
    reserve: u64,
}

fn unit_of(block: u64) -> usize {
    (block / BLOCKS_PER_UNIT) as usize
}

fn first_block(unit: usize) -> u64 {
    unit as u64 * BLOCKS_PER_UNIT
}

impl Allocator {
    /// A volume of `total_units` units of 8 MiB, all free, nothing claimed, no reserve.
    pub fn new(total_units: u64) -> Self {
        Self::with_zones(total_units, UNITS_PER_ZONE)
    }

    fn with_zones(total_units: u64, zone_units: usize) -> Self {
        Self {
            space: Space::new(total_units as usize, zone_units),
            shares: Shares::default(),
            windows: Windows::default(),
            small_owners: VecDeque::new(),
            small_zone: None,
            metadata_zone: None,
            claimed: 0,
            reserve: 0,
        }
    }

    // Rebuilding and returning.

    /// Marks blocks that an extent holds as used, at mount.
    ///
    /// # Errors
    /// [`Overlap`] when one of them is used already or outside the volume; nothing is changed then.
    pub fn mark_used(&mut self, run: BlockRun) -> Result<(), Overlap> {
        match self.first_outside_or(run, false) {
            Some(block) => Err(Overlap { run, block }),
            None => {
                self.space.set(run, false);
                Ok(())
            }
        }
    }

    /// The same where they may be another extent's already: then that one and this one share them.
    ///
    /// # Errors
    /// [`Overlap`] when one of them is outside the volume; nothing is changed then.
    pub fn mark_used_again(&mut self, run: BlockRun) -> Result<(), Overlap> {
        if !self.space.contains(run) {
            return Err(Overlap { run, block: run.start.max(self.space.total_blocks()) });
        }
        let mut at = run.start;
        while at < run.end() {
            let rest = BlockRun { start: at, count: run.end() - at };
            let free = self.space.find(rest, true).unwrap_or(run.end());
            if at < free {
                self.shares.add(BlockRun { start: at, count: free - at });
            }
            let rest = BlockRun { start: free, count: run.end() - free };
            at = self.space.find(rest, false).unwrap_or(run.end());
            self.space.set(BlockRun { start: free, count: at - free }, false);
        }
        Ok(())
    }

    /// One owner more of used blocks.
    pub fn share(&mut self, run: BlockRun) {
        debug_assert!(self.first_outside_or(run, true).is_none(), "{run}: shared and free");
        self.shares.add(run);
    }

    /// One owner less of used blocks. Returns what has none left, and is to be [freed](Self::free) in time.
    pub fn give_up(&mut self, run: BlockRun) -> Vec<BlockRun> {
        if self.shares.is_empty() { vec![run] } else { self.shares.remove(run) }
    }

    /// Blocks that have several owners.
    pub(crate) fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Takes blocks back that have no owner left.
    ///
    /// # Errors
    /// [`DoubleFree`] when one of them is free already, shared, or outside the volume; nothing is changed then.
    ///
    /// # Panics
    /// On the same condition, where debug assertions are on: to free twice is a bug of the caller, and the
    /// second owner of those blocks would lose data.
    pub fn free(&mut self, run: BlockRun) -> Result<(), DoubleFree> {
        let shared = self.shares.within(run).next().map(|(shared, _)| shared.start);
        match self.first_outside_or(run, true).or(shared) {
            Some(block) => {
                let error = DoubleFree { run, block };
                debug_assert!(false, "{error}");
                Err(error)
            }
            None => {
                self.space.set(run, true);
                Ok(())
            }
        }
    }

    /// The first block of the run that is outside the volume, or that is free or not, as asked.
    fn first_outside_or(&self, run: BlockRun, free: bool) -> Option<u64> {
        if self.space.contains(run) {
            self.space.find(run, free)
        } else {
            Some(run.start.max(self.space.total_blocks()))
        }
    }

    /// The volume has `total_units` units from now on: those that are added are free. It never becomes smaller.
    pub fn grow(&mut self, total_units: u64) {
        self.space.grow(total_units as usize);
    }

    // Allocation.

    /// Takes one run of 1 to `wanted` blocks; whoever needs more asks again. Claims are not looked at: the caller
    /// allocates what it has claimed.
    ///
    /// An owner that asked for [`Purpose::Stream`] is remembered until [`release_window`](Self::release_window).
    ///
    /// Returns `None` only if no block is free (for [`Purpose::Metadata`]: no whole unit), or none is wanted.
    pub fn allocate(&mut self, request: &Request) -> Option<BlockRun> {
        let nothing_free = match request.purpose {
            Purpose::Metadata => self.space.free_units() == 0,
            Purpose::Stream | Purpose::Small | Purpose::MetadataPart => self.space.free_blocks() == 0,
        };
        if nothing_free || request.wanted == 0 {
            return None;
        }
        let Request { wanted, purpose, owner, after, window_units } = *request;
        if purpose == Purpose::Stream
            && let Some(units) = window_units
        {
            self.windows.writer(owner).next_units = Some(units.max(1));
        }
        // Behind the volume's last block nothing goes on.
        let after = after.filter(|block| *block < self.space.total_blocks());
        let run = loop {
            let found = match purpose {
                Purpose::Stream => self.find_for_stream(wanted.min(LONGEST_RUN_BLOCKS), owner, after),
                Purpose::Small => self.find_for_small(wanted.min(BLOCKS_PER_UNIT), owner, after),
                Purpose::Metadata => self.find_for_metadata(),
                Purpose::MetadataPart => self.find_part(wanted.min(BLOCKS_PER_UNIT)),
            };
            match found {
                Some(run) => break run,
                None => self.dissolve(self.windows.largest()?),
            }
        };
        self.space.set(run, false);
        match purpose {
            Purpose::Stream => self.advance_window(owner, run),
            Purpose::Small => self.remember_small(owner, unit_of(run.start)),
            Purpose::Metadata => self.metadata_zone = Some(self.space.zone_of(unit_of(run.start))),
            Purpose::MetadataPart => {}
        }
        Some(run)
    }

    /// Takes the first free run from block `from` on that is in nobody's window and has at least `shortest` blocks, and of it at most
    /// `longest`: for who does something with free space as such.
    pub fn take_free(&mut self, from: u64, shortest: u64, longest: u64) -> Option<BlockRun> {
        let total = self.space.total_blocks();
        let mut at = from;
        while at < total && longest > 0 {
            let unit_end = (first_block(unit_of(at)) + BLOCKS_PER_UNIT).min(total);
            let rest = BlockRun { start: at, count: unit_end - at };
            let free = if self.space.is_fenced(unit_of(at)) { None } else { self.space.find(rest, true) };
            let Some(start) = free else {
                at = unit_end;
                continue;
            };
            let wanted = BlockRun { start, count: longest.min(total - start) };
            let end = self.space.free_part(wanted).end();
            let fenced = (unit_of(start)..=unit_of(end - 1)).find(|&unit| self.space.is_fenced(unit));
            let end = fenced.map_or(end, first_block);
            if end - start >= shortest {
                let run = BlockRun { start, count: end - start };
                self.space.set(run, false);
                return Some(run);
            }
            at = end;
        }
        None
    }

    /// The owner stops writing: its window is given up. What its last unit has left becomes available to small
    /// files. Does nothing for an owner that has none.
    pub fn release_window(&mut self, owner: Owner) {
        self.dissolve(owner);
        self.windows.forget(owner);
    }

    fn dissolve(&mut self, owner: Owner) {
        let units = self.windows.close(owner);
        self.space.fence(units, false);
    }

    fn advance_window(&mut self, owner: Owner, taken: BlockRun) {
        let inside = |window: &Window| window.units().contains(&unit_of(taken.start));
        if self.windows.window(owner).is_some_and(inside) {
            let left = self.windows.advance(owner, taken.end());
            self.space.fence(left, false);
        }
    }

    fn room(&self) -> Room {
        let free_percent = self.space.free_blocks() * 100 / self.space.total_blocks().max(1);
        match free_percent {
            0..5 => Room::Scarce,
            5..=20 => Room::Tight,
            _ => Room::Ample,
        }
    }

    fn find_for_stream(&mut self, wanted: u64, owner: Owner, after: Option<u64>) -> Option<BlockRun> {
        if let Some(after) = after {
            if self.windows.window(owner).is_none() {
                self.open_window_at(after, owner, wanted);
            }
            if let Some(run) = self.continue_at(after, owner, wanted) {
                return Some(run);
            }
        }
        if let Some(run) = self.find_in_window(owner, wanted) {
            return Some(run);
        }
        self.dissolve(owner);
        self.open_window(owner, wanted);
        self.find_in_window(owner, wanted).or_else(|| self.space.largest_hole(wanted))
    }

    /// What is free from `after` on, up to the end of the window it is in.
    fn continue_at(&self, after: u64, owner: Owner, wanted: u64) -> Option<BlockRun> {
        let unit = unit_of(after);
        let end = match self.windows.owner_of(unit) {
            Some(other) if other != owner => return None,
            Some(_) => self.windows.window(owner)?.end_block(),
            // Outside of windows: up to the next one.
            None => (unit..=unit_of(after.saturating_add(wanted)))
                .find(|unit| self.space.is_fenced(*unit))
                .map_or(u64::MAX, first_block),
        };
        let run = BlockRun { start: after, count: wanted.min(end - after) };
        Some(self.space.free_part(run)).filter(|run| run.count > 0)
    }

    /// The next free blocks of the owner's window that are worth an access. Blocks behind the cursor that were freed since are not
    /// looked for: a stream goes forward.
    fn find_in_window(&self, owner: Owner, wanted: u64) -> Option<BlockRun> {
        let window = self.windows.window(owner)?;
        let (mut at, end) = (window.cursor, window.end_block());
        loop {
            let start = self.space.find(BlockRun { start: at, count: end - at }, true)?;
            let enough = wanted.max(SHORTEST_HOLE_BLOCKS).min(end - start);
            let hole = self.space.free_part(BlockRun { start, count: enough });
            if start == window.cursor || hole.count >= SHORTEST_HOLE_BLOCKS {
                return Some(BlockRun { start, count: wanted.min(hole.count) });
            }
            at = hole.end();
        }
    }

    /// Units of a new owner's first window, if nobody says otherwise. Where several record at once, each of their windows
    /// ends where another's begins, and who reads the file seeks there: so as long as the volume has room for a dozen.
    fn first_window_units(&self) -> usize {
        let share = self.space.free_units() / FIRST_WINDOW_PART;
        (share as usize).clamp(SHORTEST_FIRST_WINDOW_UNITS, LONGEST_FIRST_WINDOW_UNITS)
    }

    /// Units the owner's next window should have.
    fn window_units(&mut self, owner: Owner, wanted: u64) -> usize {
        let wanted_units = wanted.div_ceil(BLOCKS_PER_UNIT) as usize;
        let first = self.first_window_units();
        let units = (*self.windows.writer(owner).next_units.get_or_insert(first)).max(wanted_units);
        units.min(self.room().largest_window_units())
    }

    /// Opens a window around the place where a file goes on, if that place is free and nobody's.
    fn open_window_at(&mut self, after: u64, owner: Owner, wanted: u64) {
        let unit = unit_of(after);
        let is_free = self.is_free(BlockRun { start: after, count: 1 });
        if is_free && !self.space.is_fenced(unit) {
            let units = self.window_units(owner, wanted);
            let end = unit + 1 + self.space.open_units_from(unit + 1, units - 1);
            self.fence_window(owner, Window { cursor: after, end });
        }
    }

    /// Opens a window where the room of the volume suggests it: behind the owner's last window, else in that
    /// window's zone, else in the outermost of the zones with the longest run.
    fn open_window(&mut self, owner: Owner, wanted: u64) {
        let units = self.window_units(owner, wanted);
        let resume = self.windows.writer(owner).resume;
        if let Some(unit) = resume {
            let open = self.space.open_units_from(unit, units);
            if open > 0 {
                return self.fence_window(owner, Window { cursor: first_block(unit), end: unit + open });
            }
        }
        let own_zone = resume
            .map(|unit| self.space.zone_of(unit - 1))
            .filter(|zone| self.space.longest_in(*zone) >= units);
        let Some(zone) = own_zone.or_else(|| self.space.zone_with_longest_run()) else { return };
        let runs = self.space.open_runs(zone);
        let found = match self.room() {
            Room::Ample => runs.max_by_key(|run| (run.len(), Reverse(run.start))).map(|run| (run, 0)),
            // Where pieces are short, what is free on both sides of a run makes longer ones.
            Room::Tight | Room::Scarce => runs
                .map(|run| (self.space.free_beside(&run), run))
                .min_by_key(|((before, behind), run)| {
                    // The shortest that is long enough; where none is, the longest.
                    let fits = run.len() >= units;
                    let blocks = first_block(run.len()) + before + behind;
                    (!fits, if fits { run.len() } else { 0 }, Reverse(blocks), run.start)
                })
                .map(|((before, _), run)| (run, before)),
        };
        if let Some((run, before)) = found {
            let cursor = first_block(run.start) - before;
            self.fence_window(owner, Window { cursor, end: run.start + units.min(run.len()) });
        }
    }

    fn fence_window(&mut self, owner: Owner, window: Window) {
        self.space.fence(window.units(), true);
        self.windows.open(owner, window);
    }

    fn find_for_small(&mut self, wanted: u64, owner: Owner, after: Option<u64>) -> Option<BlockRun> {
        let last_unit = self.small_owners.iter().find(|(other, _)| *other == owner).map(|(_, unit)| *unit);
        self.fit_behind(after, wanted)
            .or_else(|| self.space.fitting_hole(unit_of(after?), wanted))
            .or_else(|| self.space.fitting_hole(last_unit?, wanted))
            .or_else(|| self.space.best_hole(wanted))
            .or_else(|| self.break_unit(after.map(unit_of).or(last_unit), wanted))
            .or_else(|| self.space.largest_hole(wanted))
    }

    /// All of `wanted` directly behind the file's previous run, in a unit that is shared already.
    fn fit_behind(&self, after: Option<u64>, wanted: u64) -> Option<BlockRun> {
        let run = BlockRun { start: after?, count: wanted };
        let unit = unit_of(run.start);
        let shared = self.space.is_partial(unit) && !self.space.is_fenced(unit);
        let inside = run.end() <= first_block(unit + 1);
        (shared && inside && self.is_free(run)).then_some(run)
    }

    /// The first blocks of an open unit, in the zone where small files are already: beside a unit that is shared,
    /// else at the end of the shortest run, where it is least in the way of a recorder that goes upwards.
    fn break_unit(&mut self, near: Option<usize>, wanted: u64) -> Option<BlockRun> {
        let near_zone = near.map(|unit| self.space.zone_of(unit)).or(self.small_zone);
        let zone = self.zone_for_single_unit(near_zone)?;
        let shared = |unit: usize| self.space.is_partial(unit) && !self.space.is_fenced(unit);
        let beside = |run: &std::ops::Range<usize>| {
            if shared(run.end) {
                Some(run.end - 1)
            } else {
                (run.start > 0 && shared(run.start - 1)).then_some(run.start)
            }
        };
        let run =
            self.space.open_runs(zone).min_by_key(|run| (beside(run).is_none(), run.len(), run.start))?;
        let unit = beside(&run).unwrap_or(run.end - 1);
        self.small_zone = Some(zone);
        Some(BlockRun { start: first_block(unit), count: wanted })
    }

    /// The last unit of the shortest run, if possible of one that no window is about to grow into.
    fn find_for_metadata(&mut self) -> Option<BlockRun> {
        let zone = self.zone_for_single_unit(self.metadata_zone)?;
        let behind_window = |unit: usize| unit > 0 && self.space.is_fenced(unit - 1);
        let run =
            self.space.open_runs(zone).min_by_key(|run| (behind_window(run.start), run.len(), run.start))?;
        Some(BlockRun { start: first_block(run.end - 1), count: BLOCKS_PER_UNIT })
    }

    /// The longest hole; a whole unit is broken only where there is no hole.
    fn find_part(&mut self, wanted: u64) -> Option<BlockRun> {
        let whole = |run: BlockRun| BlockRun { count: wanted, ..run };
        self.space.largest_hole(wanted).or_else(|| self.find_for_metadata().map(whole))
    }

    /// The zone asked for while it has open units, else the one with the fewest: long runs stay for streams.
    fn zone_for_single_unit(&self, near: Option<usize>) -> Option<usize> {
        near.filter(|zone| self.space.has_open(*zone)).or_else(|| self.space.fullest_open_zone())
    }

    fn remember_small(&mut self, owner: Owner, unit: usize) {
        self.small_owners.retain(|(other, _)| *other != owner);
        self.small_owners.push_front((owner, unit));
        self.small_owners.truncate(REMEMBERED_SMALL_OWNERS);
    }

    // Claims.

    /// Promises `blocks` to data that has no place yet.
    ///
    /// # Errors
    /// [`NoSpace`] when fewer are [available](Self::available); nothing is claimed then.
    pub fn claim(&mut self, blocks: u64) -> Result<(), NoSpace> {
        let available = self.available();
        if blocks > available {
            return Err(NoSpace { wanted: blocks, available });
        }
        self.claimed += blocks;
        Ok(())
    }

    /// Takes back a promise: the data got its place, or will never need one.
    ///
    /// # Panics
    /// Where debug assertions are on: when more is taken back than was claimed. Otherwise nothing stays claimed.
    pub fn unclaim(&mut self, blocks: u64) {
        debug_assert!(blocks <= self.claimed, "{blocks} blocks unclaimed of {}", self.claimed);
        self.claimed = self.claimed.saturating_sub(blocks);
    }

    /// Sets how many blocks no claim may have: they are for metadata, which deletions need, too.
    pub fn set_reserve(&mut self, blocks: u64) {
        self.reserve = blocks;
    }

    /// Blocks that can be claimed: those free, without those claimed and the reserve; at least zero.
    pub fn available(&self) -> u64 {
        self.space.free_blocks().saturating_sub(self.claimed).saturating_sub(self.reserve)
    }

    /// Blocks claimed and not yet unclaimed.
    pub fn claimed(&self) -> u64 {
        self.claimed
    }

    // Queries.

    /// Blocks in the data area.
    pub fn total_blocks(&self) -> u64 {
        self.space.total_blocks()
    }

    /// Free blocks, those in windows included.
    pub fn free_blocks(&self) -> u64 {
        self.space.free_blocks()
    }

    /// Number of units.
    pub fn units(&self) -> u64 {
        self.space.total_blocks() / BLOCKS_PER_UNIT
    }

    /// Free runs in these units, ascending, those in windows included; one that is longer than a unit comes in parts.
    pub fn free_runs(&self, units: Range<u64>, each: &mut dyn FnMut(BlockRun)) {
        self.space.free_runs(units.start as usize..units.end as usize, each);
    }

    /// Wholly free units, those in windows included.
    pub fn free_units(&self) -> u64 {
        self.space.free_units()
    }

    /// Length in units of the longest run of wholly free units outside of windows.
    pub fn longest_free_run(&self) -> u64 {
        self.space.longest_open_run() as u64
    }

    /// True when the run lies inside the volume and all of it is free.
    pub fn is_free(&self, run: BlockRun) -> bool {
        self.space.contains(run) && self.space.find(run, false).is_none()
    }

    /// The maximal runs of used blocks, ascending.
    pub fn used_runs(&self) -> impl Iterator<Item = BlockRun> + '_ {
        let total = self.space.total_blocks();
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.space.find(BlockRun { start: at, count: total - at }, false)?;
            let end = self.space.find(BlockRun { start, count: total - start }, true).unwrap_or(total);
            at = end;
            Some(BlockRun { start, count: end - start })
        })
    }
}

impl fmt::Debug for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocator")
            .field("total_blocks", &self.total_blocks())
            .field("free_blocks", &self.free_blocks())
            .field("free_units", &self.free_units())
            .field("claimed", &self.claimed)
            .field("reserve", &self.reserve)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
