//! Kernel protocol in, errno out: how a volume becomes a directory of this machine.
//!
//! **For:** answering the kernel's requests with a volume, mapping causes to errno, mounting, the daemon's life from
//! mount to unmount, its control socket. **Excludes:** every decision about files, names and space; those are the [`avfs_core::volume::Volume`]'s. **State:** a [`Mounted`]
//! owns the kernel connection, the control socket and the last reference to the volume's shutdown.
//!
//! **Invariants:** each request is answered exactly once; no thread that reads requests waits for the device; the
//! volume is shut down once, after the kernel has let go of it.
//!
//! The protocol and its two transports are a crate of their own, [`fuse_wire`]; `server` answers what it brings.

mod application;
pub mod control;
pub mod errno;
pub mod event_log;
mod ioctl;
pub mod loop_device;
pub mod mount;
pub mod mounted;
pub mod protocol;
pub mod server;
pub mod signals;
mod space_log;

pub use fuse_wire::{Transport, enable_rings};
pub use mounted::{MountError, Mounted};
