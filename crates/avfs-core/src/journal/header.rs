//! What a batch of the log begins with.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What stands before the records of a batch.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BatchHeader {
    pub(super) magic: [u8; 4],
    /// CRC-32C of everything behind this field: rest of the header, and records.
    pub(super) checksum: U32,
    pub(super) uuid: [u8; 16],
    pub(super) sequence: U64,
    pub(super) first_lsn: U64,
    pub(super) records: U32,
    /// Bytes behind the header that the checksum covers: records, and with parity everything to the end of its block.
    pub(super) length: U32,
    pub(super) previous_checksum: U32,
    /// See [`parity`](super::parity); zero in a batch that has none.
    pub(super) check: U32,
}

/// Bytes of a batch before its records.
pub const HEADER: usize = size_of::<BatchHeader>();
const _: () = assert!(HEADER == 56);
const _: () = assert!(std::mem::offset_of!(BatchHeader, sequence) == 24);
