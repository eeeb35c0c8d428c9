// Pools the rows of each sequence to one, a thread per sequence and column. Modes are those of `ir::Pooling`: 0 mean,
// 1 first, 2 last, 3 maximum, 4 sum over the root of the count, 5 mean weighted by position from 1. With GRADIENT the
// gradient of the rows, added to out: each row gets its weight times dy, of a maximum only the first largest row.
struct Params {
    cols: u32,
    mode: u32,
    x_offset: u32,
    x_stride: u32,
#ifdef GRADIENT
    dy_offset: u32,
    dy_stride: u32,
#endif
    out_offset: u32,
    out_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> spans: array<vec2<u32>>;
#ifdef GRADIENT
@group(0) @binding(3) var<storage, read> dy: array<f32>;
#endif
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

// Weight of the row at `index` of `count` rows.
fn weight(index: u32, count: u32) -> f32 {
    let n = f32(count);
    if (params.mode == 1u) { return f32(index == 0u); }
    if (params.mode == 2u) { return f32(index + 1u == count); }
    if (params.mode == 4u) { return inverseSqrt(n); }
    if (params.mode == 5u) { return f32(index + 1u) / (n * (n + 1.0) * 0.5); }
    return 1.0 / n;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let sequence = wid.y;
    let c = wid.x * 64u + lid;
    if (c >= params.cols) { return; }
    let span = spans[sequence];
    let count = span.y - span.x;
    let column = params.x_offset + c;
    var largest = span.x;
    if (params.mode == 3u) {
        for (var row = span.x + 1u; row < span.y; row++) {
            if (x[column + row * params.x_stride] > x[column + largest * params.x_stride]) { largest = row; }
        }
    }
#ifdef GRADIENT
    let above = dy[params.dy_offset + sequence * params.dy_stride + c];
    let to = params.out_offset + c;
    if (params.mode == 3u) {
        out[to + largest * params.out_stride] += above;
        return;
    }
    for (var row = span.x; row < span.y; row++) {
        out[to + row * params.out_stride] += weight(row - span.x, count) * above;
    }
#else
    var sum = 0.0;
    if (params.mode == 3u) {
        sum = x[column + largest * params.x_stride];
    } else {
        for (var row = span.x; row < span.y; row++) {
            sum += weight(row - span.x, count) * x[column + row * params.x_stride];
        }
    }
    out[params.out_offset + sequence * params.out_stride + c] = sum;
#endif
}
