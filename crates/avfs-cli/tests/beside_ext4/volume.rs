//! What is done to a whole volume through any of its files: labels, FS_IOC_SHUTDOWN.

use crate::{Beside, User, succeed};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

const USER: User = User { uid: 100, gid: 100 };
const GET_LABEL: libc::Ioctl = 0x8100_9431;
const SET_LABEL: libc::Ioctl = 0x4100_9432;
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
        let Some(rig) = Beside::with_avfs_alone() else { return };
        let root = rig.avfs();
        fs::write(root.join("before"), "before").unwrap();
        File::open(root.join("before")).unwrap().sync_all().unwrap();
        let file = File::create(root.join("file")).unwrap();
        file.write_all_at(&[7; 10_000], 0).unwrap();
        let shut_down = || ioctl(&root, SHUTDOWN, &mut how.to_ne_bytes());
        let refused = USER.does(|| crate::errno(shut_down()));
        assert_eq!(refused, Err(libc::EPERM));
        assert_eq!(crate::errno(ioctl(&root, SHUTDOWN, &mut 9u32.to_ne_bytes())), Err(libc::EINVAL));
        shut_down().unwrap();
        assert_eq!(crate::errno(file.write_all_at(b"x", 0)), Err(libc::EIO), "{how}");
        assert_eq!(crate::errno(fs::create_dir(root.join("directory"))), Err(libc::EIO));
        assert_eq!(crate::errno(file.sync_all()), Err(libc::EIO));
        drop(file);
        let _ = rig.umount_avfs();
        succeed(rig.mount_avfs(""));
        assert_eq!(fs::read(root.join("before")).unwrap(), b"before");
        let found = fs::read(root.join("file")).ok();
        assert_eq!(found.is_some(), file_is_there, "after {how}");
        // What was not flushed may have been written all the same.
        assert!(!data_is_there || found.as_deref() == Some(&[7; 10_000][..]), "after {how}: {found:?}");
    }
}
