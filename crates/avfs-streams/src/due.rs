//! The times by which due times are reckoned.
//!
//! **For:** how long a client may take to begin, and what it is taken to hold. **Excludes:** the due time of a request, which
//! players and cursors reckon. **State:** none.

use units::Duration;

/// A player may take so long to begin while others play, who cannot wait: two seconds are what an editor takes for at
/// once, and a third of a second is left for what is at the device. Its first requests, a picture or a header, do not wait.
pub const START: Duration = Duration::from_millis(1650);
/// What a player keeps itself of what it will play. Who asks for more has less need of it: by when its rate says. A copy, as
/// long as it is not known for one, does not come before players.
pub const OWN_BUFFER: Duration = Duration::from_secs(2);

/// With so much of what it will play a player begins, as far as anybody knows. One that asks for more has it as soon.
pub const BEGINS_WITH: Duration = Duration::from_secs(1);
