//! Small files that are mapped, read through the page cache, written past it, truncated and punched at once, by processes of
//! their own, on a real mount. Every process looks at what it and the others were told is written. Without root or `/dev/fuse`
//! each test says so and ends.
//!
//! Once a store through a mapping hung the volume for good: the kernel wrote a page back, and the answer waited until the kernel
//! had dropped that page. What hangs here is let go through fusectl, and the test fails.

mod common;

use memmap2::{MmapMut, MmapOptions};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// Of a file, each of which belongs to one role.
const PAGES: usize = 16;
/// From this page on a file belongs to the role that truncates.
const TAIL: usize = 12;
const FILES: usize = 24;
const ROUNDS: u64 = 800;
/// Within this time a run that takes seconds has ended, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(150);

/// A mounted volume; whatever becomes of the test, it is unmounted.
struct Rig {
    directory: tempfile::TempDir,
    mounted: bool,
}

impl Rig {
    /// `None`, with the reason printed, where nothing can be mounted.
    fn new(transport: &str) -> Option<Self> {
        if !common::can_mount() {
            return None;
        }
        if transport == "ring"
            && let Err(error) = avfs_fuse::enable_rings()
        {
            eprintln!("not tested: {error}");
            return None;
        }
        let mut rig = Self { directory: tempfile::tempdir().unwrap(), mounted: false };
        fs::create_dir(rig.mount_point()).unwrap();
        fs::create_dir(rig.connections()).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", rig.connections(), "fusectl", flags, None).unwrap();
        rig.run(Command::new(env!("CARGO_BIN_EXE_mkfs-avfs")).args(["--size", "512M"]).arg(rig.image()));
        rig.mount(transport);
        Some(rig)
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    fn mount_point(&self) -> PathBuf {
        self.directory.path().join("mount")
    }

    /// Where the kernel shows its FUSE connections.
    fn connections(&self) -> PathBuf {
        self.directory.path().join("connections")
    }

    fn run(&self, command: &mut Command) {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn mount(&mut self, transport: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mount-avfs"));
        command.arg(self.image()).arg(self.mount_point());
        self.run(command.args(["-o", &format!("cache_size=64M,transport={transport}")]));
        self.mounted = true;
    }

    fn umount(&mut self) {
        self.run(Command::new(env!("CARGO_BIN_EXE_umount-avfs")).arg(self.mount_point()));
        self.mounted = false;
    }

    /// Ends the connection: what waits for the volume gets an error.
    fn abort(&self) {
        // Of the mount point itself the kernel has the attributes; a request could hang.
        let Ok(device) = fs::metadata(self.mount_point()).map(|metadata| metadata.dev()) else { return };
        let abort = self.connections().join(rustix::fs::minor(device).to_string()).join("abort");
        if let Err(error) = fs::write(&abort, "1") {
            eprintln!("{}: {error}", abort.display());
        }
    }

    /// Waits for processes, at most as long as they may take. What hangs is let go, and the test fails.
    fn wait_for(&self, mut children: Vec<(String, Child)>) {
        let end = Instant::now() + PATIENCE;
        let mut failed = Vec::new();
        while !children.is_empty() {
            children.retain_mut(|(name, child)| match child.try_wait().unwrap() {
                Some(status) if status.success() => false,
                Some(status) => {
                    failed.push(format!("{name}: {status}"));
                    false
                }
                None => true,
            });
            if Instant::now() > end {
                let hanging: Vec<_> = children.iter().map(|(name, _)| name.as_str()).collect();
                failed.push(format!("{} hang", hanging.join(", ")));
                self.abort();
                for (_, child) in &mut children {
                    let _ = child.kill();
                    let _ = child.wait();
                }
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(failed.is_empty(), "{failed:?}");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.connections(), rustix::mount::UnmountFlags::DETACH);
        if self.mounted {
            let _ = rustix::mount::unmount(self.mount_point(), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Which version of each page was acknowledged last, for all processes to see; 0: none is promised.
struct Acknowledged(MmapMut);

impl Acknowledged {
    fn open(path: &Path) -> Self {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        file.set_len((FILES * PAGES * size_of::<u64>()) as u64).unwrap();
        // SAFETY: a file of this test alone, never truncated; all access is by atomics.
        Self(unsafe { MmapMut::map_mut(&file) }.unwrap())
    }

    fn of(&self, file: usize, page: usize) -> &AtomicU64 {
        let (before, words, after) = {
            // SAFETY: any bytes are an AtomicU64; the mapping begins a page and nothing else looks at it otherwise.
            unsafe { self.0.align_to::<AtomicU64>() }
        };
        assert!(before.is_empty() && after.is_empty());
        &words[file * PAGES + page]
    }
}

/// What a page holds: in each word file, page and version, so that nothing of another place or time passes for it.
fn word(file: usize, page: usize, version: u64) -> u64 {
    (file as u64) << 48 | (page as u64) << 40 | version
}

fn content(file: usize, page: usize, version: u64) -> Vec<u8> {
    word(file, page, version).to_le_bytes().repeat(PAGE / 8)
}

/// The oldest version that a page has; 0 if some of it was never written.
fn oldest(bytes: &[u8], file: usize, page: usize) -> u64 {
    let versions = bytes.chunks_exact(8).map(|chunk| {
        let found = u64::from_le_bytes(chunk.try_into().unwrap());
        assert!(
            found == 0 || found >> 40 == word(file, page, 0) >> 40,
            "file {file} page {page} holds {found:#x}"
        );
        found & 0xff_ffff_ffff
    });
    versions.min().unwrap()
}

/// One process of the stress.
struct Worker {
    directory: PathBuf,
    acknowledged: Acknowledged,
    random: u64,
}

impl Worker {
    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % end as u64) as usize
    }

    fn path(&self, file: usize) -> PathBuf {
        self.directory.join(format!("file{file}"))
    }

    fn read_only(&self, file: usize) -> File {
        File::open(self.path(file)).unwrap()
    }

    fn for_both(&self, file: usize, flags: i32) -> File {
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(self.path(file)).unwrap()
    }

    /// What was just written must be there for whoever opens the file.
    fn check(&self, file: usize, page: usize, version: u64, mapped: bool) {
        let opened = self.read_only(file);
        let mut bytes = vec![0; PAGE];
        if mapped {
            // SAFETY: the first `TAIL` pages are never truncated; what others write into a page meanwhile is bytes.
            let map = unsafe { MmapOptions::new().len(TAIL * PAGE).map(&opened) }.unwrap();
            bytes.copy_from_slice(&map[page * PAGE..][..PAGE]);
        } else {
            opened.read_exact_at(&mut bytes, (page * PAGE) as u64).unwrap();
        }
        let expected = if version == 0 { vec![0; PAGE] } else { content(file, page, version) };
        let oldest = oldest(&bytes, file, page);
        assert!(bytes == expected, "file {file} page {page}: version {oldest} after {version} was written");
    }

    /// Stores through a mapping, and leaves it by msync, munmap or exit.
    fn map(&mut self, version: u64) {
        let (file, page) = (self.below(FILES), self.below(TAIL / 4) * 4);
        let opened = self.for_both(file, 0);
        // SAFETY: as in `check`.
        let mut map = unsafe { MmapOptions::new().len(TAIL * PAGE).map_mut(&opened) }.unwrap();
        map[page * PAGE..][..PAGE].copy_from_slice(&content(file, page, version));
        match self.below(4) {
            0 => map.flush().unwrap(),
            1 => drop(map),
            2 => {
                drop(opened);
                self.acknowledged.of(file, page).store(version, Ordering::SeqCst);
                self.check(file, page, version, false);
                drop(map);
            }
            _ => opened.sync_all().unwrap(),
        }
        self.acknowledged.of(file, page).store(version, Ordering::SeqCst);
        let mapped = self.below(2) == 0;
        self.check(file, page, version, mapped);
    }

    /// Writes by write(2), through the page cache where others have the file open through it.
    fn write(&mut self, version: u64) {
        let (file, page) = (self.below(FILES), self.below(TAIL / 4) * 4 + 1);
        let through_pages = (self.below(2) == 0).then(|| self.read_only(file));
        let opened = OpenOptions::new().write(true).open(self.path(file)).unwrap();
        opened.write_all_at(&content(file, page, version), (page * PAGE) as u64).unwrap();
        self.acknowledged.of(file, page).store(version, Ordering::SeqCst);
        let mapped = self.below(2) == 0;
        self.check(file, page, version, mapped);
        drop(through_pages);
    }

    /// Punches a hole, and fills it with O_DIRECT.
    fn punch(&mut self, version: u64) {
        let (file, page) = (self.below(FILES), self.below(TAIL / 4) * 4 + 2);
        let flags = if self.below(2) == 0 { libc::O_DIRECT } else { 0 };
        let opened = self.for_both(file, flags);
        let at = (page * PAGE) as u64;
        self.acknowledged.of(file, page).store(0, Ordering::SeqCst);
        let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&opened, mode, at, PAGE as u64).unwrap();
        let mapped = self.below(2) == 0;
        self.check(file, page, 0, mapped);
        // O_DIRECT wants memory that begins a page.
        let mut aligned = MmapMut::map_anon(PAGE).unwrap();
        aligned.copy_from_slice(&content(file, page, version));
        opened.write_all_at(&aligned, at).unwrap();
        self.acknowledged.of(file, page).store(version, Ordering::SeqCst);
        self.check(file, page, version, !mapped);
    }

    /// Cuts the end off and makes it anew.
    fn truncate(&mut self, version: u64) {
        let (file, cut) = (self.below(FILES), TAIL * PAGE + self.below(PAGE));
        let opened = self.for_both(file, 0);
        opened.set_len(cut as u64).unwrap();
        opened.set_len((PAGES * PAGE) as u64).unwrap();
        let mut bytes = vec![1; PAGE];
        self.read_only(file).read_exact_at(&mut bytes, ((TAIL + 1) * PAGE) as u64).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0), "what was cut off file {file} came back");
        for page in TAIL..PAGES {
            opened.write_all_at(&content(file, page, version), (page * PAGE) as u64).unwrap();
        }
        self.read_only(file).read_exact_at(&mut bytes, ((TAIL + 1) * PAGE) as u64).unwrap();
        assert!(bytes == content(file, TAIL + 1, version), "file {file}: the new end is not there");
    }

    /// Reads all of a file as whoever opens it would, and finds nothing older than what was acknowledged before.
    fn read(&mut self) {
        let file = self.below(FILES);
        let before: Vec<_> =
            (0..TAIL).map(|page| self.acknowledged.of(file, page).load(Ordering::SeqCst)).collect();
        let opened = self.read_only(file);
        let mut bytes = vec![0; TAIL * PAGE];
        opened.read_exact_at(&mut bytes, 0).unwrap();
        for (page, before) in before.into_iter().enumerate() {
            let found = oldest(&bytes[page * PAGE..][..PAGE], file, page);
            // A hole may have been punched meanwhile.
            let after = self.acknowledged.of(file, page).load(Ordering::SeqCst);
            assert!(
                found >= before || after != before,
                "file {file} page {page}: version {found} was read after {before} had been written"
            );
        }
    }

    fn run(&mut self, role: &str) {
        for version in 1..=ROUNDS {
            match role {
                "map" => self.map(version),
                "write" => self.write(version),
                "punch" => self.punch(version),
                "truncate" => self.truncate(version),
                _ => self.read(),
            }
        }
    }
}

/// A process of the stress when the variables say so, and else nothing.
#[test]
fn worker() {
    let Ok(role) = std::env::var("AVFS_STRESS_ROLE") else { return };
    let directory = PathBuf::from(std::env::var("AVFS_STRESS_DIRECTORY").unwrap());
    let acknowledged = Acknowledged::open(Path::new(&std::env::var("AVFS_STRESS_TABLE").unwrap()));
    let seed = role.bytes().fold(0x9e37_79b9, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte));
    Worker { directory, acknowledged, random: seed }.run(&role);
}

fn start(rig: &Rig, role: &str) -> (String, Child) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker", "--nocapture"])
        .env("AVFS_STRESS_ROLE", role)
        .env("AVFS_STRESS_DIRECTORY", rig.mount_point())
        .env("AVFS_STRESS_TABLE", rig.directory.path().join("table"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    (role.to_owned(), child)
}

fn stress(transport: &str) {
    let Some(mut rig) = Rig::new(transport) else { return };
    for file in 0..FILES {
        fs::write(rig.mount_point().join(format!("file{file}")), vec![0; PAGES * PAGE]).unwrap();
    }
    let acknowledged = Acknowledged::open(&rig.directory.path().join("table"));
    let began = Instant::now();
    let roles = ["map", "write", "punch", "truncate", "read", "read again"];
    rig.wait_for(roles.iter().map(|role| start(&rig, role)).collect());
    eprintln!("{} rounds over {FILES} files in {:?}", ROUNDS * roles.len() as u64, began.elapsed());

    // What was acknowledged is there, before and after an unmount.
    for _ in 0..2 {
        for file in 0..FILES {
            let bytes = fs::read(rig.mount_point().join(format!("file{file}"))).unwrap();
            assert_eq!(bytes.len(), PAGES * PAGE);
            for page in 0..TAIL {
                let version = acknowledged.of(file, page).load(Ordering::SeqCst);
                let expected = if version == 0 { vec![0; PAGE] } else { content(file, page, version) };
                assert!(
                    bytes[page * PAGE..][..PAGE] == expected,
                    "file {file} page {page} is not version {version}"
                );
            }
        }
        rig.umount();
        rig.mount(transport);
    }
    rig.umount();
    rig.run(Command::new(env!("CARGO_BIN_EXE_fsck-avfs")).arg("-n").arg(rig.image()));
}

#[test]
fn mapped_cached_direct_truncated_and_punched_at_once() {
    stress("device");
}

#[test]
fn the_same_through_rings() {
    stress("ring");
}

/// Four ways to end a store through a mapping of a file that was read before: each hung.
#[test]
fn what_was_read_can_be_stored_to_through_a_mapping() -> io::Result<()> {
    let Some(rig) = Rig::new("device") else { return Ok(()) };
    let path = rig.mount_point().join("file0");
    for role in ["msync", "munmap", "shorten", "exit"] {
        fs::write(&path, vec![0; 100_000])?;
        fs::read(&path)?;
        let child = Command::new(std::env::current_exe()?)
            .args(["--exact", "store"])
            .env("AVFS_STORE", role)
            .env("AVFS_STRESS_DIRECTORY", &path)
            .stdout(Stdio::null())
            .spawn()?;
        rig.wait_for(vec![(role.to_owned(), child)]);
        assert_eq!(fs::read(&path)?[5000..5005], *b"hello", "{role}");
    }
    Ok(())
}

/// A process of the test above when the variables say so, and else nothing.
#[test]
fn store() {
    let Ok(role) = std::env::var("AVFS_STORE") else { return };
    let path = std::env::var("AVFS_STRESS_DIRECTORY").unwrap();
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    // SAFETY: it is never shorter than what is stored to, and no other process stores to it.
    let mut map = unsafe { MmapMut::map_mut(&file) }.unwrap();
    map[5000..5005].copy_from_slice(b"hello");
    match &*role {
        "msync" => map.flush().unwrap(),
        "munmap" => {
            drop(map);
            file.sync_all().unwrap();
        }
        "shorten" => file.set_len(6000).unwrap(),
        _ => std::process::exit(0),
    }
}
