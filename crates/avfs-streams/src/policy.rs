//! What holds for the clients of a file.
//!
//! **For:** what was said of a file, with defaults for what was not. **Excludes:** finding the sources and choosing between
//! them. **State:** none.

use rtsched::{Account, Class};
use units::{Bitrate, Bytes, Duration};

/// A real-time request without a window of its own completes within this. An operator's target.
pub const DEADLINE_WINDOW: Duration = Duration::from_millis(500);
/// How far is read ahead of a reader that goes on where it was. An operator's target.
pub const PREFETCH_DEPTH: Bytes = Bytes::from_mib(16);

/// How fast a stream is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// A file that holds many frames, at so many bits per second: 1 kbit/s to 1 Tbit/s.
    Bitrate(Bitrate),
    /// A sequence with one file for each frame; the time of one frame, 1 ms to 1 s.
    FramePeriod(Duration),
}

/// What was said of a file; `None`: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Real-time, best-effort or idle.
    pub class: Option<Class>,
    /// The rate of one stream.
    pub rate: Option<Rate>,
    /// How long before its deadline a request is made.
    pub deadline_window: Option<Duration>,
    /// How far is read ahead of a reader that goes on where it was.
    pub prefetch_depth: Option<Bytes>,
    /// A client for whose rate there is no room is turned away.
    pub refuses: bool,
    /// The class is not real-time, and it was written down, not found out.
    pub gives_way: bool,
    /// Of the user who named the rate; `None`: the administrator named it, or it was found out.
    pub account: Option<Account>,
}

impl Policy {
    /// On whose account streams of the rate are; `None`: the administrator named it, or it was found out.
    pub fn account(&self) -> Option<Account> {
        self.account
    }

    /// Real-time where a rate or a window is named, and no class.
    pub fn class(&self) -> Class {
        let is_timed = self.rate.is_some() || self.deadline_window.is_some();
        self.class.unwrap_or(if is_timed { Class::RealTime } else { Class::BestEffort })
    }

    /// Of one stream; `None`: not known, or of a sequence with a file for each frame.
    pub fn bitrate(&self) -> Option<Bitrate> {
        match self.rate {
            Some(Rate::Bitrate(rate)) => Some(rate),
            _ => None,
        }
    }

    /// How long one file of a sequence is shown, where that is said.
    pub fn frame_period(&self) -> Option<Duration> {
        match self.rate {
            Some(Rate::FramePeriod(period)) => Some(period),
            _ => None,
        }
    }

    /// From when a client needs bytes to when they must be there.
    pub fn deadline_window(&self) -> Duration {
        self.deadline_window.unwrap_or(DEADLINE_WINDOW)
    }

    /// The same of a reader. A client that plays on has no more time where it jumps than anywhere else, unless a window is said: a
    /// clip is played in a loop, and what others come to a second later went before its start.
    pub fn window_of_reader(&self, plays_on: bool) -> Duration {
        let usual = if plays_on { Duration::ZERO } else { DEADLINE_WINDOW };
        self.deadline_window.unwrap_or(usual)
    }

    /// True when the deadline window is said.
    pub fn says_deadline_window(&self) -> bool {
        self.deadline_window.is_some()
    }

    /// How far is to be read ahead, where that is said.
    pub fn stated_prefetch_depth(&self) -> Option<Bytes> {
        self.prefetch_depth
    }

    /// How far is read ahead of a reader that goes on where it was.
    pub fn prefetch_depth(&self) -> Bytes {
        self.prefetch_depth.unwrap_or(PREFETCH_DEPTH)
    }

    /// Whether a client for whose rate there is no room is turned away.
    pub fn refuses_when_full(&self) -> bool {
        self.refuses
    }

    /// True when it says how the file is read or written: it is media, whatever its size.
    pub fn is_media(&self) -> bool {
        let Self { class, rate, deadline_window, prefetch_depth, .. } = self;
        class.is_some() || rate.is_some() || deadline_window.is_some() || prefetch_depth.is_some()
    }

    /// True when the file is to give way, whatever its clients declare.
    pub fn forbids_streams(&self) -> bool {
        self.gives_way
    }
}
