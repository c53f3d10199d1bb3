//! Where the answer to a request goes: back into its ring's entry, or by writev(2) to `/dev/fuse`.

use crate::abi;
use crate::device::Device;
use crate::ring::queue::{Body, Slot};
use crate::watch::Unanswered;
use smallvec::SmallVec;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;
use zerocopy::{Immutable, IntoBytes};

/// Data are copied into a ring in pieces of this size: for larger ones the C library's memcpy may go past the processor's
/// cache, where the kernel finds them for the copy that follows.
const COPY_BYTES: usize = 256 << 10;

/// Below this errors are that the kernel takes from a filesystem.
const MOST_ERRNO: i32 = 512;

/// Pieces of a reply, most of which have one.
pub type Pieces<'a> = SmallVec<[IoSlice<'a>; 4]>;

/// The way back to the kernel.
pub(crate) enum Route {
    /// The request came through a ring.
    Ring(Slot),
    /// It was read from `/dev/fuse`.
    Device(Arc<Device>),
    /// It came from no kernel.
    Hearer(Box<dyn FnOnce(Option<Answer>) + Send>),
}

/// What a filesystem answered to a request that came from no kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 0 for success.
    pub errno: i32,
    /// What follows the header.
    pub body: Vec<u8>,
}

/// One request's reply. Sent once, from any thread; dropped without, it says EIO, so that nobody waits for ever.
pub struct Reply {
    unique: u64,
    route: Option<Route>,
    unanswered: Option<Arc<Unanswered>>,
}

impl Reply {
    /// To a request of a connection, which from now on is one of its unanswered.
    pub(crate) fn new(header: &abi::InHeader, route: Route, unanswered: &Arc<Unanswered>) -> Self {
        unanswered.begin(header, Instant::now());
        Self { unique: header.unique, route: Some(route), unanswered: Some(Arc::clone(unanswered)) }
    }

    /// To a request that comes from no kernel, as in tests: `hear` is called once, with `None` if the operation has no
    /// answer.
    pub fn to(hear: impl FnOnce(Option<Answer>) + Send + 'static) -> Self {
        Self { unique: 0, route: Some(Route::Hearer(Box::new(hear))), unanswered: None }
    }

    /// Done, and nothing more to say.
    pub fn ok(self) {
        self.bytes(&[]);
    }

    /// Not done. `errno` is positive.
    pub fn error(mut self, errno: i32) {
        self.finish(errno, Body::Copied(<_>::default()));
    }

    /// Done, with a structure of the protocol.
    pub fn value(self, value: &(impl IntoBytes + Immutable)) {
        self.bytes(value.as_bytes());
    }

    /// Done, with bytes, of which a copy is kept.
    pub fn bytes(mut self, bytes: &[u8]) {
        self.finish(0, Body::Copied(bytes.into()));
    }

    /// Done, with up to `capacity` bytes that `write` puts where the kernel takes them from, without a copy between
    /// if the request brought no payload. `write` gives back how many there are, or an errno.
    pub fn fill(mut self, capacity: usize, write: impl FnOnce(&mut [u8]) -> Result<usize, i32>) {
        let room = match &mut self.route {
            Some(Route::Ring(slot)) => slot.room().and_then(|room| room.get_mut(..capacity)),
            _ => None,
        };
        let (errno, body) = match room {
            Some(room) => match write(room) {
                Ok(length) => (0, Body::InPlace(length.min(capacity))),
                Err(errno) => (errno, Body::Copied(<_>::default())),
            },
            None => {
                let mut room = vec![0; capacity];
                match write(&mut room) {
                    Ok(length) => {
                        room.truncate(length);
                        (0, Body::Copied(room.into()))
                    }
                    Err(errno) => (errno, Body::Copied(<_>::default())),
                }
            }
        };
        self.finish(errno, body);
    }

    /// Done, with what lies in `pieces`. The kernel takes it from there where the request came from `/dev/fuse`; a ring
    /// has a place of its own, and needs a copy.
    pub fn pieces(mut self, pieces: &[IoSlice<'_>]) {
        if let Some(Route::Device(device)) = &self.route {
            let device = Arc::clone(device);
            self.route = None;
            self.end();
            device.reply(self.unique, 0, pieces);
            return;
        }
        self.fill(pieces.iter().map(|piece| piece.len()).sum(), |room| {
            let mut rest = room;
            for piece in pieces {
                let (place, behind) = rest.split_at_mut(piece.len());
                for (to, from) in place.chunks_mut(COPY_BYTES).zip(piece.chunks(COPY_BYTES)) {
                    to.copy_from_slice(from);
                }
                rest = behind;
            }
            Ok(pieces.iter().map(|piece| piece.len()).sum())
        });
    }

    /// The operation has no answer.
    pub fn none(mut self) {
        match self.route.take() {
            Some(Route::Ring(slot)) => slot.commit(self.unique, 0, Body::Copied(<_>::default())),
            Some(Route::Hearer(hear)) => hear(None),
            Some(Route::Device(_)) | None => {}
        }
        self.end();
    }

    /// It is one of the unanswered no more. Before the answer is sent: then the client is gone.
    fn end(&mut self) {
        if let Some(unanswered) = self.unanswered.take() {
            unanswered.end(self.unique);
        }
    }

    fn finish(&mut self, errno: i32, body: Body) {
        // The kernel knows no others, and would not even end the request.
        let errno = if matches!(errno, 0..MOST_ERRNO) { errno } else { libc::EIO };
        self.end();
        match self.route.take() {
            Some(Route::Ring(slot)) => slot.commit(self.unique, errno, body),
            Some(Route::Device(device)) => match &body {
                Body::Copied(bytes) => device.reply(self.unique, errno, &[IoSlice::new(bytes)]),
                // Only a ring has a place.
                Body::InPlace(_) => device.reply(self.unique, libc::EIO, &[]),
            },
            Some(Route::Hearer(hear)) => {
                let body = match body {
                    Body::Copied(bytes) => bytes.to_vec(),
                    Body::InPlace(_) => Vec::new(),
                };
                hear(Some(Answer { errno, body }));
            }
            None => {}
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.finish(libc::EIO, Body::Copied(<_>::default()));
    }
}
