//! What a volume holds, found out with requests: a line for each inode below the root.

use crate::client::Client;
use crate::recording::crc32;
use avfs_core::volume::Volume;
use fuse_wire::abi::{self, opcode};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// More than any file of a recording has.
const LONGEST: u32 = 4 << 20;

/// Path, mode, links, owner, length, what it holds, attributes.
pub(crate) fn of(volume: &Arc<Volume>) -> Vec<String> {
    let client = Client::new(volume);
    let mut lines = Vec::new();
    client.walk(abi::ROOT_ID, ".", &mut lines);
    lines.sort();
    lines
}

impl Client {
    fn walk(&self, directory: u64, path: &str, lines: &mut Vec<String>) {
        let how = abi::ReadIn { size: LONGEST, ..Default::default() };
        let listing = self.ask(opcode::READDIRPLUS, directory, how.as_bytes(), &[]);
        let mut rest = &listing[..];
        while let Ok((found, after)) = abi::DirentPlus::read_from_prefix(rest) {
            let (name, _) = after.split_at(found.dirent.namelen as usize);
            rest = after.get(name.len().next_multiple_of(8)..).unwrap_or_default();
            if name == b"." || name == b".." {
                continue;
            }
            let (attr, node) = (found.entry.attr, found.entry.nodeid);
            let path = format!("{path}/{}", name.escape_ascii());
            let holds = match attr.mode & libc::S_IFMT {
                libc::S_IFREG => self.digest_of(node),
                libc::S_IFLNK => crc32(&self.ask(opcode::READLINK, node, &[], &[])),
                _ => 0,
            };
            let how = abi::GetxattrIn { size: 65536, padding: 0 };
            let names = self.ask(opcode::LISTXATTR, node, how.as_bytes(), &[]);
            let values = names.split_inclusive(|&byte| byte == 0).map(|name| {
                let value = crc32(&self.ask(opcode::GETXATTR, node, how.as_bytes(), name));
                format!(" {}={value:x}", name[..name.len() - 1].escape_ascii())
            });
            let abi::Attr { mode, nlink, uid, gid, size, rdev, .. } = attr;
            let values: String = values.collect();
            lines.push(format!("{path} {mode:o} {nlink} {uid}:{gid} {size} {rdev:x} {holds:x}{values}"));
            if attr.mode & libc::S_IFMT == libc::S_IFDIR {
                self.walk(node, &path, lines);
            }
        }
    }

    fn digest_of(&self, node: u64) -> u32 {
        let opened = self.ask(opcode::OPEN, node, abi::OpenIn::default().as_bytes(), &[]);
        let (open, _) = abi::OpenOut::read_from_prefix(&opened).unwrap();
        let how = abi::ReadIn { fh: open.fh, size: LONGEST, ..Default::default() };
        let data = self.ask(opcode::READ, node, how.as_bytes(), &[]);
        self.ask(opcode::RELEASE, node, abi::ReleaseIn { fh: open.fh, ..Default::default() }.as_bytes(), &[]);
        crc32(&data)
    }
}
