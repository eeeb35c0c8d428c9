// Elementwise operation: OP 0 a + b, 1 a * b, 2 act(a) * b, 3 act(a), 4 a * scale, 5 asinh(a * exp(b[0])), 6 a * b[0],
// 7 clamp(a, b[0], b[1]). Inputs may be views of wider rows; with a_step 0 one column of a is broadcast. Rows beyond
// the grid's height continue along z; those past the end of the output are skipped.
struct Params {
    cols: u32,
    a_offset: u32,
    a_stride: u32,
    a_step: u32,
    b_offset: u32,
    b_stride: u32,
    out_offset: u32,
    out_stride: u32,
    act: u32,
    scale: f32,
}
#import common/activation
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<f32>;
#ifdef BINARY
@group(0) @binding(2) var<storage, read> b: array<f32>;
#endif
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = wid.y + wid.z * groups.y;
    if (wid.z > 0u && params.out_offset + row * params.out_stride >= arrayLength(&out)) {
        return;
    }
    for (var i = 0u; i < 4u; i++) {
        let c = wid.x * 256u + i * 64u + lid;
        if (c < params.cols) {
            let left = a[params.a_offset + row * params.a_stride + c * params.a_step];
            var right = 0.0;
#ifdef BINARY
            right = b[params.b_offset + row * params.b_stride + c * u32(OP < 5u)];
#endif
            var y: f32;
            switch OP {
                case 0u: { y = left + right; }
                case 1u, 6u: { y = left * right; }
                case 2u: { y = activate(params.act, left) * right; }
                case 3u: { y = activate(params.act, left); }
                case 5u: {
                    let z = left * exp(clamp(right, -80.0, 80.0));
                    y = sign(z) * log(abs(z) + sqrt(z * z + 1.0));
                }
#ifdef BINARY
                case 7u: { y = clamp(left, right, b[params.b_offset + 1u]); }
#endif
                default: { y = left * params.scale; }
            }
            out[params.out_offset + row * params.out_stride + c] = y;
        }
    }
}
