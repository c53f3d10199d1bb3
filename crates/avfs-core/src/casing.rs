//! Which names are one name to Samba: those that differ only in upper and lower case.
//!
//! **For:** the one answer to "are these two spellings of one name?". **Excludes:** where names stand
//! (`directory`). **State:** none. **Invariants:** the answer is Samba's own (`toupper_m` of libsamba-util), for every
//! character there is. Unicode's mapping is another one: it holds dotless ı and i for one letter, which Samba
//! tells apart, so a client that saved `adı.mov` would replace `adi.mov`.

/// Characters of which Samba has an upper case: the first, the last, the step from one to the next, and what is added. In
/// order. A test compares all of it with Samba's library; a protocol fact.
#[rustfmt::skip]
const RUNS: [(u32, u32, u32, i32); 88] = [
    (0x0061, 0x007a, 1, -32),
    (0x00e0, 0x00f6, 1, -32),
    (0x00f8, 0x00fe, 1, -32),
    (0x00ff, 0x00ff, 1, 121),
    (0x0101, 0x012f, 2, -1),
    (0x0133, 0x0137, 2, -1),
    (0x013a, 0x0148, 2, -1),
    (0x014b, 0x0177, 2, -1),
    (0x017a, 0x017e, 2, -1),
    (0x0183, 0x0185, 2, -1),
    (0x0188, 0x0188, 1, -1),
    (0x018c, 0x018c, 1, -1),
    (0x0192, 0x0192, 1, -1),
    (0x0199, 0x0199, 1, -1),
    (0x01a1, 0x01a5, 2, -1),
    (0x01a8, 0x01a8, 1, -1),
    (0x01ad, 0x01ad, 1, -1),
    (0x01b0, 0x01b0, 1, -1),
    (0x01b4, 0x01b6, 2, -1),
    (0x01b9, 0x01b9, 1, -1),
    (0x01bd, 0x01bd, 1, -1),
    (0x01c6, 0x01c6, 1, -2),
    (0x01c9, 0x01c9, 1, -2),
    (0x01cc, 0x01cc, 1, -2),
    (0x01ce, 0x01dc, 2, -1),
    (0x01dd, 0x01dd, 1, -79),
    (0x01df, 0x01ef, 2, -1),
    (0x01f3, 0x01f3, 1, -2),
    (0x01f5, 0x01f5, 1, -1),
    (0x01fb, 0x0217, 2, -1),
    (0x0253, 0x0253, 1, -210),
    (0x0254, 0x0254, 1, -206),
    (0x0256, 0x0257, 1, -205),
    (0x0259, 0x0259, 1, -202),
    (0x025b, 0x025b, 1, -203),
    (0x0260, 0x0260, 1, -205),
    (0x0263, 0x0263, 1, -207),
    (0x0268, 0x0268, 1, -209),
    (0x0269, 0x0269, 1, -211),
    (0x026f, 0x026f, 1, -211),
    (0x0272, 0x0272, 1, -213),
    (0x0275, 0x0275, 1, -214),
    (0x0283, 0x0283, 1, -218),
    (0x0288, 0x0288, 1, -218),
    (0x028a, 0x028b, 1, -217),
    (0x0292, 0x0292, 1, -219),
    (0x03ac, 0x03ac, 1, -38),
    (0x03ad, 0x03af, 1, -37),
    (0x03b1, 0x03c1, 1, -32),
    (0x03c2, 0x03c2, 1, -31),
    (0x03c3, 0x03cb, 1, -32),
    (0x03cc, 0x03cc, 1, -64),
    (0x03cd, 0x03ce, 1, -63),
    (0x03e3, 0x03ef, 2, -1),
    (0x0430, 0x044f, 1, -32),
    (0x0451, 0x045c, 1, -80),
    (0x045e, 0x045f, 1, -80),
    (0x0461, 0x0481, 2, -1),
    (0x0491, 0x04bf, 2, -1),
    (0x04c2, 0x04c4, 2, -1),
    (0x04c8, 0x04c8, 1, -1),
    (0x04cc, 0x04cc, 1, -1),
    (0x04d1, 0x04eb, 2, -1),
    (0x04ef, 0x04f5, 2, -1),
    (0x04f9, 0x04f9, 1, -1),
    (0x0561, 0x0586, 1, -48),
    (0x1e01, 0x1e95, 2, -1),
    (0x1ea1, 0x1ef9, 2, -1),
    (0x1f00, 0x1f07, 1, 8),
    (0x1f10, 0x1f15, 1, 8),
    (0x1f20, 0x1f27, 1, 8),
    (0x1f30, 0x1f37, 1, 8),
    (0x1f40, 0x1f45, 1, 8),
    (0x1f51, 0x1f57, 2, 8),
    (0x1f60, 0x1f67, 1, 8),
    (0x1f70, 0x1f71, 1, 74),
    (0x1f72, 0x1f75, 1, 86),
    (0x1f76, 0x1f77, 1, 100),
    (0x1f78, 0x1f79, 1, 128),
    (0x1f7a, 0x1f7b, 1, 112),
    (0x1f7c, 0x1f7d, 1, 126),
    (0x1fb0, 0x1fb1, 1, 8),
    (0x1fd0, 0x1fd1, 1, 8),
    (0x1fe0, 0x1fe1, 1, 8),
    (0x1fe5, 0x1fe5, 1, 7),
    (0x2170, 0x217f, 1, -16),
    (0x24d0, 0x24e9, 1, -26),
    (0xff41, 0xff5a, 1, -32),
];

/// A character in upper case, as Samba has it; itself where Samba has none.
pub(crate) fn upper(character: char) -> char {
    if character.is_ascii() {
        return character.to_ascii_uppercase();
    }
    let code = u32::from(character);
    let run = RUNS.partition_point(|&(_, last, ..)| last < code);
    match RUNS.get(run) {
        Some(&(first, _, step, delta)) if code >= first && (code - first).is_multiple_of(step) => {
            code.checked_add_signed(delta).and_then(char::from_u32).unwrap_or(character)
        }
        _ => character,
    }
}

/// A name's characters in upper case.
pub(crate) fn folded(name: &str) -> impl Iterator<Item = char> {
    name.chars().map(upper)
}

/// True when two names are the same but for upper and lower case. Of names that are not UTF-8 only ASCII letters have
/// two cases.
pub(crate) fn equal_without_case(one: &[u8], other: &[u8]) -> bool {
    match (std::str::from_utf8(one), std::str::from_utf8(other)) {
        (Ok(one), Ok(other)) => folded(one).eq(folded(other)),
        _ => one.eq_ignore_ascii_case(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::process::Command;

    /// Prints "code upper" for each character that Samba's library changes. Exit code 3: there is no such library.
    const ASK_SAMBA: &str = r"
import ctypes, glob, sys
upper = None
for pattern in ('/usr/lib/*/libsamba-util.so*', '/usr/lib/*/samba/libsamba-util*', '/usr/lib*/libsamba-util.so*'):
    for path in sorted(glob.glob(pattern)):
        try:
            library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        if upper is None and hasattr(library, 'toupper_m'):
            upper = library.toupper_m
if upper is None:
    sys.exit(3)
upper.restype, upper.argtypes = ctypes.c_uint, [ctypes.c_uint]
for code in range(0x110000):
    if not 0xd800 <= code < 0xe000 and upper(code) != code:
        print(code, upper(code))
";

    /// The volume folded by Unicode: of 2,400 pairs of characters that some table relates, 1,106 were one name to the
    /// volume and two to Samba, or the other way round, and a client that saved the one replaced the other.
    #[test]
    fn every_character_has_the_upper_case_that_samba_gives_it() {
        // The system's interpreter: another one may not find the system's libraries.
        let Ok(asked) = Command::new("/usr/bin/python3").args(["-c", ASK_SAMBA]).output() else {
            return println!("not compared with Samba: /usr/bin/python3 is missing");
        };
        if asked.status.code() == Some(3) {
            return println!(
                "not compared with Samba: libsamba-util is missing (apt-get install samba-libs)"
            );
        }
        assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        let samba: HashMap<u32, u32> = String::from_utf8(asked.stdout)
            .unwrap()
            .lines()
            .map(|line| line.split_once(' ').unwrap())
            .map(|(code, upper)| (code.parse().unwrap(), upper.parse().unwrap()))
            .collect();
        assert!(samba[&u32::from('a')] == u32::from('A') && samba.len() > 500);
        for character in '\0'..=char::MAX {
            let code = u32::from(character);
            let expected = samba.get(&code).copied().unwrap_or(code);
            assert_eq!(u32::from(upper(character)), expected, "{character:?} U+{code:04X}");
        }
    }

    #[test]
    fn runs_are_in_order_and_apart() {
        for pair in RUNS.windows(2) {
            assert!(pair[0].0 <= pair[0].1 && pair[0].1 < pair[1].0, "{pair:?}");
        }
    }

    #[test]
    fn letters_that_samba_tells_apart_are_two_names() {
        for (one, other) in [("adı.mov", "adi.mov"), ("µ", "μ"), ("ſ", "s"), ("straße", "STRASSE")] {
            assert!(!equal_without_case(one.as_bytes(), other.as_bytes()), "{one} {other}");
        }
        for (one, other) in [("Frame_01.DPX", "frame_01.dpx"), ("ÄRGER.mov", "ärger.MOV"), ("日本", "日本")]
        {
            assert!(equal_without_case(one.as_bytes(), other.as_bytes()), "{one} {other}");
        }
        assert!(!equal_without_case(b"frame_01.dpx", b"frame_02.dpx"));
        assert!(equal_without_case(b"\xffA", b"\xffa") && !equal_without_case(b"\xffA", b"\xfeA"));
    }
}
