//! A rename or a removal that may have to wait for what takes another file's place.
//!
//! **For:** when it is done. **Excludes:** doing it. **State:** none of its own.

use super::replacing::SAVED_AT_ONCE;
use super::state::Core;
use super::state::operation::{Operation, Progress, Stage, Ticket, Waiting};
use crate::error::{Error, Result};
use units::{Ino, Now};

impl Core {
    /// A rename or a removal: at once, or when no more of what takes another one's place waits for the device than an fsync of
    /// another file may be kept waiting by.
    pub(super) fn try_change_of_names(
        &mut self,
        now: Now,
        ticket: Ticket,
        waiting: &mut Waiting,
    ) -> Option<Result<()>> {
        let replacing = match &waiting.operation {
            Operation::Rename { parent, name, new_parent, new_name, .. } => {
                self.replaces_by_rename(*parent, name, *new_parent, new_name)
            }
            Operation::Unlink { parent, name } => self.replaces_by_removal(*parent, name),
            _ => None,
        };
        if let Some(ino) = replacing.filter(|_| self.status.failure.is_none()) {
            let began = match &waiting.stage {
                Stage::Data { epochs } => epochs.get(&ino).copied(),
                _ => None,
            };
            let epoch = began.or_else(|| self.end_epoch(ino));
            let is_room = !self.log.replacements.is_commit_due()
                && self.log.replacements.bytes() + self.unwritten(ino) <= SAVED_AT_ONCE;
            if !is_room {
                self.write_replacements(now);
            }
            if let Some(epoch) = epoch.filter(|_| !is_room)
                && self.replacing_from(now, ino, epoch).is_some()
            {
                waiting.stage = Stage::Data { epochs: [(ino, epoch)].into() };
                self.wait_to_be_written(ino, ticket);
                return None;
            }
        }
        let result = match &waiting.operation {
            Operation::Rename { caller, parent, name, new_parent, new_name, flags } => {
                self.rename(now, *caller, *parent, name, *new_parent, new_name, *flags)
            }
            Operation::Unlink { parent, name } => self.unlink(now, *parent, name),
            _ => Ok(()),
        };
        match result {
            Err(Error::NoSpace) if std::mem::take(&mut self.space.is_missed) => {
                match self.wait_for_space(now, ticket) {
                    Progress::Ready(result) => Some(result),
                    Progress::Wait => None,
                }
            }
            result => Some(result),
        }
    }

    /// The file that takes another one's place, if one does.
    pub(super) fn replaces_by_rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
    ) -> Option<Ino> {
        let source = self.child(parent, name).ok()?;
        let target = self.child(new_parent, new_name).ok()?;
        (source != target && self.unwritten(source) > 0).then_some(source)
    }

    pub(super) fn replaces_by_removal(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        self.successor(self.child(parent, name).ok()?).filter(|&ino| self.unwritten(ino) > 0)
    }
}
