// Snake, x + sin(a x)² / a with an `a` per column, of the first columns; leaky ReLU of the others. A workgroup takes
// 256 elements.
struct Params {
    cols: u32,
    snakes: u32,
    slope: f32,
    x_offset: u32,
    x_stride: u32,
    out_stride: u32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> alpha: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

// sin², because a device's sine may be off by 2^-11. Reduces modulo pi, split into two parts.
fn sin_squared(x: f32) -> f32 {
    let turns = round(x * 0.31830988618);
    let r = (x - turns * 3.140625) - turns * 9.67653589793e-4;
    let q = r * r;
    let s = r * (1.0 + q * (-0.16666666667 + q * (8.3333333333e-3 + q * (-1.9841269841e-4 + q * (2.7557319224e-6 - q * 2.5052108385e-8)))));
    return s * s;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let element = (wid.x + wid.y * groups.x) * 256u + lid;
    let row = element / params.cols;
    let c = element % params.cols;
    if (row >= state.rows) {
        return;
    }
    let v = x[params.x_offset + row * params.x_stride + c];
    var y = max(v, v * params.slope);
    if (c < params.snakes) {
        let a = alpha[c];
        y = v + sin_squared(a * v) / (a + 1e-9);
    }
    out[row * params.out_stride + c] = y;
}
