//! Which streams hold reservations, and which wait for room.
//!
//! **For:** keeping what the filesystem declares of its open files in step with the scheduler's admission, for the
//! engine and its simulation alike. **Excludes:** the decision, which is the scheduler's. **State:** one [`Streams`]
//! beside each scheduler. **Invariants:** a declared stream is admitted or waits, never both; an open over a network
//! cannot be refused, so a stream for which there is no room is served all the same, as best effort, until there is.

use rtsched::{
    Event, Rejected, Reservation, Scheduler, StreamId, StreamSpec, StreamState, StreamStatus, Terms,
};
use std::collections::BTreeMap;
use units::{Duration, Instant};

/// Who waits is asked for again so often: what the device takes is learned, and streams without requests are away.
const ASKED_AGAIN: Duration = Duration::from_secs(2);

/// What is known of a declared stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeclaredStream {
    /// Which.
    pub stream: StreamId,
    /// What it was declared with.
    pub spec: StreamSpec,
    /// How its reservation is doing; `None`: there is no room for it, and it is served as best effort.
    pub admitted: Option<StreamStatus>,
    /// Why it has no reservation, or none for all of its rate.
    pub rejected: Option<Rejected>,
}

/// What a stream is promised from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Which.
    pub stream: StreamId,
    /// `None`: nothing; it is served as best effort, or has ended.
    pub terms: Option<Terms>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    admitted: BTreeMap<StreamId, Admitted>,
    /// First come, first admitted.
    waiting: Vec<(StreamId, StreamSpec, Rejected)>,
    /// When those who wait are asked for again.
    next_asking: Instant,
    /// Events that the scheduler had dropped when it was asked last.
    events_lost: u64,
}

#[derive(Debug)]
struct Admitted {
    reservation: Reservation,
    /// Why it kept its lower rate when it was to change last, if it did.
    rejected: Option<Rejected>,
}

impl Streams {
    /// The stream is as `spec` says from now on, or has ended.
    pub(crate) fn declare(
        &mut self,
        scheduler: &mut Scheduler,
        now: Instant,
        stream: StreamId,
        spec: Option<StreamSpec>,
    ) {
        self.waiting.retain(|&(waiting, ..)| waiting != stream);
        match (self.admitted.remove(&stream), spec) {
            (None, None) => {}
            (None, Some(spec)) => {
                if let Err(rejected) = self.admit(scheduler, now, stream, spec) {
                    tracing::warn!(stream = stream.0, "a stream is served as best effort: {rejected}");
                }
            }
            (Some(Admitted { mut reservation, .. }), Some(spec)) => {
                let rejected = scheduler.change(now, &mut reservation, spec.rate).err();
                if let Some(rejected) = rejected {
                    tracing::warn!(stream = stream.0, "a stream keeps its lower rate: {rejected}");
                }
                self.admitted.insert(stream, Admitted { reservation, rejected });
            }
            (Some(Admitted { reservation, .. }), None) => {
                scheduler.release(now, reservation);
                self.admit_waiting(scheduler, now);
            }
        }
    }

    fn admit(
        &mut self,
        scheduler: &mut Scheduler,
        now: Instant,
        stream: StreamId,
        spec: StreamSpec,
    ) -> Result<(), Rejected> {
        match scheduler.admit(now, stream, &spec) {
            Ok(reservation) => {
                self.admitted.insert(stream, Admitted { reservation, rejected: None });
                Ok(())
            }
            Err(rejected) => {
                if self.waiting.is_empty() {
                    self.next_asking = now + ASKED_AGAIN;
                }
                self.waiting.push((stream, spec, rejected));
                Err(rejected)
            }
        }
    }

    /// Asks for all who wait. That one waits on was told when it began to.
    fn admit_waiting(&mut self, scheduler: &mut Scheduler, now: Instant) {
        for (stream, spec, _) in std::mem::take(&mut self.waiting) {
            let _ = self.admit(scheduler, now, stream, spec);
        }
    }

    /// Appends what has become of promises since the last call; some may be as they were. Of streams that ended, and
    /// whose owner knows that, one may be missing where very much happened.
    pub(crate) fn promises(&mut self, scheduler: &mut Scheduler, now: Instant, promises: &mut Vec<Promise>) {
        if !self.waiting.is_empty() && now >= self.next_asking {
            self.admit_waiting(scheduler, now);
        }
        while let Some(event) = scheduler.pop_event() {
            let (Event::Admitted { stream, .. }
            | Event::Resized { stream, .. }
            | Event::Rejected { stream, .. }
            | Event::Released { stream, .. }
            | Event::Demoted { stream, .. }
            | Event::Restored { stream, .. }) = event
            else {
                continue;
            };
            promises.push(promise(scheduler, stream));
        }
        let lost = scheduler.counters().events_lost;
        if std::mem::replace(&mut self.events_lost, lost) != lost {
            let waiting = self.waiting.iter().map(|(stream, ..)| stream);
            promises.extend(self.admitted.keys().chain(waiting).map(|&stream| promise(scheduler, stream)));
        }
    }

    /// All streams, in the order of their names.
    pub(crate) fn report(&self, scheduler: &Scheduler) -> Vec<DeclaredStream> {
        let admitted = self.admitted.iter().filter_map(|(&stream, held)| {
            let status = scheduler.stream(stream)?;
            let rejected = held.rejected;
            Some(DeclaredStream { stream, spec: status.spec, admitted: Some(status), rejected })
        });
        let waiting = self.waiting.iter().map(|&(stream, spec, rejected)| DeclaredStream {
            stream,
            spec,
            admitted: None,
            rejected: Some(rejected),
        });
        let mut all: Vec<_> = admitted.chain(waiting).collect();
        all.sort_by_key(|report| report.stream);
        all
    }
}

fn promise(scheduler: &Scheduler, stream: StreamId) -> Promise {
    let held = scheduler.stream(stream).filter(|status| status.state != StreamState::Demoted);
    Promise { stream, terms: held.map(|status| status.terms) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtsched::Config;
    use units::Bitrate;

    /// What was said of each stream last.
    fn told(declared: &mut Streams, scheduler: &mut Scheduler) -> BTreeMap<u64, Option<Terms>> {
        let mut promises = Vec::new();
        declared.promises(scheduler, Instant::ZERO, &mut promises);
        promises.iter().map(|promise| (promise.stream.0, promise.terms)).collect()
    }

    #[test]
    fn what_a_stream_is_promised_is_told_also_when_events_are_lost() {
        for event_capacity in [1024, 1] {
            let mut scheduler = Scheduler::new(Config { event_capacity, ..Config::default() });
            let mut declared = Streams::default();
            let now = Instant::ZERO;
            let spec = StreamSpec::reader(Bitrate::from_megabits(100));
            for id in 1..=8 {
                declared.declare(&mut scheduler, now, StreamId(id), Some(spec));
            }
            let first = told(&mut declared, &mut scheduler);
            for id in 1..=8 {
                assert_eq!(first[&id], scheduler.terms(StreamId(id)), "{id}");
                assert!(first[&id].is_some());
            }
            declared.declare(&mut scheduler, now, StreamId(3), None);
            assert_eq!(told(&mut declared, &mut scheduler)[&3], None);
            assert!(told(&mut declared, &mut scheduler).is_empty());
        }
    }

    /// The thirteenth of thirteen players was refused for a hundredth of the device, and was never asked for again until
    /// somebody left.
    #[test]
    fn who_finds_no_room_is_asked_for_again_though_nobody_leaves() {
        let config = Config::default();
        let (timeout, nanosecond) = (config.reservation_timeout, Duration::from_nanos(1));
        for (after, admitted) in [(timeout - nanosecond, false), (timeout, true)] {
            let mut scheduler = Scheduler::new(config.clone());
            let mut declared = Streams::default();
            let spec = StreamSpec::reader(Bitrate::from_megabits(1000));
            for id in 1..=2 {
                declared.declare(&mut scheduler, Instant::ZERO, StreamId(id), Some(spec));
            }
            assert_eq!(streams(&declared, &scheduler), [(1, true), (2, false)]);
            // The first one has stopped, and lets its reservation lie.
            declared.promises(&mut scheduler, Instant::ZERO + after, &mut Vec::new());
            assert_eq!(streams(&declared, &scheduler), [(1, true), (2, admitted)]);
        }
    }

    fn streams(streams: &Streams, scheduler: &Scheduler) -> Vec<(u64, bool)> {
        streams.report(scheduler).iter().map(|report| (report.stream.0, report.admitted.is_some())).collect()
    }

    #[test]
    fn who_finds_no_room_is_admitted_when_somebody_leaves() {
        let mut scheduler = Scheduler::new(Config::default());
        let mut declared = Streams::default();
        let now = Instant::ZERO;
        let spec = StreamSpec::reader(Bitrate::from_megabits(700));
        for id in 1..=3 {
            declared.declare(&mut scheduler, now, StreamId(id), Some(spec));
        }
        let before = streams(&declared, &scheduler);
        assert_eq!(before.first(), Some(&(1, true)));
        assert_eq!(before.last(), Some(&(3, false)), "a disk array carries 1.36 Gbit/s at the most");
        assert!(
            declared.report(&scheduler).iter().all(|one| one.admitted.is_some() != one.rejected.is_some())
        );
        // Who waits and leaves is not admitted afterwards.
        declared.declare(&mut scheduler, now, StreamId(3), None);
        for (id, admitted) in before {
            if admitted {
                declared.declare(&mut scheduler, now, StreamId(id), None);
            }
        }
        assert!(streams(&declared, &scheduler).iter().all(|&(id, admitted)| id != 3 && admitted));
        // Who wants more than there is keeps what it has, and hears why.
        declared.declare(
            &mut scheduler,
            now,
            StreamId(2),
            Some(StreamSpec::reader(Bitrate::from_megabits(9000))),
        );
        let [kept] = declared.report(&scheduler)[..] else { panic!("one stream is left") };
        assert_eq!((kept.admitted.is_some(), kept.rejected.is_some()), (true, true));
        assert_eq!(kept.spec.rate, Bitrate::from_megabits(700));
        declared.declare(&mut scheduler, now, StreamId(2), None);
        assert_eq!(streams(&declared, &scheduler), []);
    }
}
