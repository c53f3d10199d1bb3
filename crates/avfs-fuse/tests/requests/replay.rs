//! What a real kernel said, said again to a server without a mount.

use crate::connection;
use crate::kernel::Kernel;
use crate::recording::{Event, Recording, Request, Said};
use crate::tree;
use avfs_core::fsck::{self, Mode};
use avfs_io::device::{FileDevice, OpenMode};
use fuse_wire::abi::{self, opcode};
use fuse_wire::accepts;
use std::collections::HashMap;

/// What must hold of the replies beside that the kernel takes them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// They and the volume are what they were when this was recorded.
    ToTheRecording,
    /// Nothing more: some requests were dropped, cut off or changed, as numbers from this seed say.
    ToTheProtocol(u64),
}

/// How many replies were looked at.
pub(crate) fn replay(recording: &Recording, held: Held) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    connection::format(&image);
    let volume = connection::open(&image);
    let (socket, served) = connection::serve(&volume);
    let mut again = Again {
        kernel: Kernel::new(socket),
        asked: HashMap::new(),
        nodes: HashMap::new(),
        handles: HashMap::new(),
        heard: 0,
        changes: match held {
            Held::ToTheRecording => None,
            Held::ToTheProtocol(seed) => Some(Random(seed)),
        },
    };
    for (number, event) in recording.events.iter().enumerate() {
        match event {
            Event::Asked(request) => again.ask(request),
            Event::Answered { unique, said } => again.hear(number, *unique, said, held),
        }
    }
    let Again { kernel, heard, .. } = again;
    kernel.end();
    served.join().unwrap().expect("the session ends with its kernel");
    // DESTROY has closed it.
    if !recording.events.iter().any(is_destroy) {
        volume.shutdown().unwrap();
    }
    drop(volume);
    let report = fsck::check(&FileDevice::open(&image, OpenMode::ReadOnly).unwrap(), Mode::Check).unwrap();
    assert_eq!(report.exit_code(), 0, "{}: {report:?}", recording.title);
    if held == Held::ToTheRecording {
        let volume = connection::open(&image);
        let holds = tree::of(&volume);
        volume.shutdown().unwrap();
        for (line, recorded) in holds.iter().zip(&recording.tree) {
            assert_eq!(line, recorded, "{}", recording.title);
        }
        assert_eq!(holds.len(), recording.tree.len(), "{}", recording.title);
    }
    heard
}

fn is_destroy(event: &Event) -> bool {
    matches!(event, Event::Asked(request) if request.header.opcode == opcode::DESTROY)
}

/// A kernel as it was recorded, at another server.
struct Again {
    kernel: Kernel,
    asked: HashMap<u64, Request>,
    /// What numbers of the recording are now.
    nodes: HashMap<u64, u64>,
    handles: HashMap<u64, u64>,
    heard: usize,
    changes: Option<Random>,
}

impl Again {
    fn ask(&mut self, recorded: &Request) {
        let mut request = recorded.about(&self.nodes, &self.handles);
        if let Some(random) = &mut self.changes
            && !matches!(request.header.opcode, opcode::INIT | opcode::DESTROY)
            && !random.change(&mut request)
        {
            return;
        }
        self.kernel.send(&request.header, &request.body);
        self.asked.insert(recorded.header.unique, request);
    }

    fn hear(&mut self, number: usize, unique: u64, recorded: &Said, held: Held) {
        let Some(request) = self.asked.remove(&unique) else {
            assert!(held != Held::ToTheRecording, "{unique:x} was not asked");
            return;
        };
        let answer = self.kernel.hear(unique);
        let code = request.header.opcode;
        let what = format!("event {number}: {} of node {}", opcode::name(code), request.header.nodeid);
        let said = Said::of(&request, answer.errno, &answer.body);
        if code != opcode::INIT {
            let size = abi::operation_size(code).unwrap_or(0);
            let taken = accepts(code, &request.body[..size], &answer);
            taken.unwrap_or_else(|why| panic!("{what}: the kernel refuses: {why}"));
        }
        if held == Held::ToTheRecording {
            assert!(said.is_like(recorded), "{what}: {said:x?} instead of {recorded:x?}");
        }
        self.nodes.extend(recorded.nodes.iter().copied().zip(said.nodes));
        self.handles.extend(recorded.handle.zip(said.handle));
        self.heard += 1;
    }
}

/// Numbers that a seed stands for.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % end
    }

    /// Leaves most requests alone. False: this one is not sent. The structure of an operation stays whole: the kernel's always is.
    fn change(&mut self, request: &mut Request) -> bool {
        let structure = abi::operation_size(request.header.opcode).unwrap_or(0);
        let length = request.body.len();
        match self.below(32) {
            0 => return false,
            1 if length > structure => request.body.truncate(structure + self.below(length - structure)),
            2 => request.body.resize(length + 3000, b'z'),
            3..6 if length > 0 => request.body[self.below(length)] ^= 1 << self.below(8),
            6 => request.header.nodeid = self.below(20) as u64,
            7 => request.header.uid ^= 1000,
            _ => {}
        }
        true
    }
}
