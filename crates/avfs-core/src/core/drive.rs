//! What makes operations go on: requests that end, time that passes, and what others have given them room for.
//!
//! **For:** taking an operation as far as it goes, and trying it again. **Excludes:** what operations do. **State:** none of its own.
//! **Invariants:** an operation ends exactly once, or waits where something will try it again.

use super::checkpoint::Pumped;
use super::state::operation::{Operation, Outcome, Progress, Stage, Ticket, Waiting};
use super::state::outbox::{Cancellation, Outbox, Purpose, Take};
use super::state::{Core, STEPS};
use super::sync::failed;
use super::writes::WritePlan;
use crate::error::{Error, Result};
use crate::types::*;
use avfs_io::Completion;
use units::{Ino, Instant, Now};

impl Core {
    /// What is to be done now; the outbox is empty afterwards.
    pub fn take_outbox(&mut self) -> Outbox {
        self.turn.steps = STEPS;
        let mut outbox = std::mem::take(&mut self.requests.outbox);
        outbox.streams.extend(self.clients.streams.take_declared());
        // It wakes no thread: it counts when a stream is declared, and what is written within seconds carries it before.
        if !outbox.is_empty() {
            outbox.accepted = std::mem::take(&mut self.requests.accepted);
        }
        outbox.cancellations.retain(|cancellation| match cancellation {
            // What one client gave up another one, or the same one elsewhere, may have come to want since.
            Cancellation::Request(tag) => self.is_unwanted(*tag),
            Cancellation::Stream(_) => true,
        });
        outbox
    }

    /// Begins an operation. It ends in the outbox, perhaps at once.
    pub fn start(&mut self, now: Now, ticket: Ticket, operation: Operation) {
        let read = match operation {
            Operation::Read { handle, offset, length } => Some((handle, offset, length)),
            _ => None,
        };
        let explained = match operation {
            Operation::Explain { ino, .. } => Some(ino),
            _ => None,
        };
        let next = read.and_then(|(handle, offset, length)| self.notice_request(now, handle, offset, length));
        let asked = |(handle, offset, _)| Take { handle, offset, has_waited: false, is_answered: false };
        self.requests.outbox.takes.extend(read.map(asked));
        let waiting = Waiting { operation, stage: Stage::Try, count: None, exclusive: None };
        self.attempt(now, ticket, waiting);
        // Behind what it waits for itself, so that what is read ahead continues it on the device.
        if let Some((handle, ..)) = read
            && let Ok((ino, _)) = self.handle(handle)
        {
            self.read_ahead(now, ino, handle);
        }
        if let Some(sequence) = next {
            self.read_sequence_ahead(now, sequence);
        }
        // Perhaps no other operation uses it.
        explained.into_iter().for_each(|ino| self.rest(ino));
        self.pump(now);
    }

    /// Reads what the cache holds; `None` when the device is needed: then [`start`](Core::start) it.
    pub fn read(
        &mut self,
        now: Now,
        handle: HandleId,
        offset: u64,
        length: usize,
    ) -> Option<Result<ReadData>> {
        let read = self.read_cached(now, handle, offset, length, false);
        if let Some(Ok(data)) = &read
            && !data.slices.is_empty()
        {
            self.pump(now);
        }
        read
    }

    /// The bytes of a write are in place, or handed over: they are part of the file now. `Some`: answer at once; `None`: the answer
    /// comes through the outbox.
    pub fn write_end(&mut self, now: Now, ticket: Ticket, plan: &mut WritePlan) -> Option<Result<usize>> {
        let result = self.end_write(now, ticket, plan);
        self.pump(now);
        result
    }

    pub(super) fn end_write(
        &mut self,
        now: Now,
        ticket: Ticket,
        plan: &mut WritePlan,
    ) -> Option<Result<usize>> {
        let (ino, length) = plan.target();
        if length == 0 {
            return Some(Ok(0));
        }
        self.accept_write(now, plan);
        // What waited for this block to be filled can go on.
        self.wake_file(now, ino);
        self.answer_write(now, ticket, plan)
    }

    /// A write whose bytes were copied aside, tried again.
    pub(super) fn attempt_write(&mut self, now: Now, ticket: Ticket, waiting: Waiting) {
        let Operation::Write { handle, offset, ref data, unprivileged } = waiting.operation else {
            return;
        };
        let progress = self.try_write(now, Some(ticket), handle, offset, data.len(), unprivileged);
        match progress {
            Progress::Ready(Ok(mut plan)) => {
                plan.copy(data);
                self.clients.streams.write_resumed(now.monotonic, handle);
                if let Some(result) = self.end_write(now, ticket, &mut plan) {
                    self.finish(ticket, Outcome::Count(result));
                }
            }
            Progress::Ready(Err(error)) => {
                self.finish(ticket, Outcome::Count(Err(error)));
            }
            Progress::Wait => {
                self.park(ticket, waiting);
            }
        }
    }

    /// Takes an operation as far as it goes.
    pub(super) fn attempt(&mut self, now: Now, ticket: Ticket, mut waiting: Waiting) {
        let was_exclusive = waiting.exclusive.take();
        self.release_exclusive(was_exclusive);
        let outcome = match &mut waiting.operation {
            Operation::Read { handle, offset, length } => {
                let (handle, offset, length) = (*handle, *offset, *length);
                match self.try_read(now, ticket, handle, offset, length) {
                    Progress::Ready(result) => Some(Outcome::Data(result)),
                    Progress::Wait => None,
                }
            }
            Operation::Probe(probing) => match self.try_probe(ticket, probing) {
                Progress::Ready(result) => Some(Outcome::Done(result)),
                Progress::Wait => None,
            },
            Operation::Explain { ino, probing } => match self.try_explain(ticket, *ino, probing) {
                Progress::Ready(result) => Some(Outcome::Policy(result)),
                Progress::Wait => None,
            },
            Operation::Write { .. } => return self.attempt_write(now, ticket, waiting),
            Operation::Fsync { .. }
            | Operation::FsyncFile { .. }
            | Operation::Sync
            | Operation::Checkpoint
            | Operation::Shutdown => {
                return self.attempt_sync(now, ticket, waiting);
            }
            Operation::Rename { .. } | Operation::Unlink { .. } => {
                self.try_change_of_names(now, ticket, &mut waiting).map(Outcome::Done)
            }
            Operation::SetAttributes { ino, changes } => {
                let (ino, changes) = (*ino, *changes);
                match self.try_set_attributes(now, ticket, ino, changes) {
                    Progress::Ready(result) => Some(Outcome::Attributes(result)),
                    Progress::Wait => {
                        waiting.exclusive = self.count_exclusive(ino, ticket);
                        None
                    }
                }
            }
            Operation::Share(sharing) => match self.try_share(now, ticket, sharing) {
                Progress::Ready(result) => Some(Outcome::Count(result)),
                Progress::Wait => {
                    // Until both files are quiet it holds back the one that it waits for.
                    let files = [sharing.copy.from, sharing.copy.to].map(|handle| self.handle(handle).ok());
                    let mut files = files.into_iter().flatten().filter(|_| sharing.is_to_be_quiet);
                    waiting.exclusive = files.find_map(|(ino, _)| self.count_exclusive(ino, ticket));
                    None
                }
            },
            Operation::Allocate { handle, offset, length, mode } => {
                let (handle, offset, length, mode) = (*handle, *offset, *length, *mode);
                match self.try_allocate(now, ticket, handle, offset, length, mode) {
                    Progress::Ready(result) => Some(Outcome::Done(result)),
                    Progress::Wait => {
                        let ino = self.handle(handle).ok().map(|(ino, _)| ino);
                        waiting.exclusive = ino.and_then(|ino| self.count_exclusive(ino, ticket));
                        None
                    }
                }
            }
        };
        let exclusive_now = waiting.exclusive;
        match outcome {
            Some(_) if matches!(waiting.operation, Operation::Probe(_)) => {}
            Some(Outcome::Count(Ok(count))) => self.answer_copy(now, ticket, waiting, count),
            Some(outcome) => self.finish(ticket, outcome),
            None => {
                self.park(ticket, waiting);
            }
        }
        if let Some(ino) = was_exclusive.filter(|&ino| exclusive_now != Some(ino)) {
            // What was held back while the file had to be quiet goes on.
            self.wake_file(now, ino);
        }
    }

    /// A copy is answered, now or when it is durable.
    fn answer_copy(&mut self, now: Now, ticket: Ticket, waiting: Waiting, count: usize) {
        let target = match waiting.operation {
            Operation::Share(sharing) => Some(sharing.copy.to),
            _ => None,
        };
        let is_durable = |handle| self.handle(handle).is_ok_and(|(_, flags)| flags.contains(OpenFlags::SYNC));
        match target.filter(|&handle| count > 0 && is_durable(handle)) {
            Some(handle) => {
                let operation = Operation::FsyncFile { handle };
                let waiting = Waiting { operation, stage: Stage::Try, count: Some(count), exclusive: None };
                self.attempt_sync(now, ticket, waiting);
            }
            None => self.finish(ticket, Outcome::Count(Ok(count))),
        }
    }

    /// Tries a parked operation again.
    pub(super) fn retry(&mut self, now: Now, ticket: Ticket) {
        if let Some(waiting) = self.waits.operations.remove(&ticket) {
            self.attempt(now, ticket, waiting);
        }
    }

    /// Tries again what waits for requests of this file to end.
    pub(super) fn wake_file(&mut self, now: Now, ino: Ino) {
        let Some(waiting) = self.take_waiting(ino) else { return };
        for ticket in waiting {
            self.retry(now, ticket);
        }
        self.begin_to_play(now, ino);
        self.reap_if_left(now, ino);
        self.rest(ino);
    }

    /// The device finished a request.
    pub fn io_completed(&mut self, now: Now, completion: Completion) {
        let Some((purpose, run)) = self.requests.in_flight.remove(completion.tag) else { return };
        let result = completion.result;
        match purpose {
            Purpose::Load { ino, block, start, length, bounce } => {
                self.load_completed(now, ino, block, start, length, bounce, result);
                self.write_after_load(now, ino, block);
                self.wake_file(now, ino);
            }
            Purpose::Data { ino, block, epoch, pieces } => {
                self.data_written(now, ino, block, epoch, pieces, result);
                self.wake_file(now, ino);
                if self.is_overfull(false) && !self.waits.throttled.is_empty() {
                    self.write_back_for_memory(now);
                }
            }
            Purpose::FlushData { data } => {
                self.data_flushed(now, data, result);
                self.wake_ready(now);
            }
            Purpose::Log => {
                self.log_written(result);
                self.wake_ready(now);
            }
            Purpose::Shard { bytes } => self.checkpoint_io_completed(bytes, result),
            Purpose::Turn { ticket } => {
                let outcome = Outcome::Done(result.map_err(|_| Error::Device));
                self.finish(ticket, outcome);
            }
            Purpose::CheckpointFlush | Purpose::Superblock => self.checkpoint_io_completed(0, result),
        }
        if let Some(run) = run {
            self.release_busy(run);
            self.wake_ready(now);
        }
        self.wake_for_buffers(now);
        self.pump(now);
    }

    pub(super) fn wake_for_buffers(&mut self, now: Now) {
        // Each gets one chance; those that still find no memory queue up again behind.
        for _ in 0..self.waits.for_memory.len() {
            let Some(ticket) = self.waits.for_memory.pop_front() else { break };
            self.retry(now, ticket);
            if self.waits.for_memory.back() == Some(&ticket) {
                break;
            }
        }
    }

    /// Does what time has made due.
    pub fn tick(&mut self, now: Now) {
        self.turn.steps = STEPS;
        if std::mem::take(&mut self.turn.is_unfinished) {
            self.go_on(now);
        }
        self.write_aged(now);
        self.stop_idle_sequences(now);
        self.read_ahead_after_first_burst(now);
        self.pump(now);
    }

    /// When [`tick`](Self::tick) has something to do, if nothing else happens before.
    pub fn next_wakeup(&self) -> Instant {
        if self.turn.is_unfinished {
            return Instant::ZERO;
        }
        self.aging_due().min(self.sequences_due()).min(self.commit_due()).min(self.checkpoint_due())
    }

    /// One more part of whatever is unfinished.
    pub(super) fn go_on(&mut self, now: Now) {
        self.remove_gone();
        self.finish_waiters();
        self.wake_ready(now);
        self.go_on_freeing();
        self.wake_ready(now);
        for ticket in std::mem::take(&mut self.turn.tickets) {
            self.retry(now, ticket);
        }
        if !self.waits.for_memory.is_empty() {
            self.write_back_for_memory(now);
        }
    }

    pub(super) fn pump(&mut self, now: Now) {
        self.settle_replacing(now);
        self.wake_throttled(now);
        self.commit(now);
        loop {
            match self.pump_checkpoint(now) {
                Pumped::Ended => self.commit(now),
                Pumped::WaitsForCommit => return self.commit(now),
                Pumped::Rests => return self.wake_ready(now),
            }
        }
    }

    pub(super) fn commit(&mut self, now: Now) {
        // What has ended lets others go on before.
        self.wake_ready(now);
        if self.status.failure.is_some() {
            return self.fail_waiters(now);
        }
        self.pump_commit(now);
        self.wake_ready(now);
    }

    /// Tries again what may go on now.
    pub(super) fn wake_ready(&mut self, now: Now) {
        while !self.waits.ready.is_empty() {
            for ticket in std::mem::take(&mut self.waits.ready) {
                self.retry(now, ticket);
            }
        }
    }

    pub(super) fn fail_waiters(&mut self, now: Now) {
        self.wake_throttled(now);
        let mut tickets = self.take_commit_waiters();
        tickets.extend(self.take_space_waiters());
        tickets.extend(std::mem::take(&mut self.waits.for_memory));
        for ticket in tickets {
            if let Some(waiting) = self.waits.operations.remove(&ticket) {
                let outcome = failed(&waiting);
                self.finish(ticket, outcome);
                if let Some(ino) = waiting.exclusive {
                    self.release_exclusive(Some(ino));
                    self.wake_file(now, ino);
                }
            }
        }
    }

    /// Gives back lookup references; the last one of an inode without names lets it go.
    pub fn forget(&mut self, now: Now, ino: Ino, count: u64) {
        self.give_back_lookups(now, ino, count);
        self.pump(now);
    }

    /// Sets the flags of an inode, all of them.
    pub fn set_flags(&mut self, now: Now, ino: Ino, flags: InodeFlags) -> Result<()> {
        self.change_flags(now, ino, flags)?;
        self.pump(now);
        Ok(())
    }

    /// The handle is not used any more.
    pub fn release(&mut self, now: Now, handle: HandleId) {
        self.close(now, handle);
        self.pump(now);
    }
}
