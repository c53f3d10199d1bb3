//! How much space files have, alone and together with others.
//!
//! **For:** `avfsctl usage`. **Excludes:** walking a tree of directories, which goes in turns outside. **State:** none of its own.

use super::state::{Core, STEPS};
use crate::allocator::Shares;
use crate::error::{Error, Result};
use crate::format::BLOCK;
use crate::types::*;
use std::collections::BTreeMap;
use units::Ino;

/// Some files, as they are counted.
#[derive(Debug, Default)]
pub struct UsageCount {
    /// How many names of each were met.
    names: BTreeMap<Ino, usize>,
    /// Space that has several owners, as often as these files have it.
    shared: Shares,
    report: UsageReport,
}

impl Core {
    /// Counts one name of an inode. The first time, its space as well.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn count_usage(&self, ino: Ino, usage: &mut UsageCount) -> Result<()> {
        let inode = self.metadata.get(ino).ok_or(Error::Stale)?;
        let met = usage.names.entry(ino).or_default();
        *met += 1;
        let is_gone = *met >= inode.names.len();
        if *met == 1 {
            usage.report.files += u64::from(inode.kind == FileKind::Regular);
            usage.report.size_bytes += if inode.kind == FileKind::Regular { inode.size } else { 0 };
        }
        for extent in inode.extents().into_iter().flat_map(|extents| extents.iter()) {
            let mut shared = 0;
            for (run, _) in self.space.allocator.shares().within(extent.run()) {
                shared += run.count;
                if is_gone {
                    usage.shared.add(run);
                }
            }
            if *met == 1 {
                usage.report.shared_bytes += shared * BLOCK;
                usage.report.own_bytes += (extent.count - shared) * BLOCK;
            }
            // A file that has other names elsewhere stays.
            usage.report.freed_bytes += if is_gone { (extent.count - shared) * BLOCK } else { 0 };
        }
        Ok(())
    }

    /// Counts what a directory names behind `cookie` (0: from the start), a part of it, and notes directories below it. Returns where to
    /// go on, if there is more.
    pub fn count_usage_below(
        &self,
        directory: Ino,
        cookie: u64,
        below: &mut Vec<Ino>,
        usage: &mut UsageCount,
    ) -> Option<u64> {
        let mut last = None;
        for (cookie, _, ino, inode) in self.metadata.entries(directory, cookie).take(STEPS as usize) {
            last = Some(cookie);
            if inode.kind == FileKind::Directory {
                below.push(ino);
            }
            let _ = self.count_usage(ino, usage);
        }
        last
    }

    /// What was counted.
    pub fn usage(&self, usage: UsageCount) -> UsageReport {
        let mut report = usage.report;
        for (run, times) in usage.shared.iter() {
            for (part, more) in self.space.allocator.shares().within(run) {
                report.freed_bytes += if times > more { part.count * BLOCK } else { 0 };
            }
        }
        report
    }
}
