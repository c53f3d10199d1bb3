//! The commands print to a pipe that nobody reads, and to a full disk.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const COMMANDS: [(&str, &str); 3] = [
    ("mkfs", env!("CARGO_BIN_EXE_mkfs-avfs")),
    ("fsck", env!("CARGO_BIN_EXE_fsck-avfs")),
    ("avfsctl", env!("CARGO_BIN_EXE_avfsctl")),
];

fn has_root() -> bool {
    let has_root = rustix::process::geteuid().is_root();
    if !has_root {
        eprintln!("not tested: claiming a device needs root");
    }
    has_root
}

/// What a command says on standard error while its output goes to `output`, and how it ends.
fn run(name: &str, path: &str, image: &Path, output: Stdio) -> Output {
    let mut command = Command::new(path);
    match name {
        "mkfs" => command.args(["-f", "--size", "192M"]).arg(image.with_extension("new")),
        "fsck" => command.arg("-n").arg(image),
        _ => command.args(["samba-config", "--share", "a", "--path", "/"]),
    };
    command.stdout(output).output().unwrap()
}

/// They panicked with exit code 101, mkfs.avfs after it had made the volume.
#[test]
fn output_that_is_lost_is_no_panic() {
    if !has_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let made = Command::new(COMMANDS[0].1).args(["--size", "192M"]).arg(&image).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    for (name, path) in COMMANDS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = run(name, path, &image, writer.into());
        assert_eq!((closed.status.code(), &*closed.stderr), (Some(0), &b""[..]), "{name}");

        let new = image.with_extension("new");
        assert_eq!(new.exists(), name == "mkfs");
        let _ = fs::remove_file(&new);
        let full = run(name, path, &image, File::options().write(true).open("/dev/full").unwrap().into());
        let said = String::from_utf8_lossy(&full.stderr);
        let code = if name == "fsck" { 8 } else { 1 };
        assert_eq!((full.status.code(), said.trim_end().lines().count()), (Some(code), 1), "{name}: {said}");
        assert!(said.contains("No space left on device"), "{name}: {said}");
        assert_eq!(new.exists(), name == "mkfs", "what was made is there");
        let _ = fs::remove_file(&new);
    }
}
