//! Where the answer to a request goes: back into its ring's entry, or by writev(2) to `/dev/fuse`.

use crate::abi;
use crate::connection::Connection;
use crate::ring::slot::{Body, Slot};
use crate::watch::Unanswered;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;
use zerocopy::{Immutable, IntoBytes};

/// Data are copied into a ring in pieces of this size: for larger ones the C library's memcpy may go past the processor's
/// cache, where the kernel finds them for the copy that follows.
const COPY_BYTES: usize = 256 << 10;

/// Below this errors are that the kernel takes from a filesystem.
const MOST_ERRNO: i32 = 512;

/// The way back to the kernel.
pub(crate) enum Route {
    /// The request came through a ring.
    Ring(Slot),
    /// It was read from `/dev/fuse`.
    Device(Arc<Connection>),
    /// It came from no kernel.
    Hearer(Box<dyn FnOnce(Option<Answer>) -> bool + Send>),
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
        Self::taken_if(move |answer| {
            hear(answer);
            true
        })
    }

    /// As [`to`](Self::to), and `hear` says whether it takes the answer as a kernel does, or refuses it.
    pub fn taken_if(hear: impl FnOnce(Option<Answer>) -> bool + Send + 'static) -> Self {
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

    /// Done, with a structure that gives the client something. `take_back` is called, on this thread and before this returns, if the
    /// client does not get it. A ring refuses nothing as long as it lasts, and then all of the connection ends.
    pub fn value_or(mut self, value: &(impl IntoBytes + Immutable), take_back: impl FnOnce()) {
        if !self.finish(0, Body::Copied(value.as_bytes().into())) {
            take_back();
        }
    }

    /// Done, with bytes, of which a copy is kept.
    pub fn bytes(mut self, bytes: &[u8]) {
        self.finish(0, Body::Copied(bytes.into()));
    }

    /// Done, with up to `capacity` bytes that `write` puts where the kernel takes them from, without a copy between
    /// if the request brought no payload. `write` gives back how many there are, or an errno.
    pub fn fill(self, capacity: usize, write: impl FnOnce(&mut [u8]) -> Result<usize, i32>) {
        self.fill_or(capacity, write, |_| {});
    }

    /// As [`fill`](Self::fill), with bytes that give the client something: `take_back` gets them back as with
    /// [`value_or`](Self::value_or).
    pub fn fill_or(
        mut self,
        capacity: usize,
        write: impl FnOnce(&mut [u8]) -> Result<usize, i32>,
        take_back: impl FnOnce(&[u8]),
    ) {
        let room = match &mut self.route {
            Some(Route::Ring(slot)) => slot.room().and_then(|room| room.get_mut(..capacity)),
            _ => None,
        };
        if let Some(room) = room {
            match write(room) {
                Ok(length) => self.finish(0, Body::InPlace(length.min(capacity))),
                Err(errno) => self.finish(errno, Body::Copied(<_>::default())),
            };
            return;
        }
        let mut room = vec![0; capacity];
        match write(&mut room) {
            Ok(length) => {
                room.truncate(length);
                let taken = self
                    .send_from(&[IoSlice::new(&room)])
                    .unwrap_or_else(|| self.finish(0, Body::Copied(room.as_slice().into())));
                if !taken {
                    take_back(&room);
                }
            }
            Err(errno) => {
                self.finish(errno, Body::Copied(<_>::default()));
            }
        }
    }

    /// Done, with what lies in `pieces`. The kernel takes it from there where the request came from `/dev/fuse`; a ring
    /// has a place of its own, and needs a copy.
    pub fn pieces(mut self, pieces: &[IoSlice<'_>]) {
        if self.send_from(pieces).is_some() {
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

    /// Sends what lies in `pieces` from there, if the request came from `/dev/fuse`: then whether its client gets it.
    fn send_from(&mut self, pieces: &[IoSlice<'_>]) -> Option<bool> {
        let Some(Route::Device(device)) = &self.route else { return None };
        let device = Arc::clone(device);
        self.route = None;
        self.end();
        Some(device.reply(self.unique, 0, pieces))
    }

    /// The operation has no answer.
    pub fn none(mut self) {
        match self.route.take() {
            Some(Route::Ring(slot)) => slot.commit(self.unique, 0, Body::Copied(<_>::default())),
            Some(Route::Hearer(hear)) => {
                hear(None);
            }
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

    /// False if the client does not get it.
    fn finish(&mut self, errno: i32, body: Body) -> bool {
        // The kernel knows no others, and would not even end the request.
        let errno = if matches!(errno, 0..MOST_ERRNO) { errno } else { libc::EIO };
        self.end();
        match self.route.take() {
            Some(Route::Ring(slot)) => {
                slot.commit(self.unique, errno, body);
                true
            }
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
                hear(Some(Answer { errno, body }))
            }
            None => true,
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.finish(libc::EIO, Body::Copied(<_>::default()));
    }
}
