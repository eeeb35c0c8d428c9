// Probabilities as integers, identical to crate/src/sample/fixed.rs. Sums are exact, so neither their order nor
// floating-point optimizations can change the sampled token. u64 is vec2<u32>(low, high).

// Sampling parameters of a request, written once before its first token.
struct Sampling {
    // Gap per logit difference.
    scale: f32,
    // 0: all.
    top_k: u32,
    // Share of the mass in 1/2^32; all ones: all.
    top_p: u32,
    // Maximum gap that passes min-p.
    min_p_limit: u32,
    seed_low: u32,
    seed_high: u32,
    repetition: f32,
    repetition_inverse: f32,
    frequency: f32,
    presence: f32,
    // Zero, unknown to compilers.
    zero: u32,
    // With top-k: how many more of the most likely tokens are listed.
    more_listed: u32,
}

// Data between the kernels of one sampling.
struct Work {
    largest: f32,
    // 0 for success, else one of the STATUS_ constants.
    status: u32,
    // Entries of list.
    listed: atomic<u32>,
    // Top-p without top-k: the remaining mass before the listed gaps.
    missing: vec2<u32>,
    // Sums over all tokens with the same upper 10 bits of the gap.
    sums_low: array<atomic<u32>, 1024>,
    sums_high: array<atomic<u32>, 1024>,
    // Passing mass of 1024 tokens each, without listed tokens.
    blocks: array<vec2<u32>, 1024>,
    // Per 1024 tokens: largest adjusted logit, largest and smallest logit (as ordered words), whether one is NaN.
    partials: array<vec4<u32>, 1024>,
    // Tokens that the filters check individually: id and gap.
    list: array<vec2<u32>>,
}

const GAP_LIMIT: u32 = 0x3fffffc0u;
// The weight is zero from here.
const WEIGHTLESS_GAP: u32 = 0x20000000u;
const NO_TOP_P: u32 = 0xffffffffu;
const BLOCK: u32 = 1024u;
// Score of a token that must not be sampled.
const BANNED_SCORE: f32 = -1e30;
const STATUS_NOT_FINITE: u32 = 1u;
const STATUS_CONSTANT: u32 = 2u;
const STATUS_ALL_BANNED: u32 = 3u;

// Hides a value from the compiler, so that later operations are not fused or reassociated with earlier ones.
fn opaque(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) ^ sampling.zero);
}

// Upper half of a 64-bit product.
fn mul_high(a: u32, b: u32) -> u32 {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let middle = a1 * b0 + ((a0 * b0) >> 16u);
    let other = a0 * b1 + (middle & 0xffffu);
    return a1 * b1 + (middle >> 16u) + (other >> 16u);
}

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2(low, a.y + b.y + u32(low < a.x));
}

fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2(a.x - b.x, a.y - b.y - u32(a.x < b.x));
}

fn less64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

// fraction/2^32 of a mass.
fn share(fraction: u32, mass: vec2<u32>) -> vec2<u32> {
    return add64(vec2(fraction * mass.y, mul_high(fraction, mass.y)), vec2(mul_high(fraction, mass.x), 0u));
}

fn at_least_one(mass: vec2<u32>) -> vec2<u32> {
    if (mass.x == 0u && mass.y == 0u) {
        return vec2(1u, 0u);
    }
    return mass;
}

fn gap_of(largest: f32, score: f32) -> u32 {
    let difference = opaque(min(opaque(largest - score), 1e20));
    // The second limit holds even for a NaN logit.
    return min(u32(min(opaque(difference * sampling.scale), 1073741760.0)), GAP_LIMIT);
}

// 2^31 2^-gap, rounded.
fn weight_of(gap: u32) -> u32 {
    if (gap >= WEIGHTLESS_GAP) {
        return 0u;
    }
    let octave = gap >> 24u;
    let f = gap << 8u;
    var p = 0x00538abau - mul_high(f, 0x0007251bu);
    p = 0x0273c7f8u - mul_high(f, p);
    p = 0x0e34a46bu - mul_high(f, p);
    p = 0x3d7f581cu - mul_high(f, p);
    p = 0xb1721605u - mul_high(f, p);
    let mantissa = 0x80000000u - (mul_high(f, p) >> 1u);
    return (mantissa + ((1u << octave) >> 1u)) >> octave;
}

// A word that orders like its float.
fn ordered(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if ((bits & 0x80000000u) != 0u) {
        return ~bits;
    }
    return bits | 0x80000000u;
}

fn from_ordered(word: u32) -> f32 {
    if ((word & 0x80000000u) != 0u) {
        return bitcast<f32>(word ^ 0x80000000u);
    }
    return bitcast<f32>(~word);
}

// First word of Philox 4x32-10 for (step, 0, 0, 0) under the seed.
fn random_word(step: u32) -> u32 {
    var c = vec4(step, 0u, 0u, 0u);
    var key = vec2(sampling.seed_low, sampling.seed_high);
    for (var round = 0u; round < 10u; round++) {
        let high0 = mul_high(0xd2511f53u, c.x);
        let high1 = mul_high(0xcd9e8d57u, c.z);
        c = vec4(high1 ^ c.y ^ key.x, 0xcd9e8d57u * c.z, high0 ^ c.w ^ key.y, 0xd2511f53u * c.x);
        key += vec2(0x9e3779b9u, 0xbb67ae85u);
    }
    return c.x;
}
