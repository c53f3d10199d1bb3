//! A volume that is served over one end of a socket, as over `/dev/fuse`; the other is for what plays the kernel.

use avfs_core::mkfs::{self, MkfsOptions};
use avfs_core::volume::{OpenOptions, Volume};
use avfs_fuse::errno::Errors;
use avfs_fuse::protocol::{MAX_BACKGROUND, WANTED};
use avfs_fuse::server::Server;
use avfs_io::device::{FileDevice, OpenMode};
use fuse_wire::abi::InitFlags;
use fuse_wire::{MAX_REQUEST_BYTES, Options, Session, Transport};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::{io, slice};
use units::Bytes;

/// The kernel demands room for its largest request.
pub(crate) const LONGEST_MESSAGE: usize = MAX_REQUEST_BYTES as usize + 4096;

/// Makes a volume in a new file.
pub(crate) fn format(image: &Path) {
    File::create(image).unwrap().set_len(Bytes::from_mib(512).0).unwrap();
    mkfs::make(&FileDevice::open(image, OpenMode::Exclusive).unwrap(), &MkfsOptions::default()).unwrap();
}

pub(crate) fn open(image: &Path) -> Arc<Volume> {
    let options = OpenOptions { cache_size: Some(Bytes::from_mib(64)), ..OpenOptions::default() };
    Volume::open(image, options).unwrap()
}

/// Serves as a mount does. The handshake waits for the kernel, so all of it is on a thread, which ends with the other end of the
/// socket. Gives back how that went.
pub(crate) fn serve(volume: &Arc<Volume>) -> (OwnedFd, JoinHandle<io::Result<()>>) {
    let (kernel, connection) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    let server = Arc::new(Server::new(Arc::clone(volume), Arc::new(Errors::default())));
    let options = Options {
        transport: Transport::Device,
        wanted: WANTED,
        required: InitFlags::empty(),
        max_background: MAX_BACKGROUND,
        overdue: volume.overdue(),
        refusals: Arc::default(),
        buffers: Vec::new(),
    };
    let serve = move || Session::start(connection, &server, options)?.join();
    (kernel, thread::spawn(serve))
}

/// One message. Empty: there are no more.
///
/// # Errors
/// What read(2) says.
pub(crate) fn receive(from: impl AsFd, room: &mut Vec<u8>) -> io::Result<&[u8]> {
    room.resize(LONGEST_MESSAGE, 0);
    let length = rustix::io::readv(from, slice::from_mut(&mut io::IoSliceMut::new(room)))?;
    Ok(&room[..length])
}
