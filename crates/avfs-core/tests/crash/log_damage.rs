//! Damage in the log: one block of a batch costs nothing, more are told of before anything is written over what lies behind.

use crate::{DISK, pool};
use avfs_core::Error;
use avfs_core::config::Config;
use avfs_core::format::{BLOCK, LOG_START, LogPosition};
use avfs_core::fsck::{self, Finding, Mode};
use avfs_core::journal::read_log;
use avfs_core::recovery::find_superblock;
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::XattrFlags;
use avfs_io::Device;
use avfs_io::sim::{Fault, SimDisk, TraceEvent};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use units::{Bytes, DeviceOffset, Duration, Ino};

const FILES: usize = 8;

/// Nothing is checkpointed, so that everything is in the log alone.
fn patient() -> Config {
    let mut config = Config::default();
    config.journal.checkpoint_interval = Duration::from_secs(3600);
    config
}

fn mount(disk: SimDisk) -> SimVolume {
    SimVolume::mount(Arc::new(disk), &pool(), patient(), 1).unwrap()
}

fn end_of_log(disk: &SimDisk) -> LogPosition {
    read_log(disk, &find_superblock(disk).unwrap()).unwrap().end
}

fn name(index: usize) -> Vec<u8> {
    format!("take-{index}").into_bytes()
}

/// Files that were synced one after the other, and where the log ended before each and after the last: their batches are of
/// two blocks and of many, in turn.
fn synced() -> (Arc<SimDisk>, Vec<LogPosition>) {
    let mut volume = SimVolume::mount(formatted(DISK), &pool(), patient(), 1).unwrap();
    // The checkpoint that begins with a mount.
    volume.sync().unwrap();
    volume.pass(Duration::from_secs(2));
    let mut ends = vec![end_of_log(volume.disk())];
    for index in 0..FILES {
        let (ino, handle) = volume.create(Ino::ROOT, &name(index)).unwrap();
        let length = if index % 2 == 1 { 30_000 } else { 10 };
        let value = vec![index as u8; length];
        volume.with(|core, now| core.set_xattr(now, ino, b"user.x", &value, XattrFlags::empty())).unwrap();
        volume.fsync(ino).unwrap();
        volume.with(|core, now| core.release(now, handle));
        ends.push(end_of_log(volume.disk()));
    }
    assert!(ends.windows(2).all(|pair| pair[0].offset < pair[1].offset), "{ends:?}");
    (Arc::new(volume.disk().crash(0)), ends)
}

/// How many of the files are there: the first ones, whole.
fn there(volume: &mut SimVolume) -> usize {
    let mut found = 0;
    for index in 0..FILES {
        let Ok(entry) = volume.with(|core, _| core.lookup(Ino::ROOT, &name(index))) else { continue };
        let value = volume.core().get_xattr(entry.attributes.ino, b"user.x").unwrap();
        assert!(value.iter().all(|&byte| byte == index as u8), "{index}");
        assert_eq!(found, index, "a file is there and one before it is not");
        found += 1;
    }
    found
}

/// One flipped bit in the log dropped every acknowledged change behind it, and the volume was mounted writable.
#[test]
fn one_damaged_block_of_the_log_costs_nothing() {
    let (disk, ends) = synced();
    let mut random = SmallRng::seed_from_u64(1);
    let last = ends[FILES - 1].offset;
    for offset in (ends[0].offset..ends[FILES].offset).step_by(BLOCK as usize) {
        let address = DeviceOffset(LOG_START + offset);
        for kind in ["a bit", "a sector", "other data", "zeros", "unreadable"] {
            let damaged = disk.crash(0);
            let mut block = vec![0; BLOCK as usize];
            damaged.read_at(address, &mut block).unwrap();
            let before = block.clone();
            match kind {
                "a bit" => block[random.random_range(0..BLOCK as usize)] ^= 1 << random.random_range(0..8),
                "a sector" => block[512 * random.random_range(0..8)..][..512].fill(0xA5),
                "other data" => random.fill(&mut block[..]),
                "zeros" => block.fill(0),
                _ => damaged.inject(Some(Fault::after(0).within(address, Bytes(BLOCK)))),
            }
            if block != before {
                damaged.write_at(address, &block).unwrap();
                damaged.flush().unwrap();
            }
            let place = format!("{kind} at {offset} of {ends:?}");
            if block != before || kind == "unreadable" {
                let findings = fsck::examine(&damaged, Mode::Check).unwrap().findings;
                let told = [Finding::LogBlockDamaged { address }];
                // Of the last batch it cannot be told from one that power failed on.
                assert_eq!(findings, if offset < last { &told[..] } else { &[] }, "{place}");
            }
            let mut volume = mount(damaged);
            assert_eq!(there(&mut volume), FILES, "{place}");
            assert!(!volume.core().report().read_only, "{place}");
        }
    }
}

#[test]
fn a_damaged_block_of_the_log_is_written_again_by_a_check_that_loses_nothing() {
    let (disk, ends) = synced();
    let address = DeviceOffset(LOG_START + ends[3].offset + BLOCK);
    disk.write_at(address, &[7; BLOCK as usize]).unwrap();
    let report = fsck::examine(&*disk, Mode::Preen).unwrap();
    assert_eq!((report.exit_code(), &report.findings[..]), (1, &[Finding::LogBlockDamaged { address }][..]));
    assert_eq!(fsck::examine(&*disk, Mode::Check).unwrap().findings, []);
    assert_eq!(there(&mut mount(disk.crash(0))), FILES);
}

/// More than parity can mend: what was acknowledged lies behind the damage, and whoever writes on would write over it.
#[test]
pub(crate) fn a_volume_whose_log_goes_on_behind_damage_is_only_read_until_fsck_decides() {
    let (disk, ends) = synced();
    for (damaged, end) in ends.iter().enumerate().take(FILES - 1) {
        let disk = disk.crash(0);
        let start = LOG_START + end.offset;
        disk.write_at(DeviceOffset(start), &[7; 2 * BLOCK as usize]).unwrap();
        disk.flush().unwrap();
        let disk = Arc::new(disk);
        for round in 0..2 {
            let mut volume = SimVolume::mount(Arc::clone(&disk), &pool(), patient(), 1).unwrap();
            disk.record();
            assert!(volume.core().report().read_only, "{damaged}");
            assert_eq!(there(&mut volume), damaged, "round {round}");
            assert_eq!(volume.create(Ino::ROOT, b"new").err(), Some(Error::ReadOnly), "{damaged}");
            volume.pass(Duration::from_secs(60));
            let images = volume.unmount().unwrap().crash_images();
            let written = images
                .cuts()
                .filter_map(|cut| images.event_before(cut))
                .find(|event| !matches!(event, TraceEvent::Flushed { .. }));
            assert_eq!(written, None, "{damaged}: it was written to");
        }
        let findings = fsck::examine(&*disk, Mode::Check).unwrap().findings;
        let [Finding::LogDamaged(behind)] = findings[..] else { panic!("{damaged}: {findings:?}") };
        let from = end.sequence;
        assert_eq!((behind.from, behind.newest), (from, from + (FILES - damaged) as u64 - 1));
        assert_eq!(behind.batches, (FILES - damaged - 1) as u64);
        assert!(behind.changes >= 2 * behind.batches, "{behind}");
        assert_eq!(fsck::examine(&*disk, Mode::Preen).unwrap().exit_code(), 4, "{damaged}");

        assert_eq!(fsck::examine(&*disk, Mode::Repair).unwrap().exit_code(), 1, "{damaged}");
        assert_eq!(fsck::examine(&*disk, Mode::Repair).unwrap().findings, [], "{damaged}");
        let mut volume = SimVolume::mount(Arc::clone(&disk), &pool(), patient(), 1).unwrap();
        assert_eq!(there(&mut volume), damaged);
        let (ino, _) = volume.create(Ino::ROOT, b"new").unwrap();
        volume.fsync(ino).unwrap();
        let mut volume = mount(volume.disk().crash(0));
        assert!(volume.with(|core, _| core.lookup(Ino::ROOT, b"new")).is_ok());
        assert_eq!(there(&mut volume), damaged, "what was given up came back");
    }
}

/// Where more cannot be read than can be rebuilt, nobody knows that the log ends there.
#[test]
fn a_log_that_cannot_be_read_is_no_empty_one() {
    let (disk, ends) = synced();
    for (damaged, end) in ends.iter().enumerate().take(FILES) {
        let disk = disk.crash(0);
        let address = DeviceOffset(LOG_START + end.offset);
        disk.inject(Some(Fault::after(0).within(address, Bytes(2 * BLOCK))));
        let refused =
            SimVolume::mount(Arc::new(disk), &pool(), patient(), 1).err().map(|error| error.to_string());
        assert!(refused.as_ref().is_some_and(|why| why.contains("cannot read")), "{damaged}: {refused:?}");
    }
}
