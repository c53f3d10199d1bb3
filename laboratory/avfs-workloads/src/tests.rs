//! Clients before files in virtual time.

use crate::spec::takes;
use crate::*;
use std::collections::BTreeMap;
use units::{Bytes, Duration, Instant};

const START: Instant = Instant::from_nanos(5);

/// Files in virtual time: operations take a time each, one after the other.
struct Modelled {
    now: Instant,
    free: Instant,
    each: Duration,
    /// The operation of this number takes so long.
    hiccup: Option<(u64, Duration)>,
    count: u64,
    /// The largest number of operations at once.
    deepest: usize,
    due: BTreeMap<(Instant, u64), Outcome>,
    names: Vec<String>,
    /// Files end here, and grow by so many bytes a second from the start on.
    grows: Option<f64>,
}

impl Modelled {
    fn new(each: Duration) -> Self {
        Self {
            now: START,
            free: Instant::ZERO,
            each,
            hiccup: None,
            count: 0,
            deepest: 0,
            due: BTreeMap::new(),
            names: Vec::new(),
            grows: None,
        }
    }
}

impl Transport for Modelled {
    fn now(&self) -> Instant {
        self.now
    }
    fn largest(&self) -> u32 {
        1 << 20
    }
    fn submit(&mut self, ask: Ask) -> Result<(), TransportError> {
        let (mut answer, mut time) = (Answer::Done, self.each);
        match ask.operation {
            Operation::Open { name, .. } => {
                answer = Answer::Opened { file: self.count, length: 1 << 30 };
                time = Duration::ZERO;
                self.names.push(name);
            }
            Operation::Close { .. } | Operation::MakeDirectory { .. } => time = Duration::ZERO,
            Operation::Read { offset, length, .. } => {
                let end = self
                    .grows
                    .map_or(f64::INFINITY, |rate| rate * self.now.saturating_since(START).as_secs_f64());
                if (offset + u64::from(length)) as f64 > end {
                    answer = Answer::Beyond;
                }
            }
            Operation::Write { .. } => {}
        }
        if let Some((number, hiccup)) = self.hiccup
            && number == self.count
        {
            time += hiccup;
        }
        self.count += 1;
        self.free = self.free.max(self.now) + time;
        let outcome = Outcome { client: ask.client, tag: ask.tag, answer: Ok(answer) };
        self.due.insert((self.free, self.count), outcome);
        self.deepest = self.deepest.max(self.due.len());
        Ok(())
    }
    fn wait(&mut self, until: Instant, outcomes: &mut Vec<Outcome>) -> Result<(), TransportError> {
        let next = self.due.first_key_value().map_or(until, |((at, _), _)| *at);
        self.now = self.now.max(next.min(until));
        while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= self.now) {
            outcomes.push(entry.remove());
        }
        Ok(())
    }
}

const SPEC: StreamSpec = StreamSpec { megabits: 100.0, unit_kib: 1024, buffer_ms: 1000 };

fn clients(pattern: &Pattern, count: usize) -> Vec<Client> {
    let spec = |index| ClientSpec {
        directory: format!("p{index}"),
        pattern: pattern.clone(),
        start_after: Duration::from_millis(250 * index as u64),
        clip: Bytes::from_mib(256),
        position: 0.4,
        visits: Visits::default(),
    };
    (0..count).map(|index| Client::new(&spec(index))).collect()
}

fn late(transport: &mut Modelled, pattern: &Pattern, count: usize) -> (u64, Vec<ClientReport>) {
    let duration = Duration::from_secs(30);
    let reports = run(transport, &mut clients(pattern, count), duration, |_, _| {}).expect("it never fails");
    assert!(reports.iter().all(|report| report.errors == 0));
    (reports.iter().map(|report| report.late).sum(), reports)
}

/// A megabyte in 10 ms is 839 Mbit/s: eight streams of 100 Mbit/s, not nine.
#[test]
fn as_many_streams_are_in_time_as_the_files_are_fast() {
    for pattern in [
        Pattern::Player(SPEC),
        Pattern::Recorder(SPEC),
        Pattern::FramePlayer(SPEC),
        Pattern::FrameRecorder(SPEC),
    ] {
        let each = Duration::from_millis(10);
        let (clean, reports) = late(&mut Modelled::new(each), &pattern, 8);
        assert_eq!(clean, 0, "{pattern:?}");
        let (least, most) =
            (reports.iter().map(|one| one.units).min(), reports.iter().map(|one| one.units).max());
        assert!(
            least >= Some(320) && most <= Some(358),
            "{pattern:?}: {least:?} to {most:?} units of 84 ms in 30 s"
        );
        let (overload, _) = late(&mut Modelled::new(each), &pattern, 9);
        assert!(overload > 0, "{pattern:?}");
    }
}

#[test]
fn a_pause_shorter_than_the_buffer_is_not_seen_and_a_longer_one_is() {
    for pattern in [Pattern::Player(SPEC), Pattern::Recorder(SPEC)] {
        for (hiccup, seen) in [(700, false), (1300, true)] {
            let mut transport = Modelled::new(Duration::from_millis(5));
            transport.hiccup = Some((100, Duration::from_millis(hiccup)));
            let (late, reports) = late(&mut transport, &pattern, 1);
            assert_eq!(late > 0, seen, "{pattern:?} after {hiccup} ms");
            assert_eq!(reports[0].latest_ms > 0.0, seen);
        }
    }
}

/// Recorders that had all their units on the way at once took a larger share of a kernel's writers than a copy did, so
/// no filesystem was late beside one.
#[test]
fn a_recorder_hands_over_one_unit_at_a_time_and_then_makes_up_for_a_pause() {
    for (pattern, deepest) in [(Pattern::Recorder(SPEC), 1), (Pattern::Player(SPEC), 12)] {
        let mut transport = Modelled::new(Duration::from_millis(5));
        transport.hiccup = Some((100, Duration::from_millis(700)));
        let (late, reports) = late(&mut transport, &pattern, 1);
        assert_eq!(late, 0, "{pattern:?}");
        assert_eq!(transport.deepest, deepest, "{pattern:?}");
        assert!(reports[0].units >= 340, "{} units of 84 ms in 30 s", reports[0].units);
    }
}

/// What never came must not be forgotten because nothing came that could be counted.
#[test]
fn a_stream_that_hangs_until_the_end_is_late() {
    for pattern in [Pattern::Player(SPEC), Pattern::Recorder(SPEC)] {
        let mut transport = Modelled::new(Duration::from_millis(5));
        transport.hiccup = Some((100, Duration::from_secs(3600)));
        let (late, _) = late(&mut transport, &pattern, 1);
        assert!(late > 0, "{pattern:?}");
    }
}

#[test]
fn greedy_clients_take_what_there_is() {
    let copy = CopySpec { request_kib: 1024, in_flight: 8, files_at_once: 1 };
    let many = CopySpec { in_flight: 2, files_at_once: 8, ..copy };
    let patterns =
        [Pattern::CopyFrom(copy), Pattern::CopyTo(copy), Pattern::CopyTo(many), Pattern::RandomReader(copy)];
    for pattern in patterns {
        pattern.check().expect("it can be carried out");
        let mut transport = Modelled::new(Duration::from_millis(10));
        let (_, reports) = late(&mut transport, &pattern, 1);
        let mib = reports[0].bytes >> 20;
        assert!((2990..=3000).contains(&mib), "{pattern:?}: {mib} MiB in 30 s of 10 ms each");
        assert_eq!(transport.deepest, if pattern == Pattern::CopyTo(many) { 16 } else { 8 });
    }
}

/// Twelve units of 10 ms fill a buffer of a second; the second player's wait behind the first one's.
#[test]
fn a_start_takes_until_the_buffer_is_full_and_one_that_never_is_has_taken_all_the_time() {
    let mut transport = Modelled::new(Duration::from_millis(10));
    let (_, reports) = late(&mut transport, &Pattern::Player(SPEC), 1);
    assert_eq!((reports[0].start.count(), reports[0].start.longest_ms()), (1, 120.0));
    let (_, reports) = late(&mut Modelled::new(Duration::from_millis(10)), &Pattern::Recorder(SPEC), 1);
    assert_eq!(reports[0].start.count(), 0, "who records does not wait");
    let mut hangs = Modelled::new(Duration::from_millis(10));
    hangs.hiccup = Some((5, Duration::from_secs(3600)));
    let (_, reports) = late(&mut hangs, &Pattern::Player(SPEC), 1);
    // It was looked at a tenth of a second before the end, or later.
    let start = &reports[0].start;
    assert!(start.count() == 1 && (29_900.0..=30_000.0).contains(&start.longest_ms()), "{start:?}");
}

#[test]
fn a_jump_takes_until_its_picture_and_the_pause_does_not_count() {
    let scrub = Pattern::Scrubber(ScrubSpec { picture_kib: 512, pause_ms: 190 });
    scrub.check().expect("it can be carried out");
    let mut transport = Modelled::new(Duration::from_millis(10));
    // The open is the first operation.
    transport.hiccup = Some((4, Duration::from_millis(500)));
    let (_, reports) = late(&mut transport, &scrub, 1);
    let jumps = &reports[0].jumps;
    assert!((147..=149).contains(&jumps.count()), "{} jumps in 30 s, each 200 ms, one 700", jumps.count());
    assert_eq!(jumps.longest_ms(), 510.0);
    assert!(jumps.percentile_ms(50.0) < 12.0);
    assert_eq!(transport.deepest, 1);
    let mut hangs = Modelled::new(Duration::from_millis(10));
    hangs.hiccup = Some((4, Duration::from_secs(3600)));
    let (_, reports) = late(&mut hangs, &scrub, 1);
    assert!(reports[0].jumps.longest_ms() > 29_000.0, "whoever still waits has waited");
}

/// Who paused and went on was reckoned to have begun with the pause's play before it: all players that pause began after twelve
/// seconds, also the only one on an idle device, and none was ever in time.
#[test]
fn who_goes_on_after_a_pause_begins_then() {
    let (play_ms, pause_ms) = (Span::Fixed(8000), Span::Fixed(4000));
    let editor = EditorSpec {
        megabits: 100.0,
        unit_kib: 1024,
        buffer_ms: 1000,
        play_ms,
        pause_ms,
        then: Thens::One(Then::Pause),
    };
    let mut transport = Modelled::new(Duration::from_millis(5));
    let (late, reports) = late(&mut transport, &Pattern::Editor(editor), 1);
    assert_eq!((late, reports[0].start.count()), (0, 3), "it begins thrice in 30 s");
    assert!(reports[0].start.longest_ms() <= 60.0, "{} ms", reports[0].start.longest_ms());
}

/// A copy of one file went on at 9 Gbit/s: it wrote over what had not left memory.
#[test]
fn a_copy_does_not_write_over_what_may_be_in_memory_still() {
    let gib = |files_at_once, clip_mib| {
        let copy = CopySpec { request_kib: 1024, in_flight: 1, files_at_once };
        let clip = Bytes::from_mib(clip_mib);
        (takes(&copy, clip) * u64::from(files_at_once) * clip.as_u64()) as f64 / f64::from(1 << 30)
    };
    assert_eq!([gib(1, 256), gib(4, 256), gib(12, 256), gib(1, 4096)], [4.0, 4.0, 12.0, 16.0]);
    assert!((4.0..4.1).contains(&gib(1, 96)));
}

#[test]
fn laying_ends_and_each_file_has_its_length() {
    let files: Vec<_> = (0..3).map(|index| (format!("d/{index}"), Bytes::from_kib(2500))).collect();
    let mut laying = vec![Client::laying(files)];
    let mut transport = Modelled::new(Duration::from_millis(1));
    let reports =
        run(&mut transport, &mut laying, Duration::from_secs(3600), |_, _| {}).expect("it never fails");
    assert!(laying[0].is_finished());
    assert!(transport.now() < Instant::ZERO + Duration::from_secs(1), "it ended when it had finished");
    assert_eq!(reports[0].bytes, 3 * 2500 * 1024);
    assert_eq!(transport.names, ["d/0", "d/1", "d/2"]);
}

#[test]
fn an_office_saves_and_reads_documents() {
    let (_, reports) =
        late(&mut Modelled::new(Duration::from_millis(1)), &Pattern::Office { pause_ms: 100 }, 1);
    assert!((280..=300).contains(&reports[0].units), "{} documents in 30 s", reports[0].units);
}

/// A take of 100 Mbit/s, of which as much as fills the buffer is there when the chaser begins.
#[test]
fn a_chaser_plays_what_grows_and_is_late_when_it_grows_too_slowly() {
    let chaser = |behind_ms| {
        Pattern::Chaser(ChaseSpec { megabits: 100.0, unit_kib: 1024, buffer_ms: 1000, behind_ms })
    };
    let play = |rate: f64, behind_ms| {
        let mut transport = Modelled::new(Duration::from_millis(5));
        transport.grows = Some(rate * 1e6 / 8.0);
        let spec = ClientSpec {
            directory: "recorder".to_owned(),
            pattern: chaser(behind_ms),
            start_after: chaser(behind_ms).delay(),
            clip: Bytes::from_mib(1),
            position: 0.4,
            visits: Visits::default(),
        };
        spec.pattern.check().expect("it can be carried out");
        assert_eq!(spec.needs(), [], "it is recorded");
        let reports = run(&mut transport, &mut [Client::new(&spec)], Duration::from_secs(30), |_, _| {});
        assert_eq!(transport.names, ["recorder/take.100.mov"]);
        reports.expect("it never fails").remove(0)
    };
    let clean = play(100.0, 2000);
    assert_eq!((clean.late, clean.errors), (0, 0));
    // 28 s less the second that fills its buffer, which took 60 ms.
    assert!((330..=334).contains(&clean.units), "{} units of 84 ms", clean.units);
    let slow = play(90.0, 2000);
    assert!(slow.late > 0 && slow.errors == 0, "{} late, {:?}", slow.late, slow.first_error);
    let far = play(95.0, 8000);
    assert_eq!(far.late, 0, "it has not caught up yet");
}

/// What others read has its length.
#[test]
fn who_does_not_chase_must_not_meet_the_end_of_a_file() {
    let mut transport = Modelled::new(Duration::from_millis(5));
    transport.grows = Some(1e6);
    let reports =
        run(&mut transport, &mut clients(&Pattern::Player(SPEC), 1), Duration::from_secs(2), |_, _| {});
    let report = &reports.expect("it never fails")[0];
    assert!(
        report.errors > 0 && report.first_error.as_ref().is_some_and(|error| error.contains("the file ends"))
    );
}

/// What is drawn of a time is of that time, and what is fixed draws nothing.
#[test]
fn a_client_comes_and_goes_as_it_is_declared() {
    let visits = Visits { stay: Some(Span::Between([3000, 4000])), away: Some(Span::Fixed(2000)) };
    for pattern in [Pattern::Player(SPEC), Pattern::Recorder(SPEC), Pattern::FramePlayer(SPEC)] {
        let spec = ClientSpec {
            directory: "p".to_owned(),
            pattern: pattern.clone(),
            start_after: Duration::ZERO,
            clip: Bytes::from_mib(256),
            position: 0.4,
            visits,
        };
        let mut transport = Modelled::new(Duration::from_millis(5));
        let reports = run(&mut transport, &mut [Client::new(&spec)], Duration::from_secs(30), |_, _| {});
        let report = reports.expect("it never fails").remove(0);
        assert_eq!((report.late, report.errors), (0, 0), "{pattern:?}");
        // It is there for 3 to 4 of each 5 to 6 s, of 84 ms a unit; a player needs 60 ms to begin.
        assert!((180..=260).contains(&report.units), "{pattern:?}: {} units", report.units);
        if matches!(pattern, Pattern::Player(_)) {
            let opens = transport.names.len() as u64;
            assert!((5..=6).contains(&opens) && report.start.count() == opens, "{opens} opens");
        }
    }
}

/// A recorder that leaves has handed over all that it has recorded.
#[test]
fn a_recorder_that_leaves_loses_nothing() {
    let spec = ClientSpec {
        directory: "p".to_owned(),
        pattern: Pattern::Recorder(SPEC),
        start_after: Duration::ZERO,
        clip: Bytes::from_mib(256),
        position: 0.4,
        visits: Visits { stay: Some(Span::Fixed(5000)), away: None },
    };
    let mut transport = Modelled::new(Duration::from_millis(5));
    // It leaves while a unit takes 700 ms, and eight wait behind it.
    transport.hiccup = Some((60, Duration::from_millis(700)));
    let reports = run(&mut transport, &mut [Client::new(&spec)], Duration::from_secs(30), |_, _| {});
    let report = &reports.expect("it never fails")[0];
    assert_eq!((report.units, report.late, report.errors), (60, 0, 0));
}

#[test]
fn an_editor_does_what_is_drawn_for_it() {
    let then = Thens::Several(vec![Then::Jump, Then::Pause]);
    let (play_ms, pause_ms) = (Span::Between([500, 1500]), Span::Between([200, 400]));
    let editor = EditorSpec { megabits: 100.0, unit_kib: 1024, buffer_ms: 1000, play_ms, pause_ms, then };
    let mut transport = Modelled::new(Duration::from_millis(5));
    let (late, reports) = late(&mut transport, &Pattern::Editor(editor), 1);
    // 30 s of plays of a second, each with a begin of 60 ms at the most, half of them with a pause of 300 ms.
    let begins = reports[0].start.count();
    assert!(late == 0 && (20..=32).contains(&begins), "{late} late, {begins} begins");
}
