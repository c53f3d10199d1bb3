//! Before it is bought, and before it is changed.
//!
//! **For:** how many streams of which codecs a device would carry ([`plan`], [`codecs`]); what was recorded of a volume ([`recording`]), as
//! others read it ([`perfetto`]), and what would have happened otherwise ([`simulate`]). **Excludes:** a formula of its own: the plan asks
//! the admission that production asks, and a simulation goes through the scheduler of production. **State:** none that outlives a question.
//! **Invariants:** the same question has the same answer; whatever a recording holds, reading it ends and panics nowhere.
#![forbid(unsafe_code)]

pub mod codecs;
pub mod perfetto;
pub mod plan;
pub mod player;
pub mod recording;
pub mod simulate;
