//! `avfsctl holder`: which process has the volume of a device, on whatever host. Asks the device, and no daemon.

use super::asking::{CtlError, print_json};
use avfs_core::format::MmpBlock;
use avfs_core::protection;
use avfs_fuse::mount::printable;
use avfs_io::device::{FileDevice, OpenMode};
use clap::Args;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use uuid::Uuid;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Block device or image file
    device: PathBuf,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Version of what is printed as JSON: fields are only added to one.
const VERSION: u32 = 1;

/// What the protection block says.
#[derive(Debug, Serialize)]
struct Report {
    version: u32,
    /// The volume.
    uuid: String,
    /// The last to have it has given it back.
    given_back: bool,
    /// Absent when it was given back: the number of the mount, repair or format that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    /// The boot of that host.
    #[serde(skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<u32>,
}

impl Report {
    fn of(block: MmpBlock) -> Self {
        let is_held = block.sequence != 0;
        Self {
            version: VERSION,
            uuid: Uuid::from_bytes(block.uuid).to_string(),
            given_back: !is_held,
            holder: is_held.then(|| Uuid::from_bytes(block.holder).to_string()),
            host: is_held.then_some(block.host),
            boot: is_held.then(|| Uuid::from_bytes(block.boot_id).to_string()),
            process: is_held.then_some(block.process),
        }
    }
}

pub(super) fn run(output: &mut impl Write, arguments: &Arguments) -> Result<(), CtlError> {
    let path = &arguments.device;
    let device = FileDevice::open(path, OpenMode::ReadOnly)?;
    let failed = |why: String| CtlError::path(path, io::Error::other(why));
    let block = protection::read(&device).map_err(|error| failed(error.to_string()))?;
    let block = block
        .ok_or_else(|| failed("no AVFS volume, or the block that names its holder is damaged".into()))?;
    let report = Report::of(block);
    if arguments.json {
        return Ok(print_json(output, &report)?);
    }
    let mut line = |name: &str, value: &dyn std::fmt::Display| writeln!(output, "{name:<8} {value}");
    line("volume", &report.uuid)?;
    if let (Some(holder), Some(host), Some(boot), Some(process)) =
        (report.holder, report.host, report.boot, report.process)
    {
        line("holder", &holder)?;
        line("host", &printable(host.as_ref()))?;
        line("boot", &boot)?;
        line("process", &process)?;
    } else {
        line("holder", &"none")?;
    }
    Ok(())
}
