//! What the clients of an experiment do: the same words for simulator, rehearsal and laboratory.

use crate::pattern::Pattern;
use crate::simulated::{Expect, Told};
use crate::span::Span;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use units::Duration;

/// From one client's start to the next one's, milliseconds.
const EVERY_MS: u64 = 250;

/// What clients do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// As the report calls it.
    pub name: String,
    /// How they get at the files.
    #[serde(default)]
    pub access: Access,
    /// What each of those that are counted does …
    pub client: Pattern,
    /// … unless there are several kinds of them: then they take turns, `client` first.
    #[serde(default)]
    pub in_turn_with: Vec<Pattern>,
    /// So many clients come with each step of the search; 2 for pairs.
    #[serde(default = "one")]
    pub at_once: u32,
    /// The volume is as if it had been in use for long, and so full when the clips are there, percent, 30 to 95; see
    /// `avfs_lab::ageing`.
    pub aged_percent: Option<u32>,
    /// Who works beside them.
    #[serde(default)]
    pub background: Vec<Pattern>,
    /// They come so long after the first of those that are counted, milliseconds. Default: together with him.
    pub beside_after_ms: Option<u64>,
    /// No more clients, or steps, than this.
    pub most: u32,
    /// Where the search begins.
    pub guess: u32,
    /// What others report of this experiment on their device: who, and how many clients, or steps.
    #[serde(default)]
    pub published: BTreeMap<String, u32>,
    /// How many AVFS with bitrates is wanted to carry.
    pub wanted: Option<u32>,
    /// From one's start to the next one's, milliseconds; 250 where nothing is said.
    pub every_ms: Option<u64>,
    /// They leave after so long; absent: never.
    pub stay_ms: Option<Span>,
    /// … and come back after so long, as do those that were refused; absent: they do not.
    pub away_ms: Option<Span>,
    /// More clients beside them, in groups of their own.
    #[serde(default, rename = "group")]
    pub groups: Vec<Group>,
    /// What the simulator's volume is told of the counted clients.
    #[serde(default)]
    pub told: Told,
    /// What must be true of the scheduler at the end of a simulation.
    #[serde(default)]
    pub expect: Expect,
}

fn one() -> u32 {
    1
}

impl Experiment {
    /// Clients of one kind by themselves, as processes of the server, at most so many.
    pub fn of(name: &str, client: Pattern, most: u32) -> Self {
        Self {
            name: name.to_owned(),
            access: Access::Local,
            client,
            in_turn_with: Vec::new(),
            at_once: 1,
            aged_percent: None,
            background: Vec::new(),
            beside_after_ms: None,
            most,
            guess: most,
            published: BTreeMap::new(),
            wanted: None,
            every_ms: None,
            stay_ms: None,
            away_ms: None,
            groups: Vec::new(),
            told: Told::default(),
            expect: Expect::default(),
        }
    }

    /// What the counted client of a number does, counted from 0.
    pub fn pattern(&self, client: u32) -> &Pattern {
        let kinds = 1 + self.in_turn_with.len();
        match client as usize % kinds {
            0 => &self.client,
            later => &self.in_turn_with[later - 1],
        }
    }

    /// What those beside the counted clients do.
    pub fn beside(&self) -> impl Iterator<Item = &Pattern> {
        let grouped =
            self.groups.iter().flat_map(|group| [&group.client].into_iter().chain(&group.in_turn_with));
        self.background.iter().chain(grouped)
    }

    /// From one counted client's start to the next one's.
    pub fn every(&self) -> Duration {
        Duration::from_millis(self.every_ms.unwrap_or(EVERY_MS))
    }

    /// Every chaser has a recorder before it.
    pub(crate) fn chasers_follow(&self) -> bool {
        let kinds: Vec<&Pattern> = [&self.client].into_iter().chain(&self.in_turn_with).collect();
        let is_chaser = |pattern: &Pattern| matches!(pattern, Pattern::Chaser(_));
        let follows = kinds.windows(2).all(|pair| !is_chaser(pair[1]) || pair[1].chases(pair[0]));
        follows && !is_chaser(&self.client) && !self.beside().any(is_chaser)
    }

    /// How many clients, or steps, all Mbit/s of a device have room for.
    pub fn bound(&self, megabits: f64) -> u32 {
        let step = |step: u32| {
            let clients = step * self.at_once..(step + 1) * self.at_once;
            clients.filter_map(|client| self.pattern(client).megabits()).sum::<f64>()
        };
        let room = (0..).scan(0.0, |taken, number| {
            *taken += step(number);
            (*taken <= megabits).then_some(number + 1)
        });
        room.take(1000).last().unwrap_or(0)
    }

    /// Some of the counted clients record.
    pub fn records(&self) -> bool {
        self.recorded_megabits(self.at_once * self.most).is_some()
    }

    /// What clients write fills memory at first.
    pub(crate) fn fills_memory(&self) -> bool {
        self.records() || self.beside().any(|pattern| matches!(pattern, Pattern::CopyTo(_)))
    }

    /// Mbit/s that so many counted clients record together; nothing if none of them does.
    pub fn recorded_megabits(&self, clients: u32) -> Option<f64> {
        let recorded: Vec<f64> =
            (0..clients).filter_map(|client| self.pattern(client).recorded_megabits()).collect();
        (!recorded.is_empty()).then(|| recorded.iter().sum())
    }
}

/// More clients of an experiment. They are not counted, and not searched for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// As reports call it.
    pub name: String,
    /// How many.
    pub count: u32,
    /// What each of them does …
    pub client: Pattern,
    /// … unless there are several kinds of them: then they take turns, `client` first.
    #[serde(default)]
    pub in_turn_with: Vec<Pattern>,
    /// When the first starts, milliseconds after the first counted client.
    #[serde(default)]
    pub after_ms: u64,
    /// As [`Experiment::every_ms`].
    pub every_ms: Option<u64>,
    /// As [`Experiment::stay_ms`].
    pub stay_ms: Option<Span>,
    /// As [`Experiment::away_ms`].
    pub away_ms: Option<Span>,
    /// What the simulator's volume is told of them.
    #[serde(default)]
    pub told: Told,
}

impl Group {
    /// What the client of a number does, counted from 0.
    pub fn pattern(&self, client: u32) -> &Pattern {
        match client as usize % (1 + self.in_turn_with.len()) {
            0 => &self.client,
            later => &self.in_turn_with[later - 1],
        }
    }

    /// From one's start to the next one's.
    pub fn every(&self) -> Duration {
        Duration::from_millis(self.every_ms.unwrap_or(EVERY_MS))
    }
}

/// How clients get at the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Through stock smbd.
    #[default]
    Smb,
    /// As processes of the server.
    Local,
}
