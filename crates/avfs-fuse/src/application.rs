//! What applications say of their open files and ask of them: the ioctls of `include/avfs/avfs.h`.
//!
//! **For:** bytes to calls of the volume and back. **Excludes:** what a declaration does. **State:** none.
//! **Invariants:** structures, numbers and names are those of the header; no bytes make it panic; what is not known to
//! mean anything is refused, so that it can mean something later.

use avfs_core::Error;
use avfs_core::error::Result;
use avfs_core::types::{Caller, Declaration, HandleId, StreamLack, StreamReport, StreamService};
use avfs_core::volume::Volume;
use std::time::Duration;
use units::Bitrate;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `AVFS_INTERFACE_VERSION`
const VERSION: u32 = 1;
/// `AVFS_STATUS_HAS_SLACK`
const HAS_SLACK: u32 = 1;

const DECLARE: u32 = number(WRITE | READ, 0x41, size_of::<Stream>());
const DEADLINE: u32 = number(WRITE, 0x42, size_of::<Deadline>());
const STATUS: u32 = number(READ, 0x43, size_of::<Status>());

/// The application gives a structure (`_IOC_WRITE`).
const WRITE: u32 = 1;
/// It gets one (`_IOC_READ`).
const READ: u32 = 2;

/// `_IOC` of asm-generic/ioctl.h with this interface's type.
const fn number(direction: u32, number: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | 0xaf << 8 | number
}

/// `struct avfs_stream`
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Stream {
    version: u32,
    flags: u32,
    bits_per_second: u64,
    period_us: u64,
    state: u32,
    lack: u32,
    reserved_bits_per_second: u64,
    fits_bits_per_second: u64,
    reserved: [u64; 2],
}

/// `struct avfs_deadline`
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Deadline {
    version: u32,
    flags: u32,
    within_us: u64,
    reserved: [u64; 2],
}

/// `struct avfs_status`
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Status {
    version: u32,
    state: u32,
    lack: u32,
    flags: u32,
    reserved_bits_per_second: u64,
    completed: u64,
    missed: u64,
    tardiness_us: u64,
    slack_us: i64,
    reserved: [u64; 3],
}

/// Answers an ioctl of an open file (`None`: a directory): what the application gave, at most `room` bytes back.
///
/// # Errors
/// As the header says.
pub(crate) fn ioctl(
    volume: &Volume,
    caller: Caller,
    handle: Option<HandleId>,
    command: u32,
    input: &[u8],
    room: usize,
) -> Result<Vec<u8>> {
    let handle = handle.ok_or(Error::UnknownIoctl)?;
    let answer = match command {
        DECLARE => declare(volume, caller, handle, read(input)?)?.as_bytes().to_vec(),
        DEADLINE => {
            let Deadline { version, flags, within_us, reserved } = read(input)?;
            check(version, flags, &reserved)?;
            volume.set_read_deadline(handle, Duration::from_micros(within_us))?;
            Vec::new()
        }
        STATUS => status(volume.stream_status(handle)?.as_ref()).as_bytes().to_vec(),
        _ => return Err(Error::UnknownIoctl),
    };
    if answer.len() <= room { Ok(answer) } else { Err(Error::InvalidArgument) }
}

fn read<T: FromBytes>(input: &[u8]) -> Result<T> {
    T::read_from_bytes(input).map_err(|_| Error::InvalidArgument)
}

fn check(version: u32, flags: u32, reserved: &[u64]) -> Result<()> {
    let known = version == VERSION && flags == 0 && reserved.iter().all(|field| *field == 0);
    if known { Ok(()) } else { Err(Error::InvalidArgument) }
}

fn declare(volume: &Volume, caller: Caller, handle: HandleId, asked: Stream) -> Result<Stream> {
    check(asked.version, asked.flags, &asked.reserved)?;
    let declaration = Declaration {
        rate: (asked.bits_per_second != 0).then_some(Bitrate(asked.bits_per_second)),
        period: (asked.period_us != 0).then(|| Duration::from_micros(asked.period_us)),
    };
    let stream = volume.declare(caller, handle, declaration)?;
    let report = stream.as_ref();
    Ok(Stream {
        state: state(report),
        lack: lack(report),
        reserved_bits_per_second: reserved(report),
        fits_bits_per_second: report.and_then(|stream| stream.fits_bits_per_second).unwrap_or(0),
        ..asked
    })
}

fn status(report: Option<&StreamReport>) -> Status {
    let slack = report.and_then(|stream| stream.slack_microseconds);
    Status {
        version: VERSION,
        state: state(report),
        lack: lack(report),
        flags: if slack.is_some() { HAS_SLACK } else { 0 },
        reserved_bits_per_second: reserved(report),
        completed: report.map_or(0, |stream| stream.completed),
        missed: report.map_or(0, |stream| stream.missed),
        tardiness_us: report.map_or(0, |stream| stream.tardiness_microseconds),
        slack_us: slack.unwrap_or(0),
        reserved: [0; 3],
    }
}

/// `enum avfs_state`
fn state(report: Option<&StreamReport>) -> u32 {
    match report.map(|stream| stream.state) {
        None => 0,
        Some(StreamService::Admitted) => 1,
        Some(StreamService::Paused) => 2,
        Some(StreamService::Demoted) => 3,
        Some(StreamService::Waiting) => 4,
    }
}

/// `enum avfs_lack`
fn lack(report: Option<&StreamReport>) -> u32 {
    match report.and_then(|stream| stream.lacking) {
        None => 0,
        Some(StreamLack::Time) => 1,
        Some(StreamLack::Deadline) => 2,
        Some(StreamLack::Memory) => 3,
        Some(StreamLack::Congestion) => 4,
        Some(StreamLack::Sense) => 5,
        Some(StreamLack::Share) => 6,
    }
}

fn reserved(report: Option<&StreamReport>) -> u64 {
    let held = report.filter(|stream| stream.state != StreamService::Waiting);
    held.map_or(0, |stream| stream.bits_per_second)
}
