//! Waiting for the signals that end a daemon. The one place of this crate that talks to signal masks.

use std::io;

/// The signals a daemon handles itself instead of dying of them.
const HANDLED: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// What an operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM or SIGINT: unmount and end.
    End,
    /// SIGHUP: read the configuration again.
    Hangup,
}

/// The signals are blocked; [`Signals::wait`] takes them one by one.
#[derive(Clone, Copy)]
pub struct Signals {
    set: libc::sigset_t,
}

impl std::fmt::Debug for Signals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signals")
    }
}

impl Signals {
    /// Blocks the signals in this thread and all it will start: to be called before any other thread exists.
    ///
    /// # Errors
    /// When the kernel refuses, which it has no reason to.
    pub fn block() -> io::Result<Self> {
        // SAFETY: an all-zero sigset_t is a valid value, and sigemptyset makes it a proper one before use.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a valid place for a signal set, the numbers are signals, a null old set is allowed.
        let error = unsafe {
            libc::sigemptyset(&mut set);
            for signal in HANDLED {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut())
        };
        if error != 0 { Err(io::Error::from_raw_os_error(error)) } else { Ok(Self { set }) }
    }

    /// Waits for the next signal.
    ///
    /// # Errors
    /// When the kernel refuses, which it has no reason to.
    pub fn wait(&self) -> io::Result<Signal> {
        let mut signal = 0;
        // SAFETY: both pointers are to valid values of their types.
        let error = unsafe { libc::sigwait(&self.set, &mut signal) };
        match (error, signal) {
            (0, libc::SIGHUP) => Ok(Signal::Hangup),
            (0, _) => Ok(Signal::End),
            (error, _) => Err(io::Error::from_raw_os_error(error)),
        }
    }
}
