//! The movie header `moov`: how long everything lasts, and what its tracks are.

use super::boxes::{boxes, descend, take, take_u32, versioned};
use crate::finding::{Finding, Span};
use crate::source::{Parsed, Source};
use units::Bitrate;

/// Bytes of a sample entry before its own boxes, for pictures and for sound.
const VISUAL_ENTRY: usize = 78;
const SOUND_ENTRY: usize = 28;

/// A duration in units of a part of a second.
#[derive(Clone, Copy)]
pub(super) struct Times {
    /// Units in a second.
    pub(super) timescale: u32,
    /// In these units; 0: in fragments, or not said.
    pub(super) duration: u64,
}

/// What a track's header says.
pub(super) struct Track {
    pub(super) id: u32,
    pub(super) is_video: bool,
    pub(super) times: Times,
    /// Duration of a sample of a fragment that does not say its own, in units of [`Times::timescale`].
    pub(super) default_duration: u32,
    /// The time of one sample, if all take the same.
    frame: Option<Span>,
    /// By how much its heaviest second is above its average, bits a second; 0 if it does not say.
    excess: u64,
}

/// What the movie header says, as far as it lies in memory.
pub(super) struct Movie {
    /// Of what is shown: edits taken into account.
    pub(super) times: Option<Times>,
    pub(super) tracks: Vec<Track>,
    is_fragmented: bool,
}

impl Movie {
    /// Reads the payload of `moov`, which may be cut off.
    pub(super) fn read(source: &Source, payload: &[u8]) -> Parsed<Self> {
        let mut movie = Self { times: None, tracks: Vec::new(), is_fragmented: false };
        for (kind, payload) in boxes(payload) {
            source.step()?;
            match &kind {
                b"mvhd" => movie.times = times(payload),
                b"trak" => movie.tracks.extend(track(payload)),
                b"mvex" => movie.read_defaults(source, payload)?,
                _ => {}
            }
        }
        Ok(movie)
    }

    /// `mvex` follows the tracks.
    fn read_defaults(&mut self, source: &Source, payload: &[u8]) -> Parsed<()> {
        self.is_fragmented = true;
        for (_, payload) in boxes(payload).filter(|(kind, _)| kind == b"trex") {
            source.step()?;
            let Some((id, default_duration)) = defaults(payload) else { continue };
            for track in self.tracks.iter_mut().filter(|track| track.id == id) {
                source.step()?;
                track.default_duration = default_duration;
            }
        }
        Ok(())
    }

    /// There are, or may be, fragments.
    pub(super) fn is_fragmented(&self) -> bool {
        self.is_fragmented
    }

    /// How long the media play.
    ///
    /// An edit may show only a part of the media, so the longer one of movie and pictures counts.
    pub(super) fn duration(&self) -> Option<Span> {
        let all = [self.times, self.video().map(|track| track.times)];
        let spans = all.into_iter().flatten().filter_map(Times::span);
        spans.reduce(|a, b| if b.is_longer_than(a) { b } else { a })
    }

    /// The first track of pictures.
    pub(super) fn video(&self) -> Option<&Track> {
        self.tracks.iter().find(|track| track.is_video)
    }

    /// Adds the peak, and the time of a frame: that of the samples in the movie itself if there are such, else `frame`.
    pub(super) fn describe(&self, finding: Finding, frame: Option<Span>) -> Finding {
        let excess = self.tracks.iter().fold(0_u64, |sum, track| sum.saturating_add(track.excess));
        let peak = Bitrate(finding.mean.0.saturating_add(excess));
        finding.with_frames(self.video().and_then(|track| track.frame).or(frame)).with_peak(Some(peak))
    }
}

impl Times {
    fn span(self) -> Option<Span> {
        Span::new(self.duration, self.timescale, 1).ok()
    }
}

/// `mvhd` and `mdhd` begin alike.
fn times(payload: &[u8]) -> Option<Times> {
    let (version, _, mut rest) = versioned(payload)?;
    let wide = version == 1;
    take(&mut rest, wide)?; // created
    take(&mut rest, wide)?; // changed
    let timescale = take_u32(&mut rest)?;
    let duration = take(&mut rest, wide)?;
    let unknown = if wide { u64::MAX } else { u64::from(u32::MAX) };
    Some(Times { timescale, duration: if duration == unknown { 0 } else { duration } })
}

fn track(payload: &[u8]) -> Option<Track> {
    let (version, _, mut header) = versioned(descend(payload, &[b"tkhd"])?)?;
    take(&mut header, version == 1)?; // created
    take(&mut header, version == 1)?; // changed
    let id = take_u32(&mut header)?;
    let media = descend(payload, &[b"mdia"])?;
    let times = times(descend(media, &[b"mdhd"])?)?;
    let is_video = descend(media, &[b"hdlr"]).and_then(|handler| handler.get(8..12)) == Some(b"vide");
    let table = descend(media, &[b"minf", b"stbl"]).unwrap_or_default();
    let frame = descend(table, &[b"stts"]).and_then(constant_duration);
    let entry_length = if is_video { VISUAL_ENTRY } else { SOUND_ENTRY };
    Some(Track {
        id,
        is_video,
        times,
        default_duration: 0,
        frame: frame.and_then(|ticks| Span::new(u64::from(ticks), times.timescale, 1).ok()),
        excess: descend(table, &[b"stsd"]).and_then(|entries| excess(entries, entry_length)).unwrap_or(0),
    })
}

/// `stts`: the duration that all samples have, except perhaps the last.
fn constant_duration(payload: &[u8]) -> Option<u32> {
    let (_, _, mut rest) = versioned(payload)?;
    let entries = take_u32(&mut rest)?;
    let _samples = take_u32(&mut rest)?;
    let duration = take_u32(&mut rest)?;
    let is_constant = entries == 1 || entries == 2 && take_u32(&mut rest) == Some(1);
    is_constant.then_some(duration)
}

/// `btrt` in the sample description: maximum and average rate, in bits a second.
fn excess(descriptions: &[u8], entry_length: usize) -> Option<u64> {
    let (_, _, mut rest) = versioned(descriptions)?;
    take_u32(&mut rest)?; // their number
    let (_, entry) = boxes(rest).next()?;
    let mut rates = descend(entry.get(entry_length..)?, &[b"btrt"])?;
    take_u32(&mut rates)?; // buffer
    let (maximum, average) = (take_u32(&mut rates)?, take_u32(&mut rates)?);
    (average > 0).then(|| u64::from(maximum.saturating_sub(average)))
}

/// `trex`: the track, and the duration of a sample that does not say its own.
fn defaults(payload: &[u8]) -> Option<(u32, u32)> {
    let (_, _, mut rest) = versioned(payload)?;
    let id = take_u32(&mut rest)?;
    take_u32(&mut rest)?; // description
    Some((id, take_u32(&mut rest)?))
}
