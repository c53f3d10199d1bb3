//! `avfsctl plan`: how many streams of which codecs a device carries.

use super::asking::{CtlError, print_json};
use crate::memory;
use avfs_core::config::{Config, parse_size};
use avfs_core::events;
use avfs_fuse::mount::printable;
use avfs_model::device::{DeviceSpec, REBUILDS};
use avfs_plan::codecs::{self, Codec};
use avfs_plan::plan::{AGED_PIECE, Fit, Row, System, row};
use clap::Args;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use units::{Bitrate, Bytes};

/// Of a plan in JSON. It changes when a field changes its meaning or goes.
const VERSION: u32 = 1;
/// Of a device whose size is not said. Prices depend on the part of it alone.
const NOMINAL: Bytes = Bytes(1_000_000_000_000);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// A modelled device: one that --list names, or a declaration of your own (PATH.toml)
    #[arg(long, value_name = "PROFILE", required_unless_present_any = ["config", "list"])]
    device: Option<String>,
    /// A volume's configuration: its settings, and without --device what `avfsctl calibrate` kept in it
    #[arg(long)]
    config: Option<PathBuf>,
    /// Memory of the volume's cache, such as 16G; without it, the configuration's, or what a mount would take here
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cache: Option<Bytes>,
    /// Only codecs whose names have words that begin so, such as "prores hq uhd"
    #[arg(long, value_name = "WORDS")]
    codec: Vec<String>,
    /// Streams of this rate, such as "185 Mbit/s"
    #[arg(long, value_parser = super::streams::parse_rate)]
    rate: Vec<u64>,
    /// So many times as long takes everything while a lost disk is rebuilt
    #[arg(long, value_name = "FACTOR", value_parser = super::simulate::parse_factor)]
    rebuild: Option<f64>,
    /// Name the profiles and codecs that there are, with the sources of their figures
    #[arg(long)]
    list: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// What is planned.
#[derive(Debug, Serialize)]
struct Plan {
    version: u32,
    device: String,
    source: String,
    cache_bytes: u64,
    rows: Vec<Row>,
}

pub(super) fn run(output: &mut impl Write, arguments: &Arguments) -> Result<(), CtlError> {
    if arguments.list {
        return Ok(list(output)?);
    }
    let config = match &arguments.config {
        Some(path) => Config::load(path).map_err(|error| CtlError::Plan(error.to_string()))?,
        None => Config::default(),
    };
    let memory = arguments.cache.or(config.cache.size).unwrap_or_else(memory::usual);
    let wrong = |error: &dyn std::fmt::Display| CtlError::Plan(error.to_string());
    let (system, degraded, device, source) = match (&arguments.device, &arguments.config) {
        (Some(name), _) => {
            let spec = DeviceSpec::named(name).map_err(|error| wrong(&error))?;
            let slower = arguments.rebuild.map(|factor| spec.slowed(factor)).or_else(|| spec.degraded());
            let degraded = slower.map(|spec| System::modelled(&spec, config.clone(), memory));
            let system = System::modelled(&spec, config, memory);
            (system, degraded, spec.name.clone(), spec.source.trim().to_owned())
        }
        (None, Some(path)) => {
            let source = format!("what was measured, as {} has it", printable(path));
            let system = System::calibrated(config, NOMINAL, memory).ok_or_else(|| {
                CtlError::Plan(format!(
                    "{} has no [device]: `avfsctl calibrate --config {0} DEVICE` measures it, or name a --device",
                    printable(path)
                ))
            })?;
            // A measurement does not tell whether there is a disk to lose.
            let degraded = arguments.rebuild.map(|factor| system.slowed(factor));
            (system, degraded, "measured device".to_owned(), source)
        }
        (None, None) => return Err(CtlError::Plan("name a --device or a --config".to_owned())),
    };
    let codecs = wanted(arguments)?;
    let rows = [false, true].into_iter().flat_map(|records| {
        let row = |codec: &Codec| row(&system, degraded.as_ref(), &codec.name, codec.rate(), records);
        codecs.iter().map(row).collect::<Vec<_>>()
    });
    let plan = Plan { version: VERSION, device, source, cache_bytes: memory.0, rows: rows.collect() };
    if arguments.json {
        return Ok(print_json(output, &plan)?);
    }
    Ok(print(output, &plan, arguments.rebuild.unwrap_or(REBUILDS))?)
}

fn wanted(arguments: &Arguments) -> Result<Vec<Codec>, CtlError> {
    let mut codecs: Vec<Codec> = arguments
        .rate
        .iter()
        .map(|&rate| Codec {
            name: events::rate(rate),
            megabits: Bitrate(rate).0 as f64 / 1e6,
            source: String::new(),
        })
        .collect();
    for words in &arguments.codec {
        let named = codecs::named(words);
        if named.is_empty() {
            return Err(CtlError::Plan(format!(
                "no codec has `{words}` in its name: --list names all of them"
            )));
        }
        codecs.extend(named);
    }
    if codecs.is_empty() { Ok(codecs::all()) } else { Ok(codecs) }
}

fn list(output: &mut impl Write) -> io::Result<()> {
    writeln!(output, "Profiles of devices:")?;
    for name in DeviceSpec::names() {
        if let Ok(spec) = DeviceSpec::named(name) {
            writeln!(output, "  {name}: {}", spec.source.trim())?;
        }
    }
    writeln!(output, "\nCodecs, Mbit/s of one stream:")?;
    for codec in codecs::all() {
        writeln!(output, "  {:<30} {:>8.1}  {}", codec.name, codec.megabits, codec.source)?;
    }
    Ok(())
}

fn print(output: &mut impl Write, plan: &Plan, rebuild: f64) -> io::Result<()> {
    writeln!(output, "{}: {}", plan.device, plan.source)?;
    writeln!(output, "with a cache of {}, of which streams may have half", Bytes(plan.cache_bytes))?;
    for records in [false, true] {
        let rows: Vec<&Row> = plan.rows.iter().filter(|row| row.records == records).collect();
        if rows.is_empty() {
            continue;
        }
        let what = if records { "streams to record" } else { "streams to play" };
        let heads = ["Mbit/s", "alone", "free", "with a copy", "disk lost", "90 % full", "all three"];
        write!(output, "\n{what:<30}")?;
        heads.iter().try_for_each(|head| write!(output, " {head:>11}"))?;
        writeln!(output)?;
        for row in rows {
            let free = format!("{:.1} %", f64::from(row.alone.free_permille) / 10.0);
            write!(output, "{:<30} {:>11.1}", row.name, row.bits_per_second as f64 / 1e6)?;
            write!(output, " {:>11} {free:>11} {:>11}", cell(&row.alone), cell(&row.beside_copy))?;
            let lost = row.degraded.as_ref().map_or("-".to_owned(), cell);
            writeln!(output, " {lost:>11} {:>11} {:>11}", cell(&row.aged), cell(&row.worst))?;
        }
    }
    writeln!(
        output,
        "\nEach number is what the admission of a mounted volume would promise, one stream after the other. free: of the device's time,\n\
         when so many play or record alone. m: one more would lack memory, and a larger cache carries more. with a copy: something without a\n\
         promise uses the device. disk lost: everything takes {rebuild} times as long. 90 % full: in holes of {AGED_PIECE}."
    )
}

fn cell(fit: &Fit) -> String {
    let more = if fit.or_more { "+" } else { "" };
    let memory = if fit.lacks == Some("memory") { " m" } else { "" };
    format!("{}{more}{memory}", fit.streams)
}
