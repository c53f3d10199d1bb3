//! Experiments that can be carried out here.
//!
//! **For:** the declarations that this crate comes with, the contenders that they name, and when a result is of another
//! experiment. **Excludes:** the grammar, which is [`avfs_workloads`]'s, and carrying it out. **State:** none.

use crate::memory;
use avfs_workloads::{Contender, Declaration, Expect, Experiment, Told, content};
use rtsched_sim::device::{DeviceError, DeviceSpec};
use serde::Deserialize;
use std::collections::BTreeMap;
use thiserror::Error;

/// Whoever is compared where nothing is said.
const ALONE: &str = "AVFS with bitrates";

/// Why a declaration cannot be carried out.
#[derive(Debug, Error)]
pub enum DeclarationError {
    /// It is none.
    #[error(transparent)]
    Declaration(#[from] avfs_workloads::DeclarationError),
    /// The laboratory's own contenders are wrong.
    #[error("the contenders are wrong: {0}")]
    Contenders(#[from] toml::de::Error),
    /// No such device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No such contender.
    #[error("no contender is called {name}: it is one of {known}, or declared as [[contender]]")]
    Contender {
        /// The name asked for.
        name: String,
        /// Those there are.
        known: String,
    },
    /// It takes more memory than a run may.
    #[error("{place}: {problem}")]
    Memory {
        /// Which.
        place: String,
        /// In words.
        problem: String,
    },
}

/// Reads a declaration, with the contenders that it names.
///
/// # Errors
/// In one line what is wrong.
pub fn parse(text: &str) -> Result<Declaration, DeclarationError> {
    let mut declaration = Declaration::parse(text)?;
    let alone = declaration.compare.is_empty() && declaration.contenders.is_empty();
    let named = if alone { vec![ALONE.to_owned()] } else { declaration.compare.clone() };
    let mut contenders = known_contenders(&named)?;
    contenders.append(&mut declaration.contenders);
    declaration.contenders = contenders;
    device(&declaration)?;
    declaration.check()?;
    memory::fits(&declaration)
        .map_err(|problem| DeclarationError::Memory { place: declaration.name.clone(), problem })?;
    Ok(declaration)
}

/// The model of a declaration's device.
///
/// # Errors
/// When there is none of this name.
pub fn device(declaration: &Declaration) -> Result<DeviceSpec, DeviceError> {
    DeviceSpec::named(&declaration.device)
}

/// The numbers of all pairs of a contender and an experiment. A pair has another number as soon as anything changes that
/// bears upon what is measured: device, times, lengths, the contender's tuning, what clients do.
///
/// # Errors
/// When there is no such device any more.
pub fn pairs(declaration: &Declaration) -> Result<BTreeMap<(String, String), u64>, DeviceError> {
    let device = device(declaration)?;
    let number = |contender: &Contender, experiment: &Experiment| {
        let common = format!(
            "{device:?} {} {} {}",
            declaration.size_gib,
            declaration.seconds_of(experiment),
            declaration.clip_mib
        );
        // Recorders were judged otherwise once.
        let common = if experiment.records() { common + " sustained" } else { common };
        // Only what reads take was measured once.
        let common = if contender.calibrated { common + " writes measured" } else { common };
        // Where a search begins, and what its end is compared with, does not bear upon where it ends.
        let contender = Contender { guess: BTreeMap::new(), ..contender.clone() };
        let experiment =
            Experiment { guess: 0, published: BTreeMap::new(), wanted: None, ..experiment.clone() };
        // What only the simulator knows does not bear upon it, and what is not declared was no field once.
        let experiment = Experiment { told: Told::default(), expect: Expect::default(), ..experiment };
        let undeclared = format!(
            ", every_ms: None, stay_ms: None, away_ms: None, groups: [], told: {:?}, expect: {:?}",
            Told::default(),
            Expect::default()
        );
        let experiment =
            format!("{experiment:?}").replace(", beside_after_ms: None", "").replace(&undeclared, "");
        // A number that every reader of JSON keeps whole.
        content::seed(&format!("{common} {contender:?} {experiment}")) >> 11
    };
    let mut pairs = BTreeMap::new();
    for contender in &declaration.contenders {
        for experiment in &declaration.experiments {
            let names = (contender.name.clone(), experiment.name.clone());
            pairs.insert(names, number(contender, experiment));
        }
    }
    Ok(pairs)
}

fn known_contenders(names: &[String]) -> Result<Vec<Contender>, DeclarationError> {
    #[derive(Deserialize)]
    struct Known {
        contender: Vec<Contender>,
    }
    let known: Known = toml::from_str(include_str!("../../experiments/contenders.toml"))?;
    let find = |name: &String| {
        let found = known.contender.iter().find(|contender| contender.name == *name).cloned();
        found.ok_or_else(|| DeclarationError::Contender {
            name: name.clone(),
            known: known.contender.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    };
    names.iter().map(find).collect()
}

/// The declarations this crate comes with: name and text.
pub const DECLARED: [(&str, &str); 12] = [
    ("paper", include_str!("../../experiments/paper.toml")),
    ("paper-quick", include_str!("../../experiments/paper-quick.toml")),
    ("copy-quick", include_str!("../../experiments/copy-quick.toml")),
    ("copy-one", include_str!("../../experiments/copy-one.toml")),
    ("avfs-quick", include_str!("../../experiments/avfs-quick.toml")),
    ("avfs-mixed", include_str!("../../experiments/avfs-mixed.toml")),
    ("mixed", include_str!("../../experiments/mixed.toml")),
    ("recorders", include_str!("../../experiments/recorders.toml")),
    ("processor", include_str!("../../experiments/processor.toml")),
    ("editing", include_str!("../../experiments/editing.toml")),
    ("ceiling", include_str!("../../experiments/ceiling.toml")),
    ("smoke", include_str!("../../experiments/smoke.toml")),
];

#[cfg(test)]
mod tests {
    use super::*;
    use units::Duration;

    #[test]
    fn the_declarations_of_this_crate_can_be_carried_out() {
        for (name, text) in DECLARED {
            let declaration = parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(declaration.name, name);
        }
    }

    #[test]
    fn what_bears_upon_a_result_changes_its_number_and_nothing_else_does() {
        let (_, text) = DECLARED[0];
        let pairs = |text: &str| super::pairs(&parse(text).expect("a declaration")).expect("its device");
        let known = pairs(text);
        let same = [
            format!("# A remark\n{text}"),
            text.replacen("repeats = 3", "repeats = 4", 1),
            text.replace("guess = 8", "guess = 9"),
            text.replace("wanted = 12", "wanted = 11"),
            text.replace("ext4\" = 3", "ext4\" = 4"),
        ];
        for same in same {
            assert_eq!(pairs(&same), known, "{same}");
        }
        let fewer = pairs(&text.replacen("    \"XFS\",\n", "", 1));
        assert!(fewer.len() < known.len() && fewer.iter().all(|(pair, number)| known[pair] == *number));
        for (from, to) in [
            ("seconds = 20\nrecorded_seconds = 40", "seconds = 21\nrecorded_seconds = 41"),
            ("raid5-table5", "raid5-zoned"),
        ] {
            let other = pairs(&text.replacen(from, to, 1));
            assert!(other.iter().all(|(pair, number)| known[pair] != *number), "{to}");
        }
        let other = pairs(&text.replace("buffer_ms = 1000", "buffer_ms = 999"));
        assert!(other.iter().all(|(pair, number)| known[pair] != *number));
        let later = pairs(&text.replace("guess = ", "beside_after_ms = 3000\nguess = "));
        assert!(later.iter().all(|(pair, number)| known[pair] != *number));
    }

    #[test]
    fn who_records_is_measured_for_longer_and_nobody_else_is() {
        let smoke = DECLARED.iter().find(|(name, _)| *name == "smoke").expect("it is declared").1;
        let declaration = |text: &str| parse(text).expect("a declaration");
        let (alike, longer) =
            (declaration(smoke), declaration(&smoke.replacen("seconds", "recorded_seconds = 9\nseconds", 1)));
        let seconds = |declaration: &Declaration| -> Vec<u64> {
            declaration.experiments.iter().map(|one| declaration.measured(one).as_secs()).collect()
        };
        assert_eq!((seconds(&alike), seconds(&longer)), (vec![4, 4, 4], vec![4, 9, 4]));
        let (before, after) =
            (super::pairs(&alike).expect("its device"), super::pairs(&longer).expect("its device"));
        let changed: Vec<&str> = before
            .iter()
            .filter(|(pair, number)| after[*pair] != **number)
            .map(|(pair, _)| pair.1.as_str())
            .collect();
        assert_eq!(changed, ["recorders beside a copy"]);
        // Players beside a copy to there met a memory that took all of it: the device wrote nothing for twelve seconds.
        let longer = smoke.replacen("seconds", "recorded_seconds = 9\nseconds", 1);
        for (kind, expected) in [("copy-to", 9), ("copy-from", 4)] {
            let players = longer.replace("kind = \"recorder\"", "kind = \"player\"").replace("copy-to", kind);
            assert_eq!(seconds(&declaration(&players)), [4, expected, 4], "{kind}");
        }
    }

    #[test]
    fn several_kinds_take_turns_and_what_they_record_is_summed() {
        let mixed = DECLARED.iter().find(|(name, _)| *name == "smoke").expect("it is declared").1;
        let turns = "guess = 2\nin_turn_with = [{ kind = \"recorder\", megabits = 50, unit_kib = 64, buffer_ms = 9 }]";
        let declaration = parse(&mixed.replacen("guess = 2", turns, 1)).expect("a declaration");
        let experiment = &declaration.experiments[0];
        assert_eq!(experiment.recorded_megabits(1), None);
        assert_eq!(experiment.recorded_megabits(5), Some(100.0));
        assert_eq!(experiment.pattern(4), &experiment.client);
        // 100 and 50 in turn: four of them take 300.
        assert_eq!([99.9, 100.0, 299.9, 300.0].map(|megabits| experiment.bound(megabits)), [0, 1, 3, 4]);
        let pairs = Experiment { at_once: 2, ..experiment.clone() };
        assert_eq!([149.9, 150.0, 449.9, 450.0].map(|megabits| pairs.bound(megabits)), [0, 1, 2, 3]);
    }

    #[test]
    fn a_chaser_follows_a_recorder_of_its_rate() {
        let smoke = DECLARED.iter().find(|(name, _)| *name == "smoke").expect("it is declared").1;
        let parse = |turns: &str| {
            let turns = format!("guess = 2\nin_turn_with = [{turns}]");
            parse(&smoke.replacen("guess = 2", &turns, 1)).map_err(|error| error.to_string())
        };
        let recorder = "{ kind = \"recorder\", megabits = 100, unit_kib = 1024, buffer_ms = 1000 }";
        let chaser = |megabits, behind_ms| {
            format!(
                "{{ kind = \"chaser\", megabits = {megabits}, unit_kib = 1024, buffer_ms = 1000, behind_ms = {behind_ms} }}"
            )
        };
        let declaration =
            parse(&format!("{recorder}, {}", chaser(100, 2000))).expect("it follows a recorder");
        let (client, delay) = (declaration.experiments[0].pattern(2), Duration::from_secs(2));
        assert_eq!((client.delay(), client.recorded_megabits()), (delay, None));
        for (turns, told) in [
            (chaser(100, 2000), "behind a recorder"),
            (format!("{recorder}, {}", chaser(99, 2000)), "behind a recorder"),
            (format!("{recorder}, {}, {}", chaser(100, 2000), chaser(100, 2000)), "behind a recorder"),
            (format!("{recorder}, {}", chaser(100, 1999)), "behind_ms must be"),
        ] {
            let error = parse(&turns).expect_err(&turns);
            assert!(error.contains(told), "{turns}: {error}");
        }
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let smoke = DECLARED.iter().find(|(name, _)| *name == "smoke").expect("it is declared").1;
        for (from, to, told) in [
            ("repeats = 1", "repeats = 0", "repeats"),
            ("guess = 2", "guess = 0", "guess must be"),
            ("repeats = 1", "repeats = 1\ncompare = [\"ext5\"]", "ext5"),
            ("repeats = 1", "repeats = 1\ncompare = [\"ext4\"]", "two have this name"),
            ("unit_kib = 1024", "unit_kib = 1000", "unit_kib must be"),
            ("guess = 2", "guess = 2\nat_once = 0", "at_once must be"),
            ("guess = 2", "guess = 2\nat_once = 501", "at_once must be"),
            ("guess = 2", "guess = 2\naged_percent = 96", "aged_percent must be"),
            ("guess = 2", "guess = 2\nbeside_after_ms = 4001", "beside_after_ms must be"),
            ("guess = 2", "guess = 2\nin_turn_with = [{ kind = \"office\", pause_ms = 1 }]", "can be late"),
            ("filesystem = \"ext4\"", "filesystem = \"avfs\"\nmount = [\"cache_size=9G\"]", "GiB of memory"),
            ("filesystem = \"ext4\"", "filesystem = \"ext4\"\ncalibrated = true", "ext4: calibrated is for"),
            ("filesystem = \"ext4\"", "filesystem = \"ext4\"\nconfig = \"\"", "ext4: config is for"),
            ("device = \"raid5-table5\"", "device = \"raid9\"", "raid9"),
            ("seconds = 4", "secnods = 4", "secnods"),
            ("seconds = 4", "seconds = 4\nrecorded_seconds = 0", "recorded_seconds must be"),
        ] {
            assert!(smoke.contains(from), "{from} is not in it");
            let error = parse(&smoke.replacen(from, to, 1)).expect_err(to).to_string();
            assert!(error.contains(told), "{to}: {error}");
        }
    }
}
