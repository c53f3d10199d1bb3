//! When the journal goes to the device, and which operations waited for it.
//!
//! One commit at a time: flush for data whose mapping is in the batch, one write of the batch that is durable when it
//! completes, answers. While it runs, the next batch grows: the slower the device, the more is committed at once.

use super::state::Core;
use super::state::commit::{Phase, Waiter};
use super::state::operation::Ticket;
use super::state::outbox::Purpose;
use crate::journal::Batch;
use crate::steps::{Step, has};
use avfs_io::{IoError, IoOperation};
use rtsched::Class;
use smallvec::SmallVec;
use units::{DeviceOffset, Duration, Instant, Now};

/// So much pending is committed although no client waits for it. It bounds memory. An operator's target.
const LARGE_BATCH: u64 = 1 << 20;

impl Core {
    pub(super) fn commit_due(&self) -> Instant {
        match (&self.log.commit.phase, self.next_commit()) {
            (Phase::Idle, _) if self.log.replacements.is_commit_due() && !self.log.commit.blocked => {
                self.replacing_due()
            }
            (Phase::Idle, Some(commit)) if self.status.failure.is_none() && !self.log.commit.blocked => {
                commit.min(self.replacing_due()).min(self.saves_due(commit))
            }
            _ => Instant::FAR_FUTURE,
        }
    }

    pub(super) fn pump_commit(&mut self, now: Now) {
        if !matches!(self.log.commit.phase, Phase::Idle) {
            return;
        }
        let due = self.log.commit.wanted
            || !self.log.commit.waiters.is_empty()
            || self.log.journal.pending_bytes() >= LARGE_BATCH
            || self.log.replacements.is_commit_due()
            || self.next_commit().is_some_and(|commit| commit <= now.monotonic);
        if !due {
            return;
        }
        if self.log.journal.is_held(self.log.replacements.last_free()) {
            self.log.replacements.commit_waits(now.monotonic);
            // Some of the bytes may be on the device, or gone with their file; the others are begun.
            self.settle_replacing(now);
        }
        let last = self.log.replacements.last_free();
        let is_held = self.log.journal.is_held(last);
        if is_held {
            let durable = self.log.commit.durable_lsn;
            if !self.log.commit.waiters.iter().any(|waiter| waiter.lsn <= durable) {
                return;
            }
        }
        let kept = if self.checkpoint_waits_for_log() { 0 } else { self.log.journal.kept_for_checkpoints() };
        let batch = if is_held { None } else { self.log.journal.seal(last, kept) };
        self.log.commit.blocked = batch.is_none() && !self.log.journal.is_empty() && !is_held;
        if self.log.commit.blocked {
            // The ring is full: the checkpoint that is running or starts now makes room.
            self.start_checkpoint(now);
            return;
        }
        if !is_held {
            // Behind the batch: what was held back until now may have to wait for bytes of its own.
            self.waits.ready.extend(self.log.replacements.commit_goes_on());
        }
        self.log.commit.wanted = is_held;
        self.log.commit.oldest_pending = (!self.log.journal.is_empty()).then_some(now.monotonic);
        if !has(Step::DataFlushedBeforeLog) {
            self.log.commit.flushed = self.log.commit.data;
        }
        if self.log.commit.flushed < self.log.commit.data {
            let data = self.log.commit.data;
            self.log.commit.phase = Phase::Flushing(batch);
            let deadline = self.commit_deadline(now);
            self.request(
                IoOperation::Flush,
                DeviceOffset(0),
                SmallVec::new(),
                Class::Metadata,
                None,
                deadline,
                Purpose::FlushData { data },
                None,
            );
        } else if let Some(batch) = batch {
            self.write_batch(now, batch);
        } else {
            self.finish_waiters();
        }
    }

    /// Commits that a client waits for have the metadata latency; others only an orderly place.
    fn commit_deadline(&self, now: Now) -> Option<Instant> {
        self.log.commit.waiters.is_empty().then(|| now.monotonic + Duration::from_secs(1))
    }

    pub(super) fn data_flushed(&mut self, now: Now, data: u64, result: Result<(), IoError>) {
        let phase = std::mem::replace(&mut self.log.commit.phase, Phase::Idle);
        if let Err(error) = result {
            return self.fail(&format!("flush: {error}"));
        }
        self.log.commit.flushed =
            if has(Step::FlushCoversWhatCompletedBefore) { data } else { self.log.commit.data };
        match phase {
            Phase::Flushing(Some(batch)) => self.write_batch(now, batch),
            _ => self.finish_waiters(),
        }
    }

    fn write_batch(&mut self, now: Now, batch: Batch) {
        let Some(segments) = self.system_segments(&batch.bytes) else {
            return self.fail("no memory for a log batch");
        };
        self.log.commit.phase = Phase::Writing { last_lsn: batch.last_lsn };
        if !has(Step::BatchAwaited) {
            self.log.commit.durable_lsn = batch.last_lsn;
        }
        let deadline = self.commit_deadline(now);
        let operation = IoOperation::Write { durable: has(Step::BatchIsDurable) };
        self.request(operation, batch.address, segments, Class::Metadata, None, deadline, Purpose::Log, None);
    }

    pub(super) fn log_written(&mut self, result: Result<(), IoError>) {
        let phase = std::mem::replace(&mut self.log.commit.phase, Phase::Idle);
        if let Err(error) = result {
            return self.fail(&format!("log write: {error}"));
        }
        if let Phase::Writing { last_lsn } = phase {
            self.log.commit.durable_lsn = last_lsn;
            self.log.commit.count += 1;
        }
        self.finish_waiters();
        self.release_freed();
    }

    pub(super) fn finish_waiters(&mut self) {
        let mut waiters = std::mem::take(&mut self.log.commit.waiters).into_iter();
        let mut kept = Vec::new();
        for waiter in waiters.by_ref() {
            if !self.log.commit.covers(waiter.lsn, waiter.data) {
                kept.push(waiter);
            } else if self.take_steps(1) {
                self.waits.ready.push(waiter.ticket);
            } else {
                kept.push(waiter);
                break;
            }
        }
        kept.extend(waiters);
        kept.append(&mut self.log.commit.waiters);
        self.log.commit.waiters = kept;
    }

    /// Parks an operation until everything recorded and written so far is durable. False: it is already.
    pub(super) fn wait_for_commit(&mut self, ticket: Ticket) -> bool {
        let (lsn, data) = (self.metadata.lsn(), self.log.commit.data);
        if self.log.commit.covers(lsn, data) || !has(Step::FsyncWaitsForLog) {
            return false;
        }
        self.log.commit.waiters.push(Waiter { ticket, lsn, data });
        true
    }

    /// How many commits there were.
    pub(super) fn commits(&self) -> u64 {
        self.log.commit.count
    }

    /// What waits for a commit, or for one to go on.
    pub(super) fn take_commit_waiters(&mut self) -> Vec<Ticket> {
        let waiters = std::mem::take(&mut self.log.commit.waiters);
        let held_back = self.log.replacements.commit_goes_on();
        waiters.into_iter().map(|waiter| waiter.ticket).chain(held_back).collect()
    }
}
