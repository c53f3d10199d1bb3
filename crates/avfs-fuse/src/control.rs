//! The control socket of a mounted volume: one line of JSON asks, one line of JSON answers.
//!
//! **For:** what the kernel has no request for: extents of a file, why which policy holds for it, figures of the volume,
//! remounting. **State:** a thread with a single-threaded runtime owns socket and connections. **Invariants:**
//! whatever bytes arrive, the answer is a line of JSON or the end of the connection; no connection can hold more than
//! a line in memory; what is answered at once, above all whether the daemon lives, waits for no request that waits for the device;
//! what changes the volume is root's; others have so many connections that root always has its own.
//!
//! The socket is `/run/avfs/<major>:<minor>.sock`, after `st_dev` of the mount's files. It belongs to root, and to a group if the
//! configuration names one, which may read.

use crate::mount::DeviceNumber;
use avfs_core::events::{EventReport, StreamsReport};
use avfs_core::free_space::FreeSpaceReport;
use avfs_core::types::{
    AccessTimes, BelowReport, CommandReport, DeviceReport, LayoutReport, LimitReport, PolicyReport,
    StreamReport, UsageReport, VolumeReport,
};
use avfs_io::trace::Part;
use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};

/// Version of the protocol. Requests, answers and their fields are added to one version; what is there keeps its meaning.
pub const VERSION: u32 = 1;

/// Where the sockets and locks of mounted volumes are.
pub const RUN_DIRECTORY: &str = "/run/avfs";

/// Longest request in bytes, with its newline.
const MAX_REQUEST_LINE: u64 = 4096;

/// How long a daemon that lives may take to give its figures. An operator's patience: what is asked twice in it still ends
/// within ten seconds.
pub const PATIENCE: Duration = Duration::from_secs(4);

/// Requests that wait for the device at a time, each on a thread; further ones wait for them.
const MAX_WAITING: usize = 32;

/// The same of clients that are not root, together.
const MAX_WAITING_OF_OTHERS: usize = 8;

/// Connections of clients that are not root, together: each costs a file and may have a thread. An operator's figure: screens
/// and monitors of one server.
const MAX_OTHERS: usize = 64;

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Where a file lies on the device.
    Extents {
        /// Its inode number.
        ino: u64,
    },
    /// What a file takes of the device, or all files below a directory.
    Usage {
        /// Its inode number.
        ino: u64,
    },
    /// Figures of the volume and of the daemon.
    Info {},
    /// What holds for a file or directory, and who says so.
    ExplainPolicy {
        /// Its inode number.
        ino: u64,
    },
    /// What a file or directory takes, with all that lies below it, and which limits hold for it.
    Below {
        /// Its inode number.
        ino: u64,
    },
    /// Refuse writes, after everything accepted is durable, or accept them again.
    Remount {
        /// Whether to refuse.
        read_only: bool,
        /// When reading changes times of access.
        access_times: AccessTimes,
    },
    /// The last events.
    Events {
        /// None with a smaller number.
        since: u64,
        /// No more than so many; there are at most 2000.
        most: usize,
    },
    /// Who plays what, and how many more players there is room for.
    Streams {
        /// At this rate; without it, at those that are played.
        #[serde(default)]
        bits_per_second: Option<u64>,
    },
    /// Make everything accepted so far durable.
    Sync {},
    /// How free space is cut.
    FreeSpace {},
    /// Name the volume.
    SetLabel {
        /// Its name from now on.
        label: String,
    },
    /// Take what the device has grown by.
    Grow {},
    /// The configuration is read again, and holds from now on.
    Reload {},
    /// The cache may take so much memory from now on.
    ResizeCache {
        /// 64 MiB or more.
        bytes: u64,
    },
    /// Record what the scheduler is asked and what the device does: begin, or give what was recorded since. A recording that is asked for
    /// nothing for ten seconds ends.
    Trace {
        /// From the record of this number on; without it, a recording begins.
        #[serde(default)]
        since: Option<u64>,
    },
}

impl Request {
    /// Whether the answer comes from the device, in its time.
    fn waits_for_device(&self) -> bool {
        match self {
            Self::Info {} | Self::Extents { .. } | Self::Events { .. } | Self::Streams { .. } => false,
            Self::Trace { .. } | Self::Below { .. } => false,
            // All of a large volume's space is looked through, a little at a time.
            Self::FreeSpace {} | Self::Usage { .. } => true,
            Self::ExplainPolicy { .. } | Self::Remount { .. } | Self::Sync {} | Self::SetLabel { .. } => true,
            Self::Reload {} | Self::ResizeCache { .. } | Self::Grow {} => true,
        }
    }

    /// Whether it changes something that others see.
    fn is_roots(&self) -> bool {
        match self {
            Self::Remount { .. } | Self::SetLabel { .. } | Self::Reload {} | Self::ResizeCache { .. } => true,
            Self::Grow {} => true,
            Self::Info {} | Self::Extents { .. } | Self::ExplainPolicy { .. } | Self::Events { .. } => false,
            Self::Usage { .. } => false,
            Self::Streams { .. }
            | Self::FreeSpace {}
            | Self::Sync {}
            | Self::Trace { .. }
            | Self::Below { .. } => false,
        }
    }

    /// What mounting and unmounting need of a daemon is asked without a version: every daemon answers it, also one that was
    /// there before an upgrade.
    fn is_for_all_versions(&self) -> bool {
        matches!(self, Self::Info {} | Self::Remount { .. } | Self::Sync {})
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Request::Extents`].
    Extents(LayoutReport),
    /// To [`Request::Usage`].
    Usage(UsageReport),
    /// To [`Request::Info`].
    Info(Box<Info>),
    /// To [`Request::Events`].
    Events(Vec<EventReport>),
    /// To [`Request::Streams`].
    Streams(Box<StreamsReport>),
    /// To [`Request::Trace`].
    Trace(Box<Traced>),
    /// To [`Request::ExplainPolicy`].
    Policy(PolicyReport),
    /// To [`Request::Below`].
    Below(BelowReport),
    /// To [`Request::FreeSpace`].
    FreeSpace(FreeSpaceReport),
    /// To [`Request::Reload`]: the settings that are not as before.
    Changed(Vec<String>),
    /// It is done.
    Done {},
    /// It is not; one line for the operator.
    Error(String),
}

/// A part of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// What happened.
    pub part: Part,
    /// What the streams in it are called.
    pub names: BTreeMap<u64, String>,
}

/// Figures of a mounted volume and of its daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// [`VERSION`]; absent in what a daemon says that knew of none.
    #[serde(default)]
    pub protocol: u32,
    /// What the daemon's `--version` says.
    #[serde(default)]
    pub version: String,
    /// Block device or image file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_path: Option<PathBuf>,
    /// For how long it is mounted, in seconds.
    #[serde(default)]
    pub uptime_seconds: u64,
    /// The volume's.
    pub volume: VolumeReport,
    /// Whether the kernel still has it. False between the last umount and the daemon's end, in which everything
    /// is written.
    pub connected: bool,
    /// Where it is mounted, as the daemon sees it: absent when it was unmounted lazily.
    pub mounted_on: Option<PathBuf>,
    /// What it was mounted with.
    pub options: MountedWith,
    /// Process that serves it.
    pub process: u32,
    /// Errors that clients were given since mount, by cause.
    pub errors: BTreeMap<String, u64>,
    /// What happened to clients since mount, by kind; `late_noticed` is the part of `late` that clients noticed.
    #[serde(default)]
    pub events: BTreeMap<String, u64>,
    /// What the device was given to do since mount, by kind.
    pub commands: Vec<CommandReport>,
    /// Open files whose rate is known.
    pub streams: Vec<StreamReport>,
    /// How long the device is reckoned to take; absent while the volume is closed.
    pub device: Option<DeviceReport>,
    /// Limits of directories, and what is used of them.
    #[serde(default)]
    pub limits: Vec<LimitReport>,
}

/// Options that hold for a volume as long as it is mounted: those that were given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountedWith {
    /// Memory for file data.
    pub cache_bytes: Option<u64>,
    /// Configuration.
    pub config: Option<PathBuf>,
    /// Where the daemon logs.
    pub log: Option<PathBuf>,
    /// How requests come from the kernel.
    pub transport: Option<String>,
}

/// Path of the socket of the mount whose files have `st_dev` = `device`.
pub fn socket_path(device: DeviceNumber) -> PathBuf {
    Path::new(RUN_DIRECTORY).join(format!("{device}.sock"))
}

/// Who answers; may block.
pub type Handler = dyn Fn(Request) -> Answer + Send + Sync;

/// The listening socket. Dropping it ends the conversations and removes the socket.
pub struct Control {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
    path: PathBuf,
    /// Inode of the socket.
    socket: u64,
}

impl Control {
    /// Listens at `path`, in place of what a daemon that died left there, to root and to members of `group`.
    ///
    /// # Errors
    /// When the directory or the socket cannot be made.
    pub fn start(path: &Path, group: Option<u32>, handler: Arc<Handler>) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
            // Whatever the mask of this process: what is in there says by itself which group may have it.
            std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755))?;
        }
        let _alone = lock_directory_of(path)?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let listener = {
            let _in_runtime = runtime.enter();
            UnixListener::bind(path)?
        };
        if let Some(group) = group {
            std::os::unix::fs::chown(path, None, Some(group))?;
        }
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        let socket = std::fs::symlink_metadata(path)?.ino();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("avfs-control".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, handler) => {}
                    _ = stopped => {}
                }
            });
            // A handler that still works must not keep the daemon from ending.
            runtime.shutdown_background();
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread), path: path.to_owned(), socket })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // The kernel may have given this mount's number, and so the socket's path, to the next mount already. A
        // socket that cannot be looked at undisturbed stays: whoever comes next replaces it.
        let Ok(_alone) = lock_directory_of(&self.path) else { return };
        let is_ours = |found: std::fs::Metadata| found.ino() == self.socket;
        if std::fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Nobody else makes or removes sockets beside `path` until the file is closed.
fn lock_directory_of(path: &Path) -> io::Result<File> {
    let directory = File::open(path.parent().unwrap_or(Path::new("/")))?;
    flock(&directory, FlockOperation::LockExclusive)?;
    Ok(directory)
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Root,
    /// Of the group that may read.
    Other,
}

/// Room for requests that wait for the device, and for clients that are not root.
struct Rooms {
    of_root: Semaphore,
    of_others: Semaphore,
    others: Arc<Semaphore>,
}

/// Takes every connection of root, each of which costs a file and a line: a bound of their number would let those that
/// wait for the device keep out the one that asks whether the daemon lives. Others are bounded.
async fn accept(listener: UnixListener, handler: Arc<Handler>) {
    let rooms = Arc::new(Rooms {
        of_root: Semaphore::new(MAX_WAITING),
        of_others: Semaphore::new(MAX_WAITING_OF_OTHERS),
        others: Arc::new(Semaphore::new(MAX_OTHERS)),
    });
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (handler, rooms) = (Arc::clone(&handler), Arc::clone(&rooms));
                let is_root = stream.peer_cred().is_ok_and(|peer| peer.uid() == 0);
                let place = if is_root { None } else { Some(Arc::clone(&rooms.others).try_acquire_owned()) };
                // The peer hung up: nobody is left to be told.
                tokio::spawn(async move {
                    match place {
                        None => converse(stream, Peer::Root, handler, &rooms.of_root).await,
                        Some(Ok(_place)) => converse(stream, Peer::Other, handler, &rooms.of_others).await,
                        Some(Err(_)) => refuse(stream).await,
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection to the control socket failed");
                // Out of files, say: until there are some, soon enough for a client that waits.
                tokio::time::sleep(PATIENCE / 8).await;
            }
        }
    }
}

async fn refuse(mut stream: UnixStream) -> io::Result<()> {
    let why = format!("{MAX_OTHERS} clients that are not root have connections already");
    stream.write_all(&encode(&Answer::Error(why))).await
}

async fn converse(stream: UnixStream, peer: Peer, handler: Arc<Handler>, room: &Semaphore) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = tokio::io::BufReader::with_capacity(MAX_REQUEST_LINE as usize, reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        (&mut reader).take(MAX_REQUEST_LINE).read_until(b'\n', &mut line).await?;
        if line.is_empty() {
            return Ok(());
        }
        let complete = line.ends_with(b"\n");
        let answer = if complete {
            answer(&line, peer, Arc::clone(&handler), room).await
        } else {
            Answer::Error(format!("a request is one line of at most {MAX_REQUEST_LINE} bytes"))
        };
        writer.write_all(&encode(&answer)).await?;
        if !complete {
            return Ok(());
        }
    }
}

async fn answer(line: &[u8], peer: Peer, handler: Arc<Handler>, room: &Semaphore) -> Answer {
    let request = match understand(line) {
        Ok(request) => request,
        Err(why) => return Answer::Error(why),
    };
    if request.is_roots() && peer != Peer::Root {
        return Answer::Error("only root may change this: run it with sudo".into());
    }
    // The room is never closed.
    let _place = if request.waits_for_device() { room.acquire().await.ok() } else { None };
    tokio::task::spawn_blocking(move || handler(request))
        .await
        .unwrap_or_else(|_| Answer::Error("the request failed inside the daemon; see its log".into()))
}

/// What `understand` says of what is no request.
const NOT_A_REQUEST: &str = "not a request: ";
/// Where a request says of which version it is.
const VERSION_KEY: &str = "version";

/// A line as a request of this version.
fn understand(line: &[u8]) -> Result<Request, String> {
    let not = |error: serde_json::Error| format!("{NOT_A_REQUEST}{error}");
    let mut object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(line).map_err(not)?;
    match object.remove(VERSION_KEY) {
        Some(version) if version != VERSION => Err(format!(
            "this daemon speaks version {VERSION} of its protocol, and was asked in version {version}: \
             use the avfsctl of the version that mounted the volume"
        )),
        _ => serde_json::from_value(object.into()).map_err(not),
    }
}

/// A request as a line, with the version it is of unless every version knows it.
fn say(request: &Request) -> Vec<u8> {
    let mut said = serde_json::to_value(request).unwrap_or_default();
    if let (false, Some(object)) = (request.is_for_all_versions(), said.as_object_mut()) {
        object.insert(VERSION_KEY.to_owned(), VERSION.into());
    }
    encode(&said)
}

fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_else(|error| {
        // Only a path that is not UTF-8 comes to this.
        format!(r#"{{"error":"the answer cannot be said in JSON: {error}"}}"#).into_bytes()
    });
    line.push(b'\n');
    line
}

/// A client's connection.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<BlockingStream>,
    path: PathBuf,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no AVFS volume is mounted there (no daemon listens at {})", .path.display())]
    NoDaemon {
        /// Where one would.
        path: PathBuf,
    },
    /// It hangs.
    #[error("its daemon does not answer (at {}): `umount -f` takes the volume from its directory", .path.display())]
    Silent {
        /// Where it listens.
        path: PathBuf,
    },
    /// Only root and a group may.
    #[error(
        "only root may talk to the daemon of a volume, and the group that its configuration names ([control] group): \
         run this with sudo"
    )]
    NotRoot,
    /// It was started before this command was made, or after.
    #[error(
        "the daemon is of another version and does not know this request: it knows what the version does that mounted the volume"
    )]
    OtherVersion,
    /// The daemon said no.
    #[error("{0}")]
    Refused(String),
    /// The daemon ended, or does not speak this protocol.
    #[error("the daemon's answer was not understood: is it of another version? ({0})")]
    Garbled(String),
    /// The connection failed.
    #[error("the connection to the daemon failed: {0}")]
    Io(#[from] io::Error),
}

impl Client {
    /// Connects to the daemon that listens at `path`.
    ///
    /// # Errors
    /// When no daemon listens, or the caller may not ask.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        match connect_within(path, PATIENCE) {
            Ok(stream) => Ok(Self { stream: BufReader::new(stream), path: path.to_owned() }),
            Err(error) => Err(match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    ClientError::NoDaemon { path: path.to_owned() }
                }
                io::ErrorKind::PermissionDenied => ClientError::NotRoot,
                io::ErrorKind::WouldBlock => ClientError::Silent { path: path.to_owned() },
                _ => ClientError::Io(error),
            }),
        }
    }

    /// Asks and waits for the answer. What takes its time is waited for as long as the daemon gives its figures to others.
    ///
    /// # Errors
    /// As [`ClientError`] says; an [`Answer::Error`] becomes [`ClientError::Refused`].
    pub fn ask(&mut self, request: &Request) -> Result<Answer, ClientError> {
        let mut line = Vec::new();
        let mut asked = self.stream.get_mut().write_all(&say(request));
        while let Err(error) = asked.and_then(|()| self.stream.read_until(b'\n', &mut line).map(drop)) {
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error.into());
            }
            if matches!(request, Request::Info {}) {
                return Err(ClientError::Silent { path: self.path.clone() });
            }
            match Self::connect(&self.path).and_then(|mut other| other.ask(&Request::Info {})) {
                Err(ClientError::Silent { path }) => return Err(ClientError::Silent { path }),
                _ => asked = Ok(()),
            }
        }
        match serde_json::from_slice(&line) {
            Ok(Answer::Error(message)) if message.starts_with(NOT_A_REQUEST) => {
                Err(ClientError::OtherVersion)
            }
            Ok(Answer::Error(message)) => Err(ClientError::Refused(message)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(ClientError::Garbled(error.to_string())),
        }
    }
}

/// A connection whose calls fail with `WouldBlock` when they take longer. So does connecting, which waits while the daemon
/// takes no further ones.
fn connect_within(path: &Path, patience: Duration) -> io::Result<BlockingStream> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    for timeout in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, timeout, Some(patience))?;
    }
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn start(handler: impl Fn(Request) -> Answer + Send + Sync + 'static) -> (tempfile::TempDir, Control) {
        let directory = tempfile::tempdir().unwrap();
        let control =
            Control::start(&directory.path().join("run/0:1.sock"), None, Arc::new(handler)).unwrap();
        (directory, control)
    }

    fn no_extents(request: Request) -> Answer {
        match request {
            Request::Extents { ino: 2 } => {
                Answer::Extents(LayoutReport { extents: Vec::new(), pending: Vec::new() })
            }
            Request::Sync {} | Request::Remount { .. } => Answer::Done {},
            _ => Answer::Error("no such file".into()),
        }
    }

    /// What the daemon says to these bytes until it hangs up.
    fn conversation(control: &Control, bytes: &[u8]) -> String {
        let mut stream = BlockingStream::connect(&control.path).unwrap();
        // The daemon may hang up before it has read everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        String::from_utf8(heard).unwrap()
    }

    #[test]
    fn requests_are_lines_of_json() {
        let (_directory, control) = start(no_extents);
        let heard = conversation(
            &control,
            b"{\"extents\":{\"ino\":2}}\n{\"sync\":{}}\n{\"remount\":{\"read_only\":true,\"access_times\":\"never\"}}\n{\"info\":{}}\n",
        );
        assert_eq!(
            heard,
            "{\"extents\":{\"extents\":[],\"pending\":[]}}\n{\"done\":{}}\n{\"done\":{}}\n{\"error\":\"no such file\"}\n"
        );
    }

    #[test]
    fn the_client_understands_answers_and_refusals() {
        let (_directory, control) = start(no_extents);
        let mut client = Client::connect(&control.path).unwrap();
        assert_eq!(client.ask(&Request::Sync {}).unwrap(), Answer::Done {});
        let refused = client.ask(&Request::Extents { ino: 3 });
        assert!(matches!(refused, Err(ClientError::Refused(why)) if why == "no such file"));
    }

    #[test]
    fn the_socket_is_roots_alone_and_gone_with_the_daemon() {
        let (_directory, control) = start(no_extents);
        let path = control.path.clone();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(control);
        assert!(matches!(Client::connect(&path), Err(ClientError::NoDaemon { .. })));
        assert!(!path.exists());
    }

    /// A daemon that ended removed the socket of another volume, whose mount had its number by then: nobody could
    /// talk to that one any more, and whoever mounted the first took it for the second.
    #[test]
    fn a_daemon_that_ends_leaves_the_socket_to_who_has_its_number_now() {
        let (_directory, first) = start(no_extents);
        let path = first.path.clone();
        let _second = Control::start(&path, None, Arc::new(no_extents)).unwrap();
        drop(first);
        assert_eq!(Client::connect(&path).unwrap().ask(&Request::Sync {}).unwrap(), Answer::Done {});
    }

    /// One test of a group needs a group: that of root's own is one.
    #[test]
    fn the_socket_is_a_groups_too_if_one_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/0:1.sock");
        let own = std::fs::metadata(directory.path()).unwrap().gid();
        let _control = Control::start(&path, Some(own), Arc::new(no_extents)).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!((metadata.permissions().mode() & 0o777, metadata.gid()), (0o660, own));
        let directory = std::fs::metadata(path.parent().unwrap()).unwrap();
        assert_eq!(directory.permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn a_request_of_another_version_is_refused_by_name() {
        let (_directory, control) = start(no_extents);
        let own = format!("{{\"version\":{VERSION},\"sync\":{{}}}}\n");
        assert_eq!(conversation(&control, own.as_bytes()), "{\"done\":{}}\n");
        for other in ["0", "2", "\"1\"", "1.5", "null", "-1"] {
            let heard = conversation(&control, format!("{{\"version\":{other},\"sync\":{{}}}}\n").as_bytes());
            assert!(heard.contains("this daemon speaks version 1 of its protocol"), "{heard}");
        }
        // What this code asks, it understands, and says of which version it is where that can matter.
        for (request, names) in [(Request::Info {}, false), (Request::FreeSpace {}, true)] {
            let line = say(&request);
            assert_eq!(understand(&line).unwrap(), request);
            assert_eq!(String::from_utf8(line).unwrap().contains("version"), names);
        }
    }

    /// A daemon from before an upgrade knows neither versions nor what was added since.
    #[test]
    fn a_daemon_of_another_version_is_told_from_one_that_refuses() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0:1.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let older = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            stream.write_all(b"{\"error\":\"not a request: unknown variant `free_space`\"}\n").unwrap();
        });
        let asked = Client::connect(&path).unwrap().ask(&Request::FreeSpace {});
        assert!(matches!(asked, Err(ClientError::OtherVersion)), "{asked:?}");
        older.join().unwrap();
    }

    #[test]
    fn a_socket_left_by_a_dead_daemon_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0:1.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let _control = Control::start(&path, None, Arc::new(no_extents)).unwrap();
        assert_eq!(Client::connect(&path).unwrap().ask(&Request::Sync {}).unwrap(), Answer::Done {});
    }

    #[test]
    fn garbage_is_answered_line_by_line_and_the_next_request_still_works() {
        let (_directory, control) = start(no_extents);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..200 {
            let mut bytes: Vec<u8> = (0..round)
                .map(|_| {
                    // xorshift64: Marsaglia, "Xorshift RNGs", 2003.
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state as u8
                })
                .collect();
            bytes.extend(b"\n{\"sync\":{}}\n");
            let heard = conversation(&control, &bytes);
            let (garbage, last) = heard.trim_end().rsplit_once('\n').unwrap();
            assert_eq!(last, "{\"done\":{}}");
            assert!(
                garbage.lines().all(|line| line.starts_with("{\"error\":\"not a request: ")),
                "{garbage}"
            );
        }
    }

    #[test]
    fn nearly_right_requests_are_refused() {
        let (_directory, control) = start(no_extents);
        for wrong in [
            "{}",
            "null",
            "[]",
            "\"sync\"",
            "{\"sync\":{\"now\":1}}",
            "{\"extents\":{}}",
            "{\"extents\":{\"ino\":-1}}",
            "{\"extents\":{\"ino\":2},\"sync\":{}}",
            "{\"remount\":{\"read_only\":\"yes\",\"access_times\":\"never\"}}",
            "{\"remount\":{\"read_only\":true}}",
            &"[".repeat(4000),
        ] {
            let heard = conversation(&control, format!("{wrong}\n").as_bytes());
            assert!(heard.starts_with("{\"error\":\"not a request: "), "{wrong}: {heard}");
        }
    }

    #[test]
    fn an_endless_line_ends_the_conversation() {
        let (_directory, control) = start(no_extents);
        let heard = conversation(&control, &vec![b'x'; 3 * MAX_REQUEST_LINE as usize]);
        assert!(heard.is_empty() || heard.starts_with("{\"error\":\"a request is one line"), "{heard}");
        // Nobody else is affected.
        assert_eq!(conversation(&control, b"{\"sync\":{}}\n"), "{\"done\":{}}\n");
    }

    #[test]
    fn a_request_that_panics_is_answered() {
        let (_directory, control) = start(|_| panic!("on purpose"));
        let heard = conversation(&control, b"{\"sync\":{}}\n");
        assert!(heard.starts_with("{\"error\":\"the request failed inside"), "{heard}");
    }

    /// 32 of them took all places that there were for connections, and the daemon seemed to hang: `umount` told its administrator
    /// to take the volume away by force.
    #[test]
    fn the_daemon_says_that_it_lives_however_many_requests_wait() {
        let (device, answers) = std::sync::mpsc::channel::<()>();
        let answers = std::sync::Mutex::new(answers);
        let (begins, begun) = std::sync::mpsc::channel();
        let (_directory, control) = start(move |request| match request {
            Request::Sync {} => {
                begins.send(()).unwrap();
                // One at a time; all of them when the device is dropped.
                let _ = answers.lock().unwrap().recv();
                Answer::Done {}
            }
            _ => Answer::Error("alive".into()),
        });
        let path = &control.path;
        let connect = |_| BlockingStream::connect(path).unwrap();
        let _idle: Vec<_> = (0..2 * MAX_WAITING).map(connect).collect();
        let mut waiting: Vec<_> = (0..2 * MAX_WAITING).map(connect).collect();
        for stream in &mut waiting {
            stream.write_all(&encode(&Request::Sync {})).unwrap();
        }
        begun.iter().take(MAX_WAITING).for_each(drop);
        let asked = Client::connect(path).unwrap().ask(&Request::Info {});
        assert!(matches!(&asked, Err(ClientError::Refused(why)) if why == "alive"), "{asked:?}");
        assert!(begun.try_recv().is_err(), "more of them are served than there are places");
        drop(device);
        for stream in waiting {
            let mut heard = String::new();
            BufReader::new(stream).read_line(&mut heard).unwrap();
            assert_eq!(heard, "{\"done\":{}}\n");
        }
    }

    /// A daemon that hung hung all who asked it, and an administrator's commands with them.
    #[test]
    fn a_daemon_that_hangs_is_given_up_and_one_that_works_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0:1.sock");
        // Takes connections, as the kernel does for a process that is stopped, and never answers.
        let hangs = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let silent = |request| Client::connect(&path).unwrap().ask(&request).unwrap_err();
        assert!(matches!(silent(Request::Info {}), ClientError::Silent { .. }));
        assert!(matches!(silent(Request::Sync {}), ClientError::Silent { .. }));
        drop(hangs);
        let (_directory, control) = start(|request| match request {
            Request::Sync {} => {
                thread::sleep(PATIENCE + PATIENCE / 2);
                Answer::Done {}
            }
            _ => Answer::Error("alive".into()),
        });
        assert_eq!(Client::connect(&control.path).unwrap().ask(&Request::Sync {}).unwrap(), Answer::Done {});
    }
}
