//! Records what this kernel asks of a mounted volume, and what it is answered:
//! `cargo run -p avfs-fuse --example record`, as root, writes all files of `crates/avfs-fuse/tests/requests/recorded` anew.
//!
//! It stands between `/dev/fuse` and a session that it serves over a socket, and writes down what passes; no line of what is
//! shipped knows of it. `all`: everything that the server asks for, and much work. The others: a little of each kind, from a kernel
//! that seems not to have a flag (`without-…`), or none but what the server needs (`none`). What is not negotiated the kernel then
//! does without, so these are the requests that belong to such a handshake.

#[path = "../../tests/requests/client.rs"]
mod client;
#[path = "../../tests/requests/connection.rs"]
mod connection;
#[path = "../../tests/requests/recording.rs"]
#[expect(dead_code, reason = "reading a recording is for the test")]
mod recording;
#[path = "../../tests/requests/tree.rs"]
mod tree;
mod work;

use avfs_fuse::loop_device::LoopDevice;
use avfs_fuse::mount::{Filesystem, Kind, unmount};
use avfs_fuse::protocol::WANTED;
use avfs_io::device::{FileDevice, OpenMode};
use fuse_wire::abi::{self, InitFlags, opcode};
use recording::{Event, Recording, Request, Said};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::collections::{HashMap, HashSet};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;
use std::{fs, io, panic, thread};
use zerocopy::{FromBytes, IntoBytes};

/// The handshake does not do without.
const REQUIRED: InitFlags = InitFlags::SETXATTR_EXT.union(InitFlags::INIT_EXT);

fn main() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/requests/recorded");
    fs::create_dir_all(&directory).unwrap();
    let single = WANTED.iter_names().map(|(name, flag)| (format!("without-{name}"), flag));
    let variants = [("all".into(), InitFlags::empty()), ("none".into(), InitFlags::all() - REQUIRED)];
    for (name, without) in variants.into_iter().chain(single) {
        let recording = record(without);
        recording.write(&directory.join(format!("{name}.gz"))).unwrap();
        println!("{name}: {} events, {} inodes", recording.events.len(), recording.tree.len());
    }
}

/// One mount from INIT to DESTROY, by a kernel that seems not to have what `without` says.
fn record(without: InitFlags) -> Recording {
    let directory = tempfile::tempdir().unwrap();
    let (image, place) = (directory.path().join("image"), directory.path().join("mounted"));
    fs::create_dir(&place).unwrap();
    connection::format(&image);
    let loop_device = LoopDevice::of(&image).unwrap();
    // As a block device, or the kernel would send neither SYNCFS nor DESTROY.
    let filesystem = Filesystem::make(loop_device.path(), MountFlags::empty(), Kind::OfDevice).unwrap();
    drop(loop_device);
    let (kernel, root) = filesystem.split();
    let volume = connection::open(&image);
    let (server, served) = connection::serve(&volume);
    let between = Between { kernel, server, without, state: Mutex::default() };
    thread::scope(|scope| {
        scope.spawn(|| between.pass_replies());
        scope.spawn(|| between.pass_requests());
        root.attach(&place, false).unwrap();
        let worked = panic::catch_unwind(|| work::little(&place, without.is_empty()));
        unmount(&place, UnmountFlags::empty()).unwrap();
        worked.expect("the work is done");
    });
    let State { events, .. } = between.state.into_inner().unwrap();
    drop((between.kernel, between.server));
    served.join().unwrap().unwrap();
    drop(volume);
    // The loop device lets go of the image a moment after it is unmounted.
    while let Err(error) = FileDevice::open(&image, OpenMode::Exclusive) {
        println!("waiting: {error}");
        thread::sleep(Duration::from_millis(100));
    }
    let volume = connection::open(&image);
    let tree = tree::of(&volume);
    volume.shutdown().unwrap();
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let named: Vec<_> = without.iter_names().map(|(name, _)| name).collect();
    Recording { title: format!("kernel {release}, without: {}", named.join(" ")), events, tree }
}

/// What stands between the kernel and the server.
struct Between {
    kernel: OwnedFd,
    server: OwnedFd,
    without: InitFlags,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    events: Vec<Event>,
    asked: HashMap<u64, Request>,
    interrupted: HashSet<u64>,
    /// Replies that wait for their request to be interrupted.
    held: HashMap<u64, Vec<u8>>,
}

impl Between {
    /// Until the kernel has let go of the filesystem.
    fn pass_requests(&self) {
        let mut room = Vec::new();
        loop {
            let bytes = match connection::receive(self.kernel.as_fd(), &mut room) {
                Ok(bytes) => bytes,
                Err(error)
                    if matches!(
                        Errno::from_io_error(&error),
                        Some(Errno::INTR | Errno::NOENT | Errno::AGAIN)
                    ) =>
                {
                    continue;
                }
                Err(_) => break,
            };
            let mut request = Request::parse(bytes).expect("a header");
            let mut state = self.state.lock().unwrap();
            if request.header.opcode == opcode::INIT {
                let offer = abi::InitIn::mut_from_bytes(&mut request.body).expect("an offer");
                offer.flags &= !(self.without.bits() as u32);
                offer.flags2 &= !((self.without.bits() >> 32) as u32);
            }
            state.events.push(Event::Asked(request.clone()));
            let bytes = request.bytes();
            if request.header.opcode == opcode::INTERRUPT {
                let how = abi::InterruptIn::read_from_bytes(&request.body).expect("a number");
                state.interrupted.insert(how.unique);
                if let Some(reply) = state.held.remove(&how.unique) {
                    self.pass_reply(&mut state, &reply);
                }
            } else {
                state.asked.insert(request.header.unique, request);
            }
            drop(state);
            rustix::io::write(&self.server, &bytes).unwrap();
        }
        rustix::net::shutdown(&self.server, rustix::net::Shutdown::Both).unwrap();
    }

    fn pass_replies(&self) {
        let mut room = Vec::new();
        while let Ok(reply @ [_, ..]) = connection::receive(self.server.as_fd(), &mut room) {
            let (header, _) = abi::OutHeader::read_from_prefix(reply).expect("a header");
            let mut state = self.state.lock().unwrap();
            let request = &state.asked[&header.unique].header;
            let is_held = request.uid == work::HELD && request.opcode == opcode::FSYNC;
            if is_held && !state.interrupted.contains(&header.unique) {
                state.held.insert(header.unique, reply.to_vec());
            } else {
                self.pass_reply(&mut state, reply);
            }
        }
    }

    /// First written down, then told: what the kernel asks next stands behind it.
    fn pass_reply(&self, state: &mut State, bytes: &[u8]) {
        let (header, body) = abi::OutHeader::read_from_prefix(bytes).expect("a header");
        let unique = header.unique;
        let request = state.asked.remove(&unique).expect("it was asked");
        let said = Said::of(&request, -header.error, body);
        state.events.push(Event::Answered { unique, said });
        let told: io::Result<usize> =
            rustix::io::writev(&self.kernel, &[IoSlice::new(header.as_bytes()), IoSlice::new(body)])
                .map_err(Into::into);
        if let Err(error) = told {
            eprintln!("the kernel refuses a reply to {}: {error}", opcode::name(request.header.opcode));
        }
    }
}
