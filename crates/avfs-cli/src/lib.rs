//! The command line: `mkfs.avfs`, `mount.avfs`, `umount.avfs`, `fsck.avfs` and `avfsctl`.
//!
//! **For:** arguments in, one clear line and an exit code out; finding and locking devices; becoming a daemon.
//! **Excludes:** every decision about the volume itself. **State:** none that outlives a command, but for the
//! device's lock, which the daemon holds as long as it has the device. **Invariant:** nobody writes to a device
//! that another AVFS process has open.
//!
//! Each command is a function here and a `main` of one line in `src/bin`.

pub mod avfsctl;
mod calibrate;
pub mod claim;
mod daemon;
pub mod fsck;
mod logging;
pub mod mkfs;
pub mod mount;
mod mount_options;
pub mod size;
pub mod umount;
mod vacancy;

use std::fmt::Display;
use std::process::ExitCode;

/// Prints `name: error` on standard error and gives back `code`.
fn fail(name: &str, error: impl Display, code: u8) -> ExitCode {
    eprintln!("{name}: {error}");
    ExitCode::from(code)
}
