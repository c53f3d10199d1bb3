//! Experiments, as they are declared.
//!
//! **For:** what is compared with what, in a TOML file: a LUN, contenders (a filesystem and its tuning), experiments (what
//! the clients do, beside whom). **Excludes:** carrying it out. **State:** none. **Invariants:** a declaration that was
//! accepted can be carried out as far as it depends on the declaration.

use crate::memory;
use avfs_workloads::{Pattern, content};
use rtsched_sim::device::{DeviceError, DeviceSpec};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;
use units::{Bytes, Duration};

/// A file of experiments.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declaration {
    /// What the report is called.
    pub name: String,
    /// The device of `rtsched_sim`, by name or path.
    pub device: String,
    /// Its size here, GiB.
    pub size_gib: u64,
    /// Each point is measured for so many seconds, once all clients have started …
    pub seconds: u64,
    /// … but those with recorders, or a copy to here, for so many: longer, because at first they fill memory. Default: as the
    /// others.
    pub recorded_seconds: Option<u64>,
    /// How often each number is searched, at least once.
    pub repeats: u32,
    /// A player's clip, MiB: long enough that nobody reads the same twice in a run.
    pub clip_mib: u64,
    /// Measure each number of clients up to one beyond the largest, as curves need it.
    #[serde(default)]
    pub curves: bool,
    /// Contenders take turns, point by point, each on a LUN that stays: what the machine's host gives changes within minutes, and
    /// then changes for all of them. Takes the memory of all their LUNs at once.
    #[serde(default)]
    pub take_turns: bool,
    /// Who is compared, of those that this crate declares; they come before the declaration's own.
    #[serde(default)]
    compare: Vec<String>,
    /// Who is compared.
    #[serde(default, rename = "contender")]
    pub contenders: Vec<Contender>,
    /// In what.
    #[serde(rename = "experiment")]
    pub experiments: Vec<Experiment>,
}

/// A filesystem and its tuning.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contender {
    /// As the report calls it.
    pub name: String,
    /// As mount(8) and `mkfs.` call it.
    pub filesystem: String,
    /// Arguments of mkfs.
    #[serde(default)]
    pub mkfs: Vec<String>,
    /// Options of mount.
    #[serde(default)]
    pub mount: Vec<String>,
    /// How long the LUN takes is measured before (`avfsctl calibrate --destructive`), and the configuration says what was found.
    #[serde(default)]
    pub calibrated: bool,
    /// The text of a configuration file; its path is given to mount as `config=`.
    pub config: Option<String>,
    /// The host's I/O scheduler.
    #[serde(default = "default_scheduler")]
    pub scheduler: String,
    /// The kernel's dirty pages of it, at most, MiB. The default is what AVFS, with the cache that it has here, lets wait.
    #[serde(default = "default_dirty")]
    pub dirty_mib: u64,
    /// Attributes of the device's queue, such as `read_ahead_kb`.
    #[serde(default)]
    pub queue: BTreeMap<String, String>,
    /// A command line for the new volume; `{}` stands for where it is mounted.
    #[serde(default)]
    pub prepare: Vec<String>,
    /// Settings of the share.
    #[serde(default)]
    pub share: BTreeMap<String, String>,
    /// Where its search begins in an experiment, instead of where the experiment says: saves runs.
    #[serde(default)]
    pub guess: BTreeMap<String, u32>,
}

impl Contender {
    /// Where its search begins.
    pub fn guess(&self, experiment: &Experiment) -> u32 {
        self.guess.get(&experiment.name).map_or(experiment.guess, |guess| (*guess).clamp(1, experiment.most))
    }

    /// Only AVFS has a configuration file, and only it is told there what a device takes.
    fn check(&self) -> Result<(), String> {
        if self.filesystem == "avfs" {
            return Ok(());
        }
        let told = [("calibrated", self.calibrated), ("config", self.config.is_some())];
        match told.iter().find(|(_, is_told)| *is_told) {
            Some((what, _)) => {
                Err(format!("{what} is for filesystem = \"avfs\", not {:?}: leave it out", self.filesystem))
            }
            None => Ok(()),
        }
    }
}

fn default_scheduler() -> String {
    // What the kernel gives a LUN behind a host adapter with several queues, and a loop device.
    "none".to_owned()
}

fn default_dirty() -> u64 {
    2048
}

/// What clients do.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// As the report calls it.
    pub name: String,
    /// How they get at the files.
    #[serde(default)]
    pub access: Access,
    /// What each of those that are counted does …
    pub client: Pattern,
    /// … unless there are several kinds of them: then they take turns, `client` first.
    #[serde(default)]
    pub in_turn_with: Vec<Pattern>,
    /// So many clients come with each step of the search; 2 for pairs.
    #[serde(default = "one")]
    pub at_once: u32,
    /// The volume is as if it had been in use for long, and so full when the clips are there, percent, 30 to 95; see
    /// [`crate::ageing`].
    pub aged_percent: Option<u32>,
    /// Who works beside them.
    #[serde(default)]
    pub background: Vec<Pattern>,
    /// They come so long after the first of those that are counted, milliseconds. Default: together with him.
    pub beside_after_ms: Option<u64>,
    /// No more clients, or steps, than this.
    pub most: u32,
    /// Where the search begins.
    pub guess: u32,
    /// What others report of this experiment on their device: who, and how many clients, or steps.
    #[serde(default)]
    pub published: BTreeMap<String, u32>,
    /// How many AVFS with bitrates is wanted to carry.
    pub wanted: Option<u32>,
}

fn one() -> u32 {
    1
}

impl Experiment {
    /// What the counted client of a number does, counted from 0.
    pub fn pattern(&self, client: u32) -> &Pattern {
        let kinds = 1 + self.in_turn_with.len();
        match client as usize % kinds {
            0 => &self.client,
            later => &self.in_turn_with[later - 1],
        }
    }

    /// Every chaser has a recorder before it.
    fn chasers_follow(&self) -> bool {
        let kinds: Vec<&Pattern> = [&self.client].into_iter().chain(&self.in_turn_with).collect();
        let is_chaser = |pattern: &Pattern| matches!(pattern, Pattern::Chaser(_));
        let follows = kinds.windows(2).all(|pair| !is_chaser(pair[1]) || pair[1].chases(pair[0]));
        follows && !is_chaser(&self.client) && !self.background.iter().any(is_chaser)
    }

    /// How many clients, or steps, all Mbit/s of a device have room for.
    pub fn bound(&self, megabits: f64) -> u32 {
        let step = |step: u32| {
            let clients = step * self.at_once..(step + 1) * self.at_once;
            clients.filter_map(|client| self.pattern(client).megabits()).sum::<f64>()
        };
        let room = (0..).scan(0.0, |taken, number| {
            *taken += step(number);
            (*taken <= megabits).then_some(number + 1)
        });
        room.take(1000).last().unwrap_or(0)
    }

    /// Some of the counted clients record.
    pub fn records(&self) -> bool {
        self.recorded_megabits(self.at_once * self.most).is_some()
    }

    /// What clients write fills memory at first.
    fn fills_memory(&self) -> bool {
        self.records() || self.background.iter().any(|pattern| matches!(pattern, Pattern::CopyTo(_)))
    }

    /// Mbit/s that so many counted clients record together; nothing if none of them does.
    pub fn recorded_megabits(&self, clients: u32) -> Option<f64> {
        let recorded: Vec<f64> =
            (0..clients).filter_map(|client| self.pattern(client).recorded_megabits()).collect();
        (!recorded.is_empty()).then(|| recorded.iter().sum())
    }
}

/// How clients get at the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Through stock smbd.
    #[default]
    Smb,
    /// As processes of the server.
    Local,
}

/// Why a declaration is none.
#[derive(Debug, Error)]
pub enum DeclarationError {
    /// Not TOML, or not these words.
    #[error("the declaration is wrong: {0}")]
    Syntax(#[from] toml::de::Error),
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
    /// A figure.
    #[error("{place}: {problem}")]
    Figure {
        /// Which part.
        place: String,
        /// What is wrong.
        problem: String,
    },
}

impl Declaration {
    /// Reads a declaration.
    ///
    /// # Errors
    /// In one line what is wrong.
    pub fn parse(text: &str) -> Result<Self, DeclarationError> {
        let mut declaration: Self = toml::from_str(text)?;
        let mut contenders = known_contenders(&declaration.compare)?;
        contenders.append(&mut declaration.contenders);
        declaration.contenders = contenders;
        declaration.device()?;
        declaration.check()?;
        Ok(declaration)
    }

    /// One of AVFS alone, for rehearsals: nothing of it is to fit into a machine's memory.
    pub(crate) fn rehearsed(
        name: &str,
        device: &str,
        size_gib: u64,
        seconds: u64,
        contenders: Vec<Contender>,
        experiment: Experiment,
    ) -> Self {
        Self {
            name: name.to_owned(),
            device: device.to_owned(),
            size_gib,
            seconds,
            recorded_seconds: None,
            repeats: 1,
            clip_mib: 1,
            curves: false,
            take_turns: false,
            compare: Vec::new(),
            contenders,
            experiments: vec![experiment],
        }
    }

    /// The numbers of all pairs of a contender and an experiment. A pair has another number as soon as anything changes that
    /// bears upon what is measured: device, times, lengths, the contender's tuning, what clients do.
    ///
    /// # Errors
    /// When there is no such device any more.
    pub fn pairs(&self) -> Result<BTreeMap<(String, String), u64>, DeviceError> {
        let device = self.device()?;
        let number = |contender: &Contender, experiment: &Experiment| {
            let common =
                format!("{device:?} {} {} {}", self.size_gib, self.seconds_of(experiment), self.clip_mib);
            // Recorders were judged otherwise once.
            let common = if experiment.records() { common + " sustained" } else { common };
            // Only what reads take was measured once.
            let common = if contender.calibrated { common + " writes measured" } else { common };
            // Where a search begins, and what its end is compared with, does not bear upon where it ends.
            let contender = Contender { guess: BTreeMap::new(), ..contender.clone() };
            let experiment =
                Experiment { guess: 0, published: BTreeMap::new(), wanted: None, ..experiment.clone() };
            // Those beside came with the first client once.
            let experiment = format!("{experiment:?}").replace(", beside_after_ms: None", "");
            // A number that every reader of JSON keeps whole.
            content::seed(&format!("{common} {contender:?} {experiment}")) >> 11
        };
        let mut pairs = BTreeMap::new();
        for contender in &self.contenders {
            for experiment in &self.experiments {
                let names = (contender.name.clone(), experiment.name.clone());
                pairs.insert(names, number(contender, experiment));
            }
        }
        Ok(pairs)
    }

    /// The model.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn device(&self) -> Result<DeviceSpec, DeviceError> {
        DeviceSpec::named(&self.device)
    }

    /// A clip's length.
    pub fn clip(&self) -> Bytes {
        Bytes::from_mib(self.clip_mib)
    }

    /// For how long a point of an experiment is measured.
    pub fn measured(&self, experiment: &Experiment) -> Duration {
        Duration::from_secs(self.seconds_of(experiment))
    }

    fn seconds_of(&self, experiment: &Experiment) -> u64 {
        self.recorded_seconds.filter(|_| experiment.fills_memory()).unwrap_or(self.seconds)
    }

    fn check(&self) -> Result<(), DeclarationError> {
        let wrong =
            |place: &str, problem: String| Err(DeclarationError::Figure { place: place.to_owned(), problem });
        if self.recorded_seconds == Some(0) {
            return wrong(&self.name, "recorded_seconds must be above zero".to_owned());
        }
        if self.repeats == 0 || self.seconds == 0 || self.clip_mib == 0 || self.size_gib == 0 {
            return wrong(
                &self.name,
                "repeats, seconds, clip_mib and size_gib must be above zero".to_owned(),
            );
        }
        if self.contenders.is_empty() || self.experiments.is_empty() {
            return wrong(&self.name, "needs at least one contender and one experiment".to_owned());
        }
        let mut names = BTreeSet::new();
        let all =
            self.contenders.iter().map(|one| &one.name).chain(self.experiments.iter().map(|one| &one.name));
        for name in all {
            if !names.insert(name) {
                return wrong(name, "two have this name".to_owned());
            }
        }
        for contender in &self.contenders {
            if let Err(problem) = contender.check() {
                return wrong(&contender.name, problem);
            }
        }
        for experiment in &self.experiments {
            if !(1..=experiment.most).contains(&experiment.guess) || experiment.most > 200 {
                return wrong(&experiment.name, "guess must be from 1 to most, most up to 200".to_owned());
            }
            if !(1..=200 / experiment.most).contains(&experiment.at_once) {
                return wrong(&experiment.name, "at_once must be from 1, and up to 200 with most".to_owned());
            }
            if experiment.aged_percent.is_some_and(|percent| !(30..=95).contains(&percent)) {
                return wrong(&experiment.name, "aged_percent must be from 30 to 95".to_owned());
            }
            let measured_ms = 1000 * self.seconds_of(experiment);
            if experiment.beside_after_ms.is_some_and(|after| after > measured_ms) {
                let problem = format!("beside_after_ms must be up to {measured_ms}, which are measured");
                return wrong(&experiment.name, problem);
            }
            let counted = || experiment.in_turn_with.iter().chain([&experiment.client]);
            if !counted().all(Pattern::is_stream) {
                return wrong(&experiment.name, "its clients must be of a kind that can be late".to_owned());
            }
            if !experiment.chasers_follow() {
                return wrong(
                    &experiment.name,
                    "a chaser must stand in in_turn_with, behind a recorder of its megabits and unit_kib"
                        .to_owned(),
                );
            }
            for pattern in counted().chain(&experiment.background) {
                if let Err(problem) = pattern.check() {
                    return wrong(&experiment.name, problem);
                }
            }
        }
        memory::fits(self).map_err(|problem| DeclarationError::Figure { place: self.name.clone(), problem })
    }
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

    #[test]
    fn the_declarations_of_this_crate_can_be_carried_out() {
        for (name, text) in DECLARED {
            let declaration = Declaration::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(declaration.name, name);
        }
    }

    #[test]
    fn what_bears_upon_a_result_changes_its_number_and_nothing_else_does() {
        let (_, text) = DECLARED[0];
        let pairs =
            |text: &str| Declaration::parse(text).expect("a declaration").pairs().expect("its device");
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
        let declaration = |text: &str| Declaration::parse(text).expect("a declaration");
        let (alike, longer) =
            (declaration(smoke), declaration(&smoke.replacen("seconds", "recorded_seconds = 9\nseconds", 1)));
        let seconds = |declaration: &Declaration| -> Vec<u64> {
            declaration.experiments.iter().map(|one| declaration.measured(one).as_secs()).collect()
        };
        assert_eq!((seconds(&alike), seconds(&longer)), (vec![4, 4, 4], vec![4, 9, 4]));
        let (before, after) = (alike.pairs().expect("its device"), longer.pairs().expect("its device"));
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
        let declaration = Declaration::parse(&mixed.replacen("guess = 2", turns, 1)).expect("a declaration");
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
            Declaration::parse(&smoke.replacen("guess = 2", &turns, 1)).map_err(|error| error.to_string())
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
            ("guess = 2", "guess = 2\nat_once = 101", "at_once must be"),
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
            let error = Declaration::parse(&smoke.replacen(from, to, 1)).expect_err(to).to_string();
            assert!(error.contains(told), "{to}: {error}");
        }
    }
}
