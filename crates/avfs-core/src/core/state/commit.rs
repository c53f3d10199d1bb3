//! How far the journal is durable, and which operations wait for it.

use super::operation::Ticket;
use crate::journal::Batch;
use crate::steps::{Step, has};
use units::Instant;

#[derive(Debug)]
pub(in crate::core) struct Commit {
    pub(in crate::core) phase: Phase,
    pub(in crate::core) durable_lsn: u64,
    /// Data writes that completed, and how many of them a completed flush covers.
    pub(in crate::core) data: u64,
    pub(in crate::core) flushed: u64,
    pub(in crate::core) waiters: Vec<Waiter>,
    pub(in crate::core) wanted: bool,
    pub(in crate::core) oldest_pending: Option<Instant>,
    /// The ring is full: nothing is due before the checkpoint that is running has made room.
    pub(in crate::core) blocked: bool,
    pub(in crate::core) count: u64,
}

#[derive(Debug)]
pub(in crate::core) enum Phase {
    Idle,
    /// The flush before the log write.
    Flushing(Option<Batch>),
    Writing {
        last_lsn: u64,
    },
}

#[derive(Debug)]
pub(in crate::core) struct Waiter {
    pub(in crate::core) ticket: Ticket,
    pub(in crate::core) lsn: u64,
    pub(in crate::core) data: u64,
}

impl Commit {
    /// Everything up to `lsn` was read from the device; what is not flushed of it is flushed first.
    pub(in crate::core) fn new(lsn: u64) -> Self {
        Self {
            phase: Phase::Idle,
            durable_lsn: lsn,
            data: u64::from(has(Step::RecoveredIsFlushed)),
            flushed: 0,
            waiters: Vec::new(),
            wanted: true,
            oldest_pending: None,
            blocked: false,
            count: 0,
        }
    }

    pub(in crate::core) fn durable_lsn(&self) -> u64 {
        self.durable_lsn
    }

    pub(in crate::core) fn record_appended(&mut self, now: Instant) {
        self.oldest_pending.get_or_insert(now);
    }

    /// A client needs what is pending to become durable.
    pub(in crate::core) fn want(&mut self) {
        self.wanted = true;
    }

    /// There is room in the ring again.
    pub(in crate::core) fn unblock(&mut self) {
        self.blocked = false;
    }

    pub(in crate::core) fn data_completed(&mut self) {
        self.data += 1;
    }

    /// The operations that wait for a commit.
    pub(in crate::core) fn tickets(&self) -> impl Iterator<Item = &Ticket> {
        self.waiters.iter().map(|waiter| &waiter.ticket)
    }

    /// True when no commit is under way.
    pub(in crate::core) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    /// True when everything up to `lsn`, and all data whose write has completed, is durable.
    pub(in crate::core) fn covers(&self, lsn: u64, data: u64) -> bool {
        self.durable_lsn >= lsn && self.flushed >= data
    }
}
