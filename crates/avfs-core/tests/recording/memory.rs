//! How much memory a recording takes: what is gathered for the next request, and the request that is on its way.

use crate::studio::{Clip, MIB, Studio};

/// One request of file data.
const REQUEST: u64 = 8 * MIB;

/// Streams write in turns, and the device takes what they give it before it is asked for more: each then holds at most
/// one request that it gathers, and one on its way.
fn record(streams: u64) {
    let cache = (streams + 2) * 3 * REQUEST;
    let mut studio = Studio::new(64 << 30, cache);
    let clips: Vec<Clip> = (0..streams).map(|number| studio.create(&format!("camera {number}"))).collect();
    let mut most = 0;
    for at in (0..5 * REQUEST + MIB).step_by(MIB as usize) {
        for &clip in &clips {
            assert_eq!(studio.write(clip, at, MIB), Ok(MIB as usize));
            let report = studio.core().report();
            most = most.max(report.dirty_bytes + report.writing_bytes);
            let bound = streams * 2 * REQUEST;
            assert!(
                report.dirty_bytes + report.writing_bytes <= bound,
                "{streams} streams at {at}: {report:?}"
            );
            // A device that is just fast enough: a request for each that was gathered.
            while studio.outstanding() as u64 > streams {
                studio.step();
            }
        }
    }
    println!("{streams} streams: at most {} MiB each", most / streams / MIB);
    // What is written is clean, so that the next who needs memory has it.
    studio.drain();
    let report = studio.core().report();
    assert_eq!(report.writing_bytes, 0);
    assert!(report.dirty_bytes <= streams * REQUEST, "{streams} streams: {report:?}");
    assert!(clips.iter().all(|&clip| studio.runs(clip).len() <= 2));
}

#[test]
fn one_to_two_hundred_streams_hold_a_request_each_and_what_they_gather() {
    for streams in [1, 2, 3, 8, 13, 50, 100, 200] {
        record(streams);
    }
}
