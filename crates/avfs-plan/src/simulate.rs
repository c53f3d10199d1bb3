//! What would have happened otherwise?
//!
//! **For:** a recording once more through the scheduler and the books of streams of production, on a modelled device: as it was, or with
//! more editors, a lost disk, another device, other settings; which streams are late then, and what made them so. **Excludes:** the
//! filesystem: what it asks for besides players comes when it came. **State:** one run. **Invariants:** the same recording and change give
//! the same report; it ends with the recording.
//!
//! Players ask by the terms that they have in the simulation ([`player`](crate::player)). Recorders, metadata and best effort come as they
//! were recorded, so on a slower device a copy asks for more than it could: it has no promise, and takes none from others.

use crate::player::{Owners, Player, Segment, Served, segments};
use crate::recording::Recording;
use avfs_core::config::{Config, Rate};
use avfs_core::device::scheduler_config;
use avfs_io::Incident;
use avfs_io::replay::{Ended, Replay};
use avfs_io::sim::{SimCommand, Timing};
use avfs_io::trace::{Asked, Begin, Does, Happened, Wanted};
use avfs_model::device::{Command, Completion, Device, DeviceSpec, LineSpec, ModelSpec};
use rtsched::{Blocker, Class, Confidence, Request, RequestId, StreamId, StreamSpec, StreamState, Why};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use units::{Bitrate, Bytes, Duration, Instant, nanos};

/// Names of streams that are added: no file has such a number.
const ADDED: u64 = 1 << 62;
/// Names of requests that are made here.
const MADE: u64 = 1 << 63;
/// From one editor that is added to the next: people do not press one key together.
const APART: Duration = Duration::from_secs(1);
/// Editors that can be added.
pub const MOST_EDITORS: u32 = 1000;

/// What is otherwise.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// So many more players...
    pub editors: u32,
    /// ...of this rate each; `None`: as fast as the fastest that was recorded.
    pub rate: Option<Bitrate>,
    /// Another device; `None`: the one that was recorded, as it was known.
    pub device: Option<DeviceSpec>,
    /// Everything takes so many times as long; a lost disk, say.
    pub slower: Option<f64>,
    /// Other settings: of the scheduler, the cache, and of paths.
    pub config: Option<Config>,
    /// Another size of the cache.
    pub memory: Option<Bytes>,
}

/// How a stream was served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StreamOutcome {
    /// Its path, or what it is.
    pub name: String,
    /// It records.
    pub records: bool,
    /// It was added.
    pub is_added: bool,
    /// Its rate.
    pub bits_per_second: u64,
    /// Requests that ended.
    pub requests: u64,
    /// How often it waited, or a recorder's promise was broken.
    pub late: u32,
    /// By how much at most.
    pub longest_microseconds: u64,
    /// From coming somewhere to a full buffer, at most; players alone.
    pub start_microseconds: u64,
    /// `promised`, `best effort` or `demoted`.
    pub service: &'static str,
    /// Why it was promised nothing, or what made it late.
    pub reason: Option<String>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// All streams, those of the recording first.
    pub streams: Vec<StreamOutcome>,
    /// For what part of the time the device worked, thousandths.
    pub busy_permille: u32,
    /// Of the recording.
    pub duration_microseconds: u64,
}

impl Outcome {
    /// Streams that were late.
    pub fn late(&self) -> usize {
        self.streams.iter().filter(|stream| stream.late > 0).count()
    }
}

/// For what part of the time the device worked when it was recorded, thousandths: with as much as one command at it.
pub fn recorded_busy_permille(recording: &Recording) -> u32 {
    let (mut at_device, mut since, mut busy) = (BTreeSet::new(), recording.head.begin.at, 0_u64);
    for record in &recording.records {
        match &record.what {
            Happened::Began { command, .. } => {
                if at_device.is_empty() {
                    since = record.at;
                }
                at_device.insert(*command);
            }
            Happened::Ended { command, .. } if at_device.remove(command) && at_device.is_empty() => {
                busy = busy.saturating_add(record.at.saturating_sub(since));
            }
            _ => {}
        }
    }
    if !at_device.is_empty() {
        busy = busy.saturating_add(recording.until.saturating_sub(since));
    }
    permille(busy, recording.until.saturating_sub(recording.head.begin.at))
}

fn permille(part: u64, whole: u64) -> u32 {
    u32::try_from(u128::from(part) * 1000 / u128::from(whole.max(1))).unwrap_or(u32::MAX)
}

/// The device of a recording, as the scheduler knew it when that began.
pub fn recorded_device(recording: &Recording) -> DeviceSpec {
    let Begin { told, learned: [read, write, flush], .. } = &recording.head.begin;
    let millis = |nanos: u64| nanos as f64 / 1e6;
    let mb_per_s = |rate: u64| rate as f64 / 1e6;
    // Ends that were measured are as much slower now as the slowest zone, of which a line was learned, is.
    let read_mb_per_s = told.read_ends.map_or([mb_per_s(read.rate); 2], |[start, end]| {
        let [start, end] = [mb_per_s(start), mb_per_s(end)];
        let slowest = (start + end * 15.0) / 16.0;
        let factor = mb_per_s(read.rate) / slowest.min((start * 15.0 + end) / 16.0);
        [start * factor, end * factor]
    });
    let line = LineSpec {
        turns: told.device_size > 0,
        read_ms: millis(read.access),
        read_mb_per_s,
        write_ms: millis(write.access),
        write_mb_per_s: mb_per_s(write.rate),
        flush_ms: millis(flush.access),
    };
    let bytes = recording.head.device_bytes.max(told.device_size);
    DeviceSpec {
        name: "recorded".to_owned(),
        source: "What the scheduler of the recorded volume knew of its device.".to_owned(),
        capacity_gb: bytes.div_ceil(1_000_000_000).max(1),
        model: ModelSpec::Line(line),
        phases: Vec::new(),
    }
}

/// A modelled device, by its own clock, which begins with the simulation.
#[derive(Debug)]
struct Model {
    device: Device,
    begin: Instant,
    completions: Vec<Completion>,
}

impl Model {
    fn inside(&self, at: Instant) -> Instant {
        Instant::ZERO + at.saturating_since(self.begin)
    }
}

impl Timing for Model {
    fn submit(&mut self, now: Instant, number: u64, command: SimCommand) {
        let SimCommand { direction, offset, length, .. } = command;
        let now = self.inside(now);
        self.device.submit(now, Command { tag: number, owner: 0, direction, offset, length });
    }

    fn next_event(&self) -> Option<Instant> {
        let next = self.device.next_event()?;
        Some(self.begin + next.saturating_since(Instant::ZERO))
    }

    fn advance(&mut self, now: Instant, completed: &mut Vec<u64>) {
        let now = self.inside(now);
        self.device.advance(now, &mut self.completions);
        completed.extend(self.completions.drain(..).map(|one| one.tag));
    }
}

/// Runs a recording with what is otherwise.
pub fn simulate(recording: &Recording, change: &Change) -> Outcome {
    let begin = &recording.head.begin;
    let start = Instant::from_nanos(begin.at);
    let until = Instant::from_nanos(recording.until);
    let known = recorded_device(recording);
    let mut device = change.device.clone().unwrap_or(known);
    if let Some(factor) = change.slower {
        device = device.slowed(factor);
    }
    let config = configuration(recording, change);
    let model = Model { device: Device::new(&device, 1), begin: start, completions: Vec::new() };
    let mut run = Run {
        replay: Replay::new(config, Box::new(model), start),
        players: Vec::new(),
        of_stream: HashMap::new(),
        owners: Owners::default(),
        tags: MADE,
        broken: BTreeMap::new(),
        reasons: BTreeMap::new(),
        demoted: BTreeSet::new(),
        ended: Vec::new(),
        counts: BTreeMap::new(),
        recorders: HashMap::new(),
    };
    let policies = Policies { recording, config: change.config.as_ref() };
    run.prepare(recording, &policies);
    let rate = change.rate.or_else(|| fastest(recording)).unwrap_or(Bitrate::from_megabits(100));
    let added = change.editors.min(MOST_EDITORS);
    run.add_editors(recording, added, rate, start, until);
    run.play(recording, &policies, added, rate, until);
    run.report(recording, &policies, until)
}

/// What the scheduler is told.
fn configuration(recording: &Recording, change: &Change) -> rtsched::Config {
    let begin = &recording.head.begin;
    let told = begin.told.config();
    // It has learned since it was told.
    let [read, write, flush] = begin.learned.map(|line| line.time());
    let known = rtsched::Config { read, write, flush, ..told };
    let memory = change.memory.or(change.config.as_ref().and_then(|config| config.cache.size));
    let memory = memory.unwrap_or(Bytes(known.buffer_memory.0.saturating_mul(2)));
    let Some(config) = &change.config else {
        return rtsched::Config { buffer_memory: Bytes(memory.0 / 2), ..known };
    };
    let turns = known.device_size > Bytes::ZERO;
    let new = scheduler_config(config, turns, known.device_size, memory);
    if config.device.read.is_some() {
        return new;
    }
    // Of the device it says nothing.
    let rtsched::Config { read_ends, write_times, calibrated, .. } = known;
    rtsched::Config {
        read: known.read,
        read_ends,
        write: known.write,
        write_times,
        flush: known.flush,
        calibrated,
        ..new
    }
}

/// The rate of the fastest player.
fn fastest(recording: &Recording) -> Option<Bitrate> {
    let players = recording.declared().map(|(_, wanted)| wanted).filter(|wanted| !wanted.writes);
    players.map(|wanted| Bitrate(wanted.bits_per_second)).max()
}

/// What a changed configuration says of what was recorded.
struct Policies<'a> {
    recording: &'a Recording,
    config: Option<&'a Config>,
}

impl Policies<'_> {
    /// A class that is no stream's; `None`: it may be one.
    fn class(&self, stream: u64) -> Option<Class> {
        let settings = self.settings(stream)?;
        settings.class.filter(|class| *class != Class::RealTime)
    }

    fn settings(&self, stream: u64) -> Option<avfs_core::config::Settings> {
        let name = self.recording.names.get(&stream)?;
        let (_, policy) = self.config?.policies_for(name.as_bytes()).next()?;
        Some(policy.settings)
    }

    /// What a stream is declared as; `None`: it is none.
    fn wanted(&self, stream: u64, wanted: &Wanted) -> Option<(StreamSpec, Confidence)> {
        if self.class(stream).is_some() {
            return None;
        }
        let (mut spec, mut confidence) = wanted.spec();
        if let Some(Rate::Bitrate(rate)) = self.settings(stream).and_then(|settings| settings.rate) {
            (spec.rate, confidence) = (rate, Confidence::Known);
        }
        Some((spec, confidence))
    }
}

struct Run {
    replay: Replay,
    players: Vec<Player>,
    of_stream: HashMap<u64, usize>,
    owners: Owners,
    tags: u64,
    /// Promises that were broken, by stream: how often, and by how much at most.
    broken: BTreeMap<u64, (u32, Duration)>,
    /// The last reason, by stream.
    reasons: BTreeMap<u64, String>,
    demoted: BTreeSet<u64>,
    ended: Vec<Ended>,
    /// Requests of recorders that ended.
    counts: BTreeMap<u64, u64>,
    recorders: HashMap<RequestId, u64>,
}

/// What a stream read, and at which rate.
#[derive(Default)]
struct Played {
    rate: u64,
    reads: Vec<(Instant, Instant, u64, u64)>,
}

impl Run {
    /// Finds the players of the recording.
    fn prepare(&mut self, recording: &Recording, policies: &Policies) {
        for (stream, Played { rate, reads }) in played(recording) {
            let rate = Bitrate(rate);
            let class = policies.class(stream).unwrap_or(Class::RealTime);
            self.of_stream.insert(stream, self.players.len());
            self.players.push(Player::new(StreamId(stream), rate, segments(&reads, rate), class));
        }
    }

    fn add_editors(
        &mut self,
        recording: &Recording,
        count: u32,
        rate: Bitrate,
        start: Instant,
        until: Instant,
    ) {
        let end = recording.head.device_bytes.max(1 << 30);
        for number in 0..u64::from(count) {
            let from = comes(number, count, start, until);
            // From places all over the device, as far as there is room behind them.
            let length = rate.bytes_in(until.saturating_since(from)).0.clamp(1, end / 2);
            let place = u128::from(end - length) * u128::from(number + 1) / u128::from(count + 1);
            let place = u64::try_from(place).unwrap_or(0) / 4096 * 4096;
            let segment = Segment { from, ranges: vec![(place, length)] };
            self.of_stream.insert(ADDED + number, self.players.len());
            let stream = StreamId(ADDED + number);
            self.players.push(Player::new(stream, rate, vec![segment], Class::RealTime));
        }
    }

    fn declare(&mut self, stream: u64, wanted: Option<(StreamSpec, Confidence)>) {
        self.replay.declare(StreamId(stream), wanted);
        if let Some(&player) = self.of_stream.get(&stream) {
            self.players[player].declared(wanted.is_some());
        }
    }

    fn enqueue(&mut self, asked: &Asked, policies: &Policies) {
        let mut request = asked.request();
        if let Some(stream) = asked.stream {
            if asked.does == Does::Read && self.of_stream.contains_key(&stream) {
                // Its player asks by itself.
                return;
            }
            if let Some(class) = policies.class(stream) {
                request.class = request.class.max(class);
            }
            self.recorders.insert(request.id, stream);
        }
        // Names of the recording may be used again, and some ends are not in it.
        if !self.replay.enqueue(request) {
            self.tags += 1;
            self.replay.enqueue(Request { id: RequestId(self.tags), ..request });
        }
    }

    fn play(
        &mut self,
        recording: &Recording,
        policies: &Policies,
        added: u32,
        rate: Bitrate,
        until: Instant,
    ) {
        let begin = &recording.head.begin;
        let start = Instant::from_nanos(begin.at);
        for stream in &begin.streams {
            self.declare(stream.stream, policies.wanted(stream.stream, &stream.wanted));
        }
        for asked in &begin.waiting {
            self.enqueue(asked, policies);
        }
        let mut records = recording.records.iter().peekable();
        let mut added =
            (0..u64::from(added)).map(|number| (number, comes(number, added, start, until))).peekable();
        loop {
            let now = self.replay.now();
            while let Some(record) = records.next_if(|record| record.at <= now.as_nanos()) {
                self.take(&record.what, policies);
            }
            while let Some((number, _)) = added.next_if(|(_, from)| *from <= now) {
                self.declare(ADDED + number, Some((StreamSpec::reader(rate), Confidence::Known)));
            }
            self.hear();
            self.ask(now);
            if now >= until {
                return;
            }
            let asks = self.players.iter().filter_map(Player::next_ask).filter(|at| *at > now).min();
            let record = records.peek().map(|record| Instant::from_nanos(record.at));
            let editor = added.peek().map(|(_, from)| *from);
            let next =
                [asks, record, editor].into_iter().flatten().min().map_or(until, |next| next.min(until));
            self.replay.advance(next, &mut self.ended);
            let now = self.replay.now();
            for Ended { request, .. } in std::mem::take(&mut self.ended) {
                if let Some(player) = self.owners.take(request) {
                    self.players[player].ended(now, request);
                } else if let Some(stream) = self.recorders.remove(&request) {
                    *self.counts.entry(stream).or_insert(0) += 1;
                }
            }
        }
    }

    fn take(&mut self, what: &Happened, policies: &Policies) {
        match what {
            Happened::Asked(asked) => self.enqueue(asked, policies),
            Happened::Promoted { tag, class, stream, deadline } => {
                let deadline = Instant::from_nanos(*deadline);
                self.replay.promote(RequestId(*tag), (*class).into(), stream.map(StreamId), deadline);
            }
            Happened::Cancelled { tag } => self.replay.cancel(RequestId(*tag)),
            Happened::CancelledStream { stream } => {
                if !self.of_stream.contains_key(stream) {
                    self.replay.cancel_stream(StreamId(*stream));
                }
            }
            Happened::Declared { stream, wanted } => {
                let wanted = wanted.as_ref().and_then(|wanted| policies.wanted(*stream, wanted));
                self.declare(*stream, wanted);
            }
            Happened::Accepted { requests, bytes } => self.replay.note_accepted(*requests, Bytes(*bytes)),
            // What came of it then.
            Happened::Promised { .. }
            | Happened::Began { .. }
            | Happened::Ended { .. }
            | Happened::Late { .. } => {}
        }
    }

    /// What the scheduler says.
    fn hear(&mut self) {
        for promise in self.replay.take_promises() {
            if let Some(&player) = self.of_stream.get(&promise.stream.0) {
                self.players[player].promised(promise.terms);
            }
        }
        for incident in self.replay.take_incidents() {
            match incident {
                Incident::Late(lateness) => {
                    let (count, longest) = self.broken.entry(lateness.stream.0).or_default();
                    *count += 1;
                    if lateness.tardiness > *longest {
                        *longest = lateness.tardiness;
                        let said = blocker(lateness.blocker);
                        self.reasons.insert(lateness.stream.0, said.to_owned());
                    }
                }
                Incident::Refused { stream, rejected, .. } => {
                    self.reasons.insert(stream.0, lacks(rejected.why).to_owned());
                }
                Incident::Demoted { stream, why } => {
                    self.demoted.insert(stream.0);
                    self.reasons.insert(stream.0, lacks(why).to_owned());
                }
                Incident::Restored { .. } | Incident::Speed { .. } | Incident::Explained { .. } => {}
            }
        }
    }

    fn ask(&mut self, now: Instant) {
        let mut requests = Vec::new();
        for index in 0..self.players.len() {
            let player = &mut self.players[index];
            if player.next_ask().is_none_or(|at| at > now) {
                continue;
            }
            if player.ask(now, &mut self.tags, &mut requests) {
                self.replay.cancel_stream(player.stream());
            }
            for request in requests.drain(..) {
                self.owners.note(request.id, index);
                self.replay.enqueue(request);
            }
        }
    }

    fn report(self, recording: &Recording, policies: &Policies, until: Instant) -> Outcome {
        let states: BTreeMap<u64, _> =
            self.replay.streams().into_iter().map(|stream| (stream.stream.0, stream)).collect();
        let microseconds = |time: Duration| nanos(time) / 1000;
        let service = |stream: u64| match states.get(&stream).and_then(|one| one.admitted) {
            _ if self.demoted.contains(&stream) => "demoted",
            Some(status) if status.state != StreamState::Demoted => "promised",
            Some(_) => "demoted",
            None if states.contains_key(&stream) || policies.class(stream).is_some() => "best effort",
            // It had ended before the recording did.
            None => "-",
        };
        let reason = |stream: u64, late: u32, service: &str| {
            self.reasons.get(&stream).filter(|_| late > 0 || service != "promised").cloned()
        };
        let mut outcomes = Vec::new();
        let mut of_players: Vec<(u64, usize)> =
            self.of_stream.iter().map(|(stream, index)| (*stream, *index)).collect();
        of_players.sort_unstable();
        for (stream, index) in of_players {
            let player = &self.players[index];
            let Served { requests, late, longest, start } = player.served(until);
            let is_added = stream >= ADDED;
            let name =
                if is_added { format!("editor {}", stream - ADDED + 1) } else { recording.name(stream) };
            let service = service(stream);
            outcomes.push(StreamOutcome {
                name,
                records: false,
                is_added,
                bits_per_second: player.rate().0,
                requests,
                late,
                longest_microseconds: microseconds(longest),
                start_microseconds: microseconds(start),
                service,
                reason: reason(stream, late, service),
            });
        }
        for (stream, wanted) in recorders(recording) {
            let (late, longest) = self.broken.get(&stream).copied().unwrap_or_default();
            let service = service(stream);
            outcomes.push(StreamOutcome {
                name: recording.name(stream),
                records: true,
                is_added: false,
                bits_per_second: wanted.bits_per_second,
                requests: self.counts.get(&stream).copied().unwrap_or(0),
                late,
                longest_microseconds: microseconds(longest),
                start_microseconds: 0,
                service,
                reason: reason(stream, late, service),
            });
        }
        let duration = until.saturating_since(Instant::from_nanos(recording.head.begin.at));
        Outcome {
            streams: outcomes,
            busy_permille: permille(nanos(self.replay.busy()), nanos(duration)),
            duration_microseconds: microseconds(duration),
        }
    }
}

/// When an editor that is added begins to play: all have by half of the time.
fn comes(number: u64, count: u32, start: Instant, until: Instant) -> Instant {
    let apart = APART.min(until.saturating_since(start) / 2 / count.max(1));
    start + apart * (number as u32 + 1)
}

/// What each stream that plays has read.
fn played(recording: &Recording) -> BTreeMap<u64, Played> {
    let begin = &recording.head.begin;
    let mut played: BTreeMap<u64, Played> = BTreeMap::new();
    for (stream, wanted) in recording.declared().filter(|(_, wanted)| !wanted.writes) {
        played.entry(stream).or_default().rate = wanted.bits_per_second;
    }
    // By tag: when it was asked for, whose it is, and its place in what was read.
    let mut asked: HashMap<u64, (u64, usize)> = HashMap::new();
    let mut commands: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut cancelled: BTreeSet<(u64, usize)> = BTreeSet::new();
    let until = Instant::from_nanos(recording.until);
    let waiting = begin.waiting.iter().map(|asked| (begin.at, asked));
    let ask =
        |at: u64, one: &Asked, played: &mut BTreeMap<u64, Played>, asked: &mut HashMap<u64, (u64, usize)>| {
            let Some(stream) = one.stream.filter(|_| one.does == Does::Read) else { return };
            let Some(of) = played.get_mut(&stream) else { return };
            asked.insert(one.tag, (stream, of.reads.len()));
            of.reads.push((Instant::from_nanos(at), until, one.offset, one.length));
        };
    for (at, one) in waiting {
        ask(at, one, &mut played, &mut asked);
    }
    for record in &recording.records {
        match &record.what {
            Happened::Asked(one) => ask(record.at, one, &mut played, &mut asked),
            Happened::Cancelled { tag } => cancelled.extend(asked.remove(tag)),
            Happened::CancelledStream { stream } => {
                let at_device: BTreeSet<u64> = commands.values().flatten().copied().collect();
                asked.retain(|tag, place| {
                    let is_back = place.0 == *stream && !at_device.contains(tag);
                    cancelled.extend(is_back.then_some(*place));
                    !is_back
                });
            }
            Happened::Began { command, tags, .. } => _ = commands.insert(*command, tags.to_vec()),
            Happened::Ended { command, .. } => {
                for tag in commands.remove(command).unwrap_or_default() {
                    let Some((stream, index)) = asked.remove(&tag) else { continue };
                    if let Some(read) = played.get_mut(&stream).and_then(|of| of.reads.get_mut(index)) {
                        read.1 = Instant::from_nanos(record.at);
                    }
                }
            }
            _ => {}
        }
    }
    for (stream, of) in &mut played {
        let mut index = 0;
        of.reads.retain(|_| {
            index += 1;
            !cancelled.contains(&(*stream, index - 1))
        });
    }
    played.retain(|_, of| !of.reads.is_empty());
    played
}

/// The streams that record.
fn recorders(recording: &Recording) -> BTreeMap<u64, Wanted> {
    recording.declared().filter(|(_, wanted)| wanted.writes).collect()
}

fn blocker(blocker: Blocker) -> &'static str {
    match blocker {
        Blocker::Device => "the device took longer than it is known to",
        Blocker::BestEffort(_) => "best effort held the device",
        Blocker::Stream(_) => "another stream held the device",
        Blocker::Seeks(_) => "a file lies in more pieces than was reckoned with",
        Blocker::Idle => "the device was given nothing",
        Blocker::Own => "it asked for too much at once",
        Blocker::OverAdmission => "more was promised than the device does",
    }
}

fn lacks(why: Why) -> &'static str {
    match why {
        Why::NoTime { .. } | Why::DeadlineTooShort { .. } => "no room on the device",
        Why::NoMemory { .. } => "no memory for its buffer",
        Why::AccountFull { .. } => "its user's share is full",
        Why::Congested { .. } => "other streams are late",
        Why::NoStream | Why::AlreadyAdmitted => "it is no stream that can be promised anything",
    }
}
