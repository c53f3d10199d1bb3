//! `/dev/fuse` and the system calls of mounts: making a filesystem, attaching it to a directory, and what the kernel says
//! of mounts.

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MountFlags, MountPropagationFlags,
    MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_create_exclusive,
    fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, fspick, mount_change,
    move_mount, open_tree,
};
use rustix::thread::UnshareFlags;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::thread;

use crate::loop_device;
pub use crate::loop_device::DeviceNumber;
use fuse_wire::MAX_REQUEST_BYTES;

/// Filesystem type in the kernel's tables: with a block device, and without.
const FILESYSTEM_TYPES: [&str; 2] = ["fuseblk.avfs", "fuse.avfs"];

/// Largest request the kernel makes, in pages; without it a read of 8 MiB arrives as eight.
const PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
const PAGES_WANTED: u32 = MAX_REQUEST_BYTES / 4096;

/// Lets the kernel make requests of 16 MiB of the filesystems that are made from now on. Kernels before 6.13 have no such
/// limit to raise; they make requests of 1 MiB.
///
/// # Errors
/// One line for the operator.
pub fn raise_pages_limit() -> Result<(), String> {
    let Ok(text) = fs::read_to_string(PAGES_LIMIT) else { return Ok(()) };
    match text.trim().parse::<u32>() {
        Ok(limit) if limit < PAGES_WANTED => {
            fs::write(PAGES_LIMIT, PAGES_WANTED.to_string()).map_err(|error| {
                format!(
                    "fs.fuse.max_pages_limit stays at {limit} ({error}): large requests will be split. \
                     Set it to {PAGES_WANTED} with sysctl"
                )
            })
        }
        _ => Ok(()),
    }
}

/// What the kernel takes a filesystem for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// That of a block device, `fuseblk`: the kernel holds the device as it does for its own filesystems, passes sync(1) and
    /// syncfs(2) on, and the last umount(2) returns when everything is written.
    OfDevice,
    /// `fuse`: none of this.
    Plain,
}

/// A filesystem that the kernel has made and no directory shows. When the last descriptor of its tree is closed, the
/// kernel lets go of it.
#[derive(Debug)]
pub struct Filesystem {
    connection: OwnedFd,
    tree: Tree,
    device: DeviceNumber,
}

/// The detached mount of a [`Filesystem`].
#[derive(Debug)]
pub struct Tree(OwnedFd);

/// Under this name the volume's root can be found in the root of the filesystem, which nothing shows: see [`Tree::attach`].
pub(crate) const ROOT_NAME: &str = "volume";
/// The same as the kernel's table of mounts has it.
const ROOT_PATH: &str = "/volume";

/// Descriptors of trees begin here, behind those of connections. A process that dies closes its descriptors in turn, and
/// closing the last one of a tree waits for an answer over the connection, unless that was closed before.
const FIRST_TREE: i32 = 256;

impl Filesystem {
    /// Makes a filesystem, to be shown as `source`, which is a block device if it is [`Kind::OfDevice`]. Every user may use
    /// it; the kernel checks permissions. Requests wait until a session serves the connection.
    ///
    /// # Errors
    /// What the kernel says: EBUSY when something else holds the device.
    pub fn make(source: &Path, flags: MountFlags, kind: Kind) -> io::Result<Self> {
        let connection = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let context = fsopen(
            match kind {
                Kind::OfDevice => "fuseblk",
                Kind::Plain => "fuse",
            },
            FsOpenFlags::FSOPEN_CLOEXEC,
        )?;
        let set = |key: &str, value: &str| fsconfig_set_string(&context, key, value);
        fsconfig_set_string(&context, "source", source)?;
        set("subtype", "avfs")?;
        set("fd", &connection.as_raw_fd().to_string())?;
        set("rootmode", "40000")?;
        set("user_id", "0")?;
        set("group_id", "0")?;
        set("max_read", &MAX_REQUEST_BYTES.to_string())?;
        if kind == Kind::OfDevice {
            set("blksize", "4096")?;
        }
        fsconfig_set_flag(&context, "default_permissions")?;
        fsconfig_set_flag(&context, "allow_other")?;
        let superblock_flags =
            [(MountFlags::RDONLY, "ro"), (MountFlags::SYNCHRONOUS, "sync"), (MountFlags::DIRSYNC, "dirsync")];
        for (_, name) in superblock_flags.iter().filter(|(flag, _)| flags.contains(*flag)) {
            fsconfig_set_flag(&context, *name)?;
        }
        match kind {
            // Otherwise a filesystem whose daemon died, but which is still in use, would be given out once more.
            Kind::OfDevice => create_alone(&context)?,
            Kind::Plain => fsconfig_create(&context)?,
        }
        let tree = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(flags))?;
        let tree = rustix::io::fcntl_dupfd_cloexec(&tree, FIRST_TREE)?;
        // The filesystem does not answer yet, and is not asked.
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(&tree, "", how, StatxFlags::TYPE)?;
        let device = DeviceNumber { major: found.stx_dev_major, minor: found.stx_dev_minor };
        Ok(Self { connection, tree: Tree(tree), device })
    }

    /// `st_dev` of its files.
    pub fn device(&self) -> DeviceNumber {
        self.device
    }

    /// The end that a session serves, and what a directory is to show.
    pub fn split(self) -> (OwnedFd, Tree) {
        (self.connection, self.tree)
    }
}

/// Makes the filesystem unless the kernel has one of this device. Kernels before 6.6 cannot be asked for that.
fn create_alone(context: &OwnedFd) -> io::Result<()> {
    match fsconfig_create_exclusive(context) {
        Err(Errno::OPNOTSUPP | Errno::INVAL) => Ok(fsconfig_create(context)?),
        result => Ok(result?),
    }
}

/// Whether what holds this block device is a filesystem of FUSE that nothing serves any more: its daemon died, and files
/// of it are still open. It never touches the device.
pub fn is_held_by_the_dead(device: &Path) -> bool {
    let found = || -> io::Result<bool> {
        let connection = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let context = fsopen("fuseblk", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, "source", device)?;
        for (key, value) in [
            ("fd", &*connection.as_raw_fd().to_string()),
            ("rootmode", "40000"),
            ("user_id", "0"),
            ("group_id", "0"),
        ] {
            fsconfig_set_string(&context, key, value)?;
        }
        // Gives out what there is. If there is nothing, a new one, which has not failed.
        fsconfig_create(&context)?;
        let tree = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let is_new = is_connected(&connection);
        Ok(!is_new && matches!(rustix::fs::fstatfs(&tree), Err(Errno::NOTCONN)))
    };
    found().unwrap_or(false)
}

fn attributes(flags: MountFlags) -> MountAttrFlags {
    [
        (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
        (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (MountFlags::NOATIME, MountAttrFlags::MOUNT_ATTR_NOATIME),
        (MountFlags::STRICTATIME, MountAttrFlags::MOUNT_ATTR_STRICTATIME),
        (MountFlags::NODIRATIME, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
    ]
    .into_iter()
    .filter(|(flag, _)| flags.contains(*flag))
    .fold(MountAttrFlags::empty(), |all, (_, attribute)| all | attribute)
}

impl Tree {
    /// Shows the volume at `directory`, once the filesystem has answered: everything is made ready out of sight, and attached
    /// with one call. So the directory shows what is below it, or the volume, and nothing else in between.
    ///
    /// What is shown is a directory of the filesystem instead of its own root. The kernel makes that one before it hears, in the
    /// answer to INIT, that this filesystem has ACLs, and from then on asks for its ACL each time: whoever does not own the root
    /// would make a request at every step through it, and no walk of a path could go without locks. A directory looked up
    /// afterwards is like any other.
    ///
    /// `read_only`: also if the filesystem was made to be written.
    ///
    /// # Errors
    /// When the filesystem does not answer, or the kernel cannot attach it there.
    pub fn attach(self, directory: &Path, read_only: bool) -> io::Result<()> {
        let shown = match clone_tree(&self.0, ROOT_NAME) {
            // Kernels before 6.15 clone what is attached somewhere only.
            Err(Errno::INVAL) => clone_attached(&self.0)?,
            result => result?,
        };
        if read_only {
            change_attributes(&shown, MountAttrFlags::MOUNT_ATTR_RDONLY.bits().into(), 0)?;
        }
        // The first request, to the end: what mount(8) waits for.
        rustix::fs::fstatvfs(&shown)?;
        Ok(move_mount(&shown, "", CWD, directory, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
    }
}

fn clone_tree(at: impl AsFd, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    open_tree(at, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
}

/// Attaches `tree` where nobody sees it, in a mount namespace that lasts as long as a thread, and clones from there.
fn clone_attached(tree: &OwnedFd) -> io::Result<OwnedFd> {
    const ANYWHERE: &str = "/dev";
    let cloned = thread::scope(|scope| {
        let in_namespace = || -> io::Result<OwnedFd> {
            // SAFETY: of what is unshared only CLONE_FILES would be dangerous to other threads, and it is not.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            move_mount(tree, "", CWD, ANYWHERE, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
            Ok(clone_tree(CWD, Path::new(ANYWHERE).join(ROOT_NAME))?)
        };
        scope.spawn(in_namespace).join()
    });
    cloned.map_err(|_| io::Error::other("the thread that attaches the mount panicked"))?
}

/// Shows at `directory` what `place` shows, with `flags` of its own.
///
/// # Errors
/// What the kernel says.
pub fn bind(place: &Path, directory: &Path, flags: MountFlags) -> io::Result<()> {
    let shown = clone_tree(CWD, place)?;
    set_attributes(&shown, flags)?;
    Ok(move_mount(&shown, "", CWD, directory, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Sets the flags of a mount, as far as they are its own and not the filesystem's.
fn set_attributes(tree: &OwnedFd, flags: MountFlags) -> io::Result<()> {
    let all = libc::MOUNT_ATTR_RDONLY
        | libc::MOUNT_ATTR_NOSUID
        | libc::MOUNT_ATTR_NODEV
        | libc::MOUNT_ATTR_NOEXEC
        | libc::MOUNT_ATTR__ATIME
        | libc::MOUNT_ATTR_NODIRATIME;
    change_attributes(tree, attributes(flags).bits().into(), all)
}

fn change_attributes(tree: &OwnedFd, attr_set: u64, attr_clr: u64) -> io::Result<()> {
    let attr = libc::mount_attr { attr_set, attr_clr, propagation: 0, userns_fd: 0 };
    // SAFETY: the path is an empty string with its NUL, the structure is as large as is said, and both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of_val(&attr),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ends the connection of the filesystem whose files have `st_dev` = `device`: what clients wait for fails with ECONNABORTED,
/// what they ask from then on with ENOTCONN. Nothing that was accepted is lost by it.
///
/// # Errors
/// When there is no such filesystem.
pub fn abort(device: DeviceNumber) -> io::Result<()> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let tree = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    // As the kernel itself packs a device number.
    let connection = device.major << 20 | device.minor;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&tree, format!("{connection}/abort"), flags, Mode::empty())?;
    rustix::io::write(&file, b"1")?;
    Ok(())
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

/// Makes the filesystem whose files have `st_dev` = `device` read-only, wherever it is mounted.
///
/// # Errors
/// What the kernel says: EBUSY while files are open for writing.
pub(crate) fn show_read_only(device: DeviceNumber) -> io::Result<()> {
    let places = mounted_on(device)?;
    let place = places.first().ok_or(io::ErrorKind::NotFound)?;
    let context = fspick(CWD, &place.directory, FsPickFlags::FSPICK_CLOEXEC)?;
    fsconfig_set_flag(&context, "ro")?;
    Ok(fsconfig_reconfigure(&context)?)
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
    /// What of the filesystem it shows.
    pub root: PathBuf,
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
        let root = unescape(fields.next()?);
        let directory = unescape(fields.next()?);
        fields.find(|field| *field == b"-")?;
        let filesystem = String::from_utf8(fields.next()?.to_vec()).ok()?;
        let source = unescape(fields.next()?);
        Some(Self { device, root, directory, filesystem, source })
    }

    /// Whether it is of this filesystem.
    pub fn is_avfs(&self) -> bool {
        FILESYSTEM_TYPES.contains(&&*self.filesystem)
    }

    /// Whether it shows the whole volume, and not one of its directories or files.
    pub fn shows_volume(&self) -> bool {
        self.is_avfs() && self.root == Path::new(ROOT_PATH)
    }

    /// What holds the bytes: the source, or the image file behind it if that is a loop device.
    pub fn backing(&self) -> PathBuf {
        loop_device::backing_file(self.device).unwrap_or_else(|| self.source.clone())
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
            && filesystem.is_some_and(|kind| {
                kind == b"avfs" || FILESYSTEM_TYPES.iter().any(|known| kind == known.as_bytes())
            })
    })
}

/// Where `device`, the `st_dev` of a mounted filesystem, is mounted, in the order in which that was done.
///
/// # Errors
/// When `/proc` is not there.
pub fn mounted_on(device: DeviceNumber) -> io::Result<Vec<MountEntry>> {
    Ok(mounts()?.into_iter().filter(|entry| entry.device == device && entry.is_avfs()).collect())
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
            root: "/".into(),
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
