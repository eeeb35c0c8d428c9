// Affine weights of BITS bits. A block of 32 along K takes BITS words: first the 4-bit part (4 words), then the 2-bit
// part (2 words), then the 1-bit part (1 word); 8 bits are bytes. The 4-bit part holds the low bits. Each group has a
// pair: w = q * scale + bias, or (q - zero) * scale with ZERO.
#if BITS == 8
@group(0) @binding(2) var<storage, read> w_q: array<vec2<u32>>;
#else
@group(0) @binding(2) var<storage, read> w_q: array<u32>;
#endif
#import weights/scales

fn w_scaled(q: vec4<f32>, row: u32, k: u32) -> vec4<f32> {
    let pair = w_affine(row, k);
#if ZERO == 1
    return (q - pair.y) * pair.x;
#else
    return q * pair.x + pair.y;
#endif
}

// Both halves of a unit of eight are in one group.
fn w_scaled8(a: vec4<f32>, b: vec4<f32>, row: u32, unit: u32) -> X8 {
    let pair = w_affine(row, unit * 8u);
#if ZERO == 1
    return X8((a - pair.y) * pair.x, (b - pair.y) * pair.x);
#else
    return X8(a * pair.x + pair.y, b * pair.x + pair.y);
#endif
}

// Integers become floats by writing them into the mantissa of 2^23 and subtracting it: exact, and one operation, while
// conversions run at a quarter of the rate.
const MAGIC_BITS = vec4<u32>(0x4b000000u);
const MAGIC = vec4<f32>(8388608.0);

fn w_float(q: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(q | MAGIC_BITS) - MAGIC;
}

#if BITS == 4
fn w_load4(row: u32, k: u32) -> vec4<f32> {
    let word = w_q[row * params.k_blocks * 4u + (k >> 3u)];
    let part = vec4<u32>(word >> ((k & 4u) << 2u)) >> vec4<u32>(0u, 4u, 8u, 12u);
    return w_scaled(w_float(part & vec4<u32>(15u)), row, k);
}

fn w_load8(row: u32, unit: u32) -> X8 {
    let word = w_q[row * params.k_blocks * 4u + unit];
    const PLACES = vec4<u32>(0u, 4u, 8u, 12u);
    let low = w_float((vec4<u32>(word) >> PLACES) & vec4<u32>(15u));
    let high = w_float((vec4<u32>(word >> 16u) >> PLACES) & vec4<u32>(15u));
    return w_scaled8(low, high, row, unit);
}

// w_dot8 does not shift the integers within their word, so x is divided by their place values once.
fn w_prepare8(x: X8) -> X8 {
    const PLACE = vec4<f32>(1.0, 0.0625, 0.00390625, 0.000244140625);
    return X8(x.a * PLACE, x.b * PLACE);
}

fn w_dot8(row: u32, unit: u32, x: X8, sum: f32) -> f32 {
    const MASK = vec4<u32>(0xfu, 0xf0u, 0xf00u, 0xf000u);
    let word = w_q[row * params.k_blocks * 4u + unit];
    let low = w_float(vec4<u32>(word) & MASK);
    let high = w_float(vec4<u32>(word >> 16u) & MASK);
    return w_sum8(dot(low, x.a) + dot(high, x.b), row, unit, sum);
}
#endif
#if BITS == 8
fn w_load4(row: u32, k: u32) -> vec4<f32> {
    let words = w_q[row * params.k_blocks * 4u + (k >> 3u)];
    var word = words.x;
    if ((k & 4u) != 0u) { word = words.y; }
    let part = vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u);
    return w_scaled(w_float(part & vec4<u32>(255u)), row, k);
}

fn w_load8(row: u32, unit: u32) -> X8 {
    let words = w_q[row * params.k_blocks * 4u + unit];
    const PLACES = vec4<u32>(0u, 8u, 16u, 24u);
    let low = w_float((vec4<u32>(words.x) >> PLACES) & vec4<u32>(255u));
    let high = w_float((vec4<u32>(words.y) >> PLACES) & vec4<u32>(255u));
    return w_scaled8(low, high, row, unit);
}

fn w_prepare8(x: X8) -> X8 {
    const PLACE = vec4<f32>(1.0, 0.00390625, 1.0, 0.00390625);
    return X8(x.a * PLACE, x.b * PLACE);
}

fn w_spread(word: u32) -> vec4<f32> {
    return w_float(vec4<u32>(word, word, word >> 16u, word >> 16u) & vec4<u32>(0xffu, 0xff00u, 0xffu, 0xff00u));
}

fn w_dot8(row: u32, unit: u32, x: X8, sum: f32) -> f32 {
    let words = w_q[row * params.k_blocks * 4u + unit];
    return w_sum8(dot(w_spread(words.x), x.a) + dot(w_spread(words.y), x.b), row, unit, sum);
}
#endif

fn w_sum8(total: f32, row: u32, unit: u32, sum: f32) -> f32 {
    let pair = w_affine(row, unit * 8u);
#if ZERO == 1
    return (total - pair.y * sum) * pair.x;
#else
    return total * pair.x + pair.y * sum;
#endif
}

#if BITS != 4
#if BITS != 8
// Four integers at element k (a multiple of 4) of a block whose parts start at word `base`.
fn w_ints(base: u32, k: u32) -> vec4<u32> {
    var at = base;
    var low = 0u;
    var q = vec4<u32>(0u);
    if ((BITS & 4u) != 0u) {
        q = (vec4<u32>(w_q[at + (k >> 3u)]) >> (vec4<u32>((k & 4u) << 2u) + vec4<u32>(0u, 4u, 8u, 12u))) & vec4<u32>(15u);
        at += 4u;
        low = 4u;
    }
    if ((BITS & 2u) != 0u) {
        let part = (vec4<u32>(w_q[at + (k >> 4u)]) >> (vec4<u32>((k & 12u) << 1u) + vec4<u32>(0u, 2u, 4u, 6u))) & vec4<u32>(3u);
        q |= part << vec4<u32>(low);
        at += 2u;
        low += 2u;
    }
    if ((BITS & 1u) != 0u) {
        let part = (vec4<u32>(w_q[at]) >> (vec4<u32>(k & 28u) + vec4<u32>(0u, 1u, 2u, 3u))) & vec4<u32>(1u);
        q |= part << vec4<u32>(low);
    }
    return q;
}

fn w_load4(row: u32, k: u32) -> vec4<f32> {
    return w_scaled(w_float(w_ints((row * params.k_blocks + (k >> 5u)) * BITS, k & 31u)), row, k);
}

fn w_load8(row: u32, unit: u32) -> X8 {
    let base = (row * params.k_blocks + (unit >> 2u)) * BITS;
    let k = (unit & 3u) * 8u;
    return w_scaled8(w_float(w_ints(base, k)), w_float(w_ints(base, k + 4u)), row, unit);
}

fn w_prepare8(x: X8) -> X8 {
    return x;
}

fn w_dot8(row: u32, unit: u32, x: X8, sum: f32) -> f32 {
    let base = (row * params.k_blocks + (unit >> 2u)) * BITS;
    let k = (unit & 3u) * 8u;
    return w_sum8(dot(w_float(w_ints(base, k)), x.a) + dot(w_float(w_ints(base, k + 4u)), x.b), row, unit, sum);
}
#endif
#endif
