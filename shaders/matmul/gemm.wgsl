// y = x Wᵀ for many rows of x (prefill): a workgroup makes a tile of BM rows by BN columns, each thread 8 by 8 of it in
// registers, from tiles of 16 elements of K in workgroup memory. The next tiles are on their way from memory while one is
// worked on; some threads bring x, others W, dequantized once per tile. Sums are f32.
// Where tiles are too few to fill a device, the workgroups of one tile (along z) share K, and gemm_join adds their parts.
struct Params {
    k: u32,
    k_blocks: u32,
    groups: u32,
    n: u32,
    row0: u32,
    x_offset: u32,
    x_stride: u32,
    out_offset: u32,
    out_stride: u32,
    res_offset: u32,
    res_stride: u32,
    up_row: u32,
    scale: f32,
    softcap: f32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
#import weights/any
#import matmul/finish
#import matmul/inside
@group(0) @binding(7) var<storage, read_write> parts: array<vec4<f32>>;
@group(0) @binding(8) var<storage, read> state: State;

const BK: u32 = 16u;
const BM4: u32 = BM / 4u;
const BN4: u32 = BN / 4u;
const THREADS: u32 = BM * BN / 64u;

// [k][row / 4] and [k][column / 4]: a thread reads four rows or columns of one k at once.
var<workgroup> xt: array<vec4<f32>, BK * BM4>;
var<workgroup> wt: array<vec4<f32>, BK * BN4>;

// The row of W that makes column c of this tile; with GATED the tile's halves are gate and up.
fn weight_row(tile: u32, c: u32) -> u32 {
#ifdef GATED
    const HALF = BN / 2u;
    let n = min(tile * HALF + c % HALF, params.n - 1u);
    return params.row0 + n + (c / HALF) * params.up_row;
#else
    return params.row0 + min(tile * BN + c, params.n - 1u);
#endif
}

// Rows past the end repeat the last one.
fn load_x4(row: u32, k: u32) -> vec4<f32> {
    let v = x[(params.x_offset + min(row, state.rows - 1u) * params.x_stride + min(k, params.k - 1u)) / 4u];
    return inside(v, k);
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let tr = lid / (BN / 8u);
    let tc = lid % (BN / 8u);
    // The first threads bring four rows of W by eight elements of K, the last ones four rows of x.
    let brings_w = lid < BN / 2u;
    let item = select(lid - (THREADS - BM / 2u), lid, brings_w);
    let brings_x = lid >= THREADS - BM / 2u;
    let quad = item % select(BM4, BN4, brings_w);
    let unit = item / select(BM4, BN4, brings_w);
#for i in 0..4
    let row$i = select(wid.y * BM + quad * 4u + $iu, weight_row(wid.x, quad * 4u + $iu), brings_w);
    var next$i: X8;
#endfor
#for i in 0..8
#for j in 0..2
    var acc$i_$j: vec4<f32>;
#endfor
#endfor
    let tiles = params.k_blocks * 2u;
    let share = (tiles + groups.z - 1u) / groups.z;
    let last = min((wid.z + 1u) * share, tiles);
    for (var tile = wid.z * share; tile <= last; tile++) {
        // The first round only brings, the last one only works.
        if (tile > wid.z * share) {
            workgroupBarrier();
            if (brings_w) {
#for i in 0..4
                wt[(unit * 8u + $iu) * BN4 + quad] = vec4<f32>(next0.a[$i], next1.a[$i], next2.a[$i], next3.a[$i]);
                wt[(unit * 8u + 4u + $iu) * BN4 + quad] = vec4<f32>(next0.b[$i], next1.b[$i], next2.b[$i], next3.b[$i]);
#endfor
            } else if (brings_x) {
#for i in 0..4
                xt[(unit * 8u + $iu) * BM4 + quad] = vec4<f32>(next0.a[$i], next1.a[$i], next2.a[$i], next3.a[$i]);
                xt[(unit * 8u + 4u + $iu) * BM4 + quad] = vec4<f32>(next0.b[$i], next1.b[$i], next2.b[$i], next3.b[$i]);
#endfor
            }
            workgroupBarrier();
        }
        if (tile < last) {
            if (brings_w) {
#for i in 0..4
                next$i = w_load8(row$i, tile * 2u + unit);
#endfor
            } else if (brings_x) {
#for i in 0..4
                next$i = X8(load_x4(row$i, tile * BK + unit * 8u), load_x4(row$i, tile * BK + unit * 8u + 4u));
#endfor
            }
        }
        if (tile > wid.z * share) {
            for (var k = 0u; k < BK; k += 4u) {
#for u in 0..4
                let xa$u = xt[(k + $uu) * BM4 + tr * 2u];
                let xb$u = xt[(k + $uu) * BM4 + tr * 2u + 1u];
                let wa$u = wt[(k + $uu) * BN4 + tc];
                let wb$u = wt[(k + $uu) * BN4 + BN4 / 2u + tc];
#for i in 0..4
                acc$i_0 = fma(vec4<f32>(xa$u[$i]), wa$u, acc$i_0);
                acc$i_1 = fma(vec4<f32>(xa$u[$i]), wb$u, acc$i_1);
#endfor
#for i in 4..8
                acc$i_0 = fma(vec4<f32>(xb$u[$i - 4]), wa$u, acc$i_0);
                acc$i_1 = fma(vec4<f32>(xb$u[$i - 4]), wb$u, acc$i_1);
#endfor
#endfor
            }
        }
    }
    let row = wid.y * BM + tr * 8u;
    if (groups.z > 1u) {
        let at = ((wid.z * groups.y * BM + row) * groups.x + wid.x) * BN4 + tc;
#for i in 0..8
        parts[at + $iu * groups.x * BN4] = acc$i_0;
        parts[at + $iu * groups.x * BN4 + BN4 / 2u] = acc$i_1;
#endfor
        return;
    }
#for i in 0..8
    if (row + $iu < state.rows) {
#for c in 0..4
#ifdef GATED
        let n$i_$c = wid.x * (BN / 2u) + tc * 4u + $cu;
        if (n$i_$c < params.n) { finish(row + $iu, n$i_$c, acc$i_0[$c], acc$i_1[$c], params.scale); }
#else
        let n$i_$c = wid.x * BN + tc * 4u + $cu;
        if (n$i_$c < params.n) { finish(row + $iu, n$i_$c, acc$i_0[$c], 0.0, params.scale); }
        if (n$i_$c + BN / 2u < params.n) { finish(row + $iu, n$i_$c + BN / 2u, acc$i_1[$c], 0.0, params.scale); }
#endif
#endfor
    }
#endfor
}
