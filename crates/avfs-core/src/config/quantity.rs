//! Single values: numbers with units in text, each within its range.

use rtsched::Class;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use units::{Bitrate, Bytes, Duration, nanos};

/// What happens to who opens a file whose rate does not fit the device any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The file is opened and served as best effort until there is room. The only thing for clients of a file
    /// server, which cannot be told why a file may not be opened now.
    Demote,
    /// The file is not opened: EBUSY.
    Refuse,
}

/// Where a daemon can be asked by HTTP: on this host alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// At this loopback address.
    Loopback(SocketAddr),
    /// At a Unix socket with this absolute path.
    Socket(PathBuf),
}

/// Units by name, with their value in the smallest one.
type Units = &'static [(&'static str, u64)];

const BYTES: Units = &[
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
];

const BITS_PER_SECOND: Units = &[
    ("bit/s", 1),
    ("kbit/s", 1_000),
    ("Mbit/s", 1_000_000),
    ("Gbit/s", 1_000_000_000),
    ("Tbit/s", 1_000_000_000_000),
    ("kB/s", 8_000),
    ("MB/s", 8_000_000),
    ("GB/s", 8_000_000_000),
    ("TB/s", 8_000_000_000_000),
    ("MiB/s", 8 << 20),
    ("GiB/s", 8 << 30),
];

/// The names of the classes that a file can have.
const CLASSES: [(&str, Class); 3] =
    [("real-time", Class::RealTime), ("best-effort", Class::BestEffort), ("idle", Class::Idle)];

const WHEN_FULL: [(&str, WhenFull); 2] = [("demote", WhenFull::Demote), ("refuse", WhenFull::Refuse)];

/// Bits per second that a stream can have.
const BITRATES: RangeInclusive<u64> = 1_000..=1_000_000_000_000;
/// Times that requests of a stream can have.
const WINDOWS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);

/// True for what a configuration can say too.
pub(crate) fn is_bitrate(rate: Bitrate) -> bool {
    BITRATES.contains(&rate.0)
}

/// The same of the time that a request has.
pub(crate) fn is_deadline_window(window: Duration) -> bool {
    WINDOWS.contains(&window)
}

const NANOSECONDS: Units = &[("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000), ("min", 60_000_000_000)];

/// A value of any of TOML's simple types.
enum Scalar {
    Text(String),
    Integer(i64),
    Float(f64),
}

struct ScalarVisitor {
    /// What the message about a wrong type asks for.
    expected: &'static str,
}

impl Visitor<'_> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(text.to_owned()))
    }

    fn visit_i64<E>(self, integer: i64) -> Result<Scalar, E> {
        Ok(Scalar::Integer(integer))
    }

    fn visit_f64<E>(self, float: f64) -> Result<Scalar, E> {
        Ok(Scalar::Float(float))
    }
}

/// Reads `<number> <unit>`, the number with at most nine decimals.
fn parse(text: &str, units: Units) -> Option<u64> {
    parse_with(text, units, |name, unit| name == unit)
}

fn parse_with(text: &str, units: Units, is_same: impl Fn(&str, &str) -> bool) -> Option<u64> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(number_end);
    let unit = unit.trim();
    let (_, factor) = units.iter().find(|(name, _)| is_same(name, unit))?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || decimals.is_empty() || decimals.len() > 9 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let fraction: u64 = decimals.parse().ok()?;
    let fraction =
        u128::from(fraction) * u128::from(*factor) / 10u128.pow(u32::try_from(decimals.len()).ok()?);
    u64::try_from(u128::from(whole) * u128::from(*factor) + fraction).ok()
}

/// Reads a value with a unit, or a bare integer where `bare` allows it.
fn value<'de, D: Deserializer<'de>>(
    input: D,
    units: Units,
    bare: bool,
    expected: &'static str,
) -> Result<u64, D::Error> {
    let refused = |found: &dyn Display| {
        let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
        D::Error::custom(format_args!("{found}: expected {expected}; the units are {}", names.join(", ")))
    };
    match input.deserialize_any(ScalarVisitor { expected })? {
        Scalar::Text(text) => parse(text.trim(), units).ok_or_else(|| refused(&format_args!("{text:?}"))),
        Scalar::Integer(integer) if bare => u64::try_from(integer).map_err(|_| refused(&integer)),
        Scalar::Integer(integer) => Err(refused(&integer)),
        Scalar::Float(float) => Err(refused(&float)),
    }
}

/// Passes a value inside the range; names the range otherwise.
fn within<T: PartialOrd, E: Error>(
    value: T,
    range: RangeInclusive<T>,
    show: impl Fn(&T) -> String,
) -> Result<T, E> {
    if range.contains(&value) {
        return Ok(value);
    }
    let (least, most) = (show(range.start()), show(range.end()));
    Err(E::custom(format_args!("{} is outside of {least} to {most}", show(&value))))
}

fn duration<'de, D: Deserializer<'de>>(
    input: D,
    range: RangeInclusive<Duration>,
) -> Result<Duration, D::Error> {
    let nanoseconds = value(input, NANOSECONDS, false, "a time such as \"500 ms\"")?;
    within(Duration::from_nanos(nanoseconds), range, |duration| format!("{duration:?}"))
}

fn integer<'de, D: Deserializer<'de>>(input: D, range: RangeInclusive<u32>) -> Result<u32, D::Error> {
    let expected = "a whole number";
    let wide = match input.deserialize_any(ScalarVisitor { expected })? {
        Scalar::Integer(integer) => integer,
        Scalar::Text(text) => return Err(D::Error::custom(format_args!("{text:?}: expected {expected}"))),
        Scalar::Float(float) => return Err(D::Error::custom(format_args!("{float}: expected {expected}"))),
    };
    let wide_range = i64::from(*range.start())..=i64::from(*range.end());
    within(wide, wide_range, i64::to_string).and_then(|value| u32::try_from(value).map_err(D::Error::custom))
}

const SIZE: &str = "a size such as \"512 MiB\" or a number of bytes";
/// Pinned memory for file data.
const CACHE_SIZES: RangeInclusive<Bytes> = Bytes::from_mib(64)..=Bytes::from_mib(16 << 20);

/// Reads a size as every tool and every option takes it: a number, also with decimals, and a unit as coreutils have them (K and
/// KiB are 1024, kB is 1000, and so on to T), or none for bytes.
///
/// # Errors
/// One line: what was found and what is expected.
pub fn parse_size(text: &str) -> Result<Bytes, String> {
    let is_bare = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // Of sizes no unit means another one in other letters, unlike Mb/s and MB/s.
    let bytes =
        if is_bare { text.parse().ok() } else { parse_with(text.trim(), BYTES, str::eq_ignore_ascii_case) };
    bytes.map(Bytes).ok_or_else(|| {
        let names: Vec<_> = BYTES.iter().map(|(name, _)| *name).collect();
        format!("{text:?}: expected {SIZE}; the units are {}", names.join(", "))
    })
}

/// Reads the size of a cache, by the same grammar and within the bounds of the configuration.
///
/// # Errors
/// One line: what was found and what is expected.
pub fn parse_cache_size(text: &str) -> Result<Bytes, String> {
    within::<_, serde::de::value::Error>(parse_size(text)?, CACHE_SIZES, Bytes::to_string)
        .map_err(|why| why.to_string())
}

fn size<'de, D: Deserializer<'de>>(input: D, range: RangeInclusive<Bytes>) -> Result<Bytes, D::Error> {
    let bytes = match input.deserialize_any(ScalarVisitor { expected: SIZE })? {
        Scalar::Text(text) => parse_size(&text).map_err(D::Error::custom)?,
        Scalar::Integer(integer) => u64::try_from(integer)
            .map(Bytes)
            .map_err(|_| D::Error::custom(format_args!("{integer}: expected {SIZE}")))?,
        Scalar::Float(float) => return Err(D::Error::custom(format_args!("{float}: expected {SIZE}"))),
    };
    within(bytes, range, Bytes::to_string)
}

pub(super) fn cache_size<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Bytes>, D::Error> {
    size(input, CACHE_SIZES).map(Some)
}

pub(super) fn commit_age<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    duration(input, Duration::from_millis(10)..=Duration::from_secs(60))
}

pub(super) fn checkpoint_interval<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    duration(input, Duration::from_secs(1)..=Duration::from_secs(3600))
}

pub(super) fn cache_keep<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    duration(input, Duration::from_secs(1)..=Duration::from_secs(24 * 3600))
}

pub(super) fn overdue<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    duration(input, Duration::from_millis(100)..=Duration::from_secs(3600))
}

pub(super) fn queue_depth<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u32>, D::Error> {
    integer(input, 1..=1024).map(Some)
}

/// What one command takes: 1 µs to 10 s.
#[derive(Clone, Copy)]
pub(super) struct AccessTime(pub(super) Duration);

impl<'de> Deserialize<'de> for AccessTime {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        duration(input, Duration::from_micros(1)..=Duration::from_secs(10)).map(Self)
    }
}

/// Of transfers: 100 kB/s to 1 TB/s.
#[derive(Clone, Copy)]
pub(super) struct TransferRate(pub(super) Bitrate);

impl<'de> Deserialize<'de> for TransferRate {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let expected = "a rate such as \"180 MB/s\" or a number of bits per second";
        let bits_per_second = value(input, BITS_PER_SECOND, true, expected)?;
        let show = |bits: &u64| format!("{} kB/s", bits / 8_000);
        within(bits_per_second, 800_000..=8_000_000_000_000, show).map(|bits| Self(Bitrate(bits)))
    }
}

pub(super) fn flush_time<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Duration>, D::Error> {
    duration(input, Duration::from_micros(1)..=Duration::from_secs(60)).map(Some)
}

pub(super) fn metadata_latency<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    duration(input, Duration::from_millis(1)..=Duration::from_secs(10))
}

pub(super) fn best_effort_latency<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    duration(input, Duration::from_millis(10)..=Duration::from_secs(300))
}

pub(super) fn longest_start<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    duration(input, Duration::from_millis(100)..=Duration::from_secs(60))
}

pub(super) fn floor_percent<'de, D: Deserializer<'de>>(input: D) -> Result<u32, D::Error> {
    integer(input, 0..=50)
}

pub(super) fn share_percent<'de, D: Deserializer<'de>>(input: D) -> Result<u32, D::Error> {
    integer(input, 0..=100)
}

pub(super) fn deadline_window<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Duration>, D::Error> {
    duration(input, WINDOWS).map(Some)
}

pub(super) fn bitrate<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Bitrate>, D::Error> {
    let expected = "a bitrate such as \"100 Mbit/s\" or a number of bits per second";
    let bits_per_second = value(input, BITS_PER_SECOND, true, expected)?;
    let show = |bits: &u64| format!("{bits} bit/s");
    within(bits_per_second, BITRATES, show).map(|bits| Some(Bitrate(bits)))
}

/// Frames per second as the time of one frame.
pub(super) fn frame_period<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Duration>, D::Error> {
    let expected = "a number of frames per second such as 24 or 23.976";
    let frames_per_second = match input.deserialize_any(ScalarVisitor { expected })? {
        Scalar::Integer(integer) => integer as f64,
        Scalar::Float(float) => float,
        Scalar::Text(text) => return Err(D::Error::custom(format_args!("{text:?}: expected {expected}"))),
    };
    let frames_per_second = within(frames_per_second, 1.0..=1000.0, f64::to_string)?;
    Ok(Some(Duration::from_secs_f64(1.0 / frames_per_second)))
}

/// Reads one of some words.
fn word<'de, D: Deserializer<'de>, T: Copy>(
    input: D,
    words: &[(&str, T)],
    expected: &'static str,
) -> Result<Option<T>, D::Error> {
    let refused = |found: &dyn Display| D::Error::custom(format_args!("{found}: expected {expected}"));
    match input.deserialize_any(ScalarVisitor { expected })? {
        Scalar::Text(text) => {
            let found = words.iter().find(|(word, _)| *word == text);
            found.map(|&(_, value)| Some(value)).ok_or_else(|| refused(&format_args!("{text:?}")))
        }
        Scalar::Integer(integer) => Err(refused(&integer)),
        Scalar::Float(float) => Err(refused(&float)),
    }
}

pub(super) fn class<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Class>, D::Error> {
    word(input, &CLASSES, "\"real-time\", \"best-effort\" or \"idle\"")
}

pub(super) fn when_full<'de, D: Deserializer<'de>>(input: D) -> Result<Option<WhenFull>, D::Error> {
    word(input, &WHEN_FULL, "\"demote\" or \"refuse\"")
}

pub(super) fn prefetch_depth<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Bytes>, D::Error> {
    size(input, Bytes::ZERO..=Bytes::from_mib(1024)).map(Some)
}

pub(super) fn allocation_window<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Bytes>, D::Error> {
    size(input, Bytes::from_mib(8)..=Bytes::from_mib(1024)).map(Some)
}

// The other way.

fn show_word<T: PartialEq>(words: &'static [(&'static str, T)], value: &T) -> &'static str {
    words.iter().find(|(_, known)| known == value).map_or("", |(word, _)| word)
}

/// "" for metadata, which no file is.
pub(super) fn show_class(class: Class) -> &'static str {
    show_word(&CLASSES, &class)
}

pub(super) fn show_when_full(what: WhenFull) -> &'static str {
    show_word(&WHEN_FULL, &what)
}

/// In the largest of the `units` that takes no decimals, or with decimals in the smallest.
fn show(value: u64, units: &[(&str, u64)]) -> String {
    let whole = units.iter().filter(|(_, factor)| value.is_multiple_of(*factor));
    match whole.max_by_key(|(_, factor)| *factor) {
        Some((unit, factor)) if value > 0 => format!("{} {unit}", value / factor),
        Some(_) => format!("0 {}", units[0].0),
        None => format!("{}.{:03} {}", value / units[0].1, value % units[0].1, units[0].0),
    }
}

pub(super) fn show_bytes(bytes: Bytes) -> String {
    show(bytes.0, &BYTES[..5])
}

pub(super) fn show_bitrate(rate: Bitrate) -> String {
    show(rate.0, &BITS_PER_SECOND[..5])
}

pub(super) fn show_duration(duration: Duration) -> String {
    show(nanos(duration), &NANOSECONDS[..3])
}

/// With decimals, in the largest unit that is not larger.
fn show_decimal(value: u64, units: &[(&str, u64)]) -> String {
    let fitting = units.iter().filter(|(_, factor)| *factor <= value.max(1));
    let (unit, factor) = fitting.max_by_key(|(_, factor)| *factor).unwrap_or(&units[0]);
    let digits = factor.ilog10() as usize;
    let number = format!("{}.{:0digits$}", value / factor, value % factor);
    format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
}

/// A time, to the nanosecond from 1 µs on.
pub(super) fn show_time(time: Duration) -> String {
    show_decimal(nanos(time), &NANOSECONDS[..3])
}

/// A rate of transfers, to the byte per second.
pub(super) fn show_byte_rate(rate: Bitrate) -> String {
    let bytes = [("kB/s", 1_000), ("MB/s", 1_000_000), ("GB/s", 1_000_000_000)];
    show_decimal(rate.bytes_per_second().0, &bytes)
}

pub(super) fn show_frames_per_second(period: Duration) -> String {
    let rounded = format!("{:.3}", 1.0 / period.as_secs_f64());
    rounded.trim_end_matches('0').trim_end_matches('.').to_owned()
}
/// Reads what is to be logged: a level for all, or several `part=level` separated by commas. Gives back each with its part, if it has one.
///
/// # Errors
/// One line that says what it may be.
pub fn parse_log_levels(text: &str) -> Result<Vec<(Option<&str>, &str)>, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let read = |directive: &'_ str| -> Result<(), String> {
        if LEVELS.contains(&directive) {
            return Ok(());
        }
        Err(format!("`{directive}` is none of {}", LEVELS.join(", ")))
    };
    let directives = text.split(',').map(str::trim);
    let split = directives.map(|directive| match directive.split_once('=') {
        Some((part, level)) => read(level).map(|()| (Some(part), level)),
        None => read(directive).map(|()| (None, directive)),
    });
    split.collect()
}

pub(super) fn listen<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Listen>, D::Error> {
    let text = String::deserialize(input)?;
    let expected = "expected a loopback address with its port, such as \"127.0.0.1:9750\" or \"[::1]:9750\", or the absolute path of a Unix socket";
    if text.starts_with('/') {
        return Ok(Some(Listen::Socket(text.into())));
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(Some(Listen::Loopback(address))),
        Ok(address) => Err(D::Error::custom(format_args!(
            "{address} can be reached by other hosts, which nothing here keeps out: {expected}"
        ))),
        Err(_) => Err(D::Error::custom(format_args!("{text:?}: {expected}"))),
    }
}

pub(super) fn log_levels<'de, D: Deserializer<'de>>(input: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(input)?;
    parse_log_levels(&text).map_err(D::Error::custom)?;
    Ok(Some(text))
}
