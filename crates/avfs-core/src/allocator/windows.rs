//! Who holds which window.
//!
//! **State:** one [`Writer`] for each owner that asked for stream space and was not released.
//! **Invariant:** windows do not overlap; a window spans the unit of its cursor up to its end, and is dropped when
//! nothing is left of it.

use super::run::{BLOCKS_PER_UNIT, Owner};
use std::collections::BTreeMap;
use std::ops::Range;

/// Units of the largest window: 1 GiB.
pub(crate) const LARGEST_WINDOW_UNITS: usize = 128;

/// Space ahead of a writer that nobody else takes while there is other space.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Where the writer goes on: the block after the last one it took.
    pub(super) cursor: u64,
    /// First unit behind the window.
    pub(super) end: usize,
}

impl Window {
    /// The units it covers; the first may be partially used.
    pub(super) fn units(&self) -> Range<usize> {
        (self.cursor / BLOCKS_PER_UNIT) as usize..self.end
    }

    /// First block behind the window.
    pub(super) fn end_block(&self) -> u64 {
        self.end as u64 * BLOCKS_PER_UNIT
    }
}

/// What the allocator remembers of an owner.
#[derive(Clone, Debug, Default)]
pub(super) struct Writer {
    pub(super) window: Option<Window>,
    /// Size of the next window, before the volume's fill limits it. `None` before the first, unless somebody says one.
    pub(super) next_units: Option<usize>,
    /// The unit behind the last window: there the next one starts if it can.
    pub(super) resume: Option<usize>,
}

#[derive(Default)]
pub(super) struct Windows {
    writers: BTreeMap<Owner, Writer>,
    /// Last unit + 1 of each window → its owner. Ends never move, so this is the stable name of a window.
    by_end: BTreeMap<usize, Owner>,
}

impl Windows {
    pub(super) fn writer(&mut self, owner: Owner) -> &mut Writer {
        self.writers.entry(owner).or_default()
    }

    pub(super) fn window(&self, owner: Owner) -> Option<&Window> {
        self.writers.get(&owner)?.window.as_ref()
    }

    /// Whose window a unit is in.
    pub(super) fn owner_of(&self, unit: usize) -> Option<Owner> {
        let (_, owner) = self.by_end.range(unit + 1..).next()?;
        self.window(*owner).filter(|window| window.units().contains(&unit)).map(|_| *owner)
    }

    /// Gives the owner, who has none, a window. The next one is to have twice the size that this one was to have.
    pub(super) fn open(&mut self, owner: Owner, window: Window) {
        self.by_end.insert(window.end, owner);
        let writer = self.writer(owner);
        writer.next_units = writer.next_units.map(|units| (units * 2).min(LARGEST_WINDOW_UNITS));
        writer.resume = Some(window.end);
        writer.window = Some(window);
    }

    /// Moves the cursor forward; returns the units that the window leaves behind.
    pub(super) fn advance(&mut self, owner: Owner, cursor: u64) -> Range<usize> {
        let Some(writer) = self.writers.get_mut(&owner) else { return 0..0 };
        let Some(window) = writer.window.as_mut() else { return 0..0 };
        let start = window.units().start;
        window.cursor = window.cursor.max(cursor);
        let left = start..window.units().start;
        if window.units().is_empty() {
            self.by_end.remove(&window.end);
            writer.window = None;
        }
        left
    }

    /// Takes the owner's window away, but remembers the owner; returns the units of the window.
    pub(super) fn close(&mut self, owner: Owner) -> Range<usize> {
        let Some(window) = self.writers.get_mut(&owner).and_then(|writer| writer.window.take()) else {
            return 0..0;
        };
        self.by_end.remove(&window.end);
        window.units()
    }

    /// Forgets an owner without a window.
    pub(super) fn forget(&mut self, owner: Owner) {
        self.writers.remove(&owner);
    }

    /// The owner of the largest window, the lowest of several.
    pub(super) fn largest(&self) -> Option<Owner> {
        let size = |owner: &&Owner| self.window(**owner).map_or(0, |window| window.units().len());
        self.by_end.values().max_by_key(|owner| (size(owner), std::cmp::Reverse(**owner))).copied()
    }

    /// All windows, by owner.
    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = &Window> {
        self.writers.values().filter_map(|writer| writer.window.as_ref())
    }
}
