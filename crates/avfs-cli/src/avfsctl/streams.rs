//! `avfsctl streams`: who plays what, and for how many more there is room.

use super::asking::{CtlError, print_json};
use super::clients::Clients;
use super::columns;
use super::volumes::{Volume, title};
use avfs_core::events::{Room, StreamDetail, StreamsReport, permille, rate, time};
use avfs_core::types::{StreamLack, StreamService};
use avfs_fuse::control::{Answer, Request};
use clap::Args;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use units::Bytes;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The volume, by a path on it, its device, its label or its UUID; without it, all volumes that are mounted here
    #[arg(value_name = "VOLUME")]
    path: Option<PathBuf>,
    /// Say for how many more players at this rate there is room, such as "185 Mbit/s"
    #[arg(long, value_parser = parse_rate)]
    rate: Option<u64>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// `185 Mbit/s`, in bits per second.
pub(super) fn parse_rate(text: &str) -> Result<u64, String> {
    let expected = || format!("`{text}` is no rate: say how many Mbit/s, as \"185 Mbit/s\"");
    let (number, factor) = [("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .unwrap_or((text, 1e6));
    let number: f64 = number.trim().parse().map_err(|_| expected())?;
    let bits = number * factor;
    if (1e3..=1e12).contains(&bits) { Ok(bits as u64) } else { Err(expected()) }
}

/// One volume.
#[derive(Serialize)]
struct OfVolume {
    uuid: String,
    label: String,
    mounted_on: Option<PathBuf>,
    #[serde(flatten)]
    report: StreamsReport,
}

pub(super) fn ask(volume: &Volume, bits_per_second: Option<u64>) -> Result<StreamsReport, CtlError> {
    match volume.ask(&Request::Streams { bits_per_second })? {
        Answer::Streams(report) => Ok(*report),
        _ => Err(CtlError::OtherAnswer),
    }
}

pub(super) fn run(output: &mut impl Write, arguments: &Arguments) -> Result<(), CtlError> {
    let mut all = Vec::new();
    let mut clients = Clients::default();
    for volume in Volume::named(arguments.path.as_deref())? {
        let mut report = ask(&volume, arguments.rate)?;
        let info = volume.info()?;
        if arguments.json {
            for client in report.streams.iter_mut().flat_map(|stream| &mut stream.clients) {
                clients.look_up(client);
            }
            let (uuid, label) = (info.volume.uuid.clone(), info.volume.label.clone());
            all.push(OfVolume { uuid, label, mounted_on: info.mounted_on.clone(), report });
        } else {
            writeln!(output, "{}", title(&info))?;
            print(output, &report, &mut clients)?;
        }
    }
    if arguments.json {
        print_json(output, &all)?;
    }
    Ok(())
}

/// How a stream is served, and since when it is silent.
pub(super) fn state(stream: &StreamDetail) -> String {
    const STALLED_MICROSECONDS: u64 = 2_000_000;
    let silent = stream.silent_microseconds.unwrap_or(0);
    let state = match stream.stream.state {
        StreamService::Admitted if silent >= STALLED_MICROSECONDS => "stalled".into(),
        state => state.to_string(),
    };
    if silent >= STALLED_MICROSECONDS { format!("{state} {}", time(silent)) } else { state }
}

/// Memory ahead of it, in seconds, and frames where these are known.
pub(super) fn buffer(stream: &StreamDetail) -> String {
    if stream.stream.writes {
        return "-".into();
    }
    let frames = stream.ahead_frames.map(|frames| format!(" {frames} fr")).unwrap_or_default();
    format!("{:.1} s{frames}", stream.ahead_microseconds as f64 / 1e6)
}

/// How long before its deadline the last request was complete.
pub(super) fn slack(stream: &StreamDetail) -> String {
    match stream.stream.slack_microseconds {
        None => "-".into(),
        Some(slack) if slack < 0 => format!("-{}", time(slack.unsigned_abs())),
        Some(slack) => time(slack.unsigned_abs()),
    }
}

/// What was late.
pub(super) fn late(stream: &StreamDetail) -> String {
    match stream.stream.missed {
        0 => "0".into(),
        missed => format!("{missed} (≤{})", time(stream.stream.tardiness_microseconds)),
    }
}

pub(super) fn share(stream: &StreamDetail) -> String {
    match stream.stream.share_permille {
        0 => "-".into(),
        share => format!("{} %", permille(share)),
    }
}

pub(super) fn client(stream: &StreamDetail, clients: &mut Clients) -> String {
    let Some(first) = stream.clients.first() else { return "-".into() };
    let more = stream.clients.len() - 1;
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", clients.name(first))
}

pub(super) fn path(stream: &StreamDetail) -> String {
    let path = stream
        .path
        .clone()
        .unwrap_or_else(|| format!("inode {}, which has no name any more", stream.stream.ino));
    path.replace(char::is_control, "?")
}

/// Why it is promised nothing, in a few words where it is the daemon's own word that is long.
pub(super) fn reason(stream: &StreamDetail) -> Option<String> {
    let short = |lack: StreamLack| match lack {
        StreamLack::Time | StreamLack::Deadline => "no room on the disk",
        StreamLack::Memory => "no memory for its buffer",
        StreamLack::Share => "its user's share is full",
        StreamLack::Congestion => "other streams are late",
        StreamLack::Sense => "it is no stream that can be promised anything",
    };
    stream.reason.clone().or_else(|| stream.stream.lacking.map(|lack| short(lack).to_owned()))
}

pub(super) fn room(room: &Room) -> String {
    let more = if room.or_more { format!("{} or more", room.more) } else { room.more.to_string() };
    format!("room for {more} more of {}", rate(room.bits_per_second))
}

/// In columns as wide as they have to be.
fn print(output: &mut impl Write, report: &StreamsReport, clients: &mut Clients) -> io::Result<()> {
    const HEADS: [&str; 9] =
        ["path", "client", "container", "rate", "of the disk", "state", "buffer", "slack", "late"];
    let row = |stream: &StreamDetail, clients: &mut Clients| {
        [
            path(stream),
            client(stream, clients),
            stream.container.clone().unwrap_or_else(|| "-".into()),
            rate(stream.stream.bits_per_second),
            share(stream),
            state(stream),
            buffer(stream),
            slack(stream),
            late(stream),
        ]
    };
    let rows: Vec<_> = report.streams.iter().map(|stream| (row(stream, clients), reason(stream))).collect();
    if rows.is_empty() {
        writeln!(output, "  nothing is played or recorded at a rate that is known")?;
    } else {
        columns::print(output, HEADS, &rows)?;
    }
    let device = &report.device;
    write!(
        output,
        "  {} % of the disk's time promised, {} requests wait, {} at the disk",
        permille(device.promised_permille),
        device.queued,
        device.in_flight
    )?;
    for one in &report.room {
        write!(output, "; {}", room(one))?;
    }
    writeln!(
        output,
        "\n  read {}, written {} since mount",
        Bytes(device.read_bytes),
        Bytes(device.written_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_their_unit_or_in_megabits() {
        assert_eq!(parse_rate("185 Mbit/s"), Ok(185_000_000));
        assert_eq!(parse_rate("1.5Gbit/s"), Ok(1_500_000_000));
        assert_eq!(parse_rate("100"), Ok(100_000_000));
        for wrong in ["", "fast", "0", "-5", "1e9 Gbit/s", "5 MB/s"] {
            assert!(parse_rate(wrong).unwrap_err().contains("is no rate"), "{wrong}");
        }
    }
}
