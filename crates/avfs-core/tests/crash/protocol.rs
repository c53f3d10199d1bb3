//! What drawn workloads reach too rarely: a process that dies while its device lives, a log that runs full, metadata units
//! that are used again, and batches of another lineage.

use crate::workload::{FULL, METADATA, SMALL, Workload};
use crate::{DISK, Place, judge, lives, pool, restless, rounds};
use avfs_core::config::Config;
use avfs_core::core::Operation;
use avfs_core::format::{BLOCK, Geometry, LOG_START, LogPosition, Superblock};
use avfs_core::journal::{Batch, Journal, read_log};
use avfs_core::record::Record;
use avfs_core::recovery::find_superblock;
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::*;
use avfs_io::Device;
use avfs_io::sim::{SimCommand, SimDisk, Timing};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use units::{Duration, Ino, Instant};

/// A process dies, another one mounts what lies in the device's cache and shows it to clients; when a client then makes a
/// file durable, that is what has to be durable.
pub(crate) fn what_a_dead_process_left_is_flushed_before_it_is_called_durable() {
    let pool = pool();
    let mut volume = SimVolume::mount(formatted(DISK), &pool, Config::default(), 1).unwrap();
    let (ino, handle) = volume.create(Ino::ROOT, b"take.wav").unwrap();
    volume.write(handle, 0, &[1; 4096]).unwrap();
    volume.fsync(ino).unwrap();
    volume.write(handle, 0, &[2; 4096]).unwrap();
    while volume.core().report().dirty_bytes + volume.core().report().writing_bytes > 0 {
        volume.step();
    }
    let disk = volume.die();
    disk.record();
    let mut volume = SimVolume::mount(Arc::clone(&disk), &pool, Config::default(), 2).unwrap();
    volume.fsync(ino).unwrap();
    let handle = volume.open(ino).unwrap();
    assert_eq!(
        volume.read(handle, 0, 1).unwrap(),
        [2],
        "the second process does not see what the first wrote"
    );
    for seed in 0..20 {
        let mut volume = SimVolume::mount(Arc::new(disk.crash(seed)), &pool, Config::default(), 3).unwrap();
        let handle = volume.open(ino).unwrap();
        assert_eq!(volume.read(handle, 0, 1).unwrap(), [2], "seed {seed}");
    }
}

/// Processes die one after the other, each at a moment of its own, and the device's cache survives them all until power fails.
pub(crate) fn deaths(seed: u64, images: usize) {
    let pools = [pool(), pool()];
    let mut disk = formatted(DISK);
    for life in 0..3 {
        let seed_of_life = seed * 1000 + life;
        let volume =
            SimVolume::mount(Arc::clone(&disk), &pools[0], restless(seed_of_life), seed_of_life).unwrap();
        let mut workload = Workload::new(volume, SMALL, seed_of_life).unwrap();
        // What was found is promised from here on.
        workload.sync().unwrap();
        let from = workload.volume.disk().position();
        for _ in 0..60 {
            workload.step();
        }
        workload.settle();
        let cuts = workload.volume.disk().position() - from + 1;
        for index in 0..images {
            let cut = from + index * cuts / images;
            judge(&workload, &pools[1], Place { seed, life, cut, image: index as u64 }, index % 8 == 0);
        }
        for _ in 0..20 {
            workload.step();
        }
        disk = workload.volume.die();
    }
}

/// On a full volume a file is removed while a batch is at the device, and another one grows: it must not get the space before the
/// removal is durable.
pub(crate) fn what_is_removed_is_there_until_the_removal_is_durable() {
    let pool = pool();
    for seed in 0..12 {
        let mut volume = SimVolume::mount(formatted(DISK), &pool, Config::default(), seed).unwrap();
        let (old, handle) = volume.create(Ino::ROOT, b"old.mxf").unwrap();
        volume.write(handle, 0, &vec![1; 4 << 20]).unwrap();
        volume.sync().unwrap();
        volume.with(|core, now| core.release(now, handle));
        let (new, writing) = volume.create(Ino::ROOT, b"new.mxf").unwrap();
        volume.with(|core, now| core.set_xattr(now, new, b"user.x", b"y", XattrFlags::empty())).unwrap();
        let (_, filling) = volume.create(Ino::ROOT, b"filler").unwrap();
        let mut filled = 0;
        for chunk in [8 << 20, 1 << 20, 64 << 10, 4096] {
            while volume.allocate(filling, filled, chunk, AllocateMode::Extend).is_ok() {
                filled += chunk;
            }
        }
        volume.sync().unwrap();
        volume.disk().record();
        volume.with(|core, now| core.remove_xattr(now, new, b"user.x")).unwrap();
        let sync = volume.begin(Operation::Sync);
        volume.with(|core, now| core.unlink(now, Ino::ROOT, b"old.mxf")).unwrap();
        volume.with(|core, now| core.forget(now, old, u64::MAX));
        volume.write(writing, 0, &vec![2; 2 << 20]).unwrap();
        let fsync = volume.begin(Operation::Fsync { ino: new });
        while !volume.has_ended(sync) || !volume.has_ended(fsync) {
            assert!(volume.step());
        }
        let images = volume.disk().crash_images();
        for cut in images.cuts() {
            let disk = Arc::new(images.image(cut, seed));
            let mut volume = SimVolume::mount(disk, &pool, Config::default(), 2).unwrap();
            if volume.with(|core, _| core.lookup(Ino::ROOT, b"old.mxf")).is_ok() {
                let handle = volume.open(old).unwrap();
                for at in (0..4 << 20).step_by(1 << 20) {
                    let read = volume.read(handle, at, 1 << 20).unwrap();
                    assert!(read.iter().all(|&byte| byte == 1), "seed {seed}, cut {cut}, at {at}");
                }
            }
        }
    }
}

/// Once a superblock is durable, what the one before it points at is used again.
pub(crate) fn what_the_older_superblock_points_at_is_not_needed() {
    let mut volume = SimVolume::mount(formatted(DISK), &pool(), Config::default(), 1).unwrap();
    volume.create(Ino::ROOT, b"take.wav").unwrap();
    volume.sync().unwrap();
    while volume.core().report().checkpoints == 0 {
        assert!(volume.step());
    }
    let disk = volume.die();
    let slots = Geometry::superblock_places(DISK);
    let [first, second] = [slots[0], slots[1]].map(|place| {
        let mut block = [0; BLOCK as usize];
        disk.read_at(place, &mut block).unwrap();
        Superblock::decode(&block).unwrap()
    });
    assert!(second.generation > first.generation);
    for place in [first.table.address, first.table.copy] {
        disk.write_at(place, &[0xA5; BLOCK as usize]).unwrap();
    }
    let mut volume = SimVolume::mount(disk, &pool(), Config::default(), 2).unwrap();
    assert!(volume.with(|core, _| core.lookup(Ino::ROOT, b"take.wav")).is_ok());
}

/// Several shards, images that fill units and leave them, and next to no data, so that nothing is flushed but for the metadata.
pub(crate) fn metadata_turns_over(seed: u64, images: usize) {
    let mut volume = SimVolume::mount(formatted(DISK), &pool(), Config::default(), seed).unwrap();
    for number in 0..700 {
        let name = format!("{number}.mxf");
        volume
            .with(|core, now| {
                let kind = FileKind::Regular;
                let caller = Caller::default();
                let made = core.make_node(now, caller, Ino::ROOT, name.as_bytes(), kind, 0o644, 0, 0)?;
                let (ino, value) = (made.attributes.ino, vec![number as u8; 14_000]);
                core.forget(now, ino, 1);
                core.set_xattr(now, ino, b"user.0", &value, XattrFlags::empty())
            })
            .unwrap();
        while volume.core().under_pressure() && volume.step() {}
    }
    let disk = volume.unmount().unwrap();
    lives(disk, METADATA, 160, 1, images, seed, |_| {});
}

/// A device that is quick where the log is and takes an hour where the shards go.
#[derive(Debug)]
struct SlowData {
    first_slow: u64,
    /// From when on: the checkpoint of the mount is to be through.
    is_slow: Arc<AtomicBool>,
    at_device: Vec<(Instant, u64)>,
}

impl Timing for SlowData {
    fn submit(&mut self, now: Instant, number: u64, command: SimCommand) {
        let is_there = command.offset.0 >= self.first_slow && command.length.0 > 0;
        let is_slow = is_there && self.is_slow.load(Ordering::Relaxed);
        let takes = if is_slow { Duration::from_secs(3600) } else { Duration::from_micros(100) };
        self.at_device.push((now + takes, number));
    }

    fn next_event(&self) -> Option<Instant> {
        self.at_device.iter().map(|&(due, _)| due).min()
    }

    fn advance(&mut self, now: Instant, completed: &mut Vec<u64>) {
        self.at_device.retain(|&(due, number)| {
            if due <= now {
                completed.push(number);
            }
            due > now
        });
    }
}

/// A volume that has run full, of which half is removed: what is written next lies where files lay whose removal is not
/// durable yet, if it may.
pub(crate) fn a_full_volume(seed: u64, images: usize) {
    let volume = SimVolume::mount(formatted(DISK), &pool(), restless(seed), seed).unwrap();
    let mut workload = Workload::new(volume, FULL, seed).unwrap();
    for _ in 0..2000 {
        workload.step();
        if workload.full > 10 {
            break;
        }
    }
    workload.sync().unwrap();
    let from = workload.volume.disk().position();
    workload.remove_half();
    for _ in 0..60 {
        workload.step();
    }
    workload.settle();
    let (cuts, judging) = (workload.volume.disk().position() - from + 1, pool());
    for index in 0..images {
        let cut = from + index * cuts / images;
        judge(&workload, &judging, Place { seed, life: 0, cut, image: index as u64 }, false);
    }
}

/// The log runs full while a checkpoint stands still: it must not overrun what the checkpoint has not written yet. (And it
/// waits for that in peace: a commit that was due but had no room kept the volume's timer spinning. And it ends: the
/// checkpoint waited for the log to be durable up to its newest image, and the log, which was full, for the checkpoint.)
pub(crate) fn the_log_runs_full() {
    let (pool, disk) = (pool(), formatted(DISK));
    let geometry = find_superblock(&*disk).unwrap().geometry;
    let is_slow = Arc::new(AtomicBool::new(false));
    let first_slow = geometry.data_start.0;
    let timing = SlowData { first_slow, is_slow: Arc::clone(&is_slow), at_device: Vec::new() };
    let mut volume = SimVolume::mount_timed(
        Arc::clone(&disk),
        &pool,
        Config::default(),
        disk.geometry(),
        Box::new(timing),
    )
    .unwrap();
    volume.pass(Duration::from_secs(1));
    is_slow.store(true, Ordering::Relaxed);
    let mut made = 0;
    for number in 0..(20 << 20) / (64 << 10) {
        let value = vec![number as u8; 60_000];
        let name = format!("user.{}", number % 2);
        volume
            .with(|core, now| core.set_xattr(now, Ino::ROOT, name.as_bytes(), &value, XattrFlags::empty()))
            .unwrap();
        volume.sync().unwrap();
        made += 1;
        if made > 100 && made % 5 == 0 {
            let disk = Arc::new(disk.crash(made));
            let found = SimVolume::mount(disk, &pool, Config::default(), 1)
                .unwrap_or_else(|error| panic!("after {made}: {error}"));
            let found =
                found.core().get_xattr(Ino::ROOT, name.as_bytes()).map(|value| value.first().copied());
            assert_eq!(found, Ok(Some(number as u8)), "after {made}");
        }
    }
}

/// A batch with one record, and where the log is after it.
fn batch(disk: &SimDisk, position: LogPosition, lsn: u64, size: u64) -> (Batch, LogPosition) {
    let mut journal = Journal::new(&find_superblock(disk).unwrap(), position, 0);
    journal.append(&[Record::Size { ino: Ino::ROOT, size }], lsn);
    let batch = journal.seal(u64::MAX, 0).unwrap();
    (batch, journal.mark().position)
}

/// A host that lost the volume without knowing it had sent one batch more: it has the number that comes next and the
/// place, and follows another one.
pub(crate) fn a_batch_of_another_lineage_is_no_continuation() {
    let disk = formatted(DISK);
    let start = find_superblock(&*disk).unwrap().log;
    let (_, theirs) = batch(&disk, start, 2, 1);
    let (second_of_theirs, _) = batch(&disk, theirs, 3, 2);
    let (ours, end) = batch(&disk, start, 2, 3);
    assert_eq!((theirs.offset, theirs.sequence), (end.offset, end.sequence));
    for batch in [ours, second_of_theirs] {
        disk.write_at(batch.address, &batch.bytes).unwrap();
    }
    assert_eq!(read_log(&*disk, &find_superblock(&*disk).unwrap()).unwrap().end, end);
}

/// fsck gives up batches by going on with a number behind them: what comes next names the same predecessor.
pub(crate) fn a_batch_with_another_number_is_no_continuation() {
    let disk = formatted(DISK);
    let start = find_superblock(&*disk).unwrap().log;
    let (other, _) = batch(&disk, LogPosition { sequence: start.sequence + 5, ..start }, 2, 1);
    assert_eq!(other.address.0, LOG_START + start.offset);
    disk.write_at(other.address, &other.bytes).unwrap();
    assert_eq!(read_log(&*disk, &find_superblock(&*disk).unwrap()).unwrap().end, start);
}

#[test]
fn single_cases() {
    what_a_dead_process_left_is_flushed_before_it_is_called_durable();
    what_is_removed_is_there_until_the_removal_is_durable();
    what_the_older_superblock_points_at_is_not_needed();
    a_full_volume(1, 20);
    a_batch_of_another_lineage_is_no_continuation();
    a_batch_with_another_number_is_no_continuation();
    the_log_runs_full();
}

#[test]
fn what_processes_that_died_left_survives_every_cut() {
    (0..2 * rounds()).for_each(|seed| deaths(seed, 40));
}

#[test]
fn metadata_that_turns_over_survives_every_cut() {
    (0..2 * rounds()).for_each(|seed| metadata_turns_over(seed, 24));
}
