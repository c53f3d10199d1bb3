//! Files of experiments.
//!
//! **For:** what is compared with what, in a TOML file: a LUN, contenders (a filesystem and its tuning), experiments (what
//! the clients do, beside whom), and what the simulator is told besides. **Excludes:** carrying it out, and what a device's or
//! a contender's name stands for. **State:** none. **Invariants:** a declaration that was accepted can be carried out as far
//! as it depends on the declaration.

use crate::contender::Contender;
use crate::experiment::Experiment;
use crate::pattern::Pattern;
use crate::simulated::Simulated;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use thiserror::Error;
use units::{Bytes, Duration};

/// Clients of an experiment, at most.
const MOST: u32 = 1000;

/// A file of experiments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declaration {
    /// What the report is called.
    pub name: String,
    /// What it shows.
    #[serde(default)]
    pub title: String,
    /// The device of rtsched-sim, by name or path.
    pub device: String,
    /// Its size here, GiB.
    #[serde(default = "default_size_gib")]
    pub size_gib: u64,
    /// Each point is measured for so many seconds, once all clients have started …
    pub seconds: u64,
    /// … but those with recorders, or a copy to here, for so many: longer, because at first they fill memory. Default: as the
    /// others.
    pub recorded_seconds: Option<u64>,
    /// How often each number is searched, at least once.
    #[serde(default = "one")]
    pub repeats: u32,
    /// A player's clip, MiB: long enough that nobody reads the same twice in a run.
    #[serde(default = "default_clip_mib")]
    pub clip_mib: u64,
    /// Measure each number of clients up to one beyond the largest, as curves need it.
    #[serde(default)]
    pub curves: bool,
    /// Contenders take turns, point by point, each on a LUN that stays: what the machine's host gives changes within minutes, and
    /// then changes for all of them. Takes the memory of all their LUNs at once.
    #[serde(default)]
    pub take_turns: bool,
    /// Who is compared, of those that the laboratory declares; they come before the declaration's own.
    #[serde(default)]
    pub compare: Vec<String>,
    /// Who is compared.
    #[serde(default, rename = "contender")]
    pub contenders: Vec<Contender>,
    /// What the simulator is told besides.
    #[serde(default)]
    pub simulated: Simulated,
    /// In what.
    #[serde(rename = "experiment")]
    pub experiments: Vec<Experiment>,
}

fn default_size_gib() -> u64 {
    64
}

fn default_clip_mib() -> u64 {
    256
}

fn one() -> u32 {
    1
}

/// Why a declaration is none.
#[derive(Debug, Error)]
pub enum DeclarationError {
    /// Not TOML, or not these words.
    #[error("the declaration is wrong: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A figure.
    #[error("{place}: {problem}")]
    Figure {
        /// Which part.
        place: String,
        /// What is wrong.
        problem: String,
    },
}

impl Declaration {
    /// Reads a declaration.
    ///
    /// # Errors
    /// In one line what is wrong.
    pub fn parse(text: &str) -> Result<Self, DeclarationError> {
        let declaration: Self = toml::from_str(text)?;
        declaration.check()?;
        Ok(declaration)
    }

    /// One of AVFS alone, for rehearsals: nothing of it is to fit into a machine's memory.
    pub fn rehearsed(
        name: &str,
        device: &str,
        size_gib: u64,
        seconds: u64,
        contenders: Vec<Contender>,
        experiment: Experiment,
    ) -> Self {
        Self {
            name: name.to_owned(),
            title: String::new(),
            device: device.to_owned(),
            size_gib,
            seconds,
            recorded_seconds: None,
            repeats: 1,
            clip_mib: 1,
            curves: false,
            take_turns: false,
            compare: Vec::new(),
            contenders,
            simulated: Simulated::default(),
            experiments: vec![experiment],
        }
    }

    /// A clip's length.
    pub fn clip(&self) -> Bytes {
        Bytes::from_mib(self.clip_mib)
    }

    /// For how long a point of an experiment is measured.
    pub fn measured(&self, experiment: &Experiment) -> Duration {
        Duration::from_secs(self.seconds_of(experiment))
    }

    /// The same in seconds.
    pub fn seconds_of(&self, experiment: &Experiment) -> u64 {
        self.recorded_seconds.filter(|_| experiment.fills_memory()).unwrap_or(self.seconds)
    }

    /// Whether it can be carried out as far as that depends on it alone.
    ///
    /// # Errors
    /// In one line what is wrong.
    pub fn check(&self) -> Result<(), DeclarationError> {
        let wrong =
            |place: &str, problem: String| Err(DeclarationError::Figure { place: place.to_owned(), problem });
        if self.recorded_seconds == Some(0) {
            return wrong(&self.name, "recorded_seconds must be above zero".to_owned());
        }
        if self.repeats == 0 || self.seconds == 0 || self.clip_mib == 0 || self.size_gib == 0 {
            return wrong(
                &self.name,
                "repeats, seconds, clip_mib and size_gib must be above zero".to_owned(),
            );
        }
        if self.experiments.is_empty() {
            return wrong(&self.name, "needs at least one experiment".to_owned());
        }
        let mut names = BTreeSet::new();
        let all =
            self.contenders.iter().map(|one| &one.name).chain(self.experiments.iter().map(|one| &one.name));
        for name in all {
            if !names.insert(name) {
                return wrong(name, "two have this name".to_owned());
            }
        }
        for contender in &self.contenders {
            if let Err(problem) = contender.check() {
                return wrong(&contender.name, problem);
            }
        }
        for experiment in &self.experiments {
            if !(1..=experiment.most).contains(&experiment.guess) || experiment.most > MOST {
                return wrong(&experiment.name, "guess must be from 1 to most, most up to 1000".to_owned());
            }
            if !(1..=MOST / experiment.most).contains(&experiment.at_once) {
                return wrong(
                    &experiment.name,
                    "at_once must be from 1, and up to 1000 with most".to_owned(),
                );
            }
            if experiment.aged_percent.is_some_and(|percent| !(30..=95).contains(&percent)) {
                return wrong(&experiment.name, "aged_percent must be from 30 to 95".to_owned());
            }
            if let Some(problem) = spans_of(experiment) {
                return wrong(&experiment.name, problem.to_owned());
            }
            let measured_ms = 1000 * self.seconds_of(experiment);
            if experiment.beside_after_ms.is_some_and(|after| after > measured_ms) {
                let problem = format!("beside_after_ms must be up to {measured_ms}, which are measured");
                return wrong(&experiment.name, problem);
            }
            let counted = || experiment.in_turn_with.iter().chain([&experiment.client]);
            if !counted().all(Pattern::is_stream) {
                return wrong(&experiment.name, "its clients must be of a kind that can be late".to_owned());
            }
            if !experiment.chasers_follow() {
                return wrong(
                    &experiment.name,
                    "a chaser must stand in in_turn_with, behind a recorder of its megabits and unit_kib"
                        .to_owned(),
                );
            }
            for pattern in counted().chain(experiment.beside()) {
                if let Err(problem) = pattern.check() {
                    return wrong(&experiment.name, problem);
                }
            }
        }
        Ok(())
    }
}

/// What is wrong with the times of an experiment's clients.
fn spans_of(experiment: &Experiment) -> Option<&'static str> {
    let own = [experiment.stay_ms, experiment.away_ms];
    let groups = experiment.groups.iter().flat_map(|group| [group.stay_ms, group.away_ms]);
    let are_spans = own.into_iter().chain(groups).flatten().all(|span| span.is_one());
    if !are_spans {
        return Some("stay_ms and away_ms must be a time or [from, to]");
    }
    let told = experiment.groups.iter().map(|group| &group.told).chain([&experiment.told]);
    told.into_iter().find_map(|told| told.problem())
}
