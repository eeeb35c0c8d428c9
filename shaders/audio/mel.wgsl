// Log-mel energies of a frame, one workgroup per frame. 400 samples, centered on every 160th with mirrored ends, are
// windowed and transformed as 16 interleaved transforms of 25 samples, with the error of an FFT. The largest logarithm
// of each frame goes to `peaks`. Frame state.pos is the first row of `out`.
struct Params {
    // Mel bands; samples with and without the trailing zeros.
    mels: u32,
    total: u32,
    x_stride: u32,
    out_stride: u32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
// State that counts frames as rows.
@group(0) @binding(1) var<storage, read> state: State;
// Rows of 160 samples; later ones are zeros.
@group(0) @binding(2) var<storage, read> x: array<f32>;
// Cosine, sine and window weight of each of 400 samples.
@group(0) @binding(3) var<storage, read> table: array<f32>;
// [mels][201]
@group(0) @binding(4) var<storage, read> filters: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<storage, read_write> peaks: array<f32>;

const SIZE = 400u;
const HOP = 160u;
const BINS = 201u;

var<workgroup> samples: array<f32, 400>;
var<workgroup> re: array<f32, 400>;
var<workgroup> im: array<f32, 400>;
var<workgroup> power: array<f32, 201>;
var<workgroup> largest: array<f32, 128>;

fn turn(i: u32) -> vec2<f32> {
    return vec2<f32>(table[i * 3u], table[i * 3u + 1u]);
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let frame = wid.x + wid.y * groups.x;
    let frames = params.total / HOP;
    for (var j = lid; j < SIZE; j += 128u) {
        var at = abs(i32(frame * HOP + j) - 200);
        let last = i32(params.total) - 1;
        if (at > last) {
            at = max(2 * last - at, 0);
        }
        var value = 0.0;
        if (u32(at) / HOP < state.rows) {
            value = x[u32(at) / HOP * params.x_stride + u32(at) % HOP];
        }
        samples[j] = value * table[j * 3u + 2u];
    }
    workgroupBarrier();
    // Transform n1 of samples n1, n1 + 16, …: its value at k.
    for (var i = lid; i < SIZE; i += 128u) {
        let n1 = i / 25u;
        let k = i % 25u;
        var sum = vec2<f32>(0.0, 0.0);
        for (var n = 0u; n < 25u; n++) {
            let t = turn(n * k % 25u * 16u);
            sum += samples[n * 16u + n1] * vec2<f32>(t.x, -t.y);
        }
        re[i] = sum.x;
        im[i] = sum.y;
    }
    workgroupBarrier();
    for (var k = lid; k < BINS; k += 128u) {
        var sum = vec2<f32>(0.0, 0.0);
        for (var n1 = 0u; n1 < 16u; n1++) {
            let t = turn(n1 * k % SIZE);
            let a = re[n1 * 25u + k % 25u];
            let b = im[n1 * 25u + k % 25u];
            sum += vec2<f32>(a * t.x + b * t.y, b * t.x - a * t.y);
        }
        power[k] = sum.x * sum.x + sum.y * sum.y;
    }
    workgroupBarrier();
    var most = -10.0;
    for (var m = lid; m < params.mels; m += 128u) {
        var energy = 0.0;
        for (var k = 0u; k < BINS; k++) {
            energy += filters[m * BINS + k] * power[k];
        }
        let y = log2(max(energy, 1e-10)) * 0.30102999566;
        most = max(most, y);
        if (frame < frames && frame >= state.pos) {
            out[(frame - state.pos) * params.out_stride + m] = y;
        }
    }
    largest[lid] = most;
    workgroupBarrier();
    if (lid == 0u && frame < frames) {
        for (var i = 0u; i < 128u; i++) {
            most = max(most, largest[i]);
        }
        peaks[frame] = most;
    }
}
