//! The least share of the device's time that each class without guarantees gets.
//!
//! **For:** the floors of metadata, best effort and idle work. Time is shared, not bytes: on a device that seeks a
//! reserved bandwidth wastes almost all of it (Povzner et al., *Fahrrad*, 2008). A floor is a server with a bandwidth,
//! as in Abeni and Buttazzo's constant bandwidth server (1998). What its share adds up to gives a class's oldest
//! request first a **claim**, which goes before other work without guarantees. When that was not enough it gives a
//! **turn**, which competes with the real-time deadlines under a deadline of its own.
//! **Excludes:** what the classes get beyond it, in the slack. **State:** per class, since when it was not
//! served, and what its share is a part of. **Invariants:** turns of one class demand at most its share of any time span in which it waits.

use crate::config::Config;
use crate::queue::{Queue, Slot, Waiting};
use crate::request::Class;
use units::{Duration, Instant};

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Floors {
    /// By class, in hundredths of the base; 0: none.
    percent: [u32; 4],
    /// By class, in millionths of the device's time.
    millionths: [u64; 4],
    /// By class: the instant up to which its share was used. In the future when a turn was served early.
    since: [Instant; 4],
}

impl Floors {
    pub(crate) const CLASSES: [Class; 3] = [Class::Metadata, Class::BestEffort, Class::Idle];

    pub(crate) fn new(config: &Config) -> Self {
        let percent =
            [0, config.metadata_floor_percent, config.best_effort_floor_percent, config.idle_floor_percent]
                .map(|percent| percent.min(30));
        let mut floors = Self { percent, millionths: [0; 4], since: [Instant::ZERO; 4] };
        floors.set_base(1_000_000);
        floors
    }

    /// The floors are parts of so many millionths of the device's time.
    pub(crate) fn set_base(&mut self, base: u64) {
        self.millionths = self.percent.map(|percent| u64::from(percent) * base / 100);
    }

    /// The classes have the floors that `others` have.
    pub(crate) fn take_percents(&mut self, others: &Self) {
        self.percent = others.percent;
    }

    /// What all floors take of a million.
    pub(crate) fn total(&self) -> u64 {
        self.millionths.iter().sum()
    }

    /// What all floors take of their base, in hundredths.
    pub(crate) fn total_percent(&self) -> u32 {
        self.percent.iter().sum()
    }

    /// A class that was empty has a request; the device can take it from `start` on.
    pub(crate) fn begins(&mut self, class: Class, start: Instant) {
        let since = &mut self.since[class as usize];
        *since = start.max(*since);
    }

    /// The class was served in the slack, until `end`: what its share added up to is used.
    pub(crate) fn served_in_slack(&mut self, class: Class, end: Instant) {
        let since = &mut self.since[class as usize];
        *since = end.max(*since);
    }

    /// The class was served in its turn, from `start` on, for `cost` nanoseconds: so much of its share is used,
    /// and what it did not demand for too long is lost to it.
    pub(crate) fn served_in_turn(&mut self, class: Class, start: Instant, cost: u64) {
        let spread = self.spread(class, cost);
        let since = &mut self.since[class as usize];
        *since = (*since + spread).max(start.saturating_before(spread));
    }

    /// The time in which the class's share adds up to `cost`.
    fn spread(&self, class: Class, cost: u64) -> Duration {
        let millionths = self.millionths[class as usize].max(1);
        Duration::from_nanos((cost.saturating_mul(1_000_000)).div_ceil(millionths))
    }

    /// Of the classes that wait and have a floor: what their oldest requests may demand as the queue is now.
    pub(crate) fn turns(&self, queue: &Queue) -> Turns {
        Turns(Self::CLASSES.map(|class| {
            let millionths = self.millionths[class as usize];
            let slot = queue.first(class).filter(|_| millionths > 0)?;
            let Waiting { deadline, cost, .. } = *queue.get(slot);
            let (since, spread) = (self.since[class as usize], self.spread(class, cost));
            let claim = (since + spread).max(deadline);
            Some(Turn { class, slot, cost, claim, due: claim + spread, since, millionths })
        }))
    }
}

/// What the floor of a class gives its oldest request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) class: Class,
    pub(crate) slot: Slot,
    /// Nanoseconds.
    pub(crate) cost: u64,
    /// The instant from which it goes before other work without guarantees: when it is overdue and the share has
    /// added up to it.
    pub(crate) claim: Instant,
    /// The instant by which it completes whatever else waits: when its claim was passed over for as long as its share
    /// takes to add up to it again. Among streams that were admitted beside the floors it does not come to that, because
    /// they leave gaps, and claims are met in them; so no frame is late for it.
    pub(crate) due: Instant,
    since: Instant,
    millionths: u64,
}

impl Turn {
    /// Nanoseconds that the class may demand, beyond its share of the time to come, from those whose deadlines
    /// are up to `last`: what its share has added up to by `at`. Not only as much as its oldest request takes: what
    /// one large request leaves of it is worth several small ones.
    pub(crate) fn accrued(&self, at: Instant, last: Instant) -> u64 {
        if self.due > last {
            return 0;
        }
        // In 64 bits, because 128 have to be divided by a loop.
        let waited = at.as_nanos().saturating_sub(self.since.as_nanos());
        let (whole, rest) = (waited / 1_000_000, waited % 1_000_000);
        whole * self.millionths + (rest * self.millionths).div_ceil(1_000_000)
    }
}

/// The turns of all classes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns([Option<Turn>; 3]);

impl Turns {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Turn> {
        self.0.iter().flatten()
    }
}
