//! What is saved anew reaches the device before what it replaces is gone.
//!
//! A file that takes another one's place (by rename, by exchange, at a name the other one had) and a file that is emptied to be
//! written again have their bytes in memory, while the change that makes the earlier content unreachable is a record. The log
//! is one sequence, so that record, and all behind it, wait until those bytes are on the device, and become durable in one
//! batch with the records of where they lie.
//!
//! The bytes are hastened as an fsync hastens them, but not before the commit needs them: what is saved again, or removed,
//! before that is never written.
//!
//! **Invariants:** no batch ends between the first record of a [`Replacing`] and the records of its bytes. What an fsync of
//! another file may wait for is bounded: at most [`SAVED_AT_ONCE`] bytes are held for at once, no new wait begins while
//! a commit is due, and a file that stays open after it was emptied is waited for only so long.

use super::{Core, Operation, Progress, Stage, Ticket, Waiting};
use crate::error::{Error, Result};
use crate::inode::Name;
use crate::journal::MAX_BATCH;
use crate::types::FileKind;
use avfs_io::pool::MAX_BUFFER;
use std::collections::{BTreeMap, VecDeque};
use units::{Ino, Instant, Now};

use super::writeback::{DIRTY_AGE, WRITTEN_WITHIN};

/// So many requests of the largest size keep any device busy; more than their bytes never stand between another file's
/// fsync and its answer.
const SAVED_AT_ONCE: u64 = 4 * MAX_BUFFER as u64;

/// Records from `first_lsn` on become durable only with the bytes of a file.
#[derive(Clone, Copy, Debug)]
struct Replacing {
    first_lsn: u64,
    ino: Ino,
    until: Until,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// A client that has emptied the file closes it, or wants it to be durable.
    Closed,
    /// What was dirty in this epoch is on the device; so much it was.
    Written { epoch: u64, bytes: u64 },
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Replacements {
    /// By their records.
    waiting: VecDeque<Replacing>,
    /// The bytes of so many of them, from the first on, are on their way to the device.
    begun: usize,
    /// Since when a commit that is due waits for them. Until it goes on, no new one joins them.
    due_since: Option<Instant>,
    /// Operations to try again when it has gone on.
    held_back: Vec<Ticket>,
    /// The name that a file had last, of files that have another one now: what is made there takes their place.
    former: BTreeMap<Ino, Name>,
}

impl Replacements {
    /// The last record that may become durable now.
    pub(super) fn last_free(&self) -> u64 {
        self.waiting.front().map_or(u64::MAX, |first| first.first_lsn - 1)
    }

    /// A commit that is due has to wait.
    pub(super) fn commit_waits(&mut self, now: Instant) {
        self.due_since.get_or_insert(now);
    }

    /// It goes on. Returns what was held back meanwhile.
    pub(super) fn commit_goes_on(&mut self) -> Vec<Ticket> {
        self.due_since = None;
        std::mem::take(&mut self.held_back)
    }

    /// Who waits for it to go on.
    pub(super) fn held_back(&self) -> &[Ticket] {
        &self.held_back
    }

    pub(super) fn is_commit_due(&self) -> bool {
        self.due_since.is_some()
    }

    /// The kernel has forgotten the file, or it is gone.
    pub(super) fn forget_name(&mut self, ino: Ino) {
        self.former.remove(&ino);
    }

    /// The file is gone, and with it what waited for the device.
    pub(super) fn forget_bytes(&mut self, ino: Ino) {
        for one in self.waiting.iter_mut().filter(|one| one.ino == ino) {
            if let Until::Written { bytes, .. } = &mut one.until {
                *bytes = 0;
            }
        }
    }

    fn push(&mut self, first_lsn: u64, ino: Ino, until: Until, now: Now) {
        self.waiting.push_back(Replacing { first_lsn, ino, until, since: now.monotonic });
    }

    fn pop(&mut self) {
        self.waiting.pop_front();
        self.begun = self.begun.saturating_sub(1);
    }

    fn bytes(&self) -> u64 {
        let bytes = |one: &Replacing| match one.until {
            Until::Closed => 0,
            Until::Written { bytes, .. } => bytes,
        };
        self.waiting.iter().map(bytes).sum()
    }

    pub(super) fn waits_for_close(&self, ino: Ino) -> bool {
        self.waiting.iter().any(|one| one.ino == ino && one.until == Until::Closed)
    }
}

impl Core {
    /// When the first of them has been waited for long enough.
    pub(super) fn replacing_due(&self) -> Instant {
        match self.replacements.waiting.front() {
            Some(Replacing { until: Until::Closed, since, .. }) => {
                let patience = self.replacements.due_since.map(|due| due + WRITTEN_WITHIN);
                // A client that saves closes the file at once; one that waits for space itself does not before a commit gives it.
                let way = self.is_commit_needed().then(|| *since + WRITTEN_WITHIN);
                [patience, way].into_iter().flatten().fold(*since + DIRTY_AGE, Instant::min)
            }
            _ => Instant::FAR_FUTURE,
        }
    }

    /// True while a commit waits for a client to close a file that it has emptied. It does not wait for long.
    pub fn waits_for_a_close(&self) -> bool {
        self.replacements.is_commit_due() && self.replacing_due() < Instant::FAR_FUTURE
    }

    /// So many records wait for bytes that more should not be made.
    pub(super) fn is_held_for_long(&self) -> bool {
        !self.replacements.waiting.is_empty() && self.journal.pending_bytes() > MAX_BATCH / 2
    }

    /// Bytes of a file that are not on the device.
    fn unwritten(&self, ino: Ino) -> u64 {
        let dirty = self.cache.dirty_of(ino, 0..u64::MAX).filter_map(|(_, id)| self.cache.get(id));
        let writing = self.files.get(&ino).map_or(0, |file| file.writing);
        writing + dirty.map(|block| block.dirty.total()).sum::<u64>()
    }

    /// A file does not go by this name any more.
    pub(super) fn lost_name(&mut self, ino: Ino, name: Name) {
        let is_file = self.metadata.get(ino).is_some_and(|inode| inode.kind == FileKind::Regular);
        if is_file && self.lookups.contains_key(&ino) {
            self.replacements.former.insert(ino, name);
        }
    }

    /// Before a record that makes `ino` stand for what another file's bytes stood for: the epoch of what is not on the
    /// device. Give it to [`wait_for_bytes`](Self::wait_for_bytes) with that record.
    pub(super) fn begin_replacing(&mut self, now: Now, ino: Ino) -> Option<u64> {
        if self.unwritten(ino) > 0 {
            return self.end_epoch(ino);
        }
        if self.files.get(&ino).is_some_and(|file| file.touched.is_some()) {
            self.record_file(now, ino);
        }
        None
    }

    /// The epoch, unless all bytes of it are on the device; then their records are made. What was not started is started.
    fn replacing_from(&mut self, now: Now, ino: Ino, epoch: u64) -> Option<u64> {
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
        self.replacements.push(first_lsn, ino, until, now);
    }

    /// A file is about to be emptied whose earlier content is on the device, or was replaced there by nothing yet.
    pub(super) fn is_worth_keeping(&self, ino: Ino) -> bool {
        let file = self.files.get(&ino);
        let recorded = self.metadata.get(ino).is_some_and(|inode| inode.size > 0);
        file.is_some_and(|file| file.writers > 0)
            && (recorded || self.replacements.waiting.iter().any(|one| one.ino == ino))
    }

    /// Records from `first_lsn` on empty a file that is open to be written: they wait for what it is filled with.
    pub(super) fn hold_emptied(&mut self, now: Now, first_lsn: u64, ino: Ino) {
        self.replacements.push(first_lsn, ino, Until::Closed, now);
    }

    /// Parks an operation until the commit that is due has gone on.
    pub(super) fn wait_for_due_commit(&mut self, ticket: Ticket) {
        self.replacements.held_back.push(ticket);
    }

    /// A client that may have emptied the file has written what it wanted to write.
    pub(super) fn filled(&mut self, now: Now, ino: Ino) {
        if !self.replacements.waits_for_close(ino) {
            return;
        }
        let Some(epoch) = self.end_epoch(ino) else { return };
        let until = Until::Written { epoch, bytes: self.unwritten(ino) };
        let replacements = &mut self.replacements;
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
        let files: Vec<Ino> = self.replacements.waiting.iter().filter_map(closed).collect();
        files.into_iter().for_each(|ino| self.filled(now, ino));
    }

    /// More of a file that was emptied, and is not closed, waits for the device than another file's fsync should wait for.
    pub(super) fn fills_at_length(&self, ino: Ino) -> bool {
        self.replacements.waits_for_close(ino) && self.unwritten(ino) > SAVED_AT_ONCE
    }

    /// When the bytes have to be on their way, so that the commit that is coming need not wait for them.
    pub(super) fn saves_due(&self, commit: Instant) -> Instant {
        match self.replacements.begun < self.replacements.waiting.len() {
            true => commit.saturating_before(WRITTEN_WITHIN),
            false => Instant::FAR_FUTURE,
        }
    }

    /// A commit waits for what is held, or will before its bytes have reached the device, or others wait for a commit.
    fn is_commit_near(&self, now: Now) -> bool {
        self.replacements.is_commit_due()
            || self.next_commit().is_some_and(|commit| self.saves_due(commit) <= now.monotonic)
            || self.is_commit_needed()
    }

    /// What waits goes on when a commit has given it space, or the log room.
    fn is_commit_needed(&self) -> bool {
        self.is_space_awaited() || self.under_pressure()
    }

    /// Starts to write what is held for, a part in each turn. What a client has yet to close is not begun.
    fn write_replacements(&mut self, now: Now) {
        while let Some(&Replacing { ino, until, .. }) = self.replacements.waiting.get(self.replacements.begun)
        {
            if matches!(until, Until::Written { .. }) {
                if !self.take_steps(2) {
                    return;
                }
                self.hasten_file(now, ino);
            }
            self.replacements.begun += 1;
        }
    }

    /// Frees the records whose bytes are on the device, with those of where they lie.
    pub(super) fn settle_replacing(&mut self, now: Now) {
        if self.failure.is_some() {
            return;
        }
        if self.is_commit_near(now) {
            self.write_replacements(now);
        }
        while let Some(first) = self.replacements.waiting.front() {
            let (first_lsn, ino) = (first.first_lsn, first.ino);
            match first.until {
                Until::Closed => {
                    if self.replacing_due() > now.monotonic {
                        return;
                    }
                    // What there is of it goes with the record that has emptied it.
                    self.filled(now, ino);
                    if self.replacements.waits_for_close(ino) {
                        self.replacements.pop();
                    }
                }
                Until::Written { .. } if self.replacements.begun == 0 => return,
                Until::Written { epoch, .. } => {
                    if !self.is_written(now, ino, epoch) {
                        return;
                    }
                    self.record_file(now, ino);
                    self.journal.bind(first_lsn, self.metadata.lsn());
                    self.replacements.pop();
                }
            }
        }
    }

    /// A rename or a removal: at once, or when no more of what takes another one's place waits for the device than an fsync of
    /// another file may be kept waiting by.
    pub(super) fn try_change_of_names(
        &mut self,
        now: Now,
        ticket: Ticket,
        waiting: &mut Waiting,
    ) -> Option<Result<()>> {
        let replacing = match &waiting.operation {
            Operation::Rename { parent, name, new_parent, new_name, .. } => {
                self.replaces_by_rename(*parent, name, *new_parent, new_name)
            }
            Operation::Unlink { parent, name } => self.replaces_by_removal(*parent, name),
            _ => None,
        };
        if let Some(ino) = replacing.filter(|_| self.failure.is_none()) {
            let began = match &waiting.stage {
                Stage::Data { epochs } => epochs.get(&ino).copied(),
                _ => None,
            };
            let epoch = began.or_else(|| self.end_epoch(ino));
            let is_room = !self.replacements.is_commit_due()
                && self.replacements.bytes() + self.unwritten(ino) <= SAVED_AT_ONCE;
            if !is_room {
                self.write_replacements(now);
            }
            if let Some(epoch) = epoch.filter(|_| !is_room)
                && self.replacing_from(now, ino, epoch).is_some()
            {
                waiting.stage = Stage::Data { epochs: [(ino, epoch)].into() };
                self.wait_to_be_written(ino, ticket);
                return None;
            }
        }
        let result = match &waiting.operation {
            Operation::Rename { caller, parent, name, new_parent, new_name, flags } => {
                self.rename(now, *caller, *parent, name, *new_parent, new_name, *flags)
            }
            Operation::Unlink { parent, name } => self.unlink(now, *parent, name),
            _ => Ok(()),
        };
        match result {
            Err(Error::NoSpace) if std::mem::take(&mut self.lacks_space) => {
                match self.wait_for_space(now, ticket) {
                    Progress::Ready(result) => Some(result),
                    Progress::Wait => None,
                }
            }
            result => Some(result),
        }
    }

    /// The file that takes another one's place, if one does.
    fn replaces_by_rename(&self, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8]) -> Option<Ino> {
        let source = self.child(parent, name).ok()?;
        let target = self.child(new_parent, new_name).ok()?;
        (source != target && self.unwritten(source) > 0).then_some(source)
    }

    fn replaces_by_removal(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        self.successor(self.child(parent, name).ok()?).filter(|&ino| self.unwritten(ino) > 0)
    }

    /// When a file loses its last name: what stands where it stood before, if that is another file.
    pub(super) fn successor(&self, ino: Ino) -> Option<Ino> {
        let is_last = self.metadata.get(ino).is_some_and(|inode| inode.names.len() == 1);
        let former = self.replacements.former.get(&ino).filter(|_| is_last)?;
        self.child(former.parent, &former.name).ok().filter(|&successor| successor != ino)
    }
}
