//! A block device over a file.
//!
//! **For:** attaching a loop device with direct I/O and setting its queue. **State:** the device, which is detached when
//! this is dropped, and also when the process is killed: it is held open and otherwise marked to clear itself. Settings
//! of the queue belong to the device, not to the attachment, so they are put back; what stood there before is noted in a
//! file as well, for whoever cleans up after a process that was killed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use thiserror::Error;
use units::Bytes;

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
    /// The same as lines: value, tab, path.
    notes: PathBuf,
}

impl LoopDevice {
    /// Attaches a device with direct I/O to `file`. The file `notes` keeps what stood in settings that are changed, until
    /// they are put back.
    ///
    /// # Errors
    /// When losetup(8) refuses.
    pub fn attach(file: &Path, notes: PathBuf) -> Result<Self, LoopError> {
        let file = file.as_os_str();
        let shown = losetup(&["--find".as_ref(), "--show".as_ref(), "--direct-io=on".as_ref(), file])?;
        let path = PathBuf::from(shown.trim());
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let held = opened.map_err(|source| LoopError::Setting { place: path.display().to_string(), source });
        // Detaching a device that is open: it goes when the last one closes it.
        losetup(&["--detach".as_ref(), path.as_os_str()])?;
        Ok(Self { path, _held: held?, before: Vec::new(), notes })
    }

    /// The block device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets an attribute of its queue, such as `read_ahead_kb`.
    ///
    /// # Errors
    /// When the kernel refuses the value.
    pub fn set(&mut self, attribute: &str, value: &str) -> Result<(), LoopError> {
        let place = self.settings("queue").join(attribute);
        self.remember(&place)?;
        write(&place, value)
    }

    /// Holds the kernel's dirty pages of this device to so many bytes.
    ///
    /// # Errors
    /// When the kernel refuses the value.
    pub fn limit_dirty(&mut self, limit: Bytes) -> Result<(), LoopError> {
        let settings = self.settings("bdi");
        // The limit is a ratio underneath; what it reads as in bytes is not always taken back.
        self.remember(&settings.join("max_ratio"))?;
        self.remember(&settings.join("strict_limit"))?;
        limit_dirty(&settings, limit)
    }

    fn settings(&self, group: &str) -> PathBuf {
        Path::new("/sys/block").join(self.path.file_name().unwrap_or_default()).join(group)
    }

    fn remember(&mut self, place: &Path) -> Result<(), LoopError> {
        let text = std::fs::read_to_string(place);
        let text =
            text.map_err(|source| LoopError::Setting { place: place.display().to_string(), source })?;
        // Of a choice, the one in brackets is in force.
        let chosen = text.split(['[', ']']).nth(1).unwrap_or(&text).trim().to_owned();
        let noted = OpenOptions::new().create(true).append(true).open(&self.notes);
        noted
            .and_then(|mut notes| writeln!(notes, "{chosen}\t{}", place.display()))
            .map_err(|source| LoopError::Setting { place: self.notes.display().to_string(), source })?;
        self.before.push((place.to_owned(), chosen));
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
        let _ = std::fs::remove_file(&self.notes);
    }
}

/// Holds the kernel's dirty pages to so many bytes; `settings` is the directory of what writes them back, as in `/sys/class/bdi`.
///
/// # Errors
/// When the kernel refuses the value.
pub fn limit_dirty(settings: &Path, limit: Bytes) -> Result<(), LoopError> {
    write(&settings.join("max_bytes"), &limit.as_u64().to_string())?;
    write(&settings.join("strict_limit"), "1")
}

fn write(place: &Path, value: &str) -> Result<(), LoopError> {
    std::fs::write(place, value)
        .map_err(|source| LoopError::Setting { place: format!("{} = {value}", place.display()), source })
}

fn losetup(arguments: &[&std::ffi::OsStr]) -> Result<String, LoopError> {
    let output = Command::new("losetup").args(arguments).output();
    let output = output.map_err(|error| LoopError::Losetup(error.to_string()))?;
    if !output.status.success() {
        return Err(LoopError::Losetup(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
