// Element i of a dense source. FROM: 0 f16, 1 bf16, 2 f32.
fn number_bits(i: u32) -> u32 {
    if (FROM == 2u) {
        return src[(params.src_at >> 2u) + i];
    }
    let at = params.src_at / 2u + i;
    return (src[at >> 1u] >> ((at & 1u) * 16u)) & 0xffffu;
}

fn number(i: u32) -> f32 {
    let bits = number_bits(i);
    if (FROM == 0u) {
        return f16_value(bits);
    }
    if (FROM == 1u) {
        return bitcast<f32>(bits << 16u);
    }
    return bitcast<f32>(bits);
}
