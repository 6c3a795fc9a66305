//! The Internet checksum (RFC 1071).

/// Adds the big-endian 16-bit words of `bytes` to a one's complement sum; an odd last byte counts
/// as the high half.
pub(super) fn sum(bytes: &[u8], mut total: u64) -> u64 {
    let words = bytes.chunks_exact(2);
    if let [last] = words.remainder() {
        total += u64::from(*last) << 8;
    }
    words.fold(total, |total, word| total + u64::from(u16::from_be_bytes([word[0], word[1]])))
}

/// Folds the carries of a sum into 16 bits; the checksum is the complement.
pub(super) fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_rfc_1071_example_is_right() {
        // RFC 1071 section 3.
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0)), 0xddf2);
        assert_eq!(fold(sum(&[1, 2, 3], 0)), 0x0402);
    }
}
