//! Records that become durable only with the bytes of a file.

use super::operation::Ticket;
use crate::inode::Name;
use std::collections::{BTreeMap, VecDeque};
use units::{Ino, Instant, Now};

/// Records from `first_lsn` on become durable only with the bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Replacing {
    pub(in crate::core) first_lsn: u64,
    pub(in crate::core) ino: Ino,
    pub(in crate::core) until: Until,
    pub(in crate::core) since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Until {
    /// A client that has emptied the file closes it, or wants it to be durable.
    Closed,
    /// What was dirty in this epoch is on the device; so much it was.
    Written { epoch: u64, bytes: u64 },
}

/// What is saved anew and is to reach the device before what it replaces is gone.
#[derive(Debug, Default)]
pub(in crate::core) struct Replacements {
    /// By their records.
    pub(in crate::core) waiting: VecDeque<Replacing>,
    /// The bytes of so many of them, from the first on, are on their way to the device.
    pub(in crate::core) begun: usize,
    /// Since when a commit that is due waits for them. Until it goes on, no new one joins them.
    pub(in crate::core) due_since: Option<Instant>,
    /// Operations to try again when it has gone on.
    pub(in crate::core) held_back: Vec<Ticket>,
    /// The name that a file had last, of files that have another one now: what is made there takes their place.
    pub(in crate::core) former: BTreeMap<Ino, Name>,
}

impl Replacements {
    /// The last record that may become durable now.
    pub(in crate::core) fn last_free(&self) -> u64 {
        self.waiting.front().map_or(u64::MAX, |first| first.first_lsn - 1)
    }

    /// A commit that is due has to wait.
    pub(in crate::core) fn commit_waits(&mut self, now: Instant) {
        self.due_since.get_or_insert(now);
    }

    /// It goes on. Returns what was held back meanwhile.
    pub(in crate::core) fn commit_goes_on(&mut self) -> Vec<Ticket> {
        self.due_since = None;
        std::mem::take(&mut self.held_back)
    }

    /// The operations that wait for it to go on.
    pub(in crate::core) fn held_back(&self) -> &[Ticket] {
        &self.held_back
    }

    pub(in crate::core) fn is_commit_due(&self) -> bool {
        self.due_since.is_some()
    }

    /// The kernel has forgotten the file, or it is gone.
    pub(in crate::core) fn forget_name(&mut self, ino: Ino) {
        self.former.remove(&ino);
    }

    /// The file is gone, and with it what waited for the device.
    pub(in crate::core) fn forget_bytes(&mut self, ino: Ino) {
        for one in self.waiting.iter_mut().filter(|one| one.ino == ino) {
            if let Until::Written { bytes, .. } = &mut one.until {
                *bytes = 0;
            }
        }
    }

    pub(in crate::core) fn push(&mut self, first_lsn: u64, ino: Ino, until: Until, now: Now) {
        self.waiting.push_back(Replacing { first_lsn, ino, until, since: now.monotonic });
    }

    pub(in crate::core) fn pop(&mut self) {
        self.waiting.pop_front();
        self.begun = self.begun.saturating_sub(1);
    }

    pub(in crate::core) fn bytes(&self) -> u64 {
        let bytes = |one: &Replacing| match one.until {
            Until::Closed => 0,
            Until::Written { bytes, .. } => bytes,
        };
        self.waiting.iter().map(bytes).sum()
    }

    pub(in crate::core) fn waits_for_close(&self, ino: Ino) -> bool {
        self.waiting.iter().any(|one| one.ino == ino && one.until == Until::Closed)
    }
}
