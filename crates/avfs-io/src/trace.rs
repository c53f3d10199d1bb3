//! What an engine was asked, and what its device did: a recording in bounded memory.
//!
//! **For:** the words of a recording, and the ring that keeps the last of them while a recorder listens. **Excludes:** files, names of
//! streams, and what is made of it. **State:** one [`Ring`] beside the books of an engine, only while it is asked for. **Invariants:**
//! no more than [`MOST_KEPT`] records; a recorder that asks later than that is told how many are lost; a ring that none has asked for ten
//! seconds is given up. Whatever is read back is [checked](Record::check) before it is replayed.

use crate::engine_core::{DeclaredStream, Promise};
use rtsched::{
    Account, Calibrated, Class, Confidence, Config, Direction, Lateness, Request, RequestId, ServiceTime,
    StreamId, StreamSpec, WRITE_LENGTHS,
};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::VecDeque;
use units::{Bitrate, Bytes, DeviceOffset, Duration, Instant, nanos};

/// Records that are kept: some seconds of flash, minutes of disks. About 8 MiB: it bounds memory.
const MOST_KEPT: usize = 1 << 16;
/// Records that are given at once, of which the engine's thread makes a copy: it bounds a turn's length.
pub const MOST_GIVEN: usize = 1 << 12;
/// A recorder that asks for nothing for so long has gone. An operator's patience.
const GONE_AFTER: Duration = Duration::from_secs(10);

/// What a recording begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// When, by the engine's clock, nanoseconds.
    pub at: u64,
    /// What the scheduler was told.
    pub told: Told,
    /// What it reckons with by now: reads, writes, flushes.
    pub learned: [Line; 3],
    /// The streams that were declared.
    pub streams: Vec<Declared>,
    /// The requests that waited for the device.
    pub waiting: Vec<Asked>,
}

/// A declared stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    /// Its name.
    pub stream: u64,
    /// What it is.
    pub wanted: Wanted,
    /// It held a reservation.
    pub admitted: bool,
}

/// One access and a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Nanoseconds before the first byte.
    pub access: u64,
    /// Bytes a second.
    pub rate: u64,
}

/// What a scheduler was told: what an administrator may set, and what was measured. Everything else is as by default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each is the field of rtsched::Config of that name; times in nanoseconds")]
pub struct Told {
    pub queue_depth: u32,
    pub metadata_latency: u64,
    pub best_effort_latency: u64,
    pub best_effort_floor_percent: u32,
    pub idle_floor_percent: u32,
    pub account_max_permille: u32,
    pub accounts_max_permille: u32,
    pub buffer_memory: u64,
    pub buffer_piece: u64,
    pub request_time_max: u64,
    pub device_size: u64,
    pub read: Line,
    pub read_ends: Option<[u64; 2]>,
    pub write: Line,
    pub write_times: Option<[u64; WRITE_LENGTHS.len()]>,
    pub flush: Line,
    pub measured: Measured,
}

/// What of it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "those of rtsched::Calibrated")]
pub enum Measured {
    Nothing,
    Reads,
    All,
}

/// A stream as it was declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    missing_docs,
    reason = "each is the field of rtsched::StreamSpec of that name; times in nanoseconds"
)]
pub struct Wanted {
    pub writes: bool,
    pub bits_per_second: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub piece: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
    #[serde(default)]
    pub grace: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u64>,
    pub priority: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<u64>,
    /// It is known to be a stream, and not guessed.
    pub known: bool,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// Its name until it ends.
    pub tag: u64,
    /// How it is ranked.
    pub class: Rank,
    /// The stream it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<u64>,
    /// What the device is to do.
    pub does: Does,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// By when it is wanted, by the engine's clock, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
}

/// [`Class`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "those of rtsched::Class")]
pub enum Rank {
    RealTime,
    Metadata,
    BestEffort,
    Idle,
}

/// [`Direction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "those of rtsched::Direction")]
pub enum Does {
    Read,
    Write,
    Flush,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Happened {
    /// A request was submitted.
    Asked(Asked),
    /// A client waits for one.
    Promoted {
        /// Which.
        tag: u64,
        /// It gets this class at least.
        class: Rank,
        /// It is one of this stream's.
        stream: Option<u64>,
        /// By when it is wanted.
        deadline: u64,
    },
    /// One was taken back.
    Cancelled {
        /// Which.
        tag: u64,
    },
    /// All that wait of a stream were.
    CancelledStream {
        /// Which.
        stream: u64,
    },
    /// A stream was declared, or has ended.
    Declared {
        /// Which.
        stream: u64,
        /// What it is from now on.
        wanted: Option<Wanted>,
    },
    /// So much is in memory without a promise.
    Accepted {
        /// Requests that will be made of it.
        requests: u32,
        /// Bytes.
        bytes: u64,
    },
    /// What a stream is promised has changed.
    Promised {
        /// Which.
        stream: u64,
        /// Length of its requests; `None`: it is promised nothing.
        request: Option<u64>,
        /// Nanoseconds from a request to its deadline.
        deadline: Option<u64>,
    },
    /// The device was given a command.
    Began {
        /// Its name.
        command: u64,
        /// The requests that it serves.
        tags: SmallVec<[u64; 2]>,
        /// The most urgent class of them.
        class: Rank,
        /// Their stream.
        stream: Option<u64>,
        /// What it does.
        does: Does,
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
    },
    /// The device has done it.
    Ended {
        /// Its name.
        command: u64,
        /// Requests of it that failed.
        failed: u32,
    },
    /// A promised request was late.
    Late {
        /// Whose.
        stream: u64,
        /// Nanoseconds.
        by: u64,
    },
}

/// What happened when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// In the order of the engine's calls, each one more than the one before.
    pub n: u64,
    /// By the engine's clock, nanoseconds.
    pub at: u64,
    /// What.
    pub what: Happened,
}

/// An answer to a recorder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// What the recording begins with, when it begins.
    pub begin: Option<Box<Begin>>,
    /// What has happened since.
    pub records: Vec<Record>,
    /// What to ask for next.
    pub next: u64,
    /// So many records gave way before they were asked for.
    pub lost: u64,
    /// Nanoseconds by the engine's clock.
    pub now: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Ring {
    records: VecDeque<Record>,
    /// The number of the next one.
    next: u64,
    asked: Instant,
}

impl Ring {
    pub(crate) fn new(now: Instant) -> Self {
        Self { records: VecDeque::new(), next: 0, asked: now }
    }

    /// No recorder listens any more.
    pub(crate) fn is_deserted(&self, now: Instant) -> bool {
        now.saturating_since(self.asked) > GONE_AFTER
    }

    pub(crate) fn add(&mut self, now: Instant, what: Happened) {
        if self.records.len() == MOST_KEPT {
            self.records.pop_front();
        }
        // What is told of a moment that has passed, such as that something was late, stands where it was told.
        let at = now.as_nanos().max(self.records.back().map_or(0, |last| last.at));
        self.records.push_back(Record { n: self.next, at, what });
        self.next += 1;
    }

    /// What a recording that begins now asks for first.
    pub(crate) fn next(&mut self, now: Instant) -> u64 {
        self.asked = now;
        self.next
    }

    /// From the one of this number on.
    pub(crate) fn since(&mut self, now: Instant, since: u64) -> Part {
        self.asked = now;
        let first = self.next - self.records.len() as u64;
        let since = since.min(self.next);
        let from = since.max(first);
        let records: Vec<Record> =
            self.records.iter().skip((from - first) as usize).take(MOST_GIVEN).cloned().collect();
        let next = from + records.len() as u64;
        Part { begin: None, records, next, lost: from - since, now: now.as_nanos() }
    }
}

/// Why something that was read is no recording.
pub type Wrong = &'static str;

/// No volume is larger, no time longer: what is reckoned with them does not overflow.
const LARGEST: u64 = 1 << 60;
/// The longest command that there is.
const LONGEST: u64 = 1 << 32;
/// The longest time between two things that belong together, nanoseconds: a day.
pub const A_DAY: u64 = 86_400_000_000_000;

fn within(value: u64, range: std::ops::RangeInclusive<u64>, wrong: Wrong) -> Result<(), Wrong> {
    if range.contains(&value) { Ok(()) } else { Err(wrong) }
}

impl Asked {
    pub(crate) fn of(request: &Request) -> Self {
        Self {
            tag: request.id.0,
            class: request.class.into(),
            stream: request.stream.map(|stream| stream.0),
            does: request.direction.into(),
            offset: request.offset.0,
            length: request.length.0,
            deadline: request.deadline.map(Instant::as_nanos),
        }
    }

    /// As the scheduler is asked.
    pub fn request(&self) -> Request {
        Request {
            id: RequestId(self.tag),
            class: self.class.into(),
            stream: self.stream.map(StreamId),
            direction: self.does.into(),
            offset: DeviceOffset(self.offset),
            length: Bytes(self.length),
            deadline: self.deadline.map(Instant::from_nanos),
        }
    }

    /// Whether it can be a request.
    ///
    /// # Errors
    /// What is wrong, in a few words.
    pub fn check(&self) -> Result<(), Wrong> {
        within(self.offset, 0..=LARGEST, "a request beyond every device")?;
        let shortest = u64::from(self.does != Does::Flush);
        within(self.length, shortest..=LONGEST * shortest, "a request of an impossible length")?;
        within(self.deadline.unwrap_or(0), 0..=LARGEST, "a deadline beyond every time")
    }
}

impl Wanted {
    pub(crate) fn of(spec: &StreamSpec, confidence: Confidence) -> Self {
        Self {
            writes: spec.direction == Direction::Write,
            bits_per_second: spec.rate.0,
            request: spec.request.map(|request| request.0),
            piece: spec.piece.map(|piece| piece.0),
            deadline: spec.deadline.map(nanos),
            grace: nanos(spec.grace),
            place: spec.place.map(|place| place.0),
            priority: spec.priority,
            account: spec.account.map(|account| account.0),
            known: confidence == Confidence::Known,
        }
    }

    /// As the scheduler is asked.
    pub fn spec(&self) -> (StreamSpec, Confidence) {
        let spec = StreamSpec {
            direction: if self.writes { Direction::Write } else { Direction::Read },
            rate: Bitrate(self.bits_per_second),
            request: self.request.map(Bytes),
            piece: self.piece.map(Bytes),
            deadline: self.deadline.map(Duration::from_nanos),
            grace: Duration::from_nanos(self.grace),
            place: self.place.map(DeviceOffset),
            priority: self.priority,
            account: self.account.map(Account),
        };
        (spec, if self.known { Confidence::Known } else { Confidence::Guessed })
    }

    /// Whether it can be a stream.
    ///
    /// # Errors
    /// What is wrong, in a few words.
    pub fn check(&self) -> Result<(), Wrong> {
        within(self.bits_per_second, 1..=1 << 50, "a stream without a rate")?;
        within(self.request.unwrap_or(1), 1..=LONGEST, "a stream's request of an impossible length")?;
        within(self.piece.unwrap_or(1), 1..=LARGEST, "a piece of an impossible length")?;
        within(self.deadline.unwrap_or(1), 1..=A_DAY, "a stream's deadline of more than a day")?;
        within(self.grace, 0..=A_DAY, "a grace of more than a day")?;
        within(self.place.unwrap_or(0), 0..=LARGEST, "a place beyond every device")
    }
}

impl Line {
    /// As the scheduler is told.
    pub fn time(&self) -> ServiceTime {
        ServiceTime { access: Duration::from_nanos(self.access), bytes_per_second: Bytes(self.rate) }
    }

    fn check(&self) -> Result<(), Wrong> {
        within(self.access, 0..=A_DAY, "an access of more than a day")?;
        within(self.rate, 1..=1 << 50, "a device without a rate")
    }
}

impl From<ServiceTime> for Line {
    fn from(time: ServiceTime) -> Self {
        Self { access: nanos(time.access), rate: time.bytes_per_second.0 }
    }
}

impl Told {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            queue_depth: config.queue_depth,
            metadata_latency: nanos(config.metadata_latency),
            best_effort_latency: nanos(config.best_effort_latency),
            best_effort_floor_percent: config.best_effort_floor_percent,
            idle_floor_percent: config.idle_floor_percent,
            account_max_permille: config.account_max_permille,
            accounts_max_permille: config.accounts_max_permille,
            buffer_memory: config.buffer_memory.0,
            buffer_piece: config.buffer_piece.0,
            request_time_max: nanos(config.request_time_max),
            device_size: config.device_size.0,
            read: config.read.into(),
            read_ends: config.read_ends.map(|ends| ends.map(|end| end.0)),
            write: config.write.into(),
            write_times: config.write_times.map(|times| times.map(nanos)),
            flush: config.flush.into(),
            measured: match config.calibrated {
                Calibrated::Nothing => Measured::Nothing,
                Calibrated::Reads => Measured::Reads,
                Calibrated::All => Measured::All,
            },
        }
    }

    /// As the scheduler is told.
    pub fn config(&self) -> Config {
        Config {
            queue_depth: self.queue_depth,
            metadata_latency: Duration::from_nanos(self.metadata_latency),
            best_effort_latency: Duration::from_nanos(self.best_effort_latency),
            best_effort_floor_percent: self.best_effort_floor_percent,
            idle_floor_percent: self.idle_floor_percent,
            account_max_permille: self.account_max_permille,
            accounts_max_permille: self.accounts_max_permille,
            buffer_memory: Bytes(self.buffer_memory),
            buffer_piece: Bytes(self.buffer_piece),
            request_time_max: Duration::from_nanos(self.request_time_max),
            device_size: Bytes(self.device_size),
            read: self.read.time(),
            read_ends: self.read_ends.map(|ends| ends.map(Bytes)),
            write: self.write.time(),
            write_times: self.write_times.map(|times| times.map(Duration::from_nanos)),
            flush: self.flush.time(),
            calibrated: match self.measured {
                Measured::Nothing => Calibrated::Nothing,
                Measured::Reads => Calibrated::Reads,
                Measured::All => Calibrated::All,
            },
            ..Config::default()
        }
    }

    fn check(&self) -> Result<(), Wrong> {
        for time in [self.metadata_latency, self.best_effort_latency, self.request_time_max] {
            within(time, 1..=A_DAY, "a time of more than a day, or none")?;
        }
        for bytes in [self.buffer_memory, self.buffer_piece, self.device_size] {
            within(bytes, 0..=LARGEST, "more memory or device than there is")?;
        }
        for permille in [self.account_max_permille, self.accounts_max_permille] {
            within(permille.into(), 0..=1000, "a share above the whole")?;
        }
        for percent in [self.best_effort_floor_percent, self.idle_floor_percent] {
            within(percent.into(), 0..=100, "a floor above the whole")?;
        }
        within(self.queue_depth.into(), 1..=1024, "a queue of an impossible depth")?;
        [self.read, self.write, self.flush].iter().try_for_each(Line::check)?;
        for end in self.read_ends.into_iter().flatten() {
            within(end, 1..=1 << 50, "a device without a rate")?;
        }
        for time in self.write_times.into_iter().flatten() {
            within(time, 1..=A_DAY, "a write of more than a day, or of no time")?;
        }
        Ok(())
    }
}

impl Begin {
    pub(crate) fn new(
        now: Instant,
        config: &Config,
        learned: [ServiceTime; 3],
        streams: &[(DeclaredStream, Confidence)],
        waiting: Vec<Asked>,
    ) -> Self {
        let declared = |(stream, confidence): &(DeclaredStream, Confidence)| Declared {
            stream: stream.stream.0,
            wanted: Wanted::of(&stream.spec, *confidence),
            admitted: stream.admitted.is_some(),
        };
        Self {
            at: now.as_nanos(),
            told: Told::of(config),
            learned: learned.map(Line::from),
            streams: streams.iter().map(declared).collect(),
            waiting,
        }
    }

    /// Whether it can be the begin of a recording.
    ///
    /// # Errors
    /// What is wrong, in a few words.
    pub fn check(&self) -> Result<(), Wrong> {
        within(self.at, 0..=LARGEST, "a begin beyond every time")?;
        self.told.check()?;
        self.learned.iter().try_for_each(Line::check)?;
        self.streams.iter().try_for_each(|stream| stream.wanted.check())?;
        self.waiting.iter().try_for_each(Asked::check)
    }
}

impl Record {
    /// Whether it can have happened, after what happened at `last`.
    ///
    /// # Errors
    /// What is wrong, in a few words.
    pub fn check(&self, last: u64) -> Result<(), Wrong> {
        within(
            self.at,
            last..=last.saturating_add(A_DAY).min(LARGEST),
            "a time that goes back, or leaps by more than a day",
        )?;
        match &self.what {
            Happened::Asked(asked) => asked.check(),
            Happened::Promoted { deadline, .. } => {
                within(*deadline, 0..=LARGEST, "a deadline beyond every time")
            }
            Happened::Declared { wanted, .. } => wanted.iter().try_for_each(Wanted::check),
            Happened::Accepted { bytes, .. } => within(*bytes, 0..=LARGEST, "more accepted than there is"),
            Happened::Began { offset, length, .. } => {
                within(*offset, 0..=LARGEST, "a command beyond every device")?;
                within(*length, 0..=LARGEST, "a command of an impossible length")
            }
            Happened::Promised { request, deadline, .. } => {
                within(request.unwrap_or(0), 0..=LARGEST, "a promise of an impossible length")?;
                within(deadline.unwrap_or(0), 0..=LARGEST, "a promise beyond every time")
            }
            Happened::Late { by, .. } => within(*by, 0..=LARGEST, "a lateness beyond every time"),
            Happened::Cancelled { .. } | Happened::CancelledStream { .. } | Happened::Ended { .. } => Ok(()),
        }
    }
}

impl Happened {
    /// The stream that it is about.
    pub fn stream(&self) -> Option<u64> {
        match self {
            Self::Asked(asked) => asked.stream,
            Self::Promoted { stream, .. } | Self::Began { stream, .. } => *stream,
            Self::CancelledStream { stream }
            | Self::Declared { stream, .. }
            | Self::Promised { stream, .. }
            | Self::Late { stream, .. } => Some(*stream),
            Self::Cancelled { .. } | Self::Accepted { .. } | Self::Ended { .. } => None,
        }
    }

    pub(crate) fn promised(promise: &Promise) -> Self {
        Self::Promised {
            stream: promise.stream.0,
            request: promise.terms.map(|terms| terms.request.0),
            deadline: promise.terms.map(|terms| nanos(terms.deadline)),
        }
    }

    pub(crate) fn late(lateness: &Lateness) -> Self {
        Self::Late { stream: lateness.stream.0, by: nanos(lateness.tardiness) }
    }
}

impl From<Class> for Rank {
    fn from(class: Class) -> Self {
        match class {
            Class::RealTime => Self::RealTime,
            Class::Metadata => Self::Metadata,
            Class::BestEffort => Self::BestEffort,
            Class::Idle => Self::Idle,
        }
    }
}

impl From<Rank> for Class {
    fn from(rank: Rank) -> Self {
        match rank {
            Rank::RealTime => Self::RealTime,
            Rank::Metadata => Self::Metadata,
            Rank::BestEffort => Self::BestEffort,
            Rank::Idle => Self::Idle,
        }
    }
}

impl From<Direction> for Does {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Read => Self::Read,
            Direction::Write => Self::Write,
            Direction::Flush => Self::Flush,
        }
    }
}

impl From<Does> for Direction {
    fn from(does: Does) -> Self {
        match does {
            Does::Read => Self::Read,
            Does::Write => Self::Write,
            Does::Flush => Self::Flush,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn the_last_are_kept_and_what_gave_way_is_counted() {
        let mut ring = Ring::new(at(0));
        for tag in 0..MOST_KEPT as u64 + 5 {
            ring.add(at(tag), Happened::Cancelled { tag });
        }
        let first = ring.since(at(70_000), 2);
        assert_eq!((first.lost, first.records[0].n, first.records.len()), (3, 5, MOST_GIVEN));
        let last = ring.since(at(70_000), MOST_KEPT as u64 + 4);
        assert_eq!((last.lost, last.records.len(), last.next), (0, 1, MOST_KEPT as u64 + 5));
        assert_eq!(ring.since(at(70_000), u64::MAX).records, []);
    }

    /// That a request was late is told after what has happened since, and a reader refuses time that goes back.
    #[test]
    fn time_never_goes_back() {
        let mut ring = Ring::new(at(0));
        for (millis, tag) in [(5, 1), (3, 2), (6, 3)] {
            ring.add(at(millis), Happened::Cancelled { tag });
        }
        let records = ring.since(at(6), 0).records;
        let mut last = 0;
        for record in &records {
            assert_eq!(record.check(last), Ok(()));
            last = record.at;
        }
        assert_eq!(records.len(), 3);
    }

    #[test]
    fn a_ring_that_nobody_asks_is_given_up() {
        let mut ring = Ring::new(at(0));
        assert!(!ring.is_deserted(at(10_000)) && ring.is_deserted(at(10_001)));
        ring.since(at(5_000), 0);
        assert!(!ring.is_deserted(at(15_000)) && ring.is_deserted(at(15_001)));
    }

    #[test]
    fn what_the_scheduler_is_told_is_read_back_as_itself() {
        let read = ServiceTime { access: Duration::from_millis(9), bytes_per_second: Bytes(170_000_000) };
        let config = Config {
            read,
            read_ends: Some([Bytes(180_000_000), Bytes(90_000_000)]),
            write_times: Some(std::array::from_fn(|octave| Duration::from_micros(1500 << octave))),
            device_size: Bytes(4_000_000_000_000),
            calibrated: Calibrated::All,
            request_time_max: Duration::from_millis(2500),
            best_effort_floor_percent: 20,
            ..Config::default()
        };
        let told = Told::of(&config);
        assert_eq!((told.check(), told.config()), (Ok(()), config));
        let text = serde_json::to_string(&told).unwrap();
        assert_eq!(serde_json::from_str::<Told>(&text).unwrap(), told);
    }
}
