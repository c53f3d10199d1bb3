//! OpenEXR (file layout of the OpenEXR documentation): one frame in a file, its rate in the attribute
//! `framesPerSecond` of the first header.

use crate::finding::{Container, Finding, Refusal, Span};
use crate::source::{Parsed, Source};
use zerocopy::FromBytes;
use zerocopy::little_endian::{I32, U32};

/// Magic and version.
const FIRST_ATTRIBUTE: u64 = 8;
/// Longest name of an attribute or a type, with its closing zero.
const MAX_NAME: u64 = 256;

#[derive(FromBytes)]
#[repr(C)]
struct Rational {
    numerator: I32,
    denominator: U32,
}

pub(crate) fn find(source: &Source) -> Parsed<Finding> {
    let mut at = FIRST_ATTRIBUTE;
    loop {
        source.step()?;
        let name = text(source, at)?;
        if name.is_empty() {
            return Err(Refusal::NoRate("frame rate").into());
        }
        at += name.len() as u64 + 1;
        let kind = text(source, at)?;
        at += kind.len() as u64 + 1;
        let length: U32 = source.read(at, "attributes")?;
        at += size_of::<U32>() as u64;
        if name == b"framesPerSecond" && kind == b"rational" {
            let rate: Rational = source.read(at, "frame rate")?;
            let numerator = u32::try_from(rate.numerator.get()).unwrap_or(0);
            let frame = Span::new(1, numerator, rate.denominator.get())?;
            return Ok(Finding::of_frame(Container::OpenExr, source.length(), frame)?);
        }
        at += u64::from(length.get());
    }
}

/// The text at `offset`, without the zero that closes it.
fn text(source: &Source, offset: u64) -> Parsed<&[u8]> {
    let bytes = source.up_to(offset, MAX_NAME)?;
    match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => Ok(&bytes[..end]),
        None if bytes.len() as u64 == MAX_NAME => Err(Refusal::Absurd("a name has no end").into()),
        None => Err(Refusal::Truncated("attributes").into()),
    }
}
