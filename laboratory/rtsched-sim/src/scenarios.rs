//! The scenarios there are.
//!
//! **For:** those of `experiments/scenarios/` by their names, random ones by their seeds, and the question how many streams a policy
//! carries. **Excludes:** running them, which is [`simulation`](crate::simulation)'s. **State:** none.

use crate::policy::PolicyName;
use crate::report::Outcome;
use crate::simulation;
use crate::workload::{Scenario, ScenarioError, Simulated, Told};
use avfs_workloads::{
    CopySpec, Declaration, EditorSpec, Experiment, Group, Pattern, Refused, ScrubSpec, Span, StreamSpec,
    Then, Thens,
};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use units::Duration;

macro_rules! declared {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../experiments/scenarios/", $name, ".toml")))),*]
    };
}

/// Name and text.
const DECLARED: [(&str, &str); 15] = declared![
    "readers",
    "readers-copier",
    "readers-8-copier",
    "writers",
    "writers-copier",
    "mixed",
    "churn",
    "misbehaving",
    "degrading",
    "office",
    "fragmented",
    "zoned",
    "disk",
    "ssd",
    "nvme-1000",
];

/// Names and texts of the scenarios this crate declares.
pub fn declared() -> impl Iterator<Item = (&'static str, &'static str)> {
    DECLARED.into_iter()
}

/// The names of the scenarios this crate declares.
pub fn names() -> impl Iterator<Item = &'static str> {
    DECLARED.iter().map(|(name, _)| *name)
}

/// The scenarios of a name that is declared, or (a name that ends in `.toml`) of a file: one for each experiment.
///
/// # Errors
/// [`ScenarioError`] says what is wrong with the name or the declaration.
pub fn named(name: &str) -> Result<Vec<Scenario>, ScenarioError> {
    if name.ends_with(".toml") {
        let text = std::fs::read_to_string(name);
        let text = text.map_err(|source| ScenarioError::File { path: name.to_owned(), source })?;
        return Scenario::all(&text);
    }
    match DECLARED.iter().find(|(declared, _)| *declared == name) {
        Some((_, text)) => Scenario::all(text),
        None => {
            let known = names().collect::<Vec<_>>().join(", ");
            Err(ScenarioError::Unknown { name: name.to_owned(), known })
        }
    }
}

/// What a random scenario is drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Players of up to 185 Mbit/s and reads beside them, on the RAID.
    Players,
    /// Players and recorders of up to 800 Mbit/s and anything beside them, on any device.
    Everything,
}

/// A unit that plays for about a 25th of a second, in pieces of 64 KiB.
fn stream_of(megabits: f64, unit_kib: u64) -> StreamSpec {
    let kib = megabits * 1e6 / 8.0 / 25.0 / 1024.0;
    let unit_kib = if unit_kib > 0 { unit_kib } else { (kib / 64.0).round().max(1.0) as u64 * 64 };
    // It holds a unit: nothing but what it is promised keeps it in time.
    StreamSpec { megabits, unit_kib, buffer_ms: BUFFER_MS }
}

/// A unit.
const BUFFER_MS: u64 = 40;

fn milliseconds(span: [f64; 2]) -> Span {
    Span::Between(span.map(|seconds| (seconds * 1e3) as u64))
}

fn copy_of(request_kib: u64, in_flight: u32) -> CopySpec {
    CopySpec { request_kib, in_flight, files_at_once: 1 }
}

fn scenario(
    name: String,
    device: String,
    seconds: u64,
    simulated: Simulated,
    experiment: Experiment,
) -> Scenario {
    let mut declaration = Declaration::rehearsed(&name, &device, 64, seconds, Vec::new(), experiment);
    declaration.simulated = simulated;
    Scenario::of(declaration).expect("what is drawn can be simulated")
}

/// A scenario drawn from a seed: streams that come, go, jump and pause, on a device that does not change.
///
/// # Panics
/// Never: what is drawn can be simulated.
pub fn random(mix: Mix, seed: u64, seconds: u64) -> Scenario {
    let rng = &mut SmallRng::seed_from_u64(seed ^ 0x5eed);
    let device =
        *["raid5-table5", "raid5-table5", "raid5-zoned", "ssd-sata", "disk-ncq"].choose(rng).unwrap_or(&"");
    let scale = if device == "disk-ncq" { 0.5 } else { 1.0 };
    let count = rng.random_range(2..=8);
    let mut groups: Vec<Group> =
        (0..count).map(|group| random_group(rng, mix, group, scale, seconds as f64)).collect();
    let simulated = Simulated {
        memory_mib: *[1024, 2048, 4096, 8192].choose(rng).unwrap_or(&4096),
        ..Simulated::default()
    };
    let first = groups.remove(0);
    groups.extend(random_background(rng, mix));
    let experiment = Experiment {
        name: first.name,
        in_turn_with: first.in_turn_with,
        every_ms: first.every_ms,
        stay_ms: first.stay_ms,
        away_ms: first.away_ms,
        told: first.told,
        groups,
        ..Experiment::of("stream", first.client, first.count)
    };
    scenario(format!("random-{seed}"), device.to_owned(), seconds, simulated, experiment)
}

fn random_group(rng: &mut SmallRng, mix: Mix, group: usize, scale: f64, seconds: f64) -> Group {
    const RATES: [f64; 8] = [25.0, 50.0, 100.0, 100.0, 145.0, 185.0, 400.0, 800.0];
    let comes_and_goes = rng.random_bool(0.5);
    let span = |rng: &mut SmallRng, likely: f64, from: f64, to: f64| {
        rng.random_bool(likely).then(|| {
            let low = rng.random_range(from..to);
            [low, rng.random_range(low..=to)]
        })
    };
    let (rates, players) = match mix {
        Mix::Players => (&RATES[..6], 1.0),
        Mix::Everything => (&RATES[..], 0.7),
    };
    let plays = rng.random_bool(players);
    let count = rng.random_range(1..=5);
    let rates: Vec<f64> =
        (0..rng.random_range(1..=3)).filter_map(|_| rates.choose(rng)).map(|rate| rate * scale).collect();
    let unit_kib = *[0, 0, 1024].choose(rng).unwrap_or(&0);
    let extent_kib = (!rng.random_bool(0.75)).then(|| 4096 << rng.random_range(0..4_u32));
    let file_mib = 1024 << rng.random_range(0..5_u32);
    let priority = *[50, 128, 200].choose(rng).unwrap_or(&128);
    let after_ms = (rng.random_range(0.0..seconds / 4.0) * 1e3) as u64;
    let every_ms = (rng.random_range(0.0..10.0) * 1e3) as u64;
    let stay = if comes_and_goes { span(rng, 1.0, 5.0, 200.0) } else { None };
    let away = span(rng, 0.8, 2.0, 60.0);
    let jumps = if plays { span(rng, 0.4, 2.0, 60.0) } else { None };
    let pauses = span(rng, 0.4, 5.0, 60.0);
    let pause = span(rng, 1.0, 0.5, 30.0).unwrap_or([1.0, 1.0]);
    let refused = if rng.random_bool(0.5) { Refused::Leaves } else { Refused::PlaysOn };
    let client = |megabits: &f64| {
        let StreamSpec { megabits, unit_kib, buffer_ms } = stream_of(*megabits, unit_kib);
        let editor = |play: [f64; 2], then| {
            let (play_ms, pause_ms) = (milliseconds(play), milliseconds(pause));
            Pattern::Editor(EditorSpec { megabits, unit_kib, buffer_ms, play_ms, pause_ms, then })
        };
        match (plays, jumps, pauses) {
            (false, ..) => Pattern::Recorder(StreamSpec { megabits, unit_kib, buffer_ms }),
            (true, None, None) => Pattern::Player(StreamSpec { megabits, unit_kib, buffer_ms }),
            (true, Some(jumps), None) => editor(jumps, Thens::One(Then::Jump)),
            (true, None, Some(pauses)) => editor(pauses, Thens::One(Then::Pause)),
            (true, Some(jumps), Some(pauses)) => editor(
                [jumps[0].min(pauses[0]), jumps[1].min(pauses[1]).max(jumps[0].min(pauses[0]))],
                Thens::Several(vec![Then::Jump, Then::Pause]),
            ),
        }
    };
    let mut clients: Vec<Pattern> = rates.iter().map(client).collect();
    Group {
        name: format!("group-{group}"),
        count,
        client: clients.remove(0),
        in_turn_with: clients,
        after_ms,
        every_ms: Some(every_ms),
        stay_ms: stay.map(milliseconds),
        away_ms: away.map(milliseconds),
        told: Told { megabits: None, priority, extent_kib, file_mib, refused },
    }
}

/// Whoever is there from the start, or from later on.
fn beside(client: Pattern, count: u32, after_ms: u64) -> Group {
    Group {
        name: "beside".to_owned(),
        count,
        client,
        in_turn_with: Vec::new(),
        after_ms,
        every_ms: Some(0),
        stay_ms: None,
        away_ms: None,
        told: Told::default(),
    }
}

fn random_background(rng: &mut SmallRng, mix: Mix) -> Vec<Group> {
    let works = match mix {
        Mix::Players => [(true, false)].as_slice(),
        Mix::Everything => &[(true, false), (true, false), (false, true), (true, true)],
    };
    let mut background = Vec::new();
    if rng.random_bool(0.6) {
        let in_flight = rng.random_range(1..=8);
        let copy = copy_of(1024 << rng.random_range(0..4_u32), in_flight);
        let (reads, writes) = *works.choose(rng).unwrap_or(&(true, false));
        let after_ms = (rng.random_range(0.0..60.0) * 1e3) as u64;
        background.extend(reads.then(|| beside(Pattern::CopyFrom(copy), 1, after_ms)));
        background.extend(writes.then(|| beside(Pattern::CopyTo(copy), 1, after_ms)));
    }
    if mix == Mix::Everything && rng.random_bool(0.4) {
        // A document is read and written.
        let pause_ms = (2000.0 / rng.random_range(0.5..10.0)) as u64;
        background.push(beside(Pattern::Office { pause_ms }, 1, 0));
    }
    if rng.random_bool(0.3) {
        let count = rng.random_range(1..=4);
        let pause_ms = rng.random_range(10.0..1000.0) as u64;
        background.push(beside(Pattern::Scrubber(ScrubSpec { picture_kib: 64, pause_ms }), count, 0));
    }
    background
}

/// What is asked of [`carried`].
#[derive(Clone, Debug, PartialEq)]
pub struct CapacityQuestion {
    /// On which device.
    pub device: String,
    /// They record, else they play.
    pub records: bool,
    /// Mbit/s of each.
    pub rate_mbit: f64,
    /// Beside a greedy copy, 4 × 8 MiB outstanding.
    pub copier: bool,
    /// Length of the requests that the baselines have streams make, KiB.
    pub baseline_request_kib: u64,
    /// Virtual time of each try.
    pub duration: Duration,
    /// The most that is tried.
    pub most: u32,
}

/// How many streams a policy carries without a late unit, and the run with so many; the scheduler of production is offered
/// the most and asked how many it admitted, the baselines are given one more until a unit is late.
///
/// # Errors
/// When the device is not declared.
pub fn carried(
    question: &CapacityQuestion,
    policy: PolicyName,
    seed: u64,
) -> Result<(usize, Option<Outcome>), ScenarioError> {
    let attempt = |count| -> Result<Outcome, ScenarioError> {
        simulation::run(&question.scenario(count), policy, seed, question.duration)
    };
    if policy == PolicyName::Rtsched {
        let outcome = attempt(question.most)?;
        let carried = if outcome.late() == 0 { outcome.clean() } else { 0 };
        return Ok((carried, Some(outcome)));
    }
    let mut best = None;
    for count in 1..=question.most {
        let outcome = attempt(count)?;
        if outcome.late() > 0 {
            return Ok((count as usize - 1, best));
        }
        best = Some(outcome);
    }
    Ok((question.most as usize, best))
}

impl CapacityQuestion {
    fn scenario(&self, count: u32) -> Scenario {
        let stream = stream_of(self.rate_mbit, 0);
        let client = if self.records { Pattern::Recorder(stream) } else { Pattern::Player(stream) };
        let simulated = Simulated { baseline_request_kib: self.baseline_request_kib, ..Simulated::default() };
        let copy = self.copier.then(|| Pattern::CopyFrom(copy_of(8192, 4)));
        let experiment = Experiment {
            told: Told { priority: 128, ..Told::default() },
            background: copy.into_iter().collect(),
            ..Experiment::of("stream", client, count)
        };
        let seconds = self.duration.as_secs();
        scenario("capacity".to_owned(), self.device.clone(), seconds, simulated, experiment)
    }
}
