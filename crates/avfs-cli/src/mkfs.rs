//! `mkfs.avfs`: makes a volume.

use crate::claim::{Claim, ClaimError};
use crate::{fail, size};
use avfs_core::format::{self, Superblock, SuperblockError};
use avfs_core::mkfs::{self, MkfsOptions};
use avfs_io::IoError;
use avfs_io::device::{Device, FileDevice, OpenError, OpenMode};
use clap::Parser;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};
use units::{Bytes, DeviceOffset, Timestamp};

const NAME: &str = "mkfs.avfs";

/// Make an AVFS volume on a block device or in an image file. Everything on it is lost.
#[derive(Debug, Parser)]
#[command(name = NAME, version, max_term_width = 100)]
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
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    stripe: Option<Bytes>,
    /// Make an image file of this size, like 10G, which takes space only as it is filled
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<Bytes>,
    /// Block device or image file
    device: PathBuf,
}

#[derive(Debug, thiserror::Error)]
enum MkfsError {
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{} holds {found}; use --force to overwrite it", .path.display())]
    Occupied { path: PathBuf, found: String },
    #[error("cannot find out whether {} is in use ({error}); use --force if it is not", .path.display())]
    Unknown { path: PathBuf, error: io::Error },
    #[error("{}: {error}", .path.display())]
    Device { path: PathBuf, error: IoError },
    #[error("cannot make a volume on {}: {error}", .path.display())]
    Make { path: PathBuf, error: mkfs::MkfsError },
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
    let claim = Claim::take(path, NAME, || {
        eprintln!("{NAME}: waiting until {} is written completely after its last mount", path.display());
    });
    let made = claim.map_err(MkfsError::from).and_then(|claim| {
        let made = make(arguments, &claim, created);
        claim.release();
        made
    });
    if made.is_err() && image {
        // The first error is the one to report.
        let _ = std::fs::remove_file(path);
    }
    made
}

fn make(arguments: &Arguments, claim: &Claim, created: Option<FileDevice>) -> Result<(), MkfsError> {
    let path = &arguments.device;
    let device = match created {
        Some(device) => device,
        None => {
            let device = claim.open(
                || FileDevice::open(path, OpenMode::Exclusive),
                |error| matches!(error, OpenError::InUse(_)),
            )?;
            if !arguments.force {
                check_vacant(&device, path)?;
            }
            device
        }
    };
    let options = MkfsOptions {
        label: arguments.label.clone(),
        uuid: arguments.uuid.map(uuid::Uuid::into_bytes),
        stripe: arguments.stripe,
        now: now(),
    };
    let superblock =
        mkfs::make(&device, &options).map_err(|error| MkfsError::Make { path: path.clone(), error })?;
    let geometry = superblock.geometry;
    println!("{}: AVFS volume of {}", path.display(), geometry.device);
    println!("  uuid       {}", uuid::Uuid::from_bytes(superblock.uuid));
    println!("  log        {} at {}", geometry.log, Bytes(format::LOG_START));
    println!(
        "  data area  {} units of {} at {}",
        geometry.units,
        Bytes(format::UNIT),
        Bytes(geometry.data_start.0)
    );
    match geometry.stripe {
        Bytes::ZERO => println!("  stripe     none known"),
        stripe => println!("  stripe     {stripe}"),
    }
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

/// Refuses a device that holds something.
fn check_vacant(device: &FileDevice, path: &Path) -> Result<(), MkfsError> {
    let occupied = |found: String| Err(MkfsError::Occupied { path: path.to_owned(), found });
    if is_avfs(device).map_err(|error| MkfsError::Device { path: path.to_owned(), error })? {
        return occupied("an AVFS volume".into());
    }
    let output = Command::new("blkid")
        .args(["-p", "-o", "export", "--"])
        .arg(path)
        .output()
        .map_err(|error| MkfsError::Unknown { path: path.to_owned(), error })?;
    match output.status.code() {
        // Nothing was recognised.
        Some(2) => Ok(()),
        Some(0) => occupied(describe(&String::from_utf8_lossy(&output.stdout))),
        Some(8) => occupied("more than one filesystem or partition table".into()),
        _ => Err(MkfsError::Unknown {
            path: path.to_owned(),
            error: io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }),
    }
}

/// What blkid found, in words.
fn describe(export: &str) -> String {
    let value = |key: &str| {
        export.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned)
    };
    match (value("TYPE"), value("PTTYPE")) {
        (Some(filesystem), _) => format!("a filesystem or a part of a volume of type {filesystem}"),
        (None, Some(table)) => format!("a partition table of type {table}"),
        (None, None) => "something that blkid knows".into(),
    }
}

/// Whether one of the superblock slots is there. blkid does not know them.
fn is_avfs(device: &dyn Device) -> Result<bool, IoError> {
    for slot in [format::SUPERBLOCK_A, format::SUPERBLOCK_B] {
        let mut block = [0; format::BLOCK as usize];
        if slot + format::BLOCK <= device.size().0 {
            device.read_at(DeviceOffset(slot), &mut block)?;
        }
        if !matches!(Superblock::decode(&block), Err(SuperblockError::Foreign)) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_blkid_found_is_said_in_words() {
        assert_eq!(
            describe("DEVNAME=/dev/sdb\nUUID=x\nTYPE=ext4\nUSAGE=filesystem\n"),
            "a filesystem or a part of a volume of type ext4"
        );
        assert_eq!(describe("PTUUID=x\nPTTYPE=gpt\n"), "a partition table of type gpt");
    }

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
