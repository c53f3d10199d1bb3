//! How facts change: by records, together durable or together lost.
//!
//! **For:** applying records, and refusing changes. **Excludes:** making records durable. **State:** none of its own. **Invariants:** facts
//! change nowhere else; after a failure nothing is written.

use super::state::operation::{Outcome, Throttled};
use super::state::{Core, Space};
use crate::error::{Error, Result};
use crate::journal::MAX_BATCH;
use crate::record::Record;
use units::{DeviceOffset, Now};

impl Core {
    /// Applies records and gives them to the journal: together durable or together lost.
    pub(super) fn transact(&mut self, now: Now, records: &[Record]) -> Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let mut gone = Vec::new();
        let mut lsn = 0;
        for record in records {
            match self.metadata.apply(record, &mut gone) {
                Ok(applied) => lsn = applied,
                Err(contradiction) => {
                    self.fail(&format!("internal contradiction: {contradiction}"));
                    return Err(Error::Corrupt(DeviceOffset(0)));
                }
            }
        }
        self.log.journal.append(records, lsn);
        self.log.commit.record_appended(now.monotonic);
        for run in gone {
            let Space { allocator, leaving, refused, .. } = &mut self.space;
            let last = leaving.give_up(allocator, lsn, run);
            for run in last.into_iter().flat_map(|run| refused.usable(run)).collect::<Vec<_>>() {
                self.space.freed_blocks += run.count;
                self.space.freed.push_back((lsn, run));
            }
        }
        Ok(())
    }

    /// From now on nothing is written: read-only rather than wrong.
    pub(super) fn fail(&mut self, why: &str) {
        if self.status.failure.is_none() {
            tracing::error!("volume turned read-only: {why}");
            self.status.failure = Some(why.to_owned());
            self.space.turn += 1;
            for Throttled { ticket, .. } in std::mem::take(&mut self.waits.throttled) {
                self.finish(ticket, Outcome::Count(Err(Error::Device)));
            }
        }
    }

    /// Refuses changes on a volume that is read-only or failed.
    pub(super) fn check_writable(&self) -> Result<()> {
        match (&self.status.failure, self.status.read_only) {
            _ if self.status.is_lost => Err(Error::Device),
            (Some(_), _) | (None, true) => Err(Error::ReadOnly),
            (None, false) => Ok(()),
        }
    }

    /// True while so much of the log waits for a checkpoint that callers should hold back changes of metadata.
    pub fn under_pressure(&self) -> bool {
        let is_full =
            self.log.journal.used() + self.log.journal.pending_bytes() > self.log.journal.capacity() / 4 * 3;
        self.status.failure.is_none() && (is_full || self.is_held_for_long())
    }

    /// So many records wait for bytes that more should not be made.
    pub(super) fn is_held_for_long(&self) -> bool {
        !self.log.replacements.waiting.is_empty() && self.log.journal.pending_bytes() > MAX_BATCH / 2
    }

    /// Nothing is written any more, or not now.
    pub(super) fn is_still(&self) -> bool {
        self.status.failure.is_some() || self.status.dormant
    }

    /// A write of data has ended: what it wrote wants a flush.
    pub(super) fn data_completed(&mut self) {
        self.log.commit.data_completed();
    }

    /// Nothing can be written any more.
    pub(super) fn has_failed(&self) -> bool {
        self.status.failure.is_some()
    }
}
