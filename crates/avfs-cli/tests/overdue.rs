//! A device that hangs is seen in the log: which request waits, of what and for which process. Without root or `/dev/fuse` the
//! test says so and ends.

mod common;

use avfs_lab::lun::{Lun, LunOptions, REACTION};
use rtsched_sim::device::{DeviceSpec, ModelSpec};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use units::Bytes;

/// What a command of the device takes while it hangs.
const HANG_US: f64 = 3_000_000.0;
/// Whatever is waited for comes long before, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// Unmounts, whatever becomes of the test.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The first line of a log with all of these words, once it is there.
fn line_with(log: &Path, words: &[&str]) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let text = fs::read_to_string(log).unwrap_or_default();
        if let Some(line) = text.lines().find(|line| words.iter().all(|word| line.contains(word))) {
            return line.to_owned();
        }
        assert!(Instant::now() < end, "the log has no line with {words:?}:\n{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// When a whole volume hung, its log said nothing.
#[test]
fn a_request_that_hangs_is_named() {
    if !common::can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let size = Bytes::from_mib(512);
    let mut spec = DeviceSpec::named("nvme").unwrap();
    let ModelSpec::Flash(flash) = &mut spec.model else { panic!("it has an arm") };
    (flash.read_us, flash.write_us) = (HANG_US, HANG_US);
    let backing = Some(path("data"));
    let options = LunOptions { spec, size, backing, memory: size, log: None, seed: 1, reaction: REACTION };
    fs::create_dir(path("device")).unwrap();
    let _device = Lun::mount(&options, &path("device")).unwrap();
    let hangs = |hangs: bool| {
        fs::write(path("device/control"), if hangs { "modelled" } else { "fast" }).unwrap();
    };
    hangs(false);
    fs::create_dir(path("mount")).unwrap();
    fs::write(path("avfs.toml"), "[requests]\noverdue = \"300 ms\"\n").unwrap();
    run(Command::new(env!("CARGO_BIN_EXE_mkfs-avfs")).arg(path("device/lun")));
    let mount = || {
        let settings = [("config", path("avfs.toml")), ("log", path("log"))];
        let settings: Vec<_> =
            settings.iter().map(|(name, value)| format!("{name}={}", value.display())).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_mount-avfs"));
        command.arg(path("device/lun")).arg(path("mount"));
        run(command.args(["-o", "cache_size=64M", "-o", &settings.join(",")]));
        Mounted(path("mount"))
    };
    let umount = |mounted: Mounted| {
        run(Command::new(env!("CARGO_BIN_EXE_umount-avfs")).arg(&mounted.0));
        std::mem::forget(mounted);
    };
    let mounted = mount();
    fs::write(path("mount/film"), vec![7; 4 << 20]).unwrap();
    umount(mounted);

    // Nothing of it is in memory now.
    let mounted = mount();
    let mut film = File::open(path("mount/film")).unwrap();
    let node = film.metadata().unwrap().ino();
    hangs(true);
    let reading = std::thread::spawn(move || {
        let mut bytes = vec![0; 4096];
        film.read_exact(&mut bytes).map(|()| bytes)
    });
    let node = format!("node={node} ");
    let named = ["request=\"READ\"", &node];
    line_with(&path("log"), &[&named[..], &["a request is not answered"]].concat());
    hangs(false);
    assert_eq!(reading.join().unwrap().unwrap(), [7; 4096]);
    line_with(&path("log"), &[&named[..], &["answered after all"]].concat());
    let text = fs::read_to_string(path("log")).unwrap();
    let told = text.lines().filter(|line| line.contains("is not answered") && line.contains(&node));
    let told: Vec<_> = told.collect();
    assert!(told.len() == 1 && told[0].contains("process=") && told[0].contains("seconds="), "{text}");
    umount(mounted);
}
