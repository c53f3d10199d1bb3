//! A declaration is one for simulator, rehearsal and laboratory.

use avfs_lab::{agree, experiment, rehearsal};
use rtsched_sim::policy::PolicyName;
use rtsched_sim::workload::{Scenario, ScenarioError};
use rtsched_sim::{scenarios, simulation};

/// Simulator and laboratory had a grammar each, with two client models and two definitions of late behind them.
#[test]
fn each_declaration_can_be_carried_out_and_simulated_or_says_what_takes_a_volume() {
    let all = experiment::DECLARED.into_iter().chain(scenarios::declared()).chain(agree::DECLARED);
    let (mut simulated, mut refused) = (0, 0);
    for (name, text) in all {
        experiment::parse(text).unwrap_or_else(|error| panic!("{name} in the laboratory: {error}"));
        match Scenario::all(text) {
            Ok(scenarios) => simulated += scenarios.len(),
            Err(ScenarioError::Unfit { what, .. }) => {
                assert!(what.contains("./lab rehearse"), "{name}: {what}");
                refused += 1;
            }
            Err(error) => panic!("{name} in the simulator: {error}"),
        }
    }
    // Of twelve files of the laboratory, those with sequences, chasers, aged volumes, or editors that turn.
    assert!(simulated >= 30 && refused <= 7, "{simulated} simulated, {refused} files take a volume");
}

const BOTH: &str = r#"
name = "both"
device = "raid5-table5"
size_gib = 32
seconds = 12

[[experiment]]
name = "players"
client = { kind = "player", megabits = 100, unit_kib = 1024, buffer_ms = 1000 }
most = 8
guess = 8

[[experiment.group]]
name = "recorder"
count = 1
client = { kind = "recorder", megabits = 50, unit_kib = 512, buffer_ms = 1000 }
after_ms = 1000
stay_ms = [5000, 6000]
"#;

#[test]
fn the_same_clients_are_in_time_in_simulation_and_rehearsal() {
    let scenario = Scenario::parse(BOTH).expect("it is one");
    let outcome =
        simulation::run(&scenario, PolicyName::Rtsched, 1, scenario.duration(true)).expect("its device");
    assert_eq!(outcome.failures(scenario.expect()), Vec::<String>::new());
    assert_eq!((outcome.clean(), outcome.streams.len()), (9, 9));
    let declaration = experiment::parse(BOTH).expect("it is one");
    let mut points = Vec::new();
    rehearsal::carry_out(&declaration, Some(8), &mut |point, _, _| points.push(point.clone()))
        .expect("it is rehearsed");
    assert!(points.len() == 1 && points[0].clean, "{points:?}");
    // The recorder leaves after five or six seconds: it writes 50 Mbit/s for less than half of the fifteen.
    assert!((12.0..22.0).contains(&points[0].background_megabits), "{points:?}");
}
