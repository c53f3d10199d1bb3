//! Makes files, small or far larger than memory.

use crate::support::probe;
use avfs_media::{Finding, Refusal};

/// A file of pieces at places, with zeros between.
#[derive(Default)]
pub(crate) struct Sparse {
    length: u64,
    pieces: Vec<(u64, Vec<u8>)>,
}

impl Sparse {
    pub(crate) fn push(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.pieces.push((self.length, bytes.as_ref().to_vec()));
        self.length += bytes.as_ref().len() as u64;
        self
    }

    pub(crate) fn zeros(mut self, count: u64) -> Self {
        self.length += count;
        self
    }

    pub(crate) fn append(mut self, other: Self) -> Self {
        let start = self.length;
        self.pieces.extend(other.pieces.into_iter().map(|(at, bytes)| (start + at, bytes)));
        self.length += other.length;
        self
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Cuts the end off, or adds zeros.
    pub(crate) fn with_length(mut self, length: u64) -> Self {
        self.length = length;
        self
    }

    pub(crate) fn find(&self) -> Result<Finding, Refusal> {
        probe(self.length, |offset, length| self.part(offset, length))
    }

    /// The whole file, which must be small.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.part(0, self.length)
    }

    fn part(&self, offset: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        for (start, piece) in &self.pieces {
            let (from, to) = (offset.max(*start), (offset + length).min(start + piece.len() as u64));
            if from < to {
                let source = &piece[(from - start) as usize..(to - start) as usize];
                bytes[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
        bytes
    }
}

/// Probes a file that is in memory.
pub(crate) fn probe_bytes(file: &[u8]) -> Result<Finding, Refusal> {
    probe(file.len() as u64, |offset, length| file[offset as usize..][..length as usize].to_vec())
}

pub(crate) fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// A chunk of RIFF.
pub(crate) fn chunk(id: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let padding = &[0][..data.len() % 2];
    join(&[id, &(data.len() as u32).to_le_bytes(), data, padding])
}

/// A list of RIFF.
pub(crate) fn list(kind: &[u8; 4], chunks: &[&[u8]]) -> Vec<u8> {
    chunk(b"LIST", &join(&[kind, &chunks.concat()]))
}

/// A box of MP4.
pub(crate) fn mp4_box(kind: &[u8; 4], payload: &[u8]) -> Vec<u8> {
    join(&[&(payload.len() as u32 + 8).to_be_bytes(), kind, payload])
}

/// The head of a box whose length has 64 bits: `length` counts these 16 bytes.
pub(crate) fn long_box_head(kind: &[u8; 4], length: u64) -> Vec<u8> {
    join(&[&1_u32.to_be_bytes(), kind, &length.to_be_bytes()])
}

/// Numbers of 32 bits as MP4 and MXF have them.
pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Key, length and value of MXF; `key` is what follows the label of SMPTE.
pub(crate) fn klv(key: [u8; 12], value: &[u8]) -> Vec<u8> {
    join(&[&klv_head(key, value.len() as u64), value])
}

/// Key and length, in the long form.
pub(crate) fn klv_head(key: [u8; 12], length: u64) -> Vec<u8> {
    join(&[&[0x06, 0x0e, 0x2b, 0x34], &key, &[0x88], &length.to_be_bytes()])
}
