//! setuid, setgid and capabilities: every operation, by everybody, on every kind of right.

use crate::{Beside, ROOT, User, errno, mapping};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, RenameFlags, StatxFlags, XattrFlags, chownat, copy_file_range, fallocate,
    linkat, renameat_with, setxattr, statx,
};
use rustix::process::{Gid, Uid};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// The files are this user's.
const OWNER: User = User { uid: 100, gid: 100 };
/// The same, not in the files' group.
const OWNER_OUTSIDE: User = User { uid: 100, gid: 101 };
const MEMBER: User = User { uid: 102, gid: 100 };
const NOBODY: User = User { uid: 65534, gid: 65534 };

const CAPABILITY: &str = "security.capability";
/// Of the second revision, effective: CAP_CHOWN.
const CAP_CHOWN: [u8; 20] = [1, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// An ACL of the access kind: owner, group and others may do everything; with a mask, and user 7 named, in the second.
const ACL: [(u16, u16, u32); 3] = [(1, 7, u32::MAX), (4, 7, u32::MAX), (32, 7, u32::MAX)];
const LONG_ACL: [(u16, u16, u32); 5] =
    [(1, 7, u32::MAX), (2, 5, 7), (4, 7, u32::MAX), (16, 7, u32::MAX), (32, 7, u32::MAX)];

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |(tag, permissions, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let entries: Vec<u8> = entries.iter().flat_map(entry).collect();
    [&2u32.to_le_bytes()[..], &entries].concat()
}

type Act = fn(&Path) -> io::Result<()>;

fn writable(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

fn chown(path: &Path, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
    Ok(chownat(CWD, path, uid.map(Uid::from_raw), gid.map(Gid::from_raw), AtFlags::empty())?)
}

fn allocate(path: &Path, mode: FallocateFlags) -> io::Result<()> {
    Ok(fallocate(writable(path)?, mode, 0, 4096)?)
}

/// Everything that changes a file, and what comes near it.
const ACTS: &[(&str, Act)] = &[
    ("write", |path| writable(path)?.write_all(b"x")),
    ("write of nothing", |path| writable(path)?.write(b"").map(drop)),
    ("write behind the end", |path| writable(path)?.write_all_at(b"x", 100_000)),
    ("append", |path| OpenOptions::new().append(true).open(path)?.write_all(b"x")),
    ("synchronous write", |path| {
        OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(path)?.write_all(b"x")
    }),
    ("direct write", |path| {
        let memory = vec![b'x'; 8192];
        let start = memory.as_ptr().addr().next_multiple_of(4096) - memory.as_ptr().addr();
        let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path)?;
        file.write_all_at(&memory[start..start + 4096], 0)
    }),
    ("write of a megabyte", |path| writable(path)?.write_all(&vec![b'x'; 1 << 20])),
    ("store through a mapping", |path| {
        mapping::store(&OpenOptions::new().read(true).write(true).open(path)?, b'x', true)
    }),
    ("truncate to less", |path| writable(path)?.set_len(10)),
    ("truncate to more", |path| writable(path)?.set_len(100_000)),
    ("truncate to the same", |path| writable(path)?.set_len(8192)),
    ("truncate by path", |path| {
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the path ends with a NUL and lives as long as the call.
        let done = unsafe { libc::truncate(path.as_ptr(), 5) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }),
    ("open with O_TRUNC", |path| OpenOptions::new().write(true).truncate(true).open(path).map(drop)),
    ("open to write", |path| writable(path).map(drop)),
    ("fallocate", |path| allocate(path, FallocateFlags::empty())),
    ("fallocate keeping the size", |path| allocate(path, FallocateFlags::KEEP_SIZE)),
    ("punch", |path| allocate(path, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)),
    ("zero", |path| allocate(path, FallocateFlags::ZERO_RANGE)),
    ("copy_file_range", |path| {
        let source = File::open(path.parent().unwrap().join("source"))?;
        copy_file_range(source, None, writable(path)?, None, 4096)?;
        Ok(())
    }),
    ("splice", |path| {
        let (reader, mut writer) = io::pipe()?;
        writer.write_all(b"xyz")?;
        rustix::pipe::splice(reader, None, writable(path)?, None, 3, rustix::pipe::SpliceFlags::empty())?;
        Ok(())
    }),
    ("chown to another", |path| chown(path, Some(7), None)),
    ("chown to the same", |path| chown(path, Some(100), None)),
    ("chgrp to another", |path| chown(path, None, Some(101))),
    ("chgrp to the same", |path| chown(path, None, Some(100))),
    ("chmod with all bits", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o6777))),
    ("chmod without", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o777))),
    ("ACL that the mode says", |path| {
        Ok(setxattr(path, "system.posix_acl_access", &acl(&ACL), XattrFlags::empty())?)
    }),
    ("ACL with a mask", |path| {
        Ok(setxattr(path, "system.posix_acl_access", &acl(&LONG_ACL), XattrFlags::empty())?)
    }),
    ("removed ACL", |path| Ok(rustix::fs::removexattr(path, "system.posix_acl_access")?)),
    ("attribute", |path| Ok(setxattr(path, "user.x", b"x", XattrFlags::empty())?)),
    ("times", |path| {
        File::open(path)?.set_times(fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH))
    }),
    ("link", |path| Ok(linkat(CWD, path, CWD, path.with_extension("link"), AtFlags::empty())?)),
    ("rename", |path| {
        renameat_with(CWD, path, CWD, path.with_extension("moved"), RenameFlags::NOREPLACE)?;
        Ok(renameat_with(CWD, path.with_extension("moved"), CWD, path, RenameFlags::NOREPLACE)?)
    }),
];

/// Mode, and whether there is a capability.
const RIGHTS: [(&str, u32, bool); 6] = [
    ("setuid", 0o4777, false),
    ("setgid", 0o2777, false),
    ("setgid of a group that may not execute", 0o2767, false),
    ("setuid and setgid", 0o6777, false),
    ("capability", 0o777, true),
    ("all", 0o6777, true),
];

/// What is left.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    result: Result<(), i32>,
    /// As the kernel has it, asked for nothing else: what it goes by when it runs the file.
    mode: u16,
    /// When it has asked for everything.
    true_mode: u32,
    capability: bool,
}

fn has_capability(path: &Path) -> bool {
    rustix::fs::getxattr(path, CAPABILITY, &mut [0u8; 64][..]).is_ok()
}

fn make(path: &Path, mode: u32, capability: bool) {
    fs::write(path, [b'o'; 8192]).unwrap();
    chown(path, Some(OWNER.uid), Some(OWNER.gid)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    if capability {
        setxattr(path, CAPABILITY, &CAP_CHOWN, XattrFlags::empty()).unwrap();
    }
}

/// One file for each operation, user and right; gives back what is left of each.
fn try_all(directory: &Path) -> Vec<(String, Left)> {
    fs::write(directory.join("source"), [b's'; 8192]).unwrap();
    fs::set_permissions(directory.join("source"), fs::Permissions::from_mode(0o644)).unwrap();
    let mut found = Vec::new();
    for (act_number, (act_name, act)) in ACTS.iter().enumerate() {
        let users = [ROOT, OWNER, OWNER_OUTSIDE, MEMBER, NOBODY];
        for (user, who) in users.into_iter().zip(["root", "owner", "owner outside", "member", "nobody"]) {
            for (right_number, (right, mode, capability)) in RIGHTS.into_iter().enumerate() {
                let path = directory.join(format!("{act_number}-{who}-{right_number}").replace(' ', "_"));
                make(&path, mode, capability);
                let result = errno(user.does(|| act(&path)));
                let mode = statx(CWD, &path, AtFlags::empty(), StatxFlags::MODE).unwrap().stx_mode & 0o7777;
                let true_mode = fs::metadata(&path).unwrap().mode() & 0o7777;
                let left = Left { result, mode, true_mode, capability: has_capability(&path) };
                found.push((format!("{act_name} by {who}: {right}"), left));
            }
        }
    }
    found
}

/// A user's write to a file that was setuid left it so for the kernel, which had the mode for an hour and ran the file as its owner;
/// a write left the file's capability; and what the volume took away depended on who asked how. All of it as on ext4: of 33
/// operations by five users on six kinds of rights, what is left is the same, the kernel knows it at once, and it is what the
/// volume has.
#[test]
fn rights_go_when_and_only_when_they_go_on_ext4() {
    let Some(rig) = Beside::mounted() else { return };
    let ours = try_all(&rig.avfs());
    let theirs = try_all(&rig.ext4());
    assert_eq!(ours.len(), ACTS.len() * 5 * RIGHTS.len());
    let differing: Vec<String> = ours
        .iter()
        .zip(&theirs)
        .filter(|(ours, theirs)| ours != theirs)
        .map(|((what, ours), (_, theirs))| format!("{what}\n  AVFS {ours:x?}\n  ext4 {theirs:x?}"))
        .collect();
    assert!(differing.is_empty(), "{} of {} differ:\n{}", differing.len(), ours.len(), differing.join("\n"));
    // What the kernel was shown is what there is.
    rig.remount_avfs();
    let mut paths: Vec<_> = fs::read_dir(rig.avfs()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let twin = rig.ext4().join(path.file_name().unwrap());
        let mode = |path: &Path| (fs::metadata(path).unwrap().mode(), has_capability(path));
        assert_eq!(mode(&path), mode(&twin), "{} after a remount", path.display());
    }
    rig.check_avfs();
}

/// The one that matters: what the kernel does with the file.
#[test]
fn a_program_that_was_written_to_runs_as_who_starts_it() {
    let Some(rig) = Beside::with_avfs_alone() else { return };
    for (name, act) in
        ACTS.iter().filter(|(name, _)| ["append", "fallocate", "copy_file_range"].contains(name))
    {
        fs::write(rig.avfs().join("source"), [0; 8192]).unwrap();
        let program = rig.avfs().join(name);
        fs::copy("/usr/bin/id", &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o6777)).unwrap();
        let run = || {
            let output = NOBODY.does(|| Command::new(&program).arg("-u").output().unwrap());
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        assert_eq!(run(), "0", "a setuid program runs as its owner");
        if *name == "copy_file_range" {
            // Its first page is of no use any more: restored by root, who leaves the rights that there are.
            NOBODY.does(|| act(&program)).unwrap();
            fs::write(&program, fs::read("/usr/bin/id").unwrap()).unwrap();
        } else {
            NOBODY.does(|| act(&program)).unwrap();
        }
        assert_eq!(run(), "65534", "after {name} by somebody else");
    }
}

/// A linker stores through a mapping; what it stored is written when the kernel likes, after setcap(8). That write must not take
/// the capability away: it was given to those bytes.
#[test]
fn a_capability_that_was_set_after_a_store_stays_when_the_store_is_written() {
    let Some(rig) = Beside::mounted() else { return };
    rig.same("capability", |directory| {
        let path = directory.join("linked");
        make(&path, 0o755, false);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        mapping::store(&file, b'x', false).unwrap();
        setxattr(&path, CAPABILITY, &CAP_CHOWN, XattrFlags::empty()).unwrap();
        file.sync_all().unwrap();
        drop(file);
        has_capability(&path)
    });
    assert!(has_capability(&rig.avfs().join("linked")));
}

/// FUSE has the filesystem take setgid away where an ACL is set by an owner outside the group, of directories, too.
#[test]
fn an_acl_takes_setgid_from_a_directory_unless_its_owner_is_in_the_group() {
    let Some(rig) = Beside::mounted() else { return };
    for user in [ROOT, OWNER, OWNER_OUTSIDE] {
        for entries in [&ACL[..], &LONG_ACL[..]] {
            rig.same(&format!("{user:?} {entries:?}"), |directory| {
                let path = directory.join(format!("directory {} {} {}", user.uid, user.gid, entries.len()));
                fs::create_dir(&path).unwrap();
                chown(&path, Some(OWNER.uid), Some(OWNER.gid)).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o2755)).unwrap();
                let set = || setxattr(&path, "system.posix_acl_access", &acl(entries), XattrFlags::empty());
                let result = errno(user.does(|| set().map_err(io::Error::from)));
                (result, fs::metadata(&path).unwrap().mode())
            });
        }
    }
}
