//! QuickTime and the ISO base media file format (ISO/IEC 14496-12): the bytes of `mdat` over the duration in `moov`.
//!
//! The movie header may come before or behind the media. Of the tables of samples nothing is needed, so a film of
//! hours costs no more than a clip; what lies in memory of `moov` is what one read brings.

mod boxes;
mod fragments;
mod movie;

use crate::finding::{Basis, Container, Finding, Refusal};
use crate::source::{Parsed, Source};
use boxes::FileBox;
use movie::Movie;

/// What the first box of a file can be; older files of QuickTime have no `ftyp`.
const FIRST_BOXES: [&[u8; 4]; 10] =
    [b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot", b"styp", b"sidx", b"moof"];

/// Whether a file with this `head` is of this family.
pub(crate) fn begins(head: &[u8]) -> bool {
    head.get(4..8).is_some_and(|kind| FIRST_BOXES.iter().any(|first| kind == *first))
}

pub(crate) fn find(source: &Source) -> Parsed<Finding> {
    let mut movie: Option<Movie> = None;
    let mut media = 0_u64;
    let mut at = 0;
    while let Some(found) = FileBox::at(source, at)? {
        match &found.kind {
            b"moov" if movie.is_none() => {
                let read = Movie::read(source, source.up_to(found.payload, found.length())?)?;
                if read.is_fragmented() && media == 0 {
                    return fragments::find(source, &read, found.end);
                }
                movie = Some(read);
            }
            b"moof" => return Err(Refusal::NoRate("timescale, which is in another file").into()),
            b"mdat" => {
                found.lies_within(source, "media")?;
                media = media.saturating_add(found.length());
            }
            _ => {}
        }
        at = found.end;
    }
    let movie = movie.ok_or(Refusal::Truncated("movie header"))?;
    if media == 0 {
        return Err(Refusal::NoRate("rate: its media are in other files").into());
    }
    let duration = movie.duration().ok_or(Refusal::NoRate("duration"))?;
    let finding = Finding::new(Container::IsoBaseMedia, duration.rate_of(media)?, Basis::Whole);
    Ok(movie.describe(finding, None))
}
