//! The steps of the protocol between data, log, checkpoint and device, and of the lease, by name, so that each can be taken out.
//!
//! **For:** the proof that a test notices when one is missing (`./prove protocol-steps`). **Excludes:** what a step
//! does, which stands where it is asked for. **State:** with the feature `protocol-steps`, which tests alone enable, the one
//! step that is out on this thread; without it there is none, and [`has`] is a constant. **Invariants:** the filesystem
//! only asks.

macro_rules! steps {
    ($($name:ident: $text:literal,)*) => {
        /// A step that can be taken out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Step {
            $(#[doc = $text] $name,)*
        }

        impl Step {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// What it says, in one line.
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Whether it is one of the lease's, which tests of its own look after.
            pub fn is_of_the_lease(self) -> bool {
                self as usize >= Self::NameSettles as usize
            }
        }
    };
}

steps! {
    // Data.
    FsyncWaitsForData: "fsync waits until the file's data is at the device",
    FsyncWaitsForItsEpoch: "fsync waits for what was dirty in its own epoch too",
    MappedWhenWritten: "a mapping is recorded only when its data is written",
    TailsHoldBackTheSize: "a longer size waits for pages that hold what was behind an earlier end",
    // Log.
    RecoveredIsFlushed: "what recovery read is flushed before anything is called durable",
    DataFlushedBeforeLog: "data is flushed before the batch that maps it is written",
    FlushCoversWhatCompletedBefore: "a flush counts for data that had completed when it was asked for",
    FsyncWaitsForLog: "fsync waits until the log is durable",
    BatchIsDurable: "a log batch forces itself through",
    BatchAwaited: "a batch is durable when it completes, not when it is sent",
    RingIsNotOverrun: "the log does not overrun its own tail",
    // Space.
    FreedWhenDurable: "space is free only when the record that freed it is durable",
    FreedWhenIdle: "space is free only when no request is at the device there",
    // Checkpoint.
    ImagesBeforeFlush: "images and table are written before the flush that makes them durable",
    LogUpToNewestImage: "the log is durable up to the newest image before the superblock is written",
    CheckpointIsFlushed: "images and table are flushed before the superblock is written",
    SuperblockIsDurable: "a superblock forces itself through",
    SlotsInTurn: "superblocks go to two slots in turn",
    ReplayFromTheBegin: "replay begins where the log was when the checkpoint began",
    SuperblockLsnOfTheBegin: "the superblock's LSN is that of the checkpoint's begin",
    ShardLsnIsItsOwn: "a shard's LSN is that of its own last record",
    UnitsReusedAfterSuperblock: "old metadata units are used again only after the superblock",
    TailReleasedAfterSuperblock: "the log's tail is released only after the superblock",
    // Recovery.
    NewestSuperblock: "the newest superblock counts",
    BatchIsChecked: "a batch counts only if its CRC holds",
    ChainIsChecked: "a batch counts only if it names the CRC of the one before it",
    SequenceIsChecked: "a batch counts only with the expected sequence number",
    RebuiltIsConfirmed: "a block is rebuilt only as the batch's check confirms it",
    BehindIsFound: "a log that goes on behind damage is not written to",
    ReplaySkipsWhatImagesHave: "a record is left out if the shard's image has it",
    BehindTheEndIsCleared: "bytes behind a file's end that a crash left are cleared",
    // Lease.
    NameSettles: "a name counts only after it has stood for the settling time",
    LateNameIsWatched: "a name that was written late is watched before it counts",
    OthersAreExcluded: "where the device has reservations, it counts only after all others' are gone",
    RenewalReads: "a renewal reads before it writes",
    TakenIsTheEnd: "a holder that finds another name stops for good",
    FencedIsWatched: "a volume whose holder was fenced is watched for the margin",
    HaltInRenewalIsTheEnd: "a holder that halted in a renewal for longer than the lease stops for good",
    MarginIsKept: "a holder submits nothing in the margin before the lease's end",
    GateClosesInTime: "the gate closes when the lease has run out",
    LossRevokesTheGate: "what waits before the gate ends when the lease is lost",
    LossIsToldFirst: "a loss is told before what waits ends",
    DiscardAsksTheGate: "a discard, which goes past the engine, asks the gate itself",
}

#[cfg(feature = "protocol-steps")]
mod switch {
    use super::Step;
    use std::cell::Cell;

    thread_local! {
        static OUT: Cell<Option<Step>> = const { Cell::new(None) };
        static MATTERED: Cell<u64> = const { Cell::new(0) };
    }

    /// Runs `work` on this thread without a step, also when it panics. How often that made a difference, as far as the step
    /// says so itself, and what came of it.
    pub fn without<R>(step: Step, work: impl FnOnce() -> R) -> (u64, std::thread::Result<R>) {
        OUT.set(Some(step));
        MATTERED.set(0);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        OUT.set(None);
        (MATTERED.get(), result)
    }

    /// The steps to take out, of the lease or the others: those that `AVFS_STEPS` names, separated by spaces, or all.
    pub fn chosen(of_the_lease: bool) -> impl Iterator<Item = Step> {
        let names = std::env::var("AVFS_STEPS").unwrap_or_default();
        let is_chosen = move |step: &Step| {
            let is_named = names.is_empty() || names.split(' ').any(|name| format!("{step:?}") == name);
            is_named && step.is_of_the_lease() == of_the_lease
        };
        Step::ALL.iter().copied().filter(is_chosen)
    }

    pub(crate) fn has(step: Step) -> bool {
        OUT.get() != Some(step)
    }

    pub(crate) fn matters(step: Step, matters: bool) {
        if matters && !has(step) {
            MATTERED.set(MATTERED.get() + 1);
        }
    }
}

#[cfg(feature = "protocol-steps")]
pub use switch::{chosen, without};
#[cfg(feature = "protocol-steps")]
pub(crate) use switch::{has, matters};

/// Whether the step is taken. Always, but for tests.
#[cfg(not(feature = "protocol-steps"))]
pub(crate) const fn has(_: Step) -> bool {
    true
}

/// Notes, for tests, that the step that is out would have done something.
#[cfg(not(feature = "protocol-steps"))]
pub(crate) const fn matters(_: Step, _: bool) {}
