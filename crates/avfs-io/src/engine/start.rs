//! The engine's clock, and why an engine does not start.

use rustix::time::{ClockId, clock_gettime};
use std::io;
use units::Instant;

/// The clock of the machine since it started, the same for every thread. It counts the time for which the machine was suspended: a
/// lease runs out meanwhile.
pub fn now() -> Instant {
    let time = clock_gettime(ClockId::Boottime);
    // Since boot, so never negative, and in range for 584 years.
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Why an engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The kernel is older than 5.11, or forbids it; the operating system's error number.
    #[error(
        "io_uring is not available (error {0}): it needs Linux 5.11, the sysctl kernel.io_uring_disabled=0, and in \
         a container a seccomp profile that allows it"
    )]
    Unavailable(i32),
    /// Not enough memory may be locked or is there.
    #[error("the kernel has no memory for the ring; raise the limit on locked memory (ulimit -l)")]
    OutOfMemory,
    /// Anything else.
    #[error("the device engine cannot start: {0}")]
    Other(#[source] io::Error),
}

impl StartError {
    pub(super) fn from_io(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno @ (libc::ENOSYS | libc::EPERM | libc::EACCES)) => Self::Unavailable(errno),
            Some(libc::ENOMEM) => Self::OutOfMemory,
            _ => Self::Other(error),
        }
    }
}
