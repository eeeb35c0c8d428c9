// One of the three matmuls of a linear layer with weights W [n, k], in tiles of 64 × 64:
//   FORWARD: out[m, n] = alpha · x[m, k] Wᵀ (+ bias), W in any layout;
//   INPUT: out[m, k] = alpha · dy[m, n] W, W in any layout;
//   WEIGHT: out[n, k] = alpha · dy[m, n]ᵀ x[m, k].
// `rows` and `cols` are those of out, `depth` is the length of the sums. ADD adds to out. All sums have one fixed order.
struct Params {
    rows: u32,
    cols: u32,
    depth: u32,
    a_offset: u32,
    a_stride: u32,
    out_offset: u32,
    out_stride: u32,
    alpha: f32,
#ifdef WEIGHT
    b_offset: u32,
    b_stride: u32,
#else
    row0: u32,
    k_blocks: u32,
    groups: u32,
#endif
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<f32>;
#ifdef WEIGHT
@group(0) @binding(2) var<storage, read> b: array<f32>;
#else
#import weights/any
#endif
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
#ifdef BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
#endif

// Rows of a tile are 65 apart, so that both orders of access are free of bank conflicts.
var<workgroup> a_tile: array<f32, 1040>;
var<workgroup> b_tile: array<f32, 1040>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let first_row = wid.y * 64u;
    let first_col = wid.x * 64u;
    let tx = lid % 16u;
    let ty = lid / 16u;
#for i in 0..4
    var acc$i = vec4<f32>(0.0);
#endfor
    for (var r0 = 0u; r0 < params.depth; r0 += 16u) {
        workgroupBarrier();
        for (var e = 0u; e < 4u; e++) {
#ifdef WEIGHT
            let i = lid % 64u;
            let r = lid / 64u + 4u * e;
            let at = params.a_offset + (r0 + r) * params.a_stride + first_row + i;
#else
            let i = lid / 16u + 16u * e;
            let r = lid % 16u;
            let at = params.a_offset + (first_row + i) * params.a_stride + r0 + r;
#endif
            var value = 0.0;
            if (first_row + i < params.rows && r0 + r < params.depth) { value = a[at]; }
            a_tile[r * 65u + i] = value;
        }
#ifdef WEIGHT
        for (var e = 0u; e < 4u; e++) {
            let j = lid % 64u;
            let r = lid / 64u + 4u * e;
            var value = 0.0;
            if (first_col + j < params.cols && r0 + r < params.depth) {
                value = b[params.b_offset + (r0 + r) * params.b_stride + first_col + j];
            }
            b_tile[r * 65u + j] = value;
        }
#endif
#ifdef FORWARD
        let j = lid / 4u;
        let r = lid % 4u * 4u;
        var four = vec4<f32>(0.0);
        if (first_col + j < params.cols && r0 + r < params.depth) { four = w_load4(params.row0 + first_col + j, r0 + r); }
        for (var e = 0u; e < 4u; e++) {
            var value = 0.0;
            if (r0 + r + e < params.depth) { value = four[e]; }
            b_tile[(r + e) * 65u + j] = value;
        }
#endif
#ifdef INPUT
        let j = lid % 16u * 4u;
        let r = lid / 16u;
        var four = vec4<f32>(0.0);
        if (first_col + j < params.cols && r0 + r < params.depth) { four = w_load4(params.row0 + r0 + r, first_col + j); }
        for (var e = 0u; e < 4u; e++) { b_tile[r * 65u + j + e] = four[e]; }
#endif
        workgroupBarrier();
        for (var r = 0u; r < 16u; r++) {
            let base = r * 65u;
            let right = vec4<f32>(b_tile[base + tx], b_tile[base + tx + 16u], b_tile[base + tx + 32u], b_tile[base + tx + 48u]);
#for i in 0..4
            acc$i += a_tile[base + ty + $iu * 16u] * right;
#endfor
        }
    }
#for i in 0..4
    store(first_row + ty + $iu * 16u, first_col + tx, acc$i);
#endfor
}

fn store(row: u32, col: u32, values: vec4<f32>) {
    if (row >= params.rows) { return; }
    for (var e = 0u; e < 4u; e++) {
        let c = col + 16u * e;
        if (c < params.cols) {
            let at = params.out_offset + row * params.out_stride + c;
            var value = params.alpha * values[e];
#ifdef BIAS
            value += bias[c];
#endif
#ifdef ADD
            value += out[at];
#endif
            out[at] = value;
        }
    }
}
