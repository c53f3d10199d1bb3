//! Everything that happened, in order, as one number.

/// A hash of words (FNV-1a of Fowler, Noll and Vo, because it is the same everywhere and for ever).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace(pub u64);

impl Default for Trace {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    /// These come next.
    pub fn note(&mut self, words: impl IntoIterator<Item = u64>) {
        for byte in words.into_iter().flat_map(u64::to_le_bytes) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
