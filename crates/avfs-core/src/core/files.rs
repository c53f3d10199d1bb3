//! Files in memory, from their first use to their last, and the handles that clients have of them.
//!
//! **For:** making the state of a file, and letting it rest. **Excludes:** what is done with it. **State:** none of its own.

use super::state::Core;
use super::state::expectation::Expectation;
use super::state::file::{FileState, RestingFile};
use super::state::operation::Ticket;
use crate::error::{Error, Result};
use crate::types::*;
use units::Ino;

impl Core {
    pub(super) fn handle(&self, handle: HandleId) -> Result<(Ino, OpenFlags)> {
        self.clients.handles.get(&handle.0).map(|handle| (handle.ino, handle.flags)).ok_or(Error::BadHandle)
    }

    /// The state of a file, made from its inode and what is in memory if there is none.
    pub(super) fn file_mut(&mut self, ino: Ino) -> &mut FileState {
        let (metadata, resting) = (&self.metadata, &mut self.data.resting);
        self.data.files.entry(ino).or_insert_with(|| {
            let size = metadata.get(ino).map_or(0, |inode| inode.size);
            let RestingFile { blocks, pages_are_true } = resting.remove(&ino).unwrap_or_default();
            let expectation = Expectation::new(size);
            Box::new(FileState {
                size,
                append_end: size,
                blocks,
                pages_are_true,
                expectation,
                ..FileState::default()
            })
        })
    }

    /// Lets a file rest if no client uses it.
    pub(super) fn rest(&mut self, ino: Ino) {
        let Some(file) = self.data.files.get(&ino) else { return };
        let recorded = self.metadata.get(ino).is_none_or(|inode| inode.size == file.size);
        if !file.is_unused() || !recorded || self.writeback.files.contains(&ino) {
            return;
        }
        if file.blocks.ids().any(|id| self.data.cache.get(id).is_some_and(|block| !block.is_idle())) {
            return;
        }
        self.clients.streams.forget_file(ino);
        if let Some(file) = self.data.files.remove(&ino) {
            let rest = RestingFile { blocks: file.blocks, pages_are_true: file.pages_are_true };
            if !rest.is_empty() {
                self.data.resting.insert(ino, rest);
            }
        }
        self.release_window(ino);
    }

    pub(super) fn wait_for_file(&mut self, ino: Ino, ticket: Ticket) {
        self.file_mut(ino).waiting.push(ticket);
    }

    /// Holds back new requests of a file for an operation that waits for the file to be quiet.
    pub(super) fn count_exclusive(&mut self, ino: Ino, ticket: Ticket) -> Option<Ino> {
        let file = self.data.files.get_mut(&ino).filter(|file| file.waiting.contains(&ticket))?;
        file.exclusive += 1;
        Some(ino)
    }

    /// An operation does not hold back other requests of its file any more.
    pub(super) fn release_exclusive(&mut self, ino: Option<Ino>) {
        if let Some(file) = ino.and_then(|ino| self.data.files.get_mut(&ino)) {
            file.exclusive -= 1;
        }
    }

    /// What waits for requests of this file to end, if it is in use.
    pub(super) fn take_waiting(&mut self, ino: Ino) -> Option<Vec<Ticket>> {
        self.data.files.get_mut(&ino).map(|file| std::mem::take(&mut file.waiting))
    }
}
