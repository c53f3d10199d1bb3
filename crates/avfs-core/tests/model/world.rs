//! A volume and what it should be, side by side.

use crate::contents::Contents;
use crate::steps::{Character, Place, Step};
use crate::tree::{Body, Moment, Tree};
use avfs_core::Error;
use avfs_core::config::Config;
use avfs_core::core::{Operation, Outcome, Ticket, WritePlan, WriteStart};
use avfs_core::limit::{LIMIT_XATTR, Limit};
use avfs_core::simulation::{SimVolume, formatted};
use avfs_core::types::*;
use avfs_io::pool::Pool;
use std::collections::BTreeMap;
use units::{Bytes, Duration, Ino, Timestamp};

/// A full volume may need so many blocks for metadata that a client who is told that it is full sees them as free.
const METADATA_SLACK: u64 = 3 * 2048;
/// Mutations of one file in one batch: every order of them is tried.
const MOST_AT_ONCE: usize = 4;

/// Files of up to so many bytes are read whole; of larger ones, what may be anything but a hole.
const SMALL: u64 = 24 << 20;

struct Open {
    handle: HandleId,
    ino: Ino,
    write: bool,
    append: bool,
}

pub(crate) struct World {
    volume: Option<SimVolume>,
    tree: Tree,
    handles: Vec<Open>,
    character: Character,
    pool: Pool,
    seed: u64,
    /// Different for each write, so that every byte tells where it comes from.
    writes: u64,
}

/// What is asked of a file in a batch.
#[derive(Clone, Debug)]
enum Action {
    Write { offset: Option<u64>, data: Vec<u8> },
    Truncate(u64),
    Allocate { offset: u64, length: u64, mode: AllocateMode },
    Read { offset: u64, length: usize },
    Other,
}

enum Pending {
    Plan(WritePlan, Ticket),
    Ticket(Ticket),
    Ended(Outcome),
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&(state | 0x0101_0101_0101_0101).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn without_privileges(permissions: u16) -> u16 {
    permissions & !(0o4000 | if permissions & 0o010 != 0 { 0o2000 } else { 0 })
}

fn apply(contents: &mut Contents, action: &Action) {
    match action {
        Action::Write { offset, data } => contents.write(offset.unwrap_or(contents.size), data),
        Action::Truncate(size) => contents.truncate(*size),
        Action::Allocate { offset, length, mode } => {
            let end = offset + length;
            if !matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize) {
                contents.clear(*offset, end);
            }
            if *mode != AllocateMode::PunchHole {
                contents.preallocate(*offset, end);
            }
            if matches!(mode, AllocateMode::Extend | AllocateMode::ZeroRange) {
                contents.size = contents.size.max(end);
            }
        }
        Action::Read { .. } | Action::Other => {}
    }
}

fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for order in orders(count - 1) {
        for at in 0..=order.len() {
            let mut longer = order.clone();
            longer.insert(at, count - 1);
            all.push(longer);
        }
    }
    all
}

fn name(number: u8) -> Vec<u8> {
    match number % 12 {
        11 => vec![b'x'; 255],
        number => format!("clip{number}").into_bytes(),
    }
}

fn xattr_name(number: u8) -> Vec<u8> {
    format!("user.note{}", number % 9).into_bytes()
}

impl World {
    pub(crate) fn new(character: Character, seed: u64) -> Self {
        let pool = Pool::new(Bytes::from_mib(character.pool_mib), false).unwrap();
        let disk = formatted(Bytes::from_mib(character.disk_mib));
        let mut volume = SimVolume::mount(disk, &pool, config(&character), seed).unwrap();
        volume.audit_every(character.audit_every);
        Self {
            volume: Some(volume),
            tree: Tree::new(),
            handles: Vec::new(),
            character,
            pool,
            seed,
            writes: 0,
        }
    }

    pub(crate) fn volume(&mut self) -> &mut SimVolume {
        self.volume.as_mut().expect("mounted")
    }

    fn wall(&mut self) -> Timestamp {
        self.volume().with(|_, now| now.wall)
    }

    /// Does something, and says between which moments.
    fn timed<R>(&mut self, operate: impl FnOnce(&mut SimVolume) -> R) -> (R, Moment) {
        let before = self.wall();
        let result = operate(self.volume());
        (result, (before, self.wall()))
    }

    /// A change of metadata, which a full log holds back, as a mounted volume does it.
    fn change<R>(
        &mut self,
        operate: impl FnOnce(&mut avfs_core::core::Core, units::Now) -> R,
    ) -> (R, Moment) {
        for _ in 0..100_000 {
            if !self.volume().core().under_pressure() {
                break;
            }
            self.volume().step();
        }
        assert!(!self.volume().core().under_pressure(), "the log stays full");
        self.timed(|volume| volume.with(operate))
    }

    fn pick<T: Copy>(from: &[T], number: u8) -> Option<T> {
        (!from.is_empty()).then(|| from[number as usize % from.len()])
    }

    fn a_file(&self, number: u8) -> Option<Ino> {
        let files: Vec<Ino> = self.tree.nodes.keys().copied().filter(|&ino| self.tree.is_file(ino)).collect();
        Self::pick(&files, number)
    }

    fn a_node(&self, number: u8) -> Option<Ino> {
        Self::pick(&self.tree.nodes.keys().copied().collect::<Vec<_>>(), number)
    }

    fn a_directory(&self, number: u8) -> Ino {
        let is_directory = |ino: &Ino| self.tree.entries(*ino).is_ok();
        let all: Vec<Ino> = self.tree.nodes.keys().copied().filter(is_directory).collect();
        Self::pick(&all, number).expect("a root")
    }

    fn a_handle(&self, number: u8) -> Option<usize> {
        (!self.handles.is_empty()).then(|| number as usize % self.handles.len())
    }

    fn place(&mut self, ino: Ino, place: Place) -> u64 {
        let size = self.tree.file(ino).size;
        match place {
            Place::At(offset) => offset,
            Place::End(distance) => size.saturating_add_signed(distance),
        }
        .min(self.character.reach + (16 << 20))
    }

    fn fresh(&mut self, length: usize) -> Vec<u8> {
        self.writes += 1;
        pattern(self.writes, length)
    }

    fn available(&mut self) -> u64 {
        self.volume().core().statistics().available
    }

    /// What each file takes.
    fn space(&mut self) -> BTreeMap<Ino, u64> {
        let files: Vec<Ino> = self.tree.nodes.keys().copied().filter(|&ino| self.tree.is_file(ino)).collect();
        let core = self.volume().core();
        files.into_iter().map(|ino| (ino, core.usage_of(ino).unwrap().space() * 4096)).collect()
    }

    /// True when a limit above the file refused so many blocks; it must have had no room for them.
    fn is_over_limit<T>(&mut self, result: &Result<T, Error>, ino: Ino, blocks: u64) -> bool {
        if !matches!(result, Err(Error::OverLimit)) {
            return false;
        }
        let space = self.space();
        let (limited, above) = (self.tree.limited(&space), self.tree.above(ino));
        let is_full = |(limit, bytes, _): &(Limit, u64, u64)| {
            limit.size.is_some_and(|size| bytes + blocks * 4096 > size.0)
        };
        assert!(above.iter().filter_map(|ino| limited.get(ino)).any(is_full), "no limit is reached");
        true
    }

    /// What a change of names should say, where a limit may refuse it.
    fn unless_limited(
        &mut self,
        allowed: Result<(), Error>,
        change: impl FnOnce(&mut Tree),
    ) -> Result<(), Error> {
        allowed?;
        if self.tree.nodes.values().all(|node| node.limit.is_none()) {
            return Ok(());
        }
        let space = self.space();
        let mut after = self.tree.shape();
        change(&mut after);
        if self.tree.exceeds(&after, &space) { Err(Error::OverLimit) } else { Ok(()) }
    }

    /// What one more node in a directory should say.
    fn may_make(&mut self, parent: Ino, name: &[u8]) -> Result<(), Error> {
        let allowed = self.tree.may_add(parent, name);
        let wall = self.wall();
        // A number that no inode has.
        let other = Ino(u64::MAX);
        self.unless_limited(allowed, |tree| {
            tree.make(parent, name, other, Body::Symlink(Vec::new()), 0, (wall, wall));
        })
    }

    /// No limit was exceeded by more than before, but by what cannot be refused.
    fn check_limits(&mut self, before: &[LimitReport]) {
        for now in self.volume().core().limits() {
            let old = before.iter().find(|old| old.ino == now.ino);
            let (bytes, files) = old.map_or((u64::MAX, u64::MAX), |old| (old.used_bytes, old.used_files));
            let is_kept = |used: u64, before: u64, limit: Option<u64>| {
                limit.is_none_or(|limit| used <= limit || used <= before)
            };
            assert!(
                is_kept(now.used_bytes, bytes, now.size_bytes) && is_kept(now.used_files, files, now.files),
                "{now:?} after {old:?}"
            );
        }
    }

    /// True when it succeeded; false when the volume was too full for it, which must then be so.
    fn unless_full<T: std::fmt::Debug>(result: Result<T, Error>, available: u64, wanted: u64) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(Error::NoSpace) => {
                assert!(
                    available < wanted + METADATA_SLACK,
                    "no space for {wanted} blocks with {available} available"
                );
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The same for what only changes metadata, which needs whole units.
    fn unless_crowded<T: std::fmt::Debug>(
        &mut self,
        result: Result<T, Error>,
        expected: Result<(), Error>,
    ) -> Option<T> {
        match (result, expected) {
            (Ok(value), Ok(())) => Some(value),
            (Err(Error::NoSpace), Ok(()) | Err(Error::OverLimit)) => {
                let report = self.volume().core().report();
                let crowded = report.free_units < 4 || self.available() < METADATA_SLACK;
                assert!(crowded, "no space: {report:?}");
                None
            }
            (Err(error), Err(expected)) => {
                assert_eq!(error, expected);
                None
            }
            (result, expected) => panic!("{result:?}, expected {expected:?}"),
        }
    }

    pub(crate) fn take(&mut self, step: &Step) {
        let limits = self.volume().core().limits();
        self.take_unaudited(step);
        self.volume().core().audit().unwrap();
        // The oldest name of a file may go: then it lies where another one is.
        if !matches!(step, Step::Unlink { .. } | Step::List { .. } | Step::Rename { .. }) {
            self.check_limits(&limits);
        }
    }

    fn take_unaudited(&mut self, step: &Step) {
        if self.handles.is_empty() {
            self.open_any();
        }
        match step.clone() {
            Step::Create { .. } => self.take_create(step),
            Step::Open { file, write, append, sync } => {
                let Some(ino) = self.a_file(file) else { return };
                if self.handles.len() > 20 {
                    return;
                }
                let flags = open_flags(write, append, sync);
                let opened = self.volume().with(|core, _| core.open(ino, flags)).unwrap();
                self.tree.node(ino).opens += 1;
                self.handles.push(Open { handle: opened.handle, ino, write, append });
            }
            Step::Release { handle } => {
                let Some(index) = self.a_handle(handle) else { return };
                let Open { handle, ino, .. } = self.handles.swap_remove(index);
                self.volume().with(|core, now| core.release(now, handle));
                self.tree.node(ino).opens -= 1;
                self.tree.reap(ino);
            }
            Step::Write { handle, place, length } => {
                let Some(index) = self.a_handle(handle) else { return };
                let offset = self.place(self.handles[index].ino, place);
                self.write(index, offset, length);
            }
            Step::Sequence { handle, place, length, count } => {
                let Some(index) = self.a_handle(handle) else { return };
                let offset = self.place(self.handles[index].ino, place);
                for number in 0..u64::from(count) {
                    self.write(index, offset + number * length as u64, length);
                }
            }
            Step::Flood { handle, place, length, count } => {
                let Some(index) = self.a_handle(handle) else { return };
                let offset = self.place(self.handles[index].ino, place);
                self.flood(index, offset, length, count);
            }
            Step::Strided { handle, place, stride, count } => {
                let Some(index) = self.a_handle(handle) else { return };
                let offset = self.place(self.handles[index].ino, place);
                for number in 0..u64::from(count) {
                    self.write(index, offset + number * stride, 1);
                }
            }
            Step::Read { handle, place, length } => {
                let Some(index) = self.a_handle(handle) else { return };
                let Open { handle, ino, .. } = self.handles[index];
                let offset = self.place(ino, place);
                let found = self.volume().read(handle, offset, length).unwrap();
                let expected = self.tree.file(ino).read(offset, length);
                assert_same(&found, &expected, ino, offset);
            }
            Step::Copy { .. } => self.copy(step),
            Step::Truncate { file, place } => {
                let Some(ino) = self.a_file(file) else { return };
                let size = self.place(ino, place);
                let changes = SetAttributes { size: Some(size), ..SetAttributes::default() };
                let available = self.available();
                let (result, moment) = self.timed(|volume| volume.set_attributes(ino, changes));
                if Self::unless_full(result, available, 1).is_some() {
                    self.tree.file(ino).truncate(size);
                    self.changed(ino, moment, true);
                    let node = self.tree.node(ino);
                    node.permissions = without_privileges(node.permissions);
                }
            }
            Step::Allocate { handle, place, length, mode } => {
                let Some(index) = self.a_handle(handle) else { return };
                let Open { handle, ino, write, .. } = self.handles[index];
                let offset = self.place(ino, place);
                let (available, size) = (self.available(), self.tree.file(ino).size);
                let (result, moment) = self.timed(|volume| volume.allocate(handle, offset, length, mode));
                if !write {
                    return assert_eq!(result, Err(Error::BadHandle));
                }
                let wanted = self.tree.file(ino).missing(offset, offset + length);
                if self.is_over_limit(&result, ino, wanted) {
                    return;
                }
                let zeroes = !matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize);
                if Self::unless_full(result, available, wanted).is_some() {
                    let contents = self.tree.file(ino);
                    apply(contents, &Action::Allocate { offset, length, mode });
                    let changed = zeroes || contents.size > size;
                    self.changed(ino, moment, changed);
                }
            }
            Step::Seek { handle, place, seek } => {
                let Some(index) = self.a_handle(handle) else { return };
                let Open { handle, ino, .. } = self.handles[index];
                let offset = self.place(ino, place);
                self.check_seek(handle, ino, offset, seek);
            }
            Step::Fsync { file } => {
                let Some(ino) = self.a_node(file) else { return };
                self.volume().fsync(ino).unwrap();
            }
            Step::Sync => self.volume().sync().unwrap(),
            Step::Drift => self.volume().drift(),
            Step::Pass { milliseconds } => self.volume().pass(Duration::from_millis(milliseconds)),
            Step::Batch(steps) => self.batch(&steps),
            Step::Compare => self.compare(),
            Step::Remount => self.remount(),
            step => self.take_name_step(step),
        }
    }

    fn take_name_step(&mut self, step: Step) {
        let caller = Caller::default();
        match step {
            Step::MakeDirectory { directory, name: number } => {
                let (parent, name) = (self.a_directory(directory), name(number));
                let directories = self.tree.nodes.keys().filter(|&&ino| self.tree.entries(ino).is_ok());
                if directories.count() > 7 {
                    return;
                }
                let expected = self.may_make(parent, &name);
                let (result, moment) =
                    self.change(|core, now| core.make_directory(now, caller, parent, &name, 0o777, 0o022));
                if let Some(entry) = self.unless_crowded(result, expected) {
                    let body = Body::Directory(BTreeMap::new());
                    self.tree.make(parent, &name, entry.attributes.ino, body, 0o755, moment);
                }
            }
            Step::Symlink { directory, name: number, length } => {
                let (parent, name) = (self.a_directory(directory), name(number));
                let expected = self.may_make(parent, &name);
                let target: Vec<u8> = (0..length).map(|at| b'a' + (at % 26) as u8).collect();
                let (result, moment) =
                    self.change(|core, now| core.make_symlink(now, caller, parent, &name, &target));
                if let Some(entry) = self.unless_crowded(result, expected) {
                    let body = Body::Symlink(target);
                    self.tree.make(parent, &name, entry.attributes.ino, body, 0o777, moment);
                }
            }
            Step::RemoveDirectory { directory, name } => self.remove(directory, name, true),
            Step::Unlink { directory, name } => self.remove(directory, name, false),
            Step::Link { file, directory, name: number } => {
                let (parent, name) = (self.a_directory(directory), name(number));
                let Some(ino) = self.a_node(file) else { return };
                let expected = self.tree.link(ino, parent, &name);
                let (result, moment) = self.change(|core, now| core.link(now, ino, parent, &name));
                if self.unless_crowded(result, expected).is_some() {
                    self.tree.do_link(ino, parent, &name, moment);
                }
            }
            Step::Rename { directory, name: number, to, new_name, flags } => {
                let (parent, new_parent) = (self.a_directory(directory), self.a_directory(to));
                let (old, new) = (name(number), name(new_name));
                let flags = RenameFlags::from_bits_truncate(flags);
                let expected = match flags == (RenameFlags::NO_REPLACE | RenameFlags::EXCHANGE) {
                    true => Err(Error::InvalidArgument),
                    false => self.tree.may_rename(parent, &old, new_parent, &new, flags),
                };
                let wall = self.wall();
                let expected = self.unless_limited(expected, |tree| {
                    tree.rename(parent, &old, new_parent, &new, flags, (wall, wall));
                });
                let (result, moment) = self.change(|core, now| {
                    core.rename(now, Caller::default(), parent, &old, new_parent, &new, flags)
                });
                assert_eq!(result, expected, "rename with {flags:?}");
                if result.is_ok() {
                    self.tree.rename(parent, &old, new_parent, &new, flags, moment);
                }
            }
            Step::SetXattr { file, name, length, flags } => {
                let Some(ino) = self.a_node(file) else { return };
                let (name, value) = (xattr_name(name), self.fresh(length));
                let flags = XattrFlags::from_bits_truncate(flags);
                let expected = self.tree.may_set_xattr(ino, &name, &value, flags);
                let (result, moment) =
                    self.change(|core, now| core.set_xattr(now, ino, &name, &value, flags));
                if self.unless_crowded(result, expected).is_some() {
                    self.tree.node(ino).xattrs.insert(name, value);
                    self.tree.node(ino).ctime = moment;
                }
            }
            Step::RemoveXattr { file, name } => {
                let Some(ino) = self.a_node(file) else { return };
                let name = xattr_name(name);
                let (result, moment) = self.change(|core, now| core.remove_xattr(now, ino, &name));
                let node = self.tree.node(ino);
                assert_eq!(result, node.xattrs.remove(&name).map(|_| ()).ok_or(Error::NoAttribute));
                if result.is_ok() {
                    node.ctime = moment;
                }
            }
            Step::Limit { directory, mebibytes, files } => {
                let ino = self.a_directory(directory);
                let size = mebibytes.map(|count| Bytes(count << 20));
                let limit = Limit { size, files, soft: None };
                let name = LIMIT_XATTR.as_bytes();
                let (result, moment) = self.change(|core, now| match limit == Limit::default() {
                    true => core.remove_xattr(now, ino, name),
                    false => {
                        core.set_xattr(now, ino, name, limit.to_string().as_bytes(), XattrFlags::empty())
                    }
                });
                let had_one = self.tree.node(ino).limit.is_some();
                let expected = match limit == Limit::default() && !had_one {
                    true => Err(Error::NoAttribute),
                    false => Ok(()),
                };
                if self.unless_crowded(result, expected).is_some() {
                    let node = self.tree.node(ino);
                    node.limit = Some(limit).filter(|&limit| limit != Limit::default());
                    match node.limit {
                        Some(limit) => node.xattrs.insert(name.to_vec(), limit.to_string().into_bytes()),
                        None => node.xattrs.remove(name),
                    };
                    node.ctime = moment;
                }
            }
            Step::Chmod { file, permissions } => {
                let Some(ino) = self.a_node(file) else { return };
                let changes = SetAttributes { permissions: Some(permissions), ..SetAttributes::default() };
                let (result, moment) = self.timed(|volume| volume.set_attributes(ino, changes));
                assert_eq!(result.unwrap().permissions, permissions);
                self.tree.node(ino).permissions = permissions;
                self.tree.node(ino).ctime = moment;
            }
            Step::Chown { file, uid, gid } => {
                let Some(ino) = self.a_node(file) else { return };
                let changes = SetAttributes { uid: Some(uid), gid: Some(gid), ..SetAttributes::default() };
                let (result, moment) = self.timed(|volume| volume.set_attributes(ino, changes));
                result.unwrap();
                let node = self.tree.node(ino);
                (node.uid, node.gid, node.ctime) = (uid, gid, moment);
                if !matches!(node.body, Body::Directory(_)) {
                    node.permissions = without_privileges(node.permissions);
                }
            }
            Step::Utimes { file, seconds } => {
                let Some(ino) = self.a_node(file) else { return };
                let time = Timestamp { seconds, nanoseconds: 123_456_789 };
                let (atime, mtime) = (Some(SetTime::To(time)), Some(SetTime::To(time)));
                let changes = SetAttributes { atime, mtime, ..SetAttributes::default() };
                let (result, moment) = self.timed(|volume| volume.set_attributes(ino, changes));
                let attributes = result.unwrap();
                assert_eq!((attributes.atime, attributes.mtime), (time, time));
                self.tree.node(ino).mtime = (time, time);
                self.tree.node(ino).ctime = moment;
            }
            Step::List { directory, entries, remove, plus } => {
                let directory = self.a_directory(directory);
                self.list(directory, entries, remove, plus);
            }
            Step::Forget { file, count } => {
                let Some(ino) = self.a_node(file) else { return };
                let count = count.min(self.tree.node(ino).lookups);
                self.volume().with(|core, now| core.forget(now, ino, count));
                self.tree.node(ino).lookups -= count;
                self.tree.reap(ino);
            }
            other => unreachable!("{other:?} is taken elsewhere"),
        }
    }

    fn remove(&mut self, directory: u8, number: u8, is_directory: bool) {
        let (parent, name) = (self.a_directory(directory), name(number));
        let expected = self.tree.may_remove(parent, &name, is_directory);
        let (result, moment) = self.change(|core, now| match is_directory {
            true => core.remove_directory(now, parent, &name),
            false => core.unlink(now, parent, &name),
        });
        assert_eq!(result, expected, "a full volume too must allow deletions");
        if result.is_ok() {
            self.tree.remove(parent, &name, moment);
        }
    }

    /// The times that change with a file's contents, or with its space only. Privileges go where a frontend says so.
    fn changed(&mut self, ino: Ino, moment: Moment, contents: bool) {
        let node = self.tree.node(ino);
        node.ctime = moment;
        if contents {
            node.mtime = moment;
        }
    }

    fn write(&mut self, index: usize, offset: u64, length: usize) {
        let Open { handle, ino, write, append } = self.handles[index];
        let data = self.fresh(length);
        let offset = if append { self.tree.file(ino).size } else { offset };
        let wanted = self.tree.file(ino).missing(offset, offset + length as u64);
        let available = self.available();
        let (result, moment) = self.timed(|volume| volume.write(handle, offset, &data));
        if !write {
            return assert_eq!(result, Err(Error::BadHandle));
        }
        if self.is_over_limit(&result, ino, wanted) {
            return;
        }
        if let Some(count) = Self::unless_full(result, available, wanted) {
            assert_eq!(count, length);
            self.tree.file(ino).write(offset, &data);
            let node = self.tree.node(ino);
            (node.mtime, node.ctime) = (moment, moment);
        }
    }

    fn copy(&mut self, step: &Step) {
        let Step::Copy { from, place, to, to_place, length, aligned } = *step else { return };
        let (Some(from), Some(to)) = (self.a_handle(from), self.a_handle(to)) else { return };
        let Open { handle: source, ino: from, .. } = self.handles[from];
        let Open { handle: target, ino: to, write, append } = self.handles[to];
        let (mut from_offset, mut to_offset) = (self.place(from, place), self.place(to, to_place));
        if aligned {
            (from_offset, to_offset) = (from_offset / 4096 * 4096, to_offset / 4096 * 4096);
        }
        // copy_file_range(2) refuses a target that is open for appending.
        if append {
            return;
        }
        let length = length.min(self.tree.file(from).size.saturating_sub(from_offset));
        let available = self.available();
        let wanted = self.tree.file(to).missing(to_offset, to_offset + length);
        let copy = CopyRange { from: source, from_offset, to: target, to_offset, length };
        let (result, moment) = self.timed(|volume| volume.copy(copy));
        if !write {
            return assert_eq!(result, Err(Error::BadHandle));
        }
        let overlaps = from_offset < to_offset + length && to_offset < from_offset + length;
        if from == to && overlaps && length > 0 {
            return assert_eq!(result, Err(Error::InvalidArgument));
        }
        if self.is_over_limit(&result, to, wanted) {
            return;
        }
        let Some(copied) = Self::unless_full(result, available, wanted) else { return };
        let is_limited = self.tree.above(to).iter().any(|ino| self.tree.nodes[ino].limit.is_some());
        let may_end = is_limited || available < wanted + METADATA_SLACK;
        assert!(copied == length || may_end, "{copied} of {length} are copied");
        if copied > 0 {
            let mut contents = self.tree.file(from).clone();
            if from == to {
                let before = contents.clone();
                contents.copy(&mut before.clone(), from_offset, to_offset, copied, copied == length);
                contents.share(from_offset, copied);
                *self.tree.file(to) = contents;
            } else {
                self.tree.file(to).copy(&mut contents, from_offset, to_offset, copied, copied == length);
                *self.tree.file(from) = contents;
            }
            self.changed(to, moment, true);
        }
    }

    fn take_create(&mut self, step: &Step) {
        let Step::Create { directory, name: number, append, sync } = *step else { return };
        let (parent, name) = (self.a_directory(directory), name(number));
        let expected = self.may_make(parent, &name);
        let flags = open_flags(true, append, sync);
        let caller = Caller::default();
        let (result, moment) =
            self.change(|core, now| core.create(now, caller, parent, &name, 0o6755, 0o022, flags));
        if let Some((entry, opened)) = self.unless_crowded(result, expected) {
            let ino = entry.attributes.ino;
            let body = Body::File(Contents::default());
            self.tree.make(parent, &name, ino, body, 0o6755, moment);
            self.tree.node(ino).opens += 1;
            self.handles.push(Open { handle: opened.handle, ino, write: true, append });
        }
    }

    // Several at once.

    fn open_any(&mut self) {
        let flags = open_flags(true, false, false);
        let opened = match self.a_file(0) {
            Some(ino) => self.volume().with(|core, _| core.open(ino, flags)).map(|opened| (ino, opened)),
            None => {
                let step = Step::Create { directory: 0, name: 0, append: false, sync: false };
                return self.take_create(&step);
            }
        };
        let (ino, opened) = opened.unwrap();
        self.tree.node(ino).opens += 1;
        self.handles.push(Open { handle: opened.handle, ino, write: true, append: false });
    }

    /// Many writes of one client that does not wait for answers. They do not overlap, so their order is no matter.
    fn flood(&mut self, index: usize, offset: u64, length: usize, count: u32) {
        let Open { handle, ino, write, append } = self.handles[index];
        if !write || append {
            return;
        }
        let (before, available) = (self.wall(), self.available());
        let mut begun = Vec::new();
        for number in 0..u64::from(count) {
            let action =
                Action::Write { offset: Some(offset + number * length as u64), data: self.fresh(length) };
            begun.push((self.begin(ino, handle, &action, &Step::Drift), action));
            if number % 8 == 7 {
                self.volume().drift();
            }
        }
        let (mut pending, actions): (Vec<Pending>, Vec<Action>) = begun.into_iter().unzip();
        self.copy_all(&mut pending, actions.iter());
        let wanted = self.tree.file(ino).missing(offset, offset + u64::from(count) * length as u64) + 1;
        let mut written = false;
        for (state, action) in pending.into_iter().zip(actions) {
            let Outcome::Count(result) = self.outcome(state) else { panic!("a write ended otherwise") };
            if self.is_over_limit(&result, ino, wanted) {
                continue;
            }
            if Self::unless_full(result, available, wanted).is_some() {
                apply(self.tree.file(ino), &action);
                written = true;
            }
        }
        let now = self.wall();
        let node = self.tree.node(ino);
        if written {
            (node.mtime, node.ctime) = ((before, now), (before, now));
        }
    }

    /// Clients that were to copy their bytes do so.
    fn copy_all<'a>(&mut self, pending: &mut [Pending], actions: impl Iterator<Item = &'a Action>) {
        for (state, action) in pending.iter_mut().zip(actions) {
            if let Pending::Plan(..) = state
                && let Pending::Plan(mut plan, ticket) = std::mem::replace(state, Pending::Ticket(Ticket(0)))
            {
                let Action::Write { data, .. } = action else { unreachable!("only writes have plans") };
                self.volume().fill(&mut plan, data);
                let ended = self.volume().with(|core, now| core.write_end(now, ticket, &mut plan));
                SimVolume::reuse(plan);
                *state = match ended {
                    Some(result) => Pending::Ended(Outcome::Count(result)),
                    None => Pending::Ticket(ticket),
                };
                self.volume().drift();
            }
        }
    }

    fn outcome(&mut self, state: Pending) -> Outcome {
        match state {
            Pending::Ended(outcome) => outcome,
            Pending::Ticket(ticket) => self.volume().finish(ticket),
            Pending::Plan(..) => unreachable!("all plans have ended"),
        }
    }

    fn batch(&mut self, steps: &[Step]) {
        let before = self.wall();
        let available = self.available();
        // So much may be freed by some after others were refused.
        let held = self.space().values().sum::<u64>() / 4096;
        let mut wanted = 0;
        let mut actions: Vec<(Ino, Action)> = Vec::new();
        let mut pending = Vec::new();
        let mut ranges: BTreeMap<Ino, Vec<std::ops::Range<u64>>> = BTreeMap::new();
        let mut appended: BTreeMap<Ino, bool> = BTreeMap::new();
        for step in steps {
            let Some((ino, handle, action)) = self.action(step) else { continue };
            let mutations = actions.iter().filter(|(other, action)| {
                *other == ino && !matches!(action, Action::Read { .. } | Action::Other)
            });
            if mutations.count() >= MOST_AT_ONCE {
                continue;
            }
            let range = match &action {
                Action::Write { offset, data } => {
                    offset.unwrap_or(0)..offset.unwrap_or(0) + data.len() as u64
                }
                Action::Allocate { offset, length, .. } => *offset..offset + length,
                _ => 0..0,
            };
            let is_append = matches!(&action, Action::Write { offset: None, .. });
            if !range.is_empty() {
                // Appended and placed writes may overlap, and then every mixture is right.
                if *appended.entry(ino).or_insert(is_append) != is_append {
                    continue;
                }
                let held = ranges.entry(ino).or_default();
                let overlaps =
                    |other: &std::ops::Range<u64>| other.start < range.end && range.start < other.end;
                if !is_append && held.iter().any(overlaps) {
                    continue;
                }
                held.push(range.clone());
                wanted += (range.end - range.start).div_ceil(4096) + 1;
            }
            pending.push(self.begin(ino, handle, &action, step));
            actions.push((ino, action));
            self.volume().drift();
        }
        self.copy_all(&mut pending, actions.iter().map(|(_, action)| action));
        let outcomes = pending.into_iter().map(|state| self.outcome(state)).collect();
        let moment = (before, self.wall());
        self.judge(actions, outcomes, available, wanted, held, moment);
    }

    fn action(&mut self, step: &Step) -> Option<(Ino, HandleId, Action)> {
        let on_handle = |world: &Self, number| {
            let open = &world.handles[world.a_handle(number)?];
            Some((open.ino, open.handle, open.write, open.append))
        };
        Some(match *step {
            Step::Write { handle, place, length } => {
                let (ino, handle, write, append) = on_handle(self, handle)?;
                let offset = (!append).then(|| self.place(ino, place));
                (ino, handle, write.then(|| Action::Write { offset, data: self.fresh(length) })?)
            }
            Step::Read { handle, place, length } => {
                let (ino, handle, ..) = on_handle(self, handle)?;
                (ino, handle, Action::Read { offset: self.place(ino, place), length })
            }
            Step::Allocate { handle, place, length, mode } => {
                let (ino, handle, write, _) = on_handle(self, handle)?;
                let offset = self.place(ino, place);
                (ino, handle, write.then_some(Action::Allocate { offset, length, mode })?)
            }
            Step::Truncate { file, place } => {
                let ino = self.a_file(file)?;
                (ino, HandleId(0), Action::Truncate(self.place(ino, place)))
            }
            Step::Fsync { file } => (self.a_file(file)?, HandleId(0), Action::Other),
            Step::Sync => (Ino::ROOT, HandleId(0), Action::Other),
            _ => return None,
        })
    }

    fn begin(&mut self, ino: Ino, handle: HandleId, action: &Action, step: &Step) -> Pending {
        let operation = match action {
            Action::Write { offset, data } => {
                let (offset, length) = (offset.unwrap_or(0), data.len());
                let begun =
                    self.volume().with(|core, now| core.write_begin(now, handle, offset, length, None));
                match begun {
                    WriteStart::Copy(plan) => {
                        let ticket = self.volume().ticket();
                        return Pending::Plan(plan, ticket);
                    }
                    WriteStart::Refused(error) => return Pending::Ended(Outcome::Count(Err(error))),
                    WriteStart::Later => {}
                }
                Operation::Write { handle, offset, data: data.clone(), unprivileged: None }
            }
            Action::Truncate(size) => {
                let changes = SetAttributes { size: Some(*size), ..SetAttributes::default() };
                Operation::SetAttributes { ino, changes }
            }
            &Action::Allocate { offset, length, mode } => {
                Operation::Allocate { handle, offset, length, mode }
            }
            &Action::Read { offset, length } => Operation::Read { handle, offset, length },
            Action::Other if matches!(step, Step::Sync) => Operation::Sync,
            Action::Other => Operation::Fsync { ino },
        };
        Pending::Ticket(self.volume().begin(operation))
    }

    /// Finds an order of what was asked of each file that explains what became of it.
    fn judge(
        &mut self,
        actions: Vec<(Ino, Action)>,
        outcomes: Vec<Outcome>,
        available: u64,
        wanted: u64,
        held: u64,
        moment: Moment,
    ) {
        let mut mutations: BTreeMap<Ino, Vec<Action>> = BTreeMap::new();
        let mut reads: Vec<(Ino, u64, usize, Vec<u8>)> = Vec::new();
        for ((ino, action), outcome) in actions.into_iter().zip(outcomes) {
            let result = match outcome {
                Outcome::Data(data) => {
                    let Action::Read { offset, length } = action else { panic!("{action:?} gave data") };
                    reads.push((ino, offset, length, data.unwrap().to_vec()));
                    continue;
                }
                Outcome::Count(result) => result.map(|_| ()),
                Outcome::Done(result) => result,
                Outcome::Attributes(result) => result.map(|_| ()),
                Outcome::Policy(_) => panic!("nobody asked for an explanation"),
            };
            let done = match action {
                _ if self.is_over_limit(&result, ino, wanted + held) => false,
                Action::Other => return_ok(result),
                _ => Self::unless_full(result, available, wanted).is_some(),
            };
            match action {
                Action::Other => {}
                action if done => mutations.entry(ino).or_default().push(action),
                _ => {}
            }
        }
        for (ino, offset, length, found) in reads {
            let before = self.tree.file(ino).clone();
            let states = match mutations.get(&ino) {
                Some(actions) => all_states(&before, actions),
                None => vec![before],
            };
            assert_possible(&states, offset, length, &found);
        }
        for (ino, actions) in mutations {
            let before = self.tree.file(ino).clone();
            let mut explained: Option<Contents> = None;
            let mut refused = Vec::new();
            let ends: Vec<Contents> = orders(actions.len())
                .into_iter()
                .map(|order| {
                    let mut after = before.clone();
                    order.iter().for_each(|&index| apply(&mut after, &actions[index]));
                    after
                })
                .collect();
            let ranges: Vec<_> = ends.iter().flat_map(Contents::interesting).collect();
            for after in ends {
                match &mut explained {
                    Some(found) if found.same_bytes(&after) => found.join_space(&after),
                    Some(_) => {}
                    None => match self.matches(ino, &after, &ranges) {
                        Ok(()) => explained = Some(after),
                        Err(why) => refused.push(why),
                    },
                }
            }
            let sketch: Vec<String> = actions.iter().map(sketch).collect();
            let Some(after) = explained else {
                panic!("inode {ino}: no order of {sketch:?} explains it: {refused:?}")
            };
            *self.tree.file(ino) = after;
            let changes_contents = |action: &Action| match action {
                Action::Allocate { offset, length, mode } => match mode {
                    AllocateMode::KeepSize => false,
                    AllocateMode::Extend => offset + length > before.size,
                    _ => true,
                },
                _ => true,
            };
            let node = self.tree.node(ino);
            node.ctime = moment;
            if actions.iter().any(changes_contents) {
                node.mtime = (node.mtime.0.min(moment.0), moment.1);
            }
            // Which of them came last decides; what stands there must be one or the other.
            let permissions = self.volume().core().attributes(ino).unwrap().permissions;
            let node = self.tree.node(ino);
            assert!([node.permissions, without_privileges(node.permissions)].contains(&permissions));
            node.permissions = permissions;
        }
    }

    // Comparing.

    fn matches(
        &mut self,
        ino: Ino,
        contents: &Contents,
        ranges: &[std::ops::Range<u64>],
    ) -> Result<(), String> {
        let attributes = self.volume().core().attributes(ino).unwrap();
        if attributes.size != contents.size {
            return Err(format!("size {}, expected {}", attributes.size, contents.size));
        }
        let flags = OpenFlags::READ | OpenFlags::DIRECT;
        let handle = self.volume().with(|core, _| core.open(ino, flags)).unwrap().handle;
        let mut difference = Ok(());
        for range in ranges {
            let length = (range.end - range.start) as usize;
            let found = self.volume().read(handle, range.start, length).unwrap();
            let expected = contents.read(range.start, length);
            if found != expected {
                difference = Err(describe(&found, &expected, range.start));
                break;
            }
        }
        self.volume().with(|core, now| core.release(now, handle));
        difference
    }

    fn check_seek(&mut self, handle: HandleId, ino: Ino, offset: u64, seek: Seek) -> Option<u64> {
        let found = match self.volume().core().seek(handle, offset, seek) {
            Ok(found) => Some(found),
            Err(Error::NoSuchOffset) => None,
            Err(error) => panic!("{error}"),
        };
        let contents = self.tree.file(ino);
        assert!(
            contents.may_find(offset, seek == Seek::Data, found),
            "inode {ino}: {seek:?} from {offset} found {found:?} in {} bytes: around it {:?}",
            contents.size,
            [contents.space_at(offset / 4096), contents.space_at(found.unwrap_or(0) / 4096)],
        );
        found
    }

    fn check_attributes(&mut self, ino: Ino) {
        let found = self.volume().core().attributes(ino).unwrap();
        let links = self.tree.links(ino);
        let node = &self.tree.nodes[&ino];
        assert_eq!(found.links, links, "inode {ino}: links");
        assert_eq!(
            (found.permissions, found.uid, found.gid),
            (node.permissions, node.uid, node.gid),
            "inode {ino}: owner"
        );
        assert!(
            (node.mtime.0..=node.mtime.1).contains(&found.mtime) || ino == Ino::ROOT,
            "inode {ino}: mtime {:?}, expected {:?}",
            found.mtime,
            node.mtime
        );
        assert!(
            found.ctime >= node.ctime.0 && (found.ctime <= node.ctime.1 || found.ctime == found.mtime),
            "inode {ino}: ctime {:?}, expected {:?}",
            found.ctime,
            node.ctime
        );
        match &node.body {
            Body::File(contents) => {
                assert_eq!(found.kind, FileKind::Regular);
                assert_eq!(found.size, contents.size, "inode {ino}: size");
                let blocks = contents.blocks();
                assert!(
                    found.blocks.is_multiple_of(8) && blocks.contains(&(found.blocks / 8)),
                    "inode {ino}: {} blocks, expected {blocks:?}",
                    found.blocks / 8
                );
            }
            Body::Directory(_) => assert_eq!(found.kind, FileKind::Directory),
            Body::Symlink(target) => {
                assert_eq!((found.kind, found.size), (FileKind::Symlink, target.len() as u64));
                let target = target.clone();
                assert_eq!(*self.volume().core().read_link(ino).unwrap(), *target);
            }
        }
    }

    /// Everything.
    pub(crate) fn compare(&mut self) {
        let all: Vec<Ino> = self.tree.nodes.keys().copied().collect();
        for ino in all {
            self.check_attributes(ino);
            let xattrs = self.tree.nodes[&ino].xattrs.clone();
            let names: Vec<u8> = xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect();
            assert_eq!(self.volume().core().list_xattrs(ino).unwrap(), names);
            for (name, value) in xattrs {
                assert_eq!(self.volume().core().get_xattr(ino, &name), Ok(&value[..]));
            }
            if self.tree.is_file(ino) {
                self.compare_file(ino);
            } else if self.tree.entries(ino).is_ok() {
                self.list(ino, 1000, None, false);
            }
        }
        self.volume().sync().unwrap();
        let space = self.space();
        let limited = self.tree.limited(&space);
        let core = self.volume().core();
        core.audit().unwrap();
        let reports = core.limits();
        let shown = reports.iter().map(|report| (Ino(report.ino), (report.used_bytes, report.used_files)));
        assert!(
            shown.eq(limited.iter().map(|(&ino, &(_, bytes, files))| (ino, (bytes, files)))),
            "{reports:?}"
        );
        let report = core.report();
        assert_eq!((report.dirty_bytes, report.failure), (0, None));
        let statistics = core.statistics();
        assert_eq!(statistics.free, statistics.available, "nothing is dirty, but something is claimed");
    }

    fn compare_file(&mut self, ino: Ino) {
        let contents = self.tree.file(ino).clone();
        let ranges = match contents.size {
            size @ 0..=SMALL => (0..size).step_by(1 << 20).map(|at| at..size.min(at + (1 << 20))).collect(),
            _ => contents.interesting(),
        };
        if let Err(why) = self.matches(ino, &contents, &ranges) {
            panic!("inode {ino}: {why}");
        }
        let flags = OpenFlags::READ | OpenFlags::DIRECT;
        let handle = self.volume().with(|core, _| core.open(ino, flags)).unwrap().handle;
        let (mut at, mut seek) = (0, Seek::Data);
        while let Some(found) = self.check_seek(handle, ino, at, seek) {
            seek = if seek == Seek::Data { Seek::Hole } else { Seek::Data };
            at = found;
        }
        self.volume().with(|core, now| core.release(now, handle));
    }

    fn list(&mut self, directory: Ino, entries: usize, remove: Option<u8>, plus: bool) {
        let mut expected = self.tree.entries(directory).unwrap().clone();
        let mut removed = None;
        let mut found = BTreeMap::new();
        let mut cookie = 0;
        for round in 0.. {
            let mut some = Vec::new();
            let each = &mut |entry: DirectoryEntry| {
                if some.len() == entries {
                    return false;
                }
                some.push(entry);
                true
            };
            let result = self.volume().with(|core, _| core.read_directory(directory, cookie, plus, each));
            result.unwrap();
            let Some(last) = some.last() else { break };
            cookie = last.cookie;
            for entry in some {
                if let Some(attributes) = &entry.entry {
                    assert_eq!(attributes.attributes.ino, entry.ino);
                    self.tree.node(entry.ino).lookups += 1;
                }
                let before = found.insert(entry.name.to_vec(), entry.ino);
                assert_eq!(before, None, "a name is listed twice");
            }
            if let Some(number) = remove
                && round == 0
            {
                let names: Vec<Vec<u8>> = expected.keys().cloned().collect();
                if !names.is_empty() {
                    let name = names[number as usize % names.len()].clone();
                    if self.tree.may_remove(directory, &name, false).is_ok() {
                        let (result, moment) = self.change(|core, now| core.unlink(now, directory, &name));
                        result.unwrap();
                        self.tree.remove(directory, &name, moment);
                        removed = expected.remove_entry(&name);
                    }
                }
            }
        }
        assert_eq!(found.remove(&b"."[..]), Some(directory));
        assert!(found.remove(&b".."[..]).is_some());
        if let Some((name, ino)) = removed {
            assert!(found.remove(&name).is_none_or(|found| found == ino));
        }
        assert_eq!(found, expected);
    }

    pub(crate) fn remount(&mut self) {
        self.remount_from(0);
    }

    fn remount_from(&mut self, extra: u64) {
        let named: Vec<Ino> = {
            let used = |ino: &&Ino| **ino == Ino::ROOT || !self.tree.nodes[ino].names.is_empty();
            self.tree.nodes.keys().filter(used).copied().collect()
        };
        let before: Vec<Attributes> =
            named.iter().map(|&ino| self.volume().core().attributes(ino).unwrap()).collect();
        let volume = self.volume.take().expect("mounted");
        let clock = volume.clock();
        let disk = volume.unmount().unwrap();
        self.seed = self.seed.wrapping_mul(31).wrapping_add(7 + extra);
        let mut volume = SimVolume::mount(disk, &self.pool, config(&self.character), self.seed).unwrap();
        volume.audit_every(self.character.audit_every);
        let missing = clock.saturating_since(volume.clock());
        self.volume = Some(volume);
        self.handles.clear();
        self.tree.nodes.retain(|ino, node| *ino == Ino::ROOT || !node.names.is_empty());
        for (ino, before) in named.iter().zip(before) {
            self.tree.node(*ino).lookups = 0;
            self.tree.node(*ino).opens = 0;
            let found = self.volume().core().attributes(*ino);
            assert_eq!(found, Ok(before), "inode {ino} after an unmount");
        }
        self.volume().pass(missing);
        self.compare();
        let inodes = self.volume().core().report().inodes;
        assert_eq!(inodes, self.tree.nodes.len() as u64, "orphans are gone");
    }
}

fn config(character: &Character) -> Config {
    let mut config = Config::default();
    config.journal.commit_age = Duration::from_millis(character.commit_milliseconds);
    config.journal.checkpoint_interval = Duration::from_millis(character.checkpoint_milliseconds);
    config
}

fn open_flags(write: bool, append: bool, sync: bool) -> OpenFlags {
    let mut flags = OpenFlags::READ;
    flags.set(OpenFlags::WRITE, write);
    flags.set(OpenFlags::APPEND, append);
    flags.set(OpenFlags::SYNC, sync);
    flags
}

/// A full volume shows at the write, never when it is made durable.
fn return_ok(result: Result<(), Error>) -> bool {
    result.unwrap();
    true
}

fn sketch(action: &Action) -> String {
    match action {
        Action::Write { offset, data } => format!("write {offset:?}+{}", data.len()),
        other => format!("{other:?}"),
    }
}

/// Every state a file can pass through while `actions` are done in any order.
fn all_states(before: &Contents, actions: &[Action]) -> Vec<Contents> {
    let mut states = vec![before.clone()];
    for order in orders(actions.len()) {
        let mut state = before.clone();
        for index in order {
            apply(&mut state, &actions[index]);
            if !states.iter().any(|other| other.same_bytes(&state)) {
                states.push(state.clone());
            }
        }
    }
    states
}

fn assert_possible(states: &[Contents], offset: u64, length: usize, found: &[u8]) {
    let lengths: Vec<usize> = states
        .iter()
        .map(|state| (state.size.min(offset.saturating_add(length as u64)).saturating_sub(offset)) as usize)
        .collect();
    assert!(lengths.contains(&found.len()), "{} bytes were read, possible are {lengths:?}", found.len());
    let candidates: Vec<Vec<u8>> = states
        .iter()
        .map(|state| {
            let mut bytes = state.read(offset, length);
            bytes.resize(length, 0);
            bytes
        })
        .collect();
    for start in (0..found.len()).step_by(512) {
        let end = (start + 512).min(found.len());
        if candidates.iter().any(|bytes| bytes[start..end] == found[start..end]) {
            continue;
        }
        for at in start..end {
            let known = candidates.iter().any(|bytes| bytes[at] == found[at]);
            assert!(known, "byte {} of a read was in no state", offset + at as u64);
        }
    }
}

fn describe(found: &[u8], expected: &[u8], offset: u64) -> String {
    if found.len() != expected.len() {
        return format!("{} bytes at {offset}, expected {}", found.len(), expected.len());
    }
    let differs = |at: &usize| found[*at] != expected[*at];
    let first = (0..found.len()).find(differs).unwrap_or(0);
    let last = (0..found.len()).rev().find(differs).unwrap_or(0);
    format!(
        "bytes {}..={} of it differ: the first is {}, expected {}",
        offset + first as u64,
        offset + last as u64,
        found[first],
        expected[first]
    )
}

fn assert_same(found: &[u8], expected: &[u8], ino: Ino, offset: u64) {
    assert!(found == expected, "inode {ino}: {}", describe(found, expected, offset));
}
