//! `avfsctl check`: the health of volumes in one word, and an exit code for a monitor.

use super::asking::{CtlError, print_json};
use super::volumes::{Volume, title};
use super::{events, times};
use avfs_core::events::{EventKind, EventReport};
use avfs_core::types::StreamService;
use avfs_fuse::control::{ClientError, Info};
use clap::Args;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use units::Bytes;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The volume, by a path on it, its device, its label or its UUID; without it, all that are mounted here
    volume: Option<PathBuf>,
    /// Warn when no more than so many percent of the device are free
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(0..=100))]
    free_percent: u8,
    /// Warn when pictures were late in so many minutes
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10080))]
    late_minutes: u32,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// How a volume is: the word, and what a monitor makes of it. The worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Health {
    Healthy,
    /// There is little room left.
    Filling,
    /// A stream has lost its promise, or was given none.
    Overloaded,
    /// Pictures were late.
    Late,
    /// Places of the device are not written any more.
    Degraded,
    /// It cannot be found out.
    Unknown,
    /// Writes are refused, or data were lost.
    Failed,
    /// The daemon does not answer.
    Hangs,
}

impl Health {
    fn word(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Filling => "filling",
            Self::Overloaded => "overloaded",
            Self::Late => "late",
            Self::Degraded => "degraded",
            Self::Unknown => "unknown",
            Self::Failed => "failed",
            Self::Hangs => "hangs",
        }
    }

    /// As monitors of the Nagios family read it: fine, warning, critical, unknown.
    fn code(self) -> u8 {
        match self {
            Self::Healthy => 0,
            Self::Filling | Self::Overloaded | Self::Late | Self::Degraded => 1,
            Self::Failed | Self::Hangs => 2,
            Self::Unknown => UNKNOWN,
        }
    }
}

/// What a monitor takes for "not found out".
pub(super) const UNKNOWN: u8 = 3;

/// Version of what is printed as JSON: fields are only added to one.
const VERSION: u32 = 1;

/// One volume.
#[derive(Debug, Serialize)]
struct Checked {
    version: u32,
    volume: String,
    health: Health,
    /// One line; empty where all is well.
    reason: String,
}

/// Prints how volumes are, and gives back the exit code: 0 healthy, 1 warning, 2 critical, 3 not known. That of the worst volume.
pub(super) fn run(output: &mut impl Write, arguments: &Arguments) -> Result<u8, CtlError> {
    let checked = match Volume::named(arguments.volume.as_deref()) {
        Ok(volumes) => volumes.iter().map(|volume| check(volume, arguments)).collect(),
        Err(error) => {
            let named = arguments.volume.as_deref().map_or("this host".into(), avfs_fuse::mount::printable);
            vec![of_error(named, &error)]
        }
    };
    print(output, &checked, arguments.json)?;
    Ok(checked.iter().map(|one| one.health).max().unwrap_or(Health::Unknown).code())
}

fn print(output: &mut impl Write, checked: &[Checked], json: bool) -> io::Result<()> {
    if json {
        return print_json(output, &checked);
    }
    for Checked { volume, health, reason, .. } in checked {
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        writeln!(output, "{}  {}{}", health.word(), volume, reason.replace(char::is_control, "?"))?;
    }
    output.flush()
}

fn of_error(volume: String, error: &CtlError) -> Checked {
    let hangs =
        matches!(error, CtlError::Hangs { .. } | CtlError::Daemon { error: ClientError::Silent { .. }, .. });
    let health = if hangs { Health::Hangs } else { Health::Unknown };
    Checked { version: VERSION, volume, health, reason: error.to_string() }
}

fn check(volume: &Volume, arguments: &Arguments) -> Checked {
    let asked = volume.info().and_then(|info| Ok((info, events::ask(volume, usize::MAX)?)));
    match asked {
        Err(error) => of_error(volume.name().to_owned(), &error),
        Ok((info, events)) => {
            let since =
                times::now().timestamp().as_millisecond() - i64::from(arguments.late_minutes) * 60_000;
            let (health, reason) = judge(&info, &events, since, arguments);
            Checked { version: VERSION, volume: title(&info), health, reason }
        }
    }
}

/// The worst that there is to be said.
fn judge(info: &Info, events: &[EventReport], since: i64, arguments: &Arguments) -> (Health, String) {
    let volume = &info.volume;
    let mut found = vec![(Health::Healthy, String::new())];
    if let Some(failure) = &volume.failure {
        found.push((Health::Failed, format!("writes are refused: {failure}")));
    }
    if volume.losses > 0 {
        found.push((Health::Failed, format!("the device has refused data of files {} times", volume.losses)));
    }
    if !info.connected {
        found.push((Health::Unknown, "it is being unmounted".into()));
    }
    if volume.refused_bytes > 0 {
        let places = Bytes(volume.refused_bytes);
        found.push((
            Health::Degraded,
            format!("the device refuses to write {places} of places; others were found"),
        ));
    }
    let is_late = |event: &&EventReport| {
        event.kind == EventKind::Late && event.is_noticed && event.until_milliseconds >= since
    };
    let late: Vec<_> = events.iter().filter(is_late).collect();
    if let Some(last) = late.last() {
        let count: u32 = late.iter().map(|event| event.count).sum();
        found.push((
            Health::Late,
            format!("{count} times in {} min; last: {}", arguments.late_minutes, last.sentence()),
        ));
    }
    let is_left_out = |state| matches!(state, StreamService::Demoted | StreamService::Waiting);
    let left_out = info.streams.iter().filter(|stream| is_left_out(stream.state)).count();
    if left_out > 0 {
        found.push((
            Health::Overloaded,
            format!("{left_out} streams are served as best effort; avfsctl streams says why"),
        ));
    }
    let free = u128::from(volume.free_bytes) * 100;
    if free <= u128::from(volume.device_bytes) * u128::from(arguments.free_percent) {
        let (free, of) = (Bytes(volume.free_bytes), Bytes(volume.device_bytes));
        found.push((Health::Filling, format!("{free} free of {of}")));
    }
    // Of two that are as bad the first one.
    found.into_iter().rev().max_by_key(|(health, _)| *health).unwrap_or((Health::Unknown, String::new()))
}
