//! The last hour, in points of ten seconds.

use avfs_core::events::{DeviceWork, EventKind, EventReport, StreamsReport};
use serde::Serialize;
use std::collections::VecDeque;
use std::time::Duration;

/// From one point to the next: the page's hour is 360 of them. An operator's target.
pub(crate) const EACH: Duration = Duration::from_secs(10);
/// An hour of them.
const MOST: usize = 360;
/// Version of what is answered: fields are only added to one.
const VERSION: u32 = 1;

/// What was in ten seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Point {
    /// When it ended, in milliseconds since 1970 UTC.
    at_milliseconds: i64,
    /// For what part of the time the device worked, in thousandths.
    busy_permille: u64,
    /// What streams were promised of its time then, in thousandths.
    promised_permille: u32,
    /// Bytes read from the device each second.
    read_bytes_per_second: u64,
    /// Bytes written to it each second.
    written_bytes_per_second: u64,
    /// Streams that there were.
    streams: usize,
    /// How often a client noticed that storage was late.
    late: u64,
}

/// See the module.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct History {
    version: u32,
    every_seconds: u64,
    points: VecDeque<Point>,
    #[serde(skip)]
    before: Option<(u64, DeviceWork)>,
    /// The number of the next event.
    #[serde(skip)]
    pub(crate) next_event: u64,
}

impl History {
    pub(crate) fn new() -> Self {
        Self { version: VERSION, every_seconds: EACH.as_secs(), ..Self::default() }
    }

    /// One more point: `events` are those from [`next_event`](Self::next_event) on.
    pub(crate) fn add(&mut self, now: &StreamsReport, events: &[EventReport]) {
        let is_late = |event: &&EventReport| event.kind == EventKind::Late && event.is_noticed;
        let late = events.iter().filter(is_late).map(|event| u64::from(event.count)).sum();
        let is_first = self.next_event == 0;
        self.next_event =
            events.last().map_or(self.next_event.max(1), |event| event.number.saturating_add(1));
        let device = now.device.clone();
        let Some((clock, before)) = self.before.replace((now.clock_microseconds, device.clone())) else {
            return;
        };
        let microseconds = now.clock_microseconds.saturating_sub(clock).max(1);
        let each_second = |now: u64, before: u64| {
            u64::try_from(u128::from(now.saturating_sub(before)) * 1_000_000 / u128::from(microseconds))
                .unwrap_or(0)
        };
        if self.points.len() == MOST {
            self.points.pop_front();
        }
        self.points.push_back(Point {
            at_milliseconds: now.at_milliseconds,
            busy_permille: (each_second(device.busy_microseconds, before.busy_microseconds) / 1000).min(1000),
            promised_permille: device.promised_permille,
            read_bytes_per_second: each_second(device.read_bytes, before.read_bytes),
            written_bytes_per_second: each_second(device.written_bytes, before.written_bytes),
            streams: now.streams.len(),
            late: if is_first { 0 } else { late },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(second: u64) -> StreamsReport {
        StreamsReport {
            version: 1,
            at_milliseconds: second as i64 * 1000,
            clock_microseconds: second * 1_000_000,
            streams: Vec::new(),
            device: DeviceWork {
                busy_microseconds: second * 250_000,
                read_bytes: second * 4096,
                ..DeviceWork::default()
            },
            room: Vec::new(),
        }
    }

    #[test]
    fn points_are_differences_and_an_hour_is_kept() {
        let mut history = History::new();
        (0..500).for_each(|turn| history.add(&report(turn * 10), &[]));
        assert_eq!(history.points.len(), MOST);
        let last = history.points.back().unwrap();
        assert_eq!((last.busy_permille, last.read_bytes_per_second, last.late), (250, 4096, 0));
        assert_eq!(last.at_milliseconds - history.points[0].at_milliseconds, 359 * 10_000);
    }
}
