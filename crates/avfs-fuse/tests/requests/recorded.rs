//! What a real kernel asked, asked again without a mount. `examples/record` makes the recordings.

use crate::recording::{Event, Recording};
use crate::replay::{Held, replay};
use fuse_wire::abi::opcode;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// All recordings, by name.
fn recordings() -> Vec<(String, Recording)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/requests/recorded");
    let mut found: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "gz"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, Recording::read(&path).unwrap())
        })
        .collect();
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    assert!(!found.is_empty());
    found
}

#[test]
fn what_a_kernel_asked_is_answered_as_it_was() {
    for (name, recording) in recordings() {
        let heard = replay(&recording, Held::ToTheRecording);
        eprintln!("{name}: {heard} replies");
        assert!(heard > 300, "{name}: {heard}");
    }
}

/// Requests that are missing, cut off or changed among those that are not, at each of the handshakes.
#[test]
fn what_a_kernel_asked_is_answered_when_some_of_it_is_changed() {
    for (number, (name, recording)) in recordings().into_iter().enumerate() {
        let seed = 0x9e37_79b9_7f4a_7c15 ^ number as u64;
        let heard = replay(&recording, Held::ToTheProtocol(seed));
        eprintln!("{name}, seed {seed:#x}: {heard} replies");
        assert!(heard > 200, "{name}: {heard}");
    }
}

/// What the server was not told that a kernel can do, the kernel does or it is not done: the same work leaves the same files, with
/// the same owners, modes (a writer without rights takes setuid away) and bytes. But for ACLs where the kernel does not check them, or
/// applies the umask where a default ACL should stand, and for a shared mapping where it has none of files without pages.
#[test]
fn the_same_work_leaves_the_same_files_whatever_is_negotiated() {
    let mut recordings = recordings();
    recordings.retain(|(name, _)| name != "all");
    // What this flag changes shows in no file.
    let (_, whole) = recordings.iter().find(|(name, _)| name == "without-ASYNC_READ").unwrap();
    for (name, recording) in &recordings {
        let is_left_out = |line: &str| {
            let path = line.split(' ').next().unwrap();
            let has_acl = path.starts_with("./acl") || path == "./attributes";
            match name.as_str() {
                "without-POSIX_ACL" | "without-DONT_MASK" => has_acl,
                "without-DIRECT_IO_ALLOW_MMAP" => path == "./mapped",
                "none" => has_acl || path == "./mapped",
                _ => false,
            }
        };
        let of = |recording: &Recording| -> Vec<String> {
            recording.tree.iter().filter(|line| !is_left_out(line)).cloned().collect()
        };
        let tree = of(recording);
        assert_eq!(tree, of(whole), "{name}");
        assert!(tree.len() > 15, "{name}: {}", tree.len());
    }
}

/// A recording is worth as much as it holds. The kernel does not send others to this server: it was not offered locks of files, is
/// told of no bitmap of blocks, asks once at most for what is answered with ENOSYS, as OPENDIR is, so that there is no RELEASEDIR, and
/// asks at close(2) where the device has refused something.
#[test]
fn the_recordings_hold_every_operation_that_a_kernel_sends() {
    const NEVER: &[u32] = &[
        opcode::GETLK,
        opcode::SETLK,
        opcode::SETLKW,
        opcode::BMAP,
        opcode::ACCESS,
        opcode::RENAME,
        opcode::FLUSH,
        opcode::RELEASEDIR,
    ];
    let recordings = recordings();
    let asked: BTreeSet<u32> = recordings
        .iter()
        .flat_map(|(_, recording)| &recording.events)
        .filter_map(|event| match event {
            Event::Asked(request) => Some(request.header.opcode),
            Event::Answered { .. } => None,
        })
        .collect();
    let missing: Vec<_> = opcode::ALL
        .iter()
        .filter(|code| !asked.contains(code) && !NEVER.contains(code))
        .map(|&code| opcode::name(code))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
