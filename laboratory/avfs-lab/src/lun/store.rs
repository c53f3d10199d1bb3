//! What the host has written to a LUN.
//!
//! **For:** giving back what was written, in little memory: of a block that holds a piece of the laboratory's own pattern
//! ([`content`]) only its number is kept, and its stamp where it has one; of zeros nothing. So clips, takes and copies cost
//! a byte for each 4 KiB, however long a copy runs, and no disk of this machine has to keep up with the modelled one. What
//! is left, a filesystem's metadata, is kept whole, up to a bound. **Excludes:** times. **State:** a kind for each block;
//! the blocks that are kept whole, in a sparse file or in memory. **Invariants:** what is read is what was written last, and
//! zeros where nothing was.

use avfs_workloads::content::{self, Piece, STAMP};
use rustix::fs::FallocateFlags;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use units::Bytes;

/// What is recognised as a whole, bytes.
const BLOCK: u64 = content::PIECE as u64;

/// A block's kind, in one byte: a gigabyte of LUN has a quarter of a million.
mod kind {
    /// Zeros.
    pub(super) const ZEROS: u8 = 0;
    /// In the file. Between these two: one more than the number of a piece of the pattern.
    pub(super) const KEPT: u8 = u8::MAX;
}

/// The data of a LUN.
pub(super) struct Store {
    file: File,
    /// `None`: the file has everything.
    blocks: Option<Blocks>,
}

struct Blocks {
    kinds: Vec<u8>,
    /// Of pieces that begin with one, by the block's number. A tree, because it grows without a pause.
    stamps: BTreeMap<u64, [u8; STAMP]>,
    /// Blocks in the file.
    kept: u64,
    most_kept: u64,
    told: bool,
}

impl Store {
    /// Everything is in the file, which is as long as the LUN.
    pub(super) fn whole(file: File) -> Self {
        Self { file, blocks: None }
    }

    /// The file, as long as the LUN of `size` bytes, has only what is not recognised, and at most so much of that.
    pub(super) fn recognising(file: File, size: Bytes, most: Bytes) -> Self {
        let blocks = Blocks {
            kinds: vec![kind::ZEROS; size.as_u64().div_ceil(BLOCK) as usize],
            stamps: BTreeMap::new(),
            kept: 0,
            most_kept: most.as_u64() / BLOCK,
            told: false,
        };
        Self { file, blocks: Some(blocks) }
    }

    /// Bytes that are kept whole.
    #[cfg(test)]
    fn kept(&self) -> u64 {
        self.blocks.as_ref().map_or(0, |blocks| blocks.kept * BLOCK)
    }

    /// Reads what was written; the range must be inside.
    ///
    /// # Errors
    /// Those of the file.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let Some(blocks) = &self.blocks else { return self.file.read_exact_at(buffer, offset) };
        for range in blocks.alike(offset, buffer.len() as u64) {
            let part = &mut buffer[(range.start - offset) as usize..(range.end - offset) as usize];
            match blocks.kinds[(range.start / BLOCK) as usize] {
                kind::KEPT => self.file.read_exact_at(part, range.start)?,
                kind::ZEROS => part.fill(0),
                _ => blocks.restore(part, range.start),
            }
        }
        Ok(())
    }

    /// Writes; the range must be inside.
    ///
    /// # Errors
    /// Those of the file, and [`io::ErrorKind::StorageFull`] beyond the bound.
    pub(super) fn write(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        if self.blocks.is_none() {
            return self.file.write_all_at(data, offset);
        }
        let end = offset + data.len() as u64;
        let first_whole = offset.next_multiple_of(BLOCK).min(end);
        let last_whole = (end - end % BLOCK).max(first_whole);
        let part = |range: &Range<u64>| &data[(range.start - offset) as usize..(range.end - offset) as usize];
        for range in [offset..first_whole, last_whole..end].into_iter().filter(|range| !range.is_empty()) {
            self.write_part(part(&range), range.start)?;
        }
        let mut unknown = first_whole..first_whole;
        for start in (first_whole..last_whole).step_by(BLOCK as usize) {
            let block = part(&(start..start + BLOCK));
            if content::is_zero(block) {
                self.forget(start, None)?;
            } else if let Some(piece) = content::recognise(block) {
                self.forget(start, Some(piece))?;
            } else if unknown.end == start && !unknown.is_empty() {
                unknown.end += BLOCK;
            } else {
                self.keep(part(&unknown), unknown.start)?;
                unknown = start..start + BLOCK;
            }
        }
        self.keep(part(&unknown), unknown.start)
    }

    /// Zeros in place of what was there.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub(super) fn clear(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let end = offset + length;
        let first_whole = offset.next_multiple_of(BLOCK).min(end);
        let last_whole = (end - end % BLOCK).max(first_whole);
        for range in [offset..first_whole, last_whole..end].into_iter().filter(|range| !range.is_empty()) {
            self.write(&vec![0; (range.end - range.start) as usize], range.start)?;
        }
        match &mut self.blocks {
            None => punch(&self.file, first_whole..last_whole),
            Some(blocks) => {
                let numbers = first_whole / BLOCK..last_whole / BLOCK;
                let kinds = &mut blocks.kinds[numbers.start as usize..numbers.end as usize];
                let kept = kinds.iter().filter(|one| **one == kind::KEPT).count() as u64;
                kinds.fill(kind::ZEROS);
                blocks.kept -= kept;
                let stamped: Vec<u64> =
                    blocks.stamps.range(numbers.clone()).map(|(number, _)| *number).collect();
                for number in stamped {
                    blocks.stamps.remove(&number);
                }
                if kept > 0 { punch(&self.file, first_whole..last_whole) } else { Ok(()) }
            }
        }
    }

    /// Writes a part of a block.
    fn write_part(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        let start = offset - offset % BLOCK;
        let mut block = vec![0; BLOCK as usize];
        self.read(&mut block, start)?;
        let from = (offset - start) as usize;
        block[from..from + data.len()].copy_from_slice(data);
        self.keep(&block, start)
    }

    /// Keeps whole blocks in the file.
    fn keep(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        let Some(blocks) = &mut self.blocks else { return Ok(()) };
        for number in (offset..offset + data.len() as u64).step_by(BLOCK as usize).map(|start| start / BLOCK)
        {
            let known = &mut blocks.kinds[number as usize];
            if *known == kind::KEPT {
                continue;
            }
            if blocks.kept == blocks.most_kept {
                if !std::mem::replace(&mut blocks.told, true) {
                    eprintln!(
                        "avfs-lab: the LUN holds {} of what is not the laboratory's own pattern, as much as it may: \
                         writes fail (--memory-mib)",
                        Bytes(blocks.kept * BLOCK)
                    );
                }
                return Err(io::ErrorKind::StorageFull.into());
            }
            if *known == 1 {
                blocks.stamps.remove(&number);
            }
            *known = kind::KEPT;
            blocks.kept += 1;
        }
        self.file.write_all_at(data, offset)
    }

    /// Notes a block of which nothing has to be kept whole; `None`: zeros.
    fn forget(&mut self, offset: u64, piece: Option<Piece>) -> io::Result<()> {
        let Some(blocks) = &mut self.blocks else { return Ok(()) };
        let number = offset / BLOCK;
        let now = piece.map_or(kind::ZEROS, |piece| piece.number + 1);
        let before = std::mem::replace(&mut blocks.kinds[number as usize], now);
        match piece.and_then(|piece| piece.stamp) {
            Some(stamp) => _ = blocks.stamps.insert(number, stamp),
            None if before == 1 => _ = blocks.stamps.remove(&number),
            None => {}
        }
        if before != kind::KEPT {
            return Ok(());
        }
        blocks.kept -= 1;
        punch(&self.file, offset..offset + BLOCK)
    }
}

impl Blocks {
    /// The parts of a range that are read in one go: neighbours of one kind, but each piece of the pattern by itself.
    fn alike(&self, offset: u64, length: u64) -> impl Iterator<Item = Range<u64>> {
        let end = offset + length;
        let mut start = offset;
        std::iter::from_fn(move || {
            let from = start;
            if from >= end {
                return None;
            }
            let kind = self.kinds[(from / BLOCK) as usize];
            let mut number = from / BLOCK + 1;
            let joins = matches!(kind, kind::KEPT | kind::ZEROS);
            while joins && number * BLOCK < end && self.kinds[number as usize] == kind {
                number += 1;
            }
            start = (number * BLOCK).min(end);
            Some(from..start)
        })
    }

    /// Makes a part of a piece of the pattern anew.
    fn restore(&self, part: &mut [u8], offset: u64) {
        let number = offset / BLOCK;
        let stamp = self.stamps.get(&number).copied();
        Piece { number: self.kinds[number as usize] - 1, stamp }.restore(part, (offset % BLOCK) as usize);
    }
}

fn punch(file: &File, range: Range<u64>) -> io::Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, range.start, range.end - range.start).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 1 << 20;

    fn recognising(most: u64) -> Store {
        let file = tempfile::tempfile().expect("a directory for temporary files");
        file.set_len(SIZE).expect("there is room");
        Store::recognising(file, Bytes(SIZE), Bytes(most))
    }

    #[test]
    fn what_clients_write_costs_no_memory_and_comes_back() {
        let mut store = recognising(0);
        let mut data = vec![0; 300 << 10];
        content::fill(&mut data, content::seed("client00/clip.mov"), 5 * content::STAMPED);
        store.write(&data, 12 << 10).expect("nothing of it is kept");
        let mut read = vec![1; data.len()];
        store.read(&mut read, 12 << 10).expect("it was written");
        assert!(read == data);
        store.read(&mut read[..700], (12 << 10) + 65_000).expect("it was written");
        assert!(read[..700] == data[65_000..65_700], "a part across a stamp");
    }

    #[test]
    fn what_must_be_kept_is_bounded() {
        let mut store = recognising(2 * BLOCK);
        store.write(&[7; 4096], 0).expect("one block");
        store.write(&[7; 512], 9 * BLOCK + 512).expect("exactly full");
        store.write(&[8; 4096], 0).expect("in the place of what was there");
        let error = store.write(&[7; 512], 20 * BLOCK).expect_err("one over");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        store.clear(0, BLOCK).expect("it is inside");
        store.write(&[7; 512], 20 * BLOCK).expect("there is room again");
        assert_eq!(store.kept(), 2 * BLOCK);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Pattern { offset: u64, length: u64, place: u64 },
        Other { offset: u64, length: u64, byte: u8 },
        Clear { offset: u64, length: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        // As a host writes: in sectors.
        let range = || (0_u64..SIZE / 512, 1_u64..400).prop_map(|(at, length)| (at * 512, length * 512));
        prop_oneof![
            2 => (range(), 0_u64..9).prop_map(|((offset, length), place)| Step::Pattern {
                offset: offset - offset % BLOCK,
                length,
                place: place << 16
            }),
            1 => (range(), 0_u8..3).prop_map(|((offset, length), byte)| Step::Other { offset, length, byte }),
            1 => range().prop_map(|(offset, length)| Step::Clear { offset, length }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn reads_give_what_was_written_last(steps in prop::collection::vec(step(), 1..40)) {
            let (mut store, mut model) = (recognising(SIZE), vec![0_u8; SIZE as usize]);
            for step in steps {
                let (Step::Pattern { offset, length, .. } | Step::Other { offset, length, .. }
                    | Step::Clear { offset, length }) = step;
                let length = length.min(SIZE - offset);
                let part = &mut model[offset as usize..(offset + length) as usize];
                match step {
                    Step::Pattern { place, .. } => content::fill(part, 77, place),
                    Step::Other { byte, .. } => part.fill(byte),
                    Step::Clear { .. } => part.fill(0),
                }
                match step {
                    Step::Clear { .. } => store.clear(offset, length),
                    _ => store.write(part, offset),
                }.expect("there is room for all of it");
                // Odd edges.
                let from = offset.saturating_sub(100);
                let to = (offset + length + 5000).min(SIZE);
                let mut read = vec![9; (to - from) as usize];
                store.read(&mut read, from).expect("it is inside");
                prop_assert!(read == model[from as usize..to as usize]);
            }
            let mut whole = vec![9; SIZE as usize];
            store.read(&mut whole, 0).expect("it is inside");
            prop_assert!(whole == model);
            let blocks = store.blocks.as_ref().expect("it recognises");
            let kept = blocks.kinds.iter().filter(|one| **one == kind::KEPT).count() as u64;
            prop_assert_eq!(kept, blocks.kept);
            let stamped = blocks.kinds.iter().filter(|one| **one == 1).count();
            prop_assert_eq!(stamped, blocks.stamps.len());
        }
    }
}
