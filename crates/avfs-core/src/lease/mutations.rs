//! Every step of the lease is taken out in turn, and a test with several hosts must notice. Run by `./prove protocol-steps`.

use super::{hosts, loss, tests};
use crate::steps::{Step, chosen, without};
use crate::volume::trims;

/// A test that may notice, by its name and with a seed.
type Trial = (&'static str, fn(u64) -> Result<(), String>);

const LEASES: Trial = ("two leases", |seed| tests::world(seed).map(drop));
const CORES: Trial = ("two cores", |seed| hosts::world(seed).map(drop));
const HARD: Trial = ("two cores that halt long", |seed| hosts::hard_world(seed).map(drop));
const LAST: Trial = ("the last command", |_| {
    tests::the_last_command_of_a_holder_arrives_before_another_has_the_volume();
    Ok(())
});
const FENCED: Trial = ("the last command of one that was fenced", |_| {
    tests::the_last_command_of_a_holder_that_was_fenced_arrives_before_another_has_the_volume();
    Ok(())
});
const LOSS: Trial = ("a loss under load", |_| {
    loss::a_loss_under_load_is_a_loss_from_the_first_answer_on();
    Ok(())
});
const DISCARD: Trial = ("a discard", |_| {
    trims::a_discard_whose_turn_came_before_the_lease_ran_out_does_not_reach_the_device();
    Ok(())
});

/// In the order in which they are tried, with how many seeds.
fn trials(step: Step) -> &'static [(Trial, u64)] {
    match step {
        Step::NameSettles | Step::OthersAreExcluded => &[(LEASES, 400)],
        Step::HaltInRenewalIsTheEnd => &[(HARD, 200)],
        Step::MarginIsKept => &[(LAST, 1)],
        Step::FencedIsWatched => &[(FENCED, 1)],
        Step::LossIsToldFirst => &[(LOSS, 1), (CORES, 20)],
        Step::DiscardAsksTheGate => &[(DISCARD, 1)],
        _ => &[(CORES, 200)],
    }
}

/// The first trial of a step that fails without it. With it the same one passes.
fn take_out(step: Step) -> Result<String, String> {
    let mut runs = 0;
    for &((name, trial), seeds) in trials(step) {
        for seed in 0..seeds {
            runs += 1;
            let why = match without(step, || trial(seed)).1 {
                Ok(Ok(())) => continue,
                Ok(Err(why)) => why,
                Err(panic) => panic.downcast_ref::<String>().map_or("it panics", String::as_str).to_owned(),
            };
            trial(seed).map_err(|why| format!("{name}, seed {seed}, fails with the step too: {why}"))?;
            return Ok(format!("noticed by {name}, seed {seed}; {runs} runs: {why}"));
        }
    }
    Err(format!("NOT NOTICED; {runs} runs"))
}

#[test]
#[ignore = "takes a minute: ./prove protocol-steps"]
fn every_step_of_the_lease_that_is_taken_out_is_noticed() {
    // Panics are what is hoped for.
    std::panic::set_hook(Box::new(|_| {}));
    let outcomes: Vec<_> = chosen(true).map(|step| (step, take_out(step))).collect();
    let _ = std::panic::take_hook();
    for (step, outcome) in &outcomes {
        let (Ok(told) | Err(told)) = outcome;
        println!("{:<30} {told}", format!("{step:?}"));
    }
    let missed: Vec<_> = outcomes.iter().filter(|(_, outcome)| outcome.is_err()).collect();
    println!(
        "{} steps: {} noticed, 0 equivalent, {} missed",
        outcomes.len(),
        outcomes.len() - missed.len(),
        missed.len()
    );
    assert!(missed.is_empty(), "{missed:?}");
    assert!(!outcomes.is_empty(), "no such step");
}
