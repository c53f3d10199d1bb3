//! What the filesystem tells the kernel without being asked.

use crate::abi;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use zerocopy::IntoBytes;

/// The kernel's end of notifications: its connection.
#[derive(Debug)]
pub struct Notifier(OwnedFd);

impl Notifier {
    /// `connection`: of the mount, duplicated.
    pub fn new(connection: OwnedFd) -> Self {
        Self(connection)
    }

    /// The kernel drops its pages of `node` in `offset..offset + length` (a length of 0 means "to the end"), and its
    /// attributes. **Waits** until every READ that fills one of those pages is answered, and every WRITE that writes one
    /// back, so no answer to either may wait for this.
    ///
    /// # Errors
    /// What the kernel says; not that it knows nothing of the node, which is as good.
    pub fn invalidate_pages(&self, node: u64, offset: i64, length: i64) -> io::Result<()> {
        let range = abi::InvalInodeOut { ino: node, offset, length };
        let length = size_of::<abi::OutHeader>() + size_of::<abi::InvalInodeOut>();
        let header =
            abi::OutHeader { len: length as u32, error: abi::NOTIFY_INVAL_INODE, ..Default::default() };
        let pieces = [IoSlice::new(header.as_bytes()), IoSlice::new(range.as_bytes())];
        match rustix::io::writev(&self.0, &pieces) {
            // The kernel does not know the inode: it has no pages of it.
            Err(rustix::io::Errno::NOENT) => Ok(()),
            result => result.map(drop).map_err(io::Error::from),
        }
    }
}
