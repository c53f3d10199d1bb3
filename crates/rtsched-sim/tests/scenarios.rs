//! Every declared scenario ends as it declares; here for minutes of virtual time, by `rtsched-sim run` for an hour.

use rtsched_sim::policy::PolicyName;
use rtsched_sim::scenarios::{self, Mix};
use rtsched_sim::simulation::run;
use std::collections::BTreeSet;

fn ends_as_declared(name: &str) {
    let scenario = scenarios::named(name).expect("declared");
    let outcome =
        run(&scenario, PolicyName::Rtsched, 1, scenario.duration(false)).expect("its device is declared");
    let failures = outcome.failures(&scenario.expect);
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
        let scenario = scenarios::random(Mix::Players, seed, 120.0);
        let outcome = run(&scenario, PolicyName::Rtsched, seed, scenario.duration(false)).expect("declared");
        let failures = outcome.failures(&scenario.expect);
        assert!(failures.is_empty(), "seed {seed}\n{}\n{}", outcome.to_table(true), failures.join("\n"));
    }
}
