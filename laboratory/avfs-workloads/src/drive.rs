//! The way to the files, and the loop that runs clients on it: in real time and in virtual time the same.

use crate::client::Client;
use crate::operation::{Answer, Operation};
use crate::report::ClientReport;
use std::collections::BTreeSet;
use thiserror::Error;
use units::{Duration, Instant};

/// An operation of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Which client.
    pub client: usize,
    /// The client's name for it.
    pub tag: u64,
    /// What.
    pub operation: Operation,
}

/// An operation's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Which client.
    pub client: usize,
    /// The client's name for the operation.
    pub tag: u64,
    /// What came of it; an error in words.
    pub answer: Result<Answer, String>,
}

/// The way to the files is gone.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct TransportError(Box<dyn std::error::Error + Send + Sync>);

impl TransportError {
    /// With its cause.
    pub fn new(cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Box::new(cause))
    }
}

/// The way to the files, for one run.
pub trait Transport {
    /// Its time.
    fn now(&self) -> Instant;
    /// The largest read or write in one operation, bytes, at least 64 KiB.
    fn largest(&self) -> u32;
    /// Starts an operation.
    ///
    /// # Errors
    /// When nothing can be asked any more.
    fn submit(&mut self, ask: Ask) -> Result<(), TransportError>;
    /// Waits for outcomes until an instant, or shorter.
    ///
    /// # Errors
    /// When nothing can be asked any more.
    fn wait(&mut self, until: Instant, outcomes: &mut Vec<Outcome>) -> Result<(), TransportError>;
    /// What a client has counted so far, after each of its steps.
    fn counted(&mut self, client: usize, report: &ClientReport) {
        let _ = (client, report);
    }
}

/// Runs the clients for a time, counted from now, or until all have finished; `tick` is called at least ten times a second with the time gone.
/// A client's index in `clients` is its number at the transport.
///
/// # Errors
/// When the transport fails. What goes wrong with a single operation is in the client's report.
pub fn run(
    transport: &mut dyn Transport,
    clients: &mut [Client],
    duration: Duration,
    mut tick: impl FnMut(Duration, &[Client]),
) -> Result<Vec<ClientReport>, TransportError> {
    const TICK: Duration = Duration::from_millis(100);
    let start = transport.now();
    let end = start + duration;
    let largest = transport.largest();
    for client in clients.iter_mut() {
        client.begin(start, largest);
    }
    let mut agenda = Agenda::of(clients.len());
    let (mut outcomes, mut asks) = (Vec::new(), Vec::new());
    let mut unfinished = clients.iter().filter(|client| !client.is_finished()).count();
    let mut looked_at = start;
    loop {
        let now = transport.now();
        tick(now.saturating_since(start), clients);
        if now >= end || unfinished == 0 {
            break;
        }
        looked_at = now;
        for index in agenda.due(now) {
            let client = &mut clients[index];
            let had_finished = client.is_finished();
            client.act(now, &mut asks);
            unfinished -= usize::from(client.is_finished() && !had_finished);
            transport.counted(index, client.so_far());
            for (tag, operation) in asks.drain(..) {
                transport.submit(Ask { client: index, tag, operation })?;
            }
            agenda.note(index, client.next_event());
        }
        let next = agenda.next().unwrap_or(end);
        transport.wait(next.min(end).min(now + TICK), &mut outcomes)?;
        let now = transport.now();
        for Outcome { client: index, tag, answer } in outcomes.drain(..) {
            let client = &mut clients[index];
            let had_finished = client.is_finished();
            client.completed(now, tag, answer);
            unfinished -= usize::from(client.is_finished() && !had_finished);
            transport.counted(index, client.so_far());
            agenda.wake(index);
        }
    }
    Ok(clients.iter().map(|client| client.report(looked_at)).collect())
}

/// Which client acts when.
#[derive(Debug)]
struct Agenda {
    /// To act as soon as they are asked: something came for them.
    woken: BTreeSet<usize>,
    events: BTreeSet<(Instant, usize)>,
    /// Of each client, its place in `events`.
    next: Vec<Option<Instant>>,
}

impl Agenda {
    /// All are to act at once.
    fn of(clients: usize) -> Self {
        Self { woken: (0..clients).collect(), events: BTreeSet::new(), next: vec![None; clients] }
    }

    /// Those that are to act now, in the order of their numbers.
    fn due(&mut self, now: Instant) -> BTreeSet<usize> {
        while let Some(&(_, client)) = self.events.first().filter(|(at, _)| *at <= now) {
            self.events.pop_first();
            self.next[client] = None;
            self.woken.insert(client);
        }
        std::mem::take(&mut self.woken)
    }

    fn wake(&mut self, client: usize) {
        self.woken.insert(client);
    }

    fn note(&mut self, client: usize, next: Option<Instant>) {
        if let Some(before) = std::mem::replace(&mut self.next[client], next) {
            self.events.remove(&(before, client));
        }
        self.events.extend(next.map(|next| (next, client)));
    }

    fn next(&self) -> Option<Instant> {
        self.events.first().map(|(at, _)| *at)
    }
}
