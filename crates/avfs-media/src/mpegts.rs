//! MPEG-2 transport streams (ISO/IEC 13818-1): the distance between program clock references (PCR), in bytes and in time.
//!
//! A stream has no header and no duration, so it is looked at in several places. What the clock says between two of
//! them is believed if most of the others say something similar: where streams were joined, it jumps.

use crate::finding::{Basis, Container, Finding, Refusal, Span};
use crate::source::{Parsed, Source, optional};

const SYNC: u8 = 0x47;
/// Plain; with the time of arrival before each packet (M2TS, as on Blu-ray and AVCHD); with Reed-Solomon bytes behind.
const STRIDES: [usize; 3] = [188, 192, 204];
/// So many packets in turn begin with the sync byte, or it is no transport stream.
const SYNCS: usize = 8;
/// Bytes looked at in each place, as long as that suffices.
const PLACE: u64 = 64 << 10;
/// A clock reference comes every 100 ms: at 40 Mbit/s and more, that is further than [`PLACE`].
const LONG_PLACE: u64 = 240 << 10;
/// Places between the first and the last clock reference.
const PLACES_BETWEEN: u64 = 3;
const CLOCK_HERTZ: u32 = 27_000_000;
/// The clock counts to 2^33 at 90 kHz, and begins again: every 26.5 hours.
const CLOCK_PERIOD: u64 = (1 << 33) * 300;
/// Parts whose rates differ by more than this factor from the middle one lie across a jump of the clock.
const LIKELY_FACTOR: u64 = 4;

/// How packets lie in the file.
#[derive(Clone, Copy)]
pub(crate) struct Framing {
    stride: usize,
}

/// A clock reference.
#[derive(Clone, Copy)]
struct Clock {
    /// Of its packet in the file.
    offset: u64,
    /// Of its program.
    pid: u16,
    /// In units of 1/27 MHz, less than [`CLOCK_PERIOD`].
    ticks: u64,
}

/// How packets lie at the beginning of the file; `None`: it is no transport stream.
pub(crate) fn framing(source: &Source) -> Parsed<Option<Framing>> {
    let head = source.up_to(0, PLACE)?;
    Ok(STRIDES.into_iter().find(|stride| phase(head, *stride).is_some()).map(|stride| Framing { stride }))
}

pub(crate) fn find(source: &Source, framing: Framing) -> Parsed<Finding> {
    let first = first_clock(source, framing)?;
    let last = last_clock(source, framing, first.pid)?;
    let mut clocks = vec![first];
    let distance = (last.offset - first.offset) / (PLACES_BETWEEN + 1);
    for number in 1..=PLACES_BETWEEN {
        let offset = first.offset + number * distance;
        // To do without a place between is better than to do without a rate.
        let Some(place) = optional(source.up_to(offset, PLACE))? else { break };
        let (clock, _) = clocks_in(source, place, offset, framing, Some(first.pid))?;
        let previous = clocks.last().map_or(0, |clock| clock.offset);
        clocks.extend(clock.filter(|clock| (previous + 1..last.offset).contains(&clock.offset)));
    }
    clocks.push(last);
    let mean = mean(&clocks)?;
    Ok(Finding::new(Container::TransportStream, mean, Basis::Whole))
}

/// The first clock reference of the file.
fn first_clock(source: &Source, framing: Framing) -> Parsed<Clock> {
    for (offset, length) in [(0, PLACE), (PLACE, LONG_PLACE), (PLACE + LONG_PLACE, LONG_PLACE)] {
        let place = source.up_to(offset, length)?;
        if let (Some(clock), _) = clocks_in(source, place, offset, framing, None)? {
            return Ok(clock);
        }
    }
    Err(Refusal::NoRate("clock references").into())
}

/// The last clock reference of the program with the clock `pid`.
fn last_clock(source: &Source, framing: Framing, pid: u16) -> Parsed<Clock> {
    let mut end = source.length();
    for length in [PLACE, LONG_PLACE, LONG_PLACE] {
        let offset = end.saturating_sub(length);
        let place = source.up_to(offset, end - offset)?;
        if let (_, Some(clock)) = clocks_in(source, place, offset, framing, Some(pid))? {
            return Ok(clock);
        }
        end = offset;
    }
    Err(Refusal::NoRate("clock references at its end").into())
}

/// The first and the last clock reference in `bytes`, which lie at `offset` in the file; of `pid` if given.
fn clocks_in(
    source: &Source,
    bytes: &[u8],
    offset: u64,
    framing: Framing,
    pid: Option<u16>,
) -> Parsed<(Option<Clock>, Option<Clock>)> {
    let Some(phase) = phase(bytes, framing.stride) else { return Ok((None, None)) };
    let (mut first, mut last) = (None, None);
    for (number, packet) in bytes[phase..].chunks(framing.stride).enumerate() {
        source.step()?;
        let Some((found, ticks)) = clock(packet).filter(|(found, _)| pid.is_none_or(|pid| *found == pid))
        else {
            continue;
        };
        let clock = Clock { offset: offset + (phase + number * framing.stride) as u64, pid: found, ticks };
        first.get_or_insert(clock);
        last = Some(clock);
    }
    Ok((first, last))
}

/// Where the first packet of `bytes` begins, if packets of `stride` bytes follow one another.
fn phase(bytes: &[u8], stride: usize) -> Option<usize> {
    (0..stride).find(|phase| {
        let syncs = (0..SYNCS).map(|number| bytes.get(phase + number * stride));
        syncs.into_iter().all(|byte| byte == Some(&SYNC))
    })
}

/// The PID and the clock reference of a packet that carries one.
fn clock(packet: &[u8]) -> Option<(u16, u64)> {
    let [SYNC, high, low, control, length, flags, clock @ ..] = packet else { return None };
    let has_adaptation_field = control & 0x20 != 0;
    let is_damaged = high & 0x80 != 0;
    if is_damaged || !has_adaptation_field || *length < 7 || flags & 0x10 == 0 {
        return None;
    }
    let clock: &[u8; 6] = clock.first_chunk()?;
    let [a, b, c, d, e, f] = clock.map(u64::from);
    let base = a << 25 | b << 17 | c << 9 | d << 1 | e >> 7;
    let ticks = base * 300 + ((e & 1) << 8 | f);
    let pid = u16::from(high & 0x1f) << 8 | u16::from(*low);
    Some((pid, ticks % CLOCK_PERIOD))
}

/// Bytes and time of the parts between the clocks that agree with one another.
fn mean(clocks: &[Clock]) -> Result<units::Bitrate, Refusal> {
    let mut parts = Vec::new();
    for pair in clocks.windows(2) {
        let bytes = pair[1].offset.saturating_sub(pair[0].offset);
        let ticks = (pair[1].ticks + CLOCK_PERIOD - pair[0].ticks) % CLOCK_PERIOD;
        if bytes > 0 && ticks > 0 {
            parts.push((bytes, ticks));
        }
    }
    let rate = |(bytes, ticks): (u64, u64)| (u128::from(bytes) << 64) / u128::from(ticks);
    parts.sort_by_key(|part| rate(*part));
    let middle = *parts.get(parts.len() / 2).ok_or(Refusal::NoRate("rate: its clock stands still"))?;
    let factor = u128::from(LIKELY_FACTOR);
    let likely = rate(middle) / factor..=rate(middle).saturating_mul(factor);
    let (mut bytes, mut ticks) = (0, 0);
    for part in parts.into_iter().filter(|part| likely.contains(&rate(*part))) {
        bytes += part.0;
        ticks += part.1;
    }
    Span::new(ticks, CLOCK_HERTZ, 1)?.rate_of(bytes)
}
