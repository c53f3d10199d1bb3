//! A volume takes what its device has grown by, and power is cut meanwhile.

use crate::workload::{FULL, Workload};
use crate::{DISK, Place, check_but, judge, pool, restless, rounds};
use avfs_core::Error;
use avfs_core::format::SuperblockError;
use avfs_core::fsck::Finding;
use avfs_core::partition_table::is_protected;
use avfs_core::recovery::find_superblock;
use avfs_core::simulation::{SimVolume, formatted};
use units::Bytes;

const LARGER: Bytes = Bytes::from_mib(320);

/// The partition table is of the other size, or a slot has not got its copy at the new end yet: a check mends both.
fn is_of_growth(finding: &Finding) -> bool {
    matches!(
        finding,
        Finding::PartitionTableMissing | Finding::SuperblockDamaged { cause: SuperblockError::Foreign, .. }
    )
}

/// A full volume grows and is filled again. Before the growth is durable a cut leaves either size, afterwards the new one; what is written
/// into the new space is judged as everything else.
fn grows(seed: u64, images: usize) {
    let volume = SimVolume::mount(formatted(DISK), &pool(), restless(seed), seed).unwrap();
    let mut workload = Workload::new(volume, FULL, seed).unwrap();
    while workload.full <= 3 {
        workload.step();
    }
    workload.sync().unwrap();
    workload.volume.disk().enlarge(LARGER);
    let from = workload.volume.disk().position();
    let free = workload.volume.core().statistics().free;
    workload.volume.grow().unwrap();
    let grown = workload.volume.disk().position();
    let added = workload.volume.core().statistics().free - free;
    assert!(added > 100 << 8, "seed {seed}: {added} blocks added");
    let full = workload.full;
    while workload.full <= full + 2 {
        workload.step();
    }
    workload.settle();
    assert_eq!(workload.device_errors, 0, "seed {seed}: {:?}", workload.volume.core().failure());
    let recording = workload.volume.disk().crash_images();
    let judging = pool();
    let size = |cut: usize, image: u64| {
        let image = recording.image(cut, image);
        let place = Place { seed, life: 0, cut, image: 0 };
        check_but(&image, place, is_of_growth);
        find_superblock(&image).unwrap().geometry.device
    };
    // Each moment of the growth itself, in several ways.
    let mut sizes: Vec<Bytes> = (from..=grown)
        .flat_map(|cut| (0..4).map(move |image| (cut, image)))
        .map(|(cut, image)| size(cut, image))
        .collect();
    assert_eq!(sizes.first(), Some(&DISK), "seed {seed}");
    sizes.sort_unstable();
    sizes.dedup();
    assert_eq!(sizes, [DISK, LARGER], "seed {seed}");
    check_but(&recording.image(grown, 0), Place { seed, life: 0, cut: grown, image: 0 }, |_| false);
    assert!((0..4).all(|image| size(grown, image) == LARGER), "seed {seed}: acknowledged, and not durable");
    let image = recording.image(grown, 0);
    let superblock = find_superblock(&image).unwrap();
    assert_eq!(
        is_protected(&image, &superblock),
        Ok(true),
        "seed {seed}: the partition table is of another size"
    );
    for cut in from..=grown {
        judge(&workload, &judging, Place { seed, life: 0, cut, image: cut as u64 }, false);
    }
    let after = recording.cuts().end() - grown;
    for index in 0..images {
        let cut = grown + index * after / images;
        judge(&workload, &judging, Place { seed, life: 0, cut, image: index as u64 }, index % 8 == 0);
    }
}

#[test]
fn a_volume_that_grows_survives_every_cut() {
    (0..rounds()).for_each(|seed| grows(seed, 16));
}

#[test]
fn a_device_that_has_not_grown_is_refused() {
    let mut volume = SimVolume::mount(formatted(DISK), &pool(), restless(1), 1).unwrap();
    assert_eq!(volume.grow(), Err(Error::InvalidArgument));
    // Not a whole unit.
    volume.disk().enlarge(DISK + Bytes::from_kib(4));
    assert_eq!(volume.grow(), Err(Error::InvalidArgument));
}
