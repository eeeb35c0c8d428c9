// An f32 as the bits of another type, to nearest even. TO: 0 f16, 1 bf16, 2 f32.
fn to_bits(x: f32) -> u32 {
    if (TO == 0u) {
        return f16_bits(x);
    }
    let u = bitcast<u32>(x);
    if (TO == 1u) {
        if ((u & 0x7fffffffu) > 0x7f800000u) {
            return (u >> 16u) | 0x40u;
        }
        return (u + 0x7fffu + ((u >> 16u) & 1u)) >> 16u;
    }
    return u;
}
