//! `avfsctl plan`, `trace` and `simulate` beside a mounted volume under load: what they say is what happened.

mod common;

use avfs_lab::lun::{Lun, LunOptions, REACTION};
use common::{Alone, refuse, succeed};
use rtsched_sim::device::DeviceSpec;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use units::Bytes;

const MIB: usize = 1 << 20;
const CONFIG: &str = "[[stream]]\npath = \"*.mov\"\nbitrate = \"100 Mbit/s\"\n";
/// What a MiB plays for at 100 Mbit/s.
const PERIOD: Duration = Duration::from_micros(83_886);
/// Of a clip.
const CLIP_MIB: usize = 160;

/// A volume on the array of the paper, in real time.
struct Rig {
    device: Option<Lun>,
    directory: tempfile::TempDir,
    _alone: Alone,
}

impl Rig {
    fn new() -> Option<Self> {
        let alone = Alone::to_mount()?;
        let directory = tempfile::tempdir().unwrap();
        let mut rig = Self { device: None, directory, _alone: alone };
        fs::create_dir(rig.path("mount")).unwrap();
        fs::create_dir(rig.path("device")).unwrap();
        let size = Bytes::from_mib(1024);
        let spec = DeviceSpec::named("raid5-table5").unwrap();
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
        for name in ["a.mov", "b.mov", "copied.bin"] {
            fs::write(rig.path("mount").join(name), vec![7; CLIP_MIB * MIB]).unwrap();
        }
        // Nothing of it is in memory any more.
        succeed(rig.umount());
        rig.mount();
        rig.device_is("modelled");
        Some(rig)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn device_is(&self, how: &str) {
        fs::write(self.path("device/control"), how).unwrap();
    }

    fn mount(&self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mount-avfs"));
        command.arg(self.path("device/lun")).arg(self.path("mount"));
        command.env("STATE_DIRECTORY", self.path("state")).args(["-o", "cache_size=512M,transport=device"]);
        command.arg("-o").arg(format!("config={}", self.path("config").display()));
        command.arg("-o").arg(format!("log={}", self.path("log").display()));
        succeed(command.output().unwrap());
    }

    fn umount(&self) -> Output {
        Command::new(env!("CARGO_BIN_EXE_umount-avfs")).arg(self.path("mount")).output().unwrap()
    }

    fn streams(&self) -> Value {
        let all: Value =
            serde_json::from_str(&say(&["streams", "--json", arg(&self.path("mount"))])).unwrap();
        all[0].clone()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.device_is("fast");
        self.umount();
        let _ = rustix::mount::unmount(self.path("mount"), rustix::mount::UnmountFlags::DETACH);
    }
}

fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn ctl(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_avfsctl")).args(arguments).output().unwrap()
}

#[track_caller]
fn say(arguments: &[&str]) -> String {
    let output = ctl(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&say(arguments)).unwrap()
}

/// Plays a clip at its rate until it is to stop; how often a MiB was there later than a second after it was to be shown, and how many
/// were played.
fn play(file: &Path, stop: &AtomicBool) -> (u32, usize) {
    let file = File::open(file).unwrap();
    let (mut buffer, mut late, mut count) = (vec![0; MIB], 0, 0_usize);
    file.read_exact_at(&mut buffer, 0).unwrap();
    let began = Instant::now();
    while !stop.load(Ordering::Relaxed) && count + 1 < CLIP_MIB {
        count += 1;
        let due = PERIOD * count as u32;
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        file.read_exact_at(&mut buffer, (count * MIB) as u64).unwrap();
        late += u32::from(began.elapsed() > due + Duration::from_secs(1));
    }
    (late, count + 1)
}

#[test]
fn a_recording_is_what_happened_and_says_what_would_have() {
    let Some(rig) = Rig::new() else { return };
    let trace = rig.path("trace");
    let stop = AtomicBool::new(false);
    let before = rig.streams();
    let (late, played) = std::thread::scope(|scope| {
        // The recording begins before the players do.
        let recorder = scope.spawn(|| {
            let mount = rig.path("mount");
            ctl(&["trace", "record", "--seconds", "9", "--output", arg(&trace), arg(&mount)])
        });
        std::thread::sleep(Duration::from_secs(1));
        let mount = rig.path("mount");
        let players = ["a.mov", "b.mov"].map(|name| {
            let (file, stop) = (mount.join(name), &stop);
            scope.spawn(move || play(&file, stop))
        });
        // Somebody copies meanwhile.
        let copied = mount.join("copied.bin");
        let copy = scope.spawn(move || {
            let mut bytes = Vec::new();
            File::open(copied).unwrap().read_to_end(&mut bytes).unwrap();
        });
        succeed(recorder.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        copy.join().unwrap();
        players
            .map(|player| player.join().unwrap())
            .into_iter()
            .fold((0, 0), |(late, all), one| (late + one.0, all + one.1))
    });
    let after = rig.streams();

    // What was recorded is what the device did.
    let text = fs::read_to_string(&trace).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let head = lines.next().unwrap();
    assert_eq!((head["avfs_trace"].as_u64(), head["label"].as_str()), (Some(1), Some("footage")));
    let lines: Vec<Value> = lines.collect();
    assert_eq!(lines.last().unwrap()["end"]["lost"], 0);
    let of = |what: &str| -> Vec<&Value> {
        lines.iter().map(|line| &line["record"]["what"][what]).filter(|found| !found.is_null()).collect()
    };
    let sum = |all: &[&Value]| all.iter().map(|one| one["length"].as_u64().unwrap()).sum::<u64>();
    let (began, ended) = (of("began"), of("ended"));
    let done =
        |field: &str| after["device"][field].as_u64().unwrap() - before["device"][field].as_u64().unwrap();
    // A few more are done before and after it.
    assert!(
        began.len() as u64 <= done("commands") && began.len() >= 10,
        "{} of {}",
        began.len(),
        done("commands")
    );
    assert!(began.len() - ended.len() <= 2, "{} {}", began.len(), ended.len());
    let read: Vec<&Value> = began.iter().copied().filter(|one| one["does"] == "read").collect();
    let played_bytes = (played * MIB) as u64;
    assert!(sum(&read) <= done("read_bytes") + (32 << 20) && sum(&read) > played_bytes / 2, "{}", sum(&read));

    // It is shown, and exported.
    let shown = say(&["trace", "show", arg(&trace)]);
    for word in ["footage", "/a.mov plays 100 Mbit/s", "/b.mov plays 100 Mbit/s", "commands"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let all = say(&["trace", "show", "--all", arg(&trace)]);
    assert_eq!(all.lines().count(), lines.iter().filter(|line| !line["record"].is_null()).count());
    let exported = json(&["trace", "export", arg(&trace)]);
    let events = exported["traceEvents"].as_array().unwrap();
    let commands = events.iter().filter(|event| event["ph"] == "X").count();
    assert_eq!(commands, ended.len());
    let names = |name: &str| events.iter().any(|event| event["args"]["name"] == name);
    assert!(names("device") && names("/a.mov") && names("/b.mov"));
    let end = |event: &Value| event["ts"].as_f64().unwrap() + event["dur"].as_f64().unwrap_or(0.0);
    assert!(events.iter().filter(|event| event["ph"] != "M").all(|event| (0.0..12e6).contains(&end(event))));
    refuse(ctl(&["trace", "export", "--output", arg(&trace), arg(&trace)]), 1, "File exists");

    // As it was, nobody is late; neither was anybody.
    let as_it_was = json(&["simulate", "--json", arg(&trace)]);
    let streams = |outcome: &Value| outcome["streams"].as_array().unwrap().clone();
    let late_in =
        |outcome: &Value| streams(outcome).iter().filter(|one| one["late"].as_u64() > Some(0)).count();
    let recorded = &as_it_was["as_recorded"];
    assert_eq!(streams(recorded).len(), 2, "{recorded}");
    if late == 0 {
        assert_eq!(late_in(recorded), 0, "{recorded}");
    }
    // The modelled array carries thirteen; four fit, and thirty do not.
    let more = |count: &str| {
        json(&["simulate", "--json", "--device", "raid5-table5", "--editors", count, arg(&trace)])["changed"]
            .clone()
    };
    let (four, thirty) = (more("4"), more("30"));
    assert_eq!((streams(&four).len(), late_in(&four)), (6, 0), "{four}");
    assert!(late_in(&thirty) >= 5, "{thirty}");
    let unpromised = streams(&thirty).iter().filter(|one| one["service"] == "best effort").count();
    assert!(unpromised >= 15, "{thirty}");
    // Those of the recording were first, and keep their promises.
    let kept =
        streams(&thirty).into_iter().filter(|one| one["is_added"] == false).all(|one| one["late"] == 0);
    assert!(kept, "{thirty}");
    let said = say(&["simulate", "--slower", "20", arg(&trace)]);
    assert!(said.contains("with everything taking 20 times as long: ") && said.contains("late"), "{said}");
    let said = say(&["simulate", "--lost-disk", "--device", "raid5-table5", arg(&trace)]);
    assert!(said.contains("none of 2 streams is late"), "{said}");
}

#[test]
fn what_is_planned_is_what_the_admission_of_a_volume_promises() {
    let Some(rig) = Rig::new() else { return };
    // The room of an idle volume that knows nothing of its device is that of a plan with the same configuration.
    let streams = rig.streams();
    assert_eq!(streams["streams"], Value::Array(Vec::new()), "{streams}");
    let room = json(&["streams", "--rate", "100 Mbit/s", "--json", arg(&rig.path("mount"))]);
    let more = room[0]["room"][0]["more"].as_u64().unwrap();
    let measured = "[device]\nread_access = \"16 ms\"\nread_rate = \"170 MB/s\"\n";
    fs::write(rig.path("measured"), measured).unwrap();
    let plan = json(&[
        "plan",
        "--config",
        arg(&rig.path("measured")),
        "--cache",
        "512M",
        "--rate",
        "100 Mbit/s",
        "--json",
    ]);
    let rows = plan["rows"].as_array().unwrap();
    assert_eq!((plan["version"].as_u64(), rows.len()), (Some(1), 2));
    assert_eq!(rows[0]["alone"]["streams"].as_u64(), Some(more), "{plan}");
}

#[test]
fn a_plan_names_what_it_lacks_and_a_broken_recording_its_line() {
    let table = say(&["plan", "--device", "raid6-8", "--cache", "16G"]);
    for word in
        ["ProRes 422 HQ UHD 25p", "DNxHR HQX UHD 25p", "XDCAM HD422 50", "streams to record", "all three"]
    {
        assert!(table.contains(word), "{word}: {table}");
    }
    assert!(say(&["plan", "--list"]).contains("SMPTE"), "each figure has its source");
    refuse(ctl(&["plan", "--device", "raid9"]), 1, "no device is called raid9");
    refuse(ctl(&["plan", "--device", "nvme", "--codec", "betamax"]), 1, "no codec has `betamax`");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace");
    refuse(ctl(&["trace", "show", arg(&file)]), 1, "No such file");
    for (text, wrong) in [
        ("", "it is empty"),
        ("{}\n", "it is no recording of AVFS"),
        ("{\"avfs_trace\":2}\n", "version 2, and this command reads version 1"),
        ("{\"avfs_trace\":1}\n", "line 1: missing field"),
    ] {
        fs::write(&file, text).unwrap();
        refuse(ctl(&["simulate", arg(&file)]), 1, wrong);
    }
}
