// Dot products of whole blocks of 32 weights with a prepared block of x: loads of up to sixteen bytes, one scale and
// bias for all. For affine weights of 4 or 8 bits in groups of at least 32, Q4_K, MXFP4 and ternary weights (BITS is
// 2).
#if BITS == 2
@group(0) @binding(2) var<storage, read> w_q: array<vec2<u32>>;
#else
@group(0) @binding(2) var<storage, read> w_q: array<vec4<u32>>;
#endif
#ifdef W_AFFINE
#import weights/scales
#endif
#ifdef W_Q4K
#import weights/q4_k_scales
#endif
#ifdef W_MXFP4
#import weights/mxfp4_scales
#endif
#ifdef W_TERNARY
@group(0) @binding(3) var<storage, read> w_s: array<u32>;

alias PairBits = u32;

fn w_bits(row: u32, k: u32) -> PairBits {
    return w_s[row];
}
#endif

// Four octets of codes: each a word of nibbles, or two words of bytes; with 2 bits, two octets share a word.
#if BITS == 8
alias Octet = vec2<u32>;
#else
alias Octet = u32;
#endif
#if BITS == 2
alias Codes = vec2<u32>;

fn w_codes(row: u32, block: u32) -> Codes {
    return w_q[row * params.k_blocks + block];
}
#else
struct Codes {
#for i in 0..4
    o$i: Octet,
#endfor
}

fn w_codes(row: u32, block: u32) -> Codes {
    let at = row * params.k_blocks + block;
#if BITS == 4
    let v = w_q[at];
    return Codes(v.x, v.y, v.z, v.w);
#else
    let v = w_q[2u * at];
    let u = w_q[2u * at + 1u];
    return Codes(v.xy, v.zw, u.xy, u.zw);
#endif
}
#endif

// (scale, bias): w = code * scale + bias.
fn w_line(bits: PairBits, block: u32) -> vec2<f32> {
#ifdef W_AFFINE
    var pair = w_pair(bits);
#if ZERO == 1
    pair.y *= -pair.x;
#endif
#endif
#ifdef W_Q4K
    let pair = w_pair(bits, block) * vec2<f32>(1.0, -1.0);
#endif
#ifdef W_MXFP4
    let pair = vec2<f32>(w_power(bits), 0.0);
#endif
#ifdef W_TERNARY
    let pair = bitcast<f32>(bits) * vec2<f32>(1.0, -1.0);
#endif
    return vec2<f32>(pair.x, fma(pair.x, OFFSET, pair.y));
}

// An octet as two times four signed bytes: of nibbles the even codes, then the odd ones; of MXFP4 twice their values.
fn w_bytes(octet: Octet) -> vec2<u32> {
#if BITS == 2
    return vec2<u32>(octet, octet >> 2u) & vec2<u32>(0x03030303u);
#endif
#if BITS == 4
#ifdef W_MXFP4
    // All eight at once: 0 1 2 3 4 6 8 12 in their nibbles; for negative values their complement to 16, then the upper
    // bits.
    let code = octet & 0x77777777u;
    // Except -0, since 16 does not fit a nibble.
    let below = (octet & (code + 0x77777777u) & 0x88888888u) >> 3u;
    let ones = below * 15u;
    // From 4 on, the lower two bits count twice; both together add two more.
    let again = octet & (((octet >> 2u) & 0x11111111u) * 3u);
    let size = code + again + (again & (again << 1u) & 0x22222222u);
    let value = (size ^ ones) + below;
    let even = (value & 0x0f0f0f0fu) | ((ones << 4u) & 0xf0f0f0f0u);
    return vec2<u32>(even, ((value >> 4u) & 0x0f0f0f0fu) | (ones & 0xf0f0f0f0u));
#else
    return vec2<u32>(octet, octet >> 4u) & vec2<u32>(0x0f0f0f0fu);
#endif
#endif
#if BITS == 8
    return octet ^ vec2<u32>(0x80808080u);
#endif
}

#if DOT == 1
#import common/packed_bytes

// x as 16-bit integers times `unit`, with low and high bytes packed to match four codes. A dot product of four bytes is
// one operation; the error is 2^-16 of the block's largest element. With X_BITS 8, x is 8-bit integers times `unit`, in the
// low bytes; with ROUND, it is integers.
struct XBlock {
    sum: f32,
    unit: f32,
#for i in 0..4
    low$i: vec2<u32>,
#if X_BITS == 16
    high$i: vec2<u32>,
#endif
#endfor
}
// An octet of x: low bytes, then high ones.
#if X_BITS == 16
alias XOctet = vec4<u32>;
#else
alias XOctet = vec2<u32>;
#endif

// The largest integer of x.
#if X_BITS == 16
const TOP: f32 = 32512.0;
#else
const TOP: f32 = 127.0;
#endif
// Dot products take signed bytes: 8-bit codes are stored minus 128.
#if BITS == 8
const OFFSET: f32 = 128.0;
#else
const OFFSET: f32 = 0.0;
#endif

// Elements 8i to 8i + 3 and the next four, times `inverse`, matching each half of an octet's codes; of nibbles, the
// first half are the even ones.
fn x_octet(a: vec4<f32>, b: vec4<f32>, inverse: f32) -> XOctet {
    let p = bitcast<vec4<u32>>(fma(a, vec4<f32>(inverse), vec4<f32>(WHOLE)));
    let q = bitcast<vec4<u32>>(fma(b, vec4<f32>(inverse), vec4<f32>(WHOLE)));
#if BITS == 4
    let first = vec4<u32>(p.xz, q.xz);
    let second = vec4<u32>(p.yw, q.yw);
#else
    let first = p;
    let second = q;
#endif
#if X_BITS == 8
    return vec2<u32>(bytes_of(first), bytes_of(second));
#else
    // The low bytes are signed: half of one rounds up.
    let up = vec4<u32>(128u);
    let high = vec2<u32>(bytes_of((first + up) >> vec4<u32>(8u)), bytes_of((second + up) >> vec4<u32>(8u)));
    return vec4<u32>(bytes_of(first), bytes_of(second), high);
#endif
}

#if BITS == 2
// Transposes bytes: the first bytes of four words, then the second ones, and so on.
fn x_turned(v: vec4<u32>) -> vec4<u32> {
    let even = vec2<u32>(0x00ff00ffu);
    let a = (v.xz & even) | ((v.yw & even) << vec2<u32>(8u));
    let b = ((v.xz >> vec2<u32>(8u)) & even) | (v.yw & ~even);
    let low = vec2<u32>(0xffffu);
    let first = (vec2<u32>(a.x, b.x) & low) | (vec2<u32>(a.y, b.y) << vec2<u32>(16u));
    let second = (vec2<u32>(a.x, b.x) >> vec2<u32>(16u)) | (vec2<u32>(a.y, b.y) & ~low);
    return vec4<u32>(first, second);
}
#endif

// The sum of (code - OFFSET) * x.
fn w_dot(codes: Codes, x: XBlock) -> f32 {
    var low = 0i;
#if X_BITS == 16
    var high = 0i;
#endif
#for i in 0..4
#if BITS == 2
    let q$i = w_bytes(codes[$iu / 2u] >> ($iu % 2u * 4u));
#else
    let q$i = w_bytes(codes.o$i);
#endif
    low += dot4I8Packed(q$i.x, x.low$i.x) + dot4I8Packed(q$i.y, x.low$i.y);
#if X_BITS == 16
    high += dot4I8Packed(q$i.x, x.high$i.x) + dot4I8Packed(q$i.y, x.high$i.y);
#endif
#endfor
#if X_BITS == 16
    return f32(high * 256 + low) * x.unit;
#else
#ifdef ROUND
    return f32(low);
#else
    return f32(low) * x.unit;
#endif
#endif
}
#else
// Elements 8i to 8i + 3 in a, the next four in b.
struct X32 {
#for i in 0..4
    a$i: vec4<f32>,
    b$i: vec4<f32>,
#endfor
}

fn x_sum(x: X32) -> vec4<f32> {
    return ((x.a0 + x.b0) + (x.a1 + x.b1)) + ((x.a2 + x.b2) + (x.a3 + x.b3));
}

// Codes are written into the mantissa of 1, without conversion. x is multiplied by each code's place value, and the
// contribution of the ones (`places`) is subtracted at the end.
struct XBlock {
    sum: f32,
    places: f32,
    x: X32,
}

#if BITS == 2
const OFFSET: f32 = 0.0;
const PLACE = vec4<f32>(256.0, 64.0, 16.0, 4.0);
const MASK = vec4<u32>(0x00018000u, 0x00060000u, 0x00180000u, 0x00600000u);
#endif
#if BITS == 4
#ifdef W_MXFP4
// Five bits: a value plus 16.
const OFFSET: f32 = -16.0;
const PLACE = vec4<f32>(32.0);
const MASK = vec4<u32>(0x007c0000u);
#else
const OFFSET: f32 = 0.0;
const PLACE = vec4<f32>(256.0, 16.0, 256.0, 16.0);
const MASK = vec4<u32>(0x00078000u, 0x00780000u, 0x00078000u, 0x00780000u);
#endif
#endif
#if BITS == 8
const OFFSET: f32 = 0.0;
const PLACE = vec4<f32>(256.0);
const MASK = vec4<u32>(0x007f8000u);
#endif

fn x_block(x: X32) -> XBlock {
    let sum = x_sum(x);
    var scaled: X32;
#for i in 0..4
    scaled.a$i = x.a$i * PLACE;
    scaled.b$i = x.b$i * PLACE;
#endfor
    return XBlock(dot(sum, vec4<f32>(1.0)), dot(sum, PLACE), scaled);
}

fn w_ones(placed: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>((placed & MASK) | vec4<u32>(0x3f800000u));
}

fn w_dot8(o: Octet, a: vec4<f32>, b: vec4<f32>) -> f32 {
#if BITS == 2
    return dot(w_ones(vec4<u32>(o << 15u)), a) + dot(w_ones(vec4<u32>(o << 7u)), b);
#endif
#if BITS == 4
#ifdef W_MXFP4
    let v = w_bytes(o) ^ vec2<u32>(0x10101010u);
    let first = vec4<u32>(v << vec2<u32>(18u), v << vec2<u32>(10u));
    let second = vec4<u32>(v << vec2<u32>(2u), v >> vec2<u32>(6u));
    return dot(w_ones(first), a) + dot(w_ones(second), b);
#else
    let first = vec2<u32>(o << 15u, o << 7u);
    let second = vec2<u32>(o >> 1u, o >> 9u);
    return dot(w_ones(first.xxyy), a) + dot(w_ones(second.xxyy), b);
#endif
#endif
#if BITS == 8
    let first = vec4<u32>(o.x << 15u, o.x << 7u, o.x >> 1u, o.x >> 9u);
    let second = vec4<u32>(o.y << 15u, o.y << 7u, o.y >> 1u, o.y >> 9u);
    return dot(w_ones(first), a) + dot(w_ones(second), b);
#endif
}

// The sum of (code - OFFSET) * x.
fn w_dot(codes: Codes, x: XBlock) -> f32 {
#for i in 0..4
#if BITS == 2
    let y$i = w_dot8(codes[$iu / 2u] >> ($iu % 2u * 16u), x.x.a$i, x.x.b$i);
#else
    let y$i = w_dot8(codes.o$i, x.x.a$i, x.x.b$i);
#endif
#endfor
    return (y0 + y1) + (y2 + y3) - x.places;
}
#endif
