//! The loop: a step, on both sides, and the comparison.

use crate::fault::Fault;
use crate::operation::{Generator, Operation, SLOTS, Step, View};
use crate::side::{Outcome, Side};
use crate::tree::{Kind, Tree, contents_difference};
use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::path::Path;

/// After this many steps all contents are compared, not only those that the step touched.
const FULL_COMPARISON_EVERY: u64 = 64;
/// Steps told with a difference.
const HISTORY: usize = 16;

/// What to do.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) operations: u64,
    /// Damage the right side before this step.
    pub(crate) fault: Option<(u64, Fault)>,
    /// Act as other users too, which only root can.
    pub(crate) users: bool,
    pub(crate) verbose: bool,
}

/// What was done, if both sides agreed.
#[derive(Debug)]
pub(crate) struct Report {
    operations: u64,
    succeeded: u64,
    remounts: u64,
    names: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, succeeded, remounts, names } = self;
        write!(
            f,
            "{operations} operations agree, {succeeded} of them succeeded, {remounts} remounts, {names} names left"
        )
    }
}

/// A disagreement, and the steps that led to it.
#[derive(Debug)]
pub(crate) struct Difference {
    number: u64,
    what: String,
    history: VecDeque<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the sides differ after operation {}: {}", self.number, self.what)?;
        writeln!(f, "  the last operations:")?;
        for line in &self.history {
            writeln!(f, "    {line}")?;
        }
        Ok(())
    }
}

/// Does the operations of the plan on both sides.
///
/// # Errors
/// The first difference, or what kept the sides from being compared.
pub(crate) fn run(plan: &Plan, mut left: Side, mut right: Side) -> Result<Report, Difference> {
    let mut generator = Generator::new(plan.seed, plan.users);
    let mut report = Report { operations: 0, succeeded: 0, remounts: 0, names: 0 };
    let mut history = VecDeque::new();
    let mut tree = Tree::default();
    let mut fault = plan.fault;
    for number in 0..plan.operations {
        let step = generator.next(&View { tree: &tree, open: left.open_files() });
        fault = fault.filter(|&(at, fault)| number < at || !fault.inject(&right.root, &tree));

        let outcomes = (left.execute(&step), right.execute(&step));
        let told = tell(number, &step, &outcomes);
        if plan.verbose {
            println!("{told}");
        }
        history.push_back(told);
        if history.len() > HISTORY {
            history.pop_front();
        }
        let all = (number + 1) % FULL_COMPARISON_EVERY == 0 || number + 1 == plan.operations;
        match compare(&step, &outcomes, &left, &right, all) {
            Ok(agreed) => tree = agreed,
            Err(what) => return Err(Difference { number, what, history }),
        }
        report.operations += 1;
        report.succeeded += u64::from(outcomes.0.is_ok());
        report.remounts += u64::from(matches!(step.operation, Operation::Remount));
    }
    report.names = tree.entries().count();
    match fault {
        None => Ok(report),
        Some(_) => {
            let what = "there was nothing that the fault could damage".to_owned();
            Err(Difference { number: plan.operations, what, history })
        }
    }
}

/// One line of history.
fn tell(number: u64, step: &Step, (left, right): &(Outcome, Outcome)) -> String {
    let mut line = format!("{number}: {:?} {:?}", step.user, step.operation);
    if line.len() > 300 {
        line.truncate((0..=300).rev().find(|&end| line.is_char_boundary(end)).unwrap_or(0));
        line.push('…');
    }
    if left == right {
        format!("{line} -> {left:?}")
    } else {
        format!("{line} -> left {left:?}, right {right:?}")
    }
}

/// Compares everything a step can have changed; contents only of what it touched, unless `all` is asked for. Gives back
/// the tree that both sides have.
fn compare(
    step: &Step,
    (left_outcome, right_outcome): &(Outcome, Outcome),
    left: &Side,
    right: &Side,
    all: bool,
) -> Result<Tree, String> {
    if left_outcome != right_outcome {
        return Err(format!("left {left_outcome:?}, right {right_outcome:?}"));
    }
    let look =
        |side: &Side| side.tree().map_err(|error| format!("cannot look at the {} side: {error}", side.name));
    let (tree, right_tree) = (look(left)?, look(right)?);
    if let Some(difference) = tree.difference(&right_tree) {
        return Err(difference);
    }
    let touched = match &step.operation {
        Operation::Open { slot, .. }
        | Operation::Write { slot, .. }
        | Operation::SetLength { slot, .. }
        | Operation::Allocate { slot, .. }
        | Operation::Copy { slot, .. } => Some(*slot),
        _ => None,
    };
    for slot in (0..SLOTS).filter(|&slot| all || Some(slot) == touched) {
        compare_slot(slot, left, right).map_err(|what| format!("slot {slot}: {what}"))?;
    }
    for (path, entry) in tree.entries() {
        let touched =
            matches!(&step.operation, Operation::Truncate { path: truncated, .. } if truncated == path);
        if entry.kind == Kind::File && (all || touched) {
            compare_path(path, left, right).map_err(|what| format!("{path:?}: {what}"))?;
        }
    }
    Ok(tree)
}

fn compare_slot(slot: usize, left: &Side, right: &Side) -> Result<(), String> {
    let attributes =
        |side: &Side| side.attributes(slot).map_err(|error| format!("fstat, {}: {error}", side.name));
    let (a, b) = (attributes(left)?, attributes(right)?);
    if a != b {
        return Err(format!("left {a:?}, right {b:?}"));
    }
    let reopen = |side: &Side| side.reopen(slot).map_err(|error| format!("open, {}: {error}", side.name));
    match (reopen(left)?, reopen(right)?) {
        (Some(a), Some(b)) => compare_files(&a, &b),
        _ => Ok(()),
    }
}

fn compare_path(path: &Path, left: &Side, right: &Side) -> Result<(), String> {
    let open = |side: &Side| {
        File::open(side.root.join(path)).map_err(|error| format!("open, {}: {error}", side.name))
    };
    compare_files(&open(left)?, &open(right)?)
}

fn compare_files(left: &File, right: &File) -> Result<(), String> {
    match contents_difference(left, right) {
        Ok(None) => Ok(()),
        Ok(Some(difference)) => Err(difference),
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use rustix::fs::Mode;

    /// Two directories of one filesystem, which must agree.
    fn run_in_temporary(
        seed: u64,
        operations: u64,
        fault: Option<(u64, Fault)>,
    ) -> Result<Report, Difference> {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        rustix::process::umask(Mode::empty());
        let side = |name, directory: &tempfile::TempDir| Side::new(name, directory.path().join("tree"), None);
        let (left, right) = (side("left", &a), side("right", &b));
        for side in [&left, &right] {
            std::fs::create_dir(&side.root).unwrap();
            // Other users must come to it too.
            rustix::fs::chmod(side.root.parent().unwrap(), Mode::from_raw_mode(0o755)).unwrap();
        }
        let users = rustix::process::geteuid().is_root();
        run(&Plan { seed, operations, fault, users, verbose: false }, left, right)
    }

    #[test]
    fn a_filesystem_agrees_with_itself() {
        for seed in 0..3 {
            let report =
                run_in_temporary(seed, 600, None).unwrap_or_else(|difference| panic!("{difference}"));
            assert!(report.succeeded > report.operations / 4, "too few operations do anything: {report}");
        }
    }

    #[test]
    fn every_kind_of_fault_is_found() {
        for &fault in Fault::value_variants() {
            // Before the last step ahead of a full comparison.
            let at = 5 * FULL_COMPARISON_EVERY - 1;
            let difference =
                run_in_temporary(1, 1000, Some((at, fault))).expect_err("the fault was not found");
            assert!(
                difference.number <= at + FULL_COMPARISON_EVERY,
                "{fault:?} was found late: {difference}"
            );
        }
    }

    #[test]
    fn a_seed_repeats_its_operations() {
        let (tree, open) = (Tree::default(), [None; SLOTS]);
        let steps = |seed| {
            let mut generator = Generator::new(seed, true);
            (0..200).map(|_| format!("{:?}", generator.next(&View { tree: &tree, open }))).collect::<Vec<_>>()
        };
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
    }
}
