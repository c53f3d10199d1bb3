//! `avfsctl top`: one volume, live.
//!
//! **State:** the last two answers of the daemon; what the device does is their difference.

use super::asking::CtlError;
use super::clients::Clients;
use super::volumes::{Volume, title};
use super::{events, streams, times};
use avfs_core::events::{DeviceWork, EventReport, StreamDetail, StreamsReport, permille, rate};
use avfs_core::types::StreamService;
use avfs_fuse::control::Info;
use clap::Args;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, Wrap};
use ratatui::{Frame, Terminal};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use units::Bytes;

/// How often the daemon is asked.
const EACH: Duration = Duration::from_secs(1);
/// Events that are shown.
const EVENTS: u16 = 6;
/// What is said of the device, with its border.
const DEVICE: u16 = 6;
/// Of a frame that goes to no terminal.
const WIDTH: u16 = 160;
const MOST_ROWS: u16 = 200;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The volume, by a path on it, its device, its label or its UUID; without it, the one that is mounted here
    #[arg(value_name = "VOLUME")]
    path: Option<PathBuf>,
    /// Print one frame, after a second, and end
    #[arg(long)]
    once: bool,
}

/// What is shown.
struct Snapshot {
    title: String,
    info: Box<Info>,
    before: Option<StreamsReport>,
    now: StreamsReport,
    events: Vec<EventReport>,
    /// By stream.
    clients: Vec<String>,
    time: jiff::ZonedDateTime,
}

impl Snapshot {
    fn take(volume: &Volume, clients: &mut Clients, before: Option<StreamsReport>) -> Result<Self, CtlError> {
        let now = streams::ask(volume, None)?;
        let (info, events) = (volume.info()?, events::ask(volume, usize::from(EVENTS))?);
        let clients = now.streams.iter().map(|stream| streams::client(stream, clients)).collect();
        Ok(Self { title: title(&info), info, before, now, events, clients, time: times::now() })
    }
}

/// What the device did between two answers.
struct Doing {
    utilisation_percent: f64,
    read_bytes_per_second: u64,
    written_bytes_per_second: u64,
    commands_per_second: f64,
    mean_bytes: u64,
    /// How long it took in percent of what it was reckoned to.
    took_percent: Option<f64>,
}

fn doing(before: &StreamsReport, now: &StreamsReport) -> Doing {
    let microseconds = now.clock_microseconds.saturating_sub(before.clock_microseconds).max(1) as f64;
    let difference = |of: fn(&DeviceWork) -> u64| of(&now.device).saturating_sub(of(&before.device));
    let per_second = |count: u64| count as f64 * 1e6 / microseconds;
    let (busy, reckoned) =
        (difference(|device| device.busy_microseconds), difference(|device| device.reckoned_microseconds));
    let (read, written) = (difference(|device| device.read_bytes), difference(|device| device.written_bytes));
    let commands = difference(|device| device.commands);
    Doing {
        utilisation_percent: (busy as f64 * 100.0 / microseconds).min(100.0),
        read_bytes_per_second: per_second(read) as u64,
        written_bytes_per_second: per_second(written) as u64,
        commands_per_second: per_second(commands),
        mean_bytes: (read + written) / commands.max(1),
        took_percent: (reckoned > 0).then(|| busy as f64 * 100.0 / reckoned as f64),
    }
}

pub(super) fn run(output: &mut impl Write, arguments: &Arguments) -> Result<(), CtlError> {
    let mut volumes = Volume::named(arguments.path.as_deref())?;
    if volumes.len() > 1 {
        return Err(CtlError::SeveralMounted { count: volumes.len() });
    }
    let Some(volume) = volumes.pop() else { return Err(CtlError::NothingMounted) };
    let mut clients = Clients::default();
    if arguments.once || !io::stdout().is_terminal() {
        let before = streams::ask(&volume, None)?;
        std::thread::sleep(EACH);
        let snapshot = Snapshot::take(&volume, &mut clients, Some(before))?;
        return Ok(write!(output, "{}", plain(&snapshot))?);
    }
    let first = Snapshot::take(&volume, &mut clients, None)?;
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, &volume, clients, first);
    ratatui::restore();
    shown
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    volume: &Volume,
    mut clients: Clients,
    mut snapshot: Snapshot,
) -> Result<(), CtlError> {
    loop {
        terminal.draw(|frame| draw(frame, &snapshot))?;
        let until = Instant::now() + EACH;
        while event::poll(until.saturating_duration_since(Instant::now()))? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let is_interrupt =
                        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                    if is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                        return Ok(());
                    }
                }
                Event::Resize(..) => {
                    terminal.draw(|frame| draw(frame, &snapshot))?;
                }
                _ => {}
            }
        }
        let Snapshot { now, .. } = snapshot;
        snapshot = Snapshot::take(volume, &mut clients, Some(now))?;
    }
}

/// A frame as text.
fn plain(snapshot: &Snapshot) -> String {
    let reasons = snapshot.now.streams.iter().filter(|stream| streams::reason(stream).is_some()).count();
    let rows = snapshot.now.streams.len() + reasons;
    // With the head, what stands around the rows, and the line of keys.
    let height =
        1 + DEVICE + (3 + u16::try_from(rows).unwrap_or(MOST_ROWS).clamp(1, MOST_ROWS)) + EVENTS + 1 + 1;
    let mut terminal = match Terminal::new(TestBackend::new(WIDTH, height)) {
        Ok(terminal) => terminal,
        Err(never) => match never {},
    };
    if let Err(never) = terminal.draw(|frame| draw(frame, snapshot)) {
        match never {}
    }
    text(terminal.backend().buffer())
}

fn text(buffer: &Buffer) -> String {
    let area = buffer.area;
    let line = |y: u16| {
        let cells = (0..area.width).filter_map(|x| buffer.cell((x, y)));
        cells.map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()
    };
    (0..area.height).map(|y| line(y) + "\n").collect()
}

fn draw(frame: &mut Frame, snapshot: &Snapshot) {
    let [head, device, streams, events, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(DEVICE),
        Constraint::Min(4),
        Constraint::Length(EVENTS + 1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, head, snapshot);
    draw_device(frame, device, snapshot);
    draw_streams(frame, streams, snapshot);
    draw_events(frame, events, snapshot);
    frame.render_widget(Line::from(" q ends").dim(), keys);
}

fn draw_head(frame: &mut Frame, area: Rect, snapshot: &Snapshot) {
    let time = times::shown(snapshot.now.at_milliseconds, &snapshot.time);
    frame.render_widget(Line::from(vec![" avfs ".bold(), Span::raw(&snapshot.title)]), area);
    frame.render_widget(Line::from(format!("{time} ")).right_aligned(), area);
}

fn per_second(bytes: u64) -> String {
    format!("{:.0} MB/s", bytes as f64 / 1e6)
}

fn draw_device(frame: &mut Frame, area: Rect, snapshot: &Snapshot) {
    let (volume, device) = (&snapshot.info.volume, &snapshot.now.device);
    let mut lines = Vec::new();
    match snapshot.before.as_ref().map(|before| doing(before, &snapshot.now)) {
        Some(doing) => {
            const WIDE: usize = 30;
            let full = (doing.utilisation_percent / 100.0 * WIDE as f64).round() as usize;
            lines.push(Line::from(vec![
                Span::raw(format!("disk busy  {:>3.0} % ", doing.utilisation_percent)),
                Span::styled("█".repeat(full.min(WIDE)), Style::new().fg(Color::Cyan)),
                Span::raw("░".repeat(WIDE - full.min(WIDE))),
                Span::raw(format!("  promised to streams {} %", permille(device.promised_permille))),
            ]));
            lines.push(Line::from(format!(
                "reads {}, writes {}, {:.0} commands/s of {} KiB on average; {} requests wait, {} at the disk",
                per_second(doing.read_bytes_per_second),
                per_second(doing.written_bytes_per_second),
                doing.commands_per_second,
                doing.mean_bytes >> 10,
                device.queued,
                device.in_flight
            )));
            lines.push(Line::from(speed(snapshot, doing.took_percent)));
        }
        None => lines.push(Line::from(format!(
            "promised to streams {} %; {} requests wait, {} at the disk",
            permille(device.promised_permille),
            device.queued,
            device.in_flight
        ))),
    }
    lines.push(Line::from(format!(
        "memory {} of {} in use, {} read ahead, {} to be written",
        Bytes(volume.cache_used_bytes),
        Bytes(volume.cache_bytes),
        Bytes(volume.prefetched_bytes),
        Bytes(volume.dirty_bytes + volume.writing_bytes)
    )));
    let block = Block::bordered().title(" disk ");
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// What was learned of the device, and how it did just now.
fn speed(snapshot: &Snapshot, took_percent: Option<f64>) -> String {
    let service = snapshot
        .info
        .device
        .as_ref()
        .and_then(|device| device.services.iter().find(|service| service.operation == "read"));
    let learned = service.map_or_else(String::new, |service| {
        let figures = |figures: avfs_core::types::ServiceFigures| {
            format!(
                "{:.1} ms and {}",
                figures.access_nanoseconds as f64 / 1e6,
                per_second(figures.bytes_per_second)
            )
        };
        format!("reads take {}, at mount {}", figures(service.now), figures(service.start))
    });
    match took_percent {
        Some(percent) => format!("{learned}; commands took {percent:.0} % of what was reckoned"),
        None => learned,
    }
}

fn draw_streams(frame: &mut Frame, area: Rect, snapshot: &Snapshot) {
    let heads = ["path", "client", "codec", "rate", "disk", "state", "buffer", "slack", "late"];
    let widths = [
        Constraint::Fill(1),
        Constraint::Fill(1),
        Constraint::Length(8),
        Constraint::Length(11),
        Constraint::Length(7),
        Constraint::Length(14),
        Constraint::Length(14),
        Constraint::Length(9),
        Constraint::Length(16),
    ];
    let rows =
        snapshot.now.streams.iter().zip(&snapshot.clients).flat_map(|(stream, client)| rows(stream, client));
    let room = snapshot.now.room.iter().map(streams::room).collect::<Vec<_>>().join("; ");
    let count = snapshot.now.streams.len();
    let block = Block::bordered().title(format!(" {count} streams ")).title_bottom(format!(" {room} "));
    let table = Table::new(rows, widths).header(Row::new(heads).style(Modifier::BOLD)).block(block);
    frame.render_widget(table, area);
    // A reason is longer than a column: it goes over all of them, in the row that was left for it.
    let mut row = area.y + 2;
    for stream in &snapshot.now.streams {
        row += 1;
        let Some(reason) = streams::reason(stream) else { continue };
        if row + 1 < area.bottom() {
            let line = Rect { x: area.x + 3, y: row, width: area.width.saturating_sub(4), height: 1 };
            frame.render_widget(Line::from(reason).style(style(stream)), line);
        }
        row += 1;
    }
}

fn style(stream: &StreamDetail) -> Style {
    match stream.stream.state {
        StreamService::Admitted if stream.stream.missed == 0 => Style::new(),
        StreamService::Admitted | StreamService::Paused => Style::new().fg(Color::Yellow),
        StreamService::Demoted | StreamService::Waiting => Style::new().fg(Color::Red),
    }
}

/// A stream, and a row for why it is not served as it should be.
fn rows<'a>(stream: &StreamDetail, client: &'a str) -> Vec<Row<'a>> {
    let cells = [
        Cell::from(streams::path(stream)),
        Cell::from(client),
        Cell::from(stream.container.clone().unwrap_or_else(|| "-".into())),
        Cell::from(rate(stream.stream.bits_per_second)),
        Cell::from(streams::share(stream)),
        Cell::from(streams::state(stream)),
        Cell::from(streams::buffer(stream)),
        Cell::from(streams::slack(stream)),
        Cell::from(streams::late(stream)),
    ];
    let reason = streams::reason(stream).map(|_| Row::default());
    [Row::new(cells).style(style(stream))].into_iter().chain(reason).collect()
}

fn draw_events(frame: &mut Frame, area: Rect, snapshot: &Snapshot) {
    let lines: Vec<Line> = snapshot
        .events
        .iter()
        .rev()
        .map(|event| {
            let at = times::shown(event.at_milliseconds, &snapshot.time);
            Line::from(format!("{at}  {}", event.sentence().replace(char::is_control, "?")))
        })
        .collect();
    let block = Block::new().title(" last events ".bold());
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).block(block), area);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a daemon answered, with a clock that stands a second later.
    fn report(busy_microseconds: u64, clock_microseconds: u64) -> StreamsReport {
        let stream = |path: &str, state: &str, missed: u64, reason: Option<&str>| {
            serde_json::json!({
                "ino": 5, "writes": false, "bits_per_second": 100_000_000, "state": state, "share_permille": 94,
                "request_bytes": 8 << 20, "buffer_bytes": 16 << 20, "completed": 7, "bytes": 56 << 20, "missed": missed,
                "tardiness_microseconds": missed * 50_000, "slack_microseconds": 420_000, "lacking": null,
                "fits_bits_per_second": null, "path": path, "clients": [{ "process": 4711, "uid": 1000, "name": "smbd" }],
                "container": "MXF", "ahead_bytes": 25_000_000, "ahead_microseconds": 2_000_000, "ahead_frames": 50,
                "silent_microseconds": if state == "paused" { 7_000_000 } else { 40_000 }, "reason": reason
            })
        };
        serde_json::from_value(serde_json::json!({
            "version": 1, "at_milliseconds": 1_800_000_000_000_i64, "clock_microseconds": clock_microseconds,
            "streams": [
                stream("/Projects/a.mxf", "admitted", 0, None),
                stream("/Projects/b.mxf", "paused", 3, None),
                stream("/Projects/c.mxf", "waiting", 0, Some("the stream takes 9.4 % of the device's time and 2.1 % are free")),
            ],
            "device": {
                "busy_microseconds": busy_microseconds, "reckoned_microseconds": busy_microseconds / 2,
                "commands": busy_microseconds / 100_000, "read_bytes": busy_microseconds * 100, "written_bytes": 0,
                "queued": 3, "in_flight": 2, "promised_permille": 812
            },
            "room": [{ "bits_per_second": 100_000_000, "more": 2, "or_more": false }]
        }))
        .unwrap()
    }

    fn info() -> Box<Info> {
        let figures = |milliseconds: u64| serde_json::json!({ "access_nanoseconds": milliseconds * 1_000_000, "bytes_per_second": 170_000_000 });
        let info = serde_json::json!({
            "volume": {
                "uuid": "u", "label": "footage", "device_bytes": 1, "unit_bytes": 1, "stripe_bytes": 1, "free_units": 1,
                "longest_free_run_bytes": 1, "free_bytes": 1, "inodes": 1, "cache_bytes": 1 << 30, "cache_used_bytes": 1 << 29,
                "prefetched_bytes": 1 << 28, "loaded_bytes": 1, "unread_bytes": 1, "dirty_bytes": 1 << 20,
                "writing_bytes": 0, "refused_bytes": 0, "losses": 0, "commits": 1, "checkpoints": 1,
                "read_only": false, "failure": null
            },
            "connected": true, "mounted_on": "/mnt/footage",
            "options": { "cache_bytes": null, "config": null, "log": null, "transport": null },
            "process": 1, "errors": {}, "commands": [], "streams": [],
            "device": {
                "queue_depth": 2,
                "services": [{ "operation": "read", "origin": "measured", "start": figures(16), "now": figures(21) }]
            }
        });
        serde_json::from_value(info).unwrap()
    }

    #[test]
    fn a_frame_says_who_plays_what_and_how_the_disk_is() {
        let event = serde_json::json!({
            "number": 1, "at_milliseconds": 1_799_999_990_000_i64, "until_milliseconds": 1_799_999_990_000_i64,
            "kind": "client_late", "count": 1, "ino": 5, "path": "/Projects/a.mxf", "cause": "client",
            "client_microseconds": 900_000, "storage_microseconds": 4000
        });
        let snapshot = Snapshot {
            title: "footage on /mnt/footage".into(),
            info: info(),
            before: Some(report(1_000_000, 5_000_000)),
            now: report(1_500_000, 6_000_000),
            events: vec![serde_json::from_value(event).unwrap()],
            clients: vec!["anna at EDIT-03, smbd[4711]".into(), "smbd[4711]".into(), "smbd[4712]".into()],
            time: "2027-01-15T08:00:00[UTC]".parse().unwrap(),
        };
        let frame = plain(&snapshot);
        let expected = "
avfs footage on /mnt/footage
disk busy   50 % ███████████████░░░░░░░░░░░░░░░  promised to streams 81.2 %
reads 50 MB/s, writes 0 MB/s, 5 commands/s of 9765 KiB on average; 3 requests wait, 2 at the disk
reads take 21.0 ms and 170 MB/s, at mount 16.0 ms and 170 MB/s; commands took 200 % of what was reckoned
memory 512 MiB of 1 GiB in use, 256 MiB read ahead, 1 MiB to be written
3 streams
/Projects/a.mxf  anna at EDIT-03, smbd[4711]  MXF  100 Mbit/s  9.4 %  admitted  2.0 s 50 fr  420 ms  0
/Projects/b.mxf  smbd[4711]  MXF  100 Mbit/s  9.4 %  paused 7.0 s  2.0 s 50 fr  420 ms  3 (≤150 ms)
/Projects/c.mxf  smbd[4712]  MXF  100 Mbit/s  9.4 %  waiting  2.0 s 50 fr  420 ms  0
the stream takes 9.4 % of the device's time and 2.1 % are free
room for 2 more of 100 Mbit/s
07:59:50  /Projects/a.mxf was late by itself: the client itself asked 900 ms later than its clock says
q ends";
        // Columns are as wide as the frame lets them be.
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let shown: String = words(&frame.replace(['│', '─', '┌', '┐', '└', '┘'], " "));
        for line in expected.trim().lines() {
            assert!(shown.contains(&words(line)), "{line}:\n{frame}");
        }
    }
}
