//! The golden set is a function of its seeds.

use std::path::Path;
use std::process::Command;

/// The table of a part of the set, as a process of its own makes it.
fn table(workers: &str, only: &str, kept: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_avfs-lab"));
    command.args(["golden", "--seeds", "2", "--only", only, "--workers", workers, "--kept"]).arg(kept);
    let output = command.output().expect("it is built");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a table is text")
}

/// Hash maps of each process have another order, and threads another turn.
#[test]
fn each_process_makes_the_same_table_with_any_number_of_threads() {
    let directory = tempfile::tempdir().expect("there is room");
    for only in ["paper.players+copy.plain", "disk.recorders+copy.named", "seeks.jumpers.named"] {
        let one = table("1", only, directory.path());
        assert_eq!(one.lines().filter(|line| !line.starts_with('#')).count(), 3, "{one}");
        for workers in ["2", "3"] {
            assert_eq!(table(workers, only, directory.path()), one, "{only}, {workers} threads");
        }
    }
    let is_empty = std::fs::read_dir(directory.path()).expect("it is there").next().is_none();
    assert!(is_empty, "a part of the set is not kept");
}

/// What was kept of another program is not equal, and the cells are named.
#[test]
fn a_cell_that_differs_is_named() {
    let directory = tempfile::tempdir().expect("there is room");
    let short = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_avfs-lab"));
        command.args(["golden", "--short", "--only", "nvme.recorders.plain", "--kept"]).arg(directory.path());
        command.args(arguments).output().expect("it is built")
    };
    assert!(short(&["--keep"]).status.success());
    let equal = short(&[]);
    assert!(equal.status.success(), "{}", String::from_utf8_lossy(&equal.stderr));
    assert_eq!(String::from_utf8_lossy(&equal.stdout), "3 of 3 cells are equal\n");
    let kept = directory.path().join("hashes.txt");
    let text = std::fs::read_to_string(&kept).expect("it was kept");
    let line = text.lines().find(|line| line.contains(".40 ")).expect("a cell of forty");
    let (cell, hash) = line.split_once(' ').expect("two columns");
    let other = format!("{cell} {:016x}", !u64::from_str_radix(hash, 16).expect("a hash"));
    std::fs::write(&kept, text.replace(line, &other)).expect("there is room");
    let differs = short(&[]);
    assert!(!differs.status.success());
    assert_eq!(String::from_utf8_lossy(&differs.stdout), "2 of 3 cells are equal\n");
    let error = String::from_utf8_lossy(&differs.stderr).into_owned();
    assert!(error.contains("in nvme.recorders.plain.40: "), "{error}");
}
