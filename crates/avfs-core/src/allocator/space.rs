//! Which blocks and units are free: the facts, without any opinion on which to take.
//!
//! **State:** a used count for each unit (2 bytes), two bits for each unit (open, fenced), a bitmap for each
//! partially used unit, a summary for each zone: 100 TB take 28 MB and 256 bytes for each partial unit.
//! **Invariants:** a unit has a bitmap exactly when some but not all of its blocks are used; it is *open* when it
//! is wholly free and not fenced; it is in the index of holes when it is partial and not fenced. Fenced units are
//! those in somebody's window.

use super::bits;
use super::run::{BLOCKS_PER_UNIT, BlockRun};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const UNIT: usize = BLOCKS_PER_UNIT as usize;

/// A bitmap of one unit: one bit for each free block.
struct Partial {
    free: [u64; UNIT / 64],
    /// Length of the longest run of free blocks, 1..2048.
    longest_hole: u16,
}

/// What is known of a zone's open units.
#[derive(Clone, Copy, Default)]
struct Zone {
    /// Number of open units; always right.
    open: usize,
    /// The runs' lengths, wrong while `stale`.
    runs: ZoneRuns,
    stale: bool,
}

/// Lengths in units: the longest run of open units, and those that touch the zone's two ends.
#[derive(Clone, Copy, Default)]
struct ZoneRuns {
    longest: usize,
    first: usize,
    last: usize,
}

pub(super) struct Space {
    zone_units: usize,
    used: Vec<u16>,
    partial: BTreeMap<usize, Box<Partial>>,
    /// (longest hole in blocks, unit) of partial units that are not fenced.
    holes: BTreeSet<(u16, usize)>,
    open: Vec<u64>,
    fenced: Vec<u64>,
    zones: Vec<Zone>,
    free_blocks: u64,
    free_units: u64,
}

impl Space {
    pub(super) fn new(total_units: usize, zone_units: usize) -> Self {
        let mut space = Self {
            zone_units,
            used: Vec::new(),
            partial: BTreeMap::new(),
            holes: BTreeSet::new(),
            open: Vec::new(),
            fenced: Vec::new(),
            zones: Vec::new(),
            free_blocks: 0,
            free_units: 0,
        };
        space.grow(total_units);
        space
    }

    /// Adds free units behind the last, up to `total_units`.
    pub(super) fn grow(&mut self, total_units: usize) {
        let added = self.used.len()..total_units;
        if added.is_empty() {
            return;
        }
        self.used.resize(total_units, 0);
        for bits in [&mut self.open, &mut self.fenced] {
            bits.resize(total_units.div_ceil(64), 0);
        }
        bits::fill(&mut self.open, added.clone(), true);
        self.zones.resize(total_units.div_ceil(self.zone_units), Zone::default());
        for zone in self.zone_of(added.start)..self.zones.len() {
            let units = self.units_of(zone);
            self.zones[zone].open += units.end - units.start.max(added.start);
            self.zones[zone].stale = true;
        }
        self.free_blocks += added.len() as u64 * BLOCKS_PER_UNIT;
        self.free_units += added.len() as u64;
    }

    pub(super) fn total_blocks(&self) -> u64 {
        self.used.len() as u64 * BLOCKS_PER_UNIT
    }

    pub(super) fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    pub(super) fn free_units(&self) -> u64 {
        self.free_units
    }

    /// True when the run lies inside the volume.
    pub(super) fn contains(&self, run: BlockRun) -> bool {
        run.start.checked_add(run.count).is_some_and(|end| end <= self.total_blocks())
    }

    // Units and zones.

    pub(super) fn zone_of(&self, unit: usize) -> usize {
        unit / self.zone_units
    }

    fn units_of(&self, zone: usize) -> Range<usize> {
        let start = zone * self.zone_units;
        start..(start + self.zone_units).min(self.used.len())
    }

    /// True when some but not all blocks of the unit are used.
    pub(super) fn is_partial(&self, unit: usize) -> bool {
        self.used.get(unit).is_some_and(|used| (1..UNIT as u16).contains(used))
    }

    pub(super) fn is_fenced(&self, unit: usize) -> bool {
        unit < self.used.len() && bits::get(&self.fenced, unit)
    }

    /// Number of free blocks right in front of a run of units and right behind it, in units that are partially used and in
    /// nobody's window.
    pub(super) fn free_beside(&self, units: &Range<usize>) -> (u64, u64) {
        let partial = |unit: usize| self.partial.get(&unit).filter(|_| !self.is_fenced(unit));
        let before = units.start.checked_sub(1).and_then(partial);
        let before = before.map_or(0, |partial| bits::ones_at_end(&partial.free));
        let behind = partial(units.end).map_or(0, |partial| bits::find(&partial.free, 0..UNIT, false));
        (before as u64, behind as u64)
    }

    /// Free blocks of `units` in runs, ascending, in windows and outside; one that is longer than a unit comes in parts.
    pub(super) fn free_runs(&self, units: Range<usize>, each: &mut dyn FnMut(BlockRun)) {
        for unit in units.start..units.end.min(self.used.len()) {
            let start = (unit * UNIT) as u64;
            match self.partial.get(&unit) {
                None if self.used[unit] == 0 => each(BlockRun { start, count: BLOCKS_PER_UNIT }),
                None => {}
                Some(partial) => bits::runs(&partial.free, 0..UNIT).for_each(|run| {
                    each(BlockRun { start: start + run.start as u64, count: run.len() as u64 })
                }),
            }
        }
    }

    /// Number of open units from `unit` on without a gap, at most `limit`.
    pub(super) fn open_units_from(&self, unit: usize, limit: usize) -> usize {
        let end = unit.saturating_add(limit).min(self.used.len());
        if unit >= end { 0 } else { bits::find(&self.open, unit..end, false) - unit }
    }

    /// The runs of open units inside a zone, ascending.
    pub(super) fn open_runs(&self, zone: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        bits::runs(&self.open, self.units_of(zone))
    }

    fn measure(&self, zone: usize) -> ZoneRuns {
        let units = self.units_of(zone);
        let mut runs = ZoneRuns::default();
        for run in self.open_runs(zone) {
            runs.longest = runs.longest.max(run.len());
            if run.start == units.start {
                runs.first = run.len();
            }
            if run.end == units.end {
                runs.last = run.len();
            }
        }
        runs
    }

    /// The longest run of open units inside a zone, measured again only if the zone changed.
    pub(super) fn longest_in(&mut self, zone: usize) -> usize {
        if self.zones[zone].stale {
            self.zones[zone].runs = self.measure(zone);
            self.zones[zone].stale = false;
        }
        self.zones[zone].runs.longest
    }

    /// The lowest of the zones with the longest run of open units, if any unit is open.
    pub(super) fn zone_with_longest_run(&mut self) -> Option<usize> {
        let mut best: Option<(usize, usize)> = None;
        for zone in 0..self.zones.len() {
            // A zone cannot have a run longer than the number of its open units: most need no measuring.
            if self.zones[zone].open > best.map_or(0, |(longest, _)| longest) {
                let longest = self.longest_in(zone);
                if longest > best.map_or(0, |(longest, _)| longest) {
                    best = Some((longest, zone));
                }
            }
        }
        best.map(|(_, zone)| zone)
    }

    /// The lowest of the zones with the fewest open units, but at least one.
    pub(super) fn fullest_open_zone(&self) -> Option<usize> {
        (0..self.zones.len()).filter(|zone| self.has_open(*zone)).min_by_key(|zone| self.zones[*zone].open)
    }

    pub(super) fn has_open(&self, zone: usize) -> bool {
        self.zones[zone].open > 0
    }

    /// The longest run of open units, across zones.
    pub(super) fn longest_open_run(&self) -> usize {
        let (mut longest, mut growing) = (0, 0);
        for (zone, summary) in self.zones.iter().enumerate() {
            let runs = if summary.stale { self.measure(zone) } else { summary.runs };
            longest = longest.max(runs.longest).max(growing + runs.first);
            growing =
                if summary.open == self.units_of(zone).len() { growing + summary.open } else { runs.last };
        }
        longest
    }

    /// Marks units as inside a window, or not any more.
    pub(super) fn fence(&mut self, units: Range<usize>, fenced: bool) {
        for unit in units {
            if bits::get(&self.fenced, unit) == fenced {
                continue;
            }
            bits::fill(&mut self.fenced, unit..unit + 1, fenced);
            if self.used[unit] == 0 {
                self.set_open(unit, !fenced);
            } else if let Some(partial) = self.partial.get(&unit) {
                if fenced {
                    self.holes.remove(&(partial.longest_hole, unit));
                } else {
                    self.holes.insert((partial.longest_hole, unit));
                }
            }
        }
    }

    fn set_open(&mut self, unit: usize, open: bool) {
        bits::fill(&mut self.open, unit..unit + 1, open);
        let zone = self.zone_of(unit);
        let summary = &mut self.zones[zone];
        summary.stale = true;
        if open {
            summary.open += 1;
        } else {
            summary.open -= 1;
        }
    }

    // Blocks.

    /// The run's parts, unit by unit: (unit, blocks within the unit).
    fn parts(run: BlockRun) -> impl Iterator<Item = (usize, Range<usize>)> {
        let end = run.end() as usize;
        let mut at = run.start as usize;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (unit, first) = (at / UNIT, at % UNIT);
            let count = (UNIT - first).min(end - at);
            at += count;
            Some((unit, first..first + count))
        })
    }

    /// The first block of `range` in `unit` that is free or not, as asked; `range.end` if none.
    fn find_in_unit(&self, unit: usize, range: Range<usize>, free: bool) -> usize {
        match self.partial.get(&unit) {
            Some(partial) => bits::find(&partial.free, range, free),
            None if (self.used[unit] == 0) == free => range.start,
            None => range.end,
        }
    }

    /// The first block of the run that is free or not, as asked. The run must lie inside the volume.
    pub(super) fn find(&self, run: BlockRun, free: bool) -> Option<u64> {
        Self::parts(run).find_map(|(unit, range)| {
            let at = self.find_in_unit(unit, range.clone(), free);
            (at < range.end).then(|| (unit * UNIT + at) as u64)
        })
    }

    /// The part of `run` from its start that is free, possibly of length zero; none of it lies outside the volume.
    pub(super) fn free_part(&self, run: BlockRun) -> BlockRun {
        let end = run.end().min(self.total_blocks());
        let clipped = BlockRun { start: run.start, count: end.saturating_sub(run.start) };
        match self.find(clipped, false) {
            Some(used) => BlockRun { start: run.start, count: used - run.start },
            None => clipped,
        }
    }

    /// The shortest hole of at least `wanted` blocks in a partial unit that is not fenced.
    pub(super) fn fitting_hole(&self, unit: usize, wanted: u64) -> Option<BlockRun> {
        if self.is_fenced(unit) {
            return None;
        }
        let partial = self.partial.get(&unit)?;
        let hole = bits::runs(&partial.free, 0..UNIT)
            .filter(|hole| hole.len() as u64 >= wanted)
            .min_by_key(|hole| (hole.len(), hole.start))?;
        Some(BlockRun { start: (unit * UNIT + hole.start) as u64, count: wanted })
    }

    /// Best fit among the partial units that are not fenced: the unit whose longest hole is the shortest that
    /// suffices.
    pub(super) fn best_hole(&self, wanted: u64) -> Option<BlockRun> {
        let wanted_in_unit = u16::try_from(wanted).ok()?;
        let (_, unit) = self.holes.range((wanted_in_unit, 0)..).next()?;
        self.fitting_hole(*unit, wanted)
    }

    /// The longest hole of all, or the first `limit` blocks of it.
    pub(super) fn largest_hole(&self, limit: u64) -> Option<BlockRun> {
        let (longest, unit) = self.holes.last()?;
        let hole = self.fitting_hole(*unit, u64::from(*longest))?;
        Some(BlockRun { start: hole.start, count: hole.count.min(limit) })
    }

    /// Marks free blocks used, or used blocks free. The caller has checked that they are the opposite now.
    pub(super) fn set(&mut self, run: BlockRun, free: bool) {
        for (unit, range) in Self::parts(run) {
            self.set_in_unit(unit, range, free);
        }
    }

    fn set_in_unit(&mut self, unit: usize, range: Range<usize>, free: bool) {
        let count = range.len() as u16;
        let before = self.used[unit];
        let after = if free { before - count } else { before + count };
        let fenced = self.is_fenced(unit);
        self.used[unit] = after;
        if free {
            self.free_blocks += u64::from(count);
        } else {
            self.free_blocks -= u64::from(count);
        }

        if let Some(partial) = self.partial.get(&unit)
            && !fenced
        {
            self.holes.remove(&(partial.longest_hole, unit));
        }
        if self.is_partial(unit) {
            let word = if before == 0 { u64::MAX } else { 0 };
            let partial = self
                .partial
                .entry(unit)
                .or_insert_with(|| Box::new(Partial { free: [word; UNIT / 64], longest_hole: 0 }));
            bits::fill(&mut partial.free, range, free);
            partial.longest_hole =
                bits::runs(&partial.free, 0..UNIT).map(|hole| hole.len()).max().unwrap_or(0) as u16;
            if !fenced {
                self.holes.insert((partial.longest_hole, unit));
            }
        } else {
            self.partial.remove(&unit);
        }

        if (before == 0) != (after == 0) {
            if after == 0 {
                self.free_units += 1;
            } else {
                self.free_units -= 1;
            }
            if !fenced {
                self.set_open(unit, after == 0);
            }
        }
    }

    /// Derives everything that is cached again, and compares.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut free_blocks = 0;
        let mut holes = BTreeSet::new();
        for unit in 0..self.used.len() {
            let free = UNIT - usize::from(self.used[unit]);
            free_blocks += free as u64;
            assert_eq!(bits::get(&self.open, unit), free == UNIT && !self.is_fenced(unit), "unit {unit}");
            assert_eq!(self.partial.contains_key(&unit), self.is_partial(unit), "unit {unit}");
            if let Some(partial) = self.partial.get(&unit) {
                let longest = bits::runs(&partial.free, 0..UNIT).map(|hole| hole.len()).max().unwrap_or(0);
                assert_eq!(partial.free.iter().map(|word| word.count_ones() as usize).sum::<usize>(), free);
                assert_eq!(usize::from(partial.longest_hole), longest);
                if !self.is_fenced(unit) {
                    holes.insert((longest as u16, unit));
                }
            }
        }
        assert_eq!(self.free_blocks, free_blocks);
        assert_eq!(self.free_units, self.used.iter().filter(|used| **used == 0).count() as u64);
        assert_eq!(self.holes, holes);
        for (zone, summary) in self.zones.iter().enumerate() {
            assert_eq!(summary.open, self.open_runs(zone).map(|run| run.len()).sum::<usize>(), "zone {zone}");
            if !summary.stale {
                assert_eq!(summary.runs.longest, self.measure(zone).longest, "zone {zone}");
            }
        }
        let longest = bits::runs(&self.open, 0..self.used.len()).map(|run| run.len()).max().unwrap_or(0);
        assert_eq!(self.longest_open_run(), longest);
    }
}
