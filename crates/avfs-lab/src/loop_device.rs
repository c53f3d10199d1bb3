//! A block device over a file.
//!
//! **For:** attaching a loop device with direct I/O and setting its queue. **State:** the device, which is detached when
//! this is dropped, and also when the process is killed: it is held open and otherwise marked to clear itself. Settings
//! of the queue belong to the device, not to the attachment, so they are put back.

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
    /// Files of settings with what stood in them, in the order in which they were changed.
    before: Vec<(PathBuf, String)>,
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
        Ok(Self { path, _held: held?, before: Vec::new() })
    }

    /// The block device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets an attribute of its queue, such as `read_ahead_kb`, or of its writeback (`bdi/…`).
    ///
    /// # Errors
    /// When the kernel refuses the value.
    pub fn set(&mut self, attribute: &str, value: &str) -> Result<(), LoopError> {
        let name = self.path.file_name().unwrap_or_default();
        let directory = Path::new("/sys/block").join(name);
        let place = match attribute.strip_prefix("bdi/") {
            Some(attribute) => directory.join("bdi").join(attribute),
            None => directory.join("queue").join(attribute),
        };
        let failed = |source| LoopError::Setting { place: format!("{} = {value}", place.display()), source };
        let before = std::fs::read_to_string(&place).map_err(failed)?;
        std::fs::write(&place, value).map_err(failed)?;
        // Of a choice, the one in brackets is in force.
        let chosen = before.split(['[', ']']).nth(1).unwrap_or(&before).trim().to_owned();
        self.before.push((place, chosen));
        Ok(())
    }

    /// Lets as many requests reach the device as a SCSI LUN takes, under an I/O scheduler: the loop device keeps the
    /// smaller number of tags only when it is set while no scheduler stands before it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_queue(&mut self, depth: u32, scheduler: &str) -> Result<(), LoopError> {
        self.set("scheduler", "none")?;
        self.set("nr_requests", &depth.to_string())?;
        self.set("scheduler", scheduler)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        while let Some((place, value)) = self.before.pop() {
            if let Err(error) = std::fs::write(&place, value) {
                eprintln!("avfs-lab: {}: {error}", place.display());
            }
        }
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
