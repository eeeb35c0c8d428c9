// Gradient of an embedding table: adds the scaled gradients of all rows with an id to its table row. The first row with an
// id sums all of them in order, so no two threads write an element.
struct Params {
    rows: u32,
    cols: u32,
    dy_stride: u32,
    out_stride: u32,
    scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = wid.y;
    let c = wid.x * 64u + lid;
    let id = ids[row];
    if (c >= params.cols) { return; }
    for (var before = 0u; before < row; before++) {
        if (ids[before] == id) { return; }
    }
    var sum = 0.0;
    for (var r = row; r < params.rows; r++) {
        if (ids[r] == id) { sum += dy[r * params.dy_stride + c]; }
    }
    out[id * params.out_stride + c] += params.scale * sum;
}
