//! Why an operation did not happen. One variant per cause; the frontend maps causes to errno in one place.

use units::DeviceOffset;

/// Cause of a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No such name.
    #[error("no such file or directory")]
    NotFound,
    /// The inode is gone: its number was kept longer than the inode lived.
    #[error("stale file handle")]
    Stale,
    /// The name is taken.
    #[error("file exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// Anything but a directory was needed.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// A name longer than 255 bytes.
    #[error("file name too long")]
    NameTooLong,
    /// The inode has as many names as the format can count.
    #[error("too many links")]
    TooManyLinks,
    /// No extended attribute of that name.
    #[error("no such attribute")]
    NoAttribute,
    /// The attribute's value is longer than 64 KiB, or its inode's attributes together exceed the limit.
    #[error("attribute value too large")]
    AttributeTooLarge,
    /// The answer does not fit the caller's buffer.
    #[error("buffer too small")]
    BufferTooSmall,
    /// Past the largest file the format can hold.
    #[error("file too large")]
    FileTooLarge,
    /// SEEK_DATA or SEEK_HOLE beyond the end.
    #[error("no data or hole at or after this offset")]
    NoSuchOffset,
    /// The request makes no sense, whatever the state.
    #[error("invalid argument")]
    InvalidArgument,
    /// Not permitted, whoever asks in this mode.
    #[error("operation not permitted")]
    NotPermitted,
    /// The volume is full, or what is left is needed for deletions.
    #[error("no space left on volume")]
    NoSpace,
    /// A directory above has a limit, and no room for it.
    #[error("a directory above has reached its limit")]
    OverLimit,
    /// Mounted read-only, or turned read-only after a device error.
    #[error("read-only volume")]
    ReadOnly,
    /// The device failed.
    #[error("device error")]
    Device,
    /// A checksum or an invariant of the format does not hold.
    #[error("corrupt metadata at {0}")]
    Corrupt(DeviceOffset),
    /// The operation is not one this filesystem has.
    #[error("operation not supported")]
    Unsupported,
    /// An ioctl this filesystem does not know.
    #[error("unknown ioctl")]
    UnknownIoctl,
    /// The handle does not allow it.
    #[error("bad file handle")]
    BadHandle,
    /// Out of buffers or memory for the moment.
    #[error("out of memory")]
    OutOfMemory,
    /// Somebody uses it.
    #[error("device or resource busy")]
    Busy,
    /// Another host has written to the volume since this one read what it knows of it.
    #[error("another host has used the volume since it was mounted here: unmount it, and mount it again")]
    UsedElsewhere,
}

/// What nearly every operation returns.
pub type Result<T> = core::result::Result<T, Error>;
