//! Loop devices for tests.

use std::path::PathBuf;
use std::process::Command;

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
        let output =
            Command::new("losetup").args(["--find", "--show"]).args(options).arg(image.path()).output();
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
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}
