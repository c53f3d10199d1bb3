//! What a stream asks for, what it gets, and why it may get nothing.
//!
//! **For:** the words between the scheduler and the caller that opens streams. **Excludes:** the decision, which is
//! [`admission`](crate::admission)'s, and the books, which are [`streams`](crate::streams)'. **State:** none.
//! **Invariants:** a [`Reservation`] cannot be copied, so what is released is released once.

use crate::request::{Direction, StreamId};
use core::fmt;
use units::{Bitrate, Bytes, DeviceOffset, Duration, Instant};

/// The account on which a stream is promised time: one that has a limit, such as a user of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Account(pub u64);

/// How well the caller knows that a client is a stream. The scheduler does not ask: it is for the caller that keeps a list of those
/// that wait, and for what makes streams of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    /// The client reads on and on. So does a copy.
    Guessed,
    /// It is said, or the client has a clock of its own.
    Known,
}

/// A stream that asks for guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSpec {
    /// What it does; [`Direction::Flush`] is no stream.
    pub direction: Direction,
    /// What it plays or records, in bits per second, above zero.
    pub rate: Bitrate,
    /// Length of each of its requests in bytes, above zero. `None`: the admission chooses, and may choose anew whenever
    /// another stream comes.
    pub request: Option<Bytes>,
    /// Bytes that one access brings on average, above zero, where what it reads lies in pieces: a request longer than that
    /// costs an access for each of them. `None`: every request lies in one piece.
    pub piece: Option<Bytes>,
    /// The time each request has from its arrival to its deadline, above zero. Longer than the period where the
    /// stream reads ahead: such streams are cheaper to admit. `None`: chosen by the admission, one to two times
    /// what a request of the length plays that it would choose.
    pub deadline: Option<Duration>,
    /// So long after something is wanted it is due, where it is given sooner than by its terms: the client has a buffer of its own
    /// that plays for as long. It is served in the order in which it is wanted all the same, but leaves room for others
    /// until then. Zero: it is due when it is wanted.
    pub grace: Duration,
    /// Where it lies on the device, about: disks are faster outside. `None`: not known, or all over it.
    pub place: Option<DeviceOffset>,
    /// Which stream is kept when the device carries less than was admitted, 0..=255: the higher, the longer.
    pub priority: u8,
    /// The account whose limits hold for it, [`Config::account_max_permille`](crate::Config::account_max_permille) and
    /// [`Config::accounts_max_permille`](crate::Config::accounts_max_permille). `None`: it has no limit of its own.
    pub account: Option<Account>,
}

impl StreamSpec {
    /// The priority of a stream that was not ranked: the middle. An operator's target.
    pub const DEFAULT_PRIORITY: u8 = 128;

    /// A player at `rate` that leaves everything else to the admission.
    pub const fn reader(rate: Bitrate) -> Self {
        let priority = Self::DEFAULT_PRIORITY;
        let (request, piece, deadline, place) = (None, None, None, None);
        let (direction, grace) = (Direction::Read, Duration::ZERO);
        Self { direction, rate, request, piece, deadline, grace, place, priority, account: None }
    }

    /// A recorder at `rate` that leaves everything else to the admission.
    pub const fn writer(rate: Bitrate) -> Self {
        Self { direction: Direction::Write, ..Self::reader(rate) }
    }
}

/// What a stream was promised: a request of this length every period, each complete by its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Length of a request. What follows on the device may be asked for in pieces, which are merged.
    pub request: Bytes,
    /// What a request plays for.
    pub period: Duration,
    /// The time from a request's arrival to its deadline.
    pub deadline: Duration,
    /// From this instant on: later than the admission where other streams change to longer requests first.
    pub since: Instant,
}

impl Terms {
    /// Bytes of memory that the stream's owner must have for it: what plays during deadline and period, because a request
    /// may be complete as soon as it is asked for and is played until a period after its deadline.
    pub fn buffer(&self) -> Bytes {
        let period = self.period.as_nanos().max(1);
        let ahead = u128::from(self.request.0) * self.deadline.as_nanos();
        Bytes(self.request.0.saturating_add(u64::try_from(ahead.div_ceil(period)).unwrap_or(u64::MAX)))
    }
}

/// An admitted stream. To be given back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reservation holds disk time until it is released"]
pub struct Reservation {
    pub(crate) stream: StreamId,
    pub(crate) terms: Terms,
}

impl Reservation {
    /// The stream that has it.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// The terms of its admission or last change. Those of now: [`Scheduler::terms`](crate::Scheduler::terms).
    pub fn terms(&self) -> Terms {
        self.terms
    }
}

/// A stream that was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// What is lacking.
    pub why: Why,
    /// A rate at which the same stream would be admitted now; `None`: at none worth asking for.
    pub fits: Option<Bitrate>,
}

/// What a stream's admission lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is no stream: a flush, or nothing, or nothing at all in no time.
    NoStream,
    /// A reservation of this name exists.
    AlreadyAdmitted,
    /// Its share of the device's time is more than what is left. Both in thousandths, what is needed rounded up.
    NoTime {
        /// What the stream needs.
        needed_permille: u32,
        /// What is left beside the admitted streams and the floors.
        free_permille: u32,
    },
    /// The account has no more than this left of what it may be promised, or all accounts together. Both in thousandths of
    /// the device's time, what is needed rounded up.
    AccountFull {
        /// What the stream needs.
        needed_permille: u32,
        /// What is left of the account, or of all of them.
        free_permille: u32,
    },
    /// There is time on average, but when all streams want their requests at once, a deadline would be missed.
    DeadlineTooShort {
        /// How long after such a moment.
        after: Duration,
        /// How long the requests due by then take, all else included.
        demand: Duration,
    },
    /// The buffers of all streams would take more memory than there is for them.
    NoMemory {
        /// What the stream needs.
        needed: Bytes,
        /// What is left beside the admitted streams.
        free: Bytes,
    },
    /// The streams on the device are late, and have not been well for long enough since.
    Congested {
        /// What they are promised of the device's time, in thousandths.
        promised_permille: u32,
        /// How late the hundredth part of the streams' last requests were that came last.
        lateness: Duration,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStream => {
                write!(f, "a stream reads or writes more than nothing, at a rate, by a deadline")
            }
            Self::AlreadyAdmitted => {
                write!(f, "the stream is admitted already: change its rate or release it")
            }
            Self::NoTime { needed_permille, free_permille } => write!(
                f,
                "the stream takes {}.{} % of the device's time and {}.{} % are free: release another stream or \
                 make its requests larger",
                needed_permille / 10,
                needed_permille % 10,
                free_permille / 10,
                free_permille % 10
            ),
            Self::AccountFull { needed_permille, free_permille } => write!(
                f,
                "the stream takes {}.{} % of the device's time and {}.{} % are left of what its user, or all users together, may \
                 reserve: release another stream of the user's, or let the administrator name the rate",
                needed_permille / 10,
                needed_permille % 10,
                free_permille / 10,
                free_permille % 10
            ),
            Self::DeadlineTooShort { after, demand } => write!(
                f,
                "requests due within {after:?} may take {demand:?}: give the stream a later deadline or release \
                 another one"
            ),
            Self::NoMemory { needed, free } => write!(
                f,
                "the stream's buffers take {needed} and {free} are free: release another stream or give the \
                 streams more memory"
            ),
            Self::Congested { promised_permille, lateness } => write!(
                f,
                "streams are promised {}.{} % of the device's time and are late by {lateness:?}: wait until they are \
                 well or release one",
                promised_permille / 10,
                promised_permille % 10
            ),
        }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)?;
        match self.fits {
            Some(rate) => write!(f, " (there is room for {} kbit/s)", rate.0 / 1000),
            None => Ok(()),
        }
    }
}

impl core::error::Error for Rejected {}

/// How a stream that holds a reservation is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamState {
    /// Its deadlines hold.
    Active,
    /// It asked for nothing for so long that others may have its time. Its next request makes it active again if
    /// there is room, and else demotes it.
    Paused,
    /// The device carries less than was admitted, and others were to be kept. Served as best effort until there
    /// is room again.
    Demoted,
}

/// What is known of a stream that holds a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStatus {
    /// How it is served.
    pub state: StreamState,
    /// What it asked for.
    pub spec: StreamSpec,
    /// What it is promised while it is active.
    pub terms: Terms,
    /// Its part of the device's time then, in thousandths, rounded up.
    pub share_permille: u32,
    /// Its requests that wait for the device.
    pub queued: u32,
    /// Of these: those beyond its rate.
    pub excess: u32,
    /// Requests completed, of any class.
    pub completed: u64,
    /// Their bytes.
    pub bytes: Bytes,
    /// Its real-time requests that completed after their deadlines.
    pub missed: u64,
    /// By how much the latest of them did.
    pub tardiness: Duration,
    /// How long before its deadline the last of its real-time requests completed; negative: after it. `None`: none
    /// has completed yet.
    pub slack_nanoseconds: Option<i64>,
}

/// By when a recorder's request must be written: it was complete in memory at `full_at`, and the recorder goes on
/// filling the rest of its `buffer` at `rate`. t_full + (W − Q)/r. A buffer that holds no more than the request gives
/// no time; a rate of zero gives all of it, [`Instant::FAR_FUTURE`].
pub fn flush_deadline(full_at: Instant, buffer: Bytes, request: Bytes, rate: Bitrate) -> Instant {
    full_at + rate.time_for(buffer.saturating_sub(request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorder_has_time_until_its_buffer_is_full() {
        let rate = Bitrate::from_megabits(80);
        let full_at = Instant::from_nanos(5);
        // 20 MB of 30 MB are left: two seconds at 10 MB/s.
        let deadline = flush_deadline(full_at, Bytes(30_000_000), Bytes(10_000_000), rate);
        assert_eq!(deadline.saturating_since(full_at), Duration::from_secs(2));
        assert_eq!(flush_deadline(full_at, Bytes(1), Bytes(2), rate), full_at);
    }

    #[test]
    fn a_double_buffer_is_two_requests() {
        let terms = |deadline| Terms {
            request: Bytes::from_mib(8),
            period: Duration::from_millis(671),
            deadline,
            since: Instant::ZERO,
        };
        assert_eq!(terms(Duration::from_millis(671)).buffer(), Bytes::from_mib(16));
        assert_eq!(terms(Duration::from_millis(1342)).buffer(), Bytes::from_mib(24));
    }
}
