// Pairs of affine weights in w_s, one for each GROUP elements of a row: (scale, bias), or (scale, zero) with ZERO. Two
// f16 (SCALE 0), two bf16 (1) or two f32 (2).
@group(0) @binding(3) var<storage, read> w_s: array<u32>;

#if SCALE == 2
alias PairBits = vec2<u32>;
#else
alias PairBits = u32;
#endif

// Raw bits of the pair for element k of a row.
fn w_bits(row: u32, k: u32) -> PairBits {
    let at = row * params.groups + k / GROUP;
#if SCALE == 2
    return vec2<u32>(w_s[2u * at], w_s[2u * at + 1u]);
#else
    return w_s[at];
#endif
}

fn w_pair(bits: PairBits) -> vec2<f32> {
#if SCALE == 0
    return unpack2x16float(bits);
#endif
#if SCALE == 1
    return vec2<f32>(bitcast<f32>(bits << 16u), bitcast<f32>(bits & 0xffff0000u));
#endif
#if SCALE == 2
    return bitcast<vec2<f32>>(bits);
#endif
}

fn w_affine(row: u32, k: u32) -> vec2<f32> {
    return w_pair(w_bits(row, k));
}
