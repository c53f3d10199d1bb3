//! Where the answer to a request goes: back into its ring's entry, or by write(2) to `/dev/fuse`.

use super::device::Device;
use super::queue::{Body, Slot};
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// The way back to the kernel.
pub(super) enum Route {
    /// The request came through a ring.
    Ring(Slot),
    /// It was read from `/dev/fuse`.
    Device(Arc<Device>),
}

/// One request's reply. Sent once, from any thread; dropped without, it says EIO, so that nobody waits for ever.
pub(super) struct Reply {
    unique: u64,
    route: Option<Route>,
}

impl Reply {
    pub(super) fn new(unique: u64, route: Route) -> Self {
        Self { unique, route: Some(route) }
    }

    /// Done, and nothing more to say.
    pub(super) fn ok(self) {
        self.bytes(&[]);
    }

    /// Not done. `errno` is positive.
    pub(super) fn error(mut self, errno: i32) {
        self.finish(errno, Body::Copied(<_>::default()));
    }

    /// Done, with a structure of the protocol.
    pub(super) fn value(self, value: &(impl IntoBytes + Immutable)) {
        self.bytes(value.as_bytes());
    }

    /// Done, with bytes, of which a copy is kept.
    pub(super) fn bytes(mut self, bytes: &[u8]) {
        self.finish(0, Body::Copied(bytes.into()));
    }

    /// Done, with up to `capacity` bytes that `write` puts where the kernel takes them from, without a copy between
    /// if the request brought no payload. `write` gives back how many there are, or an errno.
    pub(super) fn fill(mut self, capacity: usize, write: impl FnOnce(&mut [u8]) -> Result<usize, i32>) {
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

    /// The operation has no answer.
    pub(super) fn none(mut self) {
        if let Some(Route::Ring(_)) = self.route {
            self.finish(0, Body::Copied(<_>::default()));
        }
        self.route = None;
    }

    fn finish(&mut self, errno: i32, body: Body) {
        match self.route.take() {
            Some(Route::Ring(slot)) => slot.commit(self.unique, errno, body),
            Some(Route::Device(device)) => match &body {
                Body::Copied(bytes) => device.reply(self.unique, errno, bytes),
                // Only a ring has a place.
                Body::InPlace(_) => device.reply(self.unique, libc::EIO, &[]),
            },
            None => {}
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.finish(libc::EIO, Body::Copied(<_>::default()));
    }
}
