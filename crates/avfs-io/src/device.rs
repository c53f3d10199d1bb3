//! The device, spoken to directly: what mkfs, fsck and recovery use while no engine runs.
//!
//! **For:** positioned reads and writes of whole logical blocks, and what the device says of itself. **Excludes:**
//! scheduling and concurrency; a mounted volume goes through the [`engine`](crate::engine). **State:** the open file
//! with its locks. **Invariants:** a device opened [`OpenMode::Exclusive`] has no other exclusive opener, in this
//! process or another; nothing is written past [`Device::size`], so an image file never grows.

mod ioctl;
mod reservation;
mod sysfs;

pub use sysfs::Geometry;

pub use reservation::{ReservationError, Reservations};

use crate::request::{ALIGNMENT, IoError};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, OFlags, StatxFlags};
use rustix::io::Errno;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use units::{Bytes, DeviceOffset};

/// Memory that the caller did not align is passed through a buffer of this size, in bytes.
const BOUNCE: usize = 1 << 20;

/// Names the lock of flock(2) that an opener has, for the kernel that gave it; two names of one device that each have a lock of their
/// own differ. None, all zeros, for a device that is not locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockId {
    /// Device number of the filesystem that the device node, or the image file, lies on.
    pub device: u64,
    /// Of the node, or of the image file.
    pub inode: u64,
}

impl LockId {
    /// Whether there is one.
    pub fn is_some(self) -> bool {
        self != Self::default()
    }
}

/// Synchronous access to a device.
pub trait Device: Send + Sync {
    /// Usable bytes, a multiple of the logical block, as they were when it was opened or last [measured](Self::measure).
    fn size(&self) -> Bytes;

    /// Looks again how large the device is: it may have grown. Of one that has shrunk the size stays, and what is behind its end fails.
    ///
    /// # Errors
    /// When the device does not say.
    fn measure(&self) -> Result<Bytes, IoError> {
        Ok(self.size())
    }

    /// What the device says of itself.
    fn geometry(&self) -> Geometry;

    /// Fills `into` from `offset`. Offset and length are multiples of the logical block; the memory may lie anywhere.
    ///
    /// # Errors
    /// [`IoError::PastEnd`] when the range ends behind the device, [`IoError::Device`] for everything else, with
    /// EINVAL for a misaligned range.
    fn read_at(&self, offset: DeviceOffset, into: &mut [u8]) -> Result<(), IoError>;

    /// Writes `from` at `offset`; durable after the next [`flush`](Self::flush). Alignment and errors are those of
    /// [`read_at`](Self::read_at).
    ///
    /// # Errors
    /// See [`read_at`](Self::read_at). After an error any part may have been written.
    fn write_at(&self, offset: DeviceOffset, from: &[u8]) -> Result<(), IoError>;

    /// Makes every write that has returned durable.
    ///
    /// # Errors
    /// When the device lost some of them; which ones is not known.
    fn flush(&self) -> Result<(), IoError>;

    /// The range is of no interest any more; what it holds afterwards is unspecified. A device that cannot discard
    /// does nothing.
    ///
    /// # Errors
    /// When the device tried and failed, or the range does not lie on it.
    fn discard(&self, offset: DeviceOffset, length: Bytes) -> Result<(), IoError>;

    /// The lock that this opener has on the device. An earlier holder of the same one has closed it: nothing of what it asked for
    /// is still on its way.
    fn lock_id(&self) -> LockId {
        LockId::default()
    }

    /// The unit in which a partition table of this device counts.
    fn table_sector(&self) -> Bytes {
        self.geometry().logical_block
    }

    /// Persistent reservations, where there may be some.
    fn reservations(&self) -> Option<Box<dyn Reservations + '_>> {
        None
    }
}

/// What the device is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Looking at it, also while another process writes to it.
    ReadOnly,
    /// Reading and writing, with every other process that asks for the same kept out.
    Exclusive,
    /// Reading and writing a block device that the kernel holds for a filesystem of the caller: it keeps all others out, and would
    /// refuse the caller, too. Of an image file the same as [`Self::Exclusive`].
    Held,
}

/// Why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nothing has this name.
    #[error("{0}: no such device or image file; check the path")]
    NotFound(PathBuf),
    /// Mounted, part of a RAID or of a volume group, or opened by another program of this kind.
    #[error("{0}: in use; unmount it, or stop the program that has it open")]
    InUse(PathBuf),
    /// A directory, a character device, a socket or a pipe.
    #[error("{0}: neither a block device nor an image file; name one of those")]
    NotADevice(PathBuf),
    /// The system says no.
    #[error("{0}: permission denied; run as root, or as a member of the device's group")]
    Permission(PathBuf),
    /// The device, or the filesystem that holds the image, cannot be written.
    #[error("{0}: read-only; make it writable first (for a device: blockdev --setrw)")]
    ReadOnly(PathBuf),
    /// Larger than what a volume is made of.
    #[error("{path}: its logical blocks of {} exceed the supported 4 KiB", logical_block)]
    BlockTooLarge {
        /// The device.
        path: PathBuf,
        /// What it says.
        logical_block: Bytes,
    },
    /// An image file is not overwritten.
    #[error("{0}: exists already; choose another name, or leave out the size to use the file as it is")]
    AlreadyExists(PathBuf),
    /// There is no room, or no file can be that large.
    #[error("{path}: no image file of {size} can be made there: {source}")]
    CannotCreate {
        /// The image file.
        path: PathBuf,
        /// What was asked for.
        size: Bytes,
        /// What the system says.
        source: io::Error,
    },
    /// Anything else.
    #[error("{path}: {source}")]
    Other {
        /// The device.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl OpenError {
    fn from_io(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM) => Self::NotFound(path),
            Some(libc::EBUSY | libc::EWOULDBLOCK | libc::ETXTBSY) => Self::InUse(path),
            Some(libc::EACCES | libc::EPERM) => Self::Permission(path),
            Some(libc::EROFS) => Self::ReadOnly(path),
            Some(libc::EISDIR | libc::ENOTDIR) => Self::NotADevice(path),
            Some(libc::EEXIST) => Self::AlreadyExists(path),
            _ => Self::Other { path, source },
        }
    }
}

/// Sector of a loop device, where nothing else is said when it is made.
const SECTOR_OF_IMAGES: Bytes = Bytes(512);

/// A block device or an image file.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    path: PathBuf,
    is_block_device: bool,
    is_direct: bool,
    size: AtomicU64,
    geometry: Geometry,
    lock_id: LockId,
}

impl FileDevice {
    /// Opens what `path` names. I/O bypasses the kernel's page cache wherever the file can do so.
    ///
    /// # Errors
    /// By cause, see [`OpenError`].
    pub fn open(path: &Path, mode: OpenMode) -> Result<Self, OpenError> {
        let fail = |source| OpenError::from_io(path, source);
        let metadata = std::fs::metadata(path).map_err(fail)?;
        let is_block_device = metadata.file_type().is_block_device();
        // Asked before opening: to open a pipe or a tape drive already does something.
        if !is_block_device && !metadata.is_file() {
            return Err(OpenError::NotADevice(path.to_owned()));
        }
        let exclusive = mode != OpenMode::ReadOnly;
        // Kernels differ in whether opening such a device fails or only writing to it.
        if exclusive && is_block_device && sysfs::is_read_only(metadata.rdev()) {
            return Err(OpenError::ReadOnly(path.to_owned()));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(exclusive);
        if mode == OpenMode::Exclusive && is_block_device {
            // Refused while the kernel or another exclusive opener holds the device.
            options.custom_flags(libc::O_EXCL);
        }
        let file = options.open(path).map_err(fail)?;
        let is_locked = exclusive && lock(&file, path, is_block_device)?;
        let metadata = file.metadata().map_err(fail)?;
        Self::with_file(file, path, &metadata, is_locked)
    }

    /// Makes an image file of `size` without allocating it, and opens it [`OpenMode::Exclusive`]. Readable and
    /// writable for its owner.
    ///
    /// # Errors
    /// By cause, see [`OpenError`]; the file is then removed again.
    pub fn create(path: &Path, size: Bytes) -> Result<Self, OpenError> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|source| OpenError::from_io(path, source))?;
        let sized = file.set_len(size.as_u64()).map_err(|source| OpenError::CannotCreate {
            path: path.to_owned(),
            size,
            source,
        });
        let opened = sized.and_then(|()| {
            let is_locked = lock(&file, path, false)?;
            let metadata = file.metadata().map_err(|source| OpenError::from_io(path, source))?;
            Self::with_file(file, path, &metadata, is_locked)
        });
        if opened.is_err() {
            // The first error is the one to report.
            let _ = std::fs::remove_file(path);
        }
        opened
    }

    fn with_file(file: File, path: &Path, metadata: &Metadata, is_locked: bool) -> Result<Self, OpenError> {
        let fail = |errno: Errno| OpenError::from_io(path, errno.into());
        let is_block_device = metadata.file_type().is_block_device();
        // Set after opening, because a refusal to open says nothing of its cause.
        let is_direct = match rustix::fs::fcntl_setfl(&file, OFlags::DIRECT) {
            Ok(()) => true,
            Err(Errno::INVAL) => {
                tracing::info!(path = %path.display(), "no direct I/O on this file; using the page cache");
                false
            }
            Err(errno) => return Err(fail(errno)),
        };
        let geometry = if is_block_device {
            let logical_block = rustix::fs::ioctl_blksszget(&file).map_err(fail)?;
            let physical_block = rustix::fs::ioctl_blkpbszget(&file).map_err(fail)?;
            sysfs::geometry(metadata.rdev(), logical_block, physical_block)
        } else {
            let block = direct_alignment(&file).unwrap_or(ALIGNMENT as u32);
            sysfs::geometry(metadata.dev(), block, ALIGNMENT as u32)
        };
        let size = measured(&file, is_block_device).map_err(|error| OpenError::from_io(path, error))?;
        let logical_block = geometry.logical_block;
        if logical_block.as_u64() > ALIGNMENT as u64 {
            return Err(OpenError::BlockTooLarge { path: path.to_owned(), logical_block });
        }
        let size = AtomicU64::new(size / logical_block.as_u64() * logical_block.as_u64());
        // Not of what O_EXCL, or a filesystem of the kernel, keeps out: that ends while commands of a process that was killed
        // are still on their way, which hold the file and so this lock.
        let lock_id = match is_locked {
            true => LockId { device: metadata.dev(), inode: metadata.ino() },
            false => LockId::default(),
        };
        Ok(Self { file, path: path.to_owned(), is_block_device, is_direct, size, geometry, lock_id })
    }

    /// The name it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True for a block device, false for an image file.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// True when a write that is flagged `RWF_DSYNC` is on stable storage when it completes, also through io_uring. For a
    /// block device the block layer sees to that, with FUA or a flush of its own. For a file it is a matter of the filesystem,
    /// and FUSE drops the flag of what is direct and asynchronous: there a flush has to follow.
    pub fn forces_writes(&self) -> bool {
        self.is_block_device
    }

    /// True when I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    fn check(&self, offset: DeviceOffset, length: u64) -> Result<(), IoError> {
        let block = self.geometry.logical_block.as_u64();
        if !offset.as_u64().is_multiple_of(block) || !length.is_multiple_of(block) {
            return Err(IoError::Device(libc::EINVAL));
        }
        match offset.as_u64().checked_add(length) {
            Some(end) if end <= self.size().as_u64() => Ok(()),
            _ => Err(IoError::PastEnd),
        }
    }

    fn must_bounce(&self, memory: &[u8]) -> bool {
        self.is_direct && !(memory.as_ptr() as usize).is_multiple_of(ALIGNMENT)
    }

    /// Calls `transfer` with what is left of `length` bytes, as (bytes done, device offset), until nothing is.
    fn transfer_all(
        &self,
        offset: DeviceOffset,
        length: usize,
        mut transfer: impl FnMut(usize, u64) -> io::Result<usize>,
    ) -> Result<(), IoError> {
        let mut done = 0;
        while done < length {
            match transfer(done, offset.as_u64() + done as u64) {
                Ok(0) => return Err(IoError::PastEnd),
                Ok(moved) => done += moved,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What follows a file's ragged end cannot be asked for with direct I/O.
                Err(_) if !(done as u64).is_multiple_of(self.geometry.logical_block.as_u64()) => {
                    return Err(IoError::PastEnd);
                }
                Err(error) => return Err(device_error(&error)),
            }
        }
        Ok(())
    }
}

/// Bytes of a device or an image file, as it is now.
fn measured(file: &File, is_block_device: bool) -> io::Result<u64> {
    if is_block_device { Ok(ioctl::size(file)?) } else { Ok(file.metadata()?.len()) }
}

impl AsFd for FileDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Device for FileDevice {
    fn size(&self) -> Bytes {
        Bytes(self.size.load(Ordering::Acquire))
    }

    fn measure(&self) -> Result<Bytes, IoError> {
        let size = measured(&self.file, self.is_block_device).map_err(|error| device_error(&error))?;
        let block = self.geometry.logical_block.as_u64();
        self.size.fetch_max(size / block * block, Ordering::AcqRel);
        Ok(self.size())
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read_at(&self, offset: DeviceOffset, into: &mut [u8]) -> Result<(), IoError> {
        self.check(offset, into.len() as u64)?;
        if !self.must_bounce(into) {
            return self
                .transfer_all(offset, into.len(), |done, place| self.file.read_at(&mut into[done..], place));
        }
        let mut bounce = Bounce::new(into.len());
        let mut place = offset;
        for part in into.chunks_mut(BOUNCE) {
            let memory = bounce.first(part.len());
            self.transfer_all(place, part.len(), |done, at| self.file.read_at(&mut memory[done..], at))?;
            part.copy_from_slice(memory);
            place = place + Bytes(part.len() as u64);
        }
        Ok(())
    }

    fn write_at(&self, offset: DeviceOffset, from: &[u8]) -> Result<(), IoError> {
        self.check(offset, from.len() as u64)?;
        if !self.must_bounce(from) {
            return self
                .transfer_all(offset, from.len(), |done, place| self.file.write_at(&from[done..], place));
        }
        let mut bounce = Bounce::new(from.len());
        let mut place = offset;
        for part in from.chunks(BOUNCE) {
            let memory = bounce.first(part.len());
            memory.copy_from_slice(part);
            self.transfer_all(place, part.len(), |done, at| self.file.write_at(&memory[done..], at))?;
            place = place + Bytes(part.len() as u64);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), IoError> {
        self.file.sync_data().map_err(|error| device_error(&error))
    }

    fn discard(&self, offset: DeviceOffset, length: Bytes) -> Result<(), IoError> {
        self.try_discard(offset, length).map(drop)
    }

    fn lock_id(&self) -> LockId {
        self.lock_id
    }

    fn table_sector(&self) -> Bytes {
        // Of an image file that of the loop devices that are made of it, whatever its direct I/O is aligned to.
        if self.is_block_device { self.geometry.logical_block } else { SECTOR_OF_IMAGES }
    }

    fn reservations(&self) -> Option<Box<dyn Reservations + '_>> {
        self.is_block_device.then(|| Box::new(reservation::BlockReservations(&self.file)) as _)
    }
}

impl FileDevice {
    /// See [`Device::discard`]. False: the device cannot.
    ///
    /// # Errors
    /// See [`Device::discard`].
    pub fn try_discard(&self, offset: DeviceOffset, length: Bytes) -> Result<bool, IoError> {
        self.check(offset, length.as_u64())?;
        if length == Bytes::ZERO {
            return Ok(true);
        }
        let outcome = if self.is_block_device {
            ioctl::discard(&self.file, offset.as_u64(), length.as_u64())
        } else {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&self.file, flags, offset.as_u64(), length.as_u64())
        };
        match outcome {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => Ok(false),
            Err(errno) => Err(IoError::Device(errno.raw_os_error())),
        }
    }
}

fn device_error(error: &io::Error) -> IoError {
    IoError::Device(error.raw_os_error().unwrap_or(libc::EIO))
}

/// How long another may have the lock of a block device that is ours already. Udev probes it. The kernel takes the files of a
/// killed process from it, and ends its commands, some time after the process is gone.
const LOCKED_WITHIN: Duration = Duration::from_secs(2);
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// Locks it with flock(2); false for a block device of which another has the lock.
fn lock(file: &File, path: &Path, is_block_device: bool) -> Result<bool, OpenError> {
    let start = Instant::now();
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            // It is ours since O_EXCL, or since the kernel's filesystem has it. The lock asks udev not to probe it, and shows that a
            // predecessor's commands have ended; a mount that follows mkfs must not fail for the want of it.
            Err(_) if is_block_device && start.elapsed() < LOCKED_WITHIN => thread::sleep(RETRY_AFTER),
            Err(errno) if is_block_device => {
                tracing::debug!(path = %path.display(), %errno, "device not locked");
                return Ok(false);
            }
            Err(errno) => return Err(OpenError::from_io(path, errno.into())),
        }
    }
}

/// What direct I/O on an image file is aligned to, in bytes; `None` when the kernel does not say.
fn direct_alignment(file: &File) -> Option<u32> {
    let answer = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let told = answer.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && answer.stx_dio_offset_align != 0;
    told.then_some(answer.stx_dio_offset_align)
}

/// Memory that direct I/O accepts.
struct Bounce {
    memory: Vec<u8>,
    skip: usize,
}

impl Bounce {
    fn new(length: usize) -> Self {
        let memory = vec![0; length.min(BOUNCE) + ALIGNMENT];
        let address = memory.as_ptr() as usize;
        Self { memory, skip: address.next_multiple_of(ALIGNMENT) - address }
    }

    fn first(&mut self, length: usize) -> &mut [u8] {
        &mut self.memory[self.skip..self.skip + length]
    }
}
