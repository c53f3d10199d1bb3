//! `avfsctl`: asks the daemon of a mounted volume, sets policies on it, knows how to share it, and measures devices.

mod asking;
mod check;
mod clients;
mod clone;
mod columns;
mod events;
mod frag;
mod holder;
mod label;
mod limit;
mod list;
mod metrics;
mod plan;
mod policy;
mod probe;
mod reload;
mod samba;
mod simulate;
mod streams;
mod times;
mod top;
mod trace;
mod usage;
mod volumes;

use crate::calibrate::{self, Found, Kept};
use crate::claim::Claim;
use crate::fail;
use crate::vacancy;
use avfs_core::types::{
    CommandReport, DeviceReport, LayoutReport, ServiceFigures, ServiceOrigin, StreamReport,
};
use avfs_fuse::control::{Answer, Info, Request};
use avfs_fuse::mount::printable;
use avfs_io::device::{FileDevice, OpenError, OpenMode};
use clap::{Parser, Subcommand};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use units::{Bytes, Duration};

use asking::{CtlError, ask, look, print_json};
use volumes::Volume;

const NAME: &str = "avfsctl";

/// Ask the daemon of a mounted AVFS volume, and set policies of its files.
#[derive(Debug, Parser)]
#[command(name = NAME, version = crate::VERSION, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure how long a device takes that is not mounted, for the configuration of its volume
    Calibrate {
        /// Block device or image file
        device: PathBuf,
        /// Measure writes and flushes, too: what the device holds is lost. It must hold nothing that is known
        #[arg(long)]
        destructive: bool,
        /// How long it may take, about, in seconds: 60 where nothing is said, with writes 120
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
        seconds: Option<u64>,
        /// Keep what was found in this configuration file, instead of printing it
        #[arg(long)]
        config: Option<PathBuf>,
    },
    /// Say in one word how volumes are, with an exit code for a monitor
    Check(check::Arguments),
    /// Copy a file, or a directory with all that is below it, at once: the copy shares its space
    Clone(clone::Arguments),
    /// Show what happened to those who play: who was late, refused or lost its promise, and why
    Events(events::EventsArguments),
    /// Show where a file lies on the device
    Extents {
        /// A file of the volume
        file: PathBuf,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// Show how free space is cut, and for how long there will be long runs
    Frag(frag::Arguments),
    /// Have a mounted volume take what its device has grown by
    Grow {
        /// The volume, by a path on it, its device, its label or its UUID
        volume: PathBuf,
    },
    /// Show which process has the volume of a device, on whatever host
    Holder(holder::Arguments),
    /// Show figures of a volume
    Info {
        /// The volume, by a path on it, its device, its label or its UUID
        volume: PathBuf,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what a volume is called, or give it another name
    Label(label::Arguments),
    /// Say how much may lie below directories, and show how much does
    #[command(subcommand)]
    Limit(limit::Command),
    /// List all volumes that are mounted on this host
    List(list::Arguments),
    /// Print figures of volumes as Prometheus reads them
    Metrics(metrics::Arguments),
    /// Say how many streams of which codecs a device carries: one that was measured, or one that is to be bought
    Plan(plan::Arguments),
    /// Set, show and explain what files are worth
    #[command(subcommand)]
    Policy(policy::Command),
    /// Say which devices hold a volume, mounted or not
    Probe(probe::ProbeArguments),
    /// Have other tools see that a device holds a volume that was made before volumes had a partition table for that
    Protect(probe::ProtectArguments),
    /// Have the daemon read its configuration again
    Reload(reload::Arguments),
    /// Print a share for Samba's smb.conf, with the reason for each line
    SambaConfig(samba::Arguments),
    /// Say which streams of a recording would have been late with more editors, a lost disk, another device or other settings
    Simulate(simulate::Arguments),
    /// Show who plays what, how it is served, and for how many more there is room
    Streams(streams::Arguments),
    /// Write everything that was accepted so far to the device
    Sync {
        /// The volume, by a path on it, its device, its label or its UUID
        volume: PathBuf,
    },
    /// Watch who plays what, live; q ends
    Top(top::Arguments),
    /// Record what the scheduler of a volume is asked and what its device does, show it, and export it for Perfetto
    #[command(subcommand)]
    Trace(trace::Command),
    /// Show how much space files have, alone and together with their copies, and how much their deletion frees
    Usage(usage::Arguments),
    /// Say what made a file late: another stream, best effort, seeks, a slow disk, too many streams, or the client itself
    Why(events::WhyArguments),
}

/// What this command understands, for the completion of shells.
pub fn command() -> clap::Command {
    use clap::CommandFactory;
    Arguments::command()
}

/// Runs the command. Exit codes: 0 done, 1 not done, 2 wrong usage; `check` has its own.
pub fn main() -> ExitCode {
    let arguments = Arguments::try_parse().unwrap_or_else(|error| {
        // To a monitor, wrong usage is nothing found out, and not a volume that has failed.
        if error.use_stderr() && std::env::args_os().nth(1).is_some_and(|command| command == "check") {
            // Nowhere to report that the report failed.
            let _ = error.print();
            std::process::exit(i32::from(check::UNKNOWN));
        }
        error.exit()
    });
    let is_check = matches!(arguments.command, Command::Check(_));
    match run(&arguments.command) {
        Ok(code) => ExitCode::from(code),
        // Whoever reads the first lines only wants no more.
        Err(CtlError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(NAME, error, if is_check { check::UNKNOWN } else { 1 }),
    }
}

/// Gives back the exit code.
fn run(command: &Command) -> Result<u8, CtlError> {
    let mut output = io::stdout();
    let mut code = 0;
    match command {
        Command::Calibrate { device, destructive, seconds, config } => {
            let duration = seconds.map_or(calibrate::duration(*destructive), Duration::from_secs);
            calibrate(&mut output, device, *destructive, duration, config.as_deref())?;
        }
        Command::Events(arguments) => events::events(&mut output, arguments)?,
        Command::Extents { file, json } => {
            // Of a link what it leads to, as every other program that opens it.
            let metadata = look(file, |file| file.metadata())?;
            if !metadata.is_file() {
                let why = "not a regular file: only the contents of files have places on the device";
                return Err(CtlError::path(file, io::Error::other(why)));
            }
            match ask(file, &metadata, &Request::Extents { ino: metadata.ino() })? {
                Answer::Extents(layout) if *json => print_json(&mut output, &layout)?,
                Answer::Extents(layout) => print_layout(&mut output, file, &layout)?,
                _ => return Err(CtlError::OtherAnswer),
            }
        }
        Command::Check(arguments) => code = check::run(&mut output, arguments)?,
        Command::Clone(arguments) => clone::run(arguments)?,
        Command::Frag(arguments) => frag::run(&mut output, arguments)?,
        Command::Grow { volume } => grow(&mut output, &Volume::find(volume)?)?,
        Command::Holder(arguments) => holder::run(&mut output, arguments)?,
        Command::Info { volume, json } => {
            let info = Volume::find(volume)?.info()?;
            if *json { print_json(&mut output, &info)? } else { print_info(&mut output, &info)? }
        }
        Command::Label(arguments) => label::run(&mut output, arguments)?,
        Command::Limit(command) => limit::run(&mut output, command)?,
        Command::List(arguments) => list::run(&mut output, arguments)?,
        Command::Metrics(arguments) => metrics::run(&mut output, arguments)?,
        Command::Plan(arguments) => plan::run(&mut output, arguments)?,
        Command::Policy(command) => policy::run(&mut output, command)?,
        Command::Probe(arguments) => code = probe::probe(&mut output, arguments)?,
        Command::Protect(arguments) => probe::protect(&mut output, NAME, arguments)?,
        Command::Reload(arguments) => reload::run(&mut output, arguments)?,
        Command::SambaConfig(arguments) => samba::print(&mut output, arguments)?,
        Command::Simulate(arguments) => simulate::run(&mut output, arguments)?,
        Command::Streams(arguments) => streams::run(&mut output, arguments)?,
        Command::Top(arguments) => top::run(&mut output, arguments)?,
        Command::Trace(command) => trace::run(&mut output, command)?,
        Command::Usage(arguments) => usage::run(&mut output, arguments)?,
        Command::Why(arguments) => events::why(&mut output, arguments)?,
        Command::Sync { volume } => match Volume::find(volume)?.ask(&Request::Sync {})? {
            Answer::Done {} => {}
            _ => return Err(CtlError::OtherAnswer),
        },
    }
    output.flush()?;
    Ok(code)
}

fn grow(output: &mut impl Write, volume: &Volume) -> Result<(), CtlError> {
    let size = || Ok::<_, CtlError>(Bytes(volume.info()?.volume.device_bytes));
    let before = size()?;
    match volume.ask(&Request::Grow {})? {
        Answer::Done {} => Ok(writeln!(output, "{} instead of {before}", size()?)?),
        _ => Err(CtlError::OtherAnswer),
    }
}

fn calibrate(
    output: &mut impl Write,
    path: &Path,
    writes: bool,
    duration: Duration,
    config: Option<&Path>,
) -> Result<(), CtlError> {
    let kept = config.map(Kept::open).transpose()?;
    let claim = Claim::take(path, NAME)?;
    let measured = measure_claimed(&claim, path, writes, duration);
    claim.release();
    let measured = measured?;
    match kept {
        Some(kept) => kept.keep(&measured)?,
        None => write!(output, "\nfor the configuration:\n\n{}", calibrate::section(&measured))?,
    }
    Ok(())
}

fn measure_claimed(claim: &Claim, path: &Path, writes: bool, duration: Duration) -> Result<Found, CtlError> {
    let is_in_use = |error: &OpenError| matches!(error, OpenError::InUse(_));
    let device = claim.open(|| FileDevice::open(path, OpenMode::Exclusive), is_in_use)?;
    if writes {
        vacancy::check(&device, path)?;
    }
    Ok(calibrate::measure(&Arc::new(device), path, writes, duration)?)
}

fn print_layout(output: &mut impl Write, file: &Path, layout: &LayoutReport) -> io::Result<()> {
    let LayoutReport { extents, pending } = layout;
    let total: u64 = extents.iter().map(|extent| extent.length).sum();
    write!(output, "{}: {} extents, {}", printable(file), extents.len(), Bytes(total))?;
    let waits: u64 = pending.iter().map(|range| range.length).sum();
    writeln!(output, "{}", if waits > 0 { format!("; {} pending", Bytes(waits)) } else { String::new() })?;
    if !extents.is_empty() || !pending.is_empty() {
        writeln!(output, "{:>20} {:>20} {:>20}", "file offset", "device offset", "length")?;
    }
    for extent in extents {
        let state = if extent.unwritten { "  unwritten" } else { "" };
        writeln!(
            output,
            "{:>20} {:>20} {:>20}{state}",
            extent.file_offset, extent.device_offset, extent.length
        )?;
    }
    for range in pending {
        writeln!(output, "{:>20} {:>20} {:>20}  pending", range.file_offset, "-", range.length)?;
    }
    Ok(())
}

fn print_info(output: &mut impl Write, info: &Info) -> io::Result<()> {
    let volume = &info.volume;
    let mut line = |name: &str, value: &dyn std::fmt::Display| writeln!(output, "{name:<18} {value}");
    line("uuid", &volume.uuid)?;
    line("label", &volume.label)?;
    let mounted_on = info.mounted_on.as_deref().map_or("nowhere any more".into(), printable);
    line("mounted on", &mounted_on)?;
    line("process", &info.process)?;
    line("device", &Bytes(volume.device_bytes))?;
    line("unit", &Bytes(volume.unit_bytes))?;
    line("stripe", &Bytes(volume.stripe_bytes))?;
    line("free", &Bytes(volume.free_bytes))?;
    line("free units", &volume.free_units)?;
    line("longest free run", &Bytes(volume.longest_free_run_bytes))?;
    line("inodes", &volume.inodes)?;
    line(
        "cache",
        &format_args!(
            "{} in use, {} taken of at most {}, {} read ahead of players",
            Bytes(volume.cache_used_bytes),
            Bytes(volume.cache_taken_bytes),
            Bytes(volume.cache_bytes),
            Bytes(volume.prefetched_bytes)
        ),
    )?;
    // Neither is on the device: what waits, and what is on its way.
    line("dirty", &Bytes(volume.dirty_bytes + volume.writing_bytes))?;
    if volume.refused_bytes > 0 || volume.losses > 0 {
        let losses = format!("{} of places, {} losses of data", Bytes(volume.refused_bytes), volume.losses);
        line("refused by the device", &losses)?;
    }
    line("commits", &volume.commits)?;
    line("checkpoints", &volume.checkpoints)?;
    line("writes", &if volume.read_only { "refused" } else { "accepted" })?;
    if let Some(failure) = &volume.failure {
        line("failure", failure)?;
    }
    for (cause, count) in &info.errors {
        line(&format!("errors {cause}"), count)?;
    }
    print_commands(output, &info.commands)?;
    print_streams(output, &info.streams)?;
    info.device.as_ref().map_or(Ok(()), |device| print_device(output, device))
}

fn print_device(output: &mut impl Write, device: &DeviceReport) -> io::Result<()> {
    writeln!(output, "\n{:<18} {:<32} {:<10} now", "device takes", "at mount", "from")?;
    let show = |figures: &ServiceFigures| {
        let milliseconds = figures.access_nanoseconds as f64 / 1e6;
        format!("{milliseconds:.3} ms and {:.1} MB/s", figures.bytes_per_second as f64 / 1e6)
    };
    for service in &device.services {
        let origin = match service.origin {
            ServiceOrigin::Measured => "measured",
            ServiceOrigin::Default => "default",
        };
        let now =
            if service.is_learned() { format!("learned: {}", show(&service.now)) } else { "the same".into() };
        writeln!(output, "{:<18} {:<32} {origin:<10} {now}", service.operation, show(&service.start))?;
    }
    writeln!(output, "{:<18} {}", "commands at once", device.queue_depth)
}

fn print_commands(output: &mut impl Write, kinds: &[CommandReport]) -> io::Result<()> {
    let Some(first) = kinds.first() else { return Ok(()) };
    write!(output, "\n{:>18} {:>10} {:>12}", "device commands", "", "mean")?;
    for size in &first.by_size {
        match size.at_most_bytes {
            Some(bytes) => write!(output, " {:>9}", format!("≤{}", Bytes(bytes)))?,
            None => write!(output, " {:>9}", "longer")?,
        }
    }
    for kind in kinds {
        let direction = if kind.writes { "write" } else { "read" };
        let mean = Bytes(kind.bytes / kind.commands.max(1));
        write!(
            output,
            "\n{:>18} {:>10} {:>12}",
            format!("{direction} {}", kind.class),
            kind.commands,
            mean.to_string()
        )?;
        kind.by_size.iter().try_for_each(|size| write!(output, " {:>9}", size.commands))?;
    }
    writeln!(output)
}

fn print_streams(output: &mut impl Write, streams: &[StreamReport]) -> io::Result<()> {
    if !streams.is_empty() {
        writeln!(
            output,
            "\n{:>12} {:<8} {:<9} {:>8} {:>12} {:>10} {:>8} {:>12}",
            "stream of", "", "", "Mbit/s", "request", "requests", "late", "at most by"
        )?;
    }
    for stream in streams {
        write!(
            output,
            "{:>12} {:<8} {:<9} {:>8.1} {:>12} {:>10} {:>8} {:>9.1} ms",
            stream.ino,
            if stream.writes { "recorded" } else { "played" },
            stream.state,
            stream.bits_per_second as f64 / 1e6,
            Bytes(stream.request_bytes).to_string(),
            stream.completed,
            stream.missed,
            stream.tardiness_microseconds as f64 / 1e3
        )?;
        writeln!(output, "{}", stream.sequence.iter().map(|name| format!("  {name}")).collect::<String>())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use avfs_core::types::{ExtentReport, PendingReport};

    #[test]
    fn extents_are_a_table() {
        let extents = vec![
            ExtentReport { file_offset: 0, device_offset: 8 << 20, length: 8 << 20, unwritten: false },
            ExtentReport { file_offset: 8 << 20, device_offset: 64 << 20, length: 4096, unwritten: true },
        ];
        let pending = vec![PendingReport { file_offset: 12 << 20, length: 1000 }];
        let mut printed = Vec::new();
        print_layout(&mut printed, Path::new("a.mxf"), &LayoutReport { extents, pending }).unwrap();
        let expected = "a.mxf: 2 extents, 8196 KiB; 1000 B pending
         file offset        device offset               length
                   0              8388608              8388608
             8388608             67108864                 4096  unwritten
            12582912                    -                 1000  pending
";
        assert_eq!(String::from_utf8(printed).unwrap(), expected);
    }

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }
}
