// y = x Wᵀ for many rows of x (prefill): a workgroup of 128 threads makes a tile of 64 rows by BN columns, each thread
// 8 by BN/16 of it, from tiles of x and W of 32 elements of K in workgroup memory; W is dequantized once per tile.
// Tiles hold f16 where F16 is set, sums are f32.
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
#ifdef F16
alias real = f16;
#else
alias real = f32;
#endif
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

const BM: u32 = 64u;
const BK: u32 = 16u;
const TN: u32 = BN / 16u;

// [k][row / 4] and [k][column / 4], so that a thread reads four rows or columns of one k at once.
var<workgroup> xt: array<vec4<real>, BK * BM / 4u>;
var<workgroup> wt: array<vec4<real>, BK * BN / 4u>;

// The row of W that makes column c of this tile; with GATED the tile's halves are gate and up.
fn weight_row(tile: u32, c: u32) -> u32 {
#ifdef GATED
    let half = BN / 2u;
    let n = min(tile * half + c % half, params.n - 1u);
    return params.row0 + n + (c / half) * params.up_row;
#else
    return params.row0 + min(tile * BN + c, params.n - 1u);
#endif
}

fn load_x4(row: u32, k: u32) -> vec4<f32> {
    var v = vec4<f32>(0.0);
    if (row < state.rows && k < params.k) {
        v = x[(params.x_offset + row * params.x_stride + k) / 4u];
        if (k + 4u > params.k) {
            for (var c = 1u; c < 4u; c++) {
                if (k + c >= params.k) { v[c] = 0.0; }
            }
        }
    }
    return v;
}

fn finish(tile: u32, row: u32, c: u32, gate: f32, up: f32) {
#ifdef GATED
    let n = tile * (BN / 2u) + c;
#else
    let n = tile * BN + c;
#endif
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
    let row0 = wid.y * BM;
    // 8 groups of 8 rows; 16 threads across the columns.
    let tr = lid / 16u;
    let tc = lid % 16u;
    var acc: array<array<f32, TN>, 8>;
    let k_end = params.k_blocks * 32u;
    for (var k0 = 0u; k0 < k_end; k0 += BK) {
        for (var i = lid; i < BM * BK / 4u; i += 128u) {
            let r = i / (BK / 4u);
            let k = (i % (BK / 4u)) * 4u;
            let v = load_x4(row0 + r, k0 + k);
            for (var c = 0u; c < 4u; c++) {
                xt[(k + c) * (BM / 4u) + r / 4u][r % 4u] = real(v[c]);
            }
        }
        for (var i = lid; i < BN * BK / 4u; i += 128u) {
            let r = i / (BK / 4u);
            let k = (i % (BK / 4u)) * 4u;
            let v = w_load4(weight_row(wid.x, r), k0 + k);
            for (var c = 0u; c < 4u; c++) {
                // Past K the codes of a quantized row may mean anything; x is zero there, so W need only be finite.
                wt[(k + c) * (BN / 4u) + r / 4u][r % 4u] = real(v[c]);
            }
        }
        workgroupBarrier();
        for (var k = 0u; k < BK; k++) {
            let xa = vec4<f32>(xt[k * (BM / 4u) + tr * 2u]);
            let xb = vec4<f32>(xt[k * (BM / 4u) + tr * 2u + 1u]);
            for (var j = 0u; j < TN; j++) {
                let c = tc + j * 16u;
                let w = f32(wt[k * (BN / 4u) + c / 4u][c % 4u]);
                acc[0][j] += xa.x * w;
                acc[1][j] += xa.y * w;
                acc[2][j] += xa.z * w;
                acc[3][j] += xa.w * w;
                acc[4][j] += xb.x * w;
                acc[5][j] += xb.y * w;
                acc[6][j] += xb.z * w;
                acc[7][j] += xb.w * w;
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 8u; i++) {
#ifdef GATED
        for (var j = 0u; j < TN / 2u; j++) {
            finish(wid.x, row0 + tr * 8u + i, tc + j * 16u, acc[i][j], acc[i][j + TN / 2u]);
        }
#else
        for (var j = 0u; j < TN; j++) {
            finish(wid.x, row0 + tr * 8u + i, tc + j * 16u, acc[i][j], 0.0);
        }
#endif
    }
}
