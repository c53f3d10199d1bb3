//! A mounted volume as its frontends see it: every method may be called from any thread.
//!
//! Methods that need no device answer inline. [`Volume::read`], [`Volume::write`] and [`Volume::fsync`] may need
//! it: they take a continuation, call it at once where they can, and otherwise from a completion thread; they
//! never block the caller on the device.

use crate::error::Result;
use crate::types::*;
use std::sync::Arc;
use units::Ino;

/// Called exactly once with the outcome.
pub type Done<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// Cached pages of the kernel that are no longer true; the frontend passes it on.
pub trait Invalidator: Send + Sync + 'static {
    /// The kernel must forget its pages of `ino` in `offset..offset + length`, then `done` is called. Must not
    /// block: it is called from the thread of the write that made the pages stale.
    fn invalidate(&self, ino: Ino, offset: u64, length: u64, done: Box<dyn FnOnce() + Send>);
}

/// A mounted volume.
pub struct Volume {}

#[allow(unused_variables, missing_docs)]
impl Volume {
    pub fn set_invalidator(&self, invalidator: Arc<dyn Invalidator>) {
        todo!()
    }

    // Names. Each that returns an Entry counts one lookup reference on the inode, given back by `forget`.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        todo!()
    }
    pub fn forget(&self, ino: Ino, count: u64) {
        todo!()
    }
    /// kind: anything but Directory and Symlink. `permissions` as asked; `umask` applies unless a default ACL does.
    pub fn make_node(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        permissions: u16,
        umask: u16,
        rdev: u32,
    ) -> Result<Entry> {
        todo!()
    }
    pub fn make_directory(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        permissions: u16,
        umask: u16,
    ) -> Result<Entry> {
        todo!()
    }
    pub fn make_symlink(&self, caller: Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        todo!()
    }
    pub fn create(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        permissions: u16,
        umask: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        todo!()
    }
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        todo!()
    }
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        todo!()
    }
    pub fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<()> {
        todo!()
    }
    pub fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        todo!()
    }
    pub fn read_link(&self, ino: Ino) -> Result<Box<[u8]>> {
        todo!()
    }

    pub fn attributes(&self, ino: Ino) -> Result<Attributes> {
        todo!()
    }
    /// `drop_privileges`: the caller may not keep setuid/setgid (no CAP_FSETID). A size change may wait for the device.
    pub fn set_attributes(&self, caller: Caller, ino: Ino, changes: SetAttributes, done: Done<Attributes>) {
        todo!()
    }

    pub fn open(&self, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        todo!()
    }
    pub fn release(&self, handle: HandleId) {
        todo!()
    }
    pub fn read(&self, handle: HandleId, offset: u64, length: usize, done: Done<ReadData>) {
        todo!()
    }
    /// Copies `data` before it returns. `from_page_cache`: the kernel writes back its own pages (mapped files).
    pub fn write(
        &self,
        handle: HandleId,
        offset: u64,
        data: &[u8],
        drop_privileges: bool,
        done: Done<usize>,
    ) {
        todo!()
    }
    /// Called at close(2): nothing is lost if it does nothing, errors of earlier writeback are reported here.
    pub fn flush(&self, handle: HandleId, done: Done<()>) {
        todo!()
    }
    pub fn fsync(&self, ino: Ino, data_only: bool, done: Done<()>) {
        todo!()
    }
    /// Everything accepted so far, of the whole volume, becomes durable.
    pub fn sync(&self, done: Done<()>) {
        todo!()
    }
    pub fn allocate(&self, handle: HandleId, offset: u64, length: u64, mode: AllocateMode, done: Done<()>) {
        todo!()
    }
    pub fn seek(&self, handle: HandleId, offset: u64, seek: Seek) -> Result<u64> {
        todo!()
    }
    pub fn copy_range(
        &self,
        from: HandleId,
        from_offset: u64,
        to: HandleId,
        to_offset: u64,
        length: u64,
        done: Done<usize>,
    ) {
        todo!()
    }

    pub fn open_directory(&self, ino: Ino) -> Result<HandleId> {
        todo!()
    }
    pub fn release_directory(&self, handle: HandleId) {
        todo!()
    }
    /// Calls `each` for the entries after `cookie` (0: from the start) until it returns false. With `plus` the
    /// entries carry attributes and each accepted one except `.` and `..` counts a lookup reference.
    pub fn read_directory(
        &self,
        ino: Ino,
        cookie: u64,
        plus: bool,
        each: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<()> {
        todo!()
    }

    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        todo!()
    }
    pub fn get_xattr(&self, ino: Ino, name: &[u8]) -> Result<Box<[u8]>> {
        todo!()
    }
    /// NUL-terminated names, one after the other.
    pub fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        todo!()
    }
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        todo!()
    }

    pub fn statistics(&self) -> VolumeStatistics {
        todo!()
    }
    pub fn extents(&self, ino: Ino) -> Result<Vec<ExtentReport>> {
        todo!()
    }
    pub fn report(&self) -> VolumeReport {
        todo!()
    }
    /// Waits for everything dirty when turning read-only. Refused after a device error.
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        todo!()
    }
    /// Writes everything, checkpoints, marks the volume clean and stops the engine. The last call.
    pub fn shutdown(&self) -> Result<()> {
        todo!()
    }
}
