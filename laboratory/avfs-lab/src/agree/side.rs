//! What one of the two did, and why it could not.
//!
//! **For:** what is compared. **Excludes:** how it came about. **State:** none.

use crate::loop_device::LoopError;
use crate::lun::LunError;
use crate::rig::RigError;
use avfs_io::{OpenError, StartError};
use rtsched::StreamId;
use rtsched_sim::policy::Grant;
use rtsched_sim::workload::ScenarioError;
use std::collections::BTreeMap;
use std::io;
use thiserror::Error;
use units::{Bytes, Duration};

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
    /// The streams that asked to be admitted, in the order of the names: what was granted last, or `None`.
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
