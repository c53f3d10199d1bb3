//! Recorded frames: those that are neighbours are written together, one behind the other.
//!
//! **For:** what a writer has closed and is a frame. **Excludes:** recognition, and where a frame goes (`placing`). **State:** none of its
//! own.

use super::placing::owner_of;
use super::state::Core;
use super::state::file::FileState;
use crate::allocator::Owner;
use avfs_io::pool::MAX_BUFFER;
use avfs_streams::consumed::ConsumedFraction;
use avfs_streams::events::LONGEST_RECORDED;
use avfs_streams::frames::FrameTaken;
use avfs_streams::sequence::SequenceId;
use rtsched::Direction;
use units::{Ino, Instant, Now};

/// So much of recorded frames is gathered before it is written, where nothing is promised. It bounds memory. An operator's target.
const GATHERED: u64 = MAX_BUFFER as u64;

impl Core {
    /// A writer has closed a file, of which it has `given` so much. True: it is a frame, and is written together with its neighbours.
    pub(super) fn gather_frame(&mut self, now: Now, ino: Ino, given: Option<ConsumedFraction>) -> bool {
        let Some(file) = self.data.files.get(&ino) else { return false };
        let (size, is_last) = (file.size, file.writers == 0);
        let is_frame =
            size <= LONGEST_RECORDED && given.is_some_and(|given| given.is_frame(now.monotonic, size));
        if !is_last || !is_frame {
            return false;
        }
        let Some(FrameTaken { id, first, .. }) = self.take_frame(now, ino, size, true) else { return false };
        self.change_streams(ino, |core| {
            core.clients.streams.file_mut(ino).set_sequence(Direction::Write, Some(id))
        });
        if let Some(first) = first {
            self.go_on_behind(id, first);
        }
        let longest = self.data.cache.capacity() / 8;
        self.gather(id, ino, size);
        let Some(sequence) = self.clients.streams.sequences.get(id) else { return false };
        // A recorder that was promised long requests has memory of its own for that: a copy that fills the rest does not make them
        // short.
        let is_overfull = self.is_overfull(sequence.terms.is_some());
        let waiting = self.clients.recorded.get(&id).into_iter().flat_map(|recorded| &recorded.gathered);
        let gathered: u64 = waiting.map(|(.., length)| length).sum();
        let wanted = sequence.terms.map_or(GATHERED, |terms| terms.request.0).min(longest);
        if gathered >= wanted || is_overfull {
            self.write_gathered(now, id);
        }
        true
    }

    pub(super) fn gather(&mut self, id: SequenceId, ino: Ino, size: u64) {
        if let Some((_, number)) = self.place_in_sequence(ino, Direction::Write)
            && let Some(recorded) = self.recorded(id)
        {
            recorded.gathered.push((number, ino, size));
        }
    }

    /// The first frame of a sequence was recorded before there was one: it goes with the others, or the others behind it.
    pub(super) fn go_on_behind(&mut self, id: SequenceId, first: Ino) {
        let waits = |file: &FileState| file.claimed > 0 && file.writers == 0;
        if let Some(file) = self.data.files.get_mut(&first).filter(|file| waits(file)) {
            let size = file.size;
            self.clients.streams.file_mut(first).set_sequence(Direction::Write, Some(id));
            return self.gather(id, first, size);
        }
        let Some(extents) = self.metadata.get(first).and_then(|inode| inode.extents()) else { return };
        let recorded = extents.iter().last().map(|extent| extent.start + extent.count);
        let file = self.data.files.get(&first);
        let placed = file.and_then(|file| file.last_placed).map(|(_, block)| block).or(recorded);
        if file.is_none_or(|file| file.writers == 0) {
            self.space.allocator.release_window(Owner(first.0));
        }
        if let Some(recorded) = self.recorded(id) {
            recorded.placed = placed;
        }
    }

    pub(super) fn write_gathered(&mut self, now: Now, id: SequenceId) {
        let Some(recorded) = self.recorded(id) else { return };
        let mut gathered = std::mem::take(&mut recorded.gathered);
        gathered.sort_unstable();
        for (_, ino, _) in gathered {
            let has_name = self.metadata.get(ino).is_some_and(|inode| !inode.names.is_empty());
            if has_name {
                self.write_back_all(now, ino);
            }
        }
    }

    /// Ends what no recorder has gone on with for some time: its memory and its reservation are others'.
    pub(super) fn stop_idle_sequences(&mut self, now: Now) {
        if now.monotonic < self.clients.streams.next_stop {
            return;
        }
        for (id, frames) in self.clients.streams.sequences.take_idle(now.monotonic) {
            self.give_up_frames(frames);
            self.write_gathered(now, id);
            self.declare_sequence(id);
            let is_over =
                self.clients.streams.sequences.get(id).is_none_or(|sequence| sequence.heads.is_empty());
            if is_over {
                self.space.allocator.release_window(owner_of(id));
            }
        }
        self.clients.streams.next_stop = self.clients.streams.sequences.next_idle();
    }

    /// When a client of a sequence will have stopped, or will have asked for what it begins with.
    pub(super) fn sequences_due(&self) -> Instant {
        self.clients.streams.next_stop.min(self.clients.streams.next_ahead)
    }
}
