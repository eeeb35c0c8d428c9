// Normalizes log-mel features like Whisper, in place: at most 8 below the maximum of all frames, then (y + 4) / 4. One
// workgroup per row. Rows after the last frame become zeros.
struct Params {
    mels: u32,
    frames: u32,
    out_stride: u32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
// Its position is the first row's frame.
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> peaks: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

var<workgroup> largest: array<f32, 128>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = wid.x + wid.y * groups.x;
    var most = -10.0;
    for (var i = lid; i < params.frames; i += 128u) {
        most = max(most, peaks[i]);
    }
    largest[lid] = most;
    workgroupBarrier();
    for (var i = 0u; i < 128u; i++) {
        most = max(most, largest[i]);
    }
    for (var m = lid; m < params.mels; m += 128u) {
        if (row < params.frames) {
            var y = 0.0;
            if (row + state.pos < params.frames) {
                y = (max(out[row * params.out_stride + m], most - 8.0) + 4.0) * 0.25;
            }
            out[row * params.out_stride + m] = y;
        }
    }
}
