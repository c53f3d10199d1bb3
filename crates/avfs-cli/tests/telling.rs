//! What an administrator is told of a volume that is no more as it was: another host has it, or a newer version was here. Without
//! root or `/dev/fuse`, each test says so and ends.

use avfs_core::format::{Geometry, MMP, MmpBlock, Superblock};
use avfs_core::recovery::find_superblock;
use avfs_io::device::{FileDevice, OpenMode};
use rustix::mount::UnmountFlags;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// An image file with a volume, and a directory to mount it on.
struct Rig {
    directory: tempfile::TempDir,
    /// One test at a time: a process that one test starts has, until it executes, the files that another has open.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Rig {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("not tested: mounting needs root and /dev/fuse");
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let rig = Self { directory: tempfile::tempdir().unwrap(), _alone: alone };
        fs::create_dir(rig.place()).unwrap();
        let mut mkfs = Command::new(env!("CARGO_BIN_EXE_mkfs-avfs"));
        succeed(mkfs.args(["--size", "512M"]).arg(rig.image()).output().unwrap());
        Some(rig)
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    fn place(&self) -> PathBuf {
        self.directory.path().join("place")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn mount(&self, options: &str) -> Output {
        let options = format!("cache_size=64M,log={},{options}", self.log().display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_mount-avfs"));
        command.arg(self.image()).arg(self.place()).args(["-o", &options]).output().unwrap()
    }

    fn umount(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_umount-avfs"));
        command.args(arguments).arg(self.place()).output().unwrap()
    }

    fn fsck(&self, mode: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_fsck-avfs")).arg(mode).arg(self.image()).output().unwrap()
    }

    fn superblock(&self) -> Superblock {
        find_superblock(&FileDevice::open(&self.image(), OpenMode::ReadOnly).unwrap()).unwrap()
    }

    /// Writes to the image, as another host would to the LUN.
    fn write(&self, place: u64, block: &[u8]) {
        let image = OpenOptions::new().write(true).open(self.image()).unwrap();
        image.write_all_at(block, place).and_then(|()| image.sync_all()).unwrap();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // What a failed test left.
        let _ = rustix::mount::unmount(self.place(), UnmountFlags::FORCE | UnmountFlags::DETACH);
    }
}

fn succeed(output: Output) {
    assert!(output.status.success(), "{output:?}");
}

/// Fails with this exit code and one line that contains `message`.
fn refuse(output: Output, code: i32, message: &str) {
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(message) && said.trim_end().lines().count() == 1, "{said}");
}

/// Whether it comes to hold within twenty seconds.
fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    (0..1000).any(|_| {
        let now = holds();
        if !now {
            thread::sleep(Duration::from_millis(20));
        }
        now
    })
}

/// `umount -l` exited with 0 and said nothing, though nothing of what clients had written would ever be on the device.
#[test]
fn a_volume_that_another_host_has_taken_is_not_unmounted_in_silence_lazily_either() {
    let Some(rig) = Rig::new() else { return };
    succeed(rig.mount(""));
    // Nothing is lost: there is nothing to be told.
    let open = File::create(rig.place().join("open")).unwrap();
    let output = rig.umount(&["-l"]);
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
    drop(open);

    succeed(rig.mount(""));
    let open = File::create(rig.place().join("open")).unwrap();
    let block = MmpBlock {
        uuid: rig.superblock().uuid,
        sequence: 7,
        boot_id: [9; 16],
        host: "nas-2".into(),
        ..MmpBlock::default()
    };
    rig.write(MMP, &block.encode()[..]);
    // At the next renewal.
    let is_lost =
        || File::create(rig.place().join("later")).is_err_and(|error| error.raw_os_error() == Some(5));
    assert!(eventually(is_lost));
    refuse(rig.umount(&["-l"]), 32, "has taken it");
    assert!(!rig.place().join("open").exists(), "it is still mounted");
    drop(open);
}

/// A feature that must be known to write was heeded by repairs, and not by a mount.
#[test]
fn what_a_newer_version_has_left_is_only_read() {
    let Some(rig) = Rig::new() else { return };
    succeed(rig.mount(""));
    fs::write(rig.place().join("file"), "content").unwrap();
    succeed(rig.umount(&[]));
    let mut superblock = rig.superblock();
    superblock.features.read_only_compatible = 1 << 40;
    for place in Geometry::superblock_places(superblock.geometry.device) {
        rig.write(place.0, &superblock.encode()[..]);
    }
    let before = fs::read(rig.image()).unwrap();

    refuse(rig.mount(""), 32, "can only be read, mount it with -o ro");
    refuse(rig.fsck("-y"), 8, "newer version");
    succeed(rig.mount("ro"));
    assert_eq!(fs::read(rig.place().join("file")).unwrap(), b"content");
    refuse(rig.mount("remount,rw"), 32, "read-only");
    assert_eq!(fs::write(rig.place().join("file"), "x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    succeed(rig.umount(&[]));
    assert!(fs::read(rig.image()).unwrap() == before, "something was written");
    succeed(rig.fsck("-n"));
}
