//! Which streams hold reservations, and which wait for room.
//!
//! **For:** keeping what the filesystem declares of its open files in step with the scheduler's admission, for the
//! engine and its simulation alike. **Excludes:** the decision, which is the scheduler's. **State:** one [`Streams`]
//! beside each scheduler. **Invariants:** a declared stream is admitted or waits, never both; an open over a network
//! cannot be refused, so a stream for which there is no room is served all the same, as best effort, until there is.
//!
//! A reader for which there is nearly room is promised the part of its rate for which there is, and the rest when there is more. As best
//! effort alone it waited for seconds while the device had a fourteenth of its time free.
//!
//! As long as nothing without a guarantee uses the device, streams are promised nearly all of it. A copy reads on and on as a
//! player does, and held the last of it for two to four seconds. With copies and random reads that came in the same moment, of
//! twelve players that had just begun some were late in one of three rehearsals. So a stream that is admitted only because there is
//! no background load is promised nothing before it is known to be one. It is served as a stream meanwhile; should others come, it
//! is refused.

use super::incidents::{Incident, Incidents};
use rtsched::{
    BackgroundLoad, Confidence, Direction, Event, Rejected, Reservation, Scheduler, StreamId, StreamSpec,
    StreamState, StreamStatus, Terms, Why,
};
use std::collections::BTreeMap;
use units::{Duration, Instant};

/// A stream that waits for room is asked for again so often. What the device takes is learned, and streams without requests are
/// away. An operator's target.
const ASKED_AGAIN: Duration = Duration::from_secs(2);

/// What is known of a declared stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeclaredStream {
    /// Which.
    pub stream: StreamId,
    /// What it was declared with.
    pub spec: StreamSpec,
    /// How its reservation is doing; `None`: there is no room for it, and it is served as best effort, or it is not known yet whether
    /// it is one.
    pub admitted: Option<StreamStatus>,
    /// Why there is no room for it, or not for all of its rate.
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
    /// Those of them that are promised nothing before they are known to be streams, the last one admitted last.
    guessed: Vec<StreamId>,
    /// Streams to tell of, for which the scheduler has no event.
    changed: Vec<StreamId>,
    /// First come, first admitted.
    waiting: Vec<Waiting>,
    /// When what lacks something is asked for again, if anything lacked something.
    next_asking: Option<Instant>,
    /// Events that the scheduler had dropped when it was asked last.
    events_lost: u64,
    /// What has happened to streams.
    pub(crate) incidents: Incidents,
}

#[derive(Debug)]
struct Admitted {
    reservation: Reservation,
    /// What was declared.
    wanted: StreamSpec,
    /// Why it has a lower rate than that, if it does: it is asked for again with those that wait.
    rejected: Option<Rejected>,
}

#[derive(Debug)]
struct Waiting {
    stream: StreamId,
    spec: StreamSpec,
    confidence: Confidence,
    rejected: Rejected,
}

impl Streams {
    /// The stream is as is said from now on, or has ended.
    pub(crate) fn declare(
        &mut self,
        scheduler: &mut Scheduler,
        now: Instant,
        stream: StreamId,
        wanted: Option<(StreamSpec, Confidence)>,
    ) {
        if let Some((spec, confidence)) = wanted
            && let Some(waiting) =
                self.waiting.iter_mut().find(|waiting| waiting.stream == stream && waiting.spec == spec)
        {
            // It keeps its turn.
            waiting.confidence = confidence;
            return;
        }
        self.waiting.retain(|waiting| waiting.stream != stream);
        match (self.admitted.remove(&stream), wanted) {
            (None, None) => {}
            (None, Some((spec, confidence))) => {
                if let Err(rejected) = self.admit(scheduler, now, stream, spec, confidence) {
                    self.incidents.add(Incident::Refused { stream, spec, rejected });
                }
            }
            (Some(admitted), Some((spec, confidence))) => {
                let admitted = change(scheduler, now, stream, admitted, spec);
                if let Some(rejected) = admitted.rejected {
                    self.incidents.add(Incident::Refused { stream, spec, rejected });
                    self.ask_again(now);
                }
                self.admitted.insert(stream, admitted);
                if confidence == Confidence::Known && self.is_guessed(stream) {
                    self.guessed.retain(|guessed| *guessed != stream);
                    self.changed.push(stream);
                }
            }
            (Some(Admitted { reservation, .. }), None) => {
                self.guessed.retain(|guessed| *guessed != stream);
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
        confidence: Confidence,
    ) -> Result<(), Rejected> {
        match scheduler.admit(now, stream, &spec) {
            Ok(reservation) => {
                self.admitted.insert(stream, Admitted { reservation, wanted: spec, rejected: None });
                if confidence == Confidence::Guessed
                    && scheduler.admitted_fit(BackgroundLoad::Others).is_err()
                {
                    self.guessed.push(stream);
                }
                Ok(())
            }
            Err(rejected) => {
                let part = part_that_fits(&spec, confidence, &rejected);
                if let Some(reservation) = part.and_then(|part| scheduler.admit(now, stream, &part).ok()) {
                    self.ask_again(now);
                    self.incidents.add(Incident::Refused { stream, spec, rejected });
                    let rejected = Some(rejected);
                    self.admitted.insert(stream, Admitted { reservation, wanted: spec, rejected });
                    return Ok(());
                }
                self.wait(now, Waiting { stream, spec, confidence, rejected });
                Err(rejected)
            }
        }
    }

    fn wait(&mut self, now: Instant, waiting: Waiting) {
        self.ask_again(now);
        self.waiting.push(waiting);
    }

    /// Some stream lacks something, and is asked for again in a while; others may be waiting for that already.
    fn ask_again(&mut self, now: Instant) {
        if self.next_asking.is_none() || !self.is_lacking() {
            self.next_asking = Some(now + ASKED_AGAIN);
        }
    }

    fn is_lacking(&self) -> bool {
        !self.waiting.is_empty() || self.admitted.values().any(|admitted| admitted.rejected.is_some())
    }

    /// Asks for all that lack something, those first that play already. That one waits on was told when it began to.
    fn admit_waiting(&mut self, scheduler: &mut Scheduler, now: Instant) {
        self.next_asking = None;
        let in_part = self.admitted.iter().filter(|(_, admitted)| admitted.rejected.is_some());
        for (stream, wanted) in
            in_part.map(|(&stream, admitted)| (stream, admitted.wanted)).collect::<Vec<_>>()
        {
            let Some(admitted) = self.admitted.remove(&stream) else { continue };
            let admitted = change(scheduler, now, stream, admitted, wanted);
            if admitted.rejected.is_some() {
                self.ask_again(now);
            }
            self.admitted.insert(stream, admitted);
        }
        for Waiting { stream, spec, confidence, .. } in std::mem::take(&mut self.waiting) {
            let _ = self.admit(scheduler, now, stream, spec, confidence);
        }
    }

    /// Others have come, beside which guessed streams would not have been admitted: nothing was promised.
    fn refuse_guessed(&mut self, scheduler: &mut Scheduler, now: Instant) {
        let background = scheduler.background_load(now);
        while background != BackgroundLoad::Nothing
            && let Some(&stream) = self.guessed.last()
            && let Err(why) = scheduler.admitted_fit(background)
        {
            self.guessed.pop();
            let Some(Admitted { reservation, .. }) = self.admitted.remove(&stream) else { continue };
            if let Some(StreamStatus { spec, .. }) = scheduler.stream(stream) {
                let rejected = Rejected { why, fits: None };
                self.incidents.add(Incident::Refused { stream, spec, rejected });
                self.wait(now, Waiting { stream, spec, confidence: Confidence::Guessed, rejected });
            }
            scheduler.release(now, reservation);
        }
    }

    fn is_guessed(&self, stream: StreamId) -> bool {
        self.guessed.contains(&stream)
    }

    /// Appends what has become of promises since the last call; some may be as they were. Of streams that ended, and
    /// whose owner knows that, one may be missing where very much happened.
    pub(crate) fn promises(&mut self, scheduler: &mut Scheduler, now: Instant, promises: &mut Vec<Promise>) {
        self.refuse_guessed(scheduler, now);
        if self.next_asking.is_some_and(|at| at <= now) {
            self.admit_waiting(scheduler, now);
        }
        let mut changed = std::mem::take(&mut self.changed);
        while let Some(event) = scheduler.pop_event() {
            match event {
                Event::Demoted { stream, why, .. } => self.incidents.add(Incident::Demoted { stream, why }),
                Event::Restored { stream, .. } => self.incidents.add(Incident::Restored { stream }),
                _ => {}
            }
            if let Event::Admitted { stream, .. }
            | Event::Resized { stream, .. }
            | Event::Rejected { stream, .. }
            | Event::Released { stream, .. }
            | Event::Demoted { stream, .. }
            | Event::Restored { stream, .. } = event
            {
                changed.push(stream);
            }
        }
        let lost = scheduler.counters().events_lost;
        if std::mem::replace(&mut self.events_lost, lost) != lost {
            changed.extend(self.admitted.keys().chain(self.waiting.iter().map(|waiting| &waiting.stream)));
        }
        let told = changed.iter().filter(|stream| !self.is_guessed(**stream));
        promises.extend(told.map(|&stream| promise(scheduler, stream)));
        changed.clear();
        self.changed = changed;
    }

    /// The same with how well each is known.
    pub(crate) fn report_with_confidence(&self, scheduler: &Scheduler) -> Vec<(DeclaredStream, Confidence)> {
        let waits = |stream: StreamId| self.waiting.iter().find(|waiting| waiting.stream == stream);
        let confidence = |stream: StreamId| match waits(stream) {
            Some(waiting) => waiting.confidence,
            None if self.is_guessed(stream) => Confidence::Guessed,
            None => Confidence::Known,
        };
        self.report(scheduler).into_iter().map(|one| (one, confidence(one.stream))).collect()
    }

    /// All streams, in the order of their names.
    pub(crate) fn report(&self, scheduler: &Scheduler) -> Vec<DeclaredStream> {
        let admitted = self.admitted.iter().filter_map(|(&stream, held)| {
            let status = scheduler.stream(stream)?;
            let (admitted, rejected) = ((!self.is_guessed(stream)).then_some(status), held.rejected);
            Some(DeclaredStream { stream, spec: status.spec, admitted, rejected })
        });
        let waiting = self.waiting.iter().map(|&Waiting { stream, spec, rejected, .. }| DeclaredStream {
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

/// The part of a stream for which there is room: of a reader that is known to be one, if all that it lacks is time, and there is enough
/// for half of it. With less than half its requests would be too short to pay for their accesses. A recorder is not helped: what it writes
/// beyond its promise would fill the memory.
fn part_that_fits(spec: &StreamSpec, confidence: Confidence, rejected: &Rejected) -> Option<StreamSpec> {
    let is_reader = confidence == Confidence::Known && spec.direction == Direction::Read;
    let rate = rejected.fits.filter(|_| is_reader && matches!(rejected.why, Why::NoTime { .. }))?;
    (rate.0 >= spec.rate.0 / 2).then_some(StreamSpec { rate, ..*spec })
}

/// An admitted stream is as is said from now on; it keeps its rate where there is no room for more.
fn change(
    scheduler: &mut Scheduler,
    now: Instant,
    stream: StreamId,
    mut admitted: Admitted,
    spec: StreamSpec,
) -> Admitted {
    admitted.wanted = spec;
    if scheduler.stream(stream).is_some_and(|status| status.spec == spec) {
        admitted.rejected = None;
        return admitted;
    }
    admitted.rejected = scheduler.change(now, &mut admitted.reservation, spec.rate).err();
    admitted
}

fn promise(scheduler: &Scheduler, stream: StreamId) -> Promise {
    let held = scheduler.stream(stream).filter(|status| status.state != StreamState::Demoted);
    Promise { stream, terms: held.map(|status| status.terms) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtsched::{Class, Config, Direction, Request, RequestId};
    use units::{Bitrate, Bytes, DeviceOffset};

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
                declared.declare(&mut scheduler, now, StreamId(id), Some((spec, Confidence::Known)));
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

    /// The thirteenth of thirteen players was refused for a hundredth of the device, and was never asked for again until another
    /// stream left.
    #[test]
    fn a_stream_without_room_is_asked_for_again_though_no_other_leaves() {
        let config = Config::default();
        let (timeout, nanosecond) = (config.reservation_timeout, Duration::from_nanos(1));
        for (after, admitted) in [(timeout - nanosecond, false), (timeout, true)] {
            let mut scheduler = Scheduler::new(config.clone());
            let mut declared = Streams::default();
            let spec = StreamSpec::reader(Bitrate::from_megabits(1000));
            for id in 1..=2 {
                declared.declare(
                    &mut scheduler,
                    Instant::ZERO,
                    StreamId(id),
                    Some((spec, Confidence::Known)),
                );
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
    fn a_stream_without_room_is_admitted_when_another_leaves() {
        let mut scheduler = Scheduler::new(Config::default());
        let mut declared = Streams::default();
        let now = Instant::ZERO;
        // Recorders: they have all that they want, or wait.
        let spec = StreamSpec::writer(Bitrate::from_megabits(700));
        for id in 1..=3 {
            declared.declare(&mut scheduler, now, StreamId(id), Some((spec, Confidence::Known)));
        }
        let before = streams(&declared, &scheduler);
        assert_eq!(before.first(), Some(&(1, true)));
        assert_eq!(before.last(), Some(&(3, false)), "a disk array carries 1.36 Gbit/s at the most");
        assert!(
            declared.report(&scheduler).iter().all(|one| one.admitted.is_some() != one.rejected.is_some())
        );
        // A stream that waits and leaves is not admitted afterwards.
        declared.declare(&mut scheduler, now, StreamId(3), None);
        for (id, admitted) in before {
            if admitted {
                declared.declare(&mut scheduler, now, StreamId(id), None);
            }
        }
        assert!(streams(&declared, &scheduler).iter().all(|&(id, admitted)| id != 3 && admitted));
        // A stream that wants more than there is keeps what it has, and hears why.
        declared.declare(
            &mut scheduler,
            now,
            StreamId(2),
            Some((StreamSpec::writer(Bitrate::from_megabits(9000)), Confidence::Known)),
        );
        let [kept] = declared.report(&scheduler)[..] else { panic!("one stream is left") };
        assert_eq!((kept.admitted.is_some(), kept.rejected.is_some()), (true, true));
        assert_eq!(kept.spec.rate, Bitrate::from_megabits(700));
        declared.declare(&mut scheduler, now, StreamId(2), None);
        assert_eq!(streams(&declared, &scheduler), []);
    }

    /// Seven players of 100 Mbit/s, and one of `last` that is only guessed to be one.
    fn seven_and(scheduler: &mut Scheduler, last: Bitrate) -> Streams {
        let mut declared = Streams::default();
        let spec = StreamSpec::reader(Bitrate::from_megabits(100));
        for id in 1..=7 {
            declared.declare(scheduler, Instant::ZERO, StreamId(id), Some((spec, Confidence::Known)));
        }
        let guessed = Some((StreamSpec::reader(last), Confidence::Guessed));
        declared.declare(scheduler, Instant::ZERO, StreamId(8), guessed);
        declared
    }

    /// The highest rates of an eighth stream with which all are admitted, beside others and without them.
    fn highest(background: BackgroundLoad) -> Bitrate {
        let fits = |megabits: u64| {
            let mut scheduler = Scheduler::new(Config::default());
            let declared = seven_and(&mut scheduler, Bitrate::from_megabits(megabits));
            declared.admitted.contains_key(&StreamId(8)) && scheduler.admitted_fit(background).is_ok()
        };
        Bitrate::from_megabits(
            (1..1000).take_while(|&megabits| fits(megabits)).last().expect("there is room"),
        )
    }

    /// Best effort takes a tenth of the device.
    fn copy(scheduler: &mut Scheduler) {
        for id in 0..64 {
            let request = Request {
                id: RequestId(1000 + id),
                direction: Direction::Read,
                offset: DeviceOffset(id << 33),
                length: Bytes::from_mib(1),
                class: Class::BestEffort,
                deadline: None,
                stream: None,
            };
            scheduler.enqueue(Instant::ZERO, request);
        }
    }

    /// A copy came together with others that had not been seen yet. It was promised the last of the device as a thirteenth player,
    /// and held it for two to four seconds. Of twelve players that had just begun some were late in 24 of 72 rehearsals. The
    /// boundary pair: what others leave is promised at once, a megabit more only to a confirmed stream.
    #[test]
    fn the_last_of_the_device_is_promised_only_to_confirmed_streams() {
        let (above_others, above_nothing) =
            (highest(BackgroundLoad::Others), highest(BackgroundLoad::Nothing));
        assert!(above_others < above_nothing, "{above_others:?} {above_nothing:?}");
        let stream = StreamId(8);
        for (rate, at_once) in
            [(above_others, true), (Bitrate(above_others.0 + 1_000_000), false), (above_nothing, false)]
        {
            let mut scheduler = Scheduler::new(Config::default());
            let mut declared = seven_and(&mut scheduler, rate);
            assert_eq!(told(&mut declared, &mut scheduler).contains_key(&8), at_once, "{rate:?}");
            assert_eq!(streams(&declared, &scheduler).last(), Some(&(8, at_once)));
            let known = Some((StreamSpec::reader(rate), Confidence::Known));
            declared.declare(&mut scheduler, Instant::ZERO, stream, known);
            let terms = scheduler.terms(stream);
            assert!(terms.is_some());
            let now = told(&mut declared, &mut scheduler);
            assert_eq!(now.get(&8), (!at_once).then_some(&terms), "once, {rate:?}");
            // It is promised now, whatever comes.
            copy(&mut scheduler);
            assert!(told(&mut declared, &mut scheduler).is_empty());
            assert_eq!(streams(&declared, &scheduler).last(), Some(&(8, true)));
        }
    }

    #[test]
    fn a_guessed_stream_is_refused_when_others_come() {
        let mut scheduler = Scheduler::new(Config::default());
        let mut declared = seven_and(&mut scheduler, highest(BackgroundLoad::Nothing));
        assert!(!told(&mut declared, &mut scheduler).contains_key(&8));
        copy(&mut scheduler);
        assert_eq!(told(&mut declared, &mut scheduler), BTreeMap::from([(8, None)]));
        let report = declared.report(&scheduler);
        assert!(report.last().is_some_and(|one| one.admitted.is_none() && one.rejected.is_some()));
        let most = highest(BackgroundLoad::Nothing);
        let known = Some((StreamSpec::reader(most), Confidence::Known));
        declared.declare(
            &mut scheduler,
            Instant::ZERO,
            StreamId(9),
            Some((StreamSpec::writer(most), Confidence::Known)),
        );
        assert_eq!(told(&mut declared, &mut scheduler), BTreeMap::from([(9, None)]));
        // That it is known to be a stream now makes no room, and it waits where it did.
        declared.declare(&mut scheduler, Instant::ZERO, StreamId(8), known);
        assert!(told(&mut declared, &mut scheduler).is_empty());
        let waiting: Vec<_> = declared.waiting.iter().map(|one| (one.stream.0, one.confidence)).collect();
        assert_eq!(waiting, [(8, Confidence::Known), (9, Confidence::Known)]);
        assert_eq!(streams(&declared, &scheduler).iter().filter(|(_, admitted)| *admitted).count(), 7);
    }

    /// The eleventh of eleven players found a fourteenth of the device free and needed an eleventh. It was promised nothing, and waited
    /// for five seconds. The boundary: half of what it wants, for a reader; a recorder waits.
    #[test]
    fn a_reader_is_promised_the_part_for_which_there_is_room() {
        let most = highest(BackgroundLoad::Nothing).0;
        let reader = |rate| StreamSpec::reader(Bitrate(rate));
        let more = Bitrate(most * 3 / 2);
        let cases =
            [(reader(more.0), true), (reader(most * 5 / 2), false), (StreamSpec::writer(more), false)];
        for (spec, in_part) in cases {
            let mut scheduler = Scheduler::new(Config::default());
            let mut declared = seven_and(&mut scheduler, Bitrate::from_megabits(1));
            declared.declare(&mut scheduler, Instant::ZERO, StreamId(8), Some((spec, Confidence::Known)));
            declared.declare(&mut scheduler, Instant::ZERO, StreamId(8), None);
            declared.declare(&mut scheduler, Instant::ZERO, StreamId(9), Some((spec, Confidence::Known)));
            let told = |declared: &Streams, scheduler: &Scheduler| {
                let report = declared.report(scheduler);
                let last = report.last().expect("it is declared");
                (last.admitted.map(|status| status.spec.rate.0), last.rejected.is_some())
            };
            let (promised, is_lacking) = told(&declared, &scheduler);
            assert!(is_lacking && promised.is_some() == in_part, "{spec:?}: {promised:?}");
            assert!(promised.is_none_or(|rate| rate <= most && rate >= spec.rate.0 / 2), "{promised:?}");
            // No stream leaves: it is asked for again, and keeps what it has. Others leave: it has all that it wants.
            let later = Instant::ZERO + ASKED_AGAIN;
            declared.promises(&mut scheduler, later, &mut Vec::new());
            assert_eq!(told(&declared, &scheduler), (promised, true));
            (1..=6).for_each(|id| declared.declare(&mut scheduler, later, StreamId(id), None));
            assert!(told(&declared, &scheduler).0 > promised, "{spec:?}");
            assert!(spec.rate > more || told(&declared, &scheduler) == (Some(more.0), false), "{spec:?}");
        }
    }

    #[test]
    fn a_guessed_stream_that_leaves_leaves_nothing() {
        let mut scheduler = Scheduler::new(Config::default());
        let mut declared = seven_and(&mut scheduler, highest(BackgroundLoad::Nothing));
        declared.declare(&mut scheduler, Instant::ZERO, StreamId(8), None);
        assert!(declared.guessed.is_empty() && scheduler.terms(StreamId(8)).is_none());
        let known = Some((StreamSpec::reader(highest(BackgroundLoad::Nothing)), Confidence::Known));
        declared.declare(&mut scheduler, Instant::ZERO, StreamId(8), known);
        assert_eq!(told(&mut declared, &mut scheduler).get(&8), Some(&scheduler.terms(StreamId(8))));
    }
}
