//! Replies that the kernel did not take.

use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many replies of a connection its clients did not get, and why.
#[derive(Debug, Default)]
pub struct Refusals {
    late: AtomicU64,
    refused: AtomicU64,
}

impl Refusals {
    /// Replies that nothing waited for: the connection was aborted, or the request given up.
    pub fn of_late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// Replies that the kernel refused, an error of this side or of its memory. Their clients were answered EIO, if anything.
    pub fn of_refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// With the end of a connection there can be as many as it has requests: told once.
    pub(crate) fn late(&self, error: Errno) {
        if self.late.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::info!(%error, "nothing waits for a reply any more, nor perhaps for others");
        }
    }

    /// Told at the first, second, fourth, eighth ... `is_ended`: the client was told something.
    pub(crate) fn refused(&self, unique: u64, error: Errno, is_ended: bool) {
        let count = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        if !is_ended {
            tracing::error!(%error, unique, count, "the kernel refuses a reply and an error in its place: its client waits");
        } else if count.is_power_of_two() {
            tracing::error!(%error, unique, count, "the kernel refuses a reply");
        }
    }
}
