//! The simulator against devices so simple that one can reckon what must come out, and against policies that are wrong.

use rtsched::{Dispatch, DispatchId, Request, RequestId, StreamId};
use rtsched_sim::device::{DeviceSpec, ModelSpec};
use rtsched_sim::policy::baseline::Baseline;
use rtsched_sim::policy::{Ask, Grant, Notice, Policy, PolicyName};
use rtsched_sim::report::Outcome;
use rtsched_sim::simulation::{Happening, run, run_with};
use rtsched_sim::workload::Scenario;
use rtsched_sim::{scenarios, scenarios::Mix, workload::Expect};
use units::{Bytes, Duration, Instant};

/// 100 MB/s, wherever and whenever.
fn plain_device() -> DeviceSpec {
    let mut spec = DeviceSpec::named("raid5-table5").expect("declared");
    let ModelSpec::Disk(disk) = &mut spec.model else { unreachable!("a RAID of disks") };
    (disk.command_ms, disk.settle_ms, disk.full_stroke_ms, disk.rotation_ms) = (0.0, 0.0, 0.0, 0.0);
    (disk.outer_mb_per_s, disk.inner_mb_per_s) = (100.0, 100.0);
    disk.write_ms = vec![(1, 0.010_24), (1000, 10.24)];
    disk.cache = None;
    spec
}

const PLAYER: &str = "kind = \"player\"";
const RECORDER: &str = "kind = \"recorder\"";

fn scenario(client: &str, count: u32, more: &str) -> Scenario {
    let head = "name = \"t\"\ndevice = \"raid5-table5\"\nseconds = 60\n[[experiment]]\nname = \"p\"\n";
    let counted = format!("client = {{ {client} }}\nmost = {count}\nguess = 1\nevery_ms = 0\n");
    Scenario::parse(&format!("{head}{counted}told = {{ file_mib = 65536 }}\n{more}")).expect("a scenario")
}

/// Clients of 100 Mbit/s that start at once, and hold one unit of 41.9 ms.
fn clients(count: u32, kind: &str) -> Scenario {
    scenario(&format!("{kind}, megabits = 100, unit_kib = 512, buffer_ms = 40"), count, "")
}

fn players(count: u32) -> Scenario {
    clients(count, PLAYER)
}

fn run_plain(scenario: &Scenario, name: PolicyName, seconds: u64) -> Outcome {
    let mut policy = Baseline::new(name, Bytes::from_mib(8)).expect("a baseline");
    let duration = Duration::from_secs(seconds);
    run_with(scenario, &plain_device(), &mut policy, name.as_str(), 1, duration, &mut |_, _| ())
}

#[test]
fn eight_times_an_eighth_of_the_device_is_all_of_it_and_nine_are_too_many() {
    for (count, fits) in [(8, true), (9, false)] {
        for name in [PolicyName::Fifo, PolicyName::Edf, PolicyName::CScan, PolicyName::MqDeadline] {
            let outcome = run_plain(&players(count), name, 60);
            assert_eq!(outcome.violations, Vec::<String>::new());
            // FIFO and EDF serve equal periods in turn, and the eighth request ends exactly when it is due.
            if fits && matches!(name, PolicyName::Fifo | PolicyName::Edf) {
                assert_eq!(outcome.late(), 0, "{name:?}");
                assert_eq!(outcome.clean(), 8);
            }
            assert!(fits || outcome.late() > 0, "{name:?} carries what cannot be carried");
            assert!(outcome.utilisation > 0.98 && outcome.utilisation < 1.0001, "{}", outcome.utilisation);
        }
    }
}

#[test]
fn units_are_counted_once_and_none_is_forgotten() {
    // Shown from 0.671 s and a unit on, when the first request of 8 MiB is due and its first unit has been played.
    for (count, late) in [(1, false), (16, true)] {
        let outcome = run_plain(&players(count), PolicyName::Edf, 60);
        for stream in &outcome.streams {
            let most = (60.0 - 0.671) / 0.041_943;
            let shown = (stream.on_time + stream.late) as f64;
            assert_eq!(stream.late > 0, late);
            assert_eq!(stream.tardiness_max_ms.expect("admitted") > 0.0, late);
            // Sixteen players want twice what there is: playing waits, so each sees about half, and a request's wait counts once.
            let expected = if late { most / 2.0 } else { most };
            assert!(
                (expected * 0.9..=expected * if late { 1.1 } else { 1.005 }).contains(&shown),
                "{shown} of {expected}"
            );
            assert!(stream.late as f64 <= shown / 16.0 + 1.0, "{} late of {shown}", stream.late);
        }
    }
}

/// A unit's second part is due when its own request is, up to a unit behind the first one's begin.
#[test]
fn a_unit_that_lies_in_two_requests_is_in_time_when_they_are() {
    for name in [PolicyName::Fifo, PolicyName::Edf] {
        let client = "kind = \"player\", megabits = 100, unit_kib = 576, buffer_ms = 40";
        let outcome = run_plain(&scenario(client, 8, ""), name, 60);
        let most = outcome
            .streams
            .iter()
            .filter_map(|stream| stream.tardiness_max_ms)
            .fold(f64::NEG_INFINITY, f64::max);
        assert!((-1e-3..=1e-3).contains(&most), "the device is not just fast enough: {most} ms");
        assert_eq!((outcome.late(), outcome.clean()), (0, 8), "{name:?}");
    }
}

#[test]
fn a_recorder_is_late_when_its_buffer_is_full() {
    for (count, fits) in [(8, true), (9, false)] {
        let outcome = run_plain(&clients(count, RECORDER), PolicyName::Edf, 60);
        assert_eq!(outcome.violations, Vec::<String>::new());
        assert_eq!(outcome.late() == 0, fits, "{count}: {} late", outcome.late());
        let recorded = 8.0 * 60.0 * 12.5;
        let written = outcome.streams_mb_per_s * 60.0;
        if fits {
            assert!((recorded * 0.95..recorded).contains(&written), "{written} of {recorded} MB");
        }
    }
}

#[test]
fn a_pause_stops_the_clock_and_a_jump_starts_another() {
    let editor = |count, play: &str, then: &str| {
        let client = "kind = \"editor\", megabits = 100, unit_kib = 512, buffer_ms = 40, pause_ms = 10000";
        scenario(&format!("{client}, play_ms = {play}, then = \"{then}\""), count, "")
    };
    let outcome = run_plain(&editor(1, "10000", "pause"), PolicyName::Edf, 60);
    assert_eq!(outcome.late(), 0);
    // It plays in 30 of 60 seconds.
    let units = outcome.streams[0].on_time;
    assert!((700..=30 * 24 + 10).contains(&units), "{units}");

    let outcome = run_plain(&editor(6, "[2000, 9000]", "jump"), PolicyName::Edf, 60);
    assert_eq!(outcome.late(), 0, "a jump waits for its first request, and is promised no more");
    let units = |outcome: &Outcome| outcome.streams.iter().map(|stream| stream.on_time).sum::<u64>();
    let still = run_plain(&players(6), PolicyName::Edf, 60);
    assert!(units(&outcome) < units(&still), "it shows nothing while it waits");
}

#[test]
fn a_copier_keeps_as_much_outstanding_as_it_may() {
    let copier = "[[experiment.group]]\nname = \"copy\"\ncount = 1\nstay_ms = 30000\nclient = { kind = \"copy-from\", \
                  request_kib = 1024, in_flight = 3 }\n";
    // Beside it is a player that asks for 8 MiB, once.
    let client = "kind = \"player\", megabits = 0.1, unit_kib = 64, buffer_ms = 40";
    let outcome = run_plain(&scenario(client, 1, copier), PolicyName::Fifo, 60);
    assert_eq!(outcome.most_queued, 4);
    assert!((0.49..0.51).contains(&outcome.utilisation), "it stops half way: {}", outcome.utilisation);
    assert!((49.0..51.0).contains(&outcome.best_effort_mb_per_s), "{}", outcome.best_effort_mb_per_s);
    assert_eq!(outcome.best_effort_share_of_rest.map(|share| (share * 10.0).round()), Some(5.0));
}

#[test]
fn who_comes_and_goes_asks_to_be_admitted_each_time() {
    let stays = "stay_ms = 5000\naway_ms = [4000, 6000]";
    let client = "megabits = 100, unit_kib = 512, buffer_ms = 40";
    for kind in [PLAYER, RECORDER] {
        let outcome = run_plain(&scenario(&format!("{kind}, {client}"), 2, stays), PolicyName::Edf, 60);
        assert_eq!((outcome.late(), outcome.violations.len()), (0, 0), "{kind}");
        assert!(
            outcome.streams.iter().all(|stream| (5..=7).contains(&stream.admitted)),
            "{:?}",
            outcome.streams
        );
        // A visit's last take is written before its file is closed.
        assert!(outcome.streams_mb_per_s > 2.0 * 12.5 * 0.4, "{} MB/s", outcome.streams_mb_per_s);
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_one_another() {
    for name in scenarios::names() {
        let scenario = scenarios::named(name).expect("declared").remove(0);
        let trace = |policy, seed| {
            let duration = Duration::from_secs(10);
            run(&scenario, policy, seed, duration).expect("its device is declared").trace_hash
        };
        for policy in [PolicyName::Rtsched, PolicyName::Edf] {
            assert_eq!(trace(policy, 1), trace(policy, 1), "{name}");
            assert_ne!(trace(policy, 1), trace(policy, 2), "{name}");
        }
    }
}

#[test]
fn random_scenarios_are_declarations_that_can_be_kept() {
    for seed in 0..200 {
        let scenario = scenarios::random(Mix::Everything, seed, 60);
        let text = toml::to_string(scenario.declaration()).expect("serialises");
        assert_eq!(Scenario::parse(&text).expect("a declaration"), scenario);
    }
}

#[test]
fn what_is_wrong_in_a_declaration_is_named() {
    let client = "client = { kind = \"player\", megabits = 100, unit_kib = 64, buffer_ms = 40 }";
    let chaser =
        "client = { kind = \"chaser\", megabits = 100, unit_kib = 64, buffer_ms = 40, behind_ms = 80 }";
    let text = format!(
        "name = \"t\"\ndevice = \"nvme\"\nseconds = 60\n[[experiment]]\nname = \"p\"\n{client}\nmost = 1\nguess = 1\n"
    );
    assert!(Scenario::parse(&text).is_ok());
    for (from, to, named) in [
        ("megabits = 100", "megabits = 0", "megabits"),
        ("most = 1", "most = 1000000", "most"),
        ("seconds = 60", "seconds = 0", "seconds"),
        ("guess = 1", "guess = 1\nstay_ms = [5, 1]", "stay_ms"),
        ("guess = 1", "guess = 1\ntold = { extent_kib = 0 }", "extent_kib"),
        ("guess = 1", "guess = 1\ncolour = 3", "colour"),
        ("guess = 1", "guess = 1\naged_percent = 90", "./lab rehearse"),
        ("kind = \"player\"", "kind = \"frame-player\"", "./lab rehearse"),
        ("seconds = 60", "seconds = 60\nsimulated = { compare = [\"best\"] }", "best"),
    ] {
        assert!(text.contains(from), "{from} in {text}");
        let error = Scenario::parse(&text.replacen(from, to, 1)).expect_err(to).to_string();
        assert!(error.contains(named), "{error}");
    }
    let chases =
        text.replace("most = 1\n", &format!("most = 1\nin_turn_with = [{}]\n", &chaser["client = ".len()..]));
    let chases = chases.replace("kind = \"player\"", "kind = \"recorder\"");
    assert!(Scenario::parse(&chases).expect_err("a chaser").to_string().contains("./lab rehearse"));
    assert!(
        scenarios::named("nothing").expect_err("no such scenario").to_string().contains("readers-copier")
    );
}

/// A policy that goes wrong after a while.
struct Wrong {
    inner: Baseline,
    fault: Fault,
    count: u64,
    last: Option<Dispatch>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Loses,
    ServesTwice,
    Invents,
    Shortens,
}

impl Policy for Wrong {
    fn enqueue(&mut self, now: Instant, request: Request) {
        self.count += 1;
        if self.fault != Fault::Loses || self.count < 20 {
            self.inner.enqueue(now, request);
        }
    }

    fn dispatch(&mut self, now: Instant) -> Option<Dispatch> {
        let mut dispatch = self.inner.dispatch(now)?;
        if self.count > 20 {
            match (self.fault, &self.last) {
                (Fault::ServesTwice, Some(last)) => dispatch.requests = last.requests.clone(),
                (Fault::Invents, _) => dispatch.requests[0] = RequestId(u64::MAX),
                (Fault::Shortens, _) => dispatch.length = Bytes(dispatch.length.as_u64() / 2),
                _ => {}
            }
        }
        self.last = Some(dispatch.clone());
        Some(dispatch)
    }

    fn complete(&mut self, now: Instant, dispatch: DispatchId) {
        self.inner.complete(now, dispatch);
    }

    fn cancel(&mut self, now: Instant, id: RequestId) -> bool {
        self.inner.cancel(now, id)
    }

    fn next_wakeup(&self, now: Instant) -> Option<Instant> {
        self.inner.next_wakeup(now)
    }

    fn admit(&mut self, now: Instant, ask: &Ask) -> Result<Grant, String> {
        self.inner.admit(now, ask)
    }

    fn release(&mut self, now: Instant, stream: StreamId) {
        self.inner.release(now, stream);
    }

    fn notices(&mut self, now: Instant) -> Vec<Notice> {
        self.inner.notices(now)
    }
}

#[test]
fn a_policy_that_loses_or_repeats_requests_is_found_out() {
    for fault in [Fault::Loses, Fault::ServesTwice, Fault::Invents, Fault::Shortens] {
        let inner = Baseline::new(PolicyName::Edf, Bytes::from_mib(8)).expect("a baseline");
        let mut policy = Wrong { inner, fault, count: 0, last: None };
        let scenario = players(4);
        let duration = Duration::from_secs(60);
        let observer = &mut |_: Instant, _: &Happening<'_>| ();
        let outcome = run_with(&scenario, &plain_device(), &mut policy, "wrong", 1, duration, observer);
        assert!(!outcome.violations.is_empty(), "{fault:?}");
        assert!(!outcome.failures(&Expect::default()).is_empty());
    }
}

#[test]
fn expectations_that_are_not_met_are_told() {
    let outcome = run_plain(&players(9), PolicyName::Edf, 60);
    let expect = Expect {
        clean_min: Some(9),
        best_effort_share_min: Some(0.5),
        metadata_max_ms: Some(1.0),
        demoted_only: Some("p".to_owned()),
        ..Expect::default()
    };
    let failures = outcome.failures(&expect).join("; ");
    for told in ["late", "clean", "best effort has", "metadata", "demoted"] {
        assert!(failures.contains(told), "{told} in {failures}");
    }
    let good = run_plain(&players(2), PolicyName::Edf, 60);
    assert_eq!(good.failures(&Expect { clean_min: Some(2), ..Expect::default() }), Vec::<String>::new());
}
