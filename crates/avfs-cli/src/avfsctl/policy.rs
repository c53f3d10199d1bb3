//! `avfsctl policy`: what files and directories of a mounted volume are worth.
//!
//! Policies are extended attributes, so that setting and showing them takes no daemon and no root, only the rights to
//! the file. What the administrator sets only the administrator can change, and no share of a user's bounds it. Why
//! which one holds is asked of the daemon.

use super::asking::{CtlError, ask, look, print_json};
use avfs_core::config::Setting;
use avfs_core::policy::{PREFIX, TRUSTED_PREFIX};
use avfs_core::types::{PolicyReport, PolicySource, SettingReport, SourceVerdict};
use avfs_fuse::control::{Answer, Request};
use avfs_fuse::mount::printable;
use clap::{Args, Subcommand};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Set what a file, or everything below a directory, is worth; what is not named stays
    Set {
        /// A file or directory of the volume
        path: PathBuf,
        #[command(flatten)]
        values: Values,
    },
    /// Show what is set of a file or directory itself
    Get {
        /// A file or directory of the volume
        path: PathBuf,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// Show all files and directories below a directory, itself included, of which something is set
    List {
        /// A directory of the volume
        directory: PathBuf,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// Take away what is set of a file or directory
    Clear {
        /// A file or directory of the volume
        path: PathBuf,
        /// Names as `get` shows them [default: all]
        settings: Vec<String>,
    },
    /// Show what holds for a file, who decided it, and why the others did not
    Explain {
        /// A file or directory of the volume
        path: PathBuf,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
}

/// As in the configuration, one option for each setting.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(super) struct Values {
    /// real-time, best-effort or idle
    #[arg(long)]
    class: Option<String>,
    /// The rate at which one client reads or writes it, such as "100 Mbit/s"
    #[arg(long, conflicts_with = "frames_per_second")]
    bitrate: Option<String>,
    /// Of sequences with one file a frame, instead of a bitrate: 24, 23.976
    #[arg(long)]
    frames_per_second: Option<String>,
    /// From when bytes are asked for to when they must be there, such as "500 ms"
    #[arg(long)]
    deadline_window: Option<String>,
    /// How far is read ahead, such as "32 MiB"
    #[arg(long)]
    prefetch_depth: Option<String>,
    /// When the device has no room for the rate: demote or refuse
    #[arg(long)]
    when_full: Option<String>,
    /// Free space that a recorder keeps ahead of itself, such as "64 MiB"
    #[arg(long)]
    allocation_window: Option<String>,
}

impl Values {
    fn get(&self, setting: Setting) -> Option<&str> {
        let value = match setting {
            Setting::Class => &self.class,
            Setting::Bitrate => &self.bitrate,
            Setting::FramesPerSecond => &self.frames_per_second,
            Setting::DeadlineWindow => &self.deadline_window,
            Setting::PrefetchDepth => &self.prefetch_depth,
            Setting::WhenFull => &self.when_full,
            Setting::AllocationWindow => &self.allocation_window,
        };
        value.as_deref()
    }
}

/// A file or directory and what is set of it.
#[derive(Debug, Serialize)]
struct Policy {
    path: String,
    settings: BTreeMap<String, String>,
}

pub(super) fn run(output: &mut impl Write, command: &Command) -> Result<(), CtlError> {
    match command {
        Command::Set { path, values } => set(path, values),
        Command::Get { path, json } => {
            on_a_volume(path)?;
            let policy = Policy { path: printable(path), settings: settings_of(path)? };
            if *json {
                print_json(output, &policy)?
            } else {
                print_settings(output, &policy.settings)?
            }
            Ok(())
        }
        Command::List { directory, json } => list(output, directory, *json),
        Command::Clear { path, settings } => clear(path, settings),
        Command::Explain { path, json } => {
            let metadata = look(path, |path| path.metadata())?;
            match ask(path, &metadata, &Request::ExplainPolicy { ino: metadata.ino() })? {
                Answer::Policy(report) if *json => print_json(output, &report)?,
                Answer::Policy(report) => print_explanation(output, path, &report)?,
                _ => return Err(CtlError::OtherAnswer),
            }
            Ok(())
        }
    }
}

/// Elsewhere a policy would be set and mean nothing.
fn on_a_volume(path: &Path) -> Result<u64, CtlError> {
    let metadata = look(path, |path| path.metadata())?;
    // One that hangs would never set it, nor show it.
    ask(path, &metadata, &Request::Info {})?;
    Ok(metadata.dev())
}

/// The prefixes of attributes, those that count before the others first.
const PREFIXES: [&str; 2] = [TRUSTED_PREFIX, PREFIX];

/// Of these, those that the caller can write.
fn own_prefixes() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() { &PREFIXES } else { &PREFIXES[1..] }
}

fn set(path: &Path, values: &Values) -> Result<(), CtlError> {
    let given = Setting::ALL.into_iter().filter_map(|setting| Some((setting, values.get(setting)?)));
    let given: Vec<_> = given.collect();
    for (setting, value) in &given {
        let option = setting.name().replace('_', "-");
        setting.parse(value).map_err(|message| CtlError::Value { option, message })?;
    }
    on_a_volume(path)?;
    for (setting, value) in given {
        let attribute = format!("{}{}", own_prefixes()[0], setting.name());
        rustix::fs::setxattr(path, attribute, value.as_bytes(), XattrFlags::empty())
            .map_err(|error| CtlError::path(path, error))?;
    }
    Ok(())
}

fn clear(path: &Path, settings: &[String]) -> Result<(), CtlError> {
    on_a_volume(path)?;
    let own = settings_of(path)?;
    for setting in settings {
        if !own.contains_key(setting) {
            return Err(CtlError::NotSet { path: printable(path), setting: setting.clone() });
        }
    }
    for setting in own.keys().filter(|name| settings.is_empty() || settings.contains(name)) {
        remove(path, setting)?;
    }
    Ok(())
}

/// Taking away what is not there is no mistake.
fn remove(path: &Path, setting: &str) -> Result<(), CtlError> {
    for prefix in own_prefixes() {
        match rustix::fs::removexattr(path, format!("{prefix}{setting}")) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(error) => return Err(CtlError::path(path, error)),
        }
    }
    Ok(())
}

/// What is set of a file or directory itself, as it was written, also what means nothing.
fn settings_of(path: &Path) -> Result<BTreeMap<String, String>, CtlError> {
    let read = || -> rustix::io::Result<BTreeMap<String, String>> {
        let mut settings = BTreeMap::new();
        for name in whole(|room| rustix::fs::listxattr(path, room))?.split(|byte| *byte == 0) {
            let setting = |name| PREFIXES.into_iter().find_map(|prefix| str::strip_prefix(name, prefix));
            let Some(name) = std::str::from_utf8(name).ok() else { continue };
            let Some(setting) = setting(name) else { continue };
            match whole(|room| rustix::fs::getxattr(path, name, room)) {
                Ok(value) => {
                    let value = String::from_utf8_lossy(&value).trim().to_owned();
                    if name.starts_with(TRUSTED_PREFIX) {
                        settings.insert(setting.to_owned(), value);
                    } else {
                        settings.entry(setting.to_owned()).or_insert(value);
                    }
                }
                // It was taken away since.
                Err(Errno::NODATA) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(settings)
    };
    read().map_err(|error| CtlError::path(path, error))
}

/// All that `read` gives, whose length is not known before and is 64 KiB at the most.
fn whole(read: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 1 << 16];
    let length = read(&mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

fn list(output: &mut impl Write, directory: &Path, json: bool) -> Result<(), CtlError> {
    let device = on_a_volume(directory)?;
    let mut found = Vec::new();
    let mut to_do = vec![directory.to_owned()];
    while let Some(path) = to_do.pop() {
        let metadata = match path.symlink_metadata() {
            Ok(metadata) => metadata,
            // It went while others were looked at.
            Err(error) if error.kind() == io::ErrorKind::NotFound && path != directory => continue,
            Err(error) => return Err(CtlError::path(&path, error)),
        };
        if metadata.dev() != device || !(metadata.is_file() || metadata.is_dir()) {
            continue;
        }
        let settings = settings_of(&path)?;
        if !settings.is_empty() {
            found.push(Policy { path: printable(&path), settings });
        }
        if metadata.is_dir() {
            let entries = path.read_dir().and_then(Iterator::collect::<io::Result<Vec<_>>>);
            let mut below: Vec<_> = entries
                .map_err(|error| CtlError::path(&path, error))?
                .iter()
                .map(|entry| entry.path())
                .collect();
            // The last is taken first.
            below.sort_by(|one, other| other.cmp(one));
            to_do.extend(below);
        }
    }
    if json {
        print_json(output, &found)?;
        return Ok(());
    }
    for policy in &found {
        writeln!(output, "{}", policy.path)?;
        for (name, value) in &policy.settings {
            writeln!(output, "    {name:<18} {value}")?;
        }
    }
    Ok(())
}

fn print_settings(output: &mut impl Write, settings: &BTreeMap<String, String>) -> io::Result<()> {
    settings.iter().try_for_each(|(name, value)| writeln!(output, "{name:<18} {value}"))
}

fn print_explanation(output: &mut impl Write, path: &Path, report: &PolicyReport) -> io::Result<()> {
    match &report.path {
        Some(name) => writeln!(output, "{}: {name} on the volume", printable(path))?,
        None => writeln!(output, "{}: has no name any more", printable(path))?,
    }
    report.settings.iter().try_for_each(|setting| print_setting(output, setting))
}

/// What holds, then who says something of it, the highest first, then who does not.
fn print_setting(output: &mut impl Write, setting: &SettingReport) -> io::Result<()> {
    writeln!(output, "\n{:<18} {:<24} {}", setting.name, setting.value, setting.decided_by)?;
    let mut silent = Vec::new();
    for source in &setting.sources {
        let value = source.value.as_deref().unwrap_or_default();
        let why = match &source.verdict {
            SourceVerdict::Decides => continue,
            SourceVerdict::Silent if source.source == PolicySource::NoConfiguration => {
                silent.push("configuration (no pattern matches)".to_owned());
                continue;
            }
            SourceVerdict::Silent => {
                silent.push(source.source.to_string());
                continue;
            }
            SourceVerdict::Outranked => format!("{value}, outranked by {}", setting.decided_by),
            SourceVerdict::Shadowed => format!("{value}; only the first [[stream]] that matches is heard"),
            SourceVerdict::Invalid(why) => format!("ignored, {why}"),
        };
        writeln!(output, "    {}: {why}", source.source)?;
    }
    if silent.is_empty() { Ok(()) } else { writeln!(output, "    says nothing: {}", silent.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use avfs_core::types::SourceReport;

    #[test]
    fn an_explanation_names_the_winner_the_losers_and_the_silent() {
        let source = |source, value: Option<&str>, verdict| SourceReport {
            source,
            value: value.map(str::to_owned),
            verdict,
        };
        let directory = PolicySource::Directory { path: "/shots".into() };
        let entry = |entry| PolicySource::Configuration { entry, path: "**".into() };
        let setting = SettingReport {
            name: "class".into(),
            value: "idle".into(),
            decided_by: directory.clone(),
            sources: vec![
                source(PolicySource::Own, None, SourceVerdict::Invalid("the value is not text".into())),
                source(directory, Some("idle"), SourceVerdict::Decides),
                source(entry(2), Some("real-time"), SourceVerdict::Outranked),
                source(entry(3), Some("best-effort"), SourceVerdict::Shadowed),
                source(PolicySource::Container, None, SourceVerdict::Silent),
                source(PolicySource::Observation, None, SourceVerdict::Silent),
            ],
        };
        let mut printed = Vec::new();
        print_setting(&mut printed, &setting).unwrap();
        let expected = "
class              idle                     directory /shots
    its own attributes: ignored, the value is not text
    configuration, [[stream]] 2 \"**\": real-time, outranked by directory /shots
    configuration, [[stream]] 3 \"**\": best-effort; only the first [[stream]] that matches is heard
    says nothing: container, observation
";
        assert_eq!(String::from_utf8(printed).unwrap(), expected);
    }
}
