//! The server without a mount: requests of every operation, generated, and what the kernel says to the answers.
//!
//! `fuzz/fuzz_targets/requests.rs` drives the same with coverage.

mod client;
mod connection;
mod driver;
mod kernel;
mod recorded;
#[expect(dead_code, reason = "recordings are written by examples/record")]
mod recording;
mod refused;
mod replay;
mod tree;

use driver::Driver;
use fuse_wire::abi::opcode;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_requests_is_answered(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        let mut driver = Driver::new();
        driver.run(&bytes);
        driver.finish();
    }
}

/// A request that came behind the last one, DESTROY, was not answered: one in some eight thousand of the sequences above.
#[test]
fn what_comes_behind_the_last_request_is_answered() {
    // 255, and a number in two bytes: any code. 41 is the root directory, a name, and a request that is whole.
    let request = |code: u32| [[255, 0, code as u8].as_slice(), &[41; 40]].concat();
    let mut driver = Driver::new();
    for code in [opcode::MKDIR, opcode::DESTROY, opcode::SYNCFS, opcode::FSYNCDIR, opcode::DESTROY] {
        driver.run(&request(code));
    }
    driver.finish();
}

/// Bytes that are no choice at all reach only what fails.
#[test]
fn many_of_the_requests_succeed() {
    let mut driver = Driver::new();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as u8
    })
    .take(60_000)
    .collect();
    driver.run(&bytes);
    let (answered, succeeded) = driver.answered;
    eprintln!("{answered} requests answered, {succeeded} with success");
    assert!(answered > 2000 && succeeded > answered / 10, "{succeeded} of {answered}");
    driver.finish();
}
