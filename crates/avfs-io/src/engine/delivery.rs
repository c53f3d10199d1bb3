//! From the engine to the filesystem: the threads on which completions are delivered.
//!
//! **State:** the completions and promises that were not taken yet. **Invariants:** what was pushed before [`Delivery::close`] is
//! delivered, once; promises in their order.

use super::start::now;
use crate::engine_core::{Incident, Promise};
use crate::request::{Completion, CompletionSink};

use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Completion threads: one can wait for the filesystem's lock while the other copies. An operator's target.
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
    promises: Vec<Promise>,
    incidents: Vec<Incident>,
    /// One of the threads is telling promises: the other may not overtake it.
    promising: bool,
    closed: bool,
}

impl State {
    fn has_promises(&self) -> bool {
        let is_nothing = self.promises.is_empty() && self.incidents.is_empty();
        !is_nothing && !self.promising
    }
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

    /// Hands over `completions`, which are ready together, and `promises` and `incidents`, which are empty then. False, with all
    /// of it dropped, when there is no sink left.
    pub(super) fn push(
        &self,
        completions: impl ExactSizeIterator<Item = Completion>,
        promises: &mut Vec<Promise>,
        incidents: &mut Vec<Incident>,
    ) -> bool {
        if completions.len() == 0 && promises.is_empty() && incidents.is_empty() {
            return true;
        }
        let mut state = self.queue.state.lock();
        let is_open = !state.closed;
        if is_open {
            state.ready.extend(completions);
            state.promises.extend_from_slice(promises);
            state.incidents.extend_from_slice(incidents);
        }
        drop(state);
        promises.clear();
        incidents.clear();
        self.queue.changed.notify_one();
        is_open
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
        let (mut batch, mut promises, mut incidents) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let mut state = self.state.lock();
            while state.ready.is_empty() && !state.has_promises() {
                if state.closed {
                    return;
                }
                self.changed.wait(&mut state);
            }
            std::mem::swap(&mut batch, &mut state.ready);
            if state.has_promises() {
                std::mem::swap(&mut promises, &mut state.promises);
                std::mem::swap(&mut incidents, &mut state.incidents);
                state.promising = true;
            }
            drop(state);
            if !promises.is_empty() || !incidents.is_empty() {
                if !promises.is_empty() {
                    sink.promised(now(), &promises);
                    promises.clear();
                }
                if !incidents.is_empty() {
                    sink.happened(now(), &incidents);
                    incidents.clear();
                }
                self.state.lock().promising = false;
                self.changed.notify_one();
            }
            if !batch.is_empty() {
                sink.completed(now(), &batch);
                batch.clear();
            }
        }
    }
}
