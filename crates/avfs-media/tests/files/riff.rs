//! WAV and AVI.

use crate::make::{Sparse, chunk, join, list};
use avfs_media::{Basis, Refusal};
use units::{Bitrate, Duration};

/// A WAV file of `samples`, before which are `chunks`.
fn wav(chunks: &[&[u8]]) -> Sparse {
    Sparse::default().push(b"RIFF\0\0\0\0WAVE").push(chunks.concat())
}

fn format(tag: u16, samples_per_second: u32, bytes_per_second: u32, bytes_per_sample: u16) -> Vec<u8> {
    let rates = [samples_per_second.to_le_bytes(), bytes_per_second.to_le_bytes()].concat();
    chunk(
        b"fmt ",
        &join(&[&tag.to_le_bytes(), &2_u16.to_le_bytes(), &rates, &bytes_per_sample.to_le_bytes(), &[16, 0]]),
    )
}

/// A second of compressed sound.
pub(crate) fn sound() -> Sparse {
    let samples = chunk(b"fact", &48_000_u32.to_le_bytes());
    wav(&[&format(2, 48_000, 12_000, 4), &samples, &chunk(b"data", &[0; 12_000])])
}

#[test]
fn linear_sound_has_the_rate_of_its_samples() {
    for sum in [0, 192_000, u32::MAX] {
        let file = wav(&[&chunk(b"JUNK", &[0; 101]), &format(1, 48_000, sum, 4), &chunk(b"data", &[0; 8])]);
        let finding = file.find().unwrap();
        assert_eq!((finding.mean, finding.basis), (Bitrate(1_536_000), Basis::Stated));
    }
}

#[test]
fn compressed_sound_has_the_rate_of_its_bytes() {
    let data = chunk(b"data", &[0; 10_000]);
    let counted = wav(&[&format(2, 48_000, 7, 4), &chunk(b"fact", &48_000_u32.to_le_bytes()), &data]);
    assert_eq!(counted.find().unwrap().mean, Bitrate(80_000));
    let length = counted.length();
    assert_eq!(counted.with_length(length - 1).find(), Err(Refusal::Truncated("samples")));
    let long = wav(&[&format(2, 48_000, 12_000, 4), &chunk(b"fact", &[0xff; 4]), b"data\xff\xff\xff\xff"]);
    assert_eq!(long.find().unwrap().mean, Bitrate(96_000));
    let stated = wav(&[&format(2, 48_000, 12_000, 4), &data]);
    assert_eq!(stated.find().unwrap().mean, Bitrate(96_000));
}

#[test]
fn the_extensible_form_says_what_the_samples_are_further_on() {
    let extensible = |subformat: u8| {
        let mut format = format(0xfffe, 48_000, 12_000, 4);
        format[4] = 40;
        format.extend([22, 0, 16, 0, 3, 0, 0, 0, subformat]);
        format.extend([0; 15]);
        wav(&[&format, &chunk(b"data", &[0; 8])]).find().unwrap().mean
    };
    assert_eq!(extensible(1), Bitrate(1_536_000));
    assert_eq!(extensible(2), Bitrate(96_000));
}

#[test]
fn sound_that_cannot_be_is_refused() {
    assert!(matches!(wav(&[&format(1, 0, 192_000, 4)]).find(), Err(Refusal::Absurd(_))));
    assert!(matches!(wav(&[&format(1, 48_000, 192_000, 0)]).find(), Err(Refusal::Absurd(_))));
    let reversed = wav(&[&chunk(b"data", &[0; 8]), &format(1, 48_000, 0, 4)]);
    assert!(matches!(reversed.find(), Err(Refusal::Absurd(_))));
    assert_eq!(wav(&[]).find(), Err(Refusal::Truncated("samples")));
    let format = format(1, 48_000, 0, 4);
    assert!(wav(&[&format]).find().is_ok());
    // Of its 24 bytes the last two are not needed.
    assert_eq!(wav(&[&format[..21]]).find(), Err(Refusal::Truncated("format chunk")));
}

/// `hdrl` of pictures: so many frames in their own header, and in that of all segments.
fn headers(frames: u32, all_frames: u32, frames_per_second: u32) -> Vec<u8> {
    let stream = [0, 0, 0, 1, frames_per_second, 0, frames].map(u32::to_le_bytes).concat();
    let stream = list(b"strl", &[&chunk(b"strh", &join(&[b"vidsmjpg", &stream]))]);
    let long = list(b"odml", &[&chunk(b"dmlh", &all_frames.to_le_bytes())]);
    list(b"hdrl", &[&chunk(b"avih", &[0; 56]), &stream, &long])
}

/// One segment: `headers` in the first, and `bytes` of media with the head of their list.
fn segment(kind: &[u8; 4], headers: &[u8], bytes: u32) -> Sparse {
    let length = bytes + 12 + headers.len() as u32;
    Sparse::default()
        .push(join(&[b"RIFF", &length.to_le_bytes(), kind, headers]))
        .push(join(&[b"LIST", &bytes.to_le_bytes(), b"movi"]))
        .zeros(u64::from(bytes) - 4)
}

pub(crate) fn avi(frames: u32, frames_per_second: u32, bytes: u32) -> Sparse {
    segment(b"AVI ", &headers(frames, 0, frames_per_second), bytes)
}

#[test]
fn pictures_play_at_their_rate() {
    let finding = avi(250, 25, 10_000_000).find().unwrap();
    assert_eq!((finding.mean, finding.basis), (Bitrate(8_000_000), Basis::Whole));
    assert_eq!(finding.frame_period, Some(Duration::from_millis(40)));
    assert!(matches!(avi(250, 0, 10_000_000).find(), Err(Refusal::Absurd(_))));
    assert!(matches!(avi(0, 25, 10_000_000).find(), Err(Refusal::Absurd(_))));
}

#[test]
fn media_end_with_the_file_or_are_cut_off() {
    let length = avi(250, 25, 10_000_000).length();
    assert!(avi(250, 25, 10_000_000).with_length(length).find().is_ok());
    assert_eq!(avi(250, 25, 10_000_000).with_length(length - 1).find(), Err(Refusal::Truncated("media")));
    let no_media = headers(250, 0, 25).len() as u64 + 12;
    assert_eq!(avi(250, 25, 10_000_000).with_length(no_media).find(), Err(Refusal::Truncated("media")));
}

#[test]
fn all_segments_of_a_long_file_count() {
    const GIB: u32 = 1 << 30;
    for (segments, basis) in [(3, Basis::Whole), (100, Basis::Part)] {
        let first = segment(b"AVI ", &headers(1_000, segments * 1_000, 25), GIB);
        let file = (1..segments).fold(first, |file, _| file.append(segment(b"AVIX", &[], GIB)));
        let finding = file.find().unwrap();
        assert_eq!(finding.basis, basis);
        let expected = u64::from(GIB) * 8 / 40;
        assert!(finding.mean.0.abs_diff(expected) <= expected / 1_000_000, "{finding}, {expected}");
    }
}

#[test]
fn a_million_empty_chunks_are_too_many() {
    let chunks = chunk(b"JUNK", &[]).repeat(1_000_000);
    assert_eq!(wav(&[&chunks]).find(), Err(Refusal::TooCostly));
    assert_eq!(Sparse::default().push(b"RIFF\0\0\0\0AVI ").push(chunks).find(), Err(Refusal::TooCostly));
}
