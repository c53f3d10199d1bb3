//! The ioctls that every filesystem of Linux has: chattr(1), labels, shutdown.
//!
//! **For:** bytes to calls of the volume and back. **Excludes:** what applications say of their streams
//! ([`crate::application`]). **State:** none. **Invariants:** structures and numbers are those of linux/fs.h; no bytes make it
//! panic; who may set flags was checked by the kernel, who may do something to the whole volume is checked here.

use avfs_core::Error;
use avfs_core::error::Result;
use avfs_core::types::{Caller, InodeFlags};
use avfs_core::volume::{Done, StopAfter, Volume};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use units::{Bytes, Ino};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    GetFlags,
    SetFlags,
    GetExtendedFlags,
    SetExtendedFlags,
    GetLabel,
    SetLabel,
    Shutdown,
    Trim,
}

/// `struct fsxattr`
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ExtendedFlags {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// `struct fstrim_range`
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct TrimRange {
    start: u64,
    length: u64,
    shortest: u64,
}

/// Bytes that a label has here, with its NUL.
const LABEL_BYTES: usize = 256;

/// A flag, as FS_*_FL and as FS_XFLAG_*.
const FLAGS: [(InodeFlags, u32, u32); 4] = [
    (InodeFlags::IMMUTABLE, 0x10, 0x08),
    (InodeFlags::APPEND_ONLY, 0x20, 0x10),
    (InodeFlags::NO_DUMP, 0x40, 0x80),
    (InodeFlags::NO_ATIME, 0x80, 0x40),
];

const CAP_SYS_ADMIN: u32 = 21;

/// `_IOC` of asm-generic/ioctl.h: 1 writes, 2 reads.
const fn number(direction: u32, kind: u8, number: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (kind as u32) << 8 | number
}

impl Command {
    pub(crate) fn of(command: u32) -> Option<Self> {
        const COMMANDS: [(u32, Command); 8] = [
            (number(2, b'f', 1, 8), Command::GetFlags),
            (number(1, b'f', 2, 8), Command::SetFlags),
            (number(2, b'X', 31, size_of::<ExtendedFlags>()), Command::GetExtendedFlags),
            (number(1, b'X', 32, size_of::<ExtendedFlags>()), Command::SetExtendedFlags),
            (number(2, 0x94, 49, LABEL_BYTES), Command::GetLabel),
            (number(1, 0x94, 50, LABEL_BYTES), Command::SetLabel),
            (number(2, b'X', 125, 4), Command::Shutdown),
            (number(3, b'X', 121, size_of::<TrimRange>()), Command::Trim),
        ];
        COMMANDS.iter().find(|(number, _)| *number == command).map(|(_, command)| *command)
    }
}

/// Does it. `argument`: the address that the caller gave.
pub(crate) fn perform(
    volume: &Volume,
    command: Command,
    ino: Ino,
    caller: Caller,
    argument: u64,
    input: &[u8],
    done: Done<Vec<u8>>,
) {
    match command {
        Command::GetFlags => {
            let flags = volume.flags(ino);
            done(flags.map(|flags| to_bits(flags, |(_, bit, _)| *bit).to_ne_bytes().to_vec()));
        }
        Command::GetExtendedFlags => done(volume.flags(ino).map(|flags| {
            let flags = to_bits(flags, |(_, _, bit)| *bit);
            ExtendedFlags { flags, ..Default::default() }.as_bytes().to_vec()
        })),
        Command::SetFlags => done(set_flags(volume, ino, input)),
        Command::SetExtendedFlags => done(set_extended_flags(volume, ino, input)),
        Command::GetLabel => {
            let mut label = volume.label().into_bytes();
            label.resize(LABEL_BYTES, 0);
            done(Ok(label));
        }
        Command::SetLabel => match label(caller, input) {
            Ok(label) => volume.set_label(label, without_answer(done)),
            Err(error) => done(Err(error)),
        },
        Command::Shutdown => match stop_after(caller, argument) {
            Ok(first) => volume.stop_writing(first, without_answer(done)),
            Err(error) => done(Err(error)),
        },
        Command::Trim => match trim_range(caller, input) {
            Ok(asked) => {
                let bytes = asked.start..asked.start.saturating_add(asked.length);
                let answer = move |trimmed: Result<u64>| {
                    done(trimmed.map(|length| TrimRange { length, ..asked }.as_bytes().to_vec()));
                };
                volume.trim(bytes, Bytes(asked.shortest), Box::new(answer));
            }
            Err(error) => done(Err(error)),
        },
    }
}

fn trim_range(caller: Caller, input: &[u8]) -> Result<TrimRange> {
    check_administrator(caller)?;
    TrimRange::read_from_bytes(input).map_err(|_| Error::InvalidArgument)
}

fn without_answer(done: Done<Vec<u8>>) -> Done<()> {
    Box::new(move |result| done(result.map(|()| Vec::new())))
}

fn to_bits(flags: InodeFlags, bit: impl Fn(&(InodeFlags, u32, u32)) -> u32) -> u32 {
    FLAGS.iter().filter(|row| flags.contains(row.0)).map(bit).sum()
}

/// # Errors
/// `Unsupported` for bits that mean nothing here.
fn from_bits(bits: u32, bit: impl Fn(&(InodeFlags, u32, u32)) -> u32) -> Result<InodeFlags> {
    let known: u32 = FLAGS.iter().map(&bit).sum();
    if bits & !known != 0 {
        return Err(Error::Unsupported);
    }
    Ok(FLAGS.iter().filter(|row| bits & bit(row) != 0).map(|row| row.0).collect())
}

/// The kernel sends half of the long that the number speaks of.
fn set_flags(volume: &Volume, ino: Ino, input: &[u8]) -> Result<Vec<u8>> {
    let (bits, _) = u32::read_from_prefix(input).map_err(|_| Error::InvalidArgument)?;
    volume.set_flags(ino, from_bits(bits, |(_, bit, _)| *bit)?).map(|()| Vec::new())
}

fn set_extended_flags(volume: &Volume, ino: Ino, input: &[u8]) -> Result<Vec<u8>> {
    let asked = ExtendedFlags::read_from_bytes(input).map_err(|_| Error::InvalidArgument)?;
    if asked.extent_size != 0 || asked.project != 0 || asked.cow_extent_size != 0 {
        return Err(Error::Unsupported);
    }
    volume.set_flags(ino, from_bits(asked.flags, |(_, _, bit)| *bit)?).map(|()| Vec::new())
}

/// The label that is to be set.
fn label(caller: Caller, input: &[u8]) -> Result<&str> {
    check_administrator(caller)?;
    let end = input.iter().position(|&byte| byte == 0).ok_or(Error::InvalidArgument)?;
    std::str::from_utf8(&input[..end]).map_err(|_| Error::InvalidArgument)
}

/// What FS_IOC_SHUTDOWN wants durable first. Its number says that it only tells, so the kernel does not bring what the address
/// that it names holds; it is read where it lies, in the memory of the caller, who waits.
fn stop_after(caller: Caller, argument: u64) -> Result<StopAfter> {
    check_administrator(caller)?;
    let mut how = [0; 4];
    let memory = File::open(format!("/proc/{}/mem", caller.process)).map_err(|_| Error::InvalidArgument)?;
    memory.read_exact_at(&mut how, argument).map_err(|_| Error::InvalidArgument)?;
    match u32::from_ne_bytes(how) {
        0 => Ok(StopAfter::Everything),
        1 => Ok(StopAfter::Log),
        2 => Ok(StopAfter::Nothing),
        _ => Err(Error::InvalidArgument),
    }
}

/// Root alone is not enough: a container's root has the same number.
///
/// # Errors
/// `NotPermitted` without CAP_SYS_ADMIN, and where the caller's process cannot be seen from here.
fn check_administrator(caller: Caller) -> Result<()> {
    let status = fs::read_to_string(format!("/proc/{}/status", caller.process)).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    if caller.process != 0 && effective >> CAP_SYS_ADMIN & 1 == 1 { Ok(()) } else { Err(Error::NotPermitted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        let commands = [
            (0x8008_6601, Command::GetFlags),
            (0x4008_6602, Command::SetFlags),
            (0x801c_581f, Command::GetExtendedFlags),
            (0x401c_5820, Command::SetExtendedFlags),
            (0x8100_9431, Command::GetLabel),
            (0x4100_9432, Command::SetLabel),
            (0x8004_587d, Command::Shutdown),
            (0xc018_5879, Command::Trim),
        ];
        for (number, command) in commands {
            assert_eq!(Command::of(number), Some(command), "{command:?}");
        }
        assert_eq!(Command::of(0x8008_6602), None);
    }

    #[test]
    fn flags_come_back_and_unknown_ones_are_refused() {
        for bits in 0..16 {
            let flags = InodeFlags::from_bits(bits).unwrap();
            assert_eq!(from_bits(to_bits(flags, |row| row.1), |row| row.1), Ok(flags));
            assert_eq!(from_bits(to_bits(flags, |row| row.2), |row| row.2), Ok(flags));
        }
        // FS_SYNC_FL and FS_XFLAG_PROJINHERIT.
        assert_eq!(from_bits(0x8, |row| row.1), Err(Error::Unsupported));
        assert_eq!(from_bits(0x200, |row| row.2), Err(Error::Unsupported));
    }

    #[test]
    fn a_label_ends_with_a_nul_and_is_text() {
        let root = Caller { process: std::process::id(), ..Caller::default() };
        if check_administrator(root).is_err() {
            eprintln!("not tested: this is not root");
            return;
        }
        assert_eq!(label(root, b"season 4\0rest"), Ok("season 4"));
        assert_eq!(label(root, b"no end"), Err(Error::InvalidArgument));
        assert_eq!(label(root, b"\xff\0"), Err(Error::InvalidArgument));
        assert_eq!(label(Caller::default(), b"x\0"), Err(Error::NotPermitted));
    }
}
