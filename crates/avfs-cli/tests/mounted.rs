//! The tools and the frontend together, on a real mount of an image file. Without root, `/dev/fuse` or the transport
//! under test, each test says so and ends.
//!
//! The same tests run once for each transport: `mounted_device.rs` includes this file.

mod common;

use common::{Alone, comes_to_hold, refuse, succeed};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use avfs_core::format::{Geometry, MMP, MmpBlock};
use avfs_core::recovery::find_superblock;
use avfs_io::device::{FileDevice, OpenMode};
use avfs_lab::lun::{Lun, LunOptions, REACTION};
use rtsched_sim::device::{DeviceSpec, ModelSpec};
use units::Bytes;

/// An image file with a volume, and a directory to mount it on.
struct Rig {
    /// What serves the image; `None`: it is a file of its own.
    device: Option<Lun>,
    directory: tempfile::TempDir,
    _alone: Alone,
}

/// True in `mounted_device.rs`.
fn through_device() -> bool {
    env!("CARGO_CRATE_NAME") == "mounted_device"
}

impl Rig {
    /// `None`, with the reason printed, where nothing can be mounted.
    fn new() -> Option<Self> {
        let rig = Self::empty()?;
        succeed(rig.mkfs(&["--size", "512M", "--label", "test"]));
        Some(rig)
    }

    /// The same, mounted, on a device whose requests take 0.3 s while its [`Self::control`] says `modelled`.
    fn on_a_device_that_can_be_slow() -> Option<Self> {
        const SLOW_US: f64 = 300_000.0;
        let mut rig = Self::empty()?;
        let size = Bytes::from_mib(512);
        let mut spec = DeviceSpec::named("nvme").unwrap();
        let ModelSpec::Flash(flash) = &mut spec.model else { panic!("it has an arm") };
        (flash.read_us, flash.write_us) = (SLOW_US, SLOW_US);
        let backing = Some(rig.directory.path().join("data"));
        let options =
            LunOptions { spec, size, backing, memory: size, log: None, seed: 1, reaction: REACTION };
        let served = rig.directory.path().join("device");
        fs::create_dir(&served).unwrap();
        rig.device = Some(Lun::mount(&options, &served).unwrap());
        fs::write(rig.control(), "fast").unwrap();
        std::os::unix::fs::symlink(served.join("lun"), rig.image()).unwrap();
        succeed(rig.mkfs(&["--label", "test"]));
        succeed(rig.mount(""));
        Some(rig)
    }

    /// Without a volume.
    fn empty() -> Option<Self> {
        let alone = Alone::to_mount()?;
        if !through_device()
            && let Err(error) = avfs_fuse::enable_rings()
        {
            eprintln!("not tested: {error}");
            return None;
        }
        let rig = Self { device: None, directory: tempfile::tempdir().unwrap(), _alone: alone };
        fs::create_dir(rig.mount_point()).unwrap();
        Some(rig)
    }

    /// The same, mounted, with a daemon that logs to the file [`Self::log`].
    fn logged() -> Option<Self> {
        let rig = Self::new()?;
        succeed(rig.mount(&format!("log={}", rig.log().display())));
        Some(rig)
    }

    /// The same, mounted.
    fn mounted() -> Option<Self> {
        let rig = Self::new()?;
        succeed(rig.mount(""));
        Some(rig)
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    fn control(&self) -> PathBuf {
        self.directory.path().join("device/control")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn mount_point(&self) -> PathBuf {
        self.directory.path().join("mount point")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount_point().join(name)
    }

    fn mkfs(&self, arguments: &[&str]) -> Output {
        run(Command::new(env!("CARGO_BIN_EXE_mkfs-avfs")).args(arguments).arg(self.image()))
    }

    fn mount(&self, options: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mount-avfs"));
        command.arg(self.image()).arg(self.mount_point()).args(["-o", "cache_size=64M"]);
        command.args(["-o", if through_device() { "transport=device" } else { "transport=ring" }]);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        run(&mut command)
    }

    fn umount(&self) -> Output {
        run(Command::new(env!("CARGO_BIN_EXE_umount-avfs")).arg(self.mount_point()))
    }

    fn fsck(&self) -> Output {
        run(Command::new(env!("CARGO_BIN_EXE_fsck-avfs")).arg("-n").arg(self.image()))
    }

    fn info(&self) -> serde_json::Value {
        let output = run(Command::new(env!("CARGO_BIN_EXE_avfsctl"))
            .arg("info")
            .arg("--json")
            .arg(self.mount_point()));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    }

    fn daemon(&self) -> rustix::process::Pid {
        let process = self.info()["process"].as_i64().unwrap();
        rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap()
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    fn open(&self, name: &str) -> File {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(self.path(name)).unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if self.device.is_some() {
            // Ends when the daemon has left the device, which could not be unmounted before.
            self.umount();
        }
        // Fails where the test unmounted already.
        let _ = rustix::mount::unmount(self.mount_point(), rustix::mount::UnmountFlags::DETACH);
    }
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

fn eventually(holds: impl FnMut() -> bool) -> bool {
    comes_to_hold(Duration::from_secs(10), holds)
}

/// Bytes that differ from place to place.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn what_is_written_is_there_after_unmounting_and_mounting_again() {
    let Some(rig) = Rig::mounted() else { return };
    let bytes = pattern(20 << 20);
    rig.write("media.mxf", &bytes);
    fs::create_dir(rig.path("sequence")).unwrap();
    for frame in 0..100 {
        rig.write(&format!("sequence/{frame:04}.dpx"), format!("frame {frame}").as_bytes());
    }
    succeed(rig.umount());
    assert!(!rig.path("media.mxf").exists());
    succeed(rig.mount(""));
    assert!(fs::read(rig.path("media.mxf")).unwrap() == bytes);
    assert_eq!(fs::read_dir(rig.path("sequence")).unwrap().count(), 100);
    assert_eq!(fs::read(rig.path("sequence/0042.dpx")).unwrap(), b"frame 42");
}

#[test]
fn what_was_synced_survives_the_death_of_the_daemon() {
    let Some(rig) = Rig::mounted() else { return };
    let bytes = pattern(3 << 20);
    let file = rig.open("synced");
    file.write_all_at(&bytes, 0).unwrap();
    file.sync_all().unwrap();
    rustix::process::kill_process(rig.daemon(), rustix::process::Signal::KILL).unwrap();
    drop(file);
    succeed(rig.umount());
    succeed(rig.mount(""));
    assert!(fs::read(rig.path("synced")).unwrap() == bytes);
}

/// A copy of many files into memory kept all processors busy, and the thread that gives the device its commands waited behind it: players
/// began half a second later.
#[test]
fn every_thread_of_the_daemon_goes_before_its_clients() {
    let Some(rig) = Rig::mounted() else { return };
    let threads = fs::read_dir(format!("/proc/{}/task", rig.daemon().as_raw_nonzero())).unwrap();
    let nice = |thread: io::Result<fs::DirEntry>| {
        let name = thread.unwrap().file_name().into_string().unwrap();
        rustix::process::getpriority_process(rustix::process::Pid::from_raw(name.parse().unwrap())).unwrap()
    };
    let nices: Vec<i32> = threads.map(nice).collect();
    assert!(nices.len() > 4 && nices.iter().all(|nice| *nice == -20), "{nices:?}");
}

#[test]
fn a_device_is_mounted_once() {
    let Some(rig) = Rig::mounted() else { return };
    refuse(rig.mount(""), 32, "is mounted on");
    refuse(rig.mkfs(&["--force"]), 1, "is mounted on");
    succeed(rig.umount());
    refuse(rig.mkfs(&[]), 1, "holds an AVFS volume; use --force");
    refuse(rig.mkfs(&["--size", "1G"]), 1, "exists already");
    succeed(rig.mkfs(&["--force"]));
}

#[test]
fn a_check_finds_nothing_in_a_volume_that_was_used_and_the_damage_in_one_that_was_overwritten() {
    let Some(rig) = Rig::mounted() else { return };
    for file in 0..300 {
        rig.write(&file.to_string(), b"x");
    }
    assert_eq!(rig.fsck().status.code(), Some(8), "mounted");
    succeed(rig.umount());
    let clean = rig.fsck();
    assert_eq!(clean.status.code(), Some(0), "{clean:?}");
    assert!(String::from_utf8_lossy(&clean.stdout).contains("301 inodes"), "{clean:?}");
    // Everything behind the superblocks becomes zeros: log, metadata, data.
    let image = OpenOptions::new().write(true).open(rig.image()).unwrap();
    let length = image.metadata().unwrap().len();
    image.set_len(2 << 20).unwrap();
    image.set_len(length).unwrap();
    let damaged = rig.fsck();
    assert_eq!(damaged.status.code(), Some(4), "{damaged:?}");
    assert!(String::from_utf8_lossy(&damaged.stdout).contains("damaged"), "{damaged:?}");
    refuse(rig.mount(""), 32, "damaged");
}

#[test]
fn mounting_right_after_a_bare_umount_waits_for_the_last_byte() {
    let Some(rig) = Rig::mounted() else { return };
    rig.write("file", &pattern(8 << 20));
    rustix::mount::unmount(rig.mount_point(), rustix::mount::UnmountFlags::empty()).unwrap();
    succeed(rig.mount(""));
    assert!(fs::read(rig.path("file")).unwrap() == pattern(8 << 20));
}

#[test]
fn remounting_read_only_refuses_writes_and_back_accepts_them() {
    let Some(rig) = Rig::mounted() else { return };
    let file = rig.open("file");
    refuse(rig.mount("remount,ro"), 32, "files are open for writing");
    drop(file);
    succeed(rig.mount("remount,ro"));
    let refused = fs::write(rig.path("other"), "x").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(rig.info()["volume"]["read_only"], true);
    succeed(rig.mount("remount,rw"));
    rig.write("other", b"x");
    assert_eq!(rig.info()["volume"]["read_only"], false);
}

/// The kernel leaves times of access to the daemon: a remount that only changed the kernel's flag changed nothing.
#[test]
fn remounting_with_noatime_leaves_times_of_access_alone() {
    let Some(rig) = Rig::mounted() else { return };
    let old = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
    let read = |options: &str| {
        succeed(rig.mount(options));
        let file = rig.open("file");
        file.write_all_at(b"x", 0).unwrap();
        rustix::fs::futimens(&file, &rustix::fs::Timestamps { last_access: old, last_modification: old })
            .unwrap();
        fs::read(rig.path("file")).unwrap();
        fs::metadata(rig.path("file")).unwrap().atime()
    };
    assert_ne!(read("remount,relatime"), 1);
    assert_eq!(read("remount,noatime"), 1);
    assert_ne!(read("remount,relatime"), 1);
}

#[test]
fn a_read_only_mount_can_become_writable() {
    let Some(rig) = Rig::new() else { return };
    succeed(rig.mount("ro"));
    assert!(fs::write(rig.path("file"), "x").is_err());
    succeed(rig.mount("remount,rw"));
    rig.write("file", b"x");
    succeed(rig.umount());
    succeed(rig.mount("ro"));
    assert_eq!(fs::read(rig.path("file")).unwrap(), b"x");
}

/// While a volume is mounted to be read nobody holds it, and another host may mount and change it. What this one knows of it is
/// stale then, and would have been written over the changes.
#[test]
fn a_volume_that_another_host_has_used_meanwhile_does_not_become_writable() {
    let Some(rig) = Rig::new() else { return };
    let newest = || find_superblock(&FileDevice::open(&rig.image(), OpenMode::ReadOnly).unwrap()).unwrap();
    let uuid = newest().uuid;
    let write = |place: u64, block: &[u8]| {
        let image = OpenOptions::new().write(true).open(rig.image()).unwrap();
        image.write_all_at(block, place).and_then(|()| image.sync_all()).unwrap();
    };
    let renew = |sequence| {
        let host = "nas-2".into();
        let block = MmpBlock { uuid, sequence, boot_id: [9; 16], host, ..MmpBlock::default() };
        write(MMP, &block.encode()[..]);
    };
    succeed(rig.mount("ro"));
    renew(7);
    refuse(rig.mount("remount,rw"), 32, "another host has used the volume");
    assert!(fs::write(rig.path("file"), "x").is_err());
    // It is unmounted there, and had changed nothing.
    renew(0);
    succeed(rig.mount("remount,rw"));
    rig.write("file", b"x");
    succeed(rig.mount("remount,ro"));
    // It is unmounted there, and had.
    let mut changed = newest();
    changed.generation += 1;
    let places = Geometry::superblock_places(changed.geometry.device);
    write(places[(changed.generation % 2) as usize].0, &changed.encode()[..]);
    refuse(rig.mount("remount,rw"), 32, "another host has used the volume");
    succeed(rig.umount());
}

#[test]
fn a_mistake_is_answered_in_one_line() {
    let Some(rig) = Rig::new() else { return };
    refuse(rig.mount("stripes=4"), 1, "unknown mount option `stripes=4`");
    refuse(rig.mount("config=/no/such/file"), 1, "/no/such/file");
    refuse(rig.mount("remount,ro"), 32, "no AVFS volume is mounted on");
    refuse(rig.umount(), 32, "no AVFS volume is mounted there");
    let control = run(Command::new(env!("CARGO_BIN_EXE_avfsctl")).arg("info").arg(rig.mount_point()));
    refuse(control, 1, "no AVFS volume is mounted there");
    fs::write(rig.image(), vec![0; 1 << 20]).unwrap();
    refuse(rig.mount(""), 32, "");
    refuse(rig.mkfs(&[]), 1, "");
}

/// Whoever mounts while the daemon unmounts waits for it. Between the mount's disappearance from its directory and the
/// kernel's letting go of the filesystem, the volume once looked like one that is in use elsewhere, and was refused.
#[test]
fn sigterm_unmounts_and_writes_everything() {
    let Some(rig) = Rig::mounted() else { return };
    rig.write("file", &pattern(1 << 20));
    rustix::process::kill_process(rig.daemon(), rustix::process::Signal::TERM).unwrap();
    let filesystem = |path: &Path| fs::metadata(path).unwrap().dev();
    while filesystem(&rig.mount_point()) != filesystem(rig.directory.path()) {
        std::thread::yield_now();
    }
    // Waits for the daemon.
    succeed(rig.mount(""));
    assert!(fs::read(rig.path("file")).unwrap() == pattern(1 << 20));
}

#[test]
fn the_control_socket_knows_the_extents_of_a_file() {
    let Some(rig) = Rig::mounted() else { return };
    rig.write("file", &pattern(10 << 20));
    let ctl = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_avfsctl"));
        run(command.args(arguments).arg(rig.path("file")))
    };
    succeed(ctl(&["sync"]));
    let output = ctl(&["extents", "--json"]);
    let layout: avfs_core::types::LayoutReport = serde_json::from_slice(&output.stdout).unwrap();
    let extents = layout.extents;
    assert_eq!(layout.pending, []);
    let written: u64 = extents.iter().filter(|extent| !extent.unwritten).map(|extent| extent.length).sum();
    assert!(written >= 10 << 20, "{extents:?}");

    // Of a link what it leads to, and of a directory a sentence: both were said to have 0 extents.
    std::os::unix::fs::symlink("file", rig.path("link")).unwrap();
    let of = |path: PathBuf| {
        run(Command::new(env!("CARGO_BIN_EXE_avfsctl")).args(["extents", "--json"]).arg(path))
    };
    assert_eq!(of(rig.path("link")).stdout, output.stdout);
    let refused = of(rig.path("."));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("not a regular file"), "{said}");
}

/// `info` said "dirty 0 B" while all of it was on its way, and `extents` left out what is in memory alone.
#[test]
fn what_is_not_on_the_device_yet_is_shown() {
    const LENGTH: u64 = 1 << 20;
    let Some(rig) = Rig::on_a_device_that_can_be_slow() else { return };
    let ctl = |arguments: &[&str]| {
        let output = run(Command::new(env!("CARGO_BIN_EXE_avfsctl")).args(arguments).arg(rig.path("file")));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let pending = || {
        let layout: avfs_core::types::LayoutReport =
            serde_json::from_str(&ctl(&["extents", "--json"])).unwrap();
        layout.pending.iter().map(|range| range.length).sum::<u64>()
    };
    let file = File::create(rig.path("file")).unwrap();
    let write = || file.write_all_at(&pattern(LENGTH as usize), 0).unwrap();
    // It does not stay so for ever.
    assert!((0..20).any(|_| {
        write();
        pending() == LENGTH
    }));
    fs::write(rig.control(), "modelled").unwrap();
    let is_on_its_way = || {
        let volume = rig.info()["volume"].clone();
        volume["dirty_bytes"] == 0 && volume["writing_bytes"].as_u64() >= Some(LENGTH)
    };
    let was_seen = (0..20).any(|_| {
        write();
        std::thread::scope(|scope| {
            let syncing = scope.spawn(|| ctl(&["sync"]));
            while !syncing.is_finished() {
                if is_on_its_way() {
                    let (told, length) = (ctl(&["info"]), pending());
                    // It still is, so it was all the time.
                    if is_on_its_way() {
                        let line = told.lines().find(|line| line.starts_with("dirty ")).unwrap();
                        assert_eq!(line.split_once(' ').unwrap().1.trim(), Bytes(LENGTH).to_string());
                        assert_eq!(length, LENGTH);
                        return true;
                    }
                }
            }
            false
        })
    });
    assert!(was_seen);
    drop(file);
    fs::write(rig.control(), "fast").unwrap();
    succeed(rig.umount());
}

#[test]
fn times_before_1970_are_kept_to_the_nanosecond() {
    let Some(rig) = Rig::mounted() else { return };
    rig.write("file", b"");
    for (seconds, nanoseconds) in [(-2, 800_000_000), (-1, 0), (-1, 999_999_999), (0, 1), (-(1 << 33), 5)] {
        let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, rig.path("file"), &times, rustix::fs::AtFlags::empty())
            .unwrap();
        let found = fs::metadata(rig.path("file")).unwrap();
        assert_eq!((found.mtime(), found.mtime_nsec()), (seconds, nanoseconds));
        assert_eq!((found.atime(), found.atime_nsec()), (seconds, nanoseconds));
    }
}

#[test]
fn appends_of_several_writers_do_not_overwrite_each_other() {
    let Some(rig) = Rig::mounted() else { return };
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let path = rig.path("log");
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
                for _ in 0..100 {
                    file.write_all(&[writer; 100]).unwrap();
                }
            });
        }
    });
    let log = fs::read(rig.path("log")).unwrap();
    assert_eq!(log.len(), 4 * 100 * 100);
    assert!(log.chunks(100).all(|record| record.iter().all(|&byte| byte == record[0])));
}

/// Found with a volume that appended on every write to a handle opened with O_APPEND: pwrite(2) went to the end after
/// fcntl(2) had cleared the flag.
#[test]
fn clearing_o_append_takes_effect() {
    let Some(rig) = Rig::mounted() else { return };
    let file = OpenOptions::new().read(true).append(true).create(true).open(rig.path("file")).unwrap();
    (&file).write_all(&[b'x'; 100]).unwrap();
    rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::empty()).unwrap();
    file.write_all_at(b"yy", 10).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 100);
    let mut around = [0; 4];
    file.read_exact_at(&mut around, 9).unwrap();
    assert_eq!(&around, b"xyyx");
}

#[test]
fn a_mapping_and_the_file_show_the_same_bytes() {
    let Some(rig) = Rig::mounted() else { return };
    let file = rig.open("file");
    file.write_all_at(&pattern(100_000), 0).unwrap();
    let map = Mapping::new(&file, 65536);
    assert!(map.bytes()[..65536] == pattern(100_000)[..65536]);
    file.write_all_at(b"through the file", 5000).unwrap();
    assert_eq!(&map.bytes()[5000..5016], b"through the file");
    map.write(9000, b"through the mapping");
    let mut found = [0; 19];
    file.read_exact_at(&mut found, 9000).unwrap();
    assert_eq!(&found, b"through the mapping");
}

#[test]
fn a_synchronous_write_and_an_unaligned_large_read_work() {
    let Some(rig) = Rig::mounted() else { return };
    let bytes = pattern(17 << 20);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_SYNC)
        .open(rig.path("file"))
        .unwrap();
    file.write_all_at(&bytes, 12_345).unwrap();
    let mut found = vec![1; bytes.len() + 12_345];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found[..12_345].iter().all(|&byte| byte == 0) && found[12_345..] == bytes);
    assert_eq!(file.read_at(&mut found, 1 << 30).unwrap(), 0);
}

#[test]
fn a_name_that_was_not_there_appears_when_it_is_made() {
    let Some(rig) = Rig::mounted() else { return };
    for name in ["file", "directory", "link", "renamed"] {
        assert!(fs::symlink_metadata(rig.path(name)).is_err());
    }
    rig.write("file", b"");
    fs::create_dir(rig.path("directory")).unwrap();
    std::os::unix::fs::symlink("file", rig.path("link")).unwrap();
    fs::rename(rig.path("file"), rig.path("renamed")).unwrap();
    for name in ["directory", "renamed"] {
        assert!(fs::symlink_metadata(rig.path(name)).is_ok(), "{name}");
    }
    assert!(fs::metadata(rig.path("link")).is_err());
    assert_eq!(fs::read_link(rig.path("link")).unwrap(), Path::new("file"));
}

/// The daemon does not run as long as this lives, also when a test fails.
struct Stopped(rustix::process::Pid);

impl Stopped {
    fn new(daemon: rustix::process::Pid) -> Self {
        rustix::process::kill_process(daemon, rustix::process::Signal::STOP).unwrap();
        let has_stopped = || {
            let threads = fs::read_dir(format!("/proc/{}/task", daemon.as_raw_nonzero())).unwrap();
            let status =
                |thread: io::Result<fs::DirEntry>| fs::read_to_string(thread.unwrap().path().join("stat"));
            // The state stands behind the name, which is in brackets.
            threads.map(status).all(|status| status.unwrap().contains(") T "))
        };
        let stopped = Self(daemon);
        assert!(eventually(has_stopped));
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::CONT);
    }
}

/// What `ask` says, if it says it without the daemon.
fn without_daemon<T: Send + 'static>(rig: &Rig, ask: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let _stopped = Stopped::new(rig.daemon());
    let (sender, receiver) = mpsc::channel();
    // A thread that asks the daemon after all ends when that goes on.
    std::thread::spawn(move || sender.send(ask()));
    receiver.recv_timeout(Duration::from_secs(5)).ok()
}

/// Samba looks for names that are not there all day long.
#[test]
fn a_name_that_is_missing_is_asked_for_once() {
    let Some(rig) = Rig::mounted() else { return };
    let look = |name: &str| {
        let path = rig.path(name);
        move || fs::symlink_metadata(path).map_err(|error| error.kind())
    };
    assert_eq!(look("missing")().unwrap_err(), io::ErrorKind::NotFound);
    let found = without_daemon(&rig, look("missing")).expect("the kernel has forgotten it");
    assert_eq!(found.unwrap_err(), io::ErrorKind::NotFound);
    assert!(without_daemon(&rig, look("other")).is_none(), "nobody has asked for this one before");
    rig.write("missing", b"x");
    assert_eq!(look("missing")().unwrap().len(), 1);
    let found = without_daemon(&rig, look("missing")).expect("the kernel has forgotten what it made");
    assert_eq!(found.unwrap().len(), 1);
    fs::remove_file(rig.path("missing")).unwrap();
    assert_eq!(look("missing")().unwrap_err(), io::ErrorKind::NotFound);
}

/// That a file has no ACL the kernel keeps: each step of somebody else through a directory depends on it. No other attribute
/// is kept, present or missing.
#[test]
fn an_acl_that_is_missing_is_asked_for_once() {
    let Some(rig) = Rig::mounted() else { return };
    rig.write("file", b"x");
    // The owner hears that the volume has no ACLs, others that the file has none.
    std::os::unix::fs::chown(rig.path("file"), Some(1000), Some(1000)).unwrap();
    let look = |name: &'static str| {
        let path = rig.path("file");
        move || rustix::fs::getxattr(path, name, &mut [0; 100][..])
    };
    const ACL: &str = "system.posix_acl_access";
    let missing = Err(rustix::io::Errno::NODATA);
    assert_eq!(look(ACL)(), missing);
    assert_eq!(without_daemon(&rig, look(ACL)), Some(missing));
    assert_eq!(look("user.comment")(), missing);
    assert_eq!(without_daemon(&rig, look("user.comment")), None);
    // Version 2: owner, user 1001, group, mask and others may read.
    let entries = [(1_u16, u32::MAX), (2, 1001), (4, u32::MAX), (0x10, u32::MAX), (0x20, u32::MAX)];
    let entry = |(tag, id): (u16, u32)| {
        [tag.to_le_bytes().as_slice(), &4_u16.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let acl = [2_u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat();
    rustix::fs::setxattr(rig.path("file"), ACL, &acl, rustix::fs::XattrFlags::empty()).unwrap();
    assert_eq!(look(ACL)(), Ok(acl.len()));
}

#[test]
fn a_large_directory_is_listed_whole_before_and_after_deletions() {
    let Some(rig) = Rig::mounted() else { return };
    let directory = rig.path("frames");
    fs::create_dir(&directory).unwrap();
    for frame in 0..2000 {
        File::create(directory.join(format!("{frame:05}.dpx"))).unwrap();
    }
    let names = || {
        let mut names: Vec<_> = fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(), (0..2000).map(|frame| format!("{frame:05}.dpx")).collect::<Vec<_>>());
    for frame in (0..2000).step_by(2) {
        fs::remove_file(directory.join(format!("{frame:05}.dpx"))).unwrap();
    }
    let odd: Vec<_> = (1..2000).step_by(2).map(|frame| format!("{frame:05}.dpx")).collect();
    assert_eq!(names(), odd);
    assert!(odd.iter().all(|name| fs::metadata(directory.join(name)).unwrap().len() == 0));
}

#[test]
fn requests_this_filesystem_does_not_have_are_refused_by_their_own_errno() {
    let Some(rig) = Rig::mounted() else { return };
    let file = rig.open("file");
    file.write_all_at(&[1; 100_000], 0).unwrap();
    let collapse = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(collapse, Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(rustix::termios::tcgetattr(&file).unwrap_err(), rustix::io::Errno::NOTTY);
    let past = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(1 << 40));
    assert_eq!(past, Err(rustix::io::Errno::NXIO));
}

#[test]
fn writing_takes_setuid_away() {
    let Some(rig) = Rig::mounted() else { return };
    rig.write("tool", b"#!");
    fs::set_permissions(rig.path("tool"), fs::Permissions::from_mode(0o6777)).unwrap();
    let script = format!("echo x >> '{}'", rig.path("tool").display());
    fs::set_permissions(rig.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    succeed(run(Command::new("setpriv").args([
        "--reuid",
        "1000",
        "--regid",
        "1000",
        "--clear-groups",
        "sh",
        "-c",
        &script,
    ])));
    assert_eq!(fs::metadata(rig.path("tool")).unwrap().mode() & 0o7777, 0o777);
}

#[test]
fn a_lock_is_the_kernels() {
    let Some(rig) = Rig::mounted() else { return };
    let (one, other) = (rig.open("file"), rig.open("file"));
    use rustix::fs::{FlockOperation, flock};
    flock(&one, FlockOperation::LockExclusive).unwrap();
    assert_eq!(flock(&other, FlockOperation::NonBlockingLockExclusive), Err(rustix::io::Errno::WOULDBLOCK));
    drop(one);
    flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
}

#[test]
fn an_open_file_outlives_its_name() {
    let Some(rig) = Rig::mounted() else { return };
    let mut file = rig.open("file");
    fs::remove_file(rig.path("file")).unwrap();
    file.write_all(b"still here").unwrap();
    let mut found = [0; 10];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"still here");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(file.read(&mut found).unwrap(), 0);
}

/// The kernel never keeps the ACL of a mount's own root: every step of somebody else through it was a request, two of
/// three that Samba made.
#[test]
fn the_root_is_shown_through_a_directory_whose_acl_the_kernel_keeps() {
    let Some(rig) = Rig::mounted() else { return };
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts: Vec<_> = table
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .filter(|fields| Path::new(&fields[4].replace("\\040", " ")) == rig.mount_point())
        .collect();
    // Mounted once, not one upon the other.
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    assert_eq!(mounts[0][3], "/volume");
    assert_eq!(fs::metadata(rig.mount_point()).unwrap().ino(), 1);
    // Its name is not one of the volume's.
    assert!(!rig.path("volume").exists());
    rig.write("volume", b"a file");
    assert_eq!(fs::read(rig.path("volume")).unwrap(), b"a file");
}

#[test]
fn requests_come_the_way_that_was_asked_for() {
    let Some(rig) = Rig::logged() else { return };
    let said = fs::read_to_string(rig.log()).unwrap();
    assert_eq!(said.contains("requests arrive through io_uring"), !through_device(), "{said}");
    refuse(rig.mount("transport=pigeon"), 1, "`pigeon` is none of device, ring");
}

#[test]
fn the_time_of_birth_is_shown_and_stays() {
    let Some(rig) = Rig::mounted() else { return };
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(5);
    let file = rig.open("file");
    let born = file.metadata().unwrap().created().unwrap();
    assert!(born > before);
    file.write_all_at(b"x", 0).unwrap();
    let old = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 2 };
    let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
    rustix::fs::futimens(&file, &times).unwrap();
    assert_eq!(file.metadata().unwrap().created().unwrap(), born);
}

/// Who has CAP_FSETID keeps it; once setuid went with every truncation.
#[test]
fn truncating_takes_setuid_away_from_those_who_may_not_set_it() {
    let Some(rig) = Rig::mounted() else { return };
    let truncate = |user: &str| {
        rig.write("tool", b"#!");
        fs::set_permissions(rig.path("tool"), fs::Permissions::from_mode(0o6777)).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups", "truncate", "-s", "1"]);
        succeed(run(command.arg(rig.path("tool"))));
        fs::metadata(rig.path("tool")).unwrap().mode() & 0o7777
    };
    fs::set_permissions(rig.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(truncate("1000"), 0o777);
    assert_eq!(truncate("0"), 0o6777);
}

#[test]
fn more_readers_than_the_kernel_can_pass_on_at_once_get_their_bytes() {
    let Some(rig) = Rig::mounted() else { return };
    let bytes = pattern(192 << 20);
    rig.write("media.mxf", &bytes);
    succeed(rig.umount());
    // Nothing is cached: the first reads all wait for the device.
    succeed(rig.mount("cache_size=256M"));
    std::thread::scope(|scope| {
        for reader in 0..96usize {
            let (path, bytes) = (rig.path("media.mxf"), &bytes);
            scope.spawn(move || {
                let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
                let mut found = vec![0; 1 << 20];
                for turn in 0..6 {
                    let at = (((reader * 31 + turn * 47) % 191) << 20) + 4096;
                    file.read_exact_at(&mut found, at as u64).unwrap();
                    assert!(found == bytes[at..at + found.len()], "at {at}");
                }
            });
        }
    });
}

/// And told that, not EIO: one time in three hundred that came, when a thread was killed while it read its first request,
/// into memory that nobody had touched.
#[test]
fn a_client_that_waits_is_told_when_the_daemon_dies() {
    let Some(rig) = Rig::mounted() else { return };
    rig.write("file", &pattern(4 << 20));
    let daemon = rig.daemon();
    let path = rig.path("file");
    let reader = std::thread::spawn(move || {
        loop {
            if let Err(error) = File::open(&path) {
                return error;
            }
        }
    });
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    let error = reader.join().unwrap();
    assert!(
        matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED)),
        "{error}"
    );
    succeed(rig.umount());
}

fn policy(arguments: &[&str], path: &Path) -> Output {
    let (command, options) = arguments.split_first().unwrap();
    let mut avfsctl = Command::new(env!("CARGO_BIN_EXE_avfsctl"));
    run(avfsctl.args(["policy", command]).arg(path).args(options))
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn said_in_json(output: &Output) -> serde_json::Value {
    serde_json::from_str(&said(output)).unwrap()
}

/// What an explanation says of one setting.
fn row<'a>(explained: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    explained["settings"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap()
}

#[test]
fn every_setting_is_set_shown_explained_and_cleared() {
    let Some(rig) = Rig::mounted() else { return };
    rig.write("a.mov", b"x");
    fs::create_dir(rig.path("shots")).unwrap();
    let settings = [
        ("class", "idle", "class", "idle"),
        ("bitrate", "100 Mbit/s", "rate", "100 Mbit/s"),
        ("frames_per_second", "23.976", "rate", "23.976 frames per second"),
        ("deadline_window", "750 ms", "deadline_window", "750 ms"),
        ("prefetch_depth", "24 MiB", "prefetch_depth", "24 MiB"),
        ("when_full", "refuse", "when_full", "refuse"),
        ("allocation_window", "128 MiB", "allocation_window", "128 MiB"),
    ];
    for path in [rig.path("a.mov"), rig.path("shots")] {
        let explained = || said_in_json(&policy(&["explain", "--json"], &path));
        for (name, value, shown, explanation) in settings {
            succeed(policy(&["set", &format!("--{}", name.replace('_', "-")), value], &path));
            assert_eq!(said(&policy(&["get"], &path)), format!("{name:<18} {value}\n"));
            let mut found = [0; 100];
            // Root sets what only root can change.
            let attribute = format!("trusted.avfs.{name}");
            let length = rustix::fs::getxattr(&path, &*attribute, &mut found).unwrap();
            assert_eq!(&found[..length], value.as_bytes());
            let row = row(&explained(), shown).clone();
            assert_eq!((&row["value"], &row["decided_by"]), (&explanation.into(), &"own".into()), "{row}");
            succeed(policy(&["clear", name], &path));
            assert_eq!(said(&policy(&["get"], &path)), "");
            let missing = rustix::fs::getxattr(&path, &*attribute, &mut found);
            assert_eq!(missing, Err(rustix::io::Errno::NODATA));
            assert_ne!(row["decided_by"], self::row(&explained(), shown)["decided_by"]);
        }
        // All at once, but for the rate, which is said in one way.
        let options = settings.map(|(name, ..)| format!("--{}", name.replace('_', "-")));
        let all: Vec<&str> =
            settings.iter().zip(&options).flat_map(|(one, option)| [&**option, one.1]).collect();
        assert_eq!(policy(&[&["set"], &all[..]].concat(), &path).status.code(), Some(2));
        let all: Vec<&str> = all.chunks(2).filter(|one| one[0] != "--bitrate").flatten().copied().collect();
        succeed(policy(&[&["set"], &all[..]].concat(), &path));
        assert_eq!(said(&policy(&["get"], &path)).lines().count(), 6);
        succeed(policy(&["clear"], &path));
        assert_eq!(said(&policy(&["get"], &path)), "");
    }
}

/// What is set of everything below a directory, by its path from there.
fn policies_below(directory: &Path) -> Vec<(String, serde_json::Value)> {
    let listed = said_in_json(&policy(&["list", "--json"], directory));
    let one = |one: &serde_json::Value| {
        let path = Path::new(one["path"].as_str().unwrap()).strip_prefix(directory).unwrap();
        (path.display().to_string(), one["settings"].clone())
    };
    listed.as_array().unwrap().iter().map(one).collect()
}

/// Those who restore set one attribute after the other, and never take one away first. Where a directory had the other way to
/// say the rate already, they heard EINVAL.
#[test]
fn a_backup_of_policies_is_restored_also_over_others() {
    let Some(rig) = Rig::mounted() else { return };
    let source = rig.path("source");
    fs::create_dir_all(source.join("shots/scans")).unwrap();
    fs::write(source.join("shots/a.mov"), b"x").unwrap();
    succeed(policy(&["set", "--bitrate", "100 Mbit/s", "--class", "real-time"], &source.join("shots")));
    succeed(policy(&["set", "--frames-per-second", "24"], &source.join("shots/scans")));
    let rest = ["set", "--deadline-window", "500 ms", "--prefetch-depth", "8 MiB", "--when-full", "refuse"];
    succeed(policy(&[&rest[..], &["--allocation-window", "64 MiB"]].concat(), &source.join("shots/a.mov")));
    let expected = policies_below(&source);
    assert_eq!(expected.len(), 3, "{expected:?}");

    // Of itself tar restores what users can set, and no more.
    let tar = "tar --xattrs -C \"$1\" -cf - . | tar --xattrs --xattrs-include='*.avfs.*' -C \"$2\" -xf -";
    for (tool, script) in
        [("tar", tar), ("cp", "cp -a \"$1/.\" \"$2\""), ("rsync", "rsync -a -X \"$1/\" \"$2\"")]
    {
        if !run(Command::new("sh").args(["-c", "command -v \"$1\"", "sh", tool])).status.success() {
            eprintln!("not tested: {tool} is missing; install the package {tool}");
            continue;
        }
        for is_over_others in [false, true] {
            let target = rig.path(&format!("{tool} {is_over_others}"));
            fs::create_dir_all(target.join("shots/scans")).unwrap();
            if is_over_others {
                succeed(policy(&["set", "--frames-per-second", "25"], &target.join("shots")));
                succeed(policy(&["set", "--bitrate", "50 Mbit/s"], &target.join("shots/scans")));
            }
            let restored = run(Command::new("sh").args(["-ec", script, "sh"]).arg(&source).arg(&target));
            assert!(restored.status.success() && restored.stderr.is_empty(), "{tool}: {restored:?}");
            assert_eq!(policies_below(&target), expected, "{tool}");
        }
    }
    succeed(rig.umount());
    succeed(rig.mount(""));
    assert_eq!(policies_below(&source), expected);
}

/// Reads the beginning of a file in pieces, one after the other: that is to play it.
fn play(path: &Path) -> File {
    // Through the kernel's pages the daemon would see one request.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    for piece in 0..6 {
        file.read_exact_at(&mut [0; 65536], piece << 16).unwrap();
    }
    file
}

#[test]
fn a_file_that_does_not_tell_its_rate_is_named_in_the_log_and_played_all_the_same() {
    let Some(rig) = Rig::logged() else { return };
    let begin = |head: &[u8]| [head, &pattern(2 << 20)].concat();
    let chunk = (100_u32 << 20).to_le_bytes();
    let files = [
        ("cut.wav", begin(&[b"RIFF\0\0\0\0WAVEJUNK".as_slice(), &chunk].concat()), "ends before its samples"),
        ("cut.mov", begin(b"\0\0\0\x0cftypqt  \x40\0\0\0mdat"), "ends before its media"),
        (
            "absurd.wav",
            begin(b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x02\0\0\0\0\0\0\0\0\0\0\0\x10\0"),
            "cannot be right: its rate is not between 1 kbit/s and 1 Tbit/s",
        ),
    ];
    for (name, bytes, _) in &files {
        rig.write(name, bytes);
    }
    rig.write("text", &[b'a'; 1 << 20]);
    for (name, bytes, why) in &files {
        let file = play(&rig.path(name));
        let told = format!(": \"/{name}\" does not tell its rate: the file {why}");
        let said = || fs::read_to_string(rig.log()).unwrap();
        let is_said = || said().lines().any(|line| line.contains(" INFO ") && line.ends_with(&told));
        assert!(eventually(is_said), "{told}\n{}", said());
        let explained = said_in_json(&policy(&["explain", "--json"], &rig.path(name)));
        let rate = row(&explained, "rate");
        assert_eq!((&rate["value"], &rate["decided_by"]), (&"unknown".into(), &"default".into()), "{rate}");
        let sources = rate["sources"].as_array().unwrap();
        assert!(
            sources.iter().any(|one| one["source"] == "container" && one["verdict"] == "silent"),
            "{rate}"
        );
        let mut found = vec![0; bytes.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == *bytes);
    }
    // Who is no media file has nothing to tell.
    play(&rig.path("text"));
    let said = fs::read_to_string(rig.log()).unwrap();
    assert_eq!(said.matches("does not tell its rate").count(), files.len(), "{said}");
}

/// Makes a clip, whose pictures are of this size, and says how long ffprobe finds it to play, in seconds; or why there is none.
fn clip(path: &Path, size: &str, arguments: &str) -> Result<f64, String> {
    let say = |command: &mut Command| match command.output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err("ffmpeg is missing; install the package ffmpeg".to_owned())
        }
        output => Ok(said(&output.unwrap())),
    };
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-v", "error", "-nostdin", "-threads", "2", "-f", "lavfi", "-i"]);
    ffmpeg.arg(format!("testsrc2=s={size}:r=25:d=2,noise=alls=60:allf=t"));
    ffmpeg.args(["-f", "lavfi", "-i", "anoisesrc=r=48000:d=2,aformat=channel_layouts=stereo"]);
    say(ffmpeg.args(arguments.split(' ')).arg(path))?;
    let mut ffprobe = Command::new("ffprobe");
    ffprobe.args(["-v", "error", "-show_entries", "format=duration", "-of", "csv=p=0"]);
    Ok(say(ffprobe.arg(path))?.trim().parse().unwrap())
}

/// From the container in the file to the reservation of the device's time.
#[test]
fn what_a_container_says_is_explained_and_reserved() {
    let Some(rig) = Rig::mounted() else { return };
    for (name, size, arguments) in CLIPS {
        let (made, path) = (rig.directory.path().join(name), rig.path(name));
        let seconds = match clip(&made, size, arguments) {
            Ok(seconds) => seconds,
            Err(why) => {
                eprintln!("not tested: {why}");
                return;
            }
        };
        let expected = fs::copy(&made, &path).unwrap() as f64 * 8.0 / seconds;
        let within = |rate: f64| (rate / expected - 1.0).abs() <= 0.02;
        let explain = || said_in_json(&policy(&["explain", "--json"], &path));
        // Nobody has played it.
        let rate = row(&explain(), "rate").clone();
        assert_eq!(rate["decided_by"], "container", "{name}: {rate}");
        let (number, unit) = rate["value"].as_str().unwrap().split_once(' ').unwrap();
        let units = [("bit/s", 1.0), ("kbit/s", 1e3), ("Mbit/s", 1e6)];
        let unit = units.iter().find(|(name, _)| *name == unit).unwrap().1;
        let stated = number.parse::<f64>().unwrap() * unit;
        assert!(within(stated), "{name}: {rate}, expected {expected}");
        assert_eq!(rig.info()["streams"], serde_json::json!([]), "to explain it is not to play it");

        let file = play(&path);
        let streams = || rig.info()["streams"].clone();
        assert!(eventually(|| streams()[0]["state"] == "admitted"), "{name}: {}", rig.info());
        let reserved = streams()[0]["bits_per_second"].as_f64().unwrap();
        assert!(within(reserved), "{name}: {reserved}, expected {expected}");
        assert_eq!(row(&explain(), "rate"), &rate, "{name}");
        drop(file);
        assert!(eventually(|| streams() == serde_json::json!([])), "{name}: {}", rig.info());
    }
}

const CLIPS: [(&str, &str, &str); 3] = [
    ("clip.mxf", "1280x720", "-c:v dnxhd -b:v 75M -pix_fmt yuv422p -c:a pcm_s16le"),
    ("clip.mov", "1280x720", "-c:v dnxhd -b:v 75M -pix_fmt yuv422p -c:a pcm_s16le"),
    ("clip.ts", "640x360", "-c:v mpeg2video -b:v 8M -maxrate 8M -bufsize 2M -c:a mp2 -muxrate 12M"),
];

/// Makes these files and writes pieces of 128 KiB to them in turn, one to each in 84 ms, which is 12.5 Mbit/s, until it is over.
fn write_by_the_clock(paths: &[PathBuf], is_over: &AtomicBool) {
    let files: Vec<File> = paths.iter().map(|path| File::create(path).unwrap()).collect();
    let (piece, mut next) = (pattern(128 << 10), Instant::now());
    for number in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
        for file in &files {
            file.write_all_at(&piece, number * piece.len() as u64).unwrap();
            next += Duration::from_millis(84) / files.len() as u32;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }
}

/// Nobody says a rate. A file that a process writes by a clock is recorded at that rate; twelve that one process writes in turn, each of
/// them by such a clock, are a folder that is copied here. The kernel says who opens a file: a thread counts as a process of its own.
#[test]
fn who_records_by_a_clock_is_found_out_and_who_copies_a_folder_is_not() {
    let Some(rig) = Rig::mounted() else { return };
    let streams = || rig.info()["streams"].as_array().unwrap().clone();
    let take = [rig.path("take")];
    let folder: Vec<PathBuf> = (0..12).map(|number| rig.path(&format!("copied{number}"))).collect();
    let is_over = AtomicBool::new(false);
    let (is_found, found) = std::thread::scope(|scope| {
        scope.spawn(|| write_by_the_clock(&folder, &is_over));
        scope.spawn(|| write_by_the_clock(&take, &is_over));
        let is_found = eventually(|| !streams().is_empty());
        // As long again: what is seen of one file would be seen of twelve.
        std::thread::sleep(Duration::from_secs(5));
        let found = streams();
        is_over.store(true, Ordering::Relaxed);
        (is_found, found)
    });
    let [stream] = &found[..] else { panic!("{is_found}: {found:?}") };
    assert_eq!(stream["ino"], fs::metadata(&take[0]).unwrap().ino());
    assert_eq!((&stream["writes"], &stream["state"]), (&true.into(), &"admitted".into()));
    let rate = stream["bits_per_second"].as_u64().unwrap();
    assert!((11_500_000..=15_000_000).contains(&rate), "{rate}");
    let explained = said_in_json(&policy(&["explain", "--json"], &folder[0]));
    assert_eq!(row(&explained, "rate")["decided_by"], "default");
}

#[test]
fn policies_are_set_shown_listed_explained_and_cleared() {
    let Some(rig) = Rig::mounted() else { return };
    fs::create_dir_all(rig.path("shots/day 1")).unwrap();
    rig.write("shots/day 1/a.mov", b"x");
    let (shots, day, file) = (rig.path("shots"), rig.path("shots/day 1"), rig.path("shots/day 1/a.mov"));
    succeed(policy(&["set", "--bitrate", "100 Mbit/s", "--class", "real-time"], &shots));
    succeed(policy(&["set", "--deadline-window", "500 ms"], &day));
    succeed(policy(&["set", "--frames-per-second", "24"], &file));
    assert_eq!(
        said(&policy(&["get"], &shots)),
        "bitrate            100 Mbit/s\nclass              real-time\n"
    );
    let listed = said_in_json(&policy(&["list", "--json"], &rig.mount_point()));
    let paths: Vec<_> = listed.as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
    assert_eq!(paths, [&shots, &day, &file].map(|path| path.to_str().unwrap()));
    assert_eq!(listed[2]["settings"], serde_json::json!({ "frames_per_second": "24" }));

    let explained = said_in_json(&policy(&["explain", "--json"], &file));
    let row = |name: &str| row(&explained, name).clone();
    assert_eq!(explained["path"], "/shots/day 1/a.mov");
    assert_eq!(row("rate")["decided_by"], "own");
    assert_eq!(row("class")["decided_by"]["directory"]["path"], "/shots");
    assert_eq!(row("deadline_window")["decided_by"]["directory"]["path"], "/shots/day 1");
    assert_eq!(row("when_full")["decided_by"], "default");
    let text = said(&policy(&["explain"], &file));
    assert!(text.contains("\nrate               24 frames per second     its own attributes\n"), "{text}");
    assert!(text.contains("    directory /shots: 100 Mbit/s, outranked by its own attributes\n"), "{text}");

    // The other way to say the rate takes the place of this one.
    succeed(policy(&["set", "--bitrate", "1 Gbit/s"], &file));
    assert_eq!(said(&policy(&["get"], &file)), "bitrate            1 Gbit/s\n");
    succeed(policy(&["clear", "class"], &shots));
    assert_eq!(said(&policy(&["get"], &shots)), "bitrate            100 Mbit/s\n");
    refuse(policy(&["clear", "class"], &shots), 1, "`class` is not set");
    succeed(policy(&["clear"], &shots));
    succeed(rig.umount());
    succeed(rig.mount(""));
    let listed = said_in_json(&policy(&["list", "--json"], &rig.path("shots")));
    assert_eq!(listed.as_array().unwrap().len(), 2);
}

#[test]
fn a_mistake_in_a_policy_is_one_line_and_einval() {
    let Some(rig) = Rig::logged() else { return };
    rig.write("file", b"");
    let file = rig.path("file");
    refuse(policy(&["set", "--bitrate", "fast"], &file), 1, "--bitrate: \"fast\": expected a bitrate");
    refuse(policy(&["set", "--deadline-window", "1 us"], &file), 1, "is outside of 1ms to 60s");
    refuse(policy(&["set", "--class", "idle"], rig.directory.path()), 1, "no AVFS volume is mounted there");
    let set = |name: &str, value: &str| {
        rustix::fs::setxattr(&file, name, value.as_bytes(), rustix::fs::XattrFlags::empty())
    };
    for (name, value) in [("user.avfs.bitrat", "1 Mbit/s"), ("user.avfs.bitrate", "fast")] {
        assert_eq!(set(name, value), Err(rustix::io::Errno::INVAL));
    }
    let said = fs::read_to_string(rig.log()).unwrap();
    let lines: Vec<_> = said.lines().filter(|line| line.contains("is refused")).collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines[0].contains("\"/file\": user.avfs.bitrat = \"1 Mbit/s\" is refused: there is no such setting")
    );
    assert_eq!(set("user.avfs.class", "idle"), Ok(()));
    assert_eq!(said_in_json(&policy(&["get", "--json"], &file))["settings"]["class"], "idle");
}

#[test]
fn who_refuses_more_than_the_device_carries_refuses_at_open() {
    let Some(rig) = Rig::mounted() else { return };
    fs::create_dir(rig.path("scans")).unwrap();
    let scans = rig.path("scans");
    rig.write("scans/a", b"one two three");
    succeed(policy(&["set", "--bitrate", "900 Gbit/s", "--when-full", "refuse"], &scans));
    for opened in [File::open(rig.path("scans/a")), File::create(rig.path("scans/b"))] {
        assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::EBUSY));
    }
    assert_eq!(rig.info()["streams"], serde_json::json!([]));
    succeed(policy(&["set", "--when-full", "demote"], &scans));
    let file = File::open(rig.path("scans/a")).unwrap();
    assert_eq!(rig.info()["streams"], serde_json::json!([]), "nobody plays it yet");
    for at in [0, 4, 8] {
        file.read_exact_at(&mut [0; 4], at).unwrap();
    }
    assert_eq!(rig.info()["streams"][0]["state"], "waiting");
    drop(file);
    succeed(policy(&["set", "--bitrate", "1 Mbit/s", "--when-full", "refuse"], &scans));
    let _file = File::open(rig.path("scans/a")).unwrap();
    assert_eq!(rig.info()["streams"][0]["state"], "admitted");
}

/// `include/avfs/avfs.h` as a C program uses it. Its miss was to come from stopping the daemon while a request was at the device, which
/// of 128 attempts none met where the device was quick.
#[test]
fn applications_declare_streams_and_hear_how_they_do() {
    let Some(rig) = Rig::on_a_device_that_can_be_slow() else { return };
    let program = rig.directory.path().join("application");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/application.c");
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"]).arg(&program);
    match compiler.arg("-I").arg(header).arg(source).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            eprintln!("not tested: cc is missing; install the packages gcc and libc6-dev");
            return;
        }
        output => succeed(output.unwrap()),
    }
    rig.write("played", &pattern(32 << 20));
    rig.write("late", &pattern(32 << 20));
    rig.write("idle", b"x");
    succeed(policy(&["set", "--class", "idle"], &rig.path("idle")));
    // Nothing is cached.
    succeed(rig.umount());
    succeed(rig.mount(""));
    let mut application = Command::new(program);
    application.args(["played", "late", "idle"].map(|name| rig.path(name))).arg(rig.mount_point());
    let output = run(application.arg(rig.control()));
    assert_eq!(said(&output), "all as the header says\n");
    // Nobody waits for the answer to RELEASE: it may come after the program has ended.
    assert!(eventually(|| rig.info()["streams"] == serde_json::json!([])), "{}", rig.info());
}

/// A shared mapping of the start of a file.
struct Mapping {
    address: *mut u8,
    length: usize,
}

impl Mapping {
    fn new(file: &File, length: usize) -> Self {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no other memory.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(address, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Self { address: address.cast(), length }
    }

    /// What the mapping shows now.
    fn bytes(&self) -> Vec<u8> {
        // SAFETY: the mapping is `length` long, the file at least as long, and nobody writes meanwhile.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }.to_vec()
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.length);
        // SAFETY: within the mapping, as just checked; nobody reads it meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address.add(at), bytes.len()) };
        // SAFETY: the range is the mapping's own.
        let synced = unsafe { libc::msync(self.address.cast(), self.length, libc::MS_SYNC) };
        assert_eq!(synced, 0, "{}", io::Error::last_os_error());
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody uses it after this.
        unsafe { libc::munmap(self.address.cast(), self.length) };
    }
}

#[test]
fn what_was_measured_of_the_device_is_what_a_mount_begins_with() {
    let Some(rig) = Rig::new() else { return };
    let config = rig.directory.path().join("avfs.toml");
    fs::write(&config, "[device]\nread_access = \"9 ms\"\nread_rate = \"200 MB/s\"\n").unwrap();
    succeed(rig.mount(&format!("config={}", config.display())));
    let info = rig.info();
    let [read, write, flush] = &info["device"]["services"].as_array().unwrap()[..] else { panic!("{info}") };
    assert_eq!((&read["operation"], &read["origin"]), (&"read".into(), &"measured".into()));
    assert_eq!(
        read["start"],
        serde_json::json!({"access_nanoseconds": 9_000_000, "bytes_per_second": 200_000_000})
    );
    for other in [write, flush] {
        assert_eq!(other["origin"], "default");
    }
    let shown = run(Command::new(env!("CARGO_BIN_EXE_avfsctl")).arg("info").arg(rig.mount_point()));
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.lines().any(|line| line.contains("9.000 ms and 200.0 MB/s") && line.contains("measured")),
        "{shown}"
    );
}
