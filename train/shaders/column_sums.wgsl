// Sums over rows and column groups, added to out[out_offset + column]: of dy (a bias), or with GAIN of
// dy · (x - mean) · factor (the gain of a norm). Four threads share a column, each a fixed quarter of the rows.
struct Params {
    cols: u32,
    groups: u32,
    parts: u32,
    dy_offset: u32,
    dy_stride: u32,
    out_offset: u32,
#ifdef GAIN
    x_offset: u32,
    x_stride: u32,
#endif
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dy: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
#ifdef GAIN
@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read> stats: array<vec2<f32>>;
#endif
var<workgroup> quarters: array<f32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let c = wid.x * 64u + lid % 64u;
    var sum = 0.0;
    if (c < params.cols) {
        for (var part = lid / 64u; part < params.parts; part += 4u) {
            let row = part / params.groups;
            let first = part % params.groups * params.cols;
            let d = dy[params.dy_offset + row * params.dy_stride + first + c];
#ifdef GAIN
            let own = stats[part];
            sum += d * (x[params.x_offset + row * params.x_stride + first + c] - own.x) * own.y;
#else
            sum += d;
#endif
        }
    }
    quarters[lid] = sum;
    workgroupBarrier();
    if (lid < 64u && c < params.cols) {
        out[params.out_offset + c] += quarters[lid] + quarters[lid + 64u] + quarters[lid + 128u] + quarters[lid + 192u];
    }
}
