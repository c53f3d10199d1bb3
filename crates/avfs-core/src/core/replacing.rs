//! What is saved anew reaches the device before what it replaces is gone.
//!
//! A file that takes another one's place (by rename, by exchange, at a name the other one had) and a file that is emptied to be
//! written again have their bytes in memory, while the change that makes the earlier content unreachable is a record. The log
//! is one sequence, so that record, and all behind it, wait until those bytes are on the device, and become durable in one
//! batch with the records of where they lie.
//!
//! The bytes are expedited as an fsync expedites them, but not before the commit needs them: what is saved again, or removed,
//! before that is never written.
//!
//! **Invariants:** no batch ends between the first record of a [`Replacing`] and the records of its bytes. What an fsync of another
//! file may wait for is bounded. At most [`SAVED_AT_ONCE`] bytes are held for at once. No new wait begins while a commit is due. A
//! file that stays open after it was emptied is waited for only so long.

use super::state::operation::Ticket;
use super::state::replacements::{Replacing, Until};
use super::state::{Core, DIRTY_AGE, WRITTEN_WITHIN};
use crate::inode::Name;
use crate::types::FileKind;
use avfs_io::pool::MAX_BUFFER;
use units::{Duration, Ino, Instant, Now};

/// So many requests of the largest size keep any device busy. No more bytes ever stand between another file's fsync and its answer.
/// An operator's target.
pub(super) const SAVED_AT_ONCE: u64 = 4 * MAX_BUFFER as u64;

impl Core {
    /// When the first of them has been waited for long enough.
    pub(super) fn replacing_due(&self) -> Instant {
        match self.log.replacements.waiting.front() {
            Some(Replacing { until: Until::Closed, since, .. }) => {
                let patience = self.log.replacements.due_since.map(|due| due + WRITTEN_WITHIN);
                // A client that saves closes the file at once; one that waits for space itself does not before a commit gives it.
                let way = self.is_commit_needed().then(|| *since + WRITTEN_WITHIN);
                [patience, way].into_iter().flatten().fold(*since + DIRTY_AGE, Instant::min)
            }
            _ => Instant::FAR_FUTURE,
        }
    }

    /// True while a commit waits for a client to close a file that it has emptied. It does not wait for long.
    pub fn waits_for_a_close(&self) -> bool {
        self.log.replacements.is_commit_due() && self.replacing_due() < Instant::FAR_FUTURE
    }

    /// Bytes of a file that are not on the device.
    pub(super) fn unwritten(&self, ino: Ino) -> u64 {
        let dirty = self.data.cache.dirty_of(ino, 0..u64::MAX).filter_map(|(_, id)| self.data.cache.get(id));
        let writing = self.data.files.get(&ino).map_or(0, |file| file.writing);
        writing + dirty.map(|block| block.dirty.total()).sum::<u64>()
    }

    /// A file does not go by this name any more.
    pub(super) fn lost_name(&mut self, ino: Ino, name: Name) {
        let is_file = self.metadata.get(ino).is_some_and(|inode| inode.kind == FileKind::Regular);
        if is_file && self.inodes.lookups.contains_key(&ino) {
            self.log.replacements.former.insert(ino, name);
        }
    }

    /// Before a record that makes `ino` stand for what another file's bytes stood for: the epoch of what is not on the
    /// device. Give it to [`wait_for_bytes`](Self::wait_for_bytes) with that record.
    pub(super) fn begin_replacing(&mut self, now: Now, ino: Ino) -> Option<u64> {
        if self.unwritten(ino) > 0 {
            return self.end_epoch(ino);
        }
        if self.data.files.get(&ino).is_some_and(|file| file.touched.is_some()) {
            self.record_file(now, ino);
        }
        None
    }

    /// The epoch, unless all bytes of it are on the device; then their records are made. What was not started is started.
    pub(super) fn replacing_from(&mut self, now: Now, ino: Ino, epoch: u64) -> Option<u64> {
        if !self.is_written(now, ino, epoch) {
            return Some(epoch);
        }
        self.record_file(now, ino);
        None
    }

    /// Records from `first_lsn` on wait for these bytes of the file.
    pub(super) fn wait_for_bytes(&mut self, now: Now, first_lsn: u64, ino: Ino, epoch: Option<u64>) {
        let Some(epoch) = epoch else { return };
        let until = Until::Written { epoch, bytes: self.unwritten(ino) };
        self.log.replacements.push(first_lsn, ino, until, now);
    }

    /// A file is about to be emptied whose earlier content is on the device, or was replaced there by nothing yet.
    pub(super) fn is_worth_keeping(&self, ino: Ino) -> bool {
        let file = self.data.files.get(&ino);
        let recorded = self.metadata.get(ino).is_some_and(|inode| inode.size > 0);
        file.is_some_and(|file| file.writers > 0)
            && (recorded || self.log.replacements.waiting.iter().any(|one| one.ino == ino))
    }

    /// Records from `first_lsn` on empty a file that is open to be written: they wait for what it is filled with.
    pub(super) fn hold_emptied(&mut self, now: Now, first_lsn: u64, ino: Ino) {
        self.log.replacements.push(first_lsn, ino, Until::Closed, now);
    }

    /// Parks an operation until the commit that is due has gone on.
    pub(super) fn wait_for_due_commit(&mut self, ticket: Ticket) {
        self.log.replacements.held_back.push(ticket);
    }

    /// A client that may have emptied the file has written what it wanted to write.
    pub(super) fn filled(&mut self, now: Now, ino: Ino) {
        if !self.log.replacements.waits_for_close(ino) {
            return;
        }
        let Some(epoch) = self.end_epoch(ino) else { return };
        let until = Until::Written { epoch, bytes: self.unwritten(ino) };
        let replacements = &mut self.log.replacements;
        for (index, one) in replacements.waiting.iter_mut().enumerate() {
            if one.ino == ino && one.until == Until::Closed {
                one.until = until;
                replacements.begun = replacements.begun.min(index);
            }
        }
        if self.is_commit_near(now) {
            self.write_replacements(now);
        }
    }

    /// As [`filled`](Self::filled), of every file.
    pub(super) fn all_filled(&mut self, now: Now) {
        let closed = |one: &Replacing| (one.until == Until::Closed).then_some(one.ino);
        let files: Vec<Ino> = self.log.replacements.waiting.iter().filter_map(closed).collect();
        files.into_iter().for_each(|ino| self.filled(now, ino));
    }

    /// More of a file that was emptied, and is not closed, waits for the device than another file's fsync should wait for.
    pub(super) fn fills_at_length(&self, ino: Ino) -> bool {
        self.log.replacements.waits_for_close(ino) && self.unwritten(ino) > SAVED_AT_ONCE
    }

    /// When the bytes have to be on their way, so that the commit that is coming need not wait for them.
    pub(super) fn saves_due(&self, commit: Instant) -> Instant {
        match self.log.replacements.begun < self.log.replacements.waiting.len() {
            true => commit.saturating_before(WRITTEN_WITHIN),
            false => Instant::FAR_FUTURE,
        }
    }

    /// A commit waits for what is held, or will before its bytes have reached the device, or others wait for a commit.
    fn is_commit_near(&self, now: Now) -> bool {
        self.log.replacements.is_commit_due()
            || self.next_commit().is_some_and(|commit| self.saves_due(commit) <= now.monotonic)
            || self.is_commit_needed()
    }

    /// What waits goes on when a commit has given it space, or the log room.
    fn is_commit_needed(&self) -> bool {
        self.is_space_awaited() || self.under_pressure()
    }

    /// Starts to write what is held for, a part in each turn. What a client has yet to close is not begun.
    pub(super) fn write_replacements(&mut self, now: Now) {
        while let Some(&Replacing { ino, until, .. }) =
            self.log.replacements.waiting.get(self.log.replacements.begun)
        {
            if matches!(until, Until::Written { .. }) {
                if !self.take_steps(2) {
                    return;
                }
                self.expedite_file(now, ino);
            }
            self.log.replacements.begun += 1;
        }
    }

    /// Frees the records whose bytes are on the device, with those of where they lie.
    pub(super) fn settle_replacing(&mut self, now: Now) {
        if self.status.failure.is_some() {
            return;
        }
        if self.is_commit_near(now) {
            self.write_replacements(now);
        }
        while let Some(first) = self.log.replacements.waiting.front() {
            let (first_lsn, ino) = (first.first_lsn, first.ino);
            match first.until {
                Until::Closed => {
                    if self.replacing_due() > now.monotonic {
                        return;
                    }
                    // What there is of it goes with the record that has emptied it.
                    self.filled(now, ino);
                    if self.log.replacements.waits_for_close(ino) {
                        self.log.replacements.pop();
                    }
                }
                Until::Written { .. } if self.log.replacements.begun == 0 => return,
                Until::Written { epoch, .. } => {
                    if !self.is_written(now, ino, epoch) {
                        return;
                    }
                    self.record_file(now, ino);
                    self.log.journal.bind(first_lsn, self.metadata.lsn());
                    self.log.replacements.pop();
                }
            }
        }
    }

    /// When a file loses its last name: what stands where it stood before, if that is another file.
    pub(super) fn successor(&self, ino: Ino) -> Option<Ino> {
        let is_last = self.metadata.get(ino).is_some_and(|inode| inode.names.len() == 1);
        let former = self.log.replacements.former.get(&ino).filter(|_| is_last)?;
        self.child(former.parent, &former.name).ok().filter(|&successor| successor != ino)
    }

    /// When what is pending is committed at the latest.
    pub(super) fn next_commit(&self) -> Option<Instant> {
        self.log.commit.oldest_pending.map(|oldest| oldest + self.commit_age())
    }

    pub(super) fn commit_age(&self) -> Duration {
        self.options.config.journal.commit_age
    }
}
