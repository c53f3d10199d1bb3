//! Histories that went wrong once, or that the steps drawn seldom reach.

use avfs_core::Error;
use avfs_core::config::Config;
use avfs_core::core::{Operation, Outcome, WritePlan, WriteStart};
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::*;
use avfs_io::pool::Pool;
use units::{Bytes, Ino};

fn volume(disk_mib: u64) -> SimVolume {
    let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
    SimVolume::mount(formatted(Bytes::from_mib(disk_mib)), &pool, Config::default(), 5).unwrap()
}

fn claimed(volume: &SimVolume) -> u64 {
    let statistics = volume.core().statistics();
    statistics.free - statistics.available
}

/// A page whose only dirty bytes lay behind the new end kept its claim for ever: the space was lost until the volume
/// was mounted again.
#[test]
fn truncation_within_a_page_that_was_dirty_behind_it_gives_the_claim_back() {
    let mut volume = volume(256);
    let (ino, handle) = volume.create(Ino::ROOT, b"a").unwrap();
    volume.write(handle, 3000, &[1; 1000]).unwrap();
    let changes = SetAttributes { size: Some(1000), ..SetAttributes::default() };
    volume.set_attributes(ino, changes).unwrap();
    volume.core().audit().unwrap();
    volume.sync().unwrap();
    assert_eq!(claimed(&volume), 0);
    assert_eq!(volume.core().attributes(ino).unwrap().blocks, 0);
}

/// Zeroing began before it was known whether the space that the rest of the range needs is there: the caller was told
/// that nothing had happened and had lost data.
#[test]
fn zeroing_is_refused_before_anything_is_zeroed() {
    let mut volume = volume(192);
    let (_, handle) = volume.create(Ino::ROOT, b"a").unwrap();
    volume.write(handle, 0, &[1; 10_000]).unwrap();
    let result = volume.allocate(handle, 0, 1 << 30, AllocateMode::ZeroRange);
    assert_eq!(result, Err(Error::NoSpace));
    assert_eq!(volume.read(handle, 0, 20_000).unwrap(), [1; 10_000]);
}

/// Single bytes are written all over a file that is longer than memory and not cached: each page is to be completed
/// from the device before it can be written. When dirty pages held all memory, there was none left to read into, and
/// everything stood still.
#[test]
fn dirty_pages_in_all_memory_can_still_be_completed() {
    let mut volume = volume(512);
    let (ino, handle) = volume.create(Ino::ROOT, b"database").unwrap();
    for mebibyte in 0..96 {
        volume.write(handle, mebibyte << 20, &[7; 1 << 20]).unwrap();
    }
    volume.fsync(ino).unwrap();
    for page in 0..(96 << 8) {
        volume.write(handle, page * 4096 + 100, &[page as u8]).unwrap();
        if page % 4096 == 0 {
            volume.core().audit().unwrap();
        }
    }
    volume.fsync(ino).unwrap();
    for page in (0..(96 << 8)).step_by(101) {
        assert_eq!(volume.read(handle, page * 4096 + 99, 3).unwrap(), [7, page as u8, 7]);
    }
}

fn begin_write(volume: &mut SimVolume, handle: HandleId, offset: u64, length: usize) -> WritePlan {
    match volume.with(|core, now| core.write_begin(now, handle, offset, length, None)) {
        WriteStart::Copy(plan) => plan,
        other => panic!("{other:?}"),
    }
}

fn end_write(volume: &mut SimVolume, mut plan: WritePlan) {
    let ticket = volume.ticket();
    let ended = volume.with(|core, now| core.write_end(now, ticket, &mut plan));
    assert!(ended.is_some_and(|result| result.is_ok()));
}

/// Clients copy outside the core. A read of the same page, begun while a client copied, had zeros put or the device's
/// old bytes read over what was copied.
#[test]
fn a_read_does_not_disturb_a_client_that_copies() {
    let mut volume = volume(256);
    for (name, written) in [(b"old", true), (b"new", false)] {
        let (ino, handle) = volume.create(Ino::ROOT, name).unwrap();
        let size = SetAttributes { size: Some(100_000), ..SetAttributes::default() };
        volume.set_attributes(ino, size).unwrap();
        if written {
            volume.write(handle, 0, &[1; 100_000]).unwrap();
        }
        let disk = volume.unmount().unwrap();
        let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
        volume = SimVolume::mount(disk, &pool, Config::default(), 7).unwrap();
        let handle = volume.open(ino).unwrap();
        let plan = begin_write(&mut volume, handle, 4096, 50_000);
        plan.copy(&[2; 50_000]);
        let read = volume.begin(Operation::Read { handle, offset: 0, length: 80_000 });
        for _ in 0..20 {
            volume.step();
        }
        end_write(&mut volume, plan);
        let before = u8::from(written);
        let expected = [vec![before; 4096], vec![2; 50_000], vec![before; 80_000 - 54_096]].concat();
        match volume.finish(read) {
            Outcome::Data(data) => assert!(data.unwrap().to_vec() == expected),
            other => panic!("{other:?}"),
        }
        volume.fsync(ino).unwrap();
        assert!(volume.read(handle, 0, 80_000).unwrap() == expected);
    }
}

/// Two clients write behind the end of a file, the second further out. What lay between was zeroed for the second
/// while the first was copying there.
#[test]
fn zeros_before_a_write_behind_the_end_spare_what_another_client_copies() {
    let mut volume = volume(256);
    let (ino, handle) = volume.create(Ino::ROOT, b"a").unwrap();
    volume.write(handle, 0, &[1; 100]).unwrap();
    volume.fsync(ino).unwrap();
    let first = begin_write(&mut volume, handle, 200, 100);
    first.copy(&[2; 100]);
    let second = begin_write(&mut volume, handle, 5000, 10);
    second.copy(&[3; 10]);
    end_write(&mut volume, second);
    end_write(&mut volume, first);
    let expected = [vec![1; 100], vec![0; 100], vec![2; 100], vec![0; 4700], vec![3; 10]].concat();
    assert!(volume.read(handle, 0, 9000).unwrap() == expected);
}

/// Few bytes in many large blocks: memory is full long before much is dirty. A read found none and nobody wrote.
#[test]
fn a_read_finds_memory_when_large_blocks_with_few_dirty_bytes_hold_it() {
    let mut volume = volume(512);
    let (ino, handle) = volume.create(Ino::ROOT, b"still").unwrap();
    volume.write(handle, 0, &[5; 100_000]).unwrap();
    volume.fsync(ino).unwrap();
    let (_, sparse) = volume.create(Ino::ROOT, b"sparse").unwrap();
    for number in 0..40 {
        volume.write(sparse, number * (8 << 20), &[1]).unwrap();
    }
    assert_eq!(volume.read(handle, 50_000, 100_000).unwrap(), [5; 50_000]);
}

/// Answers to writes that are held back while too much is dirty come when less is, whyever.
#[test]
fn held_back_writes_are_answered_when_what_was_dirty_is_cut_off() {
    let mut volume = volume(512);
    volume.audit_every(1);
    let (ino, handle) = volume.create(Ino::ROOT, b"a").unwrap();
    let (_, other) = volume.create(Ino::ROOT, b"b").unwrap();
    let mut begun = Vec::new();
    // Blocks of 4 MiB, which are not written before somebody wants it.
    for number in 0..48 {
        let (handle, offset) = if number < 40 { (handle, number) } else { (other, number - 40) };
        let data = vec![number as u8; 1 << 20];
        let offset = offset << 20;
        begun.push(volume.begin(Operation::Write { handle, offset, data, unprivileged: None }));
    }
    let changes = SetAttributes { size: Some(0), ..SetAttributes::default() };
    begun.push(volume.begin(Operation::SetAttributes { ino, changes }));
    for ticket in begun {
        match volume.finish(ticket) {
            Outcome::Count(result) => assert_eq!(result, Ok(1 << 20)),
            Outcome::Attributes(result) => assert_eq!(result.unwrap().size, 0),
            other => panic!("{other:?}"),
        }
    }
}

/// Attributes as large as they may be, of many files: the image of their shard is larger than memory.
#[test]
fn a_shard_larger_than_memory_is_checkpointed() {
    let mut volume = volume(1024);
    let value = vec![9; 65536];
    for file in 0..24 {
        let (ino, handle) = volume.create(Ino::ROOT, format!("{file}").as_bytes()).unwrap();
        volume.with(|core, now| core.release(now, handle));
        for number in 0..60 {
            while volume.core().under_pressure() {
                volume.step();
            }
            let name = format!("user.{number}");
            let flags = XattrFlags::empty();
            volume.with(|core, now| core.set_xattr(now, ino, name.as_bytes(), &value, flags)).unwrap();
        }
    }
    volume.sync().unwrap();
    assert_eq!(volume.core().failure(), None);
    let disk = volume.unmount().unwrap();
    let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
    let mut volume = SimVolume::mount(disk, &pool, Config::default(), 6).unwrap();
    let entry = volume.with(|core, _| core.lookup(Ino::ROOT, b"23")).unwrap();
    assert_eq!(volume.core().get_xattr(entry.attributes.ino, b"user.59"), Ok(&value[..]));
}

/// `ls -l` asks each file for its SELinux label, a request to the daemon each time, unless it hears that there are no
/// labels here: half the time of listing a large directory.
#[test]
fn labels_are_unsupported_until_one_is_set() {
    const LABEL: &[u8] = b"security.selinux";
    let mut volume = volume(192);
    let (one, _) = volume.create(Ino::ROOT, b"one").unwrap();
    let (other, _) = volume.create(Ino::ROOT, b"other").unwrap();
    assert_eq!(volume.core().get_xattr(one, LABEL), Err(Error::Unsupported));
    assert_eq!(volume.core().get_xattr(one, b"security.capability"), Err(Error::NoAttribute));
    volume.with(|core, now| core.set_xattr(now, one, LABEL, b"label", XattrFlags::empty())).unwrap();
    let check = |volume: &SimVolume| {
        assert_eq!(volume.core().get_xattr(one, LABEL), Ok(&b"label"[..]));
        assert_eq!(volume.core().get_xattr(other, LABEL), Err(Error::NoAttribute));
    };
    check(&volume);
    let disk = volume.unmount().unwrap();
    let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
    check(&SimVolume::mount(disk, &pool, Config::default(), 6).unwrap());
}

/// The same of ACLs, but for the owner only: to others the kernel's question decides about access, and "unsupported" would
/// be a refusal.
#[test]
fn acls_are_unsupported_to_the_owner_until_there_is_one() {
    const ACCESS: &[u8] = b"system.posix_acl_access";
    // u::rw-,u:1000:r--,g::r--,m::r--,o::r--
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 4, 1000), (4, 4, u32::MAX), (0x10, 4, u32::MAX), (0x20, 4, u32::MAX)];
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend([&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    let mut volume = volume(192);
    let (one, _) = volume.create(Ino::ROOT, b"one").unwrap();
    let (other, _) = volume.create(Ino::ROOT, b"other").unwrap();
    let uid = volume.core().attributes(one).unwrap().uid;
    let owner = Caller { uid, ..Caller::default() };
    let somebody = Caller { uid: uid + 1, ..Caller::default() };
    let asked = |volume: &SimVolume, caller, ino| {
        volume.core().get_xattr_as(caller, ino, ACCESS).map(|value| value.into_owned())
    };
    assert_eq!(asked(&volume, owner, one), Err(Error::Unsupported));
    assert_eq!(asked(&volume, somebody, one), Err(Error::NoAttribute));
    volume.with(|core, now| core.set_xattr(now, one, ACCESS, &value, XattrFlags::empty())).unwrap();
    let check = |volume: &SimVolume| {
        assert_eq!(asked(volume, owner, one), Ok(value.clone()));
        assert_eq!(asked(volume, owner, other), Err(Error::NoAttribute));
        assert_eq!(asked(volume, somebody, other), Err(Error::NoAttribute));
    };
    check(&volume);
    let disk = volume.unmount().unwrap();
    let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
    check(&SimVolume::mount(disk, &pool, Config::default(), 6).unwrap());
}

/// Samba's module takes the answer for a string of C: without a NUL it read on, opened the wrong name and crashed.
#[test]
fn the_spelling_of_a_name_is_told_with_its_end() {
    let mut volume = volume(256);
    volume.create(Ino::ROOT, b"Frame.dpx").unwrap();
    let ask = |volume: &SimVolume, name: &str| {
        let question = format!("glusterfs.get_real_filename:{name}");
        let answer = volume.core().get_xattr_as(Caller::default(), Ino::ROOT, question.as_bytes());
        answer.map(|value| value.into_owned())
    };
    assert_eq!(ask(&volume, "FRAME.DPX"), Ok(b"Frame.dpx\0".to_vec()));
    volume.create(Ino::ROOT, b"FRAME.dpx").unwrap();
    assert_eq!(ask(&volume, "FRAME.dpx"), Ok(b"FRAME.dpx\0".to_vec()));
    assert_eq!(ask(&volume, "other"), Err(Error::NoAttribute));
}

/// Files with a configured rate that are played or written hold reservations, readers and writers of one file apart, each as many times as
/// there are clients; a volume cannot be talked into more than its device carries, nor a client be refused.
#[test]
fn open_files_with_a_rate_are_streams() {
    const CONFIG: &str = r#"
        [[stream]]
        path = "*.mxf"
        bitrate = "100 Mbit/s"
        [[stream]]
        path = "*.dpx"
        bitrate = "2 Gbit/s"
    "#;
    let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
    let disk = formatted(Bytes::from_mib(256));
    let mut volume = SimVolume::mount(disk, &pool, Config::parse(CONFIG).unwrap(), 5).unwrap();
    let streams = |volume: &SimVolume| -> Vec<_> {
        let all = volume.streams();
        all.iter()
            .map(|stream| (stream.ino, stream.writes, stream.bits_per_second / 1_000_000, stream.state))
            .collect()
    };
    let (ino, recorder) = volume.create(Ino::ROOT, b"a.mxf").unwrap();
    let (_, other) = volume.create(Ino::ROOT, b"a.txt").unwrap();
    // More than plays in a second.
    let size = Some(16 << 20);
    volume.set_attributes(ino, SetAttributes { size, ..SetAttributes::default() }).unwrap();
    let players: Vec<_> =
        (0..2).map(|_| volume.with(|core, _| core.open(ino, OpenFlags::READ)).unwrap().handle).collect();
    // Who has only looked at the beginning of a long file is no player yet.
    let recorded = (ino.0, true, 100, StreamService::Admitted);
    for (request, expected) in [(0, 1), (1, 1), (2, 2)] {
        for &player in &players {
            volume.read(player, request * 4096, 4096).unwrap();
        }
        assert_eq!(streams(&volume).len(), expected);
    }
    let played = (ino.0, false, 200, StreamService::Admitted);
    assert_eq!(streams(&volume), [played, recorded]);
    volume.with(|core, now| core.release(now, players[0]));
    assert_eq!(streams(&volume), [(ino.0, false, 100, StreamService::Admitted), recorded]);
    // More than any disk array carries: served all the same, as best effort.
    let (scan, scanner) = volume.create(Ino::ROOT, b"a.dpx").unwrap();
    assert_eq!(streams(&volume)[2], (scan.0, true, 2000, StreamService::Waiting));
    volume.write(scanner, 0, &[7; 100_000]).unwrap();
    volume.fsync(scan).unwrap();
    for handle in [players[1], recorder, other, scanner] {
        volume.with(|core, now| core.release(now, handle));
    }
    assert_eq!(streams(&volume), []);
}

/// Small durable writes without end, the log as small as it can be: checkpoints make room in time.
#[test]
fn the_log_never_runs_full_for_good() {
    let mut volume = volume(192);
    let (ino, handle) = volume.create(Ino::ROOT, b"a").unwrap();
    for number in 0..12_000u64 {
        volume.write(handle, number % 50 * 4096, &number.to_le_bytes()).unwrap();
        volume.fsync(ino).unwrap();
    }
    assert!(volume.core().report().checkpoints > 1);
    assert_eq!(volume.core().failure(), None);
}

/// A volume filled to the last block still lets files be removed, and has their space again.
#[test]
fn a_full_volume_allows_deletions_and_can_be_filled_again() {
    let mut volume = volume(192);
    for round in 0..4u8 {
        let mut files = 0u64;
        'full: loop {
            let name = format!("{files}");
            let handle = match volume.create(Ino::ROOT, name.as_bytes()) {
                Ok((_, handle)) => handle,
                Err(error) => {
                    assert_eq!(error, Error::NoSpace);
                    break;
                }
            };
            files += 1;
            for mebibyte in 0..9 {
                let written = volume.write(handle, mebibyte << 20, &vec![round; 1 << 20]);
                if written.is_err() {
                    assert_eq!(written, Err(Error::NoSpace));
                    volume.with(|core, now| core.release(now, handle));
                    break 'full;
                }
            }
            volume.with(|core, now| core.release(now, handle));
        }
        volume.sync().unwrap();
        assert!(files >= 10, "round {round}: only {files} files fitted");
        for file in 0..files {
            let name = format!("{file}");
            let entry = volume.with(|core, _| core.lookup(Ino::ROOT, name.as_bytes())).unwrap();
            volume.with(|core, now| core.unlink(now, Ino::ROOT, name.as_bytes())).unwrap();
            volume.with(|core, now| core.forget(now, entry.attributes.ino, 2));
        }
        volume.sync().unwrap();
        volume.core().audit().unwrap();
    }
}

/// One sync of many files: what it costs must not grow with the square of their number.
#[test]
fn sync_of_many_files_ends() {
    let mut volume = volume(512);
    let started = std::time::Instant::now();
    for file in 0..8000 {
        let (_, handle) = volume.create(Ino::ROOT, format!("frame{file}").as_bytes()).unwrap();
        volume.write(handle, 0, &[1; 100]).unwrap();
        volume.with(|core, now| core.release(now, handle));
    }
    eprintln!("made {:?}", started.elapsed());
    volume.sync().unwrap();
    eprintln!("synced {:?}", started.elapsed());
    assert_eq!(volume.core().report().dirty_bytes, 0);
}

/// Of a file in more pieces than one turn takes, zeroing that keeps the size zeroed those of the first turn, and said that all was done.
#[test]
fn zeroing_of_very_many_pieces_does_not_end_with_the_first_turn() {
    const PAGE: usize = 4096;
    for mode in [AllocateMode::ZeroRange, AllocateMode::ZeroRangeKeepSize] {
        let mut volume = volume(192);
        let (ino, handle) = volume.create(Ino::ROOT, b"take.wav").unwrap();
        let pages = 2000;
        volume.allocate(handle, 0, (pages * PAGE) as u64, AllocateMode::Extend).unwrap();
        for page in (0..pages).step_by(2) {
            volume.write(handle, (page * PAGE) as u64, &[7; PAGE]).unwrap();
        }
        volume.fsync(ino).unwrap();
        let pieces = volume.core().extents(ino).unwrap().iter().filter(|extent| !extent.unwritten).count();
        assert!(pieces > 900, "only {pieces} pieces");
        volume.allocate(handle, 0, (pages * PAGE) as u64, mode).unwrap();
        let read = volume.read(handle, 0, pages * PAGE).unwrap();
        let left = read.chunks(PAGE).filter(|page| page.iter().any(|&byte| byte != 0)).count();
        assert_eq!((read.len(), left), (pages * PAGE, 0), "{mode:?}");
    }
}
