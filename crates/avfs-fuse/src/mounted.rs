//! The life of a served volume, from the handshake to the last byte on the device.

use crate::control::{self, Answer, Control, Handler, Info, MountedWith, Request, Traced};
use crate::errno::Errors;
use crate::event_log::{self, EventLog};
use crate::mount::{self, DeviceNumber};
use crate::protocol::{MAX_BACKGROUND, WANTED};
use crate::server::{RequestBuffer, Server};
use crate::signals::{Signal, Signals};
use crate::space_log::SpaceLog;
use avfs_core::format::MAX_LABEL;
use avfs_core::volume::{Done, Volume};
use fuse_wire::abi::InitFlags;
use fuse_wire::{Options, Refusals, Session, Transport};
use parking_lot::Mutex;
use rustix::mount::UnmountFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use units::{Bitrate, Bytes, Ino};

/// The transport of filesystems that are made from now on: the one that is wanted, or else rings where this kernel has them.
///
/// # Errors
/// When rings are wanted, and this kernel has none, or this process may not switch them on.
pub fn transport(wanted: Option<Transport>) -> Result<Transport, MountError> {
    match (wanted, fuse_wire::enable_rings()) {
        (Some(Transport::Device), _) => Ok(Transport::Device),
        (_, Ok(())) => Ok(Transport::Ring),
        (Some(Transport::Ring), Err(error)) => Err(MountError::Ring(error)),
        (None, Err(error)) => {
            tracing::info!(%error, "requests come through /dev/fuse");
            Ok(Transport::Device)
        }
    }
}

/// Why a volume could not be mounted or served.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// No rings.
    #[error("requests cannot come through io_uring: {0}; mount with transport=device")]
    Ring(io::Error),
    /// The kernel and this daemon do not understand each other.
    #[error("the kernel and this daemon do not agree: {0}")]
    Handshake(io::Error),
    /// No control socket.
    #[error("cannot listen at {}: {error}", .path.display())]
    Control {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// No thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The kernel's connection ended with an error.
    #[error("the connection to the kernel broke: {0}")]
    Connection(io::Error),
    /// The last flush failed.
    #[error("the volume could not be written completely when it was unmounted: {0}")]
    Shutdown(avfs_core::Error),
    /// Some data were lost before.
    #[error("the device refused data of files {0} times since it was mounted; the log names the files")]
    Lost(u64),
}

/// What the process that serves a volume knows of itself, and does when the volume's administrator wants it.
pub trait Host: Send + Sync {
    /// The configuration is read again and holds from now on. Gives back what has changed, or one line that says what cannot be.
    ///
    /// # Errors
    /// One line; nothing has changed then.
    fn reload(&self, volume: &Volume) -> Result<Vec<String>, String>;

    /// The cache may take so much memory from now on.
    ///
    /// # Errors
    /// One line; nothing has changed then.
    fn resize_cache(&self, volume: &Volume, size: Bytes) -> Result<(), String>;

    /// The volume has another name.
    fn is_labelled(&self, label: &str);
}

/// The daemon, as it answers for itself.
pub struct Daemon {
    /// What its `--version` says.
    pub version: String,
    /// Block device or image file.
    pub device_path: PathBuf,
    /// What the volume was mounted with.
    pub options: MountedWith,
    /// Members of this group may read through the control socket.
    pub group: Option<u32>,
    /// What it does itself.
    pub host: Arc<dyn Host>,
}

/// A volume that is served by threads of this process.
pub struct Mounted {
    session: Session,
    control: Control,
    volume: Arc<Volume>,
    device: DeviceNumber,
    telling: Telling,
    host: Arc<dyn Host>,
    handler: Arc<Handler>,
}

impl Mounted {
    /// Serves `volume` over the connection of the filesystem whose files have `st_dev` = `device`. When this returns, the
    /// filesystem answers, and can be attached.
    ///
    /// # Errors
    /// As [`MountError`] says; the connection has ended then, and the volume is closed.
    pub fn start(
        volume: &Arc<Volume>,
        connection: OwnedFd,
        device: DeviceNumber,
        transport: Transport,
        daemon: Daemon,
    ) -> Result<Self, MountError> {
        let served = Self::serve(volume, connection, device, transport, daemon);
        if served.is_err() {
            // What serves already ends with it, and nothing waits for an answer.
            if let Err(error) = mount::abort(device) {
                tracing::debug!(%error, "the connection has ended already");
            }
            if let Err(error) = volume.shutdown() {
                tracing::error!(%error, "cannot close the volume");
            }
        }
        served
    }

    fn serve(
        volume: &Arc<Volume>,
        connection: OwnedFd,
        device: DeviceNumber,
        transport: Transport,
        daemon: Daemon,
    ) -> Result<Self, MountError> {
        let errors = Arc::new(Errors::default());
        let kernel = connection.try_clone().map_err(MountError::Handshake)?;
        let refusals = Arc::<Refusals>::default();
        let telling = Telling::start(volume).map_err(MountError::Thread)?;
        let (group, host) = (daemon.group, Arc::clone(&daemon.host));
        let cache_option = Mutex::new(daemon.options.cache_bytes);
        let answering = Answering {
            volume: Arc::clone(volume),
            errors: Arc::clone(&errors),
            refusals: Arc::clone(&refusals),
            kernel,
            device,
            daemon,
            events: Arc::clone(&telling.events),
            space: Arc::clone(&telling.space),
            since: Instant::now(),
            cache_option,
        };
        let path = control::socket_path(device);
        let handler: Arc<Handler> = Arc::new(move |request| answering.answer(request));
        let control = Control::start(&path, group, Arc::clone(&handler))
            .map_err(|error| MountError::Control { path, error })?;
        let server = Arc::new(Server::new(Arc::clone(volume), errors));
        let buffers = match transport {
            Transport::Device => volume.request_buffers(fuse_wire::reading_threads()),
            Transport::Ring => Vec::new(),
        };
        let options = Options {
            transport,
            wanted: WANTED,
            required: InitFlags::empty(),
            max_background: MAX_BACKGROUND,
            overdue: volume.overdue(),
            refusals,
            buffers: buffers.into_iter().map(RequestBuffer).collect(),
        };
        let session = Session::start(connection, &server, options).map_err(match transport {
            Transport::Device => MountError::Handshake,
            Transport::Ring => MountError::Ring,
        })?;
        Ok(Self { session, control, volume: Arc::clone(volume), device, telling, host, handler })
    }

    /// `st_dev` of the files: the name of the control socket.
    pub fn device(&self) -> DeviceNumber {
        self.device
    }

    /// What answers the control socket, for others that show what it says.
    pub fn handler(&self) -> Arc<Handler> {
        Arc::clone(&self.handler)
    }

    /// Lets SIGTERM and SIGINT unmount, wherever it is mounted. A volume in use disappears from its directories at once and
    /// ends with its last open file; a second signal does not wait for that: clients that still have files open are
    /// told that the connection has ended, and then everything accepted is written. SIGHUP has the configuration read again.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn heed(&self, signals: Signals, volume: &Arc<Volume>) -> io::Result<()> {
        let device = self.device;
        let (host, volume) = (Arc::clone(&self.host), Arc::downgrade(volume));
        let mut detached = false;
        thread::Builder::new().name("avfs-signals".into()).spawn(move || {
            loop {
                match signals.wait() {
                    Ok(Signal::Hangup) => {
                        // It says in the log what came of it.
                        let _ = volume.upgrade().map(|volume| host.reload(&volume));
                        continue;
                    }
                    Ok(Signal::End) => {}
                    Err(error) => {
                        tracing::error!(%error, "cannot wait for signals");
                        return;
                    }
                }
                if !detached {
                    tracing::info!("signal: unmounting");
                    unmount_everywhere(device);
                    detached = true;
                    continue;
                }
                tracing::warn!("second signal: files that are still open are taken from their clients");
                if let Err(error) = mount::abort(device) {
                    tracing::info!(%error, "nothing is connected any more");
                }
            }
        })?;
        Ok(())
    }

    /// Ends the connection: for what could not be attached.
    pub fn give_up(&self) {
        if let Err(error) = mount::abort(self.device) {
            tracing::info!(%error, "nothing is connected any more");
        }
    }

    /// Lets the kernel know when an error of the device has ended all writing: the mount shows that it is read-only, and
    /// changes are refused before they get here. The kernel agrees as soon as no file is open for writing.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn show_failures(&self, volume: &Arc<Volume>) -> io::Result<()> {
        /// How soon an administrator finds out.
        const LOOK_AFTER: Duration = Duration::from_secs(1);
        let (volume, device) = (Arc::downgrade(volume), self.device);
        let watch = move || {
            while let Some(has_failed) = volume.upgrade().map(|volume| volume.has_failed()) {
                if has_failed && mount::show_read_only(device).is_ok() {
                    tracing::warn!("the mount is read-only now, as the volume is");
                    return;
                }
                thread::sleep(LOOK_AFTER);
            }
        };
        thread::Builder::new().name("avfs-watch".into()).spawn(watch).map(drop)
    }

    /// Waits until it is unmounted, and everything is written and the volume closed.
    ///
    /// # Errors
    /// When the kernel's connection broke, or not everything could be written; the volume is closed in any case.
    pub fn wait(self) -> Result<(), MountError> {
        let ended = self.session.join().map_err(MountError::Connection);
        self.telling.end();
        let closed = self.volume.shutdown().map_err(MountError::Shutdown);
        let closed = closed.and_then(|()| match self.volume.report().losses {
            0 => Ok(()),
            losses => Err(MountError::Lost(losses)),
        });
        drop(self.control);
        ended.and(closed)
    }
}

/// Tells what happens to clients while a volume is mounted, and what becomes of its space.
struct Telling {
    events: Arc<EventLog>,
    space: Arc<SpaceLog>,
    stop: mpsc::Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl Telling {
    fn start(volume: &Arc<Volume>) -> io::Result<Self> {
        /// How soon an administrator finds out.
        const LOOK_AFTER: Duration = Duration::from_secs(1);
        let (directory, uuid) = (event_log::state_directory(), volume.report().uuid);
        let events = Arc::new(EventLog::open(&directory, &uuid));
        let space = Arc::new(SpaceLog::open(&directory, &uuid));
        let (stop, stopped) = mpsc::channel();
        let (volume, told, kept) = (Arc::clone(volume), Arc::clone(&events), Arc::clone(&space));
        let tell = move || {
            while stopped.recv_timeout(LOOK_AFTER) == Err(mpsc::RecvTimeoutError::Timeout) {
                told.add(volume.happened(false));
                if kept.is_due() {
                    kept.add(volume.free_space().sample(milliseconds()));
                }
            }
            told.add(volume.happened(true));
        };
        let thread = thread::Builder::new().name("avfs-events".into()).spawn(tell)?;
        Ok(Self { events, space, stop, thread })
    }

    /// Tells what is left.
    fn end(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            tracing::error!("the thread that tells of events has panicked");
        }
    }
}

fn unmount_everywhere(device: DeviceNumber) {
    let places = mount::mounted_on(device).unwrap_or_else(|error| {
        tracing::error!(%error, "cannot find out where it is mounted");
        Vec::new()
    });
    // The newest first: they may lie upon each other.
    for place in places.iter().rev() {
        let directory = mount::printable(&place.directory);
        let unmounted = match mount::unmount(&place.directory, UnmountFlags::empty()) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                tracing::warn!("{directory}: files are open: unmounted lazily, ending with the last of them");
                mount::unmount(&place.directory, UnmountFlags::DETACH)
            }
            unmounted => unmounted,
        };
        if let Err(error) = unmounted {
            tracing::error!(%error, "cannot unmount {directory}");
        }
    }
}

/// Milliseconds since 1970 UTC.
fn milliseconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// What there is to be asked.
struct Answering {
    volume: Arc<Volume>,
    errors: Arc<Errors>,
    refusals: Arc<Refusals>,
    kernel: OwnedFd,
    device: DeviceNumber,
    daemon: Daemon,
    events: Arc<EventLog>,
    space: Arc<SpaceLog>,
    since: Instant,
    /// `cache_size` of the mount, or of the last remount that named it.
    cache_option: Mutex<Option<u64>>,
}

impl Answering {
    fn answer(&self, request: Request) -> Answer {
        let volume = &self.volume;
        let refuse = |error: avfs_core::Error| Answer::Error(error.to_string());
        let done = |result: Result<(), avfs_core::Error>| result.map_or_else(refuse, |()| Answer::Done {});
        match request {
            Request::Extents { ino } => volume.layout(Ino(ino)).map_or_else(refuse, Answer::Extents),
            Request::Usage { ino } => volume.usage(Ino(ino)).map_or_else(refuse, Answer::Usage),
            Request::ExplainPolicy { ino } => {
                volume.explain_policy(Ino(ino)).map_or_else(refuse, Answer::Policy)
            }
            Request::Below { ino } => volume.below_report(Ino(ino)).map_or_else(refuse, Answer::Below),
            Request::Info {} => Answer::Info(Box::new(self.info())),
            Request::Events { since, most } => Answer::Events(self.events.since(since, most)),
            Request::Streams { bits_per_second } => {
                let rates: Vec<Bitrate> = bits_per_second.map(Bitrate).into_iter().collect();
                Answer::Streams(Box::new(volume.streams_report(&rates)))
            }
            Request::Trace { since } => match volume.trace(since) {
                Some((part, names)) => Answer::Trace(Box::new(Traced { part, names })),
                None => Answer::Error("the recording has ended: nobody asked for it for ten seconds".into()),
            },
            Request::Remount { read_only, access_times } => {
                volume.set_access_times(access_times);
                done(volume.set_read_only(read_only))
            }
            Request::Sync {} => done(wait(|done| volume.sync(done))),
            Request::FreeSpace {} => {
                let mut report = volume.free_space();
                report.estimate(&self.space.samples(), milliseconds());
                Answer::FreeSpace(report)
            }
            Request::SetLabel { label } if label.len() > MAX_LABEL => Answer::Error(format!(
                "a label has at most {MAX_LABEL} bytes, and this one has {}",
                label.len()
            )),
            Request::SetLabel { label } => {
                let set = wait(|done| volume.set_label(&label, done));
                if set.is_ok() {
                    self.daemon.host.is_labelled(&label);
                }
                done(set)
            }
            Request::Grow {} => match wait(|done| volume.grow(done)) {
                Err(avfs_core::Error::InvalidArgument) => Answer::Error(format!(
                    "the device is no larger than the volume, {}: make it larger first (of a loop device: losetup --set-capacity)",
                    Bytes(volume.report().device_bytes)
                )),
                grown => {
                    if grown.is_ok() {
                        tracing::info!("the volume has {} from now on", Bytes(volume.report().device_bytes));
                    }
                    done(grown)
                }
            },
            Request::ResizeCache { bytes } => match self.daemon.host.resize_cache(volume, Bytes(bytes)) {
                Ok(()) => {
                    self.cache_option.lock().replace(bytes);
                    Answer::Done {}
                }
                Err(why) => Answer::Error(why),
            },
            Request::Reload {} => match self.daemon.host.reload(volume) {
                Ok(changed) => Answer::Changed(changed),
                Err(why) => Answer::Error(why),
            },
        }
    }

    fn info(&self) -> Info {
        let volume = &self.volume;
        let places = mount::mounted_on(self.device).ok();
        Info {
            protocol: control::VERSION,
            version: self.daemon.version.clone(),
            device_path: Some(self.daemon.device_path.clone()),
            uptime_seconds: self.since.elapsed().as_secs(),
            volume: volume.report(),
            connected: mount::is_connected(&self.kernel),
            mounted_on: places.and_then(|places| places.into_iter().next().map(|place| place.directory)),
            options: MountedWith { cache_bytes: *self.cache_option.lock(), ..self.daemon.options.clone() },
            process: std::process::id(),
            errors: {
                let refusals = &self.refusals;
                let replies = [("late_reply", refusals.of_late()), ("refused_reply", refusals.of_refused())];
                let refused = replies.into_iter().filter(|(_, count)| *count > 0);
                let named = refused.map(|(cause, count)| (cause.to_owned(), count));
                self.errors.counts().into_iter().chain(named).collect()
            },
            events: self.events.counts(),
            commands: volume.commands(),
            streams: volume.streams(),
            device: volume.device_report(),
            limits: volume.limits(),
        }
    }
}

/// Waits until the volume has done it.
fn wait(begin: impl FnOnce(Done<()>)) -> Result<(), avfs_core::Error> {
    let (sender, receiver) = mpsc::channel();
    begin(Box::new(move |result| {
        // The connection may have ended before the volume was written.
        let _ = sender.send(result);
    }));
    receiver.recv().unwrap_or(Err(avfs_core::Error::Device))
}
