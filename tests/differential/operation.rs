//! The operations, and how they are made from a seed.

use crate::tree::{Kind, Tree};
use crate::user::{GROUP, User};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};
use std::path::{Path, PathBuf};

/// Files that can be open at a time.
pub(crate) const SLOTS: usize = 6;

/// An operation and who does it. Paths are relative to the root; a slot is an open file.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) user: User,
    pub(crate) operation: Operation,
}

/// What can be done to a filesystem.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Open { slot: usize, path: PathBuf, options: OpenOptions, mode: u32 },
    Close { slot: usize },
    Read { slot: usize, offset: u64, length: usize },
    Write { slot: usize, offset: u64, length: usize, fill: u64 },
    SetLength { slot: usize, size: u64 },
    Allocate { slot: usize, how: Allocation, offset: u64, length: u64 },
    Copy { from: usize, from_offset: u64, slot: usize, offset: u64, length: usize },
    Sync { slot: usize, data_only: bool },
    Stat { slot: usize },
    Truncate { path: PathBuf, size: u64 },
    Rename { from: PathBuf, to: PathBuf, how: Renaming },
    Link { from: PathBuf, to: PathBuf },
    Symlink { target: PathBuf, path: PathBuf },
    Unlink { path: PathBuf },
    MakeDirectory { path: PathBuf, mode: u32 },
    RemoveDirectory { path: PathBuf },
    MakeNode { path: PathBuf, kind: Kind, mode: u32 },
    Access { path: PathBuf, mode: u32 },
    List { path: PathBuf },
    Chmod { path: PathBuf, mode: u32 },
    Chown { path: PathBuf, uid: Option<u32>, gid: Option<u32>, follow: bool },
    SetTimes { path: PathBuf, access: Time, modification: Time },
    SetXattr { path: PathBuf, name: &'static str, value: Vec<u8>, how: XattrSetting },
    GetXattr { path: PathBuf, name: &'static str },
    RemoveXattr { path: PathBuf, name: &'static str },
    Remount,
}

/// The flags of an open.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenOptions {
    pub(crate) write: bool,
    pub(crate) read: bool,
    pub(crate) append: bool,
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
    pub(crate) truncate: bool,
    pub(crate) direct: bool,
    pub(crate) no_follow: bool,
}

/// What a fallocate does. Collapsing and inserting ranges never reaches a filesystem in user space.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Allocation {
    Extend,
    KeepSize,
    PunchHole,
    ZeroRange,
    ZeroRangeKeepSize,
}

/// The flags of a rename.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Renaming {
    Replace,
    NoReplace,
    Exchange,
}

/// What a timestamp is set to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Time {
    Now,
    Omit,
    At { seconds: i64, nanoseconds: i64 },
}

/// The flags of a setxattr.
#[derive(Clone, Copy, Debug)]
pub(crate) enum XattrSetting {
    Either,
    Create,
    Replace,
}

/// An open file, as far as the operations on it depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFile {
    /// Opened with O_DIRECT: offsets, lengths and memory must be aligned to [`DIRECT_ALIGNMENT`].
    pub(crate) direct: bool,
}

/// What both sides agree on, from which operations are made.
pub(crate) struct View<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) open: [Option<OpenFile>; SLOTS],
}

/// Bytes to which direct I/O is aligned.
pub(crate) const DIRECT_ALIGNMENT: usize = 4096;
/// The allocation unit, at whose borders much happens.
const UNIT: u64 = 8 << 20;
/// More names than this and most operations remove some.
const MANY_NAMES: usize = 60;
const DEEPEST: usize = 3;

const XATTRS: [&str; 7] = [
    "user.a",
    "user.DOSATTRIB",
    "user.DosStream.x:$DATA",
    "trusted.t",
    "security.NTACL",
    "user.",
    "nonsense.n",
];
const ACL_ACCESS: &str = "system.posix_acl_access";
const ACL_DEFAULT: &str = "system.posix_acl_default";

/// The stream of operations of one seed.
pub(crate) struct Generator {
    rng: SmallRng,
    /// Whether operations by other users, which need root, are made.
    users: bool,
}

impl Generator {
    pub(crate) fn new(seed: u64, users: bool) -> Self {
        Self { rng: SmallRng::seed_from_u64(seed), users }
    }

    /// The next operation.
    pub(crate) fn next(&mut self, view: &View<'_>) -> Step {
        let operation = self.operation(view);
        let user = match self.rng.random_range(0..10) {
            0 if self.users => User::Editor,
            1 if self.users => User::Assistant,
            _ => User::Own,
        };
        Step { user, operation }
    }

    fn operation(&mut self, view: &View<'_>) -> Operation {
        if view.tree.entries().count() > MANY_NAMES && self.rng.random_bool(0.5) {
            let path = self.existing(view, |_| true);
            return if self.rng.random_bool(0.3) {
                Operation::RemoveDirectory { path }
            } else {
                Operation::Unlink { path }
            };
        }
        match self.rng.random_range(0..1000) {
            0..120 => self.open(view),
            120..150 => Operation::Close { slot: self.slot() },
            150..450 => self.on_open_file(view),
            450..480 => Operation::Truncate { path: self.path(view, Kind::File), size: self.offset() },
            480..560 => self.rename(view),
            560..600 => Operation::Link { from: self.path(view, Kind::File), to: self.fresh(view) },
            600..620 => Operation::Symlink { target: self.target(view), path: self.fresh(view) },
            620..670 => Operation::Unlink { path: self.path(view, Kind::File) },
            670..720 => Operation::MakeDirectory { path: self.fresh(view), mode: self.mode() },
            720..750 => Operation::RemoveDirectory { path: self.path(view, Kind::Directory) },
            750..765 => self.make_node(view),
            765..790 => Operation::Access { path: self.any(view), mode: self.rng.random_range(0..8) },
            790..800 => Operation::List { path: self.path(view, Kind::Directory) },
            800..840 => Operation::Chmod { path: self.any(view), mode: self.mode() },
            840..870 => self.chown(view),
            870..900 => {
                Operation::SetTimes { path: self.any(view), access: self.time(), modification: self.time() }
            }
            900..998 => self.xattr(view),
            _ => Operation::Remount,
        }
    }

    fn open(&mut self, view: &View<'_>) -> Operation {
        let access = self.rng.random_range(0..6);
        let append = self.rng.random_bool(0.1);
        let options = OpenOptions {
            read: access != 1,
            write: access != 0,
            append,
            create: self.rng.random_bool(0.7),
            exclusive: self.rng.random_bool(0.1),
            truncate: self.rng.random_bool(0.15),
            // Appending where the end is not aligned: some kernels' filesystems refuse.
            direct: !append && self.rng.random_bool(0.25),
            no_follow: self.rng.random_bool(0.1),
        };
        let path = if self.rng.random_bool(0.5) { self.path(view, Kind::File) } else { self.fresh(view) };
        Operation::Open { slot: self.slot(), path, options, mode: self.mode() | 0o600 }
    }

    fn on_open_file(&mut self, view: &View<'_>) -> Operation {
        let open: Vec<usize> = (0..SLOTS).filter(|&slot| view.open[slot].is_some()).collect();
        let Some(&slot) = open.choose(&mut self.rng) else { return self.open(view) };
        let align = if view.open[slot].is_some_and(|file| file.direct) { DIRECT_ALIGNMENT } else { 1 };
        let offset = self.offset() / align as u64 * align as u64;
        let length = self.length() / align * align;
        match self.rng.random_range(0..100) {
            0..25 => Operation::Read { slot, offset, length },
            25..60 => Operation::Write { slot, offset, length, fill: self.rng.next_u64() },
            60..68 => Operation::SetLength { slot, size: self.offset() },
            68..82 => Operation::Allocate {
                slot,
                how: self.allocation(),
                offset: self.offset(),
                length: self.length() as u64,
            },
            82..88 => {
                // Not with O_DIRECT: how much of a piece that is not aligned is copied differs between kernels.
                let buffered = |&slot: &usize| view.open[slot].is_some_and(|file| !file.direct);
                let open: Vec<usize> = open.into_iter().filter(buffered).collect();
                match (open.choose(&mut self.rng), open.choose(&mut self.rng)) {
                    (Some(&from), Some(&slot)) => {
                        Operation::Copy { from, from_offset: self.offset(), slot, offset, length }
                    }
                    _ => self.open(view),
                }
            }
            88..95 => Operation::Sync { slot, data_only: self.rng.random() },
            _ => Operation::Stat { slot },
        }
    }

    fn allocation(&mut self) -> Allocation {
        use Allocation::*;
        *[Extend, KeepSize, PunchHole, ZeroRange, ZeroRangeKeepSize].choose(&mut self.rng).unwrap_or(&Extend)
    }

    fn rename(&mut self, view: &View<'_>) -> Operation {
        let from = self.existing(view, |_| true);
        let to = if self.rng.random() { self.existing(view, |_| true) } else { self.fresh(view) };
        let how = match self.rng.random_range(0..6) {
            0 => Renaming::NoReplace,
            1 | 2 => Renaming::Exchange,
            _ => Renaming::Replace,
        };
        Operation::Rename { from, to, how }
    }

    fn make_node(&mut self, view: &View<'_>) -> Operation {
        let kinds = [Kind::Fifo, Kind::Socket, Kind::CharacterDevice, Kind::BlockDevice, Kind::File];
        let kind = *kinds.choose(&mut self.rng).unwrap_or(&Kind::Fifo);
        Operation::MakeNode { path: self.fresh(view), kind, mode: self.mode() }
    }

    fn xattr(&mut self, view: &View<'_>) -> Operation {
        let path = self.any(view);
        if self.rng.random_bool(0.25) {
            let default = self.rng.random();
            let path = if default { self.path(view, Kind::Directory) } else { path };
            let name = if default { ACL_DEFAULT } else { ACL_ACCESS };
            return match self.rng.random_range(0..6) {
                0 => Operation::RemoveXattr { path, name },
                1 => Operation::GetXattr { path, name },
                _ => Operation::SetXattr { path, name, value: self.acl(), how: XattrSetting::Either },
            };
        }
        let name = *XATTRS.choose(&mut self.rng).unwrap_or(&XATTRS[0]);
        match self.rng.random_range(0..10) {
            0..2 => Operation::GetXattr { path, name },
            2..4 => Operation::RemoveXattr { path, name },
            _ => {
                // All of a file's attributes together must fit into the block that ext4 has for them.
                let mut value = vec![0; self.rng.random_range(0..300)];
                self.rng.fill_bytes(&mut value);
                let how = match self.rng.random_range(0..6) {
                    0 => XattrSetting::Create,
                    1 => XattrSetting::Replace,
                    _ => XattrSetting::Either,
                };
                Operation::SetXattr { path, name, value, how }
            }
        }
    }

    /// An ACL in the kernel's form (include/uapi/linux/posix_acl_xattr.h), now and then an invalid one.
    fn acl(&mut self) -> Vec<u8> {
        const NOBODY: u32 = u32::MAX;
        const USER_OBJECT: u16 = 0x01;
        const USER: u16 = 0x02;
        const GROUP_OBJECT: u16 = 0x04;
        const GROUP_NAMED: u16 = 0x08;
        const MASK: u16 = 0x10;
        const OTHER: u16 = 0x20;
        let mut entries = vec![(USER_OBJECT, NOBODY)];
        let named = self.rng.random_bool(0.7);
        if named {
            entries.push((USER, User::Editor.uid()));
        }
        entries.push((GROUP_OBJECT, NOBODY));
        if named && self.rng.random() {
            entries.push((GROUP_NAMED, GROUP));
        }
        if named != self.rng.random_bool(0.05) {
            entries.push((MASK, NOBODY));
        }
        entries.push((OTHER, NOBODY));
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(self.rng.random_range(0..8u16).to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn slot(&mut self) -> usize {
        self.rng.random_range(0..SLOTS)
    }

    /// An offset or a size: mostly small, often at a border, sometimes far out.
    fn offset(&mut self) -> u64 {
        match self.rng.random_range(0..20) {
            0..2 => 0,
            2..10 => self.rng.random_range(0..64 << 10),
            10..15 => self.rng.random_range(1..64) * 4096 + self.rng.random_range(0..3) - 1,
            15..18 => self.rng.random_range(0..1 << 20),
            _ => self.rng.random_range(1..3) * UNIT + self.rng.random_range(0..8193) - 4096,
        }
    }

    fn length(&mut self) -> usize {
        match self.rng.random_range(0..20) {
            0 => 0,
            1..9 => self.rng.random_range(1..5000),
            9..13 => self.rng.random_range(1..32) * 4096,
            13..18 => self.rng.random_range(1..128 << 10),
            _ => self.rng.random_range(1 << 20..3 << 20),
        }
    }

    fn mode(&mut self) -> u32 {
        match self.rng.random_range(0..4) {
            0 => self.rng.random_range(0..0o10000),
            1 => 0o777,
            _ => 0o644 | self.rng.random_range(0..0o200),
        }
    }

    /// Never one that names neither: it clears setuid and setgid, but no filesystem in user space hears of it.
    fn chown(&mut self, view: &View<'_>) -> Operation {
        let (path, follow) = (self.any(view), self.rng.random());
        let (uid, gid) = match self.rng.random_range(0..3) {
            0 => (Some(self.owner()), None),
            1 => (None, Some(self.owner())),
            _ => (Some(self.owner()), Some(self.owner())),
        };
        Operation::Chown { path, uid, gid, follow }
    }

    fn owner(&mut self) -> u32 {
        [0, User::Editor.uid(), User::Assistant.uid()][self.rng.random_range(0..3)]
    }

    fn time(&mut self) -> Time {
        match self.rng.random_range(0..6) {
            0 => Time::Now,
            1 => Time::Omit,
            // From 1935 to 2106; the full range differs between filesystems.
            _ => Time::At {
                seconds: self.rng.random_range(-(1 << 30)..1 << 32),
                nanoseconds: self.rng.random_range(0..1_000_000_000),
            },
        }
    }

    /// What a symbolic link points to: a name beside it, there or not. Never a path that leads out of the root.
    fn target(&mut self, view: &View<'_>) -> PathBuf {
        let path = self.path(view, Kind::File);
        PathBuf::from(path.file_name().unwrap_or(path.as_os_str()))
    }

    /// Any path: mostly one that exists.
    fn any(&mut self, view: &View<'_>) -> PathBuf {
        if self.rng.random_bool(0.9) { self.existing(view, |_| true) } else { self.fresh(view) }
    }

    /// A path that mostly is of this kind.
    fn path(&mut self, view: &View<'_>, kind: Kind) -> PathBuf {
        match self.rng.random_range(0..10) {
            0 => self.any(view),
            _ => self.existing(view, |found| found == kind),
        }
    }

    /// A path that exists and whose kind is right; a fresh one if there is none.
    fn existing(&mut self, view: &View<'_>, right: impl Fn(Kind) -> bool) -> PathBuf {
        let paths: Vec<&Path> =
            view.tree.entries().filter(|(_, entry)| right(entry.kind)).map(|(path, _)| path).collect();
        match paths.choose(&mut self.rng) {
            Some(path) => path.to_path_buf(),
            None => self.fresh(view),
        }
    }

    /// A path in an existing directory, seldom below something that is none; it may exist.
    fn fresh(&mut self, view: &View<'_>) -> PathBuf {
        let below_anything = self.rng.random_bool(0.03);
        let parents: Vec<&Path> = view
            .tree
            .entries()
            .filter(|(path, entry)| {
                path.components().count() < DEEPEST && (entry.kind == Kind::Directory || below_anything)
            })
            .map(|(path, _)| path)
            .chain([Path::new("")])
            .collect();
        let parent = parents.choose(&mut self.rng).copied().unwrap_or(Path::new(""));
        parent.join(self.name())
    }

    fn name(&mut self) -> String {
        const NAMES: [&str; 12] = [
            "a",
            "b",
            "c",
            "d",
            "A001_C003.mov",
            "A001_C003.MOV",
            ".hidden",
            "Zürich 東京",
            "two\nlines",
            "-",
            "\u{1}",
            "e",
        ];
        match self.rng.random_range(0..60) {
            0 => "x".repeat(255),
            1 => "x".repeat(256),
            2..20 => format!("frame.{:04}.dpx", self.rng.random_range(0..30)),
            _ => (*NAMES.choose(&mut self.rng).unwrap_or(&NAMES[0])).to_owned(),
        }
    }
}
