// Maximum logit of each vocabulary slice as (value, index) pairs; ties go to the lowest index. A slice with NaN gives
// the index NOT_FINITE; one with all-equal logits sets FLAT in it. ROWS takes each row of the step instead of one.
struct Params {
    vocab: u32,
    slice: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<vec2<u32>>;
#ifdef ROWS
#import common/state
@group(0) @binding(3) var<storage, read> state: State;
#endif

#import sample/best

var<workgroup> spread: atomic<u32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    var row = 0u;
#ifdef ROWS
    row = wid.y;
    if (row >= state.rows) {
        return;
    }
#endif
    let base = row * ((params.vocab + 3u) / 4u * 4u);
    let first = wid.x * params.slice;
    let head = logits[base + first];
    var differs = params.vocab == 1u;
    var best = Best(-3.4e38, NONE);
    for (var i = first + lid; i < min(first + params.slice, params.vocab); i += 256u) {
        let v = logits[base + i];
        differs = differs || v != head;
        if ((bitcast<u32>(v) & 0x7f800000u) == 0x7f800000u) {
            best = Best(3.4e38, NOT_FINITE);
        } else {
            best = better(best, Best(v, i));
        }
    }
    if (differs) { atomicStore(&spread, 1u); }
    best = best_of_all(lid, best);
    if (lid == 0u) {
        if (atomicLoad(&spread) == 0u && best.index < FLAT) { best.index |= FLAT; }
        out[row * groups.x + wid.x] = vec2<u32>(bitcast<u32>(best.value), best.index);
    }
}
