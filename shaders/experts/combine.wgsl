// Sums the outputs of a row's selected experts by their weights. PARTS: `y` holds tile rows from subgroup matrices
// (shaders/experts/bucket.wgsl), without the experts' biases.
struct Params {
    cols: u32,
    each: u32,
    p_offset: u32,
    p_stride: u32,
    y_stride: u32,
    out_offset: u32,
    out_stride: u32,
    res_offset: u32,
    res_stride: u32,
#ifdef PARTS
    place_at: u32,
#endif
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> y: array<f32>;
@group(0) @binding(2) var<storage, read> picks: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
#ifdef RESIDUAL
@group(0) @binding(4) var<storage, read> residual: array<f32>;
#endif
#ifdef PARTS
@group(0) @binding(5) var<storage, read> buckets: array<u32>;
#ifdef BIAS
@group(0) @binding(6) var<storage, read> bias: array<f32>;
#endif
#endif

// Output of a row's selected expert.
fn made(row: u32, p: u32, c: u32) -> f32 {
    let pick = row * params.each + p;
#ifdef PARTS
    let sum = y[buckets[params.place_at + pick] * params.y_stride + c];
#ifdef BIAS
    return sum + bias[u32(picks[params.p_offset + row * params.p_stride + p]) * params.cols + c];
#else
    return sum;
#endif
#else
    return y[pick * params.y_stride + c];
#endif
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = wid.y;
    for (var i = 0u; i < 4u; i++) {
        let c = wid.x * 256u + i * 64u + lid;
        if (c < params.cols) {
            var sum = 0.0;
#ifdef RESIDUAL
            sum = residual[params.res_offset + row * params.res_stride + c];
#endif
            for (var p = 0u; p < params.each; p++) {
                let weight = picks[params.p_offset + row * params.p_stride + params.each + p];
                sum += weight * made(row, p, c);
            }
            out[params.out_offset + row * params.out_stride + c] = sum;
        }
    }
}
