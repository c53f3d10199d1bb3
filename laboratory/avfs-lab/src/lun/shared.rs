//! What the requests of a modelled LUN share: its contents, its clock, what waits.
//!
//! **For:** the state under one lock. **Excludes:** FUSE, and threads. **State:** [`Shared`].

use super::faults::Faults;
use super::log::RequestLog;
use super::store::Store;
use super::timekeeper::{Asked, Due, Timekeeper};
use crate::clock::Clock;
use fuser::{ReplyData, ReplyEmpty, ReplyWrite};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use units::{Bytes, Instant};

/// The reply that a request waits for.
pub(super) enum Answer {
    Read(ReplyData, Vec<u8>),
    Write(ReplyWrite, u32),
    Flush(ReplyEmpty),
}

/// What a LUN does with what comes; its name is written into `control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It takes the time of its model.
    Modelled,
    /// It answers at once.
    Fast,
    /// It takes the time of its model, and keeps nothing: to be measured with noise, of which memory would be full.
    Forgetful,
}

impl Mode {
    const ALL: [Self; 3] = [Self::Modelled, Self::Fast, Self::Forgetful];

    /// As it is written into `control`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Modelled => "modelled",
            Self::Fast => "fast",
            Self::Forgetful => "forgetful",
        }
    }

    pub(super) fn named(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name().as_bytes() == name)
    }
}

pub(super) struct State {
    pub(super) keeper: Timekeeper<Answer>,
    pub(super) mode: Mode,
    pub(super) stopping: bool,
    /// Buffers of answered reads, for the next ones.
    pub(super) buffers: Vec<Vec<u8>>,
}

pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
    /// Only the thread that takes requests has it, so it never waits.
    pub(super) store: Mutex<Store>,
    pub(super) faults: Mutex<Faults>,
    pub(super) size: Bytes,
    pub(super) log: Option<RequestLog>,
}

impl Shared {
    /// Answers now, or lets it wait for its time, which began when the request came: what the store took is not the
    /// device's.
    pub(super) fn accept(self: &Arc<Self>, came: Instant, asked: Asked, answer: Answer) {
        if let Some(late) = self.faults.lock().late() {
            // A thread for each: there are few requests where each takes so long.
            let shared = Arc::clone(self);
            std::thread::spawn(move || {
                std::thread::sleep(late);
                shared.reply(answer);
            });
            return;
        }
        let mut state = self.state.lock();
        if state.mode == Mode::Fast || state.stopping {
            drop(state);
            self.reply(answer);
            return;
        }
        let mut due = Vec::new();
        state.keeper.collect(self.clock.now(), &mut due);
        state.keeper.arrive(came, asked, answer);
        drop(state);
        self.changed.notify_one();
        self.deliver(due);
    }

    pub(super) fn answer_when_due(&self) {
        let mut due = Vec::new();
        loop {
            let mut state = self.state.lock();
            state.keeper.collect(self.clock.now(), &mut due);
            if due.is_empty() {
                let next = state.keeper.next_event();
                if state.stopping {
                    return;
                }
                match next.and_then(|next| self.clock.system(next)) {
                    Some(next) => {
                        self.changed.wait_until(&mut state, next);
                    }
                    None => self.changed.wait(&mut state),
                }
                continue;
            }
            drop(state);
            self.deliver(std::mem::take(&mut due));
        }
    }

    pub(super) fn deliver(&self, due: Vec<Due<Answer>>) {
        for due in due {
            if let Some(log) = &self.log {
                log.record(due.asked, due.arrived, due.at, due.queue_depth);
            }
            let at = due.at;
            self.reply(due.answer);
            let now = self.clock.now();
            self.state.lock().keeper.delivered(at, now);
        }
    }

    pub(super) fn reply(&self, answer: Answer) {
        /// As many as a deep queue of the largest requests of a loop device.
        const BUFFERS_KEPT: usize = 64;
        match answer {
            Answer::Write(reply, length) => reply.written(length),
            Answer::Flush(reply) => reply.ok(),
            Answer::Read(reply, buffer) => {
                reply.data(&buffer);
                let mut state = self.state.lock();
                if state.buffers.len() < BUFFERS_KEPT {
                    state.buffers.push(buffer);
                }
            }
        }
    }

    pub(super) fn buffer(&self, length: usize) -> Vec<u8> {
        let mut buffer = self.state.lock().buffers.pop().unwrap_or_default();
        buffer.resize(length, 0);
        buffer
    }

    /// What is at the device stays there until it is due.
    pub(super) fn set_mode(&self, mode: Mode) {
        self.state.lock().mode = mode;
    }

    pub(super) fn keeps_what_is_written(&self) -> bool {
        self.state.lock().mode != Mode::Forgetful
    }
}
