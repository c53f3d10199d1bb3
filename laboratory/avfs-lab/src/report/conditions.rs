//! Under what conditions: who is compared, what clients do, and how well searches agree.

use super::carried::{Carried, carried};
use crate::point::{Point, STOLEN_BOUND};
use crate::run::of;
use avfs_workloads::Pattern;
use avfs_workloads::{Access, Contender, Declaration, Experiment};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Each contender's configuration, once.
pub(super) fn contenders<'a>(declarations: impl Iterator<Item = &'a Declaration>) -> String {
    let mut text = String::from("\n## Contenders\n\nWhat is not named is as it comes.\n\n");
    let mut known = BTreeSet::new();
    for contender in declarations.flat_map(|declaration| &declaration.contenders) {
        let said = contender_in_words(contender);
        if known.insert(said.clone()) {
            text += &said;
        }
    }
    text
}

fn contender_in_words(contender: &Contender) -> String {
    let Contender { name, filesystem, scheduler, .. } = contender;
    let code = |words: &[String]| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    let mut text = format!("- **{name}**: {filesystem}");
    for (what, words) in [("mkfs", &contender.mkfs), ("mount -o", &contender.mount)] {
        if !words.is_empty() {
            let _ = write!(text, "; {what} {}", code(words));
        }
    }
    let _ = write!(text, "; I/O scheduler `{scheduler}`");
    for (attribute, value) in &contender.queue {
        let _ = write!(text, ", `{attribute}` {value}");
    }
    let is_avfs = filesystem == "avfs";
    if !is_avfs {
        let _ = write!(text, "; at most {} MiB dirty", contender.dirty_mib);
    }
    for command in &contender.prepare {
        let _ = write!(text, "; `{}`", command.replace("{}", "SHARE"));
    }
    let mut share: Vec<String> =
        contender.share.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    share.sort_unstable();
    match (is_avfs, share.is_empty()) {
        (true, true) => text += "; the share that `avfsctl samba-config` prints",
        (true, false) => {
            let _ = write!(text, "; the share that `avfsctl samba-config` prints, and {}", code(&share));
        }
        (false, true) => {}
        (false, false) => {
            let _ = write!(text, "; smb.conf: {}", code(&share));
        }
    }
    if contender.calibrated {
        text += "; measured by `avfsctl calibrate --destructive`";
    }
    text += "\n";
    if let Some(config) = &contender.config {
        let indented: Vec<String> =
            config.trim().lines().map(|line| format!("  {line}").trim_end().to_owned()).collect();
        let _ = write!(text, "\n  ```toml\n{}\n  ```\n\n", indented.join("\n"));
    }
    text
}

/// What counts in an experiment, and what works beside it.
pub(super) fn experiment(experiment: &Experiment) -> String {
    let words =
        |patterns: Vec<&Pattern>| patterns.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let counted = words([&experiment.client].into_iter().chain(&experiment.in_turn_with).collect());
    let turns = if experiment.in_turn_with.is_empty() { "" } else { ", in turn" };
    let mut text = format!("Each client: {counted}{turns}");
    if experiment.at_once > 1 {
        let _ = write!(text, "; {} come at once", experiment.at_once);
    }
    if experiment.access == Access::Local {
        text += "; on the mounted volume itself, without Samba";
    }
    if let Some(percent) = experiment.aged_percent {
        let _ = write!(text, "; on an aged volume, {percent} % full");
    }
    if !experiment.background.is_empty() {
        let _ = write!(text, ". Beside them: {}", words(experiment.background.iter().collect()));
        if let Some(after) = experiment.beside_after_ms {
            let _ = write!(text, ", who come {:.1} s after the first", after as f64 / 1e3);
        }
    }
    text + ".\n"
}

/// What the machine's host took, if it did.
pub(super) fn disturbances(points: &[Point], set_aside: usize) -> String {
    let mut text = String::new();
    if set_aside > 0 {
        let _ = write!(
            text,
            "The machine's host took {STOLEN_BOUND} % of the processors or more: {set_aside} points were set aside, and measured \
             again. "
        );
    }
    let kept = points.iter().filter(|point| point.is_disturbed()).count();
    if kept > 0 {
        let _ = write!(
            text,
            "{kept} of those that count were measured while it took so much; where it may have decided, or figures are from then, \"machine \
             disturbed\" is said."
        );
    }
    if text.is_empty() { text } else { format!("{}\n\n", text.trim_end()) }
}

/// Whether searches that were repeated gave the same; nothing if none was.
pub(super) fn agreement(declaration: &Declaration, points: &[Point]) -> Option<String> {
    let mut spreads = Vec::new();
    for contender in &declaration.contenders {
        for experiment in &declaration.experiments {
            let found = carried(experiment, contender, &of(points, contender, experiment));
            let repeated = found.filter(|found| found.searches > 1);
            spreads.extend(repeated.map(|Carried { least, most, .. }| (most - least, contender, experiment)));
        }
    }
    let pairs = spreads.len();
    let widest = spreads.iter().map(|(spread, ..)| *spread).max()?;
    let same = spreads.iter().filter(|(spread, ..)| *spread == 0).count();
    let mut text = format!(
        "Of {pairs} numbers that were searched more than once, {same} were the same each time; the largest difference is \
         {widest}."
    );
    let beyond: Vec<String> = spreads
        .iter()
        .filter(|(spread, ..)| *spread > 1)
        .map(|(spread, contender, experiment)| format!("{}, {} ({spread})", contender.name, experiment.name))
        .collect();
    if !beyond.is_empty() {
        let _ = write!(text, " By more than one client: {}.", beyond.join("; "));
    }
    Some(text)
}
