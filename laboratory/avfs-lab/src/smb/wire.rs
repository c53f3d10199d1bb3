//! Messages to bytes and back.
//!
//! **Invariants:** nothing here trusts a length from the wire.

/// Fixed part of every message, after the four bytes of the transport's length.
pub(super) const HEADER: usize = 64;
/// Where a server puts a read's data, and what precedes a write's: header and fixed part.
pub(super) const READ_RESPONSE: usize = HEADER + 16;
pub(super) const WRITE_REQUEST: usize = HEADER + 48;

pub(super) const STATUS_SUCCESS: u32 = 0;
pub(super) const STATUS_PENDING: u32 = 0x0000_0103;
pub(super) const STATUS_END_OF_FILE: u32 = 0xc000_0011;
pub(super) const STATUS_MORE_PROCESSING: u32 = 0xc000_0016;

const FLAG_RESPONSE: u32 = 1;

/// Commands used here, \[MS-SMB2\] 2.2.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Code {
    Negotiate = 0,
    SessionSetup = 1,
    TreeConnect = 3,
    Create = 5,
    Close = 6,
    Read = 8,
    Write = 9,
}

/// What opens a file on the server, persistent and volatile part.
pub(super) type FileId = [u8; 16];

/// Session, tree and numbering of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Context {
    pub(super) message_id: u64,
    pub(super) session_id: u64,
    pub(super) tree_id: u32,
    pub(super) credit_charge: u16,
}

/// A response's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) status: u32,
    pub(super) code: u16,
    pub(super) credits: u16,
    pub(super) message_id: u64,
    pub(super) session_id: u64,
    pub(super) tree_id: u32,
}

struct Message(Vec<u8>);

impl Message {
    fn new(code: Code, context: Context) -> Self {
        /// More than a client ever has in flight here; the server grants what it likes.
        const CREDITS_WANTED: u16 = 512;
        let mut message = Self(Vec::with_capacity(4 + HEADER + 128));
        message.bytes(&[0; 4]);
        message.bytes(&[0xfe, b'S', b'M', b'B']).u16(64).u16(context.credit_charge);
        message.u32(0).u16(code as u16).u16(CREDITS_WANTED).u32(0).u32(0);
        message.u64(context.message_id).u32(0xfeff).u32(context.tree_id).u64(context.session_id);
        message.bytes(&[0; 16]);
        message
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
    fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }
    fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }
    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }
    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// With the transport's length for `more` bytes that follow.
    fn finish(mut self, more: usize) -> Vec<u8> {
        let length = (self.0.len() - 4 + more) as u32;
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// Offers SMB 2.1, 3.0 and 3.0.2. Every client is another one: connections of one client share a server process.
pub(super) fn negotiate(context: Context, client: [u8; 16]) -> Vec<u8> {
    const DIALECTS: [u16; 3] = [0x0210, 0x0300, 0x0302];
    const SIGNING_ENABLED: u16 = 1;
    const LARGE_MTU: u32 = 4;
    let mut message = Message::new(Code::Negotiate, context);
    message
        .u16(36)
        .u16(DIALECTS.len() as u16)
        .u16(SIGNING_ENABLED)
        .u16(0)
        .u32(LARGE_MTU)
        .bytes(&client)
        .u64(0);
    for dialect in DIALECTS {
        message.u16(dialect);
    }
    message.finish(0)
}

/// The first message of an anonymous logon asks, the second one says nobody.
pub(super) fn session_setup(context: Context, second: bool) -> Vec<u8> {
    // Unicode, request target, NTLM, always sign, extended session security.
    const FLAGS: u32 = 0x0008_8205;
    const ANONYMOUS: u32 = 0x0800;
    let mut token = Message(Vec::new());
    token.bytes(b"NTLMSSP\0");
    if second {
        let end = 64;
        token.u32(3);
        // The answer to the challenge is one zero byte; the other fields are empty.
        token.u16(1).u16(1).u32(end);
        for _ in 0..5 {
            token.u16(0).u16(0).u32(end + 1);
        }
        token.u32(FLAGS | ANONYMOUS).u8(0);
    } else {
        token.u32(1).u32(FLAGS).u64(0).u64(0);
    }
    let mut message = Message::new(Code::SessionSetup, context);
    message.u16(25).u8(0).u8(1).u32(0).u32(0).u16(HEADER as u16 + 24).u16(token.0.len() as u16).u64(0);
    message.bytes(&token.0);
    message.finish(0)
}

pub(super) fn tree_connect(context: Context, share: &str) -> Vec<u8> {
    let path = utf16(&format!("\\\\127.0.0.1\\{share}"));
    let mut message = Message::new(Code::TreeConnect, context);
    message.u16(9).u16(0).u16(HEADER as u16 + 8).u16(path.len() as u16).bytes(&path);
    message.finish(0)
}

/// How a name is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disposition {
    OpenFile,
    OverwriteFile,
    MakeDirectory,
}

/// `name` is relative to the share, with backslashes.
pub(super) fn create(context: Context, name: &str, disposition: Disposition) -> Vec<u8> {
    const READ_WRITE: u32 = 0x0012_019f;
    const READ: u32 = 0x0012_0089;
    const SHARE_ALL: u32 = 7;
    const IMPERSONATION: u32 = 2;
    let (access, how, options) = match disposition {
        Disposition::OpenFile => (READ, 1, 0x40),
        Disposition::OverwriteFile => (READ_WRITE, 5, 0x40),
        Disposition::MakeDirectory => (READ, 3, 0x01),
    };
    let name = utf16(name);
    let mut message = Message::new(Code::Create, context);
    message.u16(57).u8(0).u8(0).u32(IMPERSONATION).u64(0).u64(0).u32(access).u32(0).u32(SHARE_ALL);
    message.u32(how).u32(options).u16(HEADER as u16 + 56).u16(name.len() as u16).u32(0).u32(0);
    message.bytes(&name);
    if name.is_empty() {
        message.u8(0);
    }
    message.finish(0)
}

pub(super) fn read(context: Context, file: FileId, offset: u64, length: u32) -> Vec<u8> {
    let mut message = Message::new(Code::Read, context);
    message.u16(49).u8(READ_RESPONSE as u8).u8(0).u32(length).u64(offset).bytes(&file);
    message.u32(0).u32(0).u32(0).u16(0).u16(0).u8(0);
    message.finish(0)
}

/// Everything before the data.
pub(super) fn write(context: Context, file: FileId, offset: u64, length: u32) -> Vec<u8> {
    let mut message = Message::new(Code::Write, context);
    message.u16(49).u16(WRITE_REQUEST as u16).u32(length).u64(offset).bytes(&file);
    message.u32(0).u32(0).u16(0).u16(0).u32(0);
    message.finish(length as usize)
}

pub(super) fn close(context: Context, file: FileId) -> Vec<u8> {
    let mut message = Message::new(Code::Close, context);
    message.u16(24).u16(0).u32(0).bytes(&file);
    message.finish(0)
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    part(bytes, at).map(u16::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    part(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    part(bytes, at).map(u64::from_le_bytes)
}

/// A response's header, without the transport's length; `None` when it is none.
pub(super) fn response(bytes: &[u8]) -> Option<Response> {
    let magic = bytes.get(..4)? == [0xfe, b'S', b'M', b'B'];
    let header = Response {
        status: u32_at(bytes, 8)?,
        code: u16_at(bytes, 12)?,
        credits: u16_at(bytes, 14)?,
        message_id: u64_at(bytes, 24)?,
        tree_id: u32_at(bytes, 36)?,
        session_id: u64_at(bytes, 40)?,
    };
    (magic && u32_at(bytes, 16)? & FLAG_RESPONSE != 0).then_some(header)
}

/// Of a negotiation: the largest read and write the server takes.
pub(super) fn negotiated(bytes: &[u8]) -> Option<(u32, u32)> {
    Some((u32_at(bytes, HEADER + 32)?, u32_at(bytes, HEADER + 36)?))
}

/// Of a create: the file and its length.
pub(super) fn created(bytes: &[u8]) -> Option<(FileId, u64)> {
    Some((part(bytes, HEADER + 64)?, u64_at(bytes, HEADER + 48)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_from_the_wire_is_never_trusted() {
        let whole = {
            let mut bytes =
                read(Context { message_id: 9, ..Context::default() }, [7; 16], 0, 1)[4..].to_vec();
            bytes[16] = 1;
            bytes
        };
        assert_eq!(
            response(&whole).map(|header| (header.message_id, header.code)),
            Some((9, Code::Read as u16))
        );
        for length in 0..whole.len() {
            let cut = &whole[..length];
            assert_eq!(response(cut).is_some(), length >= 48, "header of {length} bytes");
            assert!(negotiated(cut).is_none() || length >= HEADER + 40);
            assert!(created(cut).is_none() || length >= HEADER + 80);
        }
        let mut request = whole;
        request[16] = 0;
        assert_eq!(response(&request), None, "a request is no response");
    }

    #[test]
    fn the_transports_length_covers_what_follows() {
        for message in [
            negotiate(Context::default(), [1; 16]),
            session_setup(Context::default(), true),
            create(Context::default(), "a\\b", Disposition::OpenFile),
            close(Context::default(), [0; 16]),
        ] {
            let length = u32::from_be_bytes(message[..4].try_into().expect("four bytes"));
            assert_eq!(length as usize, message.len() - 4);
        }
        let head = write(Context::default(), [0; 16], 0, 1 << 20);
        assert_eq!(head.len(), 4 + WRITE_REQUEST, "data follow at the offset that is announced");
        assert_eq!(
            u32::from_be_bytes(head[..4].try_into().expect("four bytes")),
            WRITE_REQUEST as u32 + (1 << 20)
        );
    }
}
