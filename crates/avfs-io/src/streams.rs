//! Which streams hold reservations, and which wait for room.
//!
//! **For:** keeping what the filesystem declares of its open files in step with the scheduler's admission, for the
//! engine and its simulation alike. **Excludes:** the decision, which is the scheduler's. **State:** one [`Streams`]
//! beside each scheduler. **Invariants:** a declared stream is admitted or waits, never both; an open over a network
//! cannot be refused, so a stream for which there is no room is served all the same, as best effort, until there is.

use rtsched::{Reservation, Scheduler, StreamId, StreamSpec, StreamStatus};
use std::collections::BTreeMap;
use units::Instant;

/// What is known of a declared stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeclaredStream {
    /// Which.
    pub stream: StreamId,
    /// What it was declared with.
    pub spec: StreamSpec,
    /// How its reservation is doing; `None`: there is no room for it, and it is served as best effort.
    pub admitted: Option<StreamStatus>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    admitted: BTreeMap<StreamId, Reservation>,
    /// First come, first admitted.
    waiting: Vec<(StreamId, StreamSpec)>,
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
        self.waiting.retain(|&(waiting, _)| waiting != stream);
        match (self.admitted.remove(&stream), spec) {
            (None, None) => {}
            (None, Some(spec)) => self.admit(scheduler, now, stream, spec),
            (Some(mut reservation), Some(spec)) => {
                if let Err(rejected) = scheduler.change(now, &mut reservation, spec.rate) {
                    tracing::warn!(stream = stream.0, "a stream keeps its lower rate: {rejected}");
                }
                self.admitted.insert(stream, reservation);
            }
            (Some(reservation), None) => {
                scheduler.release(now, reservation);
                for (stream, spec) in std::mem::take(&mut self.waiting) {
                    self.admit(scheduler, now, stream, spec);
                }
            }
        }
    }

    fn admit(&mut self, scheduler: &mut Scheduler, now: Instant, stream: StreamId, spec: StreamSpec) {
        match scheduler.admit(now, stream, &spec) {
            Ok(reservation) => {
                self.admitted.insert(stream, reservation);
            }
            Err(rejected) => {
                tracing::warn!(stream = stream.0, "a stream is served as best effort: {rejected}");
                self.waiting.push((stream, spec));
            }
        }
    }

    /// All streams, in the order of their names.
    pub(crate) fn report(&self, scheduler: &Scheduler) -> Vec<DeclaredStream> {
        let admitted = self.admitted.keys().filter_map(|&stream| {
            let status = scheduler.stream(stream)?;
            Some(DeclaredStream { stream, spec: status.spec, admitted: Some(status) })
        });
        let waiting =
            self.waiting.iter().map(|&(stream, spec)| DeclaredStream { stream, spec, admitted: None });
        let mut all: Vec<_> = admitted.chain(waiting).collect();
        all.sort_by_key(|report| report.stream);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtsched::Config;
    use units::Bitrate;

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
        // Who waits and leaves is not admitted afterwards.
        declared.declare(&mut scheduler, now, StreamId(3), None);
        for (id, admitted) in before {
            if admitted {
                declared.declare(&mut scheduler, now, StreamId(id), None);
            }
        }
        assert!(streams(&declared, &scheduler).iter().all(|&(id, admitted)| id != 3 && admitted));
        declared.declare(&mut scheduler, now, StreamId(2), None);
        assert_eq!(streams(&declared, &scheduler), []);
    }
}
