//! Asking the daemon of a volume, and why there is no answer.

use crate::calibrate::CalibrateError;
use crate::claim::ClaimError;
use crate::patience::within;
use crate::vacancy::VacancyError;
use avfs_fuse::control::{self, Answer, Client, ClientError, Request};
use avfs_fuse::mount::{DeviceNumber, printable};
use avfs_io::device::OpenError;
use avfs_plan::recording::RecordingError;
use serde::Serialize;
use std::fs::Metadata;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Why it is not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum CtlError {
    #[error("{path}: {error}")]
    Path { path: String, error: io::Error },
    #[error(
        "{path}: the filesystem that it lies on does not answer; `umount -f` takes it from its directory"
    )]
    Hangs { path: String },
    #[error("{path}: {error}")]
    Daemon { path: String, error: ClientError },
    #[error("--{option}: {message}")]
    Value { option: String, message: String },
    #[error("{path}: `{setting}` is not set; `avfsctl policy get` shows what is")]
    NotSet { path: String, setting: String },
    #[error("{path}: it has no limit of its own; `avfsctl limit show` shows those that hold")]
    NoLimit { path: String },
    #[error("{0}")]
    Plan(String),
    #[error("{path}: {error}")]
    Recording { path: String, error: RecordingError },
    #[error("no AVFS volume is mounted on this host")]
    NothingMounted,
    #[error(
        "{name}: neither a path nor the label or UUID of a volume that is mounted here; `avfsctl list` shows them"
    )]
    NotNamed { name: String },
    #[error("{count} volumes that are mounted here have the label {name}: name one by its UUID")]
    Ambiguous { name: String, count: usize },
    #[error("{path}: no AVFS volume of it is mounted")]
    NotMounted { path: String },
    #[error(
        "{count} volumes are mounted on this host: name one by a path on it, its device, its label or its UUID"
    )]
    SeveralMounted { count: usize },
    #[error("{0}")]
    Share(String),
    #[error("{0}")]
    Device(String),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{0}; `mkfs.avfs --calibrate` measures it when it makes a volume")]
    NotVacant(#[from] VacancyError),
    #[error(transparent)]
    Calibrate(#[from] CalibrateError),
    #[error("the daemon answered something else than was asked: is it of another version?")]
    OtherAnswer,
    #[error("cannot write the answer: {0}")]
    Output(#[from] io::Error),
}

impl CtlError {
    pub(super) fn path(path: &Path, error: impl Into<io::Error>) -> Self {
        Self::Path { path: printable(path), error: error.into() }
    }
}

/// Asks the filesystem that `path` lies on, unless that hangs.
pub(super) fn look<T>(path: &Path, ask: impl FnOnce(&Path) -> io::Result<T>) -> Result<T, CtlError> {
    match within(control::PATIENCE, path, || ask(path)) {
        Some(found) => found.map_err(|error| CtlError::path(path, error)),
        None => Err(CtlError::Hangs { path: printable(path) }),
    }
}

/// Asks the daemon of the volume that `path` lies on.
pub(super) fn ask(path: &Path, metadata: &Metadata, request: &Request) -> Result<Answer, CtlError> {
    let socket = control::socket_path(DeviceNumber::from_raw(metadata.dev()));
    Client::connect(&socket)
        .and_then(|mut client| client.ask(request))
        .map_err(|error| CtlError::Daemon { path: printable(path), error })
}

pub(super) fn print_json(output: &mut impl Write, answer: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *output, answer)?;
    writeln!(output)
}
