// Matmul epilogue: scale, bias, activation or gate, softcap, residual (or multiplier). With OPTIONAL, params.has says
// which of those that the kernel can do a matmul has, so that matmuls of a step share a pipeline.
#import common/activation
#import common/f16_store
#ifndef QUANTIZED
@group(0) @binding(4) var<storage, read_write> out: array<Kept>;
#endif
#ifdef BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
#endif
#ifdef RESIDUAL
@group(0) @binding(6) var<storage, read> residual: array<f32>;
#endif

#ifdef OPTIONAL
const ACTIVATION: u32 = 1u;
const GATE: u32 = 2u;
const BIAS_VECTOR: u32 = 4u;
const RESIDUAL_ROWS: u32 = 8u;
fn has(part: u32) -> bool {
    return (params.has & part) != 0u;
}
#endif

#ifdef BIAS
// Bias of an output, `up` rows further down.
fn bias_of(row: u32, n: u32, up: u32) -> f32 {
#ifdef SUM_EXPERTS
    var sum = 0.0;
    // Four selected experts are loaded together.
    for (var first = 0u; first < params.each; first += 4u) {
#for i in 0..4
        let pick$i = min(first + $iu, params.each - 1u);
        let term$i = share_of(row, pick$i) * bias[picked(row, pick$i) * params.expert_rows + n];
#endfor
#for i in 0..4
        if (first + $iu < params.each) { sum += term$i; }
#endfor
    }
    return sum;
#else
#ifdef EXPERTS
    return bias[bias_row + n * params.row_step + up];
#else
    return bias[n + up];
#endif
#endif
}
#endif

// Inputs of an output other than its sum.
struct Ending {
    bias: f32,
    up_bias: f32,
    other: f32,
}

fn ending_of(row: u32, n: u32) -> Ending {
    var ending: Ending;
#ifdef BIAS
#ifdef OPTIONAL
    if (has(BIAS_VECTOR)) {
#else
    {
#endif
        ending.bias = bias_of(row, n, 0u);
#ifdef GATED
        ending.up_bias = bias_of(row, n, params.up_row);
#endif
    }
#endif
#ifdef RESIDUAL
#ifdef OPTIONAL
    if (has(RESIDUAL_ROWS)) {
#else
    {
#endif
        ending.other = residual[params.res_offset + row * params.res_stride + n];
    }
#endif
    return ending;
}

#ifdef QUANTIZED
// An output.
fn finished(sum: f32, up_sum: f32, factor: f32, ending: Ending) -> f32 {
#else
fn finish(row: u32, n: u32, sum: f32, up_sum: f32, factor: f32) {
    finish_with(row, n, sum, up_sum, factor, ending_of(row, n));
}

// Four outputs of a row from column n on.
fn finish4(row: u32, n: u32, sums: vec4<f32>, up_sums: vec4<f32>) {
#for c in 0..4
    if (n + $cu < params.n) { finish(row, n + $cu, sums[$c], up_sums[$c], params.scale); }
#endfor
}

fn finish_with(row: u32, n: u32, sum: f32, up_sum: f32, factor: f32, ending: Ending) {
#endif
    var y = sum * factor;
    y += ending.bias;
#ifdef OPTIONAL
    if (has(ACTIVATION)) {
#else
    {
#endif
#ifdef CLAMPED
        y = min(y, params.limit);
        y *= sigmoid(params.alpha * y);
#else
#if ACT == 1
        y = silu(y);
#endif
#if ACT == 2
        y = gelu_tanh(y);
#endif
#if ACT == 3
        y = gelu_erf(y);
#endif
#if ACT == 4
        y = relu(y);
#endif
#if ACT == 5
        y = sigmoid(y);
#endif
#if ACT == 6
        y = safe_tanh(y);
#endif
#if ACT == 7
        y = relu_squared(y);
#endif
#if ACT == 8
        y = gelu_sigmoid(y);
#endif
#endif
    }
#ifdef GATED
#ifdef OPTIONAL
    if (has(GATE)) {
#else
    {
#endif
        var up = up_sum * factor + ending.up_bias;
#ifdef CLAMPED
        up = clamp(up, -params.limit, params.limit) + 1.0;
#endif
        y *= up;
    }
#endif
#ifdef SOFTCAP
    y = params.softcap * safe_tanh(y / params.softcap);
#endif
#ifdef RESIDUAL
#ifdef OPTIONAL
    if (has(RESIDUAL_ROWS)) {
#else
    {
#endif
        if (params.res_times == 1u) {
            y *= ending.other;
        } else {
            y += ending.other;
        }
    }
#endif
#ifdef QUANTIZED
    return y;
#else
    var at = params.out_offset + row * params.out_stride + n;
#ifdef EXPERTS
    at += out_first;
#endif
#ifdef SUM_EXPERTS
    if (params.later == 1u) {
        y += out[at];
    }
#endif
    out[at] = as_kept(y);
#endif
}
