//! Somebody's frames are late, and it is known why: each blocker is brought about, and has to be named.
//!
//! The core of production, on a device that does one command after the other and becomes slow where the test wants it.

mod stage;

use avfs_core::events::{Cause, EventKind, EventReport};
use stage::{Player, Stage};
use units::{Bitrate, Duration};

const SECOND: Duration = Duration::from_secs(1);

/// The events of one kind and file, or of all (`*`); there are some.
#[track_caller]
fn of<'a>(events: &'a [EventReport], kind: EventKind, path: &str) -> Vec<&'a EventReport> {
    let is_it = |event: &&EventReport| {
        event.kind == kind && event.path.as_deref().is_some_and(|other| path == "*" || other == path)
    };
    let of: Vec<_> = events.iter().filter(is_it).collect();
    assert!(!of.is_empty(), "{path}: {events:#?}");
    of
}

/// Most of these were late for this reason.
#[track_caller]
fn assert_cause(events: &[&EventReport], cause: Cause) {
    let so = events.iter().filter(|event| event.cause == Some(cause)).count();
    assert!(so * 2 > events.len(), "{events:#?}");
}

#[test]
fn a_stream_that_is_served_in_time_has_no_events() {
    let mut stage = Stage::new(&[96, 96, 96]);
    let mut players: Vec<Player> = (0..3).map(|clip| stage.player(clip)).collect();
    stage.play(&mut players, SECOND * 5);
    assert_eq!(stage.happened(), []);
    let details = stage.volume.stream_details();
    assert_eq!(details.len(), 3);
    for (number, detail) in details.iter().enumerate() {
        assert_eq!(detail.path.as_deref(), Some(&*format!("/{number}.mov")));
        assert!(detail.ahead_microseconds > 300_000, "{detail:?}");
        assert!(detail.stream.share_permille > 30 && detail.reason.is_none(), "{detail:?}");
        assert_eq!(detail.clients.len(), 1);
    }
}

#[test]
fn a_slow_disk_is_named() {
    let mut stage = Stage::new(&[128, 128, 128]);
    let mut players: Vec<Player> = (0..3).map(|clip| stage.player(clip)).collect();
    stage.play(&mut players, SECOND * 4);
    assert_eq!(stage.happened(), []);
    // So long that most of what is late is late while the disk is slow, not when it has caught up.
    stage.knobs().factor = 12.0;
    stage.play(&mut players, SECOND * 8);
    stage.knobs().factor = 1.0;
    stage.play(&mut players, SECOND * 2);
    let events = stage.happened();
    let late = of(&events, EventKind::Late, "*");
    assert_cause(&late, Cause::SlowDisk);
    let worst = late.iter().max_by_key(|event| event.late_microseconds).unwrap();
    assert!((200_000..9_000_000).contains(&worst.late_microseconds), "{worst:#?}");
    let work = worst.work.unwrap();
    assert!(work.span - work.idle > work.reckoned * 3, "{worst:#?}");
    assert!(worst.sentence().contains("the disk was slow"), "{}", worst.sentence());
}

/// The device takes what is written into its cache; who flushes it waits for that, and everybody else behind it.
#[test]
fn best_effort_is_named_with_its_client() {
    let mut stage = Stage::new(&[128, 128]);
    let mut players: Vec<Player> = (0..2).map(|clip| stage.player(clip)).collect();
    stage.play(&mut players, SECOND * 3);
    stage.knobs().flush = SECOND * 4;
    let copy = stage.copy("render.exr", 16);
    stage.play(&mut players, SECOND * 6);
    assert!(stage.volume.has_ended(copy));
    let events = stage.happened();
    let late = of(&events, EventKind::Late, "*");
    assert_cause(&late, Cause::BestEffort);
    assert!(late.iter().any(|event| event.sentence().contains("best effort held the disk")), "{late:#?}");
}

/// Only what is read for one of them takes long: a bad place, or an array's stripe that is rebuilt.
#[test]
fn another_stream_is_named() {
    let mut stage = Stage::new(&[128, 128, 128]);
    let mut players: Vec<Player> = (0..3).map(|clip| stage.player(clip)).collect();
    stage.play(&mut players, SECOND * 3);
    stage.slow_place(1, 25.0);
    stage.play(&mut players, SECOND * 7);
    let events = stage.happened();
    // Of the one itself it is the disk.
    assert_cause(&of(&events, EventKind::Late, "/1.mov"), Cause::SlowDisk);
    let mut late = of(&events, EventKind::Late, "*");
    late.retain(|event| event.path.as_deref() != Some("/1.mov"));
    assert_eq!(late[0].cause, Some(Cause::AnotherStream), "{late:#?}");
    for event in late.iter().filter(|event| event.cause == Some(Cause::AnotherStream)) {
        assert_eq!(event.blocker_path.as_deref(), Some("/1.mov"), "{event:#?}");
        assert!(event.sentence().contains("another stream held the disk"), "{}", event.sentence());
    }
}

/// Most of the clip lies in one piece, and the admission reckons with the mean; what comes then is scattered.
#[test]
fn seeks_are_named() {
    let mut stage = Stage::with_scattered_end(64, 40);
    let mut players = vec![stage.player(0)];
    stage.play(&mut players, SECOND * 9);
    let events = stage.happened();
    let late = of(&events, EventKind::Late, "/0.mov");
    assert_cause(&late, Cause::Seek);
    let worst = late.iter().max_by_key(|event| event.late_microseconds).unwrap();
    assert_eq!(worst.blocker_path.as_deref(), Some("/0.mov"));
    assert!(worst.sentence().contains("lies in pieces"), "{}", worst.sentence());
}

/// More players than the device carries: those for whom there was no room are told so, and are late for that.
#[test]
fn over_admission_is_named() {
    let clips = [80; 9];
    let mut stage = Stage::half_as_fast(&clips);
    let mut players: Vec<Player> = (0..clips.len()).map(|clip| stage.player(clip)).collect();
    stage.play(&mut players, SECOND * 3);
    assert_eq!(stage.room(Bitrate::from_megabits(100)), 0);
    stage.play(&mut players, SECOND * 5);
    let events = stage.happened();
    let refused: Vec<_> = events.iter().filter(|event| event.kind == EventKind::Refused).collect();
    assert!(refused.len() >= 3, "{events:#?}");
    assert!(refused.iter().all(|event| event.reason.is_some()), "{refused:#?}");
    let is_refused = |event: &&EventReport| refused.iter().any(|other| other.path == event.path);
    let late = || events.iter().filter(|event| event.kind == EventKind::Late).filter(is_refused);
    assert!(late().count() >= 3, "{events:#?}");
    for event in late() {
        assert_eq!(event.cause, Some(Cause::OverAdmission), "{event:#?}");
        assert!(event.sentence().contains("there was no room for it"), "{}", event.sentence());
    }
    assert!(events.iter().any(|event| event.kind == EventKind::Late && event.is_noticed));
}

#[test]
fn the_client_itself_is_named() {
    let mut stage = Stage::new(&[128, 128]);
    let mut players: Vec<Player> = (0..2).map(|clip| stage.player(clip)).collect();
    stage.play(&mut players, SECOND * 4);
    players[0].hangs(SECOND * 3);
    stage.play(&mut players, SECOND * 4);
    let events = stage.happened();
    assert!(events.iter().all(|event| event.kind == EventKind::ClientLate), "{events:#?}");
    let [late] = of(&events, EventKind::ClientLate, "/0.mov")[..] else { panic!("{events:#?}") };
    assert_eq!(late.cause, Some(Cause::Client));
    assert!((2_900_000..3_200_000).contains(&late.client_microseconds), "{late:#?}");
    assert!(late.storage_microseconds < 20_000, "{late:#?}");
    assert!(late.sentence().contains("the client itself"), "{}", late.sentence());
    assert_eq!(events.len(), 1);
}

/// The device becomes slower for good: that is told, and who loses its promise.
#[test]
fn a_device_that_stays_slow_is_told_and_the_streams_that_have_to_give_way() {
    let mut stage = Stage::new(&[200, 200, 200, 200]);
    let mut players: Vec<Player> = (0..4).map(|clip| stage.player(clip)).collect();
    stage.play(&mut players, SECOND * 3);
    stage.knobs().factor = 4.0;
    stage.play(&mut players, SECOND * 10);
    let events = stage.happened();
    assert!(events.iter().any(|event| event.kind == EventKind::DeviceSlower), "{events:#?}");
    assert!(events.iter().any(|event| event.kind == EventKind::Demoted), "{events:#?}");
}
