//! A device is measured, and what was found is where a mount looks for it. Without root, each test says so and ends.

use avfs_core::config::Config;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};

fn has_root() -> bool {
    let has_root = rustix::process::geteuid().is_root();
    if !has_root {
        eprintln!("not tested: claiming a device needs root");
    }
    has_root
}

fn calibrate(device: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_avfsctl"));
    command.args(["calibrate", "--seconds", "1"]).args(arguments).arg(device).output().unwrap()
}

fn refused(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.trim_end().lines().count() == 1 && said.contains(why), "{said}");
}

#[test]
fn what_is_found_is_kept_in_the_configuration() {
    if !has_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (image, config) = (directory.path().join("image"), directory.path().join("avfs.toml"));
    fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
    fs::write(&config, "# mine\n[cache]\nsize = \"64 MiB\"\n").unwrap();
    let kept = ["--config", config.to_str().unwrap()];

    let allocated = || fs::metadata(&image).unwrap().blocks();
    let output = calibrate(&image, &kept);
    assert!(output.status.success(), "{output:?}");
    let found = Config::load(&config).unwrap();
    assert!(found.device.read.is_some() && found.device.write.is_none(), "{found:?}");
    // Memory and holes were measured, and taken for the device's figures by every mount with this configuration.
    let doubt =
        "image is an image file, and 100 % of it are holes: memory and holes were measured, not a device";
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.lines().filter(|line| line.ends_with(doubt)).count(), 1, "{said}");
    let text = fs::read_to_string(&config).unwrap();
    assert!(text.contains(&format!("{doubt}\nread_access = ")), "{text}");
    assert!(fs::read_to_string(&config).unwrap().starts_with("# mine\n[cache]\nsize = \"64 MiB\"\n"));
    assert_eq!(allocated(), 0, "reading writes nothing");

    // Without a configuration, the section is printed.
    let output = calibrate(&image, &["--destructive"]);
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let section = printed.split_once("[device]").expect("the section is there").1;
    let found = Config::parse(&format!("[device]{section}")).unwrap();
    assert!(found.device.write.is_some() && found.device.flush.is_some(), "{printed}");
    assert!(allocated() > 0);
    // Not zeros, which some devices do not store.
    assert!(fs::read(&image).unwrap().iter().any(|byte| *byte != 0));
}

#[test]
fn what_must_not_be_measured_is_refused_in_one_line() {
    if !has_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (image, config) = (directory.path().join("image"), directory.path().join("avfs.toml"));
    fs::File::create(&image).unwrap().set_len((512 << 20) - 4096).unwrap();
    refused(&calibrate(&directory.path().join("none"), &[]), "none");
    // The first line says what it is about to do.
    let small = calibrate(&image, &[]);
    assert_eq!(small.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&small.stderr).contains("too small to be measured"), "{small:?}");

    let mkfs = Command::new(env!("CARGO_BIN_EXE_mkfs-avfs")).arg(&image).output().unwrap();
    assert!(mkfs.status.success(), "{mkfs:?}");
    let modified = || fs::metadata(&image).unwrap().modified().unwrap();
    let made = modified();
    refused(&calibrate(&image, &["--destructive"]), "holds an AVFS volume");
    assert_eq!(modified(), made);

    fs::write(&config, "[cash]\n").unwrap();
    refused(&calibrate(&image, &["--config", config.to_str().unwrap()]), "unknown field `cash`");
}
