//! A connection to the kernel: answers to what was read from it.
//!
//! **For:** writing a reply, and what becomes of one that the kernel does not take. **Excludes:** reading, and what is answered.
//! **State:** the descriptor; what is not answered, of its rings as well. **Invariants:** a request that gets no reply has an end all the
//! same, or is counted.

use crate::abi;
use crate::refusals::Refusals;
use crate::watch::Unanswered;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Pieces of a reply, most of which have one.
pub type Pieces<'a> = SmallVec<[IoSlice<'a>; 4]>;

/// More than writev(2) takes at once.
const MAX_PIECES: usize = 1024;

/// Hands a reply to the kernel.
type Writing = dyn Fn(BorrowedFd<'_>, &[IoSlice<'_>]) -> rustix::io::Result<usize> + Send + Sync;

/// A connection to the kernel.
pub(crate) struct Connection {
    descriptor: OwnedFd,
    pub(crate) send: Box<Writing>,
    unanswered: Arc<Unanswered>,
    refusals: Arc<Refusals>,
}

impl Connection {
    pub(crate) fn new(descriptor: OwnedFd, unanswered: &Arc<Unanswered>, refusals: &Arc<Refusals>) -> Self {
        let send =
            |connection: BorrowedFd<'_>, pieces: &[IoSlice<'_>]| rustix::io::writev(connection, pieces);
        let (unanswered, refusals) = (Arc::clone(unanswered), Arc::clone(refusals));
        Self { descriptor, send: Box::new(send), unanswered, refusals }
    }

    /// What has been read here or from this connection's rings, and is not answered.
    pub(crate) fn unanswered(&self) -> &Arc<Unanswered> {
        &self.unanswered
    }

    /// Hands a reply over.
    pub(crate) fn write(&self, error: i32, unique: u64, body: &[IoSlice<'_>]) -> rustix::io::Result<()> {
        let length = body.iter().map(|piece| piece.len()).sum::<usize>() + size_of::<abi::OutHeader>();
        let header = abi::OutHeader { len: length as u32, error, unique };
        let header = IoSlice::new(header.as_bytes());
        if body.len() < MAX_PIECES {
            let pieces: Pieces<'_> = std::iter::once(header).chain(body.iter().copied()).collect();
            (self.send)(self.descriptor.as_fd(), &pieces)?;
        } else {
            let gathered = body.iter().map(|piece| &**piece).collect::<Vec<_>>().concat();
            (self.send)(self.descriptor.as_fd(), &[header, IoSlice::new(&gathered)])?;
        }
        Ok(())
    }

    /// Answers a request that was read here. False if its client does not get this reply.
    pub(crate) fn reply(&self, unique: u64, errno: i32, body: &[IoSlice<'_>]) -> bool {
        let sent = match self.write(-errno, unique, body) {
            // The kernel had no memory, perhaps before it looked which request this is of.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM) => self.write(-errno, unique, body),
            sent => sent,
        };
        let Err(error) = sent else { return true };
        if is_gone(error) {
            self.refusals.late(error);
            return false;
        }
        // Such a reply may not have ended the request; if it has, this one is of nothing.
        let ended = match self.write(-libc::EIO, unique, &[]) {
            Err(error) => is_gone(error),
            Ok(()) => true,
        };
        self.refusals.refused(unique, error, ended);
        false
    }
}

/// Nothing waits for a reply: the kernel gave up its request, or the connection has ended.
fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NODEV | Errno::CONNABORTED | Errno::PIPE | Errno::CONNRESET)
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
