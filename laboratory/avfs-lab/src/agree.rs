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
mod side;
mod verdict;

pub use side::{AgreeError, Side};
pub use verdict::{Verdict, compare};

use crate::loop_device::LoopDevice;
use crate::lun::{Lun, LunOptions, REACTION};
use crate::memory::LUN_MEMORY;
use crate::rig::{QUEUE_DEPTH, Scratch};
use rtsched_sim::device::DeviceSpec;
use rtsched_sim::workload::Scenario;

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
