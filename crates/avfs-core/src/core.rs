//! The state machine of a mounted volume.
//!
//! **For:** every decision about a mounted volume. **Excludes:** threads, clocks, waiting, and the copying of clients'
//! bytes. **State:** [`Core`] owns all of it; `Volume` and the simulation each own one. **Invariants:** a method never
//! waits: what needs the device is kept as an [`Operation`] under its ticket and finished through the outbox, exactly
//! once. Facts change only by transactions (`transact`). Nothing is replied that says "durable" before it is.

mod asking;
mod attributes;
mod audit;
mod capacity;
mod changes;
mod checkpoint;
mod claims;
mod cloning;
mod commit;
mod data;
mod drive;
mod expedite;
mod features;
mod files;
mod frames;
mod gathering;
mod growing;
mod holdings;
mod interrupted;
mod limits;
mod loading;
mod memory;
mod names;
mod opening;
mod placing;
mod players;
mod playing;
mod policies;
mod probing;
mod reads;
mod refused;
mod replacing;
mod reports;
mod reservation;
mod sharing;
mod space;
mod spares;
mod state;
mod streams;
mod sync;
mod transactions;
mod trim;
mod usage;
pub(crate) mod watching;
mod wishes;
mod writeback;
mod writes;

use crate::allocator::Allocator;
use crate::error::{Error, Result};
use crate::format::{MAX_LABEL, Superblock};
use crate::journal::Journal;
use crate::metadata::Metadata;
use crate::types::*;
use avfs_io::pool::Pool;
use state::checkpoints::Checkpoints;
use units::Now;

pub use cloning::CopyPart;
pub use holdings::Holding;
pub(crate) use names::MAX_XATTR_BYTES;
pub use policies::RateSource;
pub use state::HANDED_OVER_BYTES;
pub use state::operation::{Operation, Outcome, Probing, Sharing, Ticket};
pub use state::outbox::{Cancellation, Outbox, Take};
pub use state::{Core, CoreOptions};
pub use usage::UsageCount;
pub use writes::{WritePlan, WriteStart};

impl Core {
    /// A volume from what recovery read. `journal` goes on where replay ended.
    pub fn new(
        superblock: Superblock,
        metadata: Metadata,
        mut allocator: Allocator,
        journal: Journal,
        pool: Pool,
        options: CoreOptions,
        now: Now,
    ) -> Self {
        let checkpoints = Checkpoints::new(&superblock, &metadata, &mut allocator, now.monotonic);
        let mut core = Self::assemble(superblock, metadata, allocator, journal, pool, options, checkpoints);
        core.report_policy_mistakes();
        core.report_limit_mistakes();
        core.find_interrupted();
        if !core.status.dormant {
            core.keep_spares();
            core.clear_interrupted(now);
            core.start_checkpoint(now);
        }
        core
    }

    /// Nothing is wished for from now on, and everything is best effort. To be called before anything is open.
    pub fn without_streams(&mut self) {
        self.clients.streams.silence();
    }

    // Turns: what takes long is done a part at a time, and other clients come between.

    // Transactions.

    /// After a name was refused with [`Error::NoSpace`]: true when space is on its way, so that it should be tried again when the
    /// [turn](Self::space_turn) has changed; false when the volume is full.
    pub fn await_space(&mut self, now: Now) -> bool {
        let lacks = std::mem::take(&mut self.space.is_missed);
        if !lacks || self.status.failure.is_some() || !self.is_space_coming(now) {
            return false;
        }
        self.space.is_awaited = true;
        self.log.commit.want();
        self.pump(now);
        true
    }

    /// Changes whenever it makes sense to try again what found no space.
    pub fn space_turn(&self) -> u64 {
        self.space.turn
    }

    /// From now on nothing is written: a caller with the right to has asked for it (FS_IOC_SHUTDOWN).
    pub fn stop_writing(&mut self, now: Now) {
        self.fail("a caller asked for that (FS_IOC_SHUTDOWN)");
        self.pump(now);
    }

    /// Names the volume; in the next superblock.
    ///
    /// # Errors
    /// `InvalidArgument` for a label that does not fit.
    pub fn set_label(&mut self, label: &str) -> Result<()> {
        self.check_writable()?;
        if label.len() > MAX_LABEL {
            return Err(Error::InvalidArgument);
        }
        label.clone_into(&mut self.superblock.label);
        Ok(())
    }

    /// The volume's name.
    pub fn label(&self) -> &str {
        &self.superblock.label
    }

    /// The volume is another's from now on: nothing that waits comes to an end.
    pub fn lose_volume(&mut self, now: Now, why: &str) {
        self.status.is_lost = true;
        self.fail(why);
        self.pump(now);
    }

    /// Why writes fail, if they do.
    pub fn failure(&self) -> Option<&str> {
        self.status.failure.as_deref()
    }

    // Requests.

    // Files.

    /// See [`CoreOptions::access_times`].
    pub fn set_access_times(&mut self, access_times: AccessTimes) {
        self.options.access_times = access_times;
    }

    /// From now on clients' changes are refused. What they changed before is still written.
    pub fn refuse_changes(&mut self) {
        self.status.read_only = true;
    }

    /// The generation of the superblock that the volume rests on while nothing is written; `None` while it may be.
    pub fn resting_on(&self) -> Option<u64> {
        self.status.dormant.then_some(self.superblock.generation)
    }

    /// Nothing is written any more, or everything is allowed again. Before falling dormant changes must have been
    /// refused and a [`Operation::Shutdown`] have ended.
    ///
    /// # Errors
    /// [`Error::Device`] when a failed volume is to be woken.
    pub fn set_dormant(&mut self, now: Now, dormant: bool) -> Result<()> {
        if self.status.failure.is_some() && !dormant {
            return Err(Error::Device);
        }
        self.status.read_only = dormant;
        self.status.dormant = dormant;
        if !dormant {
            self.keep_spares();
            self.clear_interrupted(now);
            self.start_checkpoint(now);
            self.pump(now);
        }
        Ok(())
    }
}
