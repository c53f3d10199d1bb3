//! All inodes of a volume, in memory.
//!
//! **For:** applying records, and answering what the namespace looks like. **Excludes:** whether an operation is
//! allowed (`core/names.rs`), where records go (`journal.rs`). **State:** one [`Metadata`], owned by the core.
//! **Invariants:** facts change only in [`Metadata::apply`]; what is derived (directory indexes, orphans, counters,
//! dirty shards) is changed with them there, and gives after [`Metadata::derive`] the same as step by step.

mod shards;
mod sums;
mod usage;

use crate::acl::is_acl;
use crate::allocator::BlockRun;
use crate::codec::{Malformed, Reader, Writer};
use crate::directory::DirectoryIndex;
use crate::format::{COUNT_LIMIT, MAX_LINKS, SHARD_INODES, ShardLocation};
use crate::inode::{Body, CoreAttributes, Inode, Name};
use crate::policy::is_policy;
use crate::record::Record;
use crate::steps::{Step, has};
use crate::types::{FileKind, InodeFlags};
use shards::{Shards, shard_of, slot_of};
use sums::Sums;

pub use shards::Shard;
use std::collections::{BTreeMap, BTreeSet};
use units::{Ino, Timestamp};

/// A record that contradicts the state it is applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// It is about an inode that does not exist.
    #[error("record about inode {0}, which does not exist")]
    NoInode(Ino),
    /// It creates an inode that exists.
    #[error("record creates inode {0}, which exists")]
    InodeExists(Ino),
    /// It does something to an inode that its kind cannot have.
    #[error("record does not fit the kind of inode {0}")]
    WrongKind(Ino),
    /// It adds a name to an inode that has as many as one may have.
    #[error("record gives inode {0} more names than one can have")]
    TooManyNames(Ino),
}

/// A shard's image that is being made, a part at a time: it shows one moment, whatever changes meanwhile.
#[derive(Debug)]
struct Imaging {
    number: u64,
    lsn: u64,
    /// Slots that had an inode at that moment.
    slots: Vec<usize>,
    /// How many of them are in the image.
    done: usize,
    /// Inodes that have changed since, as they were.
    before: BTreeMap<usize, Vec<u8>>,
    writer: Writer,
}

/// How far an image is.
#[derive(Debug)]
pub(crate) enum Image {
    /// There is no such shard.
    Absent,
    /// There is more to come.
    Unfinished,
    /// The image, and the sequence number it is as new as.
    Done(Vec<u8>, u64),
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Metadata {
    shards: Shards,
    /// Shards changed since their image was made.
    dirty: BTreeSet<u64>,
    /// Shards at least half of whose numbers are free: where new numbers come from when the current one is full.
    half_empty: BTreeSet<u64>,
    current: u64,
    lsn: u64,
    inodes: u64,
    /// Inodes without a name that somebody still uses.
    orphans: BTreeSet<Ino>,
    /// An inode has or had a security label: while false, none has.
    labelled: bool,
    /// The same of ACLs.
    has_acls: bool,
    /// The same of policies.
    has_policies: bool,
    /// The same of flags.
    has_flags: bool,
    sums: Sums,
    imaging: Option<Box<Imaging>>,
}

/// The extended attribute in which SELinux keeps labels.
pub(crate) const LABEL_XATTR: &[u8] = b"security.selinux";

impl Metadata {
    /// A volume with nothing but a root directory, made at `now`: what mkfs writes.
    pub fn with_root(now: Timestamp) -> Self {
        let time = now.into();
        let attributes = CoreAttributes {
            permissions: 0o755,
            flags: InodeFlags::empty(),
            uid: 0,
            gid: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        };
        let mut metadata = Self::default();
        let record = Record::Create {
            ino: Ino::ROOT,
            kind: FileKind::Directory,
            generation: 0,
            attributes,
            target: Box::default(),
            device: 0,
        };
        metadata.apply(&record, &mut Vec::new()).expect("an empty volume has room for a root");
        metadata
    }

    /// The inode of that number.
    pub fn get(&self, ino: Ino) -> Option<&Inode> {
        self.shards.inode(ino)
    }

    fn get_mut(&mut self, ino: Ino) -> Option<&mut Inode> {
        self.shards.inode_mut(ino)
    }

    /// The inode that `name` stands for in `parent`.
    pub fn child(&self, parent: &Inode, parent_ino: Ino, name: &[u8]) -> Option<Ino> {
        let has = |ino: &Ino| self.get(*ino).is_some_and(|inode| inode.names.has(parent_ino, name));
        let mut candidates = parent.directory()?.candidates(name).map(|(_, ino)| ino);
        let first = candidates.next()?;
        if has(&first) {
            return Some(first);
        }
        // One inode may stand there under thousands of spellings of the name: it is asked once.
        candidates.collect::<BTreeSet<Ino>>().into_iter().find(has)
    }

    /// The names of `directory` after `cookie`, in reading order.
    pub fn entries(&self, directory: Ino, cookie: u64) -> impl Iterator<Item = (u64, &[u8], Ino, &Inode)> {
        let index = self.get(directory).and_then(Inode::directory);
        // Several names of one inode here share a hash: their nth cookie shows the nth of them. What is left of those of the hash
        // that is read now, by inode.
        let mut hash = None;
        let mut names: BTreeMap<Ino, Vec<&Name>> = BTreeMap::new();
        index.into_iter().flat_map(move |index| index.after(cookie)).filter_map(move |(cookie, ino)| {
            let inode = self.get(ino)?;
            let own = DirectoryIndex::hash_of_cookie(cookie);
            if hash.replace(own) != Some(own) {
                names.clear();
            }
            let left = names.entry(ino).or_insert_with(|| {
                let mut all: Vec<&Name> = inode.names.of_hash(directory, own).collect();
                let read = match all.len() {
                    0 | 1 => 0,
                    _ => {
                        let before = index.into_iter().flat_map(|index| index.of_hash(own));
                        before.filter(|&(other, same)| same == ino && other < cookie).count()
                    }
                };
                all.drain(..read.min(all.len()));
                all.reverse();
                all
            });
            Some((cookie, &*left.pop()?.name, ino, inode))
        })
    }

    /// All inodes, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, &Inode)> {
        self.shards.inodes()
    }

    /// Inodes in use.
    pub fn inodes(&self) -> u64 {
        self.inodes
    }

    /// Inodes without a name.
    pub fn orphans(&self) -> &BTreeSet<Ino> {
        &self.orphans
    }

    /// False while no inode has a security label; not false again when the last one goes.
    pub fn is_labelled(&self) -> bool {
        self.labelled
    }

    /// False while no inode has an ACL; not false again when the last one goes.
    pub fn has_acls(&self) -> bool {
        self.has_acls
    }

    /// The same of policies.
    pub(crate) fn has_policies(&self) -> bool {
        self.has_policies
    }

    /// False while no inode has flags; not false again when the last one goes.
    pub fn has_flags(&self) -> bool {
        self.has_flags
    }

    /// The number of the last record.
    pub fn lsn(&self) -> u64 {
        self.lsn
    }

    /// A number that no inode has, the next one of the shard that was filled last if it has room.
    pub fn free_number(&mut self) -> Ino {
        loop {
            let first = if self.current == 0 { Ino::ROOT.0 as usize + 1 } else { 0 };
            let slot = match self.shard(self.current) {
                Some(shard) => (first..SHARD_INODES as usize).find(|&slot| shard.inodes[slot].is_none()),
                None => Some(first),
            };
            if let Some(slot) = slot {
                return Ino(self.current * SHARD_INODES + slot as u64);
            }
            self.half_empty.remove(&self.current);
            self.current = self.half_empty.pop_first().unwrap_or_else(|| self.shards.first_absent());
        }
    }

    /// Applies a record made now: it gets the next sequence number, which is returned. Space that no inode has any
    /// more goes to `freed`.
    ///
    /// # Errors
    /// When the record does not fit the state; nothing has changed then.
    pub fn apply(&mut self, record: &Record, freed: &mut Vec<BlockRun>) -> Result<u64, Contradiction> {
        let ino = record.ino();
        self.keep_for_image(ino);
        self.unindex(record);
        let standing = self.sums.standing_before(&self.shards, record);
        self.apply_facts(record, freed)?;
        self.index(record);
        self.sums.follow(&mut self.shards, self.inodes, record, standing);
        self.lsn += 1;
        self.dirty.insert(shard_of(ino));
        let lsn = self.lsn;
        if let Some(shard) = self.shards.get_mut(shard_of(ino)) {
            shard.lsn = lsn;
        }
        Ok(lsn)
    }

    /// Applies a record read from the log during recovery, unless its shard has it already. Derives nothing.
    pub(crate) fn replay(&mut self, lsn: u64, record: &Record) -> Result<(), Contradiction> {
        let number = shard_of(record.ino());
        self.lsn = self.lsn.max(lsn);
        if self.shard(number).is_some_and(|shard| shard.lsn >= lsn) && has(Step::ReplaySkipsWhatImagesHave) {
            return Ok(());
        }
        self.apply_facts(record, &mut Vec::new())?;
        self.dirty.insert(number);
        if let Some(shard) = self.shards.get_mut(number) {
            shard.lsn = lsn;
        }
        Ok(())
    }

    /// What the record says, and nothing that follows from it.
    fn apply_facts(&mut self, record: &Record, freed: &mut Vec<BlockRun>) -> Result<(), Contradiction> {
        let ino = record.ino();
        match record {
            Record::Create { kind, generation, attributes, target, device, .. } => {
                let body = match kind {
                    FileKind::Symlink => Body::Symlink(target.clone()),
                    FileKind::Regular | FileKind::Directory => Inode::empty_body(*kind),
                    _ => Body::Node(*device),
                };
                return self.insert(ino, Inode::new(*kind, *generation, *attributes, body));
            }
            Record::Remove { .. } => {
                let shard = self.shards.get_mut(shard_of(ino)).ok_or(Contradiction::NoInode(ino))?;
                let inode = shard.inodes[slot_of(ino)].take().ok_or(Contradiction::NoInode(ino))?;
                shard.live -= 1;
                self.inodes -= 1;
                if u64::from(shard.live) <= SHARD_INODES / 2 && shard_of(ino) != self.current {
                    self.half_empty.insert(shard_of(ino));
                }
                freed.extend(inode.extents().into_iter().flat_map(|extents| extents.iter()).map(|e| e.run()));
                return Ok(());
            }
            _ => {}
        }
        let inode = self.get_mut(ino).ok_or(Contradiction::NoInode(ino))?;
        match record {
            Record::Create { .. } | Record::Remove { .. } => unreachable!("handled above"),
            Record::Attributes { attributes, .. } => inode.attributes = *attributes,
            Record::Size { size, .. } => inode.size = *size,
            Record::AddName { .. } if inode.names.len() >= MAX_LINKS => {
                return Err(Contradiction::TooManyNames(ino));
            }
            Record::AddName { name, .. } => {
                inode.names.push(name.clone());
            }
            Record::RemoveName { name, .. } => inode.names.remove(name),
            Record::SetXattr { name, value, .. } => inode.set_xattr(name, value),
            Record::RemoveXattr { name, .. } => inode.remove_xattr(name),
            Record::Map { extent, .. } => match &mut inode.body {
                Body::Regular(extents) => extents.insert(*extent, freed),
                _ => return Err(Contradiction::WrongKind(ino)),
            },
            Record::Unmap { from, to, .. } => match &mut inode.body {
                Body::Regular(extents) => extents.remove(*from, *to, freed),
                _ => return Err(Contradiction::WrongKind(ino)),
            },
        }
        Ok(())
    }

    fn insert(&mut self, ino: Ino, inode: Inode) -> Result<(), Contradiction> {
        let shard = self.shards.get_or_make(shard_of(ino));
        let slot = &mut shard.inodes[slot_of(ino)];
        if slot.is_some() {
            return Err(Contradiction::InodeExists(ino));
        }
        *slot = Some(Box::new(inode));
        shard.live += 1;
        self.inodes += 1;
        Ok(())
    }

    /// What must leave the derived state before a record is applied.
    fn unindex(&mut self, record: &Record) {
        let Record::RemoveName { ino, name } = record else { return };
        let Some(inode) = self.get(*ino) else { return };
        if !inode.names.has(name.parent, &name.name) {
            return;
        }
        let is_directory = inode.kind == FileKind::Directory;
        let found = self
            .get(name.parent)
            .and_then(Inode::directory)
            .and_then(|index| index.candidates(&name.name).filter(|(_, other)| other == ino).last());
        if let Some((cookie, _)) = found
            && let Some(index) = self.get_mut(name.parent).and_then(Inode::directory_mut)
        {
            index.remove(cookie, is_directory);
        }
    }

    /// What the derived state gains from a record that was applied.
    fn index(&mut self, record: &Record) {
        if let Record::Create { attributes, .. } | Record::Attributes { attributes, .. } = record {
            self.has_flags |= !attributes.flags.is_empty();
        }
        match record {
            Record::AddName { ino, name } => {
                self.enter(*ino, name.parent, &name.name);
                self.orphans.remove(ino);
            }
            Record::Create { ino, .. } if *ino != Ino::ROOT => {
                self.orphans.insert(*ino);
            }
            Record::RemoveName { ino, .. } if self.get(*ino).is_some_and(|inode| inode.names.is_empty()) => {
                self.orphans.insert(*ino);
            }
            Record::Remove { ino } => {
                self.orphans.remove(ino);
            }
            Record::SetXattr { name, .. } => {
                self.labelled |= **name == *LABEL_XATTR;
                self.has_acls |= is_acl(name);
                self.has_policies |= is_policy(name);
            }
            _ => {}
        }
    }

    fn enter(&mut self, ino: Ino, parent: Ino, name: &[u8]) -> bool {
        let is_directory = self.get(ino).is_some_and(|inode| inode.kind == FileKind::Directory);
        match self.get_mut(parent).and_then(Inode::directory_mut) {
            Some(index) => index.insert(name, ino, is_directory),
            None => false,
        }
    }

    /// Builds everything that is derived, after recovery. Returns the names whose directory does not exist.
    pub(crate) fn derive(&mut self) -> Vec<(Ino, Name)> {
        let mut lost = Vec::new();
        for inode in self.shards.iter_mut().flat_map(|shard| shard.inodes.iter_mut().flatten()) {
            if let Some(index) = inode.directory_mut() {
                *index = DirectoryIndex::default();
            }
        }
        let names: Vec<(Ino, Name)> = self
            .iter()
            .flat_map(|(ino, inode)| inode.names.iter().map(move |name| (ino, name.clone())))
            .collect();
        self.orphans = self
            .iter()
            .filter(|(ino, inode)| inode.names.is_empty() && *ino != Ino::ROOT)
            .map(|(ino, _)| ino)
            .collect();
        let (mut labelled, mut has_acls, mut has_policies) = (false, false, false);
        for xattr in self.iter().flat_map(|(_, inode)| inode.xattrs.iter().flat_map(|all| all.iter())) {
            labelled |= *xattr.name == *LABEL_XATTR;
            has_acls |= is_acl(&xattr.name);
            has_policies |= is_policy(&xattr.name);
        }
        (self.labelled, self.has_acls, self.has_policies) = (labelled, has_acls, has_policies);
        let has_flags = self.iter().any(|(_, inode)| !inode.attributes.flags.is_empty());
        self.has_flags = has_flags;
        for (ino, name) in names {
            if !self.enter(ino, name.parent, &name.name) {
                lost.push((ino, name));
            }
        }
        self.sums.derive(&mut self.shards);
        self.half_empty = self
            .shards
            .iter()
            .filter(|(_, shard)| u64::from(shard.live) <= SHARD_INODES / 2)
            .map(|(number, _)| number)
            .collect();
        self.current = self.shards.last().unwrap_or(0);
        self.half_empty.remove(&self.current);
        lost
    }

    // Checkpoints.

    pub(crate) fn shard(&self, number: u64) -> Option<&Shard> {
        self.shards.get(number)
    }

    /// Numbers of the shards that exist, with what stands in memory for them.
    pub(crate) fn shards(&self) -> impl Iterator<Item = (u64, &Shard)> {
        self.shards.iter()
    }

    /// Shards that changed since their image was made; none is left.
    pub(crate) fn take_dirty(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.dirty)
    }

    /// True when a checkpoint has something to write.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Forgets shards without inodes whose empty image a checkpoint has already written: no record in the log that
    /// is still replayed is about them.
    pub(crate) fn drop_empty(&mut self) -> Vec<ShardLocation> {
        let is_done = |&(number, shard): &(u64, &Shard)| shard.live == 0 && !self.dirty.contains(&number);
        let empty: Vec<u64> = self.shards.iter().filter(is_done).map(|(number, _)| number).collect();
        empty.into_iter().filter_map(|number| Some(self.shards.remove(number)?.location)).collect()
    }

    /// The shard's image as it is now, and the sequence number it is as new as.
    pub(crate) fn image(&self, number: u64) -> Option<(Vec<u8>, u64)> {
        let shard = self.shard(number)?;
        let lsn = if has(Step::ShardLsnIsItsOwn) { shard.lsn } else { self.lsn };
        let mut writer = Writer::default();
        writer.number(number);
        writer.number(lsn);
        writer.number(u64::from(shard.live));
        for (slot, inode) in shard.inodes.iter().enumerate() {
            if let Some(inode) = inode {
                inode.encode(Ino(number * SHARD_INODES + slot as u64), &mut writer);
            }
        }
        Some((writer.bytes, lsn))
    }

    /// The same a part at a time, about so many bytes with each call. What changes between the calls is not in it.
    pub(crate) fn go_on_image(&mut self, number: u64, bytes: usize) -> Image {
        let begun = self.imaging.take().filter(|imaging| imaging.number == number);
        let Some(shard) = self.shard(number) else { return Image::Absent };
        let mut imaging = begun.unwrap_or_else(|| {
            let lsn = if has(Step::ShardLsnIsItsOwn) { shard.lsn } else { self.lsn };
            let mut writer = Writer::default();
            writer.number(number);
            writer.number(lsn);
            writer.number(u64::from(shard.live));
            let slots =
                (0..).zip(shard.inodes.iter()).filter_map(|(slot, inode)| inode.as_ref().map(|_| slot));
            let slots = slots.collect();
            Box::new(Imaging { number, lsn, slots, done: 0, before: BTreeMap::new(), writer })
        });
        let end = imaging.writer.bytes.len() + bytes;
        while let Some(&slot) = imaging.slots.get(imaging.done) {
            if imaging.writer.bytes.len() >= end {
                self.imaging = Some(imaging);
                return Image::Unfinished;
            }
            match (imaging.before.remove(&slot), &shard.inodes[slot]) {
                (Some(before), _) => imaging.writer.bytes.extend(before),
                (None, Some(inode)) => {
                    inode.encode(Ino(number * SHARD_INODES + slot as u64), &mut imaging.writer);
                }
                (None, None) => {}
            }
            imaging.done += 1;
        }
        Image::Done(imaging.writer.bytes, imaging.lsn)
    }

    /// An inode is about to change: an image that has not come to it yet takes it as it is.
    fn keep_for_image(&mut self, ino: Ino) {
        let number = shard_of(ino);
        if self.imaging.as_ref().is_none_or(|imaging| imaging.number != number) {
            return;
        }
        let Some(mut imaging) = self.imaging.take() else { return };
        let slot = slot_of(ino);
        let is_to_come = imaging.slots[imaging.done..].binary_search(&slot).is_ok();
        if is_to_come && !imaging.before.contains_key(&slot) {
            let mut writer = Writer::default();
            if let Some(inode) = self.get(ino) {
                inode.encode(ino, &mut writer);
            }
            imaging.before.insert(slot, writer.bytes);
        }
        self.imaging = Some(imaging);
    }

    pub(crate) fn set_location(&mut self, number: u64, location: ShardLocation) -> ShardLocation {
        match self.shards.get_mut(number) {
            Some(shard) => std::mem::replace(&mut shard.location, location),
            None => ShardLocation::default(),
        }
    }

    /// Takes in a shard's image.
    pub(crate) fn load(
        &mut self,
        number: u64,
        location: ShardLocation,
        image: &[u8],
    ) -> Result<(), Malformed> {
        let mut reader = Reader::new(image);
        if reader.number()? != number || number >= 1 << 40 {
            return Err(Malformed);
        }
        let lsn = reader.number()?;
        if lsn >= 2 * COUNT_LIMIT {
            return Err(Malformed);
        }
        let count = reader.number()?;
        let mut inodes: Vec<(Ino, Inode)> = Vec::new();
        for _ in 0..count {
            let (ino, inode) = Inode::decode(&mut reader)?;
            let ascends = inodes.last().is_none_or(|&(last, _)| last < ino);
            if shard_of(ino) != number || ino.0 == 0 || !ascends {
                return Err(Malformed);
            }
            inodes.push((ino, inode));
        }
        if !reader.is_empty() {
            return Err(Malformed);
        }
        let mut shard = Box::new(Shard { lsn, location, live: inodes.len() as u16, ..Shard::default() });
        self.inodes += inodes.len() as u64;
        for (ino, inode) in inodes {
            shard.inodes[slot_of(ino)] = Some(Box::new(inode));
        }
        self.shards.insert(number, shard);
        self.lsn = self.lsn.max(lsn);
        Ok(())
    }

    /// Gives an inode these names instead of those it has. Only while nothing is derived.
    pub(crate) fn replace_names(&mut self, ino: Ino, names: impl IntoIterator<Item = Name>) {
        if let Some(inode) = self.get_mut(ino) {
            inode.names = names.into_iter().collect();
            self.lsn += 1;
            self.dirty.insert(shard_of(ino));
        }
    }

    /// Numbers all changes anew, as if there had been one. What the log holds must not be applied any more.
    pub(crate) fn renumber(&mut self) {
        self.lsn = 1;
        self.shards.iter_mut().for_each(|shard| shard.lsn = 1);
    }

    pub(crate) fn mark_dirty(&mut self, number: u64) {
        self.dirty.insert(number);
    }

    pub(crate) fn set_lsn(&mut self, lsn: u64) {
        self.lsn = self.lsn.max(lsn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::Name;

    fn create(ino: u64) -> Record {
        let (kind, attributes) = (FileKind::Regular, CoreAttributes::default());
        Record::Create { ino: Ino(ino), kind, generation: 0, attributes, target: Box::default(), device: 0 }
    }

    /// An image that is made a part at a time is the image of the moment at which it was begun: of inodes that change, come and go
    /// meanwhile, before it has come to them or after.
    #[test]
    fn an_image_in_parts_shows_one_moment() {
        for parts in 1..40 {
            let mut metadata = Metadata::with_root(Timestamp { seconds: 1, nanoseconds: 0 });
            let apply = |metadata: &mut Metadata, record: Record| {
                _ = metadata.apply(&record, &mut Vec::new());
            };
            for ino in 2..40 {
                apply(&mut metadata, create(ino));
                let name = Name { parent: Ino::ROOT, name: format!("{ino}").into_bytes().into() };
                apply(&mut metadata, Record::AddName { ino: Ino(ino), name });
            }
            let (expected, lsn) = metadata.image(0).unwrap();
            let mut step = 0;
            let made = loop {
                match metadata.go_on_image(0, expected.len() / parts + 1) {
                    Image::Unfinished => {}
                    Image::Done(image, lsn) => break (image, lsn),
                    Image::Absent => panic!("there is one"),
                }
                let ino = Ino(2 + (step * 7) % 38);
                match step % 3 {
                    0 => apply(&mut metadata, Record::Size { ino, size: 77 + step }),
                    1 => apply(&mut metadata, create(100 + step)),
                    _ if metadata.get(ino).is_some() => apply(&mut metadata, Record::Remove { ino }),
                    _ => {}
                }
                step += 1;
                if metadata.get(Ino(2 + (step * 7) % 38)).is_none() {
                    step += 1;
                }
            };
            assert!(made == (expected, lsn), "in {parts} parts");
        }
    }
}
