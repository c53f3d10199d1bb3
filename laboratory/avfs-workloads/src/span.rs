//! A time that is declared as one figure, or as two between which it is drawn.

use rand::Rng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use std::fmt;
use units::Duration;

/// Milliseconds: `8000`, or `[3000, 40000]`.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Span {
    /// Always as long.
    Fixed(u64),
    /// Drawn each time, from … to.
    Between([u64; 2]),
}

impl Span {
    /// One of them.
    pub(crate) fn draw(self, random: &mut SmallRng) -> Duration {
        Duration::from_millis(match self {
            Self::Fixed(ms) => ms,
            Self::Between([from, to]) => random.random_range(from..=to),
        })
    }

    /// Whether there is a time between its figures.
    pub fn is_one(self) -> bool {
        matches!(self, Self::Fixed(_)) || matches!(self, Self::Between([from, to]) if from <= to)
    }
}

impl Default for Span {
    fn default() -> Self {
        Self::Fixed(0)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, output: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(ms) => write!(output, "{ms}"),
            Self::Between([from, to]) => write!(output, "{from}..={to}"),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, output: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(ms) => write!(output, "{ms} ms"),
            Self::Between([from, to]) => write!(output, "{from} to {to} ms"),
        }
    }
}
