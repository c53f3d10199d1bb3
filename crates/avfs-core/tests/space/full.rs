//! A volume is full when statfs(2) says so, and not before.

use crate::{MIB, available, make, remove, volume};
use avfs_core::Error;
use avfs_core::config::Config;
use avfs_core::core::Operation;
use avfs_core::error::Result;
use avfs_core::format::{Geometry, SHARED_UNITS, Superblock, UNIT};
use avfs_core::fsck::{Mode, check};
use avfs_core::mkfs::{self, MkfsOptions};
use avfs_core::simulation::SimVolume;
use avfs_core::types::*;
use avfs_core::volume::{Done, OpenOptions, Volume};
use avfs_io::Device;
use avfs_io::device::{FileDevice, OpenMode};
use avfs_io::pool::Pool;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::mpsc::sync_channel;
use units::{Bytes, Ino};

/// What a volume may have left when it refuses a name: less than a part in a hundred.
fn next_to_nothing(size_mib: u64) -> u64 {
    size_mib * MIB / 100
}

/// Files of these lengths until the volume is full; then those go that `stays` does not want, but one in each unit, so that no unit is
/// wholly free.
fn fragment(volume: &mut SimVolume, lengths: &[u64], stays: impl Fn(usize) -> bool) -> usize {
    let mut made = Vec::new();
    for index in 0.. {
        let name = format!("{index}");
        match make(volume, &name, lengths[index % lengths.len()]) {
            Ok(ino) => made.push((name, ino)),
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let count = made.len();
    let geometry = volume.core().geometry();
    let mut held = BTreeSet::new();
    for (index, (name, ino)) in made.into_iter().enumerate() {
        let extents = volume.core().extents(ino).unwrap();
        let units = |one: &ExtentReport| {
            let first = one.device_offset - geometry.data_start.0;
            first / UNIT..=(first + one.length - 1) / UNIT
        };
        let is_first = extents.iter().flat_map(units).filter(|unit| held.insert(*unit)).count() > 0;
        if !stays(index) && !is_first {
            remove(volume, &name, ino);
        }
    }
    volume.sync().unwrap();
    count
}

/// As a client sees it: the change is tried again as long as space is on its way, and held back while the log runs full.
fn changed<R>(volume: &mut SimVolume, mut change: impl FnMut(&mut SimVolume) -> Result<R>) -> Result<R> {
    loop {
        while volume.core().under_pressure() {
            assert!(volume.step());
        }
        let turn = volume.core().space_turn();
        let result = change(volume);
        if !matches!(result, Err(Error::NoSpace)) || !volume.with(|core, now| core.await_space(now)) {
            return result;
        }
        while volume.core().space_turn() == turn {
            assert!(volume.step(), "it waits for nothing");
        }
    }
}

/// Attributes of 60,000 bytes, each on a file of its own, until there is no space for one more.
fn fill_with_metadata(volume: &mut SimVolume) -> usize {
    for index in 0.. {
        let name = format!("a name like those that people give to their films, take {index}");
        let made = changed(volume, |volume| {
            volume.with(|core, now| {
                let caller = Caller::default();
                core.make_node(now, caller, Ino::ROOT, name.as_bytes(), FileKind::Regular, 0o644, 0, 0)
            })
        });
        let set = made.and_then(|entry| {
            let ino = entry.attributes.ino;
            changed(volume, |volume| {
                volume.with(|core, now| {
                    core.set_xattr(now, ino, b"user.note", &[7; 60_000], XattrFlags::empty())
                })
            })
        });
        match set {
            Ok(()) => {}
            Err(Error::NoSpace) => return index,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

fn superblocks(disk: &dyn Device) -> Vec<Superblock> {
    let places = Geometry::superblock_places(disk.size());
    let read = |place| {
        let mut block = vec![0; 4096];
        disk.read_at(place, &mut block).unwrap();
        Superblock::decode(&block).unwrap()
    };
    places.into_iter().map(read).collect()
}

/// Files of 1 MiB filled a volume and three of each four were removed: every unit of 8 MiB held a file, and since metadata took
/// whole units only, names were refused with two thirds of the volume free.
#[test]
fn names_and_attributes_are_made_while_anything_is_free() {
    const SIZE: u64 = 256;
    let mut volume = volume(SIZE);
    fragment(&mut volume, &[MIB], |index| index % 7 == 0);
    assert!(available(&volume) > SIZE * MIB / 3);
    assert_eq!(volume.core().report().free_units, 0);
    let kept = fill_with_metadata(&mut volume);
    assert!(available(&volume) < next_to_nothing(SIZE), "{} are left after {kept}", available(&volume));
    assert_eq!(volume.core().failure(), None);
    volume.core().audit().unwrap();

    // All of it is there after a loss of power, and nothing contradicts anything.
    volume.sync().unwrap();
    let disk = std::sync::Arc::new(volume.disk().crash(3));
    let report = check(&*disk, Mode::Check).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    // And when it has been written home, for which there is room kept aside.
    let disk = volume.unmount().unwrap();
    let report = check(&*disk, Mode::Check).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    // Who does not know of shared units finds no superblock that does not tell of them.
    let told: Vec<_> =
        superblocks(&*disk).iter().map(|one| (one.generation, one.features.incompatible)).collect();
    assert!(told.iter().all(|(_, features)| features & SHARED_UNITS != 0), "{told:?}");
    let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
    let mut volume = SimVolume::mount(disk, &pool, Config::default(), 2).unwrap();
    volume.core().audit().unwrap();
    let found = volume.core().statistics().files;
    assert!(found > 0);

    // A full volume can be emptied, and then it is as it was.
    let mut names = Vec::new();
    let each = &mut |entry: DirectoryEntry| {
        names.push((entry.name.to_vec(), entry.ino));
        true
    };
    volume.with(|core, _| core.read_directory(Ino::ROOT, 2, false, each)).unwrap();
    assert!(names.len() > kept);
    for (name, _) in names {
        changed(&mut volume, |volume| volume.with(|core, now| core.unlink(now, Ino::ROOT, &name))).unwrap();
    }
    for _ in 0..3 {
        volume.sync().unwrap();
        volume.pass(units::Duration::from_secs(70));
    }
    assert!(available(&volume) > SIZE * MIB / 2, "{}", available(&volume));
    volume.core().audit().unwrap();
}

/// A volume that has whole units for its metadata can be mounted by what does not know of shared ones.
#[test]
fn a_volume_with_room_is_what_it_always_was() {
    let mut volume = volume(512);
    for index in 0..300 {
        make(&mut volume, &format!("{index}"), 4096 * (index % 50 + 1)).unwrap();
    }
    let disk = volume.unmount().unwrap();
    assert!(superblocks(&*disk).iter().all(|found| found.features.incompatible == 0));
}

/// A file had the last space only reserved, for bytes that its writer had announced: names were refused until it was closed.
#[test]
fn names_get_space_that_is_only_reserved() {
    let mut volume = volume(256);
    let (_, handle) = volume.create(Ino::ROOT, b"take.mov").unwrap();
    // As Windows writes: single bytes ahead of the data.
    for at in 1..=8 {
        volume.write(handle, at * 128 * 1024 - 1, &[0]).unwrap();
    }
    volume.write(handle, 0, &[5; 128 * 1024]).unwrap();
    volume.sync().unwrap();
    let (_, other) = volume.create(Ino::ROOT, b"rest").unwrap();
    let mut at = 0;
    // As much as there is without anything being given back.
    while available(&volume) > 0 {
        let length = available(&volume).min(8 * MIB);
        volume.allocate(other, at, length, AllocateMode::Extend).unwrap();
        at += length;
    }
    let made = changed(&mut volume, |volume| {
        volume.with(|core, now| {
            let caller = Caller::default();
            core.make_directory(now, caller, Ino::ROOT, b"later", 0o755, 0).map(|_| ())
        })
    });
    assert_eq!(made, Ok(()));
}

/// On a full volume a file was removed: until its space was durably free, names were refused, though writes waited. Each kind of
/// name, through the volume with its lock and threads.
#[test]
fn names_wait_for_space_that_is_on_its_way() {
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    file.as_file().set_len(256 * MIB).unwrap();
    {
        let device = FileDevice::open(file.path(), OpenMode::Exclusive).unwrap();
        mkfs::make(&device, &MkfsOptions::default()).unwrap();
    }
    let options = OpenOptions { cache_size: Some(Bytes::from_mib(64)), ..OpenOptions::default() };
    let volume = match Volume::open(file.path(), options) {
        Ok(volume) => volume,
        Err(error) => panic!("{error}"),
    };
    let caller = Caller::default();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let there = volume.make_node(caller, Ino::ROOT, b"there", FileKind::Regular, 0o644, 0, 0).unwrap();
    let there = there.attributes.ino;
    let kinds: [(&str, Change<'_>); 8] = [
        ("create", &|name| {
            volume
                .create(caller, Ino::ROOT, name, 0o644, 0, flags)
                .map(|(_, open)| volume.release(open.handle))
        }),
        ("mkdir", &|name| volume.make_directory(caller, Ino::ROOT, name, 0o755, 0).map(|_| ())),
        ("link", &|name| volume.link(there, Ino::ROOT, name).map(|_| ())),
        ("symlink", &|name| volume.make_symlink(caller, Ino::ROOT, name, b"there").map(|_| ())),
        ("mknod", &|name| volume.make_node(caller, Ino::ROOT, name, FileKind::Fifo, 0o644, 0, 0).map(|_| ())),
        ("O_TMPFILE", &|_| {
            let (entry, open) = volume.create_unnamed(caller, Ino::ROOT, 0o644, 0, flags)?;
            volume.release(open.handle);
            volume.forget(entry.attributes.ino, 1);
            Ok(())
        }),
        ("setxattr", &|name| {
            volume.set_xattr(there, &[b"user.", name].concat(), &[1; 500], XattrFlags::empty())
        }),
        ("rename", &|name| {
            let flags = RenameFlags::empty();
            let longer = [name, b" is longer"].concat();
            wait(|done| volume.rename(caller, Ino::ROOT, b"there", Ino::ROOT, &longer, flags, done))
        }),
    ];
    for (index, (kind, change)) in kinds.iter().enumerate() {
        let (entry, opened) = volume.create(caller, Ino::ROOT, b"fill", 0o644, 0, flags).unwrap();
        let mut at = 0;
        // To the last block.
        for step in [8 * MIB, MIB, 64 * 1024, 4096] {
            loop {
                let (sender, receiver) = sync_channel(1);
                let done = Box::new(move |result| _ = sender.send(result));
                volume.allocate(opened.handle, at, step, AllocateMode::Extend, done);
                match receiver.recv().unwrap() {
                    Ok(()) => at += step,
                    Err(Error::NoSpace) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        volume.release(opened.handle);
        wait(|done| volume.unlink(Ino::ROOT, b"fill", done)).unwrap();
        volume.forget(entry.attributes.ino, 1);
        let name = format!("n{index}");
        assert_eq!(change(name.as_bytes()), Ok(()), "{kind} on a full volume, right after rm");
    }
    volume.shutdown().unwrap();
}

type Change<'a> = &'a dyn Fn(&[u8]) -> Result<()>;

fn wait(begin: impl FnOnce(Done<()>)) -> Result<()> {
    let (sender, receiver) = sync_channel(1);
    begin(Box::new(move |result| _ = sender.send(result)));
    receiver.recv().unwrap()
}

/// What is left of a volume that has been through [`Operation::Sync`] and refuses a name.
fn left_when_refused(size_mib: u64, lengths: &[u64], kept: u64, from: u64) -> (u64, Option<String>) {
    let mut volume = volume(size_mib);
    fragment(&mut volume, lengths, |index| (index as u64 + from) % 8 < kept);
    fill_with_metadata(&mut volume);
    let _ = volume.complete(Operation::Sync);
    (available(&volume), volume.core().failure().map(str::to_owned))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    /// However the free space of a volume is cut, a name is refused only when next to nothing is left.
    #[test]
    fn a_name_is_refused_only_when_nothing_is_left(
        lengths in prop::collection::vec((1u64..2500).prop_map(|blocks| blocks * 4096), 1..5),
        kept in 1u64..8,
        from in 0u64..8,
    ) {
        let (left, failure) = left_when_refused(192, &lengths, kept, from);
        prop_assert_eq!(failure, None);
        prop_assert!(left < next_to_nothing(192), "{} bytes are left", left);
    }
}

/// A batch that was one block longer than what was left to the end of the ring wasted 4 MiB of 16. Then there was no room for what the
/// running checkpoint waited for, and clients that are held back while the log is nearly full waited for ever.
#[test]
fn the_end_of_the_ring_is_not_wasted_when_the_log_runs_full() {
    let (left, failure) = left_when_refused(192, &[36864], 6, 0);
    assert_eq!(failure, None);
    assert!(left < next_to_nothing(192), "{left} bytes are left");
}
