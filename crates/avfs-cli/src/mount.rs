//! `mount.avfs`: mounts a volume and becomes its daemon; changes an existing mount. Called by mount(8).

use crate::claim::Claim;
use crate::daemon::{self, Side};
use crate::fail;
use crate::filesystem::{self, Made};
use crate::logging::{self, Target};
use crate::memory;
use crate::mount_options::MountOptions;
use crate::patience::within;
use crate::probe;
use crate::reload::{self, Live};
use crate::service::Service;
use avfs_core::config::Config;
use avfs_core::types::AccessTimes;
use avfs_core::volume::{OpenError, OpenOptions, Volume};
use avfs_fuse::control::{self, Answer, Client, ClientError, Info, Request};
use avfs_fuse::mount::{self, DeviceNumber, MountEntry, Tree, printable};
use avfs_fuse::mounted::Daemon;
use avfs_fuse::signals::Signals;
use avfs_fuse::{Mounted, Transport};
use avfs_io::device::OpenError as DeviceError;
use avfs_web::Web;
use clap::Parser;
use rustix::fs::StatVfsMountFlags;
use rustix::mount::MountFlags;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tracing_subscriber::filter::Targets;
use units::Bytes;
use uuid::Uuid;

const NAME: &str = "mount.avfs";

/// Exit codes of mount(8).
const WRONG_USAGE: u8 = 1;
const SYSTEM_ERROR: u8 = 2;
const MOUNT_FAILED: u8 = 32;

/// The nice value of who goes first.
const FIRST: i32 = -20;

/// Mount an AVFS volume. Usually called by mount(8) for `mount -t avfs DEVICE DIR`.
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, version = crate::VERSION, max_term_width = 100)]
struct Arguments {
    /// Block device or image file, or LABEL=LABEL or UUID=UUID of the volume on a block device
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

/// What this command understands, for the completion of shells.
pub fn command() -> clap::Command {
    use clap::CommandFactory;
    Arguments::command()
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
    let mut options = MountOptions::parse(&arguments.options.join(","), arguments.sloppy)
        .map_err(|why| Failure::new(WRONG_USAGE, why))?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new(WRONG_USAGE, "only root can mount: run this with sudo"));
    }
    let directory = directory(&arguments.directory).map_err(|why| Failure::new(MOUNT_FAILED, why))?;
    if options.remount {
        return if arguments.fake { Ok(()) } else { remount(&directory, &options) };
    }
    // mount(8) has udev's links for these; the service of a volume, and a script that calls this directly, may have none.
    let device = if arguments.device.exists() { Ok(None) } else { probe::resolve(&arguments.device) };
    let device = device.map_err(|why| Failure::new(MOUNT_FAILED, why))?;
    let named = Arguments { device: device.unwrap_or(arguments.device.clone()), ..arguments.clone() };
    let arguments = &named;
    if let Some(whole) = probe::protected_by(&arguments.device) {
        return Err(Failure::new(
            MOUNT_FAILED,
            format!(
                "{} is the partition that protects the volume on {whole} from other tools: mount {whole}",
                printable(&arguments.device),
                whole = printable(&whole)
            ),
        ));
    }
    if let Some((place, info)) = mounted_already(&arguments.device)? {
        let added = again(arguments, &options, &place, &info, &directory)?;
        if added {
            announce(&directory);
        }
        return Ok(());
    }
    let read = configuration(&options)?;
    read.check_patterns(&directory).map_err(|error| Failure::new(WRONG_USAGE, error))?;
    let filter = logging::filter(read.log.level.as_deref()).map_err(|why| Failure::new(WRONG_USAGE, why))?;
    let group = read.control.group.as_deref().map(group_number).transpose();
    let group = group.map_err(|why| Failure::new(WRONG_USAGE, format!("control.group: {why}")))?;
    let mut config = read.clone();
    let cache_size = options.cache_size.or(config.cache.size).unwrap_or_else(memory::usual);
    memory::check(cache_size).map_err(|why| Failure::new(MOUNT_FAILED, why))?;
    config.cache.size = Some(cache_size);
    let claim = Claim::take(&arguments.device, NAME).map_err(|error| Failure::new(MOUNT_FAILED, error))?;
    if arguments.fake {
        claim.release();
        return Ok(());
    }
    let transport = avfs_fuse::mounted::transport(options.transport);
    options.transport = Some(transport.map_err(|error| Failure::new(MOUNT_FAILED, error))?);
    if let Err(remark) = mount::raise_pages_limit() {
        crate::tell(format_args!("{NAME}: {remark}"));
    }
    let source = claim.device().to_owned();
    let failed = |error: io::Error| {
        let hint = match error.raw_os_error() {
            Some(libc::ENODEV) => ": this kernel has no FUSE; load the fuse module",
            Some(libc::ENOENT) => ": is the fuse module loaded?",
            _ => "",
        };
        Failure::new(MOUNT_FAILED, format!("cannot mount {}: {error}{hint}", printable(&source)))
    };
    let Made { filesystem, holds_device, remark } =
        filesystem::make(&claim, options.flags(MountFlags::empty())).map_err(failed)?;
    let device = filesystem.device();
    let (connection, tree) = filesystem.split();
    let live = Live::new(&options, read, device, source.clone());
    let job = Job { claim, connection, device, holds_device, remark, options, config, group, live };
    let show = |tree: Tree, read_only: bool| {
        tree.attach(&directory, read_only)
            .map_err(|error| format!("cannot mount on {}: {error}", printable(&directory)))
    };
    let service = Service::of_environment().transpose().map_err(|error| {
        Failure::new(SYSTEM_ERROR, format!("systemd cannot be told how it goes: {error}"))
    })?;
    // systemd needs no process in between: it waits for the daemon's own word.
    if arguments.foreground || service.is_some() {
        let target = match (&service, &job.options.log) {
            (None, _) => Target::StandardError,
            (Some(_), Some(path)) => Target::File(path.clone()),
            (Some(_), None) => Target::System,
        };
        logging::start(&target, filter).map_err(|error| Failure::new(SYSTEM_ERROR, error))?;
        let ready = |read_only| {
            show(tree, read_only)?;
            announce(&directory);
            tracing::info!("{} mounted on {}", printable(&source), printable(&directory));
            service.map_or(Ok(()), |service| service.serves(device)).map_err(|error| error.to_string())
        };
        return job.serve(ready).map_err(|why| Failure::new(MOUNT_FAILED, why));
    }
    match daemon::fork().map_err(|error| Failure::new(SYSTEM_ERROR, error))? {
        Side::Parent(waiting) => {
            // If the daemon dies the connection ends with it, and this end with an error.
            drop(job);
            let read_only = waiting.wait().map_err(|why| Failure::new(MOUNT_FAILED, why))?;
            // By the process that mount(8) has called: an automounter knows it by its process group, and lets no other
            // through. Should it fail, the tree goes, and the daemon with it.
            show(tree, read_only).map_err(|why| Failure::new(MOUNT_FAILED, why))?;
            announce(&directory);
            if arguments.verbose {
                // It is mounted, whether anybody reads that or not.
                let _ = crate::print(format_args!(
                    "{} mounted on {}\n",
                    printable(&source),
                    printable(&directory)
                ));
            }
            Ok(())
        }
        Side::Daemon(ready) => {
            drop(tree);
            std::process::exit(job.serve_as_daemon(ready, filter))
        }
    }
}

/// The directory to mount on, without symbolic links.
fn directory(path: &Path) -> Result<PathBuf, String> {
    let shown = printable(path);
    let found = within(control::PATIENCE, path, || -> io::Result<(PathBuf, bool)> {
        let directory = path.canonicalize()?;
        let is_directory = directory.metadata()?.is_dir();
        // What the kernel remembers of a directory, a mount whose daemon has died still shows.
        rustix::fs::statfs(&directory)?;
        Ok((directory, is_directory))
    });
    match found {
        Some(Ok((directory, true))) => Ok(directory),
        Some(Ok((_, false))) => Err(format!("{shown}: not a directory")),
        Some(Err(error)) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            Err(format!("{shown}: the daemon of what is mounted there has died; `umount {shown}` first"))
        }
        Some(Err(error)) => Err(format!("{shown}: {error}")),
        None => Err(format!("{shown}: the filesystem that it lies on does not answer")),
    }
}

/// Where the volume of this device is mounted, as far as this process can see it, and what its daemon says. `None` also if the
/// daemon has died: then it can be mounted anew.
fn mounted_already(device: &Path) -> Result<Option<(MountEntry, Box<Info>)>, Failure> {
    let Ok(device) = device.canonicalize() else { return Ok(None) };
    let mounts = mount::mounts().map_err(|error| Failure::new(SYSTEM_ERROR, error))?;
    let is_it = |entry: &MountEntry| entry.is_avfs() && (entry.source == device || entry.backing() == device);
    let places: Vec<_> = mounts.into_iter().filter(is_it).collect();
    // One that shows all of the volume, if there is one.
    let Some(place) = places.iter().find(|place| place.shows_volume()).or(places.first()) else {
        return Ok(None);
    };
    match ask_info(place.device) {
        Ok(info) if info.connected => Ok(Some((place.clone(), info))),
        Err(why @ ClientError::Silent { .. }) => Err(Failure::new(
            MOUNT_FAILED,
            format!("{} is mounted on {}, and {why}", printable(&device), printable(&place.directory)),
        )),
        _ => Ok(None),
    }
}

fn ask_info(device: DeviceNumber) -> Result<Box<Info>, ClientError> {
    match Client::connect(&control::socket_path(device))?.ask(&Request::Info {})? {
        Answer::Info(info) => Ok(info),
        _ => Err(ClientError::Garbled("another answer".into())),
    }
}

/// Mounts a volume that is mounted on `place` on a further directory: the same volume, with flags of its own. False if there is
/// nothing to do, because an entry of fstab(5) asks for what is there: `mount -a` passes over what is mounted, but
/// does not recognise a mount that shows a directory of its filesystem, as those of AVFS do.
fn again(
    arguments: &Arguments,
    options: &MountOptions,
    place: &MountEntry,
    info: &Info,
    directory: &Path,
) -> Result<bool, Failure> {
    let (device, there) = (printable(&arguments.device), printable(&place.directory));
    let refuse = |why: String| Err(Failure::new(MOUNT_FAILED, why));
    if let Some(option) = options.differs(&info.options) {
        return refuse(format!(
            "{device} is mounted on {there} already, without {option}, which cannot be changed: unmount it first"
        ));
    }
    let is_read_only = info.volume.read_only && info.volume.failure.is_none();
    if is_read_only && !options.read_only() {
        return refuse(format!(
            "{device} is mounted on {there} already, read-only: mount it with -o ro, or change that with -o remount,rw"
        ));
    }
    let here = mount::mounted_on(place.device)
        .map_err(|error| Failure::new(SYSTEM_ERROR, error))?
        .into_iter()
        .rfind(|entry| entry.directory == directory);
    if here.is_some() {
        let present = present_flags(directory).map_err(|error| Failure::new(SYSTEM_ERROR, error))?;
        let is_the_same = present.contains(MountFlags::RDONLY) == options.read_only();
        if is_the_same && mount::is_in_fstab(directory) {
            return Ok(false);
        }
        let there = printable(directory);
        return refuse(format!(
            "{device} is mounted on {there} already; `mount -o remount` changes its flags"
        ));
    }
    if !place.shows_volume() {
        return refuse(format!(
            "{device} is mounted already, and only a part of it is shown, on {there}: `mount --bind` shows that elsewhere"
        ));
    }
    if !arguments.fake {
        mount::bind(&place.directory, directory, options.flags(MountFlags::empty()))
            .map_err(|error| Failure::new(MOUNT_FAILED, format!("{}: {error}", printable(directory))))?;
    }
    Ok(!arguments.fake)
}

/// The number of a group, which may be another host's to know: getent(1) asks as all programs of this host do.
fn group_number(name: &str) -> Result<u32, String> {
    let output = std::process::Command::new("getent").args(["group", "--", name]).output();
    let output = output.map_err(|error| format!("getent(1) does not run: {error}"))?;
    let entry = String::from_utf8_lossy(&output.stdout);
    let number = entry.split(':').nth(2).and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("this host has no group `{name}`"))
}

/// Reads the configuration.
fn configuration(options: &MountOptions) -> Result<Config, Failure> {
    match &options.config {
        Some(path) => Config::load(path).map_err(|error| Failure::new(WRONG_USAGE, error)),
        None => Ok(Config::default()),
    }
}

/// A filesystem to be served.
struct Job {
    claim: Claim,
    connection: OwnedFd,
    /// `st_dev` of its files.
    device: DeviceNumber,
    holds_device: bool,
    /// What the log is to say of it.
    remark: Option<String>,
    options: MountOptions,
    config: Config,
    /// The group that may ask the daemon, beside root.
    group: Option<u32>,
    live: Live,
}

impl Job {
    /// Serves, tells `ready`, which attaches the filesystem or has that done, until it is unmounted, and gives the device
    /// back.
    fn serve(self, ready: impl FnOnce(bool) -> Result<(), String>) -> Result<(), String> {
        let Self { mut claim, connection, device, holds_device, remark, options, config, group, live } = self;
        logging::name(printable(claim.device()));
        let open = OpenOptions {
            read_only: options.read_only(),
            access_times: access_times(options.set),
            holds_device,
            fenced: options.fenced.map(Uuid::into_bytes),
            cache_size: options.cache_size,
            config,
        };
        if let Some(remark) = remark {
            tracing::warn!("{remark}");
        }
        let daemon = Daemon {
            version: crate::VERSION.to_owned(),
            device_path: claim.device().to_owned(),
            options: options.lasting(),
            group,
            host: Arc::new(live),
        };
        let served = serve(&mut claim, connection, device, open, &options, daemon, ready);
        if let Err(why) = &served
            && let Err(error) = claim.not_written(why)
        {
            tracing::warn!(%error, "whoever waits for the end is not told how it went");
        }
        claim.release();
        served
    }

    /// The same in the background; gives back the exit code.
    fn serve_as_daemon(self, ready: daemon::Ready, filter: Targets) -> i32 {
        let target = match &self.options.log {
            Some(path) => Target::File(path.clone()),
            None => Target::System,
        };
        // Without a system log there is nowhere to say so.
        if let (Err(error), Target::File(path)) = (logging::start(&target, filter), &target) {
            ready.failed(&format!("cannot log to {}: {error}", printable(path)));
            return i32::from(MOUNT_FAILED);
        }
        let mut ready = Some(ready);
        let served = self.serve(|read_only| {
            ready.take().map_or(Ok(()), |ready| ready.ready(read_only).map_err(|error| error.to_string()))
        });
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

fn serve(
    claim: &mut Claim,
    connection: OwnedFd,
    device: DeviceNumber,
    open: OpenOptions,
    options: &MountOptions,
    daemon: Daemon,
    ready: impl FnOnce(bool) -> Result<(), String>,
) -> Result<(), String> {
    let signals = Signals::block().map_err(|error| error.to_string())?;
    survive();
    let (listen, group) = (open.config.web.listen.clone(), daemon.group);
    let path = claim.device().to_owned();
    let volume = claim
        .open(
            || Volume::open(&path, open.clone()),
            |error| matches!(error, OpenError::Device(DeviceError::InUse(_))),
        )
        .map_err(|error| match error {
            // It says which device.
            OpenError::Device(error) => error.to_string(),
            error => format!("{}: {error}", printable(&path)),
        })?;
    logging::name(reload::name(&volume.report().label, &path));
    if !volume.is_protected() {
        let shown = printable(&path);
        tracing::warn!(
            "other tools take {shown} for empty; `avfsctl protect {shown}`, when it is unmounted, changes that"
        );
    }
    let refusal = volume.refusal().filter(|_| !options.read_only());
    if let Some(why) = &refusal {
        crate::tell(format_args!("{NAME}: {}: {why}", printable(&path)));
    }
    // It was chosen before the kernel was asked for a filesystem.
    let transport = options.transport.unwrap_or(Transport::Device);
    let mounted =
        Mounted::start(&volume, connection, device, transport, daemon).map_err(|error| error.to_string())?;
    // For as long as it is served. A page that cannot be shown keeps no volume from being mounted.
    let _web = listen.and_then(|listen| match Web::start(&listen, group, mounted.handler()) {
        Ok(web) => Some(web),
        Err(error) => {
            tracing::warn!("nothing is shown at {listen:?}: {error}");
            None
        }
    });
    let made_known = claim
        .mounted(device)
        .and_then(|()| mounted.heed(signals, &volume))
        .and_then(|()| mounted.show_failures(&volume));
    if let Err(error) = made_known {
        tracing::warn!(%error, "mounted, but not as it should be");
    }
    if let Err(why) = ready(refusal.is_some()) {
        // Nothing shows it, so it ends at once.
        tracing::error!("{why}");
        mounted.give_up();
        return mounted.wait().map_err(|error| error.to_string()).and(Err(why));
    }
    mounted.wait().map_err(|error| error.to_string())?;
    tracing::info!("{} unmounted", printable(&path));
    Ok(())
}

/// Tells umount(8) that this mount has a helper, which knows how to wait for the daemon, and says if not everything could be
/// written. umount(8) reads that from libmount's own file, so mount(8) is asked to write there what it would have written:
/// everything but the mount itself. As a mount of what is there to the same place it notes what is shown, too, without which
/// it would not recognise it.
fn announce(directory: &Path) {
    let mut command = std::process::Command::new("mount");
    command.args(["-i", "-f", "--bind", "-o", "helper=avfs"]).arg(directory).arg(directory);
    let why = match command.output() {
        Ok(output) if output.status.success() => return,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    crate::tell(format_args!(
        "{NAME}: umount(8) will not tell if not everything could be written: mount(8) did not note it: {}",
        why.trim()
    ));
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
        .find(|entry| entry.directory == directory && entry.is_avfs())
        .ok_or_else(|| failed(format!("no AVFS volume is mounted on {}", printable(directory))))?;
    // A daemon that hangs is found out by this: what follows would wait for it.
    let info =
        ask_info(entry.device).map_err(|error| failed(format!("{}: {error}", printable(directory))))?;
    let mut client =
        Client::connect(&control::socket_path(entry.device)).map_err(|error| failed(error.to_string()))?;
    // The one of them that can be changed.
    let size = options.cache_size.filter(|size| Some(size.0) != info.options.cache_bytes);
    let lasting = MountOptions { cache_size: None, ..options.clone() };
    if let Some(option) = lasting.differs(&info.options) {
        return Err(failed(format!(
            "{option} cannot be changed while the volume is mounted: unmount {}, and mount it with that",
            printable(directory)
        )));
    }
    let present = present_flags(directory).map_err(|error| Failure::new(SYSTEM_ERROR, error))?;
    let wanted = options.flags(present);
    let change = |flags| {
        change_flags(directory, flags).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => failed(format!("{}: files are open for writing", printable(directory))),
            _ => failed(format!("{}: {error}", printable(directory))),
        })
    };
    if let Some(Bytes(bytes)) = size {
        client.ask(&Request::ResizeCache { bytes }).map_err(|error| failed(error.to_string()))?;
    }
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
