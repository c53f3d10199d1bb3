//! The way to the files, and the loop that runs clients on it: in real time and in virtual time the same.

use crate::client::Client;
use crate::operation::{Answer, Operation};
use crate::report::ClientReport;
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
    let (mut outcomes, mut asks) = (Vec::new(), Vec::new());
    loop {
        let now = transport.now();
        tick(now.saturating_since(start), clients);
        if now >= end || clients.iter().all(Client::is_finished) {
            break;
        }
        for (index, client) in clients.iter_mut().enumerate() {
            client.act(now, &mut asks);
            for (tag, operation) in asks.drain(..) {
                transport.submit(Ask { client: index, tag, operation })?;
            }
        }
        let next = clients.iter().filter_map(Client::next_event).min().unwrap_or(end);
        transport.wait(next.min(end).min(now + TICK), &mut outcomes)?;
        let now = transport.now();
        for Outcome { client, tag, answer } in outcomes.drain(..) {
            clients[client].completed(now, tag, answer);
        }
    }
    Ok(clients.iter().map(Client::report).collect())
}
