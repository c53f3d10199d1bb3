//! Small files that were written together lie together, go to the device in long commands, and come back in long ones.

use crate::{MIB, volume};
use avfs_core::config::Config;
use avfs_core::simulation::SimVolume;
use avfs_core::types::*;
use avfs_io::pool::Pool;
use rtsched::Direction;
use units::{Bytes, Ino};

const FILES: u64 = 400;
const COPIER: Caller = Caller { uid: 0, gid: 0, process: 7 };

fn contents(index: u64) -> Vec<u8> {
    (0..300 + index * 37 % 15_000).map(|at| (at * 7 + index) as u8).collect()
}

/// Two directories of small files, as a copy makes them, and what writing them took.
fn copied() -> (SimVolume, Vec<Ino>, Vec<Bytes>) {
    let mut volume = volume(512);
    let directories = [&b"one"[..], b"two"].map(|name| {
        let made =
            volume.with(|core, now| core.make_directory(now, Caller::default(), Ino::ROOT, name, 0o755, 0));
        made.unwrap().attributes.ino
    });
    let mut inos = Vec::new();
    for index in 0..FILES {
        let directory = directories[(index / (FILES / 2)) as usize];
        let (ino, handle) = volume.create(directory, format!("file{index:04}").as_bytes()).unwrap();
        volume.with(|core, _| core.set_client(handle, COPIER));
        volume.write(handle, 0, &contents(index)).unwrap();
        volume.with(|core, now| core.release(now, handle));
        inos.push(ino);
    }
    volume.commands();
    volume.sync().unwrap();
    let writes = volume.commands().into_iter().filter(|command| command.direction == Direction::Write);
    (volume, inos, writes.map(|command| command.length).collect())
}

fn read(volume: &mut SimVolume, ino: Ino, index: u64) {
    let handle = volume.open(ino).unwrap();
    assert!(volume.read(handle, 0, 1 << 17).unwrap() == contents(index), "{ino}");
    volume.with(|core, now| core.release(now, handle));
}

/// The volume as it is mounted anew, with nothing in memory.
fn cold(volume: SimVolume) -> SimVolume {
    let disk = volume.unmount().unwrap();
    let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
    let mut volume = SimVolume::mount(disk, &pool, Config::default(), 2).unwrap();
    volume.audit_every(97);
    volume.commands();
    volume
}

fn reads(volume: &mut SimVolume) -> usize {
    volume.commands().into_iter().filter(|command| command.direction == Direction::Read).count()
}

#[test]
fn a_sync_of_small_files_writes_long_runs() {
    let (_, _, writes) = copied();
    let bytes: u64 = writes.iter().map(|length| length.0).sum();
    assert!(bytes > 2 * MIB);
    assert!(writes.len() < 40, "{} commands for {FILES} files", writes.len());
}

/// Each file was an access of its own: 20,000 of them took twice as long as on ext4.
#[test]
fn small_files_that_are_read_one_after_the_other_come_with_one_request() {
    let (volume, inos, _) = copied();
    let mut volume = cold(volume);
    // In any order, as a listing has it, and two clients at once.
    let order: Vec<usize> = (0..inos.len()).map(|index| index * 171 % inos.len()).collect();
    for &index in &order {
        read(&mut volume, inos[index], index as u64);
    }
    let commands = reads(&mut volume);
    assert!(commands < 50, "{commands} commands for {FILES} files");
}

/// One file of a directory is no reason to read others.
#[test]
fn a_single_small_file_comes_alone() {
    let (volume, inos, _) = copied();
    let mut volume = cold(volume);
    let before = volume.core().report().cache_used_bytes;
    read(&mut volume, inos[100], 100);
    read(&mut volume, inos[300], 300);
    let after = volume.core().report().cache_used_bytes;
    assert!(after - before <= 64 << 10, "{before} {after}");
}

/// What no client waited for is true like anything else: files that change, shrink or go meanwhile.
#[test]
fn neighbours_that_change_while_they_are_read_are_read_as_they_are() {
    let (volume, inos, _) = copied();
    let mut volume = cold(volume);
    read(&mut volume, inos[0], 0);
    let handle = volume.open(inos[1]).unwrap();
    let waiting = volume.begin(avfs_core::core::Operation::Read { handle, offset: 0, length: 1 << 17 });
    // On their way now.
    let changed = volume.open(inos[2]).unwrap();
    volume.write(changed, 5, b"changed").unwrap();
    let shrunk = SetAttributes { size: Some(10), ..SetAttributes::default() };
    volume.set_attributes(inos[3], shrunk).unwrap();
    let directory = volume.with(|core, _| core.lookup(Ino::ROOT, b"one")).unwrap().attributes.ino;
    volume.unlink(directory, b"file0004").unwrap();
    volume.finish(waiting);
    let mut expected = contents(2);
    expected[5..12].copy_from_slice(b"changed");
    assert!(volume.read(changed, 0, 1 << 17).unwrap() == expected);
    let handle = volume.open(inos[3]).unwrap();
    assert!(volume.read(handle, 0, 1 << 17).unwrap() == contents(3)[..10]);
    for (index, &ino) in (0..).zip(&inos).skip(5).take(50) {
        read(&mut volume, ino, index);
    }
}
