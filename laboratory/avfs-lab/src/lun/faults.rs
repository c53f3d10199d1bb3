//! What is wrong with a LUN, by command.
//!
//! **For:** lines written into `control` beside the names of modes, each one fault more:
//!
//! | line | from then on |
//! |---|---|
//! | `refuse read OFFSET LENGTH` | reads that touch these bytes fail with EIO |
//! | `refuse write OFFSET LENGTH` | writes that touch them fail with EIO and change nothing |
//! | `refuse flush` | flushes fail with EIO |
//! | `short BYTES` | no read gives more than so many bytes, a multiple of 4096 (of a short write the kernel makes an error) |
//! | `end BYTES` | the LUN ends there: reads behind it find nothing, writes fail with ENOSPC |
//! | `late SECONDS` | each request waits so long before it is answered |
//! | `heal` | none of this |
//!
//! **State:** the faults, and how many requests met one.

use fuser::Errno;
use rtsched::Direction;
use std::ops::Range;
use units::Duration;

#[derive(Debug, Default)]
pub(super) struct Faults {
    refused: Vec<(Direction, Range<u64>)>,
    short: Option<u64>,
    end: Option<u64>,
    late: Option<Duration>,
}

impl Faults {
    /// Takes a line; `None` if it is none of these.
    pub(super) fn command(&mut self, line: &[u8]) -> Option<()> {
        let words: Vec<&str> = std::str::from_utf8(line).ok()?.split_ascii_whitespace().collect();
        match words[..] {
            ["heal"] => *self = Self::default(),
            ["refuse", "flush"] => self.refused.push((Direction::Flush, 0..u64::MAX)),
            ["refuse", what, offset, length] => {
                let direction = match what {
                    "read" => Direction::Read,
                    "write" => Direction::Write,
                    _ => return None,
                };
                let start: u64 = offset.parse().ok()?;
                self.refused.push((direction, start..start.saturating_add(length.parse().ok()?)));
            }
            ["short", bytes] => {
                let bytes: u64 = bytes.parse().ok()?;
                // A line that is refused changes nothing.
                self.short = Some(Some(bytes).filter(|bytes| *bytes > 0 && bytes.is_multiple_of(4096))?);
            }
            ["end", bytes] => self.end = Some(bytes.parse().ok()?),
            ["late", seconds] => self.late = Some(Duration::from_secs(seconds.parse().ok()?)),
            _ => return None,
        }
        Some(())
    }

    /// How many bytes of a request are moved.
    pub(super) fn meet(&self, direction: Direction, offset: u64, length: u64) -> Result<u64, Errno> {
        let touches = |place: &Range<u64>| {
            direction == Direction::Flush || offset < place.end && place.start < offset.saturating_add(length)
        };
        if self.refused.iter().any(|(refused, place)| *refused == direction && touches(place)) {
            return Err(Errno::EIO);
        }
        let end = self.end.unwrap_or(u64::MAX);
        let short = self.short.filter(|_| direction == Direction::Read).unwrap_or(u64::MAX);
        let moved = length.min(short).min(end.saturating_sub(offset));
        if moved == 0 && length > 0 && direction == Direction::Write {
            return Err(Errno::ENOSPC);
        }
        Ok(moved)
    }

    /// How long answers wait.
    pub(super) fn late(&self) -> Option<Duration> {
        self.late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_met_where_it_is() {
        let mut faults = Faults::default();
        for line in ["refuse write 8192 4096", "short 4096", "end 1048576", "late 2"] {
            assert_eq!(faults.command(line.as_bytes()), Some(()), "{line}");
        }
        for line in ["", "refuse", "refuse trim 0 1", "short 5", "short 0", "late x", "end"] {
            assert_eq!(faults.command(line.as_bytes()), None, "{line:?}");
        }
        assert!(faults.meet(Direction::Write, 4096, 8192).is_err());
        assert_eq!(faults.meet(Direction::Write, 12288, 8192).ok(), Some(8192));
        assert_eq!(faults.meet(Direction::Read, 8192, 8192).ok(), Some(4096));
        assert_eq!(faults.meet(Direction::Read, 1 << 20, 4096).ok(), Some(0));
        assert!(faults.meet(Direction::Write, 1 << 20, 4096).is_err());
        assert_eq!(faults.late(), Some(Duration::from_secs(2)));
        faults.command(b"heal");
        assert_eq!(faults.meet(Direction::Write, 4096, 8192).ok(), Some(8192));
    }
}
