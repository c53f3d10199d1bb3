//! Every declared scenario ends as it declares; here for minutes of virtual time, by `rtsched-sim run` for an hour.

use rtsched_sim::policy::PolicyName;
use rtsched_sim::scenarios::{self, Mix};
use rtsched_sim::simulation::{Happening, run, run_observed};
use rtsched_sim::workload::Scenario;
use std::collections::BTreeSet;

fn ends_as_declared(name: &str) {
    let scenario = scenarios::named(name).expect("declared").remove(0);
    let outcome =
        run(&scenario, PolicyName::Rtsched, 1, scenario.duration(false)).expect("its device is declared");
    let failures = outcome.failures(scenario.expect());
    assert!(failures.is_empty(), "{}\n{}", outcome.to_table(true), failures.join("\n"));
}

macro_rules! scenarios {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(#[test] fn $test() { ends_as_declared($name); })*

        #[test]
        fn none_is_forgotten() {
            let tried: BTreeSet<_> = [$($name),*].into_iter().collect();
            assert_eq!(tried, scenarios::names().collect());
        }
    };
}

scenarios! {
    readers: "readers",
    readers_copier: "readers-copier",
    readers_8_copier: "readers-8-copier",
    writers: "writers",
    writers_copier: "writers-copier",
    mixed: "mixed",
    churn: "churn",
    degrading: "degrading",
    misbehaving: "misbehaving",
    office: "office",
    fragmented: "fragmented",
    zoned: "zoned",
    disk: "disk",
    ssd: "ssd",
    nvme_1000: "nvme-1000",
}

#[test]
fn random_scenarios_end_well() {
    for seed in 1..=10 {
        let scenario = scenarios::random(Mix::Players, seed, 120);
        let outcome = run(&scenario, PolicyName::Rtsched, seed, scenario.duration(false)).expect("declared");
        let failures = outcome.failures(scenario.expect());
        assert!(failures.is_empty(), "seed {seed}\n{}\n{}", outcome.to_table(true), failures.join("\n"));
    }
}

#[test]
fn no_unit_is_late_whatever_is_done_on_any_device() {
    // What went wrong once: files in the inner zones of a disk whose mean rate alone was known (100, 146: told nothing else, units
    // are late), a cache that writes back while reads wait (138), time that no stream had because a write overtook a read (194),
    // writes priced by a line they do not keep to (42), and writes that took twice as long between reads as in one piece (13, 144).
    for (seed, seconds) in
        (1..=12).map(|seed| (seed, 120)).chain([13, 42, 100, 138, 144, 146, 194].map(|seed| (seed, 300)))
    {
        let scenario = scenarios::random(Mix::Everything, seed, seconds);
        let outcome = run(&scenario, PolicyName::Rtsched, seed, scenario.duration(false)).expect("declared");
        assert_eq!(outcome.violations, Vec::<String>::new(), "seed {seed}");
        assert_eq!(outcome.late(), 0, "seed {seed}\n{}", outcome.to_table(true));
    }
}

#[test]
fn no_stream_is_refused_for_what_writes_cost_between_reads_or_for_a_price_that_is_off() {
    // Long writes priced 5 % too high by a line (25, 110, 191: told nothing else, streams are refused that fit), reads that were
    // blamed for what a cache wrote between them (96, 143), a stream at the better end of a zone (35: with mean rates, 47 are).
    for seed in [25, 35, 96, 110, 143, 191] {
        let scenario = scenarios::random(Mix::Everything, seed, 300);
        let outcome = run(&scenario, PolicyName::Rtsched, seed, scenario.duration(false)).expect("declared");
        let failures = outcome.failures(scenario.expect());
        assert!(failures.is_empty(), "seed {seed}\n{}\n{}", outcome.to_table(true), failures.join("\n"));
    }
}

/// Beside a copy that has gone on for three minutes, five players of 400 Mbit/s ask for a device that carries two or three.
const AFTER_A_COPY: &str = r#"
name = "after-a-copy"
title = "What a copy teaches of writes says nothing of reads"
device = "raid5-table5"
seconds = 240

[[experiment]]
name = "first"
client = { kind = "player", megabits = 400, unit_kib = 2048, buffer_ms = 40 }
most = 1
guess = 1
background = [
    { kind = "office", pause_ms = 300 },
    { kind = "office", pause_ms = 300 },
]

[[experiment.group]]
name = "later"
count = 4
client = { kind = "player", megabits = 400, unit_kib = 2048, buffer_ms = 40 }
after_ms = 180000

[[experiment.group]]
name = "copy"
count = 2
client = { kind = "copy-from", request_kib = 4096, in_flight = 1 }
in_turn_with = [{ kind = "copy-to", request_kib = 4096, in_flight = 1 }]
after_ms = 5000
"#;

#[test]
fn what_a_copy_teaches_of_writes_does_not_make_reads_cheap() {
    let scenario = Scenario::parse(AFTER_A_COPY).expect("a scenario");
    let (mut admitted, mut most) = (0, 0.0_f64);
    let mut watch = |_, what: &Happening<'_>| {
        if let Happening::Asked { answer: Ok(_), oracle, .. } = what {
            admitted += 1;
            most = most.max(oracle.expect("there is memory"));
        }
    };
    let duration = scenario.duration(false);
    let outcome = run_observed(&scenario, PolicyName::Rtsched, 1, duration, &mut watch).expect("declared");
    assert_eq!(outcome.failures(scenario.expect()), Vec::<String>::new(), "{}", outcome.to_table(true));
    assert!(admitted >= 2 && most <= 1.0, "{admitted} admitted that take {most} of the time");
}
