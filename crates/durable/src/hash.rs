//! The hash that says in which slot a key lies.

/// Hashes a key, the same at all times and everywhere: FNV-1a, whose low bits are mixed well enough
/// to choose a slot. Another one would not find what is stored.
pub(crate) fn hash(key: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    key.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of FNV's own page.
    #[test]
    fn keys_lie_where_they_always_have() {
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(hash("foobar"), 0x8594_4171_f739_67e8);
    }
}
