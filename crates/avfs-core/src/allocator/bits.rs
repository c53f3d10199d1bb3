//! Runs of ones in a bitmap of `u64` words, bit 0 of word 0 first.
//!
//! Positions are bit numbers. Every function stays inside the range it is given and panics, as slices do, when
//! the range lies outside the words.

use std::ops::Range;

/// True when the bit is one.
pub(super) fn get(words: &[u64], bit: usize) -> bool {
    words[bit / 64] >> (bit % 64) & 1 == 1
}

/// Sets every bit of `range` to `value`.
pub(super) fn fill(words: &mut [u64], range: Range<usize>, value: bool) {
    let mut at = range.start;
    while at < range.end {
        let word_end = (at / 64 + 1) * 64;
        let end = word_end.min(range.end);
        let mask = (u64::MAX >> (64 - (end - at))) << (at % 64);
        if value {
            words[at / 64] |= mask;
        } else {
            words[at / 64] &= !mask;
        }
        at = end;
    }
}

/// The first bit in `range` that equals `value`, or `range.end`.
pub(super) fn find(words: &[u64], range: Range<usize>, value: bool) -> usize {
    let flip = if value { 0 } else { u64::MAX };
    let mut at = range.start;
    while at < range.end {
        let rest = (words[at / 64] ^ flip) >> (at % 64);
        if rest != 0 {
            return (at + rest.trailing_zeros() as usize).min(range.end);
        }
        at = (at / 64 + 1) * 64;
    }
    range.end
}

/// How many ones the last bits are.
pub(super) fn ones_at_end(words: &[u64]) -> usize {
    let whole = words.iter().rev().take_while(|word| **word == u64::MAX).count();
    let last = words.len().checked_sub(whole + 1).map_or(0, |at| words[at].leading_ones());
    whole * 64 + last as usize
}

/// The maximal runs of ones in `range`, ascending.
pub(super) fn runs(words: &[u64], range: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = find(words, at..range.end, true);
        if start == range.end {
            return None;
        }
        let end = find(words, start..range.end, false);
        at = end;
        Some(start..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_are_those_of_a_plain_list(
            fills in proptest::collection::vec((0usize..200, 0usize..200, any::<bool>()), 0..20),
            within in (0usize..=200, 0usize..=200),
        ) {
            let mut words = [0u64; 4];
            let mut plain = [false; 200];
            for (a, b, value) in fills {
                let range = a.min(b)..a.max(b);
                fill(&mut words, range.clone(), value);
                plain[range].fill(value);
            }
            for (bit, expected) in plain.iter().enumerate() {
                prop_assert_eq!(get(&words, bit), *expected);
            }
            let range = within.0.min(within.1)..within.0.max(within.1);
            let mut expected: Vec<Range<usize>> = Vec::new();
            for bit in range.clone().filter(|bit| plain[*bit]) {
                match expected.last_mut() {
                    Some(last) if last.end == bit => last.end += 1,
                    _ => expected.push(bit..bit + 1),
                }
            }
            prop_assert_eq!(runs(&words, range).collect::<Vec<_>>(), expected);
        }
    }
}
