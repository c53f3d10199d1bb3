//! When the journal goes to the device, and who waited for it.
//!
//! One commit at a time: flush for data whose mapping is in the batch, one write of the batch that is durable when it
//! completes, answers. While it runs, the next batch grows: the slower the device, the more is committed at once.

use super::{Core, Operation, Outcome, Purpose, Stage, Ticket, Waiting};
use crate::error::Error;
use crate::journal::Batch;
use crate::steps::{Step, has};
use avfs_io::{IoError, IoOperation};
use rtsched::Class;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use units::{DeviceOffset, Duration, Ino, Instant, Now};

/// So much pending is committed without anybody waiting for it.
const LARGE_BATCH: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Commit {
    phase: Phase,
    durable_lsn: u64,
    /// Data writes that completed, and how many of them a completed flush covers.
    data: u64,
    flushed: u64,
    waiters: Vec<Waiter>,
    wanted: bool,
    oldest_pending: Option<Instant>,
    /// The ring is full: nothing is due before the checkpoint that is running has made room.
    blocked: bool,
    pub(super) count: u64,
}

#[derive(Debug)]
enum Phase {
    Idle,
    /// The flush before the log write.
    Flushing(Option<Batch>),
    Writing {
        last_lsn: u64,
    },
}

#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    lsn: u64,
    data: u64,
}

impl Commit {
    /// Everything up to `lsn` was read from the device; what is not flushed of it is flushed first.
    pub(super) fn new(lsn: u64) -> Self {
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

    pub(super) fn durable_lsn(&self) -> u64 {
        self.durable_lsn
    }

    pub(super) fn record_appended(&mut self, now: Instant) {
        self.oldest_pending.get_or_insert(now);
    }

    /// Somebody needs what is pending to become durable.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// There is room in the ring again.
    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }

    pub(super) fn data_completed(&mut self) {
        self.data += 1;
    }

    /// Who waits for a commit.
    pub(super) fn tickets(&self) -> impl Iterator<Item = &Ticket> {
        self.waiters.iter().map(|waiter| &waiter.ticket)
    }

    /// True when no commit is under way.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    /// True when everything up to `lsn`, and all data whose write has completed, is durable.
    fn covers(&self, lsn: u64, data: u64) -> bool {
        self.durable_lsn >= lsn && self.flushed >= data
    }
}

impl Core {
    pub(super) fn commit_due(&self) -> Instant {
        match (&self.commit.phase, self.next_commit()) {
            (Phase::Idle, _) if self.replacements.is_commit_due() && !self.commit.blocked => {
                self.replacing_due()
            }
            (Phase::Idle, Some(commit)) if self.failure.is_none() && !self.commit.blocked => {
                commit.min(self.replacing_due()).min(self.saves_due(commit))
            }
            _ => Instant::FAR_FUTURE,
        }
    }

    /// When what is pending is committed at the latest.
    pub(super) fn next_commit(&self) -> Option<Instant> {
        self.commit.oldest_pending.map(|oldest| oldest + self.commit_age())
    }

    fn commit_age(&self) -> Duration {
        self.options.config.journal.commit_age
    }

    pub(super) fn pump_commit(&mut self, now: Now) {
        if self.failure.is_some() {
            return self.fail_waiters(now);
        }
        if !matches!(self.commit.phase, Phase::Idle) {
            return;
        }
        let due = self.commit.wanted
            || !self.commit.waiters.is_empty()
            || self.journal.pending_bytes() >= LARGE_BATCH
            || self.replacements.is_commit_due()
            || self.next_commit().is_some_and(|commit| commit <= now.monotonic);
        if !due {
            return;
        }
        if self.journal.is_held(self.replacements.last_free()) {
            self.replacements.commit_waits(now.monotonic);
            // Some of the bytes may be on the device, or gone with their file; the others are begun.
            self.settle_replacing(now);
        }
        let last = self.replacements.last_free();
        let is_held = self.journal.is_held(last);
        if is_held {
            let durable = self.commit.durable_lsn;
            if !self.commit.waiters.iter().any(|waiter| waiter.lsn <= durable) {
                return;
            }
        }
        let kept = if self.checkpoint_waits_for_log() { 0 } else { self.journal.kept_for_checkpoints() };
        let batch = if is_held { None } else { self.journal.seal(last, kept) };
        self.commit.blocked = batch.is_none() && !self.journal.is_empty() && !is_held;
        if self.commit.blocked {
            // The ring is full: the checkpoint that is running or starts now makes room.
            self.start_checkpoint(now);
            return;
        }
        if !is_held {
            // Behind the batch: what was held back until now may have to wait for bytes of its own.
            for ticket in self.replacements.commit_goes_on() {
                self.retry(now, ticket);
            }
        }
        self.commit.wanted = is_held;
        self.commit.oldest_pending = (!self.journal.is_empty()).then_some(now.monotonic);
        if !has(Step::DataFlushedBeforeLog) {
            self.commit.flushed = self.commit.data;
        }
        if self.commit.flushed < self.commit.data {
            let data = self.commit.data;
            self.commit.phase = Phase::Flushing(batch);
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
            self.finish_waiters(now);
        }
    }

    /// Commits that somebody waits for have the metadata latency; others only an orderly place.
    fn commit_deadline(&self, now: Now) -> Option<Instant> {
        self.commit.waiters.is_empty().then(|| now.monotonic + Duration::from_secs(1))
    }

    pub(super) fn data_flushed(&mut self, now: Now, data: u64, result: Result<(), IoError>) {
        let phase = std::mem::replace(&mut self.commit.phase, Phase::Idle);
        if let Err(error) = result {
            return self.fail(&format!("flush: {error}"));
        }
        self.commit.flushed = if has(Step::FlushCoversWhatCompletedBefore) { data } else { self.commit.data };
        match phase {
            Phase::Flushing(Some(batch)) => self.write_batch(now, batch),
            _ => self.finish_waiters(now),
        }
    }

    fn write_batch(&mut self, now: Now, batch: Batch) {
        let Some(segments) = self.system_segments(&batch.bytes) else {
            return self.fail("no memory for a log batch");
        };
        self.commit.phase = Phase::Writing { last_lsn: batch.last_lsn };
        if !has(Step::BatchAwaited) {
            self.commit.durable_lsn = batch.last_lsn;
        }
        let deadline = self.commit_deadline(now);
        let operation = IoOperation::Write { durable: has(Step::BatchIsDurable) };
        self.request(operation, batch.address, segments, Class::Metadata, None, deadline, Purpose::Log, None);
    }

    pub(super) fn log_written(&mut self, now: Now, result: Result<(), IoError>) {
        let phase = std::mem::replace(&mut self.commit.phase, Phase::Idle);
        if let Err(error) = result {
            return self.fail(&format!("log write: {error}"));
        }
        if let Phase::Writing { last_lsn } = phase {
            self.commit.durable_lsn = last_lsn;
            self.commit.count += 1;
        }
        self.finish_waiters(now);
        self.release_freed(now);
    }

    pub(super) fn finish_waiters(&mut self, now: Now) {
        let mut waiters = std::mem::take(&mut self.commit.waiters).into_iter();
        let mut kept = Vec::new();
        for waiter in waiters.by_ref() {
            if !self.commit.covers(waiter.lsn, waiter.data) {
                kept.push(waiter);
            } else if self.take_steps(1) {
                self.retry(now, waiter.ticket);
            } else {
                kept.push(waiter);
                break;
            }
        }
        kept.extend(waiters);
        kept.append(&mut self.commit.waiters);
        self.commit.waiters = kept;
    }

    fn fail_waiters(&mut self, now: Now) {
        self.wake_throttled(now);
        let waiters = std::mem::take(&mut self.commit.waiters);
        let parked = std::mem::take(&mut self.space_waiters);
        self.space_turn += 1;
        let unbuffered = std::mem::take(&mut self.buffer_waiters);
        let held_back = self.replacements.commit_goes_on();
        let tickets = waiters.into_iter().map(|waiter| waiter.ticket).chain(parked);
        let tickets = tickets.chain(unbuffered).chain(held_back);
        for ticket in tickets {
            if let Some(waiting) = self.waiting.remove(&ticket) {
                let outcome = failed(&waiting);
                self.outbox.finished.push((ticket, outcome));
                if let Some(ino) = waiting.exclusive {
                    self.file_mut(ino).exclusive -= 1;
                    self.wake_file(now, ino);
                }
            }
        }
    }

    /// Parks an operation until everything recorded and written so far is durable. False: it is already.
    fn wait_for_commit(&mut self, ticket: Ticket) -> bool {
        let (lsn, data) = (self.metadata.lsn(), self.commit.data);
        if self.commit.covers(lsn, data) || !has(Step::FsyncWaitsForLog) {
            return false;
        }
        self.commit.waiters.push(Waiter { ticket, lsn, data });
        true
    }

    /// Parks an operation until more of a file is on the device, or there is memory to complete its pages in.
    pub(super) fn wait_to_be_written(&mut self, ino: Ino, ticket: Ticket) {
        let no_memory = self.files.get(&ino).is_some_and(|file| file.is_idle() && file.exclusive == 0)
            && !self.is_filling(ino);
        if no_memory {
            self.buffer_waiters.push_back(ticket);
        } else {
            self.wait_for_file(ino, ticket);
        }
    }

    /// fsync, sync, shutdown and the end of a durable write: data to the device, then the journal.
    pub(super) fn attempt_sync(&mut self, now: Now, ticket: Ticket, mut waiting: Waiting) {
        loop {
            if self.failure.is_some() {
                let outcome = failed(&waiting);
                return self.outbox.finished.push((ticket, outcome));
            }
            let parked = match &mut waiting.stage {
                Stage::Try if matches!(waiting.operation, Operation::Checkpoint) => {
                    waiting.stage = Stage::Checkpoint { begun: self.checkpoints.begun };
                    false
                }
                Stage::Try => {
                    match waiting.operation {
                        Operation::Fsync { ino } => self.filled(now, ino),
                        Operation::FsyncFile { handle } => {
                            let open = self.handles.get(&handle.0).map(|open| open.ino);
                            open.into_iter().for_each(|ino| self.filled(now, ino));
                        }
                        _ => self.all_filled(now),
                    }
                    let file = match waiting.operation {
                        Operation::Fsync { ino } => Some(Some(ino)),
                        Operation::FsyncFile { handle } => {
                            Some(self.handles.get(&handle.0).map(|open| open.ino))
                        }
                        _ => None,
                    };
                    waiting.stage = match file {
                        Some(ino) => {
                            let epoch = ino.and_then(|ino| Some((ino, self.close_epoch(now, ino)?)));
                            Stage::Data { epochs: epoch.into_iter().collect() }
                        }
                        None => Stage::Epochs { next: Ino(0), closed: BTreeMap::new() },
                    };
                    false
                }
                Stage::Epochs { next, closed } => match self.dirty_files.range(*next..).next().copied() {
                    Some(_) if !self.take_steps(2) => {
                        self.go_on_later(ticket);
                        true
                    }
                    Some(ino) => {
                        closed.extend(self.close_epoch(now, ino).map(|epoch| (ino, epoch)));
                        *next = Ino(ino.0 + 1);
                        false
                    }
                    None => {
                        waiting.stage = Stage::Data { epochs: std::mem::take(closed) };
                        false
                    }
                },
                Stage::Data { epochs } => {
                    let (mut behind, mut is_late) = (None, false);
                    while let Some((&ino, &epoch)) = epochs.first_key_value() {
                        is_late = !self.take_steps(2);
                        if is_late {
                            break;
                        }
                        if has(Step::FsyncWaitsForData) && !self.is_written(now, ino, epoch) {
                            behind = Some(ino);
                            break;
                        }
                        self.record_file(now, ino);
                        epochs.pop_first();
                    }
                    if is_late {
                        self.go_on_later(ticket);
                        true
                    } else if let Some(ino) = behind {
                        self.wait_to_be_written(ino, ticket);
                        true
                    } else {
                        if matches!(waiting.operation, Operation::Shutdown) {
                            self.give_back_all(now);
                        }
                        waiting.stage = Stage::Journal;
                        self.wait_for_commit(ticket)
                    }
                }
                Stage::Journal if matches!(waiting.operation, Operation::Shutdown) && !self.dormant => {
                    waiting.stage = Stage::Checkpoint { begun: self.checkpoints.begun };
                    false
                }
                Stage::Checkpoint { begun } => {
                    let done = self.checkpoints.count > *begun;
                    if !done {
                        self.checkpoints.waiters.push(ticket);
                        self.start_checkpoint(now);
                    }
                    if done {
                        return self.outbox.finished.push((ticket, Outcome::Done(Ok(()))));
                    }
                    true
                }
                Stage::Journal => {
                    let told = self.tell_lost(&waiting.operation);
                    let outcome = match waiting.count {
                        Some(count) => Outcome::Count(told.map(|()| count)),
                        None => Outcome::Done(told),
                    };
                    return self.outbox.finished.push((ticket, outcome));
                }
            };
            if parked {
                self.waiting.insert(ticket, waiting);
                return;
            }
        }
    }
}

/// What an operation that cannot be done any more is answered with.
fn failed(waiting: &Waiting) -> Outcome {
    match waiting.operation {
        Operation::Read { .. } => Outcome::Data(Err(Error::Device)),
        Operation::SetAttributes { .. } => Outcome::Attributes(Err(Error::Device)),
        Operation::Write { .. } => Outcome::Count(Err(Error::Device)),
        _ if waiting.count.is_some() => Outcome::Count(Err(Error::Device)),
        _ => Outcome::Done(Err(Error::Device)),
    }
}
