//! Requests to a server, one after the other, without a connection.

use avfs_core::volume::Volume;
use avfs_fuse::errno::Errors;
use avfs_fuse::server::Server;
use fuse_wire::abi::{self, opcode};
use fuse_wire::{Answer, Filesystem, Reply};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Client(Server);

impl Client {
    pub(crate) fn new(volume: &Arc<Volume>) -> Self {
        Self(Server::new(Arc::clone(volume), Arc::new(Errors::default())))
    }

    /// What is answered, and whether that reply is taken is `is_taken`.
    pub(crate) fn offered(
        &self,
        code: u32,
        nodeid: u64,
        operation: &[u8],
        payload: &[u8],
        is_taken: bool,
    ) -> Answer {
        let (hear, answer) = mpsc::channel();
        let header = abi::InHeader { opcode: code, nodeid, pid: 1, ..Default::default() };
        let reply = Reply::taken_if(move |answer| {
            hear.send(answer.unwrap_or(Answer { errno: 0, body: Vec::new() })).unwrap();
            is_taken
        });
        self.0.handle(&header, operation, payload, reply);
        answer.recv_timeout(PATIENCE).expect("it is answered")
    }

    /// The body of a success.
    pub(crate) fn ask(&self, code: u32, nodeid: u64, operation: &[u8], payload: &[u8]) -> Vec<u8> {
        let answer = self.offered(code, nodeid, operation, payload, true);
        assert_eq!(answer.errno, 0, "{} of node {nodeid}", opcode::name(code));
        answer.body
    }
}
