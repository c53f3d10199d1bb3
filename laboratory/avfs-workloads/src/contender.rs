//! A filesystem and its tuning.

use crate::experiment::Experiment;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A filesystem and its tuning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contender {
    /// As the report calls it.
    pub name: String,
    /// As mount(8) and `mkfs.` call it.
    pub filesystem: String,
    /// Arguments of mkfs.
    #[serde(default)]
    pub mkfs: Vec<String>,
    /// Options of mount.
    #[serde(default)]
    pub mount: Vec<String>,
    /// How long the LUN takes is measured before (`avfsctl calibrate --destructive`), and the configuration says what was found.
    #[serde(default)]
    pub calibrated: bool,
    /// The text of a configuration file; its path is given to mount as `config=`.
    pub config: Option<String>,
    /// The host's I/O scheduler.
    #[serde(default = "default_scheduler")]
    pub scheduler: String,
    /// The kernel's dirty pages of it, at most, MiB. The default is what AVFS, with the cache that it has here, lets wait.
    #[serde(default = "default_dirty")]
    pub dirty_mib: u64,
    /// Attributes of the device's queue, such as `read_ahead_kb`.
    #[serde(default)]
    pub queue: BTreeMap<String, String>,
    /// A command line for the new volume; `{}` stands for where it is mounted.
    #[serde(default)]
    pub prepare: Vec<String>,
    /// Settings of the share.
    #[serde(default)]
    pub share: BTreeMap<String, String>,
    /// Where its search begins in an experiment, instead of where the experiment says: saves runs.
    #[serde(default)]
    pub guess: BTreeMap<String, u32>,
}

impl Contender {
    /// AVFS, for a rehearsal, with so much cache and this configuration.
    pub fn rehearsed(name: String, cache_gib: u64, calibrated: bool, config: Option<String>) -> Self {
        Self {
            name,
            filesystem: "avfs".to_owned(),
            mkfs: Vec::new(),
            mount: vec![format!("cache_size={cache_gib}G")],
            calibrated,
            config,
            scheduler: default_scheduler(),
            dirty_mib: 0,
            queue: BTreeMap::new(),
            prepare: Vec::new(),
            share: BTreeMap::new(),
            guess: BTreeMap::new(),
        }
    }

    /// Where its search begins.
    pub fn guess(&self, experiment: &Experiment) -> u32 {
        self.guess.get(&experiment.name).map_or(experiment.guess, |guess| (*guess).clamp(1, experiment.most))
    }

    /// Only AVFS has a configuration file, and only it is told there what a device takes.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.filesystem == "avfs" {
            return Ok(());
        }
        let told = [("calibrated", self.calibrated), ("config", self.config.is_some())];
        match told.iter().find(|(_, is_told)| *is_told) {
            Some((what, _)) => {
                Err(format!("{what} is for filesystem = \"avfs\", not {:?}: leave it out", self.filesystem))
            }
            None => Ok(()),
        }
    }
}

fn default_scheduler() -> String {
    // What the kernel gives a LUN behind a host adapter with several queues, and a loop device.
    "none".to_owned()
}

fn default_dirty() -> u64 {
    2048
}
