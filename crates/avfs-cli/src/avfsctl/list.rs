//! `avfsctl list`: all volumes that are mounted on this host.

use super::asking::{CtlError, print_json};
use super::volumes::Volume;
use avfs_fuse::control::{ClientError, Info, MountedWith};
use avfs_fuse::mount::printable;
use clap::Args;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use units::Bytes;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Version of what is printed as JSON: fields are only added to one.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Listed {
    version: u32,
    device: Option<PathBuf>,
    uuid: String,
    label: String,
    mounted_on: Option<PathBuf>,
    daemon_version: String,
    process: u32,
    uptime_seconds: u64,
    read_only: bool,
    options: MountedWith,
}

impl Listed {
    fn of(info: Info) -> Self {
        Self {
            version: VERSION,
            device: info.device_path,
            uuid: info.volume.uuid,
            label: info.volume.label,
            mounted_on: info.mounted_on,
            daemon_version: info.version,
            process: info.process,
            uptime_seconds: info.uptime_seconds,
            read_only: info.volume.read_only,
            options: info.options,
        }
    }
}

pub(super) fn run(output: &mut impl Write, arguments: &Arguments) -> Result<(), CtlError> {
    let (mut listed, mut silent) = (Vec::new(), Vec::new());
    let volumes = match Volume::all() {
        Err(CtlError::NothingMounted) if arguments.json => Vec::new(),
        volumes => volumes?,
    };
    for volume in volumes {
        match volume.info() {
            Ok(info) => listed.push(Listed::of(*info)),
            Err(CtlError::Daemon { path, error: ClientError::Silent { .. } }) => silent.push(path),
            // It has ended meanwhile.
            Err(CtlError::Daemon { error: ClientError::NoDaemon { .. } | ClientError::Io(_), .. }) => {}
            Err(other) => return Err(other),
        }
    }
    if arguments.json {
        return Ok(print_json(output, &listed)?);
    }
    for volume in &listed {
        let name = if volume.label.is_empty() { "(no label)" } else { &volume.label };
        writeln!(output, "{}", name.replace(char::is_control, "?"))?;
        let mut line = |name: &str, value: &str| writeln!(output, "  {name:<11} {value}");
        let path = |path: &Option<PathBuf>, none: &str| path.as_deref().map_or(none.into(), printable);
        line("device", &path(&volume.device, "not known"))?;
        line("uuid", &volume.uuid)?;
        line("mounted on", &path(&volume.mounted_on, "nowhere any more"))?;
        line("options", &options(volume))?;
        line("mounted for", &duration(volume.uptime_seconds))?;
        line("daemon", &format!("process {}, AVFS {}", volume.process, volume.daemon_version))?;
    }
    silent.iter().try_for_each(|socket| writeln!(output, "{socket}: its daemon does not answer"))?;
    Ok(())
}

/// As behind `-o`.
fn options(volume: &Listed) -> String {
    let MountedWith { cache_bytes, config, log, transport } = &volume.options;
    let mut options = vec![if volume.read_only { "ro" } else { "rw" }.to_owned()];
    options
        .extend(cache_bytes.map(|bytes| format!("cache_size={}", Bytes(bytes).to_string().replace(' ', ""))));
    options.extend(config.as_ref().map(|path| format!("config={}", printable(path))));
    options.extend(log.as_ref().map(|path| format!("log={}", printable(path))));
    options.extend(transport.as_ref().map(|transport| format!("transport={transport}")));
    options.join(",")
}

/// The two largest units of it.
pub(super) fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_two_units() {
        let shown = [0, 59, 61, 3599, 3600, 90_061, 86_400 * 400].map(duration);
        assert_eq!(shown, ["0 s", "59 s", "1 min 1 s", "59 min 59 s", "1 h 0 min", "1 d 1 h", "400 d 0 h"]);
    }
}
