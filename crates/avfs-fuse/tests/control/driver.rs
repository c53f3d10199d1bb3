//! Any bytes to a control socket: what must hold of the answers. The property test and the fuzzer use it.

use avfs_fuse::control::{Answer, Control, Request};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

/// The longest line that is read, with its end.
const LONGEST: usize = 4096;

/// A socket behind which there is no volume.
pub(crate) struct Driver {
    path: PathBuf,
    _control: Control,
    _directory: tempfile::TempDir,
}

impl Driver {
    /// One that listens.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("run/0:1.sock");
        let handler = |request: Request| match request {
            Request::Sync {} | Request::Remount { .. } | Request::SetLabel { .. } => Answer::Done {},
            Request::Events { .. } => Answer::Events(Vec::new()),
            _ => Answer::Error("there is no volume".into()),
        };
        let control = Control::start(&path, None, Arc::new(handler)).expect("a socket");
        Self { path, _control: control, _directory: directory }
    }

    /// Says these bytes, and hears the end. Each line is answered by one line of JSON with one key, up to the first that is too long.
    /// Then the next client is served.
    pub(crate) fn say(&self, bytes: &[u8]) {
        let heard = self.conversation(bytes);
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        let is_whole = |line: &&[u8]| line.ends_with(b"\n") && line.len() <= LONGEST;
        let whole = lines.clone().take_while(is_whole).count();
        let has_more = lines.count() > whole;
        let answers: Vec<_> = heard.lines().collect();
        let expected = whole + usize::from(has_more);
        // Where it ends the conversation with something left to read, the kernel may throw away what was not heard.
        assert!(
            answers.len() == expected || has_more && answers.len() < expected,
            "{} of {expected}",
            answers.len()
        );
        for answer in &answers {
            let answer: serde_json::Value = serde_json::from_str(answer).expect("JSON");
            assert_eq!(answer.as_object().map(serde_json::Map::len), Some(1), "{answer}");
        }
        if has_more && answers.len() == expected {
            assert!(
                answers[expected - 1].contains("a request is one line of at most 4096 bytes"),
                "{answers:?}"
            );
        }
        assert_eq!(self.conversation(b"{\"sync\":{}}\n"), "{\"done\":{}}\n");
    }

    fn conversation(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(&self.path).expect("it listens");
        // Answers are read while the request is written: neither waits for the other for ever.
        let mut writer = stream.try_clone().expect("a descriptor");
        let mut heard = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // It may hang up before it has read everything.
                let _ = writer.write_all(bytes);
                let _ = writer.shutdown(Shutdown::Write);
            });
            let _ = stream.read_to_end(&mut heard);
        });
        String::from_utf8(heard).expect("answers are text")
    }
}
