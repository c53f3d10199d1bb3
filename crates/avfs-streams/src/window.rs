//! How far ahead of a client is asked for, in which pieces, and where the next of them ends.
//!
//! **For:** lengths alone. **Excludes:** by when they are wanted, and whether there is memory ([`players`](super)). **State:** none.
//! **Invariants:** a function of its arguments.

use crate::pattern::ScanDirection;
use crate::policy::Policy;
use crate::{PAGE, REQUEST};
use rtsched::Terms;
use std::ops::Range;
use units::Bitrate;

/// How far ahead of a player is asked for, and in what pieces.
#[derive(Clone, Copy, Debug)]
pub struct ReadaheadWindow {
    /// As soon as no more than this is ahead of the player,...
    pub bytes: u64,
    /// ...so much more is asked for.
    pub request: u64,
    /// The admission has set memory aside for it.
    pub is_promised: bool,
}

impl ReadaheadWindow {
    /// What the admission reckoned with.
    pub fn promised(terms: Terms, rate: Bitrate) -> Self {
        Self { bytes: rate.bytes_in(terms.deadline).0, request: terms.request.0.max(PAGE), is_promised: true }
    }

    /// What a policy wants, or what a reader gets without one. What is read ahead may not push out what was read ahead before it.
    pub fn unpromised(policy: &Policy, cache: u64) -> Self {
        Self { bytes: policy.prefetch_depth().0.min(cache / 4), request: REQUEST, is_promised: false }
    }
}

/// What is asked for next behind (or before) what was asked for. It goes up to a multiple of the longest buffer, so that requests
/// after the first lie as blocks do. Forward it ends where what lies in one piece does, at `run_end`. It is as long as it may be
/// where that piece would take one more request otherwise. What is left of a piece is taken with it if that is half as much more at
/// most, and no more than `most` in all, which is at least `request`: it would be an access of its own.
pub fn next_request(
    way: ScanDirection,
    asked: u64,
    request: u64,
    most: u64,
    run_end: u64,
    size: u64,
) -> Option<Range<u64>> {
    let range = match way {
        ScanDirection::Forward => {
            let start = asked / PAGE * PAGE;
            let run_end = run_end.min(size.next_multiple_of(PAGE)).max(start);
            let even = (start + request) / REQUEST * REQUEST;
            let requests = |from: u64| (run_end - from).div_ceil(request);
            if run_end - start <= (request + request / 2).min(most) {
                start..run_end
            } else if even > asked && requests(even) < requests(start) {
                start..even
            } else {
                start..start + request
            }
        }
        ScanDirection::Backward => {
            let start = asked.saturating_sub(request).next_multiple_of(REQUEST);
            let start = if start < asked { start } else { asked.saturating_sub(request) / PAGE * PAGE };
            start..asked
        }
    };
    (range.start < range.end && range.start < size).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the length of requests, and of the pieces that the file lies in: each begins where the one before ended. None
        /// is empty, over two pieces or longer than it may be. The last one reaches the end, and no piece takes more of them than
        /// it has to. (Requests that ended where blocks do left the end of each piece to a request of its own. Twelve players of an
        /// aged volume had 15.1 MiB an access where 16.4 were to be had, and some were late. The half requests of beginning players
        /// left a few MiB of most pieces to another access: 13.9 MiB in the mean where 15.1 were to be had.)
        #[test]
        fn requests_ahead_cover_the_file(
            from in 0u64..200 << 20,
            request in (1u64..40).prop_map(|count| count << 20),
            longer in (0u64..40).prop_map(|count| count << 20),
            size in 1u64..400 << 20,
            piece in (64u64..40_000).prop_map(|count| count * PAGE),
        ) {
            let (mut asked, mut counts) = (from.min(size), std::collections::BTreeMap::new());
            let first = asked / PAGE * PAGE;
            let end_of_piece = |at: u64| (at / piece + 1) * piece;
            let most = request + longer;
            let last = most.min(request * 3 / 2);
            while let Some(range) = next_request(ScanDirection::Forward, asked, request, most, end_of_piece(asked), size) {
                prop_assert!(range.start <= asked && asked - range.start < PAGE && range.end > asked);
                prop_assert!(range.end <= end_of_piece(asked));
                let length = range.end - range.start;
                let end = end_of_piece(asked).min(size.next_multiple_of(PAGE));
                let takes_all = end - range.start <= last;
                prop_assert!(if takes_all { range.end == end } else { length <= request }, "{range:?} of {end}");
                *counts.entry(asked / piece).or_insert(0) += 1;
                asked = range.end;
            }
            prop_assert!(asked >= size);
            for (number, count) in counts {
                let end = ((number + 1) * piece).min(size.next_multiple_of(PAGE));
                let length = end - (number * piece).max(first);
                prop_assert!(count <= length.div_ceil(request), "{count} for piece {number}");
            }
            let mut asked = from;
            while let Some(range) = next_request(ScanDirection::Backward, asked, request, most, u64::MAX, u64::MAX) {
                prop_assert_eq!(range.end, asked);
                prop_assert!(range.end - range.start <= request + PAGE);
                asked = range.start;
            }
            prop_assert_eq!(asked, 0);
        }
    }
}
