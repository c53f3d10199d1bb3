//! `avfsctl streams`, `top`, `events` and `why` on a mounted volume: what they say is what happened.

mod common;
#[path = "common/modelled.rs"]
mod modelled;

use common::{comes_to_hold, ctl, refuse, succeed};
use modelled::{MIB, Modelled, PERIOD};
use rtsched_sim::device::{DeviceSpec, ModelSpec};
use serde_json::Value;
use std::fs::{self, File};
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// A volume on a device that can become slow.
struct Rig(Modelled);

impl Deref for Rig {
    type Target = Modelled;

    fn deref(&self) -> &Modelled {
        &self.0
    }
}

impl Rig {
    fn new() -> Option<Self> {
        /// Of each channel: a third of what a player takes, together.
        const SLOW_MB_PER_S: f64 = 0.13;
        let mut spec = DeviceSpec::named("nvme").unwrap();
        let ModelSpec::Flash(flash) = &mut spec.model else { panic!("it has an arm") };
        flash.read_channel_mb_per_s = SLOW_MB_PER_S;
        Modelled::new(spec, 512, "128M").map(Self)
    }

    /// What a command says of the mount, or of a file.
    fn say(&self, arguments: &[&str], file: &str) -> String {
        let path = self.path("mount").join(file);
        common::say(&[arguments, &[common::text(&path)]].concat())
    }

    fn json(&self, arguments: &[&str], file: &str) -> Value {
        serde_json::from_str(&self.say(&[arguments, &["--json"]].concat(), file)).unwrap()
    }

    fn clip(&self, name: &str, mebibytes: usize) {
        let bytes = vec![7; mebibytes * MIB];
        fs::write(self.path("mount").join(name), bytes).unwrap();
        File::open(self.path("mount").join(name)).unwrap().sync_all().unwrap();
    }

    /// What happened to a file, of one kind.
    fn events(&self, kind: &str, file: &str) -> Vec<Value> {
        let path = format!("/{file}");
        let all = self.json(&["events"], "");
        let is_it = |event: &&Value| event["kind"] == kind && event["path"] == path.as_str();
        all.as_array().unwrap().iter().filter(is_it).cloned().collect()
    }
}

/// A player that asks for a MiB each period.
struct Player {
    file: File,
    piece: usize,
    pieces: usize,
    buffer: Vec<u8>,
}

impl Player {
    fn new(rig: &Rig, name: &str, pieces: usize) -> Self {
        Self {
            file: File::open(rig.path("mount").join(name)).unwrap(),
            piece: 0,
            pieces,
            buffer: vec![0; MIB],
        }
    }

    fn take(&mut self) {
        let at = self.piece % self.pieces * MIB;
        self.file.read_exact_at(&mut self.buffer, at as u64).unwrap();
        self.piece += 1;
    }

    fn play(&mut self, time: Duration) {
        let (began, mut due) = (Instant::now(), Duration::ZERO);
        while due < time {
            self.take();
            due += PERIOD;
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
    }
}

#[test]
fn who_plays_is_shown_and_what_makes_him_late_is_told_also_after_a_restart() {
    let Some(rig) = Rig::new() else { return };
    rig.clip("a.mov", 220);
    succeed(rig.umount());
    rig.mount();
    assert_eq!(rig.say(&["why"], "").lines().count(), 2, "nothing was late");
    let mut player = Player::new(&rig, "a.mov", 220);
    player.play(Duration::from_secs(4));

    // Who plays.
    let all = rig.json(&["streams"], "");
    let [volume] = all.as_array().unwrap().as_slice() else { panic!("{all}") };
    assert_eq!((volume["label"].as_str(), volume["version"].as_u64()), (Some("footage"), Some(1)));
    let [stream] = volume["streams"].as_array().unwrap().as_slice() else { panic!("{all}") };
    assert_eq!(stream["path"], "/a.mov");
    assert_eq!(stream["bits_per_second"], 100_000_000);
    assert_eq!(stream["state"], "admitted");
    assert_eq!(stream["clients"][0]["process"], std::process::id());
    let name = fs::read_to_string(format!("/proc/{}/comm", std::process::id())).unwrap();
    assert_eq!(stream["clients"][0]["name"], name.trim_end());
    assert!(stream["ahead_microseconds"].as_u64().unwrap() > 100_000, "{all}");
    assert_eq!(volume["room"][0]["bits_per_second"], 100_000_000);
    assert!(volume["room"][0]["more"].as_u64().unwrap() > 0, "{all}");
    let shown = rig.say(&["streams", "--rate", "185 Mbit/s"], "");
    assert!(shown.contains("/a.mov") && shown.contains("more of 185 Mbit/s"), "{shown}");
    let frame = rig.say(&["top", "--once"], "");
    for word in ["footage on", "/a.mov", "100 Mbit/s", "disk busy", "room for", "read ahead", "reads take"] {
        assert!(frame.contains(word), "{word}: {frame}");
    }

    // The client itself: it asks for nothing for three seconds, and goes on.
    std::thread::sleep(Duration::from_secs(3));
    player.play(Duration::from_secs(2));
    assert!(comes_to_hold(Duration::from_secs(10), || !rig.events("client_late", "a.mov").is_empty()));
    let why = rig.say(&["why"], "a.mov");
    assert!(why.contains("/a.mov") && why.contains("the client itself asked"), "{why}");

    // The disk: what is read takes seconds for a while.
    rig.device_is("modelled");
    std::thread::scope(|scope| {
        // The player waits for it.
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(6));
            rig.device_is("fast");
        });
        player.play(Duration::from_secs(8));
    });
    player.play(Duration::from_secs(2));
    assert!(comes_to_hold(Duration::from_secs(10), || !rig.events("late", "a.mov").is_empty()));
    let late = rig.events("late", "a.mov");
    assert!(late.iter().any(|event| event["cause"] == "slow_disk"), "{late:?}");
    assert!(late.iter().any(|event| event["late_microseconds"].as_u64().unwrap() > 500_000), "{late:?}");
    let why = rig.say(&["why"], "a.mov");
    assert!(why.contains("/a.mov") && why.contains("was late by"), "{why}");
    let now = jiff::ZonedDateTime::now().strftime("%H:%M").to_string();
    let why_then = rig.say(&["why", "--at", &now], "a.mov");
    assert!(why_then.contains("was late by") && why_then.contains("the disk was slow"), "{why_then}");
    let log = fs::read_to_string(rig.path("log")).unwrap();
    assert!(log.lines().any(|line| line.contains("/a.mov") && line.contains("the disk was slow")), "{log}");

    // They survive a restart.
    drop(player);
    let before = rig.json(&["events"], "");
    succeed(rig.umount());
    rig.mount();
    let after = rig.json(&["events"], "");
    let (before, after) = (before.as_array().unwrap(), after.as_array().unwrap());
    assert!(after.len() >= before.len() && after[..before.len()] == before[..], "{before:?} {after:?}");
    // And what was made of their file does not keep a volume from being mounted.
    succeed(rig.umount());
    for entry in fs::read_dir(rig.path("state")).unwrap() {
        fs::write(entry.unwrap().path(), [0xff; 5000]).unwrap();
    }
    rig.mount();
    assert_eq!(rig.json(&["events"], ""), Value::Array(Vec::new()));
}

#[test]
fn a_mistake_is_one_line() {
    let Some(rig) = Rig::new() else { return };
    let mount = rig.path("mount");
    let mount = mount.to_str().unwrap();
    refuse(ctl(&["why", mount, "--at", "teatime"]), 1, "`teatime` is no time: say 21:14");
    refuse(ctl(&["events", mount, "--since", "25:00"]), 1, "`25:00` is no time");
    refuse(ctl(&["why", "/nothing/there"]), 1, "No such file or directory");
    refuse(ctl(&["streams", "/proc"]), 1, "no AVFS volume is mounted there");
}
