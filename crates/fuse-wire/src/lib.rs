//! Requests of the kernel's FUSE in, replies out: everything between a connection and a [`Filesystem`], and no decision
//! about files.
//!
//! **For:** the protocol as it lies in memory ([`abi`]), requests taken apart ([`Operation`]), the way back of each
//! answer ([`Reply`]), the two transports ([`Session`]). **Excludes:** what a request
//! means, mounting, errno of a filesystem's causes. **State:** a session owns the threads that read, each thread the
//! memory that it reads into.
//!
//! **Invariants:** each request is answered exactly once, also when its [`Reply`] is dropped; a reply may be sent from
//! any thread; no bytes make the decoder panic.

// The README's example is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod abi;
mod accept;
mod connection;
pub mod decode;
mod device;
mod options;
mod refusals;
mod reply;
mod ring;
mod room;
mod session;
mod watch;

pub use accept::accepts;
pub use connection::Pieces;
pub use decode::{Malformed, Operation};
pub use device::reading_threads;
pub use options::{Options, Transport};
pub use refusals::Refusals;
pub use reply::{Answer, Reply};
pub use ring::enable as enable_rings;
pub use room::MAX_REQUEST_BYTES;
pub use session::Session;

use std::convert::Infallible;
use std::io;
use std::os::fd::BorrowedFd;

/// What answers requests. Its methods are called from the threads that read; one that blocks keeps others from being read.
pub trait Filesystem: Send + Sync + 'static {
    /// Memory of its own that the data of a write are read into; [`NoBuffer`] if it has none.
    type Buffer: WriteBuffer;

    /// Answers a request, now or later. `operation` is at least the structure of the operation, `payload` what follows
    /// it (see [`Operation::decode`]); neither is used after this returns.
    fn handle(&self, header: &abi::InHeader, operation: &[u8], payload: &[u8], reply: Reply);

    /// Answers a write whose data fill one of the filesystem's buffers, now or later. Gives back a buffer for the next one,
    /// of the same length.
    fn handle_write(
        &self,
        header: &abi::InHeader,
        operation: &[u8],
        buffer: Self::Buffer,
        reply: Reply,
    ) -> Self::Buffer {
        self.handle(header, operation, buffer.bytes(), reply);
        buffer
    }
}

/// Memory of a filesystem that the data of a write are read into.
pub trait WriteBuffer: Send + 'static {
    /// All of it.
    fn bytes(&self) -> &[u8];

    /// Reads once: the first bytes go to `head`, what does not fit there to the buffer, and what does not fit there to
    /// `tail`. Gives back how many bytes came.
    ///
    /// # Errors
    /// What readv(2) says.
    fn receive(&mut self, connection: BorrowedFd<'_>, head: &mut [u8], tail: &mut [u8]) -> io::Result<usize>;
}

/// For a filesystem that copies what is written.
#[derive(Clone, Copy, Debug)]
pub struct NoBuffer(Infallible);

impl WriteBuffer for NoBuffer {
    fn bytes(&self) -> &[u8] {
        match self.0 {}
    }

    fn receive(&mut self, _: BorrowedFd<'_>, _: &mut [u8], _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }
}
