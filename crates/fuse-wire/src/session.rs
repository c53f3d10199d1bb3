//! The life of a connection: the handshake, the threads that read, and their end.

use crate::abi::InitFlags;
use crate::{Filesystem, Refusals, device, ring};
use std::fmt::{Display, Formatter};
use std::io;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Through `/dev/fuse`: large reads and writes cost one copy less.
    Device,
    /// Through io_uring: a request is served on its client's processor.
    Ring,
}

impl Display for Transport {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Ring => "ring",
        })
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ring" => Ok(Self::Ring),
            "device" => Ok(Self::Device),
            _ => Err(format!("`{text}` is none of device, ring")),
        }
    }
}

/// What is asked of the kernel, and with what it is served.
#[derive(Debug)]
pub struct Options<B> {
    /// How requests are to come.
    pub transport: Transport,
    /// What the kernel is asked for, where it has it. Rings are asked for by [`transport`](Self::transport).
    pub wanted: InitFlags,
    /// What of it the filesystem cannot do without.
    pub required: InitFlags,
    /// Requests that the kernel keeps in flight on its own account: readahead, writeback, asynchronous direct I/O.
    pub max_background: u16,
    /// A request that is not answered in this time is logged, once, and named: there is an error that nobody sees.
    pub overdue: Duration,
    /// Where replies are counted that the kernel does not take.
    pub refusals: Arc<Refusals>,
    /// One for each of the [`reading_threads`](crate::reading_threads) of the device, or fewer. Rings use none.
    pub buffers: Vec<B>,
}

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
