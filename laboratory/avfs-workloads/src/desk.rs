//! The side of a client towards the files.

use crate::operation::{Answer, Operation};
use crate::report::ClientReport;
use std::collections::VecDeque;
use units::Instant;

/// The side of a client towards the files.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    pub(crate) next_tag: u64,
    pub(crate) asks: VecDeque<(u64, Operation)>,
    pub(crate) report: ClientReport,
    pub(crate) largest: u32,
}

impl Desk {
    pub(crate) fn ask(&mut self, operation: Operation) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.asks.push_back((tag, operation));
        tag
    }

    /// The answer, or nothing after a failure was noted.
    pub(crate) fn note(&mut self, answer: Result<Answer, String>) -> Option<Answer> {
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.report.errors += 1;
                self.report.first_error.get_or_insert(error);
                None
            }
        }
    }
}

/// The end of an operation that a client asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) now: Instant,
    pub(crate) tag: u64,
    /// `None`: it failed, which is noted.
    pub(crate) answer: Option<Answer>,
}
