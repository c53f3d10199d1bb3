//! Sequences of kernel requests, of any bytes: each is answered once with what the kernel takes, and fsck finds nothing after
//! them. All of it the driver asserts.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/avfs-fuse/tests/requests/driver.rs"]
mod driver;

fuzz_target!(|input: &[u8]| {
    let mut driver = driver::Driver::new();
    driver.run(input);
    driver.finish();
});
