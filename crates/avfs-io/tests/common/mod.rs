//! Loop devices for tests.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

static PROCESSES: Mutex<()> = Mutex::new(());

/// While this is held, no test starts a process. A test that asserts that a device is free again holds it. Until a process that is
/// being started has become its program, it holds everything open that this one has, and so the device's lock.
pub(crate) fn no_process_starts() -> MutexGuard<'static, ()> {
    PROCESSES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A loop device over an image file, detached when dropped.
pub(crate) struct Loop {
    /// Its name.
    pub(crate) device: PathBuf,
    _image: tempfile::NamedTempFile,
}

impl Loop {
    /// `None`, after saying why, where this machine or user has no loop devices.
    pub(crate) fn attach(size: u64, options: &[&str]) -> Option<Self> {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(size).unwrap();
        let mut attach = Command::new("losetup");
        attach.args(["--find", "--show"]).args(options).arg(image.path());
        let alone = no_process_starts();
        let output = attach.output();
        drop(alone);
        match output {
            Ok(output) if output.status.success() => {
                let device = String::from_utf8(output.stdout).unwrap().trim().into();
                Some(Self { device, _image: image })
            }
            Ok(output) => {
                eprintln!("skipped: losetup: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                eprintln!("skipped: losetup: {error}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _alone = no_process_starts();
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}
