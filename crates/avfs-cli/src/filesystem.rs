//! What the kernel has of a volume: of which type, and of which device.

use crate::claim::Claim;
use avfs_fuse::loop_device::LoopDevice;
use avfs_fuse::mount::{Filesystem, Kind, is_held_by_the_dead, printable};
use rustix::mount::MountFlags;
use std::io;
use std::os::unix::fs::FileTypeExt;

/// A filesystem that the kernel has made for a volume.
pub(crate) struct Made {
    /// To be served and attached.
    pub(crate) filesystem: Filesystem,
    /// The kernel keeps others off the device; to open it exclusively would fail.
    pub(crate) holds_device: bool,
    /// What it cannot do, in one line.
    pub(crate) remark: Option<String>,
}

/// Makes the filesystem for what is claimed, before anything is read from it. For a block device the kernel holds it from
/// then on. An image file becomes a block device first, of which nothing but this is used. Where that cannot be had, the
/// filesystem is a plain one: sync(1) does not reach it, and umount(2) does not wait for it.
///
/// # Errors
/// What the kernel says.
pub(crate) fn make(claim: &Claim, flags: MountFlags) -> io::Result<Made> {
    let device = claim.device();
    let is_device = device.metadata()?.file_type().is_block_device();
    let is_busy = |error: &io::Error| error.raw_os_error() == Some(libc::EBUSY);
    let made = if is_device {
        claim.open(|| Filesystem::make(device, flags, Kind::OfDevice), is_busy)
    } else {
        // Closed on return: then the filesystem alone has it.
        LoopDevice::of(device).and_then(|made| Filesystem::make(made.path(), flags, Kind::OfDevice))
    };
    let why = match made {
        Ok(filesystem) => return Ok(Made { filesystem, holds_device: is_device, remark: None }),
        Err(why) => why,
    };
    let holds_device = is_device && is_busy(&why) && is_held_by_the_dead(device);
    let why = if holds_device { "a mount whose daemon died is still in use".into() } else { why.to_string() };
    Ok(Made {
        filesystem: Filesystem::make(device, flags, Kind::Plain)?,
        holds_device,
        remark: Some(format!(
            "sync(1) does not reach the volume, and umount(2) does not wait for it: {} is not mounted as a block device: {why}",
            printable(device)
        )),
    })
}
