//! What an administrator sees and changes of volumes that are mounted and used: what commands say is what happened.

mod common;

use common::{Alone, comes_to_hold, ctl, json, refuse, say, succeed, text};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// A directory with volumes in image files.
struct Rig {
    directory: tempfile::TempDir,
    _alone: Alone,
}

impl Rig {
    fn new() -> Option<Self> {
        let alone = Alone::to_mount()?;
        let rig = Self { directory: tempfile::tempdir().unwrap(), _alone: alone };
        fs::set_permissions(rig.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(rig.path("config"), "").unwrap();
        Some(rig)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes a volume in the image `name`, called `label`.
    fn make(&self, name: &str, label: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mkfs-avfs"));
        command.args(["--size", "1G", "--label", label]).arg(self.path(&format!("{name}.image")));
        succeed(command.output().unwrap());
        fs::create_dir(self.path(name)).unwrap();
    }

    fn try_mount(&self, name: &str, options: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mount-avfs"));
        command.arg(self.path(&format!("{name}.image"))).arg(self.path(name));
        command.env("STATE_DIRECTORY", self.path("state")).args(["-o", "transport=device,cache_size=128M"]);
        command.arg("-o").arg(format!("config={}", self.path("config").display()));
        command.arg("-o").arg(format!("log={}", self.path(&format!("{name}.log")).display()));
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        command.output().unwrap()
    }

    /// With no size of the cache but that of these options.
    fn try_mount_again(&self, name: &str, options: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mount-avfs"));
        command.arg(self.path(&format!("{name}.image"))).arg(self.path(name)).args(["-o", options]);
        command.arg("-o").arg(format!("config={}", self.path("config").display()));
        command.env("STATE_DIRECTORY", self.path("state")).output().unwrap()
    }

    fn mounted(name: &str) -> Option<Self> {
        let rig = Self::new()?;
        rig.make(name, name);
        succeed(rig.try_mount(name, ""));
        Some(rig)
    }

    fn umount(&self, name: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_umount-avfs")).arg(self.path(name)).output().unwrap()
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
    }

    fn info(&self, name: &str) -> Value {
        json(&["info", "--json", text(&self.path(name))])
    }

    fn daemon(&self, name: &str) -> rustix::process::Pid {
        let process = self.info(name)["process"].as_i64().unwrap();
        rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap()
    }

    fn socket(&self, name: &str) -> PathBuf {
        let device = fs::metadata(self.path(name)).unwrap().dev();
        Path::new("/run/avfs").join(format!("{}:{}.sock", libc::major(device), libc::minor(device)))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.directory.path()).unwrap().flatten() {
            // Only what is mounted can be.
            let _ = rustix::mount::unmount(entry.path(), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Writes and reads files of a directory until it is dropped.
struct Load {
    stop: std::sync::Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<u64>>,
}

impl Load {
    fn on(directory: &Path) -> Self {
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let work = |number: usize| {
            let (stop, path) = (std::sync::Arc::clone(&stop), directory.join(format!("load {number}")));
            std::thread::spawn(move || {
                let (mut bytes, mut moved) = (vec![number as u8; MIB], 0);
                while !stop.load(Ordering::Relaxed) {
                    let file = File::options()
                        .read(true)
                        .write(true)
                        .create(true)
                        .truncate(true)
                        .open(&path)
                        .unwrap();
                    for piece in 0..16 {
                        file.write_all_at(&bytes, piece * MIB as u64).unwrap();
                    }
                    for piece in 0..16 {
                        file.read_exact_at(&mut bytes, piece * MIB as u64).unwrap();
                    }
                    moved += 16;
                }
                moved
            })
        };
        let threads = (0..3).map(work).collect();
        Self { stop, threads }
    }

    /// MiB that were written.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    }
}

#[test]
fn volumes_are_listed_and_named_by_path_device_label_and_uuid() {
    let Some(rig) = Rig::new() else { return };
    let began = Instant::now();
    for name in ["one", "two"] {
        rig.make(name, name);
        succeed(rig.try_mount(name, if name == "two" { "ro" } else { "" }));
    }
    let (own, device) = (rig.path("one"), rig.path("one.image"));
    let load = Load::on(&own);
    let info = rig.info("one");
    let uuid = info["volume"]["uuid"].as_str().unwrap();
    let (of_label, of_uuid) = ("LABEL=one".to_owned(), format!("UUID={uuid}"));
    let upper = uuid.to_uppercase();
    let names = [text(&own), text(&device), &of_label, &of_uuid, "one", uuid, &upper];
    for name in names {
        for command in
            [&["info", "--json"][..], &["streams", "--json"], &["frag", "--json"], &["events", "--json"]]
        {
            let said = json(&[command, &[name]].concat());
            assert!(said.is_object() || said.is_array(), "{command:?} {name}: {said}");
        }
        assert_eq!(json(&["info", "--json", name])["volume"]["uuid"], *uuid, "{name}");
        assert_eq!(say(&["label", name]), "one\n");
        for command in [&["sync"][..], &["top", "--once"], &["why"]] {
            say(&[command, &[name]].concat());
        }
    }

    let listed = json(&["list", "--json"]);
    let of = |label: &str| {
        let is_it = |volume: &&Value| {
            volume["mounted_on"].as_str() == Some(text(&rig.path(label))) && volume["label"] == label
        };
        listed.as_array().unwrap().iter().find(is_it).cloned().unwrap_or_else(|| panic!("{label}: {listed}"))
    };
    let (one, two) = (of("one"), of("two"));
    assert_eq!((&one["uuid"], &one["device"]), (&Value::from(uuid), &Value::from(text(&device))));
    assert_eq!((&one["read_only"], &two["read_only"]), (&Value::from(false), &Value::from(true)));
    assert_eq!(one["options"]["cache_bytes"], 128 << 20);
    assert_eq!(one["options"]["config"], text(&rig.path("config")));
    assert!(one["daemon_version"].as_str().unwrap().starts_with(env!("CARGO_PKG_VERSION")), "{one}");
    assert_eq!(one["process"], info["process"]);
    assert!(one["uptime_seconds"].as_u64().unwrap() <= began.elapsed().as_secs(), "{one}");
    let shown = say(&["list"]);
    assert!(shown.contains(text(&device)) && shown.contains("ro,cache_size=128MiB"), "{shown}");

    refuse(ctl(&["info", "three"]), 1, "three: neither a path nor the label or UUID of a volume");
    refuse(ctl(&["info", "LABEL=three"]), 1, "LABEL=three: neither a path nor");
    refuse(ctl(&["info", "/proc"]), 1, "no AVFS volume is mounted there");
    // The label while others work, and what is called the same then.
    assert_eq!(say(&["label", text(&own), "two"]), "");
    refuse(ctl(&["info", "two"]), 1, "2 volumes that are mounted here have the label two");
    refuse(ctl(&["label", text(&rig.path("two")), "x"]), 1, "read-only");
    refuse(
        ctl(&["label", text(&own), &"x".repeat(64)]),
        1,
        "a label has at most 63 bytes, and this one has 64",
    );
    assert!(load.end() > 0);
    succeed(rig.umount("one"));
    succeed(rig.try_mount("one", ""));
    assert_eq!(rig.info("one")["volume"]["label"], "two", "the label is durable");
}

/// Free bytes by statfs(2).
fn free(path: &Path) -> u64 {
    let found = rustix::fs::statvfs(path).unwrap();
    found.f_bfree * found.f_frsize
}

#[test]
fn free_space_is_shown_as_it_is_cut_and_how_long_it_lasts() {
    let Some(rig) = Rig::new() else { return };
    rig.make("cut", "cut");
    // What there was two days ago, as the daemon keeps it.
    succeed(rig.try_mount("cut", ""));
    let uuid = rig.info("cut")["volume"]["uuid"].as_str().unwrap().to_owned();
    succeed(rig.umount("cut"));
    fs::create_dir_all(rig.path("state")).unwrap();
    let then = jiff::Timestamp::now().as_millisecond() - 2 * 86_400_000;
    let sample = format!(r#"{{"at_milliseconds":{then},"free_bytes":0,"long_bytes":{}}}"#, 4_u64 << 30);
    fs::write(rig.path("state").join(format!("{uuid}.space")), format!("{sample}\nnonsense\n")).unwrap();
    succeed(rig.try_mount("cut", ""));

    let mount = rig.path("cut");
    let load = Load::on(&mount);
    let busy = json(&["frag", "--json", text(&mount)]);
    assert_eq!(busy[0]["version"], 1);
    load.end();
    // Holes: every second of many files goes.
    for number in 0..400 {
        fs::write(mount.join(format!("small {number}")), vec![1; 64 << 10]).unwrap();
    }
    say(&["sync", text(&mount)]);
    for number in (0..400).step_by(2) {
        fs::remove_file(mount.join(format!("small {number}"))).unwrap();
    }
    // Space is free when its freeing is durable.
    let is_right = || {
        say(&["sync", text(&mount)]);
        let report = json(&["frag", "--json", text(&mount)]);
        report[0]["free_bytes"] == free(&mount)
    };
    assert!(
        comes_to_hold(Duration::from_secs(20), is_right),
        "{:?} {}",
        ctl(&["frag", text(&mount)]),
        free(&mount)
    );
    let report = &json(&["frag", "--json", text(&mount)])[0];
    let by_length = report["by_length"].as_array().unwrap();
    let sum = |key: &str| by_length.iter().map(|runs| runs[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("bytes"), sum("runs")), (free(&mount), report["runs"].as_u64().unwrap()));
    // The holes, each as long as a file was.
    let holes = by_length.iter().find(|runs| runs["at_least_bytes"] == 64 << 10).expect("holes of 64 KiB");
    assert!(holes["runs"].as_u64().unwrap() >= 150, "{report}");
    assert!(report["longest_bytes"].as_u64().unwrap() > 100 << 20, "{report}");
    let long = &report["long"];
    let lost = (4 << 30) - long["bytes"].as_i64().unwrap();
    assert!(lost > 0 && (47..=48).contains(&long["observed_hours"].as_u64().unwrap()), "{report}");
    let per_day = long["lost_bytes_per_day"].as_i64().unwrap();
    assert!((per_day - lost / 2).abs() < lost / 100, "{report}");
    let hours = long["bytes"].as_i64().unwrap() * 24 / per_day;
    assert!((long["end_in_hours"].as_i64().unwrap() - hours).abs() <= 1, "{report}");
    let shown = say(&["frag", text(&mount)]);
    assert!(shown.contains("a day less in the last") && shown.contains("64 KiB"), "{shown}");
}

/// The rate of the one stream that there is, in Mbit/s.
fn rate(mount: &Path) -> Option<u64> {
    let streams = json(&["streams", "--json", text(mount)]);
    Some(streams[0]["streams"][0]["bits_per_second"].as_u64()? / 1_000_000)
}

#[test]
fn a_configuration_that_is_read_again_holds_at_once_for_what_is_open() {
    let Some(rig) = Rig::new() else { return };
    let configure = |bitrate: u32, rest: &str| {
        fs::write(
            rig.path("config"),
            format!("{rest}\n[[stream]]\npath = \"*.mov\"\nbitrate = \"{bitrate} Mbit/s\"\n"),
        )
        .unwrap();
    };
    configure(50, "");
    rig.make("live", "live");
    succeed(rig.try_mount("live", ""));
    let mount = rig.path("live");
    fs::write(mount.join("a.mov"), vec![1; 64 * MIB]).unwrap();
    let load = Load::on(&mount);
    let player = File::open(mount.join("a.mov")).unwrap();
    let mut buffer = vec![0; MIB];
    let mut play = |piece: u64| player.read_exact_at(&mut buffer, piece * MIB as u64).unwrap();
    (0..4).for_each(&mut play);
    assert!(comes_to_hold(Duration::from_secs(10), || rate(&mount) == Some(50)));

    // By the command, and the file is open all the time.
    configure(80, "[scheduler]\nbest_effort_floor_percent = 20\nmetadata_latency = \"80 ms\"\n");
    let said = say(&["reload", text(&mount)]);
    let changed = "scheduler.metadata_latency, scheduler.best_effort_floor_percent, stream";
    assert_eq!(said, format!("live on {}: {changed}\n", mount.display()));
    assert!(comes_to_hold(Duration::from_secs(10), || rate(&mount) == Some(80)));
    assert!(rig.log("live").contains(&format!("configuration read again: {changed} changed")));
    assert!(say(&["reload", "live"]).ends_with(": nothing has changed\n"));
    (4..8).for_each(&mut play);

    // By the signal.
    configure(40, "");
    rustix::process::kill_process(rig.daemon("live"), rustix::process::Signal::HUP).unwrap();
    assert!(comes_to_hold(Duration::from_secs(10), || rate(&mount) == Some(40)));

    // What cannot be changed is named, and nothing else is changed either.
    configure(90, "[scheduler]\nqueue_depth = 7\n[requests]\noverdue = \"5 s\"\n");
    let why = "scheduler.queue_depth and requests.overdue cannot be changed while the volume is mounted: nothing was changed";
    refuse(ctl(&["reload", text(&mount)]), 1, why);
    assert_eq!(rate(&mount), Some(40));
    // A mistake is told as at mount, with its line.
    fs::write(rig.path("config"), "[scheduler]\nidle_floor_percent = 99\n").unwrap();
    refuse(ctl(&["reload", text(&mount)]), 1, &format!("{}:2: ", rig.path("config").display()));
    fs::write(rig.path("config"), format!("[[stream]]\npath = \"{}/*.mov\"\n", mount.display())).unwrap();
    refuse(ctl(&["reload", text(&mount)]), 1, "matches nothing");
    fs::remove_file(rig.path("config")).unwrap();
    refuse(ctl(&["reload", text(&mount)]), 1, "cannot be read");
    assert_eq!(rate(&mount), Some(40));

    // What is logged.
    let lines = || rig.log("live").matches("configuration read again").count();
    let before = lines();
    configure(40, "[log]\nlevel = \"off\"\n");
    assert!(say(&["reload", "live"]).ends_with(": log.level\n"));
    assert_eq!(lines(), before, "the word of it is not logged any more");
    configure(40, "[log]\nlevel = \"warn,avfs_cli=info\"\n");
    say(&["reload", "live"]);
    assert_eq!(lines(), before + 1);
    configure(40, "[log]\nlevel = \"loud\"\n");
    refuse(ctl(&["reload", "live"]), 1, "`loud` is none of off, error, warn");
    assert!(load.end() > 0);
}

#[test]
fn health_is_one_word_with_an_exit_code_for_a_monitor() {
    let Some(rig) = Rig::mounted("well") else { return };
    let mount = rig.path("well");
    let load = Load::on(&mount);
    let check = |arguments: &[&str]| {
        let output = ctl(&[&["check"], arguments].concat());
        let said = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), said)
    };
    let (code, said) = check(&[text(&mount)]);
    assert_eq!((code, said.as_str()), (0, format!("healthy  well on {}\n", mount.display()).as_str()));
    load.end();
    let (code, said) = check(&["well", "--free-percent", "100"]);
    assert!(code == 1 && said.starts_with("filling  well on ") && said.contains(" free of 1 GiB"), "{said}");
    let json: Value = serde_json::from_str(&check(&["well", "--json"]).1).unwrap();
    assert_eq!((&json[0]["health"], &json[0]["version"]), (&Value::from("healthy"), &Value::from(1)));
    let (code, said) = check(&["no such volume"]);
    assert!(code == 3 && said.starts_with("unknown  no such volume: "), "{said}");
    assert_eq!(check(&["--nonsense"]).0, 3);
    // A daemon that is stopped does not answer.
    let (device, daemon) = (rig.path("well.image"), rig.daemon("well"));
    rustix::process::kill_process(daemon, rustix::process::Signal::STOP).unwrap();
    let (code, said) = check(&[text(&device)]);
    rustix::process::kill_process(daemon, rustix::process::Signal::CONT).unwrap();
    assert!(code == 2 && said.starts_with("hangs  "), "{said}");
    assert_eq!(check(&[text(&device)]).0, 0);
}

/// Runs avfsctl as a user without privilege, of this group.
fn ctl_as(rig: &Rig, group: u32, arguments: &[&str]) -> Output {
    let own = rig.path("avfsctl");
    if !own.exists() {
        fs::copy(env!("CARGO_BIN_EXE_avfsctl"), &own).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new("setpriv");
    command.arg("--reuid=65534").arg(format!("--regid={group}")).arg("--clear-groups").arg(own);
    command.args(arguments).output().unwrap()
}

#[test]
fn members_of_the_configured_group_may_read_and_no_more() {
    /// "daemon" of Debian, and of any other host the same number.
    const GROUP: u32 = 1;
    let Some(rig) = Rig::new() else { return };
    rig.make("read", "read");
    let (mount, image) = (rig.path("read"), rig.path("read.image"));
    succeed(rig.try_mount("read", ""));
    refuse(
        ctl_as(&rig, GROUP, &["info", text(&mount)]),
        1,
        "only root may talk to the daemon of a volume, and the group",
    );
    succeed(rig.umount("read"));
    fs::write(rig.path("config"), "[control]\ngroup = \"no such group\"\n").unwrap();
    refuse(rig.try_mount("read", ""), 1, "control.group: this host has no group `no such group`");
    fs::write(rig.path("config"), format!("[control]\ngroup = \"{GROUP}\"\n")).unwrap();
    succeed(rig.try_mount("read", ""));
    let load = Load::on(&mount);
    for command in [&["info"][..], &["streams"], &["frag"], &["events"], &["check"], &["label"], &["sync"]] {
        succeed(ctl_as(&rig, GROUP, &[command, &[text(&image)]].concat()));
    }
    for command in [&["label", text(&image), "mine"][..], &["reload", text(&image)]] {
        refuse(ctl_as(&rig, GROUP, command), 1, "only root may change this");
    }
    assert_eq!(say(&["label", text(&image)]), "read\n");
    refuse(ctl_as(&rig, 65534, &["info", text(&image)]), 1, "only root may talk");
    load.end();
}

#[test]
fn many_clients_are_answered_at_once_while_the_volume_is_busy() {
    const CLIENTS: usize = 60;
    const ASKS: usize = 8;
    let Some(rig) = Rig::mounted("busy") else { return };
    let (mount, socket) = (rig.path("busy"), rig.socket("busy"));
    let load = Load::on(&mount);
    let ask = |request: &str| -> (Value, Duration) {
        let began = Instant::now();
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        (serde_json::from_str(&line).unwrap(), began.elapsed())
    };
    let requests = [
        ("info", "{\"info\":{}}"),
        ("streams", "{\"version\":1,\"streams\":{}}"),
        ("events", "{\"version\":1,\"events\":{\"since\":0,\"most\":2000}}"),
        ("free_space", "{\"version\":1,\"free_space\":{}}"),
        ("done", "{\"sync\":{}}"),
        ("error", "{\"version\":9,\"sync\":{}}"),
    ];
    let longest = std::thread::scope(|scope| {
        let client = |number: usize| {
            scope.spawn(move || {
                (0..ASKS)
                    .map(|turn| {
                        let (answer, request) = requests[(number + turn) % requests.len()];
                        let (said, took) = ask(request);
                        assert!(said.get(answer).is_some(), "{request}: {said}");
                        if answer == "info" { took } else { Duration::ZERO }
                    })
                    .max()
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        clients.into_iter().filter_map(|client| client.join().unwrap()).max().unwrap()
    });
    // An administrator's commands give up after this.
    assert!(longest < avfs_fuse::control::PATIENCE, "{longest:?}");
    assert!(load.end() > 0);
}

/// What the daemon has locked into memory, in MiB, by the kernel's own count.
fn locked(rig: &Rig, name: &str) -> u64 {
    let daemon = rig.daemon(name).as_raw_nonzero();
    let status = fs::read_to_string(format!("/proc/{daemon}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

/// What the daemon says that it has taken, and may, in MiB.
fn taken(rig: &Rig, name: &str) -> (u64, u64) {
    let volume = &rig.info(name)["volume"];
    (volume["cache_taken_bytes"].as_u64().unwrap() >> 20, volume["cache_bytes"].as_u64().unwrap() >> 20)
}

/// 1 GiB was pinned by each mount, whether anything was read or not.
#[test]
fn memory_is_taken_when_it_is_needed_given_back_and_limited_anew_while_the_volume_is_used() {
    let Some(rig) = Rig::new() else { return };
    fs::write(rig.path("config"), "[cache]\nkeep = \"1 s\"\n").unwrap();
    rig.make("memory", "memory");
    succeed(rig.try_mount("memory", "cache_size=512M"));
    let mount = rig.path("memory");
    assert!(locked(&rig, "memory") <= 72, "{} MiB", locked(&rig, "memory"));
    let bytes: Vec<u8> = (0..300 * MIB).map(|at| (at / 4096) as u8).collect();
    let is_whole = |name: &str| fs::read(mount.join(name)).unwrap() == bytes;
    fs::write(mount.join("a.mov"), &bytes).unwrap();
    let most = locked(&rig, "memory");
    assert!((200..=512).contains(&most), "{most} MiB");
    // No client uses it any more: all goes but what is kept ready.
    assert!(
        comes_to_hold(Duration::from_secs(60), || taken(&rig, "memory").0 <= 80),
        "{:?}",
        taken(&rig, "memory")
    );
    assert!(locked(&rig, "memory") <= 80);
    assert!(is_whole("a.mov"));

    let load = Load::on(&mount);
    // Down, beside others.
    let remount = |size: &str| rig.try_mount_again("memory", &format!("remount,cache_size={size}"));
    assert!(is_whole("a.mov") && taken(&rig, "memory").0 > 200, "{:?}", taken(&rig, "memory"));
    succeed(remount("64M"));
    let is_down = || taken(&rig, "memory") == (64, 64) && locked(&rig, "memory") == 64;
    assert!(comes_to_hold(Duration::from_secs(60), is_down), "{:?}", taken(&rig, "memory"));
    assert!(is_whole("a.mov") && taken(&rig, "memory").0 == 64);
    // Up.
    succeed(remount("700M"));
    fs::write(mount.join("b.mov"), &bytes).unwrap();
    assert!(is_whole("a.mov") && is_whole("b.mov"));
    assert_eq!(taken(&rig, "memory").1, 696, "whole 8 MiB");
    assert!(taken(&rig, "memory").0 > 300, "{:?}", taken(&rig, "memory"));
    assert_eq!(rig.info("memory")["options"]["cache_bytes"], 700 << 20);
    // What cannot be is one line.
    refuse(remount("10T"), 32, "a cache of 10 TiB does not fit into the");
    refuse(remount("1M"), 1, "cache_size: 1 MiB is outside of 64 MiB to 16 TiB");
    // Where no option says it, the configuration does.
    assert!(load.end() > 0);
    succeed(rig.umount("memory"));
    fs::write(rig.path("config"), "[cache]\nsize = \"128 MiB\"\n").unwrap();
    succeed(rig.try_mount_again("memory", "transport=device"));
    assert_eq!(taken(&rig, "memory").1, 128);
    fs::write(rig.path("config"), "[cache]\nsize = \"256 MiB\"\nkeep = \"1 s\"\n").unwrap();
    assert!(say(&["reload", "memory"]).ends_with(": cache.size, cache.keep\n"));
    assert_eq!(taken(&rig, "memory").1, 256);
    assert!(is_whole("b.mov"));
}

/// A port of this host that no program has now.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Status and headers, and the body, of what is answered at a path.
fn get(port: u16, host: &str, path: &str) -> (String, String) {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

fn get_json(port: u16, path: &str) -> Value {
    let (head, body) = get(port, "localhost", path);
    assert!(head.starts_with("HTTP/1.0 200 ") && head.contains("application/json"), "{path}: {head}");
    serde_json::from_str(&body).unwrap()
}

/// Of a metric, with these labels among others.
fn metric(text: &str, name: &str, labels: &[&str]) -> f64 {
    let is_it = |line: &&str| {
        line.split(['{', ' ']).next() == Some(name) && labels.iter().all(|label| line.contains(label))
    };
    let line = text.lines().find(is_it).unwrap_or_else(|| panic!("{name} {labels:?}: {text}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// All names of fields, but those below `errors`, which are names of causes.
fn keys(value: &Value, found: &mut std::collections::BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            found.insert(name.clone());
            if name != "errors" {
                keys(value, found);
            }
        }),
        Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

#[test]
fn what_a_monitor_and_a_browser_are_shown_is_what_happened() {
    const DOCUMENT: &str = include_str!("../../../doc/web.md");
    let Some(rig) = Rig::new() else { return };
    let port = free_port();
    let stream = "[[stream]]\npath = \"*.mov\"\nbitrate = \"100 Mbit/s\"\n";
    rig.make("shown", "shown \"quoted\"");
    for (listen, why) in
        [("0.0.0.0:1", "can be reached by other hosts"), ("1", "expected a loopback address")]
    {
        fs::write(rig.path("config"), format!("[web]\nlisten = \"{listen}\"\n")).unwrap();
        refuse(rig.try_mount("shown", ""), 1, why);
    }
    fs::write(rig.path("config"), format!("[web]\nlisten = \"127.0.0.1:{port}\"\n{stream}")).unwrap();
    succeed(rig.try_mount("shown", ""));
    let mount = rig.path("shown");
    fs::write(mount.join("a.mov"), vec![1; 200 * MIB]).unwrap();
    say(&["sync", text(&mount)]);
    let (head, before) = get(port, "localhost", "/metrics");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert_eq!(metric(&before, "avfs_free_bytes", &["label=\"shown \\\"quoted\\\"\""]) as u64, free(&mount));
    assert!(metric(&before, "avfs_device_written_bytes_total", &[]) as u64 >= 200 << 20);
    assert_eq!(metric(&before, "avfs_cache_limit_bytes", &[]) as u64, 128 << 20);
    assert_eq!(metric(&before, "avfs_streams", &["state=\"admitted\"", "direction=\"read\""]), 0.0);
    assert_eq!(metric(&before, "avfs_events_total", &["kind=\"client_late\""]), 0.0);

    // A player that stops for three seconds, beside others.
    let load = Load::on(&mount);
    let player = File::open(mount.join("a.mov")).unwrap();
    let mut buffer = vec![0; MIB];
    let mut play = |pieces: std::ops::Range<u64>| {
        for piece in pieces {
            player.read_exact_at(&mut buffer, piece % 200 * MIB as u64).unwrap();
            std::thread::sleep(Duration::from_millis(84));
        }
    };
    play(0..50);
    let (_, playing) = get(port, "127.0.0.1:80", "/metrics");
    assert_eq!(metric(&playing, "avfs_streams", &["state=\"admitted\"", "direction=\"read\""]), 1.0);
    let streams = get_json(port, "/api/v1/streams?bits_per_second=185000000");
    assert_eq!(
        (&streams["streams"][0]["path"], &streams["room"][0]["bits_per_second"]),
        (&Value::from("/a.mov"), &Value::from(185_000_000))
    );
    assert_eq!(streams["streams"][0]["clients"][0]["process"], std::process::id());
    std::thread::sleep(Duration::from_secs(3));
    play(50..75);
    let late = || {
        let metrics = get(port, "localhost", "/metrics").1;
        metric(&metrics, "avfs_events_total", &["kind=\"client_late\""]) >= 1.0
    };
    assert!(comes_to_hold(Duration::from_secs(10), late));
    let events = get_json(port, "/api/v1/events?most=5");
    assert!(events[0]["sentence"].as_str().unwrap().starts_with("/a.mov"), "{events}");
    let history = || get_json(port, "/api/v1/history");
    assert!(comes_to_hold(Duration::from_secs(30), || !history()["points"].as_array().unwrap().is_empty()));
    assert!(history()["points"][0]["written_bytes_per_second"].as_u64().unwrap() > 0, "{}", history());
    let (_, after) = get(port, "[::1]", "/metrics");
    for counter in [
        "avfs_device_written_bytes_total",
        "avfs_device_busy_seconds_total",
        "avfs_device_command_bytes_count",
    ] {
        assert!(metric(&after, counter, &[]) > metric(&before, counter, &[]), "{counter}");
    }
    assert!(load.end() > 0);

    // The command says the same of the same volume.
    let said = say(&["metrics", text(&mount)]);
    let names = |text: &str| {
        let named = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        named.map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    assert!(names(&said).is_superset(&names(&before)), "{said}");
    // Debian's own judge of such a text.
    match Command::new("promtool").arg("--version").output() {
        Err(_) => eprintln!("not tested: promtool, of Debian's package prometheus, is not installed"),
        Ok(_) => {
            let mut judge = Command::new("promtool");
            judge
                .args(["check", "metrics"])
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped());
            let mut judge = judge.stderr(std::process::Stdio::piped()).spawn().unwrap();
            judge.stdin.take().unwrap().write_all(after.as_bytes()).unwrap();
            let judged = judge.wait_with_output().unwrap();
            assert!(
                judged.status.success() && judged.stderr.is_empty() && judged.stdout.is_empty(),
                "{judged:?}"
            );
        }
    }

    // All of it is documented.
    let mut fields = std::collections::BTreeSet::new();
    let free_space = get_json(port, "/api/v1/free-space");
    for answer in [get_json(port, "/api/v1/info"), streams, events, history(), free_space] {
        keys(&answer, &mut fields);
    }
    let is_documented = |name: &&String| !DOCUMENT.contains(&format!("`{name}`"));
    let missing: Vec<_> = fields.iter().chain(&names(&after)).filter(is_documented).cloned().collect();
    assert_eq!(missing, Vec::<String>::new(), "doc/web.md does not have these");

    // Nothing comes from elsewhere, and no page of elsewhere gets anything.
    let (head, page) = get(port, "localhost", "/");
    assert!(head.contains("default-src 'none'") && !page.contains("//"), "{head} {page}");
    for file in ["/page.css", "/page.js"] {
        assert!(get(port, "localhost", file).0.starts_with("HTTP/1.0 200 "));
    }
    for path in ["/", "/metrics", "/api/v1/info"] {
        let (head, body) = get(port, "evil.example", path);
        assert!(head.starts_with("HTTP/1.0 403 ") && !body.contains("shown"), "{head}");
    }
    assert!(get(port, "localhost", "/nothing").0.starts_with("HTTP/1.0 404 "));
    assert!(get(port, "localhost", "/api/v1/events?since=x").0.starts_with("HTTP/1.0 400 "));

    // It ends with the mount. At a Unix socket it is its own.
    drop(player);
    succeed(rig.umount("shown"));
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    let socket = rig.path("http");
    fs::write(rig.path("config"), format!("[web]\nlisten = {socket:?}\n")).unwrap();
    succeed(rig.try_mount("shown", ""));
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(answer.contains("avfs_uptime_seconds"), "{answer}");
    drop(stream);
    succeed(rig.umount("shown"));
    assert!(!socket.exists());
}
