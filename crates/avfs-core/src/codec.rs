//! How variable-length structures become bytes: little endian, LEB128 for numbers that are mostly small.
//!
//! Reading never panics and never allocates more than the input is long: everything here may meet a damaged disk.

use crate::types::FileKind;
use units::{Ino, Timestamp};

/// The bytes do not form what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed structure")]
pub(crate) struct Malformed;

/// Appends values to a byte vector.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// LEB128: seven bits a byte, the lowest first.
    pub(crate) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    pub(crate) fn ino(&mut self, ino: Ino) {
        self.number(ino.0);
    }

    pub(crate) fn string(&mut self, string: &[u8]) {
        self.number(string.len() as u64);
        self.bytes.extend_from_slice(string);
    }

    pub(crate) fn time(&mut self, time: Timestamp) {
        self.u64(time.seconds as u64);
        self.u32(time.nanoseconds);
    }
}

/// Takes values from a byte slice.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(Malformed)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn number(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    pub(crate) fn small<T: TryFrom<u64>>(&mut self) -> Result<T, Malformed> {
        T::try_from(self.number()?).map_err(|_| Malformed)
    }

    pub(crate) fn ino(&mut self) -> Result<Ino, Malformed> {
        Ok(Ino(self.number()?))
    }

    pub(crate) fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.small()?;
        self.take(length)
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, Malformed> {
        let time = Timestamp { seconds: self.u64()? as i64, nanoseconds: self.u32()? };
        if time.nanoseconds < 1_000_000_000 { Ok(time) } else { Err(Malformed) }
    }

    pub(crate) fn kind(&mut self) -> Result<FileKind, Malformed> {
        Ok(match self.u8()? {
            1 => FileKind::Regular,
            2 => FileKind::Directory,
            3 => FileKind::Symlink,
            4 => FileKind::BlockDevice,
            5 => FileKind::CharacterDevice,
            6 => FileKind::Fifo,
            7 => FileKind::Socket,
            _ => return Err(Malformed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(value: u64) {
            let mut writer = Writer::default();
            writer.number(value);
            let mut reader = Reader::new(&writer.bytes);
            prop_assert_eq!(reader.number(), Ok(value));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn any_bytes_give_a_number_or_an_error(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            while reader.number().is_ok() {}
        }
    }

    #[test]
    fn a_number_of_more_than_64_bits_is_malformed() {
        let eleven = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert_eq!(Reader::new(&eleven).number(), Err(Malformed));
    }
}
