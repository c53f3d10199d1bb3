//! One block of redundancy for each batch: whichever single block of it is damaged or cannot be read is rebuilt.
//!
//! A batch is content (header, records, zeros) and, as its last block, the exclusive-or of the content. The header holds a
//! check over the content that is made of one checksum for each block, so that it can be said for each block in turn
//! whether the batch is right once that one is exchanged: this finds the damaged block, without room for a checksum of
//! each. It is no linear function, so that it says something that the batch's CRC does not.
//!
//! **Invariants:** the magic and the CRC (the first [`OUTSIDE`] bytes) are neither in the parity nor in the check, because the
//! CRC covers both. Nothing is rebuilt that the check does not confirm.

use super::header::{BatchHeader, HEADER};
use crate::format::BLOCK;
use crate::steps::{Step, has};
use std::mem::offset_of;
use std::ops::Range;
use zerocopy::FromBytes;

const SIZE: usize = BLOCK as usize;
/// Bytes at the start of a batch that parity does not cover: magic and CRC.
const OUTSIDE: usize = 8;
/// Where the check stands.
const CHECK: Range<usize> = offset_of!(BatchHeader, check)..offset_of!(BatchHeader, check) + 4;

type Block = [u8; SIZE];

fn xor_into(sum: &mut Block, block: &[u8], from: usize) {
    for (sum, byte) in sum[from..].iter_mut().zip(&block[from..]) {
        *sum ^= byte;
    }
}

/// The exclusive-or of whole blocks that begin with a batch's first.
fn parity(bytes: &[u8]) -> Block {
    let mut sum = [0; SIZE];
    for (index, block) in bytes.chunks_exact(SIZE).enumerate() {
        xor_into(&mut sum, block, if index == 0 { OUTSIDE } else { 0 });
    }
    sum
}

/// What one block adds to the check (the finaliser of SplitMix64 over its place and its checksum).
fn share(index: usize, block: &[u8]) -> u64 {
    let checksum = match index {
        0 => crc32c::crc32c_append(crc32c::crc32c(&block[OUTSIDE..CHECK.start]), &block[CHECK.end..]),
        _ => crc32c::crc32c(block),
    };
    let mut mixed = ((index as u64) << 32 | u64::from(checksum)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn sum_of_shares(content: &[u8]) -> u64 {
    let blocks = content.chunks_exact(SIZE).enumerate();
    blocks.fold(0, |sum: u64, (index, block)| sum.wrapping_add(share(index, block)))
}

/// Never zero: that is what a batch without parity has there.
fn folded(sum: u64) -> u32 {
    ((sum >> 32) as u32).max(1)
}

fn check_in(first: &[u8]) -> u32 {
    u32::from_le_bytes(first[CHECK].try_into().expect("four bytes"))
}

/// Fills in the check of a batch's content, whole blocks, and appends its parity.
pub(super) fn protect(content: &mut Vec<u8>) {
    let check = folded(sum_of_shares(content));
    content[CHECK].copy_from_slice(&check.to_le_bytes());
    let parity = parity(content);
    content.extend_from_slice(&parity);
}

/// Finds and rebuilds the one damaged block of a batch with parity whose header says how long it is. Its number; or `None`, with the
/// bytes as they were, when more than one is damaged. The first [`OUTSIDE`] bytes are the caller's to judge and to write.
pub(super) fn rebuild(bytes: &mut [u8]) -> Option<usize> {
    let content_length = bytes.len().checked_sub(SIZE)?;
    let syndrome = parity(bytes);
    let (content, _) = bytes.split_at(content_length);
    let sum = sum_of_shares(content);
    if folded(sum) == check_in(content) {
        // The content is right: what is wrong is the parity, or what it does not cover.
        if syndrome == [0; SIZE] {
            return Some(0);
        }
        let right = parity(content);
        bytes[content_length..].copy_from_slice(&right);
        return Some(content_length / SIZE);
    }
    for (index, block) in content.chunks_exact(SIZE).enumerate() {
        if index == 0 && syndrome[..OUTSIDE] != [0; OUTSIDE] {
            continue;
        }
        let mut rebuilt: Block = block.try_into().expect("a whole block");
        xor_into(&mut rebuilt, &syndrome, 0);
        let exchanged = sum.wrapping_sub(share(index, block)).wrapping_add(share(index, &rebuilt));
        let check = check_in(if index == 0 { &rebuilt } else { content });
        if folded(exchanged) == check || !has(Step::RebuiltIsConfirmed) {
            bytes[index * SIZE..][..SIZE].copy_from_slice(&rebuilt);
            return Some(index);
        }
    }
    None
}

/// Rebuilds the first block of a batch from those behind it, whose number it knows itself: `following` is what stands behind
/// it, whole blocks, as far as a batch may reach. The content and parity, with a first block that `is_expected` and the
/// check confirm.
pub(super) fn rebuild_first(following: &[u8], is_expected: impl Fn(&BatchHeader) -> bool) -> Option<Vec<u8>> {
    let mut between = [0; SIZE];
    for (index, block) in following.chunks_exact(SIZE).enumerate() {
        let mut first = between;
        xor_into(&mut first, block, 0);
        let length = (index + 2) * SIZE;
        let (header, _) = BatchHeader::read_from_prefix(&first).ok()?;
        if header.check.get() != 0
            && HEADER + header.length.get() as usize == length
            && first[..OUTSIDE] == [0; OUTSIDE]
            && is_expected(&header)
        {
            let mut bytes = first.to_vec();
            bytes.extend_from_slice(&following[..length - SIZE]);
            let is_whole = folded(sum_of_shares(&bytes[..length - SIZE])) == header.check.get();
            return is_whole.then_some(bytes);
        }
        xor_into(&mut between, block, 0);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn batch(blocks: usize, seed: u8) -> Vec<u8> {
        let mut content: Vec<u8> =
            (0..blocks * SIZE).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 9) as u8 ^ seed).collect();
        let header = BatchHeader {
            magic: [0; 4],
            checksum: 0.into(),
            uuid: [9; 16],
            sequence: 7.into(),
            first_lsn: 1.into(),
            records: 1.into(),
            length: (((blocks + 1) * SIZE - HEADER) as u32).into(),
            previous_checksum: 5.into(),
            check: 0.into(),
        };
        content[..HEADER].copy_from_slice(header.as_bytes());
        protect(&mut content);
        content
    }

    #[test]
    fn the_first_block_is_found_without_knowing_how_long_the_batch_is() {
        for blocks in [1, 2, 3, 40] {
            let good = batch(blocks, 1);
            let mut following = good[SIZE..].to_vec();
            following.extend_from_slice(&batch(2, 9));
            let is_expected = |header: &BatchHeader| header.sequence.get() == 7;
            assert_eq!(rebuild_first(&following, is_expected).as_ref(), Some(&good), "{blocks}");
            assert_eq!(rebuild_first(&following, |_| false), None);
            following[SIZE / 2] ^= 1;
            assert_eq!(rebuild_first(&following, is_expected), None, "{blocks}, two of them damaged");
        }
    }

    proptest! {
        /// Any damage to one block, and none to two.
        #[test]
        fn one_damaged_block_is_rebuilt_and_two_are_not(
            blocks in 1usize..20,
            places in proptest::collection::vec((any::<u32>(), 1u8..), 1..50),
            first: prop::sample::Index,
            second: prop::sample::Index,
        ) {
            let good = batch(blocks, 3);
            let (first, second) = (first.index(blocks + 1), second.index(blocks + 1));
            let mut damaged = good.clone();
            for (at, change) in &places {
                damaged[first * SIZE + (*at as usize % SIZE).max(OUTSIDE)] ^= change;
            }
            if damaged != good {
                prop_assert_eq!(rebuild(&mut damaged), Some(first));
                prop_assert!(damaged == good);
            }
            if first != second {
                for (at, change) in &places {
                    damaged[first * SIZE + (*at as usize % SIZE).max(HEADER)] = !change;
                    damaged[second * SIZE + (*at as usize % SIZE).max(HEADER)] ^= change.rotate_left(3);
                }
                if damaged[first * SIZE..][..SIZE] != good[first * SIZE..][..SIZE]
                    && damaged[second * SIZE..][..SIZE] != good[second * SIZE..][..SIZE] {
                    let before = damaged.clone();
                    prop_assert_eq!(rebuild(&mut damaged), None);
                    prop_assert!(damaged == before);
                }
            }
        }
    }
}
