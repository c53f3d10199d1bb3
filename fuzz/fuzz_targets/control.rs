//! Any bytes to the control socket: each line is answered by one line of JSON, and the next client is served. All of it the driver
//! asserts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

#[path = "../../crates/avfs-fuse/tests/control/driver.rs"]
mod driver;

static DRIVER: OnceLock<driver::Driver> = OnceLock::new();

fuzz_target!(|input: &[u8]| DRIVER.get_or_init(driver::Driver::new).say(input));
