//! Replies that the kernel refuses, and what the server gave with them.

use crate::client::Client;
use crate::connection;
use fuse_wire::abi::{self, opcode};
use zerocopy::{FromBytes, IntoBytes};

const ROOT: u64 = abi::ROOT_ID;

fn statistics(client: &Client) -> (u64, u64) {
    let body = client.ask(opcode::STATFS, ROOT, &[], &[]);
    let figures = abi::StatfsOut::read_from_bytes(&body).unwrap();
    (figures.files - figures.ffree, figures.bfree)
}

/// An inode of node and handle, made by a client that hears of it.
fn create(client: &Client, name: &[u8]) -> (u64, u64) {
    let how = abi::CreateIn { flags: libc::O_RDWR, mode: 0o100644, ..Default::default() };
    let body = client.ask(opcode::CREATE, ROOT, how.as_bytes(), name);
    let made = abi::CreateOut::read_from_bytes(&body).unwrap();
    (made.entry.nodeid, made.open.fh)
}

fn release(client: &Client, node: u64, fh: u64) {
    client.ask(opcode::RELEASE, node, abi::ReleaseIn { fh, ..Default::default() }.as_bytes(), &[]);
}

fn forget(client: &Client, node: u64, nlookup: u64) {
    client.ask(opcode::FORGET, node, abi::ForgetIn { nlookup }.as_bytes(), &[]);
}

/// A client that is not told of its handle never gives it back, nor does a kernel forget what it did not hear of: such a file
/// stayed on the volume after its last name was gone, until unmount. Each operation that gives something is refused here, then the name
/// is taken away: with nothing left that holds it, so is the file.
#[test]
fn what_a_refused_reply_gave_is_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    connection::format(&image);
    let volume = connection::open(&image);
    let client = Client::new(&volume);
    let refuse = |code, node, operation: &[u8], payload: &[u8]| {
        assert_eq!(client.offered(code, node, operation, payload, false).errno, 0, "{}", opcode::name(code));
    };
    let (inodes, _) = statistics(&client);
    let create_in = abi::CreateIn { flags: libc::O_RDWR, mode: 0o100644, ..Default::default() };
    let node_in = [0o100644, 0o010644].map(|mode| abi::MknodIn { mode, ..Default::default() });
    let makes: [(u32, &[u8], &[u8]); 6] = [
        (opcode::CREATE, create_in.as_bytes(), b"name\0"),
        (opcode::TMPFILE, create_in.as_bytes(), b""),
        (opcode::MKNOD, node_in[0].as_bytes(), b"name\0"),
        (opcode::MKNOD, node_in[1].as_bytes(), b"name\0"),
        (opcode::SYMLINK, &[], b"name\0target\0"),
        (opcode::MKDIR, abi::MkdirIn { mode: 0o755, umask: 0 }.as_bytes(), b"name\0"),
    ];
    for (code, operation, payload) in makes {
        refuse(code, ROOT, operation, payload);
        match code {
            opcode::TMPFILE => {}
            opcode::MKDIR => drop(client.ask(opcode::RMDIR, ROOT, &[], b"name\0")),
            _ => drop(client.ask(opcode::UNLINK, ROOT, &[], b"name\0")),
        }
        assert_eq!(statistics(&client).0, inodes, "{} holds nothing", opcode::name(code));
    }

    // Of a file that is there: a handle, lookups by name, by listing, by a second name.
    let read_in = abi::ReadIn { size: 4096, ..Default::default() };
    let gives: [(u32, bool, Vec<u8>, &[u8]); 4] = [
        (opcode::OPEN, true, abi::OpenIn { flags: libc::O_RDWR, open_flags: 0 }.as_bytes().to_vec(), b""),
        (opcode::LOOKUP, false, Vec::new(), b"file\0"),
        (opcode::READDIRPLUS, false, read_in.as_bytes().to_vec(), b""),
        (opcode::LINK, false, Vec::new(), b"second\0"),
    ];
    for (code, is_of_file, mut operation, payload) in gives {
        let (node, fh) = create(&client, b"file\0");
        if code == opcode::LINK {
            operation = abi::LinkIn { oldnodeid: node }.as_bytes().to_vec();
        }
        refuse(code, if is_of_file { node } else { ROOT }, &operation, payload);
        if code == opcode::LINK {
            client.ask(opcode::UNLINK, ROOT, &[], b"second\0");
        }
        client.ask(opcode::UNLINK, ROOT, &[], b"file\0");
        assert_eq!(statistics(&client).0, inodes + 1, "open, and known to the kernel");
        release(&client, node, fh);
        forget(&client, node, 1);
        assert_eq!(statistics(&client).0, inodes, "{} holds nothing", opcode::name(code));
    }

    // Not more than was given: what was heard before holds.
    let (node, fh) = create(&client, b"file\0");
    refuse(opcode::LOOKUP, ROOT, &[], b"file\0");
    refuse(opcode::OPEN, node, abi::OpenIn { flags: libc::O_RDWR, open_flags: 0 }.as_bytes(), b"");
    client.ask(opcode::UNLINK, ROOT, &[], b"file\0");
    let how = abi::WriteIn { fh, size: 4, ..Default::default() };
    client.ask(opcode::WRITE, node, how.as_bytes(), b"data");
    let how = abi::ReadIn { fh, size: 10, ..Default::default() };
    assert_eq!(client.ask(opcode::READ, node, how.as_bytes(), b""), b"data");
    release(&client, node, fh);
    forget(&client, node, 1);
    assert_eq!(statistics(&client).0, inodes);
    drop(client);
    volume.shutdown().unwrap();
}
