//! Loop devices: what makes an image file a block device to the kernel. The one place that makes them.
//!
//! **For:** a volume in an image file is mounted as if it were on a block device, so that sync(1) reaches it and umount(2)
//! waits for it. **Excludes:** reading and writing: the engine has the image file itself, and nothing goes through the
//! loop device. **State:** none; the kernel gives the device back when nothing has it open any more.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A device number as the kernel prints it: `major:minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl DeviceNumber {
    /// Takes `st_dev` or `st_rdev` apart.
    pub fn from_raw(raw: u64) -> Self {
        Self { major: rustix::fs::major(raw), minor: rustix::fs::minor(raw) }
    }

    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl std::fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

const CONTROL: &str = "/dev/loop-control";
/// Major number of loop devices.
const MAJOR: u32 = 7;

/// How often another process may take the free device first.
const TRIES: usize = 64;

/// `LOOP_CTL_GET_FREE` and `LOOP_CONFIGURE` of linux/loop.h.
const GET_FREE: libc::Ioctl = 0x4C82;
const CONFIGURE: libc::Ioctl = 0x4C0A;
/// `LO_FLAGS_AUTOCLEAR`
const AUTOCLEAR: u32 = 4;

/// `struct loop_config` of linux/loop.h, with its `struct loop_info64`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    numbers: [u64; 5],
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
    reserved: [u64; 8],
}
const _: () = assert!(size_of::<Config>() == 304);

/// A loop device that this process has open.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    /// The kernel gives the device back when this and what was made of the device are closed.
    _open: File,
}

impl LoopDevice {
    /// Makes one of an image file.
    ///
    /// # Errors
    /// When the kernel has none, or this process may not make them.
    pub fn of(image: &Path) -> io::Result<Self> {
        let image_file = OpenOptions::new().read(true).write(true).open(image)?;
        let control = OpenOptions::new().read(true).write(true).open(CONTROL)?;
        for _ in 0..TRIES {
            // SAFETY: the request takes no argument, and the descriptor is open.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let open = OpenOptions::new().read(true).write(true).open(&path)?;
            let mut config = Config {
                fd: image_file.as_raw_fd() as u32,
                block_size: 0,
                numbers: [0; 5],
                number: 0,
                encrypt_type: 0,
                encrypt_key_size: 0,
                flags: AUTOCLEAR,
                file_name: [0; 64],
                crypt_name: [0; 64],
                encrypt_key: [0; 32],
                init: [0; 2],
                reserved: [0; 8],
            };
            let name = image.as_os_str().as_bytes();
            // With its NUL.
            let shown = name.len().min(config.file_name.len() - 1);
            config.file_name[..shown].copy_from_slice(&name[..shown]);
            // SAFETY: the argument is a structure as the request wants it, which outlives the call, and both descriptors are open.
            let done = unsafe { libc::ioctl(open.as_raw_fd(), CONFIGURE, &raw const config) };
            if done == 0 {
                return Ok(Self { path, _open: open });
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBUSY) {
                return Err(error);
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// What it is called.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The image file behind a device, if it is a loop device.
pub(crate) fn backing_file(device: DeviceNumber) -> Option<PathBuf> {
    if device.major != MAJOR {
        return None;
    }
    let named = std::fs::read(format!("/sys/dev/block/{device}/loop/backing_file")).ok()?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(named.strip_suffix(b"\n").unwrap_or(&named))))
}
