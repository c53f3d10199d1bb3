//! What a probe can say: a rate, or why there is none.

use std::fmt;
use units::{Bitrate, Duration};

/// Rates outside of this range are no rates of media: what a policy may declare, too (1 kbit/s to 1 Tbit/s).
const PLAUSIBLE_RATES: std::ops::RangeInclusive<u128> = 1_000..=1_000_000_000_000;
/// Times of a frame outside of this range are none: what a policy may declare, too (1 to 1,000 frames a second).
const PLAUSIBLE_PERIODS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(1);
/// A peak of more than this many times the mean is a slip of whoever wrote it.
const PLAUSIBLE_PEAK: u64 = 8;

/// The family of a file, told by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Container {
    /// SMPTE ST 377: OP1a, OPAtom and their relatives.
    Mxf,
    /// QuickTime and MP4, plain or fragmented.
    IsoBaseMedia,
    /// AVI, with OpenDML's extensions.
    Avi,
    /// WAV, RF64 and BW64.
    Wave,
    /// MPEG-2 transport stream, in packets of 188, 192 or 204 bytes.
    TransportStream,
    /// One frame of a DPX sequence.
    Dpx,
    /// One frame of an OpenEXR sequence.
    OpenExr,
}

impl Container {
    /// Each file holds one frame of a sequence: every file of it has a length, and so a rate, of its own.
    pub const fn is_one_frame(self) -> bool {
        matches!(self, Self::Dpx | Self::OpenExr)
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mxf => "MXF",
            Self::IsoBaseMedia => "MOV/MP4",
            Self::Avi => "AVI",
            Self::Wave => "WAV",
            Self::TransportStream => "MPEG-TS",
            Self::Dpx => "DPX",
            Self::OpenExr => "OpenEXR",
        })
    }
}

/// Where the mean comes from: how far it can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Basis {
    /// The container states the rate, as bytes per second or bytes per edit unit.
    Stated,
    /// The bytes of the media and how long they play.
    Whole,
    /// The same of a part: of a file that still grows, or whose index would cost too much.
    Part,
    /// The length of the file, which is one frame, and the frame rate in its header.
    Frame,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stated => "as the header states it",
            Self::Whole => "from the bytes of media and how long they play",
            Self::Part => "from a part of the file",
            Self::Frame => "from the length of this frame and the frame rate",
        })
    }
}

/// The rate that a file needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The family of the file.
    pub container: Container,
    /// Bytes of the media, everything that is interleaved with them included, over the time they play: what must be
    /// read for each second, on average. 1 kbit/s to 1 Tbit/s.
    pub mean: Bitrate,
    /// What the heaviest second takes, if the container says it; more than [`Self::mean`], at most eight times.
    pub peak: Option<Bitrate>,
    /// The time of one frame or field pair, 1 ms to 1 s; `None`: sound alone, a varying rate, or not said.
    pub frame_period: Option<Duration>,
    /// Where the mean comes from.
    pub basis: Basis,
}

impl Finding {
    /// The rate at which a stream that plays this file is declared: the peak if it is known, else the mean.
    ///
    /// Why: a player holds about a second; what its heaviest second lacks is a lost frame. What a reservation at the
    /// peak does not use is not lost, it serves best effort.
    pub fn declared(&self) -> Bitrate {
        self.peak.unwrap_or(self.mean)
    }

    pub(crate) fn new(container: Container, mean: Bitrate, basis: Basis) -> Self {
        Self { container, mean, peak: None, frame_period: None, basis }
    }

    /// Of a file of `length` bytes that is one frame of a sequence.
    ///
    /// # Errors
    /// [`Refusal::Absurd`] if `frame` is not the time of a frame, or the rate is none.
    pub(crate) fn of_frame(container: Container, length: u64, frame: Span) -> Result<Self, Refusal> {
        let mean = frame.rate_of(length)?;
        let finding = Self::new(container, mean, Basis::Frame).with_frames(Some(frame));
        match finding.frame_period {
            Some(_) => Ok(finding),
            None => Err(Refusal::Absurd("its frame rate is not between 1 and 1,000 a second")),
        }
    }

    /// Takes a peak over if it can be one.
    pub(crate) fn with_peak(mut self, peak: Option<Bitrate>) -> Self {
        self.peak =
            peak.filter(|peak| *peak > self.mean && peak.0 <= self.mean.0.saturating_mul(PLAUSIBLE_PEAK));
        self
    }

    /// Takes the time of a frame over if it can be one.
    pub(crate) fn with_frames(mut self, frame: Option<Span>) -> Self {
        self.frame_period = frame.and_then(Span::frame_period);
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabits = |rate: Bitrate| rate.0 as f64 / 1e6;
        write!(f, "{}: {:.3} Mbit/s", self.container, megabits(self.mean))?;
        if let Some(peak) = self.peak {
            write!(f, ", at most {:.3} Mbit/s", megabits(peak))?;
        }
        if let Some(period) = self.frame_period {
            write!(f, ", {:.3} frames/s", 1.0 / period.as_secs_f64())?;
        }
        write!(f, ", {}", self.basis)
    }
}

/// Why a file has no rate. Whoever asked falls back to observing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The first bytes are of none of the known containers.
    #[error("not a media file that is known")]
    NotMedia,
    /// It ends before what it announces; perhaps it is still being written.
    #[error("the file ends before its {0}")]
    Truncated(&'static str),
    /// It says what cannot be.
    #[error("the file cannot be right: {0}")]
    Absurd(&'static str),
    /// It is in order and does not say how fast it plays.
    #[error("the file does not say its {0}")]
    NoRate(&'static str),
    /// To find out would take more reading than a probe may cause.
    #[error("the rate could not be found within the limit of reading")]
    TooCostly,
}

/// A time in units of a rational part of a second: `ticks` × `denominator` / `numerator` seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    ticks: u64,
    numerator: u32,
    denominator: u32,
}

/// One second.
pub(crate) const SECOND: Span = Span { ticks: 1, numerator: 1, denominator: 1 };

impl Span {
    /// # Errors
    /// [`Refusal::Absurd`] if there is no tick, or no time, or no end of ticks in a second.
    pub(crate) fn new(ticks: u64, numerator: u32, denominator: u32) -> Result<Self, Refusal> {
        match (ticks, numerator, denominator) {
            (0, ..) => Err(Refusal::Absurd("its duration is 0")),
            (_, 0, _) | (.., 0) => Err(Refusal::Absurd("its unit of time is 0")),
            _ => Ok(Self { ticks, numerator, denominator }),
        }
    }

    /// The rate at which `bytes` play in this time.
    ///
    /// # Errors
    /// [`Refusal::Absurd`] if that is no rate of media.
    pub(crate) fn rate_of(self, bytes: u64) -> Result<Bitrate, Refusal> {
        let time = u128::from(self.ticks) * u128::from(self.denominator);
        let rate = u128::from(bytes) * 8 * u128::from(self.numerator) / time;
        if PLAUSIBLE_RATES.contains(&rate) {
            Ok(Bitrate(rate as u64))
        } else {
            Err(Refusal::Absurd("its rate is not between 1 kbit/s and 1 Tbit/s"))
        }
    }

    /// Whether this is longer than `other`.
    pub(crate) fn is_longer_than(self, other: Self) -> bool {
        // Numbers of 128 bits do not hold the products of both spans exactly; a float does for a comparison.
        self.seconds() > other.seconds()
    }

    fn seconds(self) -> f64 {
        self.ticks as f64 * f64::from(self.denominator) / f64::from(self.numerator)
    }

    /// As the time of one frame, if it can be one.
    pub(crate) fn frame_period(self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.seconds()).ok().filter(|period| PLAUSIBLE_PERIODS.contains(period))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_ticks_and_a_unit() {
        assert_eq!(Span::new(0, 25, 1), Err(Refusal::Absurd("its duration is 0")));
        assert_eq!(Span::new(1, 0, 1), Err(Refusal::Absurd("its unit of time is 0")));
        assert_eq!(Span::new(1, 25, 0), Err(Refusal::Absurd("its unit of time is 0")));
        assert_eq!(Span::new(250, 25, 1).unwrap().rate_of(1_250_000), Ok(Bitrate::from_megabits(1)));
    }

    #[test]
    fn rates_are_between_1_kbit_and_1_tbit() {
        assert_eq!(SECOND.rate_of(125), Ok(Bitrate(1_000)));
        assert!(SECOND.rate_of(124).is_err());
        assert_eq!(SECOND.rate_of(125_000_000_000), Ok(Bitrate(1_000_000_000_000)));
        assert!(SECOND.rate_of(125_000_000_001).is_err());
        assert!(Span::new(u64::MAX, 1, u32::MAX).unwrap().rate_of(u64::MAX).is_err());
        assert!(Span::new(1, u32::MAX, 1).unwrap().rate_of(u64::MAX).is_err());
    }

    #[test]
    fn frames_last_between_a_millisecond_and_a_second() {
        let period = |numerator, denominator| Span::new(1, numerator, denominator).unwrap().frame_period();
        assert_eq!(period(1000, 1), Some(Duration::from_millis(1)));
        assert_eq!(period(1001, 1), None);
        assert_eq!(period(1, 1), Some(Duration::from_secs(1)));
        assert_eq!(period(999, 1000), None);
        assert_eq!(period(30_000, 1_001), Some(Duration::from_nanos(33_366_667)));
    }

    #[test]
    fn a_stream_is_declared_at_its_peak_if_that_can_be_one() {
        let finding = Finding::new(Container::Mxf, Bitrate(1_000), Basis::Whole);
        let declared = |peak| finding.with_peak(Some(Bitrate(peak))).declared();
        assert_eq!(finding.declared(), Bitrate(1_000));
        assert_eq!(declared(1_001), Bitrate(1_001));
        assert_eq!(declared(8_000), Bitrate(8_000));
        assert_eq!(declared(8_001), Bitrate(1_000));
        assert_eq!(declared(999), Bitrate(1_000));
    }

    #[test]
    fn a_finding_says_what_it_found() {
        let finding = Finding::new(Container::Mxf, Bitrate(50_000_000), Basis::Stated)
            .with_frames(Span::new(1, 25, 1).ok())
            .with_peak(Some(Bitrate(62_500_000)));
        assert_eq!(
            finding.to_string(),
            "MXF: 50.000 Mbit/s, at most 62.500 Mbit/s, 25.000 frames/s, as the header states it"
        );
    }
}
