//! `avfsctl label`: shows the name of a mounted volume, or gives it another.

use super::asking::CtlError;
use super::volumes::Volume;
use avfs_fuse::control::{Answer, Request};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The volume, by a path on it, its device, its label or its UUID
    volume: PathBuf,
    /// Its name from now on; "" for none
    label: Option<String>,
}

pub(super) fn run(output: &mut impl Write, arguments: &Arguments) -> Result<(), CtlError> {
    let volume = Volume::find(&arguments.volume)?;
    match &arguments.label {
        None => Ok(writeln!(output, "{}", volume.info()?.volume.label.replace(char::is_control, "?"))?),
        Some(label) => match volume.ask(&Request::SetLabel { label: label.clone() })? {
            Answer::Done {} => Ok(()),
            _ => Err(CtlError::OtherAnswer),
        },
    }
}
