//! WAV, RF64 and BW64 (Microsoft RIFF; EBU Tech 3306; ITU-R BS.2088): the format chunk states the rate.

use crate::finding::{Basis, Container, Finding, Refusal, SECOND, Span};
use crate::riff::{self, Chunk};
use crate::source::{Parsed, Source};
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

/// Linear samples, of integers or floats.
const LINEAR: [u16; 2] = [1, 3];
/// What the samples are is said by [`SUBFORMAT`].
const EXTENSIBLE: u16 = 0xfffe;
/// Where in the format chunk the extensible form has its identifier, which begins as an old tag.
const SUBFORMAT: u64 = 24;
/// The length of data that a chunk of RF64 states in 64 bits, elsewhere, as the number of samples.
const ELSEWHERE: u64 = u32::MAX as u64;

#[derive(FromBytes)]
#[repr(C)]
struct Format {
    tag: U16,
    _channels: U16,
    samples_per_second: U32,
    bytes_per_second: U32,
    bytes_per_sample: U16,
}

impl Format {
    /// Reads the format chunk whose data are at `offset`.
    fn read(source: &Source, offset: u64) -> Parsed<Self> {
        let mut format: Self = source.read(offset, "format chunk")?;
        if format.tag.get() == EXTENSIBLE {
            format.tag = source.read(offset + SUBFORMAT, "format chunk")?;
        }
        Ok(format)
    }
}

pub(crate) fn find(source: &Source) -> Parsed<Finding> {
    let (mut format, mut samples) = (None, None);
    let mut at = riff::FORM;
    while let Some(chunk) = Chunk::at(source, at)? {
        match &chunk.id {
            b"fmt " => format = Some(Format::read(source, chunk.data)?),
            b"fact" => samples = Some(source.read::<U32>(chunk.data, "number of samples")?.get()),
            _ => {}
        }
        match &format {
            Some(format) if LINEAR.contains(&format.tag.get()) => return linear(format),
            Some(format) if chunk.id == *b"data" => {
                return compressed(source, format, samples, &chunk);
            }
            None if chunk.id == *b"data" => {
                return Err(Refusal::Absurd("its samples come before their format").into());
            }
            _ => at = chunk.end(),
        }
    }
    Err(Refusal::Truncated("samples").into())
}

/// Some recorders leave the bytes per second at 0.
fn linear(format: &Format) -> Parsed<Finding> {
    let bytes = u64::from(format.samples_per_second.get()) * u64::from(format.bytes_per_sample.get());
    Ok(Finding::new(Container::Wave, SECOND.rate_of(bytes)?, Basis::Stated))
}

/// The bytes per second of compressed sound may be a guess; the number of samples is not.
fn compressed(source: &Source, format: &Format, samples: Option<u32>, data: &Chunk) -> Parsed<Finding> {
    let (mean, basis) = match samples {
        Some(samples) if data.length != ELSEWHERE => {
            if data.data + data.length > source.length() {
                return Err(Refusal::Truncated("samples").into());
            }
            let duration = Span::new(u64::from(samples), format.samples_per_second.get(), 1)?;
            (duration.rate_of(data.length)?, Basis::Whole)
        }
        _ => (SECOND.rate_of(u64::from(format.bytes_per_second.get()))?, Basis::Stated),
    };
    Ok(Finding::new(Container::Wave, mean, basis))
}
