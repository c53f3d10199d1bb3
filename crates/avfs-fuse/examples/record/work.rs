//! What clients do while it is recorded. A call that a kernel without some flag refuses may fail: the recording has what was asked.

use memmap2::MmapMut;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{
    self as sys, AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, StatxFlags, XattrFlags,
};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// What fsync(2) asks for this user is answered only when it was interrupted.
pub(crate) const HELD: u32 = 4242;
/// A user without rights.
const OTHER: u32 = 1000;
/// Memory for direct I/O begins where its pages begin.
#[repr(align(4096))]
struct Aligned([u8; 65536]);

/// Everything that the kernel has a request for; `much`: and what shells, archives and git make of it.
pub(crate) fn little(root: &Path, much: bool) {
    fs::set_permissions(root, fs::Permissions::from_mode(0o777)).unwrap();
    names(root);
    data(root);
    space(root);
    mapped(root);
    attributes(root);
    rights(root);
    controls(root);
    interrupted(root);
    shell(
        root,
        0,
        "mkdir s; for n in 1 2 3 4 5; do echo $n >s/$n; done; ls -l s >/dev/null; cat s/* >/dev/null; ls s/none 2>/dev/null
        mv s/1 s/2; rm s/3; df . >/dev/null; sync -f .; cd s; ls -a .. >/dev/null; cd ..; find . >/dev/null; rm -r s",
    );
    if much {
        shell(
            root,
            0,
            "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@a
            export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@a
            git init -q --template= tree; cd tree
            mkdir -p src/deep; for n in 1 2 3 4 5 6; do seq $n 200 >src/$n.c; seq 9 >src/deep/$n.h; done
            git add .; git commit -q -m one; sed -i s/1/2/ src/*.c; git commit -q -a -m two
            cd ..; git clone -q --template= tree clone; cd clone; git log >/dev/null; git status >/dev/null; git gc -q; cd ..
            tar cf t.tar clone/src; mkdir x; tar xf t.tar -C x; cp -a x y; rm -rf x; du -s . >/dev/null; rm -rf tree/.git",
        );
    }
}

fn shell(root: &Path, user: u32, script: &str) {
    let mut shell = Command::new("sh");
    let done = shell.args(["-c", script]).current_dir(root).uid(user).gid(user).status().unwrap();
    assert!(user != 0 || done.success(), "{script}: {done}");
}

fn names(root: &Path) {
    let at = |name: &str| root.join(name);
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/a"), "a").unwrap();
    fs::hard_link(at("d/a"), at("d/b")).unwrap();
    symlink("d/a", at("link")).unwrap();
    fs::read_link(at("link")).unwrap();
    fs::rename(at("d/b"), at("c")).unwrap();
    for (from, to, flags) in [
        ("c", "e", RenameFlags::NOREPLACE),
        ("d/a", "e", RenameFlags::EXCHANGE),
        ("e", "d/a", RenameFlags::NOREPLACE),
        ("d/a", "f", RenameFlags::WHITEOUT),
    ] {
        let _ = sys::renameat_with(CWD, at(from), CWD, at(to), flags);
    }
    for kind in [sys::FileType::Fifo, sys::FileType::Socket, sys::FileType::RegularFile] {
        sys::mknodat(CWD, at(&format!("{kind:?}")), kind, Mode::from_raw_mode(0o640), 0).unwrap();
    }
    // Overwritten, not there, not empty, in use: each of them has its own errno.
    fs::write(at("old"), "old").unwrap();
    fs::write(at("new"), "new").unwrap();
    fs::rename(at("new"), at("old")).unwrap();
    let _ = fs::remove_file(at("none"));
    let _ = fs::remove_dir(at("d"));
    let _ = fs::create_dir(at("d"));
    let _ = fs::File::create(at(&"n".repeat(256)));
    let open = File::open(at("old")).unwrap();
    fs::remove_file(at("old")).unwrap();
    open.read_at(&mut [0; 8], 0).unwrap();
    let directory = File::open(at("d")).unwrap();
    directory.sync_all().unwrap();
    let _ = sys::openat(CWD, root, OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600));
    let statx = sys::statx(CWD, at("f"), AtFlags::STATX_FORCE_SYNC, StatxFlags::ALL).unwrap();
    assert!(statx.stx_mask & StatxFlags::BTIME.bits() != 0);
}

fn data(root: &Path) {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(root.join("data")).unwrap();
    file.write_all_at(&[b'a'; 200_000], 0).unwrap();
    file.write_all_at(b"page", 4094).unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    sys::fadvise(&file, 0, None, sys::Advice::DontNeed).unwrap();
    file.read_exact_at(&mut vec![0; 150_000], 1000).unwrap();
    file.set_len(100_001).unwrap();
    let mut append = OpenOptions::new().append(true).open(root.join("data")).unwrap();
    append.write_all(b"end").unwrap();
    let how = |flags| {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(flags).clone()
    };
    let synchronous = how(libc::O_DSYNC).open(root.join("synchronous")).unwrap();
    synchronous.write_all_at(b"durable", 0).unwrap();
    let direct = how(libc::O_DIRECT).open(root.join("direct")).unwrap();
    let mut pages = Box::new(Aligned([b'd'; 65536]));
    direct.write_all_at(&pages.0, 0).unwrap();
    direct.write_all_at(&pages.0, 131_072).unwrap();
    direct.read_exact_at(&mut pages.0, 32_768).unwrap();
    assert_eq!((pages.0[0], pages.0[40_000]), (b'd', 0));
    let copy = File::create(root.join("copy")).unwrap();
    let (mut from, mut to) = (10, 0);
    let _ = sys::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), 50_000);
    let _ = how(libc::O_NOATIME).open(root.join("data")).unwrap().read(&mut [0; 10]);
    let lock = File::open(root.join("data")).unwrap();
    sys::flock(&lock, sys::FlockOperation::LockExclusive).unwrap();
    sys::fcntl_lock(&file, sys::FlockOperation::LockExclusive).unwrap();
}

fn space(root: &Path) {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(root.join("space")).unwrap();
    file.write_all_at(&[b's'; 65_536], 0).unwrap();
    file.write_all_at(&[b's'; 4096], 1 << 20).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for (mode, offset, length) in [
        (FallocateFlags::empty(), 2 << 20, 65_536),
        (FallocateFlags::KEEP_SIZE, 3 << 20, 65_536),
        (punch, 4096, 8192),
        (FallocateFlags::ZERO_RANGE, 16_384, 10_000),
        (FallocateFlags::COLLAPSE_RANGE, 0, 4096),
    ] {
        let _ = sys::fallocate(&file, mode, offset, length);
    }
    for from in [
        SeekFrom::Data(0),
        SeekFrom::Hole(0),
        SeekFrom::Data(100_000),
        SeekFrom::Hole(1 << 20),
        SeekFrom::Data(1 << 30),
    ] {
        let _ = sys::seek(&file, from);
    }
}

fn mapped(root: &Path) {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(root.join("mapped")).unwrap();
    file.write_all_at(&[b'm'; 20_000], 0).unwrap();
    // SAFETY: nothing else has this file, and it is not made shorter.
    let Ok(mut map) = (unsafe { MmapMut::map_mut(&file) }) else { return };
    assert_eq!(map[19_999], b'm');
    map[5000..9000].fill(b'M');
    map.flush().unwrap();
    map[0] = b'0';
    drop(map);
    file.sync_all().unwrap();
    let _ = sys::seek(&file, SeekFrom::Data(0));
}

fn attributes(root: &Path) {
    let path = root.join("attributes");
    fs::write(&path, "x").unwrap();
    let mut value = [0; 64];
    sys::setxattr(&path, "user.a", b"value", XattrFlags::empty()).unwrap();
    let _ = sys::setxattr(&path, "user.a", b"again", XattrFlags::CREATE);
    let _ = sys::setxattr(&path, "user.none", b"none", XattrFlags::REPLACE);
    sys::setxattr(&path, "user.b", &[b'b'; 300], XattrFlags::empty()).unwrap();
    let _ = sys::getxattr(&path, "user.a", &mut value[..]);
    let _ = sys::getxattr(&path, "user.a", &mut value[..0]);
    let _ = sys::getxattr(&path, "user.b", &mut value[..]);
    let _ = sys::getxattr(&path, "user.none", &mut value[..]);
    let _ = sys::listxattr(&path, &mut value[..]);
    let _ = sys::removexattr(&path, "user.b");
    let _ = sys::removexattr(&path, "user.b");
    // user::rw-,user:1000:rwx,group::r--,mask::rwx,other::---
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(1u16, 6u16, u32::MAX), (2, 7, OTHER), (4, 4, u32::MAX), (0x10, 7, u32::MAX), (0x20, 0, u32::MAX)]
    {
        acl.extend(tag.to_le_bytes());
        acl.extend(permissions.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    let _ = sys::setxattr(&path, "system.posix_acl_access", &acl, XattrFlags::empty());
    fs::create_dir(root.join("acl")).unwrap();
    let _ = sys::setxattr(root.join("acl"), "system.posix_acl_default", &acl, XattrFlags::empty());
    shell(root, 0, "umask 077; echo >acl/file; mkdir acl/directory; ls -l acl >/dev/null");
    shell(root, OTHER, "cat attributes >/dev/null");
}

fn rights(root: &Path) {
    let path = root.join("rights");
    fs::write(&path, "x").unwrap();
    let privileged = || fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    privileged();
    // Whether the bits are gone is in the next reply with attributes.
    let is_taken = || assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o6000, 0);
    shell(root, OTHER, "echo more >>rights");
    is_taken();
    privileged();
    shell(root, OTHER, ": >rights");
    is_taken();
    privileged();
    std::os::unix::fs::chown(&path, Some(OTHER), Some(OTHER)).unwrap();
    is_taken();
    fs::File::open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    shell(
        root,
        OTHER,
        "touch rights; chmod 600 rights; umask 027; mkdir theirs; echo >theirs/file; chmod 0 theirs; ls theirs",
    );
}

fn controls(root: &Path) {
    let file = File::open(root.join("data")).unwrap();
    if let Ok(flags) = sys::ioctl_getflags(&file) {
        let _ = sys::ioctl_setflags(&file, flags | sys::IFlags::NODUMP);
    }
    let _ = rustix::event::poll(&mut [PollFd::new(&file, PollFlags::IN)], None);
    let _ = sys::statvfs(root);
    sys::syncfs(&file).unwrap();
}

/// A process that is killed while it waits for its answer.
fn interrupted(root: &Path) {
    let path = root.join("interrupted");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let mut sync = Command::new("timeout");
    sync.args(["-s", "INT", "0.3", "sync"]).arg(&path).uid(HELD).status().unwrap();
}
