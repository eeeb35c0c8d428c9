// Adds the partial sums of a split-K GEMM and applies the epilogue. A thread takes one column of ROWS rows, so that
// their loads overlap. EXPERTS: the inputs are tiles of one expert's pairs (shaders/experts/bucket.wgsl), unsplit;
// wid.y is the tile.
// QUANTIZED writes rows in 8 bits for the next matmul. With NORM these are rows times the norm's gain, not yet divided by
// their RMS; the rows in f32 and sums of their squares are written too. DIVIDED divides the results by the RMS of the
// matmul's input, from such sums.
struct Params {
    n: u32,
    tiles: u32,
    tile_rows: u32,
    tile_cols: u32,
#ifdef EXPERTS
    order_at: u32,
    expert_rows: u32,
    row_step: u32,
    alpha: f32,
    limit: f32,
#else
    target_groups: u32,
    max_splits: u32,
#endif
#ifdef QUANTIZED
    units: u32,
#ifdef NORM
    norm_offset: f32,
    out_offset: u32,
    out_stride: u32,
#endif
#else
    out_offset: u32,
    out_stride: u32,
#endif
#ifdef DIVIDED
    eps: f32,
    // Columns that were normed.
    normed: u32,
#endif
#ifdef OPTIONAL
    has: u32,
#endif
    res_offset: u32,
    res_stride: u32,
    res_times: u32,
    up_row: u32,
    scale: f32,
    softcap: f32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
const THREADS: u32 = 256u;
#import matmul/epilogue
#ifdef QUANTIZED
@group(0) @binding(9) var<storage, read_write> quantized: array<vec2<u32>>;
#import matmul/quantize_octet
#ifdef NORM
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(10) var<storage, read_write> squares: array<f32>;
@group(0) @binding(11) var<storage, read> norm: array<vec4<f32>>;
var<workgroup> octet_squares: array<f32, THREADS>;
#endif
var<workgroup> values: array<array<f32, THREADS>, ROWS>;
#endif
// Divides the tile height.
const ROWS: u32 = 4u;
@group(0) @binding(7) var<storage, read> parts: array<f32>;
#ifdef DIVIDED
// [row][a sum for 256 columns, padded with zeros to a multiple of four].
@group(0) @binding(10) var<storage, read> squares: array<vec4<f32>>;
#endif
#ifdef EXPERTS
@group(0) @binding(8) var<storage, read> buckets: array<u32>;
var<private> bias_row: u32;
const out_first: u32 = 0u;
#else
@group(0) @binding(8) var<storage, read> state: State;
#endif

// Partial sums of ROWS rows. A tile stores all its lines, with or without rows.
fn rows_at(at: u32, width: u32) -> vec4<f32> {
    return vec4<f32>(parts[at], parts[at + width], parts[at + 2u * width], parts[at + 3u * width]);
}

#ifdef GATED
// The same of the up projection, if there is one.
fn up_rows_at(at: u32, width: u32) -> vec4<f32> {
#ifdef OPTIONAL
    if (!has(GATE)) {
        return vec4<f32>(0.0);
    }
#endif
    return rows_at(at + 32u, width);
}
#endif

// Column of an output's partial sums. A gate's and the matching ones of up alternate by 32.
fn column_of(n: u32) -> u32 {
#ifdef GATED
#ifdef OPTIONAL
    if (!has(GATE)) {
        return n;
    }
#endif
    return n / 32u * 64u + n % 32u;
#else
    return n;
#endif
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
#ifdef EXPERTS
    const splits = 1u;
    let columns = (params.n + 255u) / 256u;
    let n = wid.x % columns * 256u + lid;
    let first = wid.x / columns * ROWS;
    let place = buckets[5u + wid.y * 4u] + first;
    let end = buckets[6u + wid.y * 4u];
    let rows = min(end - min(place, end), ROWS);
    if (n >= params.n || wid.y >= buckets[0] || rows == 0u) {
        return;
    }
    let lines = 0u;
    let line = wid.y * params.tile_rows + first;
    bias_row = buckets[4u + wid.y * 4u] * params.expert_rows;
#else
    let line = wid.y * ROWS;
    let rows = min(state.rows - min(line, state.rows), ROWS);
#ifdef QUANTIZED
    let n = min(wid.x * THREADS + lid, params.n - 1u);
    if (rows == 0u) {
        return;
    }
#else
    let n = wid.x * THREADS + lid;
    if (n >= params.n || rows == 0u) {
        return;
    }
#endif
    // Must match GridSpec::SplitK.
    let row_tiles = (state.rows + params.tile_rows - 1u) / params.tile_rows;
    let tiles = params.tiles * row_tiles;
    var splits = clamp(params.target_groups / tiles, 1u, params.max_splits);
    let last = tiles % params.target_groups;
    if (tiles > params.target_groups && tiles < 4u * params.target_groups && last > 0u && 2u * last <= params.target_groups) {
        splits = min(params.max_splits, 2u);
    }
    let lines = row_tiles * params.tile_rows;
#endif
    let column = column_of(n);
    let width = params.tiles * params.tile_cols;
#for r in 0..4
#ifdef EXPERTS
    let row$r = buckets[params.order_at + place + min($ru, rows - 1u)];
#else
    let row$r = line + min($ru, rows - 1u);
#endif
    let ending$r = ending_of(row$r, n);
#ifdef DIVIDED
    var square$r: vec4<f32>;
#else
    let scale$r = params.scale;
#endif
#endfor
    var sum: vec4<f32>;
    var up: vec4<f32>;
#ifdef DIVIDED
    let count = (params.normed + 4u * THREADS - 1u) / (4u * THREADS);
    for (var i = 0u; i < count; i++) {
#for r in 0..4
        square$r += squares[row$r * count + i];
#endfor
    }
#for r in 0..4
    let scale$r = params.scale * inverseSqrt(dot(square$r, vec4<f32>(1.0)) / f32(params.normed) + params.eps);
#endfor
#endif
    let step = lines * width;
    var at = line * width + column;
    var s = 0u;
    // Partial sums of four workgroups are loaded at once.
    for (; s + 4u <= splits; s += 4u) {
#for i in 0..4
        let part$i = rows_at(at + $iu * step, width);
#ifdef GATED
        let up_part$i = up_rows_at(at + $iu * step, width);
#endif
#endfor
#for i in 0..4
        sum += part$i;
#ifdef GATED
        up += up_part$i;
#endif
#endfor
        at += 4u * step;
    }
    for (; s < splits; s++) {
        sum += rows_at(at, width);
#ifdef GATED
        up += up_rows_at(at, width);
#endif
        at += step;
    }
#ifdef QUANTIZED
#for r in 0..4
    var value$r = finished(sum[$r], up[$r], scale$r, ending$r);
    if (wid.x * THREADS + lid > n) { value$r = 0.0; }
    values[$r][lid] = value$r;
#ifdef NORM
    if ($ru < rows && wid.x * THREADS + lid == n) { out[params.out_offset + row$r * params.out_stride + n] = value$r; }
#endif
#endfor
    workgroupBarrier();
    // 32 threads take a row.
    let octet = lid % 32u;
    let r = lid / 32u;
    var a: vec4<f32>;
    var b: vec4<f32>;
    var units = 0u;
    if (r < rows) {
#for i in 0..4
        a[$i] = values[r][octet * 8u + $iu];
        b[$i] = values[r][octet * 8u + 4u + $iu];
#endfor
        units = params.units;
    }
#ifdef NORM
    octet_squares[lid] = dot(a, a) + dot(b, b);
    let gain = min(wid.x * 64u + octet * 2u, params.n / 4u - 2u);
    a *= norm[gain] + params.norm_offset;
    b *= norm[gain + 1u] + params.norm_offset;
#endif
    quantize_octet(lid, line + r, units, wid.x * 32u + octet, a, b, 1.0);
#ifdef NORM
    if (octet == 0u && r < rows) {
        var sum = 0.0;
        for (var i = 0u; i < 32u; i++) { sum += octet_squares[lid + i]; }
        let count = (params.n + 4u * THREADS - 1u) / (4u * THREADS) * 4u;
        let at = (line + r) * count;
        squares[at + wid.x] = sum;
        // The last one also fills up to a multiple of four.
        for (var i = wid.x + 1u; (wid.x + 1u) * THREADS >= params.n && i < count; i++) { squares[at + i] = 0.0; }
    }
#endif
#else
#for r in 0..4
    if ($ru < rows) {
        finish_with(row$r, n, sum[$r], up[$r], scale$r, ending$r);
    }
#endfor
#endif
}
