// GEMV y = x Wᵀ for up to COLS rows of x on packed dot products of four bytes, for batches. x is quantized to 8 bits
// (quantize_rows.wgsl), weights have up to 8 bits. Eight threads read eight blocks of 32 of a row of W next to each other,
// each of four rows; a thread keeps the sums of its blocks with all rows of x until the end of K, while the next blocks
// load. PARTS such groups share K, and a workgroup has TILES of them. Integers are summed over a block, then scaled and added
// in f32. With GATED, eight of sixteen rows of W are of the gate, then the matching eight of up.
// QUANTIZED writes rows in 8 bits for the next matmul. With NORM these are rows times the norm's gain, not yet divided by
// their RMS; the rows in f32 and sums of their squares are written too. DIVIDED divides the results by the RMS of the
// matmul's input, from such sums.
#import matmul/packed_input
#import weights/block
#import matmul/epilogue
#ifdef QUANTIZED
@group(0) @binding(9) var<storage, read_write> quantized: array<vec2<u32>>;
#import matmul/quantize_octet
#ifdef NORM
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(11) var<storage, read> norm: array<vec4<f32>>;
#endif
// [row of x][output]: a group of 32 of each row.
var<workgroup> values: array<f32, COLS * 32u>;
#endif

// Threads along K, rows of W of a thread, and of its 32 threads.
const ALONG: u32 = 8u;
const EACH: u32 = 4u;
const ROWS: u32 = 16u;
const THREADS: u32 = 32u * PARTS * TILES;
#ifdef GATED
const OUTPUTS: u32 = 8u;
#else
const OUTPUTS: u32 = 16u;
#endif
// [tile][part][row of W][row of x]
var<workgroup> sums: array<f32, COLS * ROWS * PARTS * TILES>;
#ifdef DIVIDED
// The inverse RMS of each row of x.
var<workgroup> divisors: array<f32, COLS>;
#endif

fn weight_row(tile: u32, row: u32) -> u32 {
#ifdef GATED
    return output_row(min(tile * 8u + row % 8u, params.n - 1u)) + row / 8u * params.up_row;
#else
    return output_row(min(tile * ROWS + row, params.n - 1u));
#endif
}

// Adds the values of a pair of threads: of two rows of x each keeps one.
fn fold(a: vec4<f32>, b: vec4<f32>, place: u32, apart: u32) -> vec4<f32> {
    var kept = a;
    var sent = b;
    if ((place & apart) != 0u) {
        kept = b;
        sent = a;
    }
    return kept + subgroupShuffleXor(sent, apart);
}

// Sum of a dot product over the parts of K.
fn whole(tile: u32, c: u32, row: u32) -> f32 {
    var sum = 0.0;
#for p in 0..PARTS
    sum += sums[((tile * PARTS + $pu) * ROWS + row) * COLS + c];
#endfor
    return sum;
}

#ifdef QUANTIZED
// Writes a group of 32 outputs of each row, in `values`.
fn write_group(lid: u32, col0: u32, group: u32) {
    let c = lid / 4u;
    let octet = lid % 4u;
    var a: vec4<f32>;
    var b: vec4<f32>;
    var units = 0u;
    if (c < COLS && col0 + c < state.rows) {
#for i in 0..4
        a[$i] = values[c * 32u + octet * 8u + $iu];
        b[$i] = values[c * 32u + octet * 8u + 4u + $iu];
#endfor
        units = params.out_units;
    }
#ifdef NORM
    var square = dot(a, a) + dot(b, b);
    square += subgroupShuffleXor(square, 1u);
    square += subgroupShuffleXor(square, 2u);
    if (octet == 0u && units > 0u) {
        quantized[params.squares_at + (col0 + c) * params.out_units * 2u + group] = vec2<u32>(bitcast<u32>(square), 0u);
    }
    let gain = group * 8u + octet * 2u;
    a *= norm[gain] + params.norm_offset;
    b *= norm[gain + 1u] + params.norm_offset;
#endif
    quantize_octet(lid, col0 + c, units, group * 4u + octet, a, b, 1.0);
}
#endif

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let part = lid / 32u % PARTS;
    let own = lid / 32u / PARTS;
    let row0 = lid % 32u / ALONG * EACH;
    let place = lid % ALONG;
    let col0 = wid.z * COLS;
    let last = params.k_blocks - 1u;
#for j in 0..4
    let w_row$j = weight_row(wid.x * TILES + own, row0 + $ju);
    var codes$j = w_codes(w_row$j, min(part * ALONG + place, last));
    var bits$j = w_bits(w_row$j, min(part * ALONG + place, last) * 32u);
#endfor
#for c in 0..COLS
    // Of four rows of W.
    var acc$c: vec4<f32>;
    let x$c = min(col0 + $cu, state.rows - 1u) * params.units * 5u;
#endfor
#ifdef DIVIDED
    let divided = lid / ALONG;
    var square = 0.0;
    if (divided < COLS) {
        let first = params.divided_at + min(col0 + divided, state.rows - 1u) * params.units;
        for (var i = place; i < params.units; i += ALONG) {
            let pair = bitcast<vec4<f32>>(x[first + i]);
            square += pair.x + pair.z;
        }
    }
#endif
    for (var base = part * ALONG; base < params.k_blocks; base += PARTS * ALONG) {
        let block = min(base + place, last);
        let unit = block / 2u * 5u;
        let half = block % 2u;
#for j in 0..4
        let line$j = w_line(bits$j, block);
#for i in 0..4
        let w$j_$i = w_bytes(codes$j.o$i);
#endfor
#endfor
        var scales = vec4<f32>(line0.x, line1.x, line2.x, line3.x);
        var biases = vec4<f32>(line0.y, line1.y, line2.y, line3.y);
        if (base + place > last) {
            scales = vec4<f32>();
            biases = vec4<f32>();
        }
        let next = min(base + PARTS * ALONG + place, last);
#for j in 0..4
        codes$j = w_codes(w_row$j, next);
        bits$j = w_bits(w_row$j, next * 32u);
#endfor
#for c in 0..COLS
        {
            let low = x[x$c + unit + half * 2u];
            let high = x[x$c + unit + half * 2u + 1u];
            let lines = bitcast<vec4<f32>>(x[x$c + unit + 4u]);
            var line = lines.xy;
            if (half == 1u) { line = lines.zw; }
#for j in 0..4
            let dot$j = dot4I8Packed(w$j_0.x, low.x) + dot4I8Packed(w$j_0.y, low.y)
                + dot4I8Packed(w$j_1.x, low.z) + dot4I8Packed(w$j_1.y, low.w)
                + dot4I8Packed(w$j_2.x, high.x) + dot4I8Packed(w$j_2.y, high.y)
                + dot4I8Packed(w$j_3.x, high.z) + dot4I8Packed(w$j_3.y, high.w);
#endfor
            let dots = vec4<f32>(vec4<i32>(dot0, dot1, dot2, dot3));
            acc$c = fma(dots, scales * line.x, fma(biases, vec4<f32>(line.y), acc$c));
        }
#endfor
    }
    // The thread at place c of eight gets the sums of row c of x.
    let pair0 = fold(acc0, acc1, place, 1u);
    let pair1 = fold(acc2, acc3, place, 1u);
    var all = fold(pair0, pair1, place, 2u);
#if COLS == 8
    let pair2 = fold(acc4, acc5, place, 1u);
    let pair3 = fold(acc6, acc7, place, 1u);
    all = fold(all, fold(pair2, pair3, place, 2u), place, 4u);
#else
    all += subgroupShuffleXor(all, 4u);
#endif
    if (place < COLS) {
#for j in 0..4
        sums[((own * PARTS + part) * ROWS + row0 + $ju) * COLS + place] = all[$j];
#endfor
    }
#ifdef DIVIDED
    square += subgroupShuffleXor(square, 1u);
    square += subgroupShuffleXor(square, 2u);
    square += subgroupShuffleXor(square, 4u);
    if (divided < COLS && place == 0u) {
        divisors[divided] = inverseSqrt(square / f32(params.normed) + params.eps);
    }
#endif
    workgroupBarrier();
    for (var i = lid; i < COLS * OUTPUTS * TILES; i += THREADS) {
        let c = i / (OUTPUTS * TILES);
        let tile = i / OUTPUTS % TILES;
        let row = i % OUTPUTS;
        let col = col0 + c;
        let n = (wid.x * TILES + tile) * OUTPUTS + row;
        var factor = params.scale;
#ifdef DIVIDED
        factor *= divisors[c];
#endif
        var up = 0.0;
#ifdef GATED
        up = whole(tile, c, row + OUTPUTS);
#endif
#ifdef QUANTIZED
        // Outputs are a multiple of 64.
        let value = finished(whole(tile, c, row), up, factor, ending_of(min(col, state.rows - 1u), n));
        values[i] = value;
#ifdef NORM
        if (col < state.rows) { out[params.out_offset + col * params.out_stride + n] = value; }
#endif
#else
        if (n < params.n && col < state.rows) {
            finish(col, n, whole(tile, c, row), up, factor);
        }
#endif
    }
#ifdef QUANTIZED
    workgroupBarrier();
    write_group(lid, col0, wid.x);
#endif
}
