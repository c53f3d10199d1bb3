//! `avfsctl simulate`: a recording once more, with something otherwise.

use super::asking::{CtlError, print_json};
use super::columns;
use super::times;
use super::trace;
use avfs_core::config::{Config, parse_size};
use avfs_core::events;
use avfs_model::device::{DeviceSpec, REBUILDS};
use avfs_plan::codecs;
use avfs_plan::recording::Recording;
use avfs_plan::simulate::{Change, MOST_EDITORS, Outcome, StreamOutcome, recorded_busy_permille, simulate};
use clap::Args;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use units::{Bitrate, Bytes};

/// Of an outcome in JSON.
const VERSION: u32 = 1;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// What `avfsctl trace record` has written
    recording: PathBuf,
    /// With so many more players
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=i64::from(MOST_EDITORS)))]
    editors: u32,
    /// They play at this rate, such as "185 Mbit/s"; without it, as fast as the fastest that was recorded
    #[arg(long, value_parser = super::streams::parse_rate, conflicts_with = "codec")]
    rate: Option<u64>,
    /// They play this codec, by words of its name, such as "prores hq uhd 25p"
    #[arg(long, value_name = "WORDS")]
    codec: Option<String>,
    /// A disk is lost, and is rebuilt all the time
    #[arg(long)]
    lost_disk: bool,
    /// Everything takes so many times as long
    #[arg(long, value_name = "FACTOR", value_parser = parse_factor, conflicts_with = "lost_disk")]
    slower: Option<f64>,
    /// On this device, by the name of a profile (`avfsctl plan --list`) or PATH.toml
    #[arg(long, value_name = "PROFILE")]
    device: Option<String>,
    /// With these settings and policies
    #[arg(long)]
    config: Option<PathBuf>,
    /// With a cache of this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cache: Option<Bytes>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// How many times as long: 0.1 to 100.
pub(super) fn parse_factor(text: &str) -> Result<f64, String> {
    let factor: Option<f64> = text.parse().ok();
    factor
        .filter(|factor| (0.1..=100.0).contains(factor))
        .ok_or_else(|| format!("`{text}` is no factor from 0.1 to 100, such as 1.5"))
}

#[derive(Debug, Serialize)]
struct Simulated {
    version: u32,
    uuid: String,
    label: String,
    recorded_busy_permille: u32,
    lost_records: u64,
    as_recorded: Outcome,
    changed: Option<Outcome>,
}

pub(super) fn run(output: &mut impl Write, arguments: &Arguments) -> Result<(), CtlError> {
    let recording = trace::read(&arguments.recording)?;
    let as_recorded = simulate(&recording, &Change::default());
    let (change, words) = change(arguments)?;
    let changed = (!words.is_empty()).then(|| simulate(&recording, &change));
    let head = &recording.head;
    let simulated = Simulated {
        version: VERSION,
        uuid: head.uuid.clone(),
        label: head.label.clone(),
        recorded_busy_permille: recorded_busy_permille(&recording),
        lost_records: recording.lost,
        as_recorded,
        changed,
    };
    if arguments.json {
        return Ok(print_json(output, &simulated)?);
    }
    Ok(print(output, &recording, &simulated, &words)?)
}

fn change(arguments: &Arguments) -> Result<(Change, String), CtlError> {
    let wrong = |error: &dyn std::fmt::Display| CtlError::Plan(error.to_string());
    let rate = match &arguments.codec {
        Some(words) => match codecs::named(words).as_slice() {
            [codec] => Some(codec.rate()),
            [] => {
                return Err(wrong(&format_args!(
                    "no codec has `{words}` in its name: `avfsctl plan --list` names them"
                )));
            }
            several => {
                let names: Vec<&str> = several.iter().map(|codec| codec.name.as_str()).collect();
                return Err(wrong(&format_args!("`{words}` is more than one codec: {}", names.join(", "))));
            }
        },
        None => arguments.rate.map(Bitrate),
    };
    let device =
        arguments.device.as_deref().map(DeviceSpec::named).transpose().map_err(|error| wrong(&error))?;
    let config = arguments.config.as_deref().map(Config::load).transpose().map_err(|error| wrong(&error))?;
    let slower = if arguments.lost_disk { Some(REBUILDS) } else { arguments.slower };
    let said = [
        match arguments.editors {
            0 => None,
            1 => Some("1 more editor".to_owned()),
            more => Some(format!("{more} more editors")),
        },
        arguments.lost_disk.then(|| format!("a lost disk (everything takes {REBUILDS} times as long)")),
        arguments.slower.map(|factor| format!("everything taking {factor} times as long")),
        arguments.device.as_ref().map(|device| format!("the device {device}")),
        arguments.config.as_ref().map(|config| format!("the settings of {}", config.display())),
        arguments.cache.map(|cache| format!("a cache of {cache}")),
    ];
    let words = said.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let change = Change { editors: arguments.editors, rate, device, slower, config, memory: arguments.cache };
    Ok((change, words))
}

fn percent(permille: u32) -> String {
    format!("{} %", events::permille(permille))
}

fn print(
    output: &mut impl Write,
    recording: &Recording,
    simulated: &Simulated,
    words: &str,
) -> io::Result<()> {
    let head = &recording.head;
    let name = if head.label.is_empty() { &head.uuid } else { &head.label };
    let began = times::shown(head.began_milliseconds, &times::now());
    let Simulated { as_recorded, changed, recorded_busy_permille, lost_records, .. } = simulated;
    writeln!(
        output,
        "{name}, recorded at {began} for {:.0} s: the device worked for {} of the time, in the simulation for {}",
        as_recorded.duration_microseconds as f64 / 1e6,
        percent(*recorded_busy_permille),
        percent(as_recorded.busy_permille)
    )?;
    if *lost_records > 0 {
        writeln!(
            output,
            "{lost_records} records are lost: more happened than was taken, and the simulation lacks it"
        )?;
    }
    table(output, "as recorded", as_recorded)?;
    changed.as_ref().map_or(Ok(()), |outcome| table(output, &format!("with {words}"), outcome))
}

fn table(output: &mut impl Write, title: &str, outcome: &Outcome) -> io::Result<()> {
    let (late, all) = (outcome.late(), outcome.streams.len());
    let said = match late {
        0 => format!("none of {all} streams is late"),
        late => format!("{late} of {all} streams {} late", if late == 1 { "is" } else { "are" }),
    };
    writeln!(
        output,
        "\n{title}: {said}; the device works for {} of the time",
        percent(outcome.busy_permille)
    )?;
    if all == 0 {
        return Ok(());
    }
    let row = |stream: &StreamOutcome| {
        let late = match stream.late {
            0 => "-".to_owned(),
            late => format!("{late} (≤{})", events::time(stream.longest_microseconds)),
        };
        let start = if stream.records { "-".to_owned() } else { events::time(stream.start_microseconds) };
        [
            stream.name.replace(char::is_control, "?"),
            if stream.records { "records" } else { "plays" }.to_owned(),
            events::rate(stream.bits_per_second),
            stream.service.to_owned(),
            start,
            late,
            stream.reason.clone().unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = outcome.streams.iter().map(|stream| (row(stream), None)).collect();
    columns::print(output, ["stream", "", "rate", "service", "begins within", "late", "because"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_is_within_its_range() {
        assert_eq!(parse_factor("1.5"), Ok(1.5));
        for wrong in ["", "0", "-1", "101", "NaN", "inf", "twice"] {
            assert!(parse_factor(wrong).unwrap_err().contains("is no factor"), "{wrong}");
        }
    }
}
