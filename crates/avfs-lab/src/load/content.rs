//! What is in the files of the laboratory.
//!
//! **For:** seeing that what was read is what was written there. **Invariants:** every 64 KiB of a file begin with a stamp
//! that names the file and the place; the rest is the same everywhere and does not compress to nothing.

use std::sync::LazyLock;

/// Bytes of a stamp.
pub const STAMP: usize = 16;

/// What follows a stamp, with it. Reads and writes begin at multiples of this.
pub const STAMPED: u64 = 1 << 16;

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
