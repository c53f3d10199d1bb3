//! What is in the files of the laboratory.
//!
//! **For:** seeing that what was read is what was written there, and keeping much of it in little memory. **Invariants:**
//! every 64 KiB of a file begin with a stamp that names the file and the place; the rest is the same everywhere and does not
//! compress to nothing.

use std::sync::LazyLock;

/// Bytes of a stamp.
pub const STAMP: usize = 16;

/// What follows a stamp, with it. Reads and writes begin at multiples of this.
pub const STAMPED: u64 = 1 << 16;

/// What is recognised by itself, bytes: a block of every filesystem.
pub const PIECE: usize = 4096;

static TEMPLATE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        // xorshift64, Marsaglia 2003.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..STAMPED / 8).flat_map(next).collect()
});

/// A file's number, from its name (FNV-1a).
pub fn seed(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn stamp(seed: u64, offset: u64) -> [u8; STAMP] {
    let mut stamp = [0; STAMP];
    stamp[..8].copy_from_slice(&seed.to_le_bytes());
    stamp[8..].copy_from_slice(&offset.to_le_bytes());
    stamp
}

/// What belongs at `offset`, a multiple of [`STAMPED`].
pub fn fill(buffer: &mut [u8], seed: u64, offset: u64) {
    for (index, piece) in buffer.chunks_mut(STAMPED as usize).enumerate() {
        piece.copy_from_slice(&TEMPLATE[..piece.len()]);
        let stamp = stamp(seed, offset + index as u64 * STAMPED);
        let length = piece.len().min(STAMP);
        piece[..length].copy_from_slice(&stamp[..length]);
    }
}

/// A piece of the pattern, told by little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which, counted from the stamp: 0 to 15.
    pub number: u8,
    /// The first has one.
    pub stamp: Option<[u8; STAMP]>,
}

impl Piece {
    fn template(number: u8) -> &'static [u8] {
        let start = usize::from(number) * PIECE;
        &TEMPLATE[start..start + PIECE]
    }

    /// Makes a part of it anew, from byte `from` on; the part ends within the piece.
    pub fn restore(&self, part: &mut [u8], from: usize) {
        part.copy_from_slice(&Self::template(self.number)[from..from + part.len()]);
        if let Some(stamp) = self.stamp
            && from < STAMP
        {
            let length = part.len().min(STAMP - from);
            part[..length].copy_from_slice(&stamp[from..from + length]);
        }
    }
}

/// Which piece of the pattern [`PIECE`] bytes are, if they are one.
pub fn recognise(block: &[u8]) -> Option<Piece> {
    let behind_stamp = block.get(STAMP..STAMP + 8).filter(|_| block.len() == PIECE)?;
    let number = (0..(STAMPED as usize / PIECE) as u8)
        .find(|number| Piece::template(*number)[STAMP..STAMP + 8] == *behind_stamp)?;
    let template = Piece::template(number);
    if block[STAMP..] != template[STAMP..] {
        return None;
    }
    match number {
        0 => Some(Piece { number, stamp: block[..STAMP].try_into().ok() }),
        _ => (block[..STAMP] == template[..STAMP]).then_some(Piece { number, stamp: None }),
    }
}

/// Whether all bytes are zero.
pub fn is_zero(block: &[u8]) -> bool {
    // A comparison of the block with itself, a byte further, is the C library's; bytes in a loop take three times as long.
    block.first().is_none_or(|first| *first == 0)
        && block.get(1..).is_none_or(|rest| *rest == block[..rest.len()])
}

/// Whether the first bytes read at `offset` belong there.
///
/// # Errors
/// In words, when they do not.
pub fn check(head: &[u8], seed: u64, offset: u64) -> Result<(), String> {
    match head.get(..STAMP) {
        Some(found) if found == stamp(seed, offset) => Ok(()),
        Some(found) => Err(format!("read at {offset}: wrong content {found:02x?}")),
        None => Err(format!("read at {offset}: {} bytes are too few to know them", head.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_recognised_and_nothing_else_is() {
        let mut buffer = vec![0; STAMPED as usize];
        fill(&mut buffer, seed("a"), 0);
        for (number, block) in buffer.chunks_mut(PIECE).enumerate() {
            let piece = recognise(block).expect("it is the pattern's");
            assert_eq!((usize::from(piece.number), piece.stamp.is_some()), (number, number == 0));
            let mut anew = vec![0; PIECE];
            piece.restore(&mut anew, 0);
            assert!(anew == block);
            for byte in [0, STAMP, PIECE - 1] {
                block[byte] ^= 1;
                // Any stamp is one.
                assert_eq!(recognise(block).is_some(), number == 0 && byte == 0, "{number}, {byte}");
                block[byte] ^= 1;
            }
            assert!(recognise(&block[..PIECE - 1]).is_none(), "too short");
        }
    }

    #[test]
    fn zeros_are_zeros() {
        assert!(is_zero(&[0; PIECE]) && is_zero(&[0]) && is_zero(&[]));
        for byte in [0, 1, PIECE - 1] {
            let mut block = [0; PIECE];
            block[byte] = 1;
            assert!(!is_zero(&block), "{byte}");
        }
        assert!(!is_zero(&[1; PIECE]));
    }

    #[test]
    fn a_stamp_tells_the_file_and_the_place() {
        let mut buffer = vec![0; 3 * STAMPED as usize];
        fill(&mut buffer, seed("a"), STAMPED);
        let second = &buffer[STAMPED as usize..];
        assert_eq!(check(second, seed("a"), 2 * STAMPED), Ok(()));
        assert!(check(second, seed("b"), 2 * STAMPED).is_err(), "another file");
        assert!(check(second, seed("a"), STAMPED).is_err(), "another place");
        assert!(check(&[0; 64], seed("a"), 0).is_err(), "a hole");
    }
}
