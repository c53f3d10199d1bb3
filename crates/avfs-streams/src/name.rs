//! Numbers in names: what makes files of one directory neighbours.
//!
//! A name may have several numbers (`A001_C002.000123.dpx`); which of them counts shows in the next name. How many digits
//! stand before a number is no part of what names have in common, because both `9, 10` and `0999, 1000` go on.

/// Runs of digits of one name that are looked at, from its end. It bounds memory. An operator's target.
const MOST_RUNS: usize = 8;

/// A name as what stands before one of its numbers, the number, and what stands behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbered<'a> {
    /// What stands before it.
    pub prefix: &'a [u8],
    /// The number.
    pub number: u64,
    /// How many digits it is written with.
    pub digits: usize,
    /// What stands behind it.
    pub suffix: &'a [u8],
}

/// The numbers of a name, the last first; those above `u64` are none.
pub fn numbers(name: &[u8]) -> impl Iterator<Item = Numbered<'_>> {
    let mut end = name.len();
    let runs = std::iter::from_fn(move || {
        let last = name[..end].iter().rposition(u8::is_ascii_digit)?;
        let first = name[..last].iter().rposition(|byte| !byte.is_ascii_digit()).map_or(0, |at| at + 1);
        end = first;
        Some((first, last + 1))
    });
    runs.take(MOST_RUNS).filter_map(|(first, behind)| {
        let number = number_of(&name[first..behind])?;
        Some(Numbered { prefix: &name[..first], number, digits: behind - first, suffix: &name[behind..] })
    })
}

/// The number that a name has between these two parts, and its digits.
pub fn number_between(name: &[u8], prefix: &[u8], suffix: &[u8]) -> Option<(u64, usize)> {
    let digits = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
    Some((number_of(digits)?, digits.len()))
}

fn number_of(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// The names that may stand for `number` where its neighbour is written with `digits`: as many digits, and no zeros before
/// it if that is something else.
pub fn spellings(prefix: &[u8], number: u64, digits: usize, suffix: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let padded = format!("{number:0digits$}");
    let plain = number.to_string();
    let other = (plain != padded).then_some(plain);
    [Some(padded), other]
        .into_iter()
        .flatten()
        .map(move |number| [prefix, number.as_bytes(), suffix].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(name: &str) -> Vec<(String, u64, usize, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        numbers(name.as_bytes()).map(|n| (text(n.prefix), n.number, n.digits, text(n.suffix))).collect()
    }

    fn owned(prefix: &str, number: u64, digits: usize, suffix: &str) -> (String, u64, usize, String) {
        (prefix.to_owned(), number, digits, suffix.to_owned())
    }

    #[test]
    fn every_number_of_a_name_is_seen_the_last_first() {
        assert_eq!(
            of("A001_C02.000123.dpx"),
            [
                owned("A001_C02.", 123, 6, ".dpx"),
                owned("A001_C", 2, 2, ".000123.dpx"),
                owned("A", 1, 3, "_C02.000123.dpx"),
            ]
        );
        assert_eq!(of("7"), [owned("", 7, 1, "")]);
        assert_eq!(of("no digits.dpx"), []);
        assert_eq!(of(""), []);
        assert_eq!(of(&"1.".repeat(100)).len(), MOST_RUNS);
    }

    /// The boundary pair, and what is only long.
    #[test]
    fn what_is_above_64_bits_is_no_number() {
        assert_eq!(of("18446744073709551615").len(), 1);
        assert_eq!(of("18446744073709551616"), []);
        assert_eq!(of("f000000000000000000000000000123.exr"), [owned("f", 123, 30, ".exr")]);
        assert_eq!(of(&"9".repeat(30)), []);
    }

    #[test]
    fn neighbours_are_spelt_with_as_many_digits_or_without_zeros() {
        let names = |number, digits| -> Vec<_> {
            spellings(b"f.", number, digits, b".dpx").map(|name| String::from_utf8(name).unwrap()).collect()
        };
        assert_eq!(names(999, 4), ["f.0999.dpx", "f.999.dpx"]);
        assert_eq!(names(1000, 4), ["f.1000.dpx"]);
        assert_eq!(names(10, 1), ["f.10.dpx"]);
        assert_eq!(names(u64::MAX, 3), ["f.18446744073709551615.dpx"]);
    }

    proptest! {
        /// Whatever the bytes: each number is read back from where it stood, and one of its spellings is the name.
        #[test]
        fn a_name_is_what_its_parts_say(name in prop::collection::vec(prop_oneof![any::<u8>(), b'0'..=b'9'], 0..60)) {
            for one in numbers(&name) {
                prop_assert_eq!(number_between(&name, one.prefix, one.suffix), Some((one.number, one.digits)));
                let mut all = spellings(one.prefix, one.number, one.digits, one.suffix);
                prop_assert!(all.any(|spelling| spelling == name));
            }
        }
    }
}
