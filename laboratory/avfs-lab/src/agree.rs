//! Does production do what the simulator says?
//!
//! **For:** one declared workload twice: before the modelled device in virtual time, and through the engine of production
//! (ring, scheduler, pinned memory) on the same model as a block device; and what differs. The simulated clients' calls
//! are recorded and made again in real time, so both schedulers are asked the same at the same instants, and what
//! follows from it can be compared. **Excludes:** the filesystem. **State:** none. **Invariants:** nothing that is
//! compared depends on how fast this machine answers, except whether requests are late: the device's work is counted in
//! the model's time.

mod record;
mod replay;
mod verdict;

pub use verdict::{Verdict, compare};

use crate::loop_device::{LoopDevice, LoopError};
use crate::lun::{Lun, LunError, LunOptions, REACTION};
use crate::rig::{LUN_MEMORY, QUEUE_DEPTH, RigError, Scratch};
use avfs_io::{OpenError, StartError};
use rtsched::StreamId;
use rtsched_sim::device::DeviceSpec;
use rtsched_sim::policy::Grant;
use rtsched_sim::workload::{Scenario, ScenarioError};
use std::collections::BTreeMap;
use std::io;
use thiserror::Error;
use units::{Bytes, Duration};

/// The workloads that this crate comes with: name and text.
pub const DECLARED: [(&str, &str); 5] = [
    ("inside", include_str!("../../experiments/agreements/inside.toml")),
    ("full", include_str!("../../experiments/agreements/full.toml")),
    ("short", include_str!("../../experiments/agreements/short.toml")),
    ("recorders", include_str!("../../experiments/agreements/recorders.toml")),
    ("beside", include_str!("../../experiments/agreements/beside.toml")),
];

/// The device's size: what the simulator calls GB, whole and a multiple of 4096 bytes.
const CAPACITY_GB: u64 = 64;

/// Why there is nothing to compare.
#[derive(Debug, Error)]
pub enum AgreeError {
    /// The workload.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// What the simulation itself found wrong.
    #[error("the simulation of {scenario} failed: {violation}")]
    Simulation {
        /// Of which workload.
        scenario: String,
        /// The first that it found.
        violation: String,
    },
    /// The directory for the mount.
    #[error(transparent)]
    Rig(#[from] RigError),
    /// The modelled LUN.
    #[error(transparent)]
    Lun(#[from] LunError),
    /// The block device over it.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// The device as the engine opens it.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] StartError),
    /// The memory.
    #[error("no pinned memory for the requests: {0}")]
    Memory(io::Error),
    /// Requests that the device failed or never answered.
    #[error("{failed} requests failed and {missing} never ended")]
    Requests {
        /// With an error.
        failed: u64,
        /// Without an end.
        missing: u64,
    },
}

/// What one side did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    /// Who asked to be admitted, in the order of the names: what was granted last, or `None`.
    pub streams: BTreeMap<StreamId, Option<Grant>>,
    /// Requests of admitted streams that completed.
    pub promised: u64,
    /// Of these: after their deadline.
    pub late: u64,
    /// The shortest time that was left until a deadline, negative when it had passed; seconds.
    pub nearest_s: f64,
    /// Bytes that were read or written.
    pub bytes: Bytes,
    /// Commands that were given to the device.
    pub commands: u64,
    /// The model's time in which the device worked.
    pub busy: Duration,
    /// Times that the arm went elsewhere.
    pub seeks: u64,
}

/// Runs a workload both ways; the simulated side first. `is_long` chooses its full duration.
///
/// # Errors
/// [`AgreeError`] says what is missing. That the sides differ is no error.
pub fn run(scenario: &Scenario, is_long: bool, seed: u64) -> Result<(Side, Side), AgreeError> {
    let device = DeviceSpec { capacity_gb: CAPACITY_GB, ..scenario.device()? };
    let (script, simulated) = record::simulate(scenario, &device, scenario.duration(is_long), seed)?;
    let scratch = Scratch::new()?;
    let mountpoint = scratch.directory("lun")?;
    let turns = device.turns();
    let memory = LUN_MEMORY;
    let options = LunOptions {
        size: device.capacity(),
        spec: device,
        backing: None,
        memory,
        log: None,
        seed,
        reaction: REACTION,
    };
    let lun = Lun::mount(&options, &mountpoint)?;
    let mut block = LoopDevice::attach(&mountpoint.join("lun"), scratch.notes(0))?;
    block.set_queue(QUEUE_DEPTH, "none")?;
    block.set("rotational", if turns { "1" } else { "0" })?;
    let played = replay::play(&script, &lun, block.path());
    drop(block);
    drop(lun);
    Ok((simulated, played?))
}
