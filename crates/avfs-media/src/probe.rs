//! The probe: asks for parts of a file until it knows.

use crate::finding::{Finding, Refusal};
use crate::source::{Parsed, Range, Source, Stop};
use crate::{avi, dpx, exr, iso, mpegts, mxf, wave};
use units::Bytes;

/// What a probe needs next, or what came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Give [`Probe::feed`] these bytes.
    Read {
        /// First byte in the file; a multiple of 4 KiB.
        offset: u64,
        /// At most [`MAX_READ`](crate::MAX_READ), and never past the end of the file.
        length: Bytes,
    },
    /// It is over.
    Done(Result<Finding, Refusal>),
}

/// The search for the rate of one file; see the head of this crate.
pub struct Probe {
    source: Source,
    step: Step,
}

impl Probe {
    /// Begins with a file that is `length` long now. Its name plays no part: names are wrong too often, and the first
    /// bytes tell every container.
    pub fn new(length: Bytes) -> Self {
        let source = Source::new(length.as_u64());
        let step = attempt(&source);
        Self { source, step }
    }

    /// What is needed next.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Takes the bytes that were asked for, and goes on. Fewer mean that the file has become shorter; further ones
    /// are ignored, as is everything when the probe is done.
    pub fn feed(&mut self, bytes: &[u8]) -> Step {
        if let Step::Read { offset, length } = self.step {
            self.source.insert(Range { offset, length: length.as_u64() }, bytes);
            self.step = attempt(&self.source);
        }
        self.step
    }
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probe").field("step", &self.step).finish_non_exhaustive()
    }
}

/// A probe may be handed to another thread.
const _: fn(Probe) -> Box<dyn Send> = |probe| Box::new(probe);

fn attempt(source: &Source) -> Step {
    match find(source) {
        Ok(finding) => Step::Done(Ok(finding)),
        Err(Stop::Refused(refusal)) => Step::Done(Err(refusal)),
        Err(Stop::Read(Range { offset, length })) => Step::Read { offset, length: Bytes(length) },
    }
}

/// Hands the file to the parser of its container. Those with an unmistakable beginning come first.
fn find(source: &Source) -> Parsed<Finding> {
    let head = source.up_to(0, 32)?;
    match head {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'A', b'V', b'I', b' ', ..] => avi::find(source),
        [b'R', b'I' | b'F', b'F' | b'6', b'F' | b'4', _, _, _, _, b'W', b'A', b'V', b'E', ..]
        | [b'B', b'W', b'6', b'4', _, _, _, _, b'W', b'A', b'V', b'E', ..] => wave::find(source),
        [b'S', b'D', b'P', b'X', ..] | [b'X', b'P', b'D', b'S', ..] => dpx::find(source),
        [0x76, 0x2f, 0x31, 0x01, ..] => exr::find(source),
        _ if iso::begins(head) => iso::find(source),
        _ => find_in_disguise(source),
    }
}

/// What may have something else before its beginning: a transport stream, and MXF after a run-in.
fn find_in_disguise(source: &Source) -> Parsed<Finding> {
    if let Some(start) = mxf::begin(source)? {
        return mxf::find(source, start);
    }
    match mpegts::framing(source)? {
        Some(framing) => mpegts::find(source, framing),
        None => Err(Refusal::NotMedia.into()),
    }
}
