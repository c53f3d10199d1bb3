//! Faults on purpose: what a wrong filesystem would do, done to the right side, so that the comparison can be seen to
//! find it.

use crate::tree::{Kind, Tree};
use clap::ValueEnum;
use rustix::fs::{Mode, XattrFlags};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// One way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// One byte of a file is another.
    Byte,
    /// A file has lost its last byte.
    Size,
    /// Permissions changed.
    Mode,
    /// An extended attribute came from nowhere.
    Xattr,
    /// A name is missing.
    Name,
}

impl Fault {
    /// Damages something in the tree below `root`; false if there is nothing that it could damage.
    ///
    /// # Panics
    /// If the damage cannot be done.
    pub(crate) fn inject(self, root: &Path, tree: &Tree) -> bool {
        let longest = tree
            .entries()
            .filter(|(_, entry)| entry.kind == Kind::File && entry.size > 0)
            .max_by_key(|(_, entry)| entry.size);
        let Some((path, entry)) = longest else { return false };
        let path = root.join(path);
        match self {
            Self::Byte => {
                let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, entry.size / 2).unwrap();
                file.write_all_at(&[byte[0] ^ 1], entry.size / 2).unwrap();
            }
            Self::Size => {
                OpenOptions::new().write(true).open(&path).unwrap().set_len(entry.size - 1).unwrap()
            }
            Self::Mode => rustix::fs::chmod(&path, Mode::from_raw_mode(entry.mode ^ 0o001)).unwrap(),
            Self::Xattr => rustix::fs::setxattr(&path, "user.fault", b"", XattrFlags::empty()).unwrap(),
            Self::Name => fs::remove_file(&path).unwrap(),
        }
        true
    }
}
