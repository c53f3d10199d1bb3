//! Fragmented files: the time from the first to the last fragment, and the bytes between.
//!
//! Where the last fragment is, `sidx` or `mfra` say; without these, the fragments that the limits of reading reach are
//! looked at.

use super::boxes::{FileBox, boxes, descend, take, take_u32, versioned};
use super::movie::{Movie, Track};
use crate::finding::{Basis, Container, Finding, Refusal, Span};
use crate::source::{Parsed, Source, Stop, optional};
use zerocopy::FromBytes;
use zerocopy::big_endian::U32;

/// `mfro`, the last box of a file with `mfra`: head, version and flags, length of `mfra`.
const LAST_BOX: u64 = 16;

/// What was seen: `bytes` of the file that play `ticks` of the track that is the clock.
#[derive(Clone, Copy, Default)]
struct Seen {
    bytes: u64,
    ticks: u64,
}

/// When a fragment begins and ends, in units of its track.
#[derive(Clone, Copy)]
struct Played {
    begin: Option<u64>,
    ticks: u64,
    samples: u64,
}

impl Played {
    /// The time of one sample, if that is a whole number of ticks as it is where all take the same.
    fn frame(self, timescale: u32) -> Option<Span> {
        let ticks = self.ticks.checked_div(self.samples).filter(|ticks| ticks * self.samples == self.ticks);
        ticks.and_then(|ticks| Span::new(ticks, timescale, 1).ok())
    }
}

/// The rate of a file whose movie header ends at `start`.
pub(super) fn find(source: &Source, movie: &Movie, start: u64) -> Parsed<Finding> {
    let clock = movie.video().or(movie.tracks.first()).ok_or(Refusal::NoRate("tracks"))?;
    let mut walk = Walk::new(source, clock, start);
    optional(walk.first())?;
    let mut basis = Basis::Whole;
    let (span, bytes) = match optional(segment_index(source, start))?.flatten() {
        Some(listed) => listed,
        None => {
            let last = optional(last_fragment(source, clock, start))?.flatten();
            match walk.rest(last) {
                Err(Stop::Refused(_)) if walk.seen.bytes > 0 && walk.seen.ticks > 0 => basis = Basis::Part,
                walked => walked?,
            }
            (Span::new(walk.seen.ticks, clock.times.timescale, 1)?, walk.seen.bytes)
        }
    };
    let finding = Finding::new(Container::IsoBaseMedia, span.rate_of(bytes)?, basis);
    Ok(movie.describe(finding, walk.frame.filter(|_| clock.is_video)))
}

/// A walk over fragments.
struct Walk<'a> {
    source: &'a Source,
    clock: &'a Track,
    /// Where the media begin in the file.
    start: u64,
    /// When the clock's track begins, in its units.
    begin: Option<u64>,
    /// When what was seen of it ends; `None`: the next fragment does not follow what was seen.
    end: Option<u64>,
    seen: Seen,
    /// The time of one sample, if all of the first fragment take the same.
    frame: Option<Span>,
}

impl<'a> Walk<'a> {
    fn new(source: &'a Source, clock: &'a Track, start: u64) -> Self {
        // Samples that are in the movie itself come before those of the fragments.
        let in_movie = clock.times.duration;
        let begin = (in_movie > 0).then_some(0);
        Self { source, clock, start, begin, end: Some(in_movie), seen: Seen::default(), frame: None }
    }

    /// Looks at the first fragment of the clock's track.
    fn first(&mut self) -> Parsed<()> {
        let mut at = self.start;
        while let Some(found) = FileBox::at(self.source, at)? {
            if found.kind == *b"moof" && self.fragment(&found)? {
                break;
            }
            at = found.end;
        }
        Ok(())
    }

    /// Looks at all boxes from the fragment at `last` to the end of the media; from the beginning if it is not known.
    fn rest(&mut self, last: Option<u64>) -> Parsed<()> {
        let mut at = last.unwrap_or(self.start);
        self.end = if last.is_some() { None } else { Some(self.clock.times.duration) };
        let mut complete = Seen { bytes: 0, ticks: self.ticks() };
        while let Some(found) = FileBox::at(self.source, at)? {
            match &found.kind {
                b"moof" => {
                    self.seen = complete;
                    self.fragment(&found)?;
                    complete.ticks = self.ticks();
                }
                b"mdat" => {
                    found.lies_within(self.source, "media")?;
                    complete.bytes = found.end - self.start;
                }
                b"mfra" => break,
                _ => {}
            }
            at = found.end;
        }
        self.seen = complete;
        Ok(())
    }

    /// How long what was seen plays.
    fn ticks(&self) -> u64 {
        self.end.unwrap_or(0).saturating_sub(self.begin.unwrap_or(0))
    }

    /// Takes a fragment over, and says whether it is of the clock's track, among others.
    fn fragment(&mut self, found: &FileBox) -> Parsed<bool> {
        let mut has_clock = false;
        found.lies_within(self.source, "fragments")?;
        let payload = self.source.bytes(found.payload, found.length(), "fragments")?;
        for (_, payload) in boxes(payload).filter(|(kind, _)| kind == b"traf") {
            self.source.step()?;
            if let Some(played) = played(payload, self.clock) {
                let begin = played.begin.or(self.end).ok_or(Refusal::NoRate("times of fragments"))?;
                self.begin.get_or_insert(begin);
                self.end = self.end.max(Some(begin.saturating_add(played.ticks)));
                self.frame = self.frame.or(played.frame(self.clock.times.timescale));
                has_clock = true;
            }
        }
        Ok(has_clock)
    }
}

/// What a `traf` says about the clock's track; `None`: it is of another one, or not in order.
fn played(payload: &[u8], clock: &Track) -> Option<Played> {
    let (_, flags, mut header) = versioned(descend(payload, &[b"tfhd"])?)?;
    if take_u32(&mut header)? != clock.id {
        return None;
    }
    if flags & 0x1 != 0 {
        take(&mut header, true)?; // offset of the data
    }
    if flags & 0x2 != 0 {
        take_u32(&mut header)?; // description
    }
    let default_duration = if flags & 0x8 != 0 { take_u32(&mut header)? } else { clock.default_duration };
    let begin = descend(payload, &[b"tfdt"]).and_then(|payload| {
        let (version, _, mut rest) = versioned(payload)?;
        take(&mut rest, version == 1)
    });
    let mut played = Played { begin, ticks: 0, samples: 0 };
    for (_, payload) in boxes(payload).filter(|(kind, _)| kind == b"trun") {
        let (samples, ticks) = run(payload, default_duration)?;
        played.samples += samples;
        played.ticks = played.ticks.saturating_add(ticks);
    }
    Some(played)
}

/// `trun`: its samples, and their duration together.
fn run(payload: &[u8], default_duration: u32) -> Option<(u64, u64)> {
    let (_, flags, mut rest) = versioned(payload)?;
    let samples = take_u32(&mut rest)?;
    if flags & 0x100 == 0 {
        let samples = u64::from(samples);
        return Some((samples, samples * u64::from(default_duration)));
    }
    // Offset of the data, flags of the first sample.
    for _ in 0..(flags & 0x5).count_ones() {
        take_u32(&mut rest)?;
    }
    // Duration, size, flags, time of composition: each sample has those that are named.
    let entry = (flags & 0xf00).count_ones() as usize * size_of::<U32>();
    let entries = rest.chunks_exact(entry).take(samples as usize);
    let durations = entries.filter_map(|entry| U32::read_from_prefix(entry).ok());
    Some(
        durations
            .fold((0, 0), |(samples, ticks), (duration, _)| (samples + 1, ticks + u64::from(duration.get()))),
    )
}

/// `sidx` behind the movie header: duration and bytes of what it lists, if that is most of the file.
fn segment_index(source: &Source, start: u64) -> Parsed<Option<(Span, u64)>> {
    let mut at = start;
    loop {
        let Some(found) = FileBox::at(source, at)? else { return Ok(None) };
        match &found.kind {
            b"moof" | b"mdat" => return Ok(None),
            b"sidx" => {
                let payload = source.bytes(found.payload, found.length(), "index")?;
                let listed = listed(payload);
                return Ok(listed.filter(|(_, bytes)| {
                    (source.length() - start) / 2 <= *bytes && *bytes <= source.length()
                }));
            }
            _ => at = found.end,
        }
    }
}

fn listed(payload: &[u8]) -> Option<(Span, u64)> {
    let (version, _, mut rest) = versioned(payload)?;
    take_u32(&mut rest)?; // track
    let timescale = take_u32(&mut rest)?;
    take(&mut rest, version == 1)?; // first time
    take(&mut rest, version == 1)?; // first offset
    take(&mut rest, false)?; // reserved, and the number of entries
    let (mut bytes, mut ticks) = (0, 0);
    while let Some((size, duration)) = take_u32(&mut rest).zip(take_u32(&mut rest)) {
        take_u32(&mut rest)?; // access points
        bytes += u64::from(size & 0x7fff_ffff);
        ticks += u64::from(duration);
    }
    Some((Span::new(ticks, timescale, 1).ok()?, bytes))
}

/// `mfra` at the end of the file: where the last fragment of the clock's track that it lists begins.
fn last_fragment(source: &Source, clock: &Track, start: u64) -> Parsed<Option<u64>> {
    let Some(at) = source.length().checked_sub(LAST_BOX) else { return Ok(None) };
    let last_box = source.bytes(at, LAST_BOX, "index")?;
    let Some(length) = descend(last_box, &[b"mfro"]).and_then(|payload| {
        let (_, _, mut rest) = versioned(payload)?;
        take(&mut rest, false)
    }) else {
        return Ok(None);
    };
    let Some(at) = source.length().checked_sub(length) else { return Ok(None) };
    let Some(index) = FileBox::at(source, at)?.filter(|found| found.kind == *b"mfra") else {
        return Ok(None);
    };
    let payload = source.up_to(index.payload, index.length())?;
    let mut entries = boxes(payload).filter(|(kind, _)| kind == b"tfra");
    let last = entries.find_map(|(_, payload)| last_entry(payload, clock)).filter(|last| *last >= start);
    let Some(last) = last else { return Ok(None) };
    Ok(FileBox::at(source, last)?.filter(|found| found.kind == *b"moof").map(|_| last))
}

/// `tfra`: where the fragment of its last entry begins; `None`: it is of another track, or not in order.
fn last_entry(payload: &[u8], clock: &Track) -> Option<u64> {
    let (version, _, mut rest) = versioned(payload)?;
    let wide = version == 1;
    if take_u32(&mut rest)? != clock.id {
        return None;
    }
    let lengths = take_u32(&mut rest)?;
    let entries = take_u32(&mut rest)?;
    // Three numbers of 1 to 4 bytes each say which sample of the fragment is meant.
    let sample = [4, 2, 0].map(|shift| (lengths >> shift & 3) + 1).into_iter().sum::<u32>();
    let entry = if wide { 16 } else { 8 } + sample as usize;
    let mut last = rest.chunks_exact(entry).take(entries as usize).next_back()?;
    take(&mut last, wide)?; // time
    take(&mut last, wide)
}
