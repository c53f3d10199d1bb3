//! A client at work: one of the machines, with its desk.

use crate::content;
use crate::desk::{Desk, Ended};
use crate::files::{Copies, Files, Office, RandomReader};
use crate::operation::{Answer, Operation};
use crate::pattern::{CopySpec, Pattern};
use crate::report::ClientReport;
use crate::spec::{ClientSpec, takes};
use crate::stream::Stream;
use units::{Bytes, Duration, Instant};

#[derive(Debug)]
enum Machine {
    Stream(Box<Stream>),
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
            Pattern::Player(stream) => Machine::Stream(Box::new(Stream::player(spec, stream, false))),
            Pattern::Editor(editor) => Machine::Stream(Box::new(Stream::editor(spec, editor))),
            Pattern::Chaser(chaser) => Machine::Stream(Box::new(Stream::chaser(spec, chaser))),
            Pattern::FramePlayer(stream) => Machine::Stream(Box::new(Stream::player(spec, stream, true))),
            Pattern::Recorder(stream) => Machine::Stream(Box::new(Stream::recorder(spec, stream, false))),
            Pattern::FrameRecorder(stream) => Machine::Stream(Box::new(Stream::recorder(spec, stream, true))),
            Pattern::CopyFrom(copy) => {
                let files = vec![(name("clip.mov"), spec.clip)];
                Machine::Copies(Copies::new(vec![Files::new(files, *copy, false, true)]))
            }
            Pattern::CopyTo(copy) => {
                let takes = |number| {
                    let take = |take| (name(&format!("copy.{number}.{take}.mov")), spec.clip);
                    (0..takes(copy, spec.clip)).map(take).collect()
                };
                let copies =
                    (0..copy.files_at_once).map(|number| Files::new(takes(number), *copy, true, true));
                Machine::Copies(Copies::new(copies.collect()))
            }
            Pattern::RandomReader(copy) => {
                Machine::Random(RandomReader::new(name("clip.mov"), *copy, spec.clip, spec.position))
            }
            Pattern::Scrubber(scrub) => {
                Machine::Random(RandomReader::scrubber(name("clip.mov"), *scrub, spec.clip, spec.position))
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

    pub(crate) fn begin(&mut self, now: Instant, largest: u32) {
        self.starts = now + self.start_after;
        // Pieces of a unit begin where stamps are.
        self.desk.largest = largest - largest % content::STAMPED as u32;
    }

    pub(crate) fn act(&mut self, now: Instant, asks: &mut Vec<(u64, Operation)>) {
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

    pub(crate) fn completed(&mut self, now: Instant, tag: u64, answer: Result<Answer, String>) {
        self.now = now;
        let grows = matches!(&self.machine, Machine::Stream(stream) if stream.chases());
        let answer = match answer {
            Ok(Answer::Beyond) if !grows => Err("the file ends before what was to be read".to_owned()),
            answer => answer,
        };
        let ended = Ended { now, tag, answer: self.desk.note(answer) };
        match &mut self.machine {
            Machine::Stream(stream) => stream.completed(ended, &mut self.desk),
            Machine::Copies(copies) => copies.completed(ended, &mut self.desk),
            Machine::Random(random) => random.completed(ended, &mut self.desk),
            Machine::Office(office) => office.completed(ended, &mut self.desk),
        }
    }

    /// When it has to act without an outcome.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        if self.now < self.starts {
            return Some(self.starts);
        }
        match &self.machine {
            Machine::Stream(stream) => stream.next_event(),
            Machine::Office(office) => office.next_event(),
            Machine::Random(random) => random.next_event(),
            Machine::Copies(_) => None,
        }
    }

    /// Nothing is left to do.
    pub fn is_finished(&self) -> bool {
        matches!(&self.machine, Machine::Copies(copies) if copies.is_finished())
    }

    /// Payload moved so far, bytes.
    pub fn moved(&self) -> u64 {
        self.desk.report.bytes
    }

    pub(crate) fn report(&self) -> ClientReport {
        let mut report = self.desk.report.clone();
        match &self.machine {
            Machine::Stream(stream) => stream.settle(self.now, &mut report),
            Machine::Random(random) => random.settle(self.now, &mut report),
            Machine::Copies(_) | Machine::Office(_) => {}
        }
        report
    }
}
