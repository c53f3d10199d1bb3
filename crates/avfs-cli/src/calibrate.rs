//! Measuring a device for `avfsctl calibrate` and `mkfs.avfs --calibrate`, and keeping what was found.
//!
//! **For:** the table that people see, and the section `[device]` of a volume's configuration. **Excludes:** the measurement,
//! which is `avfs_io::calibration`'s. **Invariants:** of a configuration, only that section changes, comments elsewhere stay;
//! a configuration is whole before and after, also when the machine stops between.

use avfs_core::config::{Config, ConfigError, DeviceConfig, SettingValue};
use avfs_fuse::mount::printable;
use avfs_io::calibration::Measured;
use avfs_io::device::FileDevice;
use avfs_io::measure::{self, MeasureError};
use rtsched::{Direction, ServiceTime};
use std::fmt::Write as _;
use std::fs::Metadata;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml_edit::{Array, DocumentMut, Item, Table, Value, value};
use units::Duration;

/// How long a measurement takes where nobody says otherwise: writes have to fill a cache with each length.
pub(crate) const fn duration(writes: bool) -> Duration {
    Duration::from_secs(if writes { 120 } else { 60 })
}

/// Why a device was not calibrated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CalibrateError {
    #[error("{path}: {error}")]
    Measure { path: String, error: MeasureError },
    #[error("the configuration is wrong already: {0}")]
    Config(#[from] ConfigError),
    #[error("{}: cannot be written: {error}", .path.display())]
    Keep { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Output(#[from] crate::OutputError),
}

/// What was found of a device.
#[derive(Debug)]
pub(crate) struct Found {
    device: DeviceConfig,
    /// Why it may say nothing of one; a line for the administrator.
    doubt: Option<String>,
}

/// What there is to say against measuring this: an image file answers from this machine's memory, and its holes from nowhere.
fn doubt(path: &Path) -> Option<String> {
    let image = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
    let holes = image.len().saturating_sub(image.blocks() * 512);
    let percent = (holes as f64 / image.len().max(1) as f64 * 100.0).ceil();
    let sparse = if holes > 0 { format!(", and {percent} % of it are holes") } else { String::new() };
    Some(format!(
        "{} is an image file{sparse}: memory and holes were measured, not a device",
        printable(path)
    ))
}

/// Measures a device and shows what was found. With `writes`, what it holds is lost.
pub(crate) fn measure(
    device: &Arc<FileDevice>,
    path: &Path,
    writes: bool,
    duration: Duration,
) -> Result<Found, CalibrateError> {
    // Before what is written fills its holes.
    let doubt = doubt(path);
    let what =
        if writes { "reads, writes and flushes; what it holds is lost" } else { "reads; nothing is written" };
    crate::tell(format_args!("measuring {} for about {} s: {what}", printable(path), duration.as_secs()));
    let measured = measure::measure(Arc::clone(device), writes, duration)
        .map_err(|error| CalibrateError::Measure { path: printable(path), error })?;
    crate::print(show(&measured))?;
    if measured.has_unfilled_cache() {
        crate::tell(
            "writes are faster than reads: the cache was not full yet; measure longer with `avfsctl calibrate --seconds`",
        );
    }
    if let Some(doubt) = &doubt {
        crate::tell(doubt);
    }
    let Measured { read, read_ends, write, write_times, flush, .. } = measured;
    let device = DeviceConfig { read: Some(read), read_ends, write, write_times, flush }.rounded();
    Ok(Found { device, doubt })
}

fn show(measured: &Measured) -> String {
    let mut text = format!("{:<18} {:>10} {:>12} {:>14} {:>9}\n", "", "length", "time", "rate", "commands");
    for point in &measured.points {
        let operation = if point.direction == Direction::Read { "read" } else { "write" };
        let rate = point.length.0 as f64 / 1e6 / point.time.as_secs_f64();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{:<18} {:>10} {:>9.2} ms {rate:>9.1} MB/s {:>9}",
            format!("{operation} at random"),
            point.length.to_string(),
            point.time.as_secs_f64() * 1e3,
            point.count
        );
    }
    let zones = measured.zones.map(|rate| format!("{:.0}", rate.0 as f64 / 1e6)).join(", ");
    let _ = writeln!(text, "read in sequence, MB/s by zone: {zones}");
    let line = |line: ServiceTime| {
        let rate = line.bytes_per_second.0 as f64 / 1e6;
        format!("{:.2} ms and {rate:.1} MB/s", line.access.as_secs_f64() * 1e3)
    };
    let _ = writeln!(text, "a read takes {}", line(measured.read));
    if let (Some(write), Some(flush)) = (measured.write, measured.flush) {
        let _ = writeln!(text, "a write takes {}, a flush {:.2} ms", line(write), flush.as_secs_f64() * 1e3);
    }
    text
}

/// A configuration in which what is found will be kept; a new one, if there is none.
#[derive(Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    text: String,
}

impl Kept {
    /// Looks at it before anything is measured: there is nothing to be lost then, and minutes of a measurement otherwise.
    pub(crate) fn open(path: &Path) -> Result<Self, CalibrateError> {
        // What a link names is written, not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read.map_err(|source| ConfigError::Read { file: path.clone(), source })?,
        };
        if !text.is_empty() {
            Config::load(&path)?;
        }
        try_beside(&path).map_err(|error| CalibrateError::Keep { path: path.clone(), error })?;
        Ok(Self { path, text })
    }

    /// Puts what was found in place of what was there.
    pub(crate) fn keep(&self, found: &Found) -> Result<(), CalibrateError> {
        let failed = |error| CalibrateError::Keep { path: self.path.clone(), error };
        let text = with_device(&self.text, found).map_err(|error| failed(io::Error::other(error)))?;
        replace(&self.path, text.as_bytes()).map_err(failed)?;
        crate::print(format_args!(
            "kept in {}; it counts from the next mount with this configuration\n",
            printable(&self.path)
        ))?;
        Ok(())
    }
}

/// The section as text.
pub(crate) fn section(found: &Found) -> String {
    let settings = found.device.settings().into_iter();
    let lines = settings.map(|(name, setting)| format!("{name} = {}\n", toml(setting)));
    format!("[device]\n{}{}", remark(found), lines.collect::<String>())
}

/// What stands above the settings, so that it goes with them when others are found.
fn remark(found: &Found) -> String {
    found.doubt.iter().map(|doubt| format!("# {doubt}\n")).collect()
}

fn toml(setting: SettingValue) -> Value {
    match setting {
        SettingValue::One(one) => one.into(),
        SettingValue::List(list) => Array::from_iter(list).into(),
    }
}

/// A configuration with another section `[device]`.
fn with_device(text: &str, found: &Found) -> Result<String, toml_edit::TomlError> {
    let mut document: DocumentMut = text.parse()?;
    let mut table = Table::new();
    for (name, setting) in found.device.settings() {
        table.insert(name, value(toml(setting)));
    }
    if let Some((mut first, _)) = table.iter_mut().next() {
        first.leaf_decor_mut().set_prefix(remark(found));
    }
    // In the old one's place, with the comment above it.
    if let Some(old) = document.get("device").and_then(Item::as_table) {
        *table.decor_mut() = old.decor().clone();
        table.set_position(old.position());
    }
    document.insert("device", Item::Table(table));
    Ok(document.to_string())
}

/// The directory of a file, and a name in it for what will replace it.
fn beside(path: &Path) -> (&Path, PathBuf) {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    (directory, directory.join(name))
}

/// Finds out whether a file could be replaced.
fn try_beside(path: &Path) -> io::Result<()> {
    let (_, beside) = beside(path);
    std::fs::File::create(&beside)?;
    std::fs::remove_file(&beside)
}

/// Replaces a file at once: afterwards it holds either the old or the new text.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let (directory, beside) = beside(path);
    let written = (|| {
        let mut file = std::fs::File::create(&beside)?;
        if let Ok(metadata) = std::fs::metadata(path) {
            file.set_permissions(metadata.permissions())?;
        }
        file.write_all(text)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        std::fs::File::open(directory)?.sync_all()
    })();
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Bytes;

    const EXAMPLE: &str = include_str!("../../../config/avfs.toml");

    fn device(millis: u64) -> DeviceConfig {
        let line = |access, megabytes: u64| ServiceTime {
            access: Duration::from_millis(access),
            bytes_per_second: Bytes(megabytes * 1_000_000),
        };
        let flush = Some(Duration::from_micros(200));
        DeviceConfig {
            read: Some(line(millis, 170)),
            read_ends: Some([Bytes(180_000_000), Bytes(90_500_000)]),
            write: Some(line(11, 150)),
            write_times: Some(std::array::from_fn(|octave| Duration::from_micros(1500 << octave))),
            flush,
        }
    }

    fn found(millis: u64) -> Found {
        Found { device: device(millis), doubt: None }
    }

    #[test]
    fn only_the_section_changes_and_comments_stay() {
        let once = with_device(EXAMPLE, &found(16)).unwrap();
        assert_eq!(Config::parse(&once).unwrap(), Config { device: device(16), ..Config::default() });
        let lines: Vec<_> = once.lines().collect();
        assert!(EXAMPLE.lines().all(|line| lines.contains(&line)), "{once}");

        let twice = with_device(&once, &found(9)).unwrap();
        assert_eq!(
            twice,
            once.replace("\"16 ms\"", "\"9 ms\"")
                .replace("#read_access = \"9 ms\"", "#read_access = \"16 ms\"")
        );
        let reads = DeviceConfig { write: None, write_times: None, flush: None, ..device(9) };
        let reads_alone = Found { device: reads, doubt: None };
        assert_eq!(Config::parse(&with_device(&twice, &reads_alone).unwrap()).unwrap().device, reads);

        // What there is to say against a measurement goes with it.
        let doubt = Some("film.img is an image file".to_owned());
        let doubted = with_device(&twice, &Found { device: device(9), doubt }).unwrap();
        assert_eq!(doubted, twice.replace("\nread_access", "\n# film.img is an image file\nread_access"),);
        assert_eq!(with_device(&doubted, &found(9)).unwrap(), twice);
    }

    #[test]
    fn what_follows_the_section_stays_what_it_was() {
        let text = "[device]\nread_access = \"1 ms\"\nread_rate = \"1 MB/s\"\n\n# proxies\n[[stream]]\npath = \"**\"\n";
        let changed = with_device(text, &found(16)).unwrap();
        let config = Config::parse(&changed).unwrap();
        assert_eq!((config.device, config.streams.len()), (device(16), 1));
        assert!(changed.contains("\n# proxies\n[[stream]]"), "{changed}");
    }

    #[test]
    fn a_file_is_made_replaced_and_refused_when_it_is_wrong() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("avfs.toml");
        Kept::open(&path).unwrap().keep(&found(16)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), section(&found(16)));
        Kept::open(&path).unwrap().keep(&found(9)).unwrap();
        assert_eq!(Config::load(&path).unwrap().device, device(9));
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);

        std::fs::write(&path, "[cash]\n").unwrap();
        let refused = Kept::open(&path).unwrap_err().to_string();
        assert!(refused.contains("unknown field `cash`") && !refused.contains('\n'), "{refused}");
        // It was found out behind two minutes of measuring, which were lost.
        let nowhere = Kept::open(&directory.path().join("none/avfs.toml"));
        assert!(matches!(nowhere, Err(CalibrateError::Keep { .. })));
    }
}
