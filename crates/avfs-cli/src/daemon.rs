//! Becoming a daemon: the one place that forks.

use rustix::fs::{Mode, OFlags};
use std::io::{self, PipeReader, PipeWriter, Read, Write};

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

impl Waiting {
    /// The daemon's word: up and serving, or one line that says why not.
    pub(crate) fn wait(mut self) -> Result<(), String> {
        let mut word = String::new();
        match self.0.read_to_string(&mut word) {
            Ok(_) if word == READY => Ok(()),
            Ok(_) if word.is_empty() => Err("the daemon died while starting; see its log".into()),
            Ok(_) => Err(word),
            Err(error) => Err(format!("cannot hear from the daemon: {error}")),
        }
    }
}

impl Ready {
    /// Tells the parent that all is well and lets go of the terminal.
    pub(crate) fn ready(mut self) -> io::Result<()> {
        self.0.write_all(READY.as_bytes())?;
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
