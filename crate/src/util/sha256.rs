//! SHA-256 (FIPS 180-4) with explicit state, so that chunks can be hashed wherever they are.

#[cfg(not(target_arch = "wasm32"))]
use sha2::block_api::compress256;

/// Initial state: the first 32 bits of the fractional parts of the square roots of the first 8
/// primes.
pub const INITIAL_STATE: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// Formats a final state as 64 hexadecimal digits.
pub fn to_hex(state: [u32; 8]) -> String {
    state.iter().map(|word| format!("{word:08x}")).collect()
}

/// Hashes more bytes: whole blocks of 64, or the last bytes with `end`, the total length. In
/// browsers crate/js/cache.js does the same.
#[cfg(not(target_arch = "wasm32"))]
pub fn update(mut state: [u32; 8], bytes: &[u8], end: Option<u64>) -> [u32; 8] {
    let (blocks, rest) = bytes.as_chunks();
    compress256(&mut state, blocks);
    let Some(end) = end else { return state };
    let mut last = rest.to_vec();
    last.push(0x80);
    last.resize((last.len() + 8).next_multiple_of(64) - 8, 0);
    last.extend((end * 8).to_be_bytes());
    compress256(&mut state, last.as_chunks().0);
    state
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;

    #[test]
    fn known_hashes_for_any_chunk_size() {
        let million = vec![b'a'; 1_000_000];
        let known: [(&[u8], &str); 4] = [
            (
                b"",
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            ),
            (
                b"abc",
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ),
            (
                b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
            (
                &million,
                "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
            ),
        ];
        for (bytes, expected) in known {
            for piece in [64, 128, 6400, 1_024_000] {
                let count = bytes.len().div_ceil(piece).max(1);
                let state = (0..count).fold(INITIAL_STATE, |state, i| {
                    let part = &bytes[i * piece..bytes.len().min((i + 1) * piece)];
                    update(state, part, (i + 1 == count).then_some(bytes.len() as u64))
                });
                assert_eq!(to_hex(state), expected, "{} bytes by {piece}", bytes.len());
            }
        }
    }
}
