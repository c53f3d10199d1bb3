//! Every step of the protocol is taken out in turn, and some test must notice. Run by `./prove protocol-steps`.
//!
//! What no test can notice is listed with the reason, and must then not be noticed either.

use crate::workload::{LARGE, NAMES, SMALL};
use crate::{DISK, lives, log_damage, near_the_end_of_the_log, protocol, regressions};
use avfs_core::simulation::formatted;
use avfs_core::steps::{Step, chosen, without};
use std::collections::VecDeque;
use std::panic::set_hook;
use std::sync::Mutex;
use std::time::Instant;

/// A test that may notice, by its name and with a seed.
type Trial = (&'static str, fn(u64), u64);

/// In the order in which they are tried: those of one case first. The number is how many seeds.
const TRIALS: &[Trial] = &[
    ("a dead process", |_| protocol::what_a_dead_process_left_is_flushed_before_it_is_called_durable(), 1),
    ("another lineage", |_| protocol::a_batch_of_another_lineage_is_no_continuation(), 1),
    ("another number", |_| protocol::a_batch_with_another_number_is_no_continuation(), 1),
    (
        "damage behind",
        |_| log_damage::a_volume_whose_log_goes_on_behind_damage_is_only_read_until_fsck_decides(),
        1,
    ),
    ("growth", |_| regressions::growth_that_begins_before_the_end_does_not_bring_back_what_was_cut_off(), 1),
    ("behind the end", |_| regressions::what_lies_behind_the_end_after_a_power_failure_never_comes_back(), 1),
    ("removed space", |_| protocol::what_is_removed_is_there_until_the_removal_is_durable(), 1),
    ("older superblock", |_| protocol::what_the_older_superblock_points_at_is_not_needed(), 1),
    ("a full log", |_| protocol::the_log_runs_full(), 1),
    ("small files", |seed| lives(formatted(DISK), SMALL, 120, 2, 100, seed, |_| {}), 6),
    ("deaths", |seed| protocol::deaths(seed, 40), 4),
    ("a full volume", |seed| protocol::a_full_volume(seed, 60), 4),
    ("metadata", |seed| protocol::metadata_turns_over(seed, 40), 6),
    ("names", |seed| lives(near_the_end_of_the_log(seed), NAMES, 500, 1, 60, seed, |_| {}), 3),
    ("large files", |seed| lives(formatted(DISK), LARGE, 60, 1, 40, seed, |_| {}), 4),
];

/// Which of them to try first, because it was what noticed.
fn first_trial(step: Step) -> &'static str {
    match step {
        Step::RecoveredIsFlushed => "a dead process",
        Step::ChainIsChecked => "another lineage",
        Step::SequenceIsChecked => "another number",
        Step::BehindIsFound => "damage behind",
        Step::TailsHoldBackTheSize => "growth",
        Step::BehindTheEndIsCleared => "behind the end",
        Step::RingIsNotOverrun | Step::TailReleasedAfterSuperblock => "a full log",
        Step::UnitsReusedAfterSuperblock | Step::SuperblockIsDurable | Step::LogUpToNewestImage => "metadata",
        Step::NewestSuperblock | Step::SlotsInTurn => "older superblock",
        Step::RebuiltIsConfirmed | Step::BatchIsChecked => "names",
        Step::FreedWhenDurable => "removed space",
        _ => "small files",
    }
}

/// Why the volume is as safe without the step.
fn equivalent(step: Step) -> Option<&'static str> {
    match step {
        Step::ShardLsnIsItsOwn => Some(
            "an image is made at one moment from a state that has every record up to the volume's LSN, so it may call itself as \
             new as that: replay leaves out the same records of this shard, and the checkpoint waits for a later log",
        ),
        Step::SuperblockLsnOfTheBegin => Some(
            "recovery takes the highest of it, the images' and the log's LSNs, only to number what comes next: a higher one leaves \
             a gap, and each batch says its own first LSN",
        ),
        Step::FreedWhenIdle => Some(
            "no space is freed while a request is there: a file is cut, punched and removed only when none of its requests is at the \
             device, and what is only reserved was never given to one; the check is a second lock",
        ),
        _ => None,
    }
}

struct Outcome {
    step: Step,
    noticed: Option<(&'static str, u64)>,
    runs: u64,
    mattered: u64,
    seconds: f64,
}

fn take_out(step: Step) -> Outcome {
    let begun = Instant::now();
    let mut outcome = Outcome { step, noticed: None, runs: 0, mattered: 0, seconds: 0.0 };
    let first = first_trial(step);
    let mut order: Vec<&Trial> = TRIALS.iter().collect();
    order.sort_by_key(|(name, ..)| *name != first);
    'tried: for &&(name, trial, seeds) in &order {
        for seed in 0..seeds {
            outcome.runs += 1;
            let (mattered, result) = without(step, || trial(seed));
            outcome.mattered += mattered;
            if result.is_err() {
                // With the step there is nothing to notice.
                trial(seed);
                outcome.noticed = Some((name, seed));
                break 'tried;
            }
        }
    }
    outcome.seconds = begun.elapsed().as_secs_f64();
    outcome
}

#[test]
#[ignore = "takes minutes: ./prove protocol-steps"]
fn every_step_that_is_taken_out_is_noticed() {
    let queue: Mutex<VecDeque<Step>> = Mutex::new(chosen(false).collect());
    let outcomes = Mutex::new(Vec::new());
    // Panics are what is hoped for.
    set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(step) = queue.lock().unwrap().pop_front() else { return };
                    let outcome = take_out(step);
                    let Outcome { noticed, runs, mattered, seconds, .. } = &outcome;
                    let verdict = match (noticed, equivalent(step)) {
                        (Some((name, seed)), None) => format!("noticed by {name}, seed {seed}"),
                        (None, Some(_)) => "equivalent".to_owned(),
                        (Some((name, seed)), Some(_)) => {
                            format!("NOT EQUIVALENT: noticed by {name}, seed {seed}")
                        }
                        (None, None) => format!("NOT NOTICED (it mattered {mattered} times)"),
                    };
                    println!("{:<30} {verdict}; {runs} runs, {seconds:.1} s", format!("{step:?}"));
                    outcomes.lock().unwrap().push(outcome);
                }
            });
        }
    });
    let _ = std::panic::take_hook();
    let outcomes = outcomes.into_inner().unwrap();
    let (mut noticed, mut listed, mut missed) = (0, 0, Vec::new());
    for outcome in &outcomes {
        match (outcome.noticed, equivalent(outcome.step)) {
            (Some(_), None) => noticed += 1,
            (None, Some(why)) if outcome.mattered == 0 => {
                listed += 1;
                println!("{:?} ({}) is equivalent: {why}", outcome.step, outcome.step.text());
            }
            _ => missed.push(outcome.step),
        }
    }
    println!("{} steps: {noticed} noticed, {listed} equivalent, {} missed", outcomes.len(), missed.len());
    assert!(missed.is_empty(), "{missed:?}");
    assert!(noticed + listed > 0, "no such step");
}
