//! `avfsctl metrics`: figures of all volumes of this host, as Prometheus reads them.

use super::asking::CtlError;
use super::streams;
use super::volumes::Volume;
use avfs_web::metrics::{Figures, text};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The volume, by a path on it, its device, its label or its UUID; without it, all that are mounted here
    volume: Option<PathBuf>,
}

pub(super) fn run(output: &mut impl Write, arguments: &Arguments) -> Result<(), CtlError> {
    let volumes = match Volume::named(arguments.volume.as_deref()) {
        // None is a figure, too.
        Err(CtlError::NothingMounted) => Vec::new(),
        volumes => volumes?,
    };
    let asked = volumes.iter().map(|volume| Ok((volume.info()?, streams::ask(volume, None)?)));
    let asked = asked.collect::<Result<Vec<_>, CtlError>>()?;
    let figures: Vec<_> = asked.iter().map(|(info, streams)| Figures { info, streams }).collect();
    Ok(write!(output, "{}", text(&figures))?)
}
