// The gradient of the weights of short_conv.wgsl, added to out[column][tap]: the sum over rows of dy[row] · x[row - distance]
// within sequences. A workgroup per 64 columns and tap; four threads share a column, each a fixed quarter of the rows.
struct Params {
    rows: u32,
    cols: u32,
    taps: u32,
    x_offset: u32,
    x_stride: u32,
    dy_offset: u32,
    dy_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;
@group(0) @binding(3) var<storage, read> spans: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
var<workgroup> quarters: array<f32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let c = wid.x * 64u + lid % 64u;
    let distance = params.taps - 1u - wid.y;
    var sum = 0.0;
    if (c < params.cols) {
        for (var row = lid / 64u; row < params.rows; row += 4u) {
            if (row >= spans[row].x + distance) {
                sum += dy[params.dy_offset + row * params.dy_stride + c] * x[params.x_offset + (row - distance) * params.x_stride + c];
            }
        }
    }
    quarters[lid] = sum;
    workgroupBarrier();
    if (lid < 64u && c < params.cols) {
        out[c * params.taps + wid.y] += quarters[lid] + quarters[lid + 64u] + quarters[lid + 128u] + quarters[lid + 192u];
    }
}
