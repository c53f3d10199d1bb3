//! The filesystem against a simple one in memory.
//!
//! Steps are drawn from a seed, taken by both, and compared: results, errors, contents, attributes, names, holes and
//! space, before and after an unmount. The core audits itself after each event. Whatever fails is cut down to the
//! steps that are needed for it.
//!
//! `AVFS_MODEL_ROUNDS` sets how many seeds of each character the long run takes, `AVFS_MODEL_SEED` the first of them.

mod contents;
mod growing;
mod handing_over;
mod headers;
mod holdings;
mod null_streams;
mod pages;
mod places;
mod players;
mod playing;
mod policies;
mod recorders;
mod regressions;
mod sequences;
mod steps;
mod tree;
mod world;
mod writing_back;

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use steps::{Character, Step};
use world::World;

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

fn run(character: Character, seed: u64, steps: &[Step]) {
    let mut world = World::new(character, seed);
    for step in steps {
        world.take(step);
    }
    world.compare();
    world.remount();
}

fn fails(character: Character, seed: u64, steps: &[Step]) -> Option<String> {
    let result = catch_unwind(AssertUnwindSafe(|| run(character, seed, steps)));
    let cause = result.err()?;
    let text = cause.downcast_ref::<String>().cloned();
    Some(text.or_else(|| cause.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default())
}

/// The fewest steps found with which it still fails.
fn smallest(character: Character, seed: u64, mut steps: Vec<Step>) -> Vec<Step> {
    let mut piece = steps.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + piece).min(steps.len()));
            if fails(character, seed, &fewer).is_some() {
                steps = fewer;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    steps
}

fn check(character: Character, seed: u64, count: usize) {
    let mut random = SmallRng::seed_from_u64(seed);
    let steps: Vec<Step> = (0..count).map(|_| Step::draw(&mut random, &character)).collect();
    if let Some(cause) = fails(character, seed, &steps) {
        eprintln!("seed {seed} of {character:?} fails: {cause}");
        let steps = smallest(character, seed, steps);
        let cause = fails(character, seed, &steps);
        let steps: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
        panic!("seed {seed} of {character:?}: {cause:?} after\n{}", steps.join("\n"));
    }
}

fn rounds(character: Character, first: u64, count: u64, steps: usize) {
    for seed in first..first + count {
        check(character, seed, steps);
    }
}

#[test]
fn small_files_are_as_they_should_be() {
    rounds(Character::LIVELY, 1, 8, 400);
}

#[test]
fn a_full_volume_is_as_it_should_be() {
    rounds(Character::FULL, 1, 4, 400);
}

#[test]
fn files_larger_than_memory_are_as_they_should_be() {
    rounds(Character::TIGHT, 1, 3, 300);
}

/// Runs when `AVFS_MODEL_ROUNDS` is set.
#[test]
fn the_long_run() {
    let Some(count) = number("AVFS_MODEL_ROUNDS") else {
        eprintln!("not run: AVFS_MODEL_ROUNDS is not set");
        return;
    };
    let first = number("AVFS_MODEL_SEED").unwrap_or(1000);
    for seed in first..first + count {
        for character in [Character::LIVELY, Character::FULL, Character::TIGHT] {
            check(character, seed, 1500);
        }
    }
}

fn steps(character: Character, most: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = any::<u64>()
        .no_shrink()
        .prop_map(move |seed| Step::draw(&mut SmallRng::seed_from_u64(seed), &character));
    prop::collection::vec(step, 1..most)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_short_life_is_as_it_should_be(seed: u64, steps in steps(Character::LIVELY, 60)) {
        run(Character::LIVELY, seed, &steps);
    }
}
