//! Transport streams.

use crate::make::{Sparse, probe_bytes};
use crate::support::probe;
use avfs_media::{Basis, Container, Finding, Refusal};
use units::Bitrate;

const CLOCK_PERIOD: u64 = (1 << 33) * 300;
const PROGRAM: u16 = 0x100;

/// A packet of `stride` bytes, with a clock reference if one is given.
fn packet(stride: usize, clock: Option<u64>) -> Vec<u8> {
    let mut packet = vec![0xff; stride];
    let start = if stride == 192 { 4 } else { 0 };
    let pid = PROGRAM.to_be_bytes();
    packet[start..][..4].copy_from_slice(&[0x47, pid[0], pid[1], 0x10]);
    if let Some(clock) = clock {
        let (base, extension) = (clock % CLOCK_PERIOD / 300, clock % 300);
        let clock = base << 15 | 0x3f << 9 | extension;
        packet[start + 3] = 0x30;
        packet[start + 4..][..2].copy_from_slice(&[7, 0x10]);
        packet[start + 6..][..6].copy_from_slice(&clock.to_be_bytes()[2..]);
    }
    packet
}

/// Probes a stream of so many packets, of which each hundredth has the clock that `clock` says for its number.
fn find(stride: usize, packets: u64, clock: impl Fn(u64) -> u64) -> Result<Finding, Refusal> {
    let stride_long = stride as u64;
    probe(packets * stride_long, |offset, length| {
        let first = offset / stride_long;
        let last = (offset + length).div_ceil(stride_long);
        let packet = |number: u64| packet(stride, number.is_multiple_of(100).then(|| clock(number)));
        let bytes: Vec<u8> = (first..last).flat_map(packet).collect();
        bytes[(offset - first * stride_long) as usize..][..length as usize].to_vec()
    })
}

/// 10,000 packets a second.
fn steady(number: u64) -> u64 {
    number * 2_700
}

pub(crate) fn stream(packets: u64) -> Vec<u8> {
    (0..packets).flat_map(|number| packet(188, number.is_multiple_of(100).then(|| steady(number)))).collect()
}

#[test]
fn packets_of_every_length_are_measured() {
    for stride in [188, 192, 204] {
        for packets in [1_000, 1_000_000_000] {
            let finding = find(stride, packets, steady).unwrap();
            assert_eq!((finding.container, finding.basis), (Container::TransportStream, Basis::Whole));
            assert_eq!(finding.mean, Bitrate(stride as u64 * 80_000));
        }
    }
}

#[test]
fn eight_packets_make_a_stream() {
    assert_eq!(probe_bytes(&stream(8)), Err(Refusal::NoRate("rate: its clock stands still")));
    assert_eq!(probe_bytes(&stream(8)[..7 * 188]), Err(Refusal::NotMedia));
}

#[test]
fn a_recording_may_begin_within_a_packet() {
    let whole = probe_bytes(&stream(1_000)).unwrap();
    assert_eq!(probe_bytes(&stream(1_000)[100..]), Ok(whole));
}

#[test]
fn the_clock_begins_again_and_nothing_happens() {
    let wraps = find(188, 1_000_000, |number| CLOCK_PERIOD - 27_000_000 + steady(number)).unwrap();
    assert_eq!(wraps.mean, Bitrate(188 * 80_000));
    let between_two = find(188, 150, |number| CLOCK_PERIOD - 1_000 + steady(number)).unwrap();
    assert_eq!(between_two.mean, Bitrate(188 * 80_000));
}

#[test]
fn joined_streams_are_measured_without_the_jump() {
    for jump in [27_000_000 * 3_600, CLOCK_PERIOD - 27_000_000 * 3_600] {
        let joined = |number| steady(number) + if number > 400_000 { jump } else { 0 };
        assert_eq!(find(188, 1_000_000, joined).unwrap().mean, Bitrate(188 * 80_000), "{jump}");
    }
}

#[test]
fn a_clock_that_stands_still_or_is_missing_says_nothing() {
    assert_eq!(find(188, 100_000, |_| 5), Err(Refusal::NoRate("rate: its clock stands still")));
    assert!(matches!(find(188, 1_000_000, |number| number / 100), Err(Refusal::Absurd(_))));
    let silent = packet(188, None).repeat(100_000);
    assert_eq!(probe_bytes(&silent), Err(Refusal::NoRate("clock references")));
}

#[test]
fn a_stream_without_an_end_is_not_searched_for_it() {
    let preallocated = Sparse::default().push(stream(1_000)).zeros(1 << 40);
    assert_eq!(preallocated.find(), Err(Refusal::NoRate("clock references at its end")));
}
