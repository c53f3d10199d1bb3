//! The command line: `mkfs.avfs`, `mount.avfs`, `umount.avfs`, `fsck.avfs` and `avfsctl`.
//!
//! **For:** arguments in, one clear line and an exit code out; finding and locking devices; becoming a daemon.
//! **Excludes:** every decision about the volume itself. **State:** none that outlives a command, but for the
//! device's lock, which the daemon holds as long as it has the device. **Invariant:** no command writes to a
//! device that another AVFS process has open.
//!
//! Each command is a function here and a `main` of one line in `src/bin`; `avfs-completions`, which packages are made with,
//! writes what shells complete.

// It panics when nobody reads, or when the disk is full that the output goes to.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod avfsctl;
mod calibrate;
pub mod claim;
mod daemon;
mod filesystem;
pub mod fsck;
mod logging;
mod memory;
pub mod mkfs;
pub mod mount;
mod mount_options;
mod patience;
mod probe;
mod reload;
mod service;
pub mod umount;
mod vacancy;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// What `--version` says: with the commit, where it is known.
const VERSION: &str = env!("AVFS_VERSION");

/// Prints `name: error` on standard error and gives back `code`.
fn fail(name: &str, error: impl Display, code: u8) -> ExitCode {
    tell(format_args!("{name}: {error}"));
    ExitCode::from(code)
}

/// Prints a line on standard error. Where nobody reads it, there is nowhere to say so.
fn tell(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// What was printed is lost.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
struct OutputError(#[from] io::Error);

/// Prints on standard output. A pipe that its reader has closed is no error: it wants no more.
fn print(text: impl Display) -> Result<(), OutputError> {
    let mut output = io::stdout().lock();
    match write!(output, "{text}").and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
