use super::*;
use crate::allocator::BlockRun;
use crate::config::Config;
use crate::extent::Extent;
use crate::format::Geometry;
use crate::format::{
    BLOCK, LOG_START, MMP, MmpBlock, SHARD_INODES, ShardLocation, Superblock, UNIT, UNIT_BLOCKS, decode_table,
};
use crate::inode::{CoreAttributes, Name};
use crate::journal::{Journal, read_log};
use crate::metadata::Contradiction;
use crate::protection::tests::Hurried;
use crate::record::Record;
use crate::recovery::{PieceReader, RecoveryError, find_superblock, recover};
use crate::simulation::{SimVolume, formatted};
use crate::types::{FileKind, HandleId, XattrFlags};
use avfs_io::pool::Pool;
use avfs_io::sim::{Fault, SimDisk};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use units::Bytes;
use units::DeviceOffset;
use units::Ino;

const DISK: Bytes = Bytes::from_mib(192);

fn pool() -> Pool {
    Pool::new(Bytes::from_mib(64), false).unwrap()
}

pub(super) fn mount(disk: &Arc<SimDisk>) -> SimVolume {
    SimVolume::mount(Arc::clone(disk), &pool(), Config::default(), 1).unwrap()
}

/// Paths, and what is there: a file's bytes, a link's target.
pub(super) type Tree = BTreeMap<String, (FileKind, Vec<u8>)>;

pub(super) fn tree(disk: &Arc<SimDisk>) -> Tree {
    let mut volume = mount(disk);
    let mut tree = Tree::new();
    let mut directories = vec![(Ino::ROOT, String::new())];
    while let Some((directory, path)) = directories.pop() {
        let mut entries = Vec::new();
        let each = &mut |entry| {
            entries.push(entry);
            true
        };
        volume.with(|core, _| core.read_directory(directory, 2, false, each)).unwrap();
        for entry in entries {
            let path = format!("{path}/{}", entry.name.escape_ascii());
            let contents = match entry.kind {
                FileKind::Regular => {
                    let handle = volume.open(entry.ino).unwrap();
                    volume.read(handle, 0, 1 << 20).unwrap()
                }
                FileKind::Symlink => volume.core().read_link(entry.ino).unwrap().to_vec(),
                _ => Vec::new(),
            };
            if entry.kind == FileKind::Directory {
                directories.push((entry.ino, path.clone()));
            }
            assert!(tree.insert(path, (entry.kind, contents)).is_none());
        }
    }
    tree
}

/// Inodes of the volume that the tests damage.
pub(super) const REEL: Ino = Ino(2);
const TAKE: Ino = Ino(3);
const SLATE: Ino = Ino(4);
const LINK: Ino = Ino(5);
pub(super) const DAY: Ino = Ino(6);
const NOTES: Ino = Ino(7);

/// Directories in directories, files, a link with two names, and inodes enough for a second shard.
pub(super) fn volume() -> Arc<SimDisk> {
    let disk = formatted(DISK);
    let mut volume = mount(&disk);
    let directory = |volume: &mut SimVolume, parent, name: &[u8]| {
        let made =
            volume.with(|core, now| core.make_directory(now, Default::default(), parent, name, 0o755, 0));
        made.unwrap().attributes.ino
    };
    let file = |volume: &mut SimVolume, parent, name: &[u8], byte| -> (Ino, HandleId) {
        let (ino, handle) = volume.create(parent, name).unwrap();
        volume.write(handle, 0, &[byte; 10_000]).unwrap();
        (ino, handle)
    };
    assert_eq!(directory(&mut volume, Ino::ROOT, b"reel"), REEL);
    assert_eq!(file(&mut volume, REEL, b"take.mxf", 1).0, TAKE);
    assert_eq!(file(&mut volume, REEL, b"slate.wav", 2).0, SLATE);
    let link =
        volume.with(|core, now| core.make_symlink(now, Default::default(), REEL, b"latest", b"take.mxf"));
    assert_eq!(link.unwrap().attributes.ino, LINK);
    assert_eq!(directory(&mut volume, REEL, b"day"), DAY);
    assert_eq!(file(&mut volume, DAY, b"notes.txt", 3).0, NOTES);
    volume.with(|core, now| core.link(now, NOTES, Ino::ROOT, b"notes")).unwrap();
    volume.with(|core, now| core.set_xattr(now, TAKE, b"user.x", b"y", XattrFlags::empty())).unwrap();
    for frame in 0..300 {
        let name = format!("{frame:04}.dpx");
        volume
            .with(|core, now| {
                let kind = FileKind::Regular;
                core.make_node(now, Default::default(), DAY, name.as_bytes(), kind, 0o644, 0, 0)
            })
            .unwrap();
    }
    volume.unmount().unwrap()
}

/// The same, whose two superblocks tell of the same shards.
fn settled_volume() -> Arc<SimDisk> {
    mount(&volume()).unmount().unwrap()
}

/// Adds records to the log as they are, whatever they say.
pub(super) fn record(disk: &SimDisk, records: &[Record]) {
    let superblock = find_superblock(disk).unwrap();
    let replay = read_log(disk, &superblock).unwrap();
    let metadata = load(disk, &superblock).unwrap().unwrap().metadata;
    let mut journal = Journal::new(&superblock, replay.end, replay.bytes);
    journal.append(records, metadata.lsn() + records.len() as u64);
    let batch = journal.seal(u64::MAX, 0).unwrap();
    disk.write_at(batch.address, &batch.bytes).unwrap();
    disk.flush().unwrap();
}

/// Overwrites the block at an address.
fn destroy(disk: &SimDisk, address: DeviceOffset) {
    disk.write_at(address, &[0x5A; BLOCK as usize]).unwrap();
    disk.flush().unwrap();
}

pub(super) fn table(disk: &SimDisk) -> Vec<(u64, ShardLocation)> {
    let superblock = find_superblock(disk).unwrap();
    let mut reader = PieceReader::new(disk, superblock.geometry);
    decode_table(&reader.read(&superblock.table).unwrap()).unwrap()
}

pub(super) fn name(parent: Ino, name: &[u8]) -> Name {
    Name { parent, name: name.into() }
}

/// Exactly this is found, by every mode; a repair heals it, whatever power does meanwhile; the volume mounts after it.
/// Returns what is on it then.
pub(super) fn expect(disk: Arc<SimDisk>, findings: &[Finding]) -> Tree {
    let before = disk.position();
    let report = examine(&*disk, Mode::Check).unwrap();
    assert_eq!((&*report.findings, report.repaired), (findings, 0));
    assert_eq!(report.exit_code(), 4);
    let harmless = findings.iter().all(Finding::is_harmless);
    let preened = examine(&disk.crash(0), Mode::Preen).unwrap();
    assert_eq!((&*preened.findings, preened.exit_code()), (findings, if harmless { 1 } else { 4 }));
    assert_eq!(disk.position(), before, "a check writes");

    disk.record();
    let report = examine(&*disk, Mode::Repair).unwrap();
    assert_eq!((&*report.findings, report.exit_code()), (findings, 1));
    assert_eq!(examine(&*disk, Mode::Check).unwrap().findings, [], "after {findings:?}");
    let images = disk.crash_images();
    for (cut, seed) in images.cuts().flat_map(|cut| [(cut, 1), (cut, 2)]) {
        let image = images.image(cut, seed);
        examine(&image, Mode::Repair).unwrap();
        assert_eq!(examine(&image, Mode::Check).unwrap().findings, [], "cut {cut} of {findings:?}");
        recover(&image).unwrap();
    }
    tree(&disk)
}

/// The same for damage that costs nothing.
fn expect_healed(disk: Arc<SimDisk>, findings: &[Finding]) {
    assert_eq!(expect(disk, findings), tree(&volume()));
}

/// The same for records that are in the log and should not be. `lost` paths are gone, `found` have come.
fn expect_tree(records: &[Record], findings: &[Finding], lost: &[&str], found: &[&str]) {
    let disk = volume();
    record(&disk, records);
    let after = expect(disk, findings);
    let before = tree(&volume());
    let mut expected: BTreeSet<&str> = before.keys().map(String::as_str).collect();
    for path in lost {
        assert!(expected.remove(path), "{path}");
    }
    expected.extend(found);
    let paths: BTreeSet<&str> = after.keys().map(String::as_str).collect();
    assert_eq!(paths, expected, "{findings:?}");
    for (path, contents) in before.iter().filter(|(path, _)| paths.contains(path.as_str())) {
        assert_eq!(&after[path], contents, "{path} after {findings:?}");
    }
}

#[test]
fn an_undamaged_volume_is_clean_and_left_alone() {
    let disk = volume();
    let before = disk.position();
    for mode in [Mode::Check, Mode::Preen, Mode::Repair] {
        let report = examine(&*disk, mode).unwrap();
        assert_eq!((report.findings.len(), report.exit_code(), report.inodes), (0, 0, 307));
    }
    assert_eq!(disk.position(), before);
}

#[test]
fn orphans_are_no_damage() {
    let disk = volume();
    record(&disk, &[Record::RemoveName { ino: TAKE, name: name(REEL, b"take.mxf") }]);
    let report = examine(&*disk, Mode::Check).unwrap();
    assert_eq!((report.findings.len(), report.orphans, report.replayed), (0, 1, 1));
}

#[test]
fn a_superblock_is_written_again() {
    for index in 0..4 {
        let disk = volume();
        let place = Geometry::superblock_places(DISK)[index];
        destroy(&disk, place);
        expect_healed(disk, &[Finding::SuperblockDamaged { place, cause: SuperblockError::Foreign }]);
    }
}

/// A device that failed was called one without a superblock: as if somebody had mounted the wrong one.
#[test]
fn a_device_that_cannot_be_read_is_told_from_one_that_is_no_volume() {
    let disk = volume();
    disk.inject(Some(Fault::after(0)));
    let cause = SuperblockError::Unreadable;
    assert_eq!(examine(&*disk, Mode::Check), Err(FsckError::Superblock(cause)));
    assert!(matches!(recover(&*disk), Err(RecoveryError::Superblock(found)) if found == cause));
    let place = Geometry::superblock_places(DISK)[0];
    disk.inject(Some(Fault::after(0).within(place, Bytes(BLOCK))));
    let report = examine(&*disk, Mode::Check).unwrap();
    assert_eq!(report.findings, [Finding::SuperblockDamaged { place, cause }]);
}

#[test]
fn three_superblocks_are_written_again_from_the_fourth() {
    for kept in 0..4 {
        let disk = volume();
        let places = Geometry::superblock_places(DISK);
        let damaged: Vec<_> = places.into_iter().filter(|&place| place != places[kept]).collect();
        damaged.iter().for_each(|&place| destroy(&disk, place));
        let cause = SuperblockError::Foreign;
        let findings: Vec<_> =
            damaged.into_iter().map(|place| Finding::SuperblockDamaged { place, cause }).collect();
        expect_healed(disk, &findings);
    }
}

#[test]
fn a_superblock_of_another_volume_is_written_over() {
    let disk = volume();
    let place = Geometry::superblock_places(DISK)[0];
    let foreign = Superblock { uuid: [9; 16], generation: 1, ..find_superblock(&*disk).unwrap() };
    disk.write_at(place, &foreign.encode()[..]).unwrap();
    disk.flush().unwrap();
    expect_healed(disk, &[Finding::SuperblockForeign { place }]);
}

#[test]
fn the_protection_block_is_written_again() {
    let disk = volume();
    destroy(&disk, DeviceOffset(MMP));
    expect_healed(disk, &[Finding::MmpDamaged]);
}

#[test]
fn a_copy_of_the_table_or_of_a_shard_is_written_again_from_the_other() {
    for copy in [false, true] {
        let disk = volume();
        let table = find_superblock(&*disk).unwrap().table;
        let address = if copy { table.copy } else { table.address };
        destroy(&disk, address);
        expect_healed(disk, &[Finding::TableCopyDamaged { address }]);
        for (shard, location) in self::table(&volume()) {
            let disk = volume();
            let address = if copy { location.pieces[0].copy } else { location.pieces[0].address };
            destroy(&disk, address);
            expect_healed(disk, &[Finding::ShardCopyDamaged { shard, address }]);
        }
    }
}

#[test]
fn metadata_lost_in_both_copies_is_told_again_by_the_checkpoint_before_and_the_log() {
    let older = |disk: &SimDisk| Finding::OlderCheckpoint {
        generation: find_superblock(disk).unwrap().generation - 1,
    };
    let disk = volume();
    let table = find_superblock(&*disk).unwrap().table;
    destroy(&disk, table.address);
    destroy(&disk, table.copy);
    let finding = older(&disk);
    expect_healed(disk, &[finding]);
    let disk = volume();
    let (_, location) = &self::table(&disk)[0];
    destroy(&disk, location.pieces[0].address);
    destroy(&disk, location.pieces[0].copy);
    let finding = older(&disk);
    expect_healed(disk, &[finding]);
}

#[test]
fn a_volume_without_any_table_is_not_repaired() {
    let disk = volume();
    for superblock in Superblocks::read(&*disk).unwrap().candidates() {
        let table = superblock.table;
        destroy(&disk, table.address);
        destroy(&disk, table.copy);
    }
    let report = examine(&*disk, Mode::Repair).unwrap();
    let generation = find_superblock(&*disk).unwrap().generation;
    assert_eq!(report.findings, [Finding::TableLost { generation }]);
    assert_eq!(report.exit_code(), 4);
}

#[test]
fn a_lost_shard_costs_its_inodes_and_no_others() {
    let disk = settled_volume();
    let (shard, location) = table(&disk).remove(1);
    destroy(&disk, location.pieces[0].address);
    destroy(&disk, location.pieces[0].copy);
    assert!(matches!(recover(&*disk), Err(RecoveryError::Damaged { .. })));
    let after = expect(disk, &[Finding::ShardLost { shard }]);
    let mut expected = tree(&settled_volume());
    let lost = expected.len();
    expected.retain(|path, _| after.contains_key(path));
    assert_eq!(after, expected);
    assert_eq!(lost - after.len(), 307 - SHARD_INODES as usize + 1);
}

#[test]
fn directories_of_a_lost_shard_are_made_again_for_what_lay_in_them() {
    let disk = settled_volume();
    let (shard, location) = table(&disk).remove(0);
    destroy(&disk, location.pieces[0].address);
    destroy(&disk, location.pieces[0].copy);
    let names = 307 - SHARD_INODES as usize + 1;
    let findings = [
        Finding::ShardLost { shard },
        Finding::RootMissing,
        Finding::DirectoryMissing { directory: DAY, names },
    ];
    let after = expect(disk, &findings);
    assert_eq!(after.len(), 2 + names, "{after:?}");
    assert!(after.contains_key("/lost+found/#6/0299.dpx"), "{after:?}");
}

#[test]
fn a_log_that_goes_on_behind_a_gap_is_told_of() {
    let disk = volume();
    let mut volume = mount(&disk);
    let mut positions = Vec::new();
    for index in 0..4 {
        let (ino, _) = volume.create(Ino::ROOT, &[b'a' + index]).unwrap();
        let before = read_log(&**volume.disk(), &find_superblock(&**volume.disk()).unwrap()).unwrap().end;
        volume.fsync(ino).unwrap();
        positions.push(before);
    }
    let disk = Arc::new(volume.disk().crash(0));
    destroy(&disk, DeviceOffset(LOG_START + positions[1].offset));
    destroy(&disk, DeviceOffset(LOG_START + positions[1].offset + BLOCK));
    let (from, recovered) = (positions[1].sequence, recover(&*disk).unwrap());
    let behind = recovered.behind.unwrap();
    assert_eq!((behind.from, behind.newest, behind.batches), (from, from + 2, 2));
    assert!(behind.changes >= behind.batches, "{behind}");
    let after = expect(disk, &[Finding::LogDamaged(behind)]);
    assert!(after.contains_key("/a") && !after.contains_key("/b"));
}

#[test]
fn a_record_about_nothing_is_left_out() {
    let disk = volume();
    let lsn = load(&*disk, &find_superblock(&*disk).unwrap()).unwrap().unwrap().metadata.lsn() + 1;
    let ino = Ino(5000);
    record(&disk, &[Record::Size { ino, size: 1 }, Record::Size { ino: TAKE, size: 10_000 }]);
    let contradiction = Contradiction::NoInode(ino);
    assert!(matches!(recover(&*disk), Err(RecoveryError::Contradiction(_))));
    expect_healed(disk, &[Finding::LogContradiction { lsn, contradiction }]);
}

#[test]
fn the_root_is_made_again() {
    expect_tree(&[Record::Remove { ino: Ino::ROOT }], &[Finding::RootMissing], &[], &[]);
    let node = Record::Create {
        ino: Ino::ROOT,
        kind: FileKind::Fifo,
        generation: 0,
        attributes: CoreAttributes::default(),
        target: Box::default(),
        device: 0,
    };
    expect_tree(&[Record::Remove { ino: Ino::ROOT }, node], &[Finding::RootNotDirectory], &[], &[]);
    let named = Record::AddName { ino: Ino::ROOT, name: name(REEL, b"root") };
    expect_tree(&[named], &[Finding::RootNamed], &[], &[]);
}

#[test]
fn a_missing_directory_is_made_again_in_lost_and_found() {
    let disk = volume();
    record(&disk, &[Record::Remove { ino: REEL }]);
    assert!(matches!(recover(&*disk), Err(RecoveryError::LostName(_))));
    let after = expect(disk, &[Finding::DirectoryMissing { directory: REEL, names: 4 }]);
    assert_eq!(after["/lost+found/#2/take.mxf"].1, [1; 10_000]);
    assert_eq!(after["/lost+found/#2/day/notes.txt"].1, [3; 10_000]);
}

/// `AddName` of a name that should not be, in addition to those there are.
fn one_more_name(ino: Ino, wrong: Name, finding: Finding, found: &[&str]) {
    expect_tree(&[Record::AddName { ino, name: wrong }], &[finding], &[], found);
}

/// The same instead of the one that is there, so that the inode is lost.
fn another_name(ino: Ino, old: Name, wrong: Name, finding: Finding) {
    let path = format!("/reel/{}", old.name.escape_ascii());
    let records = [Record::RemoveName { ino, name: old }, Record::AddName { ino, name: wrong }];
    let found = format!("/lost+found/#{ino}");
    expect_tree(&records, &[finding], &[&path], &["/lost+found", &found]);
}

#[test]
fn names_in_what_is_no_directory_are_removed() {
    let take = || name(REEL, b"take.mxf");
    let parent = Ino(1 << 50);
    one_more_name(TAKE, name(parent, b"x"), Finding::ParentImpossible { ino: TAKE, parent }, &[]);
    another_name(TAKE, take(), name(parent, b"x"), Finding::ParentImpossible { ino: TAKE, parent });
    let parent = SLATE;
    one_more_name(TAKE, name(parent, b"x"), Finding::ParentNotDirectory { ino: TAKE, parent }, &[]);
    another_name(TAKE, take(), name(parent, b"x"), Finding::ParentNotDirectory { ino: TAKE, parent });
}

#[test]
fn names_that_cannot_be_are_removed() {
    for wrong in [&b"."[..], b".."] {
        let finding = || Finding::NameInvalid { ino: TAKE, name: wrong.into() };
        one_more_name(TAKE, name(REEL, wrong), finding(), &[]);
        another_name(TAKE, name(REEL, b"take.mxf"), name(REEL, wrong), finding());
    }
}

#[test]
fn of_equal_names_one_remains() {
    let finding = Finding::NameRepeated { ino: TAKE, name: b"take.mxf"[..].into() };
    one_more_name(TAKE, name(REEL, b"take.mxf"), finding, &[]);
    let finding = Finding::NameDuplicate { ino: SLATE, other: TAKE, name: b"take.mxf"[..].into() };
    one_more_name(SLATE, name(REEL, b"take.mxf"), finding, &["/reel/take.mxf#4"]);
}

#[test]
fn a_directory_has_one_name() {
    one_more_name(DAY, name(Ino::ROOT, b"night"), Finding::DirectoryNames { ino: DAY, names: 2 }, &[]);
    one_more_name(DAY, name(REEL, b"day"), Finding::DirectoryNames { ino: DAY, names: 2 }, &[]);
}

#[test]
fn directories_that_the_root_does_not_lead_to_are_found_again() {
    let gone: Vec<String> = tree(&volume()).into_keys().filter(|path| path.starts_with("/reel")).collect();
    let come: Vec<String> = gone.iter().map(|path| path.replacen("/reel", "/lost+found/#2", 1)).collect();
    let gone: Vec<&str> = gone.iter().map(String::as_str).collect();
    let come: Vec<&str> = come.iter().map(String::as_str).chain(["/lost+found"]).collect();
    let unnamed = Record::RemoveName { ino: REEL, name: name(Ino::ROOT, b"reel") };
    let finding = Finding::DirectoryUnreachable { ino: REEL };
    expect_tree(std::slice::from_ref(&unnamed), &[finding], &gone, &come);
    let circle = Record::AddName { ino: REEL, name: name(DAY, b"reel") };
    expect_tree(&[unnamed, circle], &[Finding::DirectoryCycle { ino: REEL }], &gone, &come);
}

#[test]
fn a_name_for_which_its_directory_has_no_room_is_moved() {
    // Names that differ only in capitals have one hash.
    let spell = |bits: usize| -> Vec<u8> {
        let letter = |(at, byte): (usize, &u8)| match bits >> at & 1 {
            1 => byte.to_ascii_uppercase(),
            _ => *byte,
        };
        b"crowdeddirectory".iter().enumerate().map(letter).collect()
    };
    let records: Vec<Record> =
        (0..4098).map(|bits| Record::AddName { ino: TAKE, name: name(REEL, &spell(bits)) }).collect();
    let disk = volume();
    record(&disk, &records);
    let crowded = Finding::DirectoryCrowded { ino: TAKE, parent: REEL };
    // Not at every cut of the repair, as for others: every look at so many names of one hash takes its time.
    let report = examine(&*disk, Mode::Repair).unwrap();
    assert_eq!((&*report.findings, report.exit_code()), (&[crowded.clone(), crowded][..], 1));
    assert_eq!(examine(&*disk, Mode::Check).unwrap().findings, []);
    let recovered = recover(&*disk).unwrap();
    let take = recovered.metadata.get(TAKE).unwrap();
    assert_eq!(take.names.iter().filter(|name| name.parent == REEL).count(), 4097);
}

#[test]
fn symbolic_links_have_a_target_of_their_size() {
    let record = Record::Size { ino: LINK, size: 99 };
    expect_tree(&[record], &[Finding::SymlinkSize { ino: LINK, size: 99 }], &[], &[]);
    let empty = Record::Create {
        ino: LINK,
        kind: FileKind::Symlink,
        generation: 0,
        attributes: CoreAttributes::default(),
        target: Box::default(),
        device: 0,
    };
    let named = Record::AddName { ino: LINK, name: name(REEL, b"latest") };
    let records = [Record::Remove { ino: LINK }, empty, named];
    expect_tree(&records, &[Finding::SymlinkEmpty { ino: LINK }], &["/reel/latest"], &[]);
}

#[test]
fn too_many_extended_attributes_go_the_longest_first() {
    let records: Vec<Record> = (0..70)
        .map(|index| Record::SetXattr {
            ino: TAKE,
            name: format!("user.{index:02}").into_bytes().into(),
            value: vec![1; 65_000 - index].into(),
        })
        .collect();
    let bytes = b"user.xy".len() + (0..70).map(|index| 65_000 - index + 7).sum::<usize>();
    let disk = volume();
    record(&disk, &records);
    expect_healed(Arc::clone(&disk), &[Finding::XattrsTooLarge { ino: TAKE, bytes }]);
    let volume = mount(&disk);
    assert_eq!(volume.core().get_xattr(TAKE, b"user.x"), Ok(&b"y"[..]));
    assert!(volume.core().get_xattr(TAKE, b"user.00").is_err());
    assert!(volume.core().get_xattr(TAKE, b"user.69").is_ok());
}

fn extents(disk: &SimDisk, ino: Ino) -> Vec<Extent> {
    let recovered = recover(disk).unwrap();
    recovered.metadata.get(ino).unwrap().extents().unwrap().iter().copied().collect()
}

/// Maps three blocks behind the end of a file to `start`.
fn map_behind(disk: &SimDisk, ino: Ino, start: u64) {
    let extent = Extent { logical: 10, start, count: 3, unwritten: false };
    record(disk, &[Record::Map { ino, extent }]);
}

#[test]
fn blocks_have_one_owner() {
    let disk = volume();
    let start = extents(&disk, TAKE)[0].start;
    map_behind(&disk, SLATE, start);
    assert!(matches!(recover(&*disk), Err(RecoveryError::Overlap { ino: SLATE, .. })));
    let run = BlockRun { start, count: 3 };
    expect_healed(disk, &[Finding::ExtentOverlap { ino: SLATE, run, owner: Some(TAKE) }]);

    let disk = volume();
    map_behind(&disk, TAKE, start);
    expect_healed(Arc::clone(&disk), &[Finding::ExtentOverlap { ino: TAKE, run, owner: Some(TAKE) }]);
    assert_eq!(extents(&disk, TAKE), extents(&volume(), TAKE));
}

#[test]
fn blocks_of_metadata_are_no_files() {
    let disk = volume();
    let superblock = find_superblock(&*disk).unwrap();
    let start = superblock.geometry.block_at(superblock.table.address).unwrap();
    map_behind(&disk, TAKE, start);
    let run = BlockRun { start, count: superblock.table.space() / BLOCK };
    expect_healed(disk, &[Finding::ExtentOverlap { ino: TAKE, run, owner: None }]);
}

#[test]
fn blocks_lie_on_the_volume() {
    let disk = volume();
    let blocks = find_superblock(&*disk).unwrap().geometry.blocks();
    map_behind(&disk, TAKE, blocks - 1);
    let run = BlockRun { start: blocks, count: 2 };
    expect_healed(disk, &[Finding::ExtentOutside { ino: TAKE, run }]);
}

/// A disk that calls somebody after each read, with what was read, and before each write.
struct Seen<R, W> {
    disk: Arc<SimDisk>,
    read: R,
    write: W,
}

impl<R, W> Device for Seen<R, W>
where
    R: Fn(DeviceOffset, &mut [u8]) + Send + Sync,
    W: Fn(DeviceOffset) + Send + Sync,
{
    fn size(&self) -> Bytes {
        self.disk.size()
    }
    fn geometry(&self) -> avfs_io::device::Geometry {
        Device::geometry(&*self.disk)
    }
    fn read_at(&self, offset: DeviceOffset, into: &mut [u8]) -> Result<(), IoError> {
        self.disk.read_at(offset, into)?;
        (self.read)(offset, into);
        Ok(())
    }
    fn write_at(&self, offset: DeviceOffset, from: &[u8]) -> Result<(), IoError> {
        (self.write)(offset);
        self.disk.write_at(offset, from)
    }
    fn flush(&self) -> Result<(), IoError> {
        self.disk.flush()
    }
    fn discard(&self, offset: DeviceOffset, length: Bytes) -> Result<(), IoError> {
        self.disk.discard(offset, length)
    }
}

#[test]
fn a_volume_that_another_host_renews_is_left_alone() {
    let disk = volume();
    let uuid = find_superblock(&*disk).unwrap().uuid;
    let sequence = std::sync::atomic::AtomicU64::new(5);
    // Its protection block is another one at each look.
    let read = |offset, into: &mut [u8]| {
        if offset == DeviceOffset(MMP) {
            let sequence = sequence.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let host = "nas-2".into();
            let block = MmpBlock { uuid, sequence, boot_id: [9; 16], host, ..MmpBlock::default() };
            into.copy_from_slice(&block.encode()[..]);
        }
    };
    let disk = Seen { disk, read, write: |_| panic!("writes to a volume in use") };
    for mode in [Mode::Check, Mode::Preen, Mode::Repair] {
        let refused = check_by(&disk, mode, &Hurried::default()).unwrap_err();
        assert!(refused.to_string().contains("in use by host nas-2"), "{refused}");
    }
}

/// A repair did not hold the protection block: meanwhile another host could mount the volume, as one that nobody has.
#[test]
fn a_volume_under_repair_is_in_use() {
    for (mode, written) in [(Mode::Check, vec![]), (Mode::Preen, vec![true]), (Mode::Repair, vec![true])] {
        let disk = volume();
        destroy(&disk, Geometry::superblock_places(DISK)[1]);
        // Found damaged before it is held, and repaired by that.
        destroy(&disk, DeviceOffset(MMP));
        let held = std::sync::Mutex::default();
        let write = |offset| {
            if Geometry::superblock_places(DISK).contains(&offset) {
                let block = protection::read(&*disk).unwrap();
                Vec::push(&mut *held.lock().unwrap(), block.is_some_and(|block| block.sequence != 0));
            }
        };
        let watched = Seen { disk: Arc::clone(&disk), read: |_, _: &mut [u8]| (), write };
        let report = check_by(&watched, mode, &Hurried::default()).unwrap();
        assert_eq!(report.findings.len(), 2, "{:?}", report.findings);
        assert_eq!(*held.lock().unwrap(), written, "{mode:?}");
        let left = protection::read(&*disk).unwrap().map(|block| block.sequence);
        assert_eq!(left, (mode != Mode::Check).then_some(0), "{mode:?}");
    }
}

#[test]
fn a_full_volume_says_that_it_has_no_room_for_a_repair() {
    let disk = volume();
    let superblock = find_superblock(&*disk).unwrap();
    let recovered = recover(&*disk).unwrap();
    let used: Vec<BlockRun> = recovered.allocator.used_runs().collect();
    let mut free = Vec::new();
    let mut at = 0;
    for run in used.into_iter().chain([BlockRun { start: superblock.geometry.blocks(), count: 0 }]) {
        if run.start > at {
            free.push(BlockRun { start: at, count: run.start - at });
        }
        at = run.end();
    }
    let mut logical = 100;
    let mut records = vec![Record::AddName { ino: TAKE, name: name(REEL, b".") }];
    for run in free {
        let extent = Extent { logical, start: run.start, count: run.count, unwritten: true };
        records.push(Record::Map { ino: TAKE, extent });
        logical += run.count + 1;
    }
    record(&disk, &records);
    let before = disk.position();
    assert_eq!(examine(&*disk, Mode::Repair), Err(FsckError::Full));
    assert_eq!(disk.position(), before);
}

#[test]
fn a_device_that_was_cut_short_or_is_no_volume_is_told_so() {
    let disk = SimDisk::new(DISK);
    assert_eq!(examine(&disk, Mode::Repair), Err(FsckError::Superblock(SuperblockError::Foreign)));
    let whole = volume();
    let mut start = vec![0; 4 << 20];
    whole.read_at(DeviceOffset(0), &mut start).unwrap();
    let short = SimDisk::new(Bytes::from_mib(100));
    short.write_at(DeviceOffset(0), &start).unwrap();
    let error = examine(&short, Mode::Repair).unwrap_err();
    assert_eq!(error, FsckError::Truncated { volume: DISK, device: Bytes::from_mib(100) });
}

/// Every address at which metadata lies, and how long it is.
fn metadata_places(disk: &SimDisk) -> Vec<(u64, u64)> {
    let mut places: Vec<(u64, u64)> =
        Geometry::superblock_places(DISK).into_iter().map(|place| (place.0, BLOCK)).collect();
    places.push((MMP, BLOCK));
    places.push((LOG_START, 256 << 10));
    let superblock = find_superblock(disk).unwrap();
    let pieces = table(disk).into_iter().flat_map(|(_, location)| location.pieces);
    for piece in pieces.chain([superblock.table]) {
        places.push((piece.address.0, piece.space()));
        places.push((piece.copy.0, piece.space()));
        // The one before is somewhere in the same unit.
        let unit = superblock.geometry.block_at(piece.address).unwrap() / UNIT_BLOCKS * UNIT_BLOCKS;
        places.push((superblock.geometry.block_address(unit).0, UNIT / 8));
    }
    places
}

/// A volume in the middle of its life.
fn interrupted_volume() -> SimDisk {
    let mut volume = mount(&volume());
    for index in 0..10 {
        let (ino, handle) = volume.create(REEL, &[b'a' + index]).unwrap();
        volume.write(handle, 0, &[index; 5000]).unwrap();
        volume.fsync(ino).unwrap();
    }
    volume.disk().crash(0)
}

/// After a repair there is nothing left to find, and the volume mounts.
fn check_repaired(disk: SimDisk) {
    let disk = Arc::new(disk);
    let checked = examine(&*disk, Mode::Check);
    let repaired = examine(&*disk, Mode::Repair);
    if let (Ok(checked), Ok(repaired)) = (&checked, &repaired) {
        assert_eq!(checked.findings, repaired.findings);
    }
    match repaired {
        Ok(report) if report.exit_code() < 4 => {
            assert_eq!(examine(&*disk, Mode::Check).unwrap().findings, [], "after {:?}", report.findings);
            tree(&disk);
        }
        // Nothing leads to any metadata.
        Ok(report) => assert!(matches!(report.findings.last(), Some(Finding::TableLost { .. }))),
        Err(error) => assert!(matches!(error, FsckError::Superblock(_)), "{error}"),
    }
}

fn some_ino() -> impl Strategy<Value = Ino> {
    prop_oneof![8 => 1u64..12, 1 => 250u64..310, 1 => 600u64..1200, 1 => any::<u64>()].prop_map(Ino)
}

fn some_name() -> impl Strategy<Value = Name> {
    let names =
        prop::sample::select(vec![&b"x"[..], b"y", b".", b"..", b"take.mxf", b"lost+found", b"#3", b"reel"]);
    (some_ino(), names).prop_map(|(parent, spelling)| name(parent, spelling))
}

fn some_kind() -> impl Strategy<Value = FileKind> {
    prop::sample::select(vec![FileKind::Regular, FileKind::Directory, FileKind::Symlink, FileKind::Fifo])
}

fn some_record() -> impl Strategy<Value = Record> {
    let extent =
        (0u64..50, prop_oneof![0u64..50_000, any::<u32>().prop_map(u64::from)], 1u64..5000, any::<bool>())
            .prop_map(|(logical, start, count, unwritten)| Extent { logical, start, count, unwritten });
    prop_oneof![
        (some_ino(), some_kind()).prop_map(|(ino, kind)| Record::Create {
            ino,
            kind,
            generation: 0,
            attributes: CoreAttributes::default(),
            target: Box::default(),
            device: 0,
        }),
        some_ino().prop_map(|ino| Record::Remove { ino }),
        (some_ino(), 0u64..1 << 40).prop_map(|(ino, size)| Record::Size { ino, size }),
        (some_ino(), some_name()).prop_map(|(ino, name)| Record::AddName { ino, name }),
        (some_ino(), some_name()).prop_map(|(ino, name)| Record::AddName { ino, name }),
        (some_ino(), some_name()).prop_map(|(ino, name)| Record::AddName { ino, name }),
        (2u64..8, any::<bool>()).prop_map(|(ino, _)| {
            let names =
                [(1, "reel"), (2, "take.mxf"), (2, "slate.wav"), (2, "latest"), (2, "day"), (6, "notes.txt")];
            let (parent, spelling) = names[ino as usize - 2];
            Record::RemoveName { ino: Ino(ino), name: name(Ino(parent), spelling.as_bytes()) }
        }),
        (some_ino(), extent).prop_map(|(ino, extent)| Record::Map { ino, extent }),
    ]
}

thread_local! {
    /// Made once: making it takes longer than damaging and repairing it.
    static INTERRUPTED: avfs_io::sim::CrashImages = interrupted_volume().crash_images();
}

fn fresh() -> SimDisk {
    INTERRUPTED.with(|images| images.image(*images.cuts().end(), 0))
}

proptest! {
    #[test]
    fn any_damaged_bytes_of_metadata_are_repaired(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 1u64..700, 1u8..), 1..8)
    ) {
        let disk = fresh();
        let places = metadata_places(&disk);
        for (place, at, length, bits) in damage {
            let (address, space) = places[place.index(places.len())];
            let at = at % space;
            let length = length.min(BLOCK - at % BLOCK);
            let block = DeviceOffset(address + at / BLOCK * BLOCK);
            let mut bytes = vec![0; BLOCK as usize];
            disk.read_at(block, &mut bytes).unwrap();
            for byte in &mut bytes[(at % BLOCK) as usize..][..length as usize] {
                *byte ^= bits;
            }
            disk.write_at(block, &bytes).unwrap();
        }
        check_repaired(disk);
    }

    #[test]
    fn any_contradictions_are_repaired(records in prop::collection::vec(some_record(), 1..40)) {
        let disk = fresh();
        record(&disk, &records);
        check_repaired(disk);
    }
}
