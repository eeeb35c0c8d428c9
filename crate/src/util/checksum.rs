//! A checksum against damage, not against attacks.

/// The checksum of no bytes: the offset basis of FNV-1a.
pub const EMPTY_CHECKSUM: u64 = 0xcbf2_9ce4_8422_2325;

/// Adds bytes: FNV-1a over eight bytes at a time, with high bits folded down after each
/// multiplication. Parts must be whole words, except the last.
pub fn add_to_checksum(sum: u64, bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(sum, |sum, part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        let mixed = (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_depend_on_every_byte_and_its_position() {
        let bytes: Vec<u8> = (0..100).collect();
        let whole = add_to_checksum(EMPTY_CHECKSUM, &bytes);
        let first = add_to_checksum(EMPTY_CHECKSUM, &bytes[..64]);
        assert_eq!(add_to_checksum(first, &bytes[64..]), whole);
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(add_to_checksum(EMPTY_CHECKSUM, &other), whole, "byte {at}");
        }
        let mut swapped = bytes;
        swapped.rotate_left(8);
        assert_ne!(add_to_checksum(EMPTY_CHECKSUM, &swapped), whole);
    }
}
