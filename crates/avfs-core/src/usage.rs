//! How much space and how many files something takes.
//!
//! **For:** sums. **Excludes:** whose they are (`metadata/sums.rs`). **State:** none.

/// Space and files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks on the device, as the records have it.
    pub blocks: u64,
    /// Blocks that are promised to bytes in memory, beyond these.
    pub promised: u64,
    /// Inodes.
    pub inodes: u64,
}

impl Usage {
    /// One inode without space.
    pub(crate) const INODE: Self = Self { blocks: 0, promised: 0, inodes: 1 };

    /// Blocks on the device and promised ones.
    pub fn space(&self) -> u64 {
        self.blocks + self.promised
    }

    /// Both.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.saturating_add(other.blocks),
            promised: self.promised.saturating_add(other.promised),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }

    /// The rest. Where directories of a damaged volume stand in one another, what goes may never have come.
    pub(crate) fn without(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.saturating_sub(other.blocks),
            promised: self.promised.saturating_sub(other.promised),
            inodes: self.inodes.saturating_sub(other.inodes),
        }
    }
}
