//! The life of a connection: the handshake, the threads that read, and their end.

use crate::options::{Options, Transport};
use crate::{Filesystem, device, ring};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A connection that is served by threads of its own.
pub struct Session(Threads);

enum Threads {
    Ring(ring::Session),
    Device(device::Session),
}

impl Session {
    /// Starts to serve a connection that was just mounted.
    ///
    /// # Errors
    /// When the kernel speaks another protocol or lacks what is required, or threads or rings cannot be had; nothing is
    /// served then.
    pub fn start<F: Filesystem>(
        connection: OwnedFd,
        filesystem: &Arc<F>,
        options: Options<F::Buffer>,
    ) -> io::Result<Self> {
        Ok(Self(match options.transport {
            Transport::Device => Threads::Device(device::Session::start(connection, filesystem, options)?),
            Transport::Ring => Threads::Ring(ring::Session::start(connection, filesystem, &options)?),
        }))
    }

    /// Waits until the filesystem is unmounted and no thread serves it any more.
    ///
    /// # Errors
    /// When reading from the connection failed.
    pub fn join(self) -> io::Result<()> {
        match self.0 {
            Threads::Ring(session) => session.join(),
            Threads::Device(session) => session.join(),
        }
    }
}
