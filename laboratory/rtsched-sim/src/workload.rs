//! What is simulated: an experiment, before a scheduler without a volume.
//!
//! **For:** reading declarations of [`avfs_workloads`], and saying in one line what of them takes a volume. **Excludes:** the
//! grammar, and behaviour. **State:** none. **Invariants:** a scenario that was accepted can be simulated.

use crate::policy::PolicyName;
use avfs_model::device::{DeviceError, DeviceSpec};
use avfs_workloads::{Declaration, DeclarationError, Experiment, Member, Pattern, Then};
pub use avfs_workloads::{Expect, Simulated, Told};
use thiserror::Error;
use units::Duration;

/// A declaration of one experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario(Declaration);

/// Why there is nothing to simulate.
#[derive(Debug, Error)]
pub enum ScenarioError {
    /// No such scenario.
    #[error("no scenario is called {name}: it is one of {known}, or the path of a .toml file")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The file cannot be read.
    #[error("the scenario {path} cannot be read: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Not a declaration.
    #[error(transparent)]
    Declaration(#[from] DeclarationError),
    /// Its device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A scheduler alone cannot do it.
    #[error("{name} cannot be simulated: {what}")]
    Unfit {
        /// The scenario.
        name: String,
        /// What of it, and what to do instead.
        what: String,
    },
}

impl Scenario {
    /// The experiments of a declaration, one by one.
    ///
    /// # Errors
    /// When it is none, or takes a volume.
    pub fn all(text: &str) -> Result<Vec<Self>, ScenarioError> {
        let declaration = Declaration::parse(text)?;
        let several = declaration.experiments.len() > 1;
        let one = |experiment: &Experiment| {
            let name = if several {
                format!("{}: {}", declaration.name, experiment.name)
            } else {
                declaration.name.clone()
            };
            Self::of(Declaration { name, experiments: vec![experiment.clone()], ..declaration.clone() })
        };
        declaration.experiments.iter().map(one).collect()
    }

    /// A declaration of one experiment; of several, the first.
    ///
    /// # Errors
    /// When it is none, or takes a volume.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        Self::of(Declaration::parse(text)?)
    }

    /// A declaration whose first experiment is simulated.
    ///
    /// # Errors
    /// When it takes a volume.
    pub fn of(declaration: Declaration) -> Result<Self, ScenarioError> {
        let scenario = Self(declaration);
        match scenario.takes_a_volume() {
            Some(what) => Err(ScenarioError::Unfit { name: scenario.0.name, what }),
            None => Ok(scenario),
        }
    }

    fn takes_a_volume(&self) -> Option<String> {
        if self.0.experiments.is_empty() {
            return Some("it has no experiment".to_owned());
        }
        let experiment = self.experiment();
        let unknown = self.simulated().compare.iter().find_map(|name| name.parse::<PolicyName>().err());
        let counted = [&experiment.client].into_iter().chain(&experiment.in_turn_with);
        let volume = counted.chain(experiment.beside()).find_map(|pattern| match pattern {
            Pattern::FramePlayer(_) | Pattern::FrameRecorder(_) => Some("sequences lie in directories"),
            Pattern::Chaser(_) => Some("a chaser reads what another client writes"),
            Pattern::Editor(editor)
                if [Then::Turn, Then::Both].iter().any(|then| editor.then.include(*then)) =>
            {
                Some("an editor that turns, or plays at two places, needs a volume that sees it")
            }
            _ => None,
        });
        let aged = experiment.aged_percent.map(|_| "a volume ages, a device does not");
        unknown.or(volume.or(aged).map(|why| format!("{why}: ./lab rehearse has a volume")))
    }

    /// The whole declaration.
    pub fn declaration(&self) -> &Declaration {
        &self.0
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What clients do.
    pub fn experiment(&self) -> &Experiment {
        &self.0.experiments[0]
    }

    /// What the scheduler may use.
    pub fn simulated(&self) -> &Simulated {
        &self.0.simulated
    }

    /// What must be true of the scheduler at the end.
    pub fn expect(&self) -> &Expect {
        &self.experiment().expect
    }

    /// Orders that run beside the scheduler, for comparison.
    pub fn compare(&self) -> Vec<PolicyName> {
        self.simulated().compare.iter().filter_map(|name| name.parse().ok()).collect()
    }

    /// Its device's declaration.
    ///
    /// # Errors
    /// When there is none.
    pub fn device(&self) -> Result<DeviceSpec, ScenarioError> {
        Ok(DeviceSpec::named(&self.0.device)?)
    }

    /// Virtual time of a run; that of a point, unless it is a full one.
    pub fn duration(&self, full: bool) -> Duration {
        let seconds = self.simulated().seconds.filter(|_| full).unwrap_or(self.0.seconds);
        Duration::from_secs(seconds)
    }

    /// What a client is called, and what a volume would be told of it.
    pub(crate) fn group(&self, member: Member) -> (&str, Told) {
        match member {
            Member::Group(place) => {
                let group = &self.experiment().groups[place];
                (&group.name, group.told)
            }
            Member::Counted | Member::Background(_) => (&self.experiment().name, self.experiment().told),
        }
    }
}
