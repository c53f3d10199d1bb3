//! The monotonic clock, as the laboratory's instants.

use std::time;
use units::{Duration, Instant};

/// Counts from the moment it was made; copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock(time::Instant);

impl Clock {
    /// A clock that shows zero now.
    pub fn start() -> Self {
        Self(time::Instant::now())
    }

    /// What it shows.
    pub fn now(self) -> Instant {
        Instant::ZERO + self.0.elapsed()
    }

    /// The system's name for an instant of this clock; `None` where it has none.
    pub fn system(self, at: Instant) -> Option<time::Instant> {
        self.0.checked_add(Duration::from_nanos(at.as_nanos()))
    }
}
