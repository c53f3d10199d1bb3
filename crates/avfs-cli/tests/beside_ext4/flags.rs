//! What chattr(1) sets: every operation on files and directories that may not change, or only grow.

use crate::{Beside, ROOT, User, errno, mapping, succeed, told};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, RenameFlags, XattrFlags, chownat, fallocate,
    ioctl_getflags, ioctl_setflags, linkat, openat, removexattr, renameat_with, setxattr,
};
use rustix::process::Uid;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

const USER: User = User { uid: 100, gid: 100 };

fn set(path: &Path, flags: IFlags) -> Result<(), i32> {
    let file = File::open(path).unwrap();
    // ext4's own, of which the library does not know all.
    let others = ioctl_getflags(&file).unwrap().bits() & !KNOWN.bits();
    told(ioctl_setflags(&file, IFlags::from_bits_retain(flags.bits() | others)))
}

/// Those that AVFS has; ext4 shows that it has extents, besides.
const KNOWN: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND).union(IFlags::NODUMP).union(IFlags::NOATIME);

fn get(path: &Path) -> IFlags {
    ioctl_getflags(File::open(path).unwrap()).unwrap() & KNOWN
}

type Act = fn(&Path) -> io::Result<()>;

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
    Ok(renameat_with(CWD, from, CWD, to, flags)?)
}

/// On a file `f` of a directory, which it is given.
const FILE_ACTS: &[(&str, Act)] = &[
    ("open to write", |d| OpenOptions::new().write(true).open(d.join("f")).map(drop)),
    ("open to read and write", |d| OpenOptions::new().read(true).write(true).open(d.join("f")).map(drop)),
    ("append", |d| OpenOptions::new().append(true).open(d.join("f"))?.write_all(b"more")),
    ("append, and truncate", |d| OpenOptions::new().append(true).open(d.join("f"))?.set_len(1)),
    ("open with O_APPEND and O_TRUNC", |d| {
        openat(CWD, d.join("f"), OFlags::WRONLY | OFlags::APPEND | OFlags::TRUNC, Mode::empty())?;
        Ok(())
    }),
    ("append, and allocate", |d| {
        let file = OpenOptions::new().append(true).open(d.join("f"))?;
        Ok(fallocate(file, FallocateFlags::KEEP_SIZE, 0, 8192)?)
    }),
    ("append, and punch", |d| {
        let file = OpenOptions::new().append(true).open(d.join("f"))?;
        Ok(fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096)?)
    }),
    ("append after O_APPEND was taken back", |d| {
        let file = OpenOptions::new().append(true).open(d.join("f"))?;
        // ext4 refuses the one, AVFS the other: fcntl(2) does not ask a FUSE filesystem.
        rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
        file.write_all_at(b"over", 0)
    }),
    ("read", |d| fs::read(d.join("f")).map(drop)),
    ("chmod", |d| fs::set_permissions(d.join("f"), fs::Permissions::from_mode(0o600))),
    ("chown", |d| Ok(chownat(CWD, d.join("f"), Some(Uid::from_raw(5)), None, AtFlags::empty())?)),
    ("touch", |d| {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        Ok(rustix::fs::utimensat(CWD, d.join("f"), &times, AtFlags::empty())?)
    }),
    ("times", |d| {
        File::open(d.join("f"))?.set_times(fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH))
    }),
    ("set attribute", |d| Ok(setxattr(d.join("f"), "user.new", b"x", XattrFlags::empty())?)),
    ("remove attribute", |d| Ok(removexattr(d.join("f"), "user.old")?)),
    ("link", |d| Ok(linkat(CWD, d.join("f"), CWD, d.join("l"), AtFlags::empty())?)),
    ("rename", |d| rename(&d.join("f"), &d.join("g"), RenameFlags::empty())),
    ("rename over", |d| rename(&d.join("other"), &d.join("f"), RenameFlags::empty())),
    ("exchange", |d| rename(&d.join("f"), &d.join("other"), RenameFlags::EXCHANGE)),
    ("exchange the other way", |d| rename(&d.join("other"), &d.join("f"), RenameFlags::EXCHANGE)),
    ("unlink", |d| fs::remove_file(d.join("f"))),
];

/// In a directory `s`.
const DIRECTORY_ACTS: &[(&str, Act)] = &[
    ("create", |d| File::create(d.join("s/new")).map(drop)),
    ("create what is there", |d| File::create_new(d.join("s/f")).map(drop)),
    ("write to what is there", |d| fs::write(d.join("s/f"), "written")),
    ("mkdir", |d| fs::create_dir(d.join("s/new"))),
    ("symlink", |d| std::os::unix::fs::symlink("target", d.join("s/new"))),
    ("link into", |d| Ok(linkat(CWD, d.join("other"), CWD, d.join("s/new"), AtFlags::empty())?)),
    ("O_TMPFILE", |d| {
        openat(CWD, d.join("s"), OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600))?;
        Ok(())
    }),
    ("unlink", |d| fs::remove_file(d.join("s/f"))),
    ("rmdir within", |d| fs::remove_dir(d.join("s/sub"))),
    ("rename within", |d| rename(&d.join("s/f"), &d.join("s/new"), RenameFlags::empty())),
    ("rename into", |d| rename(&d.join("other"), &d.join("s/new"), RenameFlags::empty())),
    ("rename out of", |d| rename(&d.join("s/f"), &d.join("new"), RenameFlags::empty())),
    ("exchange with one outside", |d| rename(&d.join("other"), &d.join("s/f"), RenameFlags::EXCHANGE)),
    ("rename it", |d| rename(&d.join("s"), &d.join("t"), RenameFlags::empty())),
    ("chmod it", |d| fs::set_permissions(d.join("s"), fs::Permissions::from_mode(0o700))),
    ("remove it with what it holds", |d| fs::remove_dir_all(d.join("s"))),
];

const KINDS: [(&str, IFlags); 4] = [
    ("nothing", IFlags::empty()),
    ("immutable", IFlags::IMMUTABLE),
    ("append only", IFlags::APPEND),
    ("not to be dumped", IFlags::NODUMP.union(IFlags::NOATIME)),
];

/// What comes of each operation, and what is there afterwards.
fn try_all(
    root: &Path,
    acts: &[(&str, Act)],
    target: &str,
    user: User,
) -> Vec<(String, Result<(), i32>, String)> {
    let mut found = Vec::new();
    for (kind, flags) in KINDS {
        for (number, (name, act)) in acts.iter().enumerate() {
            let directory = root.join(format!("{target} {kind} {number} {}", user.uid));
            fs::create_dir_all(directory.join("s/sub")).unwrap();
            for name in ["f", "other", "s/f"] {
                fs::write(directory.join(name), name).unwrap();
                setxattr(directory.join(name), "user.old", b"x", XattrFlags::empty()).unwrap();
            }
            for name in [".", "f", "other", "s", "s/f", "s/sub"] {
                fs::set_permissions(directory.join(name), fs::Permissions::from_mode(0o777)).unwrap();
            }
            assert_eq!(set(&directory.join(target), flags), Ok(()), "{name}");
            let result = errno(user.does(|| act(&directory)));
            let mut left = Vec::new();
            walk(&directory, &directory, &mut left);
            left.sort();
            found.push((format!("{name}: {kind}"), result, left.join(", ")));
            // So that it can be removed.
            let _ =
                fs::metadata(directory.join(target)).map(|_| set(&directory.join(target), IFlags::empty()));
        }
    }
    found
}

fn walk(top: &Path, directory: &Path, left: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let found = entry.metadata().unwrap();
        let name = entry.path().strip_prefix(top).unwrap().display().to_string();
        if found.is_dir() {
            left.push(format!("{name}/ {:o}", found.mode()));
            walk(top, &entry.path(), left);
        } else {
            let contents = fs::read_to_string(entry.path()).unwrap_or_default();
            left.push(format!("{name} {:o} {} {contents:?}", found.mode(), found.nlink()));
        }
    }
}

/// chattr(1) failed on AVFS. Of 37 operations on what has each kind of flags, by root and by somebody else, each is done or refused
/// as on ext4, with the same error, and leaves the same.
#[test]
fn flags_forbid_what_they_forbid_on_ext4() {
    let Some(rig) = Beside::mounted() else { return };
    for user in [ROOT, USER] {
        for (acts, target) in [(FILE_ACTS, "f"), (DIRECTORY_ACTS, "s")] {
            let ours = try_all(&rig.avfs(), acts, target, user);
            let theirs = try_all(&rig.ext4(), acts, target, user);
            let differing: Vec<_> = ours
                .iter()
                .zip(&theirs)
                .filter(|(ours, theirs)| ours != theirs)
                .map(|(ours, theirs)| {
                    format!("{}\n  AVFS {:?} {}\n  ext4 {:?} {}", ours.0, ours.1, ours.2, theirs.1, theirs.2)
                })
                .collect();
            assert!(differing.is_empty(), "{user:?}, {} differ:\n{}", differing.len(), differing.join("\n"));
        }
    }
}

#[test]
fn flags_are_set_by_who_may_kept_and_inherited_as_on_ext4() {
    let Some(rig) = Beside::mounted() else { return };
    let all =
        [IFlags::IMMUTABLE, IFlags::APPEND, IFlags::NODUMP, IFlags::NOATIME, IFlags::APPEND | IFlags::NODUMP];
    for user in [ROOT, USER, User { uid: 101, gid: 100 }] {
        for flags in all {
            rig.same(&format!("{flags:?} by {user:?}"), |root| {
                let path = root.join("file");
                fs::write(&path, "x").unwrap();
                std::os::unix::fs::chown(&path, Some(USER.uid), None).unwrap();
                let result = user.does(|| set(&path, flags));
                let seen = get(&path);
                set(&path, IFlags::empty()).unwrap();
                fs::remove_file(&path).unwrap();
                (result, seen)
            });
        }
    }
    for (number, flags) in all.into_iter().enumerate() {
        rig.same(&format!("{flags:?} in a directory"), |root| {
            let directory = root.join(format!("directory {number}"));
            fs::create_dir(&directory).unwrap();
            set(&directory, flags).unwrap();
            let made =
                (errno(fs::create_dir(directory.join("sub"))), errno(fs::write(directory.join("file"), "")));
            let of = |name: &str| fs::metadata(directory.join(name)).ok().map(|_| get(&directory.join(name)));
            (made, of("sub"), of("file"), get(&directory))
        });
    }
    // Kept by the volume, and seen by lsattr(1).
    rig.remount_avfs();
    for (number, flags) in all.into_iter().enumerate() {
        assert_eq!(get(&rig.avfs().join(format!("directory {number}"))), flags);
    }
    let shown = Command::new("lsattr").arg("-d").arg(rig.avfs().join("directory 4")).output().unwrap();
    assert!(String::from_utf8_lossy(&shown.stdout).starts_with("-----ad"), "{shown:?}");
    assert_eq!(
        told(ioctl_setflags(File::open(rig.avfs().join("directory 4")).unwrap(), IFlags::COMPRESSED)),
        Err(libc::EOPNOTSUPP)
    );
    rig.check_avfs();
}

/// What chattr(1) of other programs asks: xfs_io, backup programs.
#[test]
fn extended_flags_say_the_same() {
    let Some(rig) = Beside::mounted() else { return };
    const GET: libc::Ioctl = 0x801c_581f;
    const SET: libc::Ioctl = 0x401c_5820;
    rig.same("FS_IOC_FSGETXATTR", |root| {
        let path = root.join("extended");
        fs::write(&path, "x").unwrap();
        let file = File::open(&path).unwrap();
        let mut seen = Vec::new();
        let mut ask = |number, words: &mut [u32; 7]| {
            // SAFETY: both take a structure of 28 bytes, which lives as long as the call.
            let done = unsafe { libc::ioctl(file.as_raw_fd(), number, words.as_mut_ptr()) };
            let result = if done == 0 { Ok(()) } else { Err(io::Error::last_os_error().raw_os_error()) };
            // The third word counts extents.
            words[2] = 0;
            seen.push((result, *words));
        };
        for flags in [0x08, 0x10, 0x40 | 0x80, 0] {
            ask(SET, &mut [flags, 0, 0, 0, 0, 0, 0]);
            ask(GET, &mut [0; 7]);
        }
        seen
    });
}

#[test]
fn noatime_of_a_file_leaves_its_time_of_access() {
    let Some(rig) = Beside::with_avfs_alone() else { return };
    for (flags, stays) in [(IFlags::NOATIME, true), (IFlags::empty(), false)] {
        let path = rig.avfs().join(format!("{}", flags.bits()));
        fs::write(&path, "x").unwrap();
        set(&path, flags).unwrap();
        let old = fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH);
        File::open(&path).unwrap().set_times(old).unwrap();
        fs::read(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().atime() == 0, stays);
    }
}

/// A descriptor from before goes on as on ext4: what may not change does not, also where it was opened in time.
#[test]
fn what_is_open_when_a_flag_is_set_is_held_to_it() {
    let Some(rig) = Beside::mounted() else { return };
    for (kind, flags) in KINDS {
        rig.same(kind, |root| {
            let path = root.join(format!("open {kind}"));
            fs::write(&path, "contents").unwrap();
            let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            set(&path, flags).unwrap();
            let seen = (errno(file.write_all_at(b"x", 0)), errno(file.set_len(3)), errno(file.sync_all()));
            let seen = (seen, fs::read(&path).unwrap());
            set(&path, IFlags::empty()).unwrap();
            seen
        });
    }
}

/// Where only appending is allowed a store through a mapping is never part of the volume. ext4 refuses the mapping; FUSE does not ask.
#[test]
fn a_store_through_a_mapping_does_not_change_what_only_grows() {
    let Some(rig) = Beside::with_avfs_alone() else { return };
    let path = rig.avfs().join("log");
    fs::write(&path, "first").unwrap();
    set(&path, IFlags::APPEND).unwrap();
    let file = OpenOptions::new().read(true).append(true).open(&path).unwrap();
    assert!(mapping::store(&file, b'X', true).is_err());
    drop(file);
    rig.remount_avfs();
    assert_eq!(fs::read(&path).unwrap(), b"first");
    set(&path, IFlags::empty()).unwrap();
}

/// Flags that somebody has set survive the death of the daemon with everything else that was synced.
#[test]
fn flags_are_durable() {
    let Some(rig) = Beside::with_avfs_alone() else { return };
    let path = rig.avfs().join("file");
    fs::write(&path, "x").unwrap();
    set(&path, IFlags::IMMUTABLE).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    rig.kill_avfs();
    succeed(rig.umount_avfs());
    succeed(rig.mount_avfs(""));
    assert_eq!(get(&path), IFlags::IMMUTABLE);
    assert_eq!(errno(fs::write(&path, "y")), Err(libc::EPERM));
}
