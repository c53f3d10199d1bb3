//! Recordings of a volume: reading, exporting and simulating them ends, panics nowhere, and what is exported is JSON.
#![no_main]

use avfs_plan::perfetto::Export;
use avfs_plan::recording::{Line, Reader, Recording};
use avfs_plan::simulate::{Change, simulate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((head, mut reader)) = Reader::new(bytes) {
        let mut export = Export::new(Vec::new(), &head).expect("memory takes everything");
        while let Ok(Some(line)) = reader.next_entry() {
            match line {
                Line::Names(names) => export.names(names),
                Line::Record(record) => export.add(&record).expect("memory takes everything"),
                Line::Lost(_) | Line::End { .. } => {}
            }
        }
        let exported = export.end().expect("memory takes everything");
        assert!(serde_json::from_slice::<serde_json::Value>(&exported).is_ok());
    }
    if let Ok(recording) = Recording::read(bytes) {
        simulate(&recording, &Change { editors: 2, ..Change::default() });
    }
});
