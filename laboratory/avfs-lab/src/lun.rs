//! A modelled LUN: a file that takes its time.
//!
//! **For:** a device of `rtsched_sim::device` in real time, as a file over FUSE, which a loop device with direct I/O makes
//! a block device. The mount holds `lun`, the device; `control`, into which a [`Mode`] is written; and
//! `counters`, which tells in JSON what happened. What is wrong with it is written into `control`, too ([`faults`]). **Excludes:** the model, and the loop device. **State:** the data
//! ([`store`]); the timekeeper; requests that wait for their time. **Invariants:** a write is in the
//! store when it is answered; an answer is never early; nobody waits by spinning.
//!
//! Two threads: one takes requests from the kernel, notes when they came, moves data between kernel and store at once, and
//! hands the request to the timekeeper; the other sleeps until the next request is due and answers it.

mod faults;
mod filesystem;
mod log;
mod shared;
mod store;
mod timekeeper;

pub use shared::Mode;
pub(crate) use timekeeper::account;
pub use timekeeper::{Counters, REACTION};

use filesystem::LunFilesystem;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use log::RequestLog;
use parking_lot::{Condvar, Mutex};
use rtsched_sim::device::DeviceSpec;
use rustix::fs::{MemfdFlags, memfd_create};
use shared::{Shared, State};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use store::Store;
use thiserror::Error;
use timekeeper::Timekeeper;
use units::{Bytes, Duration};

use crate::clock::Clock;

/// What a LUN is made of.
#[derive(Clone, Debug)]
pub struct LunOptions {
    /// The model. Its capacity is replaced by `size`: a small LUN is a small disk with the same arm, so seeks keep their
    /// share of the whole stroke.
    pub spec: DeviceSpec,
    /// Size in bytes, at least 1 MiB, a multiple of 4096.
    pub size: Bytes,
    /// Where the data are, a sparse file, all of them; `None`: in memory, without what the laboratory's own clients wrote.
    pub backing: Option<PathBuf>,
    /// How much may be kept in memory of what they did not write; more of it fails.
    pub memory: Bytes,
    /// Where each request is logged, one JSON line each; `None`: nowhere.
    pub log: Option<PathBuf>,
    /// Of what the model draws.
    pub seed: u64,
    /// A request that comes later than this after an answer was delivered is not the host's reaction to it, see
    /// [`REACTION`].
    pub reaction: Duration,
}

/// Why there is no LUN.
#[derive(Debug, Error)]
pub enum LunError {
    /// The size is no LUN's.
    #[error("a LUN has at least 1 MiB and a multiple of 4096 bytes, not {0} bytes")]
    Size(u64),
    /// The data have no place.
    #[error("the backing {place} cannot be used: {source}")]
    Backing {
        /// Where.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// The log cannot be written.
    #[error("the log {place} cannot be written: {source}")]
    Log {
        /// Where.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// FUSE refuses.
    #[error("the LUN cannot be mounted on {place}: {source}")]
    Mount {
        /// Where.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// No thread.
    #[error("no thread for the LUN: {0}")]
    Thread(io::Error),
}

/// A mounted LUN; dropping it unmounts.
pub struct Lun {
    shared: Arc<Shared>,
    session: Option<BackgroundSession>,
    answering: Option<JoinHandle<()>>,
}

impl Lun {
    /// Mounts a LUN on the directory `mountpoint`, modelled from the start.
    ///
    /// # Errors
    /// [`LunError`] says what is missing.
    pub fn mount(options: &LunOptions, mountpoint: &Path) -> Result<Self, LunError> {
        let size = options.size;
        if size < Bytes::from_mib(1) || !size.as_u64().is_multiple_of(4096) {
            return Err(LunError::Size(size.as_u64()));
        }
        let store = Mutex::new(store(options)?);
        let log = options.log.as_ref().map(|path| {
            RequestLog::create(path)
                .map_err(|source| LunError::Log { place: path.display().to_string(), source })
        });
        let spec = options.spec.clone().of_size(size);
        let state = State {
            keeper: Timekeeper::new(&spec, options.seed, options.reaction),
            mode: Mode::Modelled,
            stopping: false,
            buffers: Vec::new(),
        };
        let shared = Arc::new(Shared {
            clock: Clock::start(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            store,
            faults: Mutex::default(),
            size,
            log: log.transpose()?,
        });
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("modelled-lun".to_owned())];
        config.acl = SessionACL::Owner;
        // One thread: the device sees the requests in the order in which the kernel sends them.
        config.n_threads = Some(1);
        let refused = |source| LunError::Mount { place: mountpoint.display().to_string(), source };
        let session =
            Session::new(LunFilesystem::new(Arc::clone(&shared)), mountpoint, &config).map_err(refused)?;
        let session = session.spawn().map_err(refused)?;
        let answering = Arc::clone(&shared);
        let answering = std::thread::Builder::new()
            .name("lun-answers".to_owned())
            .spawn(move || answering.answer_when_due())
            .map_err(LunError::Thread)?;
        Ok(Self { shared, session: Some(session), answering: Some(answering) })
    }

    /// What it did so far.
    pub fn counters(&self) -> Counters {
        self.shared.state.lock().keeper.counters()
    }

    /// Waits until somebody else unmounts it.
    ///
    /// # Errors
    /// When the connection with the kernel broke.
    pub fn serve(mut self) -> io::Result<()> {
        self.session.take().map_or(Ok(()), BackgroundSession::join)
    }
}

impl Drop for Lun {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.session.take().map(BackgroundSession::umount_and_join) {
            eprintln!("avfs-lab: the LUN did not unmount: {error}");
        }
        self.shared.state.lock().stopping = true;
        self.shared.changed.notify_one();
        let _ = self.answering.take().map(JoinHandle::join);
    }
}

fn store(options: &LunOptions) -> Result<Store, LunError> {
    let place =
        || options.backing.as_ref().map_or_else(|| "in memory".to_owned(), |path| path.display().to_string());
    let file = match &options.backing {
        Some(path) => OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path),
        None => memfd_create("modelled-lun", MemfdFlags::CLOEXEC).map(File::from).map_err(io::Error::from),
    };
    let sized = file.and_then(|file| file.set_len(options.size.as_u64()).map(|()| file));
    let file = sized.map_err(|source| LunError::Backing { place: place(), source })?;
    Ok(match &options.backing {
        Some(_) => Store::whole(file),
        None => Store::recognising(file, options.size, options.memory),
    })
}
