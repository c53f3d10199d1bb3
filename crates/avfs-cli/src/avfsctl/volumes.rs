//! Which mounted volumes a command is about: the one that a path lies on, or that a device, label or UUID is of, or all of this host.

use super::asking::{CtlError, look};
use avfs_fuse::control::{self, Answer, Client, ClientError, Info, Request};
use avfs_fuse::mount::{self, DeviceNumber, MountEntry, printable};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
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
    /// The volume with this name: `LABEL=…`, `UUID=…`, a path on it, its device or image file, or, where there is no such path, its
    /// label or UUID alone.
    pub(super) fn find(name: &Path) -> Result<Self, CtlError> {
        let text = name.to_string_lossy();
        if let Some(label) = text.strip_prefix("LABEL=") {
            return Self::tagged(&text, |info| info.volume.label == label);
        }
        if let Some(uuid) = text.strip_prefix("UUID=") {
            return Self::tagged(&text, |info| info.volume.uuid.eq_ignore_ascii_case(uuid));
        }
        match look(name, |path| path.metadata()) {
            Ok(metadata) => Self::on_device(name, &metadata).unwrap_or_else(|| Self::of(name)),
            // A link that leads nowhere lies on a volume all the same.
            Err(_) if name.is_symlink() => Self::of(name),
            Err(CtlError::Path { error, .. })
                if error.kind() == io::ErrorKind::NotFound && !text.contains('/') =>
            {
                Self::tagged(&text, |info| {
                    info.volume.label == text || info.volume.uuid.eq_ignore_ascii_case(&text)
                })
            }
            Err(error) => Err(error),
        }
    }

    /// The one of which this is so.
    fn tagged(name: &str, is_it: impl Fn(&Info) -> bool) -> Result<Self, CtlError> {
        let mut found: Vec<_> = Self::all()?
            .into_iter()
            .filter_map(|volume| volume.info().ok().filter(|info| is_it(info)).map(|_| volume))
            .collect();
        match (found.pop(), found.len()) {
            (Some(volume), 0) => Ok(volume),
            (Some(_), more) => Err(CtlError::Ambiguous { name: name.to_owned(), count: more + 1 }),
            (None, _) => Err(CtlError::NotNamed { name: name.to_owned() }),
        }
    }

    /// The volume on this device or image file, where the path is that of one. What lies on a volume itself is a path.
    fn on_device(path: &Path, metadata: &Metadata) -> Option<Result<Self, CtlError>> {
        let is_device = metadata.file_type().is_block_device();
        if !is_device && !metadata.is_file() {
            return None;
        }
        let device = path.canonicalize().ok()?;
        let is_it =
            |entry: &MountEntry| entry.is_avfs() && (entry.source == device || entry.backing() == device);
        let named = printable(path);
        match mount::mounts().ok()?.iter().find(|entry| is_it(entry)) {
            Some(entry) => Some(Ok(Self { socket: control::socket_path(entry.device), named, target: None })),
            None if is_device => Some(Err(CtlError::NotMounted { path: named })),
            None => None,
        }
    }

    /// How it is called in messages.
    pub(super) fn name(&self) -> &str {
        &self.named
    }

    /// The volume that `path` lies on.
    pub(super) fn of(path: &Path) -> Result<Self, CtlError> {
        let metadata = look(path, |path| path.metadata().or_else(|_| path.symlink_metadata()))?;
        let target = Target {
            ino: metadata.ino(),
            is_directory: metadata.is_dir(),
            path: path_in_mount(path, metadata.dev()).map_err(|error| CtlError::path(path, error))?,
        };
        let socket = control::socket_path(DeviceNumber::from_raw(metadata.dev()));
        Ok(Self { socket, named: printable(path), target: Some(target) })
    }

    /// The one with this name; all that are mounted here, if none is named.
    pub(super) fn named(path: Option<&Path>) -> Result<Vec<Self>, CtlError> {
        let Some(path) = path else { return Self::all() };
        Self::find(path).map(|volume| vec![volume])
    }

    /// All that are mounted here: at least one.
    pub(super) fn all() -> Result<Vec<Self>, CtlError> {
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
        // One that hangs cannot say what it is called.
        let mounts = mount::mounts().unwrap_or_default();
        let volume = |socket: PathBuf| {
            let shown = mounts.iter().find(|entry| control::socket_path(entry.device) == socket);
            Self { named: printable(shown.map_or(&socket, |entry| &entry.directory)), socket, target: None }
        };
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
    // Of a link that leads nowhere the path is its own.
    let path = path.canonicalize().or_else(|_| std::path::absolute(path))?;
    let is_on_it = |path: &&Path| path.metadata().is_ok_and(|metadata| metadata.dev() == device);
    let root = path.ancestors().take_while(is_on_it).last().unwrap_or(&path);
    let below = path.strip_prefix(root).unwrap_or(Path::new(""));
    Ok(format!("/{}", below.display()))
}
