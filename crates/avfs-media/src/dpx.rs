//! DPX (SMPTE ST 268): one frame in a file, its frame rate in the film or the television header.

use crate::finding::{Container, Finding, Refusal, Span};
use crate::source::{Parsed, Source};
use zerocopy::big_endian;

/// Where the pixels begin, and the generic part's end: the other two headers are optional.
const IMAGE_OFFSET: u64 = 4;
/// Length of the file, as it was written.
const FILE_LENGTH: u64 = 16;
/// Frame rate of the film header, frames per second.
const FILM_RATE: u64 = 1724;
/// Frame rate of the television header, frames per second.
const TELEVISION_RATE: u64 = 1940;
/// Rates are stored as a float; 1/1,000 of a frame tells 23.976 from 24.
const RATE_STEPS: u32 = 1000;

pub(crate) fn find(source: &Source) -> Parsed<Finding> {
    let little_endian = source.bytes(0, 4, "header")? == b"XPDS";
    let number = |offset| -> Parsed<u32> {
        let big: big_endian::U32 = source.read(offset, "header")?;
        Ok(if little_endian { big.get().swap_bytes() } else { big.get() })
    };
    let image = u64::from(number(IMAGE_OFFSET)?);
    let announced = number(FILE_LENGTH)?;
    if image > source.length() || announced != u32::MAX && u64::from(announced) > source.length() {
        return Err(Refusal::Truncated("image").into());
    }
    for offset in [FILM_RATE, TELEVISION_RATE] {
        // Undefined is all ones, which is no number; many writers have 0 instead.
        if offset + size_of::<f32>() as u64 <= image
            && let rate = f32::from_bits(number(offset)?)
            && rate > 0.0
        {
            return rate_of(source, rate);
        }
    }
    Err(Refusal::NoRate("frame rate").into())
}

fn rate_of(source: &Source, frames_per_second: f32) -> Parsed<Finding> {
    // Saturates; what is no frame rate is refused below.
    let rate = (frames_per_second * RATE_STEPS as f32).round() as u32;
    Ok(Finding::of_frame(Container::Dpx, source.length(), Span::new(1, rate, RATE_STEPS)?)?)
}
