//! The journal's records: each says what is now true of one inode.
//!
//! **Invariants:** a record names one inode and changes nothing else; applying the records of a log in order to the
//! state they were made from gives the state they were made in, whatever else is derived from it.

use crate::codec::{Malformed, Reader, Writer};
use crate::extent::Extent;
use crate::format::MAX_FILE_SIZE;
use crate::inode::{
    CoreAttributes, Name, check_xattr, decode_extent, decode_name, decode_target, encode_extent,
};
use crate::types::FileKind;
use units::Ino;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The number now stands for this new inode, without names or space.
    Create {
        /// Whose.
        ino: Ino,
        /// What it is.
        kind: FileKind,
        /// See [`Inode::generation`](crate::inode::Inode::generation).
        generation: u32,
        /// Owner, mode and times.
        attributes: CoreAttributes,
        /// A symbolic link's target.
        target: Box<[u8]>,
        /// A node's device number.
        device: u32,
    },
    /// The inode is gone, with its space.
    Remove {
        /// Whose.
        ino: Ino,
    },
    /// Owner, mode and times.
    Attributes {
        /// Whose.
        ino: Ino,
        /// All of them.
        attributes: CoreAttributes,
    },
    /// The recorded length.
    Size {
        /// Whose.
        ino: Ino,
        /// In bytes.
        size: u64,
    },
    /// One more name.
    AddName {
        /// Whose.
        ino: Ino,
        /// Where and how.
        name: Name,
    },
    /// One name less.
    RemoveName {
        /// Whose.
        ino: Ino,
        /// Where and how.
        name: Name,
    },
    /// An extended attribute.
    SetXattr {
        /// Whose.
        ino: Ino,
        /// With its namespace.
        name: Box<[u8]>,
        /// At most 64 KiB.
        value: Box<[u8]>,
    },
    /// No such extended attribute.
    RemoveXattr {
        /// Whose.
        ino: Ino,
        /// With its namespace.
        name: Box<[u8]>,
    },
    /// These blocks of the file lie there.
    Map {
        /// Whose.
        ino: Ino,
        /// Replaces whatever was mapped in its range.
        extent: Extent,
    },
    /// These blocks of the file lie nowhere: a hole.
    Unmap {
        /// Whose.
        ino: Ino,
        /// First block of the file.
        from: u64,
        /// First block after.
        to: u64,
    },
}

impl Record {
    /// The inode it is about.
    pub fn ino(&self) -> Ino {
        match self {
            Self::Create { ino, .. }
            | Self::Remove { ino }
            | Self::Attributes { ino, .. }
            | Self::Size { ino, .. }
            | Self::AddName { ino, .. }
            | Self::RemoveName { ino, .. }
            | Self::SetXattr { ino, .. }
            | Self::RemoveXattr { ino, .. }
            | Self::Map { ino, .. }
            | Self::Unmap { ino, .. } => *ino,
        }
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        match self {
            Self::Create { ino, kind, generation, attributes, target, device } => {
                writer.u8(1);
                writer.ino(*ino);
                writer.u8(*kind as u8);
                writer.number(u64::from(*generation));
                attributes.encode(writer);
                writer.string(target);
                writer.number(u64::from(*device));
            }
            Self::Remove { ino } => {
                writer.u8(2);
                writer.ino(*ino);
            }
            Self::Attributes { ino, attributes } => {
                writer.u8(3);
                writer.ino(*ino);
                attributes.encode(writer);
            }
            Self::Size { ino, size } => {
                writer.u8(4);
                writer.ino(*ino);
                writer.number(*size);
            }
            Self::AddName { ino, name } => {
                writer.u8(5);
                writer.ino(*ino);
                encode_name(name, writer);
            }
            Self::RemoveName { ino, name } => {
                writer.u8(6);
                writer.ino(*ino);
                encode_name(name, writer);
            }
            Self::SetXattr { ino, name, value } => {
                writer.u8(7);
                writer.ino(*ino);
                writer.string(name);
                writer.string(value);
            }
            Self::RemoveXattr { ino, name } => {
                writer.u8(8);
                writer.ino(*ino);
                writer.string(name);
            }
            Self::Map { ino, extent } => {
                writer.u8(9);
                writer.ino(*ino);
                encode_extent(extent, writer);
            }
            Self::Unmap { ino, from, to } => {
                writer.u8(10);
                writer.ino(*ino);
                writer.number(*from);
                writer.number(*to);
            }
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let tag = reader.u8()?;
        let ino = reader.ino()?;
        Ok(match tag {
            1 => Self::Create {
                ino,
                kind: reader.kind()?,
                generation: reader.small()?,
                attributes: CoreAttributes::decode(reader)?,
                target: decode_target(reader)?,
                device: reader.small()?,
            },
            2 => Self::Remove { ino },
            3 => Self::Attributes { ino, attributes: CoreAttributes::decode(reader)? },
            4 => {
                let size = reader.number()?;
                if size > MAX_FILE_SIZE {
                    return Err(Malformed);
                }
                Self::Size { ino, size }
            }
            5 => Self::AddName { ino, name: decode_name(reader)? },
            6 => Self::RemoveName { ino, name: decode_name(reader)? },
            7 => {
                let (name, value) = (reader.string()?, reader.string()?);
                check_xattr(name, value)?;
                Self::SetXattr { ino, name: name.into(), value: value.into() }
            }
            8 => Self::RemoveXattr { ino, name: reader.string()?.into() },
            9 => Self::Map { ino, extent: decode_extent(reader)? },
            10 => Self::Unmap { ino, from: reader.number()?, to: reader.number()? },
            _ => return Err(Malformed),
        })
    }
}

fn encode_name(name: &Name, writer: &mut Writer) {
    writer.ino(name.parent);
    writer.string(&name.name);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_decode_to_a_record_or_an_error(bytes: Vec<u8>) {
            let _ = Record::decode(&mut Reader::new(&bytes));
        }

        /// What decodes encodes to something that decodes to the same.
        #[test]
        fn decoding_inverts_encoding(tag in 1u8..11, rest: Vec<u8>) {
            let bytes: Vec<u8> = std::iter::once(tag).chain(rest).collect();
            if let Ok(record) = Record::decode(&mut Reader::new(&bytes)) {
                let mut writer = Writer::default();
                record.encode(&mut writer);
                prop_assert_eq!(Record::decode(&mut Reader::new(&writer.bytes)), Ok(record));
            }
        }
    }
}
