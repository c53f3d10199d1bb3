//! The same operations on AVFS and on a real ext4, which is what users, backup programs and administrators expect: what comes out is
//! compared, not what anybody remembers of the manual. Without root, `/dev/fuse`, loop devices or mkfs.ext4 each test says so and
//! ends.

#[path = "../common/mod.rs"]
mod common;
mod flags;
mod mapping;
mod rights;
mod small;
mod unnamed;
mod volume;

use common::Alone;
pub(crate) use common::succeed;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Gid, Uid};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A volume of each kind, mounted.
pub(crate) struct Beside {
    directory: tempfile::TempDir,
    _alone: Alone,
}

impl Beside {
    /// `None`, with the reason printed, where one of them cannot be mounted.
    pub(crate) fn mounted() -> Option<Self> {
        let rig = Self::with_avfs_alone()?;
        let image = rig.image("ext4");
        fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).output();
        if made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            eprintln!("not tested: mkfs.ext4 is missing; install the package e2fsprogs");
            return None;
        }
        succeed(made.unwrap());
        // Modes of new files are to come from the volumes' own defaults.
        let mounted = Command::new("mount").args(["-o", "loop,noatime"]).arg(&image).arg(rig.ext4()).output();
        let mounted = mounted.unwrap();
        if !mounted.status.success() {
            eprintln!("not tested: ext4 cannot be mounted: {}", String::from_utf8_lossy(&mounted.stderr));
            return None;
        }
        open_to_all(&rig.ext4());
        Some(rig)
    }

    /// AVFS alone, where nothing is to be compared.
    pub(crate) fn with_avfs_alone() -> Option<Self> {
        let alone = Alone::to_mount()?;
        let rig = Self { directory: tempfile::tempdir().unwrap(), _alone: alone };
        open_to_all(rig.directory.path());
        fs::create_dir(rig.avfs()).unwrap();
        fs::create_dir(rig.ext4()).unwrap();
        let mkfs = Command::new(env!("CARGO_BIN_EXE_mkfs-avfs"))
            .args(["--size", "512M", "--label", "beside"])
            .arg(rig.image("avfs"))
            .output();
        succeed(mkfs.unwrap());
        succeed(rig.mount_avfs(""));
        open_to_all(&rig.avfs());
        Some(rig)
    }

    pub(crate) fn mount_avfs(&self, options: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mount-avfs"));
        command.arg(self.image("avfs")).arg(self.avfs()).args(["-o", "cache_size=64M"]);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        command.output().unwrap()
    }

    pub(crate) fn umount_avfs(&self) -> Output {
        Command::new(env!("CARGO_BIN_EXE_umount-avfs")).arg(self.avfs()).output().unwrap()
    }

    /// The daemon of AVFS dies at once. What is open there is of no use any more.
    pub(crate) fn kill_avfs(&self) {
        let info =
            Command::new(env!("CARGO_BIN_EXE_avfsctl")).args(["info", "--json"]).arg(self.avfs()).output();
        let info: serde_json::Value = serde_json::from_slice(&info.unwrap().stdout).unwrap();
        let process = i32::try_from(info["process"].as_i64().unwrap()).unwrap();
        let process = rustix::process::Pid::from_raw(process).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        while rustix::process::test_kill_process(process).is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// The kernel knows nothing of AVFS any more but what it asks from now on.
    pub(crate) fn remount_avfs(&self) {
        succeed(self.umount_avfs());
        succeed(self.mount_avfs(""));
    }

    /// AVFS is unmounted and has no damage.
    pub(crate) fn check_avfs(&self) {
        succeed(self.umount_avfs());
        let checked =
            Command::new(env!("CARGO_BIN_EXE_fsck-avfs")).arg("-n").arg(self.image("avfs")).output();
        succeed(checked.unwrap());
    }

    pub(crate) fn image(&self, kind: &str) -> PathBuf {
        self.directory.path().join(format!("{kind}.image"))
    }

    pub(crate) fn avfs(&self) -> PathBuf {
        self.directory.path().join("avfs")
    }

    pub(crate) fn ext4(&self) -> PathBuf {
        self.directory.path().join("ext4")
    }

    /// What `look` finds on AVFS is what it finds on ext4.
    #[track_caller]
    pub(crate) fn same<T: PartialEq + std::fmt::Debug>(&self, what: &str, look: impl Fn(&Path) -> T) {
        let (ours, theirs) = (look(&self.avfs()), look(&self.ext4()));
        assert_eq!(ours, theirs, "{what}: AVFS on the left, ext4 on the right");
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        for directory in [self.avfs(), self.ext4()] {
            // Fails where nothing is mounted.
            let _ = unmount(directory, UnmountFlags::DETACH);
        }
    }
}

fn open_to_all(directory: &Path) {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
}

/// Who does something. Has no other groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// May do everything.
pub(crate) const ROOT: User = User { uid: 0, gid: 0 };

impl User {
    /// Does something as this user, in a thread of its own: to the kernel a user is a thread's.
    pub(crate) fn does<T: Send>(self, what: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
                rustix::thread::set_thread_groups(&[]).unwrap();
                rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                what()
            });
            thread.join().unwrap()
        })
    }
}

/// The same for calls of rustix.
pub(crate) fn told<T>(result: rustix::io::Result<T>) -> Result<(), i32> {
    result.map(drop).map_err(|error| error.raw_os_error())
}

/// What came of a call: nothing, or the error's number.
pub(crate) fn errno(result: io::Result<()>) -> Result<(), i32> {
    result.map_err(|error| error.raw_os_error().unwrap_or(-1))
}
