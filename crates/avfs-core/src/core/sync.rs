//! fsync, sync, shutdown and the end of a durable write: data to the device, then the journal.
//!
//! **For:** operations that end when something is durable. **Excludes:** the commit itself. **State:** none of its own.

use super::state::Core;
use super::state::operation::{Operation, Outcome, Stage, Ticket, Waiting};
use crate::error::Error;
use crate::steps::{Step, has};
use std::collections::BTreeMap;
use units::{Ino, Now};

impl Core {
    /// fsync, sync, shutdown and the end of a durable write: data to the device, then the journal.
    pub(super) fn attempt_sync(&mut self, now: Now, ticket: Ticket, mut waiting: Waiting) {
        loop {
            if self.status.failure.is_some() {
                let outcome = failed(&waiting);
                return self.finish(ticket, outcome);
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
                            let open = self.handle(handle).ok();
                            open.into_iter().map(|(ino, _)| ino).for_each(|ino| self.filled(now, ino));
                        }
                        _ => self.all_filled(now),
                    }
                    let file = match waiting.operation {
                        Operation::Fsync { ino } => Some(Some(ino)),
                        Operation::FsyncFile { handle } => Some(self.handle(handle).ok().map(|(ino, _)| ino)),
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
                Stage::Epochs { next, closed } => match self.writeback.files.range(*next..).next().copied() {
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
                Stage::Journal
                    if matches!(waiting.operation, Operation::Shutdown) && !self.status.dormant =>
                {
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
                        return self.finish(ticket, Outcome::Done(Ok(())));
                    }
                    true
                }
                Stage::Journal => {
                    let told = self.tell_lost(&waiting.operation);
                    let outcome = match waiting.count {
                        Some(count) => Outcome::Count(told.map(|()| count)),
                        None => Outcome::Done(told),
                    };
                    return self.finish(ticket, outcome);
                }
            };
            if parked {
                self.park(ticket, waiting);
                return;
            }
        }
    }
}

/// What an operation that cannot be done any more is answered with.
pub(super) fn failed(waiting: &Waiting) -> Outcome {
    match waiting.operation {
        Operation::Read { .. } => Outcome::Data(Err(Error::Device)),
        Operation::SetAttributes { .. } => Outcome::Attributes(Err(Error::Device)),
        Operation::Write { .. } | Operation::Share(_) => Outcome::Count(Err(Error::Device)),
        _ if waiting.count.is_some() => Outcome::Count(Err(Error::Device)),
        _ => Outcome::Done(Err(Error::Device)),
    }
}
