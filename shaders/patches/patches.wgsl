// Pixels of 8 bits as rows of patches: what each value of a color becomes, in the order that a tower reads (ORDER 0: color, frame, y, x;
// 1: frame, color, y, x; 2: y, x, color). `starts` has for each row, by frame, the byte of its first pixel and the bytes from a line of
// pixels to the next; a row without any is zeros.
struct Params {
    side: u32,
    frames: u32,
    cols: u32,
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
    let area = params.side * params.side;
    var at = c % area;
    var color = c / area;
    var frame = 0u;
    if (ORDER == 2u) {
        at = c / 3u;
        color = c % 3u;
    } else if (ORDER == 1u) {
        frame = color / 3u;
        color = color % 3u;
    } else {
        frame = color % params.frames;
        color = color / params.frames;
    }
    let start = starts[wid.y * params.frames + frame];
    var y = 0.0;
    if (start.y > 0u) {
        let byte = start.x + at / params.side * start.y + at % params.side * 3u + color;
        y = levels[color * 256u + (pixels[byte / 4u] >> (byte % 4u * 8u)) % 256u];
    }
    out[wid.y * params.out_stride + c] = y;
}
