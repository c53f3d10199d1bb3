//! The control socket, whatever is said to it.

#[path = "control/driver.rs"]
mod driver;

use driver::Driver;
use proptest::collection::vec;
use proptest::prelude::*;

/// Requests that are right, and what is nearly one.
const WORDS: [&str; 18] = [
    "{\"sync\":{}}",
    "{\"info\":{}}",
    "{\"version\":1,\"free_space\":{}}",
    "{\"version\":2,\"free_space\":{}}",
    "{\"version\":[],\"sync\":{}}",
    "{\"extents\":{\"ino\":18446744073709551615}}",
    "{\"events\":{\"since\":0,\"most\":18446744073709551615}}",
    "{\"streams\":{\"bits_per_second\":null}}",
    "{\"set_label\":{\"label\":\"\\u0000\\ud800\"}}",
    "{\"remount\":{\"read_only\":true,\"access_times\":\"never\"}}",
    "{\"reload\":{}}",
    "[",
    "{\"sync\":",
    "}",
    "\"",
    "\r",
    "\n",
    "\0",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_are_answered_line_by_line(pieces in vec(prop_oneof![
        3 => (0..WORDS.len()).prop_map(|word| WORDS[word].as_bytes().to_vec()),
        2 => Just(b"\n".to_vec()),
        1 => vec(any::<u8>(), 0..40),
        1 => (any::<u8>(), 4000_usize..4200).prop_map(|(byte, count)| vec![byte; count]),
    ], 0..40)) {
        Driver::new().say(&pieces.concat());
    }
}
