//! What all parts of the rig do: run a command, wait for something, say what went wrong.
//!
//! **For:** errors and waiting. **Excludes:** what is set up. **State:** none.

use crate::loop_device::LoopError;
use rtsched_sim::device::DeviceError;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;
use thiserror::Error;
use units::Duration;

/// How long a part of the rig may take to come or to go.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no rig.
#[derive(Debug, Error)]
pub enum RigError {
    /// A command failed.
    #[error("{command}: {said}")]
    Command {
        /// As it was called.
        command: String,
        /// What it said.
        said: String,
    },
    /// A file or directory of the rig.
    #[error("{place}: {source}")]
    File {
        /// Which.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// The model.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The block device.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// A part did not come.
    #[error("{what} did not start: {said}")]
    Absent {
        /// Which.
        what: &'static str,
        /// The last it said.
        said: String,
    },
}

pub(super) fn file(place: &Path) -> impl FnOnce(io::Error) -> RigError {
    let place = place.display().to_string();
    move |source| RigError::File { place, source }
}

/// Runs a command to its end.
pub(super) fn run(command: &mut Command) -> Result<String, RigError> {
    let called = || {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    };
    let called = called();
    let output = command.stdin(Stdio::null()).output();
    let output =
        output.map_err(|error| RigError::Command { command: called.clone(), said: error.to_string() })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(RigError::Command { command: called, said })
}

/// Asks `ready` again and again until it says yes, or patience ends.
pub(super) fn await_until(mut ready: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !ready() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}
