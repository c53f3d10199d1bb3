//! What goes into a modelled device and what comes out, and the arithmetic that all models share.
//!
//! **For:** commands, completions, the account of a device's time. **Excludes:** when a command completes. **State:** none.

use super::spec::Phase;
use rtsched::Direction;
use units::{Bytes, DeviceOffset, Duration, Instant};

/// One command for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The caller's name for it, unique among the commands at the device.
    pub tag: u64,
    /// On whose account its time goes in [`Usage::busy`]: 0..[`OWNERS`].
    pub owner: usize,
    /// What to do.
    pub direction: Direction,
    /// First byte. What lies behind the device's end is served as if at its end.
    pub offset: DeviceOffset,
    /// Length; zero for a flush.
    pub length: Bytes,
}

/// A command's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which command.
    pub tag: u64,
    /// When.
    pub at: Instant,
}

/// Accounts in [`Usage::busy`].
pub const OWNERS: usize = 8;

/// Where the device's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time of the arm by the owner of the command it was spent on; writes count when they are written back. Of flash:
    /// of the link or of the channels on average, whichever was busier, when the command is complete.
    pub busy: [Duration; OWNERS],
    /// Times the arm went elsewhere; zero for flash.
    pub seeks: u64,
    /// Bytes read.
    pub read: Bytes,
    /// Bytes written, where there is a cache: written back.
    pub written: Bytes,
}

/// The factors that hold at an instant.
#[derive(Clone, Debug)]
pub(super) struct Phases(Vec<(Instant, f64, f64)>);

impl Phases {
    pub(super) fn new(phases: &[Phase]) -> Self {
        let at = |phase: &Phase| Instant::ZERO + Duration::from_secs_f64(phase.at_s);
        Self(phases.iter().map(|phase| (at(phase), phase.access_factor, phase.transfer_factor)).collect())
    }

    /// For access and for transfer.
    pub(super) fn factors(&self, now: Instant) -> (f64, f64) {
        let current = self.0.iter().rev().find(|(at, ..)| *at <= now);
        current.map_or((1.0, 1.0), |(_, access, transfer)| (*access, *transfer))
    }
}

/// Milliseconds, zero or more, as a duration.
pub(super) fn millis(value: f64) -> Duration {
    Duration::from_nanos((value * 1e6) as u64)
}

/// What `length` takes at a rate in MB/s, milliseconds.
pub(super) fn transfer_ms(length: Bytes, mb_per_s: f64) -> f64 {
    length.as_u64() as f64 / (mb_per_s * 1e3)
}
