//! One volume, two device nodes: what hosts do to each other on one LUN, and what one host does to itself. Without root, `/dev/fuse` or
//! loop devices each test says so and ends.

mod common;

use common::{Alone, refuse, succeed};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Where the protection block lies.
const MMP: u64 = (1 << 20) + (128 << 10);

/// A volume in an image, with two loop devices on it; each can be mounted at a place of its own.
struct Rig {
    directory: tempfile::TempDir,
    nodes: Vec<PathBuf>,
    /// Daemons that a test stops or kills.
    daemons: RefCell<Vec<Pid>>,
    _alone: Alone,
}

impl Rig {
    /// `None`, with the reason printed, where there is nothing to test with.
    fn new() -> Option<Self> {
        let alone = Alone::to_mount()?;
        let mut rig = Self {
            directory: tempfile::tempdir().unwrap(),
            nodes: Vec::new(),
            daemons: RefCell::default(),
            _alone: alone,
        };
        let made = Command::new(env!("CARGO_BIN_EXE_mkfs-avfs"))
            .args(["--size", "1G", "--label", "two hosts"])
            .arg(rig.image())
            .output();
        succeed(made.unwrap());
        for host in [1, 2] {
            let node = Command::new("losetup").args(["--find", "--show"]).arg(rig.image()).output().unwrap();
            if !node.status.success() {
                eprintln!("not tested: no loop device: {}", String::from_utf8_lossy(&node.stderr));
                return None;
            }
            rig.nodes.push(PathBuf::from(String::from_utf8(node.stdout).unwrap().trim()));
            fs::create_dir(rig.place(host)).unwrap();
        }
        Some(rig)
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    fn node(&self, host: usize) -> &Path {
        &self.nodes[host - 1]
    }

    fn place(&self, host: usize) -> PathBuf {
        self.directory.path().join(format!("host{host}"))
    }

    fn log(&self, host: usize) -> String {
        fs::read_to_string(self.directory.path().join(format!("log{host}"))).unwrap_or_default()
    }

    fn mount(&self, host: usize) -> Output {
        self.mount_with(host, "rw")
    }

    fn mount_with(&self, host: usize, option: &str) -> Output {
        let log = self.directory.path().join(format!("log{host}"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_mount-avfs"));
        command.arg(self.node(host)).arg(self.place(host));
        command.arg("-o").arg(format!("cache_size=64M,log={},{option}", log.display())).output().unwrap()
    }

    fn umount(&self, host: usize) -> Output {
        Command::new(env!("CARGO_BIN_EXE_umount-avfs")).arg(self.place(host)).output().unwrap()
    }

    fn fsck(&self, mode: &str, device: &Path) -> Output {
        Command::new(env!("CARGO_BIN_EXE_fsck-avfs")).arg(mode).arg(device).output().unwrap()
    }

    fn daemon(&self, host: usize) -> Pid {
        let mut command = Command::new(env!("CARGO_BIN_EXE_avfsctl"));
        let output = command.args(["info", "--json"]).arg(self.place(host)).output().unwrap();
        let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let daemon = Pid::from_raw(i32::try_from(info["process"].as_i64().unwrap()).unwrap()).unwrap();
        self.daemons.borrow_mut().push(daemon);
        daemon
    }

    /// How often a mount of this host has watched a block that was not given back.
    fn watched(&self, host: usize) -> usize {
        self.log(host).matches("watching whether it is still in use").count()
    }

    /// What the protection block says, as the image has it: it changes with each renewal.
    fn sequence(&self) -> u64 {
        let mut sequence = [0; 8];
        File::open(self.image()).unwrap().read_exact_at(&mut sequence, MMP + 32).unwrap();
        u64::from_le_bytes(sequence)
    }

    /// Returns half a second after a renewal, and so long before the next.
    fn wait_for_renewal(&self) {
        let before = self.sequence();
        while self.sequence() == before {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // What a test that failed has left. Nothing that hangs is asked, or waited for.
        let below = self.directory.path().as_os_str().as_bytes();
        for &daemon in &*self.daemons.borrow() {
            let command = fs::read(format!("/proc/{}/cmdline", daemon.as_raw_nonzero())).unwrap_or_default();
            if command.windows(below.len()).any(|part| part == below) {
                let _ = kill_process(daemon, Signal::KILL);
            }
        }
        for host in [1, 2] {
            while is_mounted(&self.place(host)) {
                if unmount(self.place(host), UnmountFlags::FORCE | UnmountFlags::DETACH).is_err() {
                    break;
                }
            }
        }
        for node in &self.nodes {
            for _ in 0..100 {
                let detached = Command::new("losetup").arg("--detach").arg(node).output();
                if detached.is_ok_and(|output| output.status.success()) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Without touching it.
fn is_mounted(place: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == place.to_str())
}

/// A client that writes films, one after the other, and makes each durable, until that fails. A process of its own: one that holds open
/// files of a daemon that hangs starts no other, because the child that is to become that closes them, and waits for the daemon.
struct Client(Child);

impl Client {
    fn write(path: &Path) -> Self {
        let script = r#"while dd if=/dev/zero of="$0" bs=1M count=16 conv=notrunc,fsync; do :; done"#;
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(path).env("LC_ALL", "C").stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// Whether it has ended within a minute.
    fn ends(&mut self) -> bool {
        (0..3000).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            self.0.try_wait().unwrap().is_some()
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // One that waits in the kernel ends when its mount does.
        let _ = self.0.kill();
    }
}

/// Writes a film of one byte, and makes it durable.
fn film(path: &Path, byte: u8) -> std::io::Result<()> {
    let mut film = File::create(path)?;
    for _ in 0..16 {
        film.write_all(&[byte; 1 << 20])?;
    }
    film.sync_all()
}

/// Both mounted it, through two paths to one device, within a quarter of a second: host and boot were those of the dead predecessor.
/// What one of them had synced was gone, and nothing said so.
#[test]
fn a_volume_is_had_once_by_whatever_name() {
    let Some(rig) = Rig::new() else { return };
    succeed(rig.mount(1));
    let holder = format!("in use by process {} on host", rig.daemon(1).as_raw_nonzero());
    refuse(rig.mount(2), 32, &holder);
    let image = rig.image();
    for device in [rig.node(2), &image] {
        for mode in ["-n", "-p", "-y"] {
            refuse(rig.fsck(mode, device), 8, &holder);
        }
        let mkfs = Command::new(env!("CARGO_BIN_EXE_mkfs-avfs")).arg("--force").arg(device).output();
        refuse(mkfs.unwrap(), 1, &holder);
    }
    film(&rig.place(1).join("film"), 1).unwrap();
    succeed(rig.umount(1));
    // Given back, it is everybody's, at once.
    let watched = rig.watched(2);
    succeed(rig.mount(2));
    assert_eq!(rig.watched(2), watched, "{}", rig.log(2));
    assert!(fs::read(rig.place(2).join("film")).unwrap() == vec![1; 16 << 20]);
    succeed(rig.umount(2));
}

/// The writes of a host that had halted went to the device when it woke: its fsyncs and its unmount succeeded, and films of its
/// successor held its bytes.
#[test]
fn a_host_that_halted_writes_nothing_over_its_successor() {
    let Some(rig) = Rig::new() else { return };
    succeed(rig.mount(1));
    film(&rig.place(1).join("before"), 7).unwrap();
    let daemon = rig.daemon(1);
    let client = |number| Client::write(&rig.place(1).join(format!("busy{number}")));
    let mut clients = [client(1), client(2), client(3)];
    // They are at it.
    while !(1..4).all(|number| rig.place(1).join(format!("busy{number}")).exists()) {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(500));
    kill_process(daemon, Signal::STOP).unwrap();
    let start = Instant::now();
    succeed(rig.mount(2));
    assert!(start.elapsed() > Duration::from_secs(8), "it was not watched: {:?}", start.elapsed());
    film(&rig.place(2).join("after0"), 2).unwrap();
    kill_process(daemon, Signal::CONT).unwrap();
    for number in 1..4 {
        assert_eq!(
            film(&rig.place(1).join("late"), 1).unwrap_err().raw_os_error(),
            Some(5),
            "clients hear EIO"
        );
        film(&rig.place(2).join(format!("after{number}")), 2).unwrap();
    }
    for refused in [film(&rig.place(1).join("late"), 1), fs::read(rig.place(1).join("before")).map(drop)] {
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(5));
    }
    for client in &mut clients {
        assert!(client.ends(), "a client goes on");
    }
    refuse(rig.umount(1), 32, "has taken it");
    let said = rig.log(1);
    let lost = said.lines().filter(|line| line.contains("the lease on the volume is lost")).count();
    assert_eq!(lost, 1, "{said}");
    succeed(rig.umount(2));
    let checked = rig.fsck("-n", rig.node(2));
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    succeed(rig.mount(2));
    for number in 0..4 {
        let found = fs::read(rig.place(2).join(format!("after{number}"))).unwrap();
        let foreign = found.iter().filter(|&&byte| byte != 2).count();
        assert_eq!((found.len(), foreign), (16 << 20, 0), "after{number}");
    }
    assert!(fs::read(rig.place(2).join("before")).unwrap() == vec![7; 16 << 20]);
    succeed(rig.umount(2));
}

/// A device, or a process, that does nothing for some time is no reason to lose a volume that nobody else wants.
#[test]
fn a_host_that_halted_goes_on_when_nobody_has_had_the_volume() {
    let Some(rig) = Rig::new() else { return };
    succeed(rig.mount(1));
    film(&rig.place(1).join("before"), 1).unwrap();
    let daemon = rig.daemon(1);
    // In a renewal it is unlucky, and gives up: that is some milliseconds of two seconds.
    rig.wait_for_renewal();
    kill_process(daemon, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_secs(9));
    kill_process(daemon, Signal::CONT).unwrap();
    film(&rig.place(1).join("after"), 2).unwrap();
    assert!(rig.log(1).contains("is taken again"), "{}", rig.log(1));
    succeed(rig.umount(1));
    succeed(rig.mount(1));
    assert!(fs::read(rig.place(1).join("after")).unwrap() == vec![2; 16 << 20]);
    succeed(rig.umount(1));
}

/// After a crash of the daemon its clients wait for the next one.
#[test]
fn a_volume_whose_daemon_was_killed_is_there_again_at_once() {
    let Some(rig) = Rig::new() else { return };
    let mut watched = Vec::new();
    for _ in 0..3 {
        succeed(rig.mount(1));
        OpenOptions::new().create(true).append(true).open(rig.place(1).join("file")).unwrap();
        kill_process(rig.daemon(1), Signal::KILL).unwrap();
        unmount(rig.place(1), UnmountFlags::DETACH).unwrap();
        let before = rig.watched(1);
        succeed(rig.mount(1));
        watched.push(rig.watched(1) > before);
        succeed(rig.umount(1));
    }
    // What the kernel closes for a process that was killed it closes some time later.
    assert!(watched.contains(&false), "{}", rig.log(1));
    // Through another node nothing shows that the holder is dead.
    succeed(rig.mount(1));
    kill_process(rig.daemon(1), Signal::KILL).unwrap();
    unmount(rig.place(1), UnmountFlags::DETACH).unwrap();
    let start = Instant::now();
    succeed(rig.mount(2));
    assert!(start.elapsed() > Duration::from_secs(8), "{:?}", start.elapsed());
    succeed(rig.umount(2));
}

/// A cluster had switched the other host off, and waited for 11 s all the same, which was most of a take-over.
#[test]
fn a_volume_whose_holder_was_fenced_is_had_sooner() {
    let Some(rig) = Rig::new() else { return };
    let holder = || {
        let output =
            Command::new(env!("CARGO_BIN_EXE_avfsctl")).arg("holder").arg(rig.node(2)).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        said.lines()
            .find_map(|line| line.strip_prefix("holder   "))
            .unwrap_or_else(|| panic!("{said}"))
            .to_owned()
    };
    assert_eq!(holder(), "none");
    succeed(rig.mount(1));
    film(&rig.place(1).join("film"), 1).unwrap();
    let first = holder();
    // Of one that lives it is a mistake.
    rig.wait_for_renewal();
    refuse(rig.mount_with(2, &format!("fenced={first}")), 32, "in use by process");
    kill_process(rig.daemon(1), Signal::KILL).unwrap();
    unmount(rig.place(1), UnmountFlags::DETACH).unwrap();
    let start = Instant::now();
    succeed(rig.mount_with(2, &format!("fenced={first}")));
    let took = start.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(9)).contains(&took), "{took:?}");
    assert!(fs::read(rig.place(2).join("film")).unwrap() == vec![1; 16 << 20]);
    assert_ne!(holder(), first);
    // What was said of one holder says nothing of the next.
    kill_process(rig.daemon(2), Signal::KILL).unwrap();
    unmount(rig.place(2), UnmountFlags::DETACH).unwrap();
    let start = Instant::now();
    succeed(rig.mount_with(1, &format!("fenced={first}")));
    assert!(start.elapsed() > Duration::from_secs(8), "{:?}", start.elapsed());
    succeed(rig.umount(1));
}

/// It would be absurd to lose a volume by one's own work. `LEASE_LOAD_SECONDS` is for the recipe `two-hosts`.
#[test]
fn a_busy_device_does_not_cost_the_lease() {
    let Some(rig) = Rig::new() else { return };
    let seconds =
        std::env::var("LEASE_LOAD_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(5);
    succeed(rig.mount(1));
    let end = Instant::now() + Duration::from_secs(seconds);
    let written: u64 = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let path = rig.place(1).join(format!("busy{writer}"));
                scope.spawn(move || {
                    let busy = File::create(path).unwrap();
                    let mut written = 0;
                    while Instant::now() < end {
                        busy.write_all_at(&[1; 1 << 20], written % (64 << 20)).unwrap();
                        written += 1 << 20;
                        if written % (256 << 20) == 0 {
                            busy.sync_all().unwrap();
                        }
                    }
                    written
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    println!("{} MiB in {seconds} s, and the lease was held", written >> 20);
    let said = rig.log(1);
    assert!(!said.contains("lease"), "{said}");
    succeed(rig.umount(1));
}
