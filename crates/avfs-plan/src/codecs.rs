//! What codecs take.
//!
//! **For:** the table in `codecs.toml`, which is the one place for these figures, each with its source. **Excludes:** what a file really
//! takes, which its container says. **State:** none.

use serde::{Deserialize, Serialize};
use units::Bitrate;

/// A codec at a size and a frame rate.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Codec {
    /// As people say it.
    pub name: String,
    /// Mbit/s (10^6) of one stream.
    pub megabits: f64,
    /// Where the figure comes from.
    pub source: String,
}

impl Codec {
    /// Of one stream.
    pub fn rate(&self) -> Bitrate {
        Bitrate((self.megabits * 1e6) as u64)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    codec: Vec<Codec>,
}

/// All of them, in the order of the table.
///
/// # Panics
/// When the table that is compiled in is none, which its test sees.
pub fn all() -> Vec<Codec> {
    let table: Table = toml::from_str(include_str!("../codecs.toml")).expect("the table was tested");
    table.codec
}

/// Those whose names have, for each of these words, one that begins with it, whatever their case.
pub fn named(words: &str) -> Vec<Codec> {
    let words: Vec<String> = words.split_whitespace().map(str::to_lowercase).collect();
    let is_it = |codec: &Codec| {
        let name = codec.name.to_lowercase();
        words.iter().all(|word| name.split_whitespace().any(|one| one.starts_with(word.as_str())))
    };
    all().into_iter().filter(is_it).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_rate_and_a_source_and_is_named_once() {
        let all = all();
        let mut names: Vec<&str> = all.iter().map(|codec| codec.name.as_str()).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] != two[1]), "{names:?}");
        for codec in &all {
            assert!((1.0..100_000.0).contains(&codec.megabits), "{codec:?}");
            assert!(codec.source.len() > 10, "{codec:?}");
        }
        assert!(all.len() >= 20);
    }

    #[test]
    fn a_codec_is_found_by_words_of_its_name() {
        assert_eq!(named("prores 422 hq uhd 25p").len(), 1);
        assert!(named("prores").len() > 3);
        // HD was found in UHD, so that it could not be asked for alone.
        assert_eq!(named("prores 422 hq hd").len(), 1);
        assert_eq!(named("prores betamax"), []);
    }
}
