//! The shards by their numbers, in memory that goes by how many there are and not by how high they are numbered: a number
//! may come from a damaged disk.

use crate::format::{SHARD_INODES, ShardLocation};
use crate::inode::Inode;
use std::collections::BTreeMap;
use units::Ino;

/// 256 neighbouring inode numbers: what a checkpoint writes as one image.
#[derive(Debug)]
pub struct Shard {
    pub(super) inodes: Box<[Option<Box<Inode>>; SHARD_INODES as usize]>,
    pub(super) live: u16,
    /// The last record that changed it.
    pub(super) lsn: u64,
    /// Its newest image on the device.
    pub(crate) location: ShardLocation,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            inodes: Box::new([const { None }; SHARD_INODES as usize]),
            live: 0,
            lsn: 0,
            location: ShardLocation::default(),
        }
    }
}

impl Shard {
    /// True when it has no inodes.
    pub(crate) fn is_empty(&self) -> bool {
        self.live == 0
    }
}

/// The shard that an inode is of.
pub(super) fn shard_of(ino: Ino) -> u64 {
    ino.0 / SHARD_INODES
}

/// Its place there.
pub(super) fn slot_of(ino: Ino) -> usize {
    (ino.0 % SHARD_INODES) as usize
}

/// Shards that lie side by side in memory.
const CHUNK: u64 = 256;

type Chunk = Box<[Option<Box<Shard>>; CHUNK as usize]>;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Shards {
    chunks: BTreeMap<u64, Chunk>,
}

impl Shards {
    pub(super) fn get(&self, number: u64) -> Option<&Shard> {
        self.chunks.get(&(number / CHUNK))?[(number % CHUNK) as usize].as_deref()
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Shard> {
        self.chunks.get_mut(&(number / CHUNK))?[(number % CHUNK) as usize].as_deref_mut()
    }

    /// The inode of that number.
    pub(super) fn inode(&self, ino: Ino) -> Option<&Inode> {
        self.get(shard_of(ino))?.inodes[slot_of(ino)].as_deref()
    }

    pub(super) fn inode_mut(&mut self, ino: Ino) -> Option<&mut Inode> {
        self.get_mut(shard_of(ino))?.inodes[slot_of(ino)].as_deref_mut()
    }

    /// All inodes, in the order of their numbers.
    pub(super) fn inodes(&self) -> impl Iterator<Item = (Ino, &Inode)> {
        self.iter().flat_map(|(number, shard)| {
            shard.inodes.iter().enumerate().filter_map(move |(slot, inode)| {
                Some((Ino(number * SHARD_INODES + slot as u64), inode.as_deref()?))
            })
        })
    }

    fn slot(&mut self, number: u64) -> &mut Option<Box<Shard>> {
        let chunk = self.chunks.entry(number / CHUNK);
        &mut chunk.or_insert_with(|| Box::new([const { None }; CHUNK as usize]))[(number % CHUNK) as usize]
    }

    pub(super) fn get_or_make(&mut self, number: u64) -> &mut Shard {
        self.slot(number).get_or_insert_default()
    }

    pub(super) fn insert(&mut self, number: u64, shard: Box<Shard>) {
        *self.slot(number) = Some(shard);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Box<Shard>> {
        self.chunks.get_mut(&(number / CHUNK))?[(number % CHUNK) as usize].take()
    }

    /// In the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Shard)> {
        self.chunks.iter().flat_map(|(&chunk, shards)| {
            (chunk * CHUNK..)
                .zip(shards.iter())
                .filter_map(|(number, shard)| Some((number, shard.as_deref()?)))
        })
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.chunks.values_mut().flat_map(|shards| shards.iter_mut().filter_map(Option::as_deref_mut))
    }

    /// The highest number of a shard.
    pub(super) fn last(&self) -> Option<u64> {
        let (chunk, slot) = self
            .chunks
            .iter()
            .rev()
            .find_map(|(chunk, shards)| Some((chunk, shards.iter().rposition(Option::is_some)?)))?;
        Some(chunk * CHUNK + slot as u64)
    }

    /// The lowest number of which there is no shard.
    pub(super) fn first_absent(&self) -> u64 {
        let mut expected = 0;
        for (&chunk, shards) in &self.chunks {
            if chunk != expected {
                break;
            }
            if let Some(slot) = shards.iter().position(Option::is_none) {
                return chunk * CHUNK + slot as u64;
            }
            expected += 1;
        }
        expected * CHUNK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_found_by_number_in_order_with_their_gaps() {
        let mut shards = Shards::default();
        assert_eq!((shards.first_absent(), shards.last()), (0, None));
        for number in [300, 0, 1, 4_000_000_000, 255] {
            shards.get_or_make(number);
        }
        assert_eq!(
            shards.iter().map(|(number, _)| number).collect::<Vec<_>>(),
            [0, 1, 255, 300, 4_000_000_000]
        );
        assert_eq!((shards.first_absent(), shards.last()), (2, Some(4_000_000_000)));
        assert!(shards.get(300).is_some() && shards.get(2).is_none() && shards.get(u64::MAX).is_none());
        (2..300).for_each(|number| {
            shards.get_or_make(number);
        });
        assert_eq!(shards.first_absent(), 301);
        assert!(shards.remove(4_000_000_000).is_some() && shards.remove(4_000_000_000).is_none());
        assert_eq!((shards.last(), shards.iter_mut().count()), (Some(300), 301));
        (301..512).for_each(|number| {
            shards.get_or_make(number);
        });
        assert_eq!(shards.first_absent(), 512);
    }
}
