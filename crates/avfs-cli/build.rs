//! What `--version` says: the version of the package that this is built for, else the crate's and the commit.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=AVFS_VERSION");
    println!("cargo:rerun-if-changed=build.rs");
    let version = match std::env::var("AVFS_VERSION") {
        Ok(version) if !version.is_empty() => version,
        _ => with_commit(env!("CARGO_PKG_VERSION")),
    };
    println!("cargo:rustc-env=AVFS_VERSION={version}");
}

/// Without git, or outside a clone, the version alone.
fn with_commit(version: &str) -> String {
    // It changes with every commit and every other one that is checked out.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| Path::new(log).exists()) {
        println!("cargo:rerun-if-changed={log}");
    }
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        Some(commit) => format!("{version} (commit {commit})"),
        None => version.to_owned(),
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
}
