//! The least share of the device's time that each class without guarantees gets.
//!
//! **For:** the floors of metadata, best effort and idle work. Time is shared, not bytes: on a device that seeks
//! a reserved bandwidth wastes almost all of it (Povzner et al., *Fahrrad*, 2008). A floor is a server with a
//! bandwidth, as in Abeni and Buttazzo's constant bandwidth server (1998): the class's oldest request competes
//! with the real-time deadlines under a deadline of its own, its **turn**, that keeps it to its share.
//! **Excludes:** what the classes get beyond it, in the slack. **State:** per class, since when it was not
//! served. **Invariants:** turns of one class demand at most its share of any time span in which it waits.

use crate::queue::{Queue, Slot, Waiting};
use crate::request::Class;
use units::{Duration, Instant};

/// See the module.
#[derive(Debug)]
pub(crate) struct Floors {
    /// By class; 0: none.
    permille: [u32; 4],
    /// By class: the end of its last service, or the arrival that ended its emptiness.
    since: [Instant; 4],
}

impl Floors {
    pub(crate) const CLASSES: [Class; 3] = [Class::Metadata, Class::BestEffort, Class::Idle];

    pub(crate) fn new(metadata_percent: u32, best_effort_percent: u32, idle_percent: u32) -> Self {
        let permille =
            [0, metadata_percent, best_effort_percent, idle_percent].map(|percent| percent.min(30) * 10);
        Self { permille, since: [Instant::ZERO; 4] }
    }

    /// What all floors take of a thousand.
    pub(crate) fn total_permille(&self) -> u32 {
        self.permille.iter().sum()
    }

    /// A class that was empty has a request from now on.
    pub(crate) fn begins(&mut self, class: Class, now: Instant) {
        let since = &mut self.since[class as usize];
        *since = now.max(*since);
    }

    /// A command for this class holds the device until `end`.
    pub(crate) fn served(&mut self, class: Class, end: Instant) {
        self.since[class as usize] = end;
    }

    /// The instant by which the class's oldest request completes whatever else waits, and that request: the
    /// request's own deadline, but no earlier than the share allows. `None`: nothing waits, or no floor is set.
    pub(crate) fn turn(&self, class: Class, queue: &Queue) -> Option<(Instant, Slot)> {
        let permille = self.permille[class as usize];
        let oldest = queue.first(class).filter(|_| permille > 0)?;
        let Waiting { deadline, cost, .. } = queue.get(oldest);
        let spread = Duration::from_nanos(cost.saturating_mul(1000) / u64::from(permille));
        Some(((self.since[class as usize] + spread).max(*deadline), oldest))
    }

    /// Nanoseconds that the class's share has added up to without being served, at most its oldest request: what
    /// it may demand beyond its share of the time to come.
    pub(crate) fn accrued(&self, class: Class, queue: &Queue, at: Instant) -> u64 {
        let Some(oldest) = queue.first(class) else { return 0 };
        let waited = at.saturating_since(self.since[class as usize]).as_nanos();
        let share = waited * u128::from(self.permille[class as usize]) / 1000;
        queue.get(oldest).cost.min(u64::try_from(share).unwrap_or(u64::MAX))
    }
}
