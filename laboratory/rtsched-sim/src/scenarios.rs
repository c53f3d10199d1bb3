//! The scenarios there are.
//!
//! **For:** those of `scenarios/` by their names, random ones by their seeds, and the question how many streams a policy
//! carries. **Excludes:** running them, which is [`simulation`](crate::simulation)'s. **State:** none.

use crate::policy::PolicyName;
use crate::report::Outcome;
use crate::simulation;
use crate::workload::{
    BackgroundSpec, CopierWork, Expect, Layout, Refused, Scenario, ScenarioError, SchedulerSpec, StreamGroup,
    StreamKind,
};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use units::Duration;

macro_rules! declared {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../scenarios/", $name, ".toml")))),*]
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

/// The names of the scenarios this crate declares.
pub fn names() -> impl Iterator<Item = &'static str> {
    DECLARED.iter().map(|(name, _)| *name)
}

/// A scenario that this crate declares, or (a name that ends in `.toml`) one declared in a file.
///
/// # Errors
/// [`ScenarioError`] says what is wrong with the name or the declaration.
pub fn named(name: &str) -> Result<Scenario, ScenarioError> {
    if name.ends_with(".toml") {
        let text = std::fs::read_to_string(name);
        let text = text.map_err(|source| ScenarioError::File { path: name.to_owned(), source })?;
        return Scenario::parse(&text);
    }
    match DECLARED.iter().find(|(declared, _)| *declared == name) {
        Some((_, text)) => Scenario::parse(text),
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

/// A scenario drawn from a seed: streams that come, go, jump and pause, on a device that does not change.
pub fn random(mix: Mix, seed: u64, duration_s: f64) -> Scenario {
    let rng = &mut SmallRng::seed_from_u64(seed ^ 0x5eed);
    let device =
        *["raid5-table5", "raid5-table5", "raid5-zoned", "ssd-sata", "disk-ncq"].choose(rng).unwrap_or(&"");
    let scale = if device == "disk-ncq" { 0.5 } else { 1.0 };
    let groups = rng.random_range(2..=8);
    let streams = (0..groups).map(|group| random_group(rng, mix, group, scale, duration_s)).collect();
    Scenario {
        name: format!("random-{seed}"),
        title: "Drawn from a seed".to_owned(),
        device: device.to_owned(),
        duration_s,
        short_s: duration_s,
        scheduler: SchedulerSpec {
            memory_mib: *[1024, 2048, 4096, 8192].choose(rng).unwrap_or(&4096),
            ..SchedulerSpec::default()
        },
        compare: Vec::new(),
        streams,
        background: random_background(rng, mix),
        expect: Expect::default(),
    }
}

fn random_group(rng: &mut SmallRng, mix: Mix, group: usize, scale: f64, duration_s: f64) -> StreamGroup {
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
    let kind = if rng.random_bool(players) { StreamKind::Reader } else { StreamKind::Writer };
    StreamGroup {
        name: format!("group-{group}"),
        count: rng.random_range(1..=5),
        kind,
        rate_mbit: (0..rng.random_range(1..=3))
            .filter_map(|_| rates.choose(rng))
            .map(|r| r * scale)
            .collect(),
        unit_kib: *[0, 0, 1024].choose(rng).unwrap_or(&0),
        layout: match rng.random_bool(0.75) {
            true => Layout::Contiguous,
            false => Layout::Fragmented { extent_kib: 4096 << rng.random_range(0..4_u32) },
        },
        file_mib: 1024 << rng.random_range(0..5_u32),
        priority: *[50, 128, 200].choose(rng).unwrap_or(&128),
        join_s: rng.random_range(0.0..duration_s / 4.0),
        join_every_s: rng.random_range(0.0..10.0),
        stay_s: if comes_and_goes { span(rng, 1.0, 5.0, 200.0) } else { None },
        away_s: span(rng, 0.8, 2.0, 60.0),
        seek_every_s: if kind == StreamKind::Reader { span(rng, 0.4, 2.0, 60.0) } else { None },
        pause_every_s: span(rng, 0.4, 5.0, 60.0),
        pause_s: span(rng, 1.0, 0.5, 30.0).unwrap_or([1.0, 1.0]),
        speed: 1.0,
        refused: if rng.random_bool(0.5) { Refused::Leaves } else { Refused::PlaysOn },
    }
}

fn random_background(rng: &mut SmallRng, mix: Mix) -> Vec<BackgroundSpec> {
    let works = match mix {
        Mix::Players => [CopierWork::Read].as_slice(),
        Mix::Everything => &[CopierWork::Read, CopierWork::Read, CopierWork::Write, CopierWork::Copy],
    };
    let mut background = Vec::new();
    if rng.random_bool(0.6) {
        background.push(BackgroundSpec::Copier {
            outstanding: rng.random_range(1..=8),
            request_kib: 1024 << rng.random_range(0..4_u32),
            work: *works.choose(rng).unwrap_or(&CopierWork::Read),
            start_s: rng.random_range(0.0..60.0),
            end_s: None,
        });
    }
    if mix == Mix::Everything && rng.random_bool(0.4) {
        background.push(BackgroundSpec::Office { operations_per_s: rng.random_range(0.5..10.0) });
    }
    if rng.random_bool(0.3) {
        background.push(BackgroundSpec::RandomReader {
            outstanding: rng.random_range(1..=4),
            request_kib: 64,
            think_ms: rng.random_range(10.0..1000.0),
        });
    }
    background
}

/// What is asked of [`carried`].
#[derive(Clone, Debug, PartialEq)]
pub struct CapacityQuestion {
    /// On which device.
    pub device: String,
    /// Readers or writers.
    pub kind: StreamKind,
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

/// How many streams a policy carries without a late frame, and the run with so many; the scheduler of production is offered
/// the most and asked how many it admitted, the baselines are given one more until a frame is late.
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
        let copier = BackgroundSpec::Copier {
            outstanding: 4,
            request_kib: 8192,
            work: CopierWork::Read,
            start_s: 0.0,
            end_s: None,
        };
        let streams = StreamGroup {
            name: "stream".to_owned(),
            count,
            kind: self.kind,
            rate_mbit: vec![self.rate_mbit],
            unit_kib: 0,
            layout: Layout::Contiguous,
            file_mib: 16 << 10,
            priority: 128,
            join_s: 0.0,
            join_every_s: 0.25,
            stay_s: None,
            away_s: None,
            seek_every_s: None,
            pause_every_s: None,
            pause_s: [1.0, 1.0],
            speed: 1.0,
            refused: Refused::Leaves,
        };
        Scenario {
            name: "capacity".to_owned(),
            title: String::new(),
            device: self.device.clone(),
            duration_s: self.duration.as_secs_f64(),
            short_s: self.duration.as_secs_f64(),
            scheduler: SchedulerSpec {
                baseline_request_kib: self.baseline_request_kib,
                ..SchedulerSpec::default()
            },
            compare: Vec::new(),
            streams: vec![streams],
            background: if self.copier { vec![copier] } else { Vec::new() },
            expect: Expect::default(),
        }
    }
}
