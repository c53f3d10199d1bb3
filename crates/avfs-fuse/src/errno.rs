//! The one place where a cause becomes an errno, is counted, and is logged.

use avfs_core::Error;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use units::Ino;

/// How much an operator should care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Severity {
    /// A regular answer: the name is not there, the directory is not empty.
    Answer,
    /// The volume could not do what it is for: full, read-only, out of memory.
    Trouble,
    /// The device or the format is damaged.
    Fault,
}

/// Name in the counters, errno, severity of a cause.
fn describe(error: Error) -> (&'static str, i32, Severity) {
    use Severity::{Answer, Fault, Trouble};
    match error {
        Error::NotFound => ("not_found", libc::ENOENT, Answer),
        Error::Stale => ("stale", libc::ESTALE, Answer),
        Error::Exists => ("exists", libc::EEXIST, Answer),
        Error::NotDirectory => ("not_directory", libc::ENOTDIR, Answer),
        Error::IsDirectory => ("is_directory", libc::EISDIR, Answer),
        Error::NotEmpty => ("not_empty", libc::ENOTEMPTY, Answer),
        Error::NameTooLong => ("name_too_long", libc::ENAMETOOLONG, Answer),
        Error::TooManyLinks => ("too_many_links", libc::EMLINK, Answer),
        Error::NoAttribute => ("no_attribute", libc::ENODATA, Answer),
        Error::AttributeTooLarge => ("attribute_too_large", libc::E2BIG, Answer),
        Error::BufferTooSmall => ("buffer_too_small", libc::ERANGE, Answer),
        Error::FileTooLarge => ("file_too_large", libc::EFBIG, Answer),
        Error::NoSuchOffset => ("no_such_offset", libc::ENXIO, Answer),
        Error::InvalidArgument => ("invalid_argument", libc::EINVAL, Answer),
        Error::NotPermitted => ("not_permitted", libc::EPERM, Answer),
        Error::Unsupported => ("unsupported", libc::EOPNOTSUPP, Answer),
        Error::UnknownIoctl => ("unknown_ioctl", libc::ENOTTY, Answer),
        Error::BadHandle => ("bad_handle", libc::EBADF, Answer),
        Error::Busy => ("busy", libc::EBUSY, Answer),
        Error::UsedElsewhere => ("used_elsewhere", libc::EBUSY, Trouble),
        Error::NoSpace => ("no_space", libc::ENOSPC, Trouble),
        // Samba makes NT_STATUS_DISK_FULL of it, as of ENOSPC (unix_nt_errmap): there is no need to say ENOSPC.
        Error::OverLimit => ("over_limit", libc::EDQUOT, Trouble),
        Error::ReadOnly => ("read_only", libc::EROFS, Trouble),
        Error::OutOfMemory => ("out_of_memory", libc::ENOMEM, Trouble),
        Error::Device => ("device", libc::EIO, Fault),
        Error::Corrupt(_) => ("corrupt", libc::EUCLEAN, Fault),
    }
}

/// The errors that clients were given since mount, by cause.
#[derive(Debug, Default)]
pub struct Errors {
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

impl Errors {
    /// The errno for `error`, after counting and logging it. A cause that repeats is logged at its first, second,
    /// fourth, eighth ... occurrence: a full volume must not fill the log as well.
    pub fn answer(&self, operation: &'static str, ino: Ino, error: Error) -> i32 {
        let (cause, errno, severity) = describe(error);
        let count = {
            let mut counts = self.counts.lock();
            let count = counts.entry(cause).or_default();
            *count += 1;
            *count
        };
        match severity {
            Severity::Answer => tracing::trace!(operation, %ino, cause, "{error}"),
            Severity::Trouble if count.is_power_of_two() => {
                tracing::warn!(operation, %ino, cause, count, "{error}");
            }
            Severity::Fault if count.is_power_of_two() => {
                tracing::error!(operation, %ino, cause, count, "{error}");
            }
            Severity::Trouble | Severity::Fault => {}
        }
        errno
    }

    /// How often each cause was answered; causes that never occurred are absent.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.lock().iter().map(|(&cause, &count)| (cause.to_owned(), count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_counted_separately() {
        let errors = Errors::default();
        assert_eq!(errors.answer("lookup", Ino::ROOT, Error::NotFound), libc::ENOENT);
        assert_eq!(errors.answer("write", Ino(7), Error::NoSpace), libc::ENOSPC);
        assert_eq!(errors.answer("write", Ino(8), Error::NoSpace), libc::ENOSPC);
        let expected = [("no_space".to_owned(), 2), ("not_found".to_owned(), 1)];
        assert_eq!(errors.counts(), expected.into());
    }

    #[test]
    fn corruption_counts_as_one_cause_wherever_it_lies() {
        let errors = Errors::default();
        for offset in [4096, 8192] {
            errors.answer("read", Ino(2), Error::Corrupt(units::DeviceOffset(offset)));
        }
        assert_eq!(errors.counts(), [("corrupt".to_owned(), 2)].into());
    }
}
