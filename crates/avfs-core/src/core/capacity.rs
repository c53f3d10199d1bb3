//! What lies below directories, and what of their limits is used: shown.
//!
//! **For:** statfs(2) of a directory, the administrator's tools, the log. **Excludes:** refusing (`core/limits.rs`). **State:** none of its own.

use super::state::Core;
use crate::error::Result;
use crate::events::size;
use crate::format::BLOCK;
use crate::limit::Limit;
use crate::types::*;
use crate::usage::Usage;
use units::Ino;

impl Core {
    /// Figures for statfs(2) of an inode: where directories with a limit hold it, the nearest one's limit is the disk's size. What a
    /// writer can have is the least of what all of them and the volume have.
    pub fn statistics_at(&self, ino: Ino) -> VolumeStatistics {
        let mut figures = self.statistics();
        let (mut has_size, mut has_files) = (false, false);
        for (directory, limit) in self.metadata.limits_above(ino) {
            let used = self.metadata.usage_below(directory);
            if let Some(limit) = limit.blocks() {
                let left = limit.saturating_sub(used.space());
                if !has_size && limit < figures.blocks {
                    (figures.blocks, figures.free) = (limit, left);
                }
                figures.available = figures.available.min(left);
                has_size = true;
            }
            if let Some(limit) = limit.files {
                let left = limit.saturating_sub(used.inodes);
                if !has_files {
                    figures.files = used.inodes;
                }
                figures.files_free = figures.files_free.min(left);
                has_files = true;
            }
        }
        figures
    }

    /// What an inode takes, with all that lies below it.
    ///
    /// # Errors
    /// [`Error::Stale`](crate::Error::Stale): there is no such inode.
    pub fn usage_of(&self, ino: Ino) -> Result<Usage> {
        self.inode(ino).map(|_| self.metadata.usage_with(ino))
    }

    /// All limits with what is used of them, in the order of the directories' numbers.
    pub fn limits(&self) -> Vec<LimitReport> {
        self.metadata.limits().map(|(ino, limit)| self.limit_report(ino, limit.as_ref())).collect()
    }

    fn limit_report(&self, ino: Ino, limit: core::result::Result<&Limit, &String>) -> LimitReport {
        let used = self.metadata.usage_below(ino);
        let said = limit.copied().unwrap_or_default();
        LimitReport {
            ino: ino.0,
            path: self.shown_path(ino),
            size_bytes: said.size.map(|size| size.0),
            soft_bytes: said.soft.map(|soft| soft.0),
            files: said.files,
            used_bytes: used.space() * BLOCK,
            used_files: used.inodes,
            mistake: limit.err().cloned(),
        }
    }

    /// What an inode takes, with all that lies below it, and which limits hold for it.
    ///
    /// # Errors
    /// [`Error::Stale`](crate::Error::Stale): there is no such inode.
    pub fn below_report(&self, ino: Ino) -> Result<BelowReport> {
        let is_directory = self.inode(ino)?.kind == FileKind::Directory;
        let used = if is_directory { self.metadata.usage_below(ino) } else { self.metadata.usage_with(ino) };
        let above = self.metadata.line_to_root(ino).map(|(at, _)| at);
        let all = above.filter_map(|at| Some((at, self.metadata.kept_limit(at)?)));
        Ok(BelowReport {
            ino: ino.0,
            path: self.shown_path(ino),
            used_bytes: used.space() * BLOCK,
            used_files: used.inodes,
            limits: all.map(|(at, limit)| self.limit_report(at, limit.as_ref())).collect(),
        })
    }

    /// Directories of which more is used than their soft limit.
    pub(crate) fn over_soft_limits(&self) -> impl Iterator<Item = Ino> {
        let soft = self.metadata.limits().filter_map(|(ino, limit)| Some((ino, limit.as_ref().ok()?.soft?)));
        soft.filter(|&(ino, soft)| self.metadata.usage_below(ino).space() * BLOCK > soft.0)
            .map(|(ino, _)| ino)
    }

    /// What is said of a directory over its soft limit.
    pub(crate) fn shown_usage(&self, ino: Ino) -> String {
        let used = size(self.metadata.usage_below(ino).space() * BLOCK);
        let limit = self.metadata.limit(ino).unwrap_or_default();
        match (limit.soft, limit.size) {
            (Some(soft), Some(most)) => {
                format!("{used} are used, more than {}; {} are the limit", size(soft.0), size(most.0))
            }
            (Some(soft), None) => format!("{used} are used, more than {}", size(soft.0)),
            _ => format!("{used} are used"),
        }
    }

    /// Names the limits that cannot be read, once for each mount: they limit nothing.
    pub(super) fn report_limit_mistakes(&self) {
        for (ino, limit) in self.metadata.limits() {
            if let Err(why) = limit {
                let path = self.shown_path(ino).unwrap_or_default();
                tracing::warn!("{path:?}: its limit is ignored: {why}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::LIMIT_XATTR;
    use crate::record::Record;
    use crate::simulation::{SimVolume, formatted};
    use avfs_io::pool::Pool;
    use units::Bytes;

    /// A limit of a later version, or a damaged one: the volume is mounted, and what cannot be read limits nothing.
    #[test]
    fn a_limit_that_cannot_be_read_is_shown_and_limits_nothing() {
        let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
        let mut volume =
            SimVolume::mount(formatted(Bytes::from_mib(256)), &pool, Default::default(), 1).unwrap();
        let (name, value) = (LIMIT_XATTR.as_bytes().into(), b"size=lots"[..].into());
        let record = Record::SetXattr { ino: Ino::ROOT, name, value };
        volume.with(|core, now| core.transact(now, &[record])).unwrap();
        let disk = volume.unmount().unwrap();
        let mut volume = SimVolume::mount(disk, &pool, Default::default(), 2).unwrap();
        let limits = volume.core().limits();
        assert!(
            matches!(&limits[..], [limit] if limit.mistake.is_some() && limit.size_bytes.is_none()),
            "{limits:?}"
        );
        let (_, handle) = volume.create(Ino::ROOT, b"a").unwrap();
        assert_eq!(volume.write(handle, 0, &[1; 4096]), Ok(4096));
        assert_eq!(volume.core().statistics_at(Ino::ROOT), volume.core().statistics());
    }
}
