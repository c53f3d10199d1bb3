//! Discards go past the engine, and so past its gate.

use super::*;
use crate::mkfs::{self, MkfsOptions};
use units::DeviceOffset;

/// A discard beside the loss of a lease: its turn came while the volume was ours, and then it was another's. What is free here may hold
/// the other's data.
#[test]
pub(crate) fn a_discard_whose_turn_came_before_the_lease_ran_out_does_not_reach_the_device() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(Bytes::from_mib(192).as_u64()).unwrap();
    let device = FileDevice::open(image.path(), OpenMode::Exclusive).unwrap();
    mkfs::make(&device, &MkfsOptions::default()).unwrap();
    let last = DeviceOffset(device.size().as_u64() / 2);
    device.write_at(last, &[7; BLOCK as usize]).unwrap();
    drop(device);
    let options = OpenOptions { cache_size: Some(SMALLEST_CACHE), ..OpenOptions::default() };
    let volume = match Volume::open(image.path(), options) {
        Ok(volume) => volume,
        Err(error) => panic!("{error}"),
    };
    let trim = |gate: &Gate| {
        volume.shared.trim(&volume.device, gate, &volume.trims, 0..volume.device.size().as_u64(), Bytes(1))
    };
    let standing = || {
        let mut block = [0; BLOCK as usize];
        volume.device.read_at(last, &mut block).unwrap();
        block[0]
    };
    // The engine's gate is open, so each discard has its turn.
    let refused = trim(&Gate::closed());
    let left = standing();
    let trimmed = trim(&Gate::open());
    let gone = standing();
    volume.shutdown().unwrap();
    assert_eq!((refused, left), (Err(Error::Device), 7), "the volume may be another's");
    assert!(trimmed.is_ok_and(|count| count > 0) && gone == 0, "space is free that is ours");
}
