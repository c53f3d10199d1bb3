//! Frames of DPX and OpenEXR.

use crate::make::{Sparse, join};
use avfs_media::{Basis, Container, Refusal};
use units::{Bitrate, Duration};

pub(crate) const FILM: usize = 1724;
const TELEVISION: usize = 1940;
const DPX_HEADER: usize = 2048;
const LENGTH: u64 = 1_000_000;

/// A frame of DPX with floats at places of its header, all else undefined.
pub(crate) fn dpx(rates: &[(usize, f32)], little_endian: bool, image: u32) -> Sparse {
    let number = |number: u32| if little_endian { number.to_le_bytes() } else { number.to_be_bytes() };
    let mut header = vec![0xff; DPX_HEADER];
    header[..4].copy_from_slice(if little_endian { b"XPDS" } else { b"SDPX" });
    header[4..8].copy_from_slice(&number(image));
    header[16..20].copy_from_slice(&number(LENGTH as u32));
    for (offset, rate) in rates {
        header[*offset..][..4].copy_from_slice(&number(rate.to_bits()));
    }
    Sparse::default().push(header).with_length(LENGTH)
}

#[test]
fn a_frame_of_dpx_has_the_rate_of_film_or_television() {
    for little_endian in [false, true] {
        for rates in [&[(FILM, 24.0)][..], &[(TELEVISION, 24.0)], &[(FILM, 0.0), (TELEVISION, 24.0)]] {
            let finding = dpx(rates, little_endian, DPX_HEADER as u32).find().unwrap();
            assert_eq!((finding.container, finding.basis), (Container::Dpx, Basis::Frame));
            assert_eq!(finding.mean, Bitrate(LENGTH * 8 * 24));
        }
    }
    let film = dpx(&[(FILM, 23.976), (TELEVISION, 25.0)], false, DPX_HEADER as u32).find().unwrap();
    assert_eq!(film.frame_period, Some(Duration::from_nanos(41_708_375)));
}

#[test]
fn a_frame_of_dpx_without_a_rate_has_none() {
    let find = |rates: &[_]| dpx(rates, false, DPX_HEADER as u32).find();
    assert_eq!(find(&[]), Err(Refusal::NoRate("frame rate")));
    assert_eq!(find(&[(FILM, -24.0)]), Err(Refusal::NoRate("frame rate")));
    assert!(find(&[(FILM, 1.0)]).is_ok());
    assert!(find(&[(FILM, 1000.0)]).is_ok());
    for absurd in [0.999, 1000.01, 1e-30, f32::INFINITY, f32::MAX] {
        assert!(matches!(find(&[(FILM, absurd)]), Err(Refusal::Absurd(_))), "{absurd}");
    }
}

#[test]
fn what_is_pixels_is_no_header() {
    let end = FILM as u32 + 4;
    assert!(dpx(&[(FILM, 24.0)], false, end).find().is_ok());
    assert_eq!(dpx(&[(FILM, 24.0)], false, end - 1).find(), Err(Refusal::NoRate("frame rate")));
}

#[test]
fn a_frame_of_dpx_is_as_long_as_it_says() {
    let frame = |length| dpx(&[(FILM, 24.0)], false, DPX_HEADER as u32).with_length(length).find();
    assert!(frame(LENGTH).is_ok());
    assert_eq!(frame(LENGTH - 1), Err(Refusal::Truncated("image")));
    let no_image = dpx(&[(FILM, 24.0)], false, LENGTH as u32 + 1).find();
    assert_eq!(no_image, Err(Refusal::Truncated("image")));
    assert_eq!(frame(10), Err(Refusal::Truncated("header")));
}

fn attribute(name: &[u8], kind: &[u8], value: &[u8]) -> Vec<u8> {
    join(&[name, &[0], kind, &[0], &(value.len() as u32).to_le_bytes(), value])
}

/// A frame of OpenEXR with these attributes, at `numerator` / `denominator` frames a second.
pub(crate) fn exr(attributes: &[u8], numerator: i32, denominator: u32) -> Sparse {
    let rate = [numerator.to_le_bytes(), denominator.to_le_bytes()].concat();
    Sparse::default()
        .push([0x76, 0x2f, 0x31, 0x01, 2, 0, 0, 0])
        .push(attributes)
        .push(attribute(b"framesPerSecond", b"rational", &rate))
        .push([0])
        .with_length(LENGTH)
}

#[test]
fn a_frame_of_openexr_has_the_rate_of_its_attribute() {
    // A preview as large as this pushes what follows out of the first read.
    let preview = attribute(b"preview", b"preview", &vec![0; 300 << 10]);
    let finding = exr(&preview, 24, 1).find().unwrap();
    assert_eq!((finding.container, finding.basis), (Container::OpenExr, Basis::Frame));
    assert_eq!(finding.mean, Bitrate(LENGTH * 8 * 24));
    for (numerator, denominator) in [(0, 1), (24, 0), (-24, 1), (i32::MAX, 1), (1, 2)] {
        let refused = exr(&[], numerator, denominator).find();
        assert!(matches!(refused, Err(Refusal::Absurd(_))), "{numerator}/{denominator}: {refused:?}");
    }
}

#[test]
fn a_frame_of_openexr_without_the_attribute_has_none() {
    let end = Sparse::default().push([0x76, 0x2f, 0x31, 0x01, 2, 0, 0, 0, 0]).with_length(LENGTH);
    assert_eq!(end.find(), Err(Refusal::NoRate("frame rate")));
    assert!(exr(&attribute(&[b'n'; 255], b"int", &[0; 4]), 24, 1).find().is_ok());
    let endless = exr(&attribute(&[b'n'; 256], b"int", &[0; 4]), 24, 1).find();
    assert_eq!(endless, Err(Refusal::Absurd("a name has no end")));
    let cut = exr(&attribute(b"name", b"int", &[0; 4]), 24, 1).with_length(40).find();
    assert_eq!(cut, Err(Refusal::Truncated("attributes")));
}
