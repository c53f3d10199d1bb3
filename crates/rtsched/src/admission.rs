//! Which streams may be promised anything?
//!
//! **For:** the test a stream passes before its requests are real time, in disk time: a stream of many small
//! requests costs a device that seeks more than one of few large requests at the same bitrate. **Excludes:**
//! memory for its buffers, which is its owner's to count; what to do with a stream that is rejected (serve it as
//! best effort, say so, and ask again when one was released). **State:** the admitted streams. **Invariants:**
//! what is admitted passes the test together, by the service times at the moment of the last admission.
//!
//! The test is the one for non-preemptive EDF (Jeffay, Stanat and Martel 1991; George, Rivierre and Spuri 1996):
//! for every t, Σ_{D_j ≤ t} (1 + ⌊(t − D_j)/P_j⌋)·C_j + B ≤ t·(1 − F), where B is the longest time for which the
//! device may be found taken and F what the floors may demand. Both sides are evaluated only where quick
//! processor-demand analysis (Zhang and Burns 2009) has to look.

use crate::request::Direction;
use crate::service::ServiceModel;
use alloc::collections::BTreeMap;
use core::fmt;
use units::{Bitrate, Bytes, Duration};

/// A stream that asks for guarantees: one request of one length per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSpec {
    /// What it does; [`Direction::Flush`] is no stream.
    pub direction: Direction,
    /// Length of each request, above zero. The period is what that plays at `rate`.
    pub request: Bytes,
    /// What it plays or records, above zero.
    pub rate: Bitrate,
    /// The time each request has from its arrival to its deadline, above zero. Longer than the period where the
    /// stream reads ahead: such streams are cheaper to admit.
    pub deadline: Duration,
}

/// An admitted stream: its requests, one a period, meet their deadlines. To be given back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reservation holds disk time until it is released"]
pub struct Reservation(u64);

/// Why a stream was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// It is no stream: a flush, or nothing, or nothing at all in no time.
    NoStream,
    /// Its share of the device's time is more than what is left. Both in thousandths, what is needed rounded up.
    NoTime {
        /// What the stream needs.
        needed_permille: u32,
        /// What is left beside the admitted streams and the floors.
        free_permille: u32,
    },
    /// There is time on average, but when all streams want their requests at once, a deadline would be missed.
    DeadlineTooShort {
        /// How long after such a moment.
        after: Duration,
        /// How long the requests due by then take, all else included.
        demand: Duration,
    },
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStream => {
                write!(f, "a stream reads or writes more than nothing, at a rate, by a deadline")
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
            Self::DeadlineTooShort { after, demand } => write!(
                f,
                "requests due within {after:?} may take {demand:?}: give the stream a later deadline or release \
                 another one"
            ),
        }
    }
}

impl core::error::Error for Rejected {}

/// An admitted stream in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Task {
    period: u64,
    deadline: u64,
    cost: u64,
}

impl Task {
    fn new(spec: &StreamSpec, service: &ServiceModel) -> Option<Self> {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let period = nanos(spec.rate.time_for(spec.request));
        let deadline = nanos(spec.deadline);
        let is_stream = spec.direction != Direction::Flush && spec.rate.0 > 0 && period > 0 && deadline > 0;
        let cost = service.nanos(spec.direction, spec.request);
        is_stream.then_some(Self { period, deadline, cost })
    }

    /// Nanoseconds this stream demands of any span of `time` at most.
    fn demand(&self, time: u64) -> u128 {
        let Some(more) = time.checked_sub(self.deadline) else { return 0 };
        (1 + u128::from(more / self.period)) * u128::from(self.cost)
    }

    /// Its last deadline before `time`, if its first is.
    fn deadline_before(&self, time: u64) -> Option<u64> {
        let more = time.checked_sub(self.deadline)?.checked_sub(1)?;
        Some(self.deadline + more / self.period * self.period)
    }

    /// Nanoseconds it may demand of any time beyond its share of it: its deadlines come sooner than its period.
    fn burst(&self) -> u128 {
        (self.share() * u128::from(self.period.saturating_sub(self.deadline))).div_ceil(BILLION)
    }

    /// Its share of the device's time in parts per 10^9, rounded up.
    fn share(&self) -> u128 {
        (u128::from(self.cost) * BILLION).div_ceil(u128::from(self.period))
    }
}

const BILLION: u128 = 1_000_000_000;

/// What others may take beside the streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Others {
    /// The floors' shares together.
    pub(crate) floors_permille: u32,
    /// The longest command of a class without guarantees, nanoseconds.
    pub(crate) longest: u64,
    /// What the device may be filled with, as a percentage of the shortest deadline.
    pub(crate) blocking_percent: u32,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Admission {
    streams: BTreeMap<u64, StreamSpec>,
    admitted: u64,
}

impl Admission {
    /// The shortest deadline among the admitted streams.
    pub(crate) fn shortest_deadline(&self) -> Option<Duration> {
        self.streams.values().map(|spec| spec.deadline).min()
    }

    /// The admitted streams' share of the device's time, in thousandths, rounded up; may exceed 1000 when the
    /// device became slower.
    pub(crate) fn permille(&self, service: &ServiceModel) -> u32 {
        let share: u128 = self.tasks(service).map(|task| task.share()).sum();
        u32::try_from(share.div_ceil(BILLION / 1000)).unwrap_or(u32::MAX)
    }

    /// Nanoseconds that the admitted streams may demand of any time beyond their share of it.
    pub(crate) fn burst(&self, service: &ServiceModel) -> u64 {
        let burst: u128 = self.tasks(service).map(|task| task.burst()).sum();
        u64::try_from(burst).unwrap_or(u64::MAX)
    }

    fn tasks(&self, service: &ServiceModel) -> impl Iterator<Item = Task> + Clone {
        self.streams.values().filter_map(|spec| Task::new(spec, service))
    }

    pub(crate) fn admit(
        &mut self,
        spec: &StreamSpec,
        service: &ServiceModel,
        others: Others,
    ) -> Result<Reservation, Rejected> {
        let task = Task::new(spec, service).ok_or(Rejected::NoStream)?;
        fits(self.tasks(service), Some(task), others)?;
        self.admitted += 1;
        self.streams.insert(self.admitted, *spec);
        Ok(Reservation(self.admitted))
    }

    pub(crate) fn release(&mut self, reservation: Reservation) {
        self.streams.remove(&reservation.0);
    }

    /// Whether the admitted streams pass the test still.
    pub(crate) fn holds(&self, service: &ServiceModel, others: Others) -> Result<(), Rejected> {
        fits(self.tasks(service), None, others)
    }
}

/// The test, see the module.
fn fits(
    admitted: impl Iterator<Item = Task> + Clone,
    new: Option<Task>,
    others: Others,
) -> Result<(), Rejected> {
    let tasks = admitted.clone().chain(new);
    let Some(shortest) = tasks.clone().map(|task| task.deadline).min() else { return Ok(()) };
    let usable = u128::from(1000 - others.floors_permille.min(999));

    let share: u128 = tasks.clone().map(|task| task.share()).sum();
    // A thousandth less than all: the nearer to all, the farther out the span that settles it.
    if share > (usable - 1) * (BILLION / 1000) {
        let permille = |share: u128| u32::try_from(share.div_ceil(BILLION / 1000)).unwrap_or(u32::MAX);
        let before = permille(admitted.map(|task| task.share()).sum());
        return Err(Rejected::NoTime {
            needed_permille: permille(new.map_or(share, |task| task.share())),
            free_permille: (usable as u32 - 1).saturating_sub(before),
        });
    }

    let filled = u128::from(shortest) * u128::from(others.blocking_percent) / 100;
    let longest = tasks.clone().map(|task| task.cost).max().unwrap_or(0).max(others.longest);
    let blocking = filled.max(u128::from(longest));
    // Time that the demand of a span takes beside the floors. It only grows with the span.
    let demand = |time: u64| {
        let all: u128 = tasks.clone().map(|task| task.demand(time)).sum();
        u64::try_from(((all + blocking) * 1000).div_ceil(usable)).unwrap_or(u64::MAX)
    };
    // Behind this point the average settles it: demand(t) ≤ U·t + Σ U_j·max(P_j − D_j, 0) + B.
    let ahead: u128 = tasks.clone().map(|task| task.burst() + 1).sum();
    let settled = (ahead + blocking) * BILLION / (usable * (BILLION / 1000) - share) + 1;
    let mut time = u64::try_from(settled).unwrap_or(u64::MAX).max(shortest + 1);
    let deadline_before = |time: u64| tasks.clone().filter_map(|task| task.deadline_before(time)).max();
    time = deadline_before(time).unwrap_or(shortest);
    // Zhang and Burns: from the right, jumping over every span that its own demand already covers.
    loop {
        let needed = demand(time);
        if needed > time {
            return Err(Rejected::DeadlineTooShort {
                after: Duration::from_nanos(time),
                demand: Duration::from_nanos(needed),
            });
        }
        if needed <= shortest {
            return Ok(());
        }
        time = if needed < time {
            needed
        } else {
            match deadline_before(time) {
                Some(before) => before,
                None => return Ok(()),
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::ServiceTime;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const DISK: ServiceTime =
        ServiceTime { access: Duration::from_millis(16), bytes_per_second: Bytes(170_000_000) };
    const NOTHING: Others = Others { floors_permille: 0, longest: 0, blocking_percent: 0 };

    /// The test by its definition, at every nanosecond up to `end`.
    fn fits_by_definition(tasks: &[Task], others: Others, end: u64) -> bool {
        let shortest = tasks.iter().map(|task| task.deadline).min().unwrap();
        let longest = tasks.iter().map(|task| task.cost).max().unwrap().max(others.longest);
        let blocking = longest.max(shortest * u64::from(others.blocking_percent) / 100);
        (shortest..end).all(|time| {
            let demand: u128 = tasks.iter().map(|task| task.demand(time)).sum();
            (demand + u128::from(blocking)) * 1000
                <= u128::from(time) * u128::from(1000 - others.floors_permille)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn the_jumps_find_what_the_definition_finds(
            tasks in prop::collection::vec((1_u64..60, 1_u64..80, 1_u64..12), 1..5),
            floors_permille in 0_u32..300,
            longest in 0_u64..10,
            blocking_percent in 0_u32..30,
        ) {
            let tasks: Vec<Task> =
                tasks.into_iter().map(|(period, deadline, cost)| Task { period, deadline, cost }).collect();
            let others = Others { floors_permille, longest, blocking_percent };
            // With periods below 60 and a share a thousandth below the usable one, nothing new comes after this.
            let defined = fits_by_definition(&tasks, others, 60_000);
            let found = fits(tasks.iter().copied(), None, others);
            // The last thousandth of the usable time is refused although it could go well.
            let share: u128 = tasks.iter().map(Task::share).sum();
            if share <= u128::from(999 - floors_permille) * (BILLION / 1000) {
                prop_assert_eq!(found.is_ok(), defined, "{:?}", found);
            } else {
                prop_assert!(found.is_err());
            }
        }
    }

    #[test]
    fn nine_streams_of_100_megabits_are_admitted_and_not_ten() {
        // ΣC + C_max ≤ P: the nine clean streams, and the misses at ten, that were measured on such a device.
        let spec = StreamSpec {
            direction: Direction::Read,
            request: Bytes::from_mib(8),
            rate: Bitrate::from_megabits(100),
            deadline: Bitrate::from_megabits(100).time_for(Bytes::from_mib(8)),
        };
        let service = ServiceModel::new(DISK, DISK, DISK, false);
        let mut admission = Admission::default();
        for _ in 0..9 {
            let _ = admission.admit(&spec, &service, NOTHING).expect("nine fit");
        }
        let tenth = admission.admit(&spec, &service, NOTHING);
        assert!(matches!(tenth, Err(Rejected::DeadlineTooShort { .. })), "{tenth:?}");
        // With twice the time for each request there is time enough on average, and no more than that.
        let patient = StreamSpec { deadline: spec.deadline * 2, ..spec };
        let _ = admission.admit(&patient, &service, NOTHING).expect("ten fit when one reads ahead");
        let eleventh = admission.admit(&patient, &service, NOTHING);
        assert!(matches!(eleventh, Err(Rejected::NoTime { .. })), "{eleventh:?}");
    }

    #[test]
    fn exactly_full_is_admitted_and_one_nanosecond_less_is_not() {
        let cost = DISK.of(Bytes::from_mib(8));
        let service = ServiceModel::new(DISK, DISK, DISK, false);
        for (short, admitted) in [(Duration::ZERO, true), (Duration::from_nanos(1), false)] {
            let mut admission = Admission::default();
            let spec = StreamSpec {
                direction: Direction::Read,
                request: Bytes::from_mib(8),
                rate: Bitrate::from_megabits(10),
                deadline: cost * 4 - short,
            };
            let taken = (0..3).filter(|_| admission.admit(&spec, &service, NOTHING).is_ok()).count();
            assert_eq!(taken == 3, admitted);
        }
    }

    #[test]
    fn what_is_no_stream_is_rejected_by_name() {
        let good = StreamSpec {
            direction: Direction::Read,
            request: Bytes::from_mib(8),
            rate: Bitrate::from_megabits(100),
            deadline: Duration::from_millis(671),
        };
        let service = ServiceModel::new(DISK, DISK, DISK, false);
        for bad in [
            StreamSpec { direction: Direction::Flush, ..good },
            StreamSpec { request: Bytes::ZERO, ..good },
            StreamSpec { rate: Bitrate(0), ..good },
            StreamSpec { deadline: Duration::ZERO, ..good },
        ] {
            assert_eq!(Admission::default().admit(&bad, &service, NOTHING), Err(Rejected::NoStream));
        }
    }
}
