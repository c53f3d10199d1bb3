//! Places on the device that several files have: they are not written to.
//!
//! **For:** which pages of a file lie at such a place, and the space that they need to be written elsewhere. **Excludes:** making copies
//! (`core/cloning`), and placing (`core/placing`). **State:** none of its own. **Invariants:** a page that is dirty and lies at a shared place
//! is one of those that go elsewhere ([`displaced`](super::state::file::FileState::displaced)). A place is shared until the record is durable
//! that leaves it to one file: the others have it again after a crash.

use super::state::Core;
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::ranges::RangeSet;
use std::ops::Range;
use units::Ino;

impl Core {
    /// True when every place has one owner.
    fn nothing_is_shared(&self) -> bool {
        self.space.allocator.shares().is_empty() && self.space.leaving.is_empty()
    }

    /// The pages of an extent that lie at shared places.
    pub(super) fn shared_pages_of(&self, extent: &Extent) -> RangeSet {
        let mut pages = RangeSet::default();
        if self.nothing_is_shared() {
            return pages;
        }
        let (shares, leaving) = (self.space.allocator.shares(), self.space.leaving.runs());
        for (run, _) in shares.within(extent.run()).chain(leaving.within(extent.run())) {
            let first = extent.logical + (run.start - extent.start);
            pages.insert(first..first + run.count);
        }
        pages
    }

    /// Those of `pages` that lie at shared places.
    pub(super) fn shared_pages(&self, ino: Ino, pages: Range<u64>) -> RangeSet {
        let mut shared = RangeSet::default();
        if self.nothing_is_shared() {
            return shared;
        }
        let extents = self.metadata.get(ino).and_then(|inode| inode.extents());
        for extent in extents.into_iter().flat_map(|extents| extents.range(pages.start, pages.end)) {
            self.shared_pages_of(&extent).iter().for_each(|pages| shared.insert(pages));
        }
        shared
    }

    /// Claims space for those of `pages` that lie at shared places, before they become dirty.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; nothing is claimed then.
    pub(super) fn claim_elsewhere(&mut self, ino: Ino, pages: Range<u64>) -> Result<()> {
        let shared = self.shared_pages(ino, pages);
        self.displace(ino, &shared)
    }

    /// Claims space for these pages, which have a place: they go elsewhere when they are written.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; nothing is claimed then.
    pub(super) fn displace(&mut self, ino: Ino, pages: &RangeSet) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        let Some(file) = self.data.files.get_mut(&ino) else { return Err(Error::Stale) };
        let mut wanted = RangeSet::default();
        pages.iter().flat_map(|range| file.delayed.gaps(range)).for_each(|gap| wanted.insert(gap));
        self.space.allocator.claim(wanted.total())?;
        let Some(file) = self.data.files.get_mut(&ino) else { return Err(Error::Stale) };
        file.claimed += wanted.total();
        for range in wanted.iter() {
            file.delayed.insert(range.clone());
            file.displaced.insert(range);
        }
        Ok(())
    }

    /// How much space it takes to write those of `pages` that lie at shared places.
    pub(super) fn wanted_elsewhere(&self, ino: Ino, pages: Range<u64>) -> u64 {
        let shared = self.shared_pages(ino, pages);
        let Some(file) = self.data.files.get(&ino) else { return shared.total() };
        shared.iter().flat_map(|range| file.delayed.gaps(range)).map(|gap| gap.end - gap.start).sum()
    }
}
