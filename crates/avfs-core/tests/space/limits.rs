//! Limits of directories: what is accepted fits, what does not fit is refused before anything has changed, and what is used is exact.

use crate::{MIB, volume};
use avfs_core::Error;
use avfs_core::error::Result;
use avfs_core::events::EventKind;
use avfs_core::limit::LIMIT_XATTR;
use avfs_core::simulation::SimVolume;
use avfs_core::types::*;
use avfs_io::pool::Pool;
use units::{Bytes, Ino};

const CALLER: Caller = Caller { uid: 0, gid: 0, process: 0 };

fn directory(volume: &mut SimVolume, parent: Ino, name: &str) -> Result<Ino> {
    let made = volume.with(|core, now| core.make_directory(now, CALLER, parent, name.as_bytes(), 0o755, 0));
    made.map(|entry| entry.attributes.ino)
}

fn limit(volume: &mut SimVolume, directory: Ino, text: &str) -> Result<()> {
    let (name, value) = (LIMIT_XATTR.as_bytes(), text.as_bytes());
    volume.with(|core, now| core.set_xattr(now, directory, name, value, XattrFlags::empty()))
}

/// Space and files below a directory, as its limit shows them.
fn used(volume: &SimVolume, directory: Ino) -> (u64, u64) {
    let report = volume.core().below_report(directory).unwrap();
    (report.used_bytes, report.used_files)
}

/// A closed file of so many bytes that has its place.
fn make(volume: &mut SimVolume, parent: Ino, name: &str, bytes: u64) -> Result<Ino> {
    let (ino, handle) = volume.create(parent, name.as_bytes())?;
    let made = if bytes > 0 { volume.allocate(handle, 0, bytes, AllocateMode::Extend) } else { Ok(()) };
    volume.with(|core, now| core.release(now, handle));
    made.map(|()| ino)
}

fn rename(volume: &mut SimVolume, from: (Ino, &str), to: (Ino, &str), flags: RenameFlags) -> Result<()> {
    volume.with(|core, now| core.rename(now, CALLER, from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), flags))
}

#[test]
fn what_is_accepted_fits_and_the_rest_is_refused_at_once() {
    let mut volume = volume(256);
    let project = directory(&mut volume, Ino::ROOT, "project").unwrap();
    limit(&mut volume, project, "size=1M").unwrap();
    let (ino, handle) = volume.create(project, b"take").unwrap();
    // One byte takes a page, from the moment it is accepted.
    assert_eq!(volume.write(handle, 0, &[1]), Ok(1));
    assert_eq!(used(&volume, project), (4096, 1));
    assert_eq!(volume.write(handle, 4096, &vec![2; (MIB - 4096) as usize]), Ok((MIB - 4096) as usize));
    assert_eq!(used(&volume, project), (MIB, 1));
    assert_eq!(volume.write(handle, MIB, &[3]), Err(Error::OverLimit));
    assert_eq!(volume.allocate(handle, MIB, 1, AllocateMode::KeepSize), Err(Error::OverLimit));
    // In place nothing is needed; nor does what was accepted fail later.
    assert_eq!(volume.write(handle, 4096, &[4; 8192]), Ok(8192));
    volume.sync().unwrap();
    assert_eq!(volume.write(handle, 0, &[5; 8192]), Ok(8192));
    volume.fsync(ino).unwrap();
    assert_eq!(used(&volume, project), (MIB, 1));
    // A longer file is not a larger one.
    let size = Some(8 * MIB);
    volume.set_attributes(ino, SetAttributes { size, ..SetAttributes::default() }).unwrap();
    assert_eq!(used(&volume, project), (MIB, 1));
    volume.allocate(handle, 0, 64 << 10, AllocateMode::PunchHole).unwrap();
    assert_eq!(used(&volume, project), (MIB - (64 << 10), 1));
    assert_eq!(volume.allocate(handle, MIB, 65 << 10, AllocateMode::Extend), Err(Error::OverLimit));
    volume.allocate(handle, MIB, 64 << 10, AllocateMode::Extend).unwrap();
    assert_eq!(volume.write(handle, 2 * MIB, &[6]), Err(Error::OverLimit));
    // Elsewhere there is room.
    make(&mut volume, Ino::ROOT, "other", 4 * MIB).unwrap();
    // A lower limit refuses what would grow, and nothing else.
    limit(&mut volume, project, "size=64K").unwrap();
    assert_eq!(volume.write(handle, MIB, &[7]), Ok(1));
    assert_eq!(volume.write(handle, 0, &[7]), Err(Error::OverLimit));
    volume.with(|core, now| core.release(now, handle));
    volume.unlink(project, b"take").unwrap();
    assert_eq!(used(&volume, project), (0, 0));
}

#[test]
fn the_innermost_limit_and_every_one_above_count() {
    let mut volume = volume(256);
    let film = directory(&mut volume, Ino::ROOT, "film").unwrap();
    let reel = directory(&mut volume, film, "reel").unwrap();
    let deep = directory(&mut volume, reel, "deep").unwrap();
    limit(&mut volume, film, "size=3M files=6").unwrap();
    limit(&mut volume, reel, "size=2M files=100").unwrap();
    assert_eq!(used(&volume, film), (0, 2));
    make(&mut volume, deep, "a", 2 * MIB).unwrap();
    assert_eq!(make(&mut volume, deep, "b", 4096), Err(Error::OverLimit));
    make(&mut volume, film, "c", MIB).unwrap();
    assert_eq!((used(&volume, film), used(&volume, reel)), ((3 * MIB, 5), (2 * MIB, 3)));
    // The outer one has no room either; the inner one gets some.
    volume.unlink(film, b"c").unwrap();
    limit(&mut volume, reel, "size=4M").unwrap();
    assert_eq!(make(&mut volume, reel, "d", 2 * MIB), Err(Error::OverLimit));
    assert_eq!(make(&mut volume, reel, "e", MIB).map(|_| ()), Ok(()));
    // Six files and directories are there: "deep", "reel", "a", and three that were made before they were refused their space.
    assert_eq!(used(&volume, film).1, 6);
    assert_eq!(directory(&mut volume, deep, "more"), Err(Error::OverLimit));
    let remove = |core: &mut avfs_core::core::Core, now| core.remove_xattr(now, film, LIMIT_XATTR.as_bytes());
    volume.with(remove).unwrap();
    directory(&mut volume, deep, "more").unwrap();
}

#[test]
fn a_file_with_two_names_lies_where_the_older_one_is() {
    let mut volume = volume(256);
    let (one, two) =
        (directory(&mut volume, Ino::ROOT, "1").unwrap(), directory(&mut volume, Ino::ROOT, "2").unwrap());
    limit(&mut volume, two, "size=1M").unwrap();
    let ino = make(&mut volume, one, "clip", 2 * MIB).unwrap();
    // A name there costs that limit nothing...
    volume.with(|core, now| core.link(now, ino, two, b"clip")).unwrap();
    assert_eq!((used(&volume, one), used(&volume, two)), ((2 * MIB, 1), (0, 0)));
    // ...until it is the oldest: removing a name is never refused. Then nothing more fits.
    volume.unlink(one, b"clip").unwrap();
    assert_eq!((used(&volume, one), used(&volume, two)), ((0, 0), (2 * MIB, 1)));
    assert_eq!(make(&mut volume, two, "other", 4096), Err(Error::OverLimit));
    assert_eq!(volume.core().statistics_at(two).available, 0);
    volume.core().audit().unwrap();
}

#[test]
fn a_tree_is_moved_with_all_it_takes_or_refused_as_a_whole() {
    let mut volume = volume(256);
    let (one, two) =
        (directory(&mut volume, Ino::ROOT, "1").unwrap(), directory(&mut volume, Ino::ROOT, "2").unwrap());
    let tree = directory(&mut volume, one, "tree").unwrap();
    let below = directory(&mut volume, tree, "below").unwrap();
    for index in 0..20 {
        make(&mut volume, below, &format!("{index}"), MIB).unwrap();
    }
    // Accepted, and not on the device yet.
    let (_, handle) = volume.create(below, b"written").unwrap();
    volume.write(handle, 0, &[1; 4096]).unwrap();
    let taken = (20 * MIB + 4096, 23);
    assert_eq!((used(&volume, one), used(&volume, two)), (taken, (0, 0)));
    limit(&mut volume, two, "size=20M").unwrap();
    let plain = RenameFlags::empty();
    assert_eq!(rename(&mut volume, (one, "tree"), (two, "tree"), plain), Err(Error::OverLimit));
    assert_eq!((used(&volume, one), used(&volume, two)), (taken, (0, 0)));
    limit(&mut volume, two, "size=21M files=23").unwrap();
    rename(&mut volume, (one, "tree"), (two, "tree"), plain).unwrap();
    assert_eq!((used(&volume, one), used(&volume, two)), ((0, 0), taken));
    volume.core().audit().unwrap();
    volume.sync().unwrap();
    assert_eq!(used(&volume, two), taken);
    // Within the limit a move changes nothing, also where it is reached.
    rename(&mut volume, (tree, "below"), (two, "up"), plain).unwrap();
    assert_eq!(used(&volume, two), taken);
    // What takes another's place needs only what it takes more.
    make(&mut volume, Ino::ROOT, "new", 2 * MIB).unwrap();
    let exchange = RenameFlags::EXCHANGE;
    assert_eq!(rename(&mut volume, (Ino::ROOT, "new"), (below, "3"), plain), Err(Error::OverLimit));
    assert_eq!(rename(&mut volume, (Ino::ROOT, "new"), (below, "3"), exchange), Err(Error::OverLimit));
    make(&mut volume, Ino::ROOT, "same", MIB).unwrap();
    rename(&mut volume, (Ino::ROOT, "same"), (below, "3"), plain).unwrap();
    assert_eq!(used(&volume, two), taken);
    volume.core().audit().unwrap();
}

#[test]
fn the_disk_of_a_directory_with_a_limit_is_its_limit() {
    let mut volume = volume(256);
    let whole = volume.core().statistics();
    let film = directory(&mut volume, Ino::ROOT, "film").unwrap();
    let reel = directory(&mut volume, film, "reel").unwrap();
    let file = make(&mut volume, reel, "a", MIB).unwrap();
    limit(&mut volume, film, "size=10M").unwrap();
    for ino in [film, reel, file] {
        let figures = volume.core().statistics_at(ino);
        assert_eq!((figures.blocks, figures.free, figures.available), (2560, 2304, 2304), "{ino}");
    }
    assert_eq!(volume.core().statistics_at(Ino::ROOT).blocks, whole.blocks);
    limit(&mut volume, reel, "size=40M files=5").unwrap();
    let figures = volume.core().statistics_at(reel);
    // Of its own limit 39 MiB are left, and of that above it 9.
    assert_eq!((figures.blocks, figures.free, figures.available), (10240, 9984, 2304));
    assert_eq!((figures.files, figures.files_free), (1, 4));
    // No directory is larger than the device.
    limit(&mut volume, film, "size=1T").unwrap();
    assert_eq!(volume.core().statistics_at(film).blocks, whole.blocks);
}

#[test]
fn a_soft_limit_is_told_once_for_each_crossing() {
    let mut volume = volume(256);
    let film = directory(&mut volume, Ino::ROOT, "film").unwrap();
    limit(&mut volume, film, "soft=1M size=4M").unwrap();
    make(&mut volume, film, "a", MIB).unwrap();
    assert_eq!(volume.happened(), []);
    for _ in 0..2 {
        make(&mut volume, film, "b", MIB).unwrap();
        let events = volume.happened();
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!((event.kind, event.path.as_deref()), (EventKind::Limit, Some("/film")));
        let sentence =
            "/film is over its soft limit: 2.0 MiB are used, more than 1.0 MiB; 4.0 MiB are the limit";
        assert_eq!(event.sentence(), sentence);
        make(&mut volume, film, "c", MIB).unwrap();
        assert_eq!(volume.happened(), []);
        for name in [b"b", b"c"] {
            volume.unlink(film, name).unwrap();
        }
        assert_eq!(volume.happened(), []);
    }
}

#[test]
fn only_a_directory_has_a_limit_and_only_one_that_can_be_understood() {
    let mut volume = volume(256);
    let film = directory(&mut volume, Ino::ROOT, "film").unwrap();
    let file = make(&mut volume, film, "a", 0).unwrap();
    assert_eq!(limit(&mut volume, file, "size=1M"), Err(Error::InvalidArgument));
    for wrong in ["", "1M", "size=1Q", "soft=2M size=1M"] {
        assert_eq!(limit(&mut volume, film, wrong), Err(Error::InvalidArgument), "{wrong:?}");
    }
    assert!(volume.core().limits().is_empty());
}

/// Usage is not written anywhere, and is what it was after an unmount and after a crash.
#[test]
fn what_is_used_is_the_same_after_an_unmount_and_a_crash() {
    let mut volume = volume(256);
    let film = directory(&mut volume, Ino::ROOT, "film").unwrap();
    let reel = directory(&mut volume, film, "reel").unwrap();
    limit(&mut volume, film, "size=100M").unwrap();
    limit(&mut volume, reel, "size=50M files=9").unwrap();
    make(&mut volume, reel, "a", MIB).unwrap();
    let (_, handle) = volume.create(film, b"b").unwrap();
    volume.write(handle, 0, &vec![1; 3 * MIB as usize]).unwrap();
    volume.sync().unwrap();
    let before = volume.core().limits();
    let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
    let disk = std::sync::Arc::new(volume.disk().crash(3));
    drop(volume);
    let volume = SimVolume::mount(disk, &pool, Default::default(), 2).unwrap();
    assert_eq!(volume.core().limits(), before);
    volume.core().audit().unwrap();
    let disk = volume.unmount().unwrap();
    let volume = SimVolume::mount(disk, &pool, Default::default(), 3).unwrap();
    assert_eq!(volume.core().limits(), before);
}
