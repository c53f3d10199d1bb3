//! What others see of a device with a volume: blkid(8), wipefs(8), mkfs of other filesystems, mount(8) by tag.

mod common;

use common::{Alone, Loop, ctl, refuse, say, succeed, text};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SIZE: u64 = 512 << 20;

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// An image with a volume.
fn make(directory: &Path, label: &str) -> PathBuf {
    let image = directory.join(label.replace(' ', "-"));
    let arguments = ["--size", "512M", "--label", label, text(&image)];
    succeed(run(env!("CARGO_BIN_EXE_mkfs-avfs"), &arguments));
    image
}

fn fsck(arguments: &[&str]) -> Output {
    run(env!("CARGO_BIN_EXE_fsck-avfs"), arguments)
}

/// Its first MiB: what others would overwrite.
fn start_of(image: &Path) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    File::open(image).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// mkfs.ext4 and mkfs.xfs made a filesystem over a volume without a question: to them the device was empty.
#[test]
fn others_see_that_the_device_holds_something() {
    let directory = tempfile::tempdir().unwrap();
    let image = make(directory.path(), "footage");
    let before = start_of(&image);
    let found = run("blkid", &["-p", "-o", "export", text(&image)]);
    assert!(said(&found).contains("PTTYPE=dos"), "{found:?}");
    let uuid = say(&["probe", "--udev", text(&image)]);
    let uuid = uuid.lines().find_map(|line| line.strip_prefix("ID_FS_UUID=")).unwrap();
    assert!(said(&found).contains(&format!("PTUUID={}", &uuid[..8])), "{uuid}: {found:?}");
    assert!(said(&run("wipefs", &[text(&image)])).contains("dos"));
    // It asks where there is a terminal.
    let command = format!("mkfs.ext4 {}", image.display());
    let mut asks = Command::new("script");
    let asks = asks.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
    let asked = asks.stdin(File::open("/dev/null").unwrap()).output().unwrap();
    assert!(said(&asked).contains("dos partition table"), "{asked:?}");
    if Path::new("/usr/sbin/mkfs.xfs").exists() {
        let refused = run("/usr/sbin/mkfs.xfs", &[text(&image)]);
        assert!(!refused.status.success() && said(&refused).contains("partition table"), "{refused:?}");
    } else {
        eprintln!("not tested: mkfs.xfs is not installed");
    }
    assert!(start_of(&image) == before);
    refuse(run(env!("CARGO_BIN_EXE_mkfs-avfs"), &[text(&image)]), 1, "holds an AVFS volume");
    succeed(fsck(&[text(&image)]));
    // Of a volume that is damaged beyond recognition, too.
    let file = File::options().write(true).open(&image).unwrap();
    for place in [1 << 20, (1 << 20) + (64 << 10)] {
        file.write_all_at(&[0; 4096], place).unwrap();
    }
    refuse(run(env!("CARGO_BIN_EXE_mkfs-avfs"), &[text(&image)]), 1, "holds a partition table of type dos");
}

#[test]
fn a_table_that_was_taken_away_is_written_again_and_another_one_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let image = make(directory.path(), "footage");
    let before = start_of(&image);
    succeed(run("wipefs", &["--all", "--force", text(&image)]));
    assert_eq!(run("blkid", &["-p", text(&image)]).status.code(), Some(2));
    let line = fsck(&[text(&image)]);
    assert_eq!(line.status.code(), Some(4), "{line:?}");
    assert!(said(&line).contains("partition table that protects the volume is missing"), "{line:?}");
    assert_eq!(fsck(&["-p", text(&image)]).status.code(), Some(1));
    assert!(start_of(&image) == before);

    File::options().write(true).open(&image).unwrap().write_all_at(&[0xee], 450).unwrap();
    let other = start_of(&image);
    for mode in ["-n", "-p", "-y"] {
        let left = fsck(&[mode, text(&image)]);
        assert_eq!(left.status.code(), Some(4), "{left:?}");
        assert!(start_of(&image) == other, "{mode}");
    }
    refuse(ctl(&["protect", text(&image)]), 1, "something else stands before the volume");
    say(&["protect", "--force", text(&image)]);
    assert!(start_of(&image) == before);
}

#[test]
fn a_device_says_what_it_holds() {
    let directory = tempfile::tempdir().unwrap();
    let image = make(directory.path(), "day 1");
    let line = say(&["probe", text(&image)]);
    assert!(
        line.contains(": LABEL=\"day 1\" UUID=\"") && line.contains("TYPE=\"avfs\" PROTECTED=\"yes\""),
        "{line}"
    );
    let properties = say(&["probe", "--udev", text(&image)]);
    for expected in
        ["ID_FS_TYPE=avfs\n", "ID_FS_USAGE=filesystem\n", "ID_FS_VERSION=1\n", "ID_FS_LABEL_ENC=day\\x201\n"]
    {
        assert!(properties.contains(expected), "{properties}");
    }
    let empty = directory.path().join("empty");
    File::create(&empty).unwrap().set_len(SIZE).unwrap();
    let nothing = ctl(&["probe", text(&empty)]);
    assert_eq!((nothing.status.code(), said(&nothing).as_str()), (Some(2), ""));
    refuse(ctl(&["probe", text(&directory.path().join("none"))]), 1, "");
}

/// The partition was said to have no superblock, which is true, and does not say what to mount.
#[test]
fn the_partition_that_protects_a_volume_leads_to_its_device() {
    let Some(_alone) = Alone::to_mount() else { return };
    let directory = tempfile::tempdir().unwrap();
    let device = Loop::of(&make(directory.path(), "footage"));
    // The kernel does so by itself where it knows the table.
    succeed(run("partx", &["--add", device.name()]));
    let partition = format!("{}p1", device.name());
    assert!(said(&run("blkid", &["-p", &partition])).contains("PTTYPE=\"dos\""));
    let place = directory.path().join("place");
    fs::create_dir(&place).unwrap();
    let refused = run(env!("CARGO_BIN_EXE_mount-avfs"), &[&partition, text(&place)]);
    refuse(refused, 32, &format!("mount {}", device.name()));
    refuse(run(env!("CARGO_BIN_EXE_mkfs-avfs"), &[&partition]), 1, "holds a partition table of type dos");
    // The whole device is there for its volume all the same, and the partition then for none.
    succeed(run(env!("CARGO_BIN_EXE_mount-avfs"), &[device.name(), text(&place), "-o", "cache_size=64M"]));
    let refused = run("mkfs.ext4", &["-F", &partition]);
    succeed(run("umount", &[text(&place)]));
    assert!(!refused.status.success(), "{refused:?}");
    succeed(fsck(&[device.name()]));
    succeed(run("partx", &["--delete", device.name()]));
}

/// An administrator has to learn that a volume of before is not protected.
#[test]
fn the_log_says_that_a_device_seems_empty_to_others() {
    let Some(_alone) = Alone::to_mount() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (image, place) = (make(directory.path(), "footage"), directory.path().join("place"));
    fs::create_dir(&place).unwrap();
    for seems_empty in [false, true] {
        let log = directory.path().join(format!("log-{seems_empty}"));
        let options = format!("cache_size=64M,log={}", log.display());
        succeed(run(env!("CARGO_BIN_EXE_mount-avfs"), &[text(&image), text(&place), "-o", &options]));
        succeed(run("umount", &[text(&place)]));
        let logged = fs::read_to_string(&log).unwrap();
        assert_eq!(logged.contains("avfsctl protect"), seems_empty, "{logged}");
        succeed(run("wipefs", &["--all", "--force", text(&image)]));
    }
}

/// Where udev has made no links, and so mount(8) cannot know the tag.
#[test]
fn a_volume_is_mounted_by_its_label_or_uuid() {
    let Some(_alone) = Alone::to_mount() else { return };
    let directory = tempfile::tempdir().unwrap();
    let label = format!("day {}", std::process::id());
    let image = make(directory.path(), &label);
    let device = Loop::of(&image);
    let properties = say(&["probe", "--udev", device.name()]);
    let uuid = properties.lines().find_map(|line| line.strip_prefix("ID_FS_UUID=")).unwrap();
    let place = directory.path().join("place");
    fs::create_dir(&place).unwrap();
    let mount =
        |source: &str| run(env!("CARGO_BIN_EXE_mount-avfs"), &[source, text(&place), "-o", "cache_size=64M"]);
    for source in [format!("LABEL={label}"), format!("UUID={uuid}"), format!("UUID={}", uuid.to_uppercase())]
    {
        succeed(mount(&source));
        let shown = run("findmnt", &["--noheadings", "--output", "SOURCE", text(&place)]);
        assert!(said(&shown).starts_with(device.name()), "{source}: {shown:?}");
        refuse(ctl(&["protect", device.name()]), 1, "is mounted on");
        succeed(run("umount", &[text(&place)]));
    }
    refuse(
        mount("LABEL=no such volume"),
        32,
        "no block device of this host holds the volume LABEL=no such volume",
    );
    let twin = directory.path().join("twin");
    fs::copy(&image, &twin).unwrap();
    let twin = Loop::of(&twin);
    refuse(mount(&format!("UUID={uuid}")), 32, "name the device");
    drop(twin);
}
