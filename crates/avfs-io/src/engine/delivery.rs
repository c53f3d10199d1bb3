//! From the engine to the filesystem: the threads on which completions are delivered.
//!
//! **State:** the completions that nobody has taken yet. **Invariant:** what was pushed before [`Delivery::close`]
//! is delivered, once.

use super::now;
use crate::request::{Completion, CompletionSink};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Enough that one can wait for the filesystem's lock while the other copies.
const THREADS: usize = 2;

pub(super) struct Delivery {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ready: Vec<Completion>,
    closed: bool,
}

impl Delivery {
    pub(super) fn start(sink: Arc<dyn CompletionSink>) -> io::Result<Self> {
        let delivery = Self { queue: Arc::default(), threads: Mutex::default() };
        for number in 0..THREADS {
            let (queue, sink) = (Arc::clone(&delivery.queue), Arc::clone(&sink));
            let thread = thread::Builder::new().name(format!("avfs-done-{number}"));
            match thread.spawn(move || queue.deliver(&*sink)) {
                Ok(handle) => delivery.threads.lock().push(handle),
                Err(error) => {
                    delivery.close();
                    return Err(error);
                }
            }
        }
        Ok(delivery)
    }

    /// Hands over `completions`, which are ready together; leaves it empty.
    pub(super) fn push(&self, completions: &mut Vec<Completion>) {
        if completions.is_empty() {
            return;
        }
        let mut state = self.queue.state.lock();
        if state.closed {
            tracing::debug!(count = completions.len(), "nobody is left to hear of completions");
        } else {
            state.ready.extend_from_slice(completions);
        }
        drop(state);
        completions.clear();
        self.queue.changed.notify_one();
    }

    /// Delivers what is left and ends the threads, except the one that calls it, which ends after this call.
    pub(super) fn close(&self) {
        self.queue.state.lock().closed = true;
        self.queue.changed.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        for handle in threads.into_iter().filter(|handle| handle.thread().id() != thread::current().id()) {
            if handle.join().is_err() {
                tracing::error!("a completion thread has panicked");
            }
        }
    }
}

impl Queue {
    fn deliver(&self, sink: &dyn CompletionSink) {
        let mut batch = Vec::new();
        loop {
            let mut state = self.state.lock();
            while state.ready.is_empty() {
                if state.closed {
                    return;
                }
                self.changed.wait(&mut state);
            }
            std::mem::swap(&mut batch, &mut state.ready);
            drop(state);
            sink.completed(now(), &batch);
            batch.clear();
        }
    }
}
