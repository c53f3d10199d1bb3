//! `avfsctl usage`: what files take of the device, alone and together with others.

use super::asking::{CtlError, ask, look, print_json};
use avfs_core::types::UsageReport;
use avfs_fuse::control::{Answer, Request};
use avfs_fuse::mount::printable;
use clap::Args;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use units::Bytes;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// A file, or a directory with all that is below it
    path: PathBuf,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(output: &mut impl Write, arguments: &Arguments) -> Result<(), CtlError> {
    let metadata = look(&arguments.path, |path| path.symlink_metadata())?;
    match ask(&arguments.path, &metadata, &Request::Usage { ino: metadata.ino() })? {
        Answer::Usage(report) if arguments.json => print_json(output, &report)?,
        Answer::Usage(report) => print(output, &arguments.path, &report)?,
        _ => return Err(CtlError::OtherAnswer),
    }
    Ok(())
}

fn print(output: &mut impl Write, path: &Path, report: &UsageReport) -> io::Result<()> {
    let UsageReport { files, size_bytes, own_bytes, shared_bytes, freed_bytes } = *report;
    let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    writeln!(output, "{}: {files}, {} long", printable(path), Bytes(size_bytes))?;
    writeln!(output, "  {:>10}  own", Bytes(own_bytes).to_string())?;
    writeln!(output, "  {:>10}  shared with copies", Bytes(shared_bytes).to_string())?;
    writeln!(output, "  {:>10}  free when deleted", Bytes(freed_bytes).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_three_lines_and_a_title() {
        let report = UsageReport {
            files: 2,
            size_bytes: 3 << 30,
            own_bytes: 1 << 30,
            shared_bytes: 2 << 30,
            freed_bytes: 1 << 30,
        };
        let mut printed = Vec::new();
        print(&mut printed, Path::new("reel"), &report).unwrap();
        let expected = "reel: 2 files, 3 GiB long
       1 GiB  own
       2 GiB  shared with copies
       1 GiB  free when deleted
";
        assert_eq!(String::from_utf8(printed).unwrap(), expected);
    }
}
