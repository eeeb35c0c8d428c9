// Extracts patch rows from 8-bit pixels through a lookup table per color. Column c is pixel c / of_pixel, color c /
// of_color and frame c / of_frame, each modulo its count. `starts` gives, per row and frame, the byte of the first
// pixel and the bytes per pixel line; rows without a start are zero.
struct Params {
    side: u32,
    frames: u32,
    cols: u32,
    of_pixel: u32,
    of_color: u32,
    of_frame: u32,
    out_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> pixels: array<u32>;
@group(0) @binding(2) var<storage, read> starts: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> levels: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let c = wid.x * 256u + lid;
    if (c >= params.cols) { return; }
    let pixel = c / params.of_pixel;
    let color = c / params.of_color % 3u;
    let start = starts[wid.y * params.frames + c / params.of_frame % params.frames];
    var y = 0.0;
    if (start.y > 0u) {
        let byte = start.x + pixel / params.side % params.side * start.y + pixel % params.side * 3u + color;
        y = levels[color * 256u + (pixels[byte / 4u] >> (byte % 4u * 8u)) % 256u];
    }
    out[wid.y * params.out_stride + c] = y;
}
