//! A block device over a file.
//!
//! **For:** attaching a loop device with direct I/O and setting its queue. **State:** the device, which is detached when
//! this is dropped, and also when the process is killed: it is held open and otherwise marked to clear itself.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use thiserror::Error;

/// Why there is no loop device.
#[derive(Debug, Error)]
pub enum LoopError {
    /// losetup(8) failed.
    #[error("losetup: {0}")]
    Losetup(String),
    /// The device or a setting of it cannot be opened.
    #[error("{place}: {source}")]
    Setting {
        /// Which.
        place: String,
        /// Why.
        source: io::Error,
    },
}

/// An attached loop device.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    /// Keeps it attached.
    _held: File,
}

impl LoopDevice {
    /// Attaches a device with direct I/O to `file`.
    ///
    /// # Errors
    /// When losetup(8) refuses.
    pub fn attach(file: &Path) -> Result<Self, LoopError> {
        let file = file.as_os_str();
        let shown = losetup(&["--find".as_ref(), "--show".as_ref(), "--direct-io=on".as_ref(), file])?;
        let path = PathBuf::from(shown.trim());
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let held = opened.map_err(|source| LoopError::Setting { place: path.display().to_string(), source });
        // Detaching a device that is open: it goes when the last one closes it.
        losetup(&["--detach".as_ref(), path.as_os_str()])?;
        Ok(Self { path, _held: held? })
    }

    /// The block device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets an attribute of its queue, such as `read_ahead_kb`, or of its writeback (`bdi/…`).
    ///
    /// # Errors
    /// When the kernel refuses the value.
    pub fn set(&self, attribute: &str, value: &str) -> Result<(), LoopError> {
        let name = self.path.file_name().unwrap_or_default();
        let directory = Path::new("/sys/block").join(name);
        let place = match attribute.strip_prefix("bdi/") {
            Some(attribute) => directory.join("bdi").join(attribute),
            None => directory.join("queue").join(attribute),
        };
        std::fs::write(&place, value)
            .map_err(|source| LoopError::Setting { place: format!("{} = {value}", place.display()), source })
    }

    /// Lets as many requests reach the device as a SCSI LUN takes, under an I/O scheduler: the loop device keeps the
    /// smaller number of tags only when it is set while no scheduler stands before it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_queue(&self, depth: u32, scheduler: &str) -> Result<(), LoopError> {
        self.set("scheduler", "none")?;
        self.set("nr_requests", &depth.to_string())?;
        self.set("scheduler", scheduler)
    }
}

fn losetup(arguments: &[&std::ffi::OsStr]) -> Result<String, LoopError> {
    let output = Command::new("losetup").args(arguments).output();
    let output = output.map_err(|error| LoopError::Losetup(error.to_string()))?;
    if !output.status.success() {
        return Err(LoopError::Losetup(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
