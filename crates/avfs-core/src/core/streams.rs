//! The streams of open files: the core's questions to [`avfs_streams`], and its answers.
//!
//! **For:** facts that the crate asks for, and what becomes of the scheduler's answers. **Excludes:** everything that is known of clients.
//! **State:** none of its own.

use super::state::{Core, Data, Sequence, SequenceCursor};
use crate::format::{BLOCK, Superblock};
use crate::metadata::Metadata;
use crate::types::*;
use avfs_streams::sequence::SequenceId;
use avfs_streams::streams::SHORT_PIECE;
use avfs_streams::{Facts, OpenFiles, Ranking, RequestQos};
use rtsched::{Direction, Terms};
use std::ops::Range;
use units::{Bitrate, Bytes, DeviceOffset, Duration, Ino, Now};

impl Core {
    /// Changes something on which the file's streams depend, and tells the scheduler what became of them.
    pub(super) fn change_streams<R>(&mut self, ino: Ino, change: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.clients.streams.before_change(&self.facts(), ino);
        let result = change(self);
        let facts = Known { metadata: &self.metadata, data: &self.data, superblock: &self.superblock };
        self.clients.streams.after_change(&facts, ino, before);
        result
    }

    pub(super) fn facts(&self) -> Known<'_> {
        Known { metadata: &self.metadata, data: &self.data, superblock: &self.superblock }
    }

    /// See [`Streams::ranking`](avfs_streams::Streams::ranking).
    pub(super) fn ranking(&self, ino: Ino, direction: Direction, client: Option<HandleId>) -> Ranking {
        self.clients.streams.ranking(&self.facts(), ino, direction, client)
    }

    /// See [`Streams::need`](avfs_streams::Streams::need).
    pub(super) fn need(&self, now: Now, ino: Ino, handle: HandleId, at: u64, ahead: Bytes) -> RequestQos {
        self.clients.streams.need(&self.facts(), now.monotonic, ino, handle, at, ahead)
    }

    /// See [`Streams::goes_on`](avfs_streams::Streams::goes_on).
    pub(super) fn goes_on(&self, handle: HandleId, offset: u64) -> bool {
        self.clients.streams.goes_on(&self.facts(), handle, offset)
    }

    /// See [`Streams::needed_admission`](avfs_streams::Streams::needed_admission).
    pub(super) fn needed_admission(&self, ino: Ino, direction: Direction) -> Option<WantedStream> {
        let needed = self.clients.streams.needed_admission(&self.facts(), ino, direction);
        needed.map(|(stream, rate)| WantedStream { stream, rate })
    }

    /// See [`Streams::joined_sequence`](avfs_streams::Streams::joined_sequence).
    pub(super) fn joined_sequence(&self, ino: Ino, direction: Direction) -> Option<SequenceId> {
        self.clients.streams.joined_sequence(&self.facts(), ino, direction)
    }

    /// See [`Streams::declare_sequence`](avfs_streams::Streams::declare_sequence).
    pub(super) fn declare_sequence(&mut self, id: SequenceId) {
        let facts = Known { metadata: &self.metadata, data: &self.data, superblock: &self.superblock };
        self.clients.streams.declare_sequence(&facts, id);
    }

    /// See [`Streams::place_in_sequence`](avfs_streams::Streams::place_in_sequence).
    pub(super) fn place_in_sequence(&self, ino: Ino, direction: Direction) -> Option<(SequenceId, u64)> {
        self.clients.streams.place_in_sequence(&self.facts(), ino, direction)
    }

    /// See [`Streams::next_frame`](avfs_streams::Streams::next_frame).
    pub(super) fn next_frame(
        &self,
        sequence: &Sequence,
        head: &SequenceCursor,
        from: u64,
    ) -> Option<(u64, Ino)> {
        self.clients.streams.next_frame(&self.facts(), sequence, head, from)
    }

    /// See [`Streams::note_container`](avfs_streams::Streams::note_container).
    pub(super) fn note_container(&mut self, ino: Ino, period: Option<Duration>, is_frame: bool) {
        let facts = Known { metadata: &self.metadata, data: &self.data, superblock: &self.superblock };
        if self.clients.streams.note_container(&facts, ino, period, is_frame) {
            tracing::info!(%ino, ?period, "a file of a numbered sequence says how long it is shown");
        }
    }

    /// See [`Streams::is_refused`](avfs_streams::Streams::is_refused).
    pub(super) fn is_refused(&self, ino: Ino, direction: Direction) -> bool {
        self.clients.streams.is_refused(&self.facts(), ino, direction)
    }

    /// The rate of [`Streams::wanted_stream`](avfs_streams::Streams::wanted_stream).
    pub(super) fn wanted_rate(&self, ino: Ino, direction: Direction) -> Option<Bitrate> {
        let wanted = self.clients.streams.wanted_stream(&self.facts(), ino, direction);
        wanted.map(|(spec, _)| spec.rate)
    }

    /// See [`Streams::terms`](avfs_streams::Streams::terms).
    pub(super) fn terms(&self, ino: Ino, direction: Direction) -> Option<Terms> {
        self.clients.streams.terms(ino, direction)
    }
}

/// What streams depend on, as far as it is in memory.
pub(super) struct Known<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) data: &'a Data,
    pub(super) superblock: &'a Superblock,
}

impl Facts for Known<'_> {
    fn is_used(&self, ino: Ino) -> bool {
        self.data.files.contains_key(&ino)
    }

    fn size_of(&self, ino: Ino) -> u64 {
        self.data.files.get(&ino).map_or(0, |file| file.size)
    }

    fn open_files(&self, ino: Ino) -> OpenFiles {
        let file = self.data.files.get(&ino);
        file.map_or(OpenFiles::default(), |file| OpenFiles { readers: file.readers, writers: file.writers })
    }

    fn place_of(&self, ino: Ino) -> Option<DeviceOffset> {
        let extents = self.metadata.get(ino)?.extents()?;
        let last = extents.iter().map(|extent| extent.start + extent.count).max()?;
        Some(self.superblock.geometry.block_address(last))
    }

    fn pieces_of(&self, ino: Ino, each: &mut dyn FnMut(Range<u64>)) {
        let extents = self.metadata.get(ino).and_then(|inode| inode.extents());
        for extent in extents.into_iter().flat_map(|extents| extents.iter()) {
            each(extent.start * BLOCK..(extent.start + extent.count) * BLOCK);
        }
    }

    fn piece_end(&self, ino: Ino, from: u64, size: u64) -> u64 {
        let from = from / BLOCK * BLOCK;
        let extents = self.metadata.get(ino).and_then(|inode| inode.extents());
        let mut behind = None;
        for extent in extents.into_iter().flat_map(|all| all.range(from / BLOCK, size.div_ceil(BLOCK))) {
            let start = extent.logical * BLOCK;
            let is_elsewhere = behind.is_some_and(|behind| behind != extent.start);
            if is_elsewhere && start >= from + SHORT_PIECE {
                return start;
            }
            behind = Some(extent.start + extent.count);
        }
        size.next_multiple_of(BLOCK)
    }

    fn name_of(&self, ino: Ino) -> Option<(Ino, &[u8])> {
        let name = self.metadata.get(ino)?.names.first()?;
        Some((name.parent, &name.name))
    }

    fn file_named(&self, directory: Ino, name: &[u8]) -> Option<Option<Ino>> {
        let ino = self.metadata.child(self.metadata.get(directory)?, directory, name)?;
        let is_file = self.metadata.get(ino).is_some_and(|inode| inode.kind == FileKind::Regular);
        Some(is_file.then_some(ino))
    }
}

/// A process may write records; what such a client reads is not what it plays.
pub(super) fn direction_of(flags: OpenFlags) -> Direction {
    if flags.contains(OpenFlags::WRITE) { Direction::Write } else { Direction::Read }
}
