//! Operations drawn from a seed, carried out on a volume and noted in the model.

use crate::model::{Change, Key, Model, Node};
use avfs_core::Error;
use avfs_core::core::{Operation, Outcome, Ticket};
use avfs_core::limit::LIMIT_XATTR;
use avfs_core::simulation::SimVolume;
use avfs_core::types::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use units::Ino;

/// What a workload is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Longest write in bytes.
    pub(crate) longest_write: usize,
    /// Longest file in bytes.
    pub(crate) longest_file: u64,
    /// Longest value of an extended attribute in bytes.
    pub(crate) longest_xattr: usize,
    /// Names that may exist at once.
    pub(crate) most_names: usize,
    /// How often a namespace operation is drawn rather than one on data, in percent.
    pub(crate) names_percent: u32,
    /// How many of those are on attributes rather than names, in percent.
    pub(crate) attributes_percent: u32,
    /// How often anything is made durable, in percent.
    pub(crate) sync_percent: u32,
}

/// Small files and small changes: many moments at which something can go wrong, cheap to look at.
pub(crate) const SMALL: Shape = Shape {
    longest_write: 9000,
    longest_file: 60_000,
    longest_xattr: 300,
    most_names: 30,
    names_percent: 45,
    attributes_percent: 18,
    sync_percent: 14,
};

/// Files that are written in whole blocks of the cache.
pub(crate) const LARGE: Shape = Shape {
    longest_write: 3 << 20,
    longest_file: 20 << 20,
    longest_xattr: 100,
    most_names: 8,
    names_percent: 15,
    attributes_percent: 18,
    sync_percent: 8,
};

/// A namespace that grows, with attributes that fill the log.
pub(crate) const NAMES: Shape = Shape {
    longest_write: 600,
    longest_file: 5000,
    longest_xattr: 60_000,
    most_names: 200,
    names_percent: 92,
    attributes_percent: 50,
    sync_percent: 5,
};

/// Attributes of many files and nothing else: images that change all the time, in several shards.
pub(crate) const METADATA: Shape = Shape {
    longest_write: 600,
    longest_file: 5000,
    longest_xattr: 20_000,
    most_names: 700,
    names_percent: 100,
    attributes_percent: 75,
    sync_percent: 6,
};

/// Files that soon fill a small volume.
pub(crate) const FULL: Shape = Shape {
    longest_write: 8 << 20,
    longest_file: 60 << 20,
    longest_xattr: 3000,
    most_names: 40,
    names_percent: 15,
    attributes_percent: 18,
    sync_percent: 5,
};

pub(crate) struct Workload {
    pub(crate) volume: SimVolume,
    pub(crate) model: Model,
    pub(crate) random: SmallRng,
    shape: Shape,
    handles: BTreeMap<Ino, (HandleId, OpenFlags)>,
    /// Files that were made without a name and may have none yet.
    unnamed: Vec<Ino>,
    /// Syncs that run beside other operations.
    running: Vec<(Ticket, usize, Option<Key>)>,
    next_tag: usize,
    next_name: usize,
    /// Operations that failed because the device did. None is expected unless a fault was injected.
    pub(crate) device_errors: usize,
    /// The disk refuses something: what was written may be lost, and readers see that.
    pub(crate) is_faulty: bool,
    /// Operations that found the volume full.
    pub(crate) full: usize,
}

/// A name that is asked for and one that is not there yet.
type Place = (Ino, Vec<u8>);

impl Workload {
    /// On a mounted volume; the disk records from here on.
    pub(crate) fn new(mut volume: SimVolume, shape: Shape, seed: u64) -> Result<Self, String> {
        let model = Model::of(&mut volume)?;
        volume.disk().record();
        Ok(Self {
            volume,
            model,
            random: SmallRng::seed_from_u64(seed),
            shape,
            handles: BTreeMap::new(),
            unnamed: Vec::new(),
            running: Vec::new(),
            next_tag: 1,
            next_name: 0,
            device_errors: 0,
            is_faulty: false,
            full: 0,
        })
    }

    fn position(&self) -> usize {
        self.volume.disk().position()
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        match from.len() {
            0 => None,
            length => Some(from[self.random.random_range(0..length)].clone()),
        }
    }

    fn percent(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    /// Notes a refusal. Only those are tolerated that a correct caller can meet.
    fn check<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => return Some(value),
            // Read-only: after an error of the device.
            Err(Error::Device | Error::ReadOnly) => self.device_errors += 1,
            Err(Error::NoSpace) => self.full += 1,
            // Directories that are not empty or lie in themselves, names that exist, kinds that do not fit.
            Err(
                Error::NotEmpty
                | Error::InvalidArgument
                | Error::Exists
                | Error::NotDirectory
                | Error::IsDirectory
                | Error::NotFound
                | Error::OverLimit,
            ) => {}
            Err(other) => panic!("refused with {other}"),
        }
        None
    }

    /// One operation and a little time.
    pub(crate) fn step(&mut self) {
        let position = self.position();
        self.model.begin(position);
        let names_percent = self.shape.names_percent;
        if self.percent(self.shape.sync_percent) {
            self.make_durable();
        } else if self.percent(names_percent) {
            self.change_names();
        } else {
            self.change_data();
        }
        if self.percent(3) {
            for _ in 0..self.random.random_range(1..80) {
                self.volume.step();
            }
        }
        self.volume.drift();
        // As the frontend does it: metadata is held back while the log waits for a checkpoint.
        while self.volume.core().under_pressure() && self.volume.step() {}
        self.collect();
    }

    /// Notes what ended beside.
    fn collect(&mut self) {
        let position = self.position();
        let mut still = Vec::new();
        for (ticket, step, key) in std::mem::take(&mut self.running) {
            match self.volume.ended(ticket) {
                Some(Outcome::Done(Ok(()))) => self.model.sync_ended(position, step, key),
                Some(Outcome::Done(Err(Error::Device))) => self.device_errors += 1,
                Some(other) => panic!("a sync ended as {other:?}"),
                None => still.push((ticket, step, key)),
            }
        }
        self.running = still;
    }

    /// Waits for all that runs beside.
    pub(crate) fn settle(&mut self) {
        self.collect();
        for _ in 0..1_000_000 {
            if self.running.is_empty() {
                return;
            }
            assert!(self.volume.step(), "syncs wait for nothing");
            self.collect();
        }
        panic!("syncs never end");
    }

    // Durability.

    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        let covered = self.model.sync_begins(None);
        self.volume.sync()?;
        let position = self.position();
        self.model.sync_ended(position, covered, None);
        Ok(())
    }

    fn make_durable(&mut self) {
        let files = self.model.of_kind(FileKind::Regular);
        let file = self.pick(&files);
        match (self.random.random_range(0..10), file) {
            (0, _) | (_, None) => {
                let result = self.sync();
                self.check(result);
            }
            (1, _) => {
                let covered = self.model.sync_begins(None);
                let ticket = self.volume.begin(Operation::Sync);
                self.running.push((ticket, covered, None));
            }
            (2..=4, Some(ino)) => {
                let key = self.model.inodes[&ino].key;
                let covered = self.model.sync_begins(Some(key));
                let ticket = self.volume.begin(Operation::Fsync { ino });
                self.running.push((ticket, covered, Some(key)));
            }
            (_, Some(ino)) => {
                let key = self.model.inodes[&ino].key;
                let covered = self.model.sync_begins(Some(key));
                let result = self.volume.fsync(ino);
                if self.check(result).is_some() {
                    let position = self.position();
                    self.model.sync_ended(position, covered, Some(key));
                }
            }
        }
    }

    /// Removes every second file.
    pub(crate) fn remove_half(&mut self) {
        let places: Vec<Place> = self.model.names.keys().cloned().collect();
        for (parent, name) in places.into_iter().step_by(2) {
            let ino = self.model.names[&(parent, name.clone())];
            let position = self.position();
            self.model.begin(position);
            self.close(ino);
            if self.model.inodes[&ino].kind != FileKind::Directory {
                let result = self.volume.with(|core, now| core.unlink(now, parent, &name));
                result.expect("a full volume lets files be removed");
                self.unname(parent, &name);
            }
        }
    }

    // Data.

    /// An open handle, of those there are or a new one.
    fn handle(&mut self, ino: Ino) -> Option<(HandleId, OpenFlags)> {
        if let Some(&handle) = self.handles.get(&ino) {
            return Some(handle);
        }
        let mut flags = OpenFlags::READ | OpenFlags::WRITE;
        flags.set(OpenFlags::SYNC, self.percent(12));
        flags.set(OpenFlags::APPEND, self.percent(15));
        let opened = self.volume.with(|core, _| core.open(ino, flags));
        let opened = self.check(opened)?;
        self.handles.insert(ino, (opened.handle, flags));
        if self.handles.len() > 6 {
            let open: Vec<Ino> = self.handles.keys().copied().filter(|&other| other != ino).collect();
            let closed = self.pick(&open)?;
            self.close(closed);
        }
        Some((opened.handle, flags))
    }

    fn close(&mut self, ino: Ino) {
        if let Some((handle, _)) = self.handles.remove(&ino) {
            self.volume.with(|core, now| core.release(now, handle));
            self.forget(ino);
            self.forget_unnamed();
        }
    }

    fn forget(&mut self, ino: Ino) {
        self.volume.with(|core, now| core.forget(now, ino, u64::MAX));
    }

    fn forget_unnamed(&mut self) {
        let open: BTreeSet<Ino> = self.handles.keys().copied().collect();
        self.model.forget_unnamed(&open);
    }

    fn change_data(&mut self) {
        let mut files = self.model.of_kind(FileKind::Regular);
        files.extend(self.handles.keys());
        let Some(ino) = self.pick(&files) else { return self.make(FileKind::Regular) };
        let Some((handle, flags)) = self.handle(ino) else { return };
        let key = self.model.inodes[&ino].key;
        let size = self.model.files[key].content.len() as u64;
        let longest = self.shape.longest_file;
        match self.random.random_range(0..24) {
            20..=23 => self.copy(ino),
            0..=9 => {
                let length = match self.random.random_range(0..4) {
                    0 => self.random.random_range(1..200),
                    1 => 4096 * self.random.random_range(1..=self.shape.longest_write.div_ceil(4096)),
                    _ => self.random.random_range(1..=self.shape.longest_write),
                };
                let offset = match self.random.random_range(0..5) {
                    0 | 1 => size,
                    2 => self.random.random_range(0..=size) / 4096 * 4096,
                    3 => self.random.random_range(0..=size),
                    _ => self.random.random_range(0..=size + longest / 10),
                };
                self.write(key, handle, flags, offset, length);
            }
            10 | 11 => self.verify(key, handle),
            12 | 13 => {
                let size = match self.random.random_range(0..3) {
                    0 => 0,
                    1 => self.random.random_range(0..=size),
                    _ => self.random.random_range(0..=longest.min(size + longest / 10)),
                };
                let changes = SetAttributes { size: Some(size), ..SetAttributes::default() };
                let result = self.volume.set_attributes(ino, changes);
                if self.check(result).is_some() {
                    self.model.change(key, Change::Truncate { size });
                }
            }
            14..=17 => {
                let start = self.random.random_range(0..=size);
                let end = start + self.random.random_range(1..=longest / 4);
                let (start, end) = if self.percent(40) {
                    (start / 4096 * 4096, end.next_multiple_of(4096))
                } else {
                    (start, end)
                };
                let end = end.min(longest);
                if start < end {
                    self.allocate(key, handle, start..end);
                }
            }
            _ => self.close(ino),
        }
    }

    /// A part of a file becomes that of another one, or of this one elsewhere. Mostly of whole blocks, which are shared then.
    fn copy(&mut self, from: Ino) {
        let mut files = self.model.of_kind(FileKind::Regular);
        files.extend(self.handles.keys());
        let Some(to) = self.pick(&files) else { return };
        let (Some(_), Some((target, flags))) = (self.handle(from), self.handle(to)) else { return };
        let Some(&(source, _)) = self.handles.get(&from) else { return };
        // copy_file_range(2) refuses who appends. What was lost of a source is lost in its copy.
        if flags.contains(OpenFlags::APPEND) || self.is_faulty {
            return;
        }
        let (from_key, key) = (self.model.inodes[&from].key, self.model.inodes[&to].key);
        let content = self.model.files[from_key].content.clone();
        let size = self.model.files[key].content.len() as u64;
        let aligned = self.percent(75);
        let mut place = |most: u64| {
            let at = self.random.random_range(0..=most);
            if aligned { at / 4096 * 4096 } else { at }
        };
        let (from_offset, to_offset) = (place(content.len() as u64 / 2), place(size));
        let length = if self.percent(50) {
            u64::MAX / 4
        } else {
            self.random.random_range(1..=self.shape.longest_file)
        };
        let length = length.min(content.len() as u64 - from_offset);
        if to_offset + length > self.shape.longest_file {
            return;
        }
        let copy = CopyRange { from: source, from_offset, to: target, to_offset, length };
        let result = self.volume.copy(copy);
        if let Some(copied) = self.check(result).filter(|&copied| copied > 0) {
            let bytes = content[from_offset as usize..(from_offset + copied) as usize].to_vec();
            self.model.change(key, Change::Copy { offset: to_offset, bytes: Arc::new(bytes) });
            if flags.contains(OpenFlags::SYNC) {
                let covered = self.model.sync_begins(Some(key));
                let position = self.position();
                self.model.sync_ended(position, covered, Some(key));
            }
        }
    }

    fn write(&mut self, key: Key, handle: HandleId, flags: OpenFlags, offset: u64, length: usize) {
        let size = self.model.files[key].content.len() as u64;
        let offset = if flags.contains(OpenFlags::APPEND) { size } else { offset };
        let tag = self.next_tag;
        self.next_tag += 1;
        if offset + length as u64 > self.shape.longest_file {
            return;
        }
        // Noted before the answer: a durable write is covered by its own acknowledgement.
        let data = crate::model::pattern(key, tag, offset, length);
        let result = self.volume.write(handle, offset, &data);
        if self.check(result).is_some_and(|count| count == length) {
            self.model.change(key, Change::Write { offset, length, tag });
            if flags.contains(OpenFlags::SYNC) {
                let covered = self.model.sync_begins(Some(key));
                let position = self.position();
                self.model.sync_ended(position, covered, Some(key));
            }
        } else {
            // A durable write that failed may have reached the file in part.
            self.model.attempted(key, Change::Write { offset, length, tag });
        }
    }

    fn allocate(&mut self, key: Key, handle: HandleId, range: std::ops::Range<u64>) {
        let modes = [
            AllocateMode::Extend,
            AllocateMode::KeepSize,
            AllocateMode::PunchHole,
            AllocateMode::PunchHole,
            AllocateMode::ZeroRange,
            AllocateMode::ZeroRangeKeepSize,
        ];
        let Some(mode) = self.pick(&modes) else { return };
        let result = self.volume.allocate(handle, range.start, range.end - range.start, mode);
        let end = range.end;
        if self.check(result).is_none() {
            // What was to be zeroed may be, even where the space to keep for it was not there.
            if !matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize) {
                self.adopt(key, handle, range);
            }
            return;
        }
        if !matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize) {
            self.model.change(key, Change::Zero { range });
        }
        if matches!(mode, AllocateMode::Extend | AllocateMode::ZeroRange) {
            self.model.change(key, Change::Extend { size: end });
        }
    }

    /// An operation that was to make zeros failed: each byte is zero or as it was, and that is it from now on.
    fn adopt(&mut self, key: Key, handle: HandleId, range: std::ops::Range<u64>) {
        self.model.attempted(key, Change::Zero { range: range.clone() });
        let mut at = if self.device_errors > 0 || self.is_faulty { u64::MAX } else { range.start };
        while at < range.end.min(self.model.files[key].content.len() as u64) {
            let length = 4096 - at % 4096;
            let Ok(read) = self.volume.read(handle, at, length as usize) else { return };
            let now = &mut self.model.files[key].content[at as usize..at as usize + read.len()];
            let zeroed = read.iter().zip(&*now).all(|(read, old)| read == old || *read == 0);
            assert!(zeroed, "file {key} at {at}");
            now.copy_from_slice(&read);
            at += length;
        }
    }

    /// Reads what should be there.
    fn verify(&mut self, key: Key, handle: HandleId) {
        let size = self.model.files[key].content.len();
        let offset = self.random.random_range(0..=size);
        let length = self.random.random_range(1..=self.shape.longest_write);
        let read = self.volume.read(handle, offset as u64, length);
        // A durable write that failed with the device is seen by readers and not in the model.
        if let Some(read) = self.check(read).filter(|_| self.device_errors == 0 && !self.is_faulty) {
            let end = (offset + length).min(size);
            assert!(read == self.model.files[key].content[offset..end], "file {key} at {offset}..{end}");
        }
    }

    // Names.

    fn new_place(&mut self) -> Option<Place> {
        let directories = self.model.directories();
        self.next_name += 1;
        let name = match self.random.random_range(0..3) {
            0 => format!("A{:03}C{:03}.mxf", self.next_name, self.next_name % 7),
            1 => format!("{}", self.next_name % 23),
            _ => "x".repeat(1 + self.next_name % 255),
        };
        Some((self.pick(&directories)?, name.into_bytes()))
    }

    fn old_place(&mut self) -> Option<Place> {
        let length = self.model.names.len();
        if length == 0 {
            return None;
        }
        let index = self.random.random_range(0..length);
        self.model.names.keys().nth(index).cloned()
    }

    fn make(&mut self, kind: FileKind) {
        let Some((parent, name)) = self.new_place() else { return };
        let target: &[u8] = if kind == FileKind::Symlink { b"../elsewhere" } else { b"" };
        let made = self.volume.with(|core, now| match kind {
            FileKind::Directory => core.make_directory(now, Caller::default(), parent, &name, 0o755, 0),
            FileKind::Symlink => core.make_symlink(now, Caller::default(), parent, &name, target),
            _ => core.make_node(now, Caller::default(), parent, &name, kind, 0o644, 0, 0),
        });
        let Some(entry) = self.check(made) else { return };
        let ino = entry.attributes.ino;
        self.note_new(kind, &entry, target);
        self.model.named(parent, &name, ino);
        self.forget(ino);
    }

    /// An inode without a name.
    fn note_new(&mut self, kind: FileKind, entry: &Entry, target: &[u8]) {
        let ino = entry.attributes.ino;
        let node = Node {
            kind,
            generation: entry.generation,
            permissions: entry.attributes.permissions,
            flags: self.volume.core().flags(ino).unwrap(),
            xattrs: BTreeMap::new(),
            target: target.to_vec(),
            links: 0,
            key: 0,
        };
        self.model.created(ino, node);
    }

    /// A file that has no name until it is linked, or never: only who has it open knows it.
    fn make_unnamed(&mut self) {
        let directories = self.model.directories();
        let Some(parent) = self.pick(&directories) else { return };
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let made = self
            .volume
            .with(|core, now| core.create_unnamed(now, Caller::default(), parent, 0o600, 0, flags));
        let Some((entry, opened)) = self.check(made) else { return };
        self.note_new(FileKind::Regular, &entry, &[]);
        self.handles.insert(entry.attributes.ino, (opened.handle, flags));
        self.unnamed.push(entry.attributes.ino);
    }

    /// One more name, or the first.
    fn link(&mut self, ino: Ino) {
        let Some((parent, name)) = self.new_place() else { return };
        let result = self.volume.with(|core, now| core.link(now, ino, parent, &name));
        if self.check(result).is_some() {
            self.model.named(parent, &name, ino);
            self.unnamed.retain(|unnamed| *unnamed != ino);
            if !self.handles.contains_key(&ino) {
                self.forget(ino);
            }
        }
    }

    /// A name is gone. Its inode may be too.
    fn unname(&mut self, parent: Ino, name: &[u8]) {
        self.model.unnamed(parent, name);
        self.forget_unnamed();
    }

    fn change_names(&mut self) {
        let full = self.model.names.len() >= self.shape.most_names;
        if self.percent(self.shape.attributes_percent) {
            return self.set_attribute();
        }
        match self.random.random_range(0..100) {
            0..=35 if !full => self.make(FileKind::Regular),
            36..=45 if !full => self.make(FileKind::Directory),
            46..=49 if !full => self.make(FileKind::Symlink),
            50..=57 if !full => {
                let files = self.model.of_kind(FileKind::Regular);
                let unnamed = std::mem::take(&mut self.unnamed);
                self.unnamed = unnamed.into_iter().filter(|ino| self.handles.contains_key(ino)).collect();
                let unnamed = self.unnamed.clone();
                match (self.pick(&unnamed), self.pick(&files)) {
                    (Some(ino), _) | (None, Some(ino)) => self.link(ino),
                    _ => {}
                }
            }
            58..=61 => self.make_unnamed(),
            62..=80 => self.rename(),
            _ => {
                let Some((parent, name)) = self.old_place() else { return };
                let ino = self.model.names[&(parent, name.clone())];
                let directory = self.model.inodes[&ino].kind == FileKind::Directory;
                let result = self.volume.with(|core, now| match directory {
                    true => core.remove_directory(now, parent, &name),
                    false => core.unlink(now, parent, &name),
                });
                if self.check(result).is_some() {
                    self.unname(parent, &name);
                }
            }
        }
    }

    fn rename(&mut self) {
        let Some((parent, name)) = self.old_place() else { return };
        let onto_existing = self.percent(50);
        let target = if onto_existing { self.old_place() } else { self.new_place() };
        let Some((new_parent, new_name)) = target else { return };
        let exchange = onto_existing && self.percent(40);
        let whiteout = !exchange && self.percent(15);
        let mut flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        flags.set(RenameFlags::WHITEOUT, whiteout);
        let caller = Caller::default();
        let result = self
            .volume
            .with(|core, now| core.rename(now, caller, parent, &name, new_parent, &new_name, flags));
        if self.check(result).is_none() {
            return;
        }
        let source = self.model.names[&(parent, name.clone())];
        let target = self.model.names.get(&(new_parent, new_name.clone())).copied();
        if target == Some(source) {
            return;
        }
        // Names leave only after they came, so that no inode is without one in between.
        if let Some(target) = target {
            let placeholder = (Ino::ROOT, b"\0".to_vec());
            self.model.named(placeholder.0, &placeholder.1, target);
            self.model.unnamed(new_parent, &new_name);
            self.model.named(new_parent, &new_name, source);
            self.model.unnamed(parent, &name);
            if exchange {
                self.model.named(parent, &name, target);
            }
            self.unname(placeholder.0, &placeholder.1);
        } else {
            self.model.named(new_parent, &new_name, source);
            self.model.unnamed(parent, &name);
        }
        if whiteout {
            let found = self.volume.with(|core, _| core.lookup(parent, &name));
            let entry = found.expect("what takes the source's place");
            self.note_new(FileKind::CharacterDevice, &entry, &[]);
            self.model.named(parent, &name, entry.attributes.ino);
            self.forget(entry.attributes.ino);
        }
    }

    /// Limits of directories: enough for most, so that volumes still become full.
    fn set_limit(&mut self) {
        let directories = self.model.directories();
        let Some(ino) = self.pick(&directories).filter(|ino| self.model.inodes.contains_key(ino)) else {
            return;
        };
        let size = self.random.random_range(4096..=self.shape.longest_file * 4);
        let files = self.random.random_range(1..=self.shape.most_names);
        let (name, value) = (LIMIT_XATTR.as_bytes(), format!("size={size} files={files}").into_bytes());
        let result =
            self.volume.with(|core, now| core.set_xattr(now, ino, name, &value, XattrFlags::empty()));
        if self.check(result).is_some() {
            self.model.alter(ino, |node| drop(node.xattrs.insert(name.to_vec(), value)));
        }
    }

    fn set_attribute(&mut self) {
        if self.percent(10) {
            return self.set_limit();
        }
        let inodes: Vec<Ino> =
            self.model.inodes.iter().filter(|(_, node)| node.links > 0).map(|(&ino, _)| ino).collect();
        let Some(ino) = self.pick(&inodes) else { return };
        match self.random.random_range(0..7) {
            6 => {
                // Those that forbid nothing: what the others forbid, every other operation would have to know.
                let flags = InodeFlags::from_bits_retain(self.random.random_range(0..4) << 2);
                let result = self.volume.with(|core, now| core.set_flags(now, ino, flags));
                if self.check(result).is_some() {
                    self.model.alter(ino, |node| node.flags = flags);
                }
            }
            0 | 1 => {
                let permissions = self.random.random_range(0..0o1000);
                let changes = SetAttributes { permissions: Some(permissions), ..SetAttributes::default() };
                let result = self.volume.set_attributes(ino, changes);
                if self.check(result).is_some() {
                    self.model.alter(ino, |node| node.permissions = permissions);
                }
            }
            2 => {
                let names: Vec<Vec<u8>> = self.model.inodes[&ino].xattrs.keys().cloned().collect();
                let Some(name) = self.pick(&names) else { return };
                let result = self.volume.with(|core, now| core.remove_xattr(now, ino, &name));
                if self.check(result).is_some() {
                    self.model.alter(ino, |node| drop(node.xattrs.remove(&name)));
                }
            }
            _ => {
                let name = format!("user.{}", self.random.random_range(0..4)).into_bytes();
                let draw = |random: &mut SmallRng| random.random_range(0..=self.shape.longest_xattr);
                let length = draw(&mut self.random).max(draw(&mut self.random));
                let value = vec![self.random.random(); length];
                let result = self
                    .volume
                    .with(|core, now| core.set_xattr(now, ino, &name, &value, XattrFlags::empty()));
                if self.check(result).is_some() {
                    self.model.alter(ino, |node| drop(node.xattrs.insert(name, value)));
                }
            }
        }
    }
}
