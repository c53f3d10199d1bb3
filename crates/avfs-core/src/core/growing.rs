//! A device that has grown: the volume takes what was added.
//!
//! **For:** the new layout, from the wish for it to space that can be used. **Excludes:** writing it (`core/checkpoint.rs`). **State:** none
//! of its own. **Invariants:** space is used only when both slots tell of it.

use super::state::Core;
use super::state::checkpoints::Grown;
use crate::error::{Error, Result};
use crate::format::BLOCK;
use units::Bytes;

impl Core {
    /// The device has `device` bytes now, and its partition tables count in units of `table_sector`: the volume takes what was added, with
    /// the next checkpoint.
    ///
    /// # Errors
    /// `InvalidArgument` where that is not even a unit more.
    pub fn take_grown_device(&mut self, device: Bytes, table_sector: Bytes) -> Result<()> {
        self.check_writable()?;
        let device = Bytes(device.0 / BLOCK * BLOCK);
        let geometry = self.superblock.geometry.grown(device).ok_or(Error::InvalidArgument)?;
        self.checkpoints.grown = Some(Grown { geometry, table_sector });
        Ok(())
    }

    /// Both slots tell of the layout that the superblock has: all of it can be used.
    pub(super) fn use_added_space(&mut self) {
        self.space.allocator.grow(self.superblock.geometry.units);
    }
}
