// y = x Wᵀ for few rows of x (decode): TPR threads share ROWS rows of W and split K between them.
// NORM computes y = rmsnorm(x) Wᵀ: as the norm only scales the dot product, its sum of squares runs along.
// GATED computes act(x Gᵀ) * (x Uᵀ) with U params.up_row rows below G in the same planes.
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
    eps: f32,
    norm_offset: f32,
    scale: f32,
    softcap: f32,
}
#import common/activation
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
#ifdef NORM
@group(0) @binding(7) var<storage, read> norm: array<vec4<f32>>;
#endif

const SLOTS: u32 = ROWS + 1u;
#ifndef SUBGROUPS
var<workgroup> partial: array<f32, WG * SLOTS>;
#endif

// 32 elements of a row of x from element 32 * block on; what lies beyond K is zero.
fn load_x(col: u32, block: u32) -> array<vec4<f32>, 8> {
    var xb: array<vec4<f32>, 8>;
    let first = (params.x_offset + col * params.x_stride) / 4u + block * 8u;
    if (block * 32u + 32u <= params.k) {
        for (var i = 0u; i < 8u; i++) {
            xb[i] = x[first + i];
        }
    } else {
        for (var i = 0u; i < 8u; i++) {
            let k = vec4<u32>(block * 32u + 4u * i) + vec4<u32>(0u, 1u, 2u, 3u);
            if (k.x < params.k) {
                let v = x[first + i];
                for (var c = 0u; c < 4u; c++) {
                    if (k[c] < params.k) { xb[i][c] = v[c]; }
                }
            }
        }
    }
    return xb;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let lane = lid % TPR;
    let team = (wid.x + wid.y * groups.x) * (WG / TPR) + lid / TPR;
    let col = wid.z;
#ifdef GATED
    const PER: u32 = ROWS / 2u;
#else
    const PER: u32 = ROWS;
#endif
    let first = team * PER;
    var acc: array<f32, SLOTS>;
    for (var block = lane; block < params.k_blocks; block += TPR) {
        var xb = load_x(col, block);
        var sum = 0.0;
        for (var i = 0u; i < 8u; i++) {
#ifdef NORM
            acc[ROWS] += dot(xb[i], xb[i]);
            if (block * 32u + 4u * i < params.k) {
                xb[i] *= norm[block * 8u + i] + params.norm_offset;
            }
#endif
            sum += dot(xb[i], vec4<f32>(1.0));
        }
        w_prepare(&xb);
        for (var r = 0u; r < PER; r++) {
            // Rows past the end repeat the last one: cheaper than a branch around the loads.
            let row = params.row0 + min(first + r, params.n - 1u);
            acc[r] += w_dot(row, block, &xb, sum);
#ifdef GATED
            acc[PER + r] += w_dot(row + params.up_row, block, &xb, sum);
#endif
        }
    }
#ifdef SUBGROUPS
    for (var r = 0u; r < SLOTS; r++) {
        acc[r] = subgroupAdd(acc[r]);
    }
#else
    for (var r = 0u; r < SLOTS; r++) {
        partial[lid * SLOTS + r] = acc[r];
    }
    for (var step = TPR / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        var other: array<f32, SLOTS>;
        if (lane < step) {
            for (var r = 0u; r < SLOTS; r++) {
                other[r] = partial[(lid + step) * SLOTS + r];
            }
        }
        workgroupBarrier();
        if (lane < step) {
            for (var r = 0u; r < SLOTS; r++) {
                acc[r] += other[r];
                partial[lid * SLOTS + r] = acc[r];
            }
        }
    }
#endif
    if (lane != 0u) {
        return;
    }
    var factor = params.scale;
#ifdef NORM
    factor *= inverseSqrt(acc[ROWS] / f32(params.k) + params.eps);
#endif
    for (var r = 0u; r < PER; r++) {
        let n = first + r;
        if (n < params.n) {
            var y = acc[r] * factor;
#ifdef BIAS
            y += bias[n];
#endif
#ifdef GATED
            var up = acc[PER + r] * factor;
#ifdef BIAS
            up += bias[n + params.up_row];
#endif
            y = activate(params.act, y) * up;
#else
            y = activate(params.act, y);
#endif
            if (params.softcap > 0.0) {
                y = params.softcap * safe_tanh(y / params.softcap);
            }
#ifdef RESIDUAL
            y += residual[params.res_offset + col * params.res_stride + n];
#endif
            out[params.out_offset + col * params.out_stride + n] = y;
        }
    }
}
