//! Times of access, file handles, what df(1) says.

use crate::{Beside, ROOT, User, succeed};
use rustix::fs::{Timespec, Timestamps, futimens, statvfs};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A small file that was last read in 1970 and changed later.
fn old_file(path: &Path) {
    fs::write(path, "contents").unwrap();
    let time = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
    let times = Timestamps { last_access: time(1000), last_modification: time(2000) };
    futimens(File::open(path).unwrap(), &times).unwrap();
}

fn read(path: &Path, flags: i32) -> io::Result<i64> {
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    file.read_to_end(&mut Vec::new())?;
    drop(file);
    Ok(fs::metadata(path)?.atime())
}

/// O_NOATIME was not heeded: a backup made every file look read.
#[test]
fn a_read_with_o_noatime_leaves_the_time_of_access() {
    let Some(rig) = Beside::with_avfs_alone() else { return };
    for flags in [0, libc::O_DIRECT] {
        let path = rig.avfs().join(format!("file {flags}"));
        old_file(&path);
        assert_eq!(read(&path, libc::O_NOATIME | flags).unwrap(), 1000);
        assert_ne!(read(&path, flags).unwrap(), 1000);
    }
}

/// With strictatime a small file's second read was answered from the kernel's pages, and changed nothing; with relatime so was one a
/// day after the first.
#[test]
fn a_read_changes_the_time_of_access_also_where_the_kernel_has_the_file() {
    let Some(rig) = Beside::with_avfs_alone() else { return };
    let path = rig.avfs().join("file");
    old_file(&path);
    let first = read(&path, 0).unwrap();
    assert_eq!(read(&path, 0).unwrap(), first, "relatime: read since it was changed, and today");
    old_file(&path);
    assert_ne!(read(&path, 0).unwrap(), 1000, "the kernel has pages of what was read before");
    succeed(rig.umount_avfs());
    succeed(rig.mount_avfs("strictatime"));
    let nanoseconds = || {
        fs::read(&path).unwrap();
        fs::metadata(&path).map(|found| (found.atime(), found.atime_nsec())).unwrap()
    };
    let first = nanoseconds();
    let second = nanoseconds();
    let mut file = File::open(&path).unwrap();
    file.read_exact(&mut [0; 2]).unwrap();
    let third = file.metadata().map(|found| (found.atime(), found.atime_nsec())).unwrap();
    file.read_exact(&mut [0; 2]).unwrap();
    let fourth = file.metadata().map(|found| (found.atime(), found.atime_nsec())).unwrap();
    assert!(first < second && second < third && third < fourth, "{first:?} {second:?} {third:?} {fourth:?}");
    // A remount that says nothing of it leaves it so.
    succeed(rig.mount_avfs("remount,nosuid"));
    assert!(nanoseconds() > fourth);
    succeed(rig.mount_avfs("remount,relatime"));
    let last = nanoseconds();
    assert_eq!(nanoseconds(), last);
}

/// Users saw the names of root's attributes, whose values they cannot read: a copy of theirs then complains.
#[test]
fn trusted_attributes_are_shown_to_root_alone() {
    let Some(rig) = Beside::mounted() else { return };
    let user = User { uid: 65534, gid: 65534 };
    rig.same("names of attributes", |volume| {
        let path = volume.join("file");
        fs::write(&path, "").unwrap();
        for name in ["user.colour", "trusted.colour"] {
            rustix::fs::setxattr(&path, name, b"red", rustix::fs::XattrFlags::empty()).unwrap();
        }
        [ROOT, user].map(|user| {
            let mut names = vec![0; 4096];
            let length = user.does(|| rustix::fs::listxattr(&path, &mut names[..])).unwrap();
            let all = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
            // ext4 keeps a label of the security module besides, where there is one.
            let ours = all.filter(|name| !name.starts_with(b"security."));
            let mut ours: Vec<_> = ours.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
            ours.sort();
            ours
        })
    });
}

/// A file handle as NFS servers keep it.
struct Handle {
    bytes: Vec<u8>,
}

impl Handle {
    const ROOM: u32 = 128;

    /// name_to_handle_at(2).
    fn of(path: &Path) -> Self {
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        let mut bytes = vec![0u8; 8 + Self::ROOM as usize];
        bytes[..4].copy_from_slice(&Self::ROOM.to_ne_bytes());
        let mut mount = 0;
        // SAFETY: the structure has the room that it says, the path ends with a NUL, and all live as long as the call.
        let done = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                libc::AT_FDCWD,
                path.as_ptr(),
                bytes.as_mut_ptr(),
                &raw mut mount,
                0,
            )
        };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        Self { bytes }
    }

    /// open_by_handle_at(2), on the filesystem that `mount` is of.
    fn open(&self, mount: &Path, flags: i32) -> io::Result<File> {
        let mount = File::open(mount)?;
        let mut bytes = self.bytes.clone();
        // SAFETY: the structure is what name_to_handle_at(2) made, and all live as long as the call.
        let opened = unsafe {
            libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), bytes.as_mut_ptr(), flags)
        };
        let opened = i32::try_from(opened).unwrap();
        // SAFETY: a descriptor that the kernel just made is nobody else's.
        if opened >= 0 { Ok(unsafe { File::from_raw_fd(opened) }) } else { Err(io::Error::last_os_error()) }
    }
}

/// A file that the kernel had dropped could not be found by its handle, because the kernel looks it up as `.`: NFS lost its files.
#[test]
fn file_handles_hold_until_the_file_is_deleted() {
    let Some(rig) = Beside::with_avfs_alone() else { return };
    let root = rig.avfs();
    fs::create_dir_all(root.join("directory/deep")).unwrap();
    for name in ["directory/deep/file", "large", "gone", "gone too"] {
        fs::write(root.join(name), name).unwrap();
    }
    let names = [".", "directory", "directory/deep", "directory/deep/file", "large"];
    let handles: Vec<Handle> = names.iter().map(|name| Handle::of(&root.join(name))).collect();
    let gone = ["gone", "gone too"].map(|name| Handle::of(&root.join(name)));
    fs::remove_file(root.join("gone")).unwrap();
    // Somebody else has its number now, in another life.
    fs::write(root.join("new"), "").unwrap();
    let check = |gone: &[Handle]| {
        for (name, handle) in names.iter().zip(&handles) {
            // Of the whole machine; nothing but time is lost.
            fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
            let opened = handle.open(&root, libc::O_RDONLY).unwrap_or_else(|error| panic!("{name}: {error}"));
            let ino = fs::metadata(root.join(name)).unwrap().ino();
            assert_eq!(opened.metadata().unwrap().ino(), ino, "{name}");
        }
        for handle in gone {
            fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
            let stale = handle.open(&root, libc::O_RDONLY).unwrap_err();
            assert_eq!(stale.raw_os_error(), Some(libc::ESTALE));
        }
        assert!(handles[3].open(&root, libc::O_RDWR).is_ok(), "for writing");
    };
    check(&gone[..1]);
    rig.remount_avfs();
    check(&gone[..1]);
    fs::remove_file(root.join("gone too")).unwrap();
    rig.remount_avfs();
    check(&gone);
}

/// df -i said of an empty volume that half of its inodes were used: the free ones were counted twice.
#[test]
fn as_many_inodes_are_used_as_there_are_files() {
    let Some(rig) = Beside::with_avfs_alone() else { return };
    let used = || {
        let figures = statvfs(rig.avfs()).unwrap();
        figures.f_files - figures.f_ffree
    };
    assert_eq!(used(), 1);
    for number in 0..100 {
        fs::write(rig.avfs().join(number.to_string()), "").unwrap();
    }
    assert_eq!(used(), 101);
}
