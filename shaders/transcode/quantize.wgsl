// Quantizes dense rows on load to affine codes of 4 or 8 bits: groups of 32, f16 scale and bias. A group's range is
// clipped by 0, 1, 2 or 4 quarters of a step at either end. With 4 bits, a line is fitted to each clipping's codes, up
// to three times. The pair of least squared error wins. All comparisons use integers or exact products, so the result
// equals the CPU reference bit for bit.
#import transcode/pack
#import transcode/number
@group(0) @binding(3) var<storage, read_write> out_s: array<u32>;

// Line fits per clipping, each to the codes of the previous line.
const FITS: u32 = 3u;
const STEPS: u32 = (1u << BITS) - 1u;
const STEP: f32 = 1.0 / f32(STEPS);
var<private> x: array<f32, 32>;

// Code of the value nearest to v; ties go to the smaller code.
fn nearest(v: f32, scale: f32, bias: f32, inverse: f32) -> u32 {
    let guess = i32(clamp(round((v - bias) * inverse), 0.0, f32(STEPS)));
    var best = u32(max(guess - 1, 0));
    var least = abs(v - (f32(best) * scale + bias));
    for (var c = best + 1u; c <= min(u32(guess) + 1u, STEPS); c++) {
        let error = abs(v - (f32(c) * scale + bias));
        if (error < least) {
            least = error;
            best = c;
        }
    }
    return best;
}

fn inverse_of(scale: f32) -> f32 {
    if (scale == 0.0) {
        return 0.0;
    }
    return 1.0 / scale;
}

// A scale as f16 bits. Subnormals are rounded up, so that the codes span the range; below 2^-40 it is 0.
fn scale_bits(scale: f32) -> u32 {
    if (scale < 9.094947017729282e-13) {
        return 0u;
    }
    if (scale < 6.103515625e-5) {
        return u32(ceil(scale * 16777216.0));
    }
    return f16_bits(scale);
}

var<private> best_error: u32;
var<private> best: vec2<u32>;

// Stores a pair (as f16 bits) if its error is the least so far; errors are in units of 1 / unit.
fn offer(bits: vec2<u32>, n: u32, unit: f32) {
    let scale = f16_value(bits.x);
    let bias = f16_value(bits.y);
    let inverse = inverse_of(scale);
    var error = 0u;
    for (var i = 0u; i < n; i++) {
        let q = nearest(x[i], scale, bias, inverse);
        let e = u32(min(round(abs(x[i] - (f32(q) * scale + bias)) * unit), 8191.0));
        error += e * e;
    }
    if (error < best_error) {
        best_error = error;
        best = bits;
    }
}

// Least-squares line through the codes of a pair, in integers of 1 / unit above low; the pair itself if there is none.
fn fitted(bits: vec2<u32>, n: u32, unit: f32, inverse_unit: f32, low: f32) -> vec2<u32> {
    let scale = f16_value(bits.x);
    let bias = f16_value(bits.y);
    let inverse = inverse_of(scale);
    var q1 = 0;
    var q2 = 0;
    var x1 = 0;
    var qx = 0;
    for (var i = 0u; i < n; i++) {
        let q = i32(nearest(x[i], scale, bias, inverse));
        let at = i32(round((x[i] - low) * unit));
        q1 += q;
        q2 += q * q;
        x1 += at;
        qx += q * at;
    }
    let square = i32(n) * q2 - q1 * q1;
    let slope = i32(n) * qx - q1 * x1;
    if (square <= 0 || slope <= 0) {
        return bits;
    }
    let sixteenths = (u32(slope) * 16u + u32(square) / 2u) / u32(square);
    var start = x1 * q2 - q1 * qx;
    if (start < 0) {
        start -= square / 2;
    } else {
        start += square / 2;
    }
    start /= square;
    if (abs(start) > 1048576) {
        return bits;
    }
    return vec2<u32>(f16_bits(f32(sixteenths) * 0.0625 * inverse_unit), f16_bits(low + f32(start) * inverse_unit));
}

fn make_block(row: u32, source: u32, block: u32) {
    let n = min(32u, params.cols - block * 32u);
    let start = source * params.cols + block * 32u;
    var low = 3.0e38;
    var high = -3.0e38;
    for (var i = 0u; i < n; i++) {
        x[i] = clamp(number(start + i), -65504.0, 65504.0);
        low = min(low, x[i]);
        high = max(high, x[i]);
    }
    let range = high - low;
    let step = range * STEP;
    let quarter = step * 0.25;
    // Errors are in units of 2^(exponent of the range - 12), or - 16 with 8 bits.
    let exponent = bitcast<u32>(range) >> 23u;
#if BITS == 8
    const FINE = 16u;
#else
    const FINE = 12u;
#endif
    let unit = bitcast<f32>(clamp(254u + FINE - max(exponent, 1u), 1u, 254u) << 23u);
    best_error = 0xffffffffu;
    best = vec2<u32>(0u, 0u);
    for (var c = 0u; c < 16u; c++) {
        let clip = vec2<u32>(c & 3u, c >> 2u);
        let low_c = low + f32((1u << clip.x) >> 1u) * quarter;
        let high_c = high - f32((1u << clip.y) >> 1u) * quarter;
        var bits = vec2<u32>(scale_bits((high_c - low_c) * STEP), f16_bits(low_c));
        offer(bits, n, unit);
        // Sums of 8-bit codes would overflow 32 bits; 8 bits do not need the fit.
        if (BITS == 4u && exponent >= 32u && exponent < 223u) {
            for (var fit = 0u; fit < FITS; fit++) {
                let better = fitted(bits, n, unit, bitcast<f32>((exponent - 12u) << 23u), low);
                if (all(better == bits)) {
                    break;
                }
                bits = better;
                offer(bits, n, unit);
            }
        }
    }
    let scale = f16_value(best.x);
    let bias = f16_value(best.y);
    let inverse = inverse_of(scale);
    for (var i = 0u; i < n; i++) {
        put(BITS, i, nearest(x[i], scale, bias, inverse));
    }
    store_block(BITS, row, block);
    out_s[(params.out_row + row) * params.groups + block] = best.x | (best.y << 16u);
}
