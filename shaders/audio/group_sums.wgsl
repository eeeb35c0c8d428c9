// Mean and centered sum of squares of a slab of rows of a column group, by workgroup (slab, group).
struct Params {
    cols: u32,
    groups: u32,
    slabs: u32,
    x_offset: u32,
    x_stride: u32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> sums: array<vec2<f32>>;

const WG: u32 = 256u;
#import common/total

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let wide = params.cols / params.groups;
    let first = wid.x * state.rows / params.slabs;
    let count = ((wid.x + 1u) * state.rows / params.slabs - first) * wide;
    let base = params.x_offset + first * params.x_stride + wid.y * wide;
    var sum = 0.0;
    for (var i = lid; i < count; i += WG) {
        sum += x[base + i / wide * params.x_stride + i % wide];
    }
    let mean = total(lid, sum) / f32(max(count, 1u));
    var squares = 0.0;
    for (var i = lid; i < count; i += WG) {
        let d = x[base + i / wide * params.x_stride + i % wide] - mean;
        squares += d * d;
    }
    squares = total(lid, squares);
    if (lid == 0u) {
        sums[wid.y * params.slabs + wid.x] = vec2<f32>(mean, squares);
    }
}
