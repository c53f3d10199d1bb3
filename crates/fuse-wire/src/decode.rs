//! A request's bytes to an [`Operation`]: borrowed, checked, without a decision about it.
//!
//! **Invariant:** no bytes make it panic.

use crate::abi::{self, opcode};
use zerocopy::FromBytes;

/// A request that no kernel sends: too short, or a name without its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// What the kernel asks for. The inode it asks about is in the header.
#[derive(Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named as in linux/fuse.h, operations for what they do")]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    BatchForget(&'a [u8]),
    GetAttributes,
    Statx,
    SetAttributes(abi::SetattrIn),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        how: abi::MknodIn,
        name: &'a [u8],
    },
    MakeDirectory {
        how: abi::MkdirIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open {
        flags: i32,
    },
    Create {
        how: abi::CreateIn,
        name: &'a [u8],
    },
    /// O_TMPFILE: a file without a name, in the directory that the header names.
    CreateUnnamed(abi::CreateIn),
    Read(abi::ReadIn),
    Write {
        how: abi::WriteIn,
        data: &'a [u8],
    },
    Flush {
        handle: u64,
    },
    Release {
        handle: u64,
    },
    Fsync {
        handle: u64,
    },
    OpenDirectory,
    ReadDirectory {
        how: abi::ReadIn,
        plus: bool,
    },
    ReleaseDirectory,
    FsyncDirectory,
    Statistics,
    SetXattr {
        flags: i32,
        /// It sets an ACL, and setgid goes.
        kill_setgid: bool,
        name: &'a [u8],
        value: &'a [u8],
    },
    GetXattr {
        room: u32,
        name: &'a [u8],
    },
    ListXattrs {
        room: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Allocate(abi::FallocateIn),
    Seek(abi::LseekIn),
    CopyRange(abi::CopyFileRangeIn),
    Sync,
    Ioctl {
        how: abi::IoctlIn,
        input: &'a [u8],
    },
    Destroy,
    Interrupt,
    /// Anything else: to be answered with ENOSYS, after which the kernel does not ask again.
    Unknown,
}

impl<'a> Operation<'a> {
    /// Takes apart a request: `operation` is at least the structure of the operation, `payload` all that follows it.
    ///
    /// # Errors
    /// When something is missing.
    pub fn decode(opcode: u32, operation: &[u8], payload: &'a [u8]) -> Result<Self, Malformed> {
        Ok(match opcode {
            opcode::LOOKUP => Self::Lookup { name: name(payload)?.0 },
            opcode::FORGET => Self::Forget { lookups: read::<abi::ForgetIn>(operation)?.nlookup },
            opcode::BATCH_FORGET => {
                let count = read::<abi::BatchForgetIn>(operation)?.count as usize;
                let length = count.checked_mul(size_of::<abi::ForgetOne>()).ok_or(Malformed)?;
                Self::BatchForget(payload.get(..length).ok_or(Malformed)?)
            }
            opcode::GETATTR => Self::GetAttributes,
            opcode::STATX => Self::Statx,
            opcode::SETATTR => Self::SetAttributes(read(operation)?),
            opcode::READLINK => Self::ReadLink,
            opcode::SYMLINK => {
                let (name, rest) = name(payload)?;
                Self::Symlink { name, target: self::name(rest)?.0 }
            }
            opcode::MKNOD => Self::MakeNode { how: read(operation)?, name: name(payload)?.0 },
            opcode::MKDIR => Self::MakeDirectory { how: read(operation)?, name: name(payload)?.0 },
            opcode::UNLINK => Self::Unlink { name: name(payload)?.0 },
            opcode::RMDIR => Self::RemoveDirectory { name: name(payload)?.0 },
            opcode::RENAME => rename(
                abi::Rename2In { newdir: read::<abi::RenameIn>(operation)?.newdir, ..Default::default() },
                payload,
            )?,
            opcode::RENAME2 => rename(read(operation)?, payload)?,
            opcode::LINK => {
                Self::Link { node: read::<abi::LinkIn>(operation)?.oldnodeid, name: name(payload)?.0 }
            }
            opcode::OPEN => Self::Open { flags: read::<abi::OpenIn>(operation)?.flags },
            opcode::CREATE => Self::Create { how: read(operation)?, name: name(payload)?.0 },
            opcode::TMPFILE => Self::CreateUnnamed(read(operation)?),
            opcode::READ => Self::Read(read(operation)?),
            opcode::WRITE => {
                let how: abi::WriteIn = read(operation)?;
                Self::Write { how, data: payload.get(..how.size as usize).ok_or(Malformed)? }
            }
            opcode::FLUSH => Self::Flush { handle: read::<abi::FlushIn>(operation)?.fh },
            opcode::RELEASE => Self::Release { handle: read::<abi::ReleaseIn>(operation)?.fh },
            opcode::FSYNC => Self::Fsync { handle: read::<abi::FsyncIn>(operation)?.fh },
            opcode::OPENDIR => Self::OpenDirectory,
            opcode::READDIR => Self::ReadDirectory { how: read(operation)?, plus: false },
            opcode::READDIRPLUS => Self::ReadDirectory { how: read(operation)?, plus: true },
            opcode::RELEASEDIR => Self::ReleaseDirectory,
            opcode::FSYNCDIR => Self::FsyncDirectory,
            opcode::STATFS => Self::Statistics,
            opcode::SETXATTR => {
                let how: abi::SetxattrIn = read(operation)?;
                let (name, rest) = name(payload)?;
                let value = rest.get(..how.size as usize).ok_or(Malformed)?;
                let kill_setgid = how.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0;
                Self::SetXattr { flags: how.flags, kill_setgid, name, value }
            }
            opcode::GETXATTR => {
                Self::GetXattr { room: read::<abi::GetxattrIn>(operation)?.size, name: name(payload)?.0 }
            }
            opcode::LISTXATTR => Self::ListXattrs { room: read::<abi::GetxattrIn>(operation)?.size },
            opcode::REMOVEXATTR => Self::RemoveXattr { name: name(payload)?.0 },
            opcode::FALLOCATE => Self::Allocate(read(operation)?),
            opcode::LSEEK => Self::Seek(read(operation)?),
            opcode::COPY_FILE_RANGE => Self::CopyRange(read(operation)?),
            opcode::SYNCFS => Self::Sync,
            opcode::IOCTL => {
                let how: abi::IoctlIn = read(operation)?;
                Self::Ioctl { how, input: payload.get(..how.in_size as usize).ok_or(Malformed)? }
            }
            opcode::DESTROY => Self::Destroy,
            opcode::INTERRUPT => Self::Interrupt,
            _ => Self::Unknown,
        })
    }
}

fn rename(how: abi::Rename2In, payload: &[u8]) -> Result<Operation<'_>, Malformed> {
    let (name, rest) = name(payload)?;
    let (new_name, _) = self::name(rest)?;
    Ok(Operation::Rename { name, new_parent: how.newdir, new_name, flags: how.flags })
}

fn read<T: FromBytes>(bytes: &[u8]) -> Result<T, Malformed> {
    T::read_from_prefix(bytes).map(|(value, _)| value).map_err(|_| Malformed)
}

/// A name up to its NUL, and what follows it.
fn name(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let end = bytes.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            opcode in prop_oneof![0u32..64, any::<u32>()],
            operation in prop::collection::vec(any::<u8>(), 0..160),
            payload in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..600),
        ) {
            let _ = Operation::decode(opcode, &operation, &payload);
        }

        #[test]
        fn what_the_kernel_wrote_is_read(
            size in 0u32..300,
            flags in any::<i32>(),
            name in "[a-z.]{1,60}",
            rest in prop::collection::vec(any::<u8>(), 300),
        ) {
            let how = abi::SetxattrIn { size, flags, setxattr_flags: 1, padding: 0 };
            let payload = [name.as_bytes(), b"\0", &rest].concat();
            let decoded = Operation::decode(opcode::SETXATTR, how.as_bytes(), &payload);
            let (name, value) = (name.as_bytes(), &rest[..size as usize]);
            let expected = Operation::SetXattr { flags, kill_setgid: true, name, value };
            prop_assert_eq!(decoded, Ok(expected));
        }
    }

    #[test]
    fn every_operation_is_refused_without_the_structure_it_reads() {
        let payload = [b'x'; 4096];
        for opcode in 0..64 {
            let Some(size @ 1..) = abi::operation_size(opcode) else { continue };
            let whole = Operation::decode(opcode, &vec![0; size], b"name\0other\0");
            let short = Operation::decode(opcode, &vec![0; size - 1], &payload);
            // Those whose structure says nothing that this filesystem needs.
            let ignored = matches!(
                whole,
                Ok(Operation::Unknown
                    | Operation::GetAttributes
                    | Operation::Statx
                    | Operation::FsyncDirectory
                    | Operation::OpenDirectory
                    | Operation::ReleaseDirectory
                    | Operation::Sync
                    | Operation::Interrupt)
            );
            assert!(whole.is_ok(), "{opcode}");
            assert_eq!(short.is_err(), !ignored, "{opcode}");
        }
    }

    #[test]
    fn two_names_are_told_apart() {
        let how = abi::Rename2In { newdir: 7, flags: 1, padding: 0 };
        let decoded = Operation::decode(opcode::RENAME2, how.as_bytes(), b"from\0to\0");
        let expected = Operation::Rename { name: b"from", new_parent: 7, new_name: b"to", flags: 1 };
        assert_eq!(decoded, Ok(expected));
        assert_eq!(Operation::decode(opcode::RENAME2, how.as_bytes(), b"from\0to"), Err(Malformed));
    }

    #[test]
    fn data_that_is_shorter_than_its_length_is_refused() {
        let how = abi::WriteIn { size: 5, ..Default::default() };
        assert_eq!(Operation::decode(opcode::WRITE, how.as_bytes(), b"four"), Err(Malformed));
        let how = abi::IoctlIn { in_size: 5, ..Default::default() };
        assert_eq!(Operation::decode(opcode::IOCTL, how.as_bytes(), b"four"), Err(Malformed));
        let batch = abi::BatchForgetIn { count: u32::MAX, dummy: 0 };
        assert_eq!(Operation::decode(opcode::BATCH_FORGET, batch.as_bytes(), &[0; 64]), Err(Malformed));
    }
}
