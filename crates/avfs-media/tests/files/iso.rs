//! MOV and MP4.

use crate::make::{Sparse, long_box_head, mp4_box, words};
use avfs_media::{Basis, Container, Refusal};
use units::{Bitrate, Duration};

const TERABYTE: u64 = 1_000_000_000_000;

/// `moov` of a film that lasts `seconds`, whose pictures last `media_seconds`, at 25 frames a second.
pub(crate) fn movie(seconds: u32, media_seconds: u32, extra: &[u8]) -> Vec<u8> {
    mp4_box(b"moov", &[header(1000, seconds * 1000), track(media_seconds, &[]), extra.to_vec()].concat())
}

fn header(timescale: u32, duration: u32) -> Vec<u8> {
    mp4_box(b"mvhd", &words(&[0, 0, 0, timescale, duration]))
}

/// A track of pictures with the number 1; `rates` may be `btrt`.
fn track(seconds: u32, rates: &[u8]) -> Vec<u8> {
    let handler = mp4_box(b"hdlr", &[&words(&[0, 0]), b"vide".as_slice()].concat());
    let entry = mp4_box(b"avc1", &[&[0; 78], rates].concat());
    let descriptions = mp4_box(b"stsd", &[words(&[0, 1]), entry].concat());
    let times = mp4_box(b"stts", &words(&[0, 1, seconds * 25, 512]));
    let table = mp4_box(b"minf", &mp4_box(b"stbl", &[descriptions, times].concat()));
    let media_header = mp4_box(b"mdhd", &words(&[0, 0, 0, 12_800, seconds * 12_800]));
    let media = mp4_box(b"mdia", &[media_header, handler, table].concat());
    mp4_box(b"trak", &[mp4_box(b"tkhd", &words(&[0, 0, 0, 1])), media].concat())
}

/// `moof` and `mdat` of `seconds` from `begin` on, `bytes` together.
fn fragment(begin: u32, seconds: u32, bytes: u32) -> Sparse {
    let track_header = mp4_box(b"tfhd", &words(&[0x8, 1, 512]));
    let decode_time = mp4_box(b"tfdt", &words(&[0, begin * 12_800]));
    let run = mp4_box(b"trun", &words(&[0, seconds * 25]));
    let moof = mp4_box(b"moof", &mp4_box(b"traf", &[track_header, decode_time, run].concat()));
    let media = bytes - moof.len() as u32;
    Sparse::default().push(moof).push(words(&[media])).push(b"mdat").zeros(u64::from(media) - 8)
}

/// `mvex`: there may be fragments.
fn extends() -> Vec<u8> {
    mp4_box(b"mvex", &mp4_box(b"trex", &words(&[0, 1, 1, 512, 0, 0])))
}

/// A fragmented film: so many fragments of a second and a megabyte.
pub(crate) fn fragmented(fragments: u32) -> Sparse {
    let begin = Sparse::default().push(mp4_box(b"ftyp", b"iso5")).push(movie(0, 0, &extends()));
    (0..fragments).fold(begin, |file, second| file.append(fragment(second, 1, 1_000_000)))
}

fn film(media: u64, movie: Vec<u8>) -> Sparse {
    let mdat = long_box_head(b"mdat", media + 16);
    Sparse::default().push(mp4_box(b"ftyp", b"qt  ")).push(movie).push(mdat).zeros(media)
}

#[test]
fn a_terabyte_of_film_costs_no_more_than_a_clip() {
    let front = film(TERABYTE, movie(8_000, 8_000, &[])).find().unwrap();
    assert_eq!((front.container, front.basis), (Container::IsoBaseMedia, Basis::Whole));
    assert_eq!((front.mean, front.peak), (Bitrate(1_000_000_000), None));
    assert_eq!(front.frame_period, Some(Duration::from_millis(40)));

    let mdat = long_box_head(b"mdat", TERABYTE + 16);
    let end = Sparse::default().push(mp4_box(b"wide", &[])).push(mdat).zeros(TERABYTE).push(movie(
        8_000,
        8_000,
        &[],
    ));
    assert_eq!(end.find(), Ok(front));
}

#[test]
fn media_of_length_0_reach_to_the_end_of_the_file() {
    let open = Sparse::default().push(movie(8, 8, &[])).push(words(&[0])).push(b"mdat").zeros(1_000_000);
    assert_eq!(open.find().unwrap().mean, Bitrate(1_000_000));
}

#[test]
fn media_end_with_the_file_or_are_cut_off() {
    let exact = film(1_000_000, movie(8, 8, &[]));
    let length = exact.length();
    assert_eq!(exact.find().unwrap().mean, Bitrate(1_000_000));
    let short = film(1_000_000, movie(8, 8, &[])).with_length(length - 1);
    assert_eq!(short.find(), Err(Refusal::Truncated("media")));
}

#[test]
fn an_edit_that_shows_a_part_does_not_make_the_rate_higher() {
    let trimmed = film(1_000_000, movie(2, 8, &[]));
    assert_eq!(trimmed.find().unwrap().mean, Bitrate(1_000_000));
    let with_longer_sound = film(1_000_000, movie(8, 2, &[]));
    assert_eq!(with_longer_sound.find().unwrap().mean, Bitrate(1_000_000));
}

#[test]
fn the_peak_is_the_mean_and_what_tracks_say_beyond_their_averages() {
    let rates = mp4_box(b"btrt", &words(&[0, 1_500_000, 900_000]));
    let moov = mp4_box(b"moov", &[header(1, 8), track(8, &rates), track(8, &rates)].concat());
    let finding = film(1_000_000, moov).find().unwrap();
    assert_eq!((finding.mean, finding.peak), (Bitrate(1_000_000), Some(Bitrate(2_200_000))));
}

#[test]
fn tables_of_samples_are_not_read() {
    let table = mp4_box(b"free", &vec![0; 20 << 20]);
    assert_eq!(film(1_000_000, movie(8, 8, &table)).find().unwrap().mean, Bitrate(1_000_000));
}

#[test]
fn what_cannot_be_is_refused() {
    let with_header =
        |timescale, duration| film(1_000_000, mp4_box(b"moov", &header(timescale, duration))).find();
    assert_eq!(with_header(1000, 0), Err(Refusal::NoRate("duration")));
    assert_eq!(with_header(0, 1000), Err(Refusal::NoRate("duration")));
    assert_eq!(with_header(1000, u32::MAX), Err(Refusal::NoRate("duration")));
    assert!(matches!(with_header(u32::MAX, 1), Err(Refusal::Absurd(_))));
    assert_eq!(with_header(1000, 8_000).unwrap().mean, Bitrate(1_000_000));

    let second = |length: u32| {
        Sparse::default().push(mp4_box(b"ftyp", &[])).push(words(&[length])).push(b"mdat").find()
    };
    assert!(matches!(second(7), Err(Refusal::Absurd(_))));
    assert_eq!(second(8), Err(Refusal::Truncated("movie header")));
    let endless =
        Sparse::default().push(movie(8, 8, &[])).push(long_box_head(b"mdat", u64::MAX)).zeros(1_000);
    assert_eq!(endless.find(), Err(Refusal::Truncated("media")));
    let elsewhere = Sparse::default().push(movie(8, 8, &[]));
    assert_eq!(elsewhere.find(), Err(Refusal::NoRate("rate: its media are in other files")));
}

#[test]
fn a_million_empty_boxes_are_too_many() {
    let boxes = mp4_box(b"free", &[]).repeat(1_000_000);
    assert_eq!(Sparse::default().push(boxes).find(), Err(Refusal::TooCostly));
}

#[test]
fn fragments_are_measured_as_far_as_they_go() {
    let whole = fragmented(4).find().unwrap();
    assert_eq!((whole.mean, whole.basis), (Bitrate(8_000_000), Basis::Whole));
    assert_eq!(whole.frame_period, Some(Duration::from_millis(40)));

    // While it is recorded, the last fragment is not complete.
    let length = fragmented(4).length();
    let recorded = fragmented(4).with_length(length - 1).find().unwrap();
    assert_eq!((recorded.mean, recorded.basis), (Bitrate(8_000_000), Basis::Part));
    let long = fragmented(1_000).find().unwrap();
    assert_eq!((long.mean, long.basis), (Bitrate(8_000_000), Basis::Part));
    let begun = fragmented(1).length();
    assert_eq!(fragmented(1).with_length(begun - 1).find(), Err(Refusal::Truncated("media")));
}

#[test]
fn what_is_in_the_movie_comes_before_the_fragments() {
    let begin = || Sparse::default().push(movie(1, 1, &extends()));
    let media = || Sparse::default().push(words(&[1_000_000])).push(b"mdat").zeros(1_000_000 - 8);
    let both = begin().append(media()).append(fragment(1, 1, 1_000_000)).find().unwrap();
    assert_eq!((both.mean, both.basis), (Bitrate(8_000_000), Basis::Whole));
    let alone = begin().append(media()).find().unwrap();
    assert_eq!((alone.mean, alone.basis), (Bitrate(8_000_000), Basis::Whole));
    let cut = begin().append(fragment(1, 1, 1_000_000));
    let length = cut.length();
    assert_eq!(cut.with_length(length - 1).find(), Err(Refusal::Truncated("media")));
}

#[test]
fn the_last_fragment_is_found_by_the_index_at_the_end() {
    let last = fragmented(999).length();
    let entry = [words(&[0, 0]), words(&[(last >> 32) as u32, last as u32]), vec![1, 1, 1]].concat();
    let table = mp4_box(b"tfra", &[words(&[1 << 24, 1, 0, 1]), entry].concat());
    let length = 8 + table.len() as u32 + 16;
    let index = mp4_box(b"mfra", &[table, mp4_box(b"mfro", &words(&[0, length]))].concat());
    let finding = fragmented(1_000).push(index).find().unwrap();
    assert_eq!((finding.mean, finding.basis), (Bitrate(8_000_000), Basis::Whole));
}

#[test]
fn a_segment_without_its_movie_header_has_no_rate() {
    assert_eq!(fragment(0, 1, 1_000).find(), Err(Refusal::NoRate("timescale, which is in another file")));
}
