//! What a promise, or its end, changes for players; what applications declare.
//!
//! **For:** answers of the admission, and declarations. **Excludes:** reading ahead itself. **State:** none of its own.

use super::state::Core;
use super::streams::direction_of;
use crate::config::quantity::{is_bitrate, is_deadline_window};
use crate::error::{Error, Result};
use crate::policy::{ADMINISTRATOR, account_of_user};
use crate::types::{Declaration, *};
use avfs_io::Promise;
use avfs_streams::file::Declared;
use avfs_streams::streams::{StreamKey, stream_of};
use rtsched::{Direction, StreamId};
use smallvec::SmallVec;
use units::{Duration, Now};

impl Core {
    /// A stream is promised something else than before, or nothing: its players have as much read ahead from now on.
    pub fn promised(&mut self, now: Now, promise: Promise) {
        let was_undecided = self.clients.streams.decided(promise.stream);
        let (ino, direction) = match StreamKey::of(promise.stream) {
            StreamKey::File(ino, direction) => (ino, direction),
            StreamKey::Sequence(id) => {
                if let Some(sequence) = self.clients.streams.sequences.get_mut(id) {
                    sequence.terms = promise.terms.filter(|_| sequence.declared.is_some());
                }
                if was_undecided {
                    self.read_sequence_ahead(now, id);
                    self.pump(now);
                }
                return;
            }
            StreamKey::Opener(_) => return,
        };
        if self.clients.streams.file(ino).is_none() {
            return;
        }
        let file = self.clients.streams.file_mut(ino);
        let is_first = file.terms(direction).is_none() && promise.terms.is_some();
        file.set_terms(direction, promise.terms);
        if direction == Direction::Read && (was_undecided || promise.terms.is_some()) {
            for handle in file.players().collect::<SmallVec<[_; 1]>>() {
                if is_first {
                    // What it was read ahead of without a stream is its stream's from now on.
                    self.expedite_ahead(now, ino, handle);
                }
                self.read_ahead(now, ino, handle);
            }
            self.pump(now);
        }
    }

    /// An application says how it reads or writes a file that it has open, in place of what it said before; nothing, if the
    /// declaration is empty. Gives back the stream that it is part of from then on: all players of the file, or all its recorders.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a rate or a period out of range. [`Error::NotPermitted`]: the policy wants the file to
    /// give way. [`Error::BadHandle`].
    pub fn declare(&mut self, handle: HandleId, declaration: Declaration) -> Result<StreamId> {
        self.declare_for(ADMINISTRATOR, handle, declaration)
    }

    /// The same in the name of a user, whose share of the device holds for what is declared beyond the file's policy.
    ///
    /// # Errors
    /// Those of [`Core::declare`].
    pub fn declare_for(&mut self, uid: u32, handle: HandleId, declaration: Declaration) -> Result<StreamId> {
        let (ino, flags) = self.handle(handle)?;
        let in_range =
            declaration.rate.is_none_or(is_bitrate) && declaration.period.is_none_or(is_deadline_window);
        if !in_range {
            return Err(Error::InvalidArgument);
        }
        let direction = direction_of(flags);
        let account = account_of_user(uid);
        let is_empty = declaration == Declaration::default();
        if !is_empty && self.clients.streams.policy(ino).forbids_streams() {
            return Err(Error::NotPermitted);
        }
        self.change_streams(ino, |core| {
            let declarations = &mut core.clients.streams.file_mut(ino).declarations;
            declarations.retain(|declared| declared.handle != handle);
            if !is_empty {
                declarations.push(Declared { handle, direction, declaration, account });
            }
        });
        Ok(stream_of(ino, direction))
    }

    /// The stream that a client is part of, should it be one.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn stream_of_handle(&self, handle: HandleId) -> Result<StreamId> {
        self.handle(handle)
            .map(|(ino, flags)| self.clients.streams.stream_of_client(ino, direction_of(flags)))
    }

    /// The next read through this handle must be complete so long after now: 1 ms to 60 s.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a time out of range. [`Error::NotPermitted`]: the policy wants the file to give way.
    /// [`Error::BadHandle`], also when it is not open for reading.
    pub fn set_read_deadline(&mut self, now: Now, handle: HandleId, within: Duration) -> Result<()> {
        let (ino, flags) = self.handle(handle)?;
        if !flags.contains(OpenFlags::READ) {
            return Err(Error::BadHandle);
        }
        if !is_deadline_window(within) {
            return Err(Error::InvalidArgument);
        }
        if self.clients.streams.policy(ino).forbids_streams() {
            return Err(Error::NotPermitted);
        }
        let open = self.clients.streams.client_state_mut(handle).ok_or(Error::BadHandle)?;
        open.read_deadline = Some(now.monotonic + within);
        Ok(())
    }
}
