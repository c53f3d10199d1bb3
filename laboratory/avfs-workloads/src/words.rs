//! What a client does, in words, for reports.

use crate::pattern::{ChaseSpec, CopySpec, EditorSpec, Pattern, ScrubSpec, StreamSpec, Then, Thens};
use std::fmt::{Display, Formatter, Result};

impl Display for StreamSpec {
    fn fmt(&self, text: &mut Formatter<'_>) -> Result {
        let Self { megabits, unit_kib, buffer_ms } = self;
        write!(text, "{megabits} Mbit/s, units of {unit_kib} KiB, a buffer of {buffer_ms} ms")
    }
}

impl Display for CopySpec {
    fn fmt(&self, text: &mut Formatter<'_>) -> Result {
        let Self { request_kib, in_flight, files_at_once } = self;
        let each = if *files_at_once > 1 { " of each" } else { "" };
        let files = if *files_at_once > 1 { format!("{files_at_once} files") } else { "one file".to_owned() };
        write!(text, "{files} at once, {in_flight} × {request_kib} KiB in flight{each}")
    }
}

impl Display for Then {
    fn fmt(&self, text: &mut Formatter<'_>) -> Result {
        text.write_str(match self {
            Self::Stop => "opens another place",
            Self::Pause => "goes on there",
            Self::Jump => "jumps",
            Self::Turn => "turns",
            Self::Both => "goes on at two places",
        })
    }
}

impl Display for Thens {
    fn fmt(&self, text: &mut Formatter<'_>) -> Result {
        for (number, then) in self.all().iter().enumerate() {
            write!(text, "{}{then}", if number > 0 { " or " } else { "" })?;
        }
        Ok(())
    }
}

impl Display for Pattern {
    fn fmt(&self, text: &mut Formatter<'_>) -> Result {
        match self {
            Self::Player(spec) => write!(text, "a player ({spec})"),
            Self::Chaser(spec) => {
                let ChaseSpec { behind_ms, .. } = spec;
                write!(
                    text,
                    "a player of what the recorder before it records ({}), {behind_ms} ms behind",
                    spec.stream()
                )
            }
            Self::Recorder(spec) => write!(text, "a recorder ({spec})"),
            Self::FramePlayer(spec) => write!(text, "a player of a file for each frame ({spec})"),
            Self::FrameRecorder(spec) => write!(text, "a recorder of a file for each frame ({spec})"),
            Self::Editor(spec) => {
                let EditorSpec { play_ms, pause_ms, then, .. } = spec;
                let stream = spec.stream();
                write!(text, "an editor ({stream}) who plays {play_ms}, rests {pause_ms} and {then}")
            }
            Self::CopyFrom(copy) => write!(text, "a copy that reads ({copy})"),
            Self::CopyTo(copy) => write!(text, "a copy that writes ({copy})"),
            Self::RandomReader(copy) => write!(text, "a random reader ({copy})"),
            Self::Scrubber(ScrubSpec { picture_kib, pause_ms }) => {
                write!(text, "who searches (pictures of {picture_kib} KiB, {pause_ms} ms between them)")
            }
            Self::Office { pause_ms } => write!(text, "an office ({pause_ms} ms between documents)"),
        }
    }
}
