//! `/dev/fuse` and mount(2): attaching a filesystem to a directory, and what the kernel says of mounts.

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use fuse_wire::MAX_REQUEST_BYTES;

/// Filesystem type in the kernel's tables.
pub const FILESYSTEM_TYPE: &str = "fuse.avfs";

/// Largest request the kernel makes, in pages; without it a read of 8 MiB arrives as eight.
const PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
const PAGES_WANTED: u32 = MAX_REQUEST_BYTES / 4096;

/// A device number as the kernel prints it: `major:minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl DeviceNumber {
    /// Takes `st_dev` or `st_rdev` apart.
    pub fn from_raw(raw: u64) -> Self {
        Self { major: rustix::fs::major(raw), minor: rustix::fs::minor(raw) }
    }

    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl std::fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// Lets the kernel make requests of 16 MiB on the connections that are opened from now on. Kernels before 6.13
/// have no such limit to raise; they make requests of 1 MiB.
pub fn raise_pages_limit() {
    let Ok(text) = fs::read_to_string(PAGES_LIMIT) else { return };
    match text.trim().parse::<u32>() {
        Ok(limit) if limit < PAGES_WANTED => match fs::write(PAGES_LIMIT, PAGES_WANTED.to_string()) {
            Ok(()) => tracing::info!("raised fs.fuse.max_pages_limit from {limit} to {PAGES_WANTED}"),
            Err(error) => tracing::warn!(
                %error,
                "fs.fuse.max_pages_limit stays at {limit}: large requests will be split. \
                 Set it to {PAGES_WANTED} with sysctl"
            ),
        },
        _ => {}
    }
}

/// Opens a connection to the kernel and mounts it at `directory`, to be shown as `source`. Every user may use the
/// mount; the kernel checks permissions.
///
/// # Errors
/// What open(2) of `/dev/fuse` and mount(2) say.
pub fn mount(source: &Path, directory: &Path, flags: MountFlags) -> io::Result<OwnedFd> {
    let connection = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other,max_read={MAX_REQUEST_BYTES}",
        connection.as_raw_fd(),
    );
    let data = CString::new(data).expect("digits and words have no NUL");
    rustix::mount::mount(source, directory, FILESYSTEM_TYPE, flags, data.as_c_str())?;
    Ok(connection)
}

/// Whether the kernel still has the filesystem of this connection. It lets go in the same moment in which the last
/// umount(2) returns, before anybody who reads from the connection notices.
pub fn is_connected(connection: impl AsFd) -> bool {
    let mut poll = [PollFd::new(&connection, PollFlags::empty())];
    let polled = rustix::event::poll(&mut poll, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_ok() && !poll[0].revents().contains(PollFlags::ERR)
}

/// Changes the flags of a mount and of its filesystem.
///
/// # Errors
/// What mount(2) says: EBUSY when files are open for writing and `flags` has RDONLY.
pub fn remount(directory: &Path, flags: MountFlags) -> io::Result<()> {
    Ok(rustix::mount::mount_remount(directory, flags, "")?)
}

/// Mounts a directory of the filesystem that is mounted at `directory` in its place, with the same flags. If it cannot
/// be cloned, everything stays as it is.
///
/// # Errors
/// When nothing is mounted there any more.
pub(crate) fn replace_with_child(directory: &Path, child: &str) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let clone = match rustix::mount::open_tree(CWD, directory.join(child), flags) {
        Ok(clone) => clone,
        Err(error) => {
            tracing::warn!(%error, "the root of the mount is shown itself: the kernel asks for its ACL each time");
            return Ok(());
        }
    };
    unmount(directory, UnmountFlags::DETACH)?;
    let into = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(clone, "", CWD, directory, into)?)
}

/// Unmounts `directory`. With DETACH it disappears at once, and the filesystem ends with its last open file; with
/// FORCE what clients wait for fails.
///
/// # Errors
/// What umount(2) says: EBUSY when it is in use and `flags` has no DETACH.
pub fn unmount(directory: &Path, flags: UnmountFlags) -> io::Result<()> {
    Ok(rustix::mount::unmount(directory, UnmountFlags::NOFOLLOW | flags)?)
}

/// One line of the kernel's table of mounts (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// `st_dev` of its files.
    pub device: DeviceNumber,
    /// Where.
    pub directory: PathBuf,
    /// Type, with subtype.
    pub filesystem: String,
    /// What the mount says it shows.
    pub source: PathBuf,
}

impl MountEntry {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
        let device = DeviceNumber::parse(std::str::from_utf8(fields.nth(2)?).ok()?)?;
        let directory = unescape(fields.nth(1)?);
        fields.find(|field| *field == b"-")?;
        let filesystem = String::from_utf8(fields.next()?.to_vec()).ok()?;
        let source = unescape(fields.next()?);
        Some(Self { device, directory, filesystem, source })
    }
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let escaped = match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if first == b'\\' => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// What is mounted, as this process sees it.
///
/// # Errors
/// When `/proc` is not there.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|&byte| byte == b'\n').filter_map(MountEntry::parse).collect())
}

/// Whether fstab(5) has an AVFS volume for `directory`. False when the table cannot be read.
pub fn is_in_fstab(directory: &Path) -> bool {
    fs::read("/etc/fstab").is_ok_and(|table| fstab_names(&table, directory))
}

fn fstab_names(table: &[u8], directory: &Path) -> bool {
    table.split(|&byte| byte == b'\n').any(|line| {
        let mut fields = line.split(|&byte| byte == b' ' || byte == b'\t').filter(|field| !field.is_empty());
        let spec = fields.next();
        let named = fields.next().is_some_and(|field| unescape(field) == directory);
        let filesystem = fields.next();
        spec.is_some_and(|spec| !spec.starts_with(b"#"))
            && named
            && filesystem
                .is_some_and(|filesystem| filesystem == b"avfs" || filesystem == FILESYSTEM_TYPE.as_bytes())
    })
}

/// Where `device`, the `st_dev` of a mounted filesystem, is mounted, if it is.
///
/// # Errors
/// When `/proc` is not there.
pub fn mounted_on(device: DeviceNumber) -> io::Result<Option<PathBuf>> {
    Ok(mounts()?.into_iter().find(|entry| entry.device == device).map(|entry| entry.directory))
}

/// The path in one line of text for messages, whatever bytes it has.
pub fn printable(path: &Path) -> String {
    path.as_os_str().as_bytes().escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_fstab_is_understood() {
        let table = b"# /dev/sdb /commented avfs defaults 0 0\n\nUUID=1 / ext4 defaults 0 1\n\
            \tLABEL=season\t/srv/my\\040media avfs noatime\n/dev/sdc /srv/other fuse.avfs\n/dev/sdd /srv/xfs xfs";
        for (directory, named) in [
            ("/srv/my media", true),
            ("/srv/other", true),
            ("/srv/xfs", false),
            ("/commented", false),
            ("/", false),
        ] {
            assert_eq!(fstab_names(table, Path::new(directory)), named, "{directory}");
        }
    }

    #[test]
    fn a_line_of_mountinfo_is_understood() {
        let line =
            br"36 35 0:45 / /mnt/with\040space rw,nosuid shared:1 master:2 - fuse.avfs /dev/sd\134b rw,x";
        let expected = MountEntry {
            device: DeviceNumber { major: 0, minor: 45 },
            directory: "/mnt/with space".into(),
            filesystem: "fuse.avfs".into(),
            source: r"/dev/sd\b".into(),
        };
        assert_eq!(MountEntry::parse(line), Some(expected));
    }

    #[test]
    fn lines_that_are_not_mounts_are_passed_over() {
        for line in [&b""[..], b"36 35", b"36 35 0:x / / rw - a b", b"36 35 0:4 / / rw no separator"] {
            assert_eq!(MountEntry::parse(line), None);
        }
    }

    #[test]
    fn a_backslash_without_three_digits_stands_for_itself() {
        assert_eq!(unescape(br"a\12"), PathBuf::from(r"a\12"));
        assert_eq!(unescape(br"\999\101"), PathBuf::from(r"\999A"));
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(mounts().unwrap().iter().any(|entry| entry.directory == Path::new("/")));
    }
}
