//! What an administrator may want to be told of: late requests, refusals, a device that has become slower.
//!
//! **For:** collecting what the scheduler and the books of streams notice, until the filesystem takes it, which knows paths and
//! clients. **Excludes:** words. **State:** what was not taken yet, and what the device was last said to take. **Invariants:** bounded:
//! what comes when there is no room is counted.

use rtsched::{
    Bytes, Direction, Duration, Instant, Lateness, Rejected, Scheduler, ServiceTime, StreamId, StreamSpec,
    Why,
};

/// So many incidents wait to be taken. It bounds memory. An operator's target.
const MOST: usize = 256;
/// A device that takes so much longer than it was last said to is slower: a quarter. Less is within what streams are promised. An
/// operator's target.
const SLOWER: u32 = 4;
/// Speeds are compared at this length: a long request, as players have them. An estimator's window.
const LOOKED_AT: Bytes = Bytes::from_mib(8);

/// Why was a client kept waiting?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// Given back with the answer.
    pub number: u64,
    /// Whose client it is.
    pub stream: StreamId,
    /// From when on it waited...
    pub since: Instant,
    /// ...until when.
    pub until: Instant,
    /// For how much longer than it should have.
    pub by: Duration,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// A promised request was late.
    Late(Lateness),
    /// What a client that was kept waiting waited for, see [`Inquiry`].
    Explained {
        /// The inquiry's.
        number: u64,
        /// The answer.
        lateness: Lateness,
    },
    /// There is no room for a stream, or not for its new rate: it is served as best effort, or keeps the lower one.
    Refused {
        /// Which.
        stream: StreamId,
        /// What it was to be.
        spec: StreamSpec,
        /// Why not.
        rejected: Rejected,
    },
    /// A stream that was promised its time is served as best effort from now on.
    Demoted {
        /// Which.
        stream: StreamId,
        /// What was lacking.
        why: Why,
    },
    /// A stream that was demoted has its promise again.
    Restored {
        /// Which.
        stream: StreamId,
    },
    /// The device has become slower, or as fast as it was.
    Speed {
        /// At what.
        direction: Direction,
        /// What a request of 8 MiB took.
        before: Duration,
        /// What it takes.
        now: Duration,
    },
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Incidents {
    waiting: Vec<Incident>,
    lost: u64,
    /// What reads and writes were last said to take.
    told: Option<[ServiceTime; 2]>,
}

impl Incidents {
    pub(crate) fn add(&mut self, incident: Incident) {
        if self.waiting.len() < MOST {
            self.waiting.push(incident);
        } else {
            self.lost += 1;
        }
    }

    /// Appends what has happened since the last call.
    pub(crate) fn take(&mut self, scheduler: &mut Scheduler, taken: &mut Vec<Incident>) {
        while let Some(lateness) = scheduler.pop_lateness() {
            self.add(Incident::Late(lateness));
        }
        self.compare_speed(scheduler);
        if self.lost > 0 {
            tracing::warn!(count = self.lost, "more happened than could be told");
            self.lost = 0;
        }
        taken.append(&mut self.waiting);
    }

    fn compare_speed(&mut self, scheduler: &Scheduler) {
        const DIRECTIONS: [Direction; 2] = [Direction::Read, Direction::Write];
        let now = DIRECTIONS.map(|direction| scheduler.service_time(direction));
        let told = *self.told.get_or_insert(now);
        if told == now {
            return;
        }
        for (index, direction) in DIRECTIONS.into_iter().enumerate() {
            let (before, after) = (told[index].of(LOOKED_AT), now[index].of(LOOKED_AT));
            let margin = before / SLOWER;
            if after > before + margin || after + margin < before {
                self.add(Incident::Speed { direction, before, now: after });
                if let Some(told) = &mut self.told {
                    told[index] = now[index];
                }
            }
        }
    }
}
