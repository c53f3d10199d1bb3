//! How much of a file a client has taken, or given: a client that takes half of it soon takes a frame.
//!
//! **For:** telling frames from files that are only looked at. **State:** one [`ConsumedFraction`] for each open file, until it has
//! told. **Invariants:** a function of the calls.

use crate::cursor::SLOWEST;
use units::Instant;

/// A file that is shorter is no frame: 24 of them a second are less than 13 Mbit/s. An estimator's window.
pub const SHORTEST_FRAME: u64 = 64 << 10;
/// A file that is longer is no frame. A frame of 8192 by 4320 pixels with four channels of 16 bits has 270 MiB. A protocol fact.
pub const LONGEST_FRAME: u64 = 512 << 20;
/// How much a client has taken of a file, or given.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConsumedFraction {
    /// So much.
    pub bytes: u64,
    /// When it began.
    pub since: Option<Instant>,
}

impl ConsumedFraction {
    /// So much more, at this moment.
    pub fn add(&mut self, now: Instant, length: u64) {
        self.bytes = self.bytes.saturating_add(length);
        self.since.get_or_insert(now);
    }

    /// It took no longer than a frame may take.
    pub fn is_quick(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.saturating_since(since) <= SLOWEST)
    }

    /// It is half of a file of this length, and took no longer than a frame may take.
    pub fn is_frame(&self, now: Instant, size: u64) -> bool {
        (SHORTEST_FRAME..=LONGEST_FRAME).contains(&size) && self.bytes >= size / 2 && self.is_quick(now)
    }
}
