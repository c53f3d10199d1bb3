//! `fsck.avfs`: checks a volume that is not mounted.
//!
//! It does what a mount does before it writes anything: reads every piece of metadata, replays the log in memory,
//! and derives directories and free space from the inodes, which shows any contradiction between them. Nothing is
//! written.

use crate::claim::{Claim, ClaimError};
use crate::fail;
use avfs_core::recovery::{RecoveryError, recover};
use avfs_fuse::mount::printable;
use avfs_io::IoError;
use avfs_io::device::{FileDevice, OpenError, OpenMode};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const NAME: &str = "fsck.avfs";

/// Exit codes of fsck(8).
const ERRORS_LEFT: u8 = 4;
const OPERATIONAL_ERROR: u8 = 8;
const WRONG_USAGE: u8 = 16;

/// Check an AVFS volume that is not mounted. Usually called by fsck(8).
#[derive(Debug, Parser)]
#[command(name = NAME, version, max_term_width = 100)]
struct Arguments {
    /// Block device or image file
    device: PathBuf,
    /// Check only (the default)
    #[arg(short, group = "mode")]
    n: bool,
    /// Accepted for fsck(8): nothing is asked, and damage is reported, not repaired
    #[arg(short, group = "mode")]
    y: bool,
    /// Like -y
    #[arg(short, group = "mode")]
    p: bool,
    /// Like -y
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
    #[error("{path}: cannot read the device: {error}")]
    Device { path: String, error: IoError },
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
    match run(&arguments.device) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(ERRORS_LEFT),
        Err(error) => fail(NAME, error, OPERATIONAL_ERROR),
    }
}

/// Prints what is found and gives back how many errors that is.
fn run(path: &Path) -> Result<usize, FsckError> {
    let claim = Claim::take(path, NAME, || {
        eprintln!("{NAME}: waiting until {} is written completely after its last mount", printable(path));
    })?;
    let checked = open(path, &claim).map_err(FsckError::from).and_then(|device| check(path, &device));
    claim.release();
    checked
}

fn open(path: &Path, claim: &Claim) -> Result<FileDevice, OpenError> {
    let exclusive = || FileDevice::open(path, OpenMode::Exclusive);
    match claim.open(exclusive, |error| matches!(error, OpenError::InUse(_))) {
        // What cannot be written cannot change under the check either.
        Err(OpenError::ReadOnly(_)) => FileDevice::open(path, OpenMode::ReadOnly),
        opened => opened,
    }
}

fn check(path: &Path, device: &FileDevice) -> Result<usize, FsckError> {
    let path = printable(path);
    let volume = match recover(device) {
        Ok(volume) => volume,
        Err(RecoveryError::Device(error)) => return Err(FsckError::Device { path, error }),
        Err(error) => {
            println!("{path}: {}", error.to_string().trim_end_matches(": run fsck.avfs"));
            return Ok(1);
        }
    };
    for address in &volume.repaired {
        println!("{path}: metadata at {address} is damaged; its second copy is whole");
    }
    println!(
        "{path}: {} inodes, {} changes in the log, {} errors",
        volume.metadata.inodes(),
        volume.replayed,
        volume.repaired.len()
    );
    Ok(volume.repaired.len())
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
