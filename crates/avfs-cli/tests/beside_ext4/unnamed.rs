//! O_TMPFILE and RENAME_WHITEOUT, which FUSE passes on and AVFS refused.

use crate::{Beside, ROOT, User, errno, told};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, open, renameat_with};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

const USER: User = User { uid: 100, gid: 100 };

fn unnamed(directory: &Path, flags: OFlags) -> io::Result<File> {
    Ok(open(directory, OFlags::TMPFILE | flags, Mode::from_raw_mode(0o666))?.into())
}

/// Gives an open file a name, as programs do that have no CAP_DAC_READ_SEARCH.
fn link(file: &File, path: &Path) -> Result<(), i32> {
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    told(linkat(CWD, source, CWD, path, AtFlags::SYMLINK_FOLLOW))
}

#[test]
fn a_file_without_a_name_gets_one_or_is_gone() {
    let Some(rig) = Beside::mounted() else { return };
    for user in [ROOT, USER] {
        rig.same(&format!("{user:?}"), |root| {
            let directory = root.join(format!("of {}", user.uid));
            fs::create_dir(&directory).unwrap();
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o2777)).unwrap();
            user.does(|| {
                let file = unnamed(&directory, OFlags::RDWR).unwrap();
                let seen = |file: &File| {
                    let found = file.metadata().unwrap();
                    (found.nlink(), found.mode(), found.uid(), found.gid(), found.len())
                };
                file.write_all_at(b"contents", 0).unwrap();
                let before = (seen(&file), fs::read_dir(&directory).unwrap().count());
                let linked = link(&file, &directory.join("named"));
                let after = (seen(&file), fs::read(directory.join("named")).unwrap());
                // A second name, and a file that may get none.
                let again = link(&file, &directory.join("again"));
                let exclusive = unnamed(&directory, OFlags::RDWR | OFlags::EXCL).unwrap();
                let refused = link(&exclusive, &directory.join("exclusive"));
                let onto = link(&file, &directory.join("named"));
                // What has lost its last name gets no other.
                let gone = File::create(directory.join("gone")).unwrap();
                fs::remove_file(directory.join("gone")).unwrap();
                let back = link(&gone, &directory.join("back"));
                let read_only = errno(unnamed(&directory, OFlags::RDONLY).map(drop));
                (before, linked, after, again, refused, onto, back, read_only)
            })
        });
    }
    rig.same("a directory that one may not write to", |root| {
        fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
        errno(USER.does(|| unnamed(root, OFlags::RDWR).map(drop)))
    });
    rig.check_avfs();
}

/// A file without a name is nobody's once the daemon has died: neither it nor its space is there at the next mount. What got a name
/// in time is.
#[test]
fn a_file_without_a_name_is_gone_with_its_space_when_the_daemon_dies() {
    let Some(rig) = Beside::with_avfs_alone() else { return };
    let blocks = || {
        let figures = rustix::fs::statvfs(rig.avfs()).unwrap();
        (figures.f_files - figures.f_ffree, figures.f_blocks - figures.f_bfree)
    };
    rig.remount_avfs();
    let (files, before) = blocks();
    let [lost, kept] = [(); 2].map(|()| unnamed(&rig.avfs(), OFlags::RDWR).unwrap());
    lost.write_all_at(&vec![7; 64 << 20], 0).unwrap();
    lost.sync_all().unwrap();
    kept.write_all_at(b"kept", 0).unwrap();
    link(&kept, &rig.avfs().join("kept")).unwrap();
    kept.sync_all().unwrap();
    assert!(blocks().1 > before + 16_000, "64 MiB are in use");
    rig.kill_avfs();
    drop((lost, kept));
    crate::succeed(rig.umount_avfs());
    crate::succeed(rig.mount_avfs(""));
    assert_eq!(fs::read(rig.avfs().join("kept")).unwrap(), b"kept");
    rig.remount_avfs();
    let (files_now, now) = blocks();
    assert_eq!(files_now, files + 1);
    // Metadata may have taken some units meanwhile.
    assert!(now < before + 8000, "{now} blocks are in use, {before} before");
    rig.check_avfs();
}

#[test]
fn renaming_leaves_a_whiteout_where_it_is_asked_for() {
    let Some(rig) = Beside::mounted() else { return };
    let rename = |root: &Path, from: &str, to: &str, flags| {
        told(renameat_with(CWD, root.join(from), CWD, root.join(to), flags))
    };
    for user in [ROOT, USER] {
        rig.same(&format!("{user:?}"), |root| {
            let root = root.join(format!("of {}", user.uid));
            fs::create_dir(&root).unwrap();
            fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
            for name in ["moved", "onto", "from", "kept", "also"] {
                fs::write(root.join(name), name).unwrap();
            }
            fs::create_dir(root.join("directory")).unwrap();
            let flags = RenameFlags::WHITEOUT;
            user.does(|| {
                let results = [
                    rename(&root, "moved", "there", flags),
                    rename(&root, "from", "onto", flags),
                    rename(&root, "directory", "elsewhere", flags),
                    rename(&root, "kept", "also", flags | RenameFlags::NOREPLACE),
                    rename(&root, "kept", "also", flags | RenameFlags::EXCHANGE),
                    rename(&root, "absent", "also", flags),
                ];
                let mut seen: Vec<_> = fs::read_dir(&root)
                    .unwrap()
                    .map(|entry| {
                        let entry = entry.unwrap();
                        let found = entry.metadata().unwrap();
                        let kind = entry.file_type().unwrap().is_char_device();
                        (entry.file_name(), kind, found.mode(), found.rdev(), found.uid(), found.nlink())
                    })
                    .collect();
                seen.sort();
                (results, seen)
            })
        });
    }
    rig.remount_avfs();
    let whiteout = fs::metadata(rig.avfs().join("of 0/moved")).unwrap();
    assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
    rig.check_avfs();
}
