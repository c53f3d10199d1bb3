//! Kernel protocol in, errno out: how a volume becomes a directory of this machine.
//!
//! **For:** decoding the kernel's requests and encoding its replies, mapping causes to errno, passing
//! invalidations on, mounting, the daemon's life from mount to unmount, its control socket. **Excludes:** every
//! decision about files, names and space; those are the [`avfs_core::volume::Volume`]'s. **State:** a [`Mounted`]
//! owns the kernel connection, the control socket and the last reference to the volume's shutdown.
//!
//! **Invariants:** each request is answered exactly once; no thread that reads requests waits for the device; the
//! volume is shut down once, after the kernel has let go of it.
//!
//! Two transports carry the requests: `device` over `/dev/fuse`, everywhere, and [`ring`] over io_uring, where the
//! kernel has it. From either `decode` reads a request in the protocol of [`abi`], `server` calls the volume, `reply`
//! brings the answer back. [`protocol`], [`errno`], [`invalidate`], [`mount`], [`control`] and `application` know
//! nothing of either.

pub mod abi;
mod application;
pub mod control;
mod decode;
mod device;
pub mod errno;
pub mod invalidate;
pub mod mount;
pub mod mounted;
pub mod protocol;
mod reply;
pub mod ring;
mod server;
pub mod signals;

pub use mounted::{MountError, Mounted, Transport};
