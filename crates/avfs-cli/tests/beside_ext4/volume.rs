//! What is done to a whole volume through any of its files: labels, FS_IOC_SHUTDOWN, fstrim(8).

use crate::{Beside, User, succeed};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

const USER: User = User { uid: 100, gid: 100 };
const GET_LABEL: libc::Ioctl = 0x8100_9431;
const SET_LABEL: libc::Ioctl = 0x4100_9432;
const FITRIM: libc::Ioctl = 0xc018_5879;
const SHUTDOWN: libc::Ioctl = 0x8004_587d;

fn ioctl(path: &Path, number: libc::Ioctl, argument: &mut [u8]) -> io::Result<()> {
    let file = File::open(path)?;
    // SAFETY: the argument is as long as the number says, and lives as long as the call.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), number, argument.as_mut_ptr()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn label(path: &Path) -> String {
    let mut bytes = [0; 256];
    ioctl(path, GET_LABEL, &mut bytes).unwrap();
    String::from_utf8(bytes.split(|byte| *byte == 0).next().unwrap().to_vec()).unwrap()
}

fn set_label(path: &Path, label: &str) -> Result<(), i32> {
    let mut bytes = [0; 256];
    bytes[..label.len()].copy_from_slice(label.as_bytes());
    crate::errno(ioctl(path, SET_LABEL, &mut bytes))
}

#[test]
fn a_label_is_changed_while_the_volume_is_mounted() {
    let Some(rig) = Beside::mounted() else { return };
    let root = rig.avfs();
    assert_eq!(label(&root), "beside");
    fs::write(root.join("file"), "").unwrap();
    rig.same("a label by root, by a user, of a file", |root| {
        fs::write(root.join("labelled"), "").unwrap();
        let by_root = set_label(root, "season 5");
        let seen = label(&root.join("labelled"));
        let by_user = USER.does(|| set_label(root, "mine"));
        let too_long = set_label(root, &"x".repeat(200));
        let none = set_label(root, "");
        let then = label(root);
        let last = set_label(root, "last");
        (by_root, seen, by_user, too_long, none, then, last, label(root))
    });
    // It is durable when the call returns.
    rig.kill_avfs();
    succeed(rig.umount_avfs());
    succeed(rig.mount_avfs(""));
    assert_eq!(label(&root), "last");
}

/// As on ext4: what is in the log is there at the next mount where that was asked for, and what was accepted where that was. What is
/// written afterwards is refused. Root of a container, who has no CAP_SYS_ADMIN, may not.
#[test]
fn a_volume_that_was_shut_down_keeps_what_was_asked_for() {
    for (how, file_is_there, data_is_there) in [(0u32, true, true), (1, true, false), (2, false, false)] {
        let Some(rig) = Beside::mounted() else { return };
        let root = rig.avfs();
        fs::write(root.join("before"), "before").unwrap();
        File::open(root.join("before")).unwrap().sync_all().unwrap();
        let open = [&root, &rig.ext4()].map(|root| {
            fs::write(root.join("clean"), "clean").unwrap();
            let clean = File::open(root.join("clean")).unwrap();
            clean.sync_all().unwrap();
            let dirty = File::create(root.join("dirty")).unwrap();
            dirty.write_all_at(b"dirty", 0).unwrap();
            [clean, dirty, File::open(root).unwrap()]
        });
        ioctl(&rig.ext4(), SHUTDOWN, &mut how.to_ne_bytes()).unwrap();
        let file = File::create(root.join("file")).unwrap();
        file.write_all_at(&[7; 10_000], 0).unwrap();
        let shut_down = || ioctl(&root, SHUTDOWN, &mut how.to_ne_bytes());
        let refused = USER.does(|| crate::errno(shut_down()));
        assert_eq!(refused, Err(libc::EPERM));
        assert_eq!(crate::errno(ioctl(&root, SHUTDOWN, &mut 9u32.to_ne_bytes())), Err(libc::EINVAL));
        shut_down().unwrap();
        // Like any volume that is written to no more; ext4 says EIO.
        assert_eq!(crate::errno(file.write_all_at(b"x", 0)), Err(libc::EROFS), "{how}");
        assert_eq!(crate::errno(fs::create_dir(root.join("directory"))), Err(libc::EROFS));
        assert_eq!(crate::errno(file.sync_all()), Err(libc::EIO), "{how}");
        drop(file);
        // Also of what has nothing to be written, as ext4 says it.
        let told = open
            .map(|files| files.map(|file| (crate::errno(file.sync_all()), crate::errno(file.sync_data()))));
        assert_eq!(told[0], told[1], "after {how}: AVFS on the left, ext4 on the right");
        assert_eq!(told[0][1].0, Err(libc::EIO), "after {how}");
        let _ = rig.umount_avfs();
        succeed(rig.mount_avfs(""));
        assert_eq!(fs::read(root.join("before")).unwrap(), b"before");
        let found = fs::read(root.join("file")).ok();
        assert_eq!(found.is_some(), file_is_there, "after {how}");
        // What was not flushed may have been written all the same.
        assert!(!data_is_there || found.as_deref() == Some(&[7; 10_000][..]), "after {how}: {found:?}");
    }
}

fn trim(path: &Path, start: u64, length: u64, shortest: u64) -> Result<u64, i32> {
    let mut range: Vec<u8> = [start, length, shortest].iter().flat_map(|word| word.to_ne_bytes()).collect();
    crate::errno(ioctl(path, FITRIM, &mut range))?;
    Ok(u64::from_ne_bytes(range[8..16].try_into().unwrap()))
}

/// What was removed takes no place in the image any more once fstrim(8) has run, and nothing else goes with it.
#[test]
fn free_space_is_given_back_to_the_device() {
    let Some(rig) = Beside::mounted() else { return };
    rig.same("by a user", |root| USER.does(|| trim(root, 0, u64::MAX, 0)));
    let root = rig.avfs();
    let taken = || fs::metadata(rig.image("avfs")).unwrap().blocks() * 512;
    let bytes: Vec<u8> = (0..16u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for name in ["gone 1", "kept", "gone 2", "gone 3"] {
        fs::write(root.join(name), &bytes).unwrap();
        File::open(root.join(name)).unwrap().sync_all().unwrap();
    }
    for name in ["gone 1", "gone 2", "gone 3"] {
        fs::remove_file(root.join(name)).unwrap();
    }
    // Free is what is durably so.
    File::open(&root).unwrap().sync_all().unwrap();
    let before = taken();
    assert_eq!(trim(&root, 0, u64::MAX, 1 << 40), Ok(0), "no hole is that long");
    assert_eq!(trim(&root, 1 << 50, u64::MAX, 0), Ok(0), "there is nothing");
    let output = Command::new("fstrim").arg("-v").arg(&root).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(taken() + (45 << 20) < before, "{} bytes are taken, {before} before", taken());
    assert!(trim(&root, 0, u64::MAX, 0).unwrap() > 300 << 20);
    rig.remount_avfs();
    assert!(fs::read(root.join("kept")).unwrap() == bytes);
    rig.check_avfs();
}

/// A block that was just written must not be one that was free when the trim began.
#[test]
fn free_space_is_given_back_beside_those_who_write() {
    let Some(rig) = Beside::with_avfs_alone() else { return };
    let root = rig.avfs();
    let contents = |number: u32| -> Vec<u8> { number.to_le_bytes().repeat(60_000 + number as usize * 100) };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..200 {
                let path = root.join(number.to_string());
                fs::write(&path, contents(number)).unwrap();
                if number % 10 == 0 {
                    File::open(&path).unwrap().sync_all().unwrap();
                }
                if number % 2 == 1 {
                    fs::remove_file(path).unwrap();
                }
            }
        });
        let mut rounds = 0;
        while !writer.is_finished() || rounds == 0 {
            match trim(&root, 0, u64::MAX, 0) {
                Ok(_) => rounds += 1,
                Err(error) => panic!("errno {error}"),
            }
        }
    });
    rig.remount_avfs();
    for number in (0..200).step_by(2) {
        assert!(fs::read(root.join(number.to_string())).unwrap() == contents(number), "{number}");
    }
    rig.check_avfs();
}

/// What the kernel never asks a FUSE filesystem for, or that the page cache of one cannot do.
#[test]
fn what_the_kernel_keeps_from_a_filesystem_in_user_space_is_refused() {
    const FIEMAP: libc::Ioctl = 0xc020_660b;
    const FREEZE: libc::Ioctl = 0xc004_5877;
    let Some(rig) = Beside::mounted() else { return };
    let file = rig.avfs().join("file");
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    // All of the file, and room for no extent: how many there are.
    let mut map = [0; 32];
    map[8..16].fill(0xff);
    assert_eq!(crate::errno(ioctl(&file, FIEMAP, &mut map)), Err(libc::ENOTSUP));
    assert_eq!(crate::errno(ioctl(&rig.avfs(), FREEZE, &mut [0; 4])), Err(libc::EOPNOTSUPP));
    let open = fs::OpenOptions::new().write(true).open(&file).unwrap();
    for mode in [libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE] {
        // SAFETY: an open file, and no memory.
        let done = unsafe { libc::fallocate(open.as_raw_fd(), mode, 65_536, 65_536) };
        let error = io::Error::last_os_error();
        assert_eq!((done, error.raw_os_error()), (-1, Some(libc::EOPNOTSUPP)));
    }
}
