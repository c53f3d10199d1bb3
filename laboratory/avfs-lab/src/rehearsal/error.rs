//! Why there was no rehearsal.
//!
//! **For:** the causes. **State:** none.

use avfs_core::config::ConfigError;
use avfs_core::error::Error as VolumeError;
use avfs_core::recovery::RecoveryError;
use avfs_workloads::TransportError;
use rtsched_sim::device::DeviceError;
use thiserror::Error;

/// Why there was no rehearsal.
#[derive(Debug, Error)]
pub enum RehearsalError {
    /// No such device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The contender's configuration is none.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No memory for the cache.
    #[error("there is no memory for the cache: {0}")]
    Memory(std::io::Error),
    /// The volume could not be mounted.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// The volume failed.
    #[error("the volume failed: {0}")]
    Volume(VolumeError),
    /// Some client's operation failed.
    #[error("{0}")]
    Client(String),
    /// The way to the files is gone.
    #[error(transparent)]
    Transport(#[from] TransportError),
}
