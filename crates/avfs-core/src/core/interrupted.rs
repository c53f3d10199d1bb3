//! What a loss of power left behind.
//!
//! **For:** inodes without a name, and bytes behind the end of a file: both are cleared away before they can do harm. **Excludes:**
//! recovery. **State:** none of its own.

use super::state::{Core, TRANSACTION_RECORDS};
use crate::extent::Extent;
use crate::format::BLOCK;
use crate::record::Record;
use crate::steps::{Step, has};
use units::{Ino, Now};

impl Core {
    /// Looked for once, before any client is served: it looks at every inode.
    pub(super) fn find_interrupted(&mut self) {
        if !has(Step::BehindTheEndIsCleared) {
            return;
        }
        for (ino, inode) in self.metadata.iter() {
            let pages = inode.size.div_ceil(BLOCK);
            let extents = inode.extents().into_iter().flat_map(|extents| extents.range(pages, u64::MAX));
            let written = extents.filter(|extent| !extent.unwritten);
            self.inodes.interrupted.extend(
                written.map(|extent| Record::Map { ino, extent: Extent { unwritten: true, ..extent } }),
            );
        }
    }

    /// Clears away what a loss of power left behind: inodes without a name, and bytes behind the end of a file that
    /// reached the device before the length that was to include them. If the file grew over those they would be back.
    pub(super) fn clear_interrupted(&mut self, now: Now) {
        let mut records = std::mem::take(&mut self.inodes.interrupted);
        let orphans: Vec<Ino> = self.metadata.orphans().iter().copied().collect();
        for ino in orphans {
            self.reap(now, ino);
        }
        // Of inodes that are gone nothing is left.
        records.retain(|record| self.metadata.get(record.ino()).is_some());
        for records in records.chunks(TRANSACTION_RECORDS) {
            let _ = self.transact(now, records);
        }
    }
}
