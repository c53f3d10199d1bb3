//! Has the machine its processors?
//!
//! **For:** waiting until a virtual machine's host gives the processors back that it lets others have, before a point is measured
//! again. **State:** none. **Invariants:** ends after some looks, whatever they show.

use crate::point::STOLEN_BOUND;
use crate::processor::ProcessorTime;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Nobody waits for longer than so many looks.
const LOOKS: u32 = 10;

/// How long a look takes.
const LOOK: Duration = Duration::from_secs(1);

/// Looks again and again until less is stolen than [`STOLEN_BOUND`], or patience ends; `tell` says once what is waited for.
///
/// # Errors
/// Those of a look.
pub fn await_processors(
    mut look: impl FnMut() -> io::Result<f64>,
    mut tell: impl FnMut(&str),
) -> io::Result<()> {
    for number in 0..LOOKS {
        if look()? < STOLEN_BOUND {
            return Ok(());
        }
        if number == 0 {
            tell("waiting for the machine's host to give its processors back: at most 10 s");
        }
    }
    Ok(())
}

/// Percent of a second that the host took from who wanted all processors: nothing is stolen from who wants none.
///
/// # Errors
/// When `/proc` does not tell.
pub fn look() -> io::Result<f64> {
    let before = ProcessorTime::now(&[])?;
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while start.elapsed() < LOOK {
                    std::hint::spin_loop();
                }
            });
        }
    });
    Ok(ProcessorTime::now(&[])?.stolen_percent_since(&before))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often it looked, and how often it told why.
    fn waited(host: &[f64]) -> (usize, usize) {
        let (mut looks, mut told) = (host.iter(), 0);
        let look = || looks.next().copied().ok_or(io::ErrorKind::UnexpectedEof.into());
        await_processors(look, |_| told += 1).expect("it stops in time");
        (host.len() - looks.len(), told)
    }

    #[test]
    fn waiting_ends_when_the_processors_are_back_or_patience_is_at_its_end() {
        assert_eq!(waited(&[2.99, 50.0]), (1, 0), "they are back already");
        assert_eq!(waited(&[3.0, 2.99]), (2, 1));
        assert_eq!(waited(&[50.0; 20]), (10, 1));
    }
}
