//! Who has the volume: a lease that a living process takes, renews and loses.
//!
//! **For:** the protocol of the protection block, as a state machine that is told what was read and what the time is: the same for a
//! mount, a repair, a format, and the simulation of several hosts. **Excludes:** reading and writing the block (`protection`), its
//! layout ([`format`](crate::format)), and what the holder's time is used for (the engine's [`Gate`](avfs_io::Gate)).
//! **State:** [`Lease`] has what it last wrote, and since when that counts.
//! **Invariants:** all times are on a clock that counts suspension.
//! - A write of the holder is submitted at most [`HELD`] after the submission of its last renewal that was read back.
//! - A volume is free when its holder has said so, or its block has been the same for [`WATCH`]; for [`FENCED`] if the holder was fenced.
//! - Whoever takes it holds it only after its name has been there for longer than another may need from finding the volume free to
//!   having written its own name ([`PROMPT`]). Whoever needed longer may have written over a holder: it begins again, and watches its
//!   own name.
//! - Where the device has reservations, the volume is held only after all other hosts' are gone: also those of hosts that wanted it
//!   at the same time, of which nothing on the device tells any more.
//! - After the time has run out nothing is resumed unless nobody can have had the volume meanwhile.

use crate::format::MmpBlock;
use crate::steps::{self, has};
use avfs_io::{IoError, LockId};
use units::{Duration, Instant};

/// Whoever has the volume renews the block so often. A fact of the protocol, as all of these.
pub(crate) const RENEWAL: Duration = Duration::from_secs(2);
/// A renewal counts for so long from its submission.
const LEASE: Duration = Duration::from_secs(10);
/// So long before the end of the lease the holder submits nothing any more: for commands that are on their way to the device.
const MARGIN: Duration = Duration::from_secs(2);
/// For so long after the submission of a renewal the holder may submit.
const HELD: Duration = LEASE.saturating_sub(MARGIN);
/// A block that is the same for so long is nobody's. Longer than the lease by a tenth, for clocks that differ. Hosts that renewed each
/// five seconds are seen as well.
const WATCH: Duration = Duration::from_secs(11);
/// The same of a holder that is known to be dead: what it gave to the device arrives within the margin, and a tenth. Longer than the
/// time between two renewals: one that lives all the same is found out.
const FENCED: Duration = Duration::from_millis(2200);
/// Between two looks at a block that is watched: a living holder is found out by its next renewal.
const LOOK: Duration = Duration::from_millis(500);
/// From finding a volume free to having written one's name: longer than two accesses take on a busy RAID.
const PROMPT: Duration = Duration::from_millis(200);
/// The name stands for so long before it counts: [`PROMPT`], and a tenth for clocks that differ.
const SETTLING: Duration = Duration::from_millis(220);
/// So often it is tried to be prompt.
const TRIES: u32 = 10;
/// After an error of the device.
const RETRY: Duration = Duration::from_millis(500);

/// For how long the holder may submit, see [`HELD`].
fn held() -> Duration {
    if has(steps::Step::MarginIsKept) { HELD } else { LEASE }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Read the block, then [`Lease::read`].
    Read,
    /// Reserve the device, where it has reservations, then [`Lease::reserved`].
    Reserve {
        /// Who had it: to be preempted.
        against: Option<MmpBlock>,
    },
    /// Take the reservations of all others away, where the device has them, then [`Lease::excluded`]. Only a host that is still
    /// registered may do that.
    Exclude,
    /// Write this block if it can be submitted before `until`, then [`Lease::written`], else [`Lease::not_written`].
    Write {
        /// The block.
        block: Box<MmpBlock>,
        /// Until when.
        until: Instant,
    },
    /// Ask again by then.
    Wait(Instant),
    /// Nothing any more.
    Over,
}

/// Why a volume is not had, or not any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Over {
    /// It is in use.
    #[error("{}", in_use(.0))]
    InUse(MmpBlock),
    /// Another has it now.
    #[error("the lease on the volume is lost: {} has taken it", describe(.0))]
    Taken(MmpBlock),
    /// The block is none any more.
    #[error("the lease on the volume is lost: the block that says who has it was overwritten")]
    Overwritten,
    /// A renewal was under way when the time ran out: another's name may have been written over.
    #[error(
        "the lease on the volume is lost: this host halted while it was renewed, and another may have had it meanwhile"
    )]
    Halted,
    /// It cannot be taken promptly.
    #[error(
        "the volume cannot be taken: its device needs longer than {} ms to read a block and to write it; try again when it is less busy",
        PROMPT.as_millis()
    )]
    Slow,
    /// It cannot be renewed.
    #[error("the lease on the volume has run out, and cannot be renewed: {0}")]
    Device(IoError),
}

fn in_use(block: &MmpBlock) -> String {
    format!("the volume is in use by {}: unmount it there first", describe(block))
}

/// The holder, for people.
pub(crate) fn describe(block: &MmpBlock) -> String {
    match block.process {
        0 => format!("host {}", block.host),
        process => format!("process {process} on host {}", block.host),
    }
}

/// Watches a block until it is nobody's.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    /// Who watches: on which boot, with which lock.
    me: MmpBlock,
    /// The volume that is on the device, if there is one. Where there is none, what is no block protects nothing.
    volume: Option<[u8; 16]>,
    /// This block was watched before, and nobody renewed it.
    dead: Option<MmpBlock>,
    /// This holder is dead, says the cluster that has fenced it.
    fenced: Option<[u8; 16]>,
    seen: Option<(Option<MmpBlock>, Instant)>,
}

/// What a look has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Free,
    /// Look again by then.
    Wait(Instant),
    InUse(MmpBlock),
}

impl Watch {
    pub(crate) fn new(me: MmpBlock, volume: Option<[u8; 16]>) -> Self {
        Self { me, volume, dead: None, fenced: None, seen: None }
    }

    /// The same, with a block that was watched before.
    pub(crate) fn after(self, dead: Option<MmpBlock>) -> Self {
        Self { dead, ..self }
    }

    /// The same, with a holder that is known to submit nothing any more. Each mount has a number of its own: of another holder this says
    /// nothing.
    pub(crate) fn fenced(self, fenced: Option<[u8; 16]>) -> Self {
        Self { fenced, ..self }
    }

    /// A look that began and ended then has shown this.
    pub(crate) fn saw(&mut self, began: Instant, ended: Instant, found: Option<&MmpBlock>) -> Verdict {
        if self.is_free(found) {
            return Verdict::Free;
        }
        match &self.seen {
            Some((seen, since)) if seen.as_ref() == found => {
                let free = *since + self.length(found);
                if began >= free { Verdict::Free } else { Verdict::Wait(free.min(ended + LOOK)) }
            }
            Some((Some(_), _)) if found.is_some() => Verdict::InUse(found.expect("it is some").clone()),
            seen => {
                if seen.is_none() {
                    tracing::info!(
                        holder = found.map_or_else(|| "unknown".into(), describe),
                        "the volume was not given back; watching whether it is still in use"
                    );
                }
                self.seen = Some((found.cloned(), ended));
                Verdict::Wait(ended + LOOK)
            }
        }
    }

    /// For how long this block must stay the same.
    fn length(&self, found: Option<&MmpBlock>) -> Duration {
        let fenced = found.filter(|found| found.holder != [0; 16] && self.fenced == Some(found.holder));
        match fenced {
            Some(_) if has(steps::Step::FencedIsWatched) => FENCED,
            Some(_) => Duration::ZERO,
            None => WATCH,
        }
    }

    fn is_free(&self, found: Option<&MmpBlock>) -> bool {
        let Some(found) = found else { return self.volume.is_none() };
        let is_given_back = found.sequence == 0 && self.volume.is_none_or(|volume| volume == found.uuid);
        // The kernel that gave this lock to the holder has now given it to us: the holder's file is closed, and all its commands have
        // ended. A host that is called the same, or the same boot through another name of the device, proves nothing.
        let is_closed = self.me.lock.is_some()
            && found.lock == self.me.lock
            && found.boot_id == self.me.boot_id
            && found.boot_id != [0; 16];
        is_given_back || is_closed || self.dead.as_ref() == Some(found)
    }

    /// Whose block it was, if another's.
    fn predecessor(&self) -> Option<MmpBlock> {
        let (seen, _) = self.seen.as_ref()?;
        seen.clone().filter(|seen| seen.holder != self.me.holder)
    }
}

#[derive(Clone, Debug)]
enum Phase {
    Reading,
    Reserving {
        read_at: Instant,
    },
    Writing {
        read_at: Instant,
    },
    /// Its name, submitted then, counts; others that wanted the volume at the same time, or held it meanwhile, are still registered.
    Excluding {
        submitted: Instant,
    },
    Resting {
        until: Instant,
    },
    Over(Over),
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    watch: Watch,
    phase: Phase,
    /// The last block of ours that was, or may have been, written, and when it was submitted.
    written: Option<(MmpBlock, Instant)>,
    /// Of the last block that was wanted.
    sequence: u64,
    /// The device was asked to be reserved, and is.
    reservation: Option<bool>,
    /// Tries to write promptly that failed.
    late: u32,
    /// Only what is read from then on says that the volume is ours.
    counts_from: Instant,
    /// Submission of the last renewal that was read back; while the volume is ours.
    held_since: Option<Instant>,
    /// It was ours before.
    was_held: bool,
    /// What the device last answered, when that was an error.
    error: Option<IoError>,
}

impl Lease {
    /// To take the volume that `watch` is for.
    pub(crate) fn new(watch: Watch) -> Self {
        Self {
            watch,
            phase: Phase::Reading,
            written: None,
            sequence: 0,
            reservation: None,
            late: 0,
            counts_from: Instant::FAR_FUTURE,
            held_since: None,
            was_held: false,
            error: None,
        }
    }

    /// Until when the holder may submit; long ago when there is none.
    pub(crate) fn holds_until(&self) -> Instant {
        match (&self.phase, self.held_since) {
            (Phase::Over(_), _) | (_, None) => Instant::ZERO,
            (_, Some(since)) => since + held(),
        }
    }

    /// Why it is over, if it is.
    pub(crate) fn over(&self) -> Option<&Over> {
        match &self.phase {
            Phase::Over(over) => Some(over),
            _ => None,
        }
    }

    /// The key to reserve the device with.
    pub(crate) fn key(&self) -> u64 {
        key(&self.watch.me)
    }

    /// The key that the device is reserved with.
    pub(crate) fn reserved_with(&self) -> Option<u64> {
        (self.reservation == Some(true)).then(|| self.key())
    }

    /// What is wanted `now`.
    pub(crate) fn step(&self, now: Instant) -> Step {
        match &self.phase {
            Phase::Reading => Step::Read,
            Phase::Resting { until } if now >= *until => Step::Read,
            Phase::Resting { until } => Step::Wait(*until),
            Phase::Reserving { .. } => Step::Reserve { against: self.watch.predecessor() },
            Phase::Writing { read_at } => {
                let until = self.held_since.map_or(*read_at + PROMPT, |since| since + held());
                Step::Write { block: Box::new(self.next_block()), until }
            }
            Phase::Excluding { .. } => Step::Exclude,
            Phase::Over(_) => Step::Over,
        }
    }

    fn next_block(&self) -> MmpBlock {
        MmpBlock { sequence: self.sequence + 1, ..self.watch.me.clone() }
    }

    /// The block, by a read that was submitted at `began`.
    pub(crate) fn read(&mut self, began: Instant, ended: Instant, found: Option<&MmpBlock>) {
        self.error = None;
        let unread = self.written.clone().map(|(block, _)| block).filter(|_| self.was_held);
        let found = if has(steps::Step::RenewalReads) { found } else { unread.as_ref().or(found) };
        self.phase = match self.written.clone() {
            None => match self.watch.saw(began, ended, found) {
                Verdict::Free if self.reservation.is_some() => Phase::Writing { read_at: began },
                Verdict::Free => Phase::Reserving { read_at: began },
                Verdict::Wait(until) => Phase::Resting { until },
                Verdict::InUse(holder) => Phase::Over(Over::InUse(holder)),
            },
            Some((ours, submitted)) => self.look_back(began, ended, found, &ours, submitted),
        };
    }

    /// What follows when one's own name should stand there.
    fn look_back(
        &mut self,
        began: Instant,
        ended: Instant,
        found: Option<&MmpBlock>,
        ours: &MmpBlock,
        submitted: Instant,
    ) -> Phase {
        let sequence = match found {
            Some(found) if found.holder == ours.holder && (1..=ours.sequence).contains(&found.sequence) => {
                found.sequence
            }
            _ if self.was_held && !has(steps::Step::TakenIsTheEnd) => {
                self.lapse();
                self.written = None;
                return Phase::Reading;
            }
            Some(found) if self.was_held => return Phase::Over(Over::Taken(found.clone())),
            None if self.was_held => return Phase::Over(Over::Overwritten),
            Some(found) if found.sequence != 0 => return Phase::Over(Over::InUse(found.clone())),
            // Given back by the last holder, over our name.
            _ => {
                self.written = None;
                return Phase::Reading;
            }
        };
        let is_read_back = sequence == ours.sequence;
        if is_read_back && began >= self.counts_from {
            let has_others = self.reservation == Some(true) && has(steps::Step::OthersAreExcluded);
            if self.held_since.is_none() && has_others {
                return Phase::Excluding { submitted };
            }
            self.hold(submitted);
        }
        match self.held_since {
            Some(since) if ended >= since + held() => {
                // Nobody has had it yet, but from now on others may find it free, as we do.
                self.lapse();
                Phase::Reading
            }
            Some(_) if is_read_back && ended < submitted + RENEWAL => {
                Phase::Resting { until: submitted + RENEWAL }
            }
            Some(_) => Phase::Writing { read_at: began },
            None if self.was_held => Phase::Writing { read_at: began },
            None if is_read_back => Phase::Resting { until: self.counts_from },
            None => {
                self.written = None;
                Phase::Reading
            }
        }
    }

    /// The volume is ours since the submission of this renewal.
    fn hold(&mut self, submitted: Instant) {
        self.held_since = Some(submitted);
        self.was_held = true;
    }

    /// The time has run out: the volume is to be taken again, and only what is read after that counts.
    fn lapse(&mut self) {
        self.held_since = None;
        self.counts_from = Instant::FAR_FUTURE;
    }

    /// The device is reserved, or has no reservations.
    pub(crate) fn reserved(&mut self, has_reservations: bool) {
        self.reservation = Some(has_reservations);
        if let Phase::Reserving { read_at } = self.phase {
            self.phase = Phase::Writing { read_at };
        }
    }

    /// No other host is registered with the device.
    pub(crate) fn excluded(&mut self) {
        if let Phase::Excluding { submitted } = self.phase {
            self.hold(submitted);
            self.phase = Phase::Resting { until: submitted + RENEWAL };
        }
    }

    /// The block that was wanted, submitted then, stands on the device.
    pub(crate) fn written(&mut self, submitted: Instant, ended: Instant) {
        let Phase::Writing { read_at } = self.phase else { return };
        let block = self.next_block();
        self.sequence = block.sequence;
        let is_late = ended > read_at + PROMPT && has(steps::Step::LateNameIsWatched);
        self.phase = match self.held_since {
            Some(since) if ended > since + LEASE && has(steps::Step::HaltInRenewalIsTheEnd) => {
                Phase::Over(Over::Halted)
            }
            Some(_) => Phase::Resting { until: submitted + RENEWAL },
            None if is_late && self.was_held => Phase::Over(Over::Halted),
            None if is_late => {
                self.watch.seen = Some((Some(block), ended));
                self.too_late(Phase::Resting { until: ended + LOOK });
                return;
            }
            None => {
                self.counts_from = if has(steps::Step::NameSettles) { ended + SETTLING } else { ended };
                Phase::Resting { until: self.counts_from }
            }
        };
        self.written = Some((block, submitted));
    }

    /// It was too late to submit the block.
    pub(crate) fn not_written(&mut self) {
        match self.was_held {
            true => {
                self.lapse();
                self.phase = Phase::Reading;
            }
            false => self.too_late(Phase::Reading),
        }
    }

    fn too_late(&mut self, next: Phase) {
        self.late += 1;
        self.written = None;
        self.register_again();
        self.phase = if self.late < TRIES { next } else { Phase::Over(Over::Slow) };
    }

    /// Another may have had the volume, and have taken our registration away.
    fn register_again(&mut self) {
        if self.reservation == Some(true) {
            self.reservation = None;
        }
    }

    /// The device has failed to read or write the block. A write that failed may have been done, then or by now.
    pub(crate) fn failed(&mut self, submitted: Instant, ended: Instant, error: IoError) {
        let is_lapsed = self.was_held && ended >= self.holds_until();
        if matches!(self.phase, Phase::Writing { .. }) {
            self.written(submitted, ended);
        }
        if let Phase::Over(_) = self.phase {
            return;
        }
        if self.held_since.is_none() {
            self.register_again();
        }
        let is_again = self.error.replace(error).is_some();
        self.phase = match is_lapsed && is_again {
            true => Phase::Over(Over::Device(error)),
            false => Phase::Resting { until: ended + RETRY },
        };
    }

    /// The block that gives the volume back, and until when it may be submitted, if what was just read is ours and the time has not run
    /// out.
    pub(crate) fn release(
        &mut self,
        began: Instant,
        ended: Instant,
        found: Option<&MmpBlock>,
    ) -> Option<(MmpBlock, Instant)> {
        self.read(began, ended, found);
        let until = self.holds_until();
        let free = MmpBlock { uuid: self.watch.me.uuid, ..MmpBlock::default() };
        (ended < until).then_some((free, until))
    }
}

/// The key that a holder reserves the device with.
pub(crate) fn key(block: &MmpBlock) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = block.holder;
    // Zero is none.
    u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1)
}

/// The block of whoever asks for the volume `uuid` through a device with this lock: a process, not a host.
pub(crate) fn contender(uuid: [u8; 16], lock: LockId) -> MmpBlock {
    MmpBlock {
        uuid,
        sequence: 0,
        boot_id: boot_id(),
        host: host_name(),
        holder: *uuid::Uuid::new_v4().as_bytes(),
        lock,
        process: std::process::id(),
    }
}

/// Identity of this boot; zeros where the kernel does not tell.
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    uuid::Uuid::parse_str(text.trim()).map(|id| *id.as_bytes()).unwrap_or_default()
}

/// Name of this host.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    // As much as the block has room for.
    name.trim().chars().filter(char::is_ascii).take(63).collect()
}

#[cfg(test)]
mod hosts;
#[cfg(test)]
mod loss;
#[cfg(all(test, feature = "protocol-steps"))]
mod mutations;
#[cfg(test)]
mod tests;
