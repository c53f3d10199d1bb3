//! One client's connection.
//!
//! **State:** the socket; what is on its way in and out; credits; open files. **Invariants:** a request is sent only when
//! credits cover it (one for each 64 KiB of payload); requests are sent in the order in which they were made.

use super::wire::{self, Code, Context, Disposition, FileId, HEADER, READ_RESPONSE, Response};
use avfs_workloads::content::{self, STAMP};
use avfs_workloads::{Answer, Operation};
use rustix::net::RecvFlags;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use thiserror::Error;

/// Bytes of a message that are looked at: of a read's, header and the first stamp of the payload.
const LOOKED_AT: usize = READ_RESPONSE + STAMP;

/// The longest message that is no read's payload.
const LONGEST: usize = 1 << 16;

/// Why a connection does not work.
#[derive(Debug, Error)]
pub enum SmbError {
    /// The socket.
    #[error("connection to the file server: {0}")]
    Socket(#[from] io::Error),
    /// The server says no.
    #[error("the file server refuses {what}: status {status:#010x}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// \[MS-ERREF\] 2.3.
        status: u32,
    },
    /// It does not speak SMB as expected.
    #[error("the file server's answer is no answer to {0}")]
    Protocol(&'static str),
}

struct OpenFile {
    id: FileId,
    seed: u64,
}

enum Sent {
    Open { seed: u64 },
    Read { seed: u64, offset: u64, length: u32 },
    Write { length: u32 },
    Close,
    Directory,
}

pub(super) struct Connection {
    stream: TcpStream,
    session_id: u64,
    tree_id: u32,
    largest_read: u32,
    largest_write: u32,
    next_message: u64,
    credits: u32,
    files: BTreeMap<u64, OpenFile>,
    next_file: u64,
    queued: VecDeque<(u64, Operation)>,
    sent: BTreeMap<u64, (u64, Sent)>,
    output: VecDeque<Vec<u8>>,
    /// Of the first message of `output`.
    output_done: usize,
    input: Vec<u8>,
    /// Payload of the message in `input` that is still to be thrown away.
    discard: usize,
}

impl Connection {
    /// Connects, logs on as nobody and opens the share. Waits for the server.
    pub(super) fn open(server: SocketAddr, share: &str, client: [u8; 16]) -> Result<Self, SmbError> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        let mut connection = Self {
            stream,
            session_id: 0,
            tree_id: 0,
            largest_read: 0,
            largest_write: 0,
            next_message: 0,
            credits: 1,
            files: BTreeMap::new(),
            next_file: 0,
            queued: VecDeque::new(),
            sent: BTreeMap::new(),
            output: VecDeque::new(),
            output_done: 0,
            input: Vec::new(),
            discard: 0,
        };
        let context = connection.context(0);
        let (_, body) = connection.exchange("a dialect", &wire::negotiate(context, client))?;
        let limits = wire::negotiated(&body).ok_or(SmbError::Protocol("a negotiation"))?;
        (connection.largest_read, connection.largest_write) = limits;
        for second in [false, true] {
            let context = connection.context(0);
            let (header, _) =
                connection.exchange("an anonymous logon", &wire::session_setup(context, second))?;
            connection.session_id = header.session_id;
        }
        let context = connection.context(0);
        let (header, _) = connection.exchange("the share", &wire::tree_connect(context, share))?;
        connection.tree_id = header.tree_id;
        connection.stream.set_nonblocking(true)?;
        Ok(connection)
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) fn wants_to_send(&self) -> bool {
        !self.output.is_empty()
    }

    /// The largest read or write that goes into one message.
    pub(super) fn largest(&self) -> u32 {
        self.largest_read.min(self.largest_write)
    }

    /// Numbers a message with a payload of so many bytes.
    fn context(&mut self, payload: u32) -> Context {
        let charge = charge(payload);
        let message_id = self.next_message;
        self.next_message += u64::from(charge);
        self.credits = self.credits.saturating_sub(u32::from(charge));
        Context { message_id, session_id: self.session_id, tree_id: self.tree_id, credit_charge: charge }
    }

    fn exchange(&mut self, what: &'static str, message: &[u8]) -> Result<(Response, Vec<u8>), SmbError> {
        self.stream.write_all(message)?;
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > LONGEST {
            return Err(SmbError::Protocol(what));
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        let header = wire::response(&body).ok_or(SmbError::Protocol(what))?;
        self.credits += u32::from(header.credits);
        match header.status {
            wire::STATUS_SUCCESS | wire::STATUS_MORE_PROCESSING => Ok((header, body)),
            status => Err(SmbError::Refused { what, status }),
        }
    }

    pub(super) fn submit(&mut self, tag: u64, operation: Operation) -> Result<(), SmbError> {
        self.queued.push_back((tag, operation));
        self.send()
    }

    /// Sends what credits and socket allow.
    pub(super) fn send(&mut self) -> Result<(), SmbError> {
        while let Some((_, operation)) = self.queued.front() {
            let payload = match operation {
                Operation::Read { length, .. } | Operation::Write { length, .. } => *length,
                _ => 0,
            };
            if u32::from(charge(payload)) > self.credits {
                break;
            }
            if let Some((tag, operation)) = self.queued.pop_front() {
                self.encode(tag, operation, payload)?;
            }
        }
        while let Some(message) = self.output.front() {
            match self.stream.write(&message[self.output_done..]) {
                Ok(written) => self.output_done += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            if self.output_done == message.len() {
                self.output.pop_front();
                self.output_done = 0;
            }
        }
        Ok(())
    }

    fn encode(&mut self, tag: u64, operation: Operation, payload: u32) -> Result<(), SmbError> {
        let context = self.context(payload);
        let file = |files: &BTreeMap<u64, OpenFile>, key: u64| {
            files
                .get(&key)
                .map(|file| (file.id, file.seed))
                .ok_or(SmbError::Protocol("a file that is not open"))
        };
        let (message, sent) = match operation {
            Operation::Open { name, write } => {
                let disposition = if write { Disposition::OverwriteFile } else { Disposition::OpenFile };
                let message = wire::create(context, &name.replace('/', "\\"), disposition);
                (message, Sent::Open { seed: content::seed(&name) })
            }
            Operation::MakeDirectory { name } => {
                let message = wire::create(context, &name.replace('/', "\\"), Disposition::MakeDirectory);
                (message, Sent::Directory)
            }
            Operation::Read { file: key, offset, length } => {
                let (id, seed) = file(&self.files, key)?;
                (wire::read(context, id, offset, length), Sent::Read { seed, offset, length })
            }
            Operation::Write { file: key, offset, length } => {
                let (id, seed) = file(&self.files, key)?;
                let mut message = wire::write(context, id, offset, length);
                let head = message.len();
                message.resize(head + length as usize, 0);
                content::fill(&mut message[head..], seed, offset);
                (message, Sent::Write { length })
            }
            Operation::Close { file: key } => {
                let (id, _) = file(&self.files, key)?;
                self.files.remove(&key);
                (wire::close(context, id), Sent::Close)
            }
        };
        self.output.push_back(message);
        self.sent.insert(context.message_id, (tag, sent));
        Ok(())
    }

    /// Takes in what has come. `scratch` is never read: what is thrown away needs an address.
    pub(super) fn receive(
        &mut self,
        scratch: &mut [u8],
        answered: &mut Vec<(u64, Result<Answer, String>)>,
    ) -> Result<(), SmbError> {
        loop {
            if self.discard > 0 {
                let length = self.discard.min(scratch.len());
                match rustix::net::recv(&self.stream, &mut scratch[..length], RecvFlags::TRUNC) {
                    Ok((0, _)) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                    Ok((received, _)) => self.discard -= received,
                    Err(rustix::io::Errno::AGAIN) => return Ok(()),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(io::Error::from(error).into()),
                }
                if self.discard == 0 {
                    self.answer(answered)?;
                }
                continue;
            }
            let wanted = self.wanted()?;
            if self.input.len() < wanted {
                let from = self.input.len();
                self.input.resize(wanted, 0);
                let received = self.stream.read(&mut self.input[from..]);
                self.input.truncate(from + received.as_ref().copied().unwrap_or(0));
                match received {
                    Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error.into()),
                }
                continue;
            }
            let total = self.total().unwrap_or(0);
            self.discard = (4 + total).saturating_sub(self.input.len());
            if self.discard == 0 {
                self.answer(answered)?;
            }
        }
    }

    /// Length of the message whose length is in.
    fn total(&self) -> Option<usize> {
        let length = self.input.get(..4)?;
        Some(u32::from_be_bytes(length.try_into().ok()?) as usize & 0x00ff_ffff)
    }

    /// Bytes of the message to look at, with what is known of it.
    fn wanted(&self) -> Result<usize, SmbError> {
        let Some(total) = self.total() else { return Ok(4) };
        if total < HEADER {
            return Err(SmbError::Protocol("any message"));
        }
        let first = 4 + total.min(LOOKED_AT);
        if self.input.len() < first {
            return Ok(first);
        }
        let header = wire::response(&self.input[4..]).ok_or(SmbError::Protocol("any message"))?;
        let payload = header.code == Code::Read as u16 && header.status == wire::STATUS_SUCCESS;
        if payload {
            return Ok(first);
        }
        if total > LONGEST { Err(SmbError::Protocol("any message")) } else { Ok(4 + total) }
    }

    /// The message in `input` is complete.
    fn answer(&mut self, answered: &mut Vec<(u64, Result<Answer, String>)>) -> Result<(), SmbError> {
        let input = std::mem::take(&mut self.input);
        let body = &input[4..];
        let header = wire::response(body).ok_or(SmbError::Protocol("any message"))?;
        self.credits += u32::from(header.credits);
        if header.status != wire::STATUS_PENDING
            && let Some((tag, sent)) = self.sent.remove(&header.message_id)
        {
            answered.push((tag, self.judge(&header, body, &sent)));
        }
        self.input = input;
        self.input.clear();
        self.send()
    }

    fn judge(&mut self, header: &Response, body: &[u8], sent: &Sent) -> Result<Answer, String> {
        if header.status == wire::STATUS_END_OF_FILE && matches!(sent, Sent::Read { .. }) {
            return Ok(Answer::Beyond);
        }
        if header.status != wire::STATUS_SUCCESS {
            let what = match sent {
                Sent::Open { .. } | Sent::Directory => "open",
                Sent::Read { .. } => "read",
                Sent::Write { .. } => "write",
                Sent::Close => "close",
            };
            return Err(format!("{what}: status {:#010x}", header.status));
        }
        match sent {
            Sent::Open { seed } => {
                let (id, length) = wire::created(body).ok_or("open: no file in the answer")?;
                let file = self.next_file;
                self.next_file += 1;
                self.files.insert(file, OpenFile { id, seed: *seed });
                Ok(Answer::Opened { file, length })
            }
            Sent::Directory => {
                // Not opened for use: the connection's end closes it.
                Ok(Answer::Done)
            }
            Sent::Read { seed, offset, length } => {
                let got = wire::u32_at(body, HEADER + 4).unwrap_or(0);
                if got < *length {
                    return Ok(Answer::Beyond);
                }
                if got > *length {
                    return Err(format!("read at {offset}: {got} bytes instead of {length}"));
                }
                if wire::u16_at(body, HEADER + 2).map(|at| at & 0xff) != Some(READ_RESPONSE as u16) {
                    return Err(format!("read at {offset}: data at an unexpected place"));
                }
                content::check(body.get(READ_RESPONSE..).unwrap_or_default(), *seed, *offset)?;
                Ok(Answer::Done)
            }
            Sent::Write { length } => {
                let got = wire::u32_at(body, HEADER + 4).unwrap_or(0);
                if got == *length { Ok(Answer::Done) } else { Err(format!("write: {got} bytes of {length}")) }
            }
            Sent::Close => Ok(Answer::Done),
        }
    }
}

/// Credits for a payload.
fn charge(payload: u32) -> u16 {
    (payload.max(1).div_ceil(1 << 16)) as u16
}
