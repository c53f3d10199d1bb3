//! `mount.avfs`: mounts a volume and becomes its daemon; changes an existing mount. Called by mount(8).

use crate::claim::Claim;
use crate::daemon::{self, Side};
use crate::fail;
use crate::logging::{self, Target};
use crate::mount_options::MountOptions;
use avfs_core::config::Config;
use avfs_core::types::AccessTimes;
use avfs_core::volume::{OpenError, OpenOptions, Volume};
use avfs_fuse::Mounted;
use avfs_fuse::control::{self, Client, Request};
use avfs_fuse::mount::{self, printable};
use avfs_fuse::signals::Signals;
use avfs_io::device::OpenError as DeviceError;
use clap::Parser;
use rustix::fs::StatVfsMountFlags;
use rustix::mount::MountFlags;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const NAME: &str = "mount.avfs";

/// Exit codes of mount(8).
const WRONG_USAGE: u8 = 1;
const SYSTEM_ERROR: u8 = 2;
const MOUNT_FAILED: u8 = 32;

/// The nice value of who goes first.
const FIRST: i32 = -20;

/// Mount an AVFS volume. Usually called by mount(8) for `mount -t avfs DEVICE DIR`.
#[derive(Debug, Parser)]
#[command(name = NAME, version, max_term_width = 100)]
struct Arguments {
    /// Block device or image file
    device: PathBuf,
    /// Directory
    directory: PathBuf,
    /// Options, separated by commas; see mount.avfs(8)
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground and log to standard error
    #[arg(short = 'F', long)]
    foreground: bool,
    /// Check everything, mount nothing
    #[arg(short, long)]
    fake: bool,
    /// Ignore unknown options
    #[arg(short)]
    sloppy: bool,
    /// Say what is done
    #[arg(short, long)]
    verbose: bool,
    /// Ignored: there is no mtab to write
    #[arg(short)]
    no_mtab: bool,
    /// Ignored: the type mount(8) was called with
    #[arg(short = 't', value_name = "TYPE")]
    filesystem: Option<String>,
}

/// Why it was not mounted, with mount(8)'s exit code.
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn new(code: u8, message: impl ToString) -> Self {
        Self { code, message: message.to_string() }
    }
}

/// Runs the command. Exit codes are those of mount(8).
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nowhere to report that the report failed.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { WRONG_USAGE } else { 0 });
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => fail(NAME, failure.message, failure.code),
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let options = MountOptions::parse(&arguments.options.join(","), arguments.sloppy)
        .map_err(|why| Failure::new(WRONG_USAGE, why))?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new(WRONG_USAGE, "only root can mount: run this with sudo"));
    }
    let directory = arguments.directory.canonicalize().map_err(|error| {
        Failure::new(MOUNT_FAILED, format!("{}: {error}", printable(&arguments.directory)))
    })?;
    if !directory.is_dir() {
        return Err(Failure::new(MOUNT_FAILED, format!("{}: not a directory", printable(&directory))));
    }
    if options.remount {
        return if arguments.fake { Ok(()) } else { remount(&directory, &options) };
    }
    if is_mounted_as_fstab_says(&arguments.device, &directory) {
        return Ok(());
    }
    let config = configuration(&options)?;
    config.check_patterns(&directory).map_err(|error| Failure::new(WRONG_USAGE, error))?;
    let claim = Claim::take(&arguments.device, NAME, || {
        eprintln!(
            "{NAME}: waiting until {} is written completely after its last mount",
            printable(&arguments.device)
        );
    })
    .map_err(|error| Failure::new(MOUNT_FAILED, error))?;
    if arguments.fake {
        claim.release();
        return Ok(());
    }
    let job = Job { claim, directory, options, config };
    if arguments.foreground {
        logging::start(&Target::StandardError).map_err(|error| Failure::new(SYSTEM_ERROR, error))?;
        let (device, directory) = (job.claim.device().to_owned(), job.directory.clone());
        let ready = || {
            announce(&device, &directory);
            Ok(())
        };
        return job.serve(ready).map_err(|why| Failure::new(MOUNT_FAILED, why));
    }
    match daemon::fork().map_err(|error| Failure::new(SYSTEM_ERROR, error))? {
        Side::Parent(waiting) => {
            waiting.wait().map_err(|why| Failure::new(MOUNT_FAILED, why))?;
            announce(job.claim.device(), &job.directory);
            if arguments.verbose {
                // It is mounted, whether anybody reads that or not.
                let _ = crate::print(format_args!(
                    "{} mounted on {}\n",
                    printable(job.claim.device()),
                    printable(&job.directory)
                ));
            }
            Ok(())
        }
        Side::Daemon(ready) => std::process::exit(job.serve_as_daemon(ready)),
    }
}

/// True when there is nothing left to do for an entry of fstab(5). `mount -a` passes over what is mounted, but does not
/// recognise a mount that shows a directory of its filesystem, as those of AVFS do.
fn is_mounted_as_fstab_says(device: &Path, directory: &Path) -> bool {
    let Ok(device) = device.canonicalize() else { return false };
    let mounted = mount::mounts().is_ok_and(|mounts| {
        mounts.iter().any(|entry| {
            entry.filesystem == mount::FILESYSTEM_TYPE
                && entry.directory == directory
                && entry.source == device
        })
    });
    mounted && mount::is_in_fstab(directory)
}

/// Reads the configuration and lets the options override it.
fn configuration(options: &MountOptions) -> Result<Config, Failure> {
    match &options.config {
        Some(path) => Config::load(path).map_err(|error| Failure::new(WRONG_USAGE, error)),
        None => Ok(Config::default()),
    }
}

/// A mount to be made.
struct Job {
    claim: Claim,
    directory: PathBuf,
    options: MountOptions,
    config: Config,
}

impl Job {
    /// Mounts, tells `ready`, serves until it is unmounted, and gives the device back.
    fn serve(mut self, ready: impl FnOnce() -> io::Result<()>) -> Result<(), String> {
        let served = self.serve_claimed(ready);
        self.claim.release();
        served
    }

    fn serve_claimed(&mut self, ready: impl FnOnce() -> io::Result<()>) -> Result<(), String> {
        let signals = Signals::block().map_err(|error| error.to_string())?;
        survive();
        let device = self.claim.device().to_owned();
        let open = OpenOptions {
            read_only: self.options.read_only(),
            access_times: access_times(self.options.set),
            cache_size: self.options.cache_size,
            config: std::mem::take(&mut self.config),
        };
        let volume = self
            .claim
            .open(
                || Volume::open(&device, open.clone()),
                |error| matches!(error, OpenError::Device(DeviceError::InUse(_))),
            )
            .map_err(|error| error.to_string())?;
        let mut flags = self.options.flags(MountFlags::empty());
        if let Some(why) = volume.refusal().filter(|_| !self.options.read_only()) {
            eprintln!("{NAME}: {}: {why}", printable(&device));
            flags |= MountFlags::RDONLY;
        }
        let mounted = match Mounted::start(&volume, &device, &self.directory, flags, self.options.transport) {
            Ok(mounted) => mounted,
            Err(error) => {
                if let Err(error) = volume.shutdown() {
                    tracing::error!(%error, "cannot close the volume");
                }
                return Err(error.to_string());
            }
        };
        let started = self
            .claim
            .mounted(mounted.device())
            .and_then(|()| mounted.unmount_on(signals))
            .and_then(|()| ready());
        match started {
            Ok(()) => tracing::info!("{} mounted on {}", printable(&device), printable(&self.directory)),
            // Nobody waits any more, or nobody can be told: the volume serves all the same.
            Err(error) => tracing::warn!(%error, "mounted, but not as it should be"),
        }
        mounted.wait().map_err(|error| error.to_string())?;
        tracing::info!("{} unmounted", printable(&device));
        Ok(())
    }

    /// The same in the background; gives back the exit code.
    fn serve_as_daemon(self, ready: daemon::Ready) -> i32 {
        let target = match &self.options.log {
            Some(path) => Target::File(path.clone()),
            None => Target::System,
        };
        // Without a system log there is nowhere to say so.
        if let (Err(error), Target::File(path)) = (logging::start(&target), &target) {
            ready.failed(&format!("cannot log to {}: {error}", printable(path)));
            return i32::from(MOUNT_FAILED);
        }
        let mut ready = Some(ready);
        let served = self.serve(|| ready.take().map_or(Ok(()), daemon::Ready::ready));
        match (served, ready) {
            (Ok(()), _) => 0,
            (Err(why), Some(ready)) => {
                tracing::error!("{why}");
                ready.failed(&why);
                i32::from(MOUNT_FAILED)
            }
            (Err(why), None) => {
                tracing::error!("{why}");
                1
            }
        }
    }
}

/// Tells umount(8) that this mount has a helper. Otherwise, given the path, it takes the type from statfs(2), which says
/// `fuse`, and does not call the one that waits until everything is on the device. It reads that from libmount's own
/// file, so mount(8) is asked to write there what it would have written: everything but the mount itself.
fn announce(device: &Path, directory: &Path) {
    let mut command = std::process::Command::new("mount");
    command.args(["-i", "-f", "-t", mount::FILESYSTEM_TYPE, "-o", "uhelper=avfs"]).arg(device).arg(directory);
    let why = match command.output() {
        Ok(output) if output.status.success() => return,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    eprintln!(
        "{NAME}: umount will return before everything is written: mount(8) did not note it: {}",
        why.trim()
    );
}

/// A process that the kernel's memory management waits for: it must not be killed for memory, nor wait for memory
/// that only it can free; and all clients wait for it, so none of them goes before it on a processor. A bug that shows as a panic
/// ends it at once: the journal brings the volume back, a state of which half is known would be written over it.
fn survive() {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-1000") {
        tracing::warn!(%error, "this process may be killed when memory runs short");
    }
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::warn!(%error, "this process may wait for memory that it should free itself");
    }
    // Of this thread, and of those that it starts.
    if let Err(error) = rustix::process::setpriority_process(None, FIRST) {
        tracing::warn!(%error, "this process may wait for processors that its clients keep busy");
    }
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!("{panic}\n{}", std::backtrace::Backtrace::force_capture());
        report(panic);
        std::process::abort();
    }));
}

/// What a mount with these flags does about times of access.
fn access_times(flags: MountFlags) -> AccessTimes {
    if flags.contains(MountFlags::NOATIME) {
        AccessTimes::Never
    } else if flags.contains(MountFlags::STRICTATIME) {
        AccessTimes::Strict
    } else {
        AccessTimes::Relative
    }
}

/// Changes the flags of a mount; read-only goes through the daemon, which writes everything first.
fn remount(directory: &Path, options: &MountOptions) -> Result<(), Failure> {
    let failed = |message: String| Failure::new(MOUNT_FAILED, message);
    let mounts = mount::mounts().map_err(|error| Failure::new(SYSTEM_ERROR, error))?;
    let entry = mounts
        .into_iter()
        .rev()
        .find(|entry| entry.directory == directory && entry.filesystem == mount::FILESYSTEM_TYPE)
        .ok_or_else(|| failed(format!("no AVFS volume is mounted on {}", printable(directory))))?;
    let present = present_flags(directory).map_err(|error| Failure::new(SYSTEM_ERROR, error))?;
    let wanted = options.flags(present);
    let change = |flags| {
        change_flags(directory, flags).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => failed(format!("{}: files are open for writing", printable(directory))),
            _ => failed(format!("{}: {error}", printable(directory))),
        })
    };
    let mut client =
        Client::connect(&control::socket_path(entry.device)).map_err(|error| failed(error.to_string()))?;
    let access_times = access_times(wanted);
    let mut tell = |read_only| {
        client
            .ask(&Request::Remount { read_only, access_times })
            .map(drop)
            .map_err(|error| failed(error.to_string()))
    };
    // Whoever refuses writes must be the last to hear that they are allowed, and the first that they are not.
    if wanted.contains(MountFlags::RDONLY) {
        change(wanted)?;
        tell(true).inspect_err(|_| drop(change(present)))
    } else {
        tell(false)?;
        change(wanted).inspect_err(|_| {
            if present.contains(MountFlags::RDONLY) {
                drop(tell(true));
            }
        })
    }
}

/// Changes the flags of a mount. The kernel calls a filesystem busy while a deleted file waits for the answer to its
/// RELEASE, which the kernel sends in the background, after close(2) has returned. So each further try first takes
/// its turn in the daemon's queues, behind those requests; a filesystem that is busy after all of them is in use.
fn change_flags(directory: &Path, flags: MountFlags) -> io::Result<()> {
    const TRIES: usize = 200;
    for _ in 1..TRIES {
        match mount::remount(directory, flags) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => take_turns(directory)?,
            result => return result,
        }
    }
    mount::remount(directory, flags)
}

/// Makes a request and waits for its answer, from each processor that this thread may use: with FUSE over io_uring,
/// the clients of each have a queue of their own.
fn take_turns(directory: &Path) -> io::Result<()> {
    let all = sched_getaffinity(None)?;
    let turns = (0..CpuSet::MAX_CPU).filter(|&processor| all.is_set(processor)).try_for_each(|processor| {
        let mut one = CpuSet::new();
        one.set(processor);
        sched_setaffinity(None, &one)?;
        rustix::fs::statvfs(directory).map(drop)
    });
    sched_setaffinity(None, &all)?;
    Ok(turns?)
}

/// The flags a mount has now.
fn present_flags(directory: &Path) -> io::Result<MountFlags> {
    let flags = rustix::fs::statvfs(directory)?.f_flag;
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
        (StatVfsMountFlags::SYNCHRONOUS, MountFlags::SYNCHRONOUS),
    ];
    let present = pairs.into_iter().filter(|(shown, _)| flags.contains(*shown));
    let present = present.fold(MountFlags::empty(), |all, (_, flag)| all | flag);
    // The kernel shows strictatime by what is not there.
    let is_strict = !present.intersects(MountFlags::NOATIME | MountFlags::RELATIME);
    Ok(if is_strict { present | MountFlags::STRICTATIME } else { present })
}

/// Turns the mount read-only; for `umount -r`.
pub(crate) fn make_read_only(directory: &Path) -> Result<(), String> {
    let options = MountOptions::parse("remount,ro", false)?;
    remount(directory, &options).map_err(|failure| failure.message)
}
