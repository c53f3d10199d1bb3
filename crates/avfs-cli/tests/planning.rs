//! `avfsctl plan`, `trace` and `simulate` beside a mounted volume under load: what they say is what happened.

mod common;
#[path = "common/modelled.rs"]
mod modelled;

use common::{ctl, json, refuse, say, succeed, text};
use modelled::{MIB, Modelled, PERIOD};
use rtsched_sim::device::DeviceSpec;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Of a clip.
const CLIP_MIB: usize = 160;

/// A volume on the array of the paper, with two clips and what is to be copied.
fn array() -> Option<Modelled> {
    let rig = Modelled::new(DeviceSpec::named("raid5-table5").unwrap(), 1024, "512M")?;
    for name in ["a.mov", "b.mov", "copied.bin"] {
        fs::write(rig.path("mount").join(name), vec![7; CLIP_MIB * MIB]).unwrap();
    }
    // Nothing of it is in memory any more.
    succeed(rig.umount());
    rig.mount();
    rig.device_is("modelled");
    Some(rig)
}

fn streams_of(rig: &Modelled) -> Value {
    json(&["streams", "--json", text(&rig.path("mount"))])[0].clone()
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
    let Some(rig) = array() else { return };
    let trace = rig.path("trace");
    let stop = AtomicBool::new(false);
    let before = streams_of(&rig);
    let (late, played) = std::thread::scope(|scope| {
        // The recording begins before the players do.
        let recorder = scope.spawn(|| {
            let mount = rig.path("mount");
            ctl(&["trace", "record", "--seconds", "9", "--output", text(&trace), text(&mount)])
        });
        std::thread::sleep(Duration::from_secs(1));
        let mount = rig.path("mount");
        let players = ["a.mov", "b.mov"].map(|name| {
            let (file, stop) = (mount.join(name), &stop);
            scope.spawn(move || play(&file, stop))
        });
        // A client copies meanwhile.
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
    let after = streams_of(&rig);

    // What was recorded is what the device did.
    let recording = fs::read_to_string(&trace).unwrap();
    let mut lines = recording.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
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
    let shown = say(&["trace", "show", text(&trace)]);
    for word in ["footage", "/a.mov plays 100 Mbit/s", "/b.mov plays 100 Mbit/s", "commands"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let all = say(&["trace", "show", "--all", text(&trace)]);
    assert_eq!(all.lines().count(), lines.iter().filter(|line| !line["record"].is_null()).count());
    let exported = json(&["trace", "export", text(&trace)]);
    let events = exported["traceEvents"].as_array().unwrap();
    let commands = events.iter().filter(|event| event["ph"] == "X").count();
    assert_eq!(commands, ended.len());
    let names = |name: &str| events.iter().any(|event| event["args"]["name"] == name);
    assert!(names("device") && names("/a.mov") && names("/b.mov"));
    let end = |event: &Value| event["ts"].as_f64().unwrap() + event["dur"].as_f64().unwrap_or(0.0);
    assert!(events.iter().filter(|event| event["ph"] != "M").all(|event| (0.0..12e6).contains(&end(event))));
    refuse(ctl(&["trace", "export", "--output", text(&trace), text(&trace)]), 1, "File exists");

    // As it was, no stream is late; neither was any.
    let as_it_was = json(&["simulate", "--json", text(&trace)]);
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
        json(&["simulate", "--json", "--device", "raid5-table5", "--editors", count, text(&trace)])["changed"]
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
    let said = say(&["simulate", "--slower", "20", text(&trace)]);
    assert!(said.contains("with everything taking 20 times as long: ") && said.contains("late"), "{said}");
    let said = say(&["simulate", "--lost-disk", "--device", "raid5-table5", text(&trace)]);
    assert!(said.contains("none of 2 streams is late"), "{said}");
}

#[test]
fn what_is_planned_is_what_the_admission_of_a_volume_promises() {
    let Some(rig) = array() else { return };
    // The room of an idle volume that knows nothing of its device is that of a plan with the same configuration.
    let streams = streams_of(&rig);
    assert_eq!(streams["streams"], Value::Array(Vec::new()), "{streams}");
    let room = json(&["streams", "--rate", "100 Mbit/s", "--json", text(&rig.path("mount"))]);
    let more = room[0]["room"][0]["more"].as_u64().unwrap();
    let measured = "[device]\nread_access = \"16 ms\"\nread_rate = \"170 MB/s\"\n";
    fs::write(rig.path("measured"), measured).unwrap();
    let plan = json(&[
        "plan",
        "--config",
        text(&rig.path("measured")),
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
    refuse(ctl(&["trace", "show", text(&file)]), 1, "No such file");
    for (content, wrong) in [
        ("", "it is empty"),
        ("{}\n", "it is no recording of AVFS"),
        ("{\"avfs_trace\":2}\n", "version 2, and this command reads version 1"),
        ("{\"avfs_trace\":1}\n", "line 1: missing field"),
    ] {
        fs::write(&file, content).unwrap();
        refuse(ctl(&["simulate", text(&file)]), 1, wrong);
    }
}
