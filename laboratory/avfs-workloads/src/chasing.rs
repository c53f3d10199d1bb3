//! Who plays what is still being recorded.
//!
//! **State:** units that were not whole yet when they were asked for, and when they are asked for again. **Invariants:** a
//! function of the calls; a unit is asked for again when a recorder has made one more.

use std::collections::BTreeMap;
use units::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Chasing {
    /// For how long a unit plays, and is recorded.
    period: Duration,
    /// Units of which a piece lay beyond the end of the file, until when.
    incomplete: BTreeMap<u64, Instant>,
}

impl Chasing {
    pub(crate) fn new(period: Duration) -> Self {
        Self { period, incomplete: BTreeMap::new() }
    }

    pub(crate) fn is_incomplete(&mut self, now: Instant, unit: u64) {
        self.incomplete.insert(unit, now + self.period);
    }

    /// A unit that is to be asked for again, once.
    pub(crate) fn again(&mut self, now: Instant) -> Option<u64> {
        let unit = self.incomplete.iter().find(|(_, at)| **at <= now).map(|(unit, _)| *unit)?;
        self.incomplete.remove(&unit);
        Some(unit)
    }

    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.incomplete.values().min().copied()
    }
}
