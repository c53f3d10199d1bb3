//! What tests on a real mount share: where there is none, how one begins alone, and how a command ends.

#![allow(dead_code, reason = "each test uses some of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static ALONE: Mutex<()> = Mutex::new(());

/// One test at a time: a process that one test starts has, until it executes, the files that another has open.
#[derive(Debug)]
pub(crate) struct Alone(MutexGuard<'static, ()>);

impl Alone {
    /// `None`, with the reason printed, where nothing can be mounted.
    pub(crate) fn to_mount() -> Option<Self> {
        can_mount().then(|| Self(ALONE.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Says why, where nothing can be mounted.
pub(crate) fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        eprintln!("not tested: mounting needs root and /dev/fuse");
    }
    can
}

#[track_caller]
pub(crate) fn succeed(output: Output) {
    assert!(output.status.success(), "{output:?}");
}

/// What `avfsctl` does with these arguments.
pub(crate) fn ctl(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_avfsctl")).args(arguments).output().unwrap()
}

/// What it prints.
#[track_caller]
pub(crate) fn say(arguments: &[&str]) -> String {
    let output = ctl(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What it prints, of JSON.
#[track_caller]
pub(crate) fn json(arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&say(arguments)).unwrap()
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Fails with this exit code and one line that contains `message`.
#[track_caller]
pub(crate) fn refuse(output: Output, code: i32, message: &str) {
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(message) && said.trim_end().lines().count() == 1, "{said}");
}

/// Whether it comes to hold within this time, as far as one looks each 20 ms.
pub(crate) fn comes_to_hold(within: Duration, mut holds: impl FnMut() -> bool) -> bool {
    const LOOK: Duration = Duration::from_millis(20);
    (0..within.as_millis() / LOOK.as_millis()).any(|_| {
        let now = holds();
        if !now {
            std::thread::sleep(LOOK);
        }
        now
    })
}

/// A loop device, taken away at the end.
pub(crate) struct Loop(pub(crate) PathBuf);

impl Loop {
    pub(crate) fn of(image: &Path) -> Self {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Self(String::from_utf8(output.stdout).unwrap().trim().into())
    }

    pub(crate) fn name(&self) -> &str {
        text(&self.0)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).output();
    }
}
