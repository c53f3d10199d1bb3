//! `avfsctl probe`: what a device holds, mounted or not. `avfsctl protect`: has other tools see it.

use super::asking::CtlError;
use crate::claim::Claim;
use crate::probe::{self, Found};
use avfs_core::{format, partition_table};
use avfs_fuse::mount::printable;
use avfs_io::device::{FileDevice, OpenError, OpenMode};
use clap::Args;
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Of blkid(8): nothing was found.
const NOTHING: u8 = 2;

#[derive(Debug, Args)]
pub(super) struct ProbeArguments {
    /// Block devices or image files; without one, all block devices of this host
    devices: Vec<PathBuf>,
    /// Answer in properties, as udev(7) imports them
    #[arg(long)]
    udev: bool,
}

#[derive(Debug, Args)]
pub(super) struct ProtectArguments {
    /// Block device or image file of a volume that is not mounted
    device: PathBuf,
    /// Also where something else stands before the volume, another partition table perhaps
    #[arg(short, long)]
    force: bool,
}

pub(super) fn probe(output: &mut impl Write, arguments: &ProbeArguments) -> Result<u8, CtlError> {
    let found = if arguments.devices.is_empty() {
        probe::all()
    } else {
        let look = |path: &PathBuf| match probe::volume_on(path) {
            Ok(found) => found.map(|found| Ok((path.clone(), found))),
            Err(error) => Some(Err(CtlError::Device(error))),
        };
        arguments.devices.iter().filter_map(look).collect::<Result<_, _>>()?
    };
    for (path, found) in &found {
        let text = if arguments.udev { properties(found) } else { line(path, found) };
        output.write_all(text.as_bytes())?;
    }
    Ok(if found.is_empty() { NOTHING } else { 0 })
}

pub(super) fn protect(
    output: &mut impl Write,
    name: &str,
    arguments: &ProtectArguments,
) -> Result<(), CtlError> {
    let path = &arguments.device;
    let claim = Claim::take(path, name)?;
    let opened = claim
        .open(|| FileDevice::open(path, OpenMode::Exclusive), |error| matches!(error, OpenError::InUse(_)));
    let protected = opened.map_err(CtlError::from).and_then(|device| {
        let protect = partition_table::protect(&device, arguments.force);
        protect.map_err(|error| CtlError::Device(format!("{}: {error}", printable(path))))
    });
    claim.release();
    let what = if protected? { "now has" } else { "has" };
    writeln!(
        output,
        "{}: the volume {what} a partition table that protects it from other tools",
        printable(path)
    )?;
    Ok(())
}

/// As blkid(8) prints it.
fn line(path: &Path, found: &Found) -> String {
    let mut line = format!("{}:", printable(path));
    let mut tag = |name: &str, value: &str| {
        // Writing to a string does not fail.
        let _ = write!(line, " {name}=\"{}\"", value.escape_debug());
    };
    if let Some(identity) = &found.identity {
        if !identity.label.is_empty() {
            tag("LABEL", &identity.label);
        }
        tag("UUID", &identity.uuid.to_string());
        tag("VERSION", &format::VERSION.to_string());
    }
    tag("TYPE", "avfs");
    if let Some(identity) = &found.identity {
        tag("PROTECTED", if identity.is_protected { "yes" } else { "no" });
    }
    line + "\n"
}

/// As the builtin blkid of udev names them, and AVFS_PROTECTED for a device of which others see that it holds something.
fn properties(found: &Found) -> String {
    let mut lines = vec![("ID_FS_TYPE", "avfs".to_owned()), ("ID_FS_USAGE", "filesystem".to_owned())];
    if let Some(identity) = &found.identity {
        let uuid = identity.uuid.to_string();
        lines.extend([
            ("ID_FS_VERSION", format::VERSION.to_string()),
            ("ID_FS_UUID", uuid.clone()),
            ("ID_FS_UUID_ENC", uuid),
        ]);
        if !identity.label.is_empty() {
            lines.extend([
                ("ID_FS_LABEL", plain(&identity.label)),
                ("ID_FS_LABEL_ENC", encoded(&identity.label)),
            ]);
        }
        if identity.is_protected {
            lines.push(("AVFS_PROTECTED", "1".to_owned()));
        }
    }
    lines.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
}

/// What udev allows in the name of a link.
fn is_allowed(character: char) -> bool {
    character.is_ascii_alphanumeric() || "#+-.:=@_".contains(character) || !character.is_ascii()
}

/// For the name of a link in /dev/disk: what is not allowed there as \xNN.
fn encoded(label: &str) -> String {
    label.chars().fold(String::new(), |mut text, character| {
        // Writing to a string does not fail.
        let _ = if is_allowed(character) {
            write!(text, "{character}")
        } else {
            write!(text, "\\x{:02x}", u32::from(character))
        };
        text
    })
}

/// To be shown: what is not allowed becomes an underscore.
fn plain(label: &str) -> String {
    label.chars().map(|character| if is_allowed(character) { character } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Identity;

    /// A line's end in a label would begin a property of its own.
    #[test]
    fn a_label_is_one_property_whatever_it_holds() {
        let identity =
            |label: &str| Identity { uuid: uuid::Uuid::nil(), label: label.into(), is_protected: false };
        let of = |label| properties(&Found { identity: Some(identity(label)) });
        let said = of("day 1/\"é\"\nID_FS_TYPE=ext4\\");
        assert!(said.contains("\nID_FS_LABEL=day_1__é__ID_FS_TYPE=ext4_\n"), "{said}");
        let expected = "\nID_FS_LABEL_ENC=day\\x201\\x2f\\x22é\\x22\\x0aID_FS_TYPE=ext4\\x5c\n";
        assert!(said.contains(expected), "{said}");
        assert_eq!(said.lines().count(), 7, "{said}");
        assert!(!of("").contains("LABEL"));
        assert_eq!(properties(&Found { identity: None }), "ID_FS_TYPE=avfs\nID_FS_USAGE=filesystem\n");
    }
}
