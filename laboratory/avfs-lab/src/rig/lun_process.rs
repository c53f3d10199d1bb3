//! The LUN's process.
//!
//! **For:** serving a LUN from a process of its own. Whoever uses a block device waits in the kernel, where no signal reaches
//! it, until the LUN has answered: if it served the LUN itself, its end would wait for itself. **State:** the process, which
//! ends when this is dropped. **Invariants:** it runs before everything else on this machine: a device does not wait for its
//! host's processors.

use super::support::{RigError, await_until, file, run};
use crate::lun::{Counters, Mode};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A LUN that another process serves.
#[derive(Debug)]
pub struct LunProcess {
    child: Child,
    mountpoint: PathBuf,
}

impl LunProcess {
    /// Starts `avfs-lab lun` with the options `told`, and waits until the LUN is on `mountpoint`, a directory.
    ///
    /// # Errors
    /// When it does not come; it says itself why.
    pub fn start(told: &[OsString], mountpoint: &Path) -> Result<Self, RigError> {
        let own = std::env::current_exe().map_err(file(Path::new("/proc/self/exe")))?;
        let mut command = Command::new("chrt");
        command.args(["--fifo", "50"]).arg(own).arg("lun").args(told);
        // Whoever reads what this process prints is not to wait for the LUN's end.
        command.arg(mountpoint).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().map_err(file(mountpoint))?;
        let mut process = Self { child, mountpoint: mountpoint.to_owned() };
        let there = process.device();
        let mut ended = false;
        await_until(|| {
            ended = !matches!(process.child.try_wait(), Ok(None));
            ended || there.exists()
        });
        if ended || !there.exists() {
            Err(RigError::Absent { what: "the LUN", said: "see above".to_owned() })
        } else {
            Ok(process)
        }
    }

    /// The file that is the device.
    pub fn device(&self) -> PathBuf {
        self.mountpoint.join("lun")
    }

    /// The process.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn set_mode(&self, mode: Mode) -> Result<(), RigError> {
        let control = self.mountpoint.join("control");
        fs::write(&control, mode.name()).map_err(file(&control))
    }

    pub(super) fn counters(&self) -> Result<Counters, RigError> {
        let place = self.mountpoint.join("counters");
        let text = fs::read(&place).map_err(file(&place))?;
        serde_json::from_slice(&text).map_err(|error| file(&place)(error.into()))
    }
}

impl Drop for LunProcess {
    fn drop(&mut self) {
        let unmounted = run(Command::new("umount").arg(&self.mountpoint));
        if let Err(error) = unmounted {
            eprintln!("avfs-lab: {error}");
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
