//! How clients that play are served: what came late, and through which fault.
//!
//! **For:** listening at the border of the core to what clients ask for and have, and to what the engine says has happened, and
//! making events of it. **Excludes:** every decision: nothing that is served depends on what is here. **State:** one [`Audience`] beside
//! each core: a [`Playout`] for each client that plays, and the events that were not taken yet. **Invariants:** bounded, records of
//! one size; a function of the calls, so a simulation sees the same events.
//!
//! What belongs together is one event: what happens to a stream again within a second is counted there, and the worst of it kept.

mod playout;

use crate::core::{Core, Take, watching};
use crate::events::{self, Cause, ClientReport, EventKind, EventReport, WorkReport, microseconds};
use crate::types::HandleId;
use avfs_io::{Completion, Incident, Inquiry, IoError};
use hashbrown::HashMap;
use playout::{Overdue, Playout};
use rtsched::{Blocker, Direction, Lateness, Rejected, StreamId, Why, Work};
use std::collections::{BTreeSet, VecDeque};
use units::{Bitrate, Bytes, Duration, Ino, Instant, Now, Timestamp};

/// Events that are kept until they are taken, which is done each second; the oldest gives way.
const MOST: usize = 256;
/// What happens again within this time is the same event,...
const TOGETHER: Duration = Duration::from_secs(1);
/// ...which goes on for no longer than this: an operator wants to know meanwhile.
const LONGEST: Duration = Duration::from_secs(10);
/// Streams of which it is known why they are promised nothing.
const MOST_REASONS: usize = 256;

/// What happened, as it is kept.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Of the inquiry into it.
    number: u64,
    first: Now,
    last: Now,
    what: What,
    count: u32,
    stream: Option<StreamId>,
    ino: Ino,
    client: Option<HandleId>,
    rate: Bitrate,
}

#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "records are of one size, and few")]
enum What {
    Late {
        /// Of a request that was promised.
        promise: Option<Lateness>,
        /// Of a client that waited, and what for.
        overdue: Option<Overdue>,
        explained: Option<Lateness>,
        lacks: Option<Lack>,
    },
    ClientLate(Overdue),
    Refused(Rejected),
    Demoted(Why),
    Restored,
    Speed {
        direction: Direction,
        before: Duration,
        now: Duration,
    },
    Failed(IoError),
    /// Data were lost so often.
    Lost(u64),
    ReadOnly,
    OverLimit,
}

/// A client is promised nothing.
#[derive(Clone, Copy, Debug)]
struct Lack(Option<Why>);

/// A client that plays.
#[derive(Debug)]
struct Playing {
    playout: Playout,
    /// It was promised nothing when it asked for what it has not.
    lacks: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Audience {
    playouts: HashMap<HandleId, Playing>,
    records: VecDeque<Record>,
    /// How many gave way.
    dropped: u64,
    reasons: HashMap<StreamId, Why>,
    /// What the engine is to be asked.
    inquiries: Vec<Inquiry>,
    inquired: u64,
    losses: u64,
    has_failed: bool,
    /// Directories over their soft limits.
    over_limit: BTreeSet<Ino>,
}

impl Audience {
    /// What is so already is no event.
    pub(crate) fn new(core: &Core) -> Self {
        Self { over_limit: core.over_soft_limits().collect(), ..Self::default() }
    }

    /// Clients have asked for something, or have it.
    pub(crate) fn follow(&mut self, core: &Core, now: Now, takes: &[Take]) {
        for take in takes {
            match core.playing(take.handle) {
                Some(playing) => self.follow_one(now, take, playing),
                None => _ = self.playouts.remove(&take.handle),
            }
        }
    }

    fn follow_one(&mut self, now: Now, take: &Take, playing: watching::Playing) {
        let watching::Playing { origin, rate, window, .. } = playing;
        let plays = rate.time_for(Bytes(take.offset.abs_diff(origin)));
        let new = || Playing { playout: Playout::new(now.monotonic, origin), lacks: false };
        let client = self.playouts.entry(take.handle).or_insert_with(new);
        if !client.playout.is_from(origin) {
            *client = new();
        }
        if !take.has_waited {
            client.lacks = !playing.is_promised || client.lacks && client.playout.waits();
            client.playout.asks(now.monotonic, plays);
        }
        if !take.is_answered {
            return;
        }
        let Some(overdue) = client.playout.has(now.monotonic, plays, window) else { return };
        let lacks = client.lacks.then(|| Lack(self.reasons.get(&playing.stream).copied()));
        let what = if overdue.client > overdue.storage {
            What::ClientLate(overdue)
        } else {
            self.inquire(now.monotonic, playing.stream, &overdue);
            What::Late { promise: None, overdue: Some(overdue), explained: None, lacks }
        };
        let (number, ino, stream) = (self.inquired, playing.ino, Some(playing.stream));
        let client = Some(take.handle);
        self.add(Record { number, stream, ino, client, rate, ..Record::new(now, what) });
    }

    fn inquire(&mut self, now: Instant, stream: StreamId, overdue: &Overdue) {
        self.inquired += 1;
        let since = now.saturating_before(overdue.storage);
        let (number, by) = (self.inquired, overdue.by.min(overdue.storage));
        self.inquiries.push(Inquiry { number, stream, since, until: now, by });
    }

    /// What the engine is to be asked: the answers come as what [has happened](Self::happened).
    pub(crate) fn inquiries(&mut self) -> impl Iterator<Item = Inquiry> {
        self.inquiries.drain(..)
    }

    fn explained(&mut self, number: u64, lateness: Lateness) {
        let asked = self.records.iter_mut().rev().find(|record| record.number == number);
        if let Some(What::Late { explained, .. }) = asked.map(|record| &mut record.what) {
            *explained = Some(lateness);
        }
    }

    /// A client has closed its file.
    pub(crate) fn forget(&mut self, handle: HandleId) {
        self.playouts.remove(&handle);
    }

    /// The engine says what has happened.
    pub(crate) fn happened(&mut self, core: &Core, now: Now, incidents: &[Incident]) {
        for incident in incidents {
            let (stream, what) = match *incident {
                Incident::Explained { number, lateness } => {
                    self.explained(number, lateness);
                    continue;
                }
                Incident::Late(lateness) => {
                    let promise = Some(lateness);
                    let what = What::Late { promise, overdue: None, explained: None, lacks: None };
                    (Some(lateness.stream), what)
                }
                Incident::Refused { stream, rejected, .. } => {
                    self.remember(stream, rejected.why);
                    (Some(stream), What::Refused(rejected))
                }
                Incident::Demoted { stream, why } => {
                    self.remember(stream, why);
                    (Some(stream), What::Demoted(why))
                }
                Incident::Restored { stream } => (Some(stream), What::Restored),
                Incident::Speed { direction, before, now } => (None, What::Speed { direction, before, now }),
            };
            let rate = match *incident {
                Incident::Refused { spec, .. } => spec.rate,
                _ => stream.map_or(Bitrate(0), |stream| core.rate_of_stream(stream)),
            };
            let client = stream.and_then(|stream| core.clients_of_stream(stream).next());
            let ino = stream.map_or(Ino(0), |stream| core.file_of_stream(stream));
            self.add(Record { stream, ino, client, rate, ..Record::new(now, what) });
        }
    }

    fn remember(&mut self, stream: StreamId, why: Why) {
        if self.reasons.len() >= MOST_REASONS && !self.reasons.contains_key(&stream) {
            // Those that are still refused are refused again, or are late without a reason.
            self.reasons.clear();
        }
        self.reasons.insert(stream, why);
    }

    /// The device has done requests, or has not; before the core hears of it.
    pub(crate) fn completed(&mut self, core: &Core, now: Now, completion: &Completion) {
        if let Err(error @ (IoError::Device(_) | IoError::PastEnd)) = completion.result {
            let ino = core.file_of_request(completion.tag);
            self.add(Record { ino, ..Record::new(now, What::Failed(error)) });
        }
    }

    fn add(&mut self, record: Record) {
        let now = record.last.monotonic;
        let is_open = |other: &&mut Record| {
            now < other.last.monotonic + TOGETHER && now < other.first.monotonic + LONGEST
        };
        let is_same = |other: &Record| (other.stream, other.ino) == (record.stream, record.ino);
        let same = self.records.iter_mut().rev().filter(is_open).find(|other| {
            is_same(other) && std::mem::discriminant(&other.what) == std::mem::discriminant(&record.what)
        });
        if let Some(same) = same {
            return same.merge(&record);
        }
        if self.records.len() == MOST {
            self.records.pop_front();
            self.dropped += 1;
        }
        self.records.push_back(record);
    }

    /// The events to which nothing is added any more, or all of them. Those of the core that are no request's are noticed here.
    pub(crate) fn take(&mut self, core: &Core, now: Now, all: bool) -> Vec<EventReport> {
        let losses = core.losses();
        let lost = losses - std::mem::replace(&mut self.losses, losses);
        if lost > 0 {
            self.add(Record::new(now, What::Lost(lost)));
        }
        if core.failure().is_some() && !std::mem::replace(&mut self.has_failed, true) {
            self.add(Record::new(now, What::ReadOnly));
        }
        let over_limit: BTreeSet<Ino> = core.over_soft_limits().collect();
        let before = std::mem::replace(&mut self.over_limit, over_limit.clone());
        for &ino in over_limit.difference(&before) {
            self.add(Record { ino, ..Record::new(now, What::OverLimit) });
        }
        if self.dropped > 0 {
            tracing::warn!(count = self.dropped, "more events than could be kept");
            self.dropped = 0;
        }
        let is_over = |record: &Record| {
            all || now.monotonic >= record.last.monotonic + TOGETHER
                || now.monotonic >= record.first.monotonic + LONGEST
        };
        let over: VecDeque<Record>;
        (over, self.records) = std::mem::take(&mut self.records).into_iter().partition(is_over);
        over.iter().map(|record| record.report(core)).collect()
    }
}

impl Record {
    /// Of no stream, file or client.
    fn new(now: Now, what: What) -> Self {
        let (stream, ino, client, rate) = (None, Ino(0), None, Bitrate(0));
        Self { number: 0, first: now, last: now, what, count: 1, stream, ino, client, rate }
    }

    fn merge(&mut self, other: &Self) {
        self.last = other.last;
        match (&mut self.what, other.what) {
            (
                What::Late { promise, overdue, explained, lacks },
                What::Late { promise: new_promise, overdue: new_overdue, lacks: new_lacks, .. },
            ) => {
                // A request and the client that waited for it are one.
                let is_other_side = (new_promise.is_some() && promise.is_none() && self.count == 1)
                    || (new_overdue.is_some() && overdue.is_none() && self.count == 1);
                self.count += u32::from(!is_other_side);
                if new_promise.is_some_and(|new| promise.is_none_or(|old| new.tardiness > old.tardiness)) {
                    *promise = new_promise;
                }
                if new_overdue.is_some_and(|new| overdue.is_none_or(|old| new.by > old.by)) {
                    *overdue = new_overdue;
                    (self.number, *explained) = (other.number, None);
                }
                *lacks = lacks.or(new_lacks);
            }
            (What::ClientLate(overdue), What::ClientLate(new)) => {
                self.count += 1;
                if new.by > overdue.by {
                    *overdue = new;
                }
            }
            (what, new) => {
                self.count += 1;
                *what = new;
            }
        }
        self.client = self.client.or(other.client);
    }

    fn report(&self, core: &Core) -> EventReport {
        let (path, writes) = match self.stream {
            Some(stream) => core.shown_stream(stream),
            None if self.ino.0 != 0 => (core.shown_path(self.ino), false),
            None => (None, false),
        };
        let mut report = EventReport {
            number: 0,
            at_milliseconds: milliseconds(self.first.wall),
            until_milliseconds: milliseconds(self.last.wall),
            kind: EventKind::Late,
            count: self.count,
            ino: self.ino.0,
            path,
            writes,
            client: self.client.and_then(|client| core.client_report(client)),
            bits_per_second: self.rate.0,
            late_microseconds: 0,
            is_noticed: false,
            left_microseconds: None,
            storage_microseconds: 0,
            client_microseconds: 0,
            cause: None,
            blocker_path: None,
            blocker: None,
            work: None,
            promised_permille: 0,
            reason: None,
        };
        match self.what {
            What::Late { promise, overdue, explained, lacks } => {
                report.add_overdue(overdue);
                match promise.or(explained) {
                    Some(lateness) => report.add_lateness(core, &lateness, promise.is_some()),
                    None => report.cause = Some(Cause::Unknown),
                }
                let is_told = |why: Option<Why>| {
                    matches!(why, Some(Why::Congested { .. })) && report.cause.is_some_and(Cause::is_a_fault)
                };
                // A stream that lost its promise because others were late lost it to what made them late.
                if let Some(Lack(why)) = lacks.filter(|Lack(why)| promise.is_none() && !is_told(*why)) {
                    report.cause = Some(Cause::OverAdmission);
                    let reason = why.map(|why| why.to_string());
                    report.reason = reason.or_else(|| Some("it is promised nothing".into()));
                    (report.blocker_path, report.blocker) = (None, None);
                }
            }
            What::ClientLate(overdue) => {
                report.kind = EventKind::ClientLate;
                report.cause = Some(Cause::Client);
                report.add_overdue(Some(overdue));
            }
            What::Refused(rejected) => {
                report.kind = EventKind::Refused;
                report.reason = Some(rejected.to_string());
            }
            What::Demoted(why) => {
                report.kind = EventKind::Demoted;
                report.reason = Some(why.to_string());
            }
            What::Restored => report.kind = EventKind::Restored,
            What::Speed { direction, before, now } => {
                report.kind = if now > before { EventKind::DeviceSlower } else { EventKind::DeviceFaster };
                let what = if direction == Direction::Write { "writes" } else { "reads" };
                report.reason = Some(events::speed(what, before, now));
            }
            What::Failed(error) => {
                report.kind = EventKind::Error;
                report.reason = Some(error.to_string());
            }
            What::Lost(count) => {
                report.kind = EventKind::Error;
                report.reason = Some(format!(
                    "data of files were lost {count} times, because no place took them; the log names them"
                ));
            }
            What::OverLimit => {
                report.kind = EventKind::Limit;
                report.reason = Some(core.shown_usage(self.ino));
            }
            What::ReadOnly => {
                report.kind = EventKind::Error;
                let why = core.failure().unwrap_or_default();
                report.reason = Some(format!("the volume has become read-only: {why}"));
            }
        }
        report
    }
}

impl EventReport {
    fn add_overdue(&mut self, overdue: Option<Overdue>) {
        let Some(overdue) = overdue else { return };
        self.is_noticed = true;
        self.late_microseconds = self.late_microseconds.max(microseconds(overdue.by));
        self.left_microseconds = Some(overdue.left / 1000);
        self.storage_microseconds = microseconds(overdue.storage);
        self.client_microseconds = microseconds(overdue.client);
    }

    fn add_lateness(&mut self, core: &Core, lateness: &Lateness, is_promise: bool) {
        if is_promise {
            self.late_microseconds = self.late_microseconds.max(microseconds(lateness.tardiness));
        }
        self.promised_permille = lateness.promised_permille;
        self.work = Some((&lateness.work).into());
        let (cause, stream) = match lateness.blocker {
            Blocker::Device => (Cause::SlowDisk, None),
            Blocker::BestEffort(stream) => (Cause::BestEffort, stream),
            Blocker::Stream(stream) => (Cause::AnotherStream, Some(stream)),
            Blocker::Seeks(stream) => (Cause::Seek, Some(stream)),
            Blocker::Idle => (Cause::Server, None),
            Blocker::Own => (Cause::Own, None),
            Blocker::OverAdmission => (Cause::OverAdmission, None),
        };
        self.cause = Some(cause);
        if let Some(stream) = stream {
            self.blocker_path = core.shown_stream(stream).0;
            self.blocker = core.client_of_stream(stream);
        }
    }
}

impl From<&Work> for WorkReport {
    fn from(work: &Work) -> Self {
        Self {
            span: microseconds(work.span),
            own: microseconds(work.own),
            promised: microseconds(work.promised),
            beyond: microseconds(work.beyond),
            unpromised: microseconds(work.unpromised),
            idle: microseconds(work.idle),
            seeking: microseconds(work.seeking),
            reckoned: microseconds(work.reckoned),
            commands: work.commands,
        }
    }
}

impl ClientReport {
    pub(crate) fn new(process: u32, uid: u32) -> Self {
        Self { process, uid, name: None }
    }
}

/// Since 1970 UTC.
pub(crate) fn milliseconds(time: Timestamp) -> i64 {
    time.seconds.saturating_mul(1000).saturating_add(i64::from(time.nanoseconds / 1_000_000))
}

/// For differences between two answers.
pub(crate) fn clock(now: Instant) -> u64 {
    now.as_nanos() / 1000
}
