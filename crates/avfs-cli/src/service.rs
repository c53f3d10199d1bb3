//! What the daemon tells systemd where the unit `avfs@.service` has started it: that it serves, that it lives, how the volume is.
//!
//! It is asked as any other asks it, through the control socket. So what hangs in there, or holds the volume for itself, is noticed.

use avfs_fuse::control::{self, Answer, Client, ClientError, Info, Request};
use avfs_fuse::mount::DeviceNumber;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::thread;
use std::time::Duration;
use units::Bytes;

/// Signs of life in the time after which there has to be one: one of them may be late, and systemd(1) advises two.
const SIGNS: u32 = 3;

/// The unit that has started this process.
pub(crate) struct Service {
    socket: UnixDatagram,
    /// How long systemd waits for a sign of life, if it does.
    watchdog: Option<Duration>,
}

impl Service {
    /// That unit, if it is `avfs@.service`, which says so: another one that happens to call mount(8) has words of its own for
    /// its socket.
    pub(crate) fn of_environment() -> Option<io::Result<Self>> {
        std::env::var_os("AVFS_SERVICE")?;
        let address = std::env::var_os("NOTIFY_SOCKET")?;
        let watchdog = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        let watchdog = watchdog.filter(|&microseconds| microseconds > 0).map(Duration::from_micros);
        Some(Self::connect(&address, watchdog))
    }

    fn connect(address: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        match address.as_bytes().strip_prefix(b"@") {
            Some(name) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
            None => socket.connect(address)?,
        }
        Ok(Self { socket, watchdog })
    }

    fn tell(&self, state: &str) {
        if let Err(error) = self.socket.send(state.as_bytes()) {
            tracing::warn!(%error, "systemd is not told how the volume is");
        }
    }

    /// Says that the volume whose files have `st_dev` = `device` is mounted, and from then on that its daemon lives, as long as it answers.
    ///
    /// # Errors
    /// When no thread can be had.
    pub(crate) fn serves(self, device: DeviceNumber) -> io::Result<()> {
        self.tell("READY=1\nSTATUS=mounted");
        let Some(watchdog) = self.watchdog else { return Ok(()) };
        let watch = move || {
            loop {
                match ask(device) {
                    Ok(info) => self.tell(&format!("WATCHDOG=1\nSTATUS={}", status(&info))),
                    Err(error) => tracing::warn!(%error, "no sign of life for systemd"),
                }
                thread::sleep(watchdog / SIGNS);
            }
        };
        thread::Builder::new().name("avfs-alive".into()).spawn(watch).map(drop)
    }
}

fn ask(device: DeviceNumber) -> Result<Box<Info>, ClientError> {
    match Client::connect(&control::socket_path(device))?.ask(&Request::Info {})? {
        Answer::Info(info) => Ok(info),
        _ => Err(ClientError::Garbled("another answer".into())),
    }
}

/// One line for `systemctl status`.
fn status(info: &Info) -> String {
    let volume = &info.volume;
    // A label may hold a line's end, which would begin another word to systemd.
    let name = if volume.label.is_empty() { &volume.uuid } else { &volume.label };
    let name = name.replace(char::is_control, "?");
    let unwritten = Bytes(volume.dirty_bytes + volume.writing_bytes);
    if !info.connected {
        return format!("{name}: unmounted, {unwritten} still to be written");
    }
    let state = match &volume.failure {
        Some(failure) => format!("refuses writes: {}", failure.replace(char::is_control, " ")),
        None if volume.read_only => "read-only".into(),
        None => "serving".into(),
    };
    let streams = info.streams.len();
    let late: u64 = info.streams.iter().map(|stream| stream.missed).sum();
    format!(
        "{name}: {state}; {} of {} free, {unwritten} to be written; {streams} streams, {late} of their requests were late",
        Bytes(volume.free_bytes),
        Bytes(volume.device_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_speaks_to_a_socket_with_a_path_and_to_one_without() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("avfs-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let listeners =
            [UnixDatagram::bind(&path).unwrap(), UnixDatagram::bind_addr(&abstract_address).unwrap()];
        let addresses = [path.into_os_string(), format!("@{name}").into()];
        for (listener, address) in listeners.iter().zip(&addresses) {
            let service = Service::connect(address, None).unwrap();
            service.serves(DeviceNumber::from_raw(0)).unwrap();
            let mut word = [0; 200];
            let length = listener.recv(&mut word).unwrap();
            assert_eq!(&word[..length], b"READY=1\nSTATUS=mounted");
        }
    }
}
