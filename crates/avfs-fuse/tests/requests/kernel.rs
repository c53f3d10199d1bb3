//! What plays the kernel at the other end of a served socket.

use crate::connection;
use fuse_wire::Answer;
use fuse_wire::abi::{self, opcode};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Kernel {
    socket: Arc<OwnedFd>,
    replies: mpsc::Receiver<Vec<u8>>,
    /// Requests that wait for a reply, and their operations.
    asked: HashMap<u64, u32>,
    /// Requests that have no reply, unless there is something wrong with them: a kernel looks for none and says ENOENT.
    mute: HashSet<u64>,
    /// Replies that came before they were wanted.
    early: HashMap<u64, Answer>,
}

impl Kernel {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let socket = Arc::new(socket);
        let (send, replies) = mpsc::channel();
        let reading = Arc::clone(&socket);
        // Always, or the server would wait to be heard.
        thread::spawn(move || {
            let mut room = Vec::new();
            while let Ok(reply @ [_, ..]) = connection::receive(reading.as_fd(), &mut room) {
                if send.send(reply.to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { socket, replies, asked: HashMap::new(), mute: HashSet::new(), early: HashMap::new() }
    }

    pub(crate) fn send(&mut self, header: &abi::InHeader, body: &[u8]) {
        let len = (size_of::<abi::InHeader>() + body.len()) as u32;
        let bytes = [abi::InHeader { len, ..*header }.as_bytes(), body].concat();
        if matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT) {
            self.mute.insert(header.unique);
        } else {
            self.asked.insert(header.unique, header.opcode);
        }
        assert_eq!(rustix::io::write(&*self.socket, &bytes), Ok(bytes.len()));
    }

    /// Waits for the reply to a request that was sent.
    pub(crate) fn hear(&mut self, unique: u64) -> Answer {
        loop {
            if let Some(answer) = self.early.remove(&unique) {
                self.asked.remove(&unique);
                return answer;
            }
            let bytes = self.replies.recv_timeout(PATIENCE).unwrap_or_else(|_| {
                panic!("{} is not answered", opcode::name(self.asked.get(&unique).copied().unwrap_or(0)))
            });
            let (header, body) = abi::OutHeader::read_from_prefix(&bytes).expect("a header");
            assert_eq!(header.len as usize, bytes.len(), "the length of a reply");
            if self.mute.remove(&header.unique) {
                assert_ne!(header.error, 0, "{:x} is answered", header.unique);
                continue;
            }
            assert!(
                self.asked.contains_key(&header.unique),
                "a reply to {:x}, which waits for none",
                header.unique
            );
            let answer = Answer { errno: -header.error, body: body.to_vec() };
            let twice = self.early.insert(header.unique, answer);
            assert!(twice.is_none(), "{:x} is answered twice", header.unique);
        }
    }

    /// Closes the connection, which ends the session.
    pub(crate) fn end(self) {
        rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both).unwrap();
    }
}
