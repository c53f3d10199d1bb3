//! Space that comes free, and operations that wait for it.
//!
//! **For:** giving back what durable records freed, once the device does not use it. **Excludes:** choosing places. **State:** none of its own.
//! **Invariants:** space is free only when the record that freed it is durable and no request reads or writes there.

use super::state::Core;
use super::state::operation::{Progress, Ticket};
use crate::allocator::BlockRun;
use crate::error::Error;
use crate::steps::{Step, has, matters};
use units::Now;

impl Core {
    /// Gives back to the allocator what durable records freed, as far as the device does not read or write there.
    pub(super) fn release_freed(&mut self) {
        let durable = self.log.commit.durable_lsn();
        while self.space.leaving.is_due(durable) && self.take_steps(1) {
            self.space.leaving.forget_first();
        }
        while let Some(&(lsn, run)) = self.space.freed.front() {
            if lsn > durable && has(Step::FreedWhenDurable) || !self.take_steps(1) {
                break;
            }
            self.space.freed.pop_front();
            let is_busy = self.requests.in_flight.touches(run);
            matters(Step::FreedWhenIdle, is_busy);
            if is_busy && has(Step::FreedWhenIdle) {
                self.space.busy.insert(run.start, run);
            } else if !self.give_back(run) {
                return;
            }
        }
        self.wake_for_space();
    }

    /// A request to these blocks has ended.
    pub(super) fn release_busy(&mut self, ended: BlockRun) {
        let mut released = false;
        while let Some((&start, &run)) = self.space.busy.range(..ended.end()).next_back() {
            if run.end() <= ended.start || self.requests.in_flight.touches(run) {
                break;
            }
            self.space.busy.remove(&start);
            released |= self.give_back(run);
        }
        if released {
            self.wake_for_space();
        }
    }

    pub(super) fn give_back(&mut self, run: BlockRun) -> bool {
        if self.space.allocator.free(run).is_err() {
            self.fail("space was freed twice");
            return false;
        }
        self.space.freed_blocks -= run.count;
        true
    }

    /// Parks an operation until freed space is durable, if there is any; otherwise the volume is full.
    pub(super) fn wait_for_space<T>(&mut self, now: Now, ticket: Ticket) -> Progress<T> {
        if !self.is_space_coming(now) {
            return Progress::Ready(Err(Error::NoSpace));
        }
        self.log.commit.want();
        self.space.waiters.push(ticket);
        Progress::Wait
    }

    /// True while an operation waits for what is on its way to become free.
    pub(super) fn is_space_awaited(&self) -> bool {
        self.space.is_awaited || !self.space.waiters.is_empty()
    }

    /// What waits for space is to be tried again, and waits again where more is on its way.
    pub(super) fn wake_for_space(&mut self) {
        self.space.turn += 1;
        self.space.is_awaited = false;
        self.waits.ready.append(&mut self.space.waiters);
    }

    /// What durable records freed is given back, as far as one turn goes.
    pub(super) fn go_on_freeing(&mut self) {
        let durable = self.log.commit.durable_lsn();
        if self.space.freed.front().is_some_and(|&(lsn, _)| lsn <= durable)
            || self.space.leaving.is_due(durable)
        {
            self.release_freed();
        }
    }

    /// What waits for space, which will not come.
    pub(super) fn take_space_waiters(&mut self) -> Vec<Ticket> {
        self.space.turn += 1;
        std::mem::take(&mut self.space.waiters)
    }
}
