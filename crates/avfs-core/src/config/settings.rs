//! What may be said of a file: in a `[[stream]]` of the configuration and in its extended attributes alike.
//!
//! **For:** the names of the settings, their values as text in both directions, and laying one source over another.
//! **Excludes:** where the settings come from, and which source decides: `policy.rs`. **State:** none.

use super::quantity;
pub use super::quantity::WhenFull;
pub use avfs_streams::Rate;
use rtsched::Class;
use units::{Bytes, Duration};

/// What one source says of a file; `None`: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Real-time, best-effort or idle.
    pub class: Option<Class>,
    /// The rate of one stream.
    pub rate: Option<Rate>,
    /// How long before its deadline a request is made, 1 ms to 60 s.
    pub deadline_window: Option<Duration>,
    /// How far is read ahead of a reader that goes on where it was, up to 1 GiB.
    pub prefetch_depth: Option<Bytes>,
    /// What happens when the device has no room for the rate.
    pub when_full: Option<WhenFull>,
    /// The free space that a recorder keeps ahead of itself, 8 MiB to 1 GiB.
    pub allocation_window: Option<Bytes>,
}

impl Settings {
    /// These, and what they do not say as `lower` says it.
    #[must_use]
    pub fn or(self, lower: Self) -> Self {
        Self {
            class: self.class.or(lower.class),
            rate: self.rate.or(lower.rate),
            deadline_window: self.deadline_window.or(lower.deadline_window),
            prefetch_depth: self.prefetch_depth.or(lower.prefetch_depth),
            when_full: self.when_full.or(lower.when_full),
            allocation_window: self.allocation_window.or(lower.allocation_window),
        }
    }

    /// True when they say nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A setting by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// [`Settings::class`]
    Class,
    /// [`Settings::rate`] as a bitrate.
    Bitrate,
    /// [`Settings::rate`] as frames per second.
    FramesPerSecond,
    /// [`Settings::deadline_window`]
    DeadlineWindow,
    /// [`Settings::prefetch_depth`]
    PrefetchDepth,
    /// [`Settings::when_full`]
    WhenFull,
    /// [`Settings::allocation_window`]
    AllocationWindow,
}

impl Setting {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 7] = [
        Self::Class,
        Self::Bitrate,
        Self::FramesPerSecond,
        Self::DeadlineWindow,
        Self::PrefetchDepth,
        Self::WhenFull,
        Self::AllocationWindow,
    ];

    /// How it is called in the configuration, and behind `user.avfs.` as an extended attribute.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Class => "class",
            Self::Bitrate => "bitrate",
            Self::FramesPerSecond => "frames_per_second",
            Self::DeadlineWindow => "deadline_window",
            Self::PrefetchDepth => "prefetch_depth",
            Self::WhenFull => "when_full",
            Self::AllocationWindow => "allocation_window",
        }
    }

    /// The setting of that name.
    pub fn named(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|setting| setting.name().as_bytes() == name)
    }

    /// Reads a value as the configuration has it, but for the quotation marks.
    ///
    /// # Errors
    /// One line: what was found and what is expected.
    pub fn parse(self, text: &str) -> Result<Settings, String> {
        let (value, mut settings) = (scalar(text.trim()), Settings::default());
        let read = || -> Result<Settings, toml::de::Error> {
            match self {
                Self::Class => settings.class = quantity::class(value)?,
                Self::Bitrate => settings.rate = quantity::bitrate(value)?.map(Rate::Bitrate),
                Self::FramesPerSecond => {
                    settings.rate = quantity::frame_period(value)?.map(Rate::FramePeriod);
                }
                Self::DeadlineWindow => settings.deadline_window = quantity::deadline_window(value)?,
                Self::PrefetchDepth => settings.prefetch_depth = quantity::prefetch_depth(value)?,
                Self::WhenFull => settings.when_full = quantity::when_full(value)?,
                Self::AllocationWindow => settings.allocation_window = quantity::allocation_window(value)?,
            }
            Ok(settings)
        };
        read().map_err(|error| error.message().to_owned())
    }

    /// Its value in `settings`, as it could be written in the configuration; frames per second to three decimals.
    pub fn show(self, settings: &Settings) -> Option<String> {
        match (self, settings.rate) {
            (Self::Class, _) => settings.class.map(|class| quantity::show_class(class).to_owned()),
            (Self::Bitrate, Some(Rate::Bitrate(rate))) => Some(quantity::show_bitrate(rate)),
            (Self::FramesPerSecond, Some(Rate::FramePeriod(period))) => {
                Some(quantity::show_frames_per_second(period))
            }
            (Self::Bitrate | Self::FramesPerSecond, _) => None,
            (Self::DeadlineWindow, _) => settings.deadline_window.map(quantity::show_duration),
            (Self::PrefetchDepth, _) => settings.prefetch_depth.map(quantity::show_bytes),
            (Self::WhenFull, _) => settings.when_full.map(|what| quantity::show_when_full(what).to_owned()),
            (Self::AllocationWindow, _) => settings.allocation_window.map(quantity::show_bytes),
        }
    }
}

/// The text as the value that it would be in the configuration: a number, or text.
fn scalar(text: &str) -> toml::Value {
    let integer = text.parse().map(toml::Value::Integer);
    let number = integer.or_else(|_| text.parse().map(toml::Value::Float));
    number.unwrap_or_else(|_| toml::Value::String(text.to_owned()))
}
