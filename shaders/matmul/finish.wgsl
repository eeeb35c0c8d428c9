// What is done to a product on its way out: scale, bias, activation or gate, softcap, residual.
#import common/activation
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
#ifdef BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
#endif
#ifdef RESIDUAL
@group(0) @binding(6) var<storage, read> residual: array<f32>;
#endif

fn finish(row: u32, n: u32, sum: f32, up_sum: f32, factor: f32) {
    var y = sum * factor;
#ifdef BIAS
    y += bias[n];
#endif
    y = activate(ACT, y);
#ifdef GATED
    var up = up_sum * factor;
#ifdef BIAS
    up += bias[n + params.up_row];
#endif
    y *= up;
#endif
#ifdef SOFTCAP
    y = params.softcap * safe_tanh(y / params.softcap);
#endif
#ifdef RESIDUAL
    y += residual[params.res_offset + row * params.res_stride + n];
#endif
    out[params.out_offset + row * params.out_stride + n] = y;
}
