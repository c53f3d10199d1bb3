//! `/dev/fuse` itself: the handshake, what the rings do not carry (FORGET, INTERRUPT, notifications), and every
//! request that comes before they are ready.

use super::reply::{Reply, Route};
use super::server::{Server, node};
use crate::abi::{self, InitFlags, opcode};
use crate::invalidate::Notify;
use crate::protocol::{MAX_BACKGROUND, MAX_REQUEST_BYTES};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use units::Ino;
use zerocopy::{FromBytes, IntoBytes};

/// What the kernel is asked for, where it has it. Left out on purpose: what [`crate::fuse`] leaves out.
const WANTED: InitFlags = InitFlags::ASYNC_READ
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::BIG_WRITES)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::DO_READDIRPLUS)
    .union(InitFlags::READDIRPLUS_AUTO)
    .union(InitFlags::EXPORT_SUPPORT)
    .union(InitFlags::POSIX_ACL)
    .union(InitFlags::DONT_MASK)
    .union(InitFlags::HANDLE_KILLPRIV_V2)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::DIRECT_IO_ALLOW_MMAP)
    .union(InitFlags::OVER_IO_URING)
    .union(InitFlags::INIT_EXT);

/// Beside the largest write, the headers before it; a page, so that the kernel never finds the buffer too small.
const READ_BUFFER_BYTES: usize = MAX_REQUEST_BYTES as usize + 4096;

/// A connection to the kernel.
pub(super) struct Device(OwnedFd);

impl Device {
    pub(super) fn new(connection: OwnedFd) -> Self {
        Self(connection)
    }

    /// Reads one request. `None`: the filesystem is unmounted.
    fn read<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<Incoming<'a>>> {
        let length = loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(length) => break length,
                // NOENT: the request was given up while it was read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        };
        Incoming::split(&buffer[..length]).map(Some).ok_or_else(|| io::Error::other("a request is too short"))
    }

    /// Agrees with the kernel on what both can do.
    ///
    /// # Errors
    /// When the kernel does not offer rings, or speaks another protocol; nothing was agreed then.
    pub(super) fn handshake(&self) -> io::Result<()> {
        let mut buffer = vec![0; READ_BUFFER_BYTES];
        let request = self.read(&mut buffer)?.ok_or(io::ErrorKind::NotConnected)?;
        if request.header.opcode != opcode::INIT {
            return Err(io::Error::other(format!(
                "the first request is {}, not INIT",
                request.header.opcode
            )));
        }
        let (offer, _) = abi::InitIn::read_from_prefix(request.operation)
            .map_err(|_| io::Error::other("the kernel's INIT is too short"))?;
        if offer.major != abi::KERNEL_VERSION {
            return Err(io::Error::other(format!("the kernel speaks FUSE {}", offer.major)));
        }
        let offered = InitFlags::from_bits_retain(u64::from(offer.flags2) << 32 | u64::from(offer.flags));
        if !offered.contains(InitFlags::OVER_IO_URING) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel offers no rings"));
        }
        for (name, _) in (WANTED - offered).iter_names() {
            tracing::info!(capability = name, "this kernel does not have");
        }
        let agreed = (WANTED & offered).bits();
        let answer = abi::InitOut {
            major: abi::KERNEL_VERSION,
            minor: abi::KERNEL_MINOR_VERSION,
            max_readahead: offer.max_readahead,
            flags: agreed as u32,
            flags2: (agreed >> 32) as u32,
            max_background: MAX_BACKGROUND,
            congestion_threshold: MAX_BACKGROUND / 4 * 3,
            max_write: MAX_REQUEST_BYTES,
            time_gran: 1,
            max_pages: (MAX_REQUEST_BYTES / 4096) as u16,
            ..Default::default()
        };
        self.write(0, request.header.unique, answer.as_bytes())
    }

    fn write(&self, error: i32, unique: u64, body: &[u8]) -> io::Result<()> {
        let length = size_of::<abi::OutHeader>() + body.len();
        let header = abi::OutHeader { len: length as u32, error, unique };
        rustix::io::writev(&self.0, &[IoSlice::new(header.as_bytes()), IoSlice::new(body)])?;
        Ok(())
    }

    /// Answers a request that was read here.
    pub(super) fn reply(&self, unique: u64, errno: i32, body: &[u8]) {
        if let Err(error) = self.write(-errno, unique, body) {
            // The client gave up, or the filesystem is unmounted.
            tracing::debug!(%error, unique, "nobody waits for this reply");
        }
    }

    /// Serves what arrives here until the filesystem is unmounted.
    ///
    /// # Errors
    /// What read(2) says.
    pub(super) fn serve(self: &Arc<Self>, server: &Server) -> io::Result<()> {
        let mut buffer = vec![0; READ_BUFFER_BYTES];
        while let Some(request) = self.read(&mut buffer)? {
            let reply = Reply::new(request.header.unique, Route::Device(Arc::clone(self)));
            server.handle(&request.header, request.operation, request.payload, reply);
        }
        Ok(())
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Notify for Arc<Device> {
    fn invalidate(&self, ino: Ino, offset: i64, length: i64) -> io::Result<()> {
        let range = abi::InvalInodeOut { ino: node(ino), offset, length };
        match self.write(abi::NOTIFY_INVAL_INODE, 0, range.as_bytes()) {
            // The kernel does not know the inode: it has no pages of it.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result,
        }
    }
}

/// A request as read(2) gives it: header, structure and payload in one piece.
struct Incoming<'a> {
    header: abi::InHeader,
    operation: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Incoming<'a> {
    fn split(bytes: &'a [u8]) -> Option<Self> {
        let (header, body) = abi::InHeader::read_from_prefix(bytes).ok()?;
        let (operation, payload) = body.split_at_checked(abi::operation_size(header.opcode).unwrap_or(0))?;
        Some(Self { header, operation, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_request_is_split_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(request) = Incoming::split(&bytes) {
                let rest = request.operation.len() + request.payload.len();
                prop_assert_eq!(size_of::<abi::InHeader>() + rest, bytes.len());
            }
        }
    }

    #[test]
    fn a_body_is_split_after_the_structure_of_its_operation() {
        let header = abi::InHeader { opcode: opcode::MKDIR, ..Default::default() };
        let bytes = [header.as_bytes(), &[1; 8], b"name\0"].concat();
        let request = Incoming::split(&bytes).unwrap();
        assert_eq!((request.operation, request.payload), (&[1; 8][..], &b"name\0"[..]));
        assert!(Incoming::split(&bytes[..47]).is_none());
    }
}
