// Causal depthwise convolution of [rows, cols] within sequences, or with INPUT the gradient of its input. `w` is
// [column][tap], the oldest row first:
//   out[row] = bias + Σ w[tap] · x[row - (taps - 1 - tap)]
//   INPUT: out[row] = Σ w[tap] · x[row + (taps - 1 - tap)], x the gradient of the output; ADD adds to out
struct Params {
    rows: u32,
    cols: u32,
    taps: u32,
    x_offset: u32,
    x_stride: u32,
    out_offset: u32,
    out_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<f32>;
@group(0) @binding(3) var<storage, read> spans: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
#ifdef BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
#endif

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let at = (wid.x + wid.y * groups.x) * 256u + lid;
    let row = at / params.cols;
    let c = at % params.cols;
    if (row >= params.rows) { return; }
    let span = spans[row];
    var sum = 0.0;
#ifdef BIAS
    sum = bias[c];
#endif
    for (var tap = 0u; tap < params.taps; tap++) {
        let distance = params.taps - 1u - tap;
#ifdef INPUT
        let source = row + distance;
        let inside = source < span.y;
#else
        let source = row - distance;
        let inside = row >= span.x + distance;
#endif
        if (inside) {
            sum += w[c * params.taps + tap] * x[params.x_offset + source * params.x_stride + c];
        }
    }
    let to = params.out_offset + row * params.out_stride + c;
#ifdef ADD
    sum += out[to];
#endif
    out[to] = sum;
}
