//! Whatever the bytes are, a probe ends within its limits (the support module asserts them) and does not panic.

use crate::make::probe_bytes;
use crate::spoil::spoil;
use crate::support::probe;
use crate::{frames, iso, mpegts, mxf, riff};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Files that are in order, as bytes.
fn valid() -> Vec<Vec<u8>> {
    vec![
        riff::avi(25, 25, 100_000).to_bytes(),
        iso::fragmented(3).to_bytes(),
        mpegts::stream(1_000),
        mxf::simple().to_bytes(),
        frames::exr(&[], 24, 1).to_bytes(),
        frames::dpx(&[(frames::FILM, 24.0)], false, 2048).to_bytes(),
        riff::sound().to_bytes(),
    ]
}

#[test]
fn what_is_spoiled_below_was_in_order() {
    assert!(valid().iter().all(|file| probe_bytes(file).is_ok()));
}

#[test]
fn files_of_every_container_may_be_spoiled() {
    valid().iter().for_each(|file| spoil(file, 2_000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn anything_may_follow_a_magic(magic in select(MAGICS), bytes in vec(any::<u8>(), 0..2_000)) {
        let _ = probe_bytes(&[magic, &bytes].concat());
    }

    #[test]
    fn heads_may_be_spoiled(
        file in select(valid()),
        changes in vec((0_usize..2_000, select(&[0_u8, 1, 0x47, 0x7f, 0x80, 0x88, 0xff][..])), 1..20),
    ) {
        let mut file = file;
        for (at, byte) in changes {
            if let Some(target) = file.get_mut(at) {
                *target = byte;
            }
        }
        let _ = probe_bytes(&file);
    }

    #[test]
    fn files_may_be_cut_and_joined(
        begin in select(valid()), end in select(valid()), cut in any::<Index>(), join in any::<Index>(),
    ) {
        let begin = &begin[..cut.index(begin.len())];
        let end = &end[join.index(end.len())..];
        let _ = probe_bytes(&[begin, end].concat());
    }

    #[test]
    fn lengths_may_be_lies(file in select(valid()), length in any::<u64>(), given in 0_u64..300_000) {
        // A file that is said to be longer than it is repeats itself, or ends early.
        let read = |offset: u64, length: u64| {
            let bytes = (offset..offset + length.min(given)).map(|at| file[(at % file.len() as u64) as usize]);
            bytes.collect()
        };
        let _ = probe(length, read);
    }
}

const MAGICS: &[&[u8]] = &[
    b"RIFF\0\0\0\0AVI LIST\xff\xff\xff\xffhdrl",
    b"RIFF\0\0\0\0WAVEfmt ",
    b"RF64\xff\xff\xff\xffWAVEds64",
    b"\0\0\0\x08ftyp",
    b"\0\0\x01\0moov",
    b"\0\0\0\0moof",
    b"SDPX",
    b"XPDS",
    b"\x76\x2f\x31\x01",
    b"\x06\x0e\x2b\x34\x02\x05\x01\x01\x0d\x01\x02\x01\x01\x02\x04\0",
    b"\x47",
    b"",
];
