//! `avfsctl trace`: records what the scheduler of a volume is asked and what its device does, shows it, and exports it.

use super::asking::CtlError;
use super::times;
use super::volumes::Volume;
use avfs_core::config::parse_size;
use avfs_core::events;
use avfs_fuse::control::{Answer, Request, Traced};
use avfs_fuse::mount::printable;
use avfs_io::trace::{Happened, MOST_GIVEN};
use avfs_plan::perfetto::Export;
use avfs_plan::recording::{self, Head, Line, Reader, Recording, RecordingError, Writer};
use avfs_plan::simulate::recorded_busy_permille;
use clap::Subcommand;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use units::Bytes;

/// The daemon is asked so often: it keeps seconds of the fastest device.
const EVERY: Duration = Duration::from_millis(200);

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Record what the scheduler of a volume is asked and what its device does
    Record {
        /// The volume, by a path on it, its device, its label or its UUID
        volume: PathBuf,
        /// The file that is made; it should lie on another volume
        #[arg(long, short)]
        output: PathBuf,
        /// For so long
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
        seconds: u64,
        /// No more than this is written
        #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
        most: Bytes,
    },
    /// Show what was recorded: the streams and what became of them, or with --all each record
    Show {
        /// What `avfsctl trace record` has written
        recording: PathBuf,
        /// Show each record
        #[arg(long)]
        all: bool,
    },
    /// Write a recording as Perfetto (ui.perfetto.dev) and Chrome open it
    Export {
        /// What `avfsctl trace record` has written
        recording: PathBuf,
        /// The file that is made; without it, standard output
        #[arg(long, short)]
        output: Option<PathBuf>,
    },
}

pub(super) fn run(output: &mut impl Write, command: &Command) -> Result<(), CtlError> {
    match command {
        Command::Record { volume, output: file, seconds, most } => {
            record(output, volume, file, Duration::from_secs(*seconds), *most)
        }
        Command::Show { recording, all } => show(output, recording, *all),
        Command::Export { recording, output: Some(file) } => {
            let made = create(file)?;
            export(recording, BufWriter::new(made)).map(drop)
        }
        Command::Export { recording, output: None } => export(recording, output).map(drop),
    }
}

fn create(path: &Path) -> Result<File, CtlError> {
    File::create_new(path).map_err(|error| CtlError::path(path, error))
}

fn open(path: &Path) -> Result<BufReader<File>, CtlError> {
    File::open(path).map(BufReader::new).map_err(|error| CtlError::path(path, error))
}

fn wrong(path: &Path) -> impl Fn(RecordingError) -> CtlError {
    move |error| CtlError::Recording { path: printable(path), error }
}

/// All of a recording.
pub(super) fn read(path: &Path) -> Result<Recording, CtlError> {
    Recording::read(open(path)?).map_err(wrong(path))
}

fn ask(volume: &Volume, since: Option<u64>) -> Result<Traced, CtlError> {
    match volume.ask(&Request::Trace { since })? {
        Answer::Trace(traced) => Ok(*traced),
        _ => Err(CtlError::OtherAnswer),
    }
}

fn record(
    output: &mut impl Write,
    path: &Path,
    file: &Path,
    time: Duration,
    most: Bytes,
) -> Result<(), CtlError> {
    let volume = Volume::find(path)?;
    let info = volume.info()?;
    let made = create(file)?;
    let failed = |error| CtlError::path(file, error);
    let began_milliseconds = times::now().timestamp().as_millisecond();
    let Traced { mut part, mut names } = ask(&volume, None)?;
    let Some(begin) = part.begin.take() else { return Err(CtlError::OtherAnswer) };
    let head = Head {
        avfs_trace: recording::VERSION,
        program: format!("avfsctl {}", crate::VERSION),
        uuid: info.volume.uuid.clone(),
        label: info.volume.label.clone(),
        began_milliseconds,
        device_bytes: info.volume.device_bytes,
        begin: *begin,
    };
    let mut writer = Writer::new(BufWriter::new(made), &head).map_err(failed)?;
    let until = Instant::now() + time;
    loop {
        writer.add(&part, &names).map_err(failed)?;
        let is_full = writer.bytes() >= most.0;
        let left = until.saturating_duration_since(Instant::now());
        if is_full {
            crate::tell(format_args!("avfsctl: {most} are written: the recording ends here (--most)"));
        }
        let has_more = part.records.len() == MOST_GIVEN;
        if is_full || (left.is_zero() && !has_more) {
            break;
        }
        if !has_more {
            thread::sleep(EVERY.min(left));
        }
        Traced { part, names } = ask(&volume, Some(part.next))?;
    }
    let (records, lost) = writer.counts();
    let bytes = writer.bytes();
    writer.end(part.now).map_err(failed)?;
    let missing = if lost > 0 { format!("; {lost} are lost") } else { String::new() };
    writeln!(output, "{}: {records} records in {}{missing}", printable(file), Bytes(bytes))?;
    Ok(())
}

/// What became of a stream while it was recorded.
#[derive(Default)]
struct Summary {
    requests: u64,
    bytes: u64,
    bits_per_second: u64,
    writes: bool,
    late: u64,
    longest: u64,
}

fn show(output: &mut impl Write, path: &Path, all: bool) -> Result<(), CtlError> {
    if all {
        return show_all(output, path);
    }
    let recording = read(path)?;
    let head = &recording.head;
    let name = if head.label.is_empty() { &head.uuid } else { &head.label };
    let seconds = (recording.until - head.begin.at) as f64 / 1e9;
    let began = times::shown(head.began_milliseconds, &times::now());
    writeln!(output, "{name} ({}), at {began} for {seconds:.1} s, by {}", head.uuid, head.program)?;
    let (mut streams, mut commands, mut others) = (BTreeMap::<u64, Summary>::new(), 0_u64, 0_u64);
    let declared = head.begin.streams.iter().map(|stream| (stream.stream, stream.wanted));
    for (stream, wanted) in declared {
        let summary = streams.entry(stream).or_default();
        (summary.bits_per_second, summary.writes) = (wanted.bits_per_second, wanted.writes);
    }
    for record in &recording.records {
        match &record.what {
            Happened::Declared { stream, wanted: Some(wanted) } => {
                let summary = streams.entry(*stream).or_default();
                (summary.bits_per_second, summary.writes) = (wanted.bits_per_second, wanted.writes);
            }
            Happened::Asked(asked) => match asked.stream.and_then(|stream| streams.get_mut(&stream)) {
                Some(summary) => {
                    summary.requests += 1;
                    summary.bytes = summary.bytes.saturating_add(asked.length);
                }
                None => others += 1,
            },
            Happened::Late { stream, by } => {
                let summary = streams.entry(*stream).or_default();
                (summary.late, summary.longest) = (summary.late + 1, summary.longest.max(*by));
            }
            Happened::Began { .. } => commands += 1,
            _ => {}
        }
    }
    for (stream, summary) in &streams {
        let does = if summary.writes { "records" } else { "plays" };
        let late = match summary.late {
            0 => "none late".to_owned(),
            late => format!("{late} late, at most by {}", events::time(summary.longest / 1000)),
        };
        let rate = events::rate(summary.bits_per_second);
        let name = recording.name(*stream).replace(char::is_control, "?");
        let moved = Bytes(summary.bytes);
        writeln!(output, "  {name} {does} {rate}: {} requests, {moved}, {late}", summary.requests)?;
    }
    let busy = events::permille(recorded_busy_permille(&recording));
    writeln!(
        output,
        "  {others} requests of no stream; {commands} commands, the device at work for {busy} % of the time"
    )?;
    if recording.lost > 0 {
        writeln!(output, "  {} records are lost: more happened than was taken", recording.lost)?;
    }
    Ok(())
}

fn show_all(output: &mut impl Write, path: &Path) -> Result<(), CtlError> {
    let (head, mut reader) = Reader::new(open(path)?).map_err(wrong(path))?;
    let mut names = BTreeMap::new();
    while let Some(line) = reader.next_entry().map_err(wrong(path))? {
        match line {
            Line::Names(new) => names.extend(new),
            Line::Lost(lost) => writeln!(output, "            {lost} records are lost")?,
            Line::Record(record) => {
                let name =
                    |stream: u64| names.get(&stream).cloned().unwrap_or_else(|| format!("stream {stream}"));
                let said = recording::words(&record.what, name).replace(char::is_control, "?");
                let at = record.at.saturating_sub(head.begin.at) as f64 / 1e9;
                writeln!(output, "{at:>12.6} {said}")?;
            }
            Line::End { .. } => {}
        }
    }
    Ok(())
}

fn export<W: Write>(path: &Path, output: W) -> Result<W, CtlError> {
    let (head, mut reader) = Reader::new(open(path)?).map_err(wrong(path))?;
    let mut export = Export::new(output, &head).map_err(CtlError::Output)?;
    while let Some(line) = reader.next_entry().map_err(wrong(path))? {
        match line {
            Line::Names(names) => export.names(names),
            Line::Record(record) => export.add(&record).map_err(CtlError::Output)?,
            Line::Lost(_) | Line::End { .. } => {}
        }
    }
    export.end().map_err(|error: io::Error| CtlError::Output(error))
}
