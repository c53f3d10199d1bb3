//! Telling the kernel which of its pages are no longer true.
//!
//! The kernel may block the notification until a page's read is answered, and that read may wait for a thread of
//! ours: so it is sent from a thread that does nothing else. **State:** the thread owns the kernel's end; callers
//! own a queue's. **Invariant:** every `done` is called exactly once, also when the kernel is gone.

use crate::server::node;
use avfs_core::volume::Invalidator;
use fuse_wire::Notifier;
use std::io;
use std::sync::mpsc;
use std::thread;
use units::Ino;

/// The way to the kernel's notifications, whatever transport provides it.
pub trait Notify: Send + 'static {
    /// The kernel drops its pages of `ino` in `offset..offset + length`, and its attributes.
    ///
    /// # Errors
    /// What the kernel says; not that it knows nothing of the inode, which is as good.
    fn invalidate(&self, ino: Ino, offset: i64, length: i64) -> io::Result<()>;
}

impl Notify for Notifier {
    fn invalidate(&self, ino: Ino, offset: i64, length: i64) -> io::Result<()> {
        self.invalidate_pages(node(ino), offset, length)
    }
}

struct Stale {
    ino: Ino,
    offset: u64,
    length: u64,
    done: Box<dyn FnOnce() + Send>,
}

/// Passes invalidations to the kernel from a thread of its own, which ends with the last sender.
pub struct KernelPages {
    queue: mpsc::Sender<Stale>,
}

impl KernelPages {
    /// Starts the thread.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(kernel: impl Notify) -> io::Result<Self> {
        let (queue, stale) = mpsc::channel::<Stale>();
        thread::Builder::new().name("avfs-invalidate".into()).spawn(move || {
            for Stale { ino, offset, length, done } in stale {
                // Past the largest offset the kernel can name it has no pages.
                let start = i64::try_from(offset).unwrap_or(i64::MAX);
                let length = i64::try_from(length).unwrap_or(i64::MAX).min(i64::MAX - start);
                // To the kernel a length of 0 means "to the end".
                if length > 0
                    && let Err(error) = kernel.invalidate(ino, start, length)
                {
                    tracing::warn!(%ino, offset, length, %error, "the kernel keeps pages that are no longer true");
                }
                done();
            }
        })?;
        Ok(Self { queue })
    }
}

impl Invalidator for KernelPages {
    fn invalidate(&self, ino: Ino, offset: u64, length: u64, done: Box<dyn FnOnce() + Send>) {
        if let Err(mpsc::SendError(stale)) = self.queue.send(Stale { ino, offset, length, done }) {
            (stale.done)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that records what it is told, or refuses.
    struct Recorder {
        told: mpsc::Sender<(Ino, i64, i64)>,
        refuse: bool,
    }

    impl Notify for Recorder {
        fn invalidate(&self, ino: Ino, offset: i64, length: i64) -> io::Result<()> {
            self.told.send((ino, offset, length)).unwrap();
            if self.refuse { Err(io::ErrorKind::NotConnected.into()) } else { Ok(()) }
        }
    }

    fn invalidate(pages: &KernelPages, offset: u64, length: u64) -> mpsc::Receiver<()> {
        let (done, is_done) = mpsc::channel();
        pages.invalidate(Ino(5), offset, length, Box::new(move || done.send(()).unwrap()));
        is_done
    }

    #[test]
    fn done_follows_the_notification() {
        let (told, hears) = mpsc::channel();
        let pages = KernelPages::start(Recorder { told, refuse: false }).unwrap();
        invalidate(&pages, 4096, 8192).recv().unwrap();
        assert_eq!(hears.try_recv().unwrap(), (Ino(5), 4096, 8192));
    }

    #[test]
    fn a_kernel_that_refuses_holds_nobody_up() {
        let (told, hears) = mpsc::channel();
        let pages = KernelPages::start(Recorder { told, refuse: true }).unwrap();
        invalidate(&pages, 0, 1).recv().unwrap();
        assert_eq!(hears.recv().unwrap(), (Ino(5), 0, 1));
    }

    #[test]
    fn ranges_stay_within_what_the_kernel_can_name() {
        let (told, hears) = mpsc::channel();
        let pages = KernelPages::start(Recorder { told, refuse: false }).unwrap();
        for (offset, length) in [(0, 0), (u64::MAX, 5), (10, u64::MAX)] {
            invalidate(&pages, offset, length).recv().unwrap();
        }
        drop(pages);
        // Neither an empty range nor one past the end may become "length 0", which would mean the whole file.
        assert_eq!(hears.iter().collect::<Vec<_>>(), [(Ino(5), 10, i64::MAX - 10)]);
    }
}
