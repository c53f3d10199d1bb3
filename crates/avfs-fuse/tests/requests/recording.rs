//! What a kernel and the server said to each other, and the volume that came of it, as compressed lines of text
//! (`zcat FILE | less`):
//!
//! ```text
//! the first line: which kernel, and what of its offer the server did not get to see
//! > UNIQUE OPCODE NODE UID GID PID BODY     a request
//! < UNIQUE ERRNO LENGTH DIGEST NODES HANDLE its reply: of what must be the same each time, see `Said`
//! = PATH …                                  what the volume holds in the end
//! ```
//!
//! Numbers are hexadecimal, and so is a body. Lines stand as their causes and effects: what was asked after a reply stands after it.

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use fuse_wire::abi::{self, opcode};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use zerocopy::{FromBytes, IntoBytes};

pub(crate) enum Event {
    Asked(Request),
    Answered { unique: u64, said: Said },
}

#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) header: abi::InHeader,
    /// The structure of the operation, and what follows it.
    pub(crate) body: Vec<u8>,
}

/// What of a reply must be the same each time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) errno: i32,
    pub(crate) length: usize,
    /// Of the body, but for times, numbers of inodes and places on the device.
    pub(crate) digest: u32,
    /// Nodes that the kernel learned of, in turn. Not the same, but in the same order.
    pub(crate) nodes: Vec<u64>,
    /// A handle that it was given.
    pub(crate) handle: Option<u64>,
}

#[derive(Default)]
pub(crate) struct Recording {
    pub(crate) title: String,
    pub(crate) events: Vec<Event>,
    /// A line for each inode of the volume, see `tree.rs`.
    pub(crate) tree: Vec<String>,
}

impl Request {
    /// As it comes from the kernel.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, body) = abi::InHeader::read_from_prefix(bytes).ok()?;
        Some(Self { header, body: body.to_vec() })
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let len = (size_of::<abi::InHeader>() + self.body.len()) as u32;
        [abi::InHeader { len, ..self.header }.as_bytes(), &self.body].concat()
    }

    /// Where the body has numbers of nodes and of handles.
    fn places(&self) -> (Vec<usize>, Vec<usize>) {
        match self.header.opcode {
            opcode::READ
            | opcode::WRITE
            | opcode::RELEASE
            | opcode::FLUSH
            | opcode::FSYNC
            | opcode::FALLOCATE
            | opcode::LSEEK
            | opcode::IOCTL
            | opcode::POLL => (vec![], vec![0]),
            opcode::GETATTR | opcode::SETATTR | opcode::STATX => (vec![], vec![8]),
            opcode::COPY_FILE_RANGE => (vec![16], vec![0, 24]),
            opcode::RENAME | opcode::RENAME2 | opcode::LINK => (vec![0], vec![]),
            opcode::BATCH_FORGET => ((8..self.body.len()).step_by(16).collect(), vec![]),
            _ => (vec![], vec![]),
        }
    }

    /// The same request about what has these numbers now; what has no other keeps its own.
    pub(crate) fn about(&self, nodes: &HashMap<u64, u64>, handles: &HashMap<u64, u64>) -> Self {
        let mut request = self.clone();
        let now = |known: &HashMap<u64, u64>, number: u64| known.get(&number).copied().unwrap_or(number);
        request.header.nodeid = now(nodes, self.header.nodeid);
        let (at_nodes, at_handles) = self.places();
        for (places, known) in [(at_nodes, nodes), (at_handles, handles)] {
            for place in places {
                let number = &mut request.body[place..place + 8];
                let then = u64::from_le_bytes(number.try_into().unwrap());
                number.copy_from_slice(&now(known, then).to_le_bytes());
            }
        }
        request
    }
}

impl Said {
    /// Of a reply to `request`; `body` is what follows its header.
    pub(crate) fn of(request: &Request, errno: i32, body: &[u8]) -> Self {
        let mut said = Self { errno, length: body.len(), ..Self::default() };
        let mut same = body.to_vec();
        if errno == 0 {
            said.take_out(request.header.opcode, &mut same);
        }
        said.digest = crc32(&same);
        said
    }

    /// Takes what differs each time out of a reply's body.
    fn take_out(&mut self, code: u32, body: &mut [u8]) {
        match code {
            opcode::LOOKUP | opcode::SYMLINK | opcode::MKNOD | opcode::MKDIR | opcode::LINK => {
                self.entry(body)
            }
            opcode::CREATE | opcode::TMPFILE => {
                let (entry, open) = body.split_at_mut(size_of::<abi::EntryOut>());
                self.entry(entry);
                self.open(open);
            }
            opcode::OPEN => self.open(body),
            opcode::GETATTR | opcode::SETATTR => {
                if let Ok((out, _)) = abi::AttrOut::mut_from_prefix(body) {
                    attributes(&mut out.attr);
                }
            }
            opcode::STATX => {
                if let Ok((out, _)) = abi::StatxOut::mut_from_prefix(body) {
                    let none = abi::StatxTime::default();
                    let stat = &mut out.stat;
                    *stat = abi::Statx {
                        ino: 0,
                        blocks: 0,
                        atime: none,
                        btime: none,
                        ctime: none,
                        mtime: none,
                        ..*stat
                    };
                }
            }
            opcode::READDIR => {
                let mut rest = body;
                while let Ok((dirent, names)) = abi::Dirent::mut_from_prefix(rest) {
                    dirent.ino = 0;
                    rest = names.get_mut((dirent.namelen as usize).next_multiple_of(8)..).unwrap_or_default();
                }
            }
            opcode::READDIRPLUS => {
                let mut rest = body;
                while let Ok((found, names)) = abi::DirentPlus::mut_from_prefix(rest) {
                    found.dirent.ino = 0;
                    self.entry(found.entry.as_mut_bytes());
                    let name = (found.dirent.namelen as usize).next_multiple_of(8);
                    rest = names.get_mut(name..).unwrap_or_default();
                }
            }
            // Of the device and how full it is.
            opcode::STATFS => body[..40].fill(0),
            _ => {}
        }
    }

    fn entry(&mut self, body: &mut [u8]) {
        let Ok((entry, _)) = abi::EntryOut::mut_from_prefix(body) else { return };
        // A name that does not exist, and `.` of a listing: no node.
        if entry.nodeid != 0 {
            self.nodes.push(entry.nodeid);
        }
        (entry.nodeid, entry.generation) = (0, 0);
        attributes(&mut entry.attr);
    }

    fn open(&mut self, body: &mut [u8]) {
        let Ok((open, _)) = abi::OpenOut::mut_from_prefix(body) else { return };
        self.handle = Some(std::mem::take(&mut open.fh));
    }

    /// All but the numbers themselves.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let shape =
            |said: &Self| (said.errno, said.length, said.digest, said.nodes.len(), said.handle.is_some());
        shape(self) == shape(other)
    }
}

fn attributes(attr: &mut abi::Attr) {
    let zero = abi::Attr::default();
    let &mut abi::Attr { mode, nlink, uid, gid, size, rdev, .. } = attr;
    *attr = abi::Attr { mode, nlink, uid, gid, size, rdev, ..zero };
}

/// What tells bodies and files apart.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

impl Recording {
    /// # Errors
    /// When it is not there, or something else.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let mut text = String::new();
        GzDecoder::new(File::open(path)?).read_to_string(&mut text)?;
        let mut recording = Self::default();
        let mut lines = text.lines();
        recording.title = lines.next().unwrap_or_default().into();
        for line in lines {
            let understood = match line.split_at_checked(2) {
                Some(("> ", fields)) => {
                    request(fields).map(|request| recording.events.push(Event::Asked(request)))
                }
                Some(("< ", fields)) => reply(fields).map(|event| recording.events.push(event)),
                Some(("= ", inode)) => {
                    recording.tree.push(inode.into());
                    Some(())
                }
                _ => None,
            };
            understood.ok_or_else(|| io::Error::other(format!("{line:.100}: not understood")))?;
        }
        Ok(recording)
    }

    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = format!("{}\n", self.title);
        for event in &self.events {
            let line = match event {
                Event::Asked(Request { header, body }) => {
                    let abi::InHeader { unique, opcode, nodeid, uid, gid, pid, .. } = header;
                    writeln!(text, "> {unique:x} {opcode:x} {nodeid:x} {uid:x} {gid:x} {pid:x} {}", hex(body))
                }
                Event::Answered { unique, said } => {
                    let Said { errno, length, digest, nodes, handle } = said;
                    let nodes: Vec<_> = nodes.iter().map(|node| format!("{node:x}")).collect();
                    let handle = handle.map(|handle| format!("{handle:x}")).unwrap_or_default();
                    let nodes = nodes.join(",");
                    writeln!(text, "< {unique:x} {errno:x} {length:x} {digest:x} {nodes} {handle}")
                }
            };
            line.map_err(io::Error::other)?;
        }
        for inode in &self.tree {
            writeln!(text, "= {inode}").map_err(io::Error::other)?;
        }
        let mut file = GzEncoder::new(Vec::new(), Compression::best());
        file.write_all(text.as_bytes())?;
        fs::write(path, file.finish()?)
    }
}

fn request(fields: &str) -> Option<Request> {
    let mut fields = fields.split(' ');
    let mut number = || u64::from_str_radix(fields.next()?, 16).ok();
    let header = abi::InHeader {
        unique: number()?,
        opcode: number()? as u32,
        nodeid: number()?,
        uid: number()? as u32,
        gid: number()? as u32,
        pid: number()? as u32,
        ..Default::default()
    };
    Some(Request { header, body: bytes(fields.next()?)? })
}

fn reply(fields: &str) -> Option<Event> {
    let mut fields = fields.split(' ');
    let mut number = || u64::from_str_radix(fields.next()?, 16).ok();
    let (unique, errno, length, digest) = (number()?, number()? as i32, number()? as usize, number()? as u32);
    let nodes = fields.next()?.split(',').filter(|node| !node.is_empty());
    let nodes = nodes.map(|node| u64::from_str_radix(node, 16).ok()).collect::<Option<_>>()?;
    let handle = fields.next().and_then(|handle| u64::from_str_radix(handle, 16).ok());
    Some(Event::Answered { unique, said: Said { errno, length, digest, nodes, handle } })
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    hex.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}
