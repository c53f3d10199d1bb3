//! What the device was asked for and has not answered, by tag, by file and by place.
//!
//! **For:** finding the requests of one file, and those to one place, without looking at all of them: there may be as many as
//! there are dirty files. **Invariants:** no two requests are to the same blocks at one time, unless both read what two files share.

use super::outbox::Purpose;
use crate::allocator::BlockRun;
use avfs_io::IoTag;
use std::collections::{BTreeMap, BTreeSet};
use units::Ino;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::core) struct InFlight {
    requests: BTreeMap<IoTag, (Purpose, Option<BlockRun>)>,
    of_files: BTreeSet<(Ino, IoTag)>,
    /// By first block.
    places: BTreeMap<(u64, IoTag), BlockRun>,
    /// The longest of these there was, in blocks: none that begins further before a place touches it.
    longest: u64,
}

fn file_of(purpose: &Purpose) -> Option<Ino> {
    match purpose {
        Purpose::Load { ino, .. } | Purpose::Data { ino, .. } => Some(*ino),
        _ => None,
    }
}

impl InFlight {
    pub(in crate::core) fn insert(&mut self, tag: IoTag, purpose: Purpose, run: Option<BlockRun>) {
        self.of_files.extend(file_of(&purpose).map(|ino| (ino, tag)));
        if let Some(run) = run {
            self.longest = self.longest.max(run.count);
            self.places.insert((run.start, tag), run);
        }
        self.requests.insert(tag, (purpose, run));
    }

    pub(in crate::core) fn remove(&mut self, tag: IoTag) -> Option<(Purpose, Option<BlockRun>)> {
        let (purpose, run) = self.requests.remove(&tag)?;
        if let Some(ino) = file_of(&purpose) {
            self.of_files.remove(&(ino, tag));
        }
        if let Some(run) = run {
            self.places.remove(&(run.start, tag));
        }
        Some((purpose, run))
    }

    pub(in crate::core) fn get(&self, tag: IoTag) -> Option<&Purpose> {
        self.requests.get(&tag).map(|(purpose, _)| purpose)
    }

    pub(in crate::core) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Every request: for the audit.
    pub(in crate::core) fn purposes(&self) -> impl Iterator<Item = &Purpose> {
        self.requests.values().map(|(purpose, _)| purpose)
    }

    /// Every request that has a place: for the audit.
    pub(in crate::core) fn placed(&self) -> impl Iterator<Item = (&Purpose, BlockRun)> {
        self.requests.values().filter_map(|(purpose, run)| Some((purpose, (*run)?)))
    }

    /// The requests of one file, the oldest first.
    pub(in crate::core) fn of_file(&self, ino: Ino) -> impl Iterator<Item = IoTag> {
        self.of_files.range((ino, IoTag(0))..=(ino, IoTag(u64::MAX))).map(|&(_, tag)| tag)
    }

    /// The requests of these files, the oldest first.
    pub(in crate::core) fn of_all(&self, files: &BTreeSet<Ino>) -> BTreeSet<IoTag> {
        files.iter().flat_map(|&ino| self.of_file(ino)).collect()
    }

    /// True when a request reads or writes some of these blocks.
    pub(in crate::core) fn touches(&self, run: BlockRun) -> bool {
        let first = run.start.saturating_sub(self.longest);
        let begin_before_its_end = self.places.range((first, IoTag(0))..(run.end(), IoTag(0)));
        begin_before_its_end.into_iter().any(|(_, other)| other.end() > run.start)
    }
}
