// Convolution of [batch, channels, depth, height, width] with weights [outputs, channels / groups, kernel], and its
// gradients; fewer dimensions have sizes of 1. One thread per element of out:
//   FORWARD: out = x * w (+ bias);  INPUT: the gradient of x, a transposed convolution of dy;
//   WEIGHT: the gradient of w, a correlation of dy and x;  BIAS: the sum of dy, per output channel.
// ADD adds to out. `a` is x (dy for INPUT and BIAS), `b` is w (dy for WEIGHT).
struct Params {
    count: u32,
    batch: u32,
    channels: u32,
    outputs: u32,
    conv_groups: u32,
    in_d: u32,
    in_h: u32,
    in_w: u32,
    out_d: u32,
    out_h: u32,
    out_w: u32,
    kernel_d: u32,
    kernel_h: u32,
    kernel_w: u32,
    stride_d: u32,
    stride_h: u32,
    stride_w: u32,
    pad_d: u32,
    pad_h: u32,
    pad_w: u32,
    dilate_d: u32,
    dilate_h: u32,
    dilate_w: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<f32>;
#ifndef BIAS
@group(0) @binding(2) var<storage, read> b: array<f32>;
#endif
#ifdef WITH_BIAS
@group(0) @binding(3) var<storage, read> bias: array<f32>;
#endif
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

// Coordinates of an element from its index in a volume.
fn split(at: u32, size: vec3<u32>) -> vec3<u32> {
    return vec3<u32>(at / (size.y * size.z), at / size.z % size.y, at % size.z);
}

fn join(at: vec3<u32>, size: vec3<u32>) -> u32 {
    return (at.x * size.y + at.y) * size.z + at.z;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let index = (wid.x + wid.y * groups.x) * 64u + lid;
    if (index >= params.count) { return; }
    let inner = vec3<u32>(params.in_d, params.in_h, params.in_w);
    let outer = vec3<u32>(params.out_d, params.out_h, params.out_w);
    let size = vec3<u32>(params.kernel_d, params.kernel_h, params.kernel_w);
    let stride = vec3<u32>(params.stride_d, params.stride_h, params.stride_w);
    let pad = vec3<u32>(params.pad_d, params.pad_h, params.pad_w);
    let dilate = vec3<u32>(params.dilate_d, params.dilate_h, params.dilate_w);
    let in_count = inner.x * inner.y * inner.z;
    let out_count = outer.x * outer.y * outer.z;
    let taps = size.x * size.y * size.z;
    let per_group = params.channels / params.conv_groups;
    let outputs_per_group = params.outputs / params.conv_groups;
    var sum = 0.0;
#ifdef FORWARD
    let place = split(index % out_count, outer);
    let o = index / out_count % params.outputs;
    let n = index / out_count / params.outputs;
    let first = o / outputs_per_group * per_group;
    for (var c = 0u; c < per_group; c++) {
        for (var tap = 0u; tap < taps; tap++) {
            // Places before the first wrap around to large numbers, which are outside too.
            let at = place * stride + split(tap, size) * dilate - pad;
            if (all(at < inner)) {
                sum += a[(n * params.channels + first + c) * in_count + join(at, inner)] * b[(o * per_group + c) * taps + tap];
            }
        }
    }
#endif
#ifdef INPUT
    let place = split(index % in_count, inner);
    let c = index / in_count % params.channels;
    let n = index / in_count / params.channels;
    let first = c / per_group * outputs_per_group;
    for (var o = 0u; o < outputs_per_group; o++) {
        for (var tap = 0u; tap < taps; tap++) {
            let moved = place + pad - split(tap, size) * dilate;
            let at = moved / stride;
            if (all(at < outer) && all(at * stride == moved)) {
                sum += a[(n * params.outputs + first + o) * out_count + join(at, outer)]
                    * b[((first + o) * per_group + c % per_group) * taps + tap];
            }
        }
    }
#endif
#ifdef WEIGHT
    let tap = split(index % taps, size) * dilate;
    let c = index / taps % per_group;
    let o = index / taps / per_group;
    let channel = o / outputs_per_group * per_group + c;
    for (var n = 0u; n < params.batch; n++) {
        for (var to = 0u; to < out_count; to++) {
            let at = split(to, outer) * stride + tap - pad;
            if (all(at < inner)) {
                sum += a[(n * params.channels + channel) * in_count + join(at, inner)] * b[(n * params.outputs + o) * out_count + to];
            }
        }
    }
#endif
#ifdef BIAS
    for (var n = 0u; n < params.batch; n++) {
        for (var to = 0u; to < out_count; to++) { sum += a[(n * params.outputs + index) * out_count + to]; }
    }
#endif
#ifdef WITH_BIAS
    sum += bias[o];
#endif
#ifdef ADD
    sum += out[index];
#endif
    out[index] = sum;
}
