//! `avfsctl reload`: has the daemon of a mounted volume read its configuration again.

use super::asking::CtlError;
use super::volumes::{Volume, title};
use avfs_fuse::control::{Answer, Request};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The volume, by a path on it, its device, its label or its UUID
    volume: PathBuf,
}

pub(super) fn run(output: &mut impl Write, arguments: &Arguments) -> Result<(), CtlError> {
    let volume = Volume::find(&arguments.volume)?;
    let Answer::Changed(changed) = volume.ask(&Request::Reload {})? else {
        return Err(CtlError::OtherAnswer);
    };
    let changed = if changed.is_empty() { "nothing has changed".into() } else { changed.join(", ") };
    Ok(writeln!(output, "{}: {changed}", title(&*volume.info()?))?)
}
