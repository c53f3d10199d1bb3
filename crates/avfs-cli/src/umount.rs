//! `umount.avfs`: unmounts and waits until everything is on the device. Called by umount(8); a bare umount(2) is as
//! safe, but returns before the daemon has written everything.

use crate::claim::{Claim, Server};
use crate::{fail, mount as mount_command};
use avfs_fuse::mount::{self, MountEntry, printable};
use clap::Parser;
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const NAME: &str = "umount.avfs";
const WRONG_USAGE: u8 = 1;
const UNMOUNT_FAILED: u8 = 32;

/// Unmount an AVFS volume and wait until it is written completely. Usually called by umount(8).
#[derive(Debug, Parser)]
#[command(name = NAME, version, max_term_width = 100)]
struct Arguments {
    /// Directory, or device
    target: PathBuf,
    /// Let what clients wait for fail
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
    let target = arguments.target.canonicalize().unwrap_or_else(|_| arguments.target.clone());
    let entry = find(&target)?;
    let mut flags = UnmountFlags::empty();
    flags.set(UnmountFlags::FORCE, arguments.force);
    flags.set(UnmountFlags::DETACH, arguments.lazy);
    let directory = printable(&entry.directory);
    let server = Server::of(entry.device);
    match mount::unmount(&entry.directory, flags) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) && arguments.read_only => {
            return mount_command::make_read_only(&entry.directory);
        }
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Err(format!("{directory}: in use; close its files, see lsof(8)"));
        }
        Err(error) => return Err(format!("{directory}: {error}")),
    }
    match server.and_then(Server::serves) {
        None => Claim::wait_until_free(&entry.source),
        // With files open, or mounted elsewhere too, in this mount namespace or another: there is no end to wait for.
        Some(_) if arguments.lazy => {}
        Some(where_else) => {
            eprintln!("{NAME}: {directory} unmounted; the volume is still mounted on {where_else}");
        }
    }
    if arguments.verbose {
        // It is unmounted, whether anybody reads that or not.
        let _ = crate::print(format_args!("{directory} unmounted\n"));
    }
    Ok(())
}

/// The newest mount on this directory, or of this device.
fn find(target: &Path) -> Result<MountEntry, String> {
    mount::mounts()
        .map_err(|error| error.to_string())?
        .into_iter()
        .filter(|entry| entry.filesystem == mount::FILESYSTEM_TYPE)
        .rfind(|entry| entry.directory == target || entry.source == target)
        .ok_or_else(|| format!("{}: no AVFS volume is mounted there", printable(target)))
}
