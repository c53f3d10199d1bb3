//! Where messages go: standard error, a file, or the system's log.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

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

/// Starts logging. What is logged is `AVFS_LOG`'s choice, in the form of `RUST_LOG`; by default everything from
/// level "info".
///
/// # Errors
/// When the file cannot be opened, or nobody listens at `/dev/log`.
pub(crate) fn start(target: &Target) -> io::Result<()> {
    let filter = EnvFilter::try_from_env("AVFS_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    match target {
        Target::StandardError => {
            builder.with_ansi(io::stderr().is_terminal()).with_writer(io::stderr).init();
        }
        Target::File(path) => {
            let file = open(path)?;
            builder.with_ansi(false).with_writer(Arc::new(file)).init();
        }
        Target::System => {
            let system = SystemLog::connect()?;
            builder.with_ansi(false).without_time().with_level(false).with_writer(system).init();
        }
    }
    Ok(())
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
