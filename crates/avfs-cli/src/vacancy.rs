//! Whether a device holds anything.

use avfs_core::format::{self, Superblock, SuperblockError};
use avfs_io::IoError;
use avfs_io::device::{Device, FileDevice};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use units::DeviceOffset;

/// Why a device must not be overwritten without being asked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VacancyError {
    #[error("{} holds {found}", .path.display())]
    Occupied { path: PathBuf, found: String },
    #[error("cannot find out whether {} is in use ({error})", .path.display())]
    Unknown { path: PathBuf, error: io::Error },
    #[error("{}: {error}", .path.display())]
    Device { path: PathBuf, error: IoError },
}

/// Refuses a device that holds something.
pub(crate) fn check(device: &FileDevice, path: &Path) -> Result<(), VacancyError> {
    let occupied = |found: String| Err(VacancyError::Occupied { path: path.to_owned(), found });
    if is_avfs(device).map_err(|error| VacancyError::Device { path: path.to_owned(), error })? {
        return occupied("an AVFS volume".into());
    }
    let output = Command::new("blkid")
        .args(["-p", "-o", "export", "--"])
        .arg(path)
        .output()
        .map_err(|error| VacancyError::Unknown { path: path.to_owned(), error })?;
    match output.status.code() {
        // Nothing was recognised.
        Some(2) => Ok(()),
        Some(0) => describe(&String::from_utf8_lossy(&output.stdout)).map_or(Ok(()), occupied),
        Some(8) => occupied("more than one filesystem or partition table".into()),
        _ => Err(VacancyError::Unknown {
            path: path.to_owned(),
            error: io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }),
    }
}

/// What blkid found, in words. `None`: the device is a partition, of which it says where that lies and no more.
fn describe(export: &str) -> Option<String> {
    let value = |key: &str| {
        export.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned)
    };
    let is_place = |line: &str| line.starts_with("DEVNAME=") || line.starts_with("PART_ENTRY_");
    match (value("TYPE"), value("PTTYPE")) {
        (Some(filesystem), _) => Some(format!("a filesystem or a part of a volume of type {filesystem}")),
        (None, Some(table)) => Some(format!("a partition table of type {table}")),
        (None, None) if export.lines().all(|line| line.trim().is_empty() || is_place(line)) => None,
        (None, None) => Some("something that blkid knows".into()),
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

    /// An empty partition was refused, because blkid says of it where it lies.
    #[test]
    fn an_empty_partition_is_vacant() {
        assert_eq!(describe("DEVNAME=/dev/sdb1\nPART_ENTRY_SCHEME=gpt\nPART_ENTRY_NUMBER=1\n"), None);
        let held = "DEVNAME=/dev/sdb1\nPTTYPE=dos\nPART_ENTRY_SCHEME=gpt\n";
        assert_eq!(describe(held).as_deref(), Some("a partition table of type dos"));
    }

    #[test]
    fn what_blkid_found_is_said_in_words() {
        let said = |export| describe(export).unwrap();
        assert_eq!(
            said("DEVNAME=/dev/sdb\nUUID=x\nTYPE=ext4\nUSAGE=filesystem\n"),
            "a filesystem or a part of a volume of type ext4"
        );
        assert_eq!(said("PTUUID=x\nPTTYPE=gpt\n"), "a partition table of type gpt");
        assert_eq!(said("SEC_TYPE=msdos\n"), "something that blkid knows");
    }
}
