// Affine quantized weights of BITS bits: blocks of 32 along K take BITS words, first the 4-bit part (4 words), then the
// 2-bit part (2 words), then the 1-bit part (1 word), 8 bits as bytes; the 4-bit part holds the low bits.
// w_s holds a pair for each GROUP elements: w = q * scale + bias, or (q - zero) * scale when ZERO.
#ifdef VEC_BLOCKS
@group(0) @binding(2) var<storage, read> w_q: array<vec4<u32>>;
#else
@group(0) @binding(2) var<storage, read> w_q: array<u32>;
#endif
@group(0) @binding(3) var<storage, read> w_s: array<u32>;

// (scale, bias) of the group that holds element k of a row.
fn w_affine(row: u32, k: u32) -> vec2<f32> {
    let at = row * params.groups + k / GROUP;
    var pair: vec2<f32>;
    if (SCALE == 0u) {
        pair = unpack2x16float(w_s[at]);
    } else if (SCALE == 1u) {
        let word = w_s[at];
        pair = vec2<f32>(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u));
    } else {
        pair = vec2<f32>(bitcast<f32>(w_s[2u * at]), bitcast<f32>(w_s[2u * at + 1u]));
    }
    return pair;
}

fn w_scaled(q: vec4<f32>, row: u32, k: u32) -> vec4<f32> {
    let pair = w_affine(row, k);
    if (ZERO == 1u) {
        return (q - pair.y) * pair.x;
    }
    return q * pair.x + pair.y;
}

// Integers become floats by writing them into the mantissa of 2^23 and subtracting it: exact, and one operation where
// a conversion runs at a quarter of the rate.
const MAGIC_BITS = vec4<u32>(0x4b000000u);
const MAGIC = vec4<f32>(8388608.0);

#ifdef VEC_BLOCKS
const WORD4: u32 = BITS / 4u;

fn w_word(row: u32, k: u32) -> u32 {
    let index = (row * params.k_blocks + (k >> 5u)) * BITS + (k & 31u) * BITS / 32u;
    return w_q[index >> 2u][index & 3u];
}

fn w_load4(row: u32, k: u32) -> vec4<f32> {
    let word = w_word(row, k);
    if (BITS == 4u) {
        let part = vec4<u32>(word >> ((k & 4u) << 2u)) >> vec4<u32>(0u, 4u, 8u, 12u);
        return w_scaled(bitcast<vec4<f32>>((part & vec4<u32>(15u)) | MAGIC_BITS) - MAGIC, row, k);
    }
    let part = vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u);
    return w_scaled(bitcast<vec4<f32>>((part & vec4<u32>(255u)) | MAGIC_BITS) - MAGIC, row, k);
}

// w_dot leaves the integers where they lie in their word, so x is divided by their place values once per block.
fn w_prepare(x: ptr<function, array<vec4<f32>, 8>>) {
    var place = vec4<f32>(1.0, 0.0625, 0.00390625, 0.000244140625);
    if (BITS == 8u) {
        place = vec4<f32>(1.0, 0.00390625, 1.0, 0.00390625);
    }
    if (GROUP < 32u) {
        place = vec4<f32>(1.0);
    }
    for (var i = 0u; i < 8u; i++) {
        (*x)[i] *= place;
    }
}

fn w_dot(row: u32, block: u32, x: ptr<function, array<vec4<f32>, 8>>, sum: f32) -> f32 {
    let base = (row * params.k_blocks + block) * WORD4;
    var total = 0.0;
    if (GROUP < 32u) {
        // Two pairs in one block: each four weights are scaled by their own.
        for (var i = 0u; i < 8u; i++) {
            total += dot(w_load4(row, block * 32u + 4u * i), (*x)[i]);
        }
        return total;
    }
    if (BITS == 4u) {
        let mask = vec4<u32>(0xfu, 0xf0u, 0xf00u, 0xf000u);
        let words = w_q[base];
        for (var i = 0u; i < 4u; i++) {
            let word = words[i];
            total += dot(bitcast<vec4<f32>>((vec4<u32>(word) & mask) | MAGIC_BITS) - MAGIC, (*x)[2u * i]);
            total += dot(bitcast<vec4<f32>>((vec4<u32>(word >> 16u) & mask) | MAGIC_BITS) - MAGIC, (*x)[2u * i + 1u]);
        }
    } else {
        let mask = vec4<u32>(0xffu, 0xff00u, 0xffu, 0xff00u);
        for (var h = 0u; h < 2u; h++) {
            let words = w_q[base + h];
            for (var i = 0u; i < 4u; i++) {
                let word = words[i];
                let spread = vec4<u32>(word, word, word >> 16u, word >> 16u) & mask;
                total += dot(bitcast<vec4<f32>>(spread | MAGIC_BITS) - MAGIC, (*x)[4u * h + i]);
            }
        }
    }
    let pair = w_affine(row, block * 32u);
    if (ZERO == 1u) {
        return (total - pair.y * sum) * pair.x;
    }
    return total * pair.x + pair.y * sum;
}
#else
fn w_prepare(x: ptr<function, array<vec4<f32>, 8>>) {}

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
    let base = (row * params.k_blocks + (k >> 5u)) * BITS;
    return w_scaled(bitcast<vec4<f32>>(w_ints(base, k & 31u) | MAGIC_BITS) - MAGIC, row, k);
}

fn w_dot(row: u32, block: u32, x: ptr<function, array<vec4<f32>, 8>>, sum: f32) -> f32 {
    var total = 0.0;
    for (var i = 0u; i < 8u; i++) {
        total += dot(w_load4(row, block * 32u + 4u * i), (*x)[i]);
    }
    return total;
}
#endif
