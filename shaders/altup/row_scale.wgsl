// Row operations with whole-row statistics, one workgroup per column group. MATCH: scales each group of `cols` columns
// of x to the magnitude (RMS) of the row of y; with ADDED, adds a row of z. Otherwise: act(relu(x - (mean + factor ·
// deviation))) · y, a sparse gate.
struct Params {
    cols: u32,
    runs: u32,
    x_offset: u32,
    x_stride: u32,
    y_offset: u32,
    y_stride: u32,
    z_offset: u32,
    z_stride: u32,
    out_stride: u32,
    act: u32,
    factor: f32,
}
#import common/activation
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> y: array<f32>;
#ifdef ADDED
@group(0) @binding(3) var<storage, read> z: array<f32>;
#endif
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

const WG: u32 = 256u;
#import common/total

// Mean over the columns, from each thread's sum.
fn mean(lid: u32, value: f32) -> f32 {
    return total(lid, value) / f32(params.cols);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let part = wid.x + wid.y * groups.x;
    let row = part / params.runs;
    let first = part % params.runs * params.cols;
    let at = params.x_offset + row * params.x_stride + first;
    let other = params.y_offset + row * params.y_stride;
    var sum = 0.0;
#ifdef MATCH
    var wanted = 0.0;
    for (var c = lid; c < params.cols; c += WG) {
        sum += x[at + c] * x[at + c];
        wanted += y[other + c] * y[other + c];
    }
    let factor = sqrt(mean(lid, wanted)) * inverseSqrt(max(mean(lid, sum), 1e-5));
#else
    for (var c = lid; c < params.cols; c += WG) { sum += x[at + c]; }
    let middle = mean(lid, sum);
    var squares = 0.0;
    for (var c = lid; c < params.cols; c += WG) {
        let v = x[at + c] - middle;
        squares += v * v;
    }
    let least = middle + params.factor * sqrt(mean(lid, squares));
#endif
    for (var c = lid; c < params.cols; c += WG) {
#ifdef MATCH
        var v = x[at + c] * factor;
#ifdef ADDED
        v += z[params.z_offset + row * params.z_stride + first + c];
#endif
#else
        let v = activate(params.act, max(x[at + c] - least, 0.0)) * y[other + c];
#endif
        out[row * params.out_stride + first + c] = v;
    }
}
