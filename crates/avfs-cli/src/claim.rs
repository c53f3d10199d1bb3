//! Who has a device: found out before anything touches it, and made known to others.
//!
//! The claim is a lock on a file in `/run/avfs`, named after the device. It ends with the process, however that
//! ends. A plain umount(8) returns before the daemon has written the last bytes; whoever comes next finds the claim
//! of a daemon that is mounted nowhere, and waits for it instead of failing.

use avfs_fuse::MountError;
use avfs_fuse::control::{self, Answer, Client, ClientError, Info, RUN_DIRECTORY, Request};
use avfs_fuse::mount::{self, DeviceNumber, MountEntry, printable};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Why a device cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// It is not there, or not readable.
    #[error("{path}: {error}")]
    NotFound {
        /// Device or image file.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// A directory, a terminal.
    #[error("{path}: not a block device and not an image file")]
    NotADevice {
        /// What it is called.
        path: String,
    },
    /// By this or another filesystem.
    #[error("{path} is mounted on {directory}: unmount it first")]
    Mounted {
        /// Device or image file.
        path: String,
        /// Where.
        directory: String,
    },
    /// By another AVFS tool.
    #[error("{path} is in use by {holder}")]
    InUse {
        /// Device or image file.
        path: String,
        /// Command and process.
        holder: String,
    },
    /// By a daemon that was unmounted and hangs.
    #[error("{path} was unmounted, but not everything is on it: {why}")]
    Unfinished {
        /// Device or image file.
        path: String,
        /// What is known of the daemon.
        why: Unfinished,
    },
    /// The lock's file.
    #[error("cannot lock {}: {error}", .path.display())]
    Lock {
        /// The lock's file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// A device that is ours as long as this value, or a copy of its descriptor in a child process, lives.
#[derive(Debug)]
pub struct Claim {
    lock: File,
    path: PathBuf,
    device: PathBuf,
    /// Whoever had the device before was killed.
    predecessor_died: bool,
}

/// How long the kernel may need to take a device from a process that was killed.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the kernel may need from a mount's end to its filesystem's.
const LETTING_GO: Duration = Duration::from_secs(1);
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// How often a daemon that is waited for is asked whether it lives.
const ASK_AFTER: Duration = Duration::from_secs(1);

impl Claim {
    /// Claims `device` for `command`. Waits for a daemon that was unmounted and still writes, and says so once before that.
    ///
    /// # Errors
    /// As [`ClaimError`] says.
    pub fn take(device: &Path, command: &str) -> Result<Self, ClaimError> {
        let path = printable(device);
        let (canonical, identity) = identify(device)?;
        if let Some(directory) = mounted_elsewhere(&canonical)? {
            return Err(ClaimError::Mounted { path, directory: printable(&directory) });
        }
        let lock_path = Path::new(RUN_DIRECTORY).join(format!("{identity}.lock"));
        let locked = |error| ClaimError::Lock { path: lock_path.clone(), error };
        std::fs::create_dir_all(RUN_DIRECTORY).map_err(locked)?;
        let mut is_told = false;
        let mut lock = loop {
            let mut lock = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&lock_path)
                .map_err(locked)?;
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                let mut holder = String::new();
                lock.read_to_string(&mut holder).map_err(locked)?;
                let server = match Holder::parse(&holder) {
                    Holder::Daemon(server) => server,
                    Holder::Other(holder) => return Err(ClaimError::InUse { path, holder }),
                };
                if let Some(directory) = server.serves() {
                    return Err(ClaimError::Mounted { path, directory });
                }
                if !std::mem::replace(&mut is_told, true) {
                    crate::tell(format_args!(
                        "{command}: waiting until {path} is written completely after its last mount"
                    ));
                }
                let unfinished = |why| ClaimError::Unfinished { path: path.clone(), why };
                lock = wait_for(lock, FlockOperation::LockExclusive, server).map_err(unfinished)?;
            }
            // Whoever had it before removed the file: then this is a lock that nobody else will look at.
            if is_at(&lock, &lock_path).map_err(locked)? {
                break lock;
            }
        };
        let mut remains = String::new();
        lock.rewind().and_then(|()| lock.read_to_string(&mut remains)).map_err(locked)?;
        let predecessor_died = !remains.is_empty();
        let mut claim = Self { lock, path: lock_path.clone(), device: canonical, predecessor_died };
        claim
            .write(&format!("{command} (process {})", std::process::id()))
            .map_err(|error| ClaimError::Lock { path: lock_path, error })?;
        Ok(claim)
    }

    /// Opens the device with `open`. The kernel closes the files of a process that was killed some time after the
    /// process is gone: a ring of asynchronous requests is dismantled in the background, and nobody is told when
    /// that is done. So if the last to have this device was killed, a device that is in use is tried again for up to
    /// ten seconds.
    ///
    /// # Errors
    /// The last of `open`.
    pub fn open<T, E>(
        &self,
        mut open: impl FnMut() -> Result<T, E>,
        is_in_use: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        let start = Instant::now();
        loop {
            match open() {
                Err(error) if self.predecessor_died && is_in_use(&error) && start.elapsed() < PATIENCE => {
                    thread::sleep(RETRY_AFTER);
                }
                result => return result,
            }
        }
    }

    /// The device's path without symbolic links: what the mount shows as its source.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Makes known that the device is mounted, its files having `st_dev` = `mounted`.
    ///
    /// # Errors
    /// When the lock's file cannot be written.
    pub fn mounted(&mut self, mounted: DeviceNumber) -> io::Result<()> {
        self.write(&format!("{MOUNTED_AS}{mounted}{BY_PROCESS}{}", std::process::id()))
    }

    /// Makes known to those who wait for the end that not everything is on the device.
    ///
    /// # Errors
    /// When the lock's file cannot be written.
    pub fn not_written(&mut self, why: &str) -> io::Result<()> {
        self.write(&format!("{NOT_WRITTEN}{why}"))
    }

    /// Gives the device back. A claim that is dropped instead is given back with the last copy of its descriptor, in
    /// whatever process, and leaves its file behind.
    pub fn release(self) {
        // Nothing depends on the file's absence.
        let _ = std::fs::remove_file(&self.path);
    }

    fn write(&mut self, holder: &str) -> io::Result<()> {
        self.lock.set_len(0)?;
        self.lock.rewind()?;
        self.lock.write_all(holder.as_bytes())
    }
}

/// Whether `file` is what `path` names.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let file = file.metadata()?;
    match path.metadata() {
        Ok(named) => Ok((named.dev(), named.ino()) == (file.dev(), file.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits for a lock that the daemon holds, as long as it lives.
fn wait_for(lock: File, how: FlockOperation, server: Server) -> Result<File, Unfinished> {
    let (locked, is_locked) = mpsc::channel();
    // Ends with this process if it is never given the lock.
    let waits = thread::spawn(move || {
        let result = flock(&lock, how).map(|()| lock);
        let _ = locked.send(result);
    });
    let mut heard = Instant::now();
    loop {
        match is_locked.recv_timeout(ASK_AFTER) {
            Ok(locked) => {
                // What forks next must be alone.
                let _ = waits.join();
                return locked.map_err(|error| Unfinished::Lock(error.into()));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(Unfinished::Lock(io::ErrorKind::Other.into())),
            Err(RecvTimeoutError::Timeout) => {}
        }
        match ask(server.device) {
            Ok(_) => heard = Instant::now(),
            Err(ClientError::Silent { .. }) => return Err(Unfinished::Silent(server.process)),
            // It listens no more, and gives the device back next.
            Err(_) if heard.elapsed() < PATIENCE => {}
            Err(_) => return Err(Unfinished::Silent(server.process)),
        }
    }
}

/// Why it is not known that everything is on the device.
#[derive(Debug, thiserror::Error)]
pub enum Unfinished {
    /// The daemon hangs.
    #[error("its daemon, process {0}, does not answer")]
    Silent(u32),
    /// The daemon was killed, or has crashed.
    #[error(
        "its daemon died before it had written everything; what was made durable is there at the next mount"
    )]
    Died,
    /// The daemon's own words.
    #[error("{0}")]
    Failed(String),
    /// The lock's file.
    #[error("cannot wait for its daemon: {0}")]
    Lock(io::Error),
}

/// The end of a daemon, seen from outside. To be had before what ends it, so that its last words can be heard.
#[derive(Debug)]
pub(crate) struct Watch {
    lock: File,
    server: Server,
}

impl Watch {
    /// That of the daemon which serves a mount. `None`: it has died.
    pub(crate) fn of(mounted: &MountEntry) -> Option<Self> {
        // The device that the volume is on, or the image file that the kernel has a device of.
        [mounted.source.clone(), mounted.backing()]
            .iter()
            .filter_map(|device| Self::of_device(device))
            .find(|watch| watch.server.device == mounted.device)
    }

    fn of_device(device: &Path) -> Option<Self> {
        let (_, identity) = identify(device).ok()?;
        let mut lock = File::open(Path::new(RUN_DIRECTORY).join(format!("{identity}.lock"))).ok()?;
        if flock(&lock, FlockOperation::NonBlockingLockShared).is_ok() {
            return None;
        }
        let mut holder = String::new();
        lock.read_to_string(&mut holder).ok()?;
        match Holder::parse(&holder) {
            Holder::Daemon(server) => Some(Self { lock, server }),
            Holder::Other(_) => None,
        }
    }

    /// Who is watched.
    pub(crate) fn server(&self) -> Server {
        self.server
    }

    /// Waits until it has given its device back.
    pub(crate) fn wait(self) -> Result<(), Unfinished> {
        let mut lock = wait_for(self.lock, FlockOperation::LockShared, self.server)?;
        let mut last_words = String::new();
        lock.rewind().and_then(|()| lock.read_to_string(&mut last_words)).map_err(Unfinished::Lock)?;
        match last_words.strip_prefix(NOT_WRITTEN) {
            Some(why) => Err(Unfinished::Failed(why.to_owned())),
            // Who gives it back takes the lock's file away.
            None if lock.metadata().is_ok_and(|file| file.nlink() > 0) => Err(Unfinished::Died),
            None => Ok(()),
        }
    }
}

/// In a lock's file: how the volume ended.
const NOT_WRITTEN: &str = "not written: ";
const MOUNTED_AS: &str = "mounted as ";
const BY_PROCESS: &str = " by process ";

/// What a lock's file says of who holds it.
#[derive(Debug, PartialEq, Eq)]
enum Holder {
    /// A daemon.
    Daemon(Server),
    /// Something else.
    Other(String),
}

impl Holder {
    fn parse(text: &str) -> Self {
        let server = text.strip_prefix(MOUNTED_AS).and_then(|text| {
            let (device, process) = text.split_once(BY_PROCESS)?;
            Some(Server { device: DeviceNumber::parse(device)?, process: process.parse().ok()? })
        });
        match server {
            Some(server) => Self::Daemon(server),
            None if text.is_empty() => Self::Other("another process".into()),
            None => Self::Other(text.to_owned()),
        }
    }
}

/// A mounted volume's daemon. Its files' `st_dev` alone does not tell who it is: the kernel gives the number to the
/// next mount while this daemon still writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// `st_dev` of its files.
    device: DeviceNumber,
    /// Its process.
    process: u32,
}

impl Server {
    /// Whether it lives and answers.
    pub(crate) fn answers(self) -> bool {
        !matches!(ask(self.device), Err(ClientError::Silent { .. }))
    }

    /// Its process.
    pub(crate) fn process(self) -> u32 {
        self.process
    }

    /// Where it serves its mount; `None` when the kernel has let go of it and the daemon is about to end.
    ///
    /// umount(2) takes a mount from its directory first and lets go of the filesystem some milliseconds later. What
    /// is mounted nowhere and not let go of after a second has files open, or is mounted where this process cannot
    /// see it.
    pub(crate) fn serves(self) -> Option<String> {
        let start = Instant::now();
        loop {
            let info = match ask(self.device) {
                Ok(info) => Some(info).filter(|info| info.connected && info.process == self.process)?,
                Err(ClientError::Silent { .. }) => return self.shown().map(|shown| self.silent_on(&shown)),
                Err(_) => return None,
            };
            match info.mounted_on {
                Some(directory) => return Some(printable(&directory)),
                None if start.elapsed() < LETTING_GO => thread::sleep(RETRY_AFTER),
                None => {
                    let process = self.process;
                    return Some(format!(
                        "a directory that others see, or has files open (served by process {process})"
                    ));
                }
            }
        }
    }

    /// Where it is mounted, as this process sees it.
    pub(crate) fn shown(self) -> Option<PathBuf> {
        mount::mounted_on(self.device).ok()?.into_iter().next().map(|place| place.directory)
    }

    fn silent_on(self, directory: &Path) -> String {
        format!("{} (its daemon, process {}, does not answer)", printable(directory), self.process)
    }
}

/// Why something that the volume mounted as `device` had accepted never comes to the device, if that is known already.
pub(crate) fn loss_of(device: DeviceNumber) -> Option<String> {
    let volume = ask(device).ok()?.volume;
    volume.failure.or_else(|| (volume.losses > 0).then(|| MountError::Lost(volume.losses).to_string()))
}

fn ask(device: DeviceNumber) -> Result<Box<Info>, ClientError> {
    match Client::connect(&control::socket_path(device))?.ask(&Request::Info {})? {
        Answer::Info(info) => Ok(info),
        _ => Err(ClientError::Garbled("another answer".into())),
    }
}

/// Path without symbolic links, and a name that all paths to the same device share.
fn identify(device: &Path) -> Result<(PathBuf, String), ClaimError> {
    let not_found = |error| ClaimError::NotFound { path: printable(device), error };
    let canonical = device.canonicalize().map_err(not_found)?;
    let metadata = canonical.metadata().map_err(not_found)?;
    let kind: FileType = metadata.file_type();
    let identity = if kind.is_block_device() {
        DeviceNumber::from_raw(metadata.rdev()).to_string()
    } else if kind.is_file() {
        format!("{}-{}", DeviceNumber::from_raw(metadata.dev()), metadata.ino())
    } else {
        return Err(ClaimError::NotADevice { path: printable(device) });
    };
    Ok((canonical, identity))
}

/// Where another filesystem has `device` mounted. Mounts of AVFS are its lock's business: one that was unmounted
/// lazily is no more in the table and still alive.
fn mounted_elsewhere(device: &Path) -> Result<Option<PathBuf>, ClaimError> {
    let failed = |error| ClaimError::NotFound { path: printable(device), error };
    let metadata = device.metadata().map_err(failed)?;
    let number = metadata.file_type().is_block_device().then(|| DeviceNumber::from_raw(metadata.rdev()));
    let entry = mount::mounts()
        .map_err(failed)?
        .into_iter()
        .find(|entry| !entry.is_avfs() && (Some(entry.device) == number || entry.source == device));
    Ok(entry.map(|entry| entry.directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_says_who_holds_it() {
        let server = Server { device: DeviceNumber { major: 0, minor: 45 }, process: 7 };
        assert_eq!(Holder::parse("mounted as 0:45 by process 7"), Holder::Daemon(server));
        assert_eq!(Holder::parse("mkfs.avfs (process 7)"), Holder::Other("mkfs.avfs (process 7)".into()));
        for other in ["mounted as x", "mounted as 0:45", "mounted as 0:45 by process x"] {
            assert_eq!(Holder::parse(other), Holder::Other(other.into()));
        }
        assert_eq!(Holder::parse(""), Holder::Other("another process".into()));
    }

    #[test]
    fn a_directory_is_no_device() {
        assert!(matches!(identify(Path::new("/tmp")), Err(ClaimError::NotADevice { .. })));
        assert!(matches!(identify(Path::new("/no/such")), Err(ClaimError::NotFound { .. })));
    }

    #[test]
    fn all_paths_to_an_image_share_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let (image, link) = (directory.path().join("image"), directory.path().join("link"));
        std::fs::write(&image, "").unwrap();
        std::os::unix::fs::symlink(&image, &link).unwrap();
        assert_eq!(identify(&image).unwrap(), identify(&link).unwrap());
    }
}
