// Elementwise functions of [rows, cols] by OP; ADD adds to out:
//   0 scale: a · factor                     1 sum: a + b
//   2 product: a · b                        3 activation: act(a)
//   4 its gradient: act'(a) · b             5 gate: act(a) · b
//   6 gradient of the gate: act'(a) · b · c 7 soft cap: factor · tanh(a / factor)
//   8 its gradient: (1 - tanh²(a / factor)) · b
//   9 column scale: a · b[column], or a · b[0] with `step` 0
struct Params {
    rows: u32,
    cols: u32,
    a_offset: u32,
    a_stride: u32,
    b_offset: u32,
    b_stride: u32,
    c_offset: u32,
    c_stride: u32,
    out_offset: u32,
    out_stride: u32,
    factor: f32,
    act: u32,
    step: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<f32>;
#ifdef B
@group(0) @binding(2) var<storage, read> b: array<f32>;
#endif
#ifdef C
@group(0) @binding(3) var<storage, read> c: array<f32>;
#endif
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
#import common/activation
#import train/derivative

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let at = (wid.x + wid.y * groups.x) * 256u + lid;
    let row = at / params.cols;
    let col = at % params.cols;
    if (row >= params.rows) { return; }
    let x = a[params.a_offset + row * params.a_stride + col];
#ifdef B
#if OP == 9
    let y = b[params.b_offset + col * params.step];
#else
    let y = b[params.b_offset + row * params.b_stride + col];
#endif
#endif
#ifdef C
    let z = c[params.c_offset + row * params.c_stride + col];
#endif
    var value = 0.0;
#if OP == 0
    value = x * params.factor;
#endif
#if OP == 1
    value = x + y;
#endif
#if OP == 2
    value = x * y;
#endif
#if OP == 3
    value = activate(params.act, x);
#endif
#if OP == 4
    value = derivative(params.act, x) * y;
#endif
#if OP == 5
    value = activate(params.act, x) * y;
#endif
#if OP == 6
    value = derivative(params.act, x) * y * z;
#endif
#if OP == 7
    value = params.factor * safe_tanh(x / params.factor);
#endif
#if OP == 8
    let t = safe_tanh(x / params.factor);
    value = (1.0 - t * t) * y;
#endif
#if OP == 9
    value = x * y;
#endif
    let to = params.out_offset + row * params.out_stride + col;
#ifdef ADD
    value += out[to];
#endif
    out[to] = value;
}
