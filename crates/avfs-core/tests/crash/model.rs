//! What a volume may hold after a loss of power.
//!
//! The journal is one sequence, so the namespace of a recovered volume must be, exactly, the one after some operation
//! of the workload: not before the last one that was acknowledged as durable, and not after the last one that had
//! begun. File contents are not journaled, so each byte is judged by itself: it is what it was when the file was last
//! synced, or what a later operation made of it.

use avfs_core::simulation::SimVolume;
use avfs_core::types::*;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use units::Ino;

/// Names a file for good: inode numbers are used again.
pub(crate) type Key = usize;

/// What a write of `key`, marked `tag`, puts at `offset`: no two writes and no two files have the same bytes.
pub(crate) fn pattern(key: Key, tag: usize, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 16);
    let first = offset / 8;
    for word in first..=(offset + length as u64) / 8 {
        let mut mixed = word.wrapping_mul(0x9E37_79B9_7F4A_7C15)
            ^ (key as u64).wrapping_mul(0xC2B2_AE3D_27D4_EB4F)
            ^ (tag as u64).wrapping_mul(0x1656_67B1_9E37_79F9);
        mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bytes.extend_from_slice(&(mixed ^ (mixed >> 32)).to_le_bytes());
    }
    let skip = (offset - first * 8) as usize;
    bytes[skip..skip + length].to_vec()
}

#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Bytes of [`pattern`].
    Write { offset: u64, length: usize, tag: usize },
    /// Bytes of another file, or of another place in this one.
    Copy { offset: u64, bytes: Arc<Vec<u8>> },
    /// A new length, shorter or longer.
    Truncate { size: u64 },
    /// Zeros; the length stays.
    Zero { range: Range<u64> },
    /// At least this long.
    Extend { size: u64 },
}

#[derive(Debug)]
struct Attempt {
    /// The operation that made it.
    step: usize,
    change: Change,
    /// False when the operation failed.
    done: bool,
}

#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) content: Vec<u8>,
    changes: Vec<Attempt>,
    /// What it was when a sync of it began, by the last operation before.
    synced: Vec<(usize, Arc<Vec<u8>>)>,
}

impl File {
    fn apply(content: &mut Vec<u8>, key: Key, change: &Change) {
        match change {
            Change::Write { offset, length, tag } => {
                let end = *offset as usize + length;
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*offset as usize..end].copy_from_slice(&pattern(key, *tag, *offset, *length));
            }
            Change::Copy { offset, bytes } => {
                let end = *offset as usize + bytes.len();
                content.resize(content.len().max(end), 0);
                content[*offset as usize..end].copy_from_slice(bytes);
            }
            Change::Truncate { size } => content.resize(*size as usize, 0),
            Change::Zero { range } => {
                let end = (range.end as usize).min(content.len());
                let start = (range.start as usize).min(end);
                content[start..end].fill(0);
            }
            Change::Extend { size } => content.resize(content.len().max(*size as usize), 0),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: FileKind,
    pub(crate) generation: u64,
    pub(crate) permissions: u16,
    pub(crate) flags: InodeFlags,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) target: Vec<u8>,
    pub(crate) links: usize,
    /// Of a regular file.
    pub(crate) key: Key,
}

fn hashed(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Node {
    pub(crate) fn digest(&self, ino: Ino) -> u64 {
        let named = (self.permissions, self.flags, &self.xattrs, &self.target);
        hashed((ino, self.kind, self.generation, named))
    }
}

fn name_digest(parent: Ino, name: &[u8], ino: Ino) -> u64 {
    hashed((parent, name, ino))
}

/// An operation of the workload. Number 0 is what was there before.
#[derive(Debug)]
struct Step {
    /// Where the disk stood when it began: nothing of it is in an image of an earlier cut.
    begun: usize,
    /// Of the namespace after it.
    digest: u64,
}

/// Something was acknowledged as durable.
#[derive(Debug)]
struct Durable {
    /// Where the disk stood when it was acknowledged.
    position: usize,
    /// The last operation it covers.
    step: usize,
    /// The file it covers; `None`: all of them. Names are always covered.
    key: Option<Key>,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) names: BTreeMap<(Ino, Vec<u8>), Ino>,
    pub(crate) inodes: BTreeMap<Ino, Node>,
    pub(crate) files: Vec<File>,
    births: BTreeMap<(Ino, u64), Key>,
    steps: Vec<Step>,
    durable: Vec<Durable>,
    digest: u64,
}

/// A volume's namespace as it is found.
pub(crate) struct Found {
    names: BTreeMap<(Ino, Vec<u8>), Ino>,
    inodes: BTreeMap<Ino, Node>,
    pub(crate) digest: u64,
}

/// Reads the whole namespace.
pub(crate) fn walk(volume: &mut SimVolume) -> Result<Found, String> {
    let mut found = Found { names: BTreeMap::new(), inodes: BTreeMap::new(), digest: 0 };
    let mut directories = vec![Ino::ROOT];
    while let Some(directory) = directories.pop() {
        let mut entries = Vec::new();
        volume
            .with(|core, _| {
                core.read_directory(directory, 2, true, &mut |entry| {
                    entries.push(entry);
                    true
                })
            })
            .map_err(|error| format!("directory {directory}: {error}"))?;
        for DirectoryEntry { name, ino, kind, entry, .. } in entries {
            let entry = entry.ok_or("an entry without attributes")?;
            let looked_up = volume.with(|core, _| core.lookup(directory, &name));
            if looked_up.map(|entry| entry.attributes.ino) != Ok(ino) {
                return Err(format!("{name:?} in {directory} is read as {ino}, looked up as {looked_up:?}"));
            }
            found.digest ^= name_digest(directory, &name, ino);
            if found.names.insert((directory, name.to_vec()), ino).is_some() {
                return Err(format!("{:?} stands twice in {directory}", String::from_utf8_lossy(&name)));
            }
            if let Some(known) = found.inodes.get_mut(&ino) {
                known.links += 1;
                if kind == FileKind::Directory {
                    return Err(format!("directory {ino} has two names"));
                }
                continue;
            }
            let core = volume.core();
            let names = core.list_xattrs(ino).map_err(|error| format!("{ino}: {error}"))?;
            let mut xattrs = BTreeMap::new();
            for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
                let value = core.get_xattr(ino, name).map_err(|error| format!("{ino}: {error}"))?;
                xattrs.insert(name.to_vec(), value.to_vec());
            }
            let target = match kind {
                FileKind::Symlink => core.read_link(ino).map_err(|error| format!("{ino}: {error}"))?.to_vec(),
                _ => Vec::new(),
            };
            let node = Node {
                kind,
                generation: entry.generation,
                permissions: entry.attributes.permissions,
                flags: core.flags(ino).map_err(|error| format!("{ino}: {error}"))?,
                xattrs,
                target,
                links: 1,
                key: 0,
            };
            found.digest ^= node.digest(ino);
            found.inodes.insert(ino, node);
            if kind == FileKind::Directory {
                directories.push(ino);
            }
        }
    }
    for (&ino, node) in &found.inodes {
        let attributes = volume.core().attributes(ino).map_err(|error| format!("{ino}: {error}"))?;
        let expected = match node.kind {
            FileKind::Directory => {
                let below = found.names.iter().filter(|((parent, _), child)| {
                    *parent == ino && found.inodes[child].kind == FileKind::Directory
                });
                2 + below.count()
            }
            _ => node.links,
        };
        if attributes.links as usize != expected {
            return Err(format!("inode {ino} has {expected} links and counts {}", attributes.links));
        }
    }
    Ok(found)
}

/// All bytes of a file.
pub(crate) fn read_all(volume: &mut SimVolume, ino: Ino) -> Result<Vec<u8>, String> {
    let describe = |error| format!("reading inode {ino}: {error}");
    let handle = volume.open(ino).map_err(describe)?;
    let size = volume.core().attributes(ino).map_err(describe)?.size;
    let mut content = Vec::new();
    while (content.len() as u64) < size {
        let read = volume.read(handle, content.len() as u64, 1 << 20).map_err(describe)?;
        if read.is_empty() {
            return Err(format!("inode {ino} of {size} bytes ends at {}", content.len()));
        }
        content.extend(read);
    }
    volume.with(|core, now| core.release(now, handle));
    Ok(content)
}

impl Model {
    /// What is on a volume now: all of it durable.
    pub(crate) fn of(volume: &mut SimVolume) -> Result<Self, String> {
        let found = walk(volume)?;
        let mut model = Self {
            names: found.names,
            inodes: found.inodes,
            files: Vec::new(),
            births: BTreeMap::new(),
            steps: vec![Step { begun: 0, digest: found.digest }],
            durable: vec![Durable { position: 0, step: 0, key: None }],
            digest: found.digest,
        };
        let regular: Vec<Ino> = model.regular().collect();
        for ino in regular {
            let content = read_all(volume, ino)?;
            let key = model.files.len();
            let synced = vec![(0, Arc::new(content.clone()))];
            model.files.push(File { content, changes: Vec::new(), synced });
            let node = model.inodes.get_mut(&ino).ok_or("a regular file is an inode")?;
            node.key = key;
            model.births.insert((ino, node.generation), key);
        }
        Ok(model)
    }

    fn regular(&self) -> impl Iterator<Item = Ino> {
        self.inodes.iter().filter(|(_, node)| node.kind == FileKind::Regular).map(|(&ino, _)| ino)
    }

    // The workload tells.

    /// An operation begins. Returns its number.
    pub(crate) fn begin(&mut self, position: usize) -> usize {
        self.steps.push(Step { begun: position, digest: self.digest });
        self.steps.len() - 1
    }

    /// The last operation that has begun.
    pub(crate) fn last(&self) -> usize {
        self.steps.len() - 1
    }

    fn changed(&mut self, digest: u64) {
        self.digest ^= digest;
        let digest = self.digest;
        self.steps.last_mut().expect("number 0 is always there").digest = digest;
    }

    pub(crate) fn created(&mut self, ino: Ino, mut node: Node) -> Key {
        if node.kind == FileKind::Regular {
            node.key = self.files.len();
            self.births.insert((ino, node.generation), node.key);
            self.files.push(File::default());
        }
        let key = node.key;
        node.links = 0;
        self.inodes.insert(ino, node);
        key
    }

    /// A name appears; with its first one the inode does.
    pub(crate) fn named(&mut self, parent: Ino, name: &[u8], ino: Ino) {
        let node = self.inodes.get_mut(&ino).expect("only what exists is named");
        node.links += 1;
        let first = if node.links == 1 { node.digest(ino) } else { 0 };
        self.names.insert((parent, name.to_vec()), ino);
        self.changed(first ^ name_digest(parent, name, ino));
    }

    /// A name disappears; with its last one the inode does, for those who look.
    pub(crate) fn unnamed(&mut self, parent: Ino, name: &[u8]) -> Option<Ino> {
        let ino = self.names.remove(&(parent, name.to_vec()))?;
        let node = self.inodes.get_mut(&ino).expect("only what exists is named");
        node.links -= 1;
        let last = if node.links == 0 { node.digest(ino) } else { 0 };
        self.changed(last ^ name_digest(parent, name, ino));
        Some(ino)
    }

    /// An inode's attributes change.
    pub(crate) fn alter(&mut self, ino: Ino, alter: impl FnOnce(&mut Node)) {
        let Some(node) = self.inodes.get_mut(&ino) else { return };
        let before = node.digest(ino);
        alter(node);
        let after = node.digest(ino);
        if node.links > 0 {
            self.changed(before ^ after);
        }
    }

    /// A file's contents change, by the operation that began last.
    pub(crate) fn change(&mut self, key: Key, change: Change) {
        let step = self.last();
        let file = &mut self.files[key];
        File::apply(&mut file.content, key, &change);
        file.changes.push(Attempt { step, change, done: true });
    }

    /// An operation failed that may have changed the file in part: what it would have done is allowed from now on,
    /// never expected.
    pub(crate) fn attempted(&mut self, key: Key, change: Change) {
        let step = self.last();
        self.files[key].changes.push(Attempt { step, change, done: false });
    }

    /// What a sync that begins now will cover, when it is acknowledged.
    pub(crate) fn sync_begins(&mut self, key: Option<Key>) -> usize {
        let step = self.last();
        let keys = match key {
            Some(key) => key..key + 1,
            None => 0..self.files.len(),
        };
        for file in &mut self.files[keys] {
            let changed = file.changes.last().map_or(0, |attempt| attempt.step);
            if file.synced.last().is_none_or(|&(synced, _)| synced < changed) {
                file.synced.push((step, Arc::new(file.content.clone())));
            }
        }
        step
    }

    pub(crate) fn sync_ended(&mut self, position: usize, step: usize, key: Option<Key>) {
        self.durable.push(Durable { position, step, key });
    }

    // The judgement.

    /// Judges what a loss of power at `cut` has left. Returns the namespace's digest.
    pub(crate) fn judge(&self, cut: usize, volume: &mut SimVolume) -> Result<u64, String> {
        let found = walk(volume)?;
        let acknowledged = || self.durable.iter().filter(|durable| durable.position <= cut);
        let first = acknowledged().map(|durable| durable.step).max().unwrap_or(0);
        let last = self.steps.partition_point(|step| step.begun <= cut) - 1;
        let Some(at_least) = (first..=last).find(|&step| self.steps[step].digest == found.digest) else {
            let elsewhere = self.steps.iter().position(|step| step.digest == found.digest);
            return Err(format!(
                "the namespace is none of those after operations {first} to {last}, but {elsewhere:?}'s: {:?}",
                found.names
            ));
        };
        for (&ino, node) in found.inodes.iter().filter(|(_, node)| node.kind == FileKind::Regular) {
            let key = *self.births.get(&(ino, node.generation)).ok_or("a file that was never made")?;
            let covered = acknowledged().filter(|durable| durable.key.is_none_or(|covered| covered == key));
            let synced = covered.map(|durable| durable.step).max().unwrap_or(0);
            let content = read_all(volume, ino)?;
            self.judge_file(key, &content, synced, at_least, last)
                .map_err(|error| format!("inode {ino}, file {key}: {error}"))?;
        }
        Ok(found.digest)
    }

    /// `synced`: the last operation whose effect on this file must be there. `journaled`: the last one whose records
    /// are known to be. `last`: the last one that may have had any effect.
    fn judge_file(
        &self,
        key: Key,
        content: &[u8],
        synced: usize,
        journaled: usize,
        last: usize,
    ) -> Result<(), String> {
        let file = &self.files[key];
        let base = file.synced.iter().rev().find(|&&(step, _)| step <= synced);
        // A sync that found nothing changed since the one before has left no copy of its own.
        let (from, base) = base.map_or((0, None), |(step, base)| (*step, Some(base)));
        let base: &[u8] = base.map_or(&[], |base| base);
        let later = || file.changes.iter().filter(|attempt| attempt.step > from && attempt.step <= last);
        if content == base && later().next().is_none() {
            return Ok(());
        }
        let mut now = base.len() as u64;
        let mut sizes = now..=now;
        let mut good: Vec<bool> = Vec::with_capacity(content.len());
        good.extend(content.iter().zip(base).map(|(found, expected)| found == expected));
        good.extend(content.iter().skip(base.len()).map(|&found| found == 0));
        for Attempt { step, change, done } in later() {
            let certain = *done && *step <= journaled;
            match change {
                Change::Write { offset, length, tag } => {
                    let bytes = pattern(key, *tag, *offset, *length);
                    let start = (*offset as usize).min(content.len());
                    let found = content[start..].iter().zip(&mut good[start..]);
                    for (expected, (found, good)) in bytes.iter().zip(found) {
                        *good |= expected == found;
                    }
                    now = now.max(offset + *length as u64);
                }
                Change::Copy { offset, bytes } => {
                    let start = (*offset as usize).min(content.len());
                    let found = content[start..].iter().zip(&mut good[start..]);
                    for (expected, (found, good)) in bytes.iter().zip(found) {
                        *good |= expected == found;
                    }
                    now = now.max(offset + bytes.len() as u64);
                }
                Change::Extend { size } => now = now.max(*size),
                Change::Truncate { size } => {
                    let shrinks = *size < now;
                    now = *size;
                    zeroed(content, &mut good, *size..u64::MAX, shrinks && certain);
                    if shrinks && certain {
                        // Growth that was not synced may have been lost before.
                        sizes = (*sizes.start()).min(now)..=now;
                    }
                }
                Change::Zero { range } => {
                    zeroed(content, &mut good, range.clone(), false);
                    // Whole blocks are taken out of the file by a record.
                    let whole = range.start.next_multiple_of(4096)..range.end / 4096 * 4096;
                    if certain {
                        zeroed(content, &mut good, whole, true);
                    }
                }
            }
            sizes = (*sizes.start()).min(now)..=(*sizes.end()).max(now);
        }
        let length = content.len() as u64;
        if !sizes.contains(&length) {
            return Err(format!(
                "{length} bytes long, not {sizes:?} (synced by operation {synced}, last {last}): {:?}",
                file.changes
            ));
        }
        match good.iter().position(|good| !good) {
            None => Ok(()),
            Some(bad) => {
                let count = good[bad..].iter().take_while(|good| !**good).count();
                let upto = (bad + 16).min(content.len());
                Err(format!(
                    "bytes {bad}..{} of {length} are none the file had there since operation {from} (synced by \
                     {synced}, last {last}): {:02x?}{} instead of {:02x?}; {:?}",
                    bad + count,
                    &content[bad..upto],
                    self.origin(&content[bad..upto], bad as u64),
                    base.get(bad..upto.min(base.len())),
                    file.changes,
                ))
            }
        }
    }

    /// Whose bytes these are, for messages.
    fn origin(&self, bytes: &[u8], offset: u64) -> String {
        for (key, file) in self.files.iter().enumerate() {
            for Attempt { step, change, .. } in &file.changes {
                if let Change::Write { offset: at, length, tag } = change
                    && (*at..*at + *length as u64).contains(&offset)
                    && pattern(key, *tag, offset, bytes.len()) == bytes
                {
                    return format!(" which file {key} got there by operation {step}");
                }
            }
        }
        String::new()
    }

    /// Inodes with a name, of one kind.
    pub(crate) fn of_kind(&self, kind: FileKind) -> Vec<Ino> {
        self.inodes.iter().filter(|(_, n)| n.kind == kind && n.links > 0).map(|(&ino, _)| ino).collect()
    }

    /// Directories, the root first.
    pub(crate) fn directories(&self) -> Vec<Ino> {
        std::iter::once(Ino::ROOT).chain(self.of_kind(FileKind::Directory)).collect()
    }

    /// Inodes that are gone for everybody.
    pub(crate) fn forget_unnamed(&mut self, open: &BTreeSet<Ino>) {
        self.inodes.retain(|ino, node| node.links > 0 || open.contains(ino));
    }
}

/// The bytes of `range` were made zeros: now they may be, or, when that is `certain`, must be.
fn zeroed(content: &[u8], good: &mut [bool], range: Range<u64>, certain: bool) {
    let end = (content.len() as u64).min(range.end) as usize;
    let start = range.start.min(end as u64) as usize;
    for (found, good) in content[start..end].iter().zip(&mut good[start..end]) {
        *good = *found == 0 || *good && !certain;
    }
}
