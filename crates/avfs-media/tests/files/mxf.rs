//! MXF.

use crate::make::{Sparse, join, klv, klv_head, words};
use avfs_media::{Basis, Container, Refusal};
use units::{Bitrate, Duration};

const FOOTER: u8 = 4;
const HEADER: u8 = 2;
const UNKNOWN: i64 = -1;
/// Bytes of essence of a clip that lasts ten seconds.
const ESSENCE: u64 = 10_000_000;

/// A partition pack, which says where the footer is.
fn partition(kind: u8, footer: u64) -> Vec<u8> {
    let value = [words(&[0x1_0003, 1, 0, 0, 0, 0]), footer.to_be_bytes().to_vec(), vec![0; 56]].concat();
    klv([2, 5, 1, 1, 0x0d, 1, 2, 1, 1, kind, 4, 0], &value)
}

fn set(kind: u8, items: &[(u16, &[u8])]) -> Vec<u8> {
    local_set([2, 0x53, 1, 1, 0x0d, 1, 1, 1, 1, 1, kind, 0], items)
}

fn local_set(key: [u8; 12], items: &[(u16, &[u8])]) -> Vec<u8> {
    let item =
        |(tag, value): &(u16, &[u8])| join(&[&tag.to_be_bytes(), &(value.len() as u16).to_be_bytes(), value]);
    klv(key, &items.iter().flat_map(item).collect::<Vec<u8>>())
}

/// Metadata of a clip of pictures at 25 frames a second. The material package shows a part of it.
fn metadata(frames: i64) -> Vec<u8> {
    join(&[&packages(5, frames), &set(0x23, &[(0x2701, &[2; 32])])])
}

/// A material package and a file package, their tracks and sequences.
fn packages(shown: i64, frames: i64) -> Vec<u8> {
    let instances = |number: u8| join(&[&words(&[1, 16]), &[number; 16]]);
    let pictures = [6, 0x0e, 0x2b, 0x34, 4, 1, 1, 1, 1, 3, 2, 2, 1, 0, 0, 0];
    let track = |number: u8, frames: i64| {
        let rate = words(&[25, 1]);
        join(&[
            &set(0x3b, &[(0x3c0a, &[number; 16]), (0x4b01, &rate), (0x4803, &[number + 1; 16])]),
            &set(0x0f, &[(0x3c0a, &[number + 1; 16]), (0x0201, &pictures), (0x0202, &frames.to_be_bytes())]),
        ])
    };
    join(&[
        &set(0x36, &[(0x4401, &[1; 32]), (0x4403, &instances(10))]),
        &track(10, shown),
        &set(0x37, &[(0x4401, &[2; 32]), (0x4403, &instances(20))]),
        &track(20, frames),
    ])
}

/// A segment of an index table: bytes of all edit units, or places of each.
fn index(unit_bytes: u32, places: &[u64]) -> Vec<u8> {
    let entries: Vec<u8> = places.iter().flat_map(|place| join(&[&[0; 3], &place.to_be_bytes()])).collect();
    let entries = join(&[&words(&[places.len() as u32, 11]), &entries]);
    let rate = words(&[25, 1]);
    local_set(
        [2, 0x53, 1, 1, 0x0d, 1, 2, 1, 1, 0x10, 1, 0],
        &[(0x3f0b, &rate), (0x3f05, &unit_bytes.to_be_bytes()), (0x3f0a, &entries)],
    )
}

/// An element of essence with `length` bytes, its head included.
fn element(length: u64) -> Sparse {
    Sparse::default()
        .push(klv_head([1, 2, 1, 1, 0x0d, 1, 3, 1, 0x15, 1, 5, 0], length - 25))
        .zeros(length - 25)
}

fn fill(length: u64) -> Vec<u8> {
    klv_head([1, 1, 1, 2, 3, 1, 2, 0x10, 1, 0, 0, 0], length)
}

/// A clip: what the header partition and the footer partition hold.
fn clip(header: &[u8], footer: &[u8]) -> Sparse {
    let place = partition(HEADER, 0).len() as u64 + header.len() as u64 + ESSENCE;
    Sparse::default()
        .push(partition(HEADER, place))
        .push(header)
        .append(element(ESSENCE))
        .push(partition(FOOTER, place))
        .push(footer)
}

/// A clip of ten seconds with a complete header.
pub(crate) fn simple() -> Sparse {
    clip(&metadata(250), &[])
}

#[test]
fn essence_plays_for_the_duration_of_its_package() {
    let finding = simple().find().unwrap();
    assert_eq!((finding.container, finding.basis), (Container::Mxf, Basis::Whole));
    assert_eq!((finding.mean, finding.peak), (Bitrate(8_000_000), None));
    assert_eq!(finding.frame_period, Some(Duration::from_millis(40)));
}

#[test]
fn what_is_shown_counts_only_if_nothing_says_what_is_there() {
    assert_eq!(clip(&packages(500, 250), &[]).find(), simple().find());
    let of_another_file = set(0x23, &[(0x2701, &[3; 32])]);
    assert_eq!(clip(&join(&[&packages(250, 500), &of_another_file]), &[]).find(), simple().find());
}

#[test]
fn a_run_in_is_shorter_than_64_kib() {
    let after = |length: u64| Sparse::default().zeros(length).append(simple()).find();
    assert_eq!(after((64 << 10) - 14), simple().find());
    assert_eq!(after(64 << 10), Err(Refusal::NotMedia));
}

#[test]
fn the_index_says_what_each_edit_unit_has() {
    let stated = clip(&join(&[&metadata(250), &index(40_100, &[])]), &[]).find().unwrap();
    assert_eq!((stated.mean, stated.basis), (Bitrate(8_020_000), Basis::Stated));
    let in_the_footer = clip(&metadata(250), &index(40_100, &[])).find().unwrap();
    assert_eq!(in_the_footer, stated);
    let of_another_part = clip(&metadata(250), &index(1_000, &[])).find().unwrap();
    assert_eq!((of_another_part.mean, of_another_part.basis), (Bitrate(8_000_000), Basis::Whole));
}

#[test]
fn the_index_shows_the_heaviest_second() {
    let place = |frame: u64| frame * 38_000 + frame.saturating_sub(100).min(25) * 12_000;
    let places: Vec<u64> = (0..250).map(place).collect();
    let finding = clip(&metadata(250), &index(0, &places)).find().unwrap();
    assert_eq!((finding.mean, finding.peak), (Bitrate(8_000_000), Some(Bitrate(10_000_000))));
    assert_eq!(finding.declared(), Bitrate(10_000_000));
    let of_a_second = clip(&metadata(250), &index(0, &places[..25])).find().unwrap();
    assert_eq!(of_a_second.peak, None, "25 places are 24 frames");
}

#[test]
fn a_header_that_is_open_is_completed_by_the_footer() {
    let open = clip(&metadata(UNKNOWN), &metadata(250));
    assert_eq!(open.find(), simple().find());
}

#[test]
fn a_footer_of_which_the_header_does_not_know_is_found_by_the_random_index() {
    let place = (partition(HEADER, 0).len() + metadata(UNKNOWN).len()) as u64 + ESSENCE;
    let random_index = |length: u32| {
        let entries = join(&[&words(&[1]), &0_u64.to_be_bytes(), &words(&[0]), &place.to_be_bytes()]);
        klv([2, 5, 1, 1, 0x0d, 1, 2, 1, 1, 0x11, 1, 0], &join(&[&entries, &length.to_be_bytes()]))
    };
    let file = |length| {
        Sparse::default()
            .push(partition(HEADER, 0))
            .push(metadata(UNKNOWN))
            .append(element(ESSENCE))
            .push(partition(FOOTER, place))
            .push(metadata(250))
            .push(random_index(length))
    };
    let length = random_index(0).len() as u32;
    assert_eq!(file(length).find(), simple().find());
    for wrong in [0, length - 1, length + 1, u32::MAX] {
        assert_eq!(file(wrong).find(), Err(Refusal::NoRate("duration")), "{wrong}");
    }
}

#[test]
fn a_footer_lies_within_the_file() {
    let length = simple().length();
    let footer = partition(FOOTER, 0).len() as u64;
    assert_eq!(simple().with_length(length - footer).find(), Err(Refusal::Truncated("footer")));
    // What remains of it says nothing that is missing.
    assert_eq!(simple().with_length(length - footer + 1).find(), simple().find());
}

#[test]
fn a_recording_is_measured_by_its_index_or_its_first_frames() {
    let recording = |index: &[u8], frames: u64| {
        let begin = Sparse::default().push(partition(HEADER, 0)).push(metadata(UNKNOWN)).push(index);
        (0..frames).fold(begin, |file, _| file.append(element(1_000_000)))
    };
    let stated = recording(&index(500_000, &[]), 0).find().unwrap();
    assert_eq!((stated.mean, stated.basis), (Bitrate(100_000_000), Basis::Stated));
    for frames in [2, 1_000] {
        let measured = recording(&[], frames).find().unwrap();
        assert_eq!((measured.mean, measured.basis), (Bitrate(200_000_000), Basis::Part));
        assert_eq!(measured.frame_period, Some(Duration::from_millis(40)));
    }
    assert_eq!(recording(&[], 1).find(), Err(Refusal::NoRate("duration")));
    let preallocated = recording(&[], 3).zeros(1 << 30).find().unwrap();
    assert_eq!((preallocated.mean, preallocated.basis), (Bitrate(200_000_000), Basis::Part));
}

#[test]
fn fill_without_end_ends_the_search() {
    let begin = || Sparse::default().push(partition(HEADER, 0));
    let many = begin().push(fill(0).repeat(1_000_000));
    assert_eq!(many.find(), Err(Refusal::TooCostly));
    let far = (0..100).fold(begin(), |file, _| file.push(fill(1 << 20)).zeros(1 << 20));
    assert_eq!(far.find(), Err(Refusal::TooCostly));
    let endless = begin().push(fill(u64::MAX)).push(metadata(250));
    assert_eq!(endless.find(), Err(Refusal::NoRate("edit rate")));
}

#[test]
fn what_cannot_be_is_refused() {
    assert_eq!(clip(&[], &[]).find(), Err(Refusal::NoRate("edit rate")));
    assert_eq!(clip(&metadata(0), &[]).find(), Err(Refusal::NoRate("duration")));
    assert!(matches!(clip(&metadata(i64::MAX), &[]).find(), Err(Refusal::Absurd(_))));
    let no_key = Sparse::default().push(partition(HEADER, 0)).push([0; 100]);
    assert!(matches!(no_key.find(), Err(Refusal::Absurd(_))));
    let mut long_length = klv_head([1, 1, 1, 2, 3, 1, 2, 0x10, 1, 0, 0, 0], 0);
    long_length[16] = 0x89;
    let nine_bytes = Sparse::default().push(partition(HEADER, 0)).push(long_length);
    assert!(matches!(nine_bytes.find(), Err(Refusal::Absurd(_))));
    // A footer that is the header: a partition's content is read twice, not for ever.
    let cycle = Sparse::default().zeros(0).push(partition(HEADER, 1)).push(metadata(UNKNOWN));
    assert_eq!(cycle.find(), Err(Refusal::NoRate("duration")));
}

#[test]
fn a_footer_whose_index_is_long_still_completes_the_header() {
    let places: Vec<u64> = (0..5_000).map(|frame| frame * 40_000).collect();
    let long = join(&[&metadata(250), &index(0, &places).repeat(20)]);
    assert_eq!(clip(&metadata(UNKNOWN), &long).find(), simple().find());
    let torn = join(&[&metadata(250), &[0; 100]]);
    assert_eq!(clip(&metadata(UNKNOWN), &torn).find(), simple().find());
}

#[test]
fn of_a_long_index_the_beginning_is_read() {
    let steady: Vec<u64> = (0..5_000).map(|frame| frame * 40_000).collect();
    let heavy: Vec<u64> = (0..5_000).map(|frame| frame * 50_000).collect();
    let peak = |segments: &[u8]| clip(&metadata(250), segments).find().unwrap().peak;
    let (steady, heavy) = (index(0, &steady), index(0, &heavy));
    assert_eq!(peak(&join(&[&steady.repeat(3), &heavy])), Some(Bitrate(10_000_000)));
    assert_eq!(peak(&join(&[&steady.repeat(4), &heavy])), None);
}

#[test]
fn what_others_made_up_is_passed_over() {
    let mut own = fill(10);
    own[..4].copy_from_slice(b"own ");
    assert_eq!(clip(&join(&[&own, &[0; 10], &metadata(250)]), &[]).find(), simple().find());
}
