//! All clients' connections in one loop.

use super::connection::{Connection, SmbError};
use crate::clock::Clock;
use avfs_workloads::{Ask, Outcome, Transport, TransportError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::SocketAddr;
use units::Instant;

/// Connections to one share, a client each.
pub struct SmbTransport {
    clock: Clock,
    connections: Vec<Connection>,
    scratch: Vec<u8>,
    /// Outcomes that are known already.
    known: Vec<Outcome>,
}

impl SmbTransport {
    /// Connects `clients` clients to a share; each one looks like a machine of its own to the server.
    ///
    /// # Errors
    /// When one of them is refused.
    pub fn connect(server: SocketAddr, share: &str, clients: usize) -> Result<Self, SmbError> {
        /// Payload is thrown away in pieces of this size.
        const SCRATCH: usize = 1 << 20;
        let connect = |client: usize| {
            let mut name = *b"avfs-laboratory\0";
            name[12..].copy_from_slice(&(client as u32).to_le_bytes());
            // Runs that follow each other are other machines, too.
            name[..4].copy_from_slice(&std::process::id().to_le_bytes());
            Connection::open(server, share, name)
        };
        let connections = (0..clients).map(connect).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { clock: Clock::start(), connections, scratch: vec![0; SCRATCH], known: Vec::new() })
    }
}

impl Transport for SmbTransport {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn largest(&self) -> u32 {
        self.connections.iter().map(Connection::largest).min().unwrap_or(1 << 16)
    }

    fn submit(&mut self, ask: Ask) -> Result<(), TransportError> {
        let Ask { client, tag, operation } = ask;
        self.connections[client].submit(tag, operation).map_err(TransportError::new)
    }

    fn wait(&mut self, until: Instant, outcomes: &mut Vec<Outcome>) -> Result<(), TransportError> {
        let left = until.saturating_since(self.clock.now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut descriptors: Vec<PollFd<'_>> = self
            .connections
            .iter()
            .map(|connection| {
                let send = if connection.wants_to_send() { PollFlags::OUT } else { PollFlags::empty() };
                PollFd::new(connection.stream(), PollFlags::IN | send)
            })
            .collect();
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(TransportError::new(std::io::Error::from(error))),
        }
        let events: Vec<PollFlags> = descriptors.iter().map(PollFd::revents).collect();
        let mut answered = Vec::new();
        for (client, (connection, events)) in self.connections.iter_mut().zip(events).enumerate() {
            if events.contains(PollFlags::OUT) {
                connection.send().map_err(TransportError::new)?;
            }
            if !(events - PollFlags::OUT).is_empty() {
                connection.receive(&mut self.scratch, &mut answered).map_err(TransportError::new)?;
            }
            let known = answered.drain(..).map(|(tag, answer)| Outcome { client, tag, answer });
            self.known.extend(known);
        }
        outcomes.append(&mut self.known);
        Ok(())
    }
}
