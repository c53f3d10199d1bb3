//! Space and time that everybody shares: a volume is full only when nothing is left, and nobody waits for long because of what
//! somebody else has very many of.

mod full;
mod limits;
mod neighbours;
mod sharing;
mod turns;

use avfs_core::config::Config;
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::*;
use avfs_io::pool::Pool;
use units::{Bytes, Ino};

pub(crate) const MIB: u64 = 1 << 20;

/// A volume of its own, audited now and then.
pub(crate) fn volume(size_mib: u64) -> SimVolume {
    let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
    let mut volume =
        SimVolume::mount(formatted(Bytes::from_mib(size_mib)), &pool, Config::default(), 1).unwrap();
    volume.audit_every(997);
    volume
}

/// A closed file of so many bytes that has its place.
pub(crate) fn make(volume: &mut SimVolume, name: &str, bytes: u64) -> avfs_core::error::Result<Ino> {
    let (ino, handle) = volume.create(Ino::ROOT, name.as_bytes())?;
    let made = volume.allocate(handle, 0, bytes, AllocateMode::Extend);
    volume.with(|core, now| core.release(now, handle));
    made.map(|()| ino)
}

pub(crate) fn remove(volume: &mut SimVolume, name: &str, ino: Ino) {
    volume.with(|core, now| {
        core.unlink(now, Ino::ROOT, name.as_bytes()).unwrap();
        core.forget(now, ino, 1);
    });
}

/// What statfs(2) says is available, in bytes.
pub(crate) fn available(volume: &SimVolume) -> u64 {
    volume.core().statistics().available * 4096
}
