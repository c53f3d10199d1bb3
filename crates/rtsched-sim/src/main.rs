//! `rtsched-sim`: the simulator's command.
use rtsched_sim::{policy::PolicyName, simulation::run, workload::Scenario};
fn main() {
    let text = std::fs::read_to_string(std::env::args().nth(1).unwrap()).unwrap();
    let scenario = Scenario::parse(&text).unwrap();
    let full = std::env::args().nth(2).is_some();
    for policy in PolicyName::ALL {
        let outcome = run(&scenario, policy, 1, scenario.duration(full)).unwrap();
        println!("{}{:#?}", outcome.to_table(true), outcome.failures(&scenario.expect));
    }
}
