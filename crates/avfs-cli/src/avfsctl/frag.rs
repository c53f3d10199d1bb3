//! `avfsctl frag`: how free space is cut, and for how long there will be long runs of it.

use super::asking::{CtlError, print_json};
use super::list::duration;
use super::volumes::{Volume, title};
use avfs_core::free_space::{FreeSpaceReport, LongRunsReport};
use avfs_fuse::control::{Answer, Request};
use clap::Args;
use std::io::{self, Write};
use std::path::PathBuf;
use units::Bytes;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The volume, by a path on it, its device, its label or its UUID; without it, all that are mounted here
    volume: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(output: &mut impl Write, arguments: &Arguments) -> Result<(), CtlError> {
    let mut all = Vec::new();
    for volume in Volume::named(arguments.volume.as_deref())? {
        let Answer::FreeSpace(report) = volume.ask(&Request::FreeSpace {})? else {
            return Err(CtlError::OtherAnswer);
        };
        if arguments.json {
            all.push(report);
        } else {
            writeln!(output, "{}", title(&*volume.info()?))?;
            print(output, &report)?;
        }
    }
    if arguments.json {
        print_json(output, &all)?;
    }
    Ok(())
}

/// Widest bar.
const BAR: u64 = 40;

fn print(output: &mut impl Write, report: &FreeSpaceReport) -> io::Result<()> {
    writeln!(
        output,
        "  {} free of {}, in {} runs, the longest {}",
        Bytes(report.free_bytes),
        Bytes(report.device_bytes),
        report.runs,
        Bytes(report.longest_bytes)
    )?;
    if report.runs > 0 {
        writeln!(output, "  {:>10}  {:>10}  {:>10}", "from", "runs", "together")?;
    }
    for runs in &report.by_length {
        let (length, together) = (Bytes(runs.at_least_bytes).to_string(), Bytes(runs.bytes).to_string());
        let part = u128::from(runs.bytes) * u128::from(BAR) / u128::from(report.free_bytes.max(1));
        let bar = "#".repeat(part as usize);
        let line = format!("  {length:>10}  {:>10}  {together:>10}  {bar}", runs.runs);
        writeln!(output, "{}", line.trim_end())?;
    }
    writeln!(output, "  {}", outlook(&report.long))
}

fn outlook(long: &LongRunsReport) -> String {
    let (bytes, least) = (Bytes(long.bytes), Bytes(long.at_least_bytes));
    let now = format!("{bytes} in long runs, of {least} or more");
    match (long.lost_bytes_per_day, long.end_in_hours) {
        (None, _) => format!("{now}; how long they last is known after an hour"),
        (Some(lost), Some(hours)) => format!(
            "{now}; {} a day less in the last {}: none in {}",
            Bytes(lost.unsigned_abs()),
            duration(long.observed_hours * 3600),
            duration(hours * 3600)
        ),
        (Some(_), None) => {
            format!("{now}; they became no less in the last {}", duration(long.observed_hours * 3600))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use avfs_core::free_space::FreeRunsReport;

    #[test]
    fn runs_are_a_histogram() {
        let report = FreeSpaceReport {
            version: 1,
            device_bytes: 1 << 30,
            free_bytes: 100 << 20,
            runs: 3,
            longest_bytes: 75 << 20,
            by_length: vec![
                FreeRunsReport { at_least_bytes: 4096, runs: 2, bytes: 25 << 20 },
                FreeRunsReport { at_least_bytes: 64 << 20, runs: 1, bytes: 75 << 20 },
            ],
            long: LongRunsReport {
                at_least_bytes: 64 << 20,
                bytes: 75 << 20,
                observed_hours: 48,
                lost_bytes_per_day: Some(25 << 20),
                end_in_hours: Some(72),
            },
        };
        let mut printed = Vec::new();
        print(&mut printed, &report).unwrap();
        let expected = "  100 MiB free of 1 GiB, in 3 runs, the longest 75 MiB
        from        runs    together
       4 KiB           2      25 MiB  ##########
      64 MiB           1      75 MiB  ##############################
  75 MiB in long runs, of 64 MiB or more; 25 MiB a day less in the last 2 d 0 h: none in 3 d 0 h
";
        assert_eq!(String::from_utf8(printed).unwrap(), expected);
        let none = LongRunsReport { bytes: 0, lost_bytes_per_day: None, end_in_hours: None, ..report.long };
        assert!(outlook(&none).ends_with("known after an hour"));
    }
}
