//! What a client asks of files, and what it hears.

/// What a client can ask for. Names are relative to the share, with slashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opens a file; with `write` makes it, or empties it.
    Open {
        /// Its name.
        name: String,
        /// To write.
        write: bool,
    },
    /// Makes a directory, unless it is there.
    MakeDirectory {
        /// Its name.
        name: String,
    },
    /// Reads, and sees whether the content is the file's at this place.
    Read {
        /// As [`Answer::Opened`] told it.
        file: u64,
        /// A multiple of [`content::STAMPED`].
        offset: u64,
        /// Bytes, all of them within the file.
        length: u32,
    },
    /// Writes the content that belongs there.
    Write {
        /// As [`Answer::Opened`] told it.
        file: u64,
        /// A multiple of [`content::STAMPED`].
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// Closes a file.
    Close {
        /// As [`Answer::Opened`] told it.
        file: u64,
    },
}

/// A success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of an open.
    Opened {
        /// The transport's name for it.
        file: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// Of a read: the file ends before the last byte that was asked for.
    Beyond,
    /// Of anything else.
    Done,
}
