//! Mounting, mounting again, and all the ways in which a mount ends. Without root or `/dev/fuse`, each test says so and ends.

mod common;

use avfs_core::format::{Geometry, MMP, MmpBlock, Superblock};
use avfs_core::recovery::find_superblock;
use avfs_io::device::{FileDevice, OpenMode};
use common::{Alone, Loop, comes_to_hold, refuse, succeed};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};

/// An image file with a volume, and directories to mount it on.
struct Rig {
    directory: tempfile::TempDir,
    _alone: Alone,
}

impl Rig {
    fn new() -> Option<Self> {
        let alone = Alone::to_mount()?;
        let rig = Self { directory: tempfile::tempdir().unwrap(), _alone: alone };
        for directory in [rig.place(), rig.second()] {
            fs::create_dir(directory).unwrap();
        }
        Some(rig)
    }

    fn with_volume() -> Option<Self> {
        let rig = Self::new()?;
        succeed(tool("mkfs", &["--size", "512M"], &[&rig.image()]));
        Some(rig)
    }

    fn mounted() -> Option<Self> {
        let rig = Self::with_volume()?;
        succeed(rig.mount(&rig.place(), ""));
        Some(rig)
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn place(&self) -> PathBuf {
        self.directory.path().join("first place")
    }

    fn second(&self) -> PathBuf {
        self.directory.path().join("second")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place().join(name)
    }

    fn mount(&self, on: &Path, options: &str) -> Output {
        self.mount_device(&self.image(), on, options)
    }

    fn mount_device(&self, device: &Path, on: &Path, options: &str) -> Output {
        let log = format!("cache_size=64M,log={}", self.log().display());
        let mut arguments = vec!["-o", &log];
        if !options.is_empty() {
            arguments.extend(["-o", options]);
        }
        tool("mount", &arguments, &[device, on])
    }

    fn umount(&self, arguments: &[&str], from: &Path) -> Output {
        tool("umount", arguments, &[from])
    }

    fn info(&self) -> serde_json::Value {
        let output = tool("avfsctl", &["info", "--json"], &[&self.place()]);
        serde_json::from_slice(&output.stdout).expect("figures")
    }

    fn transport(&self) -> String {
        self.info()["options"]["transport"].as_str().expect("what was chosen").to_owned()
    }

    fn daemon(&self) -> Pid {
        let info = self.info();
        Pid::from_raw(i32::try_from(info["process"].as_i64().unwrap()).unwrap()).unwrap()
    }

    fn said(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    fn superblock(&self) -> Superblock {
        find_superblock(&FileDevice::open(&self.image(), OpenMode::ReadOnly).unwrap()).unwrap()
    }

    /// Writes to the image, as another host would to the LUN.
    fn overwrite(&self, place: u64, block: &[u8]) {
        let image = OpenOptions::new().write(true).open(self.image()).unwrap();
        image.write_all_at(block, place).and_then(|()| image.sync_all()).unwrap();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // What a failed test left. Nothing that hangs is waited for.
        for entry in mounts_below(self.directory.path()).iter().rev() {
            let _ = rustix::mount::unmount(entry, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
    }
}

fn tool(name: &str, arguments: &[&str], paths: &[&Path]) -> Output {
    let program = match name {
        "mkfs" => env!("CARGO_BIN_EXE_mkfs-avfs"),
        "mount" => env!("CARGO_BIN_EXE_mount-avfs"),
        "umount" => env!("CARGO_BIN_EXE_umount-avfs"),
        "fsck" => env!("CARGO_BIN_EXE_fsck-avfs"),
        _ => env!("CARGO_BIN_EXE_avfsctl"),
    };
    Command::new(program).args(arguments).args(paths).output().unwrap()
}

fn eventually(holds: impl FnMut() -> bool) -> bool {
    comes_to_hold(Duration::from_secs(20), holds)
}

/// Lines of mountinfo whose mount point lies below a directory.
fn lines_below(directory: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let below = format!("{}/", directory.display());
    table
        .lines()
        .filter(|line| line.split(' ').nth(4).unwrap().starts_with(&below))
        .map(str::to_owned)
        .collect()
}

fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let lines = lines_below(directory);
    lines.iter().map(|line| line.split(' ').nth(4).unwrap().replace("\\040", " ").into()).collect()
}

fn is_alive(process: Pid) -> bool {
    rustix::process::test_kill_process(process).is_ok()
}

fn kill(process: Pid, signal: Signal) {
    rustix::process::kill_process(process, signal).unwrap();
}

/// mount.avfs mounted, unmounted, and mounted again what it had shown: what waited for the mount point wrote into the
/// directory below it.
#[test]
fn a_directory_that_shows_the_volume_does_not_show_again_what_is_below_it() {
    let Some(rig) = Rig::with_volume() else { return };
    let below = fs::metadata(rig.place()).unwrap().dev();
    for _ in 0..6 {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let client = scope.spawn(|| {
                let shows_volume = || fs::metadata(rig.place()).is_ok_and(|found| found.dev() != below);
                while !shows_volume() && !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                while !is_over.load(Ordering::Relaxed) {
                    assert!(shows_volume(), "the directory below came back");
                }
            });
            let mounted = rig.mount(&rig.place(), "");
            is_over.store(true, Ordering::Relaxed);
            succeed(mounted);
            client.join().unwrap();
        });
        succeed(rig.umount(&[], &rig.place()));
    }
}

/// The image is enlarged while files are open; the new space is there at once, and after the next mount.
#[test]
fn a_mounted_volume_takes_what_its_device_has_grown_by() {
    let Some(rig) = Rig::mounted() else { return };
    let grow = || tool("avfsctl", &["grow"], &[&rig.place()]);
    let size = || rustix::fs::statvfs(rig.place()).unwrap();
    let before = fs::metadata(rig.image()).unwrap().len();
    let refused = grow();
    assert!(!refused.status.success());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("no larger than the volume") && said.lines().count() == 1, "{said}");
    let blocks = size().f_blocks * size().f_frsize;
    OpenOptions::new().write(true).open(rig.image()).unwrap().set_len(before + (256 << 20)).unwrap();
    succeed(grow());
    assert_eq!(size().f_blocks * size().f_frsize, blocks + (256 << 20));
    // More than there was place for.
    let bytes = vec![5; 8 << 20];
    let mut file = File::create(rig.path("film")).unwrap();
    let written = (blocks / bytes.len() as u64) as usize;
    (0..written).for_each(|_| file.write_all(&bytes).unwrap());
    file.sync_all().unwrap();
    drop(file);
    succeed(rig.umount(&[], &rig.place()));
    let checked = tool("fsck", &["-n"], &[&rig.image()]);
    assert_eq!(checked.status.code(), Some(0), "{}", String::from_utf8_lossy(&checked.stdout));
    succeed(rig.mount(&rig.place(), "ro"));
    let read = fs::read(rig.path("film")).unwrap();
    assert!(read.len() == written * bytes.len() && read.iter().all(|&byte| byte == 5));
    succeed(rig.umount(&[], &rig.place()));
}

/// A LUN that had grown was made smaller again by mistake: nothing could be mounted, though nearly everything was there.
#[test]
fn what_is_left_on_a_device_that_lost_its_end_can_be_read() {
    let Some(rig) = Rig::mounted() else { return };
    let resize = |mebibytes| {
        OpenOptions::new().write(true).open(rig.image()).unwrap().set_len(mebibytes << 20).unwrap()
    };
    fs::write(rig.path("first"), vec![1; 1 << 20]).unwrap();
    resize(1024);
    succeed(tool("avfsctl", &["grow"], &[&rig.place()]));
    let bytes = vec![2; 200 << 20];
    fs::write(rig.path("film"), &bytes).unwrap();
    succeed(tool("avfsctl", &["sync"], &[&rig.place()]));
    let extents = tool("avfsctl", &["extents", "--json"], &[&rig.path("film")]);
    let extents: serde_json::Value = serde_json::from_slice(&extents.stdout).unwrap();
    let begin = extents["extents"][0]["device_offset"].as_u64().unwrap();
    assert!(begin > 500 << 20, "the film lies at {begin}, and the device is to end in the middle of it");
    succeed(rig.umount(&[], &rig.place()));
    resize((begin >> 20) + 100);
    let refused = rig.mount(&rig.place(), "");
    assert!(!refused.status.success());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("-o ro to save what is left"), "{said}");
    succeed(rig.mount(&rig.place(), "ro"));
    assert!(rig.said().contains("cannot be read"), "{}", rig.said());
    assert_eq!(fs::read(rig.path("first")).unwrap(), vec![1; 1 << 20]);
    let mut film = File::open(rig.path("film")).unwrap();
    let mut read = Vec::new();
    assert!(film.read_to_end(&mut read).is_err());
    assert!(read.len() >= 90 << 20 && read == bytes[..read.len()], "{} bytes", read.len());
    drop(film);
    assert!(!tool("mount", &["-o", "remount,rw"], &[&rig.image(), &rig.place()]).status.success());
    succeed(rig.umount(&[], &rig.place()));
}

/// What is written without fsync(2) is on the device after syncfs(2), which a mount of type `fuse` never heard of.
#[test]
fn syncfs_reaches_the_volume() {
    let Some(rig) = Rig::mounted() else { return };
    let bytes = vec![7; 3 << 20];
    fs::write(rig.path("file"), &bytes).unwrap();
    rustix::fs::syncfs(File::open(rig.place()).unwrap()).unwrap();
    kill(rig.daemon(), Signal::KILL);
    succeed(rig.umount(&[], &rig.place()));
    succeed(rig.mount(&rig.place(), ""));
    assert!(fs::read(rig.path("file")).unwrap() == bytes);
}

/// umount(2) returned while the daemon still wrote: what had the device next wrote beside it.
#[test]
fn a_bare_umount_returns_when_everything_is_written_and_the_device_is_free() {
    let Some(rig) = Rig::with_volume() else { return };
    let device = Loop::of(&rig.image());
    succeed(rig.mount_device(&device.0, &rig.place(), ""));
    // The kernel holds the device, as it does for its own filesystems.
    let exclusive = || OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&device.0);
    assert_eq!(exclusive().unwrap_err().raw_os_error(), Some(libc::EBUSY));
    let bytes = vec![5; 40 << 20];
    fs::write(rig.path("file"), &bytes).unwrap();
    let daemon = rig.daemon();
    rustix::mount::unmount(rig.place(), UnmountFlags::empty()).unwrap();
    // Whatever it would still write is lost.
    let _ = rustix::process::kill_process(daemon, Signal::KILL);
    exclusive().unwrap();
    succeed(tool("fsck", &["-n"], &[&device.0]));
    succeed(rig.mount_device(&device.0, &rig.place(), ""));
    assert!(fs::read(rig.path("file")).unwrap() == bytes);
    succeed(rig.umount(&[], &rig.place()));
}

/// A small request through rings takes a third of the time, and only mounts that asked for them had them.
#[test]
fn requests_come_through_rings_where_the_kernel_has_them() {
    let Some(rig) = Rig::mounted() else { return };
    let has_rings = Path::new("/sys/module/fuse/parameters/enable_uring").exists();
    assert_eq!(rig.transport(), if has_rings { "ring" } else { "device" });
}

#[test]
fn a_mounted_volume_is_shown_at_a_second_directory_until_the_last_is_unmounted() {
    let Some(rig) = Rig::mounted() else { return };
    let daemon = rig.daemon();
    succeed(rig.mount(&rig.second(), "ro"));
    fs::write(rig.path("file"), "x").unwrap();
    assert_eq!(fs::read(rig.second().join("file")).unwrap(), b"x");
    let refused = fs::write(rig.second().join("file"), "y").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    refuse(rig.mount(&rig.second(), ""), 32, "is mounted on");
    let other = if rig.transport() == "ring" { "transport=device" } else { "transport=ring" };
    refuse(rig.mount(&rig.second(), other), 32, &format!("without {other}, which cannot be changed"));
    // Of a place that is not the last there is nothing to say.
    let unmounted = rig.umount(&[], &rig.place());
    assert!(unmounted.status.success() && unmounted.stderr.is_empty(), "{unmounted:?}");
    assert_eq!(fs::read(rig.second().join("file")).unwrap(), b"x");
    succeed(rig.umount(&[], &rig.second()));
    assert!(eventually(|| !is_alive(daemon)));
}

/// Both exited with 0 and did nothing.
#[test]
fn what_a_remount_cannot_change_is_refused() {
    let Some(rig) = Rig::mounted() else { return };
    refuse(rig.mount(&rig.place(), "ro"), 32, "is mounted on");
    let other = if rig.transport() == "ring" { "transport=device" } else { "transport=ring" };
    refuse(rig.mount(&rig.place(), &format!("remount,{other}")), 32, &format!("{other} cannot be changed"));
    refuse(rig.mount(&rig.place(), "remount,config=/none"), 32, "config=/none cannot be changed");
    // What it was mounted with may be repeated, as mount(8) does from fstab(5).
    succeed(rig.mount(&rig.place(), "remount,ro,cache_size=64M"));
    assert_eq!(fs::write(rig.path("x"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
}

/// It was said that the directory is none.
#[test]
fn a_mount_whose_daemon_died_is_told_from_what_is_no_directory() {
    let Some(rig) = Rig::mounted() else { return };
    kill(rig.daemon(), Signal::KILL);
    assert!(eventually(|| rustix::fs::statfs(rig.place()).is_err()));
    refuse(rig.mount(&rig.place(), ""), 32, "has died; `umount");
}

/// The kernel holds the device as long as a client has a file of the dead mount open. That must not keep it from
/// being mounted anew.
#[test]
fn a_device_whose_dead_mount_is_still_in_use_can_be_mounted() {
    let Some(rig) = Rig::with_volume() else { return };
    let device = Loop::of(&rig.image());
    succeed(rig.mount_device(&device.0, &rig.place(), ""));
    let client = File::create(rig.path("file")).unwrap();
    client.sync_all().unwrap();
    kill(rig.daemon(), Signal::KILL);
    assert!(eventually(|| client.metadata().is_err()));
    succeed(rig.umount(&["-l"], &rig.place()));
    succeed(rig.mount_device(&device.0, &rig.place(), ""));
    assert!(rig.path("file").exists());
    assert!(rig.said().contains("a mount whose daemon died is still in use"), "{}", rig.said());
    succeed(rig.umount(&[], &rig.place()));
    drop(client);
}

/// A second SIGTERM stopped the engine under clients: they heard EIO, what had been accepted was gone, and the exit code was 1.
#[test]
fn a_second_signal_takes_files_from_clients_and_loses_nothing() {
    const BLOCKS: u64 = 64;
    const LENGTH: usize = 256 << 10;
    let Some(rig) = Rig::mounted() else { return };
    let daemon = rig.daemon();
    let file = File::create(rig.path("file")).unwrap();
    let content = |version: u64| version.to_le_bytes().repeat(LENGTH / 8);
    let (writes, has_written) = mpsc::channel();
    let client = thread::spawn(move || {
        for version in 0.. {
            // Over and over the same 16 MiB, so that it does not end by itself; each time something else, so that no write is lost
            // without being missed.
            if let Err(error) = file.write_all_at(&content(version), version % BLOCKS * LENGTH as u64) {
                return (version, error.raw_os_error());
            }
            let _ = writes.send(version);
        }
        unreachable!()
    });
    for _ in 0..80 {
        has_written.recv().unwrap();
    }
    kill(daemon, Signal::TERM);
    assert!(eventually(|| mounts_below(rig.directory.path()).is_empty()));
    // Its file is open: it goes on, and the daemon with it.
    has_written.try_iter().for_each(drop);
    has_written.recv_timeout(Duration::from_secs(20)).unwrap();
    kill(daemon, Signal::TERM);
    let (accepted, error) = client.join().unwrap();
    assert!(matches!(error, Some(libc::ECONNABORTED | libc::ENOTCONN)), "{error:?}");
    assert!(accepted >= BLOCKS);
    assert!(eventually(|| !is_alive(daemon)));
    assert!(!rig.said().contains("ERROR") && rig.said().contains("image unmounted"), "{}", rig.said());
    succeed(rig.mount(&rig.place(), ""));
    let found = fs::read(rig.path("file")).unwrap();
    assert_eq!(found.len() as u64, BLOCKS * LENGTH as u64);
    for (block, found) in (0..BLOCKS).zip(found.chunks(LENGTH)) {
        let newest = (accepted - 1 - block) / BLOCKS * BLOCKS + block;
        // What was refused may be there, as well.
        let refused = (accepted % BLOCKS == block).then_some(accepted);
        let is_right = [Some(newest), refused].into_iter().flatten().any(|version| found == content(version));
        let version = u64::from_le_bytes(found[..8].try_into().unwrap());
        assert!(is_right, "block {block} is of version {version}, and {newest} was accepted");
    }
}

/// Exit code 0 after what was accepted could not be written; and a mount that showed "rw" when every change was refused.
#[test]
fn a_device_that_shrinks_makes_the_mount_read_only_and_umount_say_that_not_all_is_written() {
    let Some(rig) = Rig::with_volume() else { return };
    let device = Loop::of(&rig.image());
    succeed(rig.mount_device(&device.0, &rig.place(), ""));
    let shows = |flag: &str| {
        let lines = lines_below(rig.directory.path());
        let line = lines.iter().find(|line| line.contains("fuse")).unwrap();
        line.rsplit(' ').next().unwrap().split(',').any(|option| option == flag)
    };
    assert!(shows("rw"));
    let mut file = File::create(rig.path("file")).unwrap();
    // A LUN that was made smaller: nothing of the volume is there any more.
    OpenOptions::new().write(true).open(rig.image()).unwrap().set_len(1 << 20).unwrap();
    succeed(Command::new("losetup").arg("--set-capacity").arg(&device.0).output().unwrap());
    file.write_all(&vec![1; 8 << 20]).unwrap();
    assert!(file.sync_all().is_err());
    drop(file);
    assert!(eventually(|| shows("ro")), "{}", rig.said());
    assert_eq!(File::create(rig.path("other")).unwrap_err().raw_os_error(), Some(libc::EROFS));
    refuse(rig.umount(&[], &rig.place()), 32, "but not everything is on the device");
}

/// Each of these hung with the daemon, those by which an administrator would get rid of it, too.
#[test]
fn a_daemon_that_hangs_hangs_no_command() {
    let Some(rig) = Rig::mounted() else { return };
    fs::write(rig.path("file"), "x").unwrap();
    let daemon = rig.daemon();
    kill(daemon, Signal::STOP);
    // Its threads stop one after the other, and one that does not yet may take a request that it will not answer.
    assert!(eventually(|| {
        let threads = fs::read_dir(format!("/proc/{}/task", daemon.as_raw_nonzero())).unwrap();
        threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("stat")).unwrap()).all(|stat| {
            // Behind the name, which may hold anything.
            stat.rsplit(") ").next().unwrap().starts_with('T')
        })
    }));
    let start = Instant::now();
    let (place, file, image, second) = (rig.place(), rig.path("file"), rig.image(), rig.second());
    let answers: Vec<(&str, Output)> = thread::scope(|scope| {
        let commands: [(&str, &[&str], Vec<&Path>); 9] = [
            ("avfsctl", &["info"], vec![&place]),
            ("avfsctl", &["sync"], vec![&place]),
            ("avfsctl", &["extents"], vec![&file]),
            ("avfsctl", &["policy", "get"], vec![&file]),
            ("fsck", &["-n"], vec![&image]),
            ("mkfs", &["--force"], vec![&image]),
            ("mount", &["-o", "cache_size=64M"], vec![&image, &second]),
            ("mount", &["-o", "remount,ro"], vec![&image, &place]),
            ("umount", &[], vec![&place]),
        ];
        let running = commands
            .map(|(name, arguments, paths)| scope.spawn(move || (name, tool(name, arguments, &paths))));
        running.into_iter().map(|command| command.join().unwrap()).collect()
    });
    let took = start.elapsed();
    for (name, answer) in answers {
        let said = String::from_utf8(answer.stderr).unwrap();
        assert!(!answer.status.success() && said.contains("does not answer"), "{name}: {said}");
    }
    assert!(took < Duration::from_secs(60), "{took:?}");
    succeed(rig.umount(&["-l"], &rig.place()));
    assert!(mounts_below(rig.directory.path()).is_empty());
    // Nothing is lost by any of this.
    kill(daemon, Signal::CONT);
    assert!(eventually(|| !is_alive(daemon)));
    succeed(rig.mount(&rig.place(), ""));
    assert_eq!(fs::read(rig.path("file")).unwrap(), b"x");
}

/// It said "in use", and had ended the mount under everything that used it.
#[test]
fn unmounting_by_force_ends_a_mount_that_is_in_use_and_says_so() {
    let Some(rig) = Rig::mounted() else { return };
    let daemon = rig.daemon();
    let mut file = File::create(rig.path("file")).unwrap();
    file.write_all(b"accepted").unwrap();
    refuse(rig.umount(&[], &rig.place()), 32, "in use");
    file.write_all(b" twice").unwrap();
    succeed(rig.umount(&["-f"], &rig.place()));
    assert!(mounts_below(rig.directory.path()).is_empty());
    assert_eq!(file.write_all(b"!").unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    assert!(eventually(|| !is_alive(daemon)));
    succeed(rig.mount(&rig.place(), ""));
    assert_eq!(fs::read(rig.path("file")).unwrap(), b"accepted twice");
}

/// autofs lets the process group of its daemon through, and lets all others wait until that has mounted: the daemon of the volume
/// mounted from a session of its own, waited for itself, and gave up after 90 s.
#[test]
fn an_automounter_can_mount_it() {
    let Some(rig) = Rig::with_volume() else { return };
    if !fs::read_to_string("/proc/filesystems").unwrap().contains("autofs") {
        eprintln!("not tested: this kernel has no autofs");
        return;
    }
    let (mut asks, kernel) = std::io::pipe().unwrap();
    let group = rustix::process::getpgrp();
    let data =
        format!("fd={},pgrp={},minproto=5,maxproto=5,direct", kernel.as_raw_fd(), group.as_raw_nonzero());
    let data = std::ffi::CString::new(data).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("test", rig.place(), "autofs", flags, data.as_c_str()).unwrap();
    drop(kernel);
    let trigger = File::open(rig.place()).unwrap();
    let mut listing = Command::new("ls").arg(rig.path(".")).process_group(0).spawn().unwrap();
    // `struct autofs_v5_packet`: version, type, and the token by which it is answered.
    let mut packet = [0; 304];
    let length = asks.read(&mut packet).unwrap();
    assert!(length >= 12);
    let token = u32::from_ne_bytes(packet[8..12].try_into().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_mount-avfs"));
    command.arg(rig.image()).arg(rig.place()).args(["-o", "cache_size=64M"]);
    let mut mounting = command.spawn().unwrap();
    let ended = eventually(|| mounting.try_wait().unwrap().is_some());
    const READY: libc::Ioctl = 0x9360;
    const FAIL: libc::Ioctl = 0x9361;
    let answer = if ended { READY } else { FAIL };
    // SAFETY: the request takes a number, and the descriptor is open.
    let answered = unsafe { libc::ioctl(trigger.as_raw_fd(), answer, libc::c_ulong::from(token)) };
    assert_eq!(answered, 0);
    assert!(ended, "mount.avfs waits for itself");
    assert!(mounting.wait().unwrap().success());
    assert!(listing.wait().unwrap().success());
    drop(trigger);
    succeed(rig.umount(&[], &rig.place()));
    rustix::mount::unmount(rig.place(), UnmountFlags::DETACH).unwrap();
}

/// Any word was taken, and changed nothing.
#[test]
fn a_level_of_the_log_that_there_is_not_is_refused() {
    let Some(rig) = Rig::with_volume() else { return };
    let mut command = Command::new(env!("CARGO_BIN_EXE_mount-avfs"));
    command.env("AVFS_LOG", "verbose").arg(rig.image()).arg(rig.place()).args(["-o", "cache_size=64M"]);
    refuse(command.output().unwrap(), 1, "AVFS_LOG: `verbose` is none of off, error");
}

/// `umount -l` exited with 0 and said nothing, though nothing of what clients had written would ever be on the device.
#[test]
fn a_volume_that_another_host_has_taken_is_not_unmounted_in_silence_lazily_either() {
    let Some(rig) = Rig::with_volume() else { return };
    succeed(rig.mount(&rig.place(), ""));
    // Nothing is lost: there is nothing to be told.
    let open = File::create(rig.place().join("open")).unwrap();
    let output = rig.umount(&["-l"], &rig.place());
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
    drop(open);

    succeed(rig.mount(&rig.place(), ""));
    let open = File::create(rig.place().join("open")).unwrap();
    let block = MmpBlock {
        uuid: rig.superblock().uuid,
        sequence: 7,
        boot_id: [9; 16],
        host: "nas-2".into(),
        ..MmpBlock::default()
    };
    rig.overwrite(MMP, &block.encode()[..]);
    // At the next renewal.
    let is_lost =
        || File::create(rig.place().join("later")).is_err_and(|error| error.raw_os_error() == Some(5));
    assert!(eventually(is_lost));
    refuse(rig.umount(&["-l"], &rig.place()), 32, "has taken it");
    assert!(!rig.place().join("open").exists(), "it is still mounted");
    drop(open);
}

/// A feature that must be known to write was heeded by repairs, and not by a mount.
#[test]
fn what_a_newer_version_has_left_is_only_read() {
    let Some(rig) = Rig::with_volume() else { return };
    succeed(rig.mount(&rig.place(), ""));
    fs::write(rig.place().join("file"), "content").unwrap();
    succeed(rig.umount(&[], &rig.place()));
    let mut superblock = rig.superblock();
    superblock.features.read_only_compatible = 1 << 40;
    for place in Geometry::superblock_places(superblock.geometry.device) {
        rig.overwrite(place.0, &superblock.encode()[..]);
    }
    let before = fs::read(rig.image()).unwrap();

    refuse(rig.mount(&rig.place(), ""), 32, "can only be read, mount it with -o ro");
    refuse(tool("fsck", &["-y"], &[&rig.image()]), 8, "newer version");
    succeed(rig.mount(&rig.place(), "ro"));
    assert_eq!(fs::read(rig.place().join("file")).unwrap(), b"content");
    refuse(rig.mount(&rig.place(), "remount,rw"), 32, "read-only");
    assert_eq!(fs::write(rig.place().join("file"), "x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    succeed(rig.umount(&[], &rig.place()));
    assert!(fs::read(rig.image()).unwrap() == before, "something was written");
    succeed(tool("fsck", &["-n"], &[&rig.image()]));
}
