//! Recordings that were damaged, or made up: reading, exporting and simulating them ends, and panics nowhere.

use avfs_io::trace::{
    Asked, Begin, Declared, Does, Happened, Line, Measured, Part, Rank, Record, Told, Wanted,
};
use avfs_plan::perfetto::Export;
use avfs_plan::recording::{Head, Reader, Recording, VERSION, Writer};
use avfs_plan::simulate::{Change, simulate};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000_000;
const BEGIN: u64 = 1000 * SECOND;
const MIB: u64 = 1 << 20;

fn told() -> Told {
    let line = Line { access: 16_000_000, rate: 170_000_000 };
    Told {
        queue_depth: 2,
        metadata_latency: 50_000_000,
        best_effort_latency: 2 * SECOND,
        best_effort_floor_percent: 10,
        idle_floor_percent: 1,
        account_max_permille: 250,
        accounts_max_permille: 500,
        buffer_memory: 2 << 30,
        buffer_piece: 8 * MIB,
        request_time_max: 2_500_000_000,
        device_size: 1 << 40,
        read: line,
        read_ends: None,
        write: line,
        write_times: None,
        flush: line,
        measured: Measured::All,
    }
}

fn wanted(writes: bool) -> Wanted {
    Wanted {
        writes,
        bits_per_second: 100_000_000,
        request: None,
        piece: None,
        deadline: None,
        grace: 0,
        place: None,
        priority: 128,
        account: None,
        known: true,
    }
}

fn head() -> Head {
    let line = told().read;
    let streams = vec![Declared { stream: 2, wanted: wanted(false), admitted: true }];
    Head {
        avfs_trace: VERSION,
        program: "a test".to_owned(),
        uuid: "0".to_owned(),
        label: "footage".to_owned(),
        began_milliseconds: 0,
        device_bytes: 1 << 40,
        begin: Begin { at: BEGIN, told: told(), learned: [line; 3], streams, waiting: Vec::new() },
    }
}

/// A player for so many seconds, and a recorder that comes and goes.
fn records(seconds: u64) -> Vec<Record> {
    let mut records = Vec::new();
    let mut add = |at: u64, what| records.push(Record { n: 0, at: BEGIN + at, what });
    add(0, Happened::Declared { stream: 3, wanted: Some(wanted(true)) });
    for number in 0..seconds {
        let at = number * SECOND;
        for (stream, does) in [(2, Does::Read), (3, Does::Write)] {
            let tag = number * 8 + stream;
            let (offset, length) = (number * 12 * MIB + (stream << 34), 12 * MIB);
            let deadline = Some(BEGIN + at + 2 * SECOND);
            let class = Rank::RealTime;
            add(
                at,
                Happened::Asked(Asked { tag, class, stream: Some(stream), does, offset, length, deadline }),
            );
            let (command, stream, tags) = (tag, Some(stream), [tag].into_iter().collect());
            add(at + 1000, Happened::Began { command, tags, class, stream, does, offset, length });
            add(at + 90_000_000 * (stream.unwrap_or(0) - 1), Happened::Ended { command, failed: 0 });
        }
    }
    records.sort_by_key(|record| record.at);
    for (n, record) in (0..).zip(&mut records) {
        record.n = n;
    }
    records
}

fn text(records: Vec<Record>) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &head()).unwrap();
    let now = records.last().map_or(BEGIN, |record| record.at);
    let part = Part { begin: None, records, next: 0, lost: 0, now };
    let names = BTreeMap::from([(2, "/a.mov".to_owned()), (3, "/take.mov".to_owned())]);
    writer.add(&part, &names).unwrap();
    writer.end(now).unwrap()
}

/// Does everything that the commands do with one; the recording, if it is one.
fn use_it(bytes: &[u8]) -> Option<Recording> {
    if let Ok((head, mut reader)) = Reader::new(bytes) {
        let mut export = Export::new(Vec::new(), &head).unwrap();
        while let Ok(Some(line)) = reader.next_entry() {
            match line {
                avfs_plan::recording::Line::Names(names) => export.names(names),
                avfs_plan::recording::Line::Record(record) => export.add(&record).unwrap(),
                _ => {}
            }
        }
        let exported = export.end().unwrap();
        serde_json::from_slice::<serde_json::Value>(&exported).expect("it is JSON");
    }
    let recording = Recording::read(bytes).ok()?;
    simulate(&recording, &Change { editors: 2, ..Change::default() });
    Some(recording)
}

#[test]
fn what_is_written_is_read_and_simulated() {
    let recording = use_it(&text(records(20))).expect("it is whole");
    assert_eq!(
        (recording.records.len(), recording.name(2), recording.name(9)),
        (121, "/a.mov".into(), "stream 9".into())
    );
    let outcome = simulate(&recording, &Change::default());
    let names: Vec<&str> = outcome.streams.iter().map(|stream| stream.name.as_str()).collect();
    assert_eq!((names, outcome.late()), (vec!["/a.mov", "/take.mov"], 0), "{outcome:?}");
    let slow = simulate(&recording, &Change { slower: Some(15.0), ..Change::default() });
    assert!(slow.late() > 0 && slow.busy_permille > outcome.busy_permille, "{slow:?}");
}

/// What a version has written stays readable: the file was written by the first one.
#[test]
fn a_recording_of_version_1_is_still_read() {
    let kept = include_bytes!("recording.jsonl");
    let recording = use_it(kept).expect("it is whole");
    assert_eq!((recording.records.len(), recording.lost, recording.name(3)), (25, 0, "/take.mov".into()));
    assert_eq!(text(recording.records), kept);
}

#[test]
fn a_recording_that_was_broken_off_is_read_as_far_as_it_goes() {
    let whole = text(records(20));
    let half = use_it(&whole[..whole.len() / 2]).expect("its head is whole");
    assert!(half.records.len() > 40 && half.records.len() < 80, "{}", half.records.len());
}

#[test]
fn an_endless_line_is_refused_and_not_kept() {
    let mut endless = text(Vec::new());
    endless.extend(vec![b'x'; 4 << 20]);
    let refused = Recording::read(endless.as_slice()).unwrap_err().to_string();
    assert!(refused.contains("has ended") || refused.contains("longer than"), "{refused}");
    let refused = Recording::read(vec![b'x'; 4 << 20].as_slice()).unwrap_err().to_string();
    assert!(refused.contains("line 1: it is longer than"), "{refused}");
}

/// Numbers that are none of a recording's, at its places.
fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("0".to_owned()),
        Just("1".to_owned()),
        Just(u64::MAX.to_string()),
        Just((1_u64 << 60).to_string()),
        Just(((1_u64 << 60) + 1).to_string()),
        Just("-1".to_owned()),
        Just("1e300".to_owned()),
        any::<u64>().prop_map(|number| number.to_string()),
        any::<u32>().prop_map(|number| number.to_string()),
        (0_u64..100 * SECOND).prop_map(|time| (BEGIN + time).to_string()),
    ]
}

/// The text with other numbers at some of the places where numbers are.
fn with_numbers(text: &[u8], changes: &[(usize, String)]) -> Vec<u8> {
    let text = String::from_utf8(text.to_vec()).unwrap();
    let mut places: Vec<(usize, usize)> = Vec::new();
    for (at, letter) in text.char_indices().filter(|(_, letter)| letter.is_ascii_digit()) {
        match places.last_mut() {
            Some((_, end)) if *end == at => *end = at + letter.len_utf8(),
            _ => places.push((at, at + 1)),
        }
    }
    let mut changes: BTreeMap<usize, &String> =
        changes.iter().map(|(place, number)| (place % places.len(), number)).collect();
    let mut changed = text;
    while let Some((place, number)) = changes.pop_last() {
        changed.replace_range(places[place].0..places[place].1, number);
    }
    changed.into_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn numbers_may_be_anything(changes in vec((any::<usize>(), number()), 1..6)) {
        use_it(&with_numbers(&text(records(6)), &changes));
    }

    #[test]
    fn bytes_may_be_anything(changes in vec((any::<usize>(), any::<u8>()), 1..12), cut in any::<usize>()) {
        let mut bytes = text(records(4));
        for (place, byte) in changes {
            let length = bytes.len();
            bytes[place % length] = byte;
        }
        bytes.truncate(cut % bytes.len() + 1);
        use_it(&bytes);
    }

    #[test]
    fn lines_may_come_in_any_order(order in vec(any::<usize>(), 1..60)) {
        let whole = text(records(8));
        let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
        let mut bytes = lines[0].to_vec();
        order.iter().for_each(|line| bytes.extend(lines[1 + line % (lines.len() - 1)]));
        use_it(&bytes);
    }
}

#[test]
#[ignore = "writes what is kept of version 1"]
fn keep_a_recording() {
    std::fs::write("tests/recording.jsonl", text(records(4))).unwrap();
}
