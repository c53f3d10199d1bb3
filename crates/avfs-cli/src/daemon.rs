//! Becoming a daemon, and calls that may never return: the one place that forks.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use std::ffi::CString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Which process this is after [`fork`].
pub(crate) enum Side {
    /// The one the user started; waits for the daemon's word.
    Parent(Waiting),
    /// The daemon: in a session of its own, never to get a terminal.
    Daemon(Ready),
}

/// The parent's end.
pub(crate) struct Waiting(PipeReader);

/// The daemon's end. Dropping it without a word tells the parent that the daemon died.
pub(crate) struct Ready(PipeWriter);

const READY: &str = "ready";
const READ_ONLY: &str = "read-only";

impl Waiting {
    /// The daemon's word: up and serving, whether it is read-only although that was not asked for; or one line that says
    /// why not.
    pub(crate) fn wait(mut self) -> Result<bool, String> {
        let mut word = String::new();
        match self.0.read_to_string(&mut word) {
            Ok(_) if word == READY || word == READ_ONLY => Ok(word == READ_ONLY),
            Ok(_) if word.is_empty() => Err("the daemon died while starting; see its log".into()),
            Ok(_) => Err(word),
            Err(error) => Err(format!("cannot hear from the daemon: {error}")),
        }
    }
}

impl Ready {
    /// Tells the parent that all is well and lets go of the terminal.
    pub(crate) fn ready(mut self, read_only: bool) -> io::Result<()> {
        self.0.write_all(if read_only { READ_ONLY } else { READY }.as_bytes())?;
        let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        Ok(())
    }

    /// Tells the parent why not.
    pub(crate) fn failed(mut self, why: &str) {
        // If the parent is gone there is nobody to tell.
        let _ = self.0.write_all(why.as_bytes());
    }
}

/// Splits this process. To be called while it has one thread.
///
/// # Errors
/// When no pipe or process can be had.
pub(crate) fn fork() -> io::Result<Side> {
    let (reader, writer) = io::pipe()?;
    if fork_once()? {
        drop(writer);
        return Ok(Side::Parent(Waiting(reader)));
    }
    drop(reader);
    rustix::process::setsid()?;
    // Whoever leads no session never gets a terminal by opening one.
    if fork_once()? {
        std::process::exit(0);
    }
    rustix::process::chdir("/")?;
    Ok(Side::Daemon(Ready(writer)))
}

/// True in the parent.
fn fork_once() -> io::Result<bool> {
    // SAFETY: the caller guarantees one thread, so no lock can be held by a thread that the child does not have.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(false),
        _ => Ok(true),
    }
}

/// A system call in a process of its own. One that waits for a filesystem's daemon may never return, and while it waits for
/// what the daemon has begun, its process cannot even be killed.
pub(crate) struct Apart(OwnedFd);

impl Apart {
    /// Begins umount(2). To be called while this process has one thread.
    pub(crate) fn unmount(directory: &Path, flags: UnmountFlags) -> io::Result<Self> {
        let directory = CString::new(directory.as_os_str().as_bytes())?;
        let flags = (flags | UnmountFlags::NOFOLLOW).bits() as libc::c_int;
        // SAFETY: the path has its NUL and outlives the call.
        Self::begin(|| unsafe { libc::umount2(directory.as_ptr(), flags) })
    }

    /// Begins statfs(2), which every filesystem is asked for each time. To be called while this process has one thread.
    pub(crate) fn look_at(path: &Path) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let mut found = std::mem::MaybeUninit::uninit();
        // SAFETY: the path has its NUL, there is room for the answer, and both outlive the call.
        Self::begin(|| unsafe { libc::statfs(path.as_ptr(), found.as_mut_ptr()) })
    }

    /// `call` makes one system call and gives back what that did.
    fn begin(call: impl FnOnce() -> libc::c_int) -> io::Result<Self> {
        // SAFETY: one thread, as the callers guarantee; and the child makes system calls only, on what it has a copy of. It
        // closes its descriptors, so that nobody waits for the end of what they lead to.
        let child = unsafe {
            match libc::fork() {
                0 => {
                    libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0);
                    let done = call();
                    libc::_exit(if done == 0 { 0 } else { *libc::__errno_location() })
                }
                child => child,
            }
        };
        let child = Pid::from_raw(child).filter(|child| child.as_raw_nonzero().get() > 0);
        let child = child.ok_or_else(io::Error::last_os_error)?;
        Ok(Self(rustix::process::pidfd_open(child, PidfdFlags::empty())?))
    }

    /// Ends it, if it can be.
    pub(crate) fn give_up(&self) {
        // What has ended already, or cannot be ended now, ends by itself.
        let _ = rustix::process::pidfd_send_signal(&self.0, Signal::KILL);
    }

    /// How it ended, if it did within this time.
    pub(crate) fn ended(&self, within: Duration) -> Option<io::Result<()>> {
        let mut poll = [PollFd::new(&self.0, PollFlags::IN)];
        let within = Timespec::try_from(within).unwrap_or_default();
        match rustix::event::poll(&mut poll, Some(&within)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return None,
            Ok(_) => {}
            Err(error) => return Some(Err(error.into())),
        }
        let waited = rustix::process::waitid(WaitId::PidFd(self.0.as_fd()), WaitIdOptions::EXITED);
        Some(match waited.map(|status| status.and_then(|status| status.exit_status())) {
            Ok(Some(0)) => Ok(()),
            Ok(Some(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Ok(None) => Err(io::ErrorKind::Interrupted.into()),
            Err(error) => Err(error.into()),
        })
    }
}
