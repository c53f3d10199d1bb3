//! Asking what may never answer: a path on a filesystem whose daemon hangs.

use crate::daemon::Apart;
use std::path::Path;
use std::time::Duration;

/// What `ask` gives back, if the filesystem that `path` lies on answers in time. To be called while this process has one
/// thread.
pub(crate) fn within<T>(patience: Duration, path: &Path, ask: impl FnOnce() -> T) -> Option<T> {
    match Apart::look_at(path) {
        Ok(look) if look.ended(patience).is_none() => {
            look.give_up();
            None
        }
        Ok(_) => Some(ask()),
        // No process can be had: then there is no telling.
        Err(_) => Some(ask()),
    }
}
