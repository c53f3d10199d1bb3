//! What a measurement depends on besides what is measured.
//!
//! **For:** machine, versions and commit, as far as they can be found out, as lines of a report. **State:** none.
//! **Invariants:** what cannot be found out is left out, never guessed.

use std::fs;
use std::process::Command;
use std::thread;

/// Machine and versions, a line each.
pub fn facts() -> Vec<String> {
    let cores = thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let processor = value("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".to_owned());
    let memory = value("/proc/meminfo", "MemTotal").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut facts = vec![
        format!("Machine: {cores} cores, {processor}, {memory} of memory"),
        format!("Linux {}", kernel.trim()),
    ];
    let commands: [(&str, &str, &str); 5] = [
        ("Samba", "smbd", "--version"),
        ("ext4", "mkfs.ext4", "-V"),
        ("XFS", "mkfs.xfs", "-V"),
        ("Btrfs", "mkfs.btrfs", "-V"),
        ("AVFS", "mkfs.avfs", "--version"),
    ];
    let versions = commands
        .iter()
        .filter_map(|(name, command, argument)| Some(format!("{name}: {}", said(command, &[argument])?)));
    facts.extend(versions);
    facts
}

/// The commit of the directory in which the process is, `-dirty` where files differ from it.
pub fn commit() -> Option<String> {
    said("git", &["describe", "--always", "--dirty"])
}

/// Day and minute.
pub fn date() -> Option<String> {
    said("date", &["--utc", "+%F %R UTC"])
}

/// The first line a command prints, if it succeeds.
fn said(command: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(command).args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&text).lines().next()?.trim().to_owned())
}

/// What stands behind a key in a file of the form `key : value`.
fn value(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
