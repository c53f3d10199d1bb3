//! The differential test: the same operations, from a seed, on two directories of two filesystems, of which one is
//! known to be right; after every step both must look the same.
//!
//! **For:** everything a program can observe through system calls: results and errors, attributes, contents, listings,
//! extended attributes, ACLs, what remains of an open file whose name is gone, what a remount keeps.
//! **Excludes:** what filesystems may decide for themselves: inode numbers, allocated blocks, sizes of directories, the
//! clock's granularity, where exactly holes lie (that they read as zeros is checked). **State:** the two directories,
//! which must be empty at the start. **Invariant:** the operations depend on the seed and on what both sides agree on,
//! so seed and number of operations repeat a failure.

mod fault;
mod operation;
mod run;
mod side;
mod tree;
mod user;

use clap::Parser;
use fault::Fault;
use side::Side;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs the same random operations on two directories and compares them after every step.
#[derive(Parser)]
struct Arguments {
    /// An empty directory on the filesystem under test.
    left: PathBuf,
    /// An empty directory on a filesystem that is right.
    right: PathBuf,
    /// What the operations are made from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many.
    #[arg(long, default_value_t = 10_000)]
    operations: u64,
    /// A shell command that unmounts the left filesystem and mounts it again.
    #[arg(long)]
    remount_left: Option<String>,
    /// The same for the right one.
    #[arg(long)]
    remount_right: Option<String>,
    /// Damage the right side on purpose before this step: proves that the test can fail.
    #[arg(long, requires = "fault")]
    fault_at: Option<u64>,
    /// In which way.
    #[arg(long, requires = "fault_at")]
    fault: Option<Fault>,
    /// Do everything as root, nothing as other users.
    #[arg(long)]
    single_user: bool,
    /// Print every operation and its outcome.
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // What the operations ask for is what the files get.
    rustix::process::umask(rustix::fs::Mode::empty());
    let plan = run::Plan {
        seed: arguments.seed,
        operations: arguments.operations,
        fault: arguments.fault_at.zip(arguments.fault),
        users: !arguments.single_user && rustix::process::geteuid().is_root(),
        verbose: arguments.verbose,
    };
    let left = Side::new("left", arguments.left, arguments.remount_left);
    let right = Side::new("right", arguments.right, arguments.remount_right);
    match run::run(&plan, left, right) {
        Ok(report) => {
            println!("seed {}: {report}", plan.seed);
            ExitCode::SUCCESS
        }
        Err(difference) => {
            println!("seed {}: {difference}", plan.seed);
            ExitCode::FAILURE
        }
    }
}
