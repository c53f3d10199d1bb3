//! Which number of clients is measured next?
//!
//! **For:** finding the largest number that a volume carries with few runs: from a guess outwards in growing steps, then by
//! halves. **Excludes:** running anything. **State:** none: the next number is a function of what was measured, so a broken
//! search goes on where it stopped. **Invariants:** more clients are never easier: what fails bounds from above, however
//! it was answered beyond.

use std::collections::BTreeMap;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Measure this number, from 1 to the most.
    Measure(u32),
    /// The largest number that was carried, perhaps zero; perhaps the most that was allowed.
    Found(u32),
}

/// The step after the outcomes so far: number of clients and whether all were in time.
///
/// # Panics
/// When `most` is zero.
pub fn next(outcomes: &BTreeMap<u32, bool>, guess: u32, most: u32) -> Next {
    assert!(most > 0, "a search among no clients");
    let fails = outcomes.iter().find(|(_, clean)| !**clean).map_or(most + 1, |(number, _)| *number);
    let carried = outcomes.range(..fails).rev().find(|(_, clean)| **clean).map_or(0, |(number, _)| *number);
    if carried + 1 >= fails {
        return Next::Found(carried.min(most));
    }
    let number = match (carried, fails > most) {
        (0, true) => guess,
        // Upwards, each time twice as far as between the last two.
        (_, true) => {
            let before = outcomes.range(..carried).next_back().map_or(carried - 1, |(number, _)| *number);
            carried + if outcomes.len() == 1 { 1 } else { 2 * (carried - before) }
        }
        (0, false) => {
            let above = outcomes.range(fails + 1..).next().map_or(fails + 1, |(number, _)| *number);
            fails.saturating_sub(if outcomes.len() == 1 { 1 } else { 2 * (above - fails) })
        }
        (_, false) => carried.midpoint(fails),
    };
    Next::Measure(number.clamp(carried + 1, fails - 1).min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(limit: u32, guess: u32, most: u32) -> (u32, usize) {
        let mut outcomes = BTreeMap::new();
        loop {
            match next(&outcomes, guess, most) {
                Next::Found(number) => return (number, outcomes.len()),
                Next::Measure(number) => {
                    assert!((1..=most).contains(&number));
                    let known = outcomes.insert(number, number <= limit);
                    assert_eq!(known, None, "nothing is measured twice");
                }
            }
        }
    }

    #[test]
    fn every_limit_is_found_from_every_guess_in_few_runs() {
        for most in 1..=24 {
            for limit in 0..=most + 1 {
                for guess in 1..=most {
                    let (found, runs) = search(limit, guess, most);
                    assert_eq!(found, limit.min(most), "guess {guess} of {most}");
                    assert!(runs <= 9, "{runs} runs for {limit} from {guess} of {most}");
                    if guess == limit {
                        assert!(runs <= 2, "{runs} runs although the guess was right");
                    }
                }
            }
        }
    }

    /// A lucky run above a failure once made the search report a number that had failed before.
    #[test]
    fn a_failure_bounds_whatever_is_above_it() {
        let outcomes = BTreeMap::from([(4, true), (5, false), (6, true)]);
        assert_eq!(next(&outcomes, 6, 12), Next::Found(4));
    }
}
