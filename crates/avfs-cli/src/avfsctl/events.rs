//! `avfsctl events` and `avfsctl why`: what happened to those who play, and what made them late.

use super::asking::{CtlError, print_json};
use super::clients::Clients;
use super::times::{self, Moment};
use super::volumes::{Target, Volume, title};
use avfs_core::events::{EventKind, EventReport};
use avfs_fuse::control::{Answer, Request};
use clap::Args;
use jiff::SignedDuration;
use std::io::Write;
use std::path::PathBuf;

/// All that a daemon keeps.
const ALL: usize = 2000;
/// What an editor says is so exact: a minute before and after.
const AROUND: SignedDuration = SignedDuration::from_secs(60);
/// Other events in so much time around the one that is asked for may belong to it.
const BESIDE_MILLISECONDS: i64 = 5000;
/// No more of them are shown.
const MOST_BESIDE: usize = 8;

#[derive(Debug, Args)]
pub(super) struct EventsArguments {
    /// A file, or a directory: its events alone; without it, those of all volumes that are mounted here
    path: Option<PathBuf>,
    /// Only those since then: 21:14, "2026-11-29 21:14", or so long ago, as 10m or 2h
    #[arg(long)]
    since: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct WhyArguments {
    /// The file that was late, or a directory; without it, whatever was late on the volumes that are mounted here
    path: Option<PathBuf>,
    /// When: 21:14, 21:14:05, "2026-11-29 21:14"; without it, the last time
    #[arg(long)]
    at: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

fn moment(option: &str, text: Option<&str>) -> Result<Option<Moment>, CtlError> {
    let parsed = text.map(|text| times::parse(text, &times::now())).transpose();
    parsed.map_err(|message| CtlError::Value { option: option.into(), message })
}

/// The last `most` events.
pub(super) fn ask(volume: &Volume, most: usize) -> Result<Vec<EventReport>, CtlError> {
    match volume.ask(&Request::Events { since: 0, most })? {
        Answer::Events(events) => Ok(events),
        _ => Err(CtlError::OtherAnswer),
    }
}

/// It concerns the file or directory, or all.
fn concerns(event: &EventReport, target: &Target) -> bool {
    if event.ino == 0 || event.ino == target.ino {
        return true;
    }
    let below = if target.path == "/" { "/".to_owned() } else { format!("{}/", target.path) };
    target.is_directory && event.path.as_deref().is_some_and(|path| path.starts_with(&below))
}

/// With the names of clients, for a sentence.
fn named(mut event: EventReport, clients: &mut Clients) -> EventReport {
    for client in [&mut event.client, &mut event.blocker].into_iter().flatten() {
        clients.look_up(client);
    }
    event
}

fn of_volume(volume: &Volume, clients: &mut Clients) -> Result<Vec<EventReport>, CtlError> {
    let mut events = ask(volume, ALL)?;
    if let Some(target) = &volume.target {
        events.retain(|event| concerns(event, target));
    }
    Ok(events.into_iter().map(|event| named(event, clients)).collect())
}

fn sentence(event: &EventReport) -> String {
    event.sentence().replace(char::is_control, "?")
}

pub(super) fn events(output: &mut impl Write, arguments: &EventsArguments) -> Result<(), CtlError> {
    let since = moment("since", arguments.since.as_deref())?;
    let since = since.map_or(i64::MIN, |since| since.around(SignedDuration::ZERO).0);
    let (now, mut clients, mut all) = (times::now(), Clients::default(), Vec::new());
    for volume in Volume::named(arguments.path.as_deref())? {
        let mut events = of_volume(&volume, &mut clients)?;
        events.retain(|event| event.until_milliseconds >= since);
        if arguments.json {
            all.append(&mut events);
            continue;
        }
        writeln!(output, "{}", title(&*volume.info()?))?;
        if events.is_empty() {
            writeln!(output, "  nothing happened")?;
        }
        for event in &events {
            writeln!(output, "  {}  {}", times::shown(event.at_milliseconds, &now), sentence(event))?;
        }
    }
    if arguments.json {
        print_json(output, &all)?;
    }
    Ok(())
}

fn is_late(event: &EventReport) -> bool {
    matches!(event.kind, EventKind::Late | EventKind::ClientLate)
}

/// The one that is to be explained: at a time the worst, else the last.
fn chosen(events: &[EventReport], between: Option<(i64, i64)>) -> Option<&EventReport> {
    let mut late = events.iter().filter(|event| is_late(event));
    let Some((from, until)) = between else { return late.next_back() };
    late.filter(|event| event.at_milliseconds <= until && event.until_milliseconds >= from)
        .max_by_key(|event| (event.is_noticed, event.late_microseconds))
}

pub(super) fn why(output: &mut impl Write, arguments: &WhyArguments) -> Result<(), CtlError> {
    let at = moment("at", arguments.at.as_deref())?;
    let between = at.as_ref().map(|at| at.around(AROUND));
    let (now, mut clients, mut all) = (times::now(), Clients::default(), Vec::new());
    for volume in Volume::named(arguments.path.as_deref())? {
        let events = of_volume(&volume, &mut clients)?;
        let chosen = chosen(&events, between);
        if arguments.json {
            all.extend(chosen.cloned());
            continue;
        }
        writeln!(output, "{}", title(&*volume.info()?))?;
        match chosen {
            Some(event) => explain(output, event, &events, &now)?,
            None => {
                let when = between.map_or_else(
                    || "as far back as is known".to_owned(),
                    |(from, until)| {
                        format!("between {} and {}", times::shown(from, &now), times::shown(until, &now))
                    },
                );
                writeln!(output, "  nothing was late {when}: if a picture was, it was not through storage")?;
                if let Some(last) = events.iter().rfind(|event| is_late(event)) {
                    let at = times::shown(last.at_milliseconds, &now);
                    writeln!(output, "  the last that was late: {at}  {}", sentence(last))?;
                }
            }
        }
    }
    if arguments.json {
        print_json(output, &all)?;
    }
    Ok(())
}

fn explain(
    output: &mut impl Write,
    event: &EventReport,
    all: &[EventReport],
    now: &jiff::ZonedDateTime,
) -> Result<(), CtlError> {
    let (from, until) = (event.at_milliseconds, event.until_milliseconds);
    writeln!(output, "  {}  {}", times::shown(from, now), sentence(event))?;
    if event.count > 1 {
        let (from, until) = (times::shown(from, now), times::shown(until, now));
        writeln!(output, "    {} times from {from} to {until}", event.count)?;
    }
    for line in event.details() {
        writeln!(output, "    {}", line.replace(char::is_control, "?"))?;
    }
    let is_beside = |other: &&EventReport| {
        other.number != event.number
            && other.at_milliseconds <= until.saturating_add(BESIDE_MILLISECONDS)
            && other.until_milliseconds >= from.saturating_sub(BESIDE_MILLISECONDS)
    };
    let beside: Vec<_> = all.iter().filter(is_beside).collect();
    if !beside.is_empty() {
        writeln!(output, "  at that time also:")?;
    }
    for other in beside.iter().take(MOST_BESIDE) {
        writeln!(output, "    {}  {}", times::shown(other.at_milliseconds, now), sentence(other))?;
    }
    if beside.len() > MOST_BESIDE {
        writeln!(output, "    and {} more: avfsctl events", beside.len() - MOST_BESIDE)?;
    }
    Ok(())
}
