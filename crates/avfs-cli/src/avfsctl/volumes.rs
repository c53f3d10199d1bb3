//! Which mounted volumes a command is about: the one that a path lies on, or all of this host.

use super::asking::{CtlError, look};
use avfs_fuse::control::{self, Answer, Client, ClientError, Info, Request};
use avfs_fuse::mount::{DeviceNumber, printable};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A mounted volume, and a path on it that was named.
pub(super) struct Volume {
    socket: PathBuf,
    /// How it is named in messages.
    named: String,
    pub(super) target: Option<Target>,
}

/// A file or directory on a volume.
pub(super) struct Target {
    pub(super) ino: u64,
    pub(super) is_directory: bool,
    /// From the root of the mount, with a leading slash.
    pub(super) path: String,
}

impl Volume {
    /// The volume that `path` lies on.
    pub(super) fn of(path: &Path) -> Result<Self, CtlError> {
        let metadata = look(path, |path| path.metadata())?;
        let target = Target {
            ino: metadata.ino(),
            is_directory: metadata.is_dir(),
            path: path_in_mount(path, metadata.dev()).map_err(|error| CtlError::path(path, error))?,
        };
        let socket = control::socket_path(DeviceNumber::from_raw(metadata.dev()));
        Ok(Self { socket, named: printable(path), target: Some(target) })
    }

    /// The one that `path` lies on; all that are mounted here, if none is named.
    pub(super) fn named(path: Option<&Path>) -> Result<Vec<Self>, CtlError> {
        let Some(path) = path else { return Self::all() };
        Self::of(path).map(|volume| vec![volume])
    }

    fn all() -> Result<Vec<Self>, CtlError> {
        let directory = Path::new(control::RUN_DIRECTORY);
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(CtlError::NothingMounted),
            entries => entries.map_err(|error| CtlError::path(directory, error))?,
        };
        let mut sockets: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
            .collect();
        sockets.sort();
        let volume = |socket: PathBuf| Self { named: printable(&socket), socket, target: None };
        // A daemon that died has left its socket.
        let lives =
            |volume: &Self| !matches!(Client::connect(&volume.socket), Err(ClientError::NoDaemon { .. }));
        let volumes: Vec<Self> = sockets.into_iter().map(volume).filter(lives).collect();
        if volumes.is_empty() { Err(CtlError::NothingMounted) } else { Ok(volumes) }
    }

    pub(super) fn ask(&self, request: &Request) -> Result<Answer, CtlError> {
        Client::connect(&self.socket)
            .and_then(|mut client| client.ask(request))
            .map_err(|error| CtlError::Daemon { path: self.named.clone(), error })
    }

    pub(super) fn info(&self) -> Result<Box<Info>, CtlError> {
        match self.ask(&Request::Info {})? {
            Answer::Info(info) => Ok(info),
            _ => Err(CtlError::OtherAnswer),
        }
    }
}

/// What a volume is called: its label, else its identity, and where it is mounted.
pub(super) fn title(info: &Info) -> String {
    let volume = &info.volume;
    let name = if volume.label.is_empty() { &volume.uuid } else { &volume.label };
    match &info.mounted_on {
        Some(directory) => format!("{name} on {}", printable(directory)),
        None => name.clone(),
    }
}

/// The path below the highest directory that lies on the same filesystem.
fn path_in_mount(path: &Path, device: u64) -> io::Result<String> {
    let path = path.canonicalize()?;
    let is_on_it = |path: &&Path| path.metadata().is_ok_and(|metadata| metadata.dev() == device);
    let root = path.ancestors().take_while(is_on_it).last().unwrap_or(&path);
    let below = path.strip_prefix(root).unwrap_or(Path::new(""));
    Ok(format!("/{}", below.display()))
}
