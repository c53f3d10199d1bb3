//! Which answers the kernel takes. Of any other it gives the client EIO, or never ends the request.
//!
//! For tests: what answers generated requests can be held to this without a mount.

use crate::abi::{self, opcode};
use crate::reply::Answer;
use zerocopy::FromBytes;

/// Longest name in a listing.
const LONGEST_NAME: usize = 1024;

/// Says what the kernel would have against an answer to a request whose operation begins with `operation`, if anything.
///
/// # Errors
/// That, in words.
pub fn accepts(code: u32, operation: &[u8], answer: &Answer) -> Result<(), String> {
    let length = answer.body.len();
    let exactly = |wanted: usize| match length == wanted {
        true => Ok(()),
        false => Err(format!("{}: {length} bytes instead of {wanted}", opcode::name(code))),
    };
    let at_most = |most: usize| match length <= most {
        true => Ok(()),
        false => Err(format!("{}: {length} bytes, at most {most} fit", opcode::name(code))),
    };
    if answer.errno != 0 {
        return exactly(0);
    }
    match code {
        opcode::LOOKUP | opcode::SYMLINK | opcode::MKNOD | opcode::MKDIR | opcode::LINK => {
            exactly(size_of::<abi::EntryOut>())?;
            entry(&answer.body)
        }
        opcode::CREATE | opcode::TMPFILE => {
            exactly(size_of::<abi::CreateOut>())?;
            entry(&answer.body)
        }
        opcode::GETATTR | opcode::SETATTR => {
            exactly(size_of::<abi::AttrOut>())?;
            let (out, _) = abi::AttrOut::read_from_prefix(&answer.body).map_err(|_| "too short")?;
            attributes(&out.attr)
        }
        opcode::STATX => exactly(size_of::<abi::StatxOut>()),
        opcode::OPEN | opcode::OPENDIR => exactly(size_of::<abi::OpenOut>()),
        opcode::STATFS => exactly(size_of::<abi::StatfsOut>()),
        opcode::LSEEK => exactly(size_of::<abi::LseekOut>()),
        opcode::READLINK => at_most(4095),
        opcode::READ => at_most(read::<abi::ReadIn>(operation)?.size as usize),
        opcode::READDIR | opcode::READDIRPLUS => {
            at_most(read::<abi::ReadIn>(operation)?.size as usize)?;
            listing(&answer.body, code == opcode::READDIRPLUS)
        }
        opcode::WRITE | opcode::COPY_FILE_RANGE => {
            exactly(size_of::<abi::WriteOut>())?;
            let written = u64::from(read::<abi::WriteOut>(&answer.body)?.size);
            let asked = match code {
                opcode::WRITE => u64::from(read::<abi::WriteIn>(operation)?.size),
                _ => read::<abi::CopyFileRangeIn>(operation)?.len,
            };
            if written <= asked { Ok(()) } else { Err(format!("{written} bytes written of {asked}")) }
        }
        opcode::GETXATTR | opcode::LISTXATTR => match read::<abi::GetxattrIn>(operation)?.size {
            0 => exactly(size_of::<abi::GetxattrOut>()),
            room => at_most(room as usize),
        },
        opcode::IOCTL => {
            let room = read::<abi::IoctlIn>(operation)?.out_size as usize;
            read::<abi::IoctlOut>(&answer.body)?;
            at_most(size_of::<abi::IoctlOut>() + room)
        }
        _ => exactly(0),
    }
}

fn read<T: FromBytes>(bytes: &[u8]) -> Result<T, String> {
    T::read_from_prefix(bytes).map(|(value, _)| value).map_err(|_| "too short".into())
}

fn entry(body: &[u8]) -> Result<(), String> {
    let found: abi::EntryOut = read(body)?;
    // Node 0: the name does not exist, and the kernel may remember that.
    if found.nodeid == 0 { Ok(()) } else { attributes(&found.attr) }
}

fn attributes(found: &abi::Attr) -> Result<(), String> {
    const KINDS: [u32; 7] = [0o100000, 0o040000, 0o120000, 0o020000, 0o060000, 0o010000, 0o140000];
    if !KINDS.contains(&(found.mode & 0o170000)) {
        return Err(format!("a mode of {:o}", found.mode));
    }
    if i64::try_from(found.size).is_err() { Err(format!("a size of {}", found.size)) } else { Ok(()) }
}

fn listing(mut rest: &[u8], plus: bool) -> Result<(), String> {
    while !rest.is_empty() {
        let (dirent, header) = match plus {
            true => (read::<abi::DirentPlus>(rest)?.dirent, size_of::<abi::DirentPlus>()),
            false => (read::<abi::Dirent>(rest)?, size_of::<abi::Dirent>()),
        };
        let length = dirent.namelen as usize;
        let name = rest.get(header..header + length).ok_or("a name is cut off")?;
        if name.is_empty() || length > LONGEST_NAME || name.contains(&b'/') {
            return Err(format!("the name {:?}", name.escape_ascii().to_string()));
        }
        rest = rest.get((header + length).next_multiple_of(8)..).ok_or("a name is cut off")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn answer(body: &[u8]) -> Answer {
        Answer { errno: 0, body: body.into() }
    }

    #[test]
    fn what_is_longer_than_its_room_is_refused() {
        let asked = abi::ReadIn { size: 4, ..Default::default() };
        assert_eq!(accepts(opcode::READ, asked.as_bytes(), &answer(&[0; 4])), Ok(()));
        assert!(accepts(opcode::READ, asked.as_bytes(), &answer(&[0; 5])).is_err());
        assert!(accepts(opcode::GETATTR, &[], &answer(&[0; 103])).is_err());
        assert!(accepts(opcode::UNLINK, &[], &answer(&[0])).is_err());
        assert!(accepts(opcode::UNLINK, &[], &Answer { errno: 5, body: vec![0] }).is_err());
        assert_eq!(accepts(opcode::UNLINK, &[], &Answer { errno: 5, body: vec![] }), Ok(()));
    }

    #[test]
    fn an_inode_of_no_kind_is_refused() {
        let mut out = abi::AttrOut::default();
        assert!(accepts(opcode::GETATTR, &[], &answer(out.as_bytes())).is_err());
        out.attr.mode = 0o100644;
        assert_eq!(accepts(opcode::GETATTR, &[], &answer(out.as_bytes())), Ok(()));
        out.attr.size = u64::MAX;
        assert!(accepts(opcode::GETATTR, &[], &answer(out.as_bytes())).is_err());
    }

    #[test]
    fn a_name_that_is_cut_off_or_has_a_slash_is_refused() {
        let asked = abi::ReadIn { size: 64, ..Default::default() };
        let list = |name: &[u8]| {
            let dirent = abi::Dirent { namelen: name.len() as u32, ..Default::default() };
            accepts(opcode::READDIR, asked.as_bytes(), &answer(&[dirent.as_bytes(), name, &[0; 7]].concat()))
        };
        assert_eq!(list(b"a"), Ok(()));
        assert!(list(b"/").is_err());
        assert!(list(b"ab").is_err());
        assert!(list(b"").is_err());
    }
}
