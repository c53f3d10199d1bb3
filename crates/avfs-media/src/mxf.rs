//! MXF (SMPTE ST 377-1, OP1a ST 378, OPAtom ST 390): bytes of essence over the duration of the file package, or bytes
//! of an edit unit times the edit rate.
//!
//! Offsets are counted from the header partition, before which a run-in may lie. A file that is still written has an
//! open header without a duration, and no footer: then the index table says the bytes of an edit unit if these are
//! constant, and else the first content packages are measured.

mod index;
mod klv;
mod metadata;
mod partition;

use crate::finding::{Basis, Container, Finding, Refusal, Span};
use crate::source::{Parsed, Source, Stop, optional};
use index::Index;
use klv::{EditRate, Key, Klv};
pub(crate) use partition::begin;
use partition::{Contents, Partition};
use units::Bitrate;

/// Bytes of an edit unit and bytes over duration say the same, or the index is of one of several parts.
const AGREEMENT: u64 = 2;

/// The rate of a file whose header partition begins at `start`.
pub(crate) fn find(source: &Source, start: u64) -> Parsed<Finding> {
    let header = Partition::at(source, start)?;
    let mut contents = Contents::default();
    contents.read(source, &header)?;
    let Contents { metadata, mut index, end: essence } = contents;
    let mut media = metadata.media();
    let footer = partition::footer(source, start, &header)?;
    if let Some(footer) = footer
        && (index.is_empty() || media.as_ref().is_none_or(|media| media.duration.is_none()))
        && let Some(partition) = optional(Partition::at(source, footer))?
    {
        // A header that was written before the essence has no duration; the footer repeats it with one.
        let mut contents = Contents::default();
        optional(contents.read(source, &partition))?;
        media = contents.metadata.media().or(media);
        index = index.or(contents.index);
    }
    let media = media.ok_or(Refusal::NoRate("edit rate"))?;
    let finding = match media.duration {
        Some(duration) => whole(duration, &index, footer.unwrap_or(source.length()).saturating_sub(essence))?,
        None => growing(source, essence, media.edit_rate, index)?,
    };
    Ok(finding.with_frames(media.frame()))
}

/// Of a file with a duration, and `bytes` of essence.
fn whole(duration: Span, index: &Index, bytes: u64) -> Parsed<Finding> {
    let mean = duration.rate_of(bytes)?;
    let agrees =
        |stated: &Bitrate| stated.0 / AGREEMENT <= mean.0 && mean.0 <= stated.0.saturating_mul(AGREEMENT);
    Ok(match index.constant_rate().filter(agrees) {
        Some(stated) => Finding::new(Container::Mxf, stated, Basis::Stated),
        None => Finding::new(Container::Mxf, mean, Basis::Whole).with_peak(index.peak()),
    })
}

/// Of a file without a duration, whose essence begins at `essence`.
fn growing(source: &Source, essence: u64, edit_rate: EditRate, mut index: Index) -> Parsed<Finding> {
    let mut packages = Packages::default();
    let measured = packages.measure(source, essence, &mut index);
    if let Some(stated) = index.constant_rate() {
        return Ok(Finding::new(Container::Mxf, stated, Basis::Stated));
    }
    match measured {
        // What was seen until it became too much, or unreadable, is what there is.
        Err(Stop::Refused(_)) if packages.complete > 0 => {}
        measured => measured?,
    }
    let mean = packages.rate(edit_rate)?;
    Ok(Finding::new(Container::Mxf, mean, Basis::Part))
}

/// Content packages in turn, one for each edit unit.
#[derive(Default)]
struct Packages {
    /// What every package has once: whatever comes first, and where it came first.
    first: Option<([u8; 8], u64)>,
    /// Packages that are complete.
    complete: u64,
    /// Bytes of these.
    bytes: u64,
}

impl Packages {
    /// Looks at packages from `at` on, until the bytes of an edit unit are found in an index or the file ends.
    fn measure(&mut self, source: &Source, mut at: u64, index: &mut Index) -> Parsed<()> {
        while index.constant_rate().is_none()
            && let Some(klv) = Klv::at(source, at)?
        {
            match klv.key {
                Key::Essence(item) => self.add(item, at),
                Key::Index => index.add(klv.bytes(source, "index")?),
                Key::RandomIndex => break,
                _ => {}
            }
            at = klv.end;
        }
        Ok(())
    }

    fn add(&mut self, item: [u8; 8], at: u64) {
        let (first, begin) = *self.first.get_or_insert((item, at));
        if item == first && at > begin {
            self.complete += 1;
            self.bytes = at - begin;
        }
    }

    /// # Errors
    /// [`Refusal::NoRate`] if no package was complete.
    fn rate(&self, (numerator, denominator): EditRate) -> Result<Bitrate, Refusal> {
        match self.complete {
            0 => Err(Refusal::NoRate("duration")),
            complete => Span::new(complete, numerator, denominator)?.rate_of(self.bytes),
        }
    }
}
