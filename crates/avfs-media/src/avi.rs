//! AVI (Microsoft RIFF, with OpenDML 1.02): the bytes of all `movi` lists over the duration of the video stream.
//!
//! Not used: `dwMaxBytesPerSec` of the main header, which most writers leave at 0 or at a guess.

use crate::finding::{Basis, Container, Finding, Refusal, Span};
use crate::riff::{self, Chunk, chunks};
use crate::source::{Parsed, Source, Stop};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// A stream's header (`strh`), as far as it is needed.
#[derive(FromBytes)]
#[repr(C)]
struct StreamHeader {
    kind: [u8; 4],
    _handler: [u8; 4],
    _flags: U32,
    _priority_and_language: U32,
    _initial_frames: U32,
    scale: U32,
    rate: U32,
    _start: U32,
    length: U32,
}

/// What the list `hdrl` says.
#[derive(Default)]
struct Headers {
    /// Of the video stream if there is one, else of the first one.
    duration: Option<Span>,
    /// Of video.
    frame: Option<Span>,
    /// Frames in all segments of a long file.
    all_frames: u64,
}

pub(crate) fn find(source: &Source) -> Parsed<Finding> {
    let mut headers = None;
    let mut media = Media { bytes: 0, start: None };
    let mut basis = Basis::Whole;
    let mut at = 0;
    loop {
        match part(source, at, &mut headers, &mut media) {
            Ok(Some(next)) => at = next,
            Ok(None) => break,
            // So many segments that each cannot be looked at: what is between the first and the end is media.
            Err(Stop::Refused(Refusal::TooCostly)) if media.start.is_some() => {
                media.bytes = source.length() - media.start.unwrap_or(0);
                basis = Basis::Part;
                break;
            }
            Err(stop) => return Err(stop),
        }
    }
    let headers = headers.ok_or(Refusal::Truncated("headers"))?;
    let duration = headers.duration.ok_or(Refusal::NoRate("duration"))?;
    media.start.ok_or(Refusal::Truncated("media"))?;
    let mean = duration.rate_of(media.bytes)?;
    Ok(Finding::new(Container::Avi, mean, basis).with_frames(headers.frame))
}

/// The `movi` lists seen so far.
struct Media {
    bytes: u64,
    /// Where the first begins.
    start: Option<u64>,
}

/// Looks at the list or chunk at `at`, and returns where the next one is; `None` at the end of the file.
fn part(source: &Source, at: u64, headers: &mut Option<Headers>, media: &mut Media) -> Parsed<Option<u64>> {
    let Some(chunk) = Chunk::at(source, at)? else { return Ok(None) };
    match &chunk.id {
        // A segment is entered.
        b"RIFF" => return Ok(Some(at + riff::FORM)),
        b"LIST" => {}
        _ => return Ok(Some(chunk.end())),
    }
    match source.bytes(chunk.data, 4, "next list")? {
        b"hdrl" if headers.is_none() => {
            let list = source.up_to(chunk.data + 4, chunk.length.saturating_sub(4))?;
            *headers = Some(read_headers(source, list)?);
        }
        b"movi" => {
            if chunk.data.saturating_add(chunk.length) > source.length() {
                return Err(Refusal::Truncated("media").into());
            }
            // While it is written, its length is 0.
            let unfinished = chunk.length == 0;
            let end = if unfinished { source.length() } else { chunk.end() };
            media.start.get_or_insert(chunk.data);
            media.bytes += end - chunk.data;
            return Ok((!unfinished).then_some(end));
        }
        _ => {}
    }
    Ok(Some(chunk.end()))
}

fn read_headers(source: &Source, list: &[u8]) -> Parsed<Headers> {
    let mut headers = Headers::default();
    // `dmlh` comes behind the streams, whose durations depend on it.
    for (id, data) in chunks(list) {
        source.step()?;
        if id == *b"LIST"
            && let Some(list) = data.strip_prefix(b"odml")
        {
            headers.all_frames = total_frames(list);
        }
    }
    for (id, data) in chunks(list) {
        source.step()?;
        if id == *b"LIST"
            && let Some(list) = data.strip_prefix(b"strl")
        {
            read_stream(list, &mut headers)?;
        }
    }
    Ok(headers)
}

/// `dmlh`: the frames of all segments; the streams of some writers know only those of the first.
fn total_frames(list: &[u8]) -> u64 {
    let total =
        chunks(list).find(|(id, _)| id == b"dmlh").and_then(|(_, data)| U32::read_from_prefix(data).ok());
    total.map_or(0, |(frames, _)| u64::from(frames.get()))
}

fn read_stream(list: &[u8], headers: &mut Headers) -> Parsed<()> {
    let header =
        chunks(list).find(|(id, _)| id == b"strh").map(|(_, data)| StreamHeader::read_from_prefix(data));
    let Some(Ok((header, _))) = header else { return Ok(()) };
    let is_video = matches!(&header.kind, b"vids" | b"iavs");
    let length = u64::from(header.length.get());
    if headers.frame.is_some() || (!is_video && headers.duration.is_some()) {
        return Ok(());
    }
    let span = |ticks| Span::new(ticks, header.rate.get(), header.scale.get());
    if is_video {
        headers.frame = Some(span(1)?);
        headers.duration = Some(span(length.max(headers.all_frames))?);
    } else {
        headers.duration = span(length).ok();
    }
    Ok(())
}
