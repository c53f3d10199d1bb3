//! How many more streams are there room for?
//!
//! **For:** asking the admission itself, so that the answer is what would happen. **State:** none.

use crate::request::StreamId;
use crate::state::Scheduler;
use crate::stream::StreamSpec;
use units::Instant;

impl Scheduler {
    /// So many more streams like this would be admitted now, one after the other, at most `most`. It is used up for that: a caller that
    /// goes on with it asks a copy.
    pub fn room_for(mut self, now: Instant, spec: &StreamSpec, most: u32) -> u32 {
        (0..most)
            .find(|number| self.admit(now, StreamId(u64::MAX - u64::from(*number)), spec).is_err())
            .unwrap_or(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use units::Bitrate;

    #[test]
    fn there_is_room_for_as_many_as_are_then_admitted() {
        let mut scheduler = Scheduler::new(Config::default());
        let spec = StreamSpec::reader(Bitrate::from_megabits(100));
        let mut admitted = 0;
        loop {
            let room = scheduler.clone().room_for(Instant::ZERO, &spec, 100);
            assert_eq!(scheduler.clone().room_for(Instant::ZERO, &spec, 1), room.min(1));
            match scheduler.admit(Instant::ZERO, StreamId(admitted), &spec) {
                Ok(_) => admitted += 1,
                Err(_) => {
                    assert_eq!(room, 0);
                    break;
                }
            }
            assert!(room > 0);
        }
        let first = Scheduler::new(Config::default()).room_for(Instant::ZERO, &spec, 100);
        assert_eq!(u64::from(first), admitted);
    }
}
