//! A volume's server, driven without a mount by whatever sequence of requests some bytes say: of every operation, whole, cut off
//! and oversized, about nodes and handles that exist, existed or never did, many at once.
//!
//! Asserted: each request that has an answer is answered once and in time, with what the kernel accepts; the volume then still
//! answers, shuts down, and fsck finds nothing.

use avfs_core::fsck::{self, Mode};
use avfs_core::mkfs::{self, MkfsOptions};
use avfs_core::volume::{OpenOptions, Volume};
use avfs_fuse::errno::Errors;
use avfs_fuse::server::Server;
use avfs_io::device::{FileDevice, OpenMode};
use fuse_wire::abi::{self, opcode};
use fuse_wire::{Answer, Filesystem, Reply, accepts};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use units::Bytes;
use zerocopy::{FromBytes, IntoBytes};

/// Longer than any request takes here, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);
/// So many requests may be unanswered before their answers are looked at.
const AT_ONCE: usize = 8;
const VOLUME: Bytes = Bytes::from_mib(512);

/// Takes numbers from bytes; zeros when there are no more.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// Small, around a power of two, or any.
    fn number(&mut self) -> u64 {
        let byte = self.byte();
        match byte % 4 {
            0 => u64::from(self.byte()),
            1 => u64::from(self.byte()) << 12,
            2 => (1u64 << (self.byte() % 64)).wrapping_sub(u64::from(byte / 4 % 2)),
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        (!all.is_empty()).then(|| all[self.below(all.len())])
    }
}

struct Pending {
    opcode: u32,
    operation: Vec<u8>,
    answer: mpsc::Receiver<Option<Answer>>,
}

/// A volume with its server, and what the kernel would know of it.
pub(crate) struct Driver {
    volume: Arc<Volume>,
    server: Server,
    image: PathBuf,
    _directory: tempfile::TempDir,
    nodes: Vec<u64>,
    handles: Vec<u64>,
    unique: u64,
    pending: Vec<Pending>,
    /// Requests that were answered, and how many of them with success.
    pub(crate) answered: (u64, u64),
}

impl Driver {
    /// With an empty volume.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        File::create(&image).unwrap().set_len(VOLUME.0).unwrap();
        mkfs::make(&FileDevice::open(&image, OpenMode::Exclusive).unwrap(), &MkfsOptions::default()).unwrap();
        let options = OpenOptions { cache_size: Some(Bytes::from_mib(64)), ..OpenOptions::default() };
        let volume = Volume::open(&image, options).unwrap();
        let server = Server::new(Arc::clone(&volume), Arc::new(Errors::default()));
        let (nodes, handles, pending) = (vec![abi::ROOT_ID], Vec::new(), Vec::new());
        Self {
            volume,
            server,
            image,
            _directory: directory,
            nodes,
            handles,
            unique: 0,
            pending,
            answered: (0, 0),
        }
    }

    /// One request after the other, until the bytes are used up.
    pub(crate) fn run(&mut self, bytes: &[u8]) {
        let mut choices = Choices(bytes);
        while !choices.0.is_empty() {
            self.step(&mut choices);
            if self.pending.len() >= AT_ONCE {
                self.settle();
            }
        }
        self.settle();
    }

    fn node(&self, choices: &mut Choices<'_>) -> u64 {
        match choices.byte() % 8 {
            0 => choices.number(),
            1 => abi::ROOT_ID,
            _ => choices.one_of(&self.nodes).unwrap_or(abi::ROOT_ID),
        }
    }

    fn handle(&self, choices: &mut Choices<'_>) -> u64 {
        if choices.byte().is_multiple_of(8) {
            choices.number()
        } else {
            choices.one_of(&self.handles).unwrap_or(0)
        }
    }

    fn name(choices: &mut Choices<'_>) -> Vec<u8> {
        const NAMES: [&[u8]; 12] = [
            b"a",
            b"b",
            b"A",
            b"c.mov",
            b"d",
            b"",
            b".",
            b"..",
            b"x/y",
            b"\xff\xfe",
            b"user.x",
            b"system.posix_acl_access",
        ];
        match choices.byte() % 16 {
            0 => vec![b'n'; choices.below(300)],
            index => NAMES[usize::from(index) % NAMES.len()].to_vec(),
        }
    }

    /// The structure of an operation, and what follows it.
    fn body(&self, code: u32, choices: &mut Choices<'_>) -> (Vec<u8>, Vec<u8>) {
        let mut named = |structure: &[u8]| {
            let mut payload = Self::name(choices);
            payload.push(0);
            (structure.to_vec(), payload)
        };
        match code {
            opcode::LOOKUP | opcode::UNLINK | opcode::RMDIR | opcode::REMOVEXATTR => named(&[]),
            opcode::SYMLINK => {
                let (none, mut payload) = named(&[]);
                payload.extend_from_slice(b"target\0");
                (none, payload)
            }
            opcode::MKDIR => named(abi::MkdirIn { mode: 0o755, umask: 0o22 }.as_bytes()),
            opcode::MKNOD => {
                let mode = [0o100644, 0o010600, 0o020600, 0o140777, 0o777, 0][choices.below(6)];
                let how = abi::MknodIn { mode, rdev: choices.byte().into(), umask: 0, padding: 0 };
                let mut payload = Self::name(choices);
                payload.push(0);
                (how.as_bytes().to_vec(), payload)
            }
            opcode::CREATE => {
                named(abi::CreateIn { flags: libc::O_RDWR, mode: 0o100644, ..Default::default() }.as_bytes())
            }
            opcode::RENAME | opcode::RENAME2 => {
                let newdir = self.node(choices);
                let how = abi::Rename2In { newdir, flags: u32::from(choices.byte() % 8), padding: 0 };
                let structure = if code == opcode::RENAME { &how.as_bytes()[..8] } else { how.as_bytes() };
                let payload = [Self::name(choices), b"\0".into(), Self::name(choices), b"\0".into()].concat();
                (structure.to_vec(), payload)
            }
            opcode::LINK => {
                let how = abi::LinkIn { oldnodeid: self.node(choices) };
                let payload = [Self::name(choices), b"\0".into()].concat();
                (how.as_bytes().to_vec(), payload)
            }
            opcode::OPEN | opcode::OPENDIR => {
                let flags =
                    i32::from(choices.byte() % 3) | [0, libc::O_DIRECT, libc::O_NOATIME][choices.below(3)];
                (abi::OpenIn { flags, open_flags: 0 }.as_bytes().to_vec(), Vec::new())
            }
            opcode::READ | opcode::READDIR | opcode::READDIRPLUS => {
                let (fh, offset) = (self.handle(choices), choices.number());
                let size = choices.number() as u32;
                (abi::ReadIn { fh, offset, size, ..Default::default() }.as_bytes().to_vec(), Vec::new())
            }
            opcode::WRITE => {
                let (fh, offset) = (self.handle(choices), choices.number());
                let data = vec![choices.byte(); 1 << (choices.byte() % 18)];
                let flags = if choices.byte().is_multiple_of(8) { libc::O_DSYNC } else { 0 };
                let (size, write_flags) = (data.len() as u32, u32::from(choices.byte() % 8));
                let how = abi::WriteIn { fh, offset, size, write_flags, flags, ..Default::default() };
                (how.as_bytes().to_vec(), data)
            }
            opcode::RELEASE | opcode::FLUSH => {
                let fh = self.handle(choices);
                (abi::ReleaseIn { fh, ..Default::default() }.as_bytes().to_vec(), Vec::new())
            }
            opcode::SETATTR => {
                let how = abi::SetattrIn {
                    valid: choices.number() as u32,
                    size: choices.number(),
                    mode: choices.number() as u32,
                    uid: choices.byte().into(),
                    mtime: choices.number() as i64,
                    mtimensec: choices.number() as u32 % 1_000_000_000,
                    ..Default::default()
                };
                (how.as_bytes().to_vec(), Vec::new())
            }
            opcode::SETXATTR => {
                let value = vec![choices.byte(); choices.below(200)];
                let how = abi::SetxattrIn {
                    size: value.len() as u32,
                    flags: i32::from(choices.byte() % 4),
                    ..Default::default()
                };
                let payload = [Self::name(choices), b"\0".into(), value].concat();
                (how.as_bytes().to_vec(), payload)
            }
            opcode::GETXATTR => named(abi::GetxattrIn { size: 100, padding: 0 }.as_bytes()),
            opcode::FALLOCATE => {
                let mode = i32::from(choices.byte() % 32);
                let (fh, offset, length) = (self.handle(choices), choices.number(), choices.number());
                (abi::FallocateIn { fh, offset, length, mode, padding: 0 }.as_bytes().to_vec(), Vec::new())
            }
            opcode::LSEEK => {
                let how = abi::LseekIn {
                    fh: self.handle(choices),
                    offset: choices.number() as i64,
                    whence: i32::from(choices.byte() % 6),
                    padding: 0,
                };
                (how.as_bytes().to_vec(), Vec::new())
            }
            opcode::COPY_FILE_RANGE => {
                let how = abi::CopyFileRangeIn {
                    fh_in: self.handle(choices),
                    off_in: choices.number(),
                    nodeid_out: self.node(choices),
                    fh_out: self.handle(choices),
                    off_out: choices.number(),
                    len: choices.number(),
                    flags: 0,
                };
                (how.as_bytes().to_vec(), Vec::new())
            }
            opcode::FORGET => (abi::ForgetIn { nlookup: choices.number() }.as_bytes().to_vec(), Vec::new()),
            opcode::BATCH_FORGET => {
                let one = abi::ForgetOne { nodeid: self.node(choices), nlookup: choices.number() };
                let count = choices.number() as u32 % 3;
                (abi::BatchForgetIn { count, dummy: 0 }.as_bytes().to_vec(), one.as_bytes().repeat(2))
            }
            opcode::INTERRUPT => {
                let unique = self.unique.wrapping_sub(2 * u64::from(choices.byte() % 16));
                (abi::InterruptIn { unique }.as_bytes().to_vec(), Vec::new())
            }
            opcode::IOCTL => {
                let how = abi::IoctlIn {
                    fh: self.handle(choices),
                    cmd: choices.number() as u32,
                    out_size: choices.byte().into(),
                    in_size: 16,
                    ..Default::default()
                };
                (how.as_bytes().to_vec(), vec![choices.byte(); 16])
            }
            // Of the others any bytes.
            _ => {
                let size = abi::operation_size(code).unwrap_or(choices.below(64));
                ((0..size).map(|_| choices.byte()).collect(), Vec::new())
            }
        }
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let code = match choices.byte() {
            255 => choices.number() as u32,
            // The kernel's last request closes the volume, and would make all that follow short. It is among those above.
            byte => Some(opcode::ALL[usize::from(byte) % opcode::ALL.len()])
                .filter(|code| *code != opcode::DESTROY)
                .unwrap_or(opcode::GETATTR),
        };
        let nodeid = self.node(choices);
        let (mut operation, mut payload) = self.body(code, choices);
        match choices.byte() {
            // Cut off, or with more behind it than belongs to it.
            byte @ 0..16 => operation.truncate(operation.len() * usize::from(byte) / 16),
            byte @ 16..32 => payload.truncate(payload.len() * usize::from(byte - 16) / 16),
            32..40 => payload.resize(payload.len() + 5000, b'z'),
            _ => {}
        }
        self.unique += 2;
        let header = abi::InHeader {
            len: (size_of::<abi::InHeader>() + operation.len() + payload.len()) as u32,
            opcode: code,
            unique: self.unique,
            nodeid,
            uid: u32::from(choices.byte() % 2),
            pid: 1,
            ..Default::default()
        };
        let (hear, answer) = mpsc::channel();
        // Sent twice, it would be heard twice.
        let reply = Reply::to(move |answer| hear.send(answer).unwrap());
        self.server.handle(&header, &operation, &payload, reply);
        self.pending.push(Pending { opcode: code, operation, answer });
    }

    /// Waits for all answers, and remembers what they name.
    fn settle(&mut self) {
        for Pending { opcode: code, operation, answer: hears } in std::mem::take(&mut self.pending) {
            let name = opcode::name(code);
            let answer = hears.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{name} is not answered"));
            assert!(hears.recv_timeout(PATIENCE).is_err(), "{name} is answered twice");
            let has_none = matches!(code, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT);
            let Some(answer) = answer else {
                assert!(has_none, "{name} ends without an answer");
                continue;
            };
            if has_none {
                assert_ne!(answer.errno, 0, "{name} is answered");
                continue;
            }
            accepts(code, &operation, &answer).unwrap_or_else(|why| panic!("the kernel refuses: {why}"));
            self.answered.0 += 1;
            self.answered.1 += u64::from(answer.errno == 0);
            self.remember(code, &answer);
        }
    }

    fn remember(&mut self, code: u32, answer: &Answer) {
        const MOST: usize = 64;
        if answer.errno != 0 {
            return;
        }
        let makes_entry = matches!(
            code,
            opcode::LOOKUP | opcode::SYMLINK | opcode::MKNOD | opcode::MKDIR | opcode::LINK | opcode::CREATE
        );
        if makes_entry && let Ok((entry, _)) = abi::EntryOut::read_from_prefix(&answer.body) {
            self.nodes.truncate(MOST - 1);
            self.nodes.push(entry.nodeid);
        }
        let opened = match code {
            opcode::OPEN => abi::OpenOut::read_from_prefix(&answer.body).ok().map(|(open, _)| open),
            opcode::CREATE => abi::CreateOut::read_from_prefix(&answer.body).ok().map(|(made, _)| made.open),
            _ => None,
        };
        if let Some(open) = opened {
            self.handles.truncate(MOST - 1);
            self.handles.push(open.fh);
        }
    }

    /// What must hold after any sequence.
    pub(crate) fn finish(self) {
        let Self { volume, server, image, .. } = self;
        let (hear, answer) = mpsc::channel();
        let header = abi::InHeader { opcode: opcode::GETATTR, nodeid: abi::ROOT_ID, ..Default::default() };
        server.handle(
            &header,
            abi::GetattrIn::default().as_bytes(),
            &[],
            Reply::to(move |answer| hear.send(answer).unwrap()),
        );
        let root = answer.recv_timeout(PATIENCE).expect("the volume still answers").unwrap();
        assert_eq!(root.errno, 0);
        drop(server);
        volume.shutdown().unwrap();
        drop(volume);
        let device = FileDevice::open(&image, OpenMode::ReadOnly).unwrap();
        let report = fsck::check(&device, Mode::Check).unwrap();
        assert_eq!(report.exit_code(), 0, "{report:?}");
    }
}
