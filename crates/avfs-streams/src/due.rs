//! The times by which due times are reckoned.
//!
//! **For:** how long a client may take to begin, and what it is taken to hold. **Excludes:** the due time of a request, which
//! players and cursors reckon. **State:** none.

use units::Duration;

/// A player may take so long to begin while others play. Two seconds are what an editor takes for at once; a third of a second is
/// left for what is at the device. First requests, a picture or a header, do not wait. Between 1.45 and 1.75 s the modelled array
/// showed no significant difference (`doc/experiments/time-to-begin.md`). Fitted.
pub const START: Duration = Duration::from_millis(1650);
/// A player is taken to keep so much itself of what it will play. A player that asks for more needs it later: by when its rate
/// says. A copy that is not known for one yet does not come before players. Laboratory clients on the modelled array decided it
/// (`doc/experiments/time-to-begin.md`). Fitted.
pub const OWN_BUFFER: Duration = Duration::from_secs(2);

/// A player is taken to begin with so much. A player that asks for more has this much as soon. It is the buffer of the laboratory's
/// clients (`doc/experiments/time-to-begin.md`). Fitted.
pub const BEGINS_WITH: Duration = Duration::from_secs(1);

/// What a client comes to so much sooner than was reckoned when it was asked for is expedited. Less is no news. An
/// estimator's window.
pub const HASTE: Duration = Duration::from_millis(100);
