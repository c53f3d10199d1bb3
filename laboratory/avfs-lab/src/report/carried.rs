//! With how many clients a contender passed.
//!
//! **For:** one number and its bounds. **State:** none.

use crate::point::Point;
use crate::search::{self, Next};
use avfs_workloads::{Contender, Experiment};
use std::collections::{BTreeMap, BTreeSet};

/// What the largest numbers of the searches are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The middle one; of two, the lower.
    pub median: u32,
    /// The least.
    pub least: u32,
    /// The most.
    pub most: u32,
    /// How many searches ended.
    pub searches: usize,
}

/// The largest number of which no client was late, of the searches that ended.
pub fn carried(experiment: &Experiment, contender: &Contender, own: &[&Point]) -> Option<Carried> {
    let repeats: BTreeSet<u32> = own.iter().map(|point| point.repeat).collect();
    let mut found: Vec<u32> = repeats
        .into_iter()
        .filter_map(|repeat| {
            let outcomes: BTreeMap<u32, bool> = own
                .iter()
                .filter(|point| point.repeat == repeat)
                .map(|point| (point.clients, point.clean))
                .collect();
            match search::next(&outcomes, contender.guess(experiment), experiment.most) {
                Next::Found(number) => Some(number),
                Next::Measure(_) => None,
            }
        })
        .collect();
    found.sort_unstable();
    let (least, most) = (*found.first()?, *found.last()?);
    Some(Carried { median: found[(found.len() - 1) / 2], least, most, searches: found.len() })
}
