// Pools each sequence of a packed step to one row: MODE 0 mean, 1 first, 2 last, 3 maximum, 4 sum over the root of the
// count, 5 position-weighted mean. A workgroup of 256 threads takes 64 columns of one sequence, four rows at a time.
struct Params {
    cols: u32,
    x_offset: u32,
    x_stride: u32,
    out_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> spans: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

const LEAST = -3.4e38;

var<workgroup> parts: array<f32, 256>;

fn join(a: f32, b: f32) -> f32 {
    if (MODE == 3u) { return max(a, b); }
    return a + b;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let c = wid.x * 64u + lid % 64u;
    let lane = lid / 64u;
    var span = spans[wid.y];
    let count = max(span.y, span.x + 1u) - span.x;
    let first = span.x;
    if (MODE == 1u) { span.y = span.x + 1u; }
    if (MODE == 2u) { span.x = max(span.y, 1u) - 1u; }
    var total = 0.0;
    if (MODE == 3u) { total = LEAST; }
    if (c < params.cols) {
        for (var row = span.x + lane; row < span.y; row += 4u) {
            var value = x[params.x_offset + row * params.x_stride + c];
            if (MODE == 5u) { value *= f32(row - first + 1u); }
            total = join(total, value);
        }
    }
    parts[lid] = total;
    workgroupBarrier();
    if (lane == 0u && c < params.cols) {
        total = join(join(total, parts[lid + 64u]), join(parts[lid + 128u], parts[lid + 192u]));
        let n = f32(count);
        if (MODE == 0u) { total /= n; }
        if (MODE == 4u) { total /= sqrt(n); }
        if (MODE == 5u) { total /= 0.5 * n * (n + 1.0); }
        out[wid.y * params.out_stride + c] = total;
    }
}
