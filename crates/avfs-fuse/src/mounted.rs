//! The life of a mounted volume, from mount(2) to the last byte on the device.

use crate::control::{self, Answer, Control, Info, Request};
use crate::errno::Errors;
use crate::mount::{self, DeviceNumber};
use crate::protocol::{MAX_BACKGROUND, WANTED};
use crate::server::{RequestBuffer, Server};
use crate::signals::{Signal, Signals};
use avfs_core::volume::Volume;
use fuse_wire::abi::InitFlags;
use fuse_wire::{Options, Session, Transport};
use parking_lot::Mutex;
use rustix::mount::{MountFlags, UnmountFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use units::Ino;

/// Why a volume could not be mounted or served.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// `/dev/fuse` or mount(2).
    #[error("cannot mount on {directory}: {error}{hint}")]
    Mount {
        /// Where.
        directory: String,
        /// Why.
        error: io::Error,
        /// What to do about it.
        hint: &'static str,
    },
    /// No rings.
    #[error("requests cannot come through io_uring: {0}; mount without transport=ring")]
    Ring(io::Error),
    /// The kernel and this daemon do not understand each other.
    #[error("the kernel's FUSE does not answer: {0}")]
    Handshake(io::Error),
    /// The first request through the mount failed.
    #[error("the mounted volume does not answer: {0}")]
    NoAnswer(io::Error),
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
}

/// A mounted volume, served by threads of this process.
pub struct Mounted {
    volume: Arc<Volume>,
    session: Session,
    control: Control,
    /// What the control socket serves; taken away when the volume shuts down.
    served: Arc<Mutex<Option<Arc<Volume>>>>,
    device: DeviceNumber,
    directory: PathBuf,
}

impl Mounted {
    /// Mounts `volume` on `directory` and serves it. When this returns, the mount has answered.
    ///
    /// # Errors
    /// As [`MountError`] says; nothing is mounted then, and the volume is open as before.
    pub fn start(
        volume: &Arc<Volume>,
        source: &Path,
        directory: &Path,
        flags: MountFlags,
        transport: Transport,
    ) -> Result<Self, MountError> {
        mount::raise_pages_limit();
        if transport == Transport::Ring {
            fuse_wire::enable_rings().map_err(MountError::Ring)?;
        }
        let connection = mount::mount(source, directory, flags).map_err(|error| MountError::Mount {
            directory: mount::printable(directory),
            hint: match error.raw_os_error() {
                Some(libc::ENOENT) => ": does the directory exist, and is the fuse module loaded?",
                Some(libc::EPERM) => ": run this as root",
                Some(libc::ENODEV) => ": this kernel has no FUSE; load the fuse module",
                _ => "",
            },
            error,
        })?;
        let served = Self::serve(volume, connection, directory, transport);
        if served.is_err()
            && let Err(error) = mount::unmount(directory, UnmountFlags::DETACH)
        {
            tracing::warn!(%error, "cannot unmount again");
        }
        served
    }

    fn serve(
        volume: &Arc<Volume>,
        connection: OwnedFd,
        directory: &Path,
        transport: Transport,
    ) -> Result<Self, MountError> {
        let errors = Arc::new(Errors::default());
        let kernel = connection.try_clone().map_err(MountError::Handshake)?;
        let server = Arc::new(Server::new(Arc::clone(volume), Arc::clone(&errors)));
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
            buffers: buffers.into_iter().map(RequestBuffer).collect(),
        };
        let session = Session::start(connection, &server, options).map_err(match transport {
            Transport::Device => MountError::Handshake,
            Transport::Ring => MountError::Ring,
        })?;
        server.show_root(directory).map_err(MountError::NoAnswer)?;

        // The first request, to the end: what mount(8) waits for.
        rustix::fs::statvfs(directory).map_err(|error| MountError::NoAnswer(error.into()))?;
        let device = std::fs::metadata(directory).map_err(MountError::NoAnswer)?.dev();
        let device = DeviceNumber::from_raw(device);

        let served = Arc::new(Mutex::new(Some(Arc::clone(volume))));
        let path = control::socket_path(device);
        let handler = {
            let served = Arc::clone(&served);
            move |request| match served.lock().clone() {
                Some(volume) => answer(&volume, &errors, &kernel, device, request),
                None => Answer::Error("the volume is being unmounted".into()),
            }
        };
        let control =
            Control::start(&path, Arc::new(handler)).map_err(|error| MountError::Control { path, error })?;
        Ok(Self {
            volume: Arc::clone(volume),
            session,
            control,
            served,
            device,
            directory: directory.to_owned(),
        })
    }

    /// `st_dev` of the mounted files: the name of the control socket.
    pub fn device(&self) -> DeviceNumber {
        self.device
    }

    /// Lets SIGTERM and SIGINT unmount. A volume in use disappears from its directory at once and ends with its
    /// last open file; a second signal does not wait for that: everything accepted is written, and the process
    /// ends with exit code 1.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn unmount_on(&self, signals: Signals) -> io::Result<()> {
        let directory = self.directory.clone();
        let served = Arc::clone(&self.served);
        let mut detached = false;
        thread::Builder::new().name("avfs-signals".into()).spawn(move || {
            loop {
                match signals.wait() {
                    Ok(Signal::Hangup) => continue,
                    Ok(Signal::End) => {}
                    Err(error) => {
                        tracing::error!(%error, "cannot wait for signals");
                        return;
                    }
                }
                if detached {
                    tracing::warn!("second signal: writing everything and ending, files still open or not");
                    let volume = served.lock().take();
                    let written = volume.map_or(Ok(()), |volume| volume.shutdown());
                    if let Err(error) = written {
                        tracing::error!(%error, "the volume could not be written completely");
                    }
                    std::process::exit(1);
                }
                tracing::info!("signal: unmounting {}", mount::printable(&directory));
                match mount::unmount(&directory, UnmountFlags::empty()) {
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                        tracing::warn!("files are open: unmounted lazily, ending with the last of them");
                        if let Err(error) = mount::unmount(&directory, UnmountFlags::DETACH) {
                            tracing::error!(%error, "cannot unmount");
                        }
                    }
                    Err(error) => tracing::error!(%error, "cannot unmount"),
                    Ok(()) => {}
                }
                detached = true;
            }
        })?;
        Ok(())
    }

    /// Waits until it is unmounted, then writes everything and closes the volume.
    ///
    /// # Errors
    /// When the kernel's connection broke, or not everything could be written; the volume is closed in any case.
    pub fn wait(self) -> Result<(), MountError> {
        let ended = self.session.join().map_err(MountError::Connection);
        if self.served.lock().take().is_none() {
            // The second signal came first; it ends the process when everything is written.
            loop {
                thread::park();
            }
        }
        let closed = self.volume.shutdown().map_err(MountError::Shutdown);
        drop(self.control);
        ended.and(closed)
    }
}

fn answer(
    volume: &Volume,
    errors: &Errors,
    kernel: &OwnedFd,
    device: DeviceNumber,
    request: Request,
) -> Answer {
    let refuse = |error: avfs_core::Error| Answer::Error(error.to_string());
    let done = |result: Result<(), avfs_core::Error>| result.map_or_else(refuse, |()| Answer::Done {});
    match request {
        Request::Extents { ino } => volume.extents(Ino(ino)).map_or_else(refuse, Answer::Extents),
        Request::ExplainPolicy { ino } => volume.explain_policy(Ino(ino)).map_or_else(refuse, Answer::Policy),
        Request::Info {} => Answer::Info(Box::new(Info {
            volume: volume.report(),
            connected: mount::is_connected(kernel),
            mounted_on: mount::mounted_on(device).unwrap_or_default(),
            process: std::process::id(),
            errors: errors.counts(),
            commands: volume.commands(),
            streams: volume.streams(),
            device: volume.device_report(),
        })),
        Request::Remount { read_only, access_times } => {
            volume.set_access_times(access_times);
            done(volume.set_read_only(read_only))
        }
        Request::Sync {} => {
            let (sender, receiver) = mpsc::channel();
            volume.sync(Box::new(move |result| {
                // The connection may have ended before the volume was written.
                let _ = sender.send(result);
            }));
            done(receiver.recv().unwrap_or(Err(avfs_core::Error::Device)))
        }
    }
}
