//! Random numbers from a seed.

/// Marsaglia's xorshift.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns a number from 0 to less than `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}
