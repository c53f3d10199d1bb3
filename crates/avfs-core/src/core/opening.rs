//! Opening and closing files.
//!
//! **For:** what is found out of a file when it is opened, and what becomes of it when it is closed. **Excludes:** names. **State:** none of
//! its own.

use super::attributes::check_flags;
use super::names::NewInode;
use super::state::{Core, Handle, ONE_REQUEST};
use super::streams::direction_of;
use crate::error::{Error, Result};
use crate::types::*;
use units::{Ino, Now};

impl Core {
    /// See [`Volume::open`](crate::volume::Volume::open).
    pub fn open(&mut self, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        let inode = self.inode(ino)?;
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::InvalidArgument),
        }
        if flags.contains(OpenFlags::WRITE) {
            self.check_writable()?;
            check_flags(inode, InodeFlags::IMMUTABLE)?;
            if !flags.intersects(OpenFlags::APPENDING | OpenFlags::APPEND) {
                check_flags(inode, InodeFlags::APPEND_ONLY)?;
            }
        }
        self.learn_policy(ino);
        let direction = direction_of(flags);
        let sequence = self.joined_sequence(ino, direction);
        // What no client was told of yet, one that opens the file now is told.
        let lost_seen = self.data.files.get(&ino).map_or(0, |file| file.lost - u64::from(file.lost_unseen));
        let handle = HandleId(self.clients.next_handle);
        self.clients.next_handle += 1;
        let open = Handle { ino, flags, through_pages: false, lost_seen };
        self.clients.handles.insert(handle.0, open);
        self.clients.streams.opened(handle, ino, direction);
        self.change_streams(ino, |core| {
            core.clients.streams.file_mut(ino).set_sequence(direction, sequence);
            core.file_mut(ino).count_client(flags, 1);
        });
        let cache = self.cache_mode(ino, handle);
        let tells_at_close = flags.contains(OpenFlags::WRITE) && self.has_refused();
        Ok(Opened { handle, cache, tells_at_close, admission: self.needed_admission(ino, direction) })
    }

    /// Whether a handle that was just opened goes through the kernel's page cache: as the others of its file do, so that the
    /// kernel itself keeps true what they read, and never has to be told of a write (see doc/decisions/kernel-waits.md). The
    /// first one decides.
    pub(super) fn cache_mode(&mut self, ino: Ino, handle: HandleId) -> CacheMode {
        let Some(flags) = self.clients.handles.get(&handle.0).map(|open| open.flags) else {
            return CacheMode::Direct;
        };
        // What the kernel answers from its pages changes no time of access.
        let each_read_counts = self.options.access_times == AccessTimes::Strict;
        let is_media = self.clients.streams.file(ino).is_some_and(|file| file.is_media());
        let file = self.file_mut(ino);
        let is_first = file.readers + file.writers == 1;
        // What the kernel reads with one request is left to its own pages.
        let is_small = file.size <= ONE_REQUEST && !is_media;
        let only_reads = !each_read_counts && !flags.intersects(OpenFlags::WRITE | OpenFlags::DIRECT);
        if file.through_pages == 0 && !(is_first && is_small && only_reads) {
            file.pages_are_true = false;
            return CacheMode::Direct;
        }
        file.through_pages += 1;
        let keep = file.pages_are_true;
        if let Some(open) = self.clients.handles.get_mut(&handle.0) {
            open.through_pages = true;
        }
        CacheMode::PageCache { keep }
    }

    /// Before a file is opened to be read: what the kernel answers from its pages changes no time of access, so it drops them
    /// where the next read has to.
    pub fn want_reads(&mut self, now: Now, ino: Ino) {
        if self.changes_access_time(now, ino) {
            if let Some(file) = self.data.files.get_mut(&ino) {
                file.pages_are_true = false;
            } else if let Some(file) = self.data.resting.get_mut(&ino) {
                file.pages_are_true = false;
            }
        }
    }

    /// Says which process opened a file. Until then, and if that is [not known](Opener::is_known), it is one that has opened
    /// nothing else.
    pub fn set_opener(&mut self, handle: HandleId, opener: Opener) {
        if let Some(open) = self.clients.streams.client_state_mut(handle).filter(|_| opener.is_known()) {
            open.opener = opener;
        }
    }

    /// Says which process opened a file, and as which user.
    pub fn set_client(&mut self, handle: HandleId, caller: Caller) {
        self.set_opener(handle, Opener::process(caller.process));
        if let Some(client) = self.clients.streams.client_state_mut(handle) {
            client.uid = caller.uid;
        }
    }

    /// Makes and opens a file.
    #[expect(clippy::too_many_arguments, reason = "open(2) with O_CREAT has as many")]
    pub fn create(
        &mut self,
        now: Now,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        permissions: u16,
        umask: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let entry = self.make_node(now, caller, parent, name, FileKind::Regular, permissions, umask, 0)?;
        let opened = self.open(entry.attributes.ino, flags)?;
        self.set_client(opened.handle, caller);
        Ok((entry, opened))
    }

    /// A file without a name, made as if it were to get one in `parent`, and open (O_TMPFILE). It can be given a name as long as it
    /// is in use, and is gone afterwards; also after a loss of power.
    pub fn create_unnamed(
        &mut self,
        now: Now,
        caller: Caller,
        parent: Ino,
        permissions: u16,
        umask: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        self.check_writable()?;
        self.check_metadata_space()?;
        check_flags(self.directory(parent)?, InodeFlags::IMMUTABLE)?;
        let new = NewInode { kind: FileKind::Regular, permissions, umask, target: &[], device: 0 };
        let (ino, records) = self.new_inode(now, caller, parent, &new)?;
        self.transact(now, &records)?;
        self.inodes.unnamed.insert(ino);
        let entry = self.entry(ino)?;
        let opened = self.open(ino, flags)?;
        self.set_client(opened.handle, caller);
        Ok((entry, opened))
    }

    /// See [`release`](Self::release).
    pub(super) fn close(&mut self, now: Now, handle: HandleId) {
        let Ok((ino, flags)) = self.handle(handle) else { return };
        let taken = self.clients.streams.client_state(handle).and_then(|open| open.taken);
        self.change_streams(ino, |core| {
            core.forget_player(ino, handle);
            let open = core.clients.handles.remove(&handle.0);
            core.clients.streams.closed(handle);
            core.clients.streams.file_mut(ino).declarations.retain(|declared| declared.handle != handle);
            let file = core.file_mut(ino);
            file.through_pages -= u32::from(open.is_some_and(|open| open.through_pages));
            file.count_client(flags, -1);
        });
        if flags.contains(OpenFlags::WRITE) {
            self.filled(now, ino);
            if !self.gather_frame(now, ino, taken) {
                self.write_back_at_close(now, ino);
            }
        } else {
            self.close_frame(ino);
        }
        let file = self.file_mut(ino);
        if file.writers == 0 {
            if file.delayed.is_empty() {
                self.release_window(ino);
            }
            self.give_back_reserved(now, ino);
        }
        self.reap(now, ino);
        self.rest(ino);
    }
}
