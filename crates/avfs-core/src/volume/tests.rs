//! What only threads and a real file show.

use super::*;
use crate::mkfs::{self, MkfsOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use tempfile::NamedTempFile;

const MIB: u64 = 1 << 20;

fn open(file: &NamedTempFile) -> Arc<Volume> {
    file.as_file().set_len(256 * MIB).unwrap();
    {
        let device = FileDevice::open(file.path(), OpenMode::Exclusive).unwrap();
        mkfs::make(&device, &MkfsOptions::default()).unwrap();
    }
    let options = OpenOptions {
        read_only: false,
        access_times: AccessTimes::default(),
        holds_device: false,
        cache_size: Some(Bytes::from_mib(64)),
        config: Config::default(),
    };
    Volume::open(file.path(), options).unwrap_or_else(|error| panic!("{error}"))
}

/// A discard goes past the engine, whose gate does not hold it. When its turn comes the lease may have run out while it waited, and
/// what was free then may hold another host's film.
#[test]
fn nothing_is_discarded_when_the_lease_has_run_out_before_its_turn() {
    let file = NamedTempFile::new_in("/var/tmp").unwrap();
    let volume = open(&file);
    // Where nothing of this volume lies, so that it may be another host's.
    let film = 128 * MIB..160 * MIB;
    let content = vec![7; 32 << 20];
    file.as_file().write_all_at(&content, film.start).unwrap();
    file.as_file().sync_all().unwrap();
    let taken = || file.as_file().metadata().unwrap().blocks();
    let before = taken();
    let trim =
        |gate: &Gate| volume.shared.trim(&volume.device, gate, &volume.trims, film.clone(), Bytes(BLOCK));
    // The engine's own gate is open: the discard has its turn.
    assert_eq!(trim(&Gate::closed()), Err(Error::Device));
    let mut found = vec![0; content.len()];
    file.as_file().read_exact_at(&mut found, film.start).unwrap();
    assert!(found == content, "another host's film is gone");
    // The same with a lease.
    assert_eq!(trim(&Gate::open()), Ok(32 * MIB));
    assert!(taken() < before, "{} of {before} blocks are taken", taken());
    volume.shutdown().unwrap();
}
