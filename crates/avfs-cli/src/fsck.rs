//! `fsck.avfs`: checks a volume that is not mounted.
//!
//! Every structure is read, the log is replayed in memory, and names, space and inodes are held against each other.
//! Repairs go into a fresh checkpoint: until its superblock is written, the volume stays as it was found.

use crate::claim::{Claim, ClaimError};
use crate::{OutputError, fail, print, tell};
use avfs_core::fsck::{self, Mode};
use avfs_fuse::mount::printable;
use avfs_io::device::{FileDevice, OpenError, OpenMode};
use clap::Parser;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const NAME: &str = "fsck.avfs";

/// Exit codes of fsck(8).
const OPERATIONAL_ERROR: u8 = 8;
const WRONG_USAGE: u8 = 16;

/// Check an AVFS volume that is not mounted. Usually called by fsck(8).
#[derive(Debug, Parser)]
#[command(name = NAME, version = crate::VERSION, max_term_width = 100)]
struct Arguments {
    /// Block device or image file
    device: PathBuf,
    /// Check only (the default)
    #[arg(short, group = "mode")]
    n: bool,
    /// Repair everything that can be
    #[arg(short, group = "mode")]
    y: bool,
    /// Repair what loses nothing; leave the rest
    #[arg(short, group = "mode")]
    p: bool,
    /// Like -p
    #[arg(short, group = "mode")]
    a: bool,
    /// Accepted for fsck(8): every check is a whole one
    #[arg(short)]
    f: bool,
}

#[derive(Debug, thiserror::Error)]
enum FsckError {
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{path}: {error}")]
    Check { path: String, error: fsck::FsckError },
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// What this command understands, for the completion of shells.
pub fn command() -> clap::Command {
    use clap::CommandFactory;
    Arguments::command()
}

/// Runs the command. Exit codes are those of fsck(8).
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nowhere to report that the report failed.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { WRONG_USAGE } else { 0 });
        }
    };
    let mode = match &arguments {
        Arguments { y: true, .. } => Mode::Repair,
        Arguments { p: true, .. } | Arguments { a: true, .. } => Mode::Preen,
        _ => Mode::Check,
    };
    match run(&arguments.device, mode) {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(NAME, error, OPERATIONAL_ERROR),
    }
}

/// Prints what is found and gives back the exit code.
fn run(path: &Path, mode: Mode) -> Result<u8, FsckError> {
    let claim = Claim::take(path, NAME)?;
    let opened = open(path, &claim, mode).map_err(FsckError::from);
    let checked = opened.and_then(|(device, mode)| check(path, &device, mode));
    claim.release();
    checked
}

/// The device, and how far to go on it.
fn open(path: &Path, claim: &Claim, mode: Mode) -> Result<(FileDevice, Mode), OpenError> {
    let exclusive = || FileDevice::open(path, OpenMode::Exclusive);
    match claim.open(exclusive, |error| matches!(error, OpenError::InUse(_))) {
        // What cannot be written cannot change under the check either.
        Err(OpenError::ReadOnly(_)) => {
            if mode != Mode::Check {
                tell(format_args!("{NAME}: {} is read-only: it is only checked", printable(path)));
            }
            Ok((FileDevice::open(path, OpenMode::ReadOnly)?, Mode::Check))
        }
        opened => Ok((opened?, mode)),
    }
}

fn check(path: &Path, device: &FileDevice, mode: Mode) -> Result<u8, FsckError> {
    let path = printable(path);
    let report = fsck::check(device, mode).map_err(|error| FsckError::Check { path: path.clone(), error })?;
    let mut output = String::new();
    for finding in &report.findings {
        // Writing to a string does not fail.
        let _ = writeln!(output, "{path}: {finding}");
    }
    let state = match (report.findings.len(), report.repaired) {
        (0, _) => "clean".to_owned(),
        (found, repaired) if found == repaired => format!("{found} findings, all repaired"),
        (found, repaired) => {
            format!("{found} findings, {repaired} repaired; fsck.avfs -y repairs what can be")
        }
    };
    let (inodes, replayed) = (report.inodes, report.replayed);
    let _ = writeln!(output, "{path}: {inodes} inodes, {replayed} changes in the log, {state}");
    print(output)?;
    Ok(report.exit_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
        assert!(Arguments::try_parse_from(["fsck.avfs", "-a", "-f", "/dev/sdb"]).is_ok());
        assert!(Arguments::try_parse_from(["fsck.avfs", "-n", "-y", "/dev/sdb"]).is_err());
    }
}
