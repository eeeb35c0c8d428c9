// Gemma 3n AltUp streams, side by side in a row. The coefficients c are table entries times the row's `modes`.
// Predict: stream i + Σ_j c[i, j] · stream j; with SECOND, a row is first added to all streams but the first.
// CORRECT: stream i + (1 + c[i]) · (y - stream 0).
struct Params {
    cols: u32,
    count: u32,
    x_offset: u32,
    x_stride: u32,
    modes_offset: u32,
    modes_stride: u32,
    y_offset: u32,
    y_stride: u32,
    out_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> modes: array<f32>;
@group(0) @binding(3) var<storage, read> coefs: array<f32>;
#ifdef SECOND
@group(0) @binding(4) var<storage, read> y: array<f32>;
#endif
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

// Multiplies `count` table entries by the row's modes.
fn coef(index: u32, row: u32) -> f32 {
    var sum = 0.0;
    for (var p = 0u; p < params.count; p++) {
        sum += coefs[index * params.count + p] * modes[params.modes_offset + row * params.modes_stride + p];
    }
    return sum;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let c = wid.x * 64u + lid;
    let row = wid.y;
    if (c >= params.cols) {
        return;
    }
    let at = params.x_offset + row * params.x_stride + c;
    var given = 0.0;
#ifdef SECOND
    given = y[params.y_offset + row * params.y_stride + c];
#endif
    for (var i = 0u; i < params.count; i++) {
        var sum = x[at + i * params.cols];
#ifdef CORRECT
        sum += (1.0 + coef(i, row)) * (given - x[at]);
#else
        sum += f32(min(i, 1u)) * given;
        for (var j = 0u; j < params.count; j++) {
            sum += coef(i * params.count + j, row) * (x[at + j * params.cols] + f32(min(j, 1u)) * given);
        }
#endif
        out[row * params.out_stride + i * params.cols + c] = sum;
    }
}
