// Scales of Q4_K, five words per 256 weights: d and dmin as f16, eight scale bytes, eight minimum bytes.
@group(0) @binding(3) var<storage, read> w_s: array<u32>;

// The words that hold d and dmin, the scale and the minimum of a block of 32.
alias PairBits = vec3<u32>;

fn w_bits(row: u32, k: u32) -> PairBits {
    let at = (row * params.groups + (k >> 8u)) * 5u;
    let word = (k >> 7u) & 1u;
    return vec3<u32>(w_s[at], w_s[at + 1u + word], w_s[at + 3u + word]);
}

// d * scale and dmin * min of the block: w = d * scale * q - dmin * min.
fn w_pair(bits: PairBits, block: u32) -> vec2<f32> {
    let shift = (block & 3u) * 8u;
    return unpack2x16float(bits.x) * vec2<f32>((bits.yz >> vec2<u32>(shift)) & vec2<u32>(255u));
}
