//! Philox 4x32-10, a counter-based generator of random 32-bit words (Salmon et al., "Parallel
//! random numbers: as easy as 1, 2, 3", 2011). It is stateless: the word for a step depends only on
//! the seed and the step, on every machine.

use super::fixed_point::mul_high;

const MULTIPLIER: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Returns four random words for a counter and a key.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let [c0, c1, c2, c3] = counter;
        counter = [
            mul_high(MULTIPLIER[1], c2) ^ c1 ^ key[0],
            MULTIPLIER[1].wrapping_mul(c2),
            mul_high(MULTIPLIER[0], c0) ^ c3 ^ key[1],
            MULTIPLIER[0].wrapping_mul(c0),
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// Returns the random word for the `step`-th token of the generation with this seed.
pub fn random(seed: u64, step: u32) -> u32 {
    philox([step, 0, 0, 0], [seed as u32, (seed >> 32) as u32])[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers from Random123's kat_vectors.
    #[test]
    fn known_answers() {
        assert_eq!(
            philox([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
