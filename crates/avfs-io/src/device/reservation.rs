//! Persistent reservations: the device itself refuses the writes of hosts that are not registered with it.
//!
//! **For:** a seam that a simulated device can stand behind, and the block layer's ioctls (linux/pr.h), which mean the same for
//! SCSI and NVMe. **Excludes:** when to reserve and which host to preempt.
//!
//! The type is "write exclusive, registrants only": each path of the holder is registered with the same key, and a host that
//! waits for the volume may read it.

use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;

/// Why a device does not do as it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationError {
    /// It has no reservations.
    #[error("the device has no persistent reservations")]
    Unsupported,
    /// Another registrant has it, or the key is not registered.
    #[error("the device is reserved by another host")]
    Conflict,
    /// Anything else; the operating system's error number, or the device's status.
    #[error("the device refuses a reservation ({0})")]
    Refused(i32),
}

/// What a device can be asked.
pub trait Reservations {
    /// Registers this path with `key`, in the place of what it was registered with.
    ///
    /// # Errors
    /// [`ReservationError::Unsupported`] where there are none.
    fn register(&self, key: u64) -> Result<(), ReservationError>;

    /// Reserves the device for registrants.
    ///
    /// # Errors
    /// [`ReservationError::Conflict`] while others have it.
    fn reserve(&self, key: u64) -> Result<(), ReservationError>;

    /// Takes away the registration and reservation of `other`, and ends its commands.
    ///
    /// # Errors
    /// [`ReservationError::Conflict`] where `other` is not registered.
    fn preempt(&self, key: u64, other: u64) -> Result<(), ReservationError>;

    /// Takes away everything, also one's own.
    ///
    /// # Errors
    /// When `key` is not registered.
    fn clear(&self, key: u64) -> Result<(), ReservationError>;

    /// Gives the reservation back and registers no more.
    ///
    /// # Errors
    /// When `key` is not registered.
    fn release(&self, key: u64) -> Result<(), ReservationError>;
}

/// `PR_WRITE_EXCLUSIVE_REG_ONLY`, `PR_FL_IGNORE_KEY` and `PR_STS_RESERVATION_CONFLICT` of linux/pr.h.
const REGISTRANTS_WRITE: u32 = 3;
const IGNORE_KEY: u32 = 1;
const STATUS_CONFLICT: libc::c_int = 0x18;

#[repr(C)]
struct Registration {
    old_key: u64,
    new_key: u64,
    flags: u32,
    padding: u32,
}

#[repr(C)]
struct Reservation {
    key: u64,
    kind: u32,
    flags: u32,
}

#[repr(C)]
struct Preemption {
    old_key: u64,
    new_key: u64,
    kind: u32,
    flags: u32,
}

#[repr(C)]
struct Clearance {
    key: u64,
    flags: u32,
    padding: u32,
}

const REGISTER: libc::Ioctl = libc::_IOW::<Registration>(b'p' as u32, 200);
const RESERVE: libc::Ioctl = libc::_IOW::<Reservation>(b'p' as u32, 201);
const RELEASE: libc::Ioctl = libc::_IOW::<Reservation>(b'p' as u32, 202);
const PREEMPT_ABORT: libc::Ioctl = libc::_IOW::<Preemption>(b'p' as u32, 204);
const CLEAR: libc::Ioctl = libc::_IOW::<Clearance>(b'p' as u32, 205);

/// Those of a block device.
#[derive(Debug)]
pub(super) struct BlockReservations<'a>(pub(super) &'a File);

impl BlockReservations<'_> {
    fn ask<T>(&self, request: libc::Ioctl, argument: &T) -> Result<(), ReservationError> {
        // SAFETY: the descriptor is open; the kernel reads one `T`, whose size is part of `request`.
        let status = unsafe { libc::ioctl(self.0.as_raw_fd(), request, std::ptr::from_ref(argument)) };
        match status {
            0 => Ok(()),
            STATUS_CONFLICT => Err(ReservationError::Conflict),
            -1 => match Errno::from_io_error(&std::io::Error::last_os_error()) {
                // No block device; one whose driver has none; a partition.
                Some(Errno::NOTTY | Errno::OPNOTSUPP | Errno::PERM) => Err(ReservationError::Unsupported),
                Some(errno) => Err(ReservationError::Refused(errno.raw_os_error())),
                None => Err(ReservationError::Refused(libc::EIO)),
            },
            status => Err(ReservationError::Refused(status)),
        }
    }
}

impl Reservations for BlockReservations<'_> {
    fn register(&self, key: u64) -> Result<(), ReservationError> {
        let registration = Registration { old_key: 0, new_key: key, flags: IGNORE_KEY, padding: 0 };
        match self.ask(REGISTER, &registration) {
            // Disks that know no reservations say so in as many ways as there are disks.
            Err(ReservationError::Refused(_)) => Err(ReservationError::Unsupported),
            answer => answer,
        }
    }

    fn reserve(&self, key: u64) -> Result<(), ReservationError> {
        self.ask(RESERVE, &Reservation { key, kind: REGISTRANTS_WRITE, flags: 0 })
    }

    fn preempt(&self, key: u64, other: u64) -> Result<(), ReservationError> {
        let preemption = Preemption { old_key: other, new_key: key, kind: REGISTRANTS_WRITE, flags: 0 };
        self.ask(PREEMPT_ABORT, &preemption)
    }

    fn clear(&self, key: u64) -> Result<(), ReservationError> {
        self.ask(CLEAR, &Clearance { key, flags: 0, padding: 0 })
    }

    fn release(&self, key: u64) -> Result<(), ReservationError> {
        self.ask(RELEASE, &Reservation { key, kind: REGISTRANTS_WRITE, flags: 0 })?;
        self.ask(REGISTER, &Registration { old_key: key, new_key: 0, flags: 0, padding: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most devices have none: then nothing changes for the caller.
    #[test]
    fn what_has_no_reservations_says_so() {
        let file = tempfile::tempfile().unwrap();
        let reservations = BlockReservations(&file);
        assert_eq!(reservations.register(7), Err(ReservationError::Unsupported));
        assert_eq!(reservations.reserve(7), Err(ReservationError::Unsupported));
        assert_eq!(reservations.preempt(7, 8), Err(ReservationError::Unsupported));
        assert_eq!(reservations.clear(7), Err(ReservationError::Unsupported));
        assert_eq!(reservations.release(7), Err(ReservationError::Unsupported));
    }

    /// As linux/pr.h has them.
    #[test]
    fn the_kernel_knows_the_requests_by_these_numbers() {
        let numbers = [REGISTER, RESERVE, RELEASE, PREEMPT_ABORT, CLEAR].map(|number| number as u32);
        assert_eq!(numbers, [0x4018_70c8, 0x4010_70c9, 0x4010_70ca, 0x4018_70cc, 0x4010_70cd]);
    }
}
