//! SHA-256 (FIPS 180-4) as a function of a state, so that pieces can be hashed wherever they are. Knows bytes only.

/// The state of nothing so far: the square roots of the first 8 primes, as [`ROUNDS`] has the cube roots.
pub const START: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// A state that is the end of a hash, as 64 hexadecimal digits.
pub fn hex(state: [u32; 8]) -> String {
    state.iter().map(|word| format!("{word:08x}")).collect()
}

/// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
#[cfg(not(target_arch = "wasm32"))]
#[rustfmt::skip]
const ROUNDS: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

/// The state after more bytes: whole blocks of 64, or the last ones, which `end` tells by how many there were in all. In a page
/// crate/js/cache.js does the same.
#[cfg(not(target_arch = "wasm32"))]
pub fn absorb(state: [u32; 8], bytes: &[u8], end: Option<u64>) -> [u32; 8] {
    let blocks = bytes.chunks_exact(64);
    let mut last = blocks.remainder().to_vec();
    let state = blocks.fold(state, block);
    let Some(end) = end else { return state };
    last.push(0x80);
    last.resize((last.len() + 8).next_multiple_of(64) - 8, 0);
    last.extend((end * 8).to_be_bytes());
    last.chunks_exact(64).fold(state, block)
}

/// The state after one more block.
#[cfg(not(target_arch = "wasm32"))]
fn block(state: [u32; 8], block: &[u8]) -> [u32; 8] {
    let mut words = [0u32; 64];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = bytes.iter().fold(0, |all, byte| all << 8 | u32::from(*byte));
    }
    for i in 16..64 {
        let (a, b) = (words[i - 15], words[i - 2]);
        let (a, b) =
            (a.rotate_right(7) ^ a.rotate_right(18) ^ a >> 3, b.rotate_right(17) ^ b.rotate_right(19) ^ b >> 10);
        words[i] = words[i - 16].wrapping_add(a).wrapping_add(words[i - 7]).wrapping_add(b);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
    for (word, round) in words.iter().zip(ROUNDS) {
        let sum = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let one = h.wrapping_add(sum).wrapping_add(choice).wrapping_add(round).wrapping_add(*word);
        let sum = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let two = sum.wrapping_add((a & b) ^ (a & c) ^ (b & c));
        (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(one), c, b, a, one.wrapping_add(two));
    }
    let added = [a, b, c, d, e, f, g, h];
    std::array::from_fn(|i| state[i].wrapping_add(added[i]))
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;

    #[test]
    fn known_texts_have_their_hashes_in_pieces_of_any_size() {
        let million = vec![b'a'; 1_000_000];
        let known: [(&[u8], &str); 4] = [
            (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
            (&million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        ];
        for (bytes, expected) in known {
            for piece in [64, 128, 6400, 1_024_000] {
                let count = bytes.len().div_ceil(piece).max(1);
                let state = (0..count).fold(START, |state, i| {
                    let part = &bytes[i * piece..bytes.len().min((i + 1) * piece)];
                    absorb(state, part, (i + 1 == count).then_some(bytes.len() as u64))
                });
                assert_eq!(hex(state), expected, "{} bytes by {piece}", bytes.len());
            }
        }
    }
}
