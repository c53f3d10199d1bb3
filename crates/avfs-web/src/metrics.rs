//! Figures as Prometheus reads them (text format 0.0.4), named as its conventions want it: base units, `_total` for what only grows.
//!
//! What a stream does is told of all of them together: a label with a path would make a series of every file that was ever played.

use avfs_core::events::StreamsReport;
use avfs_fuse::control::Info;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What the text is, for HTTP.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What is known of one volume.
pub struct Figures<'a> {
    /// The volume and its daemon.
    pub info: &'a Info,
    /// The streams, and the device.
    pub streams: &'a StreamsReport,
}

/// The text for these volumes, each of which has its UUID and label as labels.
pub fn text(volumes: &[Figures<'_>]) -> String {
    let mut text = Text::default();
    for Figures { info, streams } in volumes {
        of_volume(&mut text, info, streams);
    }
    text.finish()
}

/// Metrics in the order of their names, each with its help once.
#[derive(Default)]
struct Text {
    metrics: BTreeMap<&'static str, (&'static str, &'static str, String)>,
}

impl Text {
    fn add(&mut self, name: &'static str, kind: &'static str, help: &'static str, labels: &str, value: f64) {
        self.sample(name, kind, help, name, labels, value);
    }

    /// A sample of a metric that goes by another name, as those of histograms do.
    fn sample(
        &mut self,
        metric: &'static str,
        kind: &'static str,
        help: &'static str,
        name: &str,
        labels: &str,
        value: f64,
    ) {
        let (_, _, lines) = self.metrics.entry(metric).or_insert_with(|| (kind, help, String::new()));
        // A String takes everything.
        let _ = writeln!(lines, "{name}{{{labels}}} {value}");
    }

    fn finish(self) -> String {
        let mut text = String::new();
        for (name, (kind, help, lines)) in self.metrics {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
        }
        text
    }
}

/// A label's value.
fn quoted(value: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in value.chars() {
        match letter {
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            '\n' => quoted.push_str("\\n"),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

fn of_volume(text: &mut Text, info: &Info, streams: &StreamsReport) {
    let volume = &info.volume;
    let own = format!("uuid={},label={}", quoted(&volume.uuid), quoted(&volume.label));
    let seconds = |microseconds: u64| microseconds as f64 / 1e6;
    let truth = |is_so: bool| f64::from(u8::from(is_so));

    let mounted_on = info.mounted_on.as_ref().map(|path| path.to_string_lossy()).unwrap_or_default();
    let about = format!("{own},version={},mounted_on={}", quoted(&info.version), quoted(&mounted_on));
    text.add("avfs_info", "gauge", "The volume, always 1.", &about, 1.0);

    let mut gauge = |name, help, value: f64| text.add(name, "gauge", help, &own, value);
    gauge("avfs_uptime_seconds", "For how long it is mounted.", info.uptime_seconds as f64);
    gauge("avfs_read_only", "1: writes are refused.", truth(volume.read_only));
    gauge("avfs_failed", "1: writes are refused because of an error.", truth(volume.failure.is_some()));
    gauge("avfs_size_bytes", "Size of the device.", volume.device_bytes as f64);
    gauge("avfs_free_bytes", "Free space.", volume.free_bytes as f64);
    gauge(
        "avfs_longest_free_run_bytes",
        "Longest run of free allocation units.",
        volume.longest_free_run_bytes as f64,
    );
    gauge("avfs_inodes", "Inodes in use.", volume.inodes as f64);
    gauge("avfs_cache_limit_bytes", "Memory that file data may take.", volume.cache_bytes as f64);
    gauge("avfs_cache_taken_bytes", "Memory taken from the machine for it.", volume.cache_taken_bytes as f64);
    gauge("avfs_cache_used_bytes", "Memory that holds file data.", volume.cache_used_bytes as f64);
    gauge(
        "avfs_cache_prefetched_bytes",
        "Memory that players have not come to yet.",
        volume.prefetched_bytes as f64,
    );
    gauge("avfs_dirty_bytes", "Accepted and not on its way to the device.", volume.dirty_bytes as f64);
    gauge("avfs_writing_bytes", "On its way to the device.", volume.writing_bytes as f64);
    gauge("avfs_refused_bytes", "Places that the device has refused to write.", volume.refused_bytes as f64);
    let device = &streams.device;
    gauge("avfs_device_queued_requests", "Requests that wait for the device.", device.queued as f64);
    gauge("avfs_device_in_flight_commands", "Commands at the device.", f64::from(device.in_flight));
    gauge(
        "avfs_device_promised_ratio",
        "Part of the device's time that streams are promised.",
        f64::from(device.promised_permille) / 1000.0,
    );
    let played = streams.streams.iter().filter(|stream| !stream.stream.writes);
    if let Some(least) = played.map(|stream| stream.ahead_microseconds).min() {
        gauge(
            "avfs_streams_least_ahead_seconds",
            "Least that is in memory ahead of a player.",
            seconds(least),
        );
    }
    if let Some(least) = streams.streams.iter().filter_map(|stream| stream.stream.slack_microseconds).min() {
        gauge(
            "avfs_streams_least_slack_seconds",
            "Least time to spare of the last requests of all streams; negative: late.",
            least as f64 / 1e6,
        );
    }

    let mut counter = |name, help, value: f64| text.add(name, "counter", help, &own, value);
    counter("avfs_losses_total", "How often data was lost because no place took it.", volume.losses as f64);
    counter("avfs_commits_total", "Commits of the log.", volume.commits as f64);
    counter("avfs_checkpoints_total", "Checkpoints.", volume.checkpoints as f64);
    counter(
        "avfs_device_busy_seconds_total",
        "How long the device worked.",
        seconds(device.busy_microseconds),
    );
    counter(
        "avfs_device_reckoned_seconds_total",
        "How long it should have, by what was known of it.",
        seconds(device.reckoned_microseconds),
    );
    counter("avfs_device_read_bytes_total", "Bytes read from the device.", device.read_bytes as f64);
    counter("avfs_device_written_bytes_total", "Bytes written to it.", device.written_bytes as f64);

    let states = [("admitted", 0), ("paused", 0), ("demoted", 0), ("waiting", 0)];
    let mut by_state: BTreeMap<(String, &str), u64> = BTreeMap::new();
    for (state, count) in states {
        for direction in ["read", "write"] {
            by_state.insert((state.to_owned(), direction), count);
        }
    }
    for stream in &streams.streams {
        let direction = if stream.stream.writes { "write" } else { "read" };
        *by_state.entry((stream.stream.state.to_string(), direction)).or_default() += 1;
    }
    for ((state, direction), count) in by_state {
        let labels = format!("{own},state={},direction={}", quoted(&state), quoted(direction));
        text.add("avfs_streams", "gauge", "Streams by how they are served.", &labels, count as f64);
    }
    for room in &streams.room {
        let labels = format!("{own},bits_per_second=\"{}\"", room.bits_per_second);
        let help = "For how many more players at a rate that is played there is room.";
        text.add("avfs_room_streams", "gauge", help, &labels, f64::from(room.more));
    }
    // The administrator says which directories have a limit: these are few.
    for limit in &info.limits {
        let labels = format!("{own},path={}", quoted(limit.path.as_deref().unwrap_or_default()));
        let mut gauge = |name, help, value: Option<u64>| {
            if let Some(value) = value {
                text.add(name, "gauge", help, &labels, value as f64);
            }
        };
        gauge("avfs_limit_size_bytes", "Space of files below the directory, at most.", limit.size_bytes);
        gauge("avfs_limit_soft_bytes", "Space beyond which there is an event.", limit.soft_bytes);
        gauge("avfs_limit_used_bytes", "Space of files below the directory.", Some(limit.used_bytes));
        gauge("avfs_limit_files", "Files and directories below the directory, at most.", limit.files);
        gauge("avfs_limit_used_files", "Files and directories below the directory.", Some(limit.used_files));
    }
    for (cause, count) in &info.errors {
        let labels = format!("{own},cause={}", quoted(cause));
        text.add("avfs_errors_total", "counter", "Errors that clients were given.", &labels, *count as f64);
    }
    for (kind, count) in &info.events {
        let labels = format!("{own},kind={}", quoted(kind));
        let help = "What happened to those who play; late_noticed is the part of late that a client noticed.";
        text.add("avfs_events_total", "counter", help, &labels, *count as f64);
    }
    for kind in &info.commands {
        let direction = if kind.writes { "write" } else { "read" };
        let labels = format!("{own},direction={},class={}", quoted(direction), quoted(&kind.class));
        let mut sample = |name: &str, labels: &str, value: u64| {
            let help = "Lengths of the commands that the device was given.";
            text.sample("avfs_device_command_bytes", "histogram", help, name, labels, value as f64);
        };
        let mut together = 0;
        for size in &kind.by_size {
            together += size.commands;
            let bound = size.at_most_bytes.map_or("+Inf".to_owned(), |bytes| bytes.to_string());
            sample("avfs_device_command_bytes_bucket", &format!("{labels},le=\"{bound}\""), together);
        }
        sample("avfs_device_command_bytes_sum", &labels, kind.bytes);
        sample("avfs_device_command_bytes_count", &labels, kind.commands);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_a_label_cannot_end_it() {
        assert_eq!(quoted("a\"b\\c\nd"), r#""a\"b\\c\nd""#);
    }

    #[test]
    fn each_metric_has_its_help_once_whatever_volumes_there_are() {
        let mut text = Text::default();
        for label in ["a", "b"] {
            text.add("avfs_free_bytes", "gauge", "Free space.", &format!("label={}", quoted(label)), 1.5);
        }
        let expected = "# HELP avfs_free_bytes Free space.\n# TYPE avfs_free_bytes gauge\n\
             avfs_free_bytes{label=\"a\"} 1.5\navfs_free_bytes{label=\"b\"} 1.5\n";
        assert_eq!(text.finish(), expected);
    }
}
