//! What a rehearsal begins with: a formatted disk with its files, and memory.
//!
//! **For:** both stages, of a laboratory's points and of memory. **State:** none.

use super::error::RehearsalError;
use super::transport::VirtualTransport;
use crate::ageing::Step;
use crate::run::shares;
use avfs_core::simulation::formatted;
use avfs_io::pool::Pool;
use avfs_io::sim::SimDisk;
use avfs_workloads::Client;
use std::collections::BTreeMap;
use std::sync::Arc;
use units::{Bytes, Duration};

/// A disk that was aged so, with these files, as four clients leave them that lay them at once.
pub(super) fn laid(
    size: Bytes,
    steps: &[Step],
    files: &BTreeMap<String, Bytes>,
) -> Result<Arc<SimDisk>, RehearsalError> {
    let pool = pool(Bytes::from_mib(512))?;
    let mut transport = VirtualTransport::untimed(formatted(size), &pool)?;
    transport.without_contents();
    transport.age(steps).map_err(RehearsalError::Volume)?;
    let mut laying: Vec<Client> = shares(files).into_iter().map(Client::laying).collect();
    let reports = avfs_workloads::run(&mut transport, &mut laying, Duration::from_secs(1 << 20), |_, _| {})?;
    match reports.into_iter().find_map(|report| report.first_error) {
        Some(error) => Err(RehearsalError::Client(error)),
        None => transport.into_volume().unmount().map_err(RehearsalError::Volume),
    }
}

pub(super) fn pool(size: Bytes) -> Result<Pool, RehearsalError> {
    Pool::new(size, false).map_err(RehearsalError::Memory)
}
