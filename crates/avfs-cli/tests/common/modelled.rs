//! A volume on a modelled device, in real time.

use crate::common::{Alone, succeed};
use avfs_lab::lun::{Lun, LunOptions, REACTION};
use rtsched_sim::device::DeviceSpec;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;
use units::Bytes;

pub(crate) const MIB: usize = 1 << 20;
/// What a MiB plays for at 100 Mbit/s.
pub(crate) const PERIOD: Duration = Duration::from_micros(83_886);
const CONFIG: &str = "[[stream]]\npath = \"*.mov\"\nbitrate = \"100 Mbit/s\"\n";

/// The volume, called `footage`, mounted by a daemon that keeps its events in a directory of its own.
pub(crate) struct Modelled {
    device: Option<Lun>,
    directory: tempfile::TempDir,
    cache: &'static str,
    _alone: Alone,
}

impl Modelled {
    /// On a device of so many MiB, which is fast until it [is](Self::device_is) modelled, with a cache of this size.
    pub(crate) fn new(spec: DeviceSpec, mebibytes: u64, cache: &'static str) -> Option<Self> {
        let alone = Alone::to_mount()?;
        let directory = tempfile::tempdir().unwrap();
        let mut rig = Self { device: None, directory, cache, _alone: alone };
        fs::create_dir(rig.path("mount")).unwrap();
        fs::create_dir(rig.path("device")).unwrap();
        let size = Bytes::from_mib(mebibytes);
        let backing = Some(rig.path("data"));
        let options =
            LunOptions { spec, size, backing, memory: size, log: None, seed: 1, reaction: REACTION };
        rig.device = Some(Lun::mount(&options, &rig.path("device")).unwrap());
        rig.device_is("fast");
        fs::write(rig.path("config"), CONFIG).unwrap();
        succeed(
            Command::new(env!("CARGO_BIN_EXE_mkfs-avfs"))
                .args(["--label", "footage"])
                .arg(rig.path("device/lun"))
                .output()
                .unwrap(),
        );
        rig.mount();
        Some(rig)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn device_is(&self, how: &str) {
        fs::write(self.path("device/control"), how).unwrap();
    }

    pub(crate) fn mount(&self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mount-avfs"));
        command.arg(self.path("device/lun")).arg(self.path("mount"));
        command.env("STATE_DIRECTORY", self.path("state"));
        command.arg("-o").arg(format!("cache_size={},transport=device", self.cache));
        command.arg("-o").arg(format!("config={}", self.path("config").display()));
        command.arg("-o").arg(format!("log={}", self.path("log").display()));
        succeed(command.output().unwrap());
    }

    pub(crate) fn umount(&self) -> Output {
        Command::new(env!("CARGO_BIN_EXE_umount-avfs")).arg(self.path("mount")).output().unwrap()
    }
}

impl Drop for Modelled {
    fn drop(&mut self) {
        self.device_is("fast");
        // Ends when the daemon has left the device, which could not be unmounted before.
        self.umount();
        let _ = rustix::mount::unmount(self.path("mount"), rustix::mount::UnmountFlags::DETACH);
    }
}
