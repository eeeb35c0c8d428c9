// y = x Wᵀ for many rows of x (prefill): a workgroup of 128 threads makes a tile of 64 rows by BN columns, each thread 8 rows
// by 4 or 8 columns of it in registers, from tiles of x and W of BK elements of K in workgroup memory (16 KiB). The next
// tiles are on their way from memory while one is worked on; W is dequantized once per tile. Sums are f32.
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
    act: u32,
    scale: f32,
    softcap: f32,
}
#import common/activation
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
#import weights/any
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
#ifdef BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
#endif
#ifdef RESIDUAL
@group(0) @binding(6) var<storage, read> residual: array<f32>;
#endif
@group(0) @binding(8) var<storage, read> state: State;

const BM4: u32 = 16u;
const BN4: u32 = BN / 4u;
#if BN == 128
const BK: u32 = 16u;
#else
const BK: u32 = 32u;
#endif

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

// Zero beyond K, whatever the buffer holds there; rows past the end repeat the last one.
fn load_x4(row: u32, k: u32) -> vec4<f32> {
    let v = x[(params.x_offset + min(row, state.rows - 1u) * params.x_stride + min(k, params.k - 1u)) / 4u];
    return select(vec4<f32>(0.0), v, vec4<u32>(k, k + 1u, k + 2u, k + 3u) < vec4<u32>(params.k));
}

fn finish(n: u32, row: u32, gate: f32, up: f32) {
    if (row >= state.rows || n >= params.n) {
        return;
    }
    var y = gate * params.scale;
#ifdef BIAS
    y += bias[n];
#endif
    y = activate(params.act, y);
#ifdef GATED
    var u = up * params.scale;
#ifdef BIAS
    u += bias[n + params.up_row];
#endif
    y *= u;
#endif
    if (params.softcap > 0.0) {
        y = params.softcap * safe_tanh(y / params.softcap);
    }
#ifdef RESIDUAL
    y += residual[params.res_offset + row * params.res_stride + n];
#endif
    out[params.out_offset + row * params.out_stride + n] = y;
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row0 = wid.y * 64u;
    // Eight rows by BN / 16 columns for each thread.
    let tr = lid / 16u;
    let tc = lid % 16u;
    // What the thread brings: four rows of x and of W by four elements of K.
    let x_row = row0 + (lid % BM4) * 4u;
    let x_k = lid / BM4 * 4u;
    let w_col = (lid % BN4) * 4u;
    let w_k = lid / BN4 * 4u;
#for i in 0..4
    let w_row$i = weight_row(wid.x, w_col + $iu);
    var nx$i: vec4<f32>;
    var nw$i: vec4<f32>;
#endfor
#for i in 0..8
#for j in 0..BN/64
    var acc$i_$j: vec4<f32>;
#endfor
#endfor
    let k_end = params.k_blocks * 32u;
    if (x_k < BK) {
#for i in 0..4
        nx$i = load_x4(x_row + $iu, x_k);
#endfor
    }
#for i in 0..4
    nw$i = w_load4(w_row$i, w_k);
#endfor
    for (var k0 = 0u; k0 < k_end; k0 += BK) {
        workgroupBarrier();
        if (x_k < BK) {
#for i in 0..4
            xt[(x_k + $iu) * BM4 + lid % BM4] = vec4<f32>(nx0[$i], nx1[$i], nx2[$i], nx3[$i]);
#endfor
        }
#for i in 0..4
        wt[(w_k + $iu) * BN4 + lid % BN4] = vec4<f32>(nw0[$i], nw1[$i], nw2[$i], nw3[$i]);
#endfor
        workgroupBarrier();
        let next = k0 + BK;
        if (next < k_end) {
            if (x_k < BK) {
#for i in 0..4
                nx$i = load_x4(x_row + $iu, next + x_k);
#endfor
            }
#for i in 0..4
            nw$i = w_load4(w_row$i, next + w_k);
#endfor
        }
        for (var k = 0u; k < BK; k += 4u) {
#for u in 0..4
            let xa$u = xt[(k + $uu) * BM4 + tr * 2u];
            let xb$u = xt[(k + $uu) * BM4 + tr * 2u + 1u];
#for j in 0..BN/64
            let w$u_$j = wt[(k + $uu) * BN4 + tc + $ju * 16u];
#for i in 0..4
            acc$i_$j = fma(vec4<f32>(xa$u[$i]), w$u_$j, acc$i_$j);
#endfor
#for i in 4..8
            acc$i_$j = fma(vec4<f32>(xb$u[$i - 4]), w$u_$j, acc$i_$j);
#endfor
#endfor
#endfor
        }
    }
    let row = row0 + tr * 8u;
#for i in 0..8
#for c in 0..4
#ifdef GATED
    finish(wid.x * (BN / 2u) + tc * 4u + $cu, row + $iu, acc$i_0[$c], acc$i_1[$c]);
#else
#for j in 0..BN/64
    finish(wid.x * BN + $ju * 64u + tc * 4u + $cu, row + $iu, acc$i_$j[$c], 0.0);
#endfor
#endif
#endfor
#endfor
}
