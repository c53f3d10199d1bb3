//! Spoils files as the fuzzer does (`fuzz/`), but always in the same way and without a compiler of its own.

use crate::support::probe_folded;

/// Of a longer file beginning and end are kept, and what is between them is zeros.
const KEPT: usize = 64 << 10;

/// Probes so many variants of a file: cut off, with bits that are flipped and fields that are overwritten, with more or less
/// in the middle, and while it becomes shorter. [`probe_folded`] asserts that each probe ends within its limits.
pub(crate) fn spoil(file: &[u8], variants: u32) {
    let kept = file.len().min(KEPT);
    let (head, tail) = (&file[..kept / 2], &file[file.len() - (kept - kept / 2)..]);
    let whole = [head, tail].concat();
    let hidden = (file.len() - kept) as u64;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for variant in 0..variants {
        let mut bytes = whole.clone();
        for _ in 0..random.below(12) {
            // What describes the media stands at the beginning, and what was found out last at the end.
            let near = random.below(2048.min(bytes.len()));
            let at = match random.below(4) {
                0 => random.below(bytes.len()),
                1 => bytes.len() - 1 - near,
                _ => near,
            };
            match random.below(3) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
                _ => bytes[at..].iter_mut().take(4).for_each(|byte| *byte = 0xff),
            }
        }
        if random.below(4) == 0 {
            bytes.truncate(random.below(bytes.len()));
        }
        let gap = match random.below(4) {
            0 => random.next() >> (1 + random.below(63)),
            _ => hidden,
        };
        let short = random.below(8) == 0;
        let probed = std::panic::catch_unwind(|| probe_folded(&bytes, gap, short));
        assert!(probed.is_ok(), "variant {variant}, which is {} bytes around {gap} zeros", bytes.len());
    }
}

/// xorshift64: Marsaglia, "Xorshift RNGs", 2003.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}
