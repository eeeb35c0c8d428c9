// Scales of MXFP4: a byte per block of 32, four to a word across the whole matrix.
@group(0) @binding(3) var<storage, read> w_s: array<u32>;

// The word that holds a block's byte, and its offset in it.
alias PairBits = vec2<u32>;

fn w_bits(row: u32, k: u32) -> PairBits {
    let index = row * params.k_blocks + (k >> 5u);
    return vec2<u32>(w_s[index >> 2u], (index & 3u) * 8u);
}

// Half the power of two, applied to twice the values, so that the largest byte does not overflow.
fn w_power(bits: PairBits) -> f32 {
    let e = (bits.x >> bits.y) & 255u;
    return bitcast<f32>((max(e, 1u) - 1u) << 23u);
}
