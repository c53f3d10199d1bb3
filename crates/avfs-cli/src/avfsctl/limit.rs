//! `avfsctl limit`: how much may lie below directories of a mounted volume.
//!
//! A limit is an extended attribute that only the administrator can write, so that setting one takes no daemon. What is used of it is
//! asked of the daemon.

use super::asking::{CtlError, ask, look, print_json};
use super::columns;
use super::volumes::{Volume, title};
use avfs_core::config::parse_size;
use avfs_core::events::size;
use avfs_core::limit::{LIMIT_XATTR, Limit, parse_files};
use avfs_core::types::{BelowReport, LimitReport};
use avfs_fuse::control::{Answer, Request};
use avfs_fuse::mount::printable;
use clap::{Args, Subcommand};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use units::Bytes;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Say how much may lie below a directory; what is not named stays
    Set {
        /// A directory of the volume
        directory: PathBuf,
        #[command(flatten)]
        values: Values,
    },
    /// Show what lies below a directory, and the limits that hold for it
    Show {
        /// A directory or file of the volume
        path: PathBuf,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// Show all limits of a volume, and what is used of them
    List {
        /// The volume, by a path on it, its device, its label or its UUID; without it, all that are mounted here
        volume: Option<PathBuf>,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// Take the limit of a directory away
    Remove {
        /// A directory of the volume
        directory: PathBuf,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(super) struct Values {
    /// Space of all files below it, at most, such as 20T or "500 GB"
    #[arg(long, value_parser = parse_size)]
    size: Option<Bytes>,
    /// Files and directories below it, at most, such as 50000 or 2M
    #[arg(long, value_parser = parse_files)]
    files: Option<u64>,
    /// Space beyond which there is an event and a line in the log, such as 18T
    #[arg(long, value_parser = parse_size)]
    soft: Option<Bytes>,
}

pub(super) fn run(output: &mut impl Write, command: &Command) -> Result<(), CtlError> {
    match command {
        Command::Set { directory, values } => set(directory, values),
        Command::Show { path, json } => {
            let report = usage(path)?;
            if *json {
                print_json(output, &report)?;
            } else {
                print(output, &report)?;
            }
            Ok(())
        }
        Command::List { volume, json } => list(output, volume.as_deref(), *json),
        Command::Remove { directory } => {
            usage(directory)?;
            match rustix::fs::removexattr(directory, LIMIT_XATTR) {
                Err(Errno::NODATA) => Err(CtlError::NoLimit { path: printable(directory) }),
                removed => removed.map_err(|error| of_root(directory, error)),
            }
        }
    }
}

/// What the daemon says of a file or directory: elsewhere a limit would be set and mean nothing.
fn usage(path: &Path) -> Result<BelowReport, CtlError> {
    let metadata = look(path, |path| path.metadata())?;
    match ask(path, &metadata, &Request::Below { ino: metadata.ino() })? {
        Answer::Below(report) => Ok(report),
        _ => Err(CtlError::OtherAnswer),
    }
}

/// Attributes of the administrator are not there for others.
fn of_root(path: &Path, error: Errno) -> CtlError {
    match error {
        Errno::PERM if !rustix::process::geteuid().is_root() => {
            CtlError::path(path, io::Error::other("only root may change a limit: run it with sudo"))
        }
        error => CtlError::path(path, error),
    }
}

fn set(directory: &Path, values: &Values) -> Result<(), CtlError> {
    usage(directory)?;
    if !look(directory, |path| path.metadata())?.is_dir() {
        return Err(CtlError::path(directory, io::Error::other("only a directory has a limit")));
    }
    let mut room = [0; 256];
    let old = match rustix::fs::getxattr(directory, LIMIT_XATTR, &mut room[..]) {
        // One that cannot be read limits nothing, and gives way.
        Ok(length) => str::from_utf8(&room[..length]).ok().and_then(|text| Limit::parse(text).ok()),
        Err(Errno::NODATA | Errno::RANGE) => None,
        Err(error) => return Err(of_root(directory, error)),
    };
    let old = old.unwrap_or_default();
    let limit = Limit {
        size: values.size.or(old.size),
        files: values.files.or(old.files),
        soft: values.soft.or(old.soft),
    };
    let text = limit.to_string();
    Limit::parse(&text).map_err(|why| CtlError::path(directory, io::Error::other(why)))?;
    rustix::fs::setxattr(directory, LIMIT_XATTR, text.as_bytes(), XattrFlags::empty())
        .map_err(|error| of_root(directory, error))
}

fn list(output: &mut impl Write, volume: Option<&Path>, json: bool) -> Result<(), CtlError> {
    let mut all = Vec::new();
    for volume in Volume::named(volume)? {
        let mut info = volume.info()?;
        info.limits.sort_by(|one, other| one.path.cmp(&other.path));
        if !json {
            writeln!(output, "{}", title(&info))?;
            table(output, &info.limits)?;
        }
        all.append(&mut info.limits);
    }
    if json {
        print_json(output, &all)?;
    }
    Ok(())
}

/// Of a limit how much is used, in percent.
fn part(used: u64, limit: Option<u64>) -> String {
    limit.map_or_else(String::new, |limit| format!("{} %", u128::from(used) * 100 / u128::from(limit.max(1))))
}

fn table(output: &mut impl Write, limits: &[LimitReport]) -> io::Result<()> {
    if limits.is_empty() {
        return writeln!(output, "  no directory has a limit");
    }
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), size);
    let row = |limit: &LimitReport| {
        let files = limit.files.map_or_else(|| "-".to_owned(), |files| files.to_string());
        let row = [
            limit.path.clone().unwrap_or_else(|| "(removed)".to_owned()),
            size(limit.used_bytes),
            bytes(limit.size_bytes),
            part(limit.used_bytes, limit.size_bytes),
            bytes(limit.soft_bytes),
            limit.used_files.to_string(),
            files,
        ];
        (row, limit.mistake.as_ref().map(|why| format!("invalid, limits nothing: {why}")))
    };
    let rows: Vec<_> = limits.iter().map(row).collect();
    columns::print(output, ["directory", "used", "size", "", "soft", "files", "at most"], &rows)
}

fn print(output: &mut impl Write, report: &BelowReport) -> io::Result<()> {
    let path = report.path.as_deref().unwrap_or("no name any more");
    writeln!(output, "{path}: {} in {} files and directories", size(report.used_bytes), report.used_files)?;
    if report.limits.is_empty() {
        return writeln!(output, "  no limit holds for it");
    }
    table(output, &report.limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_row_and_a_mistake_is_named() {
        let limit = LimitReport {
            ino: 7,
            path: Some("/film".to_owned()),
            size_bytes: Some(20 << 40),
            soft_bytes: None,
            files: Some(50),
            used_bytes: 5 << 40,
            used_files: 12,
            mistake: None,
        };
        let broken = LimitReport {
            path: Some("/b".to_owned()),
            size_bytes: None,
            files: None,
            mistake: Some("x".to_owned()),
            ..limit.clone()
        };
        let mut printed = Vec::new();
        table(&mut printed, &[limit, broken]).unwrap();
        let printed = String::from_utf8(printed).unwrap();
        let rows: Vec<Vec<&str>> = printed.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["/film", "5.0", "TiB", "20.0", "TiB", "25", "%", "-", "12", "50"]);
        assert_eq!(rows[3].join(" "), "invalid, limits nothing: x");
    }
}
