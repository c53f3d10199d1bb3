//! What `avfsctl samba-config` prints, read by Samba itself.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};

fn samba_config(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_avfsctl")).arg("samba-config").args(arguments).output().unwrap()
}

/// What Samba takes a parameter of the share `media` to be, and what it complains about; `None` without Samba.
fn understood(file: &Path, parameter: &str) -> Option<(String, String)> {
    let mut testparm = Command::new("testparm");
    testparm.args(["-s", "--section-name", "media", "--parameter-name", parameter]).arg(file);
    let output = match testparm.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        output => output.unwrap(),
    };
    assert!(output.status.success(), "{output:?}");
    let [value, complaints] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    Some((value.trim().to_lowercase(), complaints))
}

#[test]
fn samba_understands_every_line() {
    let directory = tempfile::tempdir().unwrap();
    let shown = directory.path().join("volume");
    fs::create_dir(&shown).unwrap();
    let shown = shown.to_str().unwrap();
    for arguments in [
        &["--share", "media", "--path", shown][..],
        &["--share", "media", "--path", shown, "--clients", "no-macos", "--read-only"],
    ] {
        let printed = samba_config(arguments);
        assert!(printed.status.success(), "{printed:?}");
        let printed = String::from_utf8(printed.stdout).unwrap();
        let file = directory.path().join("smb.conf");
        let state = directory.path().display();
        let global = format!(
            "[global]\n lock directory = {state}\n state directory = {state}\n cache directory = {state}\n \
             pid directory = {state}\n private dir = {state}\n"
        );
        fs::write(&file, format!("{global}{printed}")).unwrap();
        let lines = printed.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        let parameters: Vec<_> = lines.filter_map(|line| line.split_once(" = ")).collect();
        assert!(parameters.len() >= 9, "{printed}");
        for (name, value) in parameters {
            let Some((found, complaints)) = understood(&file, name) else {
                eprintln!("not tested: testparm is missing; install the package samba-common-bin");
                return;
            };
            assert_eq!(found, value.to_lowercase(), "{name}");
            for word in ["Unknown", "Ignoring", "ERROR", "WARNING"] {
                assert!(!complaints.contains(word), "{complaints}");
            }
        }
        // A reason for each line but name, path and right to write.
        let comments = printed.lines().filter(|line| line.trim().starts_with('#')).count();
        assert!(comments >= 7, "{printed}");
    }
}

#[test]
fn what_would_break_the_file_is_refused() {
    for (share, path) in
        [("global", "/volume"), ("a]", "/volume"), ("media", "volume"), ("media", "/a\nb = c")]
    {
        let refused = samba_config(&["--share", share, "--path", path]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// A mistyped path once made a share of nothing, which clients were the first to notice.
#[test]
fn a_path_that_is_no_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    for (path, why) in [(directory.path().join("none"), "No such file"), (file, "is not a directory")] {
        let refused = samba_config(&["--share", "media", "--path", path.to_str().unwrap()]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(
            refused.status.code() == Some(1) && said.contains(why) && refused.stdout.is_empty(),
            "{said}"
        );
    }
}
