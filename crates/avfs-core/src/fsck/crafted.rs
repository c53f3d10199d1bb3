//! Volumes that somebody made wrong, checksums and all: the faults of which there was one to see.

use super::tests::{DAY, REEL, expect, mount, name, record, table, tree, volume};
use super::*;
use crate::format::Geometry;
use crate::format::{COUNT_LIMIT, ShardLocation, Superblock, encode_table};
use crate::record::Record;
use crate::recovery::{RecoveryError, find_superblock, recover};
use crate::tree::TreeError;
use avfs_io::sim::SimDisk;
use std::sync::Arc;
use units::Ino;

/// Writes the superblock that counts, changed, where it stands.
fn change_superblock(disk: &SimDisk, change: impl FnOnce(&mut Superblock)) {
    let mut superblock = find_superblock(disk).unwrap();
    let generation = superblock.generation;
    change(&mut superblock);
    for place in Geometry::superblock_copies(superblock.geometry.device, generation) {
        disk.write_at(place, &superblock.encode()[..]).unwrap();
    }
    disk.flush().unwrap();
}

/// Writes a shard table over the one that counts.
fn put_table(disk: &SimDisk, entries: &[(u64, ShardLocation)]) {
    let bytes = encode_table(entries.iter().map(|(number, location)| (*number, location)));
    let piece = find_superblock(disk).unwrap().table;
    let mut padded = bytes.clone();
    padded.resize(piece.space() as usize, 0);
    for place in [piece.address, piece.copy] {
        disk.write_at(place, &padded).unwrap();
    }
    change_superblock(disk, |superblock| {
        (superblock.table.length, superblock.table.checksum) = (bytes.len() as u32, crc32c::crc32c(&bytes));
    });
}

/// The table named the place of shard 0 as the first copy of shard 1. A preening "repaired" that copy: over the only good copy of
/// shard 0, and the root directory was lost.
#[test]
fn a_copy_is_not_written_over_another_structure() {
    let disk = volume();
    let mut entries = table(&disk);
    let one = entries[0].1.pieces[0];
    // The other copy of shard 0 is gone, so that everything depends on the one.
    disk.write_at(one.copy, &[0; 4096]).unwrap();
    entries[1].1.pieces[0].address = one.address;
    put_table(&disk, &entries);
    let findings = [
        Finding::Misplaced { shard: Some(0), address: one.address },
        Finding::Misplaced { shard: Some(1), address: one.address },
        Finding::ShardCopyDamaged { shard: 0, address: one.copy },
    ];
    assert!(matches!(recover(&*disk), Err(RecoveryError::Misplaced { .. })));
    assert_eq!(expect(disk, &findings), tree(&volume()));
}

/// What the table calls a copy of a shard are a film's bytes. The repair of the copy wrote over them.
#[test]
fn a_copy_is_not_written_over_a_files_data() {
    let disk = volume();
    let recovered = recover(&*disk).unwrap();
    let start = recovered.metadata.get(Ino(3)).unwrap().extents().unwrap().iter().next().unwrap().start;
    let address = recovered.superblock.geometry.block_address(start);
    let mut entries = table(&disk);
    let shard = entries[1].0;
    entries[1].1.pieces[0].copy = address;
    put_table(&disk, &entries);
    assert_eq!(expect(disk, &[Finding::Misplaced { shard: Some(shard), address }]), tree(&volume()));
}

/// Room for a shard number was made in a table of 8 bytes for each lower number: 32 GB.
#[test]
fn a_high_shard_number_takes_no_memory_and_is_not_gone_on_from() {
    let disk = volume();
    let recovered = recover(&*disk).unwrap();
    let highest = recovered.superblock.geometry.blocks() - 1;
    let ino = Ino(highest * 256);
    let create = Record::Create {
        ino,
        kind: crate::types::FileKind::Regular,
        generation: 0,
        attributes: Default::default(),
        target: Box::default(),
        device: 0,
    };
    record(&disk, &[create, Record::AddName { ino, name: name(Ino::ROOT, b"high") }]);
    // Another number was given out behind it, which no mount would read again.
    let mut volume = mount(&disk);
    for index in 0..600 {
        volume.create(Ino::ROOT, format!("{index}").as_bytes()).unwrap();
    }
    let disk = volume.unmount().unwrap();
    assert_eq!(examine(&*disk, Mode::Check).unwrap().findings, []);
    assert!(recover(&*disk).unwrap().metadata.get(ino).is_some());
}

/// It mounted, and the first rename of a directory walked up for ever.
#[test]
fn a_mount_refuses_directories_that_are_no_tree() {
    let added = |ino, parent| Record::AddName { ino, name: name(parent, b"z") };
    let removed = || Record::RemoveName { ino: REEL, name: name(Ino::ROOT, b"reel") };
    let refused = [
        (vec![added(Ino::ROOT, REEL)], TreeError::RootNamed),
        (vec![added(DAY, Ino::ROOT)], TreeError::Names(DAY)),
        (vec![removed(), added(REEL, DAY)], TreeError::Cycle(REEL)),
        (vec![removed(), added(REEL, REEL)], TreeError::Cycle(REEL)),
        (vec![removed()], TreeError::Unreachable(REEL)),
        (vec![Record::Remove { ino: Ino::ROOT }], TreeError::NoRoot),
    ];
    for (records, why) in refused {
        let disk = volume();
        record(&disk, &records);
        match recover(&*disk) {
            Err(RecoveryError::Tree(found)) => assert_eq!(found, why),
            // Names in a root that is gone are lost before anything else is.
            Err(RecoveryError::LostName(_)) => assert_eq!(why, TreeError::NoRoot),
            other => panic!("{why}: {:?}", other.err()),
        }
        examine(&*disk, Mode::Repair).unwrap();
        recover(&*disk).unwrap();
    }
}

/// Of two superblocks of one generation, the mount took the first and the check the last.
#[test]
fn two_superblocks_of_one_generation_are_made_one() {
    let disk = volume();
    let mut other = find_superblock(&*disk).unwrap();
    other.label = "other".into();
    let slot = (other.generation % 2) as usize;
    let place = Geometry::superblock_places(other.geometry.device)[slot + 2];
    disk.write_at(place, &other.encode()[..]).unwrap();
    disk.flush().unwrap();
    let after = expect(Arc::clone(&disk), &[Finding::SuperblockContradicts { place }]);
    assert_eq!(after, tree(&volume()));
    assert_eq!(find_superblock(&*disk).unwrap().label, "");
}

/// 2^64-1 wrapped, and the volume was an old one.
#[test]
fn numbers_that_are_used_up_begin_anew() {
    let changes: [fn(&mut Superblock); 3] = [
        |superblock| superblock.generation = 2 * COUNT_LIMIT - 2,
        |superblock| superblock.log.sequence = COUNT_LIMIT,
        |superblock| superblock.lsn = COUNT_LIMIT,
    ];
    for change in changes {
        // Unmounted: its log is empty.
        let disk = volume();
        change_superblock(&disk, change);
        assert!(matches!(recover(&*disk), Err(RecoveryError::UsedUp)));
        let report = examine(&*disk, Mode::Repair).unwrap();
        assert_eq!((report.exit_code(), examine(&*disk, Mode::Check).unwrap().findings), (1, vec![]));
        let superblock = find_superblock(&*disk).unwrap();
        assert!(superblock.generation < 100 && superblock.log.sequence < 100 && superblock.lsn < 1000);
        assert_eq!(tree(&disk), tree(&volume()));
    }
}

/// Whatever the table says, it is read once.
#[test]
fn a_table_whose_pieces_are_all_one_is_not_read_for_ever() {
    let disk = volume();
    let mut entries = table(&disk);
    let piece = entries[0].1.pieces[0];
    for number in 100..250 {
        entries.push((number, ShardLocation { pieces: vec![piece; 1] }));
    }
    put_table(&disk, &entries);
    let loaded = load(&*disk, &find_superblock(&*disk).unwrap()).unwrap().unwrap();
    assert_eq!(loaded.lost.len(), 150);
    assert!(matches!(recover(&*disk), Err(RecoveryError::Misplaced { .. })));
}
