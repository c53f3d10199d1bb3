//! Finding volumes on devices that need not be mounted: for udev, which knows by this what is on a device, and for tags of fstab(5)
//! where there is no udev.

use avfs_core::format::SuperblockError;
use avfs_core::partition_table;
use avfs_core::recovery::{RecoveryError, find_superblock};
use avfs_fuse::mount::{DeviceNumber, printable};
use avfs_io::device::{Device, FileDevice, OpenError, OpenMode};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// A volume on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// `None`: made by a newer version of AVFS.
    pub(crate) identity: Option<Identity>,
}

/// How it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uuid: Uuid,
    pub(crate) label: String,
    /// Other tools see that the device holds something.
    pub(crate) is_protected: bool,
}

/// The volume on a device or in an image file, if there is one. Nothing is written, and no other process is kept out.
///
/// # Errors
/// When it cannot be opened or read.
pub(crate) fn volume_on(path: &Path) -> Result<Option<Found>, String> {
    let device = match FileDevice::open(path, OpenMode::ReadOnly) {
        Err(OpenError::BlockTooLarge { .. }) => return Ok(None),
        opened => opened.map_err(|error| error.to_string())?,
    };
    if device.size().0 == 0 {
        return Ok(None);
    }
    match find_superblock(&device) {
        Ok(superblock) => {
            let is_protected = partition_table::is_protected(&device, &superblock);
            let is_protected = is_protected.map_err(|error| format!("{}: {error}", printable(path)))?;
            let uuid = Uuid::from_bytes(superblock.uuid);
            Ok(Some(Found { identity: Some(Identity { uuid, label: superblock.label, is_protected }) }))
        }
        Err(RecoveryError::Superblock(SuperblockError::Newer)) => Ok(Some(Found { identity: None })),
        Err(RecoveryError::Superblock(SuperblockError::Unreadable)) => {
            Err(format!("{}: it cannot be read", printable(path)))
        }
        // A part of a RAID is shorter than the volume on it.
        Err(_) => Ok(None),
    }
}

/// All volumes on block devices of this host, by device. Of a device and what is made of it, a RAID for instance, the latter.
pub(crate) fn all() -> Vec<(PathBuf, Found)> {
    let Ok(entries) = std::fs::read_dir("/sys/class/block") else { return Vec::new() };
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    // To open a drive without a medium takes long.
    names.retain(|name| !name.starts_with("fd") && !name.starts_with("sr"));
    let found: Vec<(String, Found)> = names
        .into_iter()
        .filter(|name| is_not_empty(name))
        .filter_map(|name| {
            let found = volume_on(&device(&name)).ok()??;
            Some((name, found))
        })
        .collect();
    let is_shown_by_another = |(name, volume): &(String, Found)| {
        let holders = std::fs::read_dir(format!("/sys/class/block/{name}/holders"));
        let mut holders =
            holders.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        holders.any(|holder| found.iter().any(|(other, found)| *other == holder && found == volume))
    };
    let shown = found.iter().filter(|volume| !is_shown_by_another(volume));
    shown.map(|(name, found)| (device(name), found.clone())).collect()
}

fn device(name: &str) -> PathBuf {
    // The kernel writes ! for the / of a name.
    Path::new("/dev").join(name.replace('!', "/"))
}

fn is_not_empty(name: &str) -> bool {
    let sectors = std::fs::read_to_string(format!("/sys/class/block/{name}/size"));
    sectors.is_ok_and(|sectors| sectors.trim() != "0")
}

/// The device that `LABEL=…` or `UUID=…` means, as fstab(5) has it; `None` for what is no tag.
///
/// # Errors
/// When there is none, or more than one.
pub(crate) fn resolve(source: &Path) -> Result<Option<PathBuf>, String> {
    let Some((tag, value)) = source.to_str().and_then(|source| source.split_once('=')) else {
        return Ok(None);
    };
    let is_it: Box<dyn Fn(&Identity) -> bool> = match tag {
        "LABEL" => Box::new(|identity| identity.label == value),
        "UUID" => {
            let uuid: Uuid = value.parse().map_err(|_| format!("{tag}={value}: not a UUID of a volume"))?;
            Box::new(move |identity| identity.uuid == uuid)
        }
        _ => return Ok(None),
    };
    let found = all().into_iter().filter(|(_, found)| found.identity.as_ref().is_some_and(&is_it));
    match found.map(|(device, _)| device).collect::<Vec<_>>().as_slice() {
        [] => Err(format!(
            "no block device of this host holds the volume {tag}={value}; `avfsctl probe` shows those that hold one"
        )),
        [device] => Ok(Some(device.clone())),
        several => {
            let names: Vec<_> = several.iter().map(|device| printable(device)).collect();
            Err(format!("{} hold a volume {tag}={value}: name the device", names.join(" and ")))
        }
    }
}

/// The device that holds a volume, of the partition that only protects it.
pub(crate) fn protected_by(partition: &Path) -> Option<PathBuf> {
    let metadata = partition.metadata().ok().filter(|metadata| metadata.file_type().is_block_device())?;
    let number = DeviceNumber::from_raw(metadata.rdev());
    let directory = Path::new("/sys/dev/block").join(number.to_string());
    if !directory.join("partition").exists() {
        return None;
    }
    let whole = directory.canonicalize().ok()?.parent()?.file_name()?.to_str().map(device)?;
    let found = volume_on(&whole).ok().flatten()?.identity?;
    found.is_protected.then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_tag_is_a_path() {
        for path in ["/dev/sdb", "a=b", "PARTUUID=x", "LABEL"] {
            assert_eq!(resolve(Path::new(path)), Ok(None), "{path}");
        }
        assert!(resolve(Path::new("UUID=1234-ABCD")).unwrap_err().contains("not a UUID"));
    }

    #[test]
    fn an_image_says_what_is_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        assert!(volume_on(&image).is_err());
        std::fs::write(&image, "").unwrap();
        assert_eq!(volume_on(&image), Ok(None));
        std::fs::remove_file(&image).unwrap();
        let device = FileDevice::create(&image, units::Bytes::from_mib(192)).unwrap();
        assert_eq!(volume_on(&image), Ok(None));
        let options = avfs_core::mkfs::MkfsOptions { label: "a b".into(), ..Default::default() };
        let made = avfs_core::mkfs::make(&device, &options).unwrap();
        let identity =
            Identity { uuid: Uuid::from_bytes(made.uuid), label: "a b".into(), is_protected: true };
        assert_eq!(volume_on(&image), Ok(Some(Found { identity: Some(identity) })));
        // The beginning of a longer one, as a part of a RAID has it.
        std::fs::File::options().write(true).open(&image).unwrap().set_len(64 << 20).unwrap();
        assert_eq!(volume_on(&image), Ok(None));
    }
}
