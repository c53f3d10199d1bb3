//! `umount.avfs`: unmounts and waits until everything is on the device. Called by umount(8); a bare umount(2) is as
//! safe, but returns before the daemon has written everything.

use crate::claim::{self, Watch};
use crate::daemon::Apart;
use crate::patience::within;
use crate::{fail, mount as mount_command};
use avfs_fuse::control;
use avfs_fuse::mount::{self, MountEntry, printable};
use clap::Parser;
use rustix::mount::UnmountFlags;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const NAME: &str = "umount.avfs";
const WRONG_USAGE: u8 = 1;
const UNMOUNT_FAILED: u8 = 32;

/// How often a daemon that is waited for is asked whether it lives.
const ASK_AFTER: Duration = Duration::from_secs(1);

/// Unmount an AVFS volume and wait until it is written completely. Usually called by umount(8).
#[derive(Debug, Parser)]
#[command(name = NAME, version = crate::VERSION, max_term_width = 100)]
struct Arguments {
    /// Directory, or device
    target: PathBuf,
    /// Let what clients wait for fail, and unmount although files are open
    #[arg(short, long)]
    force: bool,
    /// Detach now, end with the last open file; does not wait
    #[arg(short, long)]
    lazy: bool,
    /// If it is in use, turn it read-only
    #[arg(short, long)]
    read_only: bool,
    /// Say what is done
    #[arg(short, long)]
    verbose: bool,
    /// Ignored: there is no mtab to write
    #[arg(short)]
    no_mtab: bool,
    /// Ignored: the type umount(8) was called with
    #[arg(short = 't', value_name = "TYPE")]
    filesystem: Option<String>,
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
        Err(why) => fail(NAME, why, UNMOUNT_FAILED),
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let target = &arguments.target;
    // The path may lie on what hangs; then it is as it was given.
    let canonical = within(control::PATIENCE, target, || target.canonicalize().ok()).flatten();
    let is_answered = canonical.is_some();
    let entry = find(&canonical.unwrap_or_else(|| arguments.target.clone()))?;
    let directory = printable(&entry.directory);
    let watch = Watch::of(&entry);
    let loss = is_answered.then(|| claim::loss_of(entry.device)).flatten();
    match unmount(&entry, arguments, watch.as_ref()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) && arguments.read_only => {
            return mount_command::make_read_only(&entry.directory);
        }
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Err(format!("{directory}: in use; close its files, see lsof(8)"));
        }
        Err(error) => return Err(format!("{directory}: {error}")),
    }
    if arguments.verbose {
        // It is unmounted, whether anybody reads that or not.
        let _ = crate::print(format_args!("{directory} unmounted\n"));
    }
    let Some(watch) = watch else { return Ok(()) };
    let server = watch.server();
    // Mounted elsewhere, too: this is not its end.
    if server.shown().is_some() {
        return Ok(());
    }
    let incomplete =
        |why: &str| format!("{directory} is unmounted, but not everything is on the device: {why}");
    // Its end is not waited for: what is lost by now is all that can be told.
    if arguments.lazy {
        return loss.map_or(Ok(()), |why| Err(incomplete(&why)));
    }
    // With files open, or mounted in another mount namespace.
    if !arguments.force
        && let Some(place) = server.serves()
    {
        if arguments.verbose {
            let _ = crate::print(format_args!("the volume is still mounted on {place}\n"));
        }
        return Ok(());
    }
    watch.wait().map_err(|why| {
        // It knew before it ended.
        let why = why.to_string();
        let cause = loss.filter(|loss| !why.contains(loss)).map(|loss| format!(" ({loss})"));
        incomplete(&format!("{why}{}", cause.unwrap_or_default()))
    })
}

/// Takes it from its directory. By force also while files are open: then the connection has ended, and nothing is served any
/// more, so what is left of it would only be in the way.
fn unmount(entry: &MountEntry, arguments: &Arguments, watch: Option<&Watch>) -> io::Result<()> {
    let ways: &[UnmountFlags] = match (arguments.force, arguments.lazy) {
        (true, false) => &[UnmountFlags::FORCE, UnmountFlags::DETACH],
        (true, true) => &[UnmountFlags::FORCE.union(UnmountFlags::DETACH)],
        (false, true) => &[UnmountFlags::DETACH],
        (false, false) => &[UnmountFlags::empty()],
    };
    let (last, earlier) = ways.split_last().expect("there is one at least");
    for way in earlier {
        match unmount_so(entry, *way, watch) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            result => return result,
        }
    }
    unmount_so(entry, *last, watch)
}

/// The kernel waits for a daemon until everything is written, and for one that hangs for ever. This does so as long as the
/// daemon answers.
fn unmount_so(entry: &MountEntry, how: UnmountFlags, watch: Option<&Watch>) -> io::Result<()> {
    let is_there = |when: &[MountEntry]| when.iter().filter(|other| *other == entry).count();
    let before = is_there(&mount::mounts()?);
    let server = watch.map(Watch::server);
    let silent = || {
        let process = server.map_or("unknown".into(), |server| server.process().to_string());
        io::Error::other(format!(
            "not unmounted: its daemon (process {process}) does not answer; `umount -f` unmounts it without, \
             and what is not on the device yet is lost if the daemon is killed then"
        ))
    };
    let waits_for_daemon = !how.intersects(UnmountFlags::FORCE | UnmountFlags::DETACH);
    if waits_for_daemon && server.is_some_and(|server| !server.answers()) {
        return Err(silent());
    }
    let unmounting = Apart::unmount(&entry.directory, how)?;
    loop {
        if let Some(ended) = unmounting.ended(ASK_AFTER) {
            return ended;
        }
        let is_gone = is_there(&mount::mounts()?) < before;
        if is_gone && !waits_for_daemon {
            return Ok(());
        }
        if server.is_some_and(|server| !server.answers()) {
            return if is_gone { Ok(()) } else { Err(silent()) };
        }
    }
}

/// The newest mount on this directory, or of this device.
fn find(target: &Path) -> Result<MountEntry, String> {
    mount::mounts()
        .map_err(|error| error.to_string())?
        .into_iter()
        .filter(MountEntry::is_avfs)
        .rfind(|entry| entry.directory == target || entry.source == target || entry.backing() == target)
        .ok_or_else(|| format!("{}: no AVFS volume is mounted there", printable(target)))
}
