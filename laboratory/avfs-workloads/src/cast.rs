//! The clients of a run, with their files.
//!
//! **Invariants:** a function of declaration, number and seed; none comes by what it read before.

use crate::declaration::Declaration;
use crate::experiment::Experiment;
use crate::pattern::Pattern;
use crate::spec::{ClientSpec, Visits};
use std::collections::BTreeMap;
use units::{Bytes, Duration};

/// Who reads as fast as he can gets through so many players' clips in a run; what he read before would come from memory.
const GREEDY_CLIPS: u64 = 12;

/// The clients of a run, and how many of them count. Their clips are as long as the files are, which others may need longer: a
/// player that begins again before the end of its file has been read ahead of for nobody.
pub fn clients(
    declaration: &Declaration,
    experiment: &Experiment,
    number: u32,
    seed: u32,
) -> (Vec<ClientSpec>, usize) {
    let (specs, counted) = clients_alone(declaration, experiment, number, seed);
    let laid = needs(declaration, experiment.aged_percent);
    (specs.into_iter().map(|spec| spec.as_laid(&laid)).collect(), counted)
}

/// Which of an experiment's clients one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// One of those that are counted.
    Counted,
    /// Of the background, by its number there.
    Background(usize),
    /// Of a group, by its number.
    Group(usize),
}

/// All clients of an experiment with a number of them, or of steps, in turn; each with its number among its like.
pub fn members(experiment: &Experiment, number: u32) -> Vec<(Member, u32)> {
    let counted = (0..number * experiment.at_once).map(|index| (Member::Counted, index));
    let background = (0..experiment.background.len()).map(|place| (Member::Background(place), place as u32));
    let groups = experiment.groups.iter().enumerate();
    let grouped =
        groups.flat_map(|(place, group)| (0..group.count).map(move |index| (Member::Group(place), index)));
    counted.chain(background).chain(grouped).collect()
}

/// The same, with clips as long as this experiment needs them.
pub fn clients_alone(
    declaration: &Declaration,
    experiment: &Experiment,
    number: u32,
    seed: u32,
) -> (Vec<ClientSpec>, usize) {
    // Odd parts of the golden ratio: spread, and not the same in each search.
    let position = |index: u32| (0.618_034 * f64::from(index + 1) + 0.137 * f64::from(seed)).fract();
    // Nobody may come by what he read before: it would come from memory.
    let longest = ramp(experiment, experiment.most * experiment.at_once) + declaration.measured(experiment);
    let spec = |(member, index): (Member, u32)| {
        let (directory, pattern, starts) = match member {
            Member::Counted => {
                let pattern = experiment.pattern(index);
                let owner =
                    if matches!(pattern, Pattern::Chaser(_)) { index.saturating_sub(1) } else { index };
                (format!("client{owner:02}"), pattern, experiment.every() * index + pattern.delay())
            }
            Member::Background(place) => {
                let starts = Duration::from_millis(experiment.beside_after_ms.unwrap_or_default());
                (format!("beside{place:02}"), &experiment.background[place], starts)
            }
            Member::Group(place) => {
                let group = &experiment.groups[place];
                let starts = Duration::from_millis(group.after_ms) + group.every() * index;
                (format!("group{place:02}-{index:02}"), group.pattern(index), starts)
            }
        };
        let (stay, away) = match member {
            Member::Counted => (experiment.stay_ms, experiment.away_ms),
            Member::Background(_) => (None, None),
            Member::Group(place) => (experiment.groups[place].stay_ms, experiment.groups[place].away_ms),
        };
        let clip = declaration.clip().max(pattern.passes(longest));
        let greedy =
            matches!(pattern, Pattern::CopyFrom(_) | Pattern::RandomReader(_) | Pattern::Scrubber(_));
        ClientSpec {
            directory,
            pattern: pattern.clone(),
            start_after: starts,
            clip: Bytes(clip.as_u64() * if greedy { GREEDY_CLIPS } else { 1 }),
            // Those of groups begin elsewhere than the counted ones.
            position: position(
                index + if let Member::Group(place) = member { 100 * (place as u32 + 1) } else { 0 },
            ),
            visits: Visits { stay, away },
        }
    };
    let members = members(experiment, number);
    (members.into_iter().map(spec).collect(), (number * experiment.at_once) as usize)
}

/// Until so many clients have started, and filled their buffers.
pub fn ramp(experiment: &Experiment, clients: u32) -> Duration {
    let starts = |client| experiment.every() * client + experiment.pattern(client).delay();
    (0..clients).map(starts).max().unwrap_or_default() + experiment.every() + Duration::from_secs(1)
}

/// The files that the experiments of an age read, with their lengths; of what several read, the longest.
pub fn needs(declaration: &Declaration, age: Option<u32>) -> BTreeMap<String, Bytes> {
    let mut needs = BTreeMap::new();
    let own = declaration.experiments.iter().filter(|one| one.aged_percent == age);
    for (name, length) in
        own.flat_map(|one| clients_alone(declaration, one, one.most, 0).0).flat_map(|client| client.needs())
    {
        let known = needs.entry(name).or_insert(length);
        *known = length.max(*known);
    }
    needs
}
