//! What each kind of client does.

mod files;
mod stream;

use super::{Answer, Operation};
use crate::histogram::Histogram;
use files::{Copies, Files, Office, RandomReader};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use stream::Stream;
use units::{Bytes, Duration, Instant};

/// What a client does, as it is declared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Pattern {
    /// Reads a clip at its bitrate: fills its buffer, starts, and fetches a unit whenever one was played.
    Player(StreamSpec),
    /// Writes a take at its bitrate: a unit when one was recorded and the one before was acknowledged.
    Recorder(StreamSpec),
    /// The same with a file for each unit, as DPX or EXR.
    FramePlayer(StreamSpec),
    /// The same with a file for each unit.
    FrameRecorder(StreamSpec),
    /// Reads a clip over and over, as fast as it gets it.
    CopyFrom(CopySpec),
    /// Writes files, as fast as they are taken.
    CopyTo(CopySpec),
    /// Reads anywhere in a clip, as fast as it gets it.
    RandomReader(CopySpec),
    /// Saves a small document and reads it, again and again with a pause.
    Office {
        /// Between two documents, milliseconds.
        pause_ms: u64,
    },
}

/// A stream's figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// Mbit/s (10^6), above zero.
    pub megabits: f64,
    /// A unit: what is asked for at once, or a frame; a multiple of 64 KiB, except for frames.
    pub unit_kib: u64,
    /// What is played before it starts to be late, or may be unacknowledged while recording, milliseconds.
    pub buffer_ms: u64,
}

/// A greedy client's figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopySpec {
    /// What it asks for at once, a multiple of 64 KiB.
    pub request_kib: u64,
    /// How much of that it has in flight, of each file.
    pub in_flight: u32,
    /// Files that it writes at once, from 1 to 64: robocopy /MT has eight. Who reads has one.
    #[serde(default = "one")]
    pub files_at_once: u32,
}

fn one() -> u32 {
    1
}

impl StreamSpec {
    fn unit(&self) -> Bytes {
        Bytes::from_kib(self.unit_kib)
    }

    /// For how long a unit plays.
    fn period(&self) -> Duration {
        Duration::from_secs_f64(self.unit().as_u64() as f64 * 8.0 / (self.megabits * 1e6))
    }

    /// Units in the buffer, at least one.
    fn buffered(&self) -> u64 {
        (self.buffer_ms as f64 / 1e3 / self.period().as_secs_f64()).round().max(1.0) as u64
    }
}

impl Pattern {
    /// Whether it is at a bitrate, and so can be late.
    pub fn is_stream(&self) -> bool {
        self.stream().is_some()
    }

    /// Mbit/s that it records, if it does.
    pub fn recorded_megabits(&self) -> Option<f64> {
        match self {
            Self::Recorder(spec) | Self::FrameRecorder(spec) => Some(spec.megabits),
            _ => None,
        }
    }

    fn stream(&self) -> Option<&StreamSpec> {
        match self {
            Self::Player(spec)
            | Self::Recorder(spec)
            | Self::FramePlayer(spec)
            | Self::FrameRecorder(spec) => Some(spec),
            _ => None,
        }
    }

    /// What is wrong with its figures, if anything.
    ///
    /// # Errors
    /// In words.
    pub fn check(&self) -> Result<(), String> {
        if let Some(spec) = self.stream() {
            let whole = matches!(self, Self::Player(_) | Self::Recorder(_));
            if !(spec.megabits.is_finite() && spec.megabits > 0.0) {
                return Err("megabits must be above zero".to_owned());
            }
            if spec.unit_kib == 0 || spec.unit_kib > 1 << 20 || (whole && !spec.unit_kib.is_multiple_of(64)) {
                return Err("unit_kib must be a multiple of 64, or for frames 1 or more".to_owned());
            }
        }
        if let Self::CopyFrom(spec) | Self::CopyTo(spec) | Self::RandomReader(spec) = self {
            if spec.request_kib == 0 || !spec.request_kib.is_multiple_of(64) || spec.request_kib > 8192 {
                return Err("request_kib must be a multiple of 64, at most 8192".to_owned());
            }
            if !(1..=64).contains(&spec.in_flight) {
                return Err("in_flight must be from 1 to 64".to_owned());
            }
            let most = if matches!(self, Self::CopyTo(_)) { 64 } else { 1 };
            if !(1..=most).contains(&spec.files_at_once) {
                return Err("files_at_once must be from 1 to 64, and 1 for who reads".to_owned());
            }
        }
        Ok(())
    }
}

/// One client of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSpec {
    /// Its directory on the share.
    pub directory: String,
    /// What it does.
    pub pattern: Pattern,
    /// When it starts.
    pub start_after: Duration,
    /// The clip it reads, or after which a copy begins another file, bytes; a multiple of its unit or request.
    pub clip: Bytes,
    /// Where in the clip a player starts, 0 to 1; also what a random reader draws from.
    pub position: f64,
}

impl ClientSpec {
    /// The files that must be there, with their lengths.
    pub fn needs(&self) -> Vec<(String, Bytes)> {
        match &self.pattern {
            Pattern::Player(_) | Pattern::CopyFrom(_) | Pattern::RandomReader(_) => {
                vec![(format!("{}/clip.mov", self.directory), self.clip)]
            }
            Pattern::FramePlayer(spec) => {
                let frames = self.clip.as_u64() / spec.unit().as_u64();
                (0..frames).map(|frame| (frame_name(&self.directory, frame), spec.unit())).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn frame_name(directory: &str, frame: u64) -> String {
    format!("{directory}/shot.{frame:06}.dpx")
}

/// What became of a client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientReport {
    /// Units played or recorded.
    pub units: u64,
    /// Units that were not there when their turn came, or not acknowledged within the buffer, or dropped.
    pub late: u64,
    /// How late the latest was, milliseconds.
    pub latest_ms: f64,
    /// Payload moved, bytes.
    pub bytes: u64,
    /// From asking for a unit to having it; of greedy clients, each request.
    pub latency: Histogram,
    /// Operations that failed.
    pub errors: u64,
    /// The first failure, in words.
    pub first_error: Option<String>,
}

/// The side of a client towards the files.
#[derive(Debug, Default)]
struct Desk {
    next_tag: u64,
    asks: VecDeque<(u64, Operation)>,
    report: ClientReport,
    largest: u32,
}

impl Desk {
    fn ask(&mut self, operation: Operation) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.asks.push_back((tag, operation));
        tag
    }

    /// The answer, or nothing after a failure was noted.
    fn note(&mut self, answer: Result<Answer, String>) -> Option<Answer> {
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.report.errors += 1;
                self.report.first_error.get_or_insert(error);
                None
            }
        }
    }
}

/// The end of an operation that a client asked for.
#[derive(Clone, Copy, Debug)]
struct Ended {
    now: Instant,
    tag: u64,
    /// `None`: it failed, which is noted.
    answer: Option<Answer>,
}

#[derive(Debug)]
enum Machine {
    Stream(Stream),
    Copies(Copies),
    Random(RandomReader),
    Office(Office),
}

/// A client at work.
#[derive(Debug)]
pub struct Client {
    desk: Desk,
    machine: Machine,
    start_after: Duration,
    starts: Instant,
    now: Instant,
}

impl Client {
    /// A client that has not begun.
    pub fn new(spec: &ClientSpec) -> Self {
        let name = |file: &str| format!("{}/{file}", spec.directory);
        let machine = match &spec.pattern {
            Pattern::Player(stream) => Machine::Stream(Stream::player(spec, stream, false)),
            Pattern::FramePlayer(stream) => Machine::Stream(Stream::player(spec, stream, true)),
            Pattern::Recorder(stream) => Machine::Stream(Stream::recorder(spec, stream, false)),
            Pattern::FrameRecorder(stream) => Machine::Stream(Stream::recorder(spec, stream, true)),
            Pattern::CopyFrom(copy) => {
                let files = vec![(name("clip.mov"), spec.clip)];
                Machine::Copies(Copies::new(vec![Files::new(files, *copy, false, true)]))
            }
            Pattern::CopyTo(copy) => {
                let takes = |number| {
                    (0..4).map(|take| (name(&format!("copy.{number}.{take}.mov")), spec.clip)).collect()
                };
                let copies =
                    (0..copy.files_at_once).map(|number| Files::new(takes(number), *copy, true, true));
                Machine::Copies(Copies::new(copies.collect()))
            }
            Pattern::RandomReader(copy) => {
                Machine::Random(RandomReader::new(name("clip.mov"), *copy, spec.clip, spec.position))
            }
            Pattern::Office { pause_ms } => {
                Machine::Office(Office::new(&spec.directory, Duration::from_millis(*pause_ms)))
            }
        };
        Self::with(machine, spec.start_after)
    }

    /// A client that writes files, one after the other, and then has finished.
    pub fn laying(files: Vec<(String, Bytes)>) -> Self {
        let copy = CopySpec { request_kib: 1024, in_flight: 8, files_at_once: 1 };
        let laying = Copies::new(vec![Files::new(files, copy, true, false)]);
        Self::with(Machine::Copies(laying), Duration::ZERO)
    }

    fn with(machine: Machine, start_after: Duration) -> Self {
        Self { desk: Desk::default(), machine, start_after, starts: Instant::FAR_FUTURE, now: Instant::ZERO }
    }

    pub(super) fn begin(&mut self, now: Instant, largest: u32) {
        self.starts = now + self.start_after;
        // Pieces of a unit begin where stamps are.
        self.desk.largest = largest - largest % super::content::STAMPED as u32;
    }

    pub(super) fn act(&mut self, now: Instant, asks: &mut Vec<(u64, Operation)>) {
        self.now = now;
        if now >= self.starts {
            match &mut self.machine {
                Machine::Stream(stream) => stream.act(now, &mut self.desk),
                Machine::Copies(copies) => copies.act(now, &mut self.desk),
                Machine::Random(random) => random.act(now, &mut self.desk),
                Machine::Office(office) => office.act(now, &mut self.desk),
            }
        }
        asks.extend(self.desk.asks.drain(..));
    }

    pub(super) fn completed(&mut self, now: Instant, tag: u64, answer: Result<Answer, String>) {
        self.now = now;
        let ended = Ended { now, tag, answer: self.desk.note(answer) };
        match &mut self.machine {
            Machine::Stream(stream) => stream.completed(ended, &mut self.desk),
            Machine::Copies(copies) => copies.completed(ended, &mut self.desk),
            Machine::Random(random) => random.completed(ended, &mut self.desk),
            Machine::Office(office) => office.completed(ended, &mut self.desk),
        }
    }

    /// When it has to act without an outcome.
    pub(super) fn next_event(&self) -> Option<Instant> {
        if self.now < self.starts {
            return Some(self.starts);
        }
        match &self.machine {
            Machine::Stream(stream) => stream.next_event(),
            Machine::Office(office) => office.next_event(),
            Machine::Copies(_) | Machine::Random(_) => None,
        }
    }

    /// Nothing is left to do.
    pub fn is_finished(&self) -> bool {
        matches!(&self.machine, Machine::Copies(copies) if copies.is_finished())
    }

    pub(super) fn report(&self) -> ClientReport {
        let mut report = self.desk.report.clone();
        if let Machine::Stream(stream) = &self.machine {
            stream.settle(self.now, &mut report);
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Ask, Outcome, Transport, TransportError, run};
    use super::*;
    use std::collections::BTreeMap;

    /// Files in virtual time: operations take a time each, one after the other.
    struct Modelled {
        now: Instant,
        free: Instant,
        each: Duration,
        /// The operation of this number takes so long.
        hiccup: Option<(u64, Duration)>,
        count: u64,
        /// The largest number of operations at once.
        deepest: usize,
        due: BTreeMap<(Instant, u64), Outcome>,
        names: Vec<String>,
    }

    impl Modelled {
        fn new(each: Duration) -> Self {
            Self {
                now: Instant::from_nanos(5),
                free: Instant::ZERO,
                each,
                hiccup: None,
                count: 0,
                deepest: 0,
                due: BTreeMap::new(),
                names: Vec::new(),
            }
        }
    }

    impl Transport for Modelled {
        fn now(&self) -> Instant {
            self.now
        }
        fn largest(&self) -> u32 {
            1 << 20
        }
        fn submit(&mut self, ask: Ask) -> Result<(), TransportError> {
            let (mut answer, mut time) = (Answer::Done, self.each);
            match ask.operation {
                Operation::Open { name, .. } => {
                    answer = Answer::Opened { file: self.count, length: 1 << 30 };
                    time = Duration::ZERO;
                    self.names.push(name);
                }
                Operation::Close { .. } | Operation::MakeDirectory { .. } => time = Duration::ZERO,
                Operation::Read { .. } | Operation::Write { .. } => {}
            }
            if let Some((number, hiccup)) = self.hiccup
                && number == self.count
            {
                time += hiccup;
            }
            self.count += 1;
            self.free = self.free.max(self.now) + time;
            let outcome = Outcome { client: ask.client, tag: ask.tag, answer: Ok(answer) };
            self.due.insert((self.free, self.count), outcome);
            self.deepest = self.deepest.max(self.due.len());
            Ok(())
        }
        fn wait(&mut self, until: Instant, outcomes: &mut Vec<Outcome>) -> Result<(), TransportError> {
            let next = self.due.first_key_value().map_or(until, |((at, _), _)| *at);
            self.now = self.now.max(next.min(until));
            while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= self.now) {
                outcomes.push(entry.remove());
            }
            Ok(())
        }
    }

    const SPEC: StreamSpec = StreamSpec { megabits: 100.0, unit_kib: 1024, buffer_ms: 1000 };

    fn clients(pattern: &Pattern, count: usize) -> Vec<Client> {
        let spec = |index| ClientSpec {
            directory: format!("p{index}"),
            pattern: pattern.clone(),
            start_after: Duration::from_millis(250 * index as u64),
            clip: Bytes::from_mib(256),
            position: 0.4,
        };
        (0..count).map(|index| Client::new(&spec(index))).collect()
    }

    fn late(transport: &mut Modelled, pattern: &Pattern, count: usize) -> (u64, Vec<ClientReport>) {
        let duration = Duration::from_secs(30);
        let reports = run(transport, &mut clients(pattern, count), duration, |_| {}).expect("it never fails");
        assert!(reports.iter().all(|report| report.errors == 0));
        (reports.iter().map(|report| report.late).sum(), reports)
    }

    /// A megabyte in 10 ms is 839 Mbit/s: eight streams of 100 Mbit/s, not nine.
    #[test]
    fn as_many_streams_are_in_time_as_the_files_are_fast() {
        for pattern in [
            Pattern::Player(SPEC),
            Pattern::Recorder(SPEC),
            Pattern::FramePlayer(SPEC),
            Pattern::FrameRecorder(SPEC),
        ] {
            let each = Duration::from_millis(10);
            let (clean, reports) = late(&mut Modelled::new(each), &pattern, 8);
            assert_eq!(clean, 0, "{pattern:?}");
            let (least, most) =
                (reports.iter().map(|one| one.units).min(), reports.iter().map(|one| one.units).max());
            assert!(
                least >= Some(320) && most <= Some(358),
                "{pattern:?}: {least:?} to {most:?} units of 84 ms in 30 s"
            );
            let (overload, _) = late(&mut Modelled::new(each), &pattern, 9);
            assert!(overload > 0, "{pattern:?}");
        }
    }

    #[test]
    fn a_pause_shorter_than_the_buffer_is_not_seen_and_a_longer_one_is() {
        for pattern in [Pattern::Player(SPEC), Pattern::Recorder(SPEC)] {
            for (hiccup, seen) in [(700, false), (1300, true)] {
                let mut transport = Modelled::new(Duration::from_millis(5));
                transport.hiccup = Some((100, Duration::from_millis(hiccup)));
                let (late, reports) = late(&mut transport, &pattern, 1);
                assert_eq!(late > 0, seen, "{pattern:?} after {hiccup} ms");
                assert_eq!(reports[0].latest_ms > 0.0, seen);
            }
        }
    }

    /// Recorders that had all their units on the way at once took a larger share of a kernel's writers than a copy did, so
    /// no filesystem was late beside one.
    #[test]
    fn a_recorder_hands_over_one_unit_at_a_time_and_then_makes_up_for_a_pause() {
        for (pattern, deepest) in [(Pattern::Recorder(SPEC), 1), (Pattern::Player(SPEC), 12)] {
            let mut transport = Modelled::new(Duration::from_millis(5));
            transport.hiccup = Some((100, Duration::from_millis(700)));
            let (late, reports) = late(&mut transport, &pattern, 1);
            assert_eq!(late, 0, "{pattern:?}");
            assert_eq!(transport.deepest, deepest, "{pattern:?}");
            assert!(reports[0].units >= 340, "{} units of 84 ms in 30 s", reports[0].units);
        }
    }

    /// What never came must not be forgotten because nothing came that could be counted.
    #[test]
    fn a_stream_that_hangs_until_the_end_is_late() {
        for pattern in [Pattern::Player(SPEC), Pattern::Recorder(SPEC)] {
            let mut transport = Modelled::new(Duration::from_millis(5));
            transport.hiccup = Some((100, Duration::from_secs(3600)));
            let (late, _) = late(&mut transport, &pattern, 1);
            assert!(late > 0, "{pattern:?}");
        }
    }

    #[test]
    fn greedy_clients_take_what_there_is() {
        let copy = CopySpec { request_kib: 1024, in_flight: 8, files_at_once: 1 };
        let many = CopySpec { in_flight: 2, files_at_once: 8, ..copy };
        let patterns = [
            Pattern::CopyFrom(copy),
            Pattern::CopyTo(copy),
            Pattern::CopyTo(many),
            Pattern::RandomReader(copy),
        ];
        for pattern in patterns {
            pattern.check().expect("it can be carried out");
            let mut transport = Modelled::new(Duration::from_millis(10));
            let (_, reports) = late(&mut transport, &pattern, 1);
            let mib = reports[0].bytes >> 20;
            assert!((2990..=3000).contains(&mib), "{pattern:?}: {mib} MiB in 30 s of 10 ms each");
            assert_eq!(transport.deepest, if pattern == Pattern::CopyTo(many) { 16 } else { 8 });
        }
    }

    #[test]
    fn laying_ends_and_each_file_has_its_length() {
        let files: Vec<_> = (0..3).map(|index| (format!("d/{index}"), Bytes::from_kib(2500))).collect();
        let mut laying = vec![Client::laying(files)];
        let mut transport = Modelled::new(Duration::from_millis(1));
        let reports =
            run(&mut transport, &mut laying, Duration::from_secs(3600), |_| {}).expect("it never fails");
        assert!(laying[0].is_finished());
        assert!(transport.now() < Instant::ZERO + Duration::from_secs(1), "it ended when it had finished");
        assert_eq!(reports[0].bytes, 3 * 2500 * 1024);
        assert_eq!(transport.names, ["d/0", "d/1", "d/2"]);
    }

    #[test]
    fn an_office_saves_and_reads_documents() {
        let (_, reports) =
            late(&mut Modelled::new(Duration::from_millis(1)), &Pattern::Office { pause_ms: 100 }, 1);
        assert!((280..=300).contains(&reports[0].units), "{} documents in 30 s", reports[0].units);
    }
}
