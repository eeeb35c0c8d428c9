// Eight weights of a row for subgroup matrices: columns 8 * unit to 8 * unit + 7. NIBBLES: computed in f16, two per
// operation, for affine weights of 4 bits with f16 pairs.
struct Octet {
    a: vec4<Element>,
    b: vec4<Element>,
}

#ifdef NIBBLES
fn octet_of(row: u32, unit: u32) -> Octet {
    let word = w_q[row * params.k_blocks * 4u + unit];
    let pair = vec2<f16>(w_affine(row, unit * 8u));
    // A code in the lowest bits of f16 1024 adds its value.
#for i in 0..4
    let code$i = vec2<f16>(unpack2x16float(((word >> ($iu * 4u)) & 0xf000fu) | 0x64006400u)) - vec2<f16>(1024.0h);
#if ZERO == 1
    let w$i = (code$i - pair.y) * pair.x;
#else
    let w$i = fma(code$i, vec2<f16>(pair.x), vec2<f16>(pair.y));
#endif
#endfor
    return Octet(vec4<f16>(w0.x, w1.x, w2.x, w3.x), vec4<f16>(w0.y, w1.y, w2.y, w3.y));
}
#else
fn octet_of(row: u32, unit: u32) -> Octet {
    let w = w_load8(row, unit);
    return Octet(elements(w.a), elements(w.b));
}
#endif
