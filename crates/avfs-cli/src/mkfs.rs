//! `mkfs.avfs`: makes a volume.

use crate::calibrate::{self, CalibrateError, Kept};
use crate::claim::{Claim, ClaimError};
use crate::vacancy::{self, VacancyError};
use crate::{OutputError, fail, print};
use avfs_core::config::parse_size;
use avfs_core::format;
use avfs_core::mkfs::{self, MkfsOptions};
use avfs_io::device::{FileDevice, OpenError, OpenMode};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use units::{Bytes, Timestamp};

const NAME: &str = "mkfs.avfs";

/// Make an AVFS volume on a block device or in an image file. Everything on it is lost.
#[derive(Debug, Parser)]
#[command(name = NAME, version = crate::VERSION, max_term_width = 100)]
struct Arguments {
    /// Do it even if the device holds a filesystem or a partition table
    #[arg(short, long)]
    force: bool,
    /// Name of the volume, at most 63 bytes
    #[arg(short = 'L', long, default_value = "")]
    label: String,
    /// Identity of the volume; by default a random one
    #[arg(short = 'U', long)]
    uuid: Option<uuid::Uuid>,
    /// Stripe of the RAID below, like 1M; by default what the device says
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    stripe: Option<Bytes>,
    /// Make an image file of this size, like 10G, which takes space only as it is filled
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<Bytes>,
    /// Measure how long the device takes, for about two minutes, and keep the result in this configuration file
    #[arg(long, value_name = "CONFIG")]
    calibrate: Option<PathBuf>,
    /// Block device or image file
    device: PathBuf,
}

#[derive(Debug, thiserror::Error)]
enum MkfsError {
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{0}; use --force to overwrite it")]
    NotVacant(#[from] VacancyError),
    #[error(transparent)]
    Calibrate(#[from] CalibrateError),
    #[error("cannot make a volume on {}: {error}", .path.display())]
    Make { path: PathBuf, error: mkfs::MkfsError },
    #[error("the volume was made, but {0}")]
    Output(#[from] OutputError),
}

/// What this command understands, for the completion of shells.
pub fn command() -> clap::Command {
    use clap::CommandFactory;
    Arguments::command()
}

/// Runs the command. Exit codes: 0 made, 1 not made, 2 wrong usage.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(NAME, error, 1),
    }
}

fn run(arguments: &Arguments) -> Result<(), MkfsError> {
    let path = &arguments.device;
    let created = match arguments.size {
        Some(size) => Some(FileDevice::create(path, size)?),
        None => None,
    };
    let image = created.is_some();
    let made = Claim::take(path, NAME).map_err(MkfsError::from).and_then(|claim| {
        let made = make(arguments, &claim, created);
        claim.release();
        made
    });
    if image && made.as_ref().is_err_and(|error| !matches!(error, MkfsError::Output(_))) {
        // The first error is the one to report.
        let _ = std::fs::remove_file(path);
    }
    made
}

fn make(arguments: &Arguments, claim: &Claim, created: Option<FileDevice>) -> Result<(), MkfsError> {
    let path = &arguments.device;
    let is_new = created.is_some();
    let device = match created {
        Some(device) => device,
        None => {
            let device = claim.open(
                || FileDevice::open(path, OpenMode::Exclusive),
                |error| matches!(error, OpenError::InUse(_)),
            )?;
            if !arguments.force {
                vacancy::check(&device, path)?;
            }
            device
        }
    };
    let device = Arc::new(device);
    if let Some(config) = &arguments.calibrate {
        let failed = |error| MkfsError::Make { path: path.clone(), error };
        mkfs::check_unused(&*device).map_err(failed)?;
        let kept = Kept::open(config)?;
        let measured = calibrate::measure(&device, path, true, calibrate::duration(true))?;
        kept.keep(&measured)?;
    }
    let options = MkfsOptions {
        label: arguments.label.clone(),
        uuid: arguments.uuid.map(uuid::Uuid::into_bytes),
        stripe: arguments.stripe,
        now: now(),
    };
    // Nobody else can have what has only just been made.
    let make = if is_new { mkfs::make } else { mkfs::make_alone };
    let superblock =
        make(&*device, &options).map_err(|error| MkfsError::Make { path: path.clone(), error })?;
    let geometry = superblock.geometry;
    let stripe = match geometry.stripe {
        Bytes::ZERO => "none known".to_owned(),
        stripe => stripe.to_string(),
    };
    print(format_args!(
        "{}: AVFS volume of {}\n  uuid       {}\n  log        {} at {}\n  data area  {} units of {} at {}\n  stripe     {stripe}\n",
        path.display(),
        geometry.device,
        uuid::Uuid::from_bytes(superblock.uuid),
        geometry.log,
        Bytes(format::LOG_START),
        geometry.units,
        Bytes(format::UNIT),
        Bytes(geometry.data_start.0)
    ))?;
    Ok(())
}

/// The time; the epoch on a machine whose clock stands before it.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: since.subsec_nanos(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
        let parsed =
            Arguments::parse_from(["mkfs.avfs", "--size", "10G", "--stripe", "1M", "-L", "a", "x.img"]);
        assert_eq!(parsed.size, Some(Bytes::from_mib(10240)));
        assert!(Arguments::try_parse_from(["mkfs.avfs", "--size", "ten", "x.img"]).is_err());
    }
}
