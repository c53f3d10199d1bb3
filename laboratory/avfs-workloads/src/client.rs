//! A client at work: one of the machines, with its desk.

use crate::content;
use crate::desk::{Desk, Ended};
use crate::files::{Copies, Files, Office, RandomReader};
use crate::operation::{Answer, Operation};
use crate::pattern::{CopySpec, Pattern};
use crate::report::ClientReport;
use crate::spec::{ClientSpec, Visits, takes};
use crate::stream::Stream;
use rand::rngs::SmallRng;
use units::{Bytes, Duration, Instant};

#[derive(Debug)]
enum Machine {
    Stream(Box<Stream>),
    Copies(Copies),
    Random(RandomReader),
    Office(Office),
}

impl Machine {
    fn new(spec: &ClientSpec) -> Self {
        let name = |file: &str| format!("{}/{file}", spec.directory);
        match &spec.pattern {
            Pattern::Player(stream) => Self::Stream(Box::new(Stream::player(spec, stream, false))),
            Pattern::Editor(editor) => Self::Stream(Box::new(Stream::editor(spec, editor))),
            Pattern::Chaser(chaser) => Self::Stream(Box::new(Stream::chaser(spec, chaser))),
            Pattern::FramePlayer(stream) => Self::Stream(Box::new(Stream::player(spec, stream, true))),
            Pattern::Recorder(stream) => Self::Stream(Box::new(Stream::recorder(spec, stream, false))),
            Pattern::FrameRecorder(stream) => Self::Stream(Box::new(Stream::recorder(spec, stream, true))),
            Pattern::CopyFrom(copy) => {
                let files = vec![(name("clip.mov"), spec.clip)];
                Self::Copies(Copies::new(vec![Files::new(files, *copy, false, true)]))
            }
            Pattern::CopyTo(copy) => {
                let takes = |number| {
                    let take = |take| (name(&format!("copy.{number}.{take}.mov")), spec.clip);
                    (0..takes(copy, spec.clip)).map(take).collect()
                };
                let copies =
                    (0..copy.files_at_once).map(|number| Files::new(takes(number), *copy, true, true));
                Self::Copies(Copies::new(copies.collect()))
            }
            Pattern::RandomReader(copy) => {
                Self::Random(RandomReader::new(name("clip.mov"), *copy, spec.clip, spec.position))
            }
            Pattern::Scrubber(scrub) => {
                Self::Random(RandomReader::scrubber(name("clip.mov"), *scrub, spec.clip, spec.position))
            }
            Pattern::Office { pause_ms } => {
                Self::Office(Office::new(&spec.directory, Duration::from_millis(*pause_ms)))
            }
        }
    }
}

/// When it leaves and comes back.
#[derive(Debug)]
struct Visiting {
    spec: ClientSpec,
    random: SmallRng,
    /// Where it leaves.
    leaves: Option<Instant>,
}

/// A client at work.
#[derive(Debug)]
pub struct Client {
    desk: Desk,
    machine: Machine,
    visiting: Option<Visiting>,
    start_after: Duration,
    starts: Instant,
    now: Instant,
}

impl Client {
    /// A client that has not begun.
    pub fn new(spec: &ClientSpec) -> Self {
        let machine = Machine::new(spec);
        let visits = spec.visits != Visits::default();
        let visiting = visits.then(|| Visiting { spec: spec.clone(), random: spec.random(), leaves: None });
        Self { visiting, ..Self::with(machine, spec.start_after) }
    }

    /// A client that writes files, one after the other, and then has finished.
    pub fn laying(files: Vec<(String, Bytes)>) -> Self {
        let copy = CopySpec { request_kib: 1024, in_flight: 8, files_at_once: 1 };
        let laying = Copies::new(vec![Files::new(files, copy, true, false)]);
        Self::with(Machine::Copies(laying), Duration::ZERO)
    }

    fn with(machine: Machine, start_after: Duration) -> Self {
        Self {
            desk: Desk::default(),
            machine,
            visiting: None,
            start_after,
            starts: Instant::FAR_FUTURE,
            now: Instant::ZERO,
        }
    }

    pub(crate) fn begin(&mut self, now: Instant, largest: u32) {
        self.starts = now + self.start_after;
        // Pieces of a unit begin where stamps are.
        self.desk.largest = largest - largest % content::STAMPED as u32;
    }

    pub(crate) fn act(&mut self, now: Instant, asks: &mut Vec<(u64, Operation)>) {
        self.now = now;
        if now >= self.starts && !self.is_away(now) {
            match &mut self.machine {
                Machine::Stream(stream) => stream.act(now, &mut self.desk),
                Machine::Copies(copies) => copies.act(now, &mut self.desk),
                Machine::Random(random) => random.act(now, &mut self.desk),
                Machine::Office(office) => office.act(now, &mut self.desk),
            }
        }
        asks.extend(self.desk.asks.drain(..));
        self.come_back(now);
    }

    /// Whether it does nothing, because it has left; a stream ends what is under way first.
    fn is_away(&mut self, now: Instant) -> bool {
        let Some(Visiting { spec, random, leaves }) = &mut self.visiting else { return false };
        if leaves.is_none() {
            *leaves = spec.visits.stay.map(|stay| self.starts + stay.draw(random));
        }
        match &mut self.machine {
            _ if leaves.is_none_or(|leaves| now < leaves) => false,
            Machine::Stream(stream) => {
                stream.leave();
                false
            }
            _ => true,
        }
    }

    /// A stream that has left, or was refused, begins anew after its time.
    fn come_back(&mut self, now: Instant) {
        let (Some(visiting), Machine::Stream(stream)) = (&mut self.visiting, &self.machine) else { return };
        if let Some(away) = visiting.spec.visits.away.filter(|_| stream.is_gone()) {
            visiting.spec = visiting.spec.elsewhere();
            visiting.leaves = None;
            self.machine = Machine::new(&visiting.spec);
            self.starts = now + away.draw(&mut visiting.random);
        }
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
        let works = match &self.machine {
            Machine::Stream(stream) => stream.next_event(),
            Machine::Office(office) => office.next_event(),
            Machine::Random(random) => random.next_event(),
            Machine::Copies(_) => None,
        };
        let leaves = self.visiting.as_ref().and_then(|visiting| visiting.leaves);
        match leaves {
            // It waits for what is under way alone.
            Some(leaves) if leaves <= self.now => None,
            leaves => works.into_iter().chain(leaves).min(),
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

    /// What was counted so far.
    pub(crate) fn so_far(&self) -> &ClientReport {
        &self.desk.report
    }

    /// What became of it; `looked_at` is when the run's clients were looked at last.
    pub(crate) fn report(&self, looked_at: Instant) -> ClientReport {
        let mut report = self.desk.report.clone();
        let now = self.now.max(looked_at);
        match &self.machine {
            Machine::Stream(stream) => stream.settle(now, &mut report),
            Machine::Random(random) => random.settle(now, &mut report),
            Machine::Copies(_) | Machine::Office(_) => {}
        }
        report
    }
}
