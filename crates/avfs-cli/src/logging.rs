//! Where messages go: standard error, a file, or the system's log; and how many of a kind.

use avfs_core::config::parse_log_levels;
use std::collections::HashMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{DefaultFields, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

/// Where to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Standard error, for a terminal or a supervisor.
    StandardError,
    /// At the end of this file.
    File(std::path::PathBuf),
    /// The socket `/dev/log` of syslog or the journal.
    System,
}

/// What is to be logged: the configuration's choice, else that of `AVFS_LOG`, a level, or several of `part=level`; by default everything
/// from level "info".
///
/// # Errors
/// One line that says what it may be.
pub(crate) fn filter(configured: Option<&str>) -> Result<Targets, String> {
    match (configured, std::env::var("AVFS_LOG")) {
        (Some(text), _) => parse(text).map_err(|why| format!("log.level: {why}")),
        (None, Ok(text)) => parse(&text).map_err(|why| format!("AVFS_LOG: {why}")),
        (None, Err(std::env::VarError::NotPresent)) => parse("info"),
        (None, Err(error)) => Err(format!("AVFS_LOG: {error}")),
    }
}

fn parse(text: &str) -> Result<Targets, String> {
    parse_log_levels(text)?.into_iter().try_fold(Targets::new(), |targets, (part, word)| {
        let level: LevelFilter = word.parse().map_err(|_| format!("`{word}` is no level"))?;
        Ok(match part {
            Some(part) => targets.with_target(part, level),
            None => targets.with_default(level),
        })
    })
}

/// The filter of all messages, once logging has started.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// From now on this is logged.
pub(crate) fn log(filter: Targets) {
    // Without a log there is nothing to change.
    if let Some(handle) = FILTER.get() {
        let _ = handle.reload(filter);
    }
}

/// Starts logging.
///
/// # Errors
/// When the file cannot be opened, or nobody listens at `/dev/log`.
pub(crate) fn start(target: &Target, filter: Targets) -> io::Result<()> {
    let format = tracing_subscriber::fmt::format().with_target(false);
    let log = match target {
        Target::StandardError => tracing_subscriber::fmt::layer()
            .with_ansi(io::stderr().is_terminal())
            .event_format(Seldom::new(format))
            .fmt_fields(Named::default())
            .with_writer(io::stderr)
            .boxed(),
        Target::File(path) => tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .event_format(Seldom::new(format))
            .fmt_fields(Named::default())
            .with_writer(Arc::new(open(path)?))
            .boxed(),
        Target::System => tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .event_format(Seldom::new(format.without_time().with_level(false)))
            .fmt_fields(Named::default())
            .with_writer(SystemLog::connect()?)
            .boxed(),
    };
    let (filter, handle) = reload::Layer::new(filter);
    tracing_subscriber::registry().with(log.with_filter(filter)).init();
    let _ = FILTER.set(handle);
    Ok(())
}

/// The volume that this process serves, as its messages name it.
static VOLUME: RwLock<String> = RwLock::new(String::new());

/// From now on every message begins with this: a host has several volumes, and one log.
pub(crate) fn name(volume: String) {
    *VOLUME.write().unwrap_or_else(PoisonError::into_inner) = volume;
}

/// Messages that begin with the volume.
#[derive(Default)]
struct Named(DefaultFields);

impl<'writer> FormatFields<'writer> for Named {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let volume = VOLUME.read().unwrap_or_else(PoisonError::into_inner);
        if !volume.is_empty() {
            // A label may hold a line's end, and would forge a message.
            write!(writer, "{}: ", volume.replace(char::is_control, "?"))?;
        }
        self.0.format_fields(writer, fields)
    }
}

/// Messages of one kind that are logged within [`SPAN`]; the rest are counted. An operator's figures: so many can be read, and more
/// hide what else happens.
const AT_ONCE: u64 = 20;
const SPAN: Duration = Duration::from_secs(5);

/// Leaves out messages of which there are too many, and says so. Of one kind are those that one place of the program logs.
struct Seldom<F> {
    format: F,
    kinds: Mutex<HashMap<Identifier, Kind>>,
}

/// What was logged of a kind.
#[derive(Clone, Copy, Debug)]
struct Kind {
    since: Instant,
    count: u64,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Log,
    /// After so many others of its kind were left out.
    LogAfter(u64),
    /// The next ones are left out.
    LogAsLast,
    LeaveOut,
}

impl Kind {
    fn count(&mut self, now: Instant) -> Verdict {
        if now.duration_since(self.since) >= SPAN {
            let left_out = self.count.saturating_sub(AT_ONCE);
            *self = Self { since: now, count: 1 };
            return if left_out == 0 { Verdict::Log } else { Verdict::LogAfter(left_out) };
        }
        self.count += 1;
        match self.count.cmp(&AT_ONCE) {
            std::cmp::Ordering::Less => Verdict::Log,
            std::cmp::Ordering::Equal => Verdict::LogAsLast,
            std::cmp::Ordering::Greater => Verdict::LeaveOut,
        }
    }
}

impl<F> Seldom<F> {
    fn new(format: F) -> Self {
        Self { format, kinds: Mutex::default() }
    }
}

impl<S, N, F> FormatEvent<S, N> for Seldom<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let now = Instant::now();
        let verdict = self
            .kinds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(event.metadata().callsite())
            .or_insert(Kind { since: now, count: 0 })
            .count(now);
        let remark = match verdict {
            Verdict::Log => return self.format.format_event(context, writer, event),
            Verdict::LeaveOut => return Ok(()),
            Verdict::LogAfter(left_out) => format!("{left_out} before it were left out"),
            Verdict::LogAsLast => format!("further ones are left out for {} s", SPAN.as_secs()),
        };
        let mut message = String::new();
        self.format.format_event(context, Writer::new(&mut message), event)?;
        writeln!(writer, "{} ({remark})", message.trim_end())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// RFC 3164 messages to a local socket.
#[derive(Clone)]
struct SystemLog {
    socket: Arc<UnixDatagram>,
    /// Severity of the message being written, as syslog(3) numbers them.
    severity: u8,
}

/// LOG_DAEMON of syslog(3).
const FACILITY: u8 = 3;

impl SystemLog {
    fn connect() -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect("/dev/log")?;
        // A log that is full must not hold the filesystem up.
        socket.set_nonblocking(true)?;
        Ok(Self { socket: Arc::new(socket), severity: 6 })
    }
}

impl<'a> MakeWriter<'a> for SystemLog {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self {
        let severity = match *metadata.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        Self { severity, ..self.clone() }
    }
}

impl Write for SystemLog {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let mut datagram =
            format!("<{}>avfs[{}]: ", FACILITY << 3 | self.severity, std::process::id()).into_bytes();
        datagram.extend_from_slice(message.trim_ascii_end());
        // A message the log does not take is lost; there is nowhere to say so.
        let _ = self.socket.send(&datagram);
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_is_one_of_those_that_there_are() {
        for level in ["info", "debug", "warn,avfs_core=trace", "off"] {
            assert!(parse(level).is_ok(), "{level}");
        }
        // Each was taken for the name of a part, of which there is none, and changed nothing.
        for word in ["verbose", "", "avfs_core=all", "info,loud"] {
            assert!(parse(word).unwrap_err().contains("is none of off, error"), "{word}");
        }
    }

    /// An engine that had stopped was said 16,703 times in 50 ms.
    #[test]
    fn too_many_messages_of_a_kind_are_counted_instead() {
        let start = Instant::now();
        let mut kind = Kind { since: start, count: 0 };
        let said: Vec<_> = (0..16_703).map(|_| kind.count(start)).collect();
        assert_eq!(said.iter().filter(|verdict| **verdict != Verdict::LeaveOut).count() as u64, AT_ONCE);
        assert_eq!(said[AT_ONCE as usize - 1], Verdict::LogAsLast);
        assert_eq!(kind.count(start + SPAN), Verdict::LogAfter(16_703 - AT_ONCE));
        assert_eq!(kind.count(start + SPAN * 2), Verdict::Log);
    }

    #[test]
    fn a_message_carries_facility_severity_and_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let listener = UnixDatagram::bind(&path).unwrap();
        let socket = UnixDatagram::unbound().unwrap();
        socket.connect(&path).unwrap();
        let mut log = SystemLog { socket: Arc::new(socket), severity: 4 };
        log.write_all(b"volume full\n").unwrap();
        let mut datagram = [0; 200];
        let length = listener.recv(&mut datagram).unwrap();
        let expected = format!("<28>avfs[{}]: volume full", std::process::id());
        assert_eq!(std::str::from_utf8(&datagram[..length]).unwrap(), expected);
    }
}
