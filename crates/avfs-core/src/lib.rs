//! The filesystem, knowing nothing of FUSE.
//!
//! **For:** everything between "a request named an inode" and "a request names a device offset": disk format,
//! inodes and names, extents and free space, journal and checkpoints, recovery, the cache of file data, policy.
//! **Excludes:** the kernel's protocol, errno values, threads that wait for clients, the ring.
//! **State:** one [`volume::Volume`] per mounted device owns the lock, and the [`core::Core`] under it every fact.
//! **Invariants:** facts change only by applying records; nothing is acknowledged as durable before it is; the core never
//! waits and reads no clock, so production, simulation and crash tests run the same code.

pub mod acl;
pub mod allocator;
mod audience;
mod casing;
mod codec;
pub mod config;
pub mod core;
pub mod device;
mod directory;
pub mod error;
pub mod events;
mod extent;
pub mod format;
pub mod free_space;
pub mod fsck;
pub mod inode;
pub mod journal;
mod lease;
pub mod limit;
pub mod metadata;
pub mod mkfs;
pub mod names;
pub mod partition_table;
pub mod policy;
pub mod protection;
mod ranges;
pub mod record;
pub mod recovery;
pub mod simulation;
#[doc(hidden)]
pub mod steps;
mod superblocks;
mod tree;
pub mod types;
pub mod usage;
pub mod volume;

pub use error::Error;
